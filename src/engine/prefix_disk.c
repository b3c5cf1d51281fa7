/* The prefix cache's copy on disk, seen from the engine: open, queue, settle, close (prefix_disk.h).
 *
 *   engine's thread                          thread of its own (prefix_disk_work.c)
 *   save: hold, copy of tokens, queue   ->   writes a link: longest chain on disk, then what is missing
 *   load: room in the cache, queue      ->   reads, checks, fills the room
 *   settle: release, publish or abandon <-   done
 *
 * The salt. Keys and the hash of a space's name begin with 16 random bytes that lie in the directory. So a file's name
 * says nothing to whoever sees only names, nobody can make two prompts of one key, and the same space has another hash
 * in another directory. It is mixed into the model's key too: files of a lost salt are as good as another model's.
 *
 * Called by the engine. Owns the thread, the directory's descriptor and one block of memory. */
#include "engine/prefix_disk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "engine/prefix_disk_inner.h"

static const int64_t CLOSE_NS = INT64_C(5000000000);
static const char SALT_NAME[] = "salt.prefix";

/* ---- keys ---- */

static void hash(const neap_prefix_disk *d, const char *what, const void *data, size_t n,
                 uint8_t out[2 * NEAP_PREFIX_KEY]) {
    neap_sha256 s;
    neap_sha256_begin(&s);
    neap_sha256_add(&s, d->salt, sizeof d->salt);
    neap_sha256_add(&s, what, strlen(what) + 1);
    neap_sha256_add(&s, d->shape.model, sizeof d->shape.model);
    neap_sha256_add(&s, data, n);
    neap_sha256_end(&s, out);
}

void neap_prefix_chain_begin(const neap_prefix_disk *d, const char *space, uint8_t name[NEAP_PREFIX_KEY],
                             neap_prefix_chain *c) {
    uint8_t digest[NEAP_SHA256_BYTES];
    if (space == NULL) space = "";
    hash(d, "chain", space, strlen(space), digest);
    memcpy(c, digest, sizeof *c);
    hash(d, "space", space, strlen(space), digest);
    memcpy(name, digest, NEAP_PREFIX_KEY);
}

void neap_prefix_chain_key(const neap_prefix_chain *c, int64_t n, uint8_t key[NEAP_PREFIX_KEY]) {
    uint64_t a = neap_checksum_mix(c->a, (uint64_t)n), b = neap_checksum_mix(c->b, a);
    a = neap_checksum_mix(a ^ b >> 32, b);
    b = neap_checksum_mix(b ^ a >> 32, c->b);
    a ^= b >> 29;
    memcpy(key, &a, sizeof a);
    memcpy(key + sizeof a, &b, sizeof b);
}

/* ---- memory ---- */

static void *take(char *base, uint64_t *used, uint64_t bytes) {
    void *p = base != NULL ? base + *used : NULL;
    *used += (bytes + 63) & ~UINT64_C(63);
    return p;
}

/* Everything that open claims; base NULL: only counts. */
static bool lay_out(neap_prefix_disk *d, char *base, uint64_t *bytes) {
    uint64_t used = 0, room, notes, n_chunks;
    const neap_prefix_shape *s = &d->shape;
    if (!neap_prefix_file_room(s, &room, &notes, &n_chunks)) return false;
    const uint64_t tokens = (uint64_t)s->n_max * sizeof(int32_t);
    void *index = take(base, &used, neap_prefix_index_bytes(s->n_max));
    if (base != NULL) neap_prefix_index_init(&d->index, index, s->n_max);
    void *lent = take(base, &used, room);
    if (base != NULL) neap_store_lend(&d->store, lent, (size_t)room);
    d->notes = take(base, &used, notes);
    d->sizes = take(base, &used, n_chunks * sizeof(uint32_t));
    d->page = take(base, &used, s->page_bytes);
    d->load.tokens = take(base, &used, tokens);
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) d->jobs[i].tokens = take(base, &used, tokens);
    *bytes = used;
    return true;
}

