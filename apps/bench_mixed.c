/* `neap bench --mixed`: what a running sequence notices of somebody's prompt, and the prompt of the sequence.
 *
 *   1. a prompt of -p tokens alone                        -> prompt rate alone
 *   2. a sequence decodes -n tokens alone                 -> decode rate alone
 *   3. it goes on while the same prompt is read beside it -> both rates, and the longest wait for a token
 *
 * The scheduler gives decoding its rows first and fills the step (-b) with the prompt; with NEAP_USE_MIXED both run at
 * the same time in sub-teams. Best of the repetitions. Called by bench.c and bench_compare.c. Owns its sequences. */
#include "bench.h"

#include "report.h"
#include "terminal.h"

int64_t neap_cli_mixed_steps(const neap_cli_bench_run *r) {
    int64_t chunk = r->s.options->batch_size > 1 ? r->s.options->batch_size - 1 : 1;
    return (r->n_prompt + chunk - 1) / chunk + 64; /* a prompt may be cut into more pieces than it needs */
}

static neap_status submit(neap_cli_session *s, const neap_cli_bench_run *r, int64_t n, int64_t n_new, neap_seq **seq) {
    neap_request q;
    neap_request_init(&q);
    q.tokens = r->tokens;
    q.n_tokens = (size_t)n;
    q.max_tokens = (int32_t)n_new;
    q.ignore_eos = 1;
    return neap_submit(s->engine, &q, seq);
}

/* Steps until the prompt of `prompt` has given its token, or, without one, until `running` has given n_new more. Counts
 * the tokens of `running`. */
static neap_status go(neap_cli_session *s, const neap_seq *running, const neap_seq *prompt, int64_t n_new,
                      int64_t *n_seen, double *longest) {
    neap_status status = NEAP_OK;
    double last = neap_cli_seconds();
    int is_done = 0;
    *n_seen = 0;
    *longest = 0;
    while (status == NEAP_OK && !is_done) {
        neap_event event = {.struct_size = sizeof event};
        status = neap_cli_signal() != 0 ? NEAP_CANCELLED : neap_cli_session_step(s);
        while (status == NEAP_OK && neap_poll(s->engine, &event) == NEAP_OK) {
            if (event.kind == NEAP_EVENT_DONE && event.finish == NEAP_FINISH_ERROR) return event.status;
            if (event.kind == NEAP_EVENT_DONE && event.seq == running) is_done = 1; /* its tokens are used up */
            if (event.kind != NEAP_EVENT_TOKEN) continue;
            is_done |= prompt != NULL && event.seq == prompt;
            if (event.seq != running) continue;
            double now = neap_cli_seconds();
            if (now - last > *longest) *longest = now - last;
            last = now;
            is_done |= ++*n_seen == n_new && prompt == NULL;
        }
    }
    return status;
}

static void keep_best(neap_cli_mixed *best, const neap_cli_mixed *m) {
    if (m->decode_alone > best->decode_alone) best->decode_alone = m->decode_alone;
    if (m->decode_during > best->decode_during) best->decode_during = m->decode_during;
    if (m->prompt_alone > best->prompt_alone) best->prompt_alone = m->prompt_alone;
    if (m->prompt_during > best->prompt_during) best->prompt_during = m->prompt_during;
    if (best->longest == 0 || m->longest < best->longest) best->longest = m->longest;
}

static neap_status once(neap_cli_mixed *m, neap_cli_session *s, const neap_cli_bench_run *r) {
    neap_seq *running = NULL, *prompt = NULL;
    int64_t n = 0, n_new = r->n_new > 0 ? r->n_new : 1, room = s->context - 1;
    double begin = neap_cli_seconds(), longest;
    neap_status status = submit(s, r, r->n_prompt, 1, &prompt);
    if (status == NEAP_OK) status = go(s, NULL, prompt, 0, &n, &longest);
    m->prompt_alone = (double)r->n_prompt / (neap_cli_seconds() - begin);
    neap_seq_free(prompt);
    prompt = NULL;
    if (status == NEAP_OK) status = submit(s, r, 1, room, &running);
    if (status == NEAP_OK) status = go(s, running, NULL, 1, &n, &longest); /* its prompt */
    begin = neap_cli_seconds();
    if (status == NEAP_OK) status = go(s, running, NULL, n_new, &n, &longest);
    m->decode_alone = (double)n / (neap_cli_seconds() - begin);
    begin = neap_cli_seconds();
    if (status == NEAP_OK) status = submit(s, r, r->n_prompt, 1, &prompt);
    if (status == NEAP_OK) status = go(s, running, prompt, 0, &n, &m->longest);
    double passed = neap_cli_seconds() - begin;
    m->decode_during = (double)n / passed;
    m->prompt_during = (double)r->n_prompt / passed;
    if (running != NULL) (void)neap_cancel(running);
    neap_seq_free(prompt);
    neap_seq_free(running);
    return status;
}

int neap_cli_mixed_measure(neap_cli_mixed *out, neap_cli_session *s, const neap_cli_bench_run *r) {
    neap_status status = NEAP_OK;
    *out = (neap_cli_mixed){.n_prompt = r->n_prompt};
    for (int64_t i = 0; status == NEAP_OK && i < r->repetitions; i++) {
        neap_cli_mixed m = {.n_prompt = r->n_prompt};
        status = once(&m, s, r);
        if (status == NEAP_OK) keep_best(out, &m);
    }
    if (status == NEAP_CANCELLED) return NEAP_EXIT_INTERRUPTED;
    if (status != NEAP_AGAIN) return neap_cli_failed(status, NEAP_CLI_RUNNING);
    neap_cli_error("--mixed: the engine ended before the prompt was read");
    return NEAP_EXIT_INTERNAL;
}
