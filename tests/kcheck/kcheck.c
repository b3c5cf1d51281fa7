/* The command line of kcheck, its buffers with guard bands, and comparison.
 *
 *   kcheck [--list] [--only=gemm,kda] [--cpu=avx2,avx512] [--seed=N] [--bench [--csv] [--roofline] [--floors=PATH]]
 *
 * Exit 1 when any comparison failed or a floor was missed. A variant that this CPU lacks is printed as SKIP, never as
 * passed. The ratio of --bench is to scalar, 0 when --cpu leaves scalar out. With --floors only the cases that a floor
 * names are timed, and again up to three times while one is missed. */
#include "kcheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kcheck_floors.h"
#include "tensor/codec.h"

enum { GUARD = 256, BUFFERS_MAX = 256 }; /* guard bytes on each side */

/* ---- buffers ---- */

static struct {
    char *memory;
    size_t capacity, used;
    struct {
        unsigned char *begin, *end; /* without the guards */
    } list[BUFFERS_MAX];
    int n;
} buffers;

static void *buffer(int64_t bytes, int64_t skew) {
    size_t need = (size_t)bytes + (size_t)skew + 2 * GUARD + 64;
    if (buffers.used + need > buffers.capacity || buffers.n == BUFFERS_MAX) {
        fprintf(stderr, "kcheck: a case needs more than %zu bytes\n", buffers.capacity);
        exit(2);
    }
    unsigned char *start = (unsigned char *)buffers.memory + buffers.used;
    memset(start, 0xa5, need);
    unsigned char *p = start + GUARD + skew; /* memory and GUARD are multiples of 64 */
    buffers.list[buffers.n].begin = p;
    buffers.list[buffers.n++].end = p + bytes;
    buffers.used += need / 64 * 64;
    return p;
}

void kc_fail(kc *c, const char *what) {
    c->failures++;
    if (c->failures <= 20)
        printf("FAIL %s %s: %s: %s (--seed=%llu)\n", c->family, c->isa, c->label, what, (unsigned long long)c->seed);
}

void kc_begin(kc *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->label, sizeof c->label, format, args);
    va_end(args);
    buffers.used = 0;
    buffers.n = 0;
    c->cases++;
    c->random = c->seed;
    for (const char *s = c->label; *s; s++) c->random = c->random * 31 + (unsigned char)*s;
}

void kc_end(kc *c) {
    for (int i = 0; i < buffers.n; i++) {
        int broken = 0;
        for (int g = 1; g <= GUARD / 2; g++) broken += buffers.list[i].begin[-g] != 0xa5;
        for (int g = 0; g < GUARD / 2; g++) broken += buffers.list[i].end[g] != 0xa5;
        if (broken) kc_fail(c, "wrote outside a buffer");
    }
}

uint64_t kc_random(kc *c) {
    uint64_t z = (c->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int64_t kc_below(kc *c, int64_t n) { return (int64_t)(kc_random(c) % (uint64_t)n); }

static float value(kc *c, kc_fill fill) {
    static const float extremes[] = {3e38f, -3e38f, 1e30f, -1e30f, 1e-30f, 1e-38f, -1e-40f, 1e-45f,  0.0f,    -0.0f,
                                     1.0f,  -1.0f,  88.7f, -88.7f, -104.f, 20.0f,  0.625f,  -0.625f, 65504.f, 1e4f};
    uint64_t r = kc_random(c);
    double sum = -4; /* eight 8-bit uniforms: deviation about 0.82 */
    for (int i = 0; i < 8; i++) sum += (double)(r >> 8 * i & 255) / 255;
    float normal = (float)(sum * 1.2 + (double)(r & 0xffff) * 1e-6);
    switch (fill) {
    case KC_ZEROS: return r & 1 ? 0.0f : -0.0f;
    case KC_EXTREME: return r % 3 ? extremes[r / 3 % (sizeof extremes / sizeof *extremes)] : normal;
    case KC_BROKEN: return r % 50 == 0 ? NAN : r % 50 == 1 ? INFINITY : r % 50 == 2 ? -INFINITY : normal;
    default: return normal;
    }
}

float *kc_floats(kc *c, int64_t n, int skew, kc_fill fill) {
    float *p = buffer(n * (int64_t)sizeof *p, skew * (int64_t)sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = value(c, fill);
    return p;
}

float *kc_output(kc *c, int64_t n, int skew) {
    (void)c;
    return buffer(n * (int64_t)sizeof(float), skew * (int64_t)sizeof(float)); /* stays poisoned */
}

void *kc_bytes(kc *c, int64_t n) {
    (void)c;
    return buffer(n, 0);
}

float *kc_copy(kc *c, const float *x, int64_t n, int skew) {
    float *p = kc_output(c, n, skew);
    memcpy(p, x, (size_t)n * sizeof *p);
    return p;
}

void kc_same(kc *c, const char *what, const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) == 0 || (isnan(got[i]) && isnan(want[i]))) continue;
        char text[160];
        snprintf(text, sizeof text, "%s[%lld] is %a, not %a", what, (long long)i, (double)got[i], (double)want[i]);
        kc_fail(c, text);
        return;
    }
}

