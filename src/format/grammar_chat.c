/* The grammar of a whole answer: reasoning, content and calls in the form of the chat, with schemas inside.
 *
 *   K3:      reasoning close(think) open(response) CONTENT close(response)
 *            [ open(tools) { open(call tool= index=) ARGUMENTS close(call) } close(tools) ] close(message) end
 *   markers: [ <think> reasoning </think> ] CONTENT
 *            [ section_begin { call_begin functions.NAME:N argument_begin JSON call_end } section_end ] end
 *
 * Reasoning, and content that no response_format describes, are free: any text, but no control token that would be out
 * of place, and no end before the structure is complete. When a schema describes the content and a call may come
 * instead, the content may be empty if calls follow. A call that no schema describes gets any arguments that are
 * well-formed. Nothing of a request that is not constrained makes a grammar.
 *
 * Public calls of neap.h are here. A grammar owns its arena and borrows the tokenizer.
 * Source: tokenizer and chat notes, sections 4 and 5. */
#include <stdio.h>

#include "format/chat.h"
#include "format/grammar_inner.h"

enum {
    SOURCE_MAX = 64 << 10,
    STATES_MAX = 50000,
    DEPTH_MAX = 64,
    MILLISECONDS = 200,
    TOOLS_MAX = 1024,
    PARSE_MAX = 32 << 20,
    CALLS_MAX = 64 /* of one answer */
};

void neap_grammar_limits_init(neap_grammar_limits *l) {
    if (l == NULL) return;
    *l = (neap_grammar_limits){sizeof *l, SOURCE_MAX, STATES_MAX, DEPTH_MAX, MILLISECONDS};
}

/* ------------------------------------------------------------- what is asked ----------------- */

typedef struct tool {
    neap_chat_string name;
    uint32_t node, parameters; /* NEAP_J_NONE: anything */
    bool strict;
} tool;

typedef struct plan {
    const neap_tokenizer *t;
    const neap_chat_request *r;
    neap_gbuild *b;
    neap_gschema *schemas;
    tool *tools;
    uint32_t n_tools;
    bool parallel, must_call;
    bool constrained;
    uint32_t digits, calls; /* the rule of a call's number, the loop that counts them */
} plan;

static uint32_t function_of(const neap_jtree *tree, uint32_t node) {
    uint32_t function = neap_jtree_get(tree, node, "function");
    return function == NEAP_J_NONE ? node : function;
}

static neap_status read_tool(plan *p, uint32_t node, const char *place) {
    const neap_jtree *tree = &p->r->tree;
    uint32_t function = function_of(tree, node), strict = neap_jtree_get(tree, function, "strict");
    tool x = {.name = neap_chat_tool_name(tree, node), .node = node};
    x.strict = strict != NEAP_J_NONE && neap_jtree_kind(tree, strict) == NEAP_J_TRUE;
    x.parameters = neap_jtree_get(tree, function, "parameters");
    NEAP_CHECK(p->n_tools < TOOLS_MAX, NEAP_LIMIT, "%s: more than %d tools", place, TOOLS_MAX);
    if (p->r->named.p != NULL &&
        (x.name.p == NULL || x.name.n != p->r->named.n || memcmp(x.name.p, p->r->named.p, x.name.n) != 0))
        return NEAP_OK;
    p->tools[p->n_tools++] = x;
    return NEAP_OK;
}

static neap_status read_tools(plan *p, uint32_t array, const char *place) {
    if (array == NEAP_J_NONE) return NEAP_OK;
    for (uint32_t c = p->r->tree.nodes[array].first; c != NEAP_J_NONE; c = p->r->tree.nodes[c].next)
        NEAP_TRY(read_tool(p, c, place));
    return NEAP_OK;
}

