/* The engine over a toy model (fake_forward.c): what the API promises about requests, steps, events and ends,
 * with answers that are known in advance because the toy model is a hash of its prefix. */
#include "engine_fixture.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

enum { VOCAB = 50, CTX = 64 };

static neap_model model; /* without a tokenizer */
static int32_t prompt[4096];

static int setup(void **state) {
    (void)state;
    fake_reset();
    model = fake_model(NULL, VOCAB);
    fill_prompt(prompt, 4096, VOCAB, 1);
    return 0;
}

/* ---- one sequence ---- */

/* Greedy over the toy model, computed here. */
static void reference_greedy(const int32_t *tokens, int32_t n, int32_t n_new, int32_t *out) {
    int32_t all[512];
    memcpy(all, tokens, (size_t)n * sizeof *all);
    for (int32_t k = 0; k < n_new; k++) {
        int32_t best = 0;
        for (int32_t t = 1; t < VOCAB; t++) {
            if (fake_logit(all, n + k, t) > fake_logit(all, n + k, best)) best = t;
        }
        all[n + k] = out[k] = best;
    }
}

static void test_greedy(void **state) {
    (void)state;
    for (int32_t batch = 1; batch <= 40; batch += 13) {
        said s;
        int32_t wanted[20];
        neap_engine *e = open_engine(&model, 1, 256, batch);
        neap_request r = request_of(prompt, 30, 20, &s);
        reference_greedy(prompt, 30, 20, wanted);
        neap_seq *seq = submit(e, &r);
        run_all(e);
        assert_int_equal(s.n_tokens, 20);
        assert_memory_equal(s.tokens, wanted, sizeof wanted);
        assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
        assert_int_equal(s.status, NEAP_OK);
        assert_int_equal(s.n_prompt_done, 30);
        assert_int_equal(s.n_prompt_total, 30);
        assert_int_equal(s.n_prompt_events, (30 + batch - 1) / batch);
        assert_int_equal(s.n_text, 0); /* no tokenizer, no text */
        assert_true(fake.rows_max_seen <= batch);
        neap_engine_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
        assert_int_equal(stats.prompt_tokens, 30);
        assert_int_equal(stats.new_tokens, 20);
        assert_int_equal(stats.rows, 30 + 19); /* the last token is never computed */
        assert_int_equal(stats.steps, s.n_prompt_events + 19);
        assert_int_equal(stats.seqs_running, 0);
        assert_int_equal(stats.cache_tokens_used, 0);
        neap_seq_free(seq);
        neap_engine_destroy(e);
        fake_reset();
    }
}

static void test_max_tokens_zero(void **state) {
    (void)state;
    said s;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    neap_request r = request_of(prompt, 33, 0, &s);
    submit(e, &r);
    assert_int_equal(run_all(e), 3);
    assert_true(s.is_done);
    assert_int_equal(s.n_tokens, 0);
    assert_int_equal(s.n_prompt_done, 33);
    assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
    neap_engine_destroy(e);
}

/* Prompts round the context's size, and max_tokens clamped to what is left. */
static void test_context_edges(void **state) {
    (void)state;
    for (int32_t n = CTX - 2; n <= CTX + 2; n++) {
        said s;
        neap_seq *seq = NULL;
        neap_engine *e = open_engine(&model, 1, CTX, 16);
        neap_request r = request_of(prompt, (size_t)n, 10, &s);
        memset(&s, 0, sizeof s);
        const neap_status status = neap_submit(e, &r, &seq);
        if (n > CTX) {
            char counts[32];
            snprintf(counts, sizeof counts, "%d tokens", n);
            assert_int_equal(status, NEAP_CONTEXT_FULL);
            assert_non_null(strstr(neap_last_error(), counts));
            assert_non_null(strstr(neap_last_error(), "64"));
            assert_null(seq);
        } else {
            assert_int_equal(status, NEAP_OK);
            run_all(e);
            assert_int_equal(s.n_tokens, CTX - n);
            assert_int_equal(s.finish, NEAP_FINISH_LENGTH);
        }
        neap_engine_destroy(e);
    }
    /* The default is "as far as the context goes". */
    said s;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    neap_request r;
    neap_request_init(&r);
    r.tokens = prompt;
    r.n_tokens = 5;
    r.user = &s;
    submit(e, &r);
    run_all(e);
    assert_int_equal(s.n_tokens, CTX - 5);
    neap_engine_destroy(e);
}

/* ---- requests from outside ---- */

typedef struct bad_request {
    const char *text; /* must appear in the error */
    void (*spoil)(neap_request *r);
} bad_request;

static const int32_t token_negative[3] = {1, -1, 2};
static const int32_t token_beyond[3] = {1, 2, VOCAB};
static int32_t many_tokens[65];
static neap_logit_bias many_bias[1025];
static neap_logit_bias one_bias[1];
static const char *many_stops[17];

#define SPOIL(name, ...) \
    static void name(neap_request *r) { __VA_ARGS__; }
SPOIL(max_tokens_low, r->max_tokens = -1)
SPOIL(temperature_low, r->sampling.temperature = -0.01f)
SPOIL(temperature_high, r->sampling.temperature = 100.1f)
SPOIL(temperature_nan, r->sampling.temperature = NAN)
SPOIL(temperature_inf, r->sampling.temperature = INFINITY)
SPOIL(top_k_low, r->sampling.top_k = -1)
SPOIL(top_k_lowest, r->sampling.top_k = INT32_MIN)
SPOIL(top_p_zero, r->sampling.top_p = 0.0f)
SPOIL(top_p_high, r->sampling.top_p = nextafterf(1.0f, 2.0f))
SPOIL(top_p_nan, r->sampling.top_p = NAN)
SPOIL(min_p_low, r->sampling.min_p = -0.1f)
SPOIL(min_p_one, r->sampling.min_p = 1.0f)
SPOIL(repetition_zero, r->sampling.repetition_penalty = 0.0f)
SPOIL(repetition_nan, r->sampling.repetition_penalty = NAN)
SPOIL(presence_low, r->sampling.presence_penalty = -2.1f)
SPOIL(presence_high, r->sampling.presence_penalty = 2.1f)
SPOIL(frequency_low, r->sampling.frequency_penalty = -2.1f)
SPOIL(frequency_inf, r->sampling.frequency_penalty = INFINITY)
SPOIL(window_low, r->sampling.penalty_window = -2)
SPOIL(logprobs_low, r->sampling.n_logprobs = -2)
SPOIL(logprobs_high, r->sampling.n_logprobs = 21)
SPOIL(ignore_eos_two, r->ignore_eos = 2)
SPOIL(all_logits_two, r->all_logits = -1)
SPOIL(all_logits_blind, r->all_logits = 1; r->tap = NULL)
SPOIL(no_tokens, r->n_tokens = 0)
SPOIL(tokens_null, r->tokens = NULL)
SPOIL(tokens_negative, r->tokens = token_negative)
SPOIL(tokens_beyond, r->tokens = token_beyond)
SPOIL(tokens_huge, r->n_tokens = SIZE_MAX)
SPOIL(bias_many, r->sampling.bias = many_bias; r->sampling.n_bias = 1025)
SPOIL(bias_null, r->sampling.bias = NULL; r->sampling.n_bias = 1)
SPOIL(bias_token, one_bias[0] = (neap_logit_bias){VOCAB, 0}; r->sampling.bias = one_bias; r->sampling.n_bias = 1)
SPOIL(bias_token_low, one_bias[0] = (neap_logit_bias){-1, 0}; r->sampling.bias = one_bias; r->sampling.n_bias = 1)
SPOIL(bias_nan, one_bias[0] = (neap_logit_bias){0, NAN}; r->sampling.bias = one_bias; r->sampling.n_bias = 1)
SPOIL(bias_inf, one_bias[0] = (neap_logit_bias){0, INFINITY}; r->sampling.bias = one_bias; r->sampling.n_bias = 1)
SPOIL(stop_without_tokenizer, many_stops[0] = "x"; r->stop = many_stops; r->n_stop = 1)
SPOIL(stop_tokens_many, r->stop_tokens = many_tokens; r->n_stop_tokens = 65)
SPOIL(stop_tokens_null, r->stop_tokens = NULL; r->n_stop_tokens = 1)
SPOIL(stop_tokens_beyond, r->stop_tokens = token_beyond; r->n_stop_tokens = 3)
SPOIL(size_zero, r->struct_size = 0)
SPOIL(size_newer, r->struct_size = sizeof *r + 8)

