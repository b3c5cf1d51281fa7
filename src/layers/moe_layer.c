/* Mixture of experts, plain or latent (docs/numerics.md section 6), with a shared expert.
 *
 *   phase 1  router logits = W_r x;  z = W_down x (latent);  shared expert: hs = act(W_gate x, W_up x)
 *   phase 2  per row: choose experts, weights, in ascending order of id; whoever is last sorts the (row, expert)
 *            pairs by expert (counting sort)
 *   phase 3  tasks (chosen expert, panel), cut by rows and not by number (moe_split.h): h = act(W1 z, W3 z) for the
 *            expert's rows
 *   phase 4  tasks = output panels: for each expert in ascending order, acc[row] += weight * (W2 h);
 *            not latent: y = acc + W_sdown hs, panel by panel
 *   phase 5  (latent) acc <- RMSNorm(acc)
 *   phase 6  (latent) y = W_up acc + W_sdown hs, panel by panel
 * Few rows: phase 2 is done by the worker that makes the last panel of the router full, as part of phase 1; in phase 6
 * every worker norms for itself what phase 5 would.
 *
 * The shared expert may have phases of its own instead, or a stream of its own beside phases 1 to 6; y is then put
 * together at the end. A row's sum runs over its experts in ascending order, then the shared one, whatever else is in
 * the step: no atomics, no reduction over workers, the same bits for any grouping. */
#include <math.h>
#include <string.h>

#include "layers/builder.h"
#include "layers/moe_split.h"

/* What routing leaves behind. */
typedef struct routed {
    int32_t *first;     /* [E + 1] first pair of each expert */
    int32_t *active;    /* [E] experts with rows, ascending; active[E] = how many */
    int32_t *pair_row;  /* [rows * k] row of each sorted pair */
    float *pair_weight; /* [rows * k] */
} routed;

/* ---- phases 1 and 2 ---- */

typedef struct route_args {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_moe_spec spec;
    const float *bias;
    const float *logits; /* [rows, E] */
    float *scratch;      /* [workers][2 E] */
    int32_t *ids;        /* [rows, k] ascending */
    float *weights;      /* [rows, k] */
    routed to;
    neap_counter *counter;
} route_args;

static void route_row(const route_args *a, int64_t row, int32_t worker) {
    int32_t n = a->spec.n_experts, k = a->spec.top_k;
    int32_t *ids = a->ids + row * k;
    float *weights = a->weights + row * k;
    neap_route_args r = {.logits = a->logits + row * n,
                         .bias = a->bias,
                         .n_experts = n,
                         .top_k = k,
                         .n_groups = a->spec.n_groups,
                         .topk_groups = a->spec.topk_groups,
                         .is_softmax = a->spec.is_softmax,
                         .is_renormalized = a->spec.is_renormalized,
                         .scale = a->spec.scale,
                         .ids = ids,
                         .weights = weights,
                         .scratch = a->scratch + (int64_t)worker * 2 * n};
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

static void sort_pairs(const route_args *a) {
    const routed *t = &a->to;
    int32_t e_max = a->spec.n_experts, n_active = 0;
    int64_t pairs = (int64_t)a->batch->n_rows * a->spec.top_k;
    memset(t->first, 0, ((size_t)e_max + 1) * sizeof *t->first);
    for (int64_t i = 0; i < pairs; i++) t->first[a->ids[i] + 1]++;
    for (int32_t e = 0; e < e_max; e++) {
        if (t->first[e + 1] > 0) t->active[n_active++] = e;
        t->first[e + 1] += t->first[e];
    }
    t->active[e_max] = n_active;
    /* first[e] walks to the end of e's range while filling; shifting by one restores it. */
    for (int64_t i = 0; i < pairs; i++) {
        int32_t at = t->first[a->ids[i]]++;
        t->pair_row[at] = (int32_t)(i / a->spec.top_k);
        t->pair_weight[at] = a->weights[i];
    }
    for (int32_t e = e_max; e > 0; e--) t->first[e] = t->first[e - 1];
    t->first[0] = 0;
}

static int64_t route_count(const void *p) { return ((const route_args *)p)->batch->n_rows; }

static void route_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const route_args *a = ptr;
    for (int64_t row = begin; row < end; row++) route_row(a, row, worker);
    if (neap_arrive(a->counter, (int32_t)(end - begin), a->batch->n_rows)) sort_pairs(a);
}

