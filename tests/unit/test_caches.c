/* Page pools and slots: announced sizes, ownership and generations, sharing, refusal without side effects, reuse,
 * neighbours, poison; and arenas: alignment, counting, failure injection. Case A7; engine state F1, F8, F10. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cache/caches.h"

static const neap_cache_layer_spec SPECS[] = {
    {.state_floats = 100, .window_floats = 12},
    {.latent = {NEAP_ROWS_FP8, 72, 8}, .index = {NEAP_ROWS_MXFP8, 32}},
    {.latent = {NEAP_ROWS_BF16, 72, 8}, .index = {NEAP_ROWS_BF16, 32}},
    {.latent = {NEAP_ROWS_F32, 72, 0}, .index = {NEAP_ROWS_F32, 32}},
    {.latent = {NEAP_ROWS_FP8, 72, 8}},
};
enum { N_LAYERS = 5 };

static neap_caches make(neap_arena **a, int32_t slots, int32_t pages, int32_t slot_pages) {
    neap_caches c;
    assert_int_equal(neap_arena_create(a, "test"), NEAP_OK);
    assert_int_equal(neap_caches_create(&c, *a, SPECS, N_LAYERS, slots, pages, slot_pages), NEAP_OK);
    return c;
}

static void pools_have_the_announced_size(void **state) {
    (void)state;
    static const int32_t sizes[][3] = {{5, 7, 3}, {1, 1, 1}, {16, 300, 64}, {3, 16, 16}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int32_t *n = sizes[i];
        neap_caches_size size;
        assert_true(neap_caches_bytes(SPECS, N_LAYERS, n[0], n[1], n[2], &size));
        neap_arena *a;
        void *p;
        assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
        assert_int_equal(neap_arena_alloc(a, 64, &p), NEAP_OK);
        uint64_t gap = neap_arena_bytes(a) - 64, before = neap_arena_bytes(a), calls = neap_alloc_calls();
        neap_caches c;
        assert_int_equal(neap_caches_create(&c, a, SPECS, N_LAYERS, n[0], n[1], n[2]), NEAP_OK);
        calls = neap_alloc_calls() - calls; /* (under a sanitizer a gap follows each block) */
        uint64_t blocks = neap_arena_bytes(a) - before - gap * calls;
        assert_int_equal(blocks, size.state + size.pages + size.books);
        neap_arena_destroy(a);
    }
    neap_caches_size size;
    assert_true(neap_caches_bytes(SPECS, N_LAYERS, 16, 7, 3, &size));
    assert_int_equal(size.state, 16 * 112 * 4);
    /* per row: 80 + one scale per part + 3 bits for each of 8, 32 + 1; 160, 64; 288, 128; as the first */
    assert_int_equal(size.pages, 7 * 64 * (91 + 33 + 160 + 64 + 288 + 128 + 91));
    neap_cache_layer_spec huge = {.latent = {NEAP_ROWS_F32, INT32_MAX, INT32_MAX}};
    neap_cache_layer_spec many[2] = {huge, {.state_floats = INT64_MAX / 2}};
    assert_false(neap_caches_bytes(many, 2, INT32_MAX, INT32_MAX, 1, &size));
    assert_false(neap_caches_bytes(many, 1, 1, INT32_MAX, 1, &size));
    neap_arena *a;
    neap_caches c;
    assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
    assert_int_equal(neap_caches_create(&c, a, many, 2, INT32_MAX, INT32_MAX, 1), NEAP_NO_MEMORY);
    neap_arena_destroy(a);
}

