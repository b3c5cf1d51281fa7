/* What a KDA head computes outside its state, for vectors: short convolution + SiLU, L2 norm, decay, gated norm.
 *
 * The bits are those of kda_scalar.c. exp and its relatives are long chains of dependent operations. Two things keep a
 * core busy all the same: KDA_GROUP vectors go through the steps side by side (the steps are those of vmath_vec.h, to
 * the operation), and long chains are cut where a row can wait in memory (convolution | SiLU; exp | log1p | exp), so
 * that the next group begins before the last one is through. The tail of a row goes one vector at a time.
 * Filters and windows are turned to [taps][d] first: a lane is a channel. */
#ifndef NEAP_KERNELS_X86_KDA_GATES_VEC_H
#define NEAP_KERNELS_X86_KDA_GATES_VEC_H

#include <math.h>
#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
#ifndef KDA_GROUP
#define KDA_GROUP 2
#endif
#define KDA_EACH(j) V_UNROLL for (int j = 0; j < n; j++)
enum { KDA_TAPS_MAX = 8, KDA_CONV_STEP = 4, KDA_GROUP_FLOATS = KDA_GROUP * V_WIDTH };

/* for (i = 0; i < d; i += n vectors) `call`, which knows i and the constant n: groups first, then single vectors */
#define KDA_ROW(d, call)                                             \
    do {                                                             \
        int64_t i = 0;                                               \
        for (; i + KDA_GROUP_FLOATS <= (d); i += KDA_GROUP_FLOATS) { \
            const int n = KDA_GROUP;                                 \
            call;                                                    \
        }                                                            \
        for (; i < (d); i += V_WIDTH) {                              \
            const int n = 1;                                         \
            call;                                                    \
        }                                                            \
    } while (0)

#if V_WIDTH == 16
V_INLINE vec kda_minus_abs(vec x) { return _mm512_or_ps(x, v_set1(-0.0f)); }
V_INLINE vec kda_where(vec_mask m, vec x) { return _mm512_maskz_mov_ps(m, x); }
/* x < 0 ? e : 1, where e = exp(-|x|) */
V_INLINE vec kda_upper(vec x, vec e) { return v_select(v_less(x, v_zero()), e, v_set1(1.0f)); }
#else
V_INLINE vec kda_minus_abs(vec x) { return _mm256_or_ps(x, v_set1(-0.0f)); }
V_INLINE vec kda_where(vec_mask m, vec x) { return _mm256_and_ps(m, x); }
V_INLINE vec kda_upper(vec x, vec e) { /* 1, 0 or -4 as x has a sign; e is at most 1, and 1 at 0 */
    return v_max(v_from_bits(_mm256_sign_epi32(v_bits(v_set1(1.0f)), v_bits(x))), e);
}
/* x = exp(x) where results may be subnormal, infinite or NaN; kept apart, it hardly ever runs */
__attribute__((noinline, cold)) static void kda_exp_any(vec *x, int n) {
    for (int j = 0; j < n; j++) x[j] = v_exp(x[j]);
}
/* Is some 2^n of t = n + VM_ROUND below 2^-124 (or, unless all n are negative, above 2^3), or NaN? */
V_INLINE bool kda_is_far(const vec *t, const int n, bool is_negative) {
    const int first = VM_ROUND_BITS - 124; /* bits of positive t grow with t, negative t are below all of them */
    vec_int all = is_negative ? v_bits(t[0]) : vi_sub(v_bits(t[0]), vi_set1(first));
    KDA_EACH(j) {
        if (j && is_negative) all = _mm256_min_epi32(all, v_bits(t[j])); /* a NaN has its sign bit set too */
        if (j && !is_negative) all = _mm256_or_si256(all, vi_sub(v_bits(t[j]), vi_set1(first)));
    }
    return is_negative ? v_mask_bits(v_from_bits(_mm256_cmpgt_epi32(vi_set1(first), all))) != 0
                       : !_mm256_testz_si256(all, vi_set1(~127));
}
#endif

