/* One line to the caller's log callback; without a callback, warnings and errors go to stderr.
 *
 * This is the only file of the library that writes to a stream. Text may quote names from files, so control
 * characters are replaced. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"

void neap_log_write(const neap_log *log, neap_log_level level, const char *format, ...) {
    bool has_sink = log && log->fn;
    if (!has_sink && level < NEAP_LOG_WARN) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return;
    neap_make_printable(line);
    if (has_sink) {
        log->fn(log->user, level, line);
        return;
    }
    fprintf(stderr, "neap: %s%s\n", level == NEAP_LOG_WARN ? "warning: " : "", line);
}
