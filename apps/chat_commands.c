/* The /commands of `neap chat`: one table, one function each.
 *
 * /help prints the table. A command that fails prints one line and changes nothing. What they print is for the
 * person at the terminal and goes to standard error, like everything that the model did not write.
 *
 * Called by chat_loop.c. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat_inner.h"
#include "report.h"
#include "terminal.h"

typedef struct command {
    const char *name, *arguments, *help;
    void (*run)(neap_cli_chat_state *c, char *argument); /* argument: trimmed, "" when there is none */
} command;

static int no_argument(const char *name, const char *argument) {
    if (argument[0] == 0) return 1;
    neap_cli_error("%s takes no argument", name);
    return 0;
}

static int needs_argument(const char *usage, const char *argument) {
    if (argument[0] != 0) return 1;
    neap_cli_error("usage: %s", usage);
    return 0;
}

/* ---- leaving, seeing ---- */

static void do_exit(neap_cli_chat_state *c, char *argument) {
    if (no_argument("/exit", argument)) c->wants_exit = 1;
}

static void do_ctx(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/ctx", argument)) return;
    neap_cli_text request = {0};
    int32_t *tokens = NULL;
    size_t n = 0;
    neap_model_info info = {.struct_size = sizeof info};
    int has_user = 0;
    for (size_t i = 0; i < c->conversation.n; i++) has_user |= strcmp(c->conversation.messages[i].role, "user") == 0;
    int code = has_user ? neap_cli_chat_encode(c, &request, &tokens, &n) : NEAP_EXIT_OK;
    if (code == NEAP_EXIT_OK && neap_model_describe(c->session.model, &info) == NEAP_OK) {
        int64_t total = c->options->ctx_size > 0 ? c->options->ctx_size : info.context_max;
        neap_cli_note(
            "context: %zu of %lld tokens used, %zu messages; nothing is kept between answers, each one reads all of it",
            n, (long long)total, c->conversation.n);
    }
    neap_cli_text_free(&request);
    free(tokens);
}

static void do_stats(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/stats", argument)) return;
    if (c->n_answers == 0) {
        neap_cli_note("no answers yet; the model was loaded in %.2f s", c->session.load_seconds);
        return;
    }
    neap_cli_note("last answer: %s", c->last_timings);
    neap_cli_note("all answers (%llu): %llu prompt tokens in %.2f s, %llu new tokens in %.2f s",
                  (unsigned long long)c->n_answers, (unsigned long long)c->n_prompt, c->prompt_seconds,
                  (unsigned long long)c->n_new, c->new_seconds);
}

/* ---- the conversation ---- */

static void do_clear(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/clear", argument)) return;
    neap_cli_conversation_cut(&c->conversation, neap_cli_conversation_system_text(&c->conversation) != NULL ? 1 : 0);
    neap_cli_text_cut(&c->attached, 0);
    neap_cli_note("the conversation is empty");
}

/* Index of the last message of the user; n when there is none. */
static size_t last_user(const neap_cli_chat_state *c) {
    for (size_t i = c->conversation.n; i > 0; i--) {
        if (strcmp(c->conversation.messages[i - 1].role, "user") == 0) return i - 1;
    }
    return c->conversation.n;
}

static void do_undo(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/undo", argument)) return;
    size_t at = last_user(c);
    if (at == c->conversation.n) {
        neap_cli_error("there is nothing to undo");
        return;
    }
    neap_cli_note("forgotten: %.60s%s", neap_cli_text_string(&c->conversation.messages[at].content),
                  c->conversation.messages[at].content.n > 60 ? "..." : "");
    neap_cli_conversation_cut(&c->conversation, at);
}

static void do_regen(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/regen", argument)) return;
    size_t at = last_user(c);
    if (at == c->conversation.n) {
        neap_cli_error("there is no answer to make again");
        return;
    }
    neap_cli_conversation_cut(&c->conversation, at + 1);
    int code = neap_cli_chat_answer(c);
    if (code >= 128) c->wants_exit = 1;
}

