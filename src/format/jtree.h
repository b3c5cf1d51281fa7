/* JSON text as a tree that keeps what a chat prompt shows: the order of members, the spelling of numbers. */
#ifndef NEAP_FORMAT_JTREE_H
#define NEAP_FORMAT_JTREE_H

#include <stdbool.h>

#include "base/status.h"
#include "format/text_buffer.h"

typedef enum neap_jkind {
    NEAP_J_NULL,
    NEAP_J_FALSE,
    NEAP_J_TRUE,
    NEAP_J_NUMBER,
    NEAP_J_STRING,
    NEAP_J_ARRAY,
    NEAP_J_OBJECT
} neap_jkind;

enum {
    NEAP_J_DEPTH = 64,
    NEAP_J_NODES_MAX = 2000000,
    NEAP_J_NONE = 0, /* no node */
    NEAP_J_ROOT = 1
};

typedef struct neap_jnode {
    neap_jkind kind;
    uint32_t first, n;       /* children of an array or object: first of them, how many */
    uint32_t next;           /* following sibling or NEAP_J_NONE */
    uint32_t at, bytes;      /* string: in the pool, 0-terminated there; number: in the text */
    uint32_t key, key_bytes; /* members: in the pool, 0-terminated there */
} neap_jnode;

typedef struct neap_jtree {
    const char *text; /* borrowed */
    neap_jnode *nodes;
    uint32_t n_nodes, nodes_max;
    char *pool; /* decoded strings */
    uint32_t pool_bytes;
    uint32_t *work; /* for sorting members */
    uint32_t work_max;
} neap_jtree;

/* How strict: a request from outside, or arguments as Python's json.loads takes them (of equal keys the last
 * value counts, NaN and Infinity are numbers, a lone surrogate becomes U+FFFD). */
typedef enum neap_jrules { NEAP_J_STRICT, NEAP_J_PYTHON } neap_jrules;

/* t must be zeroed; text stays borrowed. NEAP_INVALID_ARGUMENT: not JSON; NEAP_LIMIT: deeper than 64 levels or
 * too large. On failure t is empty again. */
NEAP_MUST_CHECK neap_status neap_jtree_parse(neap_jtree *t, const char *text, size_t n, neap_jrules rules);
void neap_jtree_free(neap_jtree *t);

static inline neap_jkind neap_jtree_kind(const neap_jtree *t, uint32_t node) { return t->nodes[node].kind; }
/* Member of an object; NEAP_J_NONE when absent, null or when node is no object. */
uint32_t neap_jtree_get(const neap_jtree *t, uint32_t node, const char *key);
/* The same, but null is returned too. */
uint32_t neap_jtree_member(const neap_jtree *t, uint32_t node, const char *key);
const char *neap_jtree_string(const neap_jtree *t, uint32_t node, size_t *n); /* of a string node */

/* Writes the value as Python's json.dumps(ensure_ascii=False) does. Compact: "," and ":" alone between items,
 * else ", " and ": ". Sorted: members in the order of their keys, at every level (reorders the tree). */
typedef enum neap_jstyle { NEAP_J_SPACED, NEAP_J_COMPACT, NEAP_J_COMPACT_SORTED } neap_jstyle;
NEAP_MUST_CHECK neap_status neap_jtree_write(neap_jtree *t, uint32_t node, neap_jstyle style, neap_text *out);
/* Characters of a JSON string, escaped, without the quotes. */
NEAP_MUST_CHECK neap_status neap_json_escape(const char *s, size_t n, neap_text *out);

#endif
