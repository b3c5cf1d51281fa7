/* Writes a file of a store.
 *
 * The file grows under NAME.tmp, locked by its writer, and is renamed when it is complete: whoever is killed on the
 * way leaves the old file, and a temporary whose lock is free, which the next writer takes over or neap_store_sweep
 * removes. The space is asked for at once, so a disk that is too full says so before the work and not in the middle of
 * it, and some of it is left to others. The head is written last: a temporary is never a file that a reader would
 * take.
 *
 * is_synced: the content reaches the disk before the name does. Without it a power loss may leave a file with holes;
 * its reader sees that by the checksums, and so gigabytes are not waited for.
 *
 * Called by models and engine. Owns a descriptor, the head, and the temporary's name until commit or discard. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "format/file.h"
#include "format/store_inner.h"

/* What stays free on the disk: this much, or a fiftieth of it if that is less. */
static const uint64_t SPARE_BYTES = (uint64_t)1 << 30;
enum { SPARE_SHARE = 50 };

struct neap_store_writer {
    neap_store_memory memory;
    int dir, fd;    /* dir is the store's */
    bool is_named;  /* the temporary is ours to remove */
    char name[200]; /* of the finished file */
    char temporary[208];
    char shown[512];
    char *head; /* head_bytes, written at the end */
    neap_store_chunk *chunks;
    uint64_t *at;
    int64_t n_chunks;
};
_Static_assert(sizeof(neap_store_writer) <= NEAP_STORE_OBJECT, "what is lent is enough");

