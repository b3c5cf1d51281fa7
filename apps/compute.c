/* Computing a prompt without an answer; see compute.h.
 *
 * A request with max_tokens 0 runs the prompt and ends; its tap sees each tensor in pieces of some rows, in the
 * order of the prompt. Called by logits and verify. Owns nothing beyond the call. */
#include "compute.h"

#include "report.h"
#include "terminal.h"

int neap_cli_check_tokens(const neap_cli_session *s, const char *what, const int32_t *tokens, size_t n) {
    neap_model_info info = {.struct_size = sizeof info};
    int code = neap_cli_failed(neap_model_describe(s->model, &info), NEAP_CLI_OPENING);
    if (code != NEAP_EXIT_OK) return code;
    if (n == 0 || n > INT32_MAX / 4) {
        neap_cli_error(n == 0 ? "%s: there are no tokens" : "%s: there are too many tokens", what);
        return NEAP_EXIT_FILE;
    }
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] >= 0 && tokens[i] < info.vocab) continue;
        neap_cli_error("%s: token %zu is %d, the model's vocabulary has 0 .. %d", what, i, tokens[i], info.vocab - 1);
        return NEAP_EXIT_FILE;
    }
    return NEAP_EXIT_OK;
}

int neap_cli_next_event(neap_cli_session *s, neap_event *event) {
    *event = (neap_event){.struct_size = sizeof *event};
    int was_idle = 0;
    for (;;) {
        if (neap_cli_signal() != 0) return 128 + neap_cli_signal(); /* of the commands that hold signals */
        neap_status status = neap_poll(s->engine, event);
        if (status == NEAP_OK && event->kind == NEAP_EVENT_DONE && event->finish == NEAP_FINISH_ERROR) {
            neap_cli_error("the computation ended with an error: %s", neap_status_text(event->status));
            return neap_cli_exit_code(event->status, NEAP_CLI_RUNNING);
        }
        if (status != NEAP_AGAIN) return neap_cli_failed(status, NEAP_CLI_RUNNING);
        if (was_idle) {
            neap_cli_error("the engine has nothing to do although the request is not complete");
            return NEAP_EXIT_INTERNAL;
        }
        status = neap_cli_session_step(s);
        was_idle = status == NEAP_AGAIN;
        if (status != NEAP_OK && status != NEAP_AGAIN) return neap_cli_failed(status, NEAP_CLI_RUNNING);
    }
}

int neap_cli_compute(neap_cli_session *s, const int32_t *tokens, size_t n, int all_logits, int wants_caches,
                     neap_tap_fn tap, void *user) {
    neap_request r;
    neap_request_init(&r);
    r.tokens = tokens;
    r.n_tokens = n;
    r.max_tokens = 0;
    r.all_logits = all_logits;
    r.tap = tap;
    r.tap_user = user;
    neap_seq *seq = NULL;
    neap_event event;
    double begin = neap_cli_seconds();
    int code = neap_cli_failed(neap_submit(s->engine, &r, &seq), NEAP_CLI_RUNNING);
    while (code == NEAP_EXIT_OK) {
        code = neap_cli_next_event(s, &event);
        if (code != NEAP_EXIT_OK || event.kind == NEAP_EVENT_DONE) break;
        double passed = neap_cli_seconds() - begin;
        if (event.kind == NEAP_EVENT_PROMPT && passed > 1)
            neap_cli_progress("computing", "tokens", (uint64_t)event.n_done, (uint64_t)event.n_total,
                              (double)event.n_done / passed);
    }
    neap_cli_progress_clear();
    if (code == NEAP_EXIT_OK && wants_caches) code = neap_cli_failed(neap_seq_caches(seq, tap, user), NEAP_CLI_RUNNING);
    neap_seq_free(seq);
    return code;
}
