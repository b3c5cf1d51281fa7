/* One row of weights to a small format.
 *
 *   INT8   per group: scale = BF16(amax / 127), code = round(x / scale) to nearest, ties to even, in [-127, 127].
 *          The code is taken against the scale as it is stored, so the rounding of the scale costs nothing: with the
 *          largest scale error of 2^-8 the largest |x / scale| is 127.497, which still rounds to 127. Code times scale
 *          is exact in F32 (8 + 8 bits), so every engine that loads the file computes with the same weights.
 *   MXFP4  per 32: 2^e with e = floor(log2(amax + half a step of a 1-bit mantissa)) - 2, that is: amax from 1.75 * 2^n
 *          on belongs to the next power; E2M1 to nearest even, beyond 6 saturates. The published packing.
 *   BF16   nearest even.
 * A group of zeros: INT8 scale 1, MXFP4 scale code 0. Called by quantize_model.c. Source: quantised formats 1. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "models/quantize.h"
#include "tensor/codec.h"

int64_t neap_quantize_group(int64_t k) { return k % 128 == 0 ? 128 : k % 32 == 0 ? 32 : k; }

void neap_encode_bf16(uint16_t *dst, const float *x, int64_t k) {
    for (int64_t j = 0; j < k; j++) dst[j] = neap_f32_to_bf16(x[j]);
}

static float amax_of(const float *x, int64_t n) {
    float amax = 0;
    for (int64_t j = 0; j < n; j++) {
        float a = fabsf(x[j]);
        amax = a > amax ? a : amax;
    }
    return amax;
}

void neap_encode_int8(int8_t *codes, uint16_t *scales, const float *x, int64_t k, int64_t group) {
    for (int64_t g = 0; g * group < k; g++) {
        int64_t begin = g * group, end = begin + group < k ? begin + group : k;
        float amax = amax_of(x + begin, end - begin), scale = amax > 0 ? amax / 127.0f : 1.0f;
        if (scale < FLT_MIN) scale = FLT_MIN; /* a subnormal scale has too few digits, or none */
        scales[g] = neap_f32_to_bf16(scale);
        scale = neap_bf16_to_f32(scales[g]);
        for (int64_t j = begin; j < end; j++) {
            float q = nearbyintf(x[j] / scale);
            codes[j] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
        }
    }
}

static uint8_t mxfp4_scale(float amax) {
    uint32_t bits;
    memcpy(&bits, &amax, sizeof bits);
    int32_t code = (int32_t)((bits + 0x00200000u) >> 23) - 2;
    return (uint8_t)(code < 0 ? 0 : code);
}

void neap_encode_mxfp4(uint8_t *packed, uint8_t *scales, const float *x, int64_t k) {
    for (int64_t g = 0; g < k / 32; g++) {
        const float *in = x + 32 * g;
        scales[g] = mxfp4_scale(amax_of(in, 32));
        float inverse = ldexpf(1.0f, 127 - scales[g]);
        for (int i = 0; i < 16; i++)
            packed[16 * g + i] =
                (uint8_t)(neap_e2m1_encode(in[2 * i] * inverse) | neap_e2m1_encode(in[2 * i + 1] * inverse) << 4);
    }
}
