/* Router of one token: logits to expert ids and weights, all in F32.
 *
 *   s = sigmoid(logits) or softmax(logits);  choice c = s + bias
 *   groups: keep the topk_groups groups with the largest sum of their two best choices
 *   ids = the top_k largest c among the kept (falling c; equal: lower id first)
 *   weights = s[ids], divided by (their sum + 1e-20) if asked, times scale
 *
 * The weight comes from s itself, never from c - bias: with a large bias that difference is zero. Choosing is in
 * route_pick.h. Source: docs/numerics.md section 6. */
#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/route_pick.h"
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

static void route(const neap_route_args *a) {
    scores_of(a->scratch, a->logits, a->n_experts, a->is_softmax);
    route_pick(a);
}

void neap_route_scalar_init(neap_kernels *k) { k->route = route; }
