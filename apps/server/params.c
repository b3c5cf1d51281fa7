/* A request's body to typed parameters: walks the body's members, finds each one's row in the table, checks, stores.
 *
 * Order: defaults, then the members as they come, then what needs several of them (chat, grammar, logprobs). Nothing
 * here allocates by a number from the request without a limit before it.
 *
 * Called on prep threads, and by messages/count_tokens and apply-template (which are chat requests that want no
 * answer). Owns nothing; neap_serve_params owns the tree and what was built from it. Source: params_table.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "params_inner.h"

int neap_param_refuse(neap_params_reader *r, neap_serve_error e, const char *param, const char *format, ...) {
    char text[sizeof r->problem->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    neap_serve_problem_set(r->problem, e, param, "%s: %s", param, text);
    return -1;
}

int neap_param_int(const json_t *value, int64_t min, int64_t max, int64_t *out) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
    } else if (json_is_real(value)) {
        double x = json_real_value(value);
        if (x != floor(x) || fabs(x) > 9007199254740992.0) return -1;
        *out = (int64_t)x;
    } else {
        return -1;
    }
    return *out >= min && *out <= max ? 0 : -1;
}

int neap_param_plain(neap_params_reader *r, const json_t *value, const char *param, size_t min, size_t max) {
    if (!json_is_string(value)) return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "must be a string");
    const char *p = json_string_value(value);
    size_t n = json_string_length(value);
    if (n < min || n > max)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "%zu bytes, must have %zu to %zu", n, min, max);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == 0x7F)
            return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "holds a control character");
    return 0;
}

int neap_param_name(neap_params_reader *r, const json_t *value, const char *param) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    if (!json_is_string(value)) return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "must be a string");
    size_t n = json_string_length(value);
    if (n < 1 || n > 64 || strspn(json_string_value(value), letters) != n)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, param, "must have 1 to 64 of the characters A-Z a-z 0-9 _ -");
    return 0;
}

/* ---- one member ---- */

static int read_int(neap_params_reader *r, const neap_param *f, const json_t *value) {
    double max = neap_param_max(f, r->limits);
    int64_t x;
    if (neap_param_int(value, (int64_t)f->min, (int64_t)max, &x) != 0)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, f->name, "must be an integer from %.0f to %.0f", f->min, max);
    char *to = (char *)r->p + f->offset;
    int32_t small = (int32_t)x;
    if (f->kind == NEAP_PARAM_INT)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &small, sizeof small);
    return 0;
}

static int read_real(neap_params_reader *r, const neap_param *f, const json_t *value) {
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    int is_in = x >= f->min && x <= f->max && !(f->is_open_min && x == f->min) && !(f->is_open_max && x == f->max);
    float single = (float)x; /* a value next to an open end may round to it */
    if (is_in && f->kind == NEAP_PARAM_REAL && f->is_open_min && single == (float)f->min) is_in = 0;
    if (is_in && f->kind == NEAP_PARAM_REAL && f->is_open_max && single == (float)f->max) is_in = 0;
    if (!is_in)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, f->name, "must be a number %s %g and %s %g",
                                 f->is_open_min ? "above" : "from", f->min, f->is_open_max ? "below" : "up to", f->max);
    char *to = (char *)r->p + f->offset;
    if (f->kind == NEAP_PARAM_SECONDS)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &single, sizeof single);
    return 0;
}

static int read_only(neap_params_reader *r, const neap_param *f, const json_t *value) {
    char *text = neap_param_quotes(f->only);
    json_t *allowed = json_loads(text, 0, NULL), *one;
    size_t i;
    int is_allowed = 0;
    json_array_foreach(allowed, i, one) {
        int is_same_number =
            json_is_number(one) && json_is_number(value) && json_number_value(one) == json_number_value(value);
        if (is_same_number || json_equal(one, value)) is_allowed = 1;
    }
    json_decref(allowed);
    if (!is_allowed)
        neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, f->name, "not supported; only the following values are taken: %s",
                          text);
    free(text);
    return is_allowed ? 0 : -1;
}

static int read_member(neap_params_reader *r, const neap_param *f, json_t *value) {
    switch (f->kind) {
    case NEAP_PARAM_INT:
    case NEAP_PARAM_INT32: return read_int(r, f, value);
    case NEAP_PARAM_REAL:
    case NEAP_PARAM_SECONDS: return read_real(r, f, value);
    case NEAP_PARAM_BOOL: {
        int is_true = json_is_true(value);
        if (!json_is_boolean(value))
            return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, f->name, "must be true or false");
        memcpy((char *)r->p + f->offset, &is_true, sizeof is_true);
        return 0;
    }
    case NEAP_PARAM_STRING: return neap_param_plain(r, value, f->name, (size_t)f->min, (size_t)f->max);
    case NEAP_PARAM_OBJECT:
        if (json_is_object(value)) return 0;
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, f->name, "must be an object");
    case NEAP_PARAM_OWN: return f->read(r, f, value);
    case NEAP_PARAM_ONLY: return read_only(r, f, value);
    case NEAP_PARAM_UNSUPPORTED: break;
    }
    return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, f->name, "not supported. %s", f->doc);
}

