/* `neap bench`: prompt and decode speed at chosen context depths, and memory against what was announced.
 *
 *   for each depth d: prompt of d random tokens (seed fixed) -> rate over all of it and over its last -p tokens,
 *   then -n tokens, each timed -> median and minimum, and the least CPU time of all threads
 *
 * Depth 0 stands for a prompt of -p tokens and, for decoding, a prompt of one. Every depth is a request of its own, so
 * no number depends on the order. The engine has room for the deepest one; its memory is announced before the first
 * token, and the memory that the process itself wrote (RssAnon: without the pages of its program file), less what it
 * held before the model was opened, is shown beside it: after the last token, for none of it is given back before.
 * Tokens are the greedy ones; the model's end tokens do not end anything. --batch decodes several sequences together,
 * each after a prompt of one token, all different; one step gives every one of them a token. Beside the rates stand
 * their shares of what the machine can do (roofline.h), measured before the model is opened and again at the end.
 *
 * --mixed is in bench_mixed.c, --compare in bench_compare.c; bench_print.c and bench_plot.c show the results.
 * Called by main. Owns the prompt and the samples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "commands.h"
#include "compute.h"
#include "report.h"
#include "terminal.h"

/* ---- arguments ---- */

/* "0,4096,32K": numbers from least to most, K = 1024. */
static int parse_list(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, size_t *n) {
    const char *p = text;
    for (*n = 0;; p++) {
        char *end;
        long long value = *p >= '0' && *p <= '9' ? strtoll(p, &end, 10) : -1;
        if (value >= 0 && (*end == 'k' || *end == 'K')) {
            value = value > INT32_MAX ? value : value * 1024;
            end++;
        }
        if (value < least || value > most || (*end != ',' && *end != 0) || *n == NEAP_CLI_DEPTHS_MAX) {
            neap_cli_error("%s: \"%s\" is not a list of at most %d numbers from %lld to %lld such as 1,16", option,
                           text, NEAP_CLI_DEPTHS_MAX, (long long)least, (long long)most);
            return NEAP_EXIT_USAGE;
        }
        out[(*n)++] = value;
        if (*end == 0) return NEAP_EXIT_OK;
        p = end;
    }
}

int neap_cli_bench_lists(neap_cli_bench_run *r, const neap_cli_options *o) {
    int64_t values[NEAP_CLI_DEPTHS_MAX];
    int code = parse_list("--depth", o->depth, 0, INT32_MAX / 2, values, &r->n_levels);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_levels; i++) r->levels[i].depth = values[i];
    r->seqs_max = 1;
    if (o->mixed) r->seqs_max = 2;
    if (code != NEAP_EXIT_OK || o->batch == NULL) return code;
    code = parse_list("--batch", o->batch, 1, NEAP_CLI_BATCH_MAX, values, &r->n_batches);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_batches; i++) {
        r->batches[i].n_seqs = values[i];
        if (values[i] > r->seqs_max) r->seqs_max = values[i];
    }
    return code;
}

static int64_t prompt_of(const neap_cli_bench_run *r, int64_t depth) {
    return depth > 0 ? depth : r->n_prompt > 0 ? r->n_prompt : 1;
}

void neap_cli_bench_tokens(neap_cli_bench_run *r, int64_t n, int32_t vocab) {
    uint64_t seed = 1;
    r->n_tokens = n;
    r->tokens = neap_cli_alloc((size_t)n, sizeof *r->tokens);
    for (int64_t i = 0; i < n; i++) { /* splitmix64 */
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        r->tokens[i] = (int32_t)((z ^ z >> 31) % (uint64_t)vocab);
    }
}

/* ---- memory of this process ---- */

/* A line of /proc/self/status, in bytes; 0: unknown. */
static uint64_t status_bytes(const char *name) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    size_t n = strlen(name);
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, name, n) == 0 && line[n] == ':') kib = strtoull(line + n + 1, NULL, 10);
    }
    (void)fclose(f);
    return (uint64_t)kib * 1024;
}

