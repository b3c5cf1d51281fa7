/* Lightning indexer of one token: score all cached keys, keep the k best positions.
 *
 *   I[j] = chain over ascending h of fmaf(w[h], relu(q[h] . k_j), acc),  the dot product as dot16
 *
 * While n <= k everything is selected and nothing is scored. relu(NaN) is NaN, which then ranks last.
 * Source: docs/numerics.md section 5. */
#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/topk.h"

static void index_topk(const neap_index_args *a) {
    if (a->n <= a->k) {
        for (int64_t j = 0; j < a->n; j++) a->out[j] = (int32_t)j;
        return;
    }
    for (int64_t j = 0; j < a->n; j++) {
        const float *key = neap_paged_row(&a->keys, j);
        float acc = 0;
        for (int64_t h = 0; h < a->n_heads; h++) {
            float s = dot16(a->q + h * a->d, key, a->d);
            acc = fmaf(a->w[h], 0.0f > s ? 0.0f : s, acc);
        }
        a->scores[j] = acc;
    }
    topk_select(a->out, a->scores, a->n, a->k);
}

void neap_index_scalar_init(neap_kernels *k) { k->index = index_topk; }
