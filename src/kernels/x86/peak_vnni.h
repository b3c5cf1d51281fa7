/* Peaks of VNNI, in either width: dot products of 8 and 16 bits that add into 32 bits in one instruction. See
 * kernels/peak.h. */
#ifndef NEAP_KERNELS_X86_PEAK_VNNI_H
#define NEAP_KERNELS_X86_PEAK_VNNI_H

#include <stdbool.h>

#include "kernels/x86/peak_vec.h"

#if defined(__AVX512VNNI__)
#define PEAK_DOT(name) _mm512_##name##_epi32
#else
#define PEAK_DOT(name) _mm256_##name##_avx_epi32
#endif

V_INLINE int64_t peak_vnni(int64_t n, float *sink, const bool is_8) {
    const int64_t round = PEAK_SUMS * V_WIDTH * (is_8 ? 4 : 2);
    peak_int s[PEAK_SUMS], x = peak_set8(3), y = peak_set8(5);
    int64_t rounds = n / round + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] =
            is_8 ? PEAK_DOT(dpbusd)(s[i], x, y) : PEAK_DOT(dpwssd)(s[i], x, y);
    *sink += peak_fold(s, PEAK_SUMS);
    return rounds * round;
}
static int64_t peak_vnni16(int64_t n, float *sink) { return peak_vnni(n, sink, false); }
static int64_t peak_vnni8(int64_t n, float *sink) { return peak_vnni(n, sink, true); }

V_INLINE void peak_vnni_fill(neap_kernels *k) {
    peak_fill(k);
    k->peaks.multiply[NEAP_PEAK_DOT16] = peak_vnni16;
    k->peaks.multiply[NEAP_PEAK_DOT8] = peak_vnni8;
}

#endif
