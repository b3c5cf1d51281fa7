/* More public failures of engines like this one, with the very sizes that the reports name: A6 (a batch that
 * shrinks and grows), A9 (memory in long decoding), D1 and D2 (whose positions are selected, and by which
 * rotation), D7 (offsets beyond 32 bits), I3 (a context that nobody has memory for); and a model file
 * that is cut while it is in use. See tests/CASES.md. */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "trace.h"
#include "unit/model_fixture.h"
#include "unit/paged_row.h"

static neap_model *open_golden(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, name);
    return open_model(path, NULL);
}

static neap_forward *open_forward(const neap_model *m, int32_t seqs_max, int32_t context, int32_t rows) {
    neap_forward *f = NULL;
    const neap_forward_options o = {.n_threads = 1,
                                    .oversubscribe = true,
                                    .seqs_max = seqs_max,
                                    .context_max = context,
                                    .batch_tokens_max = rows,
                                    .cache_tokens_max = (int64_t)seqs_max * context,
                                    .enable_taps = true};
    if (neap_forward_create(&f, m, &o) != NEAP_OK) fail_msg("%s", neap_last_error());
    return f;
}

/* ---- A6: 4 sequences, then 3, 2, 1, then 3 again ---- */

enum { A6_SEQS = 6, A6_PROMPT = 5, A6_MAX = 34 };

typedef struct speaker {
    int32_t tokens[A6_MAX];
    int32_t n, done, slot;
    bool is_open;
    float *wanted; /* [n][vocab], alone and in one shot */
} speaker;

static void speak_alone(const neap_model *m, speaker *s) {
    neap_forward *f = open_forward(m, 1, 128, A6_MAX);
    const size_t row = (size_t)m->net.vocab;
    s->wanted = need((size_t)s->n * row * sizeof(float));
    assert_int_equal(neap_forward_open(f, s->n, &s->slot), NEAP_OK);
    const neap_segment g = {.slot = s->slot, .n_rows = s->n, .tokens = s->tokens, .wants_all_logits = true};
    assert_int_equal(neap_forward_run(f, &g, 1), NEAP_OK);
    for (int32_t r = 0; r < s->n; r++)
        memcpy(s->wanted + (size_t)r * row, neap_forward_logits(f, r), row * sizeof(float));
    neap_forward_destroy(f);
}

/* One row of every open sequence (its prompt first), compared; those that are done leave. Returns how many took
 * part. */
static int speak_together(neap_forward *f, speaker *all, int32_t vocab) {
    neap_segment segments[A6_SEQS];
    speaker *who[A6_SEQS];
    int32_t n = 0;
    for (int i = 0; i < A6_SEQS; i++) {
        speaker *s = &all[i];
        if (!s->is_open) continue;
        who[n] = s;
        segments[n++] = (neap_segment){.slot = s->slot,
                                       .n_rows = s->done ? 1 : A6_PROMPT,
                                       .position = s->done,
                                       .tokens = s->tokens + s->done,
                                       .wants_all_logits = true};
    }
    assert_int_equal(neap_forward_run(f, segments, n), NEAP_OK);
    for (int32_t i = 0, row = 0; i < n; i++) {
        speaker *s = who[i];
        for (int32_t r = 0; r < segments[i].n_rows; r++, row++)
            assert_memory_equal(neap_forward_logits(f, row), s->wanted + (int64_t)(s->done + r) * vocab,
                                (size_t)vocab * sizeof(float));
        s->done += segments[i].n_rows;
        if (s->done < s->n) continue;
        neap_forward_close(f, s->slot);
        s->is_open = false;
    }
    return n;
}

