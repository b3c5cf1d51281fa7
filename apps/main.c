/* The program `neap`: parses the command line and calls the command.
 *
 * Everything in apps/ uses neap.h and nothing else of the library. The shape:
 *
 *   main -> command_line.c (tables: option_table.c; help.c)
 *        -> run.c chat_loop.c chat_commands.c tokenize.c info.c logits.c quantize.c
 *             verify.c perplexity.c eval.c bench.c
 *             server/serve.c (the server)
 *             session.c (model, engine)  generate.c (one answer)  conversation.c (messages)
 *             terminal.c (both output streams, signals)  report.c (errors, exit codes)
 *             buffer.c json_in.c json_out.c */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "neap.h"
#include "report.h"
#include "terminal.h"

static int help(const neap_cli_options *o) {
    if (o->args[0] == NULL) {
        neap_cli_help_all();
        return NEAP_EXIT_OK;
    }
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        if (strcmp(o->args[0], neap_cli_command_table[i].name) != 0) continue;
        neap_cli_help_command((neap_cli_command)i);
        return NEAP_EXIT_OK;
    }
    neap_cli_error("no command \"%s\" (neap help lists the commands)", o->args[0]);
    return NEAP_EXIT_USAGE;
}

static int completion(const neap_cli_options *o) {
    if (strcmp(o->args[0], "bash") == 0) {
        neap_cli_print_completion();
        return NEAP_EXIT_OK;
    }
    neap_cli_error("no completion for \"%s\", only for bash", o->args[0]);
    return NEAP_EXIT_USAGE;
}

static int version(void) {
    neap_cli_outf("neap %s\n", neap_version());
    return NEAP_EXIT_OK;
}

static int command(neap_cli_options *o) {
    if (o->version) return version();
    if (o->help && o->command != NEAP_CLI_HELP) {
        neap_cli_help_command((neap_cli_command)o->command);
        return NEAP_EXIT_OK;
    }
    switch ((neap_cli_command)o->command) {
    case NEAP_CLI_RUN: return neap_cli_run(o);
    case NEAP_CLI_CHAT: return neap_cli_chat(o);
    case NEAP_CLI_SERVE: return neap_cli_serve(o);
    case NEAP_CLI_TOKENIZE: return neap_cli_tokenize(o);
    case NEAP_CLI_INFO: return neap_cli_info(o);
    case NEAP_CLI_LOGITS: return neap_cli_logits(o);
    case NEAP_CLI_QUANTIZE: return neap_cli_quantize(o);
    case NEAP_CLI_VERIFY: return neap_cli_verify(o);
    case NEAP_CLI_PERPLEXITY: return neap_cli_perplexity(o);
    case NEAP_CLI_EVAL: return neap_cli_eval(o);
    case NEAP_CLI_BENCH: return neap_cli_bench(o);
    case NEAP_CLI_TUNE: return neap_cli_tune(o);
    case NEAP_CLI_DOCTOR: return neap_cli_doctor(o);
    case NEAP_CLI_CACHE: return neap_cli_cache(o);
    case NEAP_CLI_COMPLETION: return completion(o);
    case NEAP_CLI_MAN: neap_cli_print_man(); return NEAP_EXIT_OK;
    case NEAP_CLI_VERSION: return version();
    case NEAP_CLI_HELP: return help(o);
    case NEAP_CLI_COMMANDS: break;
    }
    return NEAP_EXIT_INTERNAL;
}

int main(int argc, char **argv) {
    neap_cli_options o;
    neap_cli_signals_init();
    int code = neap_cli_options_parse(&o, argc, argv);
    if (code == NEAP_EXIT_OK) {
        const char *colors = strcmp(o.log_colors, "on") == 0    ? "always"
                             : strcmp(o.log_colors, "off") == 0 ? "never"
                                                                : o.log_colors;
        neap_cli_terminal_init(colors, o.quiet, o.verbose);
        code = command(&o);
        neap_cli_dim_end();
        if (code == NEAP_EXIT_OK) code = neap_cli_output_code();
    }
    neap_cli_options_free(&o);
    return code;
}
