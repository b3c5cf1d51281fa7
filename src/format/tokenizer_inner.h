/* The tokenizer's own parts, shared by tokenizer.c (text <-> ids), tokenizer_load.c (files) and chat.c. */
#ifndef NEAP_FORMAT_TOKENIZER_INNER_H
#define NEAP_FORMAT_TOKENIZER_INNER_H

#include "format/bpe.h"
#include "format/chat_texts.h"
#include "format/tokenizer.h"
#include "format/vocab.h"

enum {
    NEAP_SPECIAL_SLOTS = 256, /* slots after the ranks, unless the table names more */
    NEAP_SPECIAL_SLOTS_MAX = 65536,
    NEAP_SPECIAL_BYTES_MAX = 1024, /* one spelling */
    NEAP_STOP_TOKENS_MAX = 64
};

typedef enum neap_chat_style { NEAP_CHAT_NONE, NEAP_CHAT_XTML, NEAP_CHAT_MARKERS } neap_chat_style;

struct neap_tokenizer {
    neap_vocab vocab;
    int32_t n_slots;      /* ids vocab.n .. vocab.n + n_slots - 1 are special */
    char *slot_text;      /* spellings joined */
    uint32_t *slot_start; /* [n_slots + 1] */
    bool *slot_named;     /* [n_slots] false: <|reserved_token_ID|> */
    int32_t *slot_sorted; /* [n_slots] slots in the order of their spellings (bytes) */
    bool slot_first[256]; /* bytes that begin some spelling */
    int32_t stop[NEAP_STOP_TOKENS_MAX];
    size_t n_stop;
    neap_chat_style chat;
    neap_chat_texts texts;
    void *split;                 /* compiled split pattern (PCRE2) */
    struct neap_lazy_trie *trie; /* for grammars; made by the first of them */
};

typedef struct neap_lazy_trie neap_lazy_trie;
NEAP_MUST_CHECK neap_status neap_lazy_trie_create(neap_lazy_trie **out);
void neap_lazy_trie_destroy(neap_lazy_trie *l);

/* Compiles the split pattern, once per tokenizer. */
NEAP_MUST_CHECK neap_status neap_split_compile(neap_tokenizer *t);
void neap_split_free(neap_tokenizer *t);

/* Work memory of one encoding call: several segments can use it in turn. */
typedef struct neap_encoder {
    const neap_tokenizer *t;
    void *match; /* PCRE2 match data */
    neap_bpe bpe;
    char *repaired; /* valid UTF-8 made of an invalid segment */
    size_t repaired_bytes;
    char *shadow; /* see unicode_new.h */
    size_t shadow_bytes;
} neap_encoder;
NEAP_MUST_CHECK neap_status neap_encoder_init(neap_encoder *e, const neap_tokenizer *t);
void neap_encoder_free(neap_encoder *e);
/* Appends the ids of one text; flags as in neap_tokenize. */
NEAP_MUST_CHECK neap_status neap_encode_text(neap_encoder *e, const char *text, size_t n, uint32_t flags,
                                             neap_token_sink *out);

/* Slot of the longest special spelling at p, or -1. */
int32_t neap_special_match(const neap_tokenizer *t, const char *p, size_t n);
/* Slot of exactly this spelling, or -1. */
int32_t neap_special_find(const neap_tokenizer *t, const char *spelling, size_t n);

#endif
