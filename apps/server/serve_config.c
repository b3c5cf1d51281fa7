/* From parsed options to the server's settings, at the start and again at SIGHUP; see serve_config.h.
 *
 * command_line.c has already merged flags, environment and config file. Here follows what a value alone cannot show:
 * keys are read from their files and checked, lists are split at commas, addresses are looked at (beyond this machine
 * only with a key), TLS files come in pairs. A reload parses everything again and takes over what may change while the
 * server runs; the parse is thrown away as a whole when anything in it is wrong.
 *
 * Called by serve.c (start, SIGHUP). Owns the texts of key files and split lists (neap_serve_access). */
#include "serve_config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../report.h"
#include "sha256.h"

/* ---- lists and files ---- */

static void push(neap_cli_strings *list, const char *s) {
    list->items = neap_cli_grow(list->items, list->n + 1, sizeof *list->items);
    list->items[list->n++] = s;
}

/* The parts between commas and blanks of all items; *text owns them. */
static void split(neap_cli_strings *out, char **text, const neap_cli_strings *from) {
    neap_cli_text all = {0};
    for (size_t i = 0; i < from->n; i++) neap_cli_text_printf(&all, "%s ", from->items[i]);
    *text = all.data;
    if (all.data == NULL) return;
    for (char *at = NULL, *part = strtok_r(all.data, ", \t", &at); part != NULL; part = strtok_r(NULL, ", \t", &at))
        push(out, part);
}

/* Why a key cannot be one; NULL: it can. The key itself is never printed. */
static const char *wrong_key(const char *key) {
    size_t n = strlen(key);
    if (n == 0) return "is empty";
    if (n > 512) return "is longer than 512 bytes";
    for (size_t i = 0; i < n; i++) {
        if (key[i] <= ' ' || key[i] > '~') return "has a blank, a control character or one beyond ASCII";
    }
    return NULL;
}

static int refuse_key(const char *from, int line, const char *why) {
    if (line > 0)
        neap_cli_error("%s:%d: the key %s", from, line, why);
    else
        neap_cli_error("%s: the key %s", from, why);
    return line > 0 ? NEAP_EXIT_FILE : NEAP_EXIT_USAGE;
}

/* Keys of a file, one a line; blank lines and comments do not count. */
static int read_keys(neap_cli_strings *out, neap_cli_text *text, const char *path) {
    struct stat st;
    int code = neap_cli_read_file(text, path, 1 << 20);
    if (code != NEAP_EXIT_OK) return code;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 077) != 0)
        neap_serve_log(NEAP_LOG_WARN, "keys", "%s can be read by others on this machine: chmod 600 is safer", path);
    if (strlen(text->data) != text->n) return refuse_key(path, 1, "file holds a NUL byte");
    int line = 0;
    for (char *s = text->data, *next; s != NULL; s = next) {
        next = strchr(s, '\n');
        if (next != NULL) *next++ = 0;
        line++;
        while (*s == ' ' || *s == '\t') s++;
        size_t n = strlen(s);
        while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r')) s[--n] = 0;
        if (n == 0 || *s == '#') continue;
        const char *why = wrong_key(s);
        if (why != NULL) return refuse_key(path, line, why);
        push(out, s);
    }
    return NEAP_EXIT_OK;
}

/* ---- who may ask ---- */

static void wipe(neap_cli_text *t) {
    if (t->data != NULL) explicit_bzero(t->data, t->capacity);
    neap_cli_text_free(t);
}

static void access_free(neap_serve_access *a) {
    if (a == NULL) return;
    if (a->again != NULL) neap_cli_options_free(a->again);
    free(a->again);
    wipe(&a->key_text);
    wipe(&a->admin_text);
    free(a->keys.items);
    free(a->hosts.items);
    free(a->origins.items);
    free(a->host_text);
    free(a->origin_text);
    free(a->digests);
    free(a);
}

