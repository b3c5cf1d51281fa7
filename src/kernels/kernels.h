/* The maths: contracts of all kernels, and the table that dispatch.c fills.
 *
 * Kernels know no threads, files or models: they get slices and do them. Activations are F32. Every entry has
 * a scalar version that is written to be read and is the definition; a fast version is checked against it and
 * timed by kcheck.
 *
 * One promise holds for every entry here: *same bits*. The result of a row depends on nothing but that row's
 * own inputs: not on other rows, slice bounds or thread count; scalar, AVX2 and AVX-512 versions agree. (AMX tiles
 * have an order of their own, gemm_amx.c.) It is kept by fixing the order of every sum:
 *  - GEMM: each output is one chain acc = fmaf(x[k], w[k], acc) over ascending k. A SIMD lane is an output.
 *  - GEMM in integers: exact sums over units of k, one chain over ascending units (neap_x_form).
 *  - Reductions over a vector ("dot16"): 16 partial sums, lane i%16 = chain over ascending i (missing tail
 *    elements leave their lane alone), then lanes l and l+8 are added, then l and l+4, l+2, l+1.
 *  - Weighted sums of rows: one chain per column over ascending row.
 *  - exp, sigmoid, tanh, softplus: our own polynomials (vmath.h), the same operations in every version.
 * No alignment of activation pointers is assumed; weights are 64-byte aligned. Outputs never alias inputs
 * unless the contract says so. Nothing past the stated sizes is read or written. */
#ifndef NEAP_KERNELS_KERNELS_H
#define NEAP_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/peak.h"
#include "tensor/matrix.h"
#include "tensor/pages.h"

/* What products with INT8 and MXFP4 weights multiply with: x itself, or x in integers of 16 or 8 bits with a scale per
 * row and unit. A unit is what shares a weight scale, 128 k at most: 32 k of MXFP4; of INT8 a group, or 128 k counted
 * from its beginning and the rest of it. Per unit u of a row:
 *   a = largest |x|;  c[k] = round_to_even(x[k] * (Q / a)), Q = 32512 = 127 * 256 | 127;  s_x = a / Q
 *   a = 0, or so small that Q / a is infinite: c = 0, s_x = 0;  x not finite: c = 0, s_x = NaN
 *   acc = fmaf((float)sum_k c[k] * w[k], s_w * s_x, acc)  over ascending u, from 0
 * with w the codes as stored (INT8) or doubled (MXFP4: 0 .. 12, s_w half of the unit's scale). The sum is exact in
 * 32 bits, so that every instruction set, AMX included, gives the same bits. 16 bits cost about 1e-5 of the largest
 * value of a unit, some two hundred times less than BF16 activations; 8 bits about 0.003 (docs/accuracy.md). */
typedef enum neap_x_form { NEAP_X_F32, NEAP_X_INT16, NEAP_X_INT8 } neap_x_form;
enum { NEAP_X_UNIT = 128, NEAP_X_LIMIT_INT16 = 32512, NEAP_X_LIMIT_INT8 = 127 };

/* y[i, j] = sum_k x[row(i), k] * W[j, k] for i < m, j in panels [panel_begin, panel_end) with j < W->n.
 * Scales of FP8 weights are below 2^120 (fast versions fold a factor 256 into them). */
typedef struct neap_gemm_args {
    float *y; /* column j of W goes to y[i * ldy + j] */
    int64_t ldy;
    const float *x;
    int64_t ldx;
    const int32_t *rows; /* row(i) = rows[i]; NULL: row(i) = i */
    int64_t m;
    const neap_matrix *w;
    int64_t panel_begin, panel_end;
    neap_x_form x_form; /* of gemm_int: INT16 or INT8 */
    /* The next product with the same x, rows, m and form; NULL: none. gemm_int does all that follow each other and
     * share units of k (neap_gemm_shares): x becomes integers once for them. gemm looks at the first alone. */
    const struct neap_gemm_args *also;
    void *scratch; /* NEAP_GEMM_SCRATCH bytes of the caller's own, 64-byte aligned; F32 weights do without (NULL) */
} neap_gemm_args;
enum { NEAP_GEMM_SCRATCH = 384 * 1024 };

