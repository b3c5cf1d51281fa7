/* A weight matrix W[n, k] (n outputs, k inputs) in the panel layout that every kernel reads directly.
 *
 * One layout for all instruction sets: panels of 16 outputs, and inside a panel the k-group that one 32-bit
 * lane consumes stored innermost. Every load is aligned, no horizontal sums, and the same bytes serve one
 * token and many.
 *
 *   F32    [n/16][k][16]                            64 bytes per k
 *   BF16   [n/16][k/2][16][2]                       64 bytes per 2 k       (k padded to 2 with zeros)
 *   FP8    [n/16][k/4][16][4] E4M3 codes            64 bytes per 4 k       (k padded to 4 with zeros)
 *          + scales F32 [ceil(n/128)][ceil(k/128)]  w = code * scale of its 128 x 128 block
 *   INT8   [n/16][k/4][16][4] signed codes          64 bytes per 4 k       (k padded to 4 with zeros)
 *          + scales F32 [n/16][groups][16]          w = code * scale of its output and group of `group` inputs
 *          (a lane holds four neighbouring k of one output: the operand order of 8-bit dot products)
 *   MXFP4  [n/16][k/128] super-blocks of 17 lines:  16 lines of nibbles, then one line of scales
 *          line l: byte o*4+j holds k = 8l+j in the low and k = 8l+4+j in the high nibble (o output, j 0..3)
 *          scales: byte g*16+o is the E8M0 code of k-group g (32 k) of output o. k padded to 128 with zeros.
 *
 * n is padded to 16 with zero rows. Storage is 64-byte aligned and owned by whoever allocated it. */
#ifndef NEAP_TENSOR_MATRIX_H
#define NEAP_TENSOR_MATRIX_H

#include "base/status.h"
#include "tensor/dtype.h"

enum { NEAP_PANEL = 16 };

typedef enum neap_matrix_kind {
    NEAP_MATRIX_F32,
    NEAP_MATRIX_BF16,
    NEAP_MATRIX_INT8,
    NEAP_MATRIX_FP8,
    NEAP_MATRIX_MXFP4,
    NEAP_MATRIX_KINDS
} neap_matrix_kind;

typedef struct neap_matrix {
    neap_matrix_kind kind;
    int64_t n, k;
    int64_t panel_bytes; /* bytes of one panel of 16 outputs */
    const void *panels;  /* NULL: absent */
    const float *scales; /* FP8: [ceil(n/128)][ceil(k/128)]; INT8: [n/16][groups][16]; else NULL */
    int64_t group;       /* INT8: inputs that share a scale, a multiple of 4; the last group may be shorter */
} neap_matrix;

const char *neap_matrix_kind_name(neap_matrix_kind kind);
static inline int64_t neap_matrix_panels(const neap_matrix *m) { return (m->n + NEAP_PANEL - 1) / NEAP_PANEL; }

/* Sets kind, n, k, panel_bytes; data stays NULL. n, k in 1 .. 2^31. INT8 gets groups of NEAP_INT8_GROUP inputs. */
enum { NEAP_INT8_GROUP = 128 };
void neap_matrix_shape(neap_matrix *m, neap_matrix_kind kind, int64_t n, int64_t k);
/* The same for INT8 with groups of `group` inputs: a multiple of 4, or at least k (one scale per output). */
void neap_matrix_shape_int8(neap_matrix *m, int64_t n, int64_t k, int64_t group);
/* Bytes of all panels (without the scales of FP8 and INT8). */
uint64_t neap_matrix_panel_bytes(const neap_matrix *m);
/* Floats in m->scales; 0 where there are none. */
int64_t neap_matrix_scale_count(const neap_matrix *m);
/* INT8: groups of one row. */
static inline int64_t neap_matrix_groups(const neap_matrix *m) { return (m->k + m->group - 1) / m->group; }
/* INT8: the file's order [n][groups] to that of m->scales; rows beyond n read as 0. dst: neap_matrix_scale_count. */
void neap_matrix_pack_scales(const neap_matrix *m, float *dst, const float *rows);

/* Where the values come from: element (i, j) at data[i*row_stride + j*col_stride], strides in elements.
 *   F32 matrix:  dtype F32, BF16 or F16 (or FP8 with scale_inv, decoded)
 *   BF16 matrix: dtype BF16
 *   FP8 matrix:  dtype F8_E4M3, scale_inv given
 *   INT8 matrix: dtype I8; the scales are packed on their own and judged by whoever reads them
 *   MXFP4:       dtype U8: data = weight_packed [n][k/2] (element 2i low nibble, 2i+1 high), row_stride in
 *                bytes, col_stride ignored; scale_e8m0 = weight_scale [n][k/32], k a multiple of 32 */
typedef struct neap_pack_source {
    neap_dtype dtype;
    const void *data;
    int64_t row_stride, col_stride;
    const float *scale_inv;       /* FP8: [ceil(n/128)][ceil(k/128)], row-major; in the source's own orientation:
                                 * [ceil(k/128)][ceil(n/128)] when the source is transposed (row_stride 1) */
    int64_t scale_ld;             /* blocks per row of scale_inv; 0 = as above */
    int64_t scale_row, scale_col; /* where data[0] lies inside the scaled tensor (a slice), in its orientation */
    const uint8_t *scale_e8m0;    /* MXFP4 */
} neap_pack_source;

/* Writes panels [panel_begin, panel_end) of m into storage (the whole matrix's panel area). Threads may pack
 * disjoint ranges. Returns the number of non-finite values seen in the range (NaN, infinity, NaN codes). */
int64_t neap_matrix_pack(const neap_matrix *m, void *storage, const neap_pack_source *src, int64_t panel_begin,
                         int64_t panel_end);
/* The value that kernels compute with, for tests and reference code; padding reads as 0. */
float neap_matrix_get(const neap_matrix *m, int64_t i, int64_t j);
/* dst[n_rows][k] F32 row-major from panels: rows [row, row + n_rows). Used by the embedding. */
void neap_matrix_unpack_rows(const neap_matrix *m, int64_t row, int64_t n_rows, float *dst, int64_t ld);

#endif
