/* Page pools, page tables and state slots: see caches.h. All memory is claimed at creation.
 *
 *   free list:  free_pages[0 .. n_free - 1], a stack; owner[free_pages[i]] = ~i says the same from the other side
 *   slot s:     tables[s][i] = page,  owner[page] = s,  generation[page] = table_generations[s][i]
 *   shared:     the first slot_shared[s] entries: the same but for the owner, which is another slot or nobody
 *
 * Both directions are compared wherever a page changes hands, so that a page in two places is found by the first
 * of them that is touched. The prefix cache opens and closes, layers read and write rows, the forward pass checks. */
#include "cache/caches.h"

#include <assert.h>
#include <string.h>

/* ---- sizes and creation ---- */

/* One array of the arena: n * size bytes, rounded up as the arena does. */
static bool add_array(uint64_t *sum, uint64_t n, uint64_t size) {
    uint64_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(bytes, 63, &bytes)) return false;
    return !__builtin_add_overflow(*sum, bytes & ~UINT64_C(63), sum);
}

static int64_t latent_bytes(const neap_cache_layer_spec *s) {
    return s->latent.r > 0 ? neap_latent_page_bytes(&s->latent) : 0;
}
static int64_t index_bytes(const neap_cache_layer_spec *s) {
    return s->index.d > 0 ? neap_index_page_bytes(&s->index) : 0;
}

bool neap_caches_bytes(const neap_cache_layer_spec *specs, int32_t n_layers, int32_t n_slots, int32_t n_pages,
                       int32_t slot_pages_max, neap_caches_size *size) {
    uint64_t slots = (uint64_t)n_slots, pages = (uint64_t)n_pages;
    *size = (neap_caches_size){0};
    bool ok = add_array(&size->books, (uint64_t)n_layers, sizeof(neap_cache_layer));
    for (int32_t i = 0; i < n_layers && ok; i++) {
        const neap_cache_layer_spec *s = &specs[i];
        uint64_t state, window;
        ok = !__builtin_mul_overflow((uint64_t)s->state_floats, sizeof(float), &state) &&
             !__builtin_mul_overflow((uint64_t)s->window_floats, sizeof(float), &window) &&
             add_array(&size->state, slots, state) && add_array(&size->state, slots, window) &&
             add_array(&size->pages, pages, (uint64_t)latent_bytes(s)) &&
             add_array(&size->pages, pages, (uint64_t)index_bytes(s));
    }
    for (int i = 0; i < 2 && ok; i++) /* tables, table_generations */
        ok = add_array(&size->books, slots * (uint64_t)slot_pages_max, sizeof(int32_t));
    for (int i = 0; i < 3 && ok; i++) /* slot_pages, slot_shared, slot_generation */
        ok = add_array(&size->books, slots, sizeof(int32_t));
    for (int i = 0; i < 4 && ok; i++) /* owner, references, generation, free_pages */
        ok = add_array(&size->books, pages, sizeof(int32_t));
    return ok;
}

static neap_status pool(neap_arena *a, int64_t n, uint64_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) return NEAP_OK;
    size_t total;
    NEAP_CHECK(neap_mul_size((size_t)n, (size_t)bytes, &total), NEAP_NO_MEMORY, "cache: size overflow");
    return neap_arena_alloc_raw(a, total, out);
}

static neap_status ints(neap_arena *a, int64_t n, int32_t value, void **out) {
    NEAP_TRY(neap_arena_array(a, (size_t)n, sizeof(int32_t), out));
    int32_t *p = *out;
    for (int64_t i = 0; i < n; i++) p[i] = value;
    return NEAP_OK;
}