static int access_keys(neap_serve_access *a, const neap_cli_serve_options *s) {
    for (size_t i = 0; i < s->api_keys.n; i++) {
        const char *why = wrong_key(s->api_keys.items[i]);
        if (why != NULL) return refuse_key("--api-key", 0, why);
        push(&a->keys, s->api_keys.items[i]);
    }
    int code = NEAP_EXIT_OK;
    size_t before = a->keys.n;
    if (s->api_key_file != NULL && s->api_key_file[0] != 0) {
        code = read_keys(&a->keys, &a->key_text, s->api_key_file);
        if (code == NEAP_EXIT_OK && a->keys.n == before) { /* an empty file must not open the door */
            neap_cli_error("%s: holds no key", s->api_key_file);
            code = NEAP_EXIT_FILE;
        }
    }
    if (code != NEAP_EXIT_OK) return code;
    if (s->admin_key != NULL && s->admin_key[0] != 0) {
        const char *why = wrong_key(s->admin_key);
        if (why != NULL) return refuse_key("--admin-key", 0, why);
        a->admin_key = s->admin_key;
    }
    if (s->admin_key_file == NULL || s->admin_key_file[0] == 0) return NEAP_EXIT_OK;
    neap_cli_strings admin = {0};
    code = read_keys(&admin, &a->admin_text, s->admin_key_file);
    if (code == NEAP_EXIT_OK && admin.n != 1) {
        neap_cli_error("%s: holds %zu keys, the admin key is one", s->admin_key_file, admin.n);
        code = NEAP_EXIT_FILE;
    }
    if (code == NEAP_EXIT_OK) a->admin_key = admin.items[0];
    free(admin.items);
    return code;
}

static int access_check(const neap_serve_access *a) {
    for (size_t i = 0; i < a->origins.n; i++) {
        const char *o = a->origins.items[i], *rest = strstr(o, "://");
        if (strcmp(o, "*") == 0 || (rest != NULL && rest[3] != 0 && strchr(rest + 3, '/') == NULL)) continue;
        neap_cli_error("--cors-origin: \"%s\" is not * and not like https://chat.example.org (no path)", o);
        return NEAP_EXIT_USAGE;
    }
    for (size_t i = 0; i < a->hosts.n; i++) {
        const char *h = a->hosts.items[i];
        if (strpbrk(h, "/@") == NULL && (h[0] == '[' || strchr(h, ':') == NULL)) continue;
        neap_cli_error("--allowed-host: \"%s\" is not a name or address (no scheme, no port)", h);
        return NEAP_EXIT_USAGE;
    }
    return NEAP_EXIT_OK;
}

static int access_make(neap_serve_access **out, const neap_cli_serve_options *s) {
    neap_serve_access *a = neap_cli_alloc(1, sizeof *a);
    split(&a->hosts, &a->host_text, &s->allowed_hosts);
    split(&a->origins, &a->origin_text, &s->cors_origins);
    int code = access_keys(a, s);
    if (code == NEAP_EXIT_OK) code = access_check(a);
    if (code == NEAP_EXIT_OK && getrandom(a->random, sizeof a->random, 0) != (ssize_t)sizeof a->random) {
        neap_cli_error("the system gives no random numbers: %s", strerror(errno));
        code = NEAP_EXIT_RESOURCE;
    }
    if (code != NEAP_EXIT_OK) {
        access_free(a);
        return code;
    }
    a->digests = neap_cli_alloc(a->keys.n + 1, sizeof *a->digests);
    for (size_t i = 0; i < a->keys.n; i++)
        neap_serve_hmac(a->random, sizeof a->random, a->keys.items[i], strlen(a->keys.items[i]), a->digests[i]);
    if (a->admin_key != NULL)
        neap_serve_hmac(a->random, sizeof a->random, a->admin_key, strlen(a->admin_key), a->admin_digest);
    *out = a;
    return NEAP_EXIT_OK;
}

static void access_use(neap_serve_config *c, neap_serve_access *a) {
    neap_serve_access *old = c->access;
    c->access = a;
    c->api_keys = a->keys;
    c->admin_key = a->admin_key;
    c->allowed_hosts = a->hosts;
    c->cors_origins = a->origins;
    access_free(old);
}

/* ---- addresses ---- */

