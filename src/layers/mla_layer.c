/* MLA layer in the absorbed form, with or without an indexer (docs/numerics.md sections 4 and 5).
 *
 *   phase 1  q_a (or q), kv_a, gate = W x; RoPE angles           beside it: index key and head weights = W x
 *   phase 2  per row: norm q_a and the latent, rotate the key part, write the latent page
 *                                                                beside it: index key to its page; weights scaled
 *   phase 3  q = W_qb qr                                         beside it: index query, rotated and rounded
 *   phase 4  per head: q_lat = W_K^T q_nope, rotate q_rope       beside it: index scan (indexer.c)
 *   phase 5  selection
 *   phase 6  attention over the listed rows only (attend.c)
 *   phase 7  per head: v = W_V o_lat, times sigmoid(gate)
 *   phase 8  y = W_o v
 * Cache row per position: latent (normed) then the key part (rotated where RoPE exists), in the cache's format.
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

static void prepare_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    const neap_mla_spec *s = &a->spec;
    int64_t r = s->kv_lora, width = r + s->d_rope;
    for (int64_t row = begin; row < end; row++) {
        const neap_batch_segment *seg = &a->batch->segments[a->batch->row_segment[row]];
        int64_t position = a->batch->row_position[row];
        if (s->q_lora)
            a->k->rmsnorm(a->q_a + row * s->q_lora, a->q_a + row * s->q_lora, a->w->q_a_norm, s->q_lora, s->latent_eps);
        float *kv = a->kv + row * width;
        a->k->rmsnorm(kv, kv, a->w->kv_a_norm, r, s->latent_eps);
        mla_rotate(a, row, s->rope, kv + r);
        uint8_t *page = neap_caches_latent_page(a->caches, a->layer, seg->slot, position);
        neap_latent_put(&a->latent, page, position % NEAP_PAGE_ROWS, kv);
    }
}

/* Queries into latent space, all rows of one head at a time. */
static void absorb_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    const neap_mla_spec *s = &a->spec;
    int64_t dq = s->d_nope + s->d_rope, width = s->kv_lora + s->d_rope, n = a->batch->n_rows;
    for (int64_t h = begin; h < end; h++) {
        const neap_matrix *up = &a->w->k_up[h];
        neap_gemm_args g = {.y = a->q_abs + h * width,
                            .ldy = s->n_heads * width,
                            .x = a->q + h * dq,
                            .ldx = s->n_heads * dq,
                            .m = n,
                            .w = up,
                            .panel_begin = 0,
                            .panel_end = neap_matrix_panels(up),
                            .x_form = a->form,
                            .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
        neap_gemm(a->k, &g);
        for (int64_t row = 0; row < n; row++) {
            float *to = a->q_abs + (row * s->n_heads + h) * width + s->kv_lora;
            memcpy(to, a->q + (row * s->n_heads + h) * dq + s->d_nope, (size_t)s->d_rope * sizeof(float));
            mla_rotate(a, row, s->rope, to);
        }
    }
}

static void expand_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    const neap_mla_spec *s = &a->spec;
    int64_t n = a->batch->n_rows, all = (int64_t)s->n_heads * s->d_v;
    bool is_split = neap_attend_is_split(a);
    for (int64_t h = begin; h < end; h++) {
        if (is_split) neap_attend_finish(a, h);
        const neap_matrix *up = &a->w->v_up[h];
        neap_gemm_args g = {.y = a->v + h * s->d_v,
                            .ldy = all,
                            .x = a->o_lat + h * s->kv_lora,
                            .ldx = (int64_t)s->n_heads * s->kv_lora,
                            .m = n,
                            .w = up,
                            .panel_begin = 0,
                            .panel_end = neap_matrix_panels(up),
                            .x_form = a->form,
                            .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
        neap_gemm(a->k, &g);
        for (int64_t row = 0; s->has_output_gate && row < n; row++)
            a->k->sigmoid_mul(a->v + row * all + h * s->d_v, a->gate + row * all + h * s->d_v, s->d_v);
    }
}

