/* Requests of HTTP/1.1 from bytes, strictly: what RFC 9112 lets a server take in two ways is refused.
 *
 * Any split of the bytes gives the same result: every byte is one step of a state machine, only bodies are copied in
 * runs. Knows nothing of sockets, time or handlers; allocates the head and the body, nothing per header or chunk. */
#ifndef NEAP_APPS_SERVER_HTTP_PARSE_H
#define NEAP_APPS_SERVER_HTTP_PARSE_H

#include "http.h"

typedef struct neap_http_field {
    uint32_t name, value; /* where they begin in `head`; both 0-terminated */
} neap_http_field;

/* A request. Pointers go into `head` and are set when the head is complete. */
typedef struct neap_http_message {
    char *head; /* method, target, then name and value of each field, each 0-terminated */
    size_t n_head, head_capacity;
    neap_http_field *fields;
    int32_t n_fields, fields_capacity;
    neap_http_method method;
    const char *method_text, *path, *query;
    int minor;            /* HTTP/1.minor */
    int keep_alive;       /* the client's wish; never with HTTP/1.0 */
    int expects_continue; /* waits for 100 before it sends the body */
    int is_chunked;       /* length is unknown until the end */
    uint64_t length;      /* of the body, declared */
    char *body;           /* 0-terminated when complete; NULL when empty */
    size_t n_body, body_capacity;
} neap_http_message;

void neap_http_message_free(neap_http_message *m);
/* The value of the first field of that name, any case; NULL: none. */
const char *neap_http_message_header(const neap_http_message *m, const char *name);
int32_t neap_http_message_header_count(const neap_http_message *m, const char *name);

typedef enum neap_http_progress {
    NEAP_HTTP_IN_HEAD, /* more bytes, please */
    NEAP_HTTP_AT_BODY, /* the head is complete; the next call goes on, with or without bytes */
    NEAP_HTTP_IN_BODY, /* more bytes, please */
    NEAP_HTTP_COMPLETE,
    NEAP_HTTP_REFUSED /* status and why; the connection cannot be read on */
} neap_http_progress;

typedef struct neap_http_parser {
    neap_http_message *message;
    size_t header_bytes, uri_bytes, body_bytes;
    int32_t headers;
    neap_http_progress progress;
    int32_t status;  /* of the refusal */
    const char *why; /* one of a fixed set of sentences: nothing of the client's */
    int drops_body;  /* set by the caller at AT_BODY: the body is read and not kept */
    int keeps_none;  /* set by the caller: no memory for (more of) the body, 503 */
    /* inside */
    int state, in_trailers;
    size_t n_bytes;         /* of the method, target, version or field block being read */
    size_t n_ext, n_digits; /* of a chunk's line */
    size_t n_framing;       /* bytes around chunks */
    uint64_t left;          /* of the body or the chunk */
    uint64_t n_seen;        /* of the body */
    size_t n_trailer_name;
    int32_t n_trailers;
    char version[8], trailer_name[24];
    uint32_t field_name, field_value; /* being read */
    int has_host, has_length, has_coding, is_close;
} neap_http_parser;

/* `m` is zeroed by the caller. */
void neap_http_parser_init(neap_http_parser *p, neap_http_message *m, const neap_http_limits *l);
/* Takes bytes until it has what it waits for; returns how many it took. */
size_t neap_http_parser_feed(neap_http_parser *p, const char *bytes, size_t n);

#endif
