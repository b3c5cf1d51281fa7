/* Timing of one bench case, and its share of the limits of this core (kcheck_limits.c). */
#include <stdio.h>
#include <stdlib.h>

#include "kcheck_floors.h"
#include "kcheck_limits.h"

enum { RUNS = 15 };
typedef struct timing {
    double times[RUNS], best, median;
    int n;
    kc_limits limits;
    bool is_cold;
} timing;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Some 2 ms at a time, in turns with the limits; up to 15 times, at least three times. */
static void measure(kc *c, timing *t, void (*run)(const kc *c, void *args), void *args, double bytes) {
    const double enough = 2e-3, budget = 0.5;
    int64_t copies = kc_cold_fill(c), copy = 0;
    t->is_cold = copies > 0 || c->is_far;
    kc_limits_begin(&t->limits);
    double start = kc_now(), spent = 0;
    run(c, args); /* warm */
    double once = kc_now() - start;
    int repeat = once < enough ? (int)(enough / (once + 1e-7)) + 1 : 1;
    for (t->n = 0; t->n < RUNS && (t->n < 3 || spent < budget); t->n++) {
        if (c->is_roofline) kc_limits_turn(&t->limits, c, t->is_cold ? bytes * repeat : bytes, t->is_cold);
        start = kc_now();
        for (int r = 0; r < repeat; r++) {
            if (copies) kc_cold_use(c, copy++ % copies);
            run(c, args);
        }
        t->times[t->n] = (kc_now() - start) / repeat;
        spent += t->times[t->n] * repeat;
    }
    if (copies) kc_cold_use(c, -1);
    qsort(t->times, (size_t)t->n, sizeof *t->times, by_value);
    t->best = t->times[0];
    t->median = t->times[t->n / 2];
}

/* AMX does every product on its tiles; where a level lacks an instruction, kernels use float32. */
static neap_peak_kind settle_maths(const kc *c) {
    bool is_tiles = strcmp(c->isa, "amx") == 0;
    neap_peak_kind kind = c->maths;
    if (is_tiles) kind = kind == NEAP_PEAK_DOT8 || kind == NEAP_PEAK_DOT16 ? NEAP_PEAK_TILE8 : NEAP_PEAK_TILE16;
    return c->peaks.multiply[kind] ? kind : NEAP_PEAK_FMA;
}

static const char *name_of(neap_peak_kind kind) {
#define TEXT(name, text) text,
    static const char *const names[] = {NEAP_PEAK_MAP(TEXT)};
#undef TEXT
    return names[kind];
}

static void print(const kc *c, const kc_result *r, const timing *t, double bytes, double macs, double ratio) {
    double by_bytes = bytes * (t->is_cold ? t->limits.memory : t->limits.near), by_macs = macs * t->limits.multiply;
    const char *bound = by_macs > by_bytes ? name_of(c->maths) : t->is_cold ? "memory" : "cache";
    double limit = by_macs > by_bytes ? 1e-9 / t->limits.multiply : bytes / by_bytes * 1e-9;
    double each = r->items > 0 ? r->seconds / r->items * 1e9 : 0;
    bool has_share = c->is_roofline && by_bytes + by_macs > 0;
    if (c->is_csv) {
        printf("%s,%s,\"%s\",%.3f,%.3f,%.3f,%.3f,%.2f", c->family, c->isa, r->label, t->best * 1e6, t->median * 1e6,
               bytes / t->best * 1e-9, macs / t->best * 1e-9, ratio);
        if (c->is_roofline)
            printf(",%.3f,%.3f,%s,%.3f,%.3f,%.3f", each, each * 1e-9 / r->cycle, has_share ? bound : "",
                   has_share ? limit : 0, r->share, r->fma_share);
        printf("\n");
        return;
    }
    printf("%-8s %-10s %-36s best %10.2f us  median %10.2f us  %7.2f GB/s  %7.2f GMAC/s  x%.1f", c->family, c->isa,
           r->label, t->best * 1e6, t->median * 1e6, bytes / t->best * 1e-9, macs / t->best * 1e-9, ratio);
    if (has_share)
        printf("  %5.1f %% of %s %.1f %s", r->share * 100, bound, limit, by_macs > by_bytes ? "GMAC/s" : "GB/s");
    if (each > 0) printf("  %.3f ns each", each);
    printf("\n");
}

/* Labels without the spaces at their ends. */
static void name_case(char name[static 64], const char *label) {
    snprintf(name, 64, "%s", label);
    for (size_t n = strlen(name); n && name[n - 1] == ' '; n--) name[n - 1] = 0;
}

bool kc_wants(const kc *c, const char *label) {
    char name[64];
    name_case(name, label);
    return !kc_floors_exist() || kc_floors_want(c->family, c->isa, name);
}

void kc_bench(kc *c, const char *label, void (*run)(const kc *c, void *args), void *args, double bytes, double macs) {
    kc_result r = {.items = c->items};
    timing t;
    snprintf(r.family, sizeof r.family, "%s", c->family);
    snprintf(r.isa, sizeof r.isa, "%s", c->isa);
    name_case(r.label, label);
    if (kc_wants(c, r.label)) {
        c->maths = settle_maths(c);
        measure(c, &t, run, args, bytes);
        double by_bytes = bytes * (t.is_cold ? t.limits.memory : t.limits.near), by_macs = macs * t.limits.multiply;
        r.seconds = t.best;
        r.speed = (macs > 0 ? macs : bytes) / t.best; /* scalar may have had a smaller problem */
        r.cycle = t.limits.cycle;
        if (c->is_roofline) r.share = (by_macs > by_bytes ? by_macs : by_bytes) / t.best;
        if (c->is_roofline) r.fma_share = macs * t.limits.fma / t.best;
        kc_results_add(&r);
        const kc_result *scalar = kc_results_find(c->family, "scalar", r.label);
        print(c, &r, &t, bytes, macs, scalar ? r.speed / scalar->speed : 0);
        fflush(stdout);
    }
    c->maths = NEAP_PEAK_FMA;
    c->items = c->region = 0;
    c->is_far = false;
    c->n_cold = 0;
}
