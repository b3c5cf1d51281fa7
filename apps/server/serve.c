/* `neap serve`: from options to a listening server, its signals, and its end.
 *
 *   settings -> look at the model's description -> listen -> load (engine thread) -> ready -> ... -> drain -> exit
 *
 * It listens before the model is loaded, so that who watches it sees "loading" and not a refused connection. The first
 * SIGTERM or SIGINT drains: no new connections, running answers go on for at most --drain-timeout, then end with an
 * error. The second one ends at once. SIGHUP reads settings again. Both ends are exit code 0.
 *
 * Signals are blocked until the loop handles them, and in all other threads for good. Called by main.c. Owns the
 * server's struct and everything in it. */
#include <event2/event.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "../commands.h"
#include "../report.h"
#include "../settings.h"
#include "../terminal.h"
#include "answer.h"
#include "serve_config.h"

typedef struct serving {
    neap_server server;
    neap_cli_settings settings; /* of the engine: points into itself */
    neap_model_options model;
    neap_cli_text cache_dir;
    neap_model *description;
    double drain_until; /* seconds; 0: not draining */
    int is_hurried, has_failed_all;
    struct event *tick;
} serving;

void neap_serve_tick(neap_server *s) {
    static const struct timeval soon = {.tv_usec = 100000};
    const serving *v = (const serving *)(const void *)s;
    if (v->tick != NULL && !evtimer_pending(v->tick, NULL)) evtimer_add(v->tick, &soon);
}

/* ---- the end ---- */

static void stop_now(serving *v) {
    v->is_hurried = 1;
    neap_http_stop(v->server.http);
}

static void drain(serving *v, double seconds) {
    neap_server *s = &v->server;
    if (s->is_draining) return;
    s->is_draining = 1;
    neap_serve_tick(s);
    v->drain_until = neap_cli_seconds() + seconds;
    neap_http_close_listeners(s->http);
    neap_serve_log(NEAP_LOG_INFO, "draining", "%d requests are running, at most %.0f s more",
                   neap_http_exchanges(s->http), seconds);
    if (neap_http_exchanges(s->http) == 0) neap_http_stop(s->http);
}

void neap_serve_drain(neap_server *s) { drain((serving *)(void *)s, s->config.limits.drain_seconds); }

static void look_at_drain(serving *v) {
    enum { FLUSH_MS = 500 };
    neap_server *s = &v->server;
    double now = neap_cli_seconds();
    if (neap_http_exchanges(s->http) == 0 || now > v->drain_until + FLUSH_MS * 1e-3) {
        neap_http_stop(s->http);
    } else if (now >= v->drain_until && !v->has_failed_all) {
        neap_serve_problem p;
        v->has_failed_all = 1;
        neap_serve_problem_set(&p, NEAP_ERROR_DRAINING, "", "the server stops");
        neap_serve_log(NEAP_LOG_WARN, "draining", "time is over, what still runs ends with an error");
        neap_answer_fail_all(s, &p);
    }
}

/* ---- callbacks of the loop ---- */

/* Ten times a second, as long as there is something to look at. */
static void on_tick(evutil_socket_t number, short what, void *user) {
    serving *v = user;
    (void)number;
    (void)what;
    neap_answer_tick(&v->server);
    if (v->server.is_draining) look_at_drain(v);
    if (v->server.is_draining || v->server.answers != NULL) neap_serve_tick(&v->server);
}

static void on_delivered(void *user) { neap_answer_delivered(&((serving *)user)->server); }

static void on_stop_signal(evutil_socket_t number, short what, void *user) {
    serving *v = user;
    (void)what;
    neap_serve_log(NEAP_LOG_INFO, "signal", "%s", number == SIGINT ? "SIGINT" : "SIGTERM");
    if (v->server.is_draining)
        stop_now(v);
    else
        neap_serve_drain(&v->server);
}

static void on_hangup(evutil_socket_t number, short what, void *user) {
    serving *v = user;
    (void)number;
    (void)what;
    neap_serve_reload(&v->server);
}

