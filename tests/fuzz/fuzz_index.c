/* Shard index text. What is accepted keeps its promises: shard names are plain and sorted, every tensor has one. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

static void check(const neap_index *x) {
    demand(x->n_tensors > 0 && x->n_shards > 0 && x->n_shards <= x->n_tensors);
    for (uint32_t i = 0; i < x->n_shards; i++) {
        neap_text s = x->shards[i];
        demand(s.n > 12 && s.p[0] != '.' && !memchr(s.p, '/', s.n) && !memchr(s.p, 0, s.n));
        if (i > 0) { /* rising, so no name twice */
            neap_text before = x->shards[i - 1];
            int order = memcmp(before.p, s.p, before.n < s.n ? before.n : s.n);
            demand(order < 0 || (order == 0 && before.n < s.n));
        }
    }
    for (size_t i = 0; i < x->n_tensors; i++) {
        int32_t place = neap_index_shard_of(x, x->tensors[i].p, x->tensors[i].n);
        demand(place >= 0 && (uint32_t)place < x->n_shards);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    neap_index x;
    neap_status status = neap_index_parse(&x, (const char *)data, size);
    demand(status == NEAP_OK || status == NEAP_BAD_FILE);
    if (status == NEAP_OK) {
        check(&x);
        neap_index_free(&x);
    }
    return 0;
}
