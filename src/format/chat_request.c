/* The JSON request of a chat, checked and turned into plain structs.
 *
 * Everything that the renderers use has its type and size checked here, and every refusal names the message and
 * the field ("messages[3].content[0].type: ..."). Unknown members are ignored. Strings that become part of the
 * structure (names, ids) hold no control characters and are short; what people and tools write is free text.
 * Null counts as absent.
 *
 * Called by chat.c. Owns the tree and the arrays of messages and calls; strings are borrowed from the tree.
 * Source: tokenizer and chat notes, sections 4 and 5; the OpenAI chat request. */
#include <stdio.h>
#include <stdlib.h>

#include "format/chat.h"
#include "format/utf8.h"

enum { REQUEST_MAX = 32 << 20, NAME_MAX_BYTES = 1024, CALL_NAME_MAX_BYTES = 256, INDEX_BYTES = 40, PLACE_BYTES = 96 };

#define REFUSE(...) NEAP_FAIL(NEAP_INVALID_ARGUMENT, __VA_ARGS__)

static neap_jkind kind_of(const neap_chat_request *r, uint32_t node) { return neap_jtree_kind(&r->tree, node); }

static bool is_string(const neap_chat_request *r, uint32_t node, const char *value) {
    size_t n;
    const char *p = neap_jtree_string(&r->tree, node, &n);
    return n == strlen(value) && memcmp(p, value, n) == 0;
}

/* A short string without control characters; absent and null give p NULL. */
static neap_status read_name(const neap_chat_request *r, uint32_t object, const char *place, const char *key,
                             size_t max, neap_chat_string *out) {
    *out = (neap_chat_string){0};
    uint32_t node = neap_jtree_get(&r->tree, object, key);
    if (node == NEAP_J_NONE) return NEAP_OK;
    if (kind_of(r, node) != NEAP_J_STRING) REFUSE("%s.%s: must be a string", place, key);
    out->p = neap_jtree_string(&r->tree, node, &out->n);
    NEAP_CHECK(out->n <= max, NEAP_LIMIT, "%s.%s: %zu bytes, at most %zu are allowed", place, key, out->n, max);
    for (size_t i = 0; i < out->n; i++)
        if ((unsigned char)out->p[i] < 0x20 || out->p[i] == 0x7F)
            REFUSE("%s.%s: holds a control character", place, key);
    return NEAP_OK;
}

static neap_status read_bool(const neap_chat_request *r, const char *key, bool *out) {
    uint32_t node = neap_jtree_get(&r->tree, NEAP_J_ROOT, key);
    if (node == NEAP_J_NONE) return NEAP_OK;
    neap_jkind kind = kind_of(r, node);
    if (kind != NEAP_J_TRUE && kind != NEAP_J_FALSE) REFUSE("%s: must be true or false", key);
    *out = kind == NEAP_J_TRUE;
    return NEAP_OK;
}

static neap_status read_content(const neap_chat_request *r, uint32_t message, const char *place, uint32_t *out) {
    uint32_t node = neap_jtree_get(&r->tree, message, "content");
    *out = node;
    if (node == NEAP_J_NONE || kind_of(r, node) == NEAP_J_STRING) return NEAP_OK;
    if (kind_of(r, node) != NEAP_J_ARRAY) REFUSE("%s.content: must be a string, null or an array of text parts", place);
    size_t i = 0;
    for (uint32_t part = r->tree.nodes[node].first; part != NEAP_J_NONE; part = r->tree.nodes[part].next, i++) {
        uint32_t type = neap_jtree_get(&r->tree, part, "type"), text = neap_jtree_get(&r->tree, part, "text");
        if (kind_of(r, part) != NEAP_J_OBJECT) REFUSE("%s.content[%zu]: must be an object", place, i);
        if (type == NEAP_J_NONE || kind_of(r, type) != NEAP_J_STRING)
            REFUSE("%s.content[%zu].type: must be a string", place, i);
        NEAP_CHECK(is_string(r, type, "text"), NEAP_UNSUPPORTED,
                   "%s.content[%zu].type: \"%.40s\", only \"text\" parts are supported", place, i,
                   r->tree.pool + r->tree.nodes[type].at);
        if (text == NEAP_J_NONE || kind_of(r, text) != NEAP_J_STRING)
            REFUSE("%s.content[%zu].text: must be a string", place, i);
    }
    return NEAP_OK;
}

