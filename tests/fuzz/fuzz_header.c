/* Safetensors header scanner. Input: 4 bytes little-endian (data bytes), then the header text.
 *
 * What is accepted is checked against the promises of the scanner: tensors tile the data, sizes agree with dtype and
 * shape, names are unique. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

static void check(const neap_stored_tensor *t, int64_t n, uint64_t data_bytes) {
    uint64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        demand(t[i].offset == at && t[i].rank >= 0 && t[i].rank <= NEAP_RANK_MAX && t[i].name[0]);
        at += t[i].bytes;
        unsigned __int128 bits = (unsigned)neap_dtype_bits(t[i].dtype);
        for (int k = 0; k < t[i].rank; k++) {
            demand(t[i].shape[k] >= 0);
            bits *= (uint64_t)t[i].shape[k];
        }
        demand(bits == (unsigned __int128)t[i].bytes * 8);
        for (int64_t k = 0; k < i && n < 64; k++) demand(strcmp(t[i].name, t[k].name) != 0);
    }
    demand(at == data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    uint64_t data_bytes = data[0] | (uint64_t)data[1] << 8 | (uint64_t)data[2] << 16 | (uint64_t)data[3] << 24;
    neap_stored_tensor *t = NULL;
    int64_t n = 0;
    neap_status status = neap_header_scan((const char *)data + 4, size - 4, data_bytes, &t, &n);
    demand(status == NEAP_OK || status == NEAP_BAD_FILE);
    if (status == NEAP_OK) check(t, n, data_bytes);
    neap_header_free(t, n);
    return 0;
}
