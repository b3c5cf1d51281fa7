/* Reading and writing whole files.
 *
 * Reading: a path from outside may name a FIFO, a device, a directory or a file that is being changed. O_NONBLOCK
 * keeps the open of a FIFO from waiting; only regular files are accepted; a file that ends early is an error.
 *
 * Writing: temporary file in the same directory (O_EXCL), fsync, rename, fsync of the directory. Power loss or a
 * full disk leaves the old file or the new one, never half of one; on any failure the temporary is removed.
 *
 * Called by json.c, checkpoint.c and safetensors_write.c. Owns nothing between calls. */
#include "format/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "format/json.h"

_Static_assert(sizeof(off_t) == 8, "file offsets need 64 bits");

/* Linux moves at most 0x7ffff000 bytes per call; stay below on purpose. */
static const size_t IO_BYTES_MAX = (size_t)1 << 30;

neap_status neap_file_status(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM ? NEAP_NO_MEMORY : NEAP_IO;
}

neap_status neap_file_name_status(int error) {
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EEXIST:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG: return NEAP_INVALID_ARGUMENT;
    default: return neap_file_status(error);
    }
}

neap_status neap_file_open(int *fd, uint64_t *bytes, int dir, const char *name, const char *shown) {
    int f;
    do {
        f = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (f < 0 && errno == EINTR);
    if (f < 0) {
        int error = errno;
        if (error == ENOENT) NEAP_FAIL(NEAP_NOT_FOUND, "%s: no such file", shown);
        if (error == ENXIO) NEAP_FAIL(NEAP_BAD_FILE, "%s: not a regular file", shown);
        if (error == EMFILE || error == ENFILE) {
            NEAP_FAIL(NEAP_NO_MEMORY, "%s: cannot open: too many open files (see ulimit -n)", shown);
        }
        NEAP_FAIL(neap_file_status(error), "%s: cannot open: %s", shown, strerror(error));
    }
    struct stat info;
    if (fstat(f, &info) != 0) {
        int error = errno;
        (void)close(f);
        NEAP_FAIL(NEAP_IO, "%s: cannot read its size: %s", shown, strerror(error));
    }
    if (!S_ISREG(info.st_mode)) {
        (void)close(f);
        NEAP_FAIL(NEAP_BAD_FILE, "%s: %s", shown,
                  S_ISDIR(info.st_mode) ? "a directory, not a regular file" : "not a regular file");
    }
    *fd = f;
    *bytes = (uint64_t)info.st_size;
    return NEAP_OK;
}

neap_status neap_file_pread(int fd, void *dst, size_t n, uint64_t at, const char *shown) {
    size_t done = 0;
    while (done < n) {
        size_t want = n - done < IO_BYTES_MAX ? n - done : IO_BYTES_MAX;
        ssize_t got = pread(fd, (char *)dst + done, want, (off_t)(at + done));
        if (got < 0) {
            int error = errno;
            if (error == EINTR) continue;
            NEAP_FAIL(NEAP_IO, "%s: cannot read %zu bytes at %llu: %s", shown, n, (unsigned long long)at,
                      strerror(error));
        }
        if (got == 0) {
            struct stat info = {0};
            (void)fstat(fd, &info);
            NEAP_FAIL(NEAP_IO, "%s: file ends at byte %llu, %llu are needed: it was cut after it was opened", shown,
                      (unsigned long long)info.st_size, (unsigned long long)(at + n));
        }
        done += (size_t)got;
    }
    return NEAP_OK;
}

neap_status neap_file_read_at(char **out, size_t *n, int dir, const char *name, const char *shown, uint64_t bytes_max) {
    *out = NULL;
    *n = 0;
    int fd = -1;
    uint64_t bytes = 0;
    void *memory = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_file_open(&fd, &bytes, dir, name, shown));
    if (bytes > bytes_max || bytes >= SIZE_MAX) {
        NEAP_FAIL_GOTO(NEAP_BAD_FILE, "%s: %llu bytes, the limit is %llu", shown, (unsigned long long)bytes,
                       (unsigned long long)bytes_max);
    }
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)bytes + 1, &memory)); /* zeroed: the text is terminated */
    NEAP_TRY_GOTO(neap_file_pread(fd, memory, (size_t)bytes, 0, shown));
    (void)close(fd);
    *out = memory;
    *n = (size_t)bytes;
    return NEAP_OK;
fail:
    neap_mem_free(memory);
    (void)close(fd);
    return status;
}

neap_status neap_file_read(char **out, size_t *n, const char *path, uint64_t bytes_max) {
    return neap_file_read_at(out, n, AT_FDCWD, path, path, bytes_max);
}

/* ---- writing ---- */

static neap_status write_all(int fd, const char *data, size_t n, const char *path) {
    size_t done = 0;
    while (done < n) {
        size_t want = n - done < IO_BYTES_MAX ? n - done : IO_BYTES_MAX;
        ssize_t put = write(fd, data + done, want);
        if (put < 0) {
            int error = errno;
            if (error == EINTR) continue;
            NEAP_FAIL(NEAP_IO, "%s: cannot write: %s", path, strerror(error));
        }
        NEAP_CHECK(put > 0, NEAP_IO, "%s: cannot write: nothing was taken", path);
        done += (size_t)put;
    }
    return NEAP_OK;
}

