/* One answer's way through a grammar: which tokens may follow, and the step with the one that was chosen.
 *
 * The place is a set of configurations, because alternatives of a schema may begin alike: a state, a stack of rules to
 * return to, a count of items or characters, a depth. Stack frames are shared and only added to; after each token the
 * ones that are still needed are moved together. Every configuration can be completed on its own, so when a pool is
 * full or a step becomes too expensive, some are given up: the answer stays valid, only fewer answers are possible.
 *
 * A mask is made by walking the vocabulary's trie with the set. Inside of a string the ordinary tokens are one mask
 * and only the odd ones are walked. Tables are walked one configuration at a time, the rest together.
 *
 * When few tokens are left, each place that a token leads to is asked what it still needs (grammar_cost.c): tokens
 * behind which the rest is too short are denied. So an answer lands before its last token, whatever the model wants.
 *
 * Nothing is allocated here but in neap_grammar_begin. Called by the engine's sampler. */
#include "format/grammar_inner.h"

enum {
    SET_MAX = 512,   /* configurations of one place */
    POOL_MAX = 8192, /* of all places along one path in the trie */
    FRAMES_MAX = 16384,
    TODO_MAX = 1024,
    WORK_MAX = 1500000 /* steps of one mask, before all but one configuration are given up */
};

typedef struct config {
    uint32_t state, stack, count, depth;
} config;

typedef struct frame {
    uint32_t to, parent, count, depth;
} frame;

typedef struct level {
    uint32_t end;     /* of the subtree in the trie */
    uint32_t from, n; /* configurations */
    uint32_t frames;  /* how many there were before */
} level;

struct neap_grammar_state {
    const neap_grammar *g;
    uint32_t n;        /* configurations of the place: the first n of the pool */
    uint32_t n_frames; /* [0] is the bottom */
    config *pool;      /* [POOL_MAX] */
    config *todo;      /* [TODO_MAX] */
    frame *frames;     /* [FRAMES_MAX] */
    uint32_t *moved;   /* [FRAMES_MAX] */
    uint32_t *path;    /* [depth of the trie + 2] states in a table */
    level *levels;     /* [depth of the trie + 2] */
    uint64_t work;
    bool is_landing; /* few tokens are left: what may follow depends on what is needed then */
    bool was_cut;
    uint64_t afford;  /* tokens that are left behind the next one */
    uint64_t *owed;   /* [FRAMES_MAX] what a frame and those under it still need; only when landing */
    uint32_t *denied; /* mask of tokens that cannot be afforded */
};

int32_t neap_grammar_vocab(const neap_grammar *g) { return neap_tokenizer_vocab(g->t); }

/* ------------------------------------------------------------- closing a set ----------------- */

typedef struct growing {
    uint32_t from, n;    /* in the pool */
    uint32_t new_frames; /* frames from here on belong to this set */
} growing;

static void keep(neap_grammar_state *s, growing *out, config c) {
    config *set = s->pool + out->from;
    s->work += out->n / 8;
    for (uint32_t i = 0; i < out->n; i++)
        if (set[i].state == c.state && set[i].stack == c.stack && set[i].count == c.count && set[i].depth == c.depth)
            return;
    if (out->n == SET_MAX || out->from + out->n == POOL_MAX) return;
    set[out->n++] = c;
}

/* ---- what is needed to complete the answer: a sum over the stack ---- */

static uint64_t owed_by(const neap_grammar_state *s, const frame *f) {
    return s->owed[f->parent] + neap_gcost_at(s->g, f->to, f->count, f->depth);
}

static uint64_t needed(const neap_grammar_state *s, const config *c) {
    return s->owed[c->stack] + neap_gcost_at(s->g, c->state, c->count, c->depth);
}

static bool fits(const neap_grammar_state *s, const config *c) { return !s->is_landing || needed(s, c) <= s->afford; }

static bool any_fits(const neap_grammar_state *s, const config *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (fits(s, &c[i])) return true;
    return false;
}

/* A frame like this one; 0 when there is no room. */
static uint32_t push(neap_grammar_state *s, const growing *out, frame f) {
    for (uint32_t i = s->n_frames; i-- > out->new_frames;) {
        const frame *have = &s->frames[i];
        if (have->to == f.to && have->parent == f.parent && have->count == f.count && have->depth == f.depth) return i;
    }
    if (s->n_frames == FRAMES_MAX) return 0;
    if (s->is_landing) s->owed[s->n_frames] = owed_by(s, &f);
    s->frames[s->n_frames] = f;
    return s->n_frames++;
}

