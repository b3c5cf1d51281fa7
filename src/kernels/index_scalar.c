/* Lightning indexer: score a range of cached keys for a few rows, keep what may belong to the k best of each.
 *
 *   I[j] = chain over ascending h of fmaf(w[h], relu(q[h] . k_j), acc),  the dot product one chain over ascending d
 *
 * relu(NaN) is NaN, which then ranks last. The keys come from pages (tensor/pages.h), decoded one by one; topk.h
 * has the list of candidates and its bound, and the merge of the lists of several ranges.
 * Source: docs/numerics.md section 5. */
#include <math.h>

#include "kernels/families.h"
#include "kernels/topk.h"

/* One row, one key. */
static float score(const float *q, const float *w, const float *key, int64_t n_heads, int64_t d) {
    float sum = 0;
    for (int64_t h = 0; h < n_heads; h++) {
        float dot = 0;
        for (int64_t e = 0; e < d; e++) dot = fmaf(q[h * d + e], key[e], dot);
        sum = fmaf(w[h], 0.0f > dot ? 0.0f : dot, sum);
    }
    return sum;
}

static void scan_row(const neap_index_scan_args *a, int64_t i) {
    neap_candidates *c = &a->out[i];
    int64_t end = a->n[i] < a->end ? a->n[i] : a->end;
    uint32_t bound = 0;
    c->n = 0;
    for (int64_t j = a->begin; j < end; j++) {
        neap_index_get(&a->format, neap_pages_at(&a->keys, j), j % NEAP_PAGE_ROWS, a->scratch);
        uint32_t key = topk_key(score(a->q + i * a->ld_q, a->w + i * a->ld_w, a->scratch, a->n_heads, a->format.d));
        if (key < bound) continue;
        c->order[c->n] = key;
        c->positions[c->n++] = (int32_t)j;
        if (c->n == neap_candidates_capacity(a->k)) bound = topk_cut(c, a->k);
    }
}

static void index_scan(const neap_index_scan_args *a) {
    for (int64_t i = 0; i < a->n_rows; i++) scan_row(a, i);
}

void neap_index_scalar_init(neap_kernels *k) {
    k->index_scan = index_scan;
    k->index_merge = topk_merge;
}
