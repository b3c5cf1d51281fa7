/* The small number formats, one value at a time: BF16, F16, E4M3 (OCP fn), E2M1, E8M0, groups of 32 that share
 * a power of two (MX), and tiles of 128 that share an F32 scale (KV cache).
 *
 * Encoders round to nearest with ties to the even code. For a format with m mantissa bits and bias b, the
 * normal range is done on the bits of the float: add half of the last kept step (less one if the code is even)
 * and cut; below the smallest normal value the codes are equidistant, so rounding value / step gives the code.
 * A carry runs from the mantissa into the exponent, which is what is wanted in both cases.
 *
 * Everything here is a definition: kernels are tested against it. Source: OCP MX 1.0, OCP FP8. */
#include "tensor/codec.h"

#include <assert.h>
#include <float.h>
#include <math.h>

static inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static inline float float_of(uint32_t u) {
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

uint16_t neap_f32_to_bf16(float v) {
    uint32_t u = bits_of(v);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* quiet: the cut must not make it infinite */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float neap_f16_to_f32(uint16_t v) {
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, rest = v & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return float_of(sign | ((rest << 13) + ((127u - 15) << 23)));
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

float neap_e4m3_decode(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    if (rest == 0x7f) return float_of(sign | 0x7fc00000);
    if (rest >= 8) return float_of(sign | ((rest << 20) + ((127u - 7) << 23)));
    return float_of(sign | bits_of((float)rest * 0x1p-9f));
}

/* Without branches (masks instead), so that the loops below become vector code. 2^14 has a last place of 2^-9, the
 * step of the subnormal codes: the addition rounds. */
static inline uint8_t e4m3_encode(float v) {
    uint32_t u = bits_of(v), a = u & 0x7fffffff;
    int32_t normal = (int32_t)(((a + 0x7ffff + (a >> 20 & 1)) >> 20) - ((127u - 7) << 3));
    int32_t small = (int32_t)(bits_of(float_of(a) + 0x1p14f) - bits_of(0x1p14f));
    int32_t is_small = -((int32_t)a < 0x3c800000 /* 2^-6 */), is_nan = -((int32_t)a > 0x7f800000);
    int32_t code = (small & is_small) | (normal & ~is_small);
    code = (code < 0x7e ? code : 0x7e) | (int32_t)(u >> 24 & 0x80);
    return (uint8_t)((code & ~is_nan) | (0x7f & is_nan));
}

uint8_t neap_e4m3_encode(float v) { return e4m3_encode(v); }

float neap_e2m1_decode(uint8_t code) {
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

uint8_t neap_e2m1_encode(float v) {
    uint32_t u = bits_of(v), sign = u >> 28 & 8, a = u & 0x7fffffff;
    if (a > 0x7f800000) return 0;
    if (a >= bits_of(6.0f)) return (uint8_t)(sign | 7);
    if (a < bits_of(1.0f)) return (uint8_t)(sign | (uint32_t)nearbyintf(float_of(a) * 2.0f));
    return (uint8_t)(sign | (((a + 0x1fffff + (a >> 22 & 1)) >> 22) - ((127u - 1) << 1)));
}

float neap_e8m0_decode(uint8_t code) {
    if (code == 255) return NAN;
    return float_of(code ? (uint32_t)code << 23 : 0x00400000);
}

uint8_t neap_mx_scale_code(float amax, neap_mx_kind kind, neap_mx_rule rule) {
    if (!isfinite(amax)) return 255;
    if (amax == 0) return 0;
    float largest = kind == NEAP_MX_E4M3 ? 448.0f : 6.0f;
    int e, e_largest, code; /* values are m * 2^e with m in [0.5, 1) */
    float m = frexpf(amax, &e), m_largest = frexpf(largest, &e_largest);
    code = 127 + e - e_largest + (rule == NEAP_MX_CEIL && m > m_largest);
    return (uint8_t)(code < 0 ? 0 : code > 254 ? 254 : code);
}

/* Largest magnitude of n values; a NaN wins (as bits it lies above infinity). n is a constant where this is
 * inlined. */
static inline float largest(const float *x, int n) {
    int32_t most = 0;
    for (int i = 0; i < n; i++) {
        int32_t a = (int32_t)(bits_of(x[i]) & 0x7fffffff);
        most = a > most ? a : most;
    }
    return float_of((uint32_t)most);
}

void neap_mx_encode(uint8_t *codes, uint8_t *scales, const float *x, int64_t n, neap_mx_kind kind, neap_mx_rule rule) {
    assert(n % 32 == 0);
    for (int64_t g = 0; g < n / 32; g++) {
        const float *in = x + g * 32;
        scales[g] = neap_mx_scale_code(largest(in, 32), kind, rule);
        /* x / 2^k = x * 2^-k, rounded once either way; finite values have codes up to 249, so that 2^-k is a
         * normal number. */
        float inverse = scales[g] == 255 ? NAN : float_of((254u - scales[g]) << 23);
        uint8_t out[32];
        if (kind == NEAP_MX_E4M3)
            for (int i = 0; i < 32; i++) out[i] = e4m3_encode(in[i] * inverse);
        else
            for (int i = 0; i < 32; i++) out[i] = neap_e2m1_encode(in[i] * inverse);
        memcpy(codes + g * 32, out, sizeof out);
    }
}

void neap_mx_decode(float *x, const uint8_t *codes, const uint8_t *scales, int64_t n, neap_mx_kind kind) {
    assert(n % 32 == 0);
    for (int64_t i = 0; i < n; i++) {
        float v = kind == NEAP_MX_E4M3 ? neap_e4m3_decode(codes[i]) : neap_e2m1_decode(codes[i]);
        x[i] = v * neap_e8m0_decode(scales[i / 32]);
    }
}

void neap_fp8_tile_encode(uint8_t *codes, float *scales, const float *x, int64_t n) {
    float padded[128];
    uint8_t out[128];
    for (int64_t t = 0; t * 128 < n; t++) {
        const float *in = x + t * 128;
        int64_t count = n - t * 128 < 128 ? n - t * 128 : 128;
        if (count < 128) { /* zeros change no maximum */
            memset(padded, 0, sizeof padded);
            in = memcpy(padded, in, (size_t)count * sizeof(float));
        }
        float amax = largest(in, 128), scale = amax > 0 ? amax / 448.0f : 1.0f;
        if (scale == 0) scale = FLT_MIN; /* amax / 448 underflowed */
        scales[t] = scale;
        for (int i = 0; i < 128; i++) out[i] = e4m3_encode(in[i] / scale);
        memcpy(codes + t * 128, out, (size_t)count);
    }
}

void neap_fp8_tile_decode(float *x, const uint8_t *codes, const float *scales, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = neap_e4m3_decode(codes[i]) * scales[i / 128];
}
