/* y = x W^T with x in integers, for vectors (neap_x_form in kernels.h). Sums of a unit are exact, so every form below
 * gives the bits of igemm_scalar.c; what differs is which dot product the processor is good at:
 *
 *   quads   w as unsigned bytes (a bias added: 12 for MXFP4, 128 for INT8), x as signed bytes, one or two planes
 *           (igemm_rows.h). Sums begin with what takes the bias off again. VNNI (either width): vpdpbusd, all weights.
 *           Else: maddubs, MXFP4 alone, with 16-bit sums: they may wrap on the way, but the 16 products of a unit that
 *           meet in a lane are at most 16 * 12 * 128 without the bias, which fits
 *   pairs   w and x in 16 bits, madd: without VNNI, INT8, and MXFP4 with 16-bit x and many rows
 *
 * Few rows: a line is decoded in registers and used for both planes at once. Many rows: up to IGEMM_CHUNK k of a panel
 * are decoded once into the first cache for all row tiles; the float chains continue through y, which changes no bit.
 *
 * Tile: M rows x P panels; integer sums in registers, float chains too where there are 32 registers. */
#ifndef NEAP_KERNELS_X86_IGEMM_VEC_H
#define NEAP_KERNELS_X86_IGEMM_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/families.h"
#include "kernels/x86/igemm_rows.h"

#if defined(V_WIDTH)
enum { IGEMM_AHEAD = 1536, IGEMM_CHUNK = 512, IGEMM_ROWS = 64 };
enum { IGEMM_TILE_ROWS = 6, IGEMM_TILE_PANELS = 4, IGEMM_DECODED_PANELS = V_WIDTH / 8 };

/* Keeps a value where it is: gcc copies sums from register to register and back without need. */
#define IGEMM_KEEP(v) __asm__("" : "+v"(v))
/* Sixteen registers hold the sums of a tile, not its float chains too: they stay in the first cache. */
#if V_WIDTH == 16
#define IGEMM_IN_MEMORY(pointer) ((void)0)
#else
#define IGEMM_IN_MEMORY(pointer) __asm__("" : "+r"(pointer))
#endif

/* ---- lines ---- */

V_INLINE void igemm_store(void *line, int h, vec_int v) {
#if V_WIDTH == 16
    (void)h;
    _mm512_store_si512(line, v);
#else
    _mm256_store_si256((__m256i *)line + h, v);
#endif
}
V_INLINE vec_int igemm_spread(const char *x) { /* 32 bits to all lanes */
    int32_t v;
    memcpy(&v, x, sizeof v);
    return vi_set1(v);
}

/* Names that differ between the widths in their prefix alone. */
#if V_WIDTH == 16
#define IGEMM_OP(name) _mm512_##name
#define IGEMM_LOGIC(name) _mm512_##name##_si512
#define IGEMM_TABLE(t) _mm512_broadcast_i32x4(t)
#else
#define IGEMM_OP(name) _mm256_##name
#define IGEMM_LOGIC(name) _mm256_##name##_si256
#define IGEMM_TABLE(t) _mm256_broadcastsi128_si256(t)
#endif

/* Values that a table has for the nibbles of an MXFP4 line: eight k -> two lines of four. */
V_INLINE void igemm_nibbles(const uint8_t *line, int h, __m128i table, vec_int q[2]) {
    const vec_int v = panel_load(line, h), nibble = IGEMM_OP(set1_epi8)(15), values = IGEMM_TABLE(table);
    q[0] = IGEMM_OP(shuffle_epi8)(values, IGEMM_LOGIC(and)(v, nibble));
    q[1] = IGEMM_OP(shuffle_epi8)(values, IGEMM_LOGIC(and)(IGEMM_OP(srli_epi16)(v, 4), nibble));
}
/* Their doubled values as signed bytes. */
V_INLINE void igemm_doubled(const uint8_t *line, int h, vec_int q[2]) {
    igemm_nibbles(line, h, _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), q);
}

