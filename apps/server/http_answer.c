/* Answers: heads, whole bodies, streams, and what happens when a client reads slowly or leaves; see http.h.
 *
 * Every byte of an answer passes `emit`, which knows whether it is the exchange's turn on its connection. Nothing here
 * closes a connection: it only asks for it, so that no handler loses its exchange inside its own call.
 *
 * Called by the routes (http.h) and http_connection.c. Owns nothing. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../terminal.h"
#include "http_inner.h"

static const struct {
    int32_t status;
    const char *reason;
} reasons[] = {{200, "OK"},
               {204, "No Content"},
               {304, "Not Modified"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {409, "Conflict"},
               {413, "Content Too Large"},
               {414, "URI Too Long"},
               {415, "Unsupported Media Type"},
               {417, "Expectation Failed"},
               {422, "Unprocessable Content"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {503, "Service Unavailable"},
               {504, "Gateway Timeout"},
               {505, "HTTP Version Not Supported"}};

static const char *reason_of(int32_t status) {
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) return reasons[i].reason;
    }
    return "Other";
}

/* Once a second; not by strftime, whose names of days follow the locale. */
static const char *date_of(neap_http *s) {
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    struct tm t;
    if (now != s->date_at && gmtime_r(&now, &t) != NULL) {
        snprintf(s->date, sizeof s->date, "%.3s, %02d %.3s %d %02d:%02d:%02d GMT", days + 3 * t.tm_wday, t.tm_mday,
                 months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
        s->date_at = now;
    }
    return s->date;
}

/* ---- bytes ---- */

static void begin_backlog(neap_http_connection *c) {
    c->write_since = c->backlog_since = neap_cli_seconds();
    c->backlog_taken = 0;
}

static void emit(neap_http_exchange *x, const void *bytes, size_t n) {
    neap_http_connection *c = x->connection;
    if (c == NULL || n == 0) return;
    int failed;
    if (c->writer != x) {
        if (x->waiting == NULL) x->waiting = evbuffer_new();
        failed = x->waiting == NULL || evbuffer_add(x->waiting, bytes, n) != 0;
    } else {
        struct evbuffer *out = bufferevent_get_output(c->stream);
        if (evbuffer_get_length(out) == 0) begin_backlog(c);
        failed = evbuffer_add(out, bytes, n) != 0;
        if (!failed) c->bytes_queued += n;
        neap_http_connection_arm(c);
    }
    if (failed) { /* out of memory: a gap in a stream is worse than its end */
        c->wants_close = 1;
        neap_http_connection_kick(c);
    }
}

static void send_continue(neap_http_exchange *x) {
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    x->owes_continue = 0;
    emit(x, text, sizeof text - 1);
}

/* Those before it have ended: what it has gathered goes out. */
void neap_http_take_turn(neap_http_exchange *x) {
    neap_http_connection *c = x->connection;
    c->writer = x;
    x->begin_mark = c->bytes_queued;
    if (x->waiting != NULL) {
        struct evbuffer *out = bufferevent_get_output(c->stream);
        size_t n = evbuffer_get_length(x->waiting);
        if (evbuffer_get_length(out) == 0) begin_backlog(c);
        if (evbuffer_add_buffer(out, x->waiting) == 0) c->bytes_queued += n;
    }
    if (x->owes_continue && !x->is_begun) send_continue(x);
    neap_http_connection_arm(c);
}

size_t neap_http_unsent(const neap_http_exchange *x) {
    const neap_http_connection *c = x->connection;
    if (c == NULL) return 0;
    if (c->writer != x && !x->end_mark) return x->waiting == NULL ? 0 : evbuffer_get_length(x->waiting);
    uint64_t sent = c->bytes_queued - evbuffer_get_length(bufferevent_get_output(c->stream));
    uint64_t from = sent > x->begin_mark ? sent : x->begin_mark;
    uint64_t to = x->end_mark ? x->end_mark : c->bytes_queued;
    return to > from ? (size_t)(to - from) : 0;
}

/* The handler has nothing more to say: the turn passes on, unless the answer was broken off. */
static void finish(neap_http_exchange *x) {
    neap_http_connection *c = x->connection;
    x->is_ended = 1;
    if (c != NULL) {
        while (c->writer != NULL && c->writer->is_ended && !c->is_broken) {
            neap_http_exchange *w = c->writer;
            w->end_mark = c->bytes_queued;
            if (w->is_broken) {
                c->is_broken = c->is_last = 1;
                break;
            }
            c->writer = NULL;
            if (w->next != NULL) neap_http_take_turn(w->next);
        }
        neap_http_connection_kick(c);
    }
    x->is_owned = 0;
    neap_http_unreference(x);
}

/* ---- heads ---- */

void neap_http_add_header(neap_http_exchange *x, const char *name, const char *value) {
    for (const char *c = value; *c != 0; c++) assert((unsigned char)*c >= ' ' && *c != 0x7f);
    neap_cli_text_printf(&x->headers, "%s: %s\r\n", name, value);
}

/* An answer that comes before its body: a short body is read and dropped, for a long one it is cheaper to close. */
static void settle_body(neap_http_exchange *x) {
    neap_http_connection *c = x->connection;
    const neap_http_message *m = &x->message;
    if (c == NULL || c->reading != x) return;
    if (c->parser.progress == NEAP_HTTP_AT_BODY && m->length == 0 && !m->is_chunked) return;
    if (!m->is_chunked && m->length <= NEAP_HTTP_DRAIN_MAX && !m->expects_continue && m->keep_alive) {
        c->parser.drops_body = 1;
        return;
    }
    x->skips_body = 1;
    c->is_last = c->must_linger = 1;
}

/* length < 0: not known, a stream. */
static void begin(neap_http_exchange *x, int32_t status, const char *type, int64_t length) {
    neap_http_connection *c = x->connection;
    assert(!x->is_begun && !x->is_ended);
    settle_body(x);
    neap_http_own(x);
    x->is_begun = 1;
    x->status = status;
    int has_none = status == 204 || status == 304;
    x->is_bodiless = has_none || x->message.method == NEAP_HTTP_HEAD;
    x->is_chunked = length < 0 && x->message.minor == 1 && !x->is_bodiless;
    if (c == NULL) return;
    /* Those that wait behind it would be lost by closing. */
    int closes = c->last == x && (c->is_last || c->http->is_closing || !x->message.keep_alive);
    if (closes) c->is_last = 1;
    neap_cli_text t = {0};
    neap_cli_text_printf(&t, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason_of(status), date_of(c->http));
    if (type != NULL) neap_cli_text_printf(&t, "Content-Type: %s\r\n", type);
    if (length >= 0 && !has_none) neap_cli_text_printf(&t, "Content-Length: %lld\r\n", (long long)length);
    if (x->is_chunked) neap_cli_text_puts(&t, "Transfer-Encoding: chunked\r\n");
    if (type != NULL && strncmp(type, "text/event-stream", 17) == 0) {
        neap_cli_text_puts(&t, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    }
    if (x->id[0] != 0) neap_cli_text_printf(&t, "X-Request-Id: %s\r\n", x->id);
    neap_cli_text_puts(&t, "X-Content-Type-Options: nosniff\r\n");
    neap_cli_text_add(&t, neap_cli_text_string(&x->headers), x->headers.n);
    neap_cli_text_puts(&t, closes ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n");
    emit(x, t.data, t.n);
    neap_cli_text_free(&t);
}

void neap_http_reply(neap_http_exchange *x, int32_t status, const char *type, const void *body, size_t n) {
    begin(x, status, type, (int64_t)n);
    if (!x->is_bodiless && n > 0) {
        emit(x, body, n);
        x->body_sent = n;
    }
    finish(x);
}

/* ---- streams ---- */

void neap_http_begin(neap_http_exchange *x, int32_t status, const char *type) {
    x->is_stream = 1;
    begin(x, status, type, -1);
}

void neap_http_write(neap_http_exchange *x, const void *bytes, size_t n) {
    assert(x->is_stream && !x->is_ended);
    if (x->connection == NULL || x->is_bodiless || n == 0) return;
    char size[24];
    if (x->is_chunked) emit(x, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    emit(x, bytes, n);
    if (x->is_chunked) emit(x, "\r\n", 2);
    x->body_sent += n;
    size_t unsent = neap_http_unsent(x), limit = x->http->limits.stream_bytes;
    if (unsent > limit && !x->is_full) {
        x->is_full = 1;
        if (x->full != NULL) x->full(x->watch_user, 1);
    }
    if (unsent > 2 * limit && x->connection != NULL) { /* its handler did not stop */
        x->connection->wants_close = 1;
        neap_http_connection_kick(x->connection);
    }
}

void neap_http_end(neap_http_exchange *x) {
    assert(x->is_stream && !x->is_ended);
    if (x->is_chunked) emit(x, "0\r\n\r\n", 5);
    finish(x);
}

void neap_http_abort(neap_http_exchange *x) {
    assert(!x->is_ended);
    x->is_broken = 1;
    finish(x);
}

/* ---- clients that leave ---- */

static void tell_late(void *user) {
    neap_http *s = user;
    for (neap_http_exchange *x = s->exchanges, *next; x != NULL; x = next) {
        next = x->next_all;
        if (!x->gone_later) continue;
        x->gone_later = 0;
        if (!x->is_ended && x->gone != NULL) {
            x->gone(x->watch_user);
            next = s->exchanges; /* the list may have changed */
        }
    }
}

void neap_http_watch(neap_http_exchange *x, void (*gone)(void *user), void (*full)(void *user, int is_full),
                     void *user) {
    x->gone = gone;
    x->full = full;
    x->watch_user = user;
    if (!x->is_gone || gone == NULL) return;
    x->gone_later = 1; /* not from inside this call */
    neap_http_post(x->http, tell_late, x->http);
}

/* ---- answers of this layer ---- */

void neap_http_refuse(neap_http_exchange *x, int32_t status, const char *why) {
    char body[512];
    int n = snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}",
                     why, status >= 500 ? "server_error" : "invalid_request_error");
    neap_http_reply(x, status, "application/json", body, (size_t)n);
}

size_t neap_http_full_text(char *text, size_t capacity) {
    static const char body[] = "{\"error\":{\"message\":\"The server has too many connections.\","
                               "\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    int n = snprintf(text, capacity,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Retry-After: 1\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
    return (size_t)n;
}
