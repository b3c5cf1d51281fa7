/* Lives of buffers, read off the arguments of ops (F8): whatever is emitted, two buffers that some op holds at the same
 * time never share a byte, an op holds no buffer that is not alive, and what was written is still there for the last
 * reader. Patterns are random: ops of one phase, ops that wait (later), streams; pointers into the middle of buffers.
 * Then the residual stream with random numbers of layers and blocks, every byte that is not alive filled with NaN
 * between its ops: the AttnRes bank, stage 1 and both running sums must last to their last reader. */
#include "unit_data.h"

#include "layers/builder.h"

/* ---- random ops ---- */

enum { BUFFERS = 40, OPS = 120, HELD = 6, WORKERS = 3, CASES = 300 };

typedef struct held {
    uint32_t *p; /* somewhere in buffer i, `offset` words from its beginning */
    int64_t offset, words;
    int32_t i;
    bool fills; /* the first op that holds the buffer writes it, the others expect what it wrote */
} held;
typedef struct op_args {
    int32_t n, *bad;
    held h[HELD];
} op_args;

static int64_t one(const void *p) { return ((const op_args *)p)->n > 0; }
static void op_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const op_args *a = p;
    (void)begin, (void)end, (void)worker;
    for (int32_t j = 0; j < a->n; j++) {
        const held *h = &a->h[j];
        for (int64_t k = 0; k < h->words; k++) {
            uint32_t *word = &h->p[k - h->offset], want = (uint32_t)(h->i * 1000003 + k);
            if (h->fills)
                *word = want;
            else if (*word != want)
                ++*a->bad;
        }
    }
}

typedef enum op_kind { NEXT, BESIDE, LATER } op_kind;
typedef struct pattern {
    int64_t words[BUFFERS];
    struct {
        op_kind kind;
        int32_t stream; /* -1: outside a fork */
        op_args args;
    } op[OPS];
    int32_t first[BUFFERS], last[BUFFERS]; /* what the layout must find */
    int32_t n_ops, bad;
} pattern;

/* Time passes with each phase; a fork is one time. Kept by hand, apart from the builder's count. */
static void draw(pattern *g, uint64_t *seed) {
    bool is_filled[BUFFERS] = {0}, is_fresh[BUFFERS]; /* fresh: filled in this phase or fork, not to be read in it */
    int32_t time = 0, stream = -1, until = 0, n_waiting = 0;
    *g = (pattern){.n_ops = OPS};
    memset(is_fresh, 0, sizeof is_fresh);
    for (int32_t i = 0; i < BUFFERS; i++) {
        g->words[i] = 1 + (int64_t)(unit_random(seed) % 3000);
        g->first[i] = INT32_MAX, g->last[i] = -1;
    }
    for (int32_t o = 0; o < OPS; o++) {
        uint32_t dice = (uint32_t)(unit_random(seed) % 16);
        op_kind kind = o == 0 || stream >= 0 || dice < 8 ? NEXT : dice < 13 ? BESIDE : LATER;
        if (stream < 0 && kind == NEXT && n_waiting == 0 && dice == 0 && o + 8 < OPS) {
            stream = 0, until = o + 2 + (int32_t)(unit_random(seed) % 6);
            time++;
            memset(is_fresh, 0, sizeof is_fresh);
        } else if (stream >= 0 && o >= until) {
            stream = -1;
        }
        if (kind == LATER && (n_waiting == NEAP_BUILDER_LATER || o + 1 == OPS)) kind = NEXT;
        if (stream > 0 || (stream == 0 && dice % 3 == 0)) stream = 1; /* streams are captured one after the other */
        if (kind == NEXT && stream < 0) {
            time++;
            memset(is_fresh, 0, sizeof is_fresh);
        }
        g->op[o].kind = kind;
        g->op[o].stream = stream;
        op_args *a = &g->op[o].args;
        for (int32_t j = 0; j < HELD; j++) {
            int32_t i = (int32_t)(unit_random(seed) % BUFFERS);
            bool again = false;
            for (int32_t k = 0; k < a->n; k++) again |= a->h[k].i == i;
            /* An op that waits runs beside the next phase: it must not read what that fills, nor fill for this one. */
            if (again || is_fresh[i] || (kind == LATER && !is_filled[i])) continue;
            a->h[a->n++] = (held){.words = g->words[i],
                                  .i = i,
                                  .fills = !is_filled[i],
                                  .offset = (int64_t)(unit_random(seed) % (uint64_t)g->words[i])};
            if (!is_filled[i]) is_fresh[i] = is_filled[i] = true;
            int32_t at = kind == LATER ? time + 1 : time;
            g->first[i] = at < g->first[i] ? at : g->first[i];
            g->last[i] = at > g->last[i] ? at : g->last[i];
        }
        n_waiting += kind == LATER;
        if (kind == NEXT && stream < 0) n_waiting = 0;
    }
}

