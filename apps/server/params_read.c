/* Fields of requests that are more than a number in a range: stop texts, biases, prompts, keys of the prefix cache.
 *
 * Called by params.c through the table. What is stored belongs to the parameters. Source: the OpenAI API's completions
 * and chat requests. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "params_inner.h"

enum { STOP_IDS_MAX = 64, KEY_BYTES_MAX = 64, PARAM_BYTES = 96 };

#define REFUSE(...) return neap_param_refuse(r, NEAP_ERROR_BAD_VALUE, __VA_ARGS__)

int neap_param_model(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_string(v)) REFUSE(f->name, "must be a string");
    if (!r->s->config.strict_model_name || strcmp(json_string_value(v), neap_serve_model_name(r->s)) == 0) return 0;
    return neap_param_refuse(r, NEAP_ERROR_NO_MODEL, f->name, "there is no model of that name here");
}

int neap_param_stop(neap_params_reader *r, const neap_param *f, json_t *v) {
    size_t n = json_is_string(v) ? 1 : json_array_size(v), bytes = 0;
    if (!json_is_string(v) && !json_is_array(v)) REFUSE(f->name, "must be a string or an array of strings");
    if (n > (size_t)r->limits->stop_strings)
        REFUSE(f->name, "%zu strings, at most %lld are allowed", n, (long long)r->limits->stop_strings);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_string(v) ? v : json_array_get(v, i);
        char param[PARAM_BYTES];
        snprintf(param, sizeof param, json_is_string(v) ? "%s" : "%s[%zu]", f->name, i);
        if (!json_is_string(one)) REFUSE(param, "must be a string");
        size_t length = json_string_length(one);
        if (length == 0) REFUSE(param, "must not be empty");
        if (length > (size_t)r->limits->stop_bytes)
            REFUSE(param, "%zu bytes, at most %lld are allowed", length, (long long)r->limits->stop_bytes);
        if (strlen(json_string_value(one)) != length) REFUSE(param, "holds U+0000");
        bytes += length + 1;
    }
    if (n == 0) return 0;
    r->p->stop_storage = neap_cli_alloc(n * sizeof(char *) + bytes, 1);
    const char **list = (const char **)(void *)r->p->stop_storage;
    char *at = r->p->stop_storage + n * sizeof(char *);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_string(v) ? v : json_array_get(v, i);
        size_t length = json_string_length(one);
        memcpy(at, json_string_value(one), length + 1);
        list[i] = at;
        at += length + 1;
    }
    r->p->request.stop = list;
    r->p->request.n_stop = n;
    return 0;
}

int neap_param_stop_ids(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_array(v)) REFUSE(f->name, "must be an array of token ids");
    size_t n = json_array_size(v);
    if (n > STOP_IDS_MAX) REFUSE(f->name, "%zu ids, at most %d are allowed", n, STOP_IDS_MAX);
    if (n == 0) return 0;
    r->p->stop_ids = neap_cli_alloc(n, sizeof *r->p->stop_ids);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        char param[PARAM_BYTES];
        snprintf(param, sizeof param, "%s[%zu]", f->name, i);
        if (neap_param_int(json_array_get(v, i), 0, r->vocab - 1, &id) != 0)
            REFUSE(param, "must be a token id from 0 to %d", r->vocab - 1);
        r->p->stop_ids[i] = (int32_t)id;
    }
    r->p->request.stop_tokens = r->p->stop_ids;
    r->p->request.n_stop_tokens = n;
    return 0;
}

/* "0" or digits that do not begin with 0, below vocab; -1: anything else. */
static int64_t id_of(const char *text, int32_t vocab) {
    size_t n = strlen(text);
    int64_t id = 0;
    if (n == 0 || n > 10 || strspn(text, "0123456789") != n || (n > 1 && text[0] == '0')) return -1;
    for (size_t i = 0; i < n; i++) id = id * 10 + (text[i] - '0');
    return id < vocab ? id : -1;
}

int neap_param_bias(neap_params_reader *r, const neap_param *f, json_t *v) {
    const char *key;
    json_t *one;
    if (!json_is_object(v)) REFUSE(f->name, "must be an object of token ids and numbers");
    size_t n = json_object_size(v), i = 0;
    if (n > (size_t)r->limits->logit_bias)
        REFUSE(f->name, "%zu entries, at most %lld are allowed", n, (long long)r->limits->logit_bias);
    if (n == 0) return 0;
    r->p->bias = neap_cli_alloc(n, sizeof *r->p->bias);
    json_object_foreach(v, key, one) {
        int64_t id = id_of(key, r->vocab);
        double x = json_is_number(one) ? json_number_value(one) : NAN;
        if (id < 0) REFUSE(f->name, "\"%.40s\" is no token id from 0 to %d", key, r->vocab - 1);
        if (!(x >= -100 && x <= 100)) REFUSE(f->name, "token %lld: must be a number from -100 to 100", (long long)id);
        r->p->bias[i++] = (neap_logit_bias){.token = (int32_t)id, .bias = (float)x};
    }
    r->p->request.sampling.bias = r->p->bias;
    r->p->request.sampling.n_bias = n;
    return 0;
}

