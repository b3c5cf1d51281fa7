/* Inside of grammars: the finished automaton, the vocabulary's trie, and the tools that build an automaton. */
#ifndef NEAP_FORMAT_GRAMMAR_INNER_H
#define NEAP_FORMAT_GRAMMAR_INNER_H

#include "base/clock.h"
#include "format/grammar.h"
#include "format/jtree.h"
#include "format/tokenizer_inner.h"

/* ---- the vocabulary as a trie ---- */

/* Nodes in preorder: the subtree of i is i .. skip[i] - 1. */
typedef struct neap_trie {
    uint32_t n;
    uint8_t *byte;
    uint32_t *skip;
    int32_t *token;  /* that ends here; -1: none */
    uint16_t *depth; /* bytes before it */
    uint32_t depth_max;
} neap_trie;

/* One per tokenizer, made when the first grammar is, used by all. Ordinary tokens are whole characters that stand in
 * a JSON string as they are (and are no ends of lines to anybody). */
typedef struct neap_vocab_trie {
    neap_trie all;        /* tokens that are text and do not end answers */
    neap_trie odd;        /* those of them that are not ordinary */
    size_t n_words;       /* of a mask */
    uint32_t *ordinary;   /* mask */
    uint32_t *text;       /* mask: all of the first trie */
    uint32_t *unnamed;    /* mask: special tokens that mean nothing to the chat format */
    int32_t *by_length;   /* ordinary tokens, those of few characters first */
    uint32_t *length_end; /* [length_max + 1] how many of them have at most i characters */
    uint32_t length_max;
} neap_vocab_trie;

/* Room for `need` elements of `size` bytes. */
static inline neap_status neap_grow(void *p, uint64_t need, uint32_t *max, size_t size) {
    void **at = p;
    if (need <= *max) return NEAP_OK;
    uint64_t grown = *max < 32 ? 64 : (uint64_t)*max * 2;
    if (grown < need) grown = need;
    NEAP_CHECK(grown < UINT32_MAX / 2, NEAP_LIMIT, "a grammar is too large");
    NEAP_TRY(neap_mem_grow(at, *max * size, (size_t)grown * size));
    *max = (uint32_t)grown;
    return NEAP_OK;
}

NEAP_MUST_CHECK neap_status neap_vocab_trie_get(const neap_vocab_trie **out, const neap_tokenizer *t);
static inline void neap_mask_set(uint32_t *mask, int32_t i) { mask[i / 32] |= UINT32_C(1) << (i % 32); }
static inline bool neap_mask_has(const uint32_t *mask, int32_t i) { return mask[i / 32] >> (i % 32) & 1; }

/* ---- the automaton ---- */

/* States with edges, and states of tables (deterministic byte automata). A rule is a part that is entered by a call and
 * left at a state that ends it; what was called from lies on a stack. */
enum { NEAP_GSTATE_DEAD = 0, NEAP_GSTATE_FINAL = 1, NEAP_GSTATE_END = 2 }; /* the first three states */
enum {
    NEAP_GS_END = 1,     /* the rule may end here */
    NEAP_GS_FREE = 2,    /* any text */
    NEAP_GS_TABLE = 4,   /* first: its row; n: its table */
    NEAP_GS_BETWEEN = 8, /* table: between two characters of a string */
    NEAP_GS_ROOMY = 16   /* table: whatever ordinary characters come, the string can go on */
};
typedef struct neap_gstate {
    uint32_t first, n;
    uint8_t flags;
} neap_gstate;

typedef enum neap_gkind { NEAP_GE_BYTE, NEAP_GE_EMPTY, NEAP_GE_CALL, NEAP_GE_TOKEN } neap_gkind;
enum {
    NEAP_GE_DEEPER = 1, /* one more array or object */
    NEAP_GE_ZERO = 2,   /* the count becomes 0 */
    NEAP_GE_INC = 4,    /* one more, up to where it stops mattering */
    NEAP_GE_MIN = 8,    /* only with the minimum reached */
    NEAP_GE_MORE = 16,  /* only below the maximum */
    NEAP_GE_IS = 32,    /* without a byte: only when the count is `lo`; all edges of a state or none */
    NEAP_GE_KEEP = 64   /* CALL: the rule begins with the count */
};
typedef struct neap_gedge {
    uint8_t kind, lo, hi, flags;
    uint32_t to;  /* CALL: where to go on behind the rule */
    uint32_t arg; /* CALL: first state of the rule; TOKEN: its id; else the loop that the flags mean */
} neap_gedge;

