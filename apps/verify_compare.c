/* Judging tensors for `neap verify`; see verify.h.
 *
 * Numbers: max and mean of |ours - golden|, against a tolerance by kind of tensor and family.
 *   logits                      max 1e-4 (Kimi Linear, DSA) or 3e-4 (K3), mean 1e-5: the published limits of the
 *                               golden data for an engine that computes in float32.
 *   hidden, norms, caches,      (2e-5 or 1e-4) * max(1, largest value of the tensor), mean a tenth of it. Two
 *   expert weights              float32 programs differ there by 5e-6 with values of about 1 (Kimi Linear), and
 *                               by 1e-5 .. 6e-5 at the end of a K3 stack, whose attention residuals amplify
 *                               rounding; the factor leaves room for other summation orders, while a wrong
 *                               formula is off by 1e-2 and more. Rounding grows with the values, hence the scale.
 * Choices (experts, positions): equal as sets, row by row. A row may differ where the golden file says that the
 * last chosen and the best rejected score are closer than 1e-5 (index_gap, expert_margin): there the choice
 * hangs on rounding. The weights of such a row are not compared either.
 * With 16-bit activations the same rules hold with wider limits (NEAP_CLI_INT16_MAX and _MEAN).
 *
 * Owns the tensors of a list. Called by verify.c. */
#include "verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

static const double choice_margin = 1e-5;

/* ---- tensors in memory ---- */

int64_t neap_cli_tensor_size(const neap_cli_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

void neap_cli_tensor_free(neap_cli_tensor *t) {
    free(t->name);
    free(t->real);
    free(t->integer);
    *t = (neap_cli_tensor){0};
}

void neap_cli_tensor_list_free(neap_cli_tensor_list *list) {
    for (size_t i = 0; i < list->n; i++) neap_cli_tensor_free(&list->items[i]);
    free(list->items);
    *list = (neap_cli_tensor_list){0};
}

neap_cli_tensor *neap_cli_tensor_find(const neap_cli_tensor_list *list, const char *name) {
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].name, name) == 0) return &list->items[i];
    }
    return NULL;
}

void neap_cli_tensor_collect(void *user, const neap_tap *tap) {
    neap_cli_tensor_list *list = user;
    int is_rows = tap->position >= 0;
    neap_cli_tensor *t = neap_cli_tensor_find(list, tap->name);
    if (t == NULL) {
        list->items = neap_cli_grow(list->items, list->n + 1, sizeof *list->items);
        t = &list->items[list->n++];
        *t = (neap_cli_tensor){.name = neap_cli_copy(tap->name), .rank = tap->rank};
        for (int32_t i = 0; i < tap->rank; i++) t->shape[i] = tap->shape[i];
        if (is_rows) t->shape[0] = list->n_tokens;
        size_t n = (size_t)neap_cli_tensor_size(t);
        if (tap->is_int)
            t->integer = neap_cli_alloc(n, sizeof *t->integer);
        else
            t->real = neap_cli_alloc(n, sizeof *t->real);
    }
    int64_t rows = tap->rank > 0 ? tap->shape[0] : 1, n = 1;
    for (int32_t i = 0; i < tap->rank; i++) n *= tap->shape[i];
    if (n == 0) return;
    int64_t width = n / rows, at = is_rows ? tap->position : 0;
    if ((at + rows) * width > neap_cli_tensor_size(t) || (tap->is_int != 0) != (t->integer != NULL)) return;
    if (tap->is_int)
        memcpy(t->integer + at * width, tap->data, (size_t)n * sizeof *t->integer);
    else
        memcpy(t->real + at * width, tap->data, (size_t)n * sizeof *t->real);
    t->n_rows_seen += rows;
}

