/* What a step reads and multiplies, against a count from the headers of the bundled checkpoints: names, shapes and
 * types as stored, sizes from config.json by a search for its keys. Nothing of the model's own structs is used. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "neap.h"

static const char *const models[] = {"golden/models/deepseek-v32-tiny-bfloat16",
                                     "golden/models/deepseek-v32-yarn-bfloat16",
                                     "golden/models/glm-dsa-tiny-bfloat16",
                                     "golden/models/kimi-k3-mini-mxfp4",
                                     "golden/models/kimi-k3-mtp-tiny-bfloat16",
                                     "golden/models/kimi-linear-f32-float32",
                                     "../../models/valley"};
enum { N_MODELS = sizeof models / sizeof *models };

typedef struct counted {
    double fixed, head, experts;                /* bytes */
    double fixed_macs, head_macs, experts_macs; /* of a row; experts: all of them */
    int64_t n_experts, top_k, heads, r, dr, nope, dv, topk, index_heads, index_dim;
    int64_t n_mla, n_own_index, n_kda, kda_heads, kda_dim;
} counted;

/* The number behind the first "key": of the text; 0: none. */
static int64_t number_of(const char *config, const char *key) {
    char quoted[80];
    (void)snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(config, quoted);
    return at ? strtoll(at + strlen(quoted), NULL, 10) : 0;
}

static int64_t either(const char *config, const char *a, const char *b) {
    int64_t x = number_of(config, a);
    return x ? x : number_of(config, b);
}

