/* Requests of HTTP/1.1 from bytes; see http_parse.h.
 *
 * One function per state; each looks at one byte and either stores it, changes the state or refuses. Refused although
 * some servers take it: bare LF, folded lines, space before the colon, control characters, an empty line before the
 * request, repeated Host or Content-Length even when equal, Content-Length beside Transfer-Encoding, any coding but one
 * "chunked", codings in HTTP/1.0, signs and 0x in numbers, fields in trailers that would change the framing.
 * Targets are "/path?query"; "http://authority/path" is taken when the authority is the one of Host. OPTIONS *, CONNECT
 * and fragments are refused.
 *
 * Source: RFC 9112 sections 2 to 7 and 11, RFC 9110 sections 5.5, 5.6.2, 7.2, 10.1.1.
 * Called by http_connection.c. Owns nothing: the message is the caller's. */
#include "http_parse.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    METHOD_MAX = 32,
    CHUNK_DIGITS_MAX = 16,
    CHUNK_EXTENSION_MAX = 256,   /* bytes after ';', of one chunk */
    CHUNK_FRAMING_MAX = 1 << 20, /* bytes of all lines around chunks: what one-byte chunks may cost */
    BODY_FIRST = 4096            /* capacity */
};

enum state {
    METHOD,
    TARGET,
    VERSION,
    REQUEST_LF,
    FIELD_FIRST,
    FIELD_NAME,
    VALUE_FIRST,
    FIELD_VALUE,
    FIELD_LF,
    HEAD_LF,
    BODY_START,
    BODY_BYTES,
    SIZE,
    EXTENSION,
    SIZE_LF,
    CHUNK_BYTES,
    CHUNK_CR,
    CHUNK_LF,
    TRAILERS_LF,
    STOPPED
};

static void refuse(neap_http_parser *p, int32_t status, const char *why) {
    p->status = status;
    p->why = why;
    p->progress = NEAP_HTTP_REFUSED;
    p->state = STOPPED;
}

/* ---- characters ---- */

static int is_token(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return 1;
    return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static int is_value(unsigned char c) { return c == '\t' || (c >= ' ' && c != 0x7f); }

static int hex_digit(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* ---- memory ---- */

static int put(neap_http_parser *p, char c) {
    neap_http_message *m = p->message;
    if (m->n_head == m->head_capacity) {
        size_t capacity = m->head_capacity == 0 ? 512 : 2 * m->head_capacity;
        char *head = realloc(m->head, capacity);
        if (head == NULL) {
            refuse(p, 503, "The server is out of memory.");
            return 0;
        }
        m->head = head;
        m->head_capacity = capacity;
    }
    m->head[m->n_head++] = c;
    return 1;
}

static int put_field(neap_http_parser *p) {
    neap_http_message *m = p->message;
    if (m->n_fields == m->fields_capacity) {
        int32_t capacity = m->fields_capacity == 0 ? 16 : 2 * m->fields_capacity;
        neap_http_field *fields = realloc(m->fields, (size_t)capacity * sizeof *fields);
        if (fields == NULL) {
            refuse(p, 503, "The server is out of memory.");
            return 0;
        }
        m->fields = fields;
        m->fields_capacity = capacity;
    }
    m->fields[m->n_fields++] = (neap_http_field){p->field_name, p->field_value};
    return 1;
}

/* Grows with what has come, not with what was announced. */
static int put_body(neap_http_parser *p, const char *bytes, size_t n) {
    neap_http_message *m = p->message;
    p->n_seen += n;
    if (p->drops_body) return 1;
    if (m->body_capacity - m->n_body < n + 1) {
        size_t capacity = m->body_capacity < BODY_FIRST ? BODY_FIRST : m->body_capacity;
        while (capacity < m->n_body + n + 1) capacity *= 2; /* n_body + n <= body_bytes */
        char *body = p->keeps_none ? NULL : realloc(m->body, capacity);
        if (body == NULL) {
            refuse(p, 503, "The server has no memory for the body.");
            return 0;
        }
        m->body = body;
        m->body_capacity = capacity;
    }
    memcpy(m->body + m->n_body, bytes, n);
    m->n_body += n;
    m->body[m->n_body] = 0;
    return 1;
}

void neap_http_message_free(neap_http_message *m) {
    free(m->head);
    free(m->fields);
    free(m->body);
    *m = (neap_http_message){0};
}

const char *neap_http_message_header(const neap_http_message *m, const char *name) {
    for (int32_t i = 0; i < m->n_fields; i++) {
        if (strcasecmp(m->head + m->fields[i].name, name) == 0) return m->head + m->fields[i].value;
    }
    return NULL;
}

int32_t neap_http_message_header_count(const neap_http_message *m, const char *name) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_fields; i++) n += strcasecmp(m->head + m->fields[i].name, name) == 0;
    return n;
}

