/* Opening models: the golden checkpoints open; packed values equal the file's (a handful of numbers that python
 * read, then every single weight decoded here); FP8, MXFP4, F16 and mixed files; large matrices that are read in
 * several pieces; equal bytes for any number of threads; every failing allocation; the numbers of describe. */
#include "model_fixture.h"

#include "tensor/codec.h"

static const char *const models[] = {"deepseek-v32-tiny-bfloat16", "glm-dsa-tiny-bfloat16", "kimi-k3-mini-mxfp4",
                                     "kimi-k3-mtp-tiny-bfloat16", "kimi-linear-f32-float32"};
enum { N_MODELS = 5 };

static neap_model *open_golden(const char *name) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, name);
    neap_model *m = NULL;
    if (neap_model_open(&m, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
    return m;
}

/* ---------------------------------------------------------------- values ---------------------- */

typedef struct value_case {
    const char *model, *tensor;
    int64_t i, j;
    float value;
} value_case;

/* Read by a python program that knows nothing of this project: struct.unpack on the files. */
/* clang-format off */
static const value_case values[] = {
    {"kimi-linear-f32-float32", "model.embed_tokens.weight", 318, 32, -0.21448959410190582f},
    {"kimi-linear-f32-float32", "model.embed_tokens.weight", 379, 45, 0.10049157589673996f},
    {"kimi-linear-f32-float32", "model.layers.1.self_attn.f_b_proj.weight", 7, 29, -0.18590310215950012f},
    {"kimi-linear-f32-float32", "model.layers.1.self_attn.f_b_proj.weight", 63, 3, 0.12594498693943024f},
    {"kimi-linear-f32-float32", "model.layers.3.block_sparse_moe.experts.7.w2.weight", 20, 7, 0.036257438361644745f},
    {"glm-dsa-tiny-bfloat16", "model.layers.3.self_attn.indexer.wq_b.weight", 126, 24, -0.12109375f},
    {"glm-dsa-tiny-bfloat16", "model.layers.2.mlp.experts.7.up_proj.weight", 15, 1, -0.045166015625f},
    {"glm-dsa-tiny-bfloat16", "model.layers.2.mlp.experts.7.up_proj.weight", 46, 27, 0.197265625f},
    {"glm-dsa-tiny-bfloat16", "lm_head.weight", 417, 35, 0.57421875f},
    {"deepseek-v32-tiny-bfloat16", "model.layers.2.self_attn.o_proj.weight", 20, 18, 0.01556396484375f},
    {"deepseek-v32-tiny-bfloat16", "model.layers.2.self_attn.o_proj.weight", 17, 113, -0.0201416015625f},
    {"kimi-k3-mtp-tiny-bfloat16", "language_model.model.layers.4.eh_proj.weight", 16, 33, -0.059326171875f},
    {"kimi-k3-mtp-tiny-bfloat16", "language_model.model.layers.4.shared_head.head.weight", 214, 27, -0.2236328125f},
    {"kimi-k3-mtp-tiny-bfloat16", "language_model.model.layers.0.mlp.down_proj.weight", 37, 80, 0.1064453125f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.2.block_sparse_moe.experts.5.w1.weight", 11, 25, 0.0625f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.2.block_sparse_moe.experts.5.w1.weight", 24, 38, -0.09375f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.2.block_sparse_moe.experts.5.w1.weight", 1, 46, -0.0625f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.3.block_sparse_moe.experts.7.w2.weight", 53, 10, -0.0f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.3.block_sparse_moe.experts.7.w2.weight", 18, 16, -0.015625f},
    {"kimi-k3-mini-mxfp4", "language_model.model.layers.3.block_sparse_moe.experts.7.w2.weight", 8, 21, 0.03125f},
};
/* clang-format on */

typedef struct search {
    const value_case *v;
    bool is_found;
} search;

static bool compare_value(void *user, const neap_want *want) {
    search *s = user;
    size_t n = strlen(want->name);
    if (want->kind != NEAP_WANT_MATRIX || strncmp(want->name, s->v->tensor, n) != 0 ||
        strcmp(s->v->tensor + n, ".weight") != 0)
        return true;
    s->is_found = true;
    float got = neap_matrix_get(want->to.matrix, s->v->i, s->v->j);
    if (memcmp(&got, &s->v->value, sizeof got) != 0)
        fail_msg("%s[%lld, %lld] = %.9g, expected %.9g", s->v->tensor, (long long)s->v->i, (long long)s->v->j, got,
                 s->v->value);
    return false;
}

static neap_weight_names names_of(const neap_model *m) {
    bool is_nested = m->family == NEAP_FAMILY_KIMI_K3 || m->family == NEAP_FAMILY_KIMI_K31;
    neap_weight_names k3 = {"language_model.model.", "language_model.model.layers.", "language_model.lm_head"};
    neap_weight_names plain = {"model.", "model.layers.", "lm_head"};
    return is_nested ? k3 : plain;
}

static void test_known_values(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        neap_model *m = open_golden(models[k]);
        neap_weight_names names = names_of(m);
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            if (strcmp(values[i].model, models[k]) != 0) continue;
            search s = {&values[i], false};
            (void)neap_weights_visit(m, &names, compare_value, &s);
            assert_true(s.is_found);
        }
        neap_model_close(m);
    }
}

