/* Values of one way through a schema: literals, strings, numbers, arrays.
 *
 * The keywords of all nodes of the way hold together: the narrowest bounds, the cut of all patterns and formats, the
 * literals that all lists share. JSON is written compactly; behind a comma and a colon one space may stand. Characters
 * that JSON must escape have one spelling in strings with a pattern, any in others.
 *
 * Called by grammar_schema.c for each way of a rule; grammar_object.c does objects. */
#include <stdlib.h>

#include "format/grammar_schema.h"

static neap_jkind kind_of(const neap_gschema *s, uint32_t node) { return s->tree->nodes[node].kind; }

neap_status neap_gvalue_space(neap_gschema *s, uint32_t *at) {
    uint32_t to;
    NEAP_TRY(neap_gbuild_state(s->b, &to));
    NEAP_TRY(neap_gbuild_edge(s->b, *at, (neap_gedge){NEAP_GE_BYTE, ' ', ' ', 0, to, 0}));
    NEAP_TRY(neap_gbuild_empty(s->b, *at, to));
    *at = to;
    return NEAP_OK;
}

/* ------------------------------------------------------------- strings ----------------------- */

/* What is asked of a string besides its length. */
typedef struct string_rules {
    uint32_t min, max;
    bool has_dfa;
    neap_dfa dfa;
} string_rules;

#define DATE                                                   \
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|" \
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define HOST "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,4}"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

/* Every text of these patterns has the format; not every text of the format has the pattern. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([0-9]{1,4}D(T[0-9]{1,4}H([0-9]{1,4}M)?)?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[WMY])$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,2}@[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
              "(\\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,3}\\.[a-z]{2,16}$"},
    {"ipv4", "^(" OCTET "\\.){3}" OCTET "$"},
    {"ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
    {"hostname", "^" HOST "$"},
    {"uri", "^https?://" HOST "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,64}){0,8}(\\?[A-Za-z0-9._~=&-]{0,128})?$"},
};
/* Formats of the standard that have no pattern here. */
static const char *const refused_formats[] = {"idn-email",    "idn-hostname",          "uri-reference",
                                              "iri",          "iri-reference",         "uri-template",
                                              "json-pointer", "relative-json-pointer", "regex"};

static neap_status cut(neap_gschema *s, string_rules *r, const char *pattern, size_t n) {
    neap_dfa one = {0}, both = {0};
    char text[256];
    neap_status status = neap_regex_dfa(s->b, pattern, n, &one);
    if (status != NEAP_OK) /* budgets name the place themselves */
        return strncmp(neap_last_error(), "pattern", 7) == 0
                   ? neap_fail_prefix(status, "%s", neap_gbuild_where(s->b, text))
                   : status;
    if (!r->has_dfa) {
        r->has_dfa = true;
        r->dfa = one;
        return NEAP_OK;
    }
    status = neap_dfa_both(s->b, &r->dfa, &one, &both);
    neap_dfa_free(&one);
    if (status != NEAP_OK) return status;
    neap_dfa_free(&r->dfa);
    r->dfa = both;
    return NEAP_OK;
}

static neap_status cut_format(neap_gschema *s, string_rules *r, uint32_t format) {
    size_t n;
    const char *p = neap_jtree_string(s->tree, format, &n);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strlen(formats[i].name) == n && memcmp(formats[i].name, p, n) == 0)
            return cut(s, r, formats[i].pattern, strlen(formats[i].pattern));
    for (size_t i = 0; i < sizeof refused_formats / sizeof refused_formats[0]; i++)
        if (strcmp(refused_formats[i], p) == 0)
            return neap_gschema_fail(s, NEAP_UNSUPPORTED, "this format is not covered by grammars");
    return NEAP_OK; /* not of the standard: an annotation */
}