/* From the specs alone, so that it can be announced before there are caches. */
static neap_prefix_shape shape_of(const neap_caches *c) {
    neap_prefix_shape s = {.state_bytes = neap_caches_state_bytes(c),
                           .n_max = (int64_t)c->slot_pages_max * NEAP_PAGE_ROWS};
    for (int32_t i = 0; i < c->n_layers; i++) {
        const neap_cache_layer_spec *l = &c->specs[i];
        if (l->latent.r > 0) s.page_bytes += (uint64_t)neap_latent_page_bytes(&l->latent);
        if (l->index.d > 0) s.page_bytes += (uint64_t)neap_index_page_bytes(&l->index);
    }
    return s;
}

bool neap_prefix_disk_bytes(const neap_caches *c, uint64_t *bytes) {
    neap_prefix_disk d = {.shape = shape_of(c)};
    if (!lay_out(&d, NULL, bytes)) return false;
    *bytes += sizeof d;
    return true;
}

/* ---- the directory ---- */

/* Under a lock of the directory, so that of two processes which find none, one makes it and both use it. */
static neap_status read_salt(neap_prefix_disk *d) {
    const neap_store_about about = {.kind = NEAP_STORE_PREFIX, .origin = "prefix cache"};
    size_t n = 0;
    neap_status status = neap_store_get(&d->store, SALT_NAME, about.kind, about.key, d->salt, sizeof d->salt, &n);
    if (status == NEAP_OK && n == sizeof d->salt) return NEAP_OK;
    if (status == NEAP_IO || status == NEAP_NO_MEMORY) return status;
    NEAP_CHECK(getrandom(d->salt, sizeof d->salt, 0) == (ssize_t)sizeof d->salt, NEAP_IO, "%s: no random numbers: %s",
               d->store.path, strerror(errno));
    return neap_store_put(&d->store, SALT_NAME, &about, d->salt, sizeof d->salt);
}

