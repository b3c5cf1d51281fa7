/* The library fills the caller's buffers and says when they are too small. Here are the buffers: a guess, then what it
 * said. Used by commands and server, by any thread. Owns nothing. */
#include "encode.h"

#include <stdlib.h>

neap_status neap_cli_text_to_tokens(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags,
                                    int32_t **tokens, size_t *n_tokens) {
    size_t capacity = n / 2 + 64;
    *tokens = neap_cli_alloc(capacity, sizeof **tokens);
    neap_status status = neap_tokenize(t, text, n, flags, *tokens, capacity, n_tokens);
    if (status != NEAP_TOO_SMALL) return status;
    *tokens = neap_cli_grow(*tokens, *n_tokens, sizeof **tokens);
    return neap_tokenize(t, text, n, flags, *tokens, *n_tokens, n_tokens);
}

neap_status neap_cli_chat_to_tokens(const neap_tokenizer *t, const char *json, size_t n, int32_t **tokens,
                                    size_t *n_tokens, int32_t **marks, size_t *n_marks) {
    size_t capacity = n / 2 + 256, marks_capacity = 256, count = 0;
    int32_t *places = NULL;
    neap_status status = NEAP_TOO_SMALL;
    *tokens = NULL;
    for (int round = 0; status == NEAP_TOO_SMALL && round < 3; round++) {
        *tokens = neap_cli_grow(*tokens, capacity, sizeof **tokens);
        places = neap_cli_grow(places, marks_capacity, sizeof *places);
        status = neap_chat_encode_marked(t, json, n, *tokens, capacity, n_tokens, places, marks_capacity, &count);
        capacity = *n_tokens > capacity ? *n_tokens : capacity;
        marks_capacity = count > marks_capacity ? count : marks_capacity;
    }
    if (marks == NULL) {
        free(places);
    } else {
        *marks = places;
        *n_marks = count;
    }
    return status;
}

neap_status neap_cli_tokens_to_text(const neap_tokenizer *t, const int32_t *tokens, size_t n, uint32_t flags,
                                    neap_cli_text *out) {
    size_t needed = 0;
    neap_status status = neap_detokenize(t, tokens, n, flags, NULL, 0, &needed);
    if (status != NEAP_OK && status != NEAP_TOO_SMALL) return status;
    char *text = neap_cli_alloc(needed + 1, 1);
    status = neap_detokenize(t, tokens, n, flags, text, needed, &needed);
    if (status == NEAP_OK) neap_cli_text_add(out, text, needed);
    free(text);
    return status;
}
