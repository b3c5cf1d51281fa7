/* y = x W^T with x in integers: the definition of neap_x_form in kernels.h, read line by line.
 *
 *   x [m, k] F32 (rows picked by an index list if given), W [n, k] INT8 or MXFP4 panels, y [m, n] F32
 *
 * Row by row and unit by unit: codes of x, then the exact sums of 16 outputs. */
#include <math.h>

#include "kernels/families.h"
#include "kernels/igemm.h"
#include "tensor/codec.h"

/* Codes of x[0 .. n); returns the scale. */
static float quantize(int32_t *code, const float *x, int64_t n, neap_x_form form) {
    const float limit = form == NEAP_X_INT16 ? NEAP_X_LIMIT_INT16 : NEAP_X_LIMIT_INT8;
    float largest = 0;
    bool is_finite = true;
    for (int64_t i = 0; i < n; i++) {
        is_finite = is_finite && isfinite(x[i]);
        largest = fmaxf(largest, fabsf(x[i]));
        code[i] = 0;
    }
    float to_code = limit / largest;
    if (!is_finite) return NAN;
    if (isinf(to_code)) return 0;
    for (int64_t i = 0; i < n; i++) code[i] = (int32_t)rintf(x[i] * to_code);
    return largest / limit;
}

/* Code of output o (0 .. 15) of a panel, and the scale of its unit. */
static int32_t weight(const neap_matrix *w, const uint8_t *panel, int64_t o, int64_t k) {
    if (w->kind == NEAP_MATRIX_INT8) return (int8_t)panel[k / 4 * 64 + o * 4 + k % 4];
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint8_t pair = panel[(k / 128 * 17 + k % 128 / 8) * 64 + o * 4 + k % 4];
    return doubled[k % 8 < 4 ? pair & 15 : pair >> 4];
}
static float weight_scale(const neap_matrix *w, const uint8_t *panel, int64_t p, int64_t o, int64_t k) {
    if (w->kind == NEAP_MATRIX_INT8) return w->scales[(p * neap_matrix_groups(w) + k / w->group) * NEAP_PANEL + o];
    return 0.5f * neap_e8m0_decode(panel[(k / 128 * 17 + 16) * 64 + k % 128 / 32 * 16 + o]);
}

static void igemm_one(const neap_gemm_args *a) {
    const neap_matrix *w = a->w;
    for (int64_t i = 0; i < a->m; i++) {
        const float *x = a->x + (a->rows ? a->rows[i] : i) * a->ldx;
        for (int64_t k = 0, end; k < w->k; k = end) {
            int32_t code[NEAP_X_UNIT];
            end = neap_igemm_unit_end(w, k);
            float x_scale = quantize(code, x + k, end - k, a->x_form);
            for (int64_t p = a->panel_begin; p < a->panel_end; p++) {
                const uint8_t *panel = (const uint8_t *)w->panels + p * w->panel_bytes;
                for (int64_t o = 0; o < NEAP_PANEL && p * NEAP_PANEL + o < w->n; o++) {
                    float *y = a->y + i * a->ldy + p * NEAP_PANEL + o;
                    int32_t sum = 0;
                    for (int64_t e = k; e < end; e++) sum += code[e - k] * weight(w, panel, o, e);
                    *y = fmaf((float)sum, weight_scale(w, panel, p, o, k) * x_scale, k ? *y : 0.0f);
                }
            }
        }
    }
}

static void igemm(const neap_gemm_args *first) {
    for (const neap_gemm_args *a = first; a && neap_gemm_shares(first, a); a = a->also) igemm_one(a);
}

void neap_igemm_scalar_init(neap_kernels *k) {
    k->gemm_int[NEAP_MATRIX_INT8] = igemm;
    k->gemm_int[NEAP_MATRIX_MXFP4] = igemm;
}
