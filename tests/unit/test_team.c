/* The worker team: barriers, jobs of fewer workers than there are, places, sleep, signals, failed creation. */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "runtime/cores.h"
#include "runtime/team.h"

/* ---- jobs ---- */

enum { ROUNDS = 2000, THREADS = 4 };

typedef struct relay {
    neap_team *team;
    int64_t cells[THREADS];
    int64_t sums[THREADS];
} relay;

/* Every worker writes its cell, meets the others, then sums all cells: wrong as soon as a barrier leaks. */
static void relay_job(void *arg, int32_t worker) {
    relay *r = arg;
    for (int i = 0; i < ROUNDS; i++) {
        r->cells[worker] = (int64_t)i * (worker + 1);
        neap_team_barrier(r->team);
        int64_t sum = 0;
        for (int w = 0; w < THREADS; w++) sum += r->cells[w];
        r->sums[worker] += sum;
        neap_team_barrier(r->team);
    }
}

static void team_barrier_orders_phases(void **state) {
    (void)state;
    relay r = {0};
    assert_int_equal(neap_team_create(&r.team, THREADS, NEAP_PIN_NONE), NEAP_OK);
    neap_team_run(r.team, neap_team_size(r.team), relay_job, &r);
    neap_team_run(r.team, neap_team_size(r.team), relay_job, &r);
    int64_t want = 0;
    for (int i = 0; i < ROUNDS; i++) want += (int64_t)i * (1 + 2 + 3 + 4);
    for (int w = 0; w < THREADS; w++) assert_int_equal(r.sums[w], 2 * want);
    neap_team_destroy(r.team);
}

static void count_job(void *arg, int32_t worker) { ((int *)arg)[worker]++; }

static void team_runs_every_worker_once(void **state) {
    (void)state;
    for (int n = 1; n <= THREADS; n++) {
        neap_team *t;
        int hits[THREADS] = {0};
        assert_int_equal(neap_team_create(&t, n, NEAP_PIN_NONE), NEAP_OK);
        assert_int_equal(neap_team_size(t), n);
        for (int i = 0; i < 300; i++) neap_team_run(t, neap_team_size(t), count_job, hits);
        for (int w = 0; w < THREADS; w++) assert_int_equal(hits[w], w < n ? 300 : 0);
        neap_team_destroy(t);
    }
    neap_team *t;
    assert_int_equal(neap_team_create(&t, 0, NEAP_PIN_NONE), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_team_create(&t, NEAP_TEAM_MAX + 1, NEAP_PIN_NONE), NEAP_INVALID_ARGUMENT);
    neap_team_destroy(NULL);
}

/* Two workers on one core: each wait holds up the very thread it waits for. Spinning until the scheduler steps in
 * takes milliseconds per phase, always spinning long 100 us; giving way at once 4 us. Processor time is judged, which
 * other programs do not change. */
enum { SHARED_PHASES = 20000, SHARED_PHASE_US = 15 };

static void pass_phases(void *arg, int32_t worker) {
    (void)worker;
    for (int i = 0; i < SHARED_PHASES; i++) neap_team_barrier(arg);
}

