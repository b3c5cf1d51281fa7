/* Failures of other engines around kept prefixes, queues and giving way, each played as it was reported: a long prompt
 * that is edited, a restart at every length, giving way after any number of tokens, an order that would tell strangers
 * what is cached, and five hundred schedules in which everything that must not matter changes at once.
 *
 * Answers are compared bit by bit with the same request alone on an engine that keeps nothing. NEAP_LONG=1 runs more.
 */
#include "prefix_fixture.h"

#include <sys/statvfs.h>

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long;

/* Layers of both kinds: it cannot begin just anywhere. */
static neap_model *open_hybrid(void) {
    int i = 0;
    while (i < n_paths && strstr(paths[i], "/kimi-linear") == NULL) i++;
    if (i == n_paths) fail_msg("no hybrid model");
    return open_model(paths[i], NULL);
}

/* ---- a prompt of 8,192 tokens, edited near its beginning and near its end ---- */

enum { LONG_PROMPT = 8192 };

static void test_long_prompt_edited(void **state) {
    (void)state;
    static int32_t prompt[LONG_PROMPT], edited[LONG_PROMPT];
    static question q;
    static const int32_t places[] = {LONG_PROMPT * 99 / 100, 1000};
    if (is_slow_build() && !is_long) return;
    neap_model *m = open_hybrid();
    neap_engine_options o = options_of(LONG_PROMPT + 64, 512);
    o.n_threads = 2;
    neap_engine *cold = create(m, &o);
    o.prefix_cache = 1;
    o.checkpoints_max = 32;
    o.cache_tokens_max = 4 * LONG_PROMPT;
    neap_engine *e = create(m, &o);
    random_tokens(prompt, LONG_PROMPT, m->net.vocab, 8);
    ask(&q, LONG_PROMPT, 4, 1);
    q.request.tokens = prompt;
    run_one(e, &q);
    for (int i = 0; i < 2; i++) {
        memcpy(edited, prompt, sizeof prompt);
        edited[places[i]] = (prompt[places[i]] + 1) % m->net.vocab;
        q.request.tokens = edited;
        if (i == 0) solo(cold, &q);
        run_one(e, &q);
        if (i == 0) compare(&q, base_name(m->dir), "edited");
        const int64_t again = LONG_PROMPT - q.heard.n_cached, spacing = LONG_PROMPT / 16;
        if (again > LONG_PROMPT - places[i] + spacing)
            fail_msg("edited at %d: %lld tokens are computed again", places[i], (long long)again);
    }
    check_all_is_back(e);
    neap_engine_destroy(e);
    neap_engine_destroy(cold);
    neap_model_close(m);
}

/* ---- a restart after a prompt of every length ---- */

enum { MOST = 4 }; /* prompts at a time: each has two places, and eight writes may wait for the disk */

/* Counts the long prompts, and those whose last place was found. */
static void restarts(const neap_model *m, int32_t from, int32_t step, int *n_long, int *n_found) {
    static question first, next[MOST];
    char dir[64] = "/tmp/neap-cases-XXXXXX", command[128], spaces[MOST][16];
    neap_engine_options o = options_of(512, 64);
    neap_engine *cold = create(m, &o);
    if (mkdtemp(dir) == NULL) abort();
    o.prefix_cache = 1;
    o.prefix_dir = dir;
    o.cache_tokens_max = MOST * 512; /* what is being written is held */
    neap_engine *e = create(m, &o);
    for (int32_t i = 0; i < MOST; i++) {
        const int32_t n = from + i * step;
        snprintf(spaces[i], sizeof spaces[i], "%d", n);
        random_tokens(first.tokens, n, m->net.vocab, 1000 + (uint32_t)n);
        memcpy(next[i].tokens, first.tokens, (size_t)n * sizeof(int32_t));
        random_tokens(next[i].tokens + n, 6, m->net.vocab, 2000 + (uint32_t)n);
        ask(&first, n, 0, 0);
        ask(&next[i], n + 6, 4, (uint32_t)n);
        first.request.space = next[i].request.space = spaces[i];
        run_one(e, &first);
        solo(cold, &next[i]);
    }
    neap_engine_destroy(e);
    e = create(m, &o);
    for (int32_t i = 0; i < MOST; i++) {
        const int32_t n = from + i * step;
        run_one(e, &next[i]);
        compare(&next[i], base_name(m->dir), "after a restart");
        if (n <= 64) continue; /* not worth a look at the disk */
        ++*n_long;
        *n_found += next[i].heard.n_cached >= n - 1;
    }
    neap_engine_destroy(e);
    neap_engine_destroy(cold);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* On a disk that is nearly full nothing is kept, on purpose. */
static bool has_disk(void) {
    struct statvfs fs;
    return statvfs("/tmp", &fs) == 0 && (uint64_t)fs.f_bavail * 10 > (uint64_t)fs.f_blocks;
}

static void test_restart_anywhere(void **state) {
    (void)state;
    int n_long = 0, n_found = 0;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        const int32_t step = is_long ? 1 : is_slow_build() ? 5 * n_paths : n_paths;
        for (int32_t n = 1 + i; n <= 300; n += MOST * step) restarts(m, n, step, &n_long, &n_found);
        neap_model_close(m);
    }
    print_message("%d of %d prompts were found\n", n_found, n_long);
    assert_true(n_long > 0);
    if (has_disk()) assert_true(n_found * 10 >= n_long * 9); /* a disk that is too slow may miss a few */
}

