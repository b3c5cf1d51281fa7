/* Matrix products of all rows of a step with one or more matrices: y[i, :] = W x[i, :], tasks are panels of W.
 *
 * Matrices that share their input form one op: the panels of all of them are one line of tasks. A pair of gate and up
 * is one target: h = act(gate x) * (up x) of a panel is made where both halves lie. An input with a residual unit is
 * made by every worker that has a task, once per op. Products that follow each other share the integer form of x
 * (neap_gemm_args.also).
 *
 * Called by the layers' emit functions. Owns nothing. */
#include <assert.h>
#include <string.h>

#include "layers/builder.h"

static int64_t rows_of(const neap_linear *l) { return l->is_head ? l->batch->n_logits : l->batch->n_rows; }

int64_t neap_linear_tasks(const neap_linear *l) {
    return rows_of(l) > 0 ? l->first_panel[l->n + (l->glu.gate != NULL)] : 0;
}

const float *neap_linear_rows(const neap_linear *l, int64_t begin, int64_t end, int32_t worker) {
    return neap_taken_rows(&l->in, l->is_head ? l->batch->logit_rows : NULL, rows_of(l), begin, end,
                           neap_linear_tasks(l), worker);
}

static neap_gemm_args product(const neap_linear *l, const float *x, const neap_linear_target *t, int64_t begin,
                              int64_t end, int32_t worker) {
    return (neap_gemm_args){.y = t->y,
                            .ldy = t->ldy,
                            .x = x,
                            .ldx = l->in.ldx,
                            .rows = l->is_head && !l->in.has_unit ? l->batch->logit_rows : NULL,
                            .m = rows_of(l),
                            .w = t->w,
                            .panel_begin = begin,
                            .panel_end = end,
                            .x_form = t->form,
                            .scratch = neap_gemm_scratch_of(l->scratch, worker)};
}

void neap_glu_panels(const neap_kernels *k, const neap_act *act, const neap_matrix *gate, float *h, const float *u,
                     int64_t ld, int64_t m, int64_t begin, int64_t end) {
    int64_t from = begin * NEAP_PANEL, to = end * NEAP_PANEL < gate->n ? end * NEAP_PANEL : gate->n;
    for (int64_t i = 0; i < m; i++) k->glu(h + i * ld + from, h + i * ld + from, u + i * ld + from, to - from, act);
}

void neap_linear_products(const neap_linear *l, const float *x, int64_t begin, int64_t end, int32_t worker) {
    neap_gemm_args products[NEAP_LINEAR_MAX + 2];
    int32_t n = 0;
    int64_t glu_begin = 0, glu_end = 0;
    const neap_linear_glu *g = &l->glu;
    for (int32_t i = 0; i < l->n + (l->glu.gate != NULL); i++) {
        int64_t from = begin > l->first_panel[i] ? begin : l->first_panel[i];
        int64_t to = end < l->first_panel[i + 1] ? end : l->first_panel[i + 1];
        if (from >= to) continue;
        from -= l->first_panel[i], to -= l->first_panel[i];
        if (i < l->n) {
            products[n++] = product(l, x, &l->targets[i], from, to, worker);
        } else {
            neap_linear_target gate = {g->gate, g->h, g->ld, g->form}, up = {g->up, g->u, g->ld, g->form};
            products[n++] = product(l, x, &gate, from, to, worker);
            products[n++] = product(l, x, &up, from, to, worker);
            glu_begin = from, glu_end = to;
        }
    }
    if (n == 0) return;
    for (int32_t i = 1; i < n; i++) products[i - 1].also = &products[i];
    neap_gemm(l->k, products);
    if (glu_begin < glu_end) neap_glu_panels(l->k, &g->act, g->gate, g->h, g->u, g->ld, rows_of(l), glu_begin, glu_end);
}

void neap_matrix_cost(neap_op_cost *out, const neap_matrix *w, double m) {
    if (m <= 0) return;
    out->bytes += neap_matrix_panel_bytes(w) + (uint64_t)neap_matrix_scale_count(w) * sizeof(float);
    out->multiply_adds += m * (double)w->n * (double)w->k;
}

void neap_linear_cost(const void *linear, neap_op_cost *out) {
    const neap_linear *l = linear;
    double m = (double)rows_of(l);
    for (int32_t i = 0; i < l->n; i++) neap_matrix_cost(out, l->targets[i].w, m);
    if (!l->glu.gate) return;
    neap_matrix_cost(out, l->glu.gate, m);
    neap_matrix_cost(out, l->glu.up, m);
}

void neap_linear_outputs(neap_builder *b, const neap_linear *l) {
    const int32_t *n = l->is_head ? &l->batch->n_logits : &l->batch->n_rows;
    for (int32_t i = 0; i < l->n; i++) {
        const neap_linear_target *t = &l->targets[i];
        neap_builder_output(b, t->y, t->w->n, t->ldy, n, 1);
    }
    if (l->glu.gate) neap_builder_output(b, l->glu.h, l->glu.gate->n, l->glu.ld, n, 1);
}

static int64_t linear_count(const void *p) { return neap_linear_tasks(p); }

static void linear_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    neap_linear_products(p, neap_linear_rows(p, begin, end, worker), begin, end, worker);
}

neap_linear neap_linear_of(const neap_builder *b, const neap_taken *in, const neap_linear_target *targets, int32_t n,
                           const neap_linear_glu *glu) {
    assert(n >= 0 && n <= NEAP_LINEAR_MAX);
    neap_linear l = {.k = b->k, .batch = b->batch, .in = *in, .scratch = b->gemm_scratch, .n = n};
    for (int32_t i = 0; i < n; i++) {
        l.targets[i] = targets[i];
        l.first_panel[i + 1] = l.first_panel[i] + neap_matrix_panels(targets[i].w);
    }
    if (!glu) return l;
    l.glu = *glu;
    l.first_panel[n + 1] = l.first_panel[n] + neap_matrix_panels(glu->gate);
    return l;
}

static void add(neap_builder *b, const char *name, bool is_beside, const neap_input *in, const neap_linear *l) {
    neap_builder_op(b, name, is_beside, linear_count, linear_run, l, sizeof *l);
    neap_builder_cost(b, neap_linear_cost);
    neap_linear_outputs(b, l);
    neap_input_follow(b, in, &l->in);
}

void neap_linear_emit(neap_builder *b, const char *name, bool is_beside, neap_input *in,
                      const neap_linear_target *targets, int32_t n) {
    neap_taken taken = neap_input_take(in, false);
    neap_linear l = neap_linear_of(b, &taken, targets, n, NULL);
    add(b, name, is_beside, in, &l);
}

void neap_glu_emit(neap_builder *b, const char *name, bool is_beside, neap_input *in, const neap_linear_glu *glu) {
    neap_taken taken = neap_input_take(in, false);
    neap_linear l = neap_linear_of(b, &taken, NULL, 0, glu);
    add(b, name, is_beside, in, &l);
}

void neap_head_emit(neap_builder *b, neap_input *in, const neap_matrix *w, float *y, int64_t ldy) {
    neap_linear_target target = {w, y, ldy, b->act};
    in->is_taken = true; /* nobody reads the running sum after the head */
    neap_taken taken = neap_input_take(in, false);
    neap_linear l = neap_linear_of(b, &taken, &target, 1, NULL);
    l.is_head = true;
    add(b, "head", false, in, &l);
}
