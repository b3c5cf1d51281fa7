/* A growing text. */
#ifndef NEAP_FORMAT_TEXT_BUFFER_H
#define NEAP_FORMAT_TEXT_BUFFER_H

#include <string.h>

#include "base/arena.h"
#include "base/status.h"

typedef struct neap_text {
    char *p;
    size_t n, capacity;
} neap_text;

static inline neap_status neap_text_reserve(neap_text *t, size_t more) {
    size_t need;
    NEAP_CHECK(neap_add_size(t->n, more, &need), NEAP_LIMIT, "a text is too long");
    if (need <= t->capacity) return NEAP_OK;
    size_t capacity = t->capacity < 128 ? 256 : t->capacity + t->capacity / 2;
    if (capacity < need) capacity = need;
    NEAP_TRY(neap_mem_grow((void **)&t->p, t->capacity, capacity));
    t->capacity = capacity;
    return NEAP_OK;
}

static inline neap_status neap_text_add(neap_text *t, const char *s, size_t n) {
    if (n == 0) return NEAP_OK;
    NEAP_TRY(neap_text_reserve(t, n));
    memcpy(t->p + t->n, s, n);
    t->n += n;
    return NEAP_OK;
}

static inline neap_status neap_text_str(neap_text *t, const char *s) { return neap_text_add(t, s, strlen(s)); }

static inline void neap_text_free(neap_text *t) {
    neap_mem_free(t->p);
    *t = (neap_text){0};
}

#endif
