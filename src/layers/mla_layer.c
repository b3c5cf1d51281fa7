/* MLA layer in the absorbed form, with or without an indexer (docs/numerics.md sections 4 and 5).
 *
 * few class (decoding):                                                                with an indexer of its own
 *   1  q_a (or q), kv_a, gate = W x; angles                                            index key, head weights = W x
 *   2  per row: norm the latent, rotate its key part, write the page                   index key to its page; weights
 *      per head: qr = norm q_a (each worker for itself); q = W_qb qr;                  index query = W qr, rotated,
 *      q_lat = W_K^T q_nope, rotate q_rope                                             rounded
 *   3                                                                                  scan and selection (indexer.c)
 *   4  attention over the listed rows (attend.c); the last one of a group of heads: v = W_V o_lat times sigmoid(gate)
 *   5  y = W_o v
 * many class: what rows are dealt out for has phases of its own
 *   1  as above
 *   2  per row: norm q_a and the latent, rotate, write the page                        index key to its page; weights
 *   3  q = W_qb qr                                                                     index query
 *   4  per head: q_lat = W_K^T q_nope, rotate q_rope                                   scan and selection
 *   5  attention   6  v   7  y
 * The right column shares the phases of the left one, has phases of its own, or runs in sub-teams (NEAP_USE_INDEX):
 * the same bits. Cache row per position: latent (normed) then the key part (rotated where RoPE exists), in the cache's
 * format.
 *
 * One form serves prefill and decode. Expanded keys and values would be cheaper for a dense prefill (3.4 times
 * fewer multiplications), but a row would then not have the bits that a decode step gives it, and results would
 * depend on how a prompt is cut into chunks. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "layers/mla_inner.h"

static int64_t rows_count(const void *p) { return ((const mla_args *)p)->batch->n_rows; }
static int64_t heads_count(const void *p) {
    const mla_args *a = p;
    return a->batch->n_rows > 0 ? a->spec.n_heads : 0;
}

/* cos and sin of this row's position. The angle is an F32 product, as in the models' own code. */
static void fill_angles(const mla_args *a, int64_t row) {
    int64_t half = a->spec.d_rope / 2;
    float position = (float)a->batch->row_position[row];
    for (int64_t i = 0; i < half; i++) {
        float angle = position * a->spec.rope_inv_freq[i];
        a->cos[row * half + i] = (float)cos((double)angle) * a->spec.rope_magnitude;
        a->sin[row * half + i] = (float)sin((double)angle) * a->spec.rope_magnitude;
    }
}

static void angles_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    (void)worker;
    for (int64_t row = begin; row < end; row++) fill_angles(ptr, row);
}

/* The few class leaves q_a alone: others read it in this phase. */
static void prepare_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    const neap_mla_spec *s = &a->spec;
    int64_t r = s->kv_lora, width = r + s->d_rope;
    for (int64_t row = begin; row < end; row++) {
        const neap_batch_segment *seg = &a->batch->segments[a->batch->row_segment[row]];
        int64_t position = a->batch->row_position[row];
        if (a->q_a)
            a->k->rmsnorm(a->q_a + row * s->q_lora, a->q_a + row * s->q_lora, a->w->q_a_norm, s->q_lora, s->latent_eps);
        float *kv = a->kv + row * width;
        a->k->rmsnorm(kv, kv, a->w->kv_a_norm, r, s->latent_eps);
        mla_rotate(a, row, s->rope, kv + r);
        uint8_t *page = neap_caches_latent_page(a->caches, a->layer, seg->slot, position);
        neap_latent_put(&a->latent, page, position % NEAP_PAGE_ROWS, kv);
    }
}

const float *neap_mla_qr(const mla_args *a, int32_t worker) {
    if (!a->qr) return a->q_a;
    int64_t n = a->spec.q_lora;
    float *qr = a->qr + worker * a->rows_max * n;
    for (int64_t row = 0; row < a->batch->n_rows; row++)
        a->k->rmsnorm(qr + row * n, a->q_a + row * n, a->w->q_a_norm, n, a->spec.latent_eps);
    return qr;
}

