/* One row of weights to a small format.
 *
 *   INT8   per group: scale = BF16(amax / 127), code = round(x / scale) to nearest, ties to even, in [-127, 127].
 *          The code is taken against the scale as it is stored, so the rounding of the scale costs nothing: with the
 *          largest scale error of 2^-8 the largest |x / scale| is 127.497, which still rounds to 127. Code times scale
 *          is exact in F32 (8 + 8 bits), so every engine that loads the file computes with the same weights.
 *   MXFP4  per 32: 2^e with e = floor(log2(amax + half a step of a 1-bit mantissa)) - 2, that is: amax from 1.75 * 2^n
 *          on belongs to the next power; E2M1 to nearest even, beyond 6 saturates. The published packing.
 *   BF16   nearest even.
 * A group of zeros: INT8 scale 1, MXFP4 scale code 0. Values are finite, so loops work on their bits or in blocks of a
 * fixed size and without calls: a compiler makes vectors of them.
 *
 * Called by quantize_model.c. Source: quantised formats 1. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "models/quantize.h"
#include "tensor/codec.h"

int64_t neap_quantize_group(int64_t k) { return k % 128 == 0 ? 128 : k % 32 == 0 ? 32 : k; }

enum { BLOCK = 16 };

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

void neap_encode_bf16(uint16_t *dst, const float *x, int64_t k) {
    for (int64_t j = 0; j < k; j++) {
        uint32_t u = bits_of(x[j]);
        dst[j] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
}

/* Magnitudes of finite floats are ordered like their bits. */
static float amax_of(const float *x, int64_t n) {
    int32_t top = 0;
    int64_t j = 0;
    for (; j + BLOCK <= n; j += BLOCK)
        for (int i = 0; i < BLOCK; i++) {
            int32_t a = (int32_t)(bits_of(x[j + i]) & 0x7fffffff);
            top = a > top ? a : top;
        }
    for (; j < n; j++) {
        int32_t a = (int32_t)(bits_of(x[j]) & 0x7fffffff);
        top = a > top ? a : top;
    }
    float amax;
    memcpy(&amax, &top, sizeof amax);
    return amax;
}

/* |x / scale| is below 127.5, so adding 1.5 * 2^23 rounds to the nearest integer, ties to even. */
static inline int8_t int8_code(float x, float scale) {
    const float magic = 12582912.0f;
    return (int8_t)(int32_t)(x / scale + magic - magic);
}

void neap_encode_int8(int8_t *codes, uint16_t *scales, const float *x, int64_t k, int64_t group) {
    for (int64_t g = 0; g * group < k; g++) {
        int64_t j = g * group, end = j + group < k ? j + group : k;
        float amax = amax_of(x + j, end - j), scale = amax > 0 ? amax / 127.0f : 1.0f;
        if (scale < FLT_MIN) scale = FLT_MIN; /* a subnormal scale has too few digits, or none */
        scales[g] = neap_f32_to_bf16(scale);
        scale = neap_bf16_to_f32(scales[g]);
        for (; j + BLOCK <= end; j += BLOCK)
            for (int i = 0; i < BLOCK; i++) codes[j + i] = int8_code(x[j + i], scale);
        for (; j < end; j++) codes[j] = int8_code(x[j], scale);
    }
}

static uint8_t mxfp4_scale(float amax) {
    int32_t code = (int32_t)((bits_of(amax) + 0x00200000u) >> 23) - 2;
    return (uint8_t)(code < 0 ? 0 : code);
}

/* Counts the borders between the eight magnitudes that v has passed; at a border the even code wins. */
static inline uint8_t mxfp4_code(float x, float inverse) {
    float v = fabsf(x) * inverse;
    int32_t code = (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + (v > 2.5f) + (v >= 3.5f) + (v > 5.0f);
    return (uint8_t)(code | (int32_t)(bits_of(x) >> 28 & 8));
}

void neap_encode_mxfp4(uint8_t *packed, uint8_t *scales, const float *x, int64_t k) {
    for (int64_t g = 0; g < k / 32; g++) {
        const float *in = x + 32 * g;
        uint8_t codes[32];
        scales[g] = mxfp4_scale(amax_of(in, 32));
        float inverse = ldexpf(1.0f, 127 - scales[g]);
        for (int i = 0; i < 32; i++) codes[i] = mxfp4_code(in[i], inverse);
        for (int i = 0; i < 16; i++) packed[16 * g + i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}
