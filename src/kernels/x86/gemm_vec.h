/* y = x W^T for vectors: a lane is an output, 16 lanes (one AVX-512 or two AVX2 registers) are a panel, and the
 * chain over ascending k of the definition is kept without any extra work: bits equal to gemm_scalar.c.
 *
 * Tile: M rows x P panels, all accumulators in registers. A weight line is decoded once and used for the M rows;
 * x values are broadcast. Few rows: several panels in flight hide the latency of the chains and give the
 * memory system several streams. Many rows: the tile that fills the register file. Rows are taken in blocks
 * whose activations stay in the second cache while the panels stream.
 *
 *   BF16   shift left 16 / mask gives the two k of a lane
 *   INT8   shifts spread and sign-extend the four codes of a lane; converted, times the scale of output and group
 *   FP8    codes become half floats of value / 256 (subnormals included, done by the hardware), converted, and
 *          multiplied by 256 * scale; NaN codes get an exponent of all ones
 *   MXFP4  a table look-up by nibble, times the power of two of the group
 * INT8, FP8 and MXFP4 with many rows: 128 k of some panels are decoded once into the first cache as F32 lines that all
 * row tiles share; the chains continue through y, which changes no bit. */
#ifndef NEAP_KERNELS_X86_GEMM_VEC_H
#define NEAP_KERNELS_X86_GEMM_VEC_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/families.h"
#include "kernels/x86/panel_vec.h"

#if defined(V_WIDTH) && defined(__F16C__)
enum { GEMM_CHUNK = 128, GEMM_PIECE = 512, GEMM_PANELS_MAX = 4, GEMM_AHEAD = 2048 };

/* Rows x panels of each tile size; every pair becomes its own function. */
#if V_WIDTH == 16
enum { GEMM_ROWS_MAX = 12, GEMM_DECODED_PANELS = 2, GEMM_BLOCK_BYTES = 1 << 20 };
#define GEMM_TILES(X, kind) \
    X(kind, 1, 4) X(kind, 2, 4) X(kind, 3, 4) X(kind, 4, 4) X(kind, 6, 4) X(kind, 8, 2) X(kind, 12, 2)
#else
enum { GEMM_ROWS_MAX = 6, GEMM_DECODED_PANELS = 1, GEMM_BLOCK_BYTES = 1 << 18 };
#define GEMM_TILES(X, kind) X(kind, 1, 4) X(kind, 2, 2) X(kind, 3, 2) X(kind, 4, 1) X(kind, 6, 1)
#endif

/* ---- the formats ---- */

/* k values in a group with one scale (all of them where there is none). */
V_INLINE int64_t gemm_group_k(int kind, const neap_matrix *w) {
    if (kind == NEAP_MATRIX_INT8) return w->group;
    return kind == NEAP_MATRIX_FP8 ? 128 : kind == NEAP_MATRIX_MXFP4 ? 32 : w->k;
}

/* What decoded values of this group are multiplied with. */
V_INLINE acc16 gemm_group_scale(int kind, const neap_matrix *w, int64_t panel, int64_t g) {
    if (kind == NEAP_MATRIX_MXFP4 || kind == NEAP_MATRIX_INT8) return panel_scale(kind, w, panel, g);
    acc16 scale = acc16_zero();
    if (kind == NEAP_MATRIX_FP8)
        V_UNROLL for (int h = 0; h < ACC_VECS; h++) scale.v[h] =
            v_set1(w->scales[panel / 8 * ((w->k + 127) / 128) + g] * 256.0f);
    return scale;
}

/* FP8 codes in the upper bytes of 16-bit lanes -> half floats (value / 256), then the two k of each lane. */
V_INLINE void gemm_fp8_pair(vec_int v, vec *even, vec *odd) {
    const __m128i halves = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
#if V_WIDTH == 16
    const __m512i rest = _mm512_set1_epi16(0x3f80);
    __m512i m = _mm512_and_si512(_mm512_srli_epi16(v, 1), rest);
    __mmask32 is_nan = _mm512_cmpeq_epi16_mask(m, rest);
    m = _mm512_ternarylogic_epi32(v, _mm512_set1_epi16((short)0x8000), m, 0xea); /* (v & sign) | m */
    m = _mm512_mask_mov_epi16(m, is_nan, _mm512_set1_epi16(0x7e00));
    m = _mm512_shuffle_epi8(m, _mm512_broadcast_i32x4(halves));
    m = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), m);
    *even = _mm512_cvtph_ps(_mm512_castsi512_si256(m));
    *odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(m, 1));
