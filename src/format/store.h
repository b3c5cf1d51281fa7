/* A directory in which neap keeps files for itself: packed weights, tuning, prefixes. Data only, never code or
 * pointers.
 *
 * Safe against others: directory and files belong to this user, nobody else may write them, links are not followed.
 * Safe against accidents: every byte is under a checksum, a file appears whole or not at all, of several processes that
 * want to write one entry one does. Whoever reads gets what was written under the same key, or a status that says why
 * not; then he makes it anew. docs/cache.md */
#ifndef NEAP_FORMAT_STORE_H
#define NEAP_FORMAT_STORE_H

#include <stdbool.h>

#include "base/status.h"
#include "format/digest.h"

typedef struct neap_store {
    int fd;
    char path[4096 - 8]; /* for messages */
    void *room;          /* neap_store_lend */
    size_t room_bytes;
} neap_store;

/* create: makes it and its parents (0700) when missing. NEAP_NOT_FOUND: missing; NEAP_UNSUPPORTED: not ours alone. */
NEAP_MUST_CHECK neap_status neap_store_open(neap_store *s, const char *path, bool create);
void neap_store_close(neap_store *s);
/* From now on readers and writers of s live in this memory instead of memory of their own, one of them at a time; who
 * needs more gets NEAP_LIMIT. For whoever may not allocate. */
void neap_store_lend(neap_store *s, void *room, size_t bytes);
/* What a file with so many bytes of notes, no origin to speak of (< 64 bytes) and so many chunks needs. */
uint64_t neap_store_room_bytes(uint64_t notes_bytes, uint64_t n_chunks);

typedef enum neap_store_kind {
    NEAP_STORE_WEIGHTS = 1,
    NEAP_STORE_TUNING = 2,
    NEAP_STORE_PREFIX = 3,
    NEAP_STORE_KINDS = 4
} neap_store_kind;
/* ".weights", ".tuning", ".prefix": how names of this kind end. */
const char *neap_store_suffix(neap_store_kind kind);
/* Kind of a file by its name; 0: not one of ours. is_temporary: one that is being written, or was. */
int neap_store_kind_of(const char *name, bool *is_temporary);

enum { NEAP_STORE_KEY = NEAP_SHA256_BYTES, NEAP_STORE_CHUNK = 1 << 20, NEAP_STORE_ORIGIN = 4096 };

/* What a file says about itself. */
typedef struct neap_store_about {
    neap_store_kind kind;
    uint8_t key[NEAP_STORE_KEY]; /* equal keys: the same content */
    const char *origin;          /* the model directory it was made from */
    const void *notes;           /* more about where it comes from, read before the content; the kind's own */
    size_t notes_bytes;
} neap_store_about;

/* ---- small files, whole ---- */

/* Synced to disk before it gets its name. NEAP_BUSY: somebody else is writing it now. */
NEAP_MUST_CHECK neap_status neap_store_put(const neap_store *s, const char *name, const neap_store_about *about,
                                           const void *data, size_t bytes);
/* *bytes: of data that were filled, at most capacity. NEAP_NOT_FOUND: none; NEAP_UNSUPPORTED: of another version, kind
 * or key; NEAP_BAD_FILE: damaged or not ours. */
NEAP_MUST_CHECK neap_status neap_store_get(const neap_store *s, const char *name, neap_store_kind kind,
                                           const uint8_t key[NEAP_STORE_KEY], void *data, size_t capacity,
                                           size_t *bytes);

/* ---- large files, chunk by chunk ---- */

typedef struct neap_store_reader neap_store_reader;
/* Reads and checks everything but the content. Statuses as of neap_store_get; the key is the caller's to compare. */
NEAP_MUST_CHECK neap_status neap_store_reader_open(neap_store_reader **out, const neap_store *s, const char *name);
const neap_store_about *neap_store_reader_about(const neap_store_reader *r);
int64_t neap_store_reader_chunks(const neap_store_reader *r);
uint32_t neap_store_reader_chunk_bytes(const neap_store_reader *r, int64_t chunk);
/* Fills dst (chunk_bytes) and compares the checksum: NEAP_BAD_FILE, NEAP_IO. Any thread. */
NEAP_MUST_CHECK neap_status neap_store_reader_chunk(const neap_store_reader *r, int64_t chunk, void *dst);
/* Notes the use for neap_cache_prune. */
void neap_store_reader_used(const neap_store_reader *r);
void neap_store_reader_close(neap_store_reader *r);

typedef struct neap_store_writer neap_store_writer;
/* sizes[n_chunks]: 1 .. NEAP_STORE_CHUNK each, borrowed during the call. Refuses when the disk would be left nearly
 * full. NEAP_BUSY: somebody else is writing this entry now. */
NEAP_MUST_CHECK neap_status neap_store_writer_open(neap_store_writer **out, const neap_store *s, const char *name,
                                                   const neap_store_about *about, const uint32_t *sizes,
                                                   int64_t n_chunks);
/* Any thread, any order, each chunk once. */
NEAP_MUST_CHECK neap_status neap_store_writer_chunk(neap_store_writer *w, int64_t chunk, const void *data);
/* Gives the file its name and frees w; on failure nothing is left behind. notes: the final ones, of the size that was
 * announced. Every chunk must have been written. */
NEAP_MUST_CHECK neap_status neap_store_writer_commit(neap_store_writer *w, const void *notes, bool is_synced);
void neap_store_writer_discard(neap_store_writer *w); /* NULL is fine */

/* Removes temporaries that no process writes any more. */
void neap_store_sweep(const neap_store *s);
/* Removes one name; is_dry: says whether that would work. *is_removed false with NEAP_OK: it was gone already, or it is
 * a temporary that is being written. NEAP_IO: it cannot be removed. */
NEAP_MUST_CHECK neap_status neap_store_remove(const neap_store *s, const char *name, bool is_dry, bool *is_removed);
/* NEAP_BAD_FILE: the name of a temporary is taken by something that no writer made: a link, a directory, a FIFO. */
NEAP_MUST_CHECK neap_status neap_store_check_temporary(const neap_store *s, const char *name);

#endif
