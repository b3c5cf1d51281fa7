/* BF16 weights times F32 activations on AMX tiles, without giving up F32 exactness.
 *
 * An F32 value is the exact sum of three BF16 values (8 + 8 + 8 bits of mantissa, cut off, not rounded). So
 *   sum_k x[k] w[k] = sum_k (lo[k] + mid[k] + hi[k]) w[k]
 * is three tile products with exact products and F32 accumulation. Per block of 32 k, ascending, the tile
 * instruction adds lo, then mid, then hi. The order inside the instruction is the processor's own: results differ
 * in the last bits from the chain of the other versions (measured error below theirs), but a row still depends on
 * nothing but itself, so batches, chunks and threads give the same bits.
 *
 * A panel of the BF16 layout is already a row of tiles: 16 lines = 32 k x 16 outputs.
 *   for blocks of rows and of k: split the activations into scratch (kept in the second cache)
 *     for panels: tiles of 32 rows x 32 outputs, or of up to 16 rows x 64 outputs; sums wait in y between blocks
 * Tails of rows, outputs and k are tile shapes: nothing outside is read or written. */
#include <string.h>

#include "kernels/families.h"
#include "kernels/x86/tiles.h"
#include "kernels/x86/vec.h"

enum {
    ROWS_MAX = 256, /* of a block: 3 * 2 * 256 * 256 bytes of split activations = NEAP_GEMM_SCRATCH */
    K_MAX = 256,
    TILE_K = 32,
    PARTS = 3,
    AHEAD = 2048 /* bytes of weights prefetched when one row streams them */
};
_Static_assert(PARTS * 2 * ROWS_MAX * K_MAX == NEAP_GEMM_SCRATCH, "scratch");

typedef struct block {
    const neap_gemm_args *a;
    const uint16_t *parts; /* [PARTS][n_rows][k padded to TILE_K] hi, mid, lo */
    int64_t row, n_rows;
    int64_t k, n_k, ld; /* ld: padded n_k */
    bool is_first;      /* sums start at 0, else they are in y */
} block;

/* ---- splitting ---- */

/* 16 values -> their three parts. Infinities and NaN are in hi alone. */
static inline void split16(__m512 x, __m256i part[PARTS]) {
    const __m512i top = _mm512_set1_epi32((int)0xffff0000), exponent = _mm512_set1_epi32(0x7f800000);
    for (int i = 0; i < PARTS; i++) {
        __m512i bits = _mm512_castps_si512(x), cut = _mm512_and_si512(bits, top);
        __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
        /* a NaN whose payload is cut off stays a NaN */
        __mmask16 nan = special & _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x007fffff));
        cut = _mm512_mask_or_epi32(cut, nan, cut, _mm512_set1_epi32(0x00400000));
        part[i] = _mm512_cvtepi32_epi16(_mm512_srli_epi32(cut, 16));
        x = _mm512_maskz_sub_ps((__mmask16)~special, x, _mm512_castsi512_ps(cut));
    }
}

static void split_rows(const block *b, uint16_t *parts) {
    const neap_gemm_args *a = b->a;
    int64_t plane = b->n_rows * b->ld;
    for (int64_t i = 0; i < b->n_rows; i++) {
        int64_t row = b->row + i;
        const float *x = a->x + (a->rows ? a->rows[row] : row) * a->ldx + b->k;
        for (int64_t k = 0; k < b->ld; k += 16) { /* zeros up to the padded end */
            int64_t left = b->n_k - k;
            __mmask16 m = left >= 16 ? (__mmask16)0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
            __m256i part[PARTS];
            split16(_mm512_maskz_loadu_ps(m, x + k), part);
            for (int p = 0; p < PARTS; p++)
                _mm256_storeu_si256((__m256i *)(void *)(parts + p * plane + i * b->ld + k), part[p]);
        }
    }
}

/* ---- tiles: C 0..3, B 4 5, A 6 7 ---- */

