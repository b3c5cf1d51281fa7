/* config.json: every field of the table with absent, null, wrong type, minimum - 1, maximum + 1 and 0, in every
 * family, through every accepted spelling; then the rules over several fields one by one; then the published sizes
 * of the released models from their own configs. Base configs are lists of (path, JSON text), so that one value can be
 * replaced at a time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "models/config.h"
#include "models/weights.h"

typedef struct entry {
    const char *path, *json;
} entry;

/* clang-format off */
static const entry kimi_base[] = {
    {"vocab_size", "64"}, {"hidden_size", "32"}, {"num_hidden_layers", "4"}, {"max_position_embeddings", "128"},
    {"rms_norm_eps", "1e-5"}, {"hidden_act", "\"situ\""}, {"activation_situ_beta", "4.0"}, {"num_attention_heads", "2"},
    {"num_key_value_heads", "2"}, {"q_lora_rank", "16"}, {"kv_lora_rank", "16"}, {"qk_nope_head_dim", "8"},
    {"qk_rope_head_dim", "4"}, {"v_head_dim", "8"}, {"mla_use_nope", "true"}, {"linear_attn_config.num_heads", "2"},
    {"linear_attn_config.head_dim", "8"}, {"linear_attn_config.short_conv_kernel_size", "4"},
    {"linear_attn_config.kda_layers", "[1, 3, 4]"}, {"linear_attn_config.full_attn_layers", "[2]"},
    {"intermediate_size", "32"}, {"moe_intermediate_size", "16"}, {"num_experts", "8"}, {"num_experts_per_token", "2"},
    {"num_shared_experts", "1"}, {"first_k_dense_replace", "1"}, {NULL, NULL}};
static const entry k3_extra[] = {{"attn_res_block_size", "2"}, {"mla_use_output_gate", "true"},
                                 {"routed_expert_hidden_size", "16"}, {"latent_moe_use_norm", "true"},
                                 {"linear_attn_config.use_full_rank_gate", "true"},
                                 {"linear_attn_config.gate_lower_bound", "-5.0"}, {NULL, NULL}};
static const entry k31_extra[] = {{"index_topk", "4"}, {"index_n_heads", "2"}, {"index_head_dim", "8"}, {NULL, NULL}};
static const entry dsa_base[] = {
    {"vocab_size", "64"}, {"hidden_size", "32"}, {"num_hidden_layers", "4"}, {"max_position_embeddings", "128"},
    {"rms_norm_eps", "1e-5"}, {"hidden_act", "\"silu\""}, {"num_attention_heads", "2"}, {"q_lora_rank", "16"},
    {"kv_lora_rank", "16"}, {"qk_nope_head_dim", "8"}, {"qk_rope_head_dim", "4"}, {"v_head_dim", "8"},
    {"rope_theta", "10000"}, {"intermediate_size", "32"}, {"moe_intermediate_size", "16"}, {"n_routed_experts", "8"},
    {"num_experts_per_tok", "2"}, {"n_shared_experts", "1"}, {"first_k_dense_replace", "1"}, {"index_topk", "4"},
    {"index_n_heads", "2"}, {"index_head_dim", "8"}, {NULL, NULL}};
/* clang-format on */

static const char *const type_names[] = {"kimi_linear", "kimi_k3", "kimi_k31", "deepseek_v32", "glm_moe_dsa"};
enum { N_FAMILIES = 5, ENTRIES_MAX = 64, TEXT_BYTES = 1 << 16 };

/* A base config with replaced, added (not in the base) or removed (json NULL) entries. */
typedef struct config {
    entry e[ENTRIES_MAX];
    int n;
    neap_family family;
    bool is_flat;
    const char *outside; /* more members of the outermost object */
} config;

static void put(config *c, const char *path, const char *json) {
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->e[i].path, path) == 0) {
            c->e[i].json = json;
            return;
        }
    assert_true(c->n < ENTRIES_MAX);
    c->e[c->n++] = (entry){path, json};
}

static void put_all(config *c, const entry *list) {
    for (; list->path != NULL; list++) put(c, list->path, list->json);
}

static config base(neap_family f) {
    config c;
    memset(&c, 0, sizeof c);
    c.family = f;
    c.is_flat = f != NEAP_FAMILY_KIMI_K3 && f != NEAP_FAMILY_KIMI_K31;
    bool is_kimi = f <= NEAP_FAMILY_KIMI_K31;
    put_all(&c, is_kimi ? kimi_base : dsa_base);
    if (f == NEAP_FAMILY_KIMI_LINEAR) put(&c, "hidden_act", "\"silu\"");
    if (f == NEAP_FAMILY_KIMI_K3 || f == NEAP_FAMILY_KIMI_K31) put_all(&c, k3_extra);
    if (f == NEAP_FAMILY_KIMI_K31) put_all(&c, k31_extra);
    return c;
}

