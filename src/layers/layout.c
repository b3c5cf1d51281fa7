/* Which buffers of a step live when, read off the arguments of its ops.
 *
 * Buffer i of a dry run is the address range [BASE + begin_i, + bytes_i): above everything that a process can own, so
 * a word of an op's arguments that lies in it can only be a pointer into that buffer. A buffer lives from the first to
 * the last time whose ops hold such a word. Ranges are apart from each other, so that a pointer to the end of a buffer
 * is not one to the beginning of the next.
 *
 * Called by builder.c and engine/forward.c. Owns the list of lives. */
#include <assert.h>
#include <string.h>

#include "layers/builder.h"

static const uint64_t BASE = UINT64_C(1) << 60; /* no address of any process */
enum { APART = 4096 };

struct neap_layout {
    neap_life *lives;
    uint64_t *begins; /* [n] ascending, from BASE */
    int32_t n, capacity, n_counters;
    uint64_t end;
    neap_status status;
};

neap_status neap_layout_create(neap_layout **out) {
    void *p;
    *out = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_layout), &p));
    *out = p;
    return NEAP_OK;
}

void neap_layout_destroy(neap_layout *l) {
    if (!l) return;
    neap_mem_free(l->lives);
    neap_mem_free(l->begins);
    neap_mem_free(l);
}

static neap_status grow(neap_layout *l) {
    int32_t capacity = l->capacity ? 2 * l->capacity : 256;
    void *lives = l->lives, *begins = l->begins;
    NEAP_TRY(neap_mem_grow(&lives, (size_t)l->capacity * sizeof *l->lives, (size_t)capacity * sizeof *l->lives));
    l->lives = lives;
    NEAP_TRY(neap_mem_grow(&begins, (size_t)l->capacity * sizeof *l->begins, (size_t)capacity * sizeof *l->begins));
    l->begins = begins;
    l->capacity = capacity;
    return NEAP_OK;
}

void *neap_layout_buffer(neap_layout *l, uint64_t bytes) {
    if (l->status == NEAP_OK && l->n == l->capacity) l->status = grow(l);
    if (l->status != NEAP_OK) return NULL;
    l->lives[l->n] = (neap_life){.bytes = bytes, .first = INT32_MAX, .last = -1};
    l->begins[l->n++] = l->end;
    uint64_t at = BASE + l->end;
    l->end += (bytes + APART) & ~(uint64_t)(APART - 1);
    if (l->end >= BASE) l->status = neap_fail(NEAP_NO_MEMORY, "work memory: size overflow");
    return (void *)(uintptr_t)at;
}

/* The last buffer that begins at or before `at`. */
static int32_t buffer_at(const neap_layout *l, uint64_t at) {
    int32_t low = 0, high = l->n - 1;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (l->begins[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void neap_layout_use(neap_layout *l, const void *args, size_t args_bytes, int32_t time) {
    if (l->status != NEAP_OK || l->n == 0) return;
    for (size_t i = 0; i + sizeof(uint64_t) <= args_bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)args + i, sizeof word);
        if (word < BASE || word - BASE >= l->end) continue;
        neap_life *life = &l->lives[buffer_at(l, word - BASE)];
        if (time < life->first) life->first = time;
        if (time > life->last) life->last = time;
    }
}

void neap_layout_add_counters(neap_layout *l, int64_t n) {
    assert(n >= 0 && n < INT32_MAX - l->n_counters);
    l->n_counters += (int32_t)n;
}

neap_status neap_layout_status(const neap_layout *l) { return l->status; }
int32_t neap_layout_counters(const neap_layout *l) { return l->n_counters; }

int32_t neap_layout_buffers(const neap_layout *l, const neap_life **lives) {
    *lives = l->lives;
    return l->n;
}

neap_status neap_layout_place(neap_layout *l, bool shares, uint64_t *region_bytes) {
    NEAP_TRY(l->status);
    return neap_colour(l->lives, l->n, shares, region_bytes);
}
