/* Tokens of a choice become pieces: reasoning, content, tool calls; see answer.h.
 *
 *   event -> pending tokens -> chat parser -> deltas -> stop strings (content alone) -> pieces -> stream or choice
 *
 * Stop strings of a chat may only end the content: inside the reasoning, in arguments or in the format's own text they
 * would break what the client has to read, so they are looked for here and not by the engine. Content that may be the
 * beginning of one is held back. Completions have plain text; there the engine looks for them.
 *
 * A token with its logprob goes with the piece that its text is in. Tokens without text yet (half a character,
 * something the parser holds) wait in `pending`; those of the format end with a special token and belong to no piece.
 *
 * Text of a stream waits for the end of the delivery (neap_answer_delivered): what comes of one kind meanwhile, tokens
 * of several steps when the loop or the steps are that fast, goes out as one piece.
 *
 * Called by answer.c for each event of a job. Owns the choice's texts and lists. */
#include <stdlib.h>
#include <string.h>

#include "../stop_strings.h"
#include "answer_inner.h"

/* ---- lists of tokens ---- */

static neap_answer_token *add_token(neap_answer_tokens *t) {
    if (t->n == t->capacity) {
        t->capacity = t->capacity > 0 ? 2 * t->capacity : 8;
        t->items = neap_cli_grow(t->items, t->capacity, sizeof *t->items);
    }
    neap_answer_token *item = &t->items[t->n++];
    *item = (neap_answer_token){0};
    return item;
}

/* The first n go. */
static void drop_tokens(neap_answer_tokens *t, size_t n) {
    for (size_t i = 0; i < n; i++) free(t->items[i].top);
    if (n > 0) memmove(t->items, t->items + n, (t->n - n) * sizeof *t->items);
    t->n -= n;
}

/* The first n of `from` go to the end of `to`. */
static void move_tokens(neap_answer_tokens *to, neap_answer_tokens *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        *add_token(to) = from->items[i];
        from->items[i].top = NULL;
    }
    drop_tokens(from, n);
}

void neap_answer_tokens_free(neap_answer_tokens *t) {
    if (t->items != NULL) drop_tokens(t, t->n);
    free(t->items);
    *t = (neap_answer_tokens){0};
}

static int wants_logprobs(const neap_answer *a) { return a->params.request.sampling.n_logprobs >= 0; }

static void push_pending(neap_answer_choice *c, const neap_job_event *e) {
    neap_answer_token *item = add_token(&c->pending);
    item->token = e->token;
    item->logprob = e->logprob;
    if (!wants_logprobs(c->answer) || e->n_top <= 0) return;
    item->n_top = e->n_top;
    item->top = neap_cli_alloc((size_t)e->n_top, sizeof *item->top);
    memcpy(item->top, e->top, (size_t)e->n_top * sizeof *item->top);
}

/* What the format said goes: everything up to the last special token. */
static void drop_format(neap_answer_choice *c) {
    for (size_t i = c->pending.n; i > 0; i--) {
        const char *bytes;
        size_t n;
        int is_special = 0;
        if (neap_token_bytes(c->answer->tokenizer, c->pending.items[i - 1].token, &bytes, &n, &is_special) != NEAP_OK ||
            !is_special)
            continue;
        drop_tokens(&c->pending, i);
        return;
    }
}

/* ---- pieces ---- */

static void collect(neap_answer_choice *c, const neap_answer_piece *p) {
    switch (p->kind) {
    case NEAP_CHAT_REASONING: neap_cli_text_add(&c->reasoning, p->text, p->text_bytes); break;
    case NEAP_CHAT_CONTENT: neap_cli_text_add(&c->content, p->text, p->text_bytes); break;
    case NEAP_CHAT_TOOL_CALL:
        c->calls = neap_cli_grow(c->calls, (size_t)c->n_calls, sizeof *c->calls);
        c->calls[c->n_calls - 1] = (neap_answer_call){.id = neap_cli_copy(p->id), .name = neap_cli_copy(p->name)};
        break;
    case NEAP_CHAT_TOOL_ARGS: neap_cli_text_add(&c->calls[c->n_calls - 1].arguments, p->text, p->text_bytes); break;
    case NEAP_CHAT_MESSAGE_END: break;
    }
}

void neap_answer_flush(neap_answer_choice *c) {
    neap_answer *a = c->answer;
    if (!c->has_unsent) return;
    neap_answer_piece p = {.kind = c->unsent_kind,
                           .index = c->unsent_index,
                           .text = neap_cli_text_string(&c->unsent),
                           .text_bytes = c->unsent.n,
                           .tokens = c->unsent_tokens.items,
                           .n_tokens = c->unsent_tokens.n};
    c->has_unsent = 0;
    if (!a->is_gone) a->style->piece(c, &p);
    neap_cli_text_cut(&c->unsent, 0);
    drop_tokens(&c->unsent_tokens, c->unsent_tokens.n);
}

