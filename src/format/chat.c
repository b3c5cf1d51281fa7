/* A conversation as prompt tokens: the list of segments and the public call.
 *
 *   request JSON -> checked request (chat_request.c) -> segments (chat_xtml.c or chat_markers.c) -> ids
 *
 * A segment is a control token, named by the renderer, or ordinary text, encoded alone with special tokens off.
 * There never is one flat string, so text in a message cannot turn into structure, whatever it spells and however
 * it is cut into parts.
 *
 * Called by the apps through neap.h. Source: tokenizer and chat notes, sections 4 and 5. */
#include "format/chat.h"

#include "format/utf8.h"

static neap_status append(neap_segments *s, const char *p, size_t n, bool special) {
    if (n == 0) return NEAP_OK;
    NEAP_TRY(neap_text_add(&s->text, p, n));
    if (s->joins && !special && s->n > 0 && !s->list[s->n - 1].special) {
        s->list[s->n - 1].bytes += n;
        return NEAP_OK;
    }
    if (s->n == s->capacity) {
        size_t grown = s->capacity ? s->capacity * 2 : 64;
        NEAP_TRY(neap_mem_grow((void **)&s->list, s->capacity * sizeof *s->list, grown * sizeof *s->list));
        s->capacity = grown;
    }
    s->list[s->n++] = (neap_segment){s->text.n - n, n, special};
    return NEAP_OK;
}

neap_status neap_segment_special(neap_segments *s, const char *spelling) {
    return append(s, spelling, strlen(spelling), true);
}

neap_status neap_segment_text(neap_segments *s, const char *p, size_t n) { return append(s, p, n, false); }

neap_status neap_segment_str(neap_segments *s, const char *p) { return append(s, p, strlen(p), false); }

neap_status neap_segment_content(neap_segments *s, const neap_chat_request *r, uint32_t node) {
    const char *p;
    size_t n;
    if (node == NEAP_J_NONE) return NEAP_OK;
    if (neap_jtree_kind(&r->tree, node) == NEAP_J_STRING) {
        p = neap_jtree_string(&r->tree, node, &n);
        return neap_segment_text(s, p, n);
    }
    for (uint32_t part = r->tree.nodes[node].first; part != NEAP_J_NONE; part = r->tree.nodes[part].next) {
        p = neap_jtree_string(&r->tree, neap_jtree_get(&r->tree, part, "text"), &n);
        NEAP_TRY(neap_segment_text(s, p, n));
    }
    return NEAP_OK;
}

neap_status neap_segment_mark(neap_segments *s) {
    if (s->n_marks == s->marks_max) {
        size_t grown = s->marks_max ? s->marks_max * 2 : 16;
        NEAP_TRY(neap_mem_grow((void **)&s->marks, s->marks_max * sizeof *s->marks, grown * sizeof *s->marks));
        s->marks_max = grown;
    }
    s->marks[s->n_marks++] = s->n;
    return NEAP_OK;
}

void neap_segments_free(neap_segments *s) {
    neap_text_free(&s->text);
    neap_mem_free(s->list);
    neap_mem_free(s->marks);
    *s = (neap_segments){0};
}

bool neap_chat_is_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t bytes;
        if (!neap_is_space(neap_utf8_decode(p + i, &bytes))) return false;
        i += bytes;
    }
    return true;
}

/* marks, counted in segments, become counts of tokens. */
static neap_status encode_segments(const neap_tokenizer *t, neap_segments *s, neap_token_sink *out) {
    neap_encoder e;
    neap_status status = NEAP_OK;
    size_t mark = 0;
    NEAP_TRY(neap_encoder_init(&e, t));
    for (size_t i = 0; i <= s->n && status == NEAP_OK; i++) {
        while (mark < s->n_marks && s->marks[mark] == i) s->marks[mark++] = out->n;
        if (i == s->n) break;
        const char *p = s->text.p + s->list[i].at;
        if (!s->list[i].special) {
            status = neap_encode_text(&e, p, s->list[i].bytes, 0, out);
            continue;
        }
        int32_t slot = neap_special_find(t, p, s->list[i].bytes);
        if (slot < 0)
            status =
                neap_fail(NEAP_UNSUPPORTED, "the tokenizer has no special token %.*s, which this conversation needs",
                          (int)s->list[i].bytes, p);
        else
            neap_token_put(out, t->vocab.n + slot);
    }
    neap_encoder_free(&e);
    return status;
}

neap_status neap_chat_encode_marked(const neap_tokenizer *t, const char *json, size_t json_bytes, int32_t *tokens,
                                    size_t capacity, size_t *n_tokens, int32_t *marks, size_t marks_capacity,
                                    size_t *n_marks) {
    NEAP_CHECK(t && json && n_tokens && n_marks && (tokens || capacity == 0) && (marks || marks_capacity == 0),
               NEAP_INVALID_ARGUMENT, "neap_chat_encode: a required argument is NULL");
    NEAP_CHECK(t->chat != NEAP_CHAT_NONE, NEAP_UNSUPPORTED,
               "this tokenizer has the special tokens of no known chat format; use plain text");
    neap_chat_request request = {0};
    neap_segments segments = {.joins = t->chat == NEAP_CHAT_MARKERS};
    neap_token_sink out = {.tokens = tokens, .capacity = capacity};
    *n_tokens = *n_marks = 0;
    neap_status status = neap_chat_request_read(&request, json, json_bytes);
    if (status == NEAP_OK)
        status = t->chat == NEAP_CHAT_XTML ? neap_chat_render_xtml(&segments, &request, &t->texts)
                                           : neap_chat_render_markers(&segments, &request);
    if (status == NEAP_OK) status = encode_segments(t, &segments, &out);
    if (status == NEAP_OK && out.n > INT32_MAX)
        status = neap_fail(NEAP_LIMIT, "a conversation of %zu tokens is longer than %d", out.n, INT32_MAX);
    size_t found = segments.n_marks;
    for (size_t i = 0; status == NEAP_OK && i < found && i < marks_capacity; i++) marks[i] = (int32_t)segments.marks[i];
    neap_segments_free(&segments);
    neap_chat_request_free(&request);
    NEAP_TRY(status);
    *n_tokens = out.n;
    *n_marks = found;
    NEAP_CHECK(out.n <= capacity, NEAP_TOO_SMALL, "neap_chat_encode: %zu tokens do not fit %zu", out.n, capacity);
    NEAP_CHECK(found <= marks_capacity, NEAP_TOO_SMALL, "neap_chat_encode: %zu marks do not fit %zu", found,
               marks_capacity);
    return NEAP_OK;
}

neap_status neap_chat_encode(const neap_tokenizer *t, const char *json, size_t json_bytes, int32_t *tokens,
                             size_t capacity, size_t *n_tokens) {
    size_t n_marks = 0;
    neap_status status = neap_chat_encode_marked(t, json, json_bytes, tokens, capacity, n_tokens, NULL, 0, &n_marks);
    /* Marks that nobody wants are no failure. */
    return status == NEAP_TOO_SMALL && *n_tokens <= capacity ? NEAP_OK : status;
}
