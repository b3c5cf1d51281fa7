/* Counters, histograms and gauges, and their text for Prometheus (format 0.0.4); see serve.h.
 *
 * Names follow the ones that dashboards for language model servers know, with the prefix neap_; process_* are the usual
 * ones. Every family has HELP and TYPE. There is no label that tells one client from another.
 *
 * Counting is a relaxed atomic addition, from any thread; a histogram is an array of counters, not yet cumulative, and
 * a sum in nanoseconds. Reading makes the cumulative form. What the engine counts is read from its statistics as they
 * were after its latest step, so a scrape never waits for it.
 *
 * Called by everything in the server; the text by small.c. Owns neap_serve_metrics. Source: the exposition format of
 * Prometheus. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "serve.h"

enum { BUCKETS = 18 };
static const double time_bounds[BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                            1,     2.5,    5,     10,   25,    50,   100, 250,  1000};

typedef struct histogram {
    _Atomic uint64_t counts[BUCKETS + 1]; /* of each bucket alone; the last one is +Inf */
    _Atomic uint64_t nanoseconds;
} histogram;

struct neap_serve_metrics {
    _Atomic uint64_t counters[NEAP_COUNTERS];
    histogram histograms[NEAP_HISTOGRAMS];
};

neap_serve_metrics *neap_serve_metrics_create(void) { return neap_cli_alloc(1, sizeof(neap_serve_metrics)); }
void neap_serve_metrics_destroy(neap_serve_metrics *m) { free(m); }

void neap_serve_count(neap_server *s, neap_counter c, uint64_t n) {
    if (s->metrics != NULL && c < NEAP_COUNTERS)
        atomic_fetch_add_explicit(&s->metrics->counters[c], n, memory_order_relaxed);
}

void neap_serve_observe(neap_server *s, neap_histogram h, double seconds) {
    if (s->metrics == NULL || h >= NEAP_HISTOGRAMS || !(seconds >= 0)) return;
    histogram *x = &s->metrics->histograms[h];
    size_t i = 0;
    while (i < BUCKETS && seconds > time_bounds[i]) i++;
    double nanoseconds = seconds < 1e9 ? seconds * 1e9 : 1e18;
    atomic_fetch_add_explicit(&x->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->nanoseconds, (uint64_t)nanoseconds, memory_order_relaxed);
}

/* ---- text ---- */

static void head(neap_cli_text *out, const char *name, const char *type, const char *help) {
    neap_cli_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(neap_cli_text *out, const char *name, double value, const char *help) {
    head(out, name, "gauge", help);
    neap_cli_text_printf(out, "%s %.17g\n", name, value);
}

static void counter(neap_cli_text *out, const char *name, uint64_t value, const char *help) {
    head(out, name, "counter", help);
    neap_cli_text_printf(out, "%s %" PRIu64 "\n", name, value);
}

/* A label's value: backslash, quote and line end are escaped; nothing else needs to be. */
static void label(neap_cli_text *out, const char *name, const char *value, const char *after) {
    neap_cli_text_printf(out, "%s=\"", name);
    for (const char *c = value; *c != 0; c++) {
        if (*c == '\n')
            neap_cli_text_puts(out, "\\n");
        else if (*c == '"' || *c == '\\')
            neap_cli_text_printf(out, "\\%c", *c);
        else
            neap_cli_text_add(out, c, 1);
    }
    neap_cli_text_printf(out, "\"%s", after);
}

static uint64_t counted(const neap_server *s, neap_counter c) {
    return s->metrics != NULL ? atomic_load_explicit(&s->metrics->counters[c], memory_order_relaxed) : 0;
}

typedef struct labelled {
    const char *value;
    neap_counter counter;
} labelled;

static void family(const neap_server *s, neap_cli_text *out, const char *name, const char *key, const labelled *rows,
                   size_t n, const char *help) {
    head(out, name, "counter", help);
    for (size_t i = 0; i < n; i++)
        neap_cli_text_printf(out, "%s{%s=\"%s\"} %" PRIu64 "\n", name, key, rows[i].value, counted(s, rows[i].counter));
}

static void put_histogram(const neap_server *s, neap_cli_text *out, neap_histogram h, const char *name,
                          const char *help) {
    uint64_t sum = 0;
    head(out, name, "histogram", help);
    for (size_t i = 0; i <= BUCKETS && s->metrics != NULL; i++) {
        sum += atomic_load_explicit(&s->metrics->histograms[h].counts[i], memory_order_relaxed);
        if (i < BUCKETS)
            neap_cli_text_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, time_bounds[i], sum);
        else
            neap_cli_text_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    }
    uint64_t ns =
        s->metrics != NULL ? atomic_load_explicit(&s->metrics->histograms[h].nanoseconds, memory_order_relaxed) : 0;
    neap_cli_text_printf(out, "%s_sum %.9f\n%s_count %" PRIu64 "\n", name, (double)ns / 1e9, name, sum);
}