/* Element i of a fixture's tensor, decoded here and not by the library. */
static float raw(const fixture *fx, int t, int64_t i) {
    const uint8_t *b = fx->t[t].data;
    uint32_t u = 0;
    float f = 0;
    switch (fx->t[t].dtype) {
    case NEAP_DTYPE_F32: memcpy(&f, b + 4 * i, 4); return f;
    case NEAP_DTYPE_BF16:
        u = (uint32_t)(b[2 * i] | b[2 * i + 1] << 8) << 16;
        memcpy(&f, &u, 4);
        return f;
    case NEAP_DTYPE_F16: { /* normal numbers and zero only */
        unsigned h = (unsigned)(b[2 * i] | b[2 * i + 1] << 8);
        return (h & 0x7fff) == 0
                   ? 0.0f
                   : ldexpf(1.0f + (float)(h & 1023) / 1024, (int)(h >> 10 & 31) - 15) * (h >> 15 ? -1.0f : 1.0f);
    }
    default: return NAN;
    }
}

static float e2m1(unsigned code) {
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -v[code & 7] : v[code & 7];
}

static float e4m3(unsigned code) {
    int e = (int)(code >> 3 & 15), m = (int)(code & 7);
    float v = e == 0 ? ldexpf((float)m, -9) : ldexpf(1.0f + (float)m / 8, e - 7);
    return code & 128 ? -v : v;
}

static int find_or(const fixture *fx, const char *name, const char *tail) {
    char full[256];
    (void)snprintf(full, sizeof full, "%s%s", name, tail);
    for (int i = 0; i < fx->n; i++)
        if (strcmp(fx->t[i].name, full) == 0) return i;
    return -1;
}

/* A linear weight in whatever form the fixture holds it. */
typedef struct stored {
    const fixture *fx;
    int data, scale; /* scale -1: plain */
    int64_t k;
} stored;

static stored find_weight(const fixture *fx, const neap_want *want) {
    stored s = {fx, find_or(fx, want->name, ".weight"), -1, want->k};
    if (s.data < 0) {
        s.data = find_or(fx, want->name, ".weight_packed");
        s.scale = find_or(fx, want->name, ".weight_scale");
        assert_true(s.data >= 0 && s.scale >= 0);
    } else if (fx->t[s.data].dtype == NEAP_DTYPE_F8_E4M3) {
        s.scale = find_or(fx, want->name, ".weight_scale_inv");
        assert_true(s.scale >= 0);
    } else if (fx->t[s.data].dtype == NEAP_DTYPE_I8) {
        s.scale = find_or(fx, want->name, ".weight_scale");
        assert_true(s.scale >= 0);
    }
    return s;
}

static float weight_at(const stored *s, int64_t i, int64_t j) {
    int64_t at = i * s->k + j;
    if (s->scale < 0) return raw(s->fx, s->data, at);
    const uint8_t *codes = s->fx->t[s->data].data, *scales = s->fx->t[s->scale].data;
    if (s->fx->t[s->data].dtype == NEAP_DTYPE_U8)
        return e2m1(codes[at / 2] >> (j % 2 ? 4 : 0) & 15) * ldexpf(1, scales[at / 32] - 127);
    if (s->fx->t[s->data].dtype == NEAP_DTYPE_I8) {
        int64_t groups = s->fx->t[s->scale].shape[1];
        return (float)(int8_t)codes[at] * raw(s->fx, s->scale, i * groups + j * groups / s->k);
    }
    int64_t block = i / 128 * ((s->k + 127) / 128) + j / 128;
    float scale =
        s->fx->t[s->scale].dtype == NEAP_DTYPE_F8_E8M0 ? ldexpf(1, scales[block] - 127) : raw(s->fx, s->scale, block);
    return e4m3(codes[at]) * scale;
}

