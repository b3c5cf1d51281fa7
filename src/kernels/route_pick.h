/* The exact half of the router: from scores to ids and weights; shared by all instruction sets.
 *
 * The choice is score + bias; a NaN choice ranks as -infinity, so the ids are always valid and distinct. One pass
 * with insertion into the sorted list of the best so far. The equations are in route_scalar.c. */
#ifndef NEAP_KERNELS_ROUTE_PICK_H
#define NEAP_KERNELS_ROUTE_PICK_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/kernels.h"

/* Sum of the two best choices of a group (of the only one, if it has one). */
static inline float route_group_score(const float *c, int32_t size) {
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < size; i++) {
        if (c[i] > best) {
            second = best;
            best = c[i];
        } else if (c[i] > second) {
            second = c[i];
        }
    }
    return size > 1 ? best + second : best;
}

/* A group is kept when fewer than topk_groups groups are better, or equal and earlier. */
static inline bool route_is_kept(const float *c, const neap_route_args *a, int32_t group) {
    int32_t size = a->n_experts / a->n_groups, n_better = 0;
    float own = route_group_score(c + group * size, size);
    for (int32_t g = 0; g < a->n_groups; g++) {
        float other = route_group_score(c + g * size, size);
        n_better += other > own || (!(other < own) && g < group);
    }
    return n_better < a->topk_groups;
}

/* scratch begins with the scores. */
static inline void route_pick(const neap_route_args *a) {
    float *s = a->scratch, *c = s + a->n_experts, rejected = -INFINITY;
    bool has_groups = a->n_groups > 1;
    int32_t size = has_groups ? a->n_experts / a->n_groups : a->n_experts, n = 0;
    for (int32_t i = 0; i < a->n_experts; i++) {
        c[i] = a->bias ? s[i] + a->bias[i] : s[i];
        if (isnan(c[i])) c[i] = -INFINITY;
    }
    for (int32_t g = 0; g < (has_groups ? a->n_groups : 1); g++) {
        if (has_groups && !route_is_kept(c, a, g)) continue;
        for (int32_t i = g * size; i < (g + 1) * size; i++) {
            if (n == a->top_k && !(c[i] > c[a->ids[n - 1]])) {
                rejected = c[i] > rejected ? c[i] : rejected;
                continue;
            }
            if (n == a->top_k) rejected = c[a->ids[--n]] > rejected ? c[a->ids[n]] : rejected;
            int32_t at = n++;
            for (; at > 0 && c[i] > c[a->ids[at - 1]]; at--) a->ids[at] = a->ids[at - 1];
            a->ids[at] = i;
        }
    }
    assert(n == a->top_k);
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += s[a->ids[i]];
    for (int32_t i = 0; i < n; i++) {
        float w = s[a->ids[i]];
        a->weights[i] = (a->is_renormalized ? w / (sum + 1e-20f) : w) * a->scale;
    }
    if (a->margin) *a->margin = rejected > -INFINITY ? c[a->ids[n - 1]] - rejected : INFINITY;
}

#endif