static bool is_still_named(const neap_store_writer *w) {
    struct stat mine, named;
    return fstat(w->fd, &mine) == 0 && fstatat(w->dir, w->temporary, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

/* What no writer made is in the way (a link, a FIFO) and would be for ever. Should another start remove it and begin to
 * write between the look and the removal, it finds its temporary gone at the end and keeps nothing this time. */
static neap_status clear_name(const neap_store_writer *w) {
    struct stat st;
    if (fstatat(w->dir, w->temporary, &st, AT_SYMLINK_NOFOLLOW) != 0) return NEAP_OK; /* none; the open says the rest */
    const char *stray = neap_store_stray(&st);
    if (stray == NULL) return NEAP_OK;
    NEAP_CHECK(!S_ISDIR(st.st_mode), NEAP_IO, "%s.tmp: %s", w->shown, stray);
    NEAP_CHECK(unlinkat(w->dir, w->temporary, 0) == 0 || errno == ENOENT, NEAP_IO, "%s.tmp: %s; cannot remove it: %s",
               w->shown, stray, strerror(errno));
    return NEAP_OK;
}

/* Opens or takes over the temporary and locks it. NEAP_AGAIN: somebody else holds it, perhaps only to look. */
static neap_status try_temporary(neap_store_writer *w) {
    int locked;
    NEAP_TRY(clear_name(w));
    w->fd = openat(w->dir, w->temporary, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    NEAP_CHECK(w->fd >= 0, neap_file_status(errno), "%s: cannot write: %s", w->shown, strerror(errno));
    do {
        locked = flock(w->fd, LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    int error = locked != 0 ? errno : 0;
    if (error == 0 && is_still_named(w)) {
        struct stat st;
        if (fstat(w->fd, &st) != 0 || st.st_nlink == 1) return NEAP_OK; /* what fails here fails again below */
        (void)unlinkat(w->dir, w->temporary, 0);                        /* what has another name is written elsewhere */
    }
    (void)close(w->fd);
    w->fd = -1;
    if (error == 0 || error == EWOULDBLOCK) return NEAP_AGAIN; /* 0: not under that name any more */
    (void)unlinkat(w->dir, w->temporary, 0);                   /* where locks do not work nobody writes it */
    NEAP_FAIL(NEAP_IO, "%s: cannot lock: %s", w->shown, strerror(error));
}

static neap_status open_temporary(neap_store_writer *w) {
    struct stat st;
    const struct timespec pause = {.tv_nsec = 1000000};
    neap_status status = try_temporary(w);
    for (int i = 0; i < 3 && status == NEAP_AGAIN; i++) { /* whoever sweeps holds it for an instant */
        (void)nanosleep(&pause, NULL);
        status = try_temporary(w);
    }
    NEAP_CHECK(status != NEAP_AGAIN, NEAP_BUSY, "%s: is being written by another process", w->shown);
    NEAP_TRY(status);
    w->is_named = true;
    NEAP_CHECK(fstat(w->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1, NEAP_IO,
               "%s: its temporary is not a file of this user", w->shown);
    NEAP_CHECK(fchmod(w->fd, 0600) == 0 && ftruncate(w->fd, 0) == 0, NEAP_IO, "%s: cannot write: %s", w->shown,
               strerror(errno));
    return NEAP_OK;
}

static neap_status take_space(const neap_store_writer *w, uint64_t bytes) {
    struct rlimit limit;
    struct statvfs fs;
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    /* Beyond that limit a write would not fail but raise a signal. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        NEAP_CHECK(bytes <= limit.rlim_cur, NEAP_IO, "%s: needs %s, the limit for files is %s (ulimit -f)", w->shown,
                   neap_size_text(bytes, need), neap_size_text(limit.rlim_cur, have));
    if (fstatvfs(w->fd, &fs) == 0) {
        uint64_t unit = fs.f_frsize > 0 ? fs.f_frsize : fs.f_bsize;
        uint64_t left = (uint64_t)fs.f_bavail * unit, spare = (uint64_t)fs.f_blocks * unit / SPARE_SHARE;
        if (spare > SPARE_BYTES) spare = SPARE_BYTES;
        NEAP_CHECK(bytes <= left && left - bytes >= spare, NEAP_IO,
                   "%s: needs %s of disk space; free: %s, of which some stay free", w->shown,
                   neap_size_text(bytes, need), neap_size_text(left, have));
    }
    int claimed;
    do {
        claimed = fallocate(w->fd, 0, 0, (off_t)bytes);
    } while (claimed != 0 && errno == EINTR);
    if (claimed != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) /* these: not every disk can */
        NEAP_FAIL(NEAP_IO, "%s: cannot write %s: %s", w->shown, neap_size_text(bytes, need), strerror(errno));
    return NEAP_OK;
}

static neap_status make_head(neap_store_writer *w, const neap_store_about *about, const uint32_t *sizes,
                             int64_t n_chunks, uint64_t *file_bytes) {
    size_t n_origin = strlen(about->origin) + 1;
    NEAP_CHECK(n_origin <= NEAP_STORE_ORIGIN && about->notes_bytes <= NEAP_STORE_NOTES_MAX, NEAP_INVALID_ARGUMENT,
               "%s: origin or notes are too long", w->shown);
    uint64_t head_bytes = neap_store_head_bytes(n_origin, about->notes_bytes, (uint64_t)n_chunks);
    NEAP_CHECK(head_bytes <= NEAP_STORE_HEAD_MAX, NEAP_INVALID_ARGUMENT, "%s: too many chunks", w->shown);
    void *p = NULL;
    NEAP_TRY(neap_store_claim(&w->memory, (size_t)head_bytes, w->shown, &p));
    w->head = p;
    NEAP_TRY(neap_store_claim(&w->memory, (size_t)n_chunks * sizeof *w->at, w->shown, &p));
    w->at = p;
    neap_store_head h = {.magic = NEAP_STORE_MAGIC,
                         .format = NEAP_STORE_FORMAT,
                         .kind = (uint32_t)about->kind,
                         .head_bytes = head_bytes,
                         .n_chunks = (uint64_t)n_chunks,
                         .notes_bytes = about->notes_bytes,
                         .origin_bytes = (uint32_t)n_origin};
    memcpy(h.key, about->key, sizeof h.key);
    (void)snprintf(h.version, sizeof h.version, "%s", neap_version());
    char *origin = w->head + sizeof h, *notes = origin + neap_store_padded(n_origin);
    memcpy(origin, about->origin, n_origin);
    if (about->notes_bytes > 0) memcpy(notes, about->notes, about->notes_bytes);
    w->chunks = (neap_store_chunk *)(void *)(notes + neap_store_padded(about->notes_bytes));
    w->n_chunks = n_chunks;
    uint64_t at = head_bytes;
    for (int64_t i = 0; i < n_chunks; i++) {
        assert(sizes[i] > 0 && sizes[i] <= NEAP_STORE_CHUNK);
        w->chunks[i].bytes = sizes[i];
        w->at[i] = at;
        at += sizes[i];
    }
    h.file_bytes = *file_bytes = at;
    memcpy(w->head, &h, sizeof h);
    return NEAP_OK;
}

neap_status neap_store_writer_open(neap_store_writer **out, const neap_store *s, const char *name,
                                   const neap_store_about *about, const uint32_t *sizes, int64_t n_chunks) {
    *out = NULL;
    void *p = NULL;
    uint64_t bytes = 0;
    neap_store_memory memory = {.room = s->room, .bytes = s->room_bytes};
    NEAP_TRY(neap_store_claim(&memory, sizeof(neap_store_writer), name, &p));
    neap_store_writer *w = p;
    w->memory = memory;
    w->dir = s->fd;
    w->fd = -1;
    (void)snprintf(w->name, sizeof w->name, "%s", name);
    (void)snprintf(w->temporary, sizeof w->temporary, "%s.tmp", w->name);
    (void)snprintf(w->shown, sizeof w->shown, "%.300s/%.200s", s->path, name);
    neap_status status = make_head(w, about, sizes, n_chunks, &bytes);
    if (status == NEAP_OK) status = open_temporary(w);
    if (status == NEAP_OK) status = take_space(w, bytes);
    if (status != NEAP_OK) {
        neap_store_writer_discard(w);
        return status;
    }
    *out = w;
    return NEAP_OK;
}

static neap_status write_at(const neap_store_writer *w, const char *data, size_t n, uint64_t at) {
    while (n > 0) {
        ssize_t put = pwrite(w->fd, data, n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        NEAP_CHECK(put > 0, NEAP_IO, "%s: cannot write: %s", w->shown, put < 0 ? strerror(errno) : "nothing was taken");
        data += put;
        n -= (size_t)put;
        at += (uint64_t)put;
    }
    return NEAP_OK;
}

neap_status neap_store_writer_chunk(neap_store_writer *w, int64_t chunk, const void *data) {
    assert(chunk >= 0 && chunk < w->n_chunks);
    w->chunks[chunk].checksum = neap_checksum(data, w->chunks[chunk].bytes);
    return write_at(w, data, w->chunks[chunk].bytes, w->at[chunk]);
}

static neap_status finish(neap_store_writer *w, const void *notes, bool is_synced) {
    neap_store_head h;
    memcpy(&h, w->head, sizeof h);
    if (h.notes_bytes > 0) memcpy(w->head + sizeof h + neap_store_padded(h.origin_bytes), notes, (size_t)h.notes_bytes);
    h.checksum = neap_checksum(w->head, (size_t)h.head_bytes); /* its own place still holds 0 */
    memcpy(w->head, &h, sizeof h);
    NEAP_TRY(write_at(w, w->head, (size_t)h.head_bytes, 0));
    NEAP_CHECK(!is_synced || fdatasync(w->fd) == 0, NEAP_IO, "%s: cannot write to disk: %s", w->shown, strerror(errno));
    NEAP_CHECK(is_still_named(w), NEAP_IO, "%s: its temporary was taken away", w->shown);
    NEAP_CHECK(renameat(w->dir, w->temporary, w->dir, w->name) == 0, NEAP_IO, "%s: cannot rename: %s", w->shown,
               strerror(errno));
    w->is_named = false;
    int closed = close(w->fd), error = errno; /* some file systems report a full disk only here */
    w->fd = -1;
    if (closed != 0) {
        (void)unlinkat(w->dir, w->name, 0);
        NEAP_FAIL(NEAP_IO, "%s: cannot write to disk: %s", w->shown, strerror(error));
    }
    if (is_synced) (void)fsync(w->dir); /* not every file system can; then the name is lost with the power, no more */
    return NEAP_OK;
}

neap_status neap_store_writer_commit(neap_store_writer *w, const void *notes, bool is_synced) {
    neap_status status = finish(w, notes, is_synced);
    neap_store_writer_discard(w);
    return status;
}

void neap_store_writer_discard(neap_store_writer *w) {
    if (w == NULL) return;
    if (w->is_named && is_still_named(w)) (void)unlinkat(w->dir, w->temporary, 0); /* before the lock is gone */
    if (w->fd >= 0) (void)close(w->fd);
    const neap_store_memory memory = w->memory;
    neap_store_give_back(&memory, w->at);
    neap_store_give_back(&memory, w->head);
    neap_store_give_back(&memory, w);
}

neap_status neap_store_put(const neap_store *s, const char *name, const neap_store_about *about, const void *data,
                           size_t bytes) {
    NEAP_CHECK(bytes > 0 && bytes <= NEAP_STORE_CHUNK, NEAP_INVALID_ARGUMENT, "%s: %zu bytes to keep", name, bytes);
    uint32_t size = (uint32_t)bytes;
    neap_store_writer *w = NULL;
    NEAP_TRY(neap_store_writer_open(&w, s, name, about, &size, 1));
    neap_status status = neap_store_writer_chunk(w, 0, data);
    if (status == NEAP_OK) return neap_store_writer_commit(w, about->notes, true);
    neap_store_writer_discard(w);
    return status;
}
