/* Dense feed-forward: y = W_down act(W_gate x, W_up x), act = SwiGLU or SiTU (docs/numerics.md section 7).
 * The activation runs where gate and up of the same columns were computed, in one task. */
#include "layers/builder.h"

typedef struct glu_args {
    const neap_kernels *k;
    const neap_batch *batch;
    const float *x;
    int64_t ldx;
    const neap_matrix *gate, *up;
    float *h, *u; /* [rows, F] result in h */
    int64_t width;
    neap_act act;
    neap_x_form form;
    char *scratch;
} glu_args;

static int64_t panels_count(const void *p) {
    const glu_args *a = p;
    return a->batch->n_rows > 0 ? neap_matrix_panels(a->gate) : 0;
}

static void glu_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const glu_args *a = ptr;
    neap_gemm_args gate = {.y = a->h,
                           .ldy = a->width,
                           .x = a->x,
                           .ldx = a->ldx,
                           .m = a->batch->n_rows,
                           .w = a->gate,
                           .panel_begin = begin,
                           .panel_end = end,
                           .x_form = a->form,
                           .scratch = neap_gemm_scratch_of(a->scratch, worker)};
    neap_glu_products(a->k, &gate, a->up, a->u, &a->act);
}

void neap_mlp_emit(neap_builder *b, const neap_mlp_weights *w, int64_t width, neap_input *in, float *y) {
    int64_t c = b->net->width;
    glu_args a = {.k = b->k,
                  .batch = b->batch,
                  .x = in->x,
                  .ldx = c,
                  .gate = &w->gate,
                  .up = &w->up,
                  .width = width,
                  .h = neap_builder_floats(b, b->rows_max * width),
                  .u = neap_builder_floats(b, b->rows_max * width),
                  .act = b->net->act,
                  .form = b->act,
                  .scratch = b->gemm_scratch};
    neap_builder_op(b, "mlp.glu", false, panels_count, glu_run, &a, sizeof a);
    neap_linear_target down = {&w->down, y, c, b->act};
    neap_input h = neap_input_of(a.h, width);
    neap_linear_emit(b, "mlp.down", false, &h, &down, 1);
}
