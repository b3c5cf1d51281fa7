/* Absorbed MLA attention of one token over cached rows: the definition.
 *
 *   score[h, j] = scale * (q[h] . row_j)             dot16 over the r + dr values of the row
 *   e = exp(score - max),  sum = sum16(e),  out[h] = (chain over ascending j of e_j latent_j) * (1 / sum)
 *   lse[h] = max + log(sum)
 *
 * All heads share the rows (latent, then key part), so a cached token costs r + dr values whatever the number
 * of heads. Rows are visited in the order of the list. Source: docs/numerics.md section 4. */
#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/vmath.h"

static const float *row_at(const neap_attn_args *a, int64_t i) {
    return neap_paged_row(&a->cache, a->list ? a->list[i] : i);
}

static void attn(const neap_attn_args *a) {
    for (int64_t h = 0; h < a->n_heads; h++) {
        const float *q = a->q + h * a->ld_q;
        float *e = a->scratch, *out = a->out + h * a->ld_out, max = -INFINITY;
        for (int64_t i = 0; i < a->n_list; i++) {
            e[i] = a->scale * dot16(q, row_at(a, i), a->r + a->dr);
            max = e[i] > max ? e[i] : max;
        }
        for (int64_t i = 0; i < a->n_list; i++) e[i] = vm_exp(e[i] - max);
        float sum = sum16(e, a->n_list), inverse = 1.0f / sum;

        for (int64_t c = 0; c < a->r; c++) out[c] = 0;
        for (int64_t i = 0; i < a->n_list; i++) {
            const float *row = row_at(a, i);
            for (int64_t c = 0; c < a->r; c++) out[c] = fmaf(e[i], row[c], out[c]);
        }
        for (int64_t c = 0; c < a->r; c++) out[c] *= inverse;
        if (a->lse) a->lse[h] = max + vm_log(sum);
    }
}

void neap_attn_scalar_init(neap_kernels *k) { k->attn = attn; }
