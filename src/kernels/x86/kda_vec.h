/* One KDA head for vectors; equations and layout as in kda_scalar.c, bits too.
 *
 * Tokens go in blocks of KDA_BLOCK. First everything that does not need the state, for the whole block
 * (kda_gates_vec.h). Then the tokens of the block run over the state, KDA_VECS vectors of columns at a time (one
 * slice of 32 columns with AVX2, two with AVX-512: 16 or 32 KiB at d_k = 128, in the first cache), in fused sweeps:
 * one pass writes k u^T of token t, reads its output, decays for token t + 1 and accumulates that token's
 * prediction. So a block needs k and decay of one token beyond it; the predictions wait in scratch for the next
 * block. Only the first token of a call has a pass of its own for decay and prediction, only the last one ends
 * without; a call of one token has just these two (kda_single: with AVX2 by turns over slices). The chains of the
 * definition are the same ones.
 *
 * scratch: filters and windows turned to [taps][d] (not for one token and four taps), then q, k, decay of a block,
 * predictions. v waits in the output rows. */
#ifndef NEAP_KERNELS_X86_KDA_VEC_H
#define NEAP_KERNELS_X86_KDA_VEC_H

#include <assert.h>

#include "kernels/families.h"
#include "kernels/x86/kda_gates_vec.h"

#if defined(V_WIDTH)
enum { KDA_SLICE = 32, KDA_SLICE_VECS = KDA_SLICE / V_WIDTH, KDA_VECS = 4, KDA_BLOCK = 8 };

/* Tokens t0 .. t0 + n - 1 of the call. */
typedef struct kda_block {
    float *q;        /* [n][d_k] */
    float *k, *keep; /* [n + 1][d_k]; row n is the next block's first token, absent at the end */
    float *pred;     /* [columns]: S'^T k of the next block's first token */
    float beta[KDA_BLOCK];
    int64_t n;
    bool is_first, is_last;
} kda_block;

/* Vector j of row i in neighbouring slices. */
V_INLINE float *kda_at(float *s, int64_t d_k, int64_t i, int j) {
    return s + (j / KDA_SLICE_VECS) * d_k * KDA_SLICE + i * KDA_SLICE + j % KDA_SLICE_VECS * V_WIDTH;
}

V_INLINE vec kda_column_load(const float *p, int64_t left) { return left > 0 ? v_load_n(p, left) : v_zero(); }
V_INLINE void kda_column_store(float *p, vec v, int64_t left) {
    if (left > 0) v_store_n(p, v, left);
}

#if defined(__clang__)
#define KDA_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define KDA_TWICE _Pragma("GCC unroll 2")
#endif
#define KDA_COLUMNS(j) V_UNROLL for (int j = 0; j < n_vecs; j++)