static void do_system(neap_cli_chat_state *c, char *argument) {
    const char *text = neap_cli_conversation_system_text(&c->conversation);
    if (argument[0] == 0) {
        neap_cli_note("%s",
                      text != NULL ? text : "there is no system message; /system TEXT sets one, /system - removes it");
        return;
    }
    int is_removal = strcmp(argument, "-") == 0;
    neap_cli_conversation_system(&c->conversation, is_removal ? NULL : argument);
    neap_cli_note(is_removal ? "the system message is removed" : "the system message is set");
}

/* ---- files ---- */

static int attach(neap_cli_chat_state *c, const char *path) {
    neap_cli_text text = {0};
    int code = neap_cli_read_file(&text, path, NEAP_CLI_TEXT_MAX);
    if (code == NEAP_EXIT_OK && memchr(text.data, 0, text.n) != NULL) {
        neap_cli_error("%s holds a zero byte, it is not a text", path);
        code = NEAP_EXIT_FILE;
    }
    while (text.n > 0 && text.data[text.n - 1] == '\n') neap_cli_text_cut(&text, text.n - 1);
    if (code == NEAP_EXIT_OK) {
        if (c->attached.n > 0) neap_cli_text_puts(&c->attached, "\n\n");
        neap_cli_text_add(&c->attached, text.data, text.n);
        neap_cli_note("%s: %zu bytes, go with your next message", path, text.n);
    }
    neap_cli_text_free(&text);
    return code;
}

static void do_read(neap_cli_chat_state *c, char *argument) {
    if (!needs_argument("/read FILE", argument)) return;
    if (strcmp(argument, "-") == 0)
        neap_cli_error("/read: name a file");
    else
        attach(c, argument);
}

static void do_glob(neap_cli_chat_state *c, char *argument) {
    if (!needs_argument("/glob PATTERN", argument)) return;
    glob_t found;
    int status = glob(argument, GLOB_TILDE | GLOB_MARK, NULL, &found);
    if (status != 0) {
        neap_cli_error(status == GLOB_NOMATCH ? "no file matches %s" : "cannot search for %s", argument);
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        size_t n = strlen(found.gl_pathv[i]);
        if (n > 0 && found.gl_pathv[i][n - 1] != '/' && attach(c, found.gl_pathv[i]) != NEAP_EXIT_OK) break;
    }
    globfree(&found);
}

static void do_save(neap_cli_chat_state *c, char *argument) {
    if (!needs_argument("/save FILE", argument)) return;
    if (neap_cli_conversation_save(&c->conversation, argument) == NEAP_EXIT_OK)
        neap_cli_note("%zu messages saved to %s", c->conversation.n, argument);
}

static void do_load(neap_cli_chat_state *c, char *argument) {
    if (!needs_argument("/load FILE", argument)) return;
    neap_cli_conversation before = c->conversation;
    neap_cli_conversation_init(&c->conversation);
    int code = neap_cli_conversation_load(&c->conversation, argument);
    /* The encoder has the last word now: later every message would fail. */
    if (code == NEAP_EXIT_OK && c->conversation.n > 0) {
        neap_cli_text request = {0};
        int32_t *tokens = NULL;
        size_t n = 0;
        code = neap_cli_chat_encode(c, &request, &tokens, &n);
        if (code != NEAP_EXIT_OK) neap_cli_error("%s is not loaded", argument);
        neap_cli_text_free(&request);
        free(tokens);
    }
    if (code != NEAP_EXIT_OK) {
        neap_cli_conversation_free(&c->conversation);
        c->conversation = before;
        return;
    }
    neap_cli_conversation_free(&before);
    neap_cli_note("%zu messages loaded from %s", c->conversation.n, argument);
}

/* ---- settings ---- */

static int has_thinking(const neap_cli_chat_state *c) {
    if (strcmp(neap_chat_format(c->session.tokenizer), "xtml") == 0) return 1;
    neap_cli_error("this model has no thinking channel");
    return 0;
}

static void do_think(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/think", argument) || !has_thinking(c)) return;
    c->conversation.thinking = 1;
    neap_cli_note("the model reasons before it answers");
}

static void do_nothink(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/nothink", argument) || !has_thinking(c)) return;
    c->conversation.thinking = 0;
    free(c->conversation.effort);
    c->conversation.effort = NULL;
    neap_cli_note("the model answers at once");
}

