/* The parser of the command line; see command_line.h.
 *
 * Names of one dash and several letters (-np, -sys) rule out getopt, and the table has to feed more than a
 * parser, so the walk over the arguments is our own: an option is looked up whole, a value is the rest after
 * "=" or the next argument, "--" ends the options. Underscores count as dashes in long names.
 *
 * Precedence: flag, then environment (NEAP_CTX_SIZE for --ctx-size), then the config file (for commands that have
 * one: the model's section, then [*]), then the table's default. All go through the same set_value, so a bad value in
 * the environment is reported like a bad flag. Every option remembers where its value comes from, so that the sources
 * may be read in any order: a lower one changes nothing, a higher one replaces (lists too).
 *
 * Called by main; /set of the chat uses neap_cli_options_set; a server that is told to reload parses again. */
#include "command_line.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "report.h"
#include "buffer.h"

const char *neap_cli_option_name(const neap_cli_option *option) {
    for (int i = 0; i < NEAP_CLI_NAMES && option->names[i] != NULL; i++) {
        if (option->names[i][1] == '-') return option->names[i];
    }
    return option->names[0];
}

void neap_cli_option_environment(const neap_cli_option *option, char *name, size_t capacity) {
    size_t n = (size_t)snprintf(name, capacity, "NEAP_%s", neap_cli_option_name(option) + 2);
    for (size_t i = 0; i < n && i + 1 < capacity; i++) {
        if (name[i] == '-')
            name[i] = '_';
        else if (name[i] >= 'a' && name[i] <= 'z')
            name[i] = (char)(name[i] - 'a' + 'A');
    }
}

/* ---- values ---- */

static void *field(neap_cli_options *o, const neap_cli_option *option) { return (char *)o + option->offset; }

static int set_bool(int32_t *out, const char *from, const char *text) {
    static const char *const words[] = {"0", "false", "off", "disabled", "no", "1", "true", "on", "enabled", "yes"};
    for (size_t i = 0; i < 10; i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i >= 5;
        return NEAP_EXIT_OK;
    }
    neap_cli_error("%s: \"%s\" is neither on nor off", from, text);
    return NEAP_EXIT_USAGE;
}

static int set_number(void *out, const neap_cli_option *option, const char *from, const char *text) {
    char *end = NULL;
    errno = 0;
    double real = 0;
    long long integer = 0;
    if (option->type == NEAP_CLI_INT)
        integer = strtoll(text, &end, 10), real = (double)integer;
    else
        real = strtod(text, &end);
    if (end == text || *end != 0 || text[0] == ' ' || isnan(real)) {
        neap_cli_error("%s: \"%s\" is not a %s", from, text, option->type == NEAP_CLI_INT ? "whole number" : "number");
        return NEAP_EXIT_USAGE;
    }
    if ((errno == ERANGE && option->type == NEAP_CLI_INT) || real < option->min || real > option->max) {
        neap_cli_error("%s: %s is outside %.16g .. %.16g", from, text, option->min, option->max);
        return NEAP_EXIT_USAGE;
    }
    if (option->type == NEAP_CLI_INT)
        *(int64_t *)out = integer;
    else
        *(double *)out = real;
    return NEAP_EXIT_OK;
}

static int set_bytes(uint64_t *out, const neap_cli_option *option, const char *from, const char *text) {
    char *end = NULL;
    errno = 0;
    unsigned long long value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    int shift = 0;
    if (end != NULL && *end != 0) {
        static const char units[] = "kmgt";
        const char *unit = strchr(units, *end | 0x20);
        shift = unit == NULL ? -1 : 10 * (int)(unit - units + 1);
        end++;
        if (strcasecmp(end, "b") != 0 && strcasecmp(end, "ib") != 0 && *end != 0) shift = -1;
    }
    if (end == NULL || shift < 0 || errno == ERANGE || (shift > 0 && value >> (64 - shift) != 0)) {
        neap_cli_error("%s: \"%s\" is not a size such as 8G or 800M", from, text);
        return NEAP_EXIT_USAGE;
    }
    *out = (uint64_t)value << shift;
    if (option->max == 0 || ((double)*out >= option->min && (double)*out <= option->max)) return NEAP_EXIT_OK;
    neap_cli_error("%s: %s is outside %.16g .. %.16g bytes", from, text, option->min, option->max);
    return NEAP_EXIT_USAGE;
}

