/* CRC-32 (the one of zip and PNG) over tensors: a short fact about a whole file that another program can also state. */
#ifndef NEAP_TESTS_UNIT_CRC32_H
#define NEAP_TESTS_UNIT_CRC32_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "format/checkpoint.h"

static inline uint32_t crc32_add(uint32_t crc, const void *data, size_t n) {
    const unsigned char *p = data;
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) v = v & 1 ? 0xedb88320u ^ (v >> 1) : v >> 1;
        table[i] = v;
    }
    crc = ~crc;
    for (size_t i = 0; i < n; i++) crc = table[(crc ^ p[i]) & 0xff] ^ (crc >> 8);
    return ~crc;
}

/* "name dtype d0,d1\n", then the data. */
static inline uint32_t crc32_tensor(uint32_t crc, const neap_stored_tensor *t, const void *data) {
    char text[32];
    crc = crc32_add(crc, t->name, strlen(t->name));
    int n = snprintf(text, sizeof text, " %s ", neap_dtype_name(t->dtype));
    crc = crc32_add(crc, text, (size_t)n);
    for (int i = 0; i < t->rank; i++) {
        n = snprintf(text, sizeof text, "%s%lld", i ? "," : "", (long long)t->shape[i]);
        crc = crc32_add(crc, text, (size_t)n);
    }
    crc = crc32_add(crc, "\n", 1);
    return crc32_add(crc, data, (size_t)t->bytes);
}

#endif
