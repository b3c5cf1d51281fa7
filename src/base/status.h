/* Errors inside the library: a status code plus one line of text per thread.
 *
 * NEAP_CHECK for facts from outside, NEAP_TRY to pass a failure on, NEAP_FAIL to report one. A broken
 * promise between our own functions is an assert, never a status. */
#ifndef NEAP_BASE_STATUS_H
#define NEAP_BASE_STATUS_H

#include "neap.h"

#define NEAP_MUST_CHECK __attribute__((warn_unused_result))

/* Stores the text for neap_last_error() and returns code. printf-like; control characters in arguments are
 * replaced by '?', the line is cut at 1 KiB. */
neap_status neap_fail(neap_status code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Puts "prefix: " in front of the stored text (to add the file's name once it is known). Returns code. */
neap_status neap_fail_prefix(neap_status code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Replaces control characters by '?', in place: text from files must not start a line or steer a terminal. */
void neap_make_printable(char *s);
/* "612 bytes", "3.5 MiB": sizes for messages; below 1 MiB every byte counts. Returns text. */
enum { NEAP_SIZE_TEXT = 32 };
const char *neap_size_text(uint64_t bytes, char text[NEAP_SIZE_TEXT]);
/* A worker thread's failure is carried to the thread that waits for it. */
void neap_error_copy(char *text, size_t capacity);

#define NEAP_FAIL(code, ...) return neap_fail((code), __VA_ARGS__)
#define NEAP_CHECK(cond, code, ...)                         \
    do {                                                    \
        if (!(cond)) return neap_fail((code), __VA_ARGS__); \
    } while (0)
#define NEAP_TRY(call)                                            \
    do {                                                          \
        neap_status neap_try_status_ = (call);                    \
        if (neap_try_status_ != NEAP_OK) return neap_try_status_; \
    } while (0)
/* The same with a clean-up label `fail:`; needs a variable `status` in scope. */
#define NEAP_TRY_GOTO(call)               \
    do {                                  \
        status = (call);                  \
        if (status != NEAP_OK) goto fail; \
    } while (0)
#define NEAP_FAIL_GOTO(code, ...)                \
    do {                                         \
        status = neap_fail((code), __VA_ARGS__); \
        goto fail;                               \
    } while (0)

#endif
