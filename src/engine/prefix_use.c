/* The prefix cache as the engine uses it (the tree itself is cache/prefix.c).
 *
 * A prompt looks once, when it is admitted, and begins behind what it found. While the rest is computed, its chunks end
 * where a state is worth keeping:
 *
 *   marks    the last one before the prompt's last token always, the first (what all conversations of an application
 *            share), and of the last few messages; without marks the prompt's last token but one
 *   branch   where the tree knows more tokens alike than it can begin at: the next prompt of this kind will begin there
 *   leaders  where a request that waits will begin: it shares a longer prefix with this prompt, while that is being
 *            computed, than with the tree. It waits until this one has passed the place, instead of computing all of it
 *            beside. Who is paused, cancelled or gone leads nobody.
 *   trail    multiples of the spacing, so that a prompt that differs in the middle loses little; not close to another
 *            place, because a chunk that ends early costs a step
 *
 * Answers are kept as they grow, every ANSWER_EVERY tokens, and at their end, also when they are cancelled. Before
 * anything is entered its numbers are looked at: what is not finite is never kept, and ends the request. Models without
 * recurrent layers can begin anywhere; they enter pages as they go and stop nowhere.
 *
 * Called by admission.c, sequence.c and engine.c. Owns nothing. */
#include "engine/prefix_use.h"

#include <assert.h>
#include <string.h>

#include "engine/prefix_key.h"

enum {
    WORTH = 64,         /* tokens: for less nobody waits, and nothing is loaded */
    BRANCH_MIN = 16,    /* tokens that a branch must save */
    CLOSE = 8,          /* two places of leaders this close are one */
    TRAIL_GAP = 64,     /* the trail keeps this distance from other places */
    TRAIL_MIN = 256,    /* default spacing of a short prompt's trail */
    TRAIL_PARTS = 16,   /* of a long one */
    ANSWER_EVERY = 256, /* tokens */
    LOADS_MAX = 2,      /* of one request: what came back empty twice is computed */
    LED_MAX = 4,        /* and so often it waits for somebody else's prefix */
    WAIT_MS = 10        /* for the disk, when there is nothing else to do */
};

/* ---- places ---- */

static bool has_point(const neap_seq *s, int32_t point) {
    for (int32_t i = 0; i < s->n_points; i++) {
        if (s->points[i] == point) return true;
    }
    return false;
}

static void add_point(neap_seq *s, int64_t point) {
    if (point < 1 || point > s->n_prompt || s->n_points == NEAP_POINTS_MAX || has_point(s, (int32_t)point)) return;
    s->points[s->n_points++] = (int32_t)point;
}

static int32_t spacing_of(const neap_seq *s) {
    const int32_t given = s->engine->options.checkpoint_spacing;
    if (given > 0) return given;
    int32_t spacing = TRAIL_MIN;
    while (spacing < s->n_prompt / TRAIL_PARTS && spacing < 1 << 29) spacing *= 2;
    return spacing;
}

/* The last mark that leaves a token to compute, those of the messages before it, and the first of all. */
static void add_marks(neap_seq *s, const int32_t *marks, size_t n_marks) {
    size_t n = n_marks;
    while (n > 0 && marks[n - 1] >= s->n_prompt) n--;
    if (n == 0) {
        add_point(s, s->n_prompt - 1);
        return;
    }
    for (size_t i = 0; i < 4 && i < n; i++) add_point(s, marks[n - 1 - i]);
    add_point(s, marks[0]);
}

neap_status neap_prefix_use_init(neap_seq *s, const neap_request *r) {
    const neap_engine *e = s->engine;
    s->space = "";
    s->feeds_prefix = e->prefix != NULL && !r->no_prefix;
    s->uses_prefix = s->feeds_prefix && !s->all_logits; /* rows that are not computed have no logits to show */
    if (!s->feeds_prefix) return NEAP_OK;
    if (r->space != NULL) NEAP_TRY(neap_arena_strdup(s->arena, r->space, &s->space));
    s->spacing = spacing_of(s);
    add_marks(s, r->marks, r->n_marks);
    s->n_fixed = s->n_points;
    return NEAP_OK;
}

