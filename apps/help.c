/* Help, manual page and completion, all generated from the tables of options and commands; see command_line.h.
 *
 * The help is for reading in a terminal: wrapped to its width, options in groups. The manual page is mdoc(7)
 * source. The completion is a bash function without dependencies; it knows commands, the options of each,
 * choices, and that most words are files.
 *
 * Called by main. Prints to standard output. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "neap.h"
#include "option_rows.h"
#include "terminal.h"
#include "buffer.h"

static const char *const groups[] = {GROUP_COMMAND, GROUP_PROMPT, GROUP_SERVER, GROUP_ACCESS, GROUP_SAMPLING,
                                     GROUP_OUTPUT,  GROUP_MODEL,  GROUP_PREFIX, GROUP_LIMITS, GROUP_PLAN,
                                     GROUP_CACHE,   GROUP_LOG,    GROUP_GENERAL};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static const struct {
    int code;
    const char *text;
} exit_texts[] = {
    {0, "success"},
    {1, "internal error; verify, doctor, cache verify: something is wrong"},
    {2, "wrong usage"},
    {3, "bad model or other bad file"},
    {4, "out of memory, disk space or descriptors"},
    {129, "ended by SIGHUP"},
    {130, "ended by Ctrl-C"},
    {143, "ended by SIGTERM"},
};

static size_t width(void) {
    struct winsize size = {0};
    size_t columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 40 ? size.ws_col : 80;
    return columns > 100 ? 100 : columns;
}

/* Words of text from column `at` on, further lines indented; ends with a newline. */
static void wrap(neap_cli_text *out, const char *text, size_t at, size_t indent) {
    size_t columns = width();
    int is_first = 1;
    while (*text != 0) {
        size_t n = strcspn(text, " \n");
        if (!is_first && at + 1 + n > columns) {
            neap_cli_text_printf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (!is_first) {
            neap_cli_text_puts(out, " ");
            at++;
        }
        neap_cli_text_add(out, text, n);
        at += n;
        text += n;
        is_first = 0;
        if (*text == '\n') {
            neap_cli_text_printf(out, "\n%*s", (int)indent, "");
            at = indent;
            is_first = 1;
        }
        if (*text != 0) text++;
    }
    neap_cli_text_puts(out, "\n");
}

static void lines(neap_cli_text *out, const char *text, const char *before, const char *after) {
    while (*text != 0) {
        size_t n = strcspn(text, "\n");
        neap_cli_text_printf(out, "%s%.*s%s\n", before, (int)n, text, after);
        text += n + (text[n] == '\n');
    }
}

static void print(neap_cli_text *out) {
    neap_cli_out(neap_cli_text_string(out), out->n);
    neap_cli_text_free(out);
}

/* "-n, --predict N" with the other long names left to the manual page. */
static void option_title(neap_cli_text *out, const neap_cli_option *option) {
    const char *name = neap_cli_option_name(option);
    for (int k = 0; k < NEAP_CLI_NAMES && option->names[k] != NULL; k++) {
        if (option->names[k][1] != '-') neap_cli_text_printf(out, "%s, ", option->names[k]);
    }
    /* A switch that can be unsaid shows both forms. */
    int is_tristate = option->type == NEAP_CLI_BOOL && option->standard != NULL;
    neap_cli_text_printf(out, is_tristate ? "--[no-]%s" : "--%s", name + 2);
    if (option->value != NULL) neap_cli_text_printf(out, " %s", option->value);
}

static void option_help(neap_cli_text *out, const neap_cli_option *option) {
    enum { COLUMN = 32 };
    neap_cli_text title = {0}, text = {0};
    neap_cli_text_puts(&title, "  ");
    option_title(&title, option);
    neap_cli_text_puts(out, title.data);
    if (title.n + 2 > COLUMN)
        neap_cli_text_printf(out, "\n%*s", COLUMN, "");
    else
        neap_cli_text_printf(out, "%*s", (int)(COLUMN - title.n), "");
    neap_cli_text_puts(&text, option->help);
    if (option->standard != NULL) neap_cli_text_printf(&text, " [%s]", option->standard);
    wrap(out, text.data, COLUMN, COLUMN);
    neap_cli_text_free(&title);
    neap_cli_text_free(&text);
}

void neap_cli_help_command(neap_cli_command command) {
    const neap_cli_command_info *info = &neap_cli_command_table[command];
    neap_cli_text out = {0};
    int has_options = command < NEAP_CLI_COMPLETION;
    neap_cli_text_printf(&out, "neap %s: %s\n\nUsage: neap %s%s%s%s\n", info->name, info->summary, info->name,
                         info->arguments[0] != 0 ? " " : "", info->arguments, has_options ? " [OPTIONS]" : "");
    if (info->text != NULL) {
        neap_cli_text_puts(&out, "\n");
        wrap(&out, info->text, 0, 0);
    }
    for (int g = 0; g < GROUPS; g++) {
        int has_title = 0;
        for (size_t i = 0; i < neap_cli_option_count(); i++) {
            const neap_cli_option *option = neap_cli_option_at(i);
            if ((option->commands & 1u << command) == 0 || strcmp(option->group, groups[g]) != 0) continue;
            if (!has_title) neap_cli_text_printf(&out, "\n%s:\n", g == 0 ? "Options" : groups[g]);
            has_title = 1;
            option_help(&out, option);
        }
    }
    if (info->examples != NULL) {
        neap_cli_text_puts(&out, "\nExamples:\n");
        lines(&out, info->examples, "  ", "");
    }
    if (has_options)
        neap_cli_text_puts(
            &out, "\nMost options have an environment variable: --ctx-size is NEAP_CTX_SIZE. A flag goes before it.\n");
    print(&out);
}

void neap_cli_help_all(void) {
    neap_cli_text out = {0};
    neap_cli_text_printf(&out,
                         "neap %s: runs Kimi Linear, Kimi K3, K3.1 and related models on the CPU\n\n"
                         "Usage: neap COMMAND [ARGUMENTS] [OPTIONS]\n\nCommands:\n",
                         neap_version());
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        const neap_cli_command_info *info = &neap_cli_command_table[i];
        int n = (int)strlen(info->name) + 1 + (int)strlen(info->arguments);
        neap_cli_text_printf(&out, "  %s %s%*s%s\n", info->name, info->arguments, n < 24 ? 24 - n : 1, "",
                             info->summary);
    }
    neap_cli_text_puts(&out, "\nMODEL is a directory with config.json, *.safetensors and tiktoken.model.\n"
                             "neap COMMAND --help lists the options of a command; neap man is the manual page.\n"
                             "\nExamples:\n");
    lines(&out, neap_cli_command_table[NEAP_CLI_RUN].examples, "  ", "");
    neap_cli_text_puts(&out, "  neap chat models/valley\n\nExit status:\n");
    for (size_t i = 0; i < sizeof exit_texts / sizeof exit_texts[0]; i++)
        neap_cli_text_printf(&out, "  %-4d %s\n", exit_texts[i].code, exit_texts[i].text);
    print(&out);
}