#else
    const __m256i rest = _mm256_set1_epi16(0x3f80);
    __m256i m = _mm256_and_si256(_mm256_srli_epi16(v, 1), rest);
    __m256i is_nan = _mm256_and_si256(_mm256_cmpeq_epi16(m, rest), _mm256_set1_epi16(0x7e00));
    m = _mm256_or_si256(_mm256_or_si256(m, is_nan), _mm256_and_si256(v, _mm256_set1_epi16((short)0x8000)));
    m = _mm256_shuffle_epi8(m, _mm256_broadcastsi128_si256(halves));
    m = _mm256_permute4x64_epi64(m, _MM_SHUFFLE(3, 1, 2, 0));
    *even = _mm256_cvtph_ps(_mm256_castsi256_si128(m));
    *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(m, 1));
#endif
}

/* E2M1 values of the nibbles at bit `shift` of each lane. */
V_INLINE vec gemm_e2m1(vec_int v, const int shift) {
#if V_WIDTH == 16
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, (unsigned)shift), table); /* the low 4 bits count */
#else
    const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    vec magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(v, shift)); /* the low 3 bits count */
    return v_or_sign(magnitude, v_from_bits(_mm256_slli_epi32(v, 28 - shift)));
#endif
}

/* The signed byte s of each lane. */
V_INLINE vec gemm_int8(vec_int v, const int s) {
#if V_WIDTH == 16
    if (s < 3) v = _mm512_slli_epi32(v, (unsigned)(24 - 8 * s));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24));
#else
    if (s < 3) v = _mm256_slli_epi32(v, 24 - 8 * s);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 24));
#endif
}

/* The k value s (0 or 1) of a line of BF16. */
V_INLINE void gemm_decode_bf16(const uint8_t *line, const int s, acc16 *w) {
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
        vec_int v = panel_load(line, h);
#if V_WIDTH == 16
        w->v[h] = v_from_bits(s ? _mm512_and_si512(v, vi_set1((int)0xffff0000)) : _mm512_slli_epi32(v, 16));
#else
        w->v[h] = v_from_bits(s ? _mm256_and_si256(v, vi_set1((int)0xffff0000)) : _mm256_slli_epi32(v, 16));
#endif
    }
}

/* The weights of one line: w[s] for its k values s. */
V_INLINE void gemm_decode(int kind, const uint8_t *line, acc16 scale, acc16 w[8]) {
    if (kind == NEAP_MATRIX_BF16) {
        gemm_decode_bf16(line, 0, &w[0]);
        gemm_decode_bf16(line, 1, &w[1]);
        return;
    }
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
        vec_int v = panel_load(line, h);
        if (kind == NEAP_MATRIX_F32) {
            w[0].v[h] = v_from_bits(v);
        } else if (kind == NEAP_MATRIX_INT8) {
            V_UNROLL for (int s = 0; s < 4; s++) w[s].v[h] = v_mul(gemm_int8(v, s), scale.v[h]);
        } else if (kind == NEAP_MATRIX_FP8) {
#if V_WIDTH == 16
            gemm_fp8_pair(_mm512_slli_epi16(v, 8), &w[0].v[h], &w[2].v[h]);
#else
            gemm_fp8_pair(_mm256_slli_epi16(v, 8), &w[0].v[h], &w[2].v[h]);
#endif
            gemm_fp8_pair(v, &w[1].v[h], &w[3].v[h]);
            V_UNROLL for (int s = 0; s < 4; s++) w[s].v[h] = v_mul(w[s].v[h], scale.v[h]);
        } else {
            V_UNROLL for (int s = 0; s < 8; s++) w[s].v[h] =
                v_mul(gemm_e2m1(v, s < 4 ? 8 * s : 8 * s - 28), scale.v[h]);
        }
    }
}

/* ---- tiles ---- */