static neap_status read_string_rules(neap_gschema *s, const uint32_t *nodes, uint32_t n, string_rules *r) {
    *r = (string_rules){.max = UINT32_MAX};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = 0;
        bool found;
        NEAP_TRY(neap_gschema_count(s, nodes[i], "minLength", &found, &v));
        if (found && v > r->min) r->min = v;
        NEAP_TRY(neap_gschema_count(s, nodes[i], "maxLength", &found, &v));
        if (found && v < r->max) r->max = v;
        uint32_t pattern = neap_gschema_get(s, nodes[i], "pattern");
        if (pattern != NEAP_J_NONE) {
            size_t bytes;
            const char *p = neap_jtree_string(s->tree, pattern, &bytes);
            NEAP_TRY(cut(s, r, p, bytes));
        }
        uint32_t format = neap_gschema_get(s, nodes[i], "format");
        if (format != NEAP_J_NONE) NEAP_TRY(cut_format(s, r, format));
    }
    return NEAP_OK;
}

static neap_status plain_string(neap_gschema *s, bool raw, const string_rules *r, uint32_t *start) {
    for (uint32_t i = 0; i < s->n_strings; i++)
        if (s->strings[i].raw == raw && s->strings[i].min == r->min && s->strings[i].max == r->max) {
            *start = s->strings[i].start;
            return NEAP_OK;
        }
    NEAP_TRY(neap_grow(&s->strings, s->n_strings + 1, &s->strings_max, sizeof *s->strings));
    if (raw && r->min == 0 && r->max == UINT32_MAX) {
        NEAP_TRY(neap_gbuild_state(s->b, start));
        s->b->states[*start].flags = NEAP_GS_FREE | NEAP_GS_END;
    } else {
        NEAP_TRY(neap_gbuild_string(s->b, raw, r->min, r->max, start));
    }
    s->strings[s->n_strings++] = (neap_gstring){raw, r->min, r->max, *start};
    return NEAP_OK;
}

static neap_status table_string(neap_gschema *s, bool raw, string_rules *r, uint32_t *start) {
    neap_dfa length = {0}, both = {0};
    neap_status status = NEAP_OK;
    if (r->min > 0 || r->max != UINT32_MAX) {
        status = neap_dfa_length(s->b, r->min, r->max, &length);
        if (status == NEAP_OK) status = neap_dfa_both(s->b, &r->dfa, &length, &both);
        neap_dfa_free(&length);
        if (status != NEAP_OK) return status;
        neap_dfa_free(&r->dfa);
        r->dfa = both;
    }
    if (raw) return neap_gbuild_dfa(s->b, &r->dfa, start);
    neap_dfa escaped = {0};
    status = neap_dfa_escape(s->b, &r->dfa, &escaped);
    if (status == NEAP_OK) status = neap_gbuild_dfa(s->b, &escaped, start);
    neap_dfa_free(&escaped);
    return status;
}

static neap_status put_string(neap_gschema *s, bool raw, const uint32_t *nodes, uint32_t n, uint32_t at) {
    string_rules r;
    uint32_t start = NEAP_GSTATE_DEAD;
    neap_status status = read_string_rules(s, nodes, n, &r);
    s->key = r.has_dfa ? "pattern" : NULL;
    if (status == NEAP_OK && r.min <= r.max)
        status = r.has_dfa ? table_string(s, raw, &r, &start) : plain_string(s, raw, &r, &start);
    neap_dfa_free(&r.dfa);
    NEAP_TRY(status);
    if (start == NEAP_GSTATE_DEAD) return NEAP_OK;
    if (!raw) NEAP_TRY(neap_gbuild_text(s->b, &at, "\"", 1));
    return neap_gbuild_empty(s->b, at, start);
}

/* ------------------------------------------------------------- numbers ----------------------- */

