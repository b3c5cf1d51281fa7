/* y = x W^T for vectors: a lane is an output, 16 lanes (one AVX-512 or two AVX2 registers) are a panel, and the
 * chain over ascending k of the definition is kept without any extra work: bits equal to gemm_scalar.c.
 *
 * Tile: M rows x P panels, all accumulators in registers; x values are broadcast.
 *   few rows   one tile: the weights stream by and are decoded in registers; several panels in flight hide the latency
 *              of the chains and give the memory system several streams
 *   many rows  GEMM_CHUNK k of one or two panels at a time: the first tile decodes them and leaves them in the first
 *              cache as F32 lines, all others read those; the chains continue through y, which changes no bit. The x of
 *              the chunk is copied to rows of a fixed distance: rows of a model lie a multiple of 4 KiB apart and would
 *              push each other out of the cache. Meanwhile the tiles ask memory for the chunk after this one
 *
 *   BF16   shift left 16 / mask gives the two k of a lane
 *   INT8   shifts spread and sign-extend the four codes of a lane; converted, times the scale of output and group
 *   FP8    codes become half floats of value / 256 (subnormals included, done by the hardware), converted, and
 *          multiplied by 256 * scale; lines with a NaN code take a branch of their own
 *   MXFP4  a table look-up by nibble, times the power of two of the group */
#ifndef NEAP_KERNELS_X86_GEMM_VEC_H
#define NEAP_KERNELS_X86_GEMM_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/families.h"
#include "kernels/x86/panel_vec.h"

#if defined(V_WIDTH) && defined(__F16C__)
enum { GEMM_CHUNK = 256, GEMM_X_STRIDE = GEMM_CHUNK + 16, GEMM_PANELS_MAX = 4, GEMM_STREAMS = 4, GEMM_AHEAD = 2048 };

/* Rows x panels of each tile size; every pair becomes its own function. */
#if V_WIDTH == 16
enum { GEMM_ROWS_MAX = 12, GEMM_FEW = 8, GEMM_FIRST_STEP = 4, GEMM_WIDE = 2 };
#define GEMM_FIRST_TILES(X, kind) X(kind, 8, 2) X(kind, 12, 2)
#define GEMM_TILES(X, kind) \
    X(kind, 1, 4)           \
    X(kind, 2, 4)           \
    X(kind, 3, 4)           \
    X(kind, 4, 4)           \
    X(kind, 5, 4) X(kind, 6, 4) X(kind, 7, 3) X(kind, 8, 2) X(kind, 9, 2) X(kind, 10, 2) X(kind, 11, 2) X(kind, 12, 2)
#else
enum { GEMM_ROWS_MAX = 6, GEMM_FEW = 4, GEMM_FIRST_STEP = 2, GEMM_WIDE = 1 };
#define GEMM_FIRST_TILES(X, kind) X(kind, 4, 1) X(kind, 6, 1)
#define GEMM_TILES(X, kind) X(kind, 1, 4) X(kind, 2, 2) X(kind, 3, 2) X(kind, 4, 1) X(kind, 5, 1) X(kind, 6, 1)
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

typedef struct acc16_bits {
    vec_int v[ACC_VECS];
} acc16_bits;

/* Has one of the FP8 codes all bits but the sign set? */
V_INLINE bool gemm_fp8_has_nan(const acc16_bits *v) {
#if V_WIDTH == 16
    return _mm512_cmpeq_epi8_mask(_mm512_or_si512(v->v[0], _mm512_set1_epi8((char)0x80)), _mm512_set1_epi8(-1)) != 0;
#else
    const __m256i sign = _mm256_set1_epi8((char)0x80), ones = _mm256_set1_epi8(-1);
    __m256i a = _mm256_cmpeq_epi8(_mm256_or_si256(v->v[0], sign), ones);
    __m256i b = _mm256_cmpeq_epi8(_mm256_or_si256(v->v[1], sign), ones);
    return _mm256_movemask_epi8(_mm256_or_si256(a, b)) != 0;
#endif
}

