/* Objects: members in the order of the schema, then others, as JSON or as the arguments of a call.
 *
 * Members come in the order in which the schemas name them; those that are not required may be left out. Keys that no
 * schema names follow behind them, when they are allowed: by additionalProperties, or because no members are named at
 * all. Where members are named and nothing is said of others, the standard allows them. Here they do not come: a model
 * that rambles would never find an end, and nobody misses what was not asked for.
 *
 * The characters of such keys have one spelling only, so that no named key can return disguised. In the XML-like format
 * a call's arguments are elements with the key, the type and the value: strings stand there as they are, other values
 * as JSON.
 *
 * Called by grammar_value.c. */
#include "format/grammar_schema.h"

typedef struct member {
    neap_gname name;
    uint32_t from, n; /* nodes of its value, in the list */
    bool required;
} member;

typedef struct object {
    neap_gschema *s;
    const uint32_t *nodes;
    uint32_t n_nodes;
    member *members;
    uint32_t n, members_max;
    uint32_t *list, n_list, list_max;
    bool others; /* keys without name may follow */
    bool never;  /* no object can satisfy this */
    uint32_t min;
    uint32_t other_from, n_other;
} object;

static neap_jkind kind_of(const object *o, uint32_t node) { return o->s->tree->nodes[node].kind; }

static neap_status list_node(object *o, uint32_t node) {
    NEAP_TRY(neap_grow(&o->list, o->n_list + 1, &o->list_max, sizeof *o->list));
    o->list[o->n_list++] = node;
    return NEAP_OK;
}

/* ------------------------------------------------------------- members ----------------------- */

/* The schemas of all nodes for this key; *impossible: one of them forbids it. */
static neap_status member_nodes(object *o, neap_gname name, bool *impossible) {
    *impossible = false;
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t properties = neap_gschema_get(o->s, o->nodes[i], "properties"), value = NEAP_J_NONE;
        if (properties != NEAP_J_NONE) value = neap_jtree_member(o->s->tree, properties, name.p);
        if (value == NEAP_J_NONE) value = neap_gschema_get(o->s, o->nodes[i], "additionalProperties");
        if (value == NEAP_J_NONE || kind_of(o, value) == NEAP_J_TRUE) continue;
        *impossible = *impossible || kind_of(o, value) == NEAP_J_FALSE;
        NEAP_TRY(list_node(o, value));
    }
    return NEAP_OK;
}

static bool is_required(object *o, neap_gname name) {
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t required = neap_gschema_get(o->s, o->nodes[i], "required");
        if (required == NEAP_J_NONE) continue;
        for (uint32_t c = o->s->tree->nodes[required].first; c != NEAP_J_NONE; c = o->s->tree->nodes[c].next) {
            size_t n;
            const char *p = neap_jtree_string(o->s->tree, c, &n);
            if (n == name.n && memcmp(p, name.p, n) == 0) return true;
        }
    }
    return false;
}

/* Is it named by a node before this one? */
static bool is_known(object *o, uint32_t before, neap_gname name) {
    for (uint32_t i = 0; i < before; i++) {
        uint32_t properties = neap_gschema_get(o->s, o->nodes[i], "properties");
        if (properties != NEAP_J_NONE && neap_jtree_member(o->s->tree, properties, name.p) != NEAP_J_NONE) return true;
    }
    return false;
}

static neap_status add_member(object *o, neap_gname name) {
    bool impossible;
    NEAP_TRY(neap_gbuild_tick(o->s->b));
    NEAP_TRY(neap_grow(&o->members, o->n + 1, &o->members_max, sizeof *o->members));
    member *m = &o->members[o->n];
    *m = (member){.name = name, .from = o->n_list, .required = is_required(o, name)};
    NEAP_TRY(member_nodes(o, name, &impossible));
    m->n = o->n_list - m->from;
    o->never = o->never || (impossible && m->required);
    m->from = impossible ? UINT32_MAX : m->from; /* stays known as a name, never comes */
    o->n++;
    return NEAP_OK;
}

