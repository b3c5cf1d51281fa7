/* Jobs: requests on their way into the engine and events on their way out; see backend.h.
 *
 *   loop thread     submit -> inbox                          deliver -> callbacks, in order
 *                              |                                 ^
 *   engine thread              +-> neap_submit -> active ... events of a step -> batch -> neap_http_post
 *
 * A job belongs to the loop thread. The engine thread works with it from the inbox until it has put DONE into a batch,
 * and never looks at it again; the memory goes when DONE was delivered and the job was freed, whichever is later. So
 * nobody needs counts of references. job->seq is set and cleared under the mutex: whoever cancels from the loop thread
 * finds a living sequence or none.
 *
 * Batches are kept for the next step, so a running server allocates nothing per token here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../buffer.h"
#include "../terminal.h"
#include "backend_inner.h"

/* ---- grammars ---- */

neap_shared_grammar *neap_shared_grammar_create(neap_grammar *g) {
    if (g == NULL) return NULL;
    neap_shared_grammar *shared = neap_cli_alloc(1, sizeof *shared);
    *shared = (neap_shared_grammar){.grammar = g, .holds = 1};
    return shared;
}

void neap_shared_grammar_release(neap_shared_grammar *g) {
    if (g == NULL || --g->holds > 0) return;
    neap_grammar_destroy(g->grammar);
    free(g);
}

/* ---- copies of requests ---- */

static void *copy(const void *from, size_t n, size_t size) {
    if (n == 0) return NULL;
    void *to = neap_cli_alloc(n, size);
    memcpy(to, from, n * size);
    return to;
}

static void copy_request(neap_request *to, const neap_request *from) {
    *to = *from;
    to->tokens = copy(from->tokens, from->n_tokens, sizeof *from->tokens);
    to->stop_tokens = copy(from->stop_tokens, from->n_stop_tokens, sizeof *from->stop_tokens);
    to->marks = copy(from->marks, from->n_marks, sizeof *from->marks);
    to->sampling.bias = copy(from->sampling.bias, from->sampling.n_bias, sizeof *from->sampling.bias);
    to->space = from->space != NULL ? neap_cli_copy(from->space) : NULL;
    const char **stop = from->n_stop > 0 ? neap_cli_alloc(from->n_stop, sizeof *stop) : NULL;
    for (size_t i = 0; i < from->n_stop; i++) stop[i] = neap_cli_copy(from->stop[i]);
    to->stop = stop;
}

static void free_request(neap_request *r) {
    for (size_t i = 0; i < r->n_stop; i++) free((void *)(uintptr_t)r->stop[i]);
    free((void *)(uintptr_t)r->stop);
    free((void *)(uintptr_t)r->tokens);
    free((void *)(uintptr_t)r->stop_tokens);
    free((void *)(uintptr_t)r->marks);
    free((void *)(uintptr_t)r->sampling.bias);
    free((void *)(uintptr_t)r->space);
    *r = (neap_request){0};
}

/* ---- batches ---- */

static neap_batch *batch_of(neap_backend *b) {
    if (b->batch != NULL) return b->batch;
    pthread_mutex_lock(&b->mutex);
    neap_batch *batch = b->free_batches;
    if (batch != NULL) {
        b->free_batches = batch->next_free;
    } else {
        batch = neap_cli_alloc(1, sizeof *batch);
        batch->b = b;
        batch->next = b->batches;
        b->batches = batch;
    }
    pthread_mutex_unlock(&b->mutex);
    batch->n = batch->text_bytes = batch->n_top = 0;
    batch->is_urgent = 0;
    b->batch = batch;
    return batch;
}

static neap_batch_entry *add_entry(neap_backend *b, neap_job *j) {
    neap_batch *batch = batch_of(b);
    if (batch->n == batch->capacity) {
        batch->capacity = batch->capacity > 0 ? 2 * batch->capacity : 64;
        batch->entries = neap_cli_grow(batch->entries, batch->capacity, sizeof *batch->entries);
    }
    neap_batch_entry *entry = &batch->entries[batch->n++];
    *entry = (neap_batch_entry){.job = j, .when = b->now};
    return entry;
}

