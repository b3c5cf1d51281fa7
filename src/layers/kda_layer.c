/* KDA layer (docs/numerics.md section 3): projections, one fused task per head, output projection.
 *
 *   phase 1  q, k, v, f_a, b, g (or g_a) = W x                 one op over all panels
 *   phase 2  f = W_fb f_a   (gate = W_gb g_a)
 *   phase 3  per sequence and head: conv, SiLU, L2 norm, decay, recurrence, gated norm (kernel kda)
 *   phase 4  y = W_o o
 * Few rows: phase 2 is part of phase 3 where a head's rows are whole panels. Tasks are then ordered by head, and a
 * worker makes f (and the gate) of a head once for all sequences that it has of it, in a buffer of its own.
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
    /* few rows: */
    bool folds;
    const float *f_a, *g_a; /* [rows, D]; g_a NULL: the gate is there */
    float *own_f, *own_g;   /* [workers][rows_max, P], a head at its columns; f and gate are NULL then */
    int64_t own_floats;
    char *gemm_scratch;
    neap_x_form form;
} heads_args;

/* f and gate of one head, where token t of a segment lies ld apart. */
typedef struct head_inputs {
    const float *f, *gate;
    int64_t ld_f, ld_gate;
} head_inputs;

static int64_t heads_count(const void *p) {
    const heads_args *a = p;
    return (int64_t)a->batch->n_segments * a->spec.n_heads;
}

static void one_head(const heads_args *a, const neap_batch_segment *seg, int64_t h, const head_inputs *in,
                     float *scratch) {
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
                       .f = in->f,
                       .ld_f = in->ld_f,
                       .dt_bias = a->w->dt_bias + h * d,
                       .decay_scale = a->w->decay_scale[h],
                       .is_bounded = a->spec.is_bounded,
                       .lower_bound = a->spec.lower_bound,
                       .b = a->b + r * a->spec.n_heads + h,
                       .ld_b = a->spec.n_heads,
                       .gate = in->gate,
                       .ld_gate = in->ld_gate,
                       .o_norm = a->w->o_norm,
                       .eps = a->spec.eps,
                       .state = state,
                       .out = a->out + at,
                       .ld_out = p,
                       .scratch = scratch};
    a->k->kda(&k);
}

/* Columns of head h of to [n, P] = the head's rows of w times rows row .. row + n - 1 of x. */
static void low_rank(const heads_args *a, const neap_matrix *w, const float *x, int64_t row, int64_t n, int64_t h,
                     float *to, int32_t worker) {
    int64_t d = a->spec.head_dim;
    neap_gemm_args g = {.y = to,
                        .ldy = a->spec.n_heads * d,
                        .x = x + row * w->k,
                        .ldx = w->k,
                        .m = n,
                        .w = w,
                        .panel_begin = h * d / NEAP_PANEL,
                        .panel_end = (h + 1) * d / NEAP_PANEL,
                        .x_form = a->form,
                        .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
    neap_gemm(a->k, &g);
}

/* Sequences begin .. end - 1 of one head. */
static void folded_head(const heads_args *a, int64_t h, int64_t begin, int64_t end, int32_t worker) {
    const neap_batch_segment *first = &a->batch->segments[begin], *last = &a->batch->segments[end - 1];
    int64_t d = a->spec.head_dim, p = a->spec.n_heads * d, row = first->row_begin;
    int64_t n = last->row_begin + last->n_rows - row;
    float *f = a->own_f + worker * a->own_floats, *gate = a->g_a ? a->own_g + worker * a->own_floats : NULL;
    low_rank(a, &a->w->f_b, a->f_a, row, n, h, f, worker);
    if (gate) low_rank(a, &a->w->g_b, a->g_a, row, n, h, gate, worker);
    for (const neap_batch_segment *s = first; s <= last; s++) {
        int64_t r = s->row_begin;
        head_inputs in = {.f = f + (r - row) * p + h * d, .ld_f = p, .ld_gate = p};
        in.gate = gate ? gate + (r - row) * p + h * d : a->gate + r * p + h * d;
        one_head(a, s, h, &in, a->scratch + worker * a->scratch_floats);
    }
}

static void heads_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const heads_args *a = ptr;
    int64_t n = a->batch->n_segments, p = (int64_t)a->spec.n_heads * a->spec.head_dim;
    for (int64_t h = begin / n; a->folds && h * n < end; h++)
        folded_head(a, h, h * n < begin ? begin - h * n : 0, (h + 1) * n < end ? n : end - h * n, worker);
    for (int64_t t = begin; !a->folds && t < end; t++) {
        const neap_batch_segment *s = &a->batch->segments[t / a->spec.n_heads];
        int64_t h = t % a->spec.n_heads, at = s->row_begin * p + h * a->spec.head_dim;
        head_inputs in = {a->f + at, a->gate + at, p, p};
        one_head(a, s, h, &in, a->scratch + worker * a->scratch_floats);
    }
}

