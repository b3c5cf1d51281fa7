/* Network specs to the list of tensors: name, shape, destination, in the order of the computation.
 *
 * One function per part, each a list of lines "name, shape, where it goes", so that it can be read beside the tensor
 * tables of the specification. Names below are those of the released files; the common prefix differs between
 * exports ("model.", "language_model.model.", "language_model.") and is found once per checkpoint. Kimi calls
 * its experts block_sparse_moe.experts.e.w1/w3/w2, the two ancestors mlp.experts.e.gate_proj/up_proj/down_proj.
 *
 * Called by match.c and pack.c. Owns nothing. Source: tensor tables of the Kimi Linear (2), Kimi K3 (2, 7)
 * and sparse MLA (A1, A2) specifications. */
#include "models/weights.h"

#include <stdio.h>
#include <string.h>

typedef struct walk {
    neap_model *m;
    const neap_weight_names *names;
    neap_want_fn fn;
    void *user;
    bool is_stopped;
    bool is_kimi;
    int32_t group;
    int32_t expert;
    bool is_draft;
    char prefix[128];           /* "model.layers.3." */
    char part[64];              /* "self_attn." */
    char name[NEAP_NAME_BYTES]; /* of the want that is out */
} walk;

static void send(walk *w, const char *tail, neap_want want) {
    if (w->is_stopped) return;
    (void)snprintf(w->name, sizeof w->name, "%s%s%s", w->prefix, w->part, tail);
    want.name = w->name;
    want.group = w->group;
    want.expert = w->expert;
    want.is_draft = w->is_draft;
    want.is_matrix_like = want.kind == NEAP_WANT_MATRIX || want.kind == NEAP_WANT_KV_B || want.kind == NEAP_WANT_COPY;
    w->is_stopped = !w->fn(w->user, &want);
}

static void matrix(walk *w, const char *tail, int64_t n, int64_t k, neap_matrix *to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_MATRIX, .n = n, .k = k, .to.matrix = to});
}

/* A projection that keeps its meaning in 8 bits (docs/quantize.md says which do not, and why). */
static void linear(walk *w, const char *tail, int64_t n, int64_t k, neap_matrix *to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_MATRIX, .n = n, .k = k, .is_linear = true, .to.matrix = to});
}

static void vector(walk *w, const char *tail, int64_t n, const float **to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_VECTOR, .n = n, .k = 1, .to.vector = to});
}

static void optional_vector(walk *w, const char *tail, int64_t n, const float **to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_VECTOR, .n = n, .k = 1, .is_optional = true, .to.vector = to});
}

static void conv(walk *w, const char *tail, int64_t n, int64_t k, const float **to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_CONV, .n = n, .k = k, .to.vector = to});
}

static void mix(walk *w, const char *tail, int64_t n, bool is_optional, const float **to) {
    send(w, tail, (neap_want){.kind = NEAP_WANT_MIX, .n = n, .k = 1, .is_optional = is_optional, .to.vector = to});
}

static void part(walk *w, const char *name) { (void)snprintf(w->part, sizeof w->part, "%s", name); }

static void walk_kda(walk *w, const neap_kda_spec *s, neap_kda_weights *t, int64_t c) {
    int64_t h = s->n_heads, d = s->head_dim, p = h * d;
    part(w, "self_attn.");
    linear(w, "q_proj", p, c, &t->q);
    linear(w, "k_proj", p, c, &t->k);
    linear(w, "v_proj", p, c, &t->v);
    conv(w, "q_conv1d.weight", p, s->conv_k, &t->conv_q);
    conv(w, "k_conv1d.weight", p, s->conv_k, &t->conv_k);
    conv(w, "v_conv1d.weight", p, s->conv_k, &t->conv_v);
    matrix(w, "f_a_proj", d, c, &t->f_a);
    matrix(w, "f_b_proj", p, d, &t->f_b);
    matrix(w, "b_proj", h, c, &t->b);
    if (s->is_gate_full_rank) {
        linear(w, "g_proj", p, c, &t->g);
    } else {
        matrix(w, "g_a_proj", d, c, &t->g_a);
        matrix(w, "g_b_proj", p, d, &t->g_b);
    }
    /* A bounded gate may come without A_log: then its factor is 1. */
    send(w, "A_log",
         (neap_want){
             .kind = NEAP_WANT_DECAY, .n = h, .k = 1, .is_optional = s->is_bounded, .to.vector = &t->decay_scale});
    vector(w, "dt_bias", p, &t->dt_bias);
    vector(w, "o_norm.weight", d, &t->o_norm);
    linear(w, "o_proj", c, p, &t->o);
}

