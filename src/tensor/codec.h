/* Reference encoders and decoders of the small number formats (docs/numerics.md section 9).
 *
 * E4M3 is the OCP "fn" flavour: max 448, no infinities, NaN = 0x7f / 0xff. E2M1: +-{0, .5, 1, 1.5, 2, 3, 4, 6}.
 * E8M0: 2^(code-127), 255 = NaN. Rounding is to nearest, ties to the even code; values beyond the range
 * saturate; the sign of zero is kept. These functions are the definition that every kernel is held to. */
#ifndef NEAP_TENSOR_CODEC_H
#define NEAP_TENSOR_CODEC_H

#include <stdint.h>
#include <string.h>

static inline float neap_bf16_to_f32(uint16_t v) {
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
uint16_t neap_f32_to_bf16(float v); /* nearest even; NaN stays NaN */
float neap_f16_to_f32(uint16_t v);

float neap_e4m3_decode(uint8_t code);
uint8_t neap_e4m3_encode(float v);    /* NaN -> 0x7f */
float neap_e2m1_decode(uint8_t code); /* low 4 bits */
uint8_t neap_e2m1_encode(float v);    /* NaN -> 0 */
/* code 0 is 2^-127, a subnormal float; 255 is NaN. */
float neap_e8m0_decode(uint8_t code);

typedef enum neap_mx_rule {
    NEAP_MX_CEIL, /* smallest power of two with amax / scale <= largest element: nothing saturates */
    NEAP_MX_FLOOR /* OCP MX 1.0: 2^(floor(log2 amax) - emax) */
} neap_mx_rule;
typedef enum neap_mx_kind { NEAP_MX_E4M3, NEAP_MX_E2M1 } neap_mx_kind;
/* amax = 0 -> 0; NaN or infinity -> 255. */
uint8_t neap_mx_scale_code(float amax, neap_mx_kind kind, neap_mx_rule rule);
/* x[n], n a multiple of 32 -> one code per element (E2M1 unpacked, 4 bits used), scales[n/32]. */
void neap_mx_encode(uint8_t *codes, uint8_t *scales, const float *x, int64_t n, neap_mx_kind kind, neap_mx_rule rule);
void neap_mx_decode(float *x, const uint8_t *codes, const uint8_t *scales, int64_t n, neap_mx_kind kind);

/* KV cache form: E4M3 with one F32 scale (amax / 448; 1 for a zero tile) per tile of 128, short last tile
 * allowed. scales[ceil(n/128)]. */
void neap_fp8_tile_encode(uint8_t *codes, float *scales, const float *x, int64_t n);
void neap_fp8_tile_decode(float *x, const uint8_t *codes, const float *scales, int64_t n);

#endif
