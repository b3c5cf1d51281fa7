/* Arenas (one per lifetime) and counted allocations.
 *
 *   arena: | block | -> | block | -> ...     small requests are cut from 1 MiB blocks, one after the other;
 *                                            a request of 256 KiB or more gets a block of its own
 *
 * Blocks come from mmap: zeroed by the kernel, untouched pages cost nothing, and huge pages can be advised for
 * the big ones (weights, caches). Under AddressSanitizer each request is followed by a poisoned gap, so that a
 * kernel that reads past its buffer is caught even inside a block. */
#include "base/arena.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define NEAP_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NEAP_ASAN 1
#endif
#endif
#ifdef NEAP_ASAN
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
#else
enum { GAP = 0 };
#endif

enum { ALIGN = 64 };
static const size_t BLOCK_BYTES = (size_t)1 << 20;
static const size_t OWN_BLOCK_BYTES = (size_t)256 << 10;
static const size_t HUGE_BYTES = (size_t)4 << 20;
static const size_t HUGE_PAGE = (size_t)2 << 20;
static const size_t PAGE = 4096;

typedef struct block block;
struct block {
    block *next;
    char *data; /* a mapping of its own; the block header lies apart so that data stays page-aligned */
    size_t capacity, used;
};

struct neap_arena {
    const char *name;
    block *blocks; /* the first one is being filled */
    uint64_t bytes;
};

static _Atomic uint64_t alloc_calls;
static _Atomic uint64_t alloc_fail_at; /* 0 = never, 1 = the next call */
static _Atomic int poison_byte = -1;   /* of raw blocks; -1 = off */

uint64_t neap_alloc_calls(void) { return atomic_load_explicit(&alloc_calls, memory_order_relaxed); }
void neap_alloc_fail_at(uint64_t k) { atomic_store_explicit(&alloc_fail_at, k, memory_order_relaxed); }

void neap_memory_poison(int byte) { atomic_store_explicit(&poison_byte, byte, memory_order_relaxed); }
int neap_memory_poison_byte(void) { return atomic_load_explicit(&poison_byte, memory_order_relaxed); }

/* Counts one call; false when a test wants this one to fail. */
static bool may_allocate(void) {
    atomic_fetch_add_explicit(&alloc_calls, 1, memory_order_relaxed);
    uint64_t k = atomic_load_explicit(&alloc_fail_at, memory_order_relaxed);
    while (k > 0) {
        if (atomic_compare_exchange_weak_explicit(&alloc_fail_at, &k, k - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return k != 1;
    }
    return true;
}

neap_status neap_arena_create(neap_arena **out, const char *name) {
    *out = NULL;
    void *p;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_arena), &p));
    neap_arena *a = p;
    a->name = name;
    *out = a;
    return NEAP_OK;
}

void neap_arena_destroy(neap_arena *a) {
    if (!a) return;
    for (block *b = a->blocks; b;) {
        block *next = b->next;
#ifdef NEAP_ASAN
        ASAN_UNPOISON_MEMORY_REGION(b->data, b->capacity);
#endif
        munmap(b->data, b->capacity);
        free(b);
        b = next;
    }
    neap_mem_free(a);
}

/* A block with room for `bytes`; big ones start at a huge-page border. What lies before and behind is given back:
 * the kernel would fill a huge page that is half ours as a whole, beyond what was announced. */
static neap_status block_create(const neap_arena *a, size_t bytes, block **out) {
    bool is_huge = bytes >= HUGE_BYTES;
    size_t border = is_huge ? HUGE_PAGE : PAGE, total, map_bytes;
    NEAP_CHECK(neap_add_size(bytes, PAGE - 1, &total), NEAP_NO_MEMORY, "%s memory: size overflow", a->name);
    total &= ~(PAGE - 1);
    NEAP_CHECK(neap_add_size(total, border - PAGE, &map_bytes), NEAP_NO_MEMORY, "%s memory: size overflow", a->name);
    block *b = calloc(1, sizeof *b);
    NEAP_CHECK(b, NEAP_NO_MEMORY, "%s memory: out of memory", a->name);
    void *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        free(b);
        NEAP_FAIL(NEAP_NO_MEMORY, "%s memory: cannot map %zu bytes", a->name, map_bytes);
    }
    size_t before = (border - (uintptr_t)map % border) % border, behind = map_bytes - total - before;
    b->data = (char *)map + before;
    b->capacity = total;
    if (before > 0) munmap(map, before);
    if (behind > 0) munmap(b->data + total, behind);
    /* Panels and caches are read in long streams: huge pages save the page walks. Refusal is harmless. */
    if (is_huge) (void)madvise(b->data, total, MADV_HUGEPAGE);
#ifdef NEAP_ASAN
    ASAN_POISON_MEMORY_REGION(b->data, b->capacity);
#endif
    *out = b;
    return NEAP_OK;
}

