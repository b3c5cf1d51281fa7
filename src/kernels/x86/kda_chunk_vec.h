/* The chunked form for vectors: formulas, order of the sums and bits as in kda_chunk_scalar.c.
 *
 * KD lies [block][d_k][16]: a lane is an earlier token j, so A_ij and P_ij of 16 tokens come out of one pass over d
 * without sums across lanes, the decay of row i multiplies all of them at once, and row i's own k joins as lane i.
 * Then, per group of columns (as in the sweep): S^T (k F) and S^T (q F) of a block as a product of register tiles, the
 * rows one after another (each reads the u of those before it), and once per chunk S <- diag(F) S + KD U. */
#ifndef NEAP_KERNELS_X86_KDA_CHUNK_VEC_H
#define NEAP_KERNELS_X86_KDA_CHUNK_VEC_H

#include <assert.h>

#include "kernels/x86/kda_vec.h"

#if defined(V_WIDTH)
enum {
    KDA_JOINT = NEAP_KDA_CHUNK_BLOCK,
    KDA_HALVES = KDA_JOINT / V_WIDTH,      /* vectors in a row of KD */
    KDA_TILE_VECS = V_WIDTH == 16 ? 4 : 2, /* a register tile: 6 rows of so many vectors */
    KDA_TILE_ROWS = 6,
    KDA_COLS = KDA_VECS * V_WIDTH,
};

/* One chunk: n tokens of the call, in n_blocks blocks; ld = n_blocks * 16. */
typedef struct kda_chunk {
    const neap_kda_chunk_args *a;
    int64_t t0, n, n_blocks, ld;
    float *kd;          /* [n_blocks][d_k][16] */
    float *rows;        /* [n_blocks][2 * 16][d_k]: k F of the block's m tokens, then q F of them */
    float *alone, *pq;  /* A and P, [ld][ld] */
    float *fall, *rest; /* F and R of the row in work, [d_k] */
    float *carried;     /* [2 * 16][d_k]: k R, q R */
    float *u;           /* [ld][KDA_COLS] */
    float *w;           /* [2 * 16][KDA_COLS]: S^T (k F), S^T (q F) */
} kda_chunk;

V_INLINE int64_t kda_block_tokens(const kda_chunk *c, int64_t block) {
    int64_t left = c->n - block * KDA_JOINT;
    return left < KDA_JOINT ? left : KDA_JOINT;
}

/* Row i of block: F and R move on; the row's operands. */
static inline void kda_chunk_row(const kda_chunk *c, int64_t block, int64_t i) {
    const neap_kda_chunk_args *a = c->a;
    int64_t d = a->d_k, t = c->t0 + block * KDA_JOINT + i, m = kda_block_tokens(c, block);
    const float *k = a->k + t * a->ld_k, *keep = a->keep + t * a->ld_keep, *q = a->q ? a->q + t * a->ld_q : NULL;
    float *kf = c->rows + (block * 2 * KDA_JOINT + i) * d, *qf = kf + m * d;
    float *kr = c->carried + i * d, *qr = kr + KDA_JOINT * d;
    bool is_start = block == 0 && i == 0, has_past = block > 0;
    for (int64_t l = 0; l < d; l += V_WIDTH) {
        vec x = v_load_n(keep + l, d - l), key = v_load_n(k + l, d - l), f = x;
        if (!is_start) f = v_mul(v_load_n(c->fall + l, d - l), x);
        v_store_n(c->fall + l, f, d - l);
        v_store_n(kf + l, v_mul(key, f), d - l);
        vec query = v_zero(), r = v_set1(1.0f);
        if (q) {
            query = v_load_n(q + l, d - l);
            v_store_n(qf + l, v_mul(query, f), d - l);
        }
        if (!has_past) continue;
        if (i) r = v_mul(v_load_n(c->rest + l, d - l), x);
        v_store_n(c->rest + l, r, d - l);
        v_store_n(kr + l, v_mul(key, r), d - l);
        v_store_n(qr + l, v_mul(query, r), d - l);
    }
}

