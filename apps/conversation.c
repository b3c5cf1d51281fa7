/* The messages of a chat; see conversation.h.
 *
 * Every message keeps its JSON text beside its plain text. A request is those texts joined, so a message that
 * was loaded with fields which this program does not know (tool results, names) goes to the encoder as it was
 * written. The library checks the request; here only the outer shape is looked at.
 *
 * Called by run and chat. Owns the texts. */
#include "conversation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_in.h"
#include "json_out.h"
#include "report.h"

void neap_cli_conversation_init(neap_cli_conversation *c) { *c = (neap_cli_conversation){.thinking = -1}; }

void neap_cli_conversation_cut(neap_cli_conversation *c, size_t n) {
    while (c->n > n) {
        neap_cli_message *m = &c->messages[--c->n];
        free(m->role);
        neap_cli_text_free(&m->content);
        neap_cli_text_free(&m->json);
    }
}

void neap_cli_conversation_free(neap_cli_conversation *c) {
    neap_cli_conversation_cut(c, 0);
    free(c->messages);
    neap_cli_text_free(&c->tools);
    free(c->tool_choice);
    free(c->effort);
    neap_cli_conversation_init(c);
}

static neap_cli_message *push(neap_cli_conversation *c, const char *role) {
    if (c->n == c->capacity) {
        c->capacity = c->capacity < 8 ? 8 : c->capacity * 2;
        c->messages = neap_cli_grow(c->messages, c->capacity, sizeof *c->messages);
    }
    neap_cli_message *m = &c->messages[c->n++];
    *m = (neap_cli_message){.role = neap_cli_copy(role)};
    return m;
}

void neap_cli_conversation_add(neap_cli_conversation *c, const char *role, const char *text, size_t n) {
    neap_cli_message *m = push(c, role);
    neap_cli_text_add(&m->content, text, n);
    neap_cli_json_open(&m->json, NULL, '{');
    neap_cli_json_cstring(&m->json, "role", role);
    neap_cli_json_string(&m->json, "content", text, n);
    neap_cli_json_close(&m->json, '}');
}

void neap_cli_conversation_system(neap_cli_conversation *c, const char *text) {
    int has_system = c->n > 0 && strcmp(c->messages[0].role, "system") == 0;
    int wants = text != NULL && text[0] != 0;
    if (has_system) {
        neap_cli_message old = c->messages[0];
        memmove(c->messages, c->messages + 1, --c->n * sizeof *c->messages);
        free(old.role);
        neap_cli_text_free(&old.content);
        neap_cli_text_free(&old.json);
    }
    if (!wants) return;
    neap_cli_conversation_add(c, "system", text, strlen(text));
    neap_cli_message added = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof *c->messages);
    c->messages[0] = added;
}

const char *neap_cli_conversation_system_text(const neap_cli_conversation *c) {
    if (c->n == 0 || strcmp(c->messages[0].role, "system") != 0) return NULL;
    return neap_cli_text_string(&c->messages[0].content);
}

void neap_cli_conversation_answer(neap_cli_conversation *c, const neap_cli_text *content,
                                  const neap_cli_text *reasoning, const neap_cli_text *tool_calls) {
    neap_cli_message *m = push(c, "assistant");
    neap_cli_text_add(&m->content, neap_cli_text_string(content), content->n);
    neap_cli_json_open(&m->json, NULL, '{');
    neap_cli_json_cstring(&m->json, "role", "assistant");
    neap_cli_json_string(&m->json, "content", neap_cli_text_string(content), content->n);
    if (reasoning->n > 0) neap_cli_json_string(&m->json, "reasoning_content", reasoning->data, reasoning->n);
    if (tool_calls->n > 0) neap_cli_json_raw(&m->json, "tool_calls", tool_calls->data, tool_calls->n);
    neap_cli_json_close(&m->json, '}');
}

int neap_cli_conversation_tools(neap_cli_conversation *c, const char *path) {
    neap_cli_text text = {0};
    int code = neap_cli_read_file(&text, path, NEAP_CLI_TEXT_MAX);
    if (code == NEAP_EXIT_OK) {
        neap_cli_json j = {.what = path, .text = text.data, .n = text.n};
        size_t begin;
        if (neap_cli_json_peek(&j) != '[') neap_cli_json_fail(&j, "a JSON array of tools expected");
        if (neap_cli_json_skip(&j, &begin) && neap_cli_json_at_end(&j)) {
            neap_cli_text_cut(&c->tools, 0);
            neap_cli_text_add(&c->tools, text.data, text.n);
        } else {
            code = NEAP_EXIT_FILE;
        }
    }
    neap_cli_text_free(&text);
    return code;
}

void neap_cli_conversation_request(const neap_cli_conversation *c, neap_cli_text *out) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_open(out, "messages", '[');
    for (size_t i = 0; i < c->n; i++) neap_cli_json_raw(out, NULL, c->messages[i].json.data, c->messages[i].json.n);
    neap_cli_json_close(out, ']');
    if (c->tools.n > 0) neap_cli_json_raw(out, "tools", c->tools.data, c->tools.n);
    if (c->tool_choice != NULL) neap_cli_json_cstring(out, "tool_choice", c->tool_choice);
    if (c->thinking >= 0) neap_cli_json_bool(out, "thinking", c->thinking);
    if (c->effort != NULL) neap_cli_json_cstring(out, "thinking_effort", c->effort);
    neap_cli_json_close(out, '}');
}

