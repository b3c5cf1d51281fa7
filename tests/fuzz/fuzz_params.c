/* A request's body, whatever it holds, for each of the three APIs: refused with a problem that has a message and a
 * status of 400 or 404, or parameters in their ranges and a chat request that the encoder reads as JSON.
 *
 * The first byte chooses the API. What belongs to a running server is stood in for. */
#include <math.h>

#include "../../apps/report.h"
#include "../../apps/server/params_inner.h"
#include "fuzz/fuzz_text.h"

/* ---- stand-ins ---- */
void neap_cli_error(const char *format, ...) { (void)format; }
void neap_params_defaults(const neap_server *s, neap_sampling *out) {
    (void)s;
    out->temperature = out->top_p = 1;
}
const char *neap_serve_model_name(const neap_server *s) {
    (void)s;
    return "model";
}
void neap_backend_options_now(const neap_backend *b, neap_engine_options *out) {
    (void)b;
    *out = (neap_engine_options){.context_max = 4096};
}
void neap_http_add_header(neap_http_exchange *x, const char *name, const char *value) {
    (void)x;
    (void)name;
    (void)value;
}
void neap_http_reply(neap_http_exchange *x, int32_t status, const char *type, const void *body, size_t n) {
    (void)x;
    (void)status;
    (void)type;
    (void)body;
    (void)n;
}
const char *neap_http_id(const neap_http_exchange *x) {
    (void)x;
    return "";
}
void neap_serve_log_fields(neap_log_level level, const char *event, ...) {
    (void)level;
    (void)event;
}

/* ---- what must hold ---- */

static void demand_ranges(const neap_serve_params *p, int32_t vocab) {
    const neap_sampling *s = &p->request.sampling;
    demand(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    demand(s->min_p >= 0 && s->min_p < 1 && s->top_k >= 0 && s->repetition_penalty > 0);
    demand(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2 && s->penalty_window >= -1);
    demand(s->n_logprobs >= -1 && s->n_logprobs <= 20 && p->n >= 1 && p->n <= 16);
    demand(p->request.max_tokens >= 0 && p->request.n_stop <= 16 && p->request.n_stop_tokens <= 64);
    for (size_t i = 0; i < p->request.n_stop; i++)
        demand(p->request.stop[i][0] != 0 && strlen(p->request.stop[i]) <= 1024);
    for (size_t i = 0; i < p->request.n_stop_tokens; i++)
        demand(p->request.stop_tokens[i] >= 0 && p->request.stop_tokens[i] < vocab);
    for (size_t i = 0; i < s->n_bias; i++)
        demand(s->bias[i].token >= 0 && s->bias[i].token < vocab && fabsf(s->bias[i].bias) <= 100);
}

static void try(const neap_server *s, const neap_tokenizer *t, neap_serve_api api, const char *body, size_t n) {
    static int32_t tokens[1 << 20];
    neap_serve_params p;
    neap_serve_problem problem = {.error = NEAP_ERROR_INTERNAL};
    size_t n_tokens = 0;
    if (neap_serve_params_read(&p, s, api, body, n, t, 4096, &problem) != 0) {
        neap_cli_text text = {0};
        int32_t status = neap_serve_problem_status(&problem);
        demand((status == 400 || status == 404) && problem.message[0] != 0);
        neap_serve_problem_body(&problem, api == NEAP_API_MESSAGES, &text);
        json_t *error = json_loadb(text.data, text.n, 0, NULL);
        demand(error != NULL);
        json_decref(error);
        neap_cli_text_free(&text);
        return;
    }
    demand_ranges(&p, neap_tokenizer_vocab(t));
    if (p.chat != NULL) {
        json_t *chat = json_loadb(p.chat, p.chat_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        demand(chat != NULL);
        json_decref(chat);
    }
    if (api != NEAP_API_COMPLETIONS) {
        neap_status status = neap_chat_encode(t, p.chat, p.chat_bytes, tokens, 1 << 20, &n_tokens);
        demand(status == NEAP_OK || status == NEAP_INVALID_ARGUMENT || status == NEAP_UNSUPPORTED ||
               status == NEAP_LIMIT || status == NEAP_TOO_SMALL);
    }
    neap_serve_params_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const neap_tokenizer *both[2];
    static neap_server server;
    if (both[0] == NULL) {
        both[0] = golden_tokenizer("tokenizer_config_k3.json");
        both[1] = golden_tokenizer("tokenizer_config.json");
        server.config.cli.think = -1;
        server.config.strict_model_name = 1;
        server.config.limits = (neap_serve_limits){.json_depth = 64,
                                                   .choices = 16,
                                                   .stop_strings = 16,
                                                   .stop_bytes = 1024,
                                                   .logit_bias = 1024,
                                                   .top_logprobs = 20,
                                                   .tools = 128};
    }
    if (size == 0) return 0;
    for (int k = 0; k < 2; k++) try(&server, both[k], (neap_serve_api)(data[0] % 3), (const char *)data + 1, size - 1);
    return 0;
}
