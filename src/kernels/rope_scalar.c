/* Rotary position embedding of one head, in place.
 *
 * Pair i is (2i, 2i+1) if interleaved, else (i, i + d/2):  (a, b) -> (a cos - b sin, b cos + a sin).
 * cos and sin [d/2] are F32 tables made by the caller. Source: docs/numerics.md section 4. */
#include "kernels/families.h"

static void rope(float *x, const float *cos, const float *sin, int64_t d, bool is_interleaved) {
    int64_t half = d / 2, step = is_interleaved ? 2 : 1, other = is_interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cos[i] - b * sin[i];
        x[i * step + other] = b * cos[i] + a * sin[i];
    }
}

void neap_rope_scalar_init(neap_kernels *k) { k->rope = rope; }