static void a_batch_shrinks_and_grows(void **state) {
    (void)state;
    static const char *const names[] = {"kimi-linear-f32-float32", "kimi-k3-mini-mxfp4", "deepseek-v32-tiny-bfloat16"};
    static const int32_t lengths[A6_SEQS] = {18, 34, 10, 26, 22, 30}; /* the third ends first, then the first ... */
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        neap_model *model = open_golden(names[m]);
        speaker all[A6_SEQS] = {0};
        for (int i = 0; i < A6_SEQS; i++) {
            all[i].n = lengths[i];
            random_tokens(all[i].tokens, A6_MAX, model->net.vocab, 40 + (uint32_t)i);
            speak_alone(model, &all[i]);
        }
        neap_forward *f = open_forward(model, 4, 128, 4 * A6_PROMPT);
        char seen[8] = "", last = 0;
        size_t n_seen = 0;
        for (int begin = 0; begin < A6_SEQS;) {
            const int end = begin ? A6_SEQS : 4; /* four at once, two more when one is left */
            for (; begin < end; begin++) {
                assert_int_equal(neap_forward_open(f, all[begin].n, &all[begin].slot), NEAP_OK);
                all[begin].is_open = true;
            }
            for (int n_open = end; n_open > 0;) {
                const char now = (char)('0' + speak_together(f, all, model->net.vocab));
                if (now != last && n_seen + 1 < sizeof seen) seen[n_seen++] = last = now;
                n_open = 0;
                for (int i = 0; i < A6_SEQS; i++) n_open += all[i].is_open;
                if (n_open == 1 && begin < A6_SEQS && all[1].done == all[1].n - 3) break;
            }
        }
        assert_string_equal(seen, "4321321");
        for (int i = 0; i < A6_SEQS; i++) {
            assert_int_equal(all[i].done, all[i].n);
            free(all[i].wanted);
        }
        neap_forward_destroy(f);
        neap_model_close(model);
    }
}

/* ---- A9: 20,000 decode steps of a recurrent model ---- */

/* The sanitizers keep records of their own, which grow. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MEMORY_SLACK = 1 << 30 };
#else
enum { MEMORY_SLACK = 0 };
#endif

static int64_t resident_bytes(void) {
    long size = 0;
    long resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%ld %ld", &size, &resident) != 2) resident = -1;
    if (f != NULL) fclose(f);
    assert_true(resident > 0);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static void decoding_keeps_its_memory(void **state) {
    (void)state;
    enum { ROUNDS = 40, STEPS = 500 };
    neap_model *model = open_golden("kimi-linear-f32-float32");
    neap_forward *f = open_forward(model, 1, STEPS, 1);
    int64_t before = 0;
    const uint64_t calls = neap_alloc_calls();
    for (int round = 0; round < ROUNDS; round++) {
        int32_t slot;
        assert_int_equal(neap_forward_open(f, STEPS, &slot), NEAP_OK);
        for (int32_t t = 0; t < STEPS; t++) {
            const int32_t token = (t * 31 + round) % model->net.vocab;
            const neap_segment s = {.slot = slot, .n_rows = 1, .position = t, .tokens = &token, .wants_logits = true};
            assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
        }
        neap_forward_close(f, slot);
        if (round == 0) before = resident_bytes();
    }
    assert_int_equal(neap_alloc_calls(), calls);
    const int64_t growth = resident_bytes() - before;
    if (growth >= (1 << 20) + MEMORY_SLACK)
        fail_msg("%lld bytes more after %d steps", (long long)growth, ROUNDS * STEPS);
    neap_forward_destroy(f);
    neap_model_close(model);
}

/* ---- D1, D2: selections ---- */

enum { D_ROWS = 387, D_TOPK = 64, D_LAYERS = 8 };

typedef struct selections {
    int32_t n_layers, topk;
    int32_t layers[D_LAYERS];
    int32_t lists[D_LAYERS][D_ROWS][D_TOPK];
} selections;

static void selection_tap(void *user, const neap_tap *tap) {
    selections *s = user;
    int32_t layer;
    if (sscanf(tap->name, "index_topk.%d", &layer) != 1) return;
    int32_t i = 0;
    while (i < s->n_layers && s->layers[i] != layer) i++;
    DEMAND(i < D_LAYERS && tap->shape[1] <= D_TOPK && tap->position + tap->shape[0] <= D_ROWS);
    if (i == s->n_layers) s->layers[s->n_layers++] = layer;
    s->topk = (int32_t)tap->shape[1];
    for (int64_t r = 0; r < tap->shape[0]; r++)
        memcpy(s->lists[i][tap->position + r], (const int32_t *)tap->data + r * s->topk,
               (size_t)s->topk * sizeof(int32_t));
}

static void select_alone(const neap_model *m, const int32_t *tokens, int32_t n, selections *out) {
    neap_forward *f = open_forward(m, 1, 512, D_ROWS);
    int32_t slot;
    memset(out, 0, sizeof *out);
    assert_int_equal(neap_forward_open(f, n, &slot), NEAP_OK);
    const neap_segment s = {.slot = slot, .n_rows = n, .tokens = tokens, .tap = selection_tap, .tap_user = out};
    assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
    neap_forward_destroy(f);
    assert_true(out->n_layers > 0);
}