static size_t add_text(neap_batch *batch, const char *text, size_t n) {
    size_t at = batch->text_bytes;
    if (at + n + 1 > batch->text_capacity) {
        batch->text_capacity = 2 * (at + n + 1) + 1024;
        batch->text = neap_cli_grow(batch->text, batch->text_capacity, 1);
    }
    if (n > 0) memcpy(batch->text + at, text, n);
    batch->text[at + n] = 0;
    batch->text_bytes = at + n + 1;
    return at;
}

static size_t add_top(neap_batch *batch, const neap_logprob *top, size_t n) {
    size_t at = batch->n_top;
    if (at + n > batch->top_capacity) {
        batch->top_capacity = 2 * (at + n) + 64;
        batch->top = neap_cli_grow(batch->top, batch->top_capacity, sizeof *batch->top);
    }
    if (n > 0) memcpy(batch->top + at, top, n * sizeof *top);
    batch->n_top = at + n;
    return at;
}

void neap_batch_add(neap_backend *b, neap_job *j, const neap_event *e) {
    neap_batch_entry *entry = add_entry(b, j);
    if (e->kind == NEAP_EVENT_BEGIN) entry->when = b->began;
    if (e->kind != NEAP_EVENT_TOKEN || !j->has_token) b->batch->is_urgent = 1;
    j->has_token |= e->kind == NEAP_EVENT_TOKEN;
    entry->event = (neap_job_event){.kind = e->kind,
                                    .token = e->token,
                                    .text_bytes = e->text != NULL ? e->text_bytes : 0,
                                    .logprob = e->logprob,
                                    .n_top = e->top != NULL ? e->n_top : 0,
                                    .n_done = e->n_done,
                                    .n_total = e->n_total,
                                    .n_cached = e->n_cached,
                                    .finish = e->finish,
                                    .status = e->status};
    entry->text_at = add_text(b->batch, e->text, entry->event.text_bytes);
    entry->top_at = add_top(b->batch, e->top, (size_t)entry->event.n_top);
}

void neap_batch_accept(neap_backend *b, neap_job *j) {
    add_entry(b, j)->is_acceptance = 1;
    b->batch->is_urgent = 1;
}

void neap_batch_fail(neap_backend *b, neap_job *j, neap_finish finish, neap_status status) {
    neap_event e = {.kind = NEAP_EVENT_DONE, .finish = finish, .status = status};
    neap_batch_add(b, j, &e);
}

static void finish_job(neap_job *j) {
    neap_backend *b = j->b;
    if (j->all_before != NULL)
        j->all_before->all_next = j->all_next;
    else
        b->jobs = j->all_next;
    if (j->all_next != NULL) j->all_next->all_before = j->all_before;
    neap_shared_grammar_release(j->grammar);
    free_request(&j->request);
    free(j);
}

/* On the loop thread. */
static void deliver(void *user) {
    neap_batch *batch = user;
    neap_backend *b = batch->b;
    double now = neap_cli_seconds();
    for (size_t i = 0; i < batch->n; i++) {
        neap_batch_entry *entry = &batch->entries[i];
        neap_job *j = entry->job;
        int is_last = !entry->is_acceptance && entry->event.kind == NEAP_EVENT_DONE;
        if (is_last) j->is_done = 1;
        if (j->is_freed) {
            if (is_last) finish_job(j);
            continue;
        }
        entry->event.age = now - entry->when;
        entry->event.text = batch->text != NULL ? batch->text + entry->text_at : "";
        entry->event.top = batch->top != NULL ? batch->top + entry->top_at : NULL;
        if (!entry->is_acceptance)
            j->callbacks.event(j->callbacks.user, &entry->event);
        else if (j->callbacks.accepted != NULL)
            j->callbacks.accepted(j->callbacks.user);
    }
    if (b->options.delivered != NULL) b->options.delivered(b->options.user);
    pthread_mutex_lock(&b->mutex);
    batch->next_free = b->free_batches;
    b->free_batches = batch;
    pthread_mutex_unlock(&b->mutex);
}