int neap_param_seed(neap_params_reader *r, const neap_param *f, json_t *v) {
    int64_t seed;
    if (neap_param_int(v, INT64_MIN, INT64_MAX, &seed) != 0) REFUSE(f->name, "must be an integer of 64 bits");
    r->p->request.sampling.seed = (uint64_t)seed;
    r->p->has_seed = 1;
    return 0;
}

int neap_param_top_logprobs(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (neap_param_int(v, 0, r->limits->top_logprobs, &r->top_logprobs) != 0)
        REFUSE(f->name, "must be an integer from 0 to %lld", (long long)r->limits->top_logprobs);
    return 0;
}

int neap_param_logprobs(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (r->api == NEAP_API_COMPLETIONS) {
        r->wants_logprobs = 1;
        return neap_param_top_logprobs(r, f, v);
    }
    if (!json_is_boolean(v)) REFUSE(f->name, "must be true or false");
    r->wants_logprobs = json_is_true(v);
    return 0;
}

int neap_param_stream_options(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (!json_is_object(v)) REFUSE(f->name, "must be an object");
    const json_t *usage = json_object_get(v, "include_usage");
    if (usage != NULL && !json_is_boolean(usage) && !json_is_null(usage))
        REFUSE("stream_options.include_usage", "must be true or false");
    r->has_stream_options = 1;
    r->p->include_usage = json_is_true(usage);
    return 0;
}

/* Salt and key lie side by side in cache_key, the salt's length first, so that no two pairs look alike. */
int neap_param_cache_key(neap_params_reader *r, const neap_param *f, json_t *v) {
    if (neap_param_plain(r, v, f->name, 1, KEY_BYTES_MAX) != 0) return -1;
    const json_t *salt = json_object_get(r->root, "cache_salt"), *key = json_object_get(r->root, "prompt_cache_key");
    const char *a = json_is_string(salt) ? json_string_value(salt) : "";
    const char *b = json_is_string(key) && r->api != NEAP_API_MESSAGES ? json_string_value(key) : "";
    snprintf(r->p->cache_key, sizeof r->p->cache_key, "%zu:%.*s%.*s", strlen(a), KEY_BYTES_MAX, a, KEY_BYTES_MAX, b);
    r->p->cache_salt = r->p->cache_key;
    return 0;
}

/* ---- prompts of completions ---- */

static int check_id(neap_params_reader *r, const json_t *value, const char *param) {
    int64_t id;
    const char *bytes;
    size_t n;
    int is_special = 0;
    if (neap_param_int(value, 0, r->vocab - 1, &id) != 0)
        REFUSE(param, "must be a token id from 0 to %d", r->vocab - 1);
    if (r->tokenizer == NULL || json_is_true(json_object_get(r->root, "allow_special"))) return 0;
    if (neap_token_bytes(r->tokenizer, (int32_t)id, &bytes, &n, &is_special) != NEAP_OK)
        REFUSE(param, "%lld is no token of this model", (long long)id);
    if (is_special) REFUSE(param, "%lld is a special token; these need \"allow_special\": true", (long long)id);
    return 0;
}

static int check_ids(neap_params_reader *r, const json_t *ids, const char *param) {
    size_t n = json_array_size(ids);
    if (n == 0) REFUSE(param, "must not be empty");
    for (size_t i = 0; i < n; i++) {
        char inner[PARAM_BYTES + 32];
        snprintf(inner, sizeof inner, "%s[%zu]", param, i);
        if (check_id(r, json_array_get(ids, i), inner) != 0) return -1;
    }
    return 0;
}

static int check_text(neap_params_reader *r, const json_t *text, const char *param) {
    if (!json_is_string(text)) REFUSE(param, "must be a string");
    if (r->tokenizer == NULL)
        return neap_param_refuse(r, NEAP_ERROR_UNSUPPORTED, param, "this model has no tokenizer; send token ids");
    if (json_string_length(text) == 0) REFUSE(param, "must not be empty");
    return 0;
}

int neap_param_prompt(neap_params_reader *r, const neap_param *f, json_t *v) {
    r->p->prompt = v;
    if (json_is_string(v)) return check_text(r, v, f->name);
    if (!json_is_array(v)) REFUSE(f->name, "must be a string, or an array of strings, token ids or lists of token ids");
    size_t n = json_array_size(v);
    if (n == 0) REFUSE(f->name, "must not be empty");
    if (json_is_number(json_array_get(v, 0))) return check_ids(r, v, f->name);
    if (n > (size_t)r->limits->choices)
        REFUSE(f->name, "%zu prompts, at most %lld are allowed", n, (long long)r->limits->choices);
    int are_texts = json_is_string(json_array_get(v, 0));
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(v, i);
        char param[PARAM_BYTES];
        snprintf(param, sizeof param, "%s[%zu]", f->name, i);
        if (are_texts) {
            if (check_text(r, one, param) != 0) return -1;
        } else if (!json_is_array(one)) {
            REFUSE(param, "must be a list of token ids, as the first one");
        } else if (check_ids(r, one, param) != 0) {
            return -1;
        }
    }
    return 0;
}
