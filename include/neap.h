/* neap: an inference engine for the Kimi hybrid family (Kimi Linear, Kimi K3, Kimi K3.1 Pro) on CPUs.
 *
 * Order of this header: version and errors, tokenizer and chat, model, engine, sequences and events,
 * quantisation, tensor files.
 * Rules that hold everywhere:
 *  - Functions that can fail return neap_status and nothing else; the text of the latest failure of the
 *    calling thread is neap_last_error().
 *  - Inputs are copied unless the comment says "borrowed". Every destroy/close/free accepts NULL.
 *  - Options structs are filled by their _init function first; they may grow at the end.
 *  - Lists are returned into the caller's buffer: (buffer, capacity, needed). When capacity is too small
 *    nothing past it is written, *needed is the full length and the result is NEAP_TOO_SMALL.
 *  - The library reads no environment variables, prints nothing on stdout, installs no signal handlers
 *    and never exits.
 * The header is plain C99 and C++. */
#ifndef NEAP_H
#define NEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NEAP_API __attribute__((visibility("default")))
#else
#define NEAP_API
#endif

#define NEAP_VERSION "0.1.0"

/* ---------------------------------------------------------------- version and errors ---------- */

/* name, value, text */
#define NEAP_STATUS_MAP(X)                                      \
    X(OK, 0, "ok")                                              \
    X(AGAIN, -1, "nothing to return yet")                       \
    X(TOO_SMALL, -2, "the buffer is too small")                 \
    X(INVALID_ARGUMENT, -3, "invalid argument")                 \
    X(BAD_FILE, -4, "malformed or contradictory file")          \
    X(UNSUPPORTED, -5, "not supported")                         \
    X(NOT_FOUND, -6, "not found")                               \
    X(IO, -7, "input or output error")                          \
    X(NO_MEMORY, -8, "out of memory")                           \
    X(LIMIT, -9, "a limit is exceeded")                         \
    X(CONTEXT_FULL, -10, "the prompt does not fit the context") \
    X(BUSY, -11, "no free sequence or cache space")             \
    X(NUMERIC, -12, "non-finite numbers")                       \
    X(CANCELLED, -13, "cancelled")                              \
    X(INTERNAL, -14, "internal error")

typedef enum neap_status {
#define NEAP_STATUS_ENUM(name, value, text) NEAP_##name = value,
    NEAP_STATUS_MAP(NEAP_STATUS_ENUM)
#undef NEAP_STATUS_ENUM
} neap_status;

NEAP_API const char *neap_version(void);
NEAP_API const char *neap_status_name(neap_status s); /* "BAD_FILE" */
NEAP_API const char *neap_status_text(neap_status s); /* "malformed or contradictory file" */
/* This thread's latest failure, one line: what, where (file, tensor, field), limit. Borrowed, valid until
 * the thread's next failing call. */
NEAP_API const char *neap_last_error(void);