/* Query of one head into latent space, all rows: q_lat = W_K^T q_nope, then the rotated key part. */
static void absorb(const mla_args *a, int64_t h, int32_t worker) {
    const neap_mla_spec *s = &a->spec;
    int64_t dq = s->d_nope + s->d_rope, width = s->kv_lora + s->d_rope, n = a->batch->n_rows;
    const neap_matrix *up = &a->w->k_up[h];
    mla_product(a, up, 0, neap_matrix_panels(up), a->form, a->q + h * dq, s->n_heads * dq, a->q_abs + h * width,
                s->n_heads * width, worker);
    for (int64_t row = 0; row < n; row++) {
        float *to = a->q_abs + (row * s->n_heads + h) * width + s->kv_lora;
        memcpy(to, a->q + (row * s->n_heads + h) * dq + s->d_nope, (size_t)s->d_rope * sizeof(float));
        mla_rotate(a, row, s->rope, to);
    }
}

/* Heads per task: whole panels of W_qb where it is part of the task. */
static int64_t task_heads(const mla_args *a) {
    return a->makes_q ? mla_task_blocks(a->spec.d_nope + a->spec.d_rope) : 1;
}

static int64_t query_count(const void *p) {
    const mla_args *a = p;
    int64_t heads = task_heads(a);
    return a->batch->n_rows > 0 ? (a->spec.n_heads + heads - 1) / heads : 0;
}

static void query_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    int64_t h = a->spec.n_heads, dq = a->spec.d_nope + a->spec.d_rope, heads = task_heads(a);
    int64_t from = begin * heads, to = end * heads < h ? end * heads : h;
    const neap_matrix *w = &a->w->q_b;
    if (a->makes_q)
        mla_product(a, w, mla_first_panel(w, from, h, dq), mla_first_panel(w, to, h, dq), a->form,
                    neap_mla_qr(a, worker), a->spec.q_lora, a->q, h * dq, worker);
    for (int64_t i = from; i < to; i++) absorb(a, i, worker);
}

void neap_mla_expand(const mla_args *a, int64_t begin, int64_t end, int32_t worker) {
    const neap_mla_spec *s = &a->spec;
    int64_t n = a->batch->n_rows, all = (int64_t)s->n_heads * s->d_v;
    for (int64_t h = begin; h < end; h++) {
        const neap_matrix *up = &a->w->v_up[h];
        mla_product(a, up, 0, neap_matrix_panels(up), a->form, a->o_lat + h * s->kv_lora,
                    (int64_t)s->n_heads * s->kv_lora, a->v + h * s->d_v, all, worker);
        for (int64_t row = 0; s->has_output_gate && row < n; row++)
            a->k->sigmoid_mul(a->v + row * all + h * s->d_v, a->gate + row * all + h * s->d_v, s->d_v);
    }
}

static void expand_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    neap_mla_expand(ptr, begin, end, worker);
}

neap_cache_layer_spec neap_mla_cache(const neap_mla_spec *s, neap_row_kind latent, neap_row_kind index) {
    neap_cache_layer_spec c = {.latent = {.kind = latent, .r = s->kv_lora, .dr = s->d_rope}};
    if (mla_has_own_index(s)) c.index = (neap_index_format){.kind = index, .d = s->index.head_dim};
    return c;
}

/* ---- costs ---- */

static void prepare_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    out->bytes = (uint64_t)a->batch->n_rows * ((uint64_t)neap_latent_page_bytes(&a->latent) / NEAP_PAGE_ROWS);
}

static void query_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    double rows = a->batch->n_rows;
    if (a->makes_q) neap_matrix_cost(out, &a->w->q_b, rows);
    for (int32_t h = 0; h < a->spec.n_heads; h++) neap_matrix_cost(out, &a->w->k_up[h], rows);
}

void neap_mla_expand_cost(const void *p, neap_op_cost *out) {
    const mla_args *a = p;
    for (int32_t h = 0; h < a->spec.n_heads; h++) neap_matrix_cost(out, &a->w->v_up[h], a->batch->n_rows);
}

/* ---- plan ---- */

