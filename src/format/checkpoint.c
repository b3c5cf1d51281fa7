/* A checkpoint directory: shards with an index, or one model.safetensors.
 *
 *   open:  directory -> (index) -> shards in order of name -> header of each -> every name in one table
 *   read:  pread from the shard's descriptor, any thread
 *
 * What is checked beside the headers (header.c): a shard has exactly the tensors that the index gives it, each
 * listed tensor exists, no name occurs twice, the file is as long as its header says. Shards may be links (download
 * caches are built of them); the names in an index cannot leave the directory. What the index leaves unsaid is
 * refused rather than guessed: several shards without an index, an index beside a model.safetensors it does not name.
 *
 * Owns: one descriptor and one block of tensor headers per shard, the table of names. Nothing is mapped, so a file
 * that shrinks while in use is an error of the read that meets it, never a signal.
 */
#include "format/checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "format/digest.h"
#include "format/file.h"
#include "format/shard_index.h"

static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char SINGLE_NAME[] = "model.safetensors";
static const char SUFFIX[] = ".safetensors";
enum { INDEX_BYTES_MAX = 64 << 20, HEADER_BYTES_MAX = 100000000 };

typedef struct shard {
    int fd;
    char *name;                  /* as messages show it: directory/file */
    const char *base;            /* the file's own name, inside `name` */
    neap_stored_tensor *tensors; /* [n] in file order */
    int64_t n;
    int64_t first; /* global number of tensors[0] */
    atomic_ullong digest;
} shard;

struct neap_checkpoint {
    shard *shards;
    int32_t n_shards;
    int64_t n_tensors;
    uint64_t bytes;
    bool is_digested;
    neap_names names; /* tensor -> global number */
};

static neap_status join(char **out, const char *dir, const char *name, size_t n) {
    size_t n_dir = dir ? strlen(dir) : 0;
    while (n_dir > 1 && dir[n_dir - 1] == '/') n_dir--;
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(n_dir + n + 2, &memory));
    char *p = memory;
    if (dir) {
        memcpy(p, dir, n_dir);
        p[n_dir] = '/';
        p += n_dir + 1;
    }
    memcpy(p, name, n);
    *out = memory;
    return NEAP_OK;
}

/* ---- one file ---- */

static uint64_t little_endian(const unsigned char b[8]) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | b[i];
    return v;
}

/* Opens the file and scans its header; s->name is set. */
static neap_status shard_open(shard *s, int dir, const char *path, int32_t number) {
    uint64_t bytes = 0;
    unsigned char length[8];
    NEAP_TRY(neap_file_open(&s->fd, &bytes, dir, path, s->name));
    NEAP_CHECK(bytes >= 8, NEAP_BAD_FILE, "%s: %llu bytes, too short for a safetensors file", s->name,
               (unsigned long long)bytes);
    NEAP_TRY(neap_file_pread(s->fd, length, 8, 0, s->name));
    uint64_t n = little_endian(length);
    NEAP_CHECK(n <= HEADER_BYTES_MAX, NEAP_BAD_FILE, "%s: header length %llu, the limit is %d", s->name,
               (unsigned long long)n, HEADER_BYTES_MAX);
    NEAP_CHECK(n <= bytes - 8, NEAP_BAD_FILE, "%s: header length %llu, but the file has only %llu bytes", s->name,
               (unsigned long long)n, (unsigned long long)bytes);
    void *text = NULL;
    NEAP_TRY(neap_mem_alloc((size_t)n, &text));
    neap_status status = neap_file_pread(s->fd, text, (size_t)n, 8, s->name);
    if (status == NEAP_OK) {
        status = neap_header_scan(text, (size_t)n, bytes - 8 - n, &s->tensors, &s->n);
        if (status != NEAP_OK) status = neap_fail_prefix(status, "%s", s->name);
    }
    neap_mem_free(text);
    if (status != NEAP_OK) return status;
    for (int64_t i = 0; i < s->n; i++) {
        s->tensors[i].offset += 8 + n;
        s->tensors[i].shard = number;
    }
    return NEAP_OK;
}

static neap_status create(neap_checkpoint **out, size_t n_shards) {
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_checkpoint), &memory));
    neap_checkpoint *c = memory;
    neap_names_init(&c->names);
    neap_status status = neap_mem_alloc(n_shards * sizeof(shard), &memory);
    if (status != NEAP_OK) {
        neap_mem_free(c);
        return status;
    }
    c->shards = memory;
    *out = c;
    return NEAP_OK;
}