/* A piece of a stream; a call's beginning is sent at once. */
static void stream(neap_answer_choice *c, const neap_answer_piece *p, neap_answer_tokens *list, size_t n) {
    if (c->has_unsent && (c->unsent_kind != p->kind || c->unsent_index != p->index)) neap_answer_flush(c);
    if (p->kind == NEAP_CHAT_TOOL_CALL) {
        c->answer->style->piece(c, p);
        return;
    }
    c->has_unsent = c->answer->has_unsent = 1;
    c->unsent_kind = p->kind;
    c->unsent_index = p->index;
    neap_cli_text_add(&c->unsent, p->text, p->text_bytes);
    if (list != NULL && wants_logprobs(c->answer)) move_tokens(&c->unsent_tokens, list, n);
}

/* tokens: the first n of `list` go with it (and away). */
static void emit(neap_answer_choice *c, neap_answer_piece *p, neap_answer_tokens *list, size_t n) {
    neap_answer *a = c->answer;
    int is_text = p->kind == NEAP_CHAT_CONTENT || p->kind == NEAP_CHAT_REASONING;
    if (is_text && p->text_bytes == 0 && (n == 0 || !wants_logprobs(a))) {
        if (list != NULL) drop_tokens(list, n);
        return;
    }
    if (neap_answer_keeps(a)) collect(c, p);
    size_t before = list != NULL ? list->n : 0;
    if (a->is_streaming && !a->is_gone) stream(c, p, list, n);
    if (list == NULL || list->n < before) return; /* none, or they went with it */
    int keeps = wants_logprobs(a) && !a->is_streaming;
    neap_answer_tokens *to = p->kind == NEAP_CHAT_CONTENT ? &c->content_tokens : &c->reasoning_tokens;
    if (keeps)
        move_tokens(to, list, n);
    else
        drop_tokens(list, n);
}

static void emit_text(neap_answer_choice *c, neap_chat_kind kind, const char *text, size_t n, neap_answer_tokens *list,
                      size_t n_tokens) {
    neap_answer_piece p = {.kind = kind, .text = text, .text_bytes = n};
    emit(c, &p, list, n_tokens);
}

/* ---- stop strings in content ---- */

/* Moves pending tokens behind those whose text is held. */
static void keep_tokens(neap_answer_choice *c) {
    size_t n = c->pending.n;
    c->kept_at = neap_cli_grow(c->kept_at, c->kept.n + n + 1, sizeof *c->kept_at);
    for (size_t i = 0; i < n; i++) c->kept_at[c->kept.n + i] = c->held.n;
    move_tokens(&c->kept, &c->pending, n);
}

static void release(neap_answer_choice *c, size_t ready, int is_all) {
    size_t n = 0;
    while (n < c->kept.n && (is_all || c->kept_at[n] < ready)) n++;
    emit_text(c, NEAP_CHAT_CONTENT, neap_cli_text_string(&c->held), ready, &c->kept, n);
    for (size_t i = 0; i < c->kept.n; i++) c->kept_at[i] = c->kept_at[i + n] > ready ? c->kept_at[i + n] - ready : 0;
    if (c->held.data != NULL) memmove(c->held.data, c->held.data + ready, c->held.n - ready);
    neap_cli_text_cut(&c->held, c->held.n - ready);
}

/* Content ends before the first stop string. is_last: nothing more can come. */
static void add_content(neap_answer_choice *c, const char *text, size_t n, int is_last) {
    const neap_request *r = &c->answer->params.request;
    if (c->is_stopped) return;
    if (r->n_stop == 0 || !c->answer->style->is_chat) {
        emit_text(c, NEAP_CHAT_CONTENT, text, n, &c->pending, c->pending.n);
        return;
    }
    keep_tokens(c);
    neap_cli_text_add(&c->held, text, n);
    const char *held = neap_cli_text_string(&c->held);
    size_t size = c->held.n;
    size_t ready = neap_cli_stop_scan(held, size, r->stop, r->n_stop, &c->stop);
    c->is_stopped = c->stop != NULL;
    if (is_last && !c->is_stopped) ready = size;
    release(c, ready, is_last && !c->is_stopped);
}

/* ---- the parser ---- */

/* Text that is held belongs to the content and comes before whatever follows. */
static void leave_content(neap_answer_choice *c) {
    if (c->held.n > 0) release(c, c->held.n, 1);
}

