/* `neap verify`: runs the prompt of a golden file and compares every tensor in it that neap can produce.
 *
 *   tokens -> one pass with taps: logits of all rows, residual stream, choices; then the caches
 *          -> a second request for the greedy continuation
 *   golden tensors, one by one -> verify_compare.c -> table or JSON
 *
 * Greedy tokens are compared with the largest logit of each step, up to the first step where they may differ
 * (greedy_margin below 1e-3: the two best tokens are too close). A sampler may refuse the golden token (reserved
 * ids are never sampled); then the continuation starts again behind it, with the golden token as prompt.
 *
 * Quantised caches have their own rules (verify_quant.c); there the golden tokens stand behind the prompt in one more
 * pass, and every step is compared.
 *
 * Exit code 1 when a tensor differs. Called by main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "compute.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"
#include "verify.h"

static const double greedy_margin = 1e-3;

typedef struct run {
    neap_cli_session s;
    neap_tensors *golden;
    neap_cli_tensor tokens; /* [T] */
    neap_cli_tensor_list ours;
    neap_cli_comparison *list; /* one for each golden tensor */
    size_t n_list;
    int has_wide_tolerance;
    const char *family;
    neap_engine_options types; /* only caches and activations */
    int is_quantised, is_int16, has_latents, has_index, has_int_experts, has_int_others;
    neap_cli_limits limits;
    char *class_text;
} run;

static int load(const run *r, const char *name, neap_cli_tensor *out) {
    neap_tensor_info info;
    *out = (neap_cli_tensor){0};
    if (neap_tensors_find(r->golden, name, &info) != NEAP_OK) return NEAP_EXIT_OK;
    return neap_cli_tensor_load(r->golden, &info, out);
}

static int load_tokens(run *r, const char *path) {
    int code = load(r, "tokens", &r->tokens);
    if (code != NEAP_EXIT_OK) return code;
    if (r->tokens.integer == NULL || r->tokens.rank != 1) {
        neap_cli_error("%s: there is no tensor \"tokens\" of type I32 and rank 1", path);
        return NEAP_EXIT_FILE;
    }
    r->ours.n_tokens = r->tokens.shape[0];
    return neap_cli_check_tokens(&r->s, path, r->tokens.integer, (size_t)r->tokens.shape[0]);
}

/* ---- greedy ---- */

typedef struct greedy {
    const neap_cli_tensor *want;
    int64_t n_tokens; /* of the prompt */
    int32_t *best;    /* [n] largest logit of each step; -1 = not seen */
} greedy;

static void take_best(void *user, const neap_tap *tap) {
    greedy *g = user;
    if (tap->is_int || tap->rank != 2 || tap->position < 0 || strcmp(tap->name, "logits") != 0) return;
    for (int64_t row = 0; row < tap->shape[0]; row++) {
        int64_t at = tap->position + row - (g->n_tokens - 1); /* the logits after the prompt choose token 0 */
        if (at < 0 || at >= g->want->shape[0]) continue;
        const float *x = (const float *)tap->data + row * tap->shape[1];
        int64_t best = 0;
        for (int64_t i = 1; i < tap->shape[1]; i++) {
            if (x[i] > x[best]) best = i;
        }
        g->best[at] = (int32_t)best;
    }
}

/* Continues after the prompt and `done` golden tokens until the engine takes another token than the golden one.
 * *done: golden tokens known to be in place, or the end. */
static int greedy_piece(run *r, greedy *g, const int32_t *tokens, int64_t *done) {
    int64_t n = g->want->shape[0], begin = *done;
    neap_request q;
    neap_seq *seq = NULL;
    neap_event event;
    neap_request_init(&q);
    q.tokens = tokens;
    q.n_tokens = (size_t)(g->n_tokens + begin);
    q.max_tokens = (int32_t)(n - begin);
    q.ignore_eos = 1;
    q.sampling.temperature = 0;
    q.tap = take_best;
    q.tap_user = g;
    int is_cancelled = 0;
    int code = neap_cli_failed(neap_submit(r->s.engine, &q, &seq), NEAP_CLI_RUNNING);
    while (code == NEAP_EXIT_OK) {
        code = neap_cli_next_event(&r->s, &event);
        if (code != NEAP_EXIT_OK || event.kind == NEAP_EVENT_DONE) break;
        if (event.kind != NEAP_EVENT_TOKEN || is_cancelled) continue;
        int is_golden = event.token == g->want->integer[*done];
        *done += 1;
        if (is_golden && *done < n) continue;
        is_cancelled = 1;
        code = neap_cli_failed(neap_cancel(seq), NEAP_CLI_RUNNING);
    }
    neap_seq_free(seq);
    if (code == NEAP_EXIT_OK && *done == begin) {
        neap_cli_error("the engine ended the greedy continuation before its first token");
        code = NEAP_EXIT_INTERNAL;
    }
    return code;
}