static neap_status read_reasoning(const neap_chat_request *r, uint32_t message, const char *place, uint32_t *out) {
    static const char *const keys[] = {"reasoning_content", "reasoning"};
    *out = NEAP_J_NONE;
    for (size_t i = 0; i < 2; i++) {
        uint32_t node = neap_jtree_get(&r->tree, message, keys[i]);
        if (node == NEAP_J_NONE) continue;
        if (kind_of(r, node) != NEAP_J_STRING) REFUSE("%s.%s: must be a string", place, keys[i]);
        if (*out == NEAP_J_NONE && r->tree.nodes[node].bytes > 0) *out = node;
    }
    return NEAP_OK;
}

static neap_status read_call(neap_chat_request *r, uint32_t node, const char *place, neap_chat_call *out) {
    if (kind_of(r, node) != NEAP_J_OBJECT) REFUSE("%s: must be an object", place);
    char inner[PLACE_BYTES + 16];
    NEAP_TRY(read_name(r, node, place, "id", NAME_MAX_BYTES, &out->id));
    uint32_t function = neap_jtree_get(&r->tree, node, "function");
    if (function == NEAP_J_NONE) function = node; /* name and arguments may stand in the call itself */
    if (kind_of(r, function) != NEAP_J_OBJECT) REFUSE("%s.function: must be an object", place);
    snprintf(inner, sizeof inner, "%s%s", place, function == node ? "" : ".function");
    NEAP_TRY(read_name(r, function, inner, "name", CALL_NAME_MAX_BYTES, &out->name));
    if (out->name.p == NULL || out->name.n == 0) REFUSE("%s.name: is required", inner);
    out->arguments = neap_jtree_get(&r->tree, function, "arguments");
    if (out->arguments == NEAP_J_NONE) return NEAP_OK;
    neap_jkind kind = kind_of(r, out->arguments);
    if (kind != NEAP_J_STRING && kind != NEAP_J_OBJECT) REFUSE("%s.arguments: must be a string or an object", inner);
    return NEAP_OK;
}

/* Calls by id, equal ids in their own order; calls without an id last. */
static int by_id(const void *pa, const void *pb, void *context) {
    const neap_chat_request *r = context;
    size_t ia = *(const uint32_t *)pa, ib = *(const uint32_t *)pb;
    const neap_chat_string *a = &r->calls[ia].id, *b = &r->calls[ib].id;
    if (a->p == NULL || b->p == NULL) {
        if ((a->p == NULL) != (b->p == NULL)) return a->p == NULL ? 1 : -1;
        return ia < ib ? -1 : ia > ib;
    }
    int order = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
    if (order != 0) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return ia < ib ? -1 : ia > ib;
}

int64_t neap_chat_find_call(const neap_chat_request *r, const neap_chat_message *assistant, neap_chat_string id) {
    if (assistant == NULL || id.p == NULL) return -1;
    const uint32_t *order = r->by_id + assistant->calls;
    size_t lo = 0, hi = assistant->n_calls;
    while (lo < hi) { /* the first call whose id is not smaller */
        size_t m = lo + (hi - lo) / 2;
        const neap_chat_string *have = &r->calls[order[m]].id;
        int smaller = 0;
        if (have->p != NULL) {
            int c = memcmp(have->p, id.p, have->n < id.n ? have->n : id.n);
            smaller = c < 0 || (c == 0 && have->n < id.n);
        }
        if (smaller)
            lo = m + 1;
        else
            hi = m;
    }
    if (lo == assistant->n_calls) return -1;
    const neap_chat_string *have = &r->calls[order[lo]].id;
    if (have->p == NULL || have->n != id.n || memcmp(have->p, id.p, id.n) != 0) return -1;
    return (int64_t)(order[lo] - assistant->calls);
}

