/* `neap perplexity`: how well a model predicts a text, in windows.
 *
 *   text -> tokens -> windows of N -> one request each, logits of all rows through the tap -> -log p(next token)
 *   perplexity = exp(mean of -log p), its error = perplexity * standard error of the mean
 *
 * Without --stride the windows stand end to end and the second half of each is scored: the convention of llama.cpp, so
 * that numbers can be compared (nothing is put in front of a window; that program adds a first token where a
 * vocabulary asks for it, the Kimi ones do not). With --stride S a window begins every S tokens and scores what the
 * one before did not reach; S is less than a window, so what it scores always has context. A row of logits is used
 * while it is shown and never kept, so memory does not grow with the text beyond its tokens.
 *
 * Called by main. Owns the tokens; divergence.c owns the files of logits. */
#include "perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "compute.h"
#include "json_in.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

enum { WINDOW_USUAL = 512 };

/* ---- numbers ---- */

void neap_cli_series_add(neap_cli_series *s, double x) {
    double distance = x - s->mean;
    s->n++;
    s->mean += distance / (double)s->n;
    s->spread += distance * (x - s->mean);
}

double neap_cli_series_error(const neap_cli_series *s) {
    if (s->n < 2) return 0;
    return sqrt(s->spread / (double)(s->n - 1) / (double)s->n);
}

double neap_cli_log_sum(const float *logits, int64_t n) {
    double most = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++) {
        if ((double)logits[i] > most) most = (double)logits[i];
    }
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

/* ---- windows ---- */

int neap_cli_plan_window(const neap_cli_plan *p, int64_t k, neap_cli_window *w) {
    int64_t n = p->n_tokens;
    if (p->stride == 0) {
        int64_t window = p->window < n ? p->window : n; /* a text shorter than a window is one */
        if (n < 2 || (k + 1) * window > n) return 0;
        *w = (neap_cli_window){.begin = k * window, .end = (k + 1) * window};
        w->first = w->begin + (window < 3 ? 1 : window / 2 + 1);
        return 1;
    }
    int64_t begin = k * p->stride, before = k > 0 ? begin - p->stride + p->window : 1; /* where scoring goes on */
    if (before >= n) return 0;
    *w = (neap_cli_window){.begin = begin, .end = begin + p->window < n ? begin + p->window : n, .first = before};
    return w->first < w->end;
}

void neap_cli_plan_fill(neap_cli_plan *p) {
    neap_cli_window w;
    p->n_windows = p->n_scored = 0;
    for (int64_t k = 0; neap_cli_plan_window(p, k, &w); k++) {
        p->n_windows++;
        p->n_scored += w.end - w.first;
    }
}

/* ---- one run ---- */

typedef struct run {
    neap_cli_session s;
    neap_model_info info;
    neap_cli_plan plan;
    neap_cli_window w;
    int32_t *tokens;
    neap_cli_series nll; /* of the text, in nats */
    neap_cli_saved save, against;
    int64_t n_seen; /* scored rows of this window */
    int code;       /* first failure inside the tap */
    double seconds;
} run;

static void take_rows(void *user, const neap_tap *tap) {
    run *r = user;
    if (r->code != NEAP_EXIT_OK || tap->is_int || tap->rank != 2 || strcmp(tap->name, "logits") != 0) return;
    int64_t vocab = tap->shape[1];
    if (vocab != r->info.vocab || tap->position < 0) return;
    for (int64_t i = 0; i < tap->shape[0] && r->code == NEAP_EXIT_OK; i++) {
        int64_t position = r->w.begin + tap->position + i + 1; /* of the token that this row predicts */
        if (position < r->w.first || position >= r->w.end) continue;
        const float *logits = (const float *)tap->data + i * vocab;
        int32_t token = r->plan.tokens[position];
        double log_sum = neap_cli_log_sum(logits, vocab);
        neap_cli_series_add(&r->nll, log_sum - (double)logits[token]);
        r->n_seen++;
        if (r->save.writer != NULL) r->code = neap_cli_save_row(&r->save, position, logits);
        if (r->code == NEAP_EXIT_OK && r->against.file != NULL)
            r->code = neap_cli_against_row(&r->against, position, token, logits, log_sum);
    }
}

static double perplexity(const neap_cli_series *nll) { return exp(nll->mean); }
static double perplexity_error(const neap_cli_series *nll) { return exp(nll->mean) * neap_cli_series_error(nll); }

/* The estimate so far: about once a second, every window when verbose. */
static void say_progress(run *r, int64_t k, double *said) {
    double now = neap_cli_seconds();
    if (r->s.options->quiet || k + 1 == r->plan.n_windows || (!neap_cli_is_verbose() && now - *said < 1)) return;
    *said = now;
    neap_cli_note("window %lld of %lld: perplexity %.4f +/- %.4f", (long long)k + 1, (long long)r->plan.n_windows,
                  perplexity(&r->nll), perplexity_error(&r->nll));
}

