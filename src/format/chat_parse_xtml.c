/* The answer of Kimi K3.
 *
 *   reasoning close(think) open(response) text close(response)
 *   [ open(tools)
 *     { open(call tool= index=) { open(argument key= type=) value close(argument) } close(call) }
 *     close(tools) ]
 *   close(message) <|end_of_msg|>
 *
 * The prompt has opened the first channel already (think, or response with thinking off). A missing closing tag is
 * implied by the next opening one. Text outside the channels, unknown tags and a tag that never ends are dropped.
 *
 * Arguments become one JSON object. Strings are raw text in the answer, so they are escaped and leave as they
 * come; other values are held until they end and are taken as they are when they are JSON, else as a string. A json
 * block is the object's text itself. A call without arguments gives {}.
 *
 * Called by chat_parse.c. Source: tokenizer and chat notes, section 5 (model output). */
#include "format/chat_parse.h"
#include "format/jtree.h"
#include "format/utf8.h"

static int32_t special_id(const neap_tokenizer *t, const char *spelling) {
    int32_t slot = neap_special_find(t, spelling, strlen(spelling));
    return slot < 0 ? -1 : t->vocab.n + slot;
}

void neap_xtml_init(neap_chat_parser *p, bool thinking, bool generation_prompt) {
    p->x.open = special_id(p->t, "<|open|>");
    p->x.close = special_id(p->t, "<|close|>");
    p->x.sep = special_id(p->t, "<|sep|>");
    p->x.end = special_id(p->t, "<|end_of_msg|>");
    p->channel = !generation_prompt ? NEAP_IN_NOTHING : thinking ? NEAP_IN_REASONING : NEAP_IN_CONTENT;
}

/* ------------------------------------------------------------- arguments --------------------- */

/* {"key":  or  ,"key": */
static neap_status member(neap_chat_parser *p, const char *key, size_t n) {
    p->scratch.n = 0;
    NEAP_TRY(neap_text_str(&p->scratch, p->x.has_members ? ",\"" : "{\""));
    NEAP_TRY(neap_json_escape(key, n, &p->scratch));
    NEAP_TRY(neap_text_str(&p->scratch, "\":"));
    p->x.has_members = true;
    return neap_parse_arguments(p, p->scratch.p, p->scratch.n);
}

/* Can the text stand in JSON as it is? Equal keys do no harm; NaN and Infinity do. */
static bool is_json(const char *s, size_t n) {
    neap_jtree t = {0};
    if (neap_jtree_parse(&t, s, n, NEAP_J_PYTHON) != NEAP_OK) return false;
    bool good = true;
    for (uint32_t i = NEAP_J_ROOT; i < t.n_nodes; i++) {
        const neap_jnode *v = &t.nodes[i];
        if (v->kind == NEAP_J_NUMBER) good = good && s[v->at + v->bytes - 1] >= '0' && s[v->at + v->bytes - 1] <= '9';
    }
    neap_jtree_free(&t);
    return good;
}

static neap_status held_value(neap_chat_parser *p) {
    const char *s = p->x.value.p;
    size_t n = p->x.value.n;
    while (n > 0 && strchr(" \t\r\n", s[n - 1]) && s[n - 1]) n--;
    while (n > 0 && strchr(" \t\r\n", s[0]) && s[0]) s++, n--;
    NEAP_TRY(member(p, p->x.key.p, p->x.key.n));
    if (is_json(s, n)) return neap_parse_arguments(p, s, n);
    p->scratch.n = 0;
    NEAP_TRY(neap_text_str(&p->scratch, "\""));
    NEAP_TRY(neap_json_escape(p->x.value.p, p->x.value.n, &p->scratch));
    NEAP_TRY(neap_text_str(&p->scratch, "\""));
    return neap_parse_arguments(p, p->scratch.p, p->scratch.n);
}

