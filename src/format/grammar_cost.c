/* What an answer still needs: for each state of an automaton the fewest bytes and control tokens to its rule's end.
 *
 * Every byte is a token of its own, so whoever has that many tokens left can finish. Where the structure leaves no
 * choice for some bytes, the vocabulary's tokens that spell them are tried as well: names, tags and keys take few. Two
 * numbers are kept. The least one may lead through more arrays and objects than an answer near its greatest depth may
 * open; its height is kept with it. The other follows only ways of the least height, and is always possible. Items or
 * characters that a count still asks for are not in the number but come on top, because they depend on the count.
 *
 * All numbers begin as "never" and fall until nothing changes. They end at UINT32_MAX, which is more than any answer
 * may have. Called by grammar_build.c at the end of a compilation; neap_gcost_at by grammar_state.c. */
#include "format/grammar_inner.h"

enum { LEAST = 0, FLAT = 1 };

static uint32_t saturated(uint64_t n) { return n < NEAP_COST_NEVER ? (uint32_t)n : NEAP_COST_NEVER; }
static uint32_t more(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t with_count(const neap_grammar *g, int kind, const neap_gcost *c, uint32_t count) {
    if (c->loop == UINT32_MAX || c->least == NEAP_COST_NEVER) return c->least;
    uint64_t have = (uint64_t)count + c->incs, min = g->loops[c->loop].min;
    return have >= min ? c->least : saturated(c->least + (min - have) * g->loop_cost[kind][c->loop]);
}

uint32_t neap_gcost_at(const neap_grammar *g, uint32_t state, uint32_t count, uint32_t depth) {
    const neap_gcost *least = &g->cost[LEAST][state];
    if (depth + least->height <= g->depth_max) return with_count(g, LEAST, least, count);
    return with_count(g, FLAT, &g->cost[FLAT][state], count);
}

/* ------------------------------------------------------------- tables ------------------------ */

/* States of tables need nothing but their table: bytes to where it accepts. */
static neap_status table_costs(neap_gbuild *b, neap_grammar *g) {
    neap_gcost *cost = g->cost[LEAST];
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t s = g->n_states; s-- > 0;) {
            const neap_gstate *st = &g->states[s];
            if (!(st->flags & NEAP_GS_TABLE) || cost[s].least == 0) continue;
            uint32_t least = st->flags & NEAP_GS_END ? 0 : cost[s].least;
            for (uint32_t c = 0; c < g->tables[st->n].n_classes && least > 1; c++) {
                uint32_t to = g->rows[st->first + c];
                if (to != NEAP_GSTATE_DEAD && cost[to].least < least) least = saturated((uint64_t)cost[to].least + 1);
            }
            changed = changed || least != cost[s].least;
            cost[s].least = least;
            if (s % 16 == 0) NEAP_TRY(neap_gbuild_tick(b));
        }
    }
    for (uint32_t s = 0; s < g->n_states; s++) {
        const neap_gstate *st = &g->states[s];
        if (!(st->flags & NEAP_GS_TABLE)) continue;
        neap_gtable *t = &g->tables[st->n];
        if (cost[s].least != NEAP_COST_NEVER) t->cost_max = more(t->cost_max, cost[s].least);
        if (!(st->flags & NEAP_GS_END) || (st->flags & NEAP_GS_BETWEEN)) cost[s].loop = t->loop;
        g->cost[FLAT][s] = cost[s];
    }
    return NEAP_OK;
}

/* ------------------------------------------------------------- edges ------------------------- */

typedef struct found {
    neap_gcost cost;
    uint32_t total; /* with the count at 0 */
} found;