typedef enum neap_log_level {
    NEAP_LOG_DEBUG = 0,
    NEAP_LOG_INFO = 1,
    NEAP_LOG_WARN = 2,
    NEAP_LOG_ERROR = 3
} neap_log_level;
typedef void (*neap_log_fn)(void *user, neap_log_level level, const char *text);
/* Long work: what is done ("load", "pack"), how much of it. Called at most some ten times a second. */
typedef void (*neap_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* One line about this CPU: vendor name, instruction sets that neap uses, cores, affinity, cgroup quota.
 * cpu: NULL or "auto" = all; else a comma list such as "scalar,avx2" that masks. */
NEAP_API neap_status neap_cpu_describe(const char *cpu, char *text, size_t capacity, size_t *needed);
/* min(affinity mask, floor(cgroup quota), physical cores), at least 1. */
NEAP_API int32_t neap_default_threads(void);

/* ---------------------------------------------------------------- tokenizer and chat ---------- */

/* Immutable; any number of threads may use it. */
typedef struct neap_tokenizer neap_tokenizer;

/* Reads tiktoken.model and tokenizer_config.json (and config.json / generation_config.json for stop
 * tokens, encoding_texts.json or encoding_k3.py for the fixed chat sentences, when present) from a
 * directory. Nothing in the directory is ever executed. */
NEAP_API neap_status neap_tokenizer_open(neap_tokenizer **out, const char *dir);
NEAP_API void neap_tokenizer_close(neap_tokenizer *t);
NEAP_API int32_t neap_tokenizer_vocab(const neap_tokenizer *t); /* ids are 0 .. vocab-1 */

/* Each maximal part of the text that is not UTF-8 is read as U+FFFD. */
#define NEAP_TOKENIZE_SPECIAL 1u /* spellings of special tokens become their ids; off: ordinary text */
NEAP_API neap_status neap_tokenize(const neap_tokenizer *t, const char *text, size_t text_bytes, uint32_t flags,
                                   int32_t *tokens, size_t capacity, size_t *n_tokens);
/* The bytes of one token; need not be valid UTF-8. Borrowed from the tokenizer. Special tokens give their
 * spelling; *is_special (may be NULL) says so. */
NEAP_API neap_status neap_token_bytes(const neap_tokenizer *t, int32_t token, const char **bytes, size_t *n_bytes,
                                      int *is_special);
/* All bytes joined, then made valid UTF-8 (each maximal invalid part becomes U+FFFD). Not 0-terminated. */
#define NEAP_DETOKENIZE_SPECIAL 1u /* also write the spelling of special tokens; off: they are left out */
NEAP_API neap_status neap_detokenize(const neap_tokenizer *t, const int32_t *tokens, size_t n_tokens, uint32_t flags,
                                     char *text, size_t capacity, size_t *needed);
/* The id of a special token by its exact spelling; NEAP_NOT_FOUND. */
NEAP_API neap_status neap_special_token(const neap_tokenizer *t, const char *spelling, int32_t *token);
/* Stop tokens of the directory: union of config, generation_config and the tokenizer's [EOS]. */
NEAP_API neap_status neap_stop_tokens(const neap_tokenizer *t, int32_t *tokens, size_t capacity, size_t *n_tokens);
/* "xtml" (Kimi K3), "markers" (Kimi Linear, K2) or "none", by the special tokens that exist. */
NEAP_API const char *neap_chat_format(const neap_tokenizer *t);

/* Renders a conversation to prompt tokens. json (UTF-8, at most 32 MiB, depth 64): an object with
 *   messages              array of {role, content, name?, reasoning_content? | reasoning?, tool_calls?, tool_call_id?}
 *                         content: string, null, or array of {"type":"text","text":...}
 *   tools                 array as in the OpenAI API (optional)
 *   thinking              bool, default true (xtml only)
 *   thinking_effort       "low" | "high" | "max" (optional)
 *   tool_choice           "none" | "auto" | "required" | {"type":"function","function":{"name":...}} (optional)
 *   response_format       {"type":"text"|"json_object"|"json_schema", ...} (optional)
 *   add_generation_prompt bool, default true
 * Structure tokens come from the renderer alone: text in the messages never becomes a control token. */
NEAP_API neap_status neap_chat_encode(const neap_tokenizer *t, const char *json, size_t json_bytes, int32_t *tokens,
                                      size_t capacity, size_t *n_tokens);
/* The same, and where messages end: ascending numbers of tokens, one after the tools and after each message that was
 * rendered. Conversations that go on from one of them share its tokens (neap_request.marks). */
NEAP_API neap_status neap_chat_encode_marked(const neap_tokenizer *t, const char *json, size_t json_bytes,
                                             int32_t *tokens, size_t capacity, size_t *n_tokens, int32_t *marks,
                                             size_t marks_capacity, size_t *n_marks);

/* Reads the model's answer token by token and splits it into channels. */
typedef struct neap_chat_parser neap_chat_parser;
typedef enum neap_chat_kind {
    NEAP_CHAT_REASONING = 0,  /* text: a piece of the reasoning */
    NEAP_CHAT_CONTENT = 1,    /* text: a piece of the answer */
    NEAP_CHAT_TOOL_CALL = 2,  /* a call begins: index, name, id */
    NEAP_CHAT_TOOL_ARGS = 3,  /* text: a piece of the JSON arguments of call `index` */
    NEAP_CHAT_MESSAGE_END = 4 /* the model closed its message */
} neap_chat_kind;
typedef struct neap_chat_delta {
    neap_chat_kind kind;
    int32_t index;    /* of the tool call, from 0 */
    const char *text; /* whole UTF-8 characters, 0-terminated; borrowed until the next call on the parser */
    size_t text_bytes;
    const char *name; /* TOOL_CALL only */
    const char *id;   /* TOOL_CALL only: the model's own id, or NAME:index */
} neap_chat_delta;

/* json is the request that was encoded (it decides the channel that the prompt opened and whether tools
 * were offered); NULL = the defaults. */
NEAP_API neap_status neap_chat_parser_create(neap_chat_parser **out, const neap_tokenizer *t, const char *json,
                                             size_t json_bytes);
NEAP_API void neap_chat_parser_destroy(neap_chat_parser *p);
NEAP_API neap_status neap_chat_parser_feed(neap_chat_parser *p, int32_t token);        /* one generated token */
NEAP_API neap_status neap_chat_parser_finish(neap_chat_parser *p);                     /* no more tokens: flush */
NEAP_API neap_status neap_chat_parser_next(neap_chat_parser *p, neap_chat_delta *out); /* NEAP_AGAIN: none */

/* ---------------------------------------------------------------- grammars -------------------- */

/* What an answer may look like, compiled for a vocabulary: in every step the tokens that cannot go on are forbidden.
 * Immutable; any number of sequences and threads may use it; it must outlive them. */
typedef struct neap_grammar neap_grammar;

typedef struct neap_grammar_limits {
    size_t struct_size;
    size_t source_bytes_max; /* of the request's schemas; default 64 KiB */
    int32_t states_max;      /* default 50,000 */
    int32_t depth_max;       /* of an answer's arrays and objects; default 64 */
    int32_t milliseconds;    /* for compiling; default 200 */
} neap_grammar_limits;
NEAP_API void neap_grammar_limits_init(neap_grammar_limits *l);

/* json: the request that neap_chat_encode gets. Constrained are: the answer by response_format json_object and
 * json_schema; calls by tool_choice "required" and by a named function; with "strict": true in a tool's function its
 * arguments whenever it is called. Reasoning stays free. *out = NULL and NEAP_OK: nothing is constrained.
 * A JSON object {"schema": SCHEMA} or {"json_object": true} instead constrains a whole answer without chat format.
 * NEAP_UNSUPPORTED: a keyword that is not covered (docs/grammars.md), by its path; NEAP_LIMIT: a limit.
 * limits may be NULL. */
NEAP_API neap_status neap_grammar_create(neap_grammar **out, const neap_tokenizer *t, const char *json,
                                         size_t json_bytes, const neap_grammar_limits *limits);
NEAP_API void neap_grammar_destroy(neap_grammar *g);

/* ---------------------------------------------------------------- model ----------------------- */

/* Weights and description; immutable; shared by any number of engines. */
typedef struct neap_model neap_model;

typedef struct neap_model_options {
    size_t struct_size;
    const char *cpu;         /* NULL or "auto"; else a mask such as "scalar,avx2"; borrowed during the call */
    int32_t n_threads;       /* for packing; 0 = default */
    int32_t describe_only;   /* 1: read and check config and tensor headers, load no weights */
    int32_t allow_nonfinite; /* 1: accept NaN and infinities in weights */
    int32_t strict;          /* 1: any tensor that neap does not know is an error, not a warning */
    float latent_norm_eps;   /* 0 = the family's value; else overrides q_a_layernorm / kv_a_layernorm eps */
    neap_log_fn log;         /* NULL: warnings and errors go to stderr */
    void *log_user;
    neap_progress_fn progress; /* NULL: silent */
    void *progress_user;
    const char *cache_dir; /* packed weights are kept in this directory and read from it; NULL: neither. Borrowed */
    int32_t cache_verify;  /* 1: shards are hashed again before a cache entry is believed; else size, times and inode */
} neap_model_options;

NEAP_API void neap_model_options_init(neap_model_options *o);
/* path: a directory with config.json and *.safetensors. o may be NULL. */
NEAP_API neap_status neap_model_open(neap_model **out, const char *path, const neap_model_options *o);
NEAP_API void neap_model_close(neap_model *m);
/* NULL when the directory has no tokenizer files; borrowed. */
NEAP_API const neap_tokenizer *neap_model_tokenizer(const neap_model *m);

typedef struct neap_model_info {
    size_t struct_size;
    const char *model_type; /* as in config.json */
    const char *family;     /* "kimi_linear", "kimi_k3", "kimi_k31", "deepseek_v32", "glm_moe_dsa" */
    int32_t vocab, width, n_layers, n_kda_layers, n_mla_layers, n_index_layers, n_dense_layers, n_moe_layers,
        n_mtp_layers;
    int32_t n_experts, n_experts_used, index_topk, attnres_block, context_max;
    uint64_t parameters;            /* in the checkpoint, without scales */
    uint64_t parameters_active;     /* used for one token, without the embedding row, with the head */
    uint64_t file_bytes;            /* tensor data in the checkpoint */
    uint64_t packed_bytes;          /* weights in memory once loaded */
    uint64_t state_bytes;           /* recurrent state of one sequence, whatever its length */
    uint64_t cache_bytes_per_token; /* latent and index caches of one token, both in BF16 */
    const char *weight_formats;     /* e.g. "BF16 + MXFP4 experts"; borrowed */
    const char *kernels;            /* e.g. "avx2"; the best level that will be used */
    int32_t has_int_experts; /* 1: routed experts with INT8 or MXFP4 weights, so that moe_act_type concerns them */
    int32_t has_int_others;  /* 1: other matrices with INT8 or MXFP4 weights, so that act_type concerns them */
    int32_t is_from_cache;   /* 1: the packed weights were read from cache_dir */
} neap_model_info;
/* info->struct_size must be set by the caller. Strings are borrowed from the model. */
NEAP_API neap_status neap_model_describe(const neap_model *m, neap_model_info *info);

/* ---------------------------------------------------------------- compile cache --------------- */

/* What models and tuning have left in a cache_dir: data only, owner-only, checksummed (docs/cache.md). A damaged,
 * foreign or outdated entry is never used; it is made anew. */
typedef struct neap_cache_entry {
    size_t struct_size;
    const char *name;   /* file name inside the directory */
    const char *kind;   /* "weights", "tuning", "prefix", "temporary", "unknown" */
    const char *origin; /* the model directory it was made from; "" unknown */
    uint64_t bytes;
    int64_t written, used; /* seconds since 1970 */
    neap_status status;    /* OK; BAD_FILE: damaged; UNSUPPORTED: of another version; what verify found */
    const char *text;      /* why not OK; else "" */
} neap_cache_entry;
/* Strings are borrowed during the call. Not 0: stop. */
typedef int (*neap_cache_fn)(void *user, const neap_cache_entry *e);
/* verify 0: headers only; 1: every byte. A directory that does not exist is empty. */
NEAP_API neap_status neap_cache_list(const char *dir, int32_t verify, neap_cache_fn fn, void *user);
/* Removes entries that are not OK (headers only), leftover temporaries, those unused for more than max_age_seconds
 * (< 0: any age stays), then the longest unused ones until all together have at most bytes_max bytes. fn (may be NULL)
 * is told each one that goes. dry_run 1: only told. Files that are not neap's stay. */
NEAP_API neap_status neap_cache_prune(const char *dir, uint64_t bytes_max, int64_t max_age_seconds, int32_t dry_run,
                                      neap_cache_fn fn, void *user);

/* ---------------------------------------------------------------- engine ---------------------- */

/* Teams, arenas, caches, scheduler. One thread at a time drives it. */
typedef struct neap_engine neap_engine;
/* One request; lives in its engine until neap_seq_free. */
typedef struct neap_seq neap_seq;

/* How caches keep what they keep (docs/accuracy.md has the measured loss of each setting). */
typedef enum neap_cache_type {
    NEAP_CACHE_DEFAULT = 0, /* BF16 */
    NEAP_CACHE_F32 = 1,     /* exact: results within float32 rounding of the model's definition */
    NEAP_CACHE_BF16 = 2,
    NEAP_CACHE_FP8 = 3 /* E4M3, one F32 scale per token and tile of 128; the key part with 6 bits of mantissa */
} neap_cache_type;
typedef enum neap_index_type {
    NEAP_INDEX_DEFAULT = 0, /* BF16 */
    NEAP_INDEX_F32 = 1,
    NEAP_INDEX_BF16 = 2,
    NEAP_INDEX_MXFP8 = 3 /* E4M3, one E8M0 scale per 32; queries are rounded the same way */
} neap_index_type;

/* What products with INT8 and MXFP4 weights multiply with; products with other weights take float32 activations
 * whatever is said here, and so do the router and the indexer. docs/accuracy.md has the measured loss. */
typedef enum neap_act_type {
    NEAP_ACT_DEFAULT = 0, /* INT16; of moe_act_type: what act_type says */
    NEAP_ACT_F32 = 1,     /* the model's definition */
    NEAP_ACT_INT16 = 2,   /* 16-bit integers, a scale for up to 128 inputs: some 200 times finer than BF16 */
    NEAP_ACT_INT8 = 3     /* 8-bit integers: the fastest */
} neap_act_type;

/* How a step is carried out. REPLAY: captured plans; EAGER: every op is prepared and dispatched on its own, for
 * comparison. The same bits. */
typedef enum neap_plan_mode { NEAP_PLAN_DEFAULT = 0, NEAP_PLAN_REPLAY = 1, NEAP_PLAN_EAGER = 2 } neap_plan_mode;
/* Where workers run. NONE: wherever the system puts them; SPREAD: each starts on a core of its own; FIXED: and stays
 * there (the caller's thread during steps only). */
typedef enum neap_pinning {
    NEAP_PIN_DEFAULT = 0,
    NEAP_PIN_OFF = 1,
    NEAP_PIN_START = 2,
    NEAP_PIN_STAY = 3
} neap_pinning;

/* Work that may go side by side. */
#define NEAP_USE_INDEX 1u  /* the indexer's branches beside the MLA's own preparation */
#define NEAP_USE_SHARED 2u /* the shared expert beside the routed experts */
#define NEAP_USE_MIXED 4u  /* decoding sequences beside somebody's prompt, in sub-teams */

/* What may be tuned to a machine; no setting changes a bit of any result. */
typedef struct neap_tuning {
    size_t struct_size;
    int32_t few_rows;        /* steps of up to so many rows use the plan with fewest barriers; 0 .. 8 */
    int32_t tile_rows;       /* rows that attention takes together, 1 .. 8 */
    int32_t prefetch_kib;    /* per worker: next weights fetched during attention; 0 = none */
    int32_t mixed_workers;   /* of NEAP_USE_MIXED: workers that decode; at least 1, fewer than there are */
    uint32_t beside;         /* NEAP_USE_INDEX, NEAP_USE_SHARED: in one phase */
    uint32_t streams;        /* NEAP_USE_*: in sub-teams with events; wins over beside */
    int32_t pinning;         /* neap_pinning */
    int32_t n_threads;       /* what tuning found for decoding; 0 = no opinion */
    int32_t n_threads_batch; /* and for prompts */
} neap_tuning;
NEAP_API void neap_tuning_init(neap_tuning *t); /* the defaults, which hold without any tuning */

typedef struct neap_engine_options {
    size_t struct_size;
    int32_t n_threads;         /* 0 = default. Never more run than affinity mask and quota allow (oversubscribe) */
    int32_t seqs_max;          /* sequences that advance together, default 1 */
    int32_t context_max;       /* tokens of one sequence, prompt and answer; 0 = min(model's, 8192) */
    int32_t batch_tokens_max;  /* rows of one step (prefill chunk + decode rows); default 512 */
    uint64_t cache_tokens_max; /* tokens in all caches together; 0 = seqs_max * context_max */
    uint64_t memory_max;       /* bytes the engine may claim; 0 = what the machine has free */
    int32_t enable_taps;       /* 1: requests may ask for inner tensors (costs a little) */
    neap_log_fn log;
    void *log_user;
    int32_t cache_type;        /* neap_cache_type, of the MLA latents */
    int32_t index_type;        /* neap_index_type, of the index keys */
    int32_t act_type;          /* neap_act_type, of all products but those of the routed experts */
    int32_t moe_act_type;      /* neap_act_type, of the routed experts */
    int32_t n_threads_batch;   /* of steps with more than 8 rows; 0 = n_threads */
    int32_t oversubscribe;     /* 1: all threads run, whatever affinity mask and quota say */
    int32_t plan;              /* neap_plan_mode */
    int32_t enable_trace;      /* 1: neap_engine_trace may be used; steps then read clocks */
    int32_t enable_hash;       /* 1: and with hashes of every op's outputs; slow */
    const neap_tuning *tuning; /* borrowed during the call; NULL = the defaults */
    int32_t queue_max;         /* requests that may wait for a place, first come first served; 0 = none: NEAP_BUSY */
    uint64_t queue_tokens_max; /* prompt tokens of all that wait; 0 = 64 * context_max */
    int32_t prefix_cache; /* 1: what sequences computed is kept for prompts that begin alike (docs/prefix-cache.md) */
    int32_t checkpoints_max;       /* recurrent states kept for that; 0 = 64, or as many as take 1/8 of what is free */
    int32_t checkpoint_spacing;    /* tokens between checkpoints inside a long prompt; 0 = a sixteenth of it, >= 256 */
    const char *prefix_dir;        /* and kept in this directory across restarts; NULL: not. Borrowed in the call */
    uint64_t prefix_dir_bytes_max; /* 0 = 8 GiB */
    int32_t optimistic;            /* 1: a sequence claims cache pages as it grows; when they run out, the newest one
                                       * waits and is computed again later, to the same bits. 0: all at the beginning */
    int32_t touch_memory; /* 1: the system has to back all memory at creation: a server that starts can go on, and no
                           * step waits for a page. 0: it is backed when it is first written */
} neap_engine_options;

typedef struct neap_memory {
    size_t struct_size;
    uint64_t weights, state, cache, work, total; /* bytes */
    uint64_t available;                          /* what the machine (or its cgroup) has */
    uint64_t latent_bytes_per_token;             /* of cache, over all MLA layers, with the options' types */
    uint64_t index_bytes_per_token;
} neap_memory;

NEAP_API void neap_engine_options_init(neap_engine_options *o);
/* What an engine with these options will claim, without claiming it. Works on a describe_only model. */
NEAP_API neap_status neap_engine_memory(const neap_model *m, const neap_engine_options *o, neap_memory *out);

/* What one step must at least read and multiply (src/engine/work.c has the formulas), to compare its time with the
 * machine's limits. */
typedef struct neap_work {
    size_t struct_size;
    uint64_t weight_bytes; /* packed weights: of experts, those that so many tokens are expected to choose */
    uint64_t state_bytes;  /* recurrent states, read and written */
    uint64_t cache_bytes;  /* latents and index keys, read and written */
    double multiply_adds;  /* of products with weights, attention, indexer and recurrence */
} neap_work;
/* A step of n_seqs sequences that hold `depth` tokens each and advance by n_tokens: 1 = decoding, more = a chunk of a
 * prompt. n_logits: rows of all sequences whose logits are wanted; n_seqs when decoding, 0 or 1 for a chunk. Of the
 * options the cache types count. out->struct_size must be set by the caller. Works on a describe_only model. */
NEAP_API neap_status neap_engine_work(const neap_model *m, const neap_engine_options *o, int32_t n_seqs,
                                      int32_t n_tokens, int64_t depth, int32_t n_logits, neap_work *out);

/* What this machine reaches with n_threads threads that do one thing only; all of them together, per second. */
typedef struct neap_limits {
    size_t struct_size;
    double read_bytes;         /* from memory larger than the caches */
    double multiply_adds;      /* float32 */
    double multiply_adds_int8; /* 8-bit integers, by the best instruction; 0: there is none */
    double multiply_adds_bf16;
    int32_t n_threads;
} neap_limits;
/* Takes about `seconds` (half a second is enough on a quiet machine) and neap_limits_memory() bytes, 8 MiB a thread if
 * that is more, which are free again when it returns. cpu: a mask as in neap_model_options. n_threads 0 = default.
 * out->struct_size must be set by the caller. */
NEAP_API neap_status neap_measure_limits(const char *cpu, int32_t n_threads, double seconds, neap_limits *out);
NEAP_API uint64_t neap_limits_memory(void);

/* ---- plans: what a step consists of ---- */
typedef struct neap_op_info {
    size_t struct_size;
    const char *name; /* "kda.in"; borrowed during the call */
    int32_t op;       /* number in the plan */
    int32_t phase;    /* ops of one phase run together; a barrier lies between two phases */
    int32_t layer;    /* -1: none */
    int32_t stream;   /* 0; others only where sub-teams are used */
    int32_t after_op; /* an event of another stream that the phase waits for; -1: none */
    uint64_t bytes;   /* that it must at least read and write in such a step */
    double multiply_adds;
} neap_op_info;
typedef void (*neap_op_fn)(void *user, const neap_op_info *op);
/* The plan of a step of n_seqs sequences that hold `depth` tokens each and advance by n_tokens, op by op. Works on a
 * describe_only model. */
NEAP_API neap_status neap_plan_describe(const neap_model *m, const neap_engine_options *o, int32_t n_seqs,
                                        int32_t n_tokens, int64_t depth, neap_op_fn fn, void *user);

/* What one worker did of one op of the latest step. */
typedef struct neap_op_record {
    size_t struct_size;
    const char *name;
    int32_t op, phase, layer, stream, worker;
    int32_t n_workers;
    int64_t begin_ns, end_ns; /* of the monotonic clock; both 0: the worker had no task */
    uint64_t hash;            /* of the op's outputs, with enable_hash */
} neap_op_record;
typedef void (*neap_trace_fn)(void *user, const neap_op_record *r);

/* Measures on this machine which settings are fastest for this model, within about `seconds`. o: as for the engine that
 * will run (its tuning is where the search begins; NULL: the defaults). out->struct_size must be set by the caller.
 * progress may be NULL. */
NEAP_API neap_status neap_tune(const neap_model *m, const neap_engine_options *o, double seconds, neap_tuning *out,
                               neap_progress_fn progress, void *user);
/* A tuning kept in a cache directory, by processor, threads, topology, and the model's shapes. NEAP_NOT_FOUND: none, or
 * none that can be believed. */
NEAP_API neap_status neap_tuning_load(const char *dir, const neap_model *m, const neap_engine_options *o,
                                      neap_tuning *out);
NEAP_API neap_status neap_tuning_save(const char *dir, const neap_model *m, const neap_engine_options *o,
                                      const neap_tuning *t);

NEAP_API neap_status neap_engine_create(neap_engine **out, const neap_model *m, const neap_engine_options *o);
NEAP_API void neap_engine_destroy(neap_engine *e);

/* ---------------------------------------------------------------- sequences ------------------- */

typedef struct neap_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -inf forbids */
} neap_logit_bias;

