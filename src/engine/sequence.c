/* One request from submit to its last event.
 *
 * A sequence is its tokens plus how many of them the caches hold. Submit copies the request, claims every byte
 * that the sequence will ever need (tokens, text, stop automata, place in the grammar) and queues it; admission gives
 * it a slot and cache pages (admission.c); each step computes some more tokens; when all known ones are computed, the
 * sampler adds one. Tokens and caches move together, in one place (neap_seq_advance), so that a sequence which is
 * cancelled or gives way at any point is consistent.
 *
 * A finished sequence keeps its slot for a look at its caches (neap_seq_caches) only until another request needs
 * it; after an error or a cancel the slot is given back at once. */
#include <assert.h>
#include <string.h>

#include "engine/admission.h"
#include "engine/prefix_use.h"

/* ---- submit ---- */

static neap_status copy_ints(neap_arena *arena, const int32_t *in, size_t n, size_t capacity, int32_t **out) {
    void *p = NULL;
    NEAP_TRY(neap_arena_array(arena, capacity, sizeof *in, &p));
    if (n > 0) memcpy(p, in, n * sizeof *in);
    *out = p;
    return NEAP_OK;
}

static neap_status copy_request(neap_seq *s, const neap_request *r) {
    void *p = NULL;
    int32_t *stop_tokens = NULL;
    s->sampling = r->sampling;
    s->n_prompt = s->n_known = (int32_t)r->n_tokens;
    s->max_tokens = r->max_tokens;
    s->ignore_eos = r->ignore_eos != 0;
    s->all_logits = r->all_logits != 0;
    s->tap = r->tap;
    s->tap_user = r->tap_user;
    s->user = r->user;
    NEAP_TRY(copy_ints(s->arena, r->tokens, r->n_tokens, r->n_tokens + (size_t)r->max_tokens, &s->tokens));
    NEAP_TRY(copy_ints(s->arena, r->stop_tokens, r->n_stop_tokens, r->n_stop_tokens, &stop_tokens));
    s->stop_tokens = stop_tokens;
    s->n_stop_tokens = (int32_t)r->n_stop_tokens;
    NEAP_TRY(neap_arena_array(s->arena, r->sampling.n_bias, sizeof(neap_logit_bias), &p));
    if (r->sampling.n_bias > 0) memcpy(p, r->sampling.bias, r->sampling.n_bias * sizeof(neap_logit_bias));
    s->sampling.bias = p;
    NEAP_TRY(neap_prefix_use_init(s, r));
    if (r->grammar != NULL) NEAP_TRY(neap_grammar_begin(&s->grammar, r->grammar, s->arena));
    return neap_text_init(&s->text, s->arena, r->stop, r->n_stop, s->engine->token_bytes_max);
}

void neap_seq_close_slot(neap_seq *s) {
    if (s->slot < 0) return;
    neap_engine *e = s->engine;
    /* The answer is not touched by it any more; a page that was lost is for whoever runs the engine to know. */
    const neap_status status =
        e->prefix != NULL ? neap_prefix_close(e->prefix, s->slot) : neap_forward_close(e->forward, s->slot);
    if (status != NEAP_OK) neap_log_write(&e->log, NEAP_LOG_ERROR, "%s", neap_last_error());
    s->slot = -1;
    e->n_slots_open--;
    e->changes++;
}

bool neap_seq_reclaim_slot(neap_engine *e) {
    for (neap_seq *s = e->first; s != NULL; s = s->next) {
        if (s->is_done && s->slot >= 0) {
            neap_seq_close_slot(s);
            return true;
        }
    }
    return false;
}

static void link_seq(neap_engine *e, neap_seq *s) {
    s->previous = e->last;
    if (e->last != NULL) {
        e->last->next = s;
    } else {
        e->first = s;
    }
    e->last = s;
    s->number = ++e->n_submitted;
    neap_queue_append(s);
}

/* It is in the queue: runs it, or lets it wait, or says why neither. */
static neap_status place_seq(neap_seq *s) {
    const neap_status status = neap_admission_run(s->engine, s);
    if (s->place == NEAP_SEQ_RUNNING) return NEAP_OK;
    if (status != NEAP_OK && status != NEAP_BUSY) return status;
    return neap_admission_may_wait(s);
}