static neap_status find_salt(neap_prefix_disk *d) {
    int locked, fd = openat(d->store.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NEAP_CHECK(fd >= 0, NEAP_IO, "%s: %s", d->store.path, strerror(errno));
    do {
        locked = flock(fd, LOCK_EX);
    } while (locked != 0 && errno == EINTR);
    neap_status status = read_salt(d);
    (void)close(fd);
    if (status != NEAP_OK) return status;
    uint8_t digest[NEAP_SHA256_BYTES];
    hash(d, "model", "", 0, digest);
    memcpy(d->shape.model, digest, sizeof d->shape.model);
    return NEAP_OK;
}

static void refuse(neap_prefix_disk *d, const char *name) {
    char text[NEAP_PREFIX_TEXT];
    bool is_removed = false;
    neap_error_copy(text, sizeof text);
    neap_status status = neap_store_remove(&d->store, name, false, &is_removed);
    (void)status;
    if (d->n_rejected++ == 0)
        neap_log_write(&d->log, NEAP_LOG_WARN, "a prefix on disk is not used%s: %s", is_removed ? " and removed" : "",
                       text);
}

static int64_t used_at(const struct stat *st) {
    int64_t read = (int64_t)st->st_atim.tv_sec * 1000000000 + st->st_atim.tv_nsec;
    int64_t written = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
    return read > written ? read : written;
}

static void list_file(neap_prefix_disk *d, const char *name) {
    neap_prefix_entry e = {.kind = NEAP_PREFIX_LINK};
    neap_prefix_link l = {.n = 0};
    neap_store_reader *r = NULL;
    struct stat st;
    if (!neap_prefix_file_key(name, e.key) || neap_prefix_index_find(&d->index, e.key) >= 0) return;
    if (fstatat(d->store.fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    neap_status status = neap_prefix_file_open(&r, &l, &d->store, &d->shape, e.key);
    neap_store_reader_close(r); /* NULL is fine */
    if (status == NEAP_BAD_FILE) refuse(d, name);
    if (status != NEAP_OK && status != NEAP_UNSUPPORTED) return;
    if (status == NEAP_UNSUPPORTED) e.kind = NEAP_PREFIX_FOREIGN;
    memcpy(e.before, l.before, sizeof e.before);
    e.n_before = l.n_before;
    e.n = l.n;
    e.bytes = (uint64_t)st.st_size;
    e.used = used_at(&st);
    (void)neap_prefix_index_add(&d->index, &e);
    if (d->index.n_used == d->index.capacity) neap_prefix_disk_prune(d);
}

/* A link whose predecessor was not there yet when the directory was read: another process is writing. One whose
 * predecessor is not there now is of no use. */
static void join_links(neap_prefix_disk *d) {
    neap_prefix_index *x = &d->index;
    char name[NEAP_PREFIX_NAME];
    for (int32_t i = 0; i < x->n_ever; i++) {
        const neap_prefix_entry *e = &x->entries[i];
        if (e->kind != NEAP_PREFIX_LINK || e->n_before == 0) continue;
        neap_prefix_file_name(e->before, name);
        list_file(d, name);
    }
    for (int32_t i = 0; i < x->n_ever; i++)
        if (x->entries[i].kind == NEAP_PREFIX_LINK) (void)neap_prefix_index_join(x, i);
    for (int32_t i = 0; i < x->n_ever; i++) {
        const neap_prefix_entry *e = &x->entries[i];
        if (e->kind != NEAP_PREFIX_LINK || e->n_before == 0 || e->parent >= 0) continue;
        uint8_t key[NEAP_PREFIX_KEY];
        memcpy(key, e->key, sizeof key);
        neap_prefix_disk_drop(d, key, true);
    }
    for (int32_t i = 0; i < x->n_ever; i++) /* who continues it was used later */
        if (x->entries[i].kind == NEAP_PREFIX_LINK) neap_prefix_index_use(x, i, x->entries[i].used);
}

static neap_status list(neap_prefix_disk *d) {
    int fd = openat(d->store.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        int error = errno;
        if (fd >= 0) (void)close(fd);
        NEAP_FAIL(NEAP_IO, "%s: cannot list the directory: %s", d->store.path, strerror(error));
    }
    for (const struct dirent *e = readdir(stream); e != NULL; e = readdir(stream)) list_file(d, e->d_name);
    (void)closedir(stream);
    join_links(d);
    neap_prefix_disk_prune(d);
    if (d->n_rejected > 1)
        neap_log_write(&d->log, NEAP_LOG_WARN, "%s: %llu prefixes were damaged", d->store.path,
                       (unsigned long long)d->n_rejected);
    return NEAP_OK;
}

/* ---- open and close ---- */

/* Signals that tell of a fault of the thread itself, and the profiler's, stay with it. */
static neap_status start_thread(neap_prefix_disk *d) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    const int error = pthread_create(&d->thread, NULL, neap_prefix_disk_main, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    NEAP_CHECK(error == 0, NEAP_LIMIT, "cannot start the thread of the prefix cache: %s", strerror(error));
    d->is_started = true;
    return NEAP_OK;
}

static void make_locks(neap_prefix_disk *d) {
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->work, NULL);
    (void)pthread_cond_init(&d->done, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

static neap_status start(neap_prefix_disk *d, const neap_prefix_disk_options *o) {
    uint64_t bytes = 0;
    NEAP_CHECK(lay_out(d, NULL, &bytes) && bytes <= SIZE_MAX, NEAP_LIMIT, "prefix cache on disk: sizes overflow");
    NEAP_TRY(neap_store_open(&d->store, o->dir, true));
    NEAP_TRY(neap_mem_alloc((size_t)bytes, &d->memory));
    (void)lay_out(d, d->memory, &bytes);
    neap_store_sweep(&d->store);
    NEAP_TRY(find_salt(d));
    NEAP_TRY(list(d));
    return start_thread(d);
}

neap_status neap_prefix_disk_open(neap_prefix_disk **out, neap_prefix *p, neap_caches *c,
                                  const neap_prefix_disk_options *o) {
    *out = NULL;
    void *memory;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_prefix_disk), &memory));
    neap_prefix_disk *d = memory;
    d->prefix = p;
    d->caches = c;
    d->store.fd = -1;
    d->shape = shape_of(c);
    assert(d->shape.page_bytes == neap_caches_page_bytes(c));
    memcpy(d->shape.model, o->model_key, sizeof d->shape.model);
    d->bytes_max = o->bytes_max;
    d->log = o->log;
    make_locks(d);
    neap_status status = start(d, o);
    if (status != NEAP_OK) {
        neap_prefix_disk_close(d);
        return status;
    }
    *out = d;
    return NEAP_OK;
}

/* Lines of the thread reach the log here. Lock held; it is let go meanwhile. */
static void write_log(neap_prefix_disk *d) {
    char text[NEAP_PREFIX_TEXT];
    if (d->text[0] == 0) return;
    neap_log_level level = d->level;
    unsigned long long n = d->n_unsaid;
    memcpy(text, d->text, sizeof text);
    d->text[0] = 0;
    d->n_unsaid = 0;
    (void)pthread_mutex_unlock(&d->lock);
    neap_log_write(&d->log, level, "%s", text);
    if (n > 0) neap_log_write(&d->log, level, "prefix cache on disk: %llu more such lines", n);
    (void)pthread_mutex_lock(&d->lock);
}

static void stop_thread(neap_prefix_disk *d) {
    (void)pthread_mutex_lock(&d->lock);
    d->is_stopping = true;
    d->stop_at = neap_clock_ns() + CLOSE_NS;
    if (d->load.state == NEAP_PREFIX_QUEUED) {
        d->load.status = NEAP_CANCELLED;
        d->load.state = NEAP_PREFIX_DONE;
    }
    (void)pthread_cond_signal(&d->work);
    (void)pthread_mutex_unlock(&d->lock);
    (void)pthread_join(d->thread, NULL);
}

void neap_prefix_disk_close(neap_prefix_disk *d) {
    if (d == NULL) return;
    if (d->is_started) {
        stop_thread(d);
        (void)neap_prefix_disk_settle(d);
    }
    neap_store_close(&d->store);
    (void)pthread_cond_destroy(&d->done);
    (void)pthread_cond_destroy(&d->work);
    (void)pthread_mutex_destroy(&d->lock);
    neap_mem_free(d->memory);
    neap_mem_free(d);
}

/* ---- the engine's thread ---- */

static neap_prefix_job *free_job(neap_prefix_disk *d, const uint8_t key[NEAP_PREFIX_KEY]) {
    neap_prefix_job *job = NULL;
    if (neap_clock_ns() < d->retry_at || neap_prefix_index_find(&d->index, key) >= 0) return NULL;
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) {
        if (d->jobs[i].state == NEAP_PREFIX_IDLE)
            job = &d->jobs[i];
        else if (memcmp(d->jobs[i].key, key, NEAP_PREFIX_KEY) == 0)
            return NULL;
    }
    return job;
}

