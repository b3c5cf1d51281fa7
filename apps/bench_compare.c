/* `neap bench --compare`: does a setting pay? Two engines on the same weights, one with and one without, take turns.
 *
 * A block of -n tokens by one engine, then one by the other, five times or as often as -r says: what else the machine
 * does meets both alike. The same for a prompt of -p tokens, and for a prompt beside a running sequence. The ratio is
 * time without / time with, of medians and of least times: above 1 the setting pays. Within 2 % both ways it is called
 * no difference. Results are the same bits by construction, so only time is compared.
 *
 * Called by bench.c. Owns the model, both engines and the samples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "compute.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

enum { ROUNDS = 5, ROWS_MAX = 512, TURNS_MAX = 2 };

/* What can be compared. apply: sets one side of it. */
typedef struct setting {
    const char *name, *with, *without;
    void (*apply)(neap_engine_options *e, neap_tuning *t, int is_on);
    int needs_index, needs_shared, needs_team, is_mixed;
} setting;

static void use(neap_tuning *t, uint32_t what, int beside, int team) {
    t->beside = (t->beside & ~what) | (beside ? what : 0);
    t->streams = (t->streams & ~what) | (team ? what : 0);
}
static void plan(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)t;
    e->plan = is_on ? NEAP_PLAN_REPLAY : NEAP_PLAN_EAGER;
}
static void few(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    t->few_rows = is_on ? 8 : 0;
}
static void index_beside(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    use(t, NEAP_USE_INDEX, is_on, 0);
}
static void index_team(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    use(t, NEAP_USE_INDEX, 0, is_on);
}
static void shared_beside(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    use(t, NEAP_USE_SHARED, is_on, 0);
}
static void shared_team(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    use(t, NEAP_USE_SHARED, 0, is_on);
}
static void prefetch(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    t->prefetch_kib = is_on ? 256 : 0;
}
static void mixed(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    use(t, NEAP_USE_MIXED, 0, is_on);
}
static void pin_start(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    t->pinning = is_on ? NEAP_PIN_START : NEAP_PIN_OFF;
}
static void pin_stay(neap_engine_options *e, neap_tuning *t, int is_on) {
    (void)e;
    t->pinning = is_on ? NEAP_PIN_STAY : NEAP_PIN_OFF;
}

