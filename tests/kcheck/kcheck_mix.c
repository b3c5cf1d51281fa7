/* Attention residuals and the router. */
#include "kcheck.h"

#include <stdio.h>

/* ---- attnres ---- */

enum { SNAPSHOTS_MAX = 19, MIXES_MAX = 70 };
typedef struct mix {
    neap_attnres_args bank;
    neap_attnres_merge_args merge;
    const float *rows[SNAPSHOTS_MAX], *vectors[MIXES_MAX];
    float *out;
    bool is_kept; /* stage 1 keeps the sums */
} mix;

/* skews: 1 = aligned, 16 = any */
static void make(kc *c, mix *m, int64_t s, int64_t n, int64_t d, kc_fill fill, int64_t skews) {
    int64_t ld = NEAP_ATTNRES_HEAD + s + kc_below(c, 3), ld_acc = d + (skews > 1 ? kc_below(c, 3) : 0);
    for (int64_t i = 0; i < s; i++) m->rows[i] = kc_floats(c, d, (int)kc_below(c, skews), fill);
    for (int64_t i = 0; i < n; i++) m->vectors[i] = kc_floats(c, d, (int)kc_below(c, skews), KC_NORMAL);
    m->bank = (neap_attnres_args){.bank = m->rows,
                                  .c = m->vectors,
                                  .n_bank = s,
                                  .n_mixes = n,
                                  .d = d,
                                  .eps = 1e-5f,
                                  .weights = kc_output(c, n * ld, 1),
                                  .ld_weights = ld,
                                  .acc = kc_output(c, n * ld_acc, (int)kc_below(c, skews)),
                                  .ld_acc = ld_acc};
    m->out = kc_output(c, d, skews > 1 ? 2 : 0);
    m->merge = (neap_attnres_merge_args){.bank = m->rows, .n_bank = s, .d = d, .eps = 1e-5f};
    m->merge.p = kc_floats(c, d, skews > 1, fill);
}

/* Stage 2 of mix q; acc from stage 1 or formed here. */
static void merge(const neap_kernels *k, const mix *m, int64_t q, bool is_kept, float *out) {
    neap_attnres_merge_args a = m->merge;
    a.out = out;
    a.acc = is_kept ? m->bank.acc + q * m->bank.ld_acc : NULL;
    a.weights = m->bank.weights + q * m->bank.ld_weights;
    a.c = m->vectors[q];
    k->attnres_merge(&a);
}

static void attnres_case(kc *c, int64_t s, int64_t n, int64_t d, kc_fill fill) {
    if (!kc_begin(c, "d %lld s %lld mixes %lld fill %d", (long long)d, (long long)s, (long long)n, (int)fill)) return;
    mix m;
    make(c, &m, s, n, d, fill, 16);
    c->k.attnres_bank(&m.bank);
    float *want = kc_output(c, d, 0), *acc = kc_output(c, d, 0), *weights = kc_output(c, NEAP_ATTNRES_HEAD + s, 0);
    for (int64_t q = 0; q < n; q++) { /* against one mix at a time */
        neap_attnres_args one = m.bank;
        one.c += q;
        one.n_mixes = 1;
        one.weights = weights;
        one.acc = acc;
        c->ref.attnres_bank(&one);
        kc_same(c, "weights", m.bank.weights + q * m.bank.ld_weights, weights, NEAP_ATTNRES_HEAD + s);
        kc_same(c, "acc", m.bank.acc + q * m.bank.ld_acc, acc, d);
        merge(&c->ref, &m, q, true, want);
        merge(&c->k, &m, q, true, m.out);
        kc_same(c, "out", m.out, want, d);
        merge(&c->k, &m, q, false, m.out);
        kc_same(c, "out, sum not kept", m.out, want, d);
        merge(&c->k, &m, q, true, m.bank.acc + q * m.bank.ld_acc);
        kc_same(c, "out in place of acc", m.bank.acc + q * m.bank.ld_acc, want, d);
    }
    float *again = kc_output(c, n * m.bank.ld_weights, 1);
    neap_attnres_args statistics = m.bank;
    statistics.acc = NULL;
    statistics.weights = again;
    c->k.attnres_bank(&statistics);
    for (int64_t q = 0; q < n; q++)
        kc_same(c, "weights alone", again + q * m.bank.ld_weights, m.bank.weights + q * m.bank.ld_weights,
                NEAP_ATTNRES_HEAD + s);
    kc_end(c);
}

