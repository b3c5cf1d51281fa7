/* The sampler against independent arithmetic: published answers for the generator, hand-computed penalties, a
 * plain full-sort reference in double precision for the cuts, and chi-square tests for the draw itself. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/philox.h"
#include "engine/sampler.h"

enum { V_MAX = 4096 };

typedef struct fixture {
    neap_arena *arena;
    neap_kernels kernels;
    neap_sampler sampler;
    int32_t unsampled[8];
} fixture;

static void open_sampler(fixture *f, int32_t vocab, int32_t n_unsampled) {
    assert_int_equal(neap_arena_create(&f->arena, "test"), NEAP_OK);
    neap_kernels_init(&f->kernels, 0);
    assert_int_equal(neap_sampler_init(&f->sampler, f->arena, &f->kernels, vocab, f->unsampled, n_unsampled), NEAP_OK);
}

static void close_sampler(fixture *f) { neap_arena_destroy(f->arena); }

static neap_sampling plain(void) {
    neap_request r;
    neap_request_init(&r);
    return r.sampling;
}

/* ---- generator ---- */

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
static void test_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        neap_philox(out, cases[i].counter, cases[i].key);
        assert_memory_equal(out, cases[i].answer, sizeof out);
    }
}

static void test_uniform(void **state) {
    (void)state;
    int64_t bins[16] = {0};
    double sum = 0.0;
    for (uint64_t i = 0; i < 160000; i++) {
        const double u = neap_philox_uniform(1234567890123u + i % 7, i, NEAP_DRAW_TOKEN);
        assert_true(u >= 0.0 && u < 1.0);
        bins[(int)(u * 16)]++;
        sum += u;
    }
    double chi = 0.0;
    for (int i = 0; i < 16; i++) chi += pow((double)bins[i] - 10000, 2) / 10000;
    assert_true(chi < 50.0); /* 15 degrees of freedom: p about 1e-5 */
    assert_true(fabs(sum / 160000 - 0.5) < 0.004);
    /* Every part of the address matters. */
    const double u = neap_philox_uniform(5, 9, NEAP_DRAW_TOKEN);
    assert_true(u == neap_philox_uniform(5, 9, NEAP_DRAW_TOKEN));
    assert_true(u != neap_philox_uniform(6, 9, NEAP_DRAW_TOKEN));
    assert_true(u != neap_philox_uniform(5 + (1ull << 32), 9, NEAP_DRAW_TOKEN));
    assert_true(u != neap_philox_uniform(5, 10, NEAP_DRAW_TOKEN));
    assert_true(u != neap_philox_uniform(5, 9 + (1ull << 32), NEAP_DRAW_TOKEN));
    assert_true(u != neap_philox_uniform(5, 9, NEAP_DRAW_ACCEPT));
}

/* ---- reference: sort everything, libm, doubles ---- */

typedef struct ranked {
    double logit;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b) {
    const ranked *x = a;
    const ranked *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* Probabilities after temperature, top-k, top-p and min-p. -inf logits are forbidden. */
static void reference(const double *logits, int32_t vocab, const neap_sampling *how, double *p) {
    static ranked order[V_MAX];
    static double w[V_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < vocab; i++) {
        p[i] = 0.0;
        if (logits[i] > -INFINITY) order[n++] = (ranked){logits[i], i};
    }
    qsort(order, (size_t)n, sizeof *order, by_rank);
    for (int32_t i = 0; i < n; i++) w[i] = exp((order[i].logit - order[0].logit) / (double)how->temperature);
    if (how->top_k > 0 && how->top_k < n) n = how->top_k;
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) total += w[i];
    double sum = 0.0;
    int32_t kept = 0;
    while (kept < n && (kept == 0 || sum < (double)how->top_p * total || how->top_p == 1.0f)) sum += w[kept++];
    n = kept;
    total = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (w[i] >= (double)how->min_p) total += w[i];
    }
    for (int32_t i = 0; i < n; i++) {
        if (w[i] >= (double)how->min_p) p[order[i].id] = w[i] / total;
    }
}

