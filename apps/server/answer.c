/* The life of an answer; see answer.h.
 *
 *   start -> [prep thread: params, prompts, grammar, parsers] -> submitted -> accepted -> events -> end
 *      |            |                                               |            |
 *      +------------+------- the client leaves, an error, the drain +------------+--> ended
 *
 * An answer is on the server's list until it is freed. Calls that come from outside (an event, a client that left, a
 * tick) are bracketed by enter and leave, so that nothing is freed below somebody's feet; while a prep thread has it,
 * the end waits for `prepared`. A client that leaves cancels all its choices at once, whether they wait, read or
 * write.
 *
 * Called by routes (start), backend (events), http (gone, full), serve.c (tick, drain). Owns everything in the struct
 * but the exchange. */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../chance.h"
#include "../encode.h"
#include "../json_out.h"
#include "../terminal.h"
#include "answer_inner.h"

int neap_answer_keeps(const neap_answer *a) { return !a->params.is_stream || a->keeps_text; }

static void enter(neap_answer *a) { a->depth++; }

/* ---- the end ---- */

/* While a prep thread has the answer there are none, and the choices are not ours to look at. */
static void drop_jobs(neap_answer *a) {
    for (size_t i = 0; !a->is_preparing && a->choices != NULL && i < a->n_choices; i++) {
        neap_job_free(a->choices[i].job);
        a->choices[i].job = NULL;
    }
}

static void answer_free(neap_answer *a) {
    if (a->before != NULL)
        a->before->next = a->next;
    else
        a->server->answers = a->next;
    if (a->next != NULL) a->next->before = a->before;
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) neap_answer_choice_free(&a->choices[i]);
    for (size_t i = 0; i < a->n_prompts; i++) {
        free(a->prompts[i].tokens);
        free(a->prompts[i].marks);
    }
    if (a->style->free != NULL) a->style->free(a);
    neap_shared_grammar_release(a->grammar);
    neap_serve_params_free(&a->params);
    neap_cli_text_free(&a->line);
    free(a->choices);
    free(a->prompts);
    free(a->model);
    free(a->body);
    free(a);
}

/* Where the client left, for the counters. */
static void count_cancelled(neap_answer *a) {
    int is_begun = 0, has_tokens = 0;
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) {
        is_begun |= a->choices[i].is_begun;
        has_tokens |= a->choices[i].n_new > 0;
    }
    neap_serve_count(a->server,
                     has_tokens ? NEAP_COUNT_CANCELLED_DECODE
                     : is_begun ? NEAP_COUNT_CANCELLED_PROMPT
                                : NEAP_COUNT_CANCELLED_QUEUED,
                     1);
}

/* For the line of the log that routes.c writes, unless it is written already: then the client was faster. */
static void record(neap_answer *a, const char *how) {
    neap_serve_record *r = neap_http_user(a->x);
    if (r != NULL) {
        neap_answer_usage u = neap_answer_usage_of(a);
        r->prompt = u.prompt;
        r->cached = u.cached;
        r->fresh = u.fresh;
        r->finish = how != NULL ? how : a->choices[0].finish;
    }
    if (!a->keeps_text) return;
    if (a->params.chat != NULL)
        neap_serve_log_fields(NEAP_LOG_INFO, "content", "id", neap_http_id(a->x), "request", a->params.chat, NULL);
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) {
        neap_answer_choice *c = &a->choices[i];
        neap_serve_log_fields(NEAP_LOG_INFO, "content", "id", neap_http_id(a->x), "reasoning",
                              neap_cli_text_string(&c->reasoning), "content", neap_cli_text_string(&c->content), NULL);
    }
}

/* Nothing more is written; jobs go, the exchange is the connection's again. how: for the log; NULL: as the choices
 * ended. */
