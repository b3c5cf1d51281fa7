/* Reads the affinity mask, the topology under /sys and the cgroup quotas. No library does this in a way that
 * can be tested with fake files, and it is a few lines.
 *
 * A CPU leads its core when none of its siblings with a lower number may be used. The order of workers is: leaders,
 * then the rest; in each of the two the memory nodes take turns until they run out. The j-th CPU of node k then has
 * before it min(c_m, j + 1) CPUs of every node m < k and min(c_m, j) of every other (c_m: how many node m has), so
 * that its place is known without sorting.
 *
 * Called by team.c, engine (threads that may run, --cpu-info). Owns nothing; sets of CPUs lie on the stack, 1 KiB each.
 * Sources: the kernel's cpuset list format, cpu topology in sysfs, cgroup v1 cfs bandwidth and v2 cpu.max. */
#include "runtime/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "neap.h"

/* ---- small files ---- */

/* The beginning of a file as a string. */
static bool read_text(const char *path, char *text, size_t capacity) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t n = 0;
    for (;;) {
        ssize_t got = n + 1 < capacity ? read(fd, text + n, capacity - 1 - n) : 0;
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(fd);
    text[n] = 0;
    return n > 0;
}

/* ---- sets of CPUs ---- */

typedef struct cpu_mask {
    uint64_t words[NEAP_CPUS_MAX / 64];
} cpu_mask;

static bool has(const cpu_mask *m, int32_t cpu) { return m->words[cpu / 64] >> (cpu % 64) & 1; }
static void add(cpu_mask *m, int32_t cpu) { m->words[cpu / 64] |= UINT64_C(1) << (cpu % 64); }

static int32_t count(const cpu_mask *m) {
    int32_t n = 0;
    for (size_t i = 0; i < sizeof m->words / sizeof *m->words; i++) n += __builtin_popcountll(m->words[i]);
    return n;
}

static void only(cpu_mask *m, const cpu_mask *of) {
    for (size_t i = 0; i < sizeof m->words / sizeof *m->words; i++) m->words[i] &= of->words[i];
}

/* "0-3,8\n"; what is not of that form ends the list. False when the list is empty. */
static bool parse_list(cpu_mask *m, const char *text) {
    bool any = false;
    memset(m, 0, sizeof *m);
    for (const char *s = text; *s >= '0' && *s <= '9';) {
        char *end;
        long a = strtol(s, &end, 10), b = a;
        if (*end == '-') b = strtol(end + 1, &end, 10);
        for (long c = a; c <= b && c < NEAP_CPUS_MAX; c++, any = true) add(m, (int32_t)c);
        s = *end == ',' ? end + 1 : "";
    }
    return any;
}

static bool read_list(cpu_mask *m, const char *sys, const char *name) {
    char path[512], text[4096];
    int n = snprintf(path, sizeof path, "%s/%s", sys, name);
    return n > 0 && (size_t)n < sizeof path && read_text(path, text, sizeof text) && parse_list(m, text);
}

/* The calling thread's affinity mask; one CPU when the kernel does not say. */
static void affinity(cpu_mask *m) {
    cpu_set_t sets[NEAP_CPUS_MAX / CPU_SETSIZE];
    memset(sets, 0, sizeof sets);
    memset(m, 0, sizeof *m);
    if (sched_getaffinity(0, sizeof sets, sets) == 0)
        for (int32_t cpu = 0; cpu < NEAP_CPUS_MAX; cpu++)
            if (CPU_ISSET_S((size_t)cpu, sizeof sets, sets)) add(m, cpu);
    if (count(m) == 0) add(m, 0);
}

/* ---- topology ---- */

enum { NODES_MAX = 256 }; /* of memory; further ones count as one */

static void drop_offline(const char *sys, cpu_mask *usable) {
    cpu_mask online;
    if (read_list(&online, sys, "cpu/online")) only(usable, &online);
}

