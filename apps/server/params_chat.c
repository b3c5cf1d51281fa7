/* The part of a chat request that becomes the prompt: messages, tools, form of the answer, thinking.
 *
 * Values are checked in the tree and passed on as they were written, so that the model sees the client's own spelling
 * of numbers and order of members. What reaches the encoder is exactly the list in neap.h; the encoder checks once more
 * what it uses, and text in a message never becomes structure there.
 *
 * "developer" is another name of system. A conversation that ends with an assistant message is rendered as it is and a
 * new answer begins behind it. Called by params.c through the table. Source: the OpenAI chat API; Kimi's own
 * fields. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../json_out.h"
#include "params_inner.h"

enum { PLACE_BYTES = 96, ID_BYTES_MAX = 256 };

#define REFUSE(...) return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, __VA_ARGS__)
#define UNSUPPORTED(...) return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, __VA_ARGS__)

static int is_one_of(const json_t *v, const char *const *words) {
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v)) return 0;
    for (; *words != NULL; words++)
        if (strcmp(json_string_value(v), *words) == 0) return 1;
    return 0;
}

static int is_word(const json_t *v, const char *word) {
    const char *const words[] = {word, NULL};
    return is_one_of(v, words);
}

/* A member that may be null; NULL: absent. */
static const json_t *member(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- messages ---- */

static int check_content(neap_params_reader *r, const json_t *content, const char *place) {
    char param[PLACE_BYTES + 48];
    if (content == NULL || json_is_string(content)) return 0;
    snprintf(param, sizeof param, "%s.content", place);
    if (!json_is_array(content)) REFUSE(param, "must be a string, null or an array of text parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *type = json_object_get(part, "type");
        snprintf(param, sizeof param, "%s.content[%zu]", place, i);
        if (!json_is_object(part)) REFUSE(param, "must be an object");
        snprintf(param, sizeof param, "%s.content[%zu].type", place, i);
        if (!json_is_string(type)) REFUSE(param, "must be a string");
        if (!is_word(type, "text")) {
            neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, param, "\"%.40s\" is not supported, content is text",
                              json_string_value(type));
            snprintf(r->problem->code, sizeof r->problem->code, "unsupported_content");
            return -1;
        }
        snprintf(param, sizeof param, "%s.content[%zu].text", place, i);
        if (!json_is_string(json_object_get(part, "text"))) REFUSE(param, "must be a string");
    }
    return 0;
}

static int check_calls(neap_params_reader *r, const json_t *calls, const char *place) {
    char param[PLACE_BYTES + 48];
    snprintf(param, sizeof param, "%s.tool_calls", place);
    if (calls == NULL) return 0;
    if (!json_is_array(calls)) REFUSE(param, "must be an array");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *function = member(call, "function");
        snprintf(param, sizeof param, "%s.tool_calls[%zu]", place, i);
        if (!json_is_object(call)) REFUSE(param, "must be an object");
        if (member(call, "type") != NULL && !is_word(member(call, "type"), "function"))
            UNSUPPORTED(param, "only calls of type \"function\" are supported");
        snprintf(param, sizeof param, "%s.tool_calls[%zu].function", place, i);
        if (!json_is_object(function)) REFUSE(param, "must be an object");
        const json_t *arguments = member(function, "arguments");
        snprintf(param, sizeof param, "%s.tool_calls[%zu].function.name", place, i);
        if (neap_param_plain(r, member(function, "name"), param, 1, ID_BYTES_MAX) != 0) return -1;
        snprintf(param, sizeof param, "%s.tool_calls[%zu].function.arguments", place, i);
        if (arguments != NULL && !json_is_string(arguments) && !json_is_object(arguments))
            REFUSE(param, "must be a string");
        snprintf(param, sizeof param, "%s.tool_calls[%zu].id", place, i);
        if (member(call, "id") != NULL && neap_param_plain(r, member(call, "id"), param, 0, ID_BYTES_MAX) != 0)
            return -1;
    }
    return 0;
}

