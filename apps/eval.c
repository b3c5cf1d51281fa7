/* `neap eval retrieval`: asks questions whose answers stand in a text and counts the exact answers.
 *
 *   set (JSON lines) -> probes -> prompts -> up to --parallel of them at a time -> answer == expected ?
 *
 * Decoding is greedy. An answer is right when it equals the expected one to the letter, white space at its ends aside;
 * what a model thinks before it answers is not judged. Kinds of probes:
 *   chat    document, line break, question as one user message; the answer is the message's content
 *   direct  the same with thinking switched off, where the model can
 *   plain   document, empty line, "Question: ...", "Answer:" as plain text; the continuation must begin with the answer
 * The result does not depend on --parallel: rows of other sequences never change a sequence's numbers.
 *
 * Called by main. Owns the set and the running sequences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "conversation.h"
#include "generate.h"
#include "json_in.h"
#include "json_out.h"
#include "report.h"
#include "terminal.h"

enum { ANSWER_USUAL = 256 };

typedef enum probe_kind { KIND_CHAT, KIND_DIRECT, KIND_PLAIN, KINDS } probe_kind;
static const char *const kind_names[KINDS] = {"chat", "direct", "plain"};

typedef struct probe {
    size_t line; /* in the set */
    probe_kind kind;
    int64_t size; /* to group by */
    neap_cli_text document, question, answer;
    int32_t *tokens; /* the prompt */
    size_t n_tokens, max_tokens;
    neap_cli_text request, got; /* request: what was encoded; empty for plain */
    neap_chat_parser *parser;
    neap_seq *seq;
    int is_right;
} probe;

typedef struct group { /* probes of one kind and size */
    probe_kind kind;
    int64_t size;
    size_t n, n_right;
    double tokens; /* of the prompts, sum */
} group;

typedef struct run {
    neap_cli_session s;
    const char *path;
    char *own_path;
    probe *probes;
    size_t n, n_right;
    group *groups;
    size_t n_groups;
    double seconds;
} run;

/* ---- the set ---- */

static void free_probe(probe *p) {
    neap_cli_text *texts[] = {&p->document, &p->question, &p->answer, &p->request, &p->got};
    for (size_t i = 0; i < 5; i++) neap_cli_text_free(texts[i]);
    free(p->tokens);
    neap_chat_parser_destroy(p->parser);
    neap_seq_free(p->seq);
}

static size_t line_of(const neap_cli_json *j) {
    size_t line = 1;
    for (size_t i = 0; i < j->at; i++) line += j->text[i] == '\n';
    return line;
}

static int read_kind(neap_cli_json *j, probe *p, neap_cli_text *scratch) {
    neap_cli_text_cut(scratch, 0);
    if (!neap_cli_json_read_string(j, scratch)) return 0;
    for (int k = 0; k < KINDS; k++) {
        if (strcmp(neap_cli_text_string(scratch), kind_names[k]) != 0) continue;
        p->kind = (probe_kind)k;
        return 1;
    }
    return neap_cli_json_fail(j, "none of chat, direct, plain");
}

/* One object; other fields than ours are skipped. */
static int read_probe(neap_cli_json *j, probe *p) {
    neap_cli_text key = {0}, scratch = {0};
    neap_cli_json_peek(j);
    p->line = line_of(j);
    int ok = neap_cli_json_expect(j, '{');
    int is_empty = ok && neap_cli_json_accept(j, '}');
    while (ok && !is_empty) {
        size_t begin;
        key.n = 0;
        ok = neap_cli_json_read_string(j, &key) && neap_cli_json_expect(j, ':');
        const char *name = neap_cli_text_string(&key);
        neap_cli_text *text = strcmp(name, "document") == 0   ? &p->document
                              : strcmp(name, "question") == 0 ? &p->question
                              : strcmp(name, "answer") == 0   ? &p->answer
                                                              : NULL;
        if (ok) j->field = name;
        if (ok && text != NULL) {
            text->n = 0;
            ok = neap_cli_json_read_string(j, text);
        } else if (ok && strcmp(name, "size") == 0) {
            ok = neap_cli_json_read_int(j, 0, INT32_MAX, &p->size);
        } else if (ok && strcmp(name, "kind") == 0) {
            ok = read_kind(j, p, &scratch);
        } else if (ok) {
            ok = neap_cli_json_skip(j, &begin);
        }
        j->field = NULL;
        if (!ok || neap_cli_json_accept(j, '}')) break;
        ok = neap_cli_json_expect(j, ',');
    }
    if (ok && (p->document.n == 0 || p->question.n == 0 || p->answer.n == 0))
        ok = neap_cli_json_fail(j, "a probe needs \"document\", \"question\" and \"answer\"");
    neap_cli_text_free(&key);
    neap_cli_text_free(&scratch);
    return ok;
}

