/* One KDA head: equal and unequal head sizes, all filter lengths, both gates; the same tokens cut into random
 * calls must give the same outputs, state and windows. The chunked form is in kcheck_kda_chunk.c. */
#include "kcheck.h"

#include <stdio.h>

#include "kernels/vmath.h"
#include "sweep.h"

typedef struct head {
    neap_kda_args a;
    int64_t state_n, win_k, win_v;
} head;

static head make(kc *c, int64_t n, int64_t d_k, int64_t d_v, int64_t taps, kc_fill fill, bool is_bounded) {
    int64_t ld_k = d_k + kc_below(c, 9), ld_v = d_v + kc_below(c, 9);
    int skew = (int)kc_below(c, 16);
    head h = {.state_n = neap_kda_state_floats(d_k, d_v), .win_k = d_k * (taps - 1), .win_v = d_v * (taps - 1)};
    h.a = (neap_kda_args){.n = n,
                          .d_k = d_k,
                          .d_v = d_v,
                          .conv_k = taps,
                          .ld_q = ld_k,
                          .ld_k = ld_k,
                          .ld_v = ld_v,
                          .ld_f = ld_k,
                          .ld_b = 3,
                          .ld_gate = ld_v,
                          .ld_out = ld_v,
                          .q = kc_floats(c, n * ld_k, skew, fill),
                          .k = kc_floats(c, n * ld_k, 1, fill),
                          .v = kc_floats(c, n * ld_v, skew, fill),
                          .conv_q = kc_floats(c, d_k * taps, skew, KC_NORMAL),
                          .conv_k_w = kc_floats(c, d_k * taps, 2, KC_NORMAL),
                          .conv_v = kc_floats(c, d_v * taps, 1, KC_NORMAL),
                          .f = kc_floats(c, n * ld_k, skew, fill),
                          .dt_bias = kc_floats(c, d_k, 1, KC_NORMAL),
                          .decay_scale = 1.3f,
                          .is_bounded = is_bounded,
                          .lower_bound = -5,
                          .b = kc_floats(c, n * 3, 0, fill),
                          .gate = kc_floats(c, n * ld_v, skew, fill),
                          .o_norm = kc_floats(c, d_v, 1, KC_NORMAL),
                          .eps = 1e-5f,
                          .scratch = kc_output(c, neap_kda_scratch(d_k, d_v), 1)};
    return h;
}

typedef struct result {
    float *out, *state, *win_q, *win_k, *win_v;
} result;

/* Runs the tokens in `pieces` calls (0: one by one) from the given start. */
static result run(kc *c, const neap_kernels *k, const head *h, const result *start, int pieces) {
    neap_kda_args a = h->a;
    int64_t n = a.n;
    int skew = (int)kc_below(c, 16);
    result r = {.out = kc_output(c, n * a.ld_out, skew),
                .state = kc_copy(c, start->state, h->state_n, pieces ? 0 : skew),
                .win_q = kc_copy(c, start->win_q, h->win_k, skew),
                .win_k = kc_copy(c, start->win_k, h->win_k, 1),
                .win_v = kc_copy(c, start->win_v, h->win_v, skew)};
    a.state = r.state, a.win_q = r.win_q, a.win_k = r.win_k, a.win_v = r.win_v;
    for (int64_t t = 0; t < n; t += a.n) {
        a.n = pieces == 1 ? n : pieces ? 1 + kc_below(c, n - t) : 1;
        a.q = h->a.q + t * a.ld_q, a.k = h->a.k + t * a.ld_k, a.v = h->a.v + t * a.ld_v, a.f = h->a.f + t * a.ld_f;
        a.b = h->a.b + t * a.ld_b, a.gate = h->a.gate + t * a.ld_gate, a.out = r.out + t * a.ld_out;
        k->kda(&a);
    }
    return r;
}

