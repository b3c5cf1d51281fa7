/* Logging through the caller's callback; without one, warnings and errors go to stderr. */
#ifndef NEAP_BASE_LOG_H
#define NEAP_BASE_LOG_H

#include <stdbool.h>

#include "neap.h"

typedef struct neap_log {
    neap_log_fn fn; /* NULL = the default sink */
    void *user;
} neap_log;

/* One line, no trailing newline; control characters from outside are replaced by '?'. log may be NULL. */
void neap_log_write(const neap_log *log, neap_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
