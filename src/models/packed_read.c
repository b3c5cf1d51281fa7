/* Packed weights from their file.
 *
 * First everything that can be compared without the content: key, shards, sizes of the chunks. Then a few threads read
 * chunk by chunk straight into place (the model's memory with its huge pages; a mapped file would decode more slowly
 * and would turn a file that is cut into a signal) and check each while it is in the core's cache. Whatever does not
 * fit ends in one line of the log and in packing from the shards, never in an error.
 *
 * Called by load.c. Owns the reader during the call. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/crew.h"
#include "models/packed.h"

/* Neighbouring chunks of one task: the two halves of a huge page are then first touched by one thread. */
enum { TASK_CHUNKS = 4, REASON_BYTES = 400 };

/* true: the same; else the reason. */
static bool compare(const neap_packed *k, const neap_store_about *about, char reason[REASON_BYTES]) {
    static const char *const parts[NEAP_PACKED_PARTS] = {[NEAP_PART_PACKER] = "neap packs differently now",
                                                         [NEAP_PART_CONFIG] = "config.json was changed",
                                                         [NEAP_PART_TENSORS] = "the table of tensors was changed"};
    const neap_packed_notes *old = about->notes, *now = k->notes;
    (void)snprintf(reason, REASON_BYTES, "it was made from something else");
    if (about->kind != NEAP_STORE_WEIGHTS || about->notes_bytes < sizeof *old) return false;
    for (int i = 0; i < NEAP_PACKED_PARTS; i++)
        if (memcmp(old->parts[i], now->parts[i], sizeof old->parts[i]) != 0) {
            (void)snprintf(reason, REASON_BYTES, "%s", parts[i]);
            return false;
        }
    if (memcmp(about->key, k->key, sizeof k->key) != 0 || about->notes_bytes != k->notes_bytes) return false;
    for (int32_t i = 0; i < (int32_t)now->n_shards; i++)
        if (memcmp(&old->shards[i].stamp, &now->shards[i].stamp, sizeof(neap_file_stamp)) != 0) {
            (void)snprintf(reason, REASON_BYTES, "%.200s was changed (%s)", neap_checkpoint_shard_name(k->c, i),
                           old->shards[i].stamp.bytes != now->shards[i].stamp.bytes   ? "its size"
                           : old->shards[i].stamp.inode != now->shards[i].stamp.inode ? "another file"
                                                                                      : "its time");
            return false;
        }
    return true;
}

static bool fits(const neap_store_reader *r, const neap_blocks *b) {
    if (neap_store_reader_chunks(r) != b->n_chunks) return false;
    for (int64_t i = 0; i < b->n_chunks; i++) {
        uint32_t bytes = 0;
        (void)neap_blocks_chunk(b, i, &bytes);
        if (neap_store_reader_chunk_bytes(r, i) != bytes) return false;
    }
    return true;
}

typedef struct filler {
    const neap_store_reader *r;
    const neap_blocks *blocks;
    neap_crew crew;
} filler;

static neap_status fill(void *user, int64_t task, void *scratch) {
    filler *f = user;
    (void)scratch;
    int64_t end = (task + 1) * TASK_CHUNKS < f->blocks->n_chunks ? (task + 1) * TASK_CHUNKS : f->blocks->n_chunks;
    for (int64_t i = task * TASK_CHUNKS; i < end; i++) {
        uint32_t bytes = 0;
        char *to = neap_blocks_chunk(f->blocks, i, &bytes);
        NEAP_TRY(neap_store_reader_chunk(f->r, i, to));
        neap_crew_count(&f->crew, bytes);
    }
    return NEAP_OK;
}

static neap_status fill_blocks(const neap_packed *k, const neap_store_reader *r, const neap_model_options *o) {
    filler f = {.r = r,
                .blocks = k->blocks,
                .crew = {.n_threads = o->n_threads,
                         .n_tasks = (k->blocks->n_chunks + TASK_CHUNKS - 1) / TASK_CHUNKS,
                         .bytes_total = k->m->packed_bytes,
                         .what = "load",
                         .progress = o->progress,
                         .progress_user = o->progress_user,
                         .task = fill}};
    f.crew.user = &f;
    return neap_crew_run(&f.crew);
}

/* What packing does not write, the gaps behind small vectors, must be zero as in fresh memory. */
static void clear(const neap_blocks *b) {
    for (int32_t i = 0; i < b->n; i++)
        if (b->items[i].bytes > 0) memset(b->items[i].data, 0, (size_t)b->items[i].bytes);
}

static bool read_file(neap_packed *k, const neap_store_reader *r, const neap_model_options *o) {
    char reason[REASON_BYTES];
    const neap_store_about *about = neap_store_reader_about(r);
    if (!compare(k, about, reason) || !fits(r, k->blocks)) {
        neap_log_write(&k->m->log, NEAP_LOG_WARN, "%s/%s: not used: %s; packed again", k->store.path, k->name, reason);
        return false;
    }
    if (fill_blocks(k, r, o) != NEAP_OK) {
        neap_log_write(&k->m->log, NEAP_LOG_WARN, "%s; packed again", neap_last_error());
        clear(k->blocks);
        return false;
    }
    const neap_packed_notes *old = about->notes;
    memcpy(k->notes->shards, old->shards, (size_t)old->n_shards * sizeof old->shards[0]); /* with the digests */
    return true;
}

bool neap_packed_read(neap_packed *k, const neap_model_options *o) {
    neap_store_reader *r = NULL;
    neap_status status = neap_store_reader_open(&r, &k->store, k->name);
    if (status == NEAP_NOT_FOUND) {
        neap_log_write(&k->m->log, NEAP_LOG_INFO, "%s: holds no packed weights of %s yet", k->store.path, k->m->dir);
        return false;
    }
    if (status != NEAP_OK) {
        neap_log_write(&k->m->log, NEAP_LOG_WARN, "%s; packed again", neap_last_error());
        return false;
    }
    bool is_filled = read_file(k, r, o);
    if (is_filled) {
        neap_store_reader_used(r);
        neap_log_write(&k->m->log, NEAP_LOG_INFO, "%s: weights as packed in %s/%s", k->m->dir, k->store.path, k->name);
    }
    neap_store_reader_close(r);
    return is_filled;
}

bool neap_packed_is_same(const neap_packed *k) {
    for (int32_t i = 0; i < (int32_t)k->notes->n_shards; i++)
        if (neap_checkpoint_digest(k->c, i) != k->notes->shards[i].digest) {
            neap_log_write(&k->m->log, NEAP_LOG_WARN, "%s/%s: not used: the content of %s was changed; packed again",
                           k->store.path, k->name, neap_checkpoint_shard_name(k->c, i));
            clear(k->blocks);
            return false;
        }
    return true;
}