static group *group_of(run *r, const probe *p) {
    for (size_t i = 0; i < r->n_groups; i++) {
        if (r->groups[i].kind == p->kind && r->groups[i].size == p->size) return &r->groups[i];
    }
    r->groups = neap_cli_grow(r->groups, r->n_groups + 1, sizeof *r->groups);
    r->groups[r->n_groups] = (group){.kind = p->kind, .size = p->size};
    return &r->groups[r->n_groups++];
}

static int read_set(run *r, int64_t limit) {
    neap_cli_text text = {0};
    int code = neap_cli_read_file(&text, r->path, NEAP_CLI_TEXT_MAX);
    neap_cli_json j = {.what = strcmp(r->path, "-") == 0 ? "standard input" : r->path, .text = text.data, .n = text.n};
    size_t capacity = 0;
    while (code == NEAP_EXIT_OK && neap_cli_json_peek(&j) != 0) {
        if (r->n == capacity) {
            capacity = capacity < 64 ? 64 : capacity * 2;
            r->probes = neap_cli_grow(r->probes, capacity, sizeof *r->probes);
        }
        probe *p = &r->probes[r->n++];
        *p = (probe){.kind = KIND_CHAT};
        if (!read_probe(&j, p)) {
            code = NEAP_EXIT_FILE;
            break;
        }
        group *g = group_of(r, p);
        if (limit > 0 && (int64_t)g->n >= limit) {
            free_probe(p);
            r->n--;
            continue;
        }
        g->n++;
    }
    if (code == NEAP_EXIT_OK && r->n == 0) {
        neap_cli_error("%s: there are no probes", j.what);
        code = NEAP_EXIT_FILE;
    }
    neap_cli_text_free(&text);
    return code;
}

/* ---- prompts ---- */

static int encode_chat(run *r, probe *p) {
    neap_cli_conversation c;
    neap_cli_text message = {0};
    neap_cli_text_printf(&message, "%s\n%s", p->document.data, p->question.data);
    neap_cli_conversation_init(&c);
    neap_cli_conversation_add(&c, "user", message.data, message.n);
    int has_thinking = strcmp(neap_chat_format(r->s.tokenizer), "xtml") == 0;
    c.thinking = p->kind == KIND_DIRECT && has_thinking ? 0 : -1;
    neap_cli_conversation_request(&c, &p->request);
    neap_cli_conversation_free(&c);
    neap_cli_text_free(&message);
    p->max_tokens = r->s.options->predict >= 0 ? (size_t)r->s.options->predict : ANSWER_USUAL;
    return neap_cli_encode_chat(r->s.tokenizer, p->request.data, p->request.n, &p->tokens, &p->n_tokens);
}

static int encode_plain(run *r, probe *p) {
    neap_cli_text prompt = {0}, answer = {0};
    int32_t *ids = NULL;
    neap_cli_text_printf(&prompt, "%s\n\nQuestion: %s\nAnswer:", p->document.data, p->question.data);
    neap_cli_text_printf(&answer, " %s", p->answer.data);
    int code = neap_cli_tokenize_text(r->s.tokenizer, answer.data, answer.n, 0, &ids, &p->max_tokens);
    if (code == NEAP_EXIT_OK)
        code = neap_cli_tokenize_text(r->s.tokenizer, prompt.data, prompt.n, 0, &p->tokens, &p->n_tokens);
    free(ids);
    neap_cli_text_free(&prompt);
    neap_cli_text_free(&answer);
    return code;
}

static int encode_all(run *r, int32_t *context) {
    size_t most = 0;
    int code = NEAP_EXIT_OK, has_chat = neap_cli_has_chat(r->s.tokenizer);
    for (size_t i = 0; i < r->n && code == NEAP_EXIT_OK; i++) {
        probe *p = &r->probes[i];
        if (p->kind != KIND_PLAIN && !has_chat) {
            neap_cli_error("%s: line %zu: kind %s needs a chat format, this model has none", r->path, p->line,
                           kind_names[p->kind]);
            return NEAP_EXIT_FILE;
        }
        code = p->kind == KIND_PLAIN ? encode_plain(r, p) : encode_chat(r, p);
        if (code != NEAP_EXIT_OK) break;
        group_of(r, p)->tokens += (double)p->n_tokens;
        if (p->n_tokens + p->max_tokens > most) most = p->n_tokens + p->max_tokens;
    }
    if (code == NEAP_EXIT_OK && most > INT32_MAX / 4) {
        neap_cli_error("%s: a prompt of %zu tokens is too long", r->path, most);
        code = NEAP_EXIT_FILE;
    }
    *context = (int32_t)most;
    return code;
}