static mla_args claim(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w,
                      const neap_selection *selection) {
    int64_t rows = b->rows_max, h = s->n_heads, dq = s->d_nope + s->d_rope, width = s->kv_lora + s->d_rope;
    mla_args a = {.k = b->k,
                  .batch = b->batch,
                  .caches = b->caches,
                  .layer = b->layer,
                  .n_workers = b->n_workers,
                  .rows_max = b->rows_max,
                  .is_few = b->is_few,
                  .spec = *s,
                  .w = w,
                  .form = b->act,
                  .prefetch_bytes = b->is_few ? (int64_t)b->prefetch_kib * 1024 : 0,
                  .gemm_scratch = b->gemm_scratch,
                  .selection = *selection};
    neap_cache_layer_spec cache = neap_mla_cache(s, b->latent_kind, b->index_kind);
    a.latent = cache.latent;
    a.index = cache.index;
    if (s->q_lora) a.q_a = neap_builder_floats(b, rows * s->q_lora);
    if (s->q_lora && b->is_few) a.qr = neap_builder_floats(b, b->n_workers * rows * s->q_lora);
    a.q = neap_builder_floats(b, rows * h * dq);
    a.kv = neap_builder_floats(b, rows * width);
    if (s->has_output_gate) a.gate = neap_builder_floats(b, rows * h * s->d_v);
    a.q_abs = neap_builder_floats(b, rows * h * width);
    a.o_lat = neap_builder_floats(b, rows * h * s->kv_lora);
    a.v = neap_builder_floats(b, rows * h * s->d_v);
    if (s->rope != NEAP_ROPE_NONE) {
        a.cos = neap_builder_floats(b, rows * s->d_rope / 2);
        a.sin = neap_builder_floats(b, rows * s->d_rope / 2);
    }
    neap_attend_claim(b, &a);
    if (mla_has_own_index(s)) {
        assert(s->q_lora > 0);
        neap_indexer_claim(b, &a);
    }
    return a;
}

/* How the branches of an indexer stand to the MLA's own preparation. */
typedef enum index_order { NO_INDEX, APART, BESIDE, STREAMS } index_order;

static index_order order_of(const neap_builder *b, const neap_mla_spec *s) {
    if (!mla_has_own_index(s)) return NO_INDEX;
    if (b->streams & NEAP_USE_INDEX) return STREAMS;
    return neap_builder_beside(b, NEAP_USE_INDEX) ? BESIDE : APART;
}

/* All matrices that share the input; the indexer's too, unless each of its branches is on its own. */
static void emit_inputs(neap_builder *b, const mla_args *a, neap_input *in, index_order order) {
    const neap_mla_spec *s = &a->spec;
    const neap_mla_weights *w = a->w;
    int64_t dq = s->d_nope + s->d_rope;
    neap_linear_target t[NEAP_LINEAR_MAX], index[2];
    int32_t n = 0;
    t[n++] = s->q_lora ? (neap_linear_target){&w->q_a, a->q_a, s->q_lora, b->act}
                       : (neap_linear_target){&w->q, a->q, s->n_heads * dq, b->act};
    t[n++] = (neap_linear_target){&w->kv_a, a->kv, s->kv_lora + s->d_rope, b->act};
    if (s->has_output_gate) t[n++] = (neap_linear_target){&w->g, a->gate, (int64_t)s->n_heads * s->d_v, b->act};
    if (order == BESIDE || order == STREAMS) n += neap_indexer_targets(a, t + n);
    neap_linear_emit(b, "mla.in", false, in, t, n);
    if (s->rope != NEAP_ROPE_NONE) {
        mla_args x = neap_mla_without_buffers(a);
        x.cos = a->cos;
        x.sin = a->sin;
        neap_builder_op(b, "mla.angles", true, rows_count, angles_run, &x, sizeof x);
        mla_output(b, x.cos, s->d_rope / 2);
        mla_output(b, x.sin, s->d_rope / 2);
    }
    if (order != APART) return;
    neap_indexer_targets(a, index);
    neap_linear_emit(b, "index.key_in", false, in, &index[0], 1);
    neap_linear_emit(b, "index.weights_in", false, in, &index[1], 1);
}

static void emit_prepare(neap_builder *b, const mla_args *a) {
    mla_args x = neap_mla_without_buffers(a);
    if (!a->is_few) x.q_a = a->q_a;
    x.kv = a->kv;
    x.cos = a->cos;
    x.sin = a->sin;
    neap_builder_op(b, "mla.prepare", false, rows_count, prepare_run, &x, sizeof x);
    if (x.q_a) mla_output(b, x.q_a, a->spec.q_lora);
    mla_output(b, x.kv, a->spec.kv_lora + a->spec.d_rope);
    neap_builder_cost(b, prepare_cost);
}

