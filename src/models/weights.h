/* The list of tensors that a network needs, made on the fly: names are never stored, K3 has half a million.
 * weights.c walks the specs in a fixed order (embedding, layers, draft layers, norm, head) and hands every tensor to
 * a visitor; match.c and pack.c are the visitors. */
#ifndef NEAP_MODELS_WEIGHTS_H
#define NEAP_MODELS_WEIGHTS_H

#include "models/model.h"

typedef enum neap_want_kind {
    NEAP_WANT_MATRIX, /* [n, k]: name.weight, or .weight + .weight_scale_inv, or .weight_packed + .weight_scale */
    NEAP_WANT_VECTOR, /* [n] */
    NEAP_WANT_CONV,   /* [n, 1, k] or [n, k] */
    NEAP_WANT_DECAY,  /* A_log: n values or more, [m] or [1, 1, m, 1]; kept as exp */
    NEAP_WANT_MIX,    /* AttnRes: name_norm.weight [n] times name_proj.weight [1, n], or .norm_weight, .proj_weight */
    NEAP_WANT_KV_B,   /* a matrix that is split per head into k_up and v_up */
    NEAP_WANT_COPY    /* [n, k]: known and checked, but a copy of another tensor: not loaded */
} neap_want_kind;

enum { NEAP_NAME_BYTES = 192 };

typedef struct neap_want {
    neap_want_kind kind;
    const char *name; /* without .weight for MATRIX, KV_B and COPY; without the suffixes for MIX; else whole */
    int64_t n, k;     /* k = 1 for vectors */
    bool is_optional;
    bool is_matrix_like;        /* kind MATRIX, KV_B or COPY */
    int32_t group;              /* memory block: layers, draft layers, the rest of the network, the embedding */
    int32_t expert;             /* -1: not a routed expert */
    bool is_draft;              /* of a draft layer */
    bool is_embedding, is_head; /* also copies for draft layers */
    bool is_linear;             /* MATRIX: `neap quantize --linear` may change its form */
    union {
        neap_matrix *matrix; /* NULL while the array of experts does not exist yet */
        const float **vector;
    } to;
    neap_mla_weights *mla; /* KV_B */
    const neap_mla_spec *mla_spec;
} neap_want;

/* How this checkpoint spells its common parts. */
typedef struct neap_weight_names {
    char root[32];   /* "model." or "language_model.model." ... */
    char layers[48]; /* "model.layers." ... */
    char head[48];   /* "lm_head" ... */
} neap_weight_names;

/* Looks which spelling the checkpoint uses. */
void neap_weights_find_names(const neap_model *m, const neap_checkpoint *c, neap_weight_names *names);

/* false stops the walk. want and its name are valid during the call. */
typedef bool (*neap_want_fn)(void *user, const neap_want *want);
/* Returns false when the visitor stopped. */
bool neap_weights_visit(neap_model *m, const neap_weight_names *names, neap_want_fn fn, void *user);

/* A lower bound for the number of stored tensors that the network needs, without walking. */
int64_t neap_weights_count_min(const neap_network *net);
/* Allocates the arrays that depend on counts: experts and heads. */
NEAP_MUST_CHECK neap_status neap_weights_make_arrays(neap_model *m);

/* Parameters of the whole list and of what one token uses (with the head, without embedding row and draft layers). */
typedef struct neap_weight_tally {
    uint64_t parameters, active;
} neap_weight_tally;
void neap_weights_tally(neap_weight_tally *t, const neap_want *want, const neap_network *net, bool is_tied);
/* Adds one tensor of `bytes` bytes in memory to what a step reads and multiplies. */
void neap_weights_count_work(neap_weight_work *t, const neap_want *want, uint64_t bytes, const neap_network *net,
                             bool is_tied);

#endif