static void route_outputs(neap_builder *b, const route_args *a) {
    const int32_t *n = &b->batch->n_rows;
    int32_t k = a->spec.top_k;
    neap_builder_output(b, a->ids, k, k, n, 1);
    neap_builder_output(b, a->weights, k, k, n, 1);
    neap_builder_output(b, a->to.first, a->spec.n_experts + 1, 0, NULL, 1);
    neap_builder_output(b, a->to.pair_row, k, k, n, 1);
}

/* Few rows: the router's panels come first; whoever makes them full goes on with routing. */
typedef struct in_args {
    neap_linear linear;
    route_args route;
} in_args;

static int64_t in_count(const void *p) { return neap_linear_tasks(&((const in_args *)p)->linear); }
static void in_cost(const void *p, neap_op_cost *out) { neap_linear_cost(&((const in_args *)p)->linear, out); }

static void in_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const in_args *a = ptr;
    const neap_linear *l = &a->linear;
    const float *x = neap_linear_rows(l, begin, end, worker);
    int64_t all = l->first_panel[1], stop = end < all ? end : all;
    if (begin < stop) {
        neap_linear_products(l, x, begin, stop, worker);
        if (neap_arrive(a->route.counter, (int32_t)(stop - begin), (int32_t)all)) {
            for (int64_t row = 0; row < l->batch->n_rows; row++) route_row(&a->route, row, worker);
            sort_pairs(&a->route);
        }
        begin = stop;
    }
    if (begin < end) neap_linear_products(l, x, begin, end, worker);
}

/* Many rows: routing follows in a phase of its own. */
static void in_run_only(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const in_args *a = ptr;
    neap_linear_products(&a->linear, neap_linear_rows(&a->linear, begin, end, worker), begin, end, worker);
}

/* ---- phases 3 and 4 ---- */

typedef struct expert_args {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_moe_spec spec;
    const neap_moe_weights *w;
    int64_t latent; /* what the experts see */
    neap_act act;
    neap_x_form form;
    char *gemm_scratch;
    routed pairs;
    const float *z; /* [rows, latent]; up */
    float *h;       /* [rows * k, F] */
    float *u;       /* [rows * k, F]; up */
} expert_args;

static neap_moe_split split_of(const expert_args *a) {
    return (neap_moe_split){.first = a->pairs.first,
                            .active = a->pairs.active,
                            .n_active = a->pairs.active[a->spec.n_experts],
                            .panels = (a->spec.expert_width + NEAP_PANEL - 1) / NEAP_PANEL};
}

static int64_t up_count(const void *p) {
    const expert_args *a = p;
    if (a->batch->n_rows == 0) return 0;
    neap_moe_split s = split_of(a);
    return neap_moe_split_begin(&s, s.n_active);
}

/* Rows of an expert need not be neighbours: they are listed. */
static void expert_up(const expert_args *a, int32_t e, int64_t begin, int64_t end, int32_t worker) {
    int64_t f = a->spec.expert_width, at = a->pairs.first[e], n = a->pairs.first[e + 1] - at;
    neap_gemm_args gate = {.y = a->h + at * f,
                           .ldy = f,
                           .x = a->z,
                           .ldx = a->latent,
                           .rows = a->pairs.pair_row + at,
                           .m = n,
                           .w = &a->w->w1[e],
                           .panel_begin = begin,
                           .panel_end = end,
                           .x_form = a->form,
                           .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
    neap_gemm_args up = gate;
    up.y = a->u + at * f;
    up.w = &a->w->w3[e];
    gate.also = &up;
    neap_gemm(a->k, &gate);
    neap_glu_panels(a->k, &a->act, gate.w, gate.y, up.y, f, n, begin, end);
}

static void up_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const expert_args *a = ptr;
    neap_moe_split s = split_of(a);
    for (int64_t i = 0; i < s.n_active; i++) {
        int64_t from, to;
        neap_moe_split_panels(&s, i, begin, end, &from, &to);
        if (from < to) expert_up(a, a->pairs.active[i], from, to, worker);
    }
}

