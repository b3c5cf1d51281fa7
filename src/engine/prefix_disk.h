/* The prefix cache's copy on disk: checkpoints and the pages before them, across restarts.
 *
 * A directory of the user's (0700), with a file per link of a chain: the tokens from one checkpoint to the next, the
 * pages of those positions, the state at the end, the key of the link before. Keys: a hash over space, model, formats
 * and all tokens from the beginning. Data only, checksummed, written to a temporary name, synced and renamed: kill -9
 * at any time leaves old or new files, never halves. What does not check is refused, logged once, removed and computed
 * again; what is of another model or build is never used and goes when it is the longest unused. Least recently used
 * chains go, from their end, when the directory grows beyond its limit.
 *
 * A thread of its own writes and reads; the engine's thread only queues. Memory for that is claimed at creation.
 * Several processes may use one directory; each knows the files that were there when it began, and its own.
 * docs/prefix-cache.md */
#ifndef NEAP_ENGINE_PREFIX_DISK_H
#define NEAP_ENGINE_PREFIX_DISK_H

#include "base/log.h"
#include "cache/prefix.h"

typedef struct neap_prefix_disk neap_prefix_disk;

typedef struct neap_prefix_disk_options {
    const char *dir; /* copied */
    uint64_t bytes_max;
    uint8_t model_key[16]; /* of everything that decides what the bytes mean: weights, configuration, cache formats,
                            * activation formats, kernel level where it changes bits, version of this format */
    neap_log log;
} neap_prefix_disk_options;

/* What open claims; false on overflow. Of c: n_layers, specs and slot_pages_max. */
bool neap_prefix_disk_bytes(const neap_caches *c, uint64_t *bytes);
/* Lists the directory (headers only), sweeps temporaries of dead processes. NEAP_IO and others: the directory cannot be
 * used; whoever calls warns and goes on without. */
NEAP_MUST_CHECK neap_status neap_prefix_disk_open(neap_prefix_disk **out, neap_prefix *p, neap_caches *c,
                                                  const neap_prefix_disk_options *o);
/* Waits for what is being written or queued, for some seconds at most; gives holds and room back. */
void neap_prefix_disk_close(neap_prefix_disk *d);

/* All calls come from the engine's thread and return at once. */
/* Queues a checkpoint for writing (held meanwhile); already there, or no room in the queue: dropped. */
void neap_prefix_disk_save(neap_prefix_disk *d, const char *space, const int32_t *tokens, int64_t n);
/* Tokens of the longest kept point within the first n_max; 0: none. */
int64_t neap_prefix_disk_find(const neap_prefix_disk *d, const char *space, const int32_t *tokens, int64_t n_max);
/* Starts to load that point into the prefix cache. NEAP_BUSY: another is being loaded, or no room: ask again later.
 * NEAP_NOT_FOUND: nothing longer than what the prefix cache has. A load that fails takes its point out of what find
 * knows, so asking again until NEAP_NOT_FOUND ends; but a point that the prefix cache evicts at once would be loaded
 * again, so a request asks for each point once. */
NEAP_MUST_CHECK neap_status neap_prefix_disk_load(neap_prefix_disk *d, const char *space, const int32_t *tokens,
                                                  int64_t n_max);
/* True while a load is under way. Call once per step: publishes or abandons what has ended, releases what was written.
 * */
bool neap_prefix_disk_settle(neap_prefix_disk *d);
/* Something is queued, under way, or has ended and is not settled yet: pages are held. */
bool neap_prefix_disk_is_busy(const neap_prefix_disk *d);
/* Blocks until a load or write ends, at most so long: for an engine that has nothing else to do. */
void neap_prefix_disk_wait(neap_prefix_disk *d, int32_t milliseconds);

typedef struct neap_prefix_disk_stats {
    uint64_t n_saved, n_loaded, n_rejected, bytes;
} neap_prefix_disk_stats;
void neap_prefix_disk_statistics(const neap_prefix_disk *d, neap_prefix_disk_stats *out);

#endif
