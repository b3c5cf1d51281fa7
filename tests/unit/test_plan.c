/* Plans: random ones with streams, events and ops beside each other, run by 1 to 5 workers, alone and in pairs, against
 * one op after the other in the order of capture. What an op may touch follows from the definition of fork, wait and
 * join in runtime/plan.h, computed here on its own; so a barrier or an event that is missing shows in the results, in
 * the times of the trace, or under ThreadSanitizer. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "runtime/plan.h"

enum { BUFFERS = 12, WORDS = 300, SOURCES = 3, PHASES_MAX = 40, OPS_MAX = 80, WORKERS = 5 };

static uint64_t random_state = 88172645463325252u;
static uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

/* ---- ops: every word of a buffer from its old value and words of others ---- */

typedef struct op_args {
    const int32_t *n; /* tasks of this run: a slot */
    uint32_t *to;
    const uint32_t *from[SOURCES];
    int32_t n_from, id;
    pthread_t *thread; /* who did task 0 */
} op_args;

static int64_t op_count(const void *p) { return *((const op_args *)p)->n; }
static void op_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const op_args *a = p;
    (void)worker;
    if (begin == 0) *a->thread = pthread_self();
    for (int64_t i = begin; i < end; i++) {
        uint32_t sum = a->to[i] * 3 + (uint32_t)a->id;
        for (int32_t k = 0; k < a->n_from; k++)
            sum = sum * 31 + a->from[k][WORDS - 1 - i] + a->from[k][(i * 7) % WORDS];
        a->to[i] = sum;
    }
}

/* ---- random plans ---- */

typedef struct scene {
    neap_arena *arena;
    neap_plan *plan;
    int32_t sizes[3]; /* slots: how many tasks ops have */
    uint32_t buffers[BUFFERS][WORDS];
    op_args args[OPS_MAX];
    pthread_t threads[OPS_MAX];
    int32_t n_ops, n_phases, phase_of[OPS_MAX], stream_of[PHASES_MAX];
    uint64_t before[PHASES_MAX];                   /* phases that are done when this one begins */
    uint64_t reads[BUFFERS], writes[BUFFERS];      /* by phase */
    uint64_t done, known[NEAP_PLAN_STREAMS];       /* before the fork; by the next phase of each stream */
    uint64_t finished[NEAP_PLAN_STREAMS], in_fork; /* what the latest phase of each stream brings along */
    neap_op_time times[OPS_MAX * WORKERS];
    uint64_t hashes[OPS_MAX], want_hashes[OPS_MAX];
    uint32_t want[BUFFERS][WORDS];
} scene;

static int32_t choose(const uint64_t *touched, const uint64_t *also, uint64_t before) {
    int32_t b = (int32_t)random_below(BUFFERS);
    for (int32_t i = 0; i < BUFFERS; i++, b = (b + 1) % BUFFERS)
        if (((touched[b] | (also ? also[b] : 0)) & ~before) == 0) return b;
    return -1;
}

static void add_op(scene *s, int32_t phase, int32_t stream, bool is_beside) {
    const uint64_t before = s->before[phase], me = UINT64_C(1) << phase;
    op_args *a = &s->args[s->n_ops];
    int32_t to = choose(s->reads, s->writes, before);
    *a = (op_args){.n = &s->sizes[random_below(3)], .id = s->n_ops, .thread = &s->threads[s->n_ops]};
    static uint32_t nowhere[WORDS];
    a->to = to < 0 ? nowhere : s->buffers[to];
    if (to < 0) a->n = &s->sizes[2]; /* no buffer is free: no task */
    if (to >= 0) s->writes[to] |= me;
    a->n_from = (int32_t)random_below(SOURCES + 1);
    for (int32_t k = 0; k < a->n_from; k++) {
        int32_t from = choose(s->writes, NULL, before);
        if (from < 0 || from == to) {
            a->n_from = k;
            break;
        }
        a->from[k] = s->buffers[from];
        s->reads[from] |= me;
    }
    neap_op op = {.name = "op", .layer = s->n_ops, .stream = stream, .is_beside = is_beside, .args = a};
    op.count = op_count;
    op.run = op_run;
    op.n_outputs = 1;
    op.outputs[0] = (neap_op_output){.data = a->to, .bytes = 4, .stride = 4, .n = a->n, .factor = 1};
    neap_plan_add(s->plan, &op);
    s->phase_of[s->n_ops++] = phase;
}

static void add_phase(scene *s, int32_t stream, uint64_t before) {
    const int32_t phase = s->n_phases++;
    s->stream_of[phase] = stream;
    s->before[phase] = before;
    int32_t n = 1 + (int32_t)random_below(2);
    for (int32_t i = 0; i < n; i++) add_op(s, phase, stream, i > 0);
}

