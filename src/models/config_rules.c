/* Rules over several fields of config.json, then the network's specs.
 *
 * Every rule is evaluated before any value is used as a divisor or an index. The order matters: the layer map
 * (which layers are KDA, which are MoE, which share a selection) comes first, because what else is needed depends
 * on it. Families differ only in defaults: latent norm eps 1e-6 (1e-5 = rms_norm_eps for K3), dense layers first,
 * pairing of the indexer's RoPE. Nothing is read from the checkpoint here; index_n_heads and index_head_dim may
 * stay 0 for kimi_k31, whose inner names are not settled: load.c then takes them from the tensors.
 *
 * Source: the published config.json files of the families; docs/numerics.md. */
#include <math.h>
#include <string.h>

#include "models/config.h"

#define RULE(cond, ...) NEAP_CHECK(cond, NEAP_BAD_FILE, __VA_ARGS__)

typedef struct layer_map {
    bool is_mla[NEAP_LAYERS_MAX];
    bool is_moe[NEAP_LAYERS_MAX + 16]; /* with the draft layers */
    bool is_shared[NEAP_LAYERS_MAX];   /* by layer; only for MLA layers */
    int64_t n_mla, n_moe, n_kda;
} layer_map;

static bool is_kimi(const neap_config_reader *r) { return ((1u << r->m->family) & NEAP_IN_KIMI) != 0; }

/* ---------------------------------------------------------------- layer map ------------------- */

static neap_status map_lists(const neap_config_reader *r, layer_map *map) {
    const neap_config_values *v = &r->v;
    RULE(v->kda_layers.v != NULL && v->full_layers.v != NULL,
         "%s: linear_attn_config needs kda_layers and full_attn_layers", r->what);
    int64_t n = v->kda_layers.n + v->full_layers.n;
    RULE(n == v->n_layers, "%s: kda_layers and full_attn_layers hold %lld layers, num_hidden_layers is %lld", r->what,
         (long long)n, (long long)v->n_layers);
    bool seen[NEAP_LAYERS_MAX] = {false};
    for (int64_t i = 0; i < n; i++) {
        bool is_mla = i >= v->kda_layers.n;
        int64_t layer = is_mla ? v->full_layers.v[i - v->kda_layers.n] : v->kda_layers.v[i];
        RULE(layer >= 1 && layer <= v->n_layers, "%s: layer %lld of %s is not in 1 .. %lld", r->what, (long long)layer,
             is_mla ? "full_attn_layers" : "kda_layers", (long long)v->n_layers);
        RULE(!seen[layer - 1], "%s: layer %lld is listed twice in kda_layers and full_attn_layers", r->what,
             (long long)layer);
        seen[layer - 1] = true;
        map->is_mla[layer - 1] = is_mla;
    }
    return NEAP_OK;
}

/* "linear_attention" / "full_attention" per layer; compared with the lists when both are there. */
static neap_status map_types(const neap_config_reader *r, layer_map *map, bool has_lists) {
    const neap_text_list *t = &r->v.layer_types;
    RULE(t->n == r->v.n_layers, "%s: layer_types has %lld entries, num_hidden_layers is %lld", r->what, (long long)t->n,
         (long long)r->v.n_layers);
    for (int64_t i = 0; i < t->n; i++) {
        bool is_mla = strcmp(t->v[i], "full_attention") == 0;
        RULE(is_mla || strcmp(t->v[i], "linear_attention") == 0,
             "%s: layer_types[%lld] is '%.40s', must be linear_attention or full_attention", r->what, (long long)i,
             t->v[i]);
        RULE(!has_lists || map->is_mla[i] == is_mla, "%s: layer_types[%lld] disagrees with linear_attn_config", r->what,
             (long long)i);
        map->is_mla[i] = is_mla;
    }
    return NEAP_OK;
}

static neap_status map_mixers(const neap_config_reader *r, layer_map *map) {
    if (!is_kimi(r)) {
        for (int64_t i = 0; i < r->v.n_layers; i++) map->is_mla[i] = true;
    } else {
        bool has_lists = r->v.kda_layers.v != NULL || r->v.full_layers.v != NULL || r->v.layer_types.v == NULL;
        if (has_lists) NEAP_TRY(map_lists(r, map));
        if (r->v.layer_types.v != NULL) NEAP_TRY(map_types(r, map, has_lists));
    }
    for (int64_t i = 0; i < r->v.n_layers; i++) map->n_mla += map->is_mla[i] ? 1 : 0;
    map->n_kda = r->v.n_layers - map->n_mla;
    return NEAP_OK;
}

