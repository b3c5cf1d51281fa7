/* The thread of the prefix cache on disk: writes what was queued, reads what is wanted, removes what is too much.
 *
 * Loads come before writes, because somebody waits for them. The lock is held to look into the index and to change
 * states of jobs, never during an access to the disk. Only this thread changes the index (before it starts: whoever
 * opens), so what it saw there stays until it goes on itself.
 *
 * A write that fails (full disk, no rights) costs one warning and a minute without writing; the rest goes on. A load
 * that fails leaves nothing visible; the files that are to blame go, with those that continue them. Log lines are kept
 * for the engine's thread, because the caller's log function is called from there only.
 *
 * Called by prefix_disk.c. Owns nothing. */
#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "engine/prefix_disk_inner.h"

static const int64_t RETRY_NS = INT64_C(60000000000);
enum { WALK_TOKENS = 4096 }; /* between two takings of the lock */

static void lock(const neap_prefix_disk *d) { (void)pthread_mutex_lock((pthread_mutex_t *)&d->lock); }
static void unlock(const neap_prefix_disk *d) { (void)pthread_mutex_unlock((pthread_mutex_t *)&d->lock); }

static int64_t now_since_1970(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* compared with times of files */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void neap_prefix_disk_say(neap_prefix_disk *d, neap_log_level level, const char *format, ...) {
    if (d->text[0] != 0) {
        d->n_unsaid++;
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(d->text, sizeof d->text, format, args);
    va_end(args);
    d->level = level;
}

/* ---- the index ---- */

int64_t neap_prefix_disk_longest(const neap_prefix_disk *d, neap_prefix_chain c, const int32_t *tokens, int64_t n,
                                 uint8_t key[NEAP_PREFIX_KEY]) {
    const neap_prefix_index *x = &d->index;
    int64_t found = 0, at = 0;
    bool is_end = false;
    while (!is_end) {
        lock(d);
        int64_t end = n < x->n_longest ? n : x->n_longest;
        int64_t stop = end - at > WALK_TOKENS ? at + WALK_TOKENS : end;
        while (at < stop) {
            uint8_t here[NEAP_PREFIX_KEY];
            neap_prefix_chain_add(&c, tokens[at++]);
            if (x->lengths[at] == 0) continue;
            neap_prefix_chain_key(&c, at, here);
            int32_t i = neap_prefix_index_find(x, here);
            if (i < 0 || x->entries[i].kind != NEAP_PREFIX_LINK || x->entries[i].n != at) continue;
            found = at;
            memcpy(key, here, sizeof here);
        }
        is_end = stop == end;
        unlock(d);
    }
    return found;
}

static void remove_file(const neap_prefix_disk *d, const uint8_t key[NEAP_PREFIX_KEY]) {
    char name[NEAP_PREFIX_NAME];
    bool is_removed = false;
    neap_prefix_file_name(key, name);
    neap_status status = neap_store_remove(&d->store, name, false, &is_removed);
    (void)status; /* what cannot be removed is not used all the same */
}

void neap_prefix_disk_drop(neap_prefix_disk *d, const uint8_t key[NEAP_PREFIX_KEY], bool with_files) {
    for (bool is_end = false; !is_end;) {
        uint8_t leaf[NEAP_PREFIX_KEY];
        lock(d);
        int32_t i = neap_prefix_index_find(&d->index, key);
        is_end = i < 0;
        if (i >= 0) {
            i = neap_prefix_index_leaf(&d->index, i);
            memcpy(leaf, d->index.entries[i].key, sizeof leaf);
            neap_prefix_index_remove(&d->index, i);
        }
        unlock(d);
        if (!is_end && with_files) remove_file(d, leaf);
    }
}

/* Also when there is no room in the index for one more. */
static bool remove_oldest(neap_prefix_disk *d) {
    uint8_t key[NEAP_PREFIX_KEY];
    lock(d);
    bool is_over = d->index.bytes > d->bytes_max || d->index.n_used >= d->index.capacity;
    int32_t i = is_over ? neap_prefix_index_oldest(&d->index) : NEAP_PREFIX_NONE;
    if (i >= 0) {
        memcpy(key, d->index.entries[i].key, sizeof key);
        neap_prefix_index_remove(&d->index, i);
    }
    unlock(d);
    if (i >= 0) remove_file(d, key);
    return i >= 0;
}

void neap_prefix_disk_prune(neap_prefix_disk *d) {
    while (remove_oldest(d)) continue;
}

/* ---- writing ---- */

typedef struct work {
    neap_prefix_disk *d;
    const neap_prefix_job *job;
} work;

static const uint8_t *page_of(void *user, int32_t page) {
    const work *w = user;
    lock(w->d);
    bool is_late = w->d->is_stopping && neap_clock_ns() > w->d->stop_at;
    unlock(w->d);
    if (is_late) return NULL;
    neap_caches_page_read(w->d->caches, w->job->hold.pages[page], w->d->page);
    return w->d->page;
}

/* Where the link begins: behind the longest that is here. A chain of very many links would be read in very many
 * pieces, so then it branches off half way up. */
static int64_t choose_before(const neap_prefix_disk *d, const neap_prefix_job *job, uint8_t before[NEAP_PREFIX_KEY]) {
    int64_t n_before = neap_prefix_disk_longest(d, job->begin, job->tokens, job->n, before);
    if (n_before == 0) return 0;
    lock(d);
    const neap_prefix_entry *e = d->index.entries;
    int32_t i = neap_prefix_index_find(&d->index, before), depth = 0;
    for (int32_t at = i; at >= 0; at = e[at].parent) depth++;
    if (depth >= NEAP_PREFIX_LINKS_MAX) {
        for (int32_t up = depth / 2; up > 0; up--) i = e[i].parent;
        n_before = e[i].n;
        memcpy(before, e[i].key, NEAP_PREFIX_KEY);
    }
    unlock(d);
    return n_before;
}

static void add_written(neap_prefix_disk *d, const neap_prefix_link *l, uint64_t bytes) {
    neap_prefix_entry e = {.n_before = l->n_before, .n = l->n, .bytes = bytes, .kind = NEAP_PREFIX_LINK};
    memcpy(e.key, l->key, sizeof e.key);
    memcpy(e.before, l->before, sizeof e.before);
    lock(d);
    int32_t i = neap_prefix_index_add(&d->index, &e);
    bool is_joined = neap_prefix_index_join(&d->index, i); /* the link before it was there when this one was chosen */
    assert(is_joined);
    (void)is_joined;
    neap_prefix_index_use(&d->index, i, now_since_1970());
    d->n_saved++;
    unlock(d);
}

static void write_ended(neap_prefix_disk *d, const neap_prefix_link *l, neap_status status) {
    char name[NEAP_PREFIX_NAME], text[NEAP_PREFIX_TEXT - 128];
    struct stat st;
    if (status == NEAP_BUSY || status == NEAP_CANCELLED) return; /* another process writes the same; too late */
    if (status == NEAP_OK) {
        neap_prefix_file_name(l->key, name);
        if (fstatat(d->store.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) add_written(d, l, (uint64_t)st.st_size);
    } else {
        neap_error_copy(text, sizeof text);
    }
    lock(d);
    if (status != NEAP_OK) {
        if (!d->is_failing) neap_prefix_disk_say(d, NEAP_LOG_WARN, "prefixes are not kept on disk for now: %s", text);
        d->retry_at = neap_clock_ns() + RETRY_NS;
    }
    d->is_failing = status != NEAP_OK;
    unlock(d);
    neap_prefix_disk_prune(d);
}

static bool may_write(const neap_prefix_disk *d) {
    int64_t now = neap_clock_ns();
    lock(d);
    bool may = now >= d->retry_at && !(d->is_stopping && now > d->stop_at);
    unlock(d);
    return may;
}

static void run_job(neap_prefix_disk *d, const neap_prefix_job *job) {
    neap_prefix_link l = {.n = job->n};
    if (!may_write(d)) return;
    l.n_before = choose_before(d, job, l.before);
    l.tokens = job->tokens + l.n_before;
    if (l.n - l.n_before < NEAP_PREFIX_LINK_MIN) return; /* also when it is here already */
    memcpy(l.key, job->key, sizeof l.key);
    memcpy(l.space, job->space, sizeof l.space);
    if (neap_prefix_file_bytes(&d->shape, &l) > d->bytes_max) return;
    if (job->hold.state != NULL && !neap_prefix_is_finite(job->hold.state, d->shape.state_bytes)) return;
    neap_prefix_source from = {
        .page = page_of, .user = &(work){d, job}, .state = job->hold.state, .notes = d->notes, .sizes = d->sizes};
    write_ended(d, &l, neap_prefix_file_write(&d->store, &d->shape, &l, &from));
}

/* ---- reading ---- */

static bool is_stopping(const neap_prefix_disk *d) {
    lock(d);
    bool is = d->is_stopping;
    unlock(d);
    return is;
}

/* One link: its tokens are compared; its pages below *upto that are wanted are read, and the state if it is the last.
 * */
static neap_status load_link(neap_prefix_disk *d, const neap_store_reader *r, const neap_prefix_link *l, int64_t n,
                             int32_t *upto) {
    const neap_prefix_load *load = &d->load;
    const neap_prefix_room *room = &load->room;
    NEAP_CHECK(l->n == n && memcmp(l->space, load->space, NEAP_PREFIX_KEY) == 0 &&
                   memcmp(l->tokens, load->tokens + l->n_before, (size_t)(l->n - l->n_before) * sizeof(int32_t)) == 0,
               NEAP_BAD_FILE, "a prefix on disk is not what its name says");
    if (n == load->n && d->shape.state_bytes > 0) NEAP_TRY(neap_prefix_file_state(r, &d->shape, l, room->state));
    int32_t first = neap_prefix_first_page(l);
    for (int32_t i = first > room->first_page ? first : room->first_page; i < *upto; i++) {
        NEAP_CHECK(!is_stopping(d), NEAP_CANCELLED, "stopped");
        NEAP_TRY(neap_prefix_file_page(r, &d->shape, l, i, d->page));
        neap_caches_page_write(d->caches, room->pages[i], d->page);
    }
    if (first < *upto) *upto = first;
    neap_store_reader_used(r);
    return NEAP_OK;
}

/* From the end to the beginning. Each page comes from the last link that has it: there it is fullest. key: of the link
 * that failed. */
static neap_status load_chain(neap_prefix_disk *d, uint8_t key[NEAP_PREFIX_KEY]) {
    int32_t upto = d->load.room.n_pages;
    for (int64_t n = d->load.n; n > 0;) {
        neap_prefix_link l;
        neap_store_reader *r = NULL;
        NEAP_TRY(neap_prefix_file_open(&r, &l, &d->store, &d->shape, key));
        neap_status status = load_link(d, r, &l, n, &upto);
        neap_store_reader_close(r);
        if (status != NEAP_OK) return status;
        n = l.n_before;
        if (n > 0) memcpy(key, l.before, NEAP_PREFIX_KEY);
    }
    return NEAP_OK;
}

static void load_failed(neap_prefix_disk *d, neap_status status, const uint8_t key[NEAP_PREFIX_KEY]) {
    char text[NEAP_PREFIX_TEXT - 128];
    neap_error_copy(text, sizeof text);
    if (status == NEAP_CANCELLED) return;
    bool is_bad = status == NEAP_BAD_FILE || status == NEAP_UNSUPPORTED;
    bool is_gone = is_bad || status == NEAP_NOT_FOUND; /* else: trouble of now, which says nothing about the files */
    if (is_bad) remove_file(d, key);
    neap_prefix_disk_drop(d, key, is_gone);
    neap_prefix_disk_drop(d, d->load.key, is_gone); /* also where the index knew another chain */
    lock(d);
    if (is_bad) d->n_rejected++;
    if (status != NEAP_NOT_FOUND)
        neap_prefix_disk_say(d, NEAP_LOG_WARN, "a prefix on disk is not used%s: %s", is_bad ? " and removed" : "",
                             text);
    unlock(d);
}

static neap_status run_load(neap_prefix_disk *d) {
    uint8_t key[NEAP_PREFIX_KEY];
    memcpy(key, d->load.key, sizeof key);
    neap_status status = load_chain(d, key);
    if (status != NEAP_OK) {
        load_failed(d, status, key);
        return status;
    }
    lock(d);
    int32_t i = neap_prefix_index_find(&d->index, d->load.key);
    if (i >= 0) neap_prefix_index_use(&d->index, i, now_since_1970());
    unlock(d);
    return NEAP_OK;
}

/* ---- the thread ---- */

static neap_prefix_job *next_job(neap_prefix_disk *d) {
    neap_prefix_job *next = NULL;
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) {
        neap_prefix_job *job = &d->jobs[i];
        if (job->state == NEAP_PREFIX_QUEUED && (next == NULL || job->number < next->number)) next = job;
    }
    return next;
}

void *neap_prefix_disk_main(void *disk) {
    neap_prefix_disk *d = disk;
    (void)pthread_setname_np(pthread_self(), "neap-prefix");
    lock(d);
    for (;;) {
        neap_prefix_job *job = next_job(d);
        if (d->load.state == NEAP_PREFIX_QUEUED) {
            d->load.state = NEAP_PREFIX_RUNNING;
            unlock(d);
            neap_status status = run_load(d);
            lock(d);
            d->load.status = status;
            d->load.state = NEAP_PREFIX_DONE;
        } else if (job != NULL) {
            job->state = NEAP_PREFIX_RUNNING;
            unlock(d);
            run_job(d, job);
            lock(d);
            job->state = NEAP_PREFIX_DONE;
        } else if (d->is_stopping) {
            break;
        } else {
            (void)pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        (void)pthread_cond_broadcast(&d->done);
    }
    unlock(d);
    return NULL;
}