/* FP8 codes in the upper bytes of 16-bit lanes -> half floats (value / 256), then the two k of each lane. */
V_INLINE void gemm_fp8_pair(vec_int v, const bool has_nan, vec *even, vec *odd) {
    const __m128i halves = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
#if V_WIDTH == 16
    __m512i m = _mm512_and_si512(_mm512_srai_epi16(v, 1), _mm512_set1_epi16((short)0xbf80));
    if (has_nan) {
        const __m512i rest = _mm512_set1_epi16(0x3f80);
        __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(m, rest), rest);
        m = _mm512_mask_mov_epi16(m, is_nan, _mm512_set1_epi16(0x7e00));
    }
    m = _mm512_shuffle_epi8(m, _mm512_broadcast_i32x4(halves));
    m = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), m);
    *even = _mm512_cvtph_ps(_mm512_castsi512_si256(m));
    *odd = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(m, 1));
#else
    __m256i m = _mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16((short)0xbf80));
    if (has_nan) {
        const __m256i rest = _mm256_set1_epi16(0x3f80);
        __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(m, rest), rest);
        m = _mm256_or_si256(m, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    }
    m = _mm256_shuffle_epi8(m, _mm256_broadcastsi128_si256(halves));
    m = _mm256_permute4x64_epi64(m, _MM_SHUFFLE(3, 1, 2, 0));
    *even = _mm256_cvtph_ps(_mm256_castsi256_si128(m));
    *odd = _mm256_cvtph_ps(_mm256_extracti128_si256(m, 1));
#endif
}

V_INLINE void gemm_fp8(const acc16_bits *v, const bool has_nan, acc16 w[4]) {
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
#if V_WIDTH == 16
        gemm_fp8_pair(_mm512_slli_epi16(v->v[h], 8), has_nan, &w[0].v[h], &w[2].v[h]);
#else
        gemm_fp8_pair(_mm256_slli_epi16(v->v[h], 8), has_nan, &w[0].v[h], &w[2].v[h]);
#endif
        gemm_fp8_pair(v->v[h], has_nan, &w[1].v[h], &w[3].v[h]);
    }
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
    if (kind == NEAP_MATRIX_FP8) {
        acc16_bits v;
        V_UNROLL for (int h = 0; h < ACC_VECS; h++) v.v[h] = panel_load(line, h);
        if (__builtin_expect(gemm_fp8_has_nan(&v), 0))
            gemm_fp8(&v, true, w);
        else
            gemm_fp8(&v, false, w);
        V_UNROLL for (int s = 0; s < 4; s++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) w[s].v[h] =
            v_mul(w[s].v[h], scale.v[h]);
        return;
    }
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
        vec_int v = panel_load(line, h);
        if (kind == NEAP_MATRIX_F32) {
            w[0].v[h] = v_from_bits(v);
        } else if (kind == NEAP_MATRIX_INT8) {
            V_UNROLL for (int s = 0; s < 4; s++) w[s].v[h] = v_mul(gemm_int8(v, s), scale.v[h]);
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
    int64_t panels;
    void (*run[2])(const gemm_tile *t); /* one panel, `panels` panels */
} gemm_size;

#define GEMM_BODY(kind, m, p)                                                                                \
    static inline void gemm_wide_##kind##_##m(const gemm_tile *t) { gemm_run(NEAP_MATRIX_##kind, m, p, t); } \
    static inline void gemm_single_##kind##_##m(const gemm_tile *t) { gemm_run(NEAP_MATRIX_##kind, m, 1, t); }
#define GEMM_ENTRY(kind, m, p) {p, {gemm_single_##kind##_##m, gemm_wide_##kind##_##m}},
GEMM_TILES(GEMM_BODY, F32)
GEMM_TILES(GEMM_BODY, BF16)
GEMM_TILES(GEMM_BODY, INT8)
GEMM_TILES(GEMM_BODY, FP8)
GEMM_TILES(GEMM_BODY, MXFP4)

/* Rows of one tile, weights as they stream by. */
V_INLINE void gemm_few(const neap_gemm_args *a, const gemm_size *sizes, int64_t row, int64_t m) {
    const gemm_size *size = &sizes[m - 1];
    gemm_tile t = {.ldy = a->ldy, .w = a->w};
    for (int64_t r = 0; r < m; r++) t.x[r] = a->x + (a->rows ? a->rows[row + r] : row + r) * a->ldx;
    for (int64_t q = a->panel_begin; q < a->panel_end;) {
        bool is_wide = a->panel_end - q >= size->panels;
        t.panel = q;
        t.y = a->y + row * a->ldy + q * NEAP_PANEL;
        size->run[is_wide](&t);
        q += is_wide ? size->panels : 1;
    }
}

