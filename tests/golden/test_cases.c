/* Public failures of engines like this one that no other file covers, on real layers: A7 (neighbouring state slots
 * stay untouched), A8 (no position enters NoPE attention), D8 (a selection does not depend on which rows a rank
 * holds). See tests/CASES.md for the whole list. */
#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "trace.h"
#include "unit/paged_row.h"

enum { STEPS = 50 };

static void fill(float *x, int64_t n, uint32_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed / 2147483648.0f;
    }
}

static void check_pattern(const void *x, int64_t n_bytes) {
    const unsigned char *bytes = x;
    for (int64_t i = 0; i < n_bytes; i++) assert_int_equal(bytes[i], 0x5a);
}

/* A7: slots left and right of the one in use, and pages of others, hold a pattern before and after. */
static void other_slots_stay_untouched(void **state) {
    (void)state;
    static const char *const names[] = {"kimi-linear-f32-float32", "kimi-k3-mini-mxfp4", "kimi-k3-mtp-tiny-bfloat16"};
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        char path[512];
        neap_model *model;
        neap_forward *f;
        snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, names[m]);
        if (neap_model_open(&model, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
        const neap_forward_options o = {
            .n_threads = 2, .oversubscribe = true, .seqs_max = 3, .context_max = 128, .batch_tokens_max = 8};
        assert_int_equal(neap_forward_create(&f, model, &o), NEAP_OK);
        int32_t slots[3];
        for (int i = 0; i < 3; i++) assert_int_equal(neap_forward_open(f, 128, &slots[i]), NEAP_OK);
        int32_t n_layers = f->caches.n_layers, used = slots[1];
        for (int32_t i = 0; i < n_layers; i++) {
            const neap_cache_layer_spec *s = &f->cache_specs[i];
            neap_cache_layer *c = &f->caches.layers[i];
            if (c->state) memset(c->state, 0x5a, 3 * (size_t)s->state_floats * sizeof(float));
            if (c->window) memset(c->window, 0x5a, 3 * (size_t)s->window_floats * sizeof(float));
            const size_t n_pages = (size_t)f->caches.n_pages;
            if (c->latents) memset(c->latents, 0x5a, n_pages * (size_t)c->latent_page_bytes);
            if (c->index_keys) memset(c->index_keys, 0x5a, n_pages * (size_t)c->index_page_bytes);
        }
        for (int t = 0; t < STEPS; t++) {
            int32_t token = (t * 7) % model->net.vocab;
            const neap_segment s = {.slot = used, .n_rows = 1, .position = t, .tokens = &token, .wants_logits = true};
            assert_int_equal(neap_forward_run(f, &s, 1), NEAP_OK);
        }
        for (int32_t i = 0; i < n_layers; i++) {
            const neap_cache_layer_spec *s = &f->cache_specs[i];
            const neap_cache_layer *c = &f->caches.layers[i];
            for (int32_t k = 0; k < 3; k++) {
                if (k == used) continue;
                if (c->state) check_pattern(c->state + k * s->state_floats, s->state_floats * 4);
                if (c->window) check_pattern(c->window + k * s->window_floats, s->window_floats * 4);
            }
            for (int64_t j = 0; j < f->caches.n_pages; j++) {
                if (f->caches.owner[j] == used) continue;
                if (c->latents) check_pattern(c->latents + j * c->latent_page_bytes, c->latent_page_bytes);
                if (c->index_keys) check_pattern(c->index_keys + j * c->index_page_bytes, c->index_page_bytes);
            }
        }
        neap_forward_destroy(f);
        neap_model_close(model);
    }
}

/* A8: the same rows at other positions of a longer cache give the same bits. */
static void nope_attention_knows_no_position(void **state) {
    (void)state;
    enum { R = 64, DR = 16, N = 90, FAR = 1024, H = 3, PAGES = (FAR + 128) / NEAP_PAGE_ROWS };
    const uint32_t levels[] = {0, NEAP_CPU_AVX2, NEAP_CPU_AVX2 | NEAP_CPU_AVX512};
    const neap_latent_format format = {NEAP_ROWS_F32, R, DR};
    static _Alignas(64) float base[PAGES * NEAP_PAGE_ROWS * (R + DR)];
    int32_t pages[PAGES], list[N];
    fill(base, N * (R + DR), 1);
    memcpy(base + FAR * (R + DR), base, sizeof(float) * N * (R + DR));
    for (int i = 0; i < PAGES; i++) pages[i] = i;
    for (int i = 0; i < N; i++) list[i] = FAR + i;
    const neap_pages cache = {(const uint8_t *)base, neap_latent_page_bytes(&format), pages};
    float q[H * (R + DR)], near[H * R], far[H * R], stats[2][2 * H];
    fill(q, H * (R + DR), 2);
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        neap_kernels k;
        neap_kernels_init(&k, levels[l] & neap_cpu_flags());
        paged_attend(&k, format, cache, q, H, NULL, N, 0.1f, near, stats[0]);
        paged_attend(&k, format, cache, q, H, list, N, 0.1f, far, stats[1]);
        assert_memory_equal(near, far, sizeof near);
        assert_memory_equal(stats[0], stats[1], sizeof stats[0]);
    }
}

