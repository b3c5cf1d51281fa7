/* Rows of x in integers, in the scratch of a call: what every vector version of the products in integers begins with
 * (neap_x_form in kernels.h).
 *
 * A block is some rows times some whole units of k, as many as the scratch holds. Codes of a row lie in one of two
 * forms:
 *   quads   planes of bytes: code = 256 * hi + lo, hi -127 .. 127, lo -128 .. 127 (8 bits: hi alone is the code);
 *           32 bits hold four neighbouring k, the operand of 8-bit dot products
 *   pairs   16 bits each, (k, k+2), (k+1, k+3), ..: 32 bits are the operand of 16-bit dot products; weights of a line
 *           (four k a lane) come into this order by two shifts
 * A unit's codes begin at its own k, a multiple of 4; what is missing in the last four is zero. */
#ifndef NEAP_KERNELS_X86_IGEMM_ROWS_H
#define NEAP_KERNELS_X86_IGEMM_ROWS_H

#include "kernels/igemm.h"
#include "kernels/x86/panel_vec.h"

enum { IGEMM_ROWS_MAX = 256, IGEMM_PAD = 64 }; /* bytes that may be written or read behind the codes of a row */

typedef struct igemm_unit {
    int32_t k, n;  /* first k, counted from the block's; how many */
    int32_t group; /* of the weights' scales: INT8 group, MXFP4 32 k */
} igemm_unit;

typedef struct igemm_block {
    const neap_gemm_args *a;
    bool is_pairs;
    int64_t row, n_rows, plane_rows; /* of x; of a plane, those behind n_rows are not written */
    int64_t k, n_k;                  /* first k; how many */
    int64_t n_units;
    int64_t ld;        /* bytes from row to row of a plane */
    igemm_unit *units; /* [n_units] */
    float *scale;      /* [n_rows][n_units] s_x */
    int32_t *sum;      /* [n_rows][n_units] sum of the codes: what a bias of the weights adds */
    char *codes;       /* [planes][n_rows][ld] */
} igemm_block;

V_INLINE int igemm_planes(const igemm_block *b) { return !b->is_pairs && b->a->x_form == NEAP_X_INT16 ? 2 : 1; }
V_INLINE const char *igemm_row(const igemm_block *b, int plane, int64_t row) {
    return b->codes + ((int64_t)plane * b->plane_rows + row) * b->ld;
}

/* Lays out the block of IGEMM_ROWS_MAX rows at most from `row` and as many units from k as fit: at least one. Planes
 * have a multiple of row_step rows. */
static inline void igemm_block_begin(igemm_block *b, const neap_gemm_args *a, bool is_pairs, int64_t row,
                                     int64_t row_step, int64_t k) {
    const int64_t n_rows = a->m - row < IGEMM_ROWS_MAX ? a->m - row : IGEMM_ROWS_MAX;
    const int64_t rows = (n_rows + row_step - 1) / row_step * row_step;
    *b = (igemm_block){.a = a, .is_pairs = is_pairs, .row = row, .n_rows = n_rows, .plane_rows = rows, .k = k};
    const int64_t group = neap_igemm_group(a->w);
    const int64_t width = is_pairs || a->x_form == NEAP_X_INT16 ? 2 : 1;
    int64_t room = NEAP_GEMM_SCRATCH - rows * width * (IGEMM_PAD + 64) - 256;
    b->units = a->scratch;
    for (int64_t at = k, end; at < a->w->k; at = end) {
        end = neap_igemm_unit_end(a->w, at);
        room -= (int64_t)sizeof(igemm_unit) + rows * ((end - at + 3) * width + 8);
        if (room < 0 && b->n_units > 0) break;
        b->units[b->n_units++] = (igemm_unit){(int32_t)(at - k), (int32_t)(end - at), (int32_t)(at / group)};
        b->n_k = end - k;
    }
    b->ld = ((b->n_k + 3) / 4 * 4 * (is_pairs ? 2 : 1) + IGEMM_PAD + 63) / 64 * 64;
    b->scale = (float *)(b->units + b->n_units);
    b->sum = (int32_t *)(b->scale + rows * b->n_units);
    b->codes = (char *)(((uintptr_t)(b->sum + rows * b->n_units) + 63) & ~(uintptr_t)63);
}

