/* What a step consists of, for people: the plan of a step that was never run, without weights and without memory.
 *
 * The same emission as for a real plan, into addresses that nobody owns; then the slots of the class are filled as the
 * step would fill them, and every op says what it costs. */
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/forward_internal.h"

/* The event that op i waits for, of those that were collected; -1: none. */
static int32_t waits_for(const neap_plan_event *events, int32_t n, int32_t i) {
    for (int32_t e = 0; e < n; e++)
        if (events[e].op == i) return events[e].on_op;
    return -1;
}

static void show(const neap_plan *p, const neap_plan_event *events, int32_t n_events, neap_op_fn fn, void *user) {
    for (int32_t i = 0; i < neap_plan_ops(p); i++) {
        const neap_op *op = neap_plan_at(p, i);
        neap_op_cost cost = {0, 0};
        if (op->cost) op->cost(op->args, &cost);
        const neap_op_info info = {.struct_size = sizeof info,
                                   .name = op->name,
                                   .op = i,
                                   .phase = neap_plan_phase_of(p, i),
                                   .layer = op->layer,
                                   .stream = op->stream,
                                   .after_op = waits_for(events, n_events, i),
                                   .bytes = cost.bytes,
                                   .multiply_adds = cost.multiply_adds};
        fn(user, &info);
    }
}

static neap_status sketch(neap_stage *s, const neap_model *m, const neap_forward_options *o, const neap_tuning *tuning,
                          neap_arena *arena, const neap_segment *segment, int32_t n_seqs, neap_op_fn fn, void *user) {
    void *p;
    NEAP_TRY(neap_stage_measure(s, m, o, tuning));
    NEAP_TRY(neap_stage_slots(s, arena));
    NEAP_TRY(neap_stage_sketch(s, m, o, tuning, arena));
    neap_stage_clear(s);
    for (int32_t i = 0; i < n_seqs; i++) neap_stage_add(s, segment, tuning->tile_rows);
    int32_t n_events = neap_plan_events(s->plan, NULL, 0);
    NEAP_TRY(neap_arena_array(arena, (size_t)n_events, sizeof(neap_plan_event), &p));
    neap_plan_event *events = p;
    (void)neap_plan_events(s->plan, events, n_events);
    show(s->plan, events, n_events, fn, user);
    return NEAP_OK;
}

neap_status neap_plan_describe(const neap_model *m, const neap_engine_options *options, int32_t n_seqs,
                               int32_t n_tokens, int64_t depth, neap_op_fn fn, void *user) {
    NEAP_CHECK(fn != NULL, NEAP_INVALID_ARGUMENT, "neap_plan_describe: fn is NULL");
    neap_engine_options o;
    NEAP_TRY(neap_engine_options_resolve(&o, m, options));
    NEAP_CHECK(n_seqs >= 1 && n_seqs <= o.seqs_max, NEAP_INVALID_ARGUMENT, "n_seqs is %d; allowed is 1 .. %d", n_seqs,
               o.seqs_max);
    NEAP_CHECK(n_tokens >= 1 && n_tokens <= o.batch_tokens_max / n_seqs, NEAP_INVALID_ARGUMENT,
               "n_tokens is %d; a step of %d sequences has at most %d", n_tokens, n_seqs, o.batch_tokens_max / n_seqs);
    NEAP_CHECK(depth >= 0 && depth <= o.context_max - n_tokens, NEAP_INVALID_ARGUMENT,
               "depth is %lld; allowed is 0 .. %d", (long long)depth, o.context_max - n_tokens);
    const neap_forward_options fo = neap_engine_forward_options(&o);
    const neap_segment segment = {.n_rows = n_tokens, .position = depth, .wants_logits = true};
    neap_stage stages[NEAP_STAGES];
    neap_tuning tuning;
    NEAP_TRY(neap_forward_check(&fo));
    NEAP_TRY(neap_stages_shape(stages, &fo, &tuning));
    neap_stage *few = &stages[NEAP_STAGE_FEW];
    neap_stage *s = n_seqs * n_tokens <= few->rows_max ? few : &stages[NEAP_STAGE_MANY];
    neap_arena *arena;
    NEAP_TRY(neap_arena_create(&arena, "plan"));
    neap_status status = sketch(s, m, &fo, &tuning, arena, &segment, n_seqs, fn, user);
    neap_layout_destroy(s->layout);
    neap_arena_destroy(arena);
    return status;
}
