/* Opening a model and starting an engine for the commands; the first half of generate.h.
 *
 * Options become the library's option structs here and in settings.c, nowhere else. The context of a run is chosen
 * after the prompt is known: as much as prompt and answer need, so that a long document needs no -c and a short
 * question claims little memory.
 *
 * Called by all commands that load weights. Owns model and engine of a session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "encode.h"
#include "generate.h"
#include "report.h"
#include "terminal.h"
#include "tune.h"

static void fill_model_options(neap_model_options *m, const neap_cli_options *o) {
    neap_model_options_init(m);
    m->cpu = o->cpu;
    m->n_threads = (int32_t)o->threads;
    m->allow_nonfinite = o->allow_nonfinite;
    m->strict = o->strict;
    m->latent_norm_eps = (float)o->latent_norm_eps;
    m->log = neap_cli_log;
}

static void no_log(void *user, neap_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

/* The size that decides about the cache, from headers alone; 0: the real opening will say what is wrong. */
static uint64_t packed_bytes(const neap_cli_options *o) {
    neap_model *m = NULL;
    neap_model_options options;
    neap_model_info info = {.struct_size = sizeof info};
    fill_model_options(&options, o);
    options.describe_only = 1;
    options.log = no_log;
    uint64_t bytes = 0;
    if (neap_model_open(&m, o->model, &options) == NEAP_OK && neap_model_describe(m, &info) == NEAP_OK)
        bytes = info.packed_bytes;
    neap_model_close(m);
    return bytes;
}

/* The entry that a start has written: new since then, and the smallest one that has room for the model's weights. */
typedef struct written {
    int64_t since;
    uint64_t packed_bytes, bytes; /* bytes 0: there is none */
} written;

static int find_written(void *user, const neap_cache_entry *e) {
    written *w = user;
    int fits = strcmp(e->kind, "weights") == 0 && e->written >= w->since && e->bytes >= w->packed_bytes;
    if (fits && (w->bytes == 0 || e->bytes < w->bytes)) w->bytes = e->bytes;
    return 0;
}

/* Gigabytes do not appear on somebody's disk in silence. */
static void say_written(const neap_cli_session *s, const char *dir, int64_t since, uint64_t packed) {
    written w = {.since = since, .packed_bytes = packed};
    char size[64];
    if (s->options->quiet || neap_cache_list(dir, 0, find_written, &w) != NEAP_OK || w.bytes == 0) return;
    neap_cli_note("neap: packed weights kept in %s (%s); --no-cache turns this off", dir,
                  neap_cli_bytes(w.bytes, size, sizeof size));
}

int neap_cli_session_open(neap_cli_session *s, const neap_cli_options *o) {
    *s = (neap_cli_session){.options = o};
    int code = neap_cli_settings_check(o);
    if (code != NEAP_EXIT_OK) return code;
    double begin = neap_cli_seconds();
    neap_model_options options;
    neap_model_info info = {.struct_size = sizeof info};
    neap_cli_text dir = {0};
    int64_t since = (int64_t)time(NULL);
    fill_model_options(&options, o);
    options.progress = neap_cli_load_progress;
    int asks_size = o->cache < 0 && (o->cache_dir == NULL || o->cache_dir[0] == 0);
    if (neap_cli_cache_wanted(o, asks_size ? packed_bytes(o) : 0)) options.cache_dir = neap_cli_cache_dir(o, &dir);
    options.cache_verify = o->cache_verify;
    if (o->cache == 1 && options.cache_dir == NULL && !o->quiet)
        neap_cli_note("neap: no place for packed weights: neither --cache-dir, XDG_CACHE_HOME nor HOME is set");
    neap_status status = neap_model_open(&s->model, o->model, &options);
    neap_cli_progress_clear();
    if (status == NEAP_OK) {
        s->tokenizer = neap_model_tokenizer(s->model);
        s->load_seconds = neap_cli_seconds() - begin;
        s->is_from_cache = neap_model_describe(s->model, &info) == NEAP_OK && info.is_from_cache;
        if (options.cache_dir != NULL && !s->is_from_cache) say_written(s, options.cache_dir, since, info.packed_bytes);
        if (neap_cli_is_verbose())
            neap_cli_note("weights: %s in %.2f s", s->is_from_cache ? "read packed from the cache" : "packed",
                          s->load_seconds);
    }
    neap_cli_text_free(&dir);
    return neap_cli_failed(status, NEAP_CLI_OPENING);
}

