/* Lightning indexer for vectors; order of the sums as in index_scalar.c.
 *
 * A unit is two vectors of keys, a lane is a key. Its keys become F32 once, in a tile that stays in the first cache
 * for all rows and heads. 8 (AVX2: 6) heads times the two vectors are summed in registers: per dimension two loads
 * and 8 broadcasts feed 16 multiply-adds, so the multiply-adds are the limit. Then relu, the chain over the heads in
 * registers as well, and the gate of topk_vec.h: a score that cannot be among the k best never reaches memory.
 *
 * The gate starts cold, and no page is skipped by an upper bound of its scores: README.md of this room says why. */
#ifndef NEAP_KERNELS_X86_INDEX_VEC_H
#define NEAP_KERNELS_X86_INDEX_VEC_H

#include "kernels/families.h"
#include "kernels/topk.h"
#include "kernels/x86/topk_vec.h"
#include "tensor/codec.h"

#if defined(V_WIDTH)
/* ---- keys of a page as F32 ---- */
enum { INDEX_UNIT = 2 * V_WIDTH }; /* keys scored together: two vectors */

#if V_WIDTH == 16
V_INLINE vec index_widen(const uint16_t *p) {
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return v_from_bits(_mm512_slli_epi32(x, 16));
}
V_INLINE vec index_halves(__m256i h, int part) {
    (void)part;
    return _mm512_cvtph_ps(h);
}
V_INLINE vec_int index_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
#else
V_INLINE vec index_widen(const uint16_t *p) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return v_from_bits(_mm256_slli_epi32(x, 16));
}
V_INLINE vec index_halves(__m256i h, int part) {
    return _mm256_cvtph_ps(part ? _mm256_extracti128_si256(h, 1) : _mm256_castsi256_si128(h));
}
V_INLINE vec_int index_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
#endif

/* 16 codes E4M3 as halves: sign and bits in their places, so the value is 2^-8 of the code's, subnormals too. */
V_INLINE __m256i index_codes(const uint8_t *p) {
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_andnot_si256(_mm256_set1_epi16(0x4000), _mm256_slli_epi16(x, 7));
}

/* May 2^8 go into the scales, and is no code NaN? n bytes of codes, a multiple of 16; 16 scales. */
V_INLINE bool index_is_plain(const uint8_t *codes, const uint8_t *scales, int64_t n) {
    __m256i sign = _mm256_set1_epi8((char)0x80), largest = _mm256_setzero_si256();
    __m128i scale = _mm_loadu_si128((const __m128i *)(const void *)scales), low;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        largest = _mm256_max_epu8(largest, _mm256_or_si256(x, sign));
    }
    low = _mm_max_epu8(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    if (i < n)
        low = _mm_max_epu8(low, _mm_or_si128(_mm_loadu_si128((const __m128i *)(const void *)(codes + i)),
                                             _mm256_castsi256_si128(sign)));
    __m128i bad = _mm_or_si128(_mm_cmpeq_epi8(low, _mm_set1_epi8((char)0xff)),
                               _mm_cmpeq_epi8(_mm_max_epu8(scale, _mm_set1_epi8((char)247)), scale));
    return _mm_movemask_epi8(bad) == 0;
}

/* One group of 16 keys in up to 32 dimensions: code * 2^(scale - 127), rounded once. */
V_INLINE void index_decode_mx(float *out, const uint8_t *codes, const uint8_t *scales, int64_t n) {
    vec scale[ACC_VECS];
    if (index_is_plain(codes, scales, n * 16)) {
        V_UNROLL for (int v = 0; v < ACC_VECS; v++) scale[v] =
            v_from_bits(vi_to_exponent(vi_add(index_bytes(scales + v * V_WIDTH), vi_set1(8))));
        int64_t e = 0;
#if V_WIDTH == 16
        for (; e + 2 <= n; e += 2) { /* two dimensions at once */
            __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(codes + e * 16)));
            x = _mm512_andnot_si512(_mm512_set1_epi16(0x4000), _mm512_slli_epi16(x, 7));
            v_store(out + e * 16, v_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), scale[0]));
            v_store(out + e * 16 + 16, v_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), scale[0]));
        }
