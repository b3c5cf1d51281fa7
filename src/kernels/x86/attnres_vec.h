/* Attention residuals for vectors; see attnres_scalar.c for the equations.
 *
 * Stage 1 is two small products. Scores, [snapshots, d] x [d, mixes]: a tile of snapshots x mixes keeps its 16-lane
 * chains in registers over a piece of d, so that a piece of the bank is loaded once into the first-level cache and
 * serves all mixes; between pieces the chains wait in memory. Sums, [mixes, snapshots] x [snapshots, d]: one vector
 * of up to eight snapshots stays in registers while the mixes pass by. */
#ifndef NEAP_KERNELS_X86_ATTNRES_VEC_H
#define NEAP_KERNELS_X86_ATTNRES_VEC_H

#include <assert.h>
#include <math.h>

#include "kernels/families.h"
#include "kernels/vmath.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
enum {
    RES_PIECE = 512,                 /* floats of d at a time: eight snapshots are 16 KiB */
    RES_BANK = 8,                    /* snapshots at a time */
    RES_MIXES = 32,                  /* mixes at a time: a block of 12 layers has 24 */
    RES_TILE = V_WIDTH == 16 ? 4 : 2 /* snapshots and mixes of a register tile */
};

/* Both sums in one pass over x. */
static inline float attnres_score(const float *x, const float *c, int64_t d, float eps) {
    acc16 dot = acc16_zero(), square = acc16_zero();
    int64_t i = 0;
    for (; i + 16 <= d; i += 16) {
        acc16_fma(&dot, x + i, c + i);
        acc16_fma(&square, x + i, x + i);
    }
    if (i < d) {
        acc16_fma_n(&dot, x + i, c + i, d - i);
        acc16_fma_n(&square, x + i, x + i, d - i);
    }
    return acc16_tree(&dot) * (1.0f / sqrtf(acc16_tree(&square) / (float)d + eps));
}

/* ---- scores ---- */

/* Chains of one group of snapshots and mixes. */
typedef struct attnres_lanes {
    acc16 dot[RES_BANK][RES_MIXES], square[RES_BANK];
} attnres_lanes;

/* Elements [from, to), a multiple of 16, onto the chains of ns x nq pairs; ns and nq are constants. */
V_INLINE void attnres_tile(acc16 (*lanes)[RES_MIXES], const float *const *x, const float *const *c, int64_t from,
                           int64_t to, const int ns, const int nq) {
    acc16 a[RES_TILE][RES_TILE];
    V_UNROLL for (int s = 0; s < ns; s++) V_UNROLL for (int q = 0; q < nq; q++) a[s][q] = lanes[s][q];
    for (int64_t i = from; i < to; i += 16) V_UNROLL for (int v = 0; v < ACC_VECS; v++) {
            vec xs[RES_TILE];
            V_UNROLL for (int s = 0; s < ns; s++) xs[s] = v_load(x[s] + i + v * V_WIDTH);
            V_UNROLL for (int q = 0; q < nq; q++) {
                vec cq = v_load(c[q] + i + v * V_WIDTH);
                V_UNROLL for (int s = 0; s < ns; s++) a[s][q].v[v] = v_fma(xs[s], cq, a[s][q].v[v]);
            }
        }
    V_UNROLL for (int s = 0; s < ns; s++) V_UNROLL for (int q = 0; q < nq; q++) lanes[s][q] = a[s][q];
}

/* A row of tiles: ns snapshots, all mixes. */
V_INLINE void attnres_tiles(acc16 (*lanes)[RES_MIXES], const float *const *x, const float *const *c, int64_t nq,
                            int64_t from, int64_t to, const int ns) {
    int64_t q = 0;
    for (; q + RES_TILE <= nq; q += RES_TILE)
        attnres_tile((acc16(*)[RES_MIXES])(*lanes + q), x, c + q, from, to, ns, RES_TILE);
    for (; q < nq; q++) attnres_tile((acc16(*)[RES_MIXES])(*lanes + q), x, c + q, from, to, ns, 1);
}

static inline void attnres_piece(attnres_lanes *l, const float *const *x, int64_t ns, const float *const *c, int64_t nq,
                                 int64_t from, int64_t to) {
    int64_t s = 0, even = from + (to - from) / 16 * 16;
    for (int64_t t = 0; t < ns; t++) {
        acc16 square = l->square[t];
        for (int64_t i = from; i < even; i += 16) acc16_fma(&square, x[t] + i, x[t] + i);
        if (even < to) acc16_fma_n(&square, x[t] + even, x[t] + even, to - even);
        l->square[t] = square;
    }
    for (; s + RES_TILE <= ns; s += RES_TILE) attnres_tiles(l->dot + s, x + s, c, nq, from, even, RES_TILE);
    for (; s + 2 <= ns; s += 2) attnres_tiles(l->dot + s, x + s, c, nq, from, even, 2);
    for (; s < ns; s++) attnres_tiles(l->dot + s, x + s, c, nq, from, even, 1);
    if (even < to)
        for (s = 0; s < ns; s++)
            for (int64_t q = 0; q < nq; q++) acc16_fma_n(&l->dot[s][q], x[s] + even, c[q] + even, to - even);
}

