/* Encoders of `neap quantize` against searches over all codes in double; products with INT8 weights against double
 * sums; the call itself: what it refuses, failing allocations, cancelling, one shard or many, and memory that does not
 * grow with the model. The command and the bytes of whole models are tested by cli.quantize. */
#include "model_fixture.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "models/quantize.h"
#include "tensor/codec.h"
#include "unit_data.h"

/* ---------------------------------------------------------------- encoders -------------------- */

/* Rows of every size: normal, tiny, huge, zero, one large value, exact ties. */
static void fill_row(float *x, int64_t k, int kind, uint64_t *seed) {
    for (int64_t j = 0; j < k; j++) {
        x[j] = unit_normal(seed);
        if (kind == 1) x[j] *= 1e-39f;
        if (kind == 2) x[j] *= 1e37f;
        if (kind == 3) x[j] = 0;
        if (kind == 4) x[j] = j == k / 2 ? -3e5f : x[j];
        if (kind == 5)
            x[j] = (float)((int)(unit_random(seed) % 255) - 127) * 0.5f; /* halves of a step when amax = 127 */
        if (kind == 6) x[j] = j == 1 ? 127.0f : (float)((int)(unit_random(seed) % 253) - 126) + 0.5f;
    }
}

static void test_int8_codes(void **state) {
    (void)state;
    uint64_t seed = 11;
    static const int64_t ks[] = {1, 5, 32, 96, 128, 200, 384};
    for (size_t a = 0; a < sizeof ks / sizeof ks[0]; a++)
        for (int kind = 0; kind < 7; kind++) {
            int64_t k = ks[a], group = neap_quantize_group(k);
            assert_int_equal(group, k % 128 == 0 ? 128 : k % 32 == 0 ? 32 : k);
            float x[384];
            int8_t codes[384];
            uint16_t scales[12];
            fill_row(x, k, kind, &seed);
            neap_encode_int8(codes, scales, x, k, group);
            for (int64_t j = 0; j < k; j++) {
                double amax = 0, s = neap_bf16_to_f32(scales[j / group]);
                for (int64_t i = j / group * group; i < (j / group + 1) * group && i < k; i++)
                    amax = fabs((double)x[i]) > amax ? fabs((double)x[i]) : amax;
                assert_true(s > 0 && isfinite(s));
                if (amax == 0) assert_true(s == 1);
                /* the scale is amax / 127 within one BF16 rounding, or the smallest normal number */
                if (amax / 127 > 0x1p-126) assert_true(fabs(s - amax / 127) <= amax / 127 * 0x1.02p-8);
                double best = 1e300;
                for (int code = -127; code <= 127; code++)
                    best = fabs(code * s - (double)x[j]) < best ? fabs(code * s - (double)x[j]) : best;
                double error = fabs(codes[j] * s - (double)x[j]);
                assert_true(codes[j] >= -127);
                if (error > best * (1 + 1e-6) || error > 0.5001 * s)
                    fail_msg("k %d kind %d: %g -> %d * %g, error %g, best %g", (int)k, kind, (double)x[j], codes[j], s,
                             error, best);
                double q = fabs((double)x[j]) / s;
                if (q - floor(q) == 0.5) assert_int_equal(abs(codes[j]) % 2, 0); /* ties to even */
            }
        }
}

