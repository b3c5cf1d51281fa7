/* Descriptions and weights of the parts that models are made of. One struct pair per paper idea:
 * X_spec (sizes and switches, filled from config.json by models/) and X_weights (packed matrices and F32
 * vectors, filled by models/load.c, owned by the model's arena).
 *
 * Vectors are F32 in memory whatever the file holds. Shape letters: C model width, H heads, D head size,
 * E experts, P = H * D. */
#ifndef NEAP_LAYERS_LAYER_H
#define NEAP_LAYERS_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "tensor/matrix.h"

/* ---- KDA: gated delta rule with per-channel decay (docs/numerics.md section 3) ---- */
typedef struct neap_kda_spec {
    int32_t n_heads, head_dim, conv_k;
    bool is_gate_full_rank; /* output gate: g_proj, else g_b_proj(g_a_proj) */
    bool is_bounded;        /* decay = lower_bound * sigmoid(...), else -exp(A_log) * softplus(...) */
    float lower_bound;
    float eps; /* of o_norm */
} neap_kda_spec;
typedef struct neap_kda_weights {
    neap_matrix q, k, v;                   /* [P, C] */
    const float *conv_q, *conv_k, *conv_v; /* [P, conv_k] */
    neap_matrix f_a, f_b;                  /* [D, C], [P, D] */
    neap_matrix b;                         /* [H, C] */
    neap_matrix g;                         /* [P, C] full rank */
    neap_matrix g_a, g_b;                  /* [D, C], [P, D] low rank */
    neap_matrix o;                         /* [C, P] */
    const float *decay_scale;              /* [H] exp(A_log); ones when a bounded model has no A_log */
    const float *dt_bias;                  /* [P] */
    const float *o_norm;                   /* [D] */
} neap_kda_weights;

/* ---- indexer (docs/numerics.md section 5) ---- */
typedef enum neap_rope_kind { NEAP_ROPE_NONE, NEAP_ROPE_HALF, NEAP_ROPE_INTERLEAVED } neap_rope_kind;
typedef struct neap_index_spec {
    int32_t n_heads, head_dim, topk;
    neap_rope_kind rope; /* first d_rope components of q and k */
    float norm_eps;
    bool is_shared; /* uses the selection of the nearest earlier full layer; has no weights */
} neap_index_spec;
typedef struct neap_index_weights {
    neap_matrix wq_b;                  /* [n_heads * head_dim, q_lora] */
    neap_matrix wk;                    /* [head_dim, C] */
    neap_matrix weights_proj;          /* [n_heads, C] */
    const float *k_norm, *k_norm_bias; /* [head_dim]; bias may be NULL */
} neap_index_weights;

/* ---- MLA (docs/numerics.md section 4) ---- */
typedef struct neap_mla_spec {
    int32_t n_heads, q_lora /* 0: plain q_proj */, kv_lora, d_nope, d_rope, d_v;
    bool has_output_gate;
    neap_rope_kind rope;
    const float *rope_inv_freq; /* [d_rope / 2], YaRN included; NULL when rope is NONE */
    float rope_magnitude;       /* factor on cos and sin (YaRN), usually 1 */
    float softmax_scale;
    float latent_eps; /* of q_a_layernorm and kv_a_layernorm */
    bool has_index;
    neap_index_spec index;
} neap_mla_spec;
typedef struct neap_mla_weights {
    neap_matrix q;           /* [H * (dn+dr), C]      q_lora = 0 */
    neap_matrix q_a, q_b;    /* [q_lora, C], [H * (dn+dr), q_lora] */
    const float *q_a_norm;   /* [q_lora] */
    neap_matrix kv_a;        /* [kv_lora + dr, C] */
    const float *kv_a_norm;  /* [kv_lora] */
    const neap_matrix *k_up; /* H matrices [kv_lora, dn]: the key rows of kv_b, transposed (absorbed form) */
    const neap_matrix *v_up; /* H matrices [dv, kv_lora]: the value rows of kv_b */
    neap_matrix g;           /* [H * dv, C] output gate */
    neap_matrix o;           /* [C, H * dv] */
    neap_index_weights index;
} neap_mla_weights;

/* ---- feed-forward ---- */
typedef struct neap_mlp_weights {
    neap_matrix gate, up, down; /* [F, C], [F, C], [C, F] */
} neap_mlp_weights;
typedef struct neap_moe_spec {
    int32_t n_experts, top_k, n_groups, topk_groups;
    bool is_softmax, is_renormalized;
    float scale;
    int32_t latent; /* width that the experts see; 0 = C */
    bool has_latent_norm;
    int32_t expert_width;
    int32_t shared_width; /* 0 = no shared expert */
} neap_moe_spec;
typedef struct neap_moe_weights {
    neap_matrix router;                 /* [E, C] */
    const float *router_bias;           /* [E] or NULL */
    const neap_matrix *w1, *w3, *w2;    /* E matrices each: [F, latent], [F, latent], [latent, F] */
    neap_matrix latent_down, latent_up; /* [latent, C], [C, latent] */
    const float *latent_norm;           /* [latent] */
    neap_mlp_weights shared;
} neap_moe_weights;

/* ---- one layer ---- */
typedef enum neap_mixer_kind { NEAP_MIXER_KDA, NEAP_MIXER_MLA } neap_mixer_kind;
typedef struct neap_layer {
    neap_mixer_kind mixer;
    union {
        neap_kda_spec kda;
        neap_mla_spec mla;
    } spec;
    union {
        neap_kda_weights kda;
        neap_mla_weights mla;
    } weights;
    const float *input_norm, *post_norm; /* [C] */
    const float *attn_res, *mlp_res;     /* [C] norm weight * projection row; NULL: plain residuals */
    bool is_moe;
    int32_t mlp_width;    /* dense layers */
    neap_mlp_weights mlp; /* dense layers */
    neap_moe_spec moe_spec;
    neap_moe_weights moe;
} neap_layer;

/* ---- draft layer (MTP): loaded and checked; used by speculation ---- */
typedef struct neap_mtp_layer {
    neap_layer layer;
    const float *enorm, *hnorm, *head_norm; /* [C] */
    neap_matrix eh_proj;                    /* [C, 2C] */
    neap_matrix head;                       /* [vocab, C]; panels NULL: the model's own head */
} neap_mtp_layer;

/* ---- the whole model as layers see it ---- */
typedef struct neap_network {
    int32_t vocab, width, n_layers, n_mtp;
    float eps;
    int32_t attnres_block; /* 0: plain residuals */
    neap_act act;
    neap_layer *layers;      /* [n_layers] */
    neap_mtp_layer *mtp;     /* [n_mtp] */
    neap_matrix embed;       /* [vocab, C] rows are looked up with neap_matrix_unpack_rows */
    neap_matrix head;        /* [vocab, C]; shares embed's panels when tied */
    const float *norm;       /* [C] */
    const float *output_res; /* [C] or NULL */
} neap_network;

#endif
