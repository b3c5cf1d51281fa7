/* Names for the rows of the option tables (option_table.c, option_machine.c): sets of commands, headings, places. */
#ifndef NEAP_APPS_OPTION_ROWS_H
#define NEAP_APPS_OPTION_ROWS_H

#include "command_line.h"

#define RUN (1u << NEAP_CLI_RUN)
#define CHAT (1u << NEAP_CLI_CHAT)
#define SERVE (1u << NEAP_CLI_SERVE)
#define TOKENIZE (1u << NEAP_CLI_TOKENIZE)
#define INFO (1u << NEAP_CLI_INFO)
#define LOGITS (1u << NEAP_CLI_LOGITS)
#define QUANTIZE (1u << NEAP_CLI_QUANTIZE)
#define VERIFY (1u << NEAP_CLI_VERIFY)
#define PERPLEXITY (1u << NEAP_CLI_PERPLEXITY)
#define EVAL (1u << NEAP_CLI_EVAL)
#define BENCH (1u << NEAP_CLI_BENCH)
#define TUNE (1u << NEAP_CLI_TUNE)
#define DOCTOR (1u << NEAP_CLI_DOCTOR)
#define CACHE (1u << NEAP_CLI_CACHE)
/* commands that load the weights */
#define LOADS (RUN | CHAT | SERVE | LOGITS | VERIFY | PERPLEXITY | EVAL | BENCH | TUNE | DOCTOR)
#define STEPS \
    (RUN | CHAT | SERVE | LOGITS | VERIFY | PERPLEXITY | EVAL | BENCH) /* of them, those that run as the user says */
#define TALKS (RUN | CHAT)
#define ALL ((1u << NEAP_CLI_COMMANDS) - 1)
#define AT(field) offsetof(neap_cli_options, field)

/* headings in the help, in the order of help.c */
#define GROUP_COMMAND "This command"
#define GROUP_PROMPT "Prompt"
#define GROUP_SAMPLING "Sampling"
#define GROUP_SERVER "Server"
#define GROUP_ACCESS "Who may ask"
#define GROUP_PREFIX "Prefix cache"
#define GROUP_LIMITS "Limits"
#define GROUP_LOG "Log"
#define GROUP_OUTPUT "Output"
#define GROUP_MODEL "Model and machine"
#define GROUP_PLAN "How steps run"
#define GROUP_CACHE "Cache on disk"
#define GROUP_GENERAL "General"

typedef struct neap_cli_options_rows {
    const neap_cli_option *rows;
    size_t n;
} neap_cli_options_rows;
extern const neap_cli_options_rows neap_cli_machine_rows; /* option_machine.c */
extern const neap_cli_options_rows neap_cli_serve_rows;   /* option_serve.c */

#endif
