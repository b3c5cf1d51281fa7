/* Captured plans: see plan.h. The replay loop here is the only way in which a model runs.
 *
 * Capture notes per phase: its ops, its stream, its number in that stream of the fork (from 1), and the numbers that it
 * waits for in other streams. Each stream has a meeting of the team (team.h); passing it at the end of phase number k
 * makes its epoch base + k, where base was read before the run began and goes on from fork to fork. So an event costs
 * nothing: it is the barrier that the stream needs anyway, and whoever waits for it compares one number. The last phase
 * of a stream only arrives, because the barrier of the whole team follows.
 *
 *     share of worker w of n in an op of T tasks:  ceil(T w / n) .. ceil(T (w + 1) / n)
 *     stream of worker w of n, S streams:          floor(S w / n)
 *
 * Hashes need a moment in which nobody writes: a phase then ends with two barriers, and epochs count two per phase.
 *
 * Called by engine/forward.c, layers/builder.c (eager ops), tests. A plan lives in its arena; a run owns nothing. */
#include "runtime/plan.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"

typedef struct phase {
    int32_t op_begin, op_end;
    int32_t stream, n_streams;        /* n_streams 0: not in a fork */
    int32_t begin, end;               /* in a fork: its first phase, and the first one after it */
    int32_t number;                   /* in its stream, from 1 */
    bool is_last;                     /* of its stream in this fork */
    int32_t after[NEAP_PLAN_STREAMS]; /* numbers in other streams; 0 = none */
} phase;

struct neap_plan {
    neap_op *ops;
    phase *phases;
    int32_t *phase_of; /* [n_ops] */
    int32_t n_ops, ops_max, n_phases;
    /* while capturing a fork */
    int32_t n_streams, fork_begin; /* 0 streams: not in one */
    int32_t after[NEAP_PLAN_STREAMS][NEAP_PLAN_STREAMS];
    int32_t numbers[NEAP_PLAN_STREAMS]; /* phases of each stream so far */
};

/* ---- capture ---- */

neap_status neap_plan_create(neap_plan **out, neap_arena *a, int32_t ops_max) {
    *out = NULL;
    void *p, *ops, *phases, *phase_of;
    NEAP_TRY(neap_arena_alloc(a, sizeof(neap_plan), &p));
    NEAP_TRY(neap_arena_array(a, (size_t)ops_max, sizeof(neap_op), &ops));
    NEAP_TRY(neap_arena_array(a, (size_t)ops_max, sizeof(phase), &phases));
    NEAP_TRY(neap_arena_array(a, (size_t)ops_max, sizeof(int32_t), &phase_of));
    neap_plan *plan = p;
    plan->ops = ops;
    plan->phases = phases;
    plan->phase_of = phase_of;
    plan->ops_max = ops_max;
    *out = plan;
    return NEAP_OK;
}

static uint64_t block(uint64_t bytes) { return bytes == 0 ? 64 : (bytes + 63) & ~(uint64_t)63; }
uint64_t neap_plan_bytes(int32_t ops_max) {
    const uint64_t n = (uint64_t)ops_max;
    return block(sizeof(neap_plan)) + block(n * sizeof(neap_op)) + block(n * sizeof(phase)) +
           block(n * sizeof(int32_t));
}

static void add_phase(neap_plan *p, const neap_op *op) {
    phase *f = &p->phases[p->n_phases++];
    *f = (phase){.op_begin = p->n_ops, .stream = op->stream, .n_streams = p->n_streams, .begin = p->fork_begin};
    if (p->n_streams == 0) return;
    f->number = ++p->numbers[op->stream];
    memcpy(f->after, p->after[op->stream], sizeof f->after);
    memset(p->after[op->stream], 0, sizeof p->after[op->stream]);
}