/* KD of blocks before `block` times y [d_k] */
static inline void kda_chunk_fade(const kda_chunk *c, int64_t block, const float *y) {
    float *kd = c->kd;
    for (int64_t b = 0; b < block; b++)
        for (int64_t l = 0; l < c->a->d_k; l++, kd += KDA_JOINT)
            V_UNROLL for (int h = 0; h < KDA_HALVES; h++)
                v_store(kd + h * V_WIDTH, v_mul(v_load(kd + h * V_WIDTH), v_set1(y[l])));
}

/* Four chains each for A and P: d mod 4. */
typedef struct kda_chains {
    vec a[4], p[4];
} kda_chains;

V_INLINE void kda_chains_start(kda_chains *c) { V_UNROLL for (int e = 0; e < 4; e++) c->a[e] = c->p[e] = v_zero(); }
V_INLINE void kda_chains_end(float *a, float *p, const kda_chains *c) {
    v_store(a, v_add(v_add(c->a[0], c->a[1]), v_add(c->a[2], c->a[3])));
    v_store(p, v_add(v_add(c->p[0], c->p[1]), v_add(c->p[2], c->p[3])));
}

V_INLINE void kda_pair_step(kda_chains *c, const float *kd, float x, float y, const int e) {
    vec z = v_load(kd);
    c->a[e] = v_fma(v_set1(x), z, c->a[e]);
    c->p[e] = v_fma(v_set1(y), z, c->p[e]);
}

/* a = x . KD, p = y . KD of V_WIDTH tokens */
V_INLINE void kda_chunk_pairs(float *a, float *p, const float *kd, const float *x, const float *y, int64_t d) {
    kda_chains c;
    int64_t l = 0;
    kda_chains_start(&c);
    for (; l + 4 <= d; l += 4) {
        V_UNROLL for (int e = 0; e < 4; e++) kda_pair_step(&c, kd + (l + e) * KDA_JOINT, x[l + e], y[l + e], e);
    }
    if (l < d) kda_pair_step(&c, kd + l * KDA_JOINT, x[l], y[l], 0);
    if (l + 1 < d) kda_pair_step(&c, kd + (l + 1) * KDA_JOINT, x[l + 1], y[l + 1], 1);
    if (l + 2 < d) kda_pair_step(&c, kd + (l + 2) * KDA_JOINT, x[l + 2], y[l + 2], 2);
    kda_chains_end(a, p, &c);
}

/* `own` in the lanes of `at`, which are 0 in x */
V_INLINE vec kda_join(vec x, vec own, vec at) {
#if V_WIDTH == 16
    return _mm512_or_ps(x, _mm512_and_ps(own, at));
#else
    return _mm256_or_ps(x, _mm256_and_ps(own, at));
#endif
}

V_INLINE void kda_own_step(kda_chains *c, float *kd, float keep, float k, float q, vec at, const int e) {
    vec key = v_set1(k), z = v_mul(v_load(kd), v_set1(keep));
    c->a[e] = v_fma(key, z, c->a[e]);
    z = kda_join(z, key, at);
    c->p[e] = v_fma(v_set1(q), z, c->p[e]);
    v_store(kd, z);
}

/* Row i within its own block: KD of the V_WIDTH tokens of this half decays, gives A, takes in k, gives P. */
V_INLINE void kda_chunk_own(float *a, float *p, float *kd, const float *keep, const float *k, const float *q, int64_t d,
                            vec at) {
    kda_chains c;
    int64_t l = 0;
    kda_chains_start(&c);
    for (; l + 4 <= d; l += 4) {
        V_UNROLL for (int e = 0; e < 4; e++)
            kda_own_step(&c, kd + (l + e) * KDA_JOINT, keep[l + e], k[l + e], q[l + e], at, e);
    }
    if (l < d) kda_own_step(&c, kd + l * KDA_JOINT, keep[l], k[l], q[l], at, 0);
    if (l + 1 < d) kda_own_step(&c, kd + (l + 1) * KDA_JOINT, keep[l + 1], k[l + 1], q[l + 1], at, 1);
    if (l + 2 < d) kda_own_step(&c, kd + (l + 2) * KDA_JOINT, keep[l + 2], k[l + 2], q[l + 2], at, 2);
    kda_chains_end(a, p, &c);
}

