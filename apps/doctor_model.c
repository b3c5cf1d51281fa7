/* `neap doctor`, the part with a model: does it fit, and do captured plans compute what eager runs compute?
 *
 * The same prompt and 32 greedy tokens twice: plans replayed by all threads, and ops dispatched one by one by a single
 * thread. Every output of every op of every step is hashed; tokens and hashes must be equal. Called by doctor.c. Owns
 * the model while it runs. */
#include <stdio.h>
#include <string.h>

#include "doctor.h"
#include "generate.h"
#include "report.h"
#include "terminal.h"

enum { PROMPT = 48, NEW = 32 };

typedef struct outcome {
    int32_t tokens[NEW];
    int32_t n_tokens;
    uint64_t hash, n_ops;
} outcome;

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static void take_record(void *user, const neap_op_record *r) {
    outcome *out = user;
    if (r->worker != 0) return;
    out->n_ops++;
    out->hash = mix(mix(out->hash, (uint64_t)r->op), r->hash);
    for (const char *c = r->name; *c != 0; c++) out->hash = mix(out->hash, (unsigned char)*c);
}

static neap_status answer(neap_engine *e, int32_t vocab, outcome *out) {
    int32_t tokens[PROMPT];
    neap_request q;
    neap_seq *seq = NULL;
    neap_event event = {.struct_size = sizeof event};
    for (int32_t i = 0; i < PROMPT; i++) tokens[i] = (i * 7919 + 11) % vocab;
    neap_request_init(&q);
    q.tokens = tokens;
    q.n_tokens = PROMPT;
    q.max_tokens = NEW;
    q.ignore_eos = 1;
    neap_status status = neap_submit(e, &q, &seq);
    for (int is_done = 0; status == NEAP_OK && !is_done;) {
        status = neap_step(e);
        if (status == NEAP_OK) status = neap_engine_trace(e, take_record, out);
        while (status == NEAP_OK && neap_poll(e, &event) == NEAP_OK) {
            if (event.kind == NEAP_EVENT_TOKEN && out->n_tokens < NEW) out->tokens[out->n_tokens++] = event.token;
            is_done |= event.kind == NEAP_EVENT_DONE;
            if (event.kind == NEAP_EVENT_DONE && event.finish == NEAP_FINISH_ERROR) status = event.status;
        }
    }
    neap_seq_free(seq);
    return status;
}

static neap_status run(const neap_model *m, const neap_cli_options *o, int32_t plan, int32_t vocab, outcome *out) {
    neap_cli_settings s;
    neap_engine *e = NULL;
    *out = (outcome){0};
    neap_cli_settings_fill(&s, o, m);
    s.engine.context_max = PROMPT + NEW;
    s.engine.plan = plan;
    s.engine.enable_hash = 1;
    if (plan == NEAP_PLAN_EAGER) s.engine.n_threads = s.engine.n_threads_batch = 1;
    neap_status status = neap_engine_create(&e, m, &s.engine);
    if (status == NEAP_OK) status = answer(e, vocab, out);
    neap_engine_destroy(e);
    return status;
}

static void compare(neap_cli_doctor_state *d, const neap_model *m, const neap_model_info *info) {
    static outcome replayed, eager;
    neap_status status = run(m, d->options, NEAP_PLAN_REPLAY, info->vocab, &replayed);
    if (status == NEAP_OK) status = run(m, d->options, NEAP_PLAN_EAGER, info->vocab, &eager);
    if (status != NEAP_OK) {
        const char *text = neap_last_error();
        neap_cli_doctor_say(d, "plan", NEAP_CLI_FAILED, "free memory, or correct the option that it names", "%s",
                            text != NULL && text[0] != 0 ? text : neap_status_text(status));
        return;
    }
    int same_tokens =
        replayed.n_tokens == eager.n_tokens && memcmp(replayed.tokens, eager.tokens, sizeof replayed.tokens) == 0;
    int same_hashes = replayed.hash == eager.hash && replayed.n_ops == eager.n_ops;
    if (same_tokens && same_hashes && eager.n_tokens == NEW)
        neap_cli_doctor_say(d, "plan", NEAP_CLI_FINE, NULL,
                            "replayed plans = eager dispatch, bit by bit: %llu outputs of ops, %d tokens",
                            (unsigned long long)eager.n_ops, eager.n_tokens);
    else
        neap_cli_doctor_say(d, "plan", NEAP_CLI_FAILED,
                            "use --plan off, compare neap run --hashes of both ways, and report it",
                            "replayed plans and eager dispatch differ in %s", same_tokens ? "inner results" : "tokens");
}