static bool passes(const neap_grammar *g, const neap_gedge *e, config *c) {
    if (e->flags & NEAP_GE_IS) return c->count == e->lo;
    if ((e->flags & ~NEAP_GE_KEEP) == 0) return true;
    const neap_gloop *loop = &g->loops[e->arg];
    if ((e->flags & NEAP_GE_MIN) && c->count < loop->min) return false;
    if ((e->flags & NEAP_GE_MORE) && c->count >= loop->max) return false;
    if (e->flags & NEAP_GE_ZERO) c->count = 0;
    if ((e->flags & NEAP_GE_INC) && c->count < loop->cap) c->count++;
    if (e->flags & NEAP_GE_DEEPER) c->depth++;
    return true;
}

static bool may_return(const neap_grammar *g, const neap_gstate *st, const config *c) {
    if (!(st->flags & NEAP_GS_END)) return false;
    if (!(st->flags & NEAP_GS_TABLE) || !(st->flags & NEAP_GS_BETWEEN)) return true;
    uint32_t loop = g->tables[st->n].loop;
    return loop == UINT32_MAX || c->count >= g->loops[loop].min;
}

/* Adds c and everything that is reached from it without a byte. */
static void add(neap_grammar_state *s, growing *out, config c) {
    const neap_grammar *g = s->g;
    uint32_t n = 0;
    s->todo[n++] = c;
    while (n > 0) {
        c = s->todo[--n];
        const neap_gstate *st = &g->states[c.state];
        s->work += 8;
        if (c.depth + g->height[c.state] > g->depth_max) continue;
        bool reads = (st->flags & (NEAP_GS_TABLE | NEAP_GS_FREE)) != 0 || c.state == NEAP_GSTATE_FINAL;
        if (may_return(g, st, &c) && n < TODO_MAX) {
            const frame *f = &s->frames[c.stack];
            s->todo[n++] =
                c.stack == 0 ? (config){.state = NEAP_GSTATE_FINAL} : (config){f->to, f->parent, f->count, f->depth};
        }
        for (uint32_t i = st->flags & NEAP_GS_TABLE ? 0 : st->n; i-- > 0;) {
            const neap_gedge *e = &g->edges[st->first + i];
            config next = c;
            if (e->kind == NEAP_GE_BYTE || e->kind == NEAP_GE_TOKEN) {
                reads = true;
                continue;
            }
            if (n == TODO_MAX || !passes(g, e, &next)) continue;
            next.state = e->to;
            if (e->kind == NEAP_GE_CALL) {
                if (c.depth + g->height[e->to] > g->depth_max) continue;
                next = (config){.state = e->arg, .stack = c.stack, .depth = c.depth};
                if (e->flags & NEAP_GE_KEEP) next.count = c.count;
                bool tail = g->states[e->to].n == 0 && g->states[e->to].flags == NEAP_GS_END; /* nothing comes back */
                if (!tail) {
                    next.stack = push(s, out, (frame){e->to, c.stack, c.count, c.depth});
                    if (next.stack == 0) continue;
                }
            }
            s->todo[n++] = next;
        }
        if (reads) keep(s, out, c);
    }
}

/* ------------------------------------------------------------- one byte ---------------------- */

static void step_one(neap_grammar_state *s, growing *out, config c, uint8_t byte) {
    const neap_grammar *g = s->g;
    const neap_gstate *st = &g->states[c.state];
    if (st->flags & NEAP_GS_TABLE) {
        const neap_gtable *t = &g->tables[st->n];
        uint32_t to = g->rows[st->first + t->class_of[byte]];
        if (to == NEAP_GSTATE_DEAD) return;
        if (t->loop != UINT32_MAX && (st->flags & NEAP_GS_BETWEEN)) {
            const neap_gloop *loop = &g->loops[t->loop];
            bool closes = (g->states[to].flags & (NEAP_GS_END | NEAP_GS_BETWEEN)) == NEAP_GS_END;
            if (closes ? c.count < loop->min : c.count >= loop->max) return;
            if (!closes && c.count < loop->cap) c.count++;
        }
        c.state = to;
        if (g->states[to].flags & NEAP_GS_END)
            add(s, out, c);
        else
            keep(s, out, c);
        return;
    }
    if (st->flags & NEAP_GS_FREE) {
        add(s, out, c);
        return;
    }
    for (uint32_t i = 0; i < st->n; i++) {
        const neap_gedge *e = &g->edges[st->first + i];
        config next = c;
        if (e->kind != NEAP_GE_BYTE || byte < e->lo || byte > e->hi || !passes(g, e, &next)) continue;
        next.state = e->to;
        add(s, out, next);
    }
}