/* One matrix of each expert that some row chooses: E (1 - (1 - k/E)^rows) are expected. */
static void experts_cost(const expert_args *a, const neap_matrix *w, neap_op_cost *out) {
    double rows = a->batch->n_rows, e = a->spec.n_experts, k = a->spec.top_k;
    double bytes = (double)neap_matrix_panel_bytes(w) + (double)neap_matrix_scale_count(w) * sizeof(float);
    out->bytes += (uint64_t)(bytes * e * (1 - pow(1 - k / e, rows)));
    out->multiply_adds += rows * k * (double)w->n * (double)w->k;
}

static void up_cost(const void *p, neap_op_cost *out) {
    const expert_args *a = p;
    experts_cost(a, a->w->w1, out);
    experts_cost(a, a->w->w3, out);
}

/* The end of the layer: y = W_up acc (latent), y += W_sdown hs, either may be absent. Panels of y. */
typedef struct out_args {
    const neap_kernels *k;
    const neap_batch *batch;
    const neap_matrix *up, *shared; /* NULL: absent */
    int64_t width;                  /* C */
    int64_t latent;
    const float *acc;  /* [rows, latent] */
    const float *norm; /* [latent]; NULL: acc is normed, or need not be */
    float *own;        /* [workers][rows_max, latent] normed */
    int64_t own_floats;
    float eps;
    const float *hs; /* [rows, Fs] */
    float *s;        /* [rows, C] */
    float *y;        /* [rows, C]; NULL: s is the result */
    neap_x_form form;
    char *gemm_scratch;
} out_args;

static void out_product(const out_args *a, const neap_matrix *w, const float *x, float *y, int64_t begin, int64_t end,
                        int32_t worker) {
    neap_gemm_args g = {.y = y,
                        .ldy = a->width,
                        .x = x,
                        .ldx = w->k,
                        .m = a->batch->n_rows,
                        .w = w,
                        .panel_begin = begin,
                        .panel_end = end,
                        .x_form = a->form,
                        .scratch = neap_gemm_scratch_of(a->gemm_scratch, worker)};
    neap_gemm(a->k, &g);
}

static void add_shared(const out_args *a, int64_t begin, int64_t end, int32_t worker) {
    if (!a->shared) return;
    int64_t from = begin * NEAP_PANEL, to = end * NEAP_PANEL < a->width ? end * NEAP_PANEL : a->width;
    out_product(a, a->shared, a->hs, a->s, begin, end, worker);
    for (int64_t row = 0; a->y && row < a->batch->n_rows; row++)
        a->k->add(a->y + row * a->width + from, a->s + row * a->width + from, to - from);
}

static int64_t out_count(const void *p) {
    const out_args *a = p;
    return a->batch->n_rows > 0 ? (a->width + NEAP_PANEL - 1) / NEAP_PANEL : 0;
}

static void out_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const out_args *a = ptr;
    const float *acc = a->acc;
    if (a->norm) {
        float *own = a->own + worker * a->own_floats;
        for (int64_t row = 0; row < a->batch->n_rows; row++)
            a->k->rmsnorm(own + row * a->latent, acc + row * a->latent, a->norm, a->latent, a->eps);
        acc = own;
    }
    if (a->up) out_product(a, a->up, acc, a->y, begin, end, worker);
    add_shared(a, begin, end, worker);
}

static void out_cost(const void *p, neap_op_cost *out) {
    const out_args *a = p;
    if (a->up) neap_matrix_cost(out, a->up, a->batch->n_rows);
    if (a->shared) neap_matrix_cost(out, a->shared, a->batch->n_rows);
}

typedef struct down_args {
    expert_args e;
    float *pair_out; /* [rows * k, latent] */
    float *acc;      /* [rows, latent]; not latent: y */
    out_args out;    /* not latent: the shared expert's part, or nothing */
} down_args;