/* ---- mdoc ---- */

static void mdoc_byte(neap_cli_text *out, char c) {
    if (c == '\\')
        neap_cli_text_puts(out, "\\e");
    else if (c == '-')
        neap_cli_text_puts(out, "\\-");
    else
        neap_cli_text_add(out, &c, 1);
}

/* Running text: a sentence begins a line (mdoc wants that), lines stay below 80 bytes, no line begins with a control
 * character. */
static void mdoc_text(neap_cli_text *out, const char *text) {
    size_t column = 0;
    while (*text != 0) {
        size_t n = strcspn(text, " \n");
        if (column > 0 && column + 2 * n > 78) neap_cli_text_puts(out, "\n"), column = 0;
        if (column > 0) neap_cli_text_puts(out, " "), column++;
        if (column == 0 && (*text == '.' || *text == '\'')) neap_cli_text_puts(out, "\\&");
        for (size_t i = 0; i < n; i++) mdoc_byte(out, text[i]);
        column += n;
        text += n;
        int ends_sentence = n > 0 && strchr(".:!?", text[-1]) != NULL;
        if (column > 0 && *text != 0 && (*text == '\n' || ends_sentence)) neap_cli_text_puts(out, "\n"), column = 0;
        if (*text != 0) text++;
    }
    neap_cli_text_puts(out, "\n");
}

/* Lines as they are. */
static void mdoc_literal(neap_cli_text *out, const char *text) {
    for (; *text != 0; text++) mdoc_byte(out, *text);
    neap_cli_text_puts(out, "\n");
}

