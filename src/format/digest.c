/* SHA-256 and a fast checksum.
 *
 * SHA-256 as published (FIPS 180-4), plain: keys are made of kilobytes, of megabytes at most.
 *
 * The checksum runs eight chains beside each other, word i of the data in chain i % 8:
 *     chain = rotate((chain ^ word) * odd, 29)
 * A step is a bijection of the chain for a given word and of the word for a given chain. So a change of one word
 * changes its chain, no later word undoes that unless it is changed too, and the final mixing of the chains and the
 * length is made of the same steps. The rotation carries the high bits, which a product only pushes out, back to the
 * low end. It is no defence against somebody who wants a collision: files that others may write are not read in the
 * first place (store.c).
 *
 * Called by store.c and by what builds keys. Owns nothing. */
#include "format/digest.h"

#include <string.h>

/* ---- SHA-256 ---- */

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void take_block(uint32_t state[8], const unsigned char *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        /* Instead of moving eight variables, their names move: variable j of round i is v[(j - i) mod 8]. */
        uint32_t *a = &v[-i & 7], *d = &v[(3 - i) & 7], *e = &v[(4 - i) & 7], *h = &v[(7 - i) & 7];
        uint32_t b = v[(1 - i) & 7], c = v[(2 - i) & 7], f = v[(5 - i) & 7], g = v[(6 - i) & 7];
        uint32_t x = *h + (turn(*e, 6) ^ turn(*e, 11) ^ turn(*e, 25)) + ((*e & f) ^ (~*e & g)) + ROUND[i] + w[i];
        *d += x;
        *h = x + (turn(*a, 2) ^ turn(*a, 13) ^ turn(*a, 22)) + ((*a & b) ^ (*a & c) ^ (b & c));
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

void neap_sha256_begin(neap_sha256 *s) {
    *s = (neap_sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void neap_sha256_add(neap_sha256 *s, const void *data, size_t n) {
    const unsigned char *p = data;
    size_t waiting = (size_t)(s->bytes % 64);
    s->bytes += n;
    while (n > 0) {
        if (waiting == 0 && n >= 64) {
            take_block(s->state, p);
            p += 64;
            n -= 64;
            continue;
        }
        size_t take = 64 - waiting < n ? 64 - waiting : n;
        memcpy(s->block + waiting, p, take);
        p += take;
        n -= take;
        waiting = (waiting + take) % 64;
        if (waiting == 0) take_block(s->state, s->block);
    }
}

void neap_sha256_end(neap_sha256 *s, uint8_t out[NEAP_SHA256_BYTES]) {
    static const unsigned char zeros[64] = {0};
    unsigned char length[8];
    uint64_t bits = s->bytes * 8;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    neap_sha256_add(s, "\x80", 1);
    neap_sha256_add(s, zeros, (size_t)((120 - s->bytes % 64) % 64));
    neap_sha256_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) out[4 * i + j] = (uint8_t)(s->state[i] >> (24 - 8 * j));
}

/* ---- checksum ---- */

enum { CHAINS = 8, STRIPE = CHAINS * 8 };

static void take_stripe(uint64_t chain[CHAINS], const char *p) {
    uint64_t word[CHAINS];
    memcpy(word, p, sizeof word);
    for (int i = 0; i < CHAINS; i++) chain[i] = neap_checksum_mix(chain[i], word[i]);
}

uint64_t neap_checksum(const void *data, size_t n) {
    const char *p = data;
    uint64_t chain[CHAINS], sum = n;
    for (int i = 0; i < CHAINS; i++) chain[i] = UINT64_C(0xD6E8FEB86659FD93) * (uint64_t)(2 * i + 1);
    size_t left = n;
    for (; left >= STRIPE; left -= STRIPE, p += STRIPE) take_stripe(chain, p);
    if (left > 0) {
        char rest[STRIPE] = {0}; /* the length tells zeros from nothing */
        memcpy(rest, p, left);
        take_stripe(chain, rest);
    }
    for (int i = 0; i < CHAINS; i++) sum = neap_checksum_mix(sum, chain[i]);
    sum = neap_checksum_mix(sum, sum >> 32);
    return neap_checksum_mix(sum ^ sum >> 31, 0);
}
