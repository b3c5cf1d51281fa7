/* The two halves of `neap perplexity`: perplexity.c walks over the windows, divergence.c keeps and compares logits. */
#ifndef NEAP_APPS_PERPLEXITY_H
#define NEAP_APPS_PERPLEXITY_H

#include "buffer.h"
#include "neap.h"

/* Running mean and spread of a series. */
typedef struct neap_cli_series {
    int64_t n;
    double mean, spread; /* spread: sum of squared distances from the mean */
} neap_cli_series;
void neap_cli_series_add(neap_cli_series *s, double x);
double neap_cli_series_error(const neap_cli_series *s); /* standard error of the mean; 0 below two values */

/* What is scored: the text, and the windows that it is read in. */
typedef struct neap_cli_plan {
    const int32_t *tokens; /* [n_tokens], borrowed */
    int64_t n_tokens, window, stride;
    int64_t n_windows, n_scored;
} neap_cli_plan;
typedef struct neap_cli_window {
    int64_t begin, end, first; /* tokens begin .. end-1 are read, first .. end-1 of them scored */
} neap_cli_window;
void neap_cli_plan_fill(neap_cli_plan *p); /* n_windows and n_scored from the rest */
/* Window k >= 0; 0: there is none. */
int neap_cli_plan_window(const neap_cli_plan *p, int64_t k, neap_cli_window *w);

double neap_cli_log_sum(const float *logits, int64_t n); /* log(sum(exp(logits))) */

/* Logits of scored positions, going to a file or coming from one. All return exit codes. */
typedef struct neap_cli_saved {
    const char *path;
    int64_t vocab, n_positions;
    int32_t *positions; /* [n_positions] the token that is predicted, rising */
    int64_t next;       /* of positions */
    neap_tensors_writer *writer;
    neap_tensors *file;
    float *row; /* [vocab] */
    /* comparison with the saved logits */
    double *kl; /* [n_positions] */
    neap_cli_series divergence, difference, nll, same;
} neap_cli_saved;

/* n_positions 0: all scored ones. Says the size and refuses to pass bytes_max. */
int neap_cli_save_begin(neap_cli_saved *s, const neap_cli_plan *p, const char *path, int64_t vocab, int64_t n_positions,
                        uint64_t bytes_max, int is_quiet);
int neap_cli_save_row(neap_cli_saved *s, int64_t position, const float *logits);
int neap_cli_save_finish(neap_cli_saved *s);
int neap_cli_against_open(neap_cli_saved *s, const neap_cli_plan *p, const char *path, int64_t vocab);
int neap_cli_against_row(neap_cli_saved *s, int64_t position, int32_t token, const float *logits, double log_sum);
int neap_cli_against_finish(neap_cli_saved *s); /* sorts kl */
void neap_cli_saved_close(neap_cli_saved *s);   /* an unfinished file is removed */

#endif
