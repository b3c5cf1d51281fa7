/* What sequences remember between steps: pages of 64 positions for latents and index keys, and one slot of
 * recurrent state (KDA state and convolution window) per sequence.
 *
 * A page belongs to one slot; one page table per slot serves all layers (page i of every layer's pool holds the
 * same positions). Opening a slot reserves all pages it may ever need, so that no step can run out. Stale bytes
 * can never reach a result: a position is written before it is read, and a sequence that begins (position 0)
 * ignores and overwrites its state. Owner tags are checked on every open and close. */
#ifndef NEAP_CACHE_CACHES_H
#define NEAP_CACHE_CACHES_H

#include "base/arena.h"
#include "tensor/pages.h"

/* Floats that one layer keeps. KDA layers have state and window, MLA layers row and perhaps index_row. */
typedef struct neap_cache_layer_spec {
    int64_t state_floats, window_floats; /* per sequence */
    int32_t row_floats, index_floats;    /* per position */
} neap_cache_layer_spec;

typedef struct neap_cache_layer {
    float *state;      /* [n_slots][state_floats] */
    float *window;     /* [n_slots][window_floats] */
    float *rows;       /* [n_pages][NEAP_PAGE_ROWS][row_floats] */
    float *index_rows; /* [n_pages][NEAP_PAGE_ROWS][index_floats] */
} neap_cache_layer;

typedef struct neap_caches {
    int32_t n_layers, n_slots, n_pages, slot_pages_max;
    const neap_cache_layer_spec *specs; /* borrowed */
    neap_cache_layer *layers;
    int32_t *tables;     /* [n_slots][slot_pages_max] page of position / 64; -1 = none */
    int32_t *slot_pages; /* pages that a slot owns; -1 = the slot is free */
    int32_t *owner;      /* slot that owns a page; -1 = free */
    int32_t *free_pages; /* stack */
    int32_t n_free;
} neap_caches;

/* Bytes of all pools for these sizes; false on overflow. */
bool neap_caches_bytes(const neap_cache_layer_spec *specs, int32_t n_layers, int32_t n_slots, int32_t n_pages,
                       uint64_t *state_bytes, uint64_t *page_bytes);
/* specs must outlive the caches. slot_pages_max: pages of the longest sequence. */
NEAP_MUST_CHECK neap_status neap_caches_create(neap_caches *c, neap_arena *a, const neap_cache_layer_spec *specs,
                                               int32_t n_layers, int32_t n_slots, int32_t n_pages,
                                               int32_t slot_pages_max);
/* Reserves a slot and the pages for n_positions. NEAP_BUSY: no slot or not enough pages; nothing is taken. */
NEAP_MUST_CHECK neap_status neap_caches_open(neap_caches *c, int64_t n_positions, int32_t *slot);
void neap_caches_close(neap_caches *c, int32_t slot);
static inline const int32_t *neap_caches_table(const neap_caches *c, int32_t slot) {
    return c->tables + (int64_t)slot * c->slot_pages_max;
}
/* Index of a position's row in every pool of the slot. */
static inline int64_t neap_caches_row(const neap_caches *c, int32_t slot, int64_t position) {
    return (int64_t)neap_caches_table(c, slot)[position / NEAP_PAGE_ROWS] * NEAP_PAGE_ROWS + position % NEAP_PAGE_ROWS;
}

#endif
