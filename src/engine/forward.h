/* One step of the model for a flattened batch: the plan, its buffers and the caches of all sequences.
 *
 * The engine (scheduler, sampler) above knows requests; this file knows rows. A step holds up to
 * batch_tokens_max rows; rows of one sequence are neighbours in ascending position. Nothing is allocated after
 * neap_forward_create. The result of a row never depends on what else is in the step. */
#ifndef NEAP_ENGINE_FORWARD_H
#define NEAP_ENGINE_FORWARD_H

#include "cache/prefix.h"
#include "models/model.h"

typedef struct neap_forward neap_forward;

typedef struct neap_forward_options {
    int32_t n_threads, n_threads_batch; /* of the few and the many class; the latter 0 = n_threads */
    int32_t seqs_max, context_max, batch_tokens_max;
    int64_t cache_tokens_max; /* rounded up to pages of 64 per sequence */
    bool enable_taps, enable_trace, enable_hash;
    bool is_eager;                         /* no captured plans: every step emits its ops and runs them one by one */
    bool oversubscribe;                    /* all threads run, even where fewer CPUs may be used */
    bool has_prefix;                       /* a prefix cache over the caches */
    bool has_prefix_dir;                   /* the engine copies it to a disk; only announced here */
    int32_t checkpoints;                   /* its recurrent states; 0 where a model has none */
    bool touches;                          /* memory is backed at creation */
    bool keeps_all;                        /* tests: no buffer of the step shares memory with another */
    neap_row_kind latent_kind, index_kind; /* of the caches */
    neap_x_form act, moe_act;              /* inputs of products: all but routed experts, routed experts */
    const neap_tuning *tuning;             /* borrowed during calls; NULL = the defaults */
} neap_forward_options;

typedef struct neap_segment {
    int32_t slot; /* of the sequence, from neap_forward_open */
    int32_t n_rows;
    int64_t position;      /* of the first row; 0 = the sequence begins here: stored state is ignored */
    const int32_t *tokens; /* n_rows ids, checked by the caller */
    bool wants_all_logits; /* else only the last row's, if wants_logits */
    bool wants_logits;
    neap_tap_fn tap; /* NULL = none */
    void *tap_user;
} neap_segment;

/* Bytes that create would claim (work buffers, state, cache), without claiming them. */
NEAP_MUST_CHECK neap_status neap_forward_memory(const neap_model *m, const neap_forward_options *o, uint64_t *state,
                                                uint64_t *cache, uint64_t *work);
/* Cache bytes of one token over all layers. */
void neap_forward_row_bytes(const neap_model *m, const neap_forward_options *o, uint64_t *latent, uint64_t *index);
NEAP_MUST_CHECK neap_status neap_forward_create(neap_forward **out, const neap_model *m, const neap_forward_options *o);
void neap_forward_destroy(neap_forward *f);

/* Reserves a slot with cache pages for n_tokens positions. NEAP_BUSY when there is none. */
NEAP_MUST_CHECK neap_status neap_forward_open(neap_forward *f, int64_t n_tokens, int32_t *slot);
/* More pages for an open slot, for n_tokens positions in all. NEAP_BUSY: nothing is taken. */
NEAP_MUST_CHECK neap_status neap_forward_extend(neap_forward *f, int32_t slot, int64_t n_tokens);
/* NEAP_INTERNAL: the books of the slot's pages were wrong (caches.h). The slot is closed all the same. */
neap_status neap_forward_close(neap_forward *f, int32_t slot);
int64_t neap_forward_cache_used(const neap_forward *f);  /* tokens */
int64_t neap_forward_cache_total(const neap_forward *f); /* tokens */
/* NULL without has_prefix. Slots are then opened, extended and closed through it. */
neap_prefix *neap_forward_prefix(neap_forward *f);
neap_caches *neap_forward_cache_books(neap_forward *f);
/* Recurrent state of one sequence; 0: the model has none. */
uint64_t neap_forward_state_bytes(const neap_model *m);
/* No NaN or infinity in the slot's recurrent state and in the cached rows [first, end). */
bool neap_forward_is_finite(neap_forward *f, int32_t slot, int64_t first, int64_t end);

/* Runs one step. Segments must be of different slots; the sum of n_rows is at most batch_tokens_max. */
NEAP_MUST_CHECK neap_status neap_forward_run(neap_forward *f, const neap_segment *segments, int32_t n_segments);
/* Logits [vocab] of a row of the last step (r counts rows over all segments); NULL if it was not asked for. */
float *neap_forward_logits(neap_forward *f, int32_t r);
/* Records of the last step; needs enable_trace. */
void neap_forward_trace(const neap_forward *f, neap_trace_fn fn, void *user);
/* How often ops were emitted so far: once per class at creation, and once per step where there are no plans. */
uint64_t neap_forward_emissions(const neap_forward *f);
/* Shows cache.* of a slot that holds n_tokens positions. */
NEAP_MUST_CHECK neap_status neap_forward_caches(neap_forward *f, int32_t slot, int64_t n_tokens, neap_tap_fn tap,
                                                void *user);

#endif