typedef struct gemm_tile {
    const float *x[GEMM_ROWS_MAX]; /* rows of activations */
    float *y;                      /* first row, first column */
    int64_t ldy;
    const neap_matrix *w;
    int64_t panel;
    bool is_continued; /* the chains go on from y */
} gemm_tile;

V_INLINE void gemm_run(const int kind, const int m, const int p, const gemm_tile *t) {
    const neap_matrix *w = t->w;
    const uint8_t *panels[GEMM_PANELS_MAX];
    const float *x[GEMM_ROWS_MAX] = {NULL};
    acc16 acc[GEMM_ROWS_MAX][GEMM_PANELS_MAX], v[GEMM_PANELS_MAX][8];
    const int steps = panel_line_k(kind);
    const int64_t k_all = w->k, group = gemm_group_k(kind, w), left = w->n - t->panel * NEAP_PANEL;
    V_UNROLL for (int j = 0; j < p; j++) panels[j] = (const uint8_t *)w->panels + (t->panel + j) * w->panel_bytes;
    V_UNROLL for (int i = 0; i < m; i++) {
        x[i] = t->x[i];
        V_UNROLL for (int j = 0; j < p; j++) acc[i][j] = acc16_zero();
        if (t->is_continued)
            V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) acc[i][j].v[h] =
                v_load_n(t->y + i * t->ldy + j * NEAP_PANEL + h * V_WIDTH, left - j * NEAP_PANEL - h * V_WIDTH);
    }
    for (int64_t g = 0, k0 = 0; k0 < k_all; g++, k0 += group) {
        int64_t n = k_all - k0 < group ? k_all - k0 : group, full = n / steps * steps;
        const uint8_t *lines[GEMM_PANELS_MAX];
        acc16 scale[GEMM_PANELS_MAX];
        V_UNROLL for (int j = 0; j < p; j++) {
            lines[j] = panel_line_at(kind, panels[j], k0);
            scale[j] = gemm_group_scale(kind, w, t->panel + j, g);
        }
        for (int64_t k = 0; k < full; k += steps) {
            const bool is_lean =
                kind == NEAP_MATRIX_BF16 && V_WIDTH == 8 && m > 4; /* no register for both k of a lane */
            V_UNROLL for (int j = 0; j < p; j++) {
                _mm_prefetch((const char *)lines[j] + GEMM_AHEAD, _MM_HINT_T0);
                if (!is_lean) gemm_decode(kind, lines[j], scale[j], v[j]);
            }
            V_UNROLL for (int s = 0; s < steps; s++) {
                if (is_lean) {
                    __asm__ volatile("" : : : "memory"); /* the line is read again, not kept */
                    V_UNROLL for (int j = 0; j < p; j++) gemm_decode_bf16(lines[j], s, &v[j][s]);
                }
                V_UNROLL for (int i = 0; i < m; i++) {
                    vec xs = v_set1(x[i][k0 + k + s]);
                    V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) acc[i][j].v[h] =
                        v_fma(xs, v[j][s].v[h], acc[i][j].v[h]);
                }
            }
            V_UNROLL for (int j = 0; j < p; j++) lines[j] += PANEL_LINE;
        }
        if (full < n) { /* the last line of a ragged k: only in the last group */
            V_UNROLL for (int j = 0; j < p; j++) gemm_decode(kind, lines[j], scale[j], v[j]);
            V_UNROLL for (int s = 0; s < steps; s++) {
                if (full + s >= n) break;
                V_UNROLL for (int i = 0; i < m; i++) {
                    vec xs = v_set1(x[i][k0 + full + s]);
                    V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) acc[i][j].v[h] =
                        v_fma(xs, v[j][s].v[h], acc[i][j].v[h]);
                }
            }
        }
    }
    V_UNROLL for (int i = 0; i < m; i++) V_UNROLL for (int j = 0; j < p; j++)
        V_UNROLL for (int h = 0; h < ACC_VECS; h++) v_store_n(t->y + i * t->ldy + j * NEAP_PANEL + h * V_WIDTH,
                                                              acc[i][j].v[h], left - j * NEAP_PANEL - h * V_WIDTH);
}

typedef struct gemm_size {
    int64_t rows, panels;
    void (*run[2])(const gemm_tile *t); /* one panel, `panels` panels */
} gemm_size;