typedef struct neap_sampling {
    float temperature;        /* 0 = greedy; 0 .. 100 */
    int32_t top_k;            /* 0 = off */
    float top_p;              /* (0, 1]; 1 = off */
    float min_p;              /* [0, 1); 0 = off */
    float repetition_penalty; /* 1 = off; > 0 */
    float presence_penalty;   /* -2 .. 2 */
    float frequency_penalty;  /* -2 .. 2 */
    int32_t penalty_window;   /* last n tokens that the penalties see; 0 = none, -1 = all, default 64 */
    uint64_t seed;            /* the same seed and request give the same tokens, whatever runs beside it */
    int32_t n_logprobs;       /* alternatives reported with each token, 0 .. 20; -1 = no logprobs at all */
    const neap_logit_bias *bias;
    size_t n_bias; /* at most 1024 */
} neap_sampling;

/* A tensor that the engine shows: row-major, F32 or I32. Borrowed during the callback, which runs on the thread
 * that called neap_step (or neap_seq_caches). */
typedef struct neap_tap {
    const char *name; /* names of the golden files: "hidden.3", "experts.2", "cache.state.0", "logits" ... */
    int is_int;       /* 1: data is int32_t, 0: float */
    int32_t rank;
    int64_t shape[4]; /* row tensors: [rows, width]; caches: their own shape */
    int64_t position; /* row tensors: position of the first row in the sequence; caches: -1 */
    const void *data;
} neap_tap;
typedef void (*neap_tap_fn)(void *user, const neap_tap *tap);