int neap_serve_host(const neap_serve_config *c, int i, char *host, size_t capacity) {
    const char *s = c->host;
    while (*s != 0) {
        size_t n = strcspn(s, ",");
        const char *part = s;
        s += n + (s[n] == ',');
        while (n > 0 && part[0] == ' ') part++, n--;
        while (n > 0 && part[n - 1] == ' ') n--;
        if (n == 0 || i-- > 0) continue;
        if (n >= 2 && part[0] == '[' && part[n - 1] == ']') part++, n -= 2;
        snprintf(host, capacity, "%.*s", (int)(n < 4096 ? n : 4096), part);
        return 1;
    }
    return 0;
}

static int is_local_address(const char *host) {
    return strncmp(host, "unix:", 5) == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

static int check_hosts(const neap_serve_config *c, const neap_serve_access *a) {
    char host[256];
    int n = 0;
    for (; neap_serve_host(c, n, host, sizeof host); n++) {
        if (is_local_address(host) || a->keys.n > 0 || c->insecure_no_auth) continue;
        neap_cli_error("--host %s can be reached from other machines, and no API key is set: give --api-key-file FILE "
                       "(or --insecure-no-auth when something in front of neap checks who asks)",
                       host);
        return NEAP_EXIT_USAGE;
    }
    if (n > 0) return NEAP_EXIT_OK;
    neap_cli_error("--host: no address given");
    return NEAP_EXIT_USAGE;
}

/* ---- the whole ---- */

static int32_t on_unless_said(int32_t value) { return value < 0 ? 1 : value; }

static int32_t log_level(const neap_cli_options *o) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    for (int32_t i = 0; i < 4 && o->serve.log_level != NULL; i++) {
        if (strcmp(o->serve.log_level, names[i]) == 0) return i;
    }
    return o->verbose ? NEAP_LOG_DEBUG : o->quiet ? NEAP_LOG_ERROR : NEAP_LOG_INFO;
}

/* --alias, else the section that was called by name, else the directory's name: "models/valley/" -> "valley". Owned. */
static char *alias_of(const neap_cli_options *o) {
    if (o->serve.alias != NULL && o->serve.alias[0] != 0) return neap_cli_copy(o->serve.alias);
    if (o->section != NULL && strchr(o->section, '/') == NULL) return neap_cli_copy(o->section);
    char *name = neap_cli_copy(o->model);
    size_t n = strlen(name), begin;
    while (n > 0 && name[n - 1] == '/') n--;
    for (begin = n; begin > 0 && name[begin - 1] != '/';) begin--;
    if (n == begin) return name;
    memmove(name, name + begin, n - begin);
    name[n - begin] = 0;
    return name;
}

/* Everything but `access`. */
static void take(neap_serve_config *c, const neap_cli_options *o) {
    const neap_cli_serve_options *s = &o->serve;
    *c = (neap_serve_config){.cli = *o,
                             .host = s->host,
                             .port = (int32_t)s->port,
                             .insecure_no_auth = s->insecure_no_auth,
                             .metrics = on_unless_said(s->metrics),
                             .page = on_unless_said(s->page),
                             .prefix_cache = on_unless_said(s->prefix_cache),
                             .shared_prefix = s->shared_prefix,
                             .log_content = s->log_content,
                             .strict_model_name = s->strict_model_name,
                             .json_log = s->log_json,
                             .tls_cert = s->tls_cert,
                             .tls_key = s->tls_key,
                             .prefix_dir = s->prefix_dir != NULL && s->prefix_dir[0] != 0 ? s->prefix_dir : NULL,
                             .log_file = s->log_file != NULL && s->log_file[0] != 0 ? s->log_file : NULL,
                             .config_file = o->config,
                             .log_level = log_level(o)};
    c->cli.parallel = s->parallel;
    neap_serve_limits_fill(&c->limits, &s->limits);
}

