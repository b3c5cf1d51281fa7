/* POST /v1/messages: how the pieces of an answer look to clients of Anthropic's API.
 *
 *   stream: message_start, then for each block content_block_start, _delta, _stop, then message_delta and message_stop
 *   whole:  a message with its blocks: thinking, text, tool_use
 *
 * A block is opened by the first piece of another kind than the one before. Thinking blocks carry a constant signature:
 * nothing is signed here, but clients send it back and expect it to be there. input_tokens does not contain the tokens
 * that came from the prefix cache, as over there.
 *
 * Called by answer.c through the style. Owns the state of the open block. Source: the Anthropic messages API as its
 * clients read it. */
#include <stdlib.h>
#include <string.h>

#include "../json_out.h"
#include "answer.h"

#define SIGNATURE "neap"

typedef struct blocks {
    int32_t index, call; /* of the open block; of its call */
    int is_open;
    neap_chat_kind kind; /* of the open block: REASONING, CONTENT, TOOL_CALL */
} blocks;

static int prepare(neap_answer *a, neap_serve_problem *problem) {
    a->user = neap_cli_alloc(1, sizeof(blocks));
    return neap_answer_encode_chat(a, problem);
}

static void release(neap_answer *a) {
    free(a->user);
    a->user = NULL;
}

/* ---- both forms ---- */

static const char *stop_reason(const neap_answer_choice *c) {
    if (strcmp(c->finish, "length") == 0) return "max_tokens";
    if (strcmp(c->finish, "tool_calls") == 0) return "tool_use";
    return c->stop != NULL ? "stop_sequence" : "end_turn";
}

static void add_usage(neap_cli_text *out, int64_t prompt, int64_t cached, int64_t fresh, int64_t thinking) {
    neap_cli_json_open(out, "usage", '{');
    neap_cli_json_int(out, "input_tokens", prompt - cached);
    neap_cli_json_int(out, "cache_creation_input_tokens", 0);
    neap_cli_json_int(out, "cache_read_input_tokens", cached);
    neap_cli_json_int(out, "output_tokens", fresh);
    neap_cli_json_open(out, "output_tokens_details", '{');
    neap_cli_json_int(out, "thinking_tokens", thinking);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

static void open_message(const neap_answer *a, neap_cli_text *out, const char *key) {
    neap_cli_json_open(out, key, '{');
    neap_cli_json_cstring(out, "id", a->id);
    neap_cli_json_cstring(out, "type", "message");
    neap_cli_json_cstring(out, "role", "assistant");
    neap_cli_json_cstring(out, "model", a->model);
    neap_cli_json_open(out, "content", '[');
}

/* ---- streams ---- */

static void open_event(neap_cli_text *out, const char *type) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "type", type);
}

static void send(neap_answer *a, const char *type, neap_cli_text *out) {
    neap_cli_json_close(out, '}');
    neap_answer_send(a, type, neap_cli_text_string(out), out->n);
    neap_cli_text_free(out);
}

static void begin(neap_answer *a) {
    neap_cli_text out = {0};
    open_event(&out, "message_start");
    open_message(a, &out, "message");
    neap_cli_json_close(&out, ']');
    neap_cli_json_raw(&out, "stop_reason", "null", 4);
    neap_cli_json_raw(&out, "stop_sequence", "null", 4);
    add_usage(&out, (int64_t)a->prompts[0].n_tokens, a->choices[0].n_cached, 0, 0);
    neap_cli_json_close(&out, '}');
    send(a, "message_start", &out);
}

static void send_delta(neap_answer *a, const char *type, const char *key, const char *text, size_t n) {
    const blocks *b = a->user;
    neap_cli_text out = {0};
    open_event(&out, "content_block_delta");
    neap_cli_json_int(&out, "index", b->index);
    neap_cli_json_open(&out, "delta", '{');
    neap_cli_json_cstring(&out, "type", type);
    neap_cli_json_string(&out, key, text, n);
    neap_cli_json_close(&out, '}');
    send(a, "content_block_delta", &out);
}

static void close_block(neap_answer *a) {
    blocks *b = a->user;
    neap_cli_text out = {0};
    if (!b->is_open) return;
    if (b->kind == NEAP_CHAT_REASONING) send_delta(a, "signature_delta", "signature", SIGNATURE, sizeof SIGNATURE - 1);
    open_event(&out, "content_block_stop");
    neap_cli_json_int(&out, "index", b->index);
    send(a, "content_block_stop", &out);
    b->is_open = 0;
    b->index++;
}

static void open_block(neap_answer *a, const neap_answer_piece *p) {
    blocks *b = a->user;
    neap_cli_text out = {0};
    close_block(a);
    b->is_open = 1;
    b->kind = p->kind == NEAP_CHAT_TOOL_ARGS ? NEAP_CHAT_TOOL_CALL : p->kind;
    b->call = p->index;
    open_event(&out, "content_block_start");
    neap_cli_json_int(&out, "index", b->index);
    neap_cli_json_open(&out, "content_block", '{');
    if (b->kind == NEAP_CHAT_REASONING) {
        neap_cli_json_cstring(&out, "type", "thinking");
        neap_cli_json_cstring(&out, "thinking", "");
        neap_cli_json_cstring(&out, "signature", "");
    } else if (b->kind == NEAP_CHAT_CONTENT) {
        neap_cli_json_cstring(&out, "type", "text");
        neap_cli_json_cstring(&out, "text", "");
    } else {
        neap_cli_json_cstring(&out, "type", "tool_use");
        neap_cli_json_cstring(&out, "id", p->id);
        neap_cli_json_cstring(&out, "name", p->name);
        neap_cli_json_open(&out, "input", '{');
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, '}');
    send(a, "content_block_start", &out);
}

