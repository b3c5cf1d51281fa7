/* The engine behind a server; see backend.h. Jobs and their events are in job.c.
 *
 *   engine thread    open model -> configure -> create engine -> READY
 *                    [ take the inbox -> submit -> step -> poll -> deadlines -> one post ]*
 *                    further tokens of answers wait for a post until 5 ms after the one before, when steps are short
 *                    sleeps on `wake` when the engine has nothing to do: no timer, no polling
 *   prep threads     [ take a task -> fn -> post done ]*
 *
 * Called by serve.c (life), routes (phase), answer.c (jobs). Owns model, engine and threads. One mutex guards the
 * lists; nobody holds it while the engine works, so the loop thread never waits for a step. */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../buffer.h"
#include "../report.h"
#include "../terminal.h"
#include "backend_inner.h"

static struct timespec at_time(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    return t;
}

static void set_phase(neap_backend *b, neap_backend_phase phase) {
    atomic_store(&b->phase, (int)phase);
    if (b->options.changed != NULL) neap_http_post(b->http, b->options.changed, b->options.user);
}

static void fail(neap_backend *b, neap_status status, neap_cli_phase doing) {
    const char *text = neap_last_error();
    snprintf(b->text, sizeof b->text, "%s", text != NULL && text[0] != 0 ? text : neap_status_text(status));
    b->exit_code = neap_cli_exit_code(status, doing);
    set_phase(b, NEAP_BACKEND_FAILED); /* publishes both */
}

/* ---- engine thread ---- */

static void on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    neap_backend *b = user;
    (void)what;
    atomic_store(&b->to_load, total);
    atomic_store(&b->loaded, done);
}

static int load(neap_backend *b) {
    neap_model_options mo = b->options.model;
    neap_engine_options eo = b->options.engine;
    neap_model *model = NULL;
    mo.progress = on_progress;
    mo.progress_user = b;
    neap_status status = neap_model_open(&model, b->path, &mo);
    if (status != NEAP_OK) {
        fail(b, status, NEAP_CLI_OPENING);
        return 0;
    }
    if (b->options.configure != NULL) b->options.configure(b->options.user, model, &eo);
    status = neap_engine_create(&b->engine, model, &eo);
    if (status != NEAP_OK) {
        fail(b, status, NEAP_CLI_RUNNING);
        neap_model_close(model);
        return 0;
    }
    neap_engine_stats stats = {.struct_size = sizeof stats};
    (void)neap_engine_statistics(b->engine, &stats);
    eo.tuning = NULL; /* was borrowed */
    pthread_mutex_lock(&b->mutex);
    b->model = model;
    b->resolved = eo;
    b->stats = stats;
    pthread_mutex_unlock(&b->mutex);
    set_phase(b, NEAP_BACKEND_READY);
    return 1;
}

static neap_job *take_inbox(neap_backend *b) {
    neap_job *first = b->inbox;
    b->inbox = b->inbox_last = NULL;
    b->is_woken = 0;
    return first;
}

/* Nobody gains from thousands of deliveries a second, and each takes a processor away from the engine's threads. So
 * tokens may wait for those of the next step, when that will be over soon too; first tokens and all else never wait. */
static int may_wait(const neap_backend *b, double step) {
    static const double seconds = 0.005;
    return b->batch != NULL && !b->batch->is_urgent && b->now + step - b->posted < seconds;
}

/* Returns 0 when the engine is broken. */
static int work(neap_backend *b, neap_job *inbox, int *has_work, double *deadline) {
    b->began = b->now = neap_cli_seconds();
    neap_jobs_submit(b, inbox);
    if (b->batch != NULL && b->batch->is_urgent) neap_batch_post(b);
    atomic_store(&b->alive, neap_cli_seconds());
    neap_status status = neap_step(b->engine);
    b->now = neap_cli_seconds();
    atomic_store(&b->alive, neap_cli_seconds());
    if (status != NEAP_OK && status != NEAP_AGAIN && status != NEAP_BUSY) {
        fail(b, status, NEAP_CLI_RUNNING);
        neap_jobs_fail_all(b, NULL, NEAP_INTERNAL);
        neap_batch_post(b);
        return 0;
    }
    size_t n = neap_jobs_poll(b);
    *deadline = neap_jobs_deadlines(b);
    neap_engine_stats stats = {.struct_size = sizeof stats};
    (void)neap_engine_statistics(b->engine, &stats);
    pthread_mutex_lock(&b->mutex);
    b->stats = stats;
    pthread_mutex_unlock(&b->mutex);
    *has_work = status != NEAP_AGAIN || n > 0;
    if (n == 0 || !may_wait(b, b->now - b->began)) neap_batch_post(b);
    return 1;
}