/* D8: rows dealt to 2 or 4 ranks in head and tail pieces, keys gathered: each row keeps its global position. A rank
 * scans its rows in tiles, so that other ranks mean other tiles too. */
enum { D8_T = 230, D8_D = 32, D8_H = 4, D8_K = 24, D8_PAGES = (D8_T + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS };
static _Alignas(64) uint8_t d8_keys[D8_PAGES * NEAP_PAGE_ROWS * D8_D * 4];
static float d8_q[D8_T * D8_H * D8_D], d8_w[D8_T * D8_H];

/* Rows [begin, end); rows that see at most D8_K keys take them all. */
static void select_tile(const neap_kernels *k, int begin, int end, int32_t (*out)[D8_K]) {
    enum { CAPACITY = 2 * D8_K + 512 };
    static uint32_t orders[NEAP_INDEX_ROWS][CAPACITY];
    static int32_t positions[NEAP_INDEX_ROWS][CAPACITY];
    static float scratch[NEAP_PAGE_ROWS * (D8_D + D8_H + NEAP_INDEX_ROWS)];
    static const int32_t pages[D8_PAGES] = {0, 1, 2, 3};
    const neap_index_format format = {NEAP_ROWS_F32, D8_D};
    neap_candidates lists[NEAP_INDEX_ROWS];
    int32_t n[NEAP_INDEX_ROWS];
    assert_true(neap_candidates_capacity(D8_K) == CAPACITY);
    assert_true(neap_index_scratch(&format, D8_H) <= (int64_t)(sizeof scratch / sizeof *scratch));
    assert_true(neap_index_page_bytes(&format) * D8_PAGES == sizeof d8_keys);
    for (int i = 0; i < end - begin; i++) {
        n[i] = begin + i < D8_K ? 0 : begin + i + 1;
        lists[i] = (neap_candidates){.order = orders[i], .positions = positions[i]};
    }
    const neap_index_scan_args a = {.format = format,
                                    .keys = {d8_keys, neap_index_page_bytes(&format), pages},
                                    .q = d8_q + begin * D8_H * D8_D,
                                    .w = d8_w + begin * D8_H,
                                    .ld_q = D8_H * D8_D,
                                    .ld_w = D8_H,
                                    .n_rows = end - begin,
                                    .n_heads = D8_H,
                                    .k = D8_K,
                                    .n = n,
                                    .end = end,
                                    .out = lists,
                                    .scratch = scratch};
    k->index_scan(&a);
    for (int i = 0; i < end - begin; i++) {
        if (n[i]) k->index_merge(out[begin + i], &lists[i], 1, D8_K);
        for (int j = 0; !n[i] && j <= begin + i; j++) out[begin + i][j] = j;
    }
}

static void selection_is_the_same_on_any_rank(void **state) {
    (void)state;
    static int32_t want[D8_T][D8_K], got[D8_T][D8_K];
    const neap_index_format format = {NEAP_ROWS_F32, D8_D};
    fill(d8_q, D8_T * D8_H * D8_D, 4);
    fill(d8_w, D8_T * D8_H, 5);
    for (int t = 0; t < D8_T; t++) {
        float key[D8_D];
        fill(key, D8_D, 3 + 1000 * (uint32_t)t);
        neap_index_put(&format, d8_keys + t / NEAP_PAGE_ROWS * neap_index_page_bytes(&format), t % NEAP_PAGE_ROWS, key);
    }
    neap_kernels k;
    neap_kernels_init(&k, neap_cpu_flags());
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        memset(got, 0xff, sizeof got);
        for (int rank = 0; rank < ranks; rank++)
            for (int half = 0; half < 2; half++) {
                int piece = half ? 2 * ranks - 1 - rank : rank;
                int end = (piece + 1) * D8_T / (2 * ranks);
                for (int t = piece * D8_T / (2 * ranks); t < end; t += NEAP_INDEX_ROWS)
                    select_tile(&k, t, end - t < NEAP_INDEX_ROWS ? end : t + NEAP_INDEX_ROWS, got);
            }
        if (ranks == 1)
            memcpy(want, got, sizeof got);
        else
            assert_memory_equal(want, got, sizeof got);
    }
    for (int t = 0; t < D8_T; t++)
        for (int i = 0; i < D8_K; i++) assert_true(i > t ? got[t][i] == -1 : got[t][i] >= 0 && got[t][i] <= t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_slots_stay_untouched),
        cmocka_unit_test(nope_attention_knows_no_position),
        cmocka_unit_test(selection_is_the_same_on_any_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
