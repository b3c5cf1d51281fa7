/* exp, sigmoid, tanh, log1p, softplus in F32, for the scalar kernels: the definition of "our own polynomials".
 *
 * The vector versions (x86/vmath_vec.h) do the same operations in the same order, so the
 * bits are equal on every instruction set; change one and you change all three. Errors against a double
 * reference are below 2.4 ulp over the whole range, results below the normal range included (they become
 * subnormal, then 0). NaN comes out as NaN. The coefficients are interpolations at Chebyshev nodes.
 *
 *   exp      x = n ln 2 + r, |r| <= ln2/2;  e^r = 1 + r + r^2 P(r);  times 2^n in two steps (subnormal results)
 *   sigmoid  e = exp(-|x|):  1 / (1 + e)  or  e / (1 + e)
 *   tanh     |x| < 0.625: x + x^3 P(x^2);  else 1 - 2 / (exp(2|x|) + 1);  the sign is put back last
 *   log1p    on [0, 1], f = u or (u - 1) / 2 with ln 2 added:  f - f^2/2 + f^3 P(f)
 *   softplus max(z, 0) + log1p(exp(-|z|))
 * `static inline` only: files with different instruction sets include this. */
#ifndef NEAP_KERNELS_VMATH_H
#define NEAP_KERNELS_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VM_LOG2E 1.4426950216293335f
#define VM_LN2_HI 0.693145751953125f /* few bits: n * VM_LN2_HI is exact */
#define VM_LN2_LO 1.428606765330187e-06f
#define VM_ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
#define VM_ROUND_BITS 0x4b400000
#define VM_EXP_MAX 89.0f   /* above: infinity either way */
#define VM_EXP_MIN -104.0f /* below: 0 either way */
#define VM_EXP_0 0.5f
#define VM_EXP_1 0.16666576266288757f
#define VM_EXP_2 0.041666556149721146f
#define VM_EXP_3 0.008363194763660431f
#define VM_EXP_4 0.0013926203828305006f
#define VM_TANH_SPLIT 0.625f
#define VM_TANH_0 -0.3333333432674408f
#define VM_TANH_1 0.1333330273628235f
#define VM_TANH_2 -0.05395922809839249f
#define VM_TANH_3 0.021768666803836823f
#define VM_TANH_4 -0.00834311917424202f
#define VM_TANH_5 0.002291809068992734f
#define VM_LOG_SPLIT 0.41421357f
#define VM_LOG_0 0.3333333134651184f
#define VM_LOG_1 -0.2499999701976776f
#define VM_LOG_2 0.20000717043876648f
#define VM_LOG_3 -0.16667808592319489f
#define VM_LOG_4 0.14249008893966675f
#define VM_LOG_5 -0.12425486743450165f
#define VM_LOG_6 0.11685719341039658f
#define VM_LOG_7 -0.11481477320194244f
#define VM_LOG_8 0.06973070651292801f

static inline uint32_t vm_bits(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static inline float vm_float(uint32_t u) {
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

static inline float vm_abs(float x) { return vm_float(vm_bits(x) & 0x7fffffff); }

static inline float vm_exp(float x) {
    x = VM_EXP_MAX < x ? VM_EXP_MAX : x; /* this order of operands lets a NaN through, as minps does */
    x = VM_EXP_MIN > x ? VM_EXP_MIN : x;
    float t = fmaf(x, VM_LOG2E, VM_ROUND), n = t - VM_ROUND;
    int32_t i = (int32_t)(vm_bits(t) - VM_ROUND_BITS), half = i >> 1;
    float r = fmaf(n, -VM_LN2_HI, x);
    r = fmaf(n, -VM_LN2_LO, r);
    float p = fmaf(VM_EXP_4, r, VM_EXP_3);
    p = fmaf(p, r, VM_EXP_2);
    p = fmaf(p, r, VM_EXP_1);
    p = fmaf(p, r, VM_EXP_0);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * vm_float((uint32_t)(half + 127) << 23) * vm_float((uint32_t)(i - half + 127) << 23);
}

static inline float vm_sigmoid(float x) {
    float e = vm_exp(-vm_abs(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static inline float vm_tanh(float x) {
    float a = vm_abs(x), z = a * a;
    float p = fmaf(VM_TANH_5, z, VM_TANH_4);
    p = fmaf(p, z, VM_TANH_3);
    p = fmaf(p, z, VM_TANH_2);
    p = fmaf(p, z, VM_TANH_1);
    p = fmaf(p, z, VM_TANH_0);
    float small = fmaf(a * z, p, a);
    float large = 1.0f - 2.0f / (vm_exp(a + a) + 1.0f);
    float y = a < VM_TANH_SPLIT ? small : large;
    return vm_float(vm_bits(y) | (vm_bits(x) & 0x80000000));
}

/* log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1] */
static inline float vm_log_core(float f) {
    float p = fmaf(VM_LOG_8, f, VM_LOG_7);
    p = fmaf(p, f, VM_LOG_6);
    p = fmaf(p, f, VM_LOG_5);
    p = fmaf(p, f, VM_LOG_4);
    p = fmaf(p, f, VM_LOG_3);
    p = fmaf(p, f, VM_LOG_2);
    p = fmaf(p, f, VM_LOG_1);
    p = fmaf(p, f, VM_LOG_0);
    float f2 = f * f;
    return f + fmaf(f2, -0.5f, f2 * f * p);
}

/* u in [0, 1] */
static inline float vm_log1p(float u) {
    float f = u > VM_LOG_SPLIT ? (u - 1.0f) * 0.5f : u;
    float y = vm_log_core(f);
    return u > VM_LOG_SPLIT ? (y + VM_LN2_LO) + VM_LN2_HI : y;
}

static inline float vm_softplus(float z) {
    float y = vm_log1p(vm_exp(-vm_abs(z)));
    return (z > 0.0f ? z : 0.0f) + y;
}

#endif
