/* The field table of config.json and its reader.
 *
 * One row per field: accepted spellings (the released files' name first, then the names of other model classes),
 * type, whether null means absent, which families need it and which know it, range, value when absent. The reader
 * needs no code per field. Two spellings in one file must agree. Integers must be JSON integers (4.0 is refused), so
 * nothing is rounded. Ranges are limits of this engine: far above every known model, low enough that no later
 * product of two of them overflows 63 bits.
 *
 * Called by config.c; rules over several fields are in config_rules.c.
 * Sources: Kimi Linear, Kimi K3 and sparse MLA specifications, their config.json sections. */
#include <stddef.h>
#include <string.h>

#include "models/config.h"

#define AT(member) offsetof(neap_config_values, member)
#define INT(member, lo, hi, absent) NEAP_FIELD_INT, false, 0, NEAP_IN_ALL, lo, hi, absent, NULL, AT(member)
#define NEED_INT(member, who, lo, hi) NEAP_FIELD_INT, false, who, who, lo, hi, 0, NULL, AT(member)

enum { DIM_MAX = 1 << 20 };

/* clang-format off */
static const neap_config_field fields[] = {
    /* whole model */
    {{"vocab_size"}, NEED_INT(vocab, NEAP_IN_ALL, 1, 1 << 24)},
    {{"hidden_size"}, NEED_INT(width, NEAP_IN_ALL, 1, 65536)},
    {{"num_hidden_layers"}, NEED_INT(n_layers, NEAP_IN_ALL, 1, NEAP_LAYERS_MAX)},
    {{"max_position_embeddings", "model_max_length"}, NEED_INT(context, NEAP_IN_ALL, 1, 2147483647)},
    {{"num_nextn_predict_layers"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 0, 16, 0, NULL, AT(n_mtp)},
    {{"attn_res_block_size"}, NEAP_FIELD_INT, true, 0, NEAP_IN_KIMI, 1, NEAP_LAYERS_MAX, 0, NULL, AT(attnres_block)},
    {{"rms_norm_eps"}, NEAP_FIELD_REAL, false, NEAP_IN_ALL, NEAP_IN_ALL, 1e-12, 0.1, 0, NULL, AT(eps)},
    {{"hidden_act"}, NEAP_FIELD_TEXT, false, NEAP_IN_K3 | NEAP_IN_K31, NEAP_IN_ALL, 0, 0, 0, NULL, AT(hidden_act)},
    {{"activation_situ_beta"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_KIMI, 0, 1e6, 0, NULL, AT(situ_beta)},
    {{"activation_situ_linear_beta"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_KIMI, 1e-6, 1e6, 0, NULL, AT(situ_linear_beta)},
    {{"tie_word_embeddings"}, NEAP_FIELD_SWITCH, true, 0, NEAP_IN_ALL, 0, 1, -1, NULL, AT(is_tied)},
    {{"attention_bias"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_ALL, 0, 1, 0, NULL, AT(has_attention_bias)},
    {{"mlp_bias"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_ALL, 0, 1, 0, NULL, AT(has_mlp_bias)},

    /* MLA */
    {{"num_attention_heads"}, NEED_INT(n_heads, NEAP_IN_ALL, 1, 4096)},
    {{"num_key_value_heads"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 4096, 0, NULL, AT(n_kv_heads)},
    {{"q_lora_rank"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 65536, 0, NULL, AT(q_lora)},
    {{"kv_lora_rank"}, NEED_INT(kv_lora, NEAP_IN_ALL, 1, 16384)},
    {{"qk_nope_head_dim"}, NEED_INT(d_nope, NEAP_IN_ALL, 1, 4096)},
    {{"qk_rope_head_dim"}, NEED_INT(d_rope, NEAP_IN_ALL, 1, 4096)},
    {{"v_head_dim"}, NEED_INT(d_v, NEAP_IN_ALL, 1, 4096)},
    {{"mla_use_nope"}, NEAP_FIELD_BOOL, false, NEAP_IN_KIMI, NEAP_IN_KIMI, 0, 1, 0, NULL, AT(is_nope)},
    {{"mla_use_output_gate"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_KIMI, 0, 1, 0, NULL, AT(has_output_gate)},

    /* KDA; needed as soon as one layer is KDA (config_rules.c) */
    {{"linear_attn_config.num_heads", "linear_num_heads"}, NEAP_FIELD_INT, false, 0, NEAP_IN_KIMI, 1, 4096, 0, NULL,
     AT(kda_heads)},
    {{"linear_attn_config.head_dim", "linear_head_dim"}, NEAP_FIELD_INT, false, 0, NEAP_IN_KIMI, 1, 256, 0, NULL,
     AT(kda_dim)},
    {{"linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"}, NEAP_FIELD_INT, false, 0, NEAP_IN_KIMI,
     1, 8, 0, NULL, AT(conv_k)},
    {{"linear_attn_config.use_full_rank_gate"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_KIMI, 0, 1, 0, NULL,
     AT(is_gate_full_rank)},
    {{"linear_attn_config.gate_lower_bound"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_KIMI, -100, -1e-6, 0, NULL,
     AT(gate_lower_bound)},
    {{"linear_attn_config.kda_layers"}, NEAP_FIELD_INTS, false, 0, NEAP_IN_KIMI, 1, NEAP_LAYERS_MAX, 0, NULL,
     AT(kda_layers)},
    {{"linear_attn_config.full_attn_layers"}, NEAP_FIELD_INTS, false, 0, NEAP_IN_KIMI, 1, NEAP_LAYERS_MAX, 0, NULL,
     AT(full_layers)},
    {{"layer_types"}, NEAP_FIELD_TEXTS, true, 0, NEAP_IN_KIMI, 0, 0, 0, NULL, AT(layer_types)},

    /* feed-forward */
    {{"intermediate_size"}, INT(intermediate, 1, DIM_MAX, 0)},
    {{"moe_intermediate_size"}, INT(moe_intermediate, 1, DIM_MAX, 0)},
    {{"num_experts", "n_routed_experts", "num_local_experts"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 65536, 0, NULL,
     AT(n_experts)},
    {{"num_experts_per_token", "num_experts_per_tok"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 1024, 0, NULL,
     AT(top_k)},
    {{"num_shared_experts", "n_shared_experts"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 0, 1024, 0, NULL, AT(n_shared)},
    {{"first_k_dense_replace"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 0, NEAP_LAYERS_MAX, -1, NULL, AT(first_dense)},
    {{"moe_layer_freq"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, NEAP_LAYERS_MAX, 1, NULL, AT(moe_freq)},
    {{"mlp_layer_types"}, NEAP_FIELD_TEXTS, true, 0, NEAP_IN_ALL, 0, 0, 0, NULL, AT(mlp_types)},
    {{"moe_router_activation_func", "scoring_func"}, NEAP_FIELD_TEXT, true, 0, NEAP_IN_ALL, 0, 0, 0, "sigmoid",
     AT(router_act)},
    {{"topk_method"}, NEAP_FIELD_TEXT, true, 0, NEAP_IN_ALL, 0, 0, 0, "noaux_tc", AT(topk_method)},
    {{"moe_renormalize", "norm_topk_prob"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_ALL, 0, 1, 1, NULL, AT(is_renormalized)},
    {{"routed_scaling_factor"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_ALL, 1e-6, 1e6, 1, NULL, AT(routed_scale)},
    {{"use_grouped_topk"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_ALL, 0, 1, 1, NULL, AT(is_grouped)},
    {{"num_expert_group", "n_group"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 1024, 1, NULL, AT(n_groups)},
    {{"topk_group"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 1024, 1, NULL, AT(topk_groups)},
    {{"routed_expert_hidden_size"}, NEAP_FIELD_INT, true, 0, NEAP_IN_KIMI, 1, 65536, 0, NULL, AT(latent)},
    {{"latent_moe_use_norm"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_KIMI, 0, 1, 0, NULL, AT(has_latent_norm)},

    /* indexer; inside dsa_config the plain names count too. Outside they do not: text_config has a sampling default
     * named top_k. */
    {{"index_topk", "dsa_config.index_topk", "dsa_config.topk", "dsa_config.top_k"}, NEAP_FIELD_INT, false, NEAP_IN_DSA,
     NEAP_IN_ALL, 1, 1 << 24, 0, NULL, AT(index_topk)},
    {{"index_n_heads", "dsa_config.index_n_heads", "dsa_config.n_heads", "dsa_config.num_heads"}, NEAP_FIELD_INT, false,
     NEAP_IN_DSA, NEAP_IN_ALL, 1, 1024, 0, NULL, AT(index_heads)},
    {{"index_head_dim", "dsa_config.index_head_dim", "dsa_config.head_dim"}, NEAP_FIELD_INT, false, NEAP_IN_DSA,
     NEAP_IN_ALL, 1, 1024, 0, NULL, AT(index_dim)},
    {{"indexer_types", "dsa_config.indexer_types"}, NEAP_FIELD_TEXTS, true, 0, NEAP_IN_ALL, 0, 0, 0, NULL,
     AT(indexer_types)},
    {{"index_topk_pattern", "dsa_config.index_topk_pattern"}, NEAP_FIELD_TEXT, true, 0, NEAP_IN_ALL, 0, 0, 0, NULL,
     AT(index_pattern)},
    {{"index_topk_freq", "dsa_config.index_topk_freq"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, NEAP_LAYERS_MAX, 1,
     NULL, AT(index_freq)},
    {{"index_skip_topk_offset", "dsa_config.index_skip_topk_offset"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 0,
     NEAP_LAYERS_MAX, 2, NULL, AT(index_offset)},
    {{"index_kpool", "dsa_config.index_kpool"}, NEAP_FIELD_INT, true, 0, NEAP_IN_ALL, 1, 4096, 1, NULL,
     AT(index_kpool)},

    /* RoPE of the two ancestors; the Kimi families have none */
    {{"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type", "rope_scaling.type"},
     NEAP_FIELD_TEXT, true, 0, NEAP_IN_DSA, 0, 0, 0, "default", AT(rope_type)},
    {{"rope_parameters.rope_theta", "rope_scaling.rope_theta", "rope_theta"}, NEAP_FIELD_REAL, false, NEAP_IN_DSA,
     NEAP_IN_DSA, 1.0001, 1e12, 0, NULL, AT(rope_theta)},
    {{"rope_parameters.factor", "rope_scaling.factor"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 1, 1e6, 0, NULL,
     AT(rope_factor)},
    {{"rope_parameters.original_max_position_embeddings", "rope_scaling.original_max_position_embeddings"},
     NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 1, 2147483647, 0, NULL, AT(rope_original)},
    {{"rope_parameters.beta_fast", "rope_scaling.beta_fast"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 1e-3, 1e6, 32,
     NULL, AT(rope_beta_fast)},
    {{"rope_parameters.beta_slow", "rope_scaling.beta_slow"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 1e-3, 1e6, 1, NULL,
     AT(rope_beta_slow)},
    {{"rope_parameters.mscale", "rope_scaling.mscale"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 0, 100, 0, NULL,
     AT(rope_mscale)},
    {{"rope_parameters.mscale_all_dim", "rope_scaling.mscale_all_dim"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 0,
     100, 0, NULL, AT(rope_mscale_all)},
    {{"rope_parameters.attention_factor", "rope_scaling.attention_factor"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA,
     1e-3, 1e3, 0, NULL, AT(rope_attention_factor)},
    {{"rope_parameters.partial_rotary_factor", "partial_rotary_factor"}, NEAP_FIELD_REAL, true, 0, NEAP_IN_DSA, 1e-3,
     1, 1, NULL, AT(rope_partial)},
    {{"rope_parameters.truncate", "rope_scaling.truncate"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_DSA, 0, 1, 1, NULL,
     AT(rope_truncate)},
    {{"indexer_rope_interleave", "dsa_config.indexer_rope_interleave"}, NEAP_FIELD_SWITCH, true, 0, NEAP_IN_ALL, 0,
     1, -1, NULL, AT(index_interleave)},
    {{"rope_interleave"}, NEAP_FIELD_BOOL, true, 0, NEAP_IN_DSA, 0, 1, 1, NULL, AT(rope_interleave)},
};
/* clang-format on */

const neap_config_field *neap_config_fields(size_t *n) {
    *n = sizeof fields / sizeof fields[0];
    return fields;
}

static const char *type_name(neap_field_type t) {
    switch (t) {
    case NEAP_FIELD_INT: return "an integer";
    case NEAP_FIELD_REAL: return "a number";
    case NEAP_FIELD_BOOL:
    case NEAP_FIELD_SWITCH: return "true or false";
    case NEAP_FIELD_TEXT: return "a string";
    case NEAP_FIELD_INTS: return "an array of integers";
    case NEAP_FIELD_TEXTS: return "an array of strings";
    }
    return "?";
}

static const char *json_name(const neap_json *j) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number with a fraction",
                                        "a string", "an array",  "an object"};
    return names[neap_json_type_of(j)];
}

neap_status neap_config_ints(const neap_config_reader *r, const neap_json *j, const char *name, double min, double max,
                             neap_int_list *out) {
    NEAP_CHECK(neap_json_type_of(j) == NEAP_JSON_ARRAY, NEAP_BAD_FILE,
               "%s: %s%s must be an array of integers, found %s", r->what, r->text_prefix, name, json_name(j));
    size_t n = neap_json_size(j);
    NEAP_CHECK(n <= NEAP_LIST_MAX, NEAP_BAD_FILE, "%s: %s%s has %zu entries, the limit is %d", r->what, r->text_prefix,
               name, n, NEAP_LIST_MAX);
    void *p = NULL;
    NEAP_TRY(neap_arena_array(r->m->arena, n, sizeof(int64_t), &p));
    int64_t *v = p;
    for (size_t i = 0; i < n; i++) {
        const neap_json *e = neap_json_at(j, i);
        NEAP_CHECK(neap_json_type_of(e) == NEAP_JSON_INT, NEAP_BAD_FILE, "%s: %s%s[%zu] must be an integer, found %s",
                   r->what, r->text_prefix, name, i, json_name(e));
        v[i] = neap_json_int(e);
        NEAP_CHECK(v[i] >= (int64_t)min && v[i] <= (int64_t)max, NEAP_BAD_FILE,
                   "%s: %s%s[%zu] is %lld, must be %lld .. %lld", r->what, r->text_prefix, name, i, (long long)v[i],
                   (long long)min, (long long)max);
    }
    *out = (neap_int_list){.n = (int64_t)n, .v = v};
    return NEAP_OK;
}

static neap_status read_texts(const neap_config_reader *r, const neap_json *j, const char *name, neap_text_list *out) {
    size_t n = neap_json_size(j);
    NEAP_CHECK(n <= NEAP_LIST_MAX, NEAP_BAD_FILE, "%s: %s%s has %zu entries, the limit is %d", r->what, r->text_prefix,
               name, n, NEAP_LIST_MAX);
    void *p = NULL;
    NEAP_TRY(neap_arena_array(r->m->arena, n, sizeof(const char *), &p));
    const char **v = p;
    for (size_t i = 0; i < n; i++) {
        const neap_json *e = neap_json_at(j, i);
        NEAP_CHECK(neap_json_type_of(e) == NEAP_JSON_STRING, NEAP_BAD_FILE, "%s: %s%s[%zu] must be a string, found %s",
                   r->what, r->text_prefix, name, i, json_name(e));
        NEAP_TRY(neap_arena_strdup(r->m->arena, neap_json_string(e, NULL), &v[i]));
    }
    *out = (neap_text_list){.n = (int64_t)n, .v = v};
    return NEAP_OK;
}

/* *out NULL: absent. An intermediate object may be absent or null, nothing else. */
static neap_status find_path(const neap_config_reader *r, const char *path, const neap_json **out) {
    *out = NULL;
    const char *dot = strchr(path, '.');
    if (dot == NULL) {
        *out = neap_json_get(r->text, path);
        return NEAP_OK;
    }
    char object[64] = {0};
    memcpy(object, path, (size_t)(dot - path) < sizeof object ? (size_t)(dot - path) : sizeof object - 1);
    const neap_json *o = neap_json_get(r->text, object);
    if (o == NULL || neap_json_type_of(o) == NEAP_JSON_NULL) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(o) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "%s: %s%s must be an object, found %s", r->what,
               r->text_prefix, object, json_name(o));
    *out = neap_json_get(o, dot + 1);
    return NEAP_OK;
}

static bool has_type(const neap_config_field *f, const neap_json *j) {
    neap_json_type t = neap_json_type_of(j);
    switch (f->type) {
    case NEAP_FIELD_INT: return t == NEAP_JSON_INT;
    case NEAP_FIELD_REAL: return t == NEAP_JSON_INT || t == NEAP_JSON_REAL;
    case NEAP_FIELD_BOOL:
    case NEAP_FIELD_SWITCH: return t == NEAP_JSON_BOOL;
    case NEAP_FIELD_TEXT: return t == NEAP_JSON_STRING;
    case NEAP_FIELD_INTS:
    case NEAP_FIELD_TEXTS: return t == NEAP_JSON_ARRAY;
    }
    return false;
}

static neap_status check_range(const neap_config_reader *r, const neap_config_field *f, const char *path,
                               const neap_json *j) {
    if (f->type == NEAP_FIELD_INT) {
        long long v = (long long)neap_json_int(j);
        NEAP_CHECK(v >= (long long)f->min && v <= (long long)f->max, NEAP_BAD_FILE,
                   "%s: %s%s is %lld, must be %lld .. %lld", r->what, r->text_prefix, path, v, (long long)f->min,
                   (long long)f->max);
    } else if (f->type == NEAP_FIELD_REAL) {
        double v = neap_json_real(j);
        NEAP_CHECK(v >= f->min && v <= f->max, NEAP_BAD_FILE, "%s: %s%s is %g, must be %g .. %g", r->what,
                   r->text_prefix, path, v, f->min, f->max);
    } else if (f->type == NEAP_FIELD_TEXT) {
        size_t n = 0;
        (void)neap_json_string(j, &n);
        NEAP_CHECK(n <= NEAP_LIST_MAX, NEAP_BAD_FILE, "%s: %s%s has %zu bytes, the limit is %d", r->what,
                   r->text_prefix, path, n, NEAP_LIST_MAX);
    }
    return NEAP_OK;
}

static neap_status store(neap_config_reader *r, const neap_config_field *f, const char *path, const neap_json *j) {
    char *to = (char *)&r->v + f->offset;
    switch (f->type) {
    case NEAP_FIELD_INT: {
        int64_t v = neap_json_int(j);
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_REAL: {
        double v = neap_json_real(j);
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_BOOL: {
        bool v = neap_json_bool(j);
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_SWITCH: {
        int64_t v = neap_json_bool(j) ? 1 : 0;
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_TEXT: {
        const char *v = NULL;
        NEAP_TRY(neap_arena_strdup(r->m->arena, neap_json_string(j, NULL), &v));
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_INTS: {
        neap_int_list v;
        NEAP_TRY(neap_config_ints(r, j, path, f->min, f->max, &v));
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    case NEAP_FIELD_TEXTS: {
        neap_text_list v;
        NEAP_TRY(read_texts(r, j, path, &v));
        memcpy(to, &v, sizeof v);
        return NEAP_OK;
    }
    }
    return NEAP_OK;
}

static void store_fallback(neap_config_reader *r, const neap_config_field *f) {
    char *to = (char *)&r->v + f->offset;
    int64_t i = (int64_t)f->fallback;
    bool b = f->fallback != 0;
    switch (f->type) {
    case NEAP_FIELD_INT:
    case NEAP_FIELD_SWITCH: memcpy(to, &i, sizeof i); break;
    case NEAP_FIELD_REAL: memcpy(to, &f->fallback, sizeof f->fallback); break;
    case NEAP_FIELD_BOOL: memcpy(to, &b, sizeof b); break;
    case NEAP_FIELD_TEXT: memcpy(to, &f->text_fallback, sizeof f->text_fallback); break;
    case NEAP_FIELD_INTS:
    case NEAP_FIELD_TEXTS: break; /* all zero already */
    }
}

/* Only scalars need the comparison; lists have one spelling each, except indexer_types, where both are compared. */
static bool is_same(const neap_config_field *f, const neap_json *a, const neap_json *b) {
    switch (f->type) {
    case NEAP_FIELD_INT: return neap_json_int(a) == neap_json_int(b);
    case NEAP_FIELD_REAL: return !(neap_json_real(a) < neap_json_real(b)) && !(neap_json_real(a) > neap_json_real(b));
    case NEAP_FIELD_BOOL:
    case NEAP_FIELD_SWITCH: return neap_json_bool(a) == neap_json_bool(b);
    case NEAP_FIELD_TEXT: return strcmp(neap_json_string(a, NULL), neap_json_string(b, NULL)) == 0;
    case NEAP_FIELD_INTS: return false;
    case NEAP_FIELD_TEXTS: break;
    }
    size_t n = neap_json_size(a);
    if (n != neap_json_size(b)) return false;
    for (size_t i = 0; i < n; i++) {
        const neap_json *x = neap_json_at(a, i), *y = neap_json_at(b, i);
        if (neap_json_type_of(x) != NEAP_JSON_STRING || neap_json_type_of(y) != NEAP_JSON_STRING) return false;
        if (strcmp(neap_json_string(x, NULL), neap_json_string(y, NULL)) != 0) return false;
    }
    return true;
}

static neap_status read_field(neap_config_reader *r, const neap_config_field *f) {
    const neap_json *found = NULL;
    const char *path = NULL;
    for (int i = 0; i < NEAP_FIELD_PATHS && f->paths[i] != NULL; i++) {
        const neap_json *j = NULL;
        NEAP_TRY(find_path(r, f->paths[i], &j));
        if (j == NULL) continue;
        if (neap_json_type_of(j) == NEAP_JSON_NULL && f->may_be_null) continue;
        NEAP_CHECK(has_type(f, j), NEAP_BAD_FILE, "%s: %s%s must be %s, found %s", r->what, r->text_prefix, f->paths[i],
                   type_name(f->type), json_name(j));
        NEAP_TRY(check_range(r, f, f->paths[i], j));
        NEAP_CHECK(found == NULL || is_same(f, found, j), NEAP_BAD_FILE, "%s: %s%s and %s%s disagree", r->what,
                   r->text_prefix, path, r->text_prefix, f->paths[i]);
        if (found == NULL) {
            found = j;
            path = f->paths[i];
        }
    }
    if (found != NULL) return store(r, f, path, found);
    NEAP_CHECK((f->required & (1u << r->m->family)) == 0, NEAP_BAD_FILE, "%s: %s%s is missing", r->what, r->text_prefix,
               f->paths[0]);
    return NEAP_OK;
}

neap_status neap_config_read_fields(neap_config_reader *r) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        store_fallback(r, &fields[i]);
        if (fields[i].families & (1u << r->m->family)) NEAP_TRY(read_field(r, &fields[i]));
    }
    return NEAP_OK;
}