neap_cache_layer_spec neap_mla_cache(const neap_mla_spec *s, neap_row_kind latent, neap_row_kind index) {
    neap_cache_layer_spec c = {.latent = {.kind = latent, .r = s->kv_lora, .dr = s->d_rope}};
    if (mla_has_own_index(s)) c.index = (neap_index_format){.kind = index, .d = s->index.head_dim};
    return c;
}

static void emit_inputs(neap_builder *b, const mla_args *a, neap_input *in) {
    const neap_mla_spec *s = &a->spec;
    const neap_mla_weights *w = a->w;
    int64_t dq = s->d_nope + s->d_rope;
    neap_linear_target t[NEAP_LINEAR_MAX];
    int32_t n = 0;
    t[n++] = s->q_lora ? (neap_linear_target){&w->q_a, a->q_a, s->q_lora, b->act}
                       : (neap_linear_target){&w->q, a->q, s->n_heads * dq, b->act};
    t[n++] = (neap_linear_target){&w->kv_a, a->kv, s->kv_lora + s->d_rope, b->act};
    if (s->has_output_gate) t[n++] = (neap_linear_target){&w->g, a->gate, (int64_t)s->n_heads * s->d_v, b->act};
    neap_linear_emit(b, "mla.in", false, in, t, n);
    if (s->rope != NEAP_ROPE_NONE) neap_builder_op(b, "mla.angles", true, rows_count, angles_run, a, sizeof *a);
}

static mla_args claim(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w,
                      const neap_selection *selection) {
    int64_t rows = b->rows_max, h = s->n_heads, dq = s->d_nope + s->d_rope, width = s->kv_lora + s->d_rope;
    mla_args a = {.k = b->k,
                  .batch = b->batch,
                  .caches = b->caches,
                  .layer = b->layer,
                  .n_workers = b->n_workers,
                  .spec = *s,
                  .w = w,
                  .form = b->act,
                  .gemm_scratch = b->gemm_scratch,
                  .selection = *selection};
    neap_cache_layer_spec cache = neap_mla_cache(s, b->latent_kind, b->index_kind);
    a.latent = cache.latent;
    a.index = cache.index;
    if (s->q_lora) a.q_a = neap_builder_floats(b, rows * s->q_lora);
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

void neap_mla_emit(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w, neap_selection *selection,
                   neap_input *in, float *y) {
    int64_t h = s->n_heads;
    bool indexes = mla_has_own_index(s);
    mla_args a = claim(b, s, w, selection);

    emit_inputs(b, &a, in);
    if (indexes) neap_indexer_emit_inputs(b, &a, in);
    neap_builder_op(b, "mla.prepare", false, rows_count, prepare_run, &a, sizeof a);
    if (indexes) neap_indexer_emit_store(b, &a);
    if (s->q_lora) {
        neap_linear_target q = {&w->q_b, a.q, h * (s->d_nope + s->d_rope), b->act};
        neap_input q_a = neap_input_of(a.q_a, s->q_lora);
        neap_linear_emit(b, "mla.q_up", false, &q_a, &q, 1);
        if (indexes) neap_indexer_emit_query(b, &a);
    }
    neap_builder_op(b, "mla.absorb", false, heads_count, absorb_run, &a, sizeof a);
    if (indexes) {
        neap_indexer_emit_scan(b, &a);
        neap_indexer_emit_select(b, &a);
    }
    neap_attend_emit(b, &a);
    if (s->has_index) neap_tap_emit(b, "index_topk", b->layer, selection->lists, selection->ld, selection->ld, true);
    neap_builder_op(b, "mla.expand", false, heads_count, expand_run, &a, sizeof a);
    neap_linear_target o = {&w->o, y, b->net->width, b->act};
    neap_input heads = neap_input_of(a.v, h * s->d_v);
    neap_linear_emit(b, "mla.out", false, &heads, &o, 1);
}
