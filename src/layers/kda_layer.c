/* KDA layer (docs/numerics.md section 3): projections, one fused task per head, output projection.
 *
 *   phase 1  q, k, v, f_a, b, g (or g_a) = W x                 one op over all panels
 *   phase 2  f = W_fb f_a   (gate = W_gb g_a)
 *   phase 3  per sequence and head: conv, SiLU, L2 norm, decay, recurrence, gated norm (kernel kda)
 *   phase 4  y = W_o o
 * The state [H][ceil(D/32)][D][32] and the window [3][P][conv_k-1] are read and written once per step. A
 * sequence that begins here starts from zeros whatever the slot holds. */
#include <string.h>

#include "layers/builder.h"

typedef struct heads_args {
    const neap_kernels *k;
    const neap_batch *batch;
    const neap_caches *caches;
    int32_t layer;
    neap_kda_spec spec;
    const neap_kda_weights *w;
    const float *q, *kk, *v, *f, *b, *gate; /* [rows, P], b [rows, H] */
    float *out;                             /* [rows, P] */
    float *scratch;                         /* [workers][scratch_floats] */
    int64_t scratch_floats;
} heads_args;

static int64_t heads_count(const void *p) {
    const heads_args *a = p;
    return (int64_t)a->batch->n_segments * a->spec.n_heads;
}

static void one_head(const heads_args *a, const neap_batch_segment *seg, int64_t h, float *scratch) {
    int64_t d = a->spec.head_dim, p = a->spec.n_heads * d, r = seg->row_begin, taps = a->spec.conv_k;
    const neap_cache_layer *cache = &a->caches->layers[a->layer];
    const neap_cache_layer_spec *size = &a->caches->specs[a->layer];
    int64_t head_state = neap_kda_state_floats(d, d), win = d * (taps - 1);
    float *state = cache->state + seg->slot * size->state_floats + h * head_state;
    float *window = size->window_floats ? cache->window + seg->slot * size->window_floats + h * win : NULL;
    int64_t win_stride = p * (taps - 1); /* from the q window to the k window */
    if (seg->position == 0) {
        memset(state, 0, (size_t)head_state * sizeof(float));
        for (int i = 0; window && i < 3; i++) memset(window + i * win_stride, 0, (size_t)win * sizeof(float));
    }
    int64_t at = r * p + h * d;
    neap_kda_args k = {.n = seg->n_rows,
                       .d_k = d,
                       .d_v = d,
                       .conv_k = taps,
                       .q = a->q + at,
                       .k = a->kk + at,
                       .v = a->v + at,
                       .ld_q = p,
                       .ld_k = p,
                       .ld_v = p,
                       .conv_q = a->w->conv_q + h * d * taps,
                       .conv_k_w = a->w->conv_k + h * d * taps,
                       .conv_v = a->w->conv_v + h * d * taps,
                       .win_q = window,
                       .win_k = window ? window + win_stride : NULL,
                       .win_v = window ? window + 2 * win_stride : NULL,
                       .f = a->f + at,
                       .ld_f = p,
                       .dt_bias = a->w->dt_bias + h * d,
                       .decay_scale = a->w->decay_scale[h],
                       .is_bounded = a->spec.is_bounded,
                       .lower_bound = a->spec.lower_bound,
                       .b = a->b + r * a->spec.n_heads + h,
                       .ld_b = a->spec.n_heads,
                       .gate = a->gate + at,
                       .ld_gate = p,
                       .o_norm = a->w->o_norm,
                       .eps = a->spec.eps,
                       .state = state,
                       .out = a->out + at,
                       .ld_out = p,
                       .scratch = scratch};
    a->k->kda(&k);
}

static void heads_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const heads_args *a = ptr;
    float *scratch = a->scratch + worker * a->scratch_floats;
    for (int64_t t = begin; t < end; t++)
        one_head(a, &a->batch->segments[t / a->spec.n_heads], t % a->spec.n_heads, scratch);
}

neap_cache_layer_spec neap_kda_cache(const neap_kda_spec *s) {
    int64_t h = s->n_heads, d = s->head_dim;
    return (neap_cache_layer_spec){.state_floats = h * neap_kda_state_floats(d, d),
                                   .window_floats = 3 * h * d * (s->conv_k - 1)};
}

void neap_kda_emit(neap_builder *b, const neap_kda_spec *s, const neap_kda_weights *w, neap_input *in, float *y) {
    int64_t rows = b->rows_max, c = b->net->width, d = s->head_dim, p = s->n_heads * d;
    heads_args a = {.k = b->k, .batch = b->batch, .caches = b->caches, .layer = b->layer, .spec = *s, .w = w};
    float *q = neap_builder_floats(b, rows * p), *k = neap_builder_floats(b, rows * p);
    float *v = neap_builder_floats(b, rows * p), *f = neap_builder_floats(b, rows * p);
    float *gate = neap_builder_floats(b, rows * p), *out = neap_builder_floats(b, rows * p);
    float *beta = neap_builder_floats(b, rows * s->n_heads);
    float *f_a = neap_builder_floats(b, rows * w->f_a.n);
    float *g_a = s->is_gate_full_rank ? NULL : neap_builder_floats(b, rows * w->g_a.n);

    neap_linear_target targets[] = {{&w->q, q, p, b->act},
                                    {&w->k, k, p, b->act},
                                    {&w->v, v, p, b->act},
                                    {&w->f_a, f_a, w->f_a.n, b->act},
                                    {&w->b, beta, s->n_heads, b->act},
                                    s->is_gate_full_rank ? (neap_linear_target){&w->g, gate, p, b->act}
                                                         : (neap_linear_target){&w->g_a, g_a, w->g_a.n, b->act}};
    neap_linear_emit(b, "kda.in", false, in, targets, 6);
    neap_linear_target up_f = {&w->f_b, f, p, b->act}, up_g = {&w->g_b, gate, p, b->act};
    neap_input low_f = neap_input_of(f_a, w->f_a.n), low_g = neap_input_of(g_a, w->g_a.n);
    neap_linear_emit(b, "kda.decay_up", false, &low_f, &up_f, 1);
    if (!s->is_gate_full_rank) neap_linear_emit(b, "kda.gate_up", true, &low_g, &up_g, 1);

    a.q = q, a.kk = k, a.v = v, a.f = f, a.b = beta, a.gate = gate, a.out = out;
    a.scratch_floats = (neap_kda_scratch(d, d) + 15) / 16 * 16;
    a.scratch = neap_builder_floats(b, b->n_workers * a.scratch_floats);
    neap_builder_op(b, "kda.heads", false, heads_count, heads_run, &a, sizeof a);
    neap_linear_target o = {&w->o, y, c, b->act};
    neap_input heads = neap_input_of(out, p);
    neap_linear_emit(b, "kda.out", false, &heads, &o, 1);
}
