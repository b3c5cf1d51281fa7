/* The messages of a chat, as the request that the library's chat encoder takes. */
#ifndef NEAP_APPS_CONVERSATION_H
#define NEAP_APPS_CONVERSATION_H

#include "buffer.h"

typedef struct neap_cli_message {
    char *role;            /* "system", "user", "assistant", "tool" */
    neap_cli_text content; /* for showing and searching */
    neap_cli_text json;    /* the whole message object, as it is sent */
} neap_cli_message;

typedef struct neap_cli_conversation {
    neap_cli_message *messages;
    size_t n, capacity;
    neap_cli_text tools; /* JSON array, empty = none */
    char *tool_choice;   /* NULL = not said */
    char *effort;        /* NULL = not said */
    int32_t thinking;    /* -1 = not said, else 0 or 1 */
} neap_cli_conversation;

void neap_cli_conversation_init(neap_cli_conversation *c);
void neap_cli_conversation_free(neap_cli_conversation *c);
void neap_cli_conversation_cut(neap_cli_conversation *c, size_t n); /* keeps the first n messages */
/* Sets, replaces or (text NULL or empty) removes the system message at the front. */
void neap_cli_conversation_system(neap_cli_conversation *c, const char *text);
void neap_cli_conversation_add(neap_cli_conversation *c, const char *role, const char *text, size_t n);
/* An assistant message; tool_calls: JSON array text or empty. */
void neap_cli_conversation_answer(neap_cli_conversation *c, const neap_cli_text *content,
                                  const neap_cli_text *reasoning, const neap_cli_text *tool_calls);
const char *neap_cli_conversation_system_text(const neap_cli_conversation *c); /* NULL: none */
/* Reads the tools file (a JSON array). Returns an exit code. */
int neap_cli_conversation_tools(neap_cli_conversation *c, const char *path);
/* The request object, appended to out. */
void neap_cli_conversation_request(const neap_cli_conversation *c, neap_cli_text *out);
/* Files: the request object, so that a saved chat is also a valid request. Return an exit code; load changes
 * nothing when it fails. */
int neap_cli_conversation_save(const neap_cli_conversation *c, const char *path);
int neap_cli_conversation_load(neap_cli_conversation *c, const char *path);

#endif
