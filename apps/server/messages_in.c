/* A request of Anthropic's messages API as the chat request that the encoder takes.
 *
 *   system                 a system message in front; messages of role system stay where they are
 *   text blocks            parts of the message's content
 *   thinking               reasoning_content; redacted_thinking holds nothing that could be read and is left out
 *   tool_use               tool_calls, with the input as it was written
 *   tool_result            a message of role tool; "Error: " in front of it with is_error
 *   tools, tool_choice     their OpenAI forms: any is required, tool is a named function
 *   thinking.budget_tokens the nearest effort: below 4096 low, below 16384 high, else max
 *   output_config          thinking effort, and a JSON Schema as response_format
 *
 * Without "thinking" the model does not think where its format can do without, as clients of that API expect.
 * Called by params.c through the table, on prep threads. Source: the Anthropic messages API as its clients send it. */
#include <stdio.h>
#include <string.h>

#include "../json_out.h"
#include "params_inner.h"

enum { PLACE_BYTES = 96, ID_BYTES_MAX = 256, LOW_BUDGET = 4096, HIGH_BUDGET = 16384 };

#define REFUSE(...) return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, __VA_ARGS__)
#define UNSUPPORTED(...) return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, __VA_ARGS__)

static int is_word(const json_t *v, const char *word) {
    return json_is_string(v) && json_string_length(v) == strlen(word) && strcmp(json_string_value(v), word) == 0;
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- checks ---- */

static int refuse_content(neap_params_reader *r, const char *place, const json_t *type) {
    char param[PLACE_BYTES + 16];
    snprintf(param, sizeof param, "%s.type", place);
    if (!json_is_string(type)) REFUSE(param, "must be a string");
    neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, param, "\"%.40s\" is not supported here, content is text",
                      json_string_value(type));
    snprintf(r->problem->code, sizeof r->problem->code, "unsupported_content");
    return -1;
}

static int check_string(neap_params_reader *r, const json_t *block, const char *place, const char *key) {
    char param[PLACE_BYTES + 32];
    snprintf(param, sizeof param, "%s.%s", place, key);
    if (!json_is_string(json_object_get(block, key))) REFUSE(param, "must be a string");
    return 0;
}

/* A string, or an array of text blocks. */
static int check_texts(neap_params_reader *r, const json_t *v, const char *place) {
    if (json_is_string(v)) return 0;
    if (!json_is_array(v)) REFUSE(place, "must be a string or an array of text blocks");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *block = json_array_get(v, i);
        char inner[PLACE_BYTES];
        snprintf(inner, sizeof inner, "%s[%zu]", place, i);
        if (!json_is_object(block)) REFUSE(inner, "must be an object");
        if (!is_word(member(block, "type"), "text")) return refuse_content(r, inner, member(block, "type"));
        if (check_string(r, block, inner, "text") != 0) return -1;
    }
    return 0;
}

static int check_use(neap_params_reader *r, const json_t *block, const char *place) {
    char param[PLACE_BYTES + 16];
    snprintf(param, sizeof param, "%s.id", place);
    if (neap_param_plain(r, member(block, "id"), param, 1, ID_BYTES_MAX) != 0) return -1;
    snprintf(param, sizeof param, "%s.name", place);
    if (neap_param_plain(r, member(block, "name"), param, 1, ID_BYTES_MAX) != 0) return -1;
    snprintf(param, sizeof param, "%s.input", place);
    if (!json_is_object(member(block, "input"))) REFUSE(param, "must be an object");
    return 0;
}

static int check_result(neap_params_reader *r, const json_t *block, const char *place) {
    char param[PLACE_BYTES + 16];
    snprintf(param, sizeof param, "%s.tool_use_id", place);
    if (neap_param_plain(r, member(block, "tool_use_id"), param, 1, ID_BYTES_MAX) != 0) return -1;
    snprintf(param, sizeof param, "%s.is_error", place);
    if (member(block, "is_error") != NULL && !json_is_boolean(member(block, "is_error")))
        REFUSE(param, "must be true or false");
    snprintf(param, sizeof param, "%s.content", place);
    return member(block, "content") != NULL ? check_texts(r, member(block, "content"), param) : 0;
}

static int check_block(neap_params_reader *r, const json_t *block, const char *place, int is_assistant) {
    const json_t *type = member(block, "type");
    if (!json_is_object(block)) REFUSE(place, "must be an object");
    if (is_word(type, "text")) return check_string(r, block, place, "text");
    if (!is_assistant && is_word(type, "tool_result")) return check_result(r, block, place);
    if (is_assistant && is_word(type, "tool_use")) return check_use(r, block, place);
    if (is_assistant && is_word(type, "thinking")) return check_string(r, block, place, "thinking");
    if (is_assistant && is_word(type, "redacted_thinking")) return 0;
    return refuse_content(r, place, type);
}