static neap_status create_layer(neap_cache_layer *l, neap_arena *a, const neap_cache_layer_spec *s, int32_t n_slots,
                                int32_t n_pages) {
    void *p;
    l->latent_page_bytes = latent_bytes(s);
    l->index_page_bytes = index_bytes(s);
    NEAP_TRY(pool(a, n_slots, (uint64_t)s->state_floats * sizeof(float), &p));
    l->state = p;
    NEAP_TRY(pool(a, n_slots, (uint64_t)s->window_floats * sizeof(float), &p));
    l->window = p;
    NEAP_TRY(pool(a, n_pages, (uint64_t)l->latent_page_bytes, &p));
    l->latents = p;
    NEAP_TRY(pool(a, n_pages, (uint64_t)l->index_page_bytes, &p));
    l->index_keys = p;
    return NEAP_OK;
}

neap_status neap_caches_create(neap_caches *c, neap_arena *a, const neap_cache_layer_spec *specs, int32_t n_layers,
                               int32_t n_slots, int32_t n_pages, int32_t slot_pages_max) {
    *c = (neap_caches){
        .n_layers = n_layers, .n_slots = n_slots, .n_pages = n_pages, .slot_pages_max = slot_pages_max, .specs = specs};
    neap_caches_size size;
    NEAP_CHECK(neap_caches_bytes(specs, n_layers, n_slots, n_pages, slot_pages_max, &size), NEAP_NO_MEMORY,
               "cache: size overflow");
    void *p;
    NEAP_TRY(neap_arena_array(a, (size_t)n_layers, sizeof *c->layers, &p));
    c->layers = p;
    for (int32_t i = 0; i < n_layers; i++) NEAP_TRY(create_layer(&c->layers[i], a, &specs[i], n_slots, n_pages));
    NEAP_TRY(ints(a, (int64_t)n_slots * slot_pages_max, -1, &p));
    c->tables = p;
    NEAP_TRY(ints(a, (int64_t)n_slots * slot_pages_max, 0, &p));
    c->table_generations = p;
    NEAP_TRY(ints(a, n_slots, -1, &p));
    c->slot_pages = p;
    NEAP_TRY(ints(a, n_slots, 0, &p));
    c->slot_shared = p;
    NEAP_TRY(ints(a, n_slots, 0, &p));
    c->slot_generation = p;
    NEAP_TRY(ints(a, n_pages, 0, &p));
    c->owner = p;
    NEAP_TRY(ints(a, n_pages, 0, &p));
    c->references = p;
    NEAP_TRY(ints(a, n_pages, 0, &p));
    c->generation = p;
    NEAP_TRY(ints(a, n_pages, 0, &p));
    c->free_pages = p;
    /* The stack hands out low pages first. */
    for (int32_t i = 0; i < n_pages; i++) {
        c->free_pages[i] = n_pages - 1 - i;
        c->owner[n_pages - 1 - i] = ~i;
    }
    c->n_free = n_pages;
    return NEAP_OK;
}

/* ---- pages change hands ---- */

static bool is_open(const neap_caches *c, int32_t slot) {
    return slot >= 0 && slot < c->n_slots && c->slot_pages[slot] >= 0;
}

static bool is_free_entry(const neap_caches *c, int32_t i) {
    int32_t page = c->free_pages[i];
    return page >= 0 && page < c->n_pages && c->owner[page] == ~i && c->references[page] == 0;
}

static bool is_used_page(const neap_caches *c, int32_t page) {
    if (page < 0 || page >= c->n_pages || c->references[page] < 1) return false;
    return c->owner[page] >= 0 || c->owner[page] == NEAP_PAGE_UNOWNED;
}

static bool is_own_page(const neap_caches *c, int32_t slot, int64_t i) {
    int64_t at = (int64_t)slot * c->slot_pages_max + i;
    int32_t page = c->tables[at];
    return i >= c->slot_shared[slot] && is_used_page(c, page) && c->owner[page] == slot &&
           c->generation[page] == c->table_generations[at];
}

