/* A stand-in for engine/forward.c: the same functions, no model. Linking this file instead of the real one lets
 * test_engine.c look at the scheduler, sampler, text and events alone, and break things on purpose.
 *
 * The toy model: every slot keeps a hash of all tokens so far; logits are a hash of that and the token id, so
 * they depend on the whole prefix, like a real model's. A script can make a sequence say given tokens. */
#ifndef FAKE_FORWARD_H
#define FAKE_FORWARD_H

#include "engine/forward.h"

enum { FAKE_LOG_MAX = 65536, FAKE_SCRIPTS_MAX = 8 };

/* Makes sequences whose first token is `first` continue with the script once n_prompt tokens are computed. */
typedef struct fake_script {
    int32_t first, n_prompt, n_tokens;
    const int32_t *tokens;
} fake_script;

typedef struct fake_row {
    int32_t run, slot, n_rows;
    int64_t position;
} fake_row;

typedef struct fake_control {
    int32_t n_runs;
    int32_t rows_max_seen;
    int32_t fail_run;     /* this run fails; 0: none */
    bool is_close_bad;    /* closing a slot finds its books wrong */
    int32_t nan_first;    /* sequences with this first token ... */
    int64_t nan_position; /* ... get a NaN in the logits of this position; -1: never */
    fake_script scripts[FAKE_SCRIPTS_MAX];
    int32_t n_scripts;
    fake_row log[FAKE_LOG_MAX];
    int32_t n_log;
    void (*before_run)(void); /* called inside a step */
    neap_x_form act, moe_act; /* of the latest forward */
} fake_control;

extern fake_control fake;
void fake_reset(void);
/* The logit that the toy model gives `token` after the prefix. */
float fake_logit(const int32_t *prefix, int64_t n, int32_t token);

#endif
