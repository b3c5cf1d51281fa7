/* Lines from the user: edited with history on a terminal, read plainly otherwise. */
#ifndef NEAP_APPS_LINES_H
#define NEAP_APPS_LINES_H

#include "buffer.h"

typedef struct neap_cli_lines neap_cli_lines;

typedef enum neap_cli_line { NEAP_CLI_LINE, NEAP_CLI_LINE_INTERRUPT, NEAP_CLI_LINE_END } neap_cli_line;

neap_cli_lines *neap_cli_lines_open(void);
void neap_cli_lines_close(neap_cli_lines *l);
int neap_cli_lines_is_terminal(const neap_cli_lines *l); /* somebody types: prompts make sense */
/* The next line without its newline, appended to out. INTERRUPT: Ctrl-C was pressed, *out is unchanged. */
neap_cli_line neap_cli_lines_read(neap_cli_lines *l, const char *prompt, neap_cli_text *out);
/* Puts a whole message into the history. */
void neap_cli_lines_remember(neap_cli_lines *l, const char *text);

#endif
