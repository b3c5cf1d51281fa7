/* The prefix cache over real layers: what is found gives the same bits as what is computed, wherever a prompt begins,
 * leaves off, ends, is cut, or is evicted under; and it is found where people expect it.
 *
 * Stale memory is full of NaN or of plausible numbers all along. NEAP_LONG=1 runs more of everything. */
#include "prefix_fixture.h"

#include <math.h>

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;
static bool is_long;

static neap_engine_options prefix_options(int32_t context_max, int32_t batch) {
    neap_engine_options o = options_of(context_max, batch);
    o.prefix_cache = 1;
    o.checkpoints_max = 48;
    o.cache_tokens_max = 4 * (uint64_t)context_max;
    return o;
}

/* ---- one at a time ---- */

/* A checkpoint after k tokens, then a prompt that goes on differently from there: for every k. */
static void every_length(const neap_model *m, const neap_engine_options *o, int32_t n_max, int32_t step) {
    static question first, second;
    const int32_t tail = 6;
    neap_engine *e = create(m, o);
    neap_engine_options plain = *o;
    plain.prefix_cache = 0;
    plain.batch_tokens_max = 64;
    neap_engine *cold = create(m, &plain);
    for (int32_t k = 1; k <= n_max; k += step) {
        char what[96];
        random_tokens(first.tokens, k, m->net.vocab, 5);
        memcpy(second.tokens, first.tokens, (size_t)k * sizeof(int32_t));
        random_tokens(first.tokens + k, tail, m->net.vocab, 100 + (uint32_t)k);
        random_tokens(second.tokens + k, tail, m->net.vocab, 200000 + (uint32_t)k);
        second.tokens[k] = (first.tokens[k] + 1) % m->net.vocab;
        ask(&first, k + tail, 1, 0);
        first.marks[0] = k;
        first.request.marks = first.marks;
        first.request.n_marks = 1;
        ask(&second, k + tail, 3, (uint32_t)k);
        run_one(e, &first);
        solo(cold, &second);
        run_one(e, &second);
        snprintf(what, sizeof what, "begins after %d, batch %d, caches %d and %d", k, o->batch_tokens_max,
                 o->cache_type, o->index_type);
        if (second.heard.n_cached != k) fail_msg("%s, %s: %lld cached", m->dir, what, (long long)second.heard.n_cached);
        compare(&second, base_name(m->dir), what);
    }
    check_all_is_back(e);
    neap_engine_destroy(e);
    neap_engine_destroy(cold);
}

static void test_every_length(void **state) {
    (void)state;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        const neap_engine_options o = prefix_options(256, i % 2 ? 33 : 7);
        neap_memory_poison(i % 2 ? 0x3E : 0xFF);
        every_length(m, &o, is_long ? 200 : 140, is_long ? 1 : 1 + i % 2);
        neap_model_close(m);
    }
}

/* All formats of caches, and chunks of every size. */
static void test_formats(void **state) {
    (void)state;
    static const int32_t batches[] = {1, 2, 5, 16, 64, 100, 512};
    int k = 0;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        for (int32_t type = NEAP_CACHE_F32; type <= NEAP_CACHE_FP8; type++) {
            neap_engine_options o = prefix_options(256, batches[k++ % 7]);
            o.cache_type = type;
            o.index_type = type == NEAP_CACHE_FP8 ? NEAP_INDEX_MXFP8 : type;
            every_length(m, &o, 150, 29);
        }
        neap_model_close(m);
    }
}

