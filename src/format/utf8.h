/* UTF-8 from outside: validation, decoding, repair. Maximal invalid parts follow the Unicode advice (and
 * Python's errors="replace"): the longest prefix of a well-formed sequence is one part. */
#ifndef NEAP_FORMAT_UTF8_H
#define NEAP_FORMAT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length 1..4 of the well-formed character at p, or 0. */
size_t neap_utf8_char(const char *p, size_t n);
/* Bytes at p that begin a character but need more than n bytes (1..3), or 0. */
size_t neap_utf8_partial(const char *p, size_t n);
/* Offset of the first byte that is not part of a well-formed character; n when all is well. */
size_t neap_utf8_valid(const char *p, size_t n);
/* Decodes one character that is known to be well-formed. */
uint32_t neap_utf8_decode(const char *p, size_t *bytes);
/* Writes code point c (not checked: at most U+10FFFF); returns the bytes written, 1..4. */
size_t neap_utf8_encode(uint32_t c, char *out);
/* Copies with every maximal invalid part replaced by U+FFFD; out may be NULL to count. out holds 3 * n bytes. */
size_t neap_utf8_repair(const char *p, size_t n, char *out);
/* White space as Python's str.isspace sees it: White_Space and the four information separators. The chunk rule
 * of the public tokenizer and the chat prompts use it. */
bool neap_is_space(uint32_t c);

#endif
