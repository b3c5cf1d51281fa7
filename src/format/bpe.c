/* Byte-pair merging by rank.
 *
 * Start from single bytes; again and again join the adjacent pair whose joined bytes are the vocabulary entry
 * of the lowest rank, leftmost among equals, until no pair is an entry. A piece that is an entry as a whole
 * is that entry.
 *
 * The parts are a linked list over byte positions; candidate pairs wait in a binary heap keyed by (rank,
 * position). A joined part changes two pairs; old heap entries are recognised by their rank, which no longer
 * is the pair's (a pair that grew has other bytes, so another rank). O(n log n) for n bytes.
 * The hash of any range comes from prefix hashes: h(i, j) = P[j] - P[i] f^(j-i).
 *
 * Called by tokenizer.c for every piece. Owns its work memory.
 * Source: tokenizer and chat notes, section 1 (encoding of a piece). */
#include "format/bpe.h"

#include <assert.h>
#include <string.h>

#include "base/arena.h"

enum { NO_RANK = INT32_MAX };

void neap_bpe_free(neap_bpe *w) {
    neap_mem_free(w->prefix);
    neap_mem_free(w->heap);
    neap_mem_free(w->prev);
    neap_mem_free(w->next);
    neap_mem_free(w->id);
    neap_mem_free(w->rank);
    *w = (neap_bpe){0};
}

static neap_status reserve(neap_bpe *w, size_t n) {
    if (n <= w->capacity) return NEAP_OK;
    size_t capacity = 256;
    while (capacity < n) capacity *= 2;
    neap_bpe_free(w);
    NEAP_TRY(neap_mem_alloc((capacity + 1) * sizeof *w->prefix, (void **)&w->prefix));
    NEAP_TRY(neap_mem_alloc(3 * capacity * sizeof *w->heap, (void **)&w->heap));
    NEAP_TRY(neap_mem_alloc(capacity * sizeof *w->prev, (void **)&w->prev));
    NEAP_TRY(neap_mem_alloc(capacity * sizeof *w->next, (void **)&w->next));
    NEAP_TRY(neap_mem_alloc(capacity * sizeof *w->id, (void **)&w->id));
    NEAP_TRY(neap_mem_alloc(capacity * sizeof *w->rank, (void **)&w->rank));
    w->capacity = capacity; /* last: after a failure everything is allocated anew */
    return NEAP_OK;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t x = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = x;
}

static void push(uint64_t *heap, size_t *n, uint64_t x) {
    size_t i = (*n)++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (heap[parent] <= x) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = x;
}

static uint64_t key(int32_t rank, size_t position) { return (uint64_t)(uint32_t)rank << 32 | (uint64_t)position; }

/* Rank of the bytes [from, to), NO_RANK when they are no token. */
static int32_t pair_rank(const neap_bpe *w, const neap_vocab *v, const char *piece, size_t from, size_t to) {
    size_t n = to - from;
    if (n > v->token_bytes_max) return NO_RANK;
    int32_t id = neap_vocab_find(v, piece + from, n, w->prefix[to] - w->prefix[from] * v->power[n]);
    return id < 0 ? NO_RANK : id;
}

static void merge_all(neap_bpe *w, const neap_vocab *v, const char *piece, size_t n, size_t n_heap) {
    while (n_heap > 0) {
        uint64_t top = w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap > 0) sift_down(w->heap, n_heap, 0);
        size_t i = (size_t)(top & 0xFFFFFFFFu);
        int32_t rank = (int32_t)(top >> 32);
        if (w->rank[i] != rank) continue; /* the pair changed since */
        size_t j = w->next[i], k = w->next[j];
        w->id[i] = rank;
        w->rank[j] = NO_RANK; /* j is no part any more */
        w->next[i] = (uint32_t)k;
        w->rank[i] = NO_RANK;
        if (k < n) {
            w->prev[k] = (uint32_t)i;
            w->rank[i] = pair_rank(w, v, piece, i, w->next[k]);
            if (w->rank[i] != NO_RANK) push(w->heap, &n_heap, key(w->rank[i], i));
        }
        if (i > 0) {
            size_t p = w->prev[i];
            w->rank[p] = pair_rank(w, v, piece, p, k);
            if (w->rank[p] != NO_RANK) push(w->heap, &n_heap, key(w->rank[p], p));
        }
        assert(n_heap <= 3 * w->capacity);
    }
}

neap_status neap_bpe_piece(neap_bpe *w, const neap_vocab *v, const char *piece, size_t n, neap_token_sink *out) {
    if (n == 0) return NEAP_OK;
    if (n == 1) {
        neap_token_put(out, v->byte_id[(unsigned char)piece[0]]);
        return NEAP_OK;
    }
    if (n <= v->token_bytes_max) {
        int32_t whole = neap_vocab_find(v, piece, n, neap_vocab_hash(v, piece, n));
        if (whole >= 0) {
            neap_token_put(out, whole);
            return NEAP_OK;
        }
    }
    NEAP_CHECK(n < UINT32_MAX / 4, NEAP_LIMIT, "a piece of %zu bytes is too long", n);
    NEAP_TRY(reserve(w, n));
    w->prefix[0] = 0;
    for (size_t i = 0; i < n; i++) {
        w->prefix[i + 1] = w->prefix[i] * v->factor + (unsigned char)piece[i] + 1;
        w->prev[i] = i > 0 ? (uint32_t)(i - 1) : 0;
        w->next[i] = (uint32_t)(i + 1);
        w->id[i] = v->byte_id[(unsigned char)piece[i]];
    }
    size_t n_heap = 0;
    w->rank[n - 1] = NO_RANK;
    for (size_t i = 0; i + 1 < n; i++) {
        w->rank[i] = pair_rank(w, v, piece, i, i + 2);
        if (w->rank[i] != NO_RANK) w->heap[n_heap++] = key(w->rank[i], i);
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(w->heap, n_heap, i);
    merge_all(w, v, piece, n, n_heap);
    for (size_t i = 0; i < n; i = w->next[i]) neap_token_put(out, w->id[i]);
    return NEAP_OK;
}
