/* An automaton that grows: states, edges, loops, tables; and its final, packed form.
 *
 * While schemas are read, states get their edges in any order (lists). At the end every state's edges lie together,
 * and each state learns how many arrays and objects must at least still open before its rule can end. An answer near
 * its greatest depth then never enters what it could not leave.
 *
 * Called by grammar_schema.c and grammar_chat.c. The builder owns its lists until neap_gbuild_free. */
#include <stdio.h>

#include "format/grammar_inner.h"

enum { ROWS_MAX = 4 << 20, TICKS_PER_CLOCK = 256, WALL_FACTOR = 10 };

/* Time that this thread has worked: a busy machine must not refuse what a quiet one takes. */
static int64_t own_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

neap_status neap_gbuild_init(neap_gbuild *b, const neap_grammar_limits *limits) {
    uint32_t made;
    int64_t ns = (int64_t)limits->milliseconds * 1000000;
    *b = (neap_gbuild){
        .limits = limits, .deadline_ns = own_ns() + ns, .wall_deadline_ns = neap_clock_ns() + ns * WALL_FACTOR};
    NEAP_TRY(neap_grow(&b->edges, 1, &b->edges_max, sizeof *b->edges));
    b->n_edges = 1;
    for (int i = 0; i < 3; i++) NEAP_TRY(neap_gbuild_state(b, &made));
    b->states[NEAP_GSTATE_END].flags = NEAP_GS_END;
    return NEAP_OK;
}

void neap_gbuild_free(neap_gbuild *b) {
    neap_mem_free(b->states);
    neap_mem_free(b->edges);
    neap_mem_free(b->loops);
    neap_mem_free(b->tables);
    neap_mem_free(b->rows);
    *b = (neap_gbuild){0};
}

const char *neap_gbuild_where(neap_gbuild *b, char text[256]) {
    if (b->where != NULL) return b->where(b->where_user, text);
    snprintf(text, 256, "the grammar");
    return text;
}

neap_status neap_gbuild_tick(neap_gbuild *b) {
    if (++b->ticks % TICKS_PER_CLOCK != 0) return NEAP_OK;
    if (own_ns() <= b->deadline_ns && neap_clock_ns() <= b->wall_deadline_ns) return NEAP_OK;
    char where[256];
    return neap_fail(NEAP_LIMIT, "%s: compiling takes longer than %d milliseconds", neap_gbuild_where(b, where),
                     b->limits->milliseconds);
}

neap_status neap_gbuild_state(neap_gbuild *b, uint32_t *out) {
    if (b->n_states >= (uint32_t)b->limits->states_max) {
        char where[256];
        return neap_fail(NEAP_LIMIT, "%s: the grammar needs more than %d states", neap_gbuild_where(b, where),
                         b->limits->states_max);
    }
    NEAP_TRY(neap_gbuild_tick(b));
    NEAP_TRY(neap_grow(&b->states, b->n_states + 1, &b->states_max, sizeof *b->states));
    *out = b->n_states++;
    b->states[*out] = (neap_bstate){0};
    return NEAP_OK;
}

neap_status neap_gbuild_edge(neap_gbuild *b, uint32_t from, neap_gedge e) {
    if (b->n_edges / 8 >= (uint32_t)b->limits->states_max) {
        char where[256];
        return neap_fail(NEAP_LIMIT, "%s: the grammar needs more than %d edges", neap_gbuild_where(b, where),
                         b->limits->states_max * 8);
    }
    NEAP_TRY(neap_gbuild_tick(b));
    NEAP_TRY(neap_grow(&b->edges, b->n_edges + 1, &b->edges_max, sizeof *b->edges));
    uint32_t made = b->n_edges++;
    b->edges[made] = (neap_bedge){.e = e};
    if (b->states[from].last)
        b->edges[b->states[from].last].next = made;
    else
        b->states[from].first = made;
    b->states[from].last = made;
    return NEAP_OK;
}

neap_status neap_gbuild_empty(neap_gbuild *b, uint32_t from, uint32_t to) {
    return neap_gbuild_edge(b, from, (neap_gedge){.kind = NEAP_GE_EMPTY, .to = to});
}

neap_status neap_gbuild_text(neap_gbuild *b, uint32_t *at, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t to;
        NEAP_TRY(neap_gbuild_state(b, &to));
        NEAP_TRY(neap_gbuild_edge(b, *at, (neap_gedge){NEAP_GE_BYTE, (uint8_t)s[i], (uint8_t)s[i], 0, to, 0}));
        *at = to;
    }
    return NEAP_OK;
}

