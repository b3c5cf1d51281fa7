/* Worker team: gates that threads wait at, meetings made of gates, jobs.
 *
 * Start: each worker has a gate of its own; the caller raises those of the workers that the job wants.
 * Meeting: `arrived` counts up; the last one resets it and raises `epoch`, on which the others wait. At the end of a
 * job only the caller waits. A wake call is made only when someone sleeps.
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
 * Memory order: arrivals are acq_rel on one counter, raising `epoch` publishes them to all waiters. */
#include "runtime/team.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "runtime/cores.h"

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

typedef struct meeting_point {
    gate epoch; /* raised when all have arrived */
    _Alignas(64) _Atomic int32_t arrived;
} meeting_point;

enum { ALL = NEAP_TEAM_MEETINGS, CPU_SETS = 8 }; /* 8192 CPUs */
typedef struct cpu_mask {
    cpu_set_t sets[CPU_SETS];
} cpu_mask;

typedef struct member {
    gate start; /* raised once per job of this worker */
    neap_team *team;
    int32_t worker, cpu; /* cpu -1: anywhere */
    _Atomic int32_t at;  /* SPREAD: the CPU on which its latest job began */
    int32_t stays_on;    /* SPREAD: fixed there, because it met another worker on its CPU, */
    int64_t stays_until; /* for so long (0 = free), */
    cpu_mask before;     /* having had this mask */
    pthread_t thread;
} member;

struct neap_team {
    meeting_point meetings[NEAP_TEAM_MEETINGS + 1]; /* the last one: all workers of the job */
    int32_t n_threads, n_started;
    neap_pin pin;
    int32_t n_cpus;    /* that workers were given, all different */
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

/* True when the value changed while this thread spun. */
static bool gate_spin(const gate *g, uint32_t seen, bool is_long) {
    for (int64_t end = 0;;) {
        for (int i = 0; i < SHORT_SPIN; i++) {
            if (atomic_load_explicit(&g->value, memory_order_acquire) != seen) return true;
            pause_hint();
        }
        if (!is_long) return false;
        const int64_t now = neap_clock_ns();
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

/* ---- meetings ---- */

/* True for the one who makes the meeting full, and has raised its epoch. */
static bool arrive(meeting_point *m, int32_t n) {
    if (n > 1 && atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) < n - 1) return false;
    if (n > 1) atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
    gate_raise(&m->epoch);
    return true;
}

static void meet(meeting_point *m, int32_t n) {
    const uint32_t seen = atomic_load_explicit(&m->epoch.value, memory_order_acquire);
    if (!arrive(m, n)) gate_wait(&m->epoch, seen);
}

void neap_team_meet(neap_team *t, int32_t meeting, int32_t n) { meet(&t->meetings[meeting], n); }
void neap_team_arrive(neap_team *t, int32_t meeting, int32_t n) { (void)arrive(&t->meetings[meeting], n); }

uint32_t neap_team_epoch(const neap_team *t, int32_t meeting) {
    return atomic_load_explicit(&t->meetings[meeting].epoch.value, memory_order_acquire);
}

void neap_team_await(neap_team *t, int32_t meeting, uint32_t epoch) {
    for (;;) {
        const uint32_t seen = neap_team_epoch(t, meeting);
        if ((int32_t)(seen - epoch) >= 0) return;
        gate_wait(&t->meetings[meeting].epoch, seen);
    }
}

void neap_team_barrier(neap_team *t) {
    const int32_t n = t->n_workers; /* read before arriving: the next job may begin when all have arrived */
    if (n > 1) meet(&t->meetings[ALL], n);
}

/* ---- places ---- */

static bool mask_get(cpu_mask *m) {
    memset(m, 0, sizeof *m);
    return sched_getaffinity(0, sizeof *m, m->sets) == 0;
}
static bool mask_set(const cpu_mask *m) { return sched_setaffinity(0, sizeof *m, m->sets) == 0; }
static void mask_of(cpu_mask *m, int32_t cpu) {
    memset(m, 0, sizeof *m);
    CPU_SET_S((size_t)cpu, sizeof *m, m->sets);
}

/* The calling thread goes to the CPU; it may leave at once again unless it stays. */
static void place(int32_t cpu, bool stays) {
    cpu_mask before, one;
    if (cpu < 0 || !mask_get(&before)) return;
    mask_of(&one, cpu);
    if (mask_set(&one) && !stays) (void)mask_set(&before);
}

/* A worker that is woken while no CPU is idle is put on the CPU of whoever woke it, and the two take turns there until
 * the kernel balances, milliseconds later. So a worker that finds itself on the CPU of one before it goes to another
 * one, and stays for a while: the next wake would bring it back. */
static const int64_t STAY_NS = 20000000;

static bool is_taken(const neap_team *t, int32_t worker, int32_t cpu) {
    for (int32_t i = 0; i < worker; i++)
        if (atomic_load_explicit(&t->members[i].at, memory_order_relaxed) == cpu) return true;
    return false;
}

/* Whoever changed the mask meanwhile is right. */
static void free_again(member *m) {
    cpu_mask now, one;
    mask_of(&one, m->stays_on);
    if (mask_get(&now) && memcmp(&now, &one, sizeof one) == 0) (void)mask_set(&m->before);
    m->stays_until = 0;
}

/* A CPU of the team that no worker before this one uses; -1: there is none. */
static int32_t free_cpu(const neap_team *t, const member *m) {
    for (int32_t i = 0; i < t->n_cpus; i++) {
        const int32_t cpu = t->members[(m->worker + i) % t->n_cpus].cpu;
        if (!is_taken(t, m->worker, cpu) && CPU_ISSET_S((size_t)cpu, sizeof m->before, m->before.sets)) return cpu;
    }
    return -1;
}

static void keep_apart(neap_team *t, member *m) {
    int32_t cpu = sched_getcpu();
    if (m->stays_until && neap_clock_ns() >= m->stays_until) free_again(m);
    if (t->n_workers <= t->n_cpus && is_taken(t, m->worker, cpu)) {
        if (m->stays_until) free_again(m);
        const int32_t to = mask_get(&m->before) ? free_cpu(t, m) : -1;
        cpu_mask one;
        if (to >= 0) mask_of(&one, to);
        if (to >= 0 && mask_set(&one)) {
            m->stays_on = cpu = to;
            m->stays_until = neap_clock_ns() + STAY_NS;
        }
    }
    atomic_store_explicit(&m->at, cpu, memory_order_relaxed);
}

/* ---- jobs ---- */

static void *worker_main(void *p) {
    member *m = p;
    neap_team *t = m->team;
    char name[16];
    (void)snprintf(name, sizeof name, "neap-%d", m->worker);
    (void)pthread_setname_np(pthread_self(), name);
    const bool is_spread = t->pin == NEAP_PIN_SPREAD && m->cpu >= 0;
    place(m->cpu, t->pin == NEAP_PIN_FIXED);
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&m->start, seen);
        if (t->is_ending) return NULL;
        if (is_spread) keep_apart(t, m);
        const int32_t n = t->n_workers;
        t->fn(t->arg, m->worker);
        (void)arrive(&t->meetings[ALL], n); /* nobody waits for the others but the caller */
    }
}

