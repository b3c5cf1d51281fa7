/* The engine's own structs, shared by engine.c (life and steps), sequence.c (one request), admission.c (who runs) and
 * prefix_use.c (what is kept for others). */
#ifndef NEAP_ENGINE_ENGINE_INTERNAL_H
#define NEAP_ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "base/log.h"
#include "cache/prefix.h"
#include "engine/events.h"
#include "engine/forward.h"
#include "engine/options.h"
#include "engine/prefix_disk.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/text.h"
#include "format/grammar.h"

/* Places in a prompt where a state is kept: the caller's marks, where it branches off, what others wait for. */
enum { NEAP_POINTS_MAX = 24, NEAP_MARKS_KEPT = 6 };

typedef enum neap_seq_place {
    NEAP_SEQ_NOWHERE, /* new, or ended */
    NEAP_SEQ_WAITING,
    NEAP_SEQ_RUNNING
} neap_seq_place;

struct neap_seq {
    neap_engine *engine;
    neap_seq *previous, *next; /* all handles of the engine, in order of submission */
    neap_seq *ahead, *behind;  /* in the queue, while it waits */
    uint64_t number;           /* of its submission, from 1 */
    neap_seq_place place;
    neap_arena *arena; /* holds everything below */
    neap_sampling sampling;
    int32_t *tokens; /* [n_prompt + max_tokens] prompt, then answer */
    int32_t n_prompt, max_tokens;
    int32_t n_known;    /* tokens that exist */
    int32_t n_computed; /* tokens that the caches hold; n_known - 1 while it decodes. Less after a preemption, when all
                         * known tokens are computed again as a prompt is */
    const int32_t *stop_tokens;
    int32_t n_stop_tokens;
    bool ignore_eos, all_logits;
    neap_tap_fn tap;
    void *tap_user;
    void *user;
    neap_text text;
    int32_t slot;         /* of the forward; -1: none */
    int64_t n_reserved;   /* positions that the slot has pages for */
    int64_t cache_tokens; /* of them, those in pages that are not shared */
    uint32_t n_waited;    /* for the scheduler, as in neap_turn */
    uint64_t served;
    uint64_t prompt_event; /* running number of the last PROMPT event */
    bool has_prompt_event;
    int32_t prompt_told; /* tokens, by PROMPT events: they never go back */
    bool has_begun;      /* the BEGIN event was sent */
    bool was_admitted;   /* at least once */
    bool is_blocked;     /* no cache page for its next row, until the next step */
    bool is_done;
    bool is_freed;            /* neap_seq_free came from inside a step: free after it */
    atomic_bool is_cancelled; /* set from any thread, read by the next step */
    atomic_bool is_paused;    /* the same */
    /* waiting */
    uint64_t tried;     /* neap_engine.changes when there was no room for it */
    uint64_t leader;    /* number of the sequence that computes its prefix first; 0: none */
    int32_t lead_until; /* tokens that the leader must have computed */
    bool is_loading;    /* its prefix comes from disk */
    int32_t n_loads;
    int32_t n_led; /* how often it has waited for a leader */
    /* prefix cache */
    const char *space;
    bool uses_prefix, feeds_prefix;
    int32_t n_cached;  /* found at its first admission */
    int32_t n_checked; /* positions that were found finite */
    int32_t n_entered; /* tokens in the tree */
    int32_t n_kept;    /* and with their state */
    int32_t spacing;   /* of the trail */
    int32_t n_points;
    int32_t n_fixed; /* of them, those of marks; what follows is of the present admission */
    int32_t points[NEAP_POINTS_MAX];
    neap_grammar_state *grammar; /* NULL: free */
};

struct neap_engine {
    const neap_model *model;
    neap_engine_options options; /* resolved: nothing is 0 = default any more; no tuning, the forward has it */
    neap_log log;
    neap_arena *arena; /* everything but the handles */
    neap_kernels kernels;
    neap_forward *forward;
    neap_sampler sampler;
    uint32_t *mask; /* [(vocab + 31) / 32] what a grammar allows */
    neap_events events;
    size_t token_bytes_max; /* longest token */
    size_t text_room;       /* most text of one event */
    const int32_t *eos;     /* the directory's stop tokens */
    int32_t n_eos;
    neap_seq *first, *last; /* all handles */
    neap_seq **running;     /* [seqs_max] not done, in order of submission */
    int32_t n_running;
    neap_seq *queue_first, *queue_last; /* those that wait */
    int32_t n_waiting;
    uint64_t waiting_tokens; /* of their prompts */
    uint64_t n_submitted;
    int32_t n_slots_open;   /* running ones, and ended ones that can still be looked at */
    bool has_states;        /* the model has recurrent layers */
    uint64_t changes;       /* grows whenever a waiting request might fit that did not before */
    neap_turn *turns;       /* [seqs_max] */
    neap_seq **in_turn;     /* [seqs_max] whose turn it is */
    uint64_t clock;         /* of the scheduler */
    neap_segment *segments; /* [seqs_max] */
    neap_seq **in_segment;  /* [seqs_max] whose segment it is */
    bool is_stepping;       /* taps run inside a step: most calls are refused then */
    neap_prefix *prefix;    /* the forward's; NULL: nothing is kept */
    neap_prefix_disk *disk; /* NULL: nor on disk */
    bool is_disk_loading;
    uint64_t n_prefix_tokens_asked, n_prefix_tokens_found, n_prefix_asked, n_prefix_found, n_preemptions;
    uint64_t n_steps, n_rows, n_prompt_tokens, n_new_tokens, n_nonfinite, forward_ns;
};

/* engine.c: options with nothing 0 = default any more, and what the forward takes of them. */
NEAP_MUST_CHECK neap_status neap_engine_options_resolve(neap_engine_options *o, const neap_model *m,
                                                        const neap_engine_options *in);
neap_forward_options neap_engine_forward_options(const neap_engine_options *o);

/* sequence.c: what a step does to one sequence. */
/* Rows that it wants from the next step. */
static inline int32_t neap_seq_rows_left(const neap_seq *s) { return s->n_known - s->n_computed; }
static inline bool neap_seq_is_decoding(const neap_seq *s) {
    return s->n_computed >= s->n_prompt && s->n_known - s->n_computed == 1;
}
static inline bool neap_seq_is_paused(const neap_seq *s) {
    return atomic_load_explicit(&s->is_paused, memory_order_relaxed);
}
static inline bool neap_seq_is_cancelled(const neap_seq *s) {
    return atomic_load_explicit(&s->is_cancelled, memory_order_relaxed);
}
/* Positions that it may ever need: the last new token is never computed. */
static inline int64_t neap_seq_positions(const neap_seq *s) {
    return (int64_t)s->n_prompt + (s->max_tokens > 0 ? s->max_tokens - 1 : 0);
}
void neap_seq_fill_segment(const neap_seq *s, int32_t n_rows, neap_segment *out);
/* The step computed n_rows more; logits: of its last row or NULL. Pushes the events. */
void neap_seq_advance(neap_seq *s, int32_t n_rows, float *logits);
/* Pushes BEGIN. */
void neap_seq_begin(neap_seq *s);
/* Pushes DONE with what text was held back and gives the slot back, unless a look at its caches makes sense. */
void neap_seq_finish(neap_seq *s, neap_finish finish, neap_status status);
void neap_seq_close_slot(neap_seq *s);
/* Closes the slot of an ended sequence, the oldest one that has a slot still; false: there is none. */
bool neap_seq_reclaim_slot(neap_engine *e);
/* Unlinks and frees the handle. */
void neap_seq_destroy(neap_seq *s);

#endif