static void pages_have_one_owner(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 10, 6);
    int32_t s0, s1, s2, none;
    assert_int_equal(neap_caches_open(&c, 64 * 4, &s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 64 * 4 + 1, &s1), NEAP_OK);
    assert_int_equal(c.n_free, 1);
    assert_int_equal(neap_caches_open(&c, 65, &none), NEAP_BUSY); /* two pages wanted, one free */
    assert_int_equal(none, -1);
    assert_int_equal(c.n_free, 1);
    assert_int_equal(neap_caches_open(&c, 64, &s2), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 1, &none), NEAP_BUSY); /* no slot */
    int seen[10] = {0};
    for (int32_t s = 0; s < 3; s++)
        for (int32_t i = 0; i < c.slot_pages[s]; i++) seen[neap_caches_table(&c, s)[i]]++;
    for (int i = 0; i < 10; i++) assert_int_equal(seen[i], 1);
    assert_int_equal(neap_caches_close(&c, s1), NEAP_OK);
    assert_int_equal(c.n_free, 5);
    assert_int_equal(neap_caches_open(&c, 64 * 6 + 1, &none), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_caches_open(&c, 0, &none), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_caches_open(&c, 300, &s1), NEAP_OK);
    neap_arena_destroy(a);
}

static void random_opens_and_closes_keep_books(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 8, 40, 12);
    int open[8] = {0};
    srand(7);
    for (int i = 0; i < 20000; i++) {
        int32_t s;
        if (rand() % 2 && neap_caches_open(&c, 1 + rand() % (64 * 12), &s) == NEAP_OK) {
            assert_false(open[s]);
            open[s] = 1;
        } else {
            s = rand() % 8;
            if (!open[s]) continue;
            assert_int_equal(neap_caches_close(&c, s), NEAP_OK);
            open[s] = 0;
        }
        int32_t owned = 0;
        for (int32_t p = 0; p < 40; p++) owned += c.owner[p] >= 0;
        assert_int_equal(owned + c.n_free, 40);
        assert_int_equal(neap_caches_audit(&c), NEAP_OK);
        for (s = 0; s < 8; s++) assert_int_equal(neap_caches_check(&c, s), open[s] ? NEAP_OK : NEAP_INTERNAL);
    }
    neap_arena_destroy(a);
}

static void rows_follow_the_page_table(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 2, 8, 4);
    int32_t s0, s1, s2;
    assert_int_equal(neap_caches_open(&c, 64, &s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 64, &s1), NEAP_OK);
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 200, &s2), NEAP_OK); /* pages 0, 2, 3, 4 */
    for (int32_t layer = 1; layer < N_LAYERS; layer++) {
        const neap_cache_layer *l = &c.layers[layer];
        for (int64_t p = 0; p < 200; p++) {
            int64_t page = neap_caches_table(&c, s2)[p / 64];
            assert_int_equal(c.owner[page], s2);
            neap_pages rows = neap_caches_latents(&c, layer, s2), keys = neap_caches_index_keys(&c, layer, s2);
            assert_ptr_equal(neap_pages_at(&rows, p), l->latents + page * l->latent_page_bytes);
            assert_ptr_equal(neap_caches_latent_page(&c, layer, s2, p), neap_pages_at(&rows, p));
            assert_int_equal((uintptr_t)neap_pages_at(&rows, p) % 64, 0);
            if (!c.specs[layer].index.d) continue;
            assert_ptr_equal(neap_pages_at(&keys, p), l->index_keys + page * l->index_page_bytes);
            assert_ptr_equal(neap_caches_index_page(&c, layer, s2, p), neap_pages_at(&keys, p));
            assert_int_equal((uintptr_t)neap_pages_at(&keys, p) % 64, 0);
        }
    }
    assert_null(c.layers[0].latents);
    assert_null(c.layers[4].index_keys);
    neap_arena_destroy(a);
}