/* name.RANDOM.tmp beside the target, so that the rename stays inside one file system. */
static neap_status open_temporary(int *fd, char *name, size_t capacity, int dir, const char *base, const char *path) {
    for (int attempt = 0; attempt < 16; attempt++) {
        uint64_t random = 0;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random) {
            random = (uint64_t)getpid() * 64 + (uint64_t)attempt;
        }
        int n = snprintf(name, capacity, ".%.200s.%016llx.tmp", base, (unsigned long long)random);
        NEAP_CHECK(n > 0 && (size_t)n < capacity, NEAP_INVALID_ARGUMENT, "%s: name too long", path);
        *fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (*fd >= 0) return NEAP_OK;
        int error = errno;
        if (error != EEXIST && error != EINTR)
            NEAP_FAIL(neap_file_name_status(error), "%s: cannot create: %s", path, strerror(error));
    }
    NEAP_FAIL(NEAP_IO, "%s: cannot create a temporary file beside it", path);
}

/* Opens the directory that holds path; *base: the last component. */
static neap_status open_parent(int *dir, const char **base, const char *path) {
    const char *slash = strrchr(path, '/');
    *base = slash ? slash + 1 : path;
    NEAP_CHECK(**base, NEAP_INVALID_ARGUMENT, "%s: names a directory, not a file", *path ? path : "empty path");
    size_t n = slash ? (size_t)(slash - path) : 0;
    char *parent = NULL;
    if (slash) {
        void *memory = NULL;
        NEAP_TRY(neap_mem_alloc(n + 2, &memory));
        parent = memory;
        memcpy(parent, path, n == 0 ? 1 : n); /* "/x": the root itself */
    }
    *dir = open(parent ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    neap_mem_free(parent);
    NEAP_CHECK(*dir >= 0, error == ENOENT ? NEAP_NOT_FOUND : neap_file_name_status(error),
               "%s: cannot open its directory: %s", path, strerror(error));
    return NEAP_OK;
}

struct neap_file_writer {
    int dir, fd;
    char name[256];   /* of the temporary, inside dir */
    const char *base; /* last component of path */
    char path[];
};

void neap_file_writer_discard(neap_file_writer *w) {
    if (w == NULL) return;
    if (w->fd >= 0) (void)close(w->fd);
    if (w->name[0] != 0) (void)unlinkat(w->dir, w->name, 0);
    if (w->dir >= 0) (void)close(w->dir);
    neap_mem_free(w);
}

neap_status neap_file_writer_open(neap_file_writer **out, const char *path) {
    *out = NULL;
    void *memory = NULL;
    struct stat info;
    size_t n = strlen(path) + 1;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_file_writer) + n, &memory));
    neap_file_writer *w = memory;
    w->dir = w->fd = -1;
    memcpy(w->path, path, n);
    neap_status status = NEAP_OK;
    NEAP_TRY_GOTO(open_parent(&w->dir, &w->base, w->path));
    /* A rename would replace a device such as /dev/null by a file. */
    if (fstatat(w->dir, w->base, &info, 0) == 0) {
        if (!S_ISREG(info.st_mode)) NEAP_FAIL_GOTO(NEAP_INVALID_ARGUMENT, "%s: exists and is not a regular file", path);
    } else if (errno == ENAMETOOLONG) { /* the temporary's name is cut, the rename would say it after all the work */
        NEAP_FAIL_GOTO(NEAP_INVALID_ARGUMENT, "%s: cannot create: %s", path, strerror(ENAMETOOLONG));
    }
    status = open_temporary(&w->fd, w->name, sizeof w->name, w->dir, w->base, path);
    if (status != NEAP_OK) {
        w->name[0] = 0; /* whatever has that name is not ours */
        goto fail;
    }
    *out = w;
    return NEAP_OK;
fail:
    neap_file_writer_discard(w);
    return status;
}

neap_status neap_file_writer_append(neap_file_writer *w, const void *data, size_t bytes) {
    return write_all(w->fd, data, bytes, w->path);
}

neap_status neap_file_writer_commit(neap_file_writer *w) {
    neap_status status = NEAP_OK;
    if (fsync(w->fd) != 0) NEAP_FAIL_GOTO(NEAP_IO, "%s: cannot write to disk: %s", w->path, strerror(errno));
    int closed = close(w->fd); /* some file systems report a full disk only here */
    w->fd = -1;
    if (closed != 0) NEAP_FAIL_GOTO(NEAP_IO, "%s: cannot write to disk: %s", w->path, strerror(errno));
    if (renameat(w->dir, w->name, w->dir, w->base) != 0) {
        NEAP_FAIL_GOTO(NEAP_IO, "%s: cannot rename the finished file: %s", w->path, strerror(errno));
    }
    w->name[0] = 0;
    /* The new name is durable once the directory is; not every file system can do this. */
    if (fsync(w->dir) != 0 && errno == EIO)
        NEAP_FAIL_GOTO(NEAP_IO, "%s: written, but perhaps not on disk: %s", w->path, strerror(errno));
fail:
    neap_file_writer_discard(w);
    return status;
}

neap_status neap_file_write(const char *path, const neap_file_part *parts, size_t n_parts) {
    neap_file_writer *w = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_file_writer_open(&w, path));
    for (size_t i = 0; i < n_parts; i++) NEAP_TRY_GOTO(neap_file_writer_append(w, parts[i].data, parts[i].bytes));
    return neap_file_writer_commit(w);
fail:
    neap_file_writer_discard(w);
    return status;
}
