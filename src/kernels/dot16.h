/* The fixed order of every sum over a vector ("dot16" of kernels.h), for scalar code and for the tails of the
 * vector versions: 16 lanes, lane i%16 is a chain over ascending i, then l and l+8, l and l+4, l+2, l+1.
 *
 * 16 lanes are one AVX-512 register or two AVX2 ones, so the fast versions need no extra work to keep it. */
#ifndef NEAP_KERNELS_DOT16_H
#define NEAP_KERNELS_DOT16_H

#include <math.h>
#include <stdint.h>

/* Adds up 16 lanes; destroys them. */
static inline float dot16_tree(float lane[16]) {
    for (int step = 8; step; step /= 2)
        for (int l = 0; l < step; l++) lane[l] += lane[l + step];
    return lane[0];
}

/* Chains elements [begin, n) of a and b onto their lanes. */
static inline void dot16_tail(float lane[16], const float *a, const float *b, int64_t begin, int64_t n) {
    for (int64_t i = begin; i < n; i++) lane[i % 16] = fmaf(a[i], b[i], lane[i % 16]);
}

static inline float dot16(const float *a, const float *b, int64_t n) {
    float lane[16] = {0};
    dot16_tail(lane, a, b, 0, n);
    return dot16_tree(lane);
}

static inline float sum16(const float *a, int64_t n) {
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % 16] += a[i];
    return dot16_tree(lane);
}

#endif
