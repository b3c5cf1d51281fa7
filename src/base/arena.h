/* Memory by lifetime. malloc and mmap are called here and nowhere else.
 *
 * An arena only grows and is freed as a whole: model, engine and sequence lifetimes have one each. Blocks
 * are 64-byte aligned and zeroed. neap_mem_* is for what really grows and shrinks (parsers, queues). Both
 * count, so that a test can demand zero allocations per decode step, and can make the k-th one fail. */
#ifndef NEAP_BASE_ARENA_H
#define NEAP_BASE_ARENA_H

#include <stdbool.h>

#include "base/status.h"

typedef struct neap_arena neap_arena;

NEAP_MUST_CHECK neap_status neap_arena_create(neap_arena **out, const char *name);
void neap_arena_destroy(neap_arena *a);
/* *out: `bytes` zeroed bytes, 64-byte aligned. bytes 0 gives a valid pointer. Large blocks (>= 4 MiB) are
 * their own mapping with huge pages advised. */
NEAP_MUST_CHECK neap_status neap_arena_alloc(neap_arena *a, size_t bytes, void **out);
/* The same, but its bytes have no meaning before they are written: pools and work regions. (They are zero unless
 * a test poisons them.) */
NEAP_MUST_CHECK neap_status neap_arena_alloc_raw(neap_arena *a, size_t bytes, void **out);
/* n * size with overflow check. */
NEAP_MUST_CHECK neap_status neap_arena_array(neap_arena *a, size_t n, size_t size, void **out);
NEAP_MUST_CHECK neap_status neap_arena_strdup(neap_arena *a, const char *s, const char **out);
uint64_t neap_arena_bytes(const neap_arena *a);
/* Has the kernel back all of it now, instead of page by page when it is first written. What it holds stays. */
NEAP_MUST_CHECK neap_status neap_arena_populate(neap_arena *a);

NEAP_MUST_CHECK neap_status neap_mem_alloc(size_t bytes, void **out);                /* zeroed */
NEAP_MUST_CHECK neap_status neap_mem_grow(void **p, size_t old_bytes, size_t bytes); /* new part zeroed */
void neap_mem_free(void *p);

/* Checked arithmetic for sizes from outside: false on overflow. */
static inline bool neap_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool neap_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

/* For tests: calls so far in this process (both kinds), and "fail call number k from now" (0 = never). */
uint64_t neap_alloc_calls(void);
void neap_alloc_fail_at(uint64_t k);
/* For tests: from now on raw blocks, and what caches hand out again, are filled with this byte; -1 = off. */
void neap_memory_poison(int byte);
int neap_memory_poison_byte(void);

/* Bytes that this process may still claim: MemAvailable, limited by the cgroup (v1 and v2). */
uint64_t neap_memory_available(void);

#endif
