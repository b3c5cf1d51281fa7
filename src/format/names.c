/* Hash table from names to numbers.
 *
 * Open addressing with linear probing, at most 3/4 full, grown by doubling: O(1) per name whatever the names are,
 * because the hash is SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) under a key
 * that each table draws at random. A file with names made to collide therefore costs no more than another.
 *
 * Used by the header scanner and the shard index (duplicates) and by the checkpoint (find by name). Names are
 * borrowed: they lie in the scanned text or in the checkpoint's header blocks.
 */
#include "format/names.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/arena.h"

static uint64_t rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static uint32_t sip_hash(const uint64_t key[2], uint32_t scope, const char *p, size_t n) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    /* The scope counts as a leading word, so that the length byte below stays unambiguous. */
    v[3] ^= scope;
    sip_round(v);
    v[0] ^= scope;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)n << 56;
    for (size_t k = 0; i + k < n; k++) last |= (uint64_t)(unsigned char)p[i + k] << (8 * k);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return (uint32_t)((v[0] ^ v[1] ^ v[2] ^ v[3]) >> 32);
}

void neap_names_init(neap_names *t) {
    memset(t, 0, sizeof *t);
    if (getrandom(t->key, sizeof t->key, GRND_NONBLOCK) != (ssize_t)sizeof t->key) {
        /* Early boot or an odd sandbox: guessable, but still another key each time. */
        struct timespec now = {0};
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        t->key[0] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u;
        t->key[1] = (uint64_t)(uintptr_t)t ^ (uint64_t)now.tv_sec;
    }
}

void neap_names_free(neap_names *t) {
    neap_mem_free(t->slots);
    t->slots = NULL;
    t->capacity = t->count = 0;
}

/* The slot that holds the name, or the free one where it belongs. */
static neap_names_slot *probe(const neap_names *t, uint32_t hash, uint32_t scope, const char *p, size_t n) {
    size_t mask = t->capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        neap_names_slot *s = &t->slots[i];
        if (!s->p) return s;
        if (s->hash == hash && s->scope == scope && s->n == n && memcmp(s->p, p, n) == 0) return s;
    }
}

static neap_status grow(neap_names *t) {
    size_t capacity = t->capacity ? 2 * t->capacity : 64;
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(capacity * sizeof(neap_names_slot), &memory));
    neap_names bigger = *t;
    bigger.slots = memory;
    bigger.capacity = capacity;
    for (size_t i = 0; i < t->capacity; i++) {
        if (!t->slots[i].p) continue;
        size_t place = t->slots[i].hash & (capacity - 1); /* all are different: no comparison */
        while (bigger.slots[place].p) place = (place + 1) & (capacity - 1);
        bigger.slots[place] = t->slots[i];
    }
    neap_mem_free(t->slots);
    *t = bigger;
    return NEAP_OK;
}

neap_status neap_names_add(neap_names *t, uint32_t scope, const char *p, size_t n, uint32_t value,
                           const neap_names_slot **old) {
    assert(p);
    NEAP_CHECK(n < UINT32_MAX, NEAP_BAD_FILE, "a name of %zu bytes is too long", n);
    if (4 * (t->count + 1) > 3 * t->capacity) NEAP_TRY(grow(t));
    uint32_t hash = sip_hash(t->key, scope, p, n);
    neap_names_slot *s = probe(t, hash, scope, p, n);
    *old = s->p ? s : NULL;
    if (s->p) return NEAP_OK;
    NEAP_CHECK(t->count < NEAP_NAMES_MAX, NEAP_BAD_FILE, "more than %d names", NEAP_NAMES_MAX);
    *s = (neap_names_slot){p, (uint32_t)n, scope, hash, value};
    t->count++;
    return NEAP_OK;
}

const neap_names_slot *neap_names_find(const neap_names *t, uint32_t scope, const char *p, size_t n) {
    if (t->count == 0) return NULL;
    const neap_names_slot *s = probe(t, sip_hash(t->key, scope, p, n), scope, p, n);
    return s->p ? s : NULL;
}
