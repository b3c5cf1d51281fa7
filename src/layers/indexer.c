/* The lightning indexer of an MLA layer (docs/numerics.md section 5): which positions each row attends to.
 *
 *   key:     k = rotate(LayerNorm(W_k x)), written into the index pages in their format
 *   weights: w = W_w x / sqrt(hi di)
 *   query:   q = rotate(W_q qr) by head, rounded as the keys are (MXFP8)
 *   scan:    tiles of up to 8 rows of one sequence; scores and a streaming Top-K in one kernel, no score matrix
 *   select:  exact merge, ascending positions
 * A prefill has enough tiles for all workers: one task scans all keys of its tile. A step of few rows (decode)
 * cuts every tile's key range into one piece per worker, and whoever finishes a tile's last piece merges them. Both
 * give the same selection: it is exact either way. */
#include <math.h>

#include "layers/mla_inner.h"

enum {
    SPLIT_ROWS = NEAP_INDEX_ROWS, /* rows of a step that may be scanned in pieces */
    PIECES_MAX = 64,
};

static int64_t rows_count(const void *p) { return ((const mla_args *)p)->batch->n_rows; }

static void key_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    const neap_index_spec *s = &a->spec.index;
    for (int64_t row = begin; row < end; row++) {
        const neap_batch_segment *seg = &a->batch->segments[a->batch->row_segment[row]];
        int64_t position = a->batch->row_position[row];
        float *key = a->index_k + row * s->head_dim;
        a->k->layernorm(key, key, a->w->index.k_norm, a->w->index.k_norm_bias, s->head_dim, s->norm_eps);
        mla_rotate(a, row, s->rope, key);
        uint8_t *page = neap_caches_index_page(a->caches, a->layer, seg->slot, position);
        neap_index_put(&a->index, page, position % NEAP_PAGE_ROWS, key);
    }
}

static void weights_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    int64_t hi = a->spec.index.n_heads;
    /* Positive constants: they keep the published scale of the scores. */
    float factor = 1.0f / sqrtf((float)hi) * (1.0f / sqrtf((float)a->spec.index.head_dim));
    for (int64_t i = begin * hi; i < end * hi; i++) a->index_w[i] *= factor;
}

/* A task is a head where heads are whole panels, else the fewest heads that are. */
static int64_t query_count(const void *p) {
    const mla_args *a = p;
    int64_t blocks = mla_task_blocks(a->spec.index.head_dim);
    return a->batch->n_rows == 0 ? 0 : (a->spec.index.n_heads + blocks - 1) / blocks;
}

static void query_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    const neap_matrix *w = &a->w->index.wq_b;
    int64_t di = a->spec.index.head_dim, hi = a->spec.index.n_heads, blocks = mla_task_blocks(di);
    int64_t from = begin * blocks, to = end * blocks < hi ? end * blocks : hi;
    mla_product(a, w, mla_first_panel(w, from, hi, di), mla_first_panel(w, to, hi, di), NEAP_X_F32,
                neap_mla_qr(a, worker), a->spec.q_lora, a->index_q, hi * di, worker);
    for (int64_t row = 0; row < a->batch->n_rows; row++)
        for (int64_t h = from; h < to; h++) {
            float *q = a->index_q + (row * hi + h) * di;
            mla_rotate(a, row, a->spec.index.rope, q);
            neap_index_round_query(&a->index, q);
        }
}

/* ---- scan and select ---- */

static bool is_split(const mla_args *a) {
    return a->n_workers > 1 && a->batch->n_rows <= SPLIT_ROWS && a->batch->n_tiles < 2 * a->n_workers;
}

static int32_t pieces_of(const mla_args *a) { return a->n_workers < PIECES_MAX ? a->n_workers : PIECES_MAX; }

static int64_t scan_count(const void *p) {
    const mla_args *a = p;
    return (int64_t)a->batch->n_tiles * (is_split(a) ? pieces_of(a) : 1);
}

/* The candidate buffer number i of the pool. */
static neap_candidates buffer_at(const mla_args *a, int64_t i) {
    int64_t capacity = neap_candidates_capacity(a->spec.index.topk);
    return (neap_candidates){.order = a->orders + i * capacity, .positions = a->candidates + i * capacity};
}

static void select_all(const mla_args *a, int64_t row) {
    int32_t n = (int32_t)mla_visible(a->batch, row), *list = a->selection.lists + row * a->selection.ld;
    for (int32_t i = 0; i < n; i++) list[i] = i;
    a->selection.n_lists[row] = n;
}

static void finish_list(const mla_args *a, int64_t row) {
    int32_t *list = a->selection.lists + row * a->selection.ld;
    for (int32_t i = a->selection.n_lists[row]; i < a->selection.ld; i++) list[i] = -1;
}