/* ---- the request line ---- */

static void on_method(neap_http_parser *p, unsigned char c) {
    if (c == ' ' && p->n_bytes > 0) {
        p->state = TARGET;
        p->n_bytes = 0;
        (void)put(p, 0);
        return;
    }
    if (!is_token(c)) {
        refuse(p, 400, "The request line is malformed.");
    } else if (++p->n_bytes > METHOD_MAX) {
        refuse(p, 501, "The method is not known.");
    } else {
        (void)put(p, (char)c);
    }
}

static void on_target(neap_http_parser *p, unsigned char c) {
    if (c == ' ' && p->n_bytes > 0) {
        p->state = VERSION;
        p->n_bytes = 0;
        (void)put(p, 0);
        return;
    }
    if (c <= ' ' || c >= 0x7f || c == '#') {
        refuse(p, 400, "The request line is malformed.");
    } else if (++p->n_bytes > p->uri_bytes) {
        refuse(p, 414, "The target of the request is too long.");
    } else {
        (void)put(p, (char)c);
    }
}

static void on_version(neap_http_parser *p, unsigned char c) {
    if (p->n_bytes < sizeof p->version) {
        int is_digit = c >= '0' && c <= '9';
        if (p->n_bytes == 5 || p->n_bytes == 7 ? !is_digit : c != (unsigned char)"HTTP/1.1"[p->n_bytes]) {
            refuse(p, 400, "The request line is malformed.");
            return;
        }
        p->version[p->n_bytes++] = (char)c;
    } else if (c == '\r') {
        p->state = REQUEST_LF;
    } else {
        refuse(p, 400, "The request line is malformed.");
    }
}

static void on_request_lf(neap_http_parser *p, unsigned char c) {
    if (c != '\n') {
        refuse(p, 400, "The request line is malformed.");
        return;
    }
    char minor = p->version[7];
    if (p->version[5] != '1' || (minor != '0' && minor != '1')) {
        refuse(p, 505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
        return;
    }
    p->message->minor = minor - '0';
    p->state = FIELD_FIRST;
    p->n_bytes = 0;
}

/* ---- fields of the head and of trailers ---- */

static int is_counted(neap_http_parser *p) {
    if (++p->n_bytes <= p->header_bytes) return 1;
    refuse(p, 431, "The header fields are too long.");
    return 0;
}

static void store(neap_http_parser *p, unsigned char c) {
    if (!p->in_trailers) (void)put(p, (char)c);
}

static void name_byte(neap_http_parser *p, unsigned char c) {
    store(p, c);
    if (p->in_trailers && p->n_trailer_name < sizeof p->trailer_name - 1) {
        p->trailer_name[p->n_trailer_name++] = (char)c;
    }
}

static void on_field_first(neap_http_parser *p, unsigned char c) {
    if (!is_counted(p)) return;
    if (c == '\r') {
        p->state = p->in_trailers ? TRAILERS_LF : HEAD_LF;
        return;
    }
    if (!is_token(c)) {
        refuse(p, 400, "A header field is malformed.");
        return;
    }
    if ((p->in_trailers ? p->n_trailers++ : p->message->n_fields) >= p->headers) {
        refuse(p, 431, "There are too many header fields.");
        return;
    }
    p->field_name = (uint32_t)p->message->n_head;
    p->n_trailer_name = 0;
    p->state = FIELD_NAME;
    name_byte(p, c);
}

static void on_field_name(neap_http_parser *p, unsigned char c) {
    if (!is_counted(p)) return;
    if (is_token(c)) {
        name_byte(p, c);
        return;
    }
    if (c != ':') {
        refuse(p, 400, "A header field is malformed.");
        return;
    }
    store(p, 0);
    p->field_value = (uint32_t)p->message->n_head;
    p->state = p->state == STOPPED ? STOPPED : VALUE_FIRST;
    if (!p->in_trailers) return;
    static const char *const forbidden[] = {"content-length", "transfer-encoding", "host", "connection", "expect"};
    p->trailer_name[p->n_trailer_name] = 0;
    for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++) {
        if (strcasecmp(p->trailer_name, forbidden[i]) == 0) refuse(p, 400, "A trailer field is not allowed there.");
    }
}

