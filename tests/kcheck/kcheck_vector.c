/* The families that work on plain vectors: norms, elementwise operations, rotation, greedy choice. */
#include "kcheck.h"

#include <stdio.h>

static const int64_t sizes[] = {1,  2,  7,   8,   9,   15,   16,   17,   31,   32,  33,
                                47, 97, 128, 511, 512, 1536, 2304, 3584, 7168, 7169};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* ---- norm ---- */

static void check_norm(kc *c) {
    for (int i = 0; i < N_SIZES; i++)
        for (int fill = 0; fill < KC_FILLS; fill++) {
            int64_t n = sizes[i];
            if (!kc_begin(c, "n %lld fill %d", (long long)n, fill)) continue;
            int skew = (int)kc_below(c, 16);
            float *x = kc_floats(c, n, skew, (kc_fill)fill), *w = kc_floats(c, n, skew / 2, KC_NORMAL);
            float *b = kc_floats(c, n, 1, KC_NORMAL), *want = kc_output(c, n, 0), *got = kc_output(c, n, skew);
            c->ref.rmsnorm(want, x, w, n, 1e-5f);
            c->k.rmsnorm(got, x, w, n, 1e-5f);
            kc_same(c, "rmsnorm", got, want, n);
            got = kc_copy(c, x, n, skew);
            c->k.rmsnorm(got, got, w, n, 1e-5f);
            kc_same(c, "rmsnorm in place", got, want, n);
            for (int has_b = 0; has_b < 2; has_b++) {
                got = kc_copy(c, x, n, 3);
                c->ref.layernorm(want, x, w, has_b ? b : NULL, n, 1e-6f);
                c->k.layernorm(got, got, w, has_b ? b : NULL, n, 1e-6f);
                kc_same(c, "layernorm", got, want, n);
            }
            kc_end(c);
        }
}

typedef struct vectors {
    float *y, *a, *b;
    int64_t n;
    neap_act act;
    int64_t index;
} vectors;

static void time_rmsnorm(const kc *c, void *p) {
    vectors *v = p;
    c->k.rmsnorm(v->y, v->a, v->b, v->n, 1e-5f);
}
static void time_layernorm(const kc *c, void *p) {
    vectors *v = p;
    c->k.layernorm(v->y, v->a, v->b, v->b, v->n, 1e-5f);
}

static vectors make_vectors(kc *c, int64_t n) {
    kc_begin(c, "bench %lld", (long long)n);
    return (vectors){
        kc_floats(c, n, 0, KC_NORMAL), kc_floats(c, n, 0, KC_NORMAL), kc_floats(c, n, 0, KC_NORMAL), n, {0}, 0};
}

static void bench_norm(kc *c) {
    vectors v = make_vectors(c, 7168);
    c->items = (double)v.n;
    kc_bench(c, "rmsnorm 7168", time_rmsnorm, &v, 7168 * 12.0, 0);
    v.n = 128;
    c->items = (double)v.n;
    kc_bench(c, "layernorm 128", time_layernorm, &v, 128 * 12.0, 0);
}

const kc_family_tests neap_kc_norm = {check_norm, bench_norm};

/* ---- act ---- */

static void check_act(kc *c) {
    static const neap_act acts[] = {
        {NEAP_ACT_SILU, 0, 0}, {NEAP_ACT_SITU, 4, 25}, {NEAP_ACT_SITU, 1, 0}, {NEAP_ACT_SITU, 2.5f, 3}};
    for (int i = 0; i < N_SIZES; i++)
        for (int fill = 0; fill < KC_FILLS; fill++) {
            int64_t n = sizes[i];
            if (!kc_begin(c, "n %lld fill %d", (long long)n, fill)) continue;
            int skew = (int)kc_below(c, 16);
            float *x = kc_floats(c, n, skew, (kc_fill)fill), *y = kc_floats(c, n, 2, (kc_fill)fill);
            for (int64_t j = 0; j < n; j++) x[j] *= (float)(1 + j % 40); /* reach the ends of exp */
            float *want = kc_copy(c, y, n, 0), *got = kc_copy(c, y, n, skew);
            c->ref.add(want, x, n);
            c->k.add(got, x, n);
            kc_same(c, "add", got, want, n);
            c->ref.axpy(want, 0.37f, x, n);
            c->k.axpy(got, 0.37f, x, n);
            kc_same(c, "axpy", got, want, n);
            c->ref.sigmoid_mul(want, x, n);
            c->k.sigmoid_mul(got, x, n);
            kc_same(c, "sigmoid_mul", got, want, n);
            for (int a = 0; a < 4; a++) {
                got = kc_copy(c, x, n, skew);
                c->ref.glu(want, x, y, n, &acts[a]);
                c->k.glu(got, got, y, n, &acts[a]);
                kc_same(c, a ? "situ" : "silu", got, want, n);
            }
            kc_end(c);
        }
    /* Every 2^13-th float through the gates. */
    kc_begin(c, "all floats");
    int64_t n = 1 << 19;
    float *x = kc_output(c, n, 0), *one = kc_output(c, n, 0), *want = kc_output(c, n, 0), *got = kc_output(c, n, 0);
    uint64_t low = kc_random(c) & 0x1fff;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)i << 13 | (uint32_t)low;
        memcpy(&x[i], &u, sizeof u);
        one[i] = 1;
    }
    for (int a = 0; a < 2; a++) {
        c->ref.glu(want, x, one, n, &acts[a]);
        c->k.glu(got, x, one, n, &acts[a]);
        kc_same(c, a ? "situ" : "silu", got, want, n);
    }
    kc_end(c);
}

