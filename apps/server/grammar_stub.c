/* Stands in for constrained decoding until src/format has it; CMakeLists.txt leaves it out from then on. */
#include "neap.h"

void neap_grammar_limits_init(neap_grammar_limits *l) { *l = (neap_grammar_limits){.struct_size = sizeof *l}; }

neap_status neap_grammar_create(neap_grammar **out, const neap_tokenizer *t, const char *json, size_t json_bytes,
                                const neap_grammar_limits *limits) {
    (void)t;
    (void)json;
    (void)json_bytes;
    (void)limits;
    *out = NULL;
    return NEAP_UNSUPPORTED;
}

void neap_grammar_destroy(neap_grammar *g) { (void)g; }
