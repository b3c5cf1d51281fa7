/* unfused.h for vectors; the two files that include this differ in their compiler flags. */
#ifndef NEAP_TESTS_UNFUSED_VEC_H
#define NEAP_TESTS_UNFUSED_VEC_H

#include "kernels/x86/index_vec.h"
#include "unfused.h"

V_INLINE void dots_heads(const neap_index_scan_args *a, float *out, const float *q, const float *keys,
                         const int n_heads) {
    vec dot[INDEX_HEADS][2];
    index_dots(dot, q, keys, a->format.d, n_heads, (index_ahead){(const char *)q, 0});
    V_UNROLL for (int h = 0; h < n_heads; h++) V_UNROLL for (int v = 0; v < 2; v++)
        v_store(out + h * a->end + v * V_WIDTH, dot[h][v]);
}

/* Heads: a multiple of 8 or 6 + 6 + .. + 4 + 4 as in the kernel. */
static void dots_pass(const neap_index_scan_args *a, float *dots) {
    for (int64_t j = 0; j < a->end; j += INDEX_UNIT) {
        const float *keys = index_keys(&a->format, neap_pages_at(&a->keys, j), j % NEAP_PAGE_ROWS, a->scratch);
        for (int64_t i = 0; i < a->n_rows; i++)
            for (int64_t h = 0; h < a->n_heads;) {
                int n = index_next(a->n_heads - h);
                float *out = dots + (i * a->n_heads + h) * a->end + j;
                const float *q = a->q + i * a->ld_q + h * a->format.d;
                if (n == INDEX_HEADS)
                    dots_heads(a, out, q, keys, INDEX_HEADS);
                else if (n == 4)
                    dots_heads(a, out, q, keys, 4);
                else
                    n = 1, dots_heads(a, out, q, keys, 1);
                h += n;
            }
    }
}

static void weigh_pass(const neap_index_scan_args *a, const float *dots, float *scores) {
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t j = 0; j < a->end; j += V_WIDTH) {
            vec sum = v_zero();
            for (int64_t h = 0; h < a->n_heads; h++)
                sum = v_fma(v_set1(a->w[i * a->ld_w + h]),
                            v_max(v_zero(), v_load(dots + (i * a->n_heads + h) * a->end + j)), sum);
            v_store(scores + i * a->end + j, sum);
        }
}

/* Positions of the set bits; the first four are written in any case, which the list has room for. */
V_INLINE int32_t *put_bits(int32_t *out, uint64_t bits, int64_t position) {
    int n = __builtin_popcountll(bits);
    V_UNROLL for (int i = 0; i < 4; i++) {
        out[i] = (int32_t)(position + __builtin_ctzll(bits | (uint64_t)1 << 63));
        bits &= bits - 1;
    }
    for (int i = 4; i < n; i++) {
        out[i] = (int32_t)(position + __builtin_ctzll(bits));
        bits &= bits - 1;
    }
    return out + n;
}

/* Where a good bound is known, few pass: bits first, then their positions, then their keys. */
static void select_warm(neap_candidates *c, const float *scores, int64_t n, int64_t k, const int32_t *warm) {
    tk_gate gate = tk_gate_begin(c, k);
    uint32_t least = UINT32_MAX;
    for (int64_t i = 0; i < k; i++) {
        uint32_t key = topk_key(scores[warm[i]]);
        least = key < least ? key : least;
    }
    tk_gate_set(&gate, least);
    int64_t j = 0;
    for (; j + 64 <= n && !gate.is_open && c->n + 128 <= neap_candidates_capacity(k); j += 64) {
        uint64_t bits = 0;
        V_UNROLL for (int t = 0; t < 64; t += V_WIDTH) bits |=
            (uint64_t)tk_passing(v_load(scores + j + t), v_set1(gate.at_least)) << t;
        c->n = put_bits(c->positions + c->n, bits, j) - c->positions;
    }
    for (int64_t i = 0; i < c->n; i++) c->order[i] = topk_key(scores[c->positions[i]]);
    /* the rest, and more when the bound was bad */
    for (; j < n; j += V_WIDTH) tk_gate_offer(&gate, v_load_n(scores + j, n - j), j, n - j);
}

static void select_pass(int32_t *out, const float *scores, int64_t n, int64_t k, const int32_t *warm,
                        neap_candidates *list) {
    if (warm) {
        select_warm(list, scores, n, k, warm);
    } else {
        tk_gate gate = tk_gate_begin(list, k);
        for (int64_t j = 0; j < n; j += V_WIDTH) tk_gate_offer(&gate, v_load_n(scores + j, n - j), j, n - j);
    }
    tk_merge(out, list, 1, k);
}

/* The threshold of topk.h over all scores, then one more pass that collects. */
static void digits_pass(int32_t *out, const float *scores, uint32_t *keys, int64_t n, int64_t k) {
    int64_t n_above, n_out = 0;
    for (int64_t i = 0; i < n; i++) keys[i] = topk_key(scores[i]);
    uint32_t threshold = topk_threshold(&(neap_candidates){.order = keys, .n = n}, 1, k, &n_above);
    int64_t n_equal = k - n_above;
    for (int64_t i = 0; i < n; i++)
        if (keys[i] > threshold || (keys[i] == threshold && n_equal-- > 0)) out[n_out++] = (int32_t)i;
}

static float sum_pass(const float *x, int64_t n) {
    vec sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    float lanes[V_WIDTH];
    for (int64_t i = 0; i + 4 * V_WIDTH <= n; i += 4 * V_WIDTH)
        V_UNROLL for (int t = 0; t < 4; t++) sum[t] = v_add(sum[t], v_load(x + i + t * V_WIDTH));
    v_store(lanes, v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
    return lanes[0];
}

static const kc_unfused unfused = {dots_pass, weigh_pass, select_pass, digits_pass, sum_pass};

#endif
