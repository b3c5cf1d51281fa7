/* RMSNorm and LayerNorm of one row, F32.
 *
 *   rmsnorm    y = x r w,            r = 1 / sqrt(mean x^2 + eps)
 *   layernorm  y = (x - mu) r w + b, r = 1 / sqrt(mean (x - mu)^2 + eps)
 *
 * The means are dot16 sums divided by n. Called once per token and norm. */
#include "kernels/dot16.h"
#include "kernels/families.h"

static void rmsnorm(float *y, const float *x, const float *w, int64_t n, float eps) {
    float r = 1.0f / sqrtf(dot16(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * w[i];
}

static void layernorm(float *y, const float *x, const float *w, const float *b, int64_t n, float eps) {
    float mu = sum16(x, n) / (float)n, lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - mu;
        lane[i % 16] = fmaf(d, d, lane[i % 16]);
    }
    float r = 1.0f / sqrtf(dot16_tree(lane) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] - mu) * r;
        y[i] = b ? fmaf(v, w[i], b[i]) : v * w[i];
    }
}

void neap_norm_scalar_init(neap_kernels *k) {
    k->rmsnorm = rmsnorm;
    k->layernorm = layernorm;
}
