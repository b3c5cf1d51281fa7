/* The whole engine over real layers, through the public API: random schedules in which every request answers
 * exactly as it does alone, answers that go on after a cancel, NaN in one sequence's memory, constant memory over
 * a long answer.
 *
 * NEAP_LONG=1 in the environment runs 500 schedules per model and 20,000 decode steps. */
#include "trace.h"

#include <math.h>
#include <unistd.h>

#include "engine/engine_internal.h"

enum { REQUESTS = 12, PROMPT_MAX = 70, SAID_MAX = 64, CTX = 128 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long;

typedef struct said {
    int32_t n_tokens;
    int32_t tokens[SAID_MAX];
    neap_logprob best[SAID_MAX][5]; /* log probabilities are compared bit by bit: the logits behind them are, too */
    bool is_done;
    neap_finish finish;
    neap_status status;
} said;

typedef struct request_case {
    int32_t prompt[PROMPT_MAX];
    neap_request request;
    said wanted, heard;
    neap_seq *seq;
    int32_t cancel_at; /* -1: never */
} request_case;

static neap_engine *open_engine(const neap_model *m, int32_t seqs_max, int32_t batch, int32_t n_threads) {
    neap_engine *e = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = n_threads;
    o.oversubscribe = 1;
    o.seqs_max = seqs_max;
    o.context_max = CTX;
    o.batch_tokens_max = batch;
    if (neap_engine_create(&e, m, &o) != NEAP_OK) fail_msg("%s: %s", m->dir, neap_last_error());
    return e;
}

static void drain(neap_engine *e) {
    neap_event event = {.struct_size = sizeof event};
    while (neap_poll(e, &event) == NEAP_OK) {
        said *s = event.user;
        if (event.kind == NEAP_EVENT_TOKEN) {
            assert_true(s->n_tokens < SAID_MAX);
            assert_int_equal(event.n_top, 5);
            memcpy(s->best[s->n_tokens], event.top, sizeof s->best[0]);
            s->tokens[s->n_tokens++] = event.token;
        } else if (event.kind == NEAP_EVENT_DONE) {
            s->is_done = true;
            s->finish = event.finish;
            s->status = event.status;
        }
    }
}

static void submit(neap_engine *e, request_case *c, said *into) {
    memset(into, 0, sizeof *into);
    c->request.user = into;
    assert_int_equal(neap_submit(e, &c->request, &c->seq), NEAP_OK);
}

static void run_all(neap_engine *e) {
    while (neap_step(e) == NEAP_OK) drain(e);
    drain(e);
}

static void make_case(request_case *c, const neap_model *m, uint32_t seed) {
    const int32_t n = 1 + (int32_t)random_below(&seed, PROMPT_MAX);
    random_tokens(c->prompt, n, m->net.vocab, seed);
    neap_request_init(&c->request);
    c->request.tokens = c->prompt;
    c->request.n_tokens = (size_t)n;
    c->request.max_tokens = 1 + (int32_t)random_below(&seed, 25);
    c->request.ignore_eos = 1;
    neap_sampling *how = &c->request.sampling;
    how->n_logprobs = 5;
    how->temperature = random_below(&seed, 2) ? 0.9f : 0.0f;
    how->top_p = random_below(&seed, 2) ? 0.95f : 1.0f;
    how->frequency_penalty = random_below(&seed, 2) ? 0.2f : 0.0f;
    how->seed = seed;
}

static void check_case(const request_case *c, const char *name) {
    const said *h = &c->heard;
    const said *w = &c->wanted;
    if (!h->is_done) fail_msg("%s: a sequence has no end", name);
    const bool is_cut = h->finish == NEAP_FINISH_CANCELLED;
    if (is_cut ? h->n_tokens > w->n_tokens : h->n_tokens != w->n_tokens) {
        fail_msg("%s: %d tokens, alone %d", name, h->n_tokens, w->n_tokens);
    }
    for (int32_t i = 0; i < h->n_tokens; i++) {
        if (h->tokens[i] != w->tokens[i] || memcmp(h->best[i], w->best[i], sizeof w->best[i]) != 0) {
            fail_msg("%s: token %d differs from the solo run", name, i);
        }
    }
}

static void one_schedule(const neap_model *m, request_case *cases, uint32_t *seed) {
    static const int32_t batches[] = {1, 2, 3, 7, 16, 33, 64, 128};
    neap_engine *e = open_engine(m, 1 + (int32_t)random_below(seed, 6), batches[random_below(seed, 8)],
                                 1 + (int32_t)random_below(seed, 2));
    const int n = 2 + (int)random_below(seed, REQUESTS - 1);
    int next = 0;
    bool is_running = false;
    for (int i = 0; i < REQUESTS; i++) cases[i].seq = NULL;
    while (next < n || is_running) {
        while (next < n && random_below(seed, 3)) {
            request_case *c = &cases[next];
            c->cancel_at = random_below(seed, 5) ? -1 : (int32_t)random_below(seed, 12);
            memset(&c->heard, 0, sizeof c->heard);
            c->request.user = &c->heard;
            if (neap_submit(e, &c->request, &c->seq) != NEAP_OK) break;
            next++;
        }
        is_running = neap_step(e) == NEAP_OK;
        drain(e);
        for (int i = 0; i < next; i++) {
            if (cases[i].cancel_at >= 0 && cases[i].heard.n_tokens >= cases[i].cancel_at) neap_cancel(cases[i].seq);
        }
    }
    for (int i = 0; i < n; i++) check_case(&cases[i], base_name(m->dir));
    neap_engine_destroy(e);
}

static void test_random_schedules(void **state) {
    (void)state;
    static request_case cases[REQUESTS];
    uint32_t seed = 20;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        for (int k = 0; k < REQUESTS; k++) make_case(&cases[k], m, (uint32_t)(1000 * i + k));
        for (int k = 0; k < REQUESTS; k++) {
            neap_engine *e = open_engine(m, 1, 128, 1);
            submit(e, &cases[k], &cases[k].wanted);
            run_all(e);
            assert_int_equal(cases[k].wanted.finish, NEAP_FINISH_LENGTH);
            assert_int_equal(cases[k].wanted.n_tokens, cases[k].request.max_tokens);
            neap_engine_destroy(e);
        }
        for (int k = 0; k < (is_long ? 500 : 24); k++) one_schedule(m, cases, &seed);
        neap_model_close(m);
    }
}