static bool ends(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

static double up(double x, double to) { return ceil(x / to) * to; }

/* A matrix of n outputs as it lies in memory: 16 outputs together, k padded to what one 32-bit lane takes. */
static double packed(neap_dtype dtype, double n, double k) {
    double rows = up(n, 16);
    if (dtype == NEAP_DTYPE_F32) return rows * k * 4;
    assert_int_equal(dtype, NEAP_DTYPE_BF16);
    return rows * up(k, 2) * 2;
}

static void count_tensor(counted *c, const neap_stored_tensor *t, int64_t n_layers) {
    const char *layer = strstr(t->name, "layers.");
    if (strstr(t->name, "embed_tokens")) return;
    if (layer && strtoll(layer + strlen("layers."), NULL, 10) >= n_layers) return; /* drafts */
    double n = (double)t->shape[0], k = t->rank == 2 ? (double)t->shape[1] : 0, bytes, macs = n * k, count = 1;
    bool is_mix = ends(t->name, "res_proj.weight"); /* multiplied into its norm when loaded */
    for (int32_t i = 0; i < t->rank; i++) count *= (double)t->shape[i];
    if (is_mix || ends(t->name, "weight_scale")) return; /* scales: with their codes */
    if (ends(t->name, "weight_packed")) {
        bytes = up(n, 16) / 16 * ceil(2 * k / 128) * 17 * 64;
        macs = 2 * n * k;
    } else if (ends(t->name, "kv_b_proj.weight")) {
        bytes = (double)c->heads * (up(packed(t->dtype, (double)c->r, (double)c->nope), 64) +
                                    up(packed(t->dtype, (double)c->dv, (double)c->r), 64));
    } else if (t->rank == 2) {
        bytes = up(packed(t->dtype, n, k), 64);
    } else {
        bytes = up(count * 4, 64); /* vectors are float32 in memory */
        macs = 0;
    }
    if (strstr(t->name, "lm_head"))
        c->head += bytes, c->head_macs += macs;
    else if (strstr(t->name, ".experts."))
        c->experts += bytes, c->experts_macs += macs;
    else
        c->fixed += bytes, c->fixed_macs += macs;
    c->n_mla += ends(t->name, "kv_b_proj.weight");
    c->n_kda += ends(t->name, "f_a_proj.weight");
    if (ends(t->name, "q_conv1d.weight")) c->kda_heads = t->shape[0]; /* times their size, for now */
    if (ends(t->name, "f_a_proj.weight")) c->kda_dim = t->shape[0];
    if (ends(t->name, "indexer.wk.weight")) c->n_own_index++, c->index_dim = t->shape[0];
    if (ends(t->name, "indexer.weights_proj.weight")) c->index_heads = t->shape[0];
}

static counted count(const char *path) {
    char name[1100], *config;
    size_t n;
    neap_checkpoint *f;
    counted c = {0};
    (void)snprintf(name, sizeof name, "%s/config.json", path);
    assert_int_equal(neap_file_read(&config, &n, name, 1 << 20), NEAP_OK);
    c.n_experts = either(config, "num_experts", "n_routed_experts");
    c.top_k = either(config, "num_experts_per_token", "num_experts_per_tok");
    c.heads = number_of(config, "num_attention_heads");
    c.r = number_of(config, "kv_lora_rank");
    c.dr = number_of(config, "qk_rope_head_dim");
    c.nope = number_of(config, "qk_nope_head_dim");
    c.dv = number_of(config, "v_head_dim");
    c.topk = number_of(config, "index_topk");
    int64_t n_layers = number_of(config, "num_hidden_layers");
    neap_mem_free(config);
    if (neap_checkpoint_open(&f, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
    for (int64_t i = 0; i < neap_checkpoint_count(f); i++) count_tensor(&c, neap_checkpoint_at(f, i), n_layers);
    neap_checkpoint_close(f);
    if (c.kda_dim) c.kda_heads /= c.kda_dim;
    assert_true(c.fixed > 0 && c.head > 0 && c.experts > 0 && c.n_mla > 0 && c.top_k > 0 && c.n_experts >= c.top_k);
    return c;
}

/* Attention and indexer, row by row. */
static double attention(const counted *c, int64_t depth, int64_t n_tokens) {
    double macs = 0;
    for (int64_t p = depth + 1; p <= depth + n_tokens; p++) {
        bool is_sparse = c->topk && p > c->topk;
        double rows = is_sparse ? (double)c->topk : (double)p;
        macs += (double)c->n_mla * rows * (double)(c->heads * (2 * c->r + c->dr));
        if (is_sparse) macs += (double)(c->n_own_index * p * c->index_heads * c->index_dim);
    }
    return macs;
}

static void same(const char *model, const char *what, double got, double want) {
    if (fabs(got - want) > 1 + 1e-9 * fabs(want)) fail_msg("%s: %s is %.1f, not %.1f", model, what, got, want);
}

static void step(const char *name, const neap_model *m, const counted *c, int32_t n_seqs, int32_t n_tokens,
                 int64_t depth, int32_t n_logits) {
    static const neap_cache_type types[] = {NEAP_CACHE_BF16, NEAP_CACHE_F32};
    for (int i = 0; i < 2; i++) {
        neap_engine_options o;
        neap_engine_options_init(&o);
        o.cache_type = (int32_t)types[i];
        o.index_type = (int32_t)(i ? NEAP_INDEX_F32 : NEAP_INDEX_BF16);
        neap_work w = {.struct_size = sizeof w};
        if (neap_engine_work(m, &o, n_seqs, n_tokens, depth, n_logits, &w) != NEAP_OK)
            fail_msg("%s", neap_last_error());
        double rows = (double)n_seqs * n_tokens, k = (double)c->top_k / (double)c->n_experts;
        double used = 1 - pow(1 - k, rows), value = i ? 4 : 2, last = (double)(depth + n_tokens);
        bool is_sparse = c->topk && last > (double)c->topk;
        same(name, "weight_bytes", (double)w.weight_bytes, c->fixed + c->experts * used + (n_logits ? c->head : 0));
        double latents = (is_sparse ? (double)c->topk : last) + n_tokens, keys = (is_sparse ? last : 0) + n_tokens;
        same(name, "cache_bytes", (double)w.cache_bytes,
             n_seqs * value *
                 ((double)(c->n_mla * (c->r + c->dr)) * latents + (double)(c->n_own_index * c->index_dim) * keys));
        double state = (double)(c->n_kda * c->kda_heads * c->kda_dim); /* heads are multiples of 32 wide */
        same(name, "state_bytes", (double)w.state_bytes, n_seqs * 2 * 4 * state * ((double)c->kda_dim + 3 * 3));
        same(name, "multiply_adds", w.multiply_adds,
             rows * (c->fixed_macs + c->experts_macs * k) + n_logits * c->head_macs +
                 rows * 3 * state * (double)c->kda_dim + n_seqs * attention(c, depth, n_tokens));
    }
}

static void check_models(void **unused) {
    (void)unused;
    for (int i = 0; i < N_MODELS; i++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", NEAP_TEST_DATA, models[i]);
        neap_model_options o;
        neap_model *m;
        counted c = count(path);
        neap_model_options_init(&o);
        o.describe_only = 1;
        if (neap_model_open(&m, path, &o) != NEAP_OK) fail_msg("%s", neap_last_error());
        step(models[i], m, &c, 1, 1, 0, 1);
        step(models[i], m, &c, 1, 1, c.topk ? c.topk - 1 : 7, 1); /* the last row that sees everything */
        step(models[i], m, &c, 1, 1, c.topk ? c.topk : 8, 1);
        step(models[i], m, &c, 1, 1, 1000, 1);
        step(models[i], m, &c, 16, 1, 1000, 16);
        step(models[i], m, &c, 1, 100, 0, 1); /* a prompt */
        step(models[i], m, &c, 1, 33, 5, 0);  /* a chunk across the border of Top-K */
        step(models[i], m, &c, 3, 7, 500, 3);
        neap_model_close(m);
    }
}

static void check_arguments(void **unused) {
    (void)unused;
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", NEAP_TEST_DATA, models[0]);
    neap_model_options o;
    neap_model *m;
    neap_model_options_init(&o);
    o.describe_only = 1;
    assert_int_equal(neap_model_open(&m, path, &o), NEAP_OK);
    neap_work w = {.struct_size = sizeof w};
    assert_int_equal(neap_engine_work(m, NULL, 1, 1, 0, 1, NULL), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(NULL, NULL, 1, 1, 0, 1, &w), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(m, NULL, 0, 1, 0, 1, &w), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(m, NULL, 1, 0, 0, 1, &w), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(m, NULL, 1, 1, -1, 1, &w), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(m, NULL, 1, 1, 0, -1, &w), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_engine_work(m, NULL, 65536, INT32_MAX, INT32_MAX, 1, &w), NEAP_OK);
    assert_true(isfinite(w.multiply_adds) && w.multiply_adds > 0);
    w.struct_size = sizeof w + 1;
    assert_int_equal(neap_engine_work(m, NULL, 1, 1, 0, 1, &w), NEAP_INVALID_ARGUMENT);
    neap_model_close(m);
}

/* Two threads do something, and no argument is let through that would not. */
static void check_limits(void **unused) {
    (void)unused;
    neap_limits l = {.struct_size = sizeof l}, none = {.struct_size = sizeof l + 1};
    assert_int_equal(neap_measure_limits("scalar", 0, 0, &l), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_measure_limits("scalar", -1, 1, &l), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_measure_limits("mmx", 1, 1, &l), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_measure_limits(NULL, 1, 1, &none), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_measure_limits(NULL, 1, 1, NULL), NEAP_INVALID_ARGUMENT);
    uint64_t before = neap_memory_available();
    if (before < 2 * neap_limits_memory()) return;
    if (neap_measure_limits(NULL, 2, 0.01, &l) != NEAP_OK) fail_msg("%s", neap_last_error());
    assert_int_equal(l.n_threads, 2);
    assert_true(l.read_bytes > 1e6 && l.multiply_adds > 1e6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_models),
        cmocka_unit_test(check_arguments),
        cmocka_unit_test(check_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