typedef enum neap_act_kind { NEAP_ACT_SILU, NEAP_ACT_SITU } neap_act_kind;
/* SILU: silu(g) * u.  SITU: beta tanh(g/beta) sigmoid(g) * lb tanh(u/lb); linear_beta 0 = u itself. */
typedef struct neap_act {
    neap_act_kind kind;
    float beta, linear_beta;
} neap_act;

/* One KDA head over n consecutive tokens of one sequence: short convolution + SiLU, L2 norm, decay gate,
 * write strength, recurrence, gated RMSNorm, in one pass (docs/numerics.md section 3). Per token:
 *   q, k, v = silu(conv(raw));  q = q / sqrt(sum q^2 + 1e-6) * d_k^-1/2;  k likewise without the scale
 *   z = f + dt_bias;  bounded: g = lower_bound * sigmoid(decay_scale * z);  else g = -decay_scale * softplus(z)
 *   S = diag(exp g) S;  u = sigmoid(b) (v - S^T k);  S = S + k u^T;  o = S^T q
 *   out = RMSNorm(o; o_norm, eps) * sigmoid(gate)
 * (dot over d_k: one chain over ascending d; sums over d_v and norms: dot16.) The state is
 * [ceil(d_v/32)][d_k][32], unused columns zero (they are computed like the others). Any split of the tokens
 * into calls gives the same bits, so a caller that wants the state in the middle (a prefix to keep, a draft that may
 * be rejected) ends the call there and copies state and windows: that is all a snapshot is. */
typedef struct neap_kda_args {
    int64_t n;                /* tokens, >= 1 */
    int64_t d_k, d_v, conv_k; /* conv_k 1 .. 8; d_k, d_v <= 256 */
    const float *q, *k, *v;   /* raw projections of this head, token t at + t * ld */
    int64_t ld_q, ld_k, ld_v;
    const float *conv_q, *conv_k_w, *conv_v; /* filters [d, conv_k], last tap = the current token */
    float *win_q, *win_k, *win_v;            /* in/out: last conv_k-1 raw inputs [d, conv_k-1], oldest first */
    const float *f;                          /* decay projection [d_k] per token */
    int64_t ld_f;
    const float *dt_bias; /* [d_k] */
    float decay_scale;    /* exp(A_log) of this head */
    bool is_bounded;
    float lower_bound;
    const float *b; /* write strength before the sigmoid, one per token */
    int64_t ld_b;
    const float *gate; /* output gate before the sigmoid [d_v] per token */
    int64_t ld_gate;
    const float *o_norm; /* [d_v] */
    float eps;
    float *state; /* in/out */
    float *out;   /* [d_v] per token */
    int64_t ld_out;
    float *scratch; /* neap_kda_scratch(d_k, d_v) floats */
} neap_kda_args;
static inline int64_t neap_kda_state_floats(int64_t d_k, int64_t d_v) { return (d_v + 31) / 32 * 32 * d_k; }
static inline int64_t neap_kda_scratch(int64_t d_k, int64_t d_v) { return 64 * (d_k + d_v) + 256; }

/* The chunked form of the recurrence of one head: inside a chunk the state stands still, and its products with the
 * tokens become matrix products (formulas: kda_chunk_scalar.c). The same function as the sweep above but not the same
 * bits: results depend on `chunk` in the last places, so no layer uses it. It pays on matrix units, which need chunks,
 * and for the map of a segment, where a state passes between processes that cannot wait for each other's tokens; with
 * vectors a chunk of 16 is the fastest (docs/numerics.md section 3 has the order of the sums and the time). It begins
 * after the gates and ends before the gated norm: q and k normed (q with its d_k^-1/2), keep = exp(g) in [0, 1],
 * beta in [0, 1]. */