/* ---- giving way after any number of tokens ---- */

/* Six pages are wanted, five are there: the second gives way when the first one crosses into its third, which happens
 * after 64 + k tokens (or when it does so itself). */
static void test_giving_way_anywhere(void **state) {
    (void)state;
    static question q[2];
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(192, 48);
        neap_engine *cold = create(m, &o);
        o.seqs_max = 2;
        o.queue_max = 2;
        o.optimistic = 1;
        o.cache_tokens_max = 192;
        for (int32_t k = 1 + (is_long ? 0 : i % 4); k <= 40; k += is_long ? 1 : is_slow_build() ? 16 : 4) {
            for (int j = 0; j < 2; j++) {
                random_tokens(q[j].tokens, 64, m->net.vocab, 30 + (uint32_t)(k + j));
                ask(&q[j], j ? 21 : 64 - k, 110, 3 + (uint32_t)(k + j));
                solo(cold, &q[j]);
            }
            o.prefix_cache = k % 2;
            neap_memory_poison(k % 4 < 2 ? 0x3E : 0xFF);
            neap_engine *e = create(m, &o);
            for (int j = 0; j < 2; j++) submit(e, &q[j]);
            run_all(e);
            for (int j = 0; j < 2; j++) {
                compare(&q[j], base_name(paths[i]), "gives way");
                neap_seq_free(q[j].seq);
            }
            if (stats_of(e).preemptions == 0) fail_msg("k = %d: nobody gave way", k);
            check_all_is_back(e);
            neap_engine_destroy(e);
        }
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* ---- the order of the queue tells nothing ---- */

/* Four wait for one place; the last has its whole prompt in the cache. Then one whose prompt is being computed in
 * another space: it does not wait for that, as it would in its own. */
static void test_order_is_blind(void **state) {
    (void)state;
    enum { N = 4 };
    static question q[N], known;
    neap_model *m = open_hybrid();
    neap_engine_options o = options_of(512, 16);
    o.prefix_cache = 1;
    o.queue_max = N;
    o.cache_tokens_max = 2048;
    neap_engine *e = create(m, &o);
    random_tokens(known.tokens, 200, m->net.vocab, 1);
    ask(&known, 200, 1, 0);
    known.request.space = "a";
    run_one(e, &known);
    for (int k = 0; k < N; k++) {
        random_tokens(q[k].tokens, 200, m->net.vocab, k == N - 1 ? 1 : 50 + (uint32_t)k);
        ask(&q[k], 200, 2, 0);
        q[k].request.space = k % 2 ? "a" : "b";
        submit(e, &q[k]);
    }
    int n_begun = 0;
    while (step(e) == NEAP_OK) {
        drain(e);
        int n = 0;
        while (n < N && q[n].heard.has_begun) n++;
        for (int k = n; k < N; k++) assert_false(q[k].heard.has_begun); /* nobody overtakes */
        assert_true(n >= n_begun);
        n_begun = n;
    }
    drain(e);
    assert_true(q[N - 1].heard.n_cached == 199 && q[0].heard.n_cached == 0);
    for (int k = 0; k < N; k++) neap_seq_free(q[k].seq);
    check_all_is_back(e);
    neap_engine_destroy(e);
    for (int same = 0; same < 2; same++) {
        o.seqs_max = 2;
        e = create(m, &o);
        for (int k = 0; k < 2; k++) {
            random_tokens(q[k].tokens, 200, m->net.vocab, 1);
            ask(&q[k], 200, 2, 0);
            q[k].request.space = same || k == 0 ? "a" : "b";
            submit(e, &q[k]);
        }
        for (int k = 0; k < 3; k++) assert_int_equal(step(e), NEAP_OK);
        drain(e);
        assert_true(q[0].heard.has_begun);
        assert_int_equal(q[1].heard.has_begun, !same);
        run_all(e);
        assert_int_equal(q[1].heard.n_cached > 0, same);
        for (int k = 0; k < 2; k++) neap_seq_free(q[k].seq);
        check_all_is_back(e);
        neap_engine_destroy(e);
    }
    neap_model_close(m);
}

/* ---- five hundred schedules ---- */

enum { CASES = 12, SCHEDULES = 500 };

static neap_engine_options any_options(uint32_t *seed) {
    static const int32_t batches[] = {1, 2, 7, 33, 64, 100, 512};
    neap_engine_options o = options_of(256, batches[random_below(seed, 7)]);
    o.n_threads = 1 + (int32_t)random_below(seed, 3);
    o.n_threads_batch = 1 + (int32_t)random_below(seed, 3);
    o.oversubscribe = 1;
    o.seqs_max = 1 + (int32_t)random_below(seed, 6);
    o.queue_max = CASES;
    o.queue_tokens_max = 1 << 20;
    o.optimistic = random_below(seed, 4) > 0;
    o.prefix_cache = random_below(seed, 3) > 0;
    o.checkpoints_max = 1 + (int32_t)random_below(seed, 10);
    o.checkpoint_spacing = random_below(seed, 2) ? 32 : 0;
    /* Every place brings a page with it; 4 in all are enough for one. */
    const int32_t n_pages = 4 + (int32_t)random_below(seed, 5);
    o.cache_tokens_max = 64 * (uint64_t)(n_pages > o.seqs_max ? n_pages - o.seqs_max : 1);
    return o;
}

/* Some of the cases, in any order, some of them twice as long in the queue as others. */
static uint64_t any_schedule(const neap_model *m, question *cases, uint32_t *seed) {
    int order[CASES], n = 2 + (int)random_below(seed, 5);
    for (int k = 0; k < CASES; k++) order[k] = k;
    for (int k = 0; k < n; k++) {
        const int other = k + (int)random_below(seed, (uint32_t)(CASES - k)), mine = order[k];
        order[k] = order[other];
        order[other] = mine;
    }
    const neap_engine_options o = any_options(seed);
    neap_engine *e = create(m, &o);
    neap_status status = NEAP_OK;
    for (int next = 0; next < n || status == NEAP_OK;) {
        while (next < n && random_below(seed, 4)) submit(e, &cases[order[next++]]);
        status = step(e);
        if (status != NEAP_OK && status != NEAP_AGAIN) fail_msg("step: %s", neap_last_error());
        drain(e);
    }
    for (int k = 0; k < n; k++) {
        compare(&cases[order[k]], base_name(m->dir), "a schedule");
        neap_seq_free(cases[order[k]].seq);
    }
    const uint64_t n_preemptions = stats_of(e).preemptions;
    check_all_is_back(e);
    neap_engine_destroy(e);
    return n_preemptions;
}

static void test_five_hundred_schedules(void **state) {
    (void)state;
    static question cases[CASES];
    uint32_t seed = 2026;
    uint64_t n_preemptions = 0;
    const int n_runs = is_slow_build() ? SCHEDULES / 10 : is_long ? 10 * SCHEDULES : SCHEDULES;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(256, 512);
        neap_engine *cold = create(m, &o);
        for (int k = 0; k < CASES; k++) {
            const int32_t n = 1 + (int32_t)random_below(&seed, k % 4 ? 60 : 180);
            random_tokens(cases[k].tokens, n, m->net.vocab, 70 + (uint32_t)(k % 3));
            cases[k].tokens[n - 1] = k;
            ask(&cases[k], n, 1 + (int32_t)random_below(&seed, k % 2 ? 30 : 190), seed);
            cases[k].request.sampling.presence_penalty = k % 2 ? 0.5f : 0.0f;
            solo(cold, &cases[k]);
        }
        neap_engine_destroy(cold);
        for (int run = i; run < n_runs; run += n_paths) {
            neap_memory_poison(run % 2 ? 0x3E : 0xFF);
            n_preemptions += any_schedule(m, cases, &seed);
        }
        neap_model_close(m);
    }
    print_message("%d schedules, %d times a sequence gave way\n", n_runs, (int)n_preemptions);
    assert_true(n_preemptions > 0);
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    n_paths = list_models(paths);
    return n_paths == 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_prompt_edited),     cmocka_unit_test(test_restart_anywhere),
        cmocka_unit_test(test_giving_way_anywhere),    cmocka_unit_test(test_order_is_blind),
        cmocka_unit_test(test_five_hundred_schedules),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