int neap_param_in_messages(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_array(v)) REFUSE(f->name, "must be an array");
    if (json_array_size(v) == 0) REFUSE(f->name, "must not be empty");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *m = json_array_get(v, i), *content = member(m, "content");
        char place[PLACE_BYTES];
        snprintf(place, sizeof place, "%s[%zu]", f->name, i);
        if (!json_is_object(m)) REFUSE(place, "must be an object");
        const json_t *role = member(m, "role");
        int is_assistant = is_word(role, "assistant"), is_system = is_word(role, "system");
        snprintf(place, sizeof place, "%s[%zu].role", f->name, i);
        if (!is_assistant && !is_system && !is_word(role, "user")) REFUSE(place, "must be user, assistant or system");
        snprintf(place, sizeof place, "%s[%zu].content", f->name, i);
        if (!json_is_string(content) && !json_is_array(content)) REFUSE(place, "must be a string or an array");
        if (is_system && check_texts(r, content, place) != 0) return -1;
        for (size_t k = 0; k < json_array_size(content) && !is_system; k++) {
            snprintf(place, sizeof place, "%s[%zu].content[%zu]", f->name, i, k);
            if (check_block(r, json_array_get(content, k), place, is_assistant) != 0) return -1;
        }
    }
    r->messages = v;
    return 0;
}

int neap_param_in_system(neap_params_reader *r, const neap_param *f, json_t *v) {
    r->system = v;
    return check_texts(r, v, f->name);
}

int neap_param_in_tools(neap_params_reader *r, const neap_param *f, json_t *v) {
    r->tools = v;
    return neap_param_tool_list(r, v, f->name, 0);
}

int neap_param_in_tool_choice(neap_params_reader *r, const neap_param *f, json_t *v) {
    const json_t *type = member(v, "type"), *alone = member(v, "disable_parallel_tool_use");
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    if (!is_word(type, "auto") && !is_word(type, "any") && !is_word(type, "tool") && !is_word(type, "none"))
        REFUSE("tool_choice.type", "must be one of auto, any, tool, none");
    if (alone != NULL && !json_is_boolean(alone))
        REFUSE("tool_choice.disable_parallel_tool_use", "must be true or false");
    if (json_is_true(alone)) r->p->parallel_calls = 0;
    r->tool_choice = v;
    return is_word(type, "tool") ? neap_param_name(r, member(v, "name"), "tool_choice.name") : 0;
}

int neap_param_in_thinking(neap_params_reader *r, const neap_param *f, json_t *v) {
    const json_t *type = member(v, "type"), *budget = member(v, "budget_tokens");
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    if (!json_is_string(type)) REFUSE("thinking.type", "must be a string");
    if (!is_word(type, "enabled") && !is_word(type, "disabled") && !is_word(type, "adaptive"))
        UNSUPPORTED("thinking.type", "only enabled, disabled and adaptive are supported");
    if (member(v, "display") != NULL && !is_word(member(v, "display"), "summarized"))
        UNSUPPORTED("thinking.display", "thinking is always shown");
    if (budget != NULL && neap_param_int(budget, 1, INT32_MAX, &r->budget_tokens) != 0)
        REFUSE("thinking.budget_tokens", "must be an integer from 1 to %d", INT32_MAX);
    return neap_param_think(r, f->name, !is_word(type, "disabled"));
}

int neap_param_in_output(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    const json_t *effort = member(v, "effort"), *format = member(v, "format");
    if (effort != NULL) {
        if (!is_word(effort, "low") && !is_word(effort, "high") && !is_word(effort, "max"))
            UNSUPPORTED("output_config.effort", "only low, high and max are supported");
        r->effort = json_string_value(effort);
    }
    if (format == NULL) return 0;
    if (!json_is_object(format)) REFUSE("output_config.format", "must be an object");
    if (!is_word(member(format, "type"), "json_schema")) REFUSE("output_config.format.type", "must be \"json_schema\"");
    if (!json_is_object(member(format, "schema"))) REFUSE("output_config.format.schema", "must be a JSON Schema");
    r->response_format = v;
    r->p->is_constrained = 1;
    return 0;
}

/* ---- the chat request ---- */

static void add_value(neap_cli_text *out, const char *key, const json_t *string) {
    neap_cli_json_string(out, key, json_string_value(string), json_string_length(string));
}