/* A, P, KD and the operands of one block. */
static inline void kda_chunk_block(const kda_chunk *c, int64_t block) {
    const neap_kda_chunk_args *a = c->a;
    int64_t d = a->d_k, m = kda_block_tokens(c, block), first = block * KDA_JOINT;
    float *own = c->kd + block * d * KDA_JOINT;
    kda_chunk_fade(c, block, a->keep + (c->t0 + first) * a->ld_keep);
    for (int64_t i = 0; i < m; i++) kda_chunk_row(c, block, i);
    for (int64_t b = 0; b < block; b++)
        for (int64_t i = 0; i < m; i++)
            for (int h = 0; h < KDA_JOINT; h += V_WIDTH) {
                int64_t at = (first + i) * c->ld + b * KDA_JOINT + h;
                kda_chunk_pairs(c->alone + at, c->pq + at, c->kd + b * d * KDA_JOINT + h, c->carried + i * d,
                                c->carried + (KDA_JOINT + i) * d, d);
            }
    memset(own, 0, (size_t)(d * KDA_JOINT) * sizeof *own);
    for (int64_t i = 0; i < m; i++) {
        int64_t t = c->t0 + first + i;
        const float *k = a->k + t * a->ld_k, *q = a->q ? a->q + t * a->ld_q : k; /* without q P is not looked at */
        float lane[KDA_JOINT] = {0};
        memset(&lane[i], 0xff, sizeof *lane);
        for (int h = 0; h <= i; h += V_WIDTH) {
            int64_t at = (first + i) * c->ld + first + h;
            kda_chunk_own(c->alone + at, c->pq + at, own + h, a->keep + t * a->ld_keep, k, q, d, v_load(lane + h));
        }
    }
    if (block) kda_chunk_fade(c, block, c->rest);
}

#define KDA_TILE(r, j) V_UNROLL for (int r = 0; r < n_rows; r++) V_UNROLL for (int j = 0; j < n_vecs; j++)

/* w [n_rows] = rows [n_rows][d] S, on n_vecs vectors of columns */
V_INLINE void kda_read_tile(float *w, const float *rows, float *s, int64_t d, int first, const int n_rows,
                            const int n_vecs) {
    vec acc[KDA_TILE_ROWS][KDA_TILE_VECS], x[KDA_TILE_VECS];
    KDA_TILE(r, j) acc[r][j] = v_zero();
    for (int64_t l = 0; l < d; l++) {
        V_UNROLL for (int j = 0; j < n_vecs; j++) x[j] = v_load(kda_at(s, d, l, first + j));
        V_UNROLL for (int r = 0; r < n_rows; r++) {
            vec y = v_set1(rows[r * d + l]);
            V_UNROLL for (int j = 0; j < n_vecs; j++) acc[r][j] = v_fma(y, x[j], acc[r][j]);
        }
    }
    KDA_TILE(r, j) v_store(w + r * KDA_COLS + (first + j) * V_WIDTH, acc[r][j]);
}

/* rows l .. l + n_rows - 1 of S = F S + KD U, n tokens in blocks of 16 */
V_INLINE void kda_write_tile(float *s, const kda_chunk *c, int64_t l, int first, const int n_rows, const int n_vecs) {
    vec acc[KDA_TILE_ROWS][KDA_TILE_VECS], x[KDA_TILE_VECS];
    int64_t d = c->a->d_k;
    KDA_TILE(r, j) acc[r][j] = v_mul(v_load(kda_at(s, d, l + r, first + j)), v_set1(c->fall[l + r]));
    for (int64_t b = 0; b < c->n_blocks; b++) {
        const float *kd = c->kd + (b * d + l) * KDA_JOINT, *u = c->u + b * KDA_JOINT * KDA_COLS + first * V_WIDTH;
        int64_t m = kda_block_tokens(c, b);
        for (int64_t i = 0; i < m; i++, u += KDA_COLS) {
            V_UNROLL for (int j = 0; j < n_vecs; j++) x[j] = v_load(u + j * V_WIDTH);
            V_UNROLL for (int r = 0; r < n_rows; r++) {
                vec y = v_set1(kd[r * KDA_JOINT + i]);
                V_UNROLL for (int j = 0; j < n_vecs; j++) acc[r][j] = v_fma(y, x[j], acc[r][j]);
            }
        }
    }
    KDA_TILE(r, j) v_store(kda_at(s, d, l + r, first + j), acc[r][j]);
}

