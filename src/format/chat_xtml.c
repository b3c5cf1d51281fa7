/* The prompt of Kimi K3 ("XTML").
 *
 *   open(tag, attributes) = <|open|> tag { ' ' key '="' value '"' } <|sep|>      close(tag) = <|close|> tag <|sep|>
 *
 * Order: tools, thinking effort, messages, tool choice, response format, generation prompt. Tag, ' ' key, '="',
 * value and '"' are separate segments, so merges never cross them; attribute values escape & and ". An assistant
 * message holds think (in thinking mode, even when empty), response and tools. Arguments of a call are one block
 * per member, strings raw and other values as JSON; arguments that are no JSON are one json block. Results that
 * follow each other are brought into the order of the calls they answer; if one of them answers none they stay.
 *
 * Called by chat.c. Source: tokenizer and chat notes, section 5. */
#include <stdio.h>

#include "format/chat.h"
#include "format/utf8.h"

typedef struct writer {
    neap_segments *out;
    neap_chat_request *r;
    const neap_chat_texts *texts;
    neap_text scratch; /* escaped values, bodies */
} writer;

static neap_status attribute(writer *w, const char *key, const char *value, size_t n) {
    char lead[32];
    snprintf(lead, sizeof lead, " %s", key);
    NEAP_TRY(neap_segment_str(w->out, lead));
    NEAP_TRY(neap_segment_str(w->out, "=\""));
    w->scratch.n = 0;
    for (size_t i = 0; i < n; i++) {
        if (value[i] == '&')
            NEAP_TRY(neap_text_str(&w->scratch, "&amp;"));
        else if (value[i] == '"')
            NEAP_TRY(neap_text_str(&w->scratch, "&quot;"));
        else
            NEAP_TRY(neap_text_add(&w->scratch, value + i, 1));
    }
    NEAP_TRY(neap_segment_text(w->out, w->scratch.p, w->scratch.n));
    return neap_segment_str(w->out, "\"");
}

static neap_status attribute_str(writer *w, const char *key, const char *value) {
    return attribute(w, key, value, strlen(value));
}

static neap_status attribute_number(writer *w, const char *key, size_t value) {
    char text[24];
    snprintf(text, sizeof text, "%zu", value);
    return attribute_str(w, key, text);
}

/* An opening tag is begun, gets its attributes, and ends with <|sep|>. */
static neap_status begin_tag(writer *w, const char *tag) {
    NEAP_TRY(neap_segment_special(w->out, "<|open|>"));
    return neap_segment_str(w->out, tag);
}

static neap_status end_tag(writer *w) { return neap_segment_special(w->out, "<|sep|>"); }

static neap_status open_tag(writer *w, const char *tag) {
    NEAP_TRY(begin_tag(w, tag));
    return end_tag(w);
}

static neap_status close_tag(writer *w, const char *tag) {
    NEAP_TRY(neap_segment_special(w->out, "<|close|>"));
    NEAP_TRY(neap_segment_str(w->out, tag));
    return end_tag(w);
}

static neap_status begin_message(writer *w, const char *role) {
    NEAP_TRY(begin_tag(w, "message"));
    return attribute_str(w, "role", role);
}

static neap_status close_message(writer *w) {
    NEAP_TRY(close_tag(w, "message"));
    NEAP_TRY(neap_segment_special(w->out, "<|end_of_msg|>"));
    return neap_segment_mark(w->out);
}

/* ------------------------------------------------------------- the fixed messages ------------ */

static neap_status need_text(const writer *w, neap_chat_text which, const char **text) {
    *text = w->texts->text[which];
    NEAP_CHECK(*text != NULL, NEAP_UNSUPPORTED,
               "this request needs the fixed sentence \"%s\", which the model directory does not have: add "
               "encoding_texts.json with it (or the vendor's encoding_k3.py)",
               neap_chat_text_keys[which]);
    return NEAP_OK;
}

/* A system message of the renderer's own; the body is w->scratch, stripped when told so. */
static neap_status system_message(writer *w, const char *type, neap_text body, bool strip) {
    NEAP_TRY(begin_message(w, "system"));
    NEAP_TRY(attribute_str(w, "type", type));
    NEAP_TRY(end_tag(w));
    const char *p = body.p;
    size_t n = body.n;
    while (strip && n > 0 && strchr(" \t\r\n\v\f", p[n - 1])) n--;
    while (strip && n > 0 && strchr(" \t\r\n\v\f", p[0])) p++, n--;
    NEAP_TRY(neap_segment_text(w->out, p, n));
    return close_message(w);
}

