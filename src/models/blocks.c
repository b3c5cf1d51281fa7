/* Memory of packed weights, block by block.
 *
 * Called by load.c, pack.c and kept.c. The bytes belong to the model's arena. */
#include "models/blocks.h"

#include "format/store.h"

static const uint64_t CHUNK = NEAP_STORE_CHUNK;

neap_status neap_blocks_make(neap_blocks *b, neap_arena *arena, const neap_matches *t) {
    void *p = NULL;
    NEAP_TRY(neap_arena_array(arena, (size_t)t->n_groups, sizeof *b->items, &p));
    *b = (neap_blocks){.items = p, .n = t->n_groups};
    for (int32_t i = 0; i < b->n; i++) {
        neap_block *block = &b->items[i];
        *block = (neap_block){.bytes = t->group_bytes[i], .first_chunk = b->n_chunks};
        b->n_chunks += (int64_t)((block->bytes + CHUNK - 1) / CHUNK);
        if (block->bytes == 0) continue;
        NEAP_TRY(neap_arena_alloc(arena, (size_t)block->bytes, &p));
        block->data = p;
    }
    return NEAP_OK;
}

/* The size was computed by the same function as the sum, so the block cannot run over. */
neap_status neap_blocks_claim(neap_blocks *b, int32_t group, uint64_t bytes, void **out) {
    neap_block *block = &b->items[group];
    bytes = (bytes + 63) & ~(uint64_t)63;
    if (bytes > block->bytes - block->used) return neap_fail(NEAP_INTERNAL, "a weight block is too small");
    *out = block->data + block->used;
    block->used += bytes;
    return NEAP_OK;
}

void neap_blocks_rewind(neap_blocks *b) {
    for (int32_t i = 0; i < b->n; i++) b->items[i].used = 0;
}

char *neap_blocks_chunk(const neap_blocks *b, int64_t chunk, uint32_t *bytes) {
    /* The last block that begins at or before the chunk; empty ones begin where the next one does. */
    int32_t low = 0, high = b->n - 1;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (b->items[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    const neap_block *block = &b->items[low];
    uint64_t at = (uint64_t)(chunk - block->first_chunk) * CHUNK, left = block->bytes - at;
    *bytes = (uint32_t)(left < CHUNK ? left : CHUNK);
    return block->data + at;
}
