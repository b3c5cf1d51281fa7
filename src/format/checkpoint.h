/* A checkpoint directory: one model.safetensors, or shards with model.safetensors.index.json.
 *
 * Strict by design: the header of every file is scanned by our own parser (duplicates, overlaps, holes,
 * overflow, unknown dtypes, wrong sizes are errors naming file and tensor); every tensor of the index is found
 * exactly once, in the shard it is said to be in. Nothing is mapped: readers copy with pread, so a file that is
 * cut while in use is an error, never a signal. */
#ifndef NEAP_FORMAT_CHECKPOINT_H
#define NEAP_FORMAT_CHECKPOINT_H

#include "base/log.h"
#include "base/status.h"
#include "tensor/dtype.h"

typedef struct neap_checkpoint neap_checkpoint;

enum { NEAP_RANK_MAX = 8 };

typedef struct neap_stored_tensor {
    const char *name;
    neap_dtype dtype;
    int32_t rank;
    int64_t shape[NEAP_RANK_MAX];
    uint64_t bytes;
    uint64_t offset; /* in its file */
    int32_t shard;
} neap_stored_tensor;

/* log may be NULL (warnings: unlisted files next to an index). */
NEAP_MUST_CHECK neap_status neap_checkpoint_open(neap_checkpoint **out, const char *dir, const neap_log *log);
/* The same for one file (golden files, our own outputs). */
NEAP_MUST_CHECK neap_status neap_checkpoint_open_file(neap_checkpoint **out, const char *path);
void neap_checkpoint_close(neap_checkpoint *c);

int64_t neap_checkpoint_count(const neap_checkpoint *c);
const neap_stored_tensor *neap_checkpoint_at(const neap_checkpoint *c, int64_t i);     /* in file order */
int64_t neap_checkpoint_number(const neap_checkpoint *c, const neap_stored_tensor *t); /* neap_checkpoint_at gave t */
const neap_stored_tensor *neap_checkpoint_find(const neap_checkpoint *c, const char *name); /* NULL: absent */
const char *neap_checkpoint_shard_name(const neap_checkpoint *c, int32_t shard);
uint64_t neap_checkpoint_bytes(const neap_checkpoint *c); /* tensor data of all shards */
/* Copies [offset, offset + bytes) of the tensor's data. Threads may read at the same time. */
NEAP_MUST_CHECK neap_status neap_checkpoint_read(const neap_checkpoint *c, const neap_stored_tensor *t, uint64_t offset,
                                                 uint64_t bytes, void *dst);

int32_t neap_checkpoint_shards(const neap_checkpoint *c);
/* What changes when a file is changed: cheap to ask for, and good enough unless somebody sets clocks back. */
typedef struct neap_file_stamp {
    uint64_t bytes, inode;
    int64_t modified_ns, changed_ns; /* of content and of content or attributes, since 1970 */
} neap_file_stamp;
NEAP_MUST_CHECK neap_status neap_checkpoint_stamp(const neap_checkpoint *c, int32_t shard, neap_file_stamp *out);
/* From now on neap_checkpoint_read adds up what it read. The same reads in any order and from any threads give the same
 * sums, other content gives others. */
void neap_checkpoint_digest_begin(neap_checkpoint *c);
uint64_t neap_checkpoint_digest(const neap_checkpoint *c, int32_t shard);

/* Scans one header block (the JSON text after the 8-byte length); used by the opener and by the fuzzer.
 * data_bytes: bytes after the header. *tensors is neap_mem memory, free with neap_header_free. */
NEAP_MUST_CHECK neap_status neap_header_scan(const char *json, size_t n, uint64_t data_bytes,
                                             neap_stored_tensor **tensors, int64_t *n_tensors);
void neap_header_free(neap_stored_tensor *tensors, int64_t n_tensors);

/* Writes a small safetensors file (atomic: temporary + rename). Tensors are written in the given order. */
typedef struct neap_out_tensor {
    const char *name;
    neap_dtype dtype;
    int32_t rank;
    int64_t shape[NEAP_RANK_MAX];
    const void *data;
} neap_out_tensor;
NEAP_MUST_CHECK neap_status neap_safetensors_write(const char *path, const neap_out_tensor *tensors, int64_t n);
/* The same with the data to follow in pieces, tensor after tensor (`data` of the descriptions is not used). Nothing
 * carries the file's name before finish, which also checks that all bytes came; finish and discard free the writer. */
typedef struct neap_safetensors_writer neap_safetensors_writer;
NEAP_MUST_CHECK neap_status neap_safetensors_begin(neap_safetensors_writer **out, const char *path,
                                                   const neap_out_tensor *tensors, int64_t n);
NEAP_MUST_CHECK neap_status neap_safetensors_append(neap_safetensors_writer *w, const void *data, uint64_t bytes);
NEAP_MUST_CHECK neap_status neap_safetensors_finish(neap_safetensors_writer *w);
void neap_safetensors_discard(neap_safetensors_writer *w);

#endif
