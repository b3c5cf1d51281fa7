/* Connections: bytes in, requests to the handler in order, deadlines, and every way a connection ends; see http.h.
 *
 * Requests are read ahead while earlier ones are being answered, up to `pipelined` of them and as long as the unsent
 * answers are short; then reading stops, and only the client's leaving is watched. One timer per connection stands for
 * the next of its deadlines: head, body, idleness, a write that makes no progress; bodies and writes must also keep up
 * `body_rate` in the long run. Nothing is armed while an answer is made.
 *
 * A client that shuts down its sending side is taken as gone, because no system call tells that from a closed
 * connection; what was answered by then is still sent.
 *
 * Connections are closed only from here and only from the loop's callbacks, never inside a handler's call: the others
 * set a flag and kick. Called by http_listen.c, http_answer.c, http.c. Owns sockets and events. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../chance.h"
#include "../terminal.h"
#include "http_inner.h"

static const double linger_seconds = 2;

static size_t unsent_bytes(const neap_http_connection *c) {
    return evbuffer_get_length(bufferevent_get_output(c->stream));
}

/* ---- deadlines ---- */

static double write_deadline(const neap_http_connection *c) {
    const neap_http_limits *l = &c->http->limits;
    if (unsent_bytes(c) == 0) return INFINITY;
    return fmin(c->write_since, c->backlog_since + (double)c->backlog_taken / l->body_rate) + l->write_seconds;
}

static double next_deadline(const neap_http_connection *c) {
    const neap_http_limits *l = &c->http->limits;
    if (c->is_lingering) return c->linger_until;
    double until = write_deadline(c);
    if (c->reading != NULL) {
        int is_body = c->parser.progress >= NEAP_HTTP_AT_BODY;
        double more = is_body ? l->body_seconds + (double)c->parser.n_seen / l->body_rate : l->header_seconds;
        until = fmin(until, c->read_since + more);
    } else if (c->first == NULL) {
        until = fmin(until, c->n_served == 0 ? c->started + l->header_seconds : c->idle_since + l->idle_seconds);
    }
    return until;
}

/* An armed timer that comes too early looks again; so most changes cost nothing. */
void neap_http_connection_arm(neap_http_connection *c) {
    double until = next_deadline(c);
    if (until == INFINITY) {
        if (c->armed_for != 0) event_del(c->timer);
        c->armed_for = 0;
        return;
    }
    if (c->armed_for != 0 && c->armed_for <= until) return;
    double left = until - neap_cli_seconds();
    if (left < 0) left = 0;
    struct timeval t = {.tv_sec = (time_t)left, .tv_usec = (suseconds_t)((left - floor(left)) * 1e6)};
    event_add(c->timer, &t);
    c->armed_for = until;
}

static void settle(neap_http_connection *c);

static void refuse_reading(neap_http_connection *c, int32_t status, const char *why) {
    neap_http_exchange *x = c->reading;
    c->is_last = c->must_linger = 1;
    if (!x->is_begun) neap_http_refuse(x, status, why);
    c->reading = NULL;
}

static void on_deadline(evutil_socket_t fd, short what, void *user) {
    neap_http_connection *c = user;
    (void)fd, (void)what;
    c->armed_for = 0;
    double now = neap_cli_seconds();
    if (next_deadline(c) > now) {
        neap_http_connection_arm(c);
        return;
    }
    int is_body = c->parser.progress >= NEAP_HTTP_AT_BODY;
    if (c->reading == NULL || write_deadline(c) <= now) { /* also when idle, or lingering */
        neap_http_connection_close(c);
        return;
    }
    refuse_reading(c, 408, is_body ? "The body did not come in time." : "The header did not come in time.");
    settle(c);
}

/* ---- exchanges ---- */