/* "a.b" goes into object a; members of one object are gathered. */
static void print_config(const config *c, char *text) {
    size_t n = 0;
    bool is_done[ENTRIES_MAX] = {false};
#define ADD(...) n += (size_t)snprintf(text + n, TEXT_BYTES - n, __VA_ARGS__)
    ADD("{\"model_type\": \"%s\"%s%s", type_names[c->family], c->outside != NULL ? ", " : "",
        c->outside != NULL ? c->outside : "");
    if (!c->is_flat) ADD(", \"text_config\": {\"x\": 0");
    for (int i = 0; i < c->n; i++) {
        if (c->e[i].json == NULL || is_done[i]) continue;
        const char *dot = strchr(c->e[i].path, '.');
        if (dot == NULL) {
            ADD(", \"%s\": %s", c->e[i].path, c->e[i].json);
            continue;
        }
        size_t k = (size_t)(dot - c->e[i].path) + 1;
        ADD(", \"%.*s\": {\"x\": 0", (int)(k - 1), c->e[i].path);
        for (int j = i; j < c->n; j++) {
            if (c->e[j].json == NULL || strncmp(c->e[j].path, c->e[i].path, k) != 0) continue;
            ADD(", \"%s\": %s", c->e[j].path + k, c->e[j].json);
            is_done[j] = true;
        }
        ADD("}");
    }
    ADD("%s}", c->is_flat ? "" : "}");
#undef ADD
    assert_true(n < TEXT_BYTES);
}

static int n_logged;
static char logged[4096];
static void log_line(void *user, neap_log_level level, const char *text) {
    (void)user;
    (void)level;
    n_logged++;
    (void)snprintf(logged, sizeof logged, "%s", text);
}

static neap_model *model_new(void) {
    neap_arena *a = NULL;
    assert_int_equal(neap_arena_create(&a, "test"), NEAP_OK);
    void *p = NULL;
    assert_int_equal(neap_arena_alloc(a, sizeof(neap_model), &p), NEAP_OK);
    neap_model *m = p;
    m->arena = a;
    m->dir = "DIR";
    m->log.fn = log_line;
    return m;
}

static neap_status parse_text(neap_model **m, const char *text) {
    *m = model_new();
    neap_status s = neap_config_parse(*m, text, strlen(text), "DIR/config.json", 0);
    if (s != NEAP_OK) assert_non_null(strstr(neap_last_error(), "DIR/config.json"));
    return s;
}

static neap_status parse(neap_model **m, const config *c) {
    static char text[TEXT_BYTES];
    print_config(c, text);
    return parse_text(m, text);
}

static void drop(neap_model *m) { neap_arena_destroy(m->arena); }

/* The status of a config, and whether the message holds `part` (when it fails). */
static void expect(const config *c, neap_status wanted, const char *part) {
    neap_model *m = NULL;
    neap_status s = parse(&m, c);
    if (s != wanted || (s != NEAP_OK && part != NULL && strstr(neap_last_error(), part) == NULL))
        fail_msg("family %s: got %s (%s), wanted %s with '%s'", type_names[c->family], neap_status_name(s),
                 s == NEAP_OK ? "" : neap_last_error(), neap_status_name(wanted), part != NULL ? part : "");
    drop(m);
}

static void expect_set(neap_family f, const char *path, const char *json, neap_status wanted, const char *part) {
    config c = base(f);
    put(&c, path, json);
    expect(&c, wanted, part);
}

/* ---------------------------------------------------------------- the table ------------------- */

static const char *leaf(const char *path) {
    const char *dot = strchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

/* Fails, and the message names the field. */
static void refuse(neap_family f, const neap_config_field *field, const char *path, const char *json) {
    config c = base(f);
    if (path != field->paths[0]) put(&c, field->paths[0], NULL);
    put(&c, path, json);
    expect(&c, NEAP_BAD_FILE, leaf(path));
}

/* May be accepted or refused by a rule, but then with a message; never crashes. */
static void survive(neap_family f, const neap_config_field *field, const char *path, const char *json, bool must_name) {
    config c = base(f);
    for (int i = 0; i < NEAP_FIELD_PATHS && field->paths[i] != NULL; i++)
        if (json == NULL) put(&c, field->paths[i], NULL); /* the base may use another spelling */
    if (path != field->paths[0]) put(&c, field->paths[0], NULL);
    put(&c, path, json);
    neap_model *m = NULL;
    neap_status s = parse(&m, &c);
    assert_true(s == NEAP_OK || s == NEAP_BAD_FILE || s == NEAP_UNSUPPORTED);
    if (s != NEAP_OK && must_name && strstr(neap_last_error(), leaf(field->paths[0])) == NULL)
        fail_msg("%s %s: '%s' does not name the field", type_names[f], field->paths[0], neap_last_error());
    drop(m);
}

static const char *wrong_type(neap_field_type t) {
    switch (t) {
    case NEAP_FIELD_INT: return "4.0";
    case NEAP_FIELD_REAL: return "\"1\"";
    case NEAP_FIELD_BOOL:
    case NEAP_FIELD_SWITCH: return "1";
    case NEAP_FIELD_TEXT: return "[\"silu\"]";
    case NEAP_FIELD_INTS: return "[1.5]";
    case NEAP_FIELD_TEXTS: return "[1]";
    }
    return "";
}

static void try_ranges(neap_family f, const neap_config_field *field, const char *path) {
    char json[64];
    if (field->type == NEAP_FIELD_INT || field->type == NEAP_FIELD_INTS) {
        const char *format = field->type == NEAP_FIELD_INT ? "%lld" : "[%lld]";
        (void)snprintf(json, sizeof json, format, (long long)field->min - 1);
        refuse(f, field, path, json);
        (void)snprintf(json, sizeof json, format, (long long)field->max + 1);
        refuse(f, field, path, json);
        (void)snprintf(json, sizeof json, format, 9223372036854775807LL);
        refuse(f, field, path, json);
        (void)snprintf(json, sizeof json, format, (long long)field->min);
        survive(f, field, path, json, false);
        (void)snprintf(json, sizeof json, format, (long long)field->max);
        survive(f, field, path, json, false);
        (void)snprintf(json, sizeof json, format, 0LL);
        if (field->min > 0) refuse(f, field, path, json);
    }
    if (field->type == NEAP_FIELD_REAL) {
        (void)snprintf(json, sizeof json, "%.17g", field->min > 0 ? field->min * 0.5 : field->min - 1);
        refuse(f, field, path, json);
        (void)snprintf(json, sizeof json, "%.17g", field->max > 0 ? field->max * 2 : 1.0);
        refuse(f, field, path, json);
        if (field->min > 0) refuse(f, field, path, "0");
    }
    survive(f, field, path, "0", false);
}

static void test_every_field(void **state) {
    (void)state;
    size_t n = 0;
    const neap_config_field *fields = neap_config_fields(&n);
    assert_true(n > 50);
    for (size_t i = 0; i < n; i++) {
        const neap_config_field *field = &fields[i];
        for (int f = 0; f < N_FAMILIES; f++) {
            if ((field->families & (1u << f)) == 0) {
                expect_set((neap_family)f, field->paths[0], "\"any\"", NEAP_OK, NULL); /* not looked at */
                continue;
            }
            bool is_required = (field->required & (1u << f)) != 0;
            survive((neap_family)f, field, field->paths[0], NULL, true);
            if (is_required) {
                config c = base((neap_family)f);
                for (int p = 0; p < NEAP_FIELD_PATHS && field->paths[p] != NULL; p++) put(&c, field->paths[p], NULL);
                expect(&c, NEAP_BAD_FILE, leaf(field->paths[0]));
            }
            for (int p = 0; p < NEAP_FIELD_PATHS && field->paths[p] != NULL; p++) {
                if (field->may_be_null)
                    survive((neap_family)f, field, field->paths[p], "null", p == 0);
                else
                    refuse((neap_family)f, field, field->paths[p], "null");
                refuse((neap_family)f, field, field->paths[p], wrong_type(field->type));
                refuse((neap_family)f, field, field->paths[p], "{}");
                try_ranges((neap_family)f, field, field->paths[p]);
            }
        }
    }
}

static void test_bases(void **state) {
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) {
        config c = base((neap_family)f);
        neap_model *m = NULL;
        if (parse(&m, &c) != NEAP_OK) fail_msg("%s: %s", type_names[f], neap_last_error());
        assert_int_equal(m->family, f);
        assert_int_equal(m->context_max, 128);
        assert_string_equal(m->model_type, type_names[f]);
        drop(m);
    }
}