static int all_windows(run *r) {
    double begin = neap_cli_seconds(), said = begin;
    int code = NEAP_EXIT_OK;
    neap_cli_answer_begin(); /* Ctrl-C is looked at between windows: no half file stays behind */
    for (int64_t k = 0; code == NEAP_EXIT_OK && neap_cli_plan_window(&r->plan, k, &r->w); k++) {
        r->n_seen = 0;
        /* The last token of a window is predicted, but predicts nothing. */
        code = neap_cli_compute(&r->s, r->plan.tokens + r->w.begin, (size_t)(r->w.end - r->w.begin - 1), 1, 0,
                                take_rows, r);
        if (code == NEAP_EXIT_OK) code = r->code;
        if (code == NEAP_EXIT_OK && r->n_seen != r->w.end - r->w.first) {
            neap_cli_error("the engine gave %lld rows of logits where %lld are scored", (long long)r->n_seen,
                           (long long)(r->w.end - r->w.first));
            code = NEAP_EXIT_INTERNAL;
        }
        if (code == NEAP_EXIT_OK && neap_cli_signal() != 0) code = 128 + neap_cli_signal();
        if (code == NEAP_EXIT_OK) say_progress(r, k, &said);
    }
    neap_cli_answer_end();
    r->seconds = neap_cli_seconds() - begin;
    if (code == NEAP_EXIT_OK && !isfinite(r->nll.mean)) {
        neap_cli_error("the text has a token of probability 0: the perplexity is infinite");
        code = NEAP_EXIT_INTERNAL;
    }
    return code;
}

/* ---- output ---- */

static double quantile(const neap_cli_saved *a, double q) {
    int64_t at = (int64_t)((double)(a->n_positions - 1) * q + 0.5);
    return a->kl[at];
}

static void print_text(const run *r) {
    const neap_cli_saved *a = &r->against;
    int64_t window = r->plan.window < r->plan.n_tokens ? r->plan.window : r->plan.n_tokens;
    neap_cli_outf("Final estimate: PPL = %.4f +/- %.5f\n", perplexity(&r->nll), perplexity_error(&r->nll));
    neap_cli_outf("%lld tokens scored in %lld window%s of %lld, %.1f s\n", (long long)r->plan.n_scored,
                  (long long)r->plan.n_windows, r->plan.n_windows == 1 ? "" : "s", (long long)window, r->seconds);
    if (a->kl == NULL) return;
    neap_cli_outf("\nagainst %s, %lld positions, its PPL = %.4f\n", a->path, (long long)a->n_positions,
                  perplexity(&a->nll));
    neap_cli_outf("KL(saved || now)  mean %.6g +/- %.2g, median %.3g, 99 %% %.3g, max %.3g\n", a->divergence.mean,
                  neap_cli_series_error(&a->divergence), quantile(a, 0.5), quantile(a, 0.99), quantile(a, 1));
    neap_cli_outf("same best token   %.3f %% +/- %.3f\n", 100 * a->same.mean, 100 * neap_cli_series_error(&a->same));
    neap_cli_outf("log p(text)       mean difference %+.6g +/- %.2g\n", a->difference.mean,
                  neap_cli_series_error(&a->difference));
}

