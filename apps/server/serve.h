/* What the parts of `neap serve` share: settings, the server's struct, errors, the log, counters, routes. */
#ifndef NEAP_APPS_SERVER_SERVE_H
#define NEAP_APPS_SERVER_SERVE_H

#include <jansson.h>
#include <stdatomic.h>

#include "../buffer.h"
#include "../command_line.h"
#include "backend.h"
#include "http.h"

/* ---- serve_limits.c: printed by --show-limits; each has a flag, a key in the file, a default and a range ---- */
typedef struct neap_serve_limits {
    neap_http_limits http;
    int64_t json_depth, json_nodes;                    /* 64; 4 * context + 65536 (0) */
    int64_t queue_requests, queue_tokens;              /* 256; 64 * context (0) */
    double queue_seconds, request_seconds;             /* 60; 0 = none */
    int64_t choices, stop_strings, stop_bytes;         /* 16, 16, 1024 */
    int64_t logit_bias, top_logprobs;                  /* 1024, 20 */
    int64_t grammar_bytes, grammar_states, grammar_ms; /* 64 KiB, 50,000, 200 */
    int64_t tools;                                     /* 128 */
    double drain_seconds;                              /* 30 */
    double ping_seconds;                               /* 5: comments in streams that have nothing to say */
} neap_serve_limits;

/* ---- serve_config.c: flag > environment (NEAP_*) > section of the model in the file > [*] > default;
 * serve_config.h says how it is made and read again ---- */
typedef struct neap_serve_config {
    neap_cli_options cli;             /* model, engine and sampling options, as for the other commands */
    const char *host;                 /* 127.0.0.1; several with commas; "unix:PATH" */
    int32_t port;                     /* 8080 */
    const char *alias;                /* name of the model to clients; default: directory name */
    neap_cli_strings api_keys;        /* of --api-key, --api-key-file, NEAP_API_KEY; read again by SIGHUP */
    const char *admin_key;            /* for /metrics, /props, when given; else an API key does */
    struct neap_serve_access *access; /* serve_config.h: what keys, hosts and origins point into */
    neap_cli_strings allowed_hosts, cors_origins;
    int32_t insecure_no_auth, metrics, page, prefix_cache, shared_prefix, log_content, strict_model_name, json_log;
    const char *tls_cert, *tls_key, *prefix_dir, *log_file;
    const char *config_file;
    int32_t log_level; /* neap_log_level */
    neap_serve_limits limits;
} neap_serve_config;

/* ---- the server ---- */
typedef struct neap_serve_metrics neap_serve_metrics;
typedef struct neap_server {
    neap_serve_config config; /* replaced by SIGHUP, on the loop thread */
    neap_http *http;
    neap_backend *backend;
    neap_serve_metrics *metrics;
    struct neap_answer *answers; /* those that are not ended */
    int is_draining, exit_code;
    int64_t started;      /* unix seconds */
    char fingerprint[40]; /* system_fingerprint: version, kernels, formats */
} neap_server;

/* serve.c */
int neap_cli_serve(const neap_cli_options *o);
void neap_serve_drain(neap_server *s); /* SIGTERM: /ready says 503, no new requests, then ends */
void neap_serve_tick(neap_server *s);  /* pings and the drain are looked at within 0.1 s, and on as long as needed */

/* ---- guard.c: before routing, default deny ---- */
typedef struct neap_serve_client {
    int is_authenticated, is_admin;
    /* of the prefix cache: 64 hex digits of a keyed hash of the API key; "" with shared_prefix or without keys */
    char space[72];
} neap_serve_client;
/* Host, Origin, key. Returns 1, or answers (400, 401, 403) and returns 0. Also answers CORS preflights. */
int neap_serve_guard(neap_server *s, neap_http_exchange *x, int is_public, int is_admin_route, neap_serve_client *out);