static neap_status index_calls(neap_chat_request *r) {
    NEAP_TRY(neap_mem_alloc((r->n_calls + 1) * sizeof *r->by_id, (void **)&r->by_id));
    for (size_t i = 0; i < r->n_calls; i++) r->by_id[i] = (uint32_t)i;
    for (size_t i = 0; i < r->n_messages; i++)
        if (r->messages[i].n_calls > 1)
            qsort_r(r->by_id + r->messages[i].calls, r->messages[i].n_calls, sizeof *r->by_id, by_id, r);
    return NEAP_OK;
}

static neap_status read_calls(neap_chat_request *r, uint32_t message, const char *place, neap_chat_message *m) {
    uint32_t array = neap_jtree_get(&r->tree, message, "tool_calls");
    m->calls = r->n_calls;
    if (array == NEAP_J_NONE) return NEAP_OK;
    if (kind_of(r, array) != NEAP_J_ARRAY) REFUSE("%s.tool_calls: must be an array", place);
    for (uint32_t node = r->tree.nodes[array].first; node != NEAP_J_NONE; node = r->tree.nodes[node].next) {
        char inner[PLACE_BYTES];
        if (r->n_calls == r->calls_max) {
            size_t grown = r->calls_max ? r->calls_max * 2 : 16;
            NEAP_TRY(neap_mem_grow((void **)&r->calls, r->calls_max * sizeof *r->calls, grown * sizeof *r->calls));
            r->calls_max = grown;
        }
        snprintf(inner, sizeof inner, "%s.tool_calls[%zu]", place, m->n_calls);
        r->calls[r->n_calls] = (neap_chat_call){0};
        NEAP_TRY(read_call(r, node, inner, &r->calls[r->n_calls]));
        r->n_calls++;
        m->n_calls++;
    }
    return NEAP_OK;
}

/* An array of objects; empty counts as absent. */
static neap_status read_tools(const neap_chat_request *r, uint32_t object, const char *place, uint32_t *out) {
    *out = NEAP_J_NONE;
    uint32_t array = neap_jtree_get(&r->tree, object, "tools");
    if (array == NEAP_J_NONE) return NEAP_OK;
    if (kind_of(r, array) != NEAP_J_ARRAY) REFUSE("%stools: must be an array", place);
    size_t i = 0;
    for (uint32_t tool = r->tree.nodes[array].first; tool != NEAP_J_NONE; tool = r->tree.nodes[tool].next, i++)
        if (kind_of(r, tool) != NEAP_J_OBJECT) REFUSE("%stools[%zu]: must be an object", place, i);
    if (i > 0) *out = array;
    return NEAP_OK;
}

static neap_status read_role(const neap_chat_request *r, uint32_t message, const char *place, neap_chat_role *out) {
    static const struct {
        const char *name;
        neap_chat_role role;
    } roles[] = {{"system", NEAP_ROLE_SYSTEM},
                 {"user", NEAP_ROLE_USER},
                 {"assistant", NEAP_ROLE_ASSISTANT},
                 {"tool", NEAP_ROLE_TOOL},
                 {"developer", NEAP_ROLE_SYSTEM}};
    uint32_t node = neap_jtree_get(&r->tree, message, "role");
    if (node == NEAP_J_NONE || kind_of(r, node) != NEAP_J_STRING) REFUSE("%s.role: must be a string", place);
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (!is_string(r, node, roles[i].name)) continue;
        *out = roles[i].role;
        return NEAP_OK;
    }
    REFUSE("%s.role: \"%.40s\" is not one of system, user, assistant, tool", place,
           r->tree.pool + r->tree.nodes[node].at);
}

static neap_status read_message(neap_chat_request *r, uint32_t node, neap_chat_message *m) {
    char place[INDEX_BYTES], inner[INDEX_BYTES];
    snprintf(place, sizeof place, "messages[%zu]", m->index);
    snprintf(inner, sizeof inner, "messages[%zu].", m->index);
    if (kind_of(r, node) != NEAP_J_OBJECT) REFUSE("%s: must be an object", place);
    NEAP_TRY(read_role(r, node, place, &m->role));
    NEAP_TRY(read_name(r, node, place, "name", NAME_MAX_BYTES, &m->name));
    NEAP_TRY(read_content(r, node, place, &m->content));
    switch (m->role) {
    case NEAP_ROLE_ASSISTANT:
        NEAP_TRY(read_reasoning(r, node, place, &m->reasoning));
        return read_calls(r, node, place, m);
    case NEAP_ROLE_SYSTEM: return read_tools(r, node, inner, &m->tools);
    case NEAP_ROLE_TOOL: {
        NEAP_TRY(read_name(r, node, place, "tool_call_id", NAME_MAX_BYTES, &m->call_id));
        if (m->call_id.p == NULL) NEAP_TRY(read_name(r, node, place, "id", NAME_MAX_BYTES, &m->call_id));
        /* "tool" wins over "name" even when it is null. */
        bool has_tool = neap_jtree_member(&r->tree, node, "tool") != NEAP_J_NONE;
        return read_name(r, node, place, has_tool ? "tool" : "name", NAME_MAX_BYTES, &m->tool);
    }
    case NEAP_ROLE_USER: break;
    }
    return NEAP_OK;
}