bool neap_caches_has_page(const neap_caches *c, int32_t slot, int64_t i) {
    if (i >= c->slot_shared[slot]) return is_own_page(c, slot, i);
    int64_t at = (int64_t)slot * c->slot_pages_max + i;
    int32_t page = c->tables[at];
    return is_used_page(c, page) && c->owner[page] != slot && c->generation[page] == c->table_generations[at];
}

/* With the test hook of base/arena.h on, whatever reads before it writes meets the pattern. */
static void poison_page(neap_caches *c, int64_t page) {
    int byte = neap_memory_poison_byte();
    if (byte < 0) return;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const neap_cache_layer *l = &c->layers[i];
        if (l->latents) memset(l->latents + page * l->latent_page_bytes, byte, (size_t)l->latent_page_bytes);
        if (l->index_keys) memset(l->index_keys + page * l->index_page_bytes, byte, (size_t)l->index_page_bytes);
    }
}

static void poison_state(neap_caches *c, int32_t slot) {
    int byte = neap_memory_poison_byte();
    if (byte < 0) return;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const neap_cache_layer_spec *s = &c->specs[i];
        const neap_cache_layer *l = &c->layers[i];
        if (l->state) memset(l->state + slot * s->state_floats, byte, (size_t)s->state_floats * sizeof(float));
        if (l->window) memset(l->window + slot * s->window_floats, byte, (size_t)s->window_floats * sizeof(float));
    }
}

static neap_status check_free(const neap_caches *c, int32_t n) {
    NEAP_CHECK(n <= c->n_free, NEAP_BUSY, "cache: %d pages needed, %d of %d are free", n, c->n_free, c->n_pages);
    for (int32_t i = c->n_free - n; i < c->n_free; i++)
        NEAP_CHECK(is_free_entry(c, i), NEAP_INTERNAL, "cache: free page %d is in use", c->free_pages[i]);
    return NEAP_OK;
}

/* The top of the free list, after check_free. */
static int32_t pop_page(neap_caches *c, int32_t owner) {
    int32_t page = c->free_pages[--c->n_free];
    c->owner[page] = owner;
    c->references[page] = 1;
    c->generation[page]++;
    poison_page(c, page);
    return page;
}

static void drop_reference(neap_caches *c, int32_t page) {
    if (--c->references[page] > 0) return;
    c->owner[page] = ~c->n_free;
    c->free_pages[c->n_free++] = page;
}

static int32_t pages_of(int64_t n_positions) {
    return (int32_t)(n_positions / NEAP_PAGE_ROWS + (n_positions % NEAP_PAGE_ROWS > 0));
}

static neap_status check_length(const neap_caches *c, int64_t n_positions) {
    NEAP_CHECK(n_positions >= 1 && n_positions <= (int64_t)c->slot_pages_max * NEAP_PAGE_ROWS, NEAP_CONTEXT_FULL,
               "sequence: %lld positions do not fit the context of %lld", (long long)n_positions,
               (long long)c->slot_pages_max * NEAP_PAGE_ROWS);
    return NEAP_OK;
}

static int32_t first_free_slot(const neap_caches *c) {
    int32_t s = 0;
    while (s < c->n_slots && c->slot_pages[s] >= 0) s++;
    return s;
}

neap_status neap_caches_need(const neap_caches *c, int64_t n_positions, int32_t *n_pages) {
    *n_pages = 0;
    NEAP_TRY(check_length(c, n_positions));
    NEAP_CHECK(first_free_slot(c) < c->n_slots, NEAP_BUSY, "all %d sequences are in use", c->n_slots);
    *n_pages = pages_of(n_positions);
    return NEAP_OK;
}

/* Entries [first, end) of a table from the free list, after check_free. */
static void give_pages(neap_caches *c, int32_t slot, int32_t first, int32_t end) {
    int64_t at = (int64_t)slot * c->slot_pages_max;
    for (int64_t i = at + first; i < at + end; i++) {
        c->tables[i] = pop_page(c, slot);
        c->table_generations[i] = c->generation[c->tables[i]];
    }
    c->slot_pages[slot] = end;
}