static found by_edge(const neap_grammar *g, int kind, const uint32_t *totals, const neap_gedge *e) {
    const neap_gcost *to = &g->cost[kind][e->to];
    bool asks = (e->flags & NEAP_GE_MIN) && g->loops[e->arg].min > 0, calls = e->kind == NEAP_GE_CALL;
    uint64_t here = e->kind == NEAP_GE_BYTE || e->kind == NEAP_GE_TOKEN;
    uint32_t height = to->height, item = asks ? g->loops[e->arg].item : 0;
    found f = {.cost = {NEAP_COST_NEVER, UINT32_MAX, 0, 0}, .total = NEAP_COST_NEVER};
    if (totals[e->to] == NEAP_COST_NEVER || (calls && totals[e->arg] == NEAP_COST_NEVER)) return f;
    if (calls) here += totals[e->arg];
    if (calls) height = more(height, g->cost[kind][e->arg].height);
    if (item) height = more(height, g->cost[kind][item].height);
    height += (e->flags & NEAP_GE_DEEPER) != 0;
    f.cost.height = (uint16_t)(height < NEAP_HEIGHT_NEVER ? height : NEAP_HEIGHT_NEVER);
    if (e->flags & NEAP_GE_ZERO) {
        f.cost.least = saturated(here + totals[e->to]);
    } else if (asks) {
        f.cost.least = saturated(here + totals[e->to]);
        f.cost.loop = e->arg;
    } else {
        f.cost.least = saturated(here + to->least);
        f.cost.loop = to->loop;
        f.cost.incs = (uint8_t)(to->incs + ((e->flags & NEAP_GE_INC) != 0));
    }
    f.total = with_count(g, kind, &f.cost, 0);
    return f;
}

static bool is_less(const found *a, const found *b) {
    if (a->total != b->total) return a->total < b->total;
    if (a->cost.height != b->cost.height) return a->cost.height < b->cost.height;
    return a->cost.least < b->cost.least;
}

/* ------------------------------------------------------------- longer tokens ----------------- */

/* A token of several bytes leads from one state to another, by bytes that count nothing and leave no choice but the
 * first. Ordered by `from`. */
typedef struct jump {
    uint32_t from, to;
} jump;

typedef struct jumps {
    jump *list;
    uint32_t n, max;
} jumps;

enum { JUMP_BYTES = 24, JUMPS_MAX = 1 << 20 };

static bool is_text(const neap_tokenizer *t, const char *p, size_t n) {
    int32_t token = neap_vocab_find(&t->vocab, p, n, neap_vocab_hash(&t->vocab, p, n));
    for (size_t i = 0; i < t->n_stop; i++)
        if (t->stop[i] == token) return false;
    return token >= 0;
}

static bool is_literal(const neap_gedge *e) { return e->kind == NEAP_GE_BYTE && e->lo == e->hi && e->flags == 0; }

static neap_status add_jumps(neap_grammar *g, uint32_t from, const neap_gedge *e, jumps *out) {
    char text[JUMP_BYTES];
    for (size_t n = 0; n < JUMP_BYTES && is_literal(e) && out->n < JUMPS_MAX;) {
        text[n++] = (char)e->lo;
        if (n > 1 && is_text(g->t, text, n)) {
            NEAP_TRY(neap_grow(&out->list, out->n + 1, &out->max, sizeof *out->list));
            out->list[out->n++] = (jump){from, e->to};
        }
        const neap_gstate *next = &g->states[e->to];
        if (next->n != 1 || (next->flags & NEAP_GS_TABLE)) break;
        e = &g->edges[next->first];
    }
    return NEAP_OK;
}

static neap_status find_jumps(neap_gbuild *b, neap_grammar *g, jumps *out) {
    for (uint32_t s = 0; s < g->n_states; s++) {
        if (g->states[s].flags & NEAP_GS_TABLE) continue;
        for (uint32_t i = 0; i < g->states[s].n; i++) {
            NEAP_TRY(neap_gbuild_tick(b));
            NEAP_TRY(add_jumps(g, s, &g->edges[g->states[s].first + i], out));
        }
    }
    return NEAP_OK;
}

/* The best way out of a state, among those of the least height or all. Numbers of calls: the worst, see NEAP_GE_IS. */
static found by_edges(const neap_grammar *g, int kind, const uint32_t *totals, uint32_t s) {
    const neap_gedge *e = g->edges + g->states[s].first;
    found best = {.cost = g->cost[kind][s], .total = totals[s]}, worst = {.total = 0};
    bool is_number = g->states[s].n > 0 && (e[0].flags & NEAP_GE_IS);
    for (uint32_t i = 0; i < g->states[s].n; i++) {
        if (kind == FLAT && neap_gedge_height(g, &e[i]) > g->height[s]) continue;
        found f = by_edge(g, kind, totals, &e[i]);
        if (is_number ? f.total >= worst.total : is_less(&f, &best)) *(is_number ? &worst : &best) = f;
    }
    return is_number && is_less(&worst, &best) ? worst : best;
}