/* Names without a text as C knows it cannot be looked up. */
static neap_status check_name(object *o, neap_gname name) {
    if (memchr(name.p, 0, name.n) == NULL) return NEAP_OK;
    return neap_gschema_fail(o->s, NEAP_UNSUPPORTED, "a key with a NUL character is not covered");
}

static neap_status read_members(object *o) {
    const neap_jnode *nodes = o->s->tree->nodes;
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t properties = neap_gschema_get(o->s, o->nodes[i], "properties");
        if (properties == NEAP_J_NONE) continue;
        for (uint32_t c = nodes[properties].first; c != NEAP_J_NONE; c = nodes[c].next) {
            neap_gname name = {o->s->tree->pool + nodes[c].key, nodes[c].key_bytes};
            NEAP_TRY(check_name(o, name));
            if (!is_known(o, i, name)) NEAP_TRY(add_member(o, name));
        }
    }
    for (uint32_t i = 0; i < o->n_nodes; i++) { /* required, but not described */
        uint32_t required = neap_gschema_get(o->s, o->nodes[i], "required");
        if (required == NEAP_J_NONE) continue;
        for (uint32_t c = nodes[required].first; c != NEAP_J_NONE; c = nodes[c].next) {
            neap_gname name;
            name.p = neap_jtree_string(o->s->tree, c, &name.n);
            NEAP_TRY(check_name(o, name));
            bool known = is_known(o, o->n_nodes, name);
            for (uint32_t k = 0; k < o->n && !known; k++)
                known = o->members[k].name.n == name.n && memcmp(o->members[k].name.p, name.p, name.n) == 0;
            if (!known) NEAP_TRY(add_member(o, name));
        }
    }
    return NEAP_OK;
}

static neap_status read_others(object *o) {
    bool names_some = false, allows = false, least = false;
    o->other_from = o->n_list;
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t properties = neap_gschema_get(o->s, o->nodes[i], "properties");
        names_some = names_some || properties != NEAP_J_NONE;
        allows = allows || neap_gschema_get(o->s, o->nodes[i], "additionalProperties") != NEAP_J_NONE;
        least = least || neap_gschema_get(o->s, o->nodes[i], "minProperties") != NEAP_J_NONE;
    }
    bool possible = false;
    for (uint32_t i = 0; i < o->n; i++) possible = possible || o->members[i].from != UINT32_MAX;
    o->others = !names_some || allows || (least && !possible);
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t value = neap_gschema_get(o->s, o->nodes[i], "additionalProperties");
        if (value == NEAP_J_NONE || kind_of(o, value) == NEAP_J_TRUE) continue;
        if (kind_of(o, value) == NEAP_J_FALSE) o->others = false;
        NEAP_TRY(list_node(o, value));
    }
    o->n_other = o->n_list - o->other_from;
    return NEAP_OK;
}

/* Numbers of members: what follows from the members alone is enough, other bounds are not covered. */
static neap_status read_bounds(object *o) {
    uint32_t required = 0;
    for (uint32_t i = 0; i < o->n; i++) required += o->members[i].required;
    for (uint32_t i = 0; i < o->n_nodes; i++) {
        uint32_t v = 0;
        bool found;
        NEAP_TRY(neap_gschema_count(o->s, o->nodes[i], "minProperties", &found, &v));
        if (found && v > required && v > 1)
            return neap_gschema_fail(o->s, NEAP_UNSUPPORTED,
                                     "more than 1, and more than the required members, is not covered");
        if (found && v > o->min) o->min = v;
        NEAP_TRY(neap_gschema_count(o->s, o->nodes[i], "maxProperties", &found, &v));
        if (found && (o->others || o->n > v))
            return neap_gschema_fail(o->s, NEAP_UNSUPPORTED,
                                     "is not covered, unless additionalProperties is false and no more are named");
    }
    return NEAP_OK;
}