/* F10: pools larger than 4 GiB (only the places are computed; the pool is an address). */
static void far_pages_have_64_bit_places(void **state) {
    (void)state;
    static const neap_cache_layer_spec spec = {.latent = {NEAP_ROWS_FP8, 15749, 0}, .index = {NEAP_ROWS_F32, 100000}};
    int32_t table[] = {-1, -1, 2066, 2000000000}; /* slot 1 */
    uint8_t byte;
    neap_cache_layer layer = {.latents = &byte,
                              .index_keys = &byte,
                              .latent_page_bytes = neap_latent_page_bytes(&spec.latent),
                              .index_page_bytes = neap_index_page_bytes(&spec.index)};
    neap_caches c = {
        .n_layers = 1, .n_slots = 2, .slot_pages_max = 2, .specs = &spec, .layers = &layer, .tables = table};
    uintptr_t base = (uintptr_t)&byte;
    neap_pages rows = neap_caches_latents(&c, 0, 1), keys = neap_caches_index_keys(&c, 0, 1);
    assert_true((uintptr_t)neap_pages_at(&rows, 63) - base == UINT64_C(2147978880));
    assert_true((uintptr_t)neap_pages_at(&rows, 64) - base == UINT64_C(2079360000000000));
    assert_true((uintptr_t)neap_pages_at(&keys, 127) - base == UINT64_C(51200000000000000));
    assert_true((uintptr_t)neap_caches_latent_page(&c, 0, 1, 64) - base == UINT64_C(2079360000000000));
    assert_true((uintptr_t)neap_caches_index_page(&c, 0, 1, 64) - base == UINT64_C(51200000000000000));
}

/* A7: what a sequence writes for 50 steps leaves the state, window, rows and keys of its neighbours as
 * they were, byte for byte, in every format. */
static void neighbours_keep_every_byte(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 12, 4);
    int32_t s[3];
    for (int i = 0; i < 3; i++) assert_int_equal(neap_caches_open(&c, 100, &s[i]), NEAP_OK);
    for (int32_t layer = 0; layer < N_LAYERS; layer++) {
        const neap_cache_layer_spec *spec = &SPECS[layer];
        neap_cache_layer *l = &c.layers[layer];
        const struct {
            uint8_t *data;
            int64_t count, bytes;
            bool has_pages;
        } pools[] = {
            {(uint8_t *)l->state, 3, spec->state_floats * 4, false},
            {(uint8_t *)l->window, 3, spec->window_floats * 4, false},
            {l->latents, 12, l->latent_page_bytes, true},
            {l->index_keys, 12, l->index_page_bytes, true},
        };
        for (size_t i = 0; i < 4; i++)
            if (pools[i].data) memset(pools[i].data, 0x5a, (size_t)(pools[i].count * pools[i].bytes));
        for (int64_t p = 30; p < 80; p++) { /* over a page border */
            float x[80];
            for (int i = 0; i < 80; i++) x[i] = (float)(i - 40) * 0.37f + (float)p;
            for (int64_t i = 0; i < spec->state_floats; i++) l->state[s[1] * spec->state_floats + i] = x[0];
            for (int64_t i = 0; i < spec->window_floats; i++) l->window[s[1] * spec->window_floats + i] = x[0];
            if (l->latents) neap_latent_put(&spec->latent, neap_caches_latent_page(&c, layer, s[1], p), p % 64, x);
            if (l->index_keys) neap_index_put(&spec->index, neap_caches_index_page(&c, layer, s[1], p), p % 64, x);
        }
        for (size_t i = 0; i < 4; i++)
            for (int64_t b = 0; pools[i].data && b < pools[i].count * pools[i].bytes; b++) {
                int64_t n = b / pools[i].bytes;
                if (pools[i].has_pages ? c.owner[n] == s[1] : n == s[1]) continue;
                if (pools[i].data[b] != 0x5a) fail_msg("layer %d, pool %zu, byte %lld", layer, i, (long long)b);
            }
        float x[80] = {0};
        if (l->latents) neap_caches_get_latent(&c, layer, s[1], 79, x);
        if (l->latents) assert_true(fabsf(x[40] - 79) < 5);
        if (l->index_keys) neap_caches_get_index(&c, layer, s[1], 30, x);
        if (l->index_keys) assert_true(x[0] > 14 && x[0] < 16);
    }
    neap_arena_destroy(a);
}

/* ---- tags ---- */

/* A slot that still holds the table of an earlier sequence, or an entry of another slot, is found before it is
 * used: the whole slot, and the pages of a step. */