/* ---- error.c: the catalogue of errors; nothing from inside leaks through it ---- */
typedef enum neap_serve_error {
    NEAP_ERROR_BAD_JSON,
    NEAP_ERROR_BAD_VALUE,     /* param names it */
    NEAP_ERROR_UNSUPPORTED,   /* a known field or combination that neap does not do */
    NEAP_ERROR_CONTEXT,       /* 400, context_length_exceeded, with n_prompt_tokens and n_ctx */
    NEAP_ERROR_KEY,           /* 401 */
    NEAP_ERROR_FORBIDDEN,     /* 403: Host, Origin */
    NEAP_ERROR_NO_ROUTE,      /* 404 */
    NEAP_ERROR_NO_MODEL,      /* 404 model_not_found */
    NEAP_ERROR_METHOD,        /* 405 with Allow */
    NEAP_ERROR_TYPE,          /* 415 */
    NEAP_ERROR_QUEUE,         /* 429 with Retry-After */
    NEAP_ERROR_NUMERIC,       /* 500 */
    NEAP_ERROR_INTERNAL,      /* 500 */
    NEAP_ERROR_NOT_SUPPORTED, /* 501: an endpoint */
    NEAP_ERROR_LOADING,       /* 503 with Retry-After */
    NEAP_ERROR_DRAINING,      /* 503 */
    NEAP_ERROR_TIMEOUT,       /* 504: queue or total */
    NEAP_ERROR_TOO_LARGE      /* 413 */
} neap_serve_error;
typedef struct neap_serve_problem { /* filled by whatever checks; param and code may be "" */
    neap_serve_error error;
    char message[512], param[128], code[48];
    int64_t n_prompt_tokens, n_ctx; /* CONTEXT */
} neap_serve_problem;
void neap_serve_problem_set(neap_serve_problem *p, neap_serve_error e, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Status and body {"error":{...}} of the OpenAI shape, or with anthropic 1 {"type":"error","error":{...}}. */
int32_t neap_serve_problem_status(const neap_serve_problem *p);
void neap_serve_problem_body(const neap_serve_problem *p, int anthropic, neap_cli_text *out);
void neap_serve_fail(neap_server *s, neap_http_exchange *x, const neap_serve_problem *p, int anthropic);
/* From a call of the library that failed on this thread, about a request's own fields: its message, the field in front
 * of the message's colon as param; what is not the client's fault becomes INTERNAL without details. */
void neap_serve_problem_library(neap_serve_problem *p, neap_status status);

/* ---- serve_log.c: one line per event, text or JSON; prompts and answers only with log_content, keys never ---- */
void neap_serve_log_open(const neap_serve_config *c);
void neap_serve_log(neap_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* fields: pairs key, value ending with NULL; values are escaped */
void neap_serve_log_fields(neap_log_level level, const char *event, ...);
/* The line of a request: id, method, path (no query), status, ms, bytes, tokens, finish. finish may be NULL; the tokens
 * are left out when prompt_tokens is -1. For neap_http_handler.done. */
void neap_serve_log_access(const neap_http_exchange *x, int gone, int64_t prompt_tokens, int64_t cached_tokens,
                           int64_t new_tokens, const char *finish);
void neap_serve_log_library(void *user, neap_log_level level, const char *text); /* a neap_log_fn */
int neap_serve_log_wants(neap_log_level level); /* whether a line of that level is written; any thread */

/* ---- metrics.c ---- */
typedef enum neap_counter {
    NEAP_COUNT_REQUESTS,
    NEAP_COUNT_PROMPT_TOKENS,
    NEAP_COUNT_NEW_TOKENS,
    NEAP_COUNT_CACHED_TOKENS,
    NEAP_COUNT_STOP,
    NEAP_COUNT_LENGTH,
    NEAP_COUNT_TOOL_CALLS,
    NEAP_COUNT_ERROR,
    NEAP_COUNT_CANCELLED_QUEUED,
    NEAP_COUNT_CANCELLED_PROMPT,
    NEAP_COUNT_CANCELLED_DECODE,
    NEAP_COUNT_REFUSED_QUEUE, /* 429 */
    NEAP_COUNT_TIMEOUTS,
    NEAP_COUNT_UNKNOWN_FIELDS,
    NEAP_COUNTERS
} neap_counter;
typedef enum neap_histogram {
    NEAP_HIST_QUEUE,
    NEAP_HIST_FIRST_TOKEN,
    NEAP_HIST_BETWEEN_TOKENS,
    NEAP_HIST_REQUEST,
    NEAP_HISTOGRAMS
} neap_histogram;
neap_serve_metrics *neap_serve_metrics_create(void);
void neap_serve_metrics_destroy(neap_serve_metrics *m);
void neap_serve_count(neap_server *s, neap_counter c, uint64_t n);
void neap_serve_observe(neap_server *s, neap_histogram h, double seconds);
void neap_serve_metrics_text(neap_server *s, neap_cli_text *out); /* Prometheus 0.0.4 */

/* ---- routes ---- */
typedef struct neap_serve_call { /* what a route gets */
    neap_server *server;
    neap_http_exchange *x;
    neap_serve_client client;
} neap_serve_call;
typedef struct neap_serve_route {
    const char *path;
    uint32_t methods;
    int is_public, is_admin, needs_model; /* needs_model: 503 while loading or draining */
    void (*handle)(neap_serve_call *c);   /* answers, now or later; must copy *c to keep it */
} neap_serve_route;
extern const neap_serve_route neap_serve_routes[]; /* routes.c; path NULL ends it */
/* What is known about an exchange between head and done: its neap_http_user. */
typedef struct neap_serve_record {
    const neap_serve_route *route;
    neap_serve_client client;
    int64_t prompt, cached, fresh; /* tokens, for the log; prompt -1: no answer */
    const char *finish;            /* NULL: none */
} neap_serve_record;
/* head and request of neap_http_handler: guard, route, method, content type, phase */
void neap_serve_head(void *server, neap_http_exchange *x);
void neap_serve_request(void *server, neap_http_exchange *x);
void neap_serve_done(void *server, neap_http_exchange *x, int gone);

/* chat.c, completions.c, messages.c: answers in streams and whole */
void neap_serve_chat(neap_serve_call *c);         /* POST /v1/chat/completions */
void neap_serve_completions(neap_serve_call *c);  /* POST /v1/completions */
void neap_serve_messages(neap_serve_call *c);     /* POST /v1/messages */
void neap_serve_count_tokens(neap_serve_call *c); /* POST /v1/messages/count_tokens */
/* small.c */
void neap_serve_models(neap_serve_call *c);   /* GET /v1/models */
void neap_serve_model(neap_serve_call *c);    /* GET /v1/models/NAME */
void neap_serve_tokenize(neap_serve_call *c); /* POST /tokenize */
void neap_serve_detokenize(neap_serve_call *c);
void neap_serve_apply_template(neap_serve_call *c);
void neap_serve_health(neap_serve_call *c); /* GET /health */
void neap_serve_ready(neap_serve_call *c);
void neap_serve_props(neap_serve_call *c);
void neap_serve_metrics_route(neap_serve_call *c);
void neap_serve_openapi(neap_serve_call *c);       /* GET /openapi.json */
void neap_serve_not_supported(neap_serve_call *c); /* 501: /v1/embeddings and others that neap does not do */
/* page.c */
void neap_serve_page(neap_serve_call *c); /* GET / and its assets, compiled in */

/* ---- params.c: the fields of requests, typed: one table from which checks and openapi.json come ---- */
typedef struct neap_serve_params {
    neap_request request; /* sampling, max_tokens, stop; tokens are set later */
    int64_t n;            /* choices */
    int64_t max_tokens;   /* as asked; -1: up to the context */
    int is_stream, include_usage, return_progress, timings, echo, cache_prompt, has_seed;
    int64_t logprobs; /* -1: none */
    char *chat;       /* the request for neap_chat_encode and neap_grammar_create, as JSON text; chat routes */
    size_t chat_bytes;
    int has_tools, is_constrained, parallel_calls; /* is_constrained: a grammar is wanted */
    json_t *prompt;                                /* completions: string, array of strings, tokens, arrays of tokens */
    const char *cache_salt;
    double deadline;    /* seconds; 0 = the limit's */
    uint64_t n_unknown; /* fields nobody knows: ignored and counted */
    char *stop_storage; /* what request.stop points into */
    neap_logit_bias *bias;
    /* params.c's own, but for allow_special */
    int allow_special; /* completions: spellings and ids of special tokens are taken */
    int generation_prompt;
    int64_t max_completion_tokens;
    int32_t *stop_ids;   /* what request.stop_tokens points to */
    char cache_key[200]; /* what cache_salt points to: salt and key of the prompt's space */
    json_t *root;        /* what prompt belongs to */
} neap_serve_params;
typedef enum neap_serve_api { NEAP_API_CHAT, NEAP_API_COMPLETIONS, NEAP_API_MESSAGES } neap_serve_api;
/* Runs on a prep thread: body -> params. 0: fine; -1: *problem. tokenizer may be NULL only for a model without one. */
int neap_serve_params_read(neap_serve_params *p, const neap_server *s, neap_serve_api api, const char *body, size_t n,
                           const neap_tokenizer *t, int32_t context_max, neap_serve_problem *problem);
void neap_serve_params_free(neap_serve_params *p);
void neap_serve_openapi_text(const neap_server *s, neap_cli_text *out);
/* A body parsed strictly: UTF-8, depth, nodes, duplicate keys, numbers; NULL: *problem. */
json_t *neap_serve_json(const neap_server *s, const char *body, size_t n, neap_serve_problem *problem);

#endif
