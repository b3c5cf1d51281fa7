/* Cases that broke other engines, on our kernels, once per instruction set of this CPU: unequal head sizes and
 * all token counts of KDA (A1, A2), strong decay (A3), short segments of the convolution (A4), fewer positions
 * than top-k (D4), large router biases (F1, F2), one row against many (F9).
 * The reference for KDA is written here in double, straight from the equations. */
#include "paged_row.h"
#include "unit_data.h"

#include "tensor/codec.h"

/* ---- a KDA head in double ---- */

enum { TAPS = 4 };

typedef struct head {
    int64_t n, d_k, d_v;
    float *q, *k, *v, *conv_q, *conv_k, *conv_v, *f, *dt_bias, *b, *gate, *o_norm, *state, *win_q, *win_k, *win_v;
    float decay_scale;
    bool is_bounded;
} head;

static head head_make(uint64_t *seed, int64_t n, int64_t d_k, int64_t d_v) {
    head h = {.n = n, .d_k = d_k, .d_v = d_v, .decay_scale = 1.2f};
    h.q = unit_normals(seed, n * d_k, 1), h.k = unit_normals(seed, n * d_k, 1), h.v = unit_normals(seed, n * d_v, 1);
    h.conv_q = unit_normals(seed, d_k * TAPS, 0.6f), h.conv_k = unit_normals(seed, d_k * TAPS, 0.6f);
    h.conv_v = unit_normals(seed, d_v * TAPS, 0.6f), h.f = unit_normals(seed, n * d_k, 1);
    h.dt_bias = unit_normals(seed, d_k, 1), h.b = unit_normals(seed, n, 1), h.gate = unit_normals(seed, n * d_v, 1);
    h.o_norm = unit_normals(seed, d_v, 1), h.state = unit_floats(neap_kda_state_floats(d_k, d_v));
    h.win_q = unit_normals(seed, d_k * (TAPS - 1), 1), h.win_k = unit_normals(seed, d_k * (TAPS - 1), 1);
    h.win_v = unit_normals(seed, d_v * (TAPS - 1), 1);
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) h.state[(j / 32 * d_k + i) * 32 + j % 32] = unit_normal(seed) * 0.3f;
    return h;
}

static double conv_silu(const float *x, const float *win, const float *w, int64_t d, int64_t t, int64_t c) {
    double sum = 0;
    for (int64_t j = 0; j < TAPS; j++) {
        int64_t at = t - (TAPS - 1) + j;
        sum += (double)w[c * TAPS + j] * (double)(at < 0 ? win[c * (TAPS - 1) + TAPS - 1 + at] : x[at * d + c]);
    }
    return sum / (1 + exp(-sum));
}

static void normalise(double *x, int64_t d, double scale) {
    double sum = 1e-6;
    for (int64_t i = 0; i < d; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < d; i++) x[i] *= scale / sqrt(sum);
}

/* out [n, d_v], state in the sliced layout. */
static void head_reference(const head *h, float *out, float *state) {
    int64_t d_k = h->d_k, d_v = h->d_v;
    double *s = unit_zeros(d_k * d_v, sizeof *s), q[64], k[64], keep[64], v[64], o[64];
    assert_true(d_k <= 64 && d_v <= 64);
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) s[i * d_v + j] = (double)h->state[(j / 32 * d_k + i) * 32 + j % 32];
    for (int64_t t = 0; t < h->n; t++) {
        for (int64_t i = 0; i < d_k; i++) {
            q[i] = conv_silu(h->q, h->win_q, h->conv_q, d_k, t, i);
            k[i] = conv_silu(h->k, h->win_k, h->conv_k, d_k, t, i);
            double z = (double)h->f[t * d_k + i] + (double)h->dt_bias[i], a = (double)h->decay_scale;
            keep[i] = exp(h->is_bounded ? -5 / (1 + exp(-a * z)) : -a * (fmax(z, 0) + log1p(exp(-fabs(z)))));
        }
        normalise(q, d_k, 1 / sqrt((double)d_k));
        normalise(k, d_k, 1);
        double beta = 1 / (1 + exp(-(double)h->b[t])), square = 0;
        for (int64_t j = 0; j < d_v; j++) {
            v[j] = conv_silu(h->v, h->win_v, h->conv_v, d_v, t, j);
            double pred = 0;
            for (int64_t i = 0; i < d_k; i++) pred += k[i] * (s[i * d_v + j] *= keep[i]);
            o[j] = 0;
            for (int64_t i = 0; i < d_k; i++) o[j] += q[i] * (s[i * d_v + j] += k[i] * beta * (v[j] - pred));
            square += o[j] * o[j] / (double)d_v;
        }
        for (int64_t j = 0; j < d_v; j++)
            out[t * d_v + j] =
                (float)(o[j] / sqrt(square + 1e-5) * (double)h->o_norm[j] / (1 + exp(-(double)h->gate[t * d_v + j])));
    }
    memset(state, 0, (size_t)neap_kda_state_floats(d_k, d_v) * sizeof *state);
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) state[(j / 32 * d_k + i) * 32 + j % 32] = (float)s[i * d_v + j];
}

