/* `neap info`: what a model is, what it needs on this machine, which kernels it will use.
 *
 * The model is opened with describe_only: config and tensor headers, no weights. The memory table is the
 * engine's own estimate for the same options that a run would use. Called by main. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "generate.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

/* One row: name padded, then the text. */
static void row(neap_cli_text *out, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void row(neap_cli_text *out, const char *name, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    neap_cli_text_printf(out, "%-18s%s\n", name, line);
}

static int cpu_text(const char *cpu, neap_cli_text *out) {
    size_t needed = 0;
    char text[1024];
    neap_status status = neap_cpu_describe(cpu, text, sizeof text, &needed);
    if (status != NEAP_OK) return neap_cli_failed(status, NEAP_CLI_RUNNING);
    neap_cli_text_puts(out, text);
    return NEAP_EXIT_OK;
}

static void model_rows(neap_cli_text *out, const neap_cli_options *o, const neap_model_info *i, const neap_tokenizer *t,
                       const neap_engine_options *e) {
    char a[64], b[64];
    row(out, "model", "%s", o->model);
    row(out, "family", "%s (model_type %s)", i->family, i->model_type);
    neap_cli_text layers = {0};
    neap_cli_text_printf(&layers, "%d:", i->n_layers);
    if (i->n_kda_layers > 0) neap_cli_text_printf(&layers, " %d KDA,", i->n_kda_layers);
    neap_cli_text_printf(&layers, " %d MLA", i->n_mla_layers);
    if (i->n_index_layers > 0)
        neap_cli_text_printf(&layers, " (%d with an indexer, top %d)", i->n_index_layers, i->index_topk);
    neap_cli_text_printf(&layers, "; %d dense, %d expert", i->n_dense_layers, i->n_moe_layers);
    if (i->n_mtp_layers > 0) neap_cli_text_printf(&layers, "; %d draft (not used yet)", i->n_mtp_layers);
    row(out, "layers", "%s", layers.data);
    neap_cli_text_free(&layers);
    if (i->attnres_block > 0) row(out, "residuals", "attention over blocks of %d layers", i->attnres_block);
    if (i->n_experts > 0) row(out, "experts", "%d, %d for each token", i->n_experts, i->n_experts_used);
    row(out, "width", "%d", i->width);
    row(out, "vocabulary", "%d", i->vocab);
    row(out, "context", "%d tokens at most", i->context_max);
    row(out, "parameters", "%s, %s for each token", neap_cli_count(i->parameters, a, sizeof a),
        neap_cli_count(i->parameters_active, b, sizeof b));
    row(out, "weights", "%s, %s in files", i->weight_formats, neap_cli_bytes(i->file_bytes, a, sizeof a));
    char acts[96];
    neap_cli_acts(acts, sizeof acts, e, i);
    row(out, "activations", "%s", acts);
    const char *format = t == NULL ? "no tokenizer" : neap_chat_format(t);
    row(out, "chat format", "%s",
        strcmp(format, "xtml") == 0      ? "xtml (Kimi K3)"
        : strcmp(format, "markers") == 0 ? "markers (Kimi Linear, K2)"
                                         : format);
}

/* "576 bytes as fp8 (0.52 of bf16)" */
static void cache_row(neap_cli_text *out, const char *name, const char *type, uint64_t now, uint64_t bf16) {
    char ratio[48] = "";
    if (bf16 > 0) snprintf(ratio, sizeof ratio, ", %.3f of bf16", (double)now / (double)bf16);
    row(out, name, "%llu bytes a token as %s%s", (unsigned long long)now, type, ratio);
}

static void cache_rows(neap_cli_text *out, const neap_engine_options *e, const neap_model_info *i, const neap_memory *m,
                       const neap_memory *bf16) {
    if (i->n_mla_layers == 0) {
        row(out, "    latents", "none: the model has no MLA layers, its states do not grow with the text");
        return;
    }
    cache_row(out, "    latents", neap_cli_cache_name(e->cache_type), m->latent_bytes_per_token,
              bf16->latent_bytes_per_token);
    if (i->n_index_layers > 0)
        cache_row(out, "    index keys", neap_cli_index_name(e->index_type), m->index_bytes_per_token,
                  bf16->index_bytes_per_token);
    else
        row(out, "    index keys", "none: no layer has an indexer");
}

static void memory_rows(neap_cli_text *out, const neap_engine_options *e, const neap_model_info *i,
                        const neap_memory *m, const neap_memory *bf16) {
    char a[64], b[64];
    neap_cli_text_printf(out, "\nmemory for %d conversation%s of %d tokens%s\n", e->seqs_max,
                         e->seqs_max > 1 ? "s" : "", e->context_max,
                         e->context_max > i->context_max ? " (the model was made for fewer)" : "");
    row(out, "  weights", "%s", neap_cli_bytes(m->weights, a, sizeof a));
    row(out, "  states", "%s (%s for each conversation)", neap_cli_bytes(m->state, a, sizeof a),
        neap_cli_bytes(i->state_bytes, b, sizeof b));
    row(out, "  caches", "%s (%s for each token)", neap_cli_bytes(m->cache, a, sizeof a),
        neap_cli_bytes(m->latent_bytes_per_token + m->index_bytes_per_token, b, sizeof b));
    cache_rows(out, e, i, m, bf16);
    row(out, "  work", "%s", neap_cli_bytes(m->work, a, sizeof a));
    row(out, "  total", "%s of %s available: %s", neap_cli_bytes(m->total, a, sizeof a),
        neap_cli_bytes(m->available, b, sizeof b), m->total <= m->available ? "fits" : "DOES NOT FIT");
}

static void json(neap_cli_text *out, const neap_cli_options *o, const neap_model_info *i, const neap_tokenizer *t,
                 const neap_engine_options *e, const neap_memory *m, const neap_memory *bf16, const char *cpu) {
    neap_cli_json_open(out, NULL, '{');
    neap_cli_json_cstring(out, "model", o->model);
    neap_cli_json_cstring(out, "model_type", i->model_type);
    neap_cli_json_cstring(out, "family", i->family);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"vocab", i->vocab},
        {"width", i->width},
        {"layers", i->n_layers},
        {"kda_layers", i->n_kda_layers},
        {"mla_layers", i->n_mla_layers},
        {"index_layers", i->n_index_layers},
        {"dense_layers", i->n_dense_layers},
        {"moe_layers", i->n_moe_layers},
        {"mtp_layers", i->n_mtp_layers},
        {"experts", i->n_experts},
        {"experts_used", i->n_experts_used},
        {"index_topk", i->index_topk},
        {"attnres_block", i->attnres_block},
        {"context_max", i->context_max},
    };
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
        neap_cli_json_int(out, numbers[k].name, numbers[k].value);
    neap_cli_json_uint(out, "parameters", i->parameters);
    neap_cli_json_uint(out, "parameters_active", i->parameters_active);
    neap_cli_json_cstring(out, "weight_formats", i->weight_formats);
    neap_cli_json_uint(out, "file_bytes", i->file_bytes);
    neap_cli_json_cstring(out, "act_type", i->has_int_others ? neap_cli_act_name(e->act_type) : NULL);
    neap_cli_json_cstring(out, "moe_act_type", i->has_int_experts ? neap_cli_act_name(e->moe_act_type) : NULL);
    neap_cli_json_cstring(out, "chat_format", t == NULL ? NULL : neap_chat_format(t));
    neap_cli_json_open(out, "memory", '{');
    neap_cli_json_int(out, "conversations", e->seqs_max);
    neap_cli_json_int(out, "context", e->context_max);
    neap_cli_json_uint(out, "weights", m->weights);
    neap_cli_json_uint(out, "state", m->state);
    neap_cli_json_uint(out, "cache", m->cache);
    neap_cli_json_uint(out, "work", m->work);
    neap_cli_json_uint(out, "total", m->total);
    neap_cli_json_uint(out, "available", m->available);
    neap_cli_json_bool(out, "fits", m->total <= m->available);
    neap_cli_json_close(out, '}');
    neap_cli_json_open(out, "caches", '{');
    neap_cli_json_cstring(out, "cache_type", i->n_mla_layers > 0 ? neap_cli_cache_name(e->cache_type) : NULL);
    neap_cli_json_cstring(out, "index_type", i->n_index_layers > 0 ? neap_cli_index_name(e->index_type) : NULL);
    neap_cli_json_uint(out, "latent_bytes_per_token", m->latent_bytes_per_token);
    neap_cli_json_uint(out, "index_bytes_per_token", m->index_bytes_per_token);
    neap_cli_json_uint(out, "latent_bytes_per_token_bf16", bf16->latent_bytes_per_token);
    neap_cli_json_uint(out, "index_bytes_per_token_bf16", bf16->index_bytes_per_token);
    neap_cli_json_close(out, '}');
    neap_cli_json_cstring(out, "cpu", cpu);
    neap_cli_json_cstring(out, "kernels", i->kernels);
    neap_cli_json_int(out, "threads", o->threads > 0 ? o->threads : neap_default_threads());
    neap_cli_json_close(out, '}');
    neap_cli_text_puts(out, "\n");
}