/* Which tools may be called, and whether anything is constrained at all. */
static neap_status read_plan(plan *p) {
    const neap_chat_request *r = p->r;
    uint32_t parallel = neap_jtree_get(&r->tree, NEAP_J_ROOT, "parallel_tool_calls");
    p->parallel = parallel == NEAP_J_NONE || neap_jtree_kind(&r->tree, parallel) != NEAP_J_FALSE;
    p->must_call = r->choice == NEAP_CHOICE_REQUIRED;
    NEAP_TRY(neap_mem_alloc(TOOLS_MAX * sizeof *p->tools, (void **)&p->tools));
    if (r->choice != NEAP_CHOICE_NONE) {
        NEAP_TRY(read_tools(p, r->tools, "tools"));
        for (size_t i = 0; i < r->n_messages; i++) NEAP_TRY(read_tools(p, r->messages[i].tools, "messages.tools"));
    }
    NEAP_CHECK(!p->must_call || p->n_tools > 0, NEAP_INVALID_ARGUMENT,
               "tool_choice: a call is required, but there are no tools");
    p->constrained = r->answer != NEAP_ANSWER_TEXT || p->must_call || (p->n_tools > 0 && !p->parallel);
    for (uint32_t i = 0; i < p->n_tools; i++) p->constrained = p->constrained || p->tools[i].strict;
    for (uint32_t i = 0; i < p->n_tools && p->constrained; i++)
        NEAP_CHECK(p->tools[i].name.n > 0, NEAP_INVALID_ARGUMENT, "tools[%u].function.name: is required", i);
    return NEAP_OK;
}

/* Arguments are described by the schema when the tool is strict or a call is forced. */
static uint32_t parameters_of(const plan *p, const tool *x) {
    return x->strict || p->must_call ? x->parameters : NEAP_J_NONE;
}

/* Bytes that a part of the tree takes, roughly as it was written. */
static size_t source_bytes(const neap_jtree *tree, uint32_t node) {
    uint32_t open[NEAP_J_DEPTH], depth = 0, at = node;
    size_t n = 0;
    if (node == NEAP_J_NONE) return 0;
    for (;;) {
        const neap_jnode *v = &tree->nodes[at];
        n += (size_t)v->bytes + v->key_bytes + (v->key_bytes ? 4 : 2);
        if (v->kind >= NEAP_J_ARRAY && v->first != NEAP_J_NONE) {
            open[depth++] = at;
            at = v->first;
            continue;
        }
        while (at != node && tree->nodes[at].next == NEAP_J_NONE) at = open[--depth];
        if (at == node) return n;
        at = tree->nodes[at].next;
    }
}

static neap_status check_source(const plan *p) {
    size_t n = p->r->answer == NEAP_ANSWER_JSON_SCHEMA ? source_bytes(&p->r->tree, p->r->schema) : 0;
    for (uint32_t i = 0; i < p->n_tools; i++) n += source_bytes(&p->r->tree, parameters_of(p, &p->tools[i]));
    NEAP_CHECK(n <= p->b->limits->source_bytes_max, NEAP_LIMIT, "the schemas have %zu bytes, at most %zu are allowed",
               n, p->b->limits->source_bytes_max);
    return NEAP_OK;
}

/* ------------------------------------------------------------- parts of both formats --------- */

static neap_status control(const plan *p, const char *spelling, int32_t *out) {
    int32_t slot = neap_special_find(p->t, spelling, strlen(spelling));
    *out = p->t->vocab.n + slot;
    NEAP_CHECK(slot >= 0, NEAP_UNSUPPORTED, "the tokenizer has no special token %s, which this answer needs", spelling);
    return NEAP_OK;
}

static neap_status text(plan *p, uint32_t *at, const char *s) { return neap_gbuild_text(p->b, at, s, strlen(s)); }

static neap_status free_text(plan *p, uint32_t *at) {
    uint32_t state;
    NEAP_TRY(neap_gbuild_state(p->b, &state));
    NEAP_TRY(neap_gbuild_empty(p->b, *at, state));
    p->b->states[state].flags = NEAP_GS_FREE;
    *at = state;
    return NEAP_OK;
}

static neap_status content(plan *p, uint32_t *at) {
    uint32_t rule;
    if (p->r->answer == NEAP_ANSWER_TEXT) return free_text(p, at);
    bool any = p->r->answer == NEAP_ANSWER_JSON_OBJECT;
    if (!any) NEAP_TRY(neap_gschema_root(p->schemas, p->r->schema));
    NEAP_TRY(neap_gschema_value(p->schemas, any ? NEAP_J_NONE : p->r->schema, any, &rule));
    return neap_gbuild_call(p->b, at, rule);
}

