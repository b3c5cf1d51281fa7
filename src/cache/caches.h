/* What sequences remember between steps: pages of 64 positions for latents and index keys, and one slot of
 * recurrent state (KDA state and convolution window) per sequence.
 *
 * One page table per slot serves all layers (page i of every layer's pool holds the same positions, in the layer's own
 * format: tensor/pages.h). A step never runs out: a slot has the pages of the positions it may reach before it gets
 * there. Stale bytes can never reach a result: a position is written before it is read, and a sequence that begins
 * (position 0) ignores and overwrites its state.
 *
 * Pages are counted: a reference of the slot that owns it and may write it, of every slot that shares it (the first
 * pages of its table) and of whoever else keeps it (the prefix tree). The owner goes on writing behind what others use
 * of its last page; nobody else ever writes. When the owner closes, the page has no owner any more; without any
 * reference it is free.
 *
 * Every page carries its owner and a generation that grows each time it is handed out; a slot keeps the generation it
 * was given. A page that was freed and given to somebody else, or that a wrong table entry names, does not match, and
 * neap_caches_check says so before a step reads or writes it. The same tags find a page that is in the free list
 * twice. */
#ifndef NEAP_CACHE_CACHES_H
#define NEAP_CACHE_CACHES_H

#include "base/arena.h"
#include "tensor/pages.h"

/* What one layer keeps. KDA layers have state and window; MLA layers have latents and, with an indexer of their
 * own, index keys. */
typedef struct neap_cache_layer_spec {
    int64_t state_floats, window_floats; /* per sequence; 0: none */
    neap_latent_format latent;           /* r 0: none */
    neap_index_format index;             /* d 0: none */
} neap_cache_layer_spec;

typedef struct neap_cache_layer {
    float *state;        /* [n_slots][state_floats] */
    float *window;       /* [n_slots][window_floats] */
    uint8_t *latents;    /* [n_pages][latent_page_bytes] */
    uint8_t *index_keys; /* [n_pages][index_page_bytes] */
    int64_t latent_page_bytes, index_page_bytes;
} neap_cache_layer;

typedef struct neap_caches {
    int32_t n_layers, n_slots, n_pages, slot_pages_max;
    const neap_cache_layer_spec *specs; /* borrowed */
    neap_cache_layer *layers;
    int32_t *tables;             /* [n_slots][slot_pages_max] page of position / 64; -1 = none */
    uint32_t *table_generations; /* [n_slots][slot_pages_max] generation of that page when the slot got it */
    int32_t *slot_pages;         /* [n_slots] pages that a slot has; -1 = the slot is free */
    int32_t *slot_shared;        /* [n_slots] of them, the first ones that are not its own */
    uint32_t *slot_generation;   /* [n_slots] grows with each opening */
    int32_t *owner;              /* [n_pages] slot that owns the page; ~i: it is entry i of the free list */
    int32_t *references;         /* [n_pages] 0: free */
    uint32_t *generation;        /* [n_pages] grows each time the page is handed out */
    int32_t *free_pages;         /* stack */
    int32_t n_free;
    int64_t n_outside; /* references that no slot has: taken and retained, not yet released */
} neap_caches;

/* The owner of a page that is in use but belongs to no slot. */
enum { NEAP_PAGE_UNOWNED = INT32_MIN };

typedef struct neap_caches_size {
    uint64_t state; /* KDA state and windows */
    uint64_t pages; /* latents and index keys */
    uint64_t books; /* page tables, tags */
} neap_caches_size;

/* Exactly what neap_caches_create takes from its arena; false on overflow. slot_pages_max: pages of the longest
 * sequence. */
bool neap_caches_bytes(const neap_cache_layer_spec *specs, int32_t n_layers, int32_t n_slots, int32_t n_pages,
                       int32_t slot_pages_max, neap_caches_size *size);
/* specs must outlive the caches. */
NEAP_MUST_CHECK neap_status neap_caches_create(neap_caches *c, neap_arena *a, const neap_cache_layer_spec *specs,
                                               int32_t n_layers, int32_t n_slots, int32_t n_pages,
                                               int32_t slot_pages_max);
/* Reserves a slot and the pages for n_positions. NEAP_BUSY: no slot or not enough pages; NEAP_INTERNAL: the free
 * list names a page that is in use. Nothing is taken in either case. */
NEAP_MUST_CHECK neap_status neap_caches_open(neap_caches *c, int64_t n_positions, int32_t *slot);
/* The same with the first n_shared pages given by somebody else (a reference is taken for the slot; it must never write
 * to them). */
NEAP_MUST_CHECK neap_status neap_caches_open_shared(neap_caches *c, int64_t n_positions, const int32_t *shared,
                                                    int32_t n_shared, int32_t *slot);