static int check_message(neap_params_reader *r, const json_t *m, const char *place) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    static const char *const texts[] = {"reasoning_content", "reasoning", NULL};
    char param[PLACE_BYTES];
    if (!json_is_object(m)) REFUSE(place, "must be an object");
    const json_t *role = member(m, "role");
    snprintf(param, sizeof param, "%s.role", place);
    if (role == NULL) REFUSE(param, "is required");
    if (is_word(role, "function")) UNSUPPORTED(param, "\"function\" is replaced by \"tool\"");
    if (!is_one_of(role, roles)) REFUSE(param, "must be one of system, developer, user, assistant, tool");
    if (check_content(r, member(m, "content"), place) != 0) return -1;
    for (size_t i = 0; texts[i] != NULL; i++) {
        snprintf(param, sizeof param, "%s.%s", place, texts[i]);
        if (member(m, texts[i]) != NULL && !json_is_string(member(m, texts[i]))) REFUSE(param, "must be a string");
    }
    snprintf(param, sizeof param, "%s.name", place);
    if (member(m, "name") != NULL && neap_param_name(r, member(m, "name"), param) != 0) return -1;
    snprintf(param, sizeof param, "%s.tool_call_id", place);
    if (member(m, "tool_call_id") != NULL &&
        neap_param_plain(r, member(m, "tool_call_id"), param, 0, ID_BYTES_MAX) != 0)
        return -1;
    snprintf(param, sizeof param, "%s.tools", place); /* Kimi's own: tools that are offered from here on */
    if ((is_word(role, "system") || is_word(role, "developer")) && member(m, "tools") != NULL &&
        neap_param_tool_list(r, member(m, "tools"), param, 1) != 0)
        return -1;
    snprintf(param, sizeof param, "%s.audio", place);
    if (member(m, "audio") != NULL) UNSUPPORTED(param, "content is text");
    snprintf(param, sizeof param, "%s.function_call", place);
    if (member(m, "function_call") != NULL) UNSUPPORTED(param, "replaced by tool_calls");
    return check_calls(r, member(m, "tool_calls"), place);
}

int neap_param_messages(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_array(v)) REFUSE(f->name, "must be an array");
    if (json_array_size(v) == 0) REFUSE(f->name, "must not be empty");
    for (size_t i = 0; i < json_array_size(v); i++) {
        char place[PLACE_BYTES / 2];
        snprintf(place, sizeof place, "%s[%zu]", f->name, i);
        if (check_message(r, json_array_get(v, i), place) != 0) return -1;
    }
    r->messages = v;
    return 0;
}

/* ---- tools ---- */

static const char *tool_name(const json_t *tools, size_t i, int is_wrapped) {
    const json_t *tool = json_array_get(tools, i);
    return json_string_value(json_object_get(is_wrapped ? json_object_get(tool, "function") : tool, "name"));
}

int neap_param_has_tool(const json_t *tools, const char *name, int is_wrapped) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const char *have = tool_name(tools, i, is_wrapped);
        if (have != NULL && strcmp(have, name) == 0) return 1;
    }
    return 0;
}

int neap_param_schema(neap_params_reader *r, const char *param, const json_t *schema) {
    const json_t *type = json_object_get(schema, "type");
    char inner[PLACE_BYTES * 2];
    if (!json_is_object(schema)) REFUSE(param, "must be an object, a JSON Schema");
    snprintf(inner, sizeof inner, "%s.type", param);
    if (type != NULL && !is_word(type, "object")) REFUSE(inner, "must be \"object\", because arguments have names");
    return 0;
}