/* The bytes of ordinary characters: the state behind `byte`, -1 when it is not ordinary. 0: between characters. */
int neap_ordinary_step(int state, uint8_t byte);
enum { NEAP_ORDINARY_STATES = 10 };

typedef struct neap_gloop {
    uint32_t min, max, cap; /* max UINT32_MAX: none; cap: where counting stops */
    uint32_t item;          /* first state of the rule that is repeated; 0: characters */
} neap_gloop;

typedef struct neap_gtable {
    uint8_t class_of[256];
    uint32_t n_classes;
    uint32_t base;     /* its first state; row r belongs to state base + r */
    uint32_t row;      /* where its rows begin */
    uint32_t loop;     /* characters are counted, UINT32_MAX: not */
    uint32_t cost_max; /* of its states, without the count */
} neap_gtable;

/* What a state still needs to the end of its rule (grammar_cost.c). */
#define NEAP_COST_NEVER UINT32_MAX
typedef struct neap_gcost {
    uint32_t least; /* bytes and control tokens; at most that many tokens */
    uint32_t loop;  /* whose minimum comes on top; UINT32_MAX: none */
    uint16_t height;
    uint8_t incs; /* how often the loop is counted on the way */
} neap_gcost;

struct neap_grammar {
    neap_arena *arena;
    const neap_vocab_trie *vocab;
    const neap_tokenizer *t;
    neap_gstate *states;
    neap_gedge *edges;
    neap_gloop *loops;
    neap_gtable *tables;
    uint32_t *rows;
    uint16_t *height;       /* [n_states] arrays and objects that must still open; HEIGHT_NEVER: the rule cannot end */
    neap_gcost *cost[2];    /* [n_states] the least, and the least of those of the least height */
    uint32_t *loop_cost[2]; /* of one more item */
    uint64_t cost_max;      /* of a state that can end */
    uint32_t n_states, n_edges, start;
    uint32_t depth_max;
    size_t n_words;
    int32_t end; /* control token that closes a message, though perhaps no stop token; -1: none */
};
enum { NEAP_HEIGHT_NEVER = 65535 };

uint32_t neap_gedge_height(const neap_grammar *g, const neap_gedge *e);
/* What a place needs to the end of its rule at most. */
uint32_t neap_gcost_at(const neap_grammar *g, uint32_t state, uint32_t count, uint32_t depth);

/* ---- deterministic byte automata ---- */

/* State 0 is dead. next[state * n_classes + class]. */
typedef struct neap_dfa {
    uint8_t class_of[256];
    uint32_t n_classes, n, start;
    uint32_t *next;
    bool *accepts;
} neap_dfa;
void neap_dfa_free(neap_dfa *d);
/* Steps for characters of several bytes between visits to state `body` of a table [states][256]. States body + 1 ..
 * body + 7 lie inside of one: one, two, three bytes to come, and behind E0, ED, F0, F4, which restrict the next. */
enum { NEAP_DFA_WIDE = 7 };
void neap_dfa_wide(uint32_t *table, uint32_t body);

/* ---- building ---- */

typedef struct neap_bedge {
    neap_gedge e;
    uint32_t next; /* of the same state, in order */
} neap_bedge;
typedef struct neap_bstate {
    uint32_t first, last;
    uint32_t row, table;
    uint8_t flags;
} neap_bstate;