void kc_same_bytes(kc *c, const char *what, const void *got, const void *want, int64_t bytes) {
    if (memcmp(got, want, (size_t)bytes) != 0) kc_fail(c, what);
}

neap_matrix kc_matrix(kc *c, neap_matrix_kind kind, int64_t n, int64_t k, kc_fill fill) {
    neap_matrix m;
    neap_matrix_shape(&m, kind, n, k);
    neap_pack_source s = {.row_stride = k, .col_stride = 1};
    void *storage = kc_bytes(c, (int64_t)neap_matrix_panel_bytes(&m));
    if (kind == NEAP_MATRIX_F32 || kind == NEAP_MATRIX_BF16) {
        s.dtype = kind == NEAP_MATRIX_F32 ? NEAP_DTYPE_F32 : NEAP_DTYPE_BF16;
        float *f = kc_floats(c, n * k, 0, fill);
        s.data = f;
        if (kind == NEAP_MATRIX_BF16) {
            uint16_t *h = kc_bytes(c, n * k * 2);
            for (int64_t i = 0; i < n * k; i++) h[i] = neap_f32_to_bf16(f[i]);
            s.data = h;
        }
    } else if (kind == NEAP_MATRIX_INT8) {
        static const int64_t groups[] = {128, 32, 64, 4, 12, 256, 1 << 20};
        neap_matrix_shape_int8(&m, n, k, groups[n * k < 100000 ? kc_below(c, 7) : 0]); /* real sizes: 128 */
        int8_t *codes = kc_bytes(c, n * k);
        for (int64_t i = 0; i < n * k; i++) codes[i] = fill == KC_ZEROS ? 0 : (int8_t)(kc_random(c) & 0xff);
        s.dtype = NEAP_DTYPE_I8;
        s.data = codes;
        int64_t n_groups = neap_matrix_groups(&m);
        float *rows = kc_floats(c, n * n_groups, 0, fill), *scales = kc_output(c, neap_matrix_scale_count(&m), 0);
        if (fill == KC_NORMAL)
            for (int64_t i = 0; i < n * n_groups; i++) rows[i] *= 0.01f;
        neap_matrix_pack_scales(&m, scales, rows);
        m.scales = scales;
    } else {
        uint8_t *codes = kc_bytes(c, n * k);
        for (int64_t i = 0; i < n * k; i++)
            codes[i] = fill == KC_ZEROS ? (uint8_t)(kc_random(c) & 0x80) : (uint8_t)kc_random(c);
        s.data = codes;
        if (kind == NEAP_MATRIX_FP8) {
            for (int64_t i = 0; i < n * k; i++)
                if ((codes[i] & 0x7f) == 0x7f && fill != KC_BROKEN) codes[i] = (uint8_t)(codes[i] & 0x87);
            s.dtype = NEAP_DTYPE_F8_E4M3;
            int64_t n_scales = neap_matrix_scale_count(&m);
            float *scales = kc_floats(c, n_scales, 0, KC_NORMAL);
            for (int64_t i = 0; i < n_scales; i++)
                scales[i] = fill == KC_EXTREME ? ldexpf(scales[i], (int)kc_below(c, 200) - 110) : scales[i] * 0.01f;
            s.scale_inv = m.scales = scales;
        } else {
            int64_t groups = (k + 31) / 32;
            uint8_t *scales = kc_bytes(c, n * groups);
            for (int64_t i = 0; i < n * groups; i++)
                scales[i] =
                    fill == KC_EXTREME || fill == KC_BROKEN ? (uint8_t)kc_random(c) : (uint8_t)(115 + kc_below(c, 10));
            s.dtype = NEAP_DTYPE_U8;
            s.row_stride = (k + 1) / 2;
            s.scale_e8m0 = scales;
        }
    }
    neap_matrix_pack(&m, storage, &s, 0, neap_matrix_panels(&m));
    m.panels = storage;
    return m;
}

/* ---- families and command line ---- */

typedef struct variant {
    const char *isa;
    uint32_t needs;
    void (*init)(neap_kernels *k);
} variant;