static void emit(neap_builder *b, pattern *g) {
    uint32_t *buffers[BUFFERS];
    bool in_fork = false;
    neap_builder_begin(b);
    for (int32_t i = 0; i < BUFFERS; i++) buffers[i] = (uint32_t *)neap_builder_ints(b, g->words[i]);
    for (int32_t o = 0; o < g->n_ops; o++) {
        op_args a = g->op[o].args;
        int32_t stream = g->op[o].stream;
        a.bad = &g->bad;
        for (int32_t j = 0; j < a.n; j++) a.h[j].p = buffers[a.h[j].i] + a.h[j].offset;
        if (stream >= 0 && !in_fork) assert_true(neap_builder_fork(b, 1, 2));
        if (stream < 0 && in_fork) neap_builder_join(b);
        in_fork = stream >= 0;
        if (in_fork) neap_builder_stream(b, stream);
        if (g->op[o].kind == LATER)
            neap_builder_op_later(b, "op", one, op_run, &a, sizeof a);
        else
            neap_builder_op(b, "op", g->op[o].kind == BESIDE, one, op_run, &a, sizeof a);
    }
    neap_builder_join(b);
    op_args none = {.bad = &g->bad};
    neap_builder_op(b, "end", false, one, op_run, &none, sizeof none); /* whatever still waits comes before it */
    neap_builder_end(b);
}

static bool overlaps(int64_t a, int64_t a_end, int64_t b, int64_t b_end) { return a < b_end && b < a_end; }

static void expect_places(const pattern *g, const neap_layout *layout, uint64_t bytes) {
    const neap_life *l;
    int32_t n = neap_layout_buffers(layout, &l);
    assert_int_equal(n, BUFFERS + 1); /* the first one is the scratch of all products, which no op here holds */
    for (int32_t i = 0; i < BUFFERS; i++) {
        const neap_life *a = &l[i + 1];
        assert_int_equal(a->first, g->first[i]);
        assert_int_equal(a->last, g->last[i]);
        if (g->last[i] < 0) continue;
        assert_true(a->bytes >= (uint64_t)g->words[i] * sizeof(uint32_t));
        assert_true(a->offset % 64 == 0 && a->offset + a->bytes <= bytes);
        for (int32_t j = 0; j < i; j++) {
            const neap_life *b = &l[j + 1];
            if (g->last[j] < 0 || !overlaps(g->first[i], g->last[i] + 1, g->first[j], g->last[j] + 1)) continue;
            assert_false(overlaps((int64_t)a->offset, (int64_t)(a->offset + a->bytes), (int64_t)b->offset,
                                  (int64_t)(b->offset + b->bytes)));
        }
    }
}

typedef struct machine {
    neap_layout *layout;
    neap_arena *arena;
    neap_team *team;
    neap_plan *plan;
    char *work;
    uint64_t bytes;
} machine;

/* After a dry run: places, memory, and a builder for the real one. */
static void build(machine *m, neap_builder *b, const neap_builder *dry, bool shares) {
    void *work;
    assert_int_equal(dry->status, NEAP_OK);
    assert_int_equal(neap_layout_place(m->layout, shares, &m->bytes), NEAP_OK);
    assert_int_equal(neap_arena_create(&m->arena, "test"), NEAP_OK);
    assert_int_equal(neap_arena_alloc(m->arena, m->bytes + 64, &work), NEAP_OK);
    assert_int_equal(neap_plan_create(&m->plan, m->arena, dry->n_ops), NEAP_OK);
    assert_int_equal(neap_team_create(&m->team, WORKERS, NEAP_PIN_NONE), NEAP_OK);
    m->work = work;
    b->work = work;
    b->arena = m->arena;
    b->plan = m->plan;
}

static void destroy(machine *m) {
    neap_team_destroy(m->team);
    neap_arena_destroy(m->arena);
    neap_layout_destroy(m->layout);
}

