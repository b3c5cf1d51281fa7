/* A JSON reader that loses nothing a prompt shows.
 *
 * Chat prompts show JSON to the model exactly as the vendor's Python code would write it, so the order of members,
 * integers of any length and the difference between 1 and 1.0 must survive; the library behind json.c keeps none
 * of that reliably. The tree is one array of nodes in reading order; strings are decoded into one pool. The reader
 * keeps its own stack of 64 levels: no recursion on input.
 *
 * Called by chat_request.c (requests), chat_xtml.c and chat_parse_xtml.c (arguments). Owns nodes and pool, borrows
 * the text. Source: RFC 8259; Python's json module for NEAP_J_PYTHON. */
#include "format/jtree.h"

#include <stdlib.h>

#include "format/jtree_inner.h"
#include "format/utf8.h"

typedef struct reader {
    neap_jtree *t;
    const char *text;
    size_t n, at;
    neap_jrules rules;
    uint32_t open[NEAP_J_DEPTH]; /* containers that are not closed yet */
    uint32_t last[NEAP_J_DEPTH]; /* their latest child */
    int depth;
} reader;

static neap_status bad(const reader *r, const char *what) {
    return neap_fail(NEAP_INVALID_ARGUMENT, "not JSON: %s at byte %zu", what, r->at);
}

static void skip_space(reader *r) {
    while (r->at < r->n && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
}

static neap_status new_node(reader *r, neap_jkind kind, uint32_t *out) {
    neap_jtree *t = r->t;
    if (t->n_nodes == t->nodes_max) {
        NEAP_CHECK(t->n_nodes < NEAP_J_NODES_MAX, NEAP_LIMIT, "JSON of more than %d values", NEAP_J_NODES_MAX);
        size_t old = t->nodes_max, grown = old == 0 ? 64 : old * 2;
        if (grown > NEAP_J_NODES_MAX) grown = NEAP_J_NODES_MAX;
        NEAP_TRY(neap_mem_grow((void **)&t->nodes, old * sizeof *t->nodes, grown * sizeof *t->nodes));
        t->nodes_max = (uint32_t)grown;
    }
    *out = t->n_nodes;
    t->nodes[t->n_nodes++] = (neap_jnode){.kind = kind};
    return NEAP_OK;
}

static int hex4(const reader *r, size_t at, uint32_t *out) {
    uint32_t value = 0;
    if (r->n - at < 4) return 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = r->text[i];
        uint32_t d;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            d = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            d = (uint32_t)(c - 'A') + 10;
        else
            return 0;
        value = value << 4 | d;
    }
    *out = value;
    return 1;
}

/* r->at stands after "\u". */
static neap_status read_unicode(reader *r) {
    neap_jtree *t = r->t;
    uint32_t c, low;
    if (!hex4(r, r->at, &c)) return bad(r, "a \\u escape without four hex digits");
    r->at += 4;
    if (c >= 0xD800 && c < 0xDC00 && r->n - r->at >= 6 && r->text[r->at] == '\\' && r->text[r->at + 1] == 'u' &&
        hex4(r, r->at + 2, &low) && low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        r->at += 6;
    }
    if (c >= 0xD800 && c < 0xE000) {
        if (r->rules == NEAP_J_STRICT) return bad(r, "half of a surrogate pair");
        c = 0xFFFD;
    }
    t->pool_bytes += (uint32_t)neap_utf8_encode(c, t->pool + t->pool_bytes);
    return NEAP_OK;
}

