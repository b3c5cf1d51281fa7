/* Element types: names as safetensors writes them and sizes in bits, from the one list in dtype.h.
 *
 * Used by the file readers (name to type) and by everyone who needs the size of a stored tensor. */
#include "tensor/dtype.h"

#include <string.h>

static const char *const names[NEAP_DTYPE_COUNT] = {
#define NAME(name, bits) [NEAP_DTYPE_##name] = #name,
    NEAP_DTYPE_MAP(NAME)
#undef NAME
};

static const unsigned char sizes[NEAP_DTYPE_COUNT] = {
#define BITS(name, bits) [NEAP_DTYPE_##name] = bits,
    NEAP_DTYPE_MAP(BITS)
#undef BITS
};

const char *neap_dtype_name(neap_dtype d) { return d < NEAP_DTYPE_COUNT ? names[d] : "?"; }

int neap_dtype_bits(neap_dtype d) { return d < NEAP_DTYPE_COUNT ? sizes[d] : 0; }

int neap_dtype_from_name(const char *name, size_t n) {
    for (int i = 0; i < NEAP_DTYPE_COUNT; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return i;
    return -1;
}