int neap_cli_session_needs_tokenizer(const neap_cli_session *s) {
    if (s->tokenizer != NULL) return NEAP_EXIT_OK;
    neap_cli_error("%s has no tokenizer (tiktoken.model), so it cannot read or write text", s->options->model);
    return NEAP_EXIT_FILE;
}

/* ---- number formats: caches and activations ---- */

enum { TYPES = 3 };
typedef struct type_name {
    const char *name;
    int32_t type;
} type_name;
static const type_name cache_types[TYPES] = {
    {"f32", NEAP_CACHE_F32}, {"bf16", NEAP_CACHE_BF16}, {"fp8", NEAP_CACHE_FP8}};
static const type_name index_types[TYPES] = {
    {"f32", NEAP_INDEX_F32}, {"bf16", NEAP_INDEX_BF16}, {"mxfp8", NEAP_INDEX_MXFP8}};
static const type_name act_types[TYPES] = {{"f32", NEAP_ACT_F32}, {"int16", NEAP_ACT_INT16}, {"int8", NEAP_ACT_INT8}};

/* The option table lets no other names through. */
static int32_t type_of(const type_name *types, const char *name, int32_t standard) {
    for (size_t i = 0; name != NULL && i < TYPES; i++) {
        if (strcmp(name, types[i].name) == 0) return types[i].type;
    }
    return standard;
}
static const char *name_of(const type_name *types, int32_t type, const char *standard) {
    for (size_t i = 0; i < TYPES; i++) {
        if (types[i].type == type) return types[i].name;
    }
    return standard;
}

void neap_cli_number_types(const neap_cli_options *o, neap_engine_options *e) {
    int is_exact = o->command == NEAP_CLI_LOGITS || o->command == NEAP_CLI_VERIFY;
    e->cache_type = type_of(cache_types, o->cache_type, is_exact ? NEAP_CACHE_F32 : NEAP_CACHE_BF16);
    e->index_type = type_of(index_types, o->index_type, is_exact ? NEAP_INDEX_F32 : NEAP_INDEX_BF16);
    e->act_type = type_of(act_types, o->act, is_exact ? NEAP_ACT_F32 : NEAP_ACT_INT16);
    e->moe_act_type = type_of(act_types, o->moe_act, e->act_type);
}

const char *neap_cli_cache_name(int32_t cache_type) { return name_of(cache_types, cache_type, "bf16"); }
const char *neap_cli_index_name(int32_t index_type) { return name_of(index_types, index_type, "bf16"); }
const char *neap_cli_act_name(int32_t act_type) { return name_of(act_types, act_type, "int16"); }

void neap_cli_acts(char *text, size_t capacity, const neap_engine_options *e, const neap_model_info *info) {
    const char *act = neap_cli_act_name(e->act_type), *moe = neap_cli_act_name(e->moe_act_type);
    if (!info->has_int_others && !info->has_int_experts)
        snprintf(text, capacity, "f32 (no weights are INT8 or MXFP4)");
    else if (!info->has_int_others)
        snprintf(text, capacity, "%s for routed experts, f32 for the rest (not INT8 or MXFP4)", moe);
    else if (info->has_int_experts && e->act_type != e->moe_act_type)
        snprintf(text, capacity, "%s, %s for routed experts", act, moe);
    else
        snprintf(text, capacity, "%s", act);
}

/* Lines of the load log: what products multiply with, what is kept of every token, and how. */
static void say_types(const neap_cli_session *s, const neap_engine_options *e) {
    neap_model_info info = {.struct_size = sizeof info};
    neap_memory memory = {.struct_size = sizeof memory};
    if (!neap_cli_is_verbose() || neap_model_describe(s->model, &info) != NEAP_OK ||
        neap_engine_memory(s->model, e, &memory) != NEAP_OK)
        return;
    char acts[96];
    neap_cli_acts(acts, sizeof acts, e, &info);
    neap_cli_note("activations: %s", acts);
    if (info.n_mla_layers == 0) {
        neap_cli_note("caches: none (the model has no MLA layers)");
        return;
    }
    char index[96] = "no index keys";
    if (info.n_index_layers > 0)
        snprintf(index, sizeof index, "index keys %s, %llu bytes", neap_cli_index_name(e->index_type),
                 (unsigned long long)memory.index_bytes_per_token);
    neap_cli_note("caches of a token: latents %s, %llu bytes; %s", neap_cli_cache_name(e->cache_type),
                  (unsigned long long)memory.latent_bytes_per_token, index);
}

