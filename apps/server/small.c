/* Routes that answer at once: models, health, readiness, properties, metrics, and what neap does not do.
 *
 * /health says that the process and its model are there; /ready says that a request sent now would be worked on, so
 * it fails while the model loads, while the server drains, and when the engine's thread has shown no sign of life for
 * much longer than its steps take. None of them shows anything of anybody's request.
 *
 * Called by the router, on the loop thread. Owns nothing. Source: the OpenAI and Anthropic lists of models; llama.cpp's
 * /health and /props as their users know them. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../json_out.h"
#include "params_inner.h"

/* The engine is taken for stuck after so many mean steps, and never before so many seconds. */
#define STALL_STEPS 100.0
#define STALL_SECONDS 10.0

const char *neap_serve_model_name(const neap_server *s) {
    return s->config.alias != NULL && s->config.alias[0] != 0 ? s->config.alias : "model";
}

static void reply(neap_serve_call *c, int32_t status, neap_cli_text *body) {
    neap_http_reply(c->x, status, "application/json", neap_cli_text_string(body), body->n);
    neap_cli_text_free(body);
}

static int32_t context_of(const neap_server *s) {
    neap_engine_options options = {.context_max = 0};
    neap_backend_options_now(s->backend, &options);
    return options.context_max;
}

/* ---- models ---- */

/* Fields of both APIs: created for one, created_at and display_name for the other. */
static void model_object(const neap_server *s, neap_cli_text *out) {
    char when[32] = "1970-01-01T00:00:00Z";
    time_t started = (time_t)s->started;
    struct tm utc;
    if (gmtime_r(&started, &utc) != NULL) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "id", neap_serve_model_name(s));
    neap_cli_json_cstring(out, "object", "model");
    neap_cli_json_cstring(out, "type", "model");
    neap_cli_json_int(out, "created", s->started);
    neap_cli_json_cstring(out, "created_at", when);
    neap_cli_json_cstring(out, "display_name", neap_serve_model_name(s));
    neap_cli_json_cstring(out, "lifecycle", "active");
    neap_cli_json_cstring(out, "owned_by", "neap");
    neap_cli_json_int(out, "max_model_len", context_of(s));
    neap_cli_json_close(out, '}');
}

void neap_serve_models(neap_serve_call *c) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "object", "list");
    neap_cli_json_open(&out, "data", '[');
    model_object(c->server, &out);
    neap_cli_json_close(&out, ']');
    neap_cli_json_bool(&out, "has_more", 0);
    neap_cli_json_cstring(&out, "first_id", neap_serve_model_name(c->server));
    neap_cli_json_cstring(&out, "last_id", neap_serve_model_name(c->server));
    neap_cli_json_close(&out, '}');
    reply(c, 200, &out);
}

/* The path's end with %XX decoded; too long or not decodable: "". */
static void decode(const char *path, char *out, size_t capacity) {
    size_t n = 0;
    while (*path != 0 && n + 1 < capacity) {
        unsigned byte;
        if (*path != '%') {
            out[n++] = *path++;
        } else if (path[1] != 0 && path[2] != 0 && sscanf(path + 1, "%2x", &byte) == 1 && byte >= 0x20) {
            out[n++] = (char)byte;
            path += 3;
        } else {
            break;
        }
    }
    out[*path == 0 ? n : 0] = 0;
}

void neap_serve_model(neap_serve_call *c) {
    static const char lead[] = "/v1/models/";
    const char *path = neap_http_path(c->x);
    char name[1024];
    decode(strncmp(path, lead, sizeof lead - 1) == 0 ? path + sizeof lead - 1 : "", name, sizeof name);
    if (strcmp(name, neap_serve_model_name(c->server)) != 0) {
        neap_serve_problem problem;
        neap_serve_problem_set(&problem, NEAP_ERROR_NO_MODEL, "model", "there is no model of that name here");
        neap_serve_fail(c->server, c->x, &problem, 0);
        return;
    }
    neap_cli_text out = {0};
    model_object(c->server, &out);
    reply(c, 200, &out);
}

/* ---- health ---- */

/* error: as every answer that is one; beside it what a script wants to read. */
static void unavailable(neap_serve_call *c, neap_serve_error e, const char *status, const char *why, double progress) {
    neap_serve_problem problem;
    neap_cli_text body = {0};
    neap_serve_problem_set(&problem, e, "", "%s", why);
    neap_serve_problem_body(&problem, 0, &body);
    neap_cli_text_cut(&body, body.n - 1); /* goes on in the same object */
    neap_cli_json_cstring(&body, "status", status);
    if (progress >= 0) neap_cli_json_real(&body, "progress", progress, 3);
    neap_cli_json_close(&body, '}');
    neap_http_add_header(c->x, "Retry-After", "2");
    reply(c, 503, &body);
}