/* MXFP4 line -> two lines of quads; INT8 line: one. */
V_INLINE int igemm_lines(int kind) { return kind == NEAP_MATRIX_MXFP4 ? 2 : 1; }
V_INLINE void igemm_quads(int kind, const uint8_t *line, int h, vec_int q[2]) {
    if (kind == NEAP_MATRIX_INT8)
        q[0] = IGEMM_LOGIC(xor)(panel_load(line, h), IGEMM_OP(set1_epi8)((char)0x80));
    else
        igemm_nibbles(line, h, _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), q);
}
/* Each line of quads as two lines of pairs: (k, k+2), (k+1, k+3). */
V_INLINE void igemm_pairs(int kind, const uint8_t *line, int h, vec_int q[4]) {
    vec_int bytes[2];
    if (kind == NEAP_MATRIX_INT8)
        bytes[0] = panel_load(line, h);
    else
        igemm_doubled(line, h, bytes);
    V_UNROLL for (int i = 0; i < igemm_lines(kind); i++) {
        q[2 * i] = IGEMM_OP(srai_epi16)(IGEMM_OP(slli_epi16)(bytes[i], 8), 8);
        q[2 * i + 1] = IGEMM_OP(srai_epi16)(bytes[i], 8);
    }
}

/* s_w of 16 outputs: the codes of MXFP4 are doubled. */
V_INLINE acc16 igemm_scale(int kind, const neap_matrix *w, int64_t panel, int64_t group) {
    acc16 s = panel_scale(kind, w, panel, group);
    if (kind == NEAP_MATRIX_MXFP4) V_UNROLL for (int h = 0; h < ACC_VECS; h++) s.v[h] = v_mul(s.v[h], v_set1(0.5f));
    return s;
}

/* ---- tiles ---- */

/* Units of a panel, ready for all rows. MXFP4 with 16-bit x ends in pairs: two lines for four k. */
typedef struct igemm_panel {
    _Alignas(64) char lines[(IGEMM_CHUNK / 4 + 1) * 2 * PANEL_LINE];
    float scales[IGEMM_CHUNK / 4 + 1][NEAP_PANEL];
} igemm_panel;

typedef struct igemm_tile {
    const igemm_block *b;
    int64_t row, panel;         /* first ones; row counted from the block's */
    int64_t u_begin, u_end;     /* units */
    bool is_continued;          /* chains go on from y */
    const igemm_panel *decoded; /* k 0 = that of unit u_begin; NULL: as stored */
    /* What will be decoded next, a share of it fetched with each unit: lines of each panel. */
    const char *next[IGEMM_DECODED_PANELS];
    int32_t n_next, next_share;
} igemm_tile;

V_INLINE float *igemm_y(const igemm_tile *t) {
    return t->b->a->y + (t->b->row + t->row) * t->b->a->ldy + t->panel * NEAP_PANEL;
}

/* One line of quads onto a sum: 32 bits a lane, or two of 16. */
V_INLINE vec_int igemm_dot(vec_int sum, vec_int w, vec_int x) {
#if defined(IGEMM_DPBUSD)
    return IGEMM_DPBUSD(sum, w, x);
#else
    return IGEMM_OP(add_epi16)(sum, IGEMM_OP(maddubs_epi16)(w, x));
#endif
}
/* The sum of a unit that igemm_dot made. */
V_INLINE vec_int igemm_widen(vec_int sum) {
    return IGEMM_HAS_DOT ? sum : IGEMM_OP(madd_epi16)(sum, IGEMM_OP(set1_epi16)(1));
}

/* A tile's float chains: m rows x p panels begin at zero or go on from y, and end there. */
V_INLINE void igemm_begin(const igemm_tile *t, const int m, const int p, acc16 (*chain)[IGEMM_TILE_PANELS]) {
    const int64_t ldy = t->b->a->ldy, left = t->b->a->w->n - t->panel * NEAP_PANEL;
    const float *y = igemm_y(t);
    for (int i = 0; i < m; i++, y += ldy)
        V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
            const int at = j * NEAP_PANEL + h * V_WIDTH;
            chain[i][j].v[h] = !t->is_continued ? v_zero() : v_load_n(y + at, left - at);
        }
}
V_INLINE void igemm_end(const igemm_tile *t, const int m, const int p, acc16 (*chain)[IGEMM_TILE_PANELS]) {
    const int64_t ldy = t->b->a->ldy, left = t->b->a->w->n - t->panel * NEAP_PANEL;
    float *y = igemm_y(t);
    for (int i = 0; i < m; i++, y += ldy)
        V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
            const int at = j * NEAP_PANEL + h * V_WIDTH;
            v_store_n(y + at, chain[i][j].v[h], left - at);
        }
}
/* Sums of unit u of row i join the chains of a panel. */
V_INLINE void igemm_join(const igemm_tile *t, int64_t u, int i, const acc16 *scale, const vec_int *sum, acc16 *chain) {
    const vec x_scale = v_set1(t->b->scale[(t->row + i) * t->b->n_units + u]);
    V_UNROLL for (int h = 0; h < ACC_VECS; h++) chain->v[h] =
        v_fma(IGEMM_OP(cvtepi32_ps)(sum[h]), v_mul(scale->v[h], x_scale), chain->v[h]);
}
/* What the sums of plane l, row i and unit u begin with. */
V_INLINE vec_int igemm_start(const igemm_tile *t, int l, int i, int64_t u) {
    const igemm_block *b = t->b;
    return vi_set1(b->start[((int64_t)l * b->n_rows + t->row + i) * b->n_units + u]);
}
#define IGEMM_EACH(m, p)                                                      \
    V_UNROLL for (int i = 0; i < m; i++) V_UNROLL for (int j = 0; j < p; j++) \
        V_UNROLL for (int h = 0; h < ACC_VECS; h++)