static void stale_and_foreign_pages_are_found(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 12, 4);
    int32_t s0, s1;
    assert_int_equal(neap_caches_open(&c, 200, &s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 200, &s1), NEAP_OK);
    int32_t *t0 = c.tables + s0 * 4, *t1 = c.tables + s1 * 4;
    assert_int_equal(neap_caches_check_span(&c, s0, 0, 256), NEAP_OK);
    assert_int_equal(neap_caches_check_span(&c, s0, 0, 257), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s0, 256, 1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s0, -1, 1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s0, 1, INT64_MAX), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s0, 5, 0), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, 2, 0, 1), NEAP_INTERNAL); /* not open */
    assert_int_equal(neap_caches_check(&c, -1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check(&c, 3), NEAP_INTERNAL);

    const int32_t wrong[] = {t1[2], c.free_pages[0], -1, 12, INT32_MAX, INT32_MIN}; /* foreign, free, none, outside */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int32_t right = t0[2];
        t0[2] = wrong[i];
        assert_int_equal(neap_caches_check(&c, s0), NEAP_INTERNAL);
        assert_non_null(strstr(neap_last_error(), "page 2 of slot 0"));
        assert_int_equal(neap_caches_check_span(&c, s0, 191, 1), NEAP_INTERNAL);
        assert_int_equal(neap_caches_check_span(&c, s0, 127, 2), NEAP_INTERNAL);
        assert_int_equal(neap_caches_check_span(&c, s0, 0, 128), NEAP_OK); /* the other pages are fine */
        assert_int_equal(neap_caches_check_span(&c, s0, 192, 64), NEAP_OK);
        assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
        t0[2] = right;
    }
    t0[2] = t0[1]; /* its own page, twice */
    c.table_generations[s0 * 4 + 2] = c.table_generations[s0 * 4 + 1];
    assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
    neap_arena_destroy(a);

    /* The page went to somebody else and came back to the same slot: owner and place agree, only its generation
     * tells. */
    c = make(&a, 1, 4, 4);
    assert_int_equal(neap_caches_open(&c, 200, &s0), NEAP_OK);
    uint32_t old[4], opened = c.slot_generation[s0];
    memcpy(old, c.table_generations, sizeof old);
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 200, &s1), NEAP_OK);
    assert_int_equal(s1, s0);
    assert_true(c.slot_generation[s1] == opened + 1);
    assert_int_equal(neap_caches_check(&c, s1), NEAP_OK);
    memcpy(c.table_generations, old, sizeof old);
    assert_int_equal(neap_caches_check(&c, s1), NEAP_INTERNAL);
    /* Closing such a slot gives nothing back, and says so. */
    assert_int_equal(neap_caches_close(&c, s1), NEAP_INTERNAL);
    assert_int_equal(c.n_free, 0);
    assert_int_equal(neap_caches_open(&c, 1, &s1), NEAP_BUSY);
    assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
    neap_arena_destroy(a);
}