/* All tokens of a block on n_vecs vectors of columns; out rows hold v and get o, `cols` columns. */
V_INLINE void kda_sweep(float *s, float *out, int64_t ld_out, const kda_block *b, float *wait, int64_t d_k,
                        int64_t cols, const int n_vecs) {
    vec u[KDA_VECS], pred[KDA_VECS], o[KDA_VECS], x[KDA_VECS];
    const float *k = b->k, *q = b->q, *keep = b->keep;
    if (b->is_first) {
        KDA_COLUMNS(j) pred[j] = v_zero();
        for (int64_t i = 0; i < d_k; i++) {
            vec a = v_set1(keep[i]), ki = v_set1(k[i]);
            KDA_COLUMNS(j) {
                x[j] = v_mul(v_load(kda_at(s, d_k, i, j)), a);
                pred[j] = v_fma(ki, x[j], pred[j]);
                v_store(kda_at(s, d_k, i, j), x[j]);
            }
        }
    } else {
        KDA_COLUMNS(j) pred[j] = v_load(wait + j * V_WIDTH);
    }
    int64_t n_fused = b->is_last ? b->n - 1 : b->n;
    for (int64_t t = 0; t < b->n; t++, k += d_k, q += d_k, out += ld_out) {
        vec beta = v_set1(b->beta[t]);
        KDA_COLUMNS(j) {
            u[j] = v_mul(beta, v_sub(kda_column_load(out + j * V_WIDTH, cols - j * V_WIDTH), pred[j]));
            pred[j] = o[j] = v_zero();
        }
        keep += d_k;
        if (t < n_fused) {
            KDA_TWICE for (int64_t i = 0; i < d_k; i++) {
                vec ki = v_set1(k[i]), qi = v_set1(q[i]), a = v_set1(keep[i]), next = v_set1(k[d_k + i]);
                KDA_COLUMNS(j) {
                    x[j] = v_fma(ki, u[j], v_load(kda_at(s, d_k, i, j)));
                    o[j] = v_fma(qi, x[j], o[j]);
                    x[j] = v_mul(x[j], a);
                    pred[j] = v_fma(next, x[j], pred[j]);
                    v_store(kda_at(s, d_k, i, j), x[j]);
                }
            }
        } else {
            for (int64_t i = 0; i < d_k; i++) {
                vec ki = v_set1(k[i]), qi = v_set1(q[i]);
                KDA_COLUMNS(j) {
                    x[j] = v_fma(ki, u[j], v_load(kda_at(s, d_k, i, j)));
                    o[j] = v_fma(qi, x[j], o[j]);
                    v_store(kda_at(s, d_k, i, j), x[j]);
                }
            }
        }
        KDA_COLUMNS(j) kda_column_store(out + j * V_WIDTH, o[j], cols - j * V_WIDTH);
    }
    if (!b->is_last) KDA_COLUMNS(j) v_store(wait + j * V_WIDTH, pred[j]);
}

/* Second pass over slice s (writes and reads), first pass over slice `ahead` (decays and predicts); either may be NULL,
 * which is known when compiling. */
V_INLINE void kda_passes(float *s, float *ahead, const kda_block *b, const vec *u, vec *o, vec *pred, int64_t d_k,
                         const bool has_s, const bool has_ahead) {
    enum { n_vecs = KDA_SLICE_VECS };
    const float *k = b->k, *q = b->q, *keep = b->keep;
    KDA_COLUMNS(j) o[j] = pred[j] = v_zero();
    KDA_TWICE for (int64_t i = 0; i < d_k; i++) {
        vec ki = v_set1(k[i]), x;
        if (has_s) {
            vec qi = v_set1(q[i]);
            KDA_COLUMNS(j) {
                x = v_fma(ki, u[j], v_load(s + i * KDA_SLICE + j * V_WIDTH));
                o[j] = v_fma(qi, x, o[j]);
                v_store(s + i * KDA_SLICE + j * V_WIDTH, x);
            }
        }
        if (has_ahead) {
            vec a = v_set1(keep[i]);
            KDA_COLUMNS(j) {
                x = v_mul(v_load(ahead + i * KDA_SLICE + j * V_WIDTH), a);
                pred[j] = v_fma(ki, x, pred[j]);
                v_store(ahead + i * KDA_SLICE + j * V_WIDTH, x);
            }
        }
    }
}

/* A call of one token. Of its two passes over a slice the first waits for the state, which is in no near cache, and
 * the second computes: so the second runs together with the first over the next slice. */
static inline void kda_single(float *state, float *out, const kda_block *b, int64_t d_k, int64_t d_v) {
    enum { n_vecs = KDA_SLICE_VECS };
    vec u[n_vecs], o[n_vecs], pred[n_vecs], beta = v_set1(b->beta[0]);
    kda_passes(NULL, state, b, u, o, pred, d_k, false, true);
    for (int64_t c = 0; c < d_v; c += KDA_SLICE, state += d_k * KDA_SLICE) {
        int64_t left = d_v - c;
        KDA_COLUMNS(j) {
            vec v = kda_column_load(out + c + j * V_WIDTH, left - j * V_WIDTH);
            u[j] = v_mul(beta, v_sub(v, pred[j]));
        }
        if (left > KDA_SLICE)
            kda_passes(state, state + d_k * KDA_SLICE, b, u, o, pred, d_k, true, true);
        else
            kda_passes(state, NULL, b, u, o, pred, d_k, true, false);
        KDA_COLUMNS(j) kda_column_store(out + c + j * V_WIDTH, o[j], left - j * V_WIDTH);
    }
}

