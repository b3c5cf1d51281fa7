/* Search for the settings that are fastest on this machine for this model.
 *
 * Coordinate descent from the caller's tuning, one setting after the other, those that usually matter most first. A
 * candidate runs against the incumbent: two forwards over the same weights, with small caches, take turns step by step,
 *
 *   round  incumbent 1 row, candidate 1 row, ... of every kind of step that the setting concerns; the next round begins
 *          with the other one
 *   ratio  of a round: geometric mean over the kinds of (candidate's time / incumbent's)
 *
 * and it wins if the median of the ratios, and the ratio of the best times of both, are below 0.98, and three rounds of
 * four were won: a machine that others use slows some rounds, seldom the best ones, and not always the same side.
 * What was found in the end must win once more against the tuning that the search began with.
 * Whatever wins, results keep their bits (tests/golden/test_tunings.c): a wrong choice costs time, nothing else.
 *
 * Kinds of steps: one row (decoding), four and eight rows (verifying a draft, several readers), a chunk of a prompt,
 * and both together. Where there is attention, rows stand behind a filled stretch of the caches. Steps do not advance:
 * the same rows are computed again, so that both sides and all rounds do the same work.
 *
 * Called by the program. Owns two forwards at a time, gone when it returns. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "runtime/cores.h"

enum {
    ROUNDS_MIN = 5,
    ROUNDS_MAX = 15,
    CHUNK_MAX = 128,
    DEPTH_MAX = 512,
    CONTEXT_MAX = 1024,
    CHOICES_MAX = 4,
    FEW_MAX = 8
};
static const double WINS_BELOW = 0.98, LOST_ABOVE = 1.05, SAMPLE_SECONDS = 0.003;
static const double SEARCH_SHARE = 0.8; /* of the time; the rest is for the last comparison */

typedef enum step_kind { STEP_ONE, STEP_FOUR, STEP_EIGHT, STEP_CHUNK, STEP_MIXED, STEP_KINDS } step_kind;
enum {
    ONE = 1 << STEP_ONE,
    FOUR = 1 << STEP_FOUR,
    EIGHT = 1 << STEP_EIGHT,
    CHUNK = 1 << STEP_CHUNK,
    MIXED = 1 << STEP_MIXED
};

typedef struct side {
    neap_forward *f;
    neap_tuning tuning;
    int32_t slots[2];
} side;

typedef struct search {
    const neap_model *m;
    neap_engine_options asked; /* 0 still means default; without a tuning */
    double start, end;
    int32_t depth, chunk, context;
    side best;
    int32_t *tokens;             /* [CONTEXT_MAX] */
    int32_t repeats[STEP_KINDS]; /* steps in one sample */
    neap_progress_fn progress;
    void *user;
    double shown;
} search;

/* Padding has no meaning. */
static bool is_same(const neap_tuning *a, const neap_tuning *b) {
    const size_t begin = offsetof(neap_tuning, few_rows),
                 end = offsetof(neap_tuning, n_threads_batch) + sizeof(int32_t);
    return memcmp((const char *)a + begin, (const char *)b + begin, end - begin) == 0;
}

static void show(search *s) {
    const double t = neap_clock_seconds(), total = s->end - s->start, done = t - s->start;
    if (s->progress == NULL || t - s->shown < 0.1) return;
    s->shown = t;
    s->progress(s->user, "tune", (uint64_t)(1000 * (done < total ? done : total)), (uint64_t)(1000 * total));
}

/* ---- one side ---- */

static void side_close(side *x) {
    neap_forward_destroy(x->f);
    x->f = NULL;
}

static neap_status run(const search *s, side *x, int32_t slot, int32_t n_rows, int64_t position) {
    const neap_segment rows = {.slot = x->slots[slot],
                               .n_rows = n_rows,
                               .position = position,
                               .tokens = s->tokens + position,
                               .wants_logits = n_rows <= FEW_MAX};
    return neap_forward_run(x->f, &rows, 1);
}

