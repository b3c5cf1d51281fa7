/* Memory that is refused, and memory that is not asked for.
 *
 *   refused  every single allocation of opening a model, making an engine, submitting and answering fails once (G1): a
 *            clean error, nothing lost (the address sanitizer watches), and whatever stays works on with the same bits.
 *            Likewise threads that cannot be started.
 *   never    1,000 decode steps, prompts in between: not one call of neap's allocator nor of malloc, and no plan is
 *            laid out again. Nothing is asked for, so nothing can be refused in a step. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "trace.h"

enum { PROMPT = 20, ANSWER = 6, CTX = 160 };

/* ---- malloc and threads, counted ---- */

static _Atomic uint64_t n_mallocs;
static _Atomic int64_t threads_left = INT64_MAX; /* that may still be started */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define WATCHES 0
#endif
#endif
#ifndef WATCHES
#if defined(__GLIBC__)
#define WATCHES 1
#else
#define WATCHES 0
#endif
#endif

#if WATCHES
#define SEEN __attribute__((visibility("default")))
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
SEEN void *malloc(size_t n) {
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_malloc(n);
}
SEEN void *calloc(size_t n, size_t size) {
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_calloc(n, size);
}
SEEN void *realloc(void *p, size_t n) {
    atomic_fetch_add(&n_mallocs, 1);
    return __libc_realloc(p, n);
}
typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
SEEN int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg) {
    if (atomic_fetch_sub(&threads_left, 1) <= 0) return EAGAIN;
    create_fn *real;
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &found, sizeof real);
    return real(t, a, run, arg);
}
#endif

/* ---- a program's life ---- */

static char paths[TRACE_MODELS_MAX][512];
static int n_paths;

typedef struct answer {
    int32_t n;
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
} answer;

static void hear(neap_engine *e) {
    neap_event event = {.struct_size = sizeof event};
    while (neap_poll(e, &event) == NEAP_OK) {
        answer *a = event.user;
        if (event.kind != NEAP_EVENT_TOKEN || a == NULL) continue;
        DEMAND(a->n < ANSWER);
        a->tokens[a->n] = event.token;
        a->logprobs[a->n++] = event.logprob;
    }
}

static neap_status ask(neap_engine *e, int32_t vocab, answer *a, neap_seq **seq) {
    int32_t tokens[PROMPT];
    neap_request r;
    neap_request_init(&r);
    random_tokens(tokens, PROMPT, vocab, 77);
    memset(a, 0, sizeof *a);
    r.tokens = tokens;
    r.n_tokens = PROMPT;
    r.max_tokens = ANSWER;
    r.sampling.n_logprobs = 0;
    r.user = a;
    return neap_submit(e, &r, seq);
}

static void answer_all(neap_engine *e) {
    neap_status status;
    while ((status = neap_step(e)) == NEAP_OK) hear(e);
    assert_int_equal(status, NEAP_AGAIN);
    hear(e);
}

static neap_engine_options options_of(int32_t n_threads) {
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.n_threads = n_threads;
    o.oversubscribe = 1;
    o.seqs_max = 2;
    o.context_max = CTX;
    o.batch_tokens_max = 16;
    return o;
}

static void silent(void *user, neap_log_level level, const char *text) { (void)user, (void)level, (void)text; }

/* Open, make, ask, answer, close. The status of what failed first; after a refused submit the engine goes on. */
static neap_status live(const char *path, const neap_engine_options *o, answer *a) {
    neap_model *m = NULL;
    neap_engine *e = NULL;
    neap_seq *seq = NULL;
    neap_model_options mo;
    neap_model_options_init(&mo);
    mo.n_threads = 1;
    mo.log = silent;
    neap_status status = neap_model_open(&m, path, &mo);
    if (status == NEAP_OK) status = neap_engine_create(&e, m, o);
    if (status == NEAP_OK) {
        neap_model_info info = {.struct_size = sizeof info};
        assert_int_equal(neap_model_describe(m, &info), NEAP_OK);
        status = ask(e, info.vocab, a, &seq);
        if (status != NEAP_OK) {
            assert_null(seq);
            assert_int_equal(neap_step(e), NEAP_AGAIN);             /* nothing is left of the request */
            assert_int_equal(ask(e, info.vocab, a, &seq), NEAP_OK); /* and the next one finds everything free */
        }
        answer_all(e);
        neap_seq_free(seq);
    } else {
        assert_true(e == NULL);
    }
    neap_engine_destroy(e);
    neap_model_close(m);
    return status;
}