/* ---- many rows ---- */

typedef struct gemm_chunk {
    const float *x;                /* rows GEMM_X_STRIDE apart */
    float *w[GEMM_WIDE];           /* F32 lines of the panels */
    const uint8_t *raw[GEMM_WIDE]; /* what they are decoded from by the first tile */
    const neap_matrix *matrix;
    int64_t panel, k0, n_k;
    const char *ahead;               /* lines asked for meanwhile: in turns of GEMM_STREAMS panels */
    int64_t ahead_panel, ahead_step; /* bytes to the next panel, and for a whole turn */
    float *y;                        /* first row, first column */
    int64_t ldy, left;               /* outputs from there to the end of the matrix */
    bool is_continued;               /* the chains go on from y */
} gemm_chunk;

/* acc = fma(a, b, acc) in the form that leaves a and b alone: compilers put the sum where a was and copy it back. */
V_INLINE void gemm_fma(vec *acc, vec a, vec b) { __asm__("vfmadd231ps %1, %2, %0" : "+v"(*acc) : "v"(b), "v"(a)); }

/* One k of a tile. */
V_INLINE void gemm_chunk_step(const int m, const int p, const float *x, float *const *w, int64_t k,
                              acc16 acc[GEMM_ROWS_MAX][GEMM_WIDE]) {
    acc16 v[GEMM_WIDE];
    V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) v[j].v[h] =
        v_load(w[j] + k * NEAP_PANEL + h * V_WIDTH);
    V_UNROLL for (int i = 0; i < m; i++) {
        vec xs = v_set1(x[i * GEMM_X_STRIDE + k]);
        V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++)
            gemm_fma(&acc[i][j].v[h], xs, v[j].v[h]);
    }
}

/* Memory answers faster when several pages are read at a time: a turn is four lines, one of each panel, in two
 * halves. */
typedef struct gemm_asking {
    const char *at;
    int64_t panel, turn, move;
} gemm_asking;
V_INLINE void gemm_ask(gemm_asking *a) {
    _mm_prefetch(a->at, _MM_HINT_T1);
    _mm_prefetch(a->at + a->panel, _MM_HINT_T1);
    a->at += a->move;
    a->move = a->turn - a->move;
}

/* The first tile of a chunk: decodes a line, keeps it for the other tiles, and uses it. */
V_INLINE void gemm_chunk_first(const int kind, const int m, const int p, const gemm_chunk *t,
                               acc16 acc[GEMM_ROWS_MAX][GEMM_WIDE]) {
    const int steps = panel_line_k(kind);
    const int64_t group = gemm_group_k(kind, t->matrix), n = t->n_k;
    const float *x = t->x;
    /* BF16 asks for every line, that is twice as often as the others */
    gemm_asking ask = {t->ahead, t->ahead_panel, t->ahead_step / (steps == 2 ? 2 : 1), 2 * t->ahead_panel};
    float *w[GEMM_WIDE];
    V_UNROLL for (int j = 0; j < p; j++) w[j] = t->w[j];
    for (int64_t k = 0, end; k < n; k = end) { /* groups of INT8 may begin before the chunk and end behind it */
        const int64_t g = (t->k0 + k) / group;
        const uint8_t *lines[GEMM_WIDE];
        acc16 scale[GEMM_WIDE], v[8];
        end = (g + 1) * group - t->k0 < n ? (g + 1) * group - t->k0 : n;
        V_UNROLL for (int j = 0; j < p; j++) {
            lines[j] = panel_line_at(kind, t->raw[j], t->k0 + k);
            scale[j] = gemm_group_scale(kind, t->matrix, t->panel + j, g);
        }
        for (int64_t l = k; l < end; l += steps) {
            gemm_ask(&ask);
            if (steps == 8) gemm_ask(&ask);
            V_UNROLL for (int j = 0; j < p; j++) {
                gemm_decode(kind, lines[j], scale[j], v); /* padding of the last line too: there is room */
                lines[j] += PANEL_LINE;
                V_UNROLL for (int s = 0; s < steps; s++) V_UNROLL for (int h = 0; h < ACC_VECS; h++)
                    v_store(w[j] + (l + s) * NEAP_PANEL + h * V_WIDTH, v[s].v[h]);
            }
            __asm__ volatile("" : : : "memory"); /* the line is read again, there are no registers to keep it */
            if (l + steps <= end)
                V_UNROLL for (int s = 0; s < steps; s++) gemm_chunk_step(m, p, x, w, l + s, acc);
            else
                for (int64_t s = l; s < end; s++) gemm_chunk_step(m, p, x, w, s, acc);
        }
    }
}