static void serve(neap_backend *b) {
    int has_work = 0, is_broken = 0;
    double deadline = 0;
    pthread_mutex_lock(&b->mutex);
    while (!b->is_stopping) {
        if (!has_work && !b->is_woken) {
            atomic_store(&b->is_busy, 0);
            struct timespec until = at_time(deadline);
            if (deadline > 0)
                (void)pthread_cond_timedwait(&b->wake, &b->mutex, &until);
            else
                pthread_cond_wait(&b->wake, &b->mutex);
            if (!b->is_woken && (deadline == 0 || neap_cli_seconds() < deadline)) continue; /* woken by chance */
        }
        neap_job *inbox = take_inbox(b);
        pthread_mutex_unlock(&b->mutex);
        atomic_store(&b->alive, neap_cli_seconds());
        atomic_store(&b->is_busy, 1);
        if (is_broken) {
            neap_jobs_fail_all(b, inbox, NEAP_INTERNAL);
            neap_batch_post(b);
        } else {
            is_broken = !work(b, inbox, &has_work, &deadline);
        }
        if (is_broken) has_work = 0, deadline = 0;
        pthread_mutex_lock(&b->mutex);
    }
    pthread_mutex_unlock(&b->mutex);
    neap_jobs_fail_all(b, NULL, NEAP_CANCELLED);
}

static void leave(neap_backend *b) {
    pthread_mutex_lock(&b->mutex);
    b->n_threads--;
    pthread_cond_broadcast(&b->ended);
    pthread_mutex_unlock(&b->mutex);
}

static void *engine_main(void *user) {
    neap_backend *b = user;
    if (load(b)) serve(b);
    neap_engine_destroy(b->engine);
    b->engine = NULL;
    leave(b);
    return NULL;
}

/* ---- prep threads ---- */

static void *prep_main(void *user) {
    neap_backend *b = user;
    pthread_mutex_lock(&b->mutex);
    while (!b->is_stopping) {
        neap_prep *task = b->prep;
        if (task == NULL) {
            pthread_cond_wait(&b->prep_wake, &b->mutex);
            continue;
        }
        b->prep = task->next;
        if (b->prep == NULL) b->prep_last = NULL;
        b->n_waiting--;
        pthread_mutex_unlock(&b->mutex);
        task->fn(task->user);
        neap_http_post(b->http, task->done, task->user);
        free(task);
        pthread_mutex_lock(&b->mutex);
    }
    pthread_mutex_unlock(&b->mutex);
    leave(b);
    return NULL;
}

int neap_backend_prepare(neap_backend *b, void (*fn)(void *user), void (*done)(void *user), void *user) {
    enum { WAITING_MAX = 512 };
    neap_prep *task = neap_cli_alloc(1, sizeof *task);
    *task = (neap_prep){.fn = fn, .done = done, .user = user};
    pthread_mutex_lock(&b->mutex);
    int has_room = b->n_waiting < WAITING_MAX && !b->is_stopping;
    if (has_room) {
        if (b->prep_last != NULL)
            b->prep_last->next = task;
        else
            b->prep = task;
        b->prep_last = task;
        b->n_waiting++;
        pthread_cond_signal(&b->prep_wake);
    }
    pthread_mutex_unlock(&b->mutex);
    if (!has_room) free(task);
    return has_room;
}

/* ---- life ---- */

static char *copy_string(const char *s) { return s != NULL ? neap_cli_copy(s) : NULL; }

static int start_threads(neap_backend *b) {
    int32_t n = b->options.n_prep > 0 ? b->options.n_prep : 2;
    if (n > NEAP_BACKEND_THREADS) n = NEAP_BACKEND_THREADS;
    pthread_mutex_lock(&b->mutex);
    int failed = pthread_create(&b->engine_thread, NULL, engine_main, b) != 0;
    if (!failed) b->n_threads++;
    for (int32_t i = 0; i < n && !failed; i++) {
        failed = pthread_create(&b->prep_threads[i], NULL, prep_main, b) != 0;
        if (!failed) b->n_prep++, b->n_threads++;
    }
    pthread_mutex_unlock(&b->mutex);
    return !failed;
}