/* Calls are numbered in order: a rule that is entered with how many there were spells the next one's number. */
static neap_status number_rule(plan *p, int64_t first) {
    NEAP_TRY(neap_gbuild_loop(p->b, (neap_gloop){.max = CALLS_MAX}, &p->calls));
    NEAP_TRY(neap_gbuild_state(p->b, &p->digits));
    for (uint8_t i = 0; i < CALLS_MAX; i++) {
        char digits[24];
        uint32_t at;
        NEAP_TRY(neap_gbuild_state(p->b, &at));
        NEAP_TRY(neap_gbuild_edge(p->b, p->digits, (neap_gedge){NEAP_GE_EMPTY, i, i, NEAP_GE_IS, at, 0}));
        snprintf(digits, sizeof digits, "%lld", (long long)(first + i));
        NEAP_TRY(text(p, &at, digits));
        NEAP_TRY(neap_gbuild_empty(p->b, at, NEAP_GSTATE_END));
    }
    return NEAP_OK;
}

static neap_status call_number(plan *p, uint32_t *at) {
    uint32_t to;
    NEAP_TRY(neap_gbuild_state(p->b, &to));
    NEAP_TRY(neap_gbuild_edge(p->b, *at, (neap_gedge){NEAP_GE_CALL, 0, 0, NEAP_GE_KEEP, to, p->digits}));
    *at = to;
    return NEAP_OK;
}

/* Behind a call: another one from `begin` on, or what follows at *at. */
static neap_status next_call(plan *p, uint32_t *at, uint32_t begin) {
    uint32_t to;
    if (!p->parallel) return NEAP_OK;
    NEAP_TRY(neap_gbuild_state(p->b, &to));
    NEAP_TRY(neap_gbuild_edge(p->b, *at, (neap_gedge){NEAP_GE_EMPTY, 0, 0, NEAP_GE_INC, to, p->calls}));
    NEAP_TRY(neap_gbuild_edge(p->b, to, (neap_gedge){NEAP_GE_EMPTY, 0, 0, NEAP_GE_MORE, begin, p->calls}));
    *at = to;
    return NEAP_OK;
}

/* ------------------------------------------------------------- K3 ---------------------------- */

static neap_status xtml_tag(plan *p, uint32_t *at, int32_t kind, int32_t sep, const char *name) {
    NEAP_TRY(neap_gbuild_token(p->b, at, kind));
    NEAP_TRY(text(p, at, name));
    return neap_gbuild_token(p->b, at, sep);
}

static neap_status xtml_call(plan *p, neap_gtags g, const tool *x, uint32_t from, uint32_t to) {
    uint32_t at = from, rule, parameters = parameters_of(p, x);
    for (size_t i = 0; i < x->name.n; i++) {
        char c = x->name.p[i], one[2] = {c, 0};
        NEAP_TRY(text(p, &at, c == '&' ? "&amp;" : c == '"' ? "&quot;" : one));
    }
    NEAP_TRY(text(p, &at, "\" index=\""));
    NEAP_TRY(call_number(p, &at));
    NEAP_TRY(text(p, &at, "\""));
    NEAP_TRY(neap_gbuild_token(p->b, &at, g.sep));
    NEAP_TRY(neap_gschema_root(p->schemas, parameters));
    NEAP_TRY(neap_gschema_arguments(p->schemas, parameters, g, &rule));
    NEAP_TRY(neap_gbuild_call(p->b, &at, rule));
    return neap_gbuild_empty(p->b, at, to);
}

/* From behind the response on; *at becomes the place behind the tools. */
static neap_status xtml_tools(plan *p, neap_gtags g, uint32_t *at) {
    uint32_t call, name, named;
    NEAP_TRY(number_rule(p, 1));
    NEAP_TRY(xtml_tag(p, at, g.open, g.sep, "tools"));
    NEAP_TRY(neap_gbuild_state(p->b, &call));
    NEAP_TRY(neap_gbuild_empty(p->b, *at, call));
    name = call;
    NEAP_TRY(neap_gbuild_token(p->b, &name, g.open));
    NEAP_TRY(text(p, &name, "call tool=\""));
    NEAP_TRY(neap_gbuild_state(p->b, &named));
    for (uint32_t i = 0; i < p->n_tools; i++) NEAP_TRY(xtml_call(p, g, &p->tools[i], name, named));
    NEAP_TRY(xtml_tag(p, &named, g.close, g.sep, "call"));
    NEAP_TRY(next_call(p, &named, call));
    NEAP_TRY(xtml_tag(p, &named, g.close, g.sep, "tools"));
    *at = named;
    return NEAP_OK;
}