/* A string, or text blocks as text parts, with something in front. */
static void add_texts(neap_cli_text *out, const char *key, const json_t *v, const char *lead) {
    if (json_is_string(v) && lead[0] == 0) {
        add_value(out, key, v);
        return;
    }
    neap_cli_json_open(out, key, '[');
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    for (size_t i = 0; i < n + (lead[0] != 0); i++) {
        int is_lead = i == 0 && lead[0] != 0;
        const json_t *text = json_is_string(v) ? v : member(json_array_get(v, i - (lead[0] != 0)), "text");
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "type", "text");
        if (is_lead)
            neap_cli_json_cstring(out, "text", lead);
        else
            add_value(out, "text", text);
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
}

static void add_result(neap_cli_text *out, const json_t *block) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "role", "tool");
    add_value(out, "tool_call_id", member(block, "tool_use_id"));
    add_texts(out, "content", member(block, "content"), json_is_true(member(block, "is_error")) ? "Error: " : "");
    neap_cli_json_close(out, '}');
}

/* Blocks first .. end - 1 that are text become a user message, if there are any. */
static void add_user(neap_cli_text *out, const json_t *content, size_t first, size_t end) {
    if (first == end) return;
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "role", "user");
    neap_cli_json_open(out, "content", '[');
    for (size_t i = first; i < end; i++) {
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "type", "text");
        add_value(out, "text", member(json_array_get(content, i), "text"));
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_close(out, '}');
}

static void add_user_blocks(neap_cli_text *out, const json_t *content) {
    size_t first = 0, n = json_array_size(content);
    for (size_t i = 0; i < n; i++) {
        if (!is_word(member(json_array_get(content, i), "type"), "tool_result")) continue;
        add_user(out, content, first, i);
        add_result(out, json_array_get(content, i));
        first = i + 1;
    }
    add_user(out, content, first, n);
}

/* All strings `key` of the blocks of one type, joined. */
static void add_joined(neap_cli_text *out, const char *name, const json_t *content, const char *type, const char *key) {
    neap_cli_text text = {0};
    int is_any = 0;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *v = member(block, key);
        if (!is_word(member(block, "type"), type)) continue;
        neap_cli_text_add(&text, json_string_value(v), json_string_length(v));
        is_any = 1;
    }
    if (is_any) neap_cli_json_string(out, name, neap_cli_text_string(&text), text.n);
    neap_cli_text_free(&text);
}

static void add_uses(neap_cli_text *out, const json_t *content, neap_raw blocks) {
    size_t at = 0, n = 0;
    neap_raw block, input;
    for (size_t i = 0; i < json_array_size(content) && neap_raw_next(blocks, &at, &block); i++) {
        const json_t *use = json_array_get(content, i);
        if (!is_word(member(use, "type"), "tool_use")) continue;
        if (n++ == 0) neap_cli_json_open(out, "tool_calls", '[');
        neap_cli_json_open(out, NULL, '{');
        add_value(out, "id", member(use, "id"));
        neap_cli_json_cstring(out, "type", "function");
        neap_cli_json_open(out, "function", '{');
        add_value(out, "name", member(use, "name"));
        if (neap_raw_member(block, "input", &input)) neap_cli_json_raw(out, "arguments", input.p, input.n);
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
    }
    if (n > 0) neap_cli_json_close(out, ']');
}

static void add_assistant(neap_cli_text *out, const json_t *content, neap_raw message) {
    neap_raw blocks = {0};
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "role", "assistant");
    add_joined(out, "reasoning_content", content, "thinking", "thinking");
    add_joined(out, "content", content, "text", "text");
    if (neap_raw_member(message, "content", &blocks)) add_uses(out, content, blocks);
    neap_cli_json_close(out, '}');
}

static void add_messages(neap_params_reader *r, neap_cli_text *out) {
    neap_raw list = {0}, message = {0};
    size_t at = 0;
    neap_raw_member(r->body, "messages", &list);
    neap_cli_json_open(out, NULL, '[');
    if (r->system != NULL) {
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "role", "system");
        add_texts(out, "content", r->system, "");
        neap_cli_json_close(out, '}');
    }
    for (size_t i = 0; i < json_array_size(r->messages) && neap_raw_next(list, &at, &message); i++) {
        const json_t *m = json_array_get(r->messages, i), *content = member(m, "content");
        if (json_is_string(content)) {
            neap_cli_json_open(out, NULL, '{');
            add_value(out, "role", member(m, "role"));
            add_value(out, "content", content);
            neap_cli_json_close(out, '}');
        } else if (is_word(member(m, "role"), "assistant")) {
            add_assistant(out, content, message);
        } else if (is_word(member(m, "role"), "system")) {
            neap_cli_json_open(out, NULL, '{');
            neap_cli_json_cstring(out, "role", "system");
            add_texts(out, "content", content, "");
            neap_cli_json_close(out, '}');
        } else {
            add_user_blocks(out, content);
        }
    }
    neap_cli_json_close(out, ']');
}