neap_status neap_submit(neap_engine *e, const neap_request *r, neap_seq **out) {
    NEAP_CHECK(e != NULL, NEAP_INVALID_ARGUMENT, "the engine is NULL");
    NEAP_CHECK(out != NULL, NEAP_INVALID_ARGUMENT, "the place for the sequence is NULL");
    *out = NULL;
    NEAP_CHECK(!e->is_stepping, NEAP_INVALID_ARGUMENT, "neap_submit was called from inside neap_step");
    neap_request request;
    const neap_request_limits limits = {.vocab = e->model->net.vocab,
                                        .context_max = e->options.context_max,
                                        .has_tokenizer = e->model->tokenizer != NULL,
                                        .has_taps = e->options.enable_taps != 0};
    NEAP_TRY(neap_request_take(&request, r, &limits));

    neap_status status = NEAP_OK;
    neap_arena *arena = NULL;
    void *p = NULL;
    NEAP_TRY(neap_arena_create(&arena, "sequence"));
    NEAP_TRY_GOTO(neap_arena_alloc(arena, sizeof(neap_seq), &p));
    neap_seq *s = p;
    s->engine = e;
    s->arena = arena;
    s->slot = -1;
    atomic_init(&s->is_cancelled, false);
    atomic_init(&s->is_paused, false);
    NEAP_TRY_GOTO(copy_request(s, &request));
    link_seq(e, s);
    neap_prefix_use_settle(e); /* nobody may have stepped since the last write to disk ended */
    status = place_seq(s);
    if (status != NEAP_OK) {
        neap_seq_destroy(s);
        return status;
    }
    *out = s;
    return NEAP_OK;
fail:
    neap_arena_destroy(arena);
    return status;
}

/* ---- steps ---- */

void neap_seq_fill_segment(const neap_seq *s, int32_t n_rows, neap_segment *out) {
    const bool is_last = n_rows == neap_seq_rows_left(s);
    const bool is_prompt = !neap_seq_is_decoding(s);
    *out = (neap_segment){.slot = s->slot,
                          .n_rows = n_rows,
                          .position = s->n_computed,
                          .tokens = s->tokens + s->n_computed,
                          .wants_all_logits = s->all_logits && is_prompt,
                          .wants_logits = is_last && (s->max_tokens > 0 || s->tap != NULL),
                          .tap = s->tap,
                          .tap_user = s->tap_user};
}

void neap_seq_begin(neap_seq *s) {
    const neap_event event = {.kind = NEAP_EVENT_BEGIN,
                              .seq = s,
                              .user = s->user,
                              .token = -1,
                              .n_done = s->n_cached,
                              .n_total = s->n_prompt,
                              .n_cached = s->n_cached};
    neap_events_push(&s->engine->events, &event);
    s->has_begun = true;
}

/* After a preemption what was told already is not told again. */
static void push_prompt(neap_seq *s) {
    neap_events *q = &s->engine->events;
    if (s->n_computed <= s->prompt_told || s->n_known > s->n_prompt) return;
    s->prompt_told = s->n_computed;
    neap_event *waiting = s->has_prompt_event ? neap_events_find(q, s->prompt_event) : NULL;
    if (waiting != NULL) { /* nobody has seen the last one yet: it only grows */
        waiting->n_done = s->n_computed;
        return;
    }
    const neap_event event = {.kind = NEAP_EVENT_PROMPT,
                              .seq = s,
                              .user = s->user,
                              .token = -1,
                              .n_done = s->n_computed,
                              .n_total = s->n_prompt,
                              .n_cached = s->n_cached};
    s->prompt_event = neap_events_push(q, &event);
    s->has_prompt_event = true;
}

static bool contains(const int32_t *tokens, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++) {
        if (tokens[i] == token) return true;
    }
    return false;
}

static bool is_stop_token(const neap_seq *s, int32_t token) {
    if (contains(s->stop_tokens, s->n_stop_tokens, token)) return true;
    return !s->ignore_eos && contains(s->engine->eos, s->engine->n_eos, token);
}