static void take_call(neap_answer_choice *c, const neap_chat_delta *d) {
    drop_tokens(&c->pending, c->pending.n);
    if (c->n_calls > 0 && !c->answer->params.parallel_calls) {
        c->is_stopped = 1; /* one call was asked for: the answer ends before the second */
        return;
    }
    c->n_calls++;
    neap_answer_piece p = {.kind = NEAP_CHAT_TOOL_CALL,
                           .index = d->index,
                           .text = "",
                           .name = d->name != NULL ? d->name : "",
                           .id = d->id != NULL ? d->id : ""};
    emit(c, &p, NULL, 0);
}

static void take_delta(neap_answer_choice *c, const neap_chat_delta *d) {
    if (c->is_stopped) return;
    if (d->kind != NEAP_CHAT_CONTENT) leave_content(c);
    switch (d->kind) {
    case NEAP_CHAT_REASONING:
        drop_format(c);
        c->n_reasoning += (int64_t)c->pending.n;
        emit_text(c, NEAP_CHAT_REASONING, d->text, d->text_bytes, &c->pending, c->pending.n);
        break;
    case NEAP_CHAT_CONTENT:
        drop_format(c);
        add_content(c, d->text, d->text_bytes, 0);
        break;
    case NEAP_CHAT_TOOL_CALL: take_call(c, d); break;
    case NEAP_CHAT_TOOL_ARGS: {
        drop_tokens(&c->pending, c->pending.n);
        if (c->n_calls == 0 || d->text_bytes == 0) break;
        neap_answer_piece p = {
            .kind = NEAP_CHAT_TOOL_ARGS, .index = d->index, .text = d->text, .text_bytes = d->text_bytes};
        emit(c, &p, NULL, 0);
        break;
    }
    case NEAP_CHAT_MESSAGE_END: drop_tokens(&c->pending, c->pending.n); break;
    }
}

static neap_status drain_parser(neap_answer_choice *c) {
    neap_chat_delta d;
    neap_status status;
    while ((status = neap_chat_parser_next(c->parser, &d)) == NEAP_OK) take_delta(c, &d);
    return status == NEAP_AGAIN ? NEAP_OK : status;
}

/* ---- events ---- */

static void take_begin(neap_answer_choice *c, const neap_job_event *e) {
    neap_server *s = c->answer->server;
    c->is_begun = 1;
    c->begin = neap_http_seconds(c->answer->x) - e->age;
    c->n_cached = e->n_done;
    c->n_prompt_done = e->n_done;
    neap_serve_observe(s, NEAP_HIST_QUEUE, c->begin);
    neap_serve_count(s, NEAP_COUNT_PROMPT_TOKENS, (uint64_t)c->answer->prompts[c->prompt].n_tokens);
    neap_serve_count(s, NEAP_COUNT_CACHED_TOKENS, (uint64_t)e->n_done);
}

static void say_progress(neap_answer_choice *c) {
    neap_answer *a = c->answer;
    if (!a->is_streaming || a->is_gone || !a->params.return_progress || a->style->progress == NULL) return;
    a->style->progress(c, c->n_prompt_done, (neap_http_seconds(a->x) - c->begin) * 1e3);
}

static void take_times(neap_answer_choice *c, double age) {
    neap_server *s = c->answer->server;
    double now = neap_http_seconds(c->answer->x) - age;
    if (c->n_new == 0) {
        c->first = now;
        neap_serve_observe(s, NEAP_HIST_FIRST_TOKEN, now);
    } else {
        neap_serve_observe(s, NEAP_HIST_BETWEEN_TOKENS, now - c->last);
    }
    c->last = now;
    c->n_new++;
    c->n_prompt_done = (int64_t)c->answer->prompts[c->prompt].n_tokens;
    neap_serve_count(s, NEAP_COUNT_NEW_TOKENS, 1);
}

