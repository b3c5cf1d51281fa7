/* Listening sockets: addresses, socket files, TLS, and what happens when there are too many clients; see http.h.
 *
 * Addresses are numbers or "localhost": looking up a name would talk to other machines, which a server of this program
 * never does. Beyond the cap a client gets its 503 at once; when descriptors run out, listening rests for a moment
 * instead of spinning on a connection that cannot be accepted.
 *
 * Called by serve.c through http.h. Owns the listeners and the socket files. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef NEAP_TLS
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#include "../report.h"
#include "http_inner.h"

enum { BACKLOG = 1024, NOTSENT_LOW = 64 << 10, KEEP_IDLE = 60, KEEP_EVERY = 10, KEEP_TIMES = 3 };

struct neap_http_listener {
    neap_http_listener *next;
    neap_http *http;
    struct evconnlistener *accepts;
    int is_local;
    char *path; /* of a socket file, and which file it was */
    dev_t device;
    ino_t inode;
#ifdef NEAP_TLS
    SSL_CTX *tls;
#endif
};

/* ---- accepting ---- */

static void set(int fd, int level, int option, int value) { (void)setsockopt(fd, level, option, &value, sizeof value); }

/* The kernel's own view of clients: vanished ones are found without traffic, and unsent bytes stay here, where they are
 * counted, instead of in the kernel's buffers. */
static void tune(int fd, const neap_http_limits *l) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_LOW);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, l->write_seconds < 1e6 ? (int)(l->write_seconds * 1000) : 1000000000);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_EVERY);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_TIMES);
}

static void describe(const struct sockaddr *a, char *text, size_t capacity) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
        snprintf(text, capacity, "%s:%d", host, ntohs(in.sin_port));
    } else if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, a, sizeof in);
        (void)inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof host);
        snprintf(text, capacity, "[%s]:%d", host, ntohs(in.sin6_port));
    } else {
        snprintf(text, capacity, "unix");
    }
}

