/* `neap tune`: the fastest settings for a model on this machine, kept for later starts.
 *
 * The library measures (neap_tune) and keeps the record (neap_tuning_save). What it gains is measured once more here,
 * by two engines that take turns: the defaults and what was found. `--tune SECONDS` of run and chat does the first part
 * before the first token where there is no record. Called by main and session.c. Owns the engines it compares. */
#include "tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "commands.h"
#include "compute.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

enum { PROMPT = 64, BLOCK = 16, ROUNDS = 5 };

/* Times of the defaults over times of what was found; 0: not measured. */
typedef struct gain {
    double decode, prompt;
} gain;

static void progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    neap_cli_progress(what, "ms", done, total, 0);
}

static neap_status tune(const neap_model *m, const neap_engine_options *e, double seconds, neap_tuning *out) {
    neap_tuning_init(out);
    neap_status status = neap_tune(m, e, seconds, out, progress, NULL);
    neap_cli_progress_clear();
    return status;
}

/* ---- --tune ---- */

void neap_cli_tune_first(neap_cli_session *s) {
    const neap_cli_options *o = s->options;
    if (o->tune_seconds <= 0 || s->settings.is_tuned) return;
    neap_cli_text own = {0};
    neap_tuning found;
    char text[256];
    const char *dir = neap_cli_cache_dir(o, &own);
    neap_status status = tune(s->model, &s->settings.engine, o->tune_seconds, &found);
    if (status == NEAP_OK && dir != NULL) status = neap_tuning_save(dir, s->model, &s->settings.engine, &found);
    if (status != NEAP_OK && !o->quiet) neap_cli_note("neap: tuning: %s", neap_last_error());
    if (status == NEAP_OK) neap_cli_settings_fill(&s->settings, o, s->model); /* the record, under what was said */
    neap_cli_tuning_text(&found, text, sizeof text);
    if (status == NEAP_OK && !o->quiet) neap_cli_note("neap: tuned for this machine: %s", text);
    neap_cli_text_free(&own);
}

/* ---- gain ---- */

/* Seconds of a token in the block; *first: of the first one from the beginning, prompt included. */
static int block(neap_cli_session *s, double *token, double *first) {
    int32_t tokens[PROMPT];
    neap_model_info info = {.struct_size = sizeof info};
    neap_request q;
    neap_seq *seq = NULL;
    neap_event event;
    int code = neap_cli_failed(neap_model_describe(s->model, &info), NEAP_CLI_RUNNING);
    for (int32_t i = 0; i < PROMPT && code == NEAP_EXIT_OK; i++) tokens[i] = (i * 7919 + 3) % info.vocab;
    neap_request_init(&q);
    q.tokens = tokens;
    q.n_tokens = PROMPT;
    q.max_tokens = BLOCK + 1;
    q.ignore_eos = 1;
    double begin = neap_cli_seconds(), since = begin;
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_submit(s->engine, &q, &seq), NEAP_CLI_RUNNING);
    for (int n = 0; code == NEAP_EXIT_OK && n <= BLOCK;) {
        code = neap_cli_next_event(s, &event);
        if (code != NEAP_EXIT_OK || event.kind == NEAP_EVENT_DONE) break;
        if (event.kind != NEAP_EVENT_TOKEN) continue;
        double now = neap_cli_seconds();
        if (n++ == 0) *first = now - begin, since = now;
        *token = (now - since) / BLOCK;
    }
    neap_seq_free(seq);
    return code;
}

static int find_gain(const neap_cli_session *s, const neap_engine_options *e, const neap_tuning *found, gain *out) {
    neap_tuning standard;
    neap_cli_session sides[2] = {*s, *s};
    double token[2][ROUNDS], first[2][ROUNDS];
    int code = NEAP_EXIT_OK;
    neap_tuning_init(&standard);
    for (int i = 0; i < 2 && code == NEAP_EXIT_OK; i++) {
        neap_engine_options one = *e;
        one.tuning = i == 0 ? &standard : found;
        one.context_max = PROMPT + BLOCK + 2;
        sides[i].engine = NULL;
        code = neap_cli_failed(neap_engine_create(&sides[i].engine, s->model, &one), NEAP_CLI_RUNNING);
    }
    for (int k = -2; k < 2 * ROUNDS && code == NEAP_EXIT_OK; k++) { /* a round to be warm */
        int side = k & 1, round = k < 0 ? 0 : k / 2;
        code = block(&sides[side], &token[side][round], &first[side][round]);
    }
    if (code == NEAP_EXIT_OK) {
        out->decode = neap_cli_median(token[0], ROUNDS) / neap_cli_median(token[1], ROUNDS);
        out->prompt = neap_cli_median(first[0], ROUNDS) / neap_cli_median(first[1], ROUNDS);
    }
    for (int i = 0; i < 2; i++) neap_engine_destroy(sides[i].engine);
    return code;
}

