/* Records of tunings: what was saved is loaded, for the same machine, threads and model only; of 1,000 damaged records
 * none is believed. And the search: it keeps its time, leaves nothing behind, and what it returns is in range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "engine/options.h"
#include "engine/tuning.h"
#include "format/store.h"
#include "models/model.h"

static neap_model *open_model(const char *name) {
    char path[512];
    neap_model *m = NULL;
    (void)snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, name);
    if (neap_model_open(&m, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
    return m;
}

static uint32_t random_number(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static neap_tuning random_tuning(uint32_t *seed) {
    neap_tuning t;
    neap_tuning_init(&t);
    t.few_rows = (int32_t)(random_number(seed) % 9);
    t.tile_rows = 1 + (int32_t)(random_number(seed) % 8);
    t.prefetch_kib = (int32_t)(random_number(seed) % 65537);
    t.mixed_workers = 1 + (int32_t)(random_number(seed) % 1023);
    t.beside = random_number(seed) % 8;
    t.streams = random_number(seed) % 8;
    t.pinning = (int32_t)(random_number(seed) % 4);
    t.n_threads = (int32_t)(random_number(seed) % 1025);
    t.n_threads_batch = (int32_t)(random_number(seed) % 1025);
    return t;
}

static void assert_same_tuning(const neap_tuning *a, const neap_tuning *b) {
    const size_t begin = offsetof(neap_tuning, few_rows);
    const size_t end = offsetof(neap_tuning, n_threads_batch) + sizeof a->n_threads_batch;
    assert_memory_equal((const char *)a + begin, (const char *)b + begin, end - begin);
}

static neap_tuning_key some_key(void) {
    neap_tuning_key key = {.machine = "A processor; avx2; threads 2, batch 0; 2 cores, 2 CPUs, 1 nodes",
                           .model = "kimi_linear; width 2304, 27 layers; BF16"};
    return key;
}

/* ---- ranges ---- */

