/* JSON Schema: which parts hold together, and what is covered.
 *
 * A value's rule is made for a set of schema nodes that must hold at once. References, allOf, anyOf and oneOf are
 * opened first: what is left are ways, each a list of plain nodes whose keywords are merged (grammar_value.c,
 * grammar_object.c). Rules are known by their nodes, so recursive schemas come back to the same rule; new ones wait in
 * a list, nothing recurses.
 *
 * A keyword that restricts values and is not covered is an error with its path; it is never passed over. Keywords that
 * JSON Schema does not know are annotations and mean nothing. Called by grammar_chat.c. Owns rules' keys, borrows the
 * tree. Source: JSON Schema 2020-12, with the older spellings of tuples and definitions. */
#include "format/grammar_schema.h"

#include <stdio.h>
#include <stdlib.h>

/* ------------------------------------------------------------- places ------------------------ */

/* The path of the node that is looked at: the last child that is not behind it, level by level. */
static const char *where(void *user, char text[256]) {
    neap_gschema *s = user;
    const neap_jnode *nodes = s->tree->nodes;
    size_t n = 0;
    text[0] = 0;
    for (uint32_t at = NEAP_J_ROOT; at != s->at;) {
        uint32_t child = nodes[at].first, next = child, index = 0, i = 0;
        for (uint32_t k = child; k != NEAP_J_NONE; k = nodes[k].next, i++)
            if (k <= s->at) next = k, index = i;
        if (next == NEAP_J_NONE || next > s->at) break;
        if (nodes[at].kind == NEAP_J_ARRAY)
            n += (size_t)snprintf(text + n, 256 - n, "[%u]", index);
        else
            n += (size_t)snprintf(text + n, 256 - n, "%s%.40s", n ? "." : "", s->tree->pool + nodes[next].key);
        if (n >= 255) n = 255;
        at = next;
    }
    if (s->key) snprintf(text + n, 256 - n, "%s%.40s", n ? "." : "", s->key);
    if (text[0] == 0) snprintf(text, 256, "the schema");
    return text;
}

neap_status neap_gschema_fail(neap_gschema *s, neap_status status, const char *what) {
    char text[256];
    return neap_fail(status, "%s: %s", where(s, text), what);
}

uint32_t neap_gschema_get(neap_gschema *s, uint32_t node, const char *key) {
    s->at = node;
    s->key = key;
    return s->tree->nodes[node].kind == NEAP_J_OBJECT ? neap_jtree_member(s->tree, node, key) : NEAP_J_NONE;
}

static neap_jkind kind_of(const neap_gschema *s, uint32_t node) { return s->tree->nodes[node].kind; }

neap_status neap_gschema_count(neap_gschema *s, uint32_t node, const char *key, bool *found, uint32_t *out) {
    uint32_t value = neap_gschema_get(s, node, key);
    neap_decimal d;
    *found = value != NEAP_J_NONE;
    if (!*found) return NEAP_OK;
    const neap_jnode *v = &s->tree->nodes[value];
    if (v->kind != NEAP_J_NUMBER) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a number");
    *out = UINT32_MAX;
    if (!neap_decimal_read(&d, s->tree->text + v->at, v->bytes)) return NEAP_OK;
    if (d.negative || d.n_part > 0)
        return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a whole number that is not negative");
    if (d.n_whole > 9) return NEAP_OK;
    *out = 0;
    for (int32_t i = 0; i < d.n_whole; i++) *out = *out * 10 + (uint32_t)(d.digits[i] - '0');
    return NEAP_OK;
}

/* ------------------------------------------------------------- what is covered --------------- */

typedef enum shape { ANY, SCHEMA, SCHEMAS, SCHEMA_MAP, STRING, NUMBER, STRINGS, REFUSED, NOTED } shape;

