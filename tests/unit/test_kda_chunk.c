/* The chunked form of KDA and the maps of segments, once per instruction set: against the golden unit vectors (made in
 * float64 elsewhere), against the recurrence in double written here, and against the sweep of the same table. Chunks of
 * 1 .. 200 tokens, gates at their bounds, all zero, alternating, unbounded. */
#include "unit_data.h"

static const double LIMIT = 2e-6; /* of the golden README: absolute, outputs reach 0.2, states 1 */

typedef struct head {
    int64_t n, d_k, d_v;
    float *q, *k, *keep, *v, *beta; /* what the chunked form wants */
    float *state;                   /* [d_k][d_v], plain rows */
} head;

static int64_t floats(const head *h) { return neap_kda_state_floats(h->d_k, h->d_v); }

static void to_slices(float *s, const float *plain, int64_t d_k, int64_t d_v) {
    memset(s, 0, (size_t)neap_kda_state_floats(d_k, d_v) * sizeof *s);
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) s[(j / 32 * d_k + i) * 32 + j % 32] = plain[i * d_v + j];
}
static void from_slices(float *plain, const float *s, int64_t d_k, int64_t d_v) {
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) plain[i * d_v + j] = s[(j / 32 * d_k + i) * 32 + j % 32];
}

static neap_kda_chunk_args chunk_args(const head *h, int64_t begin, int64_t end, int64_t chunk) {
    static float *scratch;
    if (!scratch) scratch = unit_floats(neap_kda_chunk_scratch(256, NEAP_KDA_CHUNK_MAX));
    return (neap_kda_chunk_args){.n = end - begin,
                                 .d_k = h->d_k,
                                 .d_v = h->d_v,
                                 .chunk = chunk,
                                 .q = h->q + begin * h->d_k,
                                 .k = h->k + begin * h->d_k,
                                 .keep = h->keep + begin * h->d_k,
                                 .v = h->v + begin * h->d_v,
                                 .beta = h->beta + begin,
                                 .ld_q = h->d_k,
                                 .ld_k = h->d_k,
                                 .ld_keep = h->d_k,
                                 .ld_v = h->d_v,
                                 .ld_beta = 1,
                                 .ld_out = h->d_v,
                                 .scratch = scratch};
}

/* Tokens [begin, end) from `state` (plain rows, NULL: zero) to out and state_out. */
static void run(const neap_kernels *k, const head *h, int64_t begin, int64_t end, int64_t chunk, const float *state,
                float *out, float *state_out) {
    static float s[256 * 256];
    neap_kda_chunk_args a = chunk_args(h, begin, end, chunk);
    memset(s, 0, (size_t)floats(h) * sizeof *s);
    if (state) to_slices(s, state, h->d_k, h->d_v);
    a.state = s, a.out = out;
    k->kda_chunk(&a);
    from_slices(state_out, s, h->d_k, h->d_v);
}

/* y = M x + b by the kernel; plain rows, b may be NULL. */
static void apply(const neap_kernels *k, float *y, const float *m, const float *x, const float *b, int64_t d_k,
                  int64_t d_v) {
    static float sm[256 * 256], sx[256 * 256], sy[256 * 256];
    to_slices(sm, m, d_k, d_k), to_slices(sx, x, d_k, d_v);
    if (b) to_slices(sy, b, d_k, d_v);
    neap_kda_map_args a = {.d_k = d_k, .d_v = d_v, .m = sm, .x = sx, .b = b ? sy : NULL, .y = sy};
    k->kda_map(&a);
    from_slices(y, sy, d_k, d_v);
}

static void segment(const neap_kernels *k, const head *h, int64_t begin, int64_t end, int64_t chunk, float *m,
                    float *b) {
    static float sm[256 * 256], sb[256 * 256];
    neap_kda_chunk_args a = chunk_args(h, begin, end, chunk);
    neap_kda_segment_map(k, &a, sm, sb);
    from_slices(m, sm, h->d_k, h->d_k), from_slices(b, sb, h->d_k, h->d_v);
}

