/* Requests of HTTP: any bytes, parsed whole, byte by byte and in uneven pieces, must give the same; what is taken keeps
 * the promises of http_parse.h. Several requests may follow each other, as on a connection. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../apps/server/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition) {
    if (!condition) abort();
}

static const neap_http_limits limits = {.header_bytes = 512, .uri_bytes = 128, .body_bytes = 1024, .headers = 8};

static void check(const neap_http_message *m) {
    demand(m->path[0] == '/' && strchr(m->path, '?') == NULL && strlen(m->path) <= limits.uri_bytes);
    demand(m->n_fields <= limits.headers && m->n_head <= limits.header_bytes + limits.uri_bytes + 64);
    demand(m->minor == 0 || neap_http_message_header_count(m, "host") == 1);
    for (int32_t i = 0; i < m->n_fields; i++) {
        const char *name = m->head + m->fields[i].name, *value = m->head + m->fields[i].value;
        demand(*name != 0 && strpbrk(name, " \t\r\n:") == NULL && strpbrk(value, "\r\n") == NULL);
        demand(*value == 0 || (strchr(" \t", *value) == NULL && strchr(" \t", value[strlen(value) - 1]) == NULL));
    }
    demand(m->n_body <= limits.body_bytes && m->n_body < m->body_capacity + (m->n_body == 0));
    demand(m->body == NULL || m->body[m->n_body] == 0);
    demand(!m->is_chunked || neap_http_message_header_count(m, "content-length") == 0);
    demand(m->is_chunked || m->length == m->n_body);
}

/* Everything that came out, mixed into one number. step 0: all at once. */
static uint64_t parse(const uint8_t *data, size_t size, size_t step) {
    uint64_t sum = 1469598103934665603u;
    size_t at = 0, seed = step;
    for (int n_requests = 0; n_requests < 64; n_requests++) {
        neap_http_message m = {0};
        neap_http_parser p;
        neap_http_parser_init(&p, &m, &limits);
        while (p.progress < NEAP_HTTP_COMPLETE) {
            size_t n = step > 0 && step < size - at ? step : size - at;
            if (step > 1) step = 1 + (seed = seed * 37 + 11) % 61;
            size_t taken = neap_http_parser_feed(&p, (const char *)data + at, n);
            demand(taken <= n);
            at += taken;
            if (p.progress != NEAP_HTTP_AT_BODY && p.progress < NEAP_HTTP_COMPLETE && at == size) break;
        }
        if (p.progress == NEAP_HTTP_COMPLETE) check(&m);
        demand((p.progress == NEAP_HTTP_REFUSED) == (p.status >= 400) && (p.why != NULL) == (p.status != 0));
        sum = (sum ^ (uint64_t)p.progress ^ (uint64_t)p.status << 8 ^ at << 20) * 1099511628211u;
        for (size_t i = 0; p.progress == NEAP_HTTP_COMPLETE && i < m.n_head; i++) sum = (sum ^ (uint8_t)m.head[i]) * 31;
        for (size_t i = 0; i < m.n_body; i++) sum = (sum ^ (uint8_t)m.body[i]) * 1099511628211u;
        int goes_on = p.progress == NEAP_HTTP_COMPLETE && at < size;
        neap_http_message_free(&m);
        if (!goes_on) break;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t whole = parse(data, size, 0);
    demand(parse(data, size, 1) == whole);
    demand(parse(data, size, 7) == whole);
    return 0;
}
