/* Mixture of experts, plain or latent (docs/numerics.md section 6), with a shared expert.
 *
 *   phase 1  router logits = W_r x;  z = W_down x (latent);  shared gate and up
 *   phase 2  per row: choose experts, weights, in ascending order of id;   beside: shared activation
 *   phase 3  counting sort of (row, expert) pairs by expert: one task
 *   phase 4  tasks (chosen expert, panel), cut by rows and not by number (moe_split.h): h = act(W1 z, W3 z) for the
 *            expert's rows
 *   phase 5  tasks = output panels: for each expert in ascending order, acc[row] += weight * (W2 h)
 *   phase 6  (latent) acc <- RMSNorm(acc)
 *   phase 7  (latent) m = W_up acc;  beside: s = W_sdown shared
 *   phase 8  y = m + s
 * A row's sum runs over its experts in ascending order whatever else is in the step: no atomics, no reduction
 * over workers, the same bits for any grouping. */
#include <string.h>

#include "layers/builder.h"
#include "layers/moe_split.h"

typedef struct moe_args {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_moe_spec spec;
    const neap_moe_weights *w;
    int64_t width, latent; /* C and what the experts see */
    float eps;
    neap_act act;
    neap_x_form form;     /* of what enters the routed experts */
    const float *z;       /* [rows, latent] */
    float *logits;        /* [rows, E] */
    float *route_scratch; /* [workers][2 E] */
    char *gemm_scratch;
    int32_t *ids;               /* [rows, k] ascending */
    float *weights;             /* [rows, k] */
    float *shared_h, *shared_u; /* [rows, Fs] */
    int32_t *first;             /* [E + 1] first pair of each expert */
    int32_t *active;            /* [E] experts with rows; active[E] = how many */
    int32_t *pair_row;          /* [rows * k] row of each sorted pair */
    float *pair_weight;         /* [rows * k] */
    float *h, *u;               /* [rows * k, F] */
    float *pair_out;            /* [rows * k, latent] */
    float *acc;                 /* [rows, latent] */
    float *m, *s;               /* [rows, C] */
    float *y;
} moe_args;

static int64_t rows_count(const void *p) { return ((const moe_args *)p)->batch->n_rows; }
static int64_t one_if_rows(const void *p) { return ((const moe_args *)p)->batch->n_rows > 0; }

static void route_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    int32_t n = a->spec.n_experts, k = a->spec.top_k;
    for (int64_t row = begin; row < end; row++) {
        int32_t *ids = a->ids + row * k;
        float *weights = a->weights + row * k;
        neap_route_args r = {.logits = a->logits + row * n,
                             .bias = a->w->router_bias,
                             .n_experts = n,
                             .top_k = k,
                             .n_groups = a->spec.n_groups,
                             .topk_groups = a->spec.topk_groups,
                             .is_softmax = a->spec.is_softmax,
                             .is_renormalized = a->spec.is_renormalized,
                             .scale = a->spec.scale,
                             .ids = ids,
                             .weights = weights,
                             .scratch = a->route_scratch + (int64_t)worker * 2 * n};
        a->k->route(&r);
        for (int32_t i = 1; i < k; i++) { /* insertion sort by id: k is small */
            int32_t id = ids[i], j = i;
            float weight = weights[i];
            for (; j > 0 && ids[j - 1] > id; j--) {
                ids[j] = ids[j - 1];
                weights[j] = weights[j - 1];
            }
            ids[j] = id;
            weights[j] = weight;
        }
    }
}

static void shared_act_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    (void)worker;
    int64_t f = a->spec.shared_width;
    for (int64_t row = begin; row < end; row++)
        a->k->glu(a->shared_h + row * f, a->shared_h + row * f, a->shared_u + row * f, f, &a->act);
}

