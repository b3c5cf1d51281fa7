/* A server on the HTTP layer alone, for tests/cli/http_raw.py: routes that echo, stream, wait and count.
 *
 *   http_echo [-c CERT -k KEY] [-u] LIMIT=VALUE...     prints "port N" (or "socket PATH") and serves until /quit
 *
 * POST /echo      the body back             GET /wait?MS   "waited", after MS milliseconds, by another thread
 * GET /hello      "hello"                   GET /silent    nothing, until the client leaves
 * POST /early     401 from the head alone   GET /stream?N  N chunks of 1 KiB, stopping while the reader is slow
 * GET /flood      a stream that never stops GET /big?N     N KiB at once
 * GET /late?MS    as /silent, watched late  GET /broken    half an answer
 * GET /forgotten  nothing, ever
 * GET /counts     what has been seen        GET /drain     closes the listeners */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../apps/buffer.h"
#include "../../apps/server/http.h"

typedef struct stream {
    neap_http_exchange *x;
    long left;
    int is_paused, is_gone, is_wild, is_scheduled;
} stream;

static neap_http *server;
static int n_gone, n_done, n_left, n_full, n_empty, n_silent;

static void on_gone(void *user) {
    (void)user;
    n_gone++;
}

static void pump(void *user);

static void schedule(stream *s) {
    if (s->is_scheduled) return;
    s->is_scheduled = 1;
    neap_http_post(server, pump, s);
}

static void stream_gone(void *user) {
    stream *s = user;
    n_gone++;
    s->is_gone = 1;
    schedule(s);
}

static void stream_full(void *user, int is_full) {
    stream *s = user;
    if (is_full)
        n_full++;
    else
        n_empty++;
    s->is_paused = is_full && !s->is_wild;
    if (!is_full) schedule(s);
}

static void pump(void *user) {
    stream *s = user;
    static char block[1024];
    memset(block, 'x', sizeof block);
    s->is_scheduled = 0;
    while (s->left > 0 && !s->is_paused && !s->is_gone) {
        neap_http_write(s->x, block, sizeof block);
        s->left--;
        if (s->is_wild && s->left % 64 == 0) break; /* lets the loop see that it is too much */
    }
    if (s->left == 0 || s->is_gone) {
        neap_http_end(s->x);
        free(s);
    } else if (!s->is_paused) {
        schedule(s);
    }
}

static void begin_stream(neap_http_exchange *x, long n, int is_wild) {
    stream *s = neap_cli_alloc(1, sizeof *s);
    *s = (stream){.x = x, .left = n, .is_wild = is_wild};
    neap_http_watch(x, stream_gone, stream_full, s);
    neap_http_begin(x, 200, "text/event-stream");
    schedule(s);
}

static void silent_gone(void *user) {
    n_gone++;
    n_silent--;
    neap_http_reply(user, 200, "text/plain", "late", 4); /* to nobody */
}

static void waited(void *user) { neap_http_reply(user, 200, "text/plain", "waited\n", 7); }

static void *wait_elsewhere(void *user) {
    neap_http_exchange *x = user;
    usleep((useconds_t)strtol(neap_http_query(x), NULL, 10) * 1000);
    neap_http_post(server, waited, x);
    return NULL;
}

static void watch_late(void *user) { neap_http_watch(user, silent_gone, NULL, user); }

static void *watch_elsewhere(void *user) {
    neap_http_exchange *x = user;
    usleep((useconds_t)strtol(neap_http_query(x), NULL, 10) * 1000);
    neap_http_post(server, watch_late, x);
    return NULL;
}

static void begin_late(neap_http_exchange *x) {
    pthread_t thread;
    n_silent++;
    if (pthread_create(&thread, NULL, watch_elsewhere, x) == 0)
        pthread_detach(thread);
    else
        watch_late(x);
}

static void begin_wait(neap_http_exchange *x) {
    pthread_t thread;
    neap_http_watch(x, on_gone, NULL, NULL);
    if (pthread_create(&thread, NULL, wait_elsewhere, x) == 0)
        pthread_detach(thread);
    else
        waited(x);
}

static void send_big(neap_http_exchange *x) {
    size_t n = (size_t)strtol(neap_http_query(x), NULL, 10) << 10;
    char *body = neap_cli_alloc(n, 1);
    memset(body, 'b', n);
    neap_http_reply(x, 200, "text/plain", body, n);
    free(body);
}

static void send_counts(neap_http_exchange *x) {
    char text[256];
    int n = snprintf(text, sizeof text,
                     "{\"gone\":%d,\"done\":%d,\"left\":%d,\"full\":%d,\"empty\":%d,\"silent\":%d,\"connections\":%d,"
                     "\"exchanges\":%d}\n",
                     n_gone, n_done, n_left, n_full, n_empty, n_silent, neap_http_connections(server),
                     neap_http_exchanges(server));
    neap_http_reply(x, 200, "application/json", text, (size_t)n);
}

