/* Reading packed panels (tensor/matrix.h) with vectors: lines of 64 bytes, and the scales of groups. Shared by the
 * products in F32 (gemm_vec.h) and in integers (igemm_vec.h). */
#ifndef NEAP_KERNELS_X86_PANEL_VEC_H
#define NEAP_KERNELS_X86_PANEL_VEC_H

#include "kernels/x86/vec.h"
#include "tensor/matrix.h"

#if defined(V_WIDTH)
enum { PANEL_LINE = 64 };

/* Part h of a line. */
V_INLINE vec_int panel_load(const void *line, int h) {
#if V_WIDTH == 16
    (void)h;
    return _mm512_load_si512(line);
#else
    return _mm256_load_si256((const __m256i *)line + h);
#endif
}

/* k values in a line. */
V_INLINE int panel_line_k(int kind) {
    return kind == NEAP_MATRIX_F32 ? 1 : kind == NEAP_MATRIX_BF16 ? 2 : kind == NEAP_MATRIX_MXFP4 ? 8 : 4;
}
/* The line that k begins: a multiple of 32 for MXFP4, else of what a line holds. */
V_INLINE const uint8_t *panel_line_at(int kind, const uint8_t *panel, int64_t k) {
    return panel + (kind == NEAP_MATRIX_MXFP4 ? k / 128 * 17 + k % 128 / 8 : k / panel_line_k(kind)) * PANEL_LINE;
}

/* 16 E8M0 codes as floats: 0 is 2^-127, 255 is NaN. */
V_INLINE acc16 panel_e8m0(const uint8_t *codes) {
    acc16 scale;
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
#if V_WIDTH == 16
        __m512i e = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)codes)), v = vi_to_exponent(e);
        v = _mm512_mask_mov_epi32(v, _mm512_testn_epi32_mask(e, e), vi_set1(0x00400000));
        v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, vi_set1(255)), vi_set1(0x7fc00000));
#else
        __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + 8 * h)));
        __m256i is_0 = _mm256_cmpeq_epi32(e, _mm256_setzero_si256()), is_nan = _mm256_cmpeq_epi32(e, vi_set1(255));
        __m256i v = _mm256_or_si256(vi_to_exponent(e), _mm256_and_si256(is_0, vi_set1(0x00400000)));
        v = _mm256_or_si256(v, _mm256_and_si256(is_nan, vi_set1(0x7fc00000)));
#endif
        scale.v[h] = v_from_bits(v);
    }
    return scale;
}

/* Scales of group g (MXFP4: of 32 k; INT8) of a panel's outputs. */
V_INLINE acc16 panel_scale(int kind, const neap_matrix *w, int64_t panel, int64_t g) {
    acc16 scale;
    if (kind == NEAP_MATRIX_MXFP4)
        return panel_e8m0((const uint8_t *)w->panels + panel * w->panel_bytes + (g / 4 * 17 + 16) * PANEL_LINE +
                          g % 4 * 16);
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) scale.v[h] =
        v_load(w->scales + (panel * neap_matrix_groups(w) + g) * NEAP_PANEL + h * V_WIDTH);
    return scale;
}
#endif

#endif