static void compare(kc *c, const head *h, const result *got, const result *want, const char *how) {
    char what[64];
    snprintf(what, sizeof what, "out %s", how);
    kc_same(c, what, got->out, want->out, h->a.n * h->a.ld_out);
    snprintf(what, sizeof what, "state %s", how);
    kc_same(c, what, got->state, want->state, h->state_n);
    snprintf(what, sizeof what, "window %s", how);
    kc_same(c, what, got->win_q, want->win_q, h->win_k);
    kc_same(c, what, got->win_k, want->win_k, h->win_k);
    kc_same(c, what, got->win_v, want->win_v, h->win_v);
}

static void one(kc *c, int64_t n, int64_t d_k, int64_t d_v, int64_t taps, kc_fill fill, bool is_bounded) {
    if (!kc_begin(c, "n %lld d_k %lld d_v %lld taps %lld fill %d %s", (long long)n, (long long)d_k, (long long)d_v,
                  (long long)taps, (int)fill, is_bounded ? "bounded" : "softplus"))
        return;
    head h = make(c, n, d_k, d_v, taps, fill, is_bounded);
    result start = {.state = kc_floats(c, h.state_n, 0, KC_NORMAL),
                    .win_q = kc_floats(c, h.win_k, 0, KC_NORMAL),
                    .win_k = kc_floats(c, h.win_k, 0, KC_NORMAL),
                    .win_v = kc_floats(c, h.win_v, 0, KC_NORMAL)};
    for (int64_t i = 0; i < d_k; i++) /* unused columns are zero */
        for (int64_t j = d_v; j % 32; j++) start.state[(j / 32 * d_k + i) * 32 + j % 32] = 0;
    result want = run(c, &c->ref, &h, &start, 1), got = run(c, &c->k, &h, &start, 1);
    compare(c, &h, &got, &want, "");
    got = run(c, &c->k, &h, &start, 0);
    compare(c, &h, &got, &want, "token by token");
    got = run(c, &c->k, &h, &start, 2);
    compare(c, &h, &got, &want, "in random pieces");
    kc_end(c);
}

/* ---- the sweep by itself ---- */

typedef struct sweep_case {
    kc_sweep_args a;
    void (*run)(const kc_sweep_args *a);
} sweep_case;

static bool make_sweep(kc *c, sweep_case *s, int64_t n, int64_t d_k, int64_t d_v) {
    s->run = NULL;
#if defined(NEAP_SIMD) && NEAP_SIMD
    if (strcmp(c->isa, "avx2") == 0) s->run = neap_kc_sweep_avx2;
    if (strcmp(c->isa, "avx512") == 0) s->run = neap_kc_sweep_avx512;
#endif
    if (!s->run) return false;
    float *q = kc_floats(c, n * d_k, 0, KC_NORMAL), *k = kc_floats(c, n * d_k, 0, KC_NORMAL);
    float *g = kc_floats(c, n * d_k, 0, KC_NORMAL), *beta = kc_floats(c, n, 0, KC_ZEROS);
    for (int64_t i = 0; i < n * d_k; i++) q[i] *= 0.01f, k[i] /= sqrtf((float)d_k), g[i] = -0.1f * fabsf(g[i]);
    for (int64_t i = 0; i < n; i++) beta[i] = (float)kc_below(c, 1001) / 1000;
    s->a = (kc_sweep_args){n,
                           d_k,
                           d_v,
                           .q = q,
                           .k = k,
                           .g = g,
                           .beta = beta,
                           .v = kc_floats(c, n * d_v, 0, KC_NORMAL),
                           .state = kc_floats(c, neap_kda_state_floats(d_k, d_v), 0, KC_ZEROS),
                           .out = kc_output(c, n * d_v, 0),
                           .scratch = kc_output(c, neap_kda_scratch(d_k, d_v), 0)};
    return true;
}