void neap_batch_post(neap_backend *b) {
    if (b->batch == NULL) return;
    neap_batch *batch = b->batch;
    b->batch = NULL;
    b->posted = b->now;
    neap_http_post(b->http, deliver, batch);
}

void neap_batches_free(neap_backend *b) {
    for (neap_batch *batch = b->batches, *next; batch != NULL; batch = next) {
        next = batch->next;
        free(batch->entries);
        free(batch->text);
        free(batch->top);
        free(batch);
    }
    b->batches = b->free_batches = b->batch = NULL;
}

/* ---- engine thread ---- */

static void add_active(neap_backend *b, neap_job *j) {
    j->before = NULL;
    j->next = b->active;
    if (b->active != NULL) b->active->before = j;
    b->active = j;
}

static void remove_active(neap_backend *b, neap_job *j) {
    if (j->before != NULL)
        j->before->next = j->next;
    else
        b->active = j->next;
    if (j->next != NULL) j->next->before = j->before;
    j->next = j->before = NULL;
}

/* From now on nobody can cancel it. */
static void free_seq(neap_job *j) {
    pthread_mutex_lock(&j->b->mutex);
    neap_seq *seq = j->seq;
    j->seq = NULL;
    pthread_mutex_unlock(&j->b->mutex);
    neap_seq_free(seq);
}

static void submit_one(neap_backend *b, neap_job *j) {
    pthread_mutex_lock(&b->mutex);
    int is_cancelled = j->is_cancelled;
    pthread_mutex_unlock(&b->mutex);
    if (is_cancelled) {
        neap_batch_fail(b, j, NEAP_FINISH_CANCELLED, NEAP_OK);
        return;
    }
    neap_seq *seq = NULL;
    j->request.user = j;
    neap_status status = neap_submit(b->engine, &j->request, &seq);
    free_request(&j->request); /* the engine has its own */
    if (status != NEAP_OK) {
        const char *text = neap_last_error();
        snprintf(j->error, sizeof j->error, "%s", text != NULL && text[0] != 0 ? text : neap_status_text(status));
        neap_batch_fail(b, j, NEAP_FINISH_ERROR, status);
        return;
    }
    add_active(b, j);
    neap_batch_accept(b, j);
    pthread_mutex_lock(&b->mutex);
    j->seq = seq;
    if (j->is_cancelled) (void)neap_cancel(seq);
    if (j->is_paused) (void)neap_pause(seq, 1);
    pthread_mutex_unlock(&b->mutex);
}

void neap_jobs_submit(neap_backend *b, neap_job *first) {
    for (neap_job *j = first, *next; j != NULL; j = next) {
        next = j->next;
        submit_one(b, j);
    }
}

size_t neap_jobs_poll(neap_backend *b) {
    size_t n = 0;
    neap_event e = {.struct_size = sizeof e};
    while (neap_poll(b->engine, &e) == NEAP_OK) {
        neap_job *j = e.user;
        n++;
        if (e.kind == NEAP_EVENT_BEGIN) j->is_begun = 1;
        if (e.kind != NEAP_EVENT_DONE) {
            neap_batch_add(b, j, &e);
            continue;
        }
        if (e.finish == NEAP_FINISH_ERROR) snprintf(j->error, sizeof j->error, "%s", neap_status_text(e.status));
        remove_active(b, j);
        neap_batch_add(b, j, &e); /* its text is borrowed until the next call */
        free_seq(j);
    }
    return n;
}

