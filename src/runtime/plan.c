/* Captured plans: see plan.h. The replay loop is the only execution path of the model. */
#include "runtime/plan.h"

#include <assert.h>

struct neap_plan {
    neap_op *ops;
    int32_t n_ops, ops_max, n_phases;
};

neap_status neap_plan_create(neap_plan **out, neap_arena *a, int32_t ops_max) {
    *out = NULL;
    void *p, *ops;
    NEAP_TRY(neap_arena_alloc(a, sizeof(neap_plan), &p));
    NEAP_TRY(neap_arena_array(a, (size_t)ops_max, sizeof(neap_op), &ops));
    neap_plan *plan = p;
    plan->ops = ops;
    plan->ops_max = ops_max;
    *out = plan;
    return NEAP_OK;
}

void neap_plan_add(neap_plan *p, const neap_op *op) {
    assert(p->n_ops < p->ops_max);
    assert(p->n_ops > 0 || !op->is_beside);
    p->ops[p->n_ops++] = *op;
    p->n_phases += !op->is_beside;
}

int32_t neap_plan_ops(const neap_plan *p) { return p->n_ops; }
int32_t neap_plan_phases(const neap_plan *p) { return p->n_phases; }
const neap_op *neap_plan_at(const neap_plan *p, int32_t i) { return &p->ops[i]; }

typedef struct job {
    const neap_plan *plan;
    neap_team *team;
} job;

/* This worker's share of an op: equal shares, rounded so that an op of one task (a tap, a sort) stays on worker 0,
 * the caller's own thread. Ops of one phase are cut one by one. */
static void run_share(const neap_op *op, int32_t worker, int32_t n_workers) {
    int64_t n = op->count(op->args);
    int64_t begin = (n * worker + n_workers - 1) / n_workers, end = (n * (worker + 1) + n_workers - 1) / n_workers;
    if (begin < end) op->run(op->args, begin, end, worker);
}

static void run_plan(void *arg, int32_t worker) {
    const job *j = arg;
    int32_t n_workers = neap_team_size(j->team);
    for (int32_t i = 0; i < j->plan->n_ops; i++) {
        const neap_op *op = &j->plan->ops[i];
        if (i > 0 && !op->is_beside) neap_team_barrier(j->team);
        run_share(op, worker, n_workers);
    }
}

void neap_plan_run(const neap_plan *p, neap_team *t) {
    job j = {p, t};
    neap_team_run(t, run_plan, &j);
}
