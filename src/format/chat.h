/* Chat inside: the checked request, the list of segments, the two renderers. */
#ifndef NEAP_FORMAT_CHAT_H
#define NEAP_FORMAT_CHAT_H

#include "format/jtree.h"
#include "format/text_buffer.h"
#include "format/tokenizer_inner.h"

/* ---- request ---- */

typedef enum neap_chat_role { NEAP_ROLE_SYSTEM, NEAP_ROLE_USER, NEAP_ROLE_ASSISTANT, NEAP_ROLE_TOOL } neap_chat_role;
typedef enum neap_chat_choice { NEAP_CHOICE_AUTO, NEAP_CHOICE_NONE, NEAP_CHOICE_REQUIRED } neap_chat_choice;
typedef enum neap_chat_answer { NEAP_ANSWER_TEXT, NEAP_ANSWER_JSON_OBJECT, NEAP_ANSWER_JSON_SCHEMA } neap_chat_answer;

/* Borrowed from the request's tree; p NULL: absent. 0-terminated, without NUL inside. */
typedef struct neap_chat_string {
    const char *p;
    size_t n;
} neap_chat_string;

typedef struct neap_chat_call {
    neap_chat_string id, name;
    uint32_t arguments; /* node: string or object; NEAP_J_NONE: absent */
} neap_chat_call;

typedef struct neap_chat_message {
    neap_chat_role role;
    neap_chat_string name;
    uint32_t content;               /* node: string or array of text parts; NEAP_J_NONE: empty */
    uint32_t reasoning;             /* node: string or NEAP_J_NONE (assistant) */
    uint32_t tools;                 /* node: non-empty array or NEAP_J_NONE (system) */
    size_t calls, n_calls;          /* slice of the request's calls (assistant) */
    neap_chat_string call_id, tool; /* tool results: id of the call, name of the tool */
    size_t index;                   /* place in the request's messages, for errors */
} neap_chat_message;

typedef struct neap_chat_request {
    neap_jtree tree;
    neap_chat_message *messages;
    size_t n_messages;
    neap_chat_call *calls;
    size_t n_calls, calls_max;
    uint32_t *by_id;    /* [n_calls] the calls of each message in the order of their ids */
    uint32_t tools;     /* node: non-empty array or NEAP_J_NONE */
    bool tools_offered; /* here or in a system message, and not forbidden */
    bool thinking, generation_prompt;
    neap_chat_string effort; /* p NULL: not given */
    neap_chat_choice choice;
    neap_chat_string named; /* the function that must be called (choice is REQUIRED); p NULL: any */
    neap_chat_answer answer;
    uint32_t schema; /* node */
} neap_chat_request;

/* r must be zeroed; json stays borrowed. Errors name message and field. */
NEAP_MUST_CHECK neap_status neap_chat_request_read(neap_chat_request *r, const char *json, size_t n);
/* The name of a tool as it stands in a request's tools, or p NULL. */
neap_chat_string neap_chat_tool_name(const neap_jtree *tree, uint32_t tool);
void neap_chat_request_free(neap_chat_request *r);

/* ---- segments ---- */

typedef struct neap_segment {
    size_t at, bytes; /* in the text */
    bool special;     /* a control token; else ordinary text, encoded alone */
} neap_segment;

typedef struct neap_segments {
    neap_text text;
    neap_segment *list;
    size_t n, capacity;
    bool joins;    /* ordinary neighbours become one segment */
    size_t *marks; /* ascending counts of segments: where messages end */
    size_t n_marks, marks_max;
} neap_segments;

NEAP_MUST_CHECK neap_status neap_segment_special(neap_segments *s, const char *spelling);
NEAP_MUST_CHECK neap_status neap_segment_text(neap_segments *s, const char *p, size_t n); /* empty: nothing */
NEAP_MUST_CHECK neap_status neap_segment_str(neap_segments *s, const char *p);
/* Content: the string, or every text part as its own segment. */
NEAP_MUST_CHECK neap_status neap_segment_content(neap_segments *s, const neap_chat_request *r, uint32_t node);
/* A message ends here. */
NEAP_MUST_CHECK neap_status neap_segment_mark(neap_segments *s);
void neap_segments_free(neap_segments *s);

/* ---- renderers ---- */

/* Both may reorder members inside the request's tree. */
NEAP_MUST_CHECK neap_status neap_chat_render_xtml(neap_segments *out, neap_chat_request *r,
                                                  const neap_chat_texts *texts);
NEAP_MUST_CHECK neap_status neap_chat_render_markers(neap_segments *out, neap_chat_request *r);
/* In the markers' format: the number of the next call of the conversation. */
int64_t neap_chat_next_number(const neap_chat_request *r);

/* The call of an assistant message (NULL: none) that has this id: its place there, the first of equal ones, or -1. */
int64_t neap_chat_find_call(const neap_chat_request *r, const neap_chat_message *assistant, neap_chat_string id);

/* White space as Python's str.strip sees it: true when the text has nothing else. */
bool neap_chat_is_blank(const char *p, size_t n);

#endif
