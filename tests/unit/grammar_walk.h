/* Random answers of a grammar: allowed tokens at random, and after a while those that lead to the end. */
#ifndef NEAP_TESTS_UNIT_GRAMMAR_WALK_H
#define NEAP_TESTS_UNIT_GRAMMAR_WALK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/grammar.h"
#include "format/text_buffer.h"
#include "format/tokenizer.h"

typedef struct grammar_walk {
    const neap_tokenizer *t;
    uint64_t random;
    int32_t budget; /* tokens before it heads for the end */
    int32_t most;   /* tokens that it may have: the grammar must bring it to its end; 0: any number */
    int32_t tokens[4096];
    int32_t n;
    neap_text text; /* of the tokens that are no special ones */
} grammar_walk;

static inline uint32_t walk_random(grammar_walk *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 32);
}

static inline bool walk_has(const uint32_t *mask, int32_t i) { return mask[i / 32] >> (i % 32) & 1; }

/* Does the chat format know this control token? */
static inline bool walk_is_structure(const grammar_walk *w, int32_t token) {
    const char *p;
    size_t n;
    int special;
    if (neap_token_bytes(w->t, token, &p, &n, &special) != NEAP_OK || !special) return false;
    return n > 2 && memcmp(p, "<|", 2) == 0 && (n < 7 || memcmp(p, "<|media", 7) != 0);
}

static inline bool walk_ends(const grammar_walk *w, int32_t token) {
    int32_t stop[8];
    size_t n = 0;
    if (neap_stop_tokens(w->t, stop, 8, &n) != NEAP_OK) return false;
    for (size_t i = 0; i < n; i++)
        if (stop[i] == token) return true;
    return false;
}

/* A control token, or one that closes something, or any. */
static inline int32_t walk_closing(grammar_walk *w, const int32_t *allowed, int32_t n) {
    static const char want[] = "\"]}0nt1";
    int32_t n_structure = 0, chosen = -1;
    for (int32_t i = n; i-- > 0 && allowed[i] >= neap_tokenizer_base(w->t);)
        if (walk_is_structure(w, allowed[i]) && walk_random(w) % (uint32_t)++n_structure == 0) chosen = allowed[i];
    if (chosen >= 0) return chosen;
    for (size_t k = 0; k < sizeof want - 1; k++)
        for (int32_t i = 0; i < n; i++) {
            const char *p;
            size_t bytes;
            if (neap_token_bytes(w->t, allowed[i], &p, &bytes, NULL) == NEAP_OK && bytes == 1 && p[0] == want[k] &&
                walk_random(w) % 8 != 0)
                return allowed[i];
        }
    return allowed[walk_random(w) % (uint32_t)n];
}

/* One answer. Returns NULL, or what went wrong; "long": it found no end (not an error of the grammar). The mask has
 * room for the vocabulary. */
static inline const char *walk_answer(grammar_walk *w, neap_grammar_state *s, uint32_t *mask, int32_t *allowed) {
    int32_t vocab = neap_tokenizer_vocab(w->t);
    w->n = 0;
    w->text.n = 0;
    while (w->n < 4096) {
        int32_t n = 0;
        if (w->most > 0 && (w->n == w->most || neap_grammar_must_end(s)))
            return neap_grammar_may_end(s) ? NULL : "the answer was not brought to its end";
        bool all = !neap_grammar_mask(s, mask, w->most > 0 ? w->most - w->n : INT64_MAX);
        for (int32_t i = 0; i < vocab; i++)
            if (all ? !neap_token_is_unsampled(w->t, i) : walk_has(mask, i)) allowed[n++] = i;
        if (n == 0) return "nothing may follow";
        if (w->most == 0 && neap_grammar_may_end(s) &&
            (neap_grammar_must_end(s) || w->n >= w->budget || walk_random(w) % 4 == 0))
            return NULL;
        int32_t token = allowed[walk_random(w) % (uint32_t)n];
        if (w->most == 0 && w->n >= w->budget) token = walk_closing(w, allowed, n);
        const char *p;
        size_t bytes;
        int special;
        if (token < 0 || neap_token_bytes(w->t, token, &p, &bytes, &special) != NEAP_OK) return "no such token";
        if (neap_grammar_accept(s, token) != NEAP_OK) return "an allowed token was refused";
        if (!special && neap_text_add(&w->text, p, bytes) != NEAP_OK) return "no memory";
        w->tokens[w->n++] = token;
        if (w->most > 0 && walk_ends(w, token)) return NULL;
    }
    return "long";
}

#endif
