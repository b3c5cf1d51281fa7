/* The prefix cache's copy on disk: written, found, read back bit for bit in a fresh instance; damage of every kind
 * refused without a trace; other models, tenants and processes; full disks; kill -9; limits. Cases B5, B6, B10, C1-C7.
 * */
#include "unit/prefix_rig.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { TOKENS = 1024 };

static char dir[STORE_PATH];

static int begin(void **state) {
    (void)state;
    store_make(dir);
    store_lines_begin();
    return 0;
}

static int end(void **state) {
    (void)state;
    store_remove(dir);
    return 0;
}

/* Files of links; *temporary of ours. */
static int count_links(int *temporary) {
    DIR *d = opendir(dir);
    int n = 0;
    *temporary = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        uint8_t key[NEAP_PREFIX_KEY];
        n += neap_prefix_file_key(e->d_name, key);
        *temporary += strstr(e->d_name, ".tmp") != NULL;
    }
    (void)closedir(d);
    return n;
}

static int n_links(void) {
    int temporary;
    return count_links(&temporary);
}

/* The path of a link; the i-th that is found. */
static void link_path(char path[STORE_PATH + 64], int which) {
    DIR *d = opendir(dir);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        uint8_t key[NEAP_PREFIX_KEY];
        if (neap_prefix_file_key(e->d_name, key) && which-- == 0)
            (void)snprintf(path, STORE_PATH + 64, "%.60s/%.60s", dir, e->d_name);
    }
    (void)closedir(d);
    assert_true(which < 0);
}

static void keep(const char *space, const int32_t *tokens, const int64_t *points, int n_points) {
    rig r;
    rig_open(&r, dir, &RIG_USUAL);
    (void)rig_run(&r, space, tokens, points, n_points, true);
    rig_settle(&r);
    rig_close(&r);
}

/* ---- what it is for ---- */

static void kept_across_restarts(void **state) {
    (void)state;
    static const int64_t points[] = {20, 64, 100, 128, 129, 200, 500, 777};
    int32_t tokens[TOKENS];
    rig r;
    rig_tokens(tokens, TOKENS, 1, 0);
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 777), 0);
    assert_int_equal(neap_prefix_disk_load(r.disk, "a", tokens, 777), NEAP_NOT_FOUND);
    assert_int_equal(rig_run(&r, "a", tokens, points, 8, true), 0);
    rig_settle(&r);
    assert_int_equal(rig_stats(&r).n_saved, 7); /* 129 is too near to 128 */
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 777), 777);
    assert_int_equal(neap_prefix_disk_load(r.disk, "a", tokens, 777), NEAP_NOT_FOUND); /* not longer than in memory */
    rig_close(&r);

    static const int64_t asked[][2] = {{19, 0},    {20, 20},   {63, 20},   {64, 64},   {99, 64},
                                       {100, 100}, {128, 128}, {129, 128}, {200, 200}, {499, 200},
                                       {500, 500}, {776, 500}, {777, 777}, {1000, 777}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) { /* each in an instance that knows nothing */
        rig_open(&r, dir, &RIG_USUAL);
        assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, asked[i][0]), asked[i][1]);
        assert_int_equal(rig_load(&r, "a", tokens, asked[i][0]), asked[i][1]);
        assert_int_equal(rig_stats(&r).n_loaded, asked[i][1] > 0);
        assert_int_equal(neap_prefix_disk_load(r.disk, "a", tokens, asked[i][0]), NEAP_NOT_FOUND); /* it is there now */
        rig_close(&r);
    }
    assert_string_equal(store_lines(), "");
    assert_int_equal(n_links(), 7);
}

/* A conversation goes on after a restart: loaded, continued, saved behind what is there; and a branch of it. */
static void chains_grow(void **state) {
    (void)state;
    static const int64_t first[] = {300}, second[] = {350, 420}, branch[] = {310, 500};
    int32_t tokens[TOKENS], other[TOKENS];
    rig r;
    rig_tokens(tokens, TOKENS, 0, 0);
    rig_tokens(other, TOKENS, 5, 305);
    keep("a", tokens, first, 1);
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&r, "a", tokens, 419), 300);
    assert_int_equal(rig_run(&r, "a", tokens, second, 2, true), 300);
    rig_settle(&r);
    rig_close(&r);
    assert_int_equal(n_links(), 3);
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&r, "a", other, 499), 300);
    assert_int_equal(rig_run(&r, "a", other, branch, 2, true), 300);
    rig_settle(&r);
    assert_int_equal(rig_load(&r, "a", tokens, 420), 420); /* pages of the beginning are in memory already */
    rig_close(&r);
    assert_int_equal(n_links(), 4); /* 310 is too near to 300 */
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&r, "a", other, 500), 500);
    assert_int_equal(rig_load(&r, "a", tokens, 500), 420);
    rig_close(&r);
}

