/* Absorbed MLA attention over paged latents for vectors; order of the sums as in attn_scalar.c.
 *
 * A batch of up to 64 positions (attend_batch.h) is decoded once into an F32 tile (F32 caches are read where they lie)
 * that stays in the second cache; every row of the call and all its heads use it. Per row:
 *   1. scores: tiles of 4 heads x a few positions, one 16-lane accumulator each; e[position][head]
 *   2. softmax page by page, a lane is a head: maxima, the factors for what came before ("cuts"), exp, sums
 *   3. output: tiles of 4 heads x columns in registers over the positions of the batch, scaled at the cuts; between
 *      batches the chain is carried in `out`
 * The rows of the next batch are fetched into the cache a few lines per score tile: positions ascend, so neighbours
 * share pages, and the fetching hides behind the arithmetic.
 *
 * Tried and no faster with either width: decoding the next block between the tiles of this one; the trees of a tile
 * only when the next is half done; fetching the next heads' queries into the first cache; less than all lines of a row,
 * or most of them during the output; other hints than T1. With 512 bits also: blocks of 12 positions. */
#ifndef NEAP_KERNELS_X86_ATTN_VEC_H
#define NEAP_KERNELS_X86_ATTN_VEC_H

#include <math.h>

#include "kernels/attend_batch.h"
#include "kernels/families.h"
#include "kernels/x86/latents_vec.h"
#include "kernels/x86/vmath_vec.h"

#if defined(V_WIDTH)
enum {
    ATTEND_TILE = 4,                       /* heads of a register tile */
    ATTEND_SCORES = V_WIDTH == 16 ? 4 : 3, /* positions of a score tile: 16 or 12 accumulators */
    ATTEND_BLOCK = V_WIDTH == 16 ? 8 : 9,  /* positions that all heads pass while they are in the first cache */
    ATTEND_OUT = V_WIDTH == 16 ? 6 : 3,    /* vectors of an output tile */
    ATTEND_E_ROWS = ATTEND_BATCH + 2,      /* the last score tile may hang over */
    ATTEND_TILES = NEAP_ATTEND_HEADS / ATTEND_TILE,
};

/* Loops that want all registers: not put into one function. */
#define ATTEND_APART __attribute__((noinline))

typedef struct attend_row {
    bool is_started;
    float max[NEAP_ATTEND_HEADS], sum[NEAP_ATTEND_HEADS];
} attend_row;

/* The lines of the next batch still to be fetched. */
typedef struct attend_fetch {
    const attend_batch *batch;
    int32_t i;               /* its row */
    const uint8_t *at, *end; /* the rest of the row before it */
    int64_t step;            /* lines per register tile */
} attend_fetch;

typedef struct attend_work {
    const neap_attend_args *a;
    float *tile, *e; /* [64][r + dr], [ATTEND_E_ROWS][32] */
    attend_row rows[NEAP_ATTEND_ROWS];
    const attend_batch *batch;
    const float *decoded[ATTEND_BATCH];
    int64_t n_decoded;
    attend_fetch fetch;
    /* the row in turn: its positions of the batch, page by page */
    uint8_t chosen[ATTEND_BATCH + 1];
    const float *mine[ATTEND_BATCH + ATTEND_SCORES];
    int32_t n, n_pages, page_begin[ATTEND_BATCH + 1];
    /* pages before which the output of a head is scaled: the factors, and for each tile of heads the pages concerned */
    float factor[ATTEND_BATCH][NEAP_ATTEND_HEADS];
    int32_t n_cuts[ATTEND_TILES];
    uint8_t cuts[ATTEND_TILES][ATTEND_BATCH];
    int64_t row;
} attend_work;

/* ---- fetching ahead ---- */

V_INLINE void attend_fetch_lines(const neap_attend_args *a, attend_fetch *f, int64_t lines) {
    for (; lines > 0; lines--) {
        if (f->at >= f->end) {
            if (f->i == f->batch->n) return;
            int64_t position = f->batch->positions[f->i++];
            f->at = latents_row(&a->format, &a->cache, position);
            f->end = f->at + latents_row_bytes(&a->format);
            f->at -= (uintptr_t)f->at % 64;
            if (a->format.kind == NEAP_ROWS_FP8) {
                _mm_prefetch((const char *)latents_scales(&a->format, &a->cache, position), _MM_HINT_T1);
                _mm_prefetch((const char *)latents_extra(&a->format, &a->cache, position), _MM_HINT_T1);
            }
        }
        _mm_prefetch((const char *)f->at, _MM_HINT_T1);
        f->at += 64;
    }
}