#endif
        for (; e < n; e++) {
            __m256i h = index_codes(codes + e * 16);
            V_UNROLL for (int v = 0; v < ACC_VECS; v++)
                v_store(out + e * 16 + v * V_WIDTH, v_mul(index_halves(h, v), scale[v]));
        }
        return;
    }
    for (int v = 0; v < ACC_VECS; v++) {
        float lanes[V_WIDTH];
        for (int l = 0; l < V_WIDTH; l++) lanes[l] = neap_e8m0_decode(scales[v * V_WIDTH + l]);
        scale[v] = v_load(lanes);
    }
    for (int64_t e = 0; e < n; e++) {
        __m256i h = index_codes(codes + e * 16), top = _mm256_set1_epi16(0x3f80);
        __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, top), top);
        h = _mm256_or_si256(h, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00)));
        V_UNROLL for (int v = 0; v < ACC_VECS; v++)
            v_store(out + e * 16 + v * V_WIDTH, v_mul(v_mul(index_halves(h, v), v_set1(256.0f)), scale[v]));
    }
}

/* Keys [row, row + INDEX_UNIT) of a page as [groups][d][16]: in the page itself, or decoded to `tile`. */
static inline const float *index_keys(const neap_index_format *f, const uint8_t *page, int64_t row, float *tile) {
    int64_t d = f->d, n = INDEX_UNIT * d, groups = (d + NEAP_MX_GROUP - 1) / NEAP_MX_GROUP;
    if (f->kind == NEAP_ROWS_F32) return (const float *)(const void *)page + row * d;
    if (f->kind == NEAP_ROWS_BF16) {
        const uint16_t *in = (const uint16_t *)(const void *)page + row * d;
        for (int64_t i = 0; i < n; i += V_WIDTH) v_store(tile + i, index_widen(in + i));
        return tile;
    }
    const uint8_t *codes = page + row * d, *scales = page + NEAP_PAGE_ROWS * d + row * groups;
    for (int64_t t = 0; t < INDEX_UNIT; t += 16)
        for (int64_t g = 0; g < groups; g++) {
            int64_t e = g * NEAP_MX_GROUP;
            index_decode_mx(tile + t * d + e * 16, codes + t * d + e * 16, scales + t * groups + g * 16,
                            d - e < NEAP_MX_GROUP ? d - e : NEAP_MX_GROUP);
        }
    return tile;
}

/* ---- scores ---- */
enum { INDEX_HEADS = V_WIDTH == 16 ? 8 : 6 }; /* heads x two vectors of keys are in registers at a time */

/* The memory of the next unit: every step of the inner loop asks for a little of it, so that requests spread over
 * the time of this unit. step: bytes, 0 for none. */
typedef struct index_ahead {
    const char *next;
    int64_t step;
} index_ahead;

/* q . key for n_heads heads and the keys of a unit. */
V_INLINE void index_dots(vec dot[INDEX_HEADS][2], const float *q, const float *keys, int64_t d, const int n_heads,
                         index_ahead ahead) {
    const int64_t second = V_WIDTH == 16 ? 16 * d : V_WIDTH;
    V_UNROLL for (int h = 0; h < n_heads; h++) dot[h][0] = dot[h][1] = v_zero();
    for (int64_t e = 0; e < d; e++) {
        __builtin_prefetch(ahead.next, 0, 3);
        ahead.next += ahead.step;
        vec k0 = v_load(keys + e * 16), k1 = v_load(keys + e * 16 + second);
        V_UNROLL for (int h = 0; h < n_heads; h++) {
            vec x = v_set1(q[h * d + e]);
            dot[h][0] = v_fma(x, k0, dot[h][0]);
            dot[h][1] = v_fma(x, k1, dot[h][1]);
        }
    }
}