/* Text that the token completes. Special tokens have none. True: a stop string ended the answer. */
static bool read_text(neap_seq *s, int32_t token, neap_event *event) {
    const neap_tokenizer *t = s->engine->model->tokenizer;
    const char *bytes = NULL;
    size_t n_bytes = 0;
    int is_special = 0;
    if (t == NULL || neap_token_bytes(t, token, &bytes, &n_bytes, &is_special) != NEAP_OK || is_special) return false;
    return neap_text_push(&s->text, bytes, n_bytes, &event->text, &event->text_bytes);
}

void neap_seq_finish(neap_seq *s, neap_finish finish, neap_status status) {
    neap_event event = {.kind = NEAP_EVENT_DONE,
                        .seq = s,
                        .user = s->user,
                        .token = -1,
                        .n_done = s->n_known - s->n_prompt,
                        .n_total = s->max_tokens,
                        .finish = finish,
                        .status = status,
                        .n_cached = s->n_cached};
    neap_text_flush(&s->text, &event.text, &event.text_bytes);
    neap_events_push(&s->engine->events, &event);
    s->is_done = true;
    if (s->place == NEAP_SEQ_WAITING) neap_queue_remove(s);
    /* What is not finite is not kept; a turn that has ended does not become an error by it. */
    if (finish != NEAP_FINISH_ERROR) (void)!neap_prefix_use_end(s, true);
    if (finish == NEAP_FINISH_CANCELLED || finish == NEAP_FINISH_ERROR) neap_seq_close_slot(s);
}

/* The grammar led to the end because no tokens were left: the form is complete, what it says may not be, and nobody
 * should run a call whose arguments were cut short. */
static bool was_cut(const neap_seq *s, int32_t token) {
    if (s->grammar == NULL || !neap_grammar_was_cut(s->grammar)) return false;
    return neap_grammar_may_end(s->grammar) && !contains(s->stop_tokens, s->n_stop_tokens, token);
}

static void add_token(neap_seq *s, const neap_sample *sample) {
    neap_engine *e = s->engine;
    neap_event event = {.kind = NEAP_EVENT_TOKEN,
                        .seq = s,
                        .user = s->user,
                        .token = sample->token,
                        .logprob = sample->logprob,
                        .top = sample->top,
                        .n_top = sample->n_top,
                        .n_total = s->max_tokens,
                        .n_cached = s->n_cached};
    assert(s->n_known < s->n_prompt + s->max_tokens);
    s->tokens[s->n_known++] = sample->token;
    event.n_done = s->n_known - s->n_prompt;
    e->n_new_tokens++;
    bool is_stopped = is_stop_token(s, sample->token);
    if (!is_stopped) is_stopped = read_text(s, sample->token, &event);
    if (s->grammar != NULL && !is_stopped) is_stopped = neap_grammar_must_end(s->grammar);
    neap_events_push(&e->events, &event);
    if (is_stopped) {
        neap_seq_finish(s, was_cut(s, sample->token) ? NEAP_FINISH_LENGTH : NEAP_FINISH_STOP, NEAP_OK);
    } else if (event.n_done == s->max_tokens) {
        neap_seq_finish(s, NEAP_FINISH_LENGTH, NEAP_OK);
    }
}

static bool is_finite_row(neap_engine *e, const float *logits) {
    int64_t best;
    return e->kernels.argmax(logits, e->model->net.vocab, &best);
}

/* One token from the row; the grammar, if any, says which are allowed and takes the chosen one. */
static neap_status draw(neap_seq *s, float *logits, neap_sample *out) {
    neap_engine *e = s->engine;
    e->sampler.allowed = NULL;
    const int32_t n_left = s->n_prompt + s->max_tokens - s->n_known; /* max_tokens ends with the context at most */
    if (s->grammar != NULL && neap_grammar_mask(s->grammar, e->mask, n_left)) e->sampler.allowed = e->mask;
    NEAP_TRY(neap_sampler_draw(&e->sampler, logits, &s->sampling, s->tokens, s->n_known, out));
    /* The request's own stop tokens are no business of the grammar's. */
    if (s->grammar == NULL || is_stop_token(s, out->token)) return NEAP_OK;
    return neap_grammar_accept(s->grammar, out->token);
}