static const bad_request bad_requests[] = {
    {"max_tokens is -1; allowed is 0 .. 2147483647", max_tokens_low},
    {"temperature is -0.01", temperature_low},
    {"temperature is 100.1", temperature_high},
    {"temperature is", temperature_nan},
    {"temperature is inf", temperature_inf},
    {"top_k is -1; allowed is 0 .. 2147483647", top_k_low},
    {"top_k is -2147483648", top_k_lowest},
    {"top_p is 0; allowed is above 0 .. 1", top_p_zero},
    {"top_p is 1.00000", top_p_high},
    {"top_p is", top_p_nan},
    {"min_p is -0.1", min_p_low},
    {"min_p is 1; allowed is 0 .. 1, exclusive", min_p_one},
    {"repetition_penalty is 0; allowed is above 0 .. 100", repetition_zero},
    {"repetition_penalty is", repetition_nan},
    {"presence_penalty is -2.1", presence_low},
    {"presence_penalty is 2.1", presence_high},
    {"frequency_penalty is -2.1", frequency_low},
    {"frequency_penalty is inf; allowed is -2 .. 2", frequency_inf},
    {"penalty_window is -2", window_low},
    {"n_logprobs is -2; allowed is -1 .. 20", logprobs_low},
    {"n_logprobs is 21", logprobs_high},
    {"ignore_eos is 2; allowed is 0 .. 1", ignore_eos_two},
    {"all_logits is -1", all_logits_two},
    {"all_logits needs a tap", all_logits_blind},
    {"n_tokens must be at least 1", no_tokens},
    {"tokens is NULL", tokens_null},
    {"tokens[1] is -1; allowed is 0 .. 49", tokens_negative},
    {"tokens[2] is 50; allowed is 0 .. 49", tokens_beyond},
    {"the context holds 64", tokens_huge},
    {"n_bias is 1025; allowed is 0 .. 1024", bias_many},
    {"bias is NULL", bias_null},
    {"bias[0].token is 50; allowed is 0 .. 49", bias_token},
    {"bias[0].token is -1", bias_token_low},
    {"bias[0].bias is", bias_nan},
    {"bias[0].bias is inf", bias_inf},
    {"stop strings need a tokenizer", stop_without_tokenizer},
    {"n_stop_tokens is 65; allowed is 0 .. 64", stop_tokens_many},
    {"stop_tokens is NULL", stop_tokens_null},
    {"stop_tokens[2] is 50", stop_tokens_beyond},
    {"struct_size of the request is 0", size_zero},
    {"fill the struct with its _init", size_newer},
};