/* The set behind a byte, in the pool from `to` on. */
static growing step(neap_grammar_state *s, uint32_t from, uint32_t n, uint32_t to, uint8_t byte) {
    growing out = {.from = to, .new_frames = s->n_frames};
    s->work += n;
    for (uint32_t i = 0; i < n; i++) step_one(s, &out, s->pool[from + i], byte);
    return out;
}

/* ------------------------------------------------------------- masks ------------------------- */

/* Walks nodes i .. end - 1 of the trie, which are children of one node and below, with n configurations that lie in the
 * pool from `from` on (and nothing behind them). Every token that goes through is set. Ends early when it becomes too
 * much: s->work says so. */
static void walk(neap_grammar_state *s, const neap_trie *t, uint32_t i, uint32_t end, uint32_t from, uint32_t n,
                 uint32_t *mask) {
    uint32_t depth = 0;
    s->levels[0] = (level){end, from, n, s->n_frames};
    while (i < end && s->work <= WORK_MAX) {
        while (i >= s->levels[depth].end) depth--;
        const level *at = &s->levels[depth];
        s->n_frames = at->frames;
        growing out = step(s, at->from, at->n, at->from + at->n, t->byte[i]);
        if (out.n == 0) {
            i = t->skip[i];
            continue;
        }
        if (t->token[i] >= 0) neap_mask_set(any_fits(s, s->pool + out.from, out.n) ? mask : s->denied, t->token[i]);
        if (t->skip[i] > i + 1) s->levels[++depth] = (level){t->skip[i], out.from, out.n, s->n_frames};
        i++;
    }
    s->n_frames = s->levels[0].frames;
}

static bool reads_bytes(const neap_grammar *g, const config *c) {
    const neap_gstate *st = &g->states[c->state];
    if (st->flags & (NEAP_GS_TABLE | NEAP_GS_FREE)) return true;
    for (uint32_t i = 0; i < st->n; i++)
        if (g->edges[st->first + i].kind == NEAP_GE_BYTE) return true;
    return false;
}

/* Where the rule of pool[from] returns to, behind it in the pool; only what reads text. */
static growing returns(neap_grammar_state *s, uint32_t from) {
    growing out = {.from = from + 1, .new_frames = s->n_frames};
    const config *c = &s->pool[from];
    const frame *f = &s->frames[c->stack];
    if (c->stack == 0) return out;
    add(s, &out, (config){f->to, f->parent, f->count, f->depth});
    uint32_t n = 0;
    for (uint32_t i = 0; i < out.n; i++)
        if (reads_bytes(s->g, &s->pool[out.from + i])) s->pool[out.from + n++] = s->pool[out.from + i];
    out.n = n;
    return out;
}

/* The same for one configuration in a table that counts nothing, pool[from]: a look-up per byte. Where the table's rule
 * may end, what comes behind it is walked, too; that is the same wherever it ends. */
static void walk_table(neap_grammar_state *s, const neap_trie *t, uint32_t from, uint32_t *mask) {
    const neap_grammar *g = s->g;
    const neap_gtable *table = &g->tables[g->states[s->pool[from].state].n];
    const uint32_t *rows = g->rows + table->row;
    const neap_gstate *states = g->states + table->base;
    uint32_t n_classes = table->n_classes, base = table->base, frames = s->n_frames, visited = 0;
    growing behind = returns(s, from);
    const config *c = &s->pool[from];
    const neap_gcost *cost = s->g->cost[0] + base; /* tables open nothing, and this one counts nothing */
    uint64_t owed = s->is_landing ? s->owed[c->stack] : 0;
    s->path[0] = c->state - base;
    for (uint32_t i = 0; i < t->n;) {
        uint32_t depth = t->depth[i], to = rows[s->path[depth] * n_classes + table->class_of[t->byte[i]]];
        visited++;
        if (to == NEAP_GSTATE_DEAD) {
            i = t->skip[i];
            continue;
        }
        s->path[depth + 1] = to -= base;
        bool affords = !s->is_landing || owed + cost[to].least <= s->afford;
        if (t->token[i] >= 0) neap_mask_set(affords ? mask : s->denied, t->token[i]);
        if ((states[to].flags & NEAP_GS_END) && behind.n > 0 && t->skip[i] > i + 1)
            walk(s, t, i + 1, t->skip[i], behind.from, behind.n, mask);
        i++;
    }
    s->n_frames = frames;
    s->work += visited;
}