/* ---------------------------------------------------------------- rules ----------------------- */

enum {
    KL = NEAP_FAMILY_KIMI_LINEAR,
    K3 = NEAP_FAMILY_KIMI_K3,
    K31 = NEAP_FAMILY_KIMI_K31,
    DS = NEAP_FAMILY_DEEPSEEK_V32,
    GLM = NEAP_FAMILY_GLM_MOE_DSA
};

/* One group of 8-bit integers: its weights, its activations. */
#define CT_INT8(weights, input)                                                                              \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": {\"g\": {" \
    "\"targets\": [\"Linear\"], \"weights\": {" weights "}, \"input_activations\": " input "}}}"

typedef struct rule_case {
    int family;
    const char *path, *json;
    neap_status status;
    const char *part;
} rule_case;

/* clang-format off */
static const rule_case rule_cases[] = {
    {KL, "linear_attn_config.kda_layers", "[1, 3]", NEAP_BAD_FILE, "num_hidden_layers"},
    {KL, "linear_attn_config.kda_layers", "[1, 3, 3]", NEAP_BAD_FILE, "twice"},
    {KL, "linear_attn_config.kda_layers", "[1, 2, 3]", NEAP_BAD_FILE, "twice"},
    {KL, "linear_attn_config.kda_layers", "[1, 3, 5]", NEAP_BAD_FILE, "layer 5"},
    {KL, "linear_attn_config.kda_layers", "[0, 1, 3]", NEAP_BAD_FILE, "kda_layers[0]"},
    {KL, "linear_attn_config.kda_layers", "[1, 3, 4, 2]", NEAP_BAD_FILE, "num_hidden_layers"},
    {KL, "linear_attn_config.kda_layers", NULL, NEAP_BAD_FILE, "kda_layers"},
    {KL, "linear_attn_config", "[]", NEAP_BAD_FILE, "linear_attn_config"},
    {KL, "layer_types", "[\"linear_attention\", \"full_attention\", \"linear_attention\", \"linear_attention\"]",
     NEAP_OK, NULL},
    {KL, "layer_types", "[\"full_attention\", \"full_attention\", \"linear_attention\", \"linear_attention\"]",
     NEAP_BAD_FILE,
     "layer_types[0]"},
    {KL, "layer_types", "[\"linear_attention\"]", NEAP_BAD_FILE, "layer_types"},
    {KL, "layer_types", "[\"sliding\", \"full_attention\", \"linear_attention\", \"linear_attention\"]",
     NEAP_BAD_FILE, "sliding"},
    {KL, "num_key_value_heads", "1", NEAP_BAD_FILE, "num_key_value_heads"},
    {KL, "num_experts_per_token", "9", NEAP_BAD_FILE, "num_experts"},
    {KL, "num_experts_per_tok", "3", NEAP_BAD_FILE, "disagree"},
    {KL, "num_experts_per_tok", "2", NEAP_OK, NULL},
    {KL, "n_routed_experts", "8", NEAP_OK, NULL},
    {KL, "num_local_experts", "16", NEAP_BAD_FILE, "disagree"},
    {KL, "model_max_length", "129", NEAP_BAD_FILE, "disagree"},
    {KL, "num_shared_experts", "9", NEAP_BAD_FILE, "num_shared_experts"},
    {KL, "num_expert_group", "3", NEAP_BAD_FILE, "groups"},
    {KL, "num_expert_group", "8", NEAP_BAD_FILE, "group"},
    {KL, "num_expert_group", "4", NEAP_OK, NULL},
    {KL, "topk_group", "2", NEAP_BAD_FILE, "topk_group"},
    {KL, "latent_moe_use_norm", "true", NEAP_BAD_FILE, "latent_moe_use_norm"},
    {KL, "mla_use_nope", "false", NEAP_UNSUPPORTED, "mla_use_nope"},
    {KL, "attention_bias", "true", NEAP_UNSUPPORTED, "attention_bias"},
    {GLM, "attention_bias", "true", NEAP_UNSUPPORTED, "attention_bias"},
    {KL, "mlp_bias", "true", NEAP_UNSUPPORTED, "mlp_bias"},
    {KL, "hidden_act", "\"gelu\"", NEAP_UNSUPPORTED, "gelu"},
    {DS, "hidden_act", "\"situ\"", NEAP_UNSUPPORTED, "situ"},
    {K3, "hidden_act", NULL, NEAP_BAD_FILE, "hidden_act"},
    {K31, "index_kpool", "4", NEAP_UNSUPPORTED, "index_kpool"},
    {K31, "index_kpool", "1", NEAP_OK, NULL},
    {DS, "topk_method", "\"greedy\"", NEAP_UNSUPPORTED, "greedy"},
    {DS, "scoring_func", "\"softmax\"", NEAP_OK, NULL},
    {DS, "scoring_func", "\"relu\"", NEAP_UNSUPPORTED, "relu"},
    {K31, "index_topk", NULL, NEAP_BAD_FILE, "top-k"},
    {K31, "index_n_heads", NULL, NEAP_OK, NULL},
    {K31, "dsa_config.top_k", "4", NEAP_OK, NULL},
    {K31, "dsa_config.top_k", "5", NEAP_BAD_FILE, "disagree"},
    {K31, "top_k", "50", NEAP_OK, NULL},
    {K31, "dsa_config.some_layers", "[2]", NEAP_OK, NULL},
    {K31, "dsa_config.some_layers", "[1]", NEAP_BAD_FILE, "layer 1"},
    {K31, "dsa_config.some_layers", "[2, 2]", NEAP_BAD_FILE, "dsa_config"},
    {K31, "dsa_config.some_layers", "[]", NEAP_BAD_FILE, "dsa_config"},
    {K31, "dsa_config", "7", NEAP_BAD_FILE, "dsa_config"},
    {K31, "q_lora_rank", "null", NEAP_BAD_FILE, "q_lora_rank"},
    {K3, "index_topk", "8", NEAP_OK, NULL},
    {K3, "index_n_heads", "8", NEAP_BAD_FILE, "top-k"},
    {K3, "dsa_config.n_heads", "8", NEAP_BAD_FILE, "top-k"},
    {K3, "activation_situ_linear_beta", "null", NEAP_OK, NULL},
    {K3, "activation_situ_linear_beta", "0", NEAP_BAD_FILE, "linear_beta"},
    {K3, "linear_attn_config.gate_lower_bound", "0", NEAP_BAD_FILE, "gate_lower_bound"},
    {K3, "linear_attn_config.gate_lower_bound", "5", NEAP_BAD_FILE, "gate_lower_bound"},
    {K3, "linear_attn_config.gate_lower_bound", "null", NEAP_OK, NULL},
    {K3, "routed_expert_hidden_size", "null", NEAP_BAD_FILE, "routed_expert_hidden_size"},
    {DS, "q_lora_rank", "null", NEAP_BAD_FILE, "q_lora_rank"},
    {DS, "qk_rope_head_dim", "5", NEAP_BAD_FILE, "qk_rope_head_dim"},
    {DS, "qk_rope_head_dim", "16", NEAP_BAD_FILE, "index_head_dim"},
    {DS, "rope_scaling.type", "\"linear\"", NEAP_UNSUPPORTED, "linear"},
    {DS, "rope_parameters.rope_type", "\"llama3\"", NEAP_UNSUPPORTED, "llama3"},
    {DS, "rope_scaling.type", "\"yarn\"", NEAP_BAD_FILE, "factor"},
    {DS, "rope_parameters.rope_theta", "10001", NEAP_BAD_FILE, "disagree"},
    {DS, "rope_theta", "0", NEAP_BAD_FILE, "rope_theta"},
    {DS, "partial_rotary_factor", "0.5", NEAP_UNSUPPORTED, "partial_rotary_factor"},
    {GLM, "indexer_types", "[\"full\", \"shared\", \"full\", \"full\"]", NEAP_OK, NULL},
    {GLM, "indexer_types", "[\"shared\", \"full\", \"full\", \"full\"]", NEAP_BAD_FILE, "first MLA layer"},
    {GLM, "indexer_types", "[\"full\"]", NEAP_BAD_FILE, "indexer_types"},
    {GLM, "indexer_types", "[\"full\", \"some\", \"full\", \"full\"]", NEAP_BAD_FILE, "some"},
    {GLM, "index_topk_pattern", "\"FSSF\"", NEAP_OK, NULL},
    {GLM, "index_topk_pattern", "\"FSS\"", NEAP_BAD_FILE, "index_topk_pattern"},
    {GLM, "index_topk_pattern", "\"FSXF\"", NEAP_BAD_FILE, "index_topk_pattern"},
    {GLM, "index_topk_pattern", "\"SFFF\"", NEAP_BAD_FILE, "first MLA layer"},
    {GLM, "num_nextn_predict_layers", "2", NEAP_OK, NULL},
    {K3, "num_nextn_predict_layers", "17", NEAP_BAD_FILE, "num_nextn_predict_layers"},
    {KL, "mlp_layer_types", "[\"dense\", \"sparse\", \"sparse\", \"sparse\"]", NEAP_OK, NULL},
    {KL, "mlp_layer_types", "[\"sparse\", \"sparse\", \"sparse\", \"sparse\"]", NEAP_BAD_FILE, "mlp_layer_types[0]"},
    {KL, "mlp_layer_types", "[\"dense\"]", NEAP_BAD_FILE, "mlp_layer_types"},
    {KL, "moe_layer_freq", "[1]", NEAP_BAD_FILE, "moe_layer_freq"},
    /* quantisation: case I5, one line that names what is not supported */
    {KL, "quantization_config", "null", NEAP_OK, NULL},
    {KL, "quantization_config", "[]", NEAP_BAD_FILE, "quantization_config"},
    {KL, "quantization_config.quant_method", "\"gptq\"", NEAP_UNSUPPORTED, "gptq"},
    {KL, "quantization_config.quant_method", "\"mxfp4\"", NEAP_UNSUPPORTED, "'mxfp4'"},
    {KL, "quantization_config.quant_method", "7", NEAP_UNSUPPORTED, "quant_method"},
    {KL, "quantization_config.quant_method", "\"compressed-tensors\"", NEAP_UNSUPPORTED, "format"},
    {KL, "quantization_config.quant_method", "\"fp8\"", NEAP_UNSUPPORTED, "weight_block_size"},
    {KL, "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", NEAP_OK, NULL},
    {KL, "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}", NEAP_UNSUPPORTED,
     "128"},
    {KL, "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"fmt\": \"e5m2\"}",
     NEAP_UNSUPPORTED, "e5m2"},
    {KL, "quantization_config",
     "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"activation_scheme\": \"static\"}",
      NEAP_UNSUPPORTED,
     "static"},
    {K3, "quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\"}",
     NEAP_OK, NULL},
    {K3, "quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"}",
     NEAP_UNSUPPORTED, "nvfp4-pack-quantized"},
    {K3, "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", "
     "\"config_groups\": {\"g\": {\"format\": \"mxfp4-pack-quantized\"}}}", NEAP_OK, NULL},
    {K3, "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"mixed\", "
     "\"config_groups\": {\"g\": {\"format\": \"pack-quantized\"}}}",
     NEAP_UNSUPPORTED, "'pack-quantized'"},
    {K3, "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"format\": \"mxfp4-pack-quantized\", "
     "\"weights\": {\"group_size\": 16}}}}",
     NEAP_UNSUPPORTED, "group_size 16"},
    {K3, "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"format\": \"mxfp4-pack-quantized\", "
     "\"weights\": {\"num_bits\": 8}}}}",
     NEAP_UNSUPPORTED, "num_bits"},
    {K3, "quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\"}", NEAP_OK,
     NULL},
    {K3, "quantization_config", CT_INT8("\"type\": \"int\", \"num_bits\": 8, \"strategy\": \"channel\", "
     "\"group_size\": null, \"symmetric\": true", "{\"dynamic\": true, \"num_bits\": 8}"), NEAP_OK, NULL},
    {K3, "quantization_config", CT_INT8("\"num_bits\": 4", "null"), NEAP_UNSUPPORTED, "num_bits 4"},
    {K3, "quantization_config", CT_INT8("\"type\": \"float\"", "null"), NEAP_UNSUPPORTED, "type 'float'"},
    {K3, "quantization_config", CT_INT8("\"type\": 3", "null"), NEAP_UNSUPPORTED, "type '?'"},
    {K3, "quantization_config", CT_INT8("\"symmetric\": false", "null"), NEAP_UNSUPPORTED, "not symmetric"},
    {K3, "quantization_config", CT_INT8("\"strategy\": \"tensor\"", "null"), NEAP_UNSUPPORTED, "'tensor'"},
    {K3, "quantization_config", CT_INT8("\"num_bits\": 8", "{\"dynamic\": false}"), NEAP_UNSUPPORTED,
     "static input_activations"},
    {K3, "quantization_config",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\", \"config_groups\": {"
     "\"a\": {\"format\": \"mxfp4-pack-quantized\", \"weights\": {\"num_bits\": 4, \"group_size\": 32}}, "
     "\"b\": {\"format\": \"int-quantized\", \"weights\": {\"num_bits\": 8, \"group_size\": 128}}}}", NEAP_OK, NULL},
    {K3, "quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"mixed-precision\"}",
     NEAP_UNSUPPORTED, "mixed-precision"},
};
/* clang-format on */