static const setting settings[] = {
    {"plan", "replayed", "eager", plan, 0, 0, 0, 0},        {"few", "8 rows", "none", few, 0, 0, 0, 0},
    {"index", "beside", "off", index_beside, 1, 0, 0, 0},   {"index", "team", "off", index_team, 1, 0, 1, 0},
    {"shared", "beside", "off", shared_beside, 0, 1, 0, 0}, {"shared", "team", "off", shared_team, 0, 1, 1, 0},
    {"prefetch", "256 KiB", "off", prefetch, 0, 0, 0, 0},   {"mixed", "team", "off", mixed, 0, 0, 1, 1},
    {"pin", "start", "off", pin_start, 0, 0, 1, 0},         {"pin", "stay", "off", pin_stay, 0, 0, 1, 0},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

typedef struct row {
    const setting *s;
    const char *what; /* "decode", "prompt" */
    int64_t depth;
    double median[TURNS_MAX], least[TURNS_MAX]; /* seconds: without, with */
} row;

typedef struct comparison {
    neap_cli_bench_run r; /* session (no engine), tokens, numbers */
    neap_model_info info;
    neap_cli_settings base;
    neap_cli_session sides[TURNS_MAX]; /* 0 without, 1 with; they share r.s.model */
    neap_seq *seqs[TURNS_MAX];
    double *samples[TURNS_MAX];
    size_t n_samples[TURNS_MAX];
    row rows[ROWS_MAX];
    size_t n_rows;
    int64_t rounds;
} comparison;

/* ---- both sides ---- */

static int open_sides(comparison *c, const setting *s, int64_t context) {
    int code = NEAP_EXIT_OK;
    for (int side = 0; side < TURNS_MAX && code == NEAP_EXIT_OK; side++) {
        neap_cli_session *one = &c->sides[side];
        *one = c->r.s;
        one->context = (int32_t)context;
        neap_tuning t = c->base.tuning;
        neap_engine_options e = c->base.engine;
        e.seqs_max = s->is_mixed ? 2 : 1;
        e.context_max = one->context;
        e.tuning = &t;
        s->apply(&e, &t, side);
        code = neap_cli_failed(neap_engine_create(&one->engine, one->model, &e), NEAP_CLI_RUNNING);
        c->n_samples[side] = 0;
    }
    return code;
}

static void close_sides(comparison *c) {
    for (int side = 0; side < TURNS_MAX; side++) {
        neap_seq_free(c->seqs[side]);
        neap_engine_destroy(c->sides[side].engine);
        c->seqs[side] = NULL;
        c->sides[side].engine = NULL;
    }
}

static int submit(comparison *c, int side, int64_t n, int64_t n_new) {
    neap_request q;
    neap_request_init(&q);
    q.tokens = c->r.tokens;
    q.n_tokens = (size_t)n;
    q.max_tokens = (int32_t)n_new;
    q.ignore_eos = 1;
    return neap_cli_failed(neap_submit(c->sides[side].engine, &q, &c->seqs[side]), NEAP_CLI_RUNNING);
}

/* Takes n tokens of a side, each timed unless keep is 0. */
static int take_tokens(comparison *c, int side, int64_t n, int keep) {
    double last = neap_cli_seconds();
    for (int64_t i = 0; i < n;) {
        neap_event event;
        int code = neap_cli_next_event(&c->sides[side], &event);
        if (code != NEAP_EXIT_OK) return code;
        if (event.kind == NEAP_EVENT_DONE) break;
        if (event.kind != NEAP_EVENT_TOKEN) continue;
        double now = neap_cli_seconds();
        if (keep) c->samples[side][c->n_samples[side]++] = now - last;
        last = now;
        i++;
    }
    return NEAP_EXIT_OK;
}

static void add_row(comparison *c, const setting *s, const char *what, int64_t depth) {
    if (c->n_rows == ROWS_MAX) return;
    row *out = &c->rows[c->n_rows++];
    *out = (row){.s = s, .what = what, .depth = depth};
    for (int side = 0; side < TURNS_MAX; side++) {
        out->median[side] = neap_cli_median(c->samples[side], c->n_samples[side]);
        out->least[side] = c->n_samples[side] > 0 ? c->samples[side][0] : 0;
    }
}

/* ---- what is timed ---- */

static int decode(comparison *c, const setting *s, int64_t depth) {
    int64_t n = depth > 0 ? depth : 1, n_new = c->rounds * c->r.n_new + 3;
    int code = open_sides(c, s, n + n_new + 1);
    for (int side = 0; side < TURNS_MAX && code == NEAP_EXIT_OK; side++) {
        code = submit(c, side, n, n_new);
        if (code == NEAP_EXIT_OK) code = take_tokens(c, side, 3, 0); /* the prompt's, and two to be warm */
    }
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < c->rounds * TURNS_MAX; i++)
        code = take_tokens(c, (int)(i & 1), c->r.n_new, 1);
    if (code == NEAP_EXIT_OK) add_row(c, s, "decode", depth);
    close_sides(c);
    return code;
}

static int prompt(comparison *c, const setting *s) {
    int64_t n = c->r.n_prompt;
    int code = open_sides(c, s, n + 2);
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < (c->rounds + 1) * TURNS_MAX; i++) {
        int side = (int)(i & 1);
        double begin = neap_cli_seconds();
        code = submit(c, side, n, 1);
        if (code == NEAP_EXIT_OK) code = take_tokens(c, side, 2, 0);
        if (i >= TURNS_MAX) c->samples[side][c->n_samples[side]++] = neap_cli_seconds() - begin;
        neap_seq_free(c->seqs[side]);
        c->seqs[side] = NULL;
    }
    if (code == NEAP_EXIT_OK) add_row(c, s, "prompt", n);
    close_sides(c);
    return code;
}

