/* No tuning changes a bit. Random settings of everything that neap_tuning holds, random numbers of workers, plans
 * replayed and eager, for prompts in chunks, several sequences together, drafts of a few rows and single tokens: all
 * logits are those of the defaults on one worker. Every golden model, with caches and activations in several formats.
 * Cases E7, J3 (tests/CASES.md).
 *
 * NEAP_LONG=1 in the environment runs ten times as many. */
#include "trace.h"

enum { SEQS = 4, N_MAX = 90, ROWS = 40, CTX = 128 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long, is_slow;

static const struct {
    neap_row_kind latent, index;
    neap_x_form act, moe_act;
} formats[] = {{NEAP_ROWS_F32, NEAP_ROWS_F32, NEAP_X_F32, NEAP_X_F32},
               {NEAP_ROWS_BF16, NEAP_ROWS_BF16, NEAP_X_INT16, NEAP_X_INT16},
               {NEAP_ROWS_FP8, NEAP_ROWS_MXFP8, NEAP_X_INT8, NEAP_X_INT8}};

/* The text of a tuning, for messages. */
static char shown[256];

typedef struct run {
    int32_t tokens[SEQS][N_MAX];
    int32_t lengths[SEQS];
    float *logits[SEQS]; /* [n][vocab] */
    bool has[SEQS][N_MAX];
} run;

static neap_forward *open_forward(const neap_model *m, int format, const neap_tuning *t, int32_t n_threads,
                                  int32_t n_threads_batch, bool is_eager) {
    neap_forward *f = NULL;
    const neap_forward_options o = {.n_threads = n_threads,
                                    .n_threads_batch = n_threads_batch,
                                    .oversubscribe = true,
                                    .seqs_max = SEQS,
                                    .context_max = CTX,
                                    .batch_tokens_max = ROWS,
                                    .is_eager = is_eager,
                                    .tuning = t,
                                    .latent_kind = formats[format].latent,
                                    .index_kind = formats[format].index,
                                    .act = formats[format].act,
                                    .moe_act = formats[format].moe_act};
    if (neap_forward_create(&f, m, &o) != NEAP_OK) fail_msg("%s: %s", m->dir, neap_last_error());
    return f;
}

/* All sequences from begin to end in steps drawn by seed; keeps the logits of every step's last rows, and of all rows
 * of short segments. */
static void play(neap_forward *f, int32_t vocab, run *r, uint32_t seed) {
    int32_t slots[SEQS], done[SEQS] = {0}, open = SEQS;
    for (int i = 0; i < SEQS; i++) {
        assert_int_equal(neap_forward_open(f, r->lengths[i], &slots[i]), NEAP_OK);
        memset(r->has[i], 0, sizeof r->has[i]);
    }
    while (open > 0) {
        neap_segment segments[SEQS];
        int32_t who[SEQS], n = 0, left = ROWS;
        const uint32_t mood = random_below(&seed, 4); /* 0: decode only, 1: small, 2: chunks, 3: all kinds */
        for (int i = 0; i < SEQS; i++) {
            int32_t rest = r->lengths[i] - done[i];
            if (rest == 0 || left == 0 || (open > 1 && random_below(&seed, 3) == 0)) continue;
            const uint32_t kind = mood == 3 ? random_below(&seed, 3) : mood;
            int32_t rows = kind == 0 ? 1 : 1 + (int32_t)random_below(&seed, kind == 1 ? 5 : 39);
            if (rows > rest) rows = rest;
            if (rows > left) rows = left;
            segments[n] = (neap_segment){.slot = slots[i],
                                         .n_rows = rows,
                                         .position = done[i],
                                         .tokens = r->tokens[i] + done[i],
                                         .wants_logits = true};
            who[n++] = i;
            left -= rows;
        }
        if (n == 0) continue;
        if (neap_forward_run(f, segments, n) != NEAP_OK) fail_msg("%s", neap_last_error());
        int32_t row = 0;
        for (int32_t k = 0; k < n; k++) {
            const int i = who[k];
            row += segments[k].n_rows;
            done[i] += segments[k].n_rows;
            const float *logits = neap_forward_logits(f, row - 1);
            assert_non_null(logits);
            memcpy(r->logits[i] + (size_t)(done[i] - 1) * (size_t)vocab, logits, (size_t)vocab * sizeof *logits);
            r->has[i][done[i] - 1] = true;
            open -= done[i] == r->lengths[i];
        }
    }
    for (int i = 0; i < SEQS; i++) assert_int_equal(neap_forward_close(f, slots[i]), NEAP_OK);
}

/* The definition: every sequence alone, token by token, one worker, default settings. */
static void play_alone(neap_forward *f, int32_t vocab, run *r) {
    for (int i = 0; i < SEQS; i++) {
        int32_t slot;
        assert_int_equal(neap_forward_open(f, r->lengths[i], &slot), NEAP_OK);
        for (int32_t at = 0; at < r->lengths[i]; at++) {
            const neap_segment s = {
                .slot = slot, .n_rows = 1, .position = at, .tokens = r->tokens[i] + at, .wants_logits = true};
            if (neap_forward_run(f, &s, 1) != NEAP_OK) fail_msg("%s", neap_last_error());
            memcpy(r->logits[i] + (size_t)at * (size_t)vocab, neap_forward_logits(f, 0), (size_t)vocab * sizeof(float));
        }
        assert_int_equal(neap_forward_close(f, slot), NEAP_OK);
    }
}

static neap_tuning random_tuning(uint32_t *seed) {
    neap_tuning t;
    neap_tuning_init(&t);
    t.few_rows = (int32_t)random_below(seed, 9);
    t.tile_rows = 1 + (int32_t)random_below(seed, 8);
    t.prefetch_kib = (int32_t[]){0, 1, 64, 256, 1024, 65536}[random_below(seed, 6)];
    t.mixed_workers = 1 + (int32_t)random_below(seed, 3);
    t.beside = random_below(seed, 8);
    t.streams = random_below(seed, 8);
    t.pinning = (int32_t)random_below(seed, 4);
    return t;
}

static void open_run(run *r, const neap_model *m, uint32_t seed) {
    static const int32_t lengths[SEQS] = {90, 41, 9, 66};
    for (int i = 0; i < SEQS; i++) {
        r->lengths[i] = lengths[i];
        random_tokens(r->tokens[i], lengths[i], m->net.vocab, seed + (uint32_t)i);
        r->logits[i] = need((size_t)lengths[i] * (size_t)m->net.vocab * sizeof(float));
    }
}

static void close_run(run *r) {
    for (int i = 0; i < SEQS; i++) free(r->logits[i]);
}

static void compare(const run *wanted, const run *seen, const neap_model *m) {
    for (int i = 0; i < SEQS; i++)
        for (int32_t at = 0; at < wanted->lengths[i]; at++) {
            const size_t begin = (size_t)at * (size_t)m->net.vocab, bytes = (size_t)m->net.vocab * sizeof(float);
            if (!seen->has[i][at] || memcmp(wanted->logits[i] + begin, seen->logits[i] + begin, bytes) == 0) continue;
            fail_msg("%s, %s: logits of sequence %d differ at position %d", base_name(m->dir), shown, i, at);
        }
}

static void test_random_tunings(void **state) {
    (void)state;
    static run wanted, seen;
    uint32_t seed = 2026;
    int n_runs = 0;
    for (int p = 0; p < n_paths; p++) {
        neap_model *m = open_model(paths[p], NULL);
        const int format = p % 3, n_times = is_long ? 60 : is_slow ? 2 : 6;
        open_run(&wanted, m, 50);
        open_run(&seen, m, 50);
        neap_forward *f = open_forward(m, format, NULL, 1, 1, false);
        play_alone(f, m->net.vocab, &wanted);
        neap_forward_destroy(f);
        for (int k = 0; k < n_times; k++, n_runs++) {
            const neap_tuning t = random_tuning(&seed);
            const int32_t few = 1 + (int32_t)random_below(&seed, 4), many = 1 + (int32_t)random_below(&seed, 4);
            const bool is_eager = random_below(&seed, 5) == 0;
            (void)snprintf(shown, sizeof shown,
                           "few_rows %d tile_rows %d prefetch %d mixed %d beside %u streams %u pinning %d, %d and %d "
                           "workers%s",
                           t.few_rows, t.tile_rows, t.prefetch_kib, t.mixed_workers, t.beside, t.streams, t.pinning,
                           few, many, is_eager ? ", eager" : "");
            f = open_forward(m, format, &t, few, many, is_eager);
            for (int again = 0; again < 2; again++) {
                play(f, m->net.vocab, &seen, random_below(&seed, 1u << 20));
                compare(&wanted, &seen, m);
            }
            neap_forward_destroy(f);
        }
        close_run(&wanted);
        close_run(&seen);
        neap_model_close(m);
    }
    assert_true(n_runs >= 12);
}

/* Every setting at each end, one at a time, so that none depends on luck. */
static void test_each_setting(void **state) {
    (void)state;
    static run wanted, seen;
    static const struct {
        size_t offset;
        int32_t value;
    } settings[] = {{offsetof(neap_tuning, few_rows), 0},
                    {offsetof(neap_tuning, few_rows), 1},
                    {offsetof(neap_tuning, tile_rows), 1},
                    {offsetof(neap_tuning, prefetch_kib), 65536},
                    {offsetof(neap_tuning, beside), 0},
                    {offsetof(neap_tuning, streams), NEAP_USE_INDEX},
                    {offsetof(neap_tuning, streams), NEAP_USE_SHARED},
                    {offsetof(neap_tuning, streams), NEAP_USE_MIXED},
                    {offsetof(neap_tuning, streams), NEAP_USE_INDEX | NEAP_USE_SHARED | NEAP_USE_MIXED},
                    {offsetof(neap_tuning, pinning), NEAP_PIN_OFF},
                    {offsetof(neap_tuning, pinning), NEAP_PIN_STAY}};
    for (int p = 0; p < n_paths; p++) {
        const char *name = base_name(paths[p]);
        if (!strstr(name, "glm-dsa-tiny") && !strstr(name, "k3-mini")) continue;
        neap_model *m = open_model(paths[p], NULL);
        open_run(&wanted, m, 7);
        open_run(&seen, m, 7);
        neap_forward *f = open_forward(m, 1, NULL, 1, 1, false);
        play_alone(f, m->net.vocab, &wanted);
        neap_forward_destroy(f);
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
            for (int32_t n_threads = 1; n_threads <= (is_slow ? 2 : 3); n_threads++) {
                neap_tuning t;
                neap_tuning_init(&t);
                memcpy((char *)&t + settings[i].offset, &settings[i].value, sizeof(int32_t));
                (void)snprintf(shown, sizeof shown, "setting %zu, %d workers", i, n_threads);
                f = open_forward(m, 1, &t, n_threads, 0, false);
                play(f, m->net.vocab, &seen, (uint32_t)(100 * i) + (uint32_t)n_threads);
                compare(&wanted, &seen, m);
                neap_forward_destroy(f);
            }
        close_run(&wanted);
        close_run(&seen);
        neap_model_close(m);
    }
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    is_slow = is_slow_build();
    n_paths = list_models(paths);
    n_paths = quantised_models(paths, n_paths);
    return n_paths >= 2 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tunings),
        cmocka_unit_test(test_each_setting),
    };
    return cmocka_run_group_tests(tests, setup, quantised_remove);
}