/* Adds one file. dir NULL: path stands alone. x NULL: no index to agree with. */
static neap_status add_shard(neap_checkpoint *c, int dir_fd, const char *dir, const char *path, size_t n_path,
                             const neap_index *x) {
    int32_t number = c->n_shards;
    shard *s = &c->shards[number];
    *s = (shard){.fd = -1};
    atomic_init(&s->digest, 0);
    NEAP_TRY(join(&s->name, dir, path, n_path));
    c->n_shards++; /* from here on close() cleans up */
    const char *slash = strrchr(s->name, '/');
    s->base = slash ? slash + 1 : s->name;
    s->first = c->n_tensors;
    NEAP_TRY(shard_open(s, dir_fd, dir ? s->base : s->name, number));
    for (int64_t i = 0; i < s->n; i++) {
        const neap_stored_tensor *t = &s->tensors[i];
        size_t n = strlen(t->name);
        int32_t listed = x ? neap_index_shard_of(x, t->name, n) : number;
        NEAP_CHECK(listed >= 0, NEAP_BAD_FILE, "%s: tensor '%.200s' is not listed in %s", s->name, t->name, INDEX_NAME);
        NEAP_CHECK(listed == number, NEAP_BAD_FILE, "%s: tensor '%.200s' lies here, %s says %.*s", s->name, t->name,
                   INDEX_NAME, neap_text_shown(x->shards[listed]), x->shards[listed].p);
        const neap_names_slot *old = NULL;
        NEAP_TRY(neap_names_add(&c->names, 0, t->name, n, (uint32_t)(s->first + i), &old));
        assert(!old); /* one header has no name twice, and the index gives a name to one shard */
        c->bytes += t->bytes;
    }
    c->n_tensors += s->n;
    return NEAP_OK;
}

/* ---- the directory ---- */

typedef struct listing {
    bool has_index, has_single;
    int32_t n_other;    /* other *.safetensors files */
    int32_t n_unlisted; /* of these: look like shards but are not in the index */
    char other[256];    /* one of them, for messages: the first by name */
    char unlisted[256];
} listing;

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && strcmp(name + n - k, suffix) == 0;
}

static void note(int32_t *count, char kept[256], const char *name) {
    if (*count == 0 || strcmp(name, kept) < 0) {
        size_t n = strnlen(name, 255);
        memcpy(kept, name, n);
        kept[n] = 0;
    }
    ++*count;
}

/* Looks at the names in the directory. x: the index when it is known. */
static neap_status list_directory(listing *l, int dir_fd, const char *dir, const neap_index *x) {
    *l = (listing){0};
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (!stream) {
        int error = errno;
        if (fd >= 0) (void)close(fd);
        NEAP_FAIL(neap_file_status(error), "%s: cannot list the directory: %s", dir, strerror(error));
    }
    errno = 0;
    for (const struct dirent *e = readdir(stream); e; e = readdir(stream)) {
        if (strcmp(e->d_name, INDEX_NAME) == 0) l->has_index = true;
        if (strcmp(e->d_name, SINGLE_NAME) == 0) l->has_single = true;
        bool is_other = ends_with(e->d_name, SUFFIX) && strcmp(e->d_name, SINGLE_NAME) != 0 && e->d_name[0] != '.';
        if (is_other) note(&l->n_other, l->other, e->d_name);
        bool is_shard = is_other && (strncmp(e->d_name, "model", 5) == 0 || strstr(e->d_name, "-of-"));
        if (is_shard && !(x && neap_index_has_shard(x, e->d_name))) note(&l->n_unlisted, l->unlisted, e->d_name);
        errno = 0;
    }
    int error = errno;
    (void)closedir(stream);
    NEAP_CHECK(error == 0, NEAP_IO, "%s: cannot list the directory: %s", dir, strerror(error));
    return NEAP_OK;
}

/* Every listed tensor must have been met: each shard's own tensors were checked one by one, so counts decide. */
static neap_status check_complete(const neap_checkpoint *c, const neap_index *x, const char *dir) {
    if ((uint64_t)c->n_tensors == x->n_tensors) return NEAP_OK;
    for (size_t i = 0; i < x->n_tensors; i++) {
        neap_text t = x->tensors[i];
        if (neap_names_find(&c->names, 0, t.p, t.n)) continue;
        int32_t place = neap_index_shard_of(x, t.p, t.n);
        NEAP_FAIL(NEAP_BAD_FILE,
                  "%s/%s: tensor '%.*s' is not in its shard %.*s (%llu of %zu listed tensors were found)", dir,
                  INDEX_NAME, neap_text_shown(t), t.p, neap_text_shown(x->shards[place]), x->shards[place].p,
                  (unsigned long long)c->n_tensors, x->n_tensors);
    }
    return NEAP_OK;
}