static void add_tools(neap_params_reader *r, neap_cli_text *out) {
    neap_raw list = {0}, tool, schema;
    size_t at = 0;
    if (json_array_size(r->tools) == 0) return;
    neap_raw_member(r->body, "tools", &list);
    neap_cli_json_open(out, NULL, '[');
    for (size_t i = 0; i < json_array_size(r->tools) && neap_raw_next(list, &at, &tool); i++) {
        const json_t *one = json_array_get(r->tools, i);
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "type", "function");
        neap_cli_json_open(out, "function", '{');
        add_value(out, "name", member(one, "name"));
        if (member(one, "description") != NULL) add_value(out, "description", member(one, "description"));
        if (neap_raw_member(tool, "input_schema", &schema)) neap_cli_json_raw(out, "parameters", schema.p, schema.n);
        if (member(one, "strict") != NULL) neap_cli_json_bool(out, "strict", json_is_true(member(one, "strict")));
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
}

static int add_choice(neap_params_reader *r, neap_cli_text *out) {
    const json_t *type = member(r->tool_choice, "type");
    if (r->tool_choice == NULL) return 0;
    int is_forced = is_word(type, "any") || is_word(type, "tool");
    if (is_forced && !r->p->has_tools) REFUSE("tool_choice", "asks for a call, but there are no tools");
    if (json_array_size(r->tools) == 0) return 0;
    if (is_forced) r->p->is_constrained = 1;
    if (is_word(type, "none")) r->p->has_tools = 0;
    if (!is_word(type, "tool")) {
        neap_cli_json_cstring(out, NULL, is_word(type, "any") ? "required" : json_string_value(type));
        return 0;
    }
    const char *name = json_string_value(member(r->tool_choice, "name"));
    r->p->parallel_calls = 0; /* "this tool" is one call */
    if (!neap_param_has_tool(r->tools, name, 0))
        REFUSE("tool_choice.name", "\"%s\" is not the name of one of the tools", name);
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "type", "function");
    neap_cli_json_open(out, "function", '{');
    neap_cli_json_cstring(out, "name", name);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
    return 0;
}

static void add_format(neap_params_reader *r, neap_cli_text *out) {
    neap_raw config, format, schema;
    if (r->response_format == NULL || !neap_raw_member(r->body, "output_config", &config) ||
        !neap_raw_member(config, "format", &format) || !neap_raw_member(format, "schema", &schema))
        return;
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "type", "json_schema");
    neap_cli_json_open(out, "json_schema", '{');
    neap_cli_json_cstring(out, "name", "answer");
    neap_cli_json_raw(out, "schema", schema.p, schema.n);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

static neap_raw raw_of(const neap_cli_text *t) { return (neap_raw){t->data, t->n}; }

int neap_params_messages_finish(neap_params_reader *r) {
    neap_cli_text messages = {0}, tools = {0}, choice = {0}, format = {0};
    const char *chat = r->tokenizer != NULL ? neap_chat_format(r->tokenizer) : "none";
    if (r->thinking == NEAP_THINK_UNSAID && r->s->config.cli.think < 0) r->thinking = 0;
    if (r->thinking == 1 && r->effort == NULL && r->budget_tokens > 0)
        r->effort = r->budget_tokens < LOW_BUDGET ? "low" : r->budget_tokens < HIGH_BUDGET ? "high" : "max";
    if (r->thinking == 0) r->effort = NULL; /* it is about something that does not happen */
    if (r->thinking == 1 && strcmp(chat, "xtml") != 0) UNSUPPORTED("thinking", "this model does not think");
    add_messages(r, &messages);
    add_tools(r, &tools);
    add_format(r, &format);
    int code = add_choice(r, &choice);
    neap_chat_parts parts = {raw_of(&messages), raw_of(&tools), raw_of(&choice), raw_of(&format)};
    if (code == 0) code = neap_params_chat_emit(r, &parts);
    neap_cli_text_free(&messages);
    neap_cli_text_free(&tools);
    neap_cli_text_free(&choice);
    neap_cli_text_free(&format);
    return code;
}