static neap_status read_messages(neap_chat_request *r) {
    uint32_t array = neap_jtree_get(&r->tree, NEAP_J_ROOT, "messages");
    if (array == NEAP_J_NONE || kind_of(r, array) != NEAP_J_ARRAY) REFUSE("messages: an array is required");
    r->n_messages = r->tree.nodes[array].n;
    if (r->n_messages == 0) REFUSE("messages: must not be empty");
    NEAP_TRY(neap_mem_alloc(r->n_messages * sizeof *r->messages, (void **)&r->messages));
    size_t i = 0;
    for (uint32_t node = r->tree.nodes[array].first; node != NEAP_J_NONE; node = r->tree.nodes[node].next, i++) {
        r->messages[i].index = i;
        NEAP_TRY(read_message(r, node, &r->messages[i]));
        if (r->messages[i].tools != NEAP_J_NONE) r->tools_offered = true;
    }
    return index_calls(r);
}

neap_chat_string neap_chat_tool_name(const neap_jtree *tree, uint32_t tool) {
    neap_chat_string name = {0};
    uint32_t function = neap_jtree_get(tree, tool, "function");
    uint32_t node = neap_jtree_get(tree, function == NEAP_J_NONE ? tool : function, "name");
    if (node != NEAP_J_NONE && neap_jtree_kind(tree, node) == NEAP_J_STRING)
        name.p = neap_jtree_string(tree, node, &name.n);
    return name;
}

static bool has_tool(const neap_chat_request *r, uint32_t tools, neap_chat_string name) {
    if (tools == NEAP_J_NONE) return false;
    for (uint32_t tool = r->tree.nodes[tools].first; tool != NEAP_J_NONE; tool = r->tree.nodes[tool].next) {
        neap_chat_string have = neap_chat_tool_name(&r->tree, tool);
        if (have.p != NULL && have.n == name.n && memcmp(have.p, name.p, name.n) == 0) return true;
    }
    return false;
}

/* {"type": "function", "function": {"name": ...}} */
static neap_status read_named_choice(neap_chat_request *r, uint32_t node) {
    uint32_t type = neap_jtree_get(&r->tree, node, "type"), function = neap_jtree_get(&r->tree, node, "function");
    if (type == NEAP_J_NONE || kind_of(r, type) != NEAP_J_STRING || !is_string(r, type, "function"))
        REFUSE("tool_choice.type: must be \"function\"");
    if (function == NEAP_J_NONE || kind_of(r, function) != NEAP_J_OBJECT)
        REFUSE("tool_choice.function: must be an object");
    NEAP_TRY(read_name(r, function, "tool_choice.function", "name", CALL_NAME_MAX_BYTES, &r->named));
    if (r->named.n == 0) REFUSE("tool_choice.function.name: is required");
    bool found = has_tool(r, r->tools, r->named);
    for (size_t i = 0; i < r->n_messages && !found; i++) found = has_tool(r, r->messages[i].tools, r->named);
    if (!found) REFUSE("tool_choice.function.name: no tool is named \"%.64s\"", r->named.p);
    r->choice = NEAP_CHOICE_REQUIRED;
    return NEAP_OK;
}