/* Rows of the upper and lower activation tile, output columns, k values of a step (even). */
static void shape(int64_t upper, int64_t lower, bool is_wide, int64_t columns, int64_t k) {
    tile_shapes s;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int t = 0; t < 8; t++) {
        bool is_b = t == 4 || t == 5, is_low = is_wide ? false : t == 2 || t == 3 || t == 7;
        s.rows[t] = (uint8_t)(is_b ? k / 2 : is_low ? lower : upper);
        s.bytes[t] = (uint16_t)(t >= 6 ? 2 * k : 4 * columns);
        if (s.rows[t] == 0) s.rows[t] = 1;
    }
    tiles_load_shapes(&s);
}

/* Steps of one block of k that have the same shape: [begin, end) by TILE_K, the last may be short. */
typedef struct span {
    int64_t begin, end, step_k;
} span;

static inline const char *panel_at(const block *b, int64_t panel) {
    return (const char *)b->a->w->panels + panel * b->a->w->panel_bytes + b->k * 2 * NEAP_PANEL;
}

/* 2 tiles of rows x 2 panels (the second only if is_pair). */
static void tile_tall(const block *b, int64_t row, bool has_lower, int64_t panel, bool is_pair, const span *s,
                      bool is_first) {
    const neap_gemm_args *a = b->a;
    size_t ldy = (size_t)a->ldy * sizeof(float), lda = (size_t)b->ld * sizeof(uint16_t);
    float *y = a->y + (b->row + row) * a->ldy + panel * NEAP_PANEL, *low = y + 16 * a->ldy;
    const char *w0 = panel_at(b, panel), *w1 = w0 + a->w->panel_bytes;
    int64_t plane = b->n_rows * b->ld;
    if (is_first) {
        _tile_zero(0);
        if (is_pair) _tile_zero(1);
        if (has_lower) _tile_zero(2);
        if (has_lower && is_pair) _tile_zero(3);
    } else {
        _tile_loadd(0, y, ldy);
        if (is_pair) _tile_loadd(1, y + NEAP_PANEL, ldy);
        if (has_lower) _tile_loadd(2, low, ldy);
        if (has_lower && is_pair) _tile_loadd(3, low + NEAP_PANEL, ldy);
    }
    for (int64_t k = s->begin; k < s->end; k += TILE_K) {
        _tile_loadd(4, w0 + k * 2 * NEAP_PANEL, 64);
        if (is_pair) _tile_loadd(5, w1 + k * 2 * NEAP_PANEL, 64);
        for (int p = PARTS - 1; p >= 0; p--) {
            const uint16_t *x = b->parts + p * plane + row * b->ld + k;
            _tile_loadd(6, x, lda);
            _tile_dpbf16ps(0, 6, 4);
            if (is_pair) _tile_dpbf16ps(1, 6, 5);
            if (!has_lower) continue;
            _tile_loadd(7, x + 16 * b->ld, lda);
            _tile_dpbf16ps(2, 7, 4);
            if (is_pair) _tile_dpbf16ps(3, 7, 5);
        }
    }
    _tile_stored(0, y, ldy);
    if (is_pair) _tile_stored(1, y + NEAP_PANEL, ldy);
    if (has_lower) _tile_stored(2, low, ldy);
    if (has_lower && is_pair) _tile_stored(3, low + NEAP_PANEL, ldy);
}

