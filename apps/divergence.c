/* Saved logits of `neap perplexity`, written in one run and compared with in another; see perplexity.h.
 *
 * The file is safetensors, so that other programs can read or make it:
 *   tokens     I32 [T]     the text
 *   window     I32 [2]     tokens of a window, stride
 *   positions  I32 [P]     which tokens were predicted, rising
 *   logits     F32 [P, V]  what the model said before each of them
 * Logits and not rounded probabilities: a run compared with itself differs by exactly nothing. P and V are known before
 * the first row, so rows are appended as they come and read back one at a time.
 *
 *   KL(saved || now) = sum_v p_v (log p_v - log q_v),  p = softmax(saved), q = softmax(now), in float64
 *
 * Called by perplexity.c. Owns both files and one row. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "perplexity.h"
#include "report.h"
#include "terminal.h"

/* ---- writing ---- */

static void choose_positions(neap_cli_saved *s, const neap_cli_plan *p) {
    neap_cli_window w;
    int64_t seen = 0, n = 0;
    for (int64_t k = 0; neap_cli_plan_window(p, k, &w); k++) {
        for (int64_t t = w.first; t < w.end; t++, seen++) {
            /* The n-th of P among S stands at n * S / P, without overflow: both are below 2^31. */
            if (n < s->n_positions && seen == n * p->n_scored / s->n_positions) s->positions[n++] = (int32_t)t;
        }
    }
}

/* 1: the file system of path has no room for so many bytes. What cannot be found out is left to writing. */
static int disk_is_too_full(const char *path, uint64_t bytes) {
    struct statvfs disk;
    neap_cli_text parent = {0};
    const char *slash = strrchr(path, '/');
    neap_cli_text_add(&parent, slash != NULL ? path : ".", slash != NULL ? (size_t)(slash - path) + 1 : 1);
    int is_known = statvfs(parent.data, &disk) == 0;
    neap_cli_text_free(&parent);
    return is_known && bytes / disk.f_frsize >= disk.f_bavail;
}

int neap_cli_save_begin(neap_cli_saved *s, const neap_cli_plan *p, const char *path, int64_t vocab, int64_t n_positions,
                        uint64_t bytes_max, int is_quiet) {
    s->path = path;
    s->vocab = vocab;
    s->n_positions = n_positions > 0 && n_positions < p->n_scored ? n_positions : p->n_scored;
    uint64_t bytes =
        4 * ((uint64_t)s->n_positions * (uint64_t)vocab + (uint64_t)s->n_positions + (uint64_t)p->n_tokens);
    char size[32], limit[32];
    neap_cli_bytes(bytes, size, sizeof size);
    if (bytes > bytes_max) {
        neap_cli_error("--save-logits: %lld positions of %lld logits are %s, the limit is %s: --positions N "
                       "keeps fewer, --save-max allows more",
                       (long long)s->n_positions, (long long)vocab, size,
                       neap_cli_bytes(bytes_max, limit, sizeof limit));
        return NEAP_EXIT_USAGE;
    }
    if (disk_is_too_full(path, bytes)) {
        neap_cli_error("%s: no room on the disk for %s", path, size);
        return NEAP_EXIT_RESOURCE;
    }
    if (!is_quiet) neap_cli_note("%s: %lld positions, %s", path, (long long)s->n_positions, size);
    s->positions = neap_cli_alloc((size_t)s->n_positions, sizeof *s->positions);
    choose_positions(s, p);
    const neap_tensor_info infos[] = {
        {.name = "tokens", .dtype = "I32", .rank = 1, .shape = {p->n_tokens}},
        {.name = "window", .dtype = "I32", .rank = 1, .shape = {2}},
        {.name = "positions", .dtype = "I32", .rank = 1, .shape = {s->n_positions}},
        {.name = "logits", .dtype = "F32", .rank = 2, .shape = {s->n_positions, vocab}},
    };
    const int32_t window[2] = {(int32_t)p->window, (int32_t)p->stride};
    neap_status status = neap_tensors_writer_open(&s->writer, path, infos, 4);
    if (status == NEAP_OK) status = neap_tensors_writer_append(s->writer, p->tokens, (uint64_t)p->n_tokens * 4);
    if (status == NEAP_OK) status = neap_tensors_writer_append(s->writer, window, sizeof window);
    if (status == NEAP_OK) status = neap_tensors_writer_append(s->writer, s->positions, (uint64_t)s->n_positions * 4);
    return neap_cli_failed(status, NEAP_CLI_RUNNING);
}