static neap_status tool_declaration(writer *w, uint32_t tools, bool further) {
    const char *text;
    neap_text body = {0};
    NEAP_TRY(need_text(w, further ? NEAP_TEXT_MORE_TOOLS : NEAP_TEXT_TOOLS, &text));
    neap_status status = neap_text_str(&body, text);
    if (status == NEAP_OK) status = neap_text_str(&body, "\n\n```json\n");
    if (status == NEAP_OK) status = neap_jtree_write(&w->r->tree, tools, NEAP_J_COMPACT_SORTED, &body);
    if (status == NEAP_OK) status = neap_text_str(&body, "\n```");
    if (status == NEAP_OK) status = system_message(w, "tool-declare", body, false);
    neap_text_free(&body);
    return status;
}

/* The sentence names the effort in place of {effort}; one without the field ends with it. */
static neap_status effort_message(writer *w) {
    const char *text;
    neap_text body = {0};
    NEAP_TRY(need_text(w, NEAP_TEXT_EFFORT, &text));
    const char *field = strstr(text, "{effort}"), *end = text + strlen(text);
    neap_status status = neap_text_add(&body, text, (size_t)((field ? field : end) - text));
    if (status == NEAP_OK && !field) status = neap_text_str(&body, "`thinking_effort=");
    if (status == NEAP_OK) status = neap_text_add(&body, w->r->effort.p, w->r->effort.n);
    if (status == NEAP_OK) status = neap_text_str(&body, field ? field + strlen("{effort}") : "`.");
    if (status == NEAP_OK) status = system_message(w, "thinking-effort", body, true);
    neap_text_free(&body);
    return status;
}

static neap_status plain_message(writer *w, const char *type, neap_chat_text which) {
    const char *text;
    neap_text body = {0};
    NEAP_TRY(need_text(w, which, &text));
    neap_status status = neap_text_str(&body, text);
    if (status == NEAP_OK) status = system_message(w, type, body, true);
    neap_text_free(&body);
    return status;
}

static neap_status schema_message(writer *w) {
    const char *text;
    neap_text body = {0};
    NEAP_TRY(need_text(w, NEAP_TEXT_JSON_SCHEMA, &text));
    neap_status status = neap_text_str(&body, text);
    if (status == NEAP_OK) status = neap_text_str(&body, "```json\n");
    if (status == NEAP_OK) status = neap_jtree_write(&w->r->tree, w->r->schema, NEAP_J_COMPACT_SORTED, &body);
    if (status == NEAP_OK) status = neap_text_str(&body, "\n```");
    if (status == NEAP_OK) status = system_message(w, "response-format", body, true);
    neap_text_free(&body);
    return status;
}

/* ------------------------------------------------------------- messages ---------------------- */

static const char *type_name(neap_jkind kind) {
    switch (kind) {
    case NEAP_J_NULL: return "null";
    case NEAP_J_FALSE:
    case NEAP_J_TRUE: return "boolean";
    case NEAP_J_NUMBER: return "number";
    case NEAP_J_STRING: return "string";
    case NEAP_J_ARRAY: return "array";
    case NEAP_J_OBJECT: return "object";
    }
    return "null";
}

static neap_status argument_blocks(writer *w, neap_jtree *tree, uint32_t object) {
    for (uint32_t m = tree->nodes[object].first; m != NEAP_J_NONE; m = tree->nodes[m].next) {
        neap_jkind kind = neap_jtree_kind(tree, m);
        NEAP_TRY(begin_tag(w, "argument"));
        NEAP_TRY(attribute(w, "key", tree->pool + tree->nodes[m].key, tree->nodes[m].key_bytes));
        NEAP_TRY(attribute_str(w, "type", type_name(kind)));
        NEAP_TRY(end_tag(w));
        if (kind == NEAP_J_STRING) {
            size_t n;
            const char *p = neap_jtree_string(tree, m, &n);
            NEAP_TRY(neap_segment_text(w->out, p, n));
        } else {
            w->scratch.n = 0;
            NEAP_TRY(neap_jtree_write(tree, m, NEAP_J_SPACED, &w->scratch));
            NEAP_TRY(neap_segment_text(w->out, w->scratch.p, w->scratch.n));
        }
        NEAP_TRY(close_tag(w, "argument"));
    }
    return NEAP_OK;
}

