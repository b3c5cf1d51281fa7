/* The table of routes, and what every request passes before its route: guard, path, method, type, phase.
 *
 *   head     guard (Host, Origin, key) -> path -> method -> content type -> is the model there -> record
 *   request  the route's handler
 *   done     counters' and log's last word
 *
 * All of that happens when the head is there, so that a wrong key or type costs no body. Default deny: a path that is
 * not in the table needs a key like any other before it is told that it does not exist.
 *
 * Called by http.c. Owns the records. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve.h"

enum { READ = NEAP_HTTP_GET | NEAP_HTTP_HEAD, WRITE = NEAP_HTTP_POST };

/* A path that ends with an asterisk stands for all that begin like it and go on. */
const neap_serve_route neap_serve_routes[] = {
    {"/", READ, .is_public = 1, .handle = neap_serve_page},
    {"/style.css", READ, .is_public = 1, .handle = neap_serve_page},
    {"/markdown.js", READ, .is_public = 1, .handle = neap_serve_page},
    {"/app.js", READ, .is_public = 1, .handle = neap_serve_page},
    {"/icon.svg", READ, .is_public = 1, .handle = neap_serve_page},
    {"/health", READ, .is_public = 1, .handle = neap_serve_health},
    {"/ready", READ, .is_public = 1, .handle = neap_serve_ready},
    {"/openapi.json", READ, .handle = neap_serve_openapi},
    {"/v1/models", READ, .handle = neap_serve_models},
    {"/v1/models/*", READ, .handle = neap_serve_model},
    {"/v1/chat/completions", WRITE, .needs_model = 1, .handle = neap_serve_chat},
    {"/v1/completions", WRITE, .needs_model = 1, .handle = neap_serve_completions},
    {"/v1/messages", WRITE, .needs_model = 1, .handle = neap_serve_messages},
    {"/v1/messages/count_tokens", WRITE, .needs_model = 1, .handle = neap_serve_count_tokens},
    {"/tokenize", WRITE, .needs_model = 1, .handle = neap_serve_tokenize},
    {"/detokenize", WRITE, .needs_model = 1, .handle = neap_serve_detokenize},
    {"/apply-template", WRITE, .needs_model = 1, .handle = neap_serve_apply_template},
    {"/props", READ, .is_admin = 1, .handle = neap_serve_props},
    {"/metrics", READ, .is_admin = 1, .handle = neap_serve_metrics_route},
    {"/v1/embeddings", WRITE, .handle = neap_serve_not_supported},
    {"/v1/responses", WRITE, .handle = neap_serve_not_supported},
    {"/v1/moderations", WRITE, .handle = neap_serve_not_supported},
    {"/v1/audio/*", WRITE, .handle = neap_serve_not_supported},
    {"/v1/images/*", WRITE, .handle = neap_serve_not_supported},
    {NULL, 0, .handle = NULL}};

static const neap_serve_route *find_route(const char *path) {
    for (const neap_serve_route *r = neap_serve_routes; r->path != NULL; r++) {
        size_t n = strlen(r->path);
        if (r->path[n - 1] != '*' ? strcmp(path, r->path) == 0 : strncmp(path, r->path, n - 1) == 0 && path[n - 1] != 0)
            return r;
    }
    return NULL;
}

static int is_anthropic(const neap_http_exchange *x) { return strncmp(neap_http_path(x), "/v1/messages", 12) == 0; }

static void refuse(neap_server *s, neap_http_exchange *x, neap_serve_error e, const char *text) {
    neap_serve_problem p;
    neap_serve_problem_set(&p, e, "", "%s", text);
    neap_serve_fail(s, x, &p, is_anthropic(x));
}

static void refuse_method(neap_server *s, neap_http_exchange *x, uint32_t methods) {
    static const struct {
        uint32_t method;
        const char *name;
    } names[] = {{NEAP_HTTP_GET, "GET"}, {NEAP_HTTP_HEAD, "HEAD"}, {NEAP_HTTP_POST, "POST"}};
    char allow[64] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((methods & names[i].method) != 0)
            n += (size_t)snprintf(allow + n, sizeof allow - n, "%s%s", n > 0 ? ", " : "", names[i].name);
    }
    neap_http_add_header(x, "Allow", allow);
    refuse(s, x, NEAP_ERROR_METHOD, "this path does not take this method");
}