static void spaces_are_apart(void **state) {
    (void)state;
    static const int64_t points[] = {100, 200};
    static const char *const spaces[] = {"", "a", "b", "ab", "a\nb"};
    int32_t tokens[TOKENS];
    rig r;
    rig_tokens(tokens, TOKENS, 3, 0);
    keep("a", tokens, points, 2);
    rig_open(&r, dir, &RIG_USUAL);
    for (int i = 0; i < 5; i++)
        assert_int_equal(neap_prefix_disk_find(r.disk, spaces[i], tokens, 200), strcmp(spaces[i], "a") == 0 ? 200 : 0);
    assert_int_equal(neap_prefix_disk_load(r.disk, "b", tokens, 200), NEAP_NOT_FOUND);
    uint8_t names[2][NEAP_PREFIX_KEY];
    neap_prefix_chain chain;
    for (int i = 0; i < 2; i++) neap_prefix_chain_begin(r.disk, spaces[1 + i], names[i], &chain);
    assert_memory_not_equal(names[0], names[1], NEAP_PREFIX_KEY);
    rig_close(&r);
    char path[STORE_PATH + 64], *bytes;
    for (int i = 0; i < 2; i++) { /* names of spaces stay out of files and names */
        size_t n;
        link_path(path, i);
        bytes = store_read_file(path, &n);
        assert_null(memmem(bytes, n, "a\0", 2) != NULL && memmem(bytes, n, "space", 5) != NULL ? "named" : NULL);
        free(bytes);
    }
}

/* The same model under another key sees nothing, and leaves the files to the one they are of. */
static void other_models(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS];
    rig r;
    rig_tokens(tokens, TOKENS, 3, 0);
    keep("a", tokens, points, 1);
    rig_options o = RIG_USUAL;
    o.model = 2;
    rig_open(&r, dir, &o);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 200), 0);
    assert_true(rig_stats(&r).bytes > 0); /* they count */
    assert_int_equal(r.disk->index.entries[0].kind, NEAP_PREFIX_FOREIGN);
    assert_int_equal(rig_run(&r, "a", tokens, points, 1, true), 0);
    rig_settle(&r);
    rig_close(&r);
    assert_int_equal(n_links(), 2);
    o.bytes_max = 60000; /* and go first */
    rig_open(&r, dir, &o);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 200), 200);
    rig_close(&r);
    assert_int_equal(n_links(), 1);
    o = RIG_USUAL;
    o.slot_pages = 2; /* contexts that the file does not fit into */
    o.model = 2;
    rig_open(&r, dir, &o);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 128), 0);
    rig_close(&r);
    assert_string_equal(store_lines(), "");
    assert_int_equal(n_links(), 1);
}

/* ---- damage ---- */

typedef struct whole {
    neap_store store;
    neap_prefix_shape shape;
    uint8_t key[NEAP_PREFIX_KEY];
    char path[STORE_PATH + 64], *good, *work;
    size_t n;
    uint8_t *page, *state;
} whole;

/* As the thread reads it. */
static neap_status read_all(const whole *w) {
    neap_prefix_link l;
    neap_store_reader *r = NULL;
    neap_status status = neap_prefix_file_open(&r, &l, &w->store, &w->shape, w->key);
    if (status != NEAP_OK) return status;
    for (int32_t i = neap_prefix_first_page(&l); i < neap_prefix_n_pages(l.n) && status == NEAP_OK; i++)
        status = neap_prefix_file_page(r, &w->shape, &l, i, w->page);
    if (status == NEAP_OK) status = neap_prefix_file_state(r, &w->shape, &l, w->state);
    neap_store_reader_close(r);
    return status;
}

static void take(whole *w, int which) {
    rig r;
    link_path(w->path, which);
    assert_true(neap_prefix_file_key(strrchr(w->path, '/') + 1, w->key));
    rig_open(&r, dir, &RIG_USUAL);
    w->shape = r.disk->shape;
    rig_close(&r);
    assert_int_equal(neap_store_open(&w->store, dir, false), NEAP_OK);
    w->good = store_read_file(w->path, &w->n);
    w->work = malloc(w->n);
    w->page = malloc(w->shape.page_bytes);
    w->state = malloc(w->shape.state_bytes);
    assert_int_equal(read_all(w), NEAP_OK);
}

static void leave(whole *w) {
    neap_store_close(&w->store);
    free(w->good);
    free(w->work);
    free(w->page);
    free(w->state);
}

static void put_bytes(const whole *w, const char *bytes, size_t n) { store_write_file(w->path, bytes, n); }

static void flip(const whole *w, size_t bit) {
    int fd = open(w->path, O_WRONLY | O_CLOEXEC);
    char byte = (char)(w->good[bit / 8] ^ 1 << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    (void)close(fd);
}

static void unflip(const whole *w, size_t bit) {
    int fd = open(w->path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &w->good[bit / 8], 1, (off_t)(bit / 8)), 1);
    (void)close(fd);
}

/* A whole start over the damaged file: nothing half comes out, the file is gone, the rest works. */
static void start_over(const whole *w, const int32_t *tokens, int64_t n) {
    static const int64_t points[] = {200};
    rig r;
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&r, "a", tokens, n), 0);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, n), 0);
    assert_int_equal(rig_stats(&r).n_rejected, 1);
    assert_int_equal(rig_stats(&r).n_loaded, 0);
    assert_int_equal(rig_stats(&r).bytes, 0);
    assert_int_equal(access(w->path, F_OK), -1);
    assert_int_equal(rig_run(&r, "a", tokens, points, 1, true), 0); /* computed again, and written */
    rig_settle(&r);
    rig_close(&r);
    assert_true(store_lines_have("not used and removed"));
    store_lines_begin();
    assert_int_equal(read_all(w), NEAP_OK);
}

