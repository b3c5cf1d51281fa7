/* The model's answer, token by token, as deltas.
 *
 * Only real control tokens are structure: text that merely spells one stays text. Text reaches the caller in
 * whole characters; a control token ends an incomplete one (U+FFFD). Every delta of a call names it by its place,
 * from 0. When the request offered no tools, calls are read and dropped, so their markup never reaches the content.
 * Other special tokens are dropped. After the end of the message nothing more is reported.
 *
 * The grammars are in chat_parse_xtml.c and chat_parse_markers.c; a tokenizer without a chat format gives plain
 * content. Called by the apps through neap.h. Owns the queue.
 * Source: tokenizer and chat notes, sections 4 and 5. */
#include "format/chat_parse.h"

#include <stdio.h>

#include "format/chat.h"

/* ------------------------------------------------------------- queue ------------------------- */

static neap_status enqueue(neap_chat_parser *p, neap_queued q) {
    if (p->n_queued == p->capacity) {
        size_t grown = p->capacity ? p->capacity * 2 : 16;
        NEAP_TRY(neap_mem_grow((void **)&p->queue, p->capacity * sizeof *p->queue, grown * sizeof *p->queue));
        p->capacity = grown;
    }
    p->queue[p->n_queued++] = q;
    return NEAP_OK;
}

/* Adds n bytes and a terminator to the texts; returns where they begin. */
static neap_status keep(neap_chat_parser *p, const char *s, size_t n, size_t *at) {
    *at = p->text.n;
    NEAP_TRY(neap_text_add(&p->text, s, n));
    return neap_text_add(&p->text, "", 1);
}

neap_status neap_parse_put(neap_chat_parser *p, neap_chat_kind kind, const char *text, size_t n) {
    if (n == 0) return NEAP_OK;
    int32_t index = kind == NEAP_CHAT_TOOL_ARGS ? p->n_calls - 1 : 0;
    neap_queued *last = p->n_queued > p->head ? &p->queue[p->n_queued - 1] : NULL;
    size_t at;
    if (last != NULL && last->kind == kind && last->index == index) { /* grows: it is the end of the texts */
        p->text.n--;
        NEAP_TRY(keep(p, text, n, &at));
        last->bytes += n;
        return NEAP_OK;
    }
    NEAP_TRY(keep(p, text, n, &at));
    return enqueue(p, (neap_queued){.kind = kind, .index = index, .at = at, .bytes = n});
}

/* The same for names and ids, which are C strings and come back in later requests: without control characters. */
static neap_status keep_clean(neap_chat_parser *p, const char *s, size_t n, size_t *at) {
    *at = p->text.n;
    NEAP_TRY(neap_text_reserve(&p->text, n + 1));
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0x20 && s[i] != 0x7F) p->text.p[p->text.n++] = s[i];
    p->text.p[p->text.n++] = 0;
    return NEAP_OK;
}

neap_status neap_parse_call(neap_chat_parser *p, const char *name, size_t n_name, const char *id, size_t n_id) {
    neap_queued q = {.kind = NEAP_CHAT_TOOL_CALL, .index = p->n_calls};
    char number[16];
    p->call_open = true;
    p->call_ignored = true;
    if (!p->tools_offered) return NEAP_OK;
    NEAP_TRY(keep_clean(p, name, n_name, &q.name));
    if (p->text.p[q.name] == 0) {
        p->text.n = q.name; /* the latest delta must stay the end of the texts */
        return NEAP_OK;
    }
    p->call_ignored = false;
    if (id != NULL) {
        NEAP_TRY(keep_clean(p, id, n_id, &q.id));
    } else {
        snprintf(number, sizeof number, ":%d", p->n_calls);
        NEAP_TRY(keep_clean(p, name, n_name, &q.id));
        p->text.n--;
        size_t at;
        NEAP_TRY(keep(p, number, strlen(number), &at));
    }
    NEAP_TRY(keep(p, "", 0, &q.at));
    NEAP_TRY(enqueue(p, q));
    p->n_calls++;
    return NEAP_OK;
}

neap_status neap_parse_arguments(neap_chat_parser *p, const char *text, size_t n) {
    if (!p->call_open || p->call_ignored) return NEAP_OK;
    return neap_parse_put(p, NEAP_CHAT_TOOL_ARGS, text, n);
}

neap_status neap_parse_end(neap_chat_parser *p) {
    if (p->ended) return NEAP_OK;
    size_t at;
    p->ended = true;
    NEAP_TRY(keep(p, "", 0, &at));
    return enqueue(p, (neap_queued){.kind = NEAP_CHAT_MESSAGE_END, .at = at});
}

neap_status neap_parse_whole(neap_chat_parser *p, const char *bytes, size_t n) {
    p->piece.n = 0;
    NEAP_TRY(neap_text_reserve(&p->piece, 3 * (n + 4)));
    p->piece.n = neap_utf8_push(&p->hold, bytes, n, p->piece.p);
    return NEAP_OK;
}