static void test_bad_requests(void **state) {
    (void)state;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    for (size_t i = 0; i < sizeof bad_requests / sizeof bad_requests[0]; i++) {
        neap_seq *seq = (neap_seq *)&model;
        neap_request r = request_of(prompt, 3, 5, NULL);
        bad_requests[i].spoil(&r);
        const neap_status status = neap_submit(e, &r, &seq);
        assert_true(status == NEAP_INVALID_ARGUMENT || status == NEAP_CONTEXT_FULL);
        assert_null(seq);
        if (strstr(neap_last_error(), bad_requests[i].text) == NULL) {
            fail_msg("wanted \"%s\", got \"%s\"", bad_requests[i].text, neap_last_error());
        }
    }
    neap_seq *seq;
    neap_request r = request_of(prompt, 3, 5, NULL);
    assert_int_equal(neap_submit(NULL, &r, &seq), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_submit(e, NULL, &seq), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_submit(e, &r, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_step(NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_cancel(NULL), NEAP_INVALID_ARGUMENT);
    neap_seq_free(NULL);
    neap_engine_destroy(NULL);
    neap_request_init(NULL);
    neap_engine_options_init(NULL);
    /* After all that the engine still works. */
    submit(e, &r);
    run_all(e);
    neap_engine_destroy(e);
}

/* Every value at the edge of its range is accepted and runs to its end. */
static void test_good_edges(void **state) {
    (void)state;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    for (int i = 0; i < 20; i++) {
        said s;
        neap_request r = request_of(prompt, 3, 4, &s);
        for (int k = 0; k < 1024; k++) many_bias[k] = (neap_logit_bias){k % VOCAB, k == 0 ? -INFINITY : 1e6f};
        neap_sampling *how = &r.sampling;
        how->temperature = i % 2 ? 1.0f : 0.0f;
        switch (i) {
        case 0: how->temperature = 100; break;
        case 1: how->temperature = 1e-40f; break;
        case 2:
            how->top_k = INT32_MAX;
            how->temperature = 1;
            break;
        case 3: how->top_k = 1; break;
        case 4:
            how->top_p = 1e-30f;
            how->temperature = 1;
            break;
        case 5: how->top_p = nextafterf(1.0f, 0.0f); break;
        case 6:
            how->min_p = nextafterf(1.0f, 0.0f);
            how->temperature = 1;
            break;
        case 7: how->repetition_penalty = 1e-38f; break;
        case 8: how->repetition_penalty = 100; break;
        case 9:
            how->presence_penalty = -2;
            how->frequency_penalty = -2;
            break;
        case 10:
            how->presence_penalty = 2;
            how->frequency_penalty = 2;
            how->penalty_window = -1;
            break;
        case 11:
            how->penalty_window = INT32_MAX;
            how->presence_penalty = 1;
            break;
        case 12:
            how->seed = UINT64_MAX;
            how->temperature = 1;
            break;
        case 13: how->n_logprobs = 20; break;
        case 14: how->n_logprobs = 0; break;
        case 15:
            how->bias = many_bias;
            how->n_bias = 1024;
            break;
        case 16:
            r.stop_tokens = many_tokens;
            r.n_stop_tokens = 64;
            break;
        case 17: r.max_tokens = INT32_MAX; break;
        case 18: how->penalty_window = 0; break;
        default: r.ignore_eos = 1; break;
        }
        neap_seq *seq = submit(e, &r);
        run_all(e);
        assert_true(s.is_done);
        assert_true(s.finish == NEAP_FINISH_LENGTH || (i == 16 && s.finish == NEAP_FINISH_STOP));
        neap_seq_free(seq);
    }
    neap_engine_destroy(e);
}

static void test_inputs_are_copied(void **state) {
    (void)state;
    said wanted;
    said s;
    int32_t tokens[10];
    int32_t stop_tokens[1] = {VOCAB - 1};
    neap_logit_bias bias[1] = {{3, -INFINITY}};
    memcpy(tokens, prompt, sizeof tokens);
    neap_request r = request_of(tokens, 10, 30, &s);
    r.stop_tokens = stop_tokens;
    r.n_stop_tokens = 1;
    r.sampling.bias = bias;
    r.sampling.n_bias = 1;
    solo(&model, &r, CTX, &wanted);
    neap_engine *e = open_engine(&model, 1, CTX, 4);
    submit(e, &r);
    memset(tokens, 0xFF, sizeof tokens);
    memset(stop_tokens, 0xFF, sizeof stop_tokens);
    memset(bias, 0xFF, sizeof bias);
    memset(&r, 0xFF, sizeof r);
    run_all(e);
    assert_same_said(&s, &wanted);
    neap_engine_destroy(e);
}

/* A struct of an older caller is shorter: the rest takes its defaults. */
static void test_struct_sizes(void **state) {
    (void)state;
    neap_engine *e = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.context_max = CTX;
    o.enable_taps = 1;
    o.memory_max = 1; /* beyond the older struct: must not count */
    o.struct_size = offsetof(neap_engine_options, memory_max);
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    neap_request r = request_of(prompt, 3, 5, NULL);
    neap_seq *seq = submit(e, &r);
    assert_int_equal(neap_step(e), NEAP_OK);
    struct {
        neap_event event;
        char guard[8];
    } out;
    memset(&out, 0x5A, sizeof out);
    out.event.struct_size = offsetof(neap_event, logprob);
    assert_int_equal(neap_poll(e, &out.event), NEAP_OK);
    assert_ptr_equal(out.event.seq, seq);
    const unsigned char *beyond = (const unsigned char *)&out.event + offsetof(neap_event, logprob);
    for (size_t i = 0; i < sizeof out - offsetof(neap_event, logprob); i++) assert_int_equal(beyond[i], 0x5A);
    out.event.struct_size = 0;
    assert_int_equal(neap_poll(e, &out.event), NEAP_INVALID_ARGUMENT);
    neap_engine_stats stats = {.struct_size = 3};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_INVALID_ARGUMENT);
    neap_engine_destroy(e);
}

/* ---- several sequences ---- */

/* Four sequences that end at different times; later ones take their places. Each equals its solo run. */
static void test_batch_changes(void **state) {
    (void)state;
    static const int32_t lengths[8] = {5, 11, 3, 17, 9, 2, 30, 1};
    static said s[8];
    static said wanted[8];
    neap_request r[8];
    for (int32_t batch = 1; batch <= 64; batch = batch * 3 + 1) {
        neap_engine *e = open_engine(&model, 4, 256, batch);
        int next = 0;
        for (int i = 0; i < 8; i++) {
            r[i] = request_of(prompt + 10 * i, (size_t)(7 * i % 13 + 1), lengths[i], &s[i]);
            r[i].sampling.temperature = i % 2 ? 0.8f : 0.0f;
            r[i].sampling.seed = (uint64_t)i;
            r[i].sampling.n_logprobs = 2;
            r[i].sampling.presence_penalty = 0.5f;
        }
        for (; next < 4; next++) submit(e, &r[next]);
        while (neap_step(e) == NEAP_OK) {
            drain(e);
            neap_engine_stats stats = {.struct_size = sizeof stats};
            assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
            if (stats.seqs_running < 3 && next < 8) submit(e, &r[next++]);
        }
        assert_int_equal(next, 8);
        neap_engine_destroy(e);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(s[i].n_tokens, lengths[i]);
            solo(&model, &r[i], 256, &wanted[i]);
            assert_same_said(&s[i], &wanted[i]);
        }
    }
}

static void test_seed(void **state) {
    (void)state;
    said a;
    said b;
    said c;
    neap_engine *e = open_engine(&model, 3, 256, 8);
    neap_request r = request_of(prompt, 9, 60, &a);
    r.sampling.temperature = 1.5f;
    r.sampling.seed = 42;
    submit(e, &r);
    r.user = &b;
    submit(e, &r);
    r.user = &c;
    r.sampling.seed = 43;
    submit(e, &r);
    run_all(e);
    assert_same_said(&a, &b);
    assert_memory_not_equal(a.tokens, c.tokens, 60 * sizeof(int32_t));
    neap_engine_destroy(e);
}

/* Cancel after seven tokens, then go on from history + answer: the same as from the start. */
static void test_cancel(void **state) {
    (void)state;
    said s;
    said mate;
    said again;
    said cold;
    said mate_cold;
    neap_engine *e = open_engine(&model, 2, 256, 16);
    neap_request r = request_of(prompt, 20, 100, &s);
    neap_request other = request_of(prompt + 50, 12, 40, &mate);
    neap_seq *seq = submit(e, &r);
    submit(e, &other);
    while (s.n_tokens < 7) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
    }
    assert_int_equal(neap_cancel(seq), NEAP_OK);
    assert_int_equal(neap_cancel(seq), NEAP_OK); /* twice is fine */
    assert_int_equal(neap_step(e), NEAP_OK);
    drain(e);
    assert_true(s.is_done);
    assert_int_equal(s.finish, NEAP_FINISH_CANCELLED);
    assert_int_equal(s.status, NEAP_CANCELLED);
    assert_int_equal(s.n_tokens, 7);
    assert_int_equal(neap_cancel(seq), NEAP_OK); /* after the end: nothing happens */
    int32_t history[64];
    memcpy(history, prompt, 20 * sizeof *history);
    memcpy(history + 20, s.tokens, 7 * sizeof *history);
    memcpy(history + 27, prompt + 100, 5 * sizeof *history);
    neap_request next = request_of(history, 32, 25, &again);
    submit(e, &next); /* takes the slot that was given back */
    neap_seq_free(seq);
    run_all(e);
    solo(&model, &next, 256, &cold);
    assert_same_said(&again, &cold);
    solo(&model, &other, 256, &mate_cold);
    assert_same_said(&mate, &mate_cold);
    neap_engine_destroy(e);
}

