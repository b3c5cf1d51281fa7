/* Sampling when a request says nothing about it.
 *
 * A flag (or the environment, or the config file) wins, then the model's generation_config.json, then what clients of
 * the OpenAI API expect: temperature 1, top_p 1. The program's own default, greedy, is right for a command that is run
 * by hand and would surprise everybody who comes with an API.
 *
 * Called by params.c and /props. Keeps what the model's file says, read once. Source: the OpenAI API; Hugging Face's
 * generation_config.json. */
#include <pthread.h>
#include <stdio.h>

#include "params_inner.h"

enum { FILE_MAX_BYTES = 1 << 20 };

/* -1: the file does not say. */
typedef struct model_defaults {
    double temperature, top_p, top_k, min_p, repetition_penalty;
} model_defaults;
static model_defaults from_model = {-1, -1, -1, -1, -1};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char model_path[4096];

static double number(const json_t *root, const char *key, double min, double max) {
    const json_t *value = json_object_get(root, key);
    double x = json_is_number(value) ? json_number_value(value) : -1;
    return x >= min && x <= max ? x : -1;
}

static void read_once(void) {
    char path[sizeof model_path + 32];
    snprintf(path, sizeof path, "%s/generation_config.json", model_path);
    FILE *f = fopen(path, "re");
    if (f == NULL) return;
    neap_cli_text text = {0};
    char piece[4096];
    size_t n;
    while (text.n <= FILE_MAX_BYTES && (n = fread(piece, 1, sizeof piece, f)) > 0) neap_cli_text_add(&text, piece, n);
    fclose(f);
    json_t *root = text.n > 0 && text.n <= FILE_MAX_BYTES ? json_loadb(text.data, text.n, 0, NULL) : NULL;
    if (json_is_object(root)) {
        from_model.temperature = number(root, "temperature", 0, 2);
        from_model.top_p = number(root, "top_p", 1e-6, 1);
        from_model.top_k = number(root, "top_k", 0, INT32_MAX);
        from_model.min_p = number(root, "min_p", 0, 0.999999);
        from_model.repetition_penalty = number(root, "repetition_penalty", 0.001, 100);
        if (json_is_false(json_object_get(root, "do_sample"))) from_model.temperature = 0;
    }
    json_decref(root);
    neap_cli_text_free(&text);
}

static int is_said(const neap_cli_options *o, size_t offset) {
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if (option->offset == offset) return neap_cli_option_source(o, option) != NEAP_CLI_FROM_DEFAULT;
    }
    return 0;
}
#define SAID(field) is_said(o, offsetof(neap_cli_options, field))

static double choose(int said, double flag, double of_model, double standard) {
    return said ? flag : of_model >= 0 ? of_model : standard;
}

void neap_params_defaults(const neap_server *s, neap_sampling *out) {
    const neap_cli_options *o = &s->config.cli;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (model_path[0] == 0) snprintf(model_path, sizeof model_path, "%s", o->model != NULL ? o->model : ".");
    pthread_mutex_unlock(&lock);
    pthread_once(&once, read_once);
    out->temperature = (float)choose(SAID(temp), o->temp, from_model.temperature, 1);
    out->top_p = (float)choose(SAID(top_p), o->top_p, from_model.top_p, 1);
    out->top_k = (int32_t)choose(SAID(top_k), (double)o->top_k, from_model.top_k, 0);
    out->min_p = (float)choose(SAID(min_p), o->min_p, from_model.min_p, 0);
    out->repetition_penalty = (float)choose(SAID(repeat_penalty), o->repeat_penalty, from_model.repetition_penalty, 1);
    if (SAID(presence_penalty)) out->presence_penalty = (float)o->presence_penalty;
    if (SAID(frequency_penalty)) out->frequency_penalty = (float)o->frequency_penalty;
    if (SAID(repeat_last_n)) out->penalty_window = (int32_t)o->repeat_last_n;
}