typedef struct neap_request {
    size_t struct_size;
    const int32_t *tokens;
    size_t n_tokens;    /* at least 1 */
    int32_t max_tokens; /* new tokens; clamped to the context; 0 = only the prompt is computed */
    neap_sampling sampling;
    const char *const *stop; /* stop strings, not part of the output */
    size_t n_stop;           /* at most 16 of at most 1024 bytes */
    const int32_t *stop_tokens;
    size_t n_stop_tokens; /* at most 64 */
    int32_t ignore_eos;   /* 1: the directory's stop tokens do not end the answer */
    int32_t all_logits;   /* 1: compute logits of every prompt row (shown through the tap as "logits") */
    neap_tap_fn tap;      /* NULL = none; needs enable_taps */
    void *tap_user;
    void *user;           /* returned in events */
    const char *space;    /* prompts share prefixes only within a space (a user, a salt); NULL = ""; <= 256 bytes */
    const int32_t *marks; /* good places to keep states at: ascending token counts <= n_tokens, where messages end */
    size_t n_marks;       /* at most 65536 */
    int32_t no_prefix;    /* 1: neither uses nor feeds the prefix cache */
    const neap_grammar *grammar; /* the answer must match; NULL = free. Borrowed until the sequence is freed */
} neap_request;

NEAP_API void neap_request_init(neap_request *r);
/* Checks everything and queues the prompt; cache space is reserved as soon as there is some, at once if possible.
 * NEAP_BUSY: no free sequence or space, and no room in the queue (queue_max, queue_tokens_max). */
