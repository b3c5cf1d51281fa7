/* One row of queries on the paged kernels, all that it sees in one range. For tests that ask where rows come from;
 * tiles, groups of heads and splits have tests of their own (test_attend.c, test_index.c, kcheck). */
#ifndef NEAP_TESTS_PAGED_ROW_H
#define NEAP_TESTS_PAGED_ROW_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* q: [n_heads][r + dr]; list: n ascending positions, NULL: 0 .. n - 1. out: [n_heads][r]; stats: [2][n_heads],
 * maxima, then sums. */
static inline void paged_attend(const neap_kernels *k, neap_latent_format f, neap_pages cache, const float *q,
                                int64_t n_heads, const int32_t *list, int32_t n, float scale, float *out,
                                float *stats) {
    float *parts = calloc((size_t)(n_heads * f.r), sizeof *parts);
    float *scratch = calloc((size_t)neap_attend_scratch(&f), sizeof *scratch);
    assert(parts && scratch);
    neap_attend_args a = {.format = f,
                          .cache = cache,
                          .q = q,
                          .ld_row = n_heads * (f.r + f.dr),
                          .ld_head = f.r + f.dr,
                          .n_rows = 1,
                          .n_heads = n_heads,
                          .lists = list,
                          .ld_list = n,
                          .n_list = &n,
                          .end = list ? (int64_t)list[n - 1] + 1 : n,
                          .scale = scale,
                          .out = parts,
                          .ld_out_row = n_heads * f.r,
                          .ld_out_head = f.r,
                          .max = stats,
                          .sum = stats + n_heads,
                          .ld_stat = n_heads,
                          .scratch = scratch};
    k->attend(&a);
    for (int64_t h = 0; h < n_heads; h++) {
        neap_attend_merge_args m = {.parts = parts + h * f.r,
                                    .max = stats + h,
                                    .sum = stats + n_heads + h,
                                    .ld_part = n_heads * f.r,
                                    .ld_stat = n_heads,
                                    .n_parts = 1,
                                    .r = f.r,
                                    .out = out + h * f.r};
        k->attend_merge(&m);
    }
    free(parts);
    free(scratch);
}

/* The `top` best of keys 0 .. n - 1, top <= n: their positions, ascending, and (NULL: not wanted) their order keys;
 * with top = n these are all scores. */
static inline void paged_select(const neap_kernels *k, neap_index_format f, neap_pages keys, const float *q,
                                const float *w, int64_t n_heads, int32_t n, int64_t top, int32_t *out,
                                uint32_t *order) {
    size_t capacity = (size_t)neap_candidates_capacity(top);
    neap_candidates list = {.order = calloc(capacity, 4), .positions = calloc(capacity, 4)};
    float *scratch = calloc((size_t)neap_index_scratch(&f, n_heads), sizeof *scratch);
    assert(list.order && list.positions && scratch);
    neap_index_scan_args a = {.format = f,
                              .keys = keys,
                              .q = q,
                              .w = w,
                              .ld_q = n_heads * f.d,
                              .ld_w = n_heads,
                              .n_rows = 1,
                              .n_heads = n_heads,
                              .k = top,
                              .n = &n,
                              .end = n,
                              .out = &list,
                              .scratch = scratch};
    k->index_scan(&a);
    k->index_merge(out, &list, 1, top);
    if (order) memcpy(order, list.order, (size_t)top * sizeof *order);
    free(list.order);
    free(list.positions);
    free(scratch);
}

#endif