static int check_tool(neap_params_reader *r, const json_t *tool, const char *place, int is_wrapped) {
    const json_t *function = is_wrapped ? member(tool, "function") : tool;
    const char *inside = is_wrapped ? ".function" : "", *key = is_wrapped ? "parameters" : "input_schema";
    char param[PLACE_BYTES * 2];
    if (!json_is_object(tool)) REFUSE(place, "must be an object");
    snprintf(param, sizeof param, "%s.type", place);
    if (is_wrapped && member(tool, "type") == NULL) REFUSE(param, "is required");
    if (member(tool, "type") != NULL && !is_word(member(tool, "type"), is_wrapped ? "function" : "custom"))
        UNSUPPORTED(param, "only \"%s\" is supported", is_wrapped ? "function" : "custom");
    snprintf(param, sizeof param, "%s.function", place);
    if (!json_is_object(function)) REFUSE(param, "must be an object");
    snprintf(param, sizeof param, "%s%s.name", place, inside);
    if (neap_param_name(r, member(function, "name"), param) != 0) return -1;
    snprintf(param, sizeof param, "%s%s.description", place, inside);
    if (member(function, "description") != NULL && !json_is_string(member(function, "description")))
        REFUSE(param, "must be a string");
    snprintf(param, sizeof param, "%s%s.%s", place, inside, key);
    if (!is_wrapped && member(function, key) == NULL) REFUSE(param, "is required");
    if (member(function, key) != NULL && neap_param_schema(r, param, member(function, key)) != 0) return -1;
    snprintf(param, sizeof param, "%s%s.strict", place, inside);
    if (member(function, "strict") != NULL && !json_is_boolean(member(function, "strict")))
        REFUSE(param, "must be true or false");
    snprintf(param, sizeof param, "%s.defer_loading", place);
    if (json_is_true(member(tool, "defer_loading"))) UNSUPPORTED(param, "all tools stand in the prompt");
    if (json_is_true(member(function, "strict"))) r->p->is_constrained = 1;
    return 0;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

int neap_param_tool_list(neap_params_reader *r, const json_t *tools, const char *param, int is_wrapped) {
    size_t n = json_array_size(tools);
    if (!json_is_array(tools)) REFUSE(param, "must be an array");
    if (n > (size_t)r->limits->tools)
        REFUSE(param, "%zu tools, at most %lld are allowed", n, (long long)r->limits->tools);
    if (n == 0) return 0;
    const char **names = neap_cli_alloc(n, sizeof *names);
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) {
        char place[PLACE_BYTES];
        snprintf(place, sizeof place, "%s[%zu]", param, i);
        code = check_tool(r, json_array_get(tools, i), place, is_wrapped);
        if (code == 0) names[i] = tool_name(tools, i, is_wrapped);
    }
    if (code == 0) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n && code == 0; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code = neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "two of them have the name \"%s\"", names[i]);
    free(names);
    if (code == 0) r->p->has_tools = 1;
    return code;
}

int neap_param_tools(neap_params_reader *r, const neap_param *f, json_t *v) {
    r->tools = v;
    return neap_param_tool_list(r, v, f->name, 1);
}

int neap_param_tool_choice(neap_params_reader *r, const neap_param *f, json_t *v) {
    static const char *const words[] = {"none", "auto", "required", NULL};
    r->tool_choice = v;
    if (is_one_of(v, words)) return 0;
    if (!json_is_object(v)) REFUSE(f->name, "must be \"none\", \"auto\", \"required\" or a function");
    if (!json_is_string(json_object_get(v, "type"))) REFUSE("tool_choice.type", "must be \"function\"");
    if (!is_word(json_object_get(v, "type"), "function"))
        UNSUPPORTED("tool_choice.type", "only \"function\" is supported");
    return neap_param_name(r, json_object_get(json_object_get(v, "function"), "name"), "tool_choice.function.name");
}

/* Now that the tools are known. */
static int finish_choice(neap_params_reader *r) {
    const json_t *v = r->tool_choice;
    int is_forced = v != NULL && (json_is_object(v) || is_word(v, "required"));
    if (!is_forced) {
        if (is_word(v, "none")) r->p->has_tools = 0;
        return 0;
    }
    if (!r->p->has_tools) REFUSE("tool_choice", "asks for a call, but there are no tools");
    r->p->is_constrained = 1;
    const char *name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    int is_known = name == NULL || neap_param_has_tool(r->tools, name, 1);
    for (size_t i = 0; i < json_array_size(r->messages) && !is_known; i++)
        is_known = neap_param_has_tool(json_object_get(json_array_get(r->messages, i), "tools"), name, 1);
    if (!is_known) REFUSE("tool_choice.function.name", "\"%s\" is not the name of one of the tools", name);
    return 0;
}

