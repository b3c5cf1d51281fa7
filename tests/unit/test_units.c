/* The golden unit vectors (golden/units, made with float64 elsewhere) through the kernel table, once per
 * instruction set of this CPU. Tolerances are those of the golden README.
 *
 * The KDA vectors give q, k and v after the short convolution, while our kernel begins before it. So the test
 * feeds inputs whose SiLU is the wanted value: q and k are normalised later and may be scaled per token into
 * the range of SiLU, and outputs and state are linear in (v, state0), so those are scaled together. The gated
 * norm at the end is made linear by a huge eps. */
#include "unit_data.h"

static const double KDA_LIMIT = 2e-6, BLOCK_LIMIT = 1e-6;

static const double SILU_LEAST = -0.2784; /* a little above the minimum of SiLU */

static double most_negative(const float *x, int64_t n) {
    double m = -1e-3;
    for (int64_t i = 0; i < n; i++) m = (double)x[i] < m ? (double)x[i] : m;
    return m;
}

/* x with silu(x) = y for y >= SILU_LEAST: bisection right of the minimum. */
static float silu_inverse(double y) {
    double lo = -1.27846, hi = y > 0 ? y + 2 : 0;
    for (int i = 0; i < 100; i++) {
        double mid = (lo + hi) / 2;
        if (mid / (1 + exp(-mid)) < y)
            lo = mid;
        else
            hi = mid;
    }
    return (float)hi;
}

enum { MAX_D = 256 };
static float ones[MAX_D], hundreds[MAX_D], norm_w[MAX_D];

/* A head without convolution and with a linear output stage: out = o. */
static neap_kda_args kda_plain(int64_t n, int64_t d_k, int64_t d_v) {
    for (int i = 0; i < MAX_D; i++) ones[i] = 1, hundreds[i] = 100, norm_w[i] = 1e15f;
    return (neap_kda_args){.n = n,
                           .d_k = d_k,
                           .d_v = d_v,
                           .conv_k = 1,
                           .conv_q = ones,
                           .conv_k_w = ones,
                           .conv_v = ones,
                           .gate = hundreds,
                           .o_norm = norm_w,
                           .eps = 1e30f,
                           .ld_out = d_v,
                           .scratch = unit_floats(neap_kda_scratch(d_k, d_v))};
}

static void state_to_slices(float *s, const float *plain, int64_t d_k, int64_t d_v, float scale) {
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) s[(j / 32 * d_k + i) * 32 + j % 32] = plain ? plain[i * d_v + j] * scale : 0;
}
static void state_from_slices(float *plain, const float *s, int64_t d_k, int64_t d_v, float scale) {
    for (int64_t i = 0; i < d_k; i++)
        for (int64_t j = 0; j < d_v; j++) plain[i * d_v + j] = s[(j / 32 * d_k + i) * 32 + j % 32] * scale;
}

typedef struct kda_case {
    int64_t t, h, d;
    unit_array q, k, v, f, beta, dt_bias, a_log;
    bool is_bounded;
    float v_scale; /* v and state are fed times this */
} kda_case;

/* Tokens [begin, end) of head h from `state` [d, d] (NULL: zero); has_v false feeds v = 0. */
static void kda_run(const neap_kernels *kernels, const kda_case *c, int64_t h, int64_t begin, int64_t end, bool has_v,
                    const float *state, float *out, float *state_out) {
    int64_t n = end - begin, d = c->d, ld = c->h * d;
    float *q = unit_floats(n * d), *k = unit_floats(n * d), *v = unit_floats(n * d);
    for (int64_t t = 0; t < n; t++) {
        int64_t at = (begin + t) * ld + h * d;
        double q_scale = SILU_LEAST / most_negative(c->q.f + at, d);
        double k_scale = SILU_LEAST / most_negative(c->k.f + at, d);
        for (int64_t i = 0; i < d; i++) {
            q[t * d + i] = silu_inverse(c->q.f[at + i] * q_scale);
            k[t * d + i] = silu_inverse(c->k.f[at + i] * k_scale);
            v[t * d + i] = has_v ? silu_inverse((double)c->v.f[at + i] * c->v_scale) : 0;
        }
    }
    neap_kda_args a = kda_plain(n, d, d);
    a.q = q, a.k = k, a.v = v, a.ld_q = a.ld_k = a.ld_v = d;
    a.f = c->f.f + begin * ld + h * d, a.ld_f = ld;
    a.dt_bias = c->dt_bias.f + h * d, a.decay_scale = (float)exp((double)c->a_log.f[h]);
    a.is_bounded = c->is_bounded, a.lower_bound = -5;
    a.b = c->beta.f + begin * c->h + h, a.ld_b = c->h;
    a.state = unit_floats(neap_kda_state_floats(d, d));
    a.out = out;
    state_to_slices(a.state, state, d, d, c->v_scale);
    kernels->kda(&a);
    for (int64_t i = 0; i < n * d; i++) out[i] /= c->v_scale;
    state_from_slices(state_out, a.state, d, d, 1 / c->v_scale);
}

