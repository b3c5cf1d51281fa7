/* Stop strings in a text that comes piece by piece. */
#ifndef NEAP_APPS_STOP_STRINGS_H
#define NEAP_APPS_STOP_STRINGS_H

#include <stddef.h>

/* How many of the n bytes may go out: up to the first stop string, which *found then points to (the string of the list;
 * NULL: none); else all but an end that may be the beginning of one. */
size_t neap_cli_stop_scan(const char *text, size_t n, const char *const *stops, size_t n_stops, const char **found);

#endif