static const struct {
    const char *name;
    shape shape;
} keywords[] = {
    {"type", ANY},
    {"properties", SCHEMA_MAP},
    {"required", STRINGS},
    {"additionalProperties", SCHEMA},
    {"items", ANY},
    {"additionalItems", SCHEMA},
    {"prefixItems", SCHEMAS},
    {"minItems", NUMBER},
    {"maxItems", NUMBER},
    {"minProperties", NUMBER},
    {"maxProperties", NUMBER},
    {"enum", ANY},
    {"const", ANY},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"allOf", SCHEMAS},
    {"$ref", STRING},
    {"minLength", NUMBER},
    {"maxLength", NUMBER},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", ANY},
    {"exclusiveMaximum", ANY},
    {"uniqueItems", ANY},
    {"patternProperties", REFUSED},
    {"propertyNames", REFUSED},
    {"multipleOf", REFUSED},
    {"not", REFUSED},
    {"if", REFUSED},
    {"then", REFUSED},
    {"else", REFUSED},
    {"contains", REFUSED},
    {"minContains", REFUSED},
    {"maxContains", REFUSED},
    {"dependencies", REFUSED},
    {"dependentRequired", REFUSED},
    {"dependentSchemas", REFUSED},
    {"unevaluatedItems", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"$dynamicRef", REFUSED},
    {"$recursiveRef", REFUSED},
    {"nullable", REFUSED},
    {"disallow", REFUSED},
    {"extends", REFUSED},
    {"divisibleBy", REFUSED},
};

static bool is_schema(const neap_gschema *s, uint32_t node) {
    neap_jkind k = kind_of(s, node);
    return k == NEAP_J_OBJECT || k == NEAP_J_TRUE || k == NEAP_J_FALSE;
}

static neap_status children(neap_gschema *s, uint32_t node, neap_jkind kind, bool schemas, const char *what) {
    if (kind_of(s, node) != kind) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, what);
    for (uint32_t c = s->tree->nodes[node].first; c != NEAP_J_NONE; c = s->tree->nodes[c].next) {
        NEAP_TRY(neap_gbuild_tick(s->b));
        if (schemas ? !is_schema(s, c) : kind_of(s, c) != NEAP_J_STRING)
            return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, what);
    }
    return NEAP_OK;
}

static neap_status check_keyword(neap_gschema *s, uint32_t value, shape want) {
    neap_jkind kind = kind_of(s, value);
    switch (want) {
    case SCHEMA: return is_schema(s, value) ? NEAP_OK : neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a schema");
    case SCHEMAS: return children(s, value, NEAP_J_ARRAY, true, "must be an array of schemas");
    case SCHEMA_MAP: return children(s, value, NEAP_J_OBJECT, true, "must be an object of schemas");
    case STRINGS: return children(s, value, NEAP_J_ARRAY, false, "must be an array of strings");
    case STRING:
        return kind == NEAP_J_STRING ? NEAP_OK : neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a string");
    case NUMBER:
        return kind == NEAP_J_NUMBER ? NEAP_OK : neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a number");
    case REFUSED: return neap_gschema_fail(s, NEAP_UNSUPPORTED, "this keyword is not covered by grammars");
    case ANY:
    case NOTED: break;
    }
    return NEAP_OK;
}

/* Once per node: its keywords are known and have the right kinds. Seen is 1 then, or 2: it restricts nothing. */
static neap_status check_node(neap_gschema *s, uint32_t node) {
    if (s->seen[node]) return NEAP_OK;
    s->seen[node] = 2;
    for (uint32_t m = s->tree->nodes[node].first; m != NEAP_J_NONE; m = s->tree->nodes[m].next) {
        const char *key = s->tree->pool + s->tree->nodes[m].key;
        NEAP_TRY(neap_gbuild_tick(s->b));
        for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
            if (strcmp(key, keywords[i].name) != 0) continue;
            s->at = node;
            s->key = keywords[i].name;
            s->seen[node] = 1;
            NEAP_TRY(check_keyword(s, m, keywords[i].shape));
            if (strcmp(key, "uniqueItems") == 0 && kind_of(s, m) != NEAP_J_FALSE)
                return neap_gschema_fail(s, NEAP_UNSUPPORTED, "this keyword is not covered by grammars");
        }
    }
    return NEAP_OK;
}

/* ------------------------------------------------------------- references -------------------- */

