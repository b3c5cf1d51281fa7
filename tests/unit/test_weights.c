/* The comparison of a checkpoint with its config (rows A7, A8, A10 and cases A11, A12, F10, I4, I5): every kind of
 * tensor of the tiny models dropped, renamed, of another type, with one dimension more, transposed, poisoned with NaN;
 * A_log of other lengths; unknown tensors in and outside the layers; configs that ask for far more than there is. */
#include <time.h>

#include "model_fixture.h"

static const char *const models[] = {"kimi-k3-mini-mxfp4", "kimi-linear-f32-float32", "glm-dsa-tiny-bfloat16",
                                     "kimi-k3-mtp-tiny-bfloat16"};
enum { N_MODELS = 4 };

/* "model.layers.3.x.experts.7.w1" -> "model.layers.#.x.experts.#.w1" */
static void kind_of(const char *name, char *kind) {
    for (; *name; name++) {
        bool is_number = *name >= '0' && *name <= '9' && name[-1] == '.';
        if (!is_number) {
            *kind++ = *name;
            continue;
        }
        *kind++ = '#';
        while (name[1] >= '0' && name[1] <= '9') name++;
    }
    *kind = 0;
}

/* Each kind once, at its last layer (the draft layer where there is one) and, if other, at its first. */
static int list_kinds(const fixture *fx, int *picked) {
    int n = 0;
    static char kinds[FX_TENSORS][FX_NAME];
    for (int i = 0; i < fx->n; i++) {
        char kind[FX_NAME];
        kind_of(fx->t[i].name, kind);
        bool is_new = true;
        for (int k = 0; k < n && is_new; k++) is_new = strcmp(kinds[k], kind) != 0;
        if (!is_new) continue;
        (void)snprintf(kinds[n], FX_NAME, "%s", kind);
        picked[n++] = i;
    }
    return n;
}

static bool has(const char *text, const char *part) { return strstr(text, part) != NULL; }

/* May be absent: the bias of the index key norm, A_log of a bounded gate, a draft layer's own head. */
static bool is_optional(const fixture *fx, const char *name) {
    return has(name, "k_norm.bias") || has(name, "shared_head.head") ||
           (has(name, "A_log") && has(fx->config, "gate_lower_bound"));
}

static void test_dropped(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked);
        assert_true(n > 20);
        for (int i = 0; i < n; i++) {
            const char *name = fx->t[picked[i]].name;
            fx_write(fx, picked[i]);
            neap_model *m = NULL;
            neap_status s = fx_open(fx, &m, true);
            neap_model_close(m);
            if (is_optional(fx, name)) {
                fx_expect(s, NEAP_OK, NULL);
                continue;
            }
            /* Without weight_packed its scale is left over, and the plain name is what is missing. */
            char wanted[FX_NAME];
            (void)snprintf(wanted, sizeof wanted, "%s", name);
            char *tail = strstr(wanted, "_packed");
            if (tail != NULL) *tail = 0;
            (void)strncat(wanted, " is missing", sizeof wanted - strlen(wanted) - 1);
            fx_expect(s, NEAP_BAD_FILE, wanted);
            assert_non_null(strstr(neap_last_error(), "1 missing"));
            assert_non_null(strstr(neap_last_error(), fx->dir));
        }
        fx_free(fx);
    }
}

static void test_renamed(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked);
        for (int i = 0; i < n; i++) {
            char old[FX_NAME], name[FX_NAME];
            (void)snprintf(old, sizeof old, "%s", fx->t[picked[i]].name);
            (void)snprintf(name, sizeof name, "%.*sx", FX_NAME - 2, old);
            fx_rename(fx, picked[i], name);
            neap_status s = fx_try(fx, true);
            (void)strncat(name, " is not known", sizeof name - strlen(name) - 1);
            if (has(old, ".layers."))
                fx_expect(s, NEAP_BAD_FILE, name); /* inside the layers an unknown name is an error */
            else
                fx_expect(s, NEAP_BAD_FILE, " is missing");
            fx_rename(fx, picked[i], old);
        }
        fx_expect(fx_try(fx, true), NEAP_OK, NULL);
        fx_free(fx);
    }
}

