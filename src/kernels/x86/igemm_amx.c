/* y = x W^T with x in integers on AMX tiles (neap_x_form in kernels.h): the bits of igemm_scalar.c, for sums are exact.
 *
 *   A   16 rows of x, 64 k: one plane of bytes (hi, lo) from igemm_rows.h; rows behind the last are not used
 *   B   64 k of a panel: INT8 panels are rows of such tiles as they are stored, MXFP4 is decoded into the first cache
 *   C   16 x 16 sums of a unit, one tile per plane and panel
 *
 * Two panels side by side share the tiles of A. After each unit the sums leave the tiles, are put together, converted
 * and join the float chains; that, not the tile products, is most of the time of short units (32 k of MXFP4).
 *
 * Few rows, and sizes that are not whole tiles (k or INT8 groups that 64 does not divide, k that 32 does not), go
 * through AVX512-VNNI, which has the same bits. */
#include "kernels/x86/igemm_vec.h"
#include "kernels/x86/tiles.h"

enum {
    AMX_K = 64,
    AMX_ROWS = 16,
    AMX_PANELS = 2,
    AMX_CHUNK = 512,  /* k of two decoded panels */
    AMX_AHEAD = 2048, /* bytes of weights prefetched */
    AMX_BATCH = 4,    /* units whose sums leave the tiles before they are joined */
    AMX_MIN_ROWS = 5
};

/* Tiles: C 0..3 (plane + 2 * panel), B 4 5, A 6 7 (planes). k values of a step: 64 or 32. */
static void shape(int64_t k) {
    tile_shapes s;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int t = 0; t < 8; t++) {
        s.rows[t] = (uint8_t)(t == 4 || t == 5 ? k / 4 : AMX_ROWS);
        s.bytes[t] = (uint16_t)(t >= 6 ? k : 64);
    }
    tiles_load_shapes(&s);
}

/* Sums of one plane or two, 16 rows x 1 or 2 panels, for steps of 64 or one of 32 k. */
V_INLINE void products(const int planes, const int panels, const char *a_hi, const char *a_lo, int64_t lda,
                       const char *b0, const char *b1, int64_t steps) {
    _tile_zero(0);
    if (planes == 2) _tile_zero(1);
    if (panels == 2) _tile_zero(2);
    if (planes == 2 && panels == 2) _tile_zero(3);
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, b0 + s * 1024, 64);
        _tile_loadd(6, a_hi + s * AMX_K, (size_t)lda);
        _tile_dpbssd(0, 6, 4);
        if (panels == 2) {
            _tile_loadd(5, b1 + s * 1024, 64);
            _tile_dpbssd(2, 6, 5);
        }
        if (planes == 1) continue;
        _tile_loadd(7, a_lo + s * AMX_K, (size_t)lda);
        _tile_dpbssd(1, 7, 4);
        if (panels == 2) _tile_dpbssd(3, 7, 5);
    }
}

/* Sums of up to AMX_BATCH units of two panels, as they leave the tiles. */
typedef int32_t unit_sums[AMX_PANELS][2][AMX_ROWS][16];

/* The float chains of panel q go on with the sums of n units. w_scale: [units][AMX_PANELS][16]. */
V_INLINE void join(const int planes, const int n, float acc[AMX_ROWS][16], const unit_sums *sums, int64_t q,
                   const float *w_scale, const float *x_scale, int64_t ld_scale, int64_t rows) {
    __m512 w[AMX_BATCH];
    V_UNROLL for (int i = 0; i < n; i++) w[i] = _mm512_load_ps(w_scale + (i * AMX_PANELS + q) * 16);
    for (int64_t r = 0; r < rows; r++, x_scale += ld_scale) {
        __m512 chain = _mm512_load_ps(acc[r]);
        V_UNROLL for (int i = 0; i < n; i++) {
            __m512i v = _mm512_load_si512(sums[i][q][0][r]);
            if (planes == 2) v = _mm512_add_epi32(_mm512_slli_epi32(v, 8), _mm512_load_si512(sums[i][q][1][r]));
            chain = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v), _mm512_mul_ps(w[i], _mm512_set1_ps(x_scale[i])), chain);
        }
        _mm512_store_ps(acc[r], chain);
    }
}