NEAP_API neap_status neap_submit(neap_engine *e, const neap_request *r, neap_seq **out);
/* One scheduler round: every running sequence advances, prompts by chunks. NEAP_AGAIN: nothing to do.
 * NEAP_BUSY: too many events wait; take them with neap_poll first. Nothing is allocated in here. */
NEAP_API neap_status neap_step(neap_engine *e);
/* Ends a sequence at the next step; its event follows with NEAP_FINISH_CANCELLED. May come from any thread. */
NEAP_API neap_status neap_cancel(neap_seq *s);
/* A paused sequence gets no rows until it is resumed (its reader is slow). May come from any thread. */
NEAP_API neap_status neap_pause(neap_seq *s, int32_t is_paused);
NEAP_API void neap_seq_free(neap_seq *s);
/* Shows the sequence's caches now: cache.state.i, cache.conv.i, cache.latent.i, cache.krope.i, cache.ikey.i. An
 * ended sequence keeps them until another request needs the place, one that was cancelled or failed does not:
 * NEAP_NOT_FOUND. */
NEAP_API neap_status neap_seq_caches(neap_seq *s, neap_tap_fn tap, void *user);

typedef enum neap_event_kind {
    NEAP_EVENT_PROMPT = 0, /* n_done of n_total prompt tokens computed */
    NEAP_EVENT_TOKEN = 1,  /* one new token */
    NEAP_EVENT_DONE = 2,   /* the last event of a sequence */
    NEAP_EVENT_BEGIN = 3,  /* it has left the queue: n_done of n_total prompt tokens were found in the prefix cache.
                            * Once per request, before its other events */
} neap_event_kind;
typedef enum neap_finish {
    NEAP_FINISH_NONE = 0,
    NEAP_FINISH_STOP = 1,   /* a stop token or stop string */
    NEAP_FINISH_LENGTH = 2, /* max_tokens or the context; an answer that a grammar completed in time for them, too */
    NEAP_FINISH_CANCELLED = 3,
    NEAP_FINISH_ERROR = 4 /* status says why, e.g. NEAP_NUMERIC */
} neap_finish;