/* The peak begins anew: that of measuring the limits, and that of loading, are none of the next part. */
static void reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f == NULL) return;
    (void)fputs("5", f);
    (void)fclose(f);
}

/* ---- one request ---- */

/* Of all threads: does not grow with other load on the machine as the wall clock does. */
static double cpu_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

typedef struct times {
    double begin, tail_begin, end; /* of the prompt; tail: its last -p tokens, at a border of steps */
    int64_t tail_tokens;
} times;

static int measure(neap_cli_bench_run *r, int64_t n_prompt, int64_t n_new, times *t) {
    neap_request q;
    neap_request_init(&q);
    q.tokens = r->tokens;
    q.n_tokens = (size_t)n_prompt;
    q.max_tokens = (int32_t)n_new + 1; /* the first one comes with the prompt */
    q.ignore_eos = 1;
    neap_seq *seq = NULL;
    neap_event event;
    int64_t tail = n_prompt - (r->n_prompt < n_prompt ? r->n_prompt : n_prompt), n_seen = 0;
    *t = (times){.begin = neap_cli_seconds(), .tail_tokens = n_prompt - tail};
    t->tail_begin = t->begin;
    int code = neap_cli_failed(neap_submit(r->s.engine, &q, &seq), NEAP_CLI_RUNNING);
    double last = 0, last_cpu = 0;
    while (code == NEAP_EXIT_OK) {
        code = neap_cli_next_event(&r->s, &event);
        if (code != NEAP_EXIT_OK || event.kind == NEAP_EVENT_DONE) break;
        double now = neap_cli_seconds(), cpu = cpu_seconds();
        if (event.kind == NEAP_EVENT_PROMPT && event.n_done <= tail) {
            t->tail_begin = now;
            t->tail_tokens = n_prompt - event.n_done;
        }
        if (event.kind == NEAP_EVENT_PROMPT)
            neap_cli_progress("prompt", "tokens", (uint64_t)event.n_done, (uint64_t)event.n_total,
                              (double)event.n_done / (now - t->begin));
        if (event.kind != NEAP_EVENT_TOKEN) continue;
        if (n_seen++ == 0)
            t->end = now;
        else {
            r->samples[r->n_samples++] = now - last;
            if (r->n_samples == 1 || cpu - last_cpu < r->cpu) r->cpu = cpu - last_cpu;
        }
        last = now;
        last_cpu = cpu;
    }
    neap_cli_progress_clear();
    neap_seq_free(seq);
    return code;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double neap_cli_median(double *x, size_t n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return n > 0 ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

static int measure_level(neap_cli_bench_run *r, neap_cli_level *l) {
    r->n_samples = 0;
    for (int64_t i = 0; i < r->repetitions; i++) {
        times t;
        int64_t n = prompt_of(r, l->depth);
        int code = measure(r, n, l->depth > 0 ? r->n_new : 0, &t);
        if (code != NEAP_EXIT_OK) return code;
        double rate = (double)n / (t.end - t.begin), tail = (double)t.tail_tokens / (t.end - t.tail_begin);
        if (rate > l->prompt_rate) l->prompt_rate = rate;
        if (r->n_prompt > 0 && tail > l->tail_rate) l->tail_rate = tail;
        if (l->depth == 0) code = measure(r, 1, r->n_new, &t);
        if (code != NEAP_EXIT_OK) return code;
    }
    l->n_samples = r->n_samples;
    if (r->n_samples == 0) return NEAP_EXIT_OK;
    l->median = neap_cli_median(r->samples, r->n_samples);
    for (size_t i = 0; i < r->n_samples; i++) l->mean += r->samples[i] / (double)r->n_samples;
    l->least = r->samples[0];
    l->cpu = r->cpu;
    return NEAP_EXIT_OK;
}

/* ---- several sequences ---- */

/* All sequences start in the same step and end in the same one, so every n_seqs tokens make a step. */
static int measure_together(neap_cli_bench_run *r, int64_t n_seqs) {
    neap_seq *seqs[NEAP_CLI_BATCH_MAX] = {0};
    int64_t n_seen = 0, n_ended = 0;
    double last = 0;
    int code = NEAP_EXIT_OK;
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < n_seqs; i++) {
        neap_request q;
        neap_request_init(&q);
        q.tokens = r->tokens + i;
        q.n_tokens = 1;
        q.max_tokens = (int32_t)r->n_new + 1;
        q.ignore_eos = 1;
        code = neap_cli_failed(neap_submit(r->s.engine, &q, &seqs[i]), NEAP_CLI_RUNNING);
    }
    while (code == NEAP_EXIT_OK && n_ended < n_seqs) {
        neap_event event;
        code = neap_cli_next_event(&r->s, &event);
        if (code != NEAP_EXIT_OK) break;
        n_ended += event.kind == NEAP_EVENT_DONE;
        if (event.kind != NEAP_EVENT_TOKEN || ++n_seen % n_seqs != 0) continue;
        double now = neap_cli_seconds();
        if (n_seen > n_seqs) r->samples[r->n_samples++] = now - last;
        last = now;
    }
    for (int64_t i = 0; i < n_seqs; i++) neap_seq_free(seqs[i]);
    return code;
}

static int measure_batch(neap_cli_bench_run *r, neap_cli_batch *b) {
    int code = NEAP_EXIT_OK;
    r->n_samples = 0;
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < r->repetitions; i++) code = measure_together(r, b->n_seqs);
    if (code != NEAP_EXIT_OK || r->n_samples == 0) return code;
    b->median = neap_cli_median(r->samples, r->n_samples);
    b->least = r->samples[0];
    return NEAP_EXIT_OK;
}

