/* Text of an answer: stop strings across token borders, hold-back, UTF-8 by pieces. Every case runs over every
 * split (or many random ones) and against a brute-force reference that sees the whole text at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text.h"

enum { TEXT_MAX = 4096 };

typedef struct run {
    char text[3 * TEXT_MAX + 64];
    size_t n;
    bool is_stopped;
} run;

static uint32_t random_state = 1;
static uint32_t next_random(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* Strict: is this piece alone well-formed UTF-8? Written from the table in the Unicode standard. */
static bool is_utf8(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        const unsigned c = s[i];
        size_t more;
        unsigned low = 0x80;
        unsigned high = 0xBF;
        if (c < 0x80) {
            more = 0;
        } else if (c >= 0xC2 && c <= 0xDF) {
            more = 1;
        } else if (c >= 0xE0 && c <= 0xEF) {
            more = 2;
            if (c == 0xE0) low = 0xA0;
            if (c == 0xED) high = 0x9F;
        } else if (c >= 0xF0 && c <= 0xF4) {
            more = 3;
            if (c == 0xF0) low = 0x90;
            if (c == 0xF4) high = 0x8F;
        } else {
            return false;
        }
        if (more > n - i - 1) return false;
        for (size_t k = 1; k <= more; k++) {
            if (s[i + k] < (k == 1 ? low : 0x80) || s[i + k] > (k == 1 ? high : 0xBF)) return false;
        }
        i += more + 1;
    }
    return true;
}

static void take(run *r, const char *piece, size_t n) {
    assert_true(is_utf8(piece, n));
    assert_true(r->n + n < sizeof r->text);
    memcpy(r->text + r->n, piece, n);
    r->n += n;
}

/* Feeds bytes cut at the set bits of `cuts` (bit i: a border after byte i), then flushes. */
static void feed(run *r, const char *bytes, size_t n, const char *const *stops, size_t n_stops,
                 bool (*is_cut)(size_t i, uint64_t how), uint64_t how) {
    neap_arena *arena = NULL;
    neap_text t;
    const char *piece;
    size_t n_piece;
    r->n = 0;
    r->is_stopped = false;
    assert_int_equal(neap_arena_create(&arena, "test"), NEAP_OK);
    assert_int_equal(neap_text_init(&t, arena, stops, n_stops, n), NEAP_OK);
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && !is_cut(i, how)) continue;
        r->is_stopped = neap_text_push(&t, bytes + begin, i + 1 - begin, &piece, &n_piece);
        take(r, piece, n_piece);
        begin = i + 1;
        if (r->is_stopped) break;
    }
    if (r->is_stopped) { /* nothing comes after the end */
        assert_true(neap_text_push(&t, "more", n < 4 ? n : 4, &piece, &n_piece));
        assert_int_equal(n_piece, 0);
    }
    r->is_stopped = neap_text_flush(&t, &piece, &n_piece);
    take(r, piece, n_piece);
    neap_text_flush(&t, &piece, &n_piece);
    assert_int_equal(n_piece, 0);
    neap_arena_destroy(arena);
}

static bool by_bit(size_t i, uint64_t how) { return how >> i & 1; }
static bool by_chance(size_t i, uint64_t how) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u ^ how * 0xD1B54A32D192ED03u;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    return (x >> 40) % (how % 7 + 1) == 0;
}
static bool everywhere(size_t i, uint64_t how) {
    (void)i;
    (void)how;
    return true;
}

/* Where a valid text has to end: the first byte at which any stop string is complete; the longest of them. */
static size_t stop_place(const char *text, size_t n, const char *const *stops, size_t n_stops, bool *is_stopped) {
    *is_stopped = false;
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n_stops; k++) {
            const size_t m = strlen(stops[k]);
            if (m <= end && m > longest && memcmp(text + end - m, stops[k], m) == 0) longest = m;
        }
        if (longest > 0) {
            *is_stopped = true;
            return end - longest;
        }
    }
    return n;
}

static void check_all_splits(const char *bytes, size_t n, const char *const *stops, size_t n_stops, const char *wanted,
                             bool is_stopped) {
    run r;
    assert_true(n <= 18);
    for (uint64_t cuts = 0; cuts < (uint64_t)1 << (n - 1); cuts++) {
        feed(&r, bytes, n, stops, n_stops, by_bit, cuts);
        assert_int_equal(r.n, strlen(wanted));
        assert_memory_equal(r.text, wanted, r.n);
        assert_int_equal(r.is_stopped, is_stopped);
    }
}

