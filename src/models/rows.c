/* Rows of a stored matrix W[n, k] as F32: the one place that decodes the forms of a checkpoint value by value.
 *
 *   BF16, F16, F32                                   widened
 *   F8_E4M3, weight_scale_inv [n/128, k/128]         code * scale of its block
 *   U8 weight_packed [n, k/2], weight_scale [n, k/32]  E2M1 * 2^(s-127); element 2i in the low nibble of byte i
 *   I8, weight_scale [n, groups]                     code * scale of its row and group
 *
 * Called by pack.c (kv_b, which is cut and transposed) and by quantize_model.c. The fast way from file to panels is in
 * pack.c and keeps the codes as they are. Owns nothing. Source: quantised formats 1 and 2. */
#include "models/rows.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tensor/codec.h"

/* The file's data need not be aligned, and a 16-bit float is the upper half of a wider one. */
static void bf16_to_f32(float *dst, const uint8_t *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half);
        dst[i] = neap_bf16_to_f32(half);
    }
}

void neap_rows_to_f32(float *dst, const void *src, int64_t n, neap_dtype dtype) {
    const uint8_t *bytes = src;
    switch (dtype) {
    case NEAP_DTYPE_F32: memcpy(dst, bytes, (size_t)n * sizeof(float)); break;
    case NEAP_DTYPE_BF16: bf16_to_f32(dst, bytes, n); break;
    case NEAP_DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            uint16_t half;
            memcpy(&half, bytes + 2 * i, sizeof half);
            dst[i] = neap_f16_to_f32(half);
        }
        break;
    case NEAP_DTYPE_F8_E8M0:
        for (int64_t i = 0; i < n; i++) dst[i] = neap_e8m0_decode(bytes[i]);
        break;
    case NEAP_DTYPE_F8_E4M3:
        for (int64_t i = 0; i < n; i++) dst[i] = neap_e4m3_decode(bytes[i]);
        break;
    default: assert(!"dtype");
    }
}

/* Where the scales of a call lie: rows of `per_row` scales, one for `rows` matrix rows and `cols` of its columns. */
typedef struct scale_grid {
    int64_t rows, cols, per_row;
} scale_grid;

static scale_grid grid_of(const neap_match *match, int64_t k) {
    switch (match->data->dtype) {
    case NEAP_DTYPE_F8_E4M3: return (scale_grid){128, 128, (k + 127) / 128};
    case NEAP_DTYPE_U8: return (scale_grid){1, 32, k / 32};
    case NEAP_DTYPE_I8: {
        int64_t groups = match->scale->shape[1];
        return (scale_grid){1, (k + groups - 1) / groups, groups};
    }
    default: return (scale_grid){0, 0, 0};
    }
}

static int64_t data_bytes(const neap_match *match, int64_t k) {
    return match->data->dtype == NEAP_DTYPE_U8 ? k / 2 : k * (neap_dtype_bits(match->data->dtype) / 8);
}

/* Rows of scales that matrix rows [row, row + n) touch. */
static int64_t scale_rows(const scale_grid *g, int64_t row, int64_t n) {
    return g->rows == 0 ? 0 : (row + n - 1) / g->rows - row / g->rows + 1;
}

static int64_t round4(int64_t n) { return (n + 3) / 4 * 4; }

uint64_t neap_rows_stage(const neap_match *match, int64_t k, int64_t n) {
    scale_grid g = grid_of(match, k);
    int64_t scales = g.rows == 0 ? 0 : (n / g.rows + 2) * g.per_row;
    /* raw data, raw scales, decoded scales */
    return (uint64_t)(round4(n * data_bytes(match, k)) + 2 * scales * (int64_t)sizeof(float));
}

static neap_status read_scales(const neap_checkpoint *c, const neap_match *match, const scale_grid *g, int64_t row,
                               int64_t n, void *raw, float *scales) {
    const neap_stored_tensor *t = match->scale;
    int64_t first = row / g->rows, count = scale_rows(g, row, n) * g->per_row;
    int64_t bytes = neap_dtype_bits(t->dtype) / 8;
    NEAP_TRY(neap_checkpoint_read(c, t, (uint64_t)(first * g->per_row * bytes), (uint64_t)(count * bytes), raw));
    neap_dtype dtype = t->dtype == NEAP_DTYPE_U8 ? NEAP_DTYPE_F8_E8M0 : t->dtype;
    neap_rows_to_f32(scales, raw, count, dtype);
    for (int64_t i = 0; match->data->dtype == NEAP_DTYPE_I8 && i < count; i++)
        NEAP_CHECK(!(scales[i] <= 0), NEAP_BAD_FILE, "%s: tensor %s: scale %" PRId64 " is %g, it must be above 0",
                   neap_checkpoint_shard_name(c, t->shard), t->name, first * g->per_row + i, (double)scales[i]);
    return NEAP_OK;
}

/* One row of codes to values before scaling. */
static void decode_codes(float *dst, const uint8_t *codes, int64_t k, neap_dtype dtype) {
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    if (dtype == NEAP_DTYPE_U8)
        for (int64_t j = 0; j + 1 < k; j += 2) { /* k is a multiple of 32 */
            dst[j] = e2m1[codes[j / 2] & 15];
            dst[j + 1] = e2m1[codes[j / 2] >> 4];
        }
    else if (dtype == NEAP_DTYPE_I8)
        for (int64_t j = 0; j < k; j++) dst[j] = (float)(int8_t)codes[j];
    else
        neap_rows_to_f32(dst, codes, k, dtype);
}

neap_status neap_rows_read(const neap_checkpoint *c, const neap_match *match, int64_t k, int64_t row, int64_t n,
                           void *stage, float *dst) {
    const neap_dtype dtype = match->data->dtype;
    scale_grid g = grid_of(match, k);
    int64_t row_bytes = data_bytes(match, k);
    uint8_t *codes = stage;
    NEAP_TRY(neap_checkpoint_read(c, match->data, (uint64_t)(row * row_bytes), (uint64_t)(n * row_bytes), codes));
    if (g.rows == 0) {
        neap_rows_to_f32(dst, codes, n * k, dtype);
        return NEAP_OK;
    }
    float *scales = (float *)(void *)(codes + round4(n * row_bytes));
    float *raw = scales + scale_rows(&g, row, n) * g.per_row;
    NEAP_TRY(read_scales(c, match, &g, row, n, raw, scales));
    for (int64_t i = 0; i < n; i++) {
        const float *s = scales + ((row + i) / g.rows - row / g.rows) * g.per_row;
        float *out = dst + i * k;
        decode_codes(out, codes + i * row_bytes, k, dtype);
        for (int64_t j = 0; j < k;) {
            float scale = s[j / g.cols];
            int64_t end = (j / g.cols + 1) * g.cols < k ? (j / g.cols + 1) * g.cols : k;
            for (; j < end; j++) out[j] *= scale;
        }
    }
    return NEAP_OK;
}