/* Cuts `left` rows into tiles of nearly equal height. */
V_INLINE int64_t kda_tile_rows(int64_t left) {
    int64_t tiles = (left + KDA_TILE_ROWS - 1) / KDA_TILE_ROWS;
    return (left + tiles - 1) / tiles;
}
#define KDA_SWITCH(rows, call) \
    switch (rows) {            \
    case 1: call(1); break;    \
    case 2: call(2); break;    \
    case 3: call(3); break;    \
    case 4: call(4); break;    \
    case 5: call(5); break;    \
    default: call(6); break;   \
    }

V_INLINE void kda_read(float *w, const float *rows, int64_t n, float *s, int64_t d, const int n_vecs) {
    const int tile = n_vecs < KDA_TILE_VECS ? n_vecs : KDA_TILE_VECS;
#define KDA_CALL(r) kda_read_tile(w + i * KDA_COLS, rows + i * d, s, d, first, r, tile)
    for (int first = 0; first < n_vecs; first += tile)
        for (int64_t i = 0, step; i < n; i += step) {
            step = kda_tile_rows(n - i);
            KDA_SWITCH(step, KDA_CALL)
        }
#undef KDA_CALL
}

V_INLINE void kda_write(float *s, const kda_chunk *c, const int n_vecs) {
    const int tile = n_vecs < KDA_TILE_VECS ? n_vecs : KDA_TILE_VECS;
    int64_t d = c->a->d_k;
#define KDA_CALL(r) kda_write_tile(s, c, l, first, r, tile)
    for (int first = 0; first < n_vecs; first += tile)
        for (int64_t l = 0, step; l < d; l += step) {
            step = kda_tile_rows(d - l);
            KDA_SWITCH(step, KDA_CALL)
        }
#undef KDA_CALL
}

/* u and o of token i, from w (row i of the block: S^T (k F); qw: S^T (q F)) and the u before it. */
V_INLINE void kda_chunk_token(const kda_chunk *c, int64_t i, const float *w, const float *qw, int64_t column,
                              const int n_vecs) {
    const neap_kda_chunk_args *a = c->a;
    const float *pair = c->alone + i * c->ld, *pq = c->pq + i * c->ld, *u = c->u;
    int64_t t = c->t0 + i, left = a->d_v - column;
    vec pred[KDA_VECS], o[KDA_VECS];
    KDA_COLUMNS(j) pred[j] = v_load(w + j * V_WIDTH), o[j] = a->q ? v_load(qw + j * V_WIDTH) : v_zero();
    for (int64_t e = 0; e < i; e++, u += KDA_COLS) {
        vec x = v_set1(pair[e]), y = v_set1(pq[e]);
        KDA_COLUMNS(j) {
            vec z = v_load(u + j * V_WIDTH);
            pred[j] = v_fma(x, z, pred[j]);
            o[j] = v_fma(y, z, o[j]);
        }
    }
    vec beta = v_set1(a->beta[t * a->ld_beta]), y = v_set1(pq[i]);
    KDA_COLUMNS(j) {
        vec v = a->v ? kda_column_load(a->v + t * a->ld_v + column + j * V_WIDTH, left - j * V_WIDTH) : v_zero();
        pred[j] = v_mul(beta, v_sub(v, pred[j]));
        v_store(c->u + i * KDA_COLS + j * V_WIDTH, pred[j]);
        if (a->q)
            kda_column_store(a->out + t * a->ld_out + column + j * V_WIDTH, v_fma(y, pred[j], o[j]),
                             left - j * V_WIDTH);
    }
}

