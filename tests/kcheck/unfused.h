/* What the fused indexer is compared with: the same work in separate passes through memory, compiled for each
 * instruction set because it shares the inner loop of the kernel. */
#ifndef NEAP_TESTS_UNFUSED_H
#define NEAP_TESTS_UNFUSED_H

#include "kernels/kernels.h"

typedef struct kc_unfused {
    /* dots[row][head][n] of all keys < n = a->end; then scores[row][n] from them */
    void (*dots)(const neap_index_scan_args *a, float *dots);
    void (*weigh)(const neap_index_scan_args *a, const float *dots, float *scores);
    /* the k best of an array; warm: k positions whose scores give the first bound, or NULL */
    void (*select)(int32_t *out, const float *scores, int64_t n, int64_t k, const int32_t *warm, neap_candidates *list);
    /* the same by counting digits, without vectors; keys: scratch, n */
    void (*digits)(int32_t *out, const float *scores, uint32_t *keys, int64_t n, int64_t k);
    float (*sum)(const float *x, int64_t n); /* one pass through memory */
} kc_unfused;

const kc_unfused *neap_kc_unfused_avx2(void);
const kc_unfused *neap_kc_unfused_avx512(void);

#endif