static void add_fork(scene *s) {
    const int32_t n_streams = 1 + (int32_t)random_below(NEAP_PLAN_STREAMS);
    neap_plan_fork(s->plan, n_streams);
    s->in_fork = s->done;
    for (int32_t i = 0; i < NEAP_PLAN_STREAMS; i++) s->known[i] = s->finished[i] = s->done;
    for (uint32_t n = random_below(12); n > 0 && s->n_phases < PHASES_MAX; n--) {
        int32_t stream = (int32_t)random_below((uint32_t)n_streams), on = (int32_t)random_below((uint32_t)n_streams);
        if (random_below(3) == 0) {
            neap_plan_wait(s->plan, stream, on);
            s->known[stream] |= s->finished[on];
        }
        add_phase(s, stream, s->known[stream]);
        s->known[stream] |= UINT64_C(1) << (s->n_phases - 1);
        s->finished[stream] = s->known[stream];
        s->in_fork |= s->known[stream];
    }
    neap_plan_join(s->plan);
    s->done = s->in_fork;
}

static void make(scene *s, int32_t n_steps) {
    memset(s, 0, sizeof *s);
    assert_int_equal(neap_arena_create(&s->arena, "test"), NEAP_OK);
    const uint64_t bytes = neap_arena_bytes(s->arena);
    assert_int_equal(neap_plan_create(&s->plan, s->arena, OPS_MAX), NEAP_OK);
    const uint64_t claimed = neap_arena_bytes(s->arena) - bytes, gaps = 4 * 64; /* gaps: under AddressSanitizer */
    assert_in_range(claimed, neap_plan_bytes(OPS_MAX), neap_plan_bytes(OPS_MAX) + gaps);
    for (int32_t i = 0; i < n_steps && s->n_phases < PHASES_MAX; i++) {
        if (random_below(2)) {
            add_fork(s);
        } else {
            add_phase(s, 0, s->done);
            s->done |= UINT64_C(1) << (s->n_phases - 1);
        }
    }
    assert_int_equal(neap_plan_ops(s->plan), s->n_ops);
    assert_int_equal(neap_plan_phases(s->plan), s->n_phases);
    for (int32_t i = 0; i < s->n_ops; i++) assert_int_equal(neap_plan_phase_of(s->plan, i), s->phase_of[i]);
}

static void fill(scene *s, uint32_t seed) {
    for (int32_t b = 0; b < BUFFERS; b++)
        for (uint32_t i = 0; i < WORDS; i++) s->buffers[b][i] = (seed + (uint32_t)b) * 2654435761u + i * 40503u;
    memset(s->threads, 0, sizeof s->threads);
    memset(s->times, 0x5a, sizeof s->times);
    memset(s->hashes, 0, sizeof s->hashes);
}

/* One op after the other. */
static void expect(scene *s, uint32_t seed) {
    s->sizes[0] = (int32_t)random_below(WORDS + 1);
    s->sizes[1] = random_below(2) ? WORDS : 1;
    s->sizes[2] = 0;
    fill(s, seed);
    for (int32_t i = 0; i < s->n_ops; i++) {
        op_run(&s->args[i], 0, *s->args[i].n, 0);
        s->want_hashes[i] = neap_op_hash(neap_plan_at(s->plan, i));
    }
    memcpy(s->want, s->buffers, sizeof s->want);
    fill(s, seed);
}

static void check_times(const scene *s, int32_t first, int32_t end) {
    int64_t begins[PHASES_MAX], ends[PHASES_MAX];
    for (int32_t i = 0; i < PHASES_MAX; i++) begins[i] = INT64_MAX, ends[i] = 0;
    for (int32_t i = 0; i < s->n_ops; i++) {
        int64_t n = 0;
        for (int32_t w = 0; w < WORKERS; w++) {
            const neap_op_time *t = &s->times[i * WORKERS + w];
            if (t->begin_ns == 0 && t->end_ns == 0) continue;
            n++;
            assert_true(w >= first && w < end);
            assert_true(t->begin_ns > 0 && t->begin_ns <= t->end_ns);
            int32_t f = s->phase_of[i];
            if (t->begin_ns < begins[f]) begins[f] = t->begin_ns;
            if (t->end_ns > ends[f]) ends[f] = t->end_ns;
        }
        assert_true(n <= *s->args[i].n && (n > 0) == (*s->args[i].n > 0));
    }
    for (int32_t f = 0; f < s->n_phases; f++)
        for (int32_t g = 0; g < f; g++)
            if (s->before[f] >> g & 1) assert_true(ends[g] <= begins[f]);
}

