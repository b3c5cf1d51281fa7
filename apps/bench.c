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
 * Called by main. Owns the prompt and the samples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "compute.h"
#include "json_out.h"
#include "report.h"
#include "roofline.h"
#include "terminal.h"

enum { DEPTHS_MAX = 64, BATCH_MAX = 256 };

typedef struct level {
    int64_t depth;
    double prompt_rate, tail_rate; /* tokens per second: all of the prompt, its last -p tokens; 0 = none */
    double median, least, cpu;     /* seconds of a new token; cpu: least of all threads together */
    size_t n_samples;
    neap_cli_share share;
} level;

typedef struct batch {
    int64_t n_seqs;
    double median, least; /* seconds of a step */
    double share;         /* of the bytes that memory can give in that time */
} batch;

typedef struct run {
    neap_cli_session s;
    level levels[DEPTHS_MAX];
    batch batches[DEPTHS_MAX];
    size_t n_levels, n_batches;
    int64_t seqs_max;    /* the largest batch, at least 1 */
    double load_seconds; /* until the engine could take a request */
    int64_t n_prompt, n_new, repetitions;
    int32_t *tokens; /* random prompt of the greatest depth */
    double *samples; /* [repetitions * n_new] */
    double cpu;      /* least so far at this depth */
    size_t n_samples;
    neap_memory announced;
    neap_limits limits;
    neap_engine_stats stats;
    uint64_t before_bytes, peak_bytes; /* own memory before the model and at its peak */
    uint64_t process_bytes;            /* peak of the whole process, after loading */
    uint64_t load_bytes;               /* and while loading */
} run;

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
        if (value < least || value > most || (*end != ',' && *end != 0) || *n == DEPTHS_MAX) {
            neap_cli_error("%s: \"%s\" is not a list of at most %d numbers from %lld to %lld such as 1,16", option,
                           text, DEPTHS_MAX, (long long)least, (long long)most);
            return NEAP_EXIT_USAGE;
        }
        out[(*n)++] = value;
        if (*end == 0) return NEAP_EXIT_OK;
        p = end;
    }
}

static int parse_lists(run *r, const neap_cli_options *o) {
    int64_t values[DEPTHS_MAX];
    int code = parse_list("--depth", o->depth, 0, INT32_MAX / 2, values, &r->n_levels);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_levels; i++) r->levels[i].depth = values[i];
    r->seqs_max = 1;
    if (code != NEAP_EXIT_OK || o->batch == NULL) return code;
    code = parse_list("--batch", o->batch, 1, BATCH_MAX, values, &r->n_batches);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_batches; i++) {
        r->batches[i].n_seqs = values[i];
        if (values[i] > r->seqs_max) r->seqs_max = values[i];
    }
    return code;
}

static int64_t prompt_of(const run *r, int64_t depth) { return depth > 0 ? depth : r->n_prompt > 0 ? r->n_prompt : 1; }

