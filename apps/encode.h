/* Text, conversations and tokens into each other, in buffers that fit. */
#ifndef NEAP_APPS_ENCODE_H
#define NEAP_APPS_ENCODE_H

#include "buffer.h"
#include "neap.h"

/* *tokens, *marks are for free(), also after a failure. */
neap_status neap_cli_text_to_tokens(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags,
                                    int32_t **tokens, size_t *n_tokens);
/* Without `marks` they are not wanted. */
neap_status neap_cli_chat_to_tokens(const neap_tokenizer *t, const char *json, size_t n, int32_t **tokens,
                                    size_t *n_tokens, int32_t **marks, size_t *n_marks);
/* Appends. */
neap_status neap_cli_tokens_to_text(const neap_tokenizer *t, const int32_t *tokens, size_t n, uint32_t flags,
                                    neap_cli_text *out);

#endif
