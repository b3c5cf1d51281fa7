/* Options and requests come from outside: every number has a type, a range and a default in one of the tables
 * below, and an error names the field, its value and what is allowed. After neap_request_take the engine
 * trusts what it holds.
 *
 * struct_size makes the structs extensible: an older caller's shorter struct is taken over as far as it
 * reaches and the rest gets defaults; a longer one was compiled against a newer header and is refused.
 *
 * Called by neap_engine_create and neap_submit. Owns nothing. */
#include "engine/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/prefix.h"
#include "engine/sampler.h"
#include "engine/text.h"
#include "format/grammar.h"
#include "format/utf8.h"

typedef enum neap_field_kind { FIELD_I32, FIELD_U64, FIELD_F32 } neap_field_kind;

/* Bounds belong to the range unless marked open. Every bound is exact as a double. */
typedef struct neap_field {
    const char *name;
    neap_field_kind kind;
    size_t offset;
    double min, max, initial;
    bool is_min_open, is_max_open;
} neap_field;

#define I32_MAX 2147483647.0
#define U64_MAX 18446744073709551615.0

#define FIELD(owner, member, kind, min, max, initial) \
    { #member, kind, offsetof(owner, member), min, max, initial, 0, 0 }
#define FIELD_OPEN(owner, member, kind, min, max, initial, is_min_open, is_max_open) \
    { #member, kind, offsetof(owner, member), min, max, initial, is_min_open, is_max_open }

static const neap_field engine_fields[] = {
    FIELD(neap_engine_options, n_threads, FIELD_I32, 0, 1024, 0),
    FIELD(neap_engine_options, seqs_max, FIELD_I32, 1, 1024, 1),
    FIELD(neap_engine_options, context_max, FIELD_I32, 0, I32_MAX, 0),
    FIELD(neap_engine_options, batch_tokens_max, FIELD_I32, 1, 65536, 512),
    FIELD(neap_engine_options, cache_tokens_max, FIELD_U64, 0, 0x1p48, 0),
    FIELD(neap_engine_options, memory_max, FIELD_U64, 0, U64_MAX, 0),
    FIELD(neap_engine_options, enable_taps, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, cache_type, FIELD_I32, 0, NEAP_CACHE_FP8, NEAP_CACHE_DEFAULT),
    FIELD(neap_engine_options, index_type, FIELD_I32, 0, NEAP_INDEX_MXFP8, NEAP_INDEX_DEFAULT),
    FIELD(neap_engine_options, act_type, FIELD_I32, 0, NEAP_ACT_INT8, NEAP_ACT_DEFAULT),
    FIELD(neap_engine_options, moe_act_type, FIELD_I32, 0, NEAP_ACT_INT8, NEAP_ACT_DEFAULT),
    FIELD(neap_engine_options, n_threads_batch, FIELD_I32, 0, 1024, 0),
    FIELD(neap_engine_options, oversubscribe, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, plan, FIELD_I32, 0, NEAP_PLAN_EAGER, NEAP_PLAN_DEFAULT),
    FIELD(neap_engine_options, enable_trace, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, enable_hash, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, queue_max, FIELD_I32, 0, 65536, 0),
    FIELD(neap_engine_options, queue_tokens_max, FIELD_U64, 0, 0x1p48, 0),
    FIELD(neap_engine_options, prefix_cache, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, checkpoints_max, FIELD_I32, 0, 65536, 0),
    FIELD(neap_engine_options, checkpoint_spacing, FIELD_I32, 0, 1048576, 0),
    FIELD(neap_engine_options, prefix_dir_bytes_max, FIELD_U64, 0, U64_MAX, 0),
    FIELD(neap_engine_options, optimistic, FIELD_I32, 0, 1, 0),
    FIELD(neap_engine_options, touch_memory, FIELD_I32, 0, 1, 0),
};

#define USES (NEAP_USE_INDEX | NEAP_USE_SHARED | NEAP_USE_MIXED)
static const neap_field tuning_fields[] = {
    FIELD(neap_tuning, few_rows, FIELD_I32, 0, 8, 8),
    FIELD(neap_tuning, tile_rows, FIELD_I32, 1, 8, 8),
    FIELD(neap_tuning, prefetch_kib, FIELD_I32, 0, 65536, 0),
    FIELD(neap_tuning, mixed_workers, FIELD_I32, 1, 1023, 1),
    FIELD(neap_tuning, beside, FIELD_I32, 0, USES, NEAP_USE_INDEX | NEAP_USE_SHARED),
    FIELD(neap_tuning, streams, FIELD_I32, 0, USES, 0),
    FIELD(neap_tuning, pinning, FIELD_I32, 0, NEAP_PIN_STAY, NEAP_PIN_DEFAULT),
    FIELD(neap_tuning, n_threads, FIELD_I32, 0, 1024, 0),
    FIELD(neap_tuning, n_threads_batch, FIELD_I32, 0, 1024, 0),
};

static const neap_field request_fields[] = {
    FIELD(neap_request, max_tokens, FIELD_I32, 0, I32_MAX, I32_MAX), /* up to the context */
    FIELD(neap_request, ignore_eos, FIELD_I32, 0, 1, 0),
    FIELD(neap_request, all_logits, FIELD_I32, 0, 1, 0),
    FIELD(neap_request, no_prefix, FIELD_I32, 0, 1, 0),
};

static const neap_field sampling_fields[] = {
    FIELD(neap_sampling, temperature, FIELD_F32, 0, 100, 0),
    FIELD(neap_sampling, top_k, FIELD_I32, 0, I32_MAX, 0),
    FIELD_OPEN(neap_sampling, top_p, FIELD_F32, 0, 1, 1, true, false),
    FIELD_OPEN(neap_sampling, min_p, FIELD_F32, 0, 1, 0, false, true),
    FIELD_OPEN(neap_sampling, repetition_penalty, FIELD_F32, 0, 100, 1, true, false),
    FIELD(neap_sampling, presence_penalty, FIELD_F32, -2, 2, 0),
    FIELD(neap_sampling, frequency_penalty, FIELD_F32, -2, 2, 0),
    FIELD(neap_sampling, penalty_window, FIELD_I32, -1, I32_MAX, 64),
    FIELD(neap_sampling, seed, FIELD_U64, 0, U64_MAX, 0),
    FIELD(neap_sampling, n_logprobs, FIELD_I32, -1, NEAP_LOGPROBS_MAX, -1),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static void set_defaults(void *object, const neap_field *fields, size_t n_fields) {
    for (size_t i = 0; i < n_fields; i++) {
        const neap_field *f = &fields[i];
        char *place = (char *)object + f->offset;
        if (f->kind == FIELD_I32) {
            const int32_t x = (int32_t)f->initial;
            memcpy(place, &x, sizeof x);
        } else if (f->kind == FIELD_U64) {
            const uint64_t x = (uint64_t)f->initial;
            memcpy(place, &x, sizeof x);
        } else {
            const float x = (float)f->initial;
            memcpy(place, &x, sizeof x);
        }
    }
}

/* Shortest decimal that reads back as the same value. */
static void format_value(const neap_field *f, double value, char *text, size_t capacity) {
    for (int digits = f->kind == FIELD_F32 ? 6 : 17; digits <= 17; digits++) {
        snprintf(text, capacity, "%.*g", digits, value);
        if (f->kind != FIELD_F32 || isnan(value) || strtof(text, NULL) == (float)value) return;
    }
}

static neap_status check_ranges(const void *object, const neap_field *fields, size_t n_fields) {
    for (size_t i = 0; i < n_fields; i++) {
        const neap_field *f = &fields[i];
        const char *place = (const char *)object + f->offset;
        double value = 0.0;
        if (f->kind == FIELD_I32) {
            int32_t x;
            memcpy(&x, place, sizeof x);
            value = x;
        } else if (f->kind == FIELD_F32) {
            float x;
            memcpy(&x, place, sizeof x);
            value = (double)x;
        } else {
            uint64_t x;
            memcpy(&x, place, sizeof x);
            value = (double)x;
        }
        const bool is_above = f->is_min_open ? value > f->min : value >= f->min; /* NaN is neither */
        const bool is_below = f->is_max_open ? value < f->max : value <= f->max;
        if (is_above && is_below) continue;
        char text[48];
        format_value(f, value, text, sizeof text);
        NEAP_FAIL(NEAP_INVALID_ARGUMENT, "%s is %s; allowed is %s%.17g .. %.17g%s", f->name, text,
                  f->is_min_open ? "above " : "", f->min, f->max, f->is_max_open ? ", exclusive" : "");
    }
    return NEAP_OK;
}

void neap_engine_options_init(neap_engine_options *o) {
    if (o == NULL) return;
    *o = (neap_engine_options){.struct_size = sizeof *o};
    set_defaults(o, engine_fields, COUNT(engine_fields));
}

void neap_tuning_init(neap_tuning *t) {
    if (t == NULL) return;
    *t = (neap_tuning){.struct_size = sizeof *t};
    set_defaults(t, tuning_fields, COUNT(tuning_fields));
}

void neap_request_init(neap_request *r) {
    if (r == NULL) return;
    *r = (neap_request){.struct_size = sizeof *r};
    set_defaults(r, request_fields, COUNT(request_fields));
    set_defaults(&r->sampling, sampling_fields, COUNT(sampling_fields));
}

/* Copies what the caller's version of the struct has. */
static neap_status take_struct(void *out, size_t known, const void *in, size_t given, const char *what) {
    NEAP_CHECK(given >= sizeof(size_t) * 2 && given <= known, NEAP_INVALID_ARGUMENT,
               "struct_size of the %s is %zu, this library knows %zu; fill the struct with its _init function", what,
               given, known);
    memcpy(out, in, given);
    memcpy(out, &known, sizeof known);
    return NEAP_OK;
}

neap_status neap_engine_options_take(neap_engine_options *out, const neap_engine_options *in) {
    neap_engine_options_init(out);
    if (in == NULL) return NEAP_OK;
    NEAP_TRY(take_struct(out, sizeof *out, in, in->struct_size, "engine options"));
    return check_ranges(out, engine_fields, COUNT(engine_fields));
}

neap_status neap_tuning_take(neap_tuning *out, const neap_tuning *in) {
    neap_tuning t;
    neap_tuning_init(&t);
    if (in != NULL) NEAP_TRY(take_struct(&t, sizeof t, in, in->struct_size, "tuning"));
    NEAP_TRY(check_ranges(&t, tuning_fields, COUNT(tuning_fields)));
    *out = t; /* in may be out */
    return NEAP_OK;
}

static neap_status check_tokens(const int32_t *tokens, size_t n, int32_t vocab, const char *what) {
    NEAP_CHECK(n == 0 || tokens != NULL, NEAP_INVALID_ARGUMENT, "%s is NULL but has %zu entries", what, n);
    for (size_t i = 0; i < n; i++) {
        NEAP_CHECK(tokens[i] >= 0 && tokens[i] < vocab, NEAP_INVALID_ARGUMENT, "%s[%zu] is %d; allowed is 0 .. %d",
                   what, i, tokens[i], vocab - 1);
    }
    return NEAP_OK;
}

static neap_status check_bias(const neap_sampling *s, int32_t vocab) {
    NEAP_CHECK(s->n_bias <= NEAP_BIAS_MAX, NEAP_INVALID_ARGUMENT, "n_bias is %zu; allowed is 0 .. %d", s->n_bias,
               NEAP_BIAS_MAX);
    NEAP_CHECK(s->n_bias == 0 || s->bias != NULL, NEAP_INVALID_ARGUMENT, "bias is NULL but has %zu entries", s->n_bias);
    for (size_t i = 0; i < s->n_bias; i++) {
        const neap_logit_bias *b = &s->bias[i];
        NEAP_CHECK(b->token >= 0 && b->token < vocab, NEAP_INVALID_ARGUMENT,
                   "bias[%zu].token is %d; allowed is 0 .. %d", i, b->token, vocab - 1);
        NEAP_CHECK(b->bias <= 1e6f, NEAP_INVALID_ARGUMENT, "bias[%zu].bias is %g; allowed is -inf .. 1e6", i,
                   (double)b->bias);
    }
    return NEAP_OK;
}

static neap_status check_stops(const neap_request *r, bool has_tokenizer) {
    NEAP_CHECK(r->n_stop <= NEAP_STOPS_MAX, NEAP_INVALID_ARGUMENT, "n_stop is %zu; allowed is 0 .. %d", r->n_stop,
               NEAP_STOPS_MAX);
    if (r->n_stop == 0) return NEAP_OK;
    NEAP_CHECK(r->stop != NULL, NEAP_INVALID_ARGUMENT, "stop is NULL but has %zu entries", r->n_stop);
    NEAP_CHECK(has_tokenizer, NEAP_INVALID_ARGUMENT, "stop strings need a tokenizer; the model has none");
    for (size_t i = 0; i < r->n_stop; i++) {
        NEAP_CHECK(r->stop[i] != NULL, NEAP_INVALID_ARGUMENT, "stop[%zu] is NULL", i);
        const size_t n = strnlen(r->stop[i], NEAP_STOP_BYTES_MAX + 1);
        NEAP_CHECK(n >= 1, NEAP_INVALID_ARGUMENT, "stop[%zu] is empty", i);
        NEAP_CHECK(n <= NEAP_STOP_BYTES_MAX, NEAP_INVALID_ARGUMENT, "stop[%zu] is longer than %d bytes", i,
                   NEAP_STOP_BYTES_MAX);
        NEAP_CHECK(neap_utf8_valid(r->stop[i], n) == n, NEAP_INVALID_ARGUMENT, "stop[%zu] is not valid UTF-8", i);
    }
    return NEAP_OK;
}

static neap_status check_prefix(const neap_request *r, int32_t grammar_vocab, int32_t vocab) {
    NEAP_CHECK(r->space == NULL || strnlen(r->space, NEAP_SPACE_BYTES_MAX + 1) <= NEAP_SPACE_BYTES_MAX,
               NEAP_INVALID_ARGUMENT, "space is longer than %d bytes", NEAP_SPACE_BYTES_MAX);
    NEAP_CHECK(r->n_marks <= NEAP_MARKS_MAX, NEAP_INVALID_ARGUMENT, "n_marks is %zu; allowed is 0 .. %d", r->n_marks,
               NEAP_MARKS_MAX);
    NEAP_CHECK(r->n_marks == 0 || r->marks != NULL, NEAP_INVALID_ARGUMENT, "marks is NULL but has %zu entries",
               r->n_marks);
    for (size_t i = 0; i < r->n_marks; i++) {
        const int32_t least = i == 0 ? 1 : r->marks[i - 1];
        NEAP_CHECK(r->marks[i] >= least && (size_t)r->marks[i] <= r->n_tokens, NEAP_INVALID_ARGUMENT,
                   "marks[%zu] is %d; allowed is %d .. %zu, ascending", i, r->marks[i], least, r->n_tokens);
    }
    NEAP_CHECK(grammar_vocab <= vocab, NEAP_INVALID_ARGUMENT, "the grammar knows %d tokens, the model %d",
               grammar_vocab, vocab);
    return NEAP_OK;
}

neap_status neap_request_take(neap_request *out, const neap_request *in, const neap_request_limits *limits) {
    NEAP_CHECK(in != NULL, NEAP_INVALID_ARGUMENT, "the request is NULL");
    neap_request_init(out);
    NEAP_TRY(take_struct(out, sizeof *out, in, in->struct_size, "request"));
    NEAP_TRY(check_ranges(out, request_fields, COUNT(request_fields)));
    NEAP_TRY(check_ranges(&out->sampling, sampling_fields, COUNT(sampling_fields)));
    NEAP_CHECK(out->n_tokens >= 1, NEAP_INVALID_ARGUMENT, "the prompt is empty; n_tokens must be at least 1");
    NEAP_CHECK(out->n_tokens <= (size_t)limits->context_max, NEAP_CONTEXT_FULL,
               "the prompt has %zu tokens; the context holds %d", out->n_tokens, limits->context_max);
    NEAP_TRY(check_tokens(out->tokens, out->n_tokens, limits->vocab, "tokens"));
    NEAP_CHECK(out->n_stop_tokens <= NEAP_REQUEST_STOP_TOKENS_MAX, NEAP_INVALID_ARGUMENT,
               "n_stop_tokens is %zu; allowed is 0 .. %d", out->n_stop_tokens, NEAP_REQUEST_STOP_TOKENS_MAX);
    NEAP_TRY(check_tokens(out->stop_tokens, out->n_stop_tokens, limits->vocab, "stop_tokens"));
    NEAP_TRY(check_bias(&out->sampling, limits->vocab));
    NEAP_TRY(check_stops(out, limits->has_tokenizer));
    NEAP_TRY(check_prefix(out, out->grammar != NULL ? neap_grammar_vocab(out->grammar) : 0, limits->vocab));
    NEAP_CHECK(out->tap == NULL || limits->has_taps, NEAP_INVALID_ARGUMENT,
               "tap is set, but the engine was created without enable_taps");
    NEAP_CHECK(!out->all_logits || out->tap != NULL, NEAP_INVALID_ARGUMENT, "all_logits needs a tap to show them");
    const int32_t open = limits->context_max - (int32_t)out->n_tokens;
    if (out->max_tokens > open) out->max_tokens = open;
    return NEAP_OK;
}