static int begin_exchange(neap_http_connection *c) {
    neap_http *s = c->http;
    neap_http_exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return 0;
    x->http = s;
    x->connection = c;
    x->n_references = 1;
    x->started = c->read_since = neap_cli_seconds();
    x->is_local = c->is_local;
    memcpy(x->peer, c->peer, sizeof x->peer);
    x->next_all = s->exchanges;
    x->link_all = &s->exchanges;
    if (s->exchanges != NULL) s->exchanges->link_all = &x->next_all;
    s->exchanges = x;
    if (c->last != NULL)
        c->last->next = x;
    else
        c->first = x;
    c->last = c->reading = x;
    c->n_queued++;
    neap_http_parser_init(&c->parser, &x->message, &s->limits);
    if (c->writer == NULL) neap_http_take_turn(x);
    return 1;
}

static void make_id(neap_http_exchange *x) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *sent = neap_http_message_header(&x->message, "x-request-id");
    size_t n = sent == NULL ? 0 : strlen(sent);
    if (n > 0 && n <= NEAP_HTTP_ID_MAX && strspn(sent, allowed) == n) {
        memcpy(x->id, sent, n + 1);
        return;
    }
    neap_cli_fresh_id(x->id);
}

/* Takes the first exchange out of the queue: its last byte is sent, or the client left. */
static void let_go(neap_http_connection *c, int is_gone) {
    neap_http *s = c->http;
    neap_http_exchange *x = c->first;
    c->first = x->next;
    if (c->first == NULL) c->last = NULL;
    if (c->writer == x) c->writer = NULL;
    if (c->reading == x) c->reading = NULL;
    c->n_queued--;
    x->next = NULL;
    x->connection = NULL;
    x->is_gone = is_gone;
    if (is_gone && x->is_known && !x->is_ended && x->gone != NULL) x->gone(x->watch_user);
    if (x->is_known) s->n_exchanges--;
    if ((x->is_known || x->is_begun) && s->handler.done != NULL) s->handler.done(s->handler.user, x, is_gone);
    neap_http_unreference(x);
}

/* ---- closing ---- */

static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *user) {
    neap_http_connection *c = user;
    (void)out;
    if (info->n_deleted == 0) return;
    c->write_since = neap_cli_seconds();
    c->backlog_taken += info->n_deleted;
}

void neap_http_connection_close(neap_http_connection *c) {
    neap_http *s = c->http;
    *c->link = c->next;
    if (c->next != NULL) c->next->link = c->link;
    if (c->is_over)
        s->n_over--;
    else
        s->n_connections--;
    bufferevent_disable(c->stream, EV_READ | EV_WRITE);
    bufferevent_setcb(c->stream, NULL, NULL, NULL, NULL);
    (void)evbuffer_remove_cb(bufferevent_get_output(c->stream), on_output, c);
    while (c->first != NULL) let_go(c, 1);
    if (c->timer != NULL) event_free(c->timer);
    if (c->kick != NULL) event_free(c->kick);
    if (c->closed != NULL) event_free(c->closed);
    bufferevent_free(c->stream);
    free(c);
}

static void drop_input(neap_http_connection *c) {
    struct evbuffer *in = bufferevent_get_input(c->stream);
    size_t n = evbuffer_get_length(in);
    if (n > 0) c->must_linger = 1;
    (void)evbuffer_drain(in, n);
}

/* Everything is sent. Closing with unread bytes would reset the connection and could destroy the answer on its way. */
static void begin_linger(neap_http_connection *c) {
    drop_input(c);
    if (!c->must_linger || c->has_eof) {
        if (c->is_tls) neap_http_tls_goodbye(c->stream);
        neap_http_connection_close(c);
        return;
    }
    c->is_lingering = 1;
    c->linger_until = neap_cli_seconds() + linger_seconds;
    if (c->is_tls) neap_http_tls_goodbye(c->stream);
    shutdown(bufferevent_getfd(c->stream), SHUT_WR);
    neap_http_connection_arm(c);
}

/* ---- requests ---- */

static int is_held_up(const neap_http_connection *c) {
    return c->n_queued >= c->http->limits.pipelined || unsent_bytes(c) > c->http->limits.stream_bytes;
}

