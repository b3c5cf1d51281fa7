/* Reads every matched tensor and packs it into the model's blocks. */
#ifndef NEAP_MODELS_PACK_H
#define NEAP_MODELS_PACK_H

#include "models/packed.h"

typedef struct neap_pack_options {
    int32_t n_threads; /* >= 1 */
    bool allow_nonfinite;
    neap_progress_fn progress;
    void *progress_user;
    neap_blocks *blocks;
    neap_packed *keep; /* told what is filled; NULL: nobody */
    bool is_filled;    /* the blocks are: only the pointers of m->net are set ... */
    bool is_reread;    /* ... and all is read again for the checkpoint's digests */
} neap_pack_options;

/* Fills all weights of m->net, whose shapes are set. Deterministic: the result does not depend on n_threads.
 * *n_nonfinite: how many values are not finite, if that is allowed. */
NEAP_MUST_CHECK neap_status neap_pack_all(neap_model *m, const neap_checkpoint *c, const neap_matches *matches,
                                          const neap_pack_options *o, int64_t *n_nonfinite);

#endif