/* Adds the next n_heads heads to the scores of a unit. */
V_INLINE void index_heads(vec sum[2], const float *q, const float *w, const float *keys, int64_t d, const int n_heads,
                          index_ahead ahead) {
    vec dot[INDEX_HEADS][2];
    index_dots(dot, q, keys, d, n_heads, ahead);
    V_UNROLL for (int h = 0; h < n_heads; h++) V_UNROLL for (int v = 0; v < 2; v++) sum[v] =
        v_fma(v_set1(w[h]), v_max(v_zero(), dot[h][v]), sum[v]);
}

/* How many heads to take next when so many are left: no small rest. */
V_INLINE int index_next(int64_t left) {
    if (left >= 2 * INDEX_HEADS) return INDEX_HEADS;
    return (int)(left > INDEX_HEADS ? (left + 1) / 2 : left);
}

static inline void index_unit(vec sum[2], const float *q, const float *w, const float *keys, int64_t n_heads, int64_t d,
                              index_ahead *ahead) {
    sum[0] = sum[1] = v_zero();
    for (int64_t h = 0; h < n_heads;) {
        int n = index_next(n_heads - h);
        switch (n) {
#define INDEX_CASE(heads)                                                                     \
    case heads:                                                                               \
        if (heads <= INDEX_HEADS) index_heads(sum, q + h * d, w + h, keys, d, heads, *ahead); \
        break;
            INDEX_CASE(1)
            INDEX_CASE(2)
            INDEX_CASE(3)
            INDEX_CASE(4)
            INDEX_CASE(5)
            INDEX_CASE(6)
            INDEX_CASE(7)
            INDEX_CASE(8)
#undef INDEX_CASE
        }
        h += n;
        ahead->next += d * ahead->step;
    }
}

static inline void index_scan(const neap_index_scan_args *a) {
    const neap_index_format *f = &a->format;
    int64_t unit_bytes = neap_index_page_bytes(f) / (NEAP_PAGE_ROWS / INDEX_UNIT);
    int64_t step = unit_bytes / (a->n_rows * ((a->n_heads + INDEX_HEADS - 1) / INDEX_HEADS) * f->d) + 1;
    float *tile = (float *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    int64_t last[NEAP_INDEX_ROWS], end = a->begin;
    tk_gate gate[NEAP_INDEX_ROWS];
    for (int64_t i = 0; i < a->n_rows; i++) {
        last[i] = a->n[i] < a->end ? a->n[i] : a->end;
        end = last[i] > end ? last[i] : end;
        gate[i] = tk_gate_begin(&a->out[i], a->k);
    }
    for (int64_t j = a->begin; j < end; j += INDEX_UNIT) {
        const float *keys = index_keys(f, neap_pages_at(&a->keys, j), j % NEAP_PAGE_ROWS, tile);
        index_ahead ahead = {(const char *)a->q, 0};
        if (j + INDEX_UNIT < end) {
            int64_t next = j + INDEX_UNIT;
            ahead.next = (const char *)neap_pages_at(&a->keys, next) + next % NEAP_PAGE_ROWS / INDEX_UNIT * unit_bytes;
            ahead.step = step;
        }
        for (int64_t i = 0; i < a->n_rows; i++) {
            if (j >= last[i]) continue;
            vec sum[2];
            index_unit(sum, a->q + i * a->ld_q, a->w + i * a->ld_w, keys, a->n_heads, f->d, &ahead);
            tk_gate_offer(&gate[i], sum[0], j, last[i] - j);
            tk_gate_offer(&gate[i], sum[1], j + V_WIDTH, last[i] - j - V_WIDTH);
        }
    }
    /* Here the lists of ranges are cut side by side; the merge is one task. */
    for (int64_t i = 0; i < a->n_rows; i++)
        if ((a->begin > 0 || a->end < a->n[i]) && a->out[i].n > a->k) tk_cut(&a->out[i], a->k);
}

static inline void index_fill(neap_kernels *k) {
    k->index_scan = index_scan;
    k->index_merge = tk_merge;
}
#endif

#endif