/* ---- form of the answer ---- */

int neap_param_response_format(neap_params_reader *r, const neap_param *f, json_t *v) {
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    const json_t *type = member(v, "type");
    if (!is_one_of(type, types)) REFUSE("response_format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
    if (is_word(type, "text")) return 0;
    r->response_format = v;
    r->p->is_constrained = 1;
    if (is_word(type, "json_object")) return 0;
    const json_t *inner = member(v, "json_schema");
    if (!json_is_object(inner)) REFUSE("response_format.json_schema", "must be an object");
    if (member(inner, "name") != NULL &&
        neap_param_name(r, member(inner, "name"), "response_format.json_schema.name") != 0)
        return -1;
    if (!json_is_object(member(inner, "schema")))
        REFUSE("response_format.json_schema.schema", "must be an object, a JSON Schema");
    if (member(inner, "strict") != NULL && !json_is_boolean(member(inner, "strict")))
        REFUSE("response_format.json_schema.strict", "must be true or false");
    return 0;
}

/* ---- thinking ---- */

int neap_param_think(neap_params_reader *r, const char *param, int is_on) {
    if (r->thinking != NEAP_THINK_UNSAID && r->thinking != is_on) REFUSE(param, "contradicts another field");
    r->thinking = is_on;
    return 0;
}

int neap_param_effort(neap_params_reader *r, const char *param, const json_t *value) {
    static const char *const words[] = {"none", "low", "high", "max", NULL};
    if (!json_is_string(value)) REFUSE(param, "must be a string");
    if (!is_one_of(value, words))
        UNSUPPORTED(param, "\"%.40s\" is not supported, only none, low, high and max are", json_string_value(value));
    if (is_word(value, "none")) return neap_param_think(r, param, 0);
    if (r->effort != NULL && strcmp(r->effort, json_string_value(value)) != 0)
        REFUSE(param, "contradicts another field");
    r->effort = json_string_value(value);
    return neap_param_think(r, param, 1);
}

int neap_param_reasoning_effort(neap_params_reader *r, const neap_param *f, json_t *v) {
    return neap_param_effort(r, f->name, v);
}

int neap_param_thinking_field(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (json_is_boolean(v)) return neap_param_think(r, f->name, json_is_true(v));
    if (!json_is_object(v)) REFUSE(f->name, "must be true, false or an object with a type");
    const json_t *type = member(v, "type"), *keep = member(v, "keep");
    if (!is_word(type, "enabled") && !is_word(type, "disabled"))
        REFUSE("thinking.type", "must be \"enabled\" or \"disabled\"");
    if (keep != NULL && !is_word(keep, "all"))
        UNSUPPORTED("thinking.keep", "only \"all\" is supported: reasoning that is sent is part of the prompt");
    if (member(v, "budget_tokens") != NULL) UNSUPPORTED("thinking.budget_tokens", "use reasoning_effort");
    return neap_param_think(r, f->name, is_word(type, "enabled"));
}

int neap_param_template(neap_params_reader *r, const neap_param *f, json_t *v) {
    const char *key;
    json_t *one;
    char param[PLACE_BYTES];
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    json_object_foreach(v, key, one) {
        int is_bool = strcmp(key, "thinking") == 0 || strcmp(key, "enable_thinking") == 0;
        int is_effort = strcmp(key, "thinking_effort") == 0 || strcmp(key, "reasoning_effort") == 0;
        snprintf(param, sizeof param, "%s.%.40s", f->name, key);
        if (json_is_null(one)) continue;
        if (is_bool && !json_is_boolean(one)) REFUSE(param, "must be true or false");
        if (is_bool && neap_param_think(r, param, json_is_true(one)) != 0) return -1;
        if (is_effort && neap_param_effort(r, param, one) != 0) return -1;
        if (!is_bool && !is_effort) r->p->n_unknown++;
    }
    return 0;
}

/* Flags of the server where the request is silent. A format without thinking has nothing to switch on. */
static int settle_thinking(neap_params_reader *r, int can_think) {
    const neap_cli_options *o = &r->s->config.cli;
    if (!can_think) {
        if (r->effort != NULL || r->thinking == 1)
            UNSUPPORTED(r->api == NEAP_API_MESSAGES || r->effort == NULL ? "thinking" : "reasoning_effort",
                        "this model does not think before it answers");
        r->thinking = NEAP_THINK_UNSAID;
        return 0;
    }
    if (r->thinking == NEAP_THINK_UNSAID && o->think >= 0) r->thinking = o->think;
    if (r->effort == NULL && r->thinking != 0) r->effort = o->effort;
    return 0;
}

/* ---- the request for the encoder ---- */

static void add_raw(neap_cli_text *out, const char *key, neap_raw value) {
    if (value.n > 0) neap_cli_json_raw(out, key, value.p, value.n);
}

int neap_params_chat_emit(neap_params_reader *r, const neap_chat_parts *parts) {
    const char *format = r->tokenizer != NULL ? neap_chat_format(r->tokenizer) : "none";
    if (strcmp(format, "none") == 0) UNSUPPORTED("messages", "this model has no chat format; use /v1/completions");
    if (settle_thinking(r, strcmp(format, "xtml") == 0) != 0) return -1;
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    add_raw(&out, "messages", parts->messages);
    add_raw(&out, "tools", parts->tools);
    add_raw(&out, "tool_choice", parts->tool_choice);
    if (!r->p->parallel_calls) neap_cli_json_bool(&out, "parallel_tool_calls", 0);
    add_raw(&out, "response_format", parts->response_format);
    if (r->thinking != NEAP_THINK_UNSAID) neap_cli_json_bool(&out, "thinking", r->thinking);
    if (r->effort != NULL) neap_cli_json_cstring(&out, "thinking_effort", r->effort);
    if (!r->p->generation_prompt) neap_cli_json_bool(&out, "add_generation_prompt", 0);
    neap_cli_json_close(&out, '}');
    r->p->chat = out.data;
    r->p->chat_bytes = out.n;
    return 0;
}

int neap_params_chat_finish(neap_params_reader *r) {
    neap_chat_parts parts = {0};
    if (finish_choice(r) != 0) return -1;
    neap_raw_member(r->body, "messages", &parts.messages);
    if (json_array_size(r->tools) > 0) neap_raw_member(r->body, "tools", &parts.tools);
    if (r->tool_choice != NULL) neap_raw_member(r->body, "tool_choice", &parts.tool_choice);
    if (r->response_format != NULL) neap_raw_member(r->body, "response_format", &parts.response_format);
    return neap_params_chat_emit(r, &parts);
}

/* Without a chat format a grammar is for the whole answer. */
int neap_params_completions_finish(neap_params_reader *r) {
    int64_t n_prompts = json_is_array(r->p->prompt) && !json_is_number(json_array_get(r->p->prompt, 0))
                            ? (int64_t)json_array_size(r->p->prompt)
                            : 1;
    int64_t most = r->limits->choices > 128 ? r->limits->choices : 128;
    if (n_prompts * r->p->n > most)
        REFUSE("n", "%lld prompts times %lld, at most %lld answers are allowed", (long long)n_prompts,
               (long long)r->p->n, (long long)most);
    if (r->response_format == NULL) return 0;
    neap_cli_text out = {0};
    neap_raw format = {0}, inner = {0}, schema = {0};
    neap_cli_json_open(&out, NULL, '{');
    if (is_word(member(r->response_format, "type"), "json_object")) {
        neap_cli_json_bool(&out, "json_object", 1);
    } else {
        neap_raw_member(r->body, "response_format", &format);
        neap_raw_member(format, "json_schema", &inner);
        neap_raw_member(inner, "schema", &schema);
        add_raw(&out, "schema", schema);
    }
    neap_cli_json_close(&out, '}');
    r->p->chat = out.data;
    r->p->chat_bytes = out.n;
    return 0;
}
