/* The two halves of `neap verify`: verify.c runs the model and prints, verify_compare.c judges tensors. */
#ifndef NEAP_APPS_VERIFY_H
#define NEAP_APPS_VERIFY_H

#include "neap.h"
#include "buffer.h"

/* A tensor in memory; exactly one of the two data pointers is set. */
typedef struct neap_cli_tensor {
    char *name;
    int32_t rank;
    int64_t shape[8];
    float *real;
    int32_t *integer;
    int64_t n_rows_seen; /* collected tensors: rows that the taps showed */
} neap_cli_tensor;

typedef struct neap_cli_tensor_list {
    neap_cli_tensor *items;
    size_t n;
    int64_t n_tokens; /* rows of a row tensor */
} neap_cli_tensor_list;

/* A tap: joins the pieces of every tensor. user: neap_cli_tensor_list. */
void neap_cli_tensor_collect(void *user, const neap_tap *tap);
neap_cli_tensor *neap_cli_tensor_find(const neap_cli_tensor_list *list, const char *name);
void neap_cli_tensor_list_free(neap_cli_tensor_list *list);
int64_t neap_cli_tensor_size(const neap_cli_tensor *t); /* elements */
/* Reads one tensor of a file; F32, F64, I32 and I64 are understood, others leave both data pointers NULL. Exit code. */
int neap_cli_tensor_load(const neap_tensors *file, const neap_tensor_info *info, neap_cli_tensor *out);
void neap_cli_tensor_free(neap_cli_tensor *t);

typedef enum neap_cli_verdict { NEAP_CLI_SAME, NEAP_CLI_MISS, NEAP_CLI_NOT_COMPARED } neap_cli_verdict;

typedef struct neap_cli_comparison {
    char *name;
    neap_cli_verdict verdict;
    int is_real; /* errors and tolerances below are valid */
    double max_error, mean_error, max_tolerance, mean_tolerance;
    int64_t n_rows, n_rows_differ; /* integer tensors */
    neap_cli_text note;
} neap_cli_comparison;

typedef struct neap_cli_judge {
    const neap_tensors *golden;
    const neap_cli_tensor_list *ours;
    int has_wide_tolerance; /* K3 families */
    double scale;           /* --tolerance-scale */
} neap_cli_judge;

/* Compares golden tensor `want` with what was collected. */
void neap_cli_judge_tensor(const neap_cli_judge *judge, const neap_cli_tensor *want, neap_cli_comparison *c);
/* Why a tensor of this name is not compared; NULL: it is. */
const char *neap_cli_not_compared(const char *name);

#endif