static neap_status read_object(object *o) {
    NEAP_TRY(neap_grow(&o->list, 1, &o->list_max, sizeof *o->list)); /* a slice of none needs a place, too */
    NEAP_TRY(read_members(o));
    NEAP_TRY(read_others(o));
    return read_bounds(o);
}

static void free_object(object *o) {
    neap_mem_free(o->members);
    neap_mem_free(o->list);
}

static neap_status names_dfa(object *o, bool attribute, uint32_t *start) {
    neap_gname *names = NULL;
    neap_dfa dfa = {0}, escaped = {0};
    NEAP_TRY(neap_mem_alloc((o->n + 1) * sizeof *names, (void **)&names));
    for (uint32_t i = 0; i < o->n; i++) names[i] = o->members[i].name;
    neap_status status = neap_dfa_except(o->s->b, names, o->n, attribute, &dfa);
    if (status == NEAP_OK && !attribute) status = neap_dfa_escape(o->s->b, &dfa, &escaped);
    if (status == NEAP_OK) status = neap_gbuild_dfa(o->s->b, attribute ? &dfa : &escaped, start);
    neap_dfa_free(&dfa);
    neap_dfa_free(&escaped);
    neap_mem_free(names);
    return status;
}

/* ------------------------------------------------------------- as JSON ----------------------- */

/* From key (before its quote) to behind the value: *at. */
static neap_status put_member(object *o, const member *m, uint32_t *at) {
    neap_gschema *s = o->s;
    uint32_t rule;
    s->scratch.n = 0;
    NEAP_TRY(neap_text_str(&s->scratch, "\""));
    NEAP_TRY(neap_json_escape(m->name.p, m->name.n, &s->scratch));
    NEAP_TRY(neap_text_str(&s->scratch, "\":"));
    NEAP_TRY(neap_gbuild_text(s->b, at, s->scratch.p, s->scratch.n));
    NEAP_TRY(neap_gvalue_space(s, at));
    NEAP_TRY(neap_gschema_rule(s, NEAP_G_JSON, NEAP_T_ALL, o->list + m->from, m->n, &rule));
    return neap_gbuild_call(s->b, at, rule);
}

static neap_status put_other(object *o, uint32_t *at) {
    neap_gschema *s = o->s;
    uint32_t key, rule;
    NEAP_TRY(names_dfa(o, false, &key));
    NEAP_TRY(neap_gbuild_text(s->b, at, "\"", 1));
    NEAP_TRY(neap_gbuild_call(s->b, at, key));
    NEAP_TRY(neap_gbuild_text(s->b, at, ":", 1));
    NEAP_TRY(neap_gvalue_space(s, at));
    NEAP_TRY(neap_gschema_rule(s, NEAP_G_JSON, NEAP_T_ALL, o->list + o->other_from, o->n_other, &rule));
    return neap_gbuild_call(s->b, at, rule);
}