/* What is timed does what the kernel does: against the equations, state from zero, columns in any order. */
static void check_sweep(kc *c, int64_t n, int64_t d_k, int64_t d_v) {
    sweep_case s;
    if (!kc_begin(c, "sweep n %lld d_k %lld d_v %lld", (long long)n, (long long)d_k, (long long)d_v)) return;
    if (make_sweep(c, &s, n, d_k, d_v)) {
        float *want = kc_output(c, n * d_v, 0), *state = kc_floats(c, d_k, 0, KC_ZEROS);
        for (int64_t j = 0; j < d_v; j++) {
            memset(state, 0, (size_t)d_k * sizeof *state);
            for (int64_t t = 0; t < n; t++) {
                const float *k = s.a.k + t * d_k;
                float pred = 0, o = 0;
                for (int64_t i = 0; i < d_k; i++) {
                    state[i] *= vm_exp(s.a.g[t * d_k + i]);
                    pred = fmaf(k[i], state[i], pred);
                }
                float u = s.a.beta[t] * (s.a.v[t * d_v + j] - pred);
                for (int64_t i = 0; i < d_k; i++) {
                    state[i] = fmaf(k[i], u, state[i]);
                    o = fmaf(s.a.q[t * d_k + i], state[i], o);
                }
                want[t * d_v + j] = o;
            }
        }
        s.run(&s.a);
        kc_same(c, "out", s.a.out, want, n * d_v);
    }
    kc_end(c);
}

static void timed_sweep(const kc *c, void *args) {
    (void)c;
    const sweep_case *s = args;
    s->run(&s->a);
}

static void bench_sweep(kc *c) {
    enum { N = 64, D = 128 };
    static const char label[] = "sweep 128x128, 64 tokens";
    sweep_case s;
    kc_begin(c, "%s", label);
    if (!make_sweep(c, &s, N, D, D)) return;
    c->items = N, c->region = D * D * 4;
    kc_bench(c, label, timed_sweep, &s, N * D * D * 8.0, N * D * D * 4.0);
}

/* ---- the head ---- */

static void check(kc *c) {
    static const int64_t dims[][2] = {{1, 1},   {8, 12},  {16, 16}, {31, 33},   {32, 32},
                                      {40, 65}, {64, 64}, {97, 7},  {128, 128}, {256, 256}};
    static const int64_t tokens[] = {1, 2, 3, 5, 8, 17, 33, 70};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
            int64_t taps = (int64_t)(i + j) % 3 ? 4 : 1 + (int64_t)(i + 2 * j) % 8;
            if (dims[i][0] == 256 && tokens[j] > 8) continue;
            one(c, tokens[j], dims[i][0], dims[i][1], taps, j % 4 == 3 ? (kc_fill)(1 + (i + j) % 3) : KC_NORMAL,
                (i + j) % 2);
        }
    check_sweep(c, 33, 128, 128);
    check_sweep(c, 8, 40, 65);
    kc_kda_chunk_check(c);
}

static void timed(const kc *c, void *args) { c->k.kda(args); }

static void bench(kc *c) {
    static const int64_t tokens[] = {1, 64};
    for (int i = 0; i < 2; i++) {
        char label[64];
        snprintf(label, sizeof label, "head 128x128, %lld tokens", (long long)tokens[i]);
        kc_begin(c, "%s", label);
        head h = make(c, tokens[i], 128, 128, 4, KC_NORMAL, false);
        h.a.state = kc_floats(c, h.state_n, 0, KC_ZEROS);
        h.a.win_q = kc_floats(c, h.win_k, 0, KC_NORMAL), h.a.win_k = kc_floats(c, h.win_k, 0, KC_NORMAL);
        h.a.win_v = kc_floats(c, h.win_v, 0, KC_NORMAL), h.a.out = kc_output(c, tokens[i] * h.a.ld_out, 0);
        c->items = (double)tokens[i], c->region = (double)h.state_n * 4;
        kc_bench(c, label, timed, &h.a, (double)tokens[i] * 128 * 128 * 8, (double)tokens[i] * 128 * 128 * 4);
    }
    bench_sweep(c);
    kc_kda_chunk_bench(c);
}

const kc_family_tests neap_kc_kda = {check, bench};