/* A page that is in the free list twice, or in it while in use, is not handed out. */
static void double_frees_are_found(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 8, 4);
    int32_t s0, s1;
    assert_int_equal(neap_caches_open(&c, 100, &s0), NEAP_OK);
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(neap_caches_close(&c, s0), NEAP_INTERNAL); /* again */
    assert_int_equal(neap_caches_close(&c, 3), NEAP_INTERNAL);
    assert_int_equal(neap_caches_close(&c, -1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    assert_int_equal(c.n_free, 8);

    const int32_t top = c.n_free - 1, right = c.free_pages[top];
    const int32_t wrong[] = {c.free_pages[top - 1], c.free_pages[0], -1, 8, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        c.free_pages[top] = wrong[i];
        for (int64_t n = 1; n <= 256; n += 85) {
            assert_int_equal(neap_caches_open(&c, n, &s0), NEAP_INTERNAL);
            assert_int_equal(s0, -1);
            assert_int_equal(c.n_free, 8); /* nothing was taken */
            for (int s = 0; s < 3; s++) assert_int_equal(c.slot_pages[s], -1);
        }
        assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
        c.free_pages[top] = right;
    }
    assert_int_equal(neap_caches_open(&c, 256, &s0), NEAP_OK);
    /* In use and in the list: the slot that owns it is not disturbed, the next one does not get it. */
    c.free_pages[c.n_free - 1] = neap_caches_table(&c, s0)[0];
    assert_int_equal(neap_caches_open(&c, 1, &s1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check(&c, s0), NEAP_OK);
    /* Closing it must not put that page in a second time unseen. */
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
    neap_arena_destroy(a);
}

/* ---- sharing ---- */

/* The first pages of a slot may be another's: nobody but the owner writes them, and they live as long as anyone. */
static void shared_pages_are_counted_and_not_written(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 8, 5);
    int32_t s0, s1, s2;
    assert_int_equal(neap_caches_open(&c, 200, &s0), NEAP_OK); /* 4 pages */
    int32_t first[2] = {neap_caches_table(&c, s0)[0], neap_caches_table(&c, s0)[1]};
    assert_int_equal(neap_caches_open_shared(&c, 200, first, 2, &s1), NEAP_OK);
    assert_int_equal(c.n_free, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(neap_caches_table(&c, s1)[i], first[i]);
        assert_int_equal(c.references[first[i]], 2);
        assert_int_equal(c.owner[first[i]], s0);
    }
    assert_int_equal(neap_caches_check_span(&c, s0, 0, 200), NEAP_OK); /* its owner goes on */
    assert_int_equal(neap_caches_check_span(&c, s1, 127, 1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s1, 100, 100), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s1, 128, 72), NEAP_OK);
    assert_int_equal(neap_caches_check(&c, s1), NEAP_OK);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);

    neap_caches_retain_page(&c, first[0]); /* a tree */
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(c.n_free, 4);
    assert_int_equal(c.owner[first[0]], NEAP_PAGE_UNOWNED);
    assert_int_equal(neap_caches_check(&c, s1), NEAP_OK);
    assert_int_equal(neap_caches_check_span(&c, s1, 0, 1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    assert_int_equal(neap_caches_open_shared(&c, 64, first, 1, &s2), NEAP_OK); /* nothing of its own */
    assert_int_equal(c.n_free, 4);
    assert_int_equal(neap_caches_close(&c, s1), NEAP_OK);
    assert_int_equal(c.n_free, 7);
    assert_int_equal(c.references[first[0]], 2);
    assert_int_equal(neap_caches_close(&c, s2), NEAP_OK);
    assert_int_equal(c.n_free, 7);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    neap_caches_release_page(&c, first[0]);
    assert_int_equal(c.n_free, 8);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);

    /* refused, and nothing taken: a free page, one outside, more than there are, no room for the rest */
    assert_int_equal(neap_caches_open(&c, 200, &s0), NEAP_OK);
    const int32_t wrong[] = {c.free_pages[0], -1, 8};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(neap_caches_open_shared(&c, 100, &wrong[i], 1, &s1), NEAP_INTERNAL);
        assert_int_equal(s1, -1);
    }
    int32_t page = neap_caches_table(&c, s0)[0];
    assert_int_equal(neap_caches_open_shared(&c, 60, (int32_t[]){page, page}, 2, &s1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_open(&c, 200, &s2), NEAP_OK);
    assert_int_equal(neap_caches_open_shared(&c, 65, &page, 1, &s1), NEAP_BUSY);
    assert_int_equal(c.references[page], 1);
    assert_int_equal(neap_caches_open_shared(&c, 64, &page, 1, &s1), NEAP_OK);
    int32_t need;
    assert_int_equal(neap_caches_need(&c, 64, &need), NEAP_BUSY); /* no slot */
    assert_int_equal(neap_caches_close(&c, s1), NEAP_OK);
    assert_int_equal(neap_caches_need(&c, 65, &need), NEAP_OK);
    assert_int_equal(need, 2);
    assert_int_equal(neap_caches_need(&c, 321, &need), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    neap_arena_destroy(a);
}

/* A shared page that went to somebody else: the place is right, the generation is not. */
static void stale_shared_pages_are_found(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 3, 8, 4);
    int32_t s0, s1, page, again;
    assert_int_equal(neap_caches_take_page(&c, &page), NEAP_OK);
    assert_int_equal(neap_caches_open_shared(&c, 100, &page, 1, &s0), NEAP_OK);
    neap_caches_release_page(&c, page);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    c.references[page]--; /* a reference lost: the page is free too early, and taken */
    c.owner[page] = ~c.n_free;
    c.free_pages[c.n_free++] = page;
    assert_int_equal(neap_caches_check(&c, s0), NEAP_INTERNAL);
    assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
    assert_int_equal(neap_caches_take_page(&c, &again), NEAP_OK);
    assert_int_equal(again, page);
    assert_int_equal(neap_caches_check(&c, s0), NEAP_INTERNAL);
    assert_int_equal(neap_caches_close(&c, s0), NEAP_INTERNAL);
    assert_int_equal(c.references[page], 1); /* whoever has it now keeps it */
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);

    /* An entry that says "shared" of a page of the slot itself, or the other way round. */
    assert_int_equal(neap_caches_open_shared(&c, 100, &page, 1, &s0), NEAP_OK);
    c.slot_shared[s0] = 2;
    assert_int_equal(neap_caches_check(&c, s0), NEAP_INTERNAL);
    assert_int_equal(neap_caches_check_span(&c, s0, 64, 1), NEAP_INTERNAL);
    c.slot_shared[s0] = 0;
    assert_int_equal(neap_caches_check(&c, s0), NEAP_INTERNAL);
    c.slot_shared[s0] = 1;
    assert_int_equal(neap_caches_check(&c, s0), NEAP_OK);
    /* A reference too many is a page lost. */
    c.references[page]++;
    assert_int_equal(neap_caches_audit(&c), NEAP_INTERNAL);
    c.references[page]--;
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 200, &s1), NEAP_OK);
    neap_arena_destroy(a);
}