static void emit_query(neap_builder *b, const mla_args *a, bool is_beside) {
    mla_args x = neap_mla_without_buffers(a);
    x.makes_q = a->is_few && a->spec.q_lora > 0;
    if (x.makes_q) {
        x.q_a = a->q_a;
        x.qr = a->qr;
    }
    x.q = a->q;
    x.q_abs = a->q_abs;
    x.cos = a->cos;
    x.sin = a->sin;
    neap_builder_op(b, x.makes_q ? "mla.query" : "mla.absorb", is_beside, query_count, query_run, &x, sizeof x);
    mla_output(b, x.q_abs, (int64_t)a->spec.n_heads * (a->spec.kv_lora + a->spec.d_rope));
    neap_builder_cost(b, query_cost);
}

static void emit_q_up(neap_builder *b, const mla_args *a) {
    const neap_mla_spec *s = &a->spec;
    if (!s->q_lora) return;
    neap_linear_target q = {&a->w->q_b, a->q, (int64_t)s->n_heads * (s->d_nope + s->d_rope), b->act};
    neap_input q_a = neap_input_of(a->q_a, s->q_lora);
    neap_linear_emit(b, "mla.q_up", false, &q_a, &q, 1);
}

/* Few class: everything between the inputs and the scan is one phase. */
static void emit_middle_few(neap_builder *b, const mla_args *a, index_order order) {
    bool beside = order == BESIDE;
    emit_prepare(b, a);
    emit_query(b, a, true);
    if (order == NO_INDEX) return;
    neap_indexer_emit_store(b, a, beside);
    neap_indexer_emit_weights(b, a, beside);
    neap_indexer_emit_query(b, a, beside);
    neap_indexer_emit_scan(b, a, false);
}

static void emit_middle_many(neap_builder *b, const mla_args *a, index_order order) {
    bool beside = order == BESIDE, has_index = order != NO_INDEX;
    emit_prepare(b, a);
    if (has_index) {
        neap_indexer_emit_store(b, a, beside);
        neap_indexer_emit_weights(b, a, beside);
    }
    emit_q_up(b, a);
    if (has_index) neap_indexer_emit_query(b, a, beside);
    emit_query(b, a, false);
    if (has_index) neap_indexer_emit_scan(b, a, beside);
}

/* Either class, in sub-teams: 0 the MLA's own, 1 key and head weights, then or in a third one the query. In the many
 * class it takes q_a as stream 0 has normed it. */
static void emit_middle_streams(neap_builder *b, const mla_args *a) {
    int32_t n = b->n_workers > 2 ? 3 : 2;
    neap_builder_fork(b, NEAP_USE_INDEX, n);
    emit_prepare(b, a);
    if (a->is_few) emit_query(b, a, true);
    neap_builder_stream(b, 1);
    neap_indexer_emit_store(b, a, false);
    neap_indexer_emit_weights(b, a, true);
    neap_builder_stream(b, n - 1);
    if (!a->is_few) neap_builder_wait(b, n - 1, 0);
    neap_indexer_emit_query(b, a, false);
    neap_builder_stream(b, 0);
    if (!a->is_few) {
        emit_q_up(b, a);
        emit_query(b, a, false);
    }
    neap_builder_join(b);
    neap_indexer_emit_scan(b, a, false);
}

static void emit_expand(neap_builder *b, const mla_args *a) {
    mla_args x = neap_mla_without_buffers(a);
    x.o_lat = a->o_lat;
    x.gate = a->gate;
    x.v = a->v;
    neap_builder_op(b, "mla.expand", false, heads_count, expand_run, &x, sizeof x);
    mla_output(b, x.v, (int64_t)a->spec.n_heads * a->spec.d_v);
    neap_builder_cost(b, neap_mla_expand_cost);
}

void neap_mla_emit(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w, neap_selection *selection,
                   neap_input *in, float *y) {
    mla_args a = claim(b, s, w, selection);
    index_order order = order_of(b, s);
    emit_inputs(b, &a, in, order);
    if (order == STREAMS)
        emit_middle_streams(b, &a);
    else if (a.is_few)
        emit_middle_few(b, &a, order);
    else
        emit_middle_many(b, &a, order);
    if (s->has_index) neap_tap_emit(b, "index_topk", b->layer, selection->lists, selection->ld, selection->ld, true);
    neap_attend_emit(b, &a);
    if (!a.is_few) emit_expand(b, &a);
    neap_linear_target o = {&w->o, y, b->net->width, b->act};
    neap_input heads = neap_input_of(a.v, (int64_t)s->n_heads * s->d_v);
    neap_linear_emit(b, "mla.out", false, &heads, &o, 1);
}