static neap_status xtml(plan *p, uint32_t start) {
    neap_gtags g;
    uint32_t at = start, response, before_tools, before_end;
    NEAP_TRY(control(p, "<|open|>", &g.open));
    NEAP_TRY(control(p, "<|close|>", &g.close));
    NEAP_TRY(control(p, "<|sep|>", &g.sep));
    bool opened = p->r->generation_prompt, thinking = p->r->thinking;
    if (!opened && thinking) NEAP_TRY(xtml_tag(p, &at, g.open, g.sep, "think"));
    if (thinking) {
        NEAP_TRY(free_text(p, &at));
        NEAP_TRY(xtml_tag(p, &at, g.close, g.sep, "think"));
    }
    if (!opened || thinking) NEAP_TRY(xtml_tag(p, &at, g.open, g.sep, "response"));
    response = at;
    NEAP_TRY(content(p, &at));
    NEAP_TRY(xtml_tag(p, &at, g.close, g.sep, "response"));
    before_tools = at;
    NEAP_TRY(neap_gbuild_state(p->b, &before_end));
    if (!p->must_call) NEAP_TRY(neap_gbuild_empty(p->b, at, before_end));
    if (p->n_tools > 0) {
        if (p->r->answer != NEAP_ANSWER_TEXT) { /* or no content, and calls */
            NEAP_TRY(neap_gbuild_state(p->b, &before_tools));
            NEAP_TRY(neap_gbuild_empty(p->b, at, before_tools));
            NEAP_TRY(xtml_tag(p, &response, g.close, g.sep, "response"));
            NEAP_TRY(neap_gbuild_empty(p->b, response, before_tools));
        }
        NEAP_TRY(xtml_tools(p, g, &before_tools));
        NEAP_TRY(neap_gbuild_empty(p->b, before_tools, before_end));
    }
    NEAP_TRY(xtml_tag(p, &before_end, g.close, g.sep, "message"));
    return neap_gbuild_empty(p->b, before_end, NEAP_GSTATE_END);
}

/* ------------------------------------------------------------- markers ----------------------- */

static neap_status markers_tools(plan *p, uint32_t *at) {
    int32_t section, section_end, call, arguments, call_end;
    uint32_t begin, name, named, rule;
    NEAP_TRY(control(p, "<|tool_calls_section_begin|>", &section));
    NEAP_TRY(control(p, "<|tool_calls_section_end|>", &section_end));
    NEAP_TRY(control(p, "<|tool_call_begin|>", &call));
    NEAP_TRY(control(p, "<|tool_call_argument_begin|>", &arguments));
    NEAP_TRY(control(p, "<|tool_call_end|>", &call_end));
    NEAP_TRY(number_rule(p, neap_chat_next_number(p->r)));
    NEAP_TRY(neap_gbuild_token(p->b, at, section));
    NEAP_TRY(neap_gbuild_state(p->b, &begin));
    NEAP_TRY(neap_gbuild_empty(p->b, *at, begin));
    name = begin;
    NEAP_TRY(neap_gbuild_token(p->b, &name, call));
    NEAP_TRY(text(p, &name, "functions."));
    NEAP_TRY(neap_gbuild_state(p->b, &named));
    for (uint32_t i = 0; i < p->n_tools; i++) {
        const tool *x = &p->tools[i];
        uint32_t one = name, parameters = parameters_of(p, x);
        NEAP_TRY(neap_gbuild_text(p->b, &one, x->name.p, x->name.n));
        NEAP_TRY(text(p, &one, ":"));
        NEAP_TRY(call_number(p, &one));
        NEAP_TRY(neap_gbuild_token(p->b, &one, arguments));
        NEAP_TRY(neap_gschema_root(p->schemas, parameters));
        NEAP_TRY(neap_gschema_value(p->schemas, parameters, true, &rule));
        NEAP_TRY(neap_gbuild_call(p->b, &one, rule));
        NEAP_TRY(neap_gbuild_empty(p->b, one, named));
    }
    NEAP_TRY(neap_gbuild_token(p->b, &named, call_end));
    NEAP_TRY(next_call(p, &named, begin));
    NEAP_TRY(neap_gbuild_token(p->b, &named, section_end));
    *at = named;
    return NEAP_OK;
}

