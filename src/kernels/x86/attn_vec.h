/* Absorbed MLA attention for vectors; order of the sums as in attn_scalar.c.
 *
 * All heads share the cached rows, so rows are visited in blocks that stay in the second cache and every row
 * serves a group of heads (as many as the scratch has room for, at most 8):
 *   1. scores: tiles of a few heads x a few rows, one 16-lane accumulator each
 *   2. per head: maximum, exp, sum
 *   3. output: tiles of heads x columns in registers over the rows of a block; the chain over ascending rows is
 *      carried from block to block in `out` */
#ifndef NEAP_KERNELS_X86_ATTN_VEC_H
#define NEAP_KERNELS_X86_ATTN_VEC_H

#include <math.h>

#include "kernels/families.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
enum {
    ATTN_GROUP = 8,                          /* heads */
    ATTN_ROWS = 64,                          /* rows in a block: 144 KiB at 576 values */
    ATTN_SCORE_TILE = V_WIDTH == 16 ? 4 : 2, /* heads and rows of a score tile: 16 or 8 registers */
    ATTN_OUT_HEADS = 4,
    ATTN_OUT_VECS = V_WIDTH == 16 ? 6 : 2,
};

typedef struct attn_block {
    const neap_attn_args *a;
    const float *rows[ATTN_ROWS];
    int64_t begin, n;      /* place in the list */
    int64_t head, n_heads; /* the group */
} attn_block;

V_INLINE float *attn_scores(const attn_block *b, int64_t head) {
    return b->a->scratch + (head - b->head) * b->a->n_list;
}

/* Scores of heads [h, h + nh) and rows [i, i + nr) of the block. */
V_INLINE void attn_score_tile(const attn_block *b, int64_t h, int64_t i, const int nh, const int nr) {
    const neap_attn_args *a = b->a;
    const float *q[ATTN_SCORE_TILE], *row[ATTN_SCORE_TILE];
    acc16 acc[ATTN_SCORE_TILE][ATTN_SCORE_TILE];
    int64_t d = a->r + a->dr, e = 0;
    V_UNROLL for (int x = 0; x < nh; x++) q[x] = a->q + (h + x) * a->ld_q;
    V_UNROLL for (int y = 0; y < nr; y++) row[y] = b->rows[i + y];
    V_UNROLL for (int x = 0; x < nh; x++) V_UNROLL for (int y = 0; y < nr; y++) acc[x][y] = acc16_zero();
    for (; e + 16 <= d; e += 16) {
        V_UNROLL for (int l = 0; l < ACC_VECS; l++) {
            vec qs[ATTN_SCORE_TILE];
            V_UNROLL for (int x = 0; x < nh; x++) qs[x] = v_load(q[x] + e + l * V_WIDTH);
            V_UNROLL for (int y = 0; y < nr; y++) {
                vec r = v_load(row[y] + e + l * V_WIDTH);
                V_UNROLL for (int x = 0; x < nh; x++) acc[x][y].v[l] = v_fma(qs[x], r, acc[x][y].v[l]);
            }
        }
    }
    V_UNROLL for (int x = 0; x < nh; x++) V_UNROLL for (int y = 0; y < nr; y++) {
        if (e < d) acc16_fma_n(&acc[x][y], q[x] + e, row[y] + e, d - e);
        attn_scores(b, h + x)[b->begin + i + y] = a->scale * acc16_tree(&acc[x][y]);
    }
}

static inline void attn_score_block(const attn_block *b) {
    int64_t h = b->head, end = b->head + b->n_heads;
    for (; h + ATTN_SCORE_TILE <= end; h += ATTN_SCORE_TILE) {
        int64_t i = 0;
        for (; i + ATTN_SCORE_TILE <= b->n; i += ATTN_SCORE_TILE)
            attn_score_tile(b, h, i, ATTN_SCORE_TILE, ATTN_SCORE_TILE);
        for (; i < b->n; i++) attn_score_tile(b, h, i, ATTN_SCORE_TILE, 1);
    }
    for (; h < end; h++) {
        int64_t i = 0;
        for (; i + ATTN_SCORE_TILE <= b->n; i += ATTN_SCORE_TILE) attn_score_tile(b, h, i, 1, ATTN_SCORE_TILE);
        for (; i < b->n; i++) attn_score_tile(b, h, i, 1, 1);
    }
}

/* Scores become e^(score - max); returns their sum. */
static inline float attn_softmax(float *e, int64_t n, float *max) {
    vec m = v_set1(-INFINITY);
    float lanes[V_WIDTH], largest = -INFINITY;
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH) m = v_max(v_load(e + i), m); /* a NaN is passed over, as in scalar */
    v_store(lanes, m);
    for (int l = 0; l < V_WIDTH; l++) largest = lanes[l] > largest ? lanes[l] : largest;
    for (; i < n; i++) largest = e[i] > largest ? e[i] : largest;
    for (i = 0; i < n; i += V_WIDTH) v_store_n(e + i, v_exp(v_sub(v_load_n(e + i, n - i), v_set1(largest))), n - i);
    *max = largest;
    return v_sum16(e, n);
}