/* ---- golden vectors ---- */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void normalise(float *y, const float *x, int64_t d, double scale) {
    double sum = 1e-6;
    for (int64_t i = 0; i < d; i++) sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < d; i++) y[i] = (float)(x[i] * scale / sqrt(sum));
}

static head golden_head(const neap_checkpoint *file, const char *key, int64_t i_head) {
    unit_array q = unit_get(file, "%s.q_raw", key), k = unit_get(file, "%s.k_raw", key),
               v = unit_get(file, "%s.v", key);
    unit_array g = unit_get(file, "%s.g", key), beta = unit_get(file, "%s.beta_raw", key);
    int64_t heads = q.t->shape[1], d = q.t->shape[2];
    head h = {.n = q.t->shape[0], .d_k = d, .d_v = d};
    h.q = unit_floats(h.n * d), h.k = unit_floats(h.n * d), h.keep = unit_floats(h.n * d), h.v = unit_floats(h.n * d);
    h.beta = unit_floats(h.n);
    for (int64_t t = 0; t < h.n; t++) {
        int64_t at = (t * heads + i_head) * d;
        normalise(h.q + t * d, q.f + at, d, 1 / sqrt((double)d));
        normalise(h.k + t * d, k.f + at, d, 1);
        for (int64_t i = 0; i < d; i++)
            h.keep[t * d + i] = (float)exp((double)g.f[at + i]), h.v[t * d + i] = v.f[at + i];
        h.beta[t] = (float)sigmoid((double)beta.f[t * heads + i_head]);
    }
    return h;
}

static void golden_check(const neap_kernels *k, const neap_checkpoint *file, const char *key, int64_t i_head) {
    static const int64_t chunks[] = {16, 1, 2, 7, 15, 17, 31, 32, 33, 48, 64, 100, 200};
    head h = golden_head(file, key, i_head);
    int64_t d = h.d_k, dd = d * d, third = h.n / 3, heads = unit_get(file, "%s.q_raw", key).t->shape[1];
    float *out = unit_floats(h.n * d), *want = unit_floats(h.n * d), *state = unit_floats(dd), *m = unit_floats(dd),
          *b = unit_floats(dd);
    const float *state0 = unit_get(file, "%s.state0", key).f + i_head * dd;
    const float *at_third = unit_get(file, "%s.state_at_third", key).f + i_head * dd;
    const float *state1 = unit_get(file, "%s.state", key).f + i_head * dd;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (d > 32 && chunks[i] != 16 && chunks[i] != (d > 64 ? 15 : 48)) continue; /* all on the small heads */
        for (int is_zero = 0; is_zero < 2; is_zero++) {
            unit_array o = unit_get(file, "%s.out%s", key, is_zero ? "_zero_state" : "");
            run(k, &h, 0, h.n, chunks[i], is_zero ? NULL : state0, out, state);
            for (int64_t t = 0; t < h.n; t++)
                memcpy(want + t * d, o.f + (t * heads + i_head) * d, (size_t)d * sizeof *out);
            UNIT_CLOSE(out, want, h.n * d, LIMIT);
            UNIT_CLOSE(state, unit_get(file, "%s.state%s", key, is_zero ? "_zero_state" : "").f + i_head * dd, dd,
                       LIMIT);
        }
        if (third) {
            run(k, &h, 0, third, chunks[i], state0, out, state);
            UNIT_CLOSE(state, at_third, dd, LIMIT);
        }
        segment(k, &h, third, h.n, chunks[i], m, b);
        UNIT_CLOSE(m, unit_get(file, "%s.segment_M", key).f + i_head * dd, dd, LIMIT);
        UNIT_CLOSE(b, unit_get(file, "%s.segment_C", key).f + i_head * dd, dd, LIMIT);
        apply(k, state, m, third ? at_third : state0, b, d, d);
        UNIT_CLOSE(state, state1, dd, LIMIT);
    }
}

