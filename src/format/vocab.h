/* The ranks of tiktoken.model: bytes of every token, and the id of a byte string. */
#ifndef NEAP_FORMAT_VOCAB_H
#define NEAP_FORMAT_VOCAB_H

#include "base/status.h"

enum { NEAP_TOKEN_BYTES_MAX = 4096 };

typedef struct neap_vocab_slot {
    uint32_t tag; /* upper half of the hash */
    int32_t id1;  /* id + 1; 0: empty */
} neap_vocab_slot;

typedef struct neap_vocab {
    int32_t n; /* tokens, ids 0 .. n-1 = ranks */
    uint32_t token_bytes_max;
    char *bytes;            /* all tokens, joined in the order of their ranks */
    uint32_t *start;        /* [n + 1] */
    int32_t byte_id[256];   /* id of each single byte */
    neap_vocab_slot *slots; /* [slot_mask + 1], open addressing */
    uint32_t slot_mask;
    uint64_t factor; /* of the polynomial hash; odd, drawn anew for every vocabulary */
    uint64_t *power; /* [token_bytes_max + 1]: factor^i */
} neap_vocab;

/* v must be zeroed. Every refusal names the line. On failure v is empty again. */
NEAP_MUST_CHECK neap_status neap_vocab_parse(neap_vocab *v, const char *text, size_t n);
void neap_vocab_free(neap_vocab *v);

/* The polynomial hash of n bytes: h = h * factor + byte + 1, so that the hash of a range follows from the
 * hashes of two prefixes (bpe.c). */
uint64_t neap_vocab_hash(const neap_vocab *v, const char *bytes, size_t n);
/* id, or -1. hash is that of the bytes. */
int32_t neap_vocab_find(const neap_vocab *v, const char *bytes, size_t n, uint64_t hash);

#endif