/* A form on somebody's web page can send text/plain to us without asking, but not this type. */
static int is_json(const neap_http_exchange *x) {
    static const char type[] = "application/json";
    size_t n = sizeof type - 1;
    const char *sent = neap_http_header(x, "Content-Type");
    if (sent == NULL || neap_http_header_count(x, "Content-Type") != 1 || strncasecmp(sent, type, n) != 0) return 0;
    return sent[n] == 0 || sent[n] == ';' || sent[n] == ' ';
}

/* 1: the model can be asked. */
static int is_ready(neap_server *s, neap_http_exchange *x) {
    neap_backend_phase phase = neap_backend_phase_of(s->backend, NULL, NULL, NULL);
    if (s->is_draining)
        refuse(s, x, NEAP_ERROR_DRAINING, "the server is about to stop");
    else if (phase == NEAP_BACKEND_LOADING)
        refuse(s, x, NEAP_ERROR_LOADING, "Loading model");
    else if (phase == NEAP_BACKEND_FAILED)
        refuse(s, x, NEAP_ERROR_DRAINING, "the model does not run");
    else
        return 1;
    return 0;
}

/* Most paths that are wrong are right but for the base address that the client was given. */
static void refuse_path(neap_server *s, neap_http_exchange *x) {
    neap_serve_problem p;
    char with[128];
    const char *path = neap_http_path(x);
    snprintf(with, sizeof with, "/v1%.120s", path);
    if (find_route(with) != NULL)
        neap_serve_problem_set(&p, NEAP_ERROR_NO_ROUTE, "",
                               "there is nothing at this path, did you mean %s? "
                               "The base URL of OpenAI clients ends in /v1",
                               with);
    else if (strncmp(path, "/v1/v1/", 7) == 0 && find_route(path + 3) != NULL)
        neap_serve_problem_set(&p, NEAP_ERROR_NO_ROUTE, "",
                               "there is nothing at this path, did you mean %s? "
                               "The base URL of this client goes without /v1",
                               path + 3);
    else
        neap_serve_problem_set(&p, NEAP_ERROR_NO_ROUTE, "",
                               "there is nothing at this path; /openapi.json lists them all");
    neap_serve_fail(s, x, &p, is_anthropic(x));
}

void neap_serve_head(void *server, neap_http_exchange *x) {
    neap_server *s = server;
    neap_serve_client client = {0};
    const neap_serve_route *route = find_route(neap_http_path(x));
    neap_http_method method = neap_http_method_of(x);
    if (!neap_serve_guard(s, x, route != NULL && route->is_public, route != NULL && route->is_admin, &client)) return;
    if (route == NULL) {
        refuse_path(s, x);
    } else if ((route->methods & (uint32_t)method) == 0) {
        refuse_method(s, x, route->methods);
    } else if (method == NEAP_HTTP_POST && !is_json(x)) {
        refuse(s, x, NEAP_ERROR_TYPE, "the body must be JSON, with Content-Type: application/json");
    } else if (!route->needs_model || is_ready(s, x)) {
        neap_serve_record *r = neap_cli_alloc(1, sizeof *r);
        *r = (neap_serve_record){.route = route, .client = client, .prompt = -1};
        neap_http_set_user(x, r);
    }
}

void neap_serve_request(void *server, neap_http_exchange *x) {
    const neap_serve_record *r = neap_http_user(x);
    if (r == NULL) return; /* answered by its head */
    neap_serve_call c = {.server = server, .x = x, .client = r->client};
    r->route->handle(&c);
}

void neap_serve_done(void *server, neap_http_exchange *x, int gone) {
    (void)server;
    neap_serve_record *r = neap_http_user(x);
    neap_http_set_user(x, NULL);
    if (r != NULL)
        neap_serve_log_access(x, gone, r->prompt, r->cached, r->fresh, r->finish);
    else
        neap_serve_log_access(x, gone, -1, 0, 0, NULL);
    free(r);
}
