/* What a KDA head computes outside its state, for vectors: short convolution + SiLU, L2 norm, decay, gated norm.
 *
 * The bits are those of kda_scalar.c. exp and its relatives are long chains of dependent operations, and one chain
 * fills the scheduler of a core before its end, so KDA_GROUP vectors go through the steps side by side (the steps
 * are those of vmath_vec.h, to the operation). Channels past the last full group go one vector at a time.
 * Filters and windows are turned to [taps][d] first: a lane is a channel. */
#ifndef NEAP_KERNELS_X86_KDA_GATES_VEC_H
#define NEAP_KERNELS_X86_KDA_GATES_VEC_H

#include <math.h>
#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
#ifndef KDA_GROUP
#define KDA_GROUP (V_WIDTH == 16 ? 4 : 2)
#endif
#define KDA_EACH(j) V_UNROLL for (int j = 0; j < KDA_GROUP; j++)
enum { KDA_TAPS_MAX = 8, KDA_GROUP_FLOATS = KDA_GROUP * V_WIDTH };

#if V_WIDTH == 16
V_INLINE vec_mask kda_both(vec_mask a, vec_mask b) { return a & b; }
V_INLINE vec kda_minus_abs(vec x) { return _mm512_or_ps(x, v_set1(-0.0f)); }
/* x < 0 ? e : 1 */
V_INLINE vec kda_upper(vec x, vec e) { return v_select(v_less(x, v_zero()), e, v_set1(1.0f)); }
#else
V_INLINE vec_mask kda_both(vec_mask a, vec_mask b) { return _mm256_and_ps(a, b); }
V_INLINE vec kda_minus_abs(vec x) { return _mm256_or_ps(x, v_set1(-0.0f)); }
V_INLINE vec kda_upper(vec x, vec e) { /* e is at most 1; a blend by sign bits costs three operations */
    return v_max(_mm256_andnot_ps(v_less(x, v_zero()), v_set1(1.0f)), e);
}
#endif

/* p[j] * 2^n[j], rounded once; t is n + VM_ROUND; is_small: |n| < 125 in all lanes. */
V_INLINE void kda_scale_up(vec p[KDA_GROUP], const vec n[KDA_GROUP], const vec t[KDA_GROUP], vec_mask is_small) {
#if V_WIDTH == 16
    (void)t, (void)is_small;
    KDA_EACH(j) p[j] = _mm512_scalef_ps(p[j], n[j]);
#else
    (void)n;
    if (v_mask_bits(is_small) == 0xff) { /* normal results: n is added to the exponent */
        KDA_EACH(j) p[j] = v_from_bits(vi_add(v_bits(p[j]), vi_to_exponent(v_bits(t[j]))));
        return;
    }
    KDA_EACH(j) {
        vec_int i = vi_sub(v_bits(t[j]), vi_set1(VM_ROUND_BITS)), half = vi_half(i);
        vec a = v_from_bits(vi_to_exponent(vi_add(half, vi_set1(127))));
        vec b = v_from_bits(vi_to_exponent(vi_add(vi_sub(i, half), vi_set1(127))));
        p[j] = v_mul(v_mul(p[j], a), b);
    }
#endif
}

/* x = exp(x) */
V_INLINE void kda_exp(vec x[KDA_GROUP], bool is_negative) {
    vec t[KDA_GROUP], n[KDA_GROUP], p[KDA_GROUP];
    vec_mask is_small = v_less(v_set1(-86.0f), x[0]);
    KDA_EACH(j) if (j) is_small = kda_both(is_small, v_less(v_set1(-86.0f), x[j]));
    if (!is_negative) {
        KDA_EACH(j) is_small = kda_both(is_small, v_less(x[j], v_set1(86.0f)));
        KDA_EACH(j) x[j] = v_min(v_set1(VM_EXP_MAX), x[j]);
    }
    KDA_EACH(j) x[j] = v_max(v_set1(VM_EXP_MIN), x[j]);
    KDA_EACH(j) t[j] = v_fma(x[j], v_set1(VM_LOG2E), v_set1(VM_ROUND));
    KDA_EACH(j) n[j] = v_sub(t[j], v_set1(VM_ROUND));
    KDA_EACH(j) x[j] = v_fma(n[j], v_set1(-VM_LN2_HI), x[j]);
    KDA_EACH(j) x[j] = v_fma(n[j], v_set1(-VM_LN2_LO), x[j]);
    KDA_EACH(j) p[j] = v_fma(v_set1(VM_EXP_4), x[j], v_set1(VM_EXP_3));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_2));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_1));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_0));
    KDA_EACH(j) p[j] = v_add(v_fma(p[j], v_mul(x[j], x[j]), x[j]), v_set1(1.0f));
    kda_scale_up(p, n, t, is_small);
    KDA_EACH(j) x[j] = p[j];
}

