/* Greedy choice for vectors: one pass for the maximum and for finiteness, then the first place of the maximum. */
#ifndef NEAP_KERNELS_X86_SAMPLE_VEC_H
#define NEAP_KERNELS_X86_SAMPLE_VEC_H

#include <float.h>

#include "kernels/families.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
static inline bool sample_argmax(const float *x, int64_t n, int64_t *index) {
    vec largest = v_set1(-FLT_MAX), limit = v_set1(FLT_MAX);
    uint32_t broken = 0;
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        vec v = v_load_n(x + i, n - i);
        broken |= v_mask_bits(v_not_less_equal(v_abs(v), limit)); /* true for NaN too */
        if (n - i < V_WIDTH) break;                               /* padding zeros must not win */
        largest = v_max(v, largest);
    }
    if (broken) return false;
    float lanes[V_WIDTH], best = -FLT_MAX;
    v_store(lanes, largest);
    for (int l = 0; l < V_WIDTH; l++) best = lanes[l] > best ? lanes[l] : best;
    int64_t whole = n / V_WIDTH * V_WIDTH;
    for (int64_t i = whole; i < n; i++) best = x[i] > best ? x[i] : best;
    for (int64_t i = 0; i < whole; i += V_WIDTH) {
        uint32_t here = v_mask_bits(v_equal(v_load(x + i), v_set1(best)));
        if (here) {
            *index = i + __builtin_ctz(here);
            return true;
        }
    }
    *index = whole;
    while (x[*index] != best) ++*index;
    return true;
}

static inline void sample_fill(neap_kernels *k) { k->argmax = sample_argmax; }
#endif

#endif
