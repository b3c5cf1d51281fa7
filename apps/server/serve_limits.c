/* The limits of the server; see serve.h and serve_config.h.
 *
 * There is one table: the rows of the heading "Limits" in option_serve.c, which give every limit a flag, an environment
 * variable, a key in the config file, a default, a range and a sentence. This file prints it and turns the values into
 * the numbers that the server uses. Two limits follow from the context unless they are given.
 *
 * Called by serve_config.c and main. Owns nothing. Source of the numbers: docs/serving.md. */
#include <stdio.h>
#include <string.h>

#include "../option_rows.h"
#include "../terminal.h"
#include "serve_config.h"

void neap_serve_limits_fill(neap_serve_limits *out, const neap_cli_serve_limits *from) {
    *out = (neap_serve_limits){
        .http = {.header_bytes = (size_t)from->header_bytes,
                 .uri_bytes = (size_t)from->uri_bytes,
                 .body_bytes = (size_t)from->body_bytes,
                 .headers = (int32_t)from->headers,
                 .connections = (int32_t)from->connections,
                 .pipelined = (int32_t)from->pipelined,
                 .stream_bytes = (size_t)from->stream_bytes,
                 .header_seconds = from->header_seconds,
                 .body_seconds = from->body_seconds,
                 .write_seconds = from->write_seconds,
                 .idle_seconds = from->idle_seconds,
                 .body_rate = from->body_rate},
        .json_depth = from->json_depth,
        .json_nodes = from->json_nodes,
        .queue_requests = from->queue_requests,
        .queue_tokens = from->queue_tokens,
        .queue_seconds = from->queue_seconds,
        .request_seconds = from->request_seconds,
        .choices = from->choices,
        .stop_strings = from->stop_strings,
        .stop_bytes = (int64_t)from->stop_bytes,
        .logit_bias = from->logit_bias,
        .top_logprobs = from->top_logprobs,
        .grammar_bytes = (int64_t)from->grammar_bytes,
        .grammar_states = from->grammar_states,
        .grammar_ms = from->grammar_ms,
        .tools = from->tools,
        .drain_seconds = from->drain_seconds,
        .ping_seconds = from->ping_seconds,
    };
}

void neap_serve_limits_resolve(neap_serve_limits *l, int32_t context_max) {
    if (l->json_nodes == 0) l->json_nodes = 4 * (int64_t)context_max + 65536;
    if (l->queue_tokens == 0) l->queue_tokens = 64 * (int64_t)context_max;
}

/* ---- --show-limits ---- */

static int is_limit(const neap_cli_option *option) {
    return (option->commands & SERVE) != 0 && strcmp(option->group, GROUP_LIMITS) == 0;
}

static const char *unit_of(const neap_cli_option *option) {
    if (option->type == NEAP_CLI_BYTES) return "bytes";
    if (strcmp(option->value, "SECONDS") == 0) return "seconds";
    if (strcmp(option->value, "MS") == 0) return "ms";
    return strcmp(option->value, "RATE") == 0 ? "bytes/s" : "";
}

static const char *source_name(const neap_cli_options *o, const neap_cli_option *option) {
    static const char *const names[] = {"default", "file", "file", "environment", "flag"};
    return names[neap_cli_option_source(o, option)];
}

/* The default is text such as "32M"; through the parser's eyes it is a number. */
static void standard_text(const neap_cli_option *option, char *text, size_t capacity) {
    unsigned long long n;
    char unit = 0;
    snprintf(text, capacity, "%s", option->standard);
    if (option->type != NEAP_CLI_BYTES || sscanf(option->standard, "%llu%c", &n, &unit) < 1) return;
    snprintf(text, capacity, "%llu", n << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0));
}

void neap_serve_limits_show(const neap_cli_options *o) {
    neap_cli_text out = {0};
    int is_first = 1;
    if (o->json)
        neap_cli_text_puts(&out, "{\"limits\": [\n");
    else
        neap_cli_text_printf(&out, "%-24s %12s %-8s %12s %10s %12s  %-11s %s\n", "limit", "value", "", "default", "min",
                             "max", "from", "what it bounds");
    for (size_t i = 0; i < neap_cli_option_count(); i++) {
        const neap_cli_option *option = neap_cli_option_at(i);
        if (!is_limit(option)) continue;
        char value[64], standard[64];
        const char *name = neap_cli_option_name(option) + 2;
        neap_cli_option_show(o, option, value, sizeof value);
        standard_text(option, standard, sizeof standard);
        if (o->json) /* names, units and sentences are ours: nothing to escape */
            neap_cli_text_printf(
                &out,
                "%s  {\"name\": \"%s\", \"flag\": \"--%s\", \"value\": %s, \"unit\": \"%s\", "
                "\"default\": %s, \"min\": %.16g, \"max\": %.16g, \"source\": \"%s\", \"doc\": \"%s\"}",
                is_first ? "" : ",\n", name, name, value, unit_of(option), standard, option->min, option->max,
                source_name(o, option), option->help);
        else
            neap_cli_text_printf(&out, "%-24s %12s %-8s %12s %10.10g %12.12g  %-11s %s\n", name, value, unit_of(option),
                                 standard, option->min, option->max, source_name(o, option), option->help);
        is_first = 0;
    }
    if (o->json) neap_cli_text_puts(&out, "\n]}\n");
    neap_cli_out(neap_cli_text_string(&out), out.n);
    neap_cli_text_free(&out);
}
