/* y = x W^T, AVX2 + FMA: a lane is an output, two registers hold the 16 outputs of a panel, and the chain over
 * ascending k of the definition is kept (bits equal to gemm_scalar.c). Built like gemm_avx512.c, with tiles
 * that fit 16 registers: 1 x 4 panels up to 6 x 1.
 *
 *   BF16   shift left 16 / mask gives the two k of a lane
 *   FP8    codes become half floats of value / 256, converted by F16C, multiplied by 256 * scale
 *   MXFP4  an 8-entry table look-up by the low bits of a nibble, the sign put on, times the scale */
#include <immintrin.h>

#include "kernels/families.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { LINE = 64, ROWS_MAX = 6, PANELS_MAX = 4, BLOCK_BYTES = 1 << 18 };

/* The 16 outputs of a panel. */
typedef struct lanes {
    __m256 half[2];
} lanes;

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
INLINE lanes group_scale(int kind, const neap_matrix *w, const uint8_t *panel, int64_t panel_index, int64_t g) {
    lanes scale = {{_mm256_setzero_ps(), _mm256_setzero_ps()}};
    if (kind == NEAP_MATRIX_FP8)
        scale.half[0] = scale.half[1] = _mm256_set1_ps(w->scales[panel_index / 8 * ((w->k + 127) / 128) + g] * 256.0f);
    if (kind == NEAP_MATRIX_MXFP4) {
        const uint8_t *codes = panel + (g / 4 * 17 + 16) * LINE + g % 4 * 16;
        UNROLL for (int h = 0; h < 2; h++) {
            __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + 8 * h)));
            __m256i is_0 = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
            __m256i is_nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
            __m256i v =
                _mm256_or_si256(_mm256_slli_epi32(e, 23), _mm256_and_si256(is_0, _mm256_set1_epi32(0x00400000)));
            v = _mm256_or_si256(v, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000)));
            scale.half[h] = _mm256_castsi256_ps(v);
        }
    }
    return scale;
}

/* 16 codes in the upper bytes of 16-bit lanes -> half floats (value / 256), then the two k of each lane. */
INLINE void fp8_pair(__m256i v, __m256 *even, __m256 *odd) {
    const __m256i rest = _mm256_set1_epi16(0x3f80), sign = _mm256_set1_epi16((short)0x8000);
    const __m256i halves =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i m = _mm256_and_si256(_mm256_srli_epi16(v, 1), rest);
    __m256i is_nan = _mm256_and_si256(_mm256_cmpeq_epi16(m, rest), _mm256_set1_epi16(0x7e00));
    m = _mm256_or_si256(_mm256_or_si256(m, is_nan), _mm256_and_si256(v, sign));
    m = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(m, halves), _MM_SHUFFLE(3, 1, 2, 0));
    *even = _mm256_cvtph_ps(_mm256_castsi256_si128(m));
    *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(m, 1));
}

/* The line_k weight vectors of one line. */
INLINE void decode(int kind, const uint8_t *line, lanes scale, lanes w[8]) {
    UNROLL for (int h = 0; h < 2; h++) {
        __m256i v = _mm256_load_si256((const __m256i *)(const void *)(line + 32 * h));
        if (kind == NEAP_MATRIX_F32) {
            w[0].half[h] = _mm256_castsi256_ps(v);
        } else if (kind == NEAP_MATRIX_BF16) {
            w[0].half[h] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
            w[1].half[h] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
        } else if (kind == NEAP_MATRIX_FP8) {
            fp8_pair(_mm256_slli_epi16(v, 8), &w[0].half[h], &w[2].half[h]);
            fp8_pair(v, &w[1].half[h], &w[3].half[h]);
            UNROLL for (int s = 0; s < 4; s++) w[s].half[h] = _mm256_mul_ps(w[s].half[h], scale.half[h]);
        } else {
            const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), minus = _mm256_set1_ps(-0.0f);
            UNROLL for (int s = 0; s < 8; s++) { /* only the low 3 bits of an index count */
                const int shift = s < 4 ? 8 * s : 8 * s - 28;
                __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(v, shift));
                __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(v, 28 - shift)), minus);
                w[s].half[h] = _mm256_mul_ps(_mm256_xor_ps(magnitude, sign), scale.half[h]);
            }
        }
    }
}

