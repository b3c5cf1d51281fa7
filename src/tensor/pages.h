/* How cached rows lie in pages of 64 positions: formats, sizes, and the reference way to write and read a row.
 *
 * Latent rows (MLA): r values of the normed latent, then dr of the key part.
 *   F32, BF16   [64][r + dr]
 *   FP8         codes [64][r + dr] E4M3, then scales F32 [64][tiles]: one per tile of 128 of the latent, then one
 *               per tile of 128 of the key part (which is not normed: its range must not coarsen the latent's), then
 *               three more mantissa bits of the key part, [64][3][ceil(dr/8)] bytes: the lowest bit of values
 *               8i .. 8i+7 in byte i of the first plane, and so on.
 *               The key part is E4M3 with 6 mantissa bits instead of 3 (its codes hold the upper ones): as BF16, the
 *               usual choice, it would take 656 bytes, and plain E4M3 doubles the error of the logits.
 *               Scale = amax / 448, 1 for a zero tile; the F32 scale (not a power of two) loses less and costs
 *               one multiplication either way. At r 512, dr 64: 620 bytes per row, 0.538 of BF16.
 * Index keys: dimension-major in groups of 16 keys, so that a lane of a vector is a key.
 *   F32, BF16   [4][d][16]
 *   MXFP8       codes [4][d][16] E4M3, then scales E8M0 [4][ceil(d/32)][16]; scale rule NEAP_MX_CEIL
 *               (nothing saturates). At d 128: 132 bytes per key, 0.516 of BF16.
 * A NaN or infinity makes its whole tile or group NaN (a tile of codec.h lets a NaN stand alone; a page does not).
 * All page sizes are multiples of 64 bytes.
 * Values are decoded to F32 as code value * scale, one rounding. */
#ifndef NEAP_TENSOR_PAGES_H
#define NEAP_TENSOR_PAGES_H

#include <stdint.h>

enum { NEAP_PAGE_ROWS = 64, NEAP_PAGE_GROUP = 16, NEAP_FP8_TILE = 128, NEAP_MX_GROUP = 32 };

typedef enum neap_row_kind { NEAP_ROWS_F32, NEAP_ROWS_BF16, NEAP_ROWS_FP8, NEAP_ROWS_MXFP8 } neap_row_kind;
const char *neap_row_kind_name(neap_row_kind kind); /* "f32", "bf16", "fp8", "mxfp8" */

typedef struct neap_latent_format {
    neap_row_kind kind; /* F32, BF16, FP8 */
    int32_t r, dr;      /* dr may be 0 */
} neap_latent_format;
typedef struct neap_index_format {
    neap_row_kind kind; /* F32, BF16, MXFP8 */
    int32_t d;
} neap_index_format;

static inline int64_t neap_latent_tiles(const neap_latent_format *f) {
    return (f->r + NEAP_FP8_TILE - 1) / NEAP_FP8_TILE + (f->dr + NEAP_FP8_TILE - 1) / NEAP_FP8_TILE;
}
static inline int64_t neap_latent_extra(const neap_latent_format *f) { /* bytes of a row's extra mantissa bits, FP8 */
    return ((int64_t)f->dr + 7) / 8 * 3;
}
int64_t neap_latent_page_bytes(const neap_latent_format *f);
int64_t neap_index_page_bytes(const neap_index_format *f);
/* x: r + dr values (d values). row: 0 .. 63 in the page. */
void neap_latent_put(const neap_latent_format *f, void *page, int64_t row, const float *x);
void neap_latent_get(const neap_latent_format *f, const void *page, int64_t row, float *x);
void neap_index_put(const neap_index_format *f, void *page, int64_t row, const float *x);
void neap_index_get(const neap_index_format *f, const void *page, int64_t row, float *x);
/* What a query of the indexer becomes beside keys of this format: BF16 and F32 keep it, MXFP8 rounds it to
 * MXFP8 (rule CEIL) and back. In place. */
void neap_index_round_query(const neap_index_format *f, float *q);

/* One layer's pool as one sequence sees it: position p lies in page table[p / 64], row p % 64. 64-bit offsets. */
typedef struct neap_pages {
    const uint8_t *base;
    int64_t page_bytes;
    const int32_t *table;
} neap_pages;
static inline const uint8_t *neap_pages_at(const neap_pages *p, int64_t position) {
    return p->base + (int64_t)p->table[position / NEAP_PAGE_ROWS] * p->page_bytes;
}

#endif
