/* `neap chat`: a conversation in the terminal, or line by line from a pipe.
 *
 * The loop reads a message, adds it to the conversation, encodes the whole conversation and computes it from the
 * start, prints the answer as it comes, and adds it as well. Ctrl-C during an answer stops it and keeps the part
 * that is there as the answer. Answers go to standard output; prompts, reasoning, timings to standard error.
 *
 * Called by main; the /commands are in chat_commands.c. */
#include "chat_inner.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

int neap_cli_chat_encode(neap_cli_chat_state *c, neap_cli_text *request, int32_t **tokens, size_t *n_tokens) {
    *tokens = NULL;
    neap_cli_conversation_request(&c->conversation, request);
    return neap_cli_encode_chat(c->session.tokenizer, request->data, request->n, tokens, n_tokens);
}

static void count_answer(neap_cli_chat_state *c, const neap_cli_answer *a) {
    c->n_answers++;
    c->n_prompt += a->n_prompt;
    c->n_new += a->n_new;
    c->prompt_seconds += a->prompt_seconds;
    c->new_seconds += a->new_seconds;
    neap_cli_answer_timings(a, c->last_timings, sizeof c->last_timings);
}

/* The engine is as large as the conversation needs; it is started again when that grows past it. */
static int make_room(neap_cli_chat_state *c, size_t n_tokens) {
    int32_t context = neap_cli_session_context(&c->session, n_tokens);
    if (c->session.engine != NULL && (context <= c->session.context || c->options->ctx_size > 0)) return NEAP_EXIT_OK;
    /* More than needed now, so that this is rare. */
    int32_t wide = c->options->ctx_size > 0 ? context : neap_cli_session_context(&c->session, n_tokens * 2 + 4096);
    return neap_cli_session_start(&c->session, wide, 0);
}

int neap_cli_chat_answer(neap_cli_chat_state *c) {
    neap_cli_text request = {0}, calls = {0};
    neap_cli_answer a = {.content_out = neap_cli_out};
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    if (c->options->show_reasoning != 0) a.reasoning_out = neap_cli_dim;
    int code = neap_cli_chat_encode(c, &request, &tokens, &n_tokens);
    if (code == NEAP_EXIT_OK) code = make_room(c, n_tokens);
    if (code == NEAP_EXIT_OK) code = neap_cli_generate(&c->session, tokens, n_tokens, request.data, &a);
    neap_cli_dim_end();
    if (a.content.n > 0 && a.content.data[a.content.n - 1] != '\n') neap_cli_out("\n", 1);
    if (code == NEAP_EXIT_OK) {
        neap_cli_answer_calls_json(&a, &calls);
        if (calls.n > 0) neap_cli_outf("%s\n", calls.data);
        neap_cli_conversation_answer(&c->conversation, &a.content, &a.reasoning, &calls);
        count_answer(c, &a);
        if (a.signal_number != 0 && neap_cli_lines_is_terminal(c->lines))
            neap_cli_note("(stopped; the part above is kept)");
        else if (a.finish == NEAP_FINISH_LENGTH)
            neap_cli_note("(the answer was cut: token limit or context)");
        if (neap_cli_is_verbose()) neap_cli_note("%s", c->last_timings);
        /* A pipe has nobody to go on; a terminal has. */
        if (a.signal_number != 0 && (!neap_cli_lines_is_terminal(c->lines) || a.signal_number != SIGINT))
            code = 128 + a.signal_number;
    }
    neap_cli_answer_free(&a);
    neap_cli_text_free(&request);
    neap_cli_text_free(&calls);
    free(tokens);
    return code;
}

/* ---- reading messages ---- */

/* One message: a line, with a backslash at its end more lines; in multi-line mode all lines up to a single dot. */
static neap_cli_line read_message(neap_cli_chat_state *c, neap_cli_text *message) {
    for (int is_first = 1;; is_first = 0) {
        size_t begin = message->n;
        neap_cli_line kind = neap_cli_lines_read(c->lines, is_first ? "> " : ". ", message);
        if (kind == NEAP_CLI_LINE_INTERRUPT) return kind;
        if (kind == NEAP_CLI_LINE_END) return is_first ? kind : NEAP_CLI_LINE;
        if (message->data == NULL) neap_cli_text_add(message, "", 0);
        const char *line = message->data + begin;
        if (is_first && line[0] == '/') return kind;
        if (c->is_multiline) {
            if (strcmp(line, ".") == 0) {
                neap_cli_text_cut(message, begin > 0 ? begin - 1 : 0);
                return kind;
            }
        } else if (message->n > begin && message->data[message->n - 1] == '\\') {
            neap_cli_text_cut(message, message->n - 1);
        } else {
            return kind;
        }
        neap_cli_text_add(message, "\n", 1);
    }
}

static int is_blank(const char *text) { return text[strspn(text, " \t\r\n")] == 0; }

/* A user's message and its answer. */
static int take_turn(neap_cli_chat_state *c, const char *message) {
    size_t n_before = c->conversation.n;
    neap_cli_text text = {0};
    if (c->attached.n > 0) neap_cli_text_printf(&text, "%s\n", c->attached.data);
    neap_cli_text_puts(&text, message);
    neap_cli_conversation_add(&c->conversation, "user", text.data, text.n);
    neap_cli_text_free(&text);
    int code = neap_cli_chat_answer(c);
    if (c->conversation.n == n_before + 1)
        neap_cli_conversation_cut(&c->conversation, n_before); /* no answer came */
    else
        neap_cli_text_cut(&c->attached, 0);
    return code;
}

