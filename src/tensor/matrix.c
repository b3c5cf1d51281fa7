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

/* Rows whose neighbouring inputs are neighbours in memory: a panel is then a transposition of 32-bit words, whatever
 * they hold. Blocks of 16 x 16 words: one line of each row is copied in, one line of the panel after the other is
 * written, so that rows at a power of two apart do not fight for the same places of a cache. What is missing at the
 * end of a row, and missing rows, become zeros. */
typedef struct row_block {
    uint32_t word[NEAP_PANEL][LINE / 4];
} row_block;

static void load_block(row_block *b, const char *src, int64_t stride, int64_t rows, int64_t bytes) {
    if (rows == NEAP_PANEL && bytes == LINE) {
        for (int64_t o = 0; o < NEAP_PANEL; o++) memcpy(b->word[o], src + o * stride, LINE);
        return;
    }
    memset(b, 0, sizeof *b);
    for (int64_t o = 0; o < rows; o++) memcpy(b->word[o], src + o * stride, (size_t)bytes);
}

static void store_block(char *dst, const row_block *b, int64_t lines) {
    for (int64_t j = 0; j < lines; j++, dst += LINE) {
        uint32_t line[NEAP_PANEL];
        for (int64_t o = 0; o < NEAP_PANEL; o++) line[o] = b->word[o][j];
        memcpy(dst, line, sizeof line);
    }
}

static void pack_words(char *panel, const neap_pack_source *s, int64_t row, int64_t rows, int64_t k, int64_t bytes) {
    const char *src = (const char *)s->data + row * s->row_stride * bytes;
    for (int64_t at = 0; at < k * bytes; at += LINE, panel += LINE / 4 * LINE) {
        row_block b;
        int64_t n = k * bytes - at < LINE ? k * bytes - at : LINE;
        load_block(&b, src + at, s->row_stride * bytes, rows, n);
        store_block(panel, &b, ceil_div(n, 4));
    }
}

/* Lines of 16 floats. */
static int64_t count_f32_nonfinite(const float *x, int64_t lines) {
    int64_t bad = 0;
    for (; lines > 0; lines--, x += NEAP_PANEL) {
        int32_t n = 0;
        for (int i = 0; i < NEAP_PANEL; i++) n += !isfinite(x[i]);
        bad += n;
    }
    return bad;
}

static int64_t pack_f32(const neap_matrix *m, float *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    int64_t bad = 0;
    if (s->dtype == NEAP_DTYPE_F32 && s->col_stride == 1) {
        pack_words((char *)panel, s, row, rows, m->k, 4);
        return count_f32_nonfinite(panel, m->k);
    }
    for (int64_t o = 0; o < NEAP_PANEL; o++)
        for (int64_t j = 0; j < m->k; j++) {
            float v = o < rows ? source_value(m, s, row + o, j) : 0;
            bad += !isfinite(v);
            panel[j * NEAP_PANEL + o] = v;
        }
    return bad;
}

/* Lines of 32 BF16 numbers; not finite: all exponent bits are set. */
static int64_t count_bf16_nonfinite(const uint16_t *x, int64_t lines) {
    int64_t bad = 0;
    for (; lines > 0; lines--, x += LINE / 2) {
        uint16_t n = 0;
        for (int i = 0; i < LINE / 2; i++) n = (uint16_t)(n + ((x[i] & 0x7f80) == 0x7f80));
        bad += n;
    }
    return bad;
}

static int64_t pack_bf16(const neap_matrix *m, uint16_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_BF16);
    int64_t bad = 0, padded = ceil_div(m->k, 2) * 2;
    if (s->col_stride == 1) {
        pack_words((char *)panel, s, row, rows, m->k, 2);
        return count_bf16_nonfinite(panel, padded / 2);
    }
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

/* Of one row whose codes are neighbours. Below 2^119 no code (at most 448) overflows: what is left is NaN. */
static int64_t count_fp8_nonfinite(const neap_matrix *m, const neap_pack_source *s, int64_t row) {
    const uint8_t *in = (const uint8_t *)s->data + row * s->row_stride;
    int64_t bad = 0;
    for (int64_t j = 0, end; j < m->k; j = end) {
        float scale = source_scale(m, s, row, j);
        end = j + 128 - (j + s->scale_col) % 128;
        if (end > m->k) end = m->k;
        if (fabsf(scale) < 0x1p119f)
            for (int64_t i = j; i < end; i++) bad += (in[i] & 0x7f) == 0x7f;
        else
            for (int64_t i = j; i < end; i++) bad += !isfinite(neap_e4m3_decode(in[i]) * scale);
    }
    return bad;
}