static void damage_is_refused(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS];
    whole w;
    neap_store_head h;
    uint64_t random = 1;
    rig_tokens(tokens, TOKENS, 3, 0);
    keep("a", tokens, points, 1);
    take(&w, 0);
    memcpy(&h, w.good, sizeof h);
    for (size_t bit = 0; bit < h.head_bytes * 8; bit++) { /* every bit before the content */
        flip(&w, bit);
        neap_status status = read_all(&w);
        assert_true(status == NEAP_BAD_FILE || status == NEAP_UNSUPPORTED);
        unflip(&w, bit);
    }
    for (int i = 0; i < 1000; i++) {
        random = rig_mix(random, 5);
        size_t bit = h.head_bytes * 8 + random % ((w.n - h.head_bytes) * 8);
        flip(&w, bit);
        assert_int_equal(read_all(&w), NEAP_BAD_FILE);
        if (i % 50 == 0) start_over(&w, tokens, 200);
        put_bytes(&w, w.good, w.n);
    }
    for (size_t i = 0; i < 20; i++) {
        put_bytes(&w, w.good, w.n * i / 20);
        start_over(&w, tokens, 200);
        put_bytes(&w, w.good, w.n - 1 - i);
        start_over(&w, tokens, 200);
    }
    w.work = realloc(w.work, w.n + 1);
    memcpy(w.work, w.good, w.n);
    w.work[w.n] = 0;
    put_bytes(&w, w.work, w.n + 1);
    start_over(&w, tokens, 200);
    put_bytes(&w, w.good, w.n);
    assert_int_equal(read_all(&w), NEAP_OK);
    leave(&w);
}

/* Lies under a good checksum. */
static void forge(const whole *w, size_t at, const void *bytes, size_t n) {
    neap_store_head h;
    memcpy(&h, w->good, sizeof h);
    memcpy(w->work, w->good, w->n);
    memcpy(w->work + at, bytes, n);
    store_sign(w->work, (size_t)h.head_bytes);
    put_bytes(w, w->work, w->n);
}

static size_t notes_at(const whole *w) {
    neap_store_head h;
    memcpy(&h, w->good, sizeof h);
    return sizeof h + neap_store_padded(h.origin_bytes);
}

static void lies_are_refused(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS];
    whole w;
    rig_tokens(tokens, TOKENS, 3, 0);
    keep("a", tokens, points, 1);
    take(&w, 0);
    const size_t notes = notes_at(&w);
    const int32_t negative = -1, other = tokens[77] + 1;
    forge(&w, notes + sizeof(neap_prefix_notes) + 77 * sizeof(int32_t), &other, sizeof other);
    start_over(&w, tokens, 200);
    forge(&w, notes + sizeof(neap_prefix_notes) + 77 * sizeof(int32_t), &negative, sizeof negative);
    start_over(&w, tokens, 200);
    forge(&w, notes + offsetof(neap_prefix_notes, space), "another tenant..", NEAP_PREFIX_KEY);
    start_over(&w, tokens, 200);
    static const int64_t wrong[] = {0, -1, 1, 199, 201, 264, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        forge(&w, notes + offsetof(neap_prefix_notes, n), &wrong[i], sizeof wrong[i]);
        start_over(&w, tokens, 200);
        if (wrong[i] == 0) continue;
        forge(&w, notes + offsetof(neap_prefix_notes, n_before), &wrong[i], sizeof wrong[i]);
        start_over(&w, tokens, 200);
    }
    neap_store_head h; /* pages that begin a byte too early, each under a good checksum */
    memcpy(&h, w.good, sizeof h);
    memcpy(w.work, w.good, w.n);
    neap_store_chunk *c = (void *)(w.work + notes + neap_store_padded(h.notes_bytes));
    c[0].bytes--;
    c[1].bytes++;
    c[0].checksum = neap_checksum(w.work + h.head_bytes, c[0].bytes);
    c[1].checksum = neap_checksum(w.work + h.head_bytes + c[0].bytes, c[1].bytes);
    store_sign(w.work, (size_t)h.head_bytes);
    put_bytes(&w, w.work, w.n);
    start_over(&w, tokens, 200);
    leave(&w);
}

