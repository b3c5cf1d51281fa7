/* The panel layout of weight matrices: sizes, packing, and reading back.
 *
 * A panel is 16 outputs. Inside it one 64-byte line holds, for each of the 16 outputs, the k values that share
 * a 32-bit lane: 1 (F32), 2 (BF16), 4 (INT8, FP8) or 8 (MXFP4, as nibbles). A kernel that walks the lines from the
 * first to the last therefore sees ascending k for 16 outputs at once, whatever its vector width.
 *
 * Packing is done once at load, one range of panels per call, so that threads can share it; it writes every
 * byte of its panels (padding included: kernels may read it) and counts values that are not finite.
 * Owns nothing. The layout is drawn in matrix.h; source of the formats: docs/numerics.md section 9. */
#include "tensor/matrix.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tensor/codec.h"

enum { LINE = 64, SUPER = 128, SUPER_LINES = 17 };

static const char *const kind_names[NEAP_MATRIX_KINDS] = {"f32", "bf16", "int8", "fp8", "mxfp4"};

const char *neap_matrix_kind_name(neap_matrix_kind kind) { return kind_names[kind]; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void neap_matrix_shape(neap_matrix *m, neap_matrix_kind kind, int64_t n, int64_t k) {
    assert(n >= 1 && n <= INT64_C(1) << 31);
    assert(k >= 1 && k <= INT64_C(1) << 31);
    *m = (neap_matrix){.kind = kind, .n = n, .k = k};
    switch (kind) {
    case NEAP_MATRIX_F32: m->panel_bytes = k * LINE; break;
    case NEAP_MATRIX_BF16: m->panel_bytes = ceil_div(k, 2) * LINE; break;
    case NEAP_MATRIX_INT8: neap_matrix_shape_int8(m, n, k, NEAP_INT8_GROUP); break;
    case NEAP_MATRIX_FP8: m->panel_bytes = ceil_div(k, 4) * LINE; break;
    case NEAP_MATRIX_MXFP4: m->panel_bytes = ceil_div(k, SUPER) * SUPER_LINES * LINE; break;
    case NEAP_MATRIX_KINDS: assert(0);
    }
}

void neap_matrix_shape_int8(neap_matrix *m, int64_t n, int64_t k, int64_t group) {
    assert(n >= 1 && n <= INT64_C(1) << 31);
    assert(k >= 1 && k <= INT64_C(1) << 31);
    assert(group >= 1 && (group % 4 == 0 || group >= k));
    int64_t padded = ceil_div(k, 4) * 4;
    *m = (neap_matrix){.kind = NEAP_MATRIX_INT8, .n = n, .k = k, .panel_bytes = ceil_div(k, 4) * LINE};
    m->group = group < padded ? group : padded;
}

uint64_t neap_matrix_panel_bytes(const neap_matrix *m) {
    return (uint64_t)neap_matrix_panels(m) * (uint64_t)m->panel_bytes;
}

int64_t neap_matrix_scale_count(const neap_matrix *m) {
    if (m->kind == NEAP_MATRIX_INT8) return neap_matrix_panels(m) * neap_matrix_groups(m) * NEAP_PANEL;
    return m->kind == NEAP_MATRIX_FP8 ? ceil_div(m->n, 128) * ceil_div(m->k, 128) : 0;
}

void neap_matrix_pack_scales(const neap_matrix *m, float *dst, const float *rows) {
    assert(m->kind == NEAP_MATRIX_INT8);
    int64_t groups = neap_matrix_groups(m), padded = neap_matrix_panels(m) * NEAP_PANEL;
    for (int64_t i = 0; i < padded; i++)
        for (int64_t g = 0; g < groups; g++)
            dst[(i / NEAP_PANEL * groups + g) * NEAP_PANEL + i % NEAP_PANEL] = i < m->n ? rows[i * groups + g] : 0;
}

/* ---- packing ---- */

/* The scale of element (i, j) of an FP8 source. */
static float source_scale(const neap_matrix *m, const neap_pack_source *s, int64_t i, int64_t j) {
    bool is_transposed = s->row_stride == 1 && s->col_stride != 1;
    int64_t row = (is_transposed ? j : i) + s->scale_row, col = (is_transposed ? i : j) + s->scale_col;
    int64_t ld = s->scale_ld ? s->scale_ld : ceil_div(is_transposed ? m->n : m->k, 128);
    return s->scale_inv[row / 128 * ld + col / 128];
}

static float source_value(const neap_matrix *m, const neap_pack_source *s, int64_t i, int64_t j) {
    int64_t at = i * s->row_stride + j * s->col_stride;
    switch (s->dtype) {
    case NEAP_DTYPE_F32: return ((const float *)s->data)[at];
    case NEAP_DTYPE_BF16: return neap_bf16_to_f32(((const uint16_t *)s->data)[at]);
    case NEAP_DTYPE_F16: return neap_f16_to_f32(((const uint16_t *)s->data)[at]);
    case NEAP_DTYPE_F8_E4M3: return neap_e4m3_decode(((const uint8_t *)s->data)[at]) * source_scale(m, s, i, j);
    default: assert(!"dtype"); return 0;
    }
}

static int64_t pack_f32(const neap_matrix *m, float *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    int64_t bad = 0;
    for (int64_t o = 0; o < NEAP_PANEL; o++)
        for (int64_t j = 0; j < m->k; j++) {
            float v = o < rows ? source_value(m, s, row + o, j) : 0;
            bad += !isfinite(v);
            panel[j * NEAP_PANEL + o] = v;
        }
    return bad;
}

static int64_t pack_bf16(const neap_matrix *m, uint16_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_BF16);
    int64_t bad = 0, padded = ceil_div(m->k, 2) * 2;
    if (rows < NEAP_PANEL || padded != m->k) memset(panel, 0, (size_t)m->panel_bytes);
    for (int64_t o = 0; o < rows; o++) {
        const uint16_t *in = (const uint16_t *)s->data + (row + o) * s->row_stride;
        for (int64_t j = 0; j < m->k; j++) {
            uint16_t v = in[j * s->col_stride];
            bad += (v & 0x7f80) == 0x7f80;
            panel[(j / 2 * NEAP_PANEL + o) * 2 + j % 2] = v;
        }
    }
    return bad;
}

