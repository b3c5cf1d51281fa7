/* Stands in for grammar.c until it is there: requests with a grammar
 * are refused. */
#ifndef NEAP_ENGINE_PENDING_H
#define NEAP_ENGINE_PENDING_H

#define neap_grammar_begin(out, g, a) ((void)(g), neap_fail(NEAP_UNSUPPORTED, "no grammars yet"))
#define neap_grammar_vocab(g) (0)
#define neap_grammar_mask(s, m) (false)
#define neap_grammar_accept(s, t) (NEAP_OK)
#define neap_grammar_must_end(s) (false)

#endif