static neap_status read_bound(neap_gschema *s, uint32_t node, const char *key, neap_decimal *d, bool *found,
                              bool *flag) {
    uint32_t v = neap_gschema_get(s, node, key);
    *found = false;
    if (flag) *flag = v != NEAP_J_NONE && kind_of(s, v) == NEAP_J_TRUE;
    if (v == NEAP_J_NONE || (flag && (kind_of(s, v) == NEAP_J_TRUE || kind_of(s, v) == NEAP_J_FALSE))) return NEAP_OK;
    if (kind_of(s, v) != NEAP_J_NUMBER) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a number");
    if (!neap_decimal_read(d, s->tree->text + s->tree->nodes[v].at, s->tree->nodes[v].bytes))
        return neap_gschema_fail(s, NEAP_UNSUPPORTED, "a bound of more than 40 digits is not covered");
    *found = true;
    return NEAP_OK;
}

static void narrow(bool low, const neap_decimal *d, bool open, bool *has, bool *is_open, neap_decimal *bound) {
    int c = *has ? neap_decimal_compare(d, bound) : 1;
    if (*has && !low) c = -c;
    if (*has && c < 0) return;
    *is_open = *has && c == 0 ? (*is_open || open) : open;
    *has = true;
    *bound = *d;
}

static neap_status read_range(neap_gschema *s, const uint32_t *nodes, uint32_t n, neap_number_range *r) {
    static const char *const keys[2][2] = {{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}};
    for (uint32_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            neap_decimal d;
            bool found, open, is_open;
            bool *has = side ? &r->has_hi : &r->has_lo, *bound_open = side ? &r->hi_open : &r->lo_open;
            neap_decimal *bound = side ? &r->hi : &r->lo;
            NEAP_TRY(read_bound(s, nodes[i], keys[side][1], &d, &found, &is_open)); /* true: in the oldest drafts */
            open = is_open;
            if (found) narrow(side == 0, &d, true, has, bound_open, bound);
            NEAP_TRY(read_bound(s, nodes[i], keys[side][0], &d, &found, NULL));
            if (found) narrow(side == 0, &d, open, has, bound_open, bound);
        }
    return NEAP_OK;
}

static neap_status put_number(neap_gschema *s, bool is_integer, const uint32_t *nodes, uint32_t n, uint32_t at) {
    neap_number_range r = {.is_integer = is_integer};
    neap_dfa dfa = {0};
    uint32_t start = NEAP_GSTATE_DEAD;
    NEAP_TRY(read_range(s, nodes, n, &r));
    s->key = NULL;
    uint32_t *known = r.has_lo || r.has_hi ? &start : &s->numbers[is_integer];
    if (*known != NEAP_GSTATE_DEAD) return neap_gbuild_empty(s->b, at, *known);
    neap_status status = neap_number_dfa(s->b, &r, &dfa);
    if (status == NEAP_OK) status = neap_gbuild_dfa(s->b, &dfa, &start);
    neap_dfa_free(&dfa);
    NEAP_TRY(status);
    *known = start;
    return start == NEAP_GSTATE_DEAD ? NEAP_OK : neap_gbuild_empty(s->b, at, start);
}

/* ------------------------------------------------------------- literals ---------------------- */

typedef struct literal {
    uint32_t node, type;
    size_t at, n; /* in the texts */
} literal;

typedef struct literals {
    literal *list;
    uint32_t n, max;
    neap_text text;
} literals;

static neap_status literal_type(neap_gschema *s, uint32_t node, uint32_t *out) {
    static const uint32_t of_kind[] = {NEAP_T_NULL,   NEAP_T_BOOLEAN, NEAP_T_BOOLEAN, 0,
                                       NEAP_T_STRING, NEAP_T_ARRAY,   NEAP_T_OBJECT};
    *out = of_kind[kind_of(s, node)];
    if (*out != 0) return NEAP_OK;
    neap_decimal d;
    if (!neap_decimal_read(&d, s->tree->text + s->tree->nodes[node].at, s->tree->nodes[node].bytes))
        return neap_gschema_fail(s, NEAP_UNSUPPORTED, "a number of more than 40 digits is not covered");
    *out = d.n_part > 0 ? NEAP_T_FRACTION : NEAP_T_INTEGER;
    return NEAP_OK;
}