static double processor_us(void) {
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return 1e6 * (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void team_shares_one_core(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* the workers inherit it */
    neap_team *t;
    assert_int_equal(neap_team_create(&t, 2, NEAP_PIN_NONE), NEAP_OK);
    double took = 1e9;
    for (int i = 0; i < 5 && took >= SHARED_PHASE_US; i++) { /* the least: others may empty the caches meanwhile */
        const double begin = processor_us();
        neap_team_run(t, neap_team_size(t), pass_phases, t);
        const double now = (processor_us() - begin) / SHARED_PHASES;
        if (now < took) took = now;
    }
    neap_team_destroy(t);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    print_message("two workers on one core: %.1f us per phase\n", took);
    assert_true(took < SHARED_PHASE_US);
}

/* Jobs of any number of workers in turn. */
static void team_runs_as_many_as_it_is_told(void **state) {
    (void)state;
    neap_team *t;
    assert_int_equal(neap_team_create(&t, THREADS, NEAP_PIN_NONE), NEAP_OK);
    int hits[THREADS] = {0}, want[THREADS] = {0};
    uint32_t random = 1;
    for (int i = 0; i < 5000; i++) {
        random = random * 1664525u + 1013904223u;
        int32_t n = 1 + (int32_t)(random >> 24) % THREADS;
        neap_team_run(t, n, count_job, hits);
        for (int w = 0; w < n; w++) want[w]++;
    }
    for (int w = 0; w < THREADS; w++) assert_int_equal(hits[w], want[w]);
    neap_team_destroy(t);
}

/* ---- meetings ---- */

typedef struct halves {
    neap_team *team;
    uint32_t base;
    int64_t written; /* by workers 0 and 1 in their meeting, read by 2 and 3 after the event */
    int64_t seen[THREADS];
} halves;

static void halves_job(void *arg, int32_t worker) {
    halves *h = arg;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (worker < 2) {
            if (worker == 0) h->written = (int64_t)i + 1;
            neap_team_meet(h->team, 3, 2); /* the event */
            neap_team_await(h->team, 5, h->base + i + 1);
        } else {
            neap_team_await(h->team, 3, h->base + i + 1);
            h->seen[worker] += h->written;
            neap_team_arrive(h->team, 5, 2);
        }
    }
}

static void meetings_are_events(void **state) {
    (void)state;
    halves h = {0};
    assert_int_equal(neap_team_create(&h.team, THREADS, NEAP_PIN_NONE), NEAP_OK);
    for (uint32_t job = 0; job < 3; job++) {
        h.base = job * ROUNDS;
        assert_int_equal(neap_team_epoch(h.team, 3), h.base);
        neap_team_run(h.team, THREADS, halves_job, &h);
    }
    assert_int_equal(neap_team_epoch(h.team, 5), 3 * ROUNDS);
    for (int w = 2; w < THREADS; w++) assert_int_equal(h.seen[w], 3LL * ROUNDS * (ROUNDS + 1) / 2);
    neap_team_await(h.team, 3, 1); /* long past */
    neap_team_destroy(h.team);
}

/* ---- what the system says about the workers ---- */

/* A line of /proc/self/task/N/status of the worker with this name. False: there is none. */
static bool status_of(const char *name, const char *key, char *value, size_t capacity) {
    bool found = false;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; !found && (e = readdir(d));) {
        char path[300], line[256];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!f) continue;
        bool is_it = false;
        while (fgets(line, sizeof line, f)) {
            line[strcspn(line, "\n")] = 0;
            if (strncmp(line, "Name:\t", 6) == 0) is_it = strcmp(line + 6, name) == 0;
            if (!is_it || strncmp(line, key, strlen(key)) != 0) continue;
            snprintf(value, capacity, "%s", line + strlen(key));
            found = true;
        }
        fclose(f);
    }
    closedir(d);
    return found;
}

static long switches_of(const char *name) {
    char text[64];
    return status_of(name, "voluntary_ctxt_switches:\t", text, sizeof text) ? atol(text) : -1;
}

static void wait_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* After a job a worker spins before it sleeps, and on a busy machine it may not even get to that for a while. */
static void expect_asleep(const char *name) {
    char state[64] = "";
    for (int i = 0; i < 30000; i++) {
        assert_true(status_of(name, "State:\t", state, sizeof state));
        if (state[0] == 'S') return;
        wait_ms(1);
    }
    fail_msg("%s does not sleep: %s", name, state);
}

/* A job of two wakes nobody else. */
static void others_go_on_sleeping(void **state) {
    (void)state;
    neap_team *t;
    int hits[THREADS] = {0};
    assert_int_equal(neap_team_create(&t, THREADS, NEAP_PIN_NONE), NEAP_OK);
    neap_team_run(t, THREADS, count_job, hits);
    expect_asleep("neap-1");
    expect_asleep("neap-2");
    const long before = switches_of("neap-2"), other = switches_of("neap-1");
    assert_true(before > 0);
    for (int i = 0; i < 30; i++) {
        neap_team_run(t, 2, count_job, hits);
        expect_asleep("neap-1");
    }
    assert_int_equal(switches_of("neap-2"), before);
    assert_int_equal(switches_of("neap-3") >= 0, 1);
    assert_true(switches_of("neap-1") > other + 10);
    neap_team_destroy(t);
}

