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

/* 16 codes as half floats: value / 256. The sign lands in bit 14 as well. */
V_INLINE __m256i latents_halves(__m128i codes) {
    return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xbfff));
}

V_INLINE void latents_scaled(float *out, __m256i half, vec s, int64_t n) {
#if V_WIDTH == 16
    v_store_n(out, v_mul(_mm512_cvtph_ps(half), s), n);
#else
    v_store_n(out, v_mul(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), s), n);
    v_store_n(out + 8, v_mul(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), s), n - 8);
#endif
}

/* Codes of one tile. */
V_INLINE void latents_fp8_tile(float *out, const uint8_t *in, int64_t n, float scale) {
    const vec s = v_set1(scale * 256.0f);
    int64_t i = 0;
#if V_WIDTH == 16
    for (; i + 32 <= n; i += 32) {
        const __m512i keep = _mm512_set1_epi16((short)0xbfff);
        __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(in + i));
        __m512i half = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7), keep);
        latents_scaled(out + i, _mm512_castsi512_si256(half), s, 16);
        latents_scaled(out + i + 16, _mm512_extracti64x4_epi64(half, 1), s, 16);
    }
#endif
    for (; i + 16 <= n; i += 16)
        latents_scaled(out + i, latents_halves(_mm_loadu_si128((const __m128i *)(const void *)(in + i))), s, 16);
    if (i < n) {
        uint8_t last[16] = {0};
        memcpy(last, in + i, (size_t)(n - i));
        latents_scaled(out + i, latents_halves(_mm_loadu_si128((const __m128i *)(const void *)last)), s, n - i);
    }
}

V_INLINE void latents_fp8(float *out, const uint8_t *codes, const float *scales, int64_t n) {
    int64_t i = 0;
    for (; i + NEAP_FP8_TILE <= n; i += NEAP_FP8_TILE) /* known length: no branches */
        latents_fp8_tile(out + i, codes + i, NEAP_FP8_TILE, *scales++);
    if (i < n) latents_fp8_tile(out + i, codes + i, n - i, *scales);
}

/* The key part: 16 codes and the 16 bits of each of three planes. */
V_INLINE __m256i latents_fine_halves(__m128i codes, const uint16_t bits[3]) {
    __m256i half = latents_halves(codes);
#if V_WIDTH == 16
    V_UNROLL for (int b = 0; b < 3; b++) half =
        _mm256_mask_add_epi16(half, bits[b], half, _mm256_set1_epi16((short)(16 << b)));
#else
    const __m256i place =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, (short)0x8000);
    V_UNROLL for (int b = 0; b < 3; b++) {
        __m256i has = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)bits[b]), place), place);
        half = _mm256_or_si256(half, _mm256_and_si256(has, _mm256_set1_epi16((short)(16 << b))));
    }
#endif
    return half;
}

/* `extra` holds the planes, n values / 8 bytes each. */
V_INLINE void latents_fine_tile(float *out, const uint8_t *in, const uint8_t *extra, int64_t plane, int64_t n,
                                float scale) {
    const vec s = v_set1(scale * 256.0f);
    uint16_t bits[3] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        V_UNROLL for (int b = 0; b < 3; b++) memcpy(&bits[b], extra + b * plane + i / 8, 2);
        __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)(in + i));
        latents_scaled(out + i, latents_fine_halves(codes, bits), s, 16);
    }
    if (i < n) {
        int64_t left = n - i;
        uint8_t last[16] = {0};
        memcpy(last, in + i, (size_t)left);
        for (int b = 0; b < 3; b++) bits[b] = 0, memcpy(&bits[b], extra + b * plane + i / 8, left > 8 ? 2 : 1);
        __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)last);
        latents_scaled(out + i, latents_fine_halves(codes, bits), s, left);
    }
}

V_INLINE void latents_fine(float *out, const uint8_t *codes, const float *scales, const uint8_t *extra, int64_t n) {
    int64_t plane = (n + 7) / 8;
    for (int64_t i = 0; i < n; i += NEAP_FP8_TILE)
        latents_fine_tile(out + i, codes + i, extra + i / 8, plane, n - i < NEAP_FP8_TILE ? n - i : NEAP_FP8_TILE,
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