INLINE void fma_panel(lanes *acc, __m256 x, const lanes *w) {
    acc->half[0] = _mm256_fmadd_ps(x, w->half[0], acc->half[0]);
    acc->half[1] = _mm256_fmadd_ps(x, w->half[1], acc->half[1]);
}

/* Writes the first `left` outputs of a panel. */
INLINE void store_panel(float *y, int64_t left, const lanes *v) {
    if (left >= NEAP_PANEL) {
        _mm256_storeu_ps(y, v->half[0]);
        _mm256_storeu_ps(y + 8, v->half[1]);
        return;
    }
    float all[NEAP_PANEL];
    _mm256_storeu_ps(all, v->half[0]);
    _mm256_storeu_ps(all + 8, v->half[1]);
    for (int64_t o = 0; o < left; o++) y[o] = all[o];
}

INLINE void run_tile(const int kind, const int m, const int p, const tile *t) {
    const neap_matrix *w = t->w;
    const uint8_t *panels[PANELS_MAX];
    const float *x[ROWS_MAX];
    lanes acc[ROWS_MAX][PANELS_MAX], v[PANELS_MAX][8];
    const int steps = line_k(kind);
    const int64_t k_all = w->k, group = group_k(kind, k_all);
    UNROLL for (int j = 0; j < p; j++) panels[j] = (const uint8_t *)w->panels + (t->panel + j) * w->panel_bytes;
    UNROLL for (int i = 0; i < m; i++) {
        x[i] = t->x[i];
        UNROLL for (int j = 0; j < p; j++) acc[i][j] = (lanes){{_mm256_setzero_ps(), _mm256_setzero_ps()}};
    }
    for (int64_t g = 0, k0 = 0; k0 < k_all; g++, k0 += group) {
        int64_t n = k_all - k0 < group ? k_all - k0 : group, full = n / steps * steps;
        const uint8_t *lines[PANELS_MAX];
        lanes scale[PANELS_MAX];
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
                __m256 xs = _mm256_set1_ps(x[i][k0 + k + s]);
                UNROLL for (int j = 0; j < p; j++) fma_panel(&acc[i][j], xs, &v[j][s]);
            }
        }
        if (full < n) { /* the last line of a ragged k: only in the last group */
            UNROLL for (int j = 0; j < p; j++) decode(kind, lines[j], scale[j], v[j]);
            UNROLL for (int s = 0; s < steps; s++) {
                if (full + s >= n) break;
                UNROLL for (int i = 0; i < m; i++) {
                    __m256 xs = _mm256_set1_ps(x[i][k0 + full + s]);
                    UNROLL for (int j = 0; j < p; j++) fma_panel(&acc[i][j], xs, &v[j][s]);
                }
            }
        }
    }
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < p; j++)
        store_panel(t->y + i * t->ldy + j * NEAP_PANEL, w->n - (t->panel + j) * NEAP_PANEL, &acc[i][j]);
}

/* Rows in a tile and panels beside each other; every pair is its own function. */
#define TILES(X, kind) X(kind, 1, 4) X(kind, 2, 2) X(kind, 3, 2) X(kind, 4, 1) X(kind, 6, 1)
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

void neap_gemm_avx2_init(neap_kernels *k) {
    k->gemm[NEAP_MATRIX_F32] = gemm_F32;
    k->gemm[NEAP_MATRIX_BF16] = gemm_BF16;
    k->gemm[NEAP_MATRIX_FP8] = gemm_FP8;
    k->gemm[NEAP_MATRIX_MXFP4] = gemm_MXFP4;
}
