/* What backend.c (threads, loading, steps) and job.c (requests and their events) share. */
#ifndef NEAP_APPS_SERVER_BACKEND_INNER_H
#define NEAP_APPS_SERVER_BACKEND_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend.h"

struct neap_shared_grammar {
    neap_grammar *grammar;
    int32_t holds;
};

struct neap_job {
    neap_backend *b;
    neap_request request; /* with copies of all it points to; they go once the engine has its own */
    neap_shared_grammar *grammar;
    neap_job_callbacks callbacks;
    double deadline, queue_deadline; /* on the monotonic clock; 0: none */
    /* under the backend's mutex */
    neap_seq *seq;
    int is_cancelled, is_paused;
    /* engine thread; the loop thread reads them once DONE was handed over */
    int timed_out, is_begun, has_token;
    char error[512];
    neap_job *next, *before; /* inbox (under the mutex), then the list of active ones */
    /* loop thread */
    int is_freed, is_done;
    neap_job *all_next, *all_before;
};

/* What one step, or several short ones, had to say: handed to the loop thread in one piece. */
typedef struct neap_batch_entry {
    neap_job *job;
    neap_job_event event; /* text and top: set when it is delivered */
    size_t text_at, top_at;
    double when; /* on the monotonic clock */
    int is_acceptance;
} neap_batch_entry;
typedef struct neap_batch {
    neap_backend *b;
    struct neap_batch *next, *next_free;
    neap_batch_entry *entries;
    size_t n, capacity;
    char *text;
    size_t text_bytes, text_capacity;
    neap_logprob *top;
    size_t n_top, top_capacity;
    int is_urgent; /* holds more than further tokens of answers */
} neap_batch;

typedef struct neap_prep {
    void (*fn)(void *user);
    void (*done)(void *user);
    void *user;
    struct neap_prep *next;
} neap_prep;

enum { NEAP_BACKEND_THREADS = 16 };
struct neap_backend {
    neap_http *http;
    neap_backend_options options;
    char *path, *cpu, *cache_dir, *prefix_dir;
    pthread_t engine_thread, prep_threads[NEAP_BACKEND_THREADS];
    int32_t n_prep;
    pthread_mutex_t mutex;
    pthread_cond_t wake, prep_wake, ended;
    /* under the mutex */
    int is_stopping, is_woken, n_threads;
    double woken; /* since when is_woken */
    neap_job *inbox, *inbox_last;
    neap_prep *prep, *prep_last;
    size_t n_waiting;
    neap_batch *batches, *free_batches;
    neap_engine_stats stats;
    neap_engine_options resolved;
    neap_model *model;
    char text[1024];
    int exit_code;
    /* for anybody */
    _Atomic int phase, is_busy;
    _Atomic uint64_t loaded, to_load;
    _Atomic double alive; /* neap_cli_seconds of the latest sign of life */
    /* engine thread */
    neap_engine *engine;
    neap_job *active;
    neap_batch *batch; /* being filled */
    double began, now; /* the step's beginning, its end */
    double posted;     /* when the latest batch went */
    /* loop thread */
    neap_job *jobs, *outbox, *outbox_last;
};

/* job.c, on the engine thread */
void neap_batch_add(neap_backend *b, neap_job *j, const neap_event *e);
void neap_batch_accept(neap_backend *b, neap_job *j);
void neap_batch_fail(neap_backend *b, neap_job *j, neap_finish finish, neap_status status);
void neap_batch_post(neap_backend *b);
void neap_batches_free(neap_backend *b);
/* Gives waiting jobs to the engine. */
void neap_jobs_submit(neap_backend *b, neap_job *first);
/* Takes the engine's events. Returns how many there were. */
size_t neap_jobs_poll(neap_backend *b);
/* Cancels those whose time is over; returns the next deadline, 0: none. */
double neap_jobs_deadlines(neap_backend *b);
/* The engine is broken or goes: all end with an error. */
void neap_jobs_fail_all(neap_backend *b, neap_job *inbox, neap_status status);
/* Loop thread, after all threads ended. */
void neap_jobs_free(neap_backend *b);

#endif