/* Time of a token while a prompt is read, and of that prompt. */
static int together(comparison *c, const setting *s) {
    int64_t context = neap_cli_mixed_steps(&c->r) + c->r.n_new + 2;
    if (context < c->r.n_prompt + 2) context = c->r.n_prompt + 2;
    int code = open_sides(c, s, context);
    double *prompts[TURNS_MAX];
    for (int side = 0; side < TURNS_MAX; side++) prompts[side] = neap_cli_alloc((size_t)c->rounds + 1, sizeof(double));
    size_t n_prompts = 0;
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < c->rounds * TURNS_MAX; i++) {
        int side = (int)(i & 1);
        neap_cli_mixed m;
        code = neap_cli_mixed_measure(&m, &c->sides[side], &c->r);
        if (code != NEAP_EXIT_OK) break;
        c->samples[side][c->n_samples[side]++] = m.decode_during > 0 ? 1 / m.decode_during : 0;
        n_prompts = (size_t)i / TURNS_MAX + 1;
        prompts[side][n_prompts - 1] = 1 / m.prompt_during;
    }
    if (code == NEAP_EXIT_OK) {
        add_row(c, s, "token beside", c->r.n_prompt);
        for (int side = 0; side < TURNS_MAX; side++) {
            memcpy(c->samples[side], prompts[side], n_prompts * sizeof(double));
            c->n_samples[side] = n_prompts;
        }
        for (int side = 0; side < TURNS_MAX; side++)
            for (size_t k = 0; k < n_prompts; k++) c->samples[side][k] *= (double)c->r.n_prompt;
        add_row(c, s, "prompt beside", c->r.n_prompt);
    }
    for (int side = 0; side < TURNS_MAX; side++) free(prompts[side]);
    close_sides(c);
    return code;
}

/* NULL: the setting can be compared; else why not. */
static const char *why_not(const comparison *c, const setting *s) {
    int32_t threads = c->base.engine.n_threads > 0 ? c->base.engine.n_threads : neap_default_threads();
    if (s->needs_index && c->info.n_index_layers == 0) return "the model has no indexer";
    if (s->needs_shared && c->info.n_moe_layers == 0) return "the model has no experts";
    if (s->needs_team && threads < 2) return "it takes at least two threads (-t)";
    if (s->is_mixed && c->r.n_prompt == 0) return "it takes a prompt (-p)";
    return c->r.n_prompt == 0 && c->r.n_new == 0 ? "neither -p nor -n leaves anything to do" : NULL;
}

static int compare_all(comparison *c, const char *wanted) {
    int code = NEAP_EXIT_OK, is_all = strcmp(wanted, "all") == 0;
    const char *why = "no setting applies";
    for (int i = 0; code == NEAP_EXIT_OK && i < SETTINGS; i++) {
        const setting *s = &settings[i];
        if (!is_all && strcmp(wanted, s->name) != 0) continue;
        const char *reason = why_not(c, s);
        if (reason != NULL) {
            why = reason;
            continue;
        }
        neap_cli_progress("comparing", "settings", (uint64_t)i, SETTINGS, 0);
        if (s->is_mixed) {
            code = together(c, s);
            continue;
        }
        for (size_t k = 0; code == NEAP_EXIT_OK && k < c->r.n_levels && c->r.n_new > 0; k++)
            code = decode(c, s, c->r.levels[k].depth);
        if (code == NEAP_EXIT_OK && c->r.n_prompt > 0) code = prompt(c, s);
    }
    neap_cli_progress_clear();
    if (code != NEAP_EXIT_OK || c->n_rows > 0) return code;
    neap_cli_error("--compare %s: nothing to compare: %s", wanted, why);
    return NEAP_EXIT_USAGE;
}

/* ---- results ---- */

static double ratio(const double x[TURNS_MAX]) { return x[1] > 0 ? x[0] / x[1] : 0; }

static const char *verdict(const row *r) {
    double a = ratio(r->median), b = ratio(r->least);
    return a >= 1.02 && b >= 1.02 ? "pays" : a <= 0.98 && b <= 0.98 ? "costs" : "no difference";
}

static void print_rows(const comparison *c, int threads) {
    neap_cli_outf("%s, %d thread%s, %lld rounds; time without / time with, above 1 it pays\n", c->r.s.options->model,
                  threads, threads == 1 ? "" : "s", (long long)c->rounds);
    neap_cli_outf("| %-8s | %-8s | %-8s | %-13s | %6s | %11s | %11s | %6s | %6s | %-13s |\n", "what", "with", "without",
                  "time of", "tokens", "with", "without", "median", "least", "verdict");
    neap_cli_outf("| -------- | -------- | -------- | ------------- | -----: | ----------: | ----------: | -----: | "
                  "-----: | ------------- |\n");
    for (size_t i = 0; i < c->n_rows; i++) {
        const row *r = &c->rows[i];
        neap_cli_outf("| %-8s | %-8s | %-8s | %-13s | %6lld | %8.3f ms | %8.3f ms | %6.3f | %6.3f | %-13s |\n",
                      r->s->name, r->s->with, r->s->without, r->what, (long long)r->depth, r->median[1] * 1e3,
                      r->median[0] * 1e3, ratio(r->median), ratio(r->least), verdict(r));
    }
}

