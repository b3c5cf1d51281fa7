/* Text files of a model directory: tiktoken.model, and encoding_k3.py, whose string literals are read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/chat_texts.h"
#include "format/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

/* A vocabulary that was taken finds each of its tokens, and all single bytes. */
static void check(const neap_vocab *v) {
    demand(v->n >= 256);
    for (int32_t id = 0; id < v->n; id++) {
        const char *bytes = v->bytes + v->start[id];
        size_t n = v->start[id + 1] - v->start[id];
        demand(n > 0 && n <= v->token_bytes_max);
        demand(neap_vocab_find(v, bytes, n, neap_vocab_hash(v, bytes, n)) == id);
    }
    for (int i = 0; i < 256; i++) demand(v->byte_id[i] >= 0 && v->byte_id[i] < v->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    neap_vocab v = {0};
    neap_status status = neap_vocab_parse(&v, (const char *)data, size);
    demand(status == NEAP_OK || status == NEAP_BAD_FILE || status == NEAP_LIMIT);
    if (status == NEAP_OK)
        check(&v);
    else
        demand(v.bytes == NULL && v.slots == NULL && strstr(neap_last_error(), "line ") != NULL);
    neap_vocab_free(&v);

    neap_chat_texts texts = {0};
    demand(neap_chat_texts_scan(&texts, (const char *)data, size) == NEAP_OK);
    neap_chat_texts_free(&texts);
    return 0;
}
