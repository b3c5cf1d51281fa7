/* How many workers this process should use, and on which CPUs: min(affinity mask, cgroup quota, physical cores).
 *
 * One thread more than the quota allows throttles the whole lock-step team, so the quota is rounded down. Paths are
 * arguments so that tests can fake them. Nothing here allocates. */
#ifndef NEAP_RUNTIME_CORES_H
#define NEAP_RUNTIME_CORES_H

#include <stdint.h>

enum { NEAP_CPUS_MAX = 8192 }; /* CPUs beyond are not seen */

/* CPUs that the smallest quota of this process's cgroups (v1 and v2, all ancestors) allows; 0 = no limit.
 * cgroup_file: "/proc/self/cgroup"; root: "/sys/fs/cgroup". */
int32_t neap_cores_quota(const char *cgroup_file, const char *root);
/* CPUs in the affinity mask of the calling thread; physical cores among them. */
int32_t neap_cores_affinity(void);
int32_t neap_cores_physical(void);
/* CPUs that this process may use right now: min(affinity mask, quota), at least 1. A few small files; cheap enough to
 * be asked every second. */
int32_t neap_cores_usable(void);
/* CPU numbers in the order in which workers should take them: one of each physical core first, the memory nodes taking
 * turns, then their siblings in the same way; only those of the affinity mask that are online. Returns how many there
 * are; writes at most capacity. sys: "/sys/devices/system". */
int32_t neap_cores_order(const char *sys, int32_t *cpus, int32_t capacity);
/* The same for a given mask: the CPUs of a list like "0-3,8". */
int32_t neap_cores_order_of(const char *sys, const char *mask, int32_t *cpus, int32_t capacity);
/* Physical cores among the CPUs of a list. */
int32_t neap_cores_physical_of(const char *sys, const char *mask);
/* Memory nodes with CPUs of the affinity mask, and the node of a CPU; 1 and 0 where nothing is known. */
int32_t neap_cores_nodes(const char *sys);
int32_t neap_cores_nodes_of(const char *sys, const char *mask);
int32_t neap_cores_node_of(const char *sys, int32_t cpu);

#endif