/* State and window, read and written; decay, product with k, update, product with q. */
static void heads_cost(const void *ptr, neap_op_cost *out) {
    const heads_args *a = ptr;
    double rows = (double)a->batch->n_rows;
    neap_cache_layer_spec cache = neap_kda_cache(&a->spec);
    int64_t floats = 2 * a->batch->n_segments * (cache.state_floats + cache.window_floats);
    out->bytes += (uint64_t)floats * sizeof(float);
    out->multiply_adds += rows * 3 * a->spec.n_heads * a->spec.head_dim * a->spec.head_dim;
    if (!a->folds) return;
    neap_matrix_cost(out, &a->w->f_b, rows);
    if (a->g_a) neap_matrix_cost(out, &a->w->g_b, rows);
}

neap_cache_layer_spec neap_kda_cache(const neap_kda_spec *s) {
    int64_t h = s->n_heads, d = s->head_dim;
    return (neap_cache_layer_spec){.state_floats = h * neap_kda_state_floats(d, d),
                                   .window_floats = 3 * h * d * (s->conv_k - 1)};
}

/* Phase 2 as an op of its own. */
static void emit_up(neap_builder *b, heads_args *a, float *f_a, float *g_a) {
    int64_t rows = b->rows_max, p = (int64_t)a->spec.n_heads * a->spec.head_dim;
    float *f = neap_builder_floats(b, rows * p);
    neap_linear_target up_f = {&a->w->f_b, f, p, b->act};
    neap_input low_f = neap_input_of(f_a, a->w->f_a.n);
    neap_linear_emit(b, "kda.decay_up", false, &low_f, &up_f, 1);
    a->f = f;
    if (!g_a) return;
    float *gate = neap_builder_floats(b, rows * p);
    neap_linear_target up_g = {&a->w->g_b, gate, p, b->act};
    neap_input low_g = neap_input_of(g_a, a->w->g_a.n);
    neap_linear_emit(b, "kda.gate_up", true, &low_g, &up_g, 1);
    a->gate = gate;
}

static void fold_up(neap_builder *b, heads_args *a, const float *f_a, const float *g_a) {
    a->folds = true;
    a->f_a = f_a;
    a->g_a = g_a;
    a->own_floats = (int64_t)b->rows_max * a->spec.n_heads * a->spec.head_dim;
    a->own_f = neap_builder_floats(b, b->n_workers * a->own_floats);
    if (g_a) a->own_g = neap_builder_floats(b, b->n_workers * a->own_floats);
    a->gemm_scratch = b->gemm_scratch;
    a->form = b->act;
}

void neap_kda_emit(neap_builder *b, const neap_kda_spec *s, const neap_kda_weights *w, neap_input *in, float *y) {
    int64_t rows = b->rows_max, c = b->net->width, d = s->head_dim, p = s->n_heads * d;
    heads_args a = {.k = b->k, .batch = b->batch, .caches = b->caches, .layer = b->layer, .spec = *s, .w = w};
    float *q = neap_builder_floats(b, rows * p), *k = neap_builder_floats(b, rows * p);
    float *v = neap_builder_floats(b, rows * p), *beta = neap_builder_floats(b, rows * s->n_heads);
    float *f_a = neap_builder_floats(b, rows * w->f_a.n);
    float *g_a = s->is_gate_full_rank ? NULL : neap_builder_floats(b, rows * w->g_a.n);
    float *gate = s->is_gate_full_rank ? neap_builder_floats(b, rows * p) : NULL;
    neap_linear_target targets[] = {{&w->q, q, p, b->act},
                                    {&w->k, k, p, b->act},
                                    {&w->v, v, p, b->act},
                                    {&w->f_a, f_a, w->f_a.n, b->act},
                                    {&w->b, beta, s->n_heads, b->act},
                                    gate ? (neap_linear_target){&w->g, gate, p, b->act}
                                         : (neap_linear_target){&w->g_a, g_a, w->g_a.n, b->act}};
    neap_linear_emit(b, "kda.in", false, in, targets, 6);
    a.q = q, a.kk = k, a.v = v, a.b = beta, a.gate = gate;
    if (b->is_few && d % NEAP_PANEL == 0)
        fold_up(b, &a, f_a, g_a);
    else
        emit_up(b, &a, f_a, g_a);

    float *out = neap_builder_floats(b, rows * p);
    a.out = out;
    a.scratch_floats = (neap_kda_scratch(d, d) + 15) / 16 * 16;
    a.scratch = neap_builder_floats(b, b->n_workers * a.scratch_floats);
    neap_builder_op(b, "kda.heads", false, heads_count, heads_run, &a, sizeof a);
    neap_builder_cost(b, heads_cost);
    neap_builder_output(b, out, p, p, &b->batch->n_rows, 1);
    neap_linear_target o = {&w->o, y, c, b->act};
    neap_input heads = neap_input_of(out, p);
    neap_linear_emit(b, "kda.out", false, &heads, &o, 1);
}