/* Any tile, from F32 lines. */
V_INLINE void gemm_chunk_next(const int m, const int p, const gemm_chunk *t, acc16 acc[GEMM_ROWS_MAX][GEMM_WIDE]) {
    const float *x = t->x;
    float *w[GEMM_WIDE];
    gemm_asking ask = {t->ahead, t->ahead_panel, t->ahead_step, 2 * t->ahead_panel};
    int64_t k = 0;
    V_UNROLL for (int j = 0; j < p; j++) w[j] = t->w[j];
    for (; k + 4 <= t->n_k; k += 4) {
        gemm_ask(&ask);
        V_UNROLL for (int s = 0; s < 4; s++) gemm_chunk_step(m, p, x, w, k + s, acc);
    }
    for (; k < t->n_k; k++) gemm_chunk_step(m, p, x, w, k, acc);
}

V_INLINE void gemm_chunk_run(const int kind, const int m, const int p, const gemm_chunk *t) {
    acc16 acc[GEMM_ROWS_MAX][GEMM_WIDE];
    float *y = t->y;
    const int64_t ldy = t->ldy;
    V_UNROLL for (int i = 0; i < m; i++) {
        V_UNROLL for (int j = 0; j < p; j++) acc[i][j] = acc16_zero();
        if (t->is_continued)
            V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) acc[i][j].v[h] =
                v_load_n(y + i * ldy + j * NEAP_PANEL + h * V_WIDTH, t->left - j * NEAP_PANEL - h * V_WIDTH);
    }
    V_UNROLL for (int i = 0; i < m; i++) { /* y of the next tile */
        _mm_prefetch((const char *)(y + (m + i) * ldy), _MM_HINT_T0);
        _mm_prefetch((const char *)(y + (m + i) * ldy + p * NEAP_PANEL - 1), _MM_HINT_T0);
    }
    if (kind == NEAP_MATRIX_F32)
        gemm_chunk_next(m, p, t, acc);
    else
        gemm_chunk_first(kind, m, p, t, acc);
    V_UNROLL for (int i = 0; i < m; i++) V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS;
                                                                                            h++)
        v_store_n(y + i * ldy + j * NEAP_PANEL + h * V_WIDTH, acc[i][j].v[h], t->left - j * NEAP_PANEL - h * V_WIDTH);
}
typedef void gemm_chunk_fn(const gemm_chunk *t);
#define GEMM_CHUNK_BODY(kind, m, p)                                                                           \
    static void gemm_chunk_##kind##_##m(const gemm_chunk *t) { gemm_chunk_run(NEAP_MATRIX_##kind, m, 1, t); } \
    static void gemm_chunk_wide_##kind##_##m(const gemm_chunk *t) {                                           \
        gemm_chunk_run(NEAP_MATRIX_##kind, m, GEMM_WIDE, t);                                                  \
    }
#define GEMM_CHUNK_ENTRY(kind, m, p) {gemm_chunk_##kind##_##m, gemm_chunk_wide_##kind##_##m},
GEMM_TILES(GEMM_CHUNK_BODY, F32)
GEMM_FIRST_TILES(GEMM_CHUNK_BODY, BF16)
GEMM_FIRST_TILES(GEMM_CHUNK_BODY, INT8)
GEMM_FIRST_TILES(GEMM_CHUNK_BODY, FP8)
GEMM_FIRST_TILES(GEMM_CHUNK_BODY, MXFP4)

typedef struct gemm_block {
    const neap_gemm_args *a;
    float *w, *x; /* decoded panels; rows of activations */
    int64_t row, n_rows, k0, n_k;
} gemm_block;

