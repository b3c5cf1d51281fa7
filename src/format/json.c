/* JSON documents of moderate size (config.json, requests) through jansson, which no other file includes.
 *
 * jansson 2.14 parses and frees recursively to a depth of 2048 and gives a tree of about 30 times the size of the text
 * in the worst case, so a first pass over the bytes refuses what must not reach it: depth above 64, more than
 * NEAP_JSON_NODES values, NUL bytes. jansson then checks the grammar, UTF-8, number ranges and repeated keys.
 *
 * Callers: config loaders, tokenizer settings, chat requests. The tree belongs to the caller (neap_json_free); strings
 * and values are borrowed from it.
 */
#include "format/json.h"

#include <jansson.h>
#include <string.h>

#include "base/arena.h"

enum { NEAP_JSON_NODES = 1 << 20 };

/* Line and column (both from 1, columns in characters) of a byte. */
static void place_of(const char *text, size_t at, size_t *line, size_t *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

static neap_status fail_at(const char *what, const char *text, size_t at, const char *message) {
    size_t line, column;
    place_of(text, at, &line, &column);
    return neap_fail(NEAP_BAD_FILE, "%s: line %zu, column %zu: %s", what, line, column, message);
}

/* Depth and number of values, without any regard to correctness: text that fools this pass (brackets that do not
 * match, a string that does not end) only ever counts too much or is refused by the grammar. */
static neap_status check_limits(const char *text, size_t n, const char *what) {
    size_t depth = 0, nodes = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == 0) return fail_at(what, text, i, "NUL byte");
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && depth > 0) depth--;
        if (c == ',' || c == '{' || c == '[') nodes++;
        if (depth > NEAP_JSON_DEPTH) return fail_at(what, text, i, "nested more than 64 deep");
        if (nodes > NEAP_JSON_NODES) return fail_at(what, text, i, "more than 1048576 values");
    }
    return NEAP_OK;
}

neap_status neap_json_parse(neap_json **out, const char *text, size_t n, const char *what) {
    *out = NULL;
    NEAP_CHECK(n > 0, NEAP_BAD_FILE, "%s: empty", what);
    NEAP_TRY(check_limits(text, n, what));
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root) {
        neap_status code = json_error_code(&error) == json_error_out_of_memory ? NEAP_NO_MEMORY : NEAP_BAD_FILE;
        NEAP_FAIL(code, "%s: line %d, column %d: %s", what, error.line, error.column, error.text);
    }
    *out = root;
    return NEAP_OK;
}

neap_status neap_json_load(neap_json **out, const char *path, uint64_t bytes_max) {
    *out = NULL;
    char *text = NULL;
    size_t n = 0;
    NEAP_TRY(neap_file_read(&text, &n, path, bytes_max));
    neap_status status = neap_json_parse(out, text, n, path);
    neap_mem_free(text);
    return status;
}

void neap_json_free(neap_json *j) { json_decref(j); }

neap_json_type neap_json_type_of(const neap_json *j) {
    if (!j) return NEAP_JSON_NULL;
    switch (json_typeof(j)) {
    case JSON_OBJECT: return NEAP_JSON_OBJECT;
    case JSON_ARRAY: return NEAP_JSON_ARRAY;
    case JSON_STRING: return NEAP_JSON_STRING;
    case JSON_INTEGER: return NEAP_JSON_INT;
    case JSON_REAL: return NEAP_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return NEAP_JSON_BOOL;
    case JSON_NULL: break;
    }
    return NEAP_JSON_NULL;
}

const neap_json *neap_json_get(const neap_json *object, const char *key) { return json_object_get(object, key); }

size_t neap_json_size(const neap_json *j) {
    if (json_is_array(j)) return json_array_size(j);
    return json_is_object(j) ? json_object_size(j) : 0;
}

const neap_json *neap_json_at(const neap_json *array, size_t i) { return json_array_get(array, i); }

int64_t neap_json_int(const neap_json *j) { return json_integer_value(j); }

double neap_json_real(const neap_json *j) { return json_number_value(j); }

bool neap_json_bool(const neap_json *j) { return json_is_true(j); }

const char *neap_json_string(const neap_json *j, size_t *n) {
    if (n) *n = json_string_length(j);
    return json_string_value(j);
}

void *neap_json_iter(const neap_json *object, void *iter, const char **key, const neap_json **value) {
    /* jansson's iteration takes a mutable object but only the setter changes it. */
    json_t *o = (json_t *)(uintptr_t)object;
    void *next = iter ? json_object_iter_next(o, iter) : json_object_iter(o);
    if (!next) return NULL;
    if (key) *key = json_object_iter_key(next);
    if (value) *value = json_object_iter_value(next);
    return next;
}
