/* Packed weights to their file, while they are packed.
 *
 * Every chunk counts the bytes that are still to come; the thread that brings the last ones writes the chunk, straight
 * from the model's memory. So a first start reads and packs on, the disk works beside it, and nothing is held twice.
 * The file is not synced: what a power loss leaves behind fails its checksums and is made anew.
 *
 * Nothing that goes wrong here is an error of the model: one warning, and the weights are in memory all the same.
 * Called by load.c and pack.c. Owns the store's descriptor and the writer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/packed.h"

static neap_status open_entry(neap_packed *k, const neap_matches *t, const char *dir) {
    NEAP_TRY(neap_store_open(&k->store, dir, true));
    neap_store_sweep(&k->store);
    return neap_packed_make_key(k, t);
}

void neap_packed_open(neap_packed **out, const neap_model *m, neap_checkpoint *c, const neap_matches *t,
                      const neap_blocks *blocks, const neap_model_options *o) {
    *out = NULL;
    if (o->cache_dir == NULL) return;
    void *p = NULL;
    neap_packed *k = NULL;
    neap_status status = neap_mem_alloc(sizeof *k, &p);
    if (status == NEAP_OK) {
        k = p;
        k->m = m;
        k->c = c;
        k->blocks = blocks;
        k->store.fd = -1;
        (void)pthread_mutex_init(&k->lock, NULL);
        status = open_entry(k, t, o->cache_dir);
    }
    if (status != NEAP_OK) {
        neap_log_write(&m->log, NEAP_LOG_WARN, "%s; going on without a cache", neap_last_error());
        neap_packed_close(k);
        return;
    }
    *out = k;
}

static void stop_writing(neap_packed *k) {
    neap_store_writer_discard(k->writer);
    k->writer = NULL;
    neap_mem_free(k->left);
    k->left = NULL;
}

void neap_packed_close(neap_packed *k) {
    if (k == NULL) return;
    stop_writing(k);
    neap_store_close(&k->store);
    (void)pthread_mutex_destroy(&k->lock);
    neap_mem_free(k->notes);
    neap_mem_free(k);
}

static neap_status begin(neap_packed *k) {
    void *sizes = NULL, *left = NULL;
    size_t n = (size_t)k->blocks->n_chunks;
    NEAP_TRY(neap_mem_alloc(n * sizeof(uint32_t), &sizes));
    neap_status status = neap_mem_alloc(n * sizeof *k->left, &left);
    if (status == NEAP_OK) {
        k->left = left;
        uint32_t *size = sizes;
        for (int64_t i = 0; i < k->blocks->n_chunks; i++) {
            (void)neap_blocks_chunk(k->blocks, i, &size[i]);
            atomic_init(&k->left[i], size[i]);
        }
        neap_store_about about = {
            .kind = NEAP_STORE_WEIGHTS, .origin = k->origin, .notes = k->notes, .notes_bytes = k->notes_bytes};
        memcpy(about.key, k->key, sizeof about.key);
        status = neap_store_writer_open(&k->writer, &k->store, k->name, &about, size, k->blocks->n_chunks);
    }
    neap_mem_free(sizes);
    return status;
}

void neap_packed_begin(neap_packed *k) {
    atomic_init(&k->n_written, 0);
    atomic_init(&k->is_failed, false);
    neap_status status = begin(k);
    if (status == NEAP_OK) {
        neap_checkpoint_digest_begin(k->c);
        return;
    }
    /* Another start of the same model writes the same bytes. */
    neap_log_write(&k->m->log, status == NEAP_BUSY ? NEAP_LOG_INFO : NEAP_LOG_WARN,
                   "%s; the packed weights are not kept", neap_last_error());
    stop_writing(k);
}

static void write_chunk(neap_packed *k, int64_t chunk, const void *data) {
    if (atomic_load(&k->is_failed)) return;
    if (neap_store_writer_chunk(k->writer, chunk, data) == NEAP_OK) {
        atomic_fetch_add(&k->n_written, 1);
        return;
    }
    (void)pthread_mutex_lock(&k->lock);
    if (!atomic_exchange(&k->is_failed, true)) neap_error_copy(k->failed_text, sizeof k->failed_text);
    (void)pthread_mutex_unlock(&k->lock);
}

void neap_packed_filled(neap_packed *k, int32_t group, const void *data, uint64_t bytes) {
    if (k == NULL || k->writer == NULL || bytes == 0) return;
    const neap_block *block = &k->blocks->items[group];
    uint64_t begin_at = (uint64_t)((const char *)data - block->data), end_at = begin_at + bytes;
    const uint64_t size = NEAP_STORE_CHUNK;
    for (uint64_t i = begin_at / size; i * size < end_at; i++) {
        uint64_t from = i * size > begin_at ? i * size : begin_at,
                 to = (i + 1) * size < end_at ? (i + 1) * size : end_at;
        uint32_t part = (uint32_t)(to - from);
        int64_t chunk = block->first_chunk + (int64_t)i;
        if (atomic_fetch_sub(&k->left[chunk], part) == part) write_chunk(k, chunk, block->data + i * size);
    }
}

/* The stamps of now: files that were changed while they were read must not be taken for what was read. */
static neap_status check_stamps(const neap_packed *k) {
    for (int32_t i = 0; i < (int32_t)k->notes->n_shards; i++) {
        neap_file_stamp now;
        NEAP_TRY(neap_checkpoint_stamp(k->c, i, &now));
        NEAP_CHECK(memcmp(&now, &k->notes->shards[i].stamp, sizeof now) == 0, NEAP_IO,
                   "%s: %s was changed while it was read", k->m->dir, neap_checkpoint_shard_name(k->c, i));
    }
    return NEAP_OK;
}

static neap_status commit(neap_packed *k) {
    NEAP_CHECK(!atomic_load(&k->is_failed), NEAP_IO, "%s", k->failed_text);
    NEAP_CHECK(atomic_load(&k->n_written) == k->blocks->n_chunks, NEAP_INTERNAL,
               "%s: %" PRId64 " of %" PRId64 " chunks", k->name, (int64_t)atomic_load(&k->n_written),
               k->blocks->n_chunks);
    NEAP_TRY(check_stamps(k));
    for (int32_t i = 0; i < (int32_t)k->notes->n_shards; i++)
        k->notes->shards[i].digest = neap_checkpoint_digest(k->c, i);
    neap_store_writer *w = k->writer;
    k->writer = NULL;
    return neap_store_writer_commit(w, k->notes, false);
}

void neap_packed_commit(neap_packed *k) {
    if (k->writer == NULL) return;
    if (commit(k) == NEAP_OK)
        neap_log_write(&k->m->log, NEAP_LOG_INFO, "%s: packed weights kept in %s/%s", k->m->dir, k->store.path,
                       k->name);
    else
        neap_log_write(&k->m->log, NEAP_LOG_WARN, "%s; the packed weights are not kept", neap_last_error());
    stop_writing(k);
}