/* Upper quantile of chi-square at about 1e-5 (Wilson and Hilferty). */
static double chi_limit(double df) {
    const double z = 4.27;
    return df * pow(1 - 2 / (9 * df) + z * sqrt(2 / (9 * df)), 3);
}

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static void fill_logits(float *logits, int32_t vocab, uint32_t seed, float spread) {
    for (int32_t i = 0; i < vocab; i++) {
        const double a = mix(seed * 7919u + (uint32_t)i) / 4294967296.0;
        const double b = mix(seed * 104729u + (uint32_t)i + 77u) / 4294967296.0;
        logits[i] = (float)(spread * (a + b + a * b - 1.2));
    }
}

/* Draws n tokens from fresh copies of the row and compares the counts with the reference. */
static void check_distribution(int32_t vocab, const float *logits, const neap_sampling *how, int n) {
    static float row[V_MAX];
    static double wanted[V_MAX];
    static double exact[V_MAX];
    static int64_t counts[V_MAX];
    fixture f;
    open_sampler(&f, vocab, 0);
    memset(counts, 0, sizeof counts);
    for (int32_t i = 0; i < vocab; i++) exact[i] = (double)logits[i];
    reference(exact, vocab, how, wanted);
    neap_sampling s = *how;
    for (int i = 0; i < n; i++) {
        neap_sample out;
        memcpy(row, logits, (size_t)vocab * sizeof *row);
        s.seed = (uint64_t)(i / 100);
        static const int32_t history[100] = {0};
        assert_int_equal(neap_sampler_draw(&f.sampler, row, &s, history, i % 100, &out), NEAP_OK);
        assert_in_range(out.token, 0, vocab - 1);
        assert_true(wanted[out.token] > 0.0); /* nothing outside the cuts, ever */
        counts[out.token]++;
    }
    /* Cells with few expected draws are joined. */
    double chi = 0.0;
    double rest_wanted = 0.0;
    double rest_seen = 0.0;
    int cells = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (wanted[i] * n < 8) {
            rest_wanted += wanted[i] * n;
            rest_seen += (double)counts[i];
            continue;
        }
        chi += pow((double)counts[i] - wanted[i] * n, 2) / (wanted[i] * n);
        cells++;
    }
    if (rest_wanted >= 8) {
        chi += pow(rest_seen - rest_wanted, 2) / rest_wanted;
        cells++;
    }
    if (cells > 1) assert_true(chi < chi_limit(cells - 1));
    close_sampler(&f);
}

static void test_distribution(void **state) {
    (void)state;
    static float logits[V_MAX];
    static const struct {
        float temperature;
        int32_t top_k;
        float top_p, min_p;
    } cases[] = {
        {1.0f, 0, 1.0f, 0.0f},     {0.5f, 0, 1.0f, 0.0f},     {2.0f, 0, 1.0f, 0.0f},   {100.0f, 0, 1.0f, 0.0f},
        {1.0f, 1, 1.0f, 0.0f},     {1.0f, 5, 1.0f, 0.0f},     {1.0f, 40, 1.0f, 0.0f},  {1.0f, 0, 0.9f, 0.0f},
        {1.0f, 0, 0.3f, 0.0f},     {1.0f, 0, 1e-6f, 0.0f},    {1.0f, 0, 1.0f, 0.1f},   {0.7f, 0, 1.0f, 0.5f},
        {0.8f, 20, 0.8f, 0.0f},    {0.8f, 20, 0.95f, 0.1f},   {1.3f, 0, 0.95f, 0.05f}, {3.0f, 50, 1.0f, 0.3f},
        {1.0f, 10000, 1.0f, 0.0f}, {1.0f, 299, 0.999f, 0.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_sampling how = plain();
        how.temperature = cases[i].temperature;
        how.top_k = cases[i].top_k;
        how.top_p = cases[i].top_p;
        how.min_p = cases[i].min_p;
        fill_logits(logits, 12, (uint32_t)i, 4.0f);
        check_distribution(12, logits, &how, 8000);
        fill_logits(logits, 300, (uint32_t)i + 50, 9.0f);
        check_distribution(300, logits, &how, 8000);
    }
}

/* The set that can be drawn is exactly the reference's set, also with many equal logits and wide ranges. */
static void test_support(void **state) {
    (void)state;
    static float logits[V_MAX];
    static float row[V_MAX];
    static double exact[V_MAX];
    static double wanted[V_MAX];
    static bool seen[V_MAX];
    fixture f;
    open_sampler(&f, 64, 0);
    for (uint32_t round = 0; round < 60; round++) {
        neap_sampling how = plain();
        how.temperature = round % 3 == 0 ? 3.0f : 1.5f;
        how.top_k = round % 2 ? (int32_t)(mix(round) % 20) : 0;
        how.top_p = round % 5 == 4 ? 1.0f : 0.2f + 0.01f * (float)(mix(round + 9) % 75);
        how.min_p = round % 4 == 3 ? 0.02f * (float)(mix(round + 5) % 10) : 0.0f;
        fill_logits(logits, 64, round, 5.0f);
        for (int32_t i = 0; i < 64; i++) logits[i] = roundf(logits[i] * 2) / 2; /* ties */
        for (int32_t i = 0; i < 64; i++) exact[i] = (double)logits[i];
        reference(exact, 64, &how, wanted);
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < 3000; i++) {
            static const int32_t history[3000] = {0};
            neap_sample out;
            memcpy(row, logits, 64 * sizeof *row);
            how.seed = round;
            assert_int_equal(neap_sampler_draw(&f.sampler, row, &how, history, i, &out), NEAP_OK);
            seen[out.token] = true;
        }
        for (int32_t i = 0; i < 64; i++) {
            if (seen[i]) assert_true(wanted[i] > 0.0);
            if (wanted[i] > 0.01) assert_true(seen[i]); /* missed with probability e^-30 */
        }
    }
    close_sampler(&f);
}