neap_status neap_parse_flush(neap_chat_parser *p) {
    p->piece.n = 0;
    NEAP_TRY(neap_text_reserve(&p->piece, 16));
    p->piece.n = neap_utf8_flush(&p->hold, p->piece.p);
    return NEAP_OK;
}

/* ------------------------------------------------------------- grammars ---------------------- */

static neap_status on_text(neap_chat_parser *p) {
    if (p->piece.n == 0) return NEAP_OK;
    switch (p->t->chat) {
    case NEAP_CHAT_XTML: return neap_xtml_text(p);
    case NEAP_CHAT_MARKERS: return neap_markers_text(p);
    case NEAP_CHAT_NONE: break;
    }
    return neap_parse_put(p, NEAP_CHAT_CONTENT, p->piece.p, p->piece.n);
}

static bool is_stop(const neap_tokenizer *t, int32_t token) {
    for (size_t i = 0; i < t->n_stop; i++)
        if (t->stop[i] == token) return true;
    return false;
}

static neap_status on_special(neap_chat_parser *p, int32_t token) {
    switch (p->t->chat) {
    case NEAP_CHAT_XTML: NEAP_TRY(neap_xtml_special(p, token)); break;
    case NEAP_CHAT_MARKERS: NEAP_TRY(neap_markers_special(p, token)); break;
    case NEAP_CHAT_NONE: break;
    }
    if (p->ended || !is_stop(p->t, token)) return NEAP_OK;
    if (p->t->chat == NEAP_CHAT_MARKERS) NEAP_TRY(neap_markers_finish(p));
    return neap_parse_end(p);
}

/* ------------------------------------------------------------- public calls ------------------ */

neap_status neap_chat_parser_create(neap_chat_parser **out, const neap_tokenizer *t, const char *json,
                                    size_t json_bytes) {
    NEAP_CHECK(out && t && (json || json_bytes == 0), NEAP_INVALID_ARGUMENT,
               "neap_chat_parser_create: a required argument is NULL");
    *out = NULL;
    bool thinking = true, offered = true, prompt = true;
    if (json != NULL) {
        neap_chat_request request = {0};
        NEAP_TRY(neap_chat_request_read(&request, json, json_bytes));
        thinking = request.thinking;
        offered = request.tools_offered;
        prompt = request.generation_prompt;
        neap_chat_request_free(&request);
    }
    neap_chat_parser *p = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof *p, (void **)&p));
    p->t = t;
    p->tools_offered = offered;
    p->channel = NEAP_IN_CONTENT;
    if (t->chat == NEAP_CHAT_XTML) neap_xtml_init(p, thinking, prompt);
    if (t->chat == NEAP_CHAT_MARKERS) neap_markers_init(p);
    *out = p;
    return NEAP_OK;
}

void neap_chat_parser_destroy(neap_chat_parser *p) {
    if (p == NULL) return;
    neap_text_free(&p->piece);
    neap_text_free(&p->held);
    neap_text_free(&p->scratch);
    neap_text_free(&p->x.key);
    neap_text_free(&p->x.value);
    neap_text_free(&p->text);
    neap_mem_free(p->queue);
    neap_mem_free(p);
}

neap_status neap_chat_parser_feed(neap_chat_parser *p, int32_t token) {
    const char *bytes;
    size_t n;
    int special;
    NEAP_CHECK(p, NEAP_INVALID_ARGUMENT, "neap_chat_parser_feed: the parser is NULL");
    NEAP_TRY(neap_token_bytes(p->t, token, &bytes, &n, &special));
    if (p->head == p->n_queued) { /* all were taken: their memory is used again */
        p->head = p->n_queued = 0;
        p->text.n = 0;
    }
    if (p->ended) return NEAP_OK;
    if (!special) {
        NEAP_TRY(neap_parse_whole(p, bytes, n));
        return on_text(p);
    }
    NEAP_TRY(neap_parse_flush(p));
    NEAP_TRY(on_text(p));
    return on_special(p, token);
}

neap_status neap_chat_parser_finish(neap_chat_parser *p) {
    NEAP_CHECK(p, NEAP_INVALID_ARGUMENT, "neap_chat_parser_finish: the parser is NULL");
    if (p->ended) return NEAP_OK;
    NEAP_TRY(neap_parse_flush(p));
    NEAP_TRY(on_text(p));
    return p->t->chat == NEAP_CHAT_MARKERS ? neap_markers_finish(p) : NEAP_OK;
}

neap_status neap_chat_parser_next(neap_chat_parser *p, neap_chat_delta *out) {
    NEAP_CHECK(p && out, NEAP_INVALID_ARGUMENT, "neap_chat_parser_next: a required argument is NULL");
    *out = (neap_chat_delta){0};
    if (p->head == p->n_queued) return NEAP_AGAIN;
    const neap_queued *q = &p->queue[p->head++];
    out->kind = q->kind;
    out->index = q->index;
    out->text = p->text.p + q->at;
    out->text_bytes = q->bytes;
    if (q->kind == NEAP_CHAT_TOOL_CALL) {
        out->name = p->text.p + q->name;
        out->id = p->text.p + q->id;
    }
    return NEAP_OK;
}
