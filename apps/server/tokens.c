/* Text to tokens and back: /tokenize, /detokenize, /apply-template, /v1/messages/count_tokens.
 *
 * All of them grow with what is sent, so they run on a prep thread; the loop only hands the body over and the answer
 * back. Spellings of special tokens in a text are ordinary text unless "allow_special" is true.
 *
 * Called by the router. A task owns the body and its answer until it has been sent. Source: the routes of these names
 * in llama.cpp and vLLM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../encode.h"
#include "../json_out.h"
#include "params_inner.h"

typedef struct task task;
struct task {
    neap_serve_call call;
    const neap_tokenizer *tokenizer;
    int32_t context_max;
    int is_anthropic;     /* shape of errors */
    int (*work)(task *t); /* 0, or -1 with the problem set */
    char *body;
    size_t n_body;
    neap_cli_text out;
    neap_serve_problem problem;
    int code;
};

static void run(void *user) {
    task *t = user;
    t->code = t->work(t);
}

static void done(void *user) {
    task *t = user;
    if (t->code == 0)
        neap_http_reply(t->call.x, 200, "application/json", neap_cli_text_string(&t->out), t->out.n);
    else
        neap_serve_fail(t->call.server, t->call.x, &t->problem, t->is_anthropic);
    neap_cli_text_free(&t->out);
    free(t->body);
    free(t);
}

static void start(neap_serve_call *c, int (*work)(task *t), int is_anthropic) {
    neap_engine_options options = {.context_max = 0};
    const neap_model *m = neap_backend_model(c->server->backend);
    task *t = neap_cli_alloc(1, sizeof *t);
    neap_backend_options_now(c->server->backend, &options);
    *t = (task){.call = *c, .work = work, .is_anthropic = is_anthropic, .context_max = options.context_max};
    t->tokenizer = m != NULL ? neap_model_tokenizer(m) : NULL;
    if (t->tokenizer == NULL) {
        t->code = -1;
        neap_serve_problem_set(&t->problem, NEAP_ERROR_UNSUPPORTED, "", "this model has no tokenizer");
        done(t);
        return;
    }
    t->body = neap_http_take_body(c->x, &t->n_body);
    if (neap_backend_prepare(c->server->backend, run, done, t)) return;
    t->code = -1;
    neap_serve_problem_set(&t->problem, NEAP_ERROR_QUEUE, "", "too many requests wait to be read");
    done(t);
}

static int refuse(task *t, const char *param, const char *what) {
    neap_serve_problem_set(&t->problem, NEAP_ERROR_BAD_VALUE, param, "%s: %s", param, what);
    return -1;
}

/* An object, or NULL. */
static json_t *body_object(task *t) {
    json_t *root = neap_serve_json(t->call.server, t->body, t->n_body, &t->problem);
    if (root == NULL || json_is_object(root)) return root;
    neap_serve_problem_set(&t->problem, NEAP_ERROR_BAD_JSON, "", "the body must be a JSON object");
    json_decref(root);
    return NULL;
}

/* One of several names for a bool; absent and null: standard. */
static int read_flag(task *t, const json_t *root, const char *const *names, int standard, int *out) {
    *out = standard;
    for (; *names != NULL; names++) {
        const json_t *v = json_object_get(root, *names);
        if (v == NULL || json_is_null(v)) continue;
        if (!json_is_boolean(v)) return refuse(t, *names, "must be true or false");
        *out = json_is_true(v);
    }
    return 0;
}

/* ---- both ways ---- */

static int library(task *t, neap_status status) {
    if (status == NEAP_OK) return 0;
    neap_serve_problem_library(&t->problem, status);
    return -1;
}

static int too_many(task *t, size_t n) {
    neap_serve_problem_set(&t->problem, NEAP_ERROR_BAD_VALUE, "content",
                           "content: %zu tokens, at most %lld are allowed", n,
                           (long long)neap_serve_nodes_max(t->call.server));
    return -1;
}