/* Layer i is MoE iff i >= first_k_dense_replace and i % moe_layer_freq == 0; draft layers too. */
static neap_status map_moe(neap_config_reader *r, layer_map *map) {
    neap_config_values *v = &r->v;
    bool has_types = v->mlp_types.v != NULL, has_first = v->first_dense >= 0;
    if (!has_first) v->first_dense = is_kimi(r) ? 0 : 3;
    RULE(!has_types || v->mlp_types.n == v->n_layers, "%s: mlp_layer_types has %lld entries, num_hidden_layers is %lld",
         r->what, (long long)v->mlp_types.n, (long long)v->n_layers);
    for (int64_t i = 0; i < v->n_layers + v->n_mtp; i++) {
        bool is_moe = i >= v->first_dense && i % v->moe_freq == 0;
        if (has_types && i < v->n_layers) {
            bool is_sparse = strcmp(v->mlp_types.v[i], "sparse") == 0;
            RULE(is_sparse || strcmp(v->mlp_types.v[i], "dense") == 0,
                 "%s: mlp_layer_types[%lld] is '%.40s', must be dense or sparse", r->what, (long long)i,
                 v->mlp_types.v[i]);
            RULE(!has_first || is_sparse == is_moe, "%s: mlp_layer_types[%lld] disagrees with first_k_dense_replace",
                 r->what, (long long)i);
            is_moe = is_sparse;
        }
        if (has_types && !has_first && i >= v->n_layers) is_moe = map->is_moe[v->n_layers - 1];
        map->is_moe[i] = is_moe;
        map->n_moe += is_moe ? 1 : 0;
    }
    return NEAP_OK;
}

/* Sharing of a selection across MLA layers (sparse MLA A3): types, else pattern, else frequency. In a hybrid
 * only MLA layers are counted. */
static neap_status map_sharing(const neap_config_reader *r, layer_map *map) {
    const neap_config_values *v = &r->v;
    const neap_text_list *t = &v->indexer_types;
    int64_t n_pattern = v->index_pattern != NULL ? (int64_t)strlen(v->index_pattern) : 0;
    RULE(t->v == NULL || t->n == map->n_mla || t->n == map->n_mla + v->n_mtp,
         "%s: indexer_types has %lld entries, there are %lld MLA layers", r->what, (long long)t->n,
         (long long)map->n_mla);
    RULE(v->index_pattern == NULL || n_pattern == map->n_mla || n_pattern == map->n_mla + v->n_mtp,
         "%s: index_topk_pattern has %lld letters, there are %lld MLA layers", r->what, (long long)n_pattern,
         (long long)map->n_mla);
    int64_t i = 0; /* counts MLA layers */
    for (int64_t layer = 0; layer < v->n_layers; layer++) {
        if (!map->is_mla[layer]) continue;
        bool is_shared = (i - v->index_offset + 1 > 0 ? i - v->index_offset + 1 : 0) % v->index_freq != 0;
        if (v->index_pattern != NULL) {
            char c = v->index_pattern[i];
            RULE(c == 'F' || c == 'S', "%s: index_topk_pattern may hold only F and S", r->what);
            is_shared = c == 'S';
        }
        if (t->v != NULL) {
            is_shared = strcmp(t->v[i], "shared") == 0;
            RULE(is_shared || strcmp(t->v[i], "full") == 0,
                 "%s: indexer_types[%lld] is '%.40s', must be full or shared", r->what, (long long)i, t->v[i]);
        }
        RULE(!is_shared || i > 0,
             "%s: the first MLA layer has no earlier selection to share (indexer_types, index_topk_freq)", r->what);
        map->is_shared[layer] = is_shared;
        i++;
    }
    return NEAP_OK;
}

/* ---------------------------------------------------------------- rules ----------------------- */

/* The flat text form of K3 has model_type kimi_linear; the indexer makes it K3.1. */
static neap_status settle_family(neap_config_reader *r) {
    const neap_config_values *v = &r->v;
    if (!is_kimi(r)) return NEAP_OK;
    bool is_k3 = v->attnres_block > 0 || v->latent > 0 || v->has_output_gate;
    bool has_index = v->has_dsa_config || v->index_topk > 0 || v->index_heads > 0 || v->index_dim > 0;
    if (r->m->family == NEAP_FAMILY_KIMI_LINEAR && is_k3) r->m->family = NEAP_FAMILY_KIMI_K3;
    if (r->m->family == NEAP_FAMILY_KIMI_K3 && has_index) r->m->family = NEAP_FAMILY_KIMI_K31;
    has_index = has_index || r->m->family == NEAP_FAMILY_KIMI_K31;
    RULE(!has_index || v->index_topk > 0, "%s: the indexer's top-k is missing (%sdsa_config.index_topk)", r->what,
         r->text_prefix);
    return NEAP_OK;
}