/* Ascending, of the sequence itself, none from the future, and as many as there can be. */
static void check_selection(const int32_t *list, int32_t topk, int32_t position) {
    const int32_t n = position + 1 < topk ? position + 1 : topk;
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(list[i], 0, position);
        assert_true(i == 0 || list[i] > list[i - 1]);
    }
}

static void selections_stay_in_their_sequence(void **state) {
    (void)state;
    static const char *const names[] = {"deepseek-v32-tiny-bfloat16", "glm-dsa-tiny-bfloat16", "kimi-k3-mini-mxfp4"};
    static const int32_t lengths[3] = {10, 300, 77};
    static selections alone[3], together[3];
    static int32_t tokens[3][D_ROWS];
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        neap_model *model = open_golden(names[m]);
        neap_forward *f = open_forward(model, 3, 512, D_ROWS);
        neap_segment s[3];
        memset(together, 0, sizeof together);
        for (int k = 0; k < 3; k++) {
            random_tokens(tokens[k], lengths[k], model->net.vocab, 70 + (uint32_t)k);
            select_alone(model, tokens[k], lengths[k], &alone[k]);
            s[k] = (neap_segment){
                .n_rows = lengths[k], .tokens = tokens[k], .tap = selection_tap, .tap_user = &together[k]};
            assert_int_equal(neap_forward_open(f, lengths[k], &s[k].slot), NEAP_OK);
        }
        assert_int_equal(neap_forward_run(f, s, 3), NEAP_OK);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(together[k].n_layers, alone[k].n_layers);
            for (int32_t l = 0; l < alone[k].n_layers; l++)
                for (int32_t p = 0; p < lengths[k]; p++) {
                    const size_t n = (size_t)(p + 1 < alone[k].topk ? p + 1 : alone[k].topk);
                    check_selection(together[k].lists[l][p], together[k].topk, p);
                    assert_memory_equal(together[k].lists[l][p], alone[k].lists[l][p], n * sizeof(int32_t));
                }
        }
        neap_forward_destroy(f);
        neap_model_close(model);
    }
}

/* The golden selections tell one rotation from the other: with the config's default both models agree with them,
 * with the other style each differs. So neither default can change unnoticed. */
static void golden_selections_need_the_right_rotation(void **state) {
    (void)state;
    static const struct {
        const char *model, *golden, *other;
    } cases[] = {{"deepseek-v32-tiny-bfloat16", "golden_p100", "true"},
                 {"glm-dsa-tiny-bfloat16", "golden_p112", "false"}};
    static selections have;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char path[512], name[32];
        neap_checkpoint *c;
        snprintf(path, sizeof path, "%s/golden/models/%s/%s.safetensors", NEAP_TEST_DATA, cases[k].model,
                 cases[k].golden);
        if (neap_checkpoint_open_file(&c, path) != NEAP_OK) fail_msg("%s", neap_last_error());
        const neap_stored_tensor *t = neap_checkpoint_find(c, "tokens");
        const int32_t n = (int32_t)t->shape[0];
        int32_t *tokens = need(t->bytes);
        assert_int_equal(neap_checkpoint_read(c, t, 0, t->bytes, tokens), NEAP_OK);
        fixture *fx = fx_load(cases[k].model);
        for (int is_other = 0; is_other < 2; is_other++) {
            if (is_other) {
                snprintf(path, sizeof path, "\"indexer_rope_interleave\": %s, \"index_topk\":", cases[k].other);
                fx_config(fx, "\"index_topk\":", path);
            }
            neap_model *model = fx_must_open(fx);
            select_alone(model, tokens, n, &have);
            neap_model_close(model);
            int32_t n_different = 0, n_compared = 0;
            for (int32_t l = 0; l < have.n_layers; l++) {
                snprintf(name, sizeof name, "index_topk.%d", have.layers[l]);
                t = neap_checkpoint_find(c, name);
                if (t == NULL) continue; /* a layer that shares an earlier selection */
                n_compared++;
                assert_int_equal(t->shape[1], have.topk);
                int32_t *want = need(t->bytes);
                assert_int_equal(neap_checkpoint_read(c, t, 0, t->bytes, want), NEAP_OK);
                for (int32_t p = 0; p < n; p++) {
                    const size_t used = (size_t)(p + 1 < have.topk ? p + 1 : have.topk);
                    n_different += memcmp(want + p * have.topk, have.lists[l][p], used * sizeof *want) != 0;
                }
                free(want);
            }
            assert_true(n_compared >= 2);
            if (is_other)
                assert_true(n_different > n / 4);
            else
                assert_int_equal(n_different, 0);
        }
        fx_free(fx);
        free(tokens);
        neap_checkpoint_close(c);
    }
}

