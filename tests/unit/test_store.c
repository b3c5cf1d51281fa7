/* Files that neap keeps for itself: digests against published values, small files, listing, pruning. */
#include "unit/store_fixture.h"

#include <sys/file.h>
#include <time.h>

#include "format/digest.h"

static void hex_of(const void *data, size_t n, size_t step, char hex[65]) {
    neap_sha256 s;
    uint8_t digest[NEAP_SHA256_BYTES];
    neap_sha256_begin(&s);
    for (size_t at = 0; at < n; at += step) neap_sha256_add(&s, (const char *)data + at, n - at < step ? n - at : step);
    neap_sha256_end(&s, digest);
    for (int i = 0; i < NEAP_SHA256_BYTES; i++) (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

/* FIPS 180-4 examples, and a million times "a". */
static void test_sha256(void **state) {
    static const char *const known[][2] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                                           {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                                           {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                                            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char hex[65];
    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t step = 1; step < 70; step += 17) {
            hex_of(known[i][0], strlen(known[i][0]), step, hex);
            assert_string_equal(hex, known[i][1]);
        }
    char *many = malloc(1000000);
    memset(many, 'a', 1000000);
    hex_of(many, 1000000, 997, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(many);
}

/* Every single bit, every length, and two equal changes a lane apart. */
static void test_checksum(void **state) {
    enum { N = 1024 };
    unsigned char data[N + 1];
    uint64_t of_length[N + 1];
    (void)state;
    for (int i = 0; i <= N; i++) data[i] = (unsigned char)(i * 37 >> 2);
    uint64_t sum = neap_checksum(data, N);
    for (int bit = 0; bit < N * 8; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(neap_checksum(data, N) != sum);
        if (bit + 512 < N * 8) { /* the same bit of the next word of the same chain */
            data[bit / 8 + 64] ^= (unsigned char)(1 << bit % 8);
            assert_true(neap_checksum(data, N) != sum);
            data[bit / 8 + 64] ^= (unsigned char)(1 << bit % 8);
        }
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    memset(data, 0, sizeof data);
    for (int n = 0; n <= N; n++) {
        of_length[n] = neap_checksum(data, (size_t)n);
        for (int k = n > 200 ? n - 200 : 0; k < n; k++) assert_true(of_length[k] != of_length[n]);
    }
    assert_true(neap_checksum(data, N) == neap_checksum(data + 1, N)); /* alignment is no content */
}

static neap_store_about about_of(uint8_t tag) {
    neap_store_about about = {.kind = NEAP_STORE_TUNING, .origin = "/models/some", .notes = "note", .notes_bytes = 4};
    memset(about.key, tag, sizeof about.key);
    return about;
}

static void test_small_files(void **state) {
    char dir[STORE_PATH], data[64] = "";
    size_t n = 0;
    neap_store s;
    (void)state;
    store_make(dir);
    assert_int_equal(neap_store_open(&s, dir, false), NEAP_OK);
    neap_store_about a = about_of(1), b = about_of(2);
    assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, a.key, data, sizeof data, &n), NEAP_NOT_FOUND);
    assert_int_equal(neap_store_put(&s, "x.tuning", &a, "12345", 5), NEAP_OK);
    assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, a.key, data, sizeof data, &n), NEAP_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(data, "12345", 5);
    assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, b.key, data, sizeof data, &n), NEAP_UNSUPPORTED);
    assert_int_equal(neap_store_get(&s, "x.tuning", NEAP_STORE_WEIGHTS, a.key, data, sizeof data, &n),
                     NEAP_UNSUPPORTED);
    assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, a.key, data, 4, &n), NEAP_BAD_FILE);
    assert_int_equal(neap_store_put(&s, "x.tuning", &b, "678", 3), NEAP_OK); /* replaced */
    assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, b.key, data, sizeof data, &n), NEAP_OK);
    assert_int_equal(n, 3);
    /* Somebody else is writing: the file stays what it is. */
    char path[STORE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/x.tuning.tmp", dir);
    store_write_file(path, "half", 4);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(neap_store_put(&s, "x.tuning", &a, "9", 1), NEAP_BUSY);
    neap_store_sweep(&s);
    assert_int_equal(store_count_temporary(dir), 1); /* alive */
    (void)close(fd);
    neap_store_sweep(&s);
    assert_int_equal(store_count_temporary(dir), 0); /* left behind */
    store_write_file(path, "half", 4);
    assert_int_equal(neap_store_put(&s, "x.tuning", &a, "9", 1), NEAP_OK); /* taken over */
    assert_int_equal(store_count(dir), 1);
    neap_store_close(&s);
    store_remove(dir);
}