/* ---- answers ---- */

static int submit(run *r, probe *p) {
    neap_request q;
    neap_request_init(&q);
    q.tokens = p->tokens;
    q.n_tokens = p->n_tokens;
    q.max_tokens = (int32_t)p->max_tokens;
    q.user = p;
    neap_status status = NEAP_OK;
    if (p->request.n > 0) status = neap_chat_parser_create(&p->parser, r->s.tokenizer, p->request.data, p->request.n);
    if (status == NEAP_OK) status = neap_submit(r->s.engine, &q, &p->seq);
    return neap_cli_failed(status, NEAP_CLI_RUNNING);
}

static neap_status take_deltas(probe *p) {
    neap_chat_delta d;
    neap_status status;
    while ((status = neap_chat_parser_next(p->parser, &d)) == NEAP_OK) {
        if (d.kind == NEAP_CHAT_CONTENT) neap_cli_text_add(&p->got, d.text, d.text_bytes);
    }
    return status == NEAP_AGAIN ? NEAP_OK : status;
}

static int is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static void judge(run *r, probe *p) {
    neap_cli_text *got = &p->got;
    size_t begin = 0, end = got->n;
    while (begin < end && is_blank(got->data[begin])) begin++;
    while (end > begin && is_blank(got->data[end - 1])) end--;
    p->is_right = end - begin == p->answer.n && memcmp(got->data + begin, p->answer.data, p->answer.n) == 0;
    r->n_right += (size_t)p->is_right;
    group_of(r, p)->n_right += (size_t)p->is_right;
    if (neap_cli_is_verbose() && !p->is_right)
        neap_cli_note("line %zu: \"%s\" instead of \"%s\"", p->line, neap_cli_text_string(got), p->answer.data);
}

/* Returns an exit code; *is_done: the probe is judged and its place is free. */
static int take_event(run *r, const neap_event *e, int *is_done) {
    probe *p = e->user;
    neap_status status = NEAP_OK;
    *is_done = e->kind == NEAP_EVENT_DONE;
    if (e->kind == NEAP_EVENT_DONE && e->finish == NEAP_FINISH_ERROR) {
        neap_cli_error("line %zu: the answer ended with an error: %s", p->line, neap_status_text(e->status));
        return neap_cli_exit_code(e->status, NEAP_CLI_RUNNING);
    }
    if (p->parser == NULL)
        neap_cli_text_add(&p->got, e->text, e->text_bytes);
    else if (e->kind == NEAP_EVENT_TOKEN)
        status = neap_chat_parser_feed(p->parser, e->token);
    else if (e->kind == NEAP_EVENT_DONE)
        status = neap_chat_parser_finish(p->parser);
    if (status == NEAP_OK && p->parser != NULL) status = take_deltas(p);
    if (status != NEAP_OK || !*is_done) return neap_cli_failed(status, NEAP_CLI_RUNNING);
    judge(r, p);
    neap_seq_free(p->seq);
    neap_chat_parser_destroy(p->parser);
    p->seq = NULL;
    p->parser = NULL;
    return NEAP_EXIT_OK;
}

static int ask_all(run *r) {
    size_t n_submitted = 0, n_done = 0, places = (size_t)r->s.options->parallel;
    double begin = neap_cli_seconds();
    int code = NEAP_EXIT_OK;
    while (code == NEAP_EXIT_OK && n_done < r->n) {
        while (code == NEAP_EXIT_OK && n_submitted < r->n && n_submitted - n_done < places)
            code = submit(r, &r->probes[n_submitted++]);
        if (code != NEAP_EXIT_OK) break;
        neap_status status = neap_cli_session_step(&r->s);
        int was_idle = status == NEAP_AGAIN, is_done = 0;
        if (status != NEAP_AGAIN) code = neap_cli_failed(status, NEAP_CLI_RUNNING);
        neap_event event = {.struct_size = sizeof event};
        while (code == NEAP_EXIT_OK && (status = neap_poll(r->s.engine, &event)) == NEAP_OK) {
            was_idle = 0;
            code = take_event(r, &event, &is_done);
            n_done += code == NEAP_EXIT_OK && is_done;
        }
        if (code == NEAP_EXIT_OK && status != NEAP_AGAIN) code = neap_cli_failed(status, NEAP_CLI_RUNNING);
        if (code == NEAP_EXIT_OK && was_idle) {
            neap_cli_error("the engine has nothing to do although answers are missing");
            code = NEAP_EXIT_INTERNAL;
        }
        neap_cli_progress("asking", "probes", n_done, r->n, (double)n_done / (neap_cli_seconds() - begin + 1e-9));
    }
    neap_cli_progress_clear();
    r->seconds = neap_cli_seconds() - begin;
    return code;
}

