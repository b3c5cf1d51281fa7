/* What lies in the directory, in memory: a hash table by key and the tree of links.
 *
 *   bucket -> entry -> entry ...     by the first bytes of the key, which is a hash already
 *   parent, child, next, previous    a link hangs below the link that it continues; only what has nothing below it is
 *                                    ever removed, so a chain never has a hole
 *   lengths[n]                       how many links end after n tokens: whoever walks along a prompt looks into the
 *                                    table only where something may be found
 *
 * A fixed number of entries; who adds makes room first. Called by prefix_disk.c and prefix_disk_work.c under their
 * lock. Owns nothing. */
#include <assert.h>
#include <string.h>

#include "engine/prefix_disk_inner.h"

_Static_assert((NEAP_PREFIX_ENTRIES & (NEAP_PREFIX_ENTRIES - 1)) == 0, "buckets are chosen by a mask");

static uint64_t padded(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

uint64_t neap_prefix_index_bytes(int64_t n_max) {
    return padded(NEAP_PREFIX_ENTRIES * sizeof(neap_prefix_entry)) + padded(NEAP_PREFIX_ENTRIES * sizeof(int32_t)) +
           padded((uint64_t)(n_max + 1) * sizeof(uint16_t));
}

void neap_prefix_index_init(neap_prefix_index *x, void *memory, int64_t n_max) {
    char *p = memory;
    *x = (neap_prefix_index){.n_max = n_max, .free = NEAP_PREFIX_NONE, .capacity = NEAP_PREFIX_ENTRIES};
    x->entries = (void *)p;
    p += padded(NEAP_PREFIX_ENTRIES * sizeof(neap_prefix_entry));
    x->buckets = (void *)p;
    p += padded(NEAP_PREFIX_ENTRIES * sizeof(int32_t));
    x->lengths = (void *)p;
}

/* Buckets hold index + 1, so that fresh memory is an empty table. */
static int32_t *bucket_of(const neap_prefix_index *x, const uint8_t key[NEAP_PREFIX_KEY]) {
    uint32_t hash;
    memcpy(&hash, key, sizeof hash);
    return &x->buckets[hash & (NEAP_PREFIX_ENTRIES - 1)];
}

int32_t neap_prefix_index_find(const neap_prefix_index *x, const uint8_t key[NEAP_PREFIX_KEY]) {
    int32_t i = *bucket_of(x, key) - 1;
    while (i >= 0 && memcmp(x->entries[i].key, key, NEAP_PREFIX_KEY) != 0) i = x->entries[i].bucket_next;
    return i;
}

int32_t neap_prefix_index_add(neap_prefix_index *x, const neap_prefix_entry *e) {
    int32_t i = x->free;
    assert(x->n_used < x->capacity);
    if (i >= 0)
        x->free = x->entries[i].bucket_next;
    else
        i = x->n_ever++;
    neap_prefix_entry *at = &x->entries[i];
    int32_t *bucket = bucket_of(x, e->key);
    *at = *e;
    at->bucket_next = *bucket - 1;
    at->parent = at->child = at->next = at->previous = NEAP_PREFIX_NONE;
    *bucket = i + 1;
    x->n_used++;
    x->bytes += at->bytes;
    if (at->kind == NEAP_PREFIX_LINK) {
        if (x->lengths[at->n] < UINT16_MAX) x->lengths[at->n]++;
        if (at->n > x->n_longest) x->n_longest = at->n;
    }
    return i;
}

bool neap_prefix_index_join(neap_prefix_index *x, int32_t i) {
    neap_prefix_entry *e = &x->entries[i];
    if (e->n_before == 0) return true;
    int32_t p = neap_prefix_index_find(x, e->before);
    if (p < 0) return false;
    neap_prefix_entry *parent = &x->entries[p];
    if (parent->kind != NEAP_PREFIX_LINK || parent->n != e->n_before) return false;
    e->parent = p;
    e->next = parent->child;
    if (e->next >= 0) x->entries[e->next].previous = i;
    parent->child = i;
    return true;
}

static void leave_tree(neap_prefix_index *x, neap_prefix_entry *e) {
    if (e->parent >= 0 && e->previous < 0) x->entries[e->parent].child = e->next;
    if (e->previous >= 0) x->entries[e->previous].next = e->next;
    if (e->next >= 0) x->entries[e->next].previous = e->previous;
}

void neap_prefix_index_remove(neap_prefix_index *x, int32_t i) {
    neap_prefix_entry *e = &x->entries[i];
    assert(e->kind != NEAP_PREFIX_FREE && e->child < 0);
    leave_tree(x, e);
    int32_t *bucket = bucket_of(x, e->key);
    if (*bucket - 1 == i) {
        *bucket = e->bucket_next + 1;
    } else {
        int32_t at = *bucket - 1;
        while (x->entries[at].bucket_next != i) at = x->entries[at].bucket_next;
        x->entries[at].bucket_next = e->bucket_next;
    }
    if (e->kind == NEAP_PREFIX_LINK && x->lengths[e->n] < UINT16_MAX) x->lengths[e->n]--;
    x->n_used--;
    x->bytes -= e->bytes;
    e->kind = NEAP_PREFIX_FREE;
    e->bucket_next = x->free;
    x->free = i;
}

int32_t neap_prefix_index_leaf(const neap_prefix_index *x, int32_t i) {
    while (x->entries[i].child >= 0) i = x->entries[i].child;
    return i;
}

int32_t neap_prefix_index_oldest(const neap_prefix_index *x) {
    int32_t oldest = NEAP_PREFIX_NONE;
    for (int32_t i = 0; i < x->n_ever; i++) {
        const neap_prefix_entry *e = &x->entries[i];
        if (e->kind == NEAP_PREFIX_FREE || e->child >= 0) continue;
        if (oldest < 0 || e->used < x->entries[oldest].used) oldest = i;
    }
    return oldest;
}

void neap_prefix_index_use(neap_prefix_index *x, int32_t i, int64_t now) {
    for (; i >= 0; i = x->entries[i].parent)
        if (x->entries[i].used < now) x->entries[i].used = now;
}