enum { NEAP_KDA_CHUNK_BLOCK = 16, NEAP_KDA_CHUNK_MAX = 256 };
typedef struct neap_kda_chunk_args {
    int64_t n, d_k, d_v; /* n >= 0 tokens; d_k, d_v <= 256 */
    int64_t chunk;       /* tokens per chunk, 1 .. NEAP_KDA_CHUNK_MAX */
    const float *q;      /* [d_k] per token, token t at + t * ld; NULL: no outputs wanted */
    const float *k, *keep;
    const float *v;    /* [d_v]; NULL: zeros */
    const float *beta; /* one per token */
    int64_t ld_q, ld_k, ld_keep, ld_v, ld_beta;
    float *state; /* in/out, layout as above */
    float *out;   /* S^T q, [d_v] per token */
    int64_t ld_out;
    float *scratch; /* neap_kda_chunk_scratch(d_k, chunk) floats, 64-byte aligned */
} neap_kda_chunk_args;
static inline int64_t neap_kda_chunk_scratch(int64_t d_k, int64_t chunk) {
    int64_t c = (chunk + NEAP_KDA_CHUNK_BLOCK - 1) / NEAP_KDA_CHUNK_BLOCK * NEAP_KDA_CHUNK_BLOCK;
    return 4 * c * d_k + 2 * c * c + 64 * c + 40 * d_k + 4096;
}
/* y = M x + b per head: [d_k, d_k] times [d_k, d_v], all in the layout of the state (M as a state with d_v = d_k).
 * Each element is one chain over ascending column of M that begins at b. y is neither x nor M; it may be b. */
typedef struct neap_kda_map_args {
    int64_t d_k, d_v;
    const float *m, *x, *b; /* b NULL: zeros */
    float *y;
} neap_kda_map_args;

/* ---- sparse and dense attention over paged latents ---- */
enum {
    NEAP_ATTEND_ROWS = 8,   /* neighbouring query rows of one call: cached rows are decoded once for all of them */
    NEAP_ATTEND_HEADS = 32, /* heads of one call */
};
/* Absorbed MLA attention of up to NEAP_ATTEND_ROWS rows of one sequence over the positions [begin, end) of their
 * lists: one split of what they attend to. Cached rows are decoded to F32 exactly (pages.h); heads share them.
 * Per row and head, over the row's positions in ascending order, page of 64 by page (a page without any is skipped):
 *   s_j = scale * (q . row_j)   dot16 over the r + dr values
 *   M = max(m, largest s_j); if M > m: c = exp(m - M), o *= c, l *= c, m = M    (first page: m = M, o = l = 0)
 *   e_j = exp(s_j - m);  l += sum16(e over the page's positions)
 *   o[c] = chain over ascending j of fmaf(e_j, row_j[c], o[c])
 * A NaN score is passed over by the maximum and makes l NaN. No position in the range: m = -inf, l = 0, o = 0.
 * The result of a row depends only on its own q, list and range: not on the other rows or heads of the call. */
typedef struct neap_attend_args {
    neap_latent_format format;
    neap_pages cache;
    const float *q; /* row i, head h at q + i * ld_row + h * ld_head: latent part (r), then key part (dr) */
    int64_t ld_row, ld_head, n_rows, n_heads;
    const int32_t *lists; /* row i: ascending positions at lists + i * ld_list; NULL: 0 .. n_list[i] - 1 */
    int64_t ld_list;
    const int32_t *n_list; /* [n_rows], >= 1 */
    int64_t begin, end;
    float scale;
    float *out; /* o, r values per row and head: out + i * ld_out_row + h * ld_out_head */
    int64_t ld_out_row, ld_out_head;
    float *max, *sum; /* m and l: [i * ld_stat + h] */
    int64_t ld_stat;
    float *scratch; /* neap_attend_scratch() floats */
} neap_attend_args;
static inline int64_t neap_attend_scratch(const neap_latent_format *f) {
    return NEAP_PAGE_ROWS * ((int64_t)f->r + f->dr + NEAP_ATTEND_HEADS + 16);
}
/* Puts splits together (one row and head): M = largest m_s; splits with m_s = -inf and l_s = 0 are skipped;
 * c_s = exp(m_s - M); l = chain over ascending s of fmaf(c_s, l_s, l); o likewise per column; out = o * (1 / l).
 * A single split gives out = o * (1 / l). Split s: o at parts + s * ld_part, m and l at max[s * ld_stat], sum[...]. */