static void living_buffers_never_share(void **state) {
    (void)state;
    static pattern g;
    uint64_t seed = 11;
    for (int i = 0; i < CASES; i++) {
        machine m;
        draw(&g, &seed);
        assert_int_equal(neap_layout_create(&m.layout), NEAP_OK);
        neap_builder b = {.n_workers = WORKERS, .streams = 1, .layout = m.layout, .layer = -1}, dry = b;
        emit(&dry, &g);
        build(&m, &b, &dry, true);
        expect_places(&g, m.layout, m.bytes);
        emit(&b, &g);
        assert_int_equal(b.status, NEAP_OK);
        neap_plan_run(m.plan, m.team, 1 + i % WORKERS, NULL);
        assert_int_equal(g.bad, 0);
        destroy(&m);
    }
}

/* ---- the residual stream ---- */

enum { WIDTH = 24, ROWS_MAX = 12 };

typedef struct stream_case {
    neap_network net;
    neap_batch batch;
    neap_kernels k;
    float *seen; /* [2 n_layers + 1][ROWS_MAX, WIDTH] */
    const neap_life *lives;
    int32_t n_lives;
    char *work;
    uint64_t bytes;
    bool poisons;
} stream_case;

/* Fills all that is dead at `time`. */
typedef struct poison_args {
    const stream_case *c;
    int32_t time;
} poison_args;
static int64_t always(const void *p) { return p != NULL; }
static void poison_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const poison_args *a = p;
    const stream_case *c = a->c;
    (void)begin, (void)end, (void)worker;
    for (uint64_t at = 0; c->poisons && at < c->bytes; at += 64) {
        bool is_alive = false;
        for (int32_t i = 0; i < c->n_lives; i++) {
            const neap_life *l = &c->lives[i];
            is_alive |= l->first <= a->time && a->time <= l->last && at >= l->offset && at < l->offset + l->bytes;
        }
        if (!is_alive) memset(c->work + at, 0xff, 64);
    }
}
static void poison(neap_builder *b, stream_case *c) {
    poison_args a = {.c = c, .time = b->s.time + 1};
    neap_builder_op(b, "poison", false, always, poison_run, &a, sizeof a);
}

/* A sub-layer: what it got goes to `seen`, and something made of it to y, a phase later. */
typedef struct sub_args {
    const neap_batch *batch;
    neap_taken in;
    float *seen, *y;
} sub_args;
static int64_t sub_count(const void *p) { return ((const sub_args *)p)->batch->n_rows > 0 ? 4 : 0; }
static void sub_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const sub_args *a = p;
    int64_t n = a->batch->n_rows, from = begin * WIDTH / 4, to = end * WIDTH / 4;
    const float *x = neap_taken_rows(&a->in, NULL, n, begin, end, 4, worker);
    for (int64_t r = 0; r < n; r++)
        memcpy(a->seen + r * WIDTH + from, x + r * a->in.ldx + from, (size_t)(to - from) * sizeof(float));
}
static void y_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const sub_args *a = p;
    (void)worker;
    for (int64_t r = 0; r < a->batch->n_rows; r++)
        for (int64_t i = begin * WIDTH / 4; i < end * WIDTH / 4; i++)
            a->y[r * WIDTH + i] = 0.5f * a->seen[r * WIDTH + (i * 7 + 3) % WIDTH] - 0.1f;
}
static void sub_layer(neap_builder *b, stream_case *c, neap_input *in, int64_t i, float *y) {
    sub_args a = {.batch = b->batch, .in = neap_input_take(in, false), .seen = c->seen + i * ROWS_MAX * WIDTH};
    poison(b, c);
    neap_builder_op(b, "sub", false, sub_count, sub_run, &a, sizeof a);
    neap_input_follow(b, in, &a.in);
    sub_args last = {.batch = b->batch, .seen = a.seen, .y = y};
    poison(b, c);
    neap_builder_op(b, "y", false, sub_count, y_run, &last, sizeof last);
    poison(b, c);
}

static void emit_stream(neap_builder *b, stream_case *c) {
    neap_stream s;
    neap_input in;
    neap_builder_begin(b);
    neap_stream_claim(b, &s);
    neap_embed_emit(b, &s);
    for (int32_t i = 0; i < 2 * c->net.n_layers; i++) {
        const neap_layer *l = &c->net.layers[i / 2];
        bool is_start = c->net.attnres_block && i % 2 == 0 && i / 2 % c->net.attnres_block == 0;
        neap_residual_emit(b, &s, "residual", i % 2 ? l->mlp_res : l->attn_res, is_start, l->input_norm, &in);
        sub_layer(b, c, &in, i, s.y);
    }
    neap_residual_emit(b, &s, "residual", c->net.output_res, false, c->net.norm, &in);
    sub_layer(b, c, &in, 2 * c->net.n_layers, s.y);
    neap_builder_end(b);
}