static void test_wrong_type(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked);
        for (int i = 0; i < n; i++) {
            neap_out_tensor *t = &fx->t[picked[i]];
            neap_dtype was = t->dtype;
            int bits = neap_dtype_bits(was);
            t->dtype = bits == 32 ? NEAP_DTYPE_I32 : bits == 16 ? NEAP_DTYPE_I16 : NEAP_DTYPE_I8;
            fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "has type I");
            assert_non_null(strstr(neap_last_error(), t->name));
            assert_non_null(strstr(neap_last_error(), "1 of a wrong type"));
            t->dtype = was;
        }
        fx_free(fx);
    }
}

static void test_more_dimensions(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked);
        for (int i = 0; i < n; i++) {
            neap_out_tensor *t = &fx->t[picked[i]];
            t->shape[t->rank++] = 1;
            fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "has shape");
            assert_non_null(strstr(neap_last_error(), t->name));
            assert_non_null(strstr(neap_last_error(), "1 misshapen"));
            t->rank--;
        }
        fx_free(fx);
    }
}

static void test_transposed(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked), n_tried = 0;
        for (int i = 0; i < n; i++) {
            neap_out_tensor *t = &fx->t[picked[i]];
            int32_t last = t->rank - 1;
            if (t->rank < 2 || t->rank > 3 || t->shape[0] == t->shape[last]) continue;
            int64_t a = t->shape[0];
            t->shape[0] = t->shape[last];
            t->shape[last] = a;
            fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "has shape");
            assert_non_null(strstr(neap_last_error(), t->name));
            t->shape[last] = t->shape[0];
            t->shape[0] = a;
            n_tried++;
        }
        assert_true(n_tried > 10);
        fx_free(fx);
    }
}

/* One poisoned element per kind: refused with the tensor's name, accepted with a warning when asked (row A10). */
static void test_poison(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        int picked[FX_TENSORS], n = list_kinds(fx, picked);
        for (int i = 0; i < n; i++) {
            const neap_out_tensor *t = &fx->t[picked[i]];
            if (has(t->name, "weight_packed")) continue; /* every nibble is a number */
            uint8_t *data = (uint8_t *)(uintptr_t)t->data, saved[4];
            size_t size = (size_t)neap_dtype_bits(t->dtype) / 8, at = fx->bytes[picked[i]] / size / 2 * size;
            static const uint8_t nan32[4] = {0, 0, 0xc0, 0x7f}, inf16[2] = {0x80, 0xff}, nan8[1] = {0xff};
            memcpy(saved, data + at, size);
            memcpy(data + at, size == 4 ? nan32 : size == 2 ? inf16 : nan8, size);
            fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "non-finite");
            char named[FX_NAME];
            (void)snprintf(named, sizeof named, "%s", t->name);
            char *scale = strstr(named, "_scale"); /* reported under the matrix that it scales */
            if (scale != NULL) *scale = 0;
            if (!has(neap_last_error(), named)) fail_msg("'%s' does not name %s", neap_last_error(), named);
            neap_model_options o = fx_options(fx);
            o.allow_nonfinite = 1;
            neap_model *m = NULL;
            fx_expect(neap_model_open(&m, fx->dir, &o), NEAP_OK, NULL);
            neap_model_close(m);
            assert_int_equal(fx->n_logged[NEAP_LOG_WARN], 1);
            assert_non_null(strstr(fx->last_log[NEAP_LOG_WARN], "non-finite"));
            memcpy(data + at, saved, size);
        }
        fx_free(fx);
    }
    fixture *fx = fx_load("kimi-linear-f32-float32"); /* finite, but exp of it is not */
    float *a = (float *)(uintptr_t)fx->t[fx_find_tail(fx, "A_log")].data;
    a[1] = 1000;
    fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "A_log");
    fx_free(fx);
}