/* choices: "a|b|c" */
static int is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *p = choices; p != NULL; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, text, n) == 0 && n > 0 && (p[n] == '|' || p[n] == 0)) return 1;
    }
    return 0;
}

static int set_choice(const char **out, const neap_cli_option *option, const char *from, const char *text) {
    if (is_choice(option->choices, text)) {
        *out = text;
        return NEAP_EXIT_OK;
    }
    neap_cli_error("%s: \"%s\" is not one of %s", from, text, option->choices);
    return NEAP_EXIT_USAGE;
}

static int set_value(neap_cli_options *o, const neap_cli_option *option, const char *from, const char *text) {
    void *p = field(o, option);
    switch (option->type) {
    case NEAP_CLI_BOOL: return set_bool(p, from, text);
    case NEAP_CLI_INT:
    case NEAP_CLI_REAL: return set_number(p, option, from, text);
    case NEAP_CLI_BYTES: return set_bytes(p, option, from, text);
    case NEAP_CLI_CHOICE: return set_choice(p, option, from, text);
    case NEAP_CLI_STRING:
    case NEAP_CLI_FILE: *(const char **)p = text; return NEAP_EXIT_OK;
    case NEAP_CLI_LIST: {
        neap_cli_strings *list = p;
        list->items = neap_cli_grow(list->items, list->n + 1, sizeof *list->items);
        list->items[list->n++] = text;
        return NEAP_EXIT_OK;
    }
    }
    return NEAP_EXIT_INTERNAL;
}

static uint8_t *source_of(neap_cli_options *o, const neap_cli_option *option) {
    size_t i = 0, n = neap_cli_option_count();
    while (i < n && neap_cli_option_at(i) != option) i++;
    assert(i < n && n <= NEAP_CLI_OPTIONS_MAX); /* a row of the table, which has room for all */
    return &o->sources[i];
}

neap_cli_source neap_cli_option_source(const neap_cli_options *o, const neap_cli_option *option) {
    neap_cli_options *whole = (neap_cli_options *)(uintptr_t)o;
    return (neap_cli_source)*source_of(whole, option);
}

/* Makes room for a value from `source`. False: a greater source has spoken. */
static int claim(neap_cli_options *o, const neap_cli_option *option, neap_cli_source source) {
    uint8_t *now = source_of(o, option);
    if (*now > (uint8_t)source) return 0;
    if (*now < (uint8_t)source && option->type == NEAP_CLI_LIST) ((neap_cli_strings *)field(o, option))->n = 0;
    *now = (uint8_t)source;
    return 1;
}

/* The value alone, for its errors. */
static int check_value(const neap_cli_option *option, const char *from, const char *text) {
    neap_cli_options scratch = {0};
    return option->type == NEAP_CLI_LIST ? NEAP_EXIT_OK : set_value(&scratch, option, from, text);
}

/* Values are checked even where they do not count. */
static int put_value(neap_cli_options *o, const neap_cli_option *option, neap_cli_source source, const char *from,
                     const char *text) {
    return claim(o, option, source) ? set_value(o, option, from, text) : check_value(option, from, text);
}

static int set_defaults(neap_cli_options *o) {
    *o = (neap_cli_options){.command = NEAP_CLI_COMMANDS};
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if (option->standard == NULL) continue;
        /* The default of such a switch depends on the command or the model: -1 = not said. */
        if (option->type == NEAP_CLI_BOOL)
            *(int32_t *)field(o, option) = -1;
        else if (set_value(o, option, neap_cli_option_name(option), option->standard) != 0)
            return NEAP_EXIT_INTERNAL;
    }
    return NEAP_EXIT_OK;
}