static void end_field(neap_http_parser *p) {
    p->state = FIELD_LF;
    if (p->in_trailers) return;
    neap_http_message *m = p->message;
    while (m->n_head > p->field_value && (m->head[m->n_head - 1] == ' ' || m->head[m->n_head - 1] == '\t')) m->n_head--;
    if (put(p, 0)) (void)put_field(p);
}

static void on_field_value(neap_http_parser *p, unsigned char c) {
    if (!is_counted(p)) return;
    if (p->state == VALUE_FIRST && (c == ' ' || c == '\t')) return;
    if (c == '\r') {
        end_field(p);
    } else if (!is_value(c)) {
        refuse(p, 400, "A header field has control characters.");
    } else {
        p->state = FIELD_VALUE;
        store(p, c);
    }
}

static void on_field_lf(neap_http_parser *p, unsigned char c) {
    if (!is_counted(p)) return;
    if (c != '\n')
        refuse(p, 400, "A header field has control characters.");
    else
        p->state = FIELD_FIRST;
}

/* ---- what the head means ---- */

static int read_length(neap_http_parser *p, const char *value) {
    uint64_t length = 0;
    if (p->has_length++) {
        refuse(p, 400, "Content-Length is repeated.");
        return 0;
    }
    for (const char *c = value; *c != 0 || c == value; c++) {
        if (*c < '0' || *c > '9') {
            refuse(p, 400, "Content-Length is not a number.");
            return 0;
        }
        if (length < UINT64_MAX / 16) length = length * 10 + (uint64_t)(*c - '0');
    }
    p->message->length = length;
    return 1;
}

static int read_coding(neap_http_parser *p, const char *value) {
    if (p->has_coding++ || p->message->minor == 0) {
        refuse(p, 400, "Transfer-Encoding is not allowed here.");
        return 0;
    }
    if (strcasecmp(value, "chunked") != 0) {
        refuse(p, 501, "The only transfer encoding that is known is chunked.");
        return 0;
    }
    p->message->is_chunked = 1;
    return 1;
}

/* A list of tokens. */
static void read_connection(neap_http_parser *p, const char *value) {
    for (;;) {
        value += strspn(value, " \t,");
        size_t n = strcspn(value, " \t,");
        if (n == 0) return;
        if (n == 5 && strncasecmp(value, "close", n) == 0) p->is_close = 1;
        value += n;
    }
}

static int read_host(neap_http_parser *p, const char *value) {
    if (p->has_host++) {
        refuse(p, 400, "Host is repeated.");
        return 0;
    }
    for (; *value != 0; value++) {
        unsigned char c = (unsigned char)*value;
        if (c >= 0x80 || (!is_token(c) && strchr("()[]:;,=", c) == NULL)) {
            refuse(p, 400, "Host is malformed.");
            return 0;
        }
    }
    return 1;
}