/* The part of the batch that row i sees. */
static inline void attend_choose(attend_work *w, int64_t i) {
    const attend_batch *b = w->batch;
    w->row = i;
    w->n = w->n_pages = w->page_begin[0] = 0;
    for (int32_t p = 0; p < b->n_pages; p++) {
        uint64_t members = b->members[p][i];
        if (!members) continue;
        for (int32_t k = b->page_begin[p]; k < b->page_begin[p + 1]; k++) {
            w->chosen[w->n] = (uint8_t)k;
            w->n += members >> b->positions[k] % NEAP_PAGE_ROWS & 1;
        }
        w->page_begin[++w->n_pages] = w->n;
    }
}

/* Positions [i, end) of the row as floats. A position is decoded when the first row wants it, a few at a time, so
 * that it is still in the first cache for its scores. */
static ATTEND_APART void attend_decode(attend_work *w, int64_t i, int64_t end) {
    const attend_batch *b = w->batch;
    const neap_latent_format *f = &w->a->format;
    int64_t width = (int64_t)f->r + f->dr;
    for (; w->n_decoded <= w->chosen[end - 1]; w->n_decoded++)
        w->decoded[w->n_decoded] =
            latents_decode(f, &w->a->cache, b->positions[w->n_decoded], w->tile + w->n_decoded * width);
    for (; i < end; i++) w->mine[i] = w->decoded[w->chosen[i]];
    for (; i % ATTEND_SCORES; i++) w->mine[i] = w->mine[i - 1]; /* what hangs over */
}

/* ---- scores ---- */

/* Heads [h, h + nh) and positions [i, i + ATTEND_SCORES): accumulator y * nh + x. */
V_INLINE void attend_score_tile(attend_work *w, int64_t h, int64_t i, const int nh) {
    enum { ROWS = ATTEND_SCORES, ALL = ATTEND_TILE * ROWS, GROUPS = (ALL + V_WIDTH - 1) / V_WIDTH };
    const neap_attend_args *a = w->a;
    const float *q[ATTEND_TILE], *row[ROWS];
    acc16 sums[GROUPS * V_WIDTH];
    int64_t d = (int64_t)a->format.r + a->format.dr;
    V_UNROLL for (int x = 0; x < nh; x++) q[x] = a->q + w->row * a->ld_row + (h + x) * a->ld_head;
    V_UNROLL for (int y = 0; y < ROWS; y++) row[y] = w->mine[i + y];
    V_UNROLL for (int l = 0; l < ACC_VECS; l++) { /* a half of the lanes at a time where two registers make 16 */
        vec acc[ALL];
        int64_t e = l * V_WIDTH;
        V_UNROLL for (int k = 0; k < ROWS * nh; k++) acc[k] = v_zero();
        for (; e + V_WIDTH <= d; e += 16) {
            vec rows[ROWS];
            V_UNROLL for (int y = 0; y < ROWS; y++) rows[y] = v_load(row[y] + e);
            V_UNROLL for (int x = 0; x < nh; x++) {
                vec qs = v_load(q[x] + e);
                V_UNROLL for (int y = 0; y < ROWS; y++) acc[y * nh + x] = v_fma(qs, rows[y], acc[y * nh + x]);
            }
        }
        if (e < d)
            V_UNROLL for (int y = 0; y < ROWS; y++) V_UNROLL for (int x = 0; x < nh; x++) acc[y * nh + x] =
                v_fma_n(v_load_n(q[x] + e, d - e), v_load_n(row[y] + e, d - e), acc[y * nh + x], d - e);
        V_UNROLL for (int k = 0; k < ROWS * nh; k++) sums[k].v[l] = acc[k];
    }
    float *to = w->e + i * NEAP_ATTEND_HEADS + h;
    if (nh == ATTEND_TILE) {
        V_UNROLL for (int k = ALL; k < GROUPS * V_WIDTH; k++) sums[k] = acc16_zero();
        V_UNROLL for (int g = 0; g < GROUPS; g++) {
            vec s = v_mul(v_set1(a->scale), acc16_trees(sums + g * V_WIDTH));
            float *out = to + g * (V_WIDTH / ATTEND_TILE) * NEAP_ATTEND_HEADS;
#if V_WIDTH == 16
            _mm_storeu_ps(out, _mm512_castps512_ps128(s));
            _mm_storeu_ps(out + NEAP_ATTEND_HEADS, _mm512_extractf32x4_ps(s, 1));
            _mm_storeu_ps(out + 2 * NEAP_ATTEND_HEADS, _mm512_extractf32x4_ps(s, 2));
            _mm_storeu_ps(out + 3 * NEAP_ATTEND_HEADS, _mm512_extractf32x4_ps(s, 3));
#else
            _mm_storeu_ps(out, _mm256_castps256_ps128(s));
            if (g * 2 + 1 < ROWS) _mm_storeu_ps(out + NEAP_ATTEND_HEADS, _mm256_extractf128_ps(s, 1));
#endif
        }
    } else {
        V_UNROLL for (int y = 0; y < ROWS; y++) V_UNROLL for (int x = 0; x < nh; x++) to[y * NEAP_ATTEND_HEADS + x] =
            a->scale * acc16_tree(&sums[y * nh + x]);
    }
}