neap_status neap_gbuild_token(neap_gbuild *b, uint32_t *at, int32_t token) {
    uint32_t to;
    NEAP_TRY(neap_gbuild_state(b, &to));
    NEAP_TRY(neap_gbuild_edge(b, *at, (neap_gedge){NEAP_GE_TOKEN, 0, 0, 0, to, (uint32_t)token}));
    *at = to;
    return NEAP_OK;
}

neap_status neap_gbuild_call(neap_gbuild *b, uint32_t *at, uint32_t rule) {
    uint32_t to;
    NEAP_TRY(neap_gbuild_state(b, &to));
    NEAP_TRY(neap_gbuild_edge(b, *at, (neap_gedge){NEAP_GE_CALL, 0, 0, 0, to, rule}));
    *at = to;
    return NEAP_OK;
}

neap_status neap_gbuild_loop(neap_gbuild *b, neap_gloop loop, uint32_t *out) {
    NEAP_TRY(neap_grow(&b->loops, b->n_loops + 1, &b->loops_max, sizeof *b->loops));
    loop.cap = loop.max == UINT32_MAX ? loop.min : loop.max;
    *out = b->n_loops;
    b->loops[b->n_loops++] = loop;
    return NEAP_OK;
}

/* ------------------------------------------------------------- tables ------------------------ */

/* What the bytes of an ordinary character do: for each state of neap_ordinary_step the classes and where they lead. */
typedef struct ordinary_bytes {
    uint8_t class[NEAP_ORDINARY_STATES][256], to[NEAP_ORDINARY_STATES][256];
    uint32_t n[NEAP_ORDINARY_STATES];
} ordinary_bytes;

static void ordinary_classes(const neap_dfa *d, ordinary_bytes *o) {
    for (int u = 0; u < NEAP_ORDINARY_STATES; u++) {
        o->n[u] = 0;
        for (int byte = 0; byte < 256; byte++) {
            int to = neap_ordinary_step(u, (uint8_t)byte);
            uint32_t k = 0;
            if (to < 0) continue;
            while (k < o->n[u] && (o->class[u][k] != d->class_of[byte] || o->to[u][k] != to)) k++;
            if (k < o->n[u]) continue;
            o->class[u][k] = d->class_of[byte];
            o->to[u][o->n[u]++] = (uint8_t)to;
        }
    }
}

/* States that no ordinary text leaves dead: all are thought to be, until one that is not is found. Such a state's mask
 * needs no walk through the ordinary tokens, which are most of them. */
static neap_status mark_roomy(neap_gbuild *b, const neap_dfa *d, uint32_t base) {
    enum { STATES_MAX = 4096 };
    ordinary_bytes o;
    uint8_t *lost = NULL; /* [state][place in a character] */
    bool changed = true;
    if (d->n > STATES_MAX) return NEAP_OK;
    NEAP_TRY(neap_mem_alloc((size_t)d->n * NEAP_ORDINARY_STATES, (void **)&lost));
    ordinary_classes(d, &o);
    neap_status status = NEAP_OK;
    while (changed && status == NEAP_OK) {
        changed = false;
        for (uint32_t s = d->n - 1; s > 0 && status == NEAP_OK; s--) {
            for (uint32_t u = 0; u < NEAP_ORDINARY_STATES; u++) {
                uint8_t *here = &lost[s * NEAP_ORDINARY_STATES + u];
                for (uint32_t k = 0; k < o.n[u] && !*here; k++) {
                    uint32_t to = d->next[s * d->n_classes + o.class[u][k]];
                    if (to == 0 || lost[to * NEAP_ORDINARY_STATES + o.to[u][k]]) *here = 1, changed = true;
                }
            }
            status = neap_gbuild_tick(b);
        }
    }
    for (uint32_t s = 1; s < d->n; s++)
        if (!lost[s * NEAP_ORDINARY_STATES]) b->states[base + s - 1].flags |= NEAP_GS_ROOMY;
    neap_mem_free(lost);
    return status;
}