/* ---- greedy, ties ---- */

static neap_sample draw(fixture *f, const float *logits, const neap_sampling *how, const int32_t *history, int64_t n) {
    static float row[V_MAX];
    neap_sample out;
    memcpy(row, logits, (size_t)f->sampler.vocab * sizeof *row);
    assert_int_equal(neap_sampler_draw(&f->sampler, row, how, history, n, &out), NEAP_OK);
    return out;
}

static void test_greedy_and_ties(void **state) {
    (void)state;
    fixture f;
    open_sampler(&f, 6, 0);
    neap_sampling how = plain();
    const float ties[6] = {1, 3, 2, 3, 3, 0};
    assert_int_equal(draw(&f, ties, &how, NULL, 0).token, 1);
    const float negative[6] = {-9, -3, -2, -2, -30, -4};
    assert_int_equal(draw(&f, negative, &how, NULL, 0).token, 2);
    const float zeros[6] = {-0.0f, 0.0f, 0.0f, -1, -1, -1};
    assert_int_equal(draw(&f, zeros, &how, NULL, 0).token, 0);
    /* The cuts keep the lower id of equal logits. */
    how.temperature = 1;
    how.top_k = 2;
    for (uint64_t seed = 0; seed < 200; seed++) {
        how.seed = seed;
        const int32_t t = draw(&f, ties, &how, NULL, 0).token;
        assert_true(t == 1 || t == 3);
    }
    how.top_k = 0;
    how.top_p = 0.5f; /* three at e^3 share 88 %: two of them are needed */
    for (uint64_t seed = 0; seed < 200; seed++) {
        how.seed = seed;
        const int32_t t = draw(&f, ties, &how, NULL, 0).token;
        assert_true(t == 1 || t == 3);
    }
    const float equal[6] = {1, 1, 1, 1, -90, -90}; /* the sum of two reaches a half exactly: no third */
    bool seen[6] = {false};
    for (uint64_t seed = 0; seed < 200; seed++) {
        how.seed = seed;
        seen[draw(&f, equal, &how, NULL, 0).token] = true;
    }
    assert_true(seen[0] && seen[1] && !seen[2] && !seen[3]);
    /* top-k 1 is greedy at every temperature, and so is a temperature too small to divide by. */
    how = plain();
    how.temperature = 100;
    how.top_k = 1;
    assert_int_equal(draw(&f, ties, &how, NULL, 0).token, 1);
    how.top_k = 0;
    how.temperature = 1e-40f;
    assert_int_equal(draw(&f, ties, &how, NULL, 0).token, 1);
    how.temperature = FLT_MIN;
    assert_int_equal(draw(&f, negative, &how, NULL, 0).token, 2);
    close_sampler(&f);
}