static int64_t pack_fp8(const neap_matrix *m, uint8_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_F8_E4M3);
    assert(s->scale_inv);
    int64_t bad = 0;
    if (s->col_stride == 1) {
        pack_words((char *)panel, s, row, rows, m->k, 1);
        for (int64_t o = 0; o < rows; o++) bad += count_fp8_nonfinite(m, s, row + o);
        return bad;
    }
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
    if (s->col_stride == 1) {
        pack_words((char *)panel, s, row, rows, m->k, 1);
        return;
    }
    if (rows < NEAP_PANEL || m->k % 4) memset(panel, 0, (size_t)m->panel_bytes);
    for (int64_t o = 0; o < rows; o++) {
        const int8_t *in = (const int8_t *)s->data + (row + o) * s->row_stride;
        for (int64_t j = 0; j < m->k; j++) panel[(j / 4 * NEAP_PANEL + o) * 4 + j % 4] = in[j * s->col_stride];
    }
}

/* Nibbles of eight inputs, k = 0 in the lowest: 76543210 -> 73625140, the order of a nibble line (0 with 4). */
static void order_nibbles(row_block *b) {
    for (int64_t o = 0; o < NEAP_PANEL; o++)
        for (int64_t j = 0; j < LINE / 4; j++) {
            uint32_t w = b->word[o][j], low = w & 0xffff, high = w >> 16;
            low = (low | low << 8) & 0x00ff00ff;
            low = (low | low << 4) & 0x0f0f0f0f;
            high = (high | high << 8) & 0x00ff00ff;
            high = (high | high << 4) & 0x0f0f0f0f;
            b->word[o][j] = low | high << 4;
        }
}

/* Codes of 32 inputs whose value overflows, or whose scale is NaN. */
static int64_t count_mxfp4_bad(const uint8_t *in, uint8_t scale) {
    int64_t bad = 0;
    for (int64_t j = 0; j < 32; j++) {
        uint8_t code = j % 2 ? in[j / 2] >> 4 : in[j / 2] & 15;
        bad += !isfinite(neap_e2m1_decode(code) * neap_e8m0_decode(scale));
    }
    return bad;
}

/* 64 bytes of a row are the 128 inputs of a super-block. */
static int64_t pack_mxfp4(const neap_matrix *m, uint8_t *panel, const neap_pack_source *s, int64_t row, int64_t rows) {
    assert(s->dtype == NEAP_DTYPE_U8);
    assert(s->scale_e8m0);
    assert(m->k % 32 == 0);
    int64_t bad = 0, groups = m->k / 32;
    const char *src = (const char *)s->data + row * s->row_stride;
    for (int64_t at = 0; at < m->k / 2; at += LINE, panel += SUPER_LINES * LINE) {
        row_block b;
        int64_t n = m->k / 2 - at < LINE ? m->k / 2 - at : LINE;
        load_block(&b, src + at, s->row_stride, rows, n);
        order_nibbles(&b);
        store_block((char *)panel, &b, SUPER / 8);
        uint8_t *line = panel + 16 * LINE;
        memset(line, 0, LINE);
        for (int64_t o = 0; o < rows; o++)
            for (int64_t g = 0; g < n / 16; g++) {
                uint8_t scale = s->scale_e8m0[(row + o) * groups + at / 16 + g];
                line[g * NEAP_PANEL + o] = scale;
                if (scale >= 253) bad += count_mxfp4_bad((const uint8_t *)src + o * s->row_stride + at + g * 16, scale);
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

static void unpack_int8(const neap_matrix *m, const int8_t *panel, const float *scales, int64_t o, float *dst) {
    for (int64_t j = 0; j < m->k; scales += NEAP_PANEL) {
        int64_t end = j + m->group < m->k ? j + m->group : m->k;
        for (; j < end; j++) dst[j] = (float)panel[(j / 4 * NEAP_PANEL + o) * 4 + j % 4] * scales[o];
    }
}

void neap_matrix_unpack_rows(const neap_matrix *m, int64_t row, int64_t n_rows, float *dst, int64_t ld) {
    for (int64_t i = row; i < row + n_rows; i++, dst += ld) {
        int64_t p = i / NEAP_PANEL, o = i % NEAP_PANEL;
        const void *panel = (const char *)m->panels + p * m->panel_bytes;
        if (m->kind == NEAP_MATRIX_BF16) {
            const uint16_t *in = panel;
            for (int64_t j = 0; j < m->k; j++) dst[j] = neap_bf16_to_f32(in[(j / 2 * NEAP_PANEL + o) * 2 + j % 2]);
        } else if (m->kind == NEAP_MATRIX_INT8) {
            unpack_int8(m, panel, m->scales + p * neap_matrix_groups(m) * NEAP_PANEL, o, dst);
        } else {
            for (int64_t j = 0; j < m->k; j++) dst[j] = neap_matrix_get(m, i, j);
        }
    }
}