/* Where the operands of two panels lie for units [u_begin, u_end) of the block. */
typedef struct strip {
    const igemm_block *b;
    int64_t panel, panels;
    int64_t u_begin, u_end;
    const char *lines[AMX_PANELS]; /* B from the first unit's k on */
    const float *scales;           /* [units][AMX_PANELS][16] */
    bool is_continued;
} strip;

V_INLINE void row_tile(const int planes, const int panels, const strip *s, int64_t row) {
    _Alignas(64) float acc[AMX_PANELS][AMX_ROWS][16];
    _Alignas(64) unit_sums sums[AMX_BATCH];
    const igemm_block *b = s->b;
    const neap_gemm_args *a = b->a;
    const int64_t rows = b->n_rows - row < AMX_ROWS ? b->n_rows - row : AMX_ROWS, k0 = b->units[s->u_begin].k;
    const char *hi = igemm_row(b, 0, row), *lo = igemm_row(b, planes - 1, row);
    float *y = a->y + (b->row + row) * a->ldy + s->panel * NEAP_PANEL;
    const int64_t left = a->w->n - s->panel * NEAP_PANEL;
    for (int q = 0; q < panels; q++)
        for (int64_t r = 0; r < rows; r++)
            _mm512_store_ps(acc[q][r], s->is_continued
                                           ? v_load_n(y + r * a->ldy + q * NEAP_PANEL, left - q * NEAP_PANEL)
                                           : v_zero());
    for (int64_t u = s->u_begin, n; u < s->u_end; u += n) {
        n = s->u_end - u < AMX_BATCH ? 1 : AMX_BATCH;
        for (int64_t i = 0; i < n; i++) {
            const igemm_unit unit = b->units[u + i];
            const int64_t at = (unit.k - k0) * NEAP_PANEL, steps = unit.n > AMX_K ? unit.n / AMX_K : 1;
            products(planes, panels, hi + unit.k, lo + unit.k, b->ld, s->lines[0] + at, s->lines[1] + at, steps);
            _tile_stored(0, sums[i][0][0], 64);
            if (planes == 2) _tile_stored(1, sums[i][0][1], 64);
            if (panels == 2) _tile_stored(2, sums[i][1][0], 64);
            if (planes == 2 && panels == 2) _tile_stored(3, sums[i][1][1], 64);
        }
        const float *w_scale = s->scales + (u - s->u_begin) * AMX_PANELS * 16,
                    *x_scale = b->scale + row * b->n_units + u;
        V_UNROLL for (int q = 0; q < panels; q++) {
            if (n == AMX_BATCH)
                join(planes, AMX_BATCH, acc[q], (const unit_sums *)sums, q, w_scale, x_scale, b->n_units, rows);
            else
                join(planes, 1, acc[q], (const unit_sums *)sums, q, w_scale, x_scale, b->n_units, rows);
        }
    }
    for (int q = 0; q < panels; q++)
        for (int64_t r = 0; r < rows; r++)
            v_store_n(y + r * a->ldy + q * NEAP_PANEL, _mm512_load_ps(acc[q][r]), left - q * NEAP_PANEL);
}

static void strip_tiles(const strip *s) {
    const bool is_wide = s->panels == 2;
    for (int64_t row = 0; row < s->b->n_rows; row += AMX_ROWS) {
        if (s->b->a->x_form == NEAP_X_INT16) {
            if (is_wide)
                row_tile(2, 2, s, row);
            else
                row_tile(2, 1, s, row);
        } else if (is_wide) {
            row_tile(1, 2, s, row);
        } else {
            row_tile(1, 1, s, row);
        }
    }
}

