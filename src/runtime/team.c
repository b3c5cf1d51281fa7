/* Worker team: one futex word starts a job, one barrier word ends each phase of it.
 *
 * Start: the caller raises `epoch`; workers wait on it between jobs.
 * Barrier: `arrived` counts up; the last one resets it and raises `phase`, on which the others wait.
 * A wake call is made only when someone sleeps.
 *
 * Waiting: spin, then sleep. How long to spin depends on the machine, and nothing tells which one it is. Alone, a
 * long spin ends awake nearly always, while a sleeper's core falls idle and takes 35 us to come back. Where cores
 * are shared, the thread that is waited for may need this very core: every spin delays the end of the wait. So a
 * gate spins long while that ends awake, short once it does not, and long again for one wait in PROBE to see
 * whether the machine has changed. No result depends on it. Measured on two cores, us per phase of 1 (20) us of work
 * in every worker; a fixed spin of 21 us, a fixed spin of 0.2 us, and this:
 *
 *                                               21 us       0.2 us        here
 *     2 workers alone                        1.5  (29)     33  (68)    1.5  (28)
 *     2 workers beside another such team      15  (61)    4.0  (57)    3.7  (51)
 *     2 workers beside a loop of nice 15     5.3  (27)     30  (57)    1.7  (27)
 *     2 workers beside a loop of nice 0      7.3  (59)    3.9 (103)    3.7  (48)
 *     2 workers on one core                   28  (72)    4.1  (47)    4.6  (46)
 *     4 workers on one core                   80 (162)    8.6  (96)    9.9  (94)
 *     4 workers on both cores                 43  (90)     47  (84)     36  (91)
 *
 * Memory order: arrivals are acq_rel on one counter, the release of `phase` publishes them to all waiters. */
#include "runtime/team.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"

enum {
    SHORT_SPIN = 20,       /* pauses: 0.2 .. 1 us */
    LONG_SPIN_NS = 100000, /* above the 35 us in which a sleeping core wakes */
    TRUST_MAX = 16,
    TRUST_LOST = 2, /* by a wait that ended asleep; one that ended awake wins 1: two of three must */
    PROBE = 251     /* without trust one wait in so many is long; a prime: it meets every phase of a plan */
};

/* A word that threads wait on until it differs from what they saw. */
typedef struct gate {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
    _Atomic int32_t trust; /* that long spins end awake; a hint, so lost updates do no harm */
} gate;

typedef struct member {
    gate start; /* raised once per job of this worker */
    neap_team *team;
    int32_t worker;
    pthread_t thread;
} member;

struct neap_team {
    gate phase; /* raised once per barrier */
    _Alignas(64) _Atomic int32_t arrived;
    int32_t n_threads, n_started;
    int32_t n_workers; /* of the job; this and the next three are written before the workers' gates are raised */
    neap_team_fn fn;
    void *arg;
    bool is_ending;
    neap_arena *arena; /* holds this struct: 64-byte alignment */
    member members[];
};

static inline void pause_hint(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* True when the value changed while this thread spun. */
static bool gate_spin(const gate *g, uint32_t seen, bool is_long) {
    for (int64_t end = 0;;) {
        for (int i = 0; i < SHORT_SPIN; i++) {
            if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) return true;
            pause_hint();
        }
        if (!is_long) return false;
        const int64_t now = clock_ns();
        if (end == 0) end = now + LONG_SPIN_NS;
        if (now >= end) return false;
    }
}

static void gate_wait(gate *g, uint32_t seen) {
    const int32_t trust = atomic_load_explicit(&g->trust, memory_order_relaxed);
    const bool is_long = trust > 0 || seen % PROBE == 0;
    if (gate_spin(g, seen, is_long)) {
        /* stored only while it still changes: on a quiet machine the gate's cache line stays shared */
        if (is_long && trust < TRUST_MAX) atomic_store_explicit(&g->trust, trust + 1, memory_order_relaxed);
        return;
    }
    if (trust > 0) atomic_store_explicit(&g->trust, trust > TRUST_LOST ? trust - TRUST_LOST : 0, memory_order_relaxed);
    /* seq_cst on both sides: either the raiser sees the sleeper, or the sleeper sees the new value. */
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == seen) syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_raise(gate *g) {
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) != 0) syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void neap_team_barrier(neap_team *t) {
    const int32_t n = t->n_workers; /* read before arriving: the next job may begin when all have arrived */
    if (n == 1) return;
    uint32_t seen = atomic_load_explicit(&t->phase.value, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == n - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        gate_raise(&t->phase);
    } else {
        gate_wait(&t->phase, seen);
    }
}

static void *worker_main(void *p) {
    member *m = p;
    neap_team *t = m->team;
    uint32_t seen = 0;
    for (;;) {
        gate_wait(&m->start, seen);
        seen++;
        if (t->is_ending) return NULL;
        t->fn(t->arg, m->worker);
        neap_team_barrier(t);
    }
}

void neap_team_run(neap_team *t, int32_t n_workers, neap_team_fn fn, void *arg) {
    assert(n_workers >= 1 && n_workers <= t->n_threads);
    t->fn = fn;
    t->arg = arg;
    t->n_workers = n_workers;
    for (int32_t i = 1; i < n_workers; i++) gate_raise(&t->members[i].start);
    fn(arg, 0);
    neap_team_barrier(t);
}

neap_status neap_team_create(neap_team **out, int32_t n_threads, neap_pin pin) {
    *out = NULL;
    (void)pin;
    NEAP_CHECK(n_threads >= 1 && n_threads <= NEAP_TEAM_MAX, NEAP_INVALID_ARGUMENT, "threads: %d is outside 1 .. %d",
               n_threads, NEAP_TEAM_MAX);
    neap_arena *arena;
    void *p;
    NEAP_TRY(neap_arena_create(&arena, "team"));
    neap_status status = neap_arena_alloc(arena, sizeof(neap_team) + sizeof(member) * (size_t)n_threads, &p);
    if (status != NEAP_OK) {
        neap_arena_destroy(arena);
        return status;
    }
    neap_team *t = p;
    t->arena = arena;
    t->n_threads = n_threads;
    t->phase.trust = TRUST_MAX;
    for (int32_t i = 1; i < n_threads; i++) {
        t->members[i].start.trust = TRUST_MAX;
        t->members[i].team = t;
        t->members[i].worker = i;
        if (pthread_create(&t->members[i].thread, NULL, worker_main, &t->members[i]) != 0) {
            neap_team_destroy(t);
            NEAP_FAIL(NEAP_LIMIT, "threads: cannot start worker %d of %d", i + 1, n_threads);
        }
        t->n_started++;
    }
    *out = t;
    return NEAP_OK;
}

void neap_team_destroy(neap_team *t) {
    if (!t) return;
    t->is_ending = true;
    for (int32_t i = 1; i <= t->n_started; i++) gate_raise(&t->members[i].start);
    for (int32_t i = 1; i <= t->n_started; i++) pthread_join(t->members[i].thread, NULL);
    neap_arena_destroy(t->arena);
}

int32_t neap_team_size(const neap_team *t) { return t->n_threads; }