#define GEMM_BODY(kind, m, p)                                                                                \
    static inline void gemm_wide_##kind##_##m(const gemm_tile *t) { gemm_run(NEAP_MATRIX_##kind, m, p, t); } \
    static inline void gemm_single_##kind##_##m(const gemm_tile *t) { gemm_run(NEAP_MATRIX_##kind, m, 1, t); }
#define GEMM_ENTRY(kind, m, p) {m, p, {gemm_single_##kind##_##m, gemm_wide_##kind##_##m}},
GEMM_TILES(GEMM_BODY, F32)
GEMM_TILES(GEMM_BODY, BF16)
GEMM_TILES(GEMM_BODY, INT8)
GEMM_TILES(GEMM_BODY, FP8)
GEMM_TILES(GEMM_BODY, MXFP4)
#define GEMM_COUNT(kind, m, p) +1
enum { GEMM_SIZES = 0 GEMM_TILES(GEMM_COUNT, F32) };

/* All rows of [begin, end) for panels [p, p_end) of w, `step` panels at most; x and y begin at column 0 of w. */
V_INLINE void gemm_rows(const neap_gemm_args *a, const neap_matrix *w, const float *x, float *y, const gemm_size *sizes,
                        int64_t begin, int64_t end, int64_t p, int64_t p_end, bool is_continued) {
    for (int64_t i = begin; i < end;) {
        int n = GEMM_SIZES;
        while (n > 1 && sizes[n - 1].rows > end - i) n--; /* the largest tile that fits */
        const gemm_size *size = &sizes[n - 1];
        gemm_tile t = {.ldy = a->ldy, .w = w, .is_continued = is_continued};
        for (int64_t r = 0; r < size->rows; r++) t.x[r] = x + (a->rows ? a->rows[i + r] : i + r) * a->ldx;
        for (int64_t q = p; q < p_end;) {
            bool is_wide = p_end - q >= size->panels;
            t.panel = q;
            t.y = y + i * a->ldy + q * NEAP_PANEL;
            size->run[is_wide](&t);
            q += is_wide ? size->panels : 1;
        }
        i += size->rows;
    }
}

/* F32 lines [n][16] of k values [k0, k0 + n) of a panel; k0 a multiple of GEMM_CHUNK. */
V_INLINE void gemm_decode_chunk(const int kind, float *dst, const neap_matrix *w, int64_t panel, int64_t k0,
                                int64_t n) {
    const uint8_t *bytes = (const uint8_t *)w->panels + panel * w->panel_bytes;
    const int steps = panel_line_k(kind);
    const int64_t group = gemm_group_k(kind, w);
    for (int64_t k = 0, end; k < n; k = end) { /* groups of INT8 may begin before the chunk and end behind it */
        const int64_t g = (k0 + k) / group;
        const uint8_t *line = panel_line_at(kind, bytes, k0 + k);
        acc16 scale = gemm_group_scale(kind, w, panel, g), v[8];
        end = (g + 1) * group - k0 < n ? (g + 1) * group - k0 : n;
        for (int64_t l = k; l < end; l += steps, line += PANEL_LINE) {
            gemm_decode(kind, line, scale, v); /* may decode padding of the last line: the buffer has room */
            V_UNROLL for (int s = 0; s < steps; s++) V_UNROLL for (int h = 0; h < ACC_VECS; h++)
                v_store(dst + (l + s) * NEAP_PANEL + h * V_WIDTH, v[s].v[h]);
        }
    }
}

V_INLINE void gemm_decoded(const int kind, const neap_gemm_args *a, const gemm_size *f32_sizes, int64_t begin,
                           int64_t end) {
    _Alignas(64) float buffer[GEMM_DECODED_PANELS * GEMM_CHUNK * NEAP_PANEL];
    for (int64_t p = a->panel_begin; p < a->panel_end; p += GEMM_DECODED_PANELS) {
        int64_t panels = a->panel_end - p < GEMM_DECODED_PANELS ? a->panel_end - p : GEMM_DECODED_PANELS;
        for (int64_t k0 = 0; k0 < a->w->k; k0 += GEMM_CHUNK) {
            neap_matrix chunk = {
                .kind = NEAP_MATRIX_F32, .n = a->w->n - p * NEAP_PANEL, .k = a->w->k - k0, .panels = buffer};
            if (chunk.k > GEMM_CHUNK) chunk.k = GEMM_CHUNK;
            chunk.panel_bytes = GEMM_CHUNK * PANEL_LINE;
            for (int64_t q = 0; q < panels; q++)
                gemm_decode_chunk(kind, buffer + q * GEMM_CHUNK * NEAP_PANEL, a->w, p + q, k0, chunk.k);
            gemm_rows(a, &chunk, a->x + k0, a->y + p * NEAP_PANEL, f32_sizes, begin, end, 0, panels, k0 > 0);
        }
    }
}

