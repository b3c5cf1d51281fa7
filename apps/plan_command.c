/* `neap info --plan`: the phases of one step, and with --cores what they would take on more cores.
 *
 * The step is described without weights: `--batch` sequences that hold `--depth` tokens each and advance by
 * `--plan-rows`. The prediction (plan_predict.c) loads the model and measures. Called by info.c. Owns nothing. */
#include <stdio.h>

#include "commands.h"
#include "plan_list.h"
#include "plan_predict.h"
#include "report.h"
#include "settings.h"
#include "terminal.h"

static void step_text(const neap_cli_options *o, char *text, size_t capacity) {
    char what[64] = "decodes one token";
    if (o->plan_rows > 1) snprintf(what, sizeof what, "reads %lld tokens of a prompt", (long long)o->plan_rows);
    snprintf(text, capacity, "%lld sequence%s with %lld tokens each: a step that %s", (long long)o->plan_batch,
             o->plan_batch == 1 ? "" : "s", (long long)o->plan_depth, what);
}

static void show(const neap_cli_options *o, const neap_cli_plan *p, const neap_cli_prediction *prediction) {
    neap_cli_text out = {0};
    char text[160];
    step_text(o, text, sizeof text);
    if (o->json) {
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "model", o->model);
        neap_cli_json_int(&out, "sequences", o->plan_batch);
        neap_cli_json_int(&out, "rows", o->plan_rows);
        neap_cli_json_int(&out, "depth", o->plan_depth);
        neap_cli_plan_json(p, &out);
        if (prediction != NULL) neap_cli_prediction_json(prediction, &out);
        neap_cli_text_puts(&out, "}\n");
    } else {
        neap_cli_text_printf(&out, "%s: %s\n", o->model, text);
        neap_cli_plan_table(p, &out);
        if (prediction != NULL) neap_cli_prediction_table(prediction, &out);
    }
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

static int draw(const neap_cli_options *o, const neap_cli_plan *p) {
    neap_cli_text out = {0};
    neap_cli_plan_dot(p, &out);
    int code = neap_cli_write_file(o->plan_dot, out.data, out.n);
    neap_cli_text_free(&out);
    return code;
}

int neap_cli_plan_show(const neap_cli_options *o, const neap_model *m) {
    neap_cli_settings settings;
    neap_cli_plan p = {0};
    neap_cli_prediction prediction;
    int64_t rows = o->plan_batch * o->plan_rows, context = o->plan_depth + o->plan_rows + 1;
    if (context > INT32_MAX / 2 || rows > 65536) {
        neap_cli_error("--plan: %lld tokens in a step and a context of %lld are too many", (long long)rows,
                       (long long)context);
        return NEAP_EXIT_USAGE;
    }
    if (o->cores > 0 && o->plan_rows > 1) {
        neap_cli_error("--cores predicts a step that decodes, without --plan-rows");
        return NEAP_EXIT_USAGE;
    }
    neap_cli_settings_fill(&settings, o, m);
    neap_engine_options *e = &settings.engine;
    e->seqs_max = (int32_t)o->plan_batch;
    e->context_max = (int32_t)context;
    if (e->batch_tokens_max < rows) e->batch_tokens_max = (int32_t)rows;
    int code = neap_cli_plan_read(&p, m, e, e->seqs_max, (int32_t)o->plan_rows, o->plan_depth);
    if (code == NEAP_EXIT_OK && o->plan_dot != NULL) code = draw(o, &p);
    if (code == NEAP_EXIT_OK && o->cores > 0) code = neap_cli_predict(&prediction, o, e, &p);
    if (code == NEAP_EXIT_OK) show(o, &p, o->cores > 0 ? &prediction : NULL);
    neap_cli_plan_free(&p);
    return code;
}