/* During a long prompt, too, and before the first step. */
static void test_cancel_in_prompt(void **state) {
    (void)state;
    for (int steps = 0; steps < 3; steps++) {
        said s;
        neap_engine *e = open_engine(&model, 1, 256, 4);
        neap_request r = request_of(prompt, 100, 10, &s);
        neap_seq *seq = submit(e, &r);
        for (int i = 0; i < steps; i++) assert_int_equal(neap_step(e), NEAP_OK);
        neap_cancel(seq);
        const int32_t n_runs = fake.n_runs;
        assert_int_equal(neap_step(e), NEAP_OK);
        assert_int_equal(fake.n_runs, n_runs);
        assert_int_equal(neap_step(e), NEAP_AGAIN);
        drain(e);
        assert_true(s.is_done);
        assert_int_equal(s.finish, NEAP_FINISH_CANCELLED);
        assert_int_equal(s.n_prompt_events, steps > 0); /* progress that nobody took is one event */
        assert_int_equal(s.n_prompt_done, steps * 4);
        neap_engine_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
        assert_int_equal(stats.cache_tokens_used, 0);
        neap_engine_destroy(e);
    }
}

static void *cancel_later(void *seq) {
    const struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
    assert_int_equal(neap_cancel(seq), NEAP_OK);
    return NULL;
}

/* neap_cancel is the one call that may come from another thread. */
static void test_cancel_from_outside(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        static said s;
        pthread_t thread;
        neap_engine *e = open_engine(&model, 1, 4096, 16);
        neap_request r = request_of(prompt, 20, 2000, &s);
        neap_seq *seq = submit(e, &r);
        assert_int_equal(pthread_create(&thread, NULL, cancel_later, seq), 0);
        run_all(e);
        pthread_join(thread, NULL);
        assert_true(s.is_done);
        assert_true(s.finish == NEAP_FINISH_CANCELLED || s.n_tokens == 2000);
        neap_engine_destroy(e);
    }
}

static void count_tap(void *user, const neap_tap *tap) {
    (void)tap;
    ++*(int *)user;
}

static void test_busy_and_reclaim(void **state) {
    (void)state;
    said s[4];
    int n_taps = 0;
    neap_seq *seq = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.seqs_max = 3;
    o.context_max = 128;
    o.cache_tokens_max = 256;
    neap_engine *e = NULL;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    neap_request r = request_of(prompt, 100, 5, &s[0]);
    neap_seq *first = submit(e, &r);
    assert_int_equal(neap_seq_caches(first, count_tap, &n_taps), NEAP_NOT_FOUND); /* nothing computed */
    r.user = &s[1];
    neap_seq *second = submit(e, &r);
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.cache_tokens_used, 256);
    assert_int_equal(stats.cache_tokens_total, 256);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY); /* no cache space */
    assert_null(seq);
    run_all(e);
    assert_true(s[0].is_done && s[1].is_done);
    /* Ended sequences can still be looked at, until somebody needs the space. */
    assert_int_equal(neap_seq_caches(first, count_tap, &n_taps), NEAP_OK);
    assert_int_equal(neap_seq_caches(second, count_tap, &n_taps), NEAP_OK);
    assert_int_equal(n_taps, 2);
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.cache_tokens_used, 0);
    r.user = &s[2];
    submit(e, &r);
    assert_int_equal(neap_seq_caches(first, count_tap, &n_taps), NEAP_NOT_FOUND);
    assert_int_equal(neap_seq_caches(second, count_tap, &n_taps), NEAP_OK);
    r.user = &s[3];
    submit(e, &r);
    assert_int_equal(neap_seq_caches(second, count_tap, &n_taps), NEAP_NOT_FOUND);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    run_all(e);
    assert_same_said(&s[2], &s[0]);
    assert_same_said(&s[3], &s[0]);
    neap_engine_destroy(e);
    /* As many as seqs_max, not one more. */
    e = open_engine(&model, 2, CTX, 8);
    r = request_of(prompt, 3, 5, NULL);
    submit(e, &r);
    neap_seq *gone = submit(e, &r);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    neap_seq_free(gone); /* running: ends at once, without events */
    submit(e, &r);
    run_all(e);
    neap_engine_destroy(e);
}

/* ---- waiting ---- */

static neap_engine *open_queue(int32_t seqs_max, int32_t queue_max, uint64_t queue_tokens_max, int32_t optimistic,
                               uint64_t cache_tokens_max) {
    neap_engine_options o;
    neap_engine *e = NULL;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.seqs_max = seqs_max;
    o.context_max = 256;
    o.batch_tokens_max = 64;
    o.queue_max = queue_max;
    o.queue_tokens_max = queue_tokens_max;
    o.optimistic = optimistic;
    o.cache_tokens_max = cache_tokens_max;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    return e;
}

static neap_engine_stats stats_of(const neap_engine *e) {
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    return stats;
}

/* First come, first served; each as alone; the numbers say who waits. */
static void test_queue_order(void **state) {
    (void)state;
    enum { N = 8 };
    static said s[N], wanted[N];
    neap_seq *seq[N];
    neap_request r[N];
    int begun = 0;
    neap_engine *e = open_queue(2, N, 0, 0, 0);
    for (int i = 0; i < N; i++) {
        r[i] = request_of(prompt + 10 * i, 20 + (size_t)i, 3 + 5 * (i % 3), &s[i]);
        seq[i] = submit(e, &r[i]);
    }
    neap_engine_stats stats = stats_of(e);
    assert_int_equal(stats.seqs_running, 2);
    assert_int_equal(stats.seqs_waiting, N - 2);
    assert_int_equal(stats.waiting_tokens, 22 + 23 + 24 + 25 + 26 + 27);
    neap_event event = {.struct_size = sizeof event};
    while (neap_step(e) == NEAP_OK) {
        while (neap_poll(e, &event) == NEAP_OK) {
            if (event.kind == NEAP_EVENT_BEGIN) {
                assert_ptr_equal(event.seq, seq[begun++]);
                assert_int_equal(event.n_done, 0);
                assert_int_equal(event.n_total, (int64_t)r[begun - 1].n_tokens);
            }
            hear(&event);
        }
    }
    assert_int_equal(begun, N);
    for (int i = 0; i < N; i++) {
        solo(&model, &r[i], 256, &wanted[i]);
        assert_same_said(&s[i], &wanted[i]);
    }
    stats = stats_of(e);
    assert_int_equal(stats.seqs_waiting + stats.waiting_tokens + stats.cache_tokens_used, 0);
    neap_engine_destroy(e);
}

