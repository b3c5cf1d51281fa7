/* Cached rows in pages of 64: where a value lies, and the one definition of writing and reading it.
 *
 *   latent page, FP8     | codes [64][r + dr] | scales F32 [64][tiles] | key part's extra bits [64][3][ceil(dr/8)] |
 *   index page, MXFP8    | codes [4][d][16] | scales E8M0 [4][groups][16] |      16 keys side by side
 *
 * The layers write rows with this as they are computed; kernels read whole pages with code of their own and are
 * held to neap_latent_get and neap_index_get. The number formats are those of codec.c. */
#include "tensor/pages.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "tensor/codec.h"

const char *neap_row_kind_name(neap_row_kind kind) {
    static const char *const names[] = {"f32", "bf16", "fp8", "mxfp8"};
    return names[kind];
}

static int64_t plain_bytes(neap_row_kind kind) { return kind == NEAP_ROWS_F32 ? 4 : kind == NEAP_ROWS_BF16 ? 2 : 1; }

/* ---- latents ---- */

int64_t neap_latent_page_bytes(const neap_latent_format *f) {
    int64_t row = ((int64_t)f->r + f->dr) * plain_bytes(f->kind);
    if (f->kind == NEAP_ROWS_FP8) row += neap_latent_tiles(f) * (int64_t)sizeof(float) + neap_latent_extra(f);
    return NEAP_PAGE_ROWS * row;
}

/* codec.h lets a NaN stand alone and gives the rest of its tile the scale 1, which may cut it: here the tile
 * shows it as a whole. (An infinity has made the scale infinite, and then every value is NaN: 0 * inf.) */
static void put_tiles(uint8_t *codes, float *scales, const float *x, int64_t n) {
    neap_fp8_tile_encode(codes, scales, x, n);
    for (int64_t i = 0; i < n; i += NEAP_FP8_TILE) {
        int64_t count = n - i < NEAP_FP8_TILE ? n - i : NEAP_FP8_TILE;
        /* Finite values are encoded below 0x7f: only tiles with NaN or infinity hold that byte. */
        if (memchr(codes + i, 0x7f, (size_t)count)) scales[i / NEAP_FP8_TILE] = NAN;
    }
}

static void get_tiles(float *x, const uint8_t *codes, const float *scales, int64_t n) {
    neap_fp8_tile_decode(x, codes, scales, n);
}

/* ---- the key part: 4 bits of exponent, 6 of mantissa ---- */

/* Magnitude code of |v| <= 448, rounded to nearest, ties to even: the E4M3 code followed by three more bits. */
static uint32_t encode_fine(float v) {
    uint32_t a;
    float magnitude = fabsf(v), sum = magnitude + 0x1p11f; /* the last place of the sum is 2^-12, the finest step */
    memcpy(&a, &magnitude, sizeof a);
    if (magnitude < 0x1p-6f) {
        memcpy(&a, &sum, sizeof a);
        return a & 0x7f;
    }
    return ((a + 0xffff + (a >> 17 & 1)) >> 17) - ((127u - 7) << 6);
}

static void put_fine(uint8_t *codes, float *scales, uint8_t *extra, const float *x, int64_t n) {
    int64_t plane = (n + 7) / 8;
    put_tiles(codes, scales, x, n); /* for the scales, and for tiles that are not finite */
    memset(extra, 0, (size_t)(3 * plane));
    for (int64_t i = 0; i < n; i++) {
        float scale = scales[i / NEAP_FP8_TILE];
        if (isnan(scale)) continue;
        uint32_t code = encode_fine(x[i] / scale);
        codes[i] = (uint8_t)((codes[i] & 0x80) | code >> 3);
        for (int b = 0; b < 3; b++) extra[b * plane + i / 8] |= (uint8_t)((code >> b & 1) << i % 8);
    }
}