static void test_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rule_cases / sizeof rule_cases[0]; i++) {
        const rule_case *r = &rule_cases[i];
        expect_set((neap_family)r->family, r->path, r->json, r->status, r->part);
    }
    config c = base(NEAP_FAMILY_KIMI_LINEAR); /* three groups of two, one kept: four cannot be chosen */
    put(&c, "num_expert_group", "4");
    put(&c, "num_experts_per_token", "3");
    expect(&c, NEAP_BAD_FILE, "chosen groups");
    put(&c, "use_grouped_topk", "false");
    expect(&c, NEAP_OK, NULL);
    c = base(NEAP_FAMILY_KIMI_K3);
    c.outside = "\"tie_word_embeddings\": true";
    expect(&c, NEAP_OK, NULL);
    put(&c, "tie_word_embeddings", "false");
    expect(&c, NEAP_BAD_FILE, "tie_word_embeddings");
    c = base(NEAP_FAMILY_GLM_MOE_DSA); /* frequency without an early full layer */
    put(&c, "index_topk_freq", "4");
    put(&c, "index_skip_topk_offset", "0");
    expect(&c, NEAP_BAD_FILE, "first MLA layer");
}

static void expect_text(const char *text, neap_status wanted, const char *part) {
    neap_model *m = NULL;
    neap_status s = parse_text(&m, text);
    if (s != wanted || strstr(neap_last_error(), part) == NULL)
        fail_msg("%.80s: got %s (%s), wanted '%s'", text, neap_status_name(s), neap_last_error(), part);
    drop(m);
}

