/* Judging tensors of a run with quantised caches or 8-bit activations for `neap verify`; see verify.h.
 *
 * Rounding what a cache keeps moves scores, and where two experts or positions are close the other one is taken: such a
 * flip changes a whole row by far more than the rounding did. So a largest error says nothing here. Judged are
 *   numbers   median of |ours - golden|
 *   logits    also the share of rows with the same largest logit
 *   choices   experts: share of rows with the same set; positions: |ours and golden| / |golden| over all rows
 *   greedy    share of steps with the same largest logit, the golden tokens before it given
 * Limits come from golden_report.json beside the golden file, which holds what another implementation measured with the
 * same formats: twice its median, its agreement less 0.1; for the greedy steps, which are few, another two standard
 * errors less. Without a report, and for tensors that it does not cover: a median of 0.15 standard deviations of the
 * logits or 0.3 of another tensor (caches of the last tokens are small samples), 60 % of largest logits, 70 % of expert
 * sets, 80 % of positions. The golden models stay within these; they have random weights and so are the least stable.
 *
 *   caches                         entries of the report that count (the looser of several)
 *   latents fp8, index mxfp8       quant_vs_fp64
 *   latents fp8                    kv_fp8_vs_fp64
 *   index mxfp8                    mx_index_ceil_vs_fp64, mx_index_ceil_overlap
 *   something bf16                 bf16_path_vs_fp64, bf16_path_index_overlap
 *   activations int8               the same: what a flip does is alike
 *
 * Called by verify.c. Owns nothing beyond a call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_in.h"
#include "report.h"
#include "verify.h"

static const double logits_of_spread = 0.15, median_of_spread = 0.3, agreement_usual = 0.6, experts_usual = 0.7,
                    positions_usual = 0.8;
static const double agreement_slack = 0.1, median_factor = 2;

/* ---- golden_report.json ---- */

/* The value of a member of the object that text (n bytes) is; 0: no object, or no such member. */
static int member(const char *what, const char *text, size_t n, const char *key, const char **value, size_t *length) {
    neap_cli_json j = {.what = what, .text = text, .n = n};
    neap_cli_text name = {0};
    int found = 0, ok = neap_cli_json_peek(&j) == '{' && neap_cli_json_accept(&j, '{');
    while (ok && !found) {
        size_t begin;
        name.n = 0;
        ok = neap_cli_json_read_string(&j, &name) && neap_cli_json_expect(&j, ':') && neap_cli_json_skip(&j, &begin);
        found = ok && strcmp(neap_cli_text_string(&name), key) == 0;
        if (found) *value = text + begin, *length = j.at - begin;
        ok = ok && neap_cli_json_accept(&j, ',');
    }
    neap_cli_text_free(&name);
    return found;
}

/* entry.field (or entry itself when field is NULL) of the golden file's report; NAN: not there. */
static double number(const char *what, const char *text, size_t n, const char *entry, const char *field) {
    char digits[64];
    if (!member(what, text, n, entry, &text, &n)) return NAN;
    if (field != NULL && !member(what, text, n, field, &text, &n)) return NAN;
    if (n >= sizeof digits || n == 0 || (*text != '-' && (*text < '0' || *text > '9'))) return NAN;
    memcpy(digits, text, n);
    digits[n] = 0;
    return strtod(digits, NULL);
}

static void looser(double *limit, double value, int is_upper) {
    if (isnan(value)) return;
    if (isnan(*limit) || (is_upper ? value > *limit : value < *limit)) *limit = value;
}

