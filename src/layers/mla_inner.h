/* What the files of the MLA layer share: its buffers of one step. mla_layer.c owns the order of the phases,
 * indexer.c chooses the positions, attend.c reads them. */
#ifndef NEAP_LAYERS_MLA_INNER_H
#define NEAP_LAYERS_MLA_INNER_H

#include "layers/builder.h"

typedef struct mla_args {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_caches *caches;
    int32_t layer, n_workers;
    neap_mla_spec spec;
    neap_latent_format latent;
    const neap_mla_weights *w;
    neap_x_form form; /* of the projections; the indexer's are always F32 */
    char *gemm_scratch;
    float *q_a;       /* [rows, q_lora] normed in place */
    float *q;         /* [rows, H, dn + dr] */
    float *kv;        /* [rows, r + dr] */
    float *gate;      /* [rows, H, dv] */
    float *q_abs;     /* [rows, H, r + dr] */
    float *o_lat;     /* [rows, H, r] */
    float *v;         /* [rows, H, dv] */
    float *cos, *sin; /* [rows, dr / 2] */
    neap_selection selection;

    /* attend.c */
    float *parts;               /* split mode: [split_rows_max, H, splits_max, r] */
    float *part_max, *part_sum; /* split mode: [splits_max][split_rows_max, H] */
    float *worker_parts;        /* [workers][worker_part_floats] one task's splits */
    float *worker_stats;        /* [workers] maxima and sums of these splits */
    float *attend_scratch;      /* [workers][neap_attend_scratch()] */
    int64_t worker_part_floats;
    int32_t splits_max, split_rows_max;

    /* indexer.c; only where the layer has an indexer of its own */
    neap_index_format index;
    float *index_q;        /* [rows, hi, di] */
    float *index_k;        /* [rows, di] */
    float *index_w;        /* [rows, hi] */
    float *index_scratch;  /* [workers][neap_index_scratch()] */
    uint32_t *orders;      /* [workers * NEAP_INDEX_ROWS][candidates] */
    int32_t *candidates;   /* the same */
    int64_t *n_candidates; /* [workers * NEAP_INDEX_ROWS] split mode */
} mla_args;

static inline bool mla_has_own_index(const neap_mla_spec *s) { return s->has_index && !s->index.is_shared; }
static inline int64_t mla_visible(const neap_batch *b, int64_t row) { return b->row_position[row] + 1; }
/* The last row of a tile sees most. */
static inline int64_t mla_tile_visible(const neap_batch *b, const neap_batch_tile *t) {
    return mla_visible(b, t->row_begin + t->n_rows - 1);
}
static inline void mla_rotate(const mla_args *a, int64_t row, neap_rope_kind kind, float *x) {
    if (kind == NEAP_ROPE_NONE) return;
    int64_t half = a->spec.d_rope / 2;
    a->k->rope(x, a->cos + row * half, a->sin + row * half, a->spec.d_rope, kind == NEAP_ROPE_INTERLEAVED);
}

/* The three branches of index preparation, each beside the MLA's own op of that phase and independent of the other
 * two: key (project | norm, rotate, quantise, store), head weights (project | scale), query (project, rotate,
 * quantise by head). Then scan beside the absorption, and the selection. */
void neap_indexer_claim(neap_builder *b, mla_args *a);
void neap_indexer_emit_inputs(neap_builder *b, const mla_args *a, neap_input *in);
void neap_indexer_emit_store(neap_builder *b, const mla_args *a);
void neap_indexer_emit_query(neap_builder *b, const mla_args *a);
void neap_indexer_emit_scan(neap_builder *b, const mla_args *a);
void neap_indexer_emit_select(neap_builder *b, const mla_args *a);

void neap_attend_claim(neap_builder *b, mla_args *a);
void neap_attend_emit(neap_builder *b, const mla_args *a);
/* In split mode o_lat is still in pieces: neap_attend_finish puts those of one head together, all rows. */
bool neap_attend_is_split(const mla_args *a);
void neap_attend_finish(const mla_args *a, int64_t head);

#endif
