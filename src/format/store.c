/* The directory of a store: opened safely, and rid of what a killed process left.
 *
 * Whoever may write a directory may replace what is in it, so it is used only when it belongs to this user and no group
 * or other may write it. The last component is not followed when it is a link; those before it are the user's own
 * choice (a home directory often is a link), and what counts is the directory that was opened in the end.
 *
 * A temporary file is locked (flock) by its writer, and the system lets go of the lock when the writer dies, however it
 * dies. So a temporary whose lock is free belongs to nobody; no process numbers are compared, and containers that share
 * a directory do not mistake each other for dead. What is not a regular file of this user was made by no writer;
 * it is in the way and goes without a lock. A directory stays: what lies in it is not ours to judge.
 *
 * Called by models and engine. Owns the descriptor of the directory. */
#include "format/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/file.h"
#include "format/store_inner.h"

static const char *const SUFFIXES[NEAP_STORE_KINDS] = {
    [NEAP_STORE_WEIGHTS] = ".weights", [NEAP_STORE_TUNING] = ".tuning", [NEAP_STORE_PREFIX] = ".prefix"};
static const char TEMPORARY[] = ".tmp";

const char *neap_store_suffix(neap_store_kind kind) { return SUFFIXES[kind]; }

static bool ends_with(const char *name, size_t n, const char *suffix) {
    size_t k = strlen(suffix);
    return n > k && memcmp(name + n - k, suffix, k) == 0;
}

int neap_store_kind_of(const char *name, bool *is_temporary) {
    size_t n = strlen(name);
    *is_temporary = ends_with(name, n, TEMPORARY);
    if (*is_temporary) n -= sizeof TEMPORARY - 1;
    for (int i = NEAP_STORE_WEIGHTS; i < NEAP_STORE_KINDS; i++)
        if (ends_with(name, n, SUFFIXES[i])) return i;
    return 0;
}

/* Makes every missing component; path is changed in between and put back. */
static neap_status make_directories(char *path) {
    for (char *p = path + 1;; p++) {
        char c = *p;
        if (c != '/' && c != 0) continue;
        *p = 0;
        int made = mkdir(path, 0700), error = errno;
        NEAP_CHECK(made == 0 || error == EEXIST || error == EISDIR || c == '/', neap_file_name_status(error),
                   "%s: cannot make the directory: %s", path, strerror(error));
        *p = c;
        if (c == 0) return NEAP_OK;
    }
}

static neap_status check_owner(int fd, const char *path) {
    struct stat st;
    NEAP_CHECK(fstat(fd, &st) == 0, NEAP_IO, "%s: %s", path, strerror(errno));
    NEAP_CHECK(st.st_uid == geteuid(), NEAP_UNSUPPORTED, "%s: belongs to user %u, not to user %u", path,
               (unsigned)st.st_uid, (unsigned)geteuid());
    NEAP_CHECK((st.st_mode & (S_IWGRP | S_IWOTH)) == 0, NEAP_UNSUPPORTED,
               "%s: others may write in it (mode %03o; chmod go-w makes it safe)", path, (unsigned)st.st_mode & 0777);
    return NEAP_OK;
}

static const int DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

neap_status neap_store_open(neap_store *s, const char *path, bool create) {
    s->fd = -1;
    neap_store_lend(s, NULL, 0);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--; /* behind a slash a link would be followed */
    NEAP_CHECK(n > 0 && n < sizeof s->path, NEAP_INVALID_ARGUMENT, "the name of the cache directory has %zu bytes", n);
    memcpy(s->path, path, n);
    s->path[n] = 0;
    int fd = open(s->path, DIRECTORY);
    if (fd < 0 && errno == ENOENT && create) {
        NEAP_TRY(make_directories(s->path));
        fd = open(s->path, DIRECTORY);
    }
    if (fd < 0) {
        int error = errno;
        NEAP_CHECK(error != ENOENT, NEAP_NOT_FOUND, "%s: no such directory", s->path);
        NEAP_CHECK(error != ELOOP && error != ENOTDIR, NEAP_UNSUPPORTED, "%s: a link or not a directory", s->path);
        NEAP_FAIL(neap_file_name_status(error), "%s: cannot open: %s", s->path, strerror(error));
    }
    neap_status status = check_owner(fd, s->path);
    if (status != NEAP_OK) {
        (void)close(fd);
        return status;
    }
    s->fd = fd;
    return NEAP_OK;
}

void neap_store_close(neap_store *s) {
    if (s->fd >= 0) (void)close(s->fd);
    s->fd = -1;
}

/* ---- memory of readers and writers ---- */

void neap_store_lend(neap_store *s, void *room, size_t bytes) {
    s->room = room;
    s->room_bytes = bytes;
}

