/* A model without weights, an engine over the fake forward, and a driver that collects what a sequence says.
 * Shared by the tests of the engine room. */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_forward.h"

enum { SAID_MAX = 2048, SAID_TEXT_MAX = 8192 };

/* Everything that the events of one sequence told. */
typedef struct said {
    int32_t tokens[SAID_MAX];
    float logprobs[SAID_MAX];
    int32_t n_tokens;
    char text[SAID_TEXT_MAX];
    size_t n_text;
    int64_t n_prompt_done, n_prompt_total;
    int32_t n_prompt_events;
    bool has_begun, is_done;
    neap_finish finish;
    neap_status status;
} said;

static inline neap_model fake_model(neap_tokenizer *t, int32_t vocab) {
    neap_model m = {.context_max = 4096, .is_loaded = true, .tokenizer = t, .packed_bytes = 12345};
    m.net.vocab = t != NULL ? neap_tokenizer_vocab(t) : vocab;
    return m;
}

static inline neap_engine *open_engine(const neap_model *m, int32_t seqs_max, int32_t context_max, int32_t batch) {
    neap_engine_options o;
    neap_engine *e = NULL;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.seqs_max = seqs_max;
    o.context_max = context_max;
    o.batch_tokens_max = batch;
    o.enable_taps = 1;
    assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
    return e;
}

static inline neap_request request_of(const int32_t *tokens, size_t n, int32_t max_tokens, said *into) {
    neap_request r;
    neap_request_init(&r);
    r.tokens = tokens;
    r.n_tokens = n;
    r.max_tokens = max_tokens;
    r.user = into;
    return r;
}

static inline neap_seq *submit(neap_engine *e, const neap_request *r) {
    neap_seq *s = NULL;
    if (r->user != NULL) memset(r->user, 0, sizeof(said));
    assert_int_equal(neap_submit(e, r, &s), NEAP_OK);
    assert_non_null(s);
    return s;
}

static inline void hear(const neap_event *event) {
    said *s = event->user;
    if (s == NULL) return;
    assert_false(s->is_done); /* DONE is the last event of a sequence */
    if (event->kind == NEAP_EVENT_BEGIN) {
        assert_false(s->has_begun); /* once, before all others */
        assert_int_equal(s->n_prompt_events + s->n_tokens, 0);
        s->has_begun = true;
        return;
    }
    assert_true(s->has_begun || (event->kind == NEAP_EVENT_DONE && s->n_tokens == 0));
    if (event->kind == NEAP_EVENT_PROMPT) {
        assert_int_equal(s->n_tokens, 0);
        assert_true(event->n_done > s->n_prompt_done);
        s->n_prompt_done = event->n_done;
        s->n_prompt_total = event->n_total;
        s->n_prompt_events++;
        return;
    }
    assert_non_null(event->text);
    assert_int_equal(event->text[event->text_bytes], '\0');
    assert_true(s->n_text + event->text_bytes < sizeof s->text);
    memcpy(s->text + s->n_text, event->text, event->text_bytes);
    s->n_text += event->text_bytes;
    if (event->kind == NEAP_EVENT_TOKEN) {
        assert_true(s->n_tokens < SAID_MAX);
        s->logprobs[s->n_tokens] = event->logprob;
        s->tokens[s->n_tokens++] = event->token;
        assert_int_equal(event->n_done, s->n_tokens);
    } else {
        s->is_done = true;
        s->finish = event->finish;
        s->status = event->status;
    }
}

static inline int drain(neap_engine *e) {
    neap_event event = {.struct_size = sizeof event};
    int n = 0;
    for (; neap_poll(e, &event) == NEAP_OK; n++) hear(&event);
    return n;
}

/* Steps until nothing runs. Returns the steps taken. */
static inline int run_all(neap_engine *e) {
    int steps = 0;
    neap_status status;
    while ((status = neap_step(e)) == NEAP_OK) {
        drain(e);
        steps++;
    }
    assert_int_equal(status, NEAP_AGAIN);
    drain(e);
    return steps;
}

static inline void assert_same_said(const said *a, const said *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof a->tokens[0]);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n_tokens * sizeof a->logprobs[0]);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
}

/* What the request says when it is alone on a fresh engine. */
static inline void solo(const neap_model *m, const neap_request *r, int32_t context_max, said *out) {
    neap_engine *e = open_engine(m, 1, context_max, 32);
    neap_request mine = *r;
    mine.user = out;
    submit(e, &mine);
    run_all(e);
    assert_true(out->is_done);
    neap_engine_destroy(e);
}

static inline void fill_prompt(int32_t *tokens, int32_t n, int32_t vocab, uint32_t seed) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % (uint32_t)vocab);
    }
}

#endif