static void fine(neap_serve_call *c, const char *status) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "status", status);
    neap_cli_json_close(&out, '}');
    reply(c, 200, &out);
}

/* 1: there is a model; otherwise it has been answered. */
static int has_model(neap_serve_call *c) {
    uint64_t done = 0, total = 0;
    const char *why = "";
    neap_backend_phase phase = neap_backend_phase_of(c->server->backend, &done, &total, &why);
    if (phase == NEAP_BACKEND_READY) return 1;
    if (phase == NEAP_BACKEND_FAILED)
        unavailable(c, NEAP_ERROR_LOADING, "failed", "the model cannot be loaded", -1);
    else
        unavailable(c, NEAP_ERROR_LOADING, "loading", "the model is being loaded",
                    total > 0 ? (double)done / (double)total : 0);
    return 0;
}

void neap_serve_health(neap_serve_call *c) {
    if (has_model(c)) fine(c, "ok");
}

static double stall_bound(const neap_server *s) {
    neap_engine_stats stats = {.struct_size = sizeof stats};
    neap_backend_statistics(s->backend, &stats);
    double step = stats.steps > 0 ? 1e-9 * (double)stats.forward_ns / (double)stats.steps : 0;
    return step * STALL_STEPS > STALL_SECONDS ? step * STALL_STEPS : STALL_SECONDS;
}

void neap_serve_ready(neap_serve_call *c) {
    if (!has_model(c)) return;
    if (c->server->is_draining)
        unavailable(c, NEAP_ERROR_DRAINING, "draining", "the server is about to end", -1);
    else if (neap_backend_stall(c->server->backend) > stall_bound(c->server))
        unavailable(c, NEAP_ERROR_LOADING, "stalled", "the engine does not advance", -1);
    else
        fine(c, "ready");
}

/* ---- properties ---- */

static void limits_object(const neap_serve_limits *l, neap_cli_text *out) {
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"header_bytes", (int64_t)l->http.header_bytes},
        {"uri_bytes", (int64_t)l->http.uri_bytes},
        {"body_bytes", (int64_t)l->http.body_bytes},
        {"headers", l->http.headers},
        {"connections", l->http.connections},
        {"pipelined", l->http.pipelined},
        {"stream_bytes", (int64_t)l->http.stream_bytes},
        {"json_depth", l->json_depth},
        {"json_nodes", l->json_nodes},
        {"queue_requests", l->queue_requests},
        {"queue_tokens", l->queue_tokens},
        {"choices", l->choices},
        {"stop_strings", l->stop_strings},
        {"stop_bytes", l->stop_bytes},
        {"logit_bias", l->logit_bias},
        {"top_logprobs", l->top_logprobs},
        {"grammar_bytes", l->grammar_bytes},
        {"grammar_states", l->grammar_states},
        {"grammar_ms", l->grammar_ms},
        {"tools", l->tools},
    };
    neap_cli_json_open(out, "limits", '{');
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) neap_cli_json_int(out, rows[i].name, rows[i].value);
    neap_cli_json_real(out, "queue_seconds", l->queue_seconds, 6);
    neap_cli_json_real(out, "request_seconds", l->request_seconds, 6);
    neap_cli_json_real(out, "drain_seconds", l->drain_seconds, 6);
    neap_cli_json_close(out, '}');
}

static void sampling_object(const neap_server *s, neap_cli_text *out) {
    neap_request request;
    neap_request_init(&request);
    neap_params_defaults(s, &request.sampling);
    const neap_sampling *d = &request.sampling;
    neap_cli_json_open(out, "default_sampling", '{');
    neap_cli_json_real(out, "temperature", (double)d->temperature, 6);
    neap_cli_json_int(out, "top_k", d->top_k);
    neap_cli_json_real(out, "top_p", (double)d->top_p, 6);
    neap_cli_json_real(out, "min_p", (double)d->min_p, 6);
    neap_cli_json_real(out, "repetition_penalty", (double)d->repetition_penalty, 6);
    neap_cli_json_real(out, "presence_penalty", (double)d->presence_penalty, 6);
    neap_cli_json_real(out, "frequency_penalty", (double)d->frequency_penalty, 6);
    neap_cli_json_int(out, "repeat_last_n", d->penalty_window);
    neap_cli_json_close(out, '}');
}