/* r->at stands after the opening quote. A decoded string with its terminator never needs more than its source. */
static neap_status read_string(reader *r, uint32_t *at, uint32_t *bytes) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    neap_jtree *t = r->t;
    *at = t->pool_bytes;
    for (;;) {
        size_t start = r->at;
        while (r->at < r->n && (unsigned char)r->text[r->at] >= 0x20 && r->text[r->at] != '"' && r->text[r->at] != '\\')
            r->at++;
        memcpy(t->pool + t->pool_bytes, r->text + start, r->at - start);
        t->pool_bytes += (uint32_t)(r->at - start);
        if (r->at == r->n) return bad(r, "a string without end");
        char c = r->text[r->at];
        if (c == '"') break;
        if (c != '\\') return bad(r, "a control character in a string");
        r->at++;
        if (r->at == r->n) return bad(r, "a string without end");
        c = r->text[r->at++];
        const char *known = c ? strchr(from, c) : NULL;
        if (known)
            t->pool[t->pool_bytes++] = to[known - from];
        else if (c == 'u')
            NEAP_TRY(read_unicode(r));
        else
            return bad(r, "an unknown escape");
    }
    r->at++;
    *bytes = t->pool_bytes - *at;
    t->pool[t->pool_bytes++] = 0;
    return NEAP_OK;
}

static size_t digits(const reader *r, size_t at) {
    size_t n = 0;
    while (at + n < r->n && r->text[at + n] >= '0' && r->text[at + n] <= '9') n++;
    return n;
}

static neap_status read_number(reader *r, uint32_t *bytes) {
    size_t at = r->at;
    if (r->text[at] == '-') at++;
    size_t whole = digits(r, at);
    if (whole == 0 || (whole > 1 && r->text[at] == '0')) return bad(r, "a malformed number");
    at += whole;
    if (at < r->n && r->text[at] == '.') {
        size_t part = digits(r, at + 1);
        if (part == 0) return bad(r, "a malformed number");
        at += 1 + part;
    }
    if (at < r->n && (r->text[at] == 'e' || r->text[at] == 'E')) {
        size_t sign = at + 1 < r->n && (r->text[at + 1] == '+' || r->text[at + 1] == '-');
        size_t part = digits(r, at + 1 + sign);
        if (part == 0) return bad(r, "a malformed number");
        at += 1 + sign + part;
    }
    *bytes = (uint32_t)(at - r->at);
    r->at = at;
    return NEAP_OK;
}

static bool word(reader *r, const char *w) {
    size_t n = strlen(w);
    if (r->n - r->at < n || memcmp(r->text + r->at, w, n) != 0) return false;
    r->at += n;
    return true;
}

static neap_status read_scalar(reader *r, uint32_t node) {
    char c = r->text[r->at];
    uint32_t at = (uint32_t)r->at, bytes = 0;
    neap_jnode v = r->t->nodes[node];
    if (c == '"') {
        r->at++;
        v.kind = NEAP_J_STRING;
        NEAP_TRY(read_string(r, &v.at, &v.bytes));
        r->t->nodes[node] = v;
        return NEAP_OK;
    }
    if (word(r, "null"))
        v.kind = NEAP_J_NULL;
    else if (word(r, "true"))
        v.kind = NEAP_J_TRUE;
    else if (word(r, "false"))
        v.kind = NEAP_J_FALSE;
    else {
        v.kind = NEAP_J_NUMBER;
        v.at = at;
        if (r->rules == NEAP_J_PYTHON && (word(r, "NaN") || word(r, "Infinity") || word(r, "-Infinity")))
            bytes = (uint32_t)(r->at - at);
        else if (c == '-' || (c >= '0' && c <= '9'))
            NEAP_TRY(read_number(r, &bytes));
        else
            return bad(r, "no value");
        v.bytes = bytes;
    }
    r->t->nodes[node] = v;
    return NEAP_OK;
}

/* ------------------------------------------------------------- members ----------------------- */

static int by_key(const void *pa, const void *pb, void *context) {
    const neap_jtree *t = context;
    const neap_jnode *a = &t->nodes[*(const uint32_t *)pa], *b = &t->nodes[*(const uint32_t *)pb];
    uint32_t n = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    int order = memcmp(t->pool + a->key, t->pool + b->key, n);
    if (order != 0) return order;
    if (a->key_bytes != b->key_bytes) return a->key_bytes < b->key_bytes ? -1 : 1;
    return a < b ? -1 : a > b; /* equal keys keep their order */
}

