/* The router for vectors: scores here, the choice in kernels/route_pick.h. */
#ifndef NEAP_KERNELS_X86_ROUTE_VEC_H
#define NEAP_KERNELS_X86_ROUTE_VEC_H

#include "kernels/families.h"
#include "kernels/route_pick.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
static inline void route_softmax(float *s, const float *logits, int64_t n) {
    vec m = v_set1(-INFINITY);
    float lanes[V_WIDTH], max = -INFINITY;
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH) m = v_max(v_load(logits + i), m);
    v_store(lanes, m);
    for (int l = 0; l < V_WIDTH; l++) max = lanes[l] > max ? lanes[l] : max;
    for (; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (i = 0; i < n; i += V_WIDTH) v_store_n(s + i, v_exp(v_sub(v_load_n(logits + i, n - i), v_set1(max))), n - i);
    vec inverse = v_set1(1.0f / v_sum16(s, n));
    for (i = 0; i < n; i += V_WIDTH) v_store_n(s + i, v_mul(v_load_n(s + i, n - i), inverse), n - i);
}

static inline void route_experts(const neap_route_args *a) {
    int64_t n = a->n_experts;
    if (a->is_softmax)
        route_softmax(a->scratch, a->logits, n);
    else
        for (int64_t i = 0; i < n; i += V_WIDTH)
            v_store_n(a->scratch + i, v_sigmoid(v_load_n(a->logits + i, n - i)), n - i);
    route_pick(a);
}

static inline void route_fill(neap_kernels *k) { k->route = route_experts; }
#endif

#endif
