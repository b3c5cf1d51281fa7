/* The sweep of a KDA head over its state by itself, decays' exponential included, for the bench: what kda does between
 * its gates and its gated norm. Compiled for each instruction set because it shares the loops of the kernel. */
#ifndef NEAP_TESTS_SWEEP_H
#define NEAP_TESTS_SWEEP_H

#include <stdint.h>

typedef struct kc_sweep_args {
    int64_t n, d_k, d_v;
    const float *q, *k, *g;       /* [n][d_k]; decays before the exponential */
    const float *v;               /* [n][d_v] */
    const float *beta;            /* [n] */
    float *state, *out, *scratch; /* as in neap_kda_args; out [n][d_v] */
} kc_sweep_args;

void neap_kc_sweep_avx2(const kc_sweep_args *a);
void neap_kc_sweep_avx512(const kc_sweep_args *a);

#endif