static void test_every_allocation(void **state) {
    (void)state;
    uint64_t n_points = 0;
    for (int p = 0; p < n_paths; p++) {
        answer wanted, seen;
        neap_tuning t;
        neap_tuning_init(&t);
        t.streams = p % 2 ? NEAP_USE_INDEX | NEAP_USE_SHARED | NEAP_USE_MIXED : 0;
        neap_engine_options o = options_of(2);
        o.plan = p % 3 == 2 ? NEAP_PLAN_EAGER : NEAP_PLAN_REPLAY;
        o.enable_trace = o.enable_hash = p % 2;
        o.tuning = &t;
        const uint64_t before = neap_alloc_calls();
        assert_int_equal(live(paths[p], &o, &wanted), NEAP_OK);
        const uint64_t n = neap_alloc_calls() - before;
        assert_int_equal(wanted.n, ANSWER);
        assert_true(n > 20);
        for (uint64_t k = 1; k <= n; k++) {
            memset(&seen, 0, sizeof seen);
            neap_alloc_fail_at(k);
            const neap_status status = live(paths[p], &o, &seen);
            neap_alloc_fail_at(0);
            if (status != NEAP_OK && status != NEAP_NO_MEMORY)
                fail_msg("%s: call %llu: %s, %s", base_name(paths[p]), (unsigned long long)k, neap_status_name(status),
                         neap_last_error());
            if (status == NEAP_NO_MEMORY) assert_true(neap_last_error()[0] != 0 && !strchr(neap_last_error(), '\n'));
            if (seen.n > 0) assert_memory_equal(&seen, &wanted, sizeof seen);
            n_points++;
        }
        assert_int_equal(live(paths[p], &o, &seen), NEAP_OK);
        assert_memory_equal(&seen, &wanted, sizeof seen);
    }
    assert_true(n_points > 500);
    print_message("%llu allocations failed\n", (unsigned long long)n_points);
}

/* The engine alone: the model that it borrows is not touched by its failures. */
static void test_engine_only(void **state) {
    (void)state;
    for (int p = 0; p < n_paths; p++) {
        neap_model *m = open_model(paths[p], NULL);
        answer wanted, seen;
        neap_engine *e = NULL;
        neap_seq *seq = NULL;
        const neap_engine_options o = options_of(3);
        assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
        assert_int_equal(ask(e, m->net.vocab, &wanted, &seq), NEAP_OK);
        answer_all(e);
        neap_seq_free(seq);
        neap_engine_destroy(e);
        for (uint64_t k = 1, is_over = 0; !is_over; k++) {
            e = NULL;
            neap_alloc_fail_at(k);
            neap_status status = neap_engine_create(&e, m, &o);
            neap_alloc_fail_at(0);
            is_over = status == NEAP_OK;
            assert_true(is_over ? e != NULL : e == NULL && status == NEAP_NO_MEMORY);
            if (!is_over && k % 8 != 1) continue;
            if (e == NULL) assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
            seq = NULL;
            for (uint64_t j = 1; seq == NULL; j++) { /* submit after submit, until nothing fails any more */
                neap_alloc_fail_at(j);
                status = ask(e, m->net.vocab, &seen, &seq);
                neap_alloc_fail_at(0);
                assert_int_equal(status, seq ? NEAP_OK : NEAP_NO_MEMORY);
            }
            answer_all(e);
            neap_seq_free(seq);
            assert_memory_equal(&seen, &wanted, sizeof seen);
            neap_engine_destroy(e);
        }
        neap_model_close(m);
    }
}

static void test_tokenizer(void **state) {
    (void)state;
    neap_tokenizer *t = NULL;
    const char *dir = NEAP_TEST_DATA "/golden/tokenizer";
    const uint64_t before = neap_alloc_calls();
    if (neap_tokenizer_open(&t, dir) != NEAP_OK) fail_msg("%s", neap_last_error());
    const uint64_t n = neap_alloc_calls() - before;
    int32_t wanted[64], seen[64];
    size_t n_wanted, n_seen;
    static const char text[] = "Nothing is lost when memory is short: \xe7\xb4\xa0 3.14 <x>";
    assert_int_equal(neap_tokenize(t, text, strlen(text), 0, wanted, 64, &n_wanted), NEAP_OK);
    neap_tokenizer_close(t);
    int n_failed = 0;
    const uint64_t stride = n > 300 ? n / 300 : 1;
    for (uint64_t k = 1; k <= n; k += k < 40 ? 1 : stride) {
        neap_alloc_fail_at(k);
        const neap_status status = neap_tokenizer_open(&t, dir);
        neap_alloc_fail_at(0);
        n_failed += status == NEAP_NO_MEMORY;
        if (status == NEAP_NO_MEMORY) continue;
        assert_int_equal(status, NEAP_OK); /* only speed was lost: the pattern is not compiled to machine code */
        assert_int_equal(neap_tokenize(t, text, strlen(text), 0, seen, 64, &n_seen), NEAP_OK);
        assert_int_equal(n_seen, n_wanted);
        assert_memory_equal(seen, wanted, n_seen * sizeof *seen);
        neap_tokenizer_close(t);
        t = NULL;
    }
    assert_true(n_failed > 10);
    assert_int_equal(neap_tokenizer_open(&t, dir), NEAP_OK);
    for (uint64_t k = 1; k < 20; k++) {
        neap_alloc_fail_at(k);
        const neap_status status = neap_tokenize(t, text, strlen(text), 0, seen, 64, &n_seen);
        neap_alloc_fail_at(0);
        assert_true(status == NEAP_NO_MEMORY || status == NEAP_OK);
    }
    assert_int_equal(neap_tokenize(t, text, strlen(text), 0, seen, 64, &n_seen), NEAP_OK);
    assert_int_equal(n_seen, n_wanted);
    assert_memory_equal(seen, wanted, n_seen * sizeof *seen);
    neap_tokenizer_close(t);
}

