/* Rows of a stored matrix as F32, whatever form the file keeps it in. */
#ifndef NEAP_MODELS_ROWS_H
#define NEAP_MODELS_ROWS_H

#include "models/match.h"

/* Raw values of a plain dtype, E8M0 or E4M3 to F32. */
void neap_rows_to_f32(float *dst, const void *src, int64_t n, neap_dtype dtype);
/* Bytes of staging memory that n rows of k values need. */
uint64_t neap_rows_stage(const neap_match *match, int64_t k, int64_t n);
/* dst[n][k] = rows [row, row + n) of the matched matrix, exact up to one rounding of code * scale. stage: as above,
 * aligned to 4 bytes. Refuses scales of INT8 that are not above 0; other odd values come through for the caller to
 * judge. Threads may call it at the same time. */
NEAP_MUST_CHECK neap_status neap_rows_read(const neap_checkpoint *c, const neap_match *match, int64_t k, int64_t row,
                                           int64_t n, void *stage, float *dst);

#endif