static int read_members(neap_params_reader *r) {
    const char *name;
    json_t *value;
    json_object_foreach(r->root, name, value) {
        const neap_param *f = neap_param_find(name, r->api);
        if (f == NULL)
            r->p->n_unknown++;
        else if (!json_is_null(value) && read_member(r, f, value) != 0)
            return -1;
    }
    for (const neap_param *f = neap_param_table; f->name != NULL; f++) {
        if (!f->is_required || (f->apis & (1u << r->api)) == 0) continue;
        if (!r->wants_answer && strcmp(f->name, "max_tokens") == 0) continue;
        value = json_object_get(r->root, f->name);
        if (value == NULL || json_is_null(value))
            return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, f->name, "is required");
    }
    return 0;
}

/* ---- before and after ---- */

static void set_defaults(neap_params_reader *r) {
    neap_serve_params *p = r->p;
    *p = (neap_serve_params){.n = 1, .max_tokens = -1, .max_completion_tokens = -1, .logprobs = -1};
    neap_request_init(&p->request);
    neap_params_defaults(r->s, &p->request.sampling);
    p->request.sampling.n_logprobs = -1;
    p->cache_prompt = p->parallel_calls = p->generation_prompt = 1;
    if (r->api == NEAP_API_COMPLETIONS && r->s->config.cli.predict < 0) p->max_tokens = 16;
    r->thinking = NEAP_THINK_UNSAID;
    r->top_logprobs = r->budget_tokens = -1;
}

static int finish_logprobs(neap_params_reader *r) {
    if (r->top_logprobs >= 0 && !r->wants_logprobs)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, "top_logprobs", "needs \"logprobs\": true");
    if (!r->wants_logprobs) return 0;
    r->p->logprobs = r->top_logprobs >= 0 ? r->top_logprobs : 0;
    r->p->request.sampling.n_logprobs = (int32_t)r->p->logprobs;
    return 0;
}

static int finish(neap_params_reader *r) {
    neap_serve_params *p = r->p;
    if (p->max_completion_tokens >= 0) {
        if (p->max_tokens >= 0 && p->max_tokens != p->max_completion_tokens)
            return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, "max_completion_tokens",
                                     "differs from max_tokens, which means the same");
        p->max_tokens = p->max_completion_tokens;
    }
    if (r->has_stream_options && !p->is_stream)
        return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, "stream_options", "needs \"stream\": true");
    if (p->echo && r->wants_logprobs)
        return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, "logprobs",
                                 "not supported together with echo: prompts have no log-probabilities");
    if (finish_logprobs(r) != 0) return -1;
    p->request.no_prefix = !p->cache_prompt;
    if (p->max_tokens < 0) p->max_tokens = r->s->config.cli.predict; /* -1: up to the context */
    if (!p->has_seed && r->s->config.cli.seed >= 0) {
        p->request.sampling.seed = (uint64_t)r->s->config.cli.seed;
        p->has_seed = 1;
    }
    double limit = r->limits->request_seconds;
    if (limit > 0 && (p->deadline <= 0 || p->deadline > limit)) p->deadline = limit;
    p->request.max_tokens = p->max_tokens < 0 || p->max_tokens > INT32_MAX ? INT32_MAX : (int32_t)p->max_tokens;
    int code = r->api == NEAP_API_CHAT          ? neap_params_chat_finish(r)
               : r->api == NEAP_API_COMPLETIONS ? neap_params_completions_finish(r)
                                                : neap_params_messages_finish(r);
    if (code == 0 && p->is_constrained && p->request.ignore_eos)
        return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, "ignore_eos",
                                 "not supported for an answer of a given form");
    return code;
}

int neap_params_read_prompt(neap_serve_params *p, const neap_server *s, neap_serve_api api, int wants_answer,
                            const char *body, size_t n, const neap_tokenizer *t, int32_t context_max,
                            neap_serve_problem *problem) {
    neap_params_reader r = {.p = p,
                            .s = s,
                            .limits = &s->config.limits,
                            .api = api,
                            .wants_answer = wants_answer,
                            .tokenizer = t,
                            .context_max = context_max,
                            .vocab = t != NULL ? neap_tokenizer_vocab(t) : INT32_MAX,
                            .problem = problem,
                            .body = {body, n}};
    set_defaults(&r);
    r.root = p->root = neap_serve_json(s, body, n, problem);
    int code = r.root == NULL ? -1 : 0;
    if (code == 0 && !json_is_object(r.root)) {
        neap_serve_problem_set(problem, NEAP_ERROR_BAD_JSON, "", "the body must be a JSON object");
        code = -1;
    }
    if (code == 0) code = read_members(&r);
    if (code == 0) code = finish(&r);
    if (code != 0) neap_serve_params_free(p);
    return code;
}

int neap_serve_params_read(neap_serve_params *p, const neap_server *s, neap_serve_api api, const char *body, size_t n,
                           const neap_tokenizer *t, int32_t context_max, neap_serve_problem *problem) {
    return neap_params_read_prompt(p, s, api, 1, body, n, t, context_max, problem);
}

void neap_serve_params_free(neap_serve_params *p) {
    free(p->chat);
    free(p->stop_storage);
    free(p->stop_ids);
    free(p->bias);
    json_decref(p->root);
    *p = (neap_serve_params){0};
}