static ATTEND_APART void attend_scores(attend_work *w) {
    int64_t n_heads = w->a->n_heads;
    for (int64_t i = 0; i < w->n; i += ATTEND_BLOCK) {
        int64_t h = 0, end = i + ATTEND_BLOCK < w->n ? i + ATTEND_BLOCK : w->n;
        attend_decode(w, i, end);
        for (; h + ATTEND_TILE <= n_heads; h += ATTEND_TILE)
            for (int64_t k = i; k < end; k += ATTEND_SCORES) {
                attend_score_tile(w, h, k, ATTEND_TILE);
                attend_fetch_lines(w->a, &w->fetch, w->fetch.step);
            }
        for (; h < n_heads; h++)
            for (int64_t k = i; k < end; k += ATTEND_SCORES) {
                attend_score_tile(w, h, k, 1);
                attend_fetch_lines(w->a, &w->fetch, w->fetch.step);
            }
    }
}

/* ---- softmax ---- */

/* One page, one vector of heads: e becomes e^(score - max). */
V_INLINE vec attend_page_exp(float *e, int64_t n, vec max) {
    vec lane[16];
    for (int64_t i = 0; i < n; i++) {
        float *at = e + i * NEAP_ATTEND_HEADS;
        vec p = v_exp(v_sub(v_load(at), max));
        v_store(at, p);
        lane[i % 16] = i < 16 ? p : v_add(lane[i % 16], p);
    }
    for (int64_t step = 8, m = n < 16 ? n : 16; step; step /= 2) { /* lanes from m on are 0, and no e is -0 */
        for (int64_t l = 0; l + step < m; l++) lane[l] = v_add(lane[l], lane[l + step]);
        m = m < step ? m : step;
    }
    return lane[0];
}

static ATTEND_APART void attend_softmax(attend_work *w) {
    attend_row *row = &w->rows[w->row];
    memset(w->n_cuts, 0, sizeof w->n_cuts);
    for (int32_t p = 0; p < w->n_pages; p++) {
        int32_t begin = w->page_begin[p], n = w->page_begin[p + 1] - begin;
        float *e = w->e + (int64_t)begin * NEAP_ATTEND_HEADS, *factor = w->factor[p];
        uint32_t is_cut = 0;
        for (int64_t h = 0; h < w->a->n_heads; h += V_WIDTH) {
            vec old = v_load(row->max + h), max = v_set1(-INFINITY), sum = v_load(row->sum + h);
            for (int64_t i = 0; i < n; i++) max = v_max(v_load(e + i * NEAP_ATTEND_HEADS + h), max); /* not a NaN */
            max = v_max(max, old);
            vec_mask is_more = v_less(old, max);
            if (v_mask_bits(is_more)) {
                vec c = v_select(is_more, v_exp(v_sub(old, max)), v_set1(1.0f));
                sum = v_mul(sum, c);
                v_store(factor + h, c);
                is_cut |= v_mask_bits(is_more) << h;
            }
            v_store(row->max + h, max);
            v_store(row->sum + h, v_add(sum, attend_page_exp(e + h, n, max)));
        }
        if (begin == 0 && !row->is_started) continue; /* no output yet: nothing to scale */
        for (int t = 0; is_cut; t++, is_cut >>= ATTEND_TILE)
            if (is_cut & ((1 << ATTEND_TILE) - 1)) w->cuts[t][w->n_cuts[t]++] = (uint8_t)p;
    }
}

