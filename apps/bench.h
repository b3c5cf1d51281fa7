/* What `neap bench` measured, and how it is shown. */
#ifndef NEAP_APPS_BENCH_H
#define NEAP_APPS_BENCH_H

#include "generate.h"
#include "roofline.h"

enum { NEAP_CLI_DEPTHS_MAX = 64, NEAP_CLI_BATCH_MAX = 256 };

typedef struct neap_cli_level {
    int64_t depth;
    double prompt_rate, tail_rate;   /* tokens per second: all of the prompt, its last -p tokens; 0 = none */
    double median, mean, least, cpu; /* seconds of a new token; cpu: least of all threads together */
    size_t n_samples;
    neap_cli_share share;
} neap_cli_level;

typedef struct neap_cli_batch {
    int64_t n_seqs;
    double median, least; /* seconds of a step */
    double share;         /* of the bytes that memory can give in that time */
} neap_cli_batch;

/* Tokens a second of a sequence that decodes and of a prompt, each alone and both at the same time. */
typedef struct neap_cli_mixed {
    int64_t n_prompt;
    double decode_alone, decode_during, prompt_alone, prompt_during;
    double longest; /* seconds between two tokens while the prompt is read */
} neap_cli_mixed;

typedef struct neap_cli_bench_run {
    neap_cli_session s;
    neap_cli_level levels[NEAP_CLI_DEPTHS_MAX];
    neap_cli_batch batches[NEAP_CLI_DEPTHS_MAX];
    neap_cli_mixed mixed; /* n_prompt 0: not measured */
    size_t n_levels, n_batches;
    int64_t seqs_max;    /* the largest batch, at least 1 */
    double load_seconds; /* until the engine could take a request */
    int64_t n_prompt, n_new, repetitions;
    int32_t *tokens; /* random prompt of the greatest depth */
    int64_t n_tokens;
    double *samples; /* [repetitions * n_new] */
    double cpu;      /* least so far at this depth */
    size_t n_samples;
    neap_memory announced;
    neap_limits limits;
    neap_engine_stats stats;
    uint64_t before_bytes, peak_bytes; /* own memory before the model and at its peak */
    uint64_t process_bytes;            /* peak of the whole process, after loading */
    uint64_t load_bytes;               /* and while loading */
} neap_cli_bench_run;

/* bench.c */
int neap_cli_bench_lists(neap_cli_bench_run *r, const neap_cli_options *o); /* --depth, --batch */
void neap_cli_bench_tokens(neap_cli_bench_run *r, int64_t n, int32_t vocab);
double neap_cli_median(double *x, size_t n); /* sorts x */

/* bench_mixed.c: steps that a running sequence has while the prompt is read, at most; and the measurement */
int64_t neap_cli_mixed_steps(const neap_cli_bench_run *r);
int neap_cli_mixed_measure(neap_cli_mixed *out, neap_cli_session *s, const neap_cli_bench_run *r);

/* bench_compare.c: --compare */
int neap_cli_bench_compare(const neap_cli_options *o);

/* bench_print.c: as --json, --csv and --markdown want it, else text */
void neap_cli_bench_print(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e);
/* bench_plot.c: tokens a second against depth, as an SVG file. Exit code. */
int neap_cli_bench_plot(const neap_cli_bench_run *r, const neap_model_info *info, const char *path);

#endif
