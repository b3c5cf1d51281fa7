/* What prefix.c (what callers ask) and prefix_tree.c (nodes, checkpoints, eviction) share,
 * and prefix_audit.c. Nobody else includes it.
 *
 *   node        root: its tokens are the bytes of the space; page -1, level -1
 *               else: level l holds the tokens of positions 64 l ..; children only below a full node
 *   users       slots that have the node's page in their table; pins: holds, reservations, calls under way
 *   busy        (users + pins > 0) + children that are busy. 0: the node and all below it may be evicted
 *   lists       leaves with busy 0, by class (the power of two of their weight), most recently used first; a victim is
 *               one of at most 32 tails
 *   checkpoint  before: the checkpoint before it on its path; the difference of their positions is what it saves */
#ifndef NEAP_CACHE_PREFIX_INNER_H
#define NEAP_CACHE_PREFIX_INNER_H

#include "cache/prefix.h"

enum { NEAP_PREFIX_CLASSES = 32, NEAP_PREFIX_HOLDS = 8, NEAP_PREFIX_HITS = 16 };

typedef struct neap_prefix_node {
    uint64_t hash[2];
    uint64_t last_use;                       /* clock when it was last busy */
    int32_t parent, first_child, next, prev; /* next, prev: siblings; free nodes: next */
    int32_t hash_next;                       /* roots and full nodes are in the table */
    int32_t page, level, n_tokens;
    int32_t users, pins, busy;
    int32_t first_state;                /* the deepest; the others follow by offset */
    int32_t list, list_next, list_prev; /* class, -1: in none */
    uint32_t generation;                /* grows when the node is given up */
    bool used;
} neap_prefix_node;

typedef struct neap_prefix_state {
    uint64_t last_use;
    int64_t position;
    int32_t node, before, next; /* node -1: free (next) or reserved; next: of the same node, nearer to its beginning */
    int32_t followers;          /* checkpoints that have it as their before; 0: the end of a conversation */
    int32_t hits;               /* prompts that began here, at most NEAP_PREFIX_HITS */
    int32_t holds;
} neap_prefix_state;

typedef struct neap_prefix_last { /* the last full node of what a slot entered */
    int32_t node, root;
    uint32_t node_generation, slot_generation;
} neap_prefix_last;

typedef struct neap_prefix_holding {
    int32_t node, state, copy; /* node -1: free; copy: a page of its own instead of the last one, -1: none */
} neap_prefix_holding;

struct neap_prefix {
    neap_caches *caches;
    uint64_t key[2];
    uint64_t mask[2]; /* of the hash */
    uint64_t clock;   /* calls that use or enter something */
    int32_t n_nodes, n_states;
    int32_t *tokens; /* [n_nodes][64] */
    neap_prefix_node *nodes;
    neap_prefix_state *states;
    uint8_t *state_bytes; /* [n_states][state_stride] */
    size_t state_stride;
    uint64_t page_bytes;
    bool has_state; /* the model has recurrent layers */
    int32_t *buckets;
    uint32_t n_buckets;                                           /* a power of two */
    int32_t *page_node;                                           /* [n_pages] node of the page, -1: none */
    int32_t *marks;                                               /* [n_pages] audit */
    int32_t *path;                                                /* [slot_pages_max] pages that an opening shares */
    neap_prefix_last *last;                                       /* [n_slots] */
    int32_t head[NEAP_PREFIX_CLASSES], tail[NEAP_PREFIX_CLASSES]; /* of the lists */
    int32_t free_node, free_state;
    int32_t n_nodes_used, n_states_used, n_pages, n_evictable; /* nodes with pages: all, and those with busy 0 */
    uint64_t n_evicted_states, n_evicted_pages;
    neap_prefix_holding holds[NEAP_PREFIX_HOLDS];
    int32_t *hold_pages; /* [8][slot_pages_max] */
    struct {
        bool open;
        int64_t n;
        int32_t pin, first_page, n_pages, state; /* pin: the node that keeps the pages before first_page */
        int32_t *pages, *tokens;                 /* [slot_pages_max], [slot_pages_max * 64] */
        char space[NEAP_SPACE_BYTES_MAX + 1];
    } room;
};

static inline const int32_t *neap_prefix_tokens(const neap_prefix *p, int32_t node) {
    return p->tokens + (int64_t)node * NEAP_PAGE_ROWS;
}

/* ---- nodes (prefix_tree.c) ---- */

/* SipHash-2-4 with 128 bits, cut to the mask. */
void neap_prefix_hash(const neap_prefix *p, const void *data, size_t bytes, uint64_t hash[2]);
/* -1: none. The space has at most 256 bytes. */
int32_t neap_prefix_root(const neap_prefix *p, const char *space);
/* The child with exactly these 64 tokens; -1: none. */
int32_t neap_prefix_full_child(const neap_prefix *p, int32_t parent, const int32_t *tokens);
/* Tokens that the node has in common with the n given ones. */
int32_t neap_prefix_common(const neap_prefix *p, int32_t node, const int32_t *tokens, int32_t n);
/* New nodes, evicting for one if need be (not the parent, which the caller pins); -1: no room. A child takes a
 * reference of its page. */
int32_t neap_prefix_add_root(neap_prefix *p, const char *space);
int32_t neap_prefix_add_child(neap_prefix *p, int32_t parent, int32_t page, const int32_t *tokens, int32_t n);
/* More tokens for a node: n in all. */
void neap_prefix_grow(neap_prefix *p, int32_t node, const int32_t *tokens, int32_t n);
void neap_prefix_pin(neap_prefix *p, int32_t node, bool is_slot);
/* A root without children goes with its last pin. */
void neap_prefix_unpin(neap_prefix *p, int32_t node, bool is_slot);
/* What a leaf saves per byte, and the list it belongs in. */
uint64_t neap_prefix_weight(const neap_prefix *p, int32_t node);
int32_t neap_prefix_class(uint64_t weight);
/* Gives up one leaf, the least valuable; false: none is left. */
bool neap_prefix_evict_leaf(neap_prefix *p);
/* Until so many pages are free. NEAP_BUSY: impossible, and nothing was evicted. */
NEAP_MUST_CHECK neap_status neap_prefix_make_room(neap_prefix *p, int32_t n_pages);

/* ---- checkpoints ---- */

/* The node's checkpoint at the offset or, with below, the deepest at or before it; -1: none. */
int32_t neap_prefix_state_at(const neap_prefix *p, int32_t node, int32_t offset, bool below);
/* A place for a checkpoint, evicting the least valuable one that is not held; -1: none. It is not yet in the tree. */
int32_t neap_prefix_take_state(neap_prefix *p);
void neap_prefix_free_state(neap_prefix *p, int32_t state); /* of one that is not in the tree */
void neap_prefix_enter_state(neap_prefix *p, int32_t state, int32_t node, int32_t offset);
void neap_prefix_drop_state(neap_prefix *p, int32_t state); /* out of the tree, and free */
/* The checkpoint before the position on the way from the node to its root; -1: none. */
int32_t neap_prefix_state_before(const neap_prefix *p, int32_t node, int64_t position);
static inline uint8_t *neap_prefix_state_bytes(const neap_prefix *p, int32_t state) {
    return p->state_bytes + (size_t)state * p->state_stride;
}

#endif
