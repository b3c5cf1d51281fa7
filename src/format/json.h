/* JSON from outside, through jansson behind this file: depth at most 64, duplicate keys refused, UTF-8 checked,
 * size limit given by the caller; errors name file, line and column. Values are borrowed from the document.
 * (safetensors headers do not come here: they are scanned by checkpoint.c, they can be tens of megabytes.) */
#ifndef NEAP_FORMAT_JSON_H
#define NEAP_FORMAT_JSON_H

#include <stdbool.h>

#include "base/status.h"

typedef struct json_t neap_json; /* a jansson value; only format/json.c includes jansson.h */

enum { NEAP_JSON_DEPTH = 64 };

/* what: file name or "request", for messages. Free with neap_json_free. */
NEAP_MUST_CHECK neap_status neap_json_parse(neap_json **out, const char *text, size_t n, const char *what);
NEAP_MUST_CHECK neap_status neap_json_load(neap_json **out, const char *path, uint64_t bytes_max);
void neap_json_free(neap_json *j);

typedef enum neap_json_type {
    NEAP_JSON_NULL,
    NEAP_JSON_BOOL,
    NEAP_JSON_INT,
    NEAP_JSON_REAL,
    NEAP_JSON_STRING,
    NEAP_JSON_ARRAY,
    NEAP_JSON_OBJECT
} neap_json_type;
neap_json_type neap_json_type_of(const neap_json *j);                     /* NULL pointer: NEAP_JSON_NULL */
const neap_json *neap_json_get(const neap_json *object, const char *key); /* NULL: absent or not an object */
size_t neap_json_size(const neap_json *j);                                /* array or object, else 0 */
const neap_json *neap_json_at(const neap_json *array, size_t i);
int64_t neap_json_int(const neap_json *j);
double neap_json_real(const neap_json *j); /* INT or REAL */
bool neap_json_bool(const neap_json *j);
const char *neap_json_string(const neap_json *j, size_t *n); /* may contain no NUL; 0-terminated */
/* Iterates an object: pass NULL first. Returns NULL at the end. */
void *neap_json_iter(const neap_json *object, void *iter, const char **key, const neap_json **value);

/* Reads a whole regular file (O_CLOEXEC, size limit, S_ISREG) into neap_mem memory, 0-terminated. */
NEAP_MUST_CHECK neap_status neap_file_read(char **out, size_t *n, const char *path, uint64_t bytes_max);

#endif