static void end(neap_answer *a, const char *how) {
    if (a->is_ended) return;
    a->is_ended = 1;
    drop_jobs(a);
    neap_serve_observe(a->server, NEAP_HIST_REQUEST, neap_http_seconds(a->x));
    if (!a->is_preparing) record(a, how);
    neap_http_watch(a->x, NULL, NULL, NULL);
}

static void leave(neap_answer *a) {
    if (--a->depth > 0) return;
    if (a->is_gone && !a->is_ended && !a->is_preparing) {
        count_cancelled(a);
        end(a, "client left");
        if (a->is_streaming)
            neap_http_end(a->x);
        else
            neap_http_abort(a->x);
    }
    if (a->is_ended && !a->is_preparing) answer_free(a);
}

static void flush(neap_answer *a) {
    a->has_unsent = 0;
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) neap_answer_flush(&a->choices[i]);
}

static void send_error(neap_answer *a, const neap_serve_problem *problem) {
    if (a->style->error != NULL) {
        a->style->error(a, problem);
        return;
    }
    neap_cli_text body = {0};
    neap_serve_problem_body(problem, 0, &body);
    neap_answer_send(a, NULL, neap_cli_text_string(&body), body.n);
    neap_cli_text_free(&body);
}

void neap_answer_fail(neap_answer *a, const neap_serve_problem *problem) {
    if (a->is_ended || a->is_gone) return;
    neap_serve_count(a->server, NEAP_COUNT_ERROR, 1);
    if (a->is_streaming) {
        flush(a);
        send_error(a, problem);
        end(a, "error");
        neap_http_end(a->x);
    } else {
        neap_http_exchange *x = a->x;
        end(a, "error");
        neap_serve_fail(a->server, x, problem, a->style->api == NEAP_API_MESSAGES);
    }
}

static void finish_all(neap_answer *a) {
    if (a->is_streaming) {
        a->style->end(a);
        end(a, NULL);
        neap_http_end(a->x);
        return;
    }
    neap_cli_text body = {0};
    a->style->whole(a, &body);
    end(a, NULL);
    neap_http_reply(a->x, 200, "application/json", neap_cli_text_string(&body), body.n);
    neap_cli_text_free(&body);
}

void neap_answer_choice_done(neap_answer_choice *c) {
    neap_answer *a = c->answer;
    neap_job_free(c->job); /* cancels, when a stop string ended it */
    c->job = NULL;
    c->is_done = 1;
    a->n_done++;
    neap_serve_count(a->server,
                     c->finish[0] == 'l'   ? NEAP_COUNT_LENGTH
                     : c->finish[0] == 't' ? NEAP_COUNT_TOOL_CALLS
                                           : NEAP_COUNT_STOP,
                     1);
    if (a->is_gone) return;
    if (a->is_streaming) {
        neap_answer_flush(c);
        a->style->finish(c);
    }
    if (a->n_done == a->n_choices) finish_all(a);
}

/* ---- what the exchange and the jobs say ---- */

static void on_gone(void *user) {
    neap_answer *a = user;
    enter(a);
    a->is_gone = 1;
    drop_jobs(a);
    leave(a);
}

static void on_full(void *user, int is_full) {
    neap_answer *a = user;
    a->is_full = is_full;
    for (size_t i = 0; a->choices != NULL && !a->is_preparing && i < a->n_choices; i++) {
        if (a->choices[i].job != NULL) neap_job_pause(a->choices[i].job, is_full);
    }
}

static void begin_stream(neap_answer *a) {
    neap_http_begin(a->x, 200, "text/event-stream");
    a->is_streaming = 1;
    a->sent = neap_cli_seconds();
    a->style->begin(a);
}

static void on_accepted(void *user) {
    neap_answer_choice *c = user;
    neap_answer *a = c->answer;
    enter(a);
    c->is_accepted = 1;
    a->n_accepted++;
    if (a->n_accepted == a->n_choices && a->params.is_stream && !a->is_gone && !a->is_ended) begin_stream(a);
    leave(a);
}

