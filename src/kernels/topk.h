/* The k best of n scores, exactly: larger score first, equal scores lower position first, -0 equals +0, NaN
 * last. Positions come out ascending.
 *
 * Scores map to integers of the same order; the k-th largest is found digit by digit (11, 11 and 10 bits) by
 * counting, in three passes without recursion or data-dependent worst cases; one more pass collects. The
 * scan that makes the scores costs far more, so every instruction set shares this code. */
#ifndef NEAP_KERNELS_TOPK_H
#define NEAP_KERNELS_TOPK_H

#include <stdint.h>
#include <string.h>

/* Larger key = better. NaN is 0, below -infinity. */
static inline uint32_t topk_key(float score) {
    uint32_t u;
    score = score == 0.0f ? 0.0f : score; /* -0 becomes +0 */
    memcpy(&u, &score, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* The k-th largest key; *n_above: how many are larger than it. 1 <= k <= n. */
static inline uint32_t topk_threshold(const float *scores, int64_t n, int64_t k, int64_t *n_above) {
    static const int shifts[3] = {21, 10, 0}, bits[3] = {11, 11, 10};
    uint32_t found = 0, mask = 0;
    int64_t above = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t count[2048], digits = 1u << bits[pass];
        memset(count, 0, digits * sizeof *count);
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = topk_key(scores[i]);
            if ((key & mask) == found) count[key >> shifts[pass] & (digits - 1)]++;
        }
        uint32_t d = digits - 1;
        while (above + count[d] < k) above += count[d--];
        found |= d << shifts[pass];
        mask |= (digits - 1) << shifts[pass];
    }
    *n_above = above;
    return found;
}

static inline void topk_select(int32_t *out, const float *scores, int64_t n, int64_t k) {
    int64_t n_above, n_out = 0;
    uint32_t threshold = topk_threshold(scores, n, k, &n_above);
    int64_t n_equal = k - n_above; /* of those that equal the threshold, the first ones */
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = topk_key(scores[i]);
        if (key > threshold || (key == threshold && n_equal-- > 0)) out[n_out++] = (int32_t)i;
    }
}

#endif