static neap_status add_literal(neap_gschema *s, literals *l, uint32_t node) {
    NEAP_TRY(neap_grow(&l->list, l->n + 1, &l->max, sizeof *l->list));
    literal *x = &l->list[l->n];
    *x = (literal){.node = node, .at = l->text.n};
    NEAP_TRY(literal_type(s, node, &x->type));
    NEAP_TRY(neap_jtree_write(s->tree, node, NEAP_J_COMPACT, &l->text));
    x->n = l->text.n - x->at;
    l->n++;
    return neap_gbuild_tick(s->b);
}

/* Literals of a node's enum or const. */
static neap_status node_literals(neap_gschema *s, uint32_t node, literals *l, bool *found) {
    uint32_t list = neap_gschema_get(s, node, "enum"), one = neap_gschema_get(s, node, "const");
    *found = list != NEAP_J_NONE || one != NEAP_J_NONE;
    if (one != NEAP_J_NONE) NEAP_TRY(add_literal(s, l, one));
    if (list == NEAP_J_NONE) return NEAP_OK;
    s->key = "enum";
    if (kind_of(s, list) != NEAP_J_ARRAY) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be an array");
    if (one != NEAP_J_NONE)
        return neap_gschema_fail(s, NEAP_UNSUPPORTED, "enum beside const in one schema is not covered");
    for (uint32_t c = s->tree->nodes[list].first; c != NEAP_J_NONE; c = s->tree->nodes[c].next)
        NEAP_TRY(add_literal(s, l, c));
    return NEAP_OK;
}

static int by_text(const void *pa, const void *pb, void *context) {
    const literal *a = pa, *b = pb;
    const literals *l = context;
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(l->text.p + a->at, l->text.p + b->at, n) : 0;
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static bool same_text(const literals *a, const literal *x, const literals *b, const literal *y) {
    return x->n == y->n && memcmp(a->text.p + x->at, b->text.p + y->at, x->n) == 0;
}

/* Keeps what is in both; both are sorted. */
static void share(literals *l, literals *other) {
    uint32_t w = 0, k = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const literal *x = &l->list[i];
        while (k < other->n) {
            const literal *y = &other->list[k];
            size_t n = x->n < y->n ? x->n : y->n;
            int order = memcmp(other->text.p + y->at, l->text.p + x->at, n);
            if (order > 0 || (order == 0 && y->n >= x->n)) break;
            k++;
        }
        if (k < other->n && same_text(l, x, other, &other->list[k])) l->list[w++] = *x;
    }
    l->n = w;
}

static neap_status all_literals(neap_gschema *s, const uint32_t *nodes, uint32_t n, literals *l, bool *any) {
    literals other = {0};
    neap_status status = NEAP_OK;
    *any = false;
    for (uint32_t i = 0; i < n && status == NEAP_OK; i++) {
        bool found;
        literals *to = *any ? &other : l;
        other.n = 0;
        other.text.n = 0;
        status = node_literals(s, nodes[i], to, &found);
        if (status != NEAP_OK || !found) continue;
        if (to->n > 0) qsort_r(to->list, to->n, sizeof *to->list, by_text, to);
        if (*any) share(l, &other);
        *any = true;
    }
    neap_mem_free(other.list);
    neap_text_free(&other.text);
    return status;
}