static void test_queue_limits(void **state) {
    (void)state;
    neap_seq *seq = NULL;
    neap_engine *e = open_queue(1, 2, 0, 0, 0);
    neap_request r = request_of(prompt, 10, 5, NULL);
    for (int i = 0; i < 3; i++) submit(e, &r);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    assert_string_equal(neap_last_error(), "the queue is full: 2 requests wait, queue_max is 2");
    assert_null(seq);
    run_all(e);
    submit(e, &r);
    neap_engine_destroy(e); /* with a running one */
    e = open_queue(1, 100, 50, 0, 0);
    neap_seq *first = submit(e, &r);
    for (int i = 0; i < 5; i++) submit(e, &r);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    assert_string_equal(neap_last_error(),
                        "the queue is full: 10 more prompt tokens would make 60, queue_tokens_max is 50");
    assert_int_equal(stats_of(e).seqs_waiting, 5);
    neap_seq_free(first); /* makes a place */
    assert_int_equal(neap_step(e), NEAP_OK);
    assert_int_equal(stats_of(e).seqs_waiting, 4);
    submit(e, &r);
    neap_engine_destroy(e); /* with waiting ones */
    /* Without a queue: why not. */
    e = open_queue(1, 0, 0, 0, 0);
    submit(e, &r);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    assert_string_equal(neap_last_error(), "all 1 sequences are running");
    neap_engine_destroy(e);
    e = open_queue(3, 0, 0, 0, 256);
    r = request_of(prompt, 100, 60, NULL);
    submit(e, &r);
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_BUSY);
    assert_string_equal(neap_last_error(),
                        "no cache space for 100 prompt tokens and max_tokens 60 beside what is running");
    assert_int_equal(stats_of(e).seqs_waiting, 0);
    neap_engine_destroy(e);
    /* A large one waits for pages; those behind it do not overtake. */
    e = open_queue(3, 4, 0, 0, 256);
    static said s[3];
    r = request_of(prompt, 10, 100, &s[0]);
    submit(e, &r);
    r = request_of(prompt, 150, 50, &s[1]);
    submit(e, &r);
    r = request_of(prompt, 10, 20, &s[2]);
    submit(e, &r);
    while (!s[0].is_done) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
        assert_false(s[1].has_begun || s[2].has_begun);
    }
    run_all(e);
    assert_true(s[1].is_done && s[2].is_done);
    neap_engine_destroy(e);
}

/* Cancelled and freed while they wait: an end without a beginning, or none at all. */
static void test_cancel_waiting(void **state) {
    (void)state;
    static said s[400];
    neap_seq *seq[400];
    neap_engine *e = open_queue(1, 400, 100000, 0, 0);
    for (int i = 0; i < 400; i++) {
        neap_request r = request_of(prompt, 5, 4, &s[i]);
        seq[i] = submit(e, &r);
    }
    for (int i = 1; i < 400; i++) assert_int_equal(neap_cancel(seq[i]), NEAP_OK);
    neap_seq_free(seq[7]);
    assert_int_equal(neap_step(e), NEAP_OK); /* as many ends as there is room for events */
    assert_in_range(stats_of(e).seqs_waiting, 0, 398);
    run_all(e);
    for (int i = 0; i < 400; i++) {
        if (i == 7) continue;
        assert_true(s[i].is_done);
        assert_int_equal(s[i].finish, i ? NEAP_FINISH_CANCELLED : NEAP_FINISH_LENGTH);
        assert_int_equal(s[i].status, i ? NEAP_CANCELLED : NEAP_OK);
        assert_int_equal(s[i].has_begun, i == 0);
    }
    assert_false(s[7].is_done);
    assert_int_equal(fake.n_runs, 4);
    neap_engine_destroy(e);
}

static void test_pause(void **state) {
    (void)state;
    static said s[3], wanted;
    neap_seq *seq[3];
    neap_engine *e = open_queue(2, 3, 0, 0, 0);
    for (int i = 0; i < 3; i++) {
        neap_request r = request_of(prompt, 30, 20, &s[i]);
        seq[i] = submit(e, &r);
        solo(&model, &r, 256, &wanted);
        memset(&s[i], 0, sizeof s[i]);
    }
    assert_int_equal(neap_pause(NULL, 1), NEAP_INVALID_ARGUMENT);
    while (s[0].n_tokens < 5) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
    }
    assert_int_equal(neap_pause(seq[0], 1), NEAP_OK);
    assert_int_equal(neap_pause(seq[2], 1), NEAP_OK); /* while it waits: it is not admitted */
    run_all(e);
    assert_int_equal(s[0].n_tokens, 5);
    assert_true(s[1].is_done && !s[2].has_begun);
    assert_same_said(&s[1], &wanted);
    const int32_t n_runs = fake.n_runs;
    for (int i = 0; i < 3; i++) assert_int_equal(neap_step(e), NEAP_AGAIN); /* all who are left are paused */
    assert_int_equal(fake.n_runs, n_runs);
    assert_int_equal(stats_of(e).seqs_running, 1);
    assert_int_equal(stats_of(e).seqs_waiting, 1);
    assert_int_equal(neap_pause(seq[2], 0), NEAP_OK);
    run_all(e);
    assert_same_said(&s[2], &wanted);
    assert_int_equal(s[0].n_tokens, 5);
    assert_int_equal(neap_pause(seq[0], 0), NEAP_OK);
    run_all(e);
    assert_same_said(&s[0], &wanted);
    /* A paused one can be cancelled, running or waiting. */
    for (int i = 0; i < 3; i++) {
        neap_request r = request_of(prompt, 30, 20, &s[i]);
        seq[i] = submit(e, &r);
        assert_int_equal(neap_pause(seq[i], 1), NEAP_OK);
    }
    assert_int_equal(neap_step(e), NEAP_OK); /* tells that two have begun */
    assert_int_equal(neap_step(e), NEAP_AGAIN);
    for (int i = 0; i < 3; i++) assert_int_equal(neap_cancel(seq[i]), NEAP_OK);
    assert_int_equal(neap_step(e), NEAP_OK);
    assert_int_equal(neap_step(e), NEAP_AGAIN);
    drain(e);
    for (int i = 0; i < 3; i++) assert_int_equal(s[i].finish, NEAP_FINISH_CANCELLED);
    neap_engine_destroy(e);
}

