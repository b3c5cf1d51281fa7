/* Attention residuals for vectors; see attnres_scalar.c for the equations. */
#ifndef NEAP_KERNELS_X86_ATTNRES_VEC_H
#define NEAP_KERNELS_X86_ATTNRES_VEC_H

#include <assert.h>
#include <math.h>

#include "kernels/families.h"
#include "kernels/x86/vec.h"
#include "kernels/vmath.h"

#if defined(V_WIDTH)
/* Both sums in one pass over x. */
static inline float attnres_score(const float *x, const float *c, int64_t d, float eps) {
    acc16 dot = acc16_zero(), square = acc16_zero();
    int64_t i = 0;
    for (; i + 16 <= d; i += 16) {
        acc16_fma(&dot, x + i, c + i);
        acc16_fma(&square, x + i, x + i);
    }
    if (i < d) {
        acc16_fma_n(&dot, x + i, c + i, d - i);
        acc16_fma_n(&square, x + i, x + i, d - i);
    }
    return acc16_tree(&dot) * (1.0f / sqrtf(acc16_tree(&square) / (float)d + eps));
}

static inline void attnres_bank(float *acc, float *max, float *den, const float *const *bank, int64_t s, const float *c,
                                int64_t d, float eps) {
    float e[NEAP_ATTNRES_MAX], m = -INFINITY, sum = 0;
    assert(s >= 1 && s <= NEAP_ATTNRES_MAX);
    for (int64_t i = 0; i < s; i++) {
        e[i] = attnres_score(bank[i], c, d, eps);
        m = e[i] > m ? e[i] : m;
    }
    for (int64_t i = 0; i < s; i++) {
        e[i] = vm_exp(e[i] - m);
        sum += e[i];
    }
    for (int64_t j = 0; j < d; j += 4 * V_WIDTH) { /* four chains hide the latency */
        vec v[4];
        V_UNROLL for (int l = 0; l < 4; l++) v[l] = v_zero();
        for (int64_t i = 0; i < s; i++) {
            vec w = v_set1(e[i]);
            V_UNROLL for (int l = 0; l < 4; l++) {
                int64_t at = j + l * V_WIDTH;
                if (at < d) v[l] = v_fma(w, v_load_n(bank[i] + at, d - at), v[l]);
            }
        }
        V_UNROLL for (int l = 0; l < 4; l++) if (j + l * V_WIDTH < d)
            v_store_n(acc + j + l * V_WIDTH, v[l], d - j - l * V_WIDTH);
    }
    *max = m;
    *den = sum;
}

static inline void attnres_merge(float *out, const float *acc, float max, float den, const float *p, const float *c,
                                 int64_t d, float eps) {
    float l = attnres_score(p, c, d, eps), m = l > max ? l : max;
    float a = vm_exp(max - m), b = vm_exp(l - m), inverse = 1.0f / fmaf(den, a, b);
    vec va = v_set1(a), vb = v_set1(b), vi = v_set1(inverse);
    for (int64_t j = 0; j < d; j += V_WIDTH) {
        vec x = v_fma(v_load_n(p + j, d - j), vb, v_mul(v_load_n(acc + j, d - j), va));
        v_store_n(out + j, v_mul(x, vi), d - j);
    }
}

static inline void attnres_fill(neap_kernels *k) {
    k->attnres_bank = attnres_bank;
    k->attnres_merge = attnres_merge;
}
#endif

#endif