/* A state that is not finite is neither kept nor believed. */
static void states_are_finite(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS], slot;
    int64_t found;
    bool kept;
    float bad[RIG_STATE + RIG_WINDOW] = {0};
    rig r;
    rig_tokens(tokens, TOKENS, 3, 0);
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(neap_prefix_open(r.prefix, "a", tokens, 200, 200, &slot, &found), NEAP_OK);
    rig_compute(&r, slot, tokens, 0, 200);
    bad[7] = strtof("inf", NULL);
    neap_caches_state_load(&r.caches, slot, (const uint8_t *)bad);
    assert_int_equal(neap_prefix_put(r.prefix, slot, "a", tokens, 200, true, &kept), NEAP_OK);
    neap_prefix_disk_save(r.disk, "a", tokens, 200);
    assert_int_equal(neap_prefix_close(r.prefix, slot), NEAP_OK);
    rig_settle(&r);
    rig_close(&r);
    assert_int_equal(n_links(), 0);
    keep("a", tokens, points, 1);
    whole w;
    take(&w, 0);
    memcpy(w.work, w.good, w.n); /* into the last chunk, with its checksum */
    neap_store_head h;
    memcpy(&h, w.good, sizeof h);
    neap_store_chunk *c = (void *)(w.work + notes_at(&w) + neap_store_padded(h.notes_bytes));
    size_t at = w.n - c[h.n_chunks - 1].bytes;
    assert_int_equal(c[h.n_chunks - 1].bytes, w.shape.state_bytes);
    memcpy(w.work + at + 44, &(float){-strtof("nan", NULL)}, sizeof(float));
    c[h.n_chunks - 1].checksum = neap_checksum(w.work + at, c[h.n_chunks - 1].bytes);
    store_sign(w.work, (size_t)h.head_bytes);
    put_bytes(&w, w.work, w.n);
    start_over(&w, tokens, 200);
    leave(&w);
}

/* One damaged link in the middle: what comes before it stays, what continues it goes. */
static void chains_break(void **state) {
    (void)state;
    static const int64_t points[] = {100, 200, 300, 400};
    int32_t tokens[TOKENS];
    rig r;
    rig_tokens(tokens, TOKENS, 3, 0);
    for (int way = 0; way < 3; way++) {
        keep("a", tokens, points, 4);
        assert_int_equal(n_links(), 4);
        whole w;
        char path[STORE_PATH + 64];
        for (int i = 0;; i++) { /* the link 100 .. 200 */
            neap_prefix_link l;
            neap_store_reader *reader = NULL;
            take(&w, i);
            assert_int_equal(neap_prefix_file_open(&reader, &l, &w.store, &w.shape, w.key), NEAP_OK);
            neap_store_reader_close(reader);
            bool is_it = l.n == 200;
            if (is_it && way == 0) flip(&w, 4096 * 8 + 5000); /* seen by whoever reads it */
            memcpy(path, w.path, sizeof path);
            leave(&w);
            if (is_it) break;
        }
        if (way == 1) assert_int_equal(unlink(path), 0); /* seen by whoever lists */
        rig_open(&r, dir, &RIG_USUAL);
        if (way == 2) assert_int_equal(unlink(path), 0); /* taken away by another process */
        assert_int_equal(rig_load(&r, "a", tokens, 400), way == 1 ? 100 : 0);
        assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 400), 100);
        assert_int_equal(rig_stats(&r).n_rejected, way == 0);
        if (way != 1) assert_int_equal(rig_load(&r, "a", tokens, 400), 100);
        rig_close(&r);
        assert_int_equal(n_links(), 1);
        store_empty(dir);
    }
}

/* What is in the place of a file. */
static void strangers(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS];
    whole w;
    rig_tokens(tokens, TOKENS, 3, 0);
    keep("a", tokens, points, 1);
    take(&w, 0);
    char elsewhere[STORE_PATH + 64];
    (void)snprintf(elsewhere, sizeof elsewhere, "%.60s/elsewhere", dir);
    store_write_file(elsewhere, w.good, w.n);
    assert_int_equal(unlink(w.path), 0);
    assert_int_equal(symlink(elsewhere, w.path), 0);
    start_over(&w, tokens, 200);
    assert_int_equal(access(elsewhere, F_OK), 0);
    assert_int_equal(unlink(w.path), 0);
    assert_int_equal(mkfifo(w.path, 0600), 0);
    start_over(&w, tokens, 200);
    assert_int_equal(chmod(w.path, 0622), 0);
    start_over(&w, tokens, 200);
    if (geteuid() == 0) {
        assert_int_equal(chown(w.path, 12345, 12345), 0);
        start_over(&w, tokens, 200);
    }
    put_bytes(&w, "", 0);
    start_over(&w, tokens, 200);
    char path[STORE_PATH + 64]; /* under the name of another prefix */
    memcpy(path, w.path, sizeof path);
    char *digit = strrchr(path, '/') + 5;
    *digit = *digit == '0' ? '1' : '0';
    assert_int_equal(rename(w.path, path), 0);
    rig r;
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 200), 0);
    assert_int_equal(rig_stats(&r).n_rejected, 1);
    rig_close(&r);
    assert_int_equal(access(path, F_OK), -1);
    leave(&w);
}

static void directories(void **state) {
    (void)state;
    char path[STORE_PATH + 64];
    rig r;
    rig_make_caches(&r, &RIG_USUAL);
    (void)snprintf(path, sizeof path, "%.60s/a/b", dir);
    assert_int_equal(rig_try_open(&r, path, &RIG_USUAL), NEAP_OK); /* made */
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    neap_prefix_disk_close(r.disk);
    assert_int_equal(chmod(path, 0770), 0);
    assert_int_equal(rig_try_open(&r, path, &RIG_USUAL), NEAP_UNSUPPORTED);
    assert_null(r.disk);
    (void)snprintf(path, sizeof path, "%.60s/link", dir);
    assert_int_equal(symlink("a", path), 0);
    assert_int_equal(rig_try_open(&r, path, &RIG_USUAL), NEAP_UNSUPPORTED);
    (void)snprintf(path, sizeof path, "%.60s/file", dir);
    store_write_file(path, "x", 1);
    assert_int_equal(rig_try_open(&r, path, &RIG_USUAL), NEAP_UNSUPPORTED);
    neap_prefix_disk_close(NULL);
    neap_arena_destroy(r.arena);
}

