/* Tasks of loading, dealt out to a few threads one by one.
 *
 * Called by pack.c and packed_read.c. Owns the threads and their scratch memory during a call. */
#include "models/crew.h"

#include "base/arena.h"
#include "base/clock.h"

enum { THREADS_MAX = 64 };

static void record_failure(neap_crew *c, int64_t i, neap_status status) {
    atomic_store(&c->is_stopped, true);
    (void)pthread_mutex_lock(&c->lock);
    if (c->failed_task < 0 || i < c->failed_task) {
        c->failed_task = i;
        c->failed_status = status;
        neap_error_copy(c->failed_text, sizeof c->failed_text);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

static uint64_t now_ms(void) { return (uint64_t)neap_clock_ns() / 1000000; }

static void tell(const neap_crew *c, uint64_t *last_ms, bool is_end) {
    if (c->progress == NULL) return;
    uint64_t now = now_ms(), done = atomic_load(&c->bytes_done);
    if (!is_end && now - *last_ms < 100) return;
    *last_ms = now;
    c->progress(c->progress_user, c->what, is_end || done > c->bytes_total ? c->bytes_total : done, c->bytes_total);
}

static void work(neap_crew *c, bool is_caller) {
    void *scratch = NULL;
    uint64_t last_ms = 0;
    neap_status status = neap_mem_alloc((size_t)c->scratch_bytes + 64, &scratch);
    if (status != NEAP_OK) {
        record_failure(c, 0, status);
        return;
    }
    while (!atomic_load(&c->is_stopped)) {
        int64_t i = atomic_fetch_add(&c->next, 1);
        if (i >= c->n_tasks) break;
        status = c->task(c->user, i, scratch);
        if (status != NEAP_OK) record_failure(c, i, status);
        if (is_caller) tell(c, &last_ms, false);
    }
    neap_mem_free(scratch);
}

static void *thread_main(void *arg) {
    work(arg, false);
    return NULL;
}

neap_status neap_crew_run(neap_crew *c) {
    pthread_t threads[THREADS_MAX];
    int32_t n = 0, n_wanted = c->n_threads < THREADS_MAX ? c->n_threads : THREADS_MAX;
    atomic_init(&c->next, 0);
    atomic_init(&c->bytes_done, 0);
    atomic_init(&c->is_stopped, false);
    c->failed_task = -1;
    (void)pthread_mutex_init(&c->lock, NULL);
    for (; n < n_wanted - 1 && n + 1 < c->n_tasks; n++)
        if (pthread_create(&threads[n], NULL, thread_main, c) != 0) break;
    work(c, true);
    for (int32_t i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&c->lock);
    if (c->failed_task >= 0) return neap_fail(c->failed_status, "%s", c->failed_text);
    uint64_t last_ms = 0;
    tell(c, &last_ms, true);
    return NEAP_OK;
}
