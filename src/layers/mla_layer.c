/* MLA layer in the absorbed form, with or without an indexer (docs/numerics.md sections 4 and 5).
 *
 *   phase 1  q_a (or q), kv_a, gate, index k and head weights = W x         one op over all panels
 *   phase 2  per row: norm q_a and the latent, LayerNorm the index key, rotate keys, write the caches
 *   phase 3  q = W_qb qr;  index q = W_iq qr
 *   phase 4  per head: q_lat = W_K^T q_nope, rotate q_rope     beside it, per row: score and select the Top-K
 *   phase 5  per row and group of heads: attention over the listed rows only (kernel attn)
 *   phase 6  per head: v = W_V o_lat, times sigmoid(gate)
 *   phase 7  y = W_o v
 * Cache row per position: latent (normed) then the key part (rotated where RoPE exists). One form serves prefill
 * and decode, so any grouping of tokens gives the same bits. Without an indexer the list is 0 .. position. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "layers/builder.h"

enum { HEAD_GROUP = 4 }; /* heads of one attention task: they share the cached rows while these are hot */

typedef struct mla_args {
    const neap_kernels *k;
    const neap_batch *batch;
    const neap_caches *caches;
    int32_t layer;
    neap_mla_spec spec;
    const neap_mla_weights *w;
    float *q_a;       /* [rows, q_lora] normed in place */
    float *q;         /* [rows, H, dn + dr] */
    float *kv;        /* [rows, r + dr] */
    float *gate;      /* [rows, H, dv] */
    float *q_abs;     /* [rows, H, r + dr] */
    float *o_lat;     /* [rows, H, r] */
    float *v;         /* [rows, H, dv] */
    float *index_q;   /* [rows, hi, di] */
    float *index_k;   /* [rows, di] */
    float *index_w;   /* [rows, hi] */
    float *cos, *sin; /* [rows, dr / 2] */
    neap_selection selection;
    float *scores;    /* [workers][neap_attn_scratch(context)] */
    int32_t *sorting; /* [workers][context] */
    int64_t context_max;
} mla_args;

static int64_t rows_count(const void *p) { return ((const mla_args *)p)->batch->n_rows; }
static int64_t heads_count(const void *p) {
    const mla_args *a = p;
    return a->batch->n_rows > 0 ? a->spec.n_heads : 0;
}

static void rotate(const mla_args *a, int64_t row, neap_rope_kind kind, float *x) {
    if (kind == NEAP_ROPE_NONE) return;
    int64_t half = a->spec.d_rope / 2;
    a->k->rope(x, a->cos + row * half, a->sin + row * half, a->spec.d_rope, kind == NEAP_ROPE_INTERLEAVED);
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

static bool has_own_index(const neap_mla_spec *s) { return s->has_index && !s->index.is_shared; }

/* Phase 2: what the caches keep of these rows. */
static void prepare_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    const neap_mla_spec *s = &a->spec;
    const neap_cache_layer *cache = &a->caches->layers[a->layer];
    int64_t r = s->kv_lora, width = r + s->d_rope, di = s->index.head_dim;
    for (int64_t row = begin; row < end; row++) {
        const neap_batch_segment *seg = &a->batch->segments[a->batch->row_segment[row]];
        int64_t at = neap_caches_row(a->caches, seg->slot, a->batch->row_position[row]);
        if (s->rope != NEAP_ROPE_NONE) fill_angles(a, row);
        if (s->q_lora)
            a->k->rmsnorm(a->q_a + row * s->q_lora, a->q_a + row * s->q_lora, a->w->q_a_norm, s->q_lora, s->latent_eps);
        float *kv = a->kv + row * width, *out = cache->rows + at * width;
        a->k->rmsnorm(out, kv, a->w->kv_a_norm, r, s->latent_eps);
        memcpy(out + r, kv + r, (size_t)s->d_rope * sizeof(float));
        rotate(a, row, s->rope, out + r);
        if (has_own_index(s)) {
            float *key = cache->index_rows + at * di;
            a->k->layernorm(key, a->index_k + row * di, a->w->index.k_norm, a->w->index.k_norm_bias, di,
                            s->index.norm_eps);
            rotate(a, row, s->index.rope, key);
        }
    }
}

