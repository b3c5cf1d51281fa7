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

#if defined(__AVX512VNNI__)
#define IGEMM_DPBUSD _mm512_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define IGEMM_DPBUSD _mm256_dpbusd_avx_epi32
#endif
#if defined(IGEMM_DPBUSD)
enum { IGEMM_HAS_DOT = 1 };
#else
enum { IGEMM_HAS_DOT = 0 };
#endif
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
    int32_t *start;    /* [planes][n_rows][n_units] what sums of quads begin with */
    char *codes;       /* [planes][plane_rows][ld] */
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
        room -= (int64_t)sizeof(igemm_unit) + rows * ((end - at + 3) * width + 12);
        if (room < 0 && b->n_units > 0) break;
        b->units[b->n_units++] = (igemm_unit){(int32_t)(at - k), (int32_t)(end - at), (int32_t)(at / group)};
        b->n_k = end - k;
    }
    b->ld = ((b->n_k + 3) / 4 * 4 * (is_pairs ? 2 : 1) + IGEMM_PAD + 63) / 64 * 64;
    b->scale = (float *)(b->units + b->n_units);
    b->start = (int32_t *)(b->scale + rows * b->n_units);
    b->codes = (char *)(((uintptr_t)(b->start + igemm_planes(b) * rows * b->n_units) + 63) & ~(uintptr_t)63);
}

#if V_WIDTH == 16
V_INLINE vec_int igemm_max(vec_int a, vec_int b) { return _mm512_max_epi32(a, b); }
V_INLINE int32_t igemm_largest(vec_int a) { return _mm512_reduce_max_epi32(a); }
#else
V_INLINE vec_int igemm_max(vec_int a, vec_int b) { return _mm256_max_epi32(a, b); }
V_INLINE int32_t igemm_largest(vec_int a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
#endif

/* x[0 .. n), at most 32; what is missing is zero. */
V_INLINE void igemm_load(vec v[32 / V_WIDTH], const float *x, int64_t n) {
    if (n >= 32)
        V_UNROLL for (int i = 0; i < 32 / V_WIDTH; i++) v[i] = v_load(x + i * V_WIDTH);
    else
        V_UNROLL for (int i = 0; i < 32 / V_WIDTH; i++) v[i] =
            n > i * V_WIDTH ? v_load_n(x + i * V_WIDTH, n - i * V_WIDTH) : v_zero();
}
/* Their codes in 16 bits, in the order 0..3 8..11 | 4..7 12..15 and 16..19 24..27 | 20..23 28..31. */
V_INLINE void igemm_codes(__m256i code[2], const vec v[32 / V_WIDTH], float to_code) {
    V_UNROLL for (int i = 0; i < 2; i++) {
#if V_WIDTH == 16
        __m512i c = _mm512_cvtps_epi32(v_mul(v[i], v_set1(to_code)));
        code[i] = _mm256_packs_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
#else
        code[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(v_mul(v[2 * i], v_set1(to_code))),
                                     _mm256_cvtps_epi32(v_mul(v[2 * i + 1], v_set1(to_code))));
#endif
    }
}
V_INLINE void igemm_store_pairs(char *to, const __m256i code[2]) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7,
                                           8, 9, 12, 13, 10, 11, 14, 15);
    V_UNROLL for (int i = 0; i < 2; i++) _mm256_storeu_si256(
        (__m256i *)(void *)(to + 32 * i), _mm256_shuffle_epi8(_mm256_permute4x64_epi64(code[i], 0xd8), order));
}
/* Low bytes. Returns them. */
V_INLINE __m256i igemm_store_bytes(char *to, __m256i c0, __m256i c1) {
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(c0, c1), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
    return bytes;
}

/* What the bias of the weights alone gives for 32 codes, onto a sum in the lanes that the products have: 32 bits, or 16
 * for k % 4 < 2 and for the others. */