static void test_defaults_and_ranges(void **state) {
    (void)state;
    neap_tuning t, out;
    neap_tuning_init(&t);
    assert_int_equal(t.few_rows, 8);
    assert_int_equal(t.tile_rows, 8);
    assert_int_equal(t.prefetch_kib, 0);
    assert_int_equal(t.mixed_workers, 1);
    assert_int_equal(t.beside, NEAP_USE_INDEX | NEAP_USE_SHARED);
    assert_int_equal(t.streams, 0);
    assert_int_equal(t.pinning, NEAP_PIN_DEFAULT);
    assert_int_equal(t.n_threads, 0);
    assert_int_equal(t.n_threads_batch, 0);
    static const struct {
        size_t offset;
        int32_t low, high;
        const char *name;
    } rows[] = {{offsetof(neap_tuning, few_rows), -1, 9, "few_rows"},
                {offsetof(neap_tuning, tile_rows), 0, 9, "tile_rows"},
                {offsetof(neap_tuning, prefetch_kib), -1, 65537, "prefetch_kib"},
                {offsetof(neap_tuning, mixed_workers), 0, 1024, "mixed_workers"},
                {offsetof(neap_tuning, beside), -1, 8, "beside"},
                {offsetof(neap_tuning, streams), -1, 8, "streams"},
                {offsetof(neap_tuning, pinning), -1, 4, "pinning"},
                {offsetof(neap_tuning, n_threads), -1, 1025, "n_threads"},
                {offsetof(neap_tuning, n_threads_batch), -1, 1025, "n_threads_batch"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int side = 0; side < 2; side++) {
            char limit[16];
            neap_tuning_init(&t);
            memcpy((char *)&t + rows[i].offset, side ? &rows[i].high : &rows[i].low, sizeof(int32_t));
            assert_int_equal(neap_tuning_take(&out, &t), NEAP_INVALID_ARGUMENT);
            assert_non_null(strstr(neap_last_error(), rows[i].name));
            (void)snprintf(limit, sizeof limit, "%d", side ? rows[i].high - 1 : rows[i].low + 1);
            assert_non_null(strstr(neap_last_error(), limit));
        }
    neap_tuning_init(&t);
    t.struct_size = sizeof t + 8; /* of a newer header */
    assert_int_equal(neap_tuning_take(&out, &t), NEAP_INVALID_ARGUMENT);
    t.struct_size = offsetof(neap_tuning, pinning); /* of an older one: the rest gets defaults */
    t.pinning = 77;
    t.tile_rows = 3;
    assert_int_equal(neap_tuning_take(&out, &t), NEAP_OK);
    assert_int_equal(out.tile_rows, 3);
    assert_int_equal(out.pinning, NEAP_PIN_DEFAULT);
    assert_int_equal(neap_tuning_take(&out, NULL), NEAP_OK);
}

/* ---- text ---- */

static void test_round_trip(void **state) {
    (void)state;
    uint32_t seed = 1;
    const neap_tuning_key key = some_key();
    for (int i = 0; i < 200; i++) {
        char text[NEAP_TUNING_TEXT];
        const neap_tuning t = random_tuning(&seed);
        neap_tuning got;
        const size_t n = neap_tuning_print(text, &key, &t);
        assert_int_equal(n, strlen(text));
        assert_int_equal(neap_tuning_parse(&got, text, n, &key), NEAP_OK);
        assert_same_tuning(&got, &t);
    }
    neap_tuning_key longest;
    memset(&longest, 'x', sizeof longest);
    longest.machine[sizeof longest.machine - 1] = longest.model[sizeof longest.model - 1] = 0;
    char text[NEAP_TUNING_TEXT];
    const neap_tuning t = random_tuning(&seed);
    assert_true(neap_tuning_print(text, &longest, &t) < NEAP_TUNING_TEXT / 2);
}

/* Bits flipped, bytes changed, cut, grown, lines swapped, doubled, removed. */
static size_t damage(char *text, size_t n, uint32_t *seed) {
    const size_t at = random_number(seed) % n, span = 1 + random_number(seed) % 40;
    switch (random_number(seed) % 6) {
    case 0: text[at] = (char)(text[at] ^ (1 << random_number(seed) % 8)); return n;
    case 1: text[at] = (char)random_number(seed); return n;
    case 2: return at;
    case 3: /* a piece removed */
        if (at + span >= n) return at;
        memmove(text + at, text + at + span, n - at - span);
        return n - span;
    case 4: /* a piece doubled */
        if (at + span > n) return at;
        memmove(text + at + span, text + at, n - at);
        return n + span;
    default: /* digits changed: still a record, of other numbers */
        for (size_t i = at; i < n; i++)
            if (text[i] >= '0' && text[i] <= '8') {
                text[i]++;
                break;
            }
        return n;
    }
}

static void test_damaged(void **state) {
    (void)state;
    uint32_t seed = 7;
    const neap_tuning_key key = some_key();
    int n_damaged = 0;
    for (int i = 0; n_damaged < 1000; i++) {
        char text[2 * NEAP_TUNING_TEXT], before[NEAP_TUNING_TEXT];
        const neap_tuning t = random_tuning(&seed);
        neap_tuning got;
        size_t n = neap_tuning_print(before, &key, &t), n_before = n;
        memcpy(text, before, n);
        for (uint32_t k = 0; k <= random_number(&seed) % 3 && n > 0; k++) n = damage(text, n, &seed);
        if (n == n_before && memcmp(text, before, n) == 0) continue;
        char *edge = malloc(n > 0 ? n : 1); /* nothing may be read behind it */
        assert_non_null(edge);
        memcpy(edge, text, n);
        assert_int_equal(neap_tuning_parse(&got, edge, n, &key), NEAP_BAD_FILE);
        free(edge);
        n_damaged++;
    }
    /* a checksum that fits does not help a record of another machine, or numbers out of range */
    neap_tuning_key other = key;
    other.machine[0] = 'B';
    char text[NEAP_TUNING_TEXT];
    neap_tuning t, got;
    neap_tuning_init(&t);
    assert_int_equal(neap_tuning_parse(&got, text, neap_tuning_print(text, &other, &t), &key), NEAP_BAD_FILE);
    t.tile_rows = 9;
    assert_int_equal(neap_tuning_parse(&got, text, neap_tuning_print(text, &key, &t), &key), NEAP_BAD_FILE);
    assert_non_null(strstr(neap_last_error(), "tile_rows"));
}

/* ---- files ---- */

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/neap-tuning-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int remove_file(void *user, const neap_cache_entry *e) {
    char path[512];
    (void)user;
    (void)snprintf(path, sizeof path, "%s/%s", dir, e->name);
    return unlink(path);
}

static int remove_dir(void **state) {
    (void)state;
    (void)neap_cache_list(dir, 0, remove_file, NULL);
    return rmdir(dir);
}

static neap_engine_options with_threads(int32_t n) {
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = n;
    return o;
}

static void test_save_load(void **state) {
    (void)state;
    uint32_t seed = 3;
    neap_model *m = open_model("kimi-k3-mini-mxfp4"), *n = open_model("glm-dsa-tiny-bfloat16");
    neap_engine_options one = with_threads(1), two = with_threads(2);
    const neap_tuning t = random_tuning(&seed);
    neap_tuning got;
    neap_tuning_init(&got);
    assert_int_equal(neap_tuning_load("/nonexistent/neap", m, &one, &got), NEAP_NOT_FOUND);
    assert_int_equal(neap_tuning_load(dir, m, &one, &got), NEAP_NOT_FOUND);
    if (neap_tuning_save(dir, m, &one, &t) != NEAP_OK) fail_msg("%s", neap_last_error());
    assert_int_equal(neap_tuning_load(dir, m, &one, &got), NEAP_OK);
    assert_same_tuning(&got, &t);
    neap_tuning_init(&got);
    assert_int_equal(neap_tuning_load(dir, m, &two, &got), NEAP_NOT_FOUND);
    assert_int_equal(neap_tuning_load(dir, n, &one, &got), NEAP_NOT_FOUND);
    const neap_tuning u = random_tuning(&seed); /* replaces */
    assert_int_equal(neap_tuning_save(dir, m, &one, &u), NEAP_OK);
    assert_int_equal(neap_tuning_load(dir, m, &one, &got), NEAP_OK);
    assert_same_tuning(&got, &u);
    neap_tuning wrong = t;
    wrong.few_rows = 100;
    assert_int_equal(neap_tuning_save(dir, m, &one, &wrong), NEAP_INVALID_ARGUMENT);
    neap_model_close(n);
    /* the model's shapes count, not only its names */
    neap_tuning_key a, b;
    assert_int_equal(neap_tuning_key_of(&a, m, &one), NEAP_OK);
    m->net.layers[m->net.n_layers - 1].moe_spec.top_k++;
    m->net.layers[m->net.n_layers - 1].mlp_width++;
    assert_int_equal(neap_tuning_key_of(&b, m, &one), NEAP_OK);
    assert_string_equal(a.model, b.model);
    assert_memory_not_equal(a.digest, b.digest, sizeof a.digest);
    neap_model_close(m);
}

/* The same name with other bytes: none is believed. */
static void test_damaged_files(void **state) {
    (void)state;
    uint32_t seed = 11;
    neap_model *m = open_model("kimi-k3-mini-mxfp4");
    neap_engine_options o = with_threads(1);
    neap_tuning_key key;
    char path[256], name[40];
    assert_int_equal(neap_tuning_key_of(&key, m, &o), NEAP_OK);
    for (int i = 0; i < 16; i++) (void)snprintf(name + 2 * i, 3, "%02x", key.digest[i]);
    (void)snprintf(path, sizeof path, "%s/%s%s", dir, name, neap_store_suffix(NEAP_STORE_TUNING));
    for (int i = 0; i < 100; i++) {
        static char bytes[65536];
        const neap_tuning t = random_tuning(&seed);
        neap_tuning got;
        neap_tuning_init(&got);
        assert_int_equal(neap_tuning_save(dir, m, &o, &t), NEAP_OK);
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        const size_t n = fread(bytes, 1, sizeof bytes, f);
        assert_in_range(n, 100, sizeof bytes - 1);
        if (i % 3 == 0) {
            assert_int_equal(ftruncate(fileno(f), (off_t)(random_number(&seed) % n)), 0);
        } else {
            const size_t at = random_number(&seed) % n;
            bytes[at] = (char)(bytes[at] ^ (1 << random_number(&seed) % 8));
            rewind(f);
            assert_int_equal(fwrite(bytes, 1, n, f), n);
        }
        assert_int_equal(fclose(f), 0);
        assert_int_equal(neap_tuning_load(dir, m, &o, &got), NEAP_NOT_FOUND);
        assert_int_equal(got.few_rows, 8); /* untouched */
    }
    neap_model_close(m);
}

/* ---- search ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void count_calls(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "tune");
    assert_true(done <= total);
    (*(int *)user)++;
}

static void test_search(void **state) {
    (void)state;
    static const char *const names[] = {"kimi-k3-mini-mxfp4", "kimi-linear-f32-float32", "glm-dsa-tiny-bfloat16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        neap_model *m = open_model(names[i]);
        neap_engine_options o = with_threads(i == 1 ? 1 : 0);
        neap_tuning t, checked;
        int n_calls = 0;
        neap_tuning_init(&t);
        const double begin = now();
        if (neap_tune(m, &o, 0.5, &t, count_calls, &n_calls) != NEAP_OK) fail_msg("%s", neap_last_error());
        assert_true(now() - begin < 200); /* sanitizers and busy machines take their time; a step is not cut short */
        assert_true(n_calls >= 1);
        assert_int_equal(t.struct_size, sizeof t);
        assert_int_equal(neap_tuning_take(&checked, &t), NEAP_OK);
        if (i == 1) assert_int_equal(t.n_threads, 0); /* was asked for: no opinion */
        neap_engine *e = NULL;
        o.tuning = &t;
        o.context_max = 128;
        assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
        neap_engine_destroy(e);
        neap_model_close(m);
    }
}