static void take_report(neap_cli_limits *limits, const char *what, const char *text, size_t n,
                        const neap_engine_options *types) {
    int is_fp8 = types->cache_type == NEAP_CACHE_FP8, is_mx = types->index_type == NEAP_INDEX_MXFP8;
    int is_bf16 = types->cache_type == NEAP_CACHE_BF16 || types->index_type == NEAP_INDEX_BF16;
    int is_int8 = types->act_type == NEAP_ACT_INT8 || types->moe_act_type == NEAP_ACT_INT8;
    const struct {
        int is_used;
        const char *numbers, *positions;
    } entries[] = {
        {is_fp8 && is_mx, "quant_vs_fp64", "mx_index_ceil_overlap"},
        {is_fp8 && !is_mx, "kv_fp8_vs_fp64", "bf16_path_index_overlap"},
        {is_mx && !is_fp8, "mx_index_ceil_vs_fp64", "mx_index_ceil_overlap"},
        {is_bf16 || is_int8, "bf16_path_vs_fp64", "bf16_path_index_overlap"},
    };
    double median = NAN, agreement = NAN, positions = NAN;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (!entries[i].is_used) continue;
        looser(&median, number(what, text, n, entries[i].numbers, "median"), 1);
        looser(&agreement, number(what, text, n, entries[i].numbers, "top1_agree"), 0);
        looser(&positions, number(what, text, n, entries[i].positions, NULL), 0);
    }
    double experts = number(what, text, n, "bf16_path_same_expert_set", NULL);
    if (!isnan(experts)) looser(&experts, agreement, 0); /* not measured with quantised caches */
    limits->has_report = !isnan(median) && !isnan(agreement);
    if (!isnan(median)) limits->median = median_factor * median;
    if (!isnan(agreement)) limits->agreement = agreement - agreement_slack;
    if (!isnan(experts)) limits->experts = experts - agreement_slack;
    if (!isnan(positions)) limits->positions = positions - agreement_slack;
}

/* Python writes NaN and Infinity, which JSON does not know; an empty list of the same length is no number either. */
static void blank_specials(char *text, size_t n) {
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    int is_string = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') is_string = !is_string;
        if (is_string && text[i] == '\\') i++;
        for (size_t k = 0; !is_string && k < 3; k++) {
            size_t length = strlen(words[k]);
            if (n - i < length || memcmp(text + i, words[k], length) != 0) continue;
            memset(text + i, ' ', length);
            text[i] = '[', text[i + 1] = ']';
        }
    }
}

int neap_cli_limits_load(neap_cli_limits *limits, const char *golden, const neap_engine_options *types) {
    neap_cli_text path = {0}, text = {0};
    char name[64] = "";
    const char *slash = strrchr(golden, '/'), *file = slash != NULL ? slash + 1 : golden, *report = NULL;
    int code = NEAP_EXIT_OK;
    size_t n = 0;
    *limits = (neap_cli_limits){.median = NAN, /* of the tensor */
                                .agreement = agreement_usual,
                                .experts = experts_usual,
                                .positions = positions_usual};
    neap_cli_text_add(&path, golden, (size_t)(file - golden));
    neap_cli_text_puts(&path, "golden_report.json");
    /* golden_p37.safetensors -> "p37" */
    size_t stem = strcspn(file, ".");
    if (strncmp(file, "golden_", 7) == 0 && stem > 7 && stem - 7 < sizeof name) {
        memcpy(name, file + 7, stem - 7);
        FILE *exists = fopen(path.data, "r");
        if (exists != NULL) {
            fclose(exists);
            code = neap_cli_read_file(&text, path.data, 16 << 20);
        }
    }
    if (code == NEAP_EXIT_OK && text.n > 0) {
        size_t begin;
        blank_specials(text.data, text.n);
        neap_cli_json j = {.what = path.data, .text = text.data, .n = text.n};
        if (!neap_cli_json_skip(&j, &begin) || !neap_cli_json_at_end(&j))
            code = NEAP_EXIT_FILE; /* was printed */
        else if (member(path.data, text.data, text.n, name, &report, &n))
            take_report(limits, path.data, report, n, types);
    }
    neap_cli_text_free(&path);
    neap_cli_text_free(&text);
    return code;
}

/* ---- numbers ---- */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double spread(const float *x, int64_t n) {
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    return sqrt(sum);
}

static int64_t largest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[best]) best = i;
    }
    return best;
}

/* Sets medians and verdict; got is `want` as neap has it, n numbers; limit: in units of the numbers. */
static void judge_median(const neap_cli_judge *judge, const float *want, const float *got, int64_t n, double limit,
                         neap_cli_comparison *c) {
    float *errors = neap_cli_alloc((size_t)n, sizeof *errors);
    for (int64_t i = 0; i < n; i++) {
        float e = fabsf(want[i] - got[i]);
        errors[i] = isnan(e) ? INFINITY : e;
    }
    qsort(errors, (size_t)n, sizeof *errors, by_value);
    c->is_real = 1;
    c->max_error = n > 0 ? (double)errors[n - 1] : 0;
    c->median_error = n > 0 ? (double)errors[(n - 1) / 2] : 0;
    c->median_tolerance = limit * judge->scale;
    c->verdict = c->median_error <= c->median_tolerance ? NEAP_CLI_SAME : NEAP_CLI_MISS;
    free(errors);
}