static int check(const neap_serve_config *c, const neap_serve_access *a) {
    int code = neap_cli_settings_check(&c->cli);
    if (code == NEAP_EXIT_OK) code = check_hosts(c, a);
    if (code != NEAP_EXIT_OK) return code;
    if ((c->tls_cert == NULL) != (c->tls_key == NULL)) {
        neap_cli_error("--ssl-cert-file and --ssl-key-file belong together, one is missing");
        return NEAP_EXIT_USAGE;
    }
#ifndef NEAP_TLS
    if (c->tls_cert != NULL) {
        neap_cli_error("--ssl-cert-file: this build has no TLS (it was made without OpenSSL)");
        return NEAP_EXIT_USAGE;
    }
#endif
    if (!c->prefix_cache && c->prefix_dir != NULL) {
        neap_cli_error("--prefix-dir contradicts --no-cache-prompt");
        return NEAP_EXIT_USAGE;
    }
    return c->log_file != NULL ? neap_cli_check_overwrite(c->log_file) : NEAP_EXIT_OK;
}

int neap_serve_config_fill(neap_serve_config *c, const neap_cli_options *o) {
    neap_serve_access *a = NULL;
    take(c, o);
    int code = access_make(&a, &o->serve);
    if (code == NEAP_EXIT_OK) code = check(c, a);
    if (code != NEAP_EXIT_OK) {
        access_free(a);
        return code;
    }
    access_use(c, a);
    c->alias = alias_of(o);
    return NEAP_EXIT_OK;
}

void neap_serve_config_free(neap_serve_config *c) {
    access_free(c->access);
    c->access = NULL;
    free((char *)(uintptr_t)c->alias);
    c->alias = NULL;
}

/* ---- options of model and engine ---- */

void neap_serve_model_options(const neap_serve_config *c, const neap_model *m, neap_model_options *out,
                              neap_cli_text *dir) {
    const neap_cli_options *o = &c->cli;
    neap_model_info info = {.struct_size = sizeof info};
    neap_model_options_init(out);
    out->cpu = o->cpu;
    out->n_threads = (int32_t)o->threads;
    out->allow_nonfinite = o->allow_nonfinite;
    out->strict = o->strict;
    out->latent_norm_eps = (float)o->latent_norm_eps;
    out->log = neap_serve_log_library;
    out->cache_verify = o->cache_verify;
    uint64_t packed = m != NULL && neap_model_describe(m, &info) == NEAP_OK ? info.packed_bytes : 0;
    if (neap_cli_cache_wanted(o, packed)) out->cache_dir = neap_cli_cache_dir(o, dir);
}

/* Tokens that --cache-ram holds beyond those of the running sequences. */
static uint64_t tokens_of(const neap_serve_config *c, const neap_model *m, const neap_engine_options *e) {
    neap_memory memory = {.struct_size = sizeof memory};
    if (!c->prefix_cache || c->cli.serve.cache_ram == 0 || neap_engine_memory(m, e, &memory) != NEAP_OK) return 0;
    uint64_t bytes = memory.latent_bytes_per_token + memory.index_bytes_per_token;
    return bytes > 0 ? c->cli.serve.cache_ram / bytes : 0;
}

void neap_serve_engine_options(const neap_serve_config *c, const neap_model *m, neap_cli_settings *out) {
    const neap_cli_options *o = &c->cli;
    neap_engine_options *e = &out->engine;
    neap_model_info info = {.struct_size = sizeof info};
    neap_cli_settings_fill(out, o, m);
    e->log = neap_serve_log_library;
    e->seqs_max = (int32_t)o->parallel;
    e->context_max = (int32_t)o->ctx_size;
    if (e->context_max == 0) { /* as the engine would choose, said here because the queue follows from it */
        enum { USUAL = 8192 };
        int32_t most = neap_model_describe(m, &info) == NEAP_OK ? info.context_max : 0;
        e->context_max = most > 0 && most < USUAL ? most : USUAL;
    }
    /* On the engine's thread: a reload may write the others meanwhile. */
    neap_serve_limits limits = {.queue_requests = c->limits.queue_requests, .queue_tokens = c->limits.queue_tokens};
    neap_serve_limits_resolve(&limits, e->context_max);
    e->queue_max = (int32_t)limits.queue_requests;
    e->queue_tokens_max = (uint64_t)limits.queue_tokens;
    e->prefix_cache = c->prefix_cache;
    e->checkpoints_max = (int32_t)o->serve.checkpoints;
    e->checkpoint_spacing = (int32_t)o->serve.checkpoint_spacing;
    e->prefix_dir = c->prefix_dir;
    e->prefix_dir_bytes_max = o->serve.prefix_dir_size;
    e->optimistic = o->serve.optimistic;
    e->touch_memory = 1;
    uint64_t more = tokens_of(c, m, e);
    if (more > 0) e->cache_tokens_max = (uint64_t)e->seqs_max * (uint64_t)e->context_max + more;
}

