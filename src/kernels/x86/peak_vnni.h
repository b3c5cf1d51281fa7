/* Peaks of VNNI, in either width: dot products of 8 and 16 bits that add into 32 bits in one instruction. See
 * kernels/peak.h. */
#ifndef NEAP_KERNELS_X86_PEAK_VNNI_H
#define NEAP_KERNELS_X86_PEAK_VNNI_H

#include "kernels/x86/peak_vec.h"

#if defined(__AVX512VNNI__)
#define PEAK_DOT(name) _mm512_##name##_epi32
#else
#define PEAK_DOT(name) _mm256_##name##_avx_epi32
#endif

static int64_t vnni_dot16(int64_t n, float *sink) {
    peak_int s[PEAK_SUMS], x = peak_set8(3), y = peak_set8(5);
    int64_t rounds = n / (PEAK_SUMS * V_WIDTH * 2) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = PEAK_DOT(dpwssd)(s[i], x, y);
    *sink += peak_fold(s, PEAK_SUMS);
    return rounds * PEAK_SUMS * V_WIDTH * 2;
}

static int64_t vnni_dot8(int64_t n, float *sink) {
    peak_int s[PEAK_SUMS], x = peak_set8(3), y = peak_set8(5);
    int64_t rounds = n / (PEAK_SUMS * V_WIDTH * 4) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = PEAK_DOT(dpbusd)(s[i], x, y);
    *sink += peak_fold(s, PEAK_SUMS);
    return rounds * PEAK_SUMS * V_WIDTH * 4;
}

V_INLINE void peak_vnni_fill(neap_kernels *k) {
    peak_fill(k);
    k->peaks.multiply[NEAP_PEAK_DOT16] = vnni_dot16;
    k->peaks.multiply[NEAP_PEAK_DOT8] = vnni_dot8;
}

#endif