typedef struct run {
    float *out, *state, *win_q, *win_k, *win_v;
} run;

static float *copy(const float *x, int64_t n) {
    float *y = unit_floats(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

/* Cuts the tokens at pieces[0], pieces[1], ...; 0 ends the list and means "the rest". */
static run head_run(const neap_kernels *k, const head *h, const int64_t *pieces) {
    int64_t d_k = h->d_k, d_v = h->d_v, w = TAPS - 1;
    run r = {unit_floats(h->n * d_v), copy(h->state, neap_kda_state_floats(d_k, d_v)), copy(h->win_q, d_k * w),
             copy(h->win_k, d_k * w), copy(h->win_v, d_v * w)};
    float *scratch = unit_floats(neap_kda_scratch(d_k, d_v));
    for (int64_t t = 0, n; t < h->n; t += n) {
        n = *pieces ? *pieces++ : h->n - t;
        if (n > h->n - t) n = h->n - t;
        neap_kda_args a = {.n = n,
                           .d_k = d_k,
                           .d_v = d_v,
                           .conv_k = TAPS,
                           .q = h->q + t * d_k,
                           .k = h->k + t * d_k,
                           .v = h->v + t * d_v,
                           .ld_q = d_k,
                           .ld_k = d_k,
                           .ld_v = d_v,
                           .conv_q = h->conv_q,
                           .conv_k_w = h->conv_k,
                           .conv_v = h->conv_v,
                           .win_q = r.win_q,
                           .win_k = r.win_k,
                           .win_v = r.win_v,
                           .f = h->f + t * d_k,
                           .ld_f = d_k,
                           .dt_bias = h->dt_bias,
                           .decay_scale = h->decay_scale,
                           .is_bounded = h->is_bounded,
                           .lower_bound = -5,
                           .b = h->b + t,
                           .ld_b = 1,
                           .gate = h->gate + t * d_v,
                           .ld_gate = d_v,
                           .o_norm = h->o_norm,
                           .eps = 1e-5f,
                           .state = r.state,
                           .out = r.out + t * d_v,
                           .ld_out = d_v,
                           .scratch = scratch};
        k->kda(&a);
    }
    return r;
}

static void same_runs(const head *h, const run *a, const run *b) {
    assert_memory_equal(a->out, b->out, (size_t)(h->n * h->d_v) * sizeof(float));
    assert_memory_equal(a->state, b->state, (size_t)neap_kda_state_floats(h->d_k, h->d_v) * sizeof(float));
    assert_memory_equal(a->win_q, b->win_q, (size_t)(h->d_k * (TAPS - 1)) * sizeof(float));
    assert_memory_equal(a->win_k, b->win_k, (size_t)(h->d_k * (TAPS - 1)) * sizeof(float));
    assert_memory_equal(a->win_v, b->win_v, (size_t)(h->d_v * (TAPS - 1)) * sizeof(float));
}

static const int64_t one_by_one[600] = {[0 ... 598] = 1}, at_once[] = {0};

static void kda_body(const neap_kernels *k) {
    static const int64_t tokens[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 130, 500}; /* A2 */
    static const int64_t cuts[][4] = {
        {1, 1, 1, 0}, {2, 1, 0, 0}, {3, 0, 0, 0}, {64, 64, 0, 0}, {7, 0, 0, 0}}; /* A4, A1 */
    uint64_t seed = 11;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        head h = head_make(&seed, tokens[i], 8, 12);
        h.is_bounded = i % 2;
        run all = head_run(k, &h, at_once), steps = head_run(k, &h, one_by_one);
        same_runs(&h, &all, &steps);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            run cut = head_run(k, &h, cuts[c]);
            same_runs(&h, &all, &cut);
        }
        float *out = unit_floats(h.n * h.d_v), *state = unit_floats(neap_kda_state_floats(h.d_k, h.d_v));
        head_reference(&h, out, state);
        UNIT_CLOSE(all.state, state, neap_kda_state_floats(h.d_k, h.d_v), 5e-6);
        UNIT_CLOSE(all.out, out, h.n * h.d_v, 2e-4); /* after the norm: o may be small against its error */
    }
}
static void test_kda_splits(void **state) {
    (void)state;
    unit_each_table(kda_body);
}

