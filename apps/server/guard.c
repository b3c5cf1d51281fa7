/* Who may ask: Host, Origin and key of a request, before it is routed; default deny. See serve.h.
 *
 *   Host    a page on the web may point its own name at 127.0.0.1 (DNS rebinding); then its requests come with that
 *           name. So only names that are ours are answered: localhost, the addresses of --host, --allowed-host. An
 *           address as such cannot be rebound: on a server that listens on all addresses any of them will do.
 *   Origin  browsers say which page asks. Pages of other sites are refused unless --cors-origin has them; the
 *           server's own page is the one whose origin is the Host.
 *   Key     "Authorization: Bearer KEY" or "x-api-key: KEY". The given key and all known ones are hashed under a
 *           random key of this process and the digests compared in full, all of them, whatever is found: the time
 *           tells nothing but the length of what the client itself has sent.
 *
 * A request over a unix socket has passed the permissions of the file: its Host may be anything. The space of the
 * prefix cache is a hash of the client's key alone, so that what is kept on disk is found again after a restart.
 *
 * Called by routes.c for every request. Owns nothing. Sources: RFC 9110 7.2, RFC 6454, the Fetch standard (CORS). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "serve_config.h"
#include "sha256.h"

static int is_anthropic(const neap_http_exchange *x) { return strncmp(neap_http_path(x), "/v1/messages", 12) == 0; }

static int refuse(neap_server *s, neap_http_exchange *x, neap_serve_error e, const char *text) {
    neap_serve_problem p = {0};
    neap_serve_problem_set(&p, e, "", "%s", text);
    neap_serve_fail(s, x, &p, is_anthropic(x));
    return 0;
}

/* ---- Host ---- */

typedef struct authority {
    char name[256]; /* lower case, without brackets and port */
    int32_t port;   /* -1: not said */
    int is_address; /* IPv4 or IPv6 */
} authority;

static int is_ipv4(const char *s) {
    int dots = 0;
    for (; *s != 0; s++) {
        if (*s != '.' && (*s < '0' || *s > '9')) return 0;
        dots += *s == '.';
    }
    return dots == 3;
}

static int read_port(const char *s, int32_t *port) {
    int32_t n = 0;
    size_t i = 0;
    for (; s[i] >= '0' && s[i] <= '9' && i < 6; i++) n = 10 * n + (s[i] - '0');
    *port = n;
    return i > 0 && s[i] == 0 && n <= 65535;
}

/* "name", "name:80", "[::1]:80". 0: not well-formed. */
static int read_authority(authority *a, const char *s) {
    size_t n = strcspn(s, s[0] == '[' ? "]" : ":"), begin = s[0] == '[';
    *a = (authority){.port = -1};
    if (n <= begin || n - begin >= sizeof a->name || (begin && s[n] != ']')) return 0;
    for (size_t i = begin; i < n; i++) {
        char c = s[i];
        if (c >= 'A' && c <= 'Z') c = (char)(c | 0x20);
        int is_plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
        if (!is_plain && !(begin && c == ':')) return 0;
        a->name[i - begin] = c;
    }
    size_t length = n - begin;
    if (length > 1 && a->name[length - 1] == '.') a->name[length - 1] = 0; /* the root's dot */
    a->is_address = begin || is_ipv4(a->name);
    s += n + begin;
    return *s == 0 || (*s == ':' && read_port(s + 1, &a->port));
}

static int is_listed(const neap_cli_strings *list, const char *name) {
    for (size_t i = 0; i < list->n; i++) {
        const char *item = list->items[i];
        size_t n = strlen(item), begin = item[0] == '[' && item[n - 1] == ']';
        if (strcmp(item, "*") == 0) return 1;
        if (strlen(name) == n - 2 * begin && strncasecmp(item + begin, name, n - 2 * begin) == 0) return 1;
    }
    return 0;
}