static uint32_t child_at(const neap_gschema *s, uint32_t node, const char *name, size_t n) {
    const neap_jnode *nodes = s->tree->nodes;
    if (nodes[node].kind == NEAP_J_ARRAY) {
        uint64_t index = 0;
        if (n == 0 || n > 9) return NEAP_J_NONE;
        for (size_t i = 0; i < n; i++) {
            if (name[i] < '0' || name[i] > '9') return NEAP_J_NONE;
            index = index * 10 + (uint64_t)(name[i] - '0');
        }
        uint32_t c = nodes[node].first;
        while (c != NEAP_J_NONE && index-- > 0) c = nodes[c].next;
        return c;
    }
    for (uint32_t c = nodes[node].first; c != NEAP_J_NONE; c = nodes[c].next)
        if (nodes[c].key_bytes == n && memcmp(s->tree->pool + nodes[c].key, name, n) == 0) return c;
    return NEAP_J_NONE;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One step of a JSON pointer in a URI fragment: %XX, then ~1 and ~0. */
static neap_status pointer_step(neap_gschema *s, const char *p, size_t n) {
    s->scratch.n = 0;
    NEAP_TRY(neap_text_reserve(&s->scratch, n + 1));
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (c == '%' && i + 2 < n && hex_value(p[i + 1]) >= 0 && hex_value(p[i + 2]) >= 0) {
            c = (char)(hex_value(p[i + 1]) * 16 + hex_value(p[i + 2]));
            i += 2;
        }
        if (c == '~' && i + 1 < n && (p[i + 1] == '0' || p[i + 1] == '1')) c = p[++i] == '0' ? '~' : '/';
        s->scratch.p[s->scratch.n++] = c;
    }
    return NEAP_OK;
}

static neap_status resolve(neap_gschema *s, uint32_t node, uint32_t ref, uint32_t *out) {
    *out = s->targets[ref];
    if (*out != NEAP_J_NONE) return NEAP_OK;
    size_t n;
    const char *p = neap_jtree_string(s->tree, ref, &n);
    uint32_t root = NEAP_J_NONE;
    for (uint32_t i = 0; i < s->n_roots; i++) /* schemas lie one after the other in the tree */
        if (s->roots[i] <= node && s->roots[i] > root) root = s->roots[i];
    if (n == 0 || p[0] != '#' || (n > 1 && p[1] != '/'))
        return neap_gschema_fail(s, NEAP_UNSUPPORTED, "only references into the schema itself (#, #/...) are covered");
    uint32_t at = root;
    for (size_t i = 1; i < n && at != NEAP_J_NONE;) {
        size_t from = i + 1, to = from;
        while (to < n && p[to] != '/') to++;
        NEAP_TRY(pointer_step(s, p + from, to - from));
        at = child_at(s, at, s->scratch.p, s->scratch.n);
        i = to;
    }
    if (at == NEAP_J_NONE || !is_schema(s, at))
        return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "leads to no schema");
    *out = s->targets[ref] = at;
    return NEAP_OK;
}

/* ------------------------------------------------------------- ways -------------------------- */

void neap_gways_free(neap_gways *w) {
    neap_mem_free(w->nodes);
    neap_mem_free(w->ways);
    *w = (neap_gways){0};
}

typedef struct item {
    uint32_t node, parent; /* parent: place in the same way, UINT32_MAX: none */
    uint8_t opened;        /* 1: anyOf was chosen from, 2: oneOf */
} item;

typedef struct way {
    uint32_t n, next; /* items, and the first that is not opened */
    item items[NEAP_SCHEMA_NODES_MAX];
} way;

typedef struct opener {
    neap_gschema *s;
    neap_gways *out;
    item *pool; /* ways that wait: their items one after the other */
    uint32_t n_pool, pool_max;
    struct {
        uint32_t n, next;
    } * waiting;
    uint32_t n_waiting, waiting_max;
    way now;
    uint32_t n_ways;
} opener;

static neap_status wait(opener *o, const way *w) {
    if (++o->n_ways > NEAP_SCHEMA_WAYS_MAX)
        return neap_gschema_fail(o->s, NEAP_LIMIT, "more than 2000 combinations of alternatives");
    NEAP_TRY(neap_grow(&o->pool, (uint64_t)o->n_pool + w->n + 1, &o->pool_max, sizeof *o->pool));
    NEAP_TRY(neap_grow(&o->waiting, o->n_waiting + 1, &o->waiting_max, sizeof *o->waiting));
    memcpy(o->pool + o->n_pool, w->items, w->n * sizeof *w->items);
    o->n_pool += w->n;
    o->waiting[o->n_waiting].n = w->n;
    o->waiting[o->n_waiting++].next = w->next;
    return NEAP_OK;
}