/* x = exp(x); is_negative: the sign bits are set. Results far from 0 are the business of kda_exp_any; the others need
 * no clamp, and 2^n may be added to their exponent. */
V_INLINE void kda_exp(vec *x, const int n, const bool is_negative) {
    vec t[KDA_GROUP], m[KDA_GROUP], p[KDA_GROUP];
#if V_WIDTH == 16
    if (!is_negative) KDA_EACH(j) x[j] = v_min(v_set1(VM_EXP_MAX), x[j]);
    KDA_EACH(j) x[j] = v_max(v_set1(VM_EXP_MIN), x[j]);
#endif
    KDA_EACH(j) t[j] = v_fma(x[j], v_set1(VM_LOG2E), v_set1(VM_ROUND));
#if V_WIDTH == 8
    if (__builtin_expect(kda_is_far(t, n, is_negative), 0)) {
        KDA_EACH(j) p[j] = x[j];
        kda_exp_any(p, n);
        KDA_EACH(j) x[j] = p[j];
        return;
    }
#endif
    KDA_EACH(j) m[j] = v_sub(t[j], v_set1(VM_ROUND));
    KDA_EACH(j) x[j] = v_fma(m[j], v_set1(-VM_LN2_HI), x[j]);
    KDA_EACH(j) x[j] = v_fma(m[j], v_set1(-VM_LN2_LO), x[j]);
    KDA_EACH(j) p[j] = v_fma(v_set1(VM_EXP_4), x[j], v_set1(VM_EXP_3));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_2));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_1));
    KDA_EACH(j) p[j] = v_fma(p[j], x[j], v_set1(VM_EXP_0));
    KDA_EACH(j) p[j] = v_add(v_fma(p[j], v_mul(x[j], x[j]), x[j]), v_set1(1.0f));
#if V_WIDTH == 16
    KDA_EACH(j) x[j] = _mm512_scalef_ps(p[j], m[j]);
#else
    KDA_EACH(j) x[j] = v_from_bits(vi_add(v_bits(p[j]), vi_to_exponent(v_bits(t[j]))));
#endif
}

/* y = sigmoid(x) */
V_INLINE void kda_sigmoid(vec *y, const vec *x, const int n) {
    vec e[KDA_GROUP], one = v_set1(1.0f);
    KDA_EACH(j) e[j] = kda_minus_abs(x[j]);
    kda_exp(e, n, true);
    KDA_EACH(j) y[j] = v_div(kda_upper(x[j], e[j]), v_add(one, e[j]));
}

/* y = log1p(u), u in [0, 1] */
V_INLINE void kda_log1p(vec *y, const vec *u, const int n) {
    vec f[KDA_GROUP], p[KDA_GROUP];
    vec_mask is_high[KDA_GROUP];
    KDA_EACH(j) is_high[j] = v_less(v_set1(VM_LOG_SPLIT), u[j]);
    /* (u - 1) / 2, rounded once: halving is exact */
    KDA_EACH(j) f[j] = v_select(is_high[j], v_fma(u[j], v_set1(0.5f), v_set1(-0.5f)), u[j]);
    KDA_EACH(j) p[j] = v_fma(v_set1(VM_LOG_8), f[j], v_set1(VM_LOG_7));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_6));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_5));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_4));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_3));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_2));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_1));
    KDA_EACH(j) p[j] = v_fma(p[j], f[j], v_set1(VM_LOG_0));
    KDA_EACH(j) {
        vec f2 = v_mul(f[j], f[j]);
        p[j] = v_add(f[j], v_fma(f2, v_set1(-0.5f), v_mul(v_mul(f2, f[j]), p[j])));
        /* adding 0 changes nothing: log1p is never -0 */
        y[j] = v_add(p[j], kda_where(is_high[j], v_set1(VM_LN2_LO)));
        y[j] = v_add(y[j], kda_where(is_high[j], v_set1(VM_LN2_HI)));
    }
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

/* taps of V_WIDTH channels from [channel][3]: channel c of tap k is lane (3 c + k) mod V_WIDTH of one of three vectors,
 * no two meet in a lane */