static void same(const char *name, float got, float wanted) {
    if (!(got >= wanted && got <= wanted)) fail_msg("%s: %.9g, expected %.9g", name, got, wanted);
}

typedef struct comparison {
    const fixture *fx;
    int64_t n;
} comparison;

static void compare_kv_b(comparison *c, const neap_want *want) {
    const neap_mla_spec *s = want->mla_spec;
    int64_t rows = s->d_nope + s->d_v;
    stored w = find_weight(c->fx, want);
    for (int64_t h = 0; h < s->n_heads; h++)
        for (int64_t r = 0; r < s->kv_lora; r++) {
            for (int64_t d = 0; d < s->d_nope; d++)
                same(want->name, neap_matrix_get(&want->mla->k_up[h], r, d), weight_at(&w, h * rows + d, r));
            for (int64_t d = 0; d < s->d_v; d++)
                same(want->name, neap_matrix_get(&want->mla->v_up[h], d, r),
                     weight_at(&w, h * rows + s->d_nope + d, r));
        }
}

static bool compare_all(void *user, const neap_want *want) {
    comparison *c = user;
    c->n++;
    if (want->kind == NEAP_WANT_MATRIX) {
        const neap_matrix *m = want->to.matrix;
        if (want->is_optional && m->panels == NULL) return true;
        assert_int_equal(m->n, want->n);
        assert_int_equal(m->k, want->k);
        stored w = find_weight(c->fx, want);
        for (int64_t i = 0; i < want->n; i++)
            for (int64_t j = 0; j < want->k; j++) same(want->name, neap_matrix_get(m, i, j), weight_at(&w, i, j));
    } else if (want->kind == NEAP_WANT_KV_B) {
        compare_kv_b(c, want);
    } else if (want->kind == NEAP_WANT_MIX && want->to.vector != NULL) {
        int a = find_or(c->fx, want->name, "_norm.weight"), b = find_or(c->fx, want->name, "_proj.weight");
        for (int64_t i = 0; i < want->n; i++)
            same(want->name, (*want->to.vector)[i], raw(c->fx, a, i) * raw(c->fx, b, i));
    } else if (want->kind == NEAP_WANT_VECTOR || want->kind == NEAP_WANT_CONV) {
        int t = fx_find(c->fx, want->name);
        for (int64_t i = 0; i < want->n * want->k; i++) same(want->name, (*want->to.vector)[i], raw(c->fx, t, i));
    } else if (want->kind == NEAP_WANT_DECAY) {
        int t = fx_find(c->fx, want->name);
        for (int64_t i = 0; i < want->n; i++) same(want->name, (*want->to.vector)[i], expf(raw(c->fx, t, i)));
    }
    return true;
}

static void compare_model(const fixture *fx, neap_model *m) {
    comparison c = {fx, 0};
    neap_weight_names names = names_of(m);
    assert_true(neap_weights_visit(m, &names, compare_all, &c));
    assert_true(c.n > 20);
}

static void test_every_value(void **state) {
    (void)state;
    for (int k = 0; k < N_MODELS; k++) {
        fixture *fx = fx_load(models[k]);
        neap_model *m = open_golden(models[k]); /* from the shards; the fixture has gathered them */
        compare_model(fx, m);
        neap_model_close(m);
        m = fx_must_open(fx); /* and from one file */
        compare_model(fx, m);
        neap_model_close(m);
        fx_free(fx);
    }
}

/* ---------------------------------------------------------------- other formats --------------- */