static int read_fields(neap_http_parser *p) {
    neap_http_message *m = p->message;
    for (int32_t i = 0; i < m->n_fields; i++) {
        const char *name = m->head + m->fields[i].name, *value = m->head + m->fields[i].value;
        if (strcasecmp(name, "content-length") == 0 && !read_length(p, value)) return 0;
        if (strcasecmp(name, "transfer-encoding") == 0 && !read_coding(p, value)) return 0;
        if (strcasecmp(name, "host") == 0 && !read_host(p, value)) return 0;
        if (strcasecmp(name, "connection") == 0) read_connection(p, value);
        if (strcasecmp(name, "expect") == 0 && m->minor == 1) {
            if (strcasecmp(value, "100-continue") != 0) {
                refuse(p, 417, "The only expectation that is known is 100-continue.");
                return 0;
            }
            m->expects_continue = 1;
        }
    }
    if (p->has_length && p->has_coding) {
        refuse(p, 400, "Content-Length and Transfer-Encoding exclude each other.");
    } else if (!p->has_host && m->minor == 1) {
        refuse(p, 400, "Host is missing.");
    } else if (m->length > p->body_bytes) {
        refuse(p, 413, "The body is too large.");
    }
    m->keep_alive = !p->is_close && m->minor == 1; /* a stream to HTTP/1.0 could not end otherwise */
    return p->state != STOPPED;
}

/* Cuts the target into path and query; an absolute one loses what Host says already. */
static void read_target(neap_http_parser *p, char *target) {
    static const char *const schemes[] = {"http://", "https://"};
    neap_http_message *m = p->message;
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], n) != 0) continue;
        const char *host = neap_http_message_header(m, "host");
        size_t authority = strcspn(target + n, "/?");
        if (host == NULL || strlen(host) != authority || strncasecmp(host, target + n, authority) != 0) {
            refuse(p, 400, "The target names another host.");
            return;
        }
        target += n + authority;
        if (*target != '/') *--target = '/'; /* over the authority's last byte */
        break;
    }
    char *query = strchr(target, '?');
    m->path = target;
    m->query = query == NULL ? target + strlen(target) : query + 1;
    if (query != NULL) *query = 0;
    if (*target != '/') refuse(p, 400, "The target of the request is not a path.");
}

static void on_head_lf(neap_http_parser *p, unsigned char c) {
    static const struct {
        const char *text;
        neap_http_method method;
    } methods[] = {
        {"GET", NEAP_HTTP_GET}, {"HEAD", NEAP_HTTP_HEAD}, {"POST", NEAP_HTTP_POST}, {"OPTIONS", NEAP_HTTP_OPTIONS}};
    neap_http_message *m = p->message;
    if (!is_counted(p)) return;
    if (c != '\n') {
        refuse(p, 400, "A header field has control characters.");
        return;
    }
    m->method_text = m->head;
    m->method = NEAP_HTTP_OTHER;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(m->head, methods[i].text) == 0) m->method = methods[i].method;
    }
    if (strcmp(m->head, "CONNECT") == 0) {
        refuse(p, 501, "The method is not known.");
        return;
    }
    if (!read_fields(p)) return;
    read_target(p, m->head + strlen(m->head) + 1);
    if (p->state == STOPPED) return;
    p->progress = NEAP_HTTP_AT_BODY;
    p->state = BODY_START;
}

/* ---- chunks ---- */

static int is_framed(neap_http_parser *p) {
    if (++p->n_framing <= CHUNK_FRAMING_MAX) return 1;
    refuse(p, 413, "The body is cut into too many chunks.");
    return 0;
}

static void end_size(neap_http_parser *p) {
    if (p->left > p->body_bytes || p->n_seen > p->body_bytes - p->left)
        refuse(p, 413, "The body is too large.");
    else
        p->state = SIZE_LF;
}

static void on_size(neap_http_parser *p, unsigned char c) {
    int digit = hex_digit(c);
    if (digit >= 0 && p->n_digits < CHUNK_DIGITS_MAX) {
        p->left = p->left * 16 + (uint64_t)digit;
        p->n_digits++;
    } else if (c == ';' && p->n_digits > 0) {
        p->state = EXTENSION;
        p->n_ext = 0;
    } else if (c == '\r' && p->n_digits > 0) {
        end_size(p);
    } else {
        refuse(p, 400, "The size of a chunk is malformed.");
    }
}

static void on_extension(neap_http_parser *p, unsigned char c) {
    if (c == '\r')
        end_size(p);
    else if (!is_value(c) || ++p->n_ext > CHUNK_EXTENSION_MAX)
        refuse(p, 400, "The extension of a chunk is malformed.");
}