/* A3: decays of e^-20 per token, and a cumulative gate of -400 inside a few tokens. */
static void strong_decay_body(const neap_kernels *k) {
    uint64_t seed = 12;
    for (int i = 0; i < 3; i++) {
        head h = head_make(&seed, 65, 16, 33);
        for (int64_t j = 0; j < h.n * h.d_k; j++) h.f[j] = i == 0 ? 20 : i == 1 ? 400 : j / h.d_k % 16 == 5 ? 400 : -30;
        for (int64_t j = 0; j < h.d_k; j++) h.dt_bias[j] = 0;
        h.decay_scale = 1;
        run r = head_run(k, &h, at_once);
        float *out = unit_floats(h.n * h.d_v), *state = unit_floats(neap_kda_state_floats(h.d_k, h.d_v));
        head_reference(&h, out, state);
        UNIT_CLOSE(r.state, state, neap_kda_state_floats(h.d_k, h.d_v), 5e-6);
        UNIT_CLOSE(r.out, out, h.n * h.d_v, 2e-4);
        for (int64_t j = 0; j < h.n * h.d_v; j++) assert_true(isfinite(r.out[j]));
    }
}
static void test_strong_decay(void **state) {
    (void)state;
    unit_each_table(strong_decay_body);
}

/* ---- D4: up to top-k positions, sparse is dense, bit by bit ---- */

static void few_positions_body(const neap_kernels *k) {
    enum { TOP = 70, HEADS = 3, R = 40, DR = 8, D = 24 };
    const neap_latent_format latent = {NEAP_ROWS_F32, R, DR};
    const neap_index_format index = {NEAP_ROWS_F32, D};
    uint64_t seed = 13;
    uint8_t *rows = unit_zeros(3 * neap_latent_page_bytes(&latent), 1);
    uint8_t *keys = unit_zeros(3 * neap_index_page_bytes(&index), 1);
    memset(rows, 0xff, (size_t)(3 * neap_latent_page_bytes(&latent))); /* NaN: unused rows must not matter */
    memset(keys, 0xff, (size_t)(3 * neap_index_page_bytes(&index)));
    static const int32_t table[2] = {2, 1};
    const neap_pages cache = {rows, neap_latent_page_bytes(&latent), table};
    const neap_pages index_keys = {keys, neap_index_page_bytes(&index), table};
    for (int64_t n = 1; n <= TOP + 2; n++) {
        float *q = unit_normals(&seed, HEADS * (R + DR), 1), *row = unit_normals(&seed, R + DR, 1);
        float *iq = unit_normals(&seed, HEADS * D, 1), *iw = unit_normals(&seed, HEADS, 1),
              *key = unit_normals(&seed, D, 1);
        int64_t at = n - 1, n_list = n < TOP ? n : TOP;
        neap_latent_put(&latent, rows + table[at / 64] * cache.page_bytes, at % 64, row);
        neap_index_put(&index, keys + table[at / 64] * index_keys.page_bytes, at % 64, key);
        float out[2][HEADS * R], stats[2][2 * HEADS];
        int32_t list[TOP];
        paged_select(k, index, index_keys, iq, iw, HEADS, (int32_t)n, n_list, list, NULL);
        for (int64_t i = 0; i < n_list; i++) assert_true(n <= TOP ? list[i] == i : i == 0 || list[i] > list[i - 1]);
        paged_attend(k, latent, cache, q, HEADS, NULL, (int32_t)n, 0.3f, out[0], stats[0]);
        paged_attend(k, latent, cache, q, HEADS, list, (int32_t)n_list, 0.3f, out[1], stats[1]);
        if (n <= TOP) {
            assert_memory_equal(out[0], out[1], sizeof out[0]);
            assert_memory_equal(stats[0], stats[1], sizeof stats[0]);
        } else {
            assert_memory_not_equal(out[0], out[1], sizeof out[0]);
        }
    }
}
static void test_few_positions(void **state) {
    (void)state;
    unit_each_table(few_positions_body);
}

