/* Worker team, plan replay, and the core count from fake cgroup files (an engine that starts one thread too many
 * under a quota is throttled as a whole). */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cores.h"
#include "runtime/plan.h"

/* ---- team ---- */

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
    const double begin = processor_us();
    neap_team_run(t, neap_team_size(t), pass_phases, t);
    const double took = (processor_us() - begin) / SHARED_PHASES;
    neap_team_destroy(t);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    print_message("two workers on one core: %.1f us per phase\n", took);
    assert_true(took < SHARED_PHASE_US);
}

/* ---- plan ---- */

typedef struct fill {
    int64_t n;
    int32_t *to;
    const int32_t *from; /* NULL: the task number */
} fill;
static int64_t fill_count(const void *p) { return ((const fill *)p)->n; }
static void fill_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const fill *f = p;
    (void)worker;
    for (int64_t i = begin; i < end; i++) f->to[i] = f->from ? f->from[f->n - 1 - i] + 1 : (int32_t)i;
}

/* Taps are ops of one task: their callbacks must run on the thread that drives the engine. */
static void note_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    (void)begin, (void)end;
    *(int32_t *)(uintptr_t)((const fill *)p)->to = worker;
}
static void single_tasks_stay_with_the_caller(void **state) {
    (void)state;
    neap_arena *a;
    neap_plan *p;
    int32_t who;
    assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
    assert_int_equal(neap_plan_create(&p, a, 1), NEAP_OK);
    fill one = {1, &who, NULL};
    neap_plan_add(
        p,
        &(neap_op){.name = "one", .layer = -1, .is_beside = false, .count = fill_count, .run = note_run, .args = &one});
    for (int threads = 1; threads <= THREADS; threads++) {
        neap_team *t;
        assert_int_equal(neap_team_create(&t, threads, NEAP_PIN_NONE), NEAP_OK);
        who = -1;
        neap_plan_run(p, t, neap_team_size(t), NULL);
        assert_int_equal(who, 0);
        neap_team_destroy(t);
    }
    neap_arena_destroy(a);
}

static void plan_replays_in_order(void **state) {
    (void)state;
    neap_arena *a;
    neap_plan *p;
    assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
    assert_int_equal(neap_plan_create(&p, a, 8), NEAP_OK);
    static int32_t x[1001], y[1001], z[1001], beside[7];
    fill fx = {1001, x, NULL}, fy = {1001, y, x}, fz = {1001, z, y}, fb = {7, beside, NULL};
    neap_op ops[] = {
        {.name = "x", .layer = -1, .is_beside = false, .count = fill_count, .run = fill_run, .args = &fx},
        {.name = "beside", .layer = -1, .is_beside = true, .count = fill_count, .run = fill_run, .args = &fb},
        {.name = "y", .layer = -1, .is_beside = false, .count = fill_count, .run = fill_run, .args = &fy},
        {.name = "z", .layer = -1, .is_beside = false, .count = fill_count, .run = fill_run, .args = &fz}};
    for (int i = 0; i < 4; i++) neap_plan_add(p, &ops[i]);
    assert_int_equal(neap_plan_ops(p), 4);
    assert_int_equal(neap_plan_phases(p), 3);
    for (int threads = 1; threads <= 3; threads++) {
        neap_team *t;
        assert_int_equal(neap_team_create(&t, threads, NEAP_PIN_NONE), NEAP_OK);
        uint64_t calls = neap_alloc_calls();
        for (int round = 0; round < 50; round++) {
            memset(z, 0, sizeof z);
            neap_plan_run(p, t, neap_team_size(t), NULL);
            for (int i = 0; i < 1001; i++) assert_int_equal(z[i], i + 2);
            for (int i = 0; i < 7; i++) assert_int_equal(beside[i], i);
        }
        assert_int_equal(neap_alloc_calls(), calls);
        neap_team_destroy(t);
    }
    fx.n = fy.n = fz.n = 0; /* an empty step is a step */
    neap_team *t;
    assert_int_equal(neap_team_create(&t, 2, NEAP_PIN_NONE), NEAP_OK);
    neap_plan_run(p, t, neap_team_size(t), NULL);
    neap_team_destroy(t);
    neap_arena_destroy(a);
}

/* ---- quotas ---- */

static char root[64];

static void put(const char *path, const char *text) {
    char full[256], *slash;
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int32_t quota(void) {
    char file[96];
    snprintf(file, sizeof file, "%s/self", root);
    return neap_cores_quota(file, root);
}

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/neap-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}
static int drop_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void quota_v2_rounds_down_and_sees_ancestors(void **state) {
    (void)state;
    put("self", "0::/a/b/c\n");
    assert_int_equal(quota(), 0);
    put("a/b/c/cpu.max", "max 100000\n");
    assert_int_equal(quota(), 0);
    put("a/b/cpu.max", "765000 100000\n");
    assert_int_equal(quota(), 7);
    put("a/cpu.max", "150000 100000\n");
    assert_int_equal(quota(), 1);
    put("a/cpu.max", "50000 100000\n"); /* half a CPU is still one thread */
    assert_int_equal(quota(), 1);
    put("a/cpu.max", "900000 100000\n");
    assert_int_equal(quota(), 7);
    put("cpu.max", "200000 100000\n"); /* a container sees its own limit at the root */
    assert_int_equal(quota(), 2);
}

static void quota_v1(void **state) {
    (void)state;
    put("self", "12:memory:/x\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/y\n");
    put("cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1\n");
    put("cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(), 0);
    put("cpu,cpuacct/docker/1/cpu.cfs_quota_us", "350000\n");
    assert_int_equal(quota(), 3);
}

static void quota_survives_nonsense(void **state) {
    (void)state;
    assert_int_equal(neap_cores_quota("/does/not/exist", root), 0);
    put("self", "garbage\n\n:::\n0::/a\n");
    put("a/cpu.max", "99999999999999999999 0\n");
    assert_int_equal(quota(), 0);
    put("a/cpu.max", "");
    assert_int_equal(quota(), 0);
}

static void default_threads_is_sane(void **state) {
    (void)state;
    int32_t n = neap_default_threads();
    assert_true(n >= 1 && n <= neap_cores_affinity());
    assert_true(neap_cores_physical() >= 1 && neap_cores_physical() <= neap_cores_affinity());
    int32_t quota = neap_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    assert_true(quota == 0 || n <= quota);
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int c = CPU_SETSIZE - 1; c >= 0 && CPU_COUNT(&one) == 0; c--)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int32_t affinity = neap_cores_affinity(), threads = neap_default_threads();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(affinity, 1);
    assert_int_equal(threads, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_barrier_orders_phases),
        cmocka_unit_test(team_runs_every_worker_once),
        cmocka_unit_test(team_shares_one_core),
        cmocka_unit_test(plan_replays_in_order),
        cmocka_unit_test(single_tasks_stay_with_the_caller),
        cmocka_unit_test_setup_teardown(quota_v2_rounds_down_and_sees_ancestors, make_root, drop_root),
        cmocka_unit_test_setup_teardown(quota_v1, make_root, drop_root),
        cmocka_unit_test_setup_teardown(quota_survives_nonsense, make_root, drop_root),
        cmocka_unit_test(default_threads_is_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