static void sort_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    (void)begin, (void)end, (void)worker;
    int32_t e_max = a->spec.n_experts, n_active = 0;
    int64_t pairs = (int64_t)a->batch->n_rows * a->spec.top_k;
    memset(a->first, 0, ((size_t)e_max + 1) * sizeof *a->first);
    for (int64_t i = 0; i < pairs; i++) a->first[a->ids[i] + 1]++;
    for (int32_t e = 0; e < e_max; e++) {
        if (a->first[e + 1] > 0) a->active[n_active++] = e;
        a->first[e + 1] += a->first[e];
    }
    a->active[e_max] = n_active;
    /* first[e] walks to the end of e's range while filling; shifting by one restores it. */
    for (int64_t i = 0; i < pairs; i++) {
        int32_t at = a->first[a->ids[i]]++;
        a->pair_row[at] = (int32_t)(i / a->spec.top_k);
        a->pair_weight[at] = a->weights[i];
    }
    for (int32_t e = e_max; e > 0; e--) a->first[e] = a->first[e - 1];
    a->first[0] = 0;
}

static neap_moe_split split_of(const moe_args *a) {
    return (neap_moe_split){.first = a->first,
                            .active = a->active,
                            .n_active = a->active[a->spec.n_experts],
                            .panels = (a->spec.expert_width + NEAP_PANEL - 1) / NEAP_PANEL};
}
static int64_t up_count(const void *p) {
    const moe_args *a = p;
    if (a->batch->n_rows == 0) return 0;
    neap_moe_split s = split_of(a);
    return neap_moe_split_begin(&s, s.n_active);
}

/* Panels [begin, end) of one expert for all its rows. */
static void expert_up(const moe_args *a, int32_t e, int64_t begin, int64_t end, int32_t worker) {
    int64_t f = a->spec.expert_width, at = a->first[e];
    neap_gemm_args gate = {.y = a->h + at * f,
                           .ldy = f,
                           .x = a->z,
                           .ldx = a->latent,
                           .rows = a->pair_row + at,
                           .m = a->first[e + 1] - at,
                           .w = &a->w->w1[e],
                           .panel_begin = begin,
                           .panel_end = end,
                           .x_form = a->form,
                           .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
    neap_glu_products(a->k, &gate, &a->w->w3[e], a->u + at * f, &a->act);
}

static void up_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    neap_moe_split s = split_of(a);
    for (int64_t i = 0; i < s.n_active; i++) {
        int64_t from, to;
        neap_moe_split_panels(&s, i, begin, end, &from, &to);
        if (from < to) expert_up(a, a->active[i], from, to, worker);
    }
}

static int64_t down_count(const void *p) {
    const moe_args *a = p;
    return a->batch->n_rows > 0 ? (a->latent + NEAP_PANEL - 1) / NEAP_PANEL : 0;
}

static void down_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    int64_t f = a->spec.expert_width, d = a->latent, column = begin * NEAP_PANEL;
    int64_t columns = (end * NEAP_PANEL < d ? end * NEAP_PANEL : d) - column;
    for (int64_t row = 0; row < a->batch->n_rows; row++)
        memset(a->acc + row * d + column, 0, (size_t)columns * sizeof(float));
    for (int32_t i = 0; i < a->active[a->spec.n_experts]; i++) {
        int32_t e = a->active[i];
        int64_t at = a->first[e], n = a->first[e + 1] - at;
        neap_gemm_args g = {.y = a->pair_out + at * d,
                            .ldy = d,
                            .x = a->h + at * f,
                            .ldx = f,
                            .m = n,
                            .w = &a->w->w2[e],
                            .panel_begin = begin,
                            .panel_end = end,
                            .x_form = a->form,
                            .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
        neap_gemm(a->k, &g);
        for (int64_t j = at; j < at + n; j++)
            a->k->axpy(a->acc + a->pair_row[j] * d + column, a->pair_weight[j], a->pair_out + j * d + column, columns);
    }
}

static void latent_norm_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    (void)worker;
    for (int64_t row = begin; row < end; row++)
        a->k->rmsnorm(a->acc + row * a->latent, a->acc + row * a->latent, a->w->latent_norm, a->latent, a->eps);
}

static void combine_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const moe_args *a = ptr;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        float *y = a->y + row * a->width;
        memcpy(y, a->m + row * a->width, (size_t)a->width * sizeof(float));
        if (a->s) a->k->add(y, a->s + row * a->width, a->width);
    }
}