/* Ordinary tokens of a string that have least .. most characters. */
static void set_ordinary(const neap_vocab_trie *v, uint64_t least, uint64_t most, uint32_t *mask) {
    if (least <= 1 && most >= v->length_max) {
        for (size_t i = 0; i < v->n_words; i++) mask[i] |= v->ordinary[i];
        return;
    }
    uint32_t from = least == 0 ? 0 : least > v->length_max ? UINT32_MAX : v->length_end[least - 1];
    uint32_t to = v->length_end[most < v->length_max ? most : v->length_max];
    for (uint32_t i = from; i < to; i++) neap_mask_set(mask, v->by_length[i]);
}

/* Those that keep this place in a table inside of its string. False: they must be tried one by one. */
static bool set_inside(neap_grammar_state *s, const config *c, uint32_t *mask) {
    const neap_grammar *g = s->g;
    const neap_gstate *st = &g->states[c->state];
    const neap_gtable *t = &g->tables[st->n];
    const neap_gloop *loop = t->loop == UINT32_MAX ? NULL : &g->loops[t->loop];
    uint64_t room = loop == NULL || loop->max == UINT32_MAX ? UINT32_MAX : loop->max - c->count;
    uint64_t owed = s->is_landing ? s->owed[c->stack] : 0;
    if (fits(s, c) && (!s->is_landing || (st->flags & NEAP_GS_BETWEEN) || owed + t->cost_max <= s->afford)) {
        set_ordinary(g->vocab, 0, room, mask);
        return true;
    }
    if (!(st->flags & NEAP_GS_BETWEEN)) return false;
    /* Characters that are still missing are not wasted. */
    uint64_t missing = needed(s, c) - s->afford,
             wanted = loop != NULL && c->count < loop->min ? loop->min - c->count : 0;
    if (missing <= wanted) set_ordinary(g->vocab, missing, room, mask);
    set_ordinary(g->vocab, 0, missing <= wanted && missing - 1 < room ? missing - 1 : room, s->denied);
    return true;
}

static void set_free(const neap_vocab_trie *v, uint32_t *mask) {
    for (size_t i = 0; i < v->n_words; i++) mask[i] |= v->text[i] | v->unnamed[i];
}

/* Control tokens and ends; true when any text may follow anyway. */
static bool set_tokens(neap_grammar_state *s, uint32_t *mask) {
    const neap_grammar *g = s->g;
    bool is_free = false;
    for (uint32_t k = 0; k < s->n; k++) {
        const neap_gstate *st = &g->states[s->pool[k].state];
        if (s->pool[k].state == NEAP_GSTATE_FINAL) {
            for (size_t i = 0; i < g->t->n_stop; i++) neap_mask_set(mask, g->t->stop[i]);
            if (g->end >= 0) neap_mask_set(mask, g->end);
        }
        if (st->flags & NEAP_GS_TABLE) continue;
        if (st->flags & NEAP_GS_FREE) {
            if (fits(s, &s->pool[k]))
                is_free = true;
            else
                set_free(g->vocab, s->denied);
        }
        for (uint32_t i = 0; i < st->n; i++) {
            const neap_gedge *e = &g->edges[st->first + i];
            if (e->kind != NEAP_GE_TOKEN) continue;
            config next = s->pool[k];
            next.state = e->to;
            if (next.depth + g->height[e->to] > g->depth_max) continue;
            neap_mask_set(fits(s, &next) ? mask : s->denied, (int32_t)e->arg);
        }
    }
    if (is_free) set_free(g->vocab, mask);
    return is_free;
}

