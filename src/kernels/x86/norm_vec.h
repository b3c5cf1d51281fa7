/* RMSNorm and LayerNorm for vectors; see norm_scalar.c for the equations. */
#ifndef NEAP_KERNELS_X86_NORM_VEC_H
#define NEAP_KERNELS_X86_NORM_VEC_H

#include <math.h>

#include "kernels/families.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
static inline void norm_rms(float *y, const float *x, const float *w, int64_t n, float eps) {
    vec r = v_set1(1.0f / sqrtf(v_dot16(x, x, n) / (float)n + eps));
    for (int64_t i = 0; i < n; i += V_WIDTH)
        v_store_n(y + i, v_mul(v_mul(v_load_n(x + i, n - i), r), v_load_n(w + i, n - i)), n - i);
}

static inline void norm_layer(float *y, const float *x, const float *w, const float *b, int64_t n, float eps) {
    vec mu = v_set1(v_sum16(x, n) / (float)n);
    acc16 acc = acc16_zero();
    for (int64_t i = 0; i < n; i += 16) V_UNROLL for (int j = 0; j < ACC_VECS; j++) {
            int64_t at = i + j * V_WIDTH, left = n - at > 0 ? n - at : 0;
            vec d = v_sub(v_load_n(x + at, left), mu);
            acc.v[j] = v_fma_n(d, d, acc.v[j], left);
        }
    vec r = v_set1(1.0f / sqrtf(acc16_tree(&acc) / (float)n + eps));
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        vec v = v_mul(v_sub(v_load_n(x + i, n - i), mu), r), scale = v_load_n(w + i, n - i);
        v_store_n(y + i, b ? v_fma(v, scale, v_load_n(b + i, n - i)) : v_mul(v, scale), n - i);
    }
}

static inline void norm_fill(neap_kernels *k) {
    k->rmsnorm = norm_rms;
    k->layernorm = norm_layer;
}
#endif

#endif