static const double e2m1_values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static void test_mxfp4_codes(void **state) {
    (void)state;
    uint64_t seed = 12;
    for (int round = 0; round < 200; round++) {
        float x[64];
        uint8_t packed[32], scales[2];
        fill_row(x, 64, round % 7, &seed);
        if (round >= 100) { /* largest values around the borders of the scale rule, and values on ties of the grid */
            static const float tops[] = {1.75f, 1.7499999f, 1.0f, 1.5f, 1.9999999f, 6, 7, 3.4999998f};
            for (int j = 0; j < 64; j++) x[j] = (float)(unit_random(&seed) % 29) * 0.25f / 8;
            x[round % 32] = -tops[round % 8];
        }
        neap_encode_mxfp4(packed, scales, x, 64);
        for (int g = 0; g < 2; g++) {
            double amax = 0;
            for (int j = 0; j < 32; j++) amax = fabs((double)x[32 * g + j]) > amax ? fabs((double)x[32 * g + j]) : amax;
            int e = 0;
            double m = frexp(amax, &e); /* amax = 2m * 2^(e-1); from 1.75 on the next power */
            int want = amax == 0 ? 0 : 127 + e - 1 - 2 + (m >= 0.875);
            assert_int_equal(scales[g], want < 0 ? 0 : want);
            for (int j = 0; j < 32; j++) {
                int at = 32 * g + j, code = packed[at / 2] >> (at % 2 ? 4 : 0) & 15;
                double v = fabs((double)x[at]) / ldexp(1, scales[g] - 127), best = 1e300;
                for (int c = 0; c < 8; c++) best = fabs(e2m1_values[c] - v) < best ? fabs(e2m1_values[c] - v) : best;
                double error = fabs(e2m1_values[code & 7] - v);
                if (error > best) fail_msg("%g -> code %d, error %g, best %g", v, code, error, best);
                for (int c = 0; c < 7; c++) /* ties: the even code */
                    if ((e2m1_values[c] + e2m1_values[c + 1]) / 2 == v) assert_int_equal(code & 1, 0);
                if (x[at] != 0) assert_int_equal(code >> 3, x[at] < 0);
            }
        }
    }
}

/* What an MXFP4 group can hold comes back as the same values. */
static void test_mxfp4_again(void **state) {
    (void)state;
    uint64_t seed = 13;
    for (int round = 0; round < 300; round++) {
        float x[32], y[32];
        uint8_t codes[32], packed[16], scale = (uint8_t)(3 + unit_random(&seed) % 240), again;
        for (int j = 0; j < 32; j++) {
            codes[j] = (uint8_t)(unit_random(&seed) % (round % 3 == 0 ? 16 : 6)); /* sometimes without a 4 or 6 */
            x[j] = (float)(e2m1_values[codes[j] & 7] * (codes[j] & 8 ? -1 : 1)) * ldexpf(1, scale - 127);
        }
        neap_encode_mxfp4(packed, &again, x, 32);
        for (int j = 0; j < 32; j++) {
            codes[j] = packed[j / 2] >> (j % 2 ? 4 : 0) & 15;
            y[j] = (float)(e2m1_values[codes[j] & 7] * (codes[j] & 8 ? -1 : 1)) * ldexpf(1, again - 127);
        }
        assert_memory_equal(x, y, sizeof x);
    }
}

/* ---------------------------------------------------------------- products -------------------- */

static void gemm_against_double(const neap_kernels *k) {
    uint64_t seed = 14;
    static const int64_t sizes[][4] = {{33, 100, 3, 100}, {48, 384, 30, 128}, {17, 96, 1, 32}, {64, 260, 13, 52}};
    for (int a = 0; a < 4; a++) {
        int64_t n = sizes[a][0], kk = sizes[a][1], m = sizes[a][2], group = sizes[a][3],
                per_row = (kk + group - 1) / group;
        int8_t *codes = unit_zeros(n * kk, 1);
        float *rows = unit_floats(n * per_row), *x = unit_normals(&seed, m * kk, 1), *y = unit_floats(m * n);
        for (int64_t i = 0; i < n * kk; i++) codes[i] = (int8_t)(unit_random(&seed) % 255 - 127);
        for (int64_t i = 0; i < n * per_row; i++) rows[i] = 0.001f * (float)(1 + unit_random(&seed) % 20);
        neap_matrix w;
        neap_matrix_shape_int8(&w, n, kk, group);
        /* aligned to 64, as kernels want it */
        char *storage = unit_zeros((int64_t)neap_matrix_panel_bytes(&w) + 64, 1);
        storage += (64 - (uintptr_t)storage % 64) % 64;
        float *scales = unit_floats(neap_matrix_scale_count(&w));
        neap_matrix_pack_scales(&w, scales, rows);
        neap_pack_source src = {.dtype = NEAP_DTYPE_I8, .data = codes, .row_stride = kk, .col_stride = 1};
        assert_int_equal(neap_matrix_pack(&w, storage, &src, 0, neap_matrix_panels(&w)), 0);
        w.panels = storage;
        w.scales = scales;
        neap_gemm_args args = {
            .y = y, .ldy = n, .x = x, .ldx = kk, .m = m, .w = &w, .panel_end = neap_matrix_panels(&w)};
        k->gemm[NEAP_MATRIX_INT8](&args);
        for (int64_t i = 0; i < m * n; i++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < kk; j++) {
                double p =
                    (double)x[i / n * kk + j] * codes[i % n * kk + j] * (double)rows[i % n * per_row + j / group];
                sum += p;
                size += fabs(p);
            }
            assert_true(fabs(sum - (double)y[i]) <= 1e-6 * size + 1e-12);
        }
    }
}