/* Quads of p stored panels for m rows. Sixteen registers do not hold both halves of a panel for many sums: one half
 * after the other then. */
V_INLINE void igemm_direct(const int kind, const int planes, const int m, const int p, const igemm_tile *t) {
    const igemm_block *b = t->b;
    const neap_matrix *w = b->a->w;
    const int lines = igemm_lines(kind), line_k = panel_line_k(kind);
    const int at_once = V_WIDTH == 8 && planes * m * ACC_VECS > 8 ? 1 : ACC_VECS;
    acc16 chains[4][IGEMM_TILE_PANELS], (*chain)[IGEMM_TILE_PANELS] = chains;
    const char *x[2][4];
    V_UNROLL for (int i = 0; i < m; i++) V_UNROLL for (int l = 0; l < planes; l++) x[l][i] =
        igemm_row(b, l, t->row + i);
    igemm_begin(t, m, p, chain);
    for (int64_t u = t->u_begin; u < t->u_end; u++) {
        const igemm_unit unit = b->units[u];
        IGEMM_IN_MEMORY(chain);
        vec_int sum[2][4][4][ACC_VECS];
        V_UNROLL for (int from = 0; from < ACC_VECS; from += at_once) {
            const uint8_t *line[4];
            V_UNROLL for (int j = 0; j < p; j++) line[j] =
                panel_line_at(kind, (const uint8_t *)w->panels + (t->panel + j) * w->panel_bytes, b->k + unit.k);
            V_UNROLL for (int l = 0; l < planes; l++) V_UNROLL for (int i = 0; i < m; i++)
                V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = from; h < from + at_once; h++)
                    sum[l][i][j][h] = igemm_start(t, l, i, u);
            for (int64_t k0 = 0; k0 < (kind == NEAP_MATRIX_MXFP4 ? 32 : unit.n); k0 += 4 * line_k)
                V_UNROLL for (int e = 0; e < 4; e++) {
                    const int64_t k = unit.k + k0 + e * line_k;
                    if (kind == NEAP_MATRIX_INT8 && e > 0 && k0 + e * line_k >= unit.n) break;
                    V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = from; h < from + at_once; h++) {
                        vec_int q[2];
                        if (h == 0) _mm_prefetch((const char *)line[j] + IGEMM_AHEAD, _MM_HINT_T0);
                        igemm_quads(kind, line[j], h, q);
                        V_UNROLL for (int s = 0; s < lines; s++) V_UNROLL for (int i = 0; i < m; i++)
                            V_UNROLL for (int l = 0; l < planes; l++) {
                            sum[l][i][j][h] = igemm_dot(sum[l][i][j][h], q[s], igemm_spread(x[l][i] + k + 4 * s));
                            if (m > 1 || !IGEMM_HAS_DOT) IGEMM_KEEP(sum[l][i][j][h]);
                        }
                    }
                    V_UNROLL for (int j = 0; j < p; j++) line[j] += PANEL_LINE;
                }
            IGEMM_EACH(m, p) {
                if (h < from || h >= from + at_once) continue;
                vec_int v = igemm_widen(sum[0][i][j][h]);
                if (planes == 2) v = vi_add(IGEMM_OP(slli_epi32)(v, 8), igemm_widen(sum[1][i][j][h]));
                sum[0][i][j][h] = v;
            }
        }
        V_UNROLL for (int j = 0; j < p; j++) {
            acc16 scale = igemm_scale(kind, w, t->panel + j, unit.group);
            V_UNROLL for (int i = 0; i < m; i++) igemm_join(t, u, i, &scale, sum[0][i][j], &chain[i][j]);
        }
    }
    igemm_end(t, m, p, chain);
}