static void golden_body(const neap_kernels *k) {
    neap_checkpoint *file = unit_open("kda");
    for (const char *name = "abcd"; *name; name++)
        for (int is_bounded = 0; is_bounded < 2; is_bounded++) {
            char key[32];
            snprintf(key, sizeof key, "%c.%s", *name, is_bounded ? "bounded" : "softplus");
            int64_t heads = unit_get(file, "%s.q_raw", key).t->shape[1];
            for (int64_t i = 0; i < heads; i++) golden_check(k, file, key, i);
        }
    neap_checkpoint_close(file);
}
static void test_golden(void **state) {
    (void)state;
    unit_each_table(golden_body);
}

/* ---- any chunk size, any gate ---- */

typedef enum gates { MILD, BOUND, ZERO, HUGE_DECAY, ALTERNATING, CHUNK_EDGES, MIXED, GATES } gates;

/* Log decay of channel i at token t. */
static double log_decay(gates kind, uint64_t *seed, int64_t t, int64_t i) {
    double u = (double)(unit_random(seed) >> 11) * 0x1p-53;
    switch (kind) {
    case MILD: return -0.1 * u;
    case BOUND: return -5;
    case ZERO: return 0;
    case HUGE_DECAY: return -1e4;
    case ALTERNATING: return t % 2 ? -20 : 0;
    case CHUNK_EDGES: return t % 16 == 15 || t % 16 == 0 ? -90 : -1e-4;
    default: return (t + i) % 3 == 0 ? -20 * u : (t + i) % 3 == 1 ? 0 : -0.01;
    }
}

static head random_head(uint64_t *seed, int64_t n, int64_t d_k, int64_t d_v, gates kind) {
    head h = {.n = n, .d_k = d_k, .d_v = d_v};
    h.q = unit_normals(seed, n * d_k, 1), h.k = unit_normals(seed, n * d_k, 1), h.v = unit_normals(seed, n * d_v, 0.3f);
    h.keep = unit_floats(n * d_k), h.beta = unit_floats(n), h.state = unit_normals(seed, d_k * d_v, 0.2f);
    for (int64_t t = 0; t < n; t++) {
        normalise(h.q + t * d_k, h.q + t * d_k, d_k, 1 / sqrt((double)d_k));
        normalise(h.k + t * d_k, h.k + t * d_k, d_k, 1);
        for (int64_t i = 0; i < d_k; i++) h.keep[t * d_k + i] = (float)exp(log_decay(kind, seed, t, i));
        h.beta[t] = t % 11 == 3 ? 1 : t % 11 == 7 ? 0 : (float)sigmoid((double)unit_normal(seed));
    }
    return h;
}

/* The recurrence in double. */
static void reference(const head *h, float *out, float *state) {
    int64_t d_k = h->d_k, d_v = h->d_v;
    double *s = unit_zeros(d_k, sizeof *s);
    for (int64_t j = 0; j < d_v; j++) {
        for (int64_t i = 0; i < d_k; i++) s[i] = (double)h->state[i * d_v + j];
        for (int64_t t = 0; t < h->n; t++) {
            double pred = 0, o = 0;
            for (int64_t i = 0; i < d_k; i++)
                pred += (double)h->k[t * d_k + i] * (s[i] *= (double)h->keep[t * d_k + i]);
            double u = (double)h->beta[t] * ((double)h->v[t * d_v + j] - pred);
            for (int64_t i = 0; i < d_k; i++) o += (double)h->q[t * d_k + i] * (s[i] += (double)h->k[t * d_k + i] * u);
            out[t * d_v + j] = (float)o;
        }
        for (int64_t i = 0; i < d_k; i++) state[i * d_v + j] = (float)s[i];
    }
}

/* n 0: all tokens; else of a call with chunk c the first c + n: a whole chunk and a piece. */
static void sizes_check(const neap_kernels *k, const head *h, const int64_t *chunks, int64_t n_chunks, int64_t n) {
    float *want = unit_floats(h->n * h->d_v), *want_state = unit_floats(h->d_k * h->d_v);
    float *out = unit_floats(h->n * h->d_v), *state = unit_floats(h->d_k * h->d_v);
    for (int64_t i = 0; i < n_chunks; i++) {
        head part = *h;
        if (n && chunks[i] + n < h->n) part.n = chunks[i] + n;
        reference(&part, want, want_state);
        run(k, h, 0, part.n, chunks[i], h->state, out, state);
        UNIT_CLOSE(out, want, part.n * h->d_v, LIMIT); /* NaN and infinity are no closer than the limit */
        UNIT_CLOSE(state, want_state, h->d_k * h->d_v, LIMIT);
    }
}

