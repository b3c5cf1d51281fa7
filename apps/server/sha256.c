/* SHA-256 and HMAC; see sha256.h.
 *
 * Our own hundred lines because OpenSSL is optional and there shall be one path only. The constants are the first 32
 * bits of the fractions of square roots (start) and cube roots (rounds) of the first primes. Tested with the vectors
 * of FIPS 180-4 and RFC 4231. Called by guard.c and serve_config.c; owns nothing. Sources: FIPS 180-4, RFC 2104. */
#include "sha256.h"

#include <string.h>

typedef struct sha256 {
    uint32_t h[8];
    uint8_t block[64];
    uint64_t n; /* bytes so far */
} sha256;

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static void take_block(sha256 *s, const uint8_t *p) {
    uint32_t w[64], v[8];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (size_t i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (size_t i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += one;
        v[0] = one + two;
    }
    for (size_t i = 0; i < 8; i++) s->h[i] += v[i];
}

static void begin(sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, start, sizeof start);
    s->n = 0;
}

static void add(sha256 *s, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    while (n > 0) {
        size_t at = s->n % 64, part = 64 - at < n ? 64 - at : n;
        memcpy(s->block + at, p, part);
        s->n += part;
        p += part;
        n -= part;
        if (s->n % 64 == 0) take_block(s, s->block);
    }
}

static void end(sha256 *s, uint8_t *digest) {
    uint8_t pad[72] = {0x80};
    uint64_t bits = s->n * 8;
    size_t n = (s->n % 64 < 56 ? 56 : 120) - s->n % 64;
    for (size_t i = 0; i < 8; i++) pad[n + i] = (uint8_t)(bits >> (56 - 8 * i));
    add(s, pad, n + 8);
    for (size_t i = 0; i < 32; i++) digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
    explicit_bzero(s, sizeof *s);
}

void neap_serve_sha256(const void *bytes, size_t n, uint8_t digest[NEAP_SERVE_SHA256]) {
    sha256 s;
    begin(&s);
    add(&s, bytes, n);
    end(&s, digest);
}

void neap_serve_hmac(const void *key, size_t n_key, const void *bytes, size_t n, uint8_t digest[NEAP_SERVE_SHA256]) {
    uint8_t block[64] = {0};
    sha256 s;
    if (n_key > sizeof block)
        neap_serve_sha256(key, n_key, block);
    else
        memcpy(block, key, n_key);
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36;
    begin(&s);
    add(&s, block, sizeof block);
    add(&s, bytes, n);
    end(&s, digest);
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36 ^ 0x5c;
    begin(&s);
    add(&s, block, sizeof block);
    add(&s, digest, NEAP_SERVE_SHA256);
    end(&s, digest);
    explicit_bzero(block, sizeof block);
}