/* ---- D7: only the touched pages of a huge mapping exist ---- */

enum { FAR_PAGES = 3, WIDTH = 576 };
static const size_t far_bytes = (size_t)19 << 30; /* element offsets beyond 2^32, byte offsets beyond 2^34 */

static void far_rows(const neap_kernels *k, float *base) {
    /* Pages below 2^31 elements, just above, and above 2^32. */
    static const int32_t straight[FAR_PAGES] = {0, 1, 2}, pages[FAR_PAGES] = {1, 58255, 116510};
    static _Alignas(64) float near[FAR_PAGES * NEAP_PAGE_ROWS * WIDTH], q[2 * WIDTH];
    static const float w[2] = {0.7f, 0.4f};
    const neap_latent_format latent = {NEAP_ROWS_F32, 512, 64};
    const neap_index_format index = {NEAP_ROWS_F32, WIDTH}; /* the same bytes, read as keys */
    enum { ROWS = FAR_PAGES * NEAP_PAGE_ROWS };
    static uint32_t scores[2][ROWS];
    float out[2][2 * 512], stats[2][4];
    int32_t chosen[2][20], all[ROWS];
    assert_true(neap_latent_page_bytes(&latent) == neap_index_page_bytes(&index));
    uint32_t seed = 9;
    assert_true((int64_t)pages[1] * NEAP_PAGE_ROWS * WIDTH > INT64_C(1) << 31);
    assert_true((int64_t)pages[2] * NEAP_PAGE_ROWS * WIDTH > INT64_C(1) << 32);
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) near[i] = (float)random_below(&seed, 2000) / 1000 - 1;
    for (int i = 0; i < 2 * WIDTH; i++) q[i] = (float)random_below(&seed, 2000) / 1000 - 1;
    for (int p = 0; p < FAR_PAGES; p++)
        memcpy(base + (size_t)pages[p] * NEAP_PAGE_ROWS * WIDTH, near + p * NEAP_PAGE_ROWS * WIDTH,
               sizeof(float) * NEAP_PAGE_ROWS * WIDTH);
    const neap_pages caches[2] = {{(const uint8_t *)near, neap_latent_page_bytes(&latent), straight},
                                  {(const uint8_t *)base, neap_latent_page_bytes(&latent), pages}};
    for (int i = 0; i < 2; i++) {
        paged_attend(k, latent, caches[i], q, 2, NULL, ROWS, 0.04f, out[i], stats[i]);
        paged_select(k, index, caches[i], q, w, 2, ROWS, ROWS, all, scores[i]);
        paged_select(k, index, caches[i], q, w, 2, ROWS, 20, chosen[i], NULL);
    }
    assert_memory_equal(stats[0], stats[1], sizeof stats[0]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
    assert_true(chosen[0][0] < NEAP_PAGE_ROWS && chosen[0][19] >= 2 * NEAP_PAGE_ROWS); /* all pages matter */
}

/* Two rows of a product that lie 2147978880 elements apart, in x and in y. */
static void far_product(const neap_kernels *k, float *base) {
    enum { N = 16, K = 8 };
    const int64_t apart = INT64_C(2066) * 1039680;
    float source[N * K];
    _Alignas(64) float storage[N * K]; /* weights are aligned, as an arena gives them */
    neap_matrix w;
    for (int i = 0; i < N * K; i++) source[i] = (float)(i % 7) - 3;
    neap_matrix_shape(&w, NEAP_MATRIX_F32, N, K);
    assert_true(neap_matrix_panel_bytes(&w) == sizeof storage);
    const neap_pack_source src = {.dtype = NEAP_DTYPE_F32, .data = source, .row_stride = K, .col_stride = 1};
    assert_int_equal(neap_matrix_pack(&w, storage, &src, 0, neap_matrix_panels(&w)), 0);
    w.panels = storage;
    float *x = base, *y = base + 4096;
    for (int i = 0; i < K; i++) x[i] = x[apart + i] = (float)i + 1;
    const neap_gemm_args a = {
        .y = y, .ldy = apart, .x = x, .ldx = apart, .m = 2, .w = &w, .panel_end = neap_matrix_panels(&w)};
    k->gemm[NEAP_MATRIX_F32](&a);
    for (int j = 0; j < N; j++) {
        float sum = 0;
        for (int i = 0; i < K; i++) sum += source[j * K + i] * (float)(i + 1); /* small whole numbers: exact */
        assert_true(y[j] == sum && y[apart + j] == sum);
    }
    memset(y, 0, N * sizeof *y);
    memset(y + apart, 0, N * sizeof *y);
}

