/* Several threads for the long work of loading: they share one function, which takes tasks until there are none left.
 * The engine's team is for steps of microseconds and does not exist yet while a model is being opened. */
#ifndef NEAP_MODELS_CREW_H
#define NEAP_MODELS_CREW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"

enum { NEAP_CREW_TEXT = 1100 };

typedef struct neap_crew {
    int32_t n_threads; /* at most; fewer give the same result */
    int64_t n_tasks;
    uint64_t scratch_bytes;    /* each thread gets so many, 64-byte aligned enough for any number */
    uint64_t bytes_total;      /* for the progress; done is what tasks add to bytes_done */
    const char *what;          /* "load" */
    neap_progress_fn progress; /* NULL: silent. Only the calling thread talks, at most ten times a second */
    void *progress_user;
    neap_status (*task)(void *user, int64_t i, void *scratch);
    void *user;
    /* inside */
    atomic_llong next;
    atomic_ullong bytes_done;
    atomic_bool is_stopped;
    pthread_mutex_t lock; /* guards the three below */
    int64_t failed_task;  /* -1: none */
    neap_status failed_status;
    char failed_text[NEAP_CREW_TEXT];
} neap_crew;

/* Runs task(user, i, scratch) for every i. Tasks are begun in order; of several failures the first one's is told. */
NEAP_MUST_CHECK neap_status neap_crew_run(neap_crew *c);
static inline void neap_crew_count(neap_crew *c, uint64_t bytes) { atomic_fetch_add(&c->bytes_done, bytes); }

#endif