void neap_plan_add(neap_plan *p, const neap_op *op) {
    assert(p->n_ops < p->ops_max);
    assert(op->stream >= 0 && op->stream < (p->n_streams ? p->n_streams : 1));
    if (op->is_beside) { /* of a phase of the same fork, or of none, and of the same stream */
        assert(p->n_phases > (p->n_streams ? p->fork_begin : 0));
        assert(p->phases[p->n_phases - 1].n_streams == p->n_streams);
        assert(p->phases[p->n_phases - 1].stream == op->stream);
    } else {
        add_phase(p, op);
    }
    p->phase_of[p->n_ops] = p->n_phases - 1;
    p->ops[p->n_ops++] = *op;
    p->phases[p->n_phases - 1].op_end = p->n_ops;
}

void neap_plan_fork(neap_plan *p, int32_t n_streams) {
    assert(p->n_streams == 0 && n_streams >= 1 && n_streams <= NEAP_PLAN_STREAMS);
    p->n_streams = n_streams;
    p->fork_begin = p->n_phases;
    memset(p->after, 0, sizeof p->after);
    memset(p->numbers, 0, sizeof p->numbers);
}

/* Events of phases that were not captured do not exist: 0. */
void neap_plan_wait(neap_plan *p, int32_t stream, int32_t on) {
    assert(stream >= 0 && stream < p->n_streams && on >= 0 && on < p->n_streams);
    if (stream != on) p->after[stream][on] = p->numbers[on];
}

void neap_plan_join(neap_plan *p) {
    assert(p->n_streams > 0);
    for (int32_t i = p->fork_begin; i < p->n_phases; i++) {
        phase *f = &p->phases[i];
        f->end = p->n_phases;
        f->is_last = f->number == p->numbers[f->stream];
    }
    p->n_streams = 0;
}

/* ---- what was captured ---- */

int32_t neap_plan_ops(const neap_plan *p) { return p->n_ops; }
int32_t neap_plan_phases(const neap_plan *p) { return p->n_phases; }
const neap_op *neap_plan_at(const neap_plan *p, int32_t i) { return &p->ops[i]; }
int32_t neap_plan_phase_of(const neap_plan *p, int32_t i) { return p->phase_of[i]; }

typedef struct events {
    neap_plan_event *out;
    int32_t n, capacity;
} events;
static void note_event(events *e, const neap_plan *p, int32_t i, int32_t on) {
    if (e->n < e->capacity) e->out[e->n] = (neap_plan_event){p->phases[i].op_begin, p->phases[on].op_begin};
    e->n++;
}

/* All that lies right before phase i when a barrier of the whole team does. */
static void note_region(events *e, const neap_plan *p, int32_t i, int32_t begin) {
    if (begin == 0) return;
    const phase *f = &p->phases[i], *before = &p->phases[begin - 1];
    for (int32_t k = before->n_streams ? before->begin : begin - 1; k < begin; k++)
        if ((p->phases[k].is_last || !before->n_streams) && p->phases[k].stream != f->stream) note_event(e, p, i, k);
}

int32_t neap_plan_events(const neap_plan *p, neap_plan_event *out, int32_t capacity) {
    events e = {out, 0, capacity};
    for (int32_t i = 0; i < p->n_phases; i++) {
        const phase *f = &p->phases[i];
        for (int32_t k = f->n_streams ? f->begin : i; k < i; k++)
            if (p->phases[k].number == f->after[p->phases[k].stream]) note_event(&e, p, i, k);
        if (!f->n_streams || f->number == 1) note_region(&e, p, i, f->n_streams ? f->begin : i);
    }
    return e.n;
}

/* ---- hashes ---- */

/* Words of 8 bytes go into four lanes in turn: lane = rotate(lane + word * A, 29) * B, both odd: each step is a
 * bijection of the lane and of the word. The tail of a row is filled up with zeros; the lanes are folded at the end. */
static const uint64_t HASH_A = UINT64_C(0x9e3779b97f4a7c15), HASH_B = UINT64_C(0xd6e8feb86659fd93);
enum { LANES = 4 };

static inline uint64_t mix(uint64_t lane, uint64_t word) {
    lane += word * HASH_A;
    return (lane << 29 | lane >> 35) * HASH_B;
}