typedef struct neap_logprob {
    int32_t token;
    float logprob;
} neap_logprob;

typedef struct neap_event {
    size_t struct_size; /* set by the caller */
    neap_event_kind kind;
    neap_seq *seq;
    void *user;       /* of the request */
    int32_t token;    /* TOKEN: the id. A stop token is reported too, with empty text */
    const char *text; /* TOKEN and DONE: text that became complete (whole UTF-8 characters, stop strings
                                 held back), 0-terminated; borrowed until the next neap_poll or neap_step */
    size_t text_bytes;
    float logprob;           /* of the token under the model's own distribution (temperature 1, no penalties) */
    const neap_logprob *top; /* the n_logprobs best, falling; borrowed as text */
    int32_t n_top;
    int64_t n_done, n_total; /* PROMPT: tokens; TOKEN: new tokens so far, max_tokens */
    neap_finish finish;      /* DONE */
    neap_status status;      /* DONE with NEAP_FINISH_ERROR */
    int64_t n_cached;        /* prompt tokens that were found in the prefix cache */
} neap_event;
/* Next event, oldest first; NEAP_AGAIN: none waiting. */
NEAP_API neap_status neap_poll(neap_engine *e, neap_event *out);

typedef struct neap_engine_stats {
    size_t struct_size;
    uint64_t steps, rows, prompt_tokens, new_tokens, nonfinite_rows;
    int32_t seqs_running, n_threads;
    uint64_t cache_tokens_used, cache_tokens_total;
    uint64_t forward_ns;     /* time spent in the model */
    uint64_t plan_emissions; /* how often the ops of a step were laid out: once per shape class; per step when eager */
    int32_t seqs_waiting;
    uint64_t waiting_tokens;                /* of their prompts */
    uint64_t prefix_queries, prefix_hits;   /* prompt tokens looked for, and found */
    uint64_t prefix_requests, prefix_found; /* requests that looked, and that found something */
    uint64_t prefix_tokens;                 /* tokens kept by the prefix cache alone (no running sequence) */
    uint64_t prefix_evicted;                /* checkpoints and pages given up for others */
    int32_t checkpoints_used, checkpoints_total;
    uint64_t preemptions;
    uint64_t disk_saves, disk_loads, disk_rejects; /* checkpoints written, read back, refused as damaged or foreign */
    uint64_t disk_bytes;
} neap_engine_stats;
NEAP_API neap_status neap_engine_statistics(const neap_engine *e, neap_engine_stats *out);
/* Records of the latest step, op by op and worker by worker, in the order of capture; needs enable_trace (times) or
 * enable_hash. */