V_INLINE void kda_split_thirds(vec y[3], const float *p) {
    vec x[3];
    V_UNROLL for (int m = 0; m < 3; m++) x[m] = v_load(p + m * V_WIDTH);
    V_UNROLL for (int k = 0; k < 3; k++) {
        vec z = kda_thirds(x[KDA_TURN * (3 - k) % 3], x[KDA_TURN * (4 - k) % 3], x[KDA_TURN * (5 - k) % 3]);
        y[k] = kda_permute(z, vi_add(kda_lanes(3, 0), vi_set1(k)));
    }
}
/* and back */
V_INLINE void kda_join_thirds(float *p, const vec y[3]) {
    vec x[3];
    V_UNROLL for (int k = 0; k < 3; k++) x[k] = kda_permute(y[k], kda_lanes(KDA_THIRD, -k));
    V_UNROLL for (int m = 0; m < 3; m++) {
        int turn = (3 - KDA_TURN) * m;
        v_store(p + m * V_WIDTH, kda_thirds(x[turn % 3], x[(turn + 1) % 3], x[(turn + 2) % 3]));
    }
}

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
            vec y[3];
            kda_split_thirds(y, src + 3 * r);
            V_UNROLL for (int k = 0; k < 3; k++) v_store(dst + k * rows + r, y[k]);
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
            vec y[3];
            V_UNROLL for (int k = 0; k < 3; k++) y[k] = v_load(kda_row(in, n - 3 + k) + c);
            kda_join_thirds(window + 3 * c, y);
        }
    for (; c < in->d; c++)
        for (int64_t j = 0; j < w; j++) window[c * w + j] = kda_row(in, n - w + j)[c];
}

/* ---- rows ---- */

/* n vectors at p; of a single one (n 1) only the first `left` lanes are there */
V_INLINE void kda_load(vec *x, const float *p, const int n, int64_t left) {
    KDA_EACH(j) x[j] = n == 1 ? v_load_n(p, left) : v_load(p + j * V_WIDTH);
}
V_INLINE void kda_store(float *p, const vec *x, const int n, int64_t left) {
    if (n == 1)
        v_store_n(p, x[0], left);
    else
        KDA_EACH(j) v_store(p + j * V_WIDTH, x[j]);
}

/* The next n tokens of one vector of channels (its first `left`), four taps; x: the last three inputs, and room */
V_INLINE void kda_conv_step(float *y, int64_t ld_y, const float *row, int64_t ld, const vec filter[4],
                            vec x[3 + KDA_CONV_STEP], int64_t left, const int n) {
    vec acc[KDA_CONV_STEP];
    KDA_EACH(i) x[3 + i] = v_load_n(row + i * ld, left);
    KDA_EACH(i) acc[i] = v_zero();
    V_UNROLL for (int j = 0; j < 4; j++) KDA_EACH(i) acc[i] = v_fma(filter[j], x[i + j], acc[i]);
    KDA_EACH(i) v_store_n(y + i * ld_y, acc[i], left);
    V_UNROLL for (int j = 0; j < 3; j++) x[j] = x[j + n];
}

/* V_WIDTH channels from c on (the first `left`) of n tokens from t: each input is read once. */
V_INLINE void kda_conv_four(float *y, int64_t ld_y, const kda_input *in, int64_t t, int64_t n, int64_t c,
                            int64_t left) {
    vec filter[4], x[3 + KDA_CONV_STEP];
    const float *row = in->x + t * in->ld + c;
    int64_t ld = in->ld;
    V_UNROLL for (int j = 0; j < 4; j++) filter[j] = v_load_n(in->filter + j * in->d + c, left);
    V_UNROLL for (int j = 0; j < 3; j++) x[j] = v_load_n(kda_row(in, t - 3 + j) + c, left);
    y += c;
    for (; n >= KDA_CONV_STEP; n -= KDA_CONV_STEP, y += KDA_CONV_STEP * ld_y, row += KDA_CONV_STEP * ld)
        kda_conv_step(y, ld_y, row, ld, filter, x, left, KDA_CONV_STEP);
    for (; n > 0; n--, y += ld_y, row += ld) kda_conv_step(y, ld_y, row, ld, filter, x, left, 1);
}

