/* Lightning indexer for vectors; order of the sums as in index_scalar.c.
 *
 * V_WIDTH keys at a time: for every head one 16-lane accumulator per key, the trees of all of them by
 * shuffling (a lane is then a key), relu, and the chain over ascending heads in one register. The keys of a
 * block are read from the first cache once per head. */
#ifndef NEAP_KERNELS_X86_INDEX_VEC_H
#define NEAP_KERNELS_X86_INDEX_VEC_H

#include "kernels/families.h"
#include "kernels/topk.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
enum { INDEX_TILE = V_WIDTH == 16 ? 16 : 4 }; /* keys with their accumulators in registers */

V_INLINE vec index_dots(const float *q, const float *const keys[V_WIDTH], int64_t d) {
    acc16 acc[V_WIDTH];
    V_UNROLL for (int t = 0; t < V_WIDTH; t += INDEX_TILE) {
        int64_t e = 0;
        V_UNROLL for (int j = 0; j < INDEX_TILE; j++) acc[t + j] = acc16_zero();
        for (; e + 16 <= d; e += 16) V_UNROLL for (int l = 0; l < ACC_VECS; l++) {
                vec x = v_load(q + e + l * V_WIDTH);
                V_UNROLL for (int j = 0; j < INDEX_TILE; j++) acc[t + j].v[l] =
                    v_fma(x, v_load(keys[t + j] + e + l * V_WIDTH), acc[t + j].v[l]);
            }
        if (e < d)
            V_UNROLL for (int j = 0; j < INDEX_TILE; j++) acc16_fma_n(&acc[t + j], q + e, keys[t + j] + e, d - e);
    }
    return acc16_trees(acc);
}

static inline void index_topk(const neap_index_args *a) {
    if (a->n <= a->k) {
        for (int64_t j = 0; j < a->n; j++) a->out[j] = (int32_t)j;
        return;
    }
    for (int64_t j = 0; j < a->n; j += V_WIDTH) {
        const float *keys[V_WIDTH];
        for (int l = 0; l < V_WIDTH; l++) /* the last block repeats its last key */
            keys[l] = neap_paged_row(&a->keys, j + l < a->n ? j + l : a->n - 1);
        vec acc = v_zero();
        for (int64_t h = 0; h < a->n_heads; h++)
            acc = v_fma(v_set1(a->w[h]), v_max(v_zero(), index_dots(a->q + h * a->d, keys, a->d)), acc);
        v_store_n(a->scores + j, acc, a->n - j);
    }
    topk_select(a->out, a->scores, (uint32_t *)a->scratch, a->n, a->k);
}

static inline void index_fill(neap_kernels *k) { k->index = index_topk; }
#endif

#endif
