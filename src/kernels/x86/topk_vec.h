/* Exact Top-K for vectors, the steps of kernels/topk.h: a gate that lets scores into a list of candidates, the cut of
 * a full list to its k best, the merge of lists.
 *
 * The gate compares floats: for a bound above NaN (key 0) and up to +infinity's there is a float such that
 * score >= float says the same as key >= bound. Only scores that pass become keys. The k-th largest key is found by
 * bisection: 16 (8) keys are compared at once, and a list of a few thousand lies in the first cache, so a step costs
 * about n / 16 cycles; it ends as soon as exactly k keys are counted. */
#ifndef NEAP_KERNELS_X86_TOPK_VEC_H
#define NEAP_KERNELS_X86_TOPK_VEC_H

#include <math.h>

#include "kernels/kernels.h"
#include "kernels/topk.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
/* ---- integers that kernels/x86/vec.h has no use for ---- */
#if V_WIDTH == 16
V_INLINE vec_int tk_load(const void *p) { return _mm512_loadu_si512(p); }
V_INLINE vec_int tk_load_n(const void *p, int64_t n) { return _mm512_maskz_loadu_epi32(v_first(n), p); }
V_INLINE void tk_store(void *p, vec_int v) { _mm512_storeu_si512(p, v); }
V_INLINE void tk_store_n(void *p, vec_int v, int64_t n) { _mm512_mask_storeu_epi32(p, v_first(n), v); }
V_INLINE vec_int tk_lanes(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
V_INLINE uint32_t tk_not_below(vec_int a, vec_int b) { return _mm512_cmpge_epu32_mask(a, b); }
V_INLINE uint32_t tk_equal(vec_int a, vec_int b) { return _mm512_cmpeq_epi32_mask(a, b); }
V_INLINE vec_int tk_min(vec_int a, vec_int b) { return _mm512_min_epu32(a, b); }
V_INLINE vec_int tk_max(vec_int a, vec_int b) { return _mm512_max_epu32(a, b); }
V_INLINE vec_int tk_keep(uint32_t bits, vec_int v, vec_int other) {
    return _mm512_mask_mov_epi32(other, (__mmask16)bits, v);
}
V_INLINE uint32_t tk_passing(vec score, vec at_least) { return _mm512_cmp_ps_mask(score, at_least, _CMP_GE_OQ); }
/* count += 1 in the lanes that are not below */
V_INLINE vec_int tk_count(vec_int count, vec_int key, vec_int bound) {
    return _mm512_mask_add_epi32(count, _mm512_cmpge_epu32_mask(key, bound), count, _mm512_set1_epi32(1));
}
V_INLINE vec_int tk_compress(uint32_t bits, vec_int v) { return _mm512_maskz_compress_epi32((__mmask16)bits, v); }
V_INLINE vec_int tk_keys(vec score) { /* topk_key */
    vec_int u = v_bits(v_add(score, v_zero()));
    vec_int key = _mm512_xor_si512(u, _mm512_or_si512(_mm512_srai_epi32(u, 31), _mm512_set1_epi32(INT32_MIN)));
    return _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(score, score, _CMP_ORD_Q), key);
}
#else
/* Of mask m: which lanes it has, lowest first, a nibble each. */
static const uint32_t tk_order[256] = {
    0x00000000, 0x00000000, 0x00000001, 0x00000010, 0x00000002, 0x00000020, 0x00000021, 0x00000210, 0x00000003,
    0x00000030, 0x00000031, 0x00000310, 0x00000032, 0x00000320, 0x00000321, 0x00003210, 0x00000004, 0x00000040,
    0x00000041, 0x00000410, 0x00000042, 0x00000420, 0x00000421, 0x00004210, 0x00000043, 0x00000430, 0x00000431,
    0x00004310, 0x00000432, 0x00004320, 0x00004321, 0x00043210, 0x00000005, 0x00000050, 0x00000051, 0x00000510,
    0x00000052, 0x00000520, 0x00000521, 0x00005210, 0x00000053, 0x00000530, 0x00000531, 0x00005310, 0x00000532,
    0x00005320, 0x00005321, 0x00053210, 0x00000054, 0x00000540, 0x00000541, 0x00005410, 0x00000542, 0x00005420,
    0x00005421, 0x00054210, 0x00000543, 0x00005430, 0x00005431, 0x00054310, 0x00005432, 0x00054320, 0x00054321,
    0x00543210, 0x00000006, 0x00000060, 0x00000061, 0x00000610, 0x00000062, 0x00000620, 0x00000621, 0x00006210,
    0x00000063, 0x00000630, 0x00000631, 0x00006310, 0x00000632, 0x00006320, 0x00006321, 0x00063210, 0x00000064,
    0x00000640, 0x00000641, 0x00006410, 0x00000642, 0x00006420, 0x00006421, 0x00064210, 0x00000643, 0x00006430,
    0x00006431, 0x00064310, 0x00006432, 0x00064320, 0x00064321, 0x00643210, 0x00000065, 0x00000650, 0x00000651,
    0x00006510, 0x00000652, 0x00006520, 0x00006521, 0x00065210, 0x00000653, 0x00006530, 0x00006531, 0x00065310,
    0x00006532, 0x00065320, 0x00065321, 0x00653210, 0x00000654, 0x00006540, 0x00006541, 0x00065410, 0x00006542,
    0x00065420, 0x00065421, 0x00654210, 0x00006543, 0x00065430, 0x00065431, 0x00654310, 0x00065432, 0x00654320,
    0x00654321, 0x06543210, 0x00000007, 0x00000070, 0x00000071, 0x00000710, 0x00000072, 0x00000720, 0x00000721,
    0x00007210, 0x00000073, 0x00000730, 0x00000731, 0x00007310, 0x00000732, 0x00007320, 0x00007321, 0x00073210,
    0x00000074, 0x00000740, 0x00000741, 0x00007410, 0x00000742, 0x00007420, 0x00007421, 0x00074210, 0x00000743,
    0x00007430, 0x00007431, 0x00074310, 0x00007432, 0x00074320, 0x00074321, 0x00743210, 0x00000075, 0x00000750,
    0x00000751, 0x00007510, 0x00000752, 0x00007520, 0x00007521, 0x00075210, 0x00000753, 0x00007530, 0x00007531,
    0x00075310, 0x00007532, 0x00075320, 0x00075321, 0x00753210, 0x00000754, 0x00007540, 0x00007541, 0x00075410,
    0x00007542, 0x00075420, 0x00075421, 0x00754210, 0x00007543, 0x00075430, 0x00075431, 0x00754310, 0x00075432,
    0x00754320, 0x00754321, 0x07543210, 0x00000076, 0x00000760, 0x00000761, 0x00007610, 0x00000762, 0x00007620,
    0x00007621, 0x00076210, 0x00000763, 0x00007630, 0x00007631, 0x00076310, 0x00007632, 0x00076320, 0x00076321,
    0x00763210, 0x00000764, 0x00007640, 0x00007641, 0x00076410, 0x00007642, 0x00076420, 0x00076421, 0x00764210,
    0x00007643, 0x00076430, 0x00076431, 0x00764310, 0x00076432, 0x00764320, 0x00764321, 0x07643210, 0x00000765,
    0x00007650, 0x00007651, 0x00076510, 0x00007652, 0x00076520, 0x00076521, 0x00765210, 0x00007653, 0x00076530,
    0x00076531, 0x00765310, 0x00076532, 0x00765320, 0x00765321, 0x07653210, 0x00007654, 0x00076540, 0x00076541,
    0x00765410, 0x00076542, 0x00765420, 0x00765421, 0x07654210, 0x00076543, 0x00765430, 0x00765431, 0x07654310,
    0x00765432, 0x07654320, 0x07654321, 0x76543210,
};
V_INLINE vec_int tk_load(const void *p) { return _mm256_loadu_si256(p); }
V_INLINE vec_int tk_load_n(const void *p, int64_t n) {
    return n >= V_WIDTH ? tk_load(p) : _mm256_maskload_epi32(p, v_first(n));
}
V_INLINE void tk_store(void *p, vec_int v) { _mm256_storeu_si256(p, v); }
V_INLINE void tk_store_n(void *p, vec_int v, int64_t n) {
    if (n >= V_WIDTH)
        tk_store(p, v);
    else
        _mm256_maskstore_epi32(p, v_first(n), v);
}
V_INLINE vec_int tk_lanes(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
V_INLINE vec_int tk_signed(vec_int a) { return _mm256_xor_si256(a, _mm256_set1_epi32(INT32_MIN)); }
V_INLINE vec_int tk_below(vec_int a, vec_int b) { return _mm256_cmpgt_epi32(tk_signed(b), tk_signed(a)); }
V_INLINE uint32_t tk_bits(vec_int mask) { return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(mask)); }
V_INLINE uint32_t tk_not_below(vec_int a, vec_int b) { return tk_bits(tk_below(a, b)) ^ 0xff; }
V_INLINE uint32_t tk_equal(vec_int a, vec_int b) { return tk_bits(_mm256_cmpeq_epi32(a, b)); }
V_INLINE vec_int tk_min(vec_int a, vec_int b) { return _mm256_min_epu32(a, b); }
V_INLINE vec_int tk_max(vec_int a, vec_int b) { return _mm256_max_epu32(a, b); }
V_INLINE vec_int tk_keep(uint32_t bits, vec_int v, vec_int other) {
    vec_int bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    vec_int mask = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit);
    return _mm256_blendv_epi8(other, v, mask);
}
V_INLINE uint32_t tk_passing(vec score, vec at_least) {
    return v_mask_bits(_mm256_cmp_ps(score, at_least, _CMP_GE_OQ));
}
V_INLINE vec_int tk_count(vec_int count, vec_int key, vec_int bound) { /* -1 is added where key >= bound */
    return vi_sub(count, _mm256_cmpeq_epi32(_mm256_max_epu32(key, bound), key));
}
V_INLINE vec_int tk_compress(uint32_t bits, vec_int v) {
    vec_int nibbles =
        _mm256_srlv_epi32(_mm256_set1_epi32((int)tk_order[bits]), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_permutevar8x32_epi32(v, nibbles);
}
V_INLINE vec_int tk_keys(vec score) {
    vec_int u = v_bits(v_add(score, v_zero()));
    vec_int flip = _mm256_or_si256(_mm256_srai_epi32(u, 31), _mm256_set1_epi32(INT32_MIN));
    return _mm256_and_si256(_mm256_xor_si256(u, flip), v_bits(_mm256_cmp_ps(score, score, _CMP_ORD_Q)));
}
#endif

enum { TK_ALL = (1 << V_WIDTH) - 1 };
V_INLINE uint32_t tk_first(int64_t n) { return n >= V_WIDTH ? (uint32_t)TK_ALL : n > 0 ? (1u << n) - 1 : 0; }

/* ---- the k-th largest key ---- */

/* How many keys are not below bound. */
static inline int64_t tk_count_list(const neap_candidates *c, uint32_t bound) {
    vec_int b = vi_set1((int32_t)bound), count[4];
    int32_t lanes[V_WIDTH];
    int64_t i = 0, sum = 0;
    V_UNROLL for (int t = 0; t < 4; t++) count[t] = vi_set1(0);
    for (; i + 4 * V_WIDTH <= c->n; i += 4 * V_WIDTH)
        V_UNROLL for (int t = 0; t < 4; t++) count[t] = tk_count(count[t], tk_load(c->order + i + t * V_WIDTH), b);
    for (; i + V_WIDTH <= c->n; i += V_WIDTH) count[0] = tk_count(count[0], tk_load(c->order + i), b);
    tk_store(lanes, vi_add(vi_add(count[0], count[1]), vi_add(count[2], count[3])));
    for (int l = 0; l < V_WIDTH; l++) sum += lanes[l];
    for (; i < c->n; i++) sum += c->order[i] >= bound;
    return sum;
}

static inline int64_t tk_count_lists(const neap_candidates *lists, int64_t n_lists, uint32_t bound) {
    int64_t sum = 0;
    for (int64_t l = 0; l < n_lists; l++) sum += tk_count_list(&lists[l], bound);
    return sum;
}

/* Widens [*low, *high] to all keys of c. */
static inline void tk_range(const neap_candidates *c, uint32_t *low, uint32_t *high) {
    uint32_t lanes[2][V_WIDTH];
    vec_int min = vi_set1(-1), max = vi_set1(0);
    int64_t i = 0;
    for (; i + V_WIDTH <= c->n; i += V_WIDTH) {
        min = tk_min(min, tk_load(c->order + i));
        max = tk_max(max, tk_load(c->order + i));
    }
    tk_store(lanes[0], min);
    tk_store(lanes[1], max);
    for (int l = 0; l < V_WIDTH && i > 0; l++) {
        if (lanes[0][l] < *low) *low = lanes[0][l];
        if (lanes[1][l] > *high) *high = lanes[1][l];
    }
    for (; i < c->n; i++) {
        if (c->order[i] < *low) *low = c->order[i];
        if (c->order[i] > *high) *high = c->order[i];
    }
}

/* What belongs to the k best of all lists, 1 <= k <= all keys: everything not below `at_least`; but of the keys that
 * equal it only the first n_equal. */
typedef struct tk_choice {
    uint32_t at_least;
    int64_t n_equal;
} tk_choice;
static inline tk_choice tk_choose(const neap_candidates *lists, int64_t n_lists, int64_t k) {
    uint32_t low = UINT32_MAX, high = 0;
    for (int64_t l = 0; l < n_lists; l++) tk_range(&lists[l], &low, &high);
    high++; /* low: at least k keys are not below; high: fewer than k are. Keys end far below UINT32_MAX. */
    int64_t n_high = 0;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        int64_t n = tk_count_lists(lists, n_lists, middle);
        if (n == k) return (tk_choice){middle, INT64_MAX};
        if (n > k)
            low = middle;
        else
            high = middle, n_high = n;
    }
    return (tk_choice){low, k - n_high};
}