/* y = convolution of n tokens from t */
static inline void kda_conv(float *y, int64_t ld_y, const kda_input *in, int64_t t, int64_t n) {
    int64_t d = in->d, taps = in->taps, c = 0;
    if (taps == 4) {
        for (; c + V_WIDTH <= d; c += V_WIDTH) kda_conv_four(y, ld_y, in, t, n, c, V_WIDTH);
        if (c < d) kda_conv_four(y, ld_y, in, t, n, c, d - c);
        return;
    }
    for (int64_t i = 0; i < n; i++, y += ld_y)
        for (c = 0; c < d; c += V_WIDTH) {
            vec acc = v_zero();
            for (int64_t j = 0; j < taps; j++)
                acc = v_fma(v_load_n(in->filter + j * d + c, d - c),
                            v_load_n(kda_row(in, t + i - (taps - 1) + j) + c, d - c), acc);
            v_store_n(y + c, acc, d - c);
        }
}

/* One token, four taps, straight from filter [d][4] and window [d][3], which moves on. */
static inline void kda_conv_single(float *y, const float *x, const float *filter, float *window, int64_t d) {
    int64_t c = 0;
    for (; c + V_WIDTH <= d; c += V_WIDTH) {
        vec f[4], w[4], acc = v_zero();
        kda_quarters(f, filter + 4 * c);
        kda_split_thirds(w, window + 3 * c);
        w[3] = v_load(x + c);
        V_UNROLL for (int j = 0; j < 4; j++) acc = v_fma(f[j], w[j], acc);
        v_store(y + c, acc);
        kda_join_thirds(window + 3 * c, w + 1);
    }
    for (; c < d; c++) {
        float w[4] = {window[3 * c], window[3 * c + 1], window[3 * c + 2], x[c]}, acc = 0;
        for (int j = 0; j < 4; j++) acc = fmaf(filter[4 * c + j], w[j], acc);
        y[c] = acc;
        for (int j = 0; j < 3; j++) window[3 * c + j] = w[j + 1];
    }
}

V_INLINE void kda_silu_group(float *y, acc16 *sum, int64_t i, int64_t left, const int n) {
    vec x[KDA_GROUP], gate[KDA_GROUP];
    kda_load(x, y, n, left);
    kda_sigmoid(gate, x, n);
    KDA_EACH(j) x[j] = v_mul(x[j], gate[j]);
    kda_store(y, x, n, left);
    if (n > 1) {
        KDA_EACH(j) sum->v[j % ACC_VECS] = v_fma(x[j], x[j], sum->v[j % ACC_VECS]);
    } else if (i / V_WIDTH % ACC_VECS) {
        sum->v[ACC_VECS - 1] = v_fma_n(x[0], x[0], sum->v[ACC_VECS - 1], left);
    } else {
        sum->v[0] = v_fma_n(x[0], x[0], sum->v[0], left);
    }
}

/* y = silu(y); the lanes of sum y^2 */
static inline acc16 kda_silu(float *y, int64_t d) {
    acc16 sum = acc16_zero();
    KDA_ROW(d, kda_silu_group(y + i, &sum, i, d - i, n));
    return sum;
}

V_INLINE void kda_scale_group(float *y, vec a, vec b, const bool has_b, int64_t left, const int n) {
    vec x[KDA_GROUP];
    kda_load(x, y, n, left);
    KDA_EACH(j) x[j] = v_mul(x[j], a);
    if (has_b) KDA_EACH(j) x[j] = v_mul(x[j], b);
    kda_store(y, x, n, left);
}

/* q = q * r * scale */
static inline void kda_scale_query(float *q, int64_t d, float r, float scale) {
    KDA_ROW(d, kda_scale_group(q + i, v_set1(r), v_set1(scale), true, d - i, n));
}