static void on_event(void *user, const neap_job_event *e) {
    neap_answer_choice *c = user;
    neap_answer *a = c->answer;
    enter(a);
    if (!a->is_gone && !a->is_ended && !c->is_done) neap_answer_event(c, e);
    leave(a);
}

/* ---- jobs ---- */

static void submit(neap_answer *a) {
    const neap_serve_limits *limits = &a->server->config.limits;
    const neap_serve_params *p = &a->params;
    neap_request r = p->request;
    double deadline = limits->request_seconds;
    char space[256];
    if (p->deadline > 0 && (deadline <= 0 || p->deadline < deadline)) deadline = p->deadline;
    /* the first part has a fixed length or none, so no salt can make one space look like another */
    snprintf(space, sizeof space, "%s%s%s", a->client.space, p->cache_salt != NULL ? ":" : "",
             p->cache_salt != NULL ? p->cache_salt : "");
    r.space = space;
    r.no_prefix = !p->cache_prompt;
    if (a->style->is_chat) r.n_stop = 0, r.stop = NULL;
    uint64_t seed = p->has_seed ? r.sampling.seed : neap_cli_fresh_seed();
    for (size_t i = 0; i < a->n_choices; i++) {
        neap_answer_choice *c = &a->choices[i];
        const neap_answer_prompt *prompt = &a->prompts[c->prompt];
        neap_job_callbacks callbacks = {.accepted = on_accepted, .event = on_event, .user = c};
        r.tokens = prompt->tokens;
        r.n_tokens = prompt->n_tokens;
        r.marks = prompt->marks;
        r.n_marks = prompt->n_marks;
        r.sampling.seed = seed + (uint64_t)(c->index % (int32_t)p->n);
        c->job = neap_job_submit(a->server->backend, &r, a->grammar, deadline, limits->queue_seconds, &callbacks);
    }
    neap_jobs_go(a->server->backend);
}

/* ---- preparing ---- */

void neap_answer_add_prompt(neap_answer *a, int32_t *tokens, size_t n_tokens, int32_t *marks, size_t n_marks) {
    a->prompts = neap_cli_grow(a->prompts, a->n_prompts + 1, sizeof *a->prompts);
    a->prompts[a->n_prompts++] =
        (neap_answer_prompt){.tokens = tokens, .marks = marks, .n_tokens = n_tokens, .n_marks = n_marks};
}

/* What is wrong with all of a schema, or with several together, has no path of its own. */
static const char *constrained_by(const neap_answer *a) {
    if (json_object_get(a->params.root, "response_format") != NULL) return "response_format";
    return json_object_get(a->params.root, "output_config") != NULL ? "output_config" : "tools";
}

int neap_answer_constrain(neap_answer *a, const char *json, size_t n, neap_serve_problem *problem) {
    const neap_serve_limits *limits = &a->server->config.limits;
    neap_grammar *g = NULL;
    neap_grammar_limits l;
    neap_grammar_limits_init(&l);
    l.source_bytes_max = (size_t)limits->grammar_bytes;
    l.states_max = (int32_t)limits->grammar_states;
    l.milliseconds = (int32_t)limits->grammar_ms;
    neap_status status = neap_grammar_create(&g, a->tokenizer, json, n, &l);
    if (status != NEAP_OK) {
        neap_serve_problem_library(problem, status);
        if (problem->param[0] == 0) snprintf(problem->param, sizeof problem->param, "%s", constrained_by(a));
        return -1;
    }
    a->grammar = neap_shared_grammar_create(g);
    return 0;
}

int neap_answer_encode_chat(neap_answer *a, neap_serve_problem *problem) {
    const neap_serve_params *p = &a->params;
    size_t n_tokens = 0, n_marks = 0;
    int32_t *tokens = NULL, *marks = NULL;
    neap_status status =
        neap_cli_chat_to_tokens(a->tokenizer, p->chat, p->chat_bytes, &tokens, &n_tokens, &marks, &n_marks);
    if (status != NEAP_OK) {
        neap_serve_problem_library(problem, status);
        free(tokens);
        free(marks);
        return -1;
    }
    neap_answer_add_prompt(a, tokens, n_tokens, marks, n_marks);
    return p->is_constrained ? neap_answer_constrain(a, p->chat, p->chat_bytes, problem) : 0;
}