static int set_from_environment(neap_cli_options *o) {
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if (!option->has_environment || (option->commands & 1u << o->command) == 0) continue;
        char name[64];
        neap_cli_option_environment(option, name, sizeof name);
        const char *text = getenv(name);
        if (text == NULL || text[0] == 0) continue;
        int code = put_value(o, option, NEAP_CLI_FROM_ENVIRONMENT, name, text);
        if (code != NEAP_EXIT_OK) return code;
    }
    return NEAP_EXIT_OK;
}

/* ---- names and guesses ---- */

/* Edits (insert, delete, replace, swap neighbours) from a to b; large when one is too long. */
static size_t distance(const char *a, const char *b) {
    enum { MAX = 40 };
    size_t n = strlen(a), m = strlen(b), row[3][MAX + 1];
    if (n > MAX || m > MAX) return MAX;
    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *up = row[(i + 2) % 3], *upper = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && upper[j - 2] + 1 < best)
                best = upper[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

static const char *closest_option(const char *name, int32_t command) {
    const char *best = NULL;
    size_t length = strlen(name), limit = length < 4 ? 1 : length / 3, best_distance = limit + 1;
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if ((option->commands & 1u << command) == 0) continue;
        for (int k = 0; k < NEAP_CLI_NAMES && option->names[k] != NULL; k++) {
            const char *candidate = option->names[k];
            size_t d = distance(name, candidate);
            if (d >= best_distance && length > 4 && strncmp(name, candidate, length) == 0) d = best_distance - 1;
            if (d < best_distance) best = candidate, best_distance = d;
        }
    }
    return best;
}

/* What people know from other servers and need not say here. NULL: nothing is known of this name. */
static const char *elsewhere(const char *name) {
    static const char gpu[] = "neap computes on CPUs, leave it out", built_in[] = "that is built in, leave it out";
    static const char parts[] = "one process has the whole model, leave it out",
                      disk[] = "models are directories on disk: MODEL";
    static const char memory[] = "weights are read into memory, leave it out",
                      slots[] = "/metrics and /props tell that";
    static const struct {
        const char *name, *text;
    } known[] = {{"-ngl", gpu},
                 {"--gpu-layers", gpu},
                 {"--n-gpu-layers", gpu},
                 {"--gpu-memory-utilization", gpu},
                 {"--device", gpu},
                 {"-sm", gpu},
                 {"-fa", built_in},
                 {"--flash-attn", built_in},
                 {"--jinja", built_in},
                 {"--chat-template", built_in},
                 {"--reasoning-format", built_in},
                 {"--reasoning-parser", built_in},
                 {"--tool-call-parser", built_in},
                 {"--enable-auto-tool-choice", built_in},
                 {"--trust-remote-code", "nothing in a model is executed, leave it out"},
                 {"-cb", built_in},
                 {"--cont-batching", built_in},
                 {"--cache-reuse", "--cache-prompt does that and is on, leave it out"},
                 {"-ctk", "--cache-type is for keys and values together"},
                 {"-ctv", "--cache-type is for keys and values together"},
                 {"--cache-type-k", "--cache-type is for keys and values together"},
                 {"--cache-type-v", "--cache-type is for keys and values together"},
                 {"--tensor-parallel-size", parts},
                 {"--pipeline-parallel-size", parts},
                 {"--mlock", memory},
                 {"--no-mmap", memory},
                 {"-ub", "-b is for both"},
                 {"--ubatch-size", "-b is for both"},
                 {"--no-webui", "did you mean --no-page?"},
                 {"--slots", slots},
                 {"-hf", disk},
                 {"--hf-repo", disk}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) return known[i].text;
    }
    return NULL;
}