static void test_model_type(void **state) {
    (void)state;
    expect_text("{\"model_type\": \"llama\"}", NEAP_UNSUPPORTED,
                "'llama' is not supported (supported: kimi_linear, kimi_k3, kimi_k31, deepseek_v32, glm_moe_dsa)");
    expect_text("{}", NEAP_BAD_FILE, "model_type is missing");
    expect_text("{\"model_type\": 7}", NEAP_BAD_FILE, "model_type must be a string");
    expect_text("[]", NEAP_BAD_FILE, "object");
    expect_text("{\"model_type\": \"kimi_k3\", \"text_config\": 3}", NEAP_BAD_FILE, "text_config");
    expect_text("{\"model_type\": \"kimi_k3\", \"text_config\": {\"model_type\": \"llama\"}}", NEAP_UNSUPPORTED,
                "llama");
    expect_text("{\"architectures\": [\"KimiLinearForCausalLM\"]}", NEAP_BAD_FILE, "vocab_size is missing");
    expect_text("{\"architectures\": [\"Other\"]}", NEAP_BAD_FILE, "model_type is missing");
    expect_text("{\"model_type\": \"kimi_k3\", \"architectures\": [7]}", NEAP_BAD_FILE, "vocab_size is missing");
}

static neap_model *open_base(config *c) {
    neap_model *m = NULL;
    if (parse(&m, c) != NEAP_OK) fail_msg("%s", neap_last_error());
    return m;
}