static const float *gemm_row(const gemm_block *b, int64_t r) {
    const neap_gemm_args *a = b->a;
    if (r >= b->n_rows) r = b->n_rows - 1;
    return a->x + (a->rows ? a->rows[b->row + r] : b->row + r) * a->ldx + b->k0;
}

/* Rows lie a constant apart that is no power of two: one pointer for all of them, and no two in the same set. */
V_INLINE void gemm_block_x(const gemm_block *b) {
    enum { ROWS_AHEAD = 3 };
    for (int64_t r = 0; r < b->n_rows; r++) {
        const float *from = gemm_row(b, r), *ahead = gemm_row(b, r + ROWS_AHEAD);
        float *to = b->x + r * GEMM_X_STRIDE;
        for (int64_t k = 0; k < b->n_k; k += 16) {
            _mm_prefetch((const char *)(ahead + k), _MM_HINT_T0);
            V_UNROLL for (int h = 0; h < ACC_VECS; h++)
                v_store(to + k + h * V_WIDTH, v_load_n(from + k + h * V_WIDTH, b->n_k - k - h * V_WIDTH));
        }
    }
}

/* Rows of the first tile: the rest is no tile of very few rows. */
V_INLINE int64_t gemm_first_rows(int64_t n) { return n > GEMM_ROWS_MAX + GEMM_FEW ? GEMM_ROWS_MAX : GEMM_FEW; }

/* Bytes of one panel for a turn of 2 * GEMM_STREAMS k, if a single tile of each panel asks: all tiles of all panels
 * together ask for GEMM_STREAMS panels. */
V_INLINE int64_t gemm_ahead_step(int kind) {
    return GEMM_WIDE * (kind == NEAP_MATRIX_MXFP4 ? 17 : 2 * PANEL_LINE / panel_line_k(kind));
}

/* k values [k0, k0 + n_k) of panels [p, p_end), GEMM_STREAMS at most; meanwhile asks for the same panels from next_k or
 * the next ones from 0. firsts: tiles of GEMM_FEW and of GEMM_ROWS_MAX rows. */
V_INLINE void gemm_block_panels(const int kind, const gemm_block *b, gemm_chunk_fn *const (*firsts)[2], int64_t p,
                                int64_t p_end, int64_t next_panel, int64_t next_k) {
    static gemm_chunk_fn *const runs[][2] = {GEMM_TILES(GEMM_CHUNK_ENTRY, F32)};
    const neap_gemm_args *a = b->a;
    const uint8_t *bytes = a->w->panels;
    const int64_t first = gemm_first_rows(b->n_rows);
    const int64_t tiles = (b->n_rows + GEMM_ROWS_MAX - 1) / GEMM_ROWS_MAX;
    gemm_chunk t = {.matrix = a->w,
                    .k0 = b->k0,
                    .n_k = b->n_k,
                    .ahead_panel = a->w->panel_bytes,
                    .ahead_step = gemm_ahead_step(kind) / tiles,
                    .ldy = a->ldy,
                    .is_continued = b->k0 > 0};
    t.ahead = (const char *)panel_line_at(kind, bytes + next_panel * a->w->panel_bytes, next_k);
    while (p < p_end) {
        const bool is_wide = p_end - p >= GEMM_WIDE;
        t.panel = p;
        t.left = a->w->n - p * NEAP_PANEL;
        for (int64_t q = 0; q < (is_wide ? GEMM_WIDE : 1); q++) {
            t.raw[q] = bytes + (p + q) * a->w->panel_bytes;
            t.w[q] = kind == NEAP_MATRIX_F32 ? (float *)(uintptr_t)panel_line_at(kind, t.raw[q], b->k0)
                                             : b->w + q * GEMM_CHUNK * NEAP_PANEL;
        }
        for (int64_t at = 0, n = first; at < b->n_rows; at += n) {
            const int64_t left = b->n_rows - at;
            if (at) n = left >= 2 * GEMM_ROWS_MAX ? GEMM_ROWS_MAX : left > GEMM_ROWS_MAX ? (left + 1) / 2 : left;
            t.x = b->x + at * GEMM_X_STRIDE;
            t.y = a->y + (b->row + at) * a->ldy + p * NEAP_PANEL;
            (at || kind == NEAP_MATRIX_F32 ? runs[n - 1] : firsts[(n - GEMM_FEW) / GEMM_FIRST_STEP])[is_wide](&t);
            t.ahead += b->n_k / (2 * GEMM_STREAMS) * t.ahead_step;
        }
        p += is_wide ? GEMM_WIDE : 1;
    }
}