/* Text: each table alone, edges and tables that count together. */
static void set_texts(neap_grammar_state *s, uint32_t *mask) {
    const neap_grammar *g = s->g;
    for (uint32_t k = 0; k < s->n && s->work <= WORK_MAX; k++) {
        const config *c = &s->pool[k];
        const neap_gstate *st = &g->states[c->state];
        const neap_trie *trie = &g->vocab->all;
        if (!(st->flags & NEAP_GS_TABLE)) continue;
        uint32_t loop = g->tables[st->n].loop;
        if ((st->flags & NEAP_GS_ROOMY) && set_inside(s, c, mask)) trie = &g->vocab->odd;
        s->pool[s->n] = *c;
        if (loop == UINT32_MAX)
            walk_table(s, trie, s->n, mask);
        else
            walk(s, trie, 0, trie->n, s->n, 1, mask);
    }
    uint32_t n = 0;
    for (uint32_t k = 0; k < s->n; k++) /* a free one that is here cannot be afforded, and text makes it no better */
        if (!(g->states[s->pool[k].state].flags & (NEAP_GS_TABLE | NEAP_GS_FREE))) s->pool[s->n + n++] = s->pool[k];
    if (n > 0) walk(s, &g->vocab->all, 0, g->vocab->all.n, s->n, n, mask);
}

static bool is_empty(const uint32_t *mask, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (mask[i]) return false;
    return true;
}

static void fill_mask(neap_grammar_state *s, uint32_t *mask) {
    s->work = 0;
    if (!set_tokens(s, mask)) set_texts(s, mask);
}

/* The configuration that needs least. */
static uint32_t cheapest(const neap_grammar_state *s) {
    uint32_t at = 0;
    for (uint32_t i = 1; i < s->n; i++)
        if (needed(s, &s->pool[i]) < needed(s, &s->pool[at])) at = i;
    return at;
}

/* Are so few tokens left that some could be one too many? A byte enters at most four rules, each of which may need as
 * much as any state does. */
static bool must_land(neap_grammar_state *s, int64_t remaining) {
    const neap_grammar *g = s->g;
    if (remaining < 1 || remaining == INT64_MAX) return false;
    s->owed[0] = 0;
    for (uint32_t i = 1; i < s->n_frames; i++) s->owed[i] = owed_by(s, &s->frames[i]);
    uint64_t least = needed(s, &s->pool[cheapest(s)]), left = (uint64_t)remaining;
    s->afford = left - 1;
    return least <= left && left <= least + g->cost_max * 4 * (g->vocab->all.depth_max + 1);
}

/* Single bytes that lead on from the first configuration. There is always one that can be afforded. */
static void set_bytes(neap_grammar_state *s, uint32_t *mask) {
    for (int byte = 0; byte < 256; byte++) {
        uint32_t frames = s->n_frames;
        growing out = step(s, 0, 1, s->n, (uint8_t)byte);
        if (any_fits(s, s->pool + out.from, out.n)) neap_mask_set(mask, s->g->t->vocab.byte_id[byte]);
        s->n_frames = frames;
    }
}

bool neap_grammar_mask(neap_grammar_state *s, uint32_t *mask, int64_t remaining) {
    const size_t n_words = s->g->n_words;
    memset(mask, 0, n_words * sizeof *mask);
    s->is_landing = must_land(s, remaining);
    if (s->is_landing) memset(s->denied, 0, n_words * sizeof *mask);
    fill_mask(s, mask);
    if (s->work > WORK_MAX && is_empty(mask, n_words)) {
        if (s->is_landing) s->pool[0] = s->pool[cheapest(s)];
        s->n = 1; /* too much at once, and nothing was found: one way to go on is kept */
        fill_mask(s, mask);
        if (is_empty(mask, n_words)) set_bytes(s, mask);
    }
    for (size_t i = 0; i < n_words && s->is_landing; i++) s->was_cut = s->was_cut || (s->denied[i] & ~mask[i]);
    s->is_landing = false;
    return true;
}

bool neap_grammar_was_cut(const neap_grammar_state *s) { return s->was_cut; }

/* ------------------------------------------------------------- accepting --------------------- */

/* Moves the set at pool[from] to the beginning, and the frames that it needs together. */
static void settle(neap_grammar_state *s, growing out) {
    memmove(s->pool, s->pool + out.from, out.n * sizeof *s->pool);
    s->n = out.n;
    memset(s->moved, 0, s->n_frames * sizeof *s->moved);
    for (uint32_t i = 0; i < s->n; i++) s->moved[s->pool[i].stack] = 1;
    for (uint32_t i = s->n_frames; i-- > 1;) /* parents come before their children */
        if (s->moved[i]) s->moved[s->frames[i].parent] = 1;
    uint32_t n = 1;
    s->moved[0] = 0;
    for (uint32_t i = 1; i < s->n_frames; i++) {
        if (!s->moved[i]) continue;
        frame f = s->frames[i];
        f.parent = s->moved[f.parent];
        s->frames[n] = f;
        s->moved[i] = n++;
    }
    s->n_frames = n;
    for (uint32_t i = 0; i < s->n; i++) s->pool[i].stack = s->moved[s->pool[i].stack];
}