static void sizes_body(const neap_kernels *k) {
    static const int64_t some[] = {16, 23, 64, 200};
    bool is_slow = k->flags == 0; /* scalar code: not all of the large ones */
    uint64_t seed = 21;
    for (int kind = 0; kind < GATES; kind++) { /* every size once, every gate with 29 of them */
        int64_t sizes[200], n = 0;
        for (int64_t c = 1; c <= 200; c++)
            if ((c % GATES == kind && !(is_slow && c > 64 && c / GATES % 6)) || c == 16 || c == 32) sizes[n++] = c;
        head h = random_head(&seed, 219, 5, 6, (gates)kind);
        sizes_check(k, &h, sizes, n, 19);
        h = random_head(&seed, kind % 2 ? 37 : 20, 128, 128, (gates)kind);
        sizes_check(k, &h, some + kind % 4, 1, 0);
    }
    head one = random_head(&seed, 1, 31, 33, MILD), odd = random_head(&seed, 61, 97, 40, MIXED);
    sizes_check(k, &one, some, 1, 0);
    sizes_check(k, &odd, some, 4, 0);
}
static void test_sizes(void **state) {
    (void)state;
    unit_each_table(sizes_body);
}

/* ---- against the sweep, which starts from raw inputs ---- */

static void sweep_body(const neap_kernels *k) {
    enum { N = 45, D_K = 24, D_V = 40, MAX = 64 };
    static const struct {
        bool is_bounded;
        float f, swing; /* even tokens f, odd ones f + swing, both plus noise */
    } cases[] = {{false, 0, 0}, {true, 0, 0}, {true, 60, 0}, {true, -60, 0}, {false, 1e4f, 0}, {false, -200, 220}};
    float one[MAX], hundred[N * MAX], weight[MAX];
    uint64_t seed = 22;
    for (int i = 0; i < MAX; i++) one[i] = 1, weight[i] = 1e15f;
    for (int i = 0; i < N * MAX; i++) hundred[i] = 100;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float *q = unit_normals(&seed, N * D_K, 1), *key = unit_normals(&seed, N * D_K, 1);
        float *v = unit_normals(&seed, N * D_V, 0.5f), *f = unit_normals(&seed, N * D_K, 1), zero[MAX] = {0};
        float *b = unit_normals(&seed, N, 2);
        head h = random_head(&seed, N, D_K, D_V, ZERO);
        for (int64_t t = 0; t < N; t++) {
            for (int64_t i = 0; i < D_K; i++) {
                float *z = &f[t * D_K + i];
                *z += cases[c].f + (t % 2 ? cases[c].swing : 0);
                double g = cases[c].is_bounded ? -5 * sigmoid(1.25 * (double)*z)
                                               : -1.25 * (fmax((double)*z, 0) + log1p(exp(-fabs((double)*z))));
                h.keep[t * D_K + i] = (float)exp(g);
                h.q[t * D_K + i] = (float)(q[t * D_K + i] * sigmoid((double)q[t * D_K + i]));
                h.k[t * D_K + i] = (float)(key[t * D_K + i] * sigmoid((double)key[t * D_K + i]));
            }
            normalise(h.q + t * D_K, h.q + t * D_K, D_K, 1 / sqrt((double)D_K));
            normalise(h.k + t * D_K, h.k + t * D_K, D_K, 1);
            for (int64_t j = 0; j < D_V; j++)
                h.v[t * D_V + j] = (float)(v[t * D_V + j] * sigmoid((double)v[t * D_V + j]));
            h.beta[t] = (float)sigmoid((double)b[t]);
        }
        float *out = unit_floats(N * D_V), *want = unit_floats(N * D_V), *state = unit_floats(D_K * D_V);
        float *sliced = unit_floats(floats(&h)), *want_state = unit_floats(D_K * D_V);
        to_slices(sliced, h.state, D_K, D_V);
        /* no convolution, and an output stage that leaves o as it is */
        neap_kda_args a = {.n = N,
                           .d_k = D_K,
                           .d_v = D_V,
                           .conv_k = 1,
                           .q = q,
                           .k = key,
                           .v = v,
                           .ld_q = D_K,
                           .ld_k = D_K,
                           .ld_v = D_V,
                           .conv_q = one,
                           .conv_k_w = one,
                           .conv_v = one,
                           .f = f,
                           .ld_f = D_K,
                           .dt_bias = zero,
                           .decay_scale = 1.25f,
                           .is_bounded = cases[c].is_bounded,
                           .lower_bound = -5,
                           .b = b,
                           .ld_b = 1,
                           .gate = hundred,
                           .ld_gate = D_V,
                           .o_norm = weight,
                           .eps = 1e30f,
                           .state = sliced,
                           .out = want,
                           .ld_out = D_V,
                           .scratch = unit_floats(neap_kda_scratch(D_K, D_V))};
        k->kda(&a);
        from_slices(want_state, sliced, D_K, D_V);
        for (int64_t chunk = 1; chunk <= 64; chunk += chunk < 18 ? 1 : 23) {
            run(k, &h, 0, N, chunk, h.state, out, state);
            UNIT_CLOSE(out, want, N * D_V, LIMIT);
            UNIT_CLOSE(state, want_state, D_K * D_V, LIMIT);
        }
    }
}
static void test_sweep(void **state) {
    (void)state;
    unit_each_table(sweep_body);
}

