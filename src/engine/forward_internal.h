/* The step's structs, for the files that implement it: forward.c (life and steps), forward_plan.c (shape classes and
 * their plans), forward_caches.c. */
#ifndef NEAP_ENGINE_FORWARD_INTERNAL_H
#define NEAP_ENGINE_FORWARD_INTERNAL_H

#include "cache/caches.h"
#include "engine/forward.h"
#include "layers/builder.h"
#include "runtime/plan.h"

/* One shape class: its slots, its plan and where its buffers lie. */
typedef struct neap_stage {
    bool is_few;
    int32_t rows_max, seqs_max, logits_max;
    neap_batch batch;
    neap_layout *layout;
    uint64_t region_bytes; /* of work */
    int32_t n_ops;
    uint64_t args_bytes;
    neap_plan *plan;
    char *work; /* may be shared with the other class: only one runs at a time, unless they run together */
    neap_counter *counters;
    float *logits;         /* [logits_max][vocab], in work */
    neap_plan_trace trace; /* NULLs without enable_trace, enable_hash */
    bool has_run;          /* in the last step */
} neap_stage;

enum { NEAP_STAGE_FEW, NEAP_STAGE_MANY, NEAP_STAGES };

struct neap_forward {
    neap_arena *arena;
    const neap_model *model;
    neap_kernels kernels;
    neap_team *team;
    neap_caches caches;
    neap_cache_layer_spec *cache_specs;
    neap_prefix *prefix; /* NULL: none */
    float *row;          /* one cached row, for neap_forward_is_finite; only with a prefix */
    neap_tuning tuning;
    neap_stage stages[NEAP_STAGES]; /* rows_max 0: this class does not exist */
    int32_t rows_max, seqs_max;
    float **row_logits; /* [rows_max] logits of a row of the last step, NULL none */
    int32_t n_rows;     /* of the last step */
    int32_t n_usable;   /* CPUs, asked every second */
    int64_t usable_ns;  /* when */
    uint64_t n_emissions, n_steps;
    neap_forward_options options;
};

/* forward_plan.c */
NEAP_MUST_CHECK neap_status neap_forward_check(const neap_forward_options *o);
/* rows_max, seqs_max, logits_max of both classes. */
NEAP_MUST_CHECK neap_status neap_stages_shape(neap_stage stages[NEAP_STAGES], const neap_forward_options *o,
                                              neap_tuning *tuning);
/* Whether both classes may run in one step, so that nothing of them is shared. */
bool neap_stages_run_together(const neap_forward_options *o, const neap_tuning *tuning);
/* A dry emission: layout, region_bytes, n_ops, args_bytes. The layout is the caller's to destroy. */
NEAP_MUST_CHECK neap_status neap_stage_measure(neap_stage *s, const neap_model *m, const neap_forward_options *o,
                                               const neap_tuning *tuning);
/* Emits into s->plan, or with `eager` runs the step at once. */
NEAP_MUST_CHECK neap_status neap_stage_emit(neap_stage *s, neap_forward *f, bool is_eager, int32_t n_workers);
/* The same into a plan that nobody can run: without memory for buffers and caches. */
NEAP_MUST_CHECK neap_status neap_stage_sketch(neap_stage *s, const neap_model *m, const neap_forward_options *o,
                                              const neap_tuning *tuning, neap_arena *arena);
/* Slots for the stage's batch. */
NEAP_MUST_CHECK neap_status neap_stage_slots(neap_stage *s, neap_arena *arena);
/* Bytes of slots, ops, arguments, counters and traces. */
uint64_t neap_stage_book_bytes(const neap_stage *s, const neap_forward_options *o);
/* Adds n rows of one sequence to the batch; tokens may be NULL (a sketch). */
void neap_stage_add(neap_stage *s, const neap_segment *segment, int32_t tile_rows);
void neap_stage_clear(neap_stage *s);
/* NULL: nothing is noted. */
static inline neap_plan_trace *neap_stage_trace(neap_stage *s) {
    return s->trace.times || s->trace.hashes ? &s->trace : NULL;
}
/* *out (a pointer to any pointer): n elements from the arena. */
NEAP_MUST_CHECK neap_status neap_forward_array(neap_arena *arena, int64_t n, size_t size, void *out);
int64_t neap_forward_pages_for(int64_t tokens);

#endif