neap_status neap_caches_open_shared(neap_caches *c, int64_t n_positions, const int32_t *shared, int32_t n_shared,
                                    int32_t *slot) {
    *slot = -1;
    int32_t need;
    NEAP_TRY(neap_caches_need(c, n_positions, &need));
    NEAP_CHECK(n_shared >= 0 && n_shared <= need, NEAP_INTERNAL, "cache: %d shared pages of %d", n_shared, need);
    for (int32_t i = 0; i < n_shared; i++)
        NEAP_CHECK(is_used_page(c, shared[i]), NEAP_INTERNAL, "cache: shared page %d is not in use", shared[i]);
    NEAP_TRY(check_free(c, need - n_shared));
    int32_t s = first_free_slot(c);
    int64_t at = (int64_t)s * c->slot_pages_max;
    for (int32_t i = 0; i < n_shared; i++) {
        c->references[shared[i]]++;
        c->tables[at + i] = shared[i];
        c->table_generations[at + i] = c->generation[shared[i]];
    }
    c->slot_shared[s] = n_shared;
    give_pages(c, s, n_shared, need);
    c->slot_generation[s]++;
    poison_state(c, s);
    *slot = s;
    return NEAP_OK;
}

neap_status neap_caches_open(neap_caches *c, int64_t n_positions, int32_t *slot) {
    return neap_caches_open_shared(c, n_positions, NULL, 0, slot);
}

neap_status neap_caches_extend(neap_caches *c, int32_t slot, int64_t n_positions) {
    NEAP_CHECK(is_open(c, slot), NEAP_INTERNAL, "cache: slot %d is extended but not open", slot);
    NEAP_TRY(check_length(c, n_positions));
    int32_t have = c->slot_pages[slot], need = pages_of(n_positions);
    if (need <= have) return NEAP_OK;
    NEAP_TRY(check_free(c, need - have));
    give_pages(c, slot, have, need);
    return NEAP_OK;
}

neap_status neap_caches_close(neap_caches *c, int32_t slot) {
    NEAP_CHECK(is_open(c, slot), NEAP_INTERNAL, "cache: slot %d is closed but not open", slot);
    neap_status status = NEAP_OK;
    int32_t *table = c->tables + (int64_t)slot * c->slot_pages_max;
    for (int32_t i = c->slot_pages[slot] - 1; i >= 0; i--) {
        int32_t page = table[i];
        if (neap_caches_has_page(c, slot, i) && c->n_free < c->n_pages) {
            if (c->owner[page] == slot) c->owner[page] = NEAP_PAGE_UNOWNED;
            drop_reference(c, page);
        } else {
            status = neap_fail(NEAP_INTERNAL, "cache: page %d is not slot %d's", page, slot);
        }
        table[i] = -1;
    }
    c->slot_pages[slot] = -1;
    c->slot_shared[slot] = 0;
    return status;
}

neap_status neap_caches_take_page(neap_caches *c, int32_t *page) {
    *page = -1;
    NEAP_TRY(check_free(c, 1));
    *page = pop_page(c, NEAP_PAGE_UNOWNED);
    c->n_outside++;
    return NEAP_OK;
}

void neap_caches_retain_page(neap_caches *c, int32_t page) {
    assert(is_used_page(c, page));
    c->references[page]++;
    c->n_outside++;
}

void neap_caches_release_page(neap_caches *c, int32_t page) {
    assert(is_used_page(c, page) && c->n_outside > 0);
    c->n_outside--;
    drop_reference(c, page);
}

/* ---- bytes ---- */

uint64_t neap_caches_page_bytes(const neap_caches *c) {
    uint64_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++)
        n += (uint64_t)c->layers[i].latent_page_bytes + (uint64_t)c->layers[i].index_page_bytes;
    return n;
}

