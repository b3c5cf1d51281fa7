/* Defaults and limits of everything a caller may set: one table per struct. */
#ifndef NEAP_ENGINE_OPTIONS_H
#define NEAP_ENGINE_OPTIONS_H

#include <stdbool.h>

#include "base/status.h"

#define NEAP_BIAS_MAX 1024
#define NEAP_REQUEST_STOP_TOKENS_MAX 64
#define NEAP_MARKS_MAX 65536

/* What a request is checked against. */
typedef struct neap_request_limits {
    int32_t vocab;
    int32_t context_max;
    bool has_tokenizer;
    bool has_taps;
} neap_request_limits;

/* Takes options of any known struct_size (NULL: the defaults) and checks every range. */
NEAP_MUST_CHECK neap_status neap_engine_options_take(neap_engine_options *out, const neap_engine_options *in);
NEAP_MUST_CHECK neap_status neap_tuning_take(neap_tuning *out, const neap_tuning *in);
/* The same for a request, with all cross-checks. max_tokens comes out clamped to the context. */
NEAP_MUST_CHECK neap_status neap_request_take(neap_request *out, const neap_request *in,
                                              const neap_request_limits *limits);

#endif
