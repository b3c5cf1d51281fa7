/* The peak of AVX-512-BF16: pairs of BF16 products added into float32. See kernels/peak.h. */
#include "kernels/x86/peak_vec.h"

static int64_t bf16_dot(int64_t n, float *sink) {
    __m512 s[PEAK_SUMS];
    float lanes[16];
    __m512bh x, y;
    memset(&x, 0x3f, sizeof x); /* 0.747 */
    memset(&y, 0x3e, sizeof y);
    int64_t rounds = n / (PEAK_SUMS * 32) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = _mm512_dpbf16_ps(s[i], x, y);
    for (int i = 1; i < PEAK_SUMS; i++) s[0] = _mm512_add_ps(s[0], s[i]);
    v_store(lanes, s[0]);
    *sink += lanes[0];
    return rounds * PEAK_SUMS * 32;
}

void neap_peak_avx512bf16_init(neap_kernels *k) {
    peak_fill(k);
    k->peaks.multiply[NEAP_PEAK_BF16] = bf16_dot;
}