/* out of heads [h, h + nh), columns [c, c + nc * V_WIDTH) += the rows of the block; the last columns may be cut. */
V_INLINE void attn_out_tile(const attn_block *b, int64_t h, int64_t c, const int nh, const int nc, int64_t left) {
    const neap_attn_args *a = b->a;
    const float *e[ATTN_OUT_HEADS];
    float *out[ATTN_OUT_HEADS];
    vec acc[ATTN_OUT_HEADS][ATTN_OUT_VECS], row[ATTN_OUT_VECS];
    V_UNROLL for (int x = 0; x < nh; x++) {
        e[x] = attn_scores(b, h + x) + b->begin;
        out[x] = a->out + (h + x) * a->ld_out + c;
        V_UNROLL for (int y = 0; y < nc; y++) acc[x][y] =
            b->begin ? v_load_n(out[x] + y * V_WIDTH, left - y * V_WIDTH) : v_zero();
    }
    for (int64_t i = 0; i < b->n; i++) {
        V_UNROLL for (int y = 0; y < nc; y++) row[y] = v_load_n(b->rows[i] + c + y * V_WIDTH, left - y * V_WIDTH);
        V_UNROLL for (int x = 0; x < nh; x++) {
            vec p = v_set1(e[x][i]);
            V_UNROLL for (int y = 0; y < nc; y++) acc[x][y] = v_fma(p, row[y], acc[x][y]);
        }
    }
    V_UNROLL for (int x = 0; x < nh; x++) V_UNROLL for (int y = 0; y < nc; y++)
        v_store_n(out[x] + y * V_WIDTH, acc[x][y], left - y * V_WIDTH);
}

V_INLINE void attn_out_heads(const attn_block *b, int64_t h, const int nh) {
    enum { STEP = ATTN_OUT_VECS * V_WIDTH };
    int64_t r = b->a->r, c = 0;
    for (; c + STEP <= r; c += STEP) attn_out_tile(b, h, c, nh, ATTN_OUT_VECS, STEP);
    for (; c < r; c += V_WIDTH) attn_out_tile(b, h, c, nh, 1, r - c);
}

static inline void attn_fill_rows(attn_block *b, int64_t begin) {
    const neap_attn_args *a = b->a;
    b->begin = begin;
    b->n = a->n_list - begin < ATTN_ROWS ? a->n_list - begin : ATTN_ROWS;
    for (int64_t i = 0; i < b->n; i++) b->rows[i] = neap_paged_row(&a->cache, a->list ? a->list[begin + i] : begin + i);
}

static inline void attn_heads(const neap_attn_args *a) {
    int64_t room = (a->scratch_floats > a->n_list ? a->scratch_floats : a->n_list) / a->n_list;
    int64_t group = room < ATTN_GROUP ? room : ATTN_GROUP;
    attn_block b = {.a = a};
    for (b.head = 0; b.head < a->n_heads; b.head += b.n_heads) {
        float sum[ATTN_GROUP];
        b.n_heads = a->n_heads - b.head < group ? a->n_heads - b.head : group;
        for (int64_t i = 0; i < a->n_list; i += ATTN_ROWS) {
            attn_fill_rows(&b, i);
            attn_score_block(&b);
        }
        for (int64_t h = 0; h < b.n_heads; h++) {
            float max;
            sum[h] = attn_softmax(a->scratch + h * a->n_list, a->n_list, &max);
            if (a->lse) a->lse[b.head + h] = max + vm_log(sum[h]);
        }
        for (int64_t i = 0; i < a->n_list; i += ATTN_ROWS) {
            attn_fill_rows(&b, i);
            int64_t h = 0;
            for (; h + ATTN_OUT_HEADS <= b.n_heads; h += ATTN_OUT_HEADS) attn_out_heads(&b, b.head + h, ATTN_OUT_HEADS);
            for (; h < b.n_heads; h++) attn_out_heads(&b, b.head + h, 1);
        }
        for (int64_t h = 0; h < b.n_heads; h++) {
            float *out = a->out + (b.head + h) * a->ld_out;
            vec inverse = v_set1(1.0f / sum[h]);
            for (int64_t c = 0; c < a->r; c += V_WIDTH)
                v_store_n(out + c, v_mul(v_load_n(out + c, a->r - c), inverse), a->r - c);
        }
    }
}

static inline void attn_fill(neap_kernels *k) { k->attn = attn_heads; }
#endif

#endif