static void hash_row(uint64_t lanes[LANES], const char *row, int64_t bytes) {
    uint64_t words[LANES];
    for (; bytes >= (int64_t)sizeof words; row += sizeof words, bytes -= (int64_t)sizeof words) {
        memcpy(words, row, sizeof words);
        for (int i = 0; i < LANES; i++) lanes[i] = mix(lanes[i], words[i]);
    }
    if (bytes == 0) return;
    memset(words, 0, sizeof words);
    memcpy(words, row, (size_t)bytes);
    for (int i = 0; i < LANES; i++) lanes[i] = mix(lanes[i], words[i]);
}

uint64_t neap_op_hash(const neap_op *op) {
    uint64_t lanes[LANES] = {1, 2, 3, 4}, h = 0;
    for (int32_t i = 0; i < op->n_outputs; i++) {
        const neap_op_output *o = &op->outputs[i];
        const int64_t rows = (o->n ? (int64_t)*o->n : 1) * o->factor;
        lanes[0] = mix(mix(lanes[0], (uint64_t)rows), (uint64_t)o->bytes);
        for (int64_t r = 0; r < rows; r++) hash_row(lanes, (const char *)o->data + r * o->stride, o->bytes);
    }
    for (int i = 0; i < LANES; i++) h = mix(h, lanes[i]);
    return h ^ h >> 32;
}

/* ---- replay ---- */

/* The workers of a job that carry out one plan. */
typedef struct crew {
    const neap_plan *plan;
    neap_team *team;
    neap_op_time *times; /* NULL: no clock is read */
    uint64_t *hashes;
    int32_t first, n; /* workers */
    int32_t meeting;  /* of all of them; those of the streams follow */
    uint32_t base[NEAP_PLAN_STREAMS];
} crew;
enum { CREW_MEETINGS = 1 + NEAP_PLAN_STREAMS };
_Static_assert(2 * (int)CREW_MEETINGS <= (int)NEAP_TEAM_MEETINGS, "two plans at a time");

/* Who cuts a phase among themselves, seen by one of them. */
typedef struct share {
    int32_t worker, rank, n, meeting;
} share;

/* Equal shares, rounded so that an op of one task (a tap, a sort) stays with rank 0. */
static inline bool cut(const neap_op *op, int32_t rank, int32_t n, int64_t *begin, int64_t *end) {
    const int64_t tasks = op->count(op->args);
    *begin = (tasks * rank + n - 1) / n;
    *end = (tasks * (rank + 1) + n - 1) / n;
    return *begin < *end;
}

static void run_phase(const crew *c, const phase *f, const share *s) {
    for (int32_t i = f->op_begin; i < f->op_end; i++) {
        const neap_op *op = &c->plan->ops[i];
        int64_t begin, end;
        if (!cut(op, s->rank, s->n, &begin, &end)) continue;
        if (c->times) {
            neap_op_time *t = &c->times[(int64_t)i * neap_team_size(c->team) + s->worker];
            t->begin_ns = neap_clock_ns();
            op->run(op->args, begin, end, s->worker);
            t->end_ns = neap_clock_ns();
        } else {
            op->run(op->args, begin, end, s->worker);
        }
    }
    if (!c->hashes) return;
    neap_team_meet(c->team, s->meeting, s->n);
    for (int32_t i = f->op_begin; i < f->op_end && s->rank == 0; i++) c->hashes[i] = neap_op_hash(&c->plan->ops[i]);
}