static uint32_t random_state = 12345;
static uint32_t next_random(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static void make_fp8(fixture *fx, int i, neap_dtype scale_type) {
    int64_t n = fx->t[i].shape[0], k = fx->t[i].shape[1], sn = (n + 127) / 128, sk = (k + 127) / 128;
    uint8_t *codes = fx_reshape(fx, i, NEAP_DTYPE_F8_E4M3, 2, n, k, 1, 1);
    for (int64_t j = 0; j < n * k; j++) {
        codes[j] = (uint8_t)next_random();
        if ((codes[j] & 0x7f) == 0x7f) codes[j] = 0x30;
    }
    char name[FX_NAME + 16];
    (void)snprintf(name, sizeof name, "%s_scale_inv", fx->t[i].name);
    uint8_t *s = fx_add(fx, name, scale_type, 2, sn, sk);
    for (int64_t j = 0; j < sn * sk; j++) {
        if (scale_type == NEAP_DTYPE_F8_E8M0) {
            s[j] = (uint8_t)(120 + next_random() % 10);
        } else {
            float v = 0.001f * (float)(1 + next_random() % 1000);
            memcpy(s + 4 * j, &v, 4);
        }
    }
}

static bool ends_with(const char *text, const char *tail) {
    size_t n = strlen(text), k = strlen(tail);
    return n >= k && strcmp(text + n - k, tail) == 0;
}

/* kv_b of the mini model is [256, 512]: eight blocks with different scales, decoded to F32 and split per head. */
static void test_fp8(void **state) {
    (void)state;
    for (int form = 0; form < 2; form++) {
        fixture *fx = fx_load("kimi-k3-mini-mxfp4");
        int n = fx->n;
        for (int i = 0; i < n; i++)
            if (fx->t[i].rank == 2 && ends_with(fx->t[i].name, "_proj.weight") && fx->t[i].shape[0] > 1)
                make_fp8(fx, i, form == 0 ? NEAP_DTYPE_F32 : NEAP_DTYPE_F8_E8M0);
        neap_model *m = fx_must_open(fx);
        assert_int_equal(m->net.layers[0].weights.kda.q.kind, NEAP_MATRIX_FP8);
        assert_int_equal(m->net.layers[1].weights.mla.k_up[0].kind, NEAP_MATRIX_F32);
        assert_string_equal(m->weight_formats, "BF16 + FP8 + MXFP4 experts");
        compare_model(fx, m);
        neap_model_close(m);
        fx_free(fx);
    }
}

static void make_mxfp4(fixture *fx, int i) {
    int64_t n = fx->t[i].shape[0], k = fx->t[i].shape[1];
    char name[FX_NAME + 16], scale[FX_NAME + 16];
    (void)snprintf(name, sizeof name, "%s_packed", fx->t[i].name);
    (void)snprintf(scale, sizeof scale, "%s_scale", fx->t[i].name);
    uint8_t *codes = fx_reshape(fx, i, NEAP_DTYPE_U8, 2, n, k / 2, 1, 1);
    for (int64_t j = 0; j < n * k / 2; j++) codes[j] = (uint8_t)next_random();
    fx_rename(fx, i, name);
    uint8_t *s = fx_add(fx, scale, NEAP_DTYPE_U8, 2, n, k / 32);
    for (int64_t j = 0; j < n * k / 32; j++) s[j] = (uint8_t)(118 + next_random() % 8);
}

static void make_f16(fixture *fx, int i) {
    int64_t n = fx->t[i].shape[0], k = fx->t[i].rank > 1 ? fx->t[i].shape[1] : 1;
    int32_t rank = fx->t[i].rank;
    uint8_t *b = fx_reshape(fx, i, NEAP_DTYPE_F16, rank, n, k, 1, 1);
    for (int64_t j = 0; j < n * k; j++) {
        b[2 * j] = (uint8_t)next_random();
        b[2 * j + 1] = (uint8_t)(0x30 | (next_random() & 0x87));
    }
}

/* groups per row; scales in F32 or BF16. */
static int make_int8(fixture *fx, int i, int64_t groups, neap_dtype scale_type) {
    int64_t n = fx->t[i].shape[0], k = fx->t[i].shape[1];
    uint8_t *codes = fx_reshape(fx, i, NEAP_DTYPE_I8, 2, n, k, 1, 1);
    for (int64_t j = 0; j < n * k; j++) codes[j] = (uint8_t)next_random();
    char name[FX_NAME + 16];
    (void)snprintf(name, sizeof name, "%s_scale", fx->t[i].name);
    uint8_t *s = fx_add(fx, name, scale_type, 2, n, groups);
    for (int64_t j = 0; j < n * groups; j++) {
        float v = 0.0001f * (float)(1 + next_random() % 1000);
        uint16_t half = neap_f32_to_bf16(v);
        if (scale_type == NEAP_DTYPE_F32)
            memcpy(s + 4 * j, &v, 4);
        else
            memcpy(s + 2 * j, &half, 2);
    }
    return fx->n - 1;
}

/* A scale per output, and per group of 4, 16, 32 inputs, beside MXFP4 experts and plain tensors; kv_b is decoded. */
static void test_int8(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mini-mxfp4");
    int n = fx->n, n_made = 0;
    static const int64_t groups[] = {1, 2, 4, 1, 8};
    for (int i = 0; i < n; i++)
        if (fx->t[i].rank == 2 && ends_with(fx->t[i].name, "_proj.weight") && fx->t[i].shape[0] > 1 &&
            fx->t[i].shape[1] % 32 == 0)
            (void)make_int8(fx, i, groups[n_made % 5], n_made % 2 == 0 ? NEAP_DTYPE_F32 : NEAP_DTYPE_BF16), n_made++;
    assert_true(n_made > 20);
    neap_model *m = fx_must_open(fx);
    assert_int_equal(m->net.layers[0].weights.kda.q.kind, NEAP_MATRIX_INT8);
    assert_int_equal(m->net.layers[1].weights.mla.k_up[0].kind, NEAP_MATRIX_F32);
    assert_string_equal(m->weight_formats, "BF16 + INT8 + MXFP4 experts");
    compare_model(fx, m);
    neap_model_close(m);
    fx_free(fx);
}

static void test_int8_errors(void **state) {
    (void)state;
    static const struct {
        int64_t rows, groups;
        neap_dtype type;
        const char *part;
    } wrong[] = {
        {128, 3, NEAP_DTYPE_F32, "[128, 1] or [128, groups] with 64 inputs in equal groups of a multiple of 4"},
        {128, 32, NEAP_DTYPE_F32, "groups of a multiple of 4"},
        {127, 2, NEAP_DTYPE_F32, "has shape [127, 2]"},
        {128, 2, NEAP_DTYPE_I8, "weight_scale has type I8"},
    };
    const char *name = "model.layers.0.self_attn.q_proj.weight";
    fixture *fx = fx_load("kimi-linear-f32-float32");
    int scale = make_int8(fx, fx_find(fx, name), 2, NEAP_DTYPE_F32);
    fx_expect(fx_try(fx, false), NEAP_OK, NULL);
    float *s = (float *)(uintptr_t)fx->t[scale].data;
    static const float bad[] = {0.0f, -0.5f, 0x1p121f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float good = s[5];
        s[5] = bad[i];
        fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "q_proj.weight_scale");
        s[5] = good;
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        (void)fx_reshape(fx, scale, wrong[i].type, 2, wrong[i].rows, wrong[i].groups, 1, 1);
        fx_expect(fx_try(fx, true), NEAP_BAD_FILE, wrong[i].part);
    }
    fx_drop(fx, scale);
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "q_proj.weight_scale is missing");
    fx_free(fx);
    /* kv_b goes another way: through rows.c. */
    fx = fx_load("kimi-linear-f32-float32");
    scale = make_int8(fx, fx_find(fx, "model.layers.2.self_attn.kv_b_proj.weight"), 1, NEAP_DTYPE_F32);
    ((float *)(uintptr_t)fx->t[scale].data)[3] = 0;
    fx_expect(fx_try(fx, false), NEAP_BAD_FILE, "kv_b_proj.weight_scale: scale 3 is 0");
    fx_free(fx);
}