static growing step_token(neap_grammar_state *s, int32_t token) {
    const neap_grammar *g = s->g;
    growing out = {.from = s->n, .new_frames = s->n_frames};
    bool is_unnamed = neap_mask_has(g->vocab->unnamed, token), is_stop = token == g->end;
    for (size_t i = 0; i < g->t->n_stop; i++) is_stop = is_stop || g->t->stop[i] == token;
    for (uint32_t k = 0; k < s->n; k++) {
        config c = s->pool[k];
        const neap_gstate *st = &g->states[c.state];
        if (is_stop && c.state == NEAP_GSTATE_FINAL) keep(s, &out, c);
        if (st->flags & NEAP_GS_TABLE) continue;
        if (is_unnamed && (st->flags & NEAP_GS_FREE)) add(s, &out, c);
        for (uint32_t i = 0; i < st->n; i++) {
            const neap_gedge *e = &g->edges[st->first + i];
            if (e->kind != NEAP_GE_TOKEN || e->arg != (uint32_t)token) continue;
            c.state = e->to;
            add(s, &out, c);
        }
    }
    return out;
}

neap_status neap_grammar_accept(neap_grammar_state *s, int32_t token) {
    const neap_grammar *g = s->g;
    const char *bytes;
    size_t n;
    uint32_t frames = s->n_frames;
    NEAP_TRY(neap_token_bytes(g->t, token, &bytes, &n, NULL));
    growing out;
    if (neap_mask_has(g->vocab->text, token)) {
        out = (growing){.n = s->n};
        for (size_t i = 0; i < n && out.n > 0; i++) {
            uint32_t to = i % 2 ? SET_MAX * 2 : SET_MAX;
            out = step(s, out.from, out.n, to, (uint8_t)bytes[i]);
        }
    } else {
        out = step_token(s, token);
    }
    if (out.n == 0) {
        s->n_frames = frames;
        return neap_fail(NEAP_INVALID_ARGUMENT, "token %d is not allowed by the grammar here", token);
    }
    settle(s, out);
    return NEAP_OK;
}

/* ------------------------------------------------------------- life -------------------------- */

bool neap_grammar_may_end(const neap_grammar_state *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->pool[i].state == NEAP_GSTATE_FINAL) return true;
    return false;
}

bool neap_grammar_must_end(const neap_grammar_state *s) { return s->n == 1 && s->pool[0].state == NEAP_GSTATE_FINAL; }

neap_status neap_grammar_begin(neap_grammar_state **out, const neap_grammar *g, neap_arena *a) {
    neap_grammar_state *s = NULL;
    *out = NULL;
    NEAP_TRY(neap_arena_array(a, 1, sizeof *s, (void **)&s));
    NEAP_TRY(neap_arena_array(a, POOL_MAX, sizeof *s->pool, (void **)&s->pool));
    NEAP_TRY(neap_arena_array(a, TODO_MAX, sizeof *s->todo, (void **)&s->todo));
    NEAP_TRY(neap_arena_array(a, FRAMES_MAX, sizeof *s->frames, (void **)&s->frames));
    NEAP_TRY(neap_arena_array(a, FRAMES_MAX, sizeof *s->moved, (void **)&s->moved));
    NEAP_TRY(neap_arena_array(a, FRAMES_MAX, sizeof *s->owed, (void **)&s->owed));
    NEAP_TRY(neap_arena_array(a, g->n_words, sizeof *s->denied, (void **)&s->denied));
    NEAP_TRY(neap_arena_array(a, (size_t)g->vocab->all.depth_max + 2, sizeof *s->levels, (void **)&s->levels));
    NEAP_TRY(neap_arena_array(a, (size_t)g->vocab->all.depth_max + 2, sizeof *s->path, (void **)&s->path));
    s->g = g;
    s->n_frames = 1;
    growing set = {.new_frames = 1};
    add(s, &set, (config){.state = g->start});
    settle(s, set);
    NEAP_CHECK(s->n > 0, NEAP_INTERNAL, "a grammar without a beginning");
    *out = s;
    return NEAP_OK;
}
