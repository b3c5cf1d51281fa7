/* Two ways to tell bytes apart: SHA-256 for keys, where a collision must not happen, and a fast checksum for gigabytes,
 * where damage must be seen. */
#ifndef NEAP_FORMAT_DIGEST_H
#define NEAP_FORMAT_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { NEAP_SHA256_BYTES = 32 };

typedef struct neap_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64]; /* bytes % 64 of them wait */
} neap_sha256;

void neap_sha256_begin(neap_sha256 *s);
void neap_sha256_add(neap_sha256 *s, const void *data, size_t n);
void neap_sha256_end(neap_sha256 *s, uint8_t out[NEAP_SHA256_BYTES]);

/* Any change within one 8-byte word changes it, and so do all others but one in 2^64. Some 8 bytes a cycle. */
uint64_t neap_checksum(const void *data, size_t n);
/* One step of that: a bijection of each argument while the other one stays. */
static inline uint64_t neap_checksum_mix(uint64_t state, uint64_t word) {
    uint64_t x = (state ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return x << 29 | x >> 35;
}

#endif