/* Budgets of one compilation, and the automaton that grows. */
typedef struct neap_gbuild {
    const neap_grammar_limits *limits;
    int64_t deadline_ns, wall_deadline_ns;            /* of the thread's own time; by the clock */
    const char *(*where)(void *user, char text[256]); /* the place in the request, for messages */
    void *where_user;
    uint32_t ticks;
    neap_bstate *states;
    uint32_t n_states, states_max;
    neap_bedge *edges; /* [0] unused */
    uint32_t n_edges, edges_max;
    neap_gloop *loops;
    uint32_t n_loops, loops_max;
    neap_gtable *tables;
    uint32_t n_tables, tables_max;
    uint32_t *rows;
    uint32_t n_rows, rows_max;
} neap_gbuild;

NEAP_MUST_CHECK neap_status neap_gbuild_init(neap_gbuild *b, const neap_grammar_limits *limits);
void neap_gbuild_free(neap_gbuild *b);
NEAP_MUST_CHECK neap_status neap_gbuild_tick(neap_gbuild *b); /* NEAP_LIMIT when the time is over */
const char *neap_gbuild_where(neap_gbuild *b, char text[256]);
NEAP_MUST_CHECK neap_status neap_gbuild_state(neap_gbuild *b, uint32_t *out);
NEAP_MUST_CHECK neap_status neap_gbuild_edge(neap_gbuild *b, uint32_t from, neap_gedge e);
NEAP_MUST_CHECK neap_status neap_gbuild_empty(neap_gbuild *b, uint32_t from, uint32_t to);
/* A chain of bytes, a control token, a call, from *at on; *at becomes its end. */
NEAP_MUST_CHECK neap_status neap_gbuild_text(neap_gbuild *b, uint32_t *at, const char *s, size_t n);
NEAP_MUST_CHECK neap_status neap_gbuild_token(neap_gbuild *b, uint32_t *at, int32_t token);
NEAP_MUST_CHECK neap_status neap_gbuild_call(neap_gbuild *b, uint32_t *at, uint32_t rule);
NEAP_MUST_CHECK neap_status neap_gbuild_loop(neap_gbuild *b, neap_gloop loop, uint32_t *out);
/* The automaton as states; accepting ones end the rule. *start: where it begins. */
NEAP_MUST_CHECK neap_status neap_gbuild_dfa(neap_gbuild *b, const neap_dfa *d, uint32_t *start);
/* Strings without a pattern, behind the opening quote up to the closing one (or raw: to wherever it may end), that
 * have min .. max characters (UINT32_MAX: no maximum). */
NEAP_MUST_CHECK neap_status neap_gbuild_string(neap_gbuild *b, bool raw, uint32_t min, uint32_t max, uint32_t *start);
NEAP_MUST_CHECK neap_status neap_gcost_find(neap_gbuild *b, neap_grammar *g);
/* Packs everything into the grammar; start is the answer's rule. */
NEAP_MUST_CHECK neap_status neap_gbuild_finish(neap_gbuild *b, neap_grammar *g, uint32_t start);

/* Keys of words to numbers 0, 1, ... in the order in which they come. */
typedef struct neap_intern {
    uint32_t *pool, n_pool, pool_max;
    uint32_t *at, *length; /* of key i */
    uint32_t n, keys_max, lengths_max;
    uint32_t *slots, n_slots; /* number + 1 */
} neap_intern;
void neap_intern_free(neap_intern *t);
/* *number: of this key; *fresh: it was not known. */
NEAP_MUST_CHECK neap_status neap_intern_key(neap_intern *t, const uint32_t *key, uint32_t n, uint32_t *number,
                                            bool *fresh);

/* ---- byte automata from patterns and bounds (grammar_dfa.c, grammar_regex.c, grammar_number.c) ---- */

