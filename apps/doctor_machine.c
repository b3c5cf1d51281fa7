/* `neap doctor`, the part that needs no model: machine, threads, pages, kernels, cache directory; see doctor.h.
 *
 * Kernels are compared by the same code as the test suite's kcheck (tests/kcheck/check_all.h): each variant that this
 * CPU has against the scalar definition, bit by bit. Called by doctor.c. Owns nothing. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "kcheck/check_all.h"
#include "neap.h"
#include "terminal.h"

/* First line of a small file; 0: there is none. */
static int read_line(const char *path, char *line, size_t capacity) {
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    int is_read = fgets(line, (int)capacity, f) != NULL;
    (void)fclose(f);
    if (is_read) line[strcspn(line, "\n")] = 0;
    return is_read;
}

static void instruction_sets(neap_cli_doctor_state *d, const char *cpu) {
#if defined(__x86_64__)
    const char *sets = strchr(cpu, ':');
    if (sets == NULL || strstr(sets, "avx2") == NULL) {
        neap_cli_doctor_say(d, "instructions", NEAP_CLI_WARNING, "without AVX2 neap is correct, but many times slower",
                            "no AVX2 in use");
        return;
    }
    sets += 1 + (sets[1] == ' ');
    neap_cli_doctor_say(d, "instructions", NEAP_CLI_FINE, NULL, "%.*s", (int)strcspn(sets, ";"), sets);
#else
    (void)cpu;
    neap_cli_doctor_say(d, "instructions", NEAP_CLI_WARNING, "vector kernels exist for x86-64 only", "scalar");
#endif
}

/* What the machine has beside what it may be used for. */
static void threads(neap_cli_doctor_state *d, const char *cpu) {
    int32_t usable = neap_default_threads();
    int64_t wanted = d->options->threads > d->options->threads_batch ? d->options->threads : d->options->threads_batch;
    char remedy[96];
    snprintf(remedy, sizeof remedy, "-t %d; more threads than cores wait for each other", usable);
    if (wanted > usable)
        neap_cli_doctor_say(d, "threads", NEAP_CLI_WARNING, remedy, "%lld asked for, %d may run", (long long)wanted,
                            usable);
    else
        neap_cli_doctor_say(d, "threads", NEAP_CLI_FINE, NULL, "%d by default", usable);
    const char *cores = strchr(cpu, ';');
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores != NULL) cores += 1 + (cores[1] == ' ');
    if (online > 2L * usable && strstr(cpu, "no quota") == NULL)
        neap_cli_doctor_say(d, "quota", NEAP_CLI_WARNING, "raise the container's CPU quota to use more of the machine",
                            "%s; %ld CPUs online", cores != NULL ? cores : "", online);
    else
        neap_cli_doctor_say(d, "quota", NEAP_CLI_FINE, NULL, "%s; %ld CPUs online", cores != NULL ? cores : "", online);
}

static void huge_pages(neap_cli_doctor_state *d) {
    char line[128];
    if (!read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line))
        neap_cli_doctor_say(d, "huge pages", NEAP_CLI_WARNING, "use a kernel with transparent huge pages",
                            "the kernel has none");
    else if (strstr(line, "[never]") != NULL)
        neap_cli_doctor_say(d, "huge pages", NEAP_CLI_WARNING,
                            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                            "transparent huge pages are off: weights are read more slowly");
    else
        neap_cli_doctor_say(d, "huge pages", NEAP_CLI_FINE, NULL, "%s", line);
}

static void load(neap_cli_doctor_state *d) {
    char line[128];
    double busy = read_line("/proc/loadavg", line, sizeof line) ? strtod(line, NULL) : 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (busy > (double)online + 0.5)
        neap_cli_doctor_say(d, "load", NEAP_CLI_WARNING, "speeds measured now will be too low",
                            "%.1f processes want to run on %ld CPUs", busy, online);
    else
        neap_cli_doctor_say(d, "load", NEAP_CLI_FINE, NULL, "%.1f processes on %ld CPUs", busy, online);
}

void neap_cli_doctor_machine(neap_cli_doctor_state *d) {
    char cpu[1024];
    size_t needed = 0;
    if (neap_cpu_describe(d->options->cpu, cpu, sizeof cpu, &needed) != NEAP_OK) {
        neap_cli_doctor_say(d, "machine", NEAP_CLI_FAILED, "correct --cpu", "%s", neap_last_error());
        return;
    }
    neap_cli_doctor_say(d, "machine", NEAP_CLI_FINE, NULL, "%.*s", (int)strcspn(cpu, ":"), cpu);
    instruction_sets(d, cpu);
    threads(d, cpu);
    huge_pages(d);
    load(d);
}