/* The CPUs of the mask that are online, and those that lead their cores. */
static void find_leaders(const char *sys, cpu_mask *usable, cpu_mask *leaders) {
    cpu_mask other;
    drop_offline(sys, usable);
    *leaders = *usable;
    for (int32_t cpu = 0; cpu < NEAP_CPUS_MAX; cpu++) {
        char name[96];
        if (!has(usable, cpu)) continue;
        (void)snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
        if (!read_list(&other, sys, name)) continue;
        only(&other, usable);
        for (int32_t c = 0; c < cpu; c++)
            if (has(&other, c)) leaders->words[cpu / 64] &= ~(UINT64_C(1) << (cpu % 64));
    }
}

/* Calls fn for each memory node that has CPUs of `usable`, with those; then for the CPUs that are in no node. */
typedef void (*node_fn)(void *arg, const cpu_mask *cpus);
static void each_node(const char *sys, const cpu_mask *usable, node_fn fn, void *arg) {
    cpu_mask nodes, cpus, rest = *usable;
    if (!read_list(&nodes, sys, "node/online")) memset(&nodes, 0, sizeof nodes);
    for (int32_t node = 0, n = 0; node < NEAP_CPUS_MAX && n < NODES_MAX - 1; node++) {
        char name[96];
        if (!has(&nodes, node)) continue;
        (void)snprintf(name, sizeof name, "node/node%d/cpulist", node);
        if (!read_list(&cpus, sys, name)) continue;
        only(&cpus, &rest);
        for (size_t i = 0; i < sizeof rest.words / sizeof *rest.words; i++) rest.words[i] &= ~cpus.words[i];
        if (count(&cpus) == 0) continue;
        fn(arg, &cpus);
        n++;
    }
    if (count(&rest) > 0) fn(arg, &rest);
}

static void count_node(void *arg, const cpu_mask *cpus) {
    (void)cpus;
    ++*(int32_t *)arg;
}

typedef struct order {
    const cpu_mask *level; /* leaders, or the rest */
    int32_t n_nodes, counts[NODES_MAX], node;
    int32_t *cpus, begin, capacity;
} order;

static void count_level(void *arg, const cpu_mask *cpus) {
    order *o = arg;
    cpu_mask mine = *cpus;
    only(&mine, o->level);
    o->counts[o->n_nodes++] = count(&mine);
}

static void place_level(void *arg, const cpu_mask *cpus) {
    order *o = arg;
    int32_t k = o->node++, j = 0;
    for (int32_t cpu = 0; cpu < NEAP_CPUS_MAX; cpu++) {
        if (!has(cpus, cpu) || !has(o->level, cpu)) continue;
        int32_t at = o->begin;
        for (int32_t m = 0; m < o->n_nodes; m++) {
            int32_t before = j + (m < k);
            at += before < o->counts[m] ? before : o->counts[m];
        }
        if (at < o->capacity) o->cpus[at] = cpu;
        j++;
    }
}

static int32_t order_cpus(const char *sys, cpu_mask *usable, int32_t *cpus, int32_t capacity) {
    cpu_mask leaders, rest;
    find_leaders(sys, usable, &leaders);
    rest = *usable;
    for (size_t i = 0; i < sizeof rest.words / sizeof *rest.words; i++) rest.words[i] &= ~leaders.words[i];
    for (int level = 0; level < 2; level++) {
        order o = {.level = level ? &rest : &leaders, .cpus = cpus, .capacity = capacity};
        o.begin = level ? count(&leaders) : 0;
        each_node(sys, usable, count_level, &o);
        each_node(sys, usable, place_level, &o);
    }
    return count(usable);
}

static int32_t node_count(const char *sys, cpu_mask *usable) {
    int32_t n = 0;
    drop_offline(sys, usable);
    each_node(sys, usable, count_node, &n);
    return n < 1 ? 1 : n;
}

/* ---- what others ask ---- */

int32_t neap_cores_order(const char *sys, int32_t *cpus, int32_t capacity) {
    cpu_mask m;
    affinity(&m);
    return order_cpus(sys, &m, cpus, capacity);
}

int32_t neap_cores_order_of(const char *sys, const char *mask, int32_t *cpus, int32_t capacity) {
    cpu_mask m;
    return parse_list(&m, mask) ? order_cpus(sys, &m, cpus, capacity) : 0;
}