/* The states between members: nothing was written yet (first), a comma was (comma); both look at member i next. */
static neap_status put_json(object *o, uint32_t start) {
    neap_gbuild *b = o->s->b;
    uint32_t first, comma, behind, key, open, left = 0;
    for (uint32_t i = 0; i < o->n; i++) left += o->members[i].required;
    NEAP_TRY(neap_gbuild_state(b, &open));
    NEAP_TRY(neap_gbuild_edge(b, start, (neap_gedge){NEAP_GE_BYTE, '{', '{', NEAP_GE_DEEPER, open, 0}));
    first = open;
    NEAP_TRY(neap_gbuild_state(b, &comma));
    for (uint32_t i = 0; i < o->n; i++) {
        const member *m = &o->members[i];
        uint32_t next_first, next_comma, spaced;
        if (m->from == UINT32_MAX) continue;
        NEAP_TRY(neap_gbuild_state(b, &next_first));
        NEAP_TRY(neap_gbuild_state(b, &next_comma));
        NEAP_TRY(neap_gbuild_state(b, &key));
        NEAP_TRY(neap_gbuild_empty(b, first, key));
        NEAP_TRY(neap_gbuild_empty(b, comma, key));
        behind = key;
        NEAP_TRY(put_member(o, m, &behind));
        left -= m->required;
        if (!m->required) {
            NEAP_TRY(neap_gbuild_empty(b, first, next_first));
            NEAP_TRY(neap_gbuild_empty(b, comma, next_comma));
        }
        if (left == 0)
            NEAP_TRY(neap_gbuild_edge(b, behind, (neap_gedge){NEAP_GE_BYTE, '}', '}', 0, NEAP_GSTATE_END, 0}));
        spaced = behind;
        NEAP_TRY(neap_gbuild_text(b, &spaced, ",", 1));
        NEAP_TRY(neap_gvalue_space(o->s, &spaced));
        NEAP_TRY(neap_gbuild_empty(b, spaced, next_comma));
        first = next_first;
        comma = next_comma;
    }
    if (left == 0 && o->min == 0)
        NEAP_TRY(neap_gbuild_edge(b, first, (neap_gedge){NEAP_GE_BYTE, '}', '}', 0, NEAP_GSTATE_END, 0}));
    if (left > 0 || !o->others) return NEAP_OK;
    NEAP_TRY(neap_gbuild_state(b, &key));
    NEAP_TRY(neap_gbuild_empty(b, first, key));
    NEAP_TRY(neap_gbuild_empty(b, comma, key));
    behind = key;
    NEAP_TRY(put_other(o, &behind));
    NEAP_TRY(neap_gbuild_edge(b, behind, (neap_gedge){NEAP_GE_BYTE, '}', '}', 0, NEAP_GSTATE_END, 0}));
    NEAP_TRY(neap_gbuild_text(b, &behind, ",", 1));
    NEAP_TRY(neap_gvalue_space(o->s, &behind));
    return neap_gbuild_empty(b, behind, key);
}

neap_status neap_gvalue_object(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start) {
    object o = {.s = s, .nodes = nodes, .n_nodes = n};
    neap_status status = read_object(&o);
    if (status == NEAP_OK) s->key = "properties";
    if (status == NEAP_OK && !o.never) status = put_json(&o, start);
    free_object(&o);
    return status;
}

/* ------------------------------------------------------------- as arguments ------------------ */

static const struct {
    uint32_t types;
    const char *name;
} argument_types[] = {{NEAP_T_STRING, "string"}, {NEAP_T_NUMBER, "number"}, {NEAP_T_BOOLEAN, "boolean"},
                      {NEAP_T_NULL, "null"},     {NEAP_T_OBJECT, "object"}, {NEAP_T_ARRAY, "array"}};

/* From behind the key to the end of the element. */
static neap_status put_value(object *o, const uint32_t *nodes, uint32_t n, uint32_t from, uint32_t to) {
    neap_gschema *s = o->s;
    uint32_t types;
    NEAP_TRY(neap_gvalue_types(s, nodes, n, &types));
    for (size_t i = 0; i < sizeof argument_types / sizeof argument_types[0]; i++) {
        uint32_t at = from, rule, some = types & argument_types[i].types;
        bool raw = some == NEAP_T_STRING;
        if (some == 0) continue;
        NEAP_TRY(neap_gbuild_text(s->b, &at, argument_types[i].name, strlen(argument_types[i].name)));
        NEAP_TRY(neap_gbuild_text(s->b, &at, "\"", 1));
        NEAP_TRY(neap_gbuild_token(s->b, &at, s->tags.sep));
        NEAP_TRY(neap_gschema_rule(s, raw ? NEAP_G_RAW : NEAP_G_JSON, some, nodes, n, &rule));
        NEAP_TRY(neap_gbuild_call(s->b, &at, rule));
        NEAP_TRY(neap_gbuild_empty(s->b, at, to));
    }
    return NEAP_OK;
}