static neap_status run_mixed(const search *s, side *x) {
    const neap_segment both[2] = {
        {.slot = x->slots[0], .n_rows = 1, .position = s->depth, .tokens = s->tokens + s->depth, .wants_logits = true},
        {.slot = x->slots[1], .n_rows = s->chunk, .position = 0, .tokens = s->tokens}};
    return neap_forward_run(x->f, both, 2);
}

static neap_status run_kind(const search *s, side *x, step_kind kind) {
    switch (kind) {
    case STEP_ONE: return run(s, x, 0, 1, s->depth);
    case STEP_FOUR: return run(s, x, 0, 4, s->depth);
    case STEP_EIGHT: return run(s, x, 0, 8, s->depth);
    case STEP_CHUNK: return run(s, x, 0, s->chunk, s->depth);
    default: return run_mixed(s, x);
    }
}

/* What the engine would make of these options and this tuning, with two small sequences. */
static neap_status side_options(const search *s, const neap_tuning *t, neap_engine_options *resolved,
                                neap_forward_options *out) {
    neap_engine_options o = s->asked;
    o.tuning = t;
    NEAP_TRY(neap_engine_options_resolve(resolved, s->m, &o));
    *out = neap_engine_forward_options(resolved);
    out->seqs_max = 2;
    out->context_max = s->context;
    out->batch_tokens_max = s->chunk + 1;
    out->cache_tokens_max = 2 * (int64_t)s->context;
    out->enable_taps = out->enable_trace = out->enable_hash = false;
    return NEAP_OK;
}

static neap_status check_memory(const search *s, const neap_forward_options *o) {
    uint64_t state, cache, work;
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    NEAP_TRY(neap_forward_memory(s->m, o, &state, &cache, &work));
    const uint64_t bytes = state + cache + work, available = neap_memory_available();
    NEAP_CHECK(bytes <= available, NEAP_NO_MEMORY, "tuning needs %s of memory more; the machine has %s",
               neap_size_text(bytes, need), neap_size_text(available, have));
    return NEAP_OK;
}

static neap_status side_open(const search *s, side *x, const neap_tuning *t) {
    neap_engine_options resolved;
    neap_forward_options o;
    neap_status status;
    memset(x, 0, sizeof *x);
    x->tuning = *t;
    NEAP_TRY(side_options(s, &x->tuning, &resolved, &o));
    NEAP_TRY(check_memory(s, &o));
    NEAP_TRY(neap_forward_create(&x->f, s->m, &o));
    for (int i = 0; i < 2; i++) NEAP_TRY_GOTO(neap_forward_open(x->f, s->context, &x->slots[i]));
    for (int32_t at = 0; at < s->depth; at += s->chunk)
        NEAP_TRY_GOTO(run(s, x, 0, s->depth - at < s->chunk ? s->depth - at : s->chunk, at));
    return NEAP_OK;
fail:
    side_close(x);
    return status;
}

/* Seconds of one step. */
static neap_status sample(search *s, side *x, step_kind kind, double *seconds) {
    const double begin = neap_clock_seconds();
    for (int32_t i = 0; i < s->repeats[kind]; i++) NEAP_TRY(run_kind(s, x, kind));
    *seconds = (neap_clock_seconds() - begin) / s->repeats[kind];
    return NEAP_OK;
}

/* ---- a duel ---- */

static double median_of(const double *x, int n) {
    double sorted[ROUNDS_MAX];
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && sorted[j - 1] > x[i]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = x[i];
    }
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* One round; adds to the least times of both sides. */
static neap_status play_round(search *s, side *other, uint32_t kinds, int round, double least[2][STEP_KINDS],
                              double *ratio) {
    double sum = 0;
    int n = 0;
    for (int k = 0; k < STEP_KINDS; k++) {
        if (!(kinds >> k & 1)) continue;
        double seconds[2];
        for (int turn = 0; turn < 2; turn++) {
            const int who = (round + turn) % 2;
            NEAP_TRY(sample(s, who ? other : &s->best, (step_kind)k, &seconds[who]));
            if (seconds[who] < least[who][k]) least[who][k] = seconds[who];
        }
        sum += log(seconds[1] / seconds[0]);
        n++;
    }
    *ratio = exp(sum / n);
    return NEAP_OK;
}

