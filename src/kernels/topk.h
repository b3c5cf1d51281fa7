/* The k best of n scores, exactly: larger score first, equal scores lower position first, -0 equals +0, NaN
 * last. Positions come out ascending.
 *
 * Scores map to integers of the same order (keys); the k-th largest is found digit by digit (11, 11 and 10 bits)
 * by counting, in three passes without recursion or data-dependent worst cases; one more pass collects.
 *
 * While scores are still being made, a list of candidates with room for more than k of them takes every key that
 * is not below a bound. When it is full, its k best stay and the bound becomes the k-th key plus one: positions
 * ascend, so a later equal key loses its tie. Each cut frees at least k places, so the cost per key stays constant
 * whatever the scores are. Vector versions of the same steps are in x86/topk_vec.h. */
#ifndef NEAP_KERNELS_TOPK_H
#define NEAP_KERNELS_TOPK_H

#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

/* Larger key = better. NaN is 0, below -infinity. */
static inline uint32_t topk_key(float score) {
    uint32_t u;
    score = score == 0.0f ? 0.0f : score; /* -0 becomes +0 */
    memcpy(&u, &score, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* Counts the digits of those keys that agree with `found` under `mask`. */
static inline void topk_count(uint32_t *count, const uint32_t *keys, int64_t n, uint32_t found, uint32_t mask,
                              int shift, uint32_t digits) {
    for (int64_t i = 0; i < n; i++)
        if ((keys[i] & mask) == found) count[keys[i] >> shift & (digits - 1)]++;
}

/* The k-th largest key of all lists together; *n_above: how many are larger than it. 1 <= k <= all of them. */
static inline uint32_t topk_threshold(const neap_candidates *lists, int64_t n_lists, int64_t k, int64_t *n_above) {
    static const int shifts[3] = {21, 10, 0}, bits[3] = {11, 11, 10};
    uint32_t found = 0, mask = 0;
    int64_t above = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t count[2048], digits = 1u << bits[pass], d = digits - 1;
        memset(count, 0, digits * sizeof *count);
        for (int64_t l = 0; l < n_lists; l++)
            topk_count(count, lists[l].order, lists[l].n, found, mask, shifts[pass], digits);
        while (above + count[d] < k) above += count[d--];
        found |= d << shifts[pass];
        mask |= (digits - 1) << shifts[pass];
    }
    *n_above = above;
    return found;
}

/* Keeps the k best of more than k candidates. Returns the new bound: what a later key must at least be. */
static inline uint32_t topk_cut(neap_candidates *c, int64_t k) {
    int64_t n_above, n = 0;
    uint32_t threshold = topk_threshold(c, 1, k, &n_above);
    int64_t n_equal = k - n_above; /* of those that equal the threshold, the first ones */
    for (int64_t i = 0; i < c->n; i++) {
        uint32_t key = c->order[i];
        if (key < threshold || (key == threshold && n_equal-- <= 0)) continue;
        c->order[n] = key;
        c->positions[n++] = c->positions[i];
    }
    c->n = n;
    return threshold + 1; /* the largest key, of +infinity, is far from wrapping */
}

/* kernels.h, index_merge. */
static inline void topk_merge(int32_t *out, const neap_candidates *lists, int64_t n_lists, int64_t k) {
    int64_t n_above, n_out = 0;
    uint32_t threshold = topk_threshold(lists, n_lists, k, &n_above);
    int64_t n_equal = k - n_above;
    for (int64_t l = 0; l < n_lists; l++)
        for (int64_t i = 0; i < lists[l].n; i++) {
            uint32_t key = lists[l].order[i];
            if (key > threshold || (key == threshold && n_equal-- > 0)) out[n_out++] = lists[l].positions[i];
        }
}

#endif
