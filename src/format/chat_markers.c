/* The prompt of Kimi Linear and Kimi K2.
 *
 *   <|im_user|> or <|im_assistant|> or <|im_system|>  name or role  <|im_middle|> content <|im_end|>
 *
 * Tools come first, as compact JSON in a system message named tool_declare. Calls of an assistant message follow its
 * content in a section; a call's id is functions.NAME:N with N counted over the whole conversation. Ids of that
 * form are kept, others (a client's "call_abc") are rewritten, because foreign ids derail the model's later calls. A
 * result is headed "## Return of" and the id of the call it answers.
 *
 * The vendor encodes the text between two control tokens in one go, so ordinary neighbours are joined here. The
 * format has no thinking channel: reasoning of earlier turns is left out. It has no sentence for tool_choice or
 * response_format either: "none" leaves the tools out; a forced call and a JSON answer are the grammar's alone
 * (neap_grammar_create), the prompt does not speak of them.
 *
 * Called by chat.c. Source: tokenizer and chat notes, section 4; calls and results as in Kimi K2. */
#include <stdio.h>

#include "format/chat.h"

typedef struct rendered_id {
    size_t at, bytes; /* in the writer's ids */
} rendered_id;

typedef struct writer {
    neap_segments *out;
    neap_chat_request *r;
    neap_text scratch;
    neap_text ids;   /* ids as rendered, joined */
    rendered_id *of; /* [n_calls] the id of each call of the request */
} writer;

static neap_status begin(writer *w, neap_chat_role role, neap_chat_string name) {
    static const char *const marker[] = {"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>"};
    static const char *const header[] = {"system", "user", "assistant", "tool"};
    NEAP_TRY(neap_segment_special(w->out, marker[role]));
    NEAP_TRY(name.n > 0 ? neap_segment_text(w->out, name.p, name.n) : neap_segment_str(w->out, header[role]));
    return neap_segment_special(w->out, "<|im_middle|>");
}

static neap_status end(writer *w) {
    NEAP_TRY(neap_segment_special(w->out, "<|im_end|>"));
    return neap_segment_mark(w->out);
}

/* functions.NAME:DIGITS with the call's own name: its number, else -1. */
static int64_t native_number(const neap_chat_call *call) {
    static const char lead[] = "functions.";
    size_t n_lead = sizeof lead - 1, n = call->id.n, at = n_lead + call->name.n;
    if (call->id.p == NULL || n < at + 2 || n > at + 10) return -1;
    if (memcmp(call->id.p, lead, n_lead) != 0 || memcmp(call->id.p + n_lead, call->name.p, call->name.n) != 0)
        return -1;
    if (call->id.p[at] != ':') return -1;
    int64_t value = 0;
    for (size_t i = at + 1; i < n; i++) {
        if (call->id.p[i] < '0' || call->id.p[i] > '9') return -1;
        value = value * 10 + (call->id.p[i] - '0');
    }
    return value;
}

int64_t neap_chat_next_number(const neap_chat_request *r) {
    int64_t number = 0;
    for (size_t i = 0; i < r->n_calls; i++) {
        int64_t native = native_number(&r->calls[i]);
        number = (native > number ? native : number) + 1;
    }
    return number;
}

/* The ids of all calls, in order. */
static neap_status assign_ids(writer *w) {
    int64_t number = 0;
    NEAP_TRY(neap_mem_alloc((w->r->n_calls + 1) * sizeof *w->of, (void **)&w->of));
    for (size_t i = 0; i < w->r->n_calls; i++) {
        const neap_chat_call *call = &w->r->calls[i];
        int64_t native = native_number(call);
        w->of[i].at = w->ids.n;
        if (native >= 0) {
            NEAP_TRY(neap_text_add(&w->ids, call->id.p, call->id.n));
            if (native > number) number = native;
        } else {
            char tail[32];
            snprintf(tail, sizeof tail, ":%lld", (long long)number);
            NEAP_TRY(neap_text_str(&w->ids, "functions."));
            NEAP_TRY(neap_text_add(&w->ids, call->name.p, call->name.n));
            NEAP_TRY(neap_text_str(&w->ids, tail));
        }
        w->of[i].bytes = w->ids.n - w->of[i].at;
        number++;
    }
    return NEAP_OK;
}

static neap_status arguments(writer *w, uint32_t node) {
    if (node == NEAP_J_NONE) return neap_segment_str(w->out, "{}");
    if (neap_jtree_kind(&w->r->tree, node) == NEAP_J_STRING) {
        size_t n;
        const char *p = neap_jtree_string(&w->r->tree, node, &n);
        return neap_chat_is_blank(p, n) ? neap_segment_str(w->out, "{}") : neap_segment_text(w->out, p, n);
    }
    w->scratch.n = 0;
    NEAP_TRY(neap_jtree_write(&w->r->tree, node, NEAP_J_SPACED, &w->scratch));
    return neap_segment_text(w->out, w->scratch.p, w->scratch.n);
}