static bool same_key(const neap_jtree *t, uint32_t a, uint32_t b) {
    const neap_jnode *x = &t->nodes[a], *y = &t->nodes[b];
    return x->key_bytes == y->key_bytes && memcmp(t->pool + x->key, t->pool + y->key, x->key_bytes) == 0;
}

/* Puts the members into t->work in the order of their keys. */
static neap_status sort_members(neap_jtree *t, uint32_t object) {
    uint32_t n = t->nodes[object].n, i = 0;
    if (n > t->work_max) {
        NEAP_TRY(neap_mem_grow((void **)&t->work, t->work_max * sizeof *t->work, (size_t)n * sizeof *t->work));
        t->work_max = n;
    }
    for (uint32_t m = t->nodes[object].first; m != NEAP_J_NONE; m = t->nodes[m].next) t->work[i++] = m;
    qsort_r(t->work, n, sizeof *t->work, by_key, t);
    return NEAP_OK;
}

/* Of equal keys: an error, or the first place with the last value. */
static neap_status settle_duplicates(reader *r, uint32_t object) {
    neap_jtree *t = r->t;
    uint32_t n = t->nodes[object].n, dropped = 0;
    if (n < 2) return NEAP_OK;
    NEAP_TRY(sort_members(t, object));
    for (uint32_t i = 0; i + 1 < n;) {
        uint32_t j = i + 1;
        while (j < n && same_key(t, t->work[i], t->work[j])) j++;
        if (j > i + 1) {
            if (r->rules == NEAP_J_STRICT)
                return neap_fail(NEAP_INVALID_ARGUMENT, "not JSON as required: the key \"%.100s\" is given twice",
                                 t->pool + t->nodes[t->work[i]].key);
            neap_jnode *keep = &t->nodes[t->work[i]], *value = &t->nodes[t->work[j - 1]];
            keep->kind = value->kind;
            keep->first = value->first;
            keep->n = value->n;
            keep->at = value->at;
            keep->bytes = value->bytes;
            for (uint32_t k = i + 1; k < j; k++) t->nodes[t->work[k]].key_bytes = UINT32_MAX; /* marks a dropped one */
            dropped += j - i - 1;
        }
        i = j;
    }
    if (dropped == 0) return NEAP_OK;
    for (uint32_t m = t->nodes[object].first; m != NEAP_J_NONE; m = t->nodes[m].next)
        while (t->nodes[m].next != NEAP_J_NONE && t->nodes[t->nodes[m].next].key_bytes == UINT32_MAX)
            t->nodes[m].next = t->nodes[t->nodes[m].next].next;
    t->nodes[object].n = n - dropped;
    return NEAP_OK;
}

/* ------------------------------------------------------------- values ------------------------ */

static void attach(reader *r, uint32_t node) {
    if (r->depth == 0) return;
    neap_jnode *parent = &r->t->nodes[r->open[r->depth - 1]];
    if (parent->n == 0)
        parent->first = node;
    else
        r->t->nodes[r->last[r->depth - 1]].next = node;
    parent->n++;
    r->last[r->depth - 1] = node;
}

/* A value starts here: scalars are read whole, containers are opened. */
static neap_status begin_value(reader *r, uint32_t key, uint32_t key_bytes) {
    uint32_t node = 0;
    if (r->at == r->n) return bad(r, "no value");
    char c = r->text[r->at];
    neap_jkind kind = c == '{' ? NEAP_J_OBJECT : c == '[' ? NEAP_J_ARRAY : NEAP_J_NULL;
    NEAP_TRY(new_node(r, kind, &node));
    r->t->nodes[node].key = key;
    r->t->nodes[node].key_bytes = key_bytes;
    attach(r, node);
    if (kind == NEAP_J_NULL) return read_scalar(r, node);
    NEAP_CHECK(r->depth < NEAP_J_DEPTH, NEAP_LIMIT, "JSON deeper than %d levels at byte %zu", NEAP_J_DEPTH, r->at);
    r->open[r->depth++] = node;
    r->at++;
    return NEAP_OK;
}