static void offsets_have_64_bits(void **state) {
    (void)state;
    const uint32_t levels[] = {0, NEAP_CPU_AVX2, NEAP_CPU_AVX2 | NEAP_CPU_AVX512};
    float *base = mmap(NULL, far_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        print_message("SKIP: no address space for %zu bytes\n", far_bytes);
        return;
    }
    const int32_t page = 2066;
    const neap_pages wide = {(const uint8_t *)base, 1039680, &page};
    assert_true(neap_pages_at(&wide, 63) - (const uint8_t *)base == INT64_C(2147978880));
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        neap_kernels k;
        neap_kernels_init(&k, levels[l] & neap_cpu_flags());
        far_rows(&k, base);
        far_product(&k, base);
    }
    munmap(base, far_bytes);
}

/* ---- I3 ---- */

static void a_huge_context_is_refused_at_once(void **state) {
    (void)state;
    neap_model *model = open_golden("kimi-k3-mini-mxfp4");
    neap_engine_options o;
    neap_engine_options_init(&o);
    o.cache_type = NEAP_CACHE_F32;
    o.index_type = NEAP_INDEX_F32;
    o.n_threads = 1;
    o.context_max = 10485760;
    o.seqs_max = 1024; /* some 30 GB each */
    neap_engine *e = NULL;
    struct timespec begin, end;
    const int64_t resident = resident_bytes();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    assert_int_equal(neap_engine_create(&e, model, &o), NEAP_NO_MEMORY);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    assert_null(e);
    const char *text = neap_last_error();
    double needed = 0, available = 0;
    const char *needs = strstr(text, "needs "), *has = strstr(text, "the machine has ");
    assert_non_null(strstr(text, "context_max 10485760"));
    assert_true(needs != NULL && sscanf(needs, "needs %lf MiB", &needed) == 1);
    assert_true(has != NULL && sscanf(has, "the machine has %lf MiB", &available) == 1);
    assert_true(needed > available && available > 0);
    assert_true((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec) < 1);
    assert_true(resident_bytes() - resident < (8 << 20) + MEMORY_SLACK);
    neap_model_close(model);
}

/* ---- the model's file is cut while answers are computed ---- */

static void a_cut_file_does_not_matter_later(void **state) {
    (void)state;
    static const int32_t tokens[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    fixture *fx = fx_load("kimi-k3-mini-mxfp4");
    neap_model *model = fx_must_open(fx);
    const size_t row = (size_t)model->net.vocab * sizeof(float);
    float *wanted = need(row);
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        char path[128];
        int32_t slot;
        snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
        neap_forward *f = open_forward(model, 1, 64, 12);
        assert_int_equal(neap_forward_open(f, 12, &slot), NEAP_OK);
        for (int32_t t = 0; t < 12; t++) {
            const neap_segment s = {
                .slot = slot, .n_rows = 1, .position = t, .tokens = tokens + t, .wants_logits = true};
            if (is_cut && t == 5) assert_int_equal(truncate(path, 0), 0);
            assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
        }
        if (is_cut)
            assert_memory_equal(neap_forward_logits(f, 0), wanted, row);
        else
            memcpy(wanted, neap_forward_logits(f, 0), row);
        neap_forward_destroy(f);
    }
    free(wanted);
    neap_model_close(model);
    fx_free(fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_shrinks_and_grows),
        cmocka_unit_test(selections_stay_in_their_sequence),
        cmocka_unit_test(golden_selections_need_the_right_rotation),
        cmocka_unit_test(offsets_have_64_bits),
        cmocka_unit_test(a_huge_context_is_refused_at_once),
        cmocka_unit_test(a_cut_file_does_not_matter_later),
        cmocka_unit_test(decoding_keeps_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