static void fail_numeric(neap_seq *s) {
    s->engine->n_nonfinite++;
    neap_seq_finish(s, NEAP_FINISH_ERROR, NEAP_NUMERIC);
}

void neap_seq_advance(neap_seq *s, int32_t n_rows, float *logits) {
    neap_engine *e = s->engine;
    const int32_t n_before = s->n_computed;
    s->n_computed += n_rows;
    if (n_before < s->n_prompt) {
        const int32_t end = s->n_computed < s->n_prompt ? s->n_computed : s->n_prompt;
        e->n_prompt_tokens += (uint64_t)(end - n_before);
        push_prompt(s);
    }
    if (neap_seq_rows_left(s) > 0) {
        if (!neap_prefix_use_keep(s)) fail_numeric(s);
        return;
    }
    if (s->max_tokens == 0) {
        if ((logits != NULL && !is_finite_row(e, logits)) || !neap_prefix_use_keep(s)) {
            fail_numeric(s);
        } else {
            neap_seq_finish(s, NEAP_FINISH_LENGTH, NEAP_OK);
        }
        return;
    }
    assert(logits != NULL);
    neap_sample sample;
    const neap_status status = draw(s, logits, &sample);
    if (status == NEAP_OK && neap_prefix_use_keep(s)) {
        add_token(s, &sample);
    } else if (status == NEAP_OK || status == NEAP_NUMERIC) {
        fail_numeric(s);
    } else {
        neap_seq_finish(s, NEAP_FINISH_ERROR, status);
    }
}

/* ---- the caller's side ---- */

neap_status neap_cancel(neap_seq *s) {
    NEAP_CHECK(s != NULL, NEAP_INVALID_ARGUMENT, "the sequence is NULL");
    atomic_store_explicit(&s->is_cancelled, true, memory_order_relaxed);
    return NEAP_OK;
}

neap_status neap_pause(neap_seq *s, int32_t is_paused) {
    NEAP_CHECK(s != NULL, NEAP_INVALID_ARGUMENT, "the sequence is NULL");
    atomic_store_explicit(&s->is_paused, is_paused != 0, memory_order_relaxed);
    return NEAP_OK;
}

void neap_seq_destroy(neap_seq *s) {
    neap_engine *e = s->engine;
    if (s->place == NEAP_SEQ_WAITING) neap_queue_remove(s);
    if (s->place == NEAP_SEQ_RUNNING) neap_running_remove(s);
    neap_events_forget(&e->events, s);
    neap_seq_close_slot(s);
    if (s->previous != NULL) {
        s->previous->next = s->next;
    } else {
        e->first = s->next;
    }
    if (s->next != NULL) {
        s->next->previous = s->previous;
    } else {
        e->last = s->previous;
    }
    neap_arena_destroy(s->arena);
}

void neap_seq_free(neap_seq *s) {
    if (s == NULL) return;
    if (s->engine->is_stepping) {
        s->is_freed = true;
        return;
    }
    neap_seq_destroy(s);
}

neap_status neap_seq_caches(neap_seq *s, neap_tap_fn tap, void *user) {
    NEAP_CHECK(s != NULL, NEAP_INVALID_ARGUMENT, "the sequence is NULL");
    NEAP_CHECK(tap != NULL, NEAP_INVALID_ARGUMENT, "the callback is NULL");
    NEAP_CHECK(!s->engine->is_stepping, NEAP_INVALID_ARGUMENT, "neap_seq_caches was called from inside neap_step");
    NEAP_CHECK(s->slot >= 0, NEAP_NOT_FOUND,
               "the sequence has no caches: it waits, or it has ended and they are given back");
    NEAP_CHECK(s->n_computed > 0, NEAP_NOT_FOUND, "nothing of the sequence is computed yet");
    return neap_forward_caches(s->engine->forward, s->slot, s->n_computed, tap, user);
}
