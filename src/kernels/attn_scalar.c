/* Absorbed MLA attention of rows of one sequence over paged latents: the definition of attend and attend_merge.
 *
 * One call is one split of what the rows see. Per row: its positions in [begin, end), page by page; the page's rows
 * decoded to F32 [n][r + dr]; then per head
 *   s = scale * (q . row_j),  M = max(m, s),  o and l times e^(m - M),  e = e^(s - M),  l += sum16(e),  o += e latent
 * so that (o, l, m) is at any time the attention over the pages so far, before the division by l. The merge weighs
 * splits by e^(m - max) and divides.
 *
 * All heads share the rows (latent, then key part), so a cached token costs r + dr values whatever the number
 * of heads. Source: docs/numerics.md section 4. */
#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/vmath.h"

enum { PAGE = NEAP_PAGE_ROWS };

typedef struct attend_state {
    float *o, *max, *sum; /* of one row and head */
} attend_state;

static attend_state attend_state_at(const neap_attend_args *a, int64_t i, int64_t h) {
    return (attend_state){a->out + i * a->ld_out_row + h * a->ld_out_head, &a->max[i * a->ld_stat + h],
                          &a->sum[i * a->ld_stat + h]};
}

/* Positions tile[0 .. n) of one page join the state of a head. */
static void attend_page(const neap_attend_args *a, const float *q, const float *tile, int64_t n, attend_state s) {
    int64_t r = a->format.r, width = r + a->format.dr;
    float e[PAGE], max = *s.max;
    for (int64_t j = 0; j < n; j++) {
        e[j] = a->scale * dot16(q, tile + j * width, width);
        max = e[j] > max ? e[j] : max;
    }
    if (max > *s.max) {
        float c = vm_exp(*s.max - max);
        for (int64_t d = 0; d < r; d++) s.o[d] *= c;
        *s.sum *= c;
        *s.max = max;
    }
    for (int64_t j = 0; j < n; j++) e[j] = vm_exp(e[j] - max);
    *s.sum += sum16(e, n);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < r; d++) s.o[d] = fmaf(e[j], tile[j * width + d], s.o[d]);
}

static void attend_row(const neap_attend_args *a, int64_t i) {
    const neap_latent_format *f = &a->format;
    const int32_t *list = a->lists ? a->lists + i * a->ld_list : NULL;
    int64_t at = 0, end = a->n_list[i];
    for (int64_t h = 0; h < a->n_heads; h++) {
        attend_state s = attend_state_at(a, i, h);
        for (int64_t d = 0; d < f->r; d++) s.o[d] = 0;
        *s.sum = 0;
        *s.max = -INFINITY;
    }
    while (at < end && (list ? list[at] : at) < a->begin) at++;
    while (at < end && (list ? list[at] : at) < a->end) {
        int64_t page = (list ? list[at] : at) / PAGE, n = 0;
        for (; at < end; at++, n++) {
            int64_t position = list ? list[at] : at;
            if (position / PAGE != page || position >= a->end) break;
            neap_latent_get(f, neap_pages_at(&a->cache, position), position % PAGE,
                            a->scratch + n * ((int64_t)f->r + f->dr));
        }
        for (int64_t h = 0; h < a->n_heads; h++)
            attend_page(a, a->q + i * a->ld_row + h * a->ld_head, a->scratch, n, attend_state_at(a, i, h));
    }
}

static void attend(const neap_attend_args *a) {
    for (int64_t i = 0; i < a->n_rows; i++) attend_row(a, i);
}

static void attend_merge(const neap_attend_merge_args *a) {
    float max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < a->n_parts; s++) max = a->max[s * a->ld_stat] > max ? a->max[s * a->ld_stat] : max;
    if (a->n_parts == 1) {
        sum = a->sum[0];
        for (int64_t d = 0; d < a->r; d++) a->out[d] = a->parts[d];
    } else {
        for (int64_t d = 0; d < a->r; d++) a->out[d] = 0;
        for (int64_t s = 0; s < a->n_parts; s++) {
            float m = a->max[s * a->ld_stat], l = a->sum[s * a->ld_stat];
            if (m == -INFINITY && l == 0) continue; /* no position */
            float c = vm_exp(m - max);
            sum = fmaf(c, l, sum);
            for (int64_t d = 0; d < a->r; d++) a->out[d] = fmaf(c, a->parts[s * a->ld_part + d], a->out[d]);
        }
    }
    float inverse = 1.0f / sum;
    for (int64_t d = 0; d < a->r; d++) a->out[d] *= inverse;
}

void neap_attn_scalar_init(neap_kernels *k) {
    k->attend = attend;
    k->attend_merge = attend_merge;
}
