/* Errors and exit codes of the program: one line on standard error, one table from status to exit code. */
#ifndef NEAP_APPS_REPORT_H
#define NEAP_APPS_REPORT_H

#include "neap.h"

enum {
    NEAP_EXIT_OK = 0,
    NEAP_EXIT_INTERNAL = 1, /* also: verify found a difference */
    NEAP_EXIT_USAGE = 2,
    NEAP_EXIT_FILE = 3,     /* a bad model or another bad file */
    NEAP_EXIT_RESOURCE = 4, /* memory, disk, descriptors */
    NEAP_EXIT_INTERRUPTED = 130,
    NEAP_EXIT_TERMINATED = 143
};

/* "neap: TEXT" on standard error, one line: control characters become '?'. */
void neap_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* What the program was doing: the same status can blame the file or the command line. */
typedef enum neap_cli_phase { NEAP_CLI_OPENING = 0, NEAP_CLI_RUNNING = 1 } neap_cli_phase;

int neap_cli_exit_code(neap_status status, neap_cli_phase phase);
/* Prints the library's latest failure and returns the exit code. NEAP_OK gives 0 and prints nothing. */
int neap_cli_failed(neap_status status, neap_cli_phase phase);

#endif
