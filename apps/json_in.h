/* Reads JSON from files that the user names: a cursor over the text, errors with line and column. */
#ifndef NEAP_APPS_JSON_IN_H
#define NEAP_APPS_JSON_IN_H

#include "buffer.h"

typedef struct neap_cli_json {
    const char *what; /* file name for messages */
    const char *text; /* borrowed */
    size_t n, at;
    const char *field; /* what is being read, for messages; may be NULL */
    int has_failed;    /* one line was printed; every further call fails quietly */
} neap_cli_json;

/* All return 1 when it worked, 0 when not (a line was printed), unless the comment says otherwise. */
int neap_cli_json_fail(neap_cli_json *j, const char *problem);
char neap_cli_json_peek(neap_cli_json *j); /* next byte that is no white space, 0 at the end; not consumed */
/* Consumes c if it is next. Never prints. */
int neap_cli_json_accept(neap_cli_json *j, char c);
int neap_cli_json_expect(neap_cli_json *j, char c);
int neap_cli_json_read_string(neap_cli_json *j, neap_cli_text *out); /* decoded, appended */
int neap_cli_json_read_int(neap_cli_json *j, int64_t min, int64_t max, int64_t *out);
/* Any value, checked whole, depth at most 64; *begin .. at is its text. */
int neap_cli_json_skip(neap_cli_json *j, size_t *begin);
int neap_cli_json_at_end(neap_cli_json *j); /* prints when something follows */

/* A JSON array of token ids 0 .. INT32_MAX from a file ("-" = standard input). *ids is malloc memory.
 * Returns an exit code. */
int neap_cli_read_ids(const char *path, int32_t **ids, size_t *n);
/* Ids from an argument: a JSON array, or numbers separated by commas or spaces. Returns an exit code. */
int neap_cli_parse_ids(const char *what, const char *text, int32_t **ids, size_t *n);

#endif