static void check(const scene *s, const neap_plan_trace *trace, int32_t first, int32_t end) {
    assert_memory_equal(s->buffers, s->want, sizeof s->want);
    if (trace && trace->hashes) assert_memory_equal(s->hashes, s->want_hashes, (size_t)s->n_ops * sizeof *s->hashes);
    if (trace && trace->times) check_times(s, first, end);
    for (int32_t i = 0; i < s->n_ops; i++) /* the caller's own thread */
        if (first == 0 && s->stream_of[s->phase_of[i]] == 0 && *s->args[i].n > 0)
            assert_true(pthread_equal(s->threads[i], pthread_self()));
}

static neap_plan_trace *trace_of(scene *s, neap_plan_trace *t, int kind) {
    *t = (neap_plan_trace){kind & 1 ? s->times : NULL, kind & 2 ? s->hashes : NULL};
    return kind ? t : NULL;
}

enum { PLANS = 100, REPLAYS = 4 };

static void random_plans_equal_one_op_after_the_other(void **state) {
    (void)state;
    static scene s;
    neap_team *t;
    assert_int_equal(neap_team_create(&t, WORKERS, NEAP_PIN_NONE), NEAP_OK);
    int32_t most_waits = 0;
    for (int plan = 0; plan < PLANS; plan++) {
        make(&s, 1 + plan % 12);
        int32_t n_events = neap_plan_events(s.plan, NULL, 0);
        if (n_events > most_waits) most_waits = n_events;
        for (int32_t n = 1; n <= WORKERS; n++) {
            for (int replay = 0; replay < REPLAYS; replay++) { /* without anything, times, hashes, both */
                neap_plan_trace trace, *asked = trace_of(&s, &trace, replay);
                expect(&s, (uint32_t)(plan * 100 + replay));
                const uint64_t calls = neap_alloc_calls();
                neap_plan_run(s.plan, t, n, asked);
                assert_int_equal(neap_alloc_calls(), calls);
                check(&s, asked, 0, n);
            }
        }
        neap_arena_destroy(s.arena);
    }
    assert_true(most_waits > 5);
    neap_team_destroy(t);
}

static void two_plans_at_a_time(void **state) {
    (void)state;
    static scene a, b;
    neap_team *t;
    assert_int_equal(neap_team_create(&t, WORKERS, NEAP_PIN_NONE), NEAP_OK);
    for (int plan = 0; plan < PLANS / 2; plan++) {
        make(&a, 1 + plan);
        make(&b, 12 - plan % 12);
        for (int32_t n = 2; n <= WORKERS; n++) {
            for (int32_t first = 1; first < n; first++) {
                neap_plan_trace ta, tb, *aa = trace_of(&a, &ta, (plan + n) % 4), *bb = trace_of(&b, &tb, first % 4);
                expect(&a, (uint32_t)plan);
                expect(&b, (uint32_t)n);
                neap_plan_run_both(a.plan, b.plan, t, n, first, aa, bb);
                check(&a, aa, 0, first);
                check(&b, bb, first, n);
                fill(&a, (uint32_t)plan);
                neap_plan_run(a.plan, t, n, NULL); /* and alone again */
                check(&a, NULL, 0, n);
            }
        }
        neap_arena_destroy(a.arena);
        neap_arena_destroy(b.arena);
    }
    neap_team_destroy(t);
}

/* ---- single properties ---- */

static void one_plan(neap_arena **a, neap_plan **p) {
    assert_int_equal(neap_arena_create(a, "test"), NEAP_OK);
    assert_int_equal(neap_plan_create(p, *a, 16), NEAP_OK);
}

static const int32_t no_tasks = 0;
static void add(neap_plan *p, const char *name, int32_t stream, bool is_beside) {
    static pthread_t who;
    static op_args none = {.n = &no_tasks, .thread = &who};
    neap_plan_add(
        p,
        &(neap_op){
            .name = name, .stream = stream, .is_beside = is_beside, .count = op_count, .run = op_run, .args = &none});
}

static bool has_event(const neap_plan_event *e, int32_t n, int32_t op, int32_t on) {
    for (int32_t i = 0; i < n; i++)
        if (e[i].op == op && e[i].on_op == on) return true;
    return false;
}

