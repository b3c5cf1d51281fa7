/* Elementwise work between the matrix products: sums, gates and the two GLU forms.
 *
 *   SILU  g sigmoid(g) u
 *   SITU  beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb); lb = 0: u itself
 *
 * Products are taken from left to right as written. Source: docs/numerics.md section 7. */
#include "kernels/families.h"
#include "kernels/vmath.h"

static void add(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void axpy(float *y, float a, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

static void sigmoid_mul(float *y, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] *= vm_sigmoid(gate[i]);
}

static void glu(float *y, const float *gate, const float *up, int64_t n, const neap_act *act) {
    float beta = act->beta, lb = act->linear_beta;
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i];
        if (act->kind == NEAP_ACT_SITU) {
            if (lb != 0.0f) u = lb * vm_tanh(u / lb);
            y[i] = beta * vm_tanh(g / beta) * vm_sigmoid(g) * u;
        } else {
            y[i] = g * vm_sigmoid(g) * u;
        }
    }
}

void neap_act_scalar_init(neap_kernels *k) {
    k->add = add;
    k->axpy = axpy;
    k->sigmoid_mul = sigmoid_mul;
    k->glu = glu;
}