static int find_command(const char *name) {
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        if (strcmp(name, neap_cli_command_table[i].name) == 0) return i;
    }
    return -1;
}

static int unknown_command(const char *name) {
    const char *best = NULL;
    size_t best_distance = strlen(name) < 4 ? 2 : 3;
    for (int i = 0; i < NEAP_CLI_COMMANDS; i++) {
        size_t d = distance(name, neap_cli_command_table[i].name);
        if (d < best_distance) best = neap_cli_command_table[i].name, best_distance = d;
    }
    if (best != NULL)
        neap_cli_error("unknown command \"%s\", did you mean %s?", name, best);
    else if (strchr(name, '/') != NULL)
        neap_cli_error("unknown command \"%s\", did you mean: neap run %s?", name, name);
    else
        neap_cli_error("unknown command \"%s\" (neap help lists the commands)", name);
    return NEAP_EXIT_USAGE;
}

/* The option called name (n bytes, underscores made dashes), of those in `commands`; *is_negated: it was --no-NAME. */
static const neap_cli_option *find_option(const char *name, size_t n, uint32_t commands, int *is_negated) {
    char plain[64];
    *is_negated = 0;
    if (n >= sizeof plain) return NULL;
    for (size_t i = 0; i < n; i++) plain[i] = name[i] == '_' && name[1] == '-' ? '-' : name[i];
    plain[n] = 0;
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if ((option->commands & commands) == 0) continue;
        for (int k = 0; k < NEAP_CLI_NAMES && option->names[k] != NULL; k++) {
            const char *candidate = option->names[k];
            if (strcmp(plain, candidate) == 0) return option;
            if (option->type == NEAP_CLI_BOOL && candidate[1] == '-' && strncmp(plain, "--no-", 5) == 0 &&
                strcmp(plain + 5, candidate + 2) == 0) {
                *is_negated = 1;
                return option;
            }
        }
    }
    return NULL;
}

static int wrong_option(const neap_cli_option *option, const char *name, int32_t command) {
    const char *us = command < NEAP_CLI_COMMANDS ? neap_cli_command_table[command].name : NULL;
    if (us == NULL) {
        if (option != NULL)
            neap_cli_error("%s comes after the command: neap COMMAND %s", name, name);
        else
            neap_cli_error("unknown option \"%s\" (neap help lists the commands)", name);
        return NEAP_EXIT_USAGE;
    }
    if (option != NULL) {
        neap_cli_text list = {0};
        int is_negated;
        for (int i = 0; i < NEAP_CLI_COMMANDS; i++) { /* by name: two options may share one */
            if (find_option(name, strlen(name), 1u << i, &is_negated) == NULL) continue;
            neap_cli_text_printf(&list, "%s%s", list.n > 0 ? ", " : "", neap_cli_command_table[i].name);
        }
        neap_cli_error("\"neap %s\" has no option %s, it belongs to: %s", us, name, neap_cli_text_string(&list));
        neap_cli_text_free(&list);
        return NEAP_EXIT_USAGE;
    }
    const char *best = closest_option(name, command), *known = elsewhere(name);
    if (known != NULL)
        neap_cli_error("unknown option \"%s\": %s", name, known);
    else if (best != NULL)
        neap_cli_error("unknown option \"%s\", did you mean %s?", name, best);
    else
        neap_cli_error("unknown option \"%s\" (neap %s --help lists the options)", name, us);
    return NEAP_EXIT_USAGE;
}

/* ---- the walk over the arguments ---- */

