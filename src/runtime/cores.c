/* Reads the affinity mask, the topology under /sys and the cgroup quotas. No library does this in a way that
 * can be tested with fake files, and it is a few lines. */
#include "runtime/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neap.h"

static bool read_line(const char *path, char *line, int capacity) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, capacity, f) != NULL;
    fclose(f);
    return ok;
}

/* CPUs of one group directory, rounded down but at least 1; 0 = no limit here. */
static int32_t quota_of_group(const char *dir) {
    char path[4200], line[128];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return 0; /* "max 100000" */
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1) return 0;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1) return 0;
    }
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period;
    return cpus < 1 ? 1 : cpus > INT32_MAX ? INT32_MAX : (int32_t)cpus;
}

/* The group and all its ancestors up to base. */
static int32_t quota_of_path(const char *base, const char *group) {
    char dir[4100];
    int32_t best = 0;
    snprintf(dir, sizeof dir, "%s%s", base, strcmp(group, "/") == 0 ? "" : group);
    size_t floor_length = strlen(base);
    for (;;) {
        int32_t q = quota_of_group(dir);
        if (q > 0 && (best == 0 || q < best)) best = q;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < floor_length) return best;
        *slash = 0;
    }
}

int32_t neap_cores_quota(const char *cgroup_file, const char *root) {
    FILE *f = fopen(cgroup_file, "re");
    if (!f) return 0;
    int32_t best = 0;
    char line[4096];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = 0;
        *group++ = 0;
        char base[4200];
        int32_t q = 0;
        if (*controllers == 0) { /* v2, or the v2 part of a mixed machine */
            q = quota_of_path(root, group);
        } else if (strstr(controllers, "cpu")) {
            snprintf(base, sizeof base, "%s/%s", root, controllers);
            q = quota_of_path(base, group);
            if (q == 0) {
                snprintf(base, sizeof base, "%s/cpu", root);
                q = quota_of_path(base, group);
            }
        }
        if (q > 0 && (best == 0 || q < best)) best = q;
    }
    fclose(f);
    return best;
}

/* Affinity mask of any size. Returns NULL when the kernel refuses; *bytes is its size. */
static cpu_set_t *affinity(size_t *bytes) {
    for (int n = 1024; n <= 65536; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set) return NULL;
        *bytes = CPU_ALLOC_SIZE(n);
        CPU_ZERO_S(*bytes, set);
        if (sched_getaffinity(0, *bytes, set) == 0) return set;
        CPU_FREE(set);
    }
    return NULL;
}

int32_t neap_cores_affinity(void) {
    size_t bytes;
    cpu_set_t *set = affinity(&bytes);
    if (!set) return 1;
    int n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return n < 1 ? 1 : n;
}

int32_t neap_cores_physical(void) {
    size_t bytes;
    cpu_set_t *set = affinity(&bytes);
    if (!set) return 1;
    int32_t n = 0;
    for (int cpu = 0; cpu < (int)(bytes * 8); cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, bytes, set)) continue;
        /* A CPU counts when none of its SMT siblings with a lower number is in the mask. */
        char path[128], line[256];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        bool is_first = true;
        if (read_line(path, line, sizeof line)) {
            for (char *s = line; *s && *s != '\n';) {
                char *end;
                long a = strtol(s, &end, 10), b = a;
                if (end == s) break;
                if (*end == '-') b = strtol(end + 1, &end, 10);
                for (long c = a; c <= b && c < cpu; c++)
                    if (c >= 0 && CPU_ISSET_S((size_t)c, bytes, set)) is_first = false;
                s = *end == ',' ? end + 1 : end;
                if (s == end && *s != ',') break;
            }
        }
        n += is_first;
    }
    CPU_FREE(set);
    return n < 1 ? 1 : n;
}

int32_t neap_cores_usable(void) {
    int32_t n = neap_cores_affinity(), quota = neap_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota > 0 && quota < n ? quota : n;
}

int32_t neap_cores_order(const char *sys, int32_t *cpus, int32_t capacity) {
    (void)sys, (void)cpus, (void)capacity;
    return 0;
}
int32_t neap_cores_nodes(const char *sys) {
    (void)sys;
    return 1;
}
int32_t neap_cores_node_of(const char *sys, int32_t cpu) {
    (void)sys, (void)cpu;
    return 0;
}

int32_t neap_default_threads(void) {
    int32_t n = neap_cores_affinity(), physical = neap_cores_physical();
    int32_t quota = neap_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (physical < n) n = physical;
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}
