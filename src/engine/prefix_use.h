/* How sequences use the prefix cache: what they find, where they stop to keep a state, whom they wait for. Everything
 * here works without one, too: then slots are opened and closed, and nothing else happens. */
#ifndef NEAP_ENGINE_PREFIX_USE_H
#define NEAP_ENGINE_PREFIX_USE_H

#include "engine/engine_internal.h"

/* Submit: takes space and marks of the request. */
NEAP_MUST_CHECK neap_status neap_prefix_use_init(neap_seq *s, const neap_request *r);
/* Opens a slot for n positions; s->n_computed tokens of it are there already. */
NEAP_MUST_CHECK neap_status neap_prefix_use_open(neap_seq *s, int64_t n);
NEAP_MUST_CHECK neap_status neap_prefix_use_extend(neap_seq *s, int64_t n);
/* Pages that are free; that would be without the prefix cache; that s would find in it. */
int64_t neap_prefix_use_pages_free(const neap_engine *e);
int64_t neap_prefix_use_pages_left(const neap_engine *e);
int64_t neap_prefix_use_pages_found(const neap_seq *s);
/* Whether s, which waits, should wait on: its prefix is being computed by somebody, or comes from disk. */
bool neap_prefix_use_waits(neap_seq *s);
/* Rows of the next step, at most n: up to the next place where a state is to be kept. */
int32_t neap_prefix_use_rows(const neap_seq *s, int32_t n);
/* A step has computed up to s->n_computed: keeps what is worth it. False: numbers were not finite, nothing is kept. */
NEAP_MUST_CHECK bool neap_prefix_use_keep(neap_seq *s);
/* The same for good: the end of a turn, or before the slot is closed. */
NEAP_MUST_CHECK bool neap_prefix_use_end(neap_seq *s, bool to_disk);
/* The copy on disk. Directory not usable: one warning, and the engine goes on without. */
neap_status neap_prefix_use_open_disk(neap_engine *e);
/* Once per step: takes over what the disk has done. */
void neap_prefix_use_settle(neap_engine *e);
/* Waits some milliseconds for the disk: there is nothing else to do. */
void neap_prefix_use_wait(neap_engine *e);

#endif
