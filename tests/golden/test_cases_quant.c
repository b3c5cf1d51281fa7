/* Failures of other engines around quantised caches and weights (tests/CASES.md): F4, an FP8 cache that is fine in one
 * turn and wrong after several; F8, MXFP4 products that are slower than those of the plain weights. */
#include <math.h>
#include <time.h>

#include "format/json.h"
#include "kernels/families.h"
#include "trace.h"

/* ---- F4: 2,048 tokens in four turns, taught, over rounded caches ---- */

enum { TOKENS = 2048, TURNS = 4, CHUNK = 96, SPOKEN = 40 }; /* SPOKEN: the last tokens of a turn come one by one */

static int32_t *read_texts(const neap_model *m) {
    static const char *const names[] = {"harvest", "market", "winter", "market", "winter", "harvest"};
    int32_t *tokens = need((TOKENS + 1) * sizeof *tokens);
    size_t n = 0;
    for (size_t i = 0; n < TOKENS; i++) {
        char path[512], *text;
        size_t bytes, some;
        snprintf(path, sizeof path, "%s/../../models/valley/documents/%s.txt", NEAP_TEST_DATA, names[i % 6]);
        if (neap_file_read(&text, &bytes, path, 1 << 20) != NEAP_OK) fail_msg("%s", neap_last_error());
        int32_t part[4096];
        assert_int_equal(neap_tokenize(neap_model_tokenizer(m), text, bytes, 0, part, 4096, &some), NEAP_OK);
        for (size_t k = 0; k < some && n < TOKENS; k++) tokens[n++] = part[k];
        neap_mem_free(text);
    }
    return tokens;
}

/* Logits of all tokens: every turn continues the cache that the turns before have left. */
static float *teach(const neap_model *m, const int32_t *tokens, neap_row_kind latent, neap_row_kind index) {
    const neap_forward_options o = {.n_threads = 2,
                                    .oversubscribe = true,
                                    .seqs_max = 1,
                                    .context_max = TOKENS,
                                    .batch_tokens_max = CHUNK,
                                    .cache_tokens_max = TOKENS,
                                    .enable_taps = true,
                                    .latent_kind = latent,
                                    .index_kind = index};
    neap_forward *f = NULL;
    if (neap_forward_create(&f, m, &o) != NEAP_OK) fail_msg("%s", neap_last_error());
    int32_t slot;
    const size_t vocab = (size_t)m->net.vocab;
    float *logits = need(TOKENS * vocab * sizeof *logits);
    assert_int_equal(neap_forward_open(f, TOKENS, &slot), NEAP_OK);
    for (int32_t at = 0; at < TOKENS;) {
        int32_t left = TOKENS / TURNS - at % (TOKENS / TURNS);
        int32_t n = left <= SPOKEN ? 1 : left - SPOKEN < CHUNK ? left - SPOKEN : CHUNK;
        const neap_segment g = {
            .slot = slot, .n_rows = n, .position = at, .tokens = tokens + at, .wants_all_logits = true};
        assert_int_equal(neap_forward_run(f, &g, 1), NEAP_OK);
        for (int32_t r = 0; r < n; r++)
            memcpy(logits + (size_t)(at + r) * vocab, neap_forward_logits(f, r), vocab * sizeof *logits);
        at += n;
    }
    neap_forward_destroy(f);
    return logits;
}

static double log_sum(const float *x, int64_t n) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* KL(want || got) of one row, in nats. */
static double divergence(const float *want, const float *got, int64_t n) {
    double a = log_sum(want, n), b = log_sum(got, n), sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double p = (double)want[i] - a, q = (double)got[i] - b;
        sum += exp(p) * (p - q);
    }
    return sum;
}

/* mean and max of KL of each turn */
static void measure(const float *want, const float *got, int64_t vocab, double mean[TURNS], double *most) {
    *most = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        mean[turn] = 0;
        for (int64_t r = turn * (TOKENS / TURNS); r < (turn + 1) * (TOKENS / TURNS); r++) {
            double kl = divergence(want + r * vocab, got + r * vocab, vocab);
            mean[turn] += kl / (TOKENS / TURNS);
            *most = fmax(*most, kl);
        }
    }
}

static void four_turns_over_rounded_caches(void **state) {
    (void)state;
    static const struct {
        const char *name;
        neap_row_kind latent, index;
        double mean_max, most_max;
    } kinds[] = {{"fp8, bf16", NEAP_ROWS_FP8, NEAP_ROWS_BF16, 0.02, 0.5},
                 {"fp8, mxfp8", NEAP_ROWS_FP8, NEAP_ROWS_MXFP8, 0.02, 0.5}};
    char path[512];
    snprintf(path, sizeof path, "%s/../../models/valley", NEAP_TEST_DATA);
    neap_model *m = open_model(path, NULL);
    int32_t *tokens = read_texts(m);
    float *want = teach(m, tokens, NEAP_ROWS_BF16, NEAP_ROWS_BF16), *before = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double mean[TURNS], most;
        float *got = teach(m, tokens, kinds[i].latent, kinds[i].index);
        measure(want, got, m->net.vocab, mean, &most);
        print_message("%s: mean KL of the turns %.5f %.5f %.5f %.5f, largest %.4f\n", kinds[i].name, mean[0], mean[1],
                      mean[2], mean[3], most);
        for (int turn = 0; turn < TURNS; turn++) assert_true(mean[turn] < kinds[i].mean_max);
        assert_true(most < kinds[i].most_max);
        assert_true(mean[0] + mean[1] > 0); /* the caches really differ */
        if (before) assert_memory_not_equal(before, got, TOKENS * (size_t)m->net.vocab * sizeof *got);
        free(before);
        before = got;
    }
    free(before);
    free(want);
    free(tokens);
    neap_model_close(m);
}