/* Adds a node to the way; known ones are known already, but a node inside of itself is a circle. */
static neap_status join(opener *o, way *w, uint32_t node, uint32_t parent) {
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->items[i].node != node) continue;
        for (uint32_t up = parent; up != UINT32_MAX; up = w->items[up].parent)
            if (w->items[up].node == node)
                return neap_gschema_fail(o->s, NEAP_INVALID_ARGUMENT, "a circle of references without content");
        return NEAP_OK;
    }
    if (w->n == NEAP_SCHEMA_NODES_MAX)
        return neap_gschema_fail(o->s, NEAP_LIMIT, "more than 256 schemas hold for one value");
    w->items[w->n++] = (item){.node = node, .parent = parent};
    return NEAP_OK;
}

/* One way for each alternative, the first one on top. */
static neap_status branch(opener *o, uint32_t alternatives, uint32_t parent) {
    const neap_jnode *nodes = o->s->tree->nodes;
    uint32_t n = nodes[alternatives].n, kept = o->now.n;
    uint32_t *list = NULL, k = 0;
    NEAP_TRY(neap_mem_alloc((size_t)(n + 1) * sizeof *list, (void **)&list));
    for (uint32_t c = nodes[alternatives].first; c != NEAP_J_NONE; c = nodes[c].next) list[k++] = c;
    neap_status status = NEAP_OK;
    while (k > 0 && status == NEAP_OK) {
        o->now.n = kept;
        status = join(o, &o->now, list[--k], parent);
        if (status == NEAP_OK) status = wait(o, &o->now);
        if (status == NEAP_OK) status = neap_gbuild_tick(o->s->b);
    }
    neap_mem_free(list);
    return status;
}

/* Opens item i of the way. *gone: the way has split up or is impossible. */
static neap_status open_item(opener *o, uint32_t i, bool *gone) {
    static const char *const choices[] = {"anyOf", "oneOf"};
    neap_gschema *s = o->s;
    way *w = &o->now;
    uint32_t node = w->items[i].node;
    *gone = kind_of(s, node) == NEAP_J_FALSE;
    if (kind_of(s, node) != NEAP_J_OBJECT) return NEAP_OK;
    NEAP_TRY(check_node(s, node));
    uint32_t ref = neap_gschema_get(s, node, "$ref"), target;
    if (ref != NEAP_J_NONE && w->items[i].opened == 0) {
        NEAP_TRY(resolve(s, node, ref, &target));
        NEAP_TRY(join(o, w, target, i));
    }
    uint32_t all = neap_gschema_get(s, node, "allOf");
    if (all != NEAP_J_NONE && w->items[i].opened == 0)
        for (uint32_t c = s->tree->nodes[all].first; c != NEAP_J_NONE; c = s->tree->nodes[c].next)
            NEAP_TRY(join(o, w, c, i));
    for (uint8_t k = 0; k < 2; k++) {
        uint32_t list = neap_gschema_get(s, node, choices[k]);
        if (list == NEAP_J_NONE || w->items[i].opened > k) continue;
        w->items[i].opened = (uint8_t)(k + 1);
        *gone = true;
        return branch(o, list, i);
    }
    w->items[i].opened = 3;
    w->next++;
    return NEAP_OK;
}

static neap_status give(opener *o) {
    neap_gways *out = o->out;
    NEAP_TRY(neap_grow(&out->ways, out->n + 1, &out->max, sizeof *out->ways));
    NEAP_TRY(neap_grow(&out->nodes, (uint64_t)out->n_nodes + o->now.n, &out->nodes_max, sizeof *out->nodes));
    out->ways[out->n] = (neap_gway){out->n_nodes, 0};
    for (uint32_t i = 0; i < o->now.n; i++)
        if (kind_of(o->s, o->now.items[i].node) == NEAP_J_OBJECT) out->nodes[out->n_nodes++] = o->now.items[i].node;
    out->ways[out->n].n = out->n_nodes - out->ways[out->n].from;
    out->n++;
    return NEAP_OK;
}

static neap_status open_all(opener *o) {
    while (o->n_waiting > 0) {
        o->n_waiting--;
        o->now.n = o->waiting[o->n_waiting].n;
        o->now.next = o->waiting[o->n_waiting].next;
        o->n_pool -= o->now.n;
        memcpy(o->now.items, o->pool + o->n_pool, o->now.n * sizeof *o->now.items);
        bool gone = false;
        while (o->now.next < o->now.n && !gone) {
            uint32_t i = o->now.next;
            NEAP_TRY(open_item(o, i, &gone));
            if (!gone && kind_of(o->s, o->now.items[i].node) != NEAP_J_OBJECT) o->now.next++;
        }
        if (!gone) NEAP_TRY(give(o));
    }
    return NEAP_OK;
}