static void piece(neap_answer_choice *c, const neap_answer_piece *p) {
    neap_answer *a = c->answer;
    const blocks *b = a->user;
    switch (p->kind) {
    case NEAP_CHAT_REASONING:
    case NEAP_CHAT_CONTENT:
        if (p->text_bytes == 0) break;
        if (!b->is_open || b->kind != p->kind) open_block(a, p);
        if (p->kind == NEAP_CHAT_CONTENT)
            send_delta(a, "text_delta", "text", p->text, p->text_bytes);
        else
            send_delta(a, "thinking_delta", "thinking", p->text, p->text_bytes);
        break;
    case NEAP_CHAT_TOOL_CALL: open_block(a, p); break;
    case NEAP_CHAT_TOOL_ARGS:
        if (b->is_open && b->kind == NEAP_CHAT_TOOL_CALL && b->call == p->index && p->text_bytes > 0)
            send_delta(a, "input_json_delta", "partial_json", p->text, p->text_bytes);
        break;
    case NEAP_CHAT_MESSAGE_END: break;
    }
}

static void finish(neap_answer_choice *c) {
    neap_answer *a = c->answer;
    neap_answer_usage u = neap_answer_usage_of(a);
    neap_cli_text out = {0};
    close_block(a);
    open_event(&out, "message_delta");
    neap_cli_json_open(&out, "delta", '{');
    neap_cli_json_cstring(&out, "stop_reason", stop_reason(c));
    neap_cli_json_cstring(&out, "stop_sequence", c->stop);
    neap_cli_json_close(&out, '}');
    add_usage(&out, u.prompt, u.cached, u.fresh, u.reasoning);
    send(a, "message_delta", &out);
}

static void end(neap_answer *a) {
    neap_cli_text out = {0};
    open_event(&out, "message_stop");
    send(a, "message_stop", &out);
}

static void ping(neap_answer *a, int64_t done, int64_t total) {
    neap_cli_text out = {0};
    (void)done;
    (void)total;
    open_event(&out, "ping");
    send(a, "ping", &out);
}

static void error(neap_answer *a, const neap_serve_problem *problem) {
    neap_cli_text out = {0};
    neap_serve_problem_body(problem, 1, &out);
    neap_answer_send(a, "error", neap_cli_text_string(&out), out.n);
    neap_cli_text_free(&out);
}

/* ---- whole ---- */

static void add_text(neap_cli_text *out, const char *type, const neap_cli_text *text) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "type", type);
    neap_cli_json_string(out, type, neap_cli_text_string(text), text->n);
    if (strcmp(type, "thinking") == 0) neap_cli_json_cstring(out, "signature", SIGNATURE);
    neap_cli_json_close(out, '}');
}

/* Input is an object there. Arguments that are none (an answer that was cut off) are kept as a text inside one. */
static void add_input(neap_cli_text *out, const neap_cli_text *arguments) {
    json_t *value = json_loadb(neap_cli_text_string(arguments), arguments->n, JSON_ALLOW_NUL, NULL);
    if (json_is_object(value)) {
        neap_cli_json_raw(out, "input", arguments->data, arguments->n);
    } else {
        neap_cli_json_open(out, "input", '{');
        if (arguments->n > 0) neap_cli_json_string(out, "_incomplete", arguments->data, arguments->n);
        neap_cli_json_close(out, '}');
    }
    json_decref(value);
}

static void whole(neap_answer *a, neap_cli_text *out) {
    const neap_answer_choice *c = &a->choices[0];
    neap_answer_usage u = neap_answer_usage_of(a);
    open_message(a, out, NULL);
    if (c->reasoning.n > 0) add_text(out, "thinking", &c->reasoning);
    if (c->content.n > 0) add_text(out, "text", &c->content);
    for (int32_t i = 0; i < c->n_calls; i++) {
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "type", "tool_use");
        neap_cli_json_cstring(out, "id", c->calls[i].id);
        neap_cli_json_cstring(out, "name", c->calls[i].name);
        add_input(out, &c->calls[i].arguments);
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_cstring(out, "stop_reason", stop_reason(c));
    neap_cli_json_cstring(out, "stop_sequence", c->stop);
    add_usage(out, u.prompt, u.cached, u.fresh, u.reasoning);
    neap_cli_json_close(out, '}');
}

static const neap_answer_style style = {.api = NEAP_API_MESSAGES,
                                        .id_prefix = "msg_",
                                        .is_chat = 1,
                                        .prepare = prepare,
                                        .begin = begin,
                                        .piece = piece,
                                        .finish = finish,
                                        .end = end,
                                        .ping = ping,
                                        .error = error,
                                        .whole = whole,
                                        .free = release};

void neap_serve_messages(neap_serve_call *c) { neap_answer_start(c, &style); }