uint64_t neap_caches_state_bytes(const neap_caches *c) {
    uint64_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++)
        n += (uint64_t)(c->specs[i].state_floats + c->specs[i].window_floats) * sizeof(float);
    return n;
}

/* Up to two pieces of a layer, in the order of all copies: latents and index keys of a page. */
static void page_pieces(const neap_caches *c, int32_t layer, int64_t page, void *at[2], size_t bytes[2]) {
    const neap_cache_layer *l = &c->layers[layer];
    bytes[0] = (size_t)l->latent_page_bytes;
    bytes[1] = (size_t)l->index_page_bytes;
    at[0] = l->latents ? l->latents + page * l->latent_page_bytes : NULL;
    at[1] = l->index_keys ? l->index_keys + page * l->index_page_bytes : NULL;
}

/* The same of a slot: state and window. */
static void state_pieces(const neap_caches *c, int32_t layer, int64_t slot, void *at[2], size_t bytes[2]) {
    const neap_cache_layer *l = &c->layers[layer];
    const neap_cache_layer_spec *s = &c->specs[layer];
    bytes[0] = (size_t)s->state_floats * sizeof(float);
    bytes[1] = (size_t)s->window_floats * sizeof(float);
    at[0] = l->state ? l->state + slot * s->state_floats : NULL;
    at[1] = l->window ? l->window + slot * s->window_floats : NULL;
}

/* Pieces to bytes in a row, and back; return where the next ones go. */
static uint8_t *take_out(void *const at[2], const size_t bytes[2], uint8_t *out) {
    for (int k = 0; k < 2; k++) {
        if (bytes[k] > 0) memcpy(out, at[k], bytes[k]);
        out += bytes[k];
    }
    return out;
}

static const uint8_t *put_in(void *const at[2], const size_t bytes[2], const uint8_t *in) {
    for (int k = 0; k < 2; k++) {
        if (bytes[k] > 0) memcpy(at[k], in, bytes[k]);
        in += bytes[k];
    }
    return in;
}

void neap_caches_page_read(const neap_caches *c, int32_t page, uint8_t *out) {
    assert(page >= 0 && page < c->n_pages);
    for (int32_t i = 0; i < c->n_layers; i++) {
        void *at[2];
        size_t bytes[2];
        page_pieces(c, i, page, at, bytes);
        out = take_out(at, bytes, out);
    }
}

void neap_caches_page_write(neap_caches *c, int32_t page, const uint8_t *in) {
    assert(page >= 0 && page < c->n_pages);
    for (int32_t i = 0; i < c->n_layers; i++) {
        void *at[2];
        size_t bytes[2];
        page_pieces(c, i, page, at, bytes);
        in = put_in(at, bytes, in);
    }
}

void neap_caches_page_copy(neap_caches *c, int32_t to, int32_t from) {
    assert(to >= 0 && to < c->n_pages && from >= 0 && from < c->n_pages && to != from);
    for (int32_t i = 0; i < c->n_layers; i++) {
        void *source[2], *target[2];
        size_t bytes[2];
        page_pieces(c, i, from, source, bytes);
        page_pieces(c, i, to, target, bytes);
        for (int k = 0; k < 2; k++)
            if (bytes[k]) memcpy(target[k], source[k], bytes[k]);
    }
}

void neap_caches_state_save(const neap_caches *c, int32_t slot, uint8_t *out) {
    assert(is_open(c, slot));
    for (int32_t i = 0; i < c->n_layers; i++) {
        void *at[2];
        size_t bytes[2];
        state_pieces(c, i, slot, at, bytes);
        out = take_out(at, bytes, out);
    }
}

void neap_caches_state_load(neap_caches *c, int32_t slot, const uint8_t *in) {
    assert(is_open(c, slot));
    for (int32_t i = 0; i < c->n_layers; i++) {
        void *at[2];
        size_t bytes[2];
        state_pieces(c, i, slot, at, bytes);
        in = put_in(at, bytes, in);
    }
}