/* Cancel, then go on with history + answer + new tokens: as if it had been asked from the start. */
static void test_go_on_after_cancel(void **state) {
    (void)state;
    for (int i = 0; i < n_paths; i++) {
        static request_case first;
        static request_case next;
        neap_model *m = open_model(paths[i], NULL);
        make_case(&first, m, 7);
        first.request.max_tokens = 40;
        neap_engine *e = open_engine(m, 1, 32, 2);
        submit(e, &first, &first.heard);
        while (first.heard.n_tokens < 7) {
            assert_int_equal(neap_step(e), NEAP_OK);
            drain(e);
        }
        neap_cancel(first.seq);
        run_all(e);
        assert_int_equal(first.heard.finish, NEAP_FINISH_CANCELLED);
        make_case(&next, m, 8);
        const size_t n = 30;
        memcpy(next.prompt + n, first.heard.tokens, 7 * sizeof(int32_t));
        memcpy(next.prompt + n + 7, first.prompt, 5 * sizeof(int32_t));
        random_tokens(next.prompt, (int32_t)n, m->net.vocab, 3);
        next.request.n_tokens = n + 12;
        submit(e, &next, &next.heard);
        run_all(e);
        neap_engine_destroy(e);
        e = open_engine(m, 1, 128, 1);
        submit(e, &next, &next.wanted);
        run_all(e);
        check_case(&next, base_name(paths[i]));
        neap_engine_destroy(e);
        neap_model_close(m);
    }
}

/* NaN into one layer's memory of one of three sequences, in every kind of layer and at several steps: that one
 * ends with an error, the others and the next one in the same slot are bit for bit what they are alone. */
static void spoil(neap_engine *e, const neap_seq *s, int32_t layer) {
    const neap_cache_layer_spec *size = &e->forward->cache_specs[layer];
    const neap_cache_layer *c = &e->forward->caches.layers[layer];
    if (size->state_floats > 0) c->state[s->slot * size->state_floats] = NAN;
    for (int32_t p = 0; c->latents && p < s->n_computed; p++) {
        uint8_t *page = neap_caches_latent_page(&e->forward->caches, layer, s->slot, p);
        memset(page, 0xFF, (size_t)c->latent_page_bytes); /* NaN in every format */
    }
}

