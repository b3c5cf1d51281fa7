/* How close to the machine's limits: for `neap bench`. */
#ifndef NEAP_APPS_ROOFLINE_H
#define NEAP_APPS_ROOFLINE_H

#include "command_line.h"
#include "json_out.h"
#include "neap.h"

/* What a step of decoding and a whole prompt must do at least, and the shares of the limits they reached; share 0:
 * nothing was measured. */
typedef struct neap_cli_share {
    neap_work decode;            /* one step */
    double prompt_multiply_adds; /* all of it */
    double decode_share;         /* bytes over memory bandwidth over time */
    double prompt_share;         /* multiply-adds over the float32 peak over time */
} neap_cli_share;

/* About a second; keeps the larger of what `best` holds and what is measured now. A machine without the memory for it
 * leaves `best` as it was. */
void neap_cli_limits_measure(const neap_cli_options *o, neap_limits *best);
/* n_seqs prompts of n_prompt tokens each in chunks of e->batch_tokens_max, then n_seqs tokens a step at `depth`.
 * Seconds of a prompt token and of a step; 0: not measured. Exit code. */
int neap_cli_share_find(const neap_model *m, const neap_engine_options *e, const neap_limits *limits, int32_t n_seqs,
                        int64_t n_prompt, int64_t depth, double prompt_seconds, double step_seconds,
                        neap_cli_share *out);
void neap_cli_limits_print(const neap_limits *l);                        /* one line of text */
void neap_cli_limits_json(neap_cli_text *t, const neap_limits *l);       /* "limits": {...} */
void neap_cli_share_json(neap_cli_text *t, const neap_cli_share *share); /* members of a depth */

#endif