int neap_cli_save_row(neap_cli_saved *s, int64_t position, const float *logits) {
    if (s->next == s->n_positions || s->positions[s->next] != position) return NEAP_EXIT_OK;
    s->next++;
    return neap_cli_failed(neap_tensors_writer_append(s->writer, logits, (uint64_t)s->vocab * 4), NEAP_CLI_RUNNING);
}

int neap_cli_save_finish(neap_cli_saved *s) {
    neap_tensors_writer *w = s->writer;
    s->writer = NULL;
    return neap_cli_failed(neap_tensors_writer_finish(w), NEAP_CLI_RUNNING);
}

/* ---- reading ---- */

static int bad(const neap_cli_saved *s, const char *problem) {
    neap_cli_error("%s: %s", s->path, problem);
    return NEAP_EXIT_FILE;
}

/* A whole I32 tensor of rank 1, at most n_max elements, as fresh memory. */
static int read_ints(const neap_cli_saved *s, const char *name, int64_t n_max, int32_t **out, int64_t *n) {
    neap_tensor_info info;
    int code = neap_cli_failed(neap_tensors_find(s->file, name, &info), NEAP_CLI_OPENING);
    if (code != NEAP_EXIT_OK) return code;
    if (strcmp(info.dtype, "I32") != 0 || info.rank != 1 || info.shape[0] > n_max) {
        neap_cli_error("%s: \"%s\" is no list of at most %lld whole numbers (I32): not a file of --save-logits",
                       s->path, name, (long long)n_max);
        return NEAP_EXIT_FILE;
    }
    *n = info.shape[0];
    *out = neap_cli_alloc((size_t)*n, sizeof **out);
    return neap_cli_failed(neap_tensors_read(s->file, name, 0, info.bytes, *out), NEAP_CLI_OPENING);
}

static int check_tokens(const neap_cli_saved *s, const neap_cli_plan *p, const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n && i < p->n_tokens; i++) {
        if (tokens[i] == p->tokens[i]) continue;
        neap_cli_error("%s was made with another text: token %lld is %d there and %d here", s->path, (long long)i,
                       tokens[i], p->tokens[i]);
        return NEAP_EXIT_FILE;
    }
    if (n == p->n_tokens) return NEAP_EXIT_OK;
    neap_cli_error("%s was made with another text: %lld tokens there, %lld here", s->path, (long long)n,
                   (long long)p->n_tokens);
    return NEAP_EXIT_FILE;
}

static int check_window(const neap_cli_saved *s, const neap_cli_plan *p, const int32_t *window, int64_t n) {
    if (n != 2) return bad(s, "\"window\" does not hold two numbers");
    if (window[0] == p->window && window[1] == p->stride) return NEAP_EXIT_OK;
    neap_cli_error("%s was made with -c %d --stride %d: give the same", s->path, window[0], window[1]);
    return NEAP_EXIT_USAGE;
}

/* Rising, and every one of them is scored. */
static int check_positions(const neap_cli_saved *s, const neap_cli_plan *p) {
    neap_cli_window w;
    int64_t n = 0;
    for (int64_t k = 0; neap_cli_plan_window(p, k, &w); k++) {
        while (n < s->n_positions && s->positions[n] >= w.first && s->positions[n] < w.end) {
            if (n > 0 && s->positions[n] <= s->positions[n - 1]) break;
            n++;
        }
    }
    if (n == s->n_positions && n > 0) return NEAP_EXIT_OK;
    return bad(s, "\"positions\" are not rising positions that these windows score");
}