#define VARIANT(family, isa, needs) {#isa, needs, neap_##family##_##isa##_init},
static const variant gemm_variants[] = {NEAP_GEMM_VARIANTS(VARIANT)}, igemm_variants[] = {NEAP_IGEMM_VARIANTS(VARIANT)},
                     norm_variants[] = {NEAP_NORM_VARIANTS(VARIANT)}, act_variants[] = {NEAP_ACT_VARIANTS(VARIANT)},
                     kda_variants[] = {NEAP_KDA_VARIANTS(VARIANT)}, attn_variants[] = {NEAP_ATTN_VARIANTS(VARIANT)},
                     index_variants[] = {NEAP_INDEX_VARIANTS(VARIANT)},
                     attnres_variants[] = {NEAP_ATTNRES_VARIANTS(VARIANT)},
                     route_variants[] = {NEAP_ROUTE_VARIANTS(VARIANT)}, rope_variants[] = {NEAP_ROPE_VARIANTS(VARIANT)},
                     sample_variants[] = {NEAP_SAMPLE_VARIANTS(VARIANT)},
                     peak_variants[] = {NEAP_PEAK_VARIANTS(VARIANT)};

static const struct {
    const char *name;
    const variant *variants;
    size_t n;
    const kc_family_tests *tests;
} families[] = {
#define FAMILY(name) \
    { #name, name##_variants, sizeof name##_variants / sizeof *name##_variants, &neap_kc_##name }
    FAMILY(gemm),  FAMILY(igemm),   FAMILY(norm),  FAMILY(act),  FAMILY(kda),    FAMILY(attn),
    FAMILY(index), FAMILY(attnres), FAMILY(route), FAMILY(rope), FAMILY(sample), FAMILY(peak),
};
enum { N_FAMILIES = sizeof families / sizeof *families };

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

/* The floors of this CPU's class: with AVX-512 those of AVX-512 and what stands on it, else those of AVX2. */
static bool read_floors(void) {
    static const struct {
        uint32_t flag;
        const char *name;
    } levels[] = {{NEAP_CPU_AVX512VNNI, ",avx512vnni"}, {NEAP_CPU_AVX512BF16, ",avx512bf16"}, {NEAP_CPU_AMX, ",amx"}};
    uint32_t here = neap_cpu_flags();
    char text[80];
    snprintf(text, sizeof text, "%s", here & NEAP_CPU_AVX512 ? "avx512" : "avx2");
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (here & levels[i].flag) strncat(text, levels[i].name, sizeof text - strlen(text) - 1);
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
static int64_t run_variant(int f, const variant *v) {
    bool is_here = (v->needs & neap_cpu_flags()) == v->needs;
    if (options.is_list) {
        printf("%s %s%s\n", families[f].name, v->isa, is_here ? "" : " (not on this CPU)");
        return 0;
    }
    if (!is_here) {
        printf("SKIP %s %s: this CPU lacks it\n", families[f].name, v->isa);
        return 0;
    }
    kc c = {.family = families[f].name,
            .isa = v->isa,
            .seed = options.seed,
            .is_csv = options.is_csv,
            .is_roofline = options.is_roofline || options.floors};
    neap_kernels_init(&c.ref, v->needs);
    c.peaks = c.ref.peaks;
    neap_kernels_init(&c.ref, 0);
    neap_kernels_init(&c.k, 0);
    v->init(&c.k);
    if (options.is_bench) {
        bench_variant(&c, families[f].tests);
        return 0;
    }
    families[f].tests->check(&c);
    printf("%s %s %s: %lld cases, %lld failures\n", c.failures ? "FAIL" : "ok  ", c.family, c.isa, (long long)c.cases,
           (long long)c.failures);
    fflush(stdout);
    return c.failures;
}

static bool claim_buffers(void) {
    buffers.capacity = (size_t)640 << 20;
    buffers.memory = aligned_alloc(64, buffers.capacity);
    if (!buffers.memory) return false;
    /* as arena.c has it: what is timed should not wait for the translation of addresses */
    char *huge = buffers.memory + (-(uintptr_t)buffers.memory & (((uintptr_t)2 << 20) - 1));
    (void)madvise(huge, (size_t)(buffers.memory + buffers.capacity - huge), MADV_HUGEPAGE);
    return true;
}

int main(int argc, char **argv) {
    if (!parse_options(argc, argv)) return usage();
    if ((options.floors && !read_floors()) || !claim_buffers()) return 2;
    if (!options.is_list && !options.is_csv)
        printf("kcheck on %s, seed %llu\n", neap_cpu_model(), (unsigned long long)options.seed);
    if (options.is_bench && options.is_csv)
        printf("family,isa,case,best_us,median_us,gb_per_s,gmac_per_s,ratio_to_scalar%s\n",
               options.is_roofline ? ",ns_per_item,cycles_per_item,limit,limit_value,share,share_of_fma" : "");
    int64_t failures = 0;
    for (int f = 0; f < N_FAMILIES; f++)
        for (size_t v = 0; v < families[f].n; v++)
            if (is_chosen(families[f].name, families[f].variants[v].isa))
                failures += run_variant(f, &families[f].variants[v]);
    if (options.floors) failures += kc_floors_judge(is_chosen);
    free(buffers.memory);
    return failures ? 1 : 0;
}