double neap_jobs_deadlines(neap_backend *b) {
    double now = neap_cli_seconds(), first = 0;
    for (neap_job *j = b->active; j != NULL; j = j->next) {
        if (j->timed_out != 0) continue;
        if (j->deadline > 0 && now >= j->deadline) j->timed_out = 1;
        if (j->queue_deadline > 0 && !j->is_begun && now >= j->queue_deadline) j->timed_out = 2;
        if (j->timed_out != 0) {
            (void)neap_cancel(j->seq); /* only this thread frees it */
            first = now;               /* one more step */
            continue;
        }
        double mine = j->deadline;
        if (j->queue_deadline > 0 && !j->is_begun && (mine == 0 || j->queue_deadline < mine)) mine = j->queue_deadline;
        if (mine > 0 && (first == 0 || mine < first)) first = mine;
    }
    return first;
}

void neap_jobs_fail_all(neap_backend *b, neap_job *inbox, neap_status status) {
    while (b->active != NULL) {
        neap_job *j = b->active;
        remove_active(b, j);
        free_seq(j);
        snprintf(j->error, sizeof j->error, "%s", neap_status_text(status));
        neap_batch_fail(b, j, NEAP_FINISH_ERROR, status);
    }
    for (neap_job *j = inbox, *next; j != NULL; j = next) {
        next = j->next;
        snprintf(j->error, sizeof j->error, "%s", neap_status_text(status));
        neap_batch_fail(b, j, NEAP_FINISH_ERROR, status);
    }
}

/* ---- loop thread ---- */

/* Under the mutex. */
static void wake(neap_backend *b) {
    if (!b->is_woken) b->woken = neap_cli_seconds();
    b->is_woken = 1;
    pthread_cond_signal(&b->wake);
}

neap_job *neap_job_submit(neap_backend *b, const neap_request *request, neap_shared_grammar *grammar,
                          double deadline_seconds, double queue_seconds, const neap_job_callbacks *callbacks) {
    neap_job *j = neap_cli_alloc(1, sizeof *j);
    double now = neap_cli_seconds();
    j->b = b;
    copy_request(&j->request, request);
    j->grammar = grammar;
    if (grammar != NULL) grammar->holds++;
    j->request.grammar = grammar != NULL ? grammar->grammar : NULL;
    j->callbacks = *callbacks;
    j->deadline = deadline_seconds > 0 ? now + deadline_seconds : 0;
    j->queue_deadline = queue_seconds > 0 ? now + queue_seconds : 0;
    j->all_next = b->jobs;
    if (b->jobs != NULL) b->jobs->all_before = j;
    b->jobs = j;
    if (b->outbox_last != NULL)
        b->outbox_last->next = j;
    else
        b->outbox = j;
    b->outbox_last = j;
    return j;
}

void neap_jobs_go(neap_backend *b) {
    if (b->outbox == NULL) return;
    pthread_mutex_lock(&b->mutex);
    if (b->inbox_last != NULL)
        b->inbox_last->next = b->outbox;
    else
        b->inbox = b->outbox;
    b->inbox_last = b->outbox_last;
    wake(b);
    pthread_mutex_unlock(&b->mutex);
    b->outbox = b->outbox_last = NULL;
}

void neap_job_cancel(neap_job *j) {
    neap_backend *b = j->b;
    if (j->is_done) return;
    pthread_mutex_lock(&b->mutex);
    j->is_cancelled = 1;
    if (j->seq != NULL) (void)neap_cancel(j->seq);
    wake(b);
    pthread_mutex_unlock(&b->mutex);
}

void neap_job_pause(neap_job *j, int32_t is_paused) {
    neap_backend *b = j->b;
    if (j->is_done) return;
    pthread_mutex_lock(&b->mutex);
    j->is_paused = is_paused;
    if (j->seq != NULL) (void)neap_pause(j->seq, is_paused);
    wake(b);
    pthread_mutex_unlock(&b->mutex);
}

const char *neap_job_error(const neap_job *j) { return j->error; }

int neap_job_timed_out(const neap_job *j) { return j->timed_out; }

void neap_job_free(neap_job *j) {
    if (j == NULL) return;
    if (j->is_done) {
        finish_job(j);
        return;
    }
    j->is_freed = 1;
    neap_job_cancel(j);
}

void neap_jobs_free(neap_backend *b) {
    while (b->jobs != NULL) finish_job(b->jobs);
}