static neap_status calls(writer *w, const neap_chat_message *m) {
    if (m->n_calls == 0) return NEAP_OK;
    NEAP_TRY(neap_segment_special(w->out, "<|tool_calls_section_begin|>"));
    for (size_t i = m->calls; i < m->calls + m->n_calls; i++) {
        for (size_t k = 0; k < w->r->calls[i].name.n; k++)
            NEAP_CHECK(w->r->calls[i].name.p[k] != ' ', NEAP_INVALID_ARGUMENT,
                       "messages[%zu].tool_calls[%zu].function.name: holds a space", m->index, i - m->calls);
        NEAP_TRY(neap_segment_special(w->out, "<|tool_call_begin|>"));
        NEAP_TRY(neap_segment_text(w->out, w->ids.p + w->of[i].at, w->of[i].bytes));
        NEAP_TRY(neap_segment_special(w->out, "<|tool_call_argument_begin|>"));
        NEAP_TRY(arguments(w, w->r->calls[i].arguments));
        NEAP_TRY(neap_segment_special(w->out, "<|tool_call_end|>"));
    }
    return neap_segment_special(w->out, "<|tool_calls_section_end|>");
}

/* A result names the call by its id, or by its place among the results when it has none. */
static neap_status result_head(writer *w, const neap_chat_message *m, const neap_chat_message *asked, size_t index) {
    int64_t call = neap_chat_find_call(w->r, asked, m->call_id);
    if (call < 0 && m->call_id.p == NULL && asked != NULL && index < asked->n_calls) call = (int64_t)index;
    NEAP_TRY(neap_segment_str(w->out, "## Return of "));
    if (call >= 0) {
        const rendered_id *id = &w->of[asked->calls + (size_t)call];
        NEAP_TRY(neap_segment_text(w->out, w->ids.p + id->at, id->bytes));
    } else {
        NEAP_CHECK(m->call_id.n > 0, NEAP_INVALID_ARGUMENT,
                   "messages[%zu].tool_call_id: is required, because no call before this result is unanswered",
                   m->index);
        NEAP_TRY(neap_segment_text(w->out, m->call_id.p, m->call_id.n)); /* the call was cut from the history */
    }
    return neap_segment_str(w->out, "\n");
}

static neap_status declare_tools(writer *w, uint32_t tools) {
    if (tools == NEAP_J_NONE || w->r->choice == NEAP_CHOICE_NONE) return NEAP_OK;
    neap_chat_string name = {"tool_declare", strlen("tool_declare")};
    w->scratch.n = 0;
    NEAP_TRY(neap_jtree_write(&w->r->tree, tools, NEAP_J_COMPACT, &w->scratch));
    NEAP_TRY(begin(w, NEAP_ROLE_SYSTEM, name));
    NEAP_TRY(neap_segment_text(w->out, w->scratch.p, w->scratch.n));
    return end(w);
}

static neap_status prompt(writer *w) {
    const neap_chat_message *asked = NULL;
    size_t index = 0;
    NEAP_TRY(assign_ids(w));
    NEAP_TRY(declare_tools(w, w->r->tools));
    for (size_t i = 0; i < w->r->n_messages; i++) {
        const neap_chat_message *m = &w->r->messages[i];
        if (m->role == NEAP_ROLE_SYSTEM && m->tools != NEAP_J_NONE) {
            NEAP_TRY(declare_tools(w, m->tools));
            continue;
        }
        NEAP_TRY(begin(w, m->role, m->name));
        if (m->role == NEAP_ROLE_TOOL) NEAP_TRY(result_head(w, m, asked, index++));
        NEAP_TRY(neap_segment_content(w->out, w->r, m->content));
        if (m->role == NEAP_ROLE_ASSISTANT) {
            asked = m;
            index = 0;
            NEAP_TRY(calls(w, m));
        }
        NEAP_TRY(end(w));
    }
    return w->r->generation_prompt ? begin(w, NEAP_ROLE_ASSISTANT, (neap_chat_string){0}) : NEAP_OK;
}

neap_status neap_chat_render_markers(neap_segments *out, neap_chat_request *r) {
    writer w = {.out = out, .r = r};
    neap_status status = prompt(&w);
    neap_text_free(&w.scratch);
    neap_text_free(&w.ids);
    neap_mem_free(w.of);
    return status;
}
