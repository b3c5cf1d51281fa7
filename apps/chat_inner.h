/* The state of `neap chat`, shared by the loop (chat_loop.c) and its commands (chat_commands.c). */
#ifndef NEAP_APPS_CHAT_INNER_H
#define NEAP_APPS_CHAT_INNER_H

#include "conversation.h"
#include "generate.h"
#include "lines.h"

typedef struct neap_cli_chat_state {
    neap_cli_options *options; /* /set changes them */
    neap_cli_session session;
    neap_cli_conversation conversation;
    neap_cli_lines *lines;
    neap_cli_text attached; /* files read with /read, for the next message */
    int is_multiline, wants_exit;
    int n_hints; /* Ctrl-C at an empty prompt, in a row */
    /* for /stats */
    uint64_t n_answers, n_prompt, n_new;
    double prompt_seconds, new_seconds;
    char last_timings[256];
} neap_cli_chat_state;

/* Makes an answer to the conversation as it stands. Exit code; a failure leaves the conversation unchanged. */
int neap_cli_chat_answer(neap_cli_chat_state *c);
/* Runs a line that begins with '/'. Failures are printed and change nothing. */
void neap_cli_chat_command(neap_cli_chat_state *c, char *line);
/* Tokens of the conversation with a prompt for the next answer. Exit code. */
int neap_cli_chat_encode(neap_cli_chat_state *c, neap_cli_text *request, int32_t **tokens, size_t *n_tokens);

#endif
