/* Decodes cached latent rows (tensor/pages.h) to F32 for vectors, to the bits of neap_latent_get.
 *
 *   BF16   the bits shifted up by 16
 *   FP8    the sign and the other 7 bits of a code, shifted to the places of a half float, are the value / 256
 *          (subnormal codes become subnormal halves, which convert exactly), so value * scale = half * (256 scale)
 *          with one rounding: scales are below 2^120, and 256 times a float is exact, a subnormal one too. The NaN code
 *          would become 480, but it occurs only in tiles whose scale is NaN (neap_latent_put).
 *          The key part's three extra mantissa bits lie right behind those of its codes.
 * Nothing outside the row is read. */
#ifndef NEAP_KERNELS_X86_LATENTS_VEC_H
#define NEAP_KERNELS_X86_LATENTS_VEC_H

#include <string.h>

#include "kernels/kernels.h"
#include "kernels/x86/vec.h"

#if defined(V_WIDTH)
V_INLINE void latents_bf16(float *out, const uint16_t *in, int64_t n) {
    int64_t i = 0;
#if V_WIDTH == 16
    for (; i + 16 <= n; i += 16) {
        __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(in + i)));
        v_store(out + i, v_from_bits(_mm512_slli_epi32(v, 16)));
    }
    if (i < n) {
        __m512i v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_first(n - i), in + i));
        v_store_n(out + i, v_from_bits(_mm512_slli_epi32(v, 16)), n - i);
    }
#else
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(in + i)));
        v_store(out + i, v_from_bits(_mm256_slli_epi32(v, 16)));
    }
    for (; i < n; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
#endif
}

/* 32 codes times s, the first n of them to `out`; bits: of each plane of the key part, or NULL. */
V_INLINE void latents_32(float *out, __m256i codes, const uint32_t *bits, vec s, int64_t n) {
#if V_WIDTH == 16
    const __m512i keep = _mm512_set1_epi16((short)0xbfff); /* the sign lands in bit 14 as well */
    __m512i half = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7), keep);
    V_UNROLL for (int b = 0; bits && b < 3; b++) half =
        _mm512_mask_add_epi16(half, bits[b], half, _mm512_set1_epi16((short)(16 << b)));
    v_store_n(out, v_mul(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), s), n);
    if (n > 16) v_store_n(out + 16, v_mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), s), n - 16);
#else
    const __m256i keep = _mm256_set1_epi16((short)0xbfff);
    __m256i below = _mm256_setzero_si256(); /* the byte behind each code: bits 7, 6, 5 from planes 2, 1, 0 */
    if (bits) {
        const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2,
                                                3, 3, 3, 3, 3, 3, 3, 3);
        const __m256i place = _mm256_set1_epi64x((int64_t)UINT64_C(0x8040201008040201));
        V_UNROLL for (int b = 0; b < 3; b++) {
            __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)bits[b]), spread);
            __m256i has = _mm256_cmpeq_epi8(_mm256_and_si256(all, place), place);
            below = _mm256_or_si256(below, _mm256_and_si256(has, _mm256_set1_epi8((char)(32 << b))));
        }
    }
    /* values 0 .. 7 and 16 .. 23, then 8 .. 15 and 24 .. 31 */
    __m256i a = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpacklo_epi8(below, codes), 1), keep);
    __m256i b = _mm256_and_si256(_mm256_srai_epi16(_mm256_unpackhi_epi8(below, codes), 1), keep);
    v_store_n(out, v_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), s), n);
    v_store_n(out + 8, v_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(b)), s), n - 8);
    v_store_n(out + 16, v_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)), s), n - 16);
    v_store_n(out + 24, v_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(b, 1)), s), n - 24);
#endif
}