static void kda_check(const neap_kernels *kernels, const neap_checkpoint *file, const kda_case *c, const char *key) {
    int64_t t = c->t, d = c->d, dd = d * d, third = t / 3;
    float *out = unit_floats(t * d), *want = unit_floats(t * d), *state = unit_floats(dd), *state2 = unit_floats(dd);
    for (int64_t h = 0; h < c->h; h++) {
        for (int is_zero = 0; is_zero < 2; is_zero++) {
            unit_array o = unit_get(file, "%s.out%s", key, is_zero ? "_zero_state" : "");
            const float *state0 = unit_get(file, "%s.state0", key).f + h * dd;
            kda_run(kernels, c, h, 0, t, true, is_zero ? NULL : state0, out, state);
            for (int64_t i = 0; i < t; i++) memcpy(want + i * d, o.f + (i * c->h + h) * d, (size_t)d * sizeof(float));
            UNIT_CLOSE(out, want, t * d, KDA_LIMIT);
            UNIT_CLOSE(state, unit_get(file, "%s.state%s", key, is_zero ? "_zero_state" : "").f + h * dd, dd,
                       KDA_LIMIT);
            if (is_zero || third == 0) continue;
            kda_run(kernels, c, h, 0, third, true, state0, out, state);
            UNIT_CLOSE(state, unit_get(file, "%s.state_at_third", key).f + h * dd, dd, KDA_LIMIT);
        }
        /* The rest of the tokens as a map: from zero it gives C, and M S without v. */
        kda_run(kernels, c, h, third, t, true, NULL, out, state);
        UNIT_CLOSE(state, unit_get(file, "%s.segment_C", key).f + h * dd, dd, KDA_LIMIT);
        const float *m = unit_get(file, "%s.segment_M", key).f + h * dd;
        const float *s =
            third ? unit_get(file, "%s.state_at_third", key).f + h * dd : unit_get(file, "%s.state0", key).f + h * dd;
        kda_run(kernels, c, h, third, t, false, s, out, state);
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) {
                double sum = 0;
                for (int64_t l = 0; l < d; l++) sum += (double)m[i * d + l] * s[l * d + j];
                state2[i * d + j] = (float)sum;
            }
        UNIT_CLOSE(state, state2, dd, KDA_LIMIT);
    }
}

static void kda_body(const neap_kernels *k) {
    neap_checkpoint *file = unit_open("kda");
    for (const char *name = "abcd"; *name; name++)
        for (int is_bounded = 0; is_bounded < 2; is_bounded++) {
            char key[32];
            snprintf(key, sizeof key, "%c.%s", *name, is_bounded ? "bounded" : "softplus");
            kda_case c = {.q = unit_get(file, "%s.q_raw", key),
                          .k = unit_get(file, "%s.k_raw", key),
                          .v = unit_get(file, "%s.v", key),
                          .f = unit_get(file, "%s.f_raw", key),
                          .beta = unit_get(file, "%s.beta_raw", key),
                          .dt_bias = unit_get(file, "%s.dt_bias", key),
                          .a_log = unit_get(file, "%s.A_log", key),
                          .is_bounded = is_bounded};
            c.t = c.q.t->shape[0], c.h = c.q.t->shape[1], c.d = c.q.t->shape[2];
            c.v_scale = (float)(SILU_LEAST / most_negative(c.v.f, c.v.n));
            kda_check(k, file, &c, key);
        }
    neap_checkpoint_close(file);
}
static void test_kda(void **state) {
    (void)state;
    unit_each_table(kda_body);
}