static neap_status end_argument(neap_chat_parser *p) {
    if (p->channel == NEAP_IN_JSON) p->channel = NEAP_IN_CALL;
    if (p->channel != NEAP_IN_ARGUMENT) return NEAP_OK;
    p->channel = NEAP_IN_CALL;
    return p->x.is_string ? neap_parse_arguments(p, "\"", 1) : held_value(p);
}

static neap_status end_call(neap_chat_parser *p) {
    if (!p->call_open) return NEAP_OK;
    NEAP_TRY(end_argument(p));
    if (p->x.has_members)
        NEAP_TRY(neap_parse_arguments(p, "}", 1));
    else if (!p->x.is_raw)
        NEAP_TRY(neap_parse_arguments(p, "{}", 2));
    p->call_open = false;
    p->channel = NEAP_IN_TOOLS;
    return NEAP_OK;
}

/* ------------------------------------------------------------- tags -------------------------- */

static bool is(const char *name, size_t n, const char *want) { return n == strlen(want) && memcmp(name, want, n) == 0; }

/* The value of an attribute (key="value"), unescaped into out; false when absent. */
static neap_status attribute(const neap_text *tag, const char *key, neap_text *out, bool *found) {
    const char *p = tag->p, *end = tag->p + tag->n;
    size_t n_key = strlen(key);
    out->n = 0;
    *found = false;
    while (p < end && *p != ' ') p++; /* the tag's name */
    while (p < end) {
        while (p < end && *p == ' ') p++;
        const char *name = p;
        while (p < end && *p != '=' && *p != ' ') p++;
        size_t n_name = (size_t)(p - name);
        if (end - p < 2 || p[0] != '=' || p[1] != '"') { /* not key="value": go on behind it */
            while (p < end && *p != ' ') p++;
            continue;
        }
        const char *value = p + 2;
        p = memchr(value, '"', (size_t)(end - value));
        if (p == NULL) p = end;
        if (n_name == n_key && memcmp(name, key, n_key) == 0) {
            *found = true;
            for (const char *v = value; v < p;) {
                if (p - v >= 6 && memcmp(v, "&quot;", 6) == 0) {
                    NEAP_TRY(neap_text_add(out, "\"", 1));
                    v += 6;
                } else if (p - v >= 5 && memcmp(v, "&amp;", 5) == 0) {
                    NEAP_TRY(neap_text_add(out, "&", 1));
                    v += 5;
                } else {
                    NEAP_TRY(neap_text_add(out, v++, 1));
                }
            }
            return NEAP_OK;
        }
        if (p < end) p++;
    }
    return NEAP_OK;
}

static neap_status open_call(neap_chat_parser *p) {
    bool found;
    NEAP_TRY(end_call(p));
    NEAP_TRY(attribute(&p->held, "tool", &p->scratch, &found));
    p->x.has_members = p->x.is_raw = false;
    p->channel = NEAP_IN_CALL;
    return neap_parse_call(p, p->scratch.p, p->scratch.n, NULL, 0);
}

static neap_status open_argument(neap_chat_parser *p) {
    bool found;
    if (!p->call_open) return NEAP_OK;
    NEAP_TRY(end_argument(p));
    if (p->x.is_raw) return NEAP_OK; /* a json block was the whole already */
    NEAP_TRY(attribute(&p->held, "type", &p->scratch, &found));
    static const char *const literal[] = {"number", "boolean", "null", "object", "array"};
    p->x.is_string = true; /* no type, or one that neap does not know */
    for (size_t i = 0; i < 5; i++)
        if (is(p->scratch.p, p->scratch.n, literal[i])) p->x.is_string = false;
    NEAP_TRY(attribute(&p->held, "key", &p->x.key, &found));
    p->x.value.n = 0;
    p->channel = NEAP_IN_ARGUMENT;
    if (!p->x.is_string) return NEAP_OK;
    NEAP_TRY(member(p, p->x.key.p, p->x.key.n));
    return neap_parse_arguments(p, "\"", 1);
}

static neap_status open_json(neap_chat_parser *p) {
    if (!p->call_open) return NEAP_OK;
    NEAP_TRY(end_argument(p));
    if (!p->x.has_members && !p->x.is_raw) p->channel = NEAP_IN_JSON;
    return NEAP_OK;
}

