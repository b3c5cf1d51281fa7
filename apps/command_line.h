/* The command line: one table of options and one of commands. From them come the parser, --help, the bash
 * completion and the manual page, so none of these can lag behind. */
#ifndef NEAP_APPS_COMMAND_LINE_H
#define NEAP_APPS_COMMAND_LINE_H

#include <stddef.h>
#include <stdint.h>

typedef struct neap_cli_strings {
    const char **items; /* borrowed strings */
    size_t n;
} neap_cli_strings;

/* Where the value of an option comes from; a greater one wins. */
typedef enum neap_cli_source {
    NEAP_CLI_FROM_DEFAULT,
    NEAP_CLI_FROM_ALL,     /* section [*] of the config file */
    NEAP_CLI_FROM_SECTION, /* the model's section */
    NEAP_CLI_FROM_ENVIRONMENT,
    NEAP_CLI_FROM_FLAG
} neap_cli_source;
enum { NEAP_CLI_OPTIONS_MAX = 256 };

/* Limits of `neap serve` as the table stores them; server/limits.c makes neap_serve_limits of them. */
typedef struct neap_cli_serve_limits {
    uint64_t header_bytes, uri_bytes, body_bytes, stream_bytes, stop_bytes, grammar_bytes;
    int64_t headers, connections, pipelined, json_depth, json_nodes, queue_requests, queue_tokens, choices;
    int64_t stop_strings, logit_bias, top_logprobs, grammar_states, grammar_ms, tools;
    double header_seconds, body_seconds, write_seconds, idle_seconds, body_rate, queue_seconds, request_seconds;
    double drain_seconds, ping_seconds;
} neap_cli_serve_limits;

typedef struct neap_cli_serve_options {
    const char *host, *alias, *api_key_file, *admin_key, *admin_key_file, *tls_cert, *tls_key, *prefix_dir;
    const char *log_file, *log_level, *check;
    int64_t port, parallel, checkpoints, checkpoint_spacing;
    uint64_t cache_ram, prefix_dir_size;
    neap_cli_strings api_keys, allowed_hosts, cors_origins;
    int32_t insecure_no_auth, shared_prefix, optimistic, log_json, log_content, strict_model_name, show_limits;
    int32_t metrics, page, prefix_cache; /* -1 = not said: on */
    neap_cli_serve_limits limits;
} neap_cli_serve_options;

typedef struct neap_cli_options {
    int32_t command; /* neap_cli_command */
    const char *model;
    const char *args[2]; /* positional arguments after the model; NULL = absent */
    /* general */
    int32_t help, version, verbose, quiet;
    const char *log_colors;
    /* model and engine */
    const char *cpu;
    int32_t strict, allow_nonfinite, cpu_info;
    double latent_norm_eps;
    int64_t threads, ctx_size, batch_size, parallel;
    const char *cache_type, *index_type; /* NULL = the command's default */
    const char *act, *moe_act;           /* NULL = the command's default; what act says */
    uint64_t memory_max;
    /* prompt and answer */
    const char *prompt, *file, *system_prompt, *tools, *tool_choice, *effort;
    int32_t raw, think, json, show_reasoning, single_turn; /* think: -1 = not said */
    int64_t predict;
    /* sampling */
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, repeat_last_n, seed, logprobs;
    neap_cli_strings stop, logit_bias;
    int32_t ignore_eos;
    /* tokenize */
    int32_t ids, count, special;
    const char *decode;
    /* quantize */
    const char *experts, *linear, *head, *embedding;
    uint64_t shard_size;
    /* logits, verify */
    const char *tokens, *out;
    double tolerance_scale;
    /* perplexity, eval */
    const char *task; /* of eval */
    const char *save_logits, *against, *set;
    int64_t stride, positions, limit;
    uint64_t save_max;
    /* bench */
    const char *depth, *batch, *compare, *plot;
    int64_t bench_prompt, bench_new, repetitions;
    int32_t mixed, csv, markdown;
    const char *trace, *hashes; /* also of run */
    /* info --plan */
    int32_t show_plan;
    int64_t plan_rows, plan_depth, plan_batch, cores;
    const char *plan_dot;
    double memory_scale;
    /* how steps run; see settings.h */
    const char *plan, *streams, *pin;
    int64_t threads_batch, few_rows;       /* few_rows -1 = not said */
    int32_t oversubscribe, tuning, cache;  /* tuning, cache: -1 = not said */
    double tune_seconds, seconds, max_age; /* max_age: days; -1 = not said */
    const char *cache_dir;
    int32_t cache_verify, all, dry_run;
    uint64_t max_size; /* 0 = not said */
    /* serve */
    neap_cli_serve_options serve;
    /* how the values came about */
    const char *config;                    /* the config file */
    const char *section;                   /* of the model in it; NULL: none */
    char *config_text;                     /* owned: what values from the file point into */
    uint8_t sources[NEAP_CLI_OPTIONS_MAX]; /* neap_cli_source of option i */
    int argc;
    char **argv; /* borrowed: what was parsed, to do it again */
} neap_cli_options;