static void get_fine(float *x, const uint8_t *codes, const float *scales, const uint8_t *extra, int64_t n) {
    int64_t plane = (n + 7) / 8;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        for (int b = 0; b < 3; b++) bits |= (uint32_t)(extra[b * plane + i / 8] >> i % 8 & 1) << b;
        /* with the bits in place it is a half float of a 256th */
        uint32_t half = (uint32_t)(codes[i] & 0x80) << 8 | (uint32_t)(codes[i] & 0x7f) << 7 | bits << 4;
        x[i] = neap_f16_to_f32((uint16_t)half) * 256.0f * scales[i / NEAP_FP8_TILE];
    }
}

static uint8_t *latent_extra(const neap_latent_format *f, const void *page, int64_t row) {
    int64_t before = (int64_t)f->r + f->dr + neap_latent_tiles(f) * (int64_t)sizeof(float);
    return (uint8_t *)page + NEAP_PAGE_ROWS * before + row * neap_latent_extra(f);
}

static float *latent_scales(const neap_latent_format *f, const void *page, int64_t row) {
    return (float *)page + NEAP_PAGE_ROWS / 4 * ((int64_t)f->r + f->dr) + row * neap_latent_tiles(f);
}

void neap_latent_put(const neap_latent_format *f, void *page, int64_t row, const float *x) {
    assert(row >= 0 && row < NEAP_PAGE_ROWS);
    int64_t n = (int64_t)f->r + f->dr;
    if (f->kind == NEAP_ROWS_F32) {
        memcpy((float *)page + row * n, x, (size_t)n * sizeof(float));
    } else if (f->kind == NEAP_ROWS_BF16) {
        uint16_t *out = (uint16_t *)page + row * n;
        for (int64_t i = 0; i < n; i++) out[i] = neap_f32_to_bf16(x[i]);
    } else {
        assert(f->kind == NEAP_ROWS_FP8);
        uint8_t *codes = (uint8_t *)page + row * n;
        float *scales = latent_scales(f, page, row);
        put_tiles(codes, scales, x, f->r);
        put_fine(codes + f->r, scales + (f->r + NEAP_FP8_TILE - 1) / NEAP_FP8_TILE, latent_extra(f, page, row),
                 x + f->r, f->dr);
    }
}

void neap_latent_get(const neap_latent_format *f, const void *page, int64_t row, float *x) {
    assert(row >= 0 && row < NEAP_PAGE_ROWS);
    int64_t n = (int64_t)f->r + f->dr;
    if (f->kind == NEAP_ROWS_F32) {
        memcpy(x, (const float *)page + row * n, (size_t)n * sizeof(float));
    } else if (f->kind == NEAP_ROWS_BF16) {
        const uint16_t *in = (const uint16_t *)page + row * n;
        for (int64_t i = 0; i < n; i++) x[i] = neap_bf16_to_f32(in[i]);
    } else {
        assert(f->kind == NEAP_ROWS_FP8);
        const uint8_t *codes = (const uint8_t *)page + row * n;
        const float *scales = latent_scales(f, page, row);
        get_tiles(x, codes, scales, f->r);
        get_fine(x + f->r, codes + f->r, scales + (f->r + NEAP_FP8_TILE - 1) / NEAP_FP8_TILE,
                 latent_extra(f, page, row), f->dr);
    }
}

/* ---- index keys ---- */

static int64_t index_groups(const neap_index_format *f) { return ((int64_t)f->d + NEAP_MX_GROUP - 1) / NEAP_MX_GROUP; }

int64_t neap_index_page_bytes(const neap_index_format *f) {
    int64_t key = f->d * plain_bytes(f->kind);
    if (f->kind == NEAP_ROWS_MXFP8) key += index_groups(f);
    return NEAP_PAGE_ROWS * key;
}

/* Element i of a key lies at the key's place + i * 16. */
static int64_t index_place(const neap_index_format *f, int64_t row) {
    return row / NEAP_PAGE_GROUP * NEAP_PAGE_GROUP * f->d + row % NEAP_PAGE_GROUP;
}