static void fill_tokens(run *r, int64_t n, int32_t vocab) {
    uint64_t seed = 1;
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

static int measure(run *r, int64_t n_prompt, int64_t n_new, times *t) {
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

static double median_of(run *r) {
    qsort(r->samples, r->n_samples, sizeof *r->samples, compare_doubles);
    return (r->samples[(r->n_samples - 1) / 2] + r->samples[r->n_samples / 2]) / 2;
}

static int measure_level(run *r, level *l) {
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
    l->median = median_of(r);
    l->least = r->samples[0];
    l->cpu = r->cpu;
    return NEAP_EXIT_OK;
}

/* ---- several sequences ---- */

/* All sequences start in the same step and end in the same one, so every n_seqs tokens make a step. */
static int measure_together(run *r, int64_t n_seqs) {
    neap_seq *seqs[BATCH_MAX] = {0};
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

static int measure_batch(run *r, batch *b) {
    int code = NEAP_EXIT_OK;
    r->n_samples = 0;
    for (int64_t i = 0; code == NEAP_EXIT_OK && i < r->repetitions; i++) code = measure_together(r, b->n_seqs);
    if (code != NEAP_EXIT_OK || r->n_samples == 0) return code;
    b->median = median_of(r);
    b->least = r->samples[0];
    return NEAP_EXIT_OK;
}

/* ---- results ---- */

static double mib(uint64_t bytes) { return (double)bytes / 1048576.0; }
static uint64_t grown(const run *r) { return r->peak_bytes > r->before_bytes ? r->peak_bytes - r->before_bytes : 0; }

static void print_table(const run *r, const neap_model_info *info, const neap_engine_options *e) {
    char acts[96];
    neap_cli_acts(acts, sizeof acts, e, info);
    neap_cli_outf("%s: %s, %d layers, weights %s, activations %s, caches %s, index %s, %d thread%s, %s\n",
                  r->s.options->model, info->family, info->n_layers, info->weight_formats, acts,
                  neap_cli_cache_name(e->cache_type),
                  info->n_index_layers > 0 ? neap_cli_index_name(e->index_type) : "none", r->stats.n_threads,
                  r->stats.n_threads == 1 ? "" : "s", info->kernels);
    char tail[32];
    snprintf(tail, sizeof tail, "last %lld", (long long)r->n_prompt);
    neap_cli_outf("| %8s | %12s | %12s | %7s | %13s | %13s | %13s | %8s | %7s |\n", "depth", "prompt tok/s", tail,
                  "of peak", "decode median", "least", "least cpu", "tok/s", "of mem.");
    neap_cli_outf("| -------: | -----------: | -----------: | ------: | ------------: | ------------: | "
                  "------------: | -------: | ------: |\n");
    for (size_t i = 0; i < r->n_levels; i++) {
        const level *l = &r->levels[i];
        neap_cli_outf("| %8lld | %12.2f | %12.2f | %5.1f %% | %10.3f ms | %10.3f ms | %10.3f ms | %8.2f | %5.1f %% |\n",
                      (long long)l->depth, l->prompt_rate, l->tail_rate, l->share.prompt_share * 100, l->median * 1e3,
                      l->least * 1e3, l->cpu * 1e3, l->median > 0 ? 1 / l->median : 0, l->share.decode_share * 100);
    }
    for (size_t i = 0; i < r->n_batches; i++) {
        const batch *b = &r->batches[i];
        double rate = b->median > 0 ? (double)b->n_seqs / b->median : 0;
        neap_cli_outf("%lld sequence%s together: a step takes %.3f ms (least %.3f), %.2f tok/s in all, %.1f %% of "
                      "mem.\n",
                      (long long)b->n_seqs, b->n_seqs == 1 ? "" : "s", b->median * 1e3, b->least * 1e3, rate,
                      b->share * 100);
    }
    neap_cli_limits_print(&r->limits);
    neap_cli_outf("memory: %.1f MiB announced for %d tokens (weights %.1f, states %.1f, caches %.1f, work %.1f), "
                  "%.1f MiB used at the peak\n",
                  mib(r->announced.total), r->s.context, mib(r->announced.weights), mib(r->announced.state),
                  mib(r->announced.cache), mib(r->announced.work), mib(grown(r)));
}

static void print_json(const run *r, const neap_model_info *info, const neap_engine_options *e) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", r->s.options->model);
    neap_cli_json_cstring(&out, "family", info->family);
    neap_cli_json_cstring(&out, "kernels", info->kernels);
    neap_cli_json_int(&out, "threads", r->stats.n_threads);
    neap_cli_json_int(&out, "batch_size", r->s.options->batch_size);
    neap_cli_json_cstring(&out, "cache_type", neap_cli_cache_name(e->cache_type));
    neap_cli_json_cstring(&out, "index_type", info->n_index_layers > 0 ? neap_cli_index_name(e->index_type) : NULL);
    neap_cli_json_cstring(&out, "act_type", info->has_int_others ? neap_cli_act_name(e->act_type) : NULL);
    neap_cli_json_cstring(&out, "moe_act_type", info->has_int_experts ? neap_cli_act_name(e->moe_act_type) : NULL);
    neap_cli_json_int(&out, "n_prompt", r->n_prompt);
    neap_cli_json_int(&out, "repetitions", r->repetitions);
    neap_cli_json_real(&out, "load_seconds", r->load_seconds, 6);
    neap_cli_json_open(&out, "depths", '[');
    for (size_t i = 0; i < r->n_levels; i++) {
        const level *l = &r->levels[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_int(&out, "depth", l->depth);
        neap_cli_json_real(&out, "prompt_tokens_per_second", l->prompt_rate, 6);
        neap_cli_json_real(&out, "tail_tokens_per_second", l->tail_rate, 6);
        neap_cli_json_real(&out, "decode_median_ms", l->median * 1e3, 6);
        neap_cli_json_real(&out, "decode_least_ms", l->least * 1e3, 6);
        neap_cli_json_real(&out, "decode_cpu_ms", l->cpu * 1e3, 6);
        neap_cli_json_uint(&out, "decode_samples", l->n_samples);
        neap_cli_share_json(&out, &l->share);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_json_open(&out, "batches", '[');
    for (size_t i = 0; i < r->n_batches; i++) {
        const batch *b = &r->batches[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_int(&out, "sequences", b->n_seqs);
        neap_cli_json_real(&out, "step_median_ms", b->median * 1e3, 6);
        neap_cli_json_real(&out, "step_least_ms", b->least * 1e3, 6);
        neap_cli_json_real(&out, "share_of_memory", b->share, 6);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_limits_json(&out, &r->limits);
    neap_cli_json_open(&out, "memory", '{');
    neap_cli_json_int(&out, "context", r->s.context);
    neap_cli_json_uint(&out, "announced_bytes", r->announced.total);
    neap_cli_json_uint(&out, "weights_bytes", r->announced.weights);
    neap_cli_json_uint(&out, "state_bytes", r->announced.state);
    neap_cli_json_uint(&out, "cache_bytes", r->announced.cache);
    neap_cli_json_uint(&out, "work_bytes", r->announced.work);
    neap_cli_json_uint(&out, "peak_bytes", grown(r));
    neap_cli_json_uint(&out, "load_peak_bytes", r->load_bytes);
    neap_cli_json_uint(&out, "process_peak_bytes", r->process_bytes);
    neap_cli_json_close(&out, '}');
    neap_cli_json_close(&out, '}');
    neap_cli_out(out.data, out.n);
    neap_cli_out("\n", 1);
    neap_cli_text_free(&out);
}

/* ---- the command ---- */

static int start(run *r, const neap_model_info *info, neap_engine_options *e) {
    int64_t most = r->seqs_max;
    for (size_t i = 0; i < r->n_levels; i++) {
        int64_t n = prompt_of(r, r->levels[i].depth);
        if (n > most) most = n;
    }
    fill_tokens(r, most, info->vocab);
    neap_cli_settings settings;
    neap_cli_settings_fill(&settings, r->s.options, r->s.model);
    *e = settings.engine;
    e->seqs_max = (int32_t)r->seqs_max;
    e->context_max = (int32_t)(most + r->n_new + 1);
    r->announced.struct_size = sizeof r->announced;
    int code = neap_cli_failed(neap_engine_memory(r->s.model, e, &r->announced), NEAP_CLI_RUNNING);
    e->tuning = NULL; /* it ends here */
    if (code != NEAP_EXIT_OK) return code;
    r->load_bytes = status_bytes("VmHWM");
    reset_peak();
    return neap_cli_session_start_many(&r->s, e->context_max, e->seqs_max);
}

/* The least times against the best limits: both are what the machine does undisturbed. */
static int find_shares(run *r, const neap_engine_options *e) {
    int code = NEAP_EXIT_OK;
    neap_cli_limits_measure(r->s.options, &r->limits);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_levels; i++) {
        level *l = &r->levels[i];
        int64_t n = prompt_of(r, l->depth), depth = (l->depth > 0 ? n : 1) + r->n_new / 2;
        code = neap_cli_share_find(r->s.model, e, &r->limits, 1, n, depth, l->prompt_rate > 0 ? 1 / l->prompt_rate : 0,
                                   l->least, &l->share);
    }
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r->n_batches; i++) {
        batch *b = &r->batches[i];
        neap_cli_share share;
        code = neap_cli_share_find(r->s.model, e, &r->limits, (int32_t)b->n_seqs, 1, 1 + r->n_new / 2, 0, b->least,
                                   &share);
        if (code == NEAP_EXIT_OK) b->share = share.decode_share;
    }
    return code;
}

int neap_cli_bench(const neap_cli_options *o) {
    run r = {.n_prompt = o->bench_prompt, .n_new = o->bench_new, .repetitions = o->repetitions};
    neap_model_info info = {.struct_size = sizeof info};
    neap_engine_options e;
    int code = parse_lists(&r, o);
    if (code != NEAP_EXIT_OK) return code;
    r.samples = neap_cli_alloc((size_t)(r.repetitions * r.n_new) + 1, sizeof *r.samples);
    neap_cli_limits_measure(o, &r.limits);
    reset_peak();
    r.before_bytes = status_bytes("RssAnon");
    double begin = neap_cli_seconds();
    code = neap_cli_session_open(&r.s, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(r.s.model, &info), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) code = start(&r, &info, &e);
    r.load_seconds = neap_cli_seconds() - begin;
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r.n_levels; i++) code = measure_level(&r, &r.levels[i]);
    for (size_t i = 0; code == NEAP_EXIT_OK && i < r.n_batches; i++) code = measure_batch(&r, &r.batches[i]);
    if (code == NEAP_EXIT_OK) {
        r.peak_bytes = status_bytes("RssAnon");
        r.process_bytes = status_bytes("VmHWM");
        r.stats.struct_size = sizeof r.stats;
        code = neap_cli_failed(neap_engine_statistics(r.s.engine, &r.stats), NEAP_CLI_RUNNING);
    }
    if (code == NEAP_EXIT_OK) code = find_shares(&r, &e);
    if (code == NEAP_EXIT_OK && o->json)
        print_json(&r, &info, &e);
    else if (code == NEAP_EXIT_OK)
        print_table(&r, &info, &e);
    free(r.tokens);
    free(r.samples);
    neap_cli_session_close(&r.s);
    return code;
}
