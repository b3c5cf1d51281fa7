/* The plan of one step as a list of ops and phases, for `neap info --plan`. */
#ifndef NEAP_APPS_PLAN_LIST_H
#define NEAP_APPS_PLAN_LIST_H

#include "json_out.h"
#include "neap.h"

typedef struct neap_cli_op {
    char name[40];
    int32_t phase, layer, stream, after_op;
    uint64_t bytes;
    double multiply_adds;
} neap_cli_op;

/* Ops of one phase lie side by side; a barrier ends it. */
typedef struct neap_cli_plan_phase {
    int32_t first, n_ops;        /* ops first .. first + n_ops - 1 */
    int32_t layer;               /* of its first op */
    int32_t stream, after_phase; /* -1: waits for no event */
    uint64_t bytes;
    double multiply_adds;
} neap_cli_plan_phase;

typedef struct neap_cli_plan {
    neap_cli_op *ops;
    neap_cli_plan_phase *phases;
    int32_t n_ops, n_phases;
} neap_cli_plan;

/* Exit code. */
int neap_cli_plan_read(neap_cli_plan *p, const neap_model *m, const neap_engine_options *e, int32_t n_seqs,
                       int32_t n_tokens, int64_t depth);
void neap_cli_plan_free(neap_cli_plan *p);

/* "KDA", "MLA" or "" by the ops that a layer has. */
const char *neap_cli_layer_kind(const neap_cli_plan *p, int32_t layer);
/* "barriers per layer: KDA 6, MLA 8", with counts of layers where they differ. */
void neap_cli_barriers_text(const neap_cli_plan *p, neap_cli_text *out);
void neap_cli_plan_table(const neap_cli_plan *p, neap_cli_text *out);
void neap_cli_plan_json(const neap_cli_plan *p, neap_cli_text *out); /* members of an open object */
void neap_cli_plan_dot(const neap_cli_plan *p, neap_cli_text *out);

#endif