/* ---- list and prune ---- */

typedef struct seen {
    char text[4096];
    int n, stop_at;
} seen;

static int see(void *user, const neap_cache_entry *e) {
    seen *s = user;
    size_t n = strlen(s->text);
    (void)snprintf(s->text + n, sizeof s->text - n, "%s %s %s %s;", e->name, e->kind, neap_status_name(e->status),
                   e->origin);
    assert_int_equal(e->struct_size, sizeof *e);
    assert_true((e->status == NEAP_OK) == (e->text[0] == 0));
    return ++s->n == s->stop_at;
}

static void use_at(const char *dir, const char *name, int64_t seconds) {
    char path[STORE_PATH + 64];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* a, b, c good and used one after the other; d damaged in its content, e in its head; a temporary; a stranger. */
static void fill(const char *dir) {
    neap_store s;
    char content[3000] = "content", path[STORE_PATH + 64];
    assert_int_equal(neap_store_open(&s, dir, false), NEAP_OK);
    neap_store_about a = about_of(1);
    static const char *const names[] = {"a.tuning", "b.tuning", "c.tuning", "d.tuning", "e.tuning"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(neap_store_put(&s, names[i], &a, content, sizeof content), NEAP_OK);
        size_t n = 0;
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        char *bytes = store_read_file(path, &n);
        if (i >= 3) bytes[i == 3 ? n - 1 : 20] ^= 4;
        store_write_file(path, bytes, n);
        free(bytes);
        use_at(dir, names[i], (int64_t)time(NULL) - 1000 + 100 * i);
    }
    neap_store_close(&s);
    (void)snprintf(path, sizeof path, "%s/f.weights.tmp", dir);
    store_write_file(path, "half", 4);
    (void)snprintf(path, sizeof path, "%s/stranger.txt", dir);
    store_write_file(path, "hello", 5);
}

static void test_list(void **state) {
    char dir[STORE_PATH];
    (void)state;
    store_make(dir);
    seen s = {.text = ""};
    assert_int_equal(neap_cache_list(dir, 0, see, &s), NEAP_OK);
    assert_int_equal(s.n, 0);
    assert_int_equal(neap_cache_list("/no/such/directory", 1, see, &s), NEAP_OK);
    assert_int_equal(s.n, 0);
    fill(dir);
    assert_int_equal(neap_cache_list(dir, 0, see, &s), NEAP_OK);
    assert_string_equal(s.text, "a.tuning tuning OK /models/some;b.tuning tuning OK /models/some;"
                                "c.tuning tuning OK /models/some;d.tuning tuning OK /models/some;"
                                "e.tuning tuning BAD_FILE ;f.weights.tmp temporary OK ;stranger.txt unknown OK ;");
    s = (seen){.text = ""};
    assert_int_equal(neap_cache_list(dir, 1, see, &s), NEAP_OK);
    assert_non_null(strstr(s.text, "d.tuning tuning BAD_FILE /models/some;"));
    s = (seen){.text = "", .stop_at = 2};
    assert_int_equal(neap_cache_list(dir, 1, see, &s), NEAP_OK);
    assert_int_equal(s.n, 2);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(neap_cache_list(dir, 0, see, &s), NEAP_UNSUPPORTED);
    store_remove(dir);
}

static void test_prune(void **state) {
    char dir[STORE_PATH];
    (void)state;
    store_make(dir);
    fill(dir);
    seen s = {.text = ""};
    assert_int_equal(neap_cache_prune("/no/such/directory", 0, -1, 0, see, &s), NEAP_OK);
    for (int dry = 1; dry >= 0; dry--) {
        s = (seen){.text = ""};
        assert_int_equal(neap_cache_prune(dir, UINT64_MAX, -1, dry, see, &s), NEAP_OK);
        assert_non_null(strstr(s.text, "e.tuning"));
        assert_non_null(strstr(s.text, "f.weights.tmp"));
        assert_int_equal(s.n, 2);
        assert_int_equal(store_count(dir), dry ? 6 : 4);
    }
    s = (seen){.text = ""};
    assert_int_equal(neap_cache_prune(dir, UINT64_MAX, 950, 0, see, &s), NEAP_OK); /* a was used 1000 s ago */
    assert_string_equal(s.text, "a.tuning tuning OK /models/some;");
    s = (seen){.text = ""};
    assert_int_equal(neap_cache_prune(dir, 15000, -1, 0, see, &s), NEAP_OK); /* three of 7,096 bytes: the oldest goes */
    assert_string_equal(s.text, "b.tuning tuning OK /models/some;");
    assert_int_equal(neap_cache_prune(dir, 0, -1, 0, NULL, NULL), NEAP_OK);
    assert_int_equal(store_count(dir), 0);
    s = (seen){.text = ""};
    assert_int_equal(neap_cache_list(dir, 1, see, &s), NEAP_OK);
    assert_string_equal(s.text, "stranger.txt unknown OK ;");
    store_remove(dir);
}

/* ---- what is in the way ---- */

static void name_in(const char *dir, const char *name, char path[STORE_PATH + 64]) {
    (void)snprintf(path, STORE_PATH + 64, "%s/%s", dir, name);
}

/* Entries that cannot be removed: the others go all the same, and the result says it. */
static void test_prune_directory(void **state) {
    char dir[STORE_PATH], path[STORE_PATH + 64];
    (void)state;
    store_make(dir);
    fill(dir);
    name_in(dir, "a1.weights", path);
    assert_int_equal(mkdir(path, 0700), 0);
    use_at(dir, "a1.weights", (int64_t)time(NULL) - 990); /* before all that is bad */
    for (int dry = 1; dry >= 0; dry--) {
        seen s = {.text = ""};
        assert_int_equal(neap_cache_prune(dir, UINT64_MAX, -1, dry, see, &s), NEAP_IO);
        assert_string_equal(neap_last_error(), "a1.weights: cannot remove: Is a directory");
        assert_string_equal(s.text, "e.tuning tuning BAD_FILE ;f.weights.tmp temporary OK ;");
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(store_count(dir), dry ? 7 : 5);
    }
    store_remove(dir);
}

/* A directory that its user made read-only; root may write it, so root becomes somebody else. */
static void test_prune_read_only(void **state) {
    char dir[STORE_PATH];
    const bool is_root = geteuid() == 0;
    (void)state;
    if (is_root && seteuid(65534) != 0) skip();
    store_make(dir);
    fill(dir);
    assert_int_equal(chmod(dir, 0500), 0);
    for (int dry = 1; dry >= 0; dry--) {
        seen s = {.text = ""};
        assert_int_equal(neap_cache_prune(dir, 0, -1, dry, see, &s), NEAP_IO);
        assert_string_equal(neap_last_error(), "a.tuning: cannot remove: Permission denied");
        assert_int_equal(s.n, 0);
        assert_int_equal(store_count(dir), 6);
    }
    assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(neap_cache_prune(dir, 0, -1, 0, NULL, NULL), NEAP_OK);
    assert_int_equal(store_count(dir), 0);
    store_remove(dir);
    if (is_root) assert_int_equal(seteuid(0), 0);
}

enum { DANGLING, LINK, FIFO, UNREADABLE, HARD_LINK, N_STRAYS };

static void make_stray(const char *dir, const char *name, int which) {
    char path[STORE_PATH + 64], target[STORE_PATH + 64];
    name_in(dir, name, path);
    name_in(dir, "stranger.txt", target);
    switch (which) {
    case DANGLING: assert_int_equal(symlink("nowhere", path), 0); break;
    case LINK: assert_int_equal(symlink("stranger.txt", path), 0); break;
    case FIFO: assert_int_equal(mkfifo(path, 0600), 0); break;
    case HARD_LINK: assert_int_equal(link(target, path), 0); break;
    default: store_write_file(path, "half", 4); assert_int_equal(chmod(path, 0), 0);
    }
}

/* Something else under the name of a temporary: writers, the sweep and prune remove it, list names it. */
static void test_strays(void **state) {
    char dir[STORE_PATH], path[STORE_PATH + 64], *bytes, data[8];
    size_t n = 0;
    neap_store s;
    neap_store_about a = about_of(1);
    (void)state;
    store_make(dir);
    name_in(dir, "stranger.txt", path);
    store_write_file(path, "hello", 5);
    assert_int_equal(neap_store_open(&s, dir, false), NEAP_OK);
    for (int which = 0; which < N_STRAYS; which++) {
        make_stray(dir, "x.tuning.tmp", which);
        seen seen_now = {.text = ""};
        assert_int_equal(neap_cache_list(dir, 0, see, &seen_now), NEAP_OK);
        assert_string_equal(seen_now.text, which == HARD_LINK ? "stranger.txt unknown OK ;x.tuning.tmp temporary OK ;"
                                                              : "stranger.txt unknown OK ;"
                                                                "x.tuning.tmp temporary BAD_FILE ;");
        assert_int_equal(neap_store_put(&s, "x.tuning", &a, "12345", 5), NEAP_OK);
        assert_int_equal(neap_store_get(&s, "x.tuning", a.kind, a.key, data, sizeof data, &n), NEAP_OK);
        assert_int_equal(store_count_temporary(dir), 0);
        for (int way = 0; way < 3; way++) { /* sweep, prune that only says it, prune */
            if (way != 2) make_stray(dir, "y.weights.tmp", which);
            seen_now = (seen){.text = ""};
            if (way == 0)
                neap_store_sweep(&s);
            else
                assert_int_equal(neap_cache_prune(dir, UINT64_MAX, -1, way == 1, see, &seen_now), NEAP_OK);
            assert_int_equal(seen_now.n, way != 0);
            assert_int_equal(store_count_temporary(dir), way == 1);
        }
        store_only_file(dir, path, sizeof path);
        assert_int_equal(unlink(path), 0);
        name_in(dir, "stranger.txt", path);
        bytes = store_read_file(path, &n);
        assert_int_equal(n, 5);
        assert_memory_equal(bytes, "hello", 5); /* nothing was written through a link */
        free(bytes);
    }
    neap_store_close(&s);
    store_remove(dir);
}

/* A directory there is the one thing that only its user can judge. */
static void test_stray_directory(void **state) {
    char dir[STORE_PATH], path[STORE_PATH + 64];
    neap_store s;
    neap_store_about a = about_of(1);
    (void)state;
    store_make(dir);
    assert_int_equal(neap_store_open(&s, dir, false), NEAP_OK);
    name_in(dir, "x.tuning.tmp", path);
    assert_int_equal(mkdir(path, 0700), 0);
    neap_store_sweep(&s);
    assert_int_equal(neap_store_put(&s, "x.tuning", &a, "12345", 5), NEAP_IO);
    assert_non_null(strstr(neap_last_error(), "x.tuning.tmp: a directory"));
    assert_non_null(strstr(neap_last_error(), "must be removed by hand"));
    seen seen_now = {.text = ""};
    assert_int_equal(neap_cache_list(dir, 0, see, &seen_now), NEAP_OK);
    assert_string_equal(seen_now.text, "x.tuning.tmp temporary BAD_FILE ;");
    seen_now = (seen){.text = ""};
    assert_int_equal(neap_cache_prune(dir, UINT64_MAX, -1, 0, see, &seen_now), NEAP_IO);
    assert_string_equal(neap_last_error(), "x.tuning.tmp: cannot remove: Is a directory");
    assert_int_equal(seen_now.n, 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(neap_store_put(&s, "x.tuning", &a, "12345", 5), NEAP_OK);
    neap_store_close(&s);
    store_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sha256),          cmocka_unit_test(test_checksum),
                                       cmocka_unit_test(test_small_files),     cmocka_unit_test(test_list),
                                       cmocka_unit_test(test_prune),           cmocka_unit_test(test_prune_directory),
                                       cmocka_unit_test(test_prune_read_only), cmocka_unit_test(test_strays),
                                       cmocka_unit_test(test_stray_directory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