static void walk_index(walk *w, const neap_mla_spec *s, neap_index_weights *t, int64_t c) {
    const neap_index_spec *x = &s->index;
    part(w, "self_attn.indexer.");
    linear(w, "wq_b", (int64_t)x->n_heads * x->head_dim, s->q_lora, &t->wq_b);
    matrix(w, "wk", x->head_dim, c, &t->wk);
    vector(w, "k_norm.weight", x->head_dim, &t->k_norm);
    optional_vector(w, "k_norm.bias", x->head_dim, &t->k_norm_bias);
    matrix(w, "weights_proj", x->n_heads, c, &t->weights_proj);
}

static void walk_mla(walk *w, const neap_mla_spec *s, neap_mla_weights *t, int64_t c) {
    int64_t h = s->n_heads, dqk = (int64_t)s->d_nope + s->d_rope, dkv = (int64_t)s->d_nope + s->d_v, r = s->kv_lora;
    part(w, "self_attn.");
    if (s->q_lora > 0) {
        linear(w, "q_a_proj", s->q_lora, c, &t->q_a);
        vector(w, "q_a_layernorm.weight", s->q_lora, &t->q_a_norm);
        linear(w, "q_b_proj", h * dqk, s->q_lora, &t->q_b);
    } else {
        linear(w, "q_proj", h * dqk, c, &t->q);
    }
    linear(w, "kv_a_proj_with_mqa", r + s->d_rope, c, &t->kv_a);
    vector(w, "kv_a_layernorm.weight", r, &t->kv_a_norm);
    send(w, "kv_b_proj", (neap_want){.kind = NEAP_WANT_KV_B, .n = h * dkv, .k = r, .mla = t, .mla_spec = s});
    if (s->has_output_gate) linear(w, "g_proj", h * s->d_v, c, &t->g);
    linear(w, "o_proj", c, h * s->d_v, &t->o);
    if (s->has_index && !s->index.is_shared) walk_index(w, s, &t->index, c);
}

static void walk_mlp(walk *w, const char *where, int64_t f, int64_t c, neap_mlp_weights *t) {
    part(w, where);
    linear(w, "gate_proj", f, c, &t->gate);
    linear(w, "up_proj", f, c, &t->up);
    linear(w, "down_proj", c, f, &t->down);
}

/* Const in the weights struct because layers only read; the arrays belong to the model's arena. */
static neap_matrix *expert_at(const neap_matrix *array, int64_t e) {
    return array == NULL ? NULL : (neap_matrix *)&array[e];
}

static void walk_moe(walk *w, const neap_moe_spec *s, neap_moe_weights *t, int64_t c) {
    int64_t e_in = s->latent > 0 ? s->latent : c;
    part(w, w->is_kimi ? "block_sparse_moe." : "mlp.");
    matrix(w, "gate", s->n_experts, c, &t->router);
    send(w, "gate.e_score_correction_bias",
         (neap_want){.kind = NEAP_WANT_VECTOR,
                     .n = s->n_experts,
                     .k = 1,
                     .is_optional = s->is_softmax,
                     .to.vector = &t->router_bias});
    if (s->latent > 0) {
        linear(w, "routed_expert_down_proj", s->latent, c, &t->latent_down);
        linear(w, "routed_expert_up_proj", c, s->latent, &t->latent_up);
        if (s->has_latent_norm) vector(w, "routed_expert_norm.weight", s->latent, &t->latent_norm);
    }
    for (int32_t e = 0; e < s->n_experts && !w->is_stopped; e++) {
        char tail[64];
        w->expert = e;
        (void)snprintf(tail, sizeof tail, "experts.%d.%s", e, w->is_kimi ? "w1" : "gate_proj");
        matrix(w, tail, s->expert_width, e_in, expert_at(t->w1, e));
        (void)snprintf(tail, sizeof tail, "experts.%d.%s", e, w->is_kimi ? "w3" : "up_proj");
        matrix(w, tail, s->expert_width, e_in, expert_at(t->w3, e));
        (void)snprintf(tail, sizeof tail, "experts.%d.%s", e, w->is_kimi ? "w2" : "down_proj");
        matrix(w, tail, e_in, s->expert_width, expert_at(t->w2, e));
    }
    w->expert = -1;
    if (s->shared_width > 0)
        walk_mlp(w, w->is_kimi ? "block_sparse_moe.shared_experts." : "mlp.shared_experts.", s->shared_width, c,
                 &t->shared);
}

