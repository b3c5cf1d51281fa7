/* POST /v1/completions: text that goes on from a text, without any chat format.
 *
 *   prompts  a text, several, lists of ids; n answers to each: choice index = prompt * n + number
 *   echo     the text of a choice begins with its prompt
 *   logprobs the older form: four lists side by side; text_offset counts characters from the first new one
 *
 * Called by answer.c through the style. Owns the prompts' texts (echo) and the offsets of the choices. Source: the
 * OpenAI completions API. */
#include <stdlib.h>
#include <string.h>

#include "../encode.h"
#include "../json_out.h"
#include "openai_form.h"

typedef struct extra {
    neap_cli_text *echo; /* [n_prompts]; NULL without echo */
    int64_t *offset;     /* [n_choices] characters so far */
    size_t n_echo;
} extra;

/* ---- prompts ---- */

static int add_text(neap_answer *a, const char *text, size_t n, neap_serve_problem *problem) {
    uint32_t flags = a->params.allow_special ? NEAP_TOKENIZE_SPECIAL : 0;
    size_t n_tokens = 0;
    int32_t *tokens = NULL;
    neap_status status = neap_cli_text_to_tokens(a->tokenizer, text, n, flags, &tokens, &n_tokens);
    if (status != NEAP_OK) {
        neap_serve_problem_library(problem, status);
        free(tokens);
        return -1;
    }
    neap_answer_add_prompt(a, tokens, n_tokens, NULL, 0);
    return 0;
}

static void add_ids(neap_answer *a, const json_t *ids) {
    size_t n = json_array_size(ids);
    int32_t *tokens = neap_cli_alloc(n, sizeof *tokens);
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)json_number_value(json_array_get(ids, i));
    neap_answer_add_prompt(a, tokens, n, NULL, 0);
}

static void ids_text(const neap_answer *a, const neap_answer_prompt *p, neap_cli_text *out) {
    if (a->tokenizer == NULL) return;
    (void)neap_cli_tokens_to_text(a->tokenizer, p->tokens, p->n_tokens, NEAP_DETOKENIZE_SPECIAL, out);
}

/* Prompt i of the request; a list of lists has lists in it, one list of ids is one prompt. */
static const json_t *prompt_at(const json_t *prompt, size_t i) {
    int is_list = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    return is_list ? json_array_get(prompt, i) : i == 0 ? prompt : NULL;
}

/* A stream says the prompts at once, before any reader can slow it down: they must fit what may be unsent. */
static int check_echo(const neap_answer *a, const extra *e, neap_serve_problem *problem) {
    enum { ESCAPED = 6, AROUND = 512 }; /* bytes in JSON: of a byte at worst, of an event */
    if (e->echo == NULL || !a->params.is_stream) return 0;
    size_t bytes = 0, most = a->server->config.limits.http.stream_bytes;
    for (size_t i = 0; i < e->n_echo; i++) bytes += (ESCAPED * e->echo[i].n + AROUND) * (size_t)a->params.n;
    if (bytes <= most) return 0;
    neap_serve_problem_set(problem, NEAP_ERROR_UNSUPPORTED, "echo",
                           "echo: up to %zu bytes of prompts for a stream, at most %zu; ask without stream", bytes,
                           most);
    return -1;
}

static int prepare(neap_answer *a, neap_serve_problem *problem) {
    const json_t *one;
    size_t n = 0;
    for (; (one = prompt_at(a->params.prompt, n)) != NULL; n++) {
        if (json_is_array(one))
            add_ids(a, one);
        else if (add_text(a, json_string_value(one), json_string_length(one), problem) != 0)
            return -1;
    }
    extra *e = neap_cli_alloc(1, sizeof *e);
    a->user = e;
    e->offset = neap_cli_alloc(n * (size_t)a->params.n, sizeof *e->offset);
    if (a->params.echo) {
        e->n_echo = n;
        e->echo = neap_cli_alloc(n, sizeof *e->echo);
        for (size_t i = 0; i < n; i++) {
            one = prompt_at(a->params.prompt, i);
            if (json_is_string(one))
                neap_cli_text_add(&e->echo[i], json_string_value(one), json_string_length(one));
            else
                ids_text(a, &a->prompts[i], &e->echo[i]);
        }
    }
    if (check_echo(a, e, problem) != 0) return -1;
    return a->params.is_constrained ? neap_answer_constrain(a, a->params.chat, a->params.chat_bytes, problem) : 0;
}

static void release(neap_answer *a) {
    extra *e = a->user;
    if (e == NULL) return;
    for (size_t i = 0; i < e->n_echo; i++) neap_cli_text_free(&e->echo[i]);
    free(e->echo);
    free(e->offset);
    free(e);
    a->user = NULL;
}

/* ---- logprobs ---- */