neap_status neap_gschema_ways(neap_gschema *s, const uint32_t *nodes, uint32_t n, neap_gways *out) {
    opener *o = NULL;
    out->n = out->n_nodes = 0;
    NEAP_TRY(neap_grow(&out->nodes, 1, &out->nodes_max, sizeof *out->nodes)); /* a way of none has a place, too */
    NEAP_TRY(neap_mem_alloc(sizeof *o, (void **)&o));
    o->s = s;
    o->out = out;
    neap_status status = NEAP_OK;
    for (uint32_t i = 0; i < n && status == NEAP_OK; i++) status = join(o, &o->now, nodes[i], UINT32_MAX);
    if (status == NEAP_OK) status = wait(o, &o->now);
    if (status == NEAP_OK) status = open_all(o);
    neap_mem_free(o->pool);
    neap_mem_free(o->waiting);
    neap_mem_free(o);
    return status;
}

/* ------------------------------------------------------------- types ------------------------- */

static uint32_t type_bit(neap_gschema *s, uint32_t node) {
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {{"null", NEAP_T_NULL},     {"boolean", NEAP_T_BOOLEAN}, {"integer", NEAP_T_INTEGER},
                 {"number", NEAP_T_NUMBER}, {"string", NEAP_T_STRING},   {"array", NEAP_T_ARRAY},
                 {"object", NEAP_T_OBJECT}};
    size_t n;
    if (kind_of(s, node) != NEAP_J_STRING) return 0;
    const char *p = neap_jtree_string(s->tree, node, &n);
    for (size_t i = 0; i < 7; i++)
        if (strlen(types[i].name) == n && memcmp(types[i].name, p, n) == 0) return types[i].bit;
    return 0;
}

static neap_status node_types(neap_gschema *s, uint32_t node, uint32_t *types, bool *told) {
    uint32_t type = neap_gschema_get(s, node, "type"), bits = 0;
    if (type == NEAP_J_NONE) return NEAP_OK;
    *told = true;
    if (kind_of(s, type) == NEAP_J_ARRAY) {
        for (uint32_t c = s->tree->nodes[type].first; c != NEAP_J_NONE; c = s->tree->nodes[c].next) {
            uint32_t bit = type_bit(s, c);
            if (bit == 0) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "names an unknown type");
            bits |= bit;
        }
    } else {
        bits = type_bit(s, type);
        if (bits == 0) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a type's name or an array of them");
    }
    *types &= bits;
    return NEAP_OK;
}

neap_status neap_gschema_types(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t *types) {
    static const char *const of_object[] = {"properties", "required", "additionalProperties"};
    static const char *const of_array[] = {"items", "prefixItems", "minItems", "maxItems"};
    bool told = false, object = false, array = false;
    *types = NEAP_T_ALL;
    for (uint32_t i = 0; i < n; i++) {
        NEAP_TRY(node_types(s, nodes[i], types, &told));
        told = told || neap_gschema_get(s, nodes[i], "enum") || neap_gschema_get(s, nodes[i], "const");
        for (size_t k = 0; k < 3; k++) object = object || neap_gschema_get(s, nodes[i], of_object[k]) != NEAP_J_NONE;
        for (size_t k = 0; k < 4; k++) array = array || neap_gschema_get(s, nodes[i], of_array[k]) != NEAP_J_NONE;
    }
    /* Without a type other values would do too; who describes members means an object. */
    if (!told && object)
        *types = NEAP_T_OBJECT;
    else if (!told && array)
        *types = NEAP_T_ARRAY;
    return NEAP_OK;
}

/* ------------------------------------------------------------- rules ------------------------- */

static int by_number(const void *pa, const void *pb) {
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return (a > b) - (a < b);
}