static struct bufferevent *wrap(neap_http_listener *l, int fd) {
#ifdef NEAP_TLS
    if (l->tls != NULL) {
        SSL *tls = SSL_new(l->tls);
        if (tls == NULL) return NULL;
        struct bufferevent *stream =
            bufferevent_openssl_socket_new(l->http->base, fd, tls, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
        if (stream == NULL) {
            SSL_free(tls);
            return NULL;
        }
        bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
        return stream;
    }
#endif
    return bufferevent_socket_new(l->http->base, fd, BEV_OPT_CLOSE_ON_FREE);
}

void neap_http_tls_goodbye(struct bufferevent *stream) {
#ifdef NEAP_TLS
    SSL *tls = bufferevent_openssl_get_ssl(stream);
    if (tls != NULL) (void)SSL_shutdown(tls);
    ERR_clear_error();
#else
    (void)stream;
#endif
}

static int is_encrypted(const neap_http_listener *l) {
#ifdef NEAP_TLS
    return l->tls != NULL;
#else
    (void)l;
    return 0;
#endif
}

/* Over the cap, and too many of those too: no memory of it is kept. */
static void turn_away(int fd, int is_tls) {
    char text[512], waste[4096];
    size_t n = neap_http_full_text(text, sizeof text);
    if (!is_tls) (void)!send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    (void)!recv(fd, waste, sizeof waste, MSG_DONTWAIT); /* unread bytes would turn the close into a reset */
    close(fd);
}

static void on_accept(struct evconnlistener *accepts, evutil_socket_t fd, struct sockaddr *a, int n, void *user) {
    neap_http_listener *l = user;
    neap_http *s = l->http;
    char peer[NEAP_HTTP_PEER_MAX];
    (void)accepts, (void)n;
    int is_full = s->n_connections >= s->limits.connections;
    if (is_full && (s->n_over >= NEAP_HTTP_OVER_MAX || is_encrypted(l))) {
        turn_away(fd, is_encrypted(l));
        return;
    }
    if (!l->is_local) tune(fd, &s->limits);
    struct bufferevent *stream = wrap(l, fd);
    if (stream == NULL) {
        close(fd);
        return;
    }
    describe(a, peer, sizeof peer);
    if (is_full)
        neap_http_connection_refuse(s, stream);
    else
        (void)neap_http_connection_open(s, stream, peer, l->is_local, is_encrypted(l));
}

static void on_rested(evutil_socket_t fd, short what, void *user) {
    neap_http *s = user;
    (void)fd, (void)what;
    for (neap_http_listener *l = s->listeners; l != NULL; l = l->next) evconnlistener_enable(l->accepts);
}

static void on_accept_error(struct evconnlistener *accepts, void *user) {
    neap_http *s = ((neap_http_listener *)user)->http;
    struct timeval rest = {.tv_usec = 100000};
    (void)accepts;
    if (s->relisten == NULL) s->relisten = event_new(s->base, -1, 0, on_rested, s);
    if (s->relisten == NULL || event_add(s->relisten, &rest) != 0) return;
    for (neap_http_listener *l = s->listeners; l != NULL; l = l->next) evconnlistener_disable(l->accepts);
}

/* ---- listeners ---- */

static void free_listener(neap_http_listener *l) {
    struct stat st;
    if (l->accepts != NULL) evconnlistener_free(l->accepts);
    if (l->path != NULL) { /* only our own: another server may have its socket there by now */
        if (lstat(l->path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode) unlink(l->path);
        free(l->path);
    }
#ifdef NEAP_TLS
    if (l->tls != NULL) SSL_CTX_free(l->tls);
#endif
    free(l);
}

void neap_http_listeners_free(neap_http *s) {
    if (s->relisten != NULL) event_del(s->relisten);
    while (s->listeners != NULL) {
        neap_http_listener *l = s->listeners;
        s->listeners = l->next;
        free_listener(l);
    }
}

#ifdef NEAP_TLS
static int choose_protocol(SSL *tls, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                           unsigned int in_n, void *user) {
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen = NULL;
    (void)tls, (void)user;
    if (SSL_select_next_proto(&chosen, out_n, ours, sizeof ours - 1, in, in_n) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int open_tls(neap_http_listener *l, const char *cert_file, const char *key_file) {
    l->tls = SSL_CTX_new(TLS_server_method());
    if (l->tls == NULL) {
        neap_cli_error("TLS could not be set up");
        return NEAP_EXIT_RESOURCE;
    }
    SSL_CTX_set_min_proto_version(l->tls, TLS1_2_VERSION);
    SSL_CTX_set_options(l->tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(l->tls, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(l->tls, choose_protocol, NULL);
    const char *bad = NULL;
    if (SSL_CTX_use_certificate_chain_file(l->tls, cert_file) != 1)
        bad = cert_file;
    else if (SSL_CTX_use_PrivateKey_file(l->tls, key_file, SSL_FILETYPE_PEM) != 1)
        bad = key_file;
    if (bad == NULL && SSL_CTX_check_private_key(l->tls) == 1) return NEAP_EXIT_OK;
    if (bad == NULL)
        neap_cli_error("%s is not the key of the certificate %s", key_file, cert_file);
    else
        neap_cli_error("%s: not readable as PEM: %s", bad, ERR_reason_error_string(ERR_peek_last_error()));
    ERR_clear_error();
    return NEAP_EXIT_FILE;
}
#else
static int open_tls(neap_http_listener *l, const char *cert_file, const char *key_file) {
    (void)l, (void)cert_file, (void)key_file;
    neap_cli_error("this program was built without TLS (OpenSSL and libevent_openssl)");
    return NEAP_EXIT_USAGE;
}
#endif

/* Takes fd over, also when it fails. */
static int add_listener(neap_http *s, int fd, const char *path, const char *cert_file, const char *key_file) {
    neap_http_listener *l = neap_cli_alloc(1, sizeof *l);
    struct stat st;
    int code = NEAP_EXIT_OK;
    l->http = s;
    if (path != NULL) {
        l->is_local = 1;
        l->path = neap_cli_copy(path);
        if (lstat(path, &st) == 0) l->device = st.st_dev, l->inode = st.st_ino;
    }
    if (cert_file != NULL || key_file != NULL) code = open_tls(l, cert_file, key_file);
    if (code == NEAP_EXIT_OK) {
        l->accepts = evconnlistener_new(s->base, on_accept, l, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
        if (l->accepts == NULL) {
            neap_cli_error("cannot listen: %s", strerror(errno));
            code = NEAP_EXIT_RESOURCE;
        }
    }
    if (code != NEAP_EXIT_OK) {
        free_listener(l);
        close(fd);
        return code;
    }
    evconnlistener_set_error_cb(l->accepts, on_accept_error);
    l->next = s->listeners;
    s->listeners = l;
    return NEAP_EXIT_OK;
}

/* ---- addresses ---- */

/* A server that has crashed leaves its socket file behind; a live one answers. */
static int clear_stale(const char *path, const struct sockaddr_un *a) {
    struct stat st;
    if (lstat(path, &st) != 0) return NEAP_EXIT_OK;
    if (!S_ISSOCK(st.st_mode)) {
        neap_cli_error("%s: exists and is not a socket", path);
        return NEAP_EXIT_USAGE;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int is_stale = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    if (is_stale && unlink(path) == 0) return NEAP_EXIT_OK;
    neap_cli_error("%s: another server listens there", path);
    return NEAP_EXIT_RESOURCE;
}

static int listen_unix(neap_http *s, const char *path, const char *cert_file, const char *key_file) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof a.sun_path) {
        neap_cli_error("the path of a socket has %zu bytes, 1 to %zu are allowed", n, sizeof a.sun_path - 1);
        return NEAP_EXIT_USAGE;
    }
    memcpy(a.sun_path, path, n + 1);
    int code = clear_stale(path, &a);
    if (code != NEAP_EXIT_OK) return code;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177);
    int failed = fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, BACKLOG) != 0;
    int error = errno;
    umask(mask);
    if (!failed) return add_listener(s, fd, path, cert_file, key_file);
    neap_cli_error("cannot listen on %s: %s", path, strerror(error));
    if (fd >= 0) close(fd);
    return NEAP_EXIT_RESOURCE;
}

/* The socket, or -1 with errno. *port: what it got. */
static int open_tcp(const struct sockaddr_storage *a, socklen_t n, int32_t *port) {
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->ss_family == AF_INET6) { /* "::" means both kinds, and nothing else does */
        struct sockaddr_in6 in;
        memcpy(&in, a, sizeof in);
        set(fd, IPPROTO_IPV6, IPV6_V6ONLY, !IN6_IS_ADDR_UNSPECIFIED(&in.sin6_addr));
    }
    struct sockaddr_storage got = {0};
    socklen_t got_n = sizeof got;
    if (bind(fd, (const struct sockaddr *)a, n) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&got, &got_n) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    in_port_t net;
    memcpy(&net, (const char *)&got + offsetof(struct sockaddr_in, sin_port), sizeof net); /* the same place in both */
    *port = ntohs(net);
    return fd;
}

static int read_address(const char *host, int32_t port, struct sockaddr_storage *out, socklen_t *n) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    char text[INET6_ADDRSTRLEN + 2];
    size_t length = strlen(host);
    if (length >= sizeof text) return 0;
    memcpy(text, host, length + 1);
    if (length > 2 && text[0] == '[' && text[length - 1] == ']') {
        memmove(text, host + 1, length - 2);
        text[length - 2] = 0;
    }
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof v4);
        *n = sizeof v4;
        return 1;
    }
    if (inet_pton(AF_INET6, text, &v6.sin6_addr) != 1) return 0;
    memcpy(out, &v6, sizeof v6);
    *n = sizeof v6;
    return 1;
}