static void mdoc_option(neap_cli_text *out, const neap_cli_option *option) {
    neap_cli_text_puts(out, ".It");
    int is_tristate = option->type == NEAP_CLI_BOOL && option->standard != NULL;
    for (int k = 0; k < NEAP_CLI_NAMES && option->names[k] != NULL; k++) {
        /* Fl prints one dash; a long name brings its second one. */
        const char *rest = option->names[k] + 1;
        neap_cli_text_printf(out, "%s Fl %s%s", k > 0 ? " ," : "", rest[0] == '-' ? "\\-" : "",
                             rest[0] == '-' ? rest + 1 : rest);
    }
    if (is_tristate) neap_cli_text_printf(out, " , Fl \\-no-%s", neap_cli_option_name(option) + 2);
    if (option->value != NULL) neap_cli_text_printf(out, " Ar %s", option->value);
    neap_cli_text_puts(out, "\n");
    neap_cli_text text = {0};
    neap_cli_text_puts(&text, option->help);
    if (option->type == NEAP_CLI_CHOICE) neap_cli_text_printf(&text, " (%s)", option->choices);
    if (option->standard != NULL) neap_cli_text_printf(&text, ". Default: %s", option->standard);
    neap_cli_text_puts(&text, ".");
    mdoc_text(out, text.data);
    text.n = 0;
    neap_cli_text_puts(&text, "Commands:");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        if (option->commands & 1u << i) neap_cli_text_printf(&text, " %s", neap_cli_command_table[i].name);
    }
    if (strcmp(option->group, "General") == 0)
        neap_cli_text_cut(&text, strlen("Commands:")), neap_cli_text_puts(&text, " all");
    if (option->has_environment) {
        char name[64];
        neap_cli_option_environment(option, name, sizeof name);
        neap_cli_text_printf(&text, ". Environment: %s", name);
    }
    neap_cli_text_puts(&text, ".");
    mdoc_text(out, text.data);
    neap_cli_text_free(&text);
}

void neap_cli_print_man(void) {
    neap_cli_text out = {0};
    neap_cli_text_puts(&out, ".Dd November 29, 2026\n.Dt NEAP 1\n.Os\n.Sh NAME\n.Nm neap\n"
                             ".Nd run Kimi hybrid language models on the CPU\n.Sh SYNOPSIS\n");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        const neap_cli_command_info *info = &neap_cli_command_table[i];
        neap_cli_text_printf(&out, ".Nm\n.Cm %s\n", info->name);
        if (info->arguments[0] == '[')
            neap_cli_text_puts(&out, ".Op Ar COMMAND\n");
        else if (info->arguments[0] != 0) {
            size_t n = strcspn(info->arguments, "[");
            int n_plain = (int)n - (info->arguments[n] == '['); /* without the blank before the bracket */
            neap_cli_text_printf(&out, ".Ar %.*s\n", n_plain, info->arguments);
            if (info->arguments[n] == '[')
                neap_cli_text_printf(&out, ".Op Ar %.*s\n", (int)(strlen(info->arguments + n) - 2),
                                     info->arguments + n + 1);
        }
        if (i < NEAP_CLI_COMPLETION) neap_cli_text_puts(&out, ".Op Ar OPTIONS\n");
    }
    neap_cli_text_puts(
        &out, ".Sh DESCRIPTION\n.Ar MODEL\nis a directory with\n.Pa config.json ,\n.Pa *.safetensors\nand\n"
              ".Pa tiktoken.model .\nGenerated text goes to standard output, everything else to standard error.\n"
              ".Sh COMMANDS\n.Bl -tag -width Ds\n");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        const neap_cli_command_info *info = &neap_cli_command_table[i];
        neap_cli_text_printf(&out, ".It Cm %s\n", info->name);
        neap_cli_text summary = {0};
        neap_cli_text_printf(&summary, "%c%s.", info->summary[0] & ~0x20, info->summary + 1);
        if (info->text != NULL) neap_cli_text_printf(&summary, "\n%s", info->text);
        mdoc_text(&out, summary.data);
        neap_cli_text_free(&summary);
    }
    neap_cli_text_puts(&out, ".El\n.Sh OPTIONS\n");
    for (int g = 0; g < GROUPS; g++) {
        neap_cli_text_printf(&out, ".Ss %s\n.Bl -tag -width Ds\n", g == 0 ? "Of single commands" : groups[g]);
        for (size_t i = 0; i < neap_cli_option_count(); i++) {
            if (strcmp(neap_cli_option_at(i)->group, groups[g]) == 0) mdoc_option(&out, neap_cli_option_at(i));
        }
        neap_cli_text_puts(&out, ".El\n");
    }
    neap_cli_text_puts(&out,
                       ".Sh ENVIRONMENT\nOptions name their variable above; a flag goes before it.\nSwitches take\n"
                       "1, true, on, enabled or 0, false, off, disabled.\n.Bl -tag -width Ds\n"
                       ".It Ev NO_COLOR\nno colours, when set and not empty.\n"
                       ".It Ev XDG_STATE_HOME\nwhere\n.Cm chat\nkeeps its history.\n.El\n"
                       ".Sh FILES\n.Bl -tag -width Ds\n.It Pa $XDG_STATE_HOME/neap/history\n"
                       "lines typed in\n.Cm chat ;\nreadable by the owner only.\n.El\n.Sh EXIT STATUS\n"
                       ".Bl -tag -width Ds -compact\n");
    for (size_t i = 0; i < sizeof exit_texts / sizeof exit_texts[0]; i++)
        neap_cli_text_printf(&out, ".It %d\n%s\n", exit_texts[i].code, exit_texts[i].text);
    neap_cli_text_puts(&out, ".El\n.Sh EXAMPLES\n.Bd -literal -offset indent\n");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        if (neap_cli_command_table[i].examples != NULL) mdoc_literal(&out, neap_cli_command_table[i].examples);
    }
    neap_cli_text_puts(&out, ".Ed\n");
    print(&out);
}