static void events_are_listed(void **state) {
    (void)state;
    neap_arena *a;
    neap_plan *p;
    one_plan(&a, &p);
    add(p, "0", 0, false);
    add(p, "1", 0, false);
    neap_plan_fork(p, 2);
    add(p, "2", 0, false);
    add(p, "3", 0, true);
    add(p, "4", 1, false);
    neap_plan_wait(p, 1, 0);
    add(p, "5", 1, false);
    add(p, "6", 0, false);
    neap_plan_join(p);
    neap_plan_fork(p, 2);    /* right after a join */
    neap_plan_wait(p, 0, 1); /* for nothing: no phase of stream 1 so far */
    add(p, "7", 1, false);
    neap_plan_join(p);
    add(p, "8", 0, false);
    neap_plan_event e[16];
    int32_t n = neap_plan_events(p, e, 16);
    assert_int_equal(n, 4);
    assert_true(has_event(e, n, 4, 1)); /* fork */
    assert_true(has_event(e, n, 5, 2)); /* wait: for the phase of ops 2 and 3 */
    assert_true(has_event(e, n, 7, 6)); /* join and fork: stream 1 of the second waits for stream 0 of the first */
    assert_true(has_event(e, n, 8, 7)); /* join */
    assert_int_equal(neap_plan_events(p, e, 1), 4);
    assert_int_equal(neap_plan_phases(p), 8);
    assert_int_equal(neap_plan_phase_of(p, 3), 2);
    neap_arena_destroy(a);
}

static void plans_of_nothing(void **state) {
    (void)state;
    neap_arena *a;
    neap_plan *p, *empty;
    neap_team *t;
    one_plan(&a, &p);
    assert_int_equal(neap_plan_create(&empty, a, 0), NEAP_OK);
    add(p, "op of no task", 0, false);
    neap_plan_fork(p, 4);
    neap_plan_join(p);
    neap_plan_fork(p, 2);
    add(p, "only one of two streams", 1, false);
    neap_plan_join(p);
    assert_int_equal(neap_team_create(&t, 3, NEAP_PIN_NONE), NEAP_OK);
    for (int32_t n = 1; n <= 3; n++) {
        neap_plan_run(empty, t, n, NULL);
        neap_plan_run(p, t, n, NULL);
        if (n > 1) neap_plan_run_both(p, empty, t, n, 1, NULL, NULL);
    }
    neap_team_destroy(t);
    neap_arena_destroy(a);
}

static void one_op_alone(void **state) {
    (void)state;
    static uint32_t to[WORDS], want[WORDS];
    int32_t n = WORDS;
    pthread_t who;
    op_args args = {.n = &n, .to = to, .id = 9, .thread = &who};
    const neap_op op = {.name = "op", .count = op_count, .run = op_run, .args = &args};
    neap_team *t;
    assert_int_equal(neap_team_create(&t, WORKERS, NEAP_PIN_NONE), NEAP_OK);
    for (uint32_t i = 0; i < WORDS; i++) want[i] = 9;
    for (int32_t workers = 1; workers <= WORKERS; workers++) {
        memset(to, 0, sizeof to);
        neap_op_run(&op, t, workers);
        assert_memory_equal(to, want, sizeof to);
        assert_true(pthread_equal(who, pthread_self()));
    }
    neap_team_destroy(t);
}

/* Every bit, the order of rows, the number of rows and outputs count; what lies between rows does not. */
static void hashes_see_what_was_written(void **state) {
    (void)state;
    unsigned char data[4][80];
    int32_t n = 2;
    neap_op op = {.n_outputs = 2};
    for (size_t i = 0; i < sizeof data; i++) ((unsigned char *)data)[i] = (unsigned char)(i * 37 + 11);
    op.outputs[0] = (neap_op_output){.data = data, .bytes = 44, .stride = 80, .n = &n, .factor = 2};
    op.outputs[1] = (neap_op_output){.data = data[3] + 50, .bytes = 7, .stride = 7, .n = NULL, .factor = 1};
    const uint64_t h = neap_op_hash(&op);
    assert_true(h != 0 && neap_op_hash(&op) == h);
    for (int32_t row = 0; row < 4; row++) {
        for (int32_t bit = 0; bit < 80 * 8; bit++) {
            bool is_seen = bit / 8 < 44 || (row == 3 && bit / 8 >= 50 && bit / 8 < 57);
            data[row][bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_int_equal(neap_op_hash(&op) == h, !is_seen);
            data[row][bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    n = 1;
    assert_true(neap_op_hash(&op) != h);
    n = 2;
    op.n_outputs = 1;
    assert_true(neap_op_hash(&op) != h);
    static const unsigned char zeros[64];
    op.outputs[0] = (neap_op_output){.data = zeros, .bytes = 4, .stride = 4, .factor = 3};
    const uint64_t three = neap_op_hash(&op);
    op.outputs[0] = (neap_op_output){.data = zeros, .bytes = 4, .stride = 4, .factor = 4};
    assert_true(neap_op_hash(&op) != three);
    op.outputs[0] = (neap_op_output){.data = zeros, .bytes = 12, .stride = 12, .factor = 1};
    assert_true(neap_op_hash(&op) != three);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_equal_one_op_after_the_other),
        cmocka_unit_test(two_plans_at_a_time),
        cmocka_unit_test(events_are_listed),
        cmocka_unit_test(plans_of_nothing),
        cmocka_unit_test(one_op_alone),
        cmocka_unit_test(hashes_see_what_was_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
