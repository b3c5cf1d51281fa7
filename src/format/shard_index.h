/* model.safetensors.index.json: which shard holds which tensor. */
#ifndef NEAP_FORMAT_SHARD_INDEX_H
#define NEAP_FORMAT_SHARD_INDEX_H

#include "format/names.h"
#include "format/scan.h"

enum { NEAP_SHARDS_MAX = 4096 };

typedef struct neap_index {
    neap_scan scan;     /* borrows the text, owns decoded names */
    neap_names names;   /* scope 0: tensor -> shard number; scope 1: shard name -> number; others: keys */
    neap_text *tensors; /* [n_tensors] in the order of the file */
    size_t n_tensors, capacity;
    neap_text *shards;       /* [n_shards] in order of name */
    uint32_t *rank;          /* [n_shards] number in `names` -> place in `shards` */
    uint32_t n_shards, last; /* last: number of the shard seen latest, while parsing */
    bool has_total;
    uint64_t total_bytes; /* metadata.total_size */
} neap_index;

/* The text is borrowed until neap_index_free. On failure *x is already freed. */
NEAP_MUST_CHECK neap_status neap_index_parse(neap_index *x, const char *text, size_t n);
void neap_index_free(neap_index *x);
/* Place of the tensor's shard in x->shards, -1: not in the index. */
int32_t neap_index_shard_of(const neap_index *x, const char *name, size_t n);
bool neap_index_has_shard(const neap_index *x, const char *name);

#endif
