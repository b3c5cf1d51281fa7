/* The parser of HTTP requests: what is taken, what is refused and with which status, limits, and that no split of the
 * bytes changes anything. The same questions are put to another parser in tests/cli/http_oracle.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../apps/server/http_parse.h"

#define HOST "Host: a\r\n"
#define GET "GET / HTTP/1.1\r\n" HOST
#define POST "POST /p HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static const neap_http_limits small = {.header_bytes = 256, .uri_bytes = 32, .body_bytes = 64, .headers = 6};

/* status 0: taken, with this body */
static const struct {
    const char *text;
    int32_t status;
    const char *body;
} cases[] = {
    {GET "\r\n", 0, ""},
    {"GET /a?b=c&d HTTP/1.1\r\nhOsT:a:80\r\n\r\n", 0, ""},
    {"GET / HTTP/1.0\r\n\r\n", 0, ""},
    {"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", 0, ""},
    {"OPTIONS /x HTTP/1.1\r\nHost:\r\n\r\n", 0, ""},
    {"BREW /pot HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 0, ""},
    {"GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
    {"GET HTTP://A HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
    {"GET http://a?q HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
    {GET "X: \t a b\t \r\nY:\r\nZ: \xc3\xa9\r\n\r\n", 0, ""},
    {GET "Connection: x, Close\r\n\r\n", 0, ""},
    {GET "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 0, ""},
    {POST "Content-Length: 5\r\n\r\nhello", 0, "hello"},
    {POST "Content-Length: 005\r\n\r\nhello", 0, "hello"},
    {POST "Content-Length: 0\r\n\r\n", 0, ""},
    {POST "Content-Length: 2\r\nExpect: 100-Continue\r\n\r\nhi", 0, "hi"},
    {CHUNKED "0\r\n\r\n", 0, ""},
    {CHUNKED "5\r\nhello\r\n0\r\n\r\n", 0, "hello"},
    {CHUNKED "1\r\nh\r\n4;x=\"y\"\r\nello\r\n000;\r\nA: b\r\n\r\n", 0, "hello"},
    {CHUNKED "000000000000000A\r\n0123456789\r\n0\r\n\r\n", 0, "0123456789"},
    {POST "transfer-encoding:Chunked\r\n\r\n0\r\nX: y\r\nZ:\r\n\r\n", 0, ""},
    /* request lines */
    {"\r\n" GET "\r\n", 400, NULL},
    {" GET / HTTP/1.1\r\n", 400, NULL},
    {"\n", 400, NULL},
    {"GET  / HTTP/1.1\r\n", 400, NULL},
    {"GET / HTTP/1.1 \r\n", 400, NULL},
    {"GET /\tHTTP/1.1\r\n", 400, NULL},
    {"GET / HTTP/1.1\n", 400, NULL},
    {"GET / HTTP/1.1\rX", 400, NULL},
    {"GET /\r\n", 400, NULL},
    {"GET / HTTP/1\r\n", 400, NULL},
    {"GET / http/1.1\r\n", 400, NULL},
    {"GET / HTTP/1.10\r\n", 400, NULL},
    {"GET / HTTP/11.1\r\n", 400, NULL},
    {"GET / HTTP/1.2\r\n", 505, NULL},
    {"GET / HTTP/2.0\r\n", 505, NULL},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, NULL},
    {"\x16\x03\x01\x02", 400, NULL},
    {"G@T / HTTP/1.1\r\n", 400, NULL},
    {"G\xc3T / HTTP/1.1\r\n", 400, NULL},
    {"GET /\xc3 HTTP/1.1\r\n", 400, NULL},
    {"GET /\x7f HTTP/1.1\r\n", 400, NULL},
    {"GET /#f HTTP/1.1\r\n", 400, NULL},
    {"GET a HTTP/1.1\r\n" HOST "\r\n", 400, NULL},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 400, NULL},
    {"CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", 501, NULL},
    {"GET http://b/ HTTP/1.1\r\n" HOST "\r\n", 400, NULL},
    {"GET http://u@a/ HTTP/1.1\r\n" HOST "\r\n", 400, NULL},
    {"GET http://a/ HTTP/1.0\r\n\r\n", 400, NULL},
    {"GET ftp://a/ HTTP/1.1\r\n" HOST "\r\n", 400, NULL},
    {"ABCDEFGHIJABCDEFGHIJABCDEFGHIJABC", 501, NULL},
    {"GET /0123456789012345678901234567890", 0, NULL}, /* 32 bytes, and more to come */
    {"GET /01234567890123456789012345678901", 414, NULL},
    /* fields */
    {"GET / HTTP/1.1\r\n\r\n", 400, NULL},
    {GET HOST "\r\n", 400, NULL},
    {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, NULL},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, NULL},
    {"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, NULL},
    {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, NULL},
    {GET "X : y\r\n\r\n", 400, NULL},
    {GET "X\t: y\r\n\r\n", 400, NULL},
    {GET ": y\r\n\r\n", 400, NULL},
    {GET "X\r\n\r\n", 400, NULL},
    {GET "X: a\r\n b\r\n\r\n", 400, NULL},
    {GET "X: a\r\n\tb\r\n\r\n", 400, NULL},
    {GET "X: a\n\r\n", 400, NULL},
    {GET "X: a\rb\r\n\r\n", 400, NULL},
    {GET "X: a\x01\r\n\r\n", 400, NULL},
    {GET "X: a\x7f\r\n\r\n", 400, NULL},
    {GET "X\xc3: a\r\n\r\n", 400, NULL},
    {GET "\n", 400, NULL},
    {GET "\rX", 400, NULL},
    {GET "Expect: 200-ok\r\n\r\n", 417, NULL},
    {GET "A:\r\nB:\r\nC:\r\nD:\r\nE:\r\n\r\n", 0, ""},
    {GET "A:\r\nB:\r\nC:\r\nD:\r\nE:\r\nF", 431, NULL},
    /* lengths and codings */
    {POST "Content-Length:\r\n\r\n", 400, NULL},
    {POST "Content-Length: +5\r\n\r\n", 400, NULL},
    {POST "Content-Length: -5\r\n\r\n", 400, NULL},
    {POST "Content-Length: 5,5\r\n\r\n", 400, NULL},
    {POST "Content-Length: 5 5\r\n\r\n", 400, NULL},
    {POST "Content-Length: 0x5\r\n\r\n", 400, NULL},
    {POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400, NULL},
    {POST "Content-Length: 64\r\n\r\n", 0, NULL},
    {POST "Content-Length: 65\r\n\r\n", 413, NULL},
    {POST "Content-Length: 18446744073709551617\r\n\r\n", 413, NULL},
    {POST "Content-Length: 99999999999999999999999999999999999999999\r\n\r\n", 413, NULL},
    {POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, NULL},
    {POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400, NULL},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, NULL},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, NULL},
    {POST "Transfer-Encoding: chunked, identity\r\n\r\n", 501, NULL},
    {POST "Transfer-Encoding: xchunked\r\n\r\n", 501, NULL},
    {POST "Transfer-Encoding:\r\n\r\n", 501, NULL},
    {POST "Transfer-Encoding: \x0b"
          "chunked\r\n\r\n",
     400, NULL},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, NULL},
    /* chunks */
    {CHUNKED "-2\r\n", 400, NULL},
    {CHUNKED "+2\r\n", 400, NULL},
    {CHUNKED "0x5\r\n", 400, NULL},
    {CHUNKED "\r\n", 400, NULL},
    {CHUNKED ";a\r\n", 400, NULL},
    {CHUNKED " 5\r\n", 400, NULL},
    {CHUNKED "5 \r\n", 400, NULL},
    {CHUNKED "5\n", 400, NULL},
    {CHUNKED "5\rx", 400, NULL},
    {CHUNKED "5;a\n", 400, NULL},
    {CHUNKED "00000000000000005\r\n", 400, NULL},
    {CHUNKED "ffffffffffffffff\r\n", 413, NULL},
    {CHUNKED "41\r\n", 413, NULL},
    {CHUNKED "1\r\nx\r\n40\r\n", 413, NULL},
    {CHUNKED "3\r\nhello\r\n", 400, NULL},
    {CHUNKED "5\r\nhello\n", 400, NULL},
    {CHUNKED "5\r\nhello\rx", 400, NULL},
    {CHUNKED "5\r\nhello0\r\n", 400, NULL},
    {CHUNKED "0\r\nX : y\r\n\r\n", 400, NULL},
    {CHUNKED "0\r\nContent-Length: 5\r\n\r\n", 400, NULL},
    {CHUNKED "0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, NULL},
    {CHUNKED "0\r\nA:\r\nB:\r\nC:\r\nD:\r\nE:\r\nF:\r\nG", 431, NULL},
    {CHUNKED "0\r\n\rX", 400, NULL},
    {CHUNKED "0\r\n\n", 400, NULL},
};

/* What came out, as text: compared between splits. */
static void describe(const neap_http_parser *p, size_t taken, char *text, size_t capacity) {
    const neap_http_message *m = p->message;
    int n = snprintf(text, capacity, "%d %d %zu %s|", (int)p->progress, p->status, taken, p->why ? p->why : "");
    if (p->progress != NEAP_HTTP_COMPLETE) return;
    n += snprintf(text + n, capacity - (size_t)n, "%s|%s|%s|1.%d|%d%d|", m->method_text, m->path, m->query, m->minor,
                  m->keep_alive, m->expects_continue);
    for (int32_t i = 0; i < m->n_fields; i++) {
        n += snprintf(text + n, capacity - (size_t)n, "<%s=%s>", m->head + m->fields[i].name,
                      m->head + m->fields[i].value);
    }
    snprintf(text + n, capacity - (size_t)n, "%.*s", (int)m->n_body, m->body ? m->body : "");
}

/* Bytes end where their block ends, so that a sanitizer sees a read past them. */
static size_t feed(neap_http_parser *p, const char *bytes, size_t n) {
    char *copy = malloc(n ? n : 1);
    size_t at = 0;
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    for (;;) {
        size_t taken = neap_http_parser_feed(p, copy + at, n - at);
        at += taken;
        if (p->progress != NEAP_HTTP_AT_BODY) break;
    }
    free(copy);
    return at;
}

static void parse(const neap_http_limits *l, const char *text, size_t n, const size_t *cuts, size_t n_cuts, char *out,
                  size_t capacity) {
    neap_http_message m = {0};
    neap_http_parser p;
    size_t at = 0, taken = 0;
    neap_http_parser_init(&p, &m, l);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t end = i < n_cuts ? cuts[i] : n;
        taken += feed(&p, text + at, end - at);
        at = end;
    }
    describe(&p, taken, out, capacity);
    neap_http_message_free(&m);
}