/* A lost or damaged salt: everything is as new, and nothing can be mistaken. */
static void salt(void **state) {
    (void)state;
    static const int64_t points[] = {200};
    int32_t tokens[TOKENS];
    char path[STORE_PATH + 64];
    rig r;
    rig_tokens(tokens, TOKENS, 3, 0);
    (void)snprintf(path, sizeof path, "%.60s/salt.prefix", dir);
    for (int way = 0; way < 2; way++) {
        keep("a", tokens, points, 1);
        assert_int_equal(way == 0 ? unlink(path) : truncate(path, 4100), 0);
        rig_open(&r, dir, &RIG_USUAL);
        assert_int_equal(neap_prefix_disk_find(r.disk, "a", tokens, 200), 0);
        (void)rig_run(&r, "a", tokens, points, 1, true);
        rig_settle(&r);
        rig_close(&r);
        rig_open(&r, dir, &RIG_USUAL);
        assert_int_equal(rig_load(&r, "a", tokens, 200), 200);
        rig_close(&r);
    }
}

/* ---- several at once, limits ---- */

static void two_processes(void **state) {
    (void)state;
    static const int64_t points[] = {200, 300}, more[] = {200, 300, 400};
    int32_t tokens[TOKENS], other[TOKENS];
    rig a, b;
    rig_tokens(tokens, TOKENS, 3, 0);
    rig_tokens(other, TOKENS, 4, 0);
    rig_open(&a, dir, &RIG_USUAL);
    rig_open(&b, dir, &RIG_USUAL);
    for (int i = 0; i < 2; i++) { /* the same and different ones at the same time */
        (void)rig_run(&a, "a", i == 0 ? tokens : other, points, 2, true);
        (void)rig_run(&b, "a", tokens, more, 3, true);
    }
    rig_settle(&a);
    rig_settle(&b);
    rig_close(&a);
    rig_close(&b);
    rig_open(&a, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&a, "a", tokens, 400), 400);
    assert_int_equal(rig_load(&a, "a", other, 400), 300);
    rig_open(&b, dir, &RIG_USUAL); /* the other one throws everything away */
    neap_prefix_clear(a.prefix);
    b.disk->bytes_max = 1;
    neap_prefix_disk_prune(b.disk);
    assert_int_equal(n_links(), 0);
    for (int64_t n = 400; n >= 200; n -= 100) { /* each try takes away what it did not find */
        assert_int_equal(neap_prefix_disk_find(a.disk, "a", tokens, 400), n);
        assert_int_equal(rig_load(&a, "a", tokens, 400), 0);
    }
    assert_int_equal(neap_prefix_disk_find(a.disk, "a", tokens, 400), 0);
    assert_int_equal(neap_prefix_disk_find(a.disk, "a", other, 400), 300);
    assert_int_equal(rig_load(&a, "a", other, 400), 0);
    assert_int_equal(rig_stats(&a).n_rejected, 0);
    rig_close(&a);
    rig_close(&b);
    assert_string_equal(store_lines(), "");
}

/* Another process has written one link in another way, and what it continues is damaged. */
static void other_chains(void **state) {
    (void)state;
    static const int64_t points[] = {100, 200, 300}, others[] = {250, 300};
    int32_t tokens[TOKENS];
    uint8_t key[NEAP_PREFIX_KEY], space[NEAP_PREFIX_KEY];
    char name[NEAP_PREFIX_NAME], path[STORE_PATH + 64], *bytes;
    size_t n;
    neap_prefix_chain chain;
    rig a, b;
    rig_tokens(tokens, TOKENS, 3, 0);
    rig_open(&b, dir, &RIG_USUAL);
    rig_open(&a, dir, &RIG_USUAL);
    (void)rig_run(&a, "a", tokens, points, 3, true);
    rig_settle(&a);
    (void)rig_run(&b, "a", tokens, others, 2, true);
    rig_settle(&b);
    neap_prefix_clear(a.prefix);
    assert_int_equal(rig_load(&a, "a", tokens, 300), 300); /* the other's will do as well */
    neap_prefix_chain_begin(a.disk, "a", space, &chain);
    for (int i = 0; i < 250; i++) neap_prefix_chain_add(&chain, tokens[i]);
    neap_prefix_chain_key(&chain, 250, key);
    neap_prefix_file_name(key, name);
    (void)snprintf(path, sizeof path, "%.60s/%s", dir, name);
    bytes = store_read_file(path, &n);
    bytes[5000] ^= 1;
    store_write_file(path, bytes, n);
    free(bytes);
    neap_prefix_clear(a.prefix);
    assert_int_equal(rig_load(&a, "a", tokens, 300), 0);
    assert_int_equal(rig_stats(&a).n_rejected, 1);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(neap_prefix_disk_find(a.disk, "a", tokens, 300), 200);
    assert_int_equal(rig_load(&a, "a", tokens, 300), 200);
    rig_close(&a);
    rig_close(&b);
}

