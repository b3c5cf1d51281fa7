/* Who runs, waits and gives way, over real layers: random schedules with queues, pauses, cancels, frees and pools so
 * small that sequences give way again and again. Each answer is bit for bit that of its solo run, somebody always
 * advances, and at the end everything is back. NEAP_LONG=1 runs more. */
#include "prefix_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

enum { REQUESTS = 24, CTX = 256 };

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long;
static question cases[REQUESTS];

static void make_cases(const neap_model *m, neap_engine *cold, uint32_t seed) {
    static int32_t bases[3][160];
    for (int k = 0; k < 3; k++) random_tokens(bases[k], 160, m->net.vocab, seed + (uint32_t)k);
    for (int k = 0; k < REQUESTS; k++) {
        question *q = &cases[k];
        const int32_t n = 1 + (int32_t)random_below(&seed, k % 3 ? 50 : 150);
        const int32_t own = 1 + (int32_t)random_below(&seed, (uint32_t)n);
        memcpy(q->tokens, bases[k % 3], (size_t)n * sizeof(int32_t));
        random_tokens(q->tokens + n - own, own, m->net.vocab, seed);
        ask(q, n, 1 + (int32_t)random_below(&seed, k % 4 == 1 ? 20 : CTX - 51), seed);
        q->request.sampling.frequency_penalty = k % 2 ? 0.2f : 0.0f;
        solo(cold, q);
    }
}

typedef struct fate {
    int cancel_at; /* tokens; -1: never */
    bool is_paused, is_freed, is_sent;
    int n_steps; /* since it was paused */
} fate;

static void meddle(question *q, fate *f, uint32_t *seed) {
    if (!f->is_sent || f->is_freed) return;
    if (f->cancel_at >= 0 && q->heard.n_tokens >= f->cancel_at) neap_cancel(q->seq);
    if (f->is_paused ? --f->n_steps < 0 : random_below(seed, 40) == 0) {
        f->is_paused = !f->is_paused;
        f->n_steps = (int)random_below(seed, 12);
        neap_pause(q->seq, f->is_paused);
    }
    if (random_below(seed, 500) == 0) {
        neap_seq_free(q->seq);
        f->is_freed = true;
    }
}

static bool is_over(const question *q, const fate *f) { return !f->is_sent || f->is_freed || q->heard.is_done; }

static uint64_t one_schedule(const neap_model *m, const neap_engine_options *o, uint32_t *seed) {
    fate fates[REQUESTS];
    neap_engine *e = create(m, o);
    int next = 0, n_idle = 0;
    for (int k = 0; k < REQUESTS; k++)
        fates[k] = (fate){.cancel_at = random_below(seed, 6) ? -1 : (int)random_below(seed, 30)};
    for (int n_steps = 1;; n_steps++) {
        while (next < REQUESTS && random_below(seed, 4)) {
            const neap_status status = try_submit(e, &cases[next]);
            if (status == NEAP_BUSY && o->queue_max < REQUESTS) break;
            if (status != NEAP_OK) fail_msg("submit: %s", neap_last_error());
            fates[next++].is_sent = true;
        }
        const neap_status status = step(e);
        if (status != NEAP_OK && status != NEAP_AGAIN) fail_msg("step: %s", neap_last_error());
        if (random_below(seed, 5)) drain(e);
        bool has_ended = next == REQUESTS;
        for (int k = 0; k < next; k++) {
            meddle(&cases[k], &fates[k], seed);
            has_ended = has_ended && is_over(&cases[k], &fates[k]);
        }
        if (has_ended) break;
        /* Nothing to do: only for as long as all who are left are paused. */
        n_idle = status == NEAP_AGAIN ? n_idle + 1 : 0;
        if (n_idle > 200) fail_msg("%s: nobody moves", m->dir);
        if (n_steps % 32 == 0) audit(e);
        if (n_steps > 40000) fail_msg("%s: no end", m->dir);
    }
    drain(e);
    for (int k = 0; k < REQUESTS; k++) {
        if (fates[k].is_freed) continue;
        compare(&cases[k], base_name(m->dir), "a schedule");
        if (cases[k].heard.finish == NEAP_FINISH_CANCELLED) assert_true(fates[k].cancel_at >= 0);
        neap_seq_free(cases[k].seq);
    }
    const uint64_t n = stats_of(e).preemptions;
    check_all_is_back(e);
    neap_engine_destroy(e);
    return n;
}

