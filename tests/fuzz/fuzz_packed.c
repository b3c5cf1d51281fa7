/* Reader of the files in a cache directory. Input: a mode byte, then
 *   bit 0 clear: three-byte edits (offset, offset, value) of a sound file;  set: the file itself
 *   bit 1: the checksum of the head is made right afterwards, so that bounds are all that is left;  bit 2: the file is
 *   cut at its middle
 * What is accepted has chunks that end where the file ends and reads to the end; nothing else may be accepted. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/store_inner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONTENT = 3000, FILE_MAX = 1 << 16 };

static void demand(int condition) {
    if (!condition) abort();
}

static char folder[64], good[FILE_MAX];
static size_t good_bytes;
static neap_store store;

static void path_of(char path[128]) { (void)snprintf(path, 128, "%s/f.tuning", folder); }

static void clean_up(void) {
    char path[128];
    path_of(path);
    (void)unlink(path);
    (void)rmdir(folder);
}

static void set_up(void) {
    char content[CONTENT], path[128];
    (void)snprintf(folder, sizeof folder, "%s/neap-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    demand(mkdtemp(folder) != NULL && atexit(clean_up) == 0);
    demand(neap_store_open(&store, folder, false) == NEAP_OK);
    memset(content, 7, sizeof content);
    neap_store_about about = {.kind = NEAP_STORE_TUNING, .origin = "/models/some", .notes = "a note", .notes_bytes = 6};
    demand(neap_store_put(&store, "f.tuning", &about, content, sizeof content) == NEAP_OK);
    path_of(path);
    FILE *f = fopen(path, "rb");
    demand(f != NULL);
    good_bytes = fread(good, 1, sizeof good, f);
    (void)fclose(f);
    demand(good_bytes > CONTENT && good_bytes < sizeof good);
}

static size_t make_file(char *file, const uint8_t *data, size_t size) {
    size_t n = good_bytes;
    memcpy(file, good, good_bytes);
    if (data[0] & 1) {
        n = size - 1 < FILE_MAX ? size - 1 : FILE_MAX;
        memcpy(file, data + 1, n);
    } else {
        for (size_t i = 1; i + 2 < size; i += 3) file[(data[i] | (size_t)data[i + 1] << 8) % n] = (char)data[i + 2];
    }
    neap_store_head h;
    if ((data[0] & 2) && n >= sizeof h) {
        memcpy(&h, file, sizeof h);
        h.checksum = 0;
        memcpy(file, &h, sizeof h);
        h.checksum = neap_checksum(file, h.head_bytes <= n ? (size_t)h.head_bytes : n);
        memcpy(file, &h, sizeof h);
    }
    return data[0] & 4 ? n / 2 : n;
}

static void check(const neap_store_reader *r, size_t n) {
    static char chunk[NEAP_STORE_CHUNK];
    const neap_store_about *about = neap_store_reader_about(r);
    uint64_t bytes =
        neap_store_head_bytes(strlen(about->origin) + 1, about->notes_bytes, (uint64_t)neap_store_reader_chunks(r));
    for (int64_t i = 0; i < neap_store_reader_chunks(r); i++) {
        neap_status status = neap_store_reader_chunk(r, i, chunk);
        demand(status == NEAP_OK || status == NEAP_BAD_FILE);
        bytes += neap_store_reader_chunk_bytes(r, i);
    }
    demand(bytes == n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char file[FILE_MAX];
    char path[128];
    if (size < 1) return 0;
    if (good_bytes == 0) set_up();
    size_t n = make_file(file, data, size);
    path_of(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    demand(fd >= 0 && write(fd, file, n) == (ssize_t)n && close(fd) == 0);
    neap_store_reader *r = NULL;
    neap_status status = neap_store_reader_open(&r, &store, "f.tuning");
    demand(status == NEAP_OK || status == NEAP_BAD_FILE || status == NEAP_UNSUPPORTED);
    demand((status == NEAP_OK) == (r != NULL));
    if (r != NULL) check(r, n);
    /* Without a new checksum only the sound head is accepted. */
    if (r != NULL && !(data[0] & 2))
        demand(memcmp(file, good, (size_t)((const neap_store_head *)(const void *)good)->head_bytes) == 0);
    neap_store_reader_close(r);
    return 0;
}