typedef enum neap_cli_command {
    NEAP_CLI_RUN,
    NEAP_CLI_CHAT,
    NEAP_CLI_SERVE,
    NEAP_CLI_TOKENIZE,
    NEAP_CLI_INFO,
    NEAP_CLI_LOGITS,
    NEAP_CLI_QUANTIZE,
    NEAP_CLI_VERIFY,
    NEAP_CLI_PERPLEXITY,
    NEAP_CLI_EVAL,
    NEAP_CLI_BENCH,
    NEAP_CLI_TUNE,
    NEAP_CLI_DOCTOR,
    NEAP_CLI_CACHE,
    NEAP_CLI_COMPLETION,
    NEAP_CLI_MAN,
    NEAP_CLI_VERSION,
    NEAP_CLI_HELP,
    NEAP_CLI_COMMANDS
} neap_cli_command;

typedef enum neap_cli_type {
    NEAP_CLI_BOOL,   /* int32_t; --no-NAME switches off */
    NEAP_CLI_INT,    /* int64_t */
    NEAP_CLI_REAL,   /* double */
    NEAP_CLI_BYTES,  /* uint64_t; K, M, G suffixes; max 0 = any size */
    NEAP_CLI_STRING, /* const char *, borrowed */
    NEAP_CLI_FILE,   /* the same; completes to files */
    NEAP_CLI_CHOICE, /* the same; one of `choices` */
    NEAP_CLI_LIST    /* neap_cli_strings; may be given several times */
} neap_cli_type;

enum { NEAP_CLI_NAMES = 6 };

typedef struct neap_cli_option {
    const char *names[NEAP_CLI_NAMES]; /* with dashes; the first that begins with "--" is the canonical one */
    neap_cli_type type;
    size_t offset;        /* in neap_cli_options */
    double min, max;      /* INT, REAL, BYTES */
    const char *choices;  /* CHOICE: "a|b|c" */
    const char *value;    /* what the help calls the value, e.g. "N" */
    const char *standard; /* default as text; NULL: zero, not shown */
    const char *group;    /* heading in the help */
    uint32_t commands;    /* bits 1 << neap_cli_command */
    int has_environment;  /* NEAP_ + canonical name */
    int can_set;          /* /set of the chat may change it */
    const char *help;
} neap_cli_option;

typedef struct neap_cli_command_info {
    const char *name;
    const char *arguments;  /* for the synopsis: "MODEL [PROMPT]" */
    int args_min, args_max; /* positional arguments besides MODEL */
    int takes_model;        /* 2: unless --cpu-info; 3: may be left out; 4: may come from the config file */
    const char *summary;    /* one line */
    const char *text;       /* a paragraph or two; may be NULL */
    const char *examples;   /* lines; may be NULL */
} neap_cli_command_info;

const neap_cli_option *neap_cli_option_at(size_t i); /* 0 .. count - 1 */
size_t neap_cli_option_count(void);
extern const neap_cli_command_info neap_cli_command_table[NEAP_CLI_COMMANDS];
/* The first word after the command, one of "a|b"; NULL = there is none. */
extern const char *const neap_cli_task_table[NEAP_CLI_COMMANDS];

/* Fills o from defaults, environment and arguments, in rising precedence. Prints one line and returns an exit code
 * when something is wrong; 0 otherwise. */
int neap_cli_options_parse(neap_cli_options *o, int argc, char **argv);
/* Flag, then environment, then the model's section of the config file, then its section [*], then the default. */
neap_cli_source neap_cli_option_source(const neap_cli_options *o, const neap_cli_option *option);
void neap_cli_options_free(neap_cli_options *o);
const char *neap_cli_option_name(const neap_cli_option *option); /* canonical, with dashes */
/* "NEAP_CTX_SIZE" */
void neap_cli_option_environment(const neap_cli_option *option, char *name, size_t capacity);
/* One value by canonical name without dashes, for /set. Returns an exit code. */
int neap_cli_options_set(neap_cli_options *o, const char *name, const char *value);
void neap_cli_option_show(const neap_cli_options *o, const neap_cli_option *option, char *text, size_t capacity);

/* config_file.c: INI. The text is changed and must live as long as the values. Returns an exit code; *out is for
 * free(), in any case. */
typedef struct neap_cli_config_value {
    const char *section, *key, *value; /* section "*": for every model */
    int line;
} neap_cli_config_value;
int neap_cli_config_parse(const char *file, char *text, neap_cli_config_value **out, size_t *n);

/* help.c; all print to standard output */
void neap_cli_help_all(void);
void neap_cli_help_command(neap_cli_command command);
void neap_cli_print_man(void);
void neap_cli_print_completion(void);

#endif