/* Pairs of p stored INT8 panels for m rows. */
V_INLINE void igemm_direct_pairs(const int m, const int p, const igemm_tile *t) {
    const int kind = NEAP_MATRIX_INT8;
    const igemm_block *b = t->b;
    const neap_matrix *w = b->a->w;
    acc16 chains[4][IGEMM_TILE_PANELS], (*chain)[IGEMM_TILE_PANELS] = chains;
    igemm_begin(t, m, p, chain);
    for (int64_t u = t->u_begin; u < t->u_end; u++) {
        const igemm_unit unit = b->units[u];
        if (m > 2) IGEMM_IN_MEMORY(chain); /* weights from memory: slower for fewer rows */
        const uint8_t *line[4];
        const char *x[4];
        vec_int sum[4][4][ACC_VECS];
        V_UNROLL for (int j = 0; j < p; j++) line[j] =
            panel_line_at(kind, (const uint8_t *)w->panels + (t->panel + j) * w->panel_bytes, b->k + unit.k);
        V_UNROLL for (int i = 0; i < m; i++) {
            x[i] = igemm_row(b, 0, t->row + i) + 2 * (int64_t)unit.k;
            V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) sum[i][j][h] = vi_set1(0);
        }
        for (int64_t k = 0; k < unit.n; k += 4) V_UNROLL for (int j = 0; j < p; j++, line[j - 1] += PANEL_LINE) {
                _mm_prefetch((const char *)line[j] + IGEMM_AHEAD, _MM_HINT_T0);
                V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
                    vec_int q[4];
                    igemm_pairs(kind, line[j], h, q);
                    V_UNROLL for (int s = 0; s < 2; s++) V_UNROLL for (int i = 0; i < m; i++) {
                        sum[i][j][h] =
                            vi_add(sum[i][j][h], IGEMM_OP(madd_epi16)(q[s], igemm_spread(x[i] + 2 * k + 4 * s)));
                        if (m > 2) IGEMM_KEEP(sum[i][j][h]);
                    }
                }
            }
        V_UNROLL for (int j = 0; j < p; j++) {
            acc16 scale = igemm_scale(kind, w, t->panel + j, unit.group);
            V_UNROLL for (int i = 0; i < m; i++) igemm_join(t, u, i, &scale, sum[i][j], &chain[i][j]);
        }
    }
    igemm_end(t, m, p, chain);
}

/* m rows x p panels from decoded lines: one plane after the other, one sum in registers. Pairs: one plane, two lines
 * for four k. */
V_INLINE void igemm_many(const int kind, const bool is_pairs, const int planes, const int m, const int p,
                         const igemm_tile *t) {
    const igemm_block *b = t->b;
    const int64_t k_begin = b->units[t->u_begin].k;
    const int quad_bytes = is_pairs ? 8 : 4, quad_lines = is_pairs ? 2 : 1;
    acc16 chains[IGEMM_TILE_ROWS][IGEMM_TILE_PANELS], (*chain)[IGEMM_TILE_PANELS] = chains;
    igemm_begin(t, m, p, chain);
    for (int64_t u = t->u_begin; u < t->u_end; u++) {
        const igemm_unit unit = b->units[u];
        IGEMM_IN_MEMORY(chain);
        const int64_t quads = kind == NEAP_MATRIX_MXFP4 ? 8 : (unit.n + 3) / 4;
        const int step = kind == NEAP_MATRIX_MXFP4 ? 8 / quad_lines : 1;
        for (int64_t l = (u - t->u_begin) * t->next_share, end = l + t->next_share; l < end; l++)
            V_UNROLL for (int j = 0; j < p; j++) _mm_prefetch(t->next[j] + l * PANEL_LINE, _MM_HINT_T0);
        vec_int sum[IGEMM_TILE_ROWS][2][ACC_VECS];
        V_UNROLL for (int l = 0; l < planes; l++) {
            IGEMM_EACH(m, p) {
                vec_int from = is_pairs ? vi_set1(0) : igemm_start(t, l, i, u);
                sum[i][j][h] = l ? vi_add(IGEMM_OP(slli_epi32)(sum[i][j][h], 8), from) : from;
            }
            const char *line = (const char *)t->decoded + (unit.k - k_begin) * (quad_lines * PANEL_LINE / 4);
            const char *x[IGEMM_TILE_ROWS];
            V_UNROLL for (int i = 0; i < m; i++) x[i] =
                igemm_row(b, l, t->row + i) + (int64_t)unit.k * (quad_bytes / 4);
            for (int64_t q = 0; q < quads; q += step) V_UNROLL for (int e = 0; e < step * quad_lines; e++) {
                    vec_int v[2][ACC_VECS];
                    V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) v[j][h] =
                        panel_load(line + e * PANEL_LINE + j * (int64_t)sizeof(igemm_panel), h);
                    V_UNROLL for (int i = 0; i < m; i++) {
                        const vec_int xs = igemm_spread(x[i] + e * 4);
                        V_UNROLL for (int j = 0; j < p; j++) V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
                            sum[i][j][h] = is_pairs ? vi_add(sum[i][j][h], IGEMM_OP(madd_epi16)(v[j][h], xs))
                                                    : igemm_dot(sum[i][j][h], v[j][h], xs);
                            IGEMM_KEEP(sum[i][j][h]);
                        }
                    }
                    if (e < step * quad_lines - 1) continue;
                    line += step * quad_lines * PANEL_LINE;
                    V_UNROLL for (int i = 0; i < m; i++) x[i] += step * quad_bytes;
                }
        }
        V_UNROLL for (int j = 0; j < p; j++) {
            acc16 scale;
            V_UNROLL for (int h = 0; h < ACC_VECS; h++) scale.v[h] =
                v_load(t->decoded[j].scales[u - t->u_begin] + h * V_WIDTH);
            V_UNROLL for (int i = 0; i < m; i++) {
                if (!is_pairs) V_UNROLL for (int h = 0; h < ACC_VECS; h++) sum[i][j][h] = igemm_widen(sum[i][j][h]);
                igemm_join(t, u, i, &scale, sum[i][j], &chain[i][j]);
            }
        }
    }
    igemm_end(t, m, p, chain);
}