static void run_job(neap_team *t, int32_t n_workers, neap_team_fn fn, void *arg) {
    t->fn = fn;
    t->arg = arg;
    t->n_workers = n_workers;
    if (t->pin == NEAP_PIN_SPREAD && n_workers > 1)
        atomic_store_explicit(&t->members[0].at, sched_getcpu(), memory_order_relaxed);
    for (int32_t i = 1; i < n_workers; i++) gate_raise(&t->members[i].start);
    fn(arg, 0);
    neap_team_barrier(t);
}

void neap_team_run(neap_team *t, int32_t n_workers, neap_team_fn fn, void *arg) {
    assert(n_workers >= 1 && n_workers <= t->n_threads);
    cpu_mask before, one, after;
    const int32_t cpu = t->members[0].cpu;
    if (t->pin != NEAP_PIN_FIXED || cpu < 0 || !mask_get(&before)) {
        run_job(t, n_workers, fn, arg);
        return;
    }
    mask_of(&one, cpu);
    const bool is_set = mask_set(&one); /* not when the CPU has gone from what the caller may use */
    run_job(t, n_workers, fn, arg);
    /* whoever changed the mask during the job is right */
    if (is_set && mask_get(&after) && memcmp(&after, &one, sizeof one) == 0) (void)mask_set(&before);
}

/* ---- create and destroy ---- */

/* Signals that tell of a fault of the thread itself, and the profiler's, stay with it. */
static int start_thread(member *m) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(&m->thread, NULL, worker_main, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Workers beyond the CPUs begin again at the first. */
static void choose_cpus(neap_team *t) {
    int32_t cpus[NEAP_TEAM_MAX];
    int32_t n = 0;
    if (t->pin != NEAP_PIN_NONE) n = neap_cores_order("/sys/devices/system", cpus, NEAP_TEAM_MAX);
    if (n > NEAP_TEAM_MAX) n = NEAP_TEAM_MAX;
    for (int32_t i = 0; i < t->n_threads; i++) t->members[i].cpu = n > 0 ? cpus[i % n] : -1;
    t->n_cpus = n < t->n_threads ? n : t->n_threads;
}

static neap_status start_workers(neap_team *t) {
    for (int32_t i = 0; i <= NEAP_TEAM_MEETINGS; i++) t->meetings[i].epoch.trust = TRUST_MAX;
    choose_cpus(t);
    for (int32_t i = 1; i < t->n_threads; i++) {
        member *m = &t->members[i];
        m->start.trust = TRUST_MAX;
        m->team = t;
        m->worker = i;
        m->at = -1;
        const int error = start_thread(m);
        NEAP_CHECK(error == 0, NEAP_LIMIT, "threads: cannot start worker %d of %d: %s", i + 1, t->n_threads,
                   strerror(error));
        t->n_started++;
    }
    if (t->pin == NEAP_PIN_SPREAD && t->n_threads > 1) place(t->members[0].cpu, false);
    return NEAP_OK;
}

neap_status neap_team_create(neap_team **out, int32_t n_threads, neap_pin pin) {
    *out = NULL;
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
    t->pin = pin;
    status = start_workers(t);
    if (status != NEAP_OK) {
        neap_team_destroy(t);
        return status;
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
