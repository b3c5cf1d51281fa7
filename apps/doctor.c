/* `neap doctor`: is everything as it should be? A line for each check, and what to do where it is not.
 *
 *   machine, threads, instruction sets, huge pages, quota, load     doctor_machine.c
 *   every kernel variant against scalar; the cache directory        doctor_machine.c
 *   memory, plan = eager, tuning                                    doctor_model.c
 *
 * A warning costs speed or space, a failure makes results wrong or impossible: only that gives exit code 1.
 * Called by main. Owns the report. */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

void neap_cli_doctor_say(neap_cli_doctor_state *d, const char *check, neap_cli_health health, const char *remedy,
                         const char *format, ...) {
    static const char *const words[] = {"ok", "warning", "FAILED"};
    static const char *const names[] = {"ok", "warning", "failed"};
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    d->n_warnings += health == NEAP_CLI_WARNING;
    d->n_failed += health == NEAP_CLI_FAILED;
    neap_cli_progress_clear();
    if (!d->options->json) {
        neap_cli_outf("%-12s  %-7s  %s%s%s\n", check, words[health], text, remedy != NULL ? "; " : "",
                      remedy != NULL ? remedy : "");
        return;
    }
    neap_cli_json_open(&d->json, NULL, '{');
    neap_cli_json_cstring(&d->json, "check", check);
    neap_cli_json_cstring(&d->json, "result", names[health]);
    neap_cli_json_cstring(&d->json, "text", text);
    neap_cli_json_cstring(&d->json, "remedy", remedy);
    neap_cli_json_close(&d->json, '}');
}

/* The bundled model: beside the program, in a directory above it, or where an installation keeps it. */
static const char *find_model(neap_cli_text *out) {
    static const char *const places[] = {"models/valley", "share/neap/models/valley"};
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return NULL;
    path[n] = 0;
    for (int up = 0; up < 4; up++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) return NULL;
        *slash = 0;
        for (int i = 0; i < 2; i++) {
            neap_cli_text_cut(out, 0);
            neap_cli_text_printf(out, "%s/%s", path, places[i]);
            size_t length = out->n;
            neap_cli_text_puts(out, "/config.json");
            int is_there = access(out->data, R_OK) == 0;
            neap_cli_text_cut(out, length);
            if (is_there) return out->data;
        }
    }
    return NULL;
}

int neap_cli_doctor(const neap_cli_options *o) {
    neap_cli_doctor_state d = {.options = o, .model = o->model};
    neap_cli_text path = {0};
    if (d.model == NULL) d.model = find_model(&path);
    if (o->json) neap_cli_json_open(&d.json, NULL, '{'), neap_cli_json_open(&d.json, "checks", '[');
    neap_cli_doctor_machine(&d);
    neap_cli_doctor_kernels(&d);
    neap_cli_doctor_model(&d);
    neap_cli_doctor_cache(&d);
    if (o->json) {
        neap_cli_json_close(&d.json, ']');
        neap_cli_json_int(&d.json, "warnings", d.n_warnings);
        neap_cli_json_int(&d.json, "failed", d.n_failed);
        neap_cli_text_puts(&d.json, "}\n");
        neap_cli_out(d.json.data, d.json.n);
    }
    neap_cli_text_free(&d.json);
    neap_cli_text_free(&path);
    return d.n_failed > 0 ? NEAP_EXIT_INTERNAL : NEAP_EXIT_OK;
}
