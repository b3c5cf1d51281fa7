/* Peaks without vectors: eight independent sums, eight loads. See peak.h. */
#include <math.h>
#include <string.h>

#include "kernels/families.h"

static int64_t multiply_fma(int64_t n, float *sink) {
    float s[8] = {0, 1, 2, 3, 4, 5, 6, 7}, x = 0.999f + *sink * 0, c = 1e-4f;
    for (int64_t i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++) s[k] = fmaf(s[k], x, c);
    for (int k = 1; k < 8; k++) s[0] += s[k];
    *sink = s[0];
    return (n + 7) / 8 * 8;
}

static uint64_t read_all(const void *p, int64_t bytes, int way) {
    uint64_t s[4] = {0}, x[4];
    for (int64_t i = 0; i < bytes; i += 32) {
        if (way && i % 64 == 0) __builtin_prefetch((const char *)p + i + 1024);
        memcpy(x, (const char *)p + i, sizeof x);
        for (int k = 0; k < 4; k++) s[k] ^= x[k];
    }
    return s[0] ^ s[1] ^ s[2] ^ s[3];
}

void neap_peak_scalar_init(neap_kernels *k) {
    k->peaks.multiply[NEAP_PEAK_FMA] = multiply_fma;
    k->peaks.read = read_all;
}