/* ---- the command ---- */

static int start(neap_cli_bench_run *r, const neap_model_info *info, neap_engine_options *e) {
    int64_t most = r->seqs_max;
    for (size_t i = 0; i < r->n_levels; i++) {
        int64_t n = prompt_of(r, r->levels[i].depth);
        if (n > most) most = n;
    }
    int64_t context = most + r->n_new + 1;
    if (r->s.options->mixed) {
        if (r->n_prompt > most) most = r->n_prompt;
        int64_t mixed = neap_cli_mixed_steps(r) + r->n_new + 2;
        if (mixed < r->n_prompt + 2) mixed = r->n_prompt + 2;
        if (mixed > context) context = mixed;
    }
    neap_cli_bench_tokens(r, most, info->vocab);
    neap_cli_settings settings;
    neap_cli_settings_fill(&settings, r->s.options, r->s.model);
    *e = settings.engine;
    e->seqs_max = (int32_t)r->seqs_max;
    e->context_max = (int32_t)context;
    r->announced.struct_size = sizeof r->announced;
    int code = neap_cli_failed(neap_engine_memory(r->s.model, e, &r->announced), NEAP_CLI_RUNNING);
    e->tuning = NULL; /* it ends here */
    if (code != NEAP_EXIT_OK) return code;
    r->load_bytes = status_bytes("VmHWM");
    reset_peak();
    return neap_cli_session_start_many(&r->s, e->context_max, e->seqs_max);
}

/* The least times against the best limits: both are what the machine does undisturbed. */
static int find_shares(neap_cli_bench_run *r, const neap_engine_options *e) {
    int code = NEAP_EXIT_OK;
    neap_cli_limits_measure(r->s.options, &r->limits);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_levels; i++) {
        neap_cli_level *l = &r->levels[i];
        int64_t n = prompt_of(r, l->depth), depth = (l->depth > 0 ? n : 1) + r->n_new / 2;
        code = neap_cli_share_find(r->s.model, e, &r->limits, 1, n, depth, l->prompt_rate > 0 ? 1 / l->prompt_rate : 0,
                                   l->least, &l->share);
    }
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_batches; i++) {
        neap_cli_batch *b = &r->batches[i];
        neap_cli_share share;
        code = neap_cli_share_find(r->s.model, e, &r->limits, (int32_t)b->n_seqs, 1, 1 + r->n_new / 2, 0, b->least,
                                   &share);
        if (code == NEAP_EXIT_OK) b->share = share.decode_share;
    }
    return code;
}

