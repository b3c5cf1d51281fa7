/* What all versions of the products in integers share: where a unit ends (neap_x_form in kernels.h). */
#ifndef NEAP_KERNELS_IGEMM_H
#define NEAP_KERNELS_IGEMM_H

#include "kernels/kernels.h"

/* k that share a scale of the weights. */
static inline int64_t neap_igemm_group(const neap_matrix *w) { return w->kind == NEAP_MATRIX_MXFP4 ? 32 : w->group; }
/* k where the unit that begins at k ends. */
static inline int64_t neap_igemm_unit_end(const neap_matrix *w, int64_t k) {
    int64_t group = neap_igemm_group(w), end = (k / group + 1) * group;
    if (end > k + NEAP_X_UNIT) end = k + NEAP_X_UNIT;
    return end < w->k ? end : w->k;
}

#endif