/* y = sigmoid(x) */
V_INLINE void kda_sigmoid(vec y[KDA_GROUP], const vec x[KDA_GROUP]) {
    vec e[KDA_GROUP], one = v_set1(1.0f);
    KDA_EACH(j) e[j] = kda_minus_abs(x[j]);
    kda_exp(e, true);
    KDA_EACH(j) y[j] = v_div(kda_upper(x[j], e[j]), v_add(one, e[j]));
}

/* z = softplus(z) */
V_INLINE void kda_softplus(vec z[KDA_GROUP]) {
    vec u[KDA_GROUP], f[KDA_GROUP], p[KDA_GROUP], f2[KDA_GROUP];
    vec_mask is_high[KDA_GROUP];
    KDA_EACH(j) u[j] = kda_minus_abs(z[j]);
    kda_exp(u, true);
    KDA_EACH(j) is_high[j] = v_less(v_set1(VM_LOG_SPLIT), u[j]);
    KDA_EACH(j) f[j] = v_select(is_high[j], v_mul(v_sub(u[j], v_set1(1.0f)), v_set1(0.5f)), u[j]);
    KDA_EACH(j) p[j] = v_fma(v_set1(VM_LOG_8), f[j], v_set1(VM_LOG_7));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_6));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_5));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_4));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_3));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_2));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_1));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_0));
    KDA_EACH(j) f2[j] = v_mul(f[j], f[j]);
    KDA_EACH(j) p[j] = v_mul(v_mul(f2[j], f[j]), p[j]);
    KDA_EACH(j) u[j] = v_add(f[j], v_fma(f2[j], v_set1(-0.5f), p[j]));
    KDA_EACH(j) f[j] = v_add(v_add(u[j], v_set1(VM_LN2_LO)), v_set1(VM_LN2_HI));
    KDA_EACH(j) u[j] = v_select(is_high[j], f[j], u[j]);
    KDA_EACH(j) z[j] = v_add(v_max(z[j], v_zero()), u[j]);
}

/* ---- filters and windows by tap ---- */

#if V_WIDTH == 16
V_INLINE vec kda_permute(vec x, vec_int at) { return _mm512_permutexvar_ps(at, x); }
V_INLINE vec_int kda_lanes(int factor, int offset) { /* factor * (lane + offset) */
    vec_int lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(vi_set1(factor), vi_add(lane, vi_set1(offset)));
}
/* lanes 0, 3, 6 .. of a, 1, 4, 7 .. of b, 2, 5, 8 .. of c */
V_INLINE vec kda_thirds(vec a, vec b, vec c) {
    return _mm512_mask_blend_ps(0x4924, _mm512_mask_blend_ps(0x2492, a, b), c);
}
enum { KDA_THIRD = 11 /* 1/3 mod 16 */, KDA_TURN = 2 };
/* taps of V_WIDTH channels from [channel][4] */
V_INLINE void kda_quarters(vec y[4], const float *p) {
    vec_int even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    vec_int odd = vi_add(even, vi_set1(2));
    vec a = v_load(p), b = v_load(p + 16), c = v_load(p + 32), d = v_load(p + 48);
    vec e = _mm512_permutex2var_ps(a, even, b), f = _mm512_permutex2var_ps(c, even, d);
    vec g = _mm512_permutex2var_ps(a, odd, b), h = _mm512_permutex2var_ps(c, odd, d);
    y[0] = _mm512_shuffle_f32x4(e, f, 0x44), y[1] = _mm512_shuffle_f32x4(e, f, 0xee);
    y[2] = _mm512_shuffle_f32x4(g, h, 0x44), y[3] = _mm512_shuffle_f32x4(g, h, 0xee);
}
#else
V_INLINE vec kda_permute(vec x, vec_int at) { return _mm256_permutevar8x32_ps(x, at); }
V_INLINE vec_int kda_lanes(int factor, int offset) {
    vec_int lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_mullo_epi32(vi_set1(factor), vi_add(lane, vi_set1(offset)));
}
V_INLINE vec kda_thirds(vec a, vec b, vec c) { return _mm256_blend_ps(_mm256_blend_ps(a, b, 0x92), c, 0x24); }
enum { KDA_THIRD = 3 /* 1/3 mod 8 */, KDA_TURN = 1 };
V_INLINE void kda_quarters(vec y[4], const float *p) {
    vec x[4];
    V_UNROLL for (int r = 0; r < 4; r++) /* channels r and r + 4 */
        x[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4 * r)), _mm_loadu_ps(p + 16 + 4 * r), 1);
    vec a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
    vec c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
    y[0] = _mm256_shuffle_ps(a, c, 0x44), y[1] = _mm256_shuffle_ps(a, c, 0xee);
    y[2] = _mm256_shuffle_ps(b, d, 0x44), y[3] = _mm256_shuffle_ps(b, d, 0xee);
}
#endif