static void count_body(neap_http_connection *c, neap_http_exchange *x) {
    neap_http *s = c->http;
    s->body_held += x->message.body_capacity - x->body_held;
    x->body_held = x->message.body_capacity;
    c->parser.keeps_none = s->body_held / NEAP_HTTP_BODIES_MAX > s->limits.body_bytes;
}

static void on_head(neap_http_connection *c, neap_http_exchange *x) {
    neap_http *s = c->http;
    x->is_known = 1;
    s->n_exchanges++;
    make_id(x);
    c->read_since = neap_cli_seconds();
    if (!x->message.keep_alive) c->is_last = 1;
    if (s->handler.head != NULL) s->handler.head(s->handler.user, x);
    if (x->skips_body) {
        c->reading = NULL;
    } else if (x->message.expects_continue && !x->is_begun && (x->message.length > 0 || x->message.is_chunked)) {
        x->owes_continue = 1;
        if (c->writer == x) neap_http_take_turn(x);
    }
}

static void on_complete(neap_http_connection *c, neap_http_exchange *x) {
    neap_http *s = c->http;
    c->reading = NULL;
    x->owes_continue = 0;
    if (x->is_begun) return;
    neap_http_own(x);
    s->handler.request(s->handler.user, x);
}

/* One step of reading: 0 when it needs more bytes or may not go on. */
static int read_step(neap_http_connection *c) {
    struct evbuffer *in = bufferevent_get_input(c->stream);
    struct evbuffer_iovec run = {0};
    if (c->reading != NULL && c->reading->skips_body) c->reading = NULL;
    if (c->reading == NULL) {
        if (c->is_last) {
            drop_input(c);
            return 0;
        }
        if (evbuffer_get_length(in) == 0 || is_held_up(c)) return 0;
        if (!begin_exchange(c)) {
            c->wants_close = 1; /* out of memory */
            return 0;
        }
    }
    neap_http_exchange *x = c->reading;
    (void)evbuffer_peek(in, -1, NULL, &run, 1);
    size_t taken = neap_http_parser_feed(&c->parser, run.iov_base, run.iov_len);
    (void)evbuffer_drain(in, taken);
    count_body(c, x);
    switch (c->parser.progress) {
    case NEAP_HTTP_AT_BODY: on_head(c, x); return 1;
    case NEAP_HTTP_COMPLETE: on_complete(c, x); return 1;
    case NEAP_HTTP_REFUSED: refuse_reading(c, c->parser.status, c->parser.why); return 1;
    default: return evbuffer_get_length(in) > 0;
    }
}

/* The socket has taken bytes: answers that are out leave the queue. */
static void take_stock(neap_http_connection *c) {
    uint64_t sent = c->bytes_queued - unsent_bytes(c);
    while (c->first != NULL && c->first->is_ended && c->first != c->writer && c->first != c->reading &&
           c->first->end_mark <= sent) {
        c->n_served++;
        c->idle_since = neap_cli_seconds();
        let_go(c, 0);
    }
    neap_http_exchange *w = c->writer;
    if (w != NULL && w->is_full && neap_http_unsent(w) <= c->http->limits.stream_bytes / 2) {
        w->is_full = 0;
        if (w->full != NULL && !w->is_ended) w->full(w->watch_user, 0);
    }
}

/* After anything has happened: reads on, answers, and decides what to wait for. May end the connection. */
static void settle(neap_http_connection *c) {
    if (c->is_in_loop) return;
    c->is_in_loop = 1;
    take_stock(c);
    while (!c->is_lingering && !c->wants_close && read_step(c)) continue;
    if (c->is_lingering) drop_input(c);
    take_stock(c);
    c->is_in_loop = 0;
    int is_drained = c->http->is_closing && c->first == NULL && c->n_served > 0;
    if (c->wants_close || (c->is_broken && unsent_bytes(c) == 0)) {
        neap_http_connection_close(c);
        return;
    }
    if (c->first == NULL && !c->is_lingering && (c->is_last || is_drained) && unsent_bytes(c) == 0) {
        begin_linger(c);
        return;
    }
    int is_off = c->reading == NULL && !c->is_last && !c->is_lingering && is_held_up(c);
    if (is_off != c->is_read_off && !c->has_eof) {
        c->is_read_off = is_off;
        if (is_off) {
            bufferevent_disable(c->stream, EV_READ);
            event_add(c->closed, NULL);
        } else {
            event_del(c->closed);
            bufferevent_enable(c->stream, EV_READ);
        }
    }
    neap_http_connection_arm(c);
}

