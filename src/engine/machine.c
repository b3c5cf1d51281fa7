/* One line about this machine, for `neap info --cpu-info` and bug reports: processor, the instruction sets that
 * will be used under the caller's mask, and the counts from which the default number of threads follows.
 *
 * It stands in the engine because it joins what kernels (instruction sets) and runtime (cores) know and neither
 * may know of the other. */
#include <stdio.h>
#include <string.h>

#include "kernels/cpu.h"
#include "runtime/cores.h"

neap_status neap_cpu_describe(const char *cpu, char *text, size_t capacity, size_t *needed) {
    NEAP_CHECK(needed != NULL, NEAP_INVALID_ARGUMENT, "neap_cpu_describe: needed is NULL");
    NEAP_CHECK(text != NULL || capacity == 0, NEAP_INVALID_ARGUMENT, "neap_cpu_describe: text is NULL");
    uint32_t flags;
    NEAP_TRY(neap_cpu_parse(cpu, &flags));
    char sets[128], quota[64] = "no quota", line[512];
    neap_cpu_text(flags, sets, sizeof sets);
    int32_t n_quota = neap_cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    int32_t n_nodes = neap_cores_nodes("/sys/devices/system");
    if (n_quota > 0) (void)snprintf(quota, sizeof quota, "quota of %d", n_quota);
    int n = snprintf(line, sizeof line,
                     "%s: %s; %d physical cores, %d CPUs in the affinity mask, %d memory node%s, %s, %d threads by "
                     "default",
                     neap_cpu_model(), sets, neap_cores_physical(), neap_cores_affinity(), n_nodes,
                     n_nodes == 1 ? "" : "s", quota, neap_default_threads());
    *needed = (size_t)n + 1;
    if (capacity < *needed) return NEAP_TOO_SMALL;
    memcpy(text, line, *needed);
    return NEAP_OK;
}
