/* What the files of the HTTP layer share; nobody else includes it.
 *
 * A connection owns its socket and a queue of exchanges in the order of their requests. The first one that has not
 * ended is the writer: its bytes go into the socket's buffer; those behind it gather theirs in `waiting`. */
#ifndef NEAP_APPS_SERVER_HTTP_INNER_H
#define NEAP_APPS_SERVER_HTTP_INNER_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "../buffer.h"
#include "http_parse.h"

enum {
    NEAP_HTTP_ID_MAX = 64,
    NEAP_HTTP_PEER_MAX = 56,
    NEAP_HTTP_DRAIN_MAX = 64 << 10, /* a body of an early answer that is read and dropped; longer: close */
    NEAP_HTTP_OVER_MAX = 32,        /* connections over the cap that get their 503 with some patience */
    NEAP_HTTP_BODIES_MAX = 8        /* times body_bytes: what all bodies may hold together; beyond: 503 */
};

typedef struct neap_http_connection neap_http_connection;
typedef struct neap_http_listener neap_http_listener; /* http_listen.c */
typedef struct neap_http_posted neap_http_posted;     /* http.c */
typedef struct neap_http_timer neap_http_timer;       /* http.c */

struct neap_http {
    struct event_base *base;
    neap_http_limits limits;
    neap_http_handler handler;
    neap_http_listener *listeners;
    struct event *relisten; /* listeners rest after a lack of descriptors */
    neap_http_connection *connections;
    int32_t n_connections, n_over;
    neap_http_exchange *exchanges; /* all that are not freed */
    int32_t n_exchanges;           /* known to the handler, not done */
    size_t body_held;              /* bytes of bodies, of all exchanges */
    int is_closing;                /* no more keep-alive */
    neap_http_timer *timers;
    char date[40];
    time_t date_at;
    /* other threads */
    atomic_int is_stopped;
    int wake_fd;
    struct event *wake;
    pthread_mutex_t lock; /* of the list */
    neap_http_posted *posted, **posted_end;
};

struct neap_http_connection {
    neap_http *http;
    neap_http_connection *next, **link; /* of all */
    struct bufferevent *stream;
    struct event *timer, *kick, *closed; /* deadline; things to do soon; the client left while we do not read */
    neap_http_exchange *first, *last;    /* answers not sent yet, in order; linked by `next` */
    neap_http_exchange *writer;          /* NULL: all have ended */
    neap_http_exchange *reading;         /* the last one, while its request comes in */
    neap_http_parser parser;
    int32_t n_queued, n_served;
    uint64_t bytes_queued;      /* ever put into the socket's buffer */
    double started, idle_since; /* seconds of the monotonic clock */
    double read_since;          /* the head's or the body's first byte */
    double write_since;         /* the latest byte that the socket took */
    double backlog_since;       /* since when there has always been something to send */
    uint64_t backlog_taken;     /* bytes that the socket has taken since then */
    double linger_until, armed_for;
    int is_last;      /* no request after those in the queue */
    int must_linger;  /* the client may still be sending: closing at once would destroy the answer */
    int is_lingering; /* everything is sent; waits for the client to close */
    int is_broken;    /* an answer was broken off: closes when what there is of it is sent */
    int is_over, has_eof, wants_close, is_local, is_tls, is_in_loop, is_read_off;
    char peer[NEAP_HTTP_PEER_MAX];
};

struct neap_http_exchange {
    neap_http *http;
    neap_http_connection *connection; /* NULL: sent, or gone */
    neap_http_exchange *next;         /* in the connection's queue */
    neap_http_exchange *next_all, **link_all;
    int32_t n_references; /* connection, handler */
    neap_http_message message;
    size_t body_held;
    double started;
    int32_t status;
    uint64_t body_sent;
    neap_cli_text headers;
    struct evbuffer *waiting;      /* bytes before its turn */
    uint64_t begin_mark, end_mark; /* of the connection's bytes_queued */
    void *user;
    void (*gone)(void *user);
    void (*full)(void *user, int is_full);
    void *watch_user;
    int is_known; /* the handler has seen it */
    int is_owned; /* and will end it */
    int is_begun, is_stream, is_chunked, is_bodiless, is_ended;
    int skips_body;    /* answered before the body came, which is too long to read */
    int owes_continue; /* 100, when its turn comes */
    int is_gone, is_full, is_local, is_broken, gone_later;
    char id[NEAP_HTTP_ID_MAX + 1];
    char peer[NEAP_HTTP_PEER_MAX];
};

/* http.c */
void neap_http_own(neap_http_exchange *x); /* from its request, or the beginning of an answer */
void neap_http_unreference(neap_http_exchange *x);

/* http_connection.c */
neap_http_connection *neap_http_connection_open(neap_http *s, struct bufferevent *stream, const char *peer,
                                                int is_local, int is_tls);
void neap_http_connection_refuse(neap_http *s, struct bufferevent *stream); /* over the cap: 503 */
void neap_http_connection_close(neap_http_connection *c);
void neap_http_connection_kick(neap_http_connection *c); /* look again, soon */
void neap_http_connection_arm(neap_http_connection *c);  /* its next deadline may have changed */

/* http_answer.c */
void neap_http_refuse(neap_http_exchange *x, int32_t status, const char *why); /* an answer of this layer */
void neap_http_take_turn(neap_http_exchange *x);                               /* becomes its connection's writer */
size_t neap_http_full_text(char *text, size_t capacity); /* the whole answer for connections over the cap */

/* http_listen.c */
void neap_http_listeners_free(neap_http *s);
void neap_http_tls_goodbye(struct bufferevent *stream); /* close_notify: the answer was not cut */

#endif