/* Arguments that are not JSON are shown as they are. */
static neap_status json_block(writer *w, const char *p, size_t n) {
    NEAP_TRY(begin_tag(w, "json"));
    NEAP_TRY(attribute_str(w, "type", "object"));
    NEAP_TRY(end_tag(w));
    NEAP_TRY(neap_segment_text(w->out, p, n));
    return close_tag(w, "json");
}

static neap_status arguments(writer *w, const neap_chat_message *m, size_t i_call) {
    uint32_t node = w->r->calls[m->calls + i_call].arguments;
    if (node == NEAP_J_NONE) return NEAP_OK;
    if (neap_jtree_kind(&w->r->tree, node) == NEAP_J_OBJECT) return argument_blocks(w, &w->r->tree, node);
    size_t n;
    const char *p = neap_jtree_string(&w->r->tree, node, &n);
    if (neap_chat_is_blank(p, n)) return NEAP_OK;
    neap_jtree tree = {0};
    neap_status status = neap_jtree_parse(&tree, p, n, NEAP_J_PYTHON);
    if (status == NEAP_INVALID_ARGUMENT) return json_block(w, p, n);
    if (status != NEAP_OK)
        return neap_fail_prefix(status, "messages[%zu].tool_calls[%zu].function.arguments", m->index, i_call);
    if (neap_jtree_kind(&tree, NEAP_J_ROOT) != NEAP_J_OBJECT)
        status = neap_fail(NEAP_INVALID_ARGUMENT,
                           "messages[%zu].tool_calls[%zu].function.arguments: must be a JSON object", m->index, i_call);
    else
        status = argument_blocks(w, &tree, NEAP_J_ROOT);
    neap_jtree_free(&tree);
    return status;
}

static neap_status calls(writer *w, const neap_chat_message *m) {
    if (m->n_calls == 0) return NEAP_OK;
    NEAP_TRY(open_tag(w, "tools"));
    for (size_t i = 0; i < m->n_calls; i++) {
        neap_chat_string name = w->r->calls[m->calls + i].name;
        NEAP_TRY(begin_tag(w, "call"));
        NEAP_TRY(attribute(w, "tool", name.p, name.n));
        NEAP_TRY(attribute_number(w, "index", i + 1));
        NEAP_TRY(end_tag(w));
        NEAP_TRY(arguments(w, m, i));
        NEAP_TRY(close_tag(w, "call"));
    }
    return close_tag(w, "tools");
}

static neap_status assistant(writer *w, const neap_chat_message *m) {
    if (w->r->thinking) {
        NEAP_TRY(open_tag(w, "think"));
        if (m->reasoning != NEAP_J_NONE) {
            size_t n;
            const char *p = neap_jtree_string(&w->r->tree, m->reasoning, &n);
            if (!neap_chat_is_blank(p, n)) NEAP_TRY(neap_segment_text(w->out, p, n));
        }
        NEAP_TRY(close_tag(w, "think"));
    }
    NEAP_TRY(open_tag(w, "response"));
    NEAP_TRY(neap_segment_content(w->out, w->r, m->content));
    NEAP_TRY(close_tag(w, "response"));
    return calls(w, m);
}

static neap_status named_message(writer *w, const neap_chat_message *m, const char *role) {
    NEAP_TRY(begin_message(w, role));
    if (m->name.n > 0) NEAP_TRY(attribute(w, "name", m->name.p, m->name.n));
    NEAP_TRY(end_tag(w));
    if (m->role == NEAP_ROLE_ASSISTANT)
        NEAP_TRY(assistant(w, m));
    else
        NEAP_TRY(neap_segment_content(w->out, w->r, m->content));
    return close_message(w);
}

/* One result; index counts the results since the latest assistant message, from 1. */
static neap_status result(writer *w, const neap_chat_message *m, const neap_chat_message *asked, neap_chat_string tool,
                          size_t index) {
    if (tool.p == NULL && asked != NULL && index <= asked->n_calls) tool = w->r->calls[asked->calls + index - 1].name;
    NEAP_CHECK(tool.p != NULL, NEAP_INVALID_ARGUMENT,
               "messages[%zu].tool_call_id: this result answers no call of the assistant message before it, and it "
               "names no tool",
               m->index);
    NEAP_TRY(begin_message(w, "tool"));
    NEAP_TRY(attribute(w, "tool", tool.p, tool.n));
    NEAP_TRY(attribute_number(w, "index", index));
    NEAP_TRY(end_tag(w));
    NEAP_TRY(neap_segment_content(w->out, w->r, m->content));
    return close_message(w);
}