V_INLINE __m256i igemm_excess(__m256i sum, __m256i bytes, int bias) {
    const __m256i w = _mm256_set1_epi8((char)bias);
#if defined(__AVX512VNNI__)
    return _mm256_dpbusd_epi32(sum, w, bytes);
#elif defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, w, bytes);
#else
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, bytes));
#endif
}
V_INLINE __m128i igemm_add(__m128i a, __m128i b) { return IGEMM_HAS_DOT ? _mm_add_epi32(a, b) : _mm_add_epi16(a, b); }
/* Sums of a unit begin with this. */
V_INLINE int32_t igemm_less(__m256i excess) {
    __m128i sum = igemm_add(_mm256_castsi256_si128(excess), _mm256_extracti128_si256(excess, 1));
    sum = igemm_add(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = igemm_add(sum, _mm_shuffle_epi32(sum, 0xb1));
    const __m128i zero = _mm_setzero_si128();
    return _mm_cvtsi128_si32(IGEMM_HAS_DOT ? _mm_sub_epi32(zero, sum) : _mm_sub_epi16(zero, sum));
}

/* Codes of one unit of row i. Whole 32 are written: zeros behind the last, until the next unit takes their place. */
V_INLINE void igemm_quantize_unit(const igemm_block *b, const bool is_pairs, const bool has_lo, const float *x,
                                  int64_t i, int64_t u) {
    const float limit = b->a->x_form == NEAP_X_INT16 ? NEAP_X_LIMIT_INT16 : NEAP_X_LIMIT_INT8;
    const int64_t begin = b->units[u].k, n = b->units[u].n;
    const int bias = b->a->w->kind == NEAP_MATRIX_MXFP4 ? 12 : 128;
    char *hi = b->codes + i * b->ld, *lo = b->codes + (b->plane_rows + i) * b->ld;
    vec v[32 / V_WIDTH];
    vec_int largest = vi_set1(0);
    __m256i excess = _mm256_setzero_si256(), excess_lo = excess;
    for (int64_t k = 0; k < n; k += 32) {
        igemm_load(v, x + begin + k, n - k);
        V_UNROLL for (int l = 0; l < 32 / V_WIDTH; l++) largest = igemm_max(largest, v_bits(v_abs(v[l])));
    }
    union {
        int32_t bits;
        float value;
    } top = {igemm_largest(largest)};
    float to_code = limit / top.value;
    bool is_finite = top.bits < 0x7f800000, has_codes = is_finite && to_code <= 0x1.fffffep127f;
    for (int64_t k = 0; k < n; k += 32) {
        __m256i code[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        if (has_codes) {
            igemm_load(v, x + begin + k, n - k);
            igemm_codes(code, v, to_code);
        }
        if (is_pairs) {
            igemm_store_pairs(hi + 2 * (begin + k), code);
            continue;
        }
        if (has_lo) {
            __m256i low[2];
            V_UNROLL for (int l = 0; l < 2; l++) {
                low[l] = _mm256_srai_epi16(_mm256_slli_epi16(code[l], 8), 8);
                code[l] = _mm256_srai_epi16(_mm256_add_epi16(code[l], _mm256_set1_epi16(128)), 8);
            }
            excess_lo = igemm_excess(excess_lo, igemm_store_bytes(lo + begin + k, low[0], low[1]), bias);
        }
        excess = igemm_excess(excess, igemm_store_bytes(hi + begin + k, code[0], code[1]), bias);
    }
    b->scale[i * b->n_units + u] = !is_finite ? __builtin_nanf("") : has_codes ? top.value / limit : 0;
    if (is_pairs) return;
    b->start[i * b->n_units + u] = igemm_less(excess);
    if (has_lo) b->start[(b->n_rows + i) * b->n_units + u] = igemm_less(excess_lo);
}

/* Codes and scales of the block's rows. */
static inline void igemm_quantize(const igemm_block *b) {
    const neap_gemm_args *a = b->a;
    const bool has_lo = igemm_planes(b) == 2;
    for (int64_t i = 0; i < b->n_rows; i++) {
        const float *x = a->x + (a->rows ? a->rows[b->row + i] : b->row + i) * a->ldx + b->k;
        for (int64_t u = 0; u < b->n_units; u++) {
            if (b->is_pairs)
                igemm_quantize_unit(b, true, false, x, i, u);
            else if (has_lo)
                igemm_quantize_unit(b, false, true, x, i, u);
            else
                igemm_quantize_unit(b, false, false, x, i, u);
        }
    }
}

#endif