static int64_t down_count(const void *p) {
    const down_args *a = p;
    return a->e.batch->n_rows > 0 ? (a->e.latent + NEAP_PANEL - 1) / NEAP_PANEL : 0;
}

static void down_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const down_args *a = ptr;
    const expert_args *x = &a->e;
    int64_t f = x->spec.expert_width, d = x->latent, column = begin * NEAP_PANEL;
    int64_t columns = (end * NEAP_PANEL < d ? end * NEAP_PANEL : d) - column;
    for (int64_t row = 0; row < x->batch->n_rows; row++)
        memset(a->acc + row * d + column, 0, (size_t)columns * sizeof(float));
    for (int32_t i = 0; i < x->pairs.active[x->spec.n_experts]; i++) {
        int32_t e = x->pairs.active[i];
        int64_t at = x->pairs.first[e], n = x->pairs.first[e + 1] - at;
        neap_gemm_args g = {.y = a->pair_out + at * d,
                            .ldy = d,
                            .x = x->h + at * f,
                            .ldx = f,
                            .m = n,
                            .w = &x->w->w2[e],
                            .panel_begin = begin,
                            .panel_end = end,
                            .x_form = x->form,
                            .scratch = neap_gemm_scratch_of(x->gemm_scratch, worker)};
        neap_gemm(x->k, &g);
        for (int64_t j = at; j < at + n; j++)
            x->k->axpy(a->acc + x->pairs.pair_row[j] * d + column, x->pairs.pair_weight[j],
                       a->pair_out + j * d + column, columns);
    }
    add_shared(&a->out, begin, end, worker);
}

static void down_cost(const void *p, neap_op_cost *out) {
    const down_args *a = p;
    experts_cost(&a->e, a->e.w->w2, out);
    if (a->out.shared) neap_matrix_cost(out, a->out.shared, a->e.batch->n_rows);
}

/* ---- many rows: phase 5; streams: the sum ---- */

typedef struct rows_args {
    const neap_kernels *k;
    const neap_batch *batch;
    int64_t width;
    float eps;
    const float *norm; /* norm y; NULL: y = m + s */
    const float *m, *s;
    float *y; /* [rows, width] */
} rows_args;

static int64_t rows_count(const void *p) { return ((const rows_args *)p)->batch->n_rows; }

static void norm_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const rows_args *a = ptr;
    (void)worker;
    for (int64_t at = begin * a->width; at < end * a->width; at += a->width)
        a->k->rmsnorm(a->y + at, a->y + at, a->norm, a->width, a->eps);
}

static void sum_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const rows_args *a = ptr;
    (void)worker;
    int64_t at = begin * a->width, n = (end - begin) * a->width;
    memcpy(a->y + at, a->m + at, (size_t)n * sizeof(float));
    a->k->add(a->y + at, a->s + at, n);
}

/* ---- emission ---- */

/* Where the shared expert is computed. */
typedef enum shared_place { SHARED_NONE, SHARED_BESIDE, SHARED_APART, SHARED_STREAM } shared_place;

typedef struct emission {
    neap_builder *b;
    const neap_moe_spec *spec;
    const neap_moe_weights *w;
    shared_place place;
    neap_linear_glu glu; /* of the shared expert */
    route_args route;
    expert_args experts;
    float *acc; /* [rows, latent]; not latent: m */
    float *m;   /* [rows, C] the routed experts' part: y, but for streams */
    float *s;   /* [rows, C] the shared expert's */
    float *y;
} emission;

static shared_place place_of(neap_builder *b, const neap_moe_spec *s) {
    if (!s->shared_width) return SHARED_NONE;
    if (!b->has_taps && neap_builder_fork(b, NEAP_USE_SHARED, 2)) return SHARED_STREAM;
    bool beside = neap_builder_beside(b, NEAP_USE_SHARED) || (b->streams & NEAP_USE_SHARED);
    return beside ? SHARED_BESIDE : SHARED_APART;
}