/* Scores of up to RES_BANK snapshots for up to RES_MIXES mixes: e[q * ld + s]. */
static inline void attnres_scores(float *e, int64_t ld, const float *const *x, int64_t ns, const float *const *c,
                                  int64_t nq, int64_t d, float eps) {
    attnres_lanes l;
    for (int64_t s = 0; s < ns; s++) {
        l.square[s] = acc16_zero();
        for (int64_t q = 0; q < nq; q++) l.dot[s][q] = acc16_zero();
    }
    for (int64_t i = 0; i < d; i += RES_PIECE)
        attnres_piece(&l, x, ns, c, nq, i, i + RES_PIECE < d ? i + RES_PIECE : d);
    for (int64_t s = 0; s < ns; s++) {
        float inverse = 1.0f / sqrtf(acc16_tree(&l.square[s]) / (float)d + eps);
        for (int64_t q = 0; q < nq; q++) e[q * ld + s] = acc16_tree(&l.dot[s][q]) * inverse;
    }
}

/* ---- weighted sums ---- */

/* ns snapshots, a constant; chains begin at 0 if is_first, else go on. */
V_INLINE void attnres_sums(const neap_attnres_args *a, int64_t first, bool is_first, const int ns) {
    for (int64_t j = 0; j < a->d; j += V_WIDTH) {
        vec x[RES_BANK];
        V_UNROLL for (int s = 0; s < ns; s++) x[s] = v_load_n(a->bank[first + s] + j, a->d - j);
        for (int64_t q = 0; q < a->n_mixes; q++) {
            const float *e = a->weights + q * a->ld_weights + NEAP_ATTNRES_HEAD + first;
            float *acc = a->acc + q * a->ld_acc + j;
            vec v = is_first ? v_zero() : v_load_n(acc, a->d - j);
            V_UNROLL for (int s = 0; s < ns; s++) v = v_fma(v_set1(e[s]), x[s], v);
            v_store_n(acc, v, a->d - j);
        }
    }
}

static inline void attnres_all_sums(const neap_attnres_args *a) {
    for (int64_t s = 0; s < a->n_bank; s += RES_BANK) {
        bool is_first = s == 0;
        switch (a->n_bank - s) {
        case 1: attnres_sums(a, s, is_first, 1); break;
        case 2: attnres_sums(a, s, is_first, 2); break;
        case 3: attnres_sums(a, s, is_first, 3); break;
        case 4: attnres_sums(a, s, is_first, 4); break;
        case 5: attnres_sums(a, s, is_first, 5); break;
        case 6: attnres_sums(a, s, is_first, 6); break;
        case 7: attnres_sums(a, s, is_first, 7); break;
        default: attnres_sums(a, s, is_first, 8); break;
        }
    }
}

static inline void attnres_bank(const neap_attnres_args *a) {
    assert(a->n_bank >= 1);
    for (int64_t q = 0; q < a->n_mixes; q += RES_MIXES) {
        int64_t nq = a->n_mixes - q < RES_MIXES ? a->n_mixes - q : RES_MIXES;
        for (int64_t s = 0; s < a->n_bank; s += RES_BANK) {
            int64_t ns = a->n_bank - s < RES_BANK ? a->n_bank - s : RES_BANK;
            attnres_scores(a->weights + q * a->ld_weights + NEAP_ATTNRES_HEAD + s, a->ld_weights, a->bank + s, ns,
                           a->c + q, nq, a->d, a->eps);
        }
    }
    for (int64_t q = 0; q < a->n_mixes; q++) {
        float *w = a->weights + q * a->ld_weights, *e = w + NEAP_ATTNRES_HEAD, max = -INFINITY, den = 0;
        for (int64_t s = 0; s < a->n_bank; s++) max = e[s] > max ? e[s] : max;
        for (int64_t s = 0; s < a->n_bank; s++) {
            e[s] = vm_exp(e[s] - max);
            den += e[s];
        }
        w[0] = max;
        w[1] = den;
    }
    if (a->acc) attnres_all_sums(a);
}

/* ---- stage 2 ---- */

/* n vectors of the bank's sum from j on; n is a constant: several chains hide the latency. */
V_INLINE void attnres_chains(const neap_attnres_merge_args *m, int64_t j, vec *v, const int n) {
    const float *e = m->weights + NEAP_ATTNRES_HEAD;
    V_UNROLL for (int l = 0; l < n; l++) v[l] = v_zero();
    for (int64_t s = 0; s < m->n_bank; s++) {
        vec w = v_set1(e[s]);
        V_UNROLL for (int l = 0; l < n; l++) v[l] =
            v_fma(w, v_load_n(m->bank[s] + j + l * V_WIDTH, m->d - j - l * V_WIDTH), v[l]);
    }
}

static inline void attnres_merge(const neap_attnres_merge_args *m) {
    float max = m->weights[0], den = m->weights[1], l = attnres_score(m->p, m->c, m->d, m->eps);
    float top = l > max ? l : max, a = vm_exp(max - top), b = vm_exp(l - top), inverse = 1.0f / fmaf(den, a, b);
    vec va = v_set1(a), vb = v_set1(b), vi = v_set1(inverse);
    int64_t j = 0, d = m->d;
    if (!m->acc)
        for (; j + 8 * V_WIDTH <= d; j += 8 * V_WIDTH) {
            vec v[8];
            attnres_chains(m, j, v, 8);
            V_UNROLL for (int i = 0; i < 8; i++) {
                vec x = v_fma(v_load(m->p + j + i * V_WIDTH), vb, v_mul(v[i], va));
                v_store(m->out + j + i * V_WIDTH, v_mul(x, vi));
            }
        }
    for (; j < d; j += V_WIDTH) {
        vec v;
        if (m->acc)
            v = v_load_n(m->acc + j, d - j);
        else
            attnres_chains(m, j, &v, 1);
        v_store_n(m->out + j, v_mul(v_fma(v_load_n(m->p + j, d - j), vb, v_mul(v, va)), vi), d - j);
    }
}

static inline void attnres_fill(neap_kernels *k) {
    k->attnres_bank = attnres_bank;
    k->attnres_merge = attnres_merge;
}
#endif

#endif