static void walk_layer(walk *w, int32_t index, neap_layer *layer) {
    const neap_network *net = &w->m->net;
    int64_t c = net->width;
    (void)snprintf(w->prefix, sizeof w->prefix, "%s%d.", w->names->layers, index);
    w->group = index;
    part(w, "");
    vector(w, "input_layernorm.weight", c, &layer->input_norm);
    vector(w, "post_attention_layernorm.weight", c, &layer->post_norm);
    if (net->attnres_block > 0 && !w->is_draft) {
        mix(w, "self_attention_res", c, false, &layer->attn_res);
        mix(w, "mlp_res", c, false, &layer->mlp_res);
    }
    if (layer->mixer == NEAP_MIXER_KDA)
        walk_kda(w, &layer->spec.kda, &layer->weights.kda, c);
    else
        walk_mla(w, &layer->spec.mla, &layer->weights.mla, c);
    if (layer->is_moe)
        walk_moe(w, &layer->moe_spec, &layer->moe, c);
    else
        walk_mlp(w, "mlp.", layer->mlp_width, c, &layer->mlp);
}

static void walk_mtp(walk *w, int32_t index, neap_mtp_layer *t) {
    const neap_network *net = &w->m->net;
    int64_t c = net->width;
    w->is_draft = true;
    walk_layer(w, index, &t->layer);
    part(w, "");
    vector(w, "enorm.weight", c, &t->enorm);
    vector(w, "hnorm.weight", c, &t->hnorm);
    linear(w, "eh_proj", c, 2 * c, &t->eh_proj);
    vector(w, "shared_head.norm.weight", c, &t->head_norm);
    neap_want head = {.kind = NEAP_WANT_MATRIX, .n = net->vocab, .k = c, .is_optional = true, .is_head = true};
    head.to.matrix = &t->head;
    send(w, "shared_head.head", head);
    send(w, "embed_tokens",
         (neap_want){.kind = NEAP_WANT_COPY, .n = net->vocab, .k = c, .is_optional = true, .is_embedding = true});
    /* Present in K3's draft layers although with one source they have no effect: checked, not kept. */
    if (net->attnres_block > 0) {
        mix(w, "self_attention_res", c, true, NULL);
        mix(w, "mlp_res", c, true, NULL);
    }
    w->is_draft = false;
}

bool neap_weights_visit(neap_model *m, const neap_weight_names *names, neap_want_fn fn, void *user) {
    neap_network *net = &m->net;
    int64_t c = net->width;
    walk w;
    memset(&w, 0, sizeof w);
    w.m = m;
    w.names = names;
    w.fn = fn;
    w.user = user;
    w.expert = -1;
    w.is_kimi = m->family != NEAP_FAMILY_DEEPSEEK_V32 && m->family != NEAP_FAMILY_GLM_MOE_DSA;
    int32_t rest = net->n_layers + net->n_mtp;
    (void)snprintf(w.prefix, sizeof w.prefix, "%s", names->root);
    w.group = rest + 1; /* a block of its own, because it comes first and the rest comes last */
    send(
        &w, "embed_tokens",
        (neap_want){.kind = NEAP_WANT_MATRIX, .n = net->vocab, .k = c, .is_embedding = true, .to.matrix = &net->embed});
    for (int32_t i = 0; i < net->n_layers && !w.is_stopped; i++) walk_layer(&w, i, &net->layers[i]);
    for (int32_t i = 0; i < net->n_mtp && !w.is_stopped; i++) walk_mtp(&w, net->n_layers + i, &net->mtp[i]);
    (void)snprintf(w.prefix, sizeof w.prefix, "%s", names->root);
    part(&w, "");
    w.group = rest;
    if (net->attnres_block > 0) mix(&w, "output_attn_res", c, false, &net->output_res);
    vector(&w, "norm.weight", c, &net->norm);
    (void)snprintf(w.prefix, sizeof w.prefix, "%s", names->head);
    neap_want head = {.kind = m->is_tied ? NEAP_WANT_COPY : NEAP_WANT_MATRIX,
                      .n = net->vocab,
                      .k = c,
                      .is_optional = m->is_tied,
                      .is_head = true};
    head.to.matrix = &net->head;
    send(&w, "", head);
    return !w.is_stopped;
}