static void test_families(void **state) {
    (void)state;
    config c = base(NEAP_FAMILY_KIMI_K3); /* the plain text form */
    c.family = NEAP_FAMILY_KIMI_LINEAR;
    c.is_flat = true;
    neap_model *m = open_base(&c);
    assert_int_equal(m->family, NEAP_FAMILY_KIMI_K3);
    assert_string_equal(m->model_type, "kimi_linear");
    assert_int_equal(m->net.attnres_block, 2);
    drop(m);
    c = base(NEAP_FAMILY_KIMI_K3); /* an indexer makes it K3.1 */
    put(&c, "index_topk", "4");
    m = open_base(&c);
    assert_int_equal(m->family, NEAP_FAMILY_KIMI_K31);
    assert_int_equal(m->net.layers[1].spec.mla.index.topk, 4);
    assert_int_equal(m->net.layers[1].spec.mla.index.n_heads, 0); /* to be taken from the tensors */
    drop(m);
    c = base(NEAP_FAMILY_KIMI_K3);
    c.outside = "\"architectures\": [\"KimiK31ForConditionalGeneration\"]";
    expect(&c, NEAP_BAD_FILE, "top-k");
    c = base(NEAP_FAMILY_KIMI_K31);
    put(&c, "dsa_config.num_heads", "2");
    put(&c, "dsa_config.topk", "4");
    put(&c, "dsa_config.head_dim", "8");
    for (int i = 0; k31_extra[i].path != NULL; i++) put(&c, k31_extra[i].path, NULL);
    m = open_base(&c);
    assert_int_equal(m->net.layers[1].spec.mla.index.n_heads, 2);
    assert_int_equal(m->net.layers[1].spec.mla.index.head_dim, 8);
    assert_int_equal(m->net.layers[1].spec.mla.index.rope, NEAP_ROPE_NONE);
    assert_int_equal(m->net.layers[0].mixer, NEAP_MIXER_KDA);
    drop(m);
}

static void test_auto_map(void **state) {
    (void)state;
    config c = base(NEAP_FAMILY_KIMI_LINEAR);
    c.outside = "\"auto_map\": {\"AutoModel\": \"evil.Model\"}";
    n_logged = 0;
    expect(&c, NEAP_OK, NULL);
    assert_int_equal(n_logged, 1);
    assert_non_null(strstr(logged, "auto_map"));
}

static void assert_close(double a, double b, double relative) {
    if (!(fabs(a - b) <= relative * fabs(b))) fail_msg("%.9g, expected %.9g", a, b);
}