/* Packed, plain and half precision side by side; case F10. */
static void test_mixed(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    make_mxfp4(fx, fx_find(fx, "model.layers.1.block_sparse_moe.experts.3.w1.weight"));
    make_mxfp4(fx, fx_find(fx, "model.layers.2.self_attn.kv_b_proj.weight"));
    make_mxfp4(fx, fx_find(fx, "model.layers.0.mlp.down_proj.weight"));
    make_f16(fx, fx_find(fx, "model.layers.1.block_sparse_moe.experts.4.w1.weight"));
    make_f16(fx, fx_find(fx, "model.layers.1.input_layernorm.weight"));
    make_f16(fx, fx_find(fx, "model.embed_tokens.weight"));
    make_fp8(fx, fx_find(fx, "model.layers.1.block_sparse_moe.experts.5.w2.weight"), NEAP_DTYPE_F32);
    neap_model *m = fx_must_open(fx);
    compare_model(fx, m);
    assert_int_equal(m->net.layers[1].moe.w1[3].kind, NEAP_MATRIX_MXFP4);
    assert_int_equal(m->net.layers[1].moe.w1[4].kind, NEAP_MATRIX_F32);
    assert_int_equal(m->net.layers[1].moe.w2[5].kind, NEAP_MATRIX_FP8);
    neap_model_close(m);
    fx_free(fx);
}