static int64_t pack_fp8(const neap_matrix *m, uint8_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_F8_E4M3);
    assert(s->scale_inv);
    int64_t bad = 0;
    if (rows < NEAP_PANEL || m->k % 4) memset(panel, 0, (size_t)m->panel_bytes);
    for (int64_t o = 0; o < rows; o++) {
        const uint8_t *in = (const uint8_t *)s->data + (row + o) * s->row_stride;
        float scale = 0;
        for (int64_t j = 0; j < m->k; j++) {
            uint8_t v = in[j * s->col_stride];
            if (j == 0 || (j + (s->row_stride == 1 ? s->scale_row : s->scale_col)) % 128 == 0)
                scale = source_scale(m, s, row + o, j);
            bad += !isfinite(neap_e4m3_decode(v) * scale);
            panel[(j / 4 * NEAP_PANEL + o) * 4 + j % 4] = v;
        }
    }
    return bad;
}

static void pack_int8(const neap_matrix *m, int8_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_I8);
    if (rows < NEAP_PANEL || m->k % 4) memset(panel, 0, (size_t)m->panel_bytes);
    for (int64_t o = 0; o < rows; o++) {
        const int8_t *in = (const int8_t *)s->data + (row + o) * s->row_stride;
        for (int64_t j = 0; j < m->k; j++) panel[(j / 4 * NEAP_PANEL + o) * 4 + j % 4] = in[j * s->col_stride];
    }
}

