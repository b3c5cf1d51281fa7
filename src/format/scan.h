/* A JSON scanner that pulls one token after another, for texts too large for a tree: safetensors headers and
 * shard indexes. Strict UTF-8, strict grammar, no recursion. Strings without escapes are borrowed from the text;
 * the others are decoded into one side buffer that is never longer than the text. */
#ifndef NEAP_FORMAT_SCAN_H
#define NEAP_FORMAT_SCAN_H

#include <stdbool.h>

#include "base/status.h"
#include "format/names.h"

typedef struct neap_text {
    const char *p; /* not 0-terminated; may contain NUL */
    size_t n;
} neap_text;

typedef struct neap_scan {
    const char *text; /* borrowed */
    size_t n, at;
    char *side; /* [n] once the first escaped string was met */
    size_t n_side;
    const char *what; /* "header", "index": for messages */
} neap_scan;

enum { NEAP_SCAN_DEPTH = 64 };

void neap_scan_start(neap_scan *s, const char *text, size_t n, const char *what);
void neap_scan_end(neap_scan *s); /* strings given out become invalid */

/* Skips white space; the next byte, or -1 at the end of the text. */
int neap_scan_peek(neap_scan *s);
NEAP_MUST_CHECK neap_status neap_scan_expect(neap_scan *s, char c);
/* Call after the opening bracket and after each member: *more = false once `close` was consumed. */
NEAP_MUST_CHECK neap_status neap_scan_next(neap_scan *s, char close, bool *first, bool *more);
NEAP_MUST_CHECK neap_status neap_scan_string(neap_scan *s, neap_text *out);
/* A string and the colon after it. */
NEAP_MUST_CHECK neap_status neap_scan_key(neap_scan *s, neap_text *out);
/* The text of a number in JSON's grammar. */
NEAP_MUST_CHECK neap_status neap_scan_number(neap_scan *s, neap_text *out);
/* 0 | [1-9][0-9]*, below 2^64; anything else is an error. */
NEAP_MUST_CHECK neap_status neap_scan_u64(neap_scan *s, uint64_t *out);
/* Any value, at most NEAP_SCAN_DEPTH deep. Keys go into `keys` (a scope per object) to find duplicates. */
NEAP_MUST_CHECK neap_status neap_scan_skip(neap_scan *s, neap_names *keys, uint32_t *scope);
/* "header, byte 12: text" */
NEAP_MUST_CHECK neap_status neap_scan_fail(const neap_scan *s, size_t at, const char *text);

bool neap_text_is(neap_text t, const char *word);
/* For "%.*s": the first bytes of a name that a message can hold. */
int neap_text_shown(neap_text t);
/* The number as u64 when the text is plain digits that fit. */
bool neap_text_u64(neap_text t, uint64_t *out);

#endif
