/* From token bytes to the text of events: whole UTF-8 characters, stop strings found and held back. */
#ifndef NEAP_ENGINE_TEXT_H
#define NEAP_ENGINE_TEXT_H

#include <stdbool.h>

#include "base/arena.h"
#include "format/tokenizer.h"

#define NEAP_STOPS_MAX 16
#define NEAP_STOP_BYTES_MAX 1024

/* One stop string and how much of it the text so far ends with (Knuth, Morris, Pratt). */
typedef struct neap_stop {
    const char *bytes;
    int32_t n_bytes;
    int32_t n_matched;
    const int16_t *borders; /* [n_bytes] longest proper border of bytes[0 .. i] */
} neap_stop;

typedef struct neap_text {
    neap_utf8 utf8;
    neap_stop *stops;
    int32_t n_stops;
    bool is_stopped;
    char *pending;     /* text that is complete but not given away, at the front the held-back part */
    size_t n_pending;  /* bytes */
    size_t n_released; /* of pending, given away by the last call */
    size_t pending_bytes;
} neap_text;

/* The most text that one push or flush can release, given the longest token and stop string. */
size_t neap_text_room(size_t token_bytes_max, size_t stop_bytes_max);
/* Copies the stop strings. token_bytes_max: the longest push. */
NEAP_MUST_CHECK neap_status neap_text_init(neap_text *t, neap_arena *arena, const char *const *stops, size_t n_stops,
                                           size_t token_bytes_max);
/* Adds the bytes of one token. *out: text that became certain, borrowed until the next call. Returns true when
 * a stop string is complete: *out ends before it, and nothing follows any more. */
bool neap_text_push(neap_text *t, const char *bytes, size_t n, const char **out, size_t *n_out);
/* No more tokens: the incomplete character and what was held back for stop strings. */
bool neap_text_flush(neap_text *t, const char **out, size_t *n_out);

#endif
