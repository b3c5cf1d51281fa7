/* The directory of a result: refused when something could be lost, filled file by file, emptied after a failure.
 *
 * Written files are whole or absent (format/file.c); which one comes last decides when the directory is a model, and
 * that is the caller's order. After a failure only files that this call has written are removed, and the directory if
 * this call made it: so the same command can be given again.
 *
 * What is copied beside the weights: every regular file (links are followed, as caches of downloaded models need) but
 * config.json, the index, and files that hold weights. Directories and hidden files stay behind.
 *
 * Called by quantize_model.c. Owns the list of written paths. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "format/file.h"
#include "models/quantize.h"

static neap_status check_empty(const char *path) {
    DIR *stream = opendir(path);
    NEAP_CHECK(stream != NULL, neap_file_name_status(errno), "%s: cannot list the directory: %s", path,
               strerror(errno));
    char found[256] = "";
    for (const struct dirent *e = readdir(stream); e != NULL; e = readdir(stream))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            (void)snprintf(found, sizeof found, "%s", e->d_name);
            break;
        }
    (void)closedir(stream);
    NEAP_CHECK(found[0] == 0, NEAP_INVALID_ARGUMENT, "%s: is not empty (it holds %.80s); give a new directory", path,
               found);
    return NEAP_OK;
}

neap_status neap_out_dir_open(neap_out_dir *d, neap_arena *arena, const char *model, const char *out) {
    struct stat from, to;
    *d = (neap_out_dir){.arena = arena};
    NEAP_CHECK(out[0] != 0, NEAP_INVALID_ARGUMENT, "the name of the new directory is empty");
    NEAP_CHECK(stat(model, &from) == 0, NEAP_NOT_FOUND, "%s: %s", model, strerror(errno));
    if (stat(out, &to) == 0) {
        NEAP_CHECK(from.st_dev != to.st_dev || from.st_ino != to.st_ino, NEAP_INVALID_ARGUMENT,
                   "%s: is the model itself; give a new directory", out);
        NEAP_CHECK(S_ISDIR(to.st_mode), NEAP_INVALID_ARGUMENT, "%s: exists and is not a directory", out);
        NEAP_TRY(check_empty(out));
        NEAP_CHECK(access(out, W_OK | X_OK) == 0, neap_file_name_status(errno), "%s: cannot write in it: %s", out,
                   strerror(errno));
    } else {
        NEAP_CHECK(errno == ENOENT, neap_file_name_status(errno), "%s: cannot make the directory: %s", out,
                   strerror(errno));
        NEAP_CHECK(mkdir(out, 0777) == 0, neap_file_name_status(errno), "%s: cannot make the directory: %s", out,
                   errno == EEXIST ? "there is a link to nothing" : strerror(errno));
        d->is_created = true;
    }
    neap_status status = neap_arena_strdup(arena, out, &d->path);
    if (status != NEAP_OK && d->is_created) (void)rmdir(out);
    return status;
}

neap_status neap_out_dir_room(const neap_out_dir *d, uint64_t bytes) {
    struct statvfs fs;
    if (statvfs(d->path, &fs) != 0) return NEAP_OK; /* then writing will say it */
    uint64_t unit = fs.f_frsize > 0 ? fs.f_frsize : fs.f_bsize, left = (uint64_t)fs.f_bavail * unit;
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    NEAP_CHECK(bytes <= left, NEAP_IO, "%s: the result needs %s of disk space, free: %s", d->path,
               neap_size_text(bytes, need), neap_size_text(left, have));
    return NEAP_OK;
}

neap_status neap_out_dir_path(neap_out_dir *d, const char *name, const char **path) {
    char full[4096];
    int n = snprintf(full, sizeof full, "%s/%s", d->path, name);
    NEAP_CHECK(n > 0 && (size_t)n < sizeof full, NEAP_INVALID_ARGUMENT, "%s: the path is longer than %zu bytes",
               d->path, sizeof full - 1);
    NEAP_TRY(neap_arena_strdup(d->arena, full, path));
    if (d->n_files == d->files_max) {
        int64_t more = d->files_max > 0 ? 2 * d->files_max : 64;
        NEAP_TRY(neap_mem_grow((void **)&d->files, (size_t)d->files_max * sizeof *d->files,
                               (size_t)more * sizeof *d->files));
        d->files_max = more;
    }
    d->files[d->n_files++] = *path;
    return NEAP_OK;
}

static bool has_tail(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

static bool is_copied(const char *name) {
    static const char *const weights[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"};
    if (name[0] == '.' || strcmp(name, "config.json") == 0 || has_tail(name, ".safetensors.index.json")) return false;
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (has_tail(name, weights[i])) return false;
    return true;
}

static neap_status copy_file(neap_out_dir *d, int dir, const char *name, void *buffer, size_t capacity) {
    int fd = -1;
    uint64_t bytes = 0;
    struct stat st;
    const char *path = NULL;
    if (fstatat(dir, name, &st, 0) != 0 || !S_ISREG(st.st_mode)) return NEAP_OK; /* a directory, a dangling link */
    neap_file_writer *w = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_file_open(&fd, &bytes, dir, name, name));
    NEAP_TRY_GOTO(neap_out_dir_path(d, name, &path));
    NEAP_TRY_GOTO(neap_file_writer_open(&w, path));
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < capacity ? (size_t)(bytes - at) : capacity;
        NEAP_TRY_GOTO(neap_file_pread(fd, buffer, n, at, name));
        NEAP_TRY_GOTO(neap_file_writer_append(w, buffer, n));
        at += n;
    }
    status = neap_file_writer_commit(w);
    w = NULL;
fail:
    neap_file_writer_discard(w);
    (void)close(fd);
    return status;
}

neap_status neap_out_dir_copy_rest(neap_out_dir *d, const char *model, void *buffer, size_t bytes) {
    DIR *stream = opendir(model);
    NEAP_CHECK(stream != NULL, NEAP_IO, "%s: cannot list the directory: %s", model, strerror(errno));
    neap_status status = NEAP_OK;
    for (const struct dirent *e = readdir(stream); e != NULL && status == NEAP_OK; e = readdir(stream))
        if (is_copied(e->d_name)) status = copy_file(d, dirfd(stream), e->d_name, buffer, bytes);
    (void)closedir(stream);
    return status;
}

void neap_out_dir_discard(neap_out_dir *d) {
    for (int64_t i = 0; i < d->n_files; i++) (void)unlink(d->files[i]);
    d->n_files = 0;
    if (d->is_created) (void)rmdir(d->path);
}

void neap_out_dir_close(neap_out_dir *d) {
    neap_mem_free(d->files);
    d->files = NULL;
}