static int host_is_allowed(const neap_server *s, const authority *a) {
    char host[256];
    if (strcmp(a->name, "localhost") == 0 || strcmp(a->name, "127.0.0.1") == 0 || strcmp(a->name, "::1") == 0) return 1;
    for (int i = 0; neap_serve_host(&s->config, i, host, sizeof host); i++) {
        int is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
        if (strcasecmp(host, a->name) == 0 || (is_any && a->is_address)) return 1;
    }
    return is_listed(&s->config.allowed_hosts, a->name);
}

static int check_host(neap_server *s, neap_http_exchange *x, int is_public, authority *a) {
    const char *host = neap_http_header(x, "host");
    *a = (authority){.port = -1};
    if (neap_http_header_count(x, "host") > 1) return refuse(s, x, NEAP_ERROR_BAD_VALUE, "several Host headers");
    if (neap_http_is_local(x)) {
        if (host != NULL) (void)read_authority(a, host);
        return 1;
    }
    if (host == NULL || host[0] == 0) /* HTTP/1.0: probes of load balancers */
        return is_public || refuse(s, x, NEAP_ERROR_BAD_VALUE, "a Host header is missing");
    if (!read_authority(a, host)) return refuse(s, x, NEAP_ERROR_BAD_VALUE, "the Host header is malformed");
    return host_is_allowed(s, a) ||
           refuse(s, x, NEAP_ERROR_FORBIDDEN,
                  "this server is not known under the name in the Host header (--allowed-host adds names)");
}

/* ---- Origin ---- */

/* Whether the page comes from this server: the same name and port, whatever stands before it speaks TLS. */
static int is_same_origin(const char *origin, const authority *host) {
    authority a;
    int is_tls = strncasecmp(origin, "https://", 8) == 0;
    if (host->name[0] == 0 || (!is_tls && strncasecmp(origin, "http://", 7) != 0)) return 0;
    if (!read_authority(&a, origin + (is_tls ? 8 : 7)) || strcmp(a.name, host->name) != 0) return 0;
    int32_t standard = is_tls ? 443 : 80, ours = host->port < 0 ? standard : host->port;
    return (a.port < 0 ? standard : a.port) == ours;
}

static int origin_is_listed(const neap_cli_strings *list, const char *origin) {
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i], "*") == 0 || strcasecmp(list->items[i], origin) == 0) return 1;
    }
    return 0;
}

/* The names of headers, as a browser lists them: echoed only when they are nothing else. */
static int is_header_list(const char *s) {
    size_t n = strlen(s);
    return n > 0 && n <= 1024 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ") == n;
}

static int answer_preflight(neap_http_exchange *x) {
    const char *headers = neap_http_header(x, "access-control-request-headers");
    neap_http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    neap_http_add_header(x, "Access-Control-Allow-Headers",
                         headers != NULL && is_header_list(headers) ? headers
                                                                    : "authorization, content-type, x-api-key");
    neap_http_add_header(x, "Access-Control-Max-Age", "600");
    neap_http_reply(x, 204, NULL, NULL, 0);
    return 0;
}