static void test_products(void **state) {
    (void)state;
    unit_each_table(gemm_against_double);
}

/* ---------------------------------------------------------------- the call -------------------- */

static char out_dir[200];

static void remove_out(void) {
    char command[300];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", out_dir);
    assert_int_equal(system(command), 0);
}

static const char *new_out(const fixture *fx) {
    (void)snprintf(out_dir, sizeof out_dir, "%s-out", fx->dir);
    remove_out();
    return out_dir;
}

static bool exists(const char *dir, const char *name) {
    char path[400];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0;
}

static neap_quantize_options options_of(fixture *fx) {
    neap_quantize_options o;
    neap_quantize_options_init(&o);
    o.n_threads = 1;
    o.log = fx_log;
    o.log_user = fx;
    return o;
}

static void test_arguments(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_write(fx, -1);
    neap_quantize_options o = options_of(fx);
    const char *out = new_out(fx);
    neap_quantize_options_init(NULL);
    fx_expect(neap_quantize(NULL, out, NULL), NEAP_INVALID_ARGUMENT, "NULL");
    fx_expect(neap_quantize(fx->dir, NULL, NULL), NEAP_INVALID_ARGUMENT, "NULL");
    fx_expect(neap_quantize(fx->dir, "", NULL), NEAP_INVALID_ARGUMENT, "empty");
    fx_expect(neap_quantize(fx->dir, fx->dir, &o), NEAP_INVALID_ARGUMENT, "the model itself");
    fx_expect(neap_quantize(fx->dir, "/dev/null", &o), NEAP_INVALID_ARGUMENT, "not a directory");
    fx_expect(neap_quantize(fx->dir, "/dev/nowhere/at/all", &o), NEAP_INVALID_ARGUMENT, "/dev/nowhere");
    fx_expect(neap_quantize("/nowhere", out, &o), NEAP_NOT_FOUND, "/nowhere");
    char full[64];
    (void)snprintf(full, sizeof full, "/tmp");
    fx_expect(neap_quantize(fx->dir, full, &o), NEAP_INVALID_ARGUMENT, "not empty");
    o.experts = 7;
    fx_expect(neap_quantize(fx->dir, out, &o), NEAP_INVALID_ARGUMENT, "experts is 7");
    o.experts = NEAP_WEIGHTS_INT8;
    o.linear = NEAP_WEIGHTS_MXFP4;
    fx_expect(neap_quantize(fx->dir, out, &o), NEAP_INVALID_ARGUMENT, "linear is 3");
    o.linear = NEAP_WEIGHTS_INT8;
    o.head = NEAP_WEIGHTS_MXFP4;
    fx_expect(neap_quantize(fx->dir, out, &o), NEAP_INVALID_ARGUMENT, "head is 3");
    o.head = NEAP_WEIGHTS_INT8;
    o.embedding = 0;
    fx_expect(neap_quantize(fx->dir, out, &o), NEAP_INVALID_ARGUMENT, "embedding is 0");
    memset(&o, 0, sizeof o);
    fx_expect(neap_quantize(fx->dir, out, &o), NEAP_INVALID_ARGUMENT, "struct_size");
    assert_false(exists(out, "."));
    fx_free(fx);
}

