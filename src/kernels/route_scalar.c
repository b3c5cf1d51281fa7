/* Router of one token: logits to expert ids and weights, all in F32.
 *
 *   s = sigmoid(logits) or softmax(logits);  choice c = s + bias
 *   groups: keep the topk_groups groups with the largest sum of their two best choices
 *   ids = the top_k largest c among the kept (falling c; equal: lower id first)
 *   weights = s[ids], divided by (their sum + 1e-20) if asked, times scale
 *
 * The weight comes from s itself, never from c - bias: with a large bias that difference is zero. A NaN choice
 * ranks as -infinity, so the ids are always valid and distinct. One pass with insertion into the sorted list
 * of the best so far. Source: spec kimi_linear section 5. */
#include <assert.h>
#include <stdbool.h>

#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/vmath.h"

static void scores_of(float *s, const float *logits, int32_t n, bool is_softmax) {
    if (!is_softmax) {
        for (int32_t i = 0; i < n; i++) s[i] = vm_sigmoid(logits[i]);
        return;
    }
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++) s[i] = vm_exp(logits[i] - max);
    float inverse = 1.0f / sum16(s, n);
    for (int32_t i = 0; i < n; i++) s[i] *= inverse;
}

/* Sum of the two best choices of a group (of the only one, if it has one). */
static float group_score(const float *c, int32_t size) {
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
static bool is_kept(const float *c, const neap_route_args *a, int32_t group) {
    int32_t size = a->n_experts / a->n_groups, n_better = 0;
    float own = group_score(c + group * size, size);
    for (int32_t g = 0; g < a->n_groups; g++) {
        float other = group_score(c + g * size, size);
        n_better += other > own || (!(other < own) && g < group);
    }
    return n_better < a->topk_groups;
}

static void route(const neap_route_args *a) {
    float *s = a->scratch, *c = s + a->n_experts, rejected = -INFINITY;
    bool has_groups = a->n_groups > 1;
    int32_t size = has_groups ? a->n_experts / a->n_groups : a->n_experts, n = 0;
    scores_of(s, a->logits, a->n_experts, a->is_softmax);
    for (int32_t i = 0; i < a->n_experts; i++) {
        c[i] = a->bias ? s[i] + a->bias[i] : s[i];
        if (isnan(c[i])) c[i] = -INFINITY;
    }
    for (int32_t g = 0; g < (has_groups ? a->n_groups : 1); g++) {
        if (has_groups && !is_kept(c, a, g)) continue;
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

void neap_route_scalar_init(neap_kernels *k) { k->route = route; }