static int64_t scale_place(const neap_index_format *f, int64_t row) {
    return NEAP_PAGE_ROWS * (int64_t)f->d + row / NEAP_PAGE_GROUP * NEAP_PAGE_GROUP * index_groups(f) +
           row % NEAP_PAGE_GROUP;
}

/* Group g of x as codes; a short last group counts as if zeros followed. */
static uint8_t encode_group(uint8_t codes[NEAP_MX_GROUP], const float *x, int64_t d, int64_t g) {
    float padded[NEAP_MX_GROUP] = {0};
    int64_t count = d - g * NEAP_MX_GROUP < NEAP_MX_GROUP ? d - g * NEAP_MX_GROUP : NEAP_MX_GROUP;
    uint8_t scale;
    memcpy(padded, x + g * NEAP_MX_GROUP, (size_t)count * sizeof(float));
    neap_mx_encode(codes, &scale, padded, NEAP_MX_GROUP, NEAP_MX_E4M3, NEAP_MX_CEIL);
    return scale;
}

void neap_index_put(const neap_index_format *f, void *page, int64_t row, const float *x) {
    assert(row >= 0 && row < NEAP_PAGE_ROWS);
    int64_t at = index_place(f, row);
    if (f->kind == NEAP_ROWS_F32) {
        float *out = (float *)page + at;
        for (int64_t i = 0; i < f->d; i++) out[i * NEAP_PAGE_GROUP] = x[i];
    } else if (f->kind == NEAP_ROWS_BF16) {
        uint16_t *out = (uint16_t *)page + at;
        for (int64_t i = 0; i < f->d; i++) out[i * NEAP_PAGE_GROUP] = neap_f32_to_bf16(x[i]);
    } else {
        assert(f->kind == NEAP_ROWS_MXFP8);
        uint8_t *out = (uint8_t *)page + at, *scales = (uint8_t *)page + scale_place(f, row);
        for (int64_t g = 0; g < index_groups(f); g++) {
            uint8_t codes[NEAP_MX_GROUP];
            scales[g * NEAP_PAGE_GROUP] = encode_group(codes, x, f->d, g);
            for (int64_t i = g * NEAP_MX_GROUP; i < f->d && i < (g + 1) * NEAP_MX_GROUP; i++)
                out[i * NEAP_PAGE_GROUP] = codes[i % NEAP_MX_GROUP];
        }
    }
}

void neap_index_get(const neap_index_format *f, const void *page, int64_t row, float *x) {
    assert(row >= 0 && row < NEAP_PAGE_ROWS);
    int64_t at = index_place(f, row);
    if (f->kind == NEAP_ROWS_F32) {
        const float *in = (const float *)page + at;
        for (int64_t i = 0; i < f->d; i++) x[i] = in[i * NEAP_PAGE_GROUP];
    } else if (f->kind == NEAP_ROWS_BF16) {
        const uint16_t *in = (const uint16_t *)page + at;
        for (int64_t i = 0; i < f->d; i++) x[i] = neap_bf16_to_f32(in[i * NEAP_PAGE_GROUP]);
    } else {
        assert(f->kind == NEAP_ROWS_MXFP8);
        const uint8_t *in = (const uint8_t *)page + at, *scales = (const uint8_t *)page + scale_place(f, row);
        for (int64_t i = 0; i < f->d; i++)
            x[i] = neap_e4m3_decode(in[i * NEAP_PAGE_GROUP]) *
                   neap_e8m0_decode(scales[i / NEAP_MX_GROUP * NEAP_PAGE_GROUP]);
    }
}

void neap_index_round_query(const neap_index_format *f, float *q) {
    if (f->kind != NEAP_ROWS_MXFP8) return;
    for (int64_t g = 0; g < index_groups(f); g++) {
        uint8_t codes[NEAP_MX_GROUP];
        float scale = neap_e8m0_decode(encode_group(codes, q, f->d, g));
        for (int64_t i = g * NEAP_MX_GROUP; i < f->d && i < (g + 1) * NEAP_MX_GROUP; i++)
            q[i] = neap_e4m3_decode(codes[i % NEAP_MX_GROUP]) * scale;
    }
}
