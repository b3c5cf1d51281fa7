/* The answer of Kimi Linear and Kimi K2.
 *
 *   content [ section_begin { call_begin ID argument_begin JSON call_end } section_end ] <|im_end|>
 *
 * ID is functions.NAME:N; it is kept, and the name is the part between. Seen in the wild and understood: no
 * "functions.", no number, white space in the ID, several calls in one section, a call outside any section, a missing
 * argument_begin (the JSON starts at the first brace), calls inside thinking (they end it), a section marker without
 * its plural s, spelled as plain text. JSON leaves as it comes. Text between calls is dropped. The thinking channel
 * exists when the tokenizer has the special tokens <think> and </think>.
 *
 * Called by chat_parse.c. Source: tokenizer and chat notes, section 4; Kimi K2's guide to tool calls. */
#include "format/chat_parse.h"

static const char singular_begin[] = "<|tool_call_section_begin|>", singular_end[] = "<|tool_call_section_end|>";

static int32_t special_id(const neap_tokenizer *t, const char *spelling) {
    int32_t slot = neap_special_find(t, spelling, strlen(spelling));
    return slot < 0 ? -1 : t->vocab.n + slot;
}

void neap_markers_init(neap_chat_parser *p) {
    p->m.section_begin = special_id(p->t, "<|tool_calls_section_begin|>");
    p->m.section_end = special_id(p->t, "<|tool_calls_section_end|>");
    p->m.call_begin = special_id(p->t, "<|tool_call_begin|>");
    p->m.arguments_begin = special_id(p->t, "<|tool_call_argument_begin|>");
    p->m.call_end = special_id(p->t, "<|tool_call_end|>");
    p->m.think_begin = special_id(p->t, "<think>");
    p->m.think_end = special_id(p->t, "</think>");
    p->channel = NEAP_IN_CONTENT;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* ------------------------------------------------------------- content ----------------------- */

/* Content leaves at once, but for an end that may grow into the misspelled section marker: it waits in p->held. */
static neap_status content(neap_chat_parser *p, const char *s, size_t n) {
    size_t n_marker = sizeof singular_begin - 1, kept = 0;
    NEAP_TRY(neap_text_add(&p->held, s, n));
    size_t max = p->held.n < n_marker ? p->held.n : n_marker;
    for (kept = max; kept > 0; kept--)
        if (memcmp(p->held.p + p->held.n - kept, singular_begin, kept) == 0) break;
    size_t ready = p->held.n - kept;
    NEAP_TRY(neap_parse_put(p, NEAP_CHAT_CONTENT, p->held.p, ready));
    if (ready > 0 && kept > 0) memmove(p->held.p, p->held.p + ready, kept);
    p->held.n = kept;
    return NEAP_OK;
}

/* Content that waited was content after all, unless it is the whole marker and a call follows. */
static neap_status release(neap_chat_parser *p, bool call_follows) {
    size_t n_marker = sizeof singular_begin - 1;
    if (!call_follows || p->held.n != n_marker) NEAP_TRY(neap_parse_put(p, NEAP_CHAT_CONTENT, p->held.p, p->held.n));
    p->held.n = 0;
    return NEAP_OK;
}

/* Between calls only the misspelled end marker means something. */
static neap_status between_calls(neap_chat_parser *p, const char *s, size_t n) {
    size_t n_marker = sizeof singular_end - 1;
    NEAP_TRY(neap_text_add(&p->held, s, n));
    const char *at = memmem(p->held.p, p->held.n, singular_end, n_marker);
    if (at == NULL) {
        size_t kept = p->held.n < n_marker ? p->held.n : n_marker - 1;
        memmove(p->held.p, p->held.p + p->held.n - kept, kept);
        p->held.n = kept;
        return NEAP_OK;
    }
    size_t rest = p->held.n - (size_t)(at - p->held.p) - n_marker;
    p->scratch.n = 0;
    NEAP_TRY(neap_text_add(&p->scratch, at + n_marker, rest));
    p->held.n = 0;
    p->channel = NEAP_IN_CONTENT;
    return content(p, p->scratch.p, rest);
}

/* ------------------------------------------------------------- calls ------------------------- */

/* The call named by n bytes of p->held. */
static neap_status report_call(neap_chat_parser *p, size_t n) {
    static const char lead[] = "functions.";
    size_t w = 0, n_lead = sizeof lead - 1;
    for (size_t i = 0; i < n; i++) /* white space does not belong to an id */
        if (!is_space(p->held.p[i])) p->held.p[w++] = p->held.p[i];
    const char *name = p->held.p;
    size_t n_name = w;
    while (n_name > 0 && name[n_name - 1] >= '0' && name[n_name - 1] <= '9') n_name--;
    bool numbered = n_name > 0 && n_name < w && name[n_name - 1] == ':';
    n_name = numbered ? n_name - 1 : w;
    if (n_name >= n_lead && memcmp(name, lead, n_lead) == 0) {
        name += n_lead;
        n_name -= n_lead;
    }
    return neap_parse_call(p, name, n_name, numbered ? p->held.p : NULL, w);
}

static neap_status arguments(neap_chat_parser *p, const char *s, size_t n) {
    if (!p->m.any_arguments)
        while (n > 0 && is_space(*s)) s++, n--;
    if (n == 0) return NEAP_OK;
    p->m.any_arguments = true;
    return neap_parse_arguments(p, s, n);
}

/* The id is complete. */
static neap_status begin_arguments(neap_chat_parser *p) {
    if (p->channel != NEAP_IN_CALL) return NEAP_OK;
    size_t n = p->held.n > NEAP_CHAT_TAG_MAX ? 0 : p->held.n;
    NEAP_TRY(report_call(p, n));
    p->held.n = 0;
    p->m.any_arguments = false;
    p->channel = NEAP_IN_ARGUMENT;
    return NEAP_OK;
}

static neap_status end_call(neap_chat_parser *p, neap_channel next) {
    if (p->channel == NEAP_IN_CALL) { /* no argument_begin: the id ends at a brace */
        const char *brace = p->held.n > 0 ? memchr(p->held.p, '{', p->held.n) : NULL;
        size_t n_id = brace ? (size_t)(brace - p->held.p) : p->held.n;
        p->scratch.n = 0;
        if (brace) NEAP_TRY(neap_text_add(&p->scratch, brace, p->held.n - n_id));
        p->held.n = n_id;
        NEAP_TRY(begin_arguments(p));
        NEAP_TRY(arguments(p, p->scratch.p, p->scratch.n));
    }
    if (p->call_open && !p->m.any_arguments) NEAP_TRY(neap_parse_arguments(p, "{}", 2));
    if (p->channel == NEAP_IN_CONTENT) NEAP_TRY(release(p, next == NEAP_IN_TOOLS || next == NEAP_IN_CALL));
    p->call_open = false;
    p->held.n = 0;
    p->channel = next;
    return NEAP_OK;
}

neap_status neap_markers_special(neap_chat_parser *p, int32_t token) {
    const neap_marker_state *m = &p->m;
    if (token == m->section_begin) return end_call(p, NEAP_IN_TOOLS);
    if (token == m->call_begin) return end_call(p, NEAP_IN_CALL);
    if (token == m->arguments_begin) return begin_arguments(p);
    if (token == m->call_end)
        return p->channel == NEAP_IN_CALL || p->channel == NEAP_IN_ARGUMENT ? end_call(p, NEAP_IN_TOOLS) : NEAP_OK;
    if (token == m->section_end) return end_call(p, NEAP_IN_CONTENT);
    if (token == m->think_begin) return end_call(p, NEAP_IN_REASONING);
    if (token == m->think_end) return end_call(p, NEAP_IN_CONTENT);
    const char *spelling;
    size_t n;
    NEAP_TRY(neap_token_bytes(p->t, token, &spelling, &n, NULL));
    if (n < 5 || memcmp(spelling, "<|im_", 5) != 0) return NEAP_OK;
    NEAP_TRY(end_call(p, NEAP_IN_NOTHING)); /* <|im_end|>, or a new turn without it */
    return neap_parse_end(p);
}

neap_status neap_markers_text(neap_chat_parser *p) {
    const char *s = p->piece.p;
    size_t n = p->piece.n;
    switch (p->channel) {
    case NEAP_IN_REASONING: return neap_parse_put(p, NEAP_CHAT_REASONING, s, n);
    case NEAP_IN_CONTENT: return content(p, s, n);
    case NEAP_IN_TOOLS: return between_calls(p, s, n);
    case NEAP_IN_CALL: return p->held.n > NEAP_CHAT_TAG_MAX ? NEAP_OK : neap_text_add(&p->held, s, n);
    case NEAP_IN_ARGUMENT: return arguments(p, s, n);
    case NEAP_IN_NOTHING:
    case NEAP_IN_JSON: break;
    }
    return NEAP_OK;
}

/* Cut off at its limit: what waits as content is shown, an id without arguments is not a call yet. */
neap_status neap_markers_finish(neap_chat_parser *p) {
    return p->channel == NEAP_IN_CONTENT ? release(p, false) : NEAP_OK;
}