/* k = k * r */
static inline void kda_scale_key(float *k, int64_t d, float r) {
    KDA_ROW(d, kda_scale_group(k + i, v_set1(r), v_zero(), false, d - i, n));
}

/* Steps of the decay. keep = exp(-|z|), z = f + bias */
V_INLINE void kda_decay_fall(float *keep, const float *f, const float *bias, int64_t left, const int n) {
    vec z[KDA_GROUP], b[KDA_GROUP];
    kda_load(z, f, n, left), kda_load(b, bias, n, left);
    KDA_EACH(j) z[j] = kda_minus_abs(v_add(z[j], b[j]));
    kda_exp(z, n, true);
    kda_store(keep, z, n, left);
}

/* keep = factor * softplus(z), from exp(-|z|) */
V_INLINE void kda_decay_soft(float *keep, const float *f, const float *bias, vec factor, int64_t left, const int n) {
    vec z[KDA_GROUP], b[KDA_GROUP], u[KDA_GROUP];
    kda_load(u, keep, n, left), kda_load(z, f, n, left), kda_load(b, bias, n, left);
    kda_log1p(u, u, n);
    KDA_EACH(j) u[j] = v_mul(factor, v_add(v_max(v_add(z[j], b[j]), v_zero()), u[j]));
    kda_store(keep, u, n, left);
}

/* keep = bound * sigmoid(scale * z) */
V_INLINE void kda_decay_bounded(float *keep, const float *f, const float *bias, vec scale, vec bound, int64_t left,
                                const int n) {
    vec z[KDA_GROUP], b[KDA_GROUP];
    kda_load(z, f, n, left), kda_load(b, bias, n, left);
    KDA_EACH(j) z[j] = v_mul(scale, v_add(z[j], b[j]));
    kda_sigmoid(z, z, n);
    KDA_EACH(j) z[j] = v_mul(bound, z[j]);
    kda_store(keep, z, n, left);
}

V_INLINE void kda_decay_end(float *keep, int64_t left, const int n) {
    vec g[KDA_GROUP];
    kda_load(g, keep, n, left);
    kda_exp(g, n, false);
    kda_store(keep, g, n, left);
}

/* keep = exp(g) of token t */
static inline void kda_decay(float *keep, const neap_kda_args *a, int64_t t) {
    const float *f = a->f + t * a->ld_f, *bias = a->dt_bias;
    vec scale = v_set1(a->is_bounded ? a->decay_scale : -a->decay_scale), bound = v_set1(a->lower_bound);
    int64_t d = a->d_k;
    if (a->is_bounded) {
        KDA_ROW(d, kda_decay_bounded(keep + i, f + i, bias + i, scale, bound, d - i, n));
    } else {
        KDA_ROW(d, kda_decay_fall(keep + i, f + i, bias + i, d - i, n));
        KDA_ROW(d, kda_decay_soft(keep + i, f + i, bias + i, scale, d - i, n));
    }
    KDA_ROW(d, kda_decay_end(keep + i, d - i, n));
}

V_INLINE void kda_gate_group(float *o, const float *gate, const float *weight, vec factor, int64_t left, const int n) {
    vec s[KDA_GROUP], y[KDA_GROUP], w[KDA_GROUP];
    kda_load(s, gate, n, left);
    kda_sigmoid(s, s, n);
    kda_load(y, o, n, left), kda_load(w, weight, n, left);
    KDA_EACH(j) y[j] = v_mul(v_mul(v_mul(y[j], factor), w[j]), s[j]);
    kda_store(o, y, n, left);
}

/* o = o * r * o_norm * sigmoid(gate) of token t */
static inline void kda_gate_row(float *o, float r, const neap_kda_args *a, int64_t t) {
    const float *gate = a->gate + t * a->ld_gate;
    int64_t d = a->d_v;
    KDA_ROW(d, kda_gate_group(o + i, gate + i, a->o_norm + i, v_set1(r), d - i, n));
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
