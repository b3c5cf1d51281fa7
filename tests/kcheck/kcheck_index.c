/* The indexer: positions and scores must be equal bit by bit; few distinct values force ties. The selection is
 * also compared with plain sorting of the scores. */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct scored {
    float score;
    int32_t position;
} scored;

/* Better first; the order that kernels.h states. */
static int by_rank(const void *pa, const void *pb) {
    const scored *a = pa, *b = pb;
    if (isnan(a->score) != isnan(b->score)) return isnan(a->score) ? 1 : -1;
    if (a->score > b->score) return -1;
    if (a->score < b->score) return 1;
    return a->position - b->position;
}
static int by_position(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void one(kc *c, int64_t heads, int64_t d, int64_t n, int64_t k, kc_fill fill, bool has_ties) {
    kc_begin(c, "heads %lld d %lld n %lld k %lld fill %d%s", (long long)heads, (long long)d, (long long)n, (long long)k,
             (int)fill, has_ties ? " ties" : "");
    float *q = kc_floats(c, heads * d, (int)kc_below(c, 16), fill), *w = kc_floats(c, heads, 1, fill);
    neap_paged keys = kc_paged(c, n, d + kc_below(c, 3), 1 << kc_below(c, 7), fill);
    if (has_ties) {
        for (int64_t i = 0; i < heads * d; i++) q[i] = (float)kc_below(c, 3) - 1;
        for (int64_t i = 0; i < heads; i++) w[i] = (float)kc_below(c, 3) - 1;
        for (int64_t i = 0; i < n; i++) {
            float *row = (float *)(uintptr_t)neap_paged_row(&keys, i);
            for (int64_t j = 0; j < d; j++) row[j] = (float)kc_below(c, 3) - 1;
        }
    }
    int64_t n_out = n < k ? n : k;
    int32_t *want = kc_bytes(c, n_out * 4), *got = kc_bytes(c, n_out * 4), *scratch = kc_bytes(c, n * 4);
    float *want_scores = kc_output(c, n, 0), *got_scores = kc_output(c, n, 1);
    neap_index_args a = {.q = q, .w = w, .n_heads = heads, .d = d, .keys = keys, .n = n, .k = k, .scratch = scratch};
    a.out = want, a.scores = want_scores;
    c->ref.index(&a);
    a.out = got, a.scores = got_scores;
    c->k.index(&a);
    kc_same_bytes(c, "positions", got, want, n_out * 4);
    if (n > k) {
        kc_same(c, "scores", got_scores, want_scores, n);
        scored *all = kc_bytes(c, n * (int64_t)sizeof *all);
        for (int64_t i = 0; i < n; i++) all[i] = (scored){got_scores[i], (int32_t)i};
        qsort(all, (size_t)n, sizeof *all, by_rank);
        for (int64_t i = 0; i < k; i++) want[i] = all[i].position;
        qsort(want, (size_t)k, sizeof *want, by_position);
        kc_same_bytes(c, "positions against sorting", got, want, k * 4);
    }
    kc_end(c);
}

static void check(kc *c) {
    static const int64_t ds[] = {1, 8, 15, 16, 17, 32, 48, 64, 100, 128}, heads[] = {1, 2, 3, 4, 5, 32};
    static const int64_t ns[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 200, 333};
    int count = 0;
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++, count++) {
            int64_t n = ns[j], k = count % 4 == 0 ? n : count % 4 == 1 ? 1 : 1 + n / (count % 4);
            one(c, heads[count % 6], ds[i], n, k, count % 9 == 8 ? (kc_fill)(1 + count % 3) : KC_NORMAL,
                count % 5 == 2);
        }
    one(c, 64, 128, 500, 256, KC_NORMAL, false);
    one(c, 2, 16, 20000, 2048, KC_NORMAL, true);
}

static void timed(const kc *c, void *args) { c->k.index(args); }

static void bench(kc *c) {
    static const int64_t sizes[][2] = {{64, 4096}, {32, 16384}};
    for (int i = 0; i < 2; i++) {
        int64_t heads = sizes[i][0], n = strcmp(c->isa, "scalar") == 0 ? 4096 : sizes[i][1];
        char label[64];
        snprintf(label, sizeof label, "%lld heads x 128, top 2048 of %lld", (long long)heads, (long long)sizes[i][1]);
        kc_begin(c, "%s", label);
        float *q = kc_floats(c, heads * 128, 0, KC_NORMAL), *w = kc_floats(c, heads, 0, KC_NORMAL);
        neap_index_args a = {.q = q,
                             .w = w,
                             .n_heads = heads,
                             .d = 128,
                             .keys = kc_paged(c, n, 128, 64, KC_NORMAL),
                             .n = n,
                             .k = 2048,
                             .out = kc_bytes(c, 2048 * 4),
                             .scores = kc_output(c, n, 0),
                             .scratch = kc_bytes(c, n * 4)};
        kc_bench(c, label, timed, &a, (double)n * 512, (double)n * (double)heads * 128);
    }
}

const kc_family_tests neap_kc_index = {check, bench};
