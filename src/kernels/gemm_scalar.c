/* y = x W^T over packed panels: the definition. Every output is one chain acc = fmaf(x[k], w[k], acc) over
 * ascending k, whatever the weight format; the weight is what neap_matrix_get says, rounded once to F32.
 *
 *   x [m, k] F32 (rows picked by an index list if given), W [n, k] packed, y [m, n] F32
 *
 * A panel is decoded into a small block first and then used for all rows, which changes no sum. */
#include <math.h>

#include "kernels/families.h"

enum { BLOCK = 64 }; /* k values decoded at a time */

static void gemm(const neap_gemm_args *a) {
    const neap_matrix *w = a->w;
    float block[NEAP_PANEL][BLOCK];
    for (int64_t p = a->panel_begin; p < a->panel_end; p++) {
        int64_t col = p * NEAP_PANEL, cols = w->n - col < NEAP_PANEL ? w->n - col : NEAP_PANEL;
        for (int64_t k0 = 0; k0 < w->k; k0 += BLOCK) {
            int64_t kn = w->k - k0 < BLOCK ? w->k - k0 : BLOCK;
            for (int64_t o = 0; o < cols; o++)
                for (int64_t k = 0; k < kn; k++) block[o][k] = neap_matrix_get(w, col + o, k0 + k);
            for (int64_t i = 0; i < a->m; i++) {
                const float *x = a->x + (a->rows ? a->rows[i] : i) * a->ldx + k0;
                float *y = a->y + i * a->ldy + col;
                for (int64_t o = 0; o < cols; o++) {
                    float acc = k0 ? y[o] : 0.0f;
                    for (int64_t k = 0; k < kn; k++) acc = fmaf(x[k], block[o][k], acc);
                    y[o] = acc;
                }
            }
        }
    }
}

void neap_gemm_scalar_init(neap_kernels *k) {
    for (int kind = 0; kind < NEAP_MATRIX_KINDS; kind++) k->gemm[kind] = gemm;
}