static void test_search_refuses(void **state) {
    (void)state;
    neap_model *m = open_model("kimi-linear-f32-float32");
    neap_tuning t = {0};
    assert_int_equal(neap_tune(m, NULL, 1, &t, NULL, NULL), NEAP_INVALID_ARGUMENT);
    neap_tuning_init(&t);
    assert_int_equal(neap_tune(m, NULL, 0, &t, NULL, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_tune(m, NULL, -1, &t, NULL, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_tune(NULL, NULL, 1, &t, NULL, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_tune(m, NULL, 1, NULL, NULL, NULL), NEAP_INVALID_ARGUMENT);
    t.few_rows = 99;
    neap_engine_options o = with_threads(1);
    o.tuning = &t;
    neap_tuning out;
    neap_tuning_init(&out);
    assert_int_equal(neap_tune(m, &o, 1, &out, NULL, NULL), NEAP_INVALID_ARGUMENT);
    for (uint64_t k = 1; k < 40; k++) { /* no memory at some point: an error, and nothing is lost */
        neap_alloc_fail_at(k);
        neap_status status = neap_tune(m, NULL, 0.001, &out, NULL, NULL);
        neap_alloc_fail_at(0);
        assert_true(status == NEAP_NO_MEMORY || status == NEAP_OK);
    }
    neap_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_and_ranges),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test_setup_teardown(test_save_load, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_files, make_dir, remove_dir),
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_search_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