static int check_origin(neap_server *s, neap_http_exchange *x, const authority *host) {
    const char *origin = neap_http_header(x, "origin");
    if (origin == NULL) return 1;
    if (neap_http_header_count(x, "origin") > 1 || strlen(origin) > 512)
        return refuse(s, x, NEAP_ERROR_BAD_VALUE, "the Origin header is malformed");
    int is_listed_origin = origin_is_listed(&s->config.cors_origins, origin);
    if (!is_listed_origin && !is_same_origin(origin, host))
        return refuse(s, x, NEAP_ERROR_FORBIDDEN,
                      "pages of this origin may not use this server (--cors-origin allows them)");
    if (!is_listed_origin) return 1;
    for (const char *c = origin; *c != 0; c++) { /* it goes back as it came */
        if (*c <= ' ' || *c > '~') return refuse(s, x, NEAP_ERROR_BAD_VALUE, "the Origin header is malformed");
    }
    neap_http_add_header(x, "Access-Control-Allow-Origin", origin);
    neap_http_add_header(x, "Vary", "Origin");
    neap_http_add_header(x, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    int is_preflight =
        neap_http_method_of(x) == NEAP_HTTP_OPTIONS && neap_http_header(x, "access-control-request-method") != NULL;
    return is_preflight ? answer_preflight(x) : 1;
}

/* ---- key ---- */

/* The key that the client has sent; NULL: none. *is_wrong: it contradicts itself. */
static const char *given_key(const neap_http_exchange *x, int *is_wrong) {
    const char *bearer = neap_http_header(x, "authorization"), *key = neap_http_header(x, "x-api-key");
    *is_wrong = neap_http_header_count(x, "authorization") > 1 || neap_http_header_count(x, "x-api-key") > 1;
    if (bearer != NULL) {
        bearer = strncasecmp(bearer, "bearer ", 7) == 0 ? bearer + 7 : "";
        while (*bearer == ' ') bearer++;
    }
    if (bearer != NULL && key != NULL && strcmp(bearer, key) != 0) *is_wrong = 1;
    return bearer != NULL ? bearer : key;
}

/* 1: equal. The time does not depend on what is in them. */
static int is_equal(const uint8_t *a, const uint8_t *b) {
    unsigned difference = 0;
    for (size_t i = 0; i < NEAP_SERVE_DIGEST; i++) difference |= (unsigned)(a[i] ^ b[i]);
    return (int)(((difference - 1) >> 8) & 1);
}

static void find_key(const neap_serve_access *a, const char *key, int *is_api, int *is_admin) {
    uint8_t digest[NEAP_SERVE_DIGEST];
    unsigned found = 0;
    neap_serve_hmac(a->random, sizeof a->random, key, strlen(key), digest);
    for (size_t i = 0; i < a->keys.n; i++) found |= (unsigned)is_equal(digest, a->digests[i]);
    *is_api = (int)found;
    *is_admin = a->admin_key != NULL && is_equal(digest, a->admin_digest);
}

static void name_space(const char *key, char *space) {
    static const char what[] = "neap: space of the prefix cache";
    uint8_t digest[NEAP_SERVE_DIGEST];
    neap_serve_hmac(key, strlen(key), what, sizeof what - 1, digest);
    for (size_t i = 0; i < sizeof digest; i++) snprintf(space + 2 * i, 3, "%02x", digest[i]);
}

static int check_key(neap_server *s, neap_http_exchange *x, int is_public, int is_admin_route, neap_serve_client *out) {
    const neap_serve_access *a = s->config.access;
    int is_wrong, is_api = 0, is_admin = 0, has_keys = a->keys.n > 0;
    const char *key = given_key(x, &is_wrong);
    if (is_wrong && !is_public)
        return refuse(s, x, NEAP_ERROR_BAD_VALUE, "several keys: send one Authorization or one x-api-key header");
    if (key != NULL && !is_wrong) find_key(a, key, &is_api, &is_admin);
    out->is_authenticated = !has_keys || is_api || is_admin;
    out->is_admin = a->admin_key != NULL ? is_admin : out->is_authenticated;
    if ((is_api || is_admin) && !s->config.shared_prefix) name_space(key, out->space);
    if (is_public || (is_admin_route ? out->is_admin : out->is_authenticated)) return 1;
    if (key == NULL)
        return refuse(s, x, NEAP_ERROR_KEY,
                      "a key is missing: send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"");
    if (is_admin_route && out->is_authenticated)
        return refuse(s, x, NEAP_ERROR_KEY, "this needs the admin key, an API key is not enough");
    return refuse(s, x, NEAP_ERROR_KEY, "the key is not valid");
}

int neap_serve_guard(neap_server *s, neap_http_exchange *x, int is_public, int is_admin_route, neap_serve_client *out) {
    authority host;
    *out = (neap_serve_client){0};
    return check_host(s, x, is_public, &host) && check_origin(s, x, &host) &&
           check_key(s, x, is_public, is_admin_route, out);
}