int neap_cli_against_open(neap_cli_saved *s, const neap_cli_plan *p, const char *path, int64_t vocab) {
    neap_tensor_info info;
    int32_t *tokens = NULL, *window = NULL;
    int64_t n_tokens = 0, n_window = 0;
    s->path = path;
    s->vocab = vocab;
    int code = neap_cli_failed(neap_tensors_open(&s->file, path), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_tensors_find(s->file, "logits", &info), NEAP_CLI_OPENING);
    if (code == NEAP_EXIT_OK && (strcmp(info.dtype, "F32") != 0 || info.rank != 2))
        code = bad(s, "\"logits\" is not F32 of rank 2: not a file of --save-logits");
    if (code == NEAP_EXIT_OK && info.shape[1] != vocab) {
        neap_cli_error("%s: %lld logits for each position, the model's vocabulary has %lld", path,
                       (long long)info.shape[1], (long long)vocab);
        code = NEAP_EXIT_FILE;
    }
    if (code == NEAP_EXIT_OK) code = read_ints(s, "tokens", INT32_MAX, &tokens, &n_tokens);
    if (code == NEAP_EXIT_OK) code = check_tokens(s, p, tokens, n_tokens);
    if (code == NEAP_EXIT_OK) code = read_ints(s, "window", 2, &window, &n_window);
    if (code == NEAP_EXIT_OK) code = check_window(s, p, window, n_window);
    if (code == NEAP_EXIT_OK) code = read_ints(s, "positions", INT32_MAX, &s->positions, &s->n_positions);
    if (code == NEAP_EXIT_OK && s->n_positions != info.shape[0])
        code = bad(s, "\"positions\" and \"logits\" differ in length");
    if (code == NEAP_EXIT_OK) code = check_positions(s, p);
    free(tokens);
    free(window);
    if (code != NEAP_EXIT_OK) return code;
    s->row = neap_cli_alloc((size_t)vocab, sizeof *s->row);
    s->kl = neap_cli_alloc((size_t)s->n_positions, sizeof *s->kl);
    return NEAP_EXIT_OK;
}

static int64_t largest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[best]) best = i;
    }
    return best;
}

int neap_cli_against_row(neap_cli_saved *s, int64_t position, int32_t token, const float *logits, double log_sum) {
    if (s->next == s->n_positions || s->positions[s->next] != position) return NEAP_EXIT_OK;
    uint64_t bytes = (uint64_t)s->vocab * 4;
    int code = neap_cli_failed(neap_tensors_read(s->file, "logits", (uint64_t)s->next * bytes, bytes, s->row),
                               NEAP_CLI_OPENING);
    if (code != NEAP_EXIT_OK) return code;
    double sum = neap_cli_log_sum(s->row, s->vocab), kl = 0;
    for (int64_t i = 0; i < s->vocab; i++) {
        double saved = (double)s->row[i] - sum, p = exp(saved);
        if (p > 0) kl += p * (saved - ((double)logits[i] - log_sum));
    }
    double saved_token = (double)s->row[token] - sum;
    if (!isfinite(sum) || isnan(kl) || !isfinite(saved_token)) {
        neap_cli_error("%s: the logits of position %lld are not finite", s->path, (long long)position);
        return NEAP_EXIT_FILE;
    }
    if (kl < 0) kl = 0; /* rounding */
    s->kl[s->next++] = kl;
    neap_cli_series_add(&s->divergence, kl);
    neap_cli_series_add(&s->nll, -saved_token);
    neap_cli_series_add(&s->difference, (double)logits[token] - log_sum - saved_token);
    neap_cli_series_add(&s->same, largest(s->row, s->vocab) == largest(logits, s->vocab));
    return NEAP_EXIT_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int neap_cli_against_finish(neap_cli_saved *s) {
    if (s->next != s->n_positions) {
        neap_cli_error("%lld of the %lld positions of %s were compared", (long long)s->next, (long long)s->n_positions,
                       s->path);
        return NEAP_EXIT_INTERNAL;
    }
    qsort(s->kl, (size_t)s->n_positions, sizeof *s->kl, by_value);
    return NEAP_EXIT_OK;
}

void neap_cli_saved_close(neap_cli_saved *s) {
    neap_tensors_writer_discard(s->writer);
    neap_tensors_close(s->file);
    free(s->positions);
    free(s->row);
    free(s->kl);
    *s = (neap_cli_saved){0};
}