static void old_ones_go(void **state) {
    (void)state;
    static const int64_t points[] = {100, 300};
    int32_t tokens[TOKENS];
    rig r;
    rig_options o = RIG_USUAL;
    keep("x", (rig_tokens(tokens, TOKENS, 9, 0), tokens), points, 2);
    rig_open(&r, dir, &o);
    uint64_t one = rig_stats(&r).bytes; /* of a chain of two links */
    rig_close(&r);
    store_empty(dir);
    o.bytes_max = 4 * one + one / 2;
    rig_open(&r, dir, &o);
    for (uint32_t i = 0; i < 8; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        (void)rig_run(&r, "x", tokens, points, 2, true);
        rig_settle(&r);
        if (i < 3) continue;
        rig_tokens(tokens, TOKENS, 0, 0); /* used again and again, so it stays */
        neap_prefix_clear(r.prefix);
        assert_int_equal(rig_load(&r, "x", tokens, 300), 300);
    }
    assert_true(rig_stats(&r).bytes <= o.bytes_max);
    for (uint32_t i = 0; i < 8; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        assert_int_equal(neap_prefix_disk_find(r.disk, "x", tokens, 300), i == 0 || i > 4 ? 300 : i == 4 ? 100 : 0);
    }
    rig_close(&r);
    o.bytes_max = one + 1; /* a smaller limit holds from the start, and times of use survive */
    rig_open(&r, dir, &o);
    assert_true(rig_stats(&r).bytes <= o.bytes_max);
    rig_tokens(tokens, TOKENS, 0, 0);
    assert_int_equal(neap_prefix_disk_find(r.disk, "x", tokens, 300), 300);
    rig_close(&r);
    assert_int_equal(n_links(), 2);
    o.bytes_max = one / 8; /* too small for any */
    rig_open(&r, dir, &o);
    neap_prefix_clear(r.prefix);
    (void)rig_run(&r, "x", tokens, points, 2, true);
    rig_settle(&r);
    assert_int_equal(rig_stats(&r).bytes, 0);
    rig_close(&r);
    assert_int_equal(n_links(), 0);
}

static void files_are_counted(void **state) {
    (void)state;
    static const int64_t points[] = {50, 100};
    int32_t tokens[TOKENS];
    rig r;
    rig_open(&r, dir, &RIG_USUAL);
    r.disk->index.capacity = 5; /* one of them always free */
    for (uint32_t i = 0; i < 9; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        (void)rig_run(&r, "x", tokens, points, 2, true);
        rig_settle(&r);
        assert_int_equal(neap_prefix_disk_find(r.disk, "x", tokens, 100), 100);
        assert_in_range(n_links(), 2, 4);
    }
    rig_close(&r);
    assert_int_equal(n_links(), 4);
}

/* More links than a chain may have: it branches off half way up. */
static void long_chains(void **state) {
    (void)state;
    enum { LINKS = 300, N = LINKS * 16 };
    static int32_t tokens[N];
    int64_t points[2];
    rig r;
    rig_options o = RIG_USUAL;
    o.slot_pages = 80;
    o.pages = 200;
    rig_tokens(tokens, N, 6, 0);
    rig_open(&r, dir, &o);
    for (int64_t i = 1; i <= LINKS; i++) {
        points[0] = 16 * i;
        (void)rig_run(&r, "x", tokens, points, 1, true);
        if (i % 8 == 0) rig_settle(&r);
    }
    rig_settle(&r);
    assert_int_equal(rig_stats(&r).n_saved, LINKS);
    rig_close(&r);
    rig_open(&r, dir, &o);
    int32_t deepest = 0;
    for (int32_t i = 0; i < r.disk->index.n_ever; i++) {
        int32_t depth = 0;
        for (int32_t at = i; at >= 0; at = r.disk->index.entries[at].parent) depth++;
        if (depth > deepest) deepest = depth;
    }
    assert_in_range(deepest, 100, NEAP_PREFIX_LINKS_MAX);
    assert_int_equal(rig_load(&r, "x", tokens, N), N);
    rig_close(&r);
}

static void queue_is_bounded(void **state) {
    (void)state;
    static const int64_t points[] = {100};
    int32_t tokens[TOKENS];
    rig r;
    rig_options o = RIG_USUAL;
    o.states = 40;
    o.pages = 90;
    rig_open(&r, dir, &o);
    uint64_t calls = neap_alloc_calls();
    for (uint32_t i = 0; i < 40; i++) { /* some are dropped, none blocks */
        rig_tokens(tokens, TOKENS, i, 0);
        (void)rig_run(&r, "x", tokens, points, 1, true);
    }
    (void)rig_load(&r, "y", tokens, 100);
    neap_prefix_disk_close(r.disk); /* what is queued is written */
    assert_true(neap_alloc_calls() == calls);
    int kept = n_links(), temporary;
    assert_true(kept >= NEAP_PREFIX_JOBS);
    neap_prefix_clear(r.prefix);
    assert_int_equal(rig_try_open(&r, dir, &o), NEAP_OK);
    calls = neap_alloc_calls();
    int n = 0;
    for (uint32_t i = 0; i < 40; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        n += rig_load(&r, "x", tokens, 100) == 100;
    }
    assert_int_equal(n, kept);
    assert_true(neap_alloc_calls() == calls);
    assert_int_equal(neap_prefix_disk_find(r.disk, "x", tokens, 0), 0);
    rig_close(&r);
    assert_int_equal(count_links(&temporary), kept);
    assert_int_equal(temporary, 0);
}

