/* Expected tensors against stored ones. Everything is compared before any data is read. */
#ifndef NEAP_MODELS_MATCH_H
#define NEAP_MODELS_MATCH_H

#include "models/weights.h"

/* What was found for one want, in the order of the walk. */
typedef struct neap_match {
    const neap_stored_tensor *data;  /* NULL: optional and absent. MIX: the norm weight */
    const neap_stored_tensor *scale; /* FP8 weight_scale_inv, MXFP4 and INT8 weight_scale, MIX: the projection row */
} neap_match;

typedef struct neap_matches {
    neap_weight_names names;
    neap_match *items; /* [n] neap_mem memory */
    int64_t n, capacity;
    uint64_t *group_bytes; /* [n_groups] packed bytes of each memory block, neap_mem memory */
    int32_t n_groups;
    neap_weight_tally tally;
    neap_weight_work work;
    uint32_t kinds_dense, kinds_experts; /* masks 1 << neap_matrix_kind */
    uint32_t kinds_multiplied;           /* kinds_dense without an embedding that is only looked up */
} neap_matches;

/* Fails with one line that counts the mismatches and names the first; when not all fit, twenty go to the log (INFO). */
NEAP_MUST_CHECK neap_status neap_match_all(neap_matches *out, neap_model *m, const neap_checkpoint *c, bool is_strict);
void neap_matches_free(neap_matches *t);

/* load.c: what neap_model_open does before it reads weights. On success *c and *t are the caller's to close and free
 * before the model; on failure all three are empty. o is complete (see neap_model_options_init). */
NEAP_MUST_CHECK neap_status neap_model_open_headers(neap_model **out, neap_checkpoint **c, neap_matches *t,
                                                    const char *path, const neap_model_options *o);

/* Kind in memory of a matrix stored as dtype. */
neap_matrix_kind neap_match_kind(neap_dtype dtype);
/* The matrix in memory of a MATRIX want, without its data. */
void neap_match_shape(neap_matrix *m, const neap_want *want, const neap_match *match);
/* Makes the arrays of experts and heads and gives every matrix of m->net its shape; data stay NULL. Sizes, work and
 * plans are computed from shapes alone, so this is all that a describe_only model needs. */
NEAP_MUST_CHECK neap_status neap_match_set_shapes(neap_model *m, const neap_matches *t);
/* Bytes that one want takes in its block, rounded up to 64 per array. */
uint64_t neap_match_bytes(const neap_want *want, const neap_match *match);

#endif