/* dst [cols][rows] = src [rows][cols]; cols 3 and 4 are the usual window and filter */
static inline void kda_by_tap(float *dst, const float *src, int64_t rows, int64_t cols) {
    int64_t r = 0;
    if (cols == 4)
        for (; r + V_WIDTH <= rows; r += V_WIDTH) {
            vec y[4];
            kda_quarters(y, src + 4 * r);
            V_UNROLL for (int k = 0; k < 4; k++) v_store(dst + k * rows + r, y[k]);
        }
    if (cols == 3)
        for (; r + V_WIDTH <= rows; r += V_WIDTH) {
            vec x[3];
            V_UNROLL for (int m = 0; m < 3; m++) x[m] = v_load(src + 3 * r + m * V_WIDTH);
            /* Channel c of tap k is lane (3 c + k) mod V_WIDTH of one of the three: no two meet in a lane. */
            V_UNROLL for (int k = 0; k < 3; k++) {
                vec y = kda_thirds(x[KDA_TURN * (3 - k) % 3], x[KDA_TURN * (4 - k) % 3], x[KDA_TURN * (5 - k) % 3]);
                v_store(dst + k * rows + r, kda_permute(y, vi_add(kda_lanes(3, 0), vi_set1(k))));
            }
        }
    for (; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) dst[c * rows + r] = src[r * cols + c];
}

/* One of q, k, v with its filter and window by tap. */
typedef struct kda_input {
    const float *x;
    int64_t ld, d, taps;
    float *filter; /* [taps][d] */
    float *window; /* [taps-1][d] */
} kda_input;

static inline kda_input kda_input_make(float **scratch, const float *x, int64_t ld, int64_t d, int64_t taps,
                                       const float *filter, const float *window) {
    kda_input in = {.x = x, .ld = ld, .d = d, .taps = taps, .filter = *scratch, .window = *scratch + taps * d};
    *scratch += (2 * taps - 1) * d;
    kda_by_tap(in.filter, filter, d, taps);
    kda_by_tap(in.window, window, d, taps - 1);
    return in;
}

/* Row of raw inputs at token t >= -(taps-1). */
V_INLINE const float *kda_row(const kda_input *in, int64_t t) {
    return t < 0 ? in->window + (in->taps - 1 + t) * in->d : in->x + t * in->ld;
}

/* Afterwards window [d, taps-1] holds the last taps-1 inputs of n tokens, oldest first. */
static inline void kda_shift_window(float *window, const kda_input *in, int64_t n) {
    int64_t w = in->taps - 1, c = 0;
    if (w == 3)
        for (; c + V_WIDTH <= in->d; c += V_WIDTH) {
            vec x[3];
            V_UNROLL for (int k = 0; k < 3; k++) x[k] =
                kda_permute(v_load(kda_row(in, n - 3 + k) + c), kda_lanes(KDA_THIRD, -k));
            V_UNROLL for (int m = 0; m < 3; m++) {
                int turn = (3 - KDA_TURN) * m;
                v_store(window + 3 * c + m * V_WIDTH, kda_thirds(x[turn % 3], x[(turn + 1) % 3], x[(turn + 2) % 3]));
            }
        }
    for (; c < in->d; c++)
        for (int64_t j = 0; j < w; j++) window[c * w + j] = kda_row(in, n - w + j)[c];
}

/* ---- rows of a token ---- */

/* acc = one tap of a group added */
V_INLINE void kda_tap(vec acc[KDA_GROUP], const float *filter, const float *row) {
    KDA_EACH(g) acc[g] = v_fma(v_load(filter + g * V_WIDTH), v_load(row + g * V_WIDTH), acc[g]);
}

