/* Elementwise operations for vectors; see act_scalar.c for the equations. */
#ifndef NEAP_KERNELS_X86_ACT_VEC_H
#define NEAP_KERNELS_X86_ACT_VEC_H

#include "kernels/families.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
static inline void act_add(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += V_WIDTH)
        v_store_n(y + i, v_add(v_load_n(y + i, n - i), v_load_n(x + i, n - i)), n - i);
}

static inline void act_axpy(float *y, float a, const float *x, int64_t n) {
    vec va = v_set1(a);
    for (int64_t i = 0; i < n; i += V_WIDTH)
        v_store_n(y + i, v_fma(va, v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

static inline void act_sigmoid_mul(float *y, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i += V_WIDTH)
        v_store_n(y + i, v_mul(v_load_n(y + i, n - i), v_sigmoid(v_load_n(gate + i, n - i))), n - i);
}

static inline void act_silu(float *y, const float *gate, const float *up, int64_t n) {
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        vec g = v_load_n(gate + i, n - i), u = v_load_n(up + i, n - i);
        v_store_n(y + i, v_mul(v_mul(g, v_sigmoid(g)), u), n - i);
    }
}

static inline void act_situ(float *y, const float *gate, const float *up, int64_t n, float beta, float lb) {
    vec b = v_set1(beta), l = v_set1(lb);
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        vec g = v_load_n(gate + i, n - i), u = v_load_n(up + i, n - i);
        if (lb != 0.0f) u = v_mul(l, v_tanh(v_div(u, l)));
        v_store_n(y + i, v_mul(v_mul(v_mul(b, v_tanh(v_div(g, b))), v_sigmoid(g)), u), n - i);
    }
}

static inline void act_glu(float *y, const float *gate, const float *up, int64_t n, const neap_act *act) {
    if (act->kind == NEAP_ACT_SITU)
        act_situ(y, gate, up, n, act->beta, act->linear_beta);
    else
        act_silu(y, gate, up, n);
}

static inline void act_fill(neap_kernels *k) {
    k->add = act_add;
    k->axpy = act_axpy;
    k->sigmoid_mul = act_sigmoid_mul;
    k->glu = act_glu;
}
#endif

#endif