static neap_status markers(plan *p, uint32_t start) {
    uint32_t at = start, answer, end;
    NEAP_TRY(neap_gbuild_state(p->b, &answer));
    NEAP_TRY(neap_gbuild_empty(p->b, start, answer));
    int32_t think = neap_special_find(p->t, "<think>", 7), think_end = neap_special_find(p->t, "</think>", 8);
    if (think >= 0 && think_end >= 0) {
        NEAP_TRY(neap_gbuild_token(p->b, &at, p->t->vocab.n + think));
        NEAP_TRY(free_text(p, &at));
        NEAP_TRY(neap_gbuild_token(p->b, &at, p->t->vocab.n + think_end));
        NEAP_TRY(neap_gbuild_empty(p->b, at, answer));
    }
    at = answer;
    NEAP_TRY(content(p, &at));
    end = at;
    if (!p->must_call) NEAP_TRY(neap_gbuild_empty(p->b, end, NEAP_GSTATE_END));
    if (p->n_tools == 0) return NEAP_OK;
    if (p->r->answer != NEAP_ANSWER_TEXT) {
        NEAP_TRY(neap_gbuild_state(p->b, &at));
        NEAP_TRY(neap_gbuild_empty(p->b, end, at));
        NEAP_TRY(neap_gbuild_empty(p->b, answer, at));
    }
    NEAP_TRY(markers_tools(p, &at));
    return neap_gbuild_empty(p->b, at, NEAP_GSTATE_END);
}

/* ------------------------------------------------------------- compiling --------------------- */

static neap_status finish(neap_gbuild *b, neap_gschema *schemas, const neap_tokenizer *t, uint32_t start,
                          neap_grammar **out) {
    neap_arena *arena = NULL;
    neap_grammar *g = NULL;
    NEAP_TRY(neap_gschema_compile(schemas));
    NEAP_TRY(neap_arena_create(&arena, "grammar"));
    neap_status status = neap_arena_array(arena, 1, sizeof *g, (void **)&g);
    if (status == NEAP_OK) {
        g->arena = arena;
        g->t = t;
        g->depth_max = (uint32_t)b->limits->depth_max;
        g->end = -1;
        status = neap_gbuild_finish(b, g, start);
    }
    if (status == NEAP_OK && g->height[start] > g->depth_max)
        status =
            neap_fail(NEAP_INVALID_ARGUMENT, "no answer of at most %d levels can satisfy the schema", g->depth_max);
    if (status != NEAP_OK) {
        neap_arena_destroy(arena);
        return status;
    }
    *out = g;
    return NEAP_OK;
}

static neap_status compile_chat(const neap_tokenizer *t, const neap_chat_request *r, neap_gbuild *b,
                                neap_grammar **out) {
    plan p = {.t = t, .r = r, .b = b};
    neap_status status = read_plan(&p);
    if (status == NEAP_OK && p.constrained) {
        uint32_t start;
        NEAP_TRY_GOTO(check_source(&p));
        if (t->chat == NEAP_CHAT_NONE)
            NEAP_FAIL_GOTO(NEAP_UNSUPPORTED, "this tokenizer has the special tokens of no known chat format");
        NEAP_TRY_GOTO(neap_gschema_create(&p.schemas, b, (neap_jtree *)(uintptr_t)&r->tree));
        NEAP_TRY_GOTO(neap_gbuild_state(b, &start));
        NEAP_TRY_GOTO(t->chat == NEAP_CHAT_XTML ? xtml(&p, start) : markers(&p, start));
        NEAP_TRY_GOTO(finish(b, p.schemas, t, start, out));
        bool is_xtml = t->chat == NEAP_CHAT_XTML;
        status = control(&p, is_xtml ? "<|end_of_msg|>" : "<|im_end|>", &(*out)->end);
    }
fail:
    neap_gschema_destroy(p.schemas);
    neap_mem_free(p.tools);
    return status;
}

/* {"schema": SCHEMA} or {"json_object": true}: the whole answer, without chat format. */
static neap_status compile_bare(const neap_tokenizer *t, neap_jtree *tree, uint32_t schema, neap_gbuild *b,
                                neap_grammar **out) {
    neap_gschema *schemas = NULL;
    uint32_t start;
    size_t n = source_bytes(tree, schema);
    NEAP_CHECK(n <= b->limits->source_bytes_max, NEAP_LIMIT, "the schema has %zu bytes, at most %zu are allowed", n,
               b->limits->source_bytes_max);
    neap_status status = neap_gschema_create(&schemas, b, tree);
    if (status == NEAP_OK) status = neap_gschema_root(schemas, schema);
    if (status == NEAP_OK) status = neap_gschema_value(schemas, schema, schema == NEAP_J_NONE, &start);
    if (status == NEAP_OK) status = finish(b, schemas, t, start, out);
    neap_gschema_destroy(schemas);
    return status;
}