static int check_prompts(neap_answer *a, int32_t context_max, neap_serve_problem *problem) {
    const char *param = a->style->api == NEAP_API_COMPLETIONS ? "prompt" : "messages";
    if (a->n_prompts == 0) {
        neap_serve_problem_set(problem, NEAP_ERROR_BAD_VALUE, param, "%s is empty", param);
        return -1;
    }
    for (size_t i = 0; i < a->n_prompts; i++) {
        int64_t n = (int64_t)a->prompts[i].n_tokens;
        if (n == 0) {
            neap_serve_problem_set(problem, NEAP_ERROR_BAD_VALUE, param, "%s is empty", param);
            return -1;
        }
        if (n < context_max || (n == context_max && a->params.max_tokens == 0)) continue;
        neap_serve_problem_set(problem, NEAP_ERROR_CONTEXT, param,
                               "the prompt has %lld tokens, the context %d, and the answer needs at least one",
                               (long long)n, context_max);
        problem->n_prompt_tokens = n;
        problem->n_ctx = context_max;
        return -1;
    }
    return 0;
}

static int make_choices(neap_answer *a, neap_serve_problem *problem) {
    size_t n = (size_t)a->params.n;
    a->n_choices = a->n_prompts * n;
    a->choices = neap_cli_alloc(a->n_choices, sizeof *a->choices);
    for (size_t i = 0; i < a->n_choices; i++) {
        neap_answer_choice *c = &a->choices[i];
        c->answer = a;
        c->index = (int32_t)i;
        c->prompt = (int32_t)(i / n);
        if (!a->style->is_chat) continue;
        neap_status status = neap_chat_parser_create(&c->parser, a->tokenizer, a->params.chat, a->params.chat_bytes);
        if (status == NEAP_OK) continue;
        neap_serve_problem_set(problem, NEAP_ERROR_INTERNAL, "", "%s", neap_status_text(status));
        return -1;
    }
    return 0;
}

/* Prep thread. */
static void prepare(void *user) {
    neap_answer *a = user;
    neap_engine_options now;
    if (atomic_load(&a->is_gone)) return;
    neap_backend_options_now(a->server->backend, &now);
    int failed = neap_serve_params_read(&a->params, a->server, a->style->api, a->body, a->body_bytes, a->tokenizer,
                                        now.context_max, &a->problem);
    if (!failed) failed = a->style->prepare(a, &a->problem);
    if (!failed) failed = check_prompts(a, now.context_max, &a->problem);
    if (!failed) failed = make_choices(a, &a->problem);
    a->has_problem = failed != 0;
    /* a request may wait long, so it keeps nothing that it only needed until now: a body may be large */
    free(a->body);
    a->body = NULL;
    json_decref(a->params.root);
    a->params.root = a->params.prompt = NULL;
    if (a->keeps_text) return;
    free(a->params.chat);
    a->params.chat = NULL;
    a->params.chat_bytes = 0;
}

/* Loop thread. */
static void prepared(void *user) {
    neap_answer *a = user;
    enter(a);
    a->is_preparing = 0;
    if (!a->is_ended) neap_http_body_freed(a->x);
    if (!a->is_gone && !a->is_ended) {
        if (a->params.n_unknown > 0) neap_serve_count(a->server, NEAP_COUNT_UNKNOWN_FIELDS, a->params.n_unknown);
        if (a->has_problem)
            neap_answer_fail(a, &a->problem);
        else
            submit(a);
    }
    leave(a);
}