enum { ROOM_ALIGN = 64 };

uint64_t neap_store_room_bytes(uint64_t notes_bytes, uint64_t n_chunks) {
    return NEAP_STORE_OBJECT + neap_store_head_bytes(64, notes_bytes, n_chunks) + n_chunks * sizeof(uint64_t) +
           3 * ROOM_ALIGN;
}

neap_status neap_store_claim(neap_store_memory *m, size_t bytes, const char *shown, void **out) {
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    if (m->room == NULL) return neap_mem_alloc(bytes, out);
    *out = NULL;
    NEAP_CHECK(bytes <= m->bytes - m->used, NEAP_LIMIT, "%s: its head needs %s, there is room for %s", shown,
               neap_size_text(bytes, need), neap_size_text(m->bytes - m->used, have));
    *out = m->room + m->used;
    memset(*out, 0, bytes);
    m->used += bytes;
    size_t gap = -m->used % ROOM_ALIGN;
    m->used += gap < m->bytes - m->used ? gap : m->bytes - m->used;
    return NEAP_OK;
}

void neap_store_give_back(const neap_store_memory *m, void *p) {
    if (m->room == NULL) neap_mem_free(p);
}

const char *neap_store_stray(const struct stat *st) {
    if (S_ISDIR(st->st_mode)) return "a directory in the place of a temporary file; it must be removed by hand";
    if (S_ISLNK(st->st_mode)) return "a link in the place of a temporary file";
    if (!S_ISREG(st->st_mode)) return "not a regular file";
    if (st->st_uid != geteuid()) return "a temporary file of another user";
    /* Writers give themselves both rights; without them nobody could even try the lock. */
    return (st->st_mode & (S_IRUSR | S_IWUSR)) == (S_IRUSR | S_IWUSR) ? NULL : "a temporary file that cannot be opened";
}

neap_status neap_store_check_temporary(const neap_store *s, const char *name) {
    struct stat st;
    if (fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return NEAP_OK; /* gone meanwhile */
    const char *stray = neap_store_stray(&st);
    NEAP_CHECK(stray == NULL, NEAP_BAD_FILE, "%s: %s", name, stray);
    return NEAP_OK;
}

static neap_status unlink_name(const neap_store *s, const char *name, bool is_dry, bool *is_removed) {
    struct stat st;
    int error = 0;
    if (!is_dry)
        error = unlinkat(s->fd, name, 0) != 0 ? errno : 0;
    else if (fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || faccessat(s->fd, ".", W_OK, AT_EACCESS) != 0)
        error = errno;
    else if (S_ISDIR(st.st_mode))
        error = EISDIR;
    NEAP_CHECK(error == 0 || error == ENOENT, NEAP_IO, "%s: cannot remove: %s", name, strerror(error));
    *is_removed = error == 0;
    return NEAP_OK;
}

/* Whoever renames or removes the name holds the lock, so between the look and the removal it stays what it is. */
static neap_status remove_unlocked(const neap_store *s, const char *name, bool is_dry, bool *is_removed) {
    struct stat mine, named;
    neap_status status = NEAP_OK;
    int fd = openat(s->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    NEAP_CHECK(fd >= 0 || errno == ENOENT, NEAP_IO, "%s: cannot open: %s", name, strerror(errno));
    if (fd < 0) return NEAP_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &mine) == 0 && S_ISREG(mine.st_mode) &&
        fstatat(s->fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && mine.st_dev == named.st_dev &&
        mine.st_ino == named.st_ino)
        status = unlink_name(s, name, is_dry, is_removed);
    (void)close(fd);
    return status;
}

neap_status neap_store_remove(const neap_store *s, const char *name, bool is_dry, bool *is_removed) {
    struct stat st;
    bool is_temporary = false;
    *is_removed = false;
    (void)neap_store_kind_of(name, &is_temporary);
    if (is_temporary && fstatat(s->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && neap_store_stray(&st) == NULL)
        return remove_unlocked(s, name, is_dry, is_removed);
    return unlink_name(s, name, is_dry, is_removed);
}

void neap_store_sweep(const neap_store *s) {
    int fd = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        if (fd >= 0) (void)close(fd);
        return;
    }
    for (const struct dirent *e = readdir(stream); e != NULL; e = readdir(stream)) {
        bool is_temporary = false, is_removed = false;
        if (neap_store_kind_of(e->d_name, &is_temporary) == 0 || !is_temporary) continue;
        neap_status status = neap_store_remove(s, e->d_name, false, &is_removed);
        (void)status; /* what is in the way of a writer, the writer reports */
    }
    (void)closedir(stream);
}
