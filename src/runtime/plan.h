/* A plan: what one step does, captured once and replayed for every step.
 *
 * A plan is a list of phases; a phase is one or more ops that do not read each other's results; between phases
 * all workers meet at a barrier. An op is a function over a range of tasks. Everything that changes from step
 * to step (rows, positions, routing) lies in fixed slots that the ops' arguments point to, so that a replay
 * allocates, hashes and plans nothing. Workers take contiguous equal ranges of tasks; no result depends on how
 * tasks are cut. */
#ifndef NEAP_RUNTIME_PLAN_H
#define NEAP_RUNTIME_PLAN_H

#include <stdbool.h>

#include "base/arena.h"
#include "runtime/team.h"

typedef struct neap_op {
    const char *name;
    int32_t layer;  /* for listings; -1 = none */
    bool is_beside; /* same phase as the op before */
    /* Tasks of this step; called by every worker, must only read what earlier phases wrote. */
    int64_t (*count)(const void *args);
    void (*run)(const void *args, int64_t begin, int64_t end, int32_t worker);
    const void *args;
} neap_op;

typedef struct neap_plan neap_plan;

/* ops_max: capacity. Memory from the arena. */
NEAP_MUST_CHECK neap_status neap_plan_create(neap_plan **out, neap_arena *a, int32_t ops_max);
void neap_plan_add(neap_plan *p, const neap_op *op);
int32_t neap_plan_ops(const neap_plan *p);
int32_t neap_plan_phases(const neap_plan *p);
const neap_op *neap_plan_at(const neap_plan *p, int32_t i);
/* Runs the plan once on the team. */
void neap_plan_run(const neap_plan *p, neap_team *t);

#endif