/* How many run: exact up to the number of usable cores, above it as many as affinity and quota allow. */
static void say_threads(const neap_engine_options *e) {
    int32_t usable = neap_default_threads(), n = e->n_threads, batch = e->n_threads_batch;
    if (n == 0) n = e->tuning->n_threads;
    if (n == 0) n = usable;
    if (batch == 0) batch = e->tuning->n_threads_batch;
    if (batch == 0) batch = n;
    neap_cli_note("threads: %s%d for decoding, %s%d for prompts", n > usable && !e->oversubscribe ? "at most " : "", n,
                  batch > usable && !e->oversubscribe ? "at most " : "", batch);
}

static int start(neap_cli_session *s, int32_t context, int32_t n_seqs, int enable_taps) {
    neap_engine_options *e = &s->settings.engine;
    char text[256];
    neap_cli_settings_fill(&s->settings, s->options, s->model);
    neap_cli_tune_first(s);
    e->seqs_max = n_seqs;
    e->context_max = context;
    e->enable_taps = enable_taps;
    neap_cli_watch_prepare(s->watch, e);
    if (s->engine == NULL) say_types(s, e);
    if (s->engine == NULL && neap_cli_is_verbose()) {
        neap_cli_tuning_text(e->tuning, text, sizeof text);
        neap_cli_note("steps: %s, %s (%s)", e->plan == NEAP_PLAN_EAGER ? "eager" : "plans", text,
                      s->settings.is_tuned ? "tuned" : "not tuned");
        say_threads(e);
    }
    neap_engine_destroy(s->engine);
    s->engine = NULL;
    s->context = context;
    return neap_cli_failed(neap_engine_create(&s->engine, s->model, e), NEAP_CLI_RUNNING);
}

neap_status neap_cli_session_step(neap_cli_session *s) {
    neap_status status = neap_step(s->engine);
    if (status != NEAP_OK || s->watch == NULL) return status;
    return neap_cli_watch_step(s->watch, s->engine);
}

int neap_cli_session_start(neap_cli_session *s, int32_t context, int enable_taps) {
    return start(s, context, 1, enable_taps);
}

int neap_cli_session_start_many(neap_cli_session *s, int32_t context, int32_t n_seqs) {
    return start(s, context, n_seqs, 0);
}

void neap_cli_session_close(neap_cli_session *s) {
    neap_engine_destroy(s->engine);
    neap_model_close(s->model);
    *s = (neap_cli_session){0};
}

int32_t neap_cli_session_context(const neap_cli_session *s, size_t n_prompt) {
    enum { ANSWER = 16384, USUAL = 8192 };
    const neap_cli_options *o = s->options;
    if (o->ctx_size > 0) return (int32_t)o->ctx_size;
    neap_model_info info = {.struct_size = sizeof info};
    int64_t most = neap_model_describe(s->model, &info) == NEAP_OK && info.context_max > 0 ? info.context_max : USUAL;
    int64_t prompt = n_prompt > INT32_MAX / 2 ? INT32_MAX / 2 : (int64_t)n_prompt;
    int64_t need = prompt + (o->predict >= 0 ? o->predict : ANSWER) + 1;
    return (int32_t)(need < most ? need : most);
}

/* ---- tokens ---- */

int neap_cli_tokenize_text(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags, int32_t **tokens,
                           size_t *n_tokens) {
    return neap_cli_failed(neap_cli_text_to_tokens(t, text, n, flags, tokens, n_tokens), NEAP_CLI_RUNNING);
}

int neap_cli_encode_chat(const neap_tokenizer *t, const char *json, size_t n, int32_t **tokens, size_t *n_tokens) {
    return neap_cli_failed(neap_cli_chat_to_tokens(t, json, n, tokens, n_tokens, NULL, NULL), NEAP_CLI_RUNNING);
}

int neap_cli_has_chat(const neap_tokenizer *t) { return t != NULL && strcmp(neap_chat_format(t), "none") != 0; }
