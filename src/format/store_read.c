/* Reads a file of a store.
 *
 * Nothing is believed before it is checked: first the 128 bytes of the head with their bounds, then the whole head
 * under its checksum, then each chunk under its own, right after it was read and while it lies in the core's cache.
 * The file is read, never mapped: one that is cut while in use is an error, not a signal. A file that somebody else
 * owns or may write is as good as a damaged one.
 *
 * Called by models and engine. Owns a descriptor and the head. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/file.h"
#include "format/store_inner.h"

struct neap_store_reader {
    neap_store_memory memory;
    int fd;
    char shown[512]; /* for messages */
    neap_store_about about;
    char *head;                     /* head_bytes */
    const neap_store_chunk *chunks; /* inside head */
    uint64_t *at;                   /* [n_chunks] where each begins in the file */
    int64_t n_chunks;
};
_Static_assert(sizeof(neap_store_reader) <= NEAP_STORE_OBJECT, "what is lent is enough");

static neap_status open_file(neap_store_reader *r, const neap_store *s, const char *name, uint64_t *bytes) {
    struct stat st;
    (void)snprintf(r->shown, sizeof r->shown, "%.300s/%.200s", s->path, name);
    const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    r->fd = openat(s->fd, name, flags | O_NOATIME);                      /* to be looked at is not to be used */
    if (r->fd < 0 && errno == EPERM) r->fd = openat(s->fd, name, flags); /* not ours: said below */
    if (r->fd < 0) {
        int error = errno;
        NEAP_CHECK(error != ENOENT, NEAP_NOT_FOUND, "%s: no such file", r->shown);
        NEAP_CHECK(error != ELOOP && error != ENXIO, NEAP_BAD_FILE, "%s: not a regular file", r->shown);
        NEAP_FAIL(neap_file_status(error), "%s: cannot open: %s", r->shown, strerror(error));
    }
    NEAP_CHECK(fstat(r->fd, &st) == 0, NEAP_IO, "%s: %s", r->shown, strerror(errno));
    NEAP_CHECK(S_ISREG(st.st_mode), NEAP_BAD_FILE, "%s: not a regular file", r->shown);
    NEAP_CHECK(st.st_uid == geteuid(), NEAP_BAD_FILE, "%s: belongs to user %u", r->shown, (unsigned)st.st_uid);
    NEAP_CHECK((st.st_mode & (S_IWGRP | S_IWOTH)) == 0, NEAP_BAD_FILE, "%s: others may write it (mode %03o)", r->shown,
               (unsigned)st.st_mode & 0777);
    *bytes = (uint64_t)st.st_size;
    return NEAP_OK;
}

static neap_status check_bounds(const neap_store_reader *r, const neap_store_head *h, uint64_t bytes) {
    NEAP_CHECK(h->magic == NEAP_STORE_MAGIC, NEAP_BAD_FILE, "%s: not a file of neap", r->shown);
    NEAP_CHECK(h->format == NEAP_STORE_FORMAT, NEAP_UNSUPPORTED, "%s: of format %u, not %d", r->shown, h->format,
               NEAP_STORE_FORMAT);
    NEAP_CHECK(h->file_bytes == bytes, NEAP_BAD_FILE, "%s: %llu bytes, it should have %llu", r->shown,
               (unsigned long long)bytes, (unsigned long long)h->file_bytes);
    NEAP_CHECK(h->head_bytes <= bytes && h->head_bytes <= NEAP_STORE_HEAD_MAX && h->origin_bytes <= NEAP_STORE_ORIGIN &&
                   h->notes_bytes <= NEAP_STORE_NOTES_MAX &&
                   h->n_chunks <= NEAP_STORE_HEAD_MAX / sizeof(neap_store_chunk) &&
                   h->head_bytes == neap_store_head_bytes(h->origin_bytes, h->notes_bytes, h->n_chunks),
               NEAP_BAD_FILE, "%s: the sizes in its head contradict each other", r->shown);
    return NEAP_OK;
}

/* The head lies in memory and has its checksum. What it says about sizes is checked all the same. */
static neap_status take_head(neap_store_reader *r) {
    neap_store_head h;
    memcpy(&h, r->head, sizeof h);
    NEAP_CHECK(memchr(h.version, 0, sizeof h.version) != NULL && strcmp(h.version, neap_version()) == 0,
               NEAP_UNSUPPORTED, "%s: written by neap %.*s, this is %s", r->shown, (int)sizeof h.version, h.version,
               neap_version());
    NEAP_CHECK(h.kind >= NEAP_STORE_WEIGHTS && h.kind < NEAP_STORE_KINDS, NEAP_UNSUPPORTED, "%s: of kind %u", r->shown,
               h.kind);
    const char *origin = r->head + sizeof h, *notes = origin + neap_store_padded(h.origin_bytes);
    NEAP_CHECK(h.origin_bytes > 0 && memchr(origin, 0, h.origin_bytes) == origin + h.origin_bytes - 1, NEAP_BAD_FILE,
               "%s: its origin is not a text", r->shown);
    r->about = (neap_store_about){
        .kind = (neap_store_kind)h.kind, .origin = origin, .notes = notes, .notes_bytes = (size_t)h.notes_bytes};
    memcpy(r->about.key, h.key, sizeof h.key);
    r->chunks = (const neap_store_chunk *)(const void *)(notes + neap_store_padded(h.notes_bytes));
    r->n_chunks = (int64_t)h.n_chunks;
    uint64_t at = h.head_bytes;
    for (int64_t i = 0; i < r->n_chunks; i++) {
        NEAP_CHECK(r->chunks[i].bytes > 0 && r->chunks[i].bytes <= NEAP_STORE_CHUNK, NEAP_BAD_FILE,
                   "%s: chunk %lld has %u bytes", r->shown, (long long)i, r->chunks[i].bytes);
        r->at[i] = at;
        at += r->chunks[i].bytes;
    }
    NEAP_CHECK(at == h.file_bytes, NEAP_BAD_FILE, "%s: its chunks end at %llu, it has %llu bytes", r->shown,
               (unsigned long long)at, (unsigned long long)h.file_bytes);
    return NEAP_OK;
}