neap_status neap_arena_populate(neap_arena *a) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
    for (block *b = a->blocks; b; b = b->next) {
        if (madvise(b->data, b->capacity, MADV_POPULATE_WRITE) == 0) continue;
        NEAP_CHECK(errno == EINVAL, NEAP_NO_MEMORY, "%s memory: the system has no room for %zu bytes", a->name,
                   b->capacity);
#ifndef NEAP_ASAN /* Linux before 5.14 cannot do it; then it is done by hand. Poisoned gaps may not be touched. */
        for (size_t i = 0; i < b->capacity; i += PAGE) {
            volatile char *p = b->data + i;
            *p = *p;
        }
#endif
    }
    return NEAP_OK;
}

neap_status neap_arena_alloc(neap_arena *a, size_t bytes, void **out) {
    *out = NULL;
    size_t need;
    NEAP_CHECK(may_allocate(), NEAP_NO_MEMORY, "%s memory: out of memory", a->name);
    NEAP_CHECK(neap_add_size(bytes, GAP + ALIGN - 1, &need), NEAP_NO_MEMORY, "%s memory: size overflow", a->name);
    need &= ~(size_t)(ALIGN - 1);
    if (need == 0) need = ALIGN;
    block *b = a->blocks;
    if (!b || b->capacity - b->used < need) {
        bool is_own = need >= OWN_BLOCK_BYTES;
        NEAP_TRY(block_create(a, is_own ? need : BLOCK_BYTES, &b));
        if (is_own && a->blocks) { /* keep filling the current block afterwards */
            b->next = a->blocks->next;
            a->blocks->next = b;
        } else {
            b->next = a->blocks;
            a->blocks = b;
        }
    }
    char *p = b->data + b->used;
    b->used += need;
    a->bytes += need;
#ifdef NEAP_ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
    *out = p;
    return NEAP_OK;
}

neap_status neap_arena_alloc_raw(neap_arena *a, size_t bytes, void **out) {
    NEAP_TRY(neap_arena_alloc(a, bytes, out));
    int byte = neap_memory_poison_byte();
    if (byte >= 0) memset(*out, byte, bytes); /* else untouched: memory that is never used costs nothing */
    return NEAP_OK;
}

neap_status neap_arena_array(neap_arena *a, size_t n, size_t size, void **out) {
    size_t bytes;
    *out = NULL;
    NEAP_CHECK(neap_mul_size(n, size, &bytes), NEAP_NO_MEMORY, "%s memory: size overflow", a->name);
    return neap_arena_alloc(a, bytes, out);
}

neap_status neap_arena_strdup(neap_arena *a, const char *s, const char **out) {
    size_t n = strlen(s) + 1;
    void *p;
    NEAP_TRY(neap_arena_alloc(a, n, &p));
    memcpy(p, s, n);
    *out = p;
    return NEAP_OK;
}

uint64_t neap_arena_bytes(const neap_arena *a) { return a ? a->bytes : 0; }

neap_status neap_mem_alloc(size_t bytes, void **out) {
    *out = NULL;
    NEAP_CHECK(may_allocate(), NEAP_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    void *p = calloc(1, bytes ? bytes : 1);
    NEAP_CHECK(p, NEAP_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    *out = p;
    return NEAP_OK;
}

neap_status neap_mem_grow(void **p, size_t old_bytes, size_t bytes) {
    NEAP_CHECK(may_allocate(), NEAP_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    char *q = realloc(*p, bytes ? bytes : 1);
    NEAP_CHECK(q, NEAP_NO_MEMORY, "out of memory (%zu bytes)", bytes);
    if (bytes > old_bytes) memset(q + old_bytes, 0, bytes - old_bytes);
    *p = q;
    return NEAP_OK;
}

void neap_mem_free(void *p) { free(p); }

/* First unsigned number in a small file after an optional key; UINT64_MAX when there is none ("max"). */
static uint64_t number_in_file(const char *path, const char *key) {
    FILE *f = fopen(path, "re");
    if (!f) return UINT64_MAX;
    char line[256];
    uint64_t value = UINT64_MAX;
    while (fgets(line, sizeof line, f)) {
        const char *s = line;
        if (key) {
            size_t n = strlen(key);
            if (strncmp(line, key, n) != 0) continue;
            s = line + n;
        }
        unsigned long long v;
        if (sscanf(s, " %llu", &v) == 1) value = v;
        break;
    }
    fclose(f);
    return value;
}

static uint64_t room_below(const char *limit_path, const char *used_path) {
    uint64_t limit = number_in_file(limit_path, NULL), used = number_in_file(used_path, NULL);
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

uint64_t neap_memory_available(void) {
    uint64_t kib = number_in_file("/proc/meminfo", "MemAvailable:");
    uint64_t bytes =
        kib == UINT64_MAX ? (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) : kib * 1024;
    /* Inside a container the mounted cgroup root is the container's own group. */
    uint64_t v2 = room_below("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    uint64_t v1 =
        room_below("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    if (v2 < bytes) bytes = v2;
    if (v1 < bytes) bytes = v1;
    return bytes;
}