/* The same build, instructions and formats give the same bits. */
static void make_fingerprint(neap_server *s, const neap_model *m) {
    neap_model_info info = {.struct_size = sizeof info};
    neap_engine_options now;
    neap_backend_options_now(s->backend, &now);
    if (neap_model_describe(m, &info) != NEAP_OK) return;
    char all[512];
    int n = snprintf(all, sizeof all, "%s %s %s %s %d %d %d %d", info.model_type, info.weight_formats, info.kernels,
                     neap_version(), now.cache_type, now.index_type, now.act_type, now.moe_act_type);
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (int i = 0; i < n && i < (int)sizeof all - 1; i++) hash = (hash ^ (unsigned char)all[i]) * 16777619u;
    snprintf(s->fingerprint, sizeof s->fingerprint, "neap-%.8s-%.10s-%08x", neap_version(), info.kernels, hash);
}

static void on_phase(void *user) {
    serving *v = user;
    neap_server *s = &v->server;
    const char *text;
    neap_backend_phase phase = neap_backend_phase_of(s->backend, NULL, NULL, &text);
    if (phase == NEAP_BACKEND_READY) {
        make_fingerprint(s, neap_backend_model(s->backend));
        neap_serve_log(NEAP_LOG_INFO, "ready", "%s", s->config.alias);
    } else if (phase == NEAP_BACKEND_FAILED) {
        neap_cli_error("%s", text);
        s->exit_code = neap_backend_exit_code(s->backend);
        drain(v, 1); /* those that wait for an answer have got an error by now */
    }
}

/* On the engine's thread. */
static void configure(void *user, const neap_model *m, neap_engine_options *engine) {
    serving *v = user;
    neap_serve_engine_options(&v->server.config, m, &v->settings);
    *engine = v->settings.engine;
}

/* ---- the beginning ---- */

static void block_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(how, &set, NULL);
}

/* A core file would hold everybody's prompts. */
static void no_core(void) {
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
}

/* Large blocks, of which bodies are made, go back to the system when they are freed. Without this glibc learns from the
 * first large body to keep the next ones. */
static void give_back(void) {
#ifdef __GLIBC__
    enum { LARGE = 256 << 10 };
    (void)mallopt(M_MMAP_THRESHOLD, LARGE);
    (void)mallopt(M_TRIM_THRESHOLD, 4 * LARGE);
#endif
}

/* Headers alone: a bad model is refused before anything listens, and the limits that follow from it get numbers. */
static int describe(serving *v) {
    neap_serve_config *c = &v->server.config;
    neap_model_options o;
    neap_serve_model_options(c, NULL, &o, &v->cache_dir);
    o.describe_only = 1;
    o.cache_dir = NULL;
    int code = neap_cli_failed(neap_model_open(&v->description, c->cli.model, &o), NEAP_CLI_OPENING);
    if (code != NEAP_EXIT_OK) return code;
    neap_cli_text_free(&v->cache_dir);
    neap_serve_model_options(c, v->description, &v->model, &v->cache_dir);
    neap_serve_engine_options(c, v->description, &v->settings);
    neap_serve_limits_resolve(&c->limits, v->settings.engine.context_max);
    if (neap_model_tokenizer(v->description) == NULL)
        neap_serve_log(NEAP_LOG_WARN, "model", "%s has no tokenizer: requests for text will fail", c->cli.model);
    return NEAP_EXIT_OK;
}

static int listen_all(neap_server *s) {
    neap_serve_config *c = &s->config;
    char host[256];
    for (int i = 0; neap_serve_host(c, i, host, sizeof host); i++) {
        int code = neap_http_listen(s->http, host, &c->port, c->tls_cert, c->tls_key);
        if (code != NEAP_EXIT_OK) return code;
        int is_v6 = strchr(host, ':') != NULL;
        if (strncmp(host, "unix:", 5) == 0)
            neap_serve_log(NEAP_LOG_INFO, "listening", "%s", host);
        else
            neap_serve_log(NEAP_LOG_INFO, "listening", "%s://%s%s%s:%d", c->tls_cert != NULL ? "https" : "http",
                           is_v6 ? "[" : "", host, is_v6 ? "]" : "", c->port);
    }
    return NEAP_EXIT_OK;
}

static int start_backend(serving *v) {
    neap_backend_options o = {.path = v->server.config.cli.model,
                              .model = v->model,
                              .engine = v->settings.engine,
                              .configure = configure,
                              .changed = on_phase,
                              .delivered = on_delivered,
                              .user = v};
    return neap_backend_create(&v->server.backend, v->server.http, &o);
}

