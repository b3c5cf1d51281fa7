/* `neap quantize`: the same model with its weights in other formats, in a new directory.
 *
 * The library does the work (neap_quantize); here are the options, the progress line, and signals, which stop the work
 * and remove what was written. Called by main. */
#include <string.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

static int is_cancelled(void *user) {
    (void)user;
    return neap_cli_signal() != 0;
}

static void progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    neap_cli_progress(what, "bytes", done, total, 0);
}

static int32_t weights(const char *name) {
    return strcmp(name, "mxfp4") == 0  ? NEAP_WEIGHTS_MXFP4
           : strcmp(name, "int8") == 0 ? NEAP_WEIGHTS_INT8
                                       : NEAP_WEIGHTS_BF16;
}

static void no_log(void *user, neap_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

/* The model alone first, headers only: what fails here is the model's fault, later it is the disk's or the user's. */
static int check_model(const neap_cli_options *o) {
    neap_model *model = NULL;
    neap_model_options options;
    neap_model_options_init(&options);
    options.describe_only = 1;
    options.log = no_log; /* the work itself says it again */
    int code = neap_cli_failed(neap_model_open(&model, o->model, &options), NEAP_CLI_OPENING);
    neap_model_close(model);
    return code;
}

int neap_cli_quantize(const neap_cli_options *o) {
    neap_quantize_options options;
    neap_quantize_options_init(&options);
    options.experts = weights(o->experts);
    options.linear = weights(o->linear);
    options.head = weights(o->head);
    options.embedding = weights(o->embedding);
    options.shard_bytes_max = o->shard_size;
    options.n_threads = (int32_t)o->threads;
    options.log = neap_cli_log;
    options.progress = progress;
    options.is_cancelled = is_cancelled;
    int code = check_model(o);
    if (code != NEAP_EXIT_OK) return code;
    neap_cli_signals_hold();
    neap_status status = neap_quantize(o->model, o->args[0], &options);
    neap_cli_progress_clear();
    if (status == NEAP_OK) return NEAP_EXIT_OK;
    if (status == NEAP_CANCELLED && neap_cli_signal() != 0) {
        neap_cli_error("%s", neap_last_error());
        return 128 + neap_cli_signal();
    }
    return neap_cli_failed(status, NEAP_CLI_RUNNING);
}
