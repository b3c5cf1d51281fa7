/* The memory of packed weights: one block per group of wants (a layer, the rest of the network, the embedding), so that
 * half a million experts do not become half a million mappings, and that a layer is one stream. A block is filled from
 * its beginning in the order of the walk; its offsets follow from shapes alone. For the cache file blocks are cut into
 * chunks, numbered group by group. */
#ifndef NEAP_MODELS_BLOCKS_H
#define NEAP_MODELS_BLOCKS_H

#include "models/match.h"

typedef struct neap_block {
    char *data; /* arena memory; NULL: no bytes */
    uint64_t bytes, used;
    int64_t first_chunk;
} neap_block;

typedef struct neap_blocks {
    neap_block *items; /* [n] arena memory */
    int32_t n;
    int64_t n_chunks;
} neap_blocks;

/* Takes the memory of all weights, zeroed. */
NEAP_MUST_CHECK neap_status neap_blocks_make(neap_blocks *b, neap_arena *arena, const neap_matches *t);
/* The next `bytes` of a group's block, rounded up to 64. */
NEAP_MUST_CHECK neap_status neap_blocks_claim(neap_blocks *b, int32_t group, uint64_t bytes, void **out);
/* Back to the beginning: the next walk claims the same places. */
void neap_blocks_rewind(neap_blocks *b);
/* Where a chunk lies, and how many bytes it has. */
char *neap_blocks_chunk(const neap_blocks *b, int64_t chunk, uint32_t *bytes);

#endif
