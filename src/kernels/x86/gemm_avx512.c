/* y = x W^T, AVX-512: a lane is an output, so one register holds the 16 outputs of a panel and the chain over
 * ascending k of the definition is kept without any extra work (bits equal to gemm_scalar.c).
 *
 * Tile: M rows x P panels, all accumulators in registers over the whole k. A weight line is decoded once and
 * used for the M rows; x values are broadcast. Few rows: 4 panels in flight hide the latency of the chains and
 * give the memory system four streams. Many rows: 12 x 2. Rows are taken in blocks whose activations stay in
 * the second cache while the panels stream.
 *
 *   BF16   shift left 16 / mask gives the two k of a lane
 *   FP8    codes become half floats of value / 256 (subnormals included, done by the hardware), converted, and
 *          multiplied by 256 * scale; NaN codes get an exponent of all ones
 *   MXFP4  a 16-entry table look-up by nibble, times the power of two of the group */
#include <immintrin.h>

#include "kernels/families.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { LINE = 64, ROWS_MAX = 12, PANELS_MAX = 4, BLOCK_BYTES = 1 << 20 };

typedef struct tile {
    const float *x[ROWS_MAX]; /* rows of activations */
    float *y;                 /* first row, first column */
    int64_t ldy;
    const neap_matrix *w;
    int64_t panel;
} tile;

/* k values in a line, and in a group with one scale (0: all of them). */
INLINE int line_k(int kind) {
    return kind == NEAP_MATRIX_F32 ? 1 : kind == NEAP_MATRIX_BF16 ? 2 : kind == NEAP_MATRIX_FP8 ? 4 : 8;
}
INLINE int64_t group_k(int kind, int64_t k) {
    return kind == NEAP_MATRIX_FP8 ? 128 : kind == NEAP_MATRIX_MXFP4 ? 32 : k;
}
INLINE const uint8_t *group_lines(int kind, const uint8_t *panel, int64_t g) {
    if (kind == NEAP_MATRIX_MXFP4) return panel + (g / 4 * 17 + g % 4 * 4) * LINE;
    return panel + g * 32 * LINE; /* FP8; the others have one group */
}

/* What a decoded value of this group is multiplied with. */
INLINE __m512 group_scale(int kind, const neap_matrix *w, const uint8_t *panel, int64_t panel_index, int64_t g) {
    if (kind == NEAP_MATRIX_FP8) return _mm512_set1_ps(w->scales[panel_index / 8 * ((w->k + 127) / 128) + g] * 256.0f);
    if (kind == NEAP_MATRIX_MXFP4) {
        const uint8_t *codes = panel + (g / 4 * 17 + 16) * LINE + g % 4 * 16;
        __m512i e = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)codes));
        __m512i v = _mm512_slli_epi32(e, 23);
        v = _mm512_mask_mov_epi32(v, _mm512_testn_epi32_mask(e, e), _mm512_set1_epi32(0x00400000));
        v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)), _mm512_set1_epi32(0x7fc00000));
        return _mm512_castsi512_ps(v);
    }
    return _mm512_setzero_ps();
}

/* 32 codes in the upper bytes of 16-bit lanes -> half floats (value / 256), then the two k of each lane. */
INLINE void fp8_pair(__m512i v, __m512 *even, __m512 *odd) {
    const __m512i sign = _mm512_set1_epi16((short)0x8000), rest = _mm512_set1_epi16(0x3f80);
    const __m512i halves = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m512i m = _mm512_and_si512(_mm512_srli_epi16(v, 1), rest);
    __mmask32 is_nan = _mm512_cmpeq_epi16_mask(m, rest);
    m = _mm512_ternarylogic_epi32(v, sign, m, 0xea); /* (v & sign) | m */
    m = _mm512_mask_mov_epi16(m, is_nan, _mm512_set1_epi16(0x7e00));
    m = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_shuffle_epi8(m, halves));
    *even = _mm512_cvtph_ps(_mm512_castsi512_si256(m));
    *odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(m, 1));
}

/* The line_k weight vectors of one line. */
INLINE void decode(int kind, const uint8_t *line, __m512 scale, __m512 w[8]) {
    __m512i v = _mm512_load_si512(line);
    if (kind == NEAP_MATRIX_F32) {
        w[0] = _mm512_castsi512_ps(v);
    } else if (kind == NEAP_MATRIX_BF16) {
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)));
    } else if (kind == NEAP_MATRIX_FP8) {
        fp8_pair(_mm512_slli_epi16(v, 8), &w[0], &w[2]);
        fp8_pair(v, &w[1], &w[3]);
        UNROLL for (int s = 0; s < 4; s++) w[s] = _mm512_mul_ps(w[s], scale);
    } else {
        const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        UNROLL for (int s = 0; s < 8; s++) { /* only the low 4 bits of an index count */
            __m512i index = _mm512_srli_epi32(v, (unsigned)(s < 4 ? 8 * s : 8 * s - 28));
            w[s] = _mm512_mul_ps(_mm512_permutexvar_ps(index, table), scale);
        }
    }
}

