/* Stands in for grammar.c and prefix_disk.c until they are there: requests with a grammar and engines with a prefix_dir
 * are refused. */
#ifndef NEAP_ENGINE_PENDING_H
#define NEAP_ENGINE_PENDING_H

#define neap_grammar_begin(out, g, a) ((void)(g), neap_fail(NEAP_UNSUPPORTED, "no grammars yet"))
#define neap_grammar_vocab(g) (0)
#define neap_grammar_mask(s, m) (false)
#define neap_grammar_accept(s, t) (NEAP_OK)
#define neap_grammar_must_end(s) (false)
#define neap_prefix_disk_open(out, p, c, o) ((void)(o), neap_fail(NEAP_UNSUPPORTED, "no prefix_dir yet"))
#define neap_prefix_disk_close(d) ((void)(d))
#define neap_prefix_disk_save(d, space, tokens, n) ((void)(d))
#define neap_prefix_disk_find(d, space, tokens, n) (0)
#define neap_prefix_disk_load(d, space, tokens, n) ((void)(n), NEAP_NOT_FOUND)
#define neap_prefix_disk_settle(d) (false)
#define neap_prefix_disk_wait(d, ms) ((void)(d))
#define neap_prefix_disk_statistics(d, out) ((void)(out))

#endif