static int compare_greedy(run *r, const neap_cli_tensor *want, neap_cli_comparison *c) {
    int64_t n = want->shape[0], n_tokens = r->tokens.shape[0], done = 0;
    neap_cli_tensor margin;
    int code = load(r, "greedy_margin", &margin);
    int has_margin = code == NEAP_EXIT_OK && margin.real != NULL && neap_cli_tensor_size(&margin) == n;
    int32_t *tokens = neap_cli_alloc((size_t)(n_tokens + n), sizeof *tokens);
    memcpy(tokens, r->tokens.integer, (size_t)n_tokens * sizeof *tokens);
    memcpy(tokens + n_tokens, want->integer, (size_t)n * sizeof *tokens);
    greedy g = {.want = want, .n_tokens = n_tokens, .best = neap_cli_alloc((size_t)n, sizeof *g.best)};
    for (int64_t i = 0; i < n; i++) g.best[i] = -1;
    int64_t differs = -1;
    while (code == NEAP_EXIT_OK && done < n && differs < 0) {
        int64_t begin = done;
        code = greedy_piece(r, &g, tokens, &done);
        for (int64_t i = begin; code == NEAP_EXIT_OK && i < done && differs < 0; i++) {
            if (g.best[i] != want->integer[i]) differs = i;
        }
    }
    c->n_rows = n;
    c->verdict = NEAP_CLI_SAME;
    double close = r->is_int16 ? greedy_margin * NEAP_CLI_INT16_MAX : greedy_margin;
    if (differs >= 0 && has_margin && (double)margin.real[differs] <= close) {
        neap_cli_text_printf(&c->note, "equal up to token %lld, where the two best are too close", (long long)differs);
    } else if (differs >= 0) {
        c->n_rows_differ = n - differs;
        c->verdict = NEAP_CLI_MISS;
        neap_cli_text_printf(&c->note, "token %lld is %d, golden %d", (long long)differs, g.best[differs],
                             want->integer[differs]);
    }
    neap_cli_tensor_free(&margin);
    free(tokens);
    free(g.best);
    return code;
}

/* The largest logit of every step with the golden tokens before it. */
static int compare_greedy_shares(run *r, const neap_cli_judge *judge, const neap_cli_tensor *want,
                                 neap_cli_comparison *c) {
    int64_t n = want->shape[0], n_tokens = r->tokens.shape[0];
    int32_t *tokens = neap_cli_alloc((size_t)(n_tokens + n), sizeof *tokens);
    memcpy(tokens, r->tokens.integer, (size_t)n_tokens * sizeof *tokens);
    memcpy(tokens + n_tokens, want->integer, (size_t)n * sizeof *tokens);
    greedy g = {.want = want, .n_tokens = n_tokens, .best = neap_cli_alloc((size_t)n, sizeof *g.best)};
    int code = neap_cli_check_tokens(&r->s, "greedy", tokens, (size_t)(n_tokens + n - 1));
    if (code == NEAP_EXIT_OK) code = neap_cli_compute(&r->s, tokens, (size_t)(n_tokens + n - 1), 1, 0, take_best, &g);
    if (code == NEAP_EXIT_OK) neap_cli_judge_greedy(judge, want->integer, g.best, n, c);
    free(tokens);
    free(g.best);
    return code;
}

/* ---- all tensors ---- */