static neap_status check_unsupported(const neap_config_reader *r) {
    const neap_config_values *v = &r->v;
    NEAP_CHECK(!v->has_attention_bias, NEAP_UNSUPPORTED, "%s: attention_bias true is not supported", r->what);
    NEAP_CHECK(!v->has_mlp_bias, NEAP_UNSUPPORTED, "%s: mlp_bias true is not supported", r->what);
    NEAP_CHECK(!is_kimi(r) || v->is_nope, NEAP_UNSUPPORTED,
               "%s: mla_use_nope false (rotated MLA) is not supported for this family", r->what);
    NEAP_CHECK(v->index_kpool <= 1, NEAP_UNSUPPORTED, "%s: index_kpool %lld (pooled index keys) is not supported",
               r->what, (long long)v->index_kpool);
    NEAP_CHECK(strcmp(v->topk_method, "noaux_tc") == 0, NEAP_UNSUPPORTED,
               "%s: topk_method '%.40s' is not supported (noaux_tc)", r->what, v->topk_method);
    NEAP_CHECK(strcmp(v->router_act, "sigmoid") == 0 || strcmp(v->router_act, "softmax") == 0, NEAP_UNSUPPORTED,
               "%s: moe_router_activation_func '%.40s' is not supported (sigmoid, softmax)", r->what, v->router_act);
    return NEAP_OK;
}

static neap_status check_attention(const neap_config_reader *r, const layer_map *map) {
    const neap_config_values *v = &r->v;
    RULE(v->n_kv_heads == 0 || v->n_kv_heads == v->n_heads,
         "%s: num_key_value_heads %lld differs from num_attention_heads %lld; MLA has as many", r->what,
         (long long)v->n_kv_heads, (long long)v->n_heads);
    if (map->n_kda > 0) {
        RULE(v->kda_heads > 0, "%s: linear_attn_config.num_heads is missing", r->what);
        RULE(v->kda_dim > 0, "%s: linear_attn_config.head_dim is missing", r->what);
        RULE(v->conv_k > 0, "%s: linear_attn_config.short_conv_kernel_size is missing", r->what);
    }
    if (!is_kimi(r)) {
        RULE(v->q_lora > 0, "%s: q_lora_rank is missing; the indexer needs it", r->what);
        RULE(v->d_rope % 2 == 0, "%s: qk_rope_head_dim %lld is odd, RoPE needs pairs", r->what, (long long)v->d_rope);
    }
    RULE(v->n_mtp == 0 || map->n_mla > 0, "%s: num_nextn_predict_layers %lld, but the model has no MLA layer", r->what,
         (long long)v->n_mtp);
    return NEAP_OK;
}

static neap_status check_index(const neap_config_reader *r, const layer_map *map) {
    const neap_config_values *v = &r->v;
    if (v->index_topk == 0) return NEAP_OK;
    RULE(map->n_mla > 0, "%s: index_topk %lld, but the model has no MLA layer", r->what, (long long)v->index_topk);
    RULE(v->q_lora > 0, "%s: q_lora_rank is missing; the indexer needs it", r->what);
    RULE(is_kimi(r) || v->index_dim >= v->d_rope, "%s: index_head_dim %lld is smaller than qk_rope_head_dim %lld",
         r->what, (long long)v->index_dim, (long long)v->d_rope);
    if (v->dsa_layers.v == NULL) return NEAP_OK;
    RULE(v->dsa_layers.n == map->n_mla, "%s: dsa_config lists %lld layers, there are %lld MLA layers", r->what,
         (long long)v->dsa_layers.n, (long long)map->n_mla);
    bool seen[NEAP_LAYERS_MAX] = {false};
    for (int64_t i = 0; i < v->dsa_layers.n; i++) {
        int64_t layer = v->dsa_layers.v[i];
        RULE(layer >= 1 && layer <= v->n_layers && map->is_mla[layer - 1] && !seen[layer - 1],
             "%s: dsa_config lists layer %lld, which is not an MLA layer or is listed twice", r->what,
             (long long)layer);
        seen[layer - 1] = true;
    }
    return NEAP_OK;
}

