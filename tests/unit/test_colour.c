/* Places of buffers: for random lives, and for lives like those of a model's layers, no two buffers that live at the
 * same time share a byte, all lie inside the region, the region is near the most that lives at one time, and the same
 * input gives the same places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "runtime/colour.h"

enum { MANY = 5000, PHASES = 600 };
static neap_life lives[MANY], again[MANY];

static uint64_t random_state = 88172645463325252u;
static uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

static bool is_used(const neap_life *l) { return l->first <= l->last; }

static uint64_t most_at_once(const neap_life *l, int32_t n) {
    uint64_t most = 0;
    for (int32_t t = 0; t < PHASES; t++) {
        uint64_t sum = 0;
        for (int32_t i = 0; i < n; i++)
            if (l[i].first <= t && t <= l[i].last) sum += (l[i].bytes + 63) & ~(uint64_t)63;
        if (sum > most) most = sum;
    }
    return most;
}

static void check(const neap_life *l, int32_t n, uint64_t peak) {
    for (int32_t i = 0; i < n; i++) {
        if (!is_used(&l[i])) continue;
        assert_int_equal(l[i].offset % 64, 0);
        assert_true(l[i].offset + l[i].bytes <= peak);
        for (int32_t k = 0; k < i; k++) {
            if (!is_used(&l[k]) || l[k].last < l[i].first || l[i].last < l[k].first) continue;
            if (!(l[k].offset + l[k].bytes <= l[i].offset || l[i].offset + l[i].bytes <= l[k].offset))
                fail_msg("%d and %d share bytes", k, i);
        }
    }
}

/* What layers do: a few buffers for the whole step, in each layer some that one phase writes and the next ones read. */
static int32_t like_layers(neap_life *l, int32_t n_max) {
    int32_t n = 0;
    for (; n < 6; n++) l[n] = (neap_life){.bytes = 64 * (1 + random_below(4000)), .first = 0, .last = PHASES - 1};
    const uint32_t widths[] = {256, 1024, 2304, 4608, 9216, 36864, 4096, 128};
    for (int32_t t = 0; n < n_max; t = (t + 1) % (PHASES - 8))
        l[n++] = (neap_life){
            .bytes = widths[random_below(8)] * (1 + random_below(8)), .first = t, .last = t + (int32_t)random_below(6)};
    return n;
}

static int32_t of_any_kind(neap_life *l, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t first = (int32_t)random_below(PHASES), length = (int32_t)random_below(random_below(4) ? 12 : 300);
        l[i] = (neap_life){.bytes = random_below(random_below(2) ? 100000 : 300), .first = first};
        l[i].last = first + length < PHASES ? first + length : PHASES - 1;
        if (random_below(20) == 0) l[i].last = first - 1; /* never used */
    }
    return n;
}

static void no_two_share_and_little_is_lost(void **state) {
    (void)state;
    double worst[2] = {0, 0}, sum[2] = {0, 0};
    int n_rounds = 200;
    for (int round = 0; round < n_rounds; round++) {
        int32_t n = 1 + (int32_t)random_below(round % 10 == 9 ? 1500 : 200);
        const int kind = round % 2;
        n = kind ? like_layers(lives, n + 6) : of_any_kind(lives, n);
        memcpy(again, lives, sizeof lives);
        uint64_t peak, second;
        assert_int_equal(neap_colour(lives, n, true, &peak), NEAP_OK);
        check(lives, n, peak);
        for (int32_t i = 0; i < n; i++) again[i].offset = random_below(1000); /* out only */
        assert_int_equal(neap_colour(again, n, true, &second), NEAP_OK);
        assert_int_equal(peak, second);
        for (int32_t i = 0; i < n; i++) assert_int_equal(lives[i].offset, again[i].offset);
        const uint64_t least = most_at_once(lives, n);
        assert_true(peak >= least);
        if (least == 0) continue;
        const double ratio = (double)peak / (double)least;
        if (ratio > worst[kind]) worst[kind] = ratio;
        sum[kind] += ratio / n_rounds * 2;
    }
    print_message("region / most at one time: any lives %.3f (worst %.3f), like layers %.3f (worst %.3f)\n", sum[0],
                  worst[0], sum[1], worst[1]);
    assert_true(worst[0] <= 1.3 && worst[1] <= 1.3);
}