/* ---- which tile ---- */

typedef void (*igemm_run)(const igemm_tile *t);
typedef struct igemm_size {
    int64_t rows, panels;
    igemm_run run[2]; /* one panel, `panels` panels */
} igemm_size;

/* Rows x panels: of stored lines, and of decoded ones in quads and in pairs. */
#if V_WIDTH == 16
#define IGEMM_DIRECT(X, kind, planes) \
    X(kind, planes, 1, 4) X(kind, planes, 2, 2) X(kind, planes, 3, 2) X(kind, planes, 4, 2)
#define IGEMM_MANY(X, kind, pairs, planes) \
    X(kind, pairs, planes, 1, 2) X(kind, pairs, planes, 2, 2) X(kind, pairs, planes, 4, 2) X(kind, pairs, planes, 6, 2)
#elif defined(IGEMM_DPBUSD)
#define IGEMM_DIRECT(X, kind, planes) \
    X(kind, planes, 1, 2) X(kind, planes, 2, 1) X(kind, planes, 3, 1) X(kind, planes, 4, 1)
#define IGEMM_MANY(X, kind, pairs, planes) \
    X(kind, pairs, planes, 1, 1) X(kind, pairs, planes, 2, 1) X(kind, pairs, planes, 4, 1) X(kind, pairs, planes, 6, 1)
#else
#define IGEMM_DIRECT(X, kind, planes) \
    X(kind, planes, 1, 1) X(kind, planes, 2, 1) X(kind, planes, 3, 1) X(kind, planes, 4, 1)
#define IGEMM_MANY(X, kind, pairs, planes) \
    X(kind, pairs, planes, 1, 1) X(kind, pairs, planes, 2, 1) X(kind, pairs, planes, 3, 1) X(kind, pairs, planes, 4, 1)
#endif

/* Tile functions by name, and their tables. */
#define IGEMM_DIRECT_BODY(kind, planes, m, p)                                            \
    static inline void igemm_direct_##kind##_##planes##_##m##_##p(const igemm_tile *t) { \
        igemm_direct(NEAP_MATRIX_##kind, planes, m, p, t);                               \
    }                                                                                    \
    static inline void igemm_direct1_##kind##_##planes##_##m(const igemm_tile *t) {      \
        igemm_direct(NEAP_MATRIX_##kind, planes, m, 1, t);                               \
    }
