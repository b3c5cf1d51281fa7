/* Attention residuals of one token in two stages: the finished snapshots once per block of layers and for all
 * mixes of the block, the running sum last.
 *
 *   score_s = (X_s . c) * (1 / sqrt(mean X_s^2 + eps))                        both sums dot16
 *   stage 1  max = max_s score_s;  e_s = exp(score_s - max);  den = sum e_s;  acc = sum e_s X_s  (ascending s)
 *   stage 2  M = max(max, l);  a = exp(max - M), b = exp(l - M);
 *            out = fmaf(p, b, acc a) * (1 / fmaf(den, a, b))
 *
 * acc is the same chain whether stage 1 keeps it or stage 2 forms it, and a mix's results do not depend on the
 * mixes beside it.
 *
 * Source: docs/numerics.md section 8. */
#include <assert.h>

#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/vmath.h"

static float mix_score(const float *x, const float *c, int64_t d, float eps) {
    return dot16(x, c, d) * (1.0f / sqrtf(dot16(x, x, d) / (float)d + eps));
}

static float bank_sum(const float *const *bank, const float *e, int64_t n, int64_t j) {
    float v = 0;
    for (int64_t s = 0; s < n; s++) v = fmaf(e[s], bank[s][j], v);
    return v;
}

static void bank_mixes(const neap_attnres_args *a) {
    assert(a->n_bank >= 1);
    for (int64_t q = 0; q < a->n_mixes; q++) {
        float *w = a->weights + q * a->ld_weights, *e = w + NEAP_ATTNRES_HEAD;
        float max = -INFINITY, den = 0;
        for (int64_t s = 0; s < a->n_bank; s++) {
            e[s] = mix_score(a->bank[s], a->c[q], a->d, a->eps);
            max = e[s] > max ? e[s] : max;
        }
        for (int64_t s = 0; s < a->n_bank; s++) {
            e[s] = vm_exp(e[s] - max);
            den += e[s];
        }
        w[0] = max;
        w[1] = den;
        if (a->acc)
            for (int64_t j = 0; j < a->d; j++) a->acc[q * a->ld_acc + j] = bank_sum(a->bank, e, a->n_bank, j);
    }
}

static void merge(const neap_attnres_merge_args *m) {
    float max = m->weights[0], den = m->weights[1], l = mix_score(m->p, m->c, m->d, m->eps), top = l > max ? l : max;
    float a = vm_exp(max - top), b = vm_exp(l - top), inverse = 1.0f / fmaf(den, a, b);
    for (int64_t j = 0; j < m->d; j++) {
        float acc = m->acc ? m->acc[j] : bank_sum(m->bank, m->weights + NEAP_ATTNRES_HEAD, m->n_bank, j);
        m->out[j] = fmaf(m->p[j], b, acc * a) * inverse;
    }
}

void neap_attnres_scalar_init(neap_kernels *k) {
    k->attnres_bank = bank_mixes;
    k->attnres_merge = merge;
}
