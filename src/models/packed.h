/* Packed weights kept on disk (the compile cache): the second start of a model reads what the first one packed.
 *
 *   packed_key.c    what the content depends on, and the name of the file
 *   packed_read.c   from file to memory, every byte checked; or why not
 *   packed_write.c  from memory to file, chunk by chunk while they are packed
 * The file is a neap_store file (format/store.h) with the blocks' chunks one behind the other. docs/cache.md */
#ifndef NEAP_MODELS_PACKED_H
#define NEAP_MODELS_PACKED_H

#include <pthread.h>
#include <stdatomic.h>

#include "format/store.h"
#include "models/blocks.h"

/* The key in parts, so that a miss can say which one differs. */
enum { NEAP_PART_PACKER, NEAP_PART_CONFIG, NEAP_PART_TENSORS, NEAP_PACKED_PARTS };

typedef struct neap_packed_shard {
    neap_file_stamp stamp;
    uint64_t digest; /* of what was read of it */
} neap_packed_shard;
_Static_assert(sizeof(neap_packed_shard) == 40, "the form of a file");

/* The notes of the file, in its form. */
typedef struct neap_packed_notes {
    uint8_t parts[NEAP_PACKED_PARTS][NEAP_SHA256_BYTES];
    uint64_t n_shards;
    neap_packed_shard shards[];
} neap_packed_notes;

/* The entry of one model while it is being opened. */
typedef struct neap_packed {
    const neap_model *m;
    neap_checkpoint *c;
    const neap_blocks *blocks;
    neap_store store;
    char name[128];
    char origin[NEAP_STORE_ORIGIN];
    uint8_t key[NEAP_STORE_KEY];
    neap_packed_notes *notes; /* of the model as it is now; the digests come last */
    size_t notes_bytes;
    /* writing */
    neap_store_writer *writer; /* NULL: not written */
    atomic_uint *left;         /* [n_chunks] bytes to come */
    atomic_llong n_written;
    atomic_bool is_failed;
    pthread_mutex_t lock; /* guards the text */
    char failed_text[1100];
} neap_packed;

/* Opens the directory and makes key and name. *out NULL: there is no cache for this model; one warning said why, unless
 * o->cache_dir is NULL. */
void neap_packed_open(neap_packed **out, const neap_model *m, neap_checkpoint *c, const neap_matches *t,
                      const neap_blocks *blocks, const neap_model_options *o);
void neap_packed_close(neap_packed *k); /* NULL is fine. What was not committed is discarded */

/* Fills the blocks. false: nothing there that can be believed, one line said why; the blocks are zero again. */
bool neap_packed_read(neap_packed *k, const neap_model_options *o);
/* Whether the shards still give the digests of the file; asked after they were read again. */
bool neap_packed_is_same(const neap_packed *k);

/* From here on neap_packed_filled writes. Failure: one warning, then all of these do nothing. */
void neap_packed_begin(neap_packed *k);
/* These bytes of a group's block are final. Any thread, each byte once. k may be NULL. */
void neap_packed_filled(neap_packed *k, int32_t group, const void *data, uint64_t bytes);
/* All is packed: the file gets its name. */
void neap_packed_commit(neap_packed *k);

/* ---- packed_key.c ---- */
NEAP_MUST_CHECK neap_status neap_packed_make_key(neap_packed *k, const neap_matches *t);
/* Fills the stamps of all shards, once none of them is so young that a change could keep its time. */
NEAP_MUST_CHECK neap_status neap_packed_stamp(const neap_checkpoint *c, neap_packed_notes *notes);

#endif