static void queued_once(void **state) {
    (void)state;
    static const int64_t points[] = {100};
    int32_t tokens[TOKENS];
    int n = 0;
    rig r;
    rig_tokens(tokens, TOKENS, 1, 0);
    rig_open(&r, dir, &RIG_USUAL);
    (void)rig_run(&r, "x", tokens, points, 1, true);
    for (int i = 0; i < 5; i++) neap_prefix_disk_save(r.disk, "x", tokens, 100);
    neap_prefix_disk_save(r.disk, "x", tokens, 99); /* no such point */
    neap_prefix_disk_save(r.disk, "y", tokens, 100);
    (void)pthread_mutex_lock(&r.disk->lock);
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) n += r.disk->jobs[i].state != NEAP_PREFIX_IDLE;
    (void)pthread_mutex_unlock(&r.disk->lock);
    assert_int_equal(n, 1);
    rig_settle(&r);
    assert_int_equal(rig_stats(&r).n_saved, 1);
    neap_prefix_disk_wait(r.disk, 100000); /* nothing is under way: returns */
    rig_close(&r);
}

static void memory_is_announced(void **state) {
    (void)state;
    rig r;
    uint64_t bytes = 0;
    rig_make_caches(&r, &RIG_USUAL);
    assert_true(neap_prefix_disk_bytes(&r.caches, &bytes));
    assert_in_range(bytes, 1 << 20, 16 << 20);
    for (uint64_t k = 1;; k++) { /* every allocation of opening fails once */
        neap_alloc_fail_at(k);
        neap_status status = rig_try_open(&r, dir, &RIG_USUAL);
        neap_alloc_fail_at(0);
        if (status == NEAP_OK) {
            assert_in_range(k, 3, 10);
            break;
        }
        assert_int_equal(status, NEAP_NO_MEMORY);
        assert_null(r.disk);
    }
    rig_close(&r);
}

/* ---- disks that fail ---- */

static void try_full(const char *where) {
    static const int64_t points[] = {900};
    int32_t tokens[TOKENS];
    rig r;
    store_lines_begin();
    rig_make_caches(&r, &RIG_USUAL);
    assert_int_equal(rig_try_open(&r, where, &RIG_USUAL), NEAP_OK);
    for (uint32_t i = 0; i < 3; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        (void)rig_run(&r, "x", tokens, points, 1, true);
        rig_settle(&r);
        r.disk->retry_at = 0; /* a minute later */
    }
    assert_true(store_lines_have("not kept on disk for now"));
    assert_null(strstr(strstr(store_lines(), "for now") + 1, "for now")); /* once */
    assert_int_equal(rig_stats(&r).n_saved, 0);
    assert_int_equal(neap_prefix_disk_find(r.disk, "x", tokens, 900), 0);
    rig_close(&r);
}

static void full_disks(void **state) {
    (void)state;
    static const int64_t points[] = {900};
    int32_t tokens[TOKENS];
    struct rlimit before, small = {.rlim_cur = 100000};
    rig r;
    int temporary;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    rig_make_caches(&r, &RIG_USUAL);
    assert_int_equal(rig_try_open(&r, dir, &RIG_USUAL), NEAP_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint32_t i = 0; i < 4; i++) {
        rig_tokens(tokens, TOKENS, i, 0);
        (void)rig_run(&r, "x", tokens, points, 1, true);
        rig_settle(&r);
        if (i == 0) assert_true(r.disk->retry_at > 0);
        if (i > 0) r.disk->retry_at = 0; /* a minute later */
        if (i == 2) assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    }
    assert_true(store_lines_have("not kept on disk for now"));
    assert_null(strstr(strstr(store_lines(), "for now") + 1, "for now")); /* once */
    assert_int_equal(rig_stats(&r).n_saved, 1);                           /* and then it goes on */
    rig_close(&r);
    assert_int_equal(count_links(&temporary), 1);
    assert_int_equal(temporary, 0);
    rig_open(&r, dir, &RIG_USUAL);
    assert_int_equal(rig_load(&r, "x", tokens, 900), 900);
    rig_close(&r);
}

