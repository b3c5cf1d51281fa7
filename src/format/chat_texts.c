/* The fixed sentences of the K3 prompt, from the model directory.
 *
 * encoding_texts.json holds them as a flat object of strings and wins when present. Otherwise the vendor's
 * encoder file, encoding_k3.py, is read as text: pystring.c finds its string literals, with "{...}" fields
 * marked, and the table below recognises each sentence by the facts that the prompt format itself fixes (the
 * json fence, the `name=value` in back quotes, the heading level). Two different candidates for one sentence
 * leave it unknown. An unknown sentence is an error only when a request needs it (chat_xtml.c).
 *
 * Called by tokenizer_load.c. Owns the texts. Nothing is executed.
 * Source: tokenizer and chat notes, section 5 (order of the prompt). */
#include "format/chat_texts.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "format/json.h"
#include "format/pystring.h"

enum { PATH_BYTES = 4096 };
#define TEXT_FILE_MAX (1u << 20)

const char *const neap_chat_text_keys[NEAP_TEXT_COUNT] = {
#define NEAP_CHAT_TEXT_KEY(name, key) [NEAP_TEXT_##name] = key,
    NEAP_CHAT_TEXT_MAP(NEAP_CHAT_TEXT_KEY)
#undef NEAP_CHAT_TEXT_KEY
};

void neap_chat_texts_free(neap_chat_texts *t) {
    for (int i = 0; i < NEAP_TEXT_COUNT; i++) neap_mem_free(t->text[i]);
    *t = (neap_chat_texts){0};
}

static neap_status copy_text(char **out, const char *s, size_t n) {
    NEAP_TRY(neap_mem_alloc(n + 1, (void **)out));
    memcpy(*out, s, n);
    return NEAP_OK;
}

/* ------------------------------------------------------------- encoding_k3.py ---------------- */

#define FENCE "```json\n" NEAP_PY_FIELD "\n```"

typedef struct scan {
    neap_chat_texts *texts;
    bool ambiguous[NEAP_TEXT_COUNT];
} scan;

static neap_status offer(scan *s, neap_chat_text which, const char *text, size_t n) {
    char **slot = &s->texts->text[which];
    if (*slot != NULL) {
        if (strlen(*slot) != n || memcmp(*slot, text, n) != 0) s->ambiguous[which] = true;
        return NEAP_OK;
    }
    return copy_text(slot, text, n);
}

/* A sentence in front of a json fence: tool declarations and the schema message. */
static neap_status recognise_fence(scan *s, const char *text, const char *fence) {
    size_t n = (size_t)(fence - text);
    if (fence[strlen(FENCE)] != 0) return NEAP_OK; /* the fence must close the sentence */
    if (strstr(text, "`response_format=json_schema`")) return offer(s, NEAP_TEXT_JSON_SCHEMA, text, n);
    /* The renderer writes the blank line itself. */
    if (n < 2 || memcmp(fence - 2, "\n\n", 2) != 0 || text[0] != '#') return NEAP_OK;
    bool first = strncmp(text, "# Tools\n", 8) == 0;
    return offer(s, first ? NEAP_TEXT_TOOLS : NEAP_TEXT_MORE_TOOLS, text, n - 2);
}

static neap_status recognise_effort(scan *s, const char *text, const char *field) {
    char *whole = NULL;
    size_t head = (size_t)(field - text);
    const char *tail = field + strlen(NEAP_PY_FIELD);
    if (strstr(tail, NEAP_PY_FIELD)) return NEAP_OK;
    size_t bytes = head + strlen("{effort}") + strlen(tail) + 1;
    NEAP_TRY(neap_mem_alloc(bytes, (void **)&whole));
    int n = snprintf(whole, bytes, "%.*s{effort}%s", (int)head, text, tail);
    neap_status status = offer(s, NEAP_TEXT_EFFORT, whole, (size_t)n);
    neap_mem_free(whole);
    return status;
}