/* ---- events ---- */

static void on_bytes(struct bufferevent *stream, void *user) {
    (void)stream;
    settle(user);
}

static void on_kick(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    settle(user);
}

/* The client has shut down its sending side, at least. What it was answered is sent; when more is owed, it is gone. */
static void on_left(neap_http_connection *c) {
    int owes = c->reading != NULL || c->first == NULL;
    for (const neap_http_exchange *x = c->first; x != NULL; x = x->next) owes |= !x->is_ended;
    if (owes) {
        neap_http_connection_close(c);
        return;
    }
    event_del(c->closed);
    c->has_eof = c->is_last = 1;
    settle(c);
}

static void on_closed(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    on_left(user);
}

static void on_event(struct bufferevent *stream, short what, void *user) {
    (void)stream;
    if (what & BEV_EVENT_CONNECTED) return; /* TLS is up */
    if (what & BEV_EVENT_EOF)
        on_left(user);
    else
        neap_http_connection_close(user);
}

void neap_http_connection_kick(neap_http_connection *c) { event_active(c->kick, EV_TIMEOUT, 0); }

static neap_http_connection *make(neap_http *s, struct bufferevent *stream, int is_over) {
    neap_http_connection *c = calloc(1, sizeof *c);
    if (c == NULL) {
        bufferevent_free(stream);
        return NULL;
    }
    c->http = s;
    c->stream = stream;
    c->started = c->idle_since = c->write_since = c->backlog_since = neap_cli_seconds();
    c->is_over = is_over;
    c->next = s->connections;
    c->link = &s->connections;
    if (c->next != NULL) c->next->link = &c->next;
    s->connections = c;
    if (is_over)
        s->n_over++;
    else
        s->n_connections++;
    c->timer = event_new(s->base, -1, 0, on_deadline, c);
    c->kick = event_new(s->base, -1, 0, on_kick, c);
    c->closed = event_new(s->base, bufferevent_getfd(stream), EV_CLOSED | EV_PERSIST, on_closed, c);
    if (c->timer == NULL || c->kick == NULL || c->closed == NULL ||
        evbuffer_add_cb(bufferevent_get_output(stream), on_output, c) == NULL) {
        neap_http_connection_close(c);
        return NULL;
    }
    bufferevent_setcb(stream, on_bytes, on_bytes, on_event, c);
    bufferevent_setwatermark(stream, EV_WRITE, s->limits.stream_bytes / 2, 0);
    return c;
}

neap_http_connection *neap_http_connection_open(neap_http *s, struct bufferevent *stream, const char *peer,
                                                int is_local, int is_tls) {
    neap_http_connection *c = make(s, stream, 0);
    if (c == NULL) return NULL;
    c->is_local = is_local;
    c->is_tls = is_tls;
    size_t n = strnlen(peer, sizeof c->peer - 1);
    memcpy(c->peer, peer, n);
    bufferevent_enable(stream, EV_READ | EV_WRITE);
    neap_http_connection_arm(c);
    return c;
}

void neap_http_connection_refuse(neap_http *s, struct bufferevent *stream) {
    char text[512];
    size_t n = neap_http_full_text(text, sizeof text);
    neap_http_connection *c = make(s, stream, 1);
    if (c == NULL) return;
    c->is_last = c->must_linger = 1;
    bufferevent_enable(stream, EV_READ | EV_WRITE);
    (void)bufferevent_write(stream, text, n);
    c->bytes_queued = n;
    neap_http_connection_arm(c);
}