static int compare_one(run *r, const neap_tensor_info *info, neap_cli_comparison *c) {
    neap_cli_judge judge = {.golden = r->golden,
                            .ours = &r->ours,
                            .has_wide_tolerance = r->has_wide_tolerance,
                            .scale = r->s.options->tolerance_scale,
                            .is_int16 = r->is_int16,
                            .limits = r->is_quantised ? &r->limits : NULL,
                            .is_all_quantised =
                                r->types.cache_type == NEAP_CACHE_FP8 && r->types.index_type == NEAP_INDEX_MXFP8};
    neap_cli_tensor want;
    c->name = neap_cli_copy(info->name);
    int code = neap_cli_tensor_load(r->golden, info, &want);
    if (code == NEAP_EXIT_OK && strcmp(info->name, "greedy") == 0 && want.integer != NULL && want.rank == 1 &&
        want.shape[0] > 0)
        code = r->is_quantised ? compare_greedy_shares(r, &judge, &want, c) : compare_greedy(r, &want, c);
    else if (code == NEAP_EXIT_OK)
        neap_cli_judge_tensor(&judge, &want, c);
    neap_cli_tensor_free(&want);
    return code;
}

static int64_t longest_greedy(const run *r) {
    neap_tensor_info info;
    if (neap_tensors_find(r->golden, "greedy", &info) != NEAP_OK || info.rank != 1) return 0;
    return info.shape[0] < INT32_MAX / 4 ? info.shape[0] : INT32_MAX / 4;
}

static int compare_all(run *r) {
    int64_t n = neap_tensors_count(r->golden), n_tokens = r->tokens.shape[0];
    int code = neap_cli_session_start(&r->s, (int32_t)(n_tokens + longest_greedy(r)), 1);
    if (code == NEAP_EXIT_OK)
        code = neap_cli_compute(&r->s, r->tokens.integer, (size_t)n_tokens, 1, 1, neap_cli_tensor_collect, &r->ours);
    r->list = neap_cli_alloc((size_t)n, sizeof *r->list);
    for (int64_t i = 0; i < n && code == NEAP_EXIT_OK; i++) {
        neap_tensor_info info;
        code = neap_cli_failed(neap_tensors_at(r->golden, i, &info), NEAP_CLI_OPENING);
        if (code == NEAP_EXIT_OK) code = compare_one(r, &info, &r->list[r->n_list++]);
    }
    return code;
}

/* ---- output ---- */

static const char *class_name(const run *r) { return r->is_quantised ? "quantised" : r->is_int16 ? "int16" : "exact"; }

static const char *const verdicts[] = {"ok", "MISS", "not compared"};

static size_t count(const run *r, neap_cli_verdict verdict) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_list; i++) n += r->list[i].verdict == verdict;
    return n;
}

/* One row of the quantised class, up to the verdict. */
static void add_shares(neap_cli_text *out, const neap_cli_comparison *c, int width) {
    neap_cli_text_printf(out, "%-*s ", width, c->name);
    if (c->is_real)
        neap_cli_text_printf(out, "%10.2e %10.2e ", c->median_error, c->median_tolerance);
    else
        neap_cli_text_printf(out, "%10s %10s ", "", "");
    if (c->has_agreement)
        neap_cli_text_printf(out, "%10.4f %10.4f  %s", c->agreement, c->agreement_limit, verdicts[c->verdict]);
    else
        neap_cli_text_printf(out, "%10s %10s  %s", "", "", verdicts[c->verdict]);
}

