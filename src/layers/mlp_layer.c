/* Dense feed-forward: y = W_down act(W_gate x, W_up x), act = SwiGLU or SiTU (docs/numerics.md section 7).
 *
 *   phase 1  h = act(W_gate x, W_up x): both of the same columns and the activation in one task
 *   phase 2  y = W_down h */
#include "layers/builder.h"

void neap_mlp_emit(neap_builder *b, const neap_mlp_weights *w, int64_t width, neap_input *in, float *y) {
    neap_linear_glu glu = {.gate = &w->gate,
                           .up = &w->up,
                           .h = neap_builder_floats(b, b->rows_max * width),
                           .u = neap_builder_floats(b, b->rows_max * width),
                           .ld = width,
                           .form = b->act,
                           .act = b->net->act};
    neap_glu_emit(b, "mlp.glu", false, in, &glu);
    neap_linear_target down = {&w->down, y, b->net->width, b->act};
    neap_input h = neap_input_of(glu.h, width);
    neap_linear_emit(b, "mlp.down", false, &h, &down, 1);
}