static void slots_grow(void **state) {
    (void)state;
    neap_arena *a;
    neap_caches c = make(&a, 2, 6, 5);
    int32_t s0, s1;
    assert_int_equal(neap_caches_open(&c, 1, &s0), NEAP_OK);
    assert_int_equal(neap_caches_open(&c, 65, &s1), NEAP_OK);
    assert_int_equal(neap_caches_check_span(&c, s0, 64, 1), NEAP_INTERNAL);
    assert_int_equal(neap_caches_extend(&c, s0, 64), NEAP_OK); /* nothing to do */
    assert_int_equal(c.n_free, 3);
    assert_int_equal(neap_caches_extend(&c, s0, 130), NEAP_OK);
    assert_int_equal(c.slot_pages[s0], 3);
    assert_int_equal(neap_caches_check_span(&c, s0, 0, 192), NEAP_OK);
    assert_int_equal(neap_caches_extend(&c, s0, 257), NEAP_BUSY);
    assert_int_equal(c.slot_pages[s0], 3);
    assert_int_equal(neap_caches_extend(&c, s0, 321), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_caches_extend(&c, s0, 0), NEAP_CONTEXT_FULL);
    assert_int_equal(neap_caches_extend(&c, 2, 10), NEAP_INTERNAL);
    assert_int_equal(neap_caches_close(&c, s1), NEAP_OK);
    assert_int_equal(neap_caches_extend(&c, s1, 10), NEAP_INTERNAL);
    assert_int_equal(neap_caches_extend(&c, s0, 320), NEAP_OK);
    assert_int_equal(c.n_free, 1);
    assert_int_equal(neap_caches_audit(&c), NEAP_OK);
    int32_t right = c.free_pages[0];
    c.free_pages[0] = neap_caches_table(&c, s0)[0];
    assert_int_equal(neap_caches_take_page(&c, &s1), NEAP_INTERNAL);
    c.free_pages[0] = right;
    assert_int_equal(neap_caches_close(&c, s0), NEAP_OK);
    assert_int_equal(c.n_free, 6);
    neap_arena_destroy(a);
}