/* ---- bash ---- */

void neap_cli_print_completion(void) {
    neap_cli_text out = {0};
    neap_cli_text_puts(
        &out, "# bash completion for neap\n_neap() {\n"
              "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i options=\n"
              "    COMPREPLY=()\n"
              "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
              "        case ${COMP_WORDS[i]} in -*) ;; *) command=${COMP_WORDS[i]}; break ;; esac\n"
              "    done\n"
              "    case $command in\n    '') options=\"");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) neap_cli_text_printf(&out, "%s ", neap_cli_command_table[i].name);
    neap_cli_text_puts(&out, "--help --version\" ;;\n    help) options=\"");
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) neap_cli_text_printf(&out, "%s ", neap_cli_command_table[i].name);
    neap_cli_text_puts(&out, "\" ;;\n    completion) options=\"bash\" ;;\n");
    for (int i = 0; i < NEAP_CLI_COMPLETION; i++) {
        neap_cli_text_printf(&out, "    %s) options=\"", neap_cli_command_table[i].name);
        for (size_t k = 0; k < neap_cli_option_count(); k++) {
            const neap_cli_option *option = neap_cli_option_at(k);
            if ((option->commands & 1u << i) == 0) continue;
            for (int a = 0; a < NEAP_CLI_NAMES && option->names[a] != NULL; a++)
                neap_cli_text_printf(&out, "%s ", option->names[a]);
            if (option->type == NEAP_CLI_BOOL && option->standard != NULL)
                neap_cli_text_printf(&out, "--no-%s ", neap_cli_option_name(option) + 2);
        }
        neap_cli_text_puts(&out, "\" ;;\n");
    }
    neap_cli_text_puts(&out, "    esac\n    case $before in\n");
    for (size_t k = 0; k < neap_cli_option_count(); k++) {
        const neap_cli_option *option = neap_cli_option_at(k);
        if (option->type == NEAP_CLI_BOOL) continue;
        neap_cli_text_puts(&out, "    ");
        for (int a = 0; a < NEAP_CLI_NAMES && option->names[a] != NULL; a++)
            neap_cli_text_printf(&out, "%s%s", a > 0 ? "|" : "", option->names[a]);
        if (option->type == NEAP_CLI_CHOICE) {
            neap_cli_text_puts(&out, ") COMPREPLY=($(compgen -W \"");
            for (const char *c = option->choices; *c != 0; c++) neap_cli_text_add(&out, *c == '|' ? " " : c, 1);
            neap_cli_text_puts(&out, "\" -- \"$word\")); return ;;\n");
        } else if (option->type == NEAP_CLI_FILE) {
            neap_cli_text_puts(
                &out, ") compopt -o filenames; local IFS=$'\\n'; COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n");
        } else {
            neap_cli_text_puts(&out, ") return ;;\n");
        }
    }
    neap_cli_text_puts(&out,
                       "    esac\n"
                       "    case $word:$command in\n"
                       "    -*|*:|*:help|*:completion) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
                       "    *) compopt -o filenames; local IFS=$'\\n'; COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
                       "    esac\n}\ncomplete -F _neap neap\n");
    print(&out);
}