/* One option at argv[*i]; *i moves past its value. command: NEAP_CLI_COMMANDS = not known yet. */
static int take_option(neap_cli_options *o, int32_t command, int argc, char **argv, int *i) {
    const char *arg = argv[*i];
    const char *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n < 60 ? n : 60), arg);
    int is_negated;
    uint32_t all = (1u << NEAP_CLI_COMMANDS) - 1, wanted = command < NEAP_CLI_COMMANDS ? 1u << command : all;
    const neap_cli_option *option = find_option(arg, n, wanted, &is_negated);
    if (option == NULL) option = find_option(arg, n, all, &is_negated); /* of another command: for the message */
    if (option == NULL || (option->commands & wanted) != wanted) return wrong_option(option, name, command);
    if (option->type == NEAP_CLI_BOOL) {
        if (equals == NULL) return put_value(o, option, NEAP_CLI_FROM_FLAG, name, is_negated ? "off" : "on");
        if (!is_negated) return put_value(o, option, NEAP_CLI_FROM_FLAG, name, equals + 1);
        neap_cli_error("%s takes no value", name);
        return NEAP_EXIT_USAGE;
    }
    const char *value = equals != NULL ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (value == NULL) {
        neap_cli_error("%s needs a value: %s %s", name, name, option->value != NULL ? option->value : "VALUE");
        return NEAP_EXIT_USAGE;
    }
    return put_value(o, option, NEAP_CLI_FROM_FLAG, name, value);
}

/* The row of a field that only one row has. */
static const neap_cli_option *option_of(size_t offset) {
    size_t i = 0;
    while (neap_cli_option_at(i)->offset != offset) i++;
    return neap_cli_option_at(i);
}
#define AT_MODEL offsetof(neap_cli_options, model)

static int is_option(const char *arg) { return arg[0] == '-' && arg[1] != 0; }

static int take_arguments(neap_cli_options *o, int argc, char **argv, int first) {
    const neap_cli_command_info *info = &neap_cli_command_table[o->command];
    const char *words[4] = {0};
    int n = 0, is_over = 0;
    for (int i = first; i < argc; i++) {
        if (!is_over && strcmp(argv[i], "--") == 0) {
            is_over = 1;
        } else if (!is_over && is_option(argv[i])) {
            int code = take_option(o, o->command, argc, argv, &i);
            if (code != NEAP_EXIT_OK) return code;
        } else if (n < 4) {
            words[n++] = argv[i];
        } else {
            neap_cli_error("unexpected argument \"%s\"", argv[i]);
            return NEAP_EXIT_USAGE;
        }
    }
    if (o->help || o->version) return NEAP_EXIT_OK;
    int at = 0, needs_model = info->takes_model == 1 || (info->takes_model == 2 && !o->cpu_info);
    const char *tasks = neap_cli_task_table[o->command];
    if (tasks != NULL) {
        if (n == 0) {
            neap_cli_error("an argument is missing: neap %s %s", info->name, info->arguments);
            return NEAP_EXIT_USAGE;
        }
        if (!is_choice(tasks, words[at])) {
            neap_cli_error("neap %s: \"%s\" is not one of %s", info->name, words[at], tasks);
            return NEAP_EXIT_USAGE;
        }
        o->task = words[at++];
    }
    /* With -m there is no MODEL argument; NEAP_MODEL steps in where the argument is left out. */
    int may_have_model = needs_model || info->takes_model >= 3;
    const neap_cli_option *model = option_of(AT_MODEL);
    if (may_have_model && *source_of(o, model) < NEAP_CLI_FROM_FLAG && n - at > info->args_min)
        (void)put_value(o, model, NEAP_CLI_FROM_FLAG, "MODEL", words[at++]);
    if (needs_model && (o->model == NULL || o->model[0] == 0)) {
        neap_cli_error("%s: neap %s %s", n > 0 ? "an argument is missing" : "no model given", info->name,
                       info->arguments);
        return NEAP_EXIT_USAGE;
    }
    for (int k = 0; at < n && k < 2; k++) o->args[k] = words[at++];
    int given = (o->args[0] != NULL) + (o->args[1] != NULL);
    if (at < n || given > info->args_max) {
        neap_cli_error("unexpected argument \"%s\" (neap %s%s%s)", at < n ? words[at] : o->args[info->args_max],
                       info->name, info->arguments[0] != 0 ? " " : "", info->arguments);
        return NEAP_EXIT_USAGE;
    }
    if (given < info->args_min) {
        neap_cli_error("an argument is missing: neap %s %s", info->name, info->arguments);
        return NEAP_EXIT_USAGE;
    }
    return NEAP_EXIT_OK;
}