static void select_from(const mla_args *a, int64_t row, const neap_candidates *lists, int64_t n) {
    a->k->index_merge(a->selection.lists + row * a->selection.ld, lists, n, a->spec.index.topk);
    a->selection.n_lists[row] = a->spec.index.topk;
}

/* Keys [begin, end) for all rows of a tile. */
static void scan_tile(const mla_args *a, const neap_batch_tile *tile, int64_t begin, int64_t end, int32_t worker,
                      neap_candidates *out) {
    const neap_index_spec *s = &a->spec.index;
    const neap_batch_segment *seg = &a->batch->segments[tile->segment];
    int32_t n[NEAP_INDEX_ROWS];
    for (int32_t i = 0; i < tile->n_rows; i++) {
        int64_t visible = mla_visible(a->batch, tile->row_begin + i);
        n[i] = visible > s->topk ? (int32_t)visible : 0; /* 0: selects everything, nothing to scan */
    }
    neap_index_scan_args x = {.format = a->index,
                              .keys = neap_caches_index_keys(a->caches, a->layer, seg->slot),
                              .q = a->index_q + (int64_t)tile->row_begin * s->n_heads * s->head_dim,
                              .w = a->index_w + (int64_t)tile->row_begin * s->n_heads,
                              .ld_q = (int64_t)s->n_heads * s->head_dim,
                              .ld_w = s->n_heads,
                              .n_rows = tile->n_rows,
                              .n_heads = s->n_heads,
                              .k = s->topk,
                              .n = n,
                              .begin = begin,
                              .end = end,
                              .out = out,
                              .scratch = a->index_scratch + worker * neap_index_scratch(&a->index, s->n_heads)};
    a->k->index_scan(&x);
}

static void scan_whole(const mla_args *a, const neap_batch_tile *tile, int32_t worker) {
    neap_candidates out[NEAP_INDEX_ROWS];
    for (int32_t i = 0; i < tile->n_rows; i++) out[i] = buffer_at(a, worker * NEAP_INDEX_ROWS + i);
    int64_t n = mla_tile_visible(a->batch, tile);
    if (n > a->spec.index.topk) scan_tile(a, tile, 0, n, worker, out);
    for (int32_t i = 0; i < tile->n_rows; i++) {
        int64_t row = tile->row_begin + i;
        if (mla_visible(a->batch, row) <= a->spec.index.topk)
            select_all(a, row);
        else
            select_from(a, row, &out[i], 1);
        finish_list(a, row);
    }
}

/* One of the pieces of a tile's keys, cut at pages. */
static void scan_piece(const mla_args *a, const neap_batch_tile *tile, int64_t piece, int32_t worker) {
    int64_t n = mla_tile_visible(a->batch, tile), pages = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS,
            n_pieces = pieces_of(a);
    if (n <= a->spec.index.topk) return;
    int64_t begin = pages * piece / n_pieces * NEAP_PAGE_ROWS;
    int64_t end = pages * (piece + 1) / n_pieces * NEAP_PAGE_ROWS;
    neap_candidates out[NEAP_INDEX_ROWS];
    for (int32_t i = 0; i < tile->n_rows; i++) out[i] = buffer_at(a, (tile->row_begin + i) * n_pieces + piece);
    scan_tile(a, tile, begin, end < n ? end : n, worker, out);
    for (int32_t i = 0; i < tile->n_rows; i++) a->n_candidates[(tile->row_begin + i) * n_pieces + piece] = out[i].n;
}

/* Lists of one row from the pieces that were scanned, in ascending order of their keys. */
static void merge_pieces(const mla_args *a, int64_t row) {
    neap_candidates lists[PIECES_MAX];
    int32_t n_pieces = pieces_of(a);
    if (mla_visible(a->batch, row) <= a->spec.index.topk) {
        select_all(a, row);
    } else {
        for (int32_t i = 0; i < n_pieces; i++) {
            lists[i] = buffer_at(a, row * n_pieces + i);
            lists[i].n = a->n_candidates[row * n_pieces + i];
        }
        select_from(a, row, lists, n_pieces);
    }
    finish_list(a, row);
}

static void scan_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    bool split = is_split(a);
    int32_t n_pieces = pieces_of(a);
    for (int64_t t = begin; t < end; t++) {
        if (!split) {
            scan_whole(a, &a->batch->tiles[t], worker);
            continue;
        }
        const neap_batch_tile *tile = &a->batch->tiles[t / n_pieces];
        scan_piece(a, tile, t % n_pieces, worker);
        if (!neap_arrive(&a->scan_counts[t / n_pieces], 1, n_pieces)) continue;
        for (int32_t i = 0; i < tile->n_rows; i++) merge_pieces(a, tile->row_begin + i);
    }
}