static void test_nonfinite(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    float *x = (float *)(uintptr_t)fx->t[fx_find(fx, "model.layers.1.block_sparse_moe.experts.3.w1.weight")].data;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    neap_quantize_options o = options_of(fx);
    for (int i = 0; i < 4; i++) {
        x[7] = bad[i];
        fx_write(fx, -1);
        fx_expect(neap_quantize(fx->dir, new_out(fx), &o), NEAP_BAD_FILE, "experts.3.w1.weight: 1 value is not finite");
        assert_false(exists(out_dir, ".")); /* made by the call, so removed by it */
    }
    fx_free(fx);
}

static int cancel_after;
static int is_cancelled(void *user) {
    (void)user;
    return cancel_after-- <= 0;
}

static void test_cancel(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_write(fx, -1);
    neap_quantize_options o = options_of(fx);
    o.is_cancelled = is_cancelled;
    (void)new_out(fx);
    for (cancel_after = 0; cancel_after < 100; cancel_after += 37) {
        int k = cancel_after;
        fx_expect(neap_quantize(fx->dir, out_dir, &o), NEAP_CANCELLED, "cancelled");
        assert_false(exists(out_dir, "."));
        cancel_after = k;
    }
    assert_int_equal(mkdir(out_dir, 0700), 0); /* an empty directory of the caller stays */
    cancel_after = 3;
    fx_expect(neap_quantize(fx->dir, out_dir, &o), NEAP_CANCELLED, "cancelled");
    assert_true(exists(out_dir, "."));
    assert_int_equal(rmdir(out_dir), 0);
    fx_free(fx);
}

static void test_failing_allocations(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_write(fx, -1);
    neap_quantize_options o = options_of(fx);
    o.linear = NEAP_WEIGHTS_INT8;
    o.shard_bytes_max = 400000;
    (void)new_out(fx);
    int n_failed = 0;
    bool is_done = false;
    for (uint64_t k = 1; !is_done; k += k < 60 ? 1 : 43) {
        neap_alloc_fail_at(k);
        neap_status s = neap_quantize(fx->dir, out_dir, &o);
        neap_alloc_fail_at(0);
        if (s == NEAP_OK) {
            is_done = true;
        } else {
            assert_int_equal(s, NEAP_NO_MEMORY);
            assert_false(exists(out_dir, "."));
            n_failed++;
        }
    }
    assert_true(n_failed > 40);
    remove_out();
    fx_free(fx);
}

static uint64_t progress_last;
static void on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "quantize");
    assert_true(done >= progress_last && done <= total);
    progress_last = done;
    *(uint64_t *)user = total;
}