static void claim(emission *e, neap_input *in) {
    neap_builder *b = e->b;
    const neap_moe_spec *s = e->spec;
    int64_t rows = b->rows_max, c = b->net->width, pairs = rows * s->top_k, f = s->expert_width;
    int64_t latent = s->latent ? s->latent : c;
    routed to = {.first = neap_builder_ints(b, s->n_experts + 1),
                 .active = neap_builder_ints(b, s->n_experts + 1),
                 .pair_row = neap_builder_ints(b, pairs),
                 .pair_weight = neap_builder_floats(b, pairs)};
    e->route = (route_args){.k = b->k,
                            .batch = b->batch,
                            .spec = *s,
                            .bias = e->w->router_bias,
                            .logits = neap_builder_floats(b, rows * s->n_experts),
                            .scratch = neap_builder_floats(b, (int64_t)b->n_workers * 2 * s->n_experts),
                            .ids = neap_builder_ints(b, pairs),
                            .weights = neap_builder_floats(b, pairs),
                            .to = to,
                            .counter = neap_builder_counters(b, 1)};
    e->experts = (expert_args){.k = b->k,
                               .batch = b->batch,
                               .spec = *s,
                               .w = e->w,
                               .latent = latent,
                               .act = b->net->act,
                               .form = b->moe_act,
                               .gemm_scratch = b->gemm_scratch,
                               .pairs = to,
                               .z = s->latent ? neap_builder_floats(b, rows * latent) : in->x,
                               .h = neap_builder_floats(b, pairs * f),
                               .u = neap_builder_floats(b, pairs * f)};
    e->m = e->place == SHARED_STREAM ? neap_builder_floats(b, rows * c) : e->y;
    e->acc = s->latent ? neap_builder_floats(b, rows * latent) : e->m;
    if (e->place == SHARED_NONE) return;
    e->s = neap_builder_floats(b, rows * c);
    e->glu = (neap_linear_glu){.gate = &e->w->shared.gate,
                               .up = &e->w->shared.up,
                               .h = neap_builder_floats(b, rows * s->shared_width),
                               .u = neap_builder_floats(b, rows * s->shared_width),
                               .ld = s->shared_width,
                               .form = b->act,
                               .act = b->net->act};
}

/* Phases 1 and 2. */
static void emit_in(emission *e, neap_input *in) {
    neap_builder *b = e->b;
    const neap_moe_spec *s = e->spec;
    neap_linear_target t[2] = {{&e->w->router, (float *)e->route.logits, s->n_experts, NEAP_X_F32},
                               {&e->w->latent_down, (float *)e->experts.z, s->latent, b->act}};
    neap_taken taken = neap_input_take(in, s->latent == 0);
    in_args a = {.route = e->route};
    a.linear = neap_linear_of(b, &taken, t, s->latent ? 2 : 1, e->place == SHARED_BESIDE ? &e->glu : NULL);
    if (!b->is_few) a.route = (route_args){.k = NULL}; /* not here */
    neap_builder_op(b, "moe.in", false, in_count, b->is_few ? in_run : in_run_only, &a, sizeof a);
    neap_builder_cost(b, in_cost);
    neap_linear_outputs(b, &a.linear);
    if (b->is_few) route_outputs(b, &e->route);
    neap_input_follow(b, in, &taken);
    if (!b->is_few) {
        neap_builder_op(b, "moe.route", false, route_count, route_run, &e->route, sizeof e->route);
        route_outputs(b, &e->route);
    }
    neap_tap_emit(b, "experts", b->layer, e->route.ids, s->top_k, s->top_k, true);
    neap_tap_emit(b, "expert_weight", b->layer, e->route.weights, s->top_k, s->top_k, false);
    if (e->place == SHARED_APART) neap_glu_emit(b, "moe.shared_in", false, in, &e->glu);
}

/* The shared expert's part of the end: panels of y, or of s alone. */
static out_args out_of(const emission *e, bool has_shared) {
    neap_builder *b = e->b;
    out_args a = {.k = b->k,
                  .batch = b->batch,
                  .width = b->net->width,
                  .y = e->m,
                  .form = b->act,
                  .gemm_scratch = b->gemm_scratch};
    if (!has_shared) return a;
    a.shared = &e->w->shared.down;
    a.hs = e->glu.h;
    a.s = e->s;
    return a;
}

