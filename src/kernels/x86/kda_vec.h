/* One KDA head for vectors; equations and layout as in kda_scalar.c, bits too.
 *
 * Tokens go in blocks of 8. First everything that does not need the state, for the whole block: convolution,
 * SiLU, norms, decay. Then slice by slice (32 columns, 16 KiB at d_k = 128, stays in the first cache) all tokens
 * of the block run over the state in fused sweeps: one pass writes k u^T of token t, reads its output, decays
 * for token t + 1 and accumulates that token's prediction. The chains of the definition are the same ones.
 *
 * scratch: filters and windows turned to [taps][d], then q, k, decay of a block. v waits in the output rows. */
#ifndef NEAP_KERNELS_X86_KDA_VEC_H
#define NEAP_KERNELS_X86_KDA_VEC_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/families.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
enum { KDA_SLICE = 32, KDA_VECS = KDA_SLICE / V_WIDTH, KDA_BLOCK = 8, KDA_TAPS_MAX = 8 };

/* One of q, k, v with its filter and window by tap. */
typedef struct kda_input {
    const float *x;
    int64_t ld, d, taps;
    float *filter; /* [taps][d] */
    float *window; /* [taps-1][d] */
} kda_input;

/* dst [cols][rows] = src [rows][cols] */
V_INLINE void kda_transpose(float *dst, const float *src, int64_t rows, int64_t cols) {
    int64_t r = 0;
    if (cols == 4) /* the usual filter */
        for (; r + 4 <= rows; r += 4) {
            __m128 a = _mm_loadu_ps(src + r * 4), b = _mm_loadu_ps(src + r * 4 + 4);
            __m128 c = _mm_loadu_ps(src + r * 4 + 8), d = _mm_loadu_ps(src + r * 4 + 12);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(dst + r, a);
            _mm_storeu_ps(dst + rows + r, b);
            _mm_storeu_ps(dst + 2 * rows + r, c);
            _mm_storeu_ps(dst + 3 * rows + r, d);
        }
    for (; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) dst[c * rows + r] = src[r * cols + c];
}

static inline kda_input kda_input_make(float **scratch, const float *x, int64_t ld, int64_t d, int64_t taps,
                                       const float *filter, const float *window) {
    kda_input in = {.x = x, .ld = ld, .d = d, .taps = taps, .filter = *scratch, .window = *scratch + taps * d};
    *scratch += (2 * taps - 1) * d;
    kda_transpose(in.filter, filter, d, taps);
    kda_transpose(in.window, window, d, taps - 1);
    return in;
}

/* Row of raw inputs at token t >= -(taps-1). */
V_INLINE const float *kda_row(const kda_input *in, int64_t t) {
    return t < 0 ? in->window + (in->taps - 1 + t) * in->d : in->x + t * in->ld;
}

static inline void kda_conv_silu(float *y, const kda_input *in, int64_t t) {
    const float *rows[KDA_TAPS_MAX];
    for (int64_t j = 0; j < in->taps; j++) rows[j] = kda_row(in, t - (in->taps - 1) + j);
    for (int64_t i = 0; i < in->d; i += V_WIDTH) {
        int64_t left = in->d - i;
        vec acc = v_zero();
        for (int64_t j = 0; j < in->taps; j++)
            acc = v_fma(v_load_n(in->filter + j * in->d + i, left), v_load_n(rows[j] + i, left), acc);
        v_store_n(y + i, v_mul(acc, v_sigmoid(acc)), left);
    }
}

/* Afterwards window [d, taps-1] holds the last taps-1 inputs of n tokens, oldest first. */
static inline void kda_shift_window(float *window, const kda_input *in, int64_t n) {
    int64_t w = in->taps - 1;
    for (int64_t j = 0; j < w; j++) {
        const float *row = kda_row(in, n - w + j);
        for (int64_t c = 0; c < in->d; c++) window[c * w + j] = row[c];
    }
}

V_INLINE void kda_l2_norm(float *x, int64_t d, float scale) {
    vec r = v_set1(1.0f / sqrtf(v_dot16(x, x, d) + 1e-6f)), s = v_set1(scale);
    for (int64_t i = 0; i < d; i += V_WIDTH) v_store_n(x + i, v_mul(v_mul(v_load_n(x + i, d - i), r), s), d - i);
}

static inline void kda_decay(float *keep, const neap_kda_args *a, int64_t t) {
    const float *f = a->f + t * a->ld_f;
    vec scale = v_set1(a->is_bounded ? a->decay_scale : -a->decay_scale), bound = v_set1(a->lower_bound);
    for (int64_t i = 0; i < a->d_k; i += V_WIDTH) {
        int64_t left = a->d_k - i;
        vec z = v_add(v_load_n(f + i, left), v_load_n(a->dt_bias + i, left));
        vec g = a->is_bounded ? v_mul(bound, v_sigmoid(v_mul(scale, z))) : v_mul(scale, v_softplus(z));
        v_store_n(keep + i, v_exp(g), left);
    }
}

/* q, k, decay [tokens][d_k] and write strengths of a block. */
typedef struct kda_block {
    float *q, *k, *keep;
    float beta[KDA_BLOCK];
    int64_t n;
} kda_block;

V_INLINE void kda_columns_load(vec v[KDA_VECS], const float *p, int64_t cols) {
    V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
        int64_t left = cols - j * V_WIDTH;
        v[j] = left > 0 ? v_load_n(p + j * V_WIDTH, left) : v_zero();
    }
}
V_INLINE void kda_columns_store(float *p, const vec v[KDA_VECS], int64_t cols) {
    V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
        int64_t left = cols - j * V_WIDTH;
        if (left > 0) v_store_n(p + j * V_WIDTH, v[j], left);
    }
}