/* The chunk on n_vecs vectors of columns at s. */
V_INLINE void kda_chunk_columns(const kda_chunk *c, float *s, int64_t column, const int n_vecs) {
    int64_t d = c->a->d_k;
    for (int64_t block = 0; block < c->n_blocks; block++) {
        int64_t m = kda_block_tokens(c, block);
        kda_read(c->w, c->rows + block * 2 * KDA_JOINT * d, c->a->q ? 2 * m : m, s, d, n_vecs);
        for (int64_t i = 0; i < m; i++)
            kda_chunk_token(c, block * KDA_JOINT + i, c->w + i * KDA_COLS, c->w + (m + i) * KDA_COLS, column, n_vecs);
    }
    kda_write(s, c, n_vecs);
}

static inline void kda_chunk_head(const neap_kda_chunk_args *a) {
    int64_t d = a->d_k, ld = (a->chunk + KDA_JOINT - 1) / KDA_JOINT * KDA_JOINT;
    assert(a->chunk >= 1 && a->chunk <= NEAP_KDA_CHUNK_MAX);
    kda_chunk c = {.a = a, .ld = ld, .kd = a->scratch};
    c.alone = c.kd + ld * d, c.pq = c.alone + ld * ld, c.u = c.pq + ld * ld, c.w = c.u + ld * KDA_COLS;
    c.rows = c.w + 2 * KDA_JOINT * KDA_COLS, c.carried = c.rows + 2 * ld * d, c.fall = c.carried + 2 * KDA_JOINT * d;
    c.rest = c.fall + d;
    for (; c.t0 < a->n; c.t0 += c.n) {
        c.n = a->n - c.t0 < a->chunk ? a->n - c.t0 : a->chunk;
        c.n_blocks = (c.n + KDA_JOINT - 1) / KDA_JOINT;
        for (int64_t b = 0; b < c.n_blocks; b++) kda_chunk_block(&c, b);
        int64_t j = 0;
        if (KDA_VECS > KDA_SLICE_VECS)
            for (; j + KDA_SLICE < a->d_v; j += 2 * KDA_SLICE) kda_chunk_columns(&c, a->state + j * d, j, KDA_VECS);
        for (; j < a->d_v; j += KDA_SLICE) kda_chunk_columns(&c, a->state + j * d, j, KDA_SLICE_VECS);
    }
}

/* n_rows rows of y = M x + b on one slice of columns, vectors `first` and on */
V_INLINE void kda_map_tile(const neap_kda_map_args *a, int64_t slice, int64_t row, int first, const int n_rows,
                           const int n_vecs) {
    vec acc[KDA_TILE_ROWS][KDA_TILE_VECS], x[KDA_TILE_VECS];
    int64_t d = a->d_k, at = slice + row * KDA_SLICE + first * V_WIDTH;
    KDA_TILE(r, j) acc[r][j] = a->b ? v_load(a->b + at + r * KDA_SLICE + j * V_WIDTH) : v_zero();
    for (int64_t l = 0; l < d; l++) {
        const float *m = a->m + l / KDA_SLICE * d * KDA_SLICE + row * KDA_SLICE + l % KDA_SLICE;
        V_UNROLL for (int j = 0; j < n_vecs; j++) x[j] = v_load(a->x + slice + l * KDA_SLICE + (first + j) * V_WIDTH);
        V_UNROLL for (int r = 0; r < n_rows; r++) {
            vec y = v_set1(m[r * KDA_SLICE]);
            V_UNROLL for (int j = 0; j < n_vecs; j++) acc[r][j] = v_fma(y, x[j], acc[r][j]);
        }
    }
    KDA_TILE(r, j) v_store(a->y + at + r * KDA_SLICE + j * V_WIDTH, acc[r][j]);
}

static inline void kda_map(const neap_kda_map_args *a) {
#define KDA_CALL(r) kda_map_tile(a, slice *KDA_SLICE * a->d_k, i, first, r, 2)
    for (int64_t slice = 0; slice < (a->d_v + KDA_SLICE - 1) / KDA_SLICE; slice++)
        for (int first = 0; first < KDA_SLICE_VECS; first += 2)
            for (int64_t i = 0, step; i < a->d_k; i += step) {
                step = kda_tile_rows(a->d_k - i);
                KDA_SWITCH(step, KDA_CALL)
            }
#undef KDA_CALL
}
#endif

#endif
