/* How fast one core is when it does one thing only: what kernels and whole models are compared with.
 *
 * Nothing computes with these. Each loop is as fast as its instruction set allows (every operand in registers, enough
 * independent sums), so a kernel can come close to it and never above it. The level of an entry is that of the table:
 * dot8 is maddubs with AVX2 and vpdpbusd with VNNI. The results mean nothing and differ between levels. */
#ifndef NEAP_KERNELS_PEAK_H
#define NEAP_KERNELS_PEAK_H

#include <stdint.h>

#define NEAP_PEAK_MAP(X)                                                                                      \
    X(FMA, "fma")       /* float32 */                                                                         \
    X(DOT16, "dot16")   /* 16-bit integers into 32 bits: madd, vpdpwssd */                                    \
    X(DOT8, "dot8")     /* 8-bit: maddubs summed in 16 bits as long as a bound allows (16 steps), vpdpbusd */ \
    X(BF16, "bf16")     /* vdpbf16ps */                                                                       \
    X(TILE16, "tile16") /* AMX, BF16 */                                                                       \
    X(TILE8, "tile8")   /* AMX, 8 bits */

typedef enum neap_peak_kind {
#define NEAP_PEAK_ENUM(name, text) NEAP_PEAK_##name,
    NEAP_PEAK_MAP(NEAP_PEAK_ENUM)
#undef NEAP_PEAK_ENUM
        NEAP_PEAKS
} neap_peak_kind;

enum { NEAP_PEAK_READS = 3 };

typedef struct neap_peaks {
    /* At least n multiply-adds; returns how many. NULL: the level has no such instruction. */
    int64_t (*multiply[NEAP_PEAKS])(int64_t n, float *sink);
    /* Reads `bytes` (a multiple of 256) at a 64-byte border once, in one of NEAP_PEAK_READS ways: in order, in order
     * and fetching ahead, in four streams that fetch ahead. Which is fastest depends on the processor. Returns
     * something of what was read. */
    uint64_t (*read)(const void *p, int64_t bytes, int way);
} neap_peaks;

#endif