/* The tokens of a chat request's prompt. */
static int chat_tokens(task *t, neap_serve_api api, int32_t **tokens, size_t *n) {
    neap_serve_params p;
    *tokens = NULL;
    int code = neap_params_read_prompt(&p, t->call.server, api, 0, t->body, t->n_body, t->tokenizer, t->context_max,
                                       &t->problem);
    if (code != 0) return code;
    code = library(t, neap_cli_chat_to_tokens(t->tokenizer, p.chat, p.chat_bytes, tokens, n, NULL, NULL));
    neap_serve_params_free(&p);
    return code;
}

/* ---- /tokenize ---- */

/* A piece that is no text of its own (part of a character) is given as bytes. */
static void add_piece(const task *t, int32_t token, neap_cli_text *out) {
    const char *bytes = "";
    size_t n = 0, at = 0, bad, length;
    if (neap_token_bytes(t->tokenizer, token, &bytes, &n, NULL) != NEAP_OK) n = 0;
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "id", token);
    while (at < n && (length = neap_cli_utf8_length(bytes + at, n - at, &bad)) > 0) at += length;
    if (at == n) {
        neap_cli_json_string(out, "piece", bytes, n);
    } else {
        neap_cli_json_open(out, "piece", '[');
        for (size_t i = 0; i < n; i++) neap_cli_json_int(out, NULL, (unsigned char)bytes[i]);
        neap_cli_json_close(out, ']');
    }
    neap_cli_json_close(out, '}');
}

static void token_list(task *t, const int32_t *tokens, size_t n, int with_pieces) {
    neap_cli_json_open(&t->out, NULL, '{');
    neap_cli_json_open(&t->out, "tokens", '[');
    for (size_t i = 0; i < n; i++) {
        if (with_pieces)
            add_piece(t, tokens[i], &t->out);
        else
            neap_cli_json_int(&t->out, NULL, tokens[i]);
    }
    neap_cli_json_close(&t->out, ']');
    neap_cli_json_uint(&t->out, "count", n);
    neap_cli_json_int(&t->out, "max_model_len", t->context_max);
    neap_cli_json_close(&t->out, '}');
}

/* A field that is there; null is the same as absent. */
static const json_t *given(const json_t *root, const char *name) {
    const json_t *v = json_object_get(root, name);
    return json_is_null(v) ? NULL : v;
}

/* Those that are not used, too: who sends them should learn what is wrong with them. */
static int check_tokenize_types(task *t, const json_t *root, const char *const *names) {
    for (; *names != NULL; names++) {
        const json_t *v = given(root, *names);
        if (v != NULL && !json_is_string(v)) return refuse(t, *names, "a string is required");
    }
    const json_t *messages = given(root, "messages");
    return messages == NULL || json_is_array(messages) ? 0 : refuse(t, "messages", "an array is required");
}

static int tokenize(task *t, const json_t *root) {
    static const char *const pieces[] = {"with_pieces", "return_token_strs", NULL};
    static const char *const special[] = {"allow_special", "parse_special", NULL};
    static const char *const names[] = {"content", "text", "prompt", NULL};
    int with_pieces, allow_special, code;
    int32_t *tokens = NULL;
    size_t n = 0;
    const json_t *text = NULL;
    const char *name = "content";
    if (read_flag(t, root, pieces, 0, &with_pieces) != 0 || read_flag(t, root, special, 0, &allow_special) != 0)
        return -1;
    if (check_tokenize_types(t, root, names) != 0) return -1;
    for (size_t i = 0; names[i] != NULL && text == NULL; i++) {
        text = given(root, names[i]);
        if (text != NULL) name = names[i];
    }
    if (text == NULL && given(root, "messages") != NULL) {
        code = chat_tokens(t, NEAP_API_CHAT, &tokens, &n);
    } else {
        if (!json_is_string(text)) return refuse(t, name, "a string is required");
        code = library(t, neap_cli_text_to_tokens(t->tokenizer, json_string_value(text), json_string_length(text),
                                                  allow_special ? NEAP_TOKENIZE_SPECIAL : 0, &tokens, &n));
    }
    if (code == 0 && n > (size_t)neap_serve_nodes_max(t->call.server)) code = too_many(t, n);
    if (code == 0) token_list(t, tokens, n, with_pieces);
    free(tokens);
    return code;
}

