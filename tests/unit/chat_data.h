/* For tests of the tokenizer and the chat: temporary model directories and whole golden files. */
#ifndef NEAP_TESTS_UNIT_CHAT_DATA_H
#define NEAP_TESTS_UNIT_CHAT_DATA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "format/chat.h"
#include "format/json.h"

#define GOLDEN NEAP_TEST_DATA "/golden/"

#define ok(call)                                                                                        \
    do {                                                                                                \
        neap_status ok_status_ = (call);                                                                \
        if (ok_status_ != NEAP_OK) fail_msg("%s: %s", neap_status_name(ok_status_), neap_last_error()); \
    } while (0)

/* The failure has this status and its text holds `part`. */
#define fails(call, status, part)                                                         \
    do {                                                                                  \
        neap_status fails_status_ = (call);                                               \
        if (fails_status_ != (status) || strstr(neap_last_error(), part) == NULL)         \
            fail_msg("wanted %s with \"%s\", got %s: %s", neap_status_name(status), part, \
                     neap_status_name(fails_status_), neap_last_error());                 \
    } while (0)

typedef struct model_dir {
    char path[64];
} model_dir;

static inline void dir_make(model_dir *d) {
    strcpy(d->path, "/tmp/neap-test-XXXXXX");
    assert_non_null(mkdtemp(d->path));
}

static inline void dir_put(const model_dir *d, const char *name, const void *data, size_t n) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void dir_put_text(const model_dir *d, const char *name, const char *text) {
    dir_put(d, name, text, strlen(text));
}

static inline void dir_copy(const model_dir *d, const char *name, const char *from) {
    char *text = NULL;
    size_t n = 0;
    ok(neap_file_read(&text, &n, from, 64u << 20));
    dir_put(d, name, text, n);
    neap_mem_free(text);
}

static inline void dir_remove(const model_dir *d) {
    static const char *const names[] = {"tiktoken.model",         "tokenizer_config.json", "config.json",
                                        "generation_config.json", "encoding_texts.json",   "encoding_k3.py"};
    char path[160];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", d->path, names[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(d->path), 0);
}

#define MARKERS GOLDEN "tokenizer/tokenizer_config.json"
#define XTML GOLDEN "tokenizer/tokenizer_config_k3.json"

/* The golden vocabulary with one of its two sets of special tokens; fixed sentences are their own names. */
static inline neap_tokenizer *golden_tokenizer(const char *config) {
    static const char texts[] =
        "{\"tools_text\":\"{{tools_text}}\",\"more_tools_text\":\"{{more_tools_text}}\","
        "\"effort_text\":\"{{effort_text}}`thinking_effort={effort}`.\","
        "\"tool_choice_required_text\":\"{{tool_choice_required_text}}\","
        "\"tool_choice_none_text\":\"{{tool_choice_none_text}}\","
        "\"json_object_text\":\"{{json_object_text}}\",\"json_schema_text\":\"{{json_schema_text}}\"}";
    model_dir d;
    neap_tokenizer *t = NULL;
    dir_make(&d);
    dir_copy(&d, "tiktoken.model", GOLDEN "tokenizer/tiktoken.model");
    dir_copy(&d, "tokenizer_config.json", config);
    dir_put_text(&d, "encoding_texts.json", texts);
    ok(neap_tokenizer_open(&t, d.path));
    dir_remove(&d);
    return t;
}

/* xorshift: the same sequence everywhere. */
static inline uint32_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

#endif
