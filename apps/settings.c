/* From options to the library's structs; see settings.h.
 *
 * Precedence: what the user said, then the record that `neap tune` left in the cache directory, then the library's
 * defaults. --streams is a small language of its own: "default", "off", or a list such as
 * "index=team,shared=off,mixed=1,prefetch=256,tile=4"; what the list leaves out stays as it was.
 *
 * A cache of packed weights takes gigabytes of the user's disk, so it is used where it pays: for models from 256 MiB
 * on, or when the user asks for it. Called by every command that starts an engine. Owns nothing. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "report.h"
#include "terminal.h"

/* ---- --streams ---- */

static void put_use(neap_tuning *t, uint32_t use, const char *how) {
    t->beside &= ~use;
    t->streams &= ~use;
    if (how[0] == 'b') t->beside |= use;
    if (how[0] == 't') t->streams |= use;
}

static int read_number(const char *text, long least, long most, int32_t *out) {
    char *end = NULL;
    long value = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;
    if (value < least || value > most || *end != 0) return 0;
    *out = (int32_t)value;
    return 1;
}

static int is_how(const char *value) {
    return strcmp(value, "beside") == 0 || strcmp(value, "team") == 0 || strcmp(value, "off") == 0;
}

/* One "name=value"; 0: not understood. */
static int take_item(neap_tuning *t, const char *name, const char *value) {
    int is_off = strcmp(value, "off") == 0;
    if (strcmp(name, "index") == 0 || strcmp(name, "shared") == 0) {
        if (!is_how(value)) return 0;
        put_use(t, name[0] == 'i' ? NEAP_USE_INDEX : NEAP_USE_SHARED, value);
        return 1;
    }
    if (strcmp(name, "prefetch") == 0) {
        if (is_off) t->prefetch_kib = 0;
        return is_off || read_number(value, 0, 65536, &t->prefetch_kib);
    }
    if (strcmp(name, "tile") == 0) return read_number(value, 1, 8, &t->tile_rows);
    if (strcmp(name, "mixed") != 0) return 0;
    put_use(t, NEAP_USE_MIXED, is_off ? "off" : "team");
    return is_off || strcmp(value, "on") == 0 || read_number(value, 1, 1023, &t->mixed_workers);
}

static int take_streams(neap_tuning *t, const char *text) {
    if (strcmp(text, "default") == 0 || strcmp(text, "off") == 0) {
        neap_tuning standard;
        neap_tuning_init(&standard);
        int is_off = text[0] == 'o';
        t->beside = is_off ? 0 : standard.beside;
        t->streams = is_off ? 0 : standard.streams;
        t->prefetch_kib = is_off ? 0 : standard.prefetch_kib;
        t->mixed_workers = standard.mixed_workers;
        t->tile_rows = standard.tile_rows;
        return 1;
    }
    while (1) {
        char item[64];
        size_t n = strcspn(text, ",");
        if (n >= sizeof item) return 0;
        memcpy(item, text, n);
        item[n] = 0;
        char *value = strchr(item, '=');
        if (value == NULL) return 0;
        *value++ = 0;
        if (!take_item(t, item, value)) return 0;
        if (text[n] == 0) return 1;
        text += n + 1;
    }
}

int neap_cli_settings_check(const neap_cli_options *o) {
    neap_tuning t;
    neap_tuning_init(&t);
    if (o->streams == NULL || take_streams(&t, o->streams)) return NEAP_EXIT_OK;
    neap_cli_error("--streams: \"%s\" is not default, off, or a list of index=beside|team|off, shared=beside|team|off, "
                   "mixed=on|off|N, prefetch=KIB|off, tile=1..8",
                   o->streams);
    return NEAP_EXIT_USAGE;
}

/* ---- engine options ---- */

