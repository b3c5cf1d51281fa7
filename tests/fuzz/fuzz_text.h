/* For fuzz targets of the text side: the golden tokenizer in its two flavours. It stays open until the program ends. */
#ifndef NEAP_TESTS_FUZZ_TEXT_H
#define NEAP_TESTS_FUZZ_TEXT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/tokenizer_inner.h"
#include "format/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void demand(int condition) {
    if (!condition) abort();
}

/* config: tokenizer_config.json or tokenizer_config_k3.json of the golden data. */
static inline neap_tokenizer *golden_tokenizer(const char *config) {
    static char sentence[] = "a fixed sentence";
    char dir[] = "/tmp/neap-fuzz-XXXXXX", model[64], table[64], from[512];
    neap_tokenizer *t = NULL;
    demand(mkdtemp(dir) != NULL);
    snprintf(model, sizeof model, "%s/tiktoken.model", dir);
    snprintf(table, sizeof table, "%s/tokenizer_config.json", dir);
    demand(symlink(NEAP_TEST_DATA "/golden/tokenizer/tiktoken.model", model) == 0);
    snprintf(from, sizeof from, "%s/golden/tokenizer/%s", NEAP_TEST_DATA, config);
    demand(symlink(from, table) == 0);
    if (neap_tokenizer_open(&t, dir) != NEAP_OK) {
        fprintf(stderr, "%s\n", neap_last_error());
        abort();
    }
    demand(unlink(model) == 0 && unlink(table) == 0 && rmdir(dir) == 0);
    for (int i = 0; i < NEAP_TEXT_COUNT; i++) t->texts.text[i] = sentence;
    return t;
}

#endif