/* ---- the command ---- */

static void json_tuning(const neap_tuning *t, neap_cli_text *out) {
    static const char *const pins[] = {"default", "off", "start", "stay"};
    neap_cli_json_open(out, "tuning", '{');
    neap_cli_json_int(out, "few_rows", t->few_rows);
    neap_cli_json_int(out, "tile_rows", t->tile_rows);
    neap_cli_json_int(out, "prefetch_kib", t->prefetch_kib);
    neap_cli_json_int(out, "mixed_workers", t->mixed_workers);
    neap_cli_json_int(out, "beside", t->beside);
    neap_cli_json_int(out, "streams", t->streams);
    neap_cli_json_cstring(out, "pin", t->pinning >= 0 && t->pinning <= NEAP_PIN_STAY ? pins[t->pinning] : "");
    neap_cli_json_int(out, "threads", t->n_threads);
    neap_cli_json_int(out, "threads_batch", t->n_threads_batch);
    neap_cli_json_close(out, '}');
}

/* dir: where the record went; NULL: nowhere. */
static void print(const neap_cli_options *o, const neap_tuning *found, const gain *g, const char *dir) {
    neap_cli_text out = {0};
    neap_tuning standard;
    char text[256];
    neap_tuning_init(&standard);
    if (o->json) {
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "model", o->model);
        json_tuning(found, &out);
        neap_cli_json_real(&out, "decode_gain", g->decode, 4);
        neap_cli_json_real(&out, "prompt_gain", g->prompt, 4);
        neap_cli_json_cstring(&out, "kept_in", dir);
        neap_cli_text_puts(&out, "}\n");
    } else {
        neap_cli_tuning_text(&standard, text, sizeof text);
        neap_cli_text_printf(&out, "defaults  %s\n", text);
        neap_cli_tuning_text(found, text, sizeof text);
        neap_cli_text_printf(&out, "found     %s\n", text);
        neap_cli_text_printf(&out, "gain      decode %.3f x, prompt %.3f x (time of the defaults / time of these)\n",
                             g->decode, g->prompt);
        if (dir != NULL)
            neap_cli_text_printf(&out, "kept in   %s: later starts on this machine use it, --no-tuning does not\n",
                                 dir);
        else
            neap_cli_text_puts(&out, "not kept\n");
        neap_cli_text_puts(&out, "No result changes by a bit, whatever is set.\n");
    }
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

int neap_cli_tune(const neap_cli_options *o) {
    neap_cli_session s = {0};
    neap_cli_settings settings;
    neap_cli_text own = {0};
    neap_tuning found;
    gain g = {0};
    neap_cli_options dry = *o;
    const char *dir = o->dry_run ? NULL : neap_cli_cache_dir(o, &own);
    if (o->dry_run) dry.cache = 0; /* nothing is left behind, no packed weights either */
    int code = NEAP_EXIT_OK;
    if (dir == NULL && !o->dry_run) {
        neap_cli_error("no cache directory: neither --cache-dir, XDG_CACHE_HOME nor HOME is set");
        code = NEAP_EXIT_USAGE;
    }
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&s, &dry);
    if (code == NEAP_EXIT_OK) {
        neap_cli_settings_fill(&settings, o, s.model);
        neap_tuning_init(&settings.tuning); /* an earlier record does not decide where the search begins */
        code = neap_cli_failed(tune(s.model, &settings.engine, o->seconds, &found), NEAP_CLI_RUNNING);
    }
    if (code == NEAP_EXIT_OK) code = find_gain(&s, &settings.engine, &found, &g);
    if (code == NEAP_EXIT_OK && dir != NULL)
        code = neap_cli_failed(neap_tuning_save(dir, s.model, &settings.engine, &found), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) print(o, &found, &g, dir);
    neap_cli_session_close(&s);
    neap_cli_text_free(&own);
    return code;
}