static int tokenize_work(task *t) {
    json_t *root = body_object(t);
    int code = root != NULL ? tokenize(t, root) : -1;
    json_decref(root);
    return code;
}

void neap_serve_tokenize(neap_serve_call *c) { start(c, tokenize_work, 0); }

/* ---- /detokenize ---- */

static int detokenize(task *t, const json_t *root) {
    static const char *const special[] = {"with_special", "special", NULL};
    const json_t *list = json_object_get(root, "tokens");
    int with_special, code = 0;
    if (read_flag(t, root, special, 1, &with_special) != 0) return -1;
    if (!json_is_array(list)) return refuse(t, "tokens", "an array of token ids is required");
    size_t n = json_array_size(list);
    int32_t *tokens = neap_cli_alloc(n + 1, sizeof *tokens);
    for (size_t i = 0; i < n && code == 0; i++) {
        int64_t id = -1;
        char param[48];
        snprintf(param, sizeof param, "tokens[%zu]", i);
        if (neap_param_int(json_array_get(list, i), 0, neap_tokenizer_vocab(t->tokenizer) - 1, &id) != 0)
            code = refuse(t, param, "must be the id of a token");
        tokens[i] = (int32_t)id;
    }
    neap_cli_text text = {0};
    uint32_t flags = with_special ? NEAP_DETOKENIZE_SPECIAL : 0;
    if (code == 0) code = library(t, neap_cli_tokens_to_text(t->tokenizer, tokens, n, flags, &text));
    if (code == 0) {
        neap_cli_json_open(&t->out, NULL, '{');
        neap_cli_json_string(&t->out, "content", neap_cli_text_string(&text), text.n);
        neap_cli_json_close(&t->out, '}');
    }
    neap_cli_text_free(&text);
    free(tokens);
    return code;
}

static int detokenize_work(task *t) {
    json_t *root = body_object(t);
    int code = root != NULL ? detokenize(t, root) : -1;
    json_decref(root);
    return code;
}

void neap_serve_detokenize(neap_serve_call *c) { start(c, detokenize_work, 0); }

/* ---- /apply-template ---- */

static int template_work(task *t) {
    int32_t *tokens = NULL;
    size_t n = 0;
    neap_cli_text text = {0};
    int code = chat_tokens(t, NEAP_API_CHAT, &tokens, &n);
    if (code == 0) code = library(t, neap_cli_tokens_to_text(t->tokenizer, tokens, n, NEAP_DETOKENIZE_SPECIAL, &text));
    if (code == 0) {
        neap_cli_json_open(&t->out, NULL, '{');
        neap_cli_json_string(&t->out, "prompt", neap_cli_text_string(&text), text.n);
        neap_cli_json_uint(&t->out, "tokens", n);
        neap_cli_json_close(&t->out, '}');
    }
    neap_cli_text_free(&text);
    free(tokens);
    return code;
}

void neap_serve_apply_template(neap_serve_call *c) { start(c, template_work, 0); }

/* ---- /v1/messages/count_tokens ---- */

static int count_work(task *t) {
    int32_t *tokens = NULL;
    size_t n = 0;
    int code = chat_tokens(t, NEAP_API_MESSAGES, &tokens, &n);
    if (code == 0) {
        neap_cli_json_open(&t->out, NULL, '{');
        neap_cli_json_uint(&t->out, "input_tokens", n);
        neap_cli_json_close(&t->out, '}');
    }
    free(tokens);
    return code;
}

void neap_serve_count_tokens(neap_serve_call *c) { start(c, count_work, 1); }
