/* One head of Kimi Delta Attention, token by token: the definition (equations in kernels.h).
 *
 * State layout [ceil(d_v/32)][d_k][32]: columns (value channels) are independent of each other, so a slice of
 * 32 columns over all d_k is the unit of work, 16 KiB at d_k = 128, and stays in the first cache. Unused
 * columns of the last slice are computed like the others with v = 0, so they stay zero.
 *
 * Order of the sums: prediction and output are chains over ascending d; norms are dot16. Nothing is carried
 * between tokens but the state and the windows, so any split of the tokens gives the same bits.
 * Source: docs/numerics.md section 3. */
#include <assert.h>

#include "kernels/dot16.h"
#include "kernels/families.h"
#include "kernels/kda_chunk.h"
#include "kernels/vmath.h"

enum { SLICE = 32, D_MAX = 256 };

/* silu(conv) of channel c at token t; taps reach back into the window before token 0. */
static float conv_silu(const float *x, int64_t ld, const float *win, const float *filter, int64_t taps, int64_t t,
                       int64_t c) {
    float acc = 0;
    for (int64_t j = 0; j < taps; j++) {
        int64_t at = t - (taps - 1) + j;
        float in = at < 0 ? win[c * (taps - 1) + taps - 1 + at] : x[at * ld + c];
        acc = fmaf(filter[c * taps + j], in, acc);
    }
    return acc * vm_sigmoid(acc);
}

/* Afterwards the window holds the last taps-1 inputs, oldest first. */
static void shift_window(float *win, const float *x, int64_t ld, int64_t n, int64_t d, int64_t taps) {
    int64_t w = taps - 1;
    for (int64_t c = 0; c < d; c++)
        for (int64_t j = 0; j < w; j++) win[c * w + j] = n + j < w ? win[c * w + j + n] : x[(n - w + j) * ld + c];
}

static void l2_norm(float *x, int64_t d, float scale) {
    float r = 1.0f / sqrtf(dot16(x, x, d) + 1e-6f);
    for (int64_t i = 0; i < d; i++) x[i] = x[i] * r * scale;
}

/* exp(g): how much of row i of the state is kept. */
static float decay(const neap_kda_args *a, float f, float bias) {
    float z = f + bias;
    if (a->is_bounded) return vm_exp(a->lower_bound * vm_sigmoid(a->decay_scale * z));
    return vm_exp(-a->decay_scale * vm_softplus(z));
}

/* One token on one slice S [d_k][32]; v and o have `cols` values. */
static void delta_rule(float *s, float *o, const float *q, const float *k, const float *keep, const float *v,
                       float beta, int64_t d_k, int64_t cols) {
    float u[SLICE];
    for (int64_t j = 0; j < SLICE; j++) {
        float pred = 0;
        for (int64_t i = 0; i < d_k; i++) {
            s[i * SLICE + j] *= keep[i];
            pred = fmaf(k[i], s[i * SLICE + j], pred);
        }
        u[j] = beta * ((j < cols ? v[j] : 0.0f) - pred);
    }
    for (int64_t j = 0; j < SLICE; j++) {
        float out = 0;
        for (int64_t i = 0; i < d_k; i++) {
            s[i * SLICE + j] = fmaf(k[i], u[j], s[i * SLICE + j]);
            out = fmaf(q[i], s[i * SLICE + j], out);
        }
        if (j < cols) o[j] = out;
    }
}

static void kda(const neap_kda_args *a) {
    float q[D_MAX], k[D_MAX], v[D_MAX], keep[D_MAX];
    float q_scale = 1.0f / sqrtf((float)a->d_k);
    assert(a->d_k <= D_MAX);
    assert(a->d_v <= D_MAX);
    for (int64_t t = 0; t < a->n; t++) {
        for (int64_t i = 0; i < a->d_k; i++) {
            q[i] = conv_silu(a->q, a->ld_q, a->win_q, a->conv_q, a->conv_k, t, i);
            k[i] = conv_silu(a->k, a->ld_k, a->win_k, a->conv_k_w, a->conv_k, t, i);
            keep[i] = decay(a, a->f[t * a->ld_f + i], a->dt_bias[i]);
        }
        for (int64_t i = 0; i < a->d_v; i++) v[i] = conv_silu(a->v, a->ld_v, a->win_v, a->conv_v, a->conv_k, t, i);
        l2_norm(q, a->d_k, q_scale);
        l2_norm(k, a->d_k, 1.0f);
        float beta = vm_sigmoid(a->b[t * a->ld_b]);

        float *out = a->out + t * a->ld_out;
        for (int64_t j = 0; j < a->d_v; j += SLICE)
            delta_rule(a->state + j * a->d_k, out + j, q, k, keep, v + j, beta, a->d_k,
                       a->d_v - j < SLICE ? a->d_v - j : SLICE);

        float r = 1.0f / sqrtf(dot16(out, out, a->d_v) / (float)a->d_v + a->eps);
        for (int64_t i = 0; i < a->d_v; i++)
            out[i] = out[i] * r * a->o_norm[i] * vm_sigmoid(a->gate[t * a->ld_gate + i]);
    }
    shift_window(a->win_q, a->q, a->ld_q, a->n, a->d_k, a->conv_k);
    shift_window(a->win_k, a->k, a->ld_k, a->n, a->d_k, a->conv_k);
    shift_window(a->win_v, a->v, a->ld_v, a->n, a->d_v, a->conv_k);
}

void neap_kda_scalar_init(neap_kernels *k) {
    k->kda = kda;
    k->kda_chunk = neap_kda_chunk_scalar;
    k->kda_map = neap_kda_map_scalar;
}