/* This worker's stream of the fork that begins at phase i. base: epochs of the streams, which go on. */
static void run_fork(const crew *c, int32_t i, int32_t rank, uint32_t base[NEAP_PLAN_STREAMS]) {
    const phase *phases = c->plan->phases;
    const int32_t end = phases[i].end, n_streams = phases[i].n_streams;
    const int32_t stream = (int32_t)((int64_t)rank * n_streams / c->n);
    const int32_t first = (stream * c->n + n_streams - 1) / n_streams;
    const int32_t next = ((stream + 1) * c->n + n_streams - 1) / n_streams;
    const share s = {c->first + rank, rank - first, next - first, c->meeting + 1 + stream};
    const uint32_t per_phase = c->hashes ? 2 : 1;
    uint32_t done[NEAP_PLAN_STREAMS] = {0};
    for (; i < end; i++) {
        const phase *f = &phases[i];
        done[f->stream] += per_phase;
        if (f->stream != stream) continue;
        for (int32_t on = 0; on < n_streams; on++)
            if (f->after[on])
                neap_team_await(c->team, c->meeting + 1 + on, base[on] + (uint32_t)f->after[on] * per_phase);
        run_phase(c, f, &s);
        if (f->is_last)
            neap_team_arrive(c->team, s.meeting, s.n);
        else
            neap_team_meet(c->team, s.meeting, s.n);
    }
    for (int32_t on = 0; on < n_streams; on++) base[on] += done[on];
}

static void run_crew(const crew *c, int32_t worker) {
    const neap_plan *p = c->plan;
    const share all = {worker, worker - c->first, c->n, c->meeting};
    uint32_t base[NEAP_PLAN_STREAMS];
    memcpy(base, c->base, sizeof base);
    for (int32_t i = 0; i < p->n_phases;) {
        const phase *f = &p->phases[i];
        if (i > 0 && all.n > 1) neap_team_meet(c->team, all.meeting, all.n);
        if (f->n_streams > 1 && all.n >= f->n_streams) {
            run_fork(c, i, all.rank, base);
            i = f->end;
        } else {
            run_phase(c, f, &all);
            i++;
        }
    }
}

static crew crew_of(const neap_plan *p, neap_team *t, const neap_plan_trace *trace, int32_t first, int32_t n,
                    int32_t meeting) {
    assert(p->n_streams == 0); /* every fork is joined */
    crew c = {.plan = p, .team = t, .first = first, .n = n, .meeting = meeting};
    for (int32_t i = 0; i < NEAP_PLAN_STREAMS; i++) c.base[i] = neap_team_epoch(t, meeting + 1 + i);
    if (!trace) return c;
    c.times = trace->times;
    c.hashes = trace->hashes;
    if (c.times) memset(c.times, 0, (size_t)p->n_ops * (size_t)neap_team_size(t) * sizeof *c.times);
    return c;
}

static void run_one(void *arg, int32_t worker) { run_crew(arg, worker); }

void neap_plan_run(const neap_plan *p, neap_team *t, int32_t n_workers, const neap_plan_trace *trace) {
    crew c = crew_of(p, t, trace, 0, n_workers, 0);
    neap_team_run(t, n_workers, run_one, &c);
}

static void run_two(void *arg, int32_t worker) {
    const crew *c = arg;
    run_crew(&c[worker >= c[1].first], worker);
}

void neap_plan_run_both(const neap_plan *first, const neap_plan *second, neap_team *t, int32_t n_workers,
                        int32_t n_first, const neap_plan_trace *first_trace, const neap_plan_trace *second_trace) {
    assert(n_first >= 1 && n_first < n_workers);
    crew c[2] = {crew_of(first, t, first_trace, 0, n_first, 0),
                 crew_of(second, t, second_trace, n_first, n_workers - n_first, CREW_MEETINGS)};
    neap_team_run(t, n_workers, run_two, c);
}

/* ---- one op ---- */

typedef struct op_job {
    const neap_op *op;
    int32_t n_workers;
} op_job;

static void run_op(void *arg, int32_t worker) {
    const op_job *j = arg;
    int64_t begin, end;
    if (cut(j->op, worker, j->n_workers, &begin, &end)) j->op->run(j->op->args, begin, end, worker);
}

void neap_op_run(const neap_op *op, neap_team *t, int32_t n_workers) {
    op_job j = {op, n_workers};
    neap_team_run(t, n_workers, run_op, &j);
}
