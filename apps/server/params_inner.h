/* Fields of requests: the row of the table, what reads a row, and JSON as text. Shared by params*.c, messages_in.c,
 * openapi.c and json_strict.c. */
#ifndef NEAP_APPS_SERVER_PARAMS_INNER_H
#define NEAP_APPS_SERVER_PARAMS_INNER_H

#include "serve.h"

/* ---- json_strict.c: a value as it was written, so that prompts show numbers as the client spelled them ---- */
typedef struct neap_raw {
    const char *p;
    size_t n;
} neap_raw;
/* Values in one body; also what /tokenize gives at most. */
int64_t neap_serve_nodes_max(const neap_server *s);
/* Of text that neap_serve_json has taken. 1: found. */
int neap_raw_member(neap_raw object, const char *key, neap_raw *out);
/* Elements one after the other; *at begins with 0. 0: no more. */
int neap_raw_next(neap_raw array, size_t *at, neap_raw *out);

/* ---- params_table.c ---- */
enum {
    NEAP_IN_CHAT = 1 << NEAP_API_CHAT,
    NEAP_IN_COMPLETIONS = 1 << NEAP_API_COMPLETIONS,
    NEAP_IN_MESSAGES = 1 << NEAP_API_MESSAGES,
    NEAP_IN_OPENAI = NEAP_IN_CHAT | NEAP_IN_COMPLETIONS,
    NEAP_IN_ALL = NEAP_IN_OPENAI | NEAP_IN_MESSAGES
};

typedef enum neap_param_kind {
    NEAP_PARAM_INT,         /* int64_t */
    NEAP_PARAM_INT32,       /* int32_t */
    NEAP_PARAM_REAL,        /* float */
    NEAP_PARAM_SECONDS,     /* double */
    NEAP_PARAM_BOOL,        /* int */
    NEAP_PARAM_STRING,      /* min .. max bytes; stored nowhere: harmless */
    NEAP_PARAM_OBJECT,      /* the same */
    NEAP_PARAM_OWN,         /* `read` does everything */
    NEAP_PARAM_ONLY,        /* `only`: an array of the values that change nothing; all others are refused */
    NEAP_PARAM_UNSUPPORTED, /* always refused */
} neap_param_kind;

typedef struct neap_params_reader neap_params_reader;
typedef struct neap_param neap_param;
struct neap_param {
    const char *name;
    unsigned apis;
    neap_param_kind kind;
    double min, max;
    int is_open_min, is_open_max, is_required;
    size_t offset; /* in neap_serve_params */
    size_t limit;  /* in neap_serve_limits, an int64_t that stands for max; 0: none */
    int (*read)(neap_params_reader *r, const neap_param *f, json_t *value);
    const char *only;     /* ONLY: as JSON, with ' for " */
    const char *standard; /* default, as JSON; NULL: none that can be written down */
    const char *schema;   /* OWN: JSON Schema of the value (null is added), with ' for " */
    const char *doc;
};
extern const neap_param neap_param_table[]; /* name NULL ends it */
extern const char neap_param_message_schema[], neap_param_tool_schema[], neap_param_response_format_schema[];
/* max, or the server's limit that stands for it. */
double neap_param_max(const neap_param *f, const neap_serve_limits *l);
/* Text of the table with its quotes; neap_cli_alloc memory. */
char *neap_param_quotes(const char *text);
const neap_param *neap_param_find(const char *name, neap_serve_api api);

/* ---- what reads ---- */
enum { NEAP_THINK_UNSAID = -1 };
struct neap_params_reader {
    neap_serve_params *p;
    const neap_server *s;
    const neap_serve_limits *limits;
    neap_serve_api api;
    int wants_answer; /* 0: only the prompt counts, so max_tokens may be absent */
    const neap_tokenizer *tokenizer;
    int32_t context_max, vocab;
    neap_serve_problem *problem;
    neap_raw body;
    json_t *root;
    /* seen, to be put together at the end */
    json_t *messages, *tools, *tool_choice, *response_format, *system;
    int thinking; /* NEAP_THINK_UNSAID, 0, 1 */
    const char *effort;
    int has_stream_options, wants_logprobs;
    int64_t top_logprobs, budget_tokens; /* -1: not said */
};
/* neap_serve_params_read, also for routes that only count or show the prompt. */
int neap_params_read_prompt(neap_serve_params *p, const neap_server *s, neap_serve_api api, int wants_answer,
                            const char *body, size_t n, const neap_tokenizer *t, int32_t context_max,
                            neap_serve_problem *problem);
/* Sets the problem and returns -1. */
int neap_param_refuse(neap_params_reader *r, neap_serve_error e, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* An integer, also one written as 5.0. 0 and *out, or -1 when it is none or out of range (no problem is set). */
int neap_param_int(const json_t *value, int64_t min, int64_t max, int64_t *out);
/* A string of min .. max bytes without U+0000 or other control characters. */
int neap_param_plain(neap_params_reader *r, const json_t *value, const char *param, size_t min, size_t max);
/* [A-Za-z0-9_-]{1,64} */
int neap_param_name(neap_params_reader *r, const json_t *value, const char *param);
/* Wishes that contradict each other are refused. */
int neap_param_think(neap_params_reader *r, const char *param, int is_on);
int neap_param_effort(neap_params_reader *r, const char *param, const json_t *value);

/* params_defaults.c: flags, else generation_config.json, else what OpenAI says */
void neap_params_defaults(const neap_server *s, neap_sampling *out);

/* params_read.c */
int neap_param_model(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_stop(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_stop_ids(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_bias(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_seed(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_logprobs(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_top_logprobs(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_stream_options(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_cache_key(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_prompt(neap_params_reader *r, const neap_param *f, json_t *v);
/* params_chat.c */
int neap_param_messages(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_tools(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_tool_choice(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_response_format(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_reasoning_effort(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_thinking_field(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_template(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_params_chat_finish(neap_params_reader *r);        /* -> p->chat */
int neap_params_completions_finish(neap_params_reader *r); /* response_format -> p->chat */
/* What the request for the encoder consists of; n 0: absent. Also settles thinking and effort. */
typedef struct neap_chat_parts {
    neap_raw messages, tools, tool_choice, response_format;
} neap_chat_parts;
int neap_params_chat_emit(neap_params_reader *r, const neap_chat_parts *parts);
int neap_param_schema(neap_params_reader *r, const char *param, const json_t *schema);
/* tools with names and schemas as OpenAI writes them (is_wrapped) or as Anthropic does. */
int neap_param_tool_list(neap_params_reader *r, const json_t *tools, const char *param, int is_wrapped);
int neap_param_has_tool(const json_t *tools, const char *name, int is_wrapped);
/* messages_in.c */
int neap_param_in_messages(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_in_system(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_in_tools(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_in_tool_choice(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_in_thinking(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_param_in_output(neap_params_reader *r, const neap_param *f, json_t *v);
int neap_params_messages_finish(neap_params_reader *r);

/* small.c: the model's name to clients. */
const char *neap_serve_model_name(const neap_server *s);

#endif