static neap_status open_shards(neap_checkpoint **out, int dir_fd, const char *dir, const neap_index *x,
                               const neap_log *log) {
    neap_status status = NEAP_OK;
    neap_checkpoint *c = NULL;
    NEAP_TRY(create(&c, x->n_shards));
    for (uint32_t i = 0; i < x->n_shards; i++) {
        status = add_shard(c, dir_fd, dir, x->shards[i].p, x->shards[i].n, x);
        if (status == NEAP_NOT_FOUND) {
            status = neap_fail_prefix(NEAP_BAD_FILE, "%s/%s names a shard that is missing", dir, INDEX_NAME);
        }
        if (status != NEAP_OK) goto fail;
    }
    NEAP_TRY_GOTO(check_complete(c, x, dir));
    if (x->has_total && x->total_bytes != c->bytes) {
        neap_log_write(log, NEAP_LOG_WARN, "%s/%s: total_size is %llu, the tensors have %llu bytes", dir, INDEX_NAME,
                       (unsigned long long)x->total_bytes, (unsigned long long)c->bytes);
    }
    *out = c;
    return NEAP_OK;
fail:
    neap_checkpoint_close(c);
    return status;
}

static neap_status open_indexed(neap_checkpoint **out, int dir_fd, const char *dir, const neap_log *log) {
    neap_status status = NEAP_OK;
    char *shown = NULL, *text = NULL;
    size_t n = 0;
    neap_index x = {0};
    listing l;
    NEAP_TRY(join(&shown, dir, INDEX_NAME, sizeof INDEX_NAME - 1));
    NEAP_TRY_GOTO(neap_file_read_at(&text, &n, dir_fd, INDEX_NAME, shown, INDEX_BYTES_MAX));
    status = neap_index_parse(&x, text, n);
    if (status != NEAP_OK) {
        status = neap_fail_prefix(status, "%s", shown);
        goto fail;
    }
    NEAP_TRY_GOTO(list_directory(&l, dir_fd, dir, &x));
    if (l.has_single && !neap_index_has_shard(&x, SINGLE_NAME)) {
        NEAP_FAIL_GOTO(NEAP_BAD_FILE, "%s: holds %s, but %s does not name it: remove the one that is stale", dir,
                       SINGLE_NAME, INDEX_NAME);
    }
    NEAP_TRY_GOTO(open_shards(out, dir_fd, dir, &x, log));
    if (l.n_unlisted > 0) {
        neap_log_write(log, NEAP_LOG_WARN, "%s: %d shard file%s not named by %s and not read (%s%s)", dir, l.n_unlisted,
                       l.n_unlisted == 1 ? " is" : "s are", INDEX_NAME, l.unlisted, l.n_unlisted == 1 ? "" : ", ...");
    }
fail: /* also the way out of a success */
    neap_index_free(&x);
    neap_mem_free(text);
    neap_mem_free(shown);
    return status;
}

static neap_status open_single(neap_checkpoint **out, int dir_fd, const char *dir, const char *path) {
    neap_checkpoint *c = NULL;
    NEAP_TRY(create(&c, 1));
    neap_status status = add_shard(c, dir_fd, dir, path, strlen(path), NULL);
    if (status != NEAP_OK) {
        neap_checkpoint_close(c);
        return status;
    }
    *out = c;
    return NEAP_OK;
}

neap_status neap_checkpoint_open(neap_checkpoint **out, const char *dir, const neap_log *log) {
    *out = NULL;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        NEAP_FAIL(error == ENOENT    ? NEAP_NOT_FOUND
                  : error == ENOTDIR ? NEAP_BAD_FILE
                                     : neap_file_status(error),
                  "%s: cannot open the model directory: %s", dir, strerror(error));
    }
    listing l;
    neap_status status = list_directory(&l, fd, dir, NULL);
    if (status != NEAP_OK) {
        /* the message is there */
    } else if (l.has_index) {
        status = open_indexed(out, fd, dir, log);
    } else if (l.n_unlisted > 0 && (l.has_single || l.n_unlisted > 1)) {
        status = neap_fail(
            NEAP_BAD_FILE, "%s: holds %d safetensors files (%s%s) but no %s that says which belong together", dir,
            l.n_unlisted + (l.has_single ? 1 : 0), l.unlisted, l.n_unlisted > 1 ? ", ..." : "", INDEX_NAME);
    } else if (l.has_single) {
        status = open_single(out, fd, dir, SINGLE_NAME);
    } else if (l.n_other > 1) {
        status = neap_fail(NEAP_BAD_FILE, "%s: holds %d safetensors files (%s, ...) but neither %s nor %s", dir,
                           l.n_other, l.other, SINGLE_NAME, INDEX_NAME);
    } else {
        status = neap_fail(NEAP_NOT_FOUND, "%s: neither %s nor %s is there%s%s", dir, SINGLE_NAME, INDEX_NAME,
                           l.n_other ? "; found only " : "", l.other);
    }
    (void)close(fd);
    return status;
}