typedef struct neap_attend_merge_args {
    const float *parts, *max, *sum;
    int64_t ld_part, ld_stat, n_parts, r;
    float *out;
} neap_attend_merge_args;
/* Positions of one split for a row that sees n positions: a power of two of at least 1024 such that there are at
 * most 32 splits. It depends on the row alone, so threads and neighbours cannot change a bit. */
static inline int64_t neap_attend_split(int64_t n) {
    int64_t split = 1024;
    while (split * 32 < n) split *= 2;
    return split;
}
enum { NEAP_ATTEND_SPLITS = 32 };

/* ---- lightning indexer over paged keys, fused with the selection ---- */
enum { NEAP_INDEX_ROWS = 8 };
/* Candidates of one row from one range of keys: a superset of the range's share of the row's Top-K. */
typedef struct neap_candidates {
    uint32_t *order;    /* topk_key() of the scores */
    int32_t *positions; /* ascending */
    int64_t n;
} neap_candidates;
static inline int64_t neap_candidates_capacity(int64_t k) { return 2 * k + 512; }
/* Scores keys [begin, end) for up to NEAP_INDEX_ROWS rows of one sequence and keeps what may belong to the k best:
 *   I[j] = sum over h (chain, ascending, fmaf from 0) of w[h] * relu(q[h] . k_j),  the dot product one chain over
 *   ascending d (fmaf from 0); keys decoded to F32 exactly; relu(NaN) = NaN
 * Row i looks at j < n[i] only. Larger score first, equal scores lower position first, -0 equals +0, NaN last.
 * No score array exists. A row with n[i] <= k needs no scan: the caller selects everything.
 * The candidates kept may depend on the borders of the ranges, the merged selection never does. */
typedef struct neap_index_scan_args {
    neap_index_format format;
    neap_pages keys;
    const float *q; /* row i: [n_heads][d] at q + i * ld_q, rounded as the format wants (neap_index_round_query) */
    const float *w; /* row i: [n_heads] at w + i * ld_w, factors applied */
    int64_t ld_q, ld_w, n_rows, n_heads, k;
    const int32_t *n; /* [n_rows] visible keys */
    int64_t begin, end;
    neap_candidates *out; /* [n_rows]; capacity neap_candidates_capacity(k) each */
    float *scratch;       /* neap_index_scratch(format, n_heads) floats */
} neap_index_scan_args;
static inline int64_t neap_index_scratch(const neap_index_format *f, int64_t n_heads) {
    return NEAP_PAGE_ROWS * (int64_t)f->d + NEAP_PAGE_ROWS * (n_heads + NEAP_INDEX_ROWS);
}

/* AttnRes stage 1 of one token, for all mixes of a block of layers at once: they see the same finished snapshots
 * and differ in their vector c. score_s = (X_s . c) * rsqrt(mean X_s^2 + eps); max = max_s score_s;
 * e_s = e^(score_s - max); den = sum e_s; acc[d] = sum e_s X_s, both over ascending s. */
enum { NEAP_ATTNRES_HEAD = 2 }; /* max and den stand before the e_s */
typedef struct neap_attnres_args {
    const float *const *bank; /* [n_bank] rows of d floats; n_bank >= 1 */
    const float *const *c;    /* [n_mixes] rows of d floats */
    int64_t n_bank, n_mixes, d;
    float eps;
    float *weights; /* [n_mixes][ld_weights]: max, den, e_0 .. */
    float *acc;     /* [n_mixes][ld_acc]; NULL: not kept, stage 2 forms it from the bank */
    int64_t ld_weights, ld_acc;
} neap_attnres_args;
/* Stage 2 of one mix: merges the running sum p. The same bits with acc and without. */
typedef struct neap_attnres_merge_args {
    float *out;               /* [d]; may be acc, must not be p or in the bank */
    const float *acc;         /* NULL: bank and weights are summed here */
    const float *const *bank; /* only read without acc */
    int64_t n_bank, d;
    const float *weights; /* this mix's row of stage 1 */
    const float *p, *c;
    float eps;
} neap_attnres_merge_args;

/* Router of one token, from logits (F32): docs/numerics.md section 6. Ids in order of falling biased score,
 * equal scores: lower id first. weights: unbiased scores, renormalised (+1e-20) if asked, times scale. */