/* 1 tile of rows x 4 whole panels: the weights stream by. */
static void tile_wide(const block *b, int64_t row, int64_t panel, const span *s, bool is_first) {
    const neap_gemm_args *a = b->a;
    size_t ldy = (size_t)a->ldy * sizeof(float), lda = (size_t)b->ld * sizeof(uint16_t);
    float *y = a->y + (b->row + row) * a->ldy + panel * NEAP_PANEL;
    const char *w = panel_at(b, panel);
    int64_t plane = b->n_rows * b->ld, next = a->w->panel_bytes;
    if (is_first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, y, ldy);
        _tile_loadd(1, y + NEAP_PANEL, ldy);
        _tile_loadd(2, y + 2 * NEAP_PANEL, ldy);
        _tile_loadd(3, y + 3 * NEAP_PANEL, ldy);
    }
    for (int64_t k = s->begin; k < s->end; k += TILE_K) {
        const char *v = w + k * 2 * NEAP_PANEL;
        const uint16_t *x = b->parts + row * b->ld + k;
        for (int64_t q = 0; q < 4; q++)
            for (int64_t l = 0; l < 1024; l += 64) _mm_prefetch(v + q * next + AHEAD + l, _MM_HINT_T0);
        _tile_loadd(4, v, 64);
        _tile_loadd(5, v + next, 64);
        _tile_loadd(6, x + 2 * plane, lda);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(7, x + plane, lda);
        _tile_dpbf16ps(0, 7, 4);
        _tile_dpbf16ps(1, 7, 5);
        _tile_loadd(6, x, lda);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(4, v + 2 * next, 64);
        _tile_loadd(5, v + 3 * next, 64);
        _tile_loadd(7, x + 2 * plane, lda);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
        _tile_loadd(6, x + plane, lda);
        _tile_dpbf16ps(2, 6, 4);
        _tile_dpbf16ps(3, 6, 5);
        _tile_loadd(7, x, lda);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, y, ldy);
    _tile_stored(1, y + NEAP_PANEL, ldy);
    _tile_stored(2, y + 2 * NEAP_PANEL, ldy);
    _tile_stored(3, y + 3 * NEAP_PANEL, ldy);
}

/* ---- a block: all panels for its rows and its k ---- */

static void run_span(const block *b, const span *s, bool is_first) {
    const neap_gemm_args *a = b->a;
    int64_t whole = a->w->n / NEAP_PANEL, end = a->panel_end < whole ? a->panel_end : whole;
    int64_t edge = a->w->n % NEAP_PANEL;
    bool has_edge = a->panel_end > whole && edge > 0;
    int64_t twins = b->n_rows / 32 * 32, rest = b->n_rows - twins; /* rows that are not in tiles of 32 */
    int64_t upper = rest < 16 ? rest : 16, lower = rest - upper;
    if (twins > 0) {
        shape(16, 16, false, NEAP_PANEL, s->step_k);
        for (int64_t p = a->panel_begin; p < end; p += 2)
            for (int64_t r = 0; r < twins; r += 32) tile_tall(b, r, true, p, p + 1 < end, s, is_first);
    }
    if (rest > 0) {
        int64_t p = a->panel_begin;
        if (lower == 0) {
            shape(upper, 0, true, NEAP_PANEL, s->step_k);
            for (; p + 4 <= end; p += 4) tile_wide(b, twins, p, s, is_first);
        }
        if (p < end) shape(upper, lower, false, NEAP_PANEL, s->step_k);
        for (; p < end; p += 2) tile_tall(b, twins, lower > 0, p, p + 1 < end, s, is_first);
    }
    if (!has_edge) return;
    for (int64_t r = 0; r < b->n_rows; r += 16) {
        int64_t n = b->n_rows - r < 16 ? b->n_rows - r : 16;
        shape(n, 0, false, edge, s->step_k);
        tile_tall(b, r, false, whole, false, s, is_first);
    }
}

static void run_block(const block *b) {
    int64_t even = (b->n_k + 1) / 2 * 2; /* the panels are padded to an even k with zeros */
    int64_t whole = even / TILE_K * TILE_K;
    if (whole > 0) run_span(b, &(span){0, whole, TILE_K}, b->is_first);
    if (even > whole) run_span(b, &(span){whole, even, even - whole}, b->is_first && whole == 0);
}

/* ---- one row ----
 *
 * Tiles stream weights slower than plain loads do (13 against 16 GB/s on one core), so a single row goes through
 * vectors that repeat the tile instruction's own arithmetic, bit by bit: per step of 32 k and part, one chain over the
 * even and one over the odd k, both from 0, then acc += even + odd; subnormal inputs and results are zeros. */

static void split_row(const float *x, int64_t n, float *parts, int64_t ld) {
    for (int64_t k = 0; k < n; k += 16) {
        __mmask16 m = n - k >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - k)) - 1);
        __m256i part[PARTS];
        split16(_mm512_maskz_loadu_ps(m, x + k), part);
        for (int p = 0; p < PARTS; p++) {
            __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(part[p]), 16);
            _mm512_storeu_ps(parts + p * ld + k, _mm512_castsi512_ps(wide));
        }
    }
}