/* ---- F8: one token times many MXFP4 matrices, in the engine's usual form (16-bit integers), against BF16 and against
 * reading memory ---- */

enum { N = 2048, K = 3584, COPIES = 16, ROUNDS = 12 }; /* 16 MXFP4 matrices are 62 MB: more than a core's cache */

typedef struct products {
    const neap_kernels *k;
    neap_matrix w[COPIES];
    float *x, *y;
} products;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* what others do on the machine does not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void make_products(products *p, const neap_kernels *k, neap_matrix_kind kind) {
    *p = (products){.k = k, .x = need(K * sizeof(float)), .y = need(N * sizeof(float))};
    for (int i = 0; i < K; i++) p->x[i] = (float)(i % 7 - 3);
    for (int i = 0; i < COPIES; i++) {
        void *panels = NULL;
        neap_matrix_shape(&p->w[i], kind, N, K);
        size_t bytes = neap_matrix_panel_bytes(&p->w[i]);
        assert_int_equal(posix_memalign(&panels, 1 << 21, bytes), 0);
        memset(panels, kind == NEAP_MATRIX_MXFP4 ? 0x77 : 0x3b, bytes); /* codes 6, scales 2^-8; or 0.0029 */
        p->w[i].panels = panels;
    }
}

static void free_products(products *p) {
    for (int i = 0; i < COPIES; i++) free((void *)(uintptr_t)p->w[i].panels);
    free(p->x);
    free(p->y);
}

static double time_product(const products *p, int i) {
    static _Alignas(64) char scratch[NEAP_GEMM_SCRATCH];
    neap_gemm_args a = {.y = p->y,
                        .ldy = N,
                        .x = p->x,
                        .ldx = K,
                        .m = 1,
                        .w = &p->w[i],
                        .panel_begin = 0,
                        .panel_end = neap_matrix_panels(&p->w[i]),
                        .x_form = NEAP_X_INT16,
                        .scratch = scratch};
    double begin = seconds();
    neap_gemm(p->k, &a);
    return seconds() - begin;
}

static double time_read(const products *p, int i) {
    static volatile uint64_t sink;
    const uint64_t *words = p->w[i].panels;
    size_t n = neap_matrix_panel_bytes(&p->w[i]) / 8;
    uint64_t s[8] = {0};
    double begin = seconds();
    for (size_t k = 0; k + 8 <= n; k += 8)
        for (int l = 0; l < 8; l++) s[l] ^= words[k + (size_t)l];
    sink = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
    (void)sink;
    return seconds() - begin;
}

static void packed_products_are_faster_than_plain_ones(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t flags, wider; /* wider: a machine that has this has faster vectors */
    } sets[] = {{"avx2", NEAP_CPU_AVX2, NEAP_CPU_AVX512 | NEAP_CPU_AVXVNNI},
                {"avxvnni", NEAP_CPU_AVX2 | NEAP_CPU_AVXVNNI, NEAP_CPU_AVX512},
                {"avx512", NEAP_CPU_AVX2 | NEAP_CPU_AVX512, NEAP_CPU_AVX512VNNI},
                {"avx512vnni", NEAP_CPU_AVX2 | NEAP_CPU_AVX512 | NEAP_CPU_AVX512VNNI, 0}};
    if (is_slow_build()) skip(); /* there the sets below are all the scalar definition */
    for (size_t v = 0; v < sizeof sets / sizeof *sets; v++) {
        if ((sets[v].flags & neap_cpu_flags()) != sets[v].flags) continue;
        neap_kernels k;
        neap_kernels_init(&k, sets[v].flags);
        products packed, plain;
        make_products(&packed, &k, NEAP_MATRIX_MXFP4);
        make_products(&plain, &k, NEAP_MATRIX_BF16);
        double least[3] = {INFINITY, INFINITY, INFINITY};
        for (int r = 0; r < ROUNDS * COPIES; r++) { /* alternated, so that all see the same machine */
            least[0] = fmin(least[0], time_product(&packed, r % COPIES));
            least[1] = fmin(least[1], time_product(&plain, r % COPIES));
            least[2] = fmin(least[2], time_read(&packed, r % COPIES));
        }
        double of_memory = least[2] / least[0];
        print_message("%s: MXFP4 %.2f x faster than BF16, %.0f %% of the speed of reading it\n", sets[v].name,
                      least[1] / least[0], 100 * of_memory);
        assert_true(least[0] < least[1]);          /* on any machine, however busy */
        const char *is_long = getenv("NEAP_LONG"); /* the goal, on a quiet machine and with its widest vectors */
        bool is_widest = (neap_cpu_flags() & sets[v].wider) == 0;
        if (is_long && *is_long && is_widest) assert_true(of_memory >= 0.7);
        free_products(&packed);
        free_products(&plain);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_turns_over_rounded_caches),
        cmocka_unit_test(packed_products_are_faster_than_plain_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
