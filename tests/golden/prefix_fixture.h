/* Requests over real layers whose answers are kept whole, to be compared bit by bit with the same request alone on an
 * engine that keeps nothing. Shared by test_prefix.c and test_admission.c. */
#ifndef PREFIX_FIXTURE_H
#define PREFIX_FIXTURE_H

#include "trace.h"

#include "engine/engine_internal.h"

enum { ANSWER_MAX = 208, TOP = 8, ROOM = 2048 };

/* What a request said, and what its caches held at the end. */
typedef struct said {
    int32_t n_tokens;
    int32_t tokens[ANSWER_MAX];
    float logprobs[ANSWER_MAX];
    neap_logprob best[ANSWER_MAX][TOP];
    int64_t n_cached, n_prompt_told;
    bool has_begun, is_done;
    neap_finish finish;
    neap_status status;
    uint64_t caches; /* hash; 0: not looked at */
} said;

typedef struct question {
    int32_t tokens[ROOM];
    int32_t marks[8];
    neap_request request;
    said wanted, heard;
    neap_seq *seq;
} question;

static inline void hear(const neap_event *event) {
    said *s = event->user;
    DEMAND(!s->is_done);
    if (event->kind == NEAP_EVENT_BEGIN) {
        DEMAND(!s->has_begun && s->n_tokens == 0 && s->n_prompt_told == 0);
        s->has_begun = true;
        s->n_cached = event->n_done;
    } else if (event->kind == NEAP_EVENT_PROMPT) {
        DEMAND(s->has_begun && s->n_tokens == 0 && event->n_done > s->n_prompt_told);
        s->n_prompt_told = event->n_done;
    } else if (event->kind == NEAP_EVENT_TOKEN) {
        DEMAND(s->has_begun && s->n_tokens < ANSWER_MAX && event->n_top == TOP);
        memcpy(s->best[s->n_tokens], event->top, sizeof s->best[0]);
        s->logprobs[s->n_tokens] = event->logprob;
        s->tokens[s->n_tokens++] = event->token;
    } else {
        s->is_done = true;
        s->finish = event->finish;
        s->status = event->status;
    }
    if (event->kind != NEAP_EVENT_BEGIN && s->has_begun) DEMAND(event->n_cached == s->n_cached);
}

static inline void drain(neap_engine *e) {
    neap_event event = {.struct_size = sizeof event};
    while (neap_poll(e, &event) == NEAP_OK) hear(&event);
}

/* A step that asks for no memory. */
static inline neap_status step(neap_engine *e) {
    const uint64_t n = neap_alloc_calls();
    const neap_status status = neap_step(e);
    if (neap_alloc_calls() != n) fail_msg("%d allocations in a step", (int)(neap_alloc_calls() - n));
    return status;
}

static inline void run_all(neap_engine *e) {
    neap_status status;
    while ((status = step(e)) == NEAP_OK) drain(e);
    if (status != NEAP_AGAIN) fail_msg("step: %s, %s", neap_status_name(status), neap_last_error());
    drain(e);
}

static inline neap_engine_options options_of(int32_t context_max, int32_t batch) {
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.context_max = context_max;
    o.batch_tokens_max = batch;
    return o;
}

static inline neap_engine *create(const neap_model *m, const neap_engine_options *o) {
    neap_engine *e = NULL;
    if (neap_engine_create(&e, m, o) != NEAP_OK) fail_msg("%s: %s", m->dir, neap_last_error());
    return e;
}

/* A request for what lies in q->tokens. */
static inline void ask(question *q, int32_t n, int32_t max_tokens, uint32_t seed) {
    neap_request_init(&q->request);
    q->request.tokens = q->tokens;
    q->request.n_tokens = (size_t)n;
    q->request.max_tokens = max_tokens;
    q->request.ignore_eos = 1;
    q->request.sampling.n_logprobs = TOP;
    q->request.sampling.temperature = seed % 2 ? 0.9f : 0.0f;
    q->request.sampling.seed = seed;
    q->request.user = &q->heard;
}

