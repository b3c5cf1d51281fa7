/* Text of a running answer: tokens are pieces of bytes, readers want characters, and stop strings must never
 * be seen.
 *
 * Bytes pass the UTF-8 hold-back first, so that text is always valid UTF-8. Each stop string then follows the
 * text with its own Knuth-Morris-Pratt automaton, whose state is the length of the longest end of the text
 * that begins the stop string. The largest state of all is exactly what has to be held back: nothing shorter
 * is safe, nothing longer is needed. A stop string that is complete ends the text before its first byte.
 *
 * Which one wins: the one that is complete first; of several that end at the same byte, the longest. This
 * depends on the text alone, not on where token borders are.
 *
 * Called by sequence.c. Buffers come from the sequence's arena; nothing is allocated while text flows. */
#include "engine/text.h"

#include <assert.h>
#include <string.h>

/* U+FFFD takes three bytes where one invalid byte was; up to four bytes wait in the UTF-8 tail. */
static size_t expanded(size_t token_bytes_max) { return 3 * (token_bytes_max + 4); }

size_t neap_text_room(size_t token_bytes_max, size_t stop_bytes_max) {
    return expanded(token_bytes_max) + stop_bytes_max;
}

static void find_borders(const char *s, int32_t n, int16_t *borders) {
    borders[0] = 0;
    for (int32_t i = 1; i < n; i++) {
        int32_t k = borders[i - 1];
        while (k > 0 && s[k] != s[i]) k = borders[k - 1];
        borders[i] = (int16_t)(s[k] == s[i] ? k + 1 : 0);
    }
}

neap_status neap_text_init(neap_text *t, neap_arena *arena, const char *const *stops, size_t n_stops,
                           size_t token_bytes_max) {
    void *p = NULL;
    size_t longest = 0;
    *t = (neap_text){0};
    assert(n_stops <= NEAP_STOPS_MAX);
    NEAP_TRY(neap_arena_array(arena, n_stops, sizeof(neap_stop), &p));
    t->stops = p;
    t->n_stops = (int32_t)n_stops;
    for (int32_t i = 0; i < t->n_stops; i++) {
        neap_stop *s = &t->stops[i];
        const size_t n = strlen(stops[i]);
        assert(n >= 1 && n <= NEAP_STOP_BYTES_MAX);
        if (n > longest) longest = n;
        NEAP_TRY(neap_arena_strdup(arena, stops[i], &s->bytes));
        NEAP_TRY(neap_arena_array(arena, n, sizeof(int16_t), &p));
        find_borders(s->bytes, (int32_t)n, p);
        s->borders = p;
        s->n_bytes = (int32_t)n;
    }
    t->pending_bytes = neap_text_room(token_bytes_max, longest);
    NEAP_TRY(neap_arena_alloc(arena, t->pending_bytes, &p));
    t->pending = p;
    return NEAP_OK;
}

/* Follows the text by one byte. Returns the length of the longest stop string that is complete now, or 0. */
static int32_t follow(neap_text *t, char c) {
    int32_t complete = 0;
    for (int32_t i = 0; i < t->n_stops; i++) {
        neap_stop *s = &t->stops[i];
        int32_t k = s->n_matched;
        while (k > 0 && s->bytes[k] != c) k = s->borders[k - 1];
        if (s->bytes[k] == c) k++;
        s->n_matched = k;
        if (k == s->n_bytes && k > complete) complete = k;
    }
    return complete;
}

/* Runs the automata over pending[from ..]. Leaves in *keep how many bytes must stay back. */
static void scan(neap_text *t, size_t from, size_t *keep) {
    *keep = 0;
    for (size_t i = from; i < t->n_pending; i++) {
        const int32_t complete = follow(t, t->pending[i]);
        if (complete > 0) {
            t->n_pending = i + 1 - (size_t)complete;
            t->is_stopped = true;
            return;
        }
    }
    for (int32_t i = 0; i < t->n_stops; i++) {
        if ((size_t)t->stops[i].n_matched > *keep) *keep = (size_t)t->stops[i].n_matched;
    }
}

static void drop_released(neap_text *t) {
    t->n_pending -= t->n_released;
    memmove(t->pending, t->pending + t->n_released, t->n_pending);
    t->n_released = 0;
}

bool neap_text_push(neap_text *t, const char *bytes, size_t n, const char **out, size_t *n_out) {
    *out = "";
    *n_out = 0;
    if (t->is_stopped) return true;
    drop_released(t);
    const size_t from = t->n_pending;
    assert(from + expanded(n) <= t->pending_bytes);
    t->n_pending += neap_utf8_push(&t->utf8, bytes, n, t->pending + from);
    size_t keep;
    scan(t, from, &keep);
    t->n_released = t->n_pending - keep;
    *out = t->pending;
    *n_out = t->n_released;
    return t->is_stopped;
}

bool neap_text_flush(neap_text *t, const char **out, size_t *n_out) {
    *out = "";
    *n_out = 0;
    if (t->is_stopped) return true;
    drop_released(t);
    const size_t from = t->n_pending;
    t->n_pending += neap_utf8_flush(&t->utf8, t->pending + from);
    size_t keep;
    scan(t, from, &keep);
    t->n_released = t->n_pending;
    *out = t->pending;
    *n_out = t->n_released;
    return t->is_stopped;
}