/* ---- output ---- */

/* Heads [h, h + nh), columns [c, c + nc * V_WIDTH); is_last: only `left` < V_WIDTH columns (nc = 1). */
V_INLINE void attend_out_tile(const attend_work *w, const float *const *rows, int64_t h, int64_t c, const int nh,
                              const int nc, const bool is_last, int64_t left) {
    const neap_attend_args *a = w->a;
    const float *e = w->e + h;
    float *out = a->out + w->row * a->ld_out_row + h * a->ld_out_head + c;
    bool is_started = w->rows[w->row].is_started;
    vec acc[ATTEND_TILE * ATTEND_OUT];
    V_UNROLL for (int x = 0; x < nh; x++) V_UNROLL for (int y = 0; y < nc; y++) {
        const float *from = out + x * a->ld_out_head + y * V_WIDTH;
        acc[x * nc + y] = !is_started ? v_zero() : is_last ? v_load_n(from, left) : v_load(from);
    }
    const uint8_t *cuts = w->cuts[h / ATTEND_TILE];
    int32_t n_cuts = w->n_cuts[h / ATTEND_TILE];
    int64_t i = 0;
    for (int32_t k = 0; k <= n_cuts; k++) {
        int64_t end = k < n_cuts ? w->page_begin[cuts[k]] : w->n;
        for (; i < end; i++) {
            const float *from = rows[i]; /* + c */
            vec row[ATTEND_OUT];
            V_UNROLL for (int y = 0; y < nc; y++) row[y] = is_last ? v_load_n(from, left) : v_load(from + y * V_WIDTH);
            V_UNROLL for (int x = 0; x < nh; x++) {
                vec p = v_set1(e[i * NEAP_ATTEND_HEADS + x]);
                V_UNROLL for (int y = 0; y < nc; y++) acc[x * nc + y] = v_fma(p, row[y], acc[x * nc + y]);
            }
        }
        if (k == n_cuts) break;
        V_UNROLL for (int x = 0; x < nh; x++) {
            vec factor = v_set1(w->factor[cuts[k]][h + x]);
            V_UNROLL for (int y = 0; y < nc; y++) acc[x * nc + y] = v_mul(acc[x * nc + y], factor);
        }
    }
    V_UNROLL for (int x = 0; x < nh; x++) V_UNROLL for (int y = 0; y < nc; y++) {
        float *to = out + x * a->ld_out_head + y * V_WIDTH;
        if (is_last)
            v_store_n(to, acc[x * nc + y], left);
        else
            v_store(to, acc[x * nc + y]);
    }
}

/* The same columns of all heads, so that their part of the rows is read from the first cache. */
V_INLINE void attend_out_columns(attend_work *w, int64_t c, const int nc, const bool is_last, int64_t left) {
    const float *rows[ATTEND_BATCH];
    int64_t h = 0, n = w->a->n_heads;
    for (int32_t i = 0; i < w->n; i++) rows[i] = w->mine[i] + c;
    for (; h + ATTEND_TILE <= n; h += ATTEND_TILE) {
        attend_out_tile(w, rows, h, c, ATTEND_TILE, nc, is_last, left);
        attend_fetch_lines(w->a, &w->fetch, w->fetch.step);
    }
    for (; h < n; h++) attend_out_tile(w, rows, h, c, 1, nc, is_last, left);
}

static ATTEND_APART void attend_output(attend_work *w) {
    int64_t r = w->a->format.r, c = 0;
    while (c + V_WIDTH <= r) {
        int64_t vecs = (r - c) / V_WIDTH; /* the last columns not one vector at a time: that waits for its chains */
        if (vecs >= ATTEND_OUT && vecs != ATTEND_OUT + 1) {
            attend_out_columns(w, c, ATTEND_OUT, false, 0);
            c += ATTEND_OUT * V_WIDTH;
        } else if (vecs >= 2) {
            attend_out_columns(w, c, 2, false, 0);
            c += 2 * V_WIDTH;
        } else {
            attend_out_columns(w, c, 1, false, 0);
            c += V_WIDTH;
        }
    }
    if (c < r) attend_out_columns(w, c, 1, true, r - c);
    w->rows[w->row].is_started = true;
}

/* ---- the entries ---- */