static inline neap_status try_submit(neap_engine *e, question *q) {
    memset(&q->heard, 0, sizeof q->heard);
    q->request.user = &q->heard;
    return neap_submit(e, &q->request, &q->seq);
}

static inline void submit(neap_engine *e, question *q) {
    const neap_status status = try_submit(e, q);
    if (status != NEAP_OK) fail_msg("submit: %s, %s", neap_status_name(status), neap_last_error());
}

static inline void add_cache(void *user, const neap_tap *tap) {
    size_t n = 4;
    for (int32_t i = 0; i < tap->rank; i++) n *= (size_t)tap->shape[i];
    uint64_t *h = user;
    *h = (*h ^ hash_bytes(tap->data, n)) * 1099511628211u;
}

/* Alone, to its end, on whatever engine; with a look at its caches. */
static inline void run_one(neap_engine *e, question *q) {
    submit(e, q);
    run_all(e);
    if (neap_seq_caches(q->seq, add_cache, &q->heard.caches) != NEAP_OK) q->heard.caches = 0;
    neap_seq_free(q->seq);
    q->seq = NULL;
}

/* On `cold`, an engine without a prefix cache. */
static inline void solo(neap_engine *cold, question *q) {
    run_one(cold, q);
    q->wanted = q->heard;
    DEMAND(q->wanted.n_cached == 0);
}

static inline void compare(const question *q, const char *model, const char *what) {
    const said *h = &q->heard, *w = &q->wanted;
    if (!h->is_done) fail_msg("%s, %s: no end", model, what);
    const bool is_cut = h->finish == NEAP_FINISH_CANCELLED;
    if (!is_cut && (h->finish != w->finish || h->n_tokens != w->n_tokens))
        fail_msg("%s, %s: %d tokens, end %d, status %d; alone %d, %d", model, what, h->n_tokens, h->finish, h->status,
                 w->n_tokens, w->finish);
    if (h->n_tokens > w->n_tokens) fail_msg("%s, %s: more tokens than alone", model, what);
    for (int32_t i = 0; i < h->n_tokens; i++) {
        if (h->tokens[i] != w->tokens[i] || h->logprobs[i] != w->logprobs[i] ||
            memcmp(h->best[i], w->best[i], sizeof w->best[i]) != 0)
            fail_msg("%s, %s: token %d is not the one of the solo run (%lld tokens were cached)", model, what, i,
                     (long long)h->n_cached);
    }
    if (h->caches != 0 && h->caches != w->caches)
        fail_msg("%s, %s: the caches are not those of the solo run (%lld tokens were cached)", model, what,
                 (long long)h->n_cached);
}

/* Books of pages, tree and states; nothing may run. */
static inline void audit(const neap_engine *e) {
    if (neap_caches_audit(neap_forward_cache_books(e->forward)) != NEAP_OK) fail_msg("%s", neap_last_error());
    if (e->prefix != NULL && neap_prefix_audit(e->prefix) != NEAP_OK) fail_msg("%s", neap_last_error());
}

static inline neap_engine_stats stats_of(const neap_engine *e) {
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    return stats;
}

/* Every handle was freed: all pages are free or in the tree, all slots closed, all lists empty. */
static inline void check_all_is_back(neap_engine *e) {
    const neap_engine_stats stats = stats_of(e);
    assert_int_equal(stats.seqs_running, 0);
    assert_int_equal(stats.seqs_waiting, 0);
    assert_int_equal(stats.waiting_tokens, 0);
    assert_int_equal(stats.cache_tokens_used, 0);
    assert_int_equal(e->n_slots_open, 0);
    audit(e);
    if (e->prefix != NULL) neap_prefix_clear(e->prefix);
    assert_int_equal(neap_forward_cache_used(e->forward), 0);
    audit(e);
}

#endif