/* ---- the config file ---- */

static const neap_cli_option *config_option(const neap_cli_options *o, const char *key, int *is_negated) {
    char name[64];
    snprintf(name, sizeof name, "--%.60s", key);
    uint32_t command = 1u << o->command;
    const neap_cli_option *option = find_option(name, strlen(name), command, is_negated);
    return option != NULL ? option : find_option(name + 1, strlen(name + 1), command, is_negated);
}

/* The option that a line sets; NULL: said why not. */
static const neap_cli_option *config_key(const neap_cli_options *o, const neap_cli_config_value *v, int *is_negated) {
    const neap_cli_option *option = config_option(o, v->key, is_negated);
    if (option == NULL) {
        char name[64];
        snprintf(name, sizeof name, "--%.60s", v->key);
        const char *best = closest_option(name, o->command);
        if (best != NULL)
            neap_cli_error("%s:%d: unknown key \"%s\", did you mean %s?", o->config, v->line, v->key,
                           best + strspn(best, "-"));
        else
            neap_cli_error("%s:%d: unknown key \"%s\" (keys are the options of neap %s --help)", o->config, v->line,
                           v->key, neap_cli_command_table[o->command].name);
        return NULL;
    }
    size_t at = option->offset;
    if (at != offsetof(neap_cli_options, config) && at != offsetof(neap_cli_options, help) &&
        at != offsetof(neap_cli_options, version) && at != offsetof(neap_cli_options, serve.check) &&
        at != offsetof(neap_cli_options, serve.show_limits))
        return option;
    neap_cli_error("%s:%d: \"%s\" belongs on the command line", o->config, v->line, v->key);
    return NULL;
}

/* source NEAP_CLI_FROM_DEFAULT: the section of another model, which is only checked. */
static int config_take(neap_cli_options *o, const neap_cli_config_value *v, neap_cli_source source) {
    int is_negated;
    const neap_cli_option *option = config_key(o, v, &is_negated);
    if (option == NULL) return NEAP_EXIT_FILE;
    char from[512];
    snprintf(from, sizeof from, "%.400s:%d: %.60s", o->config, v->line, v->key);
    const char *value = v->value;
    if (is_negated) {
        int32_t is_on;
        if (set_bool(&is_on, from, value) != NEAP_EXIT_OK) return NEAP_EXIT_FILE;
        value = is_on ? "off" : "on";
    }
    int code =
        source == NEAP_CLI_FROM_DEFAULT ? check_value(option, from, value) : put_value(o, option, source, from, value);
    return code == NEAP_EXIT_OK ? NEAP_EXIT_OK : NEAP_EXIT_FILE;
}

/* Whether a section is called like a model: by its path as given, or by the name of its directory. */
static int is_name_of(const char *section, const char *model) {
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    const char *base = model + n;
    while (base > model && base[-1] != '/') base--;
    size_t n_base = n - (size_t)(base - model), n_section = strlen(section);
    return (n_section == n && memcmp(section, model, n) == 0) ||
           (n_section == n_base && memcmp(section, base, n_base) == 0);
}

/* The alias names the section, else the model's path or directory does; a single section needs no name when nothing
 * else says which model is meant. */
