/* A hash table from names to numbers, for duplicate checks and look-ups over up to millions of names that come
 * from outside: the hash is keyed with random bits, so that nobody can prepare names that collide. */
#ifndef NEAP_FORMAT_NAMES_H
#define NEAP_FORMAT_NAMES_H

#include <stdbool.h>

#include "base/status.h"

typedef struct neap_names_slot {
    const char *p;  /* NULL: free */
    uint32_t n;     /* bytes of the name */
    uint32_t scope; /* names of different scopes are different */
    uint32_t hash;  /* spares most comparisons, and hashing again when the table grows */
    uint32_t value;
} neap_names_slot;

typedef struct neap_names {
    neap_names_slot *slots; /* [capacity], a power of two */
    size_t capacity, count;
    uint64_t key[2];
} neap_names;

enum { NEAP_NAMES_MAX = 1 << 21 };

void neap_names_init(neap_names *t); /* allocates nothing */
void neap_names_free(neap_names *t);
/* The bytes are borrowed and must not move. *old: NULL when the name is new, else the slot that has it (and
 * nothing was changed). More than NEAP_NAMES_MAX names: NEAP_BAD_FILE. */
NEAP_MUST_CHECK neap_status neap_names_add(neap_names *t, uint32_t scope, const char *p, size_t n, uint32_t value,
                                           const neap_names_slot **old);
/* NULL: absent. */
const neap_names_slot *neap_names_find(const neap_names *t, uint32_t scope, const char *p, size_t n);

#endif
