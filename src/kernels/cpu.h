/* What this CPU (and its operating system: saved register state) can do. Asked once. */
#ifndef NEAP_KERNELS_CPU_H
#define NEAP_KERNELS_CPU_H

#include "base/status.h"

/* Each level names a kernel file suffix; what it needs is in cpu.c. */
#define NEAP_CPU_MAP(X)       \
    X(AVX2, "avx2", 1u)       \
    X(AVXVNNI, "avxvnni", 2u) \
    X(AVX512, "avx512", 4u) X(AVX512VNNI, "avx512vnni", 8u) X(AVX512BF16, "avx512bf16", 16u) X(AMX, "amx", 32u)
enum {
#define NEAP_CPU_ENUM(name, text, bit) NEAP_CPU_##name = bit,
    NEAP_CPU_MAP(NEAP_CPU_ENUM)
#undef NEAP_CPU_ENUM
        NEAP_CPU_SCALAR = 0
};

/* Bits of NEAP_CPU_* that this machine offers. */
uint32_t neap_cpu_flags(void);
/* "auto" / NULL -> all; "scalar,avx2" -> those that are named and present. Unknown name: INVALID_ARGUMENT;
 * named but not present: UNSUPPORTED. */
NEAP_MUST_CHECK neap_status neap_cpu_parse(const char *text, uint32_t *flags);
/* "avx2 avx512 ..." of flags; "scalar" for none. */
void neap_cpu_text(uint32_t flags, char *text, size_t capacity);
/* The widest level that a kernel of this build uses under these flags: "avx2". (dispatch.c) */
const char *neap_kernels_level(uint32_t flags);
const char *neap_cpu_model(void); /* "Intel(R) Xeon(R) ..." */

#endif