/* *wins: the candidate is faster, beyond doubt. Not when the time is over before anything is sure. */
static neap_status duel(search *s, side *other, uint32_t kinds, double until, bool *wins) {
    double ratios[ROUNDS_MAX], least[2][STEP_KINDS], ignored;
    int n = 0;
    *wins = false;
    for (int k = 0; k < STEP_KINDS; k++) least[0][k] = least[1][k] = INFINITY;
    NEAP_TRY(play_round(s, other, kinds, 0, least, &ignored)); /* pages and caches are touched for the first time */
    while (n < ROUNDS_MAX && (n < ROUNDS_MIN || neap_clock_seconds() < until) && neap_clock_seconds() < s->end) {
        NEAP_TRY(play_round(s, other, kinds, n, least, &ratios[n]));
        n++;
        show(s);
        if (n >= ROUNDS_MIN && median_of(ratios, n) > LOST_ABOVE) break;
    }
    if (n < ROUNDS_MIN) return NEAP_OK;
    double sum = 0;
    int n_kinds = 0, n_won = 0;
    for (int i = 0; i < n; i++) n_won += ratios[i] < 1;
    for (int k = 0; k < STEP_KINDS; k++) {
        if (!(kinds >> k & 1)) continue;
        sum += log(least[1][k] / least[0][k]);
        n_kinds++;
    }
    *wins = median_of(ratios, n) < WINS_BELOW && exp(sum / n_kinds) < WINS_BELOW && 4 * n_won >= 3 * n;
    return NEAP_OK;
}

/* ---- what may be tuned ---- */

typedef enum setting {
    SET_THREADS,
    SET_THREADS_BATCH,
    SET_PINNING,
    SET_FEW_ROWS,
    SET_INDEX,
    SET_SHARED,
    SET_PREFETCH,
    SET_TILE,
    SET_MIXED,
    SETTINGS
} setting;

static const struct {
    uint32_t kinds;
    int n;
    int32_t values[CHOICES_MAX];
} choices[SETTINGS] = {
    [SET_THREADS] = {ONE | FOUR, 2, {0, 1}}, /* numbers are found at run time */
    [SET_THREADS_BATCH] = {CHUNK, 2, {0, 1}},
    [SET_PINNING] = {ONE | CHUNK, 3, {NEAP_PIN_START, NEAP_PIN_STAY, NEAP_PIN_OFF}},
    [SET_FEW_ROWS] = {ONE | FOUR | EIGHT, 3, {0, 4, 8}},
    [SET_INDEX] = {ONE | FOUR | CHUNK, 3, {0, 1, 2}}, /* after each other, beside, in streams */
    [SET_SHARED] = {ONE | FOUR | CHUNK, 3, {0, 1, 2}},
    [SET_PREFETCH] = {ONE, 4, {0, 256, 512, 1024}},
    [SET_TILE] = {FOUR | EIGHT | CHUNK, 2, {4, 8}},
    [SET_MIXED] = {MIXED, 2, {0, 1}},
};

static void put_use(neap_tuning *t, uint32_t use, int32_t how) {
    t->beside = (t->beside & ~use) | (how == 1 ? use : 0);
    t->streams = (t->streams & ~use) | (how == 2 ? use : 0);
}

