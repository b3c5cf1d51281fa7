/* POST /v1/chat/completions: how the pieces of an answer look to clients of OpenAI's chat API.
 *
 *   stream: role chunk of each choice, deltas, a chunk with finish_reason, usage when asked for, [DONE]
 *   whole:  choices with message, finish_reason and logprobs; usage
 *
 * Besides that API: reasoning_content in deltas and messages, reasoning_content beside content in logprobs,
 * prompt_progress while the prompt is read, timings. Logprobs list the tokens of the text; tokens of the chat format
 * and of calls are in neither list.
 *
 * Called by answer.c through the style; owns nothing. */
#include "../json_out.h"
#include "openai_form.h"

/* ---- logprobs ---- */

static void add_token(const neap_answer *a, neap_cli_text *out, int32_t token, float logprob) {
    const char *bytes = "";
    size_t n = 0;
    neap_cli_text text = {0};
    neap_answer_token_text(a, token, &text);
    if (neap_token_bytes(a->tokenizer, token, &bytes, &n, NULL) != NEAP_OK) n = 0;
    neap_cli_json_string(out, "token", neap_cli_text_string(&text), text.n);
    neap_cli_json_real(out, "logprob", (double)logprob, 9);
    neap_cli_json_open(out, "bytes", '[');
    for (size_t i = 0; i < n; i++) neap_cli_json_int(out, NULL, (unsigned char)bytes[i]);
    neap_cli_json_close(out, ']');
    neap_cli_text_free(&text);
}

static void add_tokens(const neap_answer *a, neap_cli_text *out, const char *key, const neap_answer_token *tokens,
                       size_t n) {
    neap_cli_json_open(out, key, '[');
    for (size_t i = 0; i < n; i++) {
        neap_cli_json_open(out, NULL, '{');
        add_token(a, out, tokens[i].token, tokens[i].logprob);
        neap_cli_json_open(out, "top_logprobs", '[');
        for (int32_t k = 0; k < tokens[i].n_top; k++) {
            neap_cli_json_open(out, NULL, '{');
            add_token(a, out, tokens[i].top[k].token, tokens[i].top[k].logprob);
            neap_cli_json_close(out, '}');
        }
        neap_cli_json_close(out, ']');
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
}

static void add_logprobs(const neap_answer *a, neap_cli_text *out, const neap_answer_token *content, size_t n_content,
                         const neap_answer_token *reasoning, size_t n_reasoning) {
    if (a->params.request.sampling.n_logprobs < 0) {
        neap_cli_json_raw(out, "logprobs", "null", 4);
        return;
    }
    neap_cli_json_open(out, "logprobs", '{');
    add_tokens(a, out, "content", content, n_content);
    add_tokens(a, out, "reasoning_content", reasoning, n_reasoning);
    neap_cli_json_raw(out, "refusal", "null", 4);
    neap_cli_json_close(out, '}');
}

/* ---- streams ---- */

static const char chunk[] = "chat.completion.chunk";

static void open_choice(const neap_answer_choice *c, neap_cli_text *out) {
    neap_openai_open(c->answer, out, chunk);
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "index", c->index);
    neap_cli_json_open(out, "delta", '{');
}

static void close_choice(const neap_answer_choice *c, neap_cli_text *out, const neap_answer_piece *p,
                         const char *finish) {
    neap_cli_json_close(out, '}');
    if (p != NULL && p->n_tokens > 0 && p->kind == NEAP_CHAT_CONTENT)
        add_logprobs(c->answer, out, p->tokens, p->n_tokens, NULL, 0);
    else if (p != NULL && p->n_tokens > 0)
        add_logprobs(c->answer, out, NULL, 0, p->tokens, p->n_tokens);
    else
        neap_cli_json_raw(out, "logprobs", "null", 4);
    neap_cli_json_cstring(out, "finish_reason", finish);
    neap_cli_json_close(out, '}');
}

static void begin(neap_answer *a) {
    for (size_t i = 0; i < a->n_choices; i++) {
        neap_cli_text out = {0};
        open_choice(&a->choices[i], &out);
        neap_cli_json_cstring(&out, "role", "assistant");
        neap_cli_json_cstring(&out, "content", "");
        close_choice(&a->choices[i], &out, NULL, NULL);
        neap_openai_choices_end(a, &out);
        neap_openai_send(a, &out);
    }
}

