/* What lies in a store, for people: neap_cache_list and neap_cache_prune.
 *
 * Listing opens every file as its reader would and reports what it says about itself, or why it would not be used.
 * Pruning removes what nobody would use, then what nobody has used for long. A file that another process has open stays
 * readable for that one; a temporary that is being written is left alone; names that are not ours are never touched.
 * What cannot be removed does not keep the rest from going; the first such failure is the result.
 *
 * Called by the program. Owns the list of names during a call. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "format/store.h"

enum { NAME_BYTES = 256, FILES_MAX = 100000 };

typedef struct file {
    char name[NAME_BYTES];
    uint64_t bytes;
    int64_t written, used;
    int kind; /* neap_store_kind; 0: not ours */
    bool is_temporary;
    bool is_doomed; /* prune */
} file;

typedef struct listing {
    neap_store store;
    file *files; /* [n] neap_mem memory */
    size_t n, capacity;
    void *buffer; /* of one chunk, for verifying */
} listing;

static void listing_free(listing *l) {
    neap_store_close(&l->store);
    neap_mem_free(l->files);
    neap_mem_free(l->buffer);
}

static neap_status add_file(listing *l, const char *name) {
    struct stat st;
    if (fstatat(l->store.fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return NEAP_OK; /* gone meanwhile */
    NEAP_CHECK(l->n < FILES_MAX, NEAP_LIMIT, "%s: more than %d files", l->store.path, FILES_MAX);
    if (l->n == l->capacity) {
        size_t capacity = l->capacity > 0 ? 2 * l->capacity : 64;
        void *p = l->files;
        NEAP_TRY(neap_mem_grow(&p, l->capacity * sizeof *l->files, capacity * sizeof *l->files));
        l->files = p;
        l->capacity = capacity;
    }
    file *f = &l->files[l->n++];
    *f = (file){.bytes = (uint64_t)st.st_size,
                .written = (int64_t)st.st_mtim.tv_sec,
                .used = (int64_t)(st.st_atim.tv_sec > st.st_mtim.tv_sec ? st.st_atim.tv_sec : st.st_mtim.tv_sec)};
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    f->kind = neap_store_kind_of(name, &f->is_temporary);
    return NEAP_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(((const file *)a)->name, ((const file *)b)->name); }

static int by_use(const void *a, const void *b) {
    const file *x = a, *y = b;
    if (x->used != y->used) return x->used < y->used ? -1 : 1;
    return by_name(a, b);
}

static neap_status collect(listing *l) {
    neap_status status = NEAP_OK;
    int fd = openat(l->store.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        int error = errno;
        if (fd >= 0) (void)close(fd);
        NEAP_FAIL(NEAP_IO, "%s: cannot list the directory: %s", l->store.path, strerror(error));
    }
    for (const struct dirent *e = readdir(stream); e != NULL && status == NEAP_OK; e = readdir(stream))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) status = add_file(l, e->d_name);
    (void)closedir(stream);
    if (l->n > 0) qsort(l->files, l->n, sizeof *l->files, by_name);
    return status;
}

static neap_status read_all(const listing *l, const neap_store_reader *r) {
    for (int64_t i = 0; i < neap_store_reader_chunks(r); i++) NEAP_TRY(neap_store_reader_chunk(r, i, l->buffer));
    return NEAP_OK;
}

/* Opens the file as its reader would; *r may be NULL afterwards. */
static void look(const listing *l, const file *f, bool is_verified, neap_cache_entry *e, neap_store_reader **r,
                 char *text, size_t text_bytes) {
    static const char *const kinds[NEAP_STORE_KINDS] = {[0] = "unknown",
                                                        [NEAP_STORE_WEIGHTS] = "weights",
                                                        [NEAP_STORE_TUNING] = "tuning",
                                                        [NEAP_STORE_PREFIX] = "prefix"};
    *r = NULL;
    *e = (neap_cache_entry){.struct_size = sizeof *e,
                            .name = f->name,
                            .kind = f->is_temporary && f->kind != 0 ? "temporary" : kinds[f->kind],
                            .origin = "",
                            .bytes = f->bytes,
                            .written = f->written,
                            .used = f->used,
                            .text = ""};
    if (f->kind == 0) return;
    e->status = f->is_temporary ? neap_store_check_temporary(&l->store, f->name)
                                : neap_store_reader_open(r, &l->store, f->name);
    if (e->status == NEAP_OK && !f->is_temporary) {
        const neap_store_about *about = neap_store_reader_about(*r);
        e->origin = about->origin;
        if ((int)about->kind != f->kind)
            e->status = neap_fail(NEAP_BAD_FILE, "%s: its content is of another kind than its name says", f->name);
        else if (is_verified)
            e->status = read_all(l, *r);
    }
    if (e->status == NEAP_OK) return;
    neap_error_copy(text, text_bytes);
    e->text = text;
}

static neap_status open_listing(listing *l, const char *dir, bool *is_empty) {
    *l = (listing){.store = {.fd = -1}};
    NEAP_CHECK(dir != NULL, NEAP_INVALID_ARGUMENT, "the name of the cache directory must not be NULL");
    neap_status status = neap_store_open(&l->store, dir, false);
    *is_empty = status == NEAP_NOT_FOUND;
    if (*is_empty) return NEAP_OK;
    NEAP_TRY_GOTO(status);
    NEAP_TRY_GOTO(neap_mem_alloc(NEAP_STORE_CHUNK, &l->buffer));
    NEAP_TRY_GOTO(collect(l));
    return NEAP_OK;
fail:
    listing_free(l);
    return status;
}

neap_status neap_cache_list(const char *dir, int32_t verify, neap_cache_fn fn, void *user) {
    listing l;
    bool is_empty = false, is_stopped = false;
    NEAP_CHECK(fn != NULL, NEAP_INVALID_ARGUMENT, "neap_cache_list: fn must not be NULL");
    NEAP_TRY(open_listing(&l, dir, &is_empty));
    for (size_t i = 0; i < l.n && !is_stopped; i++) {
        neap_cache_entry e;
        neap_store_reader *r = NULL;
        char text[1100];
        look(&l, &l.files[i], verify != 0, &e, &r, text, sizeof text);
        is_stopped = fn(user, &e) != 0;
        neap_store_reader_close(r);
    }
    listing_free(&l);
    return NEAP_OK;
}

/* ---- prune ---- */

/* Removes a file and reports it. *is_stopped: the caller wants no more. */
static neap_status take_away(listing *l, file *f, bool is_dry, neap_cache_fn fn, void *user, bool *is_stopped) {
    neap_cache_entry e;
    neap_store_reader *r = NULL;
    char text[1100];
    bool is_removed = false;
    look(l, f, false, &e, &r, text, sizeof text);
    neap_status status = neap_store_remove(&l->store, f->name, is_dry, &is_removed);
    if (is_removed && fn != NULL) *is_stopped = fn(user, &e) != 0;
    neap_store_reader_close(r);
    return status;
}

static bool is_usable(const listing *l, const file *f) {
    neap_cache_entry e;
    neap_store_reader *r = NULL;
    char text[1100];
    look(l, f, false, &e, &r, text, sizeof text);
    neap_store_reader_close(r);
    return e.status == NEAP_OK || e.status == NEAP_NO_MEMORY || e.status == NEAP_IO; /* trouble of now says nothing */
}

/* Files are sorted by use. */
static void choose(listing *l, uint64_t bytes_max, int64_t max_age) {
    int64_t now = (int64_t)time(NULL);
    uint64_t total = 0;
    for (size_t i = 0; i < l->n; i++) {
        file *f = &l->files[i];
        if (f->kind == 0) continue;
        f->is_doomed = f->is_temporary || !is_usable(l, f) || (max_age >= 0 && now - f->used > max_age);
        if (!f->is_doomed) total += f->bytes;
    }
    for (size_t i = 0; i < l->n && total > bytes_max; i++) {
        file *f = &l->files[i];
        if (f->kind == 0 || f->is_doomed) continue;
        f->is_doomed = true;
        total -= f->bytes;
    }
}

neap_status neap_cache_prune(const char *dir, uint64_t bytes_max, int64_t max_age_seconds, int32_t dry_run,
                             neap_cache_fn fn, void *user) {
    listing l;
    bool is_empty = false, is_stopped = false;
    char reason[1100] = ""; /* the first failure's; later files overwrite the last error */
    NEAP_TRY(open_listing(&l, dir, &is_empty));
    if (l.n > 0) qsort(l.files, l.n, sizeof *l.files, by_use);
    choose(&l, bytes_max, max_age_seconds);
    for (size_t i = 0; i < l.n && !is_stopped; i++) {
        if (!l.files[i].is_doomed) continue;
        if (take_away(&l, &l.files[i], dry_run != 0, fn, user, &is_stopped) != NEAP_OK && reason[0] == 0)
            neap_error_copy(reason, sizeof reason);
    }
    listing_free(&l);
    NEAP_CHECK(reason[0] == 0, NEAP_IO, "%s", reason);
    return NEAP_OK;
}