/* Phase 4: queries into latent space, all rows of one head at a time. */
static void absorb_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
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
                            .panel_end = neap_matrix_panels(up)};
        a->k->gemm[up->kind](&g);
        for (int64_t row = 0; row < n; row++) {
            float *to = a->q_abs + (row * s->n_heads + h) * width + s->kv_lora;
            memcpy(to, a->q + (row * s->n_heads + h) * dq + s->d_nope, (size_t)s->d_rope * sizeof(float));
            rotate(a, row, s->rope, to);
        }
    }
}

static int64_t visible(const mla_args *a, int64_t row) { return a->batch->row_position[row] + 1; }

static neap_paged paged(const mla_args *a, int64_t row, const float *base, int64_t width) {
    const neap_batch_segment *seg = &a->batch->segments[a->batch->row_segment[row]];
    return (neap_paged){.base = base,
                        .pages = neap_caches_table(a->caches, seg->slot),
                        .page_rows = NEAP_PAGE_ROWS,
                        .width = (int32_t)width};
}

/* Phase 4, beside: the selection of each row. */
static void select_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    const neap_index_spec *s = &a->spec.index;
    int64_t hi = s->n_heads, di = s->head_dim;
    /* Positive constants: they keep the published scale of the scores. */
    float factor = 1.0f / sqrtf((float)hi) * (1.0f / sqrtf((float)di));
    for (int64_t row = begin; row < end; row++) {
        float *q = a->index_q + row * hi * di, *w = a->index_w + row * hi;
        for (int64_t h = 0; h < hi; h++) {
            rotate(a, row, s->rope, q + h * di);
            w[h] *= factor;
        }
        int64_t n = visible(a, row), k = s->topk;
        int32_t *list = a->selection.lists + row * a->selection.ld;
        neap_index_args x = {.q = q,
                             .w = w,
                             .n_heads = hi,
                             .d = di,
                             .keys = paged(a, row, a->caches->layers[a->layer].index_rows, di),
                             .n = n,
                             .k = k,
                             .out = list,
                             .scores = a->scores + worker * neap_attn_scratch(a->context_max),
                             .scratch = a->sorting + worker * a->context_max};
        a->k->index(&x);
        int64_t found = n < k ? n : k;
        a->selection.n_lists[row] = (int32_t)found;
        for (int64_t i = found; i < a->selection.ld; i++) list[i] = -1;
    }
}

static int64_t groups_of(const mla_args *a) { return (a->spec.n_heads + HEAD_GROUP - 1) / HEAD_GROUP; }
static int64_t attend_count(const void *p) {
    const mla_args *a = p;
    return a->batch->n_rows * groups_of(a);
}

/* Phase 5. */
static void attend_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    const neap_mla_spec *s = &a->spec;
    int64_t width = s->kv_lora + s->d_rope, groups = groups_of(a);
    for (int64_t t = begin; t < end; t++) {
        int64_t row = t / groups, h = t % groups * HEAD_GROUP;
        int64_t n_heads = s->n_heads - h < HEAD_GROUP ? s->n_heads - h : HEAD_GROUP;
        neap_attn_args x = {.q = a->q_abs + (row * s->n_heads + h) * width,
                            .ld_q = width,
                            .n_heads = n_heads,
                            .r = s->kv_lora,
                            .dr = s->d_rope,
                            .cache = paged(a, row, a->caches->layers[a->layer].rows, width),
                            .list = s->has_index ? a->selection.lists + row * a->selection.ld : NULL,
                            .n_list = s->has_index ? a->selection.n_lists[row] : visible(a, row),
                            .scale = s->softmax_scale,
                            .out = a->o_lat + (row * s->n_heads + h) * s->kv_lora,
                            .ld_out = s->kv_lora,
                            .scratch = a->scores + worker * neap_attn_scratch(a->context_max),
                            .scratch_floats = neap_attn_scratch(a->context_max)};
        a->k->attn(&x);
    }
}

