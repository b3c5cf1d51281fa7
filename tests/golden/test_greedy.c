/* Greedy continuations of every golden file, which an independent implementation computed: the same tokens, in
 * one shot and in small chunks, alone and with a neighbour. Compared up to the first step whose margin over the
 * second best logit is below what two correct float32 implementations may differ by. Models with INT8 or MXFP4 weights
 * with 16-bit activations too: the files are made with margins of at least 5e-3.
 *
 * These models have random weights, so where there is a tokenizer they may prefer a reserved id, which the
 * sampler never gives out: generation is compared up to there, the logits' argmax (fed with the golden tokens)
 * all the way. */
#include "trace.h"

#include "format/tokenizer.h"

enum { PROMPT_MAX = 4096, NEW_MAX = 512 };

/* Limit of golden/README for logits of K3-like models; the files are made with margins of at least 5e-3. */
#define MARGIN_MIN 1e-3f

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;

typedef struct golden {
    int32_t tokens[PROMPT_MAX];
    int32_t greedy[NEW_MAX];
    float margin[NEW_MAX];
    int32_t n_tokens, n_greedy;
} golden;

static int64_t read_tensor(const neap_tensors *f, const char *name, void *data, int64_t n_max) {
    neap_tensor_info info;
    if (neap_tensors_find(f, name, &info) != NEAP_OK) return 0;
    assert_int_equal(info.rank, 1);
    assert_in_range(info.shape[0], 1, n_max);
    assert_int_equal(info.bytes, (uint64_t)info.shape[0] * 4);
    assert_int_equal(neap_tensors_read(f, name, 0, info.bytes, data), NEAP_OK);
    return info.shape[0];
}

static bool read_golden(const char *path, golden *g) {
    neap_tensors *f = NULL;
    if (neap_tensors_open(&f, path) != NEAP_OK) fail_msg("%s: %s", path, neap_last_error());
    g->n_tokens = (int32_t)read_tensor(f, "tokens", g->tokens, PROMPT_MAX);
    g->n_greedy = (int32_t)read_tensor(f, "greedy", g->greedy, NEW_MAX);
    const int64_t n_margins = read_tensor(f, "greedy_margin", g->margin, NEW_MAX);
    neap_tensors_close(f);
    assert_int_equal(n_margins, g->n_greedy);
    int32_t n = 0;
    while (n < g->n_greedy && g->margin[n] >= MARGIN_MIN) n++;
    g->n_greedy = n;
    return g->n_tokens > 0 && n > 0;
}

static int compare_one(const neap_model *m, const char *path, const golden *g, int32_t act, int32_t batch,
                       bool has_neighbour) {
    neap_engine *e = NULL;
    neap_seq *seq = NULL;
    neap_seq *neighbour = NULL;
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.cache_type = NEAP_CACHE_F32;
    o.index_type = NEAP_INDEX_F32;
    o.act_type = act;
    o.n_threads = 2;
    o.seqs_max = 2;
    o.context_max = g->n_tokens + g->n_greedy;
    o.batch_tokens_max = batch;
    if (neap_engine_create(&e, m, &o) != NEAP_OK) fail_msg("%s: %s", path, neap_last_error());
    neap_request r;
    neap_request_init(&r);
    r.tokens = g->tokens;
    r.n_tokens = (size_t)g->n_tokens;
    r.max_tokens = g->n_greedy;
    r.ignore_eos = 1;
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_OK);
    if (has_neighbour) {
        r.tokens = g->tokens + g->n_tokens / 2;
        r.n_tokens = 1;
        assert_int_equal(neap_submit(e, &r, &neighbour), NEAP_OK);
    }
    neap_event event = {.struct_size = sizeof event};
    int n = 0;
    while (neap_step(e) == NEAP_OK) {
        while (neap_poll(e, &event) == NEAP_OK) {
            if (event.seq != seq) continue;
            assert_int_not_equal(event.finish, NEAP_FINISH_ERROR);
            if (event.kind != NEAP_EVENT_TOKEN) continue;
            if (event.token != g->greedy[n]) {
                fail_msg("%s: token %d is %d, wanted %d (margin %g)", path, n, event.token, g->greedy[n],
                         (double)g->margin[n]);
            }
            n++;
        }
    }
    neap_engine_destroy(e);
    return n;
}

/* The largest logit after every position from the prompt's last token on. */
typedef struct best_logits {
    int32_t first;
    int32_t best[NEW_MAX];
} best_logits;