INLINE void run_tile(const int kind, const int m, const int p, const tile *t) {
    const neap_matrix *w = t->w;
    const uint8_t *panels[PANELS_MAX];
    const float *x[ROWS_MAX];
    __m512 acc[ROWS_MAX][PANELS_MAX], v[PANELS_MAX][8];
    const int steps = line_k(kind);
    const int64_t k_all = w->k, group = group_k(kind, k_all);
    UNROLL for (int j = 0; j < p; j++) panels[j] = (const uint8_t *)w->panels + (t->panel + j) * w->panel_bytes;
    UNROLL for (int i = 0; i < m; i++) {
        x[i] = t->x[i];
        UNROLL for (int j = 0; j < p; j++) acc[i][j] = _mm512_setzero_ps();
    }
    for (int64_t g = 0, k0 = 0; k0 < k_all; g++, k0 += group) {
        int64_t n = k_all - k0 < group ? k_all - k0 : group, full = n / steps * steps;
        const uint8_t *lines[PANELS_MAX];
        __m512 scale[PANELS_MAX];
        UNROLL for (int j = 0; j < p; j++) {
            lines[j] = group_lines(kind, panels[j], g);
            scale[j] = group_scale(kind, w, panels[j], t->panel + j, g);
        }
        for (int64_t k = 0; k < full; k += steps) {
            UNROLL for (int j = 0; j < p; j++) {
                if (m <= 4) _mm_prefetch((const char *)lines[j] + 16 * LINE, _MM_HINT_T0);
                decode(kind, lines[j], scale[j], v[j]);
                lines[j] += LINE;
            }
            UNROLL for (int s = 0; s < steps; s++) UNROLL for (int i = 0; i < m; i++) {
                __m512 xs = _mm512_set1_ps(x[i][k0 + k + s]);
                UNROLL for (int j = 0; j < p; j++) acc[i][j] = _mm512_fmadd_ps(xs, v[j][s], acc[i][j]);
            }
        }
        if (full < n) { /* the last line of a ragged k: only in the last group */
            UNROLL for (int j = 0; j < p; j++) decode(kind, lines[j], scale[j], v[j]);
            UNROLL for (int s = 0; s < steps; s++) {
                if (full + s >= n) break;
                UNROLL for (int i = 0; i < m; i++) {
                    __m512 xs = _mm512_set1_ps(x[i][k0 + full + s]);
                    UNROLL for (int j = 0; j < p; j++) acc[i][j] = _mm512_fmadd_ps(xs, v[j][s], acc[i][j]);
                }
            }
        }
    }
    UNROLL for (int j = 0; j < p; j++) {
        int64_t left = w->n - (t->panel + j) * NEAP_PANEL;
        __mmask16 mask = left >= NEAP_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
        UNROLL for (int i = 0; i < m; i++) _mm512_mask_storeu_ps(t->y + i * t->ldy + j * NEAP_PANEL, mask, acc[i][j]);
    }
}

/* Rows in a tile and panels beside each other; every pair is its own function. */
#define TILES(X, kind) \
    X(kind, 1, 4) X(kind, 2, 4) X(kind, 3, 4) X(kind, 4, 4) X(kind, 6, 4) X(kind, 8, 2) X(kind, 12, 2)
#define BODY(kind, m, p)                                                                    \
    static void wide_##kind##_##m(const tile *t) { run_tile(NEAP_MATRIX_##kind, m, p, t); } \
    static void single_##kind##_##m(const tile *t) { run_tile(NEAP_MATRIX_##kind, m, 1, t); }
#define ENTRY(kind, m, p) {m, p, {single_##kind##_##m, wide_##kind##_##m}},

typedef struct tile_size {
    int64_t rows, panels;
    void (*run[2])(const tile *t); /* one panel, `panels` panels */
} tile_size;

/* The largest tile for `left` rows. */
static const tile_size *pick(const tile_size *sizes, int n, int64_t left) {
    while (n > 1 && sizes[n - 1].rows > left) n--;
    return &sizes[n - 1];
}

static void row_block(const neap_gemm_args *a, const tile_size *sizes, int n_sizes, int64_t begin, int64_t end) {
    for (int64_t p = a->panel_begin; p < a->panel_end;) {
        int64_t step = a->panel_end - p < PANELS_MAX ? a->panel_end - p : PANELS_MAX;
        for (int64_t i = begin; i < end;) {
            const tile_size *size = pick(sizes, n_sizes, end - i);
            tile t = {.ldy = a->ldy, .w = a->w};
            for (int64_t r = 0; r < size->rows; r++) t.x[r] = a->x + (a->rows ? a->rows[i + r] : i + r) * a->ldx;
            for (int64_t q = 0; q < step;) {
                bool is_wide = step - q >= size->panels;
                t.panel = p + q;
                t.y = a->y + i * a->ldy + t.panel * NEAP_PANEL;
                size->run[is_wide](&t);
                q += is_wide ? size->panels : 1;
            }
            i += size->rows;
        }
        p += step;
    }
}

static void gemm(const neap_gemm_args *a, const tile_size *sizes, int n_sizes) {
    int64_t block = BLOCK_BYTES / (a->w->k * (int64_t)sizeof(float)) / ROWS_MAX * ROWS_MAX;
    if (block < 2 * ROWS_MAX) block = 2 * ROWS_MAX;
    for (int64_t i = 0; i < a->m; i += block) row_block(a, sizes, n_sizes, i, a->m - i < block ? a->m : i + block);
}

#define KIND(kind)                                             \
    TILES(BODY, kind)                                          \
    static void gemm_##kind(const neap_gemm_args *a) {         \
        static const tile_size sizes[] = {TILES(ENTRY, kind)}; \
        gemm(a, sizes, sizeof sizes / sizeof *sizes);          \
    }
KIND(F32)
KIND(BF16)
KIND(FP8)
KIND(MXFP4)

void neap_gemm_avx512_init(neap_kernels *k) {
    k->gemm[NEAP_MATRIX_F32] = gemm_F32;
    k->gemm[NEAP_MATRIX_BF16] = gemm_BF16;
    k->gemm[NEAP_MATRIX_FP8] = gemm_FP8;
    k->gemm[NEAP_MATRIX_MXFP4] = gemm_MXFP4;
}
