/* All variants of all families, buffers with guard bands, and comparison. The program (kcheck_main.c) and `neap doctor`
 * (check_all.h) walk the same table. */
#include "kcheck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "check_all.h"
#include "kernels/cpu.h"
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
    if (c->failures++ == 0) snprintf(c->first, sizeof c->first, "%s: %s", c->label, what);
    if (c->failures <= 20 && !c->is_quiet)
        printf("FAIL %s %s: %s: %s (--seed=%llu)\n", c->family, c->isa, c->label, what, (unsigned long long)c->seed);
}

bool kc_begin(kc *c, const char *format, ...) {
    enum { PART = 6 };
    va_list args;
    va_start(args, format);
    vsnprintf(c->label, sizeof c->label, format, args);
    va_end(args);
    buffers.used = 0;
    buffers.n = 0;
    c->random = c->seed;
    for (const char *s = c->label; *s; s++) c->random = c->random * 31 + (unsigned char)*s;
    if (c->begun++ % PART != 0 && c->is_quick) return false;
    c->cases++;
    return true;
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
    static const float extremes[] = {3e38f,   -3e38f, 1e30f, -1e30f, 1e-30f, 1e-38f,  -1e-40f, 1e-45f, 0.0f,
                                     -0.0f,   1.0f,   -1.0f, 88.7f,  -88.7f, -104.f,  20.0f,   0.625f, -0.625f,
                                     65504.f, 1e4f,   -1e4f, 1e7f,   -1e7f,  -1.2e7f, 9e8f,    -9e8f};
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

/* ---- families ---- */

#define VARIANT(family, isa, needs) {#family, #isa, needs, neap_##family##_##isa##_init, &neap_kc_##family},
static const kc_variant variants[] = {
    NEAP_GEMM_VARIANTS(VARIANT) NEAP_IGEMM_VARIANTS(VARIANT) NEAP_NORM_VARIANTS(VARIANT) NEAP_ACT_VARIANTS(VARIANT)
        NEAP_KDA_VARIANTS(VARIANT) NEAP_ATTN_VARIANTS(VARIANT) NEAP_INDEX_VARIANTS(VARIANT)
            NEAP_ATTNRES_VARIANTS(VARIANT) NEAP_ROUTE_VARIANTS(VARIANT) NEAP_ROPE_VARIANTS(VARIANT)
                NEAP_SAMPLE_VARIANTS(VARIANT) NEAP_PEAK_VARIANTS(VARIANT)};

int kc_variants(void) { return (int)(sizeof variants / sizeof *variants); }

const kc_variant *kc_variant_at(int i) { return &variants[i]; }

void kc_start(kc *c, const kc_variant *v) {
    c->family = v->family;
    c->isa = v->isa;
    neap_kernels_init(&c->ref, v->needs);
    c->peaks = c->ref.peaks;
    neap_kernels_init(&c->ref, 0);
    neap_kernels_init(&c->k, 0);
    v->init(&c->k);
}

bool kc_claim(bool is_for_bench) {
    buffers.capacity = (size_t)(is_for_bench ? 640 : 64) << 20;
    buffers.memory = aligned_alloc(64, buffers.capacity);
    if (!buffers.memory) return false;
    /* as arena.c has it: what is timed should not wait for the translation of addresses */
    char *huge = buffers.memory + (-(uintptr_t)buffers.memory & (((uintptr_t)2 << 20) - 1));
    (void)madvise(huge, (size_t)(buffers.memory + buffers.capacity - huge), MADV_HUGEPAGE);
    return true;
}

void kc_release(void) {
    free(buffers.memory);
    buffers.memory = NULL;
}

int32_t kc_check_all(const char *cpu, bool quick, kc_check_fn fn, void *user) {
    uint32_t flags;
    if (neap_cpu_parse(cpu, &flags) != NEAP_OK || !kc_claim(false)) return -1;
    int32_t n_differ = 0;
    for (int i = 0; i < kc_variants(); i++) {
        if ((variants[i].needs & flags) != variants[i].needs) continue;
        kc c = {.seed = 1, .is_quiet = true, .is_quick = quick};
        kc_start(&c, &variants[i]);
        variants[i].tests->check(&c);
        n_differ += c.failures > 0;
        fn(user, c.family, c.isa, c.cases, c.failures, c.first);
    }
    kc_release();
    return n_differ;
}
