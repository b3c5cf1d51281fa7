/* Standard output and standard error as the user sees them: generated text on one, everything else on the
 * other; colours, progress line and carriage returns only on a terminal; signals. */
#ifndef NEAP_APPS_TERMINAL_H
#define NEAP_APPS_TERMINAL_H

#include <stddef.h>
#include <stdint.h>

#include "neap.h"

/* colors: "auto", "always" or "never". */
void neap_cli_terminal_init(const char *colors, int is_quiet, int is_verbose);
int neap_cli_stdout_is_tty(void);
int neap_cli_stderr_is_tty(void);
int neap_cli_is_verbose(void);
/* Timings are shown: on a terminal unless quiet, elsewhere only when verbose. */
int neap_cli_wants_timings(void);

/* Replaces control characters (C0 but newline and tab, DEL, C1) by '?' in place; returns the new length. */
size_t neap_cli_clean(char *text, size_t n);

/* Writes to standard output and flushes. On a terminal control characters are replaced: a model's text must not drive
 * it. Once the reader is gone (EPIPE) all output is dropped; any other write
 * error prints one line. neap_cli_output_code: 0, or the exit code that a write error asks for. */
void neap_cli_out(const char *bytes, size_t n);
void neap_cli_outf(const char *format, ...) __attribute__((format(printf, 1, 2)));
int neap_cli_output_is_closed(void); /* nobody reads any more, or writing failed */
int neap_cli_output_code(void);

/* One line of information on standard error (a progress line is wiped first). */
void neap_cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reasoning: standard error, dimmed where colours are on. End with neap_cli_dim_end. */
void neap_cli_dim(const char *bytes, size_t n);
void neap_cli_dim_end(void);

/* A line with a bar, redrawn in place; nothing at all when standard error is not a terminal. rate: units per
 * second, 0 = unknown. */
void neap_cli_progress(const char *what, const char *unit, uint64_t done, uint64_t total, double rate);
void neap_cli_progress_clear(void);

/* Sinks for the library's options. */
void neap_cli_log(void *user, neap_log_level level, const char *text);
void neap_cli_load_progress(void *user, const char *what, uint64_t done, uint64_t total);

/* Signals. Outside an answer SIGINT, SIGTERM and SIGHUP end the program at once. Between answer_begin and answer_end,
 * and from hold on, the first one is only noted (neap_cli_signal gives its number); a second one ends the program, but
 * SIGHUP never does. */
void neap_cli_signals_init(void);
void neap_cli_signals_hold(void);
void neap_cli_answer_begin(void);
void neap_cli_answer_end(void);
int neap_cli_signal(void); /* 0 = none */
void neap_cli_signal_clear(void);
/* Waits until standard input has something to read (or its end): 1. 0: a signal was noted. */
int neap_cli_wait_input(void);

double neap_cli_seconds(void); /* monotonic clock */

#endif
