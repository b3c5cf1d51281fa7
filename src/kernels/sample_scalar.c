/* Greedy choice over the logits: the largest value, the lowest index among equals.
 *
 * The same pass looks for NaN and infinities: they mean that something upstream broke, and the request must
 * end with an error instead of a stream of token 0. */
#include <math.h>

#include "kernels/families.h"

static bool argmax(const float *x, int64_t n, int64_t *index) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
        if (x[i] > x[best]) best = i;
    }
    *index = best;
    return true;
}

void neap_sample_scalar_init(neap_kernels *k) { k->argmax = argmax; }