void neap_prefix_disk_save(neap_prefix_disk *d, const char *space, const int32_t *tokens, int64_t n) {
    uint8_t name[NEAP_PREFIX_KEY], key[NEAP_PREFIX_KEY];
    neap_prefix_chain begin, c;
    if (n < NEAP_PREFIX_LINK_MIN || n > d->shape.n_max) return;
    neap_prefix_chain_begin(d, space, name, &begin);
    c = begin;
    for (int64_t i = 0; i < n; i++) neap_prefix_chain_add(&c, tokens[i]);
    neap_prefix_chain_key(&c, n, key);
    (void)pthread_mutex_lock(&d->lock);
    neap_prefix_job *job = free_job(d, key);
    (void)pthread_mutex_unlock(&d->lock);
    /* An idle job is this thread's. */
    if (job == NULL || neap_prefix_hold_at(d->prefix, space, tokens, n, &job->hold) != NEAP_OK) return;
    memcpy(job->space, name, sizeof name);
    memcpy(job->key, key, sizeof key);
    memcpy(job->tokens, tokens, (size_t)n * sizeof *tokens);
    job->begin = begin;
    job->n = n;
    (void)pthread_mutex_lock(&d->lock);
    job->number = d->n_jobs++;
    job->state = NEAP_PREFIX_QUEUED;
    (void)pthread_cond_signal(&d->work);
    (void)pthread_mutex_unlock(&d->lock);
}

int64_t neap_prefix_disk_find(const neap_prefix_disk *d, const char *space, const int32_t *tokens, int64_t n_max) {
    uint8_t name[NEAP_PREFIX_KEY], key[NEAP_PREFIX_KEY];
    neap_prefix_chain c;
    neap_prefix_chain_begin(d, space, name, &c);
    return neap_prefix_disk_longest(d, c, tokens, n_max, key);
}

