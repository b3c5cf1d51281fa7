/* `neap tokenize`: text to token ids and back.
 *
 * Needs only the tokenizer's files of the directory. Nothing of the text is trimmed, so that ids | --decode gives the
 * very bytes again; only what is not UTF-8 becomes U+FFFD, as in every prompt. Called by main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "encode.h"
#include "generate.h"
#include "json_in.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

static int decode(const neap_cli_options *o, const neap_tokenizer *t) {
    int32_t *ids = NULL;
    size_t n = 0;
    int code = strcmp(o->decode, "-") == 0 ? neap_cli_read_ids("-", &ids, &n)
                                           : neap_cli_parse_ids("--decode", o->decode, &ids, &n);
    if (code == NEAP_EXIT_OK) {
        uint32_t flags = o->special ? NEAP_DETOKENIZE_SPECIAL : 0;
        neap_cli_text text = {0};
        neap_status status = neap_cli_tokens_to_text(t, ids, n, flags, &text);
        if (status == NEAP_OK) {
            neap_cli_out(neap_cli_text_string(&text), text.n);
            /* A shell prompt should not stick to the text; files get the exact bytes. */
            if (neap_cli_stdout_is_tty() && text.n > 0 && text.data[text.n - 1] != '\n') neap_cli_out("\n", 1);
        }
        neap_cli_text_free(&text);
        code = neap_cli_failed(status, NEAP_CLI_RUNNING);
    }
    free(ids);
    return code;
}

/* Valid UTF-8 as it is, control characters and stray bytes as in a C string: one token stays one line. */
static void add_escaped(neap_cli_text *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)bytes[i];
        size_t bad, length = neap_cli_utf8_length(bytes + i, n - i, &bad);
        int is_control = c < 0x20 || c == 0x7f || (length == 2 && c == 0xc2 && (unsigned char)bytes[i + 1] < 0xa0);
        if (c == '\n')
            neap_cli_text_puts(out, "\\n");
        else if (c == '\r')
            neap_cli_text_puts(out, "\\r");
        else if (c == '\t')
            neap_cli_text_puts(out, "\\t");
        else if (c == '\\')
            neap_cli_text_puts(out, "\\\\");
        else if (length == 0 || is_control)
            neap_cli_text_printf(out, "\\x%02x", c), length = 1;
        else
            neap_cli_text_add(out, bytes + i, length);
        i += length;
    }
}

static int add_token(const neap_cli_options *o, const neap_tokenizer *t, int32_t id, neap_cli_text *out) {
    const char *bytes = "";
    size_t n = 0;
    int is_special = 0;
    neap_status status = neap_token_bytes(t, id, &bytes, &n, &is_special);
    if (status != NEAP_OK) return neap_cli_failed(status, NEAP_CLI_RUNNING);
    if (!o->json) {
        neap_cli_text_printf(out, "%d\t", id);
        add_escaped(out, bytes, n);
        neap_cli_text_puts(out, is_special ? "\t(special)\n" : "\n");
        return NEAP_EXIT_OK;
    }
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_int(out, "id", id);
    neap_cli_json_string(out, "text", bytes, n);
    neap_cli_json_open(out, "bytes", '[');
    for (size_t i = 0; i < n; i++) neap_cli_json_int(out, NULL, (unsigned char)bytes[i]);
    neap_cli_json_close(out, ']');
    neap_cli_json_bool(out, "special", is_special);
    neap_cli_json_close(out, '}');
    return NEAP_EXIT_OK;
}

static int show(const neap_cli_options *o, const neap_tokenizer *t, const int32_t *ids, size_t n) {
    neap_cli_text out = {0};
    int code = NEAP_EXIT_OK;
    if (o->count) {
        neap_cli_text_printf(&out, "%zu\n", n);
    } else if (o->ids) {
        neap_cli_json_open(&out, NULL, '[');
        for (size_t i = 0; i < n; i++) neap_cli_json_int(&out, NULL, ids[i]);
        neap_cli_text_puts(&out, "]\n");
    } else {
        if (o->json) {
            neap_cli_json_open(&out, NULL, '{');
            neap_cli_json_uint(&out, "count", n);
            neap_cli_json_open(&out, "tokens", '[');
        }
        for (size_t i = 0; i < n && code == NEAP_EXIT_OK; i++) code = add_token(o, t, ids[i], &out);
        if (o->json) neap_cli_text_puts(&out, "]}\n");
    }
    if (code == NEAP_EXIT_OK) neap_cli_out(neap_cli_text_string(&out), out.n);
    neap_cli_text_free(&out);
    return code;
}

static int encode(const neap_cli_options *o, const neap_tokenizer *t) {
    neap_cli_text text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int code = NEAP_EXIT_OK;
    if (o->args[0] != NULL)
        neap_cli_text_puts(&text, o->args[0]);
    else
        code = neap_cli_read_file(&text, o->file != NULL ? o->file : "-", NEAP_CLI_TEXT_MAX);
    if (code == NEAP_EXIT_OK) {
        uint32_t flags = o->special ? NEAP_TOKENIZE_SPECIAL : 0;
        code = neap_cli_tokenize_text(t, neap_cli_text_string(&text), text.n, flags, &ids, &n);
    }
    if (code == NEAP_EXIT_OK) code = show(o, t, ids, n);
    free(ids);
    neap_cli_text_free(&text);
    return code;
}

int neap_cli_tokenize(const neap_cli_options *o) {
    if ((o->args[0] != NULL) + (o->file != NULL) + (o->decode != NULL) > 1) {
        neap_cli_error("give one of TEXT, -f FILE and --decode");
        return NEAP_EXIT_USAGE;
    }
    if (o->ids + o->json + o->count > 1 || (o->decode != NULL && o->ids + o->json + o->count > 0)) {
        neap_cli_error("give one of --ids, --count, --json and --decode");
        return NEAP_EXIT_USAGE;
    }
    neap_tokenizer *t = NULL;
    int code = neap_cli_failed(neap_tokenizer_open(&t, o->model), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) code = o->decode != NULL ? decode(o, t) : encode(o, t);
    neap_tokenizer_close(t);
    return code;
}