#define STOPS(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void test_stop_over_tokens(void **state) {
    (void)state;
    check_all_splits("a beta gamma end", 16, STOPS("beta gamma"), "a ", true);
    check_all_splits("a beta gamm", 11, STOPS("beta gamma"), "a beta gamm", false); /* the held tail comes out */
    check_all_splits("beta gamma", 10, STOPS("beta gamma"), "", true);
    check_all_splits("beta gamma", 10, STOPS("beta gammas", "x"), "beta gamma", false);
    check_all_splits("ababababac", 10, STOPS("ababac"), "abab", true);
    check_all_splits("aaaaaaaab", 9, STOPS("aaab"), "aaaaa", true);
    check_all_splits("xaxbx", 5, STOPS("b", "a"), "x", true);
    check_all_splits("xabcd", 5, STOPS("abcd", "bc"), "xa", true);    /* bc is complete first */
    check_all_splits("xabcd", 5, STOPS("abc", "bc", "c"), "x", true); /* same end: the longest */
    check_all_splits("one\n\ntwo", 8, STOPS("\n\n"), "one", true);
    check_all_splits("no stops at all", 15, NULL, 0, "no stops at all", false);
}

static void test_utf8_by_pieces(void **state) {
    (void)state;
    check_all_splits("a\xF0\x9F\x98\x80"
                     "b\xE2\x82\xAC\xC3\xA9",
                     11, NULL, 0,
                     "a\xF0\x9F\x98\x80"
                     "b\xE2\x82\xAC\xC3\xA9",
                     false);
#define FFFD "\xEF\xBF\xBD"
    check_all_splits("\x80", 1, NULL, 0, FFFD, false);
    check_all_splits("a\x80"
                     "b",
                     3, NULL, 0, "a" FFFD "b", false);
    check_all_splits("\xC0\x80", 2, NULL, 0, FFFD FFFD, false);               /* overlong */
    check_all_splits("\xE0\x80\x80", 3, NULL, 0, FFFD FFFD FFFD, false);      /* overlong */
    check_all_splits("\xED\xA0\x80z", 4, NULL, 0, FFFD FFFD FFFD "z", false); /* surrogate */
    check_all_splits("\xF5\x80\x80\x80", 4, NULL, 0, FFFD FFFD FFFD FFFD, false);
    check_all_splits("\xF0\x9F\x98", 3, NULL, 0, FFFD, false); /* cut off: one maximal part */
    check_all_splits("\xF0\x9F\x98"
                     "a",
                     4, NULL, 0, FFFD "a", false);
    check_all_splits("\xE2\x82\xE2\x82\xAC", 5, NULL, 0, FFFD "\xE2\x82\xAC", false);
    check_all_splits("\xFF\xFE\xC3", 3, NULL, 0, FFFD FFFD FFFD, false);
}

static void test_stop_and_utf8(void **state) {
    (void)state;
    check_all_splits("hi \xF0\x9F\x98\x80!", 8, STOPS("\xF0\x9F\x98\x80"), "hi ", true);
    check_all_splits("hi \xF0\x9F\x98\x81!", 8, STOPS("\xF0\x9F\x98\x80"), "hi \xF0\x9F\x98\x81!", false);
    check_all_splits("a\xC3\xA9\xC3\xA9"
                     "b",
                     6,
                     STOPS("\xC3\xA9"
                           "b"),
                     "a\xC3\xA9", true);
    check_all_splits("\xC3\xA9 <en", 6, STOPS("<end>"), "\xC3\xA9 <en", false);
    check_all_splits("<e\xC3", 3, STOPS("<end>"), "<e" FFFD, false);
    check_all_splits("x\xC3", 2, STOPS(FFFD), "x", true); /* a stop string made by the flush */
}

/* After each piece, what is held back is exactly the longest end of the text that begins a stop string. */
static void test_hold_back_is_minimal(void **state) {
    (void)state;
    static const char *const stops[] = {"abcabd", "cab", "\n\nUser:"};
    const char text[] = "abcabcabab\n\nUse\n\nab\n ca";
    neap_arena *arena = NULL;
    neap_text t;
    assert_int_equal(neap_arena_create(&arena, "test"), NEAP_OK);
    assert_int_equal(neap_text_init(&t, arena, stops + 1, 2, 8), NEAP_OK);
    size_t released = 0;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        const char *piece;
        size_t n;
        const bool is_stopped = neap_text_push(&t, text + i, 1, &piece, &n);
        released += n;
        bool wanted_stop;
        const size_t place = stop_place(text, i + 1, stops + 1, 2, &wanted_stop);
        assert_int_equal(is_stopped, wanted_stop);
        if (is_stopped) {
            assert_int_equal(released, place);
            break;
        }
        size_t held = 0;
        for (int k = 1; k < 3; k++) {
            for (size_t m = 1; m < strlen(stops[k]) && m <= i + 1; m++) {
                if (memcmp(text + i + 1 - m, stops[k], m) == 0 && m > held) held = m;
            }
        }
        assert_int_equal(released, i + 1 - held);
    }
    neap_arena_destroy(arena);
}