static void nothing_twice_when_told(void **state) {
    (void)state;
    int32_t n = of_any_kind(lives, 300);
    uint64_t peak, sum = 0;
    assert_int_equal(neap_colour(lives, n, false, &peak), NEAP_OK);
    for (int32_t i = 0; i < n; i++) {
        if (!is_used(&lives[i])) continue;
        sum += (lives[i].bytes + 63) & ~(uint64_t)63;
        lives[i].first = 0, lives[i].last = PHASES - 1; /* as if all lived at the same time */
    }
    assert_int_equal(peak, sum);
    check(lives, n, peak);
}

static void corners(void **state) {
    (void)state;
    uint64_t peak = 7;
    assert_int_equal(neap_colour(NULL, 0, true, &peak), NEAP_OK);
    assert_int_equal(peak, 0);
    neap_life one[3] = {
        {.bytes = 1, .first = 5, .last = 5}, {.bytes = 0, .first = 0, .last = 9}, {.bytes = 9, .last = -1}};
    assert_int_equal(neap_colour(one, 3, true, &peak), NEAP_OK);
    assert_int_equal(peak, 64);
    /* the end of one life is the beginning of the other: they overlap */
    neap_life two[2] = {{.bytes = 64, .first = 0, .last = 3}, {.bytes = 64, .first = 3, .last = 4}};
    assert_int_equal(neap_colour(two, 2, true, &peak), NEAP_OK);
    assert_int_equal(peak, 128);
    two[1].first = 4;
    assert_int_equal(neap_colour(two, 2, true, &peak), NEAP_OK);
    assert_int_equal(peak, 64);
    neap_life large[2] = {{.bytes = UINT64_MAX - 100, .first = 0, .last = 1}, {.bytes = 128, .first = 0, .last = 1}};
    assert_int_equal(neap_colour(large, 2, true, &peak), NEAP_NO_MEMORY);
    assert_int_equal(neap_colour(large, 2, false, &peak), NEAP_NO_MEMORY);
    large[0].bytes = UINT64_MAX - 10;
    assert_int_equal(neap_colour(large, 1, true, &peak), NEAP_NO_MEMORY);
}

static void every_failed_allocation_is_told(void **state) {
    (void)state;
    for (uint64_t k = 1;; k++) {
        uint64_t peak;
        int32_t n = like_layers(lives, 50);
        neap_alloc_fail_at(k);
        neap_status status = neap_colour(lives, n, true, &peak);
        neap_alloc_fail_at(0);
        if (status == NEAP_OK) {
            assert_true(k > 1);
            return;
        }
        assert_int_equal(status, NEAP_NO_MEMORY);
    }
}

/* Processor time, which other programs do not change much. A slow build (sanitizers) is not judged. */
static void many_buffers_take_little_time(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        int32_t n = kind ? like_layers(lives, MANY) : of_any_kind(lives, MANY);
        uint64_t peak;
        clock_t begin = clock();
        assert_int_equal(neap_colour(lives, n, true, &peak), NEAP_OK);
        double ms = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
        print_message("%d buffers (%s): %.1f ms, %.3f of the most at one time\n", n, kind ? "like layers" : "any lives",
                      ms, (double)peak / (double)most_at_once(lives, n));
        check(lives, n, peak);
        assert_true(ms < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_share_and_little_is_lost),
        cmocka_unit_test(nothing_twice_when_told),
        cmocka_unit_test(corners),
        cmocka_unit_test(every_failed_allocation_is_told),
        cmocka_unit_test(many_buffers_take_little_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
