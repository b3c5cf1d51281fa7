/* How many workers this process should use: min(affinity mask, floor(cgroup quota), physical cores).
 *
 * One thread more than the quota allows throttles the whole lock-step team, so the quota is rounded down. */
#ifndef NEAP_RUNTIME_CORES_H
#define NEAP_RUNTIME_CORES_H

#include <stdint.h>

/* CPUs that the smallest quota of this process's cgroups (v1 and v2, all ancestors) allows; 0 = no limit.
 * cgroup_file: "/proc/self/cgroup"; root: "/sys/fs/cgroup". Paths are arguments so that tests can fake them. */
int32_t neap_cores_quota(const char *cgroup_file, const char *root);
/* CPUs in the affinity mask; physical cores among them. */
int32_t neap_cores_affinity(void);
int32_t neap_cores_physical(void);
/* CPUs that this process may use right now: min(affinity mask, quota), at least 1. Two small files; cheap enough to be
 * asked every second. root as above. */
int32_t neap_cores_usable(void);
/* CPU numbers in the order in which workers should take them: one of each physical core first, spread over the memory
 * nodes as evenly as they are, then their siblings; only those of the affinity mask. Returns how many there are; writes
 * at most capacity. sys: "/sys/devices/system", an argument so that tests can fake it. */
int32_t neap_cores_order(const char *sys, int32_t *cpus, int32_t capacity);
/* Memory nodes with CPUs of the mask, and the node of a CPU; 1 and 0 where nothing is known. */
int32_t neap_cores_nodes(const char *sys);
int32_t neap_cores_node_of(const char *sys, int32_t cpu);

#endif