/* Flags that exclude each other or would do nothing. */
static int check_flags(const neap_cli_options *o) {
    if (o->json + o->csv + o->markdown > 1)
        neap_cli_error("give one of --json, --csv, --markdown");
    else if (o->compare != NULL && (o->plot != NULL || o->trace != NULL || o->mixed || o->batch != NULL))
        neap_cli_error("--compare measures something else, without --plot, --trace, --mixed and --batch");
    else if (o->plot != NULL && o->trace != NULL && strcmp(o->plot, o->trace) == 0)
        neap_cli_error("--plot and --trace cannot both be written to %s", o->plot);
    else if (o->mixed && o->bench_prompt == 0)
        neap_cli_error("--mixed needs a prompt: -p N");
    else
        return o->plot != NULL ? neap_cli_check_overwrite(o->plot) : NEAP_EXIT_OK;
    return NEAP_EXIT_USAGE;
}

static int measure_all(neap_cli_bench_run *r) {
    int code = NEAP_EXIT_OK;
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_levels; i++) code = measure_level(r, &r->levels[i]);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_batches; i++) code = measure_batch(r, &r->batches[i]);
    if (code == NEAP_EXIT_OK && r->s.options->mixed) code = neap_cli_mixed_measure(&r->mixed, &r->s, r);
    if (code != NEAP_EXIT_OK) return code;
    r->peak_bytes = status_bytes("RssAnon");
    r->process_bytes = status_bytes("VmHWM");
    r->stats.struct_size = sizeof r->stats;
    return neap_cli_failed(neap_engine_statistics(r->s.engine, &r->stats), NEAP_CLI_RUNNING);
}

static int bench(neap_cli_bench_run *r, const neap_cli_options *o, neap_cli_watch *watch) {
    neap_model_info info = {.struct_size = sizeof info};
    neap_engine_options e;
    neap_cli_limits_measure(o, &r->limits);
    reset_peak();
    r->before_bytes = status_bytes("RssAnon");
    double begin = neap_cli_seconds();
    int code = neap_cli_session_open(&r->s, o);
    r->s.watch = watch;
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(r->s.model, &info), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) code = start(r, &info, &e);
    r->load_seconds = neap_cli_seconds() - begin;
    if (watch != NULL) neap_cli_signals_hold(); /* what was traced until then is kept */
    if (code == NEAP_EXIT_OK) code = measure_all(r);
    if (code == NEAP_EXIT_OK) code = find_shares(r, &e);
    if (code == NEAP_EXIT_OK) neap_cli_bench_print(r, &info, &e);
    if (code == NEAP_EXIT_OK && o->plot != NULL) code = neap_cli_bench_plot(r, &info, o->plot);
    neap_cli_session_close(&r->s);
    return code;
}

int neap_cli_bench(const neap_cli_options *o) {
    neap_cli_bench_run r = {.n_prompt = o->bench_prompt, .n_new = o->bench_new, .repetitions = 1};
    if (o->repetitions > 0) r.repetitions = o->repetitions;
    neap_cli_watch *watch = NULL;
    int code = check_flags(o);
    if (code == NEAP_EXIT_OK && o->compare != NULL) return neap_cli_bench_compare(o);
    if (code == NEAP_EXIT_OK) code = neap_cli_bench_lists(&r, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_watch_open(&watch, o);
    if (code != NEAP_EXIT_OK) return code;
    r.samples = neap_cli_alloc((size_t)(r.repetitions * r.n_new) + 1, sizeof *r.samples);
    code = bench(&r, o, watch);
    if (neap_cli_signal() != 0) code = 128 + neap_cli_signal();
    free(r.tokens);
    free(r.samples);
    return neap_cli_watch_close(watch, code);
}
