/* Element types of stored tensors: names as in safetensors, sizes in bits. */
#ifndef NEAP_TENSOR_DTYPE_H
#define NEAP_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* name in files, bits */
#define NEAP_DTYPE_MAP(X) \
    X(BOOL, 8)            \
    X(U8, 8)              \
    X(I8, 8)              \
    X(U16, 16)            \
    X(I16, 16)            \
    X(U32, 32)            \
    X(I32, 32)            \
    X(U64, 64)            \
    X(I64, 64)            \
    X(F4, 4)              \
    X(F8_E4M3, 8)         \
    X(F8_E5M2, 8)         \
    X(F8_E8M0, 8)         \
    X(F16, 16)            \
    X(BF16, 16)           \
    X(F32, 32)            \
    X(F64, 64)

typedef enum neap_dtype {
#define NEAP_DTYPE_ENUM(name, bits) NEAP_DTYPE_##name,
    NEAP_DTYPE_MAP(NEAP_DTYPE_ENUM)
#undef NEAP_DTYPE_ENUM
        NEAP_DTYPE_COUNT
} neap_dtype;

const char *neap_dtype_name(neap_dtype d);
int neap_dtype_bits(neap_dtype d);
/* -1 when the name is unknown. */
int neap_dtype_from_name(const char *name, size_t n);

#endif