/* beta = sigmoid(beta), n of them */
V_INLINE void kda_betas(float *beta, int64_t n) {
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        vec x = v_load_n(beta + i, n - i);
        kda_sigmoid(&x, &x, 1);
        v_store_n(beta + i, x, n - i);
    }
}

/* Convolutions of a block: k of its first token is there already unless it is the first of the call. */
static inline void kda_convolve(const kda_block *b, const neap_kda_args *a, const kda_input in[3], int64_t t0) {
    int64_t d_k = a->d_k, n_next = b->is_last ? b->n - 1 : b->n;
    if (b->is_first) kda_conv(b->k, d_k, &in[1], t0, 1);
    kda_conv(b->q, d_k, &in[0], t0, b->n);
    if (n_next) kda_conv(b->k + d_k, d_k, &in[1], t0 + 1, n_next);
    kda_conv(a->out + t0 * a->ld_out, a->ld_out, &in[2], t0, b->n);
}

/* The rest: q, k, v, decay and write strengths of a block, everything but the state. */
static inline void kda_prepare(kda_block *b, const neap_kda_args *a, int64_t t0) {
    enum { N = KDA_BLOCK > V_WIDTH ? KDA_BLOCK : V_WIDTH };
    acc16 q_square[N], k_square[N];
    float r[N], q_scale = 1.0f / sqrtf((float)a->d_k);
    int64_t d_k = a->d_k, n_next = b->is_last ? b->n - 1 : b->n;
    for (int t = 0; t < N; t++) q_square[t] = k_square[t] = acc16_zero();
    if (b->is_first) {
        acc16 square = kda_silu(b->k, d_k);
        kda_scale_key(b->k, d_k, 1.0f / sqrtf(acc16_tree(&square) + 1e-6f));
        kda_decay(b->keep, a, t0);
    }
    for (int64_t t = 0; t < b->n; t++) {
        q_square[t] = kda_silu(b->q + t * d_k, d_k);
        kda_silu(a->out + (t0 + t) * a->ld_out, a->d_v);
        if (t < n_next) {
            k_square[t] = kda_silu(b->k + (t + 1) * d_k, d_k);
            kda_decay(b->keep + (t + 1) * d_k, a, t0 + t + 1);
        }
        b->beta[t] = a->b[(t0 + t) * a->ld_b];
    }
    kda_betas(b->beta, b->n);
    kda_inverse_norms(r, q_square, 0, 1e-6f);
    for (int64_t t = 0; t < b->n; t++) kda_scale_query(b->q + t * d_k, d_k, r[t], q_scale);
    if (!n_next) return;
    kda_inverse_norms(r, k_square, 0, 1e-6f);
    for (int64_t t = 0; t < n_next; t++) kda_scale_key(b->k + (t + 1) * d_k, d_k, r[t]);
}

static inline void kda_finish(const neap_kda_args *a, int64_t t0, int64_t n) {
    enum { N = KDA_BLOCK > V_WIDTH ? KDA_BLOCK : V_WIDTH };
    acc16 square[N];
    float r[N];
    int64_t d = a->d_v;
    for (int t = 0; t < N; t++) square[t] = acc16_zero();
    for (int64_t t = 0; t < n; t++) {
        const float *o = a->out + (t0 + t) * a->ld_out;
        int64_t i = 0;
        for (; i + 16 <= d; i += 16) acc16_fma(&square[t], o + i, o + i);
        if (i < d) acc16_fma_n(&square[t], o + i, o + i, d - i);
    }
    kda_inverse_norms(r, square, (float)d, a->eps);
    for (int64_t t = 0; t < n; t++) kda_gate_row(a->out + (t0 + t) * a->ld_out, r[t], a, t0 + t);
}