/* Outputs of n_panels (a constant 1 or 2) panels. */
V_INLINE void row_panels(const neap_gemm_args *a, const float *parts, int64_t ld, int64_t panel, const int n_panels) {
    const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
    const char *w = (const char *)a->w->panels + panel * a->w->panel_bytes;
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t k = 0; k < a->w->k; k += TILE_K) {
        int64_t end = a->w->k - k < TILE_K ? a->w->k : k + TILE_K;
        __m512 sum[2][PARTS][2];
        V_UNROLL for (int q = 0; q < n_panels; q++) V_UNROLL for (int p = 0; p < PARTS; p++) sum[q][p][0] =
            sum[q][p][1] = _mm512_setzero_ps();
        for (int64_t e = k; e < end; e += 2) {
            V_UNROLL for (int q = 0; q < n_panels; q++) {
                const char *line = w + q * a->w->panel_bytes + e * 2 * NEAP_PANEL;
                _mm_prefetch(line + AHEAD, _MM_HINT_T0);
                __m512i v = _mm512_load_si512((const void *)line);
                __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
                __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(v, odd));
                V_UNROLL for (int p = 0; p < PARTS; p++) {
                    sum[q][p][0] = _mm512_fmadd_ps(_mm512_set1_ps(parts[p * ld + e]), w0, sum[q][p][0]);
                    sum[q][p][1] = _mm512_fmadd_ps(_mm512_set1_ps(parts[p * ld + e + 1]), w1, sum[q][p][1]);
                }
            }
        }
        V_UNROLL for (int q = 0; q < n_panels; q++) V_UNROLL for (int p = PARTS - 1; p >= 0; p--) acc[q] =
            _mm512_add_ps(acc[q], _mm512_add_ps(sum[q][p][0], sum[q][p][1]));
    }
    V_UNROLL for (int q = 0; q < n_panels; q++) {
        int64_t left = a->w->n - (panel + q) * NEAP_PANEL;
        __mmask16 m = left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
        _mm512_mask_storeu_ps(a->y + (panel + q) * NEAP_PANEL, m, acc[q]);
    }
}

static void gemv_bf16(const neap_gemm_args *a) {
    enum { FLUSH = 0x8040 }; /* of MXCSR: flush to zero, subnormals are zeros */
    int64_t ld = (a->w->k + 31) / 32 * 32, p = a->panel_begin;
    float *parts = a->scratch;
    split_row(a->x + (a->rows ? a->rows[0] : 0) * a->ldx, a->w->k, parts, ld); /* padded to 16 with zeros */
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH);
    for (; p + 2 <= a->panel_end; p += 2) row_panels(a, parts, ld, p, 2);
    if (p < a->panel_end) row_panels(a, parts, ld, p, 1);
    _mm_setcsr(mode);
}

static void gemm_bf16(const neap_gemm_args *a) {
    if (a->m == 1 && (a->w->k + 31) / 32 * 32 * PARTS * (int64_t)sizeof(float) <= NEAP_GEMM_SCRATCH) {
        gemv_bf16(a);
        return;
    }
    uint16_t *parts = a->scratch;
    for (int64_t row = 0; row < a->m; row += ROWS_MAX) {
        block b = {.a = a, .parts = parts, .row = row};
        b.n_rows = a->m - row < ROWS_MAX ? a->m - row : ROWS_MAX;
        int64_t k_max = ROWS_MAX * K_MAX / b.n_rows / TILE_K * TILE_K; /* few rows: long runs through each panel */
        for (; b.k < a->w->k; b.k += k_max) {
            b.n_k = a->w->k - b.k < k_max ? a->w->k - b.k : k_max;
            b.ld = (b.n_k + TILE_K - 1) / TILE_K * TILE_K;
            b.is_first = b.k == 0;
            split_rows(&b, parts);
            run_block(&b);
        }
    }
    _tile_release();
}

void neap_gemm_amx_init(neap_kernels *k) { k->gemm[NEAP_MATRIX_BF16] = gemm_bf16; }