neap_status neap_checkpoint_open_file(neap_checkpoint **out, const char *path) {
    *out = NULL;
    return open_single(out, AT_FDCWD, NULL, path);
}

void neap_checkpoint_close(neap_checkpoint *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->n_shards; i++) {
        shard *s = &c->shards[i];
        if (s->fd >= 0) (void)close(s->fd);
        neap_header_free(s->tensors, s->n);
        neap_mem_free(s->name);
    }
    neap_names_free(&c->names);
    neap_mem_free(c->shards);
    neap_mem_free(c);
}

/* ---- look-up and reading ---- */

int64_t neap_checkpoint_count(const neap_checkpoint *c) { return c->n_tensors; }

uint64_t neap_checkpoint_bytes(const neap_checkpoint *c) { return c->bytes; }

const neap_stored_tensor *neap_checkpoint_at(const neap_checkpoint *c, int64_t i) {
    assert(i >= 0 && i < c->n_tensors);
    /* The last shard that begins at or before i. */
    int32_t low = 0, high = c->n_shards - 1;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (c->shards[middle].first <= i) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &c->shards[low].tensors[i - c->shards[low].first];
}

int64_t neap_checkpoint_number(const neap_checkpoint *c, const neap_stored_tensor *t) {
    assert(t->shard >= 0 && t->shard < c->n_shards);
    return c->shards[t->shard].first + (t - c->shards[t->shard].tensors);
}

const neap_stored_tensor *neap_checkpoint_find(const neap_checkpoint *c, const char *name) {
    const neap_names_slot *slot = neap_names_find(&c->names, 0, name, strlen(name));
    return slot ? neap_checkpoint_at(c, (int64_t)slot->value) : NULL;
}

const char *neap_checkpoint_shard_name(const neap_checkpoint *c, int32_t i) {
    assert(i >= 0 && i < c->n_shards);
    return c->shards[i].base;
}

neap_status neap_checkpoint_read(const neap_checkpoint *c, const neap_stored_tensor *t, uint64_t offset, uint64_t bytes,
                                 void *dst) {
    assert(t->shard >= 0 && t->shard < c->n_shards);
    shard *s = &c->shards[t->shard];
    NEAP_CHECK(offset <= t->bytes && bytes <= t->bytes - offset, NEAP_INVALID_ARGUMENT,
               "%s: tensor '%.200s': bytes %llu to %llu asked, it has %llu", s->name, t->name,
               (unsigned long long)offset, (unsigned long long)(offset + bytes), (unsigned long long)t->bytes);
    neap_status status = neap_file_pread(s->fd, dst, (size_t)bytes, t->offset + offset, s->name);
    if (status != NEAP_OK) return neap_fail_prefix(status, "tensor '%.200s'", t->name);
    if (c->is_digested)
        atomic_fetch_add_explicit(&s->digest, neap_checksum_mix(neap_checksum(dst, (size_t)bytes), t->offset + offset),
                                  memory_order_relaxed);
    return NEAP_OK;
}

/* ---- what a shard is, and was ---- */

int32_t neap_checkpoint_shards(const neap_checkpoint *c) { return c->n_shards; }

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

neap_status neap_checkpoint_stamp(const neap_checkpoint *c, int32_t i, neap_file_stamp *out) {
    struct stat st;
    assert(i >= 0 && i < c->n_shards);
    NEAP_CHECK(fstat(c->shards[i].fd, &st) == 0, NEAP_IO, "%s: cannot read its times: %s", c->shards[i].name,
               strerror(errno));
    *out = (neap_file_stamp){.bytes = (uint64_t)st.st_size,
                             .inode = (uint64_t)st.st_ino,
                             .modified_ns = nanoseconds(st.st_mtim),
                             .changed_ns = nanoseconds(st.st_ctim)};
    return NEAP_OK;
}

void neap_checkpoint_digest_begin(neap_checkpoint *c) {
    for (int32_t i = 0; i < c->n_shards; i++) atomic_store(&c->shards[i].digest, 0);
    c->is_digested = true;
}

uint64_t neap_checkpoint_digest(const neap_checkpoint *c, int32_t i) {
    assert(i >= 0 && i < c->n_shards);
    return atomic_load(&c->shards[i].digest);
}
