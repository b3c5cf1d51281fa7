/* The parts of prefix_disk: the form of a file, the index of what lies in the directory, the thread.
 *
 * A file is one of a store (format/store_inner.h): its head has a checksum, each megabyte of its content another.
 *
 *   name     KEY.prefix, KEY in hex: the chain's hash up to the end of the link
 *   key      model (16 bytes), KEY (16 bytes)
 *   notes    neap_prefix_notes, then the tokens of the positions n_before .. n - 1
 *   content  the pages n_before / 64 .. (n - 1) / 64, one behind the other, then the state after n tokens; each page
 *   and
 *            the state are cut into chunks of 1 MiB
 *
 * Bytes of the last page behind position n - 1 mean nothing: whoever loads it writes them before he reads them. */
#ifndef NEAP_ENGINE_PREFIX_DISK_INNER_H
#define NEAP_ENGINE_PREFIX_DISK_INNER_H

#include <pthread.h>

#include "engine/prefix_disk.h"
#include "format/store.h"

enum {
    NEAP_PREFIX_FORMAT = 1,
    NEAP_PREFIX_KEY = 16,
    NEAP_PREFIX_NAME = 48,
    NEAP_PREFIX_LINK_MIN = 16,  /* tokens; what is shorter is computed faster than read */
    NEAP_PREFIX_LINKS_MAX = 256 /* of a chain */
};

/* ---- prefix_disk_file.c: one file ---- */

typedef struct neap_prefix_notes {
    uint32_t format, zero;
    uint8_t space[NEAP_PREFIX_KEY];  /* hash of salt and name */
    uint8_t before[NEAP_PREFIX_KEY]; /* key of the link before; zeros: none */
    int64_t n_before, n;             /* tokens */
    uint64_t page_bytes, state_bytes;
} neap_prefix_notes;
_Static_assert(sizeof(neap_prefix_notes) == 72, "the form of a file");

/* What this engine's files look like. */
typedef struct neap_prefix_shape {
    uint8_t model[NEAP_PREFIX_KEY];
    uint64_t page_bytes, state_bytes;
    int64_t n_max; /* tokens of the longest sequence */
} neap_prefix_shape;

typedef struct neap_prefix_link {
    uint8_t key[NEAP_PREFIX_KEY], space[NEAP_PREFIX_KEY], before[NEAP_PREFIX_KEY];
    int64_t n_before, n;
    const int32_t *tokens; /* [n - n_before] */
} neap_prefix_link;