static void test_cases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        neap_http_message m = {0};
        neap_http_parser p;
        size_t n = strlen(cases[i].text);
        neap_http_parser_init(&p, &m, &small);
        size_t taken = feed(&p, cases[i].text, n);
        if (p.status != cases[i].status) fail_msg("%s: %d, not %d", cases[i].text, p.status, cases[i].status);
        assert_int_equal(p.progress == NEAP_HTTP_REFUSED, cases[i].status != 0);
        assert_int_equal(p.why != NULL, cases[i].status != 0);
        if (cases[i].body != NULL) {
            if (p.progress != NEAP_HTTP_COMPLETE) fail_msg("%s: not complete", cases[i].text);
            assert_int_equal(taken, n);
            assert_int_equal(m.n_body, strlen(cases[i].body));
            assert_string_equal(m.body ? m.body : "", cases[i].body);
        }
        neap_http_message_free(&m);
    }
}

static void test_splits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static char whole[2048], other[2048], text[1024];
        /* another request behind it must not be touched */
        int n_text = snprintf(text, sizeof text, "%s%s", cases[i].text, "GET /next HTTP/1.1\r\nHost: b\r\n\r\n");
        size_t n = (size_t)n_text, cuts[1024];
        parse(&small, text, n, NULL, 0, whole, sizeof whole);
        for (size_t a = 0; a <= n; a++) {
            cuts[0] = a;
            parse(&small, text, n, cuts, 1, other, sizeof other);
            if (strcmp(whole, other) != 0) fail_msg("%s cut at %zu: %s, not %s", text, a, other, whole);
            for (size_t b = a; n < 110 && b <= n; b += 3) {
                cuts[1] = b;
                parse(&small, text, n, cuts, 2, other, sizeof other);
                assert_string_equal(whole, other);
            }
        }
        for (size_t a = 1; a < n; a++) cuts[a - 1] = a;
        parse(&small, text, n, cuts, n - 1, other, sizeof other);
        assert_string_equal(whole, other);
    }
}