int neap_cli_conversation_save(const neap_cli_conversation *c, const char *path) {
    neap_cli_text text = {0};
    neap_cli_conversation_request(c, &text);
    neap_cli_text_puts(&text, "\n");
    int code = NEAP_EXIT_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); /* a conversation is private */
    size_t done = 0;
    while (fd >= 0 && done < text.n) {
        ssize_t n = write(fd, text.data + done, text.n - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        done += (size_t)n;
    }
    if (fd < 0 || done < text.n || close(fd) != 0) {
        neap_cli_error("cannot write %s: %s", path, strerror(errno));
        code = NEAP_EXIT_RESOURCE;
    }
    neap_cli_text_free(&text);
    return code;
}

/* ---- loading ---- */

static int read_message(neap_cli_json *j, neap_cli_conversation *c) {
    neap_cli_text key = {0}, role = {0}, content = {0};
    size_t begin, ignored;
    neap_cli_json_peek(j);
    begin = j->at;
    int ok = neap_cli_json_expect(j, '{');
    if (ok && !neap_cli_json_accept(j, '}')) {
        do {
            key.n = 0;
            ok = neap_cli_json_read_string(j, &key) && neap_cli_json_expect(j, ':');
            int is_role = ok && strcmp(key.data, "role") == 0, is_content = ok && strcmp(key.data, "content") == 0;
            if (is_role)
                ok = neap_cli_json_read_string(j, &role);
            else if (is_content && neap_cli_json_peek(j) == '"')
                ok = neap_cli_json_read_string(j, &content);
            else if (ok)
                ok = neap_cli_json_skip(j, &ignored);
        } while (ok && neap_cli_json_accept(j, ','));
        ok = ok && neap_cli_json_expect(j, '}');
    }
    if (ok && role.n == 0) ok = neap_cli_json_fail(j, "a message without a role");
    if (ok) {
        neap_cli_message *m = push(c, role.data);
        neap_cli_text_add(&m->content, neap_cli_text_string(&content), content.n);
        neap_cli_text_add(&m->json, j->text + begin, j->at - begin);
    }
    neap_cli_text_free(&key);
    neap_cli_text_free(&role);
    neap_cli_text_free(&content);
    return ok;
}

static int read_messages(neap_cli_json *j, neap_cli_conversation *c) {
    if (!neap_cli_json_expect(j, '[')) return 0;
    if (neap_cli_json_accept(j, ']')) return 1;
    do {
        if (!read_message(j, c)) return 0;
    } while (neap_cli_json_accept(j, ','));
    return neap_cli_json_expect(j, ']');
}

/* Takes what is known from one field of the request object; the rest is checked and dropped. */
static int read_field(neap_cli_json *j, neap_cli_conversation *c, const char *key) {
    size_t begin;
    if (strcmp(key, "messages") == 0) return read_messages(j, c);
    if (strcmp(key, "thinking_effort") == 0 || strcmp(key, "tool_choice") == 0) {
        neap_cli_text value = {0};
        if (!neap_cli_json_read_string(j, &value)) {
            neap_cli_text_free(&value);
            return 0;
        }
        char **field = key[1] == 'h' ? &c->effort : &c->tool_choice;
        free(*field);
        *field = neap_cli_copy(neap_cli_text_string(&value));
        neap_cli_text_free(&value);
        return 1;
    }
    if (!neap_cli_json_skip(j, &begin)) return 0;
    const char *value = j->text + begin;
    size_t n = j->at - begin;
    if (strcmp(key, "thinking") == 0) {
        if (n == 4 && memcmp(value, "true", 4) == 0)
            c->thinking = 1;
        else if (n == 5 && memcmp(value, "false", 5) == 0)
            c->thinking = 0;
        else
            return neap_cli_json_fail(j, "thinking must be true or false");
    }
    if (strcmp(key, "tools") == 0) {
        neap_cli_text_cut(&c->tools, 0);
        neap_cli_text_add(&c->tools, value, n);
    }
    return 1;
}

int neap_cli_conversation_load(neap_cli_conversation *c, const char *path) {
    neap_cli_text text = {0}, key = {0};
    neap_cli_conversation fresh;
    int has_messages = 0;
    neap_cli_conversation_init(&fresh);
    int code = neap_cli_read_file(&text, path, NEAP_CLI_TEXT_MAX);
    if (code == NEAP_EXIT_OK) {
        neap_cli_json j = {.what = path, .text = text.data, .n = text.n};
        int ok;
        if (neap_cli_json_peek(&j) == '[') {
            ok = has_messages = read_messages(&j, &fresh);
        } else if ((ok = neap_cli_json_expect(&j, '{')) && !neap_cli_json_accept(&j, '}')) {
            do {
                key.n = 0;
                ok = neap_cli_json_read_string(&j, &key) && neap_cli_json_expect(&j, ':') &&
                     read_field(&j, &fresh, key.data);
                has_messages |= ok && strcmp(key.data, "messages") == 0;
            } while (ok && neap_cli_json_accept(&j, ','));
            ok = ok && neap_cli_json_expect(&j, '}');
        }
        ok = ok && neap_cli_json_at_end(&j);
        if (ok && !has_messages) neap_cli_error("%s: there is no \"messages\" in it", path);
        if (!ok || !has_messages) code = NEAP_EXIT_FILE;
    }
    if (code == NEAP_EXIT_OK) {
        neap_cli_conversation_free(c);
        *c = fresh;
    } else {
        neap_cli_conversation_free(&fresh);
    }
    neap_cli_text_free(&text);
    neap_cli_text_free(&key);
    return code;
}