/* The same by longer tokens; *n: jumps up to this state, counted down. */
static void by_jumps(const neap_grammar *g, int kind, const uint32_t *totals, uint32_t s, const jumps *all, uint32_t *n,
                     found *best) {
    for (; *n > 0 && all->list[*n - 1].from == s; (*n)--) {
        neap_gedge e = {.kind = NEAP_GE_BYTE, .to = all->list[*n - 1].to};
        if (kind == FLAT && neap_gedge_height(g, &e) > g->height[s]) continue;
        found f = by_edge(g, kind, totals, &e);
        if (is_less(&f, best)) *best = f;
    }
}

static neap_status edge_costs(neap_gbuild *b, neap_grammar *g, int kind, uint32_t *totals, const jumps *all) {
    bool changed = true;
    for (uint32_t s = 0; s < g->n_states; s++) totals[s] = with_count(g, kind, &g->cost[kind][s], 0);
    while (changed) {
        changed = false;
        for (uint32_t l = 0; l < b->n_loops; l++) {
            uint32_t item = g->loops[l].item;
            g->loop_cost[kind][l] = item ? saturated((uint64_t)totals[item] + 1) : 1;
        }
        uint32_t n_jumps = all->n;
        for (uint32_t s = g->n_states; s-- > 0;) {
            if (g->states[s].flags & NEAP_GS_TABLE) continue;
            found best = by_edges(g, kind, totals, s);
            by_jumps(g, kind, totals, s, all, &n_jumps, &best);
            found now = {.cost = g->cost[kind][s], .total = totals[s]};
            if (!is_less(&best, &now)) continue;
            g->cost[kind][s] = best.cost;
            totals[s] = best.total;
            changed = true;
            NEAP_TRY(neap_gbuild_tick(b));
        }
        NEAP_TRY(neap_gbuild_tick(b));
    }
    uint64_t most = 1;
    for (uint32_t s = 0; s < g->n_states; s++)
        if (totals[s] != NEAP_COST_NEVER && totals[s] > most) most = totals[s];
    if (most > g->cost_max) g->cost_max = most;
    return NEAP_OK;
}

neap_status neap_gcost_find(neap_gbuild *b, neap_grammar *g) {
    uint32_t *totals = NULL;
    jumps all = {0};
    for (int kind = LEAST; kind <= FLAT; kind++) {
        NEAP_TRY(neap_arena_array(g->arena, g->n_states, sizeof(neap_gcost), (void **)&g->cost[kind]));
        NEAP_TRY(neap_arena_array(g->arena, b->n_loops + 1, sizeof(uint32_t), (void **)&g->loop_cost[kind]));
        for (uint32_t l = 0; l < b->n_loops; l++) g->loop_cost[kind][l] = g->loops[l].item ? NEAP_COST_NEVER : 1;
        for (uint32_t s = 0; s < g->n_states; s++) {
            bool ends = !(g->states[s].flags & NEAP_GS_TABLE) && (g->states[s].flags & NEAP_GS_END);
            ends = ends || s == NEAP_GSTATE_FINAL;
            g->cost[kind][s] = (neap_gcost){ends ? 0 : NEAP_COST_NEVER, UINT32_MAX, 0, 0};
        }
    }
    NEAP_TRY(table_costs(b, g));
    NEAP_TRY(neap_mem_alloc(g->n_states * sizeof *totals, (void **)&totals));
    neap_status status = find_jumps(b, g, &all);
    if (status == NEAP_OK) status = edge_costs(b, g, LEAST, totals, &all);
    if (status == NEAP_OK) status = edge_costs(b, g, FLAT, totals, &all);
    neap_mem_free(all.list);
    neap_mem_free(totals);
    return status;
}
