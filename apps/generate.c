/* One answer: submit, step, poll, split into channels; see generate.h.
 *
 *   submit -> [ step -> poll* ]* -> done
 *                        |
 *                        +-- chat: token -> chat parser -> reasoning / content / tool calls
 *                        +-- plain: the event's text
 *
 * Stop strings of a plain text are the engine's work. In a chat they may only end the content, so they are
 * looked for here, in the content channel: text that may be the beginning of one is held back.
 *
 * SIGINT cancels the sequence; what came before is kept. Called by run and chat. Owns nothing beyond the call. */
#include "generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chance.h"
#include "json_out.h"
#include "report.h"
#include "stop_strings.h"
#include "terminal.h"

/* State of one neap_cli_generate call. */
typedef struct work {
    neap_cli_session *s;
    neap_cli_answer *a;
    neap_chat_parser *parser; /* NULL: plain text */
    neap_cli_text held;       /* content that may be the beginning of a stop string */
    int is_stopped;           /* a stop string was found */
    int n_top;                /* alternatives in the logprobs; -1 = none wanted */
    double begin, first, last;
} work;

/* ---- request ---- */

static int parse_bias(const neap_cli_strings *list, neap_logit_bias **out) {
    *out = NULL;
    if (list->n == 0) return NEAP_EXIT_OK;
    *out = neap_cli_alloc(list->n, sizeof **out);
    for (size_t i = 0; i < list->n; i++) {
        char *end = NULL;
        long id = strtol(list->items[i], &end, 10);
        int has_sign = end != list->items[i] && (*end == '+' || *end == '-');
        float bias = has_sign ? strtof(end, &end) : 0;
        if (!has_sign || *end != 0 || id < 0 || id > INT32_MAX || isnan(bias)) {
            neap_cli_error("--logit-bias: \"%s\" is not of the form ID+X or ID-X", list->items[i]);
            return NEAP_EXIT_USAGE;
        }
        (*out)[i] = (neap_logit_bias){.token = (int32_t)id, .bias = bias};
    }
    return NEAP_EXIT_OK;
}

static void fill_request(neap_request *r, const work *w, const int32_t *tokens, size_t n_tokens) {
    const neap_cli_options *o = w->s->options;
    neap_request_init(r);
    r->tokens = tokens;
    r->n_tokens = n_tokens;
    r->max_tokens = o->predict < 0 ? INT32_MAX : (int32_t)o->predict;
    r->ignore_eos = o->ignore_eos;
    r->sampling.temperature = (float)o->temp;
    r->sampling.top_k = (int32_t)o->top_k;
    r->sampling.top_p = (float)o->top_p;
    r->sampling.min_p = (float)o->min_p;
    r->sampling.repetition_penalty = (float)o->repeat_penalty;
    r->sampling.presence_penalty = (float)o->presence_penalty;
    r->sampling.frequency_penalty = (float)o->frequency_penalty;
    r->sampling.penalty_window = (int32_t)o->repeat_last_n;
    r->sampling.seed = w->a->seed;
    r->sampling.n_logprobs = w->n_top;
    if (w->parser == NULL) {
        r->stop = o->stop.items;
        r->n_stop = o->stop.n;
    }
}

/* ---- channels ---- */

static void emit_content(work *w, const char *text, size_t n) {
    if (n == 0) return;
    neap_cli_text_add(&w->a->content, text, n);
    if (w->a->content_out != NULL) w->a->content_out(text, n);
}

/* Content of a chat: ends before the first stop string. */
static void add_content(work *w, const char *text, size_t n, int is_last) {
    const neap_cli_strings *stop = &w->s->options->stop;
    if (w->is_stopped) return;
    if (stop->n == 0) {
        emit_content(w, text, n);
        return;
    }
    neap_cli_text_add(&w->held, text, n);
    const char *held = neap_cli_text_string(&w->held);
    size_t size = w->held.n;
    const char *found;
    size_t ready = neap_cli_stop_scan(held, size, stop->items, stop->n, &found);
    w->is_stopped = found != NULL;
    if (is_last && !w->is_stopped) ready = size;
    emit_content(w, held, ready);
    memmove(w->held.data, w->held.data + ready, size - ready);
    neap_cli_text_cut(&w->held, size - ready);
}

static void take_delta(work *w, const neap_chat_delta *d) {
    neap_cli_answer *a = w->a;
    switch (d->kind) {
    case NEAP_CHAT_REASONING:
        neap_cli_text_add(&a->reasoning, d->text, d->text_bytes);
        if (a->reasoning_out != NULL) a->reasoning_out(d->text, d->text_bytes);
        break;
    case NEAP_CHAT_CONTENT: add_content(w, d->text, d->text_bytes, 0); break;
    case NEAP_CHAT_TOOL_CALL:
        a->calls = neap_cli_grow(a->calls, a->n_calls + 1, sizeof *a->calls);
        a->calls[a->n_calls++] = (neap_cli_call){.id = neap_cli_copy(d->id != NULL ? d->id : ""),
                                                 .name = neap_cli_copy(d->name != NULL ? d->name : "")};
        break;
    case NEAP_CHAT_TOOL_ARGS:
        if (a->n_calls > 0) neap_cli_text_add(&a->calls[a->n_calls - 1].arguments, d->text, d->text_bytes);
        break;
    case NEAP_CHAT_MESSAGE_END: break;
    }
}