static neap_status compile(const neap_tokenizer *t, const char *json, size_t n, neap_gbuild *b, neap_grammar **out) {
    neap_jtree tree = {0};
    NEAP_CHECK(n <= PARSE_MAX, NEAP_LIMIT, "the request has %zu bytes, at most %d are allowed", n, PARSE_MAX);
    neap_status status = neap_jtree_parse(&tree, json, n, NEAP_J_STRICT);
    if (status != NEAP_OK) return neap_fail_prefix(status, "the request");
    uint32_t schema = neap_jtree_member(&tree, NEAP_J_ROOT, "schema");
    uint32_t object = neap_jtree_member(&tree, NEAP_J_ROOT, "json_object");
    bool bare = neap_jtree_member(&tree, NEAP_J_ROOT, "messages") == NEAP_J_NONE;
    if (bare && schema != NEAP_J_NONE)
        status = compile_bare(t, &tree, schema, b, out);
    else if (bare && object != NEAP_J_NONE && neap_jtree_kind(&tree, object) == NEAP_J_TRUE)
        status = compile_bare(t, &tree, NEAP_J_NONE, b, out);
    neap_jtree_free(&tree);
    if (*out != NULL || status != NEAP_OK || (bare && schema != NEAP_J_NONE)) return status;
    neap_chat_request r = {0};
    NEAP_TRY(neap_chat_request_read(&r, json, n));
    status = compile_chat(t, &r, b, out);
    neap_chat_request_free(&r);
    return status;
}

static neap_status check_limits(neap_grammar_limits *l, const neap_grammar_limits *given) {
    neap_grammar_limits_init(l);
    if (given == NULL) return NEAP_OK;
    NEAP_CHECK(given->struct_size == sizeof *l, NEAP_INVALID_ARGUMENT,
               "neap_grammar_limits: struct_size is %zu, not %zu; call neap_grammar_limits_init", given->struct_size,
               sizeof *l);
    *l = *given;
    NEAP_CHECK(l->states_max > 0 && l->states_max <= 1000000, NEAP_INVALID_ARGUMENT,
               "neap_grammar_limits.states_max: %d is outside 1 .. 1000000", l->states_max);
    NEAP_CHECK(l->depth_max > 0 && l->depth_max <= 1000, NEAP_INVALID_ARGUMENT,
               "neap_grammar_limits.depth_max: %d is outside 1 .. 1000", l->depth_max);
    NEAP_CHECK(l->milliseconds > 0 && l->milliseconds <= 3600000, NEAP_INVALID_ARGUMENT,
               "neap_grammar_limits.milliseconds: %d is outside 1 .. 3600000", l->milliseconds);
    return NEAP_OK;
}

neap_status neap_grammar_create(neap_grammar **out, const neap_tokenizer *t, const char *json, size_t json_bytes,
                                const neap_grammar_limits *limits) {
    NEAP_CHECK(out && t && json, NEAP_INVALID_ARGUMENT, "neap_grammar_create: a required argument is NULL");
    *out = NULL;
    neap_grammar_limits l;
    NEAP_TRY(check_limits(&l, limits));
    neap_gbuild b;
    neap_grammar *g = NULL;
    neap_status status = neap_gbuild_init(&b, &l);
    if (status == NEAP_OK) status = compile(t, json, json_bytes, &b, &g);
    neap_gbuild_free(&b);
    if (status == NEAP_OK && g != NULL) {
        status = neap_vocab_trie_get(&g->vocab, t);
        if (status == NEAP_OK) g->n_words = g->vocab->n_words;
        if (status == NEAP_OK && t->n_stop == 0)
            status = neap_fail(NEAP_UNSUPPORTED, "the tokenizer has no stop token that could end a constrained answer");
    }
    if (status != NEAP_OK) {
        neap_grammar_destroy(g);
        return status;
    }
    *out = g;
    return NEAP_OK;
}

void neap_grammar_destroy(neap_grammar *g) {
    if (g != NULL) neap_arena_destroy(g->arena);
}
