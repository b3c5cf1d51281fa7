/* One request for text and its answer, streamed or whole: what chat, completions and messages have in common.
 *
 *   route      neap_answer_start(call, &style)                                  loop thread
 *   prepare    params_read, style->prepare (prompts, grammar, parsers), context  prep thread
 *   accepted   all choices stand in the engine's queue: the stream's header      loop thread, as all that follows
 *   events     token -> parser -> pieces; a piece is streamed, or collected in the choice
 *   end        finish of each choice, then usage and the end; or the whole body
 *
 * Both ways go through the same pieces, so a stream and a whole answer have the same content byte for byte. Pieces of
 * one kind that are delivered together go out as one event of the stream. A style
 * says how pieces look; everything else (jobs, cancelling, slow readers, pings, deadlines, errors, counters, log) is
 * here. */
#ifndef NEAP_APPS_SERVER_ANSWER_H
#define NEAP_APPS_SERVER_ANSWER_H

#include "serve.h"

typedef struct neap_answer neap_answer;
typedef struct neap_answer_choice neap_answer_choice;

/* A token with its logprob, when logprobs were asked for. */
typedef struct neap_answer_token {
    int32_t token, n_top;
    float logprob;
    neap_logprob *top;
} neap_answer_token;
typedef struct neap_answer_tokens {
    neap_answer_token *items;
    size_t n, capacity;
} neap_answer_tokens;

/* Something new of one choice. REASONING, CONTENT: text; TOOL_CALL: name, id; TOOL_ARGS: text. Never empty, but for the
 * text of a piece that only brings tokens. */
typedef struct neap_answer_piece {
    neap_chat_kind kind;
    int32_t index; /* of the call */
    const char *text;
    size_t text_bytes;
    const char *name, *id;
    const neap_answer_token *tokens; /* that the text is made of: CONTENT and REASONING with logprobs */
    size_t n_tokens;
} neap_answer_piece;

typedef struct neap_answer_call {
    char *id, *name;
    neap_cli_text arguments; /* JSON text */
} neap_answer_call;

struct neap_answer_choice {
    neap_answer *answer;
    int32_t index, prompt;   /* prompt: number of its prompt; index: prompt * n + number of the choice */
    const char *finish;      /* NULL while it runs; "stop", "length", "tool_calls" */
    const char *stop;        /* the stop string that ended it; NULL: none */
    int64_t n_new;           /* tokens, those of the format and the stop token too */
    int64_t n_reasoning;     /* of them: text of the reasoning */
    int64_t n_cached;        /* prompt tokens found in the prefix cache */
    int32_t n_calls;         /* in streams too */
    neap_answer_call *calls; /* from here on: of whole answers only */
    neap_cli_text content, reasoning;
    neap_answer_tokens content_tokens, reasoning_tokens;
    /* answer.c's own */
    neap_job *job;
    neap_chat_parser *parser;
    neap_cli_text held;               /* content that may be the beginning of a stop string */
    neap_answer_tokens pending, kept; /* tokens whose text is not there yet; tokens of held */
    neap_cli_text unsent;             /* of a stream: text of one kind that waits for the end of the delivery */
    neap_answer_tokens unsent_tokens; /* its tokens */
    neap_chat_kind unsent_kind;
    int32_t unsent_index;
    int has_unsent;
    size_t *kept_at; /* where in held each of kept begins */
    neap_chat_kind channel;
    int is_accepted, is_begun, is_stopped, is_done;
    int64_t n_prompt_done;
    double begin, first, last, tick; /* seconds: left the queue, first and latest token */
};

typedef struct neap_answer_prompt {
    int32_t *tokens, *marks;
    size_t n_tokens, n_marks;
} neap_answer_prompt;