void neap_answer_start(neap_serve_call *call, const neap_answer_style *style) {
    neap_server *s = call->server;
    neap_answer *a = neap_cli_alloc(1, sizeof *a);
    a->server = s;
    a->x = call->x;
    a->client = call->client;
    a->style = style;
    a->tokenizer = neap_model_tokenizer(neap_backend_model(s->backend));
    a->created = (int64_t)time(NULL);
    a->started = neap_cli_seconds();
    a->model = neap_cli_copy(s->config.alias);
    a->keeps_text = s->config.log_content;
    a->params.n = 1;
    char id[NEAP_CLI_ID_CHARACTERS + 1];
    neap_cli_fresh_id(id);
    snprintf(a->id, sizeof a->id, "%s%s", style->id_prefix, id);
    a->body = neap_http_take_body(a->x, &a->body_bytes);
    a->next = s->answers;
    if (s->answers != NULL) s->answers->before = a;
    s->answers = a;
    neap_serve_count(s, NEAP_COUNT_REQUESTS, 1);
    neap_serve_tick(s);
    enter(a);
    neap_http_watch(a->x, on_gone, on_full, a);
    neap_serve_problem p;
    if (a->tokenizer == NULL) {
        neap_serve_problem_set(&p, NEAP_ERROR_NOT_SUPPORTED, "", "the model has no tokenizer, so it cannot read text");
        neap_answer_fail(a, &p);
    } else {
        a->is_preparing = neap_backend_prepare(s->backend, prepare, prepared, a);
        if (!a->is_preparing) {
            neap_serve_problem_set(&p, NEAP_ERROR_QUEUE, "", "too many requests wait already; try again later");
            neap_serve_count(s, NEAP_COUNT_REFUSED_QUEUE, 1);
            neap_answer_fail(a, &p);
        }
    }
    leave(a);
}

/* ---- for styles ---- */

void neap_answer_send(neap_answer *a, const char *name, const char *json, size_t n) {
    if (a->is_gone || a->is_ended) return;
    neap_cli_text *line = &a->line; /* one chunk of HTTP for each event */
    neap_cli_text_cut(line, 0);
    if (name != NULL) {
        neap_cli_text_add(line, "event: ", 7);
        neap_cli_text_puts(line, name);
        neap_cli_text_add(line, "\n", 1);
    }
    neap_cli_text_add(line, "data: ", 6);
    neap_cli_text_add(line, json, n);
    neap_cli_text_add(line, "\n\n", 2);
    neap_http_write(a->x, line->data, line->n);
    a->sent = neap_cli_seconds();
}

neap_answer_usage neap_answer_usage_of(const neap_answer *a) {
    neap_answer_usage u = {0};
    int32_t prompt = -1;
    for (size_t i = 0; a->choices != NULL && i < a->n_choices; i++) {
        const neap_answer_choice *c = &a->choices[i];
        u.fresh += c->n_new;
        u.reasoning += c->n_reasoning;
        if (c->prompt == prompt) continue;
        prompt = c->prompt;
        u.prompt += (int64_t)a->prompts[prompt].n_tokens;
        u.cached += c->n_cached;
    }
    return u;
}

