/* The residual stream on its own, over sub-layers that only write random numbers: every normed input against the
 * definition in double precision (one softmax over bank and running sum, no stages), for few and many snapshots,
 * with sums that are kept and sums that are not, and bit by bit between rows, row counts, workers, and between the two
 * shape classes: rows dealt out, or every worker for itself in whatever op reads them. */
#include "unit_data.h"

#include "layers/builder.h"

enum { ROWS = 300, TWIN = 260, WIDTH = 40 }; /* row r + TWIN repeats row r, beyond the rows whose sums are kept */

typedef struct stage {
    int32_t n_layers, block;
    neap_network net;
    neap_batch batch;
    neap_kernels k;
    neap_stream stream;
    float *outputs; /* [2 n_layers][ROWS, WIDTH] what the sub-layers write */
    float *seen;    /* [2 n_layers + 1][ROWS, WIDTH] what they got */
} stage;

/* ---- the plan ---- */

typedef struct copy_args {
    const neap_batch *batch;
    const float *from;
    float *to;
} copy_args;
static int64_t copy_count(const void *p) { return ((const copy_args *)p)->batch->n_rows; }
static void copy_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const copy_args *a = p;
    (void)worker;
    memcpy(a->to + begin * WIDTH, a->from + begin * WIDTH, (size_t)((end - begin) * WIDTH) * sizeof(float));
}
static void copy(neap_builder *b, const float *from, float *to) {
    copy_args a = {b->batch, from, to};
    neap_builder_op(b, "copy", false, copy_count, copy_run, &a, sizeof a);
}

/* A sub-layer's first op: tasks are pieces of columns of all rows, those of it that lie in [begin, end). */
enum { PIECES = 5, PIECE = WIDTH / PIECES };
typedef struct look_args {
    const neap_batch *batch;
    neap_taken in;
    float *to;
    int64_t begin, end;
} look_args;
static int64_t look_count(const void *p) {
    const look_args *a = p;
    return a->batch->n_rows > 0 ? a->end - a->begin : 0;
}
static void look_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const look_args *a = p;
    int64_t n = a->batch->n_rows;
    const float *x = neap_taken_rows(&a->in, NULL, n, begin, end, a->end - a->begin, worker);
    for (int64_t r = 0; r < n; r++)
        memcpy(a->to + r * WIDTH + (a->begin + begin) * PIECE, x + r * a->in.ldx + (a->begin + begin) * PIECE,
               (size_t)((end - begin) * PIECE) * sizeof(float));
}
static void look(neap_builder *b, neap_input *in, float *to, bool is_beside, int64_t begin, int64_t end,
                 bool wants_copy) {
    look_args a = {.batch = b->batch, .in = neap_input_take(in, wants_copy), .to = to, .begin = begin, .end = end};
    neap_builder_op(b, "look", is_beside, look_count, look_run, &a, sizeof a);
    neap_input_follow(b, in, &a.in);
}

/* An input may be taken by one op, by two of a phase, in two phases, and read from its copy. */
static void sub_layer(neap_builder *b, stage *g, int32_t i, neap_input *in) {
    float *seen = g->seen + (int64_t)i * ROWS * WIDTH;
    switch (i % 4) {
    case 0: look(b, in, seen, false, 0, PIECES, false); break;
    case 1:
        look(b, in, seen, false, 0, 2, false);
        look(b, in, seen, true, 2, PIECES, false);
        break;
    case 2:
        look(b, in, seen, false, 0, 3, false);
        look(b, in, seen, false, 3, PIECES, false);
        break;
    default:
        look(b, in, seen, false, 0, PIECES, true);
        copy(b, in->x, seen);
        break;
    }
}

static void emit(neap_builder *b, stage *g) {
    neap_stream *s = &g->stream;
    neap_input in;
    neap_builder_begin(b);
    neap_stream_claim(b, s);
    neap_embed_emit(b, s);
    for (int32_t i = 0; i < 2 * g->n_layers; i++) {
        const neap_layer *l = &g->net.layers[i / 2];
        bool is_start = g->block && i % 2 == 0 && i / 2 % g->block == 0;
        neap_residual_emit(b, s, "residual", i % 2 ? l->mlp_res : l->attn_res, is_start,
                           i % 2 ? l->post_norm : l->input_norm, &in);
        sub_layer(b, g, i, &in);
        copy(b, g->outputs + (int64_t)i * ROWS * WIDTH, s->y);
    }
    neap_residual_emit(b, s, "residual", g->net.output_res, false, g->net.norm, &in);
    sub_layer(b, g, 2 * g->n_layers, &in);
    neap_builder_end(b);
}

typedef enum shape_class { MANY, FEW, FEW_WITH_TAPS } shape_class;