/* Pages that n_positions need, or why neap_caches_open would refuse whatever is free: no slot (NEAP_BUSY), or longer
 * than the context (NEAP_CONTEXT_FULL). */
NEAP_MUST_CHECK neap_status neap_caches_need(const neap_caches *c, int64_t n_positions, int32_t *n_pages);
/* More pages for an open slot, up to n_positions in all (fewer than it has: nothing happens). NEAP_BUSY: nothing is
 * taken. */
NEAP_MUST_CHECK neap_status neap_caches_extend(neap_caches *c, int32_t slot, int64_t n_positions);
/* References outside of slots. take: a free page, with one reference and no owner (NEAP_BUSY: none). */
NEAP_MUST_CHECK neap_status neap_caches_take_page(neap_caches *c, int32_t *page);
void neap_caches_retain_page(neap_caches *c, int32_t page);
void neap_caches_release_page(neap_caches *c, int32_t page);
/* A page's bytes over all layers, and a slot's recurrent state and windows, in a fixed order. */
uint64_t neap_caches_page_bytes(const neap_caches *c);
void neap_caches_page_read(const neap_caches *c, int32_t page, uint8_t *out);
void neap_caches_page_write(neap_caches *c, int32_t page, const uint8_t *in);
void neap_caches_page_copy(neap_caches *c, int32_t to, int32_t from);
uint64_t neap_caches_state_bytes(const neap_caches *c);
void neap_caches_state_save(const neap_caches *c, int32_t slot, uint8_t *out);
void neap_caches_state_load(neap_caches *c, int32_t slot, const uint8_t *in);
/* NEAP_INTERNAL: the slot was not open, or it held pages that it was not given. Those are not given back: lost is
 * better than used twice. */
neap_status neap_caches_close(neap_caches *c, int32_t slot);
/* Whether entry i of an open slot's table is the page that the slot was given: its own, or shared and still in use. */
bool neap_caches_has_page(const neap_caches *c, int32_t slot, int64_t i);
/* NEAP_INTERNAL unless the slot is open and all its pages are what it was given; or (cheap enough for every step)
 * unless positions first .. first + n - 1 may be written: inside what was reserved, in pages of its own. */
NEAP_MUST_CHECK neap_status neap_caches_check(const neap_caches *c, int32_t slot);
NEAP_MUST_CHECK neap_status neap_caches_check_span(const neap_caches *c, int32_t slot, int64_t first, int64_t n);
/* The whole books: each page is free once, or has the references of the slots that name it and of those outside. For
 * tests (pages times table entries). */
NEAP_MUST_CHECK neap_status neap_caches_audit(const neap_caches *c);

static inline const int32_t *neap_caches_table(const neap_caches *c, int32_t slot) {
    return c->tables + (int64_t)slot * c->slot_pages_max;
}
/* One layer's rows as a slot sees them. */
static inline neap_pages neap_caches_latents(const neap_caches *c, int32_t layer, int32_t slot) {
    const neap_cache_layer *l = &c->layers[layer];
    return (neap_pages){.base = l->latents, .page_bytes = l->latent_page_bytes, .table = neap_caches_table(c, slot)};
}
static inline neap_pages neap_caches_index_keys(const neap_caches *c, int32_t layer, int32_t slot) {
    const neap_cache_layer *l = &c->layers[layer];
    return (neap_pages){.base = l->index_keys, .page_bytes = l->index_page_bytes, .table = neap_caches_table(c, slot)};
}
/* The page of a position, for writing with neap_latent_put or neap_index_put at row position % 64. */
static inline uint8_t *neap_caches_latent_page(const neap_caches *c, int32_t layer, int32_t slot, int64_t position) {
    const neap_cache_layer *l = &c->layers[layer];
    return l->latents + (int64_t)neap_caches_table(c, slot)[position / NEAP_PAGE_ROWS] * l->latent_page_bytes;
}
static inline uint8_t *neap_caches_index_page(const neap_caches *c, int32_t layer, int32_t slot, int64_t position) {
    const neap_cache_layer *l = &c->layers[layer];
    return l->index_keys + (int64_t)neap_caches_table(c, slot)[position / NEAP_PAGE_ROWS] * l->index_page_bytes;
}
/* One cached row as F32 (tests, taps): r + dr values of the latent; d values of the index key. */
static inline void neap_caches_get_latent(const neap_caches *c, int32_t layer, int32_t slot, int64_t position,
                                          float *x) {
    neap_latent_get(&c->specs[layer].latent, neap_caches_latent_page(c, layer, slot, position),
                    position % NEAP_PAGE_ROWS, x);
}
static inline void neap_caches_get_index(const neap_caches *c, int32_t layer, int32_t slot, int64_t position,
                                         float *x) {
    neap_index_get(&c->specs[layer].index, neap_caches_index_page(c, layer, slot, position), position % NEAP_PAGE_ROWS,
                   x);
}

#endif