static void test_long_stop(void **state) {
    (void)state;
    static char stop[NEAP_STOP_BYTES_MAX + 1];
    static char text[TEXT_MAX];
    run r;
    memset(stop, 'a', NEAP_STOP_BYTES_MAX);
    stop[NEAP_STOP_BYTES_MAX - 1] = 'b';
    memset(text, 'a', sizeof text);
    const char *const stops[] = {stop};
    feed(&r, text, sizeof text, stops, 1, everywhere, 0);
    assert_false(r.is_stopped);
    assert_int_equal(r.n, sizeof text);
    text[3000] = 'b';
    for (uint64_t how = 0; how < 20; how++) {
        feed(&r, text, sizeof text, stops, 1, by_chance, how);
        assert_true(r.is_stopped);
        assert_int_equal(r.n, 3001 - NEAP_STOP_BYTES_MAX);
    }
}

/* Random texts over a small alphabet, so that stop strings nearly match all the time. */
static void test_random_texts(void **state) {
    (void)state;
    static const char *const letters[] = {"a", "b", "\xC3\xA9", "\xF0\x9F\x98\x80", " "};
    int n_stopped = 0;
    for (int round = 0; round < 3000; round++) {
        char text[256] = "";
        char pool[NEAP_STOPS_MAX][64];
        const char *stops[NEAP_STOPS_MAX];
        const size_t n_stops = next_random() % 4;
        const uint32_t n_letters = 2 + next_random() % 4;
        const uint32_t length = next_random() % 40;
        for (uint32_t i = 0; i < length; i++) strcat(text, letters[next_random() % n_letters]);
        for (size_t k = 0; k < n_stops; k++) {
            const uint32_t m = 1 + next_random() % 6;
            pool[k][0] = '\0';
            for (uint32_t i = 0; i < m; i++) strcat(pool[k], letters[next_random() % n_letters]);
            stops[k] = pool[k];
        }
        bool wanted_stop;
        const size_t n = strlen(text);
        const size_t place = stop_place(text, n, stops, n_stops, &wanted_stop);
        n_stopped += wanted_stop;
        for (uint64_t how = 0; how < 8; how++) {
            run r;
            feed(&r, text, n, stops, n_stops, how == 0 ? everywhere : by_chance, how + (uint64_t)round * 8);
            assert_int_equal(r.is_stopped, wanted_stop);
            assert_int_equal(r.n, place);
            assert_memory_equal(r.text, text, place);
        }
    }
    assert_in_range(n_stopped, 500, 2500); /* both outcomes are really tested */
}

/* Random bytes: any split gives the same valid text as the whole. */
static void test_random_bytes(void **state) {
    (void)state;
    static const char *const stops[] = {"ab", FFFD "a"};
    for (int round = 0; round < 2000; round++) {
        char bytes[64];
        const size_t n = 1 + next_random() % sizeof bytes;
        for (size_t i = 0; i < n; i++) {
            static const unsigned char favourites[] = {0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82,
                                                       0xAC, 0xED, 0xA0, 'a',  'b',  0xC3};
            const uint32_t x = next_random();
            bytes[i] = (char)(x % 4 ? favourites[x / 4 % sizeof favourites] : x / 4 % 256);
        }
        run whole;
        feed(&whole, bytes, n, stops, (size_t)round % 3, by_bit, 0);
        for (uint64_t how = 0; how < 6; how++) {
            run r;
            feed(&r, bytes, n, stops, (size_t)round % 3, how == 0 ? everywhere : by_chance, how + (uint64_t)round);
            assert_int_equal(r.n, whole.n);
            assert_memory_equal(r.text, whole.text, r.n);
            assert_int_equal(r.is_stopped, whole.is_stopped);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_over_tokens), cmocka_unit_test(test_utf8_by_pieces),
        cmocka_unit_test(test_stop_and_utf8),    cmocka_unit_test(test_hold_back_is_minimal),
        cmocka_unit_test(test_long_stop),        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