neap_status neap_gbuild_dfa(neap_gbuild *b, const neap_dfa *d, uint32_t *start) {
    uint32_t base = b->n_states, cells = d->n * d->n_classes, made = 0;
    uint64_t rows = (uint64_t)b->n_rows + cells;
    if (rows > ROWS_MAX) {
        char where[256];
        return neap_fail(NEAP_LIMIT, "%s: the tables of the grammar need more than %d cells",
                         neap_gbuild_where(b, where), ROWS_MAX);
    }
    *start = NEAP_GSTATE_DEAD;
    if (neap_dfa_is_empty(d)) return NEAP_OK;
    NEAP_TRY(neap_grow(&b->tables, b->n_tables + 1, &b->tables_max, sizeof *b->tables));
    NEAP_TRY(neap_grow(&b->rows, rows, &b->rows_max, 4));
    neap_gtable *t = &b->tables[b->n_tables];
    *t = (neap_gtable){.n_classes = d->n_classes, .base = base, .row = b->n_rows, .loop = UINT32_MAX};
    memcpy(t->class_of, d->class_of, sizeof t->class_of);
    for (uint32_t s = 1; s < d->n; s++) {
        NEAP_TRY(neap_gbuild_state(b, &made));
        neap_bstate *state = &b->states[made];
        state->flags = (uint8_t)(NEAP_GS_TABLE | (d->accepts[s] ? NEAP_GS_END : 0));
        state->row = b->n_rows + (s - 1) * d->n_classes;
        state->table = b->n_tables;
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint32_t to = d->next[s * d->n_classes + c];
            b->rows[state->row + c] = to ? base + to - 1 : NEAP_GSTATE_DEAD;
        }
    }
    b->n_rows += (d->n - 1) * d->n_classes;
    b->n_tables++;
    *start = base + d->start - 1;
    return mark_roomy(b, d, base);
}

/* States of a string without pattern: between characters, inside of a character of several bytes, closed, and inside
 * of an escape (U .. U3: before the four digits of \uXXXX; ZERO: they were zeros so far; the rest: surrogate pairs). */
enum {
    S_BODY = 1,
    S_CLOSED = S_BODY + NEAP_DFA_WIDE + 1,
    S_ESCAPE,
    S_U,
    S_U1,
    S_U2,
    S_U3,
    S_ZERO1,
    S_ZERO2,
    S_ZERO3,
    S_D1,
    S_HIGH2,
    S_HIGH3,
    S_LOW_ESCAPE,
    S_LOW_U,
    S_LOW0,
    S_LOW1,
    S_COUNT
};

/* \uXXXX: any character but NUL; the two halves of a pair together. */
static void unicode_escapes(uint32_t *table) {
    for (int i = 0; i < 22; i++) {
        char c = "0123456789abcdefABCDEF"[i];
        uint32_t *next = table + (unsigned char)c;
        bool zero = c == '0', d = (c | 0x20) == 'd';
        bool high = strchr("89abAB", c) != NULL, low = strchr("cdefCDEF", c) != NULL;
        next[S_U * 256] = zero ? S_ZERO1 : d ? S_D1 : S_U1;
        next[S_U1 * 256] = S_U2;
        next[S_U2 * 256] = S_U3;
        next[S_U3 * 256] = S_BODY;
        next[S_ZERO1 * 256] = zero ? S_ZERO2 : S_U2;
        next[S_ZERO2 * 256] = zero ? S_ZERO3 : S_U3;
        next[S_ZERO3 * 256] = zero ? 0 : S_BODY;
        next[S_D1 * 256] = high ? S_HIGH2 : low ? 0 : S_U2;
        next[S_HIGH2 * 256] = S_HIGH3;
        next[S_HIGH3 * 256] = S_LOW_ESCAPE;
        next[S_LOW0 * 256] = d ? S_LOW1 : 0;
        next[S_LOW1 * 256] = low ? S_U2 : 0;
    }
    table[S_ESCAPE * 256 + 'u'] = S_U;
    table[S_LOW_ESCAPE * 256 + '\\'] = S_LOW_U;
    table[S_LOW_U * 256 + 'u'] = S_LOW0;
}

static void string_table(neap_dfa *d, bool raw) {
    for (int i = 0; i < 256; i++) d->class_of[i] = (uint8_t)i;
    d->n_classes = 256;
    d->start = S_BODY;
    neap_dfa_wide(d->next, S_BODY);
    for (uint32_t c = 0; c < 0x80; c++) {
        uint32_t to = c < 0x20 ? 0 : c == '"' ? S_CLOSED : c == '\\' ? S_ESCAPE : S_BODY;
        if (raw) to = c ? S_BODY : 0;
        d->next[S_BODY * 256 + c] = to;
        if (!raw && c != 0 && strchr("\"\\/bfnrt", (int)c)) d->next[S_ESCAPE * 256 + c] = S_BODY;
    }
    if (!raw) unicode_escapes(d->next);
    d->accepts[raw ? S_BODY : S_CLOSED] = true;
}