/* The other keywords of the way, asked of each literal; arrays and objects must have none. */
static neap_status filter(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t types, literals *l) {
    static const char *const inner[] = {"properties",    "required",      "items",
                                        "prefixItems",   "minItems",      "maxItems",
                                        "minProperties", "maxProperties", "additionalProperties"};
    string_rules r;
    neap_number_range range = {0};
    neap_status status = read_string_rules(s, nodes, n, &r);
    if (status == NEAP_OK) status = read_range(s, nodes, n, &range);
    uint32_t w = 0;
    for (uint32_t i = 0; i < l->n && status == NEAP_OK; i++) {
        const literal *x = &l->list[i];
        bool good = (x->type & types) != 0;
        if (good && x->type == NEAP_T_STRING) {
            size_t bytes, chars = 0;
            const char *p = neap_jtree_string(s->tree, x->node, &bytes);
            for (size_t k = 0; k < bytes; k++) chars += ((unsigned char)p[k] & 0xC0) != 0x80;
            good = chars >= r.min && chars <= r.max && (!r.has_dfa || neap_dfa_takes(&r.dfa, p, bytes));
        } else if (good && (x->type & NEAP_T_NUMBER)) {
            neap_decimal d;
            good = neap_decimal_read(&d, s->tree->text + s->tree->nodes[x->node].at, s->tree->nodes[x->node].bytes) &&
                   neap_number_in(&range, &d);
        } else if (good && (x->type & (NEAP_T_ARRAY | NEAP_T_OBJECT))) {
            for (uint32_t k = 0; k < n && status == NEAP_OK; k++)
                for (size_t q = 0; q < sizeof inner / sizeof inner[0] && status == NEAP_OK; q++)
                    if (neap_gschema_get(s, nodes[k], inner[q]) != NEAP_J_NONE)
                        status = neap_gschema_fail(s, NEAP_UNSUPPORTED,
                                                   "beside literal arrays or objects this keyword is not covered");
        }
        if (good) l->list[w++] = *x;
        if (status == NEAP_OK) status = neap_gbuild_tick(s->b);
    }
    l->n = w;
    neap_dfa_free(&r.dfa);
    return status;
}

/* Sorted texts as a tree of states from `at` on. */
static neap_status put_texts(neap_gschema *s, const literals *l, uint32_t at) {
    uint32_t *path = NULL;
    size_t longest = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->list[i].n > longest) longest = l->list[i].n;
    NEAP_TRY(neap_mem_alloc((longest + 1) * sizeof *path, (void **)&path));
    neap_status status = NEAP_OK;
    path[0] = at;
    for (uint32_t i = 0; i < l->n && status == NEAP_OK; i++) {
        const literal *x = &l->list[i], *last = i ? x - 1 : x;
        size_t shared = 0;
        if (i > 0 && same_text(l, x, l, last)) continue;
        while (i > 0 && shared < x->n && shared < last->n && l->text.p[x->at + shared] == l->text.p[last->at + shared])
            shared++;
        uint32_t state = path[shared];
        for (size_t k = shared; k < x->n && status == NEAP_OK; k++) {
            status = neap_gbuild_text(s->b, &state, l->text.p + x->at + k, 1);
            path[k + 1] = state;
        }
        if (status == NEAP_OK) status = neap_gbuild_empty(s->b, state, NEAP_GSTATE_END);
    }
    neap_mem_free(path);
    return status;
}

/* Raw strings are their characters. */
static neap_status make_raw(neap_gschema *s, literals *l) {
    l->text.n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        size_t n;
        const char *p = neap_jtree_string(s->tree, l->list[i].node, &n);
        l->list[i].at = l->text.n;
        l->list[i].n = n;
        NEAP_TRY(neap_text_add(&l->text, p, n));
    }
    if (l->n > 0) qsort_r(l->list, l->n, sizeof *l->list, by_text, l);
    return NEAP_OK;
}

static neap_status put_literals(neap_gschema *s, bool raw, uint32_t types, const uint32_t *nodes, uint32_t n,
                                uint32_t at, bool *any) {
    literals l = {0};
    neap_status status = all_literals(s, nodes, n, &l, any);
    if (status == NEAP_OK && *any) {
        status = filter(s, nodes, n, types, &l);
        if (status == NEAP_OK && raw) status = make_raw(s, &l);
        if (status == NEAP_OK) status = neap_text_add(&l.text, "", 1); /* a text of none has a place, too */
        if (status == NEAP_OK) status = put_texts(s, &l, at);
    }
    neap_mem_free(l.list);
    neap_text_free(&l.text);
    return status;
}