#if V_WIDTH == 16
V_INLINE vec_int igemm_max(vec_int a, vec_int b) { return _mm512_max_epi32(a, b); }
V_INLINE int32_t igemm_largest(vec_int a) { return _mm512_reduce_max_epi32(a); }
V_INLINE int32_t igemm_total(vec_int a) { return _mm512_reduce_add_epi32(a); }
V_INLINE vec_int igemm_round(vec a) { return _mm512_cvtps_epi32(a); }
#else
V_INLINE vec_int igemm_max(vec_int a, vec_int b) { return _mm256_max_epi32(a, b); }
V_INLINE int32_t igemm_largest(vec_int a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
V_INLINE int32_t igemm_total(vec_int a) {
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
V_INLINE vec_int igemm_round(vec a) { return _mm256_cvtps_epi32(a); }
#endif

/* Low bytes of the lanes -> V_WIDTH bytes. */
V_INLINE void igemm_store_bytes(char *to, vec_int v) {
#if V_WIDTH == 16
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(v));
#else
    __m256i lanes =
        _mm256_shuffle_epi8(v, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8,
                                                12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    _mm_storel_epi64((__m128i *)(void *)to, both);
#endif
}
/* Low halves of the lanes, each four of them in the order 0 2 1 3 -> 2 * V_WIDTH bytes. */
V_INLINE void igemm_store_pairs(char *to, vec_int v) {
#if V_WIDTH == 16
    __m256i h = _mm512_cvtepi32_epi16(_mm512_shuffle_epi32(v, (_MM_PERM_ENUM)_MM_SHUFFLE(3, 1, 2, 0)));
    _mm256_storeu_si256((__m256i *)(void *)to, h);
#else
    __m256i h = _mm256_shuffle_epi8(v, _mm256_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1,
                                                        8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm_unpacklo_epi64(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
#endif
}

/* Codes and scales of the block's rows. */
static inline void igemm_quantize(const igemm_block *b) {
    const neap_gemm_args *a = b->a;
    const float limit = a->x_form == NEAP_X_INT16 ? NEAP_X_LIMIT_INT16 : NEAP_X_LIMIT_INT8;
    const bool has_lo = igemm_planes(b) == 2;
    for (int64_t i = 0; i < b->n_rows; i++) {
        int64_t row = b->row + i;
        const float *x = a->x + (a->rows ? a->rows[row] : row) * a->ldx + b->k;
        char *hi = b->codes + i * b->ld, *lo = b->codes + (b->plane_rows + i) * b->ld;
        for (int64_t u = 0; u < b->n_units; u++) {
            const int64_t begin = b->units[u].k, n = b->units[u].n;
            vec_int largest = vi_set1(0), total = vi_set1(0);
            for (int64_t k = 0; k < n; k += V_WIDTH)
                largest = igemm_max(largest, v_bits(v_abs(v_load_n(x + begin + k, n - k))));
            union {
                int32_t bits;
                float value;
            } top = {igemm_largest(largest)};
            float to_code = limit / top.value;
            bool is_finite = top.bits < 0x7f800000, has_codes = is_finite && to_code <= 0x1.fffffep127f;
            for (int64_t k = 0; k < n; k += V_WIDTH) {
                vec_int code = vi_set1(0);
                if (has_codes) code = igemm_round(v_mul(v_load_n(x + begin + k, n - k), v_set1(to_code)));
                total = vi_add(total, code);
                if (b->is_pairs) {
                    igemm_store_pairs(hi + 2 * (begin + k), code);
                    continue;
                }
                if (has_lo) {
                    igemm_store_bytes(lo + begin + k, code);
#if V_WIDTH == 16
                    code = _mm512_srai_epi32(vi_add(code, vi_set1(128)), 8);
#else
                    code = _mm256_srai_epi32(vi_add(code, vi_set1(128)), 8);
#endif
                }
                igemm_store_bytes(hi + begin + k, code);
            }
            b->scale[i * b->n_units + u] = !is_finite ? __builtin_nanf("") : has_codes ? top.value / limit : 0;
            b->sum[i * b->n_units + u] = igemm_total(total);
        }
    }
}

#endif