/* A byte pair of the file (elements 2i, 2i+1) is spread over two bytes of a nibble line. */
static int64_t pack_mxfp4(const neap_matrix *m, uint8_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_U8);
    assert(s->scale_e8m0);
    int64_t bad = 0, groups = ceil_div(m->k, 32);
    memset(panel, 0, (size_t)m->panel_bytes);
    for (int64_t o = 0; o < rows; o++) {
        const uint8_t *in = (const uint8_t *)s->data + (row + o) * s->row_stride;
        const uint8_t *scales = s->scale_e8m0 + (row + o) * groups;
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *super = panel + g / 4 * SUPER_LINES * LINE;
            int64_t end = g * 32 + 32 < m->k ? g * 32 + 32 : m->k;
            super[16 * LINE + g % 4 * NEAP_PANEL + o] = scales[g];
            for (int64_t j = g * 32; j < end; j++) {
                uint8_t code = j % 2 ? in[j / 2] >> 4 : in[j / 2] & 15;
                int64_t in_super = j % SUPER, in_line = j % 8;
                super[in_super / 8 * LINE + o * 4 + in_line % 4] |= (uint8_t)(code << in_line / 4 * 4);
                if (scales[g] >= 253) bad += !isfinite(neap_e2m1_decode(code) * neap_e8m0_decode(scales[g]));
            }
        }
    }
    return bad;
}

int64_t neap_matrix_pack(const neap_matrix *m, void *storage, const neap_pack_source *src, int64_t panel_begin,
                         int64_t panel_end) {
    assert(panel_begin >= 0);
    assert(panel_end <= neap_matrix_panels(m));
    int64_t bad = 0;
    for (int64_t p = panel_begin; p < panel_end; p++) {
        int64_t row = p * NEAP_PANEL, rows = m->n - row < NEAP_PANEL ? m->n - row : NEAP_PANEL;
        void *panel = (char *)storage + p * m->panel_bytes;
        switch (m->kind) {
        case NEAP_MATRIX_F32: bad += pack_f32(m, panel, src, row, rows); break;
        case NEAP_MATRIX_BF16: bad += pack_bf16(m, panel, src, row, rows); break;
        case NEAP_MATRIX_INT8: pack_int8(m, panel, src, row, rows); break;
        case NEAP_MATRIX_FP8: bad += pack_fp8(m, panel, src, row, rows); break;
        case NEAP_MATRIX_MXFP4: bad += pack_mxfp4(m, panel, src, row, rows); break;
        case NEAP_MATRIX_KINDS: assert(0);
        }
    }
    return bad;
}

/* ---- reading back ---- */

float neap_matrix_get(const neap_matrix *m, int64_t i, int64_t j) {
    if (i >= m->n || j >= m->k) return 0;
    const void *panel = (const char *)m->panels + i / NEAP_PANEL * m->panel_bytes;
    int64_t o = i % NEAP_PANEL;
    switch (m->kind) {
    case NEAP_MATRIX_F32: return ((const float *)panel)[j * NEAP_PANEL + o];
    case NEAP_MATRIX_BF16: return neap_bf16_to_f32(((const uint16_t *)panel)[(j / 2 * NEAP_PANEL + o) * 2 + j % 2]);
    case NEAP_MATRIX_INT8: {
        int8_t code = ((const int8_t *)panel)[(j / 4 * NEAP_PANEL + o) * 4 + j % 4];
        return (float)code *
               m->scales[(i / NEAP_PANEL * neap_matrix_groups(m) + j / m->group) * NEAP_PANEL + i % NEAP_PANEL];
    }
    case NEAP_MATRIX_FP8: {
        uint8_t code = ((const uint8_t *)panel)[(j / 4 * NEAP_PANEL + o) * 4 + j % 4];
        return neap_e4m3_decode(code) * m->scales[i / 128 * ceil_div(m->k, 128) + j / 128];
    }
    case NEAP_MATRIX_MXFP4: {
        const uint8_t *super = (const uint8_t *)panel + j / SUPER * SUPER_LINES * LINE;
        int64_t in_super = j % SUPER, in_line = j % 8;
        uint8_t code = super[in_super / 8 * LINE + o * 4 + in_line % 4] >> in_line / 4 * 4 & 15;
        return neap_e2m1_decode(code) * neap_e8m0_decode(super[16 * LINE + in_super / 32 * NEAP_PANEL + o]);
    }
    case NEAP_MATRIX_KINDS: break;
    }
    assert(!"kind");
    return 0;
}

void neap_matrix_unpack_rows(const neap_matrix *m, int64_t row, int64_t n_rows, float *dst, int64_t ld) {
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < m->k; j++) dst[i * ld + j] = neap_matrix_get(m, row + i, j);
}
