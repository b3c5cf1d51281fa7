/* The command line of kcheck.
 *
 *   kcheck [--list] [--only=gemm,kda] [--cpu=avx2,avx512] [--seed=N] [--bench [--csv] [--roofline] [--floors=PATH]]
 *
 * Exit 1 when any comparison failed or a floor was missed. A variant that this CPU lacks is printed as SKIP, never as
 * passed. The ratio of --bench is to scalar, 0 when --cpu leaves scalar out. With --floors only the cases that a floor
 * names are timed, and again up to three times while one is missed. */
#include <stdio.h>
#include <stdlib.h>

#include "kcheck.h"
#include "kcheck_floors.h"
#include "kernels/cpu.h"

/* Is `name` one of the comma-separated words of list? NULL list: yes. */
static bool is_listed(const char *list, const char *name) {
    if (!list) return true;
    size_t n = strlen(name);
    for (const char *p = list;; p++) {
        size_t word = strcspn(p, ",");
        if (word == n && memcmp(p, name, n) == 0) return true;
        p += word;
        if (!*p) return false;
    }
}

static int usage(void) {
    fprintf(stderr,
            "usage: kcheck [--list] [--only=family,...] [--cpu=isa,...] [--seed=N] [--bench [--csv] [--roofline] "
            "[--floors=PATH]]\n");
    return 2;
}

static struct {
    const char *only, *cpu, *floors;
    bool is_list, is_bench, is_csv, is_roofline;
    uint64_t seed;
} options = {.seed = 1};

static bool parse_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            options.is_list = true;
        else if (strcmp(argv[i], "--bench") == 0)
            options.is_bench = true;
        else if (strcmp(argv[i], "--csv") == 0)
            options.is_csv = true;
        else if (strcmp(argv[i], "--roofline") == 0)
            options.is_roofline = true;
        else if (strncmp(argv[i], "--only=", 7) == 0)
            options.only = argv[i] + 7;
        else if (strncmp(argv[i], "--cpu=", 6) == 0)
            options.cpu = argv[i] + 6;
        else if (strncmp(argv[i], "--floors=", 9) == 0)
            options.floors = argv[i] + 9;
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            options.seed = strtoull(argv[i] + 7, NULL, 10);
        else
            return false;
    }
    return !(options.floors || options.is_roofline) || options.is_bench;
}

static bool is_chosen(const char *family, const char *isa) {
    return is_listed(options.only, family) && is_listed(options.cpu, isa);
}

/* The floors of this CPU's class: with AVX-512 those of AVX-512 and what stands on it, else those of AVX2 and, where
 * it is there, AVX-VNNI. */
static bool read_floors(void) {
    static const struct {
        uint32_t flag;
        const char *name;
    } levels[] = {{NEAP_CPU_AVXVNNI, ",avxvnni"},
                  {NEAP_CPU_AVX512VNNI, ",avx512vnni"},
                  {NEAP_CPU_AVX512BF16, ",avx512bf16"},
                  {NEAP_CPU_AMX, ",amx"}};
    uint32_t here = neap_cpu_flags();
    char text[80];
    snprintf(text, sizeof text, "%s", here & NEAP_CPU_AVX512 ? "avx512" : "avx2");
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (here & levels[i].flag && !(here & NEAP_CPU_AVX512 && levels[i].flag == NEAP_CPU_AVXVNNI))
            strncat(text, levels[i].name, sizeof text - strlen(text) - 1);
    return kc_floors_read(options.floors, options.cpu ? options.cpu : text);
}

/* Once, or while floors of this variant are missed: another load of the machine may have passed by then. */
static void bench_variant(kc *c, const kc_family_tests *tests) {
    enum { TRIES = 4 };
    if (!tests->bench) return;
    for (int try = 0; try < TRIES && (!options.floors || kc_floors_open(c->family, c->isa)); try++) {
        if (try && !options.is_csv)
            printf("%-8s %-10s %d floors missed, again\n", c->family, c->isa, kc_floors_open(c->family, c->isa));
        tests->bench(c);
        if (!options.floors) return;
    }
}

/* One variant of one family; failures. */
static int64_t run_variant(const kc_variant *v) {
    bool is_here = (v->needs & neap_cpu_flags()) == v->needs;
    if (options.is_list) {
        printf("%s %s%s\n", v->family, v->isa, is_here ? "" : " (not on this CPU)");
        return 0;
    }
    if (!is_here) {
        printf("SKIP %s %s: this CPU lacks it\n", v->family, v->isa);
        return 0;
    }
    kc c = {.seed = options.seed, .is_csv = options.is_csv, .is_roofline = options.is_roofline || options.floors};
    kc_start(&c, v);
    if (options.is_bench) {
        bench_variant(&c, v->tests);
        return 0;
    }
    v->tests->check(&c);
    printf("%s %s %s: %lld cases, %lld failures\n", c.failures ? "FAIL" : "ok  ", c.family, c.isa, (long long)c.cases,
           (long long)c.failures);
    fflush(stdout);
    return c.failures;
}

int main(int argc, char **argv) {
    if (!parse_options(argc, argv)) return usage();
    if ((options.floors && !read_floors()) || !kc_claim(options.is_bench)) return 2;
    if (!options.is_list && !options.is_csv)
        printf("kcheck on %s, seed %llu\n", neap_cpu_model(), (unsigned long long)options.seed);
    if (options.is_bench && options.is_csv)
        printf("family,isa,case,best_us,median_us,gb_per_s,gmac_per_s,ratio_to_scalar%s\n",
               options.is_roofline ? ",ns_per_item,cycles_per_item,limit,limit_value,share,share_of_fma" : "");
    int64_t failures = 0;
    for (int i = 0; i < kc_variants(); i++) {
        const kc_variant *v = kc_variant_at(i);
        if (is_chosen(v->family, v->isa)) failures += run_variant(v);
    }
    if (options.floors) failures += kc_floors_judge(is_chosen);
    kc_release();
    return failures ? 1 : 0;
}
