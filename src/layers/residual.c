/* The residual stream: plain sums, or attention residuals (AttnRes, docs/numerics.md section 8).
 *
 * State per token: a bank of snapshots B_0.. (raw running sums taken at the start of each block of layers) and
 * the running sum p. Before every sub-layer, with c = norm weight * projection row:
 *     l_s = (X_s . c) * rsqrt(mean X_s^2 + eps),  a = softmax over {bank, p},  mix = sum_s a_s X_s
 * computed in two stages: the bank part (max, denominator, weighted sum), then the merge with p. A layer that
 * starts a block appends p to the bank after its own mix, and its output replaces p.
 *
 * One op per sub-layer does everything between two sub-layers, row by row: add the pending output to p, mix,
 * snapshot, norm. Rows are independent, so one barrier is enough. */
#include <assert.h>
#include <string.h>

#include "layers/builder.h"

typedef struct residual_args {
    const neap_kernels *k;
    const neap_batch *batch;
    float *p, *mix, *x;
    const float *y;   /* pending output or NULL */
    bool replaces;    /* p = y instead of p += y */
    const float *res; /* c, or NULL */
    float *bank;      /* [n][rows_max, C] */
    int64_t bank_stride;
    int32_t n_bank;      /* snapshots that the mix reads */
    bool takes_snapshot; /* then p goes to snapshot n_bank */
    const float *norm;
    int64_t width;
    float eps;
} residual_args;

static int64_t rows_count(const void *p) { return ((const residual_args *)p)->batch->n_rows; }

static void residual_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const residual_args *a = ptr;
    (void)worker;
    int64_t c = a->width;
    const float *bank[NEAP_ATTNRES_MAX];
    for (int64_t r = begin; r < end; r++) {
        float *p = a->p + r * c;
        if (a->y) {
            if (a->replaces)
                memcpy(p, a->y + r * c, (size_t)c * sizeof(float));
            else
                a->k->add(p, a->y + r * c, c);
        }
        const float *mixed = p;
        if (a->res && a->n_bank > 0) {
            float max, den, *acc = a->mix + r * c;
            for (int32_t s = 0; s < a->n_bank; s++) bank[s] = a->bank + s * a->bank_stride + r * c;
            a->k->attnres_bank(acc, &max, &den, bank, a->n_bank, a->res, c, a->eps);
            a->k->attnres_merge(acc, acc, max, den, p, a->res, c, a->eps);
            mixed = acc;
        }
        if (a->takes_snapshot) memcpy(a->bank + a->n_bank * a->bank_stride + r * c, p, (size_t)c * sizeof(float));
        a->k->rmsnorm(a->x + r * c, mixed, a->norm, c, a->eps);
    }
}

void neap_residual_emit(neap_builder *b, neap_stream *s, const char *name, const float *res, bool is_block_start,
                        const float *norm) {
    int64_t c = b->net->width;
    residual_args a = {.k = b->k,
                       .batch = b->batch,
                       .p = s->p,
                       .mix = s->mix,
                       .x = s->x,
                       .y = s->has_y ? s->y : NULL,
                       .replaces = s->is_fresh,
                       .res = res,
                       .bank = s->bank,
                       .bank_stride = b->rows_max * c,
                       .n_bank = s->n_bank,
                       .takes_snapshot = is_block_start,
                       .norm = norm,
                       .width = c,
                       .eps = b->net->eps};
    assert(s->n_bank < NEAP_ATTNRES_MAX);
    neap_builder_op(b, name, false, rows_count, residual_run, &a, sizeof a);
    s->n_bank += is_block_start;
    s->has_y = true;
    s->is_fresh = is_block_start;
}

/* ---- embedding ---- */

typedef struct embed_args {
    const neap_batch *batch;
    const neap_matrix *embed;
    float *p;
    int64_t width;
} embed_args;

static int64_t embed_count(const void *p) { return ((const embed_args *)p)->batch->n_rows; }

static void embed_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const embed_args *a = ptr;
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        neap_matrix_unpack_rows(a->embed, a->batch->tokens[r], 1, a->p + r * a->width, a->width);
}

void neap_embed_emit(neap_builder *b, neap_stream *s) {
    embed_args a = {.batch = b->batch, .embed = &b->net->embed, .p = s->p, .width = b->net->width};
    neap_builder_op(b, "embed", false, embed_count, embed_run, &a, sizeof a);
    s->has_y = false;
    s->is_fresh = false;
    s->n_bank = 0;
}