int neap_cli_tensor_load(const neap_tensors *file, const neap_tensor_info *info, neap_cli_tensor *out) {
    *out = (neap_cli_tensor){.name = neap_cli_copy(info->name), .rank = info->rank};
    memcpy(out->shape, info->shape, sizeof out->shape);
    int is_f32 = strcmp(info->dtype, "F32") == 0, is_f64 = strcmp(info->dtype, "F64") == 0;
    int is_i32 = strcmp(info->dtype, "I32") == 0, is_i64 = strcmp(info->dtype, "I64") == 0;
    if (!is_f32 && !is_f64 && !is_i32 && !is_i64) return NEAP_EXIT_OK;
    size_t n = (size_t)neap_cli_tensor_size(out);
    void *bytes = neap_cli_alloc((size_t)info->bytes, 1);
    int code = neap_cli_failed(neap_tensors_read(file, info->name, 0, info->bytes, bytes), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK && is_f32) {
        out->real = bytes;
        return code;
    }
    if (code == NEAP_EXIT_OK && is_i32) {
        out->integer = bytes;
        return code;
    }
    if (code == NEAP_EXIT_OK && is_f64) {
        out->real = neap_cli_alloc(n, sizeof *out->real);
        for (size_t i = 0; i < n; i++) out->real[i] = (float)((const double *)bytes)[i];
    } else if (code == NEAP_EXIT_OK) {
        out->integer = neap_cli_alloc(n, sizeof *out->integer);
        for (size_t i = 0; i < n; i++) {
            int64_t v = ((const int64_t *)bytes)[i];
            out->integer[i] = v < INT32_MIN || v > INT32_MAX ? INT32_MIN : (int32_t)v; /* no id or position is that */
        }
    }
    free(bytes);
    return code;
}

/* ---- names ---- */

static int has_prefix(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

const char *neap_cli_not_compared(const neap_cli_judge *judge, const char *name) {
    static const char *const known[] = {"hidden.",       "cache.state.",   "cache.conv.",
                                        "cache.latent.", "cache.krope.",   "cache.ikey.",
                                        "experts.",      "expert_weight.", "index_topk."};
    if (strcmp(name, "tokens") == 0) return "the prompt";
    if (has_prefix(name, "bf16_path.")) return "made with BF16 arithmetic, neap computes in F32";
    if (has_prefix(name, "quant.") && !judge->is_all_quantised) return "made with FP8 latents and an MXFP8 index";
    if (strcmp(name, "quant.logits_tail") == 0) return NULL;
    if (has_prefix(name, "quant.")) name += strlen("quant.");
    if (has_prefix(name, "mtp.")) return "neap does not run the draft layer";
    if (has_prefix(name, "expert_margin.") || has_prefix(name, "index_gap.") || strcmp(name, "greedy_margin") == 0)
        return "says where choices are too close to compare";
    if (strcmp(name, "logits") == 0 || strcmp(name, "final_norm") == 0 || strcmp(name, "pre_norm") == 0) return NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (has_prefix(name, known[i])) return NULL;
    }
    return "unknown name";
}

/* ---- choices ---- */

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* 1: the two rows hold the same values in any order. -1 marks an unused place. */
static int same_set(const int32_t *a, const int32_t *b, int64_t width, int32_t *scratch) {
    size_t n = (size_t)width;
    memcpy(scratch, a, n * sizeof *a);
    memcpy(scratch + n, b, n * sizeof *b);
    qsort(scratch, n, sizeof *scratch, by_value);
    qsort(scratch + n, n, sizeof *scratch, by_value);
    return memcmp(scratch, scratch + n, n * sizeof *scratch) == 0;
}

/* The margin tensor of a choice: index_gap.3 for index_topk.3, expert_margin.3 for experts.3. data NULL: none. */
static void load_margin(const neap_cli_judge *judge, const char *name, int64_t rows, neap_cli_tensor *out) {
    char margin[128];
    neap_tensor_info info;
    snprintf(margin, sizeof margin, "%s%s", has_prefix(name, "index_topk.") ? "index_gap" : "expert_margin",
             strchr(name, '.'));
    *out = (neap_cli_tensor){0};
    if (neap_tensors_find(judge->golden, margin, &info) != NEAP_OK) return;
    if (neap_cli_tensor_load(judge->golden, &info, out) != NEAP_EXIT_OK || out->real == NULL ||
        neap_cli_tensor_size(out) != rows)
        neap_cli_tensor_free(out);
}