static void on_interrupt(neap_cli_chat_state *c) {
    neap_cli_signal_clear();
    neap_cli_note("%s", c->n_hints++ == 0 ? "" : "(Ctrl-D or /exit leaves)");
}

static int loop(neap_cli_chat_state *c) {
    int code = NEAP_EXIT_OK;
    neap_cli_text message = {0};
    while (!c->wants_exit && !neap_cli_output_is_closed()) {
        message.n = 0;
        if (message.data != NULL) message.data[0] = 0;
        neap_cli_line kind = read_message(c, &message);
        if (neap_cli_signal() != 0 && neap_cli_signal() != SIGINT) {
            code = 128 + neap_cli_signal();
            break;
        }
        if (kind == NEAP_CLI_LINE_INTERRUPT) {
            on_interrupt(c);
            continue;
        }
        c->n_hints = 0;
        if (kind == NEAP_CLI_LINE_END) {
            if (neap_cli_lines_is_terminal(c->lines)) neap_cli_note("%s", "");
            break;
        }
        if (is_blank(neap_cli_text_string(&message))) continue;
        neap_cli_lines_remember(c->lines, message.data);
        code = NEAP_EXIT_OK;
        if (message.data[0] == '/') {
            neap_cli_chat_command(c, message.data);
        } else {
            code = take_turn(c, message.data);
            c->wants_exit |= c->options->single_turn || code >= 128;
        }
        if (code < 128) neap_cli_signal_clear(); /* it has stopped the answer */
        /* Somebody who types sees the error and goes on; a script should fail. */
        if (code != NEAP_EXIT_OK && !neap_cli_lines_is_terminal(c->lines)) break;
    }
    neap_cli_text_free(&message);
    return neap_cli_lines_is_terminal(c->lines) && code < 128 && !c->options->single_turn ? NEAP_EXIT_OK : code;
}

/* ---- start ---- */

static int prepare(neap_cli_chat_state *c) {
    const neap_cli_options *o = c->options;
    int is_xtml = c->session.tokenizer != NULL && strcmp(neap_chat_format(c->session.tokenizer), "xtml") == 0;
    if (!neap_cli_has_chat(c->session.tokenizer)) {
        neap_cli_error("%s has no chat format (its tokenizer lacks the special tokens); use neap run --raw", o->model);
        return NEAP_EXIT_FILE;
    }
    if ((o->think >= 0 || o->effort != NULL) && !is_xtml) {
        neap_cli_error("--think and --effort: this model has no thinking channel");
        return NEAP_EXIT_USAGE;
    }
    if (o->think == 0 && o->effort != NULL) {
        neap_cli_error("--effort contradicts --no-think");
        return NEAP_EXIT_USAGE;
    }
    neap_cli_conversation_system(&c->conversation, o->system_prompt);
    c->conversation.thinking = o->think;
    if (o->effort != NULL) c->conversation.effort = neap_cli_copy(o->effort);
    if (o->tool_choice != NULL) c->conversation.tool_choice = neap_cli_copy(o->tool_choice);
    if (o->tools != NULL) {
        int code = neap_cli_conversation_tools(&c->conversation, o->tools);
        if (code != NEAP_EXIT_OK) return code;
    }
    if (o->file == NULL) return NEAP_EXIT_OK;
    if (strcmp(o->file, "-") == 0) {
        neap_cli_error("-f: chat reads messages from standard input, name a file");
        return NEAP_EXIT_USAGE;
    }
    int code = neap_cli_read_file(&c->attached, o->file, NEAP_CLI_TEXT_MAX);
    while (c->attached.n > 0 && c->attached.data[c->attached.n - 1] == '\n')
        neap_cli_text_cut(&c->attached, c->attached.n - 1);
    return code;
}

static void greet(const neap_cli_chat_state *c) {
    neap_model_info info = {.struct_size = sizeof info};
    if (!neap_cli_lines_is_terminal(c->lines) || c->options->quiet) return;
    if (neap_model_describe(c->session.model, &info) != NEAP_OK) return;
    neap_cli_note("%s: %s, %.3g million parameters, loaded in %.2f s", c->options->model, info.family,
                  (double)info.parameters / 1e6, c->session.load_seconds);
    neap_cli_note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.");
}

int neap_cli_chat(neap_cli_options *o) {
    neap_cli_chat_state c = {.options = o};
    neap_cli_conversation_init(&c.conversation);
    int code = neap_cli_session_open(&c.session, o);
    if (code == NEAP_EXIT_OK) code = prepare(&c);
    if (code == NEAP_EXIT_OK) {
        c.lines = neap_cli_lines_open();
        greet(&c);
        /* From here on Ctrl-C stops an answer or gives up a line; it must not end the program in between. */
        if (neap_cli_lines_is_terminal(c.lines)) neap_cli_signals_hold();
        if (o->prompt != NULL) {
            code = take_turn(&c, o->prompt);
            c.wants_exit = o->single_turn || code != NEAP_EXIT_OK;
            if (code < 128) neap_cli_signal_clear();
        }
        if (!c.wants_exit) code = loop(&c);
    }
    neap_cli_lines_close(c.lines);
    neap_cli_conversation_free(&c.conversation);
    neap_cli_text_free(&c.attached);
    neap_cli_session_close(&c.session);
    return code;
}