/* Case A11: as many entries as heads, more (a note), fewer (an error); 1-D and 4-D. */
static void test_decay_lengths(void **state) {
    (void)state;
    static const struct {
        int32_t rank;
        int64_t n;
        neap_status status;
        int notes;
    } cases[] = {{1, 4, NEAP_OK, 0}, {4, 4, NEAP_OK, 0},       {1, 5, NEAP_OK, 1},
                 {4, 6, NEAP_OK, 1}, {1, 3, NEAP_BAD_FILE, 0}, {4, 3, NEAP_BAD_FILE, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        fixture *fx = fx_load("kimi-linear-f32-float32");
        int i = fx_find(fx, "model.layers.1.self_attn.A_log");
        bool is_1d = cases[k].rank == 1;
        float *x = fx_reshape(fx, i, NEAP_DTYPE_F32, cases[k].rank, is_1d ? cases[k].n : 1, 1, cases[k].n, 1);
        for (int64_t j = 0; j < cases[k].n; j++) x[j] = 0.25f * (float)j;
        fx_write(fx, -1);
        neap_model *m = NULL;
        fx_expect(fx_open(fx, &m, false), cases[k].status, "model.layers.1.self_attn.A_log has shape [");
        assert_int_equal(fx->n_logged[NEAP_LOG_WARN], cases[k].notes);
        if (cases[k].notes > 0) assert_non_null(strstr(fx->last_log[NEAP_LOG_WARN], "A_log has"));
        if (m != NULL)
            for (int j = 0; j < 4; j++)
                assert_true(fabsf(m->net.layers[1].weights.kda.decay_scale[j] - expf(0.25f * (float)j)) < 1e-6f);
        neap_model_close(m);
        fx_free(fx);
    }
}

/* Case A12: the bounded gate may come without A_log, its factor is 1; the plain gate may not. */
static void test_decay_absent(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mtp-tiny-bfloat16");
    fx_drop(fx, fx_find(fx, "language_model.model.layers.0.self_attn.A_log"));
    neap_model *m = fx_must_open(fx);
    for (int i = 0; i < 4; i++) assert_true(fabsf(m->net.layers[0].weights.kda.decay_scale[i] - 1.0f) < 1e-9f);
    neap_model_close(m);
    fx_config(fx, "\"gate_lower_bound\": -5.0", "\"gate_lower_bound\": null");
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE,
              "language_model.model.layers.0.self_attn.A_log is missing, expected [4] or longer");
    fx_free(fx);
}

/* Row A8, case I4: unknown names outside the layers are counted in a warning, an error when strict; vision is
 * skipped. */
static void test_extra(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mtp-tiny-bfloat16");
    (void)fx_add(fx, "some.other.weight", NEAP_DTYPE_F32, 1, 3, 1);
    (void)fx_add(fx, "some.third.weight", NEAP_DTYPE_F32, 1, 3, 1);
    (void)fx_add(fx, "vision_tower.blocks.0.weight", NEAP_DTYPE_F32, 1, 3, 1);
    (void)fx_add(fx, "mm_projector.weight", NEAP_DTYPE_F32, 1, 3, 1);
    (void)fx_add(fx, "language_model.model.layers.1.self_attn.rotary_emb.inv_freq", NEAP_DTYPE_F32, 1, 3, 1);
    fx_expect(fx_try(fx, true), NEAP_OK, NULL);
    assert_int_equal(fx->n_logged[NEAP_LOG_WARN], 1);
    assert_non_null(strstr(fx->last_log[NEAP_LOG_WARN], "2 tensors"));
    assert_non_null(strstr(fx->last_log[NEAP_LOG_WARN], "some."));
    assert_int_equal(fx->n_logged[NEAP_LOG_INFO], 1);
    assert_non_null(strstr(fx->last_log[NEAP_LOG_INFO], "2 vision tensors"));
    neap_model_options o = fx_options(fx);
    o.strict = 1;
    o.describe_only = 1;
    neap_model *m = NULL;
    fx_expect(neap_model_open(&m, fx->dir, &o), NEAP_BAD_FILE, "some.other.weight is not known");
    assert_non_null(strstr(neap_last_error(), "2 unknown"));
    (void)fx_add(fx, "language_model.model.layers.9.mlp.up_proj.weight", NEAP_DTYPE_F32, 1, 3, 1);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "layers.9.mlp.up_proj.weight is not known");
    fx_free(fx);
    fx = fx_load("kimi-k3-mini-mxfp4"); /* B2.6: unknown indexer tensors are reported */
    (void)fx_add(fx, "language_model.model.layers.1.self_attn.indexer.ape", NEAP_DTYPE_F32, 1, 3, 1);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "indexer.ape is not known");
    fx_free(fx);
    fx = fx_load("kimi-linear-f32-float32"); /* plain and packed at once is ambiguous */
    (void)fx_add(fx, "model.layers.0.mlp.up_proj.weight_packed", NEAP_DTYPE_U8, 2, 128, 32);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "up_proj.weight_packed is not known");
    fx_free(fx);
}

