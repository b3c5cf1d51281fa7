/* The scheduler: the row budget, who comes first, and that nobody starves; then 500 random schedules of the
 * whole engine over the toy model, each sequence bit for bit like its solo run. */
#include "engine_fixture.h"

#include "engine/scheduler.h"

static uint32_t random_state = 7;
static uint32_t below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static uint64_t the_clock;
static void schedule(neap_turn *turns, int32_t n, int32_t budget) { neap_schedule(turns, n, budget, &the_clock); }

static neap_turn decode(uint32_t waited, uint64_t served) {
    return (neap_turn){.n_wanted = 1, .is_decode = true, .n_waited = waited, .served = served};
}
static neap_turn prefill(int64_t n, uint32_t waited) { return (neap_turn){.n_wanted = n, .n_waited = waited}; }

static void test_order(void **state) {
    (void)state;
    /* Decode rows first, then prompts in order of submission. */
    neap_turn a[4] = {prefill(100, 0), decode(0, 1), prefill(50, 0), decode(0, 2)};
    schedule(a, 4, 64);
    assert_int_equal(a[0].n_rows, 62);
    assert_int_equal(a[1].n_rows, 1);
    assert_int_equal(a[2].n_rows, 0);
    assert_int_equal(a[3].n_rows, 1);
    assert_int_equal(a[0].n_waited, 0);
    assert_int_equal(a[2].n_waited, 1);
    /* What the first prompt leaves goes to the next. */
    neap_turn b[3] = {prefill(10, 0), prefill(10, 3), prefill(100, 0)};
    schedule(b, 3, 64);
    assert_int_equal(b[0].n_rows, 10);
    assert_int_equal(b[1].n_rows, 10);
    assert_int_equal(b[2].n_rows, 44);
    /* More decoders than rows: the served longest ago first, then order of submission. */
    neap_turn c[4] = {decode(0, 9), decode(2, 4), decode(1, 7), decode(2, 4)};
    schedule(c, 4, 2);
    assert_int_equal(c[0].n_rows, 0);
    assert_int_equal(c[1].n_rows, 1);
    assert_int_equal(c[2].n_rows, 0);
    assert_int_equal(c[3].n_rows, 1);
    /* An aged prompt takes a quarter, ahead of the decoders; the first prompt gets the rest. */
    neap_turn d[4] = {prefill(1000, 0), decode(0, 3), prefill(1000, NEAP_AGING_ROUNDS), prefill(1000, 1)};
    schedule(d, 4, 64);
    assert_int_equal(d[0].n_rows, 47);
    assert_int_equal(d[1].n_rows, 1);
    assert_int_equal(d[2].n_rows, 16);
    assert_int_equal(d[3].n_rows, 0);
    assert_int_equal(d[3].n_waited, 2);
}

/* Random loads: the budget is used up exactly, nobody gets more than asked for, nobody waits for long. */
static void test_budget_and_fairness(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++) {
        enum { N = 40 };
        neap_turn turns[N];
        const int32_t n = 1 + (int32_t)below(N);
        const int32_t budget = 1 + (int32_t)below(round % 2 ? 8 : 128);
        for (int32_t i = 0; i < n; i++) turns[i] = below(2) ? decode(0, 0) : prefill(1 + below(5000), 0);
        for (int step = 0; step < 300; step++) {
            int64_t asked = 0;
            int64_t given = 0;
            for (int32_t i = 0; i < n; i++) asked += turns[i].n_wanted;
            schedule(turns, n, budget);
            for (int32_t i = 0; i < n; i++) {
                given += turns[i].n_rows;
                assert_in_range(turns[i].n_rows, 0, turns[i].n_wanted);
                assert_true(turns[i].n_waited <= NEAP_AGING_ROUNDS + (uint32_t)n + 1);
                if (turns[i].is_decode) {
                    if (below(200) == 0) turns[i] = prefill(1 + below(5000), 0); /* the next request */
                } else {
                    turns[i].n_wanted -= turns[i].n_rows;
                    if (turns[i].n_wanted == 0) turns[i] = decode(turns[i].n_waited, turns[i].served);
                }
            }
            assert_int_equal(given, asked < budget ? asked : budget);
        }
    }
}

static int steps_until_done(neap_engine *e, const said *s) {
    int steps = 0;
    while (!s->is_done) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
        assert_true(++steps < 100000);
    }
    return steps;
}

/* A short prompt behind a very long one, and a prompt beside more decoders than a step has rows. */
static void test_nobody_starves(void **state) {
    (void)state;
    static int32_t prompt[8000];
    static said s[10];
    neap_model m = fake_model(NULL, 50);
    m.context_max = 8192;
    fill_prompt(prompt, 8000, 50, 3);
    fake_reset();
    neap_engine *e = open_engine(&m, 2, 8192, 32);
    neap_request r = request_of(prompt, 8000, 10, &s[0]);
    submit(e, &r);
    r = request_of(prompt + 1, 20, 5, &s[1]);
    submit(e, &r);
    assert_in_range(steps_until_done(e, &s[1]), 6, 40);
    assert_false(s[0].is_done);
    neap_engine_destroy(e);

    e = open_engine(&m, 10, 512, 4);
    for (int i = 0; i < 9; i++) {
        r = request_of(prompt + i, 1, 400, &s[i]);
        submit(e, &r);
    }
    int32_t before[9];
    for (int i = 0; i < 85; i++) {
        if (i == 40) {
            for (int k = 0; k < 9; k++) before[k] = s[k].n_tokens;
        }
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
    }
    for (int k = 0; k < 9; k++) { /* 9 readers on 4 rows move together: 45 steps, 20 tokens each */
        assert_true(before[k] > 5);
        assert_in_range(s[k].n_tokens - before[k], 19, 21);
    }
    r = request_of(prompt, 50, 5, &s[9]);
    submit(e, &r);
    assert_in_range(steps_until_done(e, &s[9]), 55, 55 * 8);
    for (int i = 0; i < 9; i++) assert_false(s[i].is_done);
    neap_engine_destroy(e);
}