/* ---- checks ---- */

neap_status neap_caches_check(const neap_caches *c, int32_t slot) {
    NEAP_CHECK(is_open(c, slot), NEAP_INTERNAL, "cache: slot %d is not open", slot);
    for (int64_t i = 0; i < c->slot_pages[slot]; i++)
        NEAP_CHECK(neap_caches_has_page(c, slot, i), NEAP_INTERNAL, "cache: page %lld of slot %d is not its own",
                   (long long)i, slot);
    return NEAP_OK;
}

neap_status neap_caches_check_span(const neap_caches *c, int32_t slot, int64_t first, int64_t n) {
    NEAP_CHECK(is_open(c, slot), NEAP_INTERNAL, "cache: slot %d is not open", slot);
    int64_t rows = (int64_t)c->slot_pages[slot] * NEAP_PAGE_ROWS;
    NEAP_CHECK(first >= 0 && n >= 1 && first < rows && n <= rows - first, NEAP_INTERNAL,
               "cache: positions %lld + %lld lie outside the %lld of slot %d", (long long)first, (long long)n,
               (long long)rows, slot);
    for (int64_t i = first / NEAP_PAGE_ROWS; i <= (first + n - 1) / NEAP_PAGE_ROWS; i++)
        NEAP_CHECK(is_own_page(c, slot, i), NEAP_INTERNAL, "cache: page %lld of slot %d is not its own", (long long)i,
                   slot);
    return NEAP_OK;
}

/* How many entries of open slots name the page, and whether its owner is among them. */
static int64_t count_entries(const neap_caches *c, int32_t page, bool *owner_has_it) {
    int64_t n = 0;
    *owner_has_it = false;
    for (int32_t s = 0; s < c->n_slots; s++)
        for (int64_t i = 0; i < c->slot_pages[s]; i++) {
            if (neap_caches_table(c, s)[i] != page) continue;
            n++;
            if (i >= c->slot_shared[s] && c->owner[page] == s) *owner_has_it = true;
        }
    return n;
}

neap_status neap_caches_audit(const neap_caches *c) {
    NEAP_CHECK(c->n_free >= 0 && c->n_free <= c->n_pages, NEAP_INTERNAL, "cache: %d free pages", c->n_free);
    for (int32_t i = 0; i < c->n_free; i++)
        NEAP_CHECK(is_free_entry(c, i), NEAP_INTERNAL, "cache: free page %d is in use", c->free_pages[i]);
    for (int32_t s = 0; s < c->n_slots; s++) {
        if (c->slot_pages[s] < 0) continue;
        NEAP_TRY(neap_caches_check(c, s));
        for (int32_t i = 1; i < c->slot_pages[s]; i++)
            for (int32_t j = 0; j < i; j++)
                NEAP_CHECK(neap_caches_table(c, s)[i] != neap_caches_table(c, s)[j], NEAP_INTERNAL,
                           "cache: slot %d has page %d twice", s, neap_caches_table(c, s)[i]);
    }
    int64_t n_used = 0, outside = 0;
    for (int32_t page = 0; page < c->n_pages; page++) {
        if (c->references[page] == 0) continue;
        bool owner_has_it;
        int64_t n = count_entries(c, page, &owner_has_it);
        NEAP_CHECK(is_used_page(c, page) && n <= c->references[page], NEAP_INTERNAL,
                   "cache: page %d has %d references, %lld of slots", page, c->references[page], (long long)n);
        NEAP_CHECK(c->owner[page] < 0 || owner_has_it, NEAP_INTERNAL, "cache: page %d is lost", page);
        n_used++;
        outside += c->references[page] - n;
    }
    NEAP_CHECK(n_used + c->n_free == c->n_pages && outside == c->n_outside, NEAP_INTERNAL, "cache: %lld pages are lost",
               (long long)(c->n_pages - n_used - c->n_free));
    return NEAP_OK;
}