/* ------------------------------------------------------------- arrays ------------------------ */

/* What must hold for item i (prefix: place before the common items), as nodes. */
static neap_status item_nodes(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t i, uint32_t *out,
                              uint32_t *n_out) {
    *n_out = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t prefix = neap_gschema_get(s, nodes[k], "prefixItems"), items = neap_gschema_get(s, nodes[k], "items");
        if (items != NEAP_J_NONE && kind_of(s, items) == NEAP_J_ARRAY) { /* as tuples were written before 2020 */
            prefix = items;
            items = neap_gschema_get(s, nodes[k], "additionalItems");
        }
        uint32_t c = prefix == NEAP_J_NONE ? NEAP_J_NONE : s->tree->nodes[prefix].first;
        for (uint32_t at = 0; c != NEAP_J_NONE && at < i; at++) c = s->tree->nodes[c].next;
        if (c == NEAP_J_NONE) c = items;
        if (c == NEAP_J_NONE) continue;
        if (kind_of(s, c) > NEAP_J_TRUE && kind_of(s, c) != NEAP_J_OBJECT)
            return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a schema");
        if (kind_of(s, c) == NEAP_J_NULL) return neap_gschema_fail(s, NEAP_INVALID_ARGUMENT, "must be a schema");
        out[(*n_out)++] = c;
    }
    return NEAP_OK;
}

static uint32_t prefix_length(neap_gschema *s, const uint32_t *nodes, uint32_t n) {
    uint32_t longest = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t prefix = neap_gschema_get(s, nodes[k], "prefixItems"), items = neap_gschema_get(s, nodes[k], "items");
        if (items != NEAP_J_NONE && kind_of(s, items) == NEAP_J_ARRAY) prefix = items;
        if (prefix != NEAP_J_NONE && s->tree->nodes[prefix].n > longest) longest = s->tree->nodes[prefix].n;
    }
    return longest;
}

static neap_status item_rule(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t i, uint32_t *rule) {
    uint32_t list[NEAP_SCHEMA_NODES_MAX], n_list;
    NEAP_TRY(item_nodes(s, nodes, n, i, list, &n_list));
    return neap_gschema_rule(s, NEAP_G_JSON, NEAP_T_ALL, list, n_list, rule);
}

static neap_status byte_edge(neap_gschema *s, uint32_t from, char c, uint8_t flags, uint32_t to, uint32_t loop) {
    return neap_gbuild_edge(s->b, from, (neap_gedge){NEAP_GE_BYTE, (uint8_t)c, (uint8_t)c, flags, to, loop});
}

