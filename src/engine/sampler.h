/* From one row of logits to one token.
 *
 * The order is fixed: finite check, log probabilities of the model's own distribution, logit bias, penalties,
 * ids that are never sampled, then greedy choice or temperature -> top-k -> top-p -> min-p -> draw. */
#ifndef NEAP_ENGINE_SAMPLER_H
#define NEAP_ENGINE_SAMPLER_H

#include <stdbool.h>

#include "base/arena.h"
#include "kernels/kernels.h"

#define NEAP_LOGPROBS_MAX 20

typedef struct neap_candidate {
    float logit;
    int32_t id;
} neap_candidate;

/* Shared by all sequences of an engine: scratch and what is the same for every request. */
typedef struct neap_sampler {
    const neap_kernels *kernels;
    int32_t vocab;
    const int32_t *unsampled; /* ids that must never come out, ascending */
    int32_t n_unsampled;
    neap_candidate *candidates; /* [vocab] scratch */
    int32_t *counts;            /* [vocab] scratch, all zero between calls */
    float *raw;                 /* [vocab] scratch: the row before bias and penalties */
    const uint32_t *allowed;    /* bit i % 32 of [i / 32]: id i may come out of the next draw; NULL: all may */
} neap_sampler;

typedef struct neap_sample {
    int32_t token;
    float logprob; /* 0 when the request wants none */
    int32_t n_top;
    neap_logprob top[NEAP_LOGPROBS_MAX]; /* falling; equal ones: lower id first */
} neap_sample;

/* Bytes of scratch that init takes from the arena. */
uint64_t neap_sampler_bytes(int32_t vocab);
NEAP_MUST_CHECK neap_status neap_sampler_init(neap_sampler *s, neap_arena *arena, const neap_kernels *kernels,
                                              int32_t vocab, const int32_t *unsampled, int32_t n_unsampled);

/* logits [vocab] are overwritten. history: all tokens of the sequence so far, prompt included; the new token
 * takes position n_history. NEAP_NUMERIC: a logit is not finite. NEAP_INVALID_ARGUMENT: nothing is left to
 * choose from (every token forbidden). */
NEAP_MUST_CHECK neap_status neap_sampler_draw(neap_sampler *s, float *logits, const neap_sampling *how,
                                              const int32_t *history, int64_t n_history, neap_sample *out);

#endif