static void best_tap(void *user, const neap_tap *tap) {
    best_logits *b = user;
    if (strcmp(tap->name, "logits") != 0) return;
    for (int64_t r = 0; r < tap->shape[0]; r++) {
        const int64_t at = tap->position + r - b->first;
        const float *row = (const float *)tap->data + r * tap->shape[1];
        if (at < 0 || at >= NEW_MAX) continue;
        b->best[at] = 0;
        for (int32_t t = 1; t < tap->shape[1]; t++) {
            if (row[t] > row[b->best[at]]) b->best[at] = t;
        }
    }
}

static void compare_fed(const neap_model *m, const char *path, const golden *g, int32_t act) {
    static int32_t tokens[PROMPT_MAX + NEW_MAX];
    static best_logits b;
    neap_engine *e = NULL;
    neap_seq *seq = NULL;
    neap_engine_options o;
    neap_request r;
    b.first = g->n_tokens - 1;
    memcpy(tokens, g->tokens, (size_t)g->n_tokens * sizeof *tokens);
    memcpy(tokens + g->n_tokens, g->greedy, (size_t)g->n_greedy * sizeof *tokens);
    neap_engine_options_init(&o);
    o.cache_type = NEAP_CACHE_F32;
    o.index_type = NEAP_INDEX_F32;
    o.act_type = act;
    o.n_threads = 1;
    o.context_max = g->n_tokens + g->n_greedy;
    o.enable_taps = 1;
    if (neap_engine_create(&e, m, &o) != NEAP_OK) fail_msg("%s: %s", path, neap_last_error());
    neap_request_init(&r);
    r.tokens = tokens;
    r.n_tokens = (size_t)(g->n_tokens + g->n_greedy - 1);
    r.max_tokens = 0;
    r.all_logits = 1;
    r.tap = best_tap;
    r.tap_user = &b;
    assert_int_equal(neap_submit(e, &r, &seq), NEAP_OK);
    while (neap_step(e) == NEAP_OK) {
    }
    for (int32_t i = 0; i < g->n_greedy; i++) {
        if (b.best[i] != g->greedy[i]) fail_msg("%s: best logit %d is %d, wanted %d", path, i, b.best[i], g->greedy[i]);
    }
    neap_engine_destroy(e);
}

/* How many of the golden tokens the sampler may give out. */
static int32_t n_allowed(const neap_model *m, const golden *g) {
    int32_t n = 0;
    while (n < g->n_greedy && (m->tokenizer == NULL || !neap_token_is_unsampled(m->tokenizer, g->greedy[n]))) n++;
    return n;
}

static void test_greedy(void **state) {
    (void)state;
    static golden g;
    int n_files = 0;
    for (int i = 0; i < n_paths; i++) {
        DIR *d = opendir(paths[i]);
        assert_non_null(d);
        neap_model *m = open_model(paths[i], NULL);
        const bool has_integers = m->has_int_experts || m->has_int_others;
        for (struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
            char path[800];
            const size_t n = strlen(entry->d_name);
            if (strncmp(entry->d_name, "golden_p", 8) != 0 || n < 12 ||
                strcmp(entry->d_name + n - 12, ".safetensors") != 0) {
                continue;
            }
            snprintf(path, sizeof path, "%s/%.250s", paths[i], entry->d_name);
            if (!read_golden(path, &g)) continue;
            compare_fed(m, path, &g, NEAP_ACT_F32);
            if (has_integers) compare_fed(m, path, &g, NEAP_ACT_INT16);
            const int32_t n_fed = g.n_greedy;
            g.n_greedy = n_allowed(m, &g);
            if (g.n_greedy > 0) {
                assert_int_equal(compare_one(m, path, &g, NEAP_ACT_F32, 512, false), g.n_greedy);
                assert_int_equal(compare_one(m, path, &g, NEAP_ACT_F32, 7, true), g.n_greedy);
                if (has_integers) assert_int_equal(compare_one(m, path, &g, NEAP_ACT_INT16, 7, true), g.n_greedy);
            }
            printf("%s/%s: %d tokens equal, %d generated\n", base_name(paths[i]), entry->d_name, n_fed, g.n_greedy);
            n_files++;
        }
        closedir(d);
        neap_model_close(m);
    }
    assert_true(n_files >= 5);
}

static int setup(void **state) {
    (void)state;
    n_paths = list_models(paths);
    return n_paths == 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
