/* Errors and exit codes of the program; see report.h.
 *
 * The table below is the only place that turns a library status into an exit code. It has two columns,
 * because a limit that is passed while a model is opened is the model's fault, and the user's fault (or the
 * machine's) afterwards.
 *
 * Called by all commands. */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "terminal.h"

static const struct {
    neap_status status;
    int opening, running;
} exit_codes[] = {
    {NEAP_OK, NEAP_EXIT_OK, NEAP_EXIT_OK},
    {NEAP_AGAIN, NEAP_EXIT_INTERNAL, NEAP_EXIT_INTERNAL},
    {NEAP_TOO_SMALL, NEAP_EXIT_INTERNAL, NEAP_EXIT_INTERNAL},
    {NEAP_INVALID_ARGUMENT, NEAP_EXIT_USAGE, NEAP_EXIT_USAGE},
    {NEAP_BAD_FILE, NEAP_EXIT_FILE, NEAP_EXIT_FILE},
    {NEAP_UNSUPPORTED, NEAP_EXIT_FILE, NEAP_EXIT_USAGE},
    {NEAP_NOT_FOUND, NEAP_EXIT_FILE, NEAP_EXIT_FILE},
    {NEAP_IO, NEAP_EXIT_FILE, NEAP_EXIT_RESOURCE},
    {NEAP_NO_MEMORY, NEAP_EXIT_RESOURCE, NEAP_EXIT_RESOURCE},
    {NEAP_LIMIT, NEAP_EXIT_FILE, NEAP_EXIT_USAGE},
    {NEAP_CONTEXT_FULL, NEAP_EXIT_USAGE, NEAP_EXIT_USAGE},
    {NEAP_BUSY, NEAP_EXIT_RESOURCE, NEAP_EXIT_RESOURCE},
    {NEAP_NUMERIC, NEAP_EXIT_FILE, NEAP_EXIT_INTERNAL},
    {NEAP_CANCELLED, NEAP_EXIT_INTERRUPTED, NEAP_EXIT_INTERRUPTED},
    {NEAP_INTERNAL, NEAP_EXIT_INTERNAL, NEAP_EXIT_INTERNAL},
};

void neap_cli_error(const char *format, ...) {
    char line[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return;
    line[neap_cli_clean(line, strlen(line))] = 0;
    for (char *c = line; *c != 0; c++) {
        if (*c == '\n' || *c == '\t') *c = '?'; /* one line, whatever the arguments hold */
    }
    neap_cli_progress_clear();
    fprintf(stderr, "neap: %s\n", line);
}

int neap_cli_exit_code(neap_status status, neap_cli_phase phase) {
    for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++) {
        if (exit_codes[i].status != status) continue;
        return phase == NEAP_CLI_OPENING ? exit_codes[i].opening : exit_codes[i].running;
    }
    return NEAP_EXIT_INTERNAL;
}

int neap_cli_failed(neap_status status, neap_cli_phase phase) {
    if (status == NEAP_OK) return NEAP_EXIT_OK;
    const char *text = neap_last_error();
    neap_cli_error("%s", text != NULL && text[0] != 0 ? text : neap_status_text(status));
    return neap_cli_exit_code(status, phase);
}