static void emit_inputs(neap_builder *b, moe_args *a, neap_input *in) {
    const neap_moe_spec *s = &a->spec;
    neap_linear_target t[NEAP_LINEAR_MAX];
    int32_t n = 0;
    t[n++] = (neap_linear_target){&a->w->router, a->logits, s->n_experts, NEAP_X_F32};
    if (s->latent) t[n++] = (neap_linear_target){&a->w->latent_down, (float *)a->z, a->latent, b->act};
    if (s->shared_width) {
        t[n++] = (neap_linear_target){&a->w->shared.gate, a->shared_h, s->shared_width, b->act};
        t[n++] = (neap_linear_target){&a->w->shared.up, a->shared_u, s->shared_width, b->act};
    }
    neap_linear_emit(b, "moe.in", false, in, t, n);
}

static void emit_outputs(neap_builder *b, moe_args *a) {
    const neap_moe_spec *s = &a->spec;
    if (s->latent && s->has_latent_norm)
        neap_builder_op(b, "moe.norm", false, rows_count, latent_norm_run, a, sizeof *a);
    neap_linear_target up = {&a->w->latent_up, a->m, a->width, b->act};
    neap_linear_target down = {&a->w->shared.down, a->s, a->width, b->act};
    neap_input acc = neap_input_of(a->acc, a->latent), shared = neap_input_of(a->shared_h, s->shared_width);
    if (s->latent) neap_linear_emit(b, "moe.latent_up", false, &acc, &up, 1);
    if (s->shared_width) neap_linear_emit(b, "moe.shared_down", s->latent != 0, &shared, &down, 1);
    neap_builder_op(b, "moe.combine", false, rows_count, combine_run, a, sizeof *a);
}

void neap_moe_emit(neap_builder *b, const neap_moe_spec *s, const neap_moe_weights *w, neap_input *in, float *y) {
    int64_t rows = b->rows_max, c = b->net->width, pairs = rows * s->top_k, f = s->expert_width;
    moe_args a = {.k = b->k,
                  .batch = b->batch,
                  .spec = *s,
                  .w = w,
                  .width = c,
                  .latent = s->latent ? s->latent : c,
                  .eps = b->net->eps,
                  .act = b->net->act,
                  .form = b->moe_act,
                  .gemm_scratch = b->gemm_scratch,
                  .y = y};
    a.z = s->latent ? neap_builder_floats(b, rows * a.latent) : in->x;
    a.logits = neap_builder_floats(b, rows * s->n_experts);
    a.route_scratch = neap_builder_floats(b, (int64_t)b->n_workers * 2 * s->n_experts);
    a.ids = neap_builder_ints(b, pairs);
    a.weights = neap_builder_floats(b, pairs);
    if (s->shared_width) {
        a.shared_h = neap_builder_floats(b, rows * s->shared_width);
        a.shared_u = neap_builder_floats(b, rows * s->shared_width);
        a.s = neap_builder_floats(b, rows * c);
    }
    a.first = neap_builder_ints(b, s->n_experts + 1);
    a.active = neap_builder_ints(b, s->n_experts + 1);
    a.pair_row = neap_builder_ints(b, pairs);
    a.pair_weight = neap_builder_floats(b, pairs);
    a.h = neap_builder_floats(b, pairs * f);
    a.u = neap_builder_floats(b, pairs * f);
    a.pair_out = neap_builder_floats(b, pairs * a.latent);
    a.acc = neap_builder_floats(b, rows * a.latent);
    a.m = s->latent ? neap_builder_floats(b, rows * c) : a.acc;

    emit_inputs(b, &a, in);
    neap_builder_op(b, "moe.route", false, rows_count, route_run, &a, sizeof a);
    if (s->shared_width) neap_builder_op(b, "moe.shared_act", true, rows_count, shared_act_run, &a, sizeof a);
    neap_tap_emit(b, "experts", b->layer, a.ids, s->top_k, s->top_k, true);
    neap_tap_emit(b, "expert_weight", b->layer, a.weights, s->top_k, s->top_k, false);
    neap_builder_op(b, "moe.sort", false, one_if_rows, sort_run, &a, sizeof a);
    neap_builder_op(b, "moe.expert_up", false, up_count, up_run, &a, sizeof a);
    neap_builder_op(b, "moe.expert_down", false, down_count, down_run, &a, sizeof a);
    emit_outputs(b, &a);
}