/* Bytes out and in: all of a page and of a slot, and nothing else. */
static void copies_are_complete(void **state) {
    (void)state;
    enum { PAGE = 64 * (91 + 33 + 160 + 64 + 288 + 128 + 91), STATE = 112 * 4 };
    static uint8_t bytes[PAGE], back[PAGE], pattern[PAGE];
    neap_arena *a;
    neap_caches c = make(&a, 3, 4, 2);
    assert_int_equal(neap_caches_page_bytes(&c), PAGE);
    assert_int_equal(neap_caches_state_bytes(&c), STATE);
    for (int i = 0; i < PAGE; i++) pattern[i] = (uint8_t)(i * 7 + i / 251);
    memset(bytes, 0x11, sizeof bytes);
    for (int32_t p = 0; p < 4; p++) neap_caches_page_write(&c, p, bytes);
    neap_caches_page_write(&c, 1, pattern);
    neap_caches_page_copy(&c, 3, 1);
    for (int32_t p = 0; p < 4; p++) {
        neap_caches_page_read(&c, p, back);
        assert_memory_equal(back, p % 2 ? pattern : bytes, PAGE);
    }
    /* in the order of layers, latents before index keys */
    assert_memory_equal(c.layers[1].latents + c.layers[1].latent_page_bytes, pattern, 64 * 91);
    assert_memory_equal(c.layers[4].latents + c.layers[4].latent_page_bytes, pattern + PAGE - 64 * 91, 64 * 91);
    int32_t s[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(neap_caches_open(&c, 1, &s[i]), NEAP_OK);
        neap_caches_state_load(&c, s[i], i == 1 ? pattern : bytes);
    }
    for (int i = 0; i < 3; i++) {
        neap_caches_state_save(&c, s[i], back);
        assert_memory_equal(back, i == 1 ? pattern : bytes, STATE);
    }
    assert_memory_equal(c.layers[0].window + 12 * s[1], pattern + 400, 48);
    neap_arena_destroy(a);
}

static bool all_bytes(const void *p, size_t n, int byte) {
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)p)[i] != byte) return false;
    return true;
}

/* The test hook: raw blocks and everything that a slot takes hold the pattern; other blocks stay zeroed. */
static void poison_reaches_what_is_taken(void **state) {
    (void)state;
    static const int bytes[] = {-1, 0xff, 0x7f};
    for (int k = 0; k < 3; k++) {
        int seen = bytes[k] < 0 ? 0 : bytes[k];
        neap_memory_poison(bytes[k]);
        assert_int_equal(neap_memory_poison_byte(), bytes[k]);
        neap_arena *a;
        neap_caches c = make(&a, 2, 8, 4);
        void *raw, *zeroed;
        assert_int_equal(neap_arena_alloc_raw(a, 5000, &raw), NEAP_OK);
        assert_int_equal(neap_arena_alloc(a, 5000, &zeroed), NEAP_OK);
        assert_true(all_bytes(raw, 5000, seen));
        assert_true(all_bytes(zeroed, 5000, 0));
        int32_t s[2], again;
        for (int i = 0; i < 2; i++) assert_int_equal(neap_caches_open(&c, 100, &s[i]), NEAP_OK);
        for (int32_t layer = 0; layer < N_LAYERS; layer++) {
            neap_cache_layer *l = &c.layers[layer];
            if (l->state) memset(l->state, 1, (size_t)(2 * SPECS[layer].state_floats) * 4);
            if (l->window) memset(l->window, 1, (size_t)(2 * SPECS[layer].window_floats) * 4);
            if (l->latents) memset(l->latents, 1, (size_t)(8 * l->latent_page_bytes));
            if (l->index_keys) memset(l->index_keys, 1, (size_t)(8 * l->index_page_bytes));
        }
        assert_int_equal(neap_caches_close(&c, s[0]), NEAP_OK);
        assert_int_equal(neap_caches_open(&c, 100, &again), NEAP_OK);
        assert_int_equal(again, s[0]);
        for (int32_t layer = 0; layer < N_LAYERS; layer++) {
            neap_cache_layer *l = &c.layers[layer];
            size_t n = (size_t)SPECS[layer].state_floats, w = (size_t)SPECS[layer].window_floats;
            for (int i = 0; i < 2; i++) { /* only the new sequence's */
                int want = i == 0 && bytes[k] >= 0 ? seen : 1;
                if (n) assert_true(all_bytes(l->state + (size_t)s[i] * n, n * 4, want));
                if (w) assert_true(all_bytes(l->window + (size_t)s[i] * w, w * 4, want));
                for (int64_t p = 0; p < 100; p += 64) {
                    if (l->latents)
                        assert_true(
                            all_bytes(neap_caches_latent_page(&c, layer, s[i], p), (size_t)l->latent_page_bytes, want));
                    if (l->index_keys)
                        assert_true(
                            all_bytes(neap_caches_index_page(&c, layer, s[i], p), (size_t)l->index_page_bytes, want));
                }
            }
        }
        neap_arena_destroy(a);
    }
    neap_memory_poison(-1);
}

