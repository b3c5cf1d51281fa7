/* Any bytes as a request for a grammar, and any choice of tokens in its answer. Up to the first NUL: the request; what
 * is behind it chooses tokens, one by two bytes. Small limits, so that many schemas are tried.
 * Refused with a reason, or: something may always follow, what the mask allows is taken, nothing else is. */
#include "base/arena.h"
#include "format/grammar.h"
#include "fuzz/fuzz_text.h"

enum { WORDS = 512 };

static void answer(const neap_grammar *g, const neap_tokenizer *t, const uint8_t *data, size_t size) {
    static uint32_t mask[WORDS];
    static int32_t allowed[WORDS * 32];
    neap_arena *arena = NULL;
    neap_grammar_state *s = NULL;
    int32_t vocab = neap_grammar_vocab(g);
    demand(vocab == neap_tokenizer_vocab(t) && vocab <= WORDS * 32);
    demand(neap_arena_create(&arena, "fuzz") == NEAP_OK);
    demand(neap_grammar_begin(&s, g, arena) == NEAP_OK);
    uint64_t calls = neap_alloc_calls();
    for (size_t i = 0; i + 1 < size && i < 400; i += 2) {
        int32_t n = 0, any = (data[i] * 256 + data[i + 1]) % vocab;
        demand(neap_grammar_mask(s, mask, data[i] % 2 ? data[i + 1] : INT64_MAX)); /* few tokens left, or any number */
        for (int32_t k = 0; k < vocab; k++)
            if (mask[k / 32] >> (k % 32) & 1) allowed[n++] = k;
        demand(n > 0);
        if (neap_grammar_must_end(s)) demand(neap_grammar_may_end(s));
        demand(neap_grammar_accept(s, allowed[(data[i] * 256 + data[i + 1]) % n]) == NEAP_OK);
        demand(neap_grammar_mask(s, mask, INT64_MAX));
        bool may = mask[any / 32] >> (any % 32) & 1;
        if (data[i] % 4 == 0 && !may) (void)!neap_grammar_accept(s, any); /* a mask that was cut short may lack it */
    }
    demand(neap_alloc_calls() == calls);
    neap_arena_destroy(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const neap_tokenizer *both[2];
    if (both[0] == NULL) {
        both[0] = golden_tokenizer("tokenizer_config_k3.json");
        both[1] = golden_tokenizer("tokenizer_config.json");
    }
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size, more = zero ? n + 1 : size;
    neap_grammar_limits l;
    neap_grammar_limits_init(&l);
    l.states_max = 3000;
    l.depth_max = 8;
    l.milliseconds = 3600000; /* the time of a fuzzer says nothing; the states do */
    for (int k = 0; k < 2; k++) {
        neap_grammar *g = NULL;
        neap_status status = neap_grammar_create(&g, both[k], n ? (const char *)data : "", n, &l);
        demand(status == NEAP_OK || status == NEAP_INVALID_ARGUMENT || status == NEAP_UNSUPPORTED ||
               status == NEAP_LIMIT);
        demand(status == NEAP_OK || neap_last_error()[0] != 0);
        if (g != NULL) answer(g, both[k], data + more, size - more);
        neap_grammar_destroy(g);
    }
    return 0;
}
