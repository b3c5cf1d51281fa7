/* sweep.h for vectors; the two files that include this differ in their compiler flags. */
#ifndef NEAP_TESTS_SWEEP_VEC_H
#define NEAP_TESTS_SWEEP_VEC_H

#include "kernels/x86/kda_vec.h"
#include "sweep.h"

/* keep = exp(g) */
static void decay(float *keep, const float *g, int64_t floats) {
    memcpy(keep, g, (size_t)floats * sizeof *keep);
    KDA_ROW(floats, kda_decay_end(keep + i, floats - i, n));
}

/* The loop of kda_head, with q and k where they are. */
static void sweep(const kc_sweep_args *a) {
    int64_t d_k = a->d_k, d_v = a->d_v;
    kda_block b = kda_block_make(a->scratch, d_k);
    for (int64_t t0 = 0; t0 < a->n; t0 += b.n) {
        kda_block_at(&b, t0, a->n);
        int64_t n_next = b.is_last ? b.n - 1 : b.n;
        b.q = (float *)(uintptr_t)(a->q + t0 * d_k), b.k = (float *)(uintptr_t)(a->k + t0 * d_k); /* only read */
        if (b.is_first) decay(b.keep, a->g, d_k);
        decay(b.keep + d_k, a->g + (t0 + 1) * d_k, n_next * d_k);
        memcpy(b.beta, a->beta + t0, (size_t)b.n * sizeof *b.beta);
        memcpy(a->out + t0 * d_v, a->v + t0 * d_v, (size_t)(b.n * d_v) * sizeof *a->v);
        kda_columns(a->state, a->out + t0 * d_v, d_v, &b, d_k, d_v);
        memcpy(b.keep, b.keep + b.n * d_k, (size_t)d_k * sizeof *b.keep);
    }
}

#endif