#define IGEMM_DIRECT_ENTRY(kind, planes, m, p) \
    {m, p, {igemm_direct1_##kind##_##planes##_##m, igemm_direct_##kind##_##planes##_##m##_##p}},
#define IGEMM_MANY_BODY(kind, pairs, planes, m, p)                                          \
    static inline void igemm_many_##kind##_##pairs##_##planes##_##m(const igemm_tile *t) {  \
        igemm_many(NEAP_MATRIX_##kind, pairs, planes, m, p, t);                             \
    }                                                                                       \
    static inline void igemm_many1_##kind##_##pairs##_##planes##_##m(const igemm_tile *t) { \
        igemm_many(NEAP_MATRIX_##kind, pairs, planes, m, 1, t);                             \
    }
#define IGEMM_MANY_ENTRY(kind, pairs, planes, m, p) \
    {m, p, {igemm_many1_##kind##_##pairs##_##planes##_##m, igemm_many_##kind##_##pairs##_##planes##_##m}},
#define IGEMM_PAIRS_BODY(kind, planes, m, p)                                                       \
    static inline void igemm_pairs_##m##_##p(const igemm_tile *t) { igemm_direct_pairs(m, p, t); } \
    static inline void igemm_pairs1_##m(const igemm_tile *t) { igemm_direct_pairs(m, 1, t); }
#define IGEMM_PAIRS_ENTRY(kind, planes, m, p) {m, p, {igemm_pairs1_##m, igemm_pairs_##m##_##p}},
#define IGEMM_COUNT(...) +1

enum {
    IGEMM_DIRECT_SIZES = 0 IGEMM_DIRECT(IGEMM_COUNT, F32, 1),
    IGEMM_MANY_SIZES = 0 IGEMM_MANY(IGEMM_COUNT, F32, 0, 1)
};

/* Units [u_begin, u_end) of a panel. */
typedef void (*igemm_decoder)(igemm_panel *to, const igemm_block *b, int64_t panel, int64_t u_begin, int64_t u_end);

/* How a kind of weights is multiplied: forms of x and tiles for few and for many rows, and lines for many. */
typedef struct igemm_way {
    bool is_pairs[2];
    const igemm_size *sizes[2];
    igemm_decoder decode;
} igemm_way;

V_INLINE const igemm_size *igemm_fitting(const igemm_size *sizes, int n, int64_t rows) {
    while (n > 1 && sizes[n - 1].rows > rows) n--;
    return &sizes[n - 1];
}

/* How much of what comes next the units of a tile of some rows fetch. */
static inline void igemm_share(igemm_tile *t, int64_t rows) {
    const int32_t parts = (int32_t)((t->u_end - t->u_begin) * t->b->n_rows);
    t->next_share = t->n_next ? (t->n_next * (int32_t)rows + parts - 1) / parts : 0;
}
/* Row tiles of the block over panels [p, p_end): at most the widest tile's. */
static inline void igemm_row_tiles(igemm_tile *t, const igemm_size *sizes, int n_sizes, int64_t p, int64_t p_end) {
    const igemm_size *size;
    for (t->row = 0; t->row < t->b->n_rows; t->row += size->rows) {
        size = igemm_fitting(sizes, n_sizes, t->b->n_rows - t->row);
        const igemm_panel *decoded = t->decoded;
        igemm_share(t, size->rows);
        for (t->panel = p; t->panel < p_end;) {
            bool is_wide = p_end - t->panel >= size->panels;
            int64_t panels = is_wide ? size->panels : 1;
            size->run[is_wide](t);
            t->panel += panels;
            if (t->decoded) t->decoded += panels;
        }
        t->decoded = decoded;
        for (int q = 0; t->next_share && q < IGEMM_DECODED_PANELS; q++)
            t->next[q] += (t->u_end - t->u_begin) * t->next_share * PANEL_LINE;
    }
}

V_INLINE void igemm_decode(const int kind, const bool is_pairs, igemm_panel *d, const igemm_block *b, int64_t panel,
                           int64_t u_begin, int64_t u_end) {
    const uint8_t *bytes = (const uint8_t *)b->a->w->panels + panel * b->a->w->panel_bytes;
    char *to = d->lines;
    for (int64_t u = u_begin; u < u_end; u++) {
        const igemm_unit unit = b->units[u];
        const uint8_t *line = panel_line_at(kind, bytes, b->k + unit.k);
        const acc16 scale = igemm_scale(kind, b->a->w, panel, unit.group);
        V_UNROLL for (int h = 0; h < ACC_VECS; h++) v_store(d->scales[u - u_begin] + h * V_WIDTH, scale.v[h]);
        for (int64_t k = 0; k < (kind == NEAP_MATRIX_MXFP4 ? 32 : unit.n);
             k += panel_line_k(kind), line += PANEL_LINE) {
            const int n = igemm_lines(kind) * (is_pairs ? 2 : 1);
            V_UNROLL for (int h = 0; h < ACC_VECS; h++) {
                vec_int q[4];
                if (is_pairs)
                    igemm_pairs(kind, line, h, q);
                else
                    igemm_quads(kind, line, h, q);
                V_UNROLL for (int s = 0; s < n; s++) igemm_store(to + s * PANEL_LINE, h, q[s]);
            }
            to += n * PANEL_LINE;
        }
    }
}

#define IGEMM_DECODE(kind, pairs)                                                                          \
    static inline void igemm_decode_##kind##_##pairs(igemm_panel *to, const igemm_block *b, int64_t panel, \
                                                     int64_t u_begin, int64_t u_end) {                     \
        igemm_decode(NEAP_MATRIX_##kind, pairs, to, b, panel, u_begin, u_end);                             \
    }
IGEMM_DECODE(MXFP4, 0)
#if defined(IGEMM_DPBUSD)
IGEMM_DECODE(INT8, 0)
#else
IGEMM_DECODE(INT8, 1)
IGEMM_DECODE(MXFP4, 1)
#endif

/* Where unit u of a panel is stored. */
static inline const char *igemm_stored(const igemm_block *b, int64_t panel, int64_t u) {
    const neap_matrix *w = b->a->w;
    return (const char *)panel_line_at((int)w->kind, (const uint8_t *)w->panels + panel * w->panel_bytes,
                                       b->k + b->units[u].k);
}
/* What comes behind units [u_begin, u_end) of panels p ..; as much of it as they are. */
static inline void igemm_look_ahead(igemm_tile *t, int64_t p) {
    const igemm_block *b = t->b;
    const bool is_last = t->u_end == b->n_units;
    const int64_t next = is_last ? p + IGEMM_DECODED_PANELS : p, n = b->units[t->u_end - 1].k - b->units[t->u_begin].k;
    t->n_next = 0;
    if (next + IGEMM_DECODED_PANELS > b->a->panel_end) return;
    for (int q = 0; q < IGEMM_DECODED_PANELS; q++) t->next[q] = igemm_stored(b, next + q, is_last ? 0 : t->u_end);
    t->n_next = (int32_t)(n + b->units[t->u_end - 1].n) / panel_line_k((int)b->a->w->kind);
}

static inline void igemm_decoded(const igemm_way *way, const igemm_block *b) {
    igemm_panel decoded[IGEMM_DECODED_PANELS];
    const neap_gemm_args *a = b->a;
    igemm_tile t = {.b = b, .decoded = decoded};
    for (int64_t p = a->panel_begin, p_end; p < a->panel_end; p = p_end) {
        p_end = p + IGEMM_DECODED_PANELS < a->panel_end ? p + IGEMM_DECODED_PANELS : a->panel_end;
        for (t.u_begin = 0; t.u_begin < b->n_units; t.u_begin = t.u_end) {
            const int64_t k = b->units[t.u_begin].k;
            t.u_end = t.u_begin + 1;
            while (t.u_end < b->n_units && b->units[t.u_end].k + b->units[t.u_end].n - k <= IGEMM_CHUNK) t.u_end++;
            t.is_continued = b->k + k > 0;
            for (int64_t q = p; q < p_end; q++) way->decode(&decoded[q - p], b, q, t.u_begin, t.u_end);
            igemm_look_ahead(&t, p);
            igemm_row_tiles(&t, way->sizes[1], IGEMM_MANY_SIZES, p, p_end);
        }
    }
}

static inline void igemm_block_run(const igemm_way *way, const igemm_block *b, bool are_many) {
    if (are_many) {
        igemm_decoded(way, b);
        return;
    }
    const neap_gemm_args *a = b->a;
    igemm_tile t = {.b = b, .u_end = b->n_units, .is_continued = b->k > 0};
    for (int64_t p = a->panel_begin; p < a->panel_end; p += IGEMM_TILE_PANELS)
        igemm_row_tiles(&t, way->sizes[0], IGEMM_DIRECT_SIZES, p,
                        a->panel_end - p < IGEMM_TILE_PANELS ? a->panel_end : p + IGEMM_TILE_PANELS);
}

static inline void igemm_blocks(const igemm_way *way, const neap_gemm_args *a) {
    for (int64_t row = 0; row < a->m; row += IGEMM_ROWS) { /* more rows at once leave the caches: slower */
        igemm_block b;
        neap_gemm_args part = *a;
        const bool are_many = a->m - row > 4;
        if (part.m > row + IGEMM_ROWS) part.m = row + IGEMM_ROWS;
        for (int64_t k = 0; k < a->w->k; k += b.n_k) {
            igemm_block_begin(&b, &part, way->is_pairs[are_many], row, 1, k);
            igemm_quantize(&b);
            for (b.a = a; b.a && neap_gemm_shares(a, b.a); b.a = b.a->also) igemm_block_run(way, &b, are_many);
        }
    }
}

IGEMM_DIRECT(IGEMM_DIRECT_BODY, MXFP4, 1)
IGEMM_DIRECT(IGEMM_DIRECT_BODY, MXFP4, 2)
IGEMM_MANY(IGEMM_MANY_BODY, MXFP4, 0, 1)
#if defined(IGEMM_DPBUSD)
IGEMM_MANY(IGEMM_MANY_BODY, MXFP4, 0, 2)
IGEMM_DIRECT(IGEMM_DIRECT_BODY, INT8, 1)
IGEMM_DIRECT(IGEMM_DIRECT_BODY, INT8, 2)
IGEMM_MANY(IGEMM_MANY_BODY, INT8, 0, 1)
IGEMM_MANY(IGEMM_MANY_BODY, INT8, 0, 2)
#else
IGEMM_MANY(IGEMM_MANY_BODY, MXFP4, 1, 1)
IGEMM_DIRECT(IGEMM_PAIRS_BODY, INT8, 1)
IGEMM_MANY(IGEMM_MANY_BODY, INT8, 1, 1)
#endif

static inline void igemm_INT8(const neap_gemm_args *a) {
#if defined(IGEMM_DPBUSD)
    static const igemm_size few[2][IGEMM_DIRECT_SIZES] = {{IGEMM_DIRECT(IGEMM_DIRECT_ENTRY, INT8, 2)},
                                                          {IGEMM_DIRECT(IGEMM_DIRECT_ENTRY, INT8, 1)}},
                            many[2][IGEMM_MANY_SIZES] = {{IGEMM_MANY(IGEMM_MANY_ENTRY, INT8, 0, 2)},
                                                         {IGEMM_MANY(IGEMM_MANY_ENTRY, INT8, 0, 1)}};
    static const igemm_way ways[2] = {{{false, false}, {few[0], many[0]}, igemm_decode_INT8_0},
                                      {{false, false}, {few[1], many[1]}, igemm_decode_INT8_0}};
    igemm_blocks(&ways[a->x_form == NEAP_X_INT8], a);
#else
    static const igemm_size few[] = {IGEMM_DIRECT(IGEMM_PAIRS_ENTRY, INT8, 1)},
                            many[] = {IGEMM_MANY(IGEMM_MANY_ENTRY, INT8, 1, 1)};
    static const igemm_way way = {{true, true}, {few, many}, igemm_decode_INT8_1};
    igemm_blocks(&way, a);
#endif
}

static inline void igemm_MXFP4(const neap_gemm_args *a) {
    static const igemm_size few[2][IGEMM_DIRECT_SIZES] = {{IGEMM_DIRECT(IGEMM_DIRECT_ENTRY, MXFP4, 2)},
                                                          {IGEMM_DIRECT(IGEMM_DIRECT_ENTRY, MXFP4, 1)}};
#if defined(IGEMM_DPBUSD)
    static const igemm_size many16[] = {IGEMM_MANY(IGEMM_MANY_ENTRY, MXFP4, 0, 2)};
    static const igemm_way way16 = {{false, false}, {few[0], many16}, igemm_decode_MXFP4_0};
#else
    static const igemm_size many16[] = {IGEMM_MANY(IGEMM_MANY_ENTRY, MXFP4, 1, 1)};
    static const igemm_way way16 = {{false, true}, {few[0], many16}, igemm_decode_MXFP4_1};
#endif
    static const igemm_size many8[] = {IGEMM_MANY(IGEMM_MANY_ENTRY, MXFP4, 0, 1)};
    static const igemm_way way8 = {{false, false}, {few[1], many8}, igemm_decode_MXFP4_0};
    igemm_blocks(a->x_form == NEAP_X_INT8 ? &way8 : &way16, a);
}

static inline void igemm_fill(neap_kernels *k) {
    k->gemm_int[NEAP_MATRIX_INT8] = igemm_INT8;
    k->gemm_int[NEAP_MATRIX_MXFP4] = igemm_MXFP4;
}
#endif

#endif