/* ---- kernels ---- */

typedef struct kernels {
    neap_cli_doctor_state *d;
    int64_t n_cases;
    int32_t n_variants;
} kernels;

static void take_variant(void *user, const char *family, const char *isa, int64_t cases, int64_t failures,
                         const char *first_failure) {
    kernels *k = user;
    char remedy[128];
    k->n_cases += cases;
    k->n_variants++;
    neap_cli_progress("kernels", "variants", (uint64_t)k->n_variants, 0, 0);
    if (failures == 0) return;
    snprintf(remedy, sizeof remedy, "run with --cpu LIST without %s, and report it", isa);
    neap_cli_doctor_say(k->d, "kernels", NEAP_CLI_FAILED, remedy,
                        "%s %s: %" PRId64 " of %" PRId64 " cases differ from scalar, first: %s", family, isa, failures,
                        cases, first_failure);
}

void neap_cli_doctor_kernels(neap_cli_doctor_state *d) {
    kernels k = {.d = d};
    int32_t n_bad = kc_check_all(d->options->cpu, true, take_variant, &k);
    if (n_bad < 0)
        neap_cli_doctor_say(d, "kernels", NEAP_CLI_FAILED, "free some memory, or correct --cpu",
                            "the kernels could not be compared");
    else if (n_bad == 0)
        neap_cli_doctor_say(d, "kernels", NEAP_CLI_FINE, NULL,
                            "%d variants are equal to scalar, bit by bit, in %" PRId64 " cases", k.n_variants,
                            k.n_cases);
}

/* ---- cache ---- */

typedef struct entries {
    uint64_t n, n_bad, n_old, bytes;
    char first[256];
} entries;

static int take_entry(void *user, const neap_cache_entry *e) {
    entries *all = user;
    int is_bad = e->status != NEAP_OK && e->status != NEAP_UNSUPPORTED;
    if (is_bad && all->n_bad++ == 0) snprintf(all->first, sizeof all->first, "%s: %s", e->name, e->text);
    all->n++;
    all->n_old += e->status == NEAP_UNSUPPORTED;
    all->bytes += e->bytes;
    return 0;
}

static void report_entries(neap_cli_doctor_state *d, const char *dir, const entries *all) {
    char size[64];
    neap_cli_bytes(all->bytes, size, sizeof size);
    if (all->n_bad > 0)
        neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "neap cache prune removes what is damaged",
                            "%s: %" PRIu64 " of %" PRIu64 " entries are damaged (they are never used), first: %s", dir,
                            all->n_bad, all->n, all->first);
    else if (all->n_old > 0)
        neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "neap cache prune frees the space",
                            "%s: %" PRIu64 " of %" PRIu64 " entries are of another version", dir, all->n_old, all->n);
    else
        neap_cli_doctor_say(d, "cache", NEAP_CLI_FINE, NULL, "%s: %" PRIu64 " entr%s, %s, every byte checked", dir,
                            all->n, all->n == 1 ? "y" : "ies", size);
}

void neap_cli_doctor_cache(neap_cli_doctor_state *d) {
    neap_cli_text own = {0};
    struct stat st;
    const char *dir = neap_cli_cache_dir(d->options, &own);
    if (dir == NULL) {
        neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "set HOME, XDG_CACHE_HOME or --cache-dir",
                            "there is no directory for it: every start packs the weights anew");
    } else if (stat(dir, &st) != 0 && errno == ENOENT) {
        neap_cli_doctor_say(d, "cache", NEAP_CLI_FINE, NULL, "%s: not used yet", dir);
    } else if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode) || access(dir, R_OK | W_OK | X_OK) != 0) {
        neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "make it a directory that you may write",
                            "%s cannot be used: every start packs the weights anew", dir);
    } else if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
        neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "chmod go-w, or choose another one with --cache-dir",
                            "%s can be written by others, so that nothing in it is believed", dir);
    } else {
        entries all = {0};
        if (neap_cache_list(dir, 1, take_entry, &all) == NEAP_OK)
            report_entries(d, dir, &all);
        else
            neap_cli_doctor_say(d, "cache", NEAP_CLI_WARNING, "choose another one with --cache-dir", "%s",
                                neap_last_error());
    }
    neap_cli_text_free(&own);
}