static neap_status check_feed_forward(neap_config_reader *r, const layer_map *map) {
    neap_config_values *v = &r->v;
    int64_t n_dense = v->n_layers + v->n_mtp - map->n_moe;
    RULE(n_dense == 0 || v->intermediate > 0, "%s: intermediate_size is missing", r->what);
    if (map->n_moe == 0) return NEAP_OK;
    RULE(v->n_experts > 0, "%s: num_experts is missing", r->what);
    RULE(v->top_k > 0, "%s: num_experts_per_token is missing", r->what);
    RULE(v->moe_intermediate > 0, "%s: moe_intermediate_size is missing", r->what);
    RULE(v->top_k <= v->n_experts, "%s: num_experts_per_token %lld is larger than num_experts %lld", r->what,
         (long long)v->top_k, (long long)v->n_experts);
    RULE(v->n_shared <= v->n_experts, "%s: num_shared_experts %lld is larger than num_experts %lld", r->what,
         (long long)v->n_shared, (long long)v->n_experts);
    if (!v->is_grouped) v->n_groups = v->topk_groups = 1;
    RULE(v->n_experts % v->n_groups == 0, "%s: num_experts %lld cannot be divided into %lld groups", r->what,
         (long long)v->n_experts, (long long)v->n_groups);
    RULE(v->topk_groups <= v->n_groups, "%s: topk_group %lld is larger than the number of groups %lld", r->what,
         (long long)v->topk_groups, (long long)v->n_groups);
    int64_t group = v->n_experts / v->n_groups;
    RULE(v->n_groups == 1 || group >= 2, "%s: expert groups of %lld; a group is scored by its two best", r->what,
         (long long)group);
    RULE(v->top_k <= v->topk_groups * group,
         "%s: num_experts_per_token %lld is larger than the %lld experts of the chosen groups", r->what,
         (long long)v->top_k, (long long)(v->topk_groups * group));
    RULE(!v->has_latent_norm || v->latent > 0, "%s: latent_moe_use_norm without routed_expert_hidden_size", r->what);
    return NEAP_OK;
}

static neap_status fill_activation(const neap_config_reader *r, neap_act *act) {
    const neap_config_values *v = &r->v;
    bool is_k3 = r->m->family == NEAP_FAMILY_KIMI_K3 || r->m->family == NEAP_FAMILY_KIMI_K31;
    RULE(v->hidden_act != NULL || !is_k3, "%s: %shidden_act is missing", r->what, r->text_prefix);
    const char *name = v->hidden_act != NULL ? v->hidden_act : "silu";
    if (strcmp(name, "silu") == 0) {
        *act = (neap_act){.kind = NEAP_ACT_SILU};
        return NEAP_OK;
    }
    NEAP_CHECK(strcmp(name, "situ") == 0 && is_kimi(r), NEAP_UNSUPPORTED,
               "%s: hidden_act '%.40s' is not supported (silu%s)", r->what, name, is_kimi(r) ? ", situ" : "");
    /* beta null or 0 means 1; linear_beta null means that the up branch is left alone. */
    float beta = v->situ_beta > 0 ? (float)v->situ_beta : 1.0f;
    *act = (neap_act){.kind = NEAP_ACT_SITU, .beta = beta, .linear_beta = (float)v->situ_linear_beta};
    return NEAP_OK;
}

/* ---------------------------------------------------------------- specs ----------------------- */

static void fill_kda(const neap_config_values *v, neap_kda_spec *s) {
    *s = (neap_kda_spec){.n_heads = (int32_t)v->kda_heads,
                         .head_dim = (int32_t)v->kda_dim,
                         .conv_k = (int32_t)v->conv_k,
                         .is_gate_full_rank = v->is_gate_full_rank,
                         .is_bounded = v->gate_lower_bound < 0,
                         .lower_bound = (float)v->gate_lower_bound,
                         .eps = (float)v->eps};
}

static neap_status make_mla(neap_config_reader *r, neap_mla_spec *s) {
    const neap_config_values *v = &r->v;
    neap_family f = r->m->family;
    bool is_k3 = f == NEAP_FAMILY_KIMI_K3 || f == NEAP_FAMILY_KIMI_K31;
    *s = (neap_mla_spec){.n_heads = (int32_t)v->n_heads,
                         .q_lora = (int32_t)v->q_lora,
                         .kv_lora = (int32_t)v->kv_lora,
                         .d_nope = (int32_t)v->d_nope,
                         .d_rope = (int32_t)v->d_rope,
                         .d_v = (int32_t)v->d_v,
                         .has_output_gate = v->has_output_gate,
                         .rope = NEAP_ROPE_NONE,
                         .rope_magnitude = 1};
    double scale = 1;
    neap_rope_kind index_rope = NEAP_ROPE_NONE;
    if (!is_kimi(r)) {
        NEAP_TRY(neap_config_rope(r, &s->rope_inv_freq, &s->rope_magnitude, &scale));
        s->rope = v->rope_interleave ? NEAP_ROPE_INTERLEAVED : NEAP_ROPE_HALF;
        bool is_interleaved = v->index_interleave >= 0 ? v->index_interleave == 1 : f == NEAP_FAMILY_GLM_MOE_DSA;
        index_rope = is_interleaved ? NEAP_ROPE_INTERLEAVED : NEAP_ROPE_HALF;
    }
    s->softmax_scale = (float)(scale / sqrt((double)(v->d_nope + v->d_rope)));
    s->latent_eps = r->latent_eps > 0 ? r->latent_eps : is_k3 ? (float)v->eps : 1e-6f;
    s->has_index = v->index_topk > 0;
    if (s->has_index)
        s->index = (neap_index_spec){.n_heads = (int32_t)v->index_heads,
                                     .head_dim = (int32_t)v->index_dim,
                                     .topk = (int32_t)v->index_topk,
                                     .rope = index_rope,
                                     .norm_eps = 1e-6f};
    return NEAP_OK;
}