static void take_record(neap_cli_settings *s, const neap_cli_options *o, const neap_model *m) {
    neap_cli_text dir = {0};
    neap_tuning found;
    neap_tuning_init(&found);
    const char *path = neap_cli_cache_dir(o, &dir);
    if (path != NULL && neap_tuning_load(path, m, &s->engine, &found) == NEAP_OK) {
        s->tuning = found;
        s->is_tuned = 1;
    }
    neap_cli_text_free(&dir);
}

void neap_cli_settings_fill(neap_cli_settings *s, const neap_cli_options *o, const neap_model *m) {
    *s = (neap_cli_settings){0};
    neap_engine_options *e = &s->engine;
    neap_engine_options_init(e);
    neap_tuning_init(&s->tuning);
    e->n_threads = (int32_t)o->threads;
    e->n_threads_batch = (int32_t)o->threads_batch;
    e->oversubscribe = o->oversubscribe;
    e->batch_tokens_max = (int32_t)o->batch_size;
    e->memory_max = o->memory_max;
    e->plan = o->plan != NULL && strcmp(o->plan, "off") == 0 ? NEAP_PLAN_EAGER : NEAP_PLAN_DEFAULT;
    e->log = neap_cli_log;
    neap_cli_number_types(o, e);
    if (o->tuning != 0) take_record(s, o, m);
    if (o->few_rows >= 0) s->tuning.few_rows = (int32_t)o->few_rows;
    if (o->streams != NULL) (void)take_streams(&s->tuning, o->streams); /* checked before */
    if (o->pin != NULL)
        s->tuning.pinning = strcmp(o->pin, "off") == 0     ? NEAP_PIN_OFF
                            : strcmp(o->pin, "start") == 0 ? NEAP_PIN_START
                                                           : NEAP_PIN_STAY;
    if (e->n_threads > 0) s->tuning.n_threads_batch = 0; /* what -t says counts for prompts too, unless -tb says more */
    e->tuning = &s->tuning;
}

static const char *how_text(const neap_tuning *t, uint32_t use) {
    return (t->streams & use) != 0 ? "team" : (t->beside & use) != 0 ? "beside" : "off";
}

void neap_cli_tuning_text(const neap_tuning *t, char *text, size_t capacity) {
    static const char *const pins[] = {"default", "off", "start", "stay"};
    char mixed[32] = "off", threads[64] = "";
    if ((t->streams & NEAP_USE_MIXED) != 0) snprintf(mixed, sizeof mixed, "%d", t->mixed_workers);
    if (t->n_threads > 0)
        snprintf(threads, sizeof threads, "threads %d, for prompts %d, ", t->n_threads,
                 t->n_threads_batch > 0 ? t->n_threads_batch : t->n_threads);
    snprintf(text, capacity, "%sfew-rows %d, tile %d, index %s, shared %s, mixed %s, prefetch %d KiB, pin %s", threads,
             t->few_rows, t->tile_rows, how_text(t, NEAP_USE_INDEX), how_text(t, NEAP_USE_SHARED), mixed,
             t->prefetch_kib, pins[t->pinning >= 0 && t->pinning <= NEAP_PIN_STAY ? t->pinning : 0]);
}

/* ---- cache directory ---- */

const char *neap_cli_cache_dir(const neap_cli_options *o, neap_cli_text *dir) {
    if (o->cache_dir != NULL && o->cache_dir[0] != 0) return o->cache_dir;
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg != NULL && xdg[0] == '/') /* a relative one does not count */
        neap_cli_text_printf(dir, "%s/neap", xdg);
    else if (home != NULL && home[0] == '/')
        neap_cli_text_printf(dir, "%s/.cache/neap", home);
    else
        return NULL;
    return dir->data;
}

int neap_cli_cache_wanted(const neap_cli_options *o, uint64_t packed_bytes) {
    if (o->cache >= 0) return o->cache;
    return (o->cache_dir != NULL && o->cache_dir[0] != 0) || packed_bytes >= (uint64_t)NEAP_CLI_CACHE_LEAST;
}