static void take_failure(neap_answer_choice *c, const neap_job_event *e) {
    neap_answer *a = c->answer;
    neap_serve_problem p;
    neap_serve_error error = NEAP_ERROR_INTERNAL;
    const char *text = "the answer could not be computed";
    int timed_out = neap_job_timed_out(c->job);
    if (timed_out != 0) {
        error = NEAP_ERROR_TIMEOUT;
        text =
            timed_out == 2 ? "the request waited too long in the queue" : "the request took longer than its time limit";
        neap_serve_count(a->server, NEAP_COUNT_TIMEOUTS, 1);
    } else if (e->status == NEAP_BUSY) {
        error = NEAP_ERROR_QUEUE;
        text = "too many requests wait already; try again later";
        neap_serve_count(a->server, NEAP_COUNT_REFUSED_QUEUE, 1);
    } else if (e->status == NEAP_CONTEXT_FULL) {
        error = NEAP_ERROR_CONTEXT;
        text = "the prompt does not fit the context";
    } else if (e->status == NEAP_NUMERIC) {
        error = NEAP_ERROR_NUMERIC;
        text = "the model produced numbers that are not finite";
    }
    const char *field = a->style->api == NEAP_API_COMPLETIONS ? "prompt" : "messages";
    neap_serve_problem_set(&p, error, error == NEAP_ERROR_CONTEXT ? field : "", "%s", text);
    if (error == NEAP_ERROR_CONTEXT) {
        neap_engine_options now;
        neap_backend_options_now(a->server->backend, &now);
        p.n_prompt_tokens = (int64_t)a->prompts[c->prompt].n_tokens;
        p.n_ctx = now.context_max;
    }
    if (error == NEAP_ERROR_INTERNAL)
        neap_serve_log_fields(NEAP_LOG_ERROR, "answer failed", "id", neap_http_id(a->x), "why", neap_job_error(c->job),
                              NULL);
    neap_answer_fail(a, &p);
}

static void broken(neap_answer *a, neap_status status) {
    neap_serve_problem p;
    neap_serve_log_fields(NEAP_LOG_ERROR, "answer not understood", "id", neap_http_id(a->x), "why",
                          neap_status_text(status), NULL);
    neap_serve_problem_set(&p, NEAP_ERROR_INTERNAL, "", "the answer could not be read");
    neap_answer_fail(a, &p);
}

static void take_token(neap_answer_choice *c, const neap_job_event *e) {
    neap_status status = NEAP_OK;
    take_times(c, e->age);
    push_pending(c, e);
    if (c->parser == NULL) {
        if (e->text_bytes > 0) add_content(c, e->text, e->text_bytes, 0);
    } else {
        status = neap_chat_parser_feed(c->parser, e->token);
        if (status == NEAP_OK) status = drain_parser(c);
    }
    if (status != NEAP_OK) {
        broken(c->answer, status);
    } else if (c->is_stopped) {
        c->finish = c->n_calls > 0 ? "tool_calls" : "stop";
        neap_answer_choice_done(c);
    }
}

static void take_done(neap_answer_choice *c, const neap_job_event *e) {
    neap_status status = NEAP_OK;
    if (e->finish != NEAP_FINISH_STOP && e->finish != NEAP_FINISH_LENGTH) {
        take_failure(c, e);
        return;
    }
    if (c->parser == NULL) {
        if (e->text_bytes == 0) drop_format(c); /* a stop token; what is left are bytes that made no character */
        if (e->text_bytes > 0 || c->pending.n > 0) add_content(c, e->text, e->text_bytes, 1);
    } else {
        status = neap_chat_parser_finish(c->parser);
        if (status == NEAP_OK) status = drain_parser(c);
        if (status == NEAP_OK && c->held.n > 0) add_content(c, "", 0, 1);
    }
    if (status != NEAP_OK) {
        broken(c->answer, status);
        return;
    }
    c->finish = e->finish == NEAP_FINISH_LENGTH && !c->is_stopped ? "length" : c->n_calls > 0 ? "tool_calls" : "stop";
    neap_answer_choice_done(c);
}

void neap_answer_event(neap_answer_choice *c, const neap_job_event *e) {
    switch (e->kind) {
    case NEAP_EVENT_BEGIN:
        take_begin(c, e);
        say_progress(c);
        break;
    case NEAP_EVENT_PROMPT:
        c->n_prompt_done = e->n_done;
        say_progress(c);
        break;
    case NEAP_EVENT_TOKEN: take_token(c, e); break;
    case NEAP_EVENT_DONE: take_done(c, e); break;
    }
}

void neap_answer_choice_free(neap_answer_choice *c) {
    neap_job_free(c->job);
    neap_chat_parser_destroy(c->parser);
    for (int32_t i = 0; c->calls != NULL && i < c->n_calls; i++) {
        free(c->calls[i].id);
        free(c->calls[i].name);
        neap_cli_text_free(&c->calls[i].arguments);
    }
    free(c->calls);
    free(c->kept_at);
    neap_cli_text_free(&c->content);
    neap_cli_text_free(&c->reasoning);
    neap_cli_text_free(&c->held);
    neap_cli_text_free(&c->unsent);
    neap_answer_tokens_free(&c->unsent_tokens);
    neap_answer_tokens_free(&c->content_tokens);
    neap_answer_tokens_free(&c->reasoning_tokens);
    neap_answer_tokens_free(&c->pending);
    neap_answer_tokens_free(&c->kept);
}
