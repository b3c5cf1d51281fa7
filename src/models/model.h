/* neap_model: a parsed config, a checked tensor table, packed weights and the tokenizer.
 *
 * config*.c    config.json -> neap_network specs (one declarative field table, then cross-field rules)
 * weights.c    specs -> the list of tensors that the checkpoint must hold (name, shape, where it goes)
 * match.c      compares the whole list with the checkpoint before any data is touched
 * pack.c       reads and packs what was matched
 * load.c       runs these steps: open, close, describe
 * Families hold no code paths of their own beyond their field names and defaults. */
#ifndef NEAP_MODELS_MODEL_H
#define NEAP_MODELS_MODEL_H

#include "base/arena.h"
#include "base/log.h"
#include "format/checkpoint.h"
#include "layers/layer.h"

typedef enum neap_family {
    NEAP_FAMILY_KIMI_LINEAR,
    NEAP_FAMILY_KIMI_K3,
    NEAP_FAMILY_KIMI_K31,
    NEAP_FAMILY_DEEPSEEK_V32,
    NEAP_FAMILY_GLM_MOE_DSA
} neap_family;

/* Bytes in memory and multiply-adds of a row, of the layers without draft layers: what every step uses, the head, and
 * all routed experts. The embedding counts where it is the head. */
typedef struct neap_weight_part {
    uint64_t bytes, multiply_adds;
} neap_weight_part;
typedef struct neap_weight_work {
    neap_weight_part fixed, head, experts;
} neap_weight_work;

struct neap_model {
    neap_arena *arena; /* weights, vectors, names */
    neap_family family;
    const char *model_type; /* as in config.json */
    const char *dir;
    int32_t context_max;
    bool is_loaded;     /* false: describe_only */
    bool is_from_cache; /* packed weights were read, not made */
    bool is_tied;       /* the head is the embedding */
    uint32_t cpu_flags; /* as chosen at open; engines use the same */
    neap_log log;
    neap_network net;
    neap_tokenizer *tokenizer; /* NULL: none in the directory */
    uint64_t parameters, parameters_active, file_bytes, packed_bytes;
    neap_weight_work work;
    const char *weight_formats;
    bool has_int_experts, has_int_others; /* some of these matrices are INT8 or MXFP4 */
};

/* Fills net (specs only), family, model_type, context_max from config.json in dir. */
NEAP_MUST_CHECK neap_status neap_config_read(neap_model *m, const char *dir, float latent_norm_eps);

#endif
