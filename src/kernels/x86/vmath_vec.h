/* exp, sigmoid, tanh, softplus for vectors: the operations of kernels/vmath.h in the same order, so that the
 * bits are equal. Explanations are there; this file only repeats the steps. */
#ifndef NEAP_KERNELS_X86_VMATH_VEC_H
#define NEAP_KERNELS_X86_VMATH_VEC_H

#include "kernels/vmath.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
V_INLINE vec v_exp(vec x) {
    x = v_min(v_set1(VM_EXP_MAX), x);
    x = v_max(v_set1(VM_EXP_MIN), x);
    vec t = v_fma(x, v_set1(VM_LOG2E), v_set1(VM_ROUND)), n = v_sub(t, v_set1(VM_ROUND));
    vec_int i = vi_sub(v_bits(t), vi_set1(VM_ROUND_BITS)), half = vi_half(i);
    vec r = v_fma(n, v_set1(-VM_LN2_HI), x);
    r = v_fma(n, v_set1(-VM_LN2_LO), r);
    vec p = v_fma(v_set1(VM_EXP_4), r, v_set1(VM_EXP_3));
    p = v_fma(p, r, v_set1(VM_EXP_2));
    p = v_fma(p, r, v_set1(VM_EXP_1));
    p = v_fma(p, r, v_set1(VM_EXP_0));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    vec a = v_from_bits(vi_to_exponent(vi_add(half, vi_set1(127))));
    vec b = v_from_bits(vi_to_exponent(vi_add(vi_sub(i, half), vi_set1(127))));
    return v_mul(v_mul(p, a), b);
}

V_INLINE vec v_sigmoid(vec x) {
    vec e = v_exp(v_neg(v_abs(x))), one = v_set1(1.0f);
    return v_div(v_select(v_less(x, v_zero()), e, one), v_add(one, e));
}

V_INLINE vec v_tanh(vec x) {
    vec a = v_abs(x), z = v_mul(a, a), one = v_set1(1.0f);
    vec p = v_fma(v_set1(VM_TANH_5), z, v_set1(VM_TANH_4));
    p = v_fma(p, z, v_set1(VM_TANH_3));
    p = v_fma(p, z, v_set1(VM_TANH_2));
    p = v_fma(p, z, v_set1(VM_TANH_1));
    p = v_fma(p, z, v_set1(VM_TANH_0));
    vec small = v_fma(v_mul(a, z), p, a);
    vec large = v_sub(one, v_div(v_set1(2.0f), v_add(v_exp(v_add(a, a)), one)));
    return v_or_sign(v_select(v_less(a, v_set1(VM_TANH_SPLIT)), small, large), x);
}

V_INLINE vec v_log1p(vec u) {
    vec_mask is_high = v_less(v_set1(VM_LOG_SPLIT), u);
    vec f = v_select(is_high, v_mul(v_sub(u, v_set1(1.0f)), v_set1(0.5f)), u);
    vec p = v_fma(v_set1(VM_LOG_8), f, v_set1(VM_LOG_7));
    p = v_fma(p, f, v_set1(VM_LOG_6));
    p = v_fma(p, f, v_set1(VM_LOG_5));
    p = v_fma(p, f, v_set1(VM_LOG_4));
    p = v_fma(p, f, v_set1(VM_LOG_3));
    p = v_fma(p, f, v_set1(VM_LOG_2));
    p = v_fma(p, f, v_set1(VM_LOG_1));
    p = v_fma(p, f, v_set1(VM_LOG_0));
    vec f2 = v_mul(f, f);
    vec y = v_add(f, v_fma(f2, v_set1(-0.5f), v_mul(v_mul(f2, f), p)));
    return v_select(is_high, v_add(v_add(y, v_set1(VM_LN2_LO)), v_set1(VM_LN2_HI)), y);
}

V_INLINE vec v_softplus(vec z) {
    vec y = v_log1p(v_exp(v_neg(v_abs(z))));
    return v_add(v_max(z, v_zero()), y);
}
#endif

#endif
