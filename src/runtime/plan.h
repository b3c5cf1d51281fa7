/* A plan: what one step does, captured once per shape class and replayed for every step of that class.
 *
 * A plan is a list of phases; a phase is one or more ops that do not read each other's results; between phases
 * the workers meet at a barrier. An op is a function over a range of tasks. Everything that changes from step
 * to step (rows, positions, routing) lies in fixed slots that the ops' arguments point to, so that a replay
 * allocates, hashes and plans nothing. Workers take contiguous equal ranges of tasks; no result depends on how
 * tasks are cut.
 *
 *   streams  between neap_plan_fork and neap_plan_join ops belong to one of several streams. Each stream has a
 *            sub-team of its own, which meets at barriers of its own; the barrier's epoch is the event that another
 *            stream waits for (neap_plan_wait). With fewer workers than streams all phases run one after the other
 *            in the order of capture: events become order.
 *
 *        full team | fork: stream 0  phase, phase ------------ phase | join: full team
 *                  |       stream 1  phase, phase (event) ---^       |
 *
 * No deadlock: a phase waits for its predecessor in its own stream and for events of other streams, all of which were
 * captured earlier. So of the phases that are not done the earliest captured one waits for nothing, and each stream has
 * at least one worker, who does nothing but this stream from fork to join.
 *
 * Which thread: the first worker of the (sub-)team does ops of one task. Outside forks, and in stream 0, that is the
 * thread that called neap_plan_run: callbacks of the program belong there. */
#ifndef NEAP_RUNTIME_PLAN_H
#define NEAP_RUNTIME_PLAN_H

#include <stdbool.h>

#include "base/arena.h"
#include "runtime/team.h"

enum { NEAP_PLAN_STREAMS = 4, NEAP_OP_OUTPUTS = 8 };

/* What an op must at least read and write, and multiply, in the step that stands in the slots. */
typedef struct neap_op_cost {
    uint64_t bytes;
    double multiply_adds;
} neap_op_cost;

/* Rows of bytes that an op writes: *n * factor rows (n NULL: factor rows) of `bytes` bytes, `stride` bytes apart. */
typedef struct neap_op_output {
    const void *data;
    int64_t bytes, stride;
    const int32_t *n;
    int32_t factor;
} neap_op_output;

typedef struct neap_op {
    const char *name;
    int32_t layer;  /* for listings; -1 = none */
    int32_t stream; /* 0 outside a fork */
    bool is_beside; /* same phase as the op before, which is of the same stream */
    /* Tasks of this step; called by every worker, must only read what earlier phases wrote. */
    int64_t (*count)(const void *args);
    void (*run)(const void *args, int64_t begin, int64_t end, int32_t worker);
    void (*cost)(const void *args, neap_op_cost *out); /* NULL: next to nothing. Reads slots and shapes, no buffer */
    const void *args;
    int32_t n_outputs;
    neap_op_output outputs[NEAP_OP_OUTPUTS];
} neap_op;

typedef struct neap_plan neap_plan;

/* ops_max: capacity. Memory from the arena. */
NEAP_MUST_CHECK neap_status neap_plan_create(neap_plan **out, neap_arena *a, int32_t ops_max);
/* Bytes that create claims from the arena. */
uint64_t neap_plan_bytes(int32_t ops_max);
void neap_plan_add(neap_plan *p, const neap_op *op);
/* From here on ops belong to streams 0 .. n_streams - 1; not nested. */
void neap_plan_fork(neap_plan *p, int32_t n_streams);
/* The next phase of `stream` starts after all phases of `on` that were added so far. */
void neap_plan_wait(neap_plan *p, int32_t stream, int32_t on);
/* The next phase starts after all streams. */
void neap_plan_join(neap_plan *p);

int32_t neap_plan_ops(const neap_plan *p);
int32_t neap_plan_phases(const neap_plan *p);
const neap_op *neap_plan_at(const neap_plan *p, int32_t i);
/* Number of the phase that op i is in, counted over all streams in order of capture. */
int32_t neap_plan_phase_of(const neap_plan *p, int32_t i);
/* What a phase waits for besides the phase before it in its own stream (0 outside forks): events of other streams, at a
 * fork the phase before it, after a join the last phase of each stream. Named by the first ops of the phases. */
typedef struct neap_plan_event {
    int32_t op, on_op; /* op starts after on_op's phase */
} neap_plan_event;
int32_t neap_plan_events(const neap_plan *p, neap_plan_event *out, int32_t capacity); /* returns how many there are */

/* When given, a run notes for each op and worker when it began and ended (nanoseconds of the monotonic clock; both 0
 * when the worker had no task), and after each phase a hash of the outputs of each of its ops (one more barrier).
 * Either may be NULL. Arrays belong to the caller: times [n_ops][workers of the team], hashes [n_ops]. Without them a
 * run reads no clock. */
typedef struct neap_op_time {
    int64_t begin_ns, end_ns;
} neap_op_time;
typedef struct neap_plan_trace {
    neap_op_time *times;
    uint64_t *hashes;
} neap_plan_trace;

/* Runs the plan once with the first n_workers workers of the team. trace may be NULL. */
void neap_plan_run(const neap_plan *p, neap_team *t, int32_t n_workers, const neap_plan_trace *trace);
/* Runs two plans at the same time: the first n_first workers do the first one, the others up to n_workers the second.
 * n_first 1 .. n_workers - 1. Returns when both are done. */
void neap_plan_run_both(const neap_plan *first, const neap_plan *second, neap_team *t, int32_t n_workers,
                        int32_t n_first, const neap_plan_trace *first_trace, const neap_plan_trace *second_trace);
/* Runs one op alone, as a job of the team: what eager dispatch does. */
void neap_op_run(const neap_op *op, neap_team *t, int32_t n_workers);
/* Of the bytes of all outputs, in order, with the widths and numbers of rows: equal sums mean equal outputs, for all
 * practical purposes. The same on every machine of the same byte order. Strides do not enter. */
uint64_t neap_op_hash(const neap_op *op);

#endif
