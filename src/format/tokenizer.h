/* Tokenizer and chat, inside view. The public calls of neap.h are implemented in tokenizer.c, chat_*.c. */
#ifndef NEAP_FORMAT_TOKENIZER_H
#define NEAP_FORMAT_TOKENIZER_H

#include <stdbool.h>

#include "base/status.h"

/* true for ids that must never be sampled: reserved slots without a name, [PAD], [UNK], [BOS]. */
bool neap_token_is_unsampled(const neap_tokenizer *t, int32_t token);
/* Ranks in tiktoken.model; special slots follow. */
int32_t neap_tokenizer_base(const neap_tokenizer *t);

/* UTF-8 hold-back: appends bytes, gives the text that is complete (each maximal invalid part becomes U+FFFD);
 * an incomplete tail waits for the next push or the flush. */
typedef struct neap_utf8 {
    unsigned char tail[4];
    int n_tail;
} neap_utf8;
/* out must hold 3 * (n + 4) bytes. Returns the bytes written. */
size_t neap_utf8_push(neap_utf8 *u, const char *bytes, size_t n, char *out);
size_t neap_utf8_flush(neap_utf8 *u, char *out); /* at most 3 * 4 bytes */

#endif
