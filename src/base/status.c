/* The text of the latest failure, one buffer per thread.
 *
 * A failing function stores one line and returns its code; callers pass the code on unchanged and may put a
 * prefix in front once they know the file's name. Arguments often come from outside (names in files), so
 * control characters are replaced: a message can never fake a second line or colour a terminal. */
#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NEAP_ERROR_BYTES = 1024 };

static _Thread_local char error_text[NEAP_ERROR_BYTES];

const char *neap_version(void) { return NEAP_VERSION; }

const char *neap_status_name(neap_status s) {
    switch (s) {
#define NEAP_STATUS_CASE(name, value, text) \
    case NEAP_##name: return #name;
        NEAP_STATUS_MAP(NEAP_STATUS_CASE)
#undef NEAP_STATUS_CASE
    }
    return "UNKNOWN";
}

const char *neap_status_text(neap_status s) {
    switch (s) {
#define NEAP_STATUS_CASE(name, value, text) \
    case NEAP_##name: return text;
        NEAP_STATUS_MAP(NEAP_STATUS_CASE)
#undef NEAP_STATUS_CASE
    }
    return "unknown status";
}

const char *neap_last_error(void) { return error_text; }

void neap_make_printable(char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s, next = (unsigned char)s[1];
        if (c < 0x20 || c == 0x7f) *s = '?';
        /* U+0080 .. U+009F: some terminals obey these as they obey escapes */
        if (c == 0xc2 && next >= 0x80 && next <= 0x9f) s[0] = s[1] = '?';
    }
}

neap_status neap_fail(neap_status code, const char *format, ...) {
    /* Formatted aside first: an argument may be the stored text itself. */
    char line[NEAP_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) line[0] = 0;
    neap_make_printable(line);
    memcpy(error_text, line, sizeof line);
    return code;
}

neap_status neap_fail_prefix(neap_status code, const char *format, ...) {
    char prefix[NEAP_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    return neap_fail(code, "%s: %s", n < 0 ? "" : prefix, error_text);
}

const char *neap_size_text(uint64_t bytes, char text[NEAP_SIZE_TEXT]) {
    const uint64_t mib = UINT64_C(1) << 20;
    if (bytes < mib)
        (void)snprintf(text, NEAP_SIZE_TEXT, "%" PRIu64 " bytes", bytes);
    else
        (void)snprintf(text, NEAP_SIZE_TEXT, "%.1f MiB", (double)bytes / (double)mib);
    return text;
}

void neap_error_copy(char *text, size_t capacity) {
    if (capacity == 0) return;
    size_t n = strlen(error_text);
    if (n >= capacity) n = capacity - 1;
    memcpy(text, error_text, n);
    text[n] = 0;
}
