/* How layers put their ops into a plan, and the fixed slots that change from step to step.
 *
 * A layer's emit function is run twice: first dry (no plan, no memory: it only counts what it would take), then
 * for real. So the announced sizes are the claimed sizes by construction. Work buffers live in one region:
 * what a sub-layer takes is given back when it ends, so the region is as large as the largest sub-layer. */
#ifndef NEAP_LAYERS_BUILDER_H
#define NEAP_LAYERS_BUILDER_H

#include "cache/caches.h"
#include "layers/layer.h"
#include "runtime/plan.h"

/* One sequence's rows in this step. */
typedef struct neap_batch_segment {
    int32_t slot, row_begin, n_rows;
    int64_t position; /* of the first row; 0: begins here, stored state is ignored */
    neap_tap_fn tap;
    void *tap_user;
} neap_batch_segment;

/* Up to NEAP_TILE_ROWS neighbouring rows of one sequence that kernels take together: what they read from the caches
 * is decoded once for all of them. All rows of a tile have the same attention split (neap_attend_split). */
enum { NEAP_TILE_ROWS = 8 };
_Static_assert((int)NEAP_TILE_ROWS <= (int)NEAP_ATTEND_ROWS && (int)NEAP_TILE_ROWS <= (int)NEAP_INDEX_ROWS, "tiles");
typedef struct neap_batch_tile {
    int32_t segment, row_begin, n_rows;
} neap_batch_tile;

typedef struct neap_batch {
    int32_t n_rows, n_segments, n_logits, n_tiles;
    int32_t *tokens;              /* [rows_max] */
    int32_t *row_segment;         /* [rows_max] */
    int64_t *row_position;        /* [rows_max] */
    int32_t *logit_rows;          /* [logits_max] row of each logits row, ascending */
    neap_batch_segment *segments; /* [seqs_max] */
    neap_batch_tile *tiles;       /* [rows_max] */
} neap_batch;

typedef struct neap_builder {
    neap_plan *plan;   /* NULL: dry run */
    neap_arena *arena; /* op arguments; NULL: dry run */
    const neap_kernels *k;
    const neap_network *net;
    const neap_batch *batch;
    neap_caches *caches; /* NULL: dry run */
    int32_t rows_max, seqs_max, n_workers;
    int64_t context_max; /* positions of the longest sequence */
    neap_row_kind latent_kind, index_kind;
    neap_x_form act, moe_act; /* how inputs enter products: all but routed experts, routed experts */
    bool has_taps;
    bool keeps_all;     /* tests: nothing in the work region is used twice */
    int32_t layer;      /* being emitted; names taps, selects the cache layer */
    char *gemm_scratch; /* [n_workers][NEAP_GEMM_SCRATCH], for the whole plan (neap_builder_begin) */
    char *work;         /* region; NULL: dry run */
    uint64_t work_used, work_peak;
    uint64_t args_bytes; /* counted in both runs */
    int32_t n_ops;
    neap_status status; /* first failure; later calls do nothing */
} neap_builder;

/* First call: claims what all ops share. */
void neap_builder_begin(neap_builder *b);
static inline void *neap_gemm_scratch_of(char *scratch, int32_t worker) {
    return scratch + (int64_t)worker * NEAP_GEMM_SCRATCH;
}
/* n floats (ints) of the work region, 64-byte aligned. In a dry run the pointer must not be read or written. */
float *neap_builder_floats(neap_builder *b, int64_t n);
int32_t *neap_builder_ints(neap_builder *b, int64_t n);
/* Everything taken after the mark is given back. */
static inline uint64_t neap_builder_mark(const neap_builder *b) { return b->work_used; }
static inline void neap_builder_release(neap_builder *b, uint64_t mark) {
    if (!b->keeps_all) b->work_used = mark;
}
/* Adds an op with a copy of args. */
void neap_builder_op(neap_builder *b, const char *name, bool is_beside, int64_t (*count)(const void *),
                     void (*run)(const void *, int64_t, int64_t, int32_t), const void *args, size_t args_bytes);