static void model_part(const neap_model *m, neap_cli_text *out) {
    neap_model_info info = {.struct_size = sizeof info};
    if (neap_model_describe(m, &info) != NEAP_OK) return;
    neap_cli_json_open(out, "model_info", '{');
    neap_cli_json_cstring(out, "model_type", info.model_type);
    neap_cli_json_cstring(out, "family", info.family);
    neap_cli_json_int(out, "vocab", info.vocab);
    neap_cli_json_int(out, "layers", info.n_layers);
    neap_cli_json_uint(out, "parameters", info.parameters);
    neap_cli_json_uint(out, "parameters_active", info.parameters_active);
    neap_cli_json_int(out, "context_trained", info.context_max);
    neap_cli_json_cstring(out, "weights", info.weight_formats);
    neap_cli_json_cstring(out, "kernels", info.kernels);
    neap_cli_json_close(out, '}');
}

/* The parsers follow from the tokenizer's special tokens; they are named here so that nobody has to guess. */
static void chat_part(const neap_model *m, neap_cli_text *out) {
    const neap_tokenizer *t = neap_model_tokenizer(m);
    const char *format = t != NULL ? neap_chat_format(t) : "none";
    int is_xtml = strcmp(format, "xtml") == 0, is_markers = strcmp(format, "markers") == 0;
    neap_cli_json_open(out, "chat", '{');
    neap_cli_json_cstring(out, "format", format);
    neap_cli_json_cstring(out, "tool_call_parser", is_xtml ? "kimi_k3" : is_markers ? "kimi_k2" : NULL);
    neap_cli_json_cstring(out, "reasoning_parser", is_xtml ? "kimi_k3" : is_markers ? "kimi_k2" : NULL);
    neap_cli_json_bool(out, "can_think", is_xtml);
    neap_cli_json_close(out, '}');
}

void neap_serve_props(neap_serve_call *c) {
    const neap_server *s = c->server;
    const neap_model *m = neap_backend_model(s->backend);
    neap_engine_options o = {.context_max = 0};
    neap_engine_stats stats = {.struct_size = sizeof stats};
    neap_cli_text out = {0};
    neap_backend_options_now(s->backend, &o);
    neap_backend_statistics(s->backend, &stats);
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", neap_serve_model_name(s));
    neap_cli_json_cstring(&out, "version", neap_version());
    neap_cli_json_cstring(&out, "build", s->fingerprint);
    if (m != NULL) model_part(m, &out);
    neap_cli_json_int(&out, "n_ctx", o.context_max);
    neap_cli_json_int(&out, "total_slots", o.seqs_max);
    neap_cli_json_int(&out, "batch_tokens", o.batch_tokens_max);
    neap_cli_json_int(&out, "threads", stats.n_threads);
    neap_cli_json_uint(&out, "cache_tokens", stats.cache_tokens_total);
    if (m != NULL) chat_part(m, &out);
    neap_cli_json_open(&out, "prefix_cache", '{');
    neap_cli_json_bool(&out, "enabled", o.prefix_cache);
    neap_cli_json_bool(&out, "supported", 1);
    neap_cli_json_int(&out, "checkpoints", stats.checkpoints_total);
    neap_cli_json_int(&out, "checkpoint_spacing", o.checkpoint_spacing);
    neap_cli_json_bool(&out, "on_disk", o.prefix_dir != NULL);
    neap_cli_json_bool(&out, "shared_by_all_keys", s->config.shared_prefix);
    neap_cli_json_close(&out, '}');
    sampling_object(s, &out);
    limits_object(&s->config.limits, &out);
    neap_cli_json_close(&out, '}');
    reply(c, 200, &out);
}

/* ---- the rest ---- */

void neap_serve_metrics_route(neap_serve_call *c) {
    neap_cli_text out = {0};
    if (!c->server->config.metrics) {
        neap_serve_problem p;
        neap_serve_problem_set(&p, NEAP_ERROR_NO_ROUTE, "", "there is nothing at this path");
        neap_serve_fail(c->server, c->x, &p, 0);
        return;
    }
    neap_serve_metrics_text(c->server, &out);
    neap_http_reply(c->x, 200, "text/plain; version=0.0.4", neap_cli_text_string(&out), out.n);
    neap_cli_text_free(&out);
}

void neap_serve_openapi(neap_serve_call *c) {
    neap_cli_text out = {0};
    neap_serve_openapi_text(c->server, &out);
    reply(c, 200, &out);
}

void neap_serve_not_supported(neap_serve_call *c) {
    neap_serve_problem problem;
    neap_serve_problem_set(&problem, NEAP_ERROR_NOT_SUPPORTED, "",
                           "this server does not do that: it answers with text");
    neap_serve_fail(c->server, c->x, &problem, 0);
}