/* ---- router ---- */

/* F1: biases 6.817 .. 7.063 in steps of 0.001; the chosen experts equal those of a router in double. */
static void large_bias_body(const neap_kernels *k) {
    enum { N = 247, TOP = 8 };
    uint64_t seed = 15;
    float bias[N], logits[N], scratch[2 * N], weights[TOP];
    int32_t ids[TOP];
    int compared = 0;
    for (int i = 0; i < N; i++) bias[i] = 6.817f + 0.001f * (float)(i * 101 % N);
    for (int round = 0; round < 10000; round++) {
        double c[N];
        for (int i = 0; i < N; i++) {
            logits[i] = unit_normal(&seed);
            c[i] = 1 / (1 + exp(-(double)logits[i])) + (double)bias[i];
        }
        neap_route_args a = {.logits = logits,
                             .bias = bias,
                             .n_experts = N,
                             .top_k = TOP,
                             .n_groups = 1,
                             .topk_groups = 1,
                             .is_renormalized = true,
                             .scale = 2.5f,
                             .ids = ids,
                             .weights = weights,
                             .scratch = scratch};
        k->route(&a);
        int32_t want[TOP];
        double last = INFINITY, gap = 1;
        for (int t = 0; t <= TOP; t++) {
            int best = -1;
            for (int i = 0; i < N; i++)
                if (c[i] < last && (best < 0 || c[i] > c[best])) best = i;
            if (t && last - c[best] < gap) gap = last - c[best];
            last = c[best];
            if (t < TOP) want[t] = best;
        }
        if (gap < 2e-6) continue; /* closer than F32 can tell apart near 8 */
        compared++;
        assert_memory_equal(ids, want, sizeof want);
        double sum = 0;
        for (int t = 0; t < TOP; t++) sum += (double)weights[t];
        assert_true(fabs(sum - 2.5) < 1e-5);
    }
    assert_true(compared > 9000);
}
static void test_large_bias(void **state) {
    (void)state;
    unit_each_table(large_bias_body);
}

/* F2: tiny scores under a bias of 12. */
static void tiny_scores_body(const neap_kernels *k) {
    enum { N = 32, TOP = 4 };
    float bias[N], logits[N], scratch[2 * N], weights[TOP];
    int32_t ids[TOP];
    for (int i = 0; i < N; i++) bias[i] = 12, logits[i] = -18;
    neap_route_args a = {.logits = logits,
                         .bias = bias,
                         .n_experts = N,
                         .top_k = TOP,
                         .n_groups = 1,
                         .topk_groups = 1,
                         .is_renormalized = true,
                         .scale = 2,
                         .ids = ids,
                         .weights = weights,
                         .scratch = scratch};
    for (int i = 0; i < 2; i++) {
        k->route(&a);
        for (int t = 0; t < TOP; t++) {
            assert_int_equal(ids[t], t);
            assert_true(fabs((double)weights[t] - 0.5) < 1e-6);
        }
        for (int j = 0; j < N; j++) bias[j] = 0, logits[j] = -30; /* sigmoid 9e-14: far above the guard of 1e-20 */
    }
    for (int j = 0; j < N; j++) logits[j] = NAN; /* broken input: still valid, distinct ids */
    k->route(&a);
    for (int t = 0; t < TOP; t++) {
        assert_in_range(ids[t], 0, N - 1);
        for (int u = 0; u < t; u++) assert_int_not_equal(ids[t], ids[u]);
    }
}
static void test_tiny_scores(void **state) {
    (void)state;
    unit_each_table(tiny_scores_body);
}

/* ---- F9: one row, several rows: the same row result; MXFP4 with k not a multiple of 64 or 128 (F6) ---- */