neap_status neap_gvalue_array(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start) {
    uint32_t min = 0, max = UINT32_MAX, at, rule, loop, comma, counted;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = 0;
        bool found;
        NEAP_TRY(neap_gschema_count(s, nodes[i], "minItems", &found, &v));
        if (found && v > min) min = v;
        NEAP_TRY(neap_gschema_count(s, nodes[i], "maxItems", &found, &v));
        if (found && v < max) max = v;
    }
    if (min > max) return NEAP_OK;
    uint32_t prefix = prefix_length(s, nodes, n);
    s->key = NULL;
    NEAP_TRY(neap_gbuild_state(s->b, &at));
    NEAP_TRY(byte_edge(s, start, '[', NEAP_GE_DEEPER, at, 0));
    for (uint32_t i = 0; i < prefix; i++) { /* `at`: behind i items */
        if (i >= min) NEAP_TRY(byte_edge(s, at, ']', 0, NEAP_GSTATE_END, 0));
        if (i >= max) return NEAP_OK;
        if (i > 0) {
            NEAP_TRY(neap_gbuild_text(s->b, &at, ",", 1));
            NEAP_TRY(neap_gvalue_space(s, &at));
        }
        NEAP_TRY(item_rule(s, nodes, n, i, &rule));
        NEAP_TRY(neap_gbuild_call(s->b, &at, rule));
    }
    if (prefix >= min) NEAP_TRY(byte_edge(s, at, ']', 0, NEAP_GSTATE_END, 0));
    if (prefix >= max) return NEAP_OK;
    /* The count begins behind the prefix. */
    NEAP_TRY(item_rule(s, nodes, n, prefix, &rule));
    neap_gloop l = {min > prefix ? min - prefix : 0, max == UINT32_MAX ? max : max - prefix, 0, rule};
    NEAP_TRY(neap_gbuild_loop(s->b, l, &loop));
    if (prefix > 0) {
        NEAP_TRY(neap_gbuild_text(s->b, &at, ",", 1));
        NEAP_TRY(neap_gvalue_space(s, &at));
    }
    uint32_t item, behind;
    NEAP_TRY(neap_gbuild_state(s->b, &item));
    NEAP_TRY(neap_gbuild_edge(s->b, at, (neap_gedge){NEAP_GE_EMPTY, 0, 0, NEAP_GE_ZERO, item, loop}));
    behind = item;
    NEAP_TRY(neap_gbuild_call(s->b, &behind, rule));
    NEAP_TRY(neap_gbuild_state(s->b, &counted));
    NEAP_TRY(neap_gbuild_edge(s->b, behind, (neap_gedge){NEAP_GE_EMPTY, 0, 0, NEAP_GE_INC, counted, loop}));
    NEAP_TRY(byte_edge(s, counted, ']', NEAP_GE_MIN, NEAP_GSTATE_END, loop));
    NEAP_TRY(neap_gbuild_state(s->b, &comma));
    NEAP_TRY(byte_edge(s, counted, ',', NEAP_GE_MORE, comma, loop));
    NEAP_TRY(neap_gvalue_space(s, &comma));
    return neap_gbuild_empty(s->b, comma, item);
}

/* ------------------------------------------------------------- a way ------------------------- */

static neap_status put_word(neap_gschema *s, uint32_t at, const char *word) {
    NEAP_TRY(neap_gbuild_text(s->b, &at, word, strlen(word)));
    return neap_gbuild_empty(s->b, at, NEAP_GSTATE_END);
}

neap_status neap_gvalue_way(neap_gschema *s, neap_gform form, uint32_t types, const uint32_t *nodes, uint32_t n,
                            uint32_t start) {
    uint32_t allowed;
    bool literal_values;
    NEAP_TRY(neap_gschema_types(s, nodes, n, &allowed));
    types &= allowed;
    if (form == NEAP_G_ARGUMENTS) return types & NEAP_T_OBJECT ? neap_gvalue_arguments(s, nodes, n, start) : NEAP_OK;
    NEAP_TRY(put_literals(s, form == NEAP_G_RAW, types, nodes, n, start, &literal_values));
    if (literal_values) return NEAP_OK;
    if (types & NEAP_T_OBJECT) NEAP_TRY(neap_gvalue_object(s, nodes, n, start));
    if (types & NEAP_T_ARRAY) NEAP_TRY(neap_gvalue_array(s, nodes, n, start));
    if (types & NEAP_T_STRING) NEAP_TRY(put_string(s, form == NEAP_G_RAW, nodes, n, start));
    if (types & NEAP_T_NUMBER) NEAP_TRY(put_number(s, !(types & NEAP_T_FRACTION), nodes, n, start));
    if (types & NEAP_T_BOOLEAN) {
        NEAP_TRY(put_word(s, start, "true"));
        NEAP_TRY(put_word(s, start, "false"));
    }
    return types & NEAP_T_NULL ? put_word(s, start, "null") : NEAP_OK;
}
