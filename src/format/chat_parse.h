/* Inside of the answer parsers: the queue of deltas and the state of both grammars. */
#ifndef NEAP_FORMAT_CHAT_PARSE_H
#define NEAP_FORMAT_CHAT_PARSE_H

#include "format/text_buffer.h"
#include "format/tokenizer_inner.h"

enum { NEAP_CHAT_TAG_MAX = 65536 }; /* bytes of a tag or a call id; a longer one is ignored */

typedef struct neap_queued {
    neap_chat_kind kind;
    int32_t index;
    size_t at, bytes; /* text of the delta, 0-terminated, in the parser's text */
    size_t name, id;  /* TOOL_CALL: 0-terminated, in the parser's text */
} neap_queued;

/* Where the text between two control tokens goes. */
typedef enum neap_channel {
    NEAP_IN_NOTHING, /* dropped */
    NEAP_IN_REASONING,
    NEAP_IN_CONTENT,
    NEAP_IN_TOOLS,    /* between calls: dropped */
    NEAP_IN_CALL,     /* xtml: between the arguments; markers: the id */
    NEAP_IN_ARGUMENT, /* xtml: one value; markers: the JSON text */
    NEAP_IN_JSON      /* xtml: a json block */
} neap_channel;

typedef struct neap_xtml_state {
    enum { NEAP_TAG_NONE, NEAP_TAG_OPENS, NEAP_TAG_CLOSES } tag_mode;
    int32_t open, close, sep, end; /* ids of the control tokens */
    bool is_string;                /* the open argument streams as a JSON string */
    bool has_members, is_raw;      /* form of the call's arguments so far */
    neap_text key, value;          /* of the argument; value: only when it is held until its end */
} neap_xtml_state;

typedef struct neap_marker_state {
    int32_t section_begin, section_end, call_begin, arguments_begin, call_end, think_begin, think_end; /* -1: absent */
    bool any_arguments;
} neap_marker_state;

struct neap_chat_parser {
    const neap_tokenizer *t;
    bool tools_offered, ended;
    neap_channel channel;
    bool call_open;    /* a call was reported and is not complete */
    bool call_ignored; /* it has no name: nothing of it is reported */
    int32_t n_calls;
    neap_utf8 hold;  /* incomplete character of the current channel */
    neap_text piece; /* work: text of one token */
    neap_text held;  /* tag or id that is still being collected */
    neap_text scratch;
    neap_xtml_state x;
    neap_marker_state m;
    neap_text text; /* of the queue */
    neap_queued *queue;
    size_t head, n_queued, capacity;
};

NEAP_MUST_CHECK neap_status neap_parse_put(neap_chat_parser *p, neap_chat_kind kind, const char *text, size_t n);
/* Begins a call; a name of no bytes makes the call ignored. id NULL: NAME:index. */
NEAP_MUST_CHECK neap_status neap_parse_call(neap_chat_parser *p, const char *name, size_t n_name, const char *id,
                                            size_t n_id);
NEAP_MUST_CHECK neap_status neap_parse_arguments(neap_chat_parser *p, const char *text,
                                                 size_t n);      /* of the open call */
NEAP_MUST_CHECK neap_status neap_parse_end(neap_chat_parser *p); /* the message is complete */
/* The whole characters of these bytes are left in p->piece; an incomplete tail waits in p->hold. */
NEAP_MUST_CHECK neap_status neap_parse_whole(neap_chat_parser *p, const char *bytes, size_t n);
NEAP_MUST_CHECK neap_status neap_parse_flush(neap_chat_parser *p); /* the tail, as U+FFFD, into p->piece */

/* The two grammars: a control token, whole text (p->piece) of the current channel, end of the input. */
void neap_xtml_init(neap_chat_parser *p, bool thinking, bool generation_prompt);
NEAP_MUST_CHECK neap_status neap_xtml_special(neap_chat_parser *p, int32_t token);
NEAP_MUST_CHECK neap_status neap_xtml_text(neap_chat_parser *p);
void neap_markers_init(neap_chat_parser *p);
NEAP_MUST_CHECK neap_status neap_markers_special(neap_chat_parser *p, int32_t token);
NEAP_MUST_CHECK neap_status neap_markers_text(neap_chat_parser *p);
NEAP_MUST_CHECK neap_status neap_markers_finish(neap_chat_parser *p);

#endif