/* Where the prompt ends as far as others can begin in it. */
static int32_t last_place(const neap_seq *s) {
    return s->n_fixed > 0 && s->engine->has_states ? s->points[0] : s->n_prompt;
}

/* A multiple of the spacing behind n that is not close to another place. */
static int32_t next_of_trail(const neap_seq *s, int32_t n) {
    const int32_t gap = s->spacing / 4 < TRAIL_GAP ? s->spacing / 4 : TRAIL_GAP;
    for (int64_t at = ((int64_t)n / s->spacing + 1) * s->spacing; at < s->n_prompt; at += s->spacing) {
        bool is_close = at - s->n_kept < gap;
        for (int32_t i = 0; i < s->n_points && !is_close; i++) {
            is_close = at - s->points[i] < gap && s->points[i] - at < gap;
        }
        if (!is_close) return (int32_t)at;
    }
    return s->n_prompt;
}

int32_t neap_prefix_use_rows(const neap_seq *s, int32_t n) {
    if (!s->feeds_prefix || !s->engine->has_states || s->n_computed >= s->n_prompt) return n;
    int32_t stop = next_of_trail(s, s->n_computed);
    for (int32_t i = 0; i < s->n_points; i++) {
        if (s->points[i] > s->n_computed && s->points[i] < stop) stop = s->points[i];
    }
    const int32_t rows = stop - s->n_computed;
    return rows < n ? rows : n;
}

/* ---- slots ---- */

int64_t neap_prefix_use_pages_free(const neap_engine *e) {
    return (neap_forward_cache_total(e->forward) - neap_forward_cache_used(e->forward)) / NEAP_PAGE_ROWS;
}

int64_t neap_prefix_use_pages_left(const neap_engine *e) {
    neap_prefix_stats stats = {0};
    if (e->prefix != NULL) neap_prefix_statistics(e->prefix, &stats);
    return neap_prefix_use_pages_free(e) + stats.n_pages_only;
}

static neap_prefix_match find(const neap_seq *s) {
    neap_prefix_match match = {0, 0};
    if (s->uses_prefix && s->n_known > 1) {
        neap_prefix_find(s->engine->prefix, s->space, s->tokens, s->n_known - 1, &match);
    }
    return match;
}

int64_t neap_prefix_use_pages_found(const neap_seq *s) { return find(s).n_usable / NEAP_PAGE_ROWS; }

/* The first admission is what the request's BEGIN event and the statistics tell. */
static void note_hit(neap_seq *s, int64_t n_usable) {
    neap_engine *e = s->engine;
    if (s->was_admitted || !s->uses_prefix) return;
    s->n_cached = (int32_t)n_usable;
    e->n_prefix_asked++;
    e->n_prefix_found += n_usable > 0;
    e->n_prefix_tokens_asked += (uint64_t)s->n_prompt;
    e->n_prefix_tokens_found += (uint64_t)n_usable;
}

neap_status neap_prefix_use_open(neap_seq *s, int64_t n) {
    neap_engine *e = s->engine;
    int64_t n_usable = 0;
    s->slot = -1;
    if (e->prefix == NULL) {
        int32_t slot = -1;
        NEAP_TRY(neap_forward_open(e->forward, n, &slot));
        s->slot = slot;
    } else {
        const neap_prefix_match match = find(s);
        const int64_t n_max = s->uses_prefix ? s->n_known - 1 : 0;
        int32_t slot = -1;
        NEAP_TRY(neap_prefix_open(e->prefix, s->space, s->tokens, n_max, n, &slot, &n_usable));
        s->slot = slot;
        s->n_points = s->n_fixed;
        if (match.n_common - n_usable >= BRANCH_MIN) add_point(s, match.n_common);
    }
    e->n_slots_open++;
    s->n_computed = s->n_checked = s->n_entered = s->n_kept = (int32_t)n_usable;
    s->n_reserved = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS * NEAP_PAGE_ROWS;
    s->cache_tokens = s->n_reserved - n_usable / NEAP_PAGE_ROWS * NEAP_PAGE_ROWS;
    note_hit(s, n_usable);
    return NEAP_OK;
}