static int64_t characters(const char *s, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

static void token_label(const neap_answer *a, int32_t token, neap_cli_text *out) {
    const char *bytes = "";
    size_t n = 0, at = 0, bad, length;
    if (neap_token_bytes(a->tokenizer, token, &bytes, &n, NULL) != NEAP_OK) n = 0;
    while (at < n && (length = neap_cli_utf8_length(bytes + at, n - at, &bad)) > 0) at += length;
    if (at == n) {
        neap_cli_text_add(out, bytes, n);
        return;
    }
    neap_cli_text_puts(out, "bytes:");
    for (size_t i = 0; i < n; i++) neap_cli_text_printf(out, "\\x%02x", (unsigned char)bytes[i]);
}

/* Members must have different names; two tokens may have the same spelling. */
static void top_object(const neap_answer *a, neap_cli_text *out, const neap_answer_token *t) {
    neap_cli_text labels[32] = {0};
    int32_t n = 0;
    neap_cli_json_open(out, NULL, '{');
    for (int32_t i = 0; i < t->n_top && n < 32; i++) {
        int is_known = 0;
        token_label(a, t->top[i].token, &labels[n]);
        const char *label = neap_cli_text_string(&labels[n]);
        for (int32_t k = 0; k < n; k++) is_known |= strcmp(neap_cli_text_string(&labels[k]), label) == 0;
        if (is_known) {
            neap_cli_text_cut(&labels[n], 0);
            continue;
        }
        neap_cli_json_real(out, label, (double)t->top[i].logprob, 9);
        n++;
    }
    neap_cli_json_close(out, '}');
    for (int32_t k = 0; k < 32; k++) neap_cli_text_free(&labels[k]);
}

static void add_logprobs(neap_answer_choice *c, neap_cli_text *out, const neap_answer_token *tokens, size_t n) {
    const neap_answer *a = c->answer;
    extra *e = a->user;
    if (a->params.logprobs < 0) {
        neap_cli_json_raw(out, "logprobs", "null", 4);
        return;
    }
    neap_cli_json_open(out, "logprobs", '{');
    neap_cli_json_open(out, "tokens", '[');
    for (size_t i = 0; i < n; i++) {
        neap_cli_text label = {0};
        token_label(a, tokens[i].token, &label);
        neap_cli_json_string(out, NULL, neap_cli_text_string(&label), label.n);
        neap_cli_text_free(&label);
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_open(out, "token_logprobs", '[');
    for (size_t i = 0; i < n; i++) neap_cli_json_real(out, NULL, (double)tokens[i].logprob, 9);
    neap_cli_json_close(out, ']');
    neap_cli_json_open(out, "top_logprobs", '[');
    for (size_t i = 0; i < n; i++) top_object(a, out, &tokens[i]);
    neap_cli_json_close(out, ']');
    neap_cli_json_open(out, "text_offset", '[');
    for (size_t i = 0; i < n; i++) {
        neap_cli_text text = {0};
        neap_answer_token_text(a, tokens[i].token, &text);
        neap_cli_json_int(out, NULL, e->offset[c->index]);
        e->offset[c->index] += characters(neap_cli_text_string(&text), text.n);
        neap_cli_text_free(&text);
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_close(out, '}');
}

/* ---- both forms ---- */

static const char object[] = "text_completion"; /* of chunks too */

static void add_choice(neap_answer_choice *c, neap_cli_text *out, const char *text, size_t n_text,
                       const neap_answer_token *tokens, size_t n_tokens, const char *finish) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "index", c->index);
    neap_cli_json_string(out, "text", text, n_text);
    add_logprobs(c, out, tokens, n_tokens);
    neap_cli_json_cstring(out, "finish_reason", finish);
    neap_cli_json_close(out, '}');
}

/* ---- streams ---- */

static void send_text(neap_answer_choice *c, const char *text, size_t n_text, const neap_answer_token *tokens,
                      size_t n_tokens, const char *finish) {
    neap_answer *a = c->answer;
    neap_cli_text out = {0};
    neap_openai_open(a, &out, object);
    add_choice(c, &out, text, n_text, tokens, n_tokens, finish);
    if (finish != NULL) {
        neap_openai_send_finish(a, &out);
        return;
    }
    neap_openai_choices_end(a, &out);
    neap_openai_send(a, &out);
}

static void begin(neap_answer *a) {
    const extra *e = a->user;
    for (size_t i = 0; e->echo != NULL && i < a->n_choices; i++) {
        const neap_cli_text *text = &e->echo[a->choices[i].prompt];
        send_text(&a->choices[i], neap_cli_text_string(text), text->n, NULL, 0, NULL);
    }
}

static void piece(neap_answer_choice *c, const neap_answer_piece *p) {
    send_text(c, p->text, p->text_bytes, p->tokens, p->n_tokens, NULL);
}

static void finish(neap_answer_choice *c) { send_text(c, "", 0, NULL, 0, c->finish); }

static void end(neap_answer *a) { neap_openai_send_end(a, object); }

static void progress(neap_answer_choice *c, int64_t done, double ms) {
    neap_cli_text out = {0};
    neap_openai_open(c->answer, &out, object);
    add_choice(c, &out, "", 0, NULL, 0, NULL);
    neap_openai_send_progress(c, &out, done, ms);
}

/* ---- whole ---- */

static void whole(neap_answer *a, neap_cli_text *out) {
    const extra *e = a->user;
    neap_openai_open(a, out, object);
    for (size_t i = 0; i < a->n_choices; i++) {
        neap_answer_choice *c = &a->choices[i];
        neap_cli_text text = {0};
        if (e->echo != NULL) neap_cli_text_add(&text, neap_cli_text_string(&e->echo[c->prompt]), e->echo[c->prompt].n);
        neap_cli_text_add(&text, neap_cli_text_string(&c->content), c->content.n);
        add_choice(c, out, neap_cli_text_string(&text), text.n, c->content_tokens.items, c->content_tokens.n,
                   c->finish);
        neap_cli_text_free(&text);
    }
    neap_openai_close(a, out);
}

static const neap_answer_style style = {.api = NEAP_API_COMPLETIONS,
                                        .id_prefix = "cmpl-",
                                        .prepare = prepare,
                                        .begin = begin,
                                        .piece = piece,
                                        .finish = finish,
                                        .end = end,
                                        .progress = progress,
                                        .whole = whole,
                                        .free = release};

void neap_serve_completions(neap_serve_call *c) { neap_answer_start(c, &style); }
