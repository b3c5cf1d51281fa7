/* config.json: any bytes give a network or a message. An accepted network keeps its promises: what later code
 * divides by or indexes with is in range. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/config.h"
#include "models/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

static void be_silent(void *user, neap_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

static void check_layer(const neap_network *net, const neap_layer *l) {
    if (l->mixer == NEAP_MIXER_KDA) {
        const neap_kda_spec *s = &l->spec.kda;
        demand(s->n_heads > 0 && s->head_dim > 0 && s->head_dim <= 256 && s->conv_k >= 1 && s->conv_k <= 8);
        demand(!s->is_bounded || s->lower_bound < 0);
    } else {
        const neap_mla_spec *s = &l->spec.mla;
        demand(s->n_heads > 0 && s->kv_lora > 0 && s->d_nope > 0 && s->d_rope > 0 && s->d_v > 0);
        demand(s->softmax_scale > 0 && s->latent_eps > 0 && s->rope_magnitude > 0);
        demand(s->rope == NEAP_ROPE_NONE || (s->d_rope % 2 == 0 && s->rope_inv_freq != NULL));
        demand(!s->has_index || (s->index.topk > 0 && s->q_lora > 0));
    }
    if (!l->is_moe) {
        demand(l->mlp_width > 0);
        return;
    }
    const neap_moe_spec *s = &l->moe_spec;
    demand(s->n_experts > 0 && s->top_k > 0 && s->top_k <= s->n_experts && s->expert_width > 0 && s->scale > 0);
    demand(s->n_groups > 0 && s->n_experts % s->n_groups == 0 && s->topk_groups > 0 && s->topk_groups <= s->n_groups);
    demand(s->top_k <= s->topk_groups * (s->n_experts / s->n_groups) && s->shared_width >= 0);
    demand(s->latent >= 0 && (s->latent > 0 || !s->has_latent_norm) && net->width > 0);
}

static bool count(void *user, const neap_want *want) {
    int64_t *left = user;
    demand(want->n > 0 && want->k > 0 && strlen(want->name) < NEAP_NAME_BYTES - 1);
    return --*left > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    neap_arena *arena = NULL;
    if (neap_arena_create(&arena, "fuzz") != NEAP_OK) return 0;
    void *p = NULL;
    demand(neap_arena_alloc(arena, sizeof(neap_model), &p) == NEAP_OK);
    neap_model *m = p;
    m->arena = arena;
    m->log.fn = be_silent;
    neap_status status = neap_config_parse(m, (const char *)data, size, "config.json", 0);
    if (status == NEAP_OK) {
        const neap_network *net = &m->net;
        demand(net->n_layers >= 1 && net->n_layers <= NEAP_LAYERS_MAX && net->vocab > 0 && net->eps > 0);
        demand(m->context_max > 0 && m->model_type != NULL);
        for (int32_t i = 0; i < net->n_layers; i++) check_layer(net, &net->layers[i]);
        for (int32_t i = 0; i < net->n_mtp; i++) check_layer(net, &net->mtp[i].layer);
        bool is_sized = true; /* an indexer without sizes is filled from the tensors first */
        for (int32_t i = 0; i < net->n_layers; i++) {
            const neap_mla_spec *s = &net->layers[i].spec.mla;
            if (net->layers[i].mixer == NEAP_MIXER_MLA && s->has_index)
                is_sized = is_sized && s->index.n_heads > 0 && s->index.head_dim > 0;
        }
        neap_weight_names names = {"model.", "model.layers.", "lm_head"};
        int64_t left = 20000;
        if (is_sized) (void)neap_weights_visit(m, &names, count, &left);
        demand(neap_weights_count_min(net) > 0);
    } else {
        demand(neap_last_error()[0] != 0);
    }
    neap_arena_destroy(arena);
    return 0;
}