neap_status neap_prefix_use_extend(neap_seq *s, int64_t n) {
    neap_engine *e = s->engine;
    NEAP_TRY(e->prefix != NULL ? neap_prefix_extend(e->prefix, s->slot, n)
                               : neap_forward_extend(e->forward, s->slot, n));
    const int64_t reserved = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS * NEAP_PAGE_ROWS;
    s->cache_tokens += reserved - s->n_reserved;
    s->n_reserved = reserved;
    return NEAP_OK;
}

/* ---- waiting for a prefix ---- */

static bool leads(const neap_seq *s) {
    return s->feeds_prefix && !s->is_done && s->n_computed < s->n_prompt && !neap_seq_is_paused(s) &&
           !neap_seq_is_cancelled(s);
}

static bool is_led(const neap_seq *s) {
    const neap_engine *e = s->engine;
    for (int32_t i = 0; i < e->n_running && s->leader != 0; i++) {
        const neap_seq *r = e->running[i];
        if (r->number == s->leader) return leads(r) && r->n_computed < s->lead_until;
    }
    return false;
}

static int32_t common_prefix(const int32_t *a, const int32_t *b, int32_t n) {
    int32_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* A place of the leader's, at most `at` and at least `least`, which it has still before it: 0 none. */
static int32_t place_in(neap_seq *leader, int32_t at, int32_t least) {
    int32_t best = 0;
    for (int32_t i = 0; i < leader->n_points; i++) {
        const int32_t point = leader->points[i];
        if (point <= at && point >= least && point > leader->n_computed && point > best) best = point;
    }
    if (best > 0 && at - best <= CLOSE) return best;
    if (leader->n_points == NEAP_POINTS_MAX) return best;
    add_point(leader, at);
    return at;
}

/* Notes whom to wait for, if it is worth it. */
static bool find_leader(neap_seq *s, int64_t n_usable) {
    const neap_engine *e = s->engine;
    const int64_t least = n_usable + WORTH;
    neap_seq *leader = NULL;
    int32_t best = 0;
    if (s->n_led >= LED_MAX) return false;
    for (int32_t i = 0; i < e->n_running; i++) {
        neap_seq *r = e->running[i];
        if (!leads(r) || strcmp(r->space, s->space) != 0) continue;
        const int32_t n_max = s->n_known - 1 < r->n_prompt ? s->n_known - 1 : r->n_prompt;
        if (n_max < least || n_max <= best) continue;
        const int32_t n = common_prefix(s->tokens, r->tokens, n_max);
        if (n < least || n <= best || n <= r->n_computed) continue;
        leader = r;
        best = n;
    }
    if (leader == NULL) return false;
    s->lead_until = place_in(leader, best, (int32_t)least);
    if (s->lead_until == 0) return false;
    s->leader = leader->number;
    s->n_led++;
    return true;
}

/* Starts to load what the disk has more of than memory. */
static bool find_on_disk(neap_seq *s, int64_t n_usable) {
    neap_engine *e = s->engine;
    if (e->disk == NULL || s->n_loads >= LOADS_MAX) return false;
    const int64_t n_max = s->n_known - 1;
    if (neap_prefix_disk_find(e->disk, s->space, s->tokens, n_max) < n_usable + WORTH) return false;
    const neap_status status = neap_prefix_disk_load(e->disk, s->space, s->tokens, n_max);
    if (status == NEAP_OK) {
        e->is_disk_loading = true;
        s->n_loads++;
    }
    return status == NEAP_OK || (status == NEAP_BUSY && e->is_disk_loading);
}

bool neap_prefix_use_waits(neap_seq *s) {
    neap_engine *e = s->engine;
    if (is_led(s) || (s->is_loading && e->is_disk_loading)) return true;
    s->leader = 0;
    s->is_loading = false;
    if (!s->uses_prefix || s->was_admitted || s->n_known <= WORTH) return false;
    const int64_t n_usable = find(s).n_usable;
    if (find_leader(s, n_usable)) return true;
    s->is_loading = find_on_disk(s, n_usable);
    return s->is_loading;
}

/* ---- keeping ---- */

static bool is_finite(neap_seq *s) {
    if (!neap_forward_is_finite(s->engine->forward, s->slot, s->n_checked, s->n_computed)) return false;
    s->n_checked = s->n_computed;
    return true;
}

static bool enter(neap_seq *s, bool with_state) {
    neap_engine *e = s->engine;
    bool kept = false;
    if (!is_finite(s)) return false;
    const neap_status status =
        neap_prefix_put(e->prefix, s->slot, s->space, s->tokens, s->n_computed, with_state && e->has_states, &kept);
    if (status != NEAP_OK) { /* no answer depends on it; whoever runs the engine should know */
        neap_log_write(&e->log, NEAP_LOG_ERROR, "%s", neap_last_error());
        return true;
    }
    s->n_entered = s->n_computed;
    if (kept) s->n_kept = s->n_computed;
    e->changes++;
    return true;
}

static void save(const neap_seq *s) {
    const neap_engine *e = s->engine;
    if (e->disk == NULL || s->n_computed < WORTH || s->n_kept != s->n_computed) return;
    neap_prefix_disk_save(e->disk, s->space, s->tokens, s->n_computed);
}

/* A place lies in (n_entered, n_computed]. */
static bool has_passed(const neap_seq *s) {
    for (int32_t i = 0; i < s->n_points; i++) {
        if (s->points[i] > s->n_entered && s->points[i] <= s->n_computed) return true;
    }
    return s->n_computed - s->n_entered >= s->spacing;
}

static bool is_place(const neap_seq *s) {
    const int32_t n = s->n_computed;
    if (has_point(s, n)) return true;
    return n < s->n_prompt ? n % s->spacing == 0 : n > s->n_prompt && n % ANSWER_EVERY == 0;
}

bool neap_prefix_use_keep(neap_seq *s) {
    if (!s->feeds_prefix) return true;
    const int32_t n = s->n_computed;
    const bool is_prompt_end = n >= s->n_prompt && s->n_entered < s->n_prompt;
    const bool with_state = is_place(s);
    if (!with_state && !is_prompt_end && (s->engine->has_states || !has_passed(s))) return true;
    if (!enter(s, with_state)) return false;
    if (n == last_place(s)) save(s);
    return true;
}

bool neap_prefix_use_end(neap_seq *s, bool to_disk) {
    if (!s->feeds_prefix || s->slot < 0 || s->n_computed == 0) return true;
    if (s->n_kept < s->n_computed && !enter(s, true)) return false;
    if (to_disk) save(s);
    return true;
}

/* ---- disk ---- */

neap_status neap_prefix_use_open_disk(neap_engine *e) {
    if (e->options.prefix_dir == NULL) return NEAP_OK;
    if (e->prefix == NULL) {
        neap_log_write(&e->log, NEAP_LOG_WARN, "prefix_dir is of no use without a prefix cache");
        return NEAP_OK;
    }
    neap_prefix_disk_options o = {
        .dir = e->options.prefix_dir, .bytes_max = e->options.prefix_dir_bytes_max, .log = e->log};
    neap_status status = neap_prefix_key(e->model, &e->options, o.model_key);
    if (status == NEAP_OK) {
        status = neap_prefix_disk_open(&e->disk, e->prefix, neap_forward_cache_books(e->forward), &o);
    }
    if (status == NEAP_OK || status == NEAP_NO_MEMORY) return status;
    neap_log_write(&e->log, NEAP_LOG_WARN, "%s: prefixes are not kept on disk: %s", o.dir, neap_last_error());
    e->disk = NULL;
    return NEAP_OK;
}

void neap_prefix_use_settle(neap_engine *e) {
    if (e->disk == NULL) return;
    e->is_disk_loading = neap_prefix_disk_settle(e->disk);
    e->changes++; /* what was held may be free */
}

void neap_prefix_use_wait(neap_engine *e) { neap_prefix_disk_wait(e->disk, WAIT_MS); }
