/* What the files of the MLA layer share: its sizes and its buffers of one step. mla_layer.c owns the order of the
 * phases, indexer.c chooses the positions, attend.c reads them. */
#ifndef NEAP_LAYERS_MLA_INNER_H
#define NEAP_LAYERS_MLA_INNER_H

#include <stddef.h>
#include <string.h>

#include "layers/builder.h"

typedef struct mla_args {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_caches *caches;
    int32_t layer, n_workers;
    int32_t rows_max;
    bool is_few;
    bool makes_q; /* mla.query: q = W_qb qr is part of it */
    neap_mla_spec spec;
    neap_latent_format latent;
    neap_index_format index;
    const neap_mla_weights *w;
    neap_x_form form; /* of the projections; the indexer's are always F32 */
    int64_t worker_part_floats, prefetch_bytes;
    int32_t splits_max, split_rows_max;
    char *gemm_scratch;

    /* Buffers. An op's arguments hold those that it uses (neap_mla_without_buffers), because they live while somebody
     * holds them. */
    float *q_a;       /* [rows, q_lora] raw; normed in place by the many class */
    float *qr;        /* few class: [workers][rows, q_lora] normed, each worker's own */
    float *q;         /* [rows, H, dn + dr] */
    float *kv;        /* [rows, r + dr] */
    float *gate;      /* [rows, H, dv] */
    float *q_abs;     /* [rows, H, r + dr] */
    float *o_lat;     /* [rows, H, r] */
    float *v;         /* [rows, H, dv] */
    float *cos, *sin; /* [rows, dr / 2] */
    neap_selection selection;

    /* attend.c */
    float *parts;                /* split mode: [split_rows_max, H, splits_max, r] */
    float *part_max, *part_sum;  /* split mode: [splits_max][split_rows_max, H] */
    float *worker_parts;         /* [workers][worker_part_floats] one task's splits */
    float *worker_stats;         /* [workers] maxima and sums of these splits */
    float *attend_scratch;       /* [workers][neap_attend_scratch()] */
    neap_counter *attend_counts; /* [H] tasks of a group of heads that are done */

    /* indexer.c; only where the layer has an indexer of its own */
    float *index_q;            /* [rows, hi, di] */
    float *index_k;            /* [rows, di] */
    float *index_w;            /* [rows, hi] */
    float *index_scratch;      /* [workers][neap_index_scratch()] */
    uint32_t *orders;          /* [workers * NEAP_INDEX_ROWS][candidates] */
    int32_t *candidates;       /* the same */
    int64_t *n_candidates;     /* [workers * NEAP_INDEX_ROWS] split mode */
    neap_counter *scan_counts; /* [NEAP_INDEX_ROWS] split mode: pieces of a tile that are done */
} mla_args;

/* Everything but the buffers. */
static inline mla_args neap_mla_without_buffers(const mla_args *a) {
    mla_args out = *a;
    memset((char *)&out + offsetof(mla_args, q_a), 0, sizeof out - offsetof(mla_args, q_a));
    return out;
}

static inline bool mla_has_own_index(const neap_mla_spec *s) { return s->has_index && !s->index.is_shared; }
static inline int64_t mla_visible(const neap_batch *b, int64_t row) { return b->row_position[row] + 1; }
/* The last row of a tile sees most. */
static inline int64_t mla_tile_visible(const neap_batch *b, const neap_batch_tile *t) {
    return mla_visible(b, t->row_begin + t->n_rows - 1);
}
/* Panels [begin, end) of w for all rows of the step. */
static inline void mla_product(const mla_args *a, const neap_matrix *w, int64_t begin, int64_t end, neap_x_form form,
                               const float *x, int64_t ldx, float *y, int64_t ldy, int32_t worker) {
    neap_gemm_args g = {.y = y,
                        .ldy = ldy,
                        .x = x,
                        .ldx = ldx,
                        .m = a->batch->n_rows,
                        .w = w,
                        .panel_begin = begin,
                        .panel_end = end,
                        .x_form = form,
                        .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
    neap_gemm(a->k, &g);
}
static inline void mla_rotate(const mla_args *a, int64_t row, neap_rope_kind kind, float *x) {
    if (kind == NEAP_ROPE_NONE) return;
    int64_t half = a->spec.d_rope / 2;
    a->k->rope(x, a->cos + row * half, a->sin + row * half, a->spec.d_rope, kind == NEAP_ROPE_INTERLEAVED);
}

/* A matrix of n blocks of d outputs each, cut into tasks of whole panels: the fewest blocks that are whole panels. */
static inline int64_t mla_task_blocks(int64_t d) {
    int64_t blocks = 1;
    while (blocks * d % NEAP_PANEL) blocks *= 2;
    return blocks;
}
/* The first panel of block i; i = n: the end. */
static inline int64_t mla_first_panel(const neap_matrix *w, int64_t i, int64_t n, int64_t d) {
    return i < n ? i * d / NEAP_PANEL : neap_matrix_panels(w);
}

/* qr: the normed q_a of all rows. In the few class this worker's own copy, made here. */
const float *neap_mla_qr(const mla_args *a, int32_t worker);
/* v of heads [begin, end), all rows: the value projection and the output gate. */
void neap_mla_expand(const mla_args *a, int64_t begin, int64_t end, int32_t worker);
void neap_mla_expand_cost(const void *args, neap_op_cost *out); /* is added to *out */
/* Declares that the op added last writes `width` elements of each row. */
static inline void mla_output(neap_builder *b, const void *data, int64_t width) {
    neap_builder_output(b, data, width, width, b->batch ? &b->batch->n_rows : NULL, 1);
}

/* Into the second-level cache. */
static inline void mla_prefetch(const char *begin, const char *end) {
    for (const char *p = begin; p < end; p += 64) __builtin_prefetch(p, 0, 2);
}

/* The three branches of index preparation, independent of each other: key (project | norm, rotate, quantise, store),
 * head weights (project | scale), query (project, rotate, quantise by head). Then the scan, which also selects. */
void neap_indexer_claim(neap_builder *b, mla_args *a);
int32_t neap_indexer_targets(const mla_args *a, neap_linear_target *targets); /* of the projections; returns how many */
void neap_indexer_emit_store(neap_builder *b, const mla_args *a, bool is_beside);
void neap_indexer_emit_weights(neap_builder *b, const mla_args *a, bool is_beside);
void neap_indexer_emit_query(neap_builder *b, const mla_args *a, bool is_beside);
void neap_indexer_emit_scan(neap_builder *b, const mla_args *a, bool is_beside);

void neap_attend_claim(neap_builder *b, mla_args *a);
/* Writes o_lat; in the few class also v. */
void neap_attend_emit(neap_builder *b, const mla_args *a);

#endif