typedef struct neap_route_args {
    const float *logits, *bias;                      /* [n_experts]; bias may be NULL */
    int32_t n_experts, top_k, n_groups, topk_groups; /* n_groups divides n_experts; enough experts kept */
    bool is_softmax, is_renormalized;
    float scale;
    int32_t *ids;
    float *weights;
    float *margin;  /* may be NULL: last chosen minus best rejected biased score (inf: none rejected) */
    float *scratch; /* 2 * n_experts floats */
} neap_route_args;

typedef struct neap_kernels {
    uint32_t flags;                                               /* NEAP_CPU_* in use */
    void (*gemm[NEAP_MATRIX_KINDS])(const neap_gemm_args *a);     /* x in F32 */
    void (*gemm_int[NEAP_MATRIX_KINDS])(const neap_gemm_args *a); /* x in integers; NULL but for INT8 and MXFP4 */
    /* y = x * (1 / sqrt(mean x^2 + eps)) * w; y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* y = (x - mean) * (1 / sqrt(var + eps)) * w + b; b may be NULL; y may be x. */
    void (*layernorm)(float *y, const float *x, const float *w, const float *b, int64_t n, float eps);
    void (*add)(float *y, const float *x, int64_t n);                                          /* y += x */
    void (*axpy)(float *y, float a, const float *x, int64_t n);                                /* y = fmaf(a, x, y) */
    void (*sigmoid_mul)(float *y, const float *gate, int64_t n);                               /* y *= sigmoid(gate) */
    void (*glu)(float *y, const float *gate, const float *up, int64_t n, const neap_act *act); /* y may be gate */
    void (*kda)(const neap_kda_args *a);
    void (*kda_chunk)(const neap_kda_chunk_args *a);
    void (*kda_map)(const neap_kda_map_args *a);
    void (*attend)(const neap_attend_args *a);
    void (*attend_merge)(const neap_attend_merge_args *a);
    void (*index_scan)(const neap_index_scan_args *a);
    /* The k best of n_lists candidate lists whose ranges ascend; out: ascending positions. Together they hold at
     * least k. */
    void (*index_merge)(int32_t *out, const neap_candidates *lists, int64_t n_lists, int64_t k);
    void (*attnres_bank)(const neap_attnres_args *a);
    void (*attnres_merge)(const neap_attnres_merge_args *a);
    void (*route)(const neap_route_args *a);
    /* x[d]: pairs (2i, 2i+1) if is_interleaved else (i, i + d/2), rotated in place: a cos - b sin, b cos + a sin. */
    void (*rope)(float *x, const float *cos, const float *sin, int64_t d, bool is_interleaved);
    /* Largest value, lowest index among equals; false (index untouched) when any value is NaN or +-inf. */
    bool (*argmax)(const float *x, int64_t n, int64_t *index);
    neap_peaks peaks; /* not maths: peak.h */
} neap_kernels;

static inline bool neap_gemm_shares(const neap_gemm_args *a, const neap_gemm_args *b) {
    return a->w->kind == b->w->kind && a->w->group == b->w->group && a->w->k == b->w->k && a->x_form == b->x_form;
}
/* The products of a and those behind it, in the forms that they ask for; weights without an integer form take F32. */
static inline void neap_gemm(const neap_kernels *k, const neap_gemm_args *a) {
    while (a) {
        const neap_gemm_args *next = a->also;
        bool is_int = a->x_form != NEAP_X_F32 && k->gemm_int[a->w->kind];
        (is_int ? k->gemm_int : k->gemm)[a->w->kind](a);
        while (is_int && next && neap_gemm_shares(a, next)) next = next->also;
        a = next;
    }
}

/* What a run of tokens does to any state: S_out = M S_in + B, from k, keep, v, beta of a (q, out and state are not
 * looked at). A later run (M2, B2) after it is (M2 M, M2 B + B2): two calls of kda_map. */
void neap_kda_segment_map(const neap_kernels *kernels, const neap_kda_chunk_args *a, float *m, float *b);

/* Scalar entries first, overlaid by each variant whose needs are in flags. */
void neap_kernels_init(neap_kernels *k, uint32_t flags);

#endif