/* ---- random schedules ---- */

enum { REQUESTS = 24, SCHEDULES = 500, PROMPT_MAX = 90 };

typedef struct request_case {
    int32_t prompt[PROMPT_MAX];
    neap_request request;
    said wanted, heard;
    neap_seq *seq;
    int32_t cancel_at; /* tokens; -1: runs to its end */
    bool was_freed;
} request_case;

static request_case cases[REQUESTS];

static void make_cases(const neap_model *m) {
    for (int i = 0; i < REQUESTS; i++) {
        request_case *c = &cases[i];
        const int32_t n = 1 + (int32_t)below(PROMPT_MAX);
        fill_prompt(c->prompt, n, m->net.vocab, (uint32_t)i * 77 + 5);
        c->request = request_of(c->prompt, (size_t)n, (int32_t)below(30), &c->heard);
        neap_sampling *how = &c->request.sampling;
        if (below(3)) {
            how->temperature = 0.5f + 0.1f * (float)below(10);
            how->top_k = below(2) ? (int32_t)below(20) : 0;
            how->top_p = below(2) ? 0.9f : 1.0f;
            how->min_p = below(3) ? 0.0f : 0.05f;
        }
        how->seed = below(1000);
        how->frequency_penalty = below(2) ? 0.3f : 0.0f;
        how->n_logprobs = (int32_t)below(4) - 1;
        solo(m, &c->request, 128, &c->wanted);
    }
}

static void check_case(const request_case *c) {
    const said *h = &c->heard;
    if (c->was_freed) return;
    assert_true(h->is_done);
    if (h->finish != NEAP_FINISH_CANCELLED) {
        assert_same_said(h, &c->wanted);
        return;
    }
    assert_true(c->cancel_at >= 0 && h->n_tokens <= c->wanted.n_tokens);
    assert_memory_equal(h->tokens, c->wanted.tokens, (size_t)h->n_tokens * sizeof h->tokens[0]);
}

static void one_schedule(const neap_model *m) {
    int order[REQUESTS];
    const int n = 2 + (int)below(REQUESTS - 1);
    const int32_t seqs_max = 1 + (int32_t)below(8);
    neap_engine_options o;
    neap_engine *e = NULL;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.seqs_max = seqs_max;
    o.context_max = 128;
    o.batch_tokens_max = 1 + (int32_t)below(below(2) ? 6 : 100);
    o.cache_tokens_max = 128 + 64 * below((uint32_t)seqs_max * 2);
    o.queue_max = below(2) ? (int32_t)below(REQUESTS) : 0;
    o.optimistic = (int32_t)below(2);
    assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
    for (int i = 0; i < n; i++) order[i] = (int)below(REQUESTS);
    for (int i = 0; i < REQUESTS; i++) cases[i].seq = NULL;
    int next = 0;
    bool is_running = false;
    while (next < n || is_running) {
        while (next < n && below(3)) {
            request_case *c = &cases[order[next]];
            if (c->seq != NULL) { /* every case once per schedule */
                next++;
                continue;
            }
            memset(&c->heard, 0, sizeof c->heard);
            c->was_freed = false;
            c->cancel_at = below(5) ? -1 : (int32_t)below(20);
            const neap_status status = neap_submit(e, &c->request, &c->seq);
            assert_true(status == NEAP_OK || status == NEAP_BUSY);
            if (status == NEAP_BUSY) break;
            next++;
        }
        const neap_status status = neap_step(e);
        assert_true(status == NEAP_OK || status == NEAP_AGAIN);
        is_running = status == NEAP_OK;
        if (below(4)) drain(e);
        for (int i = 0; i < REQUESTS; i++) {
            request_case *c = &cases[i];
            if (c->seq == NULL || c->was_freed) continue;
            if (c->cancel_at >= 0 && c->heard.n_tokens >= c->cancel_at) neap_cancel(c->seq);
            if (below(300) == 0) {
                neap_seq_free(c->seq);
                c->was_freed = true;
            }
        }
    }
    drain(e);
    for (int i = 0; i < REQUESTS; i++) {
        if (cases[i].seq != NULL) check_case(&cases[i]);
    }
    neap_engine_destroy(e);
}

static void test_random_schedules(void **state) {
    (void)state;
    const neap_model m = fake_model(NULL, 60);
    fake_reset();
    make_cases(&m);
    for (int i = 0; i < SCHEDULES; i++) one_schedule(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_budget_and_fairness),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_random_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
