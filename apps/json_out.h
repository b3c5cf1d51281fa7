/* Writes JSON into a growing text: commas and escapes are its business, nesting is the caller's. */
#ifndef NEAP_APPS_JSON_OUT_H
#define NEAP_APPS_JSON_OUT_H

#include "buffer.h"

/* Values inside an object take a key; inside an array and at the top the key is NULL. Bytes that are not UTF-8
 * become U+FFFD. Numbers that JSON does not know (NaN, infinities) become null. */
void neap_cli_json_open(neap_cli_text *t, const char *key, char bracket); /* '{' or '[' */
void neap_cli_json_close(neap_cli_text *t, char bracket);                 /* '}' or ']' */
void neap_cli_json_string(neap_cli_text *t, const char *key, const char *s, size_t n);
void neap_cli_json_cstring(neap_cli_text *t, const char *key, const char *s); /* NULL: null */
void neap_cli_json_int(neap_cli_text *t, const char *key, int64_t value);
void neap_cli_json_uint(neap_cli_text *t, const char *key, uint64_t value);
void neap_cli_json_real(neap_cli_text *t, const char *key, double value, int digits); /* significant digits */
void neap_cli_json_bool(neap_cli_text *t, const char *key, int value);
void neap_cli_json_raw(neap_cli_text *t, const char *key, const char *json, size_t n); /* checked JSON text */

#endif