int neap_http_listen(neap_http *s, const char *host, int32_t *port, const char *cert_file, const char *key_file) {
    struct sockaddr_storage a;
    socklen_t n = 0;
    if ((cert_file == NULL) != (key_file == NULL)) {
        neap_cli_error("TLS needs both a certificate and its key");
        return NEAP_EXIT_USAGE;
    }
    if (strncmp(host, "unix:", 5) == 0) return listen_unix(s, host + 5, cert_file, key_file);
    int is_name = strcmp(host, "localhost") == 0;
    if (*port < 0 || *port > 65535 || !read_address(is_name ? "127.0.0.1" : host, *port, &a, &n)) {
        neap_cli_error(
            "cannot listen on %s port %d: an IP address, localhost or unix:PATH and a port of 0 to 65535 are "
            "needed",
            host, *port);
        return NEAP_EXIT_USAGE;
    }
    int fd = open_tcp(&a, n, port);
    if (fd < 0) {
        neap_cli_error("cannot listen on %s port %d: %s", host, *port, strerror(errno));
        return NEAP_EXIT_RESOURCE;
    }
    int code = add_listener(s, fd, NULL, cert_file, key_file);
    if (code != NEAP_EXIT_OK || !is_name) return code;
    /* Browsers try ::1 first; where there is no IPv6, or somebody else has that port, they come back. */
    if (!read_address("::1", *port, &a, &n) || (fd = open_tcp(&a, n, port)) < 0) return NEAP_EXIT_OK;
    return add_listener(s, fd, NULL, cert_file, key_file);
}
