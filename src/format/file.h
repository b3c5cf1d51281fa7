/* Files from outside: opened so that nothing can hang, read with every short count and signal handled. */
#ifndef NEAP_FORMAT_FILE_H
#define NEAP_FORMAT_FILE_H

#include "base/status.h"

/* The status of a failed open: without descriptors or memory the file itself is not at fault (NEAP_NO_MEMORY), else
 * NEAP_IO. */
neap_status neap_file_status(int error);
/* A name that cannot be made or written is the caller's to change; the rest is the machine's fault. */
neap_status neap_file_name_status(int error);
/* Opens a regular file for reading, relative to the directory descriptor `dir` (AT_FDCWD: none). Links are
 * followed. shown: what messages call the file. NEAP_NOT_FOUND, NEAP_BAD_FILE (not a regular file), or
 * neap_file_status. */
NEAP_MUST_CHECK neap_status neap_file_open(int *fd, uint64_t *bytes, int dir, const char *name, const char *shown);
/* Copies n bytes from `at`. NEAP_IO when the file ends before. */
NEAP_MUST_CHECK neap_status neap_file_pread(int fd, void *dst, size_t n, uint64_t at, const char *shown);
/* neap_file_read (json.h) relative to a directory. */
NEAP_MUST_CHECK neap_status neap_file_read_at(char **out, size_t *n, int dir, const char *name, const char *shown,
                                              uint64_t bytes_max);

typedef struct neap_file_part {
    const void *data;
    size_t bytes;
} neap_file_part;
/* A file that appears whole or not at all, written piece by piece. */
typedef struct neap_file_writer neap_file_writer;
NEAP_MUST_CHECK neap_status neap_file_writer_open(neap_file_writer **out, const char *path);
NEAP_MUST_CHECK neap_status neap_file_writer_append(neap_file_writer *w, const void *data, size_t bytes);
/* Gives the file its name and frees w; on failure nothing is left behind either. */
NEAP_MUST_CHECK neap_status neap_file_writer_commit(neap_file_writer *w);
void neap_file_writer_discard(neap_file_writer *w); /* NULL is fine */

/* Replaces path by the parts, one after the other: a reader sees the old file or the whole new one. */
NEAP_MUST_CHECK neap_status neap_file_write(const char *path, const neap_file_part *parts, size_t n_parts);

#endif
