/* Attention residuals of one token in two stages: the finished snapshots once per block, the running sum last.
 *
 *   score_s = (X_s . c) * (1 / sqrt(mean X_s^2 + eps))                        both sums dot16
 *   stage 1  max = max_s score_s;  e_s = exp(score_s - max);  den = sum e_s;  acc = sum e_s X_s  (ascending s)
 *   stage 2  M = max(max, l);  a = exp(max - M), b = exp(l - M);
 *            out = fmaf(p, b, acc a) * (1 / fmaf(den, a, b))
 *
 * Source: docs/numerics.md section 8. */
#include <assert.h>

#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/vmath.h"

static float mix_score(const float *x, const float *c, int64_t d, float eps) {
    return dot16(x, c, d) * (1.0f / sqrtf(dot16(x, x, d) / (float)d + eps));
}

static void bank_mix(float *acc, float *max, float *den, const float *const *bank, int64_t s, const float *c, int64_t d,
                     float eps) {
    float e[NEAP_ATTNRES_MAX], m = -INFINITY, sum = 0;
    assert(s >= 1 && s <= NEAP_ATTNRES_MAX);
    for (int64_t i = 0; i < s; i++) {
        e[i] = mix_score(bank[i], c, d, eps);
        m = e[i] > m ? e[i] : m;
    }
    for (int64_t i = 0; i < s; i++) {
        e[i] = vm_exp(e[i] - m);
        sum += e[i];
    }
    for (int64_t j = 0; j < d; j++) {
        float v = 0;
        for (int64_t i = 0; i < s; i++) v = fmaf(e[i], bank[i][j], v);
        acc[j] = v;
    }
    *max = m;
    *den = sum;
}

static void merge(float *out, const float *acc, float max, float den, const float *p, const float *c, int64_t d,
                  float eps) {
    float l = mix_score(p, c, d, eps), m = l > max ? l : max;
    float a = vm_exp(max - m), b = vm_exp(l - m), inverse = 1.0f / fmaf(den, a, b);
    for (int64_t j = 0; j < d; j++) out[j] = fmaf(p[j], b, acc[j] * a) * inverse;
}

void neap_attnres_scalar_init(neap_kernels *k) {
    k->attnres_bank = bank_mix;
    k->attnres_merge = merge;
}