static const float *vector(uint64_t *seed) {
    float *v = unit_floats(WIDTH);
    for (int64_t i = 0; i < WIDTH; i++) v[i] = 0.3f * unit_normal(seed) + 0.5f;
    return v;
}

static void make_stream(stream_case *c, uint64_t *seed) {
    int32_t n_layers = 1 + (int32_t)(unit_random(seed) % 14), block = (int32_t)(unit_random(seed) % 5);
    *c = (stream_case){.net = {.vocab = ROWS_MAX, .width = WIDTH, .n_layers = n_layers, .eps = 1e-5f}};
    neap_kernels_init(&c->k, 0);
    c->net.attnres_block = block;
    c->net.layers = unit_zeros(n_layers, sizeof(neap_layer));
    c->net.norm = vector(seed);
    c->net.output_res = block ? vector(seed) : NULL;
    for (int32_t i = 0; i < n_layers; i++) {
        neap_layer *l = &c->net.layers[i];
        l->input_norm = vector(seed);
        if (!block) continue;
        l->attn_res = vector(seed);
        l->mlp_res = vector(seed);
    }
    float *table = unit_floats(ROWS_MAX * WIDTH);
    for (int64_t i = 0; i < ROWS_MAX * WIDTH; i++) table[i] = unit_normal(seed);
    neap_matrix *embed = &c->net.embed;
    neap_matrix_shape(embed, NEAP_MATRIX_F32, ROWS_MAX, WIDTH);
    void *panels = unit_zeros((int64_t)neap_matrix_panel_bytes(embed), 1);
    neap_pack_source source = {.dtype = NEAP_DTYPE_F32, .data = table, .row_stride = WIDTH, .col_stride = 1};
    assert_int_equal(neap_matrix_pack(embed, panels, &source, 0, neap_matrix_panels(embed)), 0);
    embed->panels = panels;
    c->batch.tokens = unit_zeros(ROWS_MAX, sizeof(int32_t));
    for (int32_t r = 0; r < ROWS_MAX; r++) c->batch.tokens[r] = r;
}

static float *run_stream(stream_case *c, bool is_few, bool shares, int32_t n_rows, int32_t n_workers) {
    machine m;
    int64_t n = (int64_t)(2 * c->net.n_layers + 1) * ROWS_MAX * WIDTH;
    c->seen = unit_floats(n);
    c->poisons = shares;
    c->batch.n_rows = n_rows;
    assert_int_equal(neap_layout_create(&m.layout), NEAP_OK);
    neap_builder b = {.net = &c->net,
                      .rows_max = is_few ? 8 : ROWS_MAX,
                      .seqs_max = 1,
                      .n_workers = WORKERS,
                      .is_few = is_few,
                      .layout = m.layout,
                      .layer = -1},
                 dry = b;
    emit_stream(&dry, c);
    b.k = &c->k;
    b.batch = &c->batch;
    build(&m, &b, &dry, shares);
    c->n_lives = neap_layout_buffers(m.layout, &c->lives);
    c->work = m.work;
    c->bytes = m.bytes;
    memset(m.work, 0xff, m.bytes);
    emit_stream(&b, c);
    assert_int_equal(b.status, NEAP_OK);
    neap_plan_run(m.plan, m.team, n_workers, NULL);
    destroy(&m);
    return c->seen;
}

static void bank_lasts_to_its_last_reader(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 40; i++) {
        stream_case c;
        make_stream(&c, &seed);
        int32_t n_rows = 1 + (int32_t)(unit_random(&seed) % 8);
        int64_t n = (int64_t)(2 * c.net.n_layers + 1) * ROWS_MAX * WIDTH;
        float *want = run_stream(&c, false, false, n_rows, 1);
        for (int64_t k = 0; k < n; k++) assert_true(isfinite(want[k]));
        for (int is_few = 0; is_few < 2; is_few++) {
            float *got = run_stream(&c, is_few, true, n_rows, 1 + i % WORKERS);
            assert_memory_equal(got, want, (size_t)n * sizeof(float));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(living_buffers_never_share),
                                       cmocka_unit_test(bank_lasts_to_its_last_reader)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