/* Results [from, to): in the order of the calls they answer when every one answers one. Counting by call keeps the
 * given order of results that answer the same call. */
static neap_status results(writer *w, size_t from, size_t to, const neap_chat_message *asked, size_t *index) {
    const neap_chat_message *m = w->r->messages;
    bool matched = true;
    int64_t *call = NULL;
    size_t *order = NULL, n = to - from, n_calls = asked ? asked->n_calls : 0, *at = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY_GOTO(neap_mem_alloc(n * sizeof *call, (void **)&call));
    NEAP_TRY_GOTO(neap_mem_alloc(n * sizeof *order, (void **)&order));
    NEAP_TRY_GOTO(neap_mem_alloc((n_calls + 1) * sizeof *at, (void **)&at));
    for (size_t i = 0; i < n; i++) {
        call[i] = neap_chat_find_call(w->r, asked, m[from + i].call_id);
        matched = matched && call[i] >= 0;
        order[i] = i;
    }
    if (matched) {
        for (size_t i = 0; i < n; i++) at[call[i] + 1]++;
        for (size_t c = 0; c < n_calls; c++) at[c + 1] += at[c];
        for (size_t i = 0; i < n; i++) order[at[call[i]]++] = i;
    }
    for (size_t k = 0; k < n; k++) {
        size_t i = order[k];
        neap_chat_string tool = matched ? w->r->calls[asked->calls + (size_t)call[i]].name : m[from + i].tool;
        NEAP_TRY_GOTO(result(w, &m[from + i], asked, tool, ++*index));
    }
fail:
    neap_mem_free(call);
    neap_mem_free(order);
    neap_mem_free(at);
    return status;
}

static neap_status messages(writer *w) {
    const neap_chat_message *m = w->r->messages, *asked = NULL;
    size_t index = 0;
    for (size_t i = 0; i < w->r->n_messages; i++) {
        switch (m[i].role) {
        case NEAP_ROLE_USER: NEAP_TRY(named_message(w, &m[i], "user")); break;
        case NEAP_ROLE_ASSISTANT:
            asked = &m[i];
            index = 0;
            NEAP_TRY(named_message(w, &m[i], "assistant"));
            break;
        case NEAP_ROLE_SYSTEM:
            if (m[i].tools != NEAP_J_NONE)
                NEAP_TRY(tool_declaration(w, m[i].tools, true));
            else
                NEAP_TRY(named_message(w, &m[i], "system"));
            break;
        case NEAP_ROLE_TOOL: {
            size_t to = i + 1;
            while (to < w->r->n_messages && m[to].role == NEAP_ROLE_TOOL) to++;
            NEAP_TRY(results(w, i, to, asked, &index));
            i = to - 1;
            break;
        }
        }
    }
    return NEAP_OK;
}

static neap_status prompt(writer *w) {
    neap_chat_request *r = w->r;
    if (r->tools != NEAP_J_NONE) NEAP_TRY(tool_declaration(w, r->tools, false));
    if (r->thinking && r->effort.p != NULL) NEAP_TRY(effort_message(w));
    NEAP_TRY(messages(w));
    if (r->choice == NEAP_CHOICE_REQUIRED) NEAP_TRY(plain_message(w, "tool-choice", NEAP_TEXT_CHOICE_REQUIRED));
    if (r->choice == NEAP_CHOICE_NONE) NEAP_TRY(plain_message(w, "tool-choice", NEAP_TEXT_CHOICE_NONE));
    if (r->answer == NEAP_ANSWER_JSON_OBJECT) NEAP_TRY(plain_message(w, "response-format", NEAP_TEXT_JSON_OBJECT));
    if (r->answer == NEAP_ANSWER_JSON_SCHEMA) NEAP_TRY(schema_message(w));
    if (!r->generation_prompt) return NEAP_OK;
    NEAP_TRY(begin_message(w, "assistant"));
    NEAP_TRY(end_tag(w));
    return open_tag(w, r->thinking ? "think" : "response");
}

neap_status neap_chat_render_xtml(neap_segments *out, neap_chat_request *r, const neap_chat_texts *texts) {
    writer w = {.out = out, .r = r, .texts = texts};
    neap_status status = prompt(&w);
    neap_text_free(&w.scratch);
    return status;
}