/* Lanes of the choice among keys; counts down n_equal. */
V_INLINE uint32_t tk_chosen(tk_choice *c, vec_int keys, uint32_t valid) {
    vec_int at_least = vi_set1((int32_t)c->at_least);
    uint32_t bits = tk_not_below(keys, at_least) & valid;
    if (c->n_equal == INT64_MAX) return bits;
    uint32_t equal = tk_equal(keys, at_least) & valid;
    for (; equal; equal &= equal - 1)
        if (c->n_equal-- <= 0) bits &= ~(equal & -equal);
    return bits;
}

/* topk_cut: keeps the k best of more than k candidates; returns the new bound. */
static inline uint32_t tk_cut(neap_candidates *c, int64_t k) {
    tk_choice choice = tk_choose(c, 1, k);
    vec_int least = vi_set1(-1);
    uint32_t lanes[V_WIDTH], bound = UINT32_MAX;
    int64_t n = 0, i = 0;
    for (; i < c->n; i += V_WIDTH) { /* whole vectors: the gate leaves room behind the last candidate */
        vec_int keys = tk_load(c->order + i), positions = tk_load(c->positions + i);
        uint32_t bits = tk_chosen(&choice, keys, tk_first(c->n - i));
        least = tk_min(least, tk_keep(bits, keys, vi_set1(-1)));
        tk_store(c->order + n, tk_compress(bits, keys));
        tk_store(c->positions + n, tk_compress(bits, positions));
        n += __builtin_popcount(bits);
    }
    c->n = n;
    tk_store(lanes, least);
    for (int l = 0; l < V_WIDTH; l++) bound = lanes[l] < bound ? lanes[l] : bound;
    return bound + 1; /* later keys that equal the k-th lose the tie */
}