neap_status neap_prefix_disk_load(neap_prefix_disk *d, const char *space, const int32_t *tokens, int64_t n_max) {
    neap_prefix_load *load = &d->load;
    neap_prefix_chain c;
    neap_prefix_match match;
    (void)pthread_mutex_lock(&d->lock);
    bool is_idle = load->state == NEAP_PREFIX_IDLE;
    (void)pthread_mutex_unlock(&d->lock);
    NEAP_CHECK(is_idle, NEAP_BUSY, "another prefix is being loaded");
    neap_prefix_chain_begin(d, space, load->space, &c);
    load->n = neap_prefix_disk_longest(d, c, tokens, n_max, load->key);
    NEAP_CHECK(load->n > 0, NEAP_NOT_FOUND, "no prefix on disk");
    neap_prefix_find(d->prefix, space, tokens, n_max, &match);
    NEAP_CHECK(load->n > match.n_usable, NEAP_NOT_FOUND, "no longer prefix on disk");
    NEAP_TRY(neap_prefix_reserve(d->prefix, space, tokens, load->n, &load->room));
    memcpy(load->tokens, tokens, (size_t)load->n * sizeof *tokens);
    (void)pthread_mutex_lock(&d->lock);
    load->state = NEAP_PREFIX_QUEUED;
    (void)pthread_cond_signal(&d->work);
    (void)pthread_mutex_unlock(&d->lock);
    return NEAP_OK;
}

/* Lock held. */
static void settle_load(neap_prefix_disk *d) {
    neap_prefix_load *load = &d->load;
    load->state = NEAP_PREFIX_IDLE;
    if (load->status != NEAP_OK)
        neap_prefix_abandon(d->prefix);
    else if (neap_prefix_publish(d->prefix) == NEAP_OK)
        d->n_loaded++;
}

bool neap_prefix_disk_settle(neap_prefix_disk *d) {
    (void)pthread_mutex_lock(&d->lock);
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) {
        neap_prefix_job *job = &d->jobs[i];
        if (job->state != NEAP_PREFIX_DONE) continue;
        neap_prefix_release(d->prefix, &job->hold);
        job->state = NEAP_PREFIX_IDLE;
    }
    if (d->load.state == NEAP_PREFIX_DONE) settle_load(d);
    write_log(d);
    bool is_loading = d->load.state != NEAP_PREFIX_IDLE;
    (void)pthread_mutex_unlock(&d->lock);
    return is_loading;
}

bool neap_prefix_disk_is_busy(const neap_prefix_disk *d) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&d->lock; /* not part of what const promises */
    (void)pthread_mutex_lock(lock);
    bool is_busy = d->load.state != NEAP_PREFIX_IDLE;
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) is_busy |= d->jobs[i].state != NEAP_PREFIX_IDLE;
    (void)pthread_mutex_unlock(lock);
    return is_busy;
}

/* Something is under way and nothing has ended that settle does not know. */
static bool is_waiting(const neap_prefix_disk *d) {
    bool is_busy = d->load.state == NEAP_PREFIX_QUEUED || d->load.state == NEAP_PREFIX_RUNNING;
    if (d->load.state == NEAP_PREFIX_DONE) return false;
    for (int i = 0; i < NEAP_PREFIX_JOBS; i++) {
        if (d->jobs[i].state == NEAP_PREFIX_DONE) return false;
        if (d->jobs[i].state != NEAP_PREFIX_IDLE) is_busy = true;
    }
    return is_busy;
}

void neap_prefix_disk_wait(neap_prefix_disk *d, int32_t milliseconds) {
    int64_t end = neap_clock_ns() + (int64_t)milliseconds * 1000000;
    const struct timespec at = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    int error = 0;
    (void)pthread_mutex_lock(&d->lock);
    while (error == 0 && is_waiting(d)) error = pthread_cond_timedwait(&d->done, &d->lock, &at);
    (void)pthread_mutex_unlock(&d->lock);
}

void neap_prefix_disk_statistics(const neap_prefix_disk *d, neap_prefix_disk_stats *out) {
    pthread_mutex_t *lock = (pthread_mutex_t *)&d->lock;
    (void)pthread_mutex_lock(lock);
    *out = (neap_prefix_disk_stats){
        .n_saved = d->n_saved, .n_loaded = d->n_loaded, .n_rejected = d->n_rejected, .bytes = d->index.bytes};
    (void)pthread_mutex_unlock(lock);
}