static bool has(const neap_checkpoint *c, const char *prefix, const char *tail) {
    char name[NEAP_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s", prefix, tail);
    return neap_checkpoint_find(c, name) != NULL;
}

void neap_weights_find_names(const neap_model *m, const neap_checkpoint *c, neap_weight_names *names) {
    static const char *const roots[] = {"model.", "language_model.model.", "language_model.", "model.language_model."};
    enum { N_ROOTS = sizeof roots / sizeof roots[0] };
    bool is_nested = m->family == NEAP_FAMILY_KIMI_K3 || m->family == NEAP_FAMILY_KIMI_K31;
    size_t root = is_nested ? 1 : 0, layers = N_ROOTS, head = N_ROOTS;
    for (size_t i = N_ROOTS; i-- > 0;)
        if (has(c, roots[i], "embed_tokens.weight") || has(c, roots[i], "norm.weight")) root = i;
    for (size_t i = N_ROOTS; i-- > 0;)
        if (has(c, roots[i], "layers.0.input_layernorm.weight")) layers = i;
    if (layers == N_ROOTS) layers = root;
    (void)snprintf(names->root, sizeof names->root, "%s", roots[root]);
    (void)snprintf(names->layers, sizeof names->layers, "%slayers.", roots[layers]);
    static const char *const heads[] = {"lm_head", "language_model.lm_head", "model.lm_head",
                                        "language_model.model.lm_head"};
    for (size_t i = N_ROOTS; i-- > 0;)
        if (has(c, heads[i], ".weight")) head = i;
    if (head == N_ROOTS) head = root == 0 || root == 3 ? 0 : 1;
    (void)snprintf(names->head, sizeof names->head, "%s", heads[head]);
}

int64_t neap_weights_count_min(const neap_network *net) {
    int64_t n = 0;
    for (int32_t i = 0; i < net->n_layers; i++)
        n += 8 + (net->layers[i].is_moe ? 3 * (int64_t)net->layers[i].moe_spec.n_experts : 3);
    for (int32_t i = 0; i < net->n_mtp; i++)
        n += 8 + (net->mtp[i].layer.is_moe ? 3 * (int64_t)net->mtp[i].layer.moe_spec.n_experts : 3);
    return n;
}

static neap_status make_layer_arrays(neap_arena *a, neap_layer *layer) {
    void *p = NULL;
    if (layer->mixer == NEAP_MIXER_MLA) {
        size_t h = (size_t)layer->spec.mla.n_heads;
        NEAP_TRY(neap_arena_array(a, h, sizeof(neap_matrix), &p));
        layer->weights.mla.k_up = p;
        NEAP_TRY(neap_arena_array(a, h, sizeof(neap_matrix), &p));
        layer->weights.mla.v_up = p;
    }
    if (layer->is_moe) {
        size_t e = (size_t)layer->moe_spec.n_experts;
        NEAP_TRY(neap_arena_array(a, e, sizeof(neap_matrix), &p));
        layer->moe.w1 = p;
        NEAP_TRY(neap_arena_array(a, e, sizeof(neap_matrix), &p));
        layer->moe.w3 = p;
        NEAP_TRY(neap_arena_array(a, e, sizeof(neap_matrix), &p));
        layer->moe.w2 = p;
    }
    return NEAP_OK;
}

neap_status neap_weights_make_arrays(neap_model *m) {
    for (int32_t i = 0; i < m->net.n_layers; i++) NEAP_TRY(make_layer_arrays(m->arena, &m->net.layers[i]));
    for (int32_t i = 0; i < m->net.n_mtp; i++) NEAP_TRY(make_layer_arrays(m->arena, &m->net.mtp[i].layer));
    return NEAP_OK;
}

void neap_weights_tally(neap_weight_tally *t, const neap_want *want, const neap_network *net, bool is_tied) {
    uint64_t n = (uint64_t)(want->n * want->k) * (want->kind == NEAP_WANT_MIX ? 2 : 1);
    if (want->kind == NEAP_WANT_COPY) return;
    t->parameters += n;
    if (want->is_draft) return;
    if (want->is_embedding && !is_tied) return;
    if (want->expert >= 0) {
        const neap_moe_spec *moe = &net->layers[want->group].moe_spec;
        if (want->expert >= moe->top_k) return;
    }
    t->active += n;
}

void neap_weights_count_work(neap_weight_work *t, const neap_want *want, uint64_t bytes, const neap_network *net,
                             bool is_tied) {
    if (want->is_draft || want->kind == NEAP_WANT_COPY || (want->is_embedding && !is_tied)) return;
    bool is_head = want->is_embedding || (want->is_matrix_like && want->group == net->n_layers + net->n_mtp);
    neap_weight_part *part = is_head ? &t->head : want->expert >= 0 ? &t->experts : &t->fixed;
    part->bytes += bytes;
    if (want->is_matrix_like) part->multiply_adds += (uint64_t)(want->n * want->k);
}