static neap_status read_choice(neap_chat_request *r) {
    uint32_t node = neap_jtree_get(&r->tree, NEAP_J_ROOT, "tool_choice");
    if (node == NEAP_J_NONE) return NEAP_OK;
    if (kind_of(r, node) == NEAP_J_OBJECT) return read_named_choice(r, node);
    if (kind_of(r, node) == NEAP_J_STRING && is_string(r, node, "none"))
        r->choice = NEAP_CHOICE_NONE;
    else if (kind_of(r, node) == NEAP_J_STRING && is_string(r, node, "required"))
        r->choice = NEAP_CHOICE_REQUIRED;
    else if (kind_of(r, node) != NEAP_J_STRING || !is_string(r, node, "auto"))
        REFUSE("tool_choice: must be \"none\", \"auto\", \"required\" or a function by its name");
    return NEAP_OK;
}

static neap_status read_answer(neap_chat_request *r) {
    uint32_t node = neap_jtree_get(&r->tree, NEAP_J_ROOT, "response_format");
    if (node == NEAP_J_NONE) return NEAP_OK;
    uint32_t type = neap_jtree_get(&r->tree, node, "type");
    if (type == NEAP_J_NONE || kind_of(r, type) != NEAP_J_STRING) REFUSE("response_format.type: must be a string");
    if (is_string(r, type, "text")) return NEAP_OK;
    if (is_string(r, type, "json_object")) {
        r->answer = NEAP_ANSWER_JSON_OBJECT;
        return NEAP_OK;
    }
    if (!is_string(r, type, "json_schema"))
        REFUSE("response_format.type: must be \"text\", \"json_object\" or \"json_schema\"");
    r->answer = NEAP_ANSWER_JSON_SCHEMA;
    uint32_t outer = neap_jtree_get(&r->tree, node, "json_schema");
    if (outer == NEAP_J_NONE || kind_of(r, outer) != NEAP_J_OBJECT)
        REFUSE("response_format.json_schema: must be an object");
    r->schema = neap_jtree_member(&r->tree, outer, "schema");
    if (r->schema == NEAP_J_NONE) r->schema = neap_jtree_member(&r->tree, outer, "json_schema");
    if (r->schema == NEAP_J_NONE) r->schema = outer;
    return NEAP_OK;
}

static neap_status read_all(neap_chat_request *r) {
    if (kind_of(r, NEAP_J_ROOT) != NEAP_J_OBJECT) REFUSE("the request must be a JSON object");
    r->thinking = r->generation_prompt = true;
    NEAP_TRY(read_messages(r));
    NEAP_TRY(read_tools(r, NEAP_J_ROOT, "", &r->tools));
    NEAP_TRY(read_bool(r, "thinking", &r->thinking));
    NEAP_TRY(read_bool(r, "add_generation_prompt", &r->generation_prompt));
    NEAP_TRY(read_choice(r));
    NEAP_TRY(read_answer(r));
    uint32_t effort = neap_jtree_get(&r->tree, NEAP_J_ROOT, "thinking_effort");
    if (effort != NEAP_J_NONE) {
        if (kind_of(r, effort) != NEAP_J_STRING ||
            !(is_string(r, effort, "low") || is_string(r, effort, "high") || is_string(r, effort, "max")))
            REFUSE("thinking_effort: must be \"low\", \"high\" or \"max\"");
        r->effort.p = neap_jtree_string(&r->tree, effort, &r->effort.n);
    }
    if (r->tools != NEAP_J_NONE) r->tools_offered = true;
    if (r->choice == NEAP_CHOICE_NONE) r->tools_offered = false;
    return NEAP_OK;
}

neap_status neap_chat_request_read(neap_chat_request *r, const char *json, size_t n) {
    NEAP_CHECK(n <= REQUEST_MAX, NEAP_LIMIT, "the request has %zu bytes, at most %d are allowed", n, REQUEST_MAX);
    neap_status status = neap_jtree_parse(&r->tree, json, n, NEAP_J_STRICT);
    if (status != NEAP_OK) return neap_fail_prefix(status, "the request");
    status = read_all(r);
    if (status != NEAP_OK) neap_chat_request_free(r);
    return status;
}

void neap_chat_request_free(neap_chat_request *r) {
    neap_jtree_free(&r->tree);
    neap_mem_free(r->messages);
    neap_mem_free(r->calls);
    neap_mem_free(r->by_id);
    *r = (neap_chat_request){0};
}
