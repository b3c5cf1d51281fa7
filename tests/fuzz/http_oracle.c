/* Answers what the HTTP parser makes of bytes, for a differential test (tests/cli/http_oracle.py).
 *
 *   http_oracle     stdin: connections, each as 4-byte little-endian length + bytes
 *                   stdout: one line each: the requests it takes, separated by ';', then what became of the rest
 *
 * A request: method path query minor keep-alive body, then name:value of each field; all texts in hex with a dot in
 * front. The rest: "more" (it waits), "closed" (no further request may follow), or the status of the refusal. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../apps/server/http_parse.h"

static void put(const char *bytes, size_t n) {
    putchar('.');
    for (size_t i = 0; i < n; i++) printf("%02x", (unsigned)(unsigned char)bytes[i]);
}

static void put_request(const neap_http_message *m) {
    put(m->method_text, strlen(m->method_text));
    putchar(' ');
    put(m->path, strlen(m->path));
    putchar(' ');
    put(m->query, strlen(m->query));
    printf(" %d %d ", m->minor, m->keep_alive);
    put(m->body, m->n_body);
    for (int32_t i = 0; i < m->n_fields; i++) {
        const char *name = m->head + m->fields[i].name, *value = m->head + m->fields[i].value;
        putchar(' ');
        put(name, strlen(name));
        putchar(':');
        put(value, strlen(value));
    }
    putchar(';');
}

static void answer(const char *bytes, size_t n) {
    static const neap_http_limits limits = {
        .header_bytes = 16 << 10, .uri_bytes = 8 << 10, .body_bytes = 32 << 20, .headers = 100};
    for (size_t at = 0;;) {
        neap_http_message m = {0};
        neap_http_parser p;
        neap_http_parser_init(&p, &m, &limits);
        do {
            at += neap_http_parser_feed(&p, bytes + at, n - at);
        } while (p.progress == NEAP_HTTP_AT_BODY);
        int is_complete = p.progress == NEAP_HTTP_COMPLETE, goes_on = is_complete && m.keep_alive;
        if (is_complete) put_request(&m);
        neap_http_message_free(&m);
        if (goes_on) continue;
        if (is_complete)
            puts("closed");
        else if (p.progress == NEAP_HTTP_REFUSED)
            printf("%d\n", p.status);
        else
            puts("more");
        return;
    }
}

int main(void) {
    unsigned char size[4];
    while (fread(size, 1, sizeof size, stdin) == sizeof size) {
        size_t n = size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
        char *bytes = malloc(n ? n : 1);
        if (!bytes || fread(bytes, 1, n, stdin) != n) return 1;
        answer(bytes, n);
        free(bytes);
        fflush(stdout);
    }
    return 0;
}