/* ---- costs (formulas as in engine/work.c) ---- */

static uint64_t key_bytes(const mla_args *a) { return (uint64_t)neap_index_page_bytes(&a->index) / NEAP_PAGE_ROWS; }

static void key_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    out->bytes = (uint64_t)a->batch->n_rows * key_bytes(a);
}

static void query_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    neap_matrix_cost(out, &a->w->index.wq_b, a->batch->n_rows);
}

/* Rows that see no more than K positions select them all: nothing is scored. */
static void scan_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    const neap_batch *b = a->batch;
    int64_t k = a->spec.index.topk;
    double scored = 0;
    for (int32_t i = 0; i < b->n_segments; i++) {
        int64_t last = b->segments[i].position + b->segments[i].n_rows;
        if (last > k) out->bytes += (uint64_t)last * key_bytes(a);
    }
    for (int32_t row = 0; row < b->n_rows; row++)
        if (mla_visible(b, row) > k) scored += (double)mla_visible(b, row);
    out->multiply_adds = scored * a->spec.index.n_heads * a->spec.index.head_dim;
}

/* ---- plan ---- */

void neap_indexer_claim(neap_builder *b, mla_args *a) {
    const neap_index_spec *s = &a->spec.index;
    int64_t rows = b->rows_max, buffers = (int64_t)b->n_workers * NEAP_INDEX_ROWS;
    int64_t capacity = neap_candidates_capacity(s->topk);
    a->index_q = neap_builder_floats(b, rows * s->n_heads * s->head_dim);
    a->index_k = neap_builder_floats(b, rows * s->head_dim);
    a->index_w = neap_builder_floats(b, rows * s->n_heads);
    a->index_scratch = neap_builder_floats(b, b->n_workers * neap_index_scratch(&a->index, s->n_heads));
    a->orders = (uint32_t *)neap_builder_ints(b, buffers * capacity);
    a->candidates = neap_builder_ints(b, buffers * capacity);
    a->n_candidates = (int64_t *)(void *)neap_builder_ints(b, 2 * buffers);
    a->scan_counts = neap_builder_counters(b, NEAP_INDEX_ROWS);
}

int32_t neap_indexer_targets(const mla_args *a, neap_linear_target *targets) {
    const neap_index_weights *w = &a->w->index;
    targets[0] = (neap_linear_target){&w->wk, a->index_k, a->spec.index.head_dim, NEAP_X_F32};
    targets[1] = (neap_linear_target){&w->weights_proj, a->index_w, a->spec.index.n_heads, NEAP_X_F32};
    return 2;
}

void neap_indexer_emit_store(neap_builder *b, const mla_args *a, bool is_beside) {
    mla_args x = neap_mla_without_buffers(a);
    x.index_k = a->index_k;
    x.cos = a->cos;
    x.sin = a->sin;
    neap_builder_op(b, "index.key", is_beside, rows_count, key_run, &x, sizeof x);
    mla_output(b, x.index_k, x.spec.index.head_dim);
    neap_builder_cost(b, key_cost);
}

void neap_indexer_emit_weights(neap_builder *b, const mla_args *a, bool is_beside) {
    mla_args x = neap_mla_without_buffers(a);
    x.index_w = a->index_w;
    neap_builder_op(b, "index.weights", is_beside, rows_count, weights_run, &x, sizeof x);
    mla_output(b, x.index_w, x.spec.index.n_heads);
}

void neap_indexer_emit_query(neap_builder *b, const mla_args *a, bool is_beside) {
    mla_args x = neap_mla_without_buffers(a);
    x.q_a = a->q_a;
    x.qr = a->qr;
    x.index_q = a->index_q;
    x.cos = a->cos;
    x.sin = a->sin;
    neap_builder_op(b, "index.query", is_beside, query_count, query_run, &x, sizeof x);
    mla_output(b, x.index_q, (int64_t)x.spec.index.n_heads * x.spec.index.head_dim);
    neap_builder_cost(b, query_cost);
}

void neap_indexer_emit_scan(neap_builder *b, const mla_args *a, bool is_beside) {
    mla_args x = neap_mla_without_buffers(a);
    x.index_q = a->index_q;
    x.index_w = a->index_w;
    x.selection = a->selection;
    x.index_scratch = a->index_scratch;
    x.orders = a->orders;
    x.candidates = a->candidates;
    x.n_candidates = a->n_candidates;
    x.scan_counts = a->scan_counts;
    neap_builder_op(b, "index.scan", is_beside, scan_count, scan_run, &x, sizeof x);
    mla_output(b, x.selection.lists, x.selection.ld);
    mla_output(b, x.selection.n_lists, 1);
    neap_builder_cost(b, scan_cost);
}