typedef enum neap_nkind { NEAP_N_BYTES, NEAP_N_SPLIT, NEAP_N_BEGIN, NEAP_N_FINISH, NEAP_N_MATCH } neap_nkind;
typedef struct neap_nstate {
    uint8_t kind, lo, hi;
    uint32_t out, out1;
} neap_nstate;
typedef struct neap_nfa {
    neap_nstate *s;
    uint32_t n, max, start;
} neap_nfa;
enum { NEAP_NFA_MAX = 100000 };
void neap_nfa_free(neap_nfa *n);
NEAP_MUST_CHECK neap_status neap_nfa_add(neap_nfa *n, neap_nstate s, uint32_t *out);
NEAP_MUST_CHECK neap_status neap_nfa_to_dfa(neap_gbuild *b, const neap_nfa *n, neap_dfa *out);
/* UTF-8 of the code points lo .. hi, as a fragment: from its start (returned) all paths lead to `to`. */
NEAP_MUST_CHECK neap_status neap_nfa_range(neap_nfa *n, uint32_t lo, uint32_t hi, uint32_t to, uint32_t *start);

/* Strings in which the pattern (ECMA-262 subset) is found. */
NEAP_MUST_CHECK neap_status neap_regex_dfa(neap_gbuild *b, const char *pattern, size_t n, neap_dfa *out);
NEAP_MUST_CHECK neap_status neap_dfa_both(neap_gbuild *b, const neap_dfa *x, const neap_dfa *y, neap_dfa *out);
NEAP_MUST_CHECK neap_status neap_dfa_length(neap_gbuild *b, uint32_t min, uint32_t max, neap_dfa *out);
/* Any well-formed text but these. */
typedef struct neap_gname {
    const char *p;
    size_t n;
} neap_gname;
NEAP_MUST_CHECK neap_status neap_dfa_except(neap_gbuild *b, const neap_gname *names, size_t n, bool attribute,
                                            neap_dfa *out);
/* From the characters of a string to its spelling in JSON, behind the opening quote and with the closing one. */
NEAP_MUST_CHECK neap_status neap_dfa_escape(neap_gbuild *b, const neap_dfa *x, neap_dfa *out);
bool neap_dfa_takes(const neap_dfa *d, const char *s, size_t n);
bool neap_dfa_is_empty(const neap_dfa *d);

/* A decimal number as a schema writes it. */
enum { NEAP_DECIMAL_DIGITS = 40 };
typedef struct neap_decimal {
    bool negative;
    int32_t n_whole, n_part;              /* without leading and trailing zeros */
    char digits[2 * NEAP_DECIMAL_DIGITS]; /* '0' .. '9', whole then part */
} neap_decimal;
/* false: more digits than NEAP_DECIMAL_DIGITS before or behind the point. */
bool neap_decimal_read(neap_decimal *d, const char *s, size_t n);
int neap_decimal_compare(const neap_decimal *a, const neap_decimal *b);
typedef struct neap_number_range {
    bool has_lo, has_hi, lo_open, hi_open; /* open: the bound itself is excluded */
    bool is_integer;
    neap_decimal lo, hi;
} neap_number_range;
bool neap_number_in(const neap_number_range *r, const neap_decimal *d);
NEAP_MUST_CHECK neap_status neap_number_dfa(neap_gbuild *b, const neap_number_range *r, neap_dfa *out);

/* ---- schemas ---- */

typedef struct neap_gschema neap_gschema; /* the reader of all schemas of one request */
/* The tree is borrowed. */
NEAP_MUST_CHECK neap_status neap_gschema_create(neap_gschema **out, neap_gbuild *b, neap_jtree *tree);
void neap_gschema_destroy(neap_gschema *s);
/* A schema's root (NEAP_J_NONE: anything); must be told before it is used. */
NEAP_MUST_CHECK neap_status neap_gschema_root(neap_gschema *s, uint32_t node);
/* The rule of a value: only objects, or any. *start: its first state, whose edges come with neap_gschema_compile. */
NEAP_MUST_CHECK neap_status neap_gschema_value(neap_gschema *s, uint32_t node, bool object_only, uint32_t *start);
/* Arguments of a call as elements of the XML-like format: tokens of <|open|>, <|close|>, <|sep|>. */
typedef struct neap_gtags {
    int32_t open, close, sep;
} neap_gtags;
NEAP_MUST_CHECK neap_status neap_gschema_arguments(neap_gschema *s, uint32_t node, neap_gtags tags, uint32_t *start);
NEAP_MUST_CHECK neap_status neap_gschema_compile(neap_gschema *s);

#endif