static neap_status drain_parser(work *w) {
    neap_chat_delta d;
    neap_status status;
    while ((status = neap_chat_parser_next(w->parser, &d)) == NEAP_OK) take_delta(w, &d);
    return status == NEAP_AGAIN ? NEAP_OK : status;
}

/* ---- logprobs ---- */

static void add_token(neap_cli_text *out, const neap_tokenizer *t, int32_t token, float logprob) {
    const char *bytes = "";
    size_t n = 0;
    if (neap_token_bytes(t, token, &bytes, &n, NULL) != NEAP_OK) n = 0;
    neap_cli_json_int(out, "id", token);
    neap_cli_json_string(out, "token", bytes, n);
    neap_cli_json_open(out, "bytes", '[');
    for (size_t i = 0; i < n; i++) neap_cli_json_int(out, NULL, (unsigned char)bytes[i]);
    neap_cli_json_close(out, ']');
    neap_cli_json_real(out, "logprob", (double)logprob, 7);
}

static void add_logprobs(work *w, const neap_event *e) {
    neap_cli_text *out = &w->a->logprobs;
    neap_cli_json_open(out, NULL, '{');
    add_token(out, w->s->tokenizer, e->token, e->logprob);
    neap_cli_json_open(out, "top_logprobs", '[');
    for (int32_t i = 0; i < e->n_top; i++) {
        neap_cli_json_open(out, NULL, '{');
        add_token(out, w->s->tokenizer, e->top[i].token, e->top[i].logprob);
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_close(out, '}');
}

/* ---- events ---- */

static neap_status take_event(work *w, const neap_event *e) {
    neap_cli_answer *a = w->a;
    double now = neap_cli_seconds();
    if (e->kind == NEAP_EVENT_PROMPT) {
        double passed = now - w->begin;
        if (passed > 1 && e->n_done < e->n_total && e->n_done > 0)
            neap_cli_progress("reading", "tokens", (uint64_t)e->n_done, (uint64_t)e->n_total,
                              (double)e->n_done / passed);
        return NEAP_OK;
    }
    neap_cli_progress_clear();
    if (e->kind == NEAP_EVENT_TOKEN) {
        if (a->n_new++ == 0) w->first = now;
        w->last = now;
        if (w->n_top >= 0 && !w->is_stopped) add_logprobs(w, e);
    }
    if (w->parser == NULL) {
        emit_content(w, e->text, e->text_bytes);
    } else if (e->kind == NEAP_EVENT_TOKEN) {
        neap_status status = neap_chat_parser_feed(w->parser, e->token);
        if (status == NEAP_OK) status = drain_parser(w);
        if (status != NEAP_OK) return status;
    }
    if (e->kind == NEAP_EVENT_DONE) a->finish = e->finish;
    if (e->kind == NEAP_EVENT_DONE && e->finish == NEAP_FINISH_ERROR) {
        neap_cli_error("the answer ended with an error: %s", neap_status_text(e->status));
        return e->status != NEAP_OK ? e->status : NEAP_INTERNAL;
    }
    return NEAP_OK;
}

/* Steps until the sequence is done. Returns an exit code. */
static int loop(work *w, neap_seq *seq) {
    int is_cancelled = 0;
    while (w->a->finish == NEAP_FINISH_NONE) {
        int wants_end = neap_cli_signal() != 0 || w->is_stopped || neap_cli_output_is_closed();
        if (wants_end && !is_cancelled) {
            is_cancelled = 1;
            neap_status status = neap_cancel(seq);
            if (status != NEAP_OK) return neap_cli_failed(status, NEAP_CLI_RUNNING);
        }
        neap_status stepped = neap_cli_session_step(w->s);
        if (stepped != NEAP_OK && stepped != NEAP_AGAIN) return neap_cli_failed(stepped, NEAP_CLI_RUNNING);
        neap_event event = {.struct_size = sizeof event};
        neap_status polled;
        int n_events = 0;
        while ((polled = neap_poll(w->s->engine, &event)) == NEAP_OK) {
            n_events++;
            neap_status status = take_event(w, &event);
            if (event.kind == NEAP_EVENT_DONE && event.finish == NEAP_FINISH_ERROR)
                return neap_cli_exit_code(status, NEAP_CLI_RUNNING); /* was printed */
            if (status != NEAP_OK) return neap_cli_failed(status, NEAP_CLI_RUNNING);
            if (event.kind == NEAP_EVENT_DONE) break;
        }
        if (polled != NEAP_OK && polled != NEAP_AGAIN) return neap_cli_failed(polled, NEAP_CLI_RUNNING);
        if (stepped == NEAP_AGAIN && n_events == 0) {
            neap_cli_error("the engine has nothing to do although the answer is not complete");
            return NEAP_EXIT_INTERNAL;
        }
    }
    return NEAP_EXIT_OK;
}

int neap_cli_generate(neap_cli_session *s, const int32_t *tokens, size_t n_tokens, const char *request,
                      neap_cli_answer *a) {
    work w = {.s = s, .a = a, .n_top = (int)s->options->logprobs, .begin = neap_cli_seconds()};
    neap_logit_bias *bias = NULL;
    neap_seq *seq = NULL;
    a->n_prompt = n_tokens;
    a->seed = s->options->seed < 0 ? neap_cli_fresh_seed() : (uint64_t)s->options->seed;
    if (w.n_top >= 0) neap_cli_json_open(&a->logprobs, NULL, '[');
    int code = parse_bias(&s->options->logit_bias, &bias);
    if (code == NEAP_EXIT_OK && request != NULL)
        code = neap_cli_failed(neap_chat_parser_create(&w.parser, s->tokenizer, request, strlen(request)),
                               NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) {
        neap_request r;
        fill_request(&r, &w, tokens, n_tokens);
        r.sampling.bias = bias;
        r.sampling.n_bias = s->options->logit_bias.n;
        neap_cli_answer_begin();
        code = neap_cli_failed(neap_submit(s->engine, &r, &seq), NEAP_CLI_RUNNING);
    }
    if (code == NEAP_EXIT_OK) code = loop(&w, seq);
    if (code == NEAP_EXIT_OK && w.parser != NULL) {
        neap_status status = neap_chat_parser_finish(w.parser);
        if (status == NEAP_OK) status = drain_parser(&w);
        code = neap_cli_failed(status, NEAP_CLI_RUNNING);
        add_content(&w, "", 0, 1);
    }
    a->signal_number = neap_cli_signal();
    neap_cli_answer_end();
    neap_cli_progress_clear();
    if (w.is_stopped) a->finish = NEAP_FINISH_STOP;
    if (w.n_top >= 0) neap_cli_json_close(&a->logprobs, ']');
    double end = neap_cli_seconds();
    a->prompt_seconds = (a->n_new > 0 ? w.first : end) - w.begin;
    a->new_seconds = a->n_new > 0 ? w.last - w.first : 0;
    neap_seq_free(seq);
    neap_chat_parser_destroy(w.parser);
    neap_cli_text_free(&w.held);
    free(bias);
    return code;
}

/* ---- results ---- */

void neap_cli_answer_free(neap_cli_answer *a) {
    for (size_t i = 0; i < a->n_calls; i++) {
        free(a->calls[i].id);
        free(a->calls[i].name);
        neap_cli_text_free(&a->calls[i].arguments);
    }
    free(a->calls);
    neap_cli_text_free(&a->content);
    neap_cli_text_free(&a->reasoning);
    neap_cli_text_free(&a->logprobs);
    *a = (neap_cli_answer){0};
}

const char *neap_cli_finish_name(const neap_cli_answer *a) {
    static const char *const names[] = {"error", "stop", "length", "cancelled", "error"};
    if (a->finish == NEAP_FINISH_STOP && a->n_calls > 0) return "tool_calls";
    return names[a->finish <= NEAP_FINISH_ERROR ? a->finish : NEAP_FINISH_ERROR];
}

void neap_cli_answer_calls_json(const neap_cli_answer *a, neap_cli_text *out) {
    if (a->n_calls == 0) return;
    neap_cli_text list = {0};
    neap_cli_json_open(&list, NULL, '[');
    for (size_t i = 0; i < a->n_calls; i++) {
        neap_cli_json_open(&list, NULL, '{');
        neap_cli_json_cstring(&list, "id", a->calls[i].id);
        neap_cli_json_cstring(&list, "type", "function");
        neap_cli_json_open(&list, "function", '{');
        neap_cli_json_cstring(&list, "name", a->calls[i].name);
        neap_cli_json_string(&list, "arguments", neap_cli_text_string(&a->calls[i].arguments), a->calls[i].arguments.n);
        neap_cli_json_close(&list, '}');
        neap_cli_json_close(&list, '}');
    }
    neap_cli_json_close(&list, ']');
    neap_cli_text_add(out, list.data, list.n);
    neap_cli_text_free(&list);
}

void neap_cli_answer_timings(const neap_cli_answer *a, char *text, size_t capacity) {
    double prompt_rate = a->prompt_seconds > 0 ? (double)a->n_prompt / a->prompt_seconds : 0;
    double new_rate = a->n_new > 1 && a->new_seconds > 0 ? (double)(a->n_new - 1) / a->new_seconds : 0;
    snprintf(text, capacity, "prompt: %zu tokens, %.2f s, %.1f t/s | answer: %zu tokens, %.2f s, %.1f t/s", a->n_prompt,
             a->prompt_seconds, prompt_rate, a->n_new, a->new_seconds, new_rate);
}