static void on_head(void *user, neap_http_exchange *x) {
    (void)user;
    if (strcmp(neap_http_path(x), "/early") == 0) neap_http_reply(x, 401, "text/plain", "no\n", 3);
}

static void on_request(void *user, neap_http_exchange *x) {
    const char *path = neap_http_path(x);
    size_t n = 0;
    (void)user;
    if (strcmp(path, "/echo") == 0) {
        char *body = neap_http_take_body(x, &n);
        neap_http_reply(x, 200, "application/octet-stream", body, n);
        free(body);
    } else if (strcmp(path, "/hello") == 0) {
        neap_http_add_header(x, "X-Query", neap_http_query(x));
        neap_http_reply(x, 200, "text/plain", "hello\n", 6);
    } else if (strcmp(path, "/empty") == 0) {
        neap_http_reply(x, 204, NULL, NULL, 0);
    } else if (strcmp(path, "/wait") == 0) {
        begin_wait(x);
    } else if (strcmp(path, "/silent") == 0) {
        n_silent++;
        neap_http_watch(x, silent_gone, NULL, x);
    } else if (strcmp(path, "/forgotten") == 0) {
        neap_http_watch(x, on_gone, NULL, NULL);
    } else if (strcmp(path, "/late") == 0) {
        begin_late(x);
    } else if (strcmp(path, "/stream") == 0) {
        begin_stream(x, strtol(neap_http_query(x), NULL, 10), 0);
    } else if (strcmp(path, "/flood") == 0) {
        begin_stream(x, 1 << 20, 1);
    } else if (strcmp(path, "/broken") == 0) {
        neap_http_begin(x, 200, "text/plain");
        neap_http_write(x, "half", 4);
        neap_http_abort(x);
    } else if (strcmp(path, "/big") == 0) {
        send_big(x);
    } else if (strcmp(path, "/counts") == 0) {
        send_counts(x);
    } else if (strcmp(path, "/drain") == 0) {
        neap_http_close_listeners(server);
        neap_http_reply(x, 200, "text/plain", "draining\n", 9);
    } else if (strcmp(path, "/quit") == 0) {
        neap_http_reply(x, 200, "text/plain", "bye\n", 4);
        neap_http_stop(server);
    } else {
        neap_http_reply(x, 404, "text/plain", "none\n", 5);
    }
}

static void on_done(void *user, neap_http_exchange *x, int gone) {
    (void)user;
    n_done++;
    n_left += gone;
    if (neap_http_status(x) == 0 && !gone) abort();
}

static int set_limit(neap_http_limits *l, const char *text) {
    const char *equals = strchr(text, '=');
    if (equals == NULL) return 0;
    size_t n = (size_t)(equals - text);
    double value = strtod(equals + 1, NULL);
#define LIMIT(name, type) \
    if (strlen(#name) == n && strncmp(text, #name, n) == 0) return l->name = (type)value, 1
    LIMIT(header_bytes, size_t);
    LIMIT(uri_bytes, size_t);
    LIMIT(body_bytes, size_t);
    LIMIT(headers, int32_t);
    LIMIT(connections, int32_t);
    LIMIT(pipelined, int32_t);
    LIMIT(stream_bytes, size_t);
    LIMIT(header_seconds, double);
    LIMIT(body_seconds, double);
    LIMIT(write_seconds, double);
    LIMIT(idle_seconds, double);
    LIMIT(body_rate, double);
#undef LIMIT
    return 0;
}

int main(int argc, char **argv) {
    neap_http_limits limits;
    neap_http_handler handler = {.request = on_request, .head = on_head, .done = on_done};
    const char *cert = NULL, *key = NULL, *host = "127.0.0.1";
    int32_t port = 0;
    int option;
    neap_http_limits_init(&limits);
    while ((option = getopt(argc, argv, "c:k:h:")) != -1) {
        if (option == 'c') cert = optarg;
        if (option == 'k') key = optarg;
        if (option == 'h') host = optarg;
        if (option == '?') return 2;
    }
    for (int i = optind; i < argc; i++) {
        if (!set_limit(&limits, argv[i])) return 2;
    }
    int code = neap_http_create(&server, &limits, &handler);
    if (code == 0) code = neap_http_listen(server, host, &port, cert, key);
    if (code == 0) {
        printf("port %d\n", port);
        fflush(stdout);
        code = neap_http_run(server);
    }
    neap_http_destroy(server);
    return code;
}
