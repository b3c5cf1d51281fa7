/* Memory and growing byte strings for the program. Running out of memory ends the program with exit code 4:
 * the program has nothing better to do, the library never does this. */
#ifndef NEAP_APPS_BUFFER_H
#define NEAP_APPS_BUFFER_H

#include <stddef.h>
#include <stdint.h>

void *neap_cli_alloc(size_t n, size_t size);         /* zeroed, n * size checked; never NULL */
void *neap_cli_grow(void *p, size_t n, size_t size); /* realloc, new part not zeroed; never NULL */
char *neap_cli_copy(const char *s);

typedef struct neap_cli_text {
    char *data; /* 0-terminated once anything was added; may be NULL before */
    size_t n, capacity;
} neap_cli_text;

void neap_cli_text_add(neap_cli_text *t, const char *bytes, size_t n);
void neap_cli_text_puts(neap_cli_text *t, const char *s);
void neap_cli_text_printf(neap_cli_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void neap_cli_text_cut(neap_cli_text *t, size_t n); /* keeps the first n bytes */
void neap_cli_text_free(neap_cli_text *t);
const char *neap_cli_text_string(const neap_cli_text *t); /* "" when empty */

/* Bytes of the valid UTF-8 character at s (n > 0 bytes left); 0: invalid, *bad is the maximal invalid part. */
size_t neap_cli_utf8_length(const char *s, size_t n, size_t *bad);

/* "3.0 GiB", "612 bytes"; "2.5 billion". Returns text. */
const char *neap_cli_bytes(uint64_t n, char *text, size_t capacity);
const char *neap_cli_count(uint64_t n, char *text, size_t capacity);

/* Appends a whole file ("-" = standard input) of at most limit bytes. Prints one line and returns an exit code
 * when it fails, else 0. */
int neap_cli_read_file(neap_cli_text *t, const char *path, size_t limit);

/* Before a long computation: can a file of that name be made? Prints one line and returns an exit code when its
 * directory does not exist or may not be written, or when something else has the name; else 0. */
int neap_cli_check_output(const char *path);
/* The same for a file that is written in place, where an existing one must be writable too. */
int neap_cli_check_overwrite(const char *path);

/* Writes a whole file. Prints one line and returns an exit code when it fails, else 0. */
int neap_cli_write_file(const char *path, const char *bytes, size_t n);

enum { NEAP_CLI_TEXT_MAX = 64 << 20 }; /* bytes of a prompt or document file */

#endif