/* ---- SIGHUP ---- */

static int is_changed(const char *a, const char *b) { return strcmp(a != NULL ? a : "", b != NULL ? b : "") != 0; }

/* What a running server takes over without a word; offsets in neap_cli_options. */
static int may_change(size_t at) {
#define SERVE_AT(field) offsetof(neap_cli_options, serve.field)
    static const size_t free_to_change[] = {
        SERVE_AT(api_keys),
        SERVE_AT(api_key_file),
        SERVE_AT(admin_key),
        SERVE_AT(admin_key_file),
        SERVE_AT(allowed_hosts),
        SERVE_AT(cors_origins),
        SERVE_AT(log_file),
        SERVE_AT(log_json),
        SERVE_AT(log_level),
        SERVE_AT(log_content),
        SERVE_AT(limits.queue_seconds),
        SERVE_AT(limits.drain_seconds),
        SERVE_AT(limits.ping_seconds),
        offsetof(neap_cli_options, verbose),
        offsetof(neap_cli_options, quiet),
    };
#undef SERVE_AT
    for (size_t i = 0; i < sizeof free_to_change / sizeof free_to_change[0]; i++) {
        if (free_to_change[i] == at) return 1;
    }
    return 0;
}

/* One line for every option that has another value now and needs a restart. */
static void say_unchanged(const neap_cli_options *now, const neap_cli_options *then) {
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        char a[256], b[256];
        if ((option->commands & 1u << NEAP_CLI_SERVE) == 0 || may_change(option->offset)) continue;
        neap_cli_option_show(now, option, a, sizeof a);
        neap_cli_option_show(then, option, b, sizeof b);
        if (is_changed(a, b))
            neap_serve_log(NEAP_LOG_WARN, "reload", "%s: another value needs a restart", neap_cli_option_name(option));
    }
}

static void take_again(neap_serve_config *c, const neap_serve_config *fresh) {
    c->log_content = fresh->log_content;
    c->log_file = fresh->log_file;
    c->log_level = fresh->log_level;
    c->json_log = fresh->json_log;
    c->limits.queue_seconds = fresh->limits.queue_seconds;
    c->limits.drain_seconds = fresh->limits.drain_seconds;
    c->limits.ping_seconds = fresh->limits.ping_seconds;
}

void neap_serve_reload(neap_server *s) {
    neap_serve_config *c = &s->config, fresh;
    neap_cli_options *again = neap_cli_alloc(1, sizeof *again);
    neap_serve_access *a = NULL;
    int code = neap_cli_options_parse(again, c->cli.argc, c->cli.argv);
    if (code == NEAP_EXIT_OK) code = access_make(&a, &again->serve);
    if (code == NEAP_EXIT_OK) {
        take(&fresh, again);
        fresh.host = c->host; /* stays: the keys must do for the addresses that are open */
        fresh.insecure_no_auth = c->insecure_no_auth;
        code = check(&fresh, a);
    }
    if (code != NEAP_EXIT_OK) {
        access_free(a);
        neap_cli_options_free(again);
        free(again);
        neap_serve_log(NEAP_LOG_ERROR, "reload", "settings are wrong, the old ones stay (standard error says what)");
        return;
    }
    take_again(c, &fresh);
    neap_serve_log_open(c);
    say_unchanged(&c->cli, again);
    a->again = again;
    access_use(c, a); /* frees the strings of the last reload: nothing may point into them any more */
    neap_serve_log(NEAP_LOG_INFO, "reload", "settings read again: %zu API keys, %zu allowed hosts, %zu origins",
                   c->api_keys.n, c->allowed_hosts.n, c->cors_origins.n);
}
