/* Letters, marks and numbers that are newer than the regular expression library's Unicode. */
#ifndef NEAP_FORMAT_UNICODE_NEW_H
#define NEAP_FORMAT_UNICODE_NEW_H

#include <stdbool.h>
#include <stddef.h>

/* text is valid UTF-8. */
bool neap_unicode_has_new(const char *text, size_t n);
/* Writes n bytes: the same text with old characters of the same kind and length in place of new ones. */
void neap_unicode_shadow(const char *text, size_t n, char *out);

#endif
