/* `neap run`: one prompt, one answer. The shortest complete use of the library, good to read first.
 *
 *   model directory -> neap_model_open        (session.c)
 *   messages        -> neap_chat_encode       tokens of the prompt
 *   engine          -> neap_engine_create     (session.c) once the prompt's length is known
 *   answer          -> neap_submit, neap_step, neap_poll, neap_chat_parser_*   (generate.c)
 *
 * This file decides what the prompt is and how the answer is shown. Called by main. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "conversation.h"
#include "generate.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

static int usage(const char *text) {
    neap_cli_error("%s", text);
    return NEAP_EXIT_USAGE;
}

/* Flags that would do nothing are refused instead. */
static int check_flags(const neap_cli_options *o) {
    if (o->logprobs >= 0 && !o->json) return usage("--logprobs needs --json");
    if (o->prompt != NULL && o->args[0] != NULL) return usage("the prompt is given twice: -p and an argument");
    return NEAP_EXIT_OK;
}

static int check_chat_flags(const neap_cli_options *o, const neap_tokenizer *t, int is_chat) {
    const char *flag = o->system_prompt != NULL ? "--system-prompt"
                       : o->tools != NULL       ? "--tools"
                       : o->tool_choice != NULL ? "--tool-choice"
                       : o->think >= 0          ? "--think"
                       : o->effort != NULL      ? "--effort"
                                                : NULL;
    if (flag != NULL && !is_chat) {
        neap_cli_error("%s needs the chat format%s", flag, o->raw ? ", --raw is without it" : ", this model has none");
        return NEAP_EXIT_USAGE;
    }
    int is_about_thinking = o->think >= 0 || o->effort != NULL;
    if (is_about_thinking && strcmp(neap_chat_format(t), "xtml") != 0)
        return usage("--think and --effort: this model has no thinking channel");
    if (o->think == 0 && o->effort != NULL) return usage("--effort contradicts --no-think");
    return NEAP_EXIT_OK;
}

/* The prompt's text from -p, -f and standard input. */
static int read_prompt(const neap_cli_options *o, neap_cli_text *text) {
    const char *prompt = o->args[0] != NULL ? o->args[0] : o->prompt;
    const char *file = o->file;
    if (file == NULL && prompt == NULL) {
        if (isatty(STDIN_FILENO)) return usage("no prompt: give -p TEXT, -f FILE or standard input");
        file = "-";
    }
    if (file != NULL) {
        int code = neap_cli_read_file(text, file, NEAP_CLI_TEXT_MAX);
        if (code != NEAP_EXIT_OK) return code;
        /* Editors end a file with a newline that is not meant. */
        if (text->n > 0 && text->data[text->n - 1] == '\n') neap_cli_text_cut(text, text->n - 1);
    }
    if (file != NULL && prompt != NULL) neap_cli_text_puts(text, "\n");
    if (prompt != NULL) neap_cli_text_puts(text, prompt);
    return text->n > 0 ? NEAP_EXIT_OK : usage("the prompt is empty");
}

/* Prompt text to tokens; request becomes the chat request, or stays empty for plain text. */
static int encode(const neap_cli_options *o, const neap_tokenizer *t, int is_chat, const neap_cli_text *text,
                  neap_cli_text *request, int32_t **tokens, size_t *n_tokens) {
    if (!is_chat) return neap_cli_tokenize_text(t, text->data, text->n, 0, tokens, n_tokens);
    if (memchr(text->data, 0, text->n) != NULL) {
        neap_cli_error("%s holds a zero byte, it is not a text", o->file != NULL ? o->file : "standard input");
        return NEAP_EXIT_FILE;
    }
    neap_cli_conversation c;
    neap_cli_conversation_init(&c);
    neap_cli_conversation_system(&c, o->system_prompt);
    neap_cli_conversation_add(&c, "user", text->data, text->n);
    c.thinking = o->think;
    c.effort = o->effort != NULL ? neap_cli_copy(o->effort) : NULL;
    c.tool_choice = o->tool_choice != NULL ? neap_cli_copy(o->tool_choice) : NULL;
    int code = o->tools != NULL ? neap_cli_conversation_tools(&c, o->tools) : NEAP_EXIT_OK;
    if (code == NEAP_EXIT_OK) {
        neap_cli_conversation_request(&c, request);
        code = neap_cli_encode_chat(t, request->data, request->n, tokens, n_tokens);
    }
    neap_cli_conversation_free(&c);
    return code;
}