/* ---- families ---- */

static void put_requests(const neap_server *s, neap_cli_text *out) {
    static const labelled finishes[] = {
        {"stop", NEAP_COUNT_STOP}, {"length", NEAP_COUNT_LENGTH}, {"tool_calls", NEAP_COUNT_TOOL_CALLS}};
    static const labelled places[] = {{"queued", NEAP_COUNT_CANCELLED_QUEUED},
                                      {"prompt", NEAP_COUNT_CANCELLED_PROMPT},
                                      {"decode", NEAP_COUNT_CANCELLED_DECODE}};
    counter(out, "neap_requests_total", counted(s, NEAP_COUNT_REQUESTS), "Requests for answers that were taken.");
    family(s, out, "neap_request_success_total", "finish_reason", finishes, 3, "Answers that ended, by the reason.");
    counter(out, "neap_request_errors_total", counted(s, NEAP_COUNT_ERROR), "Answers that ended with an error.");
    family(s, out, "neap_cancelled_total", "where", places, 3,
           "Answers given up because the client left, by what they were doing.");
    counter(out, "neap_queue_refused_total", counted(s, NEAP_COUNT_REFUSED_QUEUE), "Requests refused: queue full.");
    counter(out, "neap_timeouts_total", counted(s, NEAP_COUNT_TIMEOUTS), "Requests ended by a deadline.");
    counter(out, "neap_unknown_fields_total", counted(s, NEAP_COUNT_UNKNOWN_FIELDS),
            "Fields of requests that nobody knows; they are ignored.");
    counter(out, "neap_prompt_tokens_total", counted(s, NEAP_COUNT_PROMPT_TOKENS), "Tokens of prompts.");
    counter(out, "neap_cached_tokens_total", counted(s, NEAP_COUNT_CACHED_TOKENS),
            "Tokens of prompts that the prefix cache had.");
    counter(out, "neap_generation_tokens_total", counted(s, NEAP_COUNT_NEW_TOKENS), "New tokens.");
    put_histogram(s, out, NEAP_HIST_QUEUE, "neap_request_queue_time_seconds", "From the request to its first step.");
    put_histogram(s, out, NEAP_HIST_FIRST_TOKEN, "neap_time_to_first_token_seconds",
                  "From the request to its first new token.");
    put_histogram(s, out, NEAP_HIST_BETWEEN_TOKENS, "neap_inter_token_latency_seconds", "Between two new tokens.");
    put_histogram(s, out, NEAP_HIST_REQUEST, "neap_e2e_request_latency_seconds",
                  "From the request to the end of its answer.");
}

static void put_prefixes(const neap_engine_stats *e, neap_cli_text *out) {
    counter(out, "neap_prefix_cache_queries_total", e->prefix_queries, "Tokens of prompts looked for.");
    counter(out, "neap_prefix_cache_hits_total", e->prefix_hits, "Tokens of prompts found.");
    counter(out, "neap_prefix_cache_lookups_total", e->prefix_requests, "Requests that looked.");
    counter(out, "neap_prefix_cache_found_total", e->prefix_found, "Requests that found something.");
    counter(out, "neap_prefix_cache_evicted_total", e->prefix_evicted, "States and pages given up for others.");
    gauge(out, "neap_prefix_cache_tokens", (double)e->prefix_tokens, "Tokens kept by the prefix cache alone.");
    gauge(out, "neap_state_snapshots", e->checkpoints_used, "Recurrent states kept.");
    gauge(out, "neap_state_snapshots_max", e->checkpoints_total, "Recurrent states that have room.");
    counter(out, "neap_prefix_disk_saves_total", e->disk_saves, "States written to --prefix-dir.");
    counter(out, "neap_prefix_disk_loads_total", e->disk_loads, "States read back from --prefix-dir.");
    counter(out, "neap_prefix_disk_rejects_total", e->disk_rejects, "States on disk refused as damaged or foreign.");
    gauge(out, "neap_prefix_disk_bytes", (double)e->disk_bytes, "Bytes in --prefix-dir.");
}