/* Values that share a scale. extra: the three planes of the key part, each `plane` bytes, or NULL. */
V_INLINE void latents_tile(float *out, const uint8_t *in, const uint8_t *extra, int64_t plane, int64_t n, float scale) {
    const vec s = v_set1(scale * 256.0f);
    uint32_t bits[3] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        V_UNROLL for (int b = 0; extra && b < 3; b++) memcpy(&bits[b], extra + b * plane + i / 8, 4);
        latents_32(out + i, _mm256_loadu_si256((const __m256i *)(const void *)(in + i)), extra ? bits : NULL, s, 32);
    }
    if (i < n) {
        uint8_t last[32] = {0};
        memcpy(last, in + i, (size_t)(n - i));
        for (int b = 0; extra && b < 3; b++)
            bits[b] = 0, memcpy(&bits[b], extra + b * plane + i / 8, (size_t)(n - i + 7) / 8);
        latents_32(out + i, _mm256_loadu_si256((const __m256i *)(const void *)last), extra ? bits : NULL, s, n - i);
    }
}

V_INLINE void latents_fp8(float *out, const uint8_t *codes, const float *scales, int64_t n) {
    int64_t i = 0;
    for (; i + NEAP_FP8_TILE <= n; i += NEAP_FP8_TILE) /* a length that the compiler knows */
        latents_tile(out + i, codes + i, NULL, 0, NEAP_FP8_TILE, *scales++);
    if (i < n) latents_tile(out + i, codes + i, NULL, 0, n - i, *scales);
}

V_INLINE void latents_fine(float *out, const uint8_t *codes, const float *scales, const uint8_t *extra, int64_t n) {
    int64_t plane = (n + 7) / 8;
    for (int64_t i = 0; i < n; i += NEAP_FP8_TILE)
        latents_tile(out + i, codes + i, extra + i / 8, plane, n - i < NEAP_FP8_TILE ? n - i : NEAP_FP8_TILE,
                     *scales++);
}

/* Where the values of a row begin, and their bytes. */
V_INLINE int64_t latents_row_bytes(const neap_latent_format *f) {
    int64_t bytes = f->kind == NEAP_ROWS_F32 ? 4 : f->kind == NEAP_ROWS_BF16 ? 2 : 1;
    return bytes * ((int64_t)f->r + f->dr);
}
V_INLINE const uint8_t *latents_row(const neap_latent_format *f, const neap_pages *pages, int64_t position) {
    return neap_pages_at(pages, position) + position % NEAP_PAGE_ROWS * latents_row_bytes(f);
}
V_INLINE const float *latents_scales(const neap_latent_format *f, const neap_pages *pages, int64_t position) {
    const uint8_t *page = neap_pages_at(pages, position) + NEAP_PAGE_ROWS * latents_row_bytes(f);
    return (const float *)(const void *)page + position % NEAP_PAGE_ROWS * neap_latent_tiles(f);
}
V_INLINE const uint8_t *latents_extra(const neap_latent_format *f, const neap_pages *pages, int64_t position) {
    int64_t tiles = neap_latent_tiles(f) * (int64_t)sizeof(float);
    return neap_pages_at(pages, position) + NEAP_PAGE_ROWS * (latents_row_bytes(f) + tiles) +
           position % NEAP_PAGE_ROWS * neap_latent_extra(f);
}

/* The row as floats: itself, or decoded to `room`. */
V_INLINE const float *latents_decode(const neap_latent_format *f, const neap_pages *pages, int64_t position,
                                     float *room) {
    const uint8_t *row = latents_row(f, pages, position);
    if (f->kind == NEAP_ROWS_F32) return (const float *)(const void *)row;
    if (f->kind == NEAP_ROWS_BF16) {
        latents_bf16(room, (const uint16_t *)(const void *)row, (int64_t)f->r + f->dr);
    } else {
        const float *scales = latents_scales(f, pages, position);
        latents_fp8(room, row, scales, f->r);
        const uint8_t *extra = latents_extra(f, pages, position);
        latents_fine(room + f->r, row + f->r, scales + (f->r + NEAP_FP8_TILE - 1) / NEAP_FP8_TILE, extra, f->dr);
    }
    return room;
}
#endif

#endif