static void test_latent_eps(void **state) {
    (void)state;
    static const struct {
        neap_family f;
        int layer;
        double eps;
    } wanted[] = {{NEAP_FAMILY_KIMI_LINEAR, 1, 1e-6},
                  {NEAP_FAMILY_KIMI_K3, 1, 1e-5},
                  {NEAP_FAMILY_KIMI_K31, 1, 1e-5},
                  {NEAP_FAMILY_DEEPSEEK_V32, 0, 1e-6},
                  {NEAP_FAMILY_GLM_MOE_DSA, 0, 1e-6}};
    static char text[TEXT_BYTES];
    for (size_t i = 0; i < 5; i++) {
        config c = base(wanted[i].f);
        neap_model *m = open_base(&c);
        assert_close(m->net.layers[wanted[i].layer].spec.mla.latent_eps, wanted[i].eps, 1e-6);
        drop(m);
        print_config(&c, text);
        m = model_new();
        assert_int_equal(neap_config_parse(m, text, strlen(text), "c", 3e-4f), NEAP_OK);
        assert_close(m->net.layers[wanted[i].layer].spec.mla.latent_eps, 3e-4, 1e-6);
        assert_int_equal(neap_config_parse(m, text, strlen(text), "c", -1.0f), NEAP_INVALID_ARGUMENT);
        drop(m);
    }
}

static void test_gates_and_act(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) { /* all four combinations of gate rank and gate form */
        config c = base(NEAP_FAMILY_KIMI_K3);
        put(&c, "linear_attn_config.use_full_rank_gate", i & 1 ? "true" : "false");
        put(&c, "linear_attn_config.gate_lower_bound", i & 2 ? "-5.0" : "null");
        neap_model *m = open_base(&c);
        const neap_kda_spec *s = &m->net.layers[0].spec.kda;
        assert_int_equal(s->is_gate_full_rank, i & 1);
        assert_int_equal(s->is_bounded, i >> 1);
        if (i & 2) assert_close(s->lower_bound, -5, 0);
        drop(m);
    }
    static const struct {
        const char *beta, *linear;
        float b, l;
    } acts[] = {{"4.0", "25.0", 4, 25}, {"null", "25", 1, 25}, {"0", "null", 1, 0}, {NULL, NULL, 1, 0}};
    for (size_t i = 0; i < 4; i++) {
        config c = base(NEAP_FAMILY_KIMI_K3);
        put(&c, "activation_situ_beta", acts[i].beta);
        put(&c, "activation_situ_linear_beta", acts[i].linear);
        neap_model *m = open_base(&c);
        assert_int_equal(m->net.act.kind, NEAP_ACT_SITU);
        assert_true(m->net.act.beta >= acts[i].b && m->net.act.beta <= acts[i].b);
        assert_true(m->net.act.linear_beta >= acts[i].l && m->net.act.linear_beta <= acts[i].l);
        drop(m);
    }
}

static void test_moe_layers(void **state) {
    (void)state;
    config c = base(NEAP_FAMILY_KIMI_LINEAR);
    put(&c, "first_k_dense_replace", NULL);
    neap_model *m = open_base(&c);
    for (int i = 0; i < 4; i++) assert_true(m->net.layers[i].is_moe); /* Kimi: none dense when absent */
    drop(m);
    put(&c, "moe_layer_freq", "2");
    m = open_base(&c);
    for (int i = 0; i < 4; i++) assert_int_equal(m->net.layers[i].is_moe, i % 2 == 0);
    drop(m);
    c = base(NEAP_FAMILY_DEEPSEEK_V32);
    put(&c, "first_k_dense_replace", NULL);
    m = open_base(&c);
    for (int i = 0; i < 4; i++) assert_int_equal(m->net.layers[i].is_moe, i >= 3);
    drop(m);
    c = base(NEAP_FAMILY_KIMI_LINEAR); /* all dense: the expert fields may be missing */
    put(&c, "first_k_dense_replace", "4");
    put(&c, "num_experts", "null");
    put(&c, "num_experts_per_token", NULL);
    put(&c, "moe_intermediate_size", NULL);
    expect(&c, NEAP_OK, NULL);
}

/* ---------------------------------------------------------------- released configs ------------ */

static neap_model *open_released(const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/configs/%s", NEAP_TEST_DATA, name);
    char *text = NULL;
    size_t n = 0;
    if (neap_file_read(&text, &n, path, 1 << 20) != NEAP_OK) fail_msg("%s", neap_last_error());
    neap_model *m = model_new();
    if (neap_config_parse(m, text, n, path, 0) != NEAP_OK) fail_msg("%s", neap_last_error());
    neap_mem_free(text);
    return m;
}

typedef struct totals {
    neap_weight_tally tally;
    const neap_model *m;
    uint64_t experts;
    int64_t n;
} totals;

static bool add_up(void *user, const neap_want *want) {
    totals *t = user;
    t->n++;
    neap_weights_tally(&t->tally, want, &t->m->net, t->m->is_tied);
    if (want->expert >= 0) t->experts += (uint64_t)(want->n * want->k);
    return true;
}

static totals count(neap_model *m) {
    totals t;
    memset(&t, 0, sizeof t);
    t.m = m;
    neap_weight_names names = {"model.", "model.layers.", "lm_head"};
    assert_true(neap_weights_visit(m, &names, add_up, &t));
    return t;
}