/* ---- maps of segments put together ---- */

static void maps_body(const neap_kernels *k) {
    static const int64_t cuts[] = {0, 1, 30, 30, 77, 120};
    enum { D_K = 24, D_V = 40, N_CUTS = sizeof cuts / sizeof *cuts };
    uint64_t seed = 23;
    float m[D_K * D_K], b[D_K * D_V], all_m[D_K * D_K], all_b[D_K * D_V], next[D_K * D_V], s[D_K * D_V], end[D_K * D_V];
    for (int kind = 0; kind < GATES; kind++) {
        head h = random_head(&seed, 120, D_K, D_V, (gates)kind);
        float *out = unit_floats(h.n * D_V), *want = unit_floats(h.n * D_V), *state = unit_floats(D_K * D_V);
        reference(&h, want, state);
        memcpy(s, h.state, sizeof s);
        for (int i = 0; i + 1 < N_CUTS; i++) {
            segment(k, &h, cuts[i], cuts[i + 1], 16, m, b);
            double norm = unit_largest(m, D_K * D_K);
            assert_true(norm <= 1 + 1e-5); /* a token never stretches a state */
            if (cuts[i] == cuts[i + 1])
                for (int64_t e = 0; e < D_K * D_V; e++)
                    assert_true((e >= D_K * D_K || m[e] == (e / D_K == e % D_K ? 1.0f : 0.0f)) && b[e] == 0.0f);
            /* the tokens of the segment from the state that the maps before it give */
            run(k, &h, cuts[i], cuts[i + 1], 16, s, out + cuts[i] * D_V, end);
            apply(k, s, m, s, b, D_K, D_V);
            UNIT_CLOSE(s, end, D_K * D_V, LIMIT);
            if (i == 0) {
                memcpy(all_m, m, sizeof m), memcpy(all_b, b, sizeof b);
                continue;
            }
            apply(k, all_b, m, all_b, b, D_K, D_V);
            apply(k, next, m, all_m, NULL, D_K, D_K);
            memcpy(all_m, next, sizeof all_m);
        }
        UNIT_CLOSE(out, want, h.n * D_V, LIMIT);
        UNIT_CLOSE(s, state, D_K * D_V, LIMIT);
        apply(k, s, all_m, h.state, all_b, D_K, D_V);
        UNIT_CLOSE(s, state, D_K * D_V, LIMIT);
    }
}
static void test_maps(void **state) {
    (void)state;
    unit_each_table(maps_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_sweep), cmocka_unit_test(test_maps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