static void test_meaning(void **state) {
    neap_http_message m = {0};
    neap_http_parser p;
    (void)state;
    static const char one[] = "HEAD /a%2F/..?b?c HTTP/1.1\r\nHost: x\r\nA: 1\r\na: 2\r\nConnection: close\r\n\r\n";
    neap_http_parser_init(&p, &m, &small);
    assert_string_equal(m.path, "/"); /* before anything has come */
    feed(&p, one, sizeof one - 1);
    assert_int_equal(m.method, NEAP_HTTP_HEAD);
    assert_string_equal(m.path, "/a%2F/..");
    assert_string_equal(m.query, "b?c");
    assert_string_equal(neap_http_message_header(&m, "A"), "1");
    assert_int_equal(neap_http_message_header_count(&m, "a"), 2);
    assert_null(neap_http_message_header(&m, "b"));
    assert_int_equal(m.keep_alive, 0);
    neap_http_message_free(&m);

    static const char absolute[] = "POST http://x:1?q HTTP/1.1\r\nHost: X:1\r\nContent-Length: 1\r\n\r\n";
    neap_http_parser_init(&p, &m, &small);
    assert_int_equal(neap_http_parser_feed(&p, absolute, sizeof absolute - 1), sizeof absolute - 1);
    assert_int_equal(p.progress, NEAP_HTTP_AT_BODY);
    assert_int_equal(m.method, NEAP_HTTP_POST);
    assert_string_equal(m.path, "/");
    assert_string_equal(m.query, "q");
    assert_int_equal(m.keep_alive, 1);
    assert_int_equal(m.length, 1);
    neap_http_message_free(&m);
}

