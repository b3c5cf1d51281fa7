/* Text to ids and back: the ids are in range and spell the repaired text, with special tokens on and off. */
#include "fuzz/fuzz_text.h"

static void round_trip(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags) {
    size_t n_tokens = 0, bytes = 0, repaired = neap_utf8_repair(text, n, NULL);
    int32_t *tokens = calloc(3 * n + 1, sizeof *tokens);
    char *back = malloc(repaired + 1), *want = malloc(repaired + 1);
    demand(tokens && back && want);
    demand(neap_tokenize(t, text, n, flags, tokens, 3 * n + 1, &n_tokens) == NEAP_OK);
    for (size_t i = 0; i < n_tokens; i++) {
        demand(tokens[i] >= 0 && tokens[i] < neap_tokenizer_vocab(t));
        demand(flags || tokens[i] < neap_tokenizer_base(t)); /* plain text never gives a special token */
    }
    demand(neap_detokenize(t, tokens, n_tokens, NEAP_DETOKENIZE_SPECIAL, back, repaired, &bytes) == NEAP_OK);
    (void)neap_utf8_repair(text, n, want);
    demand(bytes == repaired && memcmp(back, want, bytes) == 0);
    free(tokens);
    free(back);
    free(want);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static neap_tokenizer *t;
    if (t == NULL) t = golden_tokenizer("tokenizer_config_k3.json");
    round_trip(t, (const char *)data, size, 0);
    round_trip(t, (const char *)data, size, NEAP_TOKENIZE_SPECIAL);
    return 0;
}