static neap_status opened(neap_chat_parser *p, const char *name, size_t n) {
    if (is(name, n, "call")) return open_call(p);
    if (is(name, n, "argument")) return open_argument(p);
    if (is(name, n, "json")) return open_json(p);
    neap_channel channel;
    if (is(name, n, "think"))
        channel = NEAP_IN_REASONING;
    else if (is(name, n, "response"))
        channel = NEAP_IN_CONTENT;
    else if (is(name, n, "tools"))
        channel = NEAP_IN_TOOLS;
    else if (is(name, n, "message"))
        channel = NEAP_IN_NOTHING;
    else
        return NEAP_OK;
    NEAP_TRY(end_call(p));
    p->channel = channel;
    return NEAP_OK;
}

static neap_status closed(neap_chat_parser *p, const char *name, size_t n) {
    if (is(name, n, "argument") || is(name, n, "json")) return end_argument(p);
    if (is(name, n, "call")) return end_call(p);
    bool leaves = (is(name, n, "think") && p->channel == NEAP_IN_REASONING) ||
                  (is(name, n, "response") && p->channel == NEAP_IN_CONTENT);
    if (is(name, n, "tools") || is(name, n, "message")) {
        NEAP_TRY(end_call(p));
        leaves = true;
    }
    if (leaves) p->channel = NEAP_IN_NOTHING;
    return is(name, n, "message") ? neap_parse_end(p) : NEAP_OK;
}

/* <|sep|>: the tag is complete. */
static neap_status apply_tag(neap_chat_parser *p) {
    bool opens = p->x.tag_mode == NEAP_TAG_OPENS;
    size_t n = 0;
    if (p->x.tag_mode == NEAP_TAG_NONE) return NEAP_OK;
    p->x.tag_mode = NEAP_TAG_NONE;
    neap_text tag = p->held;
    while (n < tag.n && tag.p[n] != ' ') n++;
    if (tag.n == 0 || tag.n > NEAP_CHAT_TAG_MAX) return NEAP_OK;
    return opens ? opened(p, tag.p, n) : closed(p, tag.p, n);
}

neap_status neap_xtml_special(neap_chat_parser *p, int32_t token) {
    if (token == p->x.open || token == p->x.close) {
        p->x.tag_mode = token == p->x.open ? NEAP_TAG_OPENS : NEAP_TAG_CLOSES;
        p->held.n = 0;
        return NEAP_OK;
    }
    if (token == p->x.sep) return apply_tag(p);
    if (token != p->x.end) return NEAP_OK;
    NEAP_TRY(end_call(p));
    return neap_parse_end(p);
}

/* ------------------------------------------------------------- text -------------------------- */

neap_status neap_xtml_text(neap_chat_parser *p) {
    const neap_text *s = &p->piece;
    if (p->x.tag_mode != NEAP_TAG_NONE)
        return p->held.n > NEAP_CHAT_TAG_MAX ? NEAP_OK : neap_text_add(&p->held, s->p, s->n);
    switch (p->channel) {
    case NEAP_IN_REASONING: return neap_parse_put(p, NEAP_CHAT_REASONING, s->p, s->n);
    case NEAP_IN_CONTENT: return neap_parse_put(p, NEAP_CHAT_CONTENT, s->p, s->n);
    case NEAP_IN_JSON: p->x.is_raw = true; return neap_parse_arguments(p, s->p, s->n);
    case NEAP_IN_ARGUMENT:
        if (!p->x.is_string) return neap_text_add(&p->x.value, s->p, s->n);
        p->scratch.n = 0;
        NEAP_TRY(neap_json_escape(s->p, s->n, &p->scratch));
        return neap_parse_arguments(p, p->scratch.p, p->scratch.n);
    case NEAP_IN_NOTHING:
    case NEAP_IN_TOOLS:
    case NEAP_IN_CALL: break;
    }
    return NEAP_OK;
}