/* Prompts that branch off one another anywhere; no marks, a trail. */
static void test_divergence(void **state) {
    (void)state;
    static question q[12];
    for (int i = 0; i < n_paths; i++) {
        uint32_t seed = 3 + (uint32_t)i;
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = prefix_options(512, 64);
        o.checkpoint_spacing = 32;
        neap_engine *e = create(m, &o);
        o.prefix_cache = 0;
        neap_engine *cold = create(m, &o);
        uint64_t n_cached = 0;
        for (int k = 0; k < 12; k++) {
            const int32_t n = 40 + (int32_t)random_below(&seed, 260);
            const int parent = k ? (int)random_below(&seed, (uint32_t)k) : 0;
            const int32_t from = k ? (int32_t)random_below(&seed, (uint32_t)q[parent].request.n_tokens) : 0;
            const int32_t cut = from < n ? from : n;
            memcpy(q[k].tokens, q[parent].tokens, (size_t)cut * sizeof(int32_t));
            random_tokens(q[k].tokens + cut, n - cut, m->net.vocab, seed);
            ask(&q[k], n, 1 + (int32_t)random_below(&seed, 8), seed);
            solo(cold, &q[k]);
            run_one(e, &q[k]);
            compare(&q[k], base_name(paths[i]), "branches");
            n_cached += (uint64_t)q[k].heard.n_cached;
            /* What is computed again: what lies between two places of the trail, and the part that differs. */
            if (q[k].heard.n_cached + 2 * 32 < cut) {
                fail_msg("%s: %lld of %d common tokens were cached", paths[i], (long long)q[k].heard.n_cached, cut);
            }
        }
        const neap_engine_stats stats = stats_of(e);
        assert_int_equal(stats.prefix_requests, 12);
        assert_int_equal(stats.prefix_hits, n_cached);
        assert_true(n_cached > 0 && stats.prefix_found > 0 && stats.prefix_queries > stats.prefix_hits);
        assert_true(stats.prefix_tokens > 0);
        check_all_is_back(e);
        neap_engine_destroy(e);
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* The next turn finds all but what is new: also of a short prompt, also after a cancel, also when the client sends
 * something else than what was said. */
static void test_turns(void **state) {
    (void)state;
    static question q, next;
    static const int32_t lengths[] = {20, 64, 65, 127, 300};
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = prefix_options(512, 64);
        neap_engine *e = create(m, &o);
        o.prefix_cache = 0;
        neap_engine *cold = create(m, &o);
        for (int k = 0; k < 5; k++) {
            const int32_t n = lengths[k];
            random_tokens(q.tokens, n, m->net.vocab, 77 + (uint32_t)k);
            ask(&q, n, 30, (uint32_t)k);
            q.marks[0] = n / 2;
            q.marks[1] = n - 3;
            q.request.marks = q.marks;
            q.request.n_marks = 2;
            solo(cold, &q);
            submit(e, &q);
            while (!q.heard.is_done) {
                assert_int_equal(step(e), NEAP_OK);
                drain(e);
                if (k % 2 && q.heard.n_tokens == 7) neap_cancel(q.seq);
            }
            compare(&q, base_name(paths[i]), "a turn");
            assert_int_equal(q.heard.n_tokens, k % 2 ? 7 : 30);
            neap_seq_free(q.seq);
            /* history, answer, ten more */
            memcpy(next.tokens, q.tokens, (size_t)n * sizeof(int32_t));
            memcpy(next.tokens + n, q.heard.tokens, (size_t)q.heard.n_tokens * sizeof(int32_t));
            random_tokens(next.tokens + n + q.heard.n_tokens, 10, m->net.vocab, 9);
            ask(&next, n + q.heard.n_tokens + 10, 12, 4);
            solo(cold, &next);
            run_one(e, &next);
            compare(&next, base_name(paths[i]), "the next turn");
            assert_true(next.heard.n_cached >= n + q.heard.n_tokens - 1);
            /* the answer was dropped: the last message ends three tokens before the prompt did */
            random_tokens(next.tokens + n - 3, 25, m->net.vocab, 10);
            next.tokens[n - 3] = (q.tokens[n - 3] + 1) % m->net.vocab;
            ask(&next, n + 22, 12, 5);
            solo(cold, &next);
            run_one(e, &next);
            compare(&next, base_name(paths[i]), "another answer");
            assert_int_equal(next.heard.n_cached, n - 3);
        }
        check_all_is_back(e);
        neap_engine_destroy(e);
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* The same prompt again and again: found but for its last token. */
static void test_again(void **state) {
    (void)state;
    static question q;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = prefix_options(256, 32);
        neap_engine *e = create(m, &o);
        o.prefix_cache = 0;
        neap_engine *cold = create(m, &o);
        for (int32_t n = 1; n < 140; n += 23) {
            random_tokens(q.tokens, n, m->net.vocab, 900 + (uint32_t)n);
            char space[16];
            ask(&q, n, 9, 1);
            solo(cold, &q);
            snprintf(space, sizeof space, "%d", n); /* small prompts may begin alike by chance */
            q.request.space = space;
            for (int k = 0; k < 3; k++) {
                run_one(e, &q);
                compare(&q, base_name(paths[i]), "again");
                assert_int_equal(q.heard.n_cached, k ? n - 1 : 0);
            }
        }
        neap_engine_destroy(e);
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* Nobody finds what another space has, nor what was not to be kept. */
static void test_spaces(void **state) {
    (void)state;
    static question q;
    neap_model *m = open_model(paths[0], NULL);
    neap_engine_options o = prefix_options(256, 32);
    neap_engine *e = create(m, &o);
    o.prefix_cache = 0;
    neap_engine *cold = create(m, &o);
    static const char *const spaces[] = {NULL, "alice", "bob", "alic", "alicf", "alice\x01"};
    char longest[NEAP_SPACE_BYTES_MAX + 2];
    random_tokens(q.tokens, 100, m->net.vocab, 4);
    ask(&q, 100, 5, 1);
    solo(cold, &q);
    q.request.no_prefix = 1;
    run_one(e, &q);
    compare(&q, "spaces", "keeps nothing");
    q.request.no_prefix = 0;
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 6; k++) {
            q.request.space = spaces[k];
            run_one(e, &q);
            compare(&q, "spaces", "a space");
            if (q.heard.n_cached != (round ? 99 : 0))
                fail_msg("round %d, space %d: %lld cached", round, k, (long long)q.heard.n_cached);
        }
    }
    q.request.space = "";
    run_one(e, &q);
    assert_int_equal(q.heard.n_cached, 99); /* NULL is "" */
    q.request.no_prefix = 1;
    run_one(e, &q);
    assert_int_equal(q.heard.n_cached, 0);
    q.request.no_prefix = 0;
    memset(longest, 'x', sizeof longest);
    longest[NEAP_SPACE_BYTES_MAX + 1] = 0;
    q.request.space = longest;
    assert_int_equal(try_submit(e, &q), NEAP_INVALID_ARGUMENT);
    longest[NEAP_SPACE_BYTES_MAX] = 0;
    run_one(e, &q);
    run_one(e, &q);
    compare(&q, "spaces", "the longest name");
    assert_int_equal(q.heard.n_cached, 99);
    check_all_is_back(e);
    neap_engine_destroy(e);
    neap_engine_destroy(cold);
    neap_model_close(m);
}

/* ---- many at once ---- */

/* Requests over a few common beginnings, eight at a time, in a pool and with checkpoints that are far too few. */
static void test_eviction(void **state) {
    (void)state;
    enum { N = 40, BASES = 5 };
    static question q[N];
    static int32_t bases[BASES][200];
    for (int i = 0; i < n_paths; i++) {
        uint32_t seed = 50 + (uint32_t)i;
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(256, 512);
        neap_engine *cold = create(m, &o);
        for (int k = 0; k < BASES; k++) random_tokens(bases[k], 200, m->net.vocab, 600 + (uint32_t)k);
        for (int k = 0; k < N; k++) {
            const int32_t n = 30 + (int32_t)random_below(&seed, 170);
            const int32_t own = 1 + (int32_t)random_below(&seed, 20);
            memcpy(q[k].tokens, bases[random_below(&seed, BASES)], (size_t)n * sizeof(int32_t));
            random_tokens(q[k].tokens + n - own, own, m->net.vocab, seed);
            ask(&q[k], n, 1 + (int32_t)random_below(&seed, 12), seed);
            solo(cold, &q[k]);
        }
        for (int run = 0; run < (is_long ? 20 : 4); run++) {
            o.prefix_cache = 1;
            o.seqs_max = 8;
            o.queue_max = N;
            o.queue_tokens_max = 1 << 20;
            o.batch_tokens_max = run % 2 ? 512 : 40;
            o.checkpoints_max = 2 + run;
            o.checkpoint_spacing = 48;
            o.optimistic = run & 1;
            o.cache_tokens_max = 320 + 64 * (uint64_t)(run % 4);
            neap_memory_poison(run % 2 ? 0x3E : 0xFF);
            neap_engine *e = create(m, &o);
            int next = 0, n_steps = 0;
            for (bool is_running = true; is_running || next < N;) {
                while (next < N && random_below(&seed, 3)) submit(e, &q[next++]);
                const neap_status status = step(e);
                if (status != NEAP_OK && status != NEAP_AGAIN) fail_msg("%s", neap_last_error());
                is_running = status == NEAP_OK;
                drain(e);
                if (++n_steps % 16 == 0) audit(e);
            }
            for (int k = 0; k < N; k++) {
                compare(&q[k], base_name(paths[i]), "eight at a time");
                neap_seq_free(q[k].seq);
            }
            assert_true(stats_of(e).prefix_evicted > 0);
            check_all_is_back(e);
            neap_engine_destroy(e);
        }
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* Sent together, with a common beginning: one computes it. */
static void together(neap_model *m, int32_t n_common, int32_t n_own, int32_t seqs_max, int32_t queue_max) {
    enum { N = 64 };
    static question q[N];
    neap_engine_options o = options_of(512, 128);
    neap_engine *cold = create(m, &o);
    for (int k = 0; k < N; k++) {
        random_tokens(q[k].tokens, n_common, m->net.vocab, 1);
        random_tokens(q[k].tokens + n_common, n_own, m->net.vocab, 1000 + (uint32_t)k);
        ask(&q[k], n_common + n_own, 3, (uint32_t)k);
        if (k % 8 == 0) solo(cold, &q[k]);
    }
    o.prefix_cache = 1;
    o.seqs_max = seqs_max;
    o.queue_max = queue_max;
    o.queue_tokens_max = 1 << 20;
    o.cache_tokens_max = (uint64_t)seqs_max * 512;
    neap_engine *e = create(m, &o);
    for (int k = 0; k < N; k++) submit(e, &q[k]);
    run_all(e);
    int n_hits = 0;
    for (int k = 0; k < N; k++) {
        if (k % 8 == 0) compare(&q[k], base_name(m->dir), "together");
        n_hits += q[k].heard.n_cached >= n_common;
        neap_seq_free(q[k].seq);
    }
    if (n_hits < 60) fail_msg("%s: %d hits of %d, %d + %d tokens", base_name(m->dir), n_hits, N, n_common, n_own);
    check_all_is_back(e);
    neap_engine_destroy(e);
    neap_engine_destroy(cold);
}

static void test_together(void **state) {
    (void)state;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        together(m, 150, 40, 8, 64);
        if (i == 0) together(m, 160, 60, 64, 0); /* places for all: they wait for the leader, not for a place */
        if (i == 1) together(m, 190, 1, 3, 64);
        neap_model_close(m);
    }
}

/* The leader fails, is cancelled, paused or freed: the others go on. */
static void test_leader_goes(void **state) {
    (void)state;
    enum { N = 6 };
    static question q[N];
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(512, 16);
        neap_engine *cold = create(m, &o);
        for (int k = 0; k < N; k++) {
            random_tokens(q[k].tokens, 300, m->net.vocab, 1);
            random_tokens(q[k].tokens + 200, 100, m->net.vocab, 40 + (uint32_t)k);
            ask(&q[k], 230, 4, (uint32_t)k);
            solo(cold, &q[k]);
        }
        for (int way = 0; way < 4; way++) {
            o.prefix_cache = 1;
            o.seqs_max = 4;
            o.queue_max = N;
            neap_engine *e = create(m, &o);
            for (int k = 0; k < N; k++) submit(e, &q[k]);
            for (int k = 0; k < 3; k++) assert_int_equal(step(e), NEAP_OK);
            drain(e);
            assert_true(q[0].heard.has_begun && !q[1].heard.has_begun);
            if (way == 0) neap_cancel(q[0].seq);
            if (way == 1) neap_pause(q[0].seq, 1);
            if (way == 2) neap_seq_free(q[0].seq);
            if (way == 3) ((neap_seq *)q[0].seq)->feeds_prefix = false;
            run_all(e);
            for (int k = 1; k < N; k++) {
                compare(&q[k], base_name(paths[i]), "without the leader");
                assert_int_equal(q[k].heard.finish, NEAP_FINISH_LENGTH);
                neap_seq_free(q[k].seq);
            }
            if (way == 1) {
                assert_false(q[0].heard.is_done);
                neap_pause(q[0].seq, 0);
                run_all(e);
            }
            if (way != 2) {
                compare(&q[0], base_name(paths[i]), "the leader");
                neap_seq_free(q[0].seq);
            }
            check_all_is_back(e);
            neap_engine_destroy(e);
        }
        neap_engine_destroy(cold);
        neap_model_close(m);
    }
}

/* ---- what must not be kept ---- */

/* NaN in a layer's memory: the request ends with an error, at the next checkpoint even where no logits are asked for,
 * and nobody ever begins at what it computed since. */
static void test_nan_is_not_kept(void **state) {
    (void)state;
    static question q, next;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = prefix_options(256, 16);
        o.checkpoint_spacing = 64;
        random_tokens(q.tokens, 200, m->net.vocab, 6);
        memcpy(next.tokens, q.tokens, sizeof q.tokens);
        random_tokens(next.tokens + 200, 5, m->net.vocab, 7);
        for (int32_t layer = 0; layer < m->net.n_layers; layer++) {
            neap_engine *e = create(m, &o);
            ask(&q, 200, 5, 0);
            ask(&next, 205, 5, 0);
            submit(e, &q);
            while (q.seq->n_computed < 80) assert_int_equal(step(e), NEAP_OK);
            const neap_cache_layer_spec *size = &e->forward->cache_specs[layer];
            const neap_cache_layer *c = &e->forward->caches.layers[layer];
            if (size->state_floats > 0) {
                c->state[q.seq->slot * size->state_floats + 1] = NAN;
            } else {
                memset(neap_caches_latent_page(&e->forward->caches, layer, q.seq->slot, 79), 0xFF,
                       (size_t)c->latent_page_bytes);
            }
            run_all(e);
            assert_int_equal(q.heard.finish, NEAP_FINISH_ERROR);
            assert_int_equal(q.heard.status, NEAP_NUMERIC);
            neap_seq_free(q.seq);
            run_one(e, &next);
            assert_true(next.heard.n_cached <= 64);
            assert_int_equal(next.heard.finish, NEAP_FINISH_LENGTH);
            check_all_is_back(e);
            neap_engine_destroy(e);
        }
        neap_model_close(m);
    }
}

/* What the engine says it will claim is what it claims. */
static void test_memory(void **state) {
    (void)state;
    for (int i = 0; i < n_paths; i++) {
        neap_model *m = open_model(paths[i], NULL);
        uint64_t sums[2];
        for (int prefix = 0; prefix < 2; prefix++) {
            neap_engine_options o = options_of(1024, 64);
            o.seqs_max = 3;
            o.prefix_cache = prefix;
            o.checkpoints_max = 500;
            neap_memory memory = {.struct_size = sizeof memory};
            assert_int_equal(neap_engine_memory(m, &o, &memory), NEAP_OK);
            neap_engine *e = create(m, &o);
            const uint64_t claimed = neap_arena_bytes(e->arena) + neap_arena_bytes(e->forward->arena);
            sums[prefix] = memory.total - memory.weights;
            if (claimed > sums[prefix] + (64 << 10)) /* rounding of small blocks */
                fail_msg("%s: %lld bytes were announced, %lld claimed", paths[i], (long long)sums[prefix],
                         (long long)claimed);
            neap_engine_destroy(e);
        }
        assert_true(sums[1] - sums[0] >= 500 * neap_forward_state_bytes(m));
        neap_model_close(m);
    }
}

/* ---- across restarts ---- */

static void count_warnings(void *user, neap_log_level level, const char *text) {
    (void)text;
    if (level >= NEAP_LOG_WARN) ++*(int *)user;
}

static int64_t turn(const neap_model *m, const neap_engine_options *o, question *q, const char *what,
                    neap_engine_stats *stats) {
    neap_engine *e = create(m, o);
    run_one(e, q);
    compare(q, base_name(m->dir), what);
    *stats = stats_of(e);
    neap_engine_destroy(e);
    return q->heard.n_cached;
}

static void damage(const char *dir) {
    char command[256];
    snprintf(command, sizeof command,
             "cd '%s' && for f in *; do test $(stat -c %%s \"$f\") -gt 2000 && printf 'XXXX' | "
             "dd of=\"$f\" bs=1 seek=1500 conv=notrunc 2>/dev/null; done; true",
             dir);
    assert_int_equal(system(command), 0);
}

/* An engine is closed and another one goes on where it was; damaged files and other formats are computed again. */
static void test_restart(void **state) {
    (void)state;
    static question q, next;
    for (int i = 0; i < n_paths; i++) {
        char dir[64] = "/tmp/neap-prefix-XXXXXX", command[128];
        int n_warnings = 0;
        neap_engine_stats stats;
        neap_model *m = open_model(paths[i], NULL);
        neap_engine_options o = options_of(512, 64);
        neap_engine *cold = create(m, &o);
        if (mkdtemp(dir) == NULL) abort();
        random_tokens(q.tokens, 300, m->net.vocab, 12);
        ask(&q, 300, 20, 1);
        q.request.space = "somebody";
        solo(cold, &q);
        memcpy(next.tokens, q.tokens, 300 * sizeof(int32_t));
        memcpy(next.tokens + 300, q.wanted.tokens, 20 * sizeof(int32_t));
        random_tokens(next.tokens + 320, 30, m->net.vocab, 13);
        ask(&next, 350, 10, 2);
        next.request.space = "somebody";
        solo(cold, &next);
        neap_engine_destroy(cold);
        o.prefix_cache = 1;
        o.prefix_dir = dir;
        o.log = count_warnings;
        o.log_user = &n_warnings;
        assert_int_equal(turn(m, &o, &q, "before the restart", &stats), 0);
        assert_int_equal(turn(m, &o, &next, "after the restart", &stats), 319);
        assert_int_equal(stats.disk_loads > 0, 1);
        assert_true(stats.disk_bytes > 0);
        next.request.space = "another";
        assert_int_equal(turn(m, &o, &next, "another space", &stats), 0);
        next.request.space = "somebody";
        o.cache_type = NEAP_CACHE_F32; /* (its answers may differ) */
        neap_engine *e = create(m, &o);
        run_one(e, &next);
        assert_int_equal(next.heard.n_cached, 0);
        neap_engine_destroy(e);
        o.cache_type = NEAP_CACHE_DEFAULT;
        assert_int_equal(n_warnings, 0);
        damage(dir);
        assert_true(turn(m, &o, &next, "damaged", &stats) < 319);
        assert_true(stats.disk_rejects > 0 && n_warnings > 0);
        /* What cannot be used is said once, and everything goes on. */
        n_warnings = 0;
        o.prefix_dir = "/proc/neap";
        assert_int_equal(turn(m, &o, &next, "no directory", &stats), 0);
        assert_int_equal(n_warnings, 1);
        snprintf(command, sizeof command, "rm -rf '%s'", dir);
        assert_int_equal(system(command), 0);
        neap_model_close(m);
    }
}

static void silent(void *user, neap_log_level level, const char *text) { (void)user, (void)level, (void)text; }

/* Every allocation of making an engine and of a request is refused once: a status, and nothing is lost. */
static void test_refused_memory(void **state) {
    (void)state;
    static question q;
    char dir[64] = "/tmp/neap-prefix-XXXXXX", command[128];
    neap_model *m = open_model(paths[n_paths - 1], NULL);
    neap_engine_options o = prefix_options(256, 32);
    o.log = silent;
    if (mkdtemp(dir) == NULL) abort();
    o.prefix_dir = dir;
    random_tokens(q.tokens, 100, m->net.vocab, 3);
    ask(&q, 100, 2, 0);
    q.request.space = "somebody";
    int n_refused = 0;
    for (uint64_t k = 1, is_over = 0; !is_over; k++) {
        neap_engine *e = NULL;
        const uint64_t before = neap_alloc_calls();
        neap_alloc_fail_at(k);
        neap_status status = neap_engine_create(&e, m, &o);
        if (status == NEAP_OK) status = try_submit(e, &q);
        is_over = neap_alloc_calls() - before < k;
        neap_alloc_fail_at(0);
        if (status != NEAP_OK && status != NEAP_NO_MEMORY) fail_msg("call %d: %s", (int)k, neap_last_error());
        n_refused += status != NEAP_OK;
        neap_engine_destroy(e);
    }
    assert_true(n_refused > 20);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
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
        cmocka_unit_test(test_every_length),    cmocka_unit_test(test_formats),  cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_turns),           cmocka_unit_test(test_again),    cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_eviction),        cmocka_unit_test(test_together), cmocka_unit_test(test_leader_goes),
        cmocka_unit_test(test_nan_is_not_kept), cmocka_unit_test(test_memory),   cmocka_unit_test(test_restart),
        cmocka_unit_test(test_refused_memory),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