/* Plain formats with many rows: pieces of k that stay in the first cache beside the rows of a tile. */
V_INLINE void gemm_pieces(const int kind, const neap_gemm_args *a, const gemm_size *sizes, int64_t begin, int64_t end) {
    for (int64_t p = a->panel_begin; p < a->panel_end; p += GEMM_PANELS_MAX) {
        int64_t panels = a->panel_end - p < GEMM_PANELS_MAX ? a->panel_end - p : GEMM_PANELS_MAX;
        for (int64_t k0 = 0; k0 < a->w->k; k0 += GEMM_PIECE) {
            neap_matrix piece = *a->w;
            piece.n -= p * NEAP_PANEL;
            piece.k = a->w->k - k0 < GEMM_PIECE ? a->w->k - k0 : GEMM_PIECE;
            piece.panels = panel_line_at(kind, (const uint8_t *)a->w->panels + p * a->w->panel_bytes, k0);
            gemm_rows(a, &piece, a->x + k0, a->y + p * NEAP_PANEL, sizes, begin, end, 0, panels, k0 > 0);
        }
    }
}

V_INLINE void gemm_any(const int kind, const neap_gemm_args *a, const gemm_size *sizes, const gemm_size *f32_sizes) {
    int64_t block = GEMM_BLOCK_BYTES / (a->w->k * (int64_t)sizeof(float)) / GEMM_ROWS_MAX * GEMM_ROWS_MAX;
    bool is_dear = kind == NEAP_MATRIX_INT8 || kind == NEAP_MATRIX_FP8 || kind == NEAP_MATRIX_MXFP4;
    if (block < 4 * GEMM_ROWS_MAX) block = 4 * GEMM_ROWS_MAX;
    for (int64_t i = 0; i < a->m; i += block) {
        int64_t end = a->m - i < block ? a->m : i + block;
        if (is_dear && end - i >= 2 * GEMM_ROWS_MAX) {
            gemm_decoded(kind, a, f32_sizes, i, end);
            continue;
        }
        if (V_WIDTH == 8 && !is_dear && end - i >= 2 * GEMM_ROWS_MAX) {
            gemm_pieces(kind, a, sizes, i, end);
            continue;
        }
        for (int64_t p = a->panel_begin; p < a->panel_end; p += GEMM_PANELS_MAX)
            gemm_rows(a, a->w, a->x, a->y, sizes, i, end, p,
                      a->panel_end - p < GEMM_PANELS_MAX ? a->panel_end : p + GEMM_PANELS_MAX, false);
    }
}

#define GEMM_KIND(kind)                                                                                         \
    static inline void gemm_##kind(const neap_gemm_args *a) {                                                   \
        static const gemm_size sizes[] = {GEMM_TILES(GEMM_ENTRY, kind)}, f32[] = {GEMM_TILES(GEMM_ENTRY, F32)}; \
        gemm_any(NEAP_MATRIX_##kind, a, sizes, f32);                                                            \
    }
GEMM_KIND(F32)
GEMM_KIND(BF16)
GEMM_KIND(INT8)
GEMM_KIND(FP8)
GEMM_KIND(MXFP4)

static inline void gemm_fill(neap_kernels *k) {
    k->gemm[NEAP_MATRIX_F32] = gemm_F32;
    k->gemm[NEAP_MATRIX_BF16] = gemm_BF16;
    k->gemm[NEAP_MATRIX_INT8] = gemm_INT8;
    k->gemm[NEAP_MATRIX_FP8] = gemm_FP8;
    k->gemm[NEAP_MATRIX_MXFP4] = gemm_MXFP4;
}
#endif

#endif
