/* HTTP/1.1 server: its life, work from other threads, and what an exchange can be asked; see http.h.
 *
 * Other threads reach the loop by a locked list and an eventfd, so libevent itself needs no locks. The list keeps its
 * order; the loop takes it as a whole and runs it without the lock.
 *
 * Called by serve.c and the routes. Owns listeners, connections, timers, and each exchange until both its handler and
 * its connection have let go of it. */
#include "http.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../report.h"
#include "../terminal.h"
#include "http_inner.h"

struct neap_http_posted {
    neap_http_posted *next;
    void (*fn)(void *user);
    void *user;
};

struct neap_http_timer {
    neap_http_timer *next;
    struct event *event;
    void (*fn)(void *user);
    void *user;
};

enum { DESCRIPTORS_RESERVED = 32, DESCRIPTORS_OTHER = 64 }; /* kept free; listeners, files, the loop's own */

void neap_http_limits_init(neap_http_limits *l) {
    *l = (neap_http_limits){.header_bytes = 16 << 10,
                            .uri_bytes = 8 << 10,
                            .body_bytes = 32 << 20,
                            .headers = 100,
                            .connections = 1024,
                            .pipelined = 16,
                            .stream_bytes = 256 << 10,
                            .header_seconds = 10,
                            .body_seconds = 30,
                            .write_seconds = 30,
                            .idle_seconds = 60,
                            .body_rate = 1024};
}

/* ---- other threads ---- */

static void wake(neap_http *s) {
    uint64_t one = 1;
    while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* EAGAIN: it is awake already */
}

static void on_wake(evutil_socket_t fd, short what, void *user) {
    neap_http *s = user;
    uint64_t count;
    (void)what;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) continue;
    pthread_mutex_lock(&s->lock);
    neap_http_posted *p = s->posted;
    s->posted = NULL;
    s->posted_end = &s->posted;
    pthread_mutex_unlock(&s->lock);
    while (p != NULL) {
        neap_http_posted *next = p->next;
        p->fn(p->user);
        free(p);
        p = next;
    }
    if (atomic_load(&s->is_stopped)) event_base_loopbreak(s->base);
}

void neap_http_post(neap_http *s, void (*fn)(void *user), void *user) {
    neap_http_posted *p = neap_cli_alloc(1, sizeof *p);
    p->fn = fn;
    p->user = user;
    pthread_mutex_lock(&s->lock);
    int was_empty = s->posted == NULL;
    *s->posted_end = p;
    s->posted_end = &p->next;
    pthread_mutex_unlock(&s->lock);
    if (was_empty) wake(s);
}

void neap_http_stop(neap_http *s) {
    atomic_store(&s->is_stopped, 1);
    wake(s);
}

/* ---- timers ---- */

static void on_timer(evutil_socket_t fd, short what, void *user) {
    neap_http_timer *t = user;
    (void)fd, (void)what;
    t->fn(t->user);
}

void neap_http_every(neap_http *s, double seconds, void (*fn)(void *user), void *user) {
    if (seconds <= 0) {
        neap_http_post(s, fn, user);
        return;
    }
    neap_http_timer *t = neap_cli_alloc(1, sizeof *t);
    t->fn = fn;
    t->user = user;
    t->event = event_new(s->base, -1, EV_PERSIST, on_timer, t);
    struct timeval every = {.tv_sec = (time_t)seconds,
                            .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    if (t->event == NULL || event_add(t->event, &every) != 0) neap_cli_error("a timer could not be set");
    t->next = s->timers;
    s->timers = t;
}

/* ---- life ---- */

/* The cap must fit the descriptors this process may have; a storm of clients must not starve the rest of it. */
static void fit_descriptors(neap_http *s) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    rlim_t want = (rlim_t)s->limits.connections + NEAP_HTTP_OVER_MAX + DESCRIPTORS_RESERVED + DESCRIPTORS_OTHER;
    if (r.rlim_cur != RLIM_INFINITY && r.rlim_cur < want) {
        r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > want ? want : r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= want) return;
    rlim_t missing = want - r.rlim_cur;
    s->limits.connections = missing >= (rlim_t)s->limits.connections ? 1 : s->limits.connections - (int32_t)missing;
    neap_cli_error("only %lu descriptors are allowed: at most %d connections", (unsigned long)r.rlim_cur,
                   s->limits.connections);
}

int neap_http_create(neap_http **out, const neap_http_limits *l, const neap_http_handler *h) {
    *out = NULL;
    neap_http *s = neap_cli_alloc(1, sizeof *s);
    s->limits = *l;
    s->handler = *h;
    s->posted_end = &s->posted;
    pthread_mutex_init(&s->lock, NULL);
    signal(SIGPIPE, SIG_IGN); /* clients leave in the middle of a write */
    fit_descriptors(s);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->base = event_base_new();
    if (s->base != NULL && s->wake_fd >= 0) {
        s->wake = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    }
    if (s->wake == NULL || event_add(s->wake, NULL) != 0) {
        neap_cli_error("the event loop could not be made: %s", strerror(errno));
        neap_http_destroy(s);
        return NEAP_EXIT_RESOURCE;
    }
    *out = s;
    return NEAP_EXIT_OK;
}