static void print_table(const run *r) {
    neap_cli_text out = {0};
    int width = 6;
    for (size_t i = 0; i < r->n_list; i++) {
        int n = (int)strlen(r->list[i].name);
        if (n > width && n < 48) width = n;
    }
    neap_cli_text_printf(&out, "%s\n\n", r->class_text);
    if (r->is_quantised)
        neap_cli_text_printf(&out, "%-*s %10s %10s %10s %10s  %s\n", width, "tensor", "median", "limit", "agreement",
                             "limit", "verdict");
    else
        neap_cli_text_printf(&out, "%-*s %10s %10s %10s %10s  %s\n", width, "tensor", "max error", "limit", "mean",
                             "limit", "verdict");
    for (size_t i = 0; i < r->n_list; i++) {
        const neap_cli_comparison *c = &r->list[i];
        if (c->verdict == NEAP_CLI_NOT_COMPARED) continue;
        if (r->is_quantised)
            add_shares(&out, c, width);
        else if (c->is_real)
            neap_cli_text_printf(&out, "%-*s %10.2e %10.2e %10.2e %10.2e  %s", width, c->name, c->max_error,
                                 c->max_tolerance, c->mean_error, c->mean_tolerance, verdicts[c->verdict]);
        else
            neap_cli_text_printf(&out, "%-*s %10lld of %lld differ%*s  %s", width, c->name, (long long)c->n_rows_differ,
                                 (long long)c->n_rows, 22 - snprintf(NULL, 0, "%lld", (long long)c->n_rows), "",
                                 verdicts[c->verdict]);
        neap_cli_text_printf(&out, c->note.n > 0 ? " (%s)\n" : "%s\n", neap_cli_text_string(&c->note));
    }
    if (count(r, NEAP_CLI_NOT_COMPARED) > 0) neap_cli_text_puts(&out, "\nnot compared:\n");
    for (size_t i = 0; i < r->n_list; i++) {
        const neap_cli_comparison *c = &r->list[i];
        if (c->verdict == NEAP_CLI_NOT_COMPARED)
            neap_cli_text_printf(&out, "  %-*s  %s\n", width, c->name, neap_cli_text_string(&c->note));
    }
    neap_cli_text_printf(&out, "\n%zu tensors compared, %zu differ, %zu not compared: %s\n",
                         r->n_list - count(r, NEAP_CLI_NOT_COMPARED), count(r, NEAP_CLI_MISS),
                         count(r, NEAP_CLI_NOT_COMPARED), count(r, NEAP_CLI_MISS) > 0 ? "MISS" : "ok");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

static void print_json(const run *r) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", r->s.options->model);
    neap_cli_json_cstring(&out, "golden", r->s.options->args[0]);
    neap_cli_json_cstring(&out, "family", r->family);
    neap_cli_json_int(&out, "tokens", r->tokens.shape[0]);
    neap_cli_json_cstring(&out, "class", class_name(r));
    neap_cli_json_cstring(&out, "cache_type", r->has_latents ? neap_cli_cache_name(r->types.cache_type) : NULL);
    neap_cli_json_cstring(&out, "index_type", r->has_index ? neap_cli_index_name(r->types.index_type) : NULL);
    neap_cli_json_cstring(&out, "act_type", r->has_int_others ? neap_cli_act_name(r->types.act_type) : NULL);
    neap_cli_json_cstring(&out, "moe_act_type", r->has_int_experts ? neap_cli_act_name(r->types.moe_act_type) : NULL);
    if (r->is_quantised) neap_cli_json_bool(&out, "has_report", r->limits.has_report);
    neap_cli_json_open(&out, "tensors", '[');
    for (size_t i = 0; i < r->n_list; i++) {
        const neap_cli_comparison *c = &r->list[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "name", c->name);
        neap_cli_json_cstring(&out, "verdict", c->verdict == NEAP_CLI_MISS ? "miss" : verdicts[c->verdict]);
        if (c->has_agreement) {
            neap_cli_json_real(&out, "agreement", c->agreement, 9);
            neap_cli_json_real(&out, "agreement_limit", c->agreement_limit, 9);
        }
        if (c->is_real && r->is_quantised) {
            neap_cli_json_real(&out, "max_error", c->max_error, 6);
            neap_cli_json_real(&out, "median_error", c->median_error, 6);
            neap_cli_json_real(&out, "median_tolerance", c->median_tolerance, 6);
        } else if (c->is_real) {
            neap_cli_json_real(&out, "max_error", c->max_error, 6);
            neap_cli_json_real(&out, "max_tolerance", c->max_tolerance, 6);
            neap_cli_json_real(&out, "mean_error", c->mean_error, 6);
            neap_cli_json_real(&out, "mean_tolerance", c->mean_tolerance, 6);
        } else if (c->verdict != NEAP_CLI_NOT_COMPARED && c->n_rows > 0) {
            neap_cli_json_int(&out, "rows", c->n_rows);
            neap_cli_json_int(&out, "rows_differ", c->n_rows_differ);
        }
        if (c->note.n > 0) neap_cli_json_cstring(&out, "note", c->note.data);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_json_uint(&out, "compared", r->n_list - count(r, NEAP_CLI_NOT_COMPARED));
    neap_cli_json_uint(&out, "missed", count(r, NEAP_CLI_MISS));
    neap_cli_json_uint(&out, "not_compared", count(r, NEAP_CLI_NOT_COMPARED));
    neap_cli_json_bool(&out, "ok", count(r, NEAP_CLI_MISS) == 0);
    neap_cli_text_puts(&out, "}\n");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

static int any_act(const run *r, int32_t type) { return r->types.act_type == type || r->types.moe_act_type == type; }

/* "latents fp8, index keys mxfp8, activations f32, of experts int8" */
static void add_types(neap_cli_text *out, const run *r) {
    const char *before = "";
    if (r->has_latents) {
        neap_cli_text_printf(out, "latents %s", neap_cli_cache_name(r->types.cache_type));
        before = ", ";
    }
    if (r->has_index) neap_cli_text_printf(out, "%sindex keys %s", before, neap_cli_index_name(r->types.index_type));
    if (!any_act(r, NEAP_ACT_INT16) && !any_act(r, NEAP_ACT_INT8)) return;
    neap_cli_text_printf(out, "%sactivations %s", before, neap_cli_act_name(r->types.act_type));
    if (r->types.moe_act_type != r->types.act_type)
        neap_cli_text_printf(out, ", of experts %s", neap_cli_act_name(r->types.moe_act_type));
}

/* Which rules hold: exact when nothing that this model caches or multiplies is rounded. */
static int choose_class(run *r, const neap_model_info *info) {
    neap_cli_text text = {0};
    neap_cli_number_types(r->s.options, &r->types);
    int has_latents = info->n_mla_layers > 0, has_index = info->n_index_layers > 0;
    if (!has_latents) r->types.cache_type = NEAP_CACHE_F32;
    if (!has_index) r->types.index_type = NEAP_INDEX_F32;
    if (!info->has_int_others) r->types.act_type = NEAP_ACT_F32;
    if (!info->has_int_experts) r->types.moe_act_type = NEAP_ACT_F32;
    r->has_int_others = info->has_int_others;
    r->has_int_experts = info->has_int_experts;
    r->has_latents = has_latents;
    r->has_index = has_index;
    r->is_quantised =
        r->types.cache_type != NEAP_CACHE_F32 || r->types.index_type != NEAP_INDEX_F32 || any_act(r, NEAP_ACT_INT8);
    r->is_int16 = !r->is_quantised && any_act(r, NEAP_ACT_INT16);
    int code = NEAP_EXIT_OK;
    if (r->is_quantised) {
        code = neap_cli_limits_load(&r->limits, r->s.options->args[0], &r->types);
        neap_cli_text_puts(&text, "class: quantised (");
        add_types(&text, r);
        neap_cli_text_printf(&text, "), medians and agreement, limits %s",
                             r->limits.has_report ? "of golden_report.json" : "without a golden_report.json");
    } else if (r->is_int16) {
        neap_cli_text_printf(&text, "class: 16-bit activations, limits of float32 times %d (largest) and %d (mean)",
                             NEAP_CLI_INT16_MAX, NEAP_CLI_INT16_MEAN);
    } else {
        neap_cli_text_puts(&text, has_latents ? "class: exact (float32 caches)" : "class: exact (nothing is cached)");
    }
    r->class_text = text.data;
    return code;
}

int neap_cli_verify(const neap_cli_options *o) {
    run r = {0};
    neap_model_info info = {.struct_size = sizeof info};
    int code = neap_cli_failed(neap_tensors_open(&r.golden, o->args[0]), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&r.s, o);
    if (code == NEAP_EXIT_OK) code = load_tokens(&r, o->args[0]);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(r.s.model, &info), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) {
        r.family = info.family;
        r.has_wide_tolerance = strncmp(info.family, "kimi_k3", 7) == 0; /* kimi_k3 and kimi_k31 */
        code = choose_class(&r, &info);
        if (code == NEAP_EXIT_OK) code = compare_all(&r);
    }
    if (code == NEAP_EXIT_OK && count(&r, NEAP_CLI_NOT_COMPARED) == r.n_list) {
        neap_cli_error("%s holds nothing that neap can compare", o->args[0]);
        code = NEAP_EXIT_FILE;
    } else if (code == NEAP_EXIT_OK) {
        if (o->json)
            print_json(&r);
        else
            print_table(&r);
        if (count(&r, NEAP_CLI_MISS) > 0) code = NEAP_EXIT_INTERNAL;
    }
    for (size_t i = 0; i < r.n_list; i++) {
        free(r.list[i].name);
        neap_cli_text_free(&r.list[i].note);
    }
    free(r.list);
    free(r.class_text);
    neap_cli_tensor_free(&r.tokens);
    neap_cli_tensor_list_free(&r.ours);
    neap_tensors_close(r.golden);
    neap_cli_session_close(&r.s);
    return code;
}