NEAP_API neap_status neap_engine_trace(const neap_engine *e, neap_trace_fn fn, void *user);

/* ---------------------------------------------------------------- quantisation ---------------- */

typedef enum neap_weights {
    NEAP_WEIGHTS_BF16 = 1,
    NEAP_WEIGHTS_INT8 = 2, /* a scale per output and group of inputs: 128, else 32, else the whole row */
    NEAP_WEIGHTS_MXFP4 = 3 /* E2M1, one E8M0 scale per 32 inputs */
} neap_weights;

typedef struct neap_quantize_options {
    size_t struct_size;
    int32_t experts;          /* neap_weights of the routed experts; default MXFP4 */
    int32_t linear;           /* neap_weights of the linear projections: BF16 (default) or INT8 */
    uint64_t shard_bytes_max; /* weights in one file of the result; 0 = 5 GB */
    int32_t n_threads;        /* 0 = default, at most 16 are used; each takes about 16 MiB */
    neap_log_fn log;          /* NULL: warnings and errors go to stderr */
    void *log_user;
    neap_progress_fn progress; /* NULL: silent */
    void *progress_user;
    int (*is_cancelled)(void *user); /* asked now and then; not 0: stop, remove what was written, NEAP_CANCELLED */
    void *cancel_user;
    int32_t head, embedding; /* BF16 (default): as they are, packed ones become BF16; or INT8. A model with one matrix
                              * for both (tied) has it in INT8 when either is INT8 */
} neap_quantize_options;