/* The candidate for a setting; false: there is nothing to try. */
static bool candidate(const search *s, setting which, int32_t value, neap_tuning *t) {
    const int32_t threads[2] = {neap_default_threads(), neap_cores_usable()};
    *t = s->best.tuning;
    switch (which) {
    case SET_THREADS:
        if (s->asked.n_threads != 0) return false;
        t->n_threads = threads[value];
        return threads[value] != (s->best.tuning.n_threads > 0 ? s->best.tuning.n_threads : threads[0]);
    case SET_THREADS_BATCH:
        if (s->asked.n_threads_batch != 0 || s->asked.n_threads != 0) return false;
        t->n_threads_batch = threads[value];
        if (s->best.tuning.n_threads_batch > 0) return threads[value] != s->best.tuning.n_threads_batch;
        return threads[value] != (s->best.tuning.n_threads > 0 ? s->best.tuning.n_threads : threads[0]);
    case SET_PINNING: t->pinning = value; break;
    case SET_FEW_ROWS: t->few_rows = value; break;
    case SET_INDEX: put_use(t, NEAP_USE_INDEX, value); break;
    case SET_SHARED: put_use(t, NEAP_USE_SHARED, value); break;
    case SET_PREFETCH: t->prefetch_kib = value; break;
    case SET_TILE: t->tile_rows = value; break;
    default: t->streams = (t->streams & ~NEAP_USE_MIXED) | (value ? NEAP_USE_MIXED : 0); break;
    }
    const bool was_default = which == SET_PINNING && value == NEAP_PIN_START && s->best.tuning.pinning == 0;
    return !was_default && !is_same(t, &s->best.tuning);
}

/* Settings that this model, or one worker, has no use for. */
static bool concerns(const search *s, setting which) {
    const int32_t usable = neap_cores_usable(), asked = s->asked.n_threads;
    const neap_network *net = &s->m->net;
    bool has_mla = false, has_index = false, has_shared = false;
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        has_mla |= l->mixer == NEAP_MIXER_MLA;
        has_index |= l->mixer == NEAP_MIXER_MLA && l->spec.mla.has_index && !l->spec.mla.index.is_shared;
        has_shared |= l->is_moe && l->moe_spec.shared_width > 0;
    }
    switch (which) {
    case SET_PINNING:
    case SET_MIXED: return usable > 1 && asked != 1;
    case SET_INDEX: return has_index;
    case SET_SHARED: return has_shared;
    case SET_PREFETCH:
    case SET_TILE: return has_mla;
    default: return true;
    }
}

static neap_status try_candidate(search *s, setting which, const neap_tuning *t, double until) {
    side other;
    bool wins = false;
    NEAP_TRY(side_open(s, &other, t));
    neap_status status = duel(s, &other, choices[which].kinds, until, &wins);
    if (status == NEAP_OK && wins) {
        side loser = s->best;
        s->best = other;
        other = loser;
    }
    side_close(&other);
    return status;
}

/* Once around all settings. */
static neap_status descend(search *s) {
    neap_tuning t;
    for (int pass = 0; pass < 2; pass++) {
        const neap_tuning before = s->best.tuning;
        for (int i = 0; i < SETTINGS; i++)
            for (int v = 0; v < choices[i].n; v++) {
                if (!concerns(s, (setting)i) || !candidate(s, (setting)i, choices[i].values[v], &t)) continue;
                const double left = s->end - neap_clock_seconds();
                if (left <= 0) return NEAP_OK;
                const double until = neap_clock_seconds() + left / (pass == 0 ? SETTINGS - i + 1 : 2) / 2;
                NEAP_TRY(try_candidate(s, (setting)i, &t, until));
            }
        if (is_same(&before, &s->best.tuning)) return NEAP_OK;
    }
    return NEAP_OK;
}

/* What was found against what the search began with, over all that matters together: several small wins on a busy
 * machine may be none. Without a clear answer in the time that is left everything stays as it was. */
static neap_status confirm(search *s, const neap_tuning *first) {
    if (is_same(first, &s->best.tuning)) return NEAP_OK;
    side start;
    bool wins = false;
    NEAP_TRY(side_open(s, &start, first));
    side found = s->best;
    s->best = start;
    neap_status status = duel(s, &found, ONE | FOUR | CHUNK, s->end, &wins);
    if (status == NEAP_OK && wins) {
        s->best = found;
        found = start;
    }
    side_close(&found);
    return status;
}