/* Spellings: without the language_model prefix, with the shorter one, AttnRes names of another exporter. */
static void test_prefixes(void **state) {
    (void)state;
    static const char *const to[] = {"", "language_model.", "model.language_model."};
    const char *from = "language_model.model.";
    for (size_t p = 0; p < 3; p++) {
        fixture *fx = fx_load("kimi-k3-mtp-tiny-bfloat16");
        for (int i = 0; i < fx->n; i++) {
            char name[FX_NAME];
            const char *old = fx->t[i].name;
            if (strncmp(old, from, strlen(from)) == 0)
                (void)snprintf(name, sizeof name, "%s%s", p == 0 ? "model." : to[p], old + strlen(from));
            else
                (void)snprintf(name, sizeof name, "%s", p == 1 ? old : "lm_head.weight");
            char *res = strstr(name, "_res_");
            if (res != NULL) { /* mlp_res_proj.weight -> mlp_res.proj_weight */
                res[4] = '.';
                char *dot = strrchr(name, '.');
                *dot = '_';
            }
            fx_rename(fx, i, name);
        }
        fx_expect(fx_try(fx, false), NEAP_OK, NULL);
        fx_free(fx);
    }
}

static void test_tied(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_config(fx, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    fx_drop(fx, fx_find(fx, "lm_head.weight"));
    neap_model *m = fx_must_open(fx);
    assert_ptr_equal(m->net.head.panels, m->net.embed.panels);
    uint64_t parameters = m->parameters;
    neap_model_close(m);
    fx_config(fx, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    fx_expect(fx_try(fx, true), NEAP_BAD_FILE, "lm_head.weight is missing");
    fx_free(fx);
    m = open_golden("kimi-linear-f32-float32");
    assert_int_equal(m->parameters - parameters, 384 * 64);
    neap_model_close(m);
}

/* ---------------------------------------------------------------- how it is read -------------- */

static uint64_t progress_last;
static int progress_calls;
static void on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "load");
    assert_true(done >= progress_last && done <= total);
    progress_last = done;
    progress_calls++;
    *(uint64_t *)user = total;
}

/* An embedding of 10 MB is read in several pieces; every value and every thread count give the same. */
static void test_large_and_threads(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-linear-f32-float32");
    fx_config(fx, "\"vocab_size\": 384", "\"vocab_size\": 40003");
    for (int which = 0; which < 2; which++) {
        int i = fx_find(fx, which == 0 ? "model.embed_tokens.weight" : "lm_head.weight");
        float *x = fx_reshape(fx, i, NEAP_DTYPE_F32, 2, 40003, 64, 1, 1);
        for (int64_t j = 0; j < 40003 * 64; j++) x[j] = (float)(next_random() % 65536) / 4096.0f;
    }
    fx_write(fx, -1);
    neap_model *first = NULL;
    static const int threads[] = {1, 2, 5, 64};
    for (size_t t = 0; t < 4; t++) {
        neap_model_options o = fx_options(fx);
        uint64_t total = 0;
        o.n_threads = threads[t];
        o.progress = on_progress;
        o.progress_user = &total;
        progress_last = 0;
        progress_calls = 0;
        neap_model *m = NULL;
        if (neap_model_open(&m, fx->dir, &o) != NEAP_OK) fail_msg("%s", neap_last_error());
        assert_true(progress_calls >= 1 && progress_last == total && total > 20000000);
        uint64_t bytes = neap_matrix_panel_bytes(&m->net.embed);
        const float *embed = fx->t[fx_find(fx, "model.embed_tokens.weight")].data;
        for (int64_t j = 0; j < 40003 * 64; j += 61)
            same("embed", neap_matrix_get(&m->net.embed, j / 64, j % 64), embed[j]);
        if (first == NULL) {
            first = m;
            continue;
        }
        assert_memory_equal(m->net.embed.panels, first->net.embed.panels, bytes);
        assert_memory_equal(m->net.head.panels, first->net.head.panels, bytes);
        neap_model_close(m);
    }
    neap_model_close(first);
    fx_free(fx);
}