/* ---- bias and penalties, by hand; the adjusted row stays in the buffer ---- */

static void adjusted(fixture *f, const float *logits, const neap_sampling *how, const int32_t *history, int64_t n,
                     float *row) {
    neap_sample out;
    memcpy(row, logits, (size_t)f->sampler.vocab * sizeof *row);
    assert_int_equal(neap_sampler_draw(&f->sampler, row, how, history, n, &out), NEAP_OK);
    for (int32_t i = 0; i < f->sampler.vocab; i++) assert_int_equal(f->sampler.counts[i], 0);
}

static void test_penalties(void **state) {
    (void)state;
    fixture f;
    float row[5];
    open_sampler(&f, 5, 0);
    const float logits[5] = {2.0f, -2.0f, 4.0f, 0.0f, 1.0f};
    const int32_t history[6] = {4, 0, 1, 1, 0, 1};
    neap_sampling how = plain();

    how.repetition_penalty = 2;
    adjusted(&f, logits, &how, history, 6, row);
    const float repetition[5] = {1.0f, -4.0f, 4.0f, 0.0f, 0.5f};
    assert_memory_equal(row, repetition, sizeof row);

    how = plain();
    how.presence_penalty = 1.5f;
    adjusted(&f, logits, &how, history, 6, row);
    const float presence[5] = {0.5f, -3.5f, 4.0f, 0.0f, -0.5f};
    assert_memory_equal(row, presence, sizeof row);

    how = plain();
    how.frequency_penalty = 0.5f;
    adjusted(&f, logits, &how, history, 6, row);
    const float frequency[5] = {1.0f, -3.5f, 4.0f, 0.0f, 0.5f};
    assert_memory_equal(row, frequency, sizeof row);

    how.frequency_penalty = -0.5f;
    adjusted(&f, logits, &how, history, 6, row);
    const float rewarded[5] = {3.0f, -0.5f, 4.0f, 0.0f, 1.5f};
    assert_memory_equal(row, rewarded, sizeof row);

    /* The window counts back from the end: 2 sees {0, 1}, 0 sees nothing, -1 and anything long see all. */
    how.repetition_penalty = 2;
    how.presence_penalty = 0.25f;
    how.frequency_penalty = 0.5f;
    how.penalty_window = 2;
    adjusted(&f, logits, &how, history, 6, row);
    const float window[5] = {0.25f, -4.75f, 4.0f, 0.0f, 1.0f};
    assert_memory_equal(row, window, sizeof row);
    how.penalty_window = 0;
    adjusted(&f, logits, &how, history, 6, row);
    assert_memory_equal(row, logits, sizeof row);
    float all[5];
    how.penalty_window = -1;
    adjusted(&f, logits, &how, history, 6, all);
    const float everything[5] = {-0.25f, -5.75f, 4.0f, 0.0f, -0.25f};
    assert_memory_equal(all, everything, sizeof row);
    how.penalty_window = INT32_MAX;
    adjusted(&f, logits, &how, history, 6, row);
    assert_memory_equal(row, all, sizeof row);
    close_sampler(&f);
}

static void test_default_window(void **state) {
    (void)state;
    fixture f;
    float row[3];
    int32_t history[100];
    open_sampler(&f, 3, 0);
    const float logits[3] = {1.0f, 1.0f, 1.0f};
    for (int i = 0; i < 100; i++) history[i] = i < 36 ? 0 : 1; /* the last 64 are all 1 */
    neap_sampling how = plain();
    how.presence_penalty = 1;
    adjusted(&f, logits, &how, history, 100, row);
    assert_true(row[0] == 1.0f && row[1] == 0.0f && row[2] == 1.0f);
    adjusted(&f, logits, &how, history, 99, row);
    assert_true(row[0] == 0.0f && row[1] == 0.0f && row[2] == 1.0f);
    close_sampler(&f);
}