/* With k = q = 1 and everything forgotten, o is v: the short convolution alone. */
static void conv_body(const neap_kernels *k) {
    neap_checkpoint *file = unit_open("blocks");
    unit_array x = unit_get(file, "conv.x"), w = unit_get(file, "conv.w"), s0 = unit_get(file, "conv.state0");
    for (int is_short = 0; is_short < 2; is_short++) {
        int64_t n = is_short ? 2 : x.t->shape[0], d = x.t->shape[1], taps = w.t->shape[1];
        float win_v[24 * 3], win_q[3] = {0}, win_k[3] = {0}, filter[4] = {0, 0, 0, 1}, f[16], zero = 0;
        assert_int_equal(d * (taps - 1), s0.n);
        memcpy(win_v, s0.f, sizeof win_v);
        for (int i = 0; i < 16; i++) f[i] = 1000; /* decay exp(-1000) */
        neap_kda_args a = kda_plain(n, 1, d);
        a.conv_k = taps, a.conv_q = a.conv_k_w = filter, a.conv_v = w.f;
        a.q = a.k = hundreds, a.ld_q = a.ld_k = 1, a.v = x.f, a.ld_v = d;
        a.win_q = win_q, a.win_k = win_k, a.win_v = win_v;
        a.f = f, a.ld_f = 1, a.dt_bias = &zero, a.decay_scale = 1, a.b = hundreds, a.ld_b = 1;
        a.state = unit_floats(neap_kda_state_floats(1, d)), a.out = unit_floats(n * d);
        k->kda(&a);
        unit_array y = unit_get(file, is_short ? "conv.short.y" : "conv.y");
        UNIT_CLOSE(a.out, y.f, n * d, BLOCK_LIMIT * unit_largest(y.f, y.n));
        assert_memory_equal(win_v, unit_get(file, is_short ? "conv.short.state" : "conv.state").data, sizeof win_v);
        assert_memory_equal(win_q, ((float[3]){is_short ? 0 : 100, 100, 100}), sizeof win_q);
    }
    neap_checkpoint_close(file);
}
static void test_conv(void **state) {
    (void)state;
    unit_each_table(conv_body);
}

/* With k = 0 the state only decays: one column that starts at 1 shows exp(g). */
static void gate_body(const neap_kernels *k) {
    neap_checkpoint *file = unit_open("blocks");
    unit_array raw = unit_get(file, "gate.raw");
    int64_t d = raw.n;
    float *zero = unit_floats(MAX_D), *bias = unit_floats(d);
    for (int64_t i = 0; i < d; i++) bias[i] = 0.25f;
    for (int is_bounded = 0; is_bounded < 2; is_bounded++) {
        unit_array g = unit_get(file, is_bounded ? "gate.g.lb-5.0" : "gate.g.lbNone");
        neap_kda_args a = kda_plain(1, d, 1);
        a.q = a.k = a.v = zero, a.f = raw.f, a.dt_bias = bias, a.decay_scale = (float)exp((double)0.7f);
        a.is_bounded = is_bounded, a.lower_bound = -5, a.b = zero;
        a.state = unit_floats(neap_kda_state_floats(d, 1)), a.out = unit_floats(1);
        for (int64_t i = 0; i < d; i++) a.state[i * 32] = 1;
        k->kda(&a);
        for (int64_t i = 0; i < d; i++) {
            double want = exp((double)g.f[i]), got = a.state[i * 32],
                   limit = 1e-6 * fmax(1, fabs((double)g.f[i])) * want;
            if (!(fabs(got - want) <= limit + 1e-44))
                fail_msg("%s: gate %lld: %g, expected %g", unit_table_name, (long long)i, got, want);
        }
    }
    neap_checkpoint_close(file);
}
static void test_gate(void **state) {
    (void)state;
    unit_each_table(gate_body);
}

static void blocks_body(const neap_kernels *k) {
    neap_checkpoint *c = unit_open("blocks");
    unit_array x = unit_get(c, "rmsnorm.x"), w = unit_get(c, "rmsnorm.w"), gate = unit_get(c, "rmsnorm.gate");
    int64_t d = w.n, rows = x.n / d;
    float *y = unit_floats(x.n);
    static const char *const eps_names[] = {"1e-05", "1e-06"};
    for (int e = 0; e < 2; e++) {
        unit_array plain = unit_get(c, "rmsnorm.y.%s", eps_names[e]),
                   gated = unit_get(c, "rmsnorm.gated.%s", eps_names[e]);
        for (int64_t i = 0; i < rows; i++) k->rmsnorm(y + i * d, x.f + i * d, w.f, d, e ? 1e-6f : 1e-5f);
        UNIT_CLOSE(y, plain.f, x.n, BLOCK_LIMIT * unit_largest(plain.f, x.n));
        k->sigmoid_mul(y, gate.f, x.n);
        UNIT_CLOSE(y, gated.f, x.n, BLOCK_LIMIT * unit_largest(gated.f, x.n));
    }
    unit_array g = unit_get(c, "act.gate"), u = unit_get(c, "act.up");
    static const struct {
        const char *name;
        neap_act act;
    } acts[] = {{"act.silu_glu", {NEAP_ACT_SILU, 0, 0}},
                {"act.situ.beta4.0.linear25.0", {NEAP_ACT_SITU, 4, 25}},
                {"act.situ.beta1.0.linearNone", {NEAP_ACT_SITU, 1, 0}},
                {"act.situ.beta2.5.linear3.0", {NEAP_ACT_SITU, 2.5f, 3}}};
    float *z = unit_floats(g.n);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        unit_array want = unit_get(c, "%s", acts[i].name);
        k->glu(z, g.f, u.f, g.n, &acts[i].act);
        UNIT_CLOSE(z, want.f, g.n, BLOCK_LIMIT * unit_largest(want.f, g.n));
        for (int64_t j = 0; j < g.n; j++) /* and each value for itself */
            if (!(fabs((double)z[j] - want.f[j]) <= 1e-6 * fabs((double)want.f[j]) + 1e-37))
                fail_msg("%s %s: %g, expected %g", unit_table_name, acts[i].name, z[j], want.f[j]);
    }
    neap_checkpoint_close(c);
}
static void test_blocks(void **state) {
    (void)state;
    unit_each_table(blocks_body);
}

