/* Peaks over either vector width; see kernels/peak.h. Twelve sums hide the latency of two units of depth 4 to 6. */
#ifndef NEAP_KERNELS_X86_PEAK_VEC_H
#define NEAP_KERNELS_X86_PEAK_VEC_H

#include <string.h>

#include "kernels/families.h"
#include "kernels/x86/vec.h"

enum { PEAK_SUMS = 12, PEAK_BYTES = V_WIDTH * 4 };

#if V_WIDTH == 16
typedef __m512i peak_int;
V_INLINE peak_int peak_set8(int x) { return _mm512_set1_epi8((char)x); }
V_INLINE peak_int peak_xor(peak_int a, peak_int b) { return _mm512_xor_si512(a, b); }
V_INLINE peak_int peak_add32(peak_int a, peak_int b) { return _mm512_add_epi32(a, b); }
V_INLINE peak_int peak_add16(peak_int a, peak_int b) { return _mm512_add_epi16(a, b); }
V_INLINE peak_int peak_madd(peak_int a, peak_int b) { return _mm512_madd_epi16(a, b); }
V_INLINE peak_int peak_maddubs(peak_int a, peak_int b) { return _mm512_maddubs_epi16(a, b); }
V_INLINE peak_int peak_load(const void *p) { return _mm512_load_si512(p); }
#else
typedef __m256i peak_int;
V_INLINE peak_int peak_set8(int x) { return _mm256_set1_epi8((char)x); }
V_INLINE peak_int peak_xor(peak_int a, peak_int b) { return _mm256_xor_si256(a, b); }
V_INLINE peak_int peak_add32(peak_int a, peak_int b) { return _mm256_add_epi32(a, b); }
V_INLINE peak_int peak_add16(peak_int a, peak_int b) { return _mm256_add_epi16(a, b); }
V_INLINE peak_int peak_madd(peak_int a, peak_int b) { return _mm256_madd_epi16(a, b); }
V_INLINE peak_int peak_maddubs(peak_int a, peak_int b) { return _mm256_maddubs_epi16(a, b); }
V_INLINE peak_int peak_load(const void *p) { return _mm256_load_si256(p); }
#endif

/* Keeps a value that the compiler would otherwise compute once outside the loop. */
#define PEAK_OPAQUE(x) __asm__ volatile("" : "+v"(x))

V_INLINE float peak_fold(peak_int *s, int n) {
    float lanes[V_WIDTH];
    for (int i = 1; i < n; i++) s[0] = peak_xor(s[0], s[i]);
    memcpy(lanes, s, sizeof lanes);
    return lanes[0];
}

static int64_t peak_fma(int64_t n, float *sink) {
    vec s[PEAK_SUMS], x = v_set1(0.999f), c = v_set1(1e-4f);
    float lanes[V_WIDTH];
    int64_t rounds = n / (PEAK_SUMS * V_WIDTH) + 1;
    for (int i = 0; i < PEAK_SUMS; i++) s[i] = v_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        PEAK_OPAQUE(x);
        V_UNROLL for (int i = 0; i < PEAK_SUMS; i++) s[i] = v_fma(s[i], x, c);
    }
    for (int i = 1; i < PEAK_SUMS; i++) s[0] = v_add(s[0], s[i]);
    v_store(lanes, s[0]);
    *sink += lanes[0];
    return rounds * PEAK_SUMS * V_WIDTH;
}

/* Four operands that differ for all the compiler knows, so that no product is formed once for several sums. */
enum { PEAK_OPERANDS = 4 };
V_INLINE void peak_operands(peak_int x[PEAK_OPERANDS]) {
    V_UNROLL for (int i = 0; i < PEAK_OPERANDS; i++) PEAK_OPAQUE(x[i]);
}