static void test_bias(void **state) {
    (void)state;
    fixture f;
    float row[4];
    open_sampler(&f, 4, 0);
    const float logits[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    neap_logit_bias bias[3] = {{0, 2.5f}, {3, -INFINITY}, {0, 0.25f}};
    neap_sampling how = plain();
    how.bias = bias;
    how.n_bias = 3;
    adjusted(&f, logits, &how, NULL, 0, row);
    assert_true(row[0] == 3.75f && row[1] == 2.0f && row[2] == 3.0f);
    assert_int_equal(draw(&f, logits, &how, NULL, 0).token, 0);
    /* Bias comes before the penalties: (1 + 2.75) / 2. */
    const int32_t history[1] = {0};
    how.repetition_penalty = 2;
    adjusted(&f, logits, &how, history, 1, row);
    assert_true(row[0] == 1.875f);
    /* -inf forbids whatever the penalties do, also in a draw. */
    how = plain();
    how.bias = bias;
    how.n_bias = 2;
    how.frequency_penalty = -2;
    how.temperature = 50;
    const int32_t favours[3] = {3, 3, 3};
    for (uint64_t seed = 0; seed < 500; seed++) {
        how.seed = seed;
        assert_int_not_equal(draw(&f, logits, &how, favours, 3).token, 3);
    }
    /* Everything forbidden: an error, not a token. */
    neap_logit_bias none[4] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    how.bias = none;
    how.n_bias = 4;
    neap_sample out;
    memcpy(row, logits, sizeof row);
    assert_int_equal(neap_sampler_draw(&f.sampler, row, &how, NULL, 0, &out), NEAP_INVALID_ARGUMENT);
    how.temperature = 0;
    memcpy(row, logits, sizeof row);
    assert_int_equal(neap_sampler_draw(&f.sampler, row, &how, NULL, 0, &out), NEAP_INVALID_ARGUMENT);
    /* Huge values stay finite. */
    const float huge[4] = {3e38f, -3e38f, 1.0f, 2.0f};
    neap_logit_bias push[2] = {{0, 1e6f}, {1, -FLT_MAX}};
    how.bias = push;
    how.n_bias = 2;
    how.repetition_penalty = 0.001f;
    const int32_t both[2] = {0, 1};
    memcpy(row, huge, sizeof row);
    assert_int_equal(neap_sampler_draw(&f.sampler, row, &how, both, 2, &out), NEAP_OK);
    assert_int_equal(out.token, 0);
    for (int i = 0; i < 4; i++) assert_true(isfinite(row[i]));
    close_sampler(&f);
}

static void test_unsampled(void **state) {
    (void)state;
    fixture f = {.unsampled = {0, 3}};
    open_sampler(&f, 4, 2);
    const float logits[4] = {9.0f, 1.0f, 2.0f, 8.0f};
    neap_sampling how = plain();
    assert_int_equal(draw(&f, logits, &how, NULL, 0).token, 2);
    neap_logit_bias push[1] = {{3, 1000.0f}}; /* no bias brings a reserved id back */
    how.bias = push;
    how.n_bias = 1;
    assert_int_equal(draw(&f, logits, &how, NULL, 0).token, 2);
    how.temperature = 100;
    for (int cut = 0; cut < 4; cut++) {
        how.top_k = cut & 1 ? 3 : 0;
        how.top_p = cut & 2 ? 0.99f : 1.0f;
        for (uint64_t seed = 0; seed < 300; seed++) {
            how.seed = seed;
            const int32_t t = draw(&f, logits, &how, NULL, 0).token;
            assert_true(t == 1 || t == 2);
        }
    }
    close_sampler(&f);
}

static void test_nonfinite(void **state) {
    (void)state;
    fixture f;
    open_sampler(&f, 40, 0);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    float row[40];
    for (int kind = 0; kind < 3; kind++) {
        for (int at = 0; at < 40; at++) {
            for (int temperature = 0; temperature < 2; temperature++) {
                neap_sampling how = plain();
                how.temperature = (float)temperature;
                fill_logits(row, 40, 3, 5.0f);
                row[at] = bad[kind];
                neap_sample out;
                assert_int_equal(neap_sampler_draw(&f.sampler, row, &how, NULL, 0, &out), NEAP_NUMERIC);
                assert_int_equal(out.token, -1);
            }
        }
    }
    close_sampler(&f);
}

/* ---- log probabilities ---- */

static void test_logprobs(void **state) {
    (void)state;
    static float logits[V_MAX];
    fixture f = {.unsampled = {7}};
    open_sampler(&f, 2000, 1);
    for (uint32_t round = 0; round < 20; round++) {
        fill_logits(logits, 2000, round, round < 10 ? 12.0f : 40.0f);
        logits[7] = 100.0f; /* reported although it is never sampled: the model's own distribution */
        if (round % 2) logits[1500] = logits[30] = 50.0f;
        long double max = -1e30L;
        for (int i = 0; i < 2000; i++) max = fmaxl(max, (long double)logits[i]);
        long double sum = 0;
        for (int i = 0; i < 2000; i++) sum += expl((long double)logits[i] - max);
        const double lse = (double)(max + logl(sum));
        ranked order[2000];
        for (int32_t i = 0; i < 2000; i++) order[i] = (ranked){(double)logits[i], i};
        qsort(order, 2000, sizeof *order, by_rank);

        neap_logit_bias bias[1] = {{12, 30.0f}};
        const int32_t history[2] = {12, 30};
        neap_sampling how = plain();
        how.n_logprobs = (int32_t)round;
        how.temperature = round % 3 ? 0.7f : 0.0f;
        how.presence_penalty = 1;
        how.bias = bias;
        how.n_bias = 1;
        const neap_sample out = draw(&f, logits, &how, history, 2);
        assert_int_equal(out.n_top, round);
        for (int32_t i = 0; i < out.n_top; i++) {
            assert_int_equal(out.top[i].token, order[i].id);
            assert_true(fabs((double)out.top[i].logprob - (order[i].logit - lse)) <
                        1e-5 * (1 + fabs(order[i].logit - lse)));
        }
        const double wanted = (double)logits[out.token] - lse;
        assert_true(fabs((double)out.logprob - wanted) < 1e-6 * (1 + fabs(wanted)));
    }
    neap_sampling how = plain();
    how.n_logprobs = 20;
    const neap_sample most = draw(&f, logits, &how, NULL, 0);
    assert_int_equal(most.n_top, 20);
    how.n_logprobs = -1;
    const neap_sample none = draw(&f, logits, &how, NULL, 0);
    assert_int_equal(none.n_top, 0);
    assert_true(none.logprob == 0.0f);
    close_sampler(&f);
    /* The exponential over its whole range: log softmax of (0, -d) is -log(1 + e^-d). */
    open_sampler(&f, 2, 0);
    how.n_logprobs = 1;
    for (int i = 0; i < 4000; i++) {
        const float pair[2] = {0.0f, -0.01f * (float)i};
        const double wanted = -log1p(exp((double)pair[1]));
        const neap_sample out = draw(&f, pair, &how, NULL, 0);
        assert_true(fabs((double)out.logprob - wanted) < 1e-7 * fabs(wanted) + 3e-16);
    }
    close_sampler(&f);
    /* Fewer tokens than alternatives. */
    open_sampler(&f, 3, 0);
    how.n_logprobs = 20;
    const float three[3] = {0, 0, 0};
    const neap_sample few = draw(&f, three, &how, NULL, 0);
    assert_int_equal(few.n_top, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(few.top[i].token, i);
        assert_true(fabs((double)few.top[i].logprob + log(3.0)) < 1e-7);
    }
    close_sampler(&f);
}

/* A big vocabulary: cuts agree with the reference when the histogram has to do its work. */
static void test_large_rows(void **state) {
    (void)state;
    static float logits[V_MAX];
    neap_sampling how = plain();
    for (uint32_t i = 0; i < 6; i++) {
        static const float spreads[6] = {0.01f, 1.0f, 10.0f, 60.0f, 200.0f, 0.0f};
        fill_logits(logits, V_MAX, i, spreads[i]);
        how.temperature = 1.0f + (float)i;
        how.top_p = 0.8f;
        how.top_k = 0;
        check_distribution(V_MAX, logits, &how, 1000);
        how.top_k = 100;
        check_distribution(V_MAX, logits, &how, 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_support),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_default_window),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_unsampled),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_large_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