/* Other programs do not change processor time. */
static void an_idle_team_costs_nothing(void **state) {
    (void)state;
    neap_team *t;
    int hits[THREADS] = {0};
    assert_int_equal(neap_team_create(&t, THREADS, NEAP_PIN_NONE), NEAP_OK);
    for (int i = 0; i < 1000; i++) neap_team_run(t, THREADS, count_job, hits);
    expect_asleep("neap-1");
    expect_asleep("neap-2");
    expect_asleep("neap-3");
    const double begin = processor_us();
    wait_ms(500);
    const double took = processor_us() - begin;
    neap_team_destroy(t);
    print_message("idle for 500 ms: %.0f us of processor time\n", took);
    assert_true(took < 20000);
}

static void signals_go_to_the_program(void **state) {
    (void)state;
    sigset_t mine, before, after;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &mine, &before);
    neap_team *t;
    assert_int_equal(neap_team_create(&t, 2, NEAP_PIN_NONE), NEAP_OK);
    pthread_sigmask(SIG_SETMASK, &before, &after);
    assert_true(sigismember(&after, SIGUSR2) && !sigismember(&after, SIGTERM)); /* creating changed nothing */
    int hits[2] = {0};
    neap_team_run(t, 2, count_job, hits);
    char text[64];
    assert_true(status_of("neap-1", "SigBlk:\t", text, sizeof text));
    const uint64_t blocked = strtoull(text, NULL, 16);
    const int must[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGPIPE, SIGWINCH};
    for (size_t i = 0; i < sizeof must / sizeof *must; i++) assert_true(blocked >> (must[i] - 1) & 1);
    const int must_not[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF};
    for (size_t i = 0; i < sizeof must_not / sizeof *must_not; i++) assert_false(blocked >> (must_not[i] - 1) & 1);
    neap_team_destroy(t);
}

/* ---- places ---- */

typedef struct masks {
    cpu_set_t of[THREADS];
    const cpu_set_t *instead; /* the caller's thread sets this during the job */
} masks;

static void note_mask(void *arg, int32_t worker) {
    masks *m = arg;
    assert_int_equal(sched_getaffinity(0, sizeof m->of[worker], &m->of[worker]), 0);
    if (worker == 0 && m->instead) assert_int_equal(sched_setaffinity(0, sizeof *m->instead, m->instead), 0);
}

static void check_own_mask(const cpu_set_t *want) {
    cpu_set_t now;
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, want));
}

static void places_are_kept_and_given_back(void **state) {
    (void)state;
    cpu_set_t all, one;
    int32_t cpus[THREADS];
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const int32_t n = neap_cores_order("/sys/devices/system", cpus, THREADS);
    CPU_ZERO(&one);
    CPU_SET((size_t)cpus[0], &one);
    for (int pin = NEAP_PIN_NONE; pin <= NEAP_PIN_FIXED; pin++) {
        neap_team *t;
        masks m = {.instead = NULL};
        assert_int_equal(neap_team_create(&t, THREADS, (neap_pin)pin), NEAP_OK);
        check_own_mask(&all);
        neap_team_run(t, THREADS, note_mask, &m);
        check_own_mask(&all);
        for (int32_t w = 0; w < THREADS; w++) {
            if (pin != NEAP_PIN_FIXED) {
                assert_true(CPU_EQUAL(&m.of[w], &all));
            } else {
                assert_int_equal(CPU_COUNT(&m.of[w]), 1);
                assert_true(CPU_ISSET((size_t)cpus[w % n], &m.of[w]));
            }
        }
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* changed between jobs */
        neap_team_run(t, 2, note_mask, &m);
        check_own_mask(&one);
        assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
        m.instead = n > 1 ? &all : NULL; /* changed during a job */
        neap_team_run(t, 1, note_mask, &m);
        check_own_mask(&all);
        neap_team_destroy(t);
        check_own_mask(&all);
    }
}

/* ---- failures ---- */

