/* The engine behind a server: one thread that loads the model, steps, and hands events out.
 *
 *   loop thread    routes; owns exchanges; talks to the backend through the calls below
 *   prep threads   (two) JSON, chat rendering, tokenising, grammars: everything that grows with a request
 *   engine thread  neap_submit, neap_step, neap_poll; sleeps without CPU time when there is nothing to do
 *
 * A job is one choice of one request. Its callbacks run on the loop thread, in order, and never after neap_job_free. */
#ifndef NEAP_APPS_SERVER_BACKEND_H
#define NEAP_APPS_SERVER_BACKEND_H

#include "http.h"
#include "neap.h"

typedef struct neap_backend neap_backend;
typedef struct neap_job neap_job;

typedef enum neap_backend_phase {
    NEAP_BACKEND_LOADING, /* n_done of n_total */
    NEAP_BACKEND_READY,
    NEAP_BACKEND_FAILED, /* text: why; the process ends with that exit code */
} neap_backend_phase;

typedef struct neap_backend_options {
    const char *path; /* of the model */
    neap_model_options model;
    neap_engine_options engine;
    int32_t n_prep; /* threads, default 2 */
    /* On the engine's thread once the model is open: what of `engine` depends on the model. May be NULL. */
    void (*configure)(void *user, const neap_model *m, neap_engine_options *engine);
    void (*changed)(void *user);   /* on the loop thread: the phase has changed */
    void (*delivered)(void *user); /* on the loop thread, after callbacks of jobs; may be NULL */
    void *user;
} neap_backend_options;

/* Begins to load. Strings are copied. */
int neap_backend_create(neap_backend **out, neap_http *http, const neap_backend_options *o);
/* Tells the threads to end, whatever runs. False: they still do after that many seconds (a step, a file). */
int neap_backend_stop(neap_backend *b, double seconds);
/* Joins the threads. */
void neap_backend_destroy(neap_backend *b);
neap_backend_phase neap_backend_phase_of(const neap_backend *b, uint64_t *done, uint64_t *total, const char **text);
/* The library's status and exit phase behind FAILED. */
int neap_backend_exit_code(const neap_backend *b);
/* NULL before READY. */
const neap_model *neap_backend_model(const neap_backend *b);
/* As of the latest step; cheap. context_max etc. as resolved. */
void neap_backend_statistics(const neap_backend *b, neap_engine_stats *out);
void neap_backend_options_now(const neap_backend *b, neap_engine_options *out);
/* Seconds since the engine's thread last showed a sign of life, while it has work; 0 when idle. */
double neap_backend_stall(const neap_backend *b);
/* Runs fn(user) on a prep thread, then done(user) on the loop thread. False: too many wait (512). */
int neap_backend_prepare(neap_backend *b, void (*fn)(void *user), void (*done)(void *user), void *user);

typedef struct neap_job_event {
    neap_event_kind kind;
    int32_t token;
    const char *text; /* whole UTF-8 characters; 0-terminated */
    size_t text_bytes;
    float logprob;
    const neap_logprob *top;
    int32_t n_top;
    int64_t n_done, n_total, n_cached;
    neap_finish finish;
    neap_status status;
    double age; /* seconds since the engine said it */
} neap_job_event;

/* A grammar that several jobs use; destroyed with the last hold. Loop thread, but for create. */
typedef struct neap_shared_grammar neap_shared_grammar;
neap_shared_grammar *neap_shared_grammar_create(neap_grammar *g);
void neap_shared_grammar_release(neap_shared_grammar *g); /* NULL is fine */

typedef struct neap_job_callbacks {
    void (*accepted)(void *user); /* neap_submit took it: it stands in the queue; before all events; may be NULL */
    void (*event)(void *user, const neap_job_event *e); /* DONE is the last one, always */
    void *user;
} neap_job_callbacks;

/* request and everything it points to is copied; its grammar is taken from `grammar` (may be NULL; the job holds it
 * until its sequence is freed). What the engine says about it (full queue, context too long) comes as DONE with an
 * error status and its text. deadline_seconds: from now until DONE, 0 = none; queue_seconds: until BEGIN, 0 = none.
 * Jobs wait for neap_jobs_go, which hands them over together: the engine tries to take all before it steps. */
neap_job *neap_job_submit(neap_backend *b, const neap_request *request, neap_shared_grammar *grammar,
                          double deadline_seconds, double queue_seconds, const neap_job_callbacks *callbacks);
void neap_jobs_go(neap_backend *b);
void neap_job_cancel(neap_job *j); /* DONE with CANCELLED follows */
void neap_job_pause(neap_job *j, int32_t is_paused);
const char *neap_job_error(const neap_job *j); /* one line, after DONE with an error */
int neap_job_timed_out(const neap_job *j);     /* DONE came from a deadline: 1 total, 2 in the queue */
void neap_job_free(neap_job *j);               /* cancels when it still runs */

#endif