static void test_scales(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    int i = fx_find(fx, "model.layers.0.mlp.up_proj.weight");
    (void)fx_reshape(fx, i, NEAP_DTYPE_F8_E4M3, 2, 128, 64, 1, 1);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "up_proj.weight_scale_inv is missing, expected [1, 1]");
    (void)fx_add(fx, "model.layers.0.mlp.up_proj.weight_scale_inv", NEAP_DTYPE_F32, 2, 2, 1);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "weight_scale_inv has shape [2, 1], expected [1, 1]");
    int s = fx_find(fx, "model.layers.0.mlp.up_proj.weight_scale_inv");
    (void)fx_reshape(fx, s, NEAP_DTYPE_I32, 2, 1, 1, 1, 1);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "weight_scale_inv has type I32");
    float *x = fx_reshape(fx, s, NEAP_DTYPE_F32, 2, 1, 1, 1, 1);
    fx_expect(fx_try(fx, false), NEAP_OK, NULL);
    x[0] = INFINITY;
    fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "weight_scale_inv: 1 non-finite");
    x[0] = 0x1p120f; /* finite, but a factor that vector kernels fold in would overflow it */
    fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "weight_scale_inv: scale 0 is 1.32923e+36, the limit is 2^120");
    x[0] = 1;
    ((uint8_t *)(uintptr_t)fx->t[i].data)[77] = 0x7f; /* the NaN code */
    fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "up_proj.weight: 1 non-finite");
    fx_free(fx);
    fx = fx_load("kimi-linear-f32-float32"); /* group of 32 that does not divide: 16 inputs */
    fx_config(fx, "\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 16");
    fx_config(fx, "\"num_shared_experts\": 2", "\"num_shared_experts\": 4");
    for (int j = 0; j < fx->n; j++) {
        if (!has(fx->t[j].name, ".experts.")) continue;
        bool is_down = has(fx->t[j].name, ".w2.");
        (void)fx_reshape(fx, j, NEAP_DTYPE_F32, 2, is_down ? 64 : 16, is_down ? 16 : 64, 1, 1);
    }
    fx_expect(fx_try(fx, false), NEAP_OK, NULL);
    int w2 = fx_find(fx, "model.layers.1.block_sparse_moe.experts.0.w2.weight");
    (void)fx_reshape(fx, w2, NEAP_DTYPE_U8, 2, 64, 8, 1, 1);
    fx_rename(fx, w2, "model.layers.1.block_sparse_moe.experts.0.w2.weight_packed");
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "multiple of 32 inputs");
    fx_free(fx);
}

static double seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Many mismatches: all are counted, twenty are listed; an absurd config costs neither time nor memory. */
static void test_many(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_config(fx, "\"hidden_size\": 64", "\"hidden_size\": 65");
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "0 missing, 1");
    assert_int_equal(fx->n_logged[NEAP_LOG_INFO], 20);
    assert_non_null(strstr(neap_last_error(), " more"));
    assert_true(strlen(neap_last_error()) < 1024);
    fx_config(fx, "\"hidden_size\": 65", "\"hidden_size\": 64");
    fx_config(fx, "\"num_experts\": 8", "\"num_experts\": 65536");
    fx_config(fx, "\"num_attention_heads\": 4", "\"num_attention_heads\": 4096");
    fx_config(fx, "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 4096");
    double begin = seconds();
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "at least ");
    assert_true(seconds() - begin < 0.5);
    fx_free(fx);
}

static void test_memory_check(void **state) {
    (void)state;
    /* The check itself needs a machine that is too small; here only that the estimate is what loading claims. */
    fixture *fx = fx_load("kimi-k3-mini-mxfp4");
    neap_model *m = fx_must_open(fx);
    assert_true(m->packed_bytes > 0 && m->packed_bytes <= neap_arena_bytes(m->arena));
    assert_true(neap_arena_bytes(m->arena) < m->packed_bytes + 262144);
    neap_model_close(m);
    fx_free(fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped),       cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_wrong_type),    cmocka_unit_test(test_more_dimensions),
        cmocka_unit_test(test_transposed),    cmocka_unit_test(test_poison),
        cmocka_unit_test(test_decay_lengths), cmocka_unit_test(test_decay_absent),
        cmocka_unit_test(test_extra),         cmocka_unit_test(test_scales),
        cmocka_unit_test(test_many),          cmocka_unit_test(test_memory_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