static void on_size_lf(neap_http_parser *p, unsigned char c) {
    if (c != '\n') {
        refuse(p, 400, "The size of a chunk is malformed.");
    } else if (p->left > 0) {
        p->state = CHUNK_BYTES;
    } else {
        p->state = FIELD_FIRST;
        p->in_trailers = 1;
        p->n_bytes = 0;
    }
}

static void begin_size(neap_http_parser *p) {
    p->state = SIZE;
    p->n_digits = 0;
    p->left = 0;
}

static void on_chunk_end(neap_http_parser *p, unsigned char c) {
    if (c != (p->state == CHUNK_CR ? '\r' : '\n')) {
        refuse(p, 400, "A chunk is longer than its size.");
    } else if (p->state == CHUNK_CR) {
        p->state = CHUNK_LF;
    } else {
        begin_size(p);
    }
}

static void complete(neap_http_parser *p) {
    p->progress = NEAP_HTTP_COMPLETE;
    p->state = STOPPED;
}

static void on_trailers_lf(neap_http_parser *p, unsigned char c) {
    if (c != '\n')
        refuse(p, 400, "A header field has control characters.");
    else
        complete(p);
}

/* ---- all together ---- */

static void step(neap_http_parser *p, unsigned char c) {
    switch ((enum state)p->state) {
    case METHOD: on_method(p, c); return;
    case TARGET: on_target(p, c); return;
    case VERSION: on_version(p, c); return;
    case REQUEST_LF: on_request_lf(p, c); return;
    case FIELD_FIRST: on_field_first(p, c); return;
    case FIELD_NAME: on_field_name(p, c); return;
    case VALUE_FIRST:
    case FIELD_VALUE: on_field_value(p, c); return;
    case FIELD_LF: on_field_lf(p, c); return;
    case HEAD_LF: on_head_lf(p, c); return;
    case SIZE:
        if (is_framed(p)) on_size(p, c);
        return;
    case EXTENSION:
        if (is_framed(p)) on_extension(p, c);
        return;
    case SIZE_LF:
        if (is_framed(p)) on_size_lf(p, c);
        return;
    case CHUNK_CR:
    case CHUNK_LF:
        if (is_framed(p)) on_chunk_end(p, c);
        return;
    case TRAILERS_LF: on_trailers_lf(p, c); return;
    case BODY_START:
    case BODY_BYTES:
    case CHUNK_BYTES:
    case STOPPED: return; /* not byte by byte */
    }
}

void neap_http_parser_init(neap_http_parser *p, neap_http_message *m, const neap_http_limits *l) {
    *p = (neap_http_parser){.message = m,
                            .header_bytes = l->header_bytes,
                            .uri_bytes = l->uri_bytes,
                            .body_bytes = l->body_bytes,
                            .headers = l->headers};
    m->method = NEAP_HTTP_OTHER;
    m->method_text = "-"; /* until the head is complete */
    m->path = "/";
    m->query = "";
}

static void begin_body(neap_http_parser *p) {
    p->progress = NEAP_HTTP_IN_BODY;
    p->left = p->message->length;
    if (p->message->is_chunked)
        begin_size(p);
    else if (p->left > 0)
        p->state = BODY_BYTES;
    else
        complete(p);
}

size_t neap_http_parser_feed(neap_http_parser *p, const char *bytes, size_t n) {
    size_t at = 0;
    if (p->progress == NEAP_HTTP_AT_BODY) begin_body(p);
    while (at < n && p->state != STOPPED && p->state != BODY_START) {
        if (p->state != BODY_BYTES && p->state != CHUNK_BYTES) {
            step(p, (unsigned char)bytes[at++]);
            continue;
        }
        size_t take = p->left < n - at ? (size_t)p->left : n - at;
        if (!put_body(p, bytes + at, take)) break;
        at += take;
        p->left -= take;
        if (p->left > 0) break;
        if (p->state == CHUNK_BYTES)
            p->state = CHUNK_CR;
        else
            complete(p);
    }
    return at;
}
