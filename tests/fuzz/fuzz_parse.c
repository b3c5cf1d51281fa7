/* Any sequence of tokens as an answer. The first byte chooses format, thinking and tools; then a byte below 0xD0 is
 * the token of that byte, one from there up is a special token or takes a second byte for a longer token.
 * Deltas are whole UTF-8, calls come before their arguments with rising indices, and the end comes once and last. */
#include "fuzz/fuzz_text.h"

typedef struct seen {
    int32_t calls;
    int ended;
} seen;

static void take(neap_chat_parser *p, seen *s) {
    neap_chat_delta d;
    while (neap_chat_parser_next(p, &d) == NEAP_OK) {
        demand(!s->ended);
        demand(neap_utf8_valid(d.text, d.text_bytes) == d.text_bytes && d.text[d.text_bytes] == 0);
        switch (d.kind) {
        case NEAP_CHAT_TOOL_CALL:
            demand(d.index == s->calls++);
            demand(d.name[0] != 0 && d.id[0] != 0 && d.text_bytes == 0);
            break;
        case NEAP_CHAT_TOOL_ARGS: demand(d.index == s->calls - 1 && d.text_bytes > 0); break;
        case NEAP_CHAT_MESSAGE_END: s->ended = 1; break;
        default: demand(d.text_bytes > 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const neap_tokenizer *both[2];
    if (both[0] == NULL) {
        both[0] = golden_tokenizer("tokenizer_config_k3.json");
        both[1] = golden_tokenizer("tokenizer_config.json");
    }
    if (size == 0) return 0;
    const neap_tokenizer *t = both[data[0] & 1];
    static const char with[] = "{\"messages\":[{\"role\":\"user\"}],\"thinking\":false,\"tools\":[{}]}";
    static const char without[] = "{\"messages\":[{\"role\":\"user\"}]}";
    const char *request = data[0] & 4 ? NULL : data[0] & 2 ? with : without;
    neap_chat_parser *p = NULL;
    seen s = {0};
    demand(neap_chat_parser_create(&p, t, request, request ? strlen(request) : 0) == NEAP_OK);
    for (size_t i = 1; i < size; i++) {
        int32_t token = data[i];
        if (token >= 0xD0 && token < 0xF0)
            token = neap_tokenizer_base(t) + token - 0xD0;
        else if (token >= 0xF0 && i + 1 < size)
            token = (token - 0xF0) * 256 + data[++i];
        if (token >= neap_tokenizer_vocab(t)) token = 0;
        demand(neap_chat_parser_feed(p, token) == NEAP_OK);
        if (data[0] & 8) take(p, &s);
    }
    demand(neap_chat_parser_finish(p) == NEAP_OK);
    take(p, &s);
    neap_chat_parser_destroy(p);
    return 0;
}
