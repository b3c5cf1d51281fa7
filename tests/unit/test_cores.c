/* How many threads and on which CPUs, from fake cgroup files and fake /sys trees (an engine that starts one thread too
 * many under a quota is throttled as a whole; one that starts two on one core wastes the other), and from this
 * machine's own mask. The expected orders are written down by hand. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "neap.h"
#include "runtime/cores.h"

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

/* ---- topology ---- */

static void put_cpu(int cpu, const char *siblings) {
    char path[96];
    snprintf(path, sizeof path, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, siblings);
}

static void put_node(int node, const char *cpus) {
    char path[64];
    snprintf(path, sizeof path, "node/node%d/cpulist", node);
    put(path, cpus);
}

static void check_order(const char *mask, const int32_t *want, int32_t n) {
    int32_t got[64];
    memset(got, -1, sizeof got);
    assert_int_equal(neap_cores_order_of(root, mask, got, 64), n);
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("%s: worker %d on CPU %d, not %d", mask, i, got[i], want[i]);
    memset(got, -1, sizeof got); /* a short list is the beginning of the long one */
    assert_int_equal(neap_cores_order_of(root, mask, got, 2), n);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(got[i], i < 2 && i < n ? want[i] : -1);
}
#define ORDER(mask, ...)                                                   \
    do {                                                                   \
        const int32_t want_[] = {__VA_ARGS__};                             \
        check_order(mask, want_, (int32_t)(sizeof want_ / sizeof *want_)); \
    } while (0)

/* Two sockets of four cores with two threads each, numbered as most servers do. */
static void order_of_two_sockets(void **state) {
    (void)state;
    char text[32];
    for (int cpu = 0; cpu < 16; cpu++) {
        snprintf(text, sizeof text, "%d,%d\n", cpu % 8, cpu % 8 + 8);
        put_cpu(cpu, text);
    }
    put("cpu/online", "0-15\n");
    put("node/online", "0-1\n");
    put_node(0, "0-3,8-11\n");
    put_node(1, "4-7,12-15\n");
    ORDER("0-15", 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    assert_int_equal(neap_cores_physical_of(root, "0-15"), 8);
    assert_int_equal(neap_cores_nodes_of(root, "0-15"), 2);
    /* a mask of one node, of siblings alone, of more of one node than of the other */
    ORDER("4-7", 4, 5, 6, 7);
    assert_int_equal(neap_cores_nodes_of(root, "4-7"), 1);
    ORDER("8-10,1", 1, 8, 10, 9);
    assert_int_equal(neap_cores_physical_of(root, "8-10,1"), 3);
    ORDER("0-3,7,15", 0, 7, 1, 2, 3, 15);
    ORDER("5", 5);
    const int32_t nodes[] = {0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    for (int32_t cpu = 0; cpu < 16; cpu++) assert_int_equal(neap_cores_node_of(root, cpu), nodes[cpu]);
    assert_int_equal(neap_cores_node_of(root, 16), 0);
    assert_int_equal(neap_cores_node_of(root, -1), 0);
    assert_int_equal(neap_cores_node_of(root, NEAP_CPUS_MAX), 0);
}

/* Siblings side by side, a node without memory numbers in a row, CPUs that are offline, a node without CPUs. */
static void order_of_an_odd_machine(void **state) {
    (void)state;
    put_cpu(0, "0-1\n");
    put_cpu(1, "0-1\n");
    put_cpu(2, "2\n"); /* its sibling is offline */
    put_cpu(6, "6-7\n");
    put_cpu(7, "6-7\n");
    put_cpu(8, "8\n");
    put("cpu/online", "0-2,6-8\n");
    put("node/online", "0,3,5\n");
    put_node(0, "0-3\n");
    put_node(3, "\n");
    put_node(5, "6-8\n");
    ORDER("0-8", 0, 6, 2, 8, 1, 7);
    ORDER("1,3,7", 1, 7);
    assert_int_equal(neap_cores_nodes_of(root, "0-8"), 2);
    assert_int_equal(neap_cores_node_of(root, 7), 5);
    assert_int_equal(neap_cores_physical_of(root, "0-8"), 4);
}

/* Nothing is known, or nonsense: every CPU is a core, all in one node. */
static void order_without_a_tree(void **state) {
    (void)state;
    ORDER("0-2", 0, 1, 2);
    assert_int_equal(neap_cores_nodes_of(root, "0-2"), 1);
    assert_int_equal(neap_cores_physical_of(root, "0-2"), 3);
    assert_int_equal(neap_cores_node_of(root, 1), 0);
    put("cpu/online", "what?\n");
    put("node/online", "7-3,x\n");
    put_cpu(1, "1-\n");
    put_cpu(2, "99999999999999999999,2\n");
    put_node(0, "");
    ORDER("0-2", 0, 1, 2);
    int32_t none;
    assert_int_equal(neap_cores_order_of(root, "", &none, 1), 0);
    assert_int_equal(neap_cores_order_of(root, "9999", &none, 1), 0);
}

/* A large machine: 4 nodes of 64 cores, 512 CPUs, lists longer than a line. */
static void order_of_a_large_machine(void **state) {
    (void)state;
    static int32_t cpus[512];
    char text[4096];
    put("cpu/online", "0-511\n");
    put("node/online", "0-3\n");
    for (int node = 0; node < 4; node++) {
        int n = 0;
        for (int cpu = node; cpu < 512; cpu += 4)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", n ? "," : "", cpu);
        put_node(node, text);
    }
    for (int cpu = 0; cpu < 512; cpu++) {
        snprintf(text, sizeof text, "%d,%d\n", cpu % 256, cpu % 256 + 256);
        put_cpu(cpu, text);
    }
    assert_int_equal(neap_cores_order_of(root, "0-511", cpus, 512), 512);
    for (int32_t i = 0; i < 512; i++) assert_int_equal(cpus[i], i);
}

static void order_of_this_machine(void **state) {
    (void)state;
    static int32_t cpus[NEAP_CPUS_MAX];
    int32_t n = neap_cores_order("/sys/devices/system", cpus, NEAP_CPUS_MAX);
    assert_in_range(n, 1, neap_cores_affinity());
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int32_t i = 0; i < n; i++) {
        assert_true(CPU_ISSET((size_t)cpus[i], &all));
        CPU_CLR((size_t)cpus[i], &all); /* each once */
    }
    assert_true(neap_cores_nodes("/sys/devices/system") >= 1);
    assert_in_range(neap_cores_usable(), 1, neap_cores_affinity());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quota_v2_rounds_down_and_sees_ancestors, make_root, drop_root),
        cmocka_unit_test_setup_teardown(quota_v1, make_root, drop_root),
        cmocka_unit_test_setup_teardown(quota_survives_nonsense, make_root, drop_root),
        cmocka_unit_test(default_threads_is_sane),
        cmocka_unit_test_setup_teardown(order_of_two_sockets, make_root, drop_root),
        cmocka_unit_test_setup_teardown(order_of_an_odd_machine, make_root, drop_root),
        cmocka_unit_test_setup_teardown(order_without_a_tree, make_root, drop_root),
        cmocka_unit_test_setup_teardown(order_of_a_large_machine, make_root, drop_root),
        cmocka_unit_test(order_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