static void test_failing_allocations(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mtp-tiny-bfloat16");
    fx_write(fx, -1);
    bool is_open = false;
    int64_t n_failed = 0;
    for (uint64_t k = 1; !is_open; k += k < 40 ? 1 : 41) {
        neap_model *m = NULL;
        neap_alloc_fail_at(k);
        neap_status s = fx_open(fx, &m, false);
        neap_alloc_fail_at(0);
        is_open = s == NEAP_OK;
        if (!is_open) {
            assert_int_equal(s, NEAP_NO_MEMORY);
            assert_null(m);
            n_failed++;
        }
        neap_model_close(m);
    }
    assert_true(n_failed > 40);
    fx_free(fx);
}

static void test_arguments(void **state) {
    (void)state;
    neap_model *m = NULL;
    assert_int_equal(neap_model_open(NULL, "x", NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_model_open(&m, NULL, NULL), NEAP_INVALID_ARGUMENT);
    fx_expect(neap_model_open(&m, "/nowhere/at/all", NULL), NEAP_NOT_FOUND, "/nowhere/at/all");
    fx_expect(neap_model_open(&m, "/dev/null", NULL), NEAP_BAD_FILE, "not a directory");
    neap_model_options o;
    memset(&o, 0, sizeof o);
    assert_int_equal(neap_model_open(&m, "x", &o), NEAP_INVALID_ARGUMENT);
    neap_model_options_init(&o);
    o.cpu = "pentium";
    fx_expect(neap_model_open(&m, "/", &o), NEAP_INVALID_ARGUMENT, "pentium");
    neap_model_close(NULL);
    assert_null(neap_model_tokenizer(NULL));
    assert_int_equal(neap_model_describe(NULL, NULL), NEAP_INVALID_ARGUMENT);
}

/* ---------------------------------------------------------------- describe -------------------- */

/* kind, n, k, group and bytes of every matrix in the order of the walk; how many have panels. */
typedef struct shapes {
    int64_t v[4096][5];
    int n, n_panels;
} shapes;

static void add_shape(shapes *s, const neap_matrix *m) {
    const int64_t v[5] = {m->kind, m->n, m->k, m->group, m->panel_bytes};
    assert_true(s->n < 4096);
    memcpy(s->v[s->n++], v, sizeof v);
    if (m->panels != NULL) s->n_panels++;
}

static bool see_shape(void *user, const neap_want *want) {
    shapes *s = user;
    if (want->kind == NEAP_WANT_MATRIX) add_shape(s, want->to.matrix);
    for (int32_t h = 0; want->kind == NEAP_WANT_KV_B && h < want->mla_spec->n_heads; h++) {
        add_shape(s, &want->mla->k_up[h]);
        add_shape(s, &want->mla->v_up[h]);
    }
    return true;
}

/* A model opened for description has the shapes of the loaded one, experts and heads included. */
static void test_describe_shapes(void **state) {
    static const char *const names_of[] = {"kimi-k3-mini-mxfp4", "deepseek-v32-tiny-bfloat16",
                                           "kimi-linear-f32-float32"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        fixture *fx = fx_load(names_of[i]);
        fx_write(fx, -1);
        shapes *both[2];
        for (int k = 0; k < 2; k++) {
            neap_model *m = NULL;
            neap_checkpoint *c = NULL;
            neap_weight_names names;
            both[k] = fx_zeros(sizeof *both[k]);
            fx_expect(fx_open(fx, &m, k == 1), NEAP_OK, NULL);
            assert_int_equal(neap_checkpoint_open(&c, fx->dir, NULL), NEAP_OK);
            neap_weights_find_names(m, c, &names);
            (void)neap_weights_visit(m, &names, see_shape, both[k]);
            if (m->is_tied) add_shape(both[k], &m->net.head);
            neap_checkpoint_close(c);
            neap_model_close(m);
        }
        assert_true(both[0]->n > 20 && both[0]->n == both[1]->n);
        assert_memory_equal(both[0]->v, both[1]->v, sizeof both[0]->v);
        assert_true(both[0]->n_panels > 20 && both[1]->n_panels == 0);
        free(both[0]);
        free(both[1]);
        fx_free(fx);
    }
}

static void test_describe(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mini-mxfp4");
    fx_write(fx, -1);
    neap_model_info info[2];
    for (int i = 0; i < 2; i++) { /* describe_only gives the same numbers as loading */
        neap_model *m = NULL;
        fx_expect(fx_open(fx, &m, i == 1), NEAP_OK, NULL);
        assert_int_equal(m->is_loaded, i == 0);
        memset(&info[i], 0, sizeof info[i]);
        info[i].struct_size = sizeof info[i];
        assert_int_equal(neap_model_describe(m, &info[i]), NEAP_OK);
        assert_string_equal(info[i].weight_formats, "BF16 + MXFP4 experts");
        assert_string_equal(info[i].model_type, "kimi_k3");
        info[i].weight_formats = info[i].model_type = info[i].kernels = NULL;
        assert_string_equal(info[i].family, "kimi_k31");
        info[i].family = NULL;
        neap_model_close(m);
    }
    assert_memory_equal(&info[0], &info[1], sizeof info[0]);
    assert_int_equal(info[0].n_kda_layers, 2);
    assert_int_equal(info[0].n_mla_layers, 1);
    assert_int_equal(info[0].n_index_layers, 1);
    assert_int_equal(info[0].n_mtp_layers, 1);
    assert_int_equal(info[0].n_moe_layers, 2);
    assert_true(info[0].has_int_experts && !info[0].has_int_others);
    /* BF16 caches: latent 512 + 64 and index key 128; F32 KDA state 1 x 128 x 128 and window 3 x 128 x 3 per layer. */
    assert_int_equal(info[0].cache_bytes_per_token, (512 + 64 + 128) * 2);
    assert_int_equal(info[0].state_bytes, 2 * (128 * 128 + 3 * 128 * 3) * 4);
    uint64_t bytes = 0, parameters = 0;
    for (int i = 0; i < fx->n; i++) {
        bytes += fx->bytes[i];
        uint64_t n = fx->bytes[i] * 8 / (uint64_t)neap_dtype_bits(fx->t[i].dtype);
        parameters += ends_with(fx->t[i].name, "weight_packed")  ? 2 * n
                      : ends_with(fx->t[i].name, "weight_scale") ? 0
                                                                 : n;
    }
    assert_int_equal(info[0].file_bytes, bytes);
    assert_int_equal(info[0].parameters, parameters);
    neap_model_info small; /* an older caller's struct */
    memset(&small, 0x55, sizeof small);
    small.struct_size = offsetof(neap_model_info, width);
    neap_model *m = open_golden("kimi-k3-mini-mxfp4");
    assert_int_equal(neap_model_describe(m, &small), NEAP_OK);
    assert_int_equal(small.vocab, 320);
    assert_int_equal(small.width, 0x55555555);
    neap_model_close(m);
    fx_free(fx);
}

/* The inner names of dsa_config are not settled: head count and size may come from the tensors alone. */
static void test_index_from_tensors(void **state) {
    (void)state;
    fixture *fx = fx_load("kimi-k3-mini-mxfp4");
    fx_config(fx, "\"index_n_heads\": 4,", "");
    fx_config(fx, "\"index_head_dim\": 128,", "");
    neap_model *m = fx_must_open(fx);
    assert_int_equal(m->net.layers[1].spec.mla.index.n_heads, 4);
    assert_int_equal(m->net.layers[1].spec.mla.index.head_dim, 128);
    assert_int_equal(m->net.mtp[0].layer.spec.mla.index.n_heads, 4);
    neap_model_close(m);
    int i = fx_find(fx, "language_model.model.layers.1.self_attn.indexer.weights_proj.weight");
    fx_write(fx, i);
    fx_expect(fx_open(fx, &m, true), NEAP_BAD_FILE, "indexer.weights_proj.weight is missing");
    fx_free(fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_errors),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_large_and_threads),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_describe_shapes),
        cmocka_unit_test(test_index_from_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