static const char *config_section(const neap_cli_options *o, const neap_cli_config_value *values, size_t n) {
    const char *by_model = NULL, *only = NULL;
    int n_sections = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = values[i].section;
        if (strcmp(name, "*") == 0) continue;
        if (o->serve.alias != NULL && strcmp(name, o->serve.alias) == 0) return name;
        if (o->model != NULL && is_name_of(name, o->model)) by_model = name;
        if (only == NULL || strcmp(only, name) != 0) only = name, n_sections++;
    }
    return by_model != NULL ? by_model : o->model == NULL && n_sections == 1 ? only : NULL;
}

/* One value for a key of a section: which of two was meant nobody can know. Lists may have many. */
static int config_check_twice(const neap_cli_options *o, const neap_cli_config_value *values, size_t n) {
    int is_negated;
    for (size_t i = 1; i < n; i++) {
        const neap_cli_option *option = config_option(o, values[i].key, &is_negated);
        if (option == NULL || option->type == NEAP_CLI_LIST) continue;
        for (size_t j = 0; j < i; j++) {
            if (strcmp(values[i].section, values[j].section) != 0) continue;
            if (config_option(o, values[j].key, &is_negated) != option) continue;
            neap_cli_error("%s:%d: \"%s\" was set in line %d already", o->config, values[i].line, values[i].key,
                           values[j].line);
            return NEAP_EXIT_FILE;
        }
    }
    return NEAP_EXIT_OK;
}

static int config_apply(neap_cli_options *o, const neap_cli_config_value *values, size_t n) {
    int code = config_check_twice(o, values, n), is_negated;
    for (size_t i = 0; i < n && code == NEAP_EXIT_OK; i++) {
        if (strcmp(values[i].section, "*") == 0) code = config_take(o, &values[i], NEAP_CLI_FROM_ALL);
    }
    o->section = config_section(o, values, n);
    int is_called = o->section != NULL && o->model != NULL && strcmp(o->section, o->model) == 0;
    for (size_t i = 0; i < n && code == NEAP_EXIT_OK; i++) {
        if (strcmp(values[i].section, "*") == 0) continue;
        neap_cli_source source = NEAP_CLI_FROM_DEFAULT;
        if (o->section != NULL && strcmp(values[i].section, o->section) == 0) {
            source = NEAP_CLI_FROM_SECTION;
            const neap_cli_option *option = config_option(o, values[i].key, &is_negated);
            /* `neap serve NAME`: the section of that name says where its model is. */
            if (is_called && option != NULL && option->offset == AT_MODEL) source = NEAP_CLI_FROM_FLAG;
        }
        code = config_take(o, &values[i], source);
    }
    return code;
}

static int take_config(neap_cli_options *o) {
    const neap_cli_command_info *info = &neap_cli_command_table[o->command];
    int code = NEAP_EXIT_OK;
    if (info->takes_model != 4) return code;
    if (o->config != NULL && o->config[0] != 0) {
        neap_cli_text text = {0};
        neap_cli_config_value *values = NULL;
        size_t n = 0;
        code = neap_cli_read_file(&text, o->config, 1 << 20);
        o->config_text = text.data;
        if (code == NEAP_EXIT_OK && strlen(text.data) != text.n) {
            neap_cli_error("%s: a NUL byte at offset %zu", o->config, strlen(text.data));
            code = NEAP_EXIT_FILE;
        }
        if (code == NEAP_EXIT_OK) code = neap_cli_config_parse(o->config, text.data, &values, &n);
        if (code == NEAP_EXIT_OK) code = config_apply(o, values, n);
        free(values);
    }
    if (code != NEAP_EXIT_OK || o->serve.check != NULL || o->serve.show_limits) return code;
    if (o->model != NULL && o->model[0] != 0) return NEAP_EXIT_OK;
    neap_cli_error("no model given: neap %s %s, or \"model = DIR\" in the config file", info->name, info->arguments);
    return NEAP_EXIT_USAGE;
}

/* A cache directory wins over a --cache or --no-cache that comes from a lower source: a directory on the command line
 * is meant to be used, whatever NEAP_CACHE holds. */