NEAP_API void neap_quantize_options_init(neap_quantize_options *o);
/* Writes the model in directory `model` to directory `out` (made, or empty) with its weights in other forms: a model
 * that neap_model_open and other engines read. What has its form already is copied byte for byte, and so are all
 * files beside the weights. Memory: a few pieces of one matrix, never a whole shard. On failure `out` is as it was
 * before. o may be NULL. */
NEAP_API neap_status neap_quantize(const char *model, const char *out, const neap_quantize_options *o);

/* ---------------------------------------------------------------- tensor files ---------------- */

/* A safetensors file of any content, read strictly: golden files, results of another program. */
typedef struct neap_tensors neap_tensors;

typedef struct neap_tensor_info {
    const char *name;  /* from a file: borrowed until neap_tensors_close */
    const char *dtype; /* as in the file: "F32", "I32", "BF16" ... */
    int32_t rank;      /* 0 .. 8 */
    int64_t shape[8];
    uint64_t bytes; /* of the data; when writing it may stay 0 */
} neap_tensor_info;

NEAP_API neap_status neap_tensors_open(neap_tensors **out, const char *path);
NEAP_API void neap_tensors_close(neap_tensors *f);
NEAP_API int64_t neap_tensors_count(const neap_tensors *f);
/* Tensor i in file order, 0 <= i < count. */
NEAP_API neap_status neap_tensors_at(const neap_tensors *f, int64_t i, neap_tensor_info *info);
/* NEAP_NOT_FOUND when there is none of that name. */
NEAP_API neap_status neap_tensors_find(const neap_tensors *f, const char *name, neap_tensor_info *info);
/* Copies `bytes` bytes of the tensor's data from `offset` on, as stored (little-endian). */
NEAP_API neap_status neap_tensors_read(const neap_tensors *f, const char *name, uint64_t offset, uint64_t bytes,
                                       void *data);
/* Writes n tensors in the given order, whole or not at all: a temporary file that is renamed. Only the name,
 * dtype, rank and shape of infos[i] are used. */
NEAP_API neap_status neap_tensors_write(const char *path, const neap_tensor_info *infos, const void *const *data,
                                        size_t n);

/* The same for data that does not fit into memory: all descriptions first, then the bytes of the tensors in that order,
 * in pieces of any size. The file has its name once finish returned NEAP_OK; finish frees w in any case. */
typedef struct neap_tensors_writer neap_tensors_writer;
NEAP_API neap_status neap_tensors_writer_open(neap_tensors_writer **out, const char *path,
                                              const neap_tensor_info *infos, size_t n);
NEAP_API neap_status neap_tensors_writer_append(neap_tensors_writer *w, const void *data, uint64_t bytes);
NEAP_API neap_status neap_tensors_writer_finish(neap_tensors_writer *w);
NEAP_API void neap_tensors_writer_discard(neap_tensors_writer *w); /* nothing is left behind */

#ifdef __cplusplus
}
#endif
#endif