static int machine(const neap_cli_options *o) {
    neap_cli_text cpu = {0}, out = {0};
    int code = cpu_text(o->cpu, &cpu);
    if (code == NEAP_EXIT_OK && o->json) {
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "cpu", cpu.data);
        neap_cli_json_int(&out, "threads", neap_default_threads());
        neap_cli_text_puts(&out, "}\n");
    } else if (code == NEAP_EXIT_OK) {
        row(&out, "cpu", "%s", cpu.data);
        row(&out, "threads", "%d", neap_default_threads());
    }
    if (code == NEAP_EXIT_OK) neap_cli_out(out.data, out.n);
    neap_cli_text_free(&cpu);
    neap_cli_text_free(&out);
    return code;
}

static int describe(const neap_cli_options *o, const neap_model *m) {
    neap_model_info info = {.struct_size = sizeof info};
    neap_memory memory = {.struct_size = sizeof memory}, bf16 = {.struct_size = sizeof bf16};
    neap_engine_options e, plain;
    neap_cli_settings settings;
    neap_cli_text out = {0}, cpu = {0};
    int code = neap_cli_failed(neap_model_describe(m, &info), NEAP_CLI_OPENING);
    if (code != NEAP_EXIT_OK) return code;
    neap_cli_settings_fill(&settings, o, m);
    e = settings.engine;
    e.seqs_max = (int32_t)o->parallel;
    e.context_max = (int32_t)o->ctx_size;
    if (e.context_max == 0) e.context_max = info.context_max > 0 && info.context_max < 8192 ? info.context_max : 8192;
    plain = e;
    plain.cache_type = NEAP_CACHE_BF16;
    plain.index_type = NEAP_INDEX_BF16;
    code = neap_cli_failed(neap_engine_memory(m, &e, &memory), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_engine_memory(m, &plain, &bf16), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) code = cpu_text(o->cpu, &cpu);
    if (code == NEAP_EXIT_OK) {
        const neap_tokenizer *t = neap_model_tokenizer(m);
        if (o->json) {
            json(&out, o, &info, t, &e, &memory, &bf16, cpu.data);
        } else {
            model_rows(&out, o, &info, t, &e);
            memory_rows(&out, &e, &info, &memory, &bf16);
            neap_cli_text_puts(&out, "\n");
            row(&out, "cpu", "%s", cpu.data);
            row(&out, "kernels", "%s", info.kernels);
            row(&out, "threads", "%d", o->threads > 0 ? (int)o->threads : neap_default_threads());
        }
        neap_cli_out(out.data, out.n);
    }
    neap_cli_text_free(&out);
    neap_cli_text_free(&cpu);
    return code;
}