/* Codes of MXFP4 as signed bytes in the order of INT8 panels. */
static void decode(char *to, const neap_matrix *w, int64_t panel, int64_t k, int64_t n) {
    const uint8_t *line = panel_line_at(NEAP_MATRIX_MXFP4, (const uint8_t *)w->panels + panel * w->panel_bytes, k);
    for (int64_t e = k; e < k + n; e += 8, line += PANEL_LINE, to += 2 * PANEL_LINE) {
        if (e > k && e % 128 == 0) line += PANEL_LINE; /* the scales of a super-block */
        _mm_prefetch((const char *)line + AMX_AHEAD, _MM_HINT_T0);
        vec_int bytes[2];
        igemm_doubled(line, 0, bytes);
        _mm512_store_si512(to, bytes[0]);
        _mm512_store_si512(to + PANEL_LINE, bytes[1]);
    }
}

static void block_tiles(const igemm_block *b, const int kind) {
    _Alignas(64) char lines[AMX_PANELS][AMX_CHUNK * NEAP_PANEL];
    _Alignas(64) float scales[AMX_CHUNK / 32 * AMX_PANELS * 16];
    const neap_gemm_args *a = b->a;
    const neap_matrix *w = a->w;
    for (int64_t p = a->panel_begin; p < a->panel_end; p += AMX_PANELS) {
        strip s = {.b = b, .panel = p, .panels = a->panel_end - p < AMX_PANELS ? 1 : 2, .scales = scales};
        for (; s.u_begin < b->n_units; s.u_begin = s.u_end) {
            const int64_t k = b->units[s.u_begin].k;
            for (s.u_end = s.u_begin; s.u_end < b->n_units; s.u_end++)
                if (b->units[s.u_end].k + b->units[s.u_end].n - k > AMX_CHUNK) break;
            const int64_t end = b->units[s.u_end - 1].k + b->units[s.u_end - 1].n;
            s.is_continued = b->k + k > 0;
            for (int64_t q = 0; q < s.panels; q++) {
                const char *stored = (const char *)w->panels + (p + q) * w->panel_bytes + (b->k + k) * NEAP_PANEL;
                s.lines[q] = kind == NEAP_MATRIX_INT8 ? stored : lines[q];
                if (kind == NEAP_MATRIX_MXFP4) decode(lines[q], w, p + q, b->k + k, end - k);
                for (int64_t u = s.u_begin; u < s.u_end; u++)
                    _mm512_store_ps(scales + ((u - s.u_begin) * AMX_PANELS + q) * 16,
                                    igemm_scale(kind, w, p + q, b->units[u].group).v[0]);
            }
            if (s.panels == 1) s.lines[1] = s.lines[0];
            strip_tiles(&s);
        }
    }
}

/* Are all units whole tiles? */
static bool fits(const neap_matrix *w) {
    if (w->kind == NEAP_MATRIX_MXFP4) return w->k % 32 == 0;
    return w->k % AMX_K == 0 && (w->group % AMX_K == 0 || w->group >= w->k);
}

V_INLINE void igemm(const int kind, const neap_gemm_args *a, void (*vector)(const neap_gemm_args *)) {
    if (a->m < AMX_MIN_ROWS || !fits(a->w)) {
        vector(a);
        return;
    }
    shape(kind == NEAP_MATRIX_MXFP4 ? 32 : AMX_K);
    for (int64_t row = 0; row < a->m; row += IGEMM_ROWS_MAX) {
        igemm_block b;
        for (int64_t k = 0; k < a->w->k; k += b.n_k) {
            igemm_block_begin(&b, a, false, row, AMX_ROWS, k);
            igemm_quantize(&b);
            for (b.a = a; b.a && neap_gemm_shares(a, b.a); b.a = b.a->also) block_tiles(&b, kind);
        }
    }
    _tile_release();
}

static void igemm_int8(const neap_gemm_args *a) { igemm(NEAP_MATRIX_INT8, a, igemm_INT8); }
static void igemm_mxfp4(const neap_gemm_args *a) { igemm(NEAP_MATRIX_MXFP4, a, igemm_MXFP4); }

void neap_igemm_amx_init(neap_kernels *k) {
    k->gemm_int[NEAP_MATRIX_INT8] = igemm_int8;
    k->gemm_int[NEAP_MATRIX_MXFP4] = igemm_mxfp4;
}
