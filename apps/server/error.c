/* Errors as clients see them: one catalogue of statuses, types and codes, two shapes of body.
 *
 * Messages are written where the mistake is found, about the client's own fields; the errors that are ours have fixed
 * sentences, so that no path, address or number from inside leaves the process. Codes are always strings; the status
 * line has the number.
 *
 * Called by everything that refuses a request. Owns nothing. Source: OpenAI's error objects, Anthropic's error shape,
 * RFC 9110 (Retry-After, WWW-Authenticate). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../json_out.h"
#include "serve.h"

typedef struct entry {
    int32_t status, retry_seconds; /* retry_seconds: Retry-After; 0: none */
    const char *type, *code, *anthropic;
    const char *fixed; /* said instead of any message; NULL: the message */
} entry;

static const entry catalogue[] = {
    [NEAP_ERROR_BAD_JSON] = {400, 0, "invalid_request_error", "invalid_json", "invalid_request_error", NULL},
    [NEAP_ERROR_BAD_VALUE] = {400, 0, "invalid_request_error", "invalid_value", "invalid_request_error", NULL},
    [NEAP_ERROR_UNSUPPORTED] = {400, 0, "invalid_request_error", "unsupported_value", "invalid_request_error", NULL},
    [NEAP_ERROR_CONTEXT] = {400, 0, "exceed_context_size_error", "context_length_exceeded", "invalid_request_error",
                            NULL},
    [NEAP_ERROR_KEY] = {401, 0, "authentication_error", "invalid_api_key", "authentication_error", NULL},
    [NEAP_ERROR_FORBIDDEN] = {403, 0, "permission_error", "forbidden", "permission_error", NULL},
    [NEAP_ERROR_NO_ROUTE] = {404, 0, "not_found_error", "not_found", "not_found_error", NULL},
    [NEAP_ERROR_NO_MODEL] = {404, 0, "not_found_error", "model_not_found", "not_found_error", NULL},
    [NEAP_ERROR_METHOD] = {405, 0, "invalid_request_error", "method_not_allowed", "invalid_request_error", NULL},
    [NEAP_ERROR_TYPE] = {415, 0, "invalid_request_error", "unsupported_media_type", "invalid_request_error", NULL},
    [NEAP_ERROR_QUEUE] = {429, 1, "rate_limit_error", "queue_full", "rate_limit_error", NULL},
    [NEAP_ERROR_NUMERIC] = {500, 0, "server_error", "numeric", "api_error",
                            "the model's numbers are no longer finite; this answer cannot go on"},
    [NEAP_ERROR_INTERNAL] = {500, 0, "server_error", "internal_error", "api_error", "internal error"},
    [NEAP_ERROR_NOT_SUPPORTED] = {501, 0, "not_supported_error", "not_supported", "api_error", NULL},
    [NEAP_ERROR_LOADING] = {503, 2, "unavailable_error", "loading", "overloaded_error", NULL},
    [NEAP_ERROR_DRAINING] = {503, 5, "unavailable_error", "draining", "overloaded_error", NULL},
    [NEAP_ERROR_TIMEOUT] = {504, 0, "timeout_error", "timeout", "timeout_error", NULL},
    [NEAP_ERROR_TOO_LARGE] = {413, 0, "invalid_request_error", "request_too_large", "request_too_large", NULL},
};

static const entry *entry_of(const neap_serve_problem *p) {
    size_t i = (size_t)p->error;
    return &catalogue[i < sizeof catalogue / sizeof catalogue[0] ? i : (size_t)NEAP_ERROR_INTERNAL];
}

void neap_serve_problem_set(neap_serve_problem *p, neap_serve_error e, const char *param, const char *format, ...) {
    va_list args;
    *p = (neap_serve_problem){.error = e};
    snprintf(p->param, sizeof p->param, "%s", param != NULL ? param : "");
    va_start(args, format);
    vsnprintf(p->message, sizeof p->message, format, args);
    va_end(args);
}

/* "messages[3].content" in "messages[3].content: must be ..."; otherwise nothing. */
static void field_of(const char *message, char *param, size_t capacity) {
    size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.[]$/-");
    param[0] = 0;
    if (n > 0 && n < capacity && message[n] == ':') snprintf(param, capacity, "%.*s", (int)n, message);
}

void neap_serve_problem_library(neap_serve_problem *p, neap_status status) {
    neap_serve_error e = NEAP_ERROR_INTERNAL;
    const char *message = neap_last_error();
    char param[sizeof p->param];
    switch (status) {
    case NEAP_INVALID_ARGUMENT:
    case NEAP_LIMIT: e = NEAP_ERROR_BAD_VALUE; break;
    case NEAP_UNSUPPORTED: e = NEAP_ERROR_UNSUPPORTED; break;
    case NEAP_CONTEXT_FULL: e = NEAP_ERROR_CONTEXT; break;
    case NEAP_BUSY: e = NEAP_ERROR_QUEUE; break;
    case NEAP_NUMERIC: e = NEAP_ERROR_NUMERIC; break;
    default: break;
    }
    field_of(message, param, sizeof param);
    neap_serve_problem_set(p, e, param, "%s", message);
}

int32_t neap_serve_problem_status(const neap_serve_problem *p) { return entry_of(p)->status; }

static void openai_body(const neap_serve_problem *p, const entry *e, const char *message, neap_cli_text *out) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_open(out, "error", '{');
    neap_cli_json_cstring(out, "message", message);
    neap_cli_json_cstring(out, "type", e->type);
    neap_cli_json_cstring(out, "param", p->param[0] != 0 ? p->param : NULL);
    neap_cli_json_cstring(out, "code", p->code[0] != 0 ? p->code : e->code);
    if (p->error == NEAP_ERROR_CONTEXT) {
        neap_cli_json_int(out, "n_prompt_tokens", p->n_prompt_tokens);
        neap_cli_json_int(out, "n_ctx", p->n_ctx);
    }
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

void neap_serve_problem_body(const neap_serve_problem *p, int anthropic, neap_cli_text *out) {
    const entry *e = entry_of(p);
    const char *message = e->fixed != NULL ? e->fixed : p->message;
    if (!anthropic) {
        openai_body(p, e, message, out);
        return;
    }
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "type", "error");
    neap_cli_json_open(out, "error", '{');
    neap_cli_json_cstring(out, "type", e->anthropic);
    neap_cli_json_cstring(out, "message", message);
    neap_cli_json_close(out, '}');
    neap_cli_json_close(out, '}');
}

void neap_serve_fail(neap_server *s, neap_http_exchange *x, const neap_serve_problem *p, int anthropic) {
    const entry *e = entry_of(p);
    neap_cli_text body = {0};
    neap_serve_problem_body(p, anthropic, &body);
    if (e->retry_seconds > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", e->retry_seconds);
        neap_http_add_header(x, "Retry-After", seconds);
    }
    if (p->error == NEAP_ERROR_KEY) neap_http_add_header(x, "WWW-Authenticate", "Bearer");
    if (s != NULL) {
        char status[16];
        snprintf(status, sizeof status, "%d", e->status);
        neap_serve_log_fields(NEAP_LOG_DEBUG, "refused", "id", neap_http_id(x), "status", status, "code",
                              p->code[0] != 0 ? p->code : e->code, "param", p->param, NULL);
    }
    neap_http_reply(x, e->status, "application/json", body.data, body.n);
    neap_cli_text_free(&body);
}
