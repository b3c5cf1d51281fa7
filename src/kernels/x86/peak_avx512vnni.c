/* Peaks of VNNI: dot products of 8 and 16 bits that add into 32 bits in one instruction. See kernels/peak.h. */
#include "kernels/x86/peak_vec.h"

static int64_t vnni_dot16(int64_t n, float *sink) {
    __m512i s[PEAK_SUMS], x = peak_set8(3), y = peak_set8(5);
    int64_t rounds = n / (PEAK_SUMS * 32) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = _mm512_dpwssd_epi32(s[i], x, y);
    *sink += peak_fold(s, PEAK_SUMS);
    return rounds * PEAK_SUMS * 32;
}

static int64_t vnni_dot8(int64_t n, float *sink) {
    __m512i s[PEAK_SUMS], x = peak_set8(3), y = peak_set8(5);
    int64_t rounds = n / (PEAK_SUMS * 64) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = _mm512_dpbusd_epi32(s[i], x, y);
    *sink += peak_fold(s, PEAK_SUMS);
    return rounds * PEAK_SUMS * 64;
}

void neap_peak_avx512vnni_init(neap_kernels *k) {
    peak_fill(k);
    k->peaks.multiply[NEAP_PEAK_DOT16] = vnni_dot16;
    k->peaks.multiply[NEAP_PEAK_DOT8] = vnni_dot8;
}
