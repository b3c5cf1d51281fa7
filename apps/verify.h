/* The parts of `neap verify`: verify.c runs the model and prints, verify_compare.c judges tensors of the exact class,
 * verify_quant.c those of quantised caches. */
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
    double median_error, median_tolerance; /* quantised class: in place of max and mean */
    int has_agreement;
    double agreement, agreement_limit; /* quantised class: shares of equal choices */
    int64_t n_rows, n_rows_differ;     /* integer tensors */
    neap_cli_text note;
} neap_cli_comparison;

/* Limits of the quantised class. */
typedef struct neap_cli_limits {
    double median;                        /* of logits; NAN: from the tensor's spread */
    double agreement, experts, positions; /* shares */
    int has_report;
} neap_cli_limits;

typedef struct neap_cli_judge {
    const neap_tensors *golden;
    const neap_cli_tensor_list *ours;
    int has_wide_tolerance;        /* K3 families */
    double scale;                  /* --tolerance-scale */
    int is_int16;                  /* activations in 16 bits: NEAP_CLI_INT16_* times the limits */
    const neap_cli_limits *limits; /* NULL: the exact class */
    int is_all_quantised;          /* fp8 latents and mxfp8 index: golden tensors "quant.*" are ours too */
} neap_cli_judge;

/* What 16-bit activations may cost: twice what they do on the golden models, which amplify rounding more than trained
 * models. Factors of largest errors and of margins, and of mean errors. */
enum { NEAP_CLI_INT16_MAX = 20, NEAP_CLI_INT16_MEAN = 42 };

/* Compares golden tensor `want` with what was collected. */
void neap_cli_judge_tensor(const neap_cli_judge *judge, const neap_cli_tensor *want, neap_cli_comparison *c);
/* Why a tensor of this name is not compared; NULL: it is. */
const char *neap_cli_not_compared(const neap_cli_judge *judge, const char *name);

/* verify_quant.c. Limits for a golden file, from golden_report.json beside it where there is one. Exit code. */
int neap_cli_limits_load(neap_cli_limits *limits, const char *golden, const neap_engine_options *types);
/* Shapes and kinds were checked. */
void neap_cli_judge_quantised(const neap_cli_judge *judge, const neap_cli_tensor *want, const neap_cli_tensor *got,
                              neap_cli_comparison *c);
void neap_cli_judge_greedy(const neap_cli_judge *judge, const int32_t *want, const int32_t *got, int64_t n,
                           neap_cli_comparison *c);

#endif
