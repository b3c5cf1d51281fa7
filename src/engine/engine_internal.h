/* The engine's own structs: engine.c (life and steps) and sequence.c (one request) share them. */
#ifndef NEAP_ENGINE_ENGINE_INTERNAL_H
#define NEAP_ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "base/log.h"
#include "engine/events.h"
#include "engine/forward.h"
#include "engine/options.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/text.h"

struct neap_seq {
    neap_engine *engine;
    neap_seq *previous, *next; /* all handles of the engine, in order of submission */
    neap_arena *arena;         /* holds everything below */
    neap_sampling sampling;
    int32_t *tokens; /* [n_prompt + max_tokens] prompt, then answer */
    int32_t n_prompt, max_tokens;
    int32_t n_known;    /* tokens that exist */
    int32_t n_computed; /* tokens that the caches hold; n_known - 1 while it decodes */
    const int32_t *stop_tokens;
    int32_t n_stop_tokens;
    bool ignore_eos, all_logits;
    neap_tap_fn tap;
    void *tap_user;
    void *user;
    neap_text text;
    int32_t slot;         /* of the forward; -1: none */
    int64_t cache_tokens; /* positions that the slot reserves */
    uint32_t n_waited;    /* for the scheduler, as in neap_turn */
    uint64_t served;
    uint64_t prompt_event; /* running number of the last PROMPT event */
    bool has_prompt_event;
    bool is_done;
    bool is_freed;            /* neap_seq_free came from inside a step: free after it */
    atomic_bool is_cancelled; /* set from any thread, read by the next step */
};

struct neap_engine {
    const neap_model *model;
    neap_engine_options options; /* resolved: nothing is 0 = default any more; no tuning, the forward has it */
    neap_log log;
    neap_arena *arena; /* everything but the handles */
    neap_kernels kernels;
    neap_forward *forward;
    neap_sampler sampler;
    neap_events events;
    size_t token_bytes_max; /* longest token */
    size_t text_room;       /* most text of one event */
    const int32_t *eos;     /* the directory's stop tokens */
    int32_t n_eos;
    neap_seq *first, *last; /* all handles */
    neap_seq **running;     /* [seqs_max] not done, in order of submission */
    int32_t n_running;
    neap_turn *turns;       /* [seqs_max] */
    uint64_t clock;         /* of the scheduler */
    neap_segment *segments; /* [seqs_max] */
    neap_seq **in_segment;  /* [seqs_max] whose segment it is */
    bool is_stepping;       /* taps run inside a step: most calls are refused then */
    uint64_t n_steps, n_rows, n_prompt_tokens, n_new_tokens, n_nonfinite, forward_ns;
};

/* engine.c: options with nothing 0 = default any more, and what the forward takes of them. */
NEAP_MUST_CHECK neap_status neap_engine_options_resolve(neap_engine_options *o, const neap_model *m,
                                                        const neap_engine_options *in);
neap_forward_options neap_engine_forward_options(const neap_engine_options *o);

/* sequence.c: what a step does to one sequence. */
/* Rows that it wants from the next step. */
static inline int32_t neap_seq_rows_left(const neap_seq *s) { return s->n_known - s->n_computed; }
static inline bool neap_seq_is_decoding(const neap_seq *s) { return s->n_computed >= s->n_prompt; }
void neap_seq_fill_segment(const neap_seq *s, int32_t n_rows, neap_segment *out);
/* The step computed n_rows more; logits: of its last row or NULL. Pushes the events. */
void neap_seq_advance(neap_seq *s, int32_t n_rows, float *logits);
/* Pushes DONE with what text was held back and gives the slot back, unless a look at its caches makes sense. */
void neap_seq_finish(neap_seq *s, neap_finish finish, neap_status status);
void neap_seq_close_slot(neap_seq *s);
/* Unlinks and frees the handle. */
void neap_seq_destroy(neap_seq *s);

#endif