static void print_json(const neap_cli_session *s, const neap_cli_answer *a) {
    neap_cli_text out = {0}, calls = {0};
    neap_cli_answer_calls_json(a, &calls);
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", s->options->model);
    neap_cli_json_string(&out, "text", neap_cli_text_string(&a->content), a->content.n);
    neap_cli_json_string(&out, "reasoning", neap_cli_text_string(&a->reasoning), a->reasoning.n);
    neap_cli_json_raw(&out, "tool_calls", calls.n > 0 ? calls.data : "[]", calls.n > 0 ? calls.n : 2);
    neap_cli_json_cstring(&out, "finish_reason", neap_cli_finish_name(a));
    neap_cli_json_open(&out, "usage", '{');
    neap_cli_json_uint(&out, "prompt_tokens", a->n_prompt);
    neap_cli_json_uint(&out, "completion_tokens", a->n_new);
    neap_cli_json_uint(&out, "total_tokens", a->n_prompt + a->n_new);
    neap_cli_json_close(&out, '}');
    neap_cli_json_uint(&out, "seed", a->seed);
    if (a->logprobs.n > 0) neap_cli_json_raw(&out, "logprobs", a->logprobs.data, a->logprobs.n);
    neap_cli_json_open(&out, "timings", '{');
    neap_cli_json_real(&out, "load_seconds", s->load_seconds, 6);
    neap_cli_json_real(&out, "prompt_seconds", a->prompt_seconds, 6);
    neap_cli_json_real(&out, "answer_seconds", a->new_seconds, 6);
    neap_cli_json_close(&out, '}');
    neap_cli_json_close(&out, '}');
    neap_cli_text_puts(&out, "\n");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
    neap_cli_text_free(&calls);
}

/* What is left to print after the streamed text. */
static void print_end(const neap_cli_answer *a) {
    neap_cli_text calls = {0};
    neap_cli_dim_end();
    if (a->content.n > 0 && a->content.data[a->content.n - 1] != '\n') neap_cli_out("\n", 1);
    neap_cli_answer_calls_json(a, &calls);
    if (calls.n > 0) neap_cli_outf("%s\n", calls.data);
    neap_cli_text_free(&calls);
}

static int answer(neap_cli_session *s) {
    const neap_cli_options *o = s->options;
    int is_chat = !o->raw && neap_cli_has_chat(s->tokenizer);
    neap_cli_text text = {0}, request = {0};
    neap_cli_answer a = {0};
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    int code = check_chat_flags(o, s->tokenizer, is_chat);
    if (code == NEAP_EXIT_OK) code = read_prompt(o, &text);
    if (code == NEAP_EXIT_OK) code = encode(o, s->tokenizer, is_chat, &text, &request, &tokens, &n_tokens);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_start(s, neap_cli_session_context(s, n_tokens), 0);
    if (code == NEAP_EXIT_OK) {
        if (!o->json) a.content_out = neap_cli_out;
        if (o->show_reasoning == 1) a.reasoning_out = neap_cli_dim;
        code = neap_cli_generate(s, tokens, n_tokens, is_chat ? request.data : NULL, &a);
        if (!o->json)
            print_end(&a);
        else if (code == NEAP_EXIT_OK)
            print_json(s, &a);
    }
    if (code == NEAP_EXIT_OK && a.finish == NEAP_FINISH_LENGTH && o->predict < 0 && !o->quiet)
        neap_cli_note("neap: the answer was cut: the context of %d tokens is full", s->context);
    if (code == NEAP_EXIT_OK && neap_cli_wants_timings()) {
        char line[256];
        neap_cli_answer_timings(&a, line, sizeof line);
        neap_cli_note("%s | load: %.2f s", line, s->load_seconds);
    }
    if (code == NEAP_EXIT_OK && a.signal_number != 0) code = 128 + a.signal_number;
    neap_cli_answer_free(&a);
    neap_cli_text_free(&text);
    neap_cli_text_free(&request);
    free(tokens);
    return code;
}

int neap_cli_run(const neap_cli_options *o) {
    neap_cli_session s = {0};
    neap_cli_watch *watch = NULL;
    int code = check_flags(o);
    if (code == NEAP_EXIT_OK) code = neap_cli_watch_open(&watch, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&s, o);
    s.watch = watch;
    if (code == NEAP_EXIT_OK) code = neap_cli_session_needs_tokenizer(&s);
    if (code == NEAP_EXIT_OK) code = answer(&s);
    neap_cli_session_close(&s);
    return neap_cli_watch_close(watch, code);
}
