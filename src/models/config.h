/* config.json, inside view: the field table, the values it fills, and the steps between file and network.
 *
 *   config.c         finds the family, runs the steps below
 *   config_fields.c  the table and its reader: type, range, null, spelling, default of every single field
 *   config_rules.c   rules over several fields, then the network's specs
 *   config_quant.c   quantization_config: which published formats are accepted
 *   config_rope.c    rotary frequencies and the softmax scale (YaRN)
 * The table is data, so that a test can walk it and try every field with absent, null, wrong and extreme values. */
#ifndef NEAP_MODELS_CONFIG_H
#define NEAP_MODELS_CONFIG_H

#include "format/json.h"
#include "models/model.h"

enum {
    NEAP_IN_LINEAR = 1 << NEAP_FAMILY_KIMI_LINEAR,
    NEAP_IN_K3 = 1 << NEAP_FAMILY_KIMI_K3,
    NEAP_IN_K31 = 1 << NEAP_FAMILY_KIMI_K31,
    NEAP_IN_DEEPSEEK = 1 << NEAP_FAMILY_DEEPSEEK_V32,
    NEAP_IN_GLM = 1 << NEAP_FAMILY_GLM_MOE_DSA,
    NEAP_IN_KIMI = NEAP_IN_LINEAR | NEAP_IN_K3 | NEAP_IN_K31,
    NEAP_IN_DSA = NEAP_IN_DEEPSEEK | NEAP_IN_GLM,
    NEAP_IN_ALL = NEAP_IN_KIMI | NEAP_IN_DSA
};

enum { NEAP_LAYERS_MAX = 1024, NEAP_LIST_MAX = 2048, NEAP_CONFIG_BYTES_MAX = 1 << 20 };

typedef struct neap_int_list {
    int64_t n;
    const int64_t *v; /* NULL: the field is absent */
} neap_int_list;
typedef struct neap_text_list {
    int64_t n;
    const char *const *v; /* NULL: the field is absent */
} neap_text_list;

/* What quantization_config names; several may stand in one file. The tensors decide, each for itself (match.c). */
enum { NEAP_QUANT_NONE = 0, NEAP_QUANT_FP8 = 1, NEAP_QUANT_MXFP4 = 2, NEAP_QUANT_INT8 = 4 };

/* What the file says, one member per row of the table. Integers and numbers that may be absent have a value
 * outside their range as default (0 or -1), so no extra flags are needed. */
typedef struct neap_config_values {
    /* whole model */
    int64_t vocab, width, n_layers, context, n_mtp, attnres_block;
    double eps;
    const char *hidden_act;
    double situ_beta, situ_linear_beta; /* linear 0: absent */
    int64_t is_tied;                    /* -1: absent */
    bool has_attention_bias, has_mlp_bias;
    /* MLA */
    int64_t n_heads, n_kv_heads, q_lora, kv_lora, d_nope, d_rope, d_v;
    bool is_nope, has_output_gate;
    /* KDA */
    int64_t kda_heads, kda_dim, conv_k;
    bool is_gate_full_rank;
    double gate_lower_bound; /* 0: absent */
    neap_int_list kda_layers, full_layers;
    neap_text_list layer_types;
    /* feed-forward */
    int64_t intermediate, moe_intermediate, n_experts, top_k, n_shared, first_dense, moe_freq, n_groups, topk_groups,
        latent;
    neap_text_list mlp_types;
    const char *router_act, *topk_method;
    bool is_renormalized, is_grouped, has_latent_norm;
    double routed_scale;
    /* indexer */
    int64_t index_topk, index_heads, index_dim, index_freq, index_offset, index_kpool;
    neap_text_list indexer_types;
    const char *index_pattern;
    int64_t index_interleave; /* -1: absent */
    /* RoPE */
    const char *rope_type;
    double rope_theta, rope_factor, rope_original, rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all,
        rope_attention_factor, rope_partial;
    bool rope_interleave, rope_truncate;
    /* found outside the table */
    neap_int_list dsa_layers;
    bool has_dsa_config;
    unsigned quant; /* mask of NEAP_QUANT_* */
} neap_config_values;

typedef enum neap_field_type {
    NEAP_FIELD_INT,
    NEAP_FIELD_REAL, /* integers are accepted too */
    NEAP_FIELD_BOOL,
    NEAP_FIELD_SWITCH, /* true or false, kept as int64_t so that -1 can say absent */
    NEAP_FIELD_TEXT,
    NEAP_FIELD_INTS, /* array; min and max hold for its elements */
    NEAP_FIELD_TEXTS
} neap_field_type;

enum { NEAP_FIELD_PATHS = 6 };

typedef struct neap_config_field {
    const char *paths[NEAP_FIELD_PATHS]; /* accepted spellings, "name" or "object.name"; the first one is ours */
    neap_field_type type;
    bool may_be_null;            /* null = absent */
    unsigned required, families; /* masks of NEAP_IN_* */
    double min, max, fallback;   /* fallback: value when absent (BOOL: 0 / 1) */
    const char *text_fallback;
    size_t offset; /* in neap_config_values */
} neap_config_field;

const neap_config_field *neap_config_fields(size_t *n);

/* One config on its way through the steps. */
typedef struct neap_config_reader {
    neap_model *m;
    const char *what; /* file name, for messages */
    const neap_json *root;
    const neap_json *text;   /* root, or its text_config */
    const char *text_prefix; /* "" or "text_config." */
    neap_config_values v;
    float latent_eps; /* override; 0 = the family's value */
} neap_config_reader;

/* Reads every field of the table for m->family. */
NEAP_MUST_CHECK neap_status neap_config_read_fields(neap_config_reader *r);
/* Checks rules over several fields and fills m->net, m->context_max; may turn m->family into a K3 family. */
NEAP_MUST_CHECK neap_status neap_config_build(neap_config_reader *r);
/* Reads quantization_config, which may be absent. */
NEAP_MUST_CHECK neap_status neap_config_quantization(neap_config_reader *r);
/* inv_freq (arena), magnitude and the factor on the softmax scale; d_rope is even. */
NEAP_MUST_CHECK neap_status neap_config_rope(neap_config_reader *r, const float **inv_freq, float *magnitude,
                                             double *scale_factor);
/* The same as neap_config_read from text in memory (tests, fuzzing). */
NEAP_MUST_CHECK neap_status neap_config_parse(neap_model *m, const char *text, size_t n, const char *what,
                                              float latent_norm_eps);
const char *neap_family_name(neap_family f);
/* A list of layer numbers, checked: integers in 1 .. max, at most NEAP_LIST_MAX of them. */
NEAP_MUST_CHECK neap_status neap_config_ints(const neap_config_reader *r, const neap_json *j, const char *name,
                                             double min, double max, neap_int_list *out);

#endif
