/* Long-run agreement (public case A10): single kernels can match to 1e-8 while a long generation drifts. The model
 * is fed 4,096 given tokens, half of them by chunks, half one by one; the log-probability of each next token is
 * compared with the float64 reference. Neither the error nor its growth with the position may exceed what F32
 * rounding explains. Medians are compared: in a model with an indexer a near tie may change a single row. */
#include <math.h>

#include "trace.h"

enum { QUARTERS = 4 };

typedef struct long_text {
    neap_model *model;
    int32_t *tokens;
    double *logprob; /* [n - 1] */
    int32_t n;
} long_text;

static void *read_tensor(const neap_checkpoint *c, const char *name, int64_t *n) {
    const neap_stored_tensor *t = neap_checkpoint_find(c, name);
    assert_non_null(t);
    void *p = need(t->bytes);
    assert_int_equal(neap_checkpoint_read(c, t, 0, t->bytes, p), NEAP_OK);
    *n = t->shape[0];
    return p;
}

static long_text open_text(const char *name) {
    char path[512];
    long_text t = {0};
    neap_checkpoint *c;
    int64_t n;
    snprintf(path, sizeof path, "%s/golden/long/%s.safetensors", NEAP_TEST_DATA, name);
    assert_int_equal(neap_checkpoint_open_file(&c, path), NEAP_OK);
    t.tokens = read_tensor(c, "tokens", &n);
    t.n = (int32_t)n;
    t.logprob = read_tensor(c, "logprob", &n);
    assert_int_equal(n, t.n - 1);
    neap_checkpoint_close(c);
    snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, name);
    if (neap_model_open(&t.model, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
    return t;
}

static double logprob_of(const float *logits, int32_t vocab, int32_t token) {
    double max = logits[0], sum = 0;
    for (int32_t i = 1; i < vocab; i++) max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < vocab; i++) sum += exp(logits[i] - max);
    return logits[token] - max - log(sum);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *x, int32_t n) {
    double *copy = need((size_t)n * sizeof *copy);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, by_size);
    double m = copy[n / 2];
    free(copy);
    return m;
}

static void run_text(const char *name, double limit) {
    long_text t = open_text(name);
    neap_forward *f;
    const neap_forward_options o = {.n_threads = 2,
                                    .oversubscribe = true,
                                    .seqs_max = 1,
                                    .context_max = t.n,
                                    .batch_tokens_max = 100,
                                    .enable_taps = true};
    assert_int_equal(neap_forward_create(&f, t.model, &o), NEAP_OK);
    int32_t slot, vocab = t.model->net.vocab;
    assert_int_equal(neap_forward_open(f, t.n, &slot), NEAP_OK);
    double *error = need((size_t)t.n * sizeof *error);
    for (int32_t i = 0; i < t.n - 1;) {
        int32_t rows = i / 512 % 2 ? 1 : 100; /* both ways of walking in every part of the text */
        if (rows > t.n - 1 - i) rows = t.n - 1 - i;
        const neap_segment s = {
            .slot = slot, .n_rows = rows, .position = i, .tokens = t.tokens + i, .wants_all_logits = true};
        assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
        for (int32_t r = 0; r < rows; r++)
            error[i + r] = fabs(logprob_of(neap_forward_logits(f, r), vocab, t.tokens[i + r + 1]) - t.logprob[i + r]);
        i += rows;
    }
    double quarter[QUARTERS];
    int32_t part = (t.n - 1) / QUARTERS;
    for (int q = 0; q < QUARTERS; q++) quarter[q] = median(error + q * part, part);
    print_message("%s: median error by quarter %.2e %.2e %.2e %.2e\n", name, quarter[0], quarter[1], quarter[2],
                  quarter[3]);
    for (int q = 0; q < QUARTERS; q++) assert_true(quarter[q] < limit);
    assert_true(quarter[QUARTERS - 1] < 2 * quarter[0] + 1e-6);
    free(error);
    neap_forward_destroy(f);
    neap_model_close(t.model);
    free(t.tokens);
    free(t.logprob);
}

static void kimi_linear_does_not_drift(void **state) {
    (void)state;
    run_text("kimi-linear-f32-float32", 1e-5);
}

static void kimi_k3_with_indexer_does_not_drift(void **state) {
    (void)state;
    run_text("kimi-k3-mini-mxfp4", 3e-5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kimi_linear_does_not_drift),
        cmocka_unit_test(kimi_k3_with_indexer_does_not_drift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