neap_status neap_gbuild_string(neap_gbuild *b, bool raw, uint32_t min, uint32_t max, uint32_t *start) {
    neap_dfa d = {.n = S_COUNT};
    neap_status status = neap_mem_alloc((size_t)S_COUNT * 256 * 4, (void **)&d.next);
    if (status == NEAP_OK) status = neap_mem_alloc(S_COUNT, (void **)&d.accepts);
    if (status == NEAP_OK) {
        string_table(&d, raw);
        status = neap_gbuild_dfa(b, &d, start);
    }
    if (status == NEAP_OK) {
        neap_gtable *t = &b->tables[b->n_tables - 1];
        b->states[*start].flags |= NEAP_GS_BETWEEN;
        if (min > 0 || max != UINT32_MAX) status = neap_gbuild_loop(b, (neap_gloop){.min = min, .max = max}, &t->loop);
    }
    neap_dfa_free(&d);
    return status;
}

/* ------------------------------------------------------------- heights ----------------------- */

static uint32_t more(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* What must still open after this edge. */
uint32_t neap_gedge_height(const neap_grammar *g, const neap_gedge *e) {
    uint32_t h = g->height[e->to];
    if (e->kind == NEAP_GE_CALL) h = more(h, g->height[e->arg]);
    if ((e->flags & NEAP_GE_MIN) && g->loops[e->arg].min > 0 && g->loops[e->arg].item)
        h = more(h, g->height[g->loops[e->arg].item]); /* perhaps items must still come before */
    return h + ((e->flags & NEAP_GE_DEEPER) != 0);
}

/* Heights only fall; later states are looked at first because edges mostly lead forward. */
static neap_status find_heights(neap_gbuild *b, neap_grammar *g) {
    bool changed = true;
    for (uint32_t s = 0; s < g->n_states; s++)
        g->height[s] = g->states[s].flags & (NEAP_GS_END | NEAP_GS_TABLE) ? 0 : NEAP_HEIGHT_NEVER;
    g->height[NEAP_GSTATE_FINAL] = 0;
    while (changed) {
        changed = false;
        for (uint32_t s = g->n_states; s-- > 0;) {
            if (g->height[s] == 0 || (g->states[s].flags & NEAP_GS_TABLE)) continue;
            uint32_t least = g->height[s];
            for (uint32_t i = 0; i < g->states[s].n; i++) {
                uint32_t h = neap_gedge_height(g, &g->edges[g->states[s].first + i]);
                if (h < least) least = h;
            }
            if (least < g->height[s]) {
                g->height[s] = (uint16_t)least;
                changed = true;
            }
        }
        NEAP_TRY(neap_gbuild_tick(b));
    }
    return NEAP_OK;
}

/* ------------------------------------------------------------- packing ----------------------- */

static neap_status copy_to(neap_arena *a, const void *from, size_t n, size_t size, void *out) {
    void **at = out;
    NEAP_TRY(neap_arena_array(a, n + 1, size, at));
    if (n > 0) memcpy(*at, from, n * size);
    return NEAP_OK;
}

neap_status neap_gbuild_finish(neap_gbuild *b, neap_grammar *g, uint32_t start) {
    NEAP_TRY(neap_arena_array(g->arena, b->n_states, sizeof *g->states, (void **)&g->states));
    NEAP_TRY(neap_arena_array(g->arena, b->n_edges, sizeof *g->edges, (void **)&g->edges));
    NEAP_TRY(neap_arena_array(g->arena, b->n_states, sizeof *g->height, (void **)&g->height));
    NEAP_TRY(copy_to(g->arena, b->loops, b->n_loops, sizeof *b->loops, &g->loops));
    NEAP_TRY(copy_to(g->arena, b->tables, b->n_tables, sizeof *b->tables, &g->tables));
    NEAP_TRY(copy_to(g->arena, b->rows, b->n_rows, sizeof *b->rows, &g->rows));
    g->n_states = b->n_states;
    g->start = start;
    for (uint32_t s = 0; s < b->n_states; s++) {
        const neap_bstate *from = &b->states[s];
        neap_gstate *to = &g->states[s];
        to->flags = from->flags;
        to->first = from->flags & NEAP_GS_TABLE ? from->row : g->n_edges;
        to->n = from->flags & NEAP_GS_TABLE ? from->table : 0;
        if (from->flags & NEAP_GS_TABLE) continue;
        for (uint32_t e = from->first; e != 0; e = b->edges[e].next, to->n++) g->edges[g->n_edges++] = b->edges[e].e;
    }
    NEAP_TRY(find_heights(b, g));
    return neap_gcost_find(b, g);
}
