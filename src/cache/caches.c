/* Page pools, page tables and state slots: see caches.h. All memory is claimed at creation. */
#include "cache/caches.h"

#include <assert.h>

static bool add_product(uint64_t *sum, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t p;
    return !__builtin_mul_overflow(a, b, &p) && !__builtin_mul_overflow(p, c, &p) &&
           !__builtin_mul_overflow(p, sizeof(float), &p) && !__builtin_add_overflow(*sum, p, sum);
}

bool neap_caches_bytes(const neap_cache_layer_spec *specs, int32_t n_layers, int32_t n_slots, int32_t n_pages,
                       uint64_t *state_bytes, uint64_t *page_bytes) {
    *state_bytes = *page_bytes = 0;
    for (int32_t i = 0; i < n_layers; i++) {
        const neap_cache_layer_spec *s = &specs[i];
        if (!add_product(state_bytes, (uint64_t)n_slots, (uint64_t)(s->state_floats + s->window_floats), 1) ||
            !add_product(page_bytes, (uint64_t)n_pages, (uint64_t)s->row_floats + (uint64_t)s->index_floats,
                         NEAP_PAGE_ROWS))
            return false;
    }
    return true;
}

static neap_status pool(neap_arena *a, int64_t n, int64_t floats, float **out) {
    *out = NULL;
    if (floats == 0) return NEAP_OK;
    size_t count;
    void *p;
    NEAP_CHECK(neap_mul_size((size_t)n, (size_t)floats, &count), NEAP_NO_MEMORY, "cache: size overflow");
    NEAP_TRY(neap_arena_array(a, count, sizeof(float), &p));
    *out = p;
    return NEAP_OK;
}

static neap_status ints(neap_arena *a, int64_t n, int32_t value, int32_t **out) {
    void *p;
    NEAP_TRY(neap_arena_array(a, (size_t)n, sizeof(int32_t), &p));
    *out = p;
    for (int64_t i = 0; i < n; i++) (*out)[i] = value;
    return NEAP_OK;
}

neap_status neap_caches_create(neap_caches *c, neap_arena *a, const neap_cache_layer_spec *specs, int32_t n_layers,
                               int32_t n_slots, int32_t n_pages, int32_t slot_pages_max) {
    *c = (neap_caches){
        .n_layers = n_layers, .n_slots = n_slots, .n_pages = n_pages, .slot_pages_max = slot_pages_max, .specs = specs};
    void *p;
    NEAP_TRY(neap_arena_array(a, (size_t)n_layers, sizeof *c->layers, &p));
    c->layers = p;
    for (int32_t i = 0; i < n_layers; i++) {
        neap_cache_layer *l = &c->layers[i];
        NEAP_TRY(pool(a, n_slots, specs[i].state_floats, &l->state));
        NEAP_TRY(pool(a, n_slots, specs[i].window_floats, &l->window));
        NEAP_TRY(pool(a, (int64_t)n_pages * NEAP_PAGE_ROWS, specs[i].row_floats, &l->rows));
        NEAP_TRY(pool(a, (int64_t)n_pages * NEAP_PAGE_ROWS, specs[i].index_floats, &l->index_rows));
    }
    NEAP_TRY(ints(a, (int64_t)n_slots * slot_pages_max, -1, &c->tables));
    NEAP_TRY(ints(a, n_slots, -1, &c->slot_pages));
    NEAP_TRY(ints(a, n_pages, -1, &c->owner));
    NEAP_TRY(ints(a, n_pages, 0, &c->free_pages));
    /* The stack hands out low pages first. */
    for (int32_t i = 0; i < n_pages; i++) c->free_pages[i] = n_pages - 1 - i;
    c->n_free = n_pages;
    return NEAP_OK;
}

neap_status neap_caches_open(neap_caches *c, int64_t n_positions, int32_t *slot) {
    *slot = -1;
    int64_t need = (n_positions + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS;
    NEAP_CHECK(n_positions >= 1 && need <= c->slot_pages_max, NEAP_CONTEXT_FULL,
               "sequence: %lld positions do not fit the context of %lld", (long long)n_positions,
               (long long)c->slot_pages_max * NEAP_PAGE_ROWS);
    int32_t s = 0;
    while (s < c->n_slots && c->slot_pages[s] >= 0) s++;
    NEAP_CHECK(s < c->n_slots, NEAP_BUSY, "all %d sequences are in use", c->n_slots);
    NEAP_CHECK(need <= c->n_free, NEAP_BUSY, "cache: %lld pages needed, %d of %d are free", (long long)need, c->n_free,
               c->n_pages);
    int32_t *table = c->tables + (int64_t)s * c->slot_pages_max;
    for (int64_t i = 0; i < need; i++) {
        int32_t page = c->free_pages[--c->n_free];
        assert(c->owner[page] == -1);
        c->owner[page] = s;
        table[i] = page;
    }
    c->slot_pages[s] = (int32_t)need;
    *slot = s;
    return NEAP_OK;
}

void neap_caches_close(neap_caches *c, int32_t slot) {
    assert(slot >= 0 && slot < c->n_slots);
    assert(c->slot_pages[slot] >= 0);
    int32_t *table = c->tables + (int64_t)slot * c->slot_pages_max;
    for (int32_t i = c->slot_pages[slot] - 1; i >= 0; i--) {
        int32_t page = table[i];
        assert(c->owner[page] == slot);
        c->owner[page] = -1;
        table[i] = -1;
        c->free_pages[c->n_free++] = page;
    }
    c->slot_pages[slot] = -1;
}
