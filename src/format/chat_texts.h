/* The fixed sentences of the K3 prompt. They belong to a checkpoint, so they are read from its directory. */
#ifndef NEAP_FORMAT_CHAT_TEXTS_H
#define NEAP_FORMAT_CHAT_TEXTS_H

#include "base/status.h"

/* name in encoding_texts.json */
#define NEAP_CHAT_TEXT_MAP(X)                       \
    X(TOOLS, "tools_text")                          \
    X(MORE_TOOLS, "more_tools_text")                \
    X(EFFORT, "effort_text")                        \
    X(CHOICE_REQUIRED, "tool_choice_required_text") \
    X(CHOICE_NONE, "tool_choice_none_text")         \
    X(JSON_OBJECT, "json_object_text")              \
    X(JSON_SCHEMA, "json_schema_text")

typedef enum neap_chat_text {
#define NEAP_CHAT_TEXT_ENUM(name, key) NEAP_TEXT_##name,
    NEAP_CHAT_TEXT_MAP(NEAP_CHAT_TEXT_ENUM)
#undef NEAP_CHAT_TEXT_ENUM
        NEAP_TEXT_COUNT
} neap_chat_text;

typedef struct neap_chat_texts {
    char *text[NEAP_TEXT_COUNT]; /* 0-terminated UTF-8; NULL: unknown */
} neap_chat_texts;

extern const char *const neap_chat_text_keys[NEAP_TEXT_COUNT];

/* Reads encoding_texts.json, else encoding_k3.py; neither present: all unknown. t must be zeroed. */
NEAP_MUST_CHECK neap_status neap_chat_texts_load(neap_chat_texts *t, const char *dir);
void neap_chat_texts_free(neap_chat_texts *t);
/* Recognises the sentences among the string literals of a Python source, which is never executed. */
NEAP_MUST_CHECK neap_status neap_chat_texts_scan(neap_chat_texts *t, const char *source, size_t n);

#endif
