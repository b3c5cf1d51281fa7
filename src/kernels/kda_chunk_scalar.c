/* The chunked form of Kimi Delta Attention: the definition (contract in kernels.h, formulas in docs/numerics.md
 * section 3), and the map of a segment.
 *
 * Within a chunk that starts from state S, with a_t in [0,1]^{d_k} the decays and i, j tokens of the chunk:
 *   F_i = a_0 ... a_i;   A_ij = k_i . KD_j,  P_ij = q_i . KD_j,  KD_j = k_j a_{j+1} ... a_i
 *   u_i = beta_i (v_i - S^T (k_i F_i) - sum_{j<i} A_ij u_j);   o_i = S^T (q_i F_i) + sum_{j<=i} P_ij u_j
 *   S <- diag(F_last) S + sum_j KD_j u_j^T
 * Decays enter as products of factors <= 1 and never as quotients or differences of sums, so nothing can overflow,
 * and a factor 0 is a factor like any other. Tokens stand in blocks of 16. Inside a block KD_j moves with the row;
 * for the rows of a later block it stops at that block's first row and the row carries the rest (R_i), so that whole
 * blocks of A and P are matrix products.
 * Source: docs/numerics.md section 3. */
#include <assert.h>
#include <string.h>

#include "kernels/dot16.h"
#include "kernels/kda_chunk.h"

enum { SLICE = 32, BLOCK = NEAP_KDA_CHUNK_BLOCK };

/* Four chains over ascending d, d mod 4; x may be weighted by w. */
static float dot4(const float *x, const float *w, const float *y, int64_t d) {
    float c[4] = {0};
    for (int64_t i = 0; i < d; i++) c[i % 4] = fmaf(w ? x[i] * w[i] : x[i], y[i], c[i % 4]);
    return (c[0] + c[1]) + (c[2] + c[3]);
}

typedef struct pairs {
    float *kd;          /* [chunk][d_k] */
    float *a, *p;       /* [chunk][chunk] */
    float *f, *kf, *qf; /* [chunk][d_k]: F, k F, q F */
    float *r;           /* [d_k]: decay from the first row of the block to this one */
} pairs;

static void times(float *x, const float *y, int64_t d) {
    for (int64_t i = 0; i < d; i++) x[i] *= y[i];
}

/* Everything of token i that does not need the state. */
static void pair_row(const pairs *x, const neap_kda_chunk_args *a, int64_t t0, int64_t i, int64_t n) {
    int64_t d = a->d_k, c = a->chunk, first = i / BLOCK * BLOCK;
    const float *keep = a->keep + (t0 + i) * a->ld_keep, *k = a->k + (t0 + i) * a->ld_k;
    const float *q = a->q ? a->q + (t0 + i) * a->ld_q : NULL;
    for (int64_t l = 0; l < d; l++) {
        float f = x->f[i * d + l] = i ? x->f[(i - 1) * d + l] * keep[l] : keep[l];
        x->kf[i * d + l] = k[l] * f;
        if (q) x->qf[i * d + l] = q[l] * f;
        x->r[l] = i == first ? 1.0f : x->r[l] * keep[l];
    }
    for (int64_t j = i == first ? 0 : first; j < i; j++) times(x->kd + j * d, keep, d);
    for (int64_t j = 0; j < i; j++) {
        const float *rest = j < first ? x->r : NULL;
        x->a[i * c + j] = dot4(k, rest, x->kd + j * d, d);
        if (q) x->p[i * c + j] = dot4(q, rest, x->kd + j * d, d);
    }
    memcpy(x->kd + i * d, k, (size_t)d * sizeof *k);
    if (q) x->p[i * c + i] = dot4(q, NULL, k, d);
    if (i + 1 == n || (i + 1) % BLOCK == 0)
        for (int64_t j = 0; j < first; j++) times(x->kd + j * d, x->r, d);
}

