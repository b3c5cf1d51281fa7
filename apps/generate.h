/* The shared middle of the commands that load a model: open it, start an engine, make one answer. */
#ifndef NEAP_APPS_GENERATE_H
#define NEAP_APPS_GENERATE_H

#include "neap.h"
#include "command_line.h"
#include "buffer.h"
#include "settings.h"
#include "watch.h"

typedef struct neap_cli_session {
    const neap_cli_options *options; /* borrowed */
    neap_model *model;
    const neap_tokenizer *tokenizer; /* of the model; NULL when it has none */
    neap_engine *engine;
    neap_cli_settings settings; /* of the engine */
    neap_cli_watch *watch;      /* borrowed; NULL: steps are not looked at */
    int32_t context;            /* tokens of the engine's one sequence */
    int is_from_cache;          /* the weights were read packed */
    double load_seconds;
} neap_cli_session;

/* All return exit codes; what went wrong was printed. */
int neap_cli_session_open(neap_cli_session *s, const neap_cli_options *o);
/* The model must have a tokenizer; prints the reason if not. */
int neap_cli_session_needs_tokenizer(const neap_cli_session *s);
/* Starts the engine (again, when one runs already). context 0: the engine's default. */
int neap_cli_session_start(neap_cli_session *s, int32_t context, int enable_taps);
void neap_cli_session_close(neap_cli_session *s);
/* --cache-type, --index-type, --act, --moe-act to the engine's options; logits and verify have other defaults than the
 * engine. */
void neap_cli_number_types(const neap_cli_options *o, neap_engine_options *e);
const char *neap_cli_cache_name(int32_t cache_type); /* "bf16" */
const char *neap_cli_index_name(int32_t index_type);
const char *neap_cli_act_name(int32_t act_type);
/* What is in use, e.g. "int16, int8 for routed experts". */
void neap_cli_acts(char *text, size_t capacity, const neap_engine_options *e, const neap_model_info *info);
/* neap_step, and a look at what it did where --trace or --hashes want one. */
neap_status neap_cli_session_step(neap_cli_session *s);
/* The engine with --parallel sequences of `context` tokens each. */
int neap_cli_session_start_many(neap_cli_session *s, int32_t context, int32_t n_seqs);
/* The context for a prompt of n_prompt tokens: -c, or what prompt and answer need within the model's limit. */
int32_t neap_cli_session_context(const neap_cli_session *s, size_t n_prompt);

int neap_cli_tokenize_text(const neap_tokenizer *t, const char *text, size_t n, uint32_t flags, int32_t **tokens,
                           size_t *n_tokens);
int neap_cli_encode_chat(const neap_tokenizer *t, const char *json, size_t n, int32_t **tokens, size_t *n_tokens);
int neap_cli_has_chat(const neap_tokenizer *t);

typedef struct neap_cli_call {
    char *id, *name;
    neap_cli_text arguments;
} neap_cli_call;

/* One answer. The caller sets the first part, generate the second. */
typedef struct neap_cli_answer {
    /* where pieces go as they come; NULL = nowhere */
    void (*content_out)(const char *text, size_t n);
    void (*reasoning_out)(const char *text, size_t n);
    /* result */
    neap_cli_text content, reasoning;
    neap_cli_call *calls;
    size_t n_calls;
    neap_cli_text logprobs; /* JSON array, only with --logprobs */
    neap_finish finish;
    int signal_number; /* that stopped the answer, 0 = none */
    uint64_t seed;
    size_t n_prompt, n_new;
    double prompt_seconds, new_seconds; /* until the first new token; from there to the last */
} neap_cli_answer;

/* Computes the prompt and generates. request: the chat request that was encoded, NULL = plain text. */
int neap_cli_generate(neap_cli_session *s, const int32_t *tokens, size_t n_tokens, const char *request,
                      neap_cli_answer *a);
void neap_cli_answer_free(neap_cli_answer *a);
/* "stop", "length", "tool_calls", "cancelled" or "error" */
const char *neap_cli_finish_name(const neap_cli_answer *a);
/* The tool calls as an OpenAI array; nothing when there are none. */
void neap_cli_answer_calls_json(const neap_cli_answer *a, neap_cli_text *out);
void neap_cli_answer_timings(const neap_cli_answer *a, char *text, size_t capacity);

#endif