static neap_status read_member(reader *r) {
    uint32_t key = 0, key_bytes = 0;
    if (r->at == r->n || r->text[r->at] != '"') return bad(r, "no key");
    r->at++;
    NEAP_TRY(read_string(r, &key, &key_bytes));
    skip_space(r);
    if (r->at == r->n || r->text[r->at] != ':') return bad(r, "no colon after a key");
    r->at++;
    skip_space(r);
    return begin_value(r, key, key_bytes);
}

static neap_status read_all(reader *r) {
    uint32_t none = 0;
    NEAP_TRY(new_node(r, NEAP_J_NULL, &none)); /* node 0 stands for "no node" */
    skip_space(r);
    NEAP_TRY(begin_value(r, 0, 0));
    while (r->depth > 0) {
        uint32_t node = r->open[r->depth - 1];
        bool object = r->t->nodes[node].kind == NEAP_J_OBJECT;
        skip_space(r);
        if (r->at == r->n) return bad(r, "the text ends inside a value");
        char c = r->text[r->at];
        if (c == (object ? '}' : ']')) {
            r->at++;
            r->depth--;
            if (object) NEAP_TRY(settle_duplicates(r, node));
            continue;
        }
        if (r->t->nodes[node].n > 0) {
            if (c != ',') return bad(r, "no comma between values");
            r->at++;
            skip_space(r);
        }
        if (object)
            NEAP_TRY(read_member(r));
        else
            NEAP_TRY(begin_value(r, 0, 0));
    }
    skip_space(r);
    return r->at == r->n ? NEAP_OK : bad(r, "text after the value");
}

neap_status neap_jtree_parse(neap_jtree *t, const char *text, size_t n, neap_jrules rules) {
    NEAP_CHECK(n < UINT32_MAX / 2, NEAP_LIMIT, "JSON of %zu bytes is too long", n);
    size_t valid = neap_utf8_valid(text, n);
    NEAP_CHECK(valid == n, NEAP_INVALID_ARGUMENT, "not JSON: not UTF-8 at byte %zu", valid);
    t->text = text;
    NEAP_TRY(neap_mem_alloc(n + 1, (void **)&t->pool));
    reader r = {.t = t, .text = text, .n = n, .rules = rules};
    neap_status status = read_all(&r);
    if (status != NEAP_OK) neap_jtree_free(t);
    return status;
}

void neap_jtree_free(neap_jtree *t) {
    neap_mem_free(t->nodes);
    neap_mem_free(t->pool);
    neap_mem_free(t->work);
    *t = (neap_jtree){0};
}

uint32_t neap_jtree_member(const neap_jtree *t, uint32_t node, const char *key) {
    if (node == NEAP_J_NONE || t->nodes[node].kind != NEAP_J_OBJECT) return NEAP_J_NONE;
    size_t n = strlen(key);
    for (uint32_t m = t->nodes[node].first; m != NEAP_J_NONE; m = t->nodes[m].next)
        if (t->nodes[m].key_bytes == n && memcmp(t->pool + t->nodes[m].key, key, n) == 0) return m;
    return NEAP_J_NONE;
}

uint32_t neap_jtree_get(const neap_jtree *t, uint32_t node, const char *key) {
    uint32_t m = neap_jtree_member(t, node, key);
    return m != NEAP_J_NONE && t->nodes[m].kind == NEAP_J_NULL ? NEAP_J_NONE : m;
}

const char *neap_jtree_string(const neap_jtree *t, uint32_t node, size_t *n) {
    *n = t->nodes[node].bytes;
    return t->pool + t->nodes[node].at;
}

/* ------------------------------------------------------------- sorting, for the writer ------- */

neap_status neap_jtree_sort(neap_jtree *t, uint32_t object) {
    uint32_t n = t->nodes[object].n;
    if (n < 2) return NEAP_OK;
    NEAP_TRY(sort_members(t, object));
    t->nodes[object].first = t->work[0];
    for (uint32_t i = 0; i < n; i++) t->nodes[t->work[i]].next = i + 1 < n ? t->work[i + 1] : NEAP_J_NONE;
    return NEAP_OK;
}