/* Depth and chunk that fit model and time, the first side, and how many steps make a sample. */
static neap_status prepare(search *s, const neap_tuning *t) {
    const int32_t context = s->m->context_max > 0 && s->m->context_max < CONTEXT_MAX ? s->m->context_max : CONTEXT_MAX;
    s->context = context;
    s->chunk = s->asked.batch_tokens_max - 1 < CHUNK_MAX ? s->asked.batch_tokens_max - 1 : CHUNK_MAX;
    if (s->chunk > context / 4) s->chunk = context / 4;
    if (s->chunk < FEW_MAX) s->chunk = FEW_MAX;
    NEAP_CHECK(context >= 4 * FEW_MAX, NEAP_UNSUPPORTED, "a context of %d tokens is too short to tune for", context);
    uint32_t seed = 12345;
    for (int32_t i = 0; i < context; i++) {
        seed = seed * 1664525u + 1013904223u;
        s->tokens[i] = (int32_t)((seed >> 8) % (uint32_t)s->m->net.vocab);
    }
    for (int k = 0; k < STEP_KINDS; k++) s->repeats[k] = 1;
    s->depth = s->chunk;
    NEAP_TRY(side_open(s, &s->best, t));
    double seconds;
    NEAP_TRY(sample(s, &s->best, STEP_CHUNK, &seconds));
    const int32_t deep = context / 2 < DEPTH_MAX ? context / 2 : DEPTH_MAX;
    if (deep > s->depth && seconds * deep / s->chunk < (s->end - s->start) / 100) {
        for (; s->depth + s->chunk <= deep; s->depth += s->chunk) NEAP_TRY(run(s, &s->best, 0, s->chunk, s->depth));
    }
    for (int k = 0; k < STEP_KINDS; k++) {
        NEAP_TRY(sample(s, &s->best, (step_kind)k, &seconds));
        NEAP_TRY(sample(s, &s->best, (step_kind)k, &seconds));
        if (seconds < SAMPLE_SECONDS) s->repeats[k] = 1 + (int32_t)(SAMPLE_SECONDS / (seconds + 1e-6));
    }
    return NEAP_OK;
}

neap_status neap_tune(const neap_model *m, const neap_engine_options *o, double seconds, neap_tuning *out,
                      neap_progress_fn progress, void *user) {
    NEAP_CHECK(m != NULL && out != NULL, NEAP_INVALID_ARGUMENT, "neap_tune: the model or the result is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the result is %zu, this library knows %zu", size, sizeof *out);
    NEAP_CHECK(seconds > 0 && seconds <= 3600, NEAP_INVALID_ARGUMENT, "seconds is %g; allowed is above 0 .. 3600",
               seconds);
    NEAP_CHECK(m->is_loaded, NEAP_INVALID_ARGUMENT, "the model was opened with describe_only: it holds no weights");
    search s = {.m = m, .start = neap_clock_seconds(), .progress = progress, .user = user};
    neap_tuning t;
    void *p = NULL;
    s.end = s.start + SEARCH_SHARE * seconds;
    NEAP_TRY(neap_engine_options_take(&s.asked, o));
    NEAP_TRY(neap_tuning_take(&t, s.asked.tuning));
    NEAP_TRY(neap_mem_alloc(CONTEXT_MAX * sizeof *s.tokens, &p));
    s.tokens = p;
    neap_status status = prepare(&s, &t);
    if (status == NEAP_OK) status = descend(&s);
    s.end = s.start + seconds;
    if (status == NEAP_OK) status = confirm(&s, &t);
    if (status == NEAP_OK) {
        t = s.best.tuning;
        t.struct_size = size;
        memcpy(out, &t, size);
        s.shown = 0;
        show(&s);
    }
    side_close(&s.best);
    neap_mem_free(s.tokens);
    return status;
}