static void judge_choice(const neap_cli_judge *judge, const neap_cli_tensor *want, const neap_cli_tensor *got,
                         neap_cli_comparison *c) {
    int64_t rows = want->shape[0], width = want->shape[1], n_close = 0, first = -1;
    int32_t *scratch = neap_cli_alloc((size_t)width * 2, sizeof *scratch);
    neap_cli_tensor margin;
    load_margin(judge, want->name, rows, &margin);
    double close = judge->is_int16 ? choice_margin * NEAP_CLI_INT16_MAX : choice_margin;
    for (int64_t r = 0; r < rows; r++) {
        if (same_set(want->integer + r * width, got->integer + r * width, width, scratch)) continue;
        if (margin.real != NULL && (double)margin.real[r] <= close) {
            n_close++;
            continue;
        }
        if (first < 0) first = r;
        c->n_rows_differ++;
    }
    c->n_rows = rows;
    c->verdict = c->n_rows_differ > 0 ? NEAP_CLI_MISS : NEAP_CLI_SAME;
    if (first >= 0) neap_cli_text_printf(&c->note, "first at row %lld", (long long)first);
    if (n_close > 0)
        neap_cli_text_printf(&c->note, "%s%lld too close to tell", c->note.n > 0 ? ", " : "", (long long)n_close);
    neap_cli_tensor_free(&margin);
    free(scratch);
}

/* ---- numbers ---- */

/* |a - b|; infinite when one is NaN, zero for equal infinities. */
static double error_of(float a, float b) {
    if (isnan(a) || isnan(b)) return INFINITY;
    return a == b ? 0 : fabs((double)a - (double)b);
}

static void set_tolerance(const neap_cli_judge *judge, const neap_cli_tensor *want, neap_cli_comparison *c) {
    double largest = 1;
    int64_t n = neap_cli_tensor_size(want);
    if (strcmp(want->name, "logits") == 0) {
        c->max_tolerance = judge->has_wide_tolerance ? 3e-4 : 1e-4;
        c->mean_tolerance = 1e-5;
    } else {
        for (int64_t i = 0; i < n; i++) {
            double v = fabs((double)want->real[i]);
            if (v > largest && isfinite(v)) largest = v;
        }
        c->max_tolerance = (judge->has_wide_tolerance ? 1e-4 : 2e-5) * largest;
        c->mean_tolerance = 0.1 * c->max_tolerance;
    }
    c->max_tolerance *= judge->scale * (judge->is_int16 ? NEAP_CLI_INT16_MAX : 1);
    c->mean_tolerance *= judge->scale * (judge->is_int16 ? NEAP_CLI_INT16_MEAN : 1);
}

/* expert_weight.N of a row: errors where both programs chose the expert. *ids: experts.N, same shape, or NULL. */
static double weight_error(const neap_cli_tensor *want, const neap_cli_tensor *got, const int32_t *want_ids,
                           const int32_t *got_ids, int64_t row, int64_t k) {
    int64_t width = want->shape[1], at = row * width;
    if (want_ids == NULL) return error_of(want->real[at + k], got->real[at + k]);
    for (int64_t j = 0; j < width; j++) {
        if (got_ids[at + j] == want_ids[at + k]) return error_of(want->real[at + k], got->real[at + j]);
    }
    return 0; /* another choice: judged by experts.N */
}