static void add_out(emission *e, const char *name, const out_args *a) {
    neap_builder *b = e->b;
    neap_builder_op(b, name, false, out_count, out_run, a, sizeof *a);
    neap_builder_cost(b, out_cost);
    neap_builder_output(b, a->y ? a->y : a->s, a->width, a->width, &b->batch->n_rows, 1);
}

/* Phases 3 and 4. */
static void emit_experts(emission *e) {
    neap_builder *b = e->b;
    const neap_moe_spec *s = e->spec;
    int64_t f = s->expert_width, latent = e->experts.latent;
    const int32_t *n = &b->batch->n_rows;
    neap_builder_op(b, "moe.expert_up", false, up_count, up_run, &e->experts, sizeof e->experts);
    neap_builder_cost(b, up_cost);
    neap_builder_output(b, e->experts.h, f, f, n, s->top_k);
    down_args down = {.e = e->experts,
                      .pair_out = neap_builder_floats(b, (int64_t)b->rows_max * s->top_k * latent),
                      .acc = e->acc,
                      .out = out_of(e, !s->latent && e->place == SHARED_BESIDE)};
    down.e.z = down.e.u = NULL;
    if (s->latent) down.out.y = NULL;
    neap_builder_op(b, "moe.expert_down", false, down_count, down_run, &down, sizeof down);
    neap_builder_cost(b, down_cost);
    neap_builder_output(b, e->acc, latent, latent, n, 1);
}

/* Phases 5 and 6. */
static void emit_latent_out(emission *e) {
    neap_builder *b = e->b;
    const neap_moe_spec *s = e->spec;
    out_args a = out_of(e, e->place == SHARED_BESIDE);
    a.up = &e->w->latent_up;
    a.acc = e->acc;
    if (s->has_latent_norm && b->is_few) {
        a.norm = e->w->latent_norm;
        a.latent = s->latent;
        a.eps = b->net->eps;
        a.own_floats = (int64_t)b->rows_max * s->latent;
        a.own = neap_builder_floats(b, b->n_workers * a.own_floats);
    } else if (s->has_latent_norm) {
        rows_args norm = {.k = b->k,
                          .batch = b->batch,
                          .width = s->latent,
                          .eps = b->net->eps,
                          .norm = e->w->latent_norm,
                          .y = e->acc};
        neap_builder_op(b, "moe.norm", false, rows_count, norm_run, &norm, sizeof norm);
        neap_builder_output(b, e->acc, s->latent, s->latent, &b->batch->n_rows, 1);
    }
    add_out(e, "moe.latent_up", &a);
}

/* The shared expert in a stream of its own, and both parts together. */
static void emit_stream(emission *e, neap_input *in) {
    neap_builder *b = e->b;
    int64_t c = b->net->width;
    neap_builder_stream(b, 1);
    neap_glu_emit(b, "moe.shared_in", false, in, &e->glu);
    out_args a = out_of(e, true);
    a.y = NULL;
    add_out(e, "moe.shared_down", &a);
    neap_builder_join(b);
    rows_args sum = {.k = b->k, .batch = b->batch, .width = c, .m = e->m, .s = e->s, .y = e->y};
    neap_builder_op(b, "moe.sum", false, rows_count, sum_run, &sum, sizeof sum);
    neap_builder_output(b, e->y, c, c, &b->batch->n_rows, 1);
}

void neap_moe_emit(neap_builder *b, const neap_moe_spec *s, const neap_moe_weights *w, neap_input *in, float *y) {
    emission e = {.b = b, .spec = s, .w = w, .place = place_of(b, s), .y = y};
    claim(&e, in);
    emit_in(&e, in);
    emit_experts(&e);
    if (s->latent) emit_latent_out(&e);
    if (e.place == SHARED_STREAM) emit_stream(&e, in);
    if (e.place != SHARED_APART) return;
    out_args a = out_of(&e, true);
    add_out(&e, "moe.shared_down", &a);
}