static void do_effort(neap_cli_chat_state *c, char *argument) {
    if (!needs_argument("/effort low|high|max", argument) || !has_thinking(c)) return;
    if (strcmp(argument, "low") != 0 && strcmp(argument, "high") != 0 && strcmp(argument, "max") != 0) {
        neap_cli_error("/effort: \"%s\" is not one of low, high, max", argument);
        return;
    }
    free(c->conversation.effort);
    c->conversation.effort = neap_cli_copy(argument);
    if (c->conversation.thinking == 0) c->conversation.thinking = 1;
    neap_cli_note("effort: %s", argument);
}

static void do_set(neap_cli_chat_state *c, char *argument) {
    char *value = argument + strcspn(argument, " \t=");
    if (*value != 0) *value++ = 0;
    value += strspn(value, " \t=");
    for (size_t i = 0; i < neap_cli_option_count() && argument[0] == 0; i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        char text[64];
        if (!option->can_set) continue;
        neap_cli_option_show(c->options, option, text, sizeof text);
        neap_cli_note("  %-20s %-10s %s", neap_cli_option_name(option) + 2, text, option->help);
    }
    if (argument[0] == 0) return;
    if (value[0] == 0) {
        neap_cli_error("usage: /set NAME VALUE");
        return;
    }
    if (neap_cli_options_set(c->options, argument, value) == NEAP_EXIT_OK) neap_cli_note("%s = %s", argument, value);
}

static void do_multiline(neap_cli_chat_state *c, char *argument) {
    if (!no_argument("/multiline", argument)) return;
    c->is_multiline = !c->is_multiline;
    neap_cli_note(c->is_multiline ? "a message ends with a line that is a single dot"
                                  : "a message is one line; a backslash at its end goes on");
}

static void do_help(neap_cli_chat_state *c, char *argument);

static const command commands[] = {
    {"/help", "", "this list", do_help},
    {"/exit", "", "leave (also /quit, Ctrl-D)", do_exit},
    {"/quit", "", NULL, do_exit},
    {"/clear", "", "forget the conversation, keep the system message", do_clear},
    {"/regen", "", "make the last answer again", do_regen},
    {"/undo", "", "forget the last message and its answer", do_undo},
    {"/read", "FILE", "put a file in front of your next message", do_read},
    {"/glob", "PATTERN", "the same with all files that match", do_glob},
    {"/system", "TEXT", "set the system message; alone: show it; -: remove it", do_system},
    {"/think", "", "let the model reason before it answers", do_think},
    {"/nothink", "", "no reasoning", do_nothink},
    {"/effort", "low|high|max", "how much to reason", do_effort},
    {"/ctx", "", "how full the context is", do_ctx},
    {"/save", "FILE", "write the conversation as JSON", do_save},
    {"/load", "FILE", "continue a saved conversation", do_load},
    {"/set", "NAME VALUE", "change a sampling option; alone: show them", do_set},
    {"/stats", "", "speed of the last answer and of all", do_stats},
    {"/multiline", "", "messages of several lines on or off", do_multiline},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void do_help(neap_cli_chat_state *c, char *argument) {
    (void)c;
    if (!no_argument("/help", argument)) return;
    for (size_t i = 0; i < COMMANDS; i++) {
        char title[64];
        if (commands[i].help == NULL) continue;
        snprintf(title, sizeof title, "%s %s", commands[i].name, commands[i].arguments);
        neap_cli_note("  %-24s %s", title, commands[i].help);
    }
    neap_cli_note("  A backslash at the end of a line continues it. Ctrl-C stops an answer and keeps what is there.");
}

void neap_cli_chat_command(neap_cli_chat_state *c, char *line) {
    size_t n = strlen(line);
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t')) line[--n] = 0;
    char *argument = line + strcspn(line, " \t");
    if (*argument != 0) *argument++ = 0;
    argument += strspn(argument, " \t");
    const char *begins = NULL;
    int n_begins = 0;
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i].name, line) == 0) {
            commands[i].run(c, argument);
            return;
        }
        if (strncmp(commands[i].name, line, strlen(line)) == 0) begins = commands[i].name, n_begins++;
    }
    if (n_begins == 1 && strlen(line) > 1)
        neap_cli_error("unknown command %s, did you mean %s?", line, begins);
    else
        neap_cli_error("unknown command %s (/help lists them)", line);
}