/* More than the pool holds: the newest gives way, again and again, and nobody can tell from what is said. */
static void test_giving_way(void **state) {
    (void)state;
    enum { N = 5 };
    static said s[N], wanted[N];
    neap_engine *e = open_queue(N, N, 0, 1, 640);
    for (int i = 0; i < N; i++) {
        neap_request r = request_of(prompt + i, 30, 200, &s[i]);
        r.sampling.temperature = 1.0f;
        r.sampling.seed = (uint64_t)i;
        solo(&model, &r, 256, &wanted[i]);
        r.user = &s[i];
        submit(e, &r);
    }
    const uint64_t before = neap_alloc_calls();
    while (!s[N - 1].is_done) {
        assert_int_equal(neap_step(e), NEAP_OK);
        drain(e);
        for (int i = 0; i + 1 < N; i++)
            assert_true(s[i].n_tokens >= s[i + 1].n_tokens); /* the older one keeps its place */
    }
    assert_int_equal(neap_alloc_calls(), before);
    for (int i = 0; i < N; i++) {
        assert_same_said(&s[i], &wanted[i]);
        assert_int_equal(s[i].n_prompt_done, 30);
    }
    assert_true(stats_of(e).preemptions > 0);
    assert_true(stats_of(e).rows > N * (30 + 199)); /* what was computed again */
    assert_int_equal(stats_of(e).cache_tokens_used, 0);
    neap_engine_destroy(e);
}

static void count_warnings(void *user, neap_log_level level, const char *text) {
    if (level == NEAP_LOG_WARN && strstr(text, "prefix") != NULL) ++*(int *)user;
}

/* What is of no use is never silent; what is asked for wrongly is refused. */
static void test_prefix_options(void **state) {
    (void)state;
    static const int32_t falling[2] = {3, 2};
    static const int32_t beyond[1] = {6};
    static const int32_t zero[1] = {0};
    static const struct {
        const int32_t *marks;
        size_t n;
        const char *text;
    } bad[] = {{falling, 2, "marks[1] is 2; allowed is 3 .. 5"},
               {beyond, 1, "marks[0] is 6; allowed is 1 .. 5"},
               {zero, 1, "marks[0] is 0; allowed is 1 .. 5"},
               {NULL, 1, "marks is NULL but has 1 entries"},
               {zero, 65537, "n_marks is 65537; allowed is 0 .. 65536"}};
    int n_warnings = 0;
    neap_seq *seq;
    neap_engine *e = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.context_max = CTX;
    o.prefix_cache = 1; /* of which the toy model knows nothing */
    o.prefix_dir = "/nowhere";
    o.log = count_warnings;
    o.log_user = &n_warnings;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    assert_int_equal(n_warnings, 2);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        neap_request r = request_of(prompt, 5, 5, NULL);
        r.marks = bad[i].marks;
        r.n_marks = bad[i].n;
        assert_int_equal(neap_submit(e, &r, &seq), NEAP_INVALID_ARGUMENT);
        assert_non_null(strstr(neap_last_error(), bad[i].text));
    }
    neap_request r = request_of(prompt, 5, 5, NULL);
    r.marks = falling;
    r.n_marks = 1;
    submit(e, &r);
    run_all(e);
    neap_engine_destroy(e);
    o.prefix_cache = 2;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_INVALID_ARGUMENT);
    assert_non_null(strstr(neap_last_error(), "prefix_cache is 2; allowed is 0 .. 1"));
    o.prefix_cache = 0;
    o.queue_max = -1;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_INVALID_ARGUMENT);
    assert_non_null(strstr(neap_last_error(), "queue_max is -1"));
}

/* ---- things that break ---- */

static void test_nonfinite(void **state) {
    (void)state;
    static said s[3];
    static said wanted[3];
    neap_request r[3];
    for (int i = 0; i < 3; i++) r[i] = request_of(prompt + i, 10, 30, &s[i]);
    fake.nan_first = -1;
    for (int i = 0; i < 3; i++) solo(&model, &r[i], 256, &wanted[i]);
    fake.nan_first = prompt[1];
    fake.nan_position = 14;
    assert_true(prompt[0] != prompt[1] && prompt[1] != prompt[2]);
    neap_engine *e = open_engine(&model, 3, 256, 16);
    for (int i = 0; i < 3; i++) submit(e, &r[i]);
    run_all(e);
    assert_same_said(&s[0], &wanted[0]);
    assert_same_said(&s[2], &wanted[2]);
    assert_int_equal(s[1].finish, NEAP_FINISH_ERROR);
    assert_int_equal(s[1].status, NEAP_NUMERIC);
    assert_int_equal(s[1].n_tokens, 5);
    assert_memory_equal(s[1].tokens, wanted[1].tokens, 5 * sizeof(int32_t));
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.nonfinite_rows, 1);
    fake.nan_position = -1;
    submit(e, &r[1]); /* the next request in that slot is clean */
    run_all(e);
    assert_same_said(&s[1], &wanted[1]);
    neap_engine_destroy(e);
}

static void test_forward_failure(void **state) {
    (void)state;
    said s[2];
    neap_engine *e = open_engine(&model, 2, CTX, 16);
    neap_request r = request_of(prompt, 5, 20, &s[0]);
    submit(e, &r);
    r.user = &s[1];
    submit(e, &r);
    fake.fail_run = 4;
    for (int i = 0; i < 3; i++) assert_int_equal(neap_step(e), NEAP_OK);
    assert_int_equal(neap_step(e), NEAP_INTERNAL);
    drain(e);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s[i].finish, NEAP_FINISH_ERROR);
        assert_int_equal(s[i].status, NEAP_INTERNAL);
        assert_int_equal(s[i].n_tokens, 3);
    }
    assert_int_equal(neap_step(e), NEAP_AGAIN);
    submit(e, &r);
    run_all(e);
    assert_int_equal(s[1].n_tokens, 20);
    neap_engine_destroy(e);
}

/* Wrong books found when a slot is given back: the log says so, the answer stands, the engine goes on. */
static void count_errors(void *user, neap_log_level level, const char *text) {
    if (level == NEAP_LOG_ERROR && strstr(text, "told to be wrong") != NULL) ++*(int *)user;
}
static void test_close_failure(void **state) {
    (void)state;
    said s;
    int n_errors = 0;
    neap_engine *e = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = o.seqs_max = 1;
    o.context_max = CTX;
    o.log = count_errors;
    o.log_user = &n_errors;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    neap_request r = request_of(prompt, 5, 20, &s);
    fake.is_close_bad = true;
    neap_seq *seq = submit(e, &r);
    run_all(e);
    assert_int_equal(n_errors, 0);
    neap_seq_free(seq);
    assert_int_equal(n_errors, 1);
    assert_int_equal(s.status, NEAP_OK);
    assert_int_equal(s.n_tokens, 20);
    fake.is_close_bad = false;
    submit(e, &r);
    run_all(e);
    assert_int_equal(s.n_tokens, 20);
    neap_engine_destroy(e);
    assert_int_equal(n_errors, 1);
}