static void print_csv(const comparison *c) {
    neap_cli_outf("what,with,without,time_of,tokens,with_median_ms,without_median_ms,with_least_ms,without_least_ms,"
                  "ratio_of_medians,ratio_of_least,verdict\n");
    for (size_t i = 0; i < c->n_rows; i++) {
        const row *r = &c->rows[i];
        neap_cli_outf("%s,%s,%s,%s,%lld,%.6g,%.6g,%.6g,%.6g,%.5g,%.5g,%s\n", r->s->name, r->s->with, r->s->without,
                      r->what, (long long)r->depth, r->median[1] * 1e3, r->median[0] * 1e3, r->least[1] * 1e3,
                      r->least[0] * 1e3, ratio(r->median), ratio(r->least), verdict(r));
    }
}

static void print_json(const comparison *c, int threads) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", c->r.s.options->model);
    neap_cli_json_int(&out, "threads", threads);
    neap_cli_json_int(&out, "rounds", c->rounds);
    neap_cli_json_open(&out, "comparisons", '[');
    for (size_t i = 0; i < c->n_rows; i++) {
        const row *r = &c->rows[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "what", r->s->name);
        neap_cli_json_cstring(&out, "with", r->s->with);
        neap_cli_json_cstring(&out, "without", r->s->without);
        neap_cli_json_cstring(&out, "time_of", r->what);
        neap_cli_json_int(&out, "tokens", r->depth);
        neap_cli_json_real(&out, "with_median_ms", r->median[1] * 1e3, 6);
        neap_cli_json_real(&out, "without_median_ms", r->median[0] * 1e3, 6);
        neap_cli_json_real(&out, "with_least_ms", r->least[1] * 1e3, 6);
        neap_cli_json_real(&out, "without_least_ms", r->least[0] * 1e3, 6);
        neap_cli_json_real(&out, "ratio_of_medians", ratio(r->median), 5);
        neap_cli_json_real(&out, "ratio_of_least", ratio(r->least), 5);
        neap_cli_json_cstring(&out, "verdict", verdict(r));
        neap_cli_json_close(&out, '}');
    }
    neap_cli_text_puts(&out, "]}\n");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

static void print(const comparison *c) {
    const neap_cli_options *o = c->r.s.options;
    int threads = c->base.engine.n_threads > 0 ? c->base.engine.n_threads : neap_default_threads();
    if (o->json)
        print_json(c, threads);
    else if (o->csv)
        print_csv(c);
    else
        print_rows(c, threads);
}

static int prepare(comparison *c, const neap_cli_options *o) {
    int code = neap_cli_bench_lists(&c->r, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&c->r.s, o);
    c->info.struct_size = sizeof c->info;
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(c->r.s.model, &c->info), NEAP_CLI_RUNNING);
    if (code != NEAP_EXIT_OK) return code;
    int64_t most = c->r.n_prompt > 0 ? c->r.n_prompt : 1;
    for (size_t i = 0; i < c->r.n_levels; i++)
        if (c->r.levels[i].depth > most) most = c->r.levels[i].depth;
    neap_cli_bench_tokens(&c->r, most, c->info.vocab);
    neap_cli_settings_fill(&c->base, o, c->r.s.model);
    for (int side = 0; side < TURNS_MAX; side++)
        c->samples[side] = neap_cli_alloc((size_t)(c->rounds * (c->r.n_new + 1)) + 1, sizeof *c->samples[side]);
    return NEAP_EXIT_OK;
}

int neap_cli_bench_compare(const neap_cli_options *o) {
    comparison *c = neap_cli_alloc(1, sizeof *c);
    c->r.n_prompt = o->bench_prompt;
    c->r.n_new = o->bench_new;
    c->r.repetitions = 1;
    c->rounds = o->repetitions > 0 ? o->repetitions : ROUNDS;
    int code = prepare(c, o);
    if (code == NEAP_EXIT_OK) code = compare_all(c, o->compare);
    if (code == NEAP_EXIT_OK) print(c);
    neap_cli_session_close(&c->r.s);
    for (int side = 0; side < TURNS_MAX; side++) free(c->samples[side]);
    free(c->r.tokens);
    free(c);
    return code;
}