/* All tokens of a block on one slice s [d_k][32]; out rows hold v and get o, `cols` columns. */
static inline void kda_sweep(float *s, float *out, int64_t ld_out, const kda_block *b, int64_t d_k, int64_t cols) {
    vec u[KDA_VECS], pred[KDA_VECS], o[KDA_VECS];
    const float *k = b->k, *q = b->q, *keep = b->keep;
    V_UNROLL for (int j = 0; j < KDA_VECS; j++) pred[j] = v_zero();
    for (int64_t i = 0; i < d_k; i++) {
        vec a = v_set1(keep[i]), ki = v_set1(k[i]);
        V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
            vec x = v_mul(v_load(s + i * KDA_SLICE + j * V_WIDTH), a);
            pred[j] = v_fma(ki, x, pred[j]);
            v_store(s + i * KDA_SLICE + j * V_WIDTH, x);
        }
    }
    for (int64_t t = 0; t < b->n; t++, k += d_k, q += d_k, out += ld_out) {
        vec beta = v_set1(b->beta[t]);
        kda_columns_load(u, out, cols);
        V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
            u[j] = v_mul(beta, v_sub(u[j], pred[j]));
            pred[j] = o[j] = v_zero();
        }
        keep += d_k;
        if (t + 1 < b->n) {
            for (int64_t i = 0; i < d_k; i++) {
                vec ki = v_set1(k[i]), qi = v_set1(q[i]), a = v_set1(keep[i]), next = v_set1(k[d_k + i]);
                V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
                    vec x = v_fma(ki, u[j], v_load(s + i * KDA_SLICE + j * V_WIDTH));
                    o[j] = v_fma(qi, x, o[j]);
                    x = v_mul(x, a);
                    pred[j] = v_fma(next, x, pred[j]);
                    v_store(s + i * KDA_SLICE + j * V_WIDTH, x);
                }
            }
        } else {
            for (int64_t i = 0; i < d_k; i++) {
                vec ki = v_set1(k[i]), qi = v_set1(q[i]);
                V_UNROLL for (int j = 0; j < KDA_VECS; j++) {
                    vec x = v_fma(ki, u[j], v_load(s + i * KDA_SLICE + j * V_WIDTH));
                    o[j] = v_fma(qi, x, o[j]);
                    v_store(s + i * KDA_SLICE + j * V_WIDTH, x);
                }
            }
        }
        kda_columns_store(out, o, cols);
    }
}

static inline void kda_gated_norm(float *o, const neap_kda_args *a, int64_t t) {
    const float *gate = a->gate + t * a->ld_gate;
    vec r = v_set1(1.0f / sqrtf(v_dot16(o, o, a->d_v) / (float)a->d_v + a->eps));
    for (int64_t i = 0; i < a->d_v; i += V_WIDTH) {
        int64_t left = a->d_v - i;
        vec y = v_mul(v_mul(v_load_n(o + i, left), r), v_load_n(a->o_norm + i, left));
        v_store_n(o + i, v_mul(y, v_sigmoid(v_load_n(gate + i, left))), left);
    }
}

static inline void kda_head(const neap_kda_args *a) {
    float *scratch = a->scratch, q_scale = 1.0f / sqrtf((float)a->d_k);
    int64_t d_k = a->d_k, d_v = a->d_v;
    assert(a->conv_k <= KDA_TAPS_MAX);
    kda_input q = kda_input_make(&scratch, a->q, a->ld_q, d_k, a->conv_k, a->conv_q, a->win_q);
    kda_input k = kda_input_make(&scratch, a->k, a->ld_k, d_k, a->conv_k, a->conv_k_w, a->win_k);
    kda_input v = kda_input_make(&scratch, a->v, a->ld_v, d_v, a->conv_k, a->conv_v, a->win_v);
    kda_block b = {.q = scratch, .k = scratch + KDA_BLOCK * d_k, .keep = scratch + 2 * KDA_BLOCK * d_k};
    for (int64_t t0 = 0; t0 < a->n; t0 += b.n) {
        b.n = a->n - t0 < KDA_BLOCK ? a->n - t0 : KDA_BLOCK;
        float *out = a->out + t0 * a->ld_out;
        for (int64_t t = 0; t < b.n; t++) {
            kda_conv_silu(b.q + t * d_k, &q, t0 + t);
            kda_conv_silu(b.k + t * d_k, &k, t0 + t);
            kda_conv_silu(out + t * a->ld_out, &v, t0 + t);
            kda_l2_norm(b.q + t * d_k, d_k, q_scale);
            kda_l2_norm(b.k + t * d_k, d_k, 1.0f);
            kda_decay(b.keep + t * d_k, a, t0 + t);
            b.beta[t] = vm_sigmoid(a->b[(t0 + t) * a->ld_b]);
        }
        for (int64_t j = 0; j < d_v; j += KDA_SLICE)
            kda_sweep(a->state + j * d_k, out + j, a->ld_out, &b, d_k, d_v - j < KDA_SLICE ? d_v - j : KDA_SLICE);
        for (int64_t t = 0; t < b.n; t++) kda_gated_norm(out + t * a->ld_out, a, t0 + t);
    }
    kda_shift_window(a->win_q, &q, a->n);
    kda_shift_window(a->win_k, &k, a->n);
    kda_shift_window(a->win_v, &v, a->n);
}

static inline void kda_fill(neap_kernels *k) { k->kda = kda_head; }
#endif

#endif