/* The formulas of the sizes specification, section 2, evaluated outside; they agree with the published totals. */
static void test_published_sizes(void **state) {
    (void)state;
    neap_model *m = open_released("kimi_linear_48b.json");
    totals t = count(m);
    assert_int_equal(t.tally.parameters, 49122681728); /* 49.12 B */
    assert_int_equal(t.tally.active, 3106972544);      /* 3.106 B */
    assert_int_equal(t.experts, 26LL * 256 * 7077888);
    assert_int_equal(m->context_max, 1048576);
    drop(m);
    m = open_released("kimi_k3.json");
    t = count(m);
    assert_int_equal(t.tally.parameters, 2779484476000); /* 2.7795 T */
    assert_int_equal(t.tally.active, 104189612640);      /* 104.19 B; 104.17 B without the F32 vectors */
    assert_int_equal(t.experts, 92LL * 896 * 33030144);
    uint64_t k3 = t.tally.parameters;
    assert_int_equal(m->net.layers[92].mixer, NEAP_MIXER_MLA);
    assert_int_equal(m->net.layers[91].mixer, NEAP_MIXER_MLA);
    assert_close(m->net.layers[3].spec.mla.softmax_scale, 1 / sqrt(192.0), 1e-6);
    drop(m);
    m = open_released("kimi_k3_text.json"); /* the same model without the outer object */
    assert_int_equal(m->family, NEAP_FAMILY_KIMI_K3);
    t = count(m);
    assert_int_equal(t.tally.parameters, k3);
    drop(m);
    m = open_released("kimi_k31_pro.json");
    assert_int_equal(m->family, NEAP_FAMILY_KIMI_K31);
    t = count(m);
    assert_int_equal(t.tally.parameters - k3, 178526208); /* the 24 indexers, 178.5 M */
    drop(m);
    m = open_released("deepseek_v32.json");
    assert_int_equal(m->net.n_mtp, 1);
    assert_int_equal(m->net.layers[2].is_moe, 0);
    assert_int_equal(m->net.layers[3].moe_spec.topk_groups, 4);
    drop(m);
}

/* YaRN numbers of an independent program that follows the equations of DeepSeek's inference code. */
static void test_yarn(void **state) {
    (void)state;
    static const struct {
        int i;
        double f;
    } wanted[] = {{0, 1.0},
                  {5, 0.23713737056616555},
                  {10, 0.056234132519034905},
                  {11, 0.03900692656714386},
                  {16, 0.0055},
                  {20, 0.0007905694150420945},
                  {22, 0.0001778279410038922},
                  {23, 3.33380358040831e-05},
                  {31, 3.3338035804083097e-06}};
    neap_model *m = open_released("deepseek_v32.json");
    const neap_mla_spec *s = &m->net.layers[0].spec.mla;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_close(s->rope_inv_freq[wanted[i].i], wanted[i].f, 2e-7);
    assert_close(s->softmax_scale, 0.1352337788608801, 2e-7);
    assert_close(s->rope_magnitude, 1, 1e-7);
    assert_int_equal(s->rope, NEAP_ROPE_INTERLEAVED);
    assert_int_equal(s->index.rope, NEAP_ROPE_HALF);
    drop(m);
    config c = base(NEAP_FAMILY_DEEPSEEK_V32); /* no mscale: the magnitude carries the gain, the scale does not */
    put(&c, "rope_scaling.type", "\"yarn\"");
    put(&c, "rope_scaling.factor", "40");
    put(&c, "rope_scaling.original_max_position_embeddings", "64");
    put(&c, "indexer_rope_interleave", "true");
    m = open_base(&c);
    assert_close(m->net.layers[0].spec.mla.rope_magnitude, 1.3688879454113936, 1e-6);
    assert_close(m->net.layers[0].spec.mla.softmax_scale, 1 / sqrt(12.0), 1e-6);
    assert_int_equal(m->net.layers[0].spec.mla.index.rope, NEAP_ROPE_INTERLEAVED);
    drop(m);
}

static void test_index_sharing(void **state) {
    (void)state;
    neap_model *m = open_released("glm_5_2.json"); /* full at 0, 1, 2, 6, 10, 14, ... */
    for (int i = 0; i < 78; i++)
        assert_int_equal(m->net.layers[i].spec.mla.index.is_shared, !(i <= 2 || (i >= 6 && (i - 6) % 4 == 0)));
    assert_false(m->net.mtp[0].layer.spec.mla.index.is_shared);
    assert_int_equal(m->net.layers[0].spec.mla.index.rope, NEAP_ROPE_INTERLEAVED);
    drop(m);
    config c = base(NEAP_FAMILY_KIMI_K31); /* in a hybrid only MLA layers are counted */
    put(&c, "linear_attn_config.kda_layers", "[1, 3]");
    put(&c, "linear_attn_config.full_attn_layers", "[2, 4]");
    put(&c, "index_topk_pattern", "\"FS\"");
    m = open_base(&c);
    assert_false(m->net.layers[1].spec.mla.index.is_shared);
    assert_true(m->net.layers[3].spec.mla.index.is_shared);
    drop(m);
}

static void test_size_limit(void **state) {
    (void)state;
    void *p = NULL;
    size_t n = NEAP_CONFIG_BYTES_MAX + 2;
    assert_int_equal(neap_mem_alloc(n, &p), NEAP_OK);
    memset(p, ' ', n - 1);
    memcpy(p, "{}", 2);
    neap_model *m = model_new();
    assert_int_equal(neap_config_parse(m, p, n - 1, "big", 0), NEAP_BAD_FILE);
    drop(m);
    neap_mem_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bases),      cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_rules),      cmocka_unit_test(test_model_type),
        cmocka_unit_test(test_families),   cmocka_unit_test(test_auto_map),
        cmocka_unit_test(test_latent_eps), cmocka_unit_test(test_gates_and_act),
        cmocka_unit_test(test_moe_layers), cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_yarn),       cmocka_unit_test(test_index_sharing),
        cmocka_unit_test(test_size_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