/* A block's arrays at scratch. */
V_INLINE kda_block kda_block_make(float *scratch, int64_t d_k) {
    kda_block b = {.q = scratch, .k = scratch + KDA_BLOCK * d_k};
    b.keep = b.k + (KDA_BLOCK + 1) * d_k, b.pred = b.keep + (KDA_BLOCK + 1) * d_k;
    return b;
}

/* The block begins at token t0 of n. */
V_INLINE void kda_block_at(kda_block *b, int64_t t0, int64_t n) {
    b->n = n - t0 < KDA_BLOCK ? n - t0 : KDA_BLOCK;
    b->is_first = t0 == 0, b->is_last = t0 + b->n == n;
}

/* All columns of the block; out: its first row. */
static inline void kda_columns(float *state, float *out, int64_t ld_out, const kda_block *b, int64_t d_k, int64_t d_v) {
    int64_t j = 0;
    if (KDA_VECS > KDA_SLICE_VECS)
        for (; j + KDA_SLICE < d_v; j += 2 * KDA_SLICE)
            kda_sweep(state + j * d_k, out + j, ld_out, b, b->pred + j, d_k, d_v - j, KDA_VECS);
    for (; j < d_v; j += KDA_SLICE)
        kda_sweep(state + j * d_k, out + j, ld_out, b, b->pred + j, d_k, d_v - j, KDA_SLICE_VECS);
}

/* A call of one token with four taps. */
static inline void kda_head_single(const neap_kda_args *a) {
    int64_t d_k = a->d_k, d_v = a->d_v;
    kda_block b = kda_block_make(a->scratch, d_k);
    kda_block_at(&b, 0, 1);
    kda_conv_single(b.q, a->q, a->conv_q, a->win_q, d_k);
    kda_conv_single(b.k, a->k, a->conv_k_w, a->win_k, d_k);
    kda_conv_single(a->out, a->v, a->conv_v, a->win_v, d_v);
    kda_prepare(&b, a, 0);
    if (KDA_SLICE_VECS == KDA_VECS) /* AVX-512 takes two slices at a time: faster from far caches */
        kda_single(a->state, a->out, &b, d_k, d_v);
    else
        kda_columns(a->state, a->out, a->ld_out, &b, d_k, d_v);
    kda_finish(a, 0, 1);
}

static inline void kda_head(const neap_kda_args *a) {
    if (a->n == 1 && a->conv_k == 4) {
        kda_head_single(a);
        return;
    }
    float *scratch = a->scratch;
    int64_t d_k = a->d_k, d_v = a->d_v;
    assert(a->conv_k <= KDA_TAPS_MAX);
    kda_input in[3] = {kda_input_make(&scratch, a->q, a->ld_q, d_k, a->conv_k, a->conv_q, a->win_q),
                       kda_input_make(&scratch, a->k, a->ld_k, d_k, a->conv_k, a->conv_k_w, a->win_k),
                       kda_input_make(&scratch, a->v, a->ld_v, d_v, a->conv_k, a->conv_v, a->win_v)};
    kda_block b = kda_block_make(scratch, d_k);
    for (int64_t t0 = 0; t0 < a->n; t0 += b.n) {
        kda_block_at(&b, t0, a->n);
        kda_convolve(&b, a, in, t0);
        kda_prepare(&b, a, t0);
        kda_columns(a->state, a->out + t0 * a->ld_out, a->ld_out, &b, d_k, d_v);
        kda_finish(a, t0, b.n);
        if (b.is_last) break;
        memcpy(b.k, b.k + b.n * d_k, (size_t)d_k * sizeof *b.k); /* the next block's first token */
        memcpy(b.keep, b.keep + b.n * d_k, (size_t)d_k * sizeof *b.keep);
    }
    kda_shift_window(a->win_q, &in[0], a->n);
    kda_shift_window(a->win_k, &in[1], a->n);
    kda_shift_window(a->win_v, &in[2], a->n);
}
#endif

#endif
