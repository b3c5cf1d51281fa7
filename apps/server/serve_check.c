/* `neap serve --check URL`: asks a running server whether it is ready; see serve_config.h.
 *
 * For health checks of containers and units that have no curl: one GET /ready over TCP or a unix socket, five seconds,
 * one line. The address must be a number or localhost: nothing is looked up. A server that speaks TLS is asked over a
 * unix socket of its own. This is the only place that connects to anything, and only this command comes here: a server
 * never does.
 *
 * Called by main. Owns nothing. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../report.h"
#include "../terminal.h"
#include "serve_config.h"

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un local;
} address;

/* "http://127.0.0.1:8080", "[::1]:8080", "localhost:8080", "unix:/run/neap.sock" -> address; 0: not understood. */
static socklen_t read_url(address *out, const char *url) {
    char host[128];
    int port = 80;
    memset(out, 0, sizeof *out);
    if (strncmp(url, "unix:", 5) == 0) {
        out->local.sun_family = AF_UNIX;
        int n = snprintf(out->local.sun_path, sizeof out->local.sun_path, "%s", url + 5);
        return n > 0 && (size_t)n < sizeof out->local.sun_path ? sizeof out->local : 0;
    }
    if (strncmp(url, "http://", 7) == 0) url += 7;
    int is_v6 = url[0] == '[';
    size_t n = strcspn(url + is_v6, is_v6 ? "]" : ":/");
    if (n == 0 || n >= sizeof host) return 0;
    snprintf(host, sizeof host, "%.*s", (int)n, url + is_v6);
    url += is_v6 + (int)n;
    if (is_v6 && *url++ != ']') return 0;
    if (*url == ':') {
        char *end;
        long p = strtol(url + 1, &end, 10);
        if (end == url + 1 || p < 1 || p > 65535) return 0;
        port = (int)p;
        url = end;
    }
    if (*url != 0 && *url != '/') return 0;
    if (is_v6) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        return inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1 ? sizeof out->v6 : 0;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons((uint16_t)port);
    const char *number = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    return inet_pton(AF_INET, number, &out->v4.sin_addr) == 1 ? sizeof out->v4 : 0;
}

/* Sends the question and reads the beginning of the answer; what went wrong, or NULL. */
static const char *ask(const address *a, socklen_t n_address, char *answer, size_t capacity) {
    static const char question[] = "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct timeval limit = {.tv_sec = 5};
    const char *wrong = NULL;
    int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return strerror(errno);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, &a->any, n_address) != 0 ||
        send(fd, question, sizeof question - 1, MSG_NOSIGNAL) != (ssize_t)sizeof question - 1)
        wrong = errno == EAGAIN || errno == EINPROGRESS ? "no answer within 5 s" : strerror(errno);
    size_t n = 0;
    while (wrong == NULL && n + 1 < capacity) {
        ssize_t got = recv(fd, answer + n, capacity - 1 - n, 0);
        if (got <= 0) {
            if (got < 0) wrong = errno == EAGAIN ? "no answer within 5 s" : strerror(errno);
            break;
        }
        n += (size_t)got;
        answer[n] = 0;
        if (strchr(answer, '\n') != NULL) break;
    }
    answer[n] = 0;
    close(fd);
    return wrong;
}

int neap_serve_check(const char *url) {
    address a;
    char answer[512];
    int status = 0;
    socklen_t n = read_url(&a, url);
    if (n == 0) {
        neap_cli_error("--check: \"%s\" is not http://ADDRESS:PORT or unix:PATH (an address is a number or localhost)",
                       url);
        return NEAP_EXIT_USAGE;
    }
    const char *wrong = ask(&a, n, answer, sizeof answer);
    if (wrong == NULL && sscanf(answer, "HTTP/1.%*d %d", &status) != 1) wrong = "the answer is not HTTP";
    if (wrong != NULL) {
        neap_cli_error("%s: %s", url, wrong);
        return NEAP_EXIT_INTERNAL;
    }
    if (status == 200) {
        neap_cli_outf("ready\n");
        return NEAP_EXIT_OK;
    }
    neap_cli_error("%s: not ready (status %d)", url, status);
    return NEAP_EXIT_INTERNAL;
}