static neap_status read_head(neap_store_reader *r, uint64_t bytes) {
    neap_store_head h;
    NEAP_CHECK(bytes >= sizeof h, NEAP_BAD_FILE, "%s: %llu bytes, too short", r->shown, (unsigned long long)bytes);
    NEAP_TRY(neap_file_pread(r->fd, &h, sizeof h, 0, r->shown));
    NEAP_TRY(check_bounds(r, &h, bytes));
    void *p = NULL;
    NEAP_TRY(neap_store_claim(&r->memory, (size_t)h.head_bytes, r->shown, &p));
    r->head = p;
    NEAP_TRY(neap_store_claim(&r->memory, (size_t)h.n_chunks * sizeof *r->at, r->shown, &p));
    r->at = p;
    NEAP_TRY(neap_file_pread(r->fd, r->head, (size_t)h.head_bytes, 0, r->shown));
    NEAP_CHECK(memcmp(r->head, &h, sizeof h) == 0, NEAP_BAD_FILE, "%s: changed while it was read", r->shown);
    memset(r->head + offsetof(neap_store_head, checksum), 0, sizeof h.checksum);
    NEAP_CHECK(neap_checksum(r->head, (size_t)h.head_bytes) == h.checksum, NEAP_BAD_FILE,
               "%s: damaged: its head does not have its checksum", r->shown);
    return take_head(r);
}

neap_status neap_store_reader_open(neap_store_reader **out, const neap_store *s, const char *name) {
    *out = NULL;
    void *p = NULL;
    uint64_t bytes = 0;
    neap_store_memory memory = {.room = s->room, .bytes = s->room_bytes};
    NEAP_TRY(neap_store_claim(&memory, sizeof(neap_store_reader), name, &p));
    neap_store_reader *r = p;
    r->memory = memory;
    r->fd = -1;
    neap_status status = open_file(r, s, name, &bytes);
    if (status == NEAP_OK) status = read_head(r, bytes);
    if (status != NEAP_OK) {
        neap_store_reader_close(r);
        return status;
    }
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    *out = r;
    return NEAP_OK;
}

void neap_store_reader_close(neap_store_reader *r) {
    if (r == NULL) return;
    if (r->fd >= 0) (void)close(r->fd);
    const neap_store_memory memory = r->memory;
    neap_store_give_back(&memory, r->at);
    neap_store_give_back(&memory, r->head);
    neap_store_give_back(&memory, r);
}

const neap_store_about *neap_store_reader_about(const neap_store_reader *r) { return &r->about; }
int64_t neap_store_reader_chunks(const neap_store_reader *r) { return r->n_chunks; }
uint32_t neap_store_reader_chunk_bytes(const neap_store_reader *r, int64_t chunk) { return r->chunks[chunk].bytes; }

neap_status neap_store_reader_chunk(const neap_store_reader *r, int64_t chunk, void *dst) {
    size_t bytes = r->chunks[chunk].bytes;
    NEAP_TRY(neap_file_pread(r->fd, dst, bytes, r->at[chunk], r->shown));
    NEAP_CHECK(neap_checksum(dst, bytes) == r->chunks[chunk].checksum, NEAP_BAD_FILE,
               "%s: damaged: bytes %llu to %llu do not have their checksum", r->shown, (unsigned long long)r->at[chunk],
               (unsigned long long)(r->at[chunk] + bytes));
    return NEAP_OK;
}

void neap_store_reader_used(const neap_store_reader *r) {
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    (void)futimens(r->fd, times); /* a convenience only */
}

static neap_status get(const neap_store_reader *r, neap_store_kind kind, const uint8_t key[NEAP_STORE_KEY], void *data,
                       size_t capacity, size_t *bytes) {
    NEAP_CHECK(r->about.kind == kind, NEAP_UNSUPPORTED, "%s: of kind %d, not %d", r->shown, (int)r->about.kind,
               (int)kind);
    NEAP_CHECK(memcmp(r->about.key, key, NEAP_STORE_KEY) == 0, NEAP_UNSUPPORTED, "%s: made for something else",
               r->shown);
    NEAP_CHECK(r->n_chunks == 1 && r->chunks[0].bytes <= capacity, NEAP_BAD_FILE, "%s: has another size than expected",
               r->shown);
    NEAP_TRY(neap_store_reader_chunk(r, 0, data));
    *bytes = r->chunks[0].bytes;
    return NEAP_OK;
}

neap_status neap_store_get(const neap_store *s, const char *name, neap_store_kind kind,
                           const uint8_t key[NEAP_STORE_KEY], void *data, size_t capacity, size_t *bytes) {
    *bytes = 0;
    neap_store_reader *r = NULL;
    NEAP_TRY(neap_store_reader_open(&r, s, name));
    neap_status status = get(r, kind, key, data, capacity, bytes);
    if (status == NEAP_OK) neap_store_reader_used(r);
    neap_store_reader_close(r);
    return status;
}
