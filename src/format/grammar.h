/* Constrained decoding: the automaton of an answer and, for each state, which tokens may follow.
 *
 * A grammar is a pushdown automaton over bytes and special tokens, compiled from a JSON Schema and the chat format's
 * own structure. For a state the mask is found by walking a trie of the vocabulary's bytes together with the automaton;
 * inside of strings the ordinary tokens are one ready mask. Nothing is allocated while an answer is made.
 * Called by the engine's sampler; the public part is in neap.h. */
#ifndef NEAP_FORMAT_GRAMMAR_H
#define NEAP_FORMAT_GRAMMAR_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "neap.h"

typedef struct neap_grammar_state neap_grammar_state; /* one answer's place in a grammar */

/* All memory that the answer will need comes from the arena now. */
NEAP_MUST_CHECK neap_status neap_grammar_begin(neap_grammar_state **out, const neap_grammar *g, neap_arena *a);
/* Bit i of mask[i / 32]: token i may follow; words (vocab + 31) / 32. Stop tokens are set where the answer may end.
 * False: everything may follow (free text), mask is not touched. Never empty: an answer can always go on or end.
 * remaining: tokens that the answer may still have, this one among them; INT64_MAX or negative: any number. When it
 * becomes short, only tokens may follow after which the answer can still be completed. When it is too short for that
 * anyway, nothing is forbidden. */
bool neap_grammar_mask(neap_grammar_state *s, uint32_t *mask, int64_t remaining);
/* A token was forbidden for that reason: the answer may be complete in form, but was cut short. */
bool neap_grammar_was_cut(const neap_grammar_state *s);
/* The token that was chosen. NEAP_INVALID_ARGUMENT: it was not allowed (the state is unchanged). */
NEAP_MUST_CHECK neap_status neap_grammar_accept(neap_grammar_state *s, int32_t token);
/* The answer may end here / can only end here. */
bool neap_grammar_may_end(const neap_grammar_state *s);
bool neap_grammar_must_end(const neap_grammar_state *s);
int32_t neap_grammar_vocab(const neap_grammar *g);

#endif
