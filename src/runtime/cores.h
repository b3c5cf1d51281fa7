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

#endif
