/* Writes JSON; see json_out.h.
 *
 * The comma in front of a value follows from the last byte written: none after '{', '[' or ':' and none at the
 * very beginning. So there is no state besides the text itself. Output is ASCII-safe for control characters
 * and leaves valid UTF-8 as it is.
 *
 * Called by the commands that print JSON and by the conversation (requests to the chat encoder). */
#include "json_out.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void escaped(neap_cli_text *t, const char *s, size_t n) {
    neap_cli_text_add(t, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t bad, length = neap_cli_utf8_length(s + i, n - i, &bad);
        if (length == 0) {
            neap_cli_text_puts(t, "\xef\xbf\xbd");
            i += bad;
            continue;
        }
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            neap_cli_text_printf(t, "\\%c", c);
        else if (c == '\n')
            neap_cli_text_puts(t, "\\n");
        else if (c == '\r')
            neap_cli_text_puts(t, "\\r");
        else if (c == '\t')
            neap_cli_text_puts(t, "\\t");
        else if (c < 0x20 || c == 0x7f)
            neap_cli_text_printf(t, "\\u%04x", c);
        else
            neap_cli_text_add(t, s + i, length);
        i += length;
    }
    neap_cli_text_add(t, "\"", 1);
}

static void begin(neap_cli_text *t, const char *key) {
    char last = t->n > 0 ? t->data[t->n - 1] : '[';
    if (last != '{' && last != '[' && last != ':') neap_cli_text_add(t, ",", 1);
    if (key == NULL) return;
    escaped(t, key, strlen(key));
    neap_cli_text_add(t, ":", 1);
}

void neap_cli_json_open(neap_cli_text *t, const char *key, char bracket) {
    begin(t, key);
    neap_cli_text_add(t, &bracket, 1);
}

void neap_cli_json_close(neap_cli_text *t, char bracket) { neap_cli_text_add(t, &bracket, 1); }

void neap_cli_json_string(neap_cli_text *t, const char *key, const char *s, size_t n) {
    begin(t, key);
    escaped(t, s, n);
}

void neap_cli_json_cstring(neap_cli_text *t, const char *key, const char *s) {
    begin(t, key);
    if (s == NULL)
        neap_cli_text_puts(t, "null");
    else
        escaped(t, s, strlen(s));
}

void neap_cli_json_int(neap_cli_text *t, const char *key, int64_t value) {
    begin(t, key);
    neap_cli_text_printf(t, "%lld", (long long)value);
}

void neap_cli_json_uint(neap_cli_text *t, const char *key, uint64_t value) {
    begin(t, key);
    neap_cli_text_printf(t, "%llu", (unsigned long long)value);
}

void neap_cli_json_real(neap_cli_text *t, const char *key, double value, int digits) {
    begin(t, key);
    if (!isfinite(value))
        neap_cli_text_puts(t, "null");
    else
        neap_cli_text_printf(t, "%.*g", digits, value);
}

void neap_cli_json_bool(neap_cli_text *t, const char *key, int value) {
    begin(t, key);
    neap_cli_text_puts(t, value ? "true" : "false");
}

void neap_cli_json_raw(neap_cli_text *t, const char *key, const char *json, size_t n) {
    begin(t, key);
    neap_cli_text_add(t, json, n);
}