static int64_t peak_dot16(int64_t n, float *sink) {
    peak_int s[PEAK_OPERANDS], x[PEAK_OPERANDS], y = peak_set8(5);
    int64_t rounds = n / (PEAK_OPERANDS * V_WIDTH * 2) + 1;
    for (int i = 0; i < PEAK_OPERANDS; i++) s[i] = x[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++) {
        peak_operands(x);
        V_UNROLL for (int i = 0; i < PEAK_OPERANDS; i++) s[i] = peak_add32(s[i], peak_madd(x[i], y));
    }
    *sink += peak_fold(s, PEAK_OPERANDS);
    return rounds * PEAK_OPERANDS * V_WIDTH * 2;
}

static int64_t peak_dot8(int64_t n, float *sink) {
    enum { STEPS = 16 };
    peak_int s[PEAK_OPERANDS], x[PEAK_OPERANDS], t[PEAK_OPERANDS], y = peak_set8(5), one = peak_set8(1);
    int64_t rounds = n / (PEAK_OPERANDS * STEPS * V_WIDTH * 4) + 1;
    for (int i = 0; i < PEAK_OPERANDS; i++) s[i] = x[i] = peak_set8(i);
    for (int64_t r = 0; r < rounds; r++) {
        peak_operands(x);
        V_UNROLL for (int i = 0; i < PEAK_OPERANDS; i++) t[i] = peak_maddubs(x[i], y);
        for (int k = 1; k < STEPS; k++) {
            peak_operands(x);
            V_UNROLL for (int i = 0; i < PEAK_OPERANDS; i++) t[i] = peak_add16(t[i], peak_maddubs(x[i], y));
        }
        V_UNROLL for (int i = 0; i < PEAK_OPERANDS; i++) s[i] = peak_add32(s[i], peak_madd(t[i], one));
    }
    *sink += peak_fold(s, PEAK_OPERANDS);
    return rounds * PEAK_OPERANDS * STEPS * V_WIDTH * 4;
}

/* `streams` at a distance of PEAK_STREAM bytes, 256 bytes of all of them together at a time. */
enum { PEAK_STREAM = 64 << 10 };
V_INLINE void peak_read_streams(peak_int s[8], const char *p, int64_t bytes, const int streams, const int ahead) {
    const int each = 256 / streams;
    int64_t part = streams > 1 ? PEAK_STREAM : bytes;
    for (const char *end = p + bytes; p < end; p += part * streams)
        for (int64_t at = 0; at < part; at += each) {
            V_UNROLL for (int i = 0; i < streams; i++) V_UNROLL for (int l = 0; l < each; l += PEAK_BYTES) {
                const char *from = p + i * part + at + l;
                if (ahead && l % 64 == 0) _mm_prefetch(from + ahead, _MM_HINT_T0);
                s[(i * each + l) / PEAK_BYTES] = peak_xor(s[(i * each + l) / PEAK_BYTES], peak_load(from));
            }
        }
}

static uint64_t peak_read(const void *p, int64_t bytes, int way) {
    peak_int s[8];
    uint64_t word;
    for (int i = 0; i < 8; i++) s[i] = peak_set8(0);
    int64_t wide = way == 2 ? bytes / (4 * PEAK_STREAM) * (4 * PEAK_STREAM) : 0;
    if (wide) peak_read_streams(s, p, wide, 4, 1536);
    if (way == 0)
        peak_read_streams(s, p, bytes, 1, 0);
    else if (wide < bytes)
        peak_read_streams(s, (const char *)p + wide, bytes - wide, 1, 1024);
    for (int i = 1; i < 8; i++) s[0] = peak_xor(s[0], s[i]);
    memcpy(&word, s, sizeof word);
    return word;
}

V_INLINE void peak_fill(neap_kernels *k) {
    k->peaks.multiply[NEAP_PEAK_FMA] = peak_fma;
    k->peaks.multiply[NEAP_PEAK_DOT16] = peak_dot16;
    k->peaks.multiply[NEAP_PEAK_DOT8] = peak_dot8;
    k->peaks.read = peak_read;
}

#endif