static void run(stage *g, shape_class style, int32_t n_rows, int32_t n_workers) {
    neap_arena *arena;
    neap_plan *plan;
    neap_team *team;
    neap_layout *layout;
    void *work;
    uint64_t bytes;
    assert_int_equal(neap_layout_create(&layout), NEAP_OK);
    neap_builder b = {.net = &g->net,
                      .rows_max = style == MANY ? ROWS : 8,
                      .seqs_max = 1,
                      .n_workers = n_workers,
                      .is_few = style != MANY,
                      .has_taps = style == FEW_WITH_TAPS,
                      .layout = layout,
                      .layer = -1},
                 dry = b;
    emit(&dry, g);
    assert_int_equal(dry.status, NEAP_OK);
    assert_int_equal(neap_layout_place(layout, true, &bytes), NEAP_OK);
    assert_int_equal(neap_arena_create(&arena, "test"), NEAP_OK);
    assert_int_equal(neap_arena_alloc(arena, bytes, &work), NEAP_OK);
    assert_int_equal(neap_plan_create(&plan, arena, dry.n_ops), NEAP_OK);
    assert_int_equal(neap_team_create(&team, n_workers, NEAP_PIN_NONE), NEAP_OK);
    b.work = work;
    b.arena = arena;
    b.plan = plan;
    b.k = &g->k;
    b.batch = &g->batch;
    emit(&b, g);
    assert_int_equal(b.status, NEAP_OK);
    assert_int_equal(b.n_ops, dry.n_ops);
    g->batch.n_rows = n_rows;
    for (int i = 0; i < 2; i++) {  /* a replay starts over */
        memset(work, 0xff, bytes); /* NaN: nothing may be read before it was written */
        neap_plan_run(plan, team, n_workers, NULL);
    }
    neap_team_destroy(team);
    neap_arena_destroy(arena);
    neap_layout_destroy(layout);
}

/* ---- inputs ---- */

static float *vector(uint64_t *seed, float scale, float offset) {
    float *v = unit_floats(WIDTH);
    for (int64_t i = 0; i < WIDTH; i++) v[i] = offset + scale * unit_normal(seed);
    return v;
}

static void fill_rows(uint64_t *seed, float *x) {
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < WIDTH; i++) x[r * WIDTH + i] = r < TWIN ? unit_normal(seed) : x[(r - TWIN) * WIDTH + i];
}

static void make(stage *g, int32_t n_layers, int32_t block, const neap_kernels *k) {
    uint64_t seed = (uint64_t)n_layers * 100 + (uint64_t)block;
    *g = (stage){.n_layers = n_layers, .block = block, .k = *k};
    g->net = (neap_network){.vocab = ROWS, .width = WIDTH, .n_layers = n_layers, .eps = 1e-5f, .attnres_block = block};
    g->net.layers = unit_zeros(n_layers, sizeof(neap_layer));
    for (int32_t i = 0; i < n_layers; i++) {
        neap_layer *l = &g->net.layers[i];
        l->input_norm = vector(&seed, 0.1f, 1.0f);
        l->post_norm = vector(&seed, 0.1f, 1.0f);
        if (!block) continue;
        l->attn_res = vector(&seed, 0.2f, 0.0f);
        l->mlp_res = vector(&seed, 0.2f, 0.0f);
    }
    g->net.norm = vector(&seed, 0.1f, 1.0f);
    g->net.output_res = block ? vector(&seed, 0.2f, 0.0f) : NULL;
    g->outputs = unit_floats((int64_t)2 * n_layers * ROWS * WIDTH);
    g->seen = unit_floats((int64_t)(2 * n_layers + 1) * ROWS * WIDTH);
    for (int32_t i = 0; i < 2 * n_layers; i++) fill_rows(&seed, g->outputs + (int64_t)i * ROWS * WIDTH);
    float *table = unit_floats(ROWS * WIDTH);
    fill_rows(&seed, table);
    neap_matrix *embed = &g->net.embed;
    neap_matrix_shape(embed, NEAP_MATRIX_F32, ROWS, WIDTH);
    void *panels = unit_zeros((int64_t)neap_matrix_panel_bytes(embed), 1);
    neap_pack_source source = {.dtype = NEAP_DTYPE_F32, .data = table, .row_stride = WIDTH, .col_stride = 1};
    assert_int_equal(neap_matrix_pack(embed, panels, &source, 0, neap_matrix_panels(embed)), 0);
    embed->panels = panels;
    g->batch.tokens = unit_zeros(ROWS, sizeof(int32_t));
    for (int32_t r = 0; r < ROWS; r++) g->batch.tokens[r] = r;
}

/* ---- the definition ---- */

