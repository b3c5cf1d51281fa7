/* `neap logits`: the next-token logits after every token of a list, as F32 [T, V] in a safetensors file.
 *
 * For comparing with other programs. The whole result is held in memory and written once, under a temporary
 * name that is renamed at the end. Called by main. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "compute.h"
#include "json_in.h"
#include "report.h"
#include "terminal.h"

typedef struct result {
    float *data; /* [T, V] */
    int64_t n_tokens, vocab;
    int64_t n_rows; /* seen */
} result;

static void take_logits(void *user, const neap_tap *tap) {
    result *r = user;
    if (tap->is_int || tap->rank != 2 || strcmp(tap->name, "logits") != 0) return;
    if (tap->shape[1] != r->vocab || tap->position < 0 || tap->position + tap->shape[0] > r->n_tokens) return;
    memcpy(r->data + tap->position * r->vocab, tap->data, (size_t)(tap->shape[0] * r->vocab) * sizeof *r->data);
    r->n_rows += tap->shape[0];
}

static int write_logits(const char *path, const result *r) {
    neap_tensor_info info = {.name = "logits", .dtype = "F32", .rank = 2, .shape = {r->n_tokens, r->vocab}};
    const void *data = r->data;
    return neap_cli_failed(neap_tensors_write(path, &info, &data, 1), NEAP_CLI_RUNNING);
}

int neap_cli_logits(const neap_cli_options *o) {
    if (o->tokens == NULL || o->out == NULL) {
        neap_cli_error("%s is missing: neap logits MODEL --tokens FILE --out FILE.safetensors",
                       o->tokens == NULL ? "--tokens" : "--out");
        return NEAP_EXIT_USAGE;
    }
    neap_cli_session s = {0};
    neap_model_info info = {.struct_size = sizeof info};
    result r = {0};
    int32_t *tokens = NULL;
    size_t n = 0;
    int code = neap_cli_read_ids(o->tokens, &tokens, &n);
    if (code == NEAP_EXIT_OK) code = neap_cli_check_output(o->out);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&s, o);
    if (code == NEAP_EXIT_OK)
        code = neap_cli_check_tokens(&s, strcmp(o->tokens, "-") == 0 ? "standard input" : o->tokens, tokens, n);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_start(&s, (int32_t)n, 1);
    if (code == NEAP_EXIT_OK) code = neap_cli_failed(neap_model_describe(s.model, &info), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) {
        r.n_tokens = (int64_t)n;
        r.vocab = info.vocab;
        r.data = neap_cli_alloc(n, (size_t)info.vocab * sizeof *r.data);
        code = neap_cli_compute(&s, tokens, n, 1, 0, take_logits, &r);
    }
    if (code == NEAP_EXIT_OK && r.n_rows != r.n_tokens) {
        neap_cli_error("the engine gave %lld rows of logits for %zu tokens", (long long)r.n_rows, n);
        code = NEAP_EXIT_INTERNAL;
    }
    if (code == NEAP_EXIT_OK) code = write_logits(o->out, &r);
    if (code == NEAP_EXIT_OK && neap_cli_is_verbose())
        neap_cli_note("%s: logits [%lld, %lld]", o->out, (long long)r.n_tokens, (long long)r.vocab);
    free(r.data);
    free(tokens);
    neap_cli_session_close(&s);
    return code;
}
