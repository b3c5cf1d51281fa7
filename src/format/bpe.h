/* Byte-pair merging of one piece of text. */
#ifndef NEAP_FORMAT_BPE_H
#define NEAP_FORMAT_BPE_H

#include "format/vocab.h"

/* Where token ids go: written while they fit, counted always. */
typedef struct neap_token_sink {
    int32_t *tokens; /* [capacity], may be NULL with capacity 0 */
    size_t capacity;
    size_t n;
} neap_token_sink;

static inline void neap_token_put(neap_token_sink *s, int32_t token) {
    if (s->n < s->capacity) s->tokens[s->n] = token;
    s->n++;
}

/* Work memory, grown to the longest piece seen. Zero-initialise; free with neap_bpe_free. */
typedef struct neap_bpe {
    size_t capacity;  /* bytes of a piece */
    uint64_t *prefix; /* [capacity + 1] hashes of prefixes */
    uint64_t *heap;   /* [3 * capacity] rank << 32 | position */
    uint32_t *prev, *next;
    int32_t *id;   /* of the part that starts here */
    int32_t *rank; /* of this part joined with the next */
} neap_bpe;

NEAP_MUST_CHECK neap_status neap_bpe_piece(neap_bpe *w, const neap_vocab *v, const char *piece, size_t n,
                                           neap_token_sink *out);
void neap_bpe_free(neap_bpe *w);

#endif