static double score(const double *x, const float *c) {
    double dot = 0, square = 0;
    for (int i = 0; i < WIDTH; i++) {
        dot += x[i] * (double)c[i];
        square += x[i] * x[i];
    }
    return dot / sqrt(square / WIDTH + 1e-5);
}

static void reference_mix(double *out, double (*bank)[WIDTH], int n, const double *p, const float *c) {
    double e[65], top = -INFINITY, sum = 0;
    for (int s = 0; s <= n; s++) {
        e[s] = score(s < n ? bank[s] : p, c);
        top = fmax(top, e[s]);
    }
    for (int s = 0; s <= n; s++) sum += e[s] = exp(e[s] - top);
    for (int i = 0; i < WIDTH; i++) {
        out[i] = 0;
        for (int s = 0; s <= n; s++) out[i] += e[s] / sum * (s < n ? bank[s][i] : p[i]);
    }
}

static void expect_norm(const double *x, const float *w, const float *got) {
    double square = 0;
    for (int i = 0; i < WIDTH; i++) square += x[i] * x[i];
    for (int i = 0; i < WIDTH; i++) {
        double want = x[i] / sqrt(square / WIDTH + 1e-5) * (double)w[i];
        if (!(fabs(want - (double)got[i]) < 1e-5)) fail_msg("element %d: %.9g, want %.9g", i, (double)got[i], want);
    }
}

static void expect_row(const stage *g, int64_t r) {
    static double bank[64][WIDTH];
    double p[WIDTH], x[WIDTH];
    float first[WIDTH];
    int n = 0;
    bool restarts = false;
    neap_matrix_unpack_rows(&g->net.embed, r, 1, first, WIDTH);
    for (int i = 0; i < WIDTH; i++) p[i] = (double)first[i];
    for (int32_t m = 0; m <= 2 * g->n_layers; m++) {
        const neap_layer *l = &g->net.layers[m / 2];
        const float *y = g->outputs + ((int64_t)(m - 1) * ROWS + r) * WIDTH;
        bool is_last = m == 2 * g->n_layers;
        const float *c = is_last ? g->net.output_res : m % 2 ? l->mlp_res : l->attn_res;
        for (int i = 0; m > 0 && i < WIDTH; i++) p[i] = restarts ? (double)y[i] : p[i] + (double)y[i];
        if (n > 0)
            reference_mix(x, bank, n, p, c);
        else
            memcpy(x, p, sizeof x);
        restarts = g->block && !is_last && m % 2 == 0 && m / 2 % g->block == 0;
        if (restarts) memcpy(bank[n++], p, sizeof p);
        expect_norm(x,
                    is_last ? g->net.norm
                    : m % 2 ? l->post_norm
                            : l->input_norm,
                    g->seen + ((int64_t)m * ROWS + r) * WIDTH);
    }
}

static void expect_same(const stage *g, const float *a, int64_t row_a, const float *b, int64_t row_b, int64_t n) {
    for (int64_t m = 0; m <= 2 * g->n_layers; m++)
        assert_memory_equal(a + (m * ROWS + row_a) * WIDTH, b + (m * ROWS + row_b) * WIDTH,
                            (size_t)(n * WIDTH) * sizeof(float));
}

static void stream_body(const neap_kernels *k) {
    static const int32_t shapes[][2] = {{2, 0}, {1, 1}, {3, 5}, {4, 3}, {8, 2}, {13, 2}, {20, 1}, {9, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        stage g;
        make(&g, shapes[i][0], shapes[i][1], k);
        run(&g, MANY, ROWS, 1);
        for (int64_t r = 0; r < ROWS; r++) expect_row(&g, r);
        expect_same(&g, g.seen, 0, g.seen, TWIN, ROWS - TWIN);
        int64_t n = (int64_t)(2 * g.n_layers + 1) * ROWS * WIDTH;
        float *before = unit_floats(n);
        memcpy(before, g.seen, (size_t)n * sizeof(float));
        static const struct {
            shape_class style;
            int32_t n_rows, n_workers;
        } other[] = {{MANY, 7, 3}, {FEW, 1, 1}, {FEW, 1, 3}, {FEW, 8, 2}, {FEW, 3, 7}, {FEW_WITH_TAPS, 5, 2}};
        for (size_t j = 0; j < sizeof other / sizeof *other; j++) {
            memset(g.seen, 0xff, (size_t)n * sizeof(float));
            run(&g, other[j].style, other[j].n_rows, other[j].n_workers);
            expect_same(&g, before, 0, g.seen, 0, other[j].n_rows);
        }
    }
}

static void stream_follows_the_definition(void **state) {
    (void)state;
    unit_each_table(stream_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stream_follows_the_definition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