static void test_nul(void **state) {
    static const char *const parts[] = {"G",        "GET /",     "GET / HTTP/1.1", GET "X",
                                        GET "X: a", CHUNKED "1", CHUNKED "1;x"};
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        neap_http_message m = {0};
        neap_http_parser p;
        neap_http_parser_init(&p, &m, &small);
        feed(&p, parts[i], strlen(parts[i]));
        assert_int_not_equal(p.progress, NEAP_HTTP_REFUSED);
        feed(&p, "\0", 1);
        assert_int_equal(p.progress, NEAP_HTTP_REFUSED);
        assert_int_equal(p.status, 400);
        assert_int_equal(feed(&p, "GET", 3), 0); /* for good */
        neap_http_message_free(&m);
    }
}

/* Feeds `head`, then `piece` again and again. Returns the status it ends with, 0 when it never does. */
static int32_t flood(const neap_http_limits *l, const char *head, const char *piece, size_t n_bytes, size_t *memory) {
    neap_http_message m = {0};
    neap_http_parser p;
    size_t n_piece = strlen(piece);
    neap_http_parser_init(&p, &m, l);
    feed(&p, head, strlen(head));
    for (size_t sent = 0; sent < n_bytes && p.progress != NEAP_HTTP_REFUSED; sent += n_piece) feed(&p, piece, n_piece);
    *memory = m.head_capacity + (size_t)m.fields_capacity * sizeof(neap_http_field) + m.body_capacity;
    int32_t status = p.status;
    neap_http_message_free(&m);
    return status;
}

static void test_floods(void **state) {
    static const struct {
        const char *head, *piece;
        int32_t status;
    } floods[] = {
        {"", "A", 501},
        {"GET /", "a", 414},
        {GET "X: ", "a", 431},
        {GET, "X: y\r\n", 431},
        {GET, "averylongnameofafield-averylongnameofafield: y\r\n", 431},
        {GET "X:", " ", 431},
        {CHUNKED, "1\r\nx\r\n", 413},
        {CHUNKED "1;", "a", 400},
        {CHUNKED "1;", "\t", 400},
        {CHUNKED, "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n", 413},
        {CHUNKED "0\r\n", "A: b\r\n", 431},
        {CHUNKED "0\r\nA:", "b", 431},
        {CHUNKED, "1001\r\n", 400},
    };
    neap_http_limits usual;
    (void)state;
    usual = (neap_http_limits){.header_bytes = 16 << 10, .uri_bytes = 8 << 10, .body_bytes = 32 << 20, .headers = 100};
    for (size_t i = 0; i < sizeof floods / sizeof floods[0]; i++) {
        size_t memory;
        int32_t status = flood(&usual, floods[i].head, floods[i].piece, 24 << 20, &memory);
        if (status != floods[i].status) fail_msg("%s: %d, not %d", floods[i].piece, status, floods[i].status);
        assert_true(memory <= 512 << 10);
    }
}

/* Memory follows what has come, not what was announced. */
static void test_memory(void **state) {
    static const char head[] = POST "Content-Length: 33554432\r\n\r\nabc";
    neap_http_limits usual = {.header_bytes = 16 << 10, .uri_bytes = 8 << 10, .body_bytes = 32 << 20, .headers = 100};
    neap_http_message m = {0};
    neap_http_parser p;
    (void)state;
    neap_http_parser_init(&p, &m, &usual);
    feed(&p, head, sizeof head - 1);
    assert_int_equal(p.progress, NEAP_HTTP_IN_BODY);
    assert_true(m.body_capacity <= 8192);
    p.keeps_none = 1; /* the server has no more memory for bodies */
    static const char more[16384];
    for (int i = 0; i < 3 && p.progress != NEAP_HTTP_REFUSED; i++) feed(&p, more, sizeof more);
    assert_int_equal(p.status, 503);
    neap_http_message_free(&m);

    neap_http_parser_init(&p, &m, &usual);
    feed(&p, head, sizeof head - 4);
    p.drops_body = 1;
    feed(&p, more, sizeof more);
    assert_int_equal(m.n_body, 0);
    assert_int_equal(p.n_seen, sizeof more);
    neap_http_message_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases),   cmocka_unit_test(test_splits),
                                       cmocka_unit_test(test_meaning), cmocka_unit_test(test_nul),
                                       cmocka_unit_test(test_floods),  cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