/* The k-th thread of a team cannot be started: an error, those that run are stopped, nothing is lost. */
static void test_threads_refused(void **state) {
    (void)state;
    if (!WATCHES) skip();
    neap_model *m = open_model(paths[0], NULL);
    for (int k = 0; k < 4; k++) {
        neap_engine *e = NULL;
        const neap_engine_options o = options_of(4);
        atomic_store(&threads_left, k);
        const neap_status status = neap_engine_create(&e, m, &o);
        atomic_store(&threads_left, INT64_MAX);
        if (k < 3) {
            assert_int_equal(status, NEAP_LIMIT);
            assert_null(e);
        } else {
            assert_int_equal(status, NEAP_OK);
        }
        neap_engine_destroy(e);
    }
    neap_model_close(m);
}

static uint64_t emissions_of(const neap_engine *e) {
    neap_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(neap_engine_statistics(e, &stats), NEAP_OK);
    return stats.plan_emissions;
}

/* Nothing is asked for in a step, whatever the step. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    for (int p = 0; p < n_paths; p++)
        for (int mode = 0; mode < 3; mode++) { /* replay; replay with records; eager: no memory either */
            neap_model *m = open_model(paths[p], NULL);
            neap_engine *e = NULL;
            neap_engine_options o = options_of(2);
            o.plan = mode == 2 ? NEAP_PLAN_EAGER : NEAP_PLAN_REPLAY;
            o.enable_trace = o.enable_hash = mode == 1;
            o.context_max = 600;
            o.cache_tokens_max = 1200;
            assert_int_equal(neap_engine_create(&e, m, &o), NEAP_OK);
            const uint64_t emissions = emissions_of(e);
            int64_t n_decode = 0;
            for (int round = 0; n_decode < (mode == 0 ? 1000 : 100); round++) {
                neap_seq *seqs[2];
                for (int i = 0; i < 2; i++) {
                    static int32_t tokens[300];
                    neap_request r;
                    neap_request_init(&r);
                    random_tokens(tokens, 300, m->net.vocab, (uint32_t)(round + i));
                    r.tokens = tokens;
                    r.n_tokens = i ? 40 : 7;
                    r.max_tokens = mode == 0 ? 250 + 250 * i : 60;
                    r.sampling.temperature = i ? 0.8f : 0;
                    r.sampling.n_logprobs = 5;
                    assert_int_equal(neap_submit(e, &r, &seqs[i]), NEAP_OK);
                }
                for (;;) {
                    const uint64_t calls = neap_alloc_calls(), mallocs = atomic_load(&n_mallocs);
                    const neap_status status = neap_step(e);
                    assert_int_equal(neap_alloc_calls(), calls);
                    assert_int_equal(atomic_load(&n_mallocs), mallocs);
                    neap_event event = {.struct_size = sizeof event};
                    while (neap_poll(e, &event) == NEAP_OK) n_decode += event.kind == NEAP_EVENT_TOKEN;
                    assert_int_equal(atomic_load(&n_mallocs), mallocs);
                    if (status == NEAP_AGAIN) break;
                    assert_int_equal(status, NEAP_OK);
                }
                for (int i = 0; i < 2; i++) neap_seq_free(seqs[i]);
            }
            if (mode < 2) assert_int_equal(emissions_of(e), emissions);
            neap_engine_destroy(e);
            neap_model_close(m);
        }
    if (WATCHES) assert_true(atomic_load(&n_mallocs) > 100); /* the counter counts */
}

static int setup(void **state) {
    (void)state;
    n_paths = list_models(paths);
    n_paths = quantised_models(paths, n_paths);
    return n_paths >= 2 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_engine_only),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_threads_refused),
        cmocka_unit_test(test_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, setup, quantised_remove);
}