int neap_backend_create(neap_backend **out, neap_http *http, const neap_backend_options *o) {
    neap_backend *b = neap_cli_alloc(1, sizeof *b);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->wake, &attributes);
    pthread_cond_init(&b->prep_wake, &attributes);
    pthread_cond_init(&b->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    b->http = http;
    b->options = *o;
    b->path = copy_string(o->path);
    b->options.model.cpu = b->cpu = copy_string(o->model.cpu);
    b->options.model.cache_dir = b->cache_dir = copy_string(o->model.cache_dir);
    b->options.engine.prefix_dir = b->prefix_dir = copy_string(o->engine.prefix_dir);
    b->resolved = b->options.engine;
    b->stats.struct_size = sizeof b->stats;
    *out = b;
    if (start_threads(b)) return NEAP_EXIT_OK;
    neap_cli_error("no more threads can be started");
    return NEAP_EXIT_RESOURCE;
}

int neap_backend_stop(neap_backend *b, double seconds) {
    struct timespec until = at_time(neap_cli_seconds() + seconds);
    int waited = 0;
    pthread_mutex_lock(&b->mutex);
    b->is_stopping = b->is_woken = 1;
    pthread_cond_broadcast(&b->wake);
    pthread_cond_broadcast(&b->prep_wake);
    while (b->n_threads > 0 && waited == 0) waited = pthread_cond_timedwait(&b->ended, &b->mutex, &until);
    int has_ended = b->n_threads == 0;
    pthread_mutex_unlock(&b->mutex);
    return has_ended;
}

void neap_backend_destroy(neap_backend *b) {
    if (b == NULL) return;
    int has_engine = b->engine_thread != 0;
    (void)neap_backend_stop(b, 0);
    if (has_engine) pthread_join(b->engine_thread, NULL);
    for (int32_t i = 0; i < b->n_prep; i++) pthread_join(b->prep_threads[i], NULL);
    for (neap_prep *task = b->prep, *next; task != NULL; task = next) {
        next = task->next;
        free(task);
    }
    neap_jobs_free(b);
    neap_batches_free(b);
    neap_model_close(b->model);
    pthread_cond_destroy(&b->wake);
    pthread_cond_destroy(&b->prep_wake);
    pthread_cond_destroy(&b->ended);
    pthread_mutex_destroy(&b->mutex);
    free(b->path);
    free(b->cpu);
    free(b->cache_dir);
    free(b->prefix_dir);
    free(b);
}

/* ---- what others ask; any thread ---- */

neap_backend_phase neap_backend_phase_of(const neap_backend *b, uint64_t *done, uint64_t *total, const char **text) {
    neap_backend_phase phase = (neap_backend_phase)atomic_load(&b->phase);
    if (done != NULL) *done = atomic_load(&b->loaded);
    if (total != NULL) *total = atomic_load(&b->to_load);
    if (text != NULL) *text = phase == NEAP_BACKEND_FAILED ? b->text : "";
    return phase;
}

int neap_backend_exit_code(const neap_backend *b) {
    return atomic_load(&b->phase) == NEAP_BACKEND_FAILED ? b->exit_code : NEAP_EXIT_OK;
}

const neap_model *neap_backend_model(const neap_backend *b) {
    return atomic_load(&b->phase) == NEAP_BACKEND_LOADING ? NULL : b->model;
}

static pthread_mutex_t *mutex_of(const neap_backend *b) { return (pthread_mutex_t *)(uintptr_t)&b->mutex; }

void neap_backend_statistics(const neap_backend *b, neap_engine_stats *out) {
    pthread_mutex_lock(mutex_of(b));
    *out = b->stats;
    pthread_mutex_unlock(mutex_of(b));
}

void neap_backend_options_now(const neap_backend *b, neap_engine_options *out) {
    pthread_mutex_lock(mutex_of(b));
    *out = b->resolved;
    pthread_mutex_unlock(mutex_of(b));
}

/* Two ways to stand still: in a step, or asleep although there is something to do. */
double neap_backend_stall(const neap_backend *b) {
    double now = neap_cli_seconds(), passed = 0;
    if (atomic_load(&b->is_busy)) passed = now - atomic_load(&b->alive);
    pthread_mutex_lock(mutex_of(b));
    if (b->is_woken && now - b->woken > passed) passed = now - b->woken;
    pthread_mutex_unlock(mutex_of(b));
    return passed > 0 ? passed : 0;
}
