/* Page pools and slots: ownership, refusal without side effects, reuse; and arenas: alignment, counting, failure
 * injection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cache/caches.h"

static const neap_cache_layer_spec SPECS[] = {
    {.state_floats = 100, .window_floats = 12}, {.row_floats = 80, .index_floats = 32}, {.row_floats = 80}};

static neap_caches make(neap_arena **a, int32_t slots, int32_t pages, int32_t slot_pages) {
    neap_caches c;
    assert_int_equal(neap_arena_create(a, "test"), NEAP_OK);
    assert_int_equal(neap_caches_create(&c, *a, SPECS, 3, slots, pages, slot_pages), NEAP_OK);
    return c;
}

static void pools_have_the_announced_size(void **state) {
    (void)state;
    uint64_t state_bytes, page_bytes;
    assert_true(neap_caches_bytes(SPECS, 3, 5, 7, &state_bytes, &page_bytes));
    assert_int_equal(state_bytes, 5 * 112 * 4);
    assert_int_equal(page_bytes, 7 * 64 * (80 + 32 + 80) * 4);
    neap_cache_layer_spec huge = {.row_floats = INT32_MAX};
    neap_cache_layer_spec many[2] = {huge, {.state_floats = INT64_MAX / 2}};
    assert_false(neap_caches_bytes(many, 2, INT32_MAX, INT32_MAX, &state_bytes, &page_bytes));
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
    neap_caches_close(&c, s1);
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
            neap_caches_close(&c, s);
            open[s] = 0;
        }
        int32_t owned = 0;
        for (int32_t p = 0; p < 40; p++) owned += c.owner[p] >= 0;
        assert_int_equal(owned + c.n_free, 40);
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
    neap_caches_close(&c, s0);
    assert_int_equal(neap_caches_open(&c, 200, &s2), NEAP_OK); /* pages 0, 2, 3, 4 */
    for (int64_t p = 0; p < 200; p++) {
        int64_t page = neap_caches_table(&c, s2)[p / 64];
        assert_int_equal(neap_caches_row(&c, s2, p), page * 64 + p % 64);
        assert_int_equal(c.owner[page], s2);
    }
    neap_arena_destroy(a);
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
        cmocka_unit_test(pools_have_the_announced_size),      cmocka_unit_test(pages_have_one_owner),
        cmocka_unit_test(random_opens_and_closes_keep_books), cmocka_unit_test(rows_follow_the_page_table),
        cmocka_unit_test(arena_gives_aligned_zeroed_memory),  cmocka_unit_test(allocations_are_counted_and_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