/* The same tensors in one file and in many, with one thread and with several; progress ends at the total. */
static void test_shards_and_threads(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_write(fx, -1);
    (void)new_out(fx);
    char first_dir[240];
    (void)snprintf(first_dir, sizeof first_dir, "%s-first", out_dir);
    static const int threads[] = {1, 3};
    static const uint64_t sizes[] = {0, 1, 150000};
    neap_checkpoint *first = NULL;
    for (int t = 0; t < 2; t++)
        for (int s = 0; s < 3; s++) {
            neap_quantize_options o = options_of(fx);
            uint64_t total = 0;
            o.linear = NEAP_WEIGHTS_INT8;
            o.n_threads = threads[t];
            o.shard_bytes_max = sizes[s];
            o.progress = on_progress;
            o.progress_user = &total;
            progress_last = 0;
            fx_expect(neap_quantize(fx->dir, first == NULL ? first_dir : out_dir, &o), NEAP_OK, NULL);
            assert_true(total > 1000000 && progress_last == total);
            neap_checkpoint *c = NULL;
            fx_expect(neap_checkpoint_open(&c, first == NULL ? first_dir : out_dir, NULL), NEAP_OK, NULL);
            if (first == NULL) {
                first = c;
                continue;
            }
            assert_int_equal(neap_checkpoint_count(c), neap_checkpoint_count(first));
            assert_int_equal(exists(out_dir, "model.safetensors.index.json"), s > 0);
            for (int64_t i = 0; i < neap_checkpoint_count(c); i++) {
                const neap_stored_tensor *a = neap_checkpoint_at(first, i), *b = neap_checkpoint_find(c, a->name);
                assert_non_null(b);
                assert_int_equal(a->bytes, b->bytes);
                assert_int_equal(a->dtype, b->dtype);
                void *pa = fx_zeros(a->bytes), *pb = fx_zeros(b->bytes);
                assert_int_equal(neap_checkpoint_read(first, a, 0, a->bytes, pa), NEAP_OK);
                assert_int_equal(neap_checkpoint_read(c, b, 0, b->bytes, pb), NEAP_OK);
                assert_memory_equal(pa, pb, a->bytes);
                free(pa);
                free(pb);
            }
            neap_checkpoint_close(c);
            remove_out();
        }
    neap_checkpoint_close(first);
    (void)snprintf(out_dir, sizeof out_dir, "%.190s", first_dir);
    remove_out();
    fx_free(fx);
}

/* Head and embedding: which of them is packed, one matrix for both in a tied model, and rows of the embedding that
 * differ from the stored ones by half a step of their scale. */
static void test_head_and_embedding(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        bool is_tied = i >= 4, has_head = i & 1, has_embedding = i & 2,
             is_int8 = has_embedding || (is_tied && has_head);
        fixture *fx = fx_load("kimi-linear-f32-float32");
        if (is_tied) {
            fx_config(fx, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
            fx_drop(fx, fx_find(fx, "lm_head.weight"));
        }
        fx_write(fx, -1);
        neap_quantize_options o = options_of(fx);
        o.head = has_head ? NEAP_WEIGHTS_INT8 : NEAP_WEIGHTS_BF16;
        o.embedding = has_embedding ? NEAP_WEIGHTS_INT8 : NEAP_WEIGHTS_BF16;
        fx_expect(neap_quantize(fx->dir, new_out(fx), &o), NEAP_OK, NULL);
        neap_model *m = NULL;
        fx_expect(neap_model_open(&m, out_dir, NULL), NEAP_OK, NULL);
        const neap_matrix *embed = &m->net.embed, *head = &m->net.head;
        assert_int_equal(embed->kind, is_int8 ? NEAP_MATRIX_INT8 : NEAP_MATRIX_F32);
        assert_int_equal(head->kind, is_tied ? embed->kind : has_head ? NEAP_MATRIX_INT8 : NEAP_MATRIX_F32);
        assert_int_equal(head->panels == embed->panels && head->scales == embed->scales, is_tied);
        assert_int_equal(m->has_int_others, is_tied ? is_int8 : has_head);
        const float *stored = fx->t[fx_find(fx, "model.embed_tokens.weight")].data;
        assert_int_equal(embed->k, 64);
        for (int64_t row = 0; row < embed->n; row++) {
            float values[64];
            neap_matrix_unpack_rows(embed, row, 1, values, 64);
            for (int64_t j = 0; j < 64; j++) {
                float amax = 0;
                for (int64_t g = j / 32 * 32; g < j / 32 * 32 + 32; g++)
                    amax = fmaxf(amax, fabsf(stored[row * 64 + g])); /* 64 inputs: groups of 32 */
                float error = fabsf(values[j] - stored[row * 64 + j]);
                if (error > (is_int8 ? amax / 127 * 0.503f : 0))
                    fail_msg("case %d row %d: %g -> %g", i, (int)row, (double)stored[row * 64 + j], (double)values[j]);
            }
        }
        neap_model_close(m);
        remove_out();
        fx_free(fx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8_codes),
        cmocka_unit_test(test_mxfp4_codes),
        cmocka_unit_test(test_mxfp4_again),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_shards_and_threads),
        cmocka_unit_test(test_head_and_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
