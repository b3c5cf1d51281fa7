/* Cache directories for tests: made in memory where that exists, looked into, damaged, removed. */
#ifndef NEAP_TESTS_STORE_FIXTURE_H
#define NEAP_TESTS_STORE_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "format/store_inner.h"
#include "models/packed.h"

enum { STORE_PATH = 64 };

static inline bool store_is_long(void) {
    const char *s = getenv("NEAP_LONG");
    return s != NULL && s[0] == '1';
}

static inline void store_make(char path[STORE_PATH]) {
    (void)snprintf(path, STORE_PATH, "%s/neap-cache-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(path));
}

static inline int store_remove_one(const char *path, const struct stat *st, int flag, struct FTW *where) {
    (void)st;
    (void)flag;
    return where->level == 0 ? 0 : remove(path);
}

static inline void store_empty(const char *path) { (void)nftw(path, store_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static inline void store_remove(const char *path) {
    store_empty(path);
    assert_int_equal(rmdir(path), 0);
}

/* Regular files; *temporary of them are temporaries; the name of one is copied to name (256) unless NULL. */
static inline int store_look(const char *path, int *temporary, char *name) {
    DIR *d = opendir(path);
    int n = 0;
    assert_non_null(d);
    *temporary = 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        bool is_temporary = false;
        if (neap_store_kind_of(e->d_name, &is_temporary) == 0) continue;
        n++;
        *temporary += is_temporary;
        if (name != NULL) (void)snprintf(name, 256, "%s", e->d_name);
    }
    (void)closedir(d);
    return n;
}

static inline int store_count(const char *path) {
    int temporary = 0;
    return store_look(path, &temporary, NULL);
}

static inline int store_count_temporary(const char *path) {
    int temporary = 0;
    (void)store_look(path, &temporary, NULL);
    return temporary;
}

static inline void store_only_file(const char *dir, char *path, size_t capacity) {
    int temporary = 0;
    char name[256] = "";
    assert_int_equal(store_look(dir, &temporary, name), 1);
    assert_int_equal(temporary, 0);
    (void)snprintf(path, capacity, "%s/%s", dir, name);
}

static inline char *store_read_file(const char *path, size_t *n) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    assert_non_null(bytes);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    assert_int_equal(*n, st.st_size);
    (void)fclose(f);
    return bytes;
}

static inline void store_write_file(const char *path, const char *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    (void)close(fd);
}

/* Makes the checksum of a head right. */
static inline void store_sign(char *bytes, size_t head_bytes) {
    const size_t at = offsetof(neap_store_head, checksum);
    memset(bytes + at, 0, sizeof(uint64_t));
    uint64_t sum = neap_checksum(bytes, head_bytes);
    memcpy(bytes + at, &sum, sizeof sum);
}

/* Lets the only file of the cache say that the shard had the times that it has now. */
static inline void store_restamp(const char *cache, const char *shard) {
    char path[STORE_PATH + 264];
    size_t n = 0;
    struct stat st;
    neap_store_head h;
    store_only_file(cache, path, sizeof path);
    char *bytes = store_read_file(path, &n);
    memcpy(&h, bytes, sizeof h);
    assert_int_equal(stat(shard, &st), 0);
    neap_packed_notes *notes = (void *)(bytes + sizeof h + neap_store_padded(h.origin_bytes));
    assert_int_equal(notes->n_shards, 1);
    notes->shards[0].stamp.modified_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    notes->shards[0].stamp.changed_ns = (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
    store_sign(bytes, (size_t)h.head_bytes);
    store_write_file(path, bytes, n);
    free(bytes);
}

/* A log that keeps all lines. */
static char store_text[16384];
static inline void store_lines_begin(void) { store_text[0] = 0; }
static inline const char *store_lines(void) { return store_text; }
static inline bool store_lines_have(const char *part) { return strstr(store_text, part) != NULL; }
static inline void store_log(void *user, neap_log_level level, const char *text) {
    (void)user;
    (void)level;
    size_t n = strlen(store_text);
    (void)snprintf(store_text + n, sizeof store_text - n, "%s\n", text);
}

#endif