static void settle_cache(neap_cli_options *o) {
    uint8_t dir = *source_of(o, option_of(offsetof(neap_cli_options, cache_dir)));
    if (o->cache_dir != NULL && o->cache_dir[0] != 0 &&
        dir > *source_of(o, option_of(offsetof(neap_cli_options, cache))))
        o->cache = -1;
}

int neap_cli_options_parse(neap_cli_options *o, int argc, char **argv) {
    int code = set_defaults(o), i = 1;
    o->argc = argc;
    o->argv = argv;
    neap_cli_options early = *o; /* the lists are empty: nothing is shared */
    for (; code == NEAP_EXIT_OK && i < argc && is_option(argv[i]); i++)
        code = take_option(&early, NEAP_CLI_COMMANDS, argc, argv, &i);
    if (code != NEAP_EXIT_OK) return code;
    if (i == argc || early.help || early.version) {
        if (!early.help && !early.version) {
            neap_cli_error("no command given (neap help lists the commands)");
            return NEAP_EXIT_USAGE;
        }
        o->command = early.version ? NEAP_CLI_VERSION : NEAP_CLI_HELP;
        return NEAP_EXIT_OK;
    }
    int command = find_command(argv[i]);
    if (command < 0) return unknown_command(argv[i]);
    o->command = command;
    code = set_from_environment(o);
    /* Again, now above the environment: what stood before the command. */
    for (int k = 1; code == NEAP_EXIT_OK && k < i; k++) code = take_option(o, NEAP_CLI_COMMANDS, argc, argv, &k);
    if (code == NEAP_EXIT_OK) code = take_arguments(o, argc, argv, i + 1);
    if (code == NEAP_EXIT_OK && !o->help && !o->version) code = take_config(o);
    settle_cache(o);
    return code;
}

void neap_cli_options_free(neap_cli_options *o) {
    free(o->stop.items);
    free(o->logit_bias.items);
    free(o->serve.api_keys.items);
    free(o->serve.allowed_hosts.items);
    free(o->serve.cors_origins.items);
    free(o->config_text);
}

/* ---- /set ---- */

static const neap_cli_option *settable(const char *name) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", name[0] != 0 && name[1] == 0 ? "-" : "--", name); /* n, s or a long name */
    int is_negated;
    const neap_cli_option *option = find_option(full, strlen(full), 1u << NEAP_CLI_CHAT, &is_negated);
    return option != NULL && option->can_set && !is_negated ? option : NULL;
}

int neap_cli_options_set(neap_cli_options *o, const char *name, const char *value) {
    const neap_cli_option *option = settable(name);
    if (option == NULL) {
        neap_cli_error("\"%s\" cannot be set (/set lists what can)", name);
        return NEAP_EXIT_USAGE;
    }
    return set_value(o, option, name, value);
}

void neap_cli_option_show(const neap_cli_options *o, const neap_cli_option *option, char *text, size_t capacity) {
    const void *p = (const char *)o + option->offset;
    switch (option->type) {
    case NEAP_CLI_BOOL: snprintf(text, capacity, "%s", *(const int32_t *)p ? "on" : "off"); break;
    case NEAP_CLI_INT: snprintf(text, capacity, "%lld", (long long)*(const int64_t *)p); break;
    case NEAP_CLI_REAL: snprintf(text, capacity, "%g", *(const double *)p); break;
    case NEAP_CLI_BYTES: snprintf(text, capacity, "%llu", (unsigned long long)*(const uint64_t *)p); break;
    case NEAP_CLI_STRING:
    case NEAP_CLI_FILE:
    case NEAP_CLI_CHOICE:
        snprintf(text, capacity, "%s", *(const char *const *)p != NULL ? *(const char *const *)p : "");
        break;
    case NEAP_CLI_LIST: snprintf(text, capacity, "%zu", ((const neap_cli_strings *)p)->n); break;
    }
}