static void put_engine(const neap_server *s, neap_cli_text *out) {
    neap_engine_stats e = {.struct_size = sizeof e};
    int is_ready = s->backend != NULL && neap_backend_phase_of(s->backend, NULL, NULL, NULL) == NEAP_BACKEND_READY;
    if (is_ready) neap_backend_statistics(s->backend, &e);
    gauge(out, "neap_ready", is_ready && !s->is_draining, "1: requests are taken; 0: loading or draining.");
    gauge(out, "neap_requests_running", e.seqs_running, "Answers that are computed now.");
    gauge(out, "neap_requests_waiting", e.seqs_waiting, "Answers that wait for a place.");
    gauge(out, "neap_waiting_tokens", (double)e.waiting_tokens, "Tokens of the prompts that wait.");
    double used = e.cache_tokens_total > 0 ? (double)e.cache_tokens_used / (double)e.cache_tokens_total : 0;
    gauge(out, "neap_kv_cache_usage", used, "Share of the caches' tokens in use, 0 to 1.");
    gauge(out, "neap_kv_cache_tokens", (double)e.cache_tokens_used, "Tokens in the caches.");
    gauge(out, "neap_kv_cache_tokens_max", (double)e.cache_tokens_total, "Tokens that the caches have room for.");
    counter(out, "neap_engine_steps_total", e.steps, "Steps of the engine.");
    counter(out, "neap_engine_rows_total", e.rows, "Rows of all steps: tokens that went through the model.");
    head(out, "neap_engine_forward_seconds_total", "counter", "Time spent in the model.");
    neap_cli_text_printf(out, "neap_engine_forward_seconds_total %.9f\n", (double)e.forward_ns / 1e9);
    counter(out, "neap_preemptions_total", e.preemptions,
            "Answers that had to give their cache space back for a time.");
    counter(out, "neap_nonfinite_logits_total", e.nonfinite_rows, "Rows with logits that were not finite.");
    gauge(out, "neap_engine_threads", e.n_threads, "Worker threads.");
    put_prefixes(&e, out);
}

/* ---- the process ---- */

static double resident_bytes(void) {
    unsigned long long size, resident;
    FILE *f = fopen("/proc/self/statm", "re");
    int n = f != NULL ? fscanf(f, "%llu %llu", &size, &resident) : 0;
    if (f != NULL) fclose(f);
    return n == 2 ? (double)resident * (double)sysconf(_SC_PAGESIZE) : 0;
}

static double open_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    double n = d != NULL ? -1 : 0; /* without the one that looks */
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    if (d != NULL) closedir(d);
    return n;
}

static void put_process(const neap_server *s, neap_cli_text *out) {
    struct rusage u;
    struct rlimit files;
    getrusage(RUSAGE_SELF, &u);
    head(out, "process_cpu_seconds_total", "counter", "User and system time.");
    neap_cli_text_printf(out, "process_cpu_seconds_total %.6f\n",
                         (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                             (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    gauge(out, "process_resident_memory_bytes", resident_bytes(), "Resident memory.");
    gauge(out, "process_open_fds", open_descriptors(), "Open descriptors.");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        gauge(out, "process_max_fds", (double)files.rlim_cur, "Descriptors that may be open.");
    gauge(out, "process_start_time_seconds", (double)s->started, "Start, in seconds since 1970.");
}

void neap_serve_metrics_text(neap_server *s, neap_cli_text *out) {
    head(out, "neap_build_info", "gauge", "Version and what determines the bits of answers; always 1.");
    neap_cli_text_puts(out, "neap_build_info{");
    label(out, "version", neap_version(), ",");
    label(out, "fingerprint", s->fingerprint, "} 1\n");
    if (s->http != NULL) {
        gauge(out, "neap_connections", neap_http_connections(s->http), "Open connections.");
        gauge(out, "neap_exchanges", neap_http_exchanges(s->http), "Requests begun and not ended.");
    }
    put_requests(s, out);
    put_engine(s, out);
    put_process(s, out);
}
