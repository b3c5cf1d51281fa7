/* Settings of the server beside neap_serve_config itself: how they are made, read again, and who may ask. */
#ifndef NEAP_APPS_SERVER_SERVE_CONFIG_H
#define NEAP_APPS_SERVER_SERVE_CONFIG_H

#include "../settings.h"
#include "serve.h"

/* Fills c from parsed options and reads the files of keys; says what is wrong and returns an exit code. Refuses to
 * listen beyond this machine without a key. Frees nothing of o, which must outlive c. */
int neap_serve_config_fill(neap_serve_config *c, const neap_cli_options *o);
void neap_serve_config_free(neap_serve_config *c);

/* Address i of --host, without brackets, "unix:PATH" whole; 0: there is none. */
int neap_serve_host(const neap_serve_config *c, int i, char *host, size_t capacity);

/* Model options; their strings live as long as c, cache_dir as long as dir. m: opened with describe_only, to decide
 * about the cache. */
void neap_serve_model_options(const neap_serve_config *c, const neap_model *m, neap_model_options *out,
                              neap_cli_text *dir);
/* Engine options with everything of serve: sequences, context, queue, prefix cache. m may be describe_only. */
void neap_serve_engine_options(const neap_serve_config *c, const neap_model *m, neap_cli_settings *out);

/* SIGHUP, on the loop thread: reads flags, environment and file again. Keys, hosts, origins, log settings, time-outs of
 * the queue, of draining and of pings change; for the rest a line of the log says that it needs a restart.
 * When something is wrong all stays as it was. What other threads read (config.cli, the limits of parameters and
 * grammars) never changes. */
void neap_serve_reload(neap_server *s);

/* serve_limits.c */
void neap_serve_limits_fill(neap_serve_limits *out, const neap_cli_serve_limits *from);
/* Limits that follow from the context get their numbers. */
void neap_serve_limits_resolve(neap_serve_limits *l, int32_t context_max);
void neap_serve_limits_show(const neap_cli_options *o); /* --show-limits, on standard output */

/* serve_check.c: --check; exit code 0: ready. */
int neap_serve_check(const char *url);

/* ---- who may ask: what config.api_keys and the like point into, and digests of the keys ---- */
enum { NEAP_SERVE_DIGEST = 32 };
typedef struct neap_serve_access {
    neap_cli_options *again; /* options of a reload; NULL: those of the start, which are not owned */
    neap_cli_text key_text, admin_text;
    neap_cli_strings keys, hosts, origins;
    char *host_text, *origin_text;
    uint8_t random[NEAP_SERVE_DIGEST]; /* the key under which keys are compared */
    uint8_t (*digests)[NEAP_SERVE_DIGEST];
    uint8_t admin_digest[NEAP_SERVE_DIGEST];
    const char *admin_key;
} neap_serve_access;

#endif
