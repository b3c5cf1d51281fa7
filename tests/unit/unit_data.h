/* For tests of codecs and kernels: reads arrays of the golden unit files, and makes one kernel table per
 * instruction set that this machine has. Memory is kept on a
 * list until the program ends. */
#ifndef NEAP_TESTS_UNIT_DATA_H
#define NEAP_TESTS_UNIT_DATA_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "format/checkpoint.h"
#include "kernels/families.h"

typedef struct unit_array {
    const neap_stored_tensor *t;
    union {
        void *data;
        const float *f;
        const double *d;
        const uint8_t *u8;
        const int32_t *i32;
    };
    int64_t n;
} unit_array;

static inline void *unit_zeros(int64_t n, size_t size) {
    static struct block {
        struct block *next;
        _Alignas(64) char data[];
    } * blocks;
    struct block *b = NULL;
    size_t bytes = (sizeof *b + (size_t)n * size + 127) / 64 * 64;
    assert_int_equal(posix_memalign((void **)&b, 64, bytes), 0);
    memset(b, 0, bytes);
    b->next = blocks;
    blocks = b;
    return b->data;
}
static inline float *unit_floats(int64_t n) { return unit_zeros(n, sizeof(float)); }

static inline neap_checkpoint *unit_open(const char *file) {
    char path[4096];
    neap_checkpoint *c = NULL;
    snprintf(path, sizeof path, "%s/golden/units/%s.safetensors", NEAP_TEST_DATA, file);
    if (neap_checkpoint_open_file(&c, path) != NEAP_OK) fail_msg("%s", neap_last_error());
    return c;
}

__attribute__((format(printf, 2, 3))) static inline unit_array unit_get(const neap_checkpoint *c, const char *format,
                                                                        ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    unit_array a = {.t = neap_checkpoint_find(c, name)};
    if (!a.t) fail_msg("no tensor %s", name);
    a.n = (int64_t)(a.t->bytes * 8 / (uint64_t)neap_dtype_bits(a.t->dtype));
    a.data = unit_zeros((int64_t)a.t->bytes, 1);
    if (neap_checkpoint_read(c, a.t, 0, a.t->bytes, a.data) != NEAP_OK) fail_msg("%s", neap_last_error());
    return a;
}

/* Deterministic random numbers: splitmix64, and a rough normal distribution (sum of 12 uniforms). */
static inline uint64_t unit_random(uint64_t *s) {
    uint64_t z = (*s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
static inline float unit_normal(uint64_t *s) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(unit_random(s) >> 11) * 0x1p-53;
    return (float)sum;
}
static inline float *unit_normals(uint64_t *s, int64_t n, float scale) {
    float *x = unit_floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = unit_normal(s) * scale;
    return x;
}

/* The largest |got - want|; infinity when one is NaN and the other is not. */
static inline double unit_error(const float *got, const float *want, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (isnan(e)) e = (isnan(got[i]) && isnan(want[i])) || got[i] == want[i] ? 0 : INFINITY;
        if (e > worst) worst = e;
    }
    return worst;
}
static inline double unit_largest(const float *x, int64_t n) {
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fabs((double)x[i]) > m ? fabs((double)x[i]) : m;
    return m;
}
#define UNIT_CLOSE(got, want, n, limit)                                                                               \
    do {                                                                                                              \
        double unit_e_ = unit_error((got), (want), (n));                                                              \
        if (!(unit_e_ <= (limit)))                                                                                    \
            fail_msg("%s:%d: %s: error %g, limit %g", __FILE__, __LINE__, unit_table_name, unit_e_, (double)(limit)); \
    } while (0)

/* ---- one table per instruction set ---- */
static const char *unit_table_name = "?"; /* of the table in use, for messages */

typedef void (*unit_body)(const neap_kernels *k);
static inline void unit_each_table(unit_body body) {
    static const struct {
        const char *name;
        uint32_t flags;
    } sets[] = {{"scalar", 0}, {"avx2", NEAP_CPU_AVX2}, {"avx512", NEAP_CPU_AVX2 | NEAP_CPU_AVX512}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if ((sets[i].flags & neap_cpu_flags()) != sets[i].flags) {
            print_message("SKIP %s: this CPU lacks it\n", sets[i].name);
            continue;
        }
        neap_kernels k;
        neap_kernels_init(&k, sets[i].flags);
        unit_table_name = sets[i].name;
        body(&k);
    }
}

#endif