static int run_loop(serving *v) {
    enum { SIGNALS = 3 };
    struct event_base *base = neap_http_base(v->server.http);
    struct event *signals[SIGNALS] = {evsignal_new(base, SIGTERM, on_stop_signal, v),
                                      evsignal_new(base, SIGINT, on_stop_signal, v),
                                      evsignal_new(base, SIGHUP, on_hangup, v)};
    v->tick = evtimer_new(base, on_tick, v);
    int failed = v->tick == NULL;
    for (int i = 0; i < SIGNALS; i++) failed |= signals[i] == NULL || event_add(signals[i], NULL) != 0;
    if (!failed) {
        block_signals(SIG_UNBLOCK);
        failed = neap_http_run(v->server.http) != 0;
        block_signals(SIG_BLOCK);
    }
    for (int i = 0; i < SIGNALS; i++) {
        if (signals[i] != NULL) event_free(signals[i]);
    }
    if (v->tick != NULL) event_free(v->tick);
    v->tick = NULL;
    if (!failed) return v->server.exit_code;
    neap_cli_error("the event loop does not run");
    return NEAP_EXIT_INTERNAL;
}

/* Signals are blocked by now, so another one waits. */
static int is_asked_again(void) {
    sigset_t set;
    sigemptyset(&set);
    return sigpending(&set) == 0 && (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

/* A step, a file being packed or a prompt being read cannot be broken off; the process can. Everything on disk is
 * written so that this does no harm. */
static void end_threads(serving *v, int code) {
    static const double slice = 0.05;
    neap_server *s = &v->server;
    double now = neap_cli_seconds(), left = v->drain_until - now;
    int is_loading = neap_backend_phase_of(s->backend, NULL, NULL, NULL) == NEAP_BACKEND_LOADING;
    double until = now + (v->is_hurried || is_loading ? 0.5 : (left > 0 ? left : 0) + 0.8);
    for (; now < until; now = neap_cli_seconds()) {
        if (neap_backend_stop(s->backend, until - now < slice ? until - now : slice)) return;
        if (is_asked_again() && until > now + 0.5) until = now + 0.5;
    }
    neap_serve_log(NEAP_LOG_INFO, "stopped", "in the middle of a step");
    _exit(code);
}

static int serve(serving *v) {
    neap_server *s = &v->server;
    neap_http_handler handler = {
        .user = s, .request = neap_serve_request, .head = neap_serve_head, .done = neap_serve_done};
    int code = describe(v);
    if (code == NEAP_EXIT_OK) code = neap_http_create(&s->http, &s->config.limits.http, &handler);
    if (code == NEAP_EXIT_OK) code = listen_all(s);
    if (code == NEAP_EXIT_OK) code = start_backend(v);
    if (code == NEAP_EXIT_OK) code = run_loop(v);
    if (s->backend != NULL) end_threads(v, code);
    neap_answer_free_all(s);
    neap_http_destroy(s->http);
    neap_backend_destroy(s->backend);
    if (code == NEAP_EXIT_OK) neap_serve_log(NEAP_LOG_INFO, "stopped", "all is done");
    return code;
}

int neap_cli_serve(const neap_cli_options *o) {
    if (o->serve.show_limits) {
        neap_serve_limits_show(o);
        return NEAP_EXIT_OK;
    }
    if (o->serve.check != NULL) return neap_serve_check(o->serve.check);
    serving v = {0};
    no_core();
    give_back();
    block_signals(SIG_BLOCK);
    int code = neap_serve_config_fill(&v.server.config, o);
    if (code == NEAP_EXIT_OK) {
        neap_serve_log_open(&v.server.config);
        v.server.started = (int64_t)time(NULL);
        v.server.metrics = neap_serve_metrics_create();
        snprintf(v.server.fingerprint, sizeof v.server.fingerprint, "neap-%.8s", neap_version());
        code = serve(&v);
        neap_serve_metrics_destroy(v.server.metrics);
    }
    neap_model_close(v.description);
    neap_cli_text_free(&v.cache_dir);
    neap_serve_config_free(&v.server.config);
    return code;
}