static void rows_body(const neap_kernels *k) {
    static const int64_t ms[] = {1, 2, 3, 5, 8}, ks[] = {32, 96, 160, 224};
    uint64_t seed = 16;
    for (int s = 0; s < 4; s++) {
        int64_t n = 40, kk = ks[s];
        uint8_t *packed = unit_zeros(n * kk / 2, 1), *scales = unit_zeros(n * kk / 32, 1);
        for (int64_t i = 0; i < n * kk / 2; i++) packed[i] = (uint8_t)unit_random(&seed);
        for (int64_t i = 0; i < n * kk / 32; i++) scales[i] = (uint8_t)(120 + unit_random(&seed) % 8);
        neap_matrix w;
        neap_matrix_shape(&w, NEAP_MATRIX_MXFP4, n, kk);
        uint64_t bytes = neap_matrix_panel_bytes(&w);
        void *storage = unit_zeros((int64_t)bytes, 1);
        memset(storage, 0xff, bytes); /* padding that nobody wrote would be NaN */
        neap_pack_source src = {.dtype = NEAP_DTYPE_U8, .data = packed, .row_stride = kk / 2, .scale_e8m0 = scales};
        assert_int_equal(neap_matrix_pack(&w, storage, &src, 0, neap_matrix_panels(&w)), 0);
        w.panels = storage;
        float *x = unit_normals(&seed, kk, 1), *want = unit_floats(n), *xs = unit_floats(8 * kk),
              *y = unit_floats(8 * n);
        for (int64_t j = 0; j < n; j++) {
            float acc = 0;
            for (int64_t i = 0; i < kk; i++) {
                uint8_t code = i % 2 ? packed[(j * kk + i) / 2] >> 4 : packed[(j * kk + i) / 2] & 15;
                acc = fmaf(x[i], neap_e2m1_decode(code) * neap_e8m0_decode(scales[j * (kk / 32) + i / 32]), acc);
            }
            want[j] = acc;
        }
        for (int i = 0; i < 8; i++) memcpy(xs + i * kk, x, (size_t)kk * sizeof(float));
        for (int m = 0; m < 5; m++) {
            neap_gemm_args a = {
                .y = y, .ldy = n, .x = xs, .ldx = kk, .m = ms[m], .w = &w, .panel_end = neap_matrix_panels(&w)};
            memset(y, 0xff, (size_t)(8 * n) * sizeof(float));
            k->gemm[NEAP_MATRIX_MXFP4](&a);
            for (int64_t i = 0; i < ms[m]; i++) assert_memory_equal(y + i * n, want, (size_t)n * sizeof(float));
        }
    }
}
static void test_rows(void **state) {
    (void)state;
    unit_each_table(rows_body);
}

/* ---- CPU levels ---- */

static void test_cpu_levels(void **state) {
    (void)state;
    uint32_t flags = 99;
    char text[64];
    assert_int_equal(neap_cpu_parse("scalar", &flags), NEAP_OK);
    assert_int_equal(flags, 0);
    neap_cpu_text(flags, text, sizeof text);
    assert_string_equal(text, "scalar");
    assert_int_equal(neap_cpu_parse(NULL, &flags), NEAP_OK);
    assert_int_equal(flags, neap_cpu_flags());
    assert_int_equal(neap_cpu_parse("auto", &flags), NEAP_OK);
    assert_int_equal(flags, neap_cpu_flags());
    static const char *const wrong[] = {"", "sse", "avx2,", "avx2 ", "scalar,,avx2", "AVX2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(neap_cpu_parse(wrong[i], &flags), NEAP_INVALID_ARGUMENT);
    static const struct {
        const char *name;
        uint32_t flag;
    } levels[] = {{"avx2", NEAP_CPU_AVX2},
                  {"avxvnni", NEAP_CPU_AVXVNNI},
                  {"avx512", NEAP_CPU_AVX512},
                  {"avx512vnni", NEAP_CPU_AVX512VNNI},
                  {"avx512bf16", NEAP_CPU_AVX512BF16}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        bool is_here = neap_cpu_flags() & levels[i].flag;
        assert_int_equal(neap_cpu_parse(levels[i].name, &flags), is_here ? NEAP_OK : NEAP_UNSUPPORTED);
        if (is_here) assert_int_equal(flags, levels[i].flag);
    }
    assert_true(strlen(neap_cpu_model()) > 0);
    char tiny[4];
    neap_cpu_text(NEAP_CPU_AVX2 | NEAP_CPU_AVX512, tiny, sizeof tiny);
    assert_int_equal(tiny[3], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kda_splits), cmocka_unit_test(test_strong_decay), cmocka_unit_test(test_few_positions),
        cmocka_unit_test(test_large_bias), cmocka_unit_test(test_tiny_scores),  cmocka_unit_test(test_rows),
        cmocka_unit_test(test_cpu_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