neap_status neap_gschema_rule(neap_gschema *s, neap_gform form, uint32_t types, const uint32_t *nodes, uint32_t n,
                              uint32_t *start) {
    uint32_t key[NEAP_SCHEMA_NODES_MAX + 2], n_key = 2, number, made;
    bool fresh;
    if (n > NEAP_SCHEMA_NODES_MAX) return neap_gschema_fail(s, NEAP_LIMIT, "more than 256 schemas hold for one value");
    for (uint32_t i = 0; i < n; i++) { /* what restricts nothing makes no rule of its own */
        if (kind_of(s, nodes[i]) == NEAP_J_OBJECT) NEAP_TRY(check_node(s, nodes[i]));
        if (kind_of(s, nodes[i]) != NEAP_J_TRUE && s->seen[nodes[i]] != 2) key[n_key++] = nodes[i];
    }
    qsort(key + 2, n_key - 2, sizeof *key, by_number);
    uint32_t w = 2;
    for (uint32_t i = 2; i < n_key; i++)
        if (i == 2 || key[i] != key[i - 1]) key[w++] = key[i];
    key[0] = (uint32_t)form;
    key[1] = types;
    NEAP_TRY(neap_intern_key(&s->keys, key, w, &number, &fresh));
    if (fresh) {
        NEAP_TRY(neap_grow(&s->starts, number + 1, &s->starts_max, sizeof *s->starts));
        NEAP_TRY(neap_gbuild_state(s->b, &made));
        s->starts[number] = made;
    }
    *start = s->starts[number];
    return NEAP_OK;
}

neap_status neap_gschema_compile(neap_gschema *s) {
    neap_gways ways = {0};
    neap_status status = NEAP_OK;
    for (uint32_t r = 0; r < s->keys.n && status == NEAP_OK; r++) {
        uint32_t key[NEAP_SCHEMA_NODES_MAX + 2], n = s->keys.length[r];
        memcpy(key, s->keys.pool + s->keys.at[r], n * sizeof *key);
        status = neap_gschema_ways(s, key + 2, n - 2, &ways);
        for (uint32_t i = 0; i < ways.n && status == NEAP_OK; i++)
            status = neap_gvalue_way(s, (neap_gform)key[0], key[1], ways.nodes + ways.ways[i].from, ways.ways[i].n,
                                     s->starts[r]);
    }
    neap_gways_free(&ways);
    return status;
}

neap_status neap_gvalue_types(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t *types) {
    neap_gways ways = {0};
    neap_status status = neap_gschema_ways(s, nodes, n, &ways);
    *types = 0;
    for (uint32_t i = 0; i < ways.n && status == NEAP_OK; i++) {
        uint32_t one;
        status = neap_gschema_types(s, ways.nodes + ways.ways[i].from, ways.ways[i].n, &one);
        *types |= one;
    }
    neap_gways_free(&ways);
    return status;
}

/* ------------------------------------------------------------- public to grammar_chat.c ------ */

neap_status neap_gschema_create(neap_gschema **out, neap_gbuild *b, neap_jtree *tree) {
    neap_gschema *s = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof *s, (void **)&s));
    *out = s;
    s->b = b;
    s->tree = tree;
    s->at = NEAP_J_ROOT;
    b->where = where;
    b->where_user = s;
    NEAP_TRY(neap_mem_alloc(tree->n_nodes, (void **)&s->seen));
    return neap_mem_alloc(tree->n_nodes * sizeof *s->targets, (void **)&s->targets);
}

void neap_gschema_destroy(neap_gschema *s) {
    if (s == NULL) return;
    s->b->where = NULL;
    neap_mem_free(s->roots);
    neap_mem_free(s->seen);
    neap_mem_free(s->targets);
    neap_intern_free(&s->keys);
    neap_mem_free(s->starts);
    neap_mem_free(s->strings);
    neap_text_free(&s->scratch);
    neap_mem_free(s);
}

neap_status neap_gschema_root(neap_gschema *s, uint32_t node) {
    if (node == NEAP_J_NONE) return NEAP_OK;
    s->at = node;
    s->key = NULL;
    if (!is_schema(s, node)) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a schema");
    NEAP_TRY(neap_grow(&s->roots, s->n_roots + 1, &s->roots_max, sizeof *s->roots));
    s->roots[s->n_roots++] = node;
    return NEAP_OK;
}

neap_status neap_gschema_value(neap_gschema *s, uint32_t node, bool object_only, uint32_t *start) {
    return neap_gschema_rule(s, NEAP_G_JSON, object_only ? NEAP_T_OBJECT : NEAP_T_ALL, &node, node != NEAP_J_NONE,
                             start);
}

neap_status neap_gschema_arguments(neap_gschema *s, uint32_t node, neap_gtags tags, uint32_t *start) {
    s->tags = tags;
    return neap_gschema_rule(s, NEAP_G_ARGUMENTS, NEAP_T_OBJECT, &node, node != NEAP_J_NONE, start);
}
