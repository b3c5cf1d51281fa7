/* A prediction for more cores from the costs of a plan's ops, measured here. */
#ifndef NEAP_APPS_PLAN_PREDICT_H
#define NEAP_APPS_PLAN_PREDICT_H

#include "command_line.h"
#include "plan_list.h"

enum { NEAP_CLI_CORES_MAX = 1024 };

typedef struct neap_cli_prediction {
    int32_t n_cores;                             /* predicted are 1 .. n_cores */
    int32_t n_threads;                           /* of the measurement with all threads */
    double measured_one, measured;               /* seconds of a step with one thread and with n_threads */
    double barrier_one, barrier;                 /* seconds between two phases, with one and with n_threads */
    double bandwidth_one, bandwidth;             /* bytes a second, of one thread and of as many as memory can feed */
    int has_scale;                               /* bandwidth is what --memory-scale says */
    double seconds[NEAP_CLI_CORES_MAX + 1];      /* of a step, [cores] */
    double memory_share[NEAP_CLI_CORES_MAX + 1]; /* of that, in phases that memory bounds */
} neap_cli_prediction;

/* Loads the model, decodes with one thread and with those of e, and predicts. Exit code. */
int neap_cli_predict(neap_cli_prediction *out, const neap_cli_options *o, const neap_engine_options *e,
                     const neap_cli_plan *p);
void neap_cli_prediction_table(const neap_cli_prediction *p, neap_cli_text *out);
void neap_cli_prediction_json(const neap_cli_prediction *p, neap_cli_text *out); /* a member of an open object */

#endif