static neap_status recognise(void *user, const char *text) {
    scan *s = user;
    const char *at;
    if ((at = strstr(text, FENCE)) != NULL) return recognise_fence(s, text, at);
    if ((at = strstr(text, "`thinking_effort=" NEAP_PY_FIELD "`")) != NULL)
        return recognise_effort(s, text, at + strlen("`thinking_effort="));
    if (strstr(text, NEAP_PY_FIELD)) return NEAP_OK;
    if (strstr(text, "`tool_choice=required`")) return offer(s, NEAP_TEXT_CHOICE_REQUIRED, text, strlen(text));
    if (strstr(text, "`tool_choice=none`")) return offer(s, NEAP_TEXT_CHOICE_NONE, text, strlen(text));
    if (strstr(text, "`response_format=json_object`")) return offer(s, NEAP_TEXT_JSON_OBJECT, text, strlen(text));
    return NEAP_OK;
}

neap_status neap_chat_texts_scan(neap_chat_texts *t, const char *source, size_t n) {
    scan s = {.texts = t};
    neap_status status = neap_py_strings(source, n, recognise, &s);
    for (int i = 0; i < NEAP_TEXT_COUNT; i++) {
        if (!s.ambiguous[i] && status == NEAP_OK) continue;
        neap_mem_free(t->text[i]);
        t->text[i] = NULL;
    }
    return status;
}

/* ------------------------------------------------------------- files ------------------------- */

static neap_status load_json(neap_chat_texts *t, const neap_json *doc) {
    NEAP_CHECK(neap_json_type_of(doc) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "must be an object of strings");
    for (int i = 0; i < NEAP_TEXT_COUNT; i++) {
        const neap_json *value = neap_json_get(doc, neap_chat_text_keys[i]);
        if (value == NULL) continue;
        NEAP_CHECK(neap_json_type_of(value) == NEAP_JSON_STRING, NEAP_BAD_FILE, "%s: must be a string",
                   neap_chat_text_keys[i]);
        size_t n;
        const char *text = neap_json_string(value, &n);
        NEAP_TRY(copy_text(&t->text[i], text, n));
    }
    return NEAP_OK;
}

/* NEAP_NOT_FOUND: the directory has no file of that name. Whatever else lies there is opened, so that a FIFO or a
 * link that loops is an error with its name and never a wait. */
static neap_status load_texts_json(neap_chat_texts *t, const char *path) {
    neap_json *doc = NULL;
    NEAP_TRY(neap_json_load(&doc, path, TEXT_FILE_MAX));
    neap_status status = load_json(t, doc);
    neap_json_free(doc);
    return status == NEAP_OK ? NEAP_OK : neap_fail_prefix(status, "%s", path);
}

static neap_status load_encoder(neap_chat_texts *t, const char *path) {
    char *source = NULL;
    size_t n = 0;
    NEAP_TRY(neap_file_read(&source, &n, path, TEXT_FILE_MAX));
    neap_status status = neap_chat_texts_scan(t, source, n);
    neap_mem_free(source);
    return status == NEAP_OK ? NEAP_OK : neap_fail_prefix(status, "%s", path);
}

static neap_status text_path(char *path, const char *dir, const char *name) {
    int n = snprintf(path, PATH_BYTES, "%s/%s", dir, name);
    NEAP_CHECK(n > 0 && n < PATH_BYTES, NEAP_LIMIT, "the path of %s is longer than %d bytes", name, PATH_BYTES - 1);
    return NEAP_OK;
}

neap_status neap_chat_texts_load(neap_chat_texts *t, const char *dir) {
    char path[PATH_BYTES];
    NEAP_TRY(text_path(path, dir, "encoding_texts.json"));
    neap_status status = load_texts_json(t, path);
    if (status != NEAP_NOT_FOUND) return status;
    NEAP_TRY(text_path(path, dir, "encoding_k3.py"));
    status = load_encoder(t, path);
    return status == NEAP_NOT_FOUND ? NEAP_OK : status;
}