/* kernels.h, index_merge. */
static inline void tk_merge(int32_t *out, const neap_candidates *lists, int64_t n_lists, int64_t k) {
    tk_choice choice = tk_choose(lists, n_lists, k);
    int64_t n = 0;
    for (int64_t l = 0; l < n_lists; l++)
        for (int64_t i = 0; i < lists[l].n; i += V_WIDTH) {
            int64_t left = lists[l].n - i;
            uint32_t bits = tk_chosen(&choice, tk_load_n(lists[l].order + i, left), tk_first(left));
            vec_int positions = tk_compress(bits, tk_load_n(lists[l].positions + i, left));
            int count = __builtin_popcount(bits);
            tk_store_n(out + n, positions, n + V_WIDTH <= k ? V_WIDTH : count);
            n += count;
        }
}

/* ---- the gate ---- */

typedef struct tk_gate {
    neap_candidates *list;
    int64_t k, limit; /* limit: with more candidates the list is cut before a vector is appended */
    bool is_open;     /* everything passes */
    float at_least;
} tk_gate;

static inline void tk_gate_set(tk_gate *g, uint32_t bound) {
    uint32_t infinity = topk_key(-INFINITY), u;
    g->is_open = bound == 0;
    if (bound < infinity) bound = infinity; /* between NaN and -infinity there is nothing */
    u = bound & 0x80000000 ? bound & 0x7fffffff : ~bound;
    memcpy(&g->at_least, &u, sizeof u); /* above +infinity: NaN, which nothing passes */
}

static inline tk_gate tk_gate_begin(neap_candidates *list, int64_t k) {
    tk_gate g = {.list = list, .k = k, .limit = neap_candidates_capacity(k) - 2 * V_WIDTH};
    list->n = 0;
    tk_gate_set(&g, 0);
    return g;
}

/* Scores of the positions from `position`, the first `left` of them valid (all if more). */
V_INLINE void tk_gate_offer(tk_gate *g, vec scores, int64_t position, int64_t left) {
    uint32_t bits = (g->is_open ? (uint32_t)TK_ALL : tk_passing(scores, v_set1(g->at_least))) & tk_first(left);
    if (__builtin_expect(!bits, 1)) return;
    neap_candidates *c = g->list;
    if (c->n > g->limit) {
        tk_gate_set(g, tk_cut(c, g->k));
        bits &= tk_passing(scores, v_set1(g->at_least));
    }
    tk_store(c->order + c->n, tk_compress(bits, tk_keys(scores)));
    tk_store(c->positions + c->n, tk_compress(bits, vi_add(vi_set1((int32_t)position), tk_lanes())));
    c->n += __builtin_popcount(bits);
}
#endif

#endif