void neap_http_destroy(neap_http *s) {
    if (s == NULL) return;
    neap_http_listeners_free(s);
    while (s->connections != NULL) neap_http_connection_close(s->connections);
    while (s->exchanges != NULL) { /* whose handlers have not ended them, and cannot any more */
        s->exchanges->n_references = 1;
        neap_http_unreference(s->exchanges);
    }
    while (s->timers != NULL) {
        neap_http_timer *t = s->timers;
        s->timers = t->next;
        if (t->event != NULL) event_free(t->event);
        free(t);
    }
    while (s->posted != NULL) { /* not run: what they would touch may be gone */
        neap_http_posted *p = s->posted;
        s->posted = p->next;
        free(p);
    }
    if (s->wake != NULL) event_free(s->wake);
    if (s->relisten != NULL) event_free(s->relisten);
    if (s->wake_fd >= 0) close(s->wake_fd);
    if (s->base != NULL) {
        (void)event_base_loop(s->base, EVLOOP_NONBLOCK); /* libevent frees closed streams from its loop */
        event_base_free(s->base);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int neap_http_run(neap_http *s) {
    if (atomic_load(&s->is_stopped)) return NEAP_EXIT_OK;
    if (event_base_dispatch(s->base) >= 0) return NEAP_EXIT_OK;
    neap_cli_error("the event loop failed: %s", strerror(errno));
    return NEAP_EXIT_INTERNAL;
}

void neap_http_close_listeners(neap_http *s) {
    s->is_closing = 1;
    neap_http_listeners_free(s);
    for (neap_http_connection *c = s->connections; c != NULL; c = c->next) neap_http_connection_kick(c);
}

int32_t neap_http_connections(const neap_http *s) { return s->n_connections; }
int32_t neap_http_exchanges(const neap_http *s) { return s->n_exchanges; }
struct event_base *neap_http_base(neap_http *s) {
    return s->base;
}

/* ---- an exchange ---- */

void neap_http_own(neap_http_exchange *x) {
    x->n_references += !x->is_owned;
    x->is_owned = 1;
}

void neap_http_unreference(neap_http_exchange *x) {
    assert(x->n_references > 0);
    if (--x->n_references > 0) return;
    x->http->body_held -= x->body_held;
    *x->link_all = x->next_all;
    if (x->next_all != NULL) x->next_all->link_all = x->link_all;
    if (x->waiting != NULL) evbuffer_free(x->waiting);
    neap_cli_text_free(&x->headers);
    neap_http_message_free(&x->message);
    free(x);
}

neap_http_method neap_http_method_of(const neap_http_exchange *x) { return x->message.method; }
const char *neap_http_method_text(const neap_http_exchange *x) { return x->message.method_text; }
const char *neap_http_path(const neap_http_exchange *x) { return x->message.path; }
const char *neap_http_query(const neap_http_exchange *x) { return x->message.query; }

const char *neap_http_header(const neap_http_exchange *x, const char *name) {
    return neap_http_message_header(&x->message, name);
}

int32_t neap_http_header_count(const neap_http_exchange *x, const char *name) {
    return neap_http_message_header_count(&x->message, name);
}

const char *neap_http_body(const neap_http_exchange *x, size_t *n) {
    if (n != NULL) *n = x->message.n_body;
    return x->message.body == NULL ? "" : x->message.body;
}

char *neap_http_take_body(neap_http_exchange *x, size_t *n) {
    char *body = x->message.body;
    if (n != NULL) *n = x->message.n_body;
    x->message.body = NULL;
    x->message.n_body = x->message.body_capacity = 0;
    return body != NULL ? body : neap_cli_copy("");
}

void neap_http_body_freed(neap_http_exchange *x) {
    x->http->body_held -= x->body_held;
    x->body_held = 0;
}

int neap_http_is_local(const neap_http_exchange *x) { return x->is_local; }
const char *neap_http_peer(const neap_http_exchange *x) { return x->peer; }
const char *neap_http_id(const neap_http_exchange *x) { return x->id; }
double neap_http_seconds(const neap_http_exchange *x) { return neap_cli_seconds() - x->started; }
int32_t neap_http_status(const neap_http_exchange *x) { return x->status; }
uint64_t neap_http_sent(const neap_http_exchange *x) { return x->body_sent; }
void neap_http_set_user(neap_http_exchange *x, void *user) { x->user = user; }
void *neap_http_user(const neap_http_exchange *x) { return x->user; }
int neap_http_is_gone(const neap_http_exchange *x) { return x->is_gone; }