/* One column of the state, which lies at s[d * SLICE]; u [n]. */
static void column(const pairs *x, const neap_kda_chunk_args *a, float *s, float *u, int64_t col, int64_t t0,
                   int64_t n) {
    int64_t d = a->d_k, c = a->chunk;
    for (int64_t i = 0; i < n; i++) {
        float pred = 0, o = 0;
        for (int64_t l = 0; l < d; l++) pred = fmaf(x->kf[i * d + l], s[l * SLICE], pred);
        for (int64_t j = 0; j < i; j++) pred = fmaf(x->a[i * c + j], u[j], pred);
        float v = a->v && col < a->d_v ? a->v[(t0 + i) * a->ld_v + col] : 0.0f;
        u[i] = a->beta[(t0 + i) * a->ld_beta] * (v - pred);
        if (!a->q || col >= a->d_v) continue;
        for (int64_t l = 0; l < d; l++) o = fmaf(x->qf[i * d + l], s[l * SLICE], o);
        for (int64_t j = 0; j <= i; j++) o = fmaf(x->p[i * c + j], u[j], o);
        a->out[(t0 + i) * a->ld_out + col] = o;
    }
    for (int64_t l = 0; l < d; l++) {
        float sum = s[l * SLICE] * x->f[(n - 1) * d + l];
        for (int64_t j = 0; j < n; j++) sum = fmaf(x->kd[j * d + l], u[j], sum);
        s[l * SLICE] = sum;
    }
}

void neap_kda_chunk_scalar(const neap_kda_chunk_args *a) {
    int64_t d = a->d_k, c = a->chunk;
    float *at = a->scratch;
    assert(c >= 1 && c <= NEAP_KDA_CHUNK_MAX);
    pairs x = {.kd = at, .f = at + c * d, .kf = at + 2 * c * d, .qf = at + 3 * c * d, .a = at + 4 * c * d};
    x.p = x.a + c * c, x.r = x.p + c * c;
    float *u = x.r + d;
    for (int64_t t0 = 0; t0 < a->n; t0 += c) {
        int64_t n = a->n - t0 < c ? a->n - t0 : c, columns = (a->d_v + SLICE - 1) / SLICE * SLICE;
        for (int64_t i = 0; i < n; i++) pair_row(&x, a, t0, i, n);
        for (int64_t col = 0; col < columns; col++)
            column(&x, a, a->state + col / SLICE * d * SLICE + col % SLICE, u, col, t0, n);
    }
}

void neap_kda_map_scalar(const neap_kda_map_args *a) {
    for (int64_t j = 0; j < (a->d_v + SLICE - 1) / SLICE * SLICE; j++)
        for (int64_t i = 0; i < a->d_k; i++) {
            int64_t slice = j / SLICE * a->d_k * SLICE + j % SLICE;
            float sum = a->b ? a->b[slice + i * SLICE] : 0.0f;
            for (int64_t l = 0; l < a->d_k; l++)
                sum = fmaf(a->m[l / SLICE * a->d_k * SLICE + i * SLICE + l % SLICE], a->x[slice + l * SLICE], sum);
            a->y[slice + i * SLICE] = sum;
        }
}

void neap_kda_segment_map(const neap_kernels *kernels, const neap_kda_chunk_args *a, float *m, float *b) {
    neap_kda_chunk_args run = *a;
    int64_t d = a->d_k;
    run.q = NULL, run.out = NULL;
    memset(b, 0, (size_t)neap_kda_state_floats(d, a->d_v) * sizeof *b);
    run.state = b;
    kernels->kda_chunk(&run);
    memset(m, 0, (size_t)neap_kda_state_floats(d, d) * sizeof *m);
    for (int64_t i = 0; i < d; i++) m[i / SLICE * d * SLICE + i * SLICE + i % SLICE] = 1;
    run.state = m, run.d_v = d, run.v = NULL;
    kernels->kda_chunk(&run);
}