V_INLINE void gemm_block_at(gemm_block *b, int64_t k0) {
    b->k0 = k0;
    b->n_k = b->a->w->k - k0 < GEMM_CHUNK ? b->a->w->k - k0 : GEMM_CHUNK;
}

/* Few enough rows for all their x in the scratch: panels outside, k inside. Otherwise the other way around. */
V_INLINE void gemm_block_run(const int kind, gemm_block *b, gemm_chunk_fn *const (*firsts)[2], int64_t room) {
    const neap_gemm_args *a = b->a;
    const int64_t k_all = a->w->k, chunks = (k_all + GEMM_CHUNK - 1) / GEMM_CHUNK;
    float *const x = b->x;
    bool is_whole = chunks * b->n_rows <= room;
    for (int64_t c = 0; c < chunks; c++) {
        gemm_block_at(b, c * GEMM_CHUNK);
        b->x = x + (is_whole ? c * b->n_rows * GEMM_X_STRIDE : 0);
        gemm_block_x(b);
        for (int64_t end, p = a->panel_begin; p < a->panel_end && !is_whole; p = end) {
            end = a->panel_end - p < GEMM_STREAMS ? a->panel_end : p + GEMM_STREAMS;
            if (end < a->panel_end)
                gemm_block_panels(kind, b, firsts, p, end, end, b->k0);
            else
                gemm_block_panels(kind, b, firsts, p, end, a->panel_begin, b->k0 + b->n_k);
        }
    }
    for (int64_t end, p = a->panel_begin; p < a->panel_end && is_whole; p = end) {
        end = a->panel_end - p < GEMM_STREAMS ? a->panel_end : p + GEMM_STREAMS;
        for (int64_t c = 0; c < chunks; c++) {
            const bool is_last = c + 1 == chunks;
            b->x = x + c * b->n_rows * GEMM_X_STRIDE;
            gemm_block_at(b, c * GEMM_CHUNK);
            gemm_block_panels(kind, b, firsts, p, end, is_last ? end : p, is_last ? 0 : b->k0 + b->n_k);
        }
    }
    b->x = x;
}

V_INLINE void gemm_many(const int kind, const neap_gemm_args *a, gemm_chunk_fn *const (*firsts)[2]) {
    enum { BUFFER = GEMM_WIDE * GEMM_CHUNK * NEAP_PANEL };
    const int64_t room = (NEAP_GEMM_SCRATCH / (int64_t)sizeof(float) - BUFFER) / GEMM_X_STRIDE;
    const int64_t blocks = (a->m + room - 1) / room;
    gemm_block b = {.a = a, .w = a->scratch, .x = (float *)a->scratch + BUFFER};
    for (int64_t i = 0; i < blocks; i++, b.row += b.n_rows) {
        b.n_rows = a->m / blocks + (i < a->m % blocks);
        gemm_block_run(kind, &b, firsts, room);
    }
}

V_INLINE void gemm_any(const int kind, const neap_gemm_args *a, const gemm_size *sizes,
                       gemm_chunk_fn *const (*firsts)[2]) {
    if (a->m > GEMM_ROWS_MAX && a->scratch) {
        gemm_many(kind, a, firsts);
        return;
    }
    for (int64_t i = 0; i < a->m; i += GEMM_ROWS_MAX)
        gemm_few(a, sizes, i, a->m - i < GEMM_ROWS_MAX ? a->m - i : GEMM_ROWS_MAX);
}

#define GEMM_KIND(kind)                                                                       \
    static void gemm_##kind(const neap_gemm_args *a) {                                        \
        static const gemm_size sizes[] = {GEMM_TILES(GEMM_ENTRY, kind)};                      \
        static gemm_chunk_fn *const firsts[][2] = {GEMM_FIRST_TILES(GEMM_CHUNK_ENTRY, kind)}; \
        gemm_any(NEAP_MATRIX_##kind, a, sizes, firsts);                                       \
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