static void test_random_schedules(void **state) {
    (void)state;
    static const int32_t batches[] = {3, 16, 64, 512};
    uint32_t seed = 9;
    uint64_t n_preemptions = 0;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(CTX, 512);
        neap_engine *cold = create(m, &o);
        make_cases(m, cold, 400 + (uint32_t)i);
        neap_engine_destroy(cold);
        for (int run = 0; run < (is_long ? 200 : 16); run++) {
            o = options_of(CTX, batches[run % 4]);
            o.seqs_max = run % 6 == 5 ? 1 : 3 + (int32_t)random_below(&seed, 5);
            o.queue_max = run % 3 ? REQUESTS : (int32_t)random_below(&seed, 6);
            o.queue_tokens_max = 1 << 20;
            o.optimistic = run % 5 != 4;
            o.prefix_cache = run % 2;
            o.checkpoints_max = 1 + (int32_t)random_below(&seed, 12);
            o.checkpoint_spacing = run % 4 == 1 ? 40 : 0;
            /* Every place that a sequence may take brings a page with it; 4 in all are enough for one. */
            const int32_t n_pages = 4 + (int32_t)random_below(&seed, 7);
            o.cache_tokens_max = 64 * (uint64_t)(n_pages > o.seqs_max ? n_pages - o.seqs_max : 1);
            neap_memory_poison(run % 2 ? 0x3E : 0xFF);
            n_preemptions += one_schedule(m, &o, &seed);
        }
        neap_model_close(m);
    }
    print_message("%d times a sequence gave way\n", (int)n_preemptions);
    assert_true(n_preemptions > 20);
}

/* Two that grow into the whole pool: one waits, is computed again, and nobody can tell. Forced after every k tokens. */
static void test_giving_way(void **state) {
    (void)state;
    static question q[2];
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(192, 32);
        neap_engine *cold = create(m, &o);
        for (int k = 0; k < 2; k++) {
            random_tokens(q[k].tokens, 64, m->net.vocab, 30 + (uint32_t)k);
            ask(&q[k], 60 - 7 * k, 90, 3 + (uint32_t)k);
            solo(cold, &q[k]);
        }
        neap_engine_destroy(cold);
        for (int prefix = 0; prefix < 2; prefix++) {
            o.seqs_max = 2;
            o.queue_max = 2;
            o.optimistic = 1;
            o.prefix_cache = prefix;
            o.cache_tokens_max = 192; /* 5 pages, of 6 that they need */
            o.context_max = 192;
            neap_engine *e = create(m, &o);
            for (int k = 0; k < 2; k++) submit(e, &q[k]);
            run_all(e);
            for (int k = 0; k < 2; k++) {
                compare(&q[k], base_name(paths[i]), "gives way");
                assert_int_equal(q[k].heard.n_prompt_told, q[k].request.n_tokens);
            }
            assert_true(stats_of(e).preemptions > 0);
            for (int k = 0; k < 2; k++) neap_seq_free(q[k].seq);
            check_all_is_back(e);
            neap_engine_destroy(e);
        }
        neap_model_close(m);
    }
}

static void look_away(void *user, const neap_tap *tap) {
    (void)user;
    (void)tap;
}