static neap_status escape_attribute(neap_text *out, neap_gname name) {
    for (size_t i = 0; i < name.n; i++) {
        if (name.p[i] == '&')
            NEAP_TRY(neap_text_str(out, "&amp;"));
        else if (name.p[i] == '"')
            NEAP_TRY(neap_text_str(out, "&quot;"));
        else
            NEAP_TRY(neap_text_add(out, name.p + i, 1));
    }
    return NEAP_OK;
}

/* One element; name.p NULL: any key that has no name here. *at becomes the place behind it. */
static neap_status put_element(object *o, neap_gname name, const uint32_t *nodes, uint32_t n, uint32_t *at) {
    static const char head[] = "argument key=\"", type[] = "\" type=\"", tail[] = "argument";
    neap_gschema *s = o->s;
    uint32_t value, key;
    NEAP_TRY(neap_gbuild_token(s->b, at, s->tags.open));
    NEAP_TRY(neap_gbuild_text(s->b, at, head, sizeof head - 1));
    if (name.p == NULL) {
        NEAP_TRY(names_dfa(o, true, &key));
        NEAP_TRY(neap_gbuild_call(s->b, at, key));
    } else {
        s->scratch.n = 0;
        NEAP_TRY(escape_attribute(&s->scratch, name));
        NEAP_TRY(neap_gbuild_text(s->b, at, s->scratch.p, s->scratch.n));
    }
    NEAP_TRY(neap_gbuild_text(s->b, at, type, sizeof type - 1));
    NEAP_TRY(neap_gbuild_state(s->b, &value));
    NEAP_TRY(put_value(o, nodes, n, *at, value));
    *at = value;
    NEAP_TRY(neap_gbuild_token(s->b, at, s->tags.close));
    NEAP_TRY(neap_gbuild_text(s->b, at, tail, sizeof tail - 1));
    return neap_gbuild_token(s->b, at, s->tags.sep);
}

static neap_status put_arguments(object *o, uint32_t start) {
    neap_gbuild *b = o->s->b;
    uint32_t at;
    NEAP_TRY(neap_gbuild_state(b, &at));
    NEAP_TRY(neap_gbuild_edge(b, start, (neap_gedge){NEAP_GE_EMPTY, 0, 0, NEAP_GE_DEEPER, at, 0}));
    for (uint32_t i = 0; i < o->n; i++) {
        const member *m = &o->members[i];
        uint32_t behind = at, next;
        if (m->from == UINT32_MAX) continue;
        NEAP_TRY(neap_gbuild_state(b, &next));
        NEAP_TRY(put_element(o, m->name, o->list + m->from, m->n, &behind));
        NEAP_TRY(neap_gbuild_empty(b, behind, next));
        if (!m->required) NEAP_TRY(neap_gbuild_empty(b, at, next));
        at = next;
    }
    NEAP_TRY(neap_gbuild_empty(b, at, NEAP_GSTATE_END));
    if (!o->others) return NEAP_OK;
    uint32_t behind = at;
    NEAP_TRY(put_element(o, (neap_gname){NULL, 0}, o->list + o->other_from, o->n_other, &behind));
    return neap_gbuild_empty(b, behind, at);
}

neap_status neap_gvalue_arguments(neap_gschema *s, const uint32_t *nodes, uint32_t n, uint32_t start) {
    object o = {.s = s, .nodes = nodes, .n_nodes = n};
    neap_status status = read_object(&o);
    if (status == NEAP_OK && o.min > 0) {
        uint32_t required = 0;
        for (uint32_t i = 0; i < o.n; i++) required += o.members[i].required;
        s->key = "minProperties";
        if (o.min > required) status = neap_gschema_fail(s, NEAP_UNSUPPORTED, "is not covered for arguments of calls");
    }
    if (status == NEAP_OK && !o.never) status = put_arguments(&o, start);
    free_object(&o);
    return status;
}
