/* Which kernel files exist: one list per family of (instruction set, NEAP_CPU_* flags it needs).
 *
 * Declarations, the overlay in dispatch.c and the cases of kcheck all come from these lists, so adding a
 * variant is one word here and one in the build file. Each file exports one function,
 * neap_<family>_<isa>_init(), which puts its kernels into the table; the kernels themselves are static. */
#ifndef NEAP_KERNELS_FAMILIES_H
#define NEAP_KERNELS_FAMILIES_H

#include "kernels/cpu.h"
#include "kernels/kernels.h"

/* The build defines NEAP_SIMD as 1 where the vector files are compiled in. */
#if defined(NEAP_SIMD) && NEAP_SIMD
#define NEAP_VARIANT_AVX2(X, family) X(family, avx2, NEAP_CPU_AVX2)
#define NEAP_VARIANT_AVXVNNI(X, family) X(family, avxvnni, NEAP_CPU_AVX2 | NEAP_CPU_AVXVNNI)
#define NEAP_VARIANT_AVX512(X, family) X(family, avx512, NEAP_CPU_AVX512)
#define NEAP_VARIANT_AVX512VNNI(X, family) X(family, avx512vnni, NEAP_CPU_AVX512 | NEAP_CPU_AVX512VNNI)
#define NEAP_VARIANT_AVX512BF16(X, family) X(family, avx512bf16, NEAP_CPU_AVX512 | NEAP_CPU_AVX512BF16)
#define NEAP_VARIANT_AMX(X, family) X(family, amx, NEAP_CPU_AVX512 | NEAP_CPU_AMX)
#else
#define NEAP_VARIANT_AVX2(X, family)
#define NEAP_VARIANT_AVXVNNI(X, family)
#define NEAP_VARIANT_AVX512(X, family)
#define NEAP_VARIANT_AVX512VNNI(X, family)
#define NEAP_VARIANT_AVX512BF16(X, family)
#define NEAP_VARIANT_AMX(X, family)
#endif

#define NEAP_GEMM_VARIANTS(X) \
    X(gemm, scalar, 0) NEAP_VARIANT_AVX2(X, gemm) NEAP_VARIANT_AVX512(X, gemm) NEAP_VARIANT_AMX(X, gemm)
#define NEAP_IGEMM_VARIANTS(X)     \
    X(igemm, scalar, 0)            \
    NEAP_VARIANT_AVX2(X, igemm)    \
    NEAP_VARIANT_AVXVNNI(X, igemm) \
    NEAP_VARIANT_AVX512(X, igemm) NEAP_VARIANT_AVX512VNNI(X, igemm) NEAP_VARIANT_AMX(X, igemm)
#define NEAP_NORM_VARIANTS(X) X(norm, scalar, 0) NEAP_VARIANT_AVX2(X, norm) NEAP_VARIANT_AVX512(X, norm)
#define NEAP_ACT_VARIANTS(X) X(act, scalar, 0) NEAP_VARIANT_AVX2(X, act) NEAP_VARIANT_AVX512(X, act)
#define NEAP_KDA_VARIANTS(X) X(kda, scalar, 0) NEAP_VARIANT_AVX2(X, kda) NEAP_VARIANT_AVX512(X, kda)
#define NEAP_ATTN_VARIANTS(X) X(attn, scalar, 0) NEAP_VARIANT_AVX2(X, attn) NEAP_VARIANT_AVX512(X, attn)
#define NEAP_INDEX_VARIANTS(X) X(index, scalar, 0) NEAP_VARIANT_AVX2(X, index) NEAP_VARIANT_AVX512(X, index)
#define NEAP_ATTNRES_VARIANTS(X) X(attnres, scalar, 0) NEAP_VARIANT_AVX2(X, attnres) NEAP_VARIANT_AVX512(X, attnres)
#define NEAP_ROUTE_VARIANTS(X) X(route, scalar, 0) NEAP_VARIANT_AVX2(X, route) NEAP_VARIANT_AVX512(X, route)
#define NEAP_ROPE_VARIANTS(X) X(rope, scalar, 0)
#define NEAP_SAMPLE_VARIANTS(X) X(sample, scalar, 0) NEAP_VARIANT_AVX2(X, sample) NEAP_VARIANT_AVX512(X, sample)

#define NEAP_ALL_VARIANTS(X) \
    NEAP_GEMM_VARIANTS(X)    \
    NEAP_IGEMM_VARIANTS(X)   \
    NEAP_NORM_VARIANTS(X)    \
    NEAP_ACT_VARIANTS(X)     \
    NEAP_KDA_VARIANTS(X)     \
    NEAP_ATTN_VARIANTS(X)    \
    NEAP_INDEX_VARIANTS(X)   \
    NEAP_ATTNRES_VARIANTS(X) \
    NEAP_ROUTE_VARIANTS(X)   \
    NEAP_ROPE_VARIANTS(X)    \
    NEAP_SAMPLE_VARIANTS(X)

/* No maths and no part of a model: loops to compare with (peak.h). */
#define NEAP_PEAK_VARIANTS(X)     \
    X(peak, scalar, 0)            \
    NEAP_VARIANT_AVX2(X, peak)    \
    NEAP_VARIANT_AVXVNNI(X, peak) \
    NEAP_VARIANT_AVX512(X, peak)  \
    NEAP_VARIANT_AVX512VNNI(X, peak) NEAP_VARIANT_AVX512BF16(X, peak) NEAP_VARIANT_AMX(X, peak)

#define NEAP_DECLARE_INIT(family, isa, needs) void neap_##family##_##isa##_init(neap_kernels *k);
NEAP_ALL_VARIANTS(NEAP_DECLARE_INIT)
NEAP_PEAK_VARIANTS(NEAP_DECLARE_INIT)
#undef NEAP_DECLARE_INIT

#endif