static void arena_gives_aligned_zeroed_memory(void **state) {
    (void)state;
    neap_arena *a;
    assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 300000, 5000000, 100, 1048576};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p;
        assert_int_equal(neap_arena_alloc(a, sizes[i], &p), NEAP_OK);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(((unsigned char *)p)[j], 0);
        memset(p, 0xff, sizes[i]);
    }
    void *p;
    assert_int_equal(neap_arena_array(a, SIZE_MAX / 2, 3, &p), NEAP_NO_MEMORY);
    assert_int_equal(neap_arena_alloc(a, SIZE_MAX - 10, &p), NEAP_NO_MEMORY);
    neap_arena_destroy(a);
    neap_arena_destroy(NULL);
}

static void allocations_are_counted_and_can_fail(void **state) {
    (void)state;
    uint64_t before = neap_alloc_calls();
    void *p, *q;
    assert_int_equal(neap_mem_alloc(10, &p), NEAP_OK);
    assert_int_equal(neap_mem_grow(&p, 10, 2000), NEAP_OK);
    for (int i = 0; i < 2000; i++) assert_int_equal(((char *)p)[i], 0);
    assert_int_equal(neap_alloc_calls(), before + 2);
    neap_alloc_fail_at(2);
    assert_int_equal(neap_mem_alloc(10, &q), NEAP_OK);
    neap_mem_free(q);
    assert_int_equal(neap_mem_alloc(10, &q), NEAP_NO_MEMORY);
    assert_null(q);
    assert_int_equal(neap_mem_alloc(10, &q), NEAP_OK); /* only the one call fails */
    neap_mem_free(q);
    neap_mem_free(p);
    assert_true(neap_memory_available() > (1u << 20));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_have_the_announced_size),
        cmocka_unit_test(pages_have_one_owner),
        cmocka_unit_test(random_opens_and_closes_keep_books),
        cmocka_unit_test(rows_follow_the_page_table),
        cmocka_unit_test(far_pages_have_64_bit_places),
        cmocka_unit_test(neighbours_keep_every_byte),
        cmocka_unit_test(stale_and_foreign_pages_are_found),
        cmocka_unit_test(double_frees_are_found),
        cmocka_unit_test(poison_reaches_what_is_taken),
        cmocka_unit_test(arena_gives_aligned_zeroed_memory),
        cmocka_unit_test(allocations_are_counted_and_can_fail),
        cmocka_unit_test(shared_pages_are_counted_and_not_written),
        cmocka_unit_test(stale_shared_pages_are_found),
        cmocka_unit_test(slots_grow),
        cmocka_unit_test(copies_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
