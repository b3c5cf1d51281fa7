/* A stop string may be cut anywhere by the tokens that make it, so an end that begins like one is held back. Lists are
 * short and bounded (a request's limits), so each is looked for by itself. Used by `neap chat` and the server for the
 * content of a chat; plain text has the engine's own. Owns nothing. */
#include "stop_strings.h"

#include <string.h>

size_t neap_cli_stop_scan(const char *text, size_t n, const char *const *stops, size_t n_stops, const char **found) {
    size_t first = n, keep = 0;
    *found = NULL;
    for (size_t i = 0; i < n_stops; i++) {
        size_t length = strlen(stops[i]);
        const char *hit = length > 0 ? memmem(text, n, stops[i], length) : NULL;
        if (hit != NULL && (size_t)(hit - text) < first) {
            first = (size_t)(hit - text);
            *found = stops[i];
        }
        for (size_t k = length > 0 ? length - 1 : 0; k > keep; k--) {
            if (k <= n && memcmp(text + n - k, stops[i], k) == 0) keep = k;
        }
    }
    return *found != NULL ? first : n - keep;
}