static void tiny_file_system(void **state) {
    (void)state;
    char path[STORE_PATH + 64];
    (void)snprintf(path, sizeof path, "%.60s/tiny", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    if (mount("tmpfs", path, "tmpfs", 0, "size=96k,mode=0700") != 0) return; /* not everybody may */
    try_full(path);
    assert_int_equal(umount2(path, MNT_DETACH), 0);
}

/* ---- kill -9 ---- */

/* In a process of its own, until it is killed. */
static void write_for_ever(const char *where) {
    static const int64_t points[] = {60, 200, 330, 600};
    int32_t tokens[TOKENS];
    rig r;
    rig_make_caches(&r, &RIG_USUAL);
    if (rig_try_open(&r, where, &RIG_USUAL) != NEAP_OK) _exit(3);
    for (uint32_t i = 0;; i++) {
        rig_tokens(tokens, TOKENS, i % 40, 0);
        (void)rig_run(&r, "x", tokens, points, 4, true);
        rig_settle(&r);
    }
}

/* Started and killed at a random moment: every second one into an empty directory and after it has
 * written something. */
static void run_and_kill(int i, uint64_t random) {
    const struct timespec some = {.tv_nsec = (long)(random % 30000000)}, pause = {.tv_nsec = 1000000};
    int status;
    if (i % 2 == 0) store_empty(dir);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)execl("/proc/self/exe", "test_prefix_disk", "--write", dir, (char *)NULL);
        _exit(4);
    }
    for (int k = 0; i % 2 == 0 && k < 20000 && n_links() == 0; k++) (void)nanosleep(&pause, NULL);
    (void)nanosleep(&some, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void killed(void **state) {
    (void)state;
    int32_t tokens[TOKENS];
    int64_t n_kept = 0;
    uint64_t random = (uint64_t)time(NULL);
    for (int i = 0; i < 50; i++) {
        rig r;
        int temporary;
        random = rig_mix(random, 1);
        run_and_kill(i, random);
        rig_open(&r, dir, &RIG_USUAL);
        (void)count_links(&temporary);
        assert_int_equal(temporary, 0);
        for (uint32_t k = 0; k < 40; k++) {
            rig_tokens(tokens, TOKENS, k, 0);
            int64_t n = neap_prefix_disk_find(r.disk, "x", tokens, 600);
            if (n == 0) break;
            assert_int_equal(rig_load(&r, "x", tokens, 600), n);
            n_kept++;
        }
        assert_int_equal(rig_stats(&r).n_rejected, 0);
        rig_close(&r);
    }
    assert_true(n_kept > 0);
    assert_string_equal(store_lines(), "");
}

/* ---- while the engine works ---- */

static void beside_work(void **state) {
    (void)state;
    static const int64_t points[] = {50, 90, 130, 250};
    int32_t tokens[TOKENS];
    int64_t n_loads = 0;
    rig r;
    rig_options o = RIG_USUAL;
    o.pages = 20; /* what was computed is soon evicted */
    o.states = 9;
    rig_open(&r, dir, &o);
    bool is_enough = false; /* on a busy machine the disk's thread may come late */
    for (uint32_t i = 0; i < 200 || (i < 100000 && !is_enough); i++) {
        uint32_t which = (uint32_t)(rig_mix(i, 3) % 12);
        rig_tokens(tokens, TOKENS, which, which % 3 * 60);
        neap_status status = neap_prefix_disk_load(r.disk, "x", tokens, 249);
        assert_true(status == NEAP_OK || status == NEAP_NOT_FOUND || status == NEAP_BUSY);
        n_loads += status == NEAP_OK;
        if (i % 2 == 0) neap_prefix_disk_wait(r.disk, 2);
        int32_t slot;
        int64_t found;
        status = neap_prefix_open(r.prefix, "x", tokens, 249, 250, &slot, &found);
        if (status == NEAP_OK) { /* else: what is held and reserved leaves no room now */
            assert_true(rig_is_right(&r, slot, tokens, found));
            for (int k = 0; k < 4; k++) {
                bool kept = false;
                if (points[k] <= found) continue;
                rig_compute(&r, slot, tokens, found, points[k]);
                found = points[k];
                (void)neap_prefix_put(r.prefix, slot, "x", tokens, found, true, &kept);
                if (kept) neap_prefix_disk_save(r.disk, "x", tokens, found);
                (void)neap_prefix_disk_settle(r.disk);
            }
            assert_int_equal(neap_prefix_close(r.prefix, slot), NEAP_OK);
        }
        (void)neap_prefix_disk_settle(r.disk);
        is_enough = n_loads > 0 && rig_stats(&r).n_loaded > 0 && rig_stats(&r).n_saved > 4;
    }
    rig_settle(&r);
    assert_true(n_loads > 0 && rig_stats(&r).n_loaded > 0 && rig_stats(&r).n_saved > 4);
    assert_int_equal(rig_stats(&r).n_rejected, 0);
    neap_status last = neap_prefix_disk_load(r.disk, "x", tokens, 250); /* closed in the middle of it */
    assert_true(last == NEAP_OK || last == NEAP_NOT_FOUND || last == NEAP_BUSY);
    rig_close(&r);
    assert_string_equal(store_lines(), "");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) write_for_ever(argv[2]);
    const struct CMUnitTest tests[] = {
        CASE(kept_across_restarts),
        CASE(chains_grow),
        CASE(spaces_are_apart),
        CASE(other_models),
        CASE(damage_is_refused),
        CASE(lies_are_refused),
        CASE(states_are_finite),
        CASE(chains_break),
        CASE(strangers),
        CASE(directories),
        CASE(salt),
        CASE(two_processes),
        CASE(old_ones_go),
        CASE(files_are_counted),
        CASE(long_chains),
        CASE(queue_is_bounded),
        CASE(queued_once),
        CASE(other_chains),
        CASE(memory_is_announced),
        CASE(full_disks),
        CASE(tiny_file_system),
        CASE(killed),
        CASE(beside_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