static void memory(neap_cli_doctor_state *d, const neap_model *m) {
    neap_cli_settings s;
    neap_memory memory = {.struct_size = sizeof memory};
    char need[64], have[64];
    neap_cli_settings_fill(&s, d->options, m);
    if (neap_engine_memory(m, &s.engine, &memory) != NEAP_OK) {
        neap_cli_doctor_say(d, "memory", NEAP_CLI_FAILED, "correct the option or the file that it names", "%s",
                            neap_last_error());
        return;
    }
    neap_cli_bytes(memory.total, need, sizeof need);
    neap_cli_bytes(memory.available, have, sizeof have);
    if (memory.total > memory.available)
        neap_cli_doctor_say(d, "memory", NEAP_CLI_FAILED,
                            "free memory, raise the container's limit, or use a smaller "
                            "context, caches of fp8, weights of fewer bits",
                            "the model needs %s, the machine has %s", need, have);
    else
        neap_cli_doctor_say(d, "memory", NEAP_CLI_FINE, NULL, "%s of %s available", need, have);
}

static void tuning(neap_cli_doctor_state *d, const neap_model *m) {
    neap_cli_settings s;
    char text[256];
    neap_cli_settings_fill(&s, d->options, m);
    neap_cli_tuning_text(&s.tuning, text, sizeof text);
    neap_cli_doctor_say(d, "tuning", NEAP_CLI_FINE, NULL, "%s%s",
                        s.is_tuned ? "" : "no record for this model here (neap tune makes one): ", text);
}

void neap_cli_doctor_model(neap_cli_doctor_state *d) {
    neap_cli_session session = {0};
    neap_cli_options own = *d->options;
    neap_model_info info = {.struct_size = sizeof info};
    own.model = d->model;
    own.cache = 0; /* looking makes and mends nothing */
    if (d->model == NULL) {
        neap_cli_doctor_say(d, "model", NEAP_CLI_WARNING, "neap doctor MODEL",
                            "no model given and the bundled one is not here: plans were not checked");
        return;
    }
    neap_model_options options;
    neap_model *described = NULL;
    neap_model_options_init(&options);
    options.describe_only = 1;
    options.cpu = own.cpu;
    options.strict = own.strict;
    options.log = neap_cli_log;
    neap_status status = neap_model_open(&described, own.model, &options);
    if (status == NEAP_OK) status = neap_model_describe(described, &info);
    if (status != NEAP_OK) {
        neap_cli_doctor_say(d, "model", NEAP_CLI_FAILED, "give the directory of a complete model", "%s",
                            neap_last_error());
        neap_model_close(described);
        return;
    }
    neap_cli_doctor_say(d, "model", NEAP_CLI_FINE, NULL, "%s: %s, %d layers, %s", own.model, info.family, info.n_layers,
                        info.weight_formats);
    int failed_before = d->n_failed;
    memory(d, described);
    tuning(d, described);
    neap_model_close(described);
    if (d->n_failed > failed_before) return; /* it does not fit */
    if (neap_cli_session_open(&session, &own) == NEAP_EXIT_OK)
        compare(d, session.model, &info);
    else
        neap_cli_doctor_say(d, "plan", NEAP_CLI_FAILED, "copy the model's files anew, or free memory",
                            "the weights could not be loaded: %s", neap_last_error());
    neap_cli_session_close(&session);
}
