/* Reads every matched tensor and packs it into the model's arena. */
#ifndef NEAP_MODELS_PACK_H
#define NEAP_MODELS_PACK_H

#include "models/match.h"

typedef struct neap_pack_options {
    int32_t n_threads; /* >= 1 */
    bool allow_nonfinite;
    neap_progress_fn progress;
    void *progress_user;
} neap_pack_options;

/* Fills all weights of m->net, whose shapes are set. Deterministic: the result does not depend on n_threads. */
NEAP_MUST_CHECK neap_status neap_pack_all(neap_model *m, const neap_checkpoint *c, const neap_matches *matches,
                                          const neap_pack_options *o);

#endif