/* ---- output ---- */

static double share(size_t n_right, size_t n) { return (double)n_right / (double)n; }

static double share_error(size_t n_right, size_t n) {
    double p = share(n_right, n);
    return sqrt(p * (1 - p) / (double)n);
}

static void print_table(const run *r) {
    neap_cli_outf("%-8s %8s %8s %8s %8s   %s\n", "kind", "size", "tokens", "probes", "right", "share");
    for (size_t i = 0; i < r->n_groups; i++) {
        const group *g = &r->groups[i];
        neap_cli_outf("%-8s %8lld %8.0f %8zu %8zu   %.1f %% +- %.1f\n", kind_names[g->kind], (long long)g->size,
                      g->tokens / (double)g->n, g->n, g->n_right, 100 * share(g->n_right, g->n),
                      100 * share_error(g->n_right, g->n));
    }
    if (r->n_groups > 1)
        neap_cli_outf("%-8s %8s %8s %8zu %8zu   %.1f %% +- %.1f\n", "all", "", "", r->n, r->n_right,
                      100 * share(r->n_right, r->n), 100 * share_error(r->n_right, r->n));
}

static void add_share(neap_cli_text *out, size_t n, size_t n_right) {
    neap_cli_json_uint(out, "probes", n);
    neap_cli_json_uint(out, "right", n_right);
    neap_cli_json_real(out, "share", share(n_right, n), 9);
    neap_cli_json_real(out, "share_error", share_error(n_right, n), 6);
}

static void print_json(const run *r) {
    const neap_cli_options *o = r->s.options;
    neap_engine_options e;
    neap_cli_text out = {0};
    neap_engine_options_init(&e);
    neap_cli_number_types(o, &e);
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", o->model);
    neap_cli_json_cstring(&out, "set", r->path);
    neap_cli_json_cstring(&out, "cache_type", neap_cli_cache_name(e.cache_type));
    neap_cli_json_cstring(&out, "index_type", neap_cli_index_name(e.index_type));
    neap_cli_json_cstring(&out, "act_type", neap_cli_act_name(e.act_type));
    neap_cli_json_cstring(&out, "moe_act_type", neap_cli_act_name(e.moe_act_type));
    add_share(&out, r->n, r->n_right);
    neap_cli_json_open(&out, "groups", '[');
    for (size_t i = 0; i < r->n_groups; i++) {
        const group *g = &r->groups[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_cstring(&out, "kind", kind_names[g->kind]);
        neap_cli_json_int(&out, "size", g->size);
        neap_cli_json_real(&out, "tokens", g->tokens / (double)g->n, 6);
        add_share(&out, g->n, g->n_right);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_json_open(&out, "wrong", '[');
    for (size_t i = 0; i < r->n; i++) {
        const probe *p = &r->probes[i];
        if (p->is_right) continue;
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_uint(&out, "line", p->line);
        neap_cli_json_string(&out, "expected", p->answer.data, p->answer.n);
        neap_cli_json_string(&out, "got", neap_cli_text_string(&p->got), p->got.n);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_json_real(&out, "seconds", r->seconds, 6);
    neap_cli_text_puts(&out, "}\n");
    neap_cli_out(out.data, out.n);
    neap_cli_text_free(&out);
}

/* ---- the command ---- */

int neap_cli_eval(const neap_cli_options *o) {
    run r = {.path = o->set};
    int32_t context = 0;
    if (r.path == NULL) {
        neap_cli_text path = {0};
        neap_cli_text_printf(&path, "%s/heldout/retrieval.jsonl", o->model);
        r.path = r.own_path = path.data;
    }
    int code = read_set(&r, o->limit);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&r.s, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_needs_tokenizer(&r.s);
    if (code == NEAP_EXIT_OK) code = encode_all(&r, &context);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_start_many(&r.s, context, (int32_t)o->parallel);
    if (code == NEAP_EXIT_OK) code = ask_all(&r);
    if (code == NEAP_EXIT_OK) {
        if (o->json)
            print_json(&r);
        else
            print_table(&r);
    }
    for (size_t i = 0; i < r.n; i++) free_probe(&r.probes[i]);
    free(r.probes);
    free(r.groups);
    free(r.own_path);
    neap_cli_session_close(&r.s);
    return code;
}