static void check_attnres(kc *c) {
    static const int64_t ds[] = {1, 15, 16, 17, 33, 64, 97, 511, 512, 529, 2304};
    static const int64_t ns[] = {1, 2, 3, 4, 5, 7, 24, 32, 33, 70};
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (int64_t s = 1; s <= SNAPSHOTS_MAX; s += s < 9 ? 1 : 5)
            attnres_case(c, s, ns[(i + (size_t)s) % 10], ds[i], s % 4 == 3 ? (kc_fill)(1 + i % 3) : KC_NORMAL);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) attnres_case(c, 1 + (int64_t)i, ns[i], 97, KC_NORMAL);
    attnres_case(c, 8, 24, 7168, KC_NORMAL);
}

static void all_mixes(const kc *c, void *args) {
    mix *m = args;
    neap_attnres_args a = m->bank;
    if (!m->is_kept) a.acc = NULL;
    c->k.attnres_bank(&a);
    for (int64_t q = 0; q < a.n_mixes; q++) merge(&c->k, m, q, m->is_kept, m->out);
}

/* What stage 1 saves: the bank once for every mix. */
static void one_by_one(const kc *c, void *args) {
    mix *m = args;
    for (int64_t q = 0; q < m->bank.n_mixes; q++) {
        neap_attnres_args a = m->bank;
        a.c += q;
        a.n_mixes = 1;
        a.weights += q * a.ld_weights;
        a.acc += q * a.ld_acc;
        c->k.attnres_bank(&a);
        merge(&c->k, m, q, true, m->out);
    }
}

static void bench_attnres(kc *c) {
    static const int64_t snapshots[] = {2, 4, 8};
    for (size_t i = 0; i < 3; i++) {
        kc_begin(c, "bench");
        mix m;
        char label[64];
        int64_t s = snapshots[i];
        double macs = 7168 * 24.0 * (double)(2 * s + 3), bytes = 7168 * 4.0 * (double)(s + 25);
        make(c, &m, s, 24, 7168, KC_NORMAL, 1);
        for (int64_t q = 0; q < 24; q++) { /* scores of the usual size: none so low that its weight is subnormal */
            float *v = kc_copy(c, m.vectors[q], 7168, 0);
            for (int64_t k = 0; k < 7168; k++) v[k] *= 1.0f / 64;
            m.vectors[q] = v;
        }
        for (int form = 0; form < 3; form++) {
            static const char *const names[] = {"one by one", "sums kept", "weights kept"};
            m.is_kept = form == 1;
            snprintf(label, sizeof label, "%lld x 7168, 24 mixes, %s", (long long)s, names[form]);
            c->items = 24;
            kc_bench(c, label, form ? all_mixes : one_by_one, &m, bytes, macs);
        }
    }
}

const kc_family_tests neap_kc_attnres = {check_attnres, bench_attnres};

/* ---- route ---- */

static void one(kc *c, int32_t n, int32_t top, int32_t groups, int32_t kept, int mode, kc_fill fill) {
    if (!kc_begin(c, "n %d top %d groups %d/%d mode %d fill %d", n, top, groups, kept, mode, (int)fill)) return;
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
    c->items = 896;
    kc_bench(c, "16 of 896", time_route, &r, 896 * 8.0, 0);
}

const kc_family_tests neap_kc_route = {check_route, bench_route};
