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

uint64_t neap_plan_bytes(int32_t ops_max) {
    return ((sizeof(neap_plan) + 63) & ~(uint64_t)63) + (((uint64_t)ops_max * sizeof(neap_op) + 63) & ~(uint64_t)63);
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

int32_t neap_plan_phase_of(const neap_plan *p, int32_t i) {
    int32_t phase = -1;
    for (int32_t k = 0; k <= i; k++) phase += !p->ops[k].is_beside;
    return phase;
}
int32_t neap_plan_events(const neap_plan *p, neap_plan_event *out, int32_t capacity) {
    (void)p, (void)out, (void)capacity;
    return 0;
}
void neap_plan_fork(neap_plan *p, int32_t n_streams) { (void)p, (void)n_streams; }
void neap_plan_wait(neap_plan *p, int32_t stream, int32_t on) { (void)p, (void)stream, (void)on; }
void neap_plan_join(neap_plan *p) { (void)p; }

typedef struct job {
    const neap_plan *plan;
    neap_team *team;
    int32_t n_workers;
    const neap_op *op;
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
    for (int32_t i = 0; i < j->plan->n_ops; i++) {
        const neap_op *op = &j->plan->ops[i];
        if (i > 0 && !op->is_beside) neap_team_barrier(j->team);
        run_share(op, worker, j->n_workers);
    }
}

void neap_plan_run(const neap_plan *p, neap_team *t, int32_t n_workers, const neap_plan_trace *trace) {
    (void)trace;
    job j = {p, t, n_workers, NULL};
    neap_team_run(t, n_workers, run_plan, &j);
}

void neap_plan_run_both(const neap_plan *first, const neap_plan *second, neap_team *t, int32_t n_workers,
                        int32_t n_first, const neap_plan_trace *first_trace, const neap_plan_trace *second_trace) {
    (void)n_first;
    neap_plan_run(first, t, n_workers, first_trace);
    neap_plan_run(second, t, n_workers, second_trace);
}

static void run_op(void *arg, int32_t worker) {
    const job *j = arg;
    run_share(j->op, worker, j->n_workers);
}

void neap_op_run(const neap_op *op, neap_team *t, int32_t n_workers) {
    job j = {NULL, t, n_workers, op};
    neap_team_run(t, n_workers, run_op, &j);
}

uint64_t neap_op_hash(const neap_op *op) {
    uint64_t h = 0;
    for (int32_t i = 0; i < op->n_outputs; i++) {
        const neap_op_output *o = &op->outputs[i];
        int64_t rows = (o->n ? (int64_t)*o->n : 1) * o->factor;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < o->bytes; k++)
                h = (h ^ ((const unsigned char *)o->data)[r * o->stride + k]) * UINT64_C(0x100000001b3);
    }
    return h;
}