static void test_everything_forbidden(void **state) {
    (void)state;
    said s;
    for (int i = 0; i < VOCAB; i++) many_bias[i] = (neap_logit_bias){i, -INFINITY};
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    neap_request r = request_of(prompt, 5, 20, &s);
    r.sampling.bias = many_bias;
    r.sampling.n_bias = VOCAB;
    submit(e, &r);
    run_all(e);
    assert_int_equal(s.finish, NEAP_FINISH_ERROR);
    assert_int_equal(s.status, NEAP_INVALID_ARGUMENT);
    assert_int_equal(s.n_tokens, 0);
    neap_engine_destroy(e);
}

static uint64_t allocs_per_engine_life(neap_status *status) {
    said s;
    neap_engine *e = NULL;
    neap_seq *seq = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    o.context_max = CTX;
    const uint64_t before = neap_alloc_calls();
    *status = neap_engine_create(&e, &model, &o);
    if (*status == NEAP_OK) {
        neap_request r = request_of(prompt, 5, 8, &s);
        memset(&s, 0, sizeof s);
        *status = neap_submit(e, &r, &seq);
        if (*status == NEAP_OK) {
            run_all(e);
            assert_int_equal(s.n_tokens, 8);
        } else {
            assert_null(seq);
            assert_int_equal(neap_step(e), NEAP_AGAIN);
        }
        neap_engine_destroy(e);
    } else {
        assert_null(e);
    }
    return neap_alloc_calls() - before;
}

/* Each allocation fails in turn: a status, no leak (the sanitizer looks), and the next try works. */
static void test_allocation_failures(void **state) {
    (void)state;
    neap_status status;
    const uint64_t n = allocs_per_engine_life(&status);
    assert_int_equal(status, NEAP_OK);
    assert_in_range(n, 5, 500);
    for (uint64_t k = 1; k <= n; k++) {
        neap_alloc_fail_at(k);
        allocs_per_engine_life(&status);
        assert_int_equal(status, NEAP_NO_MEMORY);
        neap_alloc_fail_at(0);
    }
    allocs_per_engine_life(&status);
    assert_int_equal(status, NEAP_OK);
}

static void test_no_allocation_in_steps(void **state) {
    (void)state;
    static said s[4];
    neap_engine *e = open_engine(&model, 4, 512, 16);
    for (int i = 0; i < 4; i++) {
        neap_request r = request_of(prompt + i, 60, 200, &s[i]);
        r.sampling.temperature = i < 2 ? 0.0f : 1.0f;
        r.sampling.top_p = 0.9f;
        r.sampling.top_k = i == 3 ? 7 : 0;
        r.sampling.n_logprobs = 5;
        r.sampling.repetition_penalty = 1.1f;
        submit(e, &r);
    }
    const uint64_t before = neap_alloc_calls();
    const int steps = run_all(e);
    assert_true(steps > 200);
    assert_int_equal(neap_alloc_calls(), before);
    neap_engine_destroy(e);
}

/* ---- events ---- */

static void test_unpolled_events(void **state) {
    (void)state;
    said s[2];
    neap_engine *e = open_engine(&model, 2, 2048, 16);
    neap_request r = request_of(prompt, 40, 1000, &s[0]);
    submit(e, &r);
    r.user = &s[1];
    submit(e, &r);
    /* Nobody polls: steps go on until the queue is full, then say so, and nothing is lost. */
    int steps = 0;
    neap_status status;
    while ((status = neap_step(e)) == NEAP_OK) steps++;
    assert_int_equal(status, NEAP_BUSY);
    assert_in_range(steps, 50, 1000);
    assert_int_equal(neap_step(e), NEAP_BUSY);
    neap_event event = {.struct_size = sizeof event};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(neap_poll(e, &event), NEAP_OK);
        hear(&event);
    }
    run_all(e);
    assert_int_equal(s[0].n_tokens, 1000);
    assert_same_said(&s[0], &s[1]);
    neap_engine_destroy(e);
}

static void test_free_takes_events_back(void **state) {
    (void)state;
    said s;
    neap_engine *e = open_engine(&model, 2, CTX, 16);
    neap_request r = request_of(prompt, 5, 10, NULL);
    neap_seq *gone = submit(e, &r);
    r.user = &s;
    neap_seq *kept = submit(e, &r);
    for (int i = 0; i < 4; i++) assert_int_equal(neap_step(e), NEAP_OK);
    neap_seq_free(gone);
    neap_event event = {.struct_size = sizeof event};
    while (neap_poll(e, &event) == NEAP_OK) {
        assert_ptr_equal(event.seq, kept);
        hear(&event);
    }
    run_all(e);
    assert_int_equal(s.n_tokens, 10);
    neap_engine_destroy(e);
}

static void test_logprob_events(void **state) {
    (void)state;
    neap_engine *e = open_engine(&model, 1, CTX, 16);
    neap_request r = request_of(prompt, 5, 10, NULL);
    r.sampling.n_logprobs = 3;
    submit(e, &r);
    int32_t n = 5;
    int32_t all[16];
    memcpy(all, prompt, 5 * sizeof *all);
    neap_event event = {.struct_size = sizeof event};
    while (neap_step(e) == NEAP_OK) {
        while (neap_poll(e, &event) == NEAP_OK) {
            if (event.kind != NEAP_EVENT_TOKEN) continue;
            double sum = 0;
            for (int32_t t = 0; t < VOCAB; t++) sum += exp((double)fake_logit(all, n, t));
            assert_int_equal(event.n_top, 3);
            assert_int_equal(event.top[0].token, event.token); /* greedy */
            for (int i = 0; i < 3; i++) {
                const double wanted = (double)fake_logit(all, n, event.top[i].token) - log(sum);
                assert_true(fabs((double)event.top[i].logprob - wanted) < 1e-5);
                if (i > 0) assert_true(event.top[i].logprob <= event.top[i - 1].logprob);
            }
            assert_true(event.logprob == event.top[0].logprob);
            all[n++] = event.token;
        }
    }
    assert_int_equal(n, 15);
    neap_engine_destroy(e);
}

static neap_engine *tap_engine;
static neap_seq *tap_seq;
static int tap_calls;

static void meddling_tap(void *user, const neap_tap *tap) {
    neap_seq *seq;
    neap_request r = request_of(prompt, 3, 5, NULL);
    (void)user;
    assert_string_equal(tap->name, "logits");
    assert_int_equal(neap_step(tap_engine), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_submit(tap_engine, &r, &seq), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_seq_caches(tap_seq, meddling_tap, NULL), NEAP_INVALID_ARGUMENT);
    if (++tap_calls == 13) neap_seq_free(tap_seq);
}

