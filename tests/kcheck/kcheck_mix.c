/* Attention residuals and the router. */
#include "kcheck.h"

#include <stdio.h>

/* ---- attnres ---- */

typedef struct mix {
    float *acc, *p, *score_w, *out, max, den;
    const float *bank[16];
    int64_t s, d;
} mix;

static void both(const kc *c, void *args) {
    mix *m = args;
    c->k.attnres_bank(m->acc, &m->max, &m->den, m->bank, m->s, m->score_w, m->d, 1e-5f);
    c->k.attnres_merge(m->out, m->acc, m->max, m->den, m->p, m->score_w, m->d, 1e-5f);
}

static mix make(kc *c, int64_t s, int64_t d, kc_fill fill) {
    mix m = {.acc = kc_output(c, d, (int)kc_below(c, 16)),
             .p = kc_floats(c, d, 1, fill),
             .score_w = kc_floats(c, d, 3, KC_NORMAL),
             .out = kc_output(c, d, 2),
             .s = s,
             .d = d};
    for (int64_t i = 0; i < s; i++) m.bank[i] = kc_floats(c, d, (int)kc_below(c, 16), fill);
    return m;
}

static void check_attnres(kc *c) {
    static const int64_t ds[] = {1, 15, 16, 17, 33, 64, 97, 2304, 7168};
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (int64_t s = 1; s <= 9; s++) {
            int64_t d = ds[i];
            kc_begin(c, "d %lld s %lld", (long long)d, (long long)s);
            mix m = make(c, s, d, s % 4 == 3 ? (kc_fill)(1 + i % 3) : KC_NORMAL);
            float *acc = kc_output(c, d, 0), *out = kc_output(c, d, 0), max, den;
            c->ref.attnres_bank(acc, &max, &den, m.bank, s, m.score_w, d, 1e-5f);
            c->ref.attnres_merge(out, acc, max, den, m.p, m.score_w, d, 1e-5f);
            both(c, &m);
            kc_same(c, "acc", m.acc, acc, d);
            kc_same(c, "max", &m.max, &max, 1);
            kc_same(c, "den", &m.den, &den, 1);
            kc_same(c, "out", m.out, out, d);
            c->k.attnres_merge(m.acc, m.acc, max, den, m.p, m.score_w, d, 1e-5f);
            kc_same(c, "out in place of acc", m.acc, out, d);
            kc_end(c);
        }
}

static void bench_attnres(kc *c) {
    kc_begin(c, "bench");
    mix m = make(c, 8, 7168, KC_NORMAL);
    kc_bench(c, "8 snapshots x 7168", both, &m, 11 * 7168 * 4.0, 7168 * 28.0);
}

const kc_family_tests neap_kc_attnres = {check_attnres, bench_attnres};

/* ---- route ---- */

static void one(kc *c, int32_t n, int32_t top, int32_t groups, int32_t kept, int mode, kc_fill fill) {
    kc_begin(c, "n %d top %d groups %d/%d mode %d fill %d", n, top, groups, kept, mode, (int)fill);
    float *logits = kc_floats(c, n, 1, fill), *bias = kc_floats(c, n, 2, KC_NORMAL);
    if (mode & 4)
        for (int32_t i = 0; i < n; i++) logits[i] = (float)kc_below(c, 3), bias[i] = 0; /* ties */
    float margins[2], *w[2] = {kc_output(c, top, 0), kc_output(c, top, 3)};
    int32_t *ids[2] = {kc_bytes(c, top * 4), kc_bytes(c, top * 4)};
    for (int i = 0; i < 2; i++) {
        neap_route_args a = {.logits = logits,
                             .bias = mode & 1 ? bias : NULL,
                             .n_experts = n,
                             .top_k = top,
                             .n_groups = groups,
                             .topk_groups = kept,
                             .is_softmax = mode & 2,
                             .is_renormalized = !(mode & 8),
                             .scale = 2.5f,
                             .ids = ids[i],
                             .weights = w[i],
                             .margin = &margins[i],
                             .scratch = kc_output(c, 2 * n, i)};
        (i ? c->k : c->ref).route(&a);
    }
    kc_same_bytes(c, "ids", ids[1], ids[0], top * 4);
    kc_same(c, "weights", w[1], w[0], top);
    kc_same(c, "margin", &margins[1], &margins[0], 1);
    kc_end(c);
}

static void check_route(kc *c) {
    static const int32_t cases[][4] = {{1, 1, 1, 1},  {7, 3, 1, 1},   {16, 4, 4, 2},  {16, 16, 1, 1},
                                       {64, 6, 1, 1}, {256, 8, 8, 4}, {896, 16, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int mode = 0; mode < 16; mode++)
            for (int fill = 0; fill < KC_FILLS; fill++)
                one(c, cases[i][0], cases[i][1], cases[i][2], cases[i][3], mode, (kc_fill)fill);
}

typedef struct routing {
    neap_route_args a;
} routing;

static void time_route(const kc *c, void *args) {
    routing *r = args;
    c->k.route(&r->a);
}

static void bench_route(kc *c) {
    kc_begin(c, "bench");
    routing r = {{.logits = kc_floats(c, 896, 0, KC_NORMAL),
                  .bias = kc_floats(c, 896, 0, KC_NORMAL),
                  .n_experts = 896,
                  .top_k = 16,
                  .n_groups = 1,
                  .topk_groups = 1,
                  .is_renormalized = true,
                  .scale = 1,
                  .ids = kc_bytes(c, 64),
                  .weights = kc_output(c, 16, 0),
                  .scratch = kc_output(c, 2 * 896, 0)}};
    kc_bench(c, "16 of 896", time_route, &r, 896 * 8.0, 0);
}

const kc_family_tests neap_kc_route = {check_route, bench_route};