static void spoil_one(const neap_model *m, request_case *cases, int32_t layer, int32_t at) {
    neap_engine *e = open_engine(m, 3, 64, 1);
    for (int k = 0; k < 3; k++) submit(e, &cases[k], &cases[k].heard);
    while (cases[1].heard.n_tokens < at) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
    }
    spoil(e, cases[1].seq, layer);
    run_all(e);
    if (cases[1].heard.finish != NEAP_FINISH_ERROR || cases[1].heard.status != NEAP_NUMERIC) {
        fail_msg("%s: NaN in layer %d went unnoticed", base_name(m->dir), layer);
    }
    assert_int_equal(cases[1].heard.n_tokens, at);
    check_case(&cases[0], base_name(m->dir));
    check_case(&cases[2], base_name(m->dir));
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.nonfinite_rows, 1);
    for (int k = 0; k < 3; k++) { /* all slots once more */
        submit(e, &cases[1], &cases[1].heard);
        run_all(e);
        check_case(&cases[1], base_name(m->dir));
    }
    neap_engine_destroy(e);
}

static void test_nan_in_one_sequence(void **state) {
    (void)state;
    static request_case cases[3];
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        for (int k = 0; k < 3; k++) {
            make_case(&cases[k], m, 60 + (uint32_t)k);
            cases[k].request.max_tokens = 24;
            neap_engine *e = open_engine(m, 1, 128, 1);
            submit(e, &cases[k], &cases[k].wanted);
            run_all(e);
            neap_engine_destroy(e);
        }
        for (int32_t layer = 0; layer < m->net.n_layers; layer++) {
            for (int32_t at = 1; at < (is_long ? 20 : 8); at += 6) spoil_one(m, cases, layer, at);
        }
        neap_model_close(m);
    }
}

/* A NaN in a weight that every row reads: an error event for every request, and the engine goes on. */
static void test_nan_weight(void **state) {
    (void)state;
    static request_case c;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        float *norm = (float *)m->net.norm;
        const float good = norm[3];
        make_case(&c, m, 5);
        neap_engine *e = open_engine(m, 2, 64, 1);
        submit(e, &c, &c.wanted);
        run_all(e);
        norm[3] = NAN;
        for (int k = 0; k < 3; k++) {
            submit(e, &c, &c.heard);
            run_all(e);
            assert_int_equal(c.heard.finish, NEAP_FINISH_ERROR);
            assert_int_equal(c.heard.status, NEAP_NUMERIC);
            assert_int_equal(c.heard.n_tokens, 0);
        }
        neap_engine_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
        assert_int_equal(stats.nonfinite_rows, 3);
        norm[3] = good;
        submit(e, &c, &c.heard);
        run_all(e);
        check_case(&c, base_name(paths[i]));
        neap_engine_destroy(e);
        neap_model_close(m);
    }
}

static long resident_pages(void) {
    long size = 0;
    long resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL) return 0;
    if (fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident;
}

/* Decode for long: no allocation, no growth of the process. */
static void test_constant_memory(void **state) {
    (void)state;
    const int steps_wanted = is_long ? 20000 : 1500;
    for (int i = 0; i < n_paths && (i < 2 || is_long); i++) {
        static request_case c;
        neap_model *m = open_model(paths[i], NULL);
        neap_engine *e = open_engine(m, 1, 16, 1);
        make_case(&c, m, 2);
        c.request.max_tokens = SAID_MAX - 1;
        uint64_t allocs = 0;
        long before = 0;
        for (int steps = 0; steps < steps_wanted;) {
            submit(e, &c, &c.heard);
            allocs = neap_alloc_calls();
            for (; neap_step(e) == NEAP_OK; steps++) {
                assert_int_equal(neap_alloc_calls(), allocs);
                drain(e);
            }
            neap_seq_free(c.seq);
            if (before == 0) before = resident_pages();
        }
        assert_true((resident_pages() - before) * sysconf(_SC_PAGESIZE) < 1 << 20);
        neap_engine_destroy(e);
        neap_model_close(m);
    }
}

/* A huge context is refused at once, with the numbers. */
static void test_huge_context(void **state) {
    (void)state;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine *e = NULL;
        neap_engine_options o;
        neap_engine_options_init(&o);
        o.n_threads = 1;
        o.context_max = INT32_MAX;
        o.seqs_max = 64;
        const neap_status status = neap_engine_create(&e, m, &o);
        assert_true(status == NEAP_NO_MEMORY || status == NEAP_INVALID_ARGUMENT);
        assert_null(e);
        assert_non_null(strstr(neap_last_error(), "2147483647"));
        neap_model_close(m);
    }
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    n_paths = list_models(paths);
    return n_paths == 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),    cmocka_unit_test(test_go_on_after_cancel),
        cmocka_unit_test(test_nan_in_one_sequence), cmocka_unit_test(test_nan_weight),
        cmocka_unit_test(test_constant_memory),     cmocka_unit_test(test_huge_context),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