static void test_taps(void **state) {
    (void)state;
    neap_engine *e = open_engine(&model, 1, CTX, 4);
    neap_request r = request_of(prompt, 10, 20, NULL);
    r.tap = meddling_tap;
    r.all_logits = 1;
    tap_engine = e;
    tap_calls = 0;
    tap_seq = submit(e, &r);
    int steps = 0;
    while (neap_step(e) == NEAP_OK) {
        steps++;
        drain(e);
    }
    assert_int_equal(tap_calls, 13); /* 10 prompt rows, then decode rows until the tap freed the sequence */
    assert_int_equal(steps, 6);
    assert_int_equal(drain(e), 0);
    neap_engine_destroy(e);
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    neap_seq *seq;
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_INVALID_ARGUMENT);
    assert_non_null(strstr(neap_last_error(), "enable_taps"));
    neap_engine_destroy(e);
}

/* ---- engine options and memory ---- */

static void test_engine_options(void **state) {
    (void)state;
    static const struct {
        size_t offset;
        int32_t value;
        const char *text;
    } bad[] = {
        {offsetof(neap_engine_options, n_threads), -1, "n_threads is -1"},
        {offsetof(neap_engine_options, n_threads), 1025, "n_threads is 1025; allowed is 0 .. 1024"},
        {offsetof(neap_engine_options, seqs_max), 0, "seqs_max is 0; allowed is 1 .. 1024"},
        {offsetof(neap_engine_options, seqs_max), 1025, "seqs_max is 1025"},
        {offsetof(neap_engine_options, context_max), -5, "context_max is -5"},
        {offsetof(neap_engine_options, batch_tokens_max), 0, "batch_tokens_max is 0"},
        {offsetof(neap_engine_options, batch_tokens_max), 65537, "batch_tokens_max is 65537"},
        {offsetof(neap_engine_options, enable_taps), 2, "enable_taps is 2; allowed is 0 .. 1"},
        {offsetof(neap_engine_options, act_type), 4, "act_type is 4; allowed is 0 .. 3"},
        {offsetof(neap_engine_options, moe_act_type), -1, "moe_act_type is -1; allowed is 0 .. 3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        neap_engine *e = (neap_engine *)&model;
        neap_engine_options o;
        neap_engine_options_init(&o);
        memcpy((char *)&o + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_INVALID_ARGUMENT);
        assert_null(e);
        assert_non_null(strstr(neap_last_error(), bad[i].text));
    }
    neap_engine *e = NULL;
    assert_int_equal(neap_engine_create(&e, NULL, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_create(NULL, &model, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_create(&e, &model, NULL), NEAP_OK); /* all defaults */
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.cache_tokens_total, 4096); /* the model's own context, below 8192 */
    assert_true(stats.n_threads >= 1);
    neap_engine_destroy(e);
    model.context_max = 1 << 20;
    assert_int_equal(neap_engine_create(&e, &model, NULL), NEAP_OK);
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    assert_int_equal(stats.cache_tokens_total, 8192);
    neap_engine_destroy(e);
    model.is_loaded = false;
    assert_int_equal(neap_engine_create(&e, &model, NULL), NEAP_INVALID_ARGUMENT);
    assert_non_null(strstr(neap_last_error(), "describe_only"));
}

/* Experts take what all take, unless told otherwise; an older caller's struct ends before both. */
static void test_activations(void **state) {
    (void)state;
    enum { I16 = NEAP_X_INT16, I8 = NEAP_X_INT8, F = NEAP_X_F32, OLD = -1 };
    static const int cases[][4] = {{0, 0, I16, I16}, {NEAP_ACT_F32, 0, F, F},   {NEAP_ACT_INT8, 0, I8, I8},
                                   {0, 3, I16, I8},  {NEAP_ACT_F32, 2, F, I16}, {NEAP_ACT_INT8, 1, I8, F},
                                   {2, 3, I16, I8},  {OLD, OLD, I16, I16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_engine *e = NULL;
        neap_engine_options o;
        neap_engine_options_init(&o);
        o.act_type = cases[i][0];
        o.moe_act_type = cases[i][1];
        if (cases[i][0] == OLD) o.struct_size = offsetof(neap_engine_options, act_type);
        assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
        assert_int_equal(fake.act, cases[i][2]);
        assert_int_equal(fake.moe_act, cases[i][3]);
        neap_engine_destroy(e);
    }
}

static void test_memory(void **state) {
    (void)state;
    neap_engine *e = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = 1;
    neap_memory memory = {.struct_size = sizeof memory};
    model.is_loaded = false;
    assert_int_equal(neap_engine_memory(&model, &o, &memory), NEAP_OK);
    assert_int_equal(memory.weights, 12345);
    assert_int_equal(memory.cache, 4096 * 256);
    assert_int_equal(memory.state, 1000);
    assert_int_equal(memory.total, memory.weights + memory.state + memory.cache + memory.work);
    assert_true(memory.available > 0);
    model.is_loaded = true;
    /* Exactly enough is enough; a byte less is refused, with the numbers. */
    o.memory_max = memory.total - memory.weights;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_OK);
    neap_engine_destroy(e);
    o.memory_max--;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_NO_MEMORY);
    assert_non_null(strstr(neap_last_error(), "context_max 4096"));
    assert_non_null(strstr(neap_last_error(), "MiB"));
    /* What no machine has. */
    o.memory_max = 0;
    o.context_max = INT32_MAX;
    o.seqs_max = 1024;
    assert_int_equal(neap_engine_create(&e, &model, &o), NEAP_NO_MEMORY);
    assert_non_null(strstr(neap_last_error(), "the machine has"));
    assert_null(e);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(test_greedy),
        TEST(test_max_tokens_zero),
        TEST(test_context_edges),
        TEST(test_bad_requests),
        TEST(test_good_edges),
        TEST(test_inputs_are_copied),
        TEST(test_struct_sizes),
        TEST(test_batch_changes),
        TEST(test_seed),
        TEST(test_cancel),
        TEST(test_cancel_in_prompt),
        TEST(test_cancel_from_outside),
        TEST(test_busy_and_reclaim),
        TEST(test_queue_order),
        TEST(test_queue_limits),
        TEST(test_cancel_waiting),
        TEST(test_pause),
        TEST(test_giving_way),
        TEST(test_prefix_options),
        TEST(test_nonfinite),
        TEST(test_forward_failure),
        TEST(test_close_failure),
        TEST(test_everything_forbidden),
        TEST(test_allocation_failures),
        TEST(test_no_allocation_in_steps),
        TEST(test_unpolled_events),
        TEST(test_free_takes_events_back),
        TEST(test_logprob_events),
        TEST(test_taps),
        TEST(test_engine_options),
        TEST(test_activations),
        TEST(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