static void judge_numbers(const neap_cli_judge *judge, const neap_cli_tensor *want, const neap_cli_tensor *got,
                          neap_cli_comparison *c) {
    int64_t n = neap_cli_tensor_size(want), worst = -1;
    double sum = 0;
    neap_cli_tensor ids = {0};
    const neap_cli_tensor *our_ids = NULL;
    if (has_prefix(want->name, "expert_weight.")) {
        char name[128];
        neap_tensor_info info;
        snprintf(name, sizeof name, "experts%s", strchr(want->name, '.'));
        our_ids = neap_cli_tensor_find(judge->ours, name);
        if (our_ids != NULL && neap_tensors_find(judge->golden, name, &info) == NEAP_OK)
            neap_cli_tensor_load(judge->golden, &info, &ids);
        if (our_ids == NULL || our_ids->integer == NULL || ids.integer == NULL || neap_cli_tensor_size(&ids) != n ||
            neap_cli_tensor_size(our_ids) != n)
            neap_cli_tensor_free(&ids), our_ids = NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        double e = our_ids == NULL
                       ? error_of(want->real[i], got->real[i])
                       : weight_error(want, got, ids.integer, our_ids->integer, i / want->shape[1], i % want->shape[1]);
        if (worst < 0 || e > c->max_error) c->max_error = e, worst = i;
        sum += e;
    }
    c->is_real = 1;
    c->mean_error = n > 0 ? sum / (double)n : 0;
    set_tolerance(judge, want, c);
    int is_miss = !(c->max_error <= c->max_tolerance && c->mean_error <= c->mean_tolerance);
    c->verdict = is_miss ? NEAP_CLI_MISS : NEAP_CLI_SAME;
    if (is_miss && worst >= 0) {
        int64_t row = want->rank > 0 && want->shape[0] > 0 ? worst / (n / want->shape[0]) : 0;
        neap_cli_text_printf(&c->note, "worst in row %lld: %.7g, golden %.7g", (long long)row,
                             our_ids == NULL ? (double)got->real[worst] : NAN, (double)want->real[worst]);
        if (our_ids != NULL)
            neap_cli_text_cut(&c->note, 0), neap_cli_text_printf(&c->note, "worst in row %lld", (long long)row);
    }
    neap_cli_tensor_free(&ids);
}

static void add_shape(neap_cli_text *out, const neap_cli_tensor *t) {
    neap_cli_text_puts(out, "[");
    for (int32_t i = 0; i < t->rank; i++)
        neap_cli_text_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)t->shape[i]);
    neap_cli_text_puts(out, "]");
}

void neap_cli_judge_tensor(const neap_cli_judge *judge, const neap_cli_tensor *want, neap_cli_comparison *c) {
    const char *reason = neap_cli_not_compared(judge, want->name);
    const char *name = has_prefix(want->name, "quant.") ? want->name + strlen("quant.") : want->name;
    int is_tail = strcmp(want->name, "quant.logits_tail") == 0;
    const neap_cli_tensor *got = neap_cli_tensor_find(judge->ours, is_tail ? "logits" : name);
    int is_choice = has_prefix(name, "experts.") || has_prefix(name, "index_topk.");
    if (reason == NULL && got == NULL) reason = "this model gives neap no such tensor";
    if (reason == NULL && want->real == NULL && want->integer == NULL)
        reason = "element type is not F32, F64, I32 or I64";
    if (reason != NULL) {
        c->verdict = NEAP_CLI_NOT_COMPARED;
        neap_cli_text_puts(&c->note, reason);
        return;
    }
    int is_same_shape =
        want->rank == got->rank && memcmp(want->shape, got->shape, (size_t)want->rank * sizeof want->shape[0]) == 0;
    if (is_tail) is_same_shape = want->rank == 2 && want->shape[0] <= got->shape[0] && want->shape[1] == got->shape[1];
    int is_same_kind = (want->integer != NULL) == (got->integer != NULL) && is_choice == (want->integer != NULL);
    if (!is_same_shape || !is_same_kind || (is_choice && want->rank != 2)) {
        c->verdict = NEAP_CLI_MISS;
        neap_cli_text_puts(&c->note, is_same_kind ? "shape " : "element type differs, shape ");
        add_shape(&c->note, got);
        neap_cli_text_puts(&c->note, ", golden ");
        add_shape(&c->note, want);
        return;
    }
    if (got->n_rows_seen < got->shape[0]) {
        c->verdict = NEAP_CLI_MISS;
        neap_cli_text_printf(&c->note, "neap computed %lld of %lld rows", (long long)got->n_rows_seen,
                             (long long)got->shape[0]);
        return;
    }
    if (judge->limits != NULL)
        neap_cli_judge_quantised(judge, want, got, c);
    else if (is_choice)
        judge_choice(judge, want, got, c);
    else
        judge_numbers(judge, want, got, c);
}