static void router_body(const neap_kernels *k) {
    neap_checkpoint *c = unit_open("blocks");
    unit_array logits = unit_get(c, "router.logits"), bias = unit_get(c, "router.bias");
    static const struct {
        const char *name;
        bool has_bias, is_renormalized;
        int32_t top_k, n_groups, topk_groups;
        float scale;
    } cases[] = {{"plain", true, true, 4, 1, 1, 2.446f},
                 {"groups", true, true, 4, 4, 2, 2.5f},
                 {"norenorm", true, false, 4, 1, 1, 1},
                 {"nobias", false, true, 3, 1, 1, 1}};
    int32_t n = (int32_t)bias.n;
    float *scratch = unit_floats(2 * n), *weights = unit_floats(n);
    int32_t *ids = unit_zeros(n, sizeof *ids);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unit_array want_ids = unit_get(c, "router.%s.ids", cases[i].name);
        unit_array want_w = unit_get(c, "router.%s.weights", cases[i].name);
        unit_array want_m = unit_get(c, "router.%s.margin", cases[i].name);
        for (int64_t t = 0; t < logits.n / n; t++) {
            float margin;
            int32_t top = cases[i].top_k;
            neap_route_args a = {.logits = logits.f + t * n,
                                 .bias = cases[i].has_bias ? bias.f : NULL,
                                 .n_experts = n,
                                 .top_k = top,
                                 .n_groups = cases[i].n_groups,
                                 .topk_groups = cases[i].topk_groups,
                                 .is_renormalized = cases[i].is_renormalized,
                                 .scale = cases[i].scale,
                                 .ids = ids,
                                 .weights = weights,
                                 .margin = &margin,
                                 .scratch = scratch};
            k->route(&a);
            assert_memory_equal(ids, want_ids.i32 + t * top, (size_t)top * sizeof *ids);
            UNIT_CLOSE(weights, want_w.f + t * top, top, BLOCK_LIMIT * unit_largest(want_w.f, want_w.n));
            UNIT_CLOSE(&margin, want_m.f + t, 1, BLOCK_LIMIT);
        }
    }
    neap_checkpoint_close(c);
}
static void test_router(void **state) {
    (void)state;
    unit_each_table(router_body);
}

static void attnres_body(const neap_kernels *k) {
    neap_checkpoint *c = unit_open("blocks");
    unit_array blocks = unit_get(c, "attn_res.blocks"), current = unit_get(c, "attn_res.current");
    const float *score_w = unit_get(c, "attn_res.score_w").f;
    int64_t rows = current.t->shape[0], d = current.t->shape[1];
    float *acc = unit_floats(d), *y = unit_floats(rows * d);
    for (int64_t n = 1; n <= 5; n++) {
        unit_array want = unit_get(c, "attn_res.out.%d", (int)n);
        for (int64_t t = 0; t < rows; t++) {
            const float *bank[5];
            float weights[NEAP_ATTNRES_HEAD + 5];
            for (int64_t s = 0; s < n; s++) bank[s] = blocks.f + (s * rows + t) * d;
            neap_attnres_args stage1 = {.bank = bank,
                                        .c = &score_w,
                                        .n_bank = n,
                                        .n_mixes = 1,
                                        .d = d,
                                        .eps = 1e-5f,
                                        .weights = weights,
                                        .acc = t % 2 ? acc : NULL};
            k->attnres_bank(&stage1);
            neap_attnres_merge_args stage2 = {.out = y + t * d,
                                              .acc = stage1.acc,
                                              .bank = bank,
                                              .n_bank = n,
                                              .d = d,
                                              .weights = weights,
                                              .p = current.f + t * d,
                                              .c = score_w,
                                              .eps = 1e-5f};
            k->attnres_merge(&stage2);
        }
        UNIT_CLOSE(y, want.f, rows * d, BLOCK_LIMIT * unit_largest(want.f, want.n));
    }
    neap_checkpoint_close(c);
}
static void test_attnres(void **state) {
    (void)state;
    unit_each_table(attnres_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kda),    cmocka_unit_test(test_conv),   cmocka_unit_test(test_gate),
        cmocka_unit_test(test_blocks), cmocka_unit_test(test_router), cmocka_unit_test(test_attnres),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