/* Phase 6. */
static void expand_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    (void)worker;
    const neap_mla_spec *s = &a->spec;
    int64_t n = a->batch->n_rows, all = (int64_t)s->n_heads * s->d_v;
    for (int64_t h = begin; h < end; h++) {
        const neap_matrix *up = &a->w->v_up[h];
        neap_gemm_args g = {.y = a->v + h * s->d_v,
                            .ldy = all,
                            .x = a->o_lat + h * s->kv_lora,
                            .ldx = (int64_t)s->n_heads * s->kv_lora,
                            .m = n,
                            .w = up,
                            .panel_begin = 0,
                            .panel_end = neap_matrix_panels(up)};
        a->k->gemm[up->kind](&g);
        for (int64_t row = 0; s->has_output_gate && row < n; row++)
            a->k->sigmoid_mul(a->v + row * all + h * s->d_v, a->gate + row * all + h * s->d_v, s->d_v);
    }
}

neap_cache_layer_spec neap_mla_cache(const neap_mla_spec *s) {
    return (neap_cache_layer_spec){.row_floats = s->kv_lora + s->d_rope,
                                   .index_floats = has_own_index(s) ? s->index.head_dim : 0};
}

static void emit_inputs(neap_builder *b, const mla_args *a, const float *x) {
    const neap_mla_spec *s = &a->spec;
    const neap_mla_weights *w = a->w;
    int64_t dq = s->d_nope + s->d_rope;
    neap_linear_target t[NEAP_LINEAR_MAX];
    int32_t n = 0;
    t[n++] = s->q_lora ? (neap_linear_target){&w->q_a, a->q_a, s->q_lora}
                       : (neap_linear_target){&w->q, a->q, s->n_heads * dq};
    t[n++] = (neap_linear_target){&w->kv_a, a->kv, s->kv_lora + s->d_rope};
    if (s->has_output_gate) t[n++] = (neap_linear_target){&w->g, a->gate, (int64_t)s->n_heads * s->d_v};
    if (has_own_index(s)) {
        t[n++] = (neap_linear_target){&w->index.wk, a->index_k, s->index.head_dim};
        t[n++] = (neap_linear_target){&w->index.weights_proj, a->index_w, s->index.n_heads};
    }
    neap_linear_emit(b, "mla.in", false, x, b->net->width, t, n);
}

void neap_mla_emit(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w, neap_selection *selection,
                   const float *x, float *y) {
    int64_t rows = b->rows_max, h = s->n_heads, dq = s->d_nope + s->d_rope, width = s->kv_lora + s->d_rope;
    int64_t hi = s->index.n_heads, di = s->index.head_dim;
    uint64_t mark = neap_builder_mark(b);
    mla_args a = {.k = b->k,
                  .batch = b->batch,
                  .caches = b->caches,
                  .layer = b->layer,
                  .spec = *s,
                  .w = w,
                  .selection = *selection,
                  .context_max = b->context_max};
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
    if (has_own_index(s)) {
        assert(s->q_lora > 0);
        a.index_q = neap_builder_floats(b, rows * hi * di);
        a.index_k = neap_builder_floats(b, rows * di);
        a.index_w = neap_builder_floats(b, rows * hi);
        a.sorting = neap_builder_ints(b, b->n_workers * b->context_max);
    }
    a.scores = neap_builder_floats(b, b->n_workers * neap_attn_scratch(b->context_max));

    emit_inputs(b, &a, x);
    neap_builder_op(b, "mla.prepare", false, rows_count, prepare_run, &a, sizeof a);
    if (s->q_lora) {
        neap_linear_target t[] = {{&w->q_b, a.q, h * dq}, {&w->index.wq_b, a.index_q, hi * di}};
        neap_linear_emit(b, "mla.q_up", false, a.q_a, s->q_lora, t, has_own_index(s) ? 2 : 1);
    }
    neap_builder_op(b, "mla.absorb", false, heads_count, absorb_run, &a, sizeof a);
    if (has_own_index(s)) neap_builder_op(b, "mla.select", true, rows_count, select_run, &a, sizeof a);
    neap_builder_op(b, "mla.attend", false, attend_count, attend_run, &a, sizeof a);
    if (s->has_index) neap_tap_emit(b, "index_topk", b->layer, selection->lists, selection->ld, selection->ld, true);
    neap_builder_op(b, "mla.expand", false, heads_count, expand_run, &a, sizeof a);
    neap_linear_target o = {&w->o, y, b->net->width};
    neap_linear_emit(b, "mla.out", false, a.v, h * s->d_v, &o, 1);
    neap_builder_release(b, mark);
}