int32_t neap_cores_nodes(const char *sys) {
    cpu_mask m;
    affinity(&m);
    return node_count(sys, &m);
}

int32_t neap_cores_nodes_of(const char *sys, const char *mask) {
    cpu_mask m;
    return parse_list(&m, mask) ? node_count(sys, &m) : 1;
}

int32_t neap_cores_node_of(const char *sys, int32_t cpu) {
    cpu_mask nodes, cpus;
    if (cpu < 0 || cpu >= NEAP_CPUS_MAX || !read_list(&nodes, sys, "node/online")) return 0;
    for (int32_t node = 0; node < NEAP_CPUS_MAX; node++) {
        char name[96];
        (void)snprintf(name, sizeof name, "node/node%d/cpulist", node);
        if (has(&nodes, node) && read_list(&cpus, sys, name) && has(&cpus, cpu)) return node;
    }
    return 0;
}

int32_t neap_cores_affinity(void) {
    cpu_mask m;
    affinity(&m);
    return count(&m);
}

static int32_t physical(const char *sys, cpu_mask *usable) {
    cpu_mask leaders;
    find_leaders(sys, usable, &leaders);
    int32_t n = count(&leaders);
    return n < 1 ? 1 : n;
}

int32_t neap_cores_physical(void) {
    cpu_mask m;
    affinity(&m);
    return physical("/sys/devices/system", &m);
}

int32_t neap_cores_physical_of(const char *sys, const char *mask) {
    cpu_mask m;
    return parse_list(&m, mask) ? physical(sys, &m) : 1;
}

/* ---- quotas ---- */

/* CPUs of one group directory, rounded down but at least 1; 0 = no limit here. */
static int32_t quota_of_group(const char *dir) {
    char path[4200], line[128];
    long long quota, period;
    (void)snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_text(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return 0; /* "max 100000" */
    } else {
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_text(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return 0;
        (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_text(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1) return 0;
    }
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period;
    return cpus < 1 ? 1 : cpus > INT32_MAX ? INT32_MAX : (int32_t)cpus;
}

/* The smaller of two limits, of which 0 is none. */
static int32_t tighter(int32_t a, int32_t b) { return a == 0 || (b > 0 && b < a) ? b : a; }

/* The group and all its ancestors up to base. */
static int32_t quota_of_path(const char *base, const char *group) {
    char dir[4100];
    int32_t best = 0;
    int n = snprintf(dir, sizeof dir, "%s%s", base, strcmp(group, "/") == 0 ? "" : group);
    if (n < 0 || (size_t)n >= sizeof dir) return 0;
    size_t floor_length = strlen(base);
    for (;;) {
        best = tighter(best, quota_of_group(dir));
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < floor_length) return best;
        *slash = 0;
    }
}

/* "0::/group" (v2, or the v2 part of a mixed machine) or "4:cpu,cpuacct:/group" (v1). */
static int32_t quota_of_line(char *line, const char *root) {
    char base[4200];
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return 0;
    *controllers++ = 0;
    *group++ = 0;
    if (*controllers == 0) return quota_of_path(root, group);
    if (!strstr(controllers, "cpu")) return 0;
    (void)snprintf(base, sizeof base, "%s/%s", root, controllers);
    int32_t q = quota_of_path(base, group);
    if (q > 0) return q;
    (void)snprintf(base, sizeof base, "%s/cpu", root);
    return quota_of_path(base, group);
}

int32_t neap_cores_quota(const char *cgroup_file, const char *root) {
    char text[16384];
    int32_t best = 0;
    if (!read_text(cgroup_file, text, sizeof text)) return 0;
    for (char *line = text; line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        best = tighter(best, quota_of_line(line, root));
        line = next;
    }
    return best;
}

int32_t neap_cores_usable(void) {
    int32_t n = tighter(neap_cores_affinity(), neap_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup"));
    return n < 1 ? 1 : n;
}

int32_t neap_default_threads(void) {
    int32_t n = neap_cores_usable(), cores = neap_cores_physical();
    return cores < n ? cores : n;
}