static inline void attend_prepare(attend_work *w, const neap_attend_args *a) {
    float *scratch = a->scratch + (64 - (uintptr_t)a->scratch % 64) % 64 / sizeof(float);
    w->a = a;
    w->e = scratch;
    w->tile = scratch + ATTEND_E_ROWS * NEAP_ATTEND_HEADS;
    memset(w->e, 0, ATTEND_E_ROWS * NEAP_ATTEND_HEADS * sizeof(float)); /* lanes without a head */
    for (int64_t i = 0; i < a->n_rows; i++) {
        w->rows[i].is_started = false;
        for (int64_t h = 0; h < NEAP_ATTEND_HEADS; h++) w->rows[i].max[h] = -INFINITY, w->rows[i].sum[h] = 0;
    }
}

static inline void attend_finish(const attend_work *w) {
    const neap_attend_args *a = w->a;
    for (int64_t i = 0; i < a->n_rows; i++) {
        memcpy(a->max + i * a->ld_stat, w->rows[i].max, (size_t)a->n_heads * sizeof(float));
        memcpy(a->sum + i * a->ld_stat, w->rows[i].sum, (size_t)a->n_heads * sizeof(float));
        for (int64_t h = 0; !w->rows[i].is_started && h < a->n_heads; h++)
            memset(a->out + i * a->ld_out_row + h * a->ld_out_head, 0, (size_t)a->format.r * sizeof(float));
    }
}

/* From now on a few lines per register tile: all of them by the time this batch is done. */
static inline void attend_fetch_start(attend_work *w, const attend_batch *next) {
    const neap_attend_args *a = w->a;
    int64_t lines = next->n * (latents_row_bytes(&a->format) / 64 + 2), n = w->batch->n;
    int64_t tiles = n / ATTEND_SCORES + 1 + a->format.r / (ATTEND_OUT * V_WIDTH);
    tiles *= a->n_rows * ((a->n_heads + ATTEND_TILE - 1) / ATTEND_TILE);
    w->fetch = (attend_fetch){.batch = next, .step = lines / tiles + 1};
}

static inline void attend_rows(const neap_attend_args *a) {
    attend_work w;
    attend_batch batches[2], *now = batches, *next = batches + 1;
    attend_cursor cursors[NEAP_ATTEND_ROWS];
    attend_prepare(&w, a);
    for (int64_t i = 0; i < a->n_rows; i++) cursors[i] = attend_open(a, i);
    attend_next_batch(now, cursors, a->n_rows);
    w.fetch = (attend_fetch){.batch = now};
    while (now->n) {
        attend_fetch_lines(a, &w.fetch, INT64_MAX); /* what is left: the first batch, or a rest */
        attend_next_batch(next, cursors, a->n_rows);
        w.batch = now;
        w.n_decoded = 0;
        attend_fetch_start(&w, next);
        for (int64_t i = 0; i < a->n_rows; i++) {
            attend_choose(&w, i);
            if (!w.n) continue;
            attend_scores(&w);
            attend_softmax(&w);
            attend_output(&w);
        }
        now = next;
        next = batches + (now == batches);
    }
    attend_finish(&w);
}

static inline void attend_merge_parts(const neap_attend_merge_args *a) {
    float max = -INFINITY, sum = a->sum[0];
    int64_t r = a->r;
    if (a->n_parts == 1) {
        memcpy(a->out, a->parts, (size_t)r * sizeof(float));
    } else {
        sum = 0;
        memset(a->out, 0, (size_t)r * sizeof(float));
        for (int64_t s = 0; s < a->n_parts; s++) max = a->max[s * a->ld_stat] > max ? a->max[s * a->ld_stat] : max;
        for (int64_t s = 0; s < a->n_parts; s++) {
            float m = a->max[s * a->ld_stat], l = a->sum[s * a->ld_stat], c;
            if (m == -INFINITY && l == 0) continue; /* no position */
            c = vm_exp(m - max);
            sum = fmaf(c, l, sum);
            const float *o = a->parts + s * a->ld_part;
            for (int64_t d = 0; d < r; d += V_WIDTH)
                v_store_n(a->out + d, v_fma(v_set1(c), v_load_n(o + d, r - d), v_load_n(a->out + d, r - d)), r - d);
        }
    }
    vec inverse = v_set1(1.0f / sum);
    for (int64_t d = 0; d < r; d += V_WIDTH) v_store_n(a->out + d, v_mul(v_load_n(a->out + d, r - d), inverse), r - d);
}

static inline void attn_fill(neap_kernels *k) {
    k->attend = attend_rows;
    k->attend_merge = attend_merge_parts;
}
#endif

#endif