void neap_answer_usage_json(const neap_answer *a, neap_cli_text *out, const char *key) {
    neap_answer_usage u = neap_answer_usage_of(a);
    neap_cli_json_open(out, key, '{');
    neap_cli_json_int(out, "prompt_tokens", u.prompt);
    neap_cli_json_int(out, "completion_tokens", u.fresh);
    neap_cli_json_int(out, "total_tokens", u.prompt + u.fresh);
    neap_cli_json_open(out, "prompt_tokens_details", '{');
    neap_cli_json_int(out, "cached_tokens", u.cached);
    neap_cli_json_close(out, '}');
    neap_cli_json_open(out, "completion_tokens_details", '{');
    neap_cli_json_int(out, "reasoning_tokens", u.reasoning);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

static void add_rate(neap_cli_text *out, const char *what, int64_t n, double seconds) {
    char key[48];
    snprintf(key, sizeof key, "%s_n", what);
    neap_cli_json_int(out, key, n);
    snprintf(key, sizeof key, "%s_ms", what);
    neap_cli_json_real(out, key, seconds * 1e3, 6);
    snprintf(key, sizeof key, "%s_per_token_ms", what);
    neap_cli_json_real(out, key, n > 0 ? seconds * 1e3 / (double)n : 0, 6);
    snprintf(key, sizeof key, "%s_per_second", what);
    neap_cli_json_real(out, key, seconds > 0 ? (double)n / seconds : 0, 6);
}

void neap_answer_timings_json(const neap_answer *a, neap_cli_text *out, const char *key) {
    neap_answer_usage u = neap_answer_usage_of(a);
    double begin = 0, first = 0, last = 0;
    for (size_t i = 0; i < a->n_choices; i++) {
        const neap_answer_choice *c = &a->choices[i];
        if (i == 0 || c->begin < begin) begin = c->begin;
        if (i == 0 || c->first < first) first = c->first;
        if (c->last > last) last = c->last;
    }
    neap_cli_json_open(out, key, '{');
    neap_cli_json_int(out, "cache_n", u.cached);
    neap_cli_json_real(out, "queue_ms", begin * 1e3, 6);
    add_rate(out, "prompt", u.prompt - u.cached, first > begin ? first - begin : 0);
    add_rate(out, "predicted", u.fresh, last > first ? last - first : 0);
    neap_cli_json_close(out, '}');
}

void neap_answer_token_text(const neap_answer *a, int32_t token, neap_cli_text *out) {
    const char *bytes = "";
    size_t n = 0;
    if (neap_token_bytes(a->tokenizer, token, &bytes, &n, NULL) != NEAP_OK) n = 0;
    for (size_t i = 0; i < n;) {
        size_t bad, length = neap_cli_utf8_length(bytes + i, n - i, &bad);
        if (length > 0)
            neap_cli_text_add(out, bytes + i, length);
        else
            neap_cli_text_puts(out, "\xef\xbf\xbd");
        i += length > 0 ? length : bad;
    }
}

/* ---- for serve.c ---- */

static void ping(neap_answer *a) {
    int64_t done = 0, total = 0;
    for (size_t i = 0; i < a->n_choices; i++) {
        done += a->choices[i].n_prompt_done;
        total += (int64_t)a->prompts[a->choices[i].prompt].n_tokens;
    }
    if (a->style->ping != NULL) {
        a->style->ping(a, done, total);
    } else {
        char text[64];
        int n = snprintf(text, sizeof text, ": ping %lld/%lld\n\n", (long long)done, (long long)total);
        neap_http_write(a->x, text, (size_t)n);
    }
    a->sent = neap_cli_seconds();
}

void neap_answer_delivered(neap_server *s) {
    for (neap_answer *a = s->answers, *next; a != NULL; a = next) {
        next = a->next;
        if (!a->has_unsent) continue;
        enter(a);
        flush(a);
        leave(a);
    }
}

void neap_answer_tick(neap_server *s) {
    double now = neap_cli_seconds(), every = s->config.limits.ping_seconds;
    for (neap_answer *a = s->answers, *next; a != NULL && every > 0; a = next) {
        next = a->next; /* leave frees this one alone */
        if (!a->is_streaming || a->is_ended || a->is_gone || a->is_full || now - a->sent < every) continue;
        enter(a);
        ping(a);
        leave(a);
    }
}

void neap_answer_fail_all(neap_server *s, const neap_serve_problem *problem) {
    for (neap_answer *a = s->answers, *next; a != NULL; a = next) {
        next = a->next;
        enter(a);
        neap_answer_fail(a, problem);
        leave(a);
    }
}

void neap_answer_free_all(neap_server *s) {
    while (s->answers != NULL) {
        if (!s->answers->is_ended) neap_http_watch(s->answers->x, NULL, NULL, NULL);
        answer_free(s->answers);
    }
}
