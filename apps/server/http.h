/* HTTP/1.1 over libevent's loop, listeners and buffers: connections, limits, time-outs, streams of events.
 *
 * Bytes from clients go through a strict parser of our own (http_parse.h), because evhttp takes what RFC 9112 calls
 * ambiguous (bare LF, folded lines, "+5" and repeated lengths, length beside chunked), has no limits on the number of
 * headers or on pipelining, and does not slow a stream down whose reader is slow.
 *
 * One thread runs the loop; every function here belongs to it, but neap_http_post. An exchange is a request and its
 * answer; it lives until the handler's side has ended it AND the connection has let go of it, so that a client that
 * leaves never pulls memory away from under anybody: after `gone` was told, writes to it do nothing. */
#ifndef NEAP_APPS_SERVER_HTTP_H
#define NEAP_APPS_SERVER_HTTP_H

#include <stddef.h>
#include <stdint.h>

typedef struct neap_http neap_http;
typedef struct neap_http_exchange neap_http_exchange;

typedef enum neap_http_method {
    NEAP_HTTP_GET = 1,
    NEAP_HTTP_HEAD = 2,
    NEAP_HTTP_POST = 4,
    NEAP_HTTP_OPTIONS = 8,
    NEAP_HTTP_OTHER = 16 /* answered 405 or 501 by the router */
} neap_http_method;

typedef struct neap_http_limits {
    size_t header_bytes, uri_bytes, body_bytes; /* 16 KiB, 8 KiB, 32 MiB: 431, 414, 413 */
    int32_t headers;                            /* 100: 431 */
    int32_t connections;                        /* 1024; beyond: 503 and close */
    int32_t pipelined;                          /* 16 requests of a connection that wait for answers */
    size_t stream_bytes; /* 256 KiB unsent: `full` is told; twice that: the connection is closed */
    double header_seconds, body_seconds, write_seconds, idle_seconds; /* 10, 30 (and body_rate), 30, 60 */
    /* 1024 bytes a second, of bodies beyond body_seconds, and of answers that wait longer than write_seconds */
    double body_rate;
} neap_http_limits;
void neap_http_limits_init(neap_http_limits *l);

typedef struct neap_http_handler {
    void *user;
    /* Head and body are complete and well-formed. Must answer sooner or later: neap_http_reply or begin .. end. */
    void (*request)(void *user, neap_http_exchange *x);
    /* The head alone is there: may answer at once (wrong key, unknown path, wrong type), then the body is not read and
     * `request` is not called. It may also never be called because the body is malformed or late, or the client leaves:
     * do not keep x here, and do nothing that `done` does not undo. May be NULL. */
    void (*head)(void *user, neap_http_exchange *x);
    /* For the log, once for every exchange, after its last byte or when its client left. `gone`: it left before. */
    void (*done)(void *user, neap_http_exchange *x, int gone);
} neap_http_handler;

/* Returns 0, or prints one line on standard error and returns an exit code. */
int neap_http_create(neap_http **out, const neap_http_limits *l, const neap_http_handler *h);
/* Clients are told nothing more; exchanges that have not ended are `gone`, and then freed whether their handlers end
 * them or not. Posts that have not run are dropped. */
void neap_http_destroy(neap_http *s);
/* "127.0.0.1", "::1", "localhost", "0.0.0.0" and a port (0: any; *port is the one it got), or a socket path of at most
 * 107 bytes ("unix:/run/neap.sock"; mode 0600; a stale socket is removed, a live one is an error). TLS: both PEM files
 * or NULL. May be called several times. No names: looking one up would talk to other machines. */
int neap_http_listen(neap_http *s, const char *host, int32_t *port, const char *cert_file, const char *key_file);
int neap_http_run(neap_http *s);   /* until neap_http_stop */
void neap_http_stop(neap_http *s); /* leaves the loop as soon as it can; any thread */
/* No new connections; kept-alive ones are closed after their present answer. */
void neap_http_close_listeners(neap_http *s);
int32_t neap_http_connections(const neap_http *s);
int32_t neap_http_exchanges(const neap_http *s); /* begun and not ended */
/* Runs fn on the loop's thread soon; from any thread; never blocks for long; order is kept. */
void neap_http_post(neap_http *s, void (*fn)(void *user), void *user);
/* Calls fn every `seconds` until the server ends (0: once, soon). */
void neap_http_every(neap_http *s, double seconds, void (*fn)(void *user), void *user);
struct event_base *neap_http_base(neap_http *s); /* for signals */

/* ---- the request; strings are borrowed while the exchange lives ---- */
neap_http_method neap_http_method_of(const neap_http_exchange *x);
const char *neap_http_method_text(const neap_http_exchange *x);
const char *
neap_http_path(const neap_http_exchange *x); /* as sent, before '?': never decoded, always begins with '/' */
const char *neap_http_query(const neap_http_exchange *x);                    /* after '?'; "" */
const char *neap_http_header(const neap_http_exchange *x, const char *name); /* any case; NULL: none */
int32_t neap_http_header_count(const neap_http_exchange *x, const char *name);
const char *neap_http_body(const neap_http_exchange *x, size_t *n); /* 0-terminated too */
/* Gives the body's memory to the caller (free()). */
char *neap_http_take_body(neap_http_exchange *x, size_t *n);
/* What take_body gave has been freed: until then, or the end of the exchange, it counts among the bodies in memory. */
void neap_http_body_freed(neap_http_exchange *x);
int neap_http_is_local(const neap_http_exchange *x); /* came by a unix socket */
const char *neap_http_peer(const neap_http_exchange *x);
/* x-request-id as sent when it is [A-Za-z0-9_-]{1,64}, else 128 random bits in hex; goes out with every answer. */
const char *neap_http_id(const neap_http_exchange *x);
double neap_http_seconds(const neap_http_exchange *x); /* since its first byte */
int32_t neap_http_status(const neap_http_exchange *x); /* of the answer; 0: none yet */
uint64_t neap_http_sent(const neap_http_exchange *x);  /* bytes of the answer's body */
/* A place for the handler's own data. */
void neap_http_set_user(neap_http_exchange *x, void *user);
void *neap_http_user(const neap_http_exchange *x);

/* ---- the answer ---- */
/* A further header, before reply or begin. Names are ours; a value with control characters is refused (assert). */
void neap_http_add_header(neap_http_exchange *x, const char *name, const char *value);
/* A whole answer; ends the exchange for the handler. HEAD gets no body. type may be NULL with n 0. */
void neap_http_reply(neap_http_exchange *x, int32_t status, const char *type, const void *body, size_t n);
/* A stream: chunked (HTTP/1.0: until close). */
void neap_http_begin(neap_http_exchange *x, int32_t status, const char *type);
void neap_http_write(neap_http_exchange *x, const void *bytes, size_t n);
void neap_http_end(neap_http_exchange *x); /* complete */
void neap_http_abort(
    neap_http_exchange *x); /* closes the connection without the last chunk: the answer is broken off */
size_t neap_http_unsent(const neap_http_exchange *x);
/* gone: the client left (closed, reset, timed out) before the end; nothing it is sent matters any more. The handler
 * still has to end the exchange. Told once; soon, and not from inside this call, when it has left already. full: more
 * than stream_bytes are unsent (1, from inside neap_http_write), less than half of that again (0). May be NULL. */
void neap_http_watch(neap_http_exchange *x, void (*gone)(void *user), void (*full)(void *user, int is_full),
                     void *user);
int neap_http_is_gone(const neap_http_exchange *x);

#endif