/* Alone, with copies of pages that the tree holds as well: together they are more than there are. */
static void test_copies_of_its_own(void **state) {
    (void)state;
    static question q[2];
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(320, 64);
        o.enable_taps = 1;
        neap_engine *cold = create(m, &o);
        random_tokens(q[0].tokens, 192, m->net.vocab, 40);
        memcpy(q[1].tokens, q[0].tokens, sizeof q[0].tokens);
        ask(&q[0], 192, 2, 1);
        ask(&q[1], 192, 120, 2);
        q[1].request.all_logits = 1; /* computes all of the prompt, whatever is there */
        q[1].request.tap = look_away;
        for (int k = 0; k < 2; k++) solo(cold, &q[k]);
        neap_engine_destroy(cold);
        o.optimistic = 1;
        o.prefix_cache = 1;
        neap_engine *e = create(m, &o); /* 5 pages */
        for (int k = 0; k < 2; k++) {
            submit(e, &q[k]);
            run_all(e);
            compare(&q[k], base_name(paths[i]), "copies of its own");
        }
        for (int k = 0; k < 2; k++) neap_seq_free(q[k].seq);
        check_all_is_back(e);
        neap_engine_destroy(e);
        neap_model_close(m);
    }
}

/* Pages that are written to disk are held. Who submits right after the end, without a step between, is not refused. */
static void test_submit_while_writing(void **state) {
    (void)state;
    static question q[2];
    for (int i = 0; i < n_paths; i++) {
        char dir[64] = "/tmp/neap-prefix-XXXXXX", command[128];
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(320, 64);
        neap_engine *cold = create(m, &o);
        if (mkdtemp(dir) == NULL) abort();
        for (int k = 0; k < 2; k++) {
            random_tokens(q[k].tokens, 250, m->net.vocab, 50 + (uint32_t)k);
            ask(&q[k], 250, 70, (uint32_t)k);
            solo(cold, &q[k]);
        }
        neap_engine_destroy(cold);
        o.prefix_cache = 1;
        o.prefix_dir = dir;
        neap_engine *e = create(m, &o);
        for (int k = 0; k < 2; k++) {
            submit(e, &q[k]);
            while (!q[k].heard.is_done) {
                if (step(e) != NEAP_OK) fail_msg("%s: it never ends", base_name(paths[i]));
                drain(e);
            }
            compare(&q[k], base_name(paths[i]), "after one that is written");
        }
        for (int k = 0; k < 2; k++) neap_seq_free(q[k].seq);
        neap_engine_destroy(e);
        neap_model_close(m);
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
}

/* ---- the calls that may come from other threads ---- */

static _Atomic(neap_seq *) shared_seq;
static atomic_bool is_at_end;

static void *pause_and_resume(void *arg) {
    (void)arg;
    while (!atomic_load(&is_at_end)) {
        for (int k = 0; k < 2; k++) (void)neap_pause(atomic_load(&shared_seq), k == 0);
    }
    (void)neap_pause(atomic_load(&shared_seq), 0);
    return NULL;
}

static void test_pause_from_outside(void **state) {
    (void)state;
    static question q;
    pthread_t thread;
    neap_model *m = open_model(paths[0], NULL);
    neap_engine_options o = options_of(CTX, 16);
    neap_engine *e = create(m, &o);
    random_tokens(q.tokens, 50, m->net.vocab, 3);
    ask(&q, 50, 80, 2);
    solo(e, &q);
    submit(e, &q);
    atomic_store(&shared_seq, q.seq);
    atomic_store(&is_at_end, false);
    assert_int_equal(pthread_create(&thread, NULL, pause_and_resume, NULL), 0);
    for (int k = 0; k < 1000000 && !q.heard.is_done; k++) {
        const neap_status status = step(e);
        assert_true(status == NEAP_OK || status == NEAP_AGAIN);
        drain(e);
    }
    atomic_store(&is_at_end, true);
    pthread_join(thread, NULL);
    run_all(e);
    compare(&q, base_name(paths[0]), "paused from outside");
    neap_seq_free(q.seq);
    check_all_is_back(e);
    neap_engine_destroy(e);
    neap_model_close(m);
}

static int setup(void **state) {
    (void)state;
    is_long = getenv("NEAP_LONG") != NULL;
    n_paths = list_models(paths);
    return n_paths == 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),   cmocka_unit_test(test_giving_way),
        cmocka_unit_test(test_copies_of_its_own),  cmocka_unit_test(test_submit_while_writing),
        cmocka_unit_test(test_pause_from_outside),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