static inline int32_t neap_prefix_first_page(const neap_prefix_link *l) {
    return (int32_t)(l->n_before / NEAP_PAGE_ROWS);
}
static inline int32_t neap_prefix_n_pages(int64_t n) { return (int32_t)((n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS); }

void neap_prefix_file_name(const uint8_t key[NEAP_PREFIX_KEY], char name[NEAP_PREFIX_NAME]);
/* False: not a name that the other one makes. */
bool neap_prefix_file_key(const char *name, uint8_t key[NEAP_PREFIX_KEY]);
/* Room of the longest file's reader or writer, its notes, its chunks; false on overflow. */
bool neap_prefix_file_room(const neap_prefix_shape *s, uint64_t *room, uint64_t *notes, uint64_t *n_chunks);
/* Of the whole file. */
uint64_t neap_prefix_file_bytes(const neap_prefix_shape *s, const neap_prefix_link *l);

/* Reads and checks everything but the content. link->tokens are the reader's. NEAP_NOT_FOUND; NEAP_UNSUPPORTED: sound,
 * but of another model, build or shape; NEAP_BAD_FILE: damaged, or not what its name says. */
NEAP_MUST_CHECK neap_status neap_prefix_file_open(neap_store_reader **r, neap_prefix_link *link,
                                                  const neap_store *store, const neap_prefix_shape *s,
                                                  const uint8_t key[NEAP_PREFIX_KEY]);
/* Fills page_bytes, state_bytes, and compares checksums. The state must be finite. */
NEAP_MUST_CHECK neap_status neap_prefix_file_page(const neap_store_reader *r, const neap_prefix_shape *s,
                                                  const neap_prefix_link *link, int32_t page, uint8_t *out);
NEAP_MUST_CHECK neap_status neap_prefix_file_state(const neap_store_reader *r, const neap_prefix_shape *s,
                                                   const neap_prefix_link *link, uint8_t *out);
bool neap_prefix_is_finite(const uint8_t *state, uint64_t bytes);

/* What writing needs: where pages come from (NULL: give up, NEAP_CANCELLED), and scratch. */
typedef struct neap_prefix_source {
    const uint8_t *(*page)(void *user, int32_t page);
    void *user;
    const uint8_t *state;
    neap_prefix_notes *notes; /* and the tokens behind it */
    uint32_t *sizes;
} neap_prefix_source;
NEAP_MUST_CHECK neap_status neap_prefix_file_write(const neap_store *store, const neap_prefix_shape *s,
                                                   const neap_prefix_link *link, const neap_prefix_source *from);

/* ---- prefix_disk_index.c: what lies in the directory ---- */

enum { NEAP_PREFIX_ENTRIES = 32768, NEAP_PREFIX_NONE = -1 };

typedef enum neap_prefix_entry_kind {
    NEAP_PREFIX_FREE,
    NEAP_PREFIX_LINK,   /* ours */
    NEAP_PREFIX_FOREIGN /* of another model or build: counts, and goes when it is the longest unused */
} neap_prefix_entry_kind;

typedef struct neap_prefix_entry {
    uint8_t key[NEAP_PREFIX_KEY], before[NEAP_PREFIX_KEY];
    int64_t n_before, n;
    uint64_t bytes;
    int64_t used;                          /* nanoseconds since 1970 */
    int32_t bucket_next;                   /* of the hash table, or of the free list */
    int32_t parent, child, next, previous; /* tree of links; NONE */
    neap_prefix_entry_kind kind;
} neap_prefix_entry;

typedef struct neap_prefix_index {
    neap_prefix_entry *entries; /* [ENTRIES] */
    int32_t *buckets;           /* [ENTRIES] */
    uint16_t *lengths;          /* [n_max + 1] links that end after so many tokens; stays at 65535 once it is there */
    int64_t n_max, n_longest;   /* no link is longer */
    int32_t n_used, n_ever, free, capacity; /* capacity: ENTRIES; fewer in tests */
    uint64_t bytes;
} neap_prefix_index;

uint64_t neap_prefix_index_bytes(int64_t n_max);
/* memory: zeroed, index_bytes. */
void neap_prefix_index_init(neap_prefix_index *x, void *memory, int64_t n_max);
int32_t neap_prefix_index_find(const neap_prefix_index *x, const uint8_t key[NEAP_PREFIX_KEY]);
/* Without place in the tree. There must be room, and none with that key. */
int32_t neap_prefix_index_add(neap_prefix_index *x, const neap_prefix_entry *e);
/* Hangs a link below the one before it; false: that one is not here. */
bool neap_prefix_index_join(neap_prefix_index *x, int32_t i);
/* i must have no children. */
void neap_prefix_index_remove(neap_prefix_index *x, int32_t i);
/* A link below i, or i itself, that has none below it. */
int32_t neap_prefix_index_leaf(const neap_prefix_index *x, int32_t i);
/* The longest unused of those without children; NONE: empty. */
int32_t neap_prefix_index_oldest(const neap_prefix_index *x);
/* i and those before it were used now. */
void neap_prefix_index_use(neap_prefix_index *x, int32_t i, int64_t now);

/* ---- prefix_disk.c, prefix_disk_work.c ---- */

/* Hash of a chain: of salt, model, space, then token by token. */
typedef struct neap_prefix_chain {
    uint64_t a, b;
} neap_prefix_chain;

enum { NEAP_PREFIX_JOBS = 8, NEAP_PREFIX_TEXT = 512 };

typedef enum neap_prefix_job_state {
    NEAP_PREFIX_IDLE,
    NEAP_PREFIX_QUEUED,
    NEAP_PREFIX_RUNNING,
    NEAP_PREFIX_DONE
} neap_prefix_job_state;

typedef struct neap_prefix_job {
    neap_prefix_job_state state; /* under the lock; everything else belongs to whom the state says */
    uint64_t number;             /* in the order of queueing */
    uint8_t space[NEAP_PREFIX_KEY], key[NEAP_PREFIX_KEY];
    neap_prefix_chain begin;
    int64_t n;
    int32_t *tokens; /* [n_max] */
    neap_prefix_hold hold;
} neap_prefix_job;

typedef struct neap_prefix_load {
    neap_prefix_job_state state;
    uint8_t space[NEAP_PREFIX_KEY], key[NEAP_PREFIX_KEY];
    int64_t n;
    int32_t *tokens; /* [n_max] */
    neap_prefix_room room;
    neap_status status;
} neap_prefix_load;

struct neap_prefix_disk {
    neap_prefix *prefix; /* the engine's thread only */
    neap_caches *caches;
    neap_store store;
    neap_prefix_shape shape;
    uint8_t salt[NEAP_PREFIX_KEY];
    uint64_t bytes_max;
    neap_log log;
    void *memory; /* one block */

    pthread_t thread;
    bool is_started;
    pthread_mutex_t lock; /* guards everything from here on but where said */
    pthread_cond_t work, done;
    neap_prefix_index index; /* changed by the thread only (and before it starts) */
    neap_prefix_job jobs[NEAP_PREFIX_JOBS];
    neap_prefix_load load;
    uint64_t n_jobs; /* queued ever */
    uint64_t n_saved, n_loaded, n_rejected;
    bool is_stopping;
    int64_t stop_at;             /* clock: no more is written after that */
    int64_t retry_at;            /* clock: nothing is written before that */
    bool is_failing;             /* the warning has been given */
    char text[NEAP_PREFIX_TEXT]; /* for the log, which only the engine's thread calls; "": none */
    neap_log_level level;
    uint64_t n_unsaid; /* lines that came while one waited */

    /* the thread's own (before it starts: the opener's) */
    neap_prefix_notes *notes;
    uint32_t *sizes;
    uint8_t *page;
};

void neap_prefix_chain_begin(const neap_prefix_disk *d, const char *space, uint8_t hash[NEAP_PREFIX_KEY],
                             neap_prefix_chain *c);
static inline void neap_prefix_chain_add(neap_prefix_chain *c, int32_t token) {
    uint64_t word = (uint32_t)token;
    c->a = neap_checksum_mix(c->a, word);
    uint64_t x = (c->b ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    c->b = (x << 31 | x >> 33) + c->a;
}
void neap_prefix_chain_key(const neap_prefix_chain *c, int64_t n, uint8_t key[NEAP_PREFIX_KEY]);

/* The longest link among the first n tokens that is here, its key; 0: none. c: the chain's begin. Takes the lock,
 * piece by piece. */
int64_t neap_prefix_disk_longest(const neap_prefix_disk *d, neap_prefix_chain c, const int32_t *tokens, int64_t n,
                                 uint8_t key[NEAP_PREFIX_KEY]);
/* Keeps a line for the log. Lock held. */
void neap_prefix_disk_say(neap_prefix_disk *d, neap_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Removes what is too much, longest unused first. Takes the lock. */
void neap_prefix_disk_prune(neap_prefix_disk *d);
/* Forgets the link and those behind it; with_files: removes them too. Takes the lock. */
void neap_prefix_disk_drop(neap_prefix_disk *d, const uint8_t key[NEAP_PREFIX_KEY], bool with_files);
void *neap_prefix_disk_main(void *disk);

#endif