/* y[i, :] = W x[i, :] for all rows of the step (or the listed ones); up to NEAP_LINEAR_MAX matrices that share
 * their input form one op whose tasks are panels. A result that decides a discrete choice (router, indexer) takes x in
 * F32 whatever the options say. */
enum { NEAP_LINEAR_MAX = 8 };
typedef struct neap_linear_target {
    const neap_matrix *w;
    float *y;
    int64_t ldy;
    neap_x_form form;
} neap_linear_target;
void neap_linear_emit(neap_builder *b, const char *name, bool is_beside, const float *x, int64_t ldx,
                      const neap_linear_target *targets, int32_t n);
/* The head: rows batch->logit_rows of x to consecutive rows of y. */
void neap_head_emit(neap_builder *b, const float *x, int64_t ldx, const neap_matrix *w, float *y, int64_t ldy);

/* h = act(gate x, up x) over the panels of gate: gate->y becomes h, u holds up x, both [m][ldy]. The two weights have
 * the same shape. */
void neap_glu_products(const neap_kernels *k, const neap_gemm_args *gate, const neap_matrix *up, float *u,
                       const neap_act *act);

/* Rows [rows, width] shown to the segments that asked (no-op without taps). suffix -1: no ".N". */
void neap_tap_emit(neap_builder *b, const char *name, int32_t suffix, const void *data, int64_t ld, int64_t width,
                   bool is_int);
/* Logits rows, for the segments that asked. */
void neap_tap_logits_emit(neap_builder *b, const float *logits, int64_t vocab);

/* ---- sub-layers: x [rows, C] normed input -> y [rows, C] ---- */
void neap_kda_emit(neap_builder *b, const neap_kda_spec *s, const neap_kda_weights *w, const float *x, float *y);
/* lists: the selection of the nearest earlier full indexer, shared across layers. */
typedef struct neap_selection {
    int32_t *lists;   /* [rows_max][topk_max], ascending positions, -1 unused */
    int32_t *n_lists; /* [rows_max] */
    int32_t ld;       /* topk_max */
} neap_selection;
void neap_mla_emit(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w, neap_selection *selection,
                   const float *x, float *y);
void neap_mlp_emit(neap_builder *b, const neap_mlp_weights *w, int64_t width, const float *x, float *y);
void neap_moe_emit(neap_builder *b, const neap_moe_spec *s, const neap_moe_weights *w, const float *x, float *y);

/* What one layer keeps between steps. */
neap_cache_layer_spec neap_kda_cache(const neap_kda_spec *s);
neap_cache_layer_spec neap_mla_cache(const neap_mla_spec *s, neap_row_kind latent, neap_row_kind index);

/* ---- the residual stream (plain or AttnRes) ---- */
enum { NEAP_STREAM_BANK_MAX = 1024 }; /* blocks of layers */
typedef struct neap_stream {
    float *p;        /* [rows, C] running sum */
    float *bank;     /* [blocks][rows, C] snapshots, NULL without AttnRes */
    float *mix;      /* [rows, C] the last mix of bank and p (what the norm reads): y; NULL without AttnRes */
    float *x;        /* [rows, C] normed input of the next sub-layer */
    float *y;        /* [rows, C] output of the last sub-layer, not yet added */
    float *weights;  /* [rows][n_mixes][ld_weights] stage 1 of the block's mixes */
    float *kept;     /* [kept_rows][n_mixes][C] their weighted sums over the bank */
    int64_t n_mixes; /* that see the same bank: two per layer of a block */
    int64_t ld_weights, kept_rows;
    int32_t n_bank; /* snapshots so far, while emitting */
    int32_t i_mix;  /* number of the next mix, while emitting */
    bool has_y;     /* y is pending */
    bool is_fresh;  /* the pending y replaces p instead of being added */
} neap_stream;
/* Takes the stream's buffers. */
void neap_stream_claim(neap_builder *b, neap_stream *s);
/* p = embedding rows of the step's tokens. */
void neap_embed_emit(neap_builder *b, neap_stream *s);
/* Adds the pending y, mixes with `res` (NULL: no mix), takes a snapshot if is_block_start, norms into x. */
void neap_residual_emit(neap_builder *b, neap_stream *s, const char *name, const float *res, bool is_block_start,
                        const float *norm);

#endif