static void add_call(neap_cli_text *out, const neap_answer_piece *p) {
    int is_new = p->kind == NEAP_CHAT_TOOL_CALL;
    neap_cli_json_open(out, "tool_calls", '[');
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "index", p->index);
    if (is_new) {
        neap_cli_json_cstring(out, "id", p->id);
        neap_cli_json_cstring(out, "type", "function");
    }
    neap_cli_json_open(out, "function", '{');
    if (is_new) neap_cli_json_cstring(out, "name", p->name);
    neap_cli_json_string(out, "arguments", is_new ? "" : p->text, is_new ? 0 : p->text_bytes);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, ']');
}

static void piece(neap_answer_choice *c, const neap_answer_piece *p) {
    neap_cli_text out = {0};
    open_choice(c, &out);
    if (p->kind == NEAP_CHAT_TOOL_CALL || p->kind == NEAP_CHAT_TOOL_ARGS)
        add_call(&out, p);
    else
        neap_cli_json_string(&out, p->kind == NEAP_CHAT_CONTENT ? "content" : "reasoning_content", p->text,
                             p->text_bytes);
    close_choice(c, &out, p, NULL);
    neap_openai_choices_end(c->answer, &out);
    neap_openai_send(c->answer, &out);
}

static void finish(neap_answer_choice *c) {
    neap_cli_text out = {0};
    open_choice(c, &out);
    close_choice(c, &out, NULL, c->finish);
    neap_openai_send_finish(c->answer, &out);
}

static void end(neap_answer *a) { neap_openai_send_end(a, chunk); }

static void progress(neap_answer_choice *c, int64_t done, double ms) {
    neap_cli_text out = {0};
    open_choice(c, &out);
    close_choice(c, &out, NULL, NULL);
    neap_openai_send_progress(c, &out, done, ms);
}

/* ---- whole ---- */

static void add_calls(neap_cli_text *out, const neap_answer_choice *c) {
    neap_cli_json_open(out, "tool_calls", '[');
    for (int32_t i = 0; i < c->n_calls; i++) {
        const neap_answer_call *call = &c->calls[i];
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_cstring(out, "id", call->id);
        neap_cli_json_cstring(out, "type", "function");
        neap_cli_json_open(out, "function", '{');
        neap_cli_json_cstring(out, "name", call->name);
        neap_cli_json_string(out, "arguments", neap_cli_text_string(&call->arguments), call->arguments.n);
        neap_cli_json_close(out, '}');
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
}

static void add_choice(neap_cli_text *out, const neap_answer_choice *c) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "index", c->index);
    neap_cli_json_open(out, "message", '{');
    neap_cli_json_cstring(out, "role", "assistant");
    if (c->content.n == 0 && c->n_calls > 0)
        neap_cli_json_raw(out, "content", "null", 4);
    else
        neap_cli_json_string(out, "content", neap_cli_text_string(&c->content), c->content.n);
    neap_cli_json_raw(out, "refusal", "null", 4);
    if (c->reasoning.n > 0)
        neap_cli_json_string(out, "reasoning_content", neap_cli_text_string(&c->reasoning), c->reasoning.n);
    if (c->n_calls > 0) add_calls(out, c);
    neap_cli_json_close(out, '}');
    add_logprobs(c->answer, out, c->content_tokens.items, c->content_tokens.n, c->reasoning_tokens.items,
                 c->reasoning_tokens.n);
    neap_cli_json_cstring(out, "finish_reason", c->finish);
    neap_cli_json_close(out, '}');
}

static void whole(neap_answer *a, neap_cli_text *out) {
    neap_openai_open(a, out, "chat.completion");
    for (size_t i = 0; i < a->n_choices; i++) add_choice(out, &a->choices[i]);
    neap_openai_close(a, out);
}

static const neap_answer_style style = {.api = NEAP_API_CHAT,
                                        .id_prefix = "chatcmpl-",
                                        .is_chat = 1,
                                        .prepare = neap_answer_encode_chat,
                                        .begin = begin,
                                        .piece = piece,
                                        .finish = finish,
                                        .end = end,
                                        .progress = progress,
                                        .whole = whole};

void neap_serve_chat(neap_serve_call *c) { neap_answer_start(c, &style); }
