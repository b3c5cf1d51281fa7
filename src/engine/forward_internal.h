/* The step's struct, for the two files that implement it (forward.c, forward_caches.c). */
#ifndef NEAP_ENGINE_FORWARD_INTERNAL_H
#define NEAP_ENGINE_FORWARD_INTERNAL_H

#include "cache/caches.h"
#include "engine/forward.h"
#include "layers/builder.h"
#include "runtime/plan.h"

struct neap_forward {
    neap_arena *arena;
    const neap_model *model;
    neap_kernels kernels;
    neap_team *team;
    neap_plan *plan;
    neap_caches caches;
    neap_cache_layer_spec *cache_specs;
    neap_batch batch;
    int32_t rows_max, seqs_max, logits_max;
    void *work; /* region of all step buffers */
    uint64_t work_bytes;
    float *logits;       /* [logits_max][vocab] */
    int32_t *row_logits; /* [rows_max] logits row of a row, -1 none */
    neap_forward_options options;
};

#endif
