/* Inside of the schema compiler: what stands together, and the rules that are made of it. */
#ifndef NEAP_FORMAT_GRAMMAR_SCHEMA_H
#define NEAP_FORMAT_GRAMMAR_SCHEMA_H

#include "format/grammar_inner.h"

enum {
    NEAP_T_NULL = 1,
    NEAP_T_BOOLEAN = 2,
    NEAP_T_INTEGER = 4,
    NEAP_T_FRACTION = 8, /* numbers that are no integers */
    NEAP_T_STRING = 16,
    NEAP_T_ARRAY = 32,
    NEAP_T_OBJECT = 64,
    NEAP_T_NUMBER = NEAP_T_INTEGER | NEAP_T_FRACTION,
    NEAP_T_ALL = 127
};
enum { NEAP_SCHEMA_NODES_MAX = 256, NEAP_SCHEMA_WAYS_MAX = 2000 };

/* Schemas that hold together, without references and alternatives: one way to satisfy a schema. */
typedef struct neap_gway {
    uint32_t from, n; /* in the list of nodes */
} neap_gway;

typedef struct neap_gways {
    uint32_t *nodes, n_nodes, nodes_max;
    neap_gway *ways;
    uint32_t n, max;
} neap_gways;

typedef struct neap_gstring {
    bool raw;
    uint32_t min, max, start;
} neap_gstring;

typedef enum neap_gform { NEAP_G_JSON, NEAP_G_RAW, NEAP_G_ARGUMENTS } neap_gform;

struct neap_gschema {
    neap_gbuild *b;
    neap_jtree *tree;
    uint32_t at;     /* node that is looked at, for messages */
    const char *key; /* keyword of it, or NULL */
    uint32_t *roots, n_roots, roots_max;
    uint8_t *seen;     /* [n_nodes] 1: its keywords are covered, 2: and there are none */
    uint32_t *targets; /* [n_nodes] of $ref nodes: what they mean */
    neap_intern keys;  /* rules by form, types and nodes */
    uint32_t *starts, starts_max;
    neap_gtags tags;
    uint32_t numbers[2]; /* without bounds: fractions, integers; 0: not made yet */
    neap_gstring *strings;
    uint32_t n_strings, strings_max;
    neap_text scratch;
};

/* All ways to satisfy the nodes together. The lists are emptied first. */
NEAP_MUST_CHECK neap_status neap_gschema_ways(neap_gschema *s, const uint32_t *nodes, uint32_t n, neap_gways *out);
void neap_gways_free(neap_gways *w);
/* The rule of a value that satisfies all nodes and has one of the types. */
NEAP_MUST_CHECK neap_status neap_gschema_rule(neap_gschema *s, neap_gform form, uint32_t types, const uint32_t *nodes,
                                              uint32_t n, uint32_t *start);
NEAP_MUST_CHECK neap_status neap_gschema_fail(neap_gschema *s, neap_status status, const char *what);
/* A member of a schema; NEAP_J_NONE. Sets the place for messages. */
uint32_t neap_gschema_get(neap_gschema *s, uint32_t node, const char *key);
/* A number >= 0 that must be whole; UINT32_MAX for what is larger than 10^9. *found: it is there. */
NEAP_MUST_CHECK neap_status neap_gschema_count(neap_gschema *s, uint32_t node, const char *key, bool *found,
                                               uint32_t *out);
/* Types that the way allows. */
NEAP_MUST_CHECK neap_status neap_gschema_types(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t *types);

/* Edges of one way, from `start` on (grammar_value.c, grammar_object.c). */
NEAP_MUST_CHECK neap_status neap_gvalue_way(neap_gschema *s, neap_gform form, uint32_t types, const uint32_t *nodes,
                                            uint32_t n, uint32_t start);
NEAP_MUST_CHECK neap_status neap_gvalue_object(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start);
NEAP_MUST_CHECK neap_status neap_gvalue_array(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start);
NEAP_MUST_CHECK neap_status neap_gvalue_arguments(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start);
/* Behind the closing quote of a key or a comma: one space is allowed. */
NEAP_MUST_CHECK neap_status neap_gvalue_space(neap_gschema *s, uint32_t *at);
/* Which types a value of these schemas can have. */
NEAP_MUST_CHECK neap_status neap_gvalue_types(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t *types);

#endif