/* y = silu(conv) of token t; *square = the lanes of sum y^2 (unless NULL). */
static inline void kda_conv_silu(float *y, acc16 *square, const kda_input *in, int64_t t) {
    const float *rows[KDA_TAPS_MAX], *filter = in->filter;
    int64_t i = 0, d = in->d, taps = in->taps;
    acc16 sum = acc16_zero();
    for (int64_t j = 0; j < taps; j++) rows[j] = kda_row(in, t - (taps - 1) + j);
    for (; i + KDA_GROUP_FLOATS <= d; i += KDA_GROUP_FLOATS) {
        vec acc[KDA_GROUP], gate[KDA_GROUP];
        KDA_EACH(g) acc[g] = v_zero();
        if (taps == 4)
            V_UNROLL for (int j = 0; j < 4; j++) kda_tap(acc, filter + j * d + i, rows[j] + i);
        else
            for (int64_t j = 0; j < taps; j++) kda_tap(acc, filter + j * d + i, rows[j] + i);
        kda_sigmoid(gate, acc);
        KDA_EACH(g) {
            acc[g] = v_mul(acc[g], gate[g]);
            v_store(y + i + g * V_WIDTH, acc[g]);
            sum.v[g % ACC_VECS] = v_fma(acc[g], acc[g], sum.v[g % ACC_VECS]);
        }
    }
    for (int g = 0; i < d; i += V_WIDTH, g++) {
        vec acc = v_zero();
        for (int64_t j = 0; j < taps; j++)
            acc = v_fma(v_load_n(filter + j * d + i, d - i), v_load_n(rows[j] + i, d - i), acc);
        acc = v_mul(acc, v_sigmoid(acc));
        v_store_n(y + i, acc, d - i);
        sum.v[g % ACC_VECS] = v_fma_n(acc, acc, sum.v[g % ACC_VECS], d - i);
    }
    if (square) *square = sum;
}

/* x = x * r * scale */
V_INLINE void kda_scale(float *x, int64_t d, float r, float scale) {
    vec a = v_set1(r), b = v_set1(scale);
    for (int64_t i = 0; i < d; i += V_WIDTH) v_store_n(x + i, v_mul(v_mul(v_load_n(x + i, d - i), a), b), d - i);
}

/* keep = exp(g) of token t */
static inline void kda_decay(float *keep, const neap_kda_args *a, int64_t t) {
    const float *f = a->f + t * a->ld_f, *bias = a->dt_bias;
    vec scale = v_set1(a->is_bounded ? a->decay_scale : -a->decay_scale), bound = v_set1(a->lower_bound);
    int64_t i = 0, d = a->d_k;
    for (; i + KDA_GROUP_FLOATS <= d; i += KDA_GROUP_FLOATS) {
        vec z[KDA_GROUP], g[KDA_GROUP];
        KDA_EACH(j) z[j] = v_add(v_load(f + i + j * V_WIDTH), v_load(bias + i + j * V_WIDTH));
        if (a->is_bounded) {
            KDA_EACH(j) z[j] = v_mul(scale, z[j]);
            kda_sigmoid(g, z);
            KDA_EACH(j) g[j] = v_mul(bound, g[j]);
        } else {
            kda_softplus(z);
            KDA_EACH(j) g[j] = v_mul(scale, z[j]);
        }
        kda_exp(g, false);
        KDA_EACH(j) v_store(keep + i + j * V_WIDTH, g[j]);
    }
    for (; i < d; i += V_WIDTH) {
        vec z = v_add(v_load_n(f + i, d - i), v_load_n(bias + i, d - i));
        vec g = a->is_bounded ? v_mul(bound, v_sigmoid(v_mul(scale, z))) : v_mul(scale, v_softplus(z));
        v_store_n(keep + i, v_exp(g), d - i);
    }
}

/* o = o * r * o_norm * sigmoid(gate) of token t */
static inline void kda_gate_row(float *o, float r, const neap_kda_args *a, int64_t t) {
    const float *gate = a->gate + t * a->ld_gate;
    vec factor = v_set1(r);
    int64_t i = 0, d = a->d_v;
    for (; i + KDA_GROUP_FLOATS <= d; i += KDA_GROUP_FLOATS) {
        vec x[KDA_GROUP], s[KDA_GROUP];
        KDA_EACH(j) x[j] = v_load(gate + i + j * V_WIDTH);
        kda_sigmoid(s, x);
        KDA_EACH(j) x[j] = v_mul(v_mul(v_load(o + i + j * V_WIDTH), factor), v_load(a->o_norm + i + j * V_WIDTH));
        KDA_EACH(j) v_store(o + i + j * V_WIDTH, v_mul(x[j], s[j]));
    }
    for (; i < d; i += V_WIDTH) {
        vec y = v_mul(v_mul(v_load_n(o + i, d - i), factor), v_load_n(a->o_norm + i, d - i));
        v_store_n(o + i, v_mul(y, v_sigmoid(v_load_n(gate + i, d - i))), d - i);
    }
}

/* r[i] = 1 / sqrt(sum of squares [/ d] + eps), V_WIDTH sums at once */
V_INLINE void kda_inverse_norms(float r[V_WIDTH], const acc16 square[V_WIDTH], float d, float eps) {
    vec sum = acc16_trees(square);
    if (d > 0) sum = v_div(sum, v_set1(d));
    sum = v_add(sum, v_set1(eps));
#if V_WIDTH == 16
    v_store(r, v_div(v_set1(1.0f), _mm512_sqrt_ps(sum)));
#else
    v_store(r, v_div(v_set1(1.0f), _mm256_sqrt_ps(sum)));
#endif
}
#endif

#endif