static void print_json(const run *r) {
    const neap_cli_options *o = r->s.options;
    const neap_cli_saved *a = &r->against;
    neap_engine_options e;
    neap_cli_text out = {0};
    neap_engine_options_init(&e);
    neap_cli_number_types(o, &e);
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", o->model);
    neap_cli_json_cstring(&out, "file", o->file != NULL ? o->file : o->tokens);
    neap_cli_json_cstring(&out, "cache_type", neap_cli_cache_name(e.cache_type));
    neap_cli_json_cstring(&out, "index_type", neap_cli_index_name(e.index_type));
    neap_cli_json_cstring(&out, "act_type", neap_cli_act_name(e.act_type));
    neap_cli_json_cstring(&out, "moe_act_type", neap_cli_act_name(e.moe_act_type));
    neap_cli_json_int(&out, "tokens", r->plan.n_tokens);
    neap_cli_json_int(&out, "window", r->plan.window);
    neap_cli_json_int(&out, "stride", r->plan.stride);
    neap_cli_json_int(&out, "windows", r->plan.n_windows);
    neap_cli_json_int(&out, "scored", r->plan.n_scored);
    neap_cli_json_real(&out, "nll", r->nll.mean, 12);
    neap_cli_json_real(&out, "nll_error", neap_cli_series_error(&r->nll), 6);
    neap_cli_json_real(&out, "perplexity", perplexity(&r->nll), 12);
    neap_cli_json_real(&out, "perplexity_error", perplexity_error(&r->nll), 6);
    if (a->kl != NULL) {
        neap_cli_json_open(&out, "against", '{');
        neap_cli_json_cstring(&out, "file", a->path);
        neap_cli_json_int(&out, "positions", a->n_positions);
        neap_cli_json_real(&out, "nll", a->nll.mean, 12);
        neap_cli_json_real(&out, "perplexity", perplexity(&a->nll), 12);
        neap_cli_json_real(&out, "kl_mean", a->divergence.mean, 12);
        neap_cli_json_real(&out, "kl_error", neap_cli_series_error(&a->divergence), 6);
        neap_cli_json_real(&out, "kl_median", quantile(a, 0.5), 9);
        neap_cli_json_real(&out, "kl_p99", quantile(a, 0.99), 9);
        neap_cli_json_real(&out, "kl_max", quantile(a, 1), 9);
        neap_cli_json_real(&out, "same_top", a->same.mean, 9);
        neap_cli_json_real(&out, "same_top_error", neap_cli_series_error(&a->same), 6);
        neap_cli_json_real(&out, "difference", a->difference.mean, 9);
        neap_cli_json_real(&out, "difference_error", neap_cli_series_error(&a->difference), 6);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_real(&out, "seconds", r->seconds, 6);
    neap_cli_text_puts(&out, "}\n");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

/* ---- the command ---- */

static int check_flags(const neap_cli_options *o) {
    if ((o->file == NULL) == (o->tokens == NULL)) {
        neap_cli_error(o->file == NULL ? "no text: give -f FILE or --tokens FILE" : "give one of -f and --tokens");
        return NEAP_EXIT_USAGE;
    }
    int64_t window = o->ctx_size > 0 ? o->ctx_size : WINDOW_USUAL;
    if (window < 2) {
        neap_cli_error("-c: a window of %lld token predicts nothing", (long long)window);
        return NEAP_EXIT_USAGE;
    }
    if (o->stride >= window) {
        neap_cli_error("--stride: %lld leaves tokens out, windows of %lld tokens allow at most %lld",
                       (long long)o->stride, (long long)window, (long long)window - 1);
        return NEAP_EXIT_USAGE;
    }
    if (o->positions > 0 && o->save_logits == NULL) {
        neap_cli_error("--positions needs --save-logits");
        return NEAP_EXIT_USAGE;
    }
    if (o->special && o->file == NULL) {
        neap_cli_error("--special needs -f");
        return NEAP_EXIT_USAGE;
    }
    return o->save_logits != NULL ? neap_cli_check_output(o->save_logits) : NEAP_EXIT_OK;
}

static int read_tokens(run *r, const neap_cli_options *o) {
    const char *path = o->file != NULL ? o->file : o->tokens;
    size_t n = 0;
    int code;
    if (o->tokens != NULL) {
        code = neap_cli_read_ids(path, &r->tokens, &n);
    } else {
        neap_cli_text text = {0};
        code = neap_cli_session_needs_tokenizer(&r->s);
        if (code == NEAP_EXIT_OK) code = neap_cli_read_file(&text, path, NEAP_CLI_TEXT_MAX);
        if (code == NEAP_EXIT_OK)
            code = neap_cli_tokenize_text(r->s.tokenizer, neap_cli_text_string(&text), text.n,
                                          o->special ? NEAP_TOKENIZE_SPECIAL : 0, &r->tokens, &n);
        neap_cli_text_free(&text);
    }
    if (strcmp(path, "-") == 0) path = "standard input";
    if (code == NEAP_EXIT_OK) code = neap_cli_check_tokens(&r->s, path, r->tokens, n);
    if (code != NEAP_EXIT_OK) return code;
    r->plan = (neap_cli_plan){.tokens = r->tokens, .n_tokens = (int64_t)n, .stride = o->stride};
    r->plan.window = o->ctx_size > 0 ? o->ctx_size : WINDOW_USUAL;
    neap_cli_plan_fill(&r->plan);
    if (r->plan.n_scored > 0) return NEAP_EXIT_OK;
    neap_cli_error("%s: %zu token%s, too few to predict one", path, n, n == 1 ? "" : "s");
    return NEAP_EXIT_FILE;
}

int neap_cli_perplexity(const neap_cli_options *o) {
    run r = {.info = {.struct_size = sizeof r.info}};
    int code = check_flags(o);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&r.s, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(r.s.model, &r.info), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) code = read_tokens(&r, o);
    if (code == NEAP_EXIT_OK && o->against != NULL)
        code = neap_cli_against_open(&r.against, &r.plan, o->against, r.info.vocab);
    if (code == NEAP_EXIT_OK) {
        int64_t most = r.plan.window < r.plan.n_tokens ? r.plan.window : r.plan.n_tokens;
        code = neap_cli_session_start(&r.s, (int32_t)most, 1);
    }
    if (code == NEAP_EXIT_OK && o->save_logits != NULL)
        code = neap_cli_save_begin(&r.save, &r.plan, o->save_logits, r.info.vocab, o->positions, o->save_max, o->quiet);
    if (code == NEAP_EXIT_OK) code = all_windows(&r);
    if (code == NEAP_EXIT_OK && r.against.file != NULL) code = neap_cli_against_finish(&r.against);
    if (code == NEAP_EXIT_OK && r.save.writer != NULL) code = neap_cli_save_finish(&r.save);
    if (code == NEAP_EXIT_OK) {
        if (o->json)
            print_json(&r);
        else
            print_text(&r);
    }
    neap_cli_saved_close(&r.save);
    neap_cli_saved_close(&r.against);
    free(r.tokens);
    neap_cli_session_close(&r.s);
    return code;
}
