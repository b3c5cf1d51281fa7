/* The form of a file in a store: what its writer and its reader share.
 *
 *   head    neap_store_head, 128 bytes
 *           origin text, notes, each padded to 8 with zeros
 *           n_chunks times neap_store_chunk
 *           zeros up to a multiple of 4096; the checksum in the head covers all of this
 *   content the chunks, one behind the other, each under its own checksum; the file ends with the last one
 * Numbers are little-endian, as on every machine that neap runs on; the magic would read otherwise elsewhere. */
#ifndef NEAP_FORMAT_STORE_INNER_H
#define NEAP_FORMAT_STORE_INNER_H

#include <sys/stat.h>

#include "base/arena.h"
#include "format/store.h"

/* Where a reader or writer takes its memory from: what was lent to the store, else the heap. */
typedef struct neap_store_memory {
    char *room; /* 64-byte aligned; NULL: the heap */
    size_t bytes, used;
} neap_store_memory;
/* Zeroed. */
NEAP_MUST_CHECK neap_status neap_store_claim(neap_store_memory *m, size_t bytes, const char *shown, void **out);
void neap_store_give_back(const neap_store_memory *m, void *p);
enum { NEAP_STORE_OBJECT = 2048 }; /* no reader and no writer is larger */

/* Why what lies under the name of a temporary was not made by a writer; NULL: it may have been. */
const char *neap_store_stray(const struct stat *st);

enum { NEAP_STORE_FORMAT = 1, NEAP_STORE_ALIGN = 4096, NEAP_STORE_VERSION = 32 };
#define NEAP_STORE_MAGIC UINT64_C(0x3170656b5061656e) /* "neaPkep1" */
#define NEAP_STORE_HEAD_MAX ((uint64_t)1 << 28)       /* sixteen terabytes of content */
#define NEAP_STORE_NOTES_MAX ((uint64_t)1 << 24)

typedef struct neap_store_head {
    uint64_t magic;
    uint32_t format, kind;
    uint64_t file_bytes, head_bytes, n_chunks, notes_bytes;
    uint8_t key[NEAP_STORE_KEY];
    char version[NEAP_STORE_VERSION]; /* of the library that wrote it */
    uint32_t origin_bytes, zero;
    uint64_t checksum; /* of head_bytes bytes, with 0 in this place */
} neap_store_head;
_Static_assert(sizeof(neap_store_head) == 128, "the form of a file");

typedef struct neap_store_chunk {
    uint64_t checksum;
    uint32_t bytes, zero;
} neap_store_chunk;
_Static_assert(sizeof(neap_store_chunk) == 16, "the form of a file");

static inline uint64_t neap_store_padded(uint64_t n) { return (n + 7) & ~(uint64_t)7; }
/* Of the head with everything that follows it, before the content. */
static inline uint64_t neap_store_head_bytes(uint64_t origin_bytes, uint64_t notes_bytes, uint64_t n_chunks) {
    uint64_t n = sizeof(neap_store_head) + neap_store_padded(origin_bytes) + neap_store_padded(notes_bytes) +
                 n_chunks * sizeof(neap_store_chunk);
    return (n + NEAP_STORE_ALIGN - 1) / NEAP_STORE_ALIGN * NEAP_STORE_ALIGN;
}

#endif