static void set_agreement(neap_cli_comparison *c, double n_same, double n, double limit) {
    c->has_agreement = 1;
    c->agreement = n > 0 ? n_same / n : 1;
    c->agreement_limit = limit;
    if (c->agreement < limit - 1e-9) c->verdict = NEAP_CLI_MISS;
}

static void judge_logits(const neap_cli_judge *judge, const neap_cli_tensor *want, const float *got,
                         neap_cli_comparison *c) {
    int64_t rows = want->shape[0], width = want->shape[1], n_same = 0;
    double limit = judge->limits->median;
    if (isnan(limit)) limit = logits_of_spread * spread(want->real, rows * width);
    judge_median(judge, want->real, got, rows * width, limit, c);
    for (int64_t r = 0; r < rows && width > 0; r++)
        n_same += largest(want->real + r * width, width) == largest(got + r * width, width);
    set_agreement(c, (double)n_same, (double)rows, judge->limits->agreement);
}

/* ---- choices ---- */

static int has(const int32_t *list, int64_t n, int32_t value) {
    for (int64_t i = 0; i < n; i++) {
        if (list[i] == value) return 1;
    }
    return 0;
}

static void judge_choice(const neap_cli_judge *judge, const neap_cli_tensor *want, const neap_cli_tensor *got,
                         int is_experts, neap_cli_comparison *c) {
    int64_t rows = want->shape[0], width = want->shape[1], n_sets = 0, n_kept = 0, n_wanted = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *a = want->integer + r * width, *b = got->integer + r * width;
        int64_t kept = 0, wanted = 0;
        for (int64_t i = 0; i < width; i++) {
            if (a[i] < 0) continue; /* an unused place */
            wanted++;
            kept += has(b, width, a[i]);
        }
        n_sets += kept == wanted;
        n_kept += kept;
        n_wanted += wanted;
    }
    c->n_rows = rows;
    c->n_rows_differ = rows - n_sets;
    c->verdict = NEAP_CLI_SAME;
    if (is_experts)
        set_agreement(c, (double)n_sets, (double)rows, judge->limits->experts);
    else
        set_agreement(c, (double)n_kept, (double)n_wanted, judge->limits->positions);
}

/* ---- one tensor ---- */

static int has_prefix(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

void neap_cli_judge_greedy(const neap_cli_judge *judge, const int32_t *want, const int32_t *got, int64_t n,
                           neap_cli_comparison *c) {
    int64_t n_same = 0;
    for (int64_t i = 0; i < n; i++) n_same += want[i] == got[i];
    c->n_rows = n;
    c->n_rows_differ = n - n_same;
    c->verdict = NEAP_CLI_SAME;
    double limit = judge->limits->agreement, slack = 2 * sqrt(limit * (1 - limit) / (double)n);
    set_agreement(c, (double)n_same, (double)n, limit - slack);
}

void neap_cli_judge_quantised(const neap_cli_judge *judge, const neap_cli_tensor *want, const neap_cli_tensor *got,
                              neap_cli_comparison *c) {
    const char *name = has_prefix(want->name, "quant.") ? want->name + 6 : want->name;
    if (strcmp(name, "logits_tail") == 0) { /* the last rows of the logits */
        judge_logits(judge, want, got->real + (got->shape[0] - want->shape[0]) * got->shape[1], c);
    } else if (strcmp(name, "logits") == 0) {
        judge_logits(judge, want, got->real, c);
    } else if (has_prefix(name, "experts.") || has_prefix(name, "index_topk.")) {
        judge_choice(judge, want, got, has_prefix(name, "experts."), c);
    } else {
        int64_t n = neap_cli_tensor_size(want);
        judge_median(judge, want->real, got->real, n, median_of_spread * spread(want->real, n), c);
    }
}
