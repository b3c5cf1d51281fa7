/* Prefix cache of a hybrid model: what sequences computed, kept for prompts that begin alike.
 *
 * Two things make up the memory of a prefix of n tokens: the pages of its positions (latents, index keys) and, where a
 * model has recurrent layers, the state after exactly n tokens. Pages are shared by reference: a page that a sequence
 * filled stays where it is, the tree takes a reference. States are copied out at chosen points (checkpoints). A prompt
 * can begin at the deepest point for which BOTH exist, never at one that one kind of layer lacks; what lies between
 * that point and the first difference is computed again, into pages of its own.
 *
 *   tree      a root per space; a node is a page of 64 positions: their tokens (1..64), the page, its checkpoints
 *             (offset 1..n inside the node -> state). Children are told apart by their tokens; two siblings may begin
 *             alike.
 *   hit       whole pages are referenced: nobody writes them any more. A page that is used only up to an offset < 64
 *             is copied, because the new sequence writes behind the offset
 *   written   a checkpoint or page is entered by the caller only after the step that computed it has ended; there is
 *             no way to enter a place first and the bytes later. Loading (reserve, publish) is the same: nobody finds
 *             it before publish.
 *   eviction  leaves first, by value: tokens saved (distance to the checkpoint before it) / age in calls, per byte. A
 *             node may lose its states and keep its page. Pages that a slot uses or a hold covers are never evicted.
 *             A new checkpoint always gets a place while there is one that is not held: the least valuable goes.
 *
 * Keys are a keyed 128-bit hash and, on every hit, the tokens themselves. Single-threaded, but for reading what a hold
 * covers. All memory is claimed at creation; nothing is allocated later. */
#ifndef NEAP_CACHE_PREFIX_H
#define NEAP_CACHE_PREFIX_H

#include "cache/caches.h"

typedef struct neap_prefix neap_prefix;

enum { NEAP_SPACE_BYTES_MAX = 256 };

typedef struct neap_prefix_options {
    int32_t n_states;   /* checkpoints; 0: none (then a model with recurrent layers never hits) */
    int32_t n_nodes;    /* nodes; at least caches->n_pages; one more for every space that keeps something */
    uint64_t hash_seed; /* of the keyed hash; random per process */
    uint32_t hash_bits; /* 128; tests: fewer, so that everything collides */
} neap_prefix_options;

/* Exactly what create takes from its arena; false on overflow. */
bool neap_prefix_bytes(const neap_caches *c, const neap_prefix_options *o, uint64_t *bytes);
/* c must outlive p. p then owns the references of the tree in c's pages. */
NEAP_MUST_CHECK neap_status neap_prefix_create(neap_prefix **out, neap_arena *a, neap_caches *c,
                                               const neap_prefix_options *o);

typedef struct neap_prefix_match {
    int64_t n_usable; /* tokens that need not be computed */
    int64_t n_common; /* >= n_usable: tokens that the tree has alike; where the prompt branches off */
} neap_prefix_match;
/* Only looks. At most n_max tokens count (a prompt's last token must always be computed: n_max = n - 1). */
void neap_prefix_find(const neap_prefix *p, const char *space, const int32_t *tokens, int64_t n_max,
                      neap_prefix_match *out);
/* Opens a slot with pages for n_positions whose first *n_usable tokens (found as above) are there already: pages
 * referenced or copied, states restored. Evicts what is needed, never the hit itself; where the page to be copied would
 * be one too many, the hit ends before it. NEAP_BUSY: not enough pages even so; nothing is taken, nothing evicted.
 * NEAP_CONTEXT_FULL: more positions than the context. */
NEAP_MUST_CHECK neap_status neap_prefix_open(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n_max,
                                             int64_t n_positions, int32_t *slot, int64_t *n_usable);
/* More pages for an open slot, evicting what is needed. NEAP_BUSY: nothing is taken, nothing evicted. */
NEAP_MUST_CHECK neap_status neap_prefix_extend(neap_prefix *p, int32_t slot, int64_t n_positions);
/* The slot's caches hold exactly the first n tokens now: enters its pages and, with_state, a checkpoint at n (evicting
 * less valuable ones; without room or when one is there already: not, which is no error). *kept (may be NULL): whether
 * prompts can begin at n now. Tokens after n may be entered later by the same slot, also into a page begun here; the
 * space and the tokens before stay what they were (NEAP_INTERNAL where a page shows that they did not). */
neap_status neap_prefix_put(neap_prefix *p, int32_t slot, const char *space, const int32_t *tokens, int64_t n,
                            bool with_state, bool *kept);
/* Closes a slot: pages that only it has become free. */
neap_status neap_prefix_close(neap_prefix *p, int32_t slot);
/* Forgets everything that no slot and no hold uses, and all checkpoints that are not held. */
void neap_prefix_clear(neap_prefix *p);

/* ---- for a copy on disk ---- */

/* A checkpoint with the pages before it: until release nothing of it is evicted or written, and any thread may read the
 * bytes of these pages and of the state. (Where the last page's owner goes on writing it, the hold has a copy.) */
typedef struct neap_prefix_hold {
    int64_t n;            /* tokens */
    int32_t n_pages;      /* ceil(n / 64) */
    const int32_t *pages; /* [n_pages]; memory of p */
    const uint8_t *state; /* neap_caches_state_bytes; NULL: no recurrent layers */
    int32_t id;
} neap_prefix_hold;
/* NEAP_NOT_FOUND: no usable point at exactly n tokens. NEAP_BUSY: too many holds (8), or no page for a copy. */
NEAP_MUST_CHECK neap_status neap_prefix_hold_at(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n,
                                                neap_prefix_hold *out);
void neap_prefix_release(neap_prefix *p, const neap_prefix_hold *h);

/* Room for the first n tokens as somebody kept them: pages [first_page, n_pages) are to be filled (with
 * neap_caches_page_write), and the state; those before are in the tree already. Evicts what is needed. NEAP_BUSY: not
 * enough. Then publish, which makes them visible (what somebody entered meanwhile stays as it is), or abandon. One at a
 * time. Space and tokens are copied. */
typedef struct neap_prefix_room {
    int64_t n;
    int32_t first_page, n_pages;
    const int32_t *pages; /* [n_pages] */
    uint8_t *state;       /* NULL: no recurrent layers */
} neap_prefix_room;
NEAP_MUST_CHECK neap_status neap_prefix_reserve(neap_prefix *p, const char *space, const int32_t *tokens, int64_t n,
                                                neap_prefix_room *out);
neap_status neap_prefix_publish(neap_prefix *p);
void neap_prefix_abandon(neap_prefix *p);

typedef struct neap_prefix_stats {
    int32_t n_states_used, n_states, n_nodes_used;
    int64_t n_pages_tree; /* pages that the tree references */
    int64_t n_pages_only; /* of them, those that can be evicted now: neither they nor what follows them is in use */
    uint64_t n_evicted_states, n_evicted_pages;
} neap_prefix_stats;
void neap_prefix_statistics(const neap_prefix *p, neap_prefix_stats *out);
/* The whole books, tree against pages against states: for tests. */
NEAP_MUST_CHECK neap_status neap_prefix_audit(const neap_prefix *p);

#endif