/* Flags that would do nothing are refused instead. */
static int check_flags(const neap_cli_options *o) {
    enum { DEPTH = 1024 }; /* the option table's default */
    int is_about_plan =
        o->plan_dot != NULL || o->cores > 0 || o->plan_rows > 1 || o->plan_batch > 1 || o->plan_depth != DEPTH;
    if (o->show_plan && o->model == NULL)
        neap_cli_error("--plan needs a model");
    else if (!o->show_plan && is_about_plan)
        neap_cli_error("--depth, --plan-rows, --batch, --plan-dot and --cores need --plan");
    else if (o->memory_scale > 0 && o->cores == 0)
        neap_cli_error("--memory-scale needs --cores");
    else
        return neap_cli_settings_check(o);
    return NEAP_EXIT_USAGE;
}

int neap_cli_info(const neap_cli_options *o) {
    int code = check_flags(o);
    if (code != NEAP_EXIT_OK) return code;
    if (o->cpu_info && o->model == NULL) return machine(o);
    neap_model_options options;
    neap_model_options_init(&options);
    options.describe_only = 1;
    options.cpu = o->cpu;
    options.strict = o->strict;
    options.log = neap_cli_log;
    neap_model *m = NULL;
    code = neap_cli_failed(neap_model_open(&m, o->model, &options), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) code = o->show_plan ? neap_cli_plan_show(o, m) : describe(o, m);
    neap_model_close(m);
    return code;
}
