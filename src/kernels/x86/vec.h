/* One set of names over AVX2 and AVX-512, chosen by the flags that the including file is compiled with.
 *
 * Kernels whose structure does not depend on the width are written once against these names (<family>_vec.h)
 * and compiled twice (<family>_avx2.c, <family>_avx512.c). Everything is static inline: two instruction sets
 * must never share a symbol. Operand order of min and max is that of the scalar code: min(a, b) is
 * a < b ? a : b, so a NaN in b comes through.
 *
 * acc16 is the 16-lane accumulator of dot16.h: one AVX-512 or two AVX2 registers. */
#ifndef NEAP_KERNELS_X86_VEC_H
#define NEAP_KERNELS_X86_VEC_H

#include <immintrin.h>
#include <stdint.h>

#if defined(__clang__)
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif
#define V_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512DQ__)
/* ---- AVX-512 ---- */
#define V_WIDTH 16
typedef __m512 vec;
typedef __m512i vec_int;
typedef __mmask16 vec_mask;

V_INLINE vec v_set1(float x) { return _mm512_set1_ps(x); }
V_INLINE vec v_zero(void) { return _mm512_setzero_ps(); }
V_INLINE vec v_load(const float *p) { return _mm512_loadu_ps(p); }
V_INLINE void v_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
V_INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
V_INLINE vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
V_INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
V_INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
V_INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
V_INLINE vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }
V_INLINE vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
V_INLINE vec v_abs(vec a) { return _mm512_and_ps(a, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff))); }
V_INLINE vec v_neg(vec a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
/* a with the sign of b put on top of its own */
V_INLINE vec v_or_sign(vec a, vec b) { return _mm512_or_ps(a, _mm512_and_ps(b, _mm512_set1_ps(-0.0f))); }
V_INLINE vec_mask v_less(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
V_INLINE vec_mask v_equal(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
V_INLINE vec_mask v_not_less_equal(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
V_INLINE vec v_select(vec_mask m, vec if_true, vec if_false) { return _mm512_mask_blend_ps(m, if_false, if_true); }
V_INLINE uint32_t v_mask_bits(vec_mask m) { return m; }
V_INLINE vec_int v_bits(vec a) { return _mm512_castps_si512(a); }
V_INLINE vec v_from_bits(vec_int a) { return _mm512_castsi512_ps(a); }
V_INLINE vec_int vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
V_INLINE vec_int vi_add(vec_int a, vec_int b) { return _mm512_add_epi32(a, b); }
V_INLINE vec_int vi_sub(vec_int a, vec_int b) { return _mm512_sub_epi32(a, b); }
V_INLINE vec_int vi_half(vec_int a) { return _mm512_srai_epi32(a, 1); }
V_INLINE vec_int vi_to_exponent(vec_int a) { return _mm512_slli_epi32(a, 23); }

V_INLINE __mmask16 v_first(int64_t n) { return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1); }
/* The first n lanes (all if n >= V_WIDTH); the others read as 0 and are not touched in memory. */
V_INLINE vec v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(v_first(n), p); }
V_INLINE void v_store_n(float *p, vec v, int64_t n) { _mm512_mask_storeu_ps(p, v_first(n), v); }
V_INLINE vec v_fma_n(vec a, vec b, vec c, int64_t n) { return _mm512_mask3_fmadd_ps(a, b, c, v_first(n)); }
V_INLINE __m256 v_fold8(const vec *v) { /* lanes l and l + 8 */
    return _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
}

#elif defined(__AVX2__) && defined(__FMA__)
/* ---- AVX2 ---- */
#define V_WIDTH 8
typedef __m256 vec;
typedef __m256i vec_int;
typedef __m256 vec_mask;

V_INLINE vec v_set1(float x) { return _mm256_set1_ps(x); }
V_INLINE vec v_zero(void) { return _mm256_setzero_ps(); }
V_INLINE vec v_load(const float *p) { return _mm256_loadu_ps(p); }
V_INLINE void v_store(float *p, vec v) { _mm256_storeu_ps(p, v); }
V_INLINE vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
V_INLINE vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
V_INLINE vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
V_INLINE vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
V_INLINE vec v_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
V_INLINE vec v_min(vec a, vec b) { return _mm256_min_ps(a, b); }
V_INLINE vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); }
V_INLINE vec v_abs(vec a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
V_INLINE vec v_neg(vec a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
V_INLINE vec v_or_sign(vec a, vec b) { return _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0f))); }
V_INLINE vec_mask v_less(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
V_INLINE vec_mask v_equal(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
V_INLINE vec_mask v_not_less_equal(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
V_INLINE vec v_select(vec_mask m, vec if_true, vec if_false) { return _mm256_blendv_ps(if_false, if_true, m); }
V_INLINE uint32_t v_mask_bits(vec_mask m) { return (uint32_t)_mm256_movemask_ps(m); }
V_INLINE vec_int v_bits(vec a) { return _mm256_castps_si256(a); }
V_INLINE vec v_from_bits(vec_int a) { return _mm256_castsi256_ps(a); }
V_INLINE vec_int vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
V_INLINE vec_int vi_add(vec_int a, vec_int b) { return _mm256_add_epi32(a, b); }
V_INLINE vec_int vi_sub(vec_int a, vec_int b) { return _mm256_sub_epi32(a, b); }
V_INLINE vec_int vi_half(vec_int a) { return _mm256_srai_epi32(a, 1); }
V_INLINE vec_int vi_to_exponent(vec_int a) { return _mm256_slli_epi32(a, 23); }

V_INLINE __m256i v_first(int64_t n) { /* n < 8 */
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V_INLINE vec v_load_n(const float *p, int64_t n) {
    if (n >= V_WIDTH) return v_load(p);
    return n > 0 ? _mm256_maskload_ps(p, v_first(n)) : v_zero();
}
V_INLINE void v_store_n(float *p, vec v, int64_t n) {
    if (n >= V_WIDTH)
        v_store(p, v);
    else if (n > 0)
        _mm256_maskstore_ps(p, v_first(n), v);
}
V_INLINE vec v_fma_n(vec a, vec b, vec c, int64_t n) {
    if (n >= V_WIDTH) return v_fma(a, b, c);
    return n > 0 ? _mm256_blendv_ps(c, v_fma(a, b, c), _mm256_castsi256_ps(v_first(n))) : c;
}
V_INLINE __m256 v_fold8(const vec *v) { return _mm256_add_ps(v[0], v[1]); }
#endif

#if defined(V_WIDTH)
/* ---- the 16-lane sums ---- */
enum { ACC_VECS = 16 / V_WIDTH };
typedef struct acc16 {
    vec v[ACC_VECS];
} acc16;

V_INLINE acc16 acc16_zero(void) {
    acc16 a;
    V_UNROLL for (int i = 0; i < ACC_VECS; i++) a.v[i] = v_zero();
    return a;
}
/* Chains 16 products onto the lanes. */
V_INLINE void acc16_fma(acc16 *acc, const float *a, const float *b) {
    V_UNROLL for (int i = 0; i < ACC_VECS; i++) acc->v[i] =
        v_fma(v_load(a + i * V_WIDTH), v_load(b + i * V_WIDTH), acc->v[i]);
}
/* The same for the last n < 16 elements: missing ones leave their lane alone. */
V_INLINE void acc16_fma_n(acc16 *acc, const float *a, const float *b, int64_t n) {
    V_UNROLL for (int i = 0; i < ACC_VECS; i++) {
        int64_t left = n - i * V_WIDTH > 0 ? n - i * V_WIDTH : 0;
        acc->v[i] = v_fma_n(v_load_n(a + i * V_WIDTH, left), v_load_n(b + i * V_WIDTH, left), acc->v[i], left);
    }
}
V_INLINE float acc16_tree(const acc16 *acc) {
    __m256 e = v_fold8(acc->v);
    __m128 f = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    f = _mm_add_ps(f, _mm_movehl_ps(f, f));
    return _mm_cvtss_f32(_mm_add_ss(f, _mm_movehdup_ps(f)));
}
V_INLINE float v_dot16(const float *a, const float *b, int64_t n) {
    acc16 acc = acc16_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) acc16_fma(&acc, a + i, b + i);
    if (i < n) acc16_fma_n(&acc, a + i, b + i, n - i);
    return acc16_tree(&acc);
}
V_INLINE float v_sum16(const float *a, int64_t n) {
    acc16 acc = acc16_zero();
    for (int64_t i = 0; i < n; i += 16) V_UNROLL for (int j = 0; j < ACC_VECS; j++) {
            int64_t left = n - i - j * V_WIDTH > 0 ? n - i - j * V_WIDTH : 0;
            acc.v[j] = v_fma_n(v_load_n(a + i + j * V_WIDTH, left), v_set1(1.0f), acc.v[j], left);
        }
    return acc16_tree(&acc);
}

/* V_WIDTH trees at once by shuffling: lane i of the result is the tree of acc[i]. */
V_INLINE vec acc16_trees(const acc16 acc[V_WIDTH]) {
#if V_WIDTH == 16
    vec f[16], a[8], b[4], c[2];
    V_UNROLL for (int i = 0; i < 16; i++) f[i % 4 * 4 + i / 4] = acc[i].v[0]; /* lane 4l + m comes from f[l + 4m] */
    V_UNROLL for (int i = 0; i < 8; i++) a[i] =
        v_add(_mm512_shuffle_f32x4(f[2 * i], f[2 * i + 1], 0x44), _mm512_shuffle_f32x4(f[2 * i], f[2 * i + 1], 0xee));
    V_UNROLL for (int i = 0; i < 4; i++) b[i] =
        v_add(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88), _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
    V_UNROLL for (int i = 0; i < 2; i++) c[i] =
        v_add(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44), _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    return v_add(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
#else
    vec f[8], a[4], b[2];
    V_UNROLL for (int i = 0; i < 8; i++) f[i % 4 * 2 + i / 4] =
        v_fold8(acc[i].v); /* lane 4l + m comes from f[l + 2m] */
    V_UNROLL for (int i = 0; i < 4; i++) a[i] = v_add(_mm256_permute2f128_ps(f[2 * i], f[2 * i + 1], 0x20),
                                                      _mm256_permute2f128_ps(f[2 * i], f[2 * i + 1], 0x31));
    V_UNROLL for (int i = 0; i < 2; i++) b[i] =
        v_add(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44), _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    return v_add(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
#endif
}
#endif

#endif