static void time_glu(const kc *c, void *p) {
    vectors *v = p;
    c->k.glu(v->y, v->a, v->b, v->n, &v->act);
}
static void time_axpy(const kc *c, void *p) {
    vectors *v = p;
    c->k.axpy(v->y, 1e-3f, v->a, v->n);
}

static void bench_act(kc *c) {
    vectors v = make_vectors(c, 3072);
    c->items = (double)v.n;
    kc_bench(c, "silu 3072", time_glu, &v, 3072 * 12.0, 0);
    v.act = (neap_act){NEAP_ACT_SITU, 4, 25};
    c->items = (double)v.n;
    kc_bench(c, "situ 3072", time_glu, &v, 3072 * 12.0, 0);
    c->items = (double)v.n;
    kc_bench(c, "axpy 3072", time_axpy, &v, 3072 * 12.0, 3072);
}

const kc_family_tests neap_kc_act = {check_act, bench_act};

/* ---- rope ---- */

static void check_rope(kc *c) {
    for (int64_t d = 2; d <= 256; d += d < 40 ? 2 : 22)
        for (int is_interleaved = 0; is_interleaved < 2; is_interleaved++) {
            if (!kc_begin(c, "d %lld interleaved %d", (long long)d, is_interleaved)) continue;
            float *x = kc_floats(c, d, 0, KC_NORMAL), *cs = kc_floats(c, d / 2, 1, KC_NORMAL),
                  *sn = kc_floats(c, d / 2, 5, KC_NORMAL);
            float *want = kc_copy(c, x, d, 0), *got = kc_copy(c, x, d, 3);
            c->ref.rope(want, cs, sn, d, is_interleaved);
            c->k.rope(got, cs, sn, d, is_interleaved);
            kc_same(c, "rope", got, want, d);
            kc_end(c);
        }
}

static void time_rope(const kc *c, void *p) {
    vectors *v = p;
    c->k.rope(v->y, v->a, v->b, v->n, true);
}

static void bench_rope(kc *c) {
    vectors v = make_vectors(c, 64);
    for (int64_t i = 0; i < 64; i++) v.a[i] = 0.6f, v.b[i] = 0.8f; /* a rotation: values stay bounded */
    c->items = (double)v.n;
    kc_bench(c, "rope 64", time_rope, &v, 64 * 12.0, 0);
}

const kc_family_tests neap_kc_rope = {check_rope, bench_rope};

/* ---- sample ---- */

static void check_sample(kc *c) {
    for (int i = 0; i < N_SIZES + 1; i++)
        for (int kind = 0; kind < 6; kind++) {
            int64_t n = i < N_SIZES ? sizes[i] : 163840, want = -7, got = -7;
            if (!kc_begin(c, "n %lld kind %d", (long long)n, kind)) continue;
            float *x = kc_floats(c, n, (int)kc_below(c, 16), kind == 1 ? KC_ZEROS : kind == 5 ? KC_EXTREME : KC_NORMAL);
            if (kind == 2) x[kc_below(c, n)] = NAN;
            if (kind == 3) x[n - 1] = kc_random(c) & 1 ? INFINITY : -INFINITY;
            if (kind == 4)
                for (int64_t j = 0; j < n; j++) x[j] = (float)kc_below(c, 4) - 9; /* many equal maxima */
            bool a = c->ref.argmax(x, n, &want), b = c->k.argmax(x, n, &got);
            bool answers[2] = {a, b};
            kc_same_bytes(c, "argmax: finite or not", &answers[1], &answers[0], sizeof(bool));
            kc_same_bytes(c, "argmax: index", &got, &want, sizeof want);
            kc_end(c);
        }
}

static void time_argmax(const kc *c, void *p) {
    vectors *v = p;
    c->k.argmax(v->a, v->n, &v->index);
}

static void bench_sample(kc *c) {
    vectors v = make_vectors(c, 163840);
    c->items = (double)v.n;
    kc_bench(c, "argmax 163840", time_argmax, &v, 163840 * 4.0, 0);
}

const kc_family_tests neap_kc_sample = {check_sample, bench_sample};
