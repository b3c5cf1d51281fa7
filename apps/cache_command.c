/* `neap cache list|verify|prune`: what models and tuning have left on disk.
 *
 * The library knows the files (neap_cache_list, neap_cache_prune); here are the table, the JSON and the exit codes:
 * verify ends with 1 when an entry is damaged. Entries of another version are not damage. Called by main. Owns the
 * list while it is printed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "json_out.h"
#include "report.h"
#include "settings.h"
#include "terminal.h"

typedef struct listing {
    neap_cli_text rows; /* of the table, or members of the JSON array */
    int is_json;
    uint64_t n, n_bad, bytes;
} listing;

static const char *state(const neap_cache_entry *e) {
    return e->status == NEAP_OK            ? "ok"
           : e->status == NEAP_BAD_FILE    ? "damaged"
           : e->status == NEAP_UNSUPPORTED ? "other version"
                                           : neap_status_text(e->status);
}

static void date_text(int64_t seconds, char *text, size_t capacity) {
    time_t t = (time_t)seconds;
    struct tm parts;
    if (seconds <= 0 || localtime_r(&t, &parts) == NULL || strftime(text, capacity, "%Y-%m-%d %H:%M", &parts) == 0)
        snprintf(text, capacity, "-");
}

static void add_json(neap_cli_text *out, const neap_cache_entry *e) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "name", e->name);
    neap_cli_json_cstring(out, "kind", e->kind);
    neap_cli_json_cstring(out, "origin", e->origin);
    neap_cli_json_uint(out, "bytes", e->bytes);
    neap_cli_json_int(out, "written", e->written);
    neap_cli_json_int(out, "used", e->used);
    neap_cli_json_cstring(out, "status", neap_status_name(e->status));
    neap_cli_json_cstring(out, "text", e->text);
    neap_cli_json_close(out, '}');
}

static int take_entry(void *user, const neap_cache_entry *e) {
    listing *l = user;
    l->n++;
    l->n_bad += e->status != NEAP_OK && e->status != NEAP_UNSUPPORTED;
    l->bytes += e->bytes;
    if (l->is_json) {
        add_json(&l->rows, e);
        return 0;
    }
    char size[64], used[32];
    date_text(e->used, used, sizeof used);
    neap_cli_text_printf(&l->rows, "%-9s  %10s  %-16s  %-13s  %s  %s", e->kind,
                         neap_cli_bytes(e->bytes, size, sizeof size), used, state(e), e->name, e->origin);
    if (e->text[0] != 0) neap_cli_text_printf(&l->rows, "  (%s)", e->text);
    neap_cli_text_puts(&l->rows, "\n");
    return 0;
}

static void print(const neap_cli_options *o, const char *dir, listing *l) {
    neap_cli_text out = {0};
    char size[64];
    int is_prune = strcmp(o->task, "prune") == 0;
    if (o->json) {
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "directory", dir);
        neap_cli_json_uint(&out, "bytes", l->bytes);
        neap_cli_json_uint(&out, "bad", l->n_bad);
        if (is_prune) neap_cli_json_bool(&out, "dry_run", o->dry_run);
        neap_cli_json_open(&out, is_prune ? "removed" : "entries", '[');
        neap_cli_text_add(&out, neap_cli_text_string(&l->rows), l->rows.n);
        neap_cli_text_puts(&out, "]}\n");
    } else {
        if (l->n > 0)
            neap_cli_text_printf(&out, "%-9s  %10s  %-16s  %-13s  %s\n", "kind", "size", "last used", "state", "name");
        neap_cli_text_add(&out, neap_cli_text_string(&l->rows), l->rows.n);
        neap_cli_text_printf(&out, "%s: %s%" PRIu64 " entr%s, %s\n", dir,
                             !is_prune    ? ""
                             : o->dry_run ? "would remove "
                                          : "removed ",
                             l->n, l->n == 1 ? "y" : "ies", neap_cli_bytes(l->bytes, size, sizeof size));
    }
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

/* Flags that would do nothing are refused instead. */
static int check_flags(const neap_cli_options *o) {
    int is_about_pruning = o->all || o->dry_run || o->max_size > 0 || o->max_age >= 0;
    if (!is_about_pruning || strcmp(o->task, "prune") == 0) return NEAP_EXIT_OK;
    neap_cli_error("--max-size, --max-age, --all and --dry-run belong to neap cache prune");
    return NEAP_EXIT_USAGE;
}

int neap_cli_cache(const neap_cli_options *o) {
    neap_cli_text own = {0};
    listing l = {.is_json = o->json};
    neap_status status;
    int code = check_flags(o);
    const char *dir = neap_cli_cache_dir(o, &own);
    if (code == NEAP_EXIT_OK && dir == NULL) {
        neap_cli_error("no cache directory: neither --cache-dir, XDG_CACHE_HOME nor HOME is set");
        code = NEAP_EXIT_USAGE;
    }
    if (code == NEAP_EXIT_OK) {
        if (strcmp(o->task, "prune") == 0) {
            uint64_t most = o->all ? 0 : o->max_size > 0 ? o->max_size : UINT64_MAX;
            int64_t age = o->max_age < 0 ? -1 : (int64_t)(o->max_age * 86400);
            status = neap_cache_prune(dir, most, age, o->dry_run, take_entry, &l);
        } else {
            status = neap_cache_list(dir, strcmp(o->task, "verify") == 0, take_entry, &l);
        }
        code = neap_cli_failed(status, NEAP_CLI_RUNNING);
    }
    if (code == NEAP_EXIT_OK) {
        print(o, dir, &l);
        if (strcmp(o->task, "verify") == 0 && l.n_bad > 0) code = NEAP_EXIT_INTERNAL;
    }
    neap_cli_text_free(&l.rows);
    neap_cli_text_free(&own);
    return code;
}