static int n_threads_of_process(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Brings worker 1 to the caller's CPU, where a wake on a busy machine would put it, and lets it go again. */
static void join_caller(void *arg, int32_t worker) {
    cpu_set_t all, one;
    if (worker != 1) return;
    CPU_ZERO(&one);
    CPU_SET(*(const int *)arg, &one);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}
static void note_cpu(void *arg, int32_t worker) { ((int *)arg)[worker] = sched_getcpu(); }

static void workers_keep_apart(void **state) {
    (void)state;
    int32_t cpus[2];
    cpu_set_t before, one;
    if (neap_cores_order("/sys/devices/system", cpus, 2) < 2) skip();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    neap_team *t;
    assert_int_equal(neap_team_create(&t, 2, NEAP_PIN_SPREAD), NEAP_OK);
    for (int i = 0; i < 20; i++) {
        int caller = cpus[i % 2], at[2];
        CPU_ZERO(&one);
        CPU_SET((size_t)caller, &one);
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        neap_team_run(t, 2, join_caller, &caller);
        neap_team_run(t, 2, note_cpu, at);
        assert_int_equal(at[0], caller);
        assert_int_not_equal(at[1], caller);
    }
    neap_team_destroy(t);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void expect_threads(int n) {
    for (int i = 0; i < 1000 && n_threads_of_process() != n; i++) wait_ms(1); /* the last steps of a thread's end */
    assert_int_equal(n_threads_of_process(), n);
}

/* This program's own pthread_create, which fails when told. Sanitizers that stand in its place inside the program
 * (clang's) cannot be called from here. */
#if defined(__clang__)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define NO_INTERPOSING
#endif
#endif
static int creations_until_failure = -1;
#if !defined(NO_INTERPOSING)
typedef int (*create_fn)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg) {
    create_fn next;
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&next, &symbol, sizeof next);
    if (creations_until_failure >= 0 && creations_until_failure-- == 0) return EAGAIN;
    return next(thread, attributes, fn, arg);
}
#endif

static void a_failed_creation_leaves_nothing(void **state) {
    (void)state;
    const int before = n_threads_of_process();
    sigset_t mask, mask_before;
    pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
    neap_team *t = NULL;
    int n_failures = 0;
    for (int k = 1;; k++, n_failures++) {
        neap_alloc_fail_at((uint64_t)k);
        neap_status status = neap_team_create(&t, THREADS, NEAP_PIN_SPREAD);
        neap_alloc_fail_at(0);
        if (status == NEAP_OK) break;
        assert_int_equal(status, NEAP_NO_MEMORY);
        assert_null(t);
    }
    assert_true(n_failures > 0);
    neap_team_destroy(t);
    expect_threads(before);
#if !defined(NO_INTERPOSING)
    for (int k = 0; k < THREADS - 1; k++) {
        creations_until_failure = k;
        assert_int_equal(neap_team_create(&t, THREADS, NEAP_PIN_FIXED), NEAP_LIMIT);
        assert_int_equal(creations_until_failure, -1);
        assert_null(t);
        expect_threads(before);
    }
#endif
    creations_until_failure = -1;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGTERM), sigismember(&mask_before, SIGTERM));
    int hits[THREADS] = {0};
    assert_int_equal(neap_team_create(&t, THREADS, NEAP_PIN_FIXED), NEAP_OK);
    neap_team_run(t, THREADS, count_job, hits);
    for (int w = 0; w < THREADS; w++) assert_int_equal(hits[w], 1);
    neap_team_destroy(t);
    expect_threads(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_barrier_orders_phases),
        cmocka_unit_test(team_runs_every_worker_once),
        cmocka_unit_test(team_runs_as_many_as_it_is_told),
        cmocka_unit_test(team_shares_one_core),
        cmocka_unit_test(meetings_are_events),
        cmocka_unit_test(others_go_on_sleeping),
        cmocka_unit_test(an_idle_team_costs_nothing),
        cmocka_unit_test(signals_go_to_the_program),
        cmocka_unit_test(places_are_kept_and_given_back),
        cmocka_unit_test(workers_keep_apart),
        cmocka_unit_test(a_failed_creation_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