typedef struct neap_answer_style {
    neap_serve_api api;
    const char *id_prefix; /* "chatcmpl-" */
    int is_chat;           /* tokens go through the chat parser; stop strings count in the content alone */
    /* Prep thread, after params were read: prompts (neap_answer_add_prompt, neap_answer_encode_chat). 0, or -1 with
     * *problem. */
    int (*prepare)(neap_answer *a, neap_serve_problem *problem);
    /* Streams, by neap_answer_send: */
    void (*begin)(neap_answer *a); /* the header went out */
    void (*piece)(neap_answer_choice *c, const neap_answer_piece *p);
    void (*finish)(neap_answer_choice *c);
    void (*end)(neap_answer *a);                                      /* all have finished */
    void (*progress)(neap_answer_choice *c, int64_t done, double ms); /* with return_progress; may be NULL */
    void (*ping)(neap_answer *a, int64_t done, int64_t total);        /* NULL: a comment */
    void (*error)(neap_answer *a, const neap_serve_problem *problem); /* NULL: data: {"error":{...}} */
    /* The whole body. */
    void (*whole)(neap_answer *a, neap_cli_text *out);
    void (*free)(neap_answer *a); /* of user; may be NULL */
} neap_answer_style;

struct neap_answer {
    neap_server *server;
    neap_http_exchange *x;
    neap_serve_client client;
    const neap_answer_style *style;
    const neap_tokenizer *tokenizer;
    char id[64]; /* prefix and 128 random bits */
    int64_t created;
    char *model; /* its name, as of the beginning */
    neap_serve_params params;
    neap_answer_prompt *prompts;
    size_t n_prompts;
    neap_answer_choice *choices; /* after prepare */
    size_t n_choices, n_accepted, n_done;
    double started; /* neap_cli_seconds */
    void *user;     /* the style's own */
    /* answer.c's own */
    char *body;
    size_t body_bytes;
    neap_shared_grammar *grammar;
    neap_serve_problem problem;
    int has_problem, is_preparing, is_streaming, is_ended, is_full, keeps_text, depth;
    int has_unsent;     /* at least one choice has */
    neap_cli_text line; /* the event being sent; its memory is used again */
    _Atomic int is_gone;
    double sent; /* when the stream last said something */
    neap_answer *next, *before;
};

/* Takes the call's body and answers it, now or later. */
void neap_answer_start(neap_serve_call *c, const neap_answer_style *style);

/* ---- for prepare ---- */
/* tokens and marks (may be NULL) come from neap_cli_alloc and belong to the answer from now on. */
void neap_answer_add_prompt(neap_answer *a, int32_t *tokens, size_t n_tokens, int32_t *marks, size_t n_marks);
/* The prompt of params.chat, its marks and its grammar. */
int neap_answer_encode_chat(neap_answer *a, neap_serve_problem *problem);
/* A grammar from what neap_grammar_create takes. */
int neap_answer_constrain(neap_answer *a, const char *json, size_t n, neap_serve_problem *problem);

/* ---- for styles ---- */
/* One event of a stream: "event: NAME\n" unless NULL, "data: JSON\n\n". */
void neap_answer_send(neap_answer *a, const char *name, const char *json, size_t n);
/* Numbers of all choices together; a prompt counts once for all its choices. */
typedef struct neap_answer_usage {
    int64_t prompt, cached, fresh, reasoning; /* fresh: new tokens */
} neap_answer_usage;
neap_answer_usage neap_answer_usage_of(const neap_answer *a);
void neap_answer_usage_json(const neap_answer *a, neap_cli_text *out, const char *key);   /* "usage":{...} */
void neap_answer_timings_json(const neap_answer *a, neap_cli_text *out, const char *key); /* "timings":{...} */
/* A token as text: valid UTF-8, U+FFFD for parts of characters. */
void neap_answer_token_text(const neap_answer *a, int32_t token, neap_cli_text *out);
/* Ends the answer with an error: a status before the first byte, an event after it. */
void neap_answer_fail(neap_answer *a, const neap_serve_problem *problem);

/* ---- for serve.c, on the loop thread ---- */
void neap_answer_tick(neap_server *s);      /* pings; some times a second */
void neap_answer_delivered(neap_server *s); /* after events: what waits to be sent with others is sent */
void neap_answer_fail_all(neap_server *s, const neap_serve_problem *problem); /* the drain's deadline */
void neap_answer_free_all(neap_server *s);                                    /* after all threads have ended */

#endif