static void fill_moe(const neap_config_values *v, neap_moe_spec *s) {
    *s = (neap_moe_spec){.n_experts = (int32_t)v->n_experts,
                         .top_k = (int32_t)v->top_k,
                         .n_groups = (int32_t)v->n_groups,
                         .topk_groups = (int32_t)v->topk_groups,
                         .is_softmax = strcmp(v->router_act, "softmax") == 0,
                         .is_renormalized = v->is_renormalized,
                         .scale = (float)v->routed_scale,
                         .latent = (int32_t)v->latent,
                         .has_latent_norm = v->has_latent_norm,
                         .expert_width = (int32_t)v->moe_intermediate,
                         .shared_width = (int32_t)(v->moe_intermediate * v->n_shared)};
}

static void fill_layer(const neap_config_values *v, const neap_mla_spec *mla, bool is_mla, bool is_moe, bool is_shared,
                       neap_layer *layer) {
    layer->mixer = is_mla ? NEAP_MIXER_MLA : NEAP_MIXER_KDA;
    if (is_mla) {
        layer->spec.mla = *mla;
        layer->spec.mla.index.is_shared = is_shared;
    } else {
        fill_kda(v, &layer->spec.kda);
    }
    layer->is_moe = is_moe;
    layer->mlp_width = is_moe ? 0 : (int32_t)v->intermediate;
    if (is_moe) fill_moe(v, &layer->moe_spec);
}

static neap_status fill_network(neap_config_reader *r, const layer_map *map) {
    const neap_config_values *v = &r->v;
    neap_network *net = &r->m->net;
    net->vocab = (int32_t)v->vocab;
    net->width = (int32_t)v->width;
    net->n_layers = (int32_t)v->n_layers;
    net->n_mtp = (int32_t)v->n_mtp;
    net->eps = (float)v->eps;
    net->attnres_block = (int32_t)v->attnres_block;
    NEAP_TRY(fill_activation(r, &net->act));
    neap_mla_spec mla;
    NEAP_TRY(make_mla(r, &mla));
    void *p = NULL;
    NEAP_TRY(neap_arena_array(r->m->arena, (size_t)v->n_layers, sizeof(neap_layer), &p));
    net->layers = p;
    NEAP_TRY(neap_arena_array(r->m->arena, (size_t)v->n_mtp, sizeof(neap_mtp_layer), &p));
    net->mtp = p;
    for (int64_t i = 0; i < v->n_layers; i++)
        fill_layer(v, &mla, map->is_mla[i], map->is_moe[i], map->is_shared[i], &net->layers[i]);
    /* A draft layer is always MLA and always runs its own indexer. */
    for (int64_t i = 0; i < v->n_mtp; i++)
        fill_layer(v, &mla, true, map->is_moe[v->n_layers + i], false, &net->mtp[i].layer);
    r->m->is_tied = v->is_tied == 1;
    r->m->context_max = (int32_t)v->context;
    return NEAP_OK;
}

neap_status neap_config_build(neap_config_reader *r) {
    layer_map map;
    memset(&map, 0, sizeof map);
    RULE(r->v.situ_beta >= 0, "%s: activation_situ_beta is negative", r->what);
    NEAP_TRY(settle_family(r));
    NEAP_TRY(check_unsupported(r));
    NEAP_TRY(map_mixers(r, &map));
    NEAP_TRY(map_moe(r, &map));
    NEAP_TRY(check_attention(r, &map));
    NEAP_TRY(check_feed_forward(r, &map));
    NEAP_TRY(check_index(r, &map));
    if (r->v.index_topk > 0) NEAP_TRY(map_sharing(r, &map));
    return fill_network(r, &map);
}
