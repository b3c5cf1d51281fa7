/* A chat request, whatever it holds, in both formats: refused with a reason, or tokens in range; and an answer
 * parser can be made for every request that is taken. */
#include "fuzz/fuzz_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const neap_tokenizer *both[2];
    static int32_t tokens[1 << 20];
    if (both[0] == NULL) {
        both[0] = golden_tokenizer("tokenizer_config_k3.json");
        both[1] = golden_tokenizer("tokenizer_config.json");
    }
    for (int k = 0; k < 2; k++) {
        size_t n = 0;
        neap_status status = neap_chat_encode(both[k], (const char *)data, size, tokens, 1 << 20, &n);
        demand(status == NEAP_OK || status == NEAP_INVALID_ARGUMENT || status == NEAP_UNSUPPORTED ||
               status == NEAP_LIMIT || status == NEAP_TOO_SMALL);
        if (status != NEAP_OK) {
            demand(neap_last_error()[0] != 0);
            continue;
        }
        for (size_t i = 0; i < n; i++) demand(tokens[i] >= 0 && tokens[i] < neap_tokenizer_vocab(both[k]));
        neap_chat_parser *p = NULL;
        demand(neap_chat_parser_create(&p, both[k], (const char *)data, size) == NEAP_OK);
        neap_chat_parser_destroy(p);
    }
    return 0;
}
