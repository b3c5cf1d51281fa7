/* The string literals of a Python source, without running it. */
#ifndef NEAP_FORMAT_PYSTRING_H
#define NEAP_FORMAT_PYSTRING_H

#include "base/status.h"

/* Stands in the text for a value that only running the program would give: a "{...}" field of an f-string,
 * or an expression added to a string. */
#define NEAP_PY_FIELD "\x01"

typedef neap_status (*neap_py_string_fn)(void *user, const char *text);

/* Calls fn with every literal; neighbouring literals (implicit joining, or joined by +) come as one text.
 * Skipped are statements that are only a literal (docstrings), texts that hold NUL or the byte of NEAP_PY_FIELD
 * themselves, bytes literals and literals with escapes unknown here. A source that ends inside a literal gives
 * what was found. */
NEAP_MUST_CHECK neap_status neap_py_strings(const char *source, size_t n, neap_py_string_fn fn, void *user);

#endif
