/* Reader of the prefix cache's files. Input: a mode byte, then
 *   bit 0 clear: three-byte edits (offset, offset, value) of a sound file;  set: the file itself
 *   bit 1: the checksum of the head is made right afterwards;  bit 2: those of the content too
 *   bit 3: the file is cut at its middle
 * What is accepted has tokens, pages and a finite state of exactly this shape, and reads to the end; without new
 * checksums only the sound file is accepted. */
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/prefix_disk_inner.h"
#include "format/store_inner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGE = 640, STATE = 64, FILE_MAX = 1 << 16, N_BEFORE = 100, N = 200, N_PAGES = 3 };

static void demand(int condition) {
    if (!condition) abort();
}

static char folder[64], path[128], good[FILE_MAX];
static size_t good_bytes;
static neap_store store;
static const neap_prefix_shape SHAPE = {.model = {1}, .page_bytes = PAGE, .state_bytes = STATE, .n_max = 256};
static const uint8_t KEY[NEAP_PREFIX_KEY] = {0x3a, 0xf1};
static _Alignas(64) uint8_t lent[1 << 14];

static void clean_up(void) {
    (void)unlink(path);
    (void)rmdir(folder);
}

static const uint8_t *page_of(void *user, int32_t page) {
    static uint8_t bytes[PAGE];
    (void)user;
    memset(bytes, page + 1, sizeof bytes);
    return bytes;
}

static void set_up(void) {
    int32_t tokens[N - N_BEFORE];
    float state[STATE / sizeof(float)];
    uint32_t sizes[64];
    uint64_t room, notes, n_chunks;
    (void)snprintf(folder, sizeof folder, "%s/neap-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    demand(mkdtemp(folder) != NULL && atexit(clean_up) == 0);
    char name[NEAP_PREFIX_NAME];
    neap_prefix_file_name(KEY, name);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    demand(neap_store_open(&store, folder, false) == NEAP_OK);
    demand(neap_prefix_file_room(&SHAPE, &room, &notes, &n_chunks) && room <= sizeof lent && n_chunks <= 64);
    neap_store_lend(&store, lent, (size_t)room);
    for (int i = 0; i < N - N_BEFORE; i++) tokens[i] = 1000 * i;
    for (size_t i = 0; i < STATE / sizeof(float); i++) state[i] = (float)i;
    neap_prefix_link link = {.space = {5}, .before = {6}, .n_before = N_BEFORE, .n = N, .tokens = tokens};
    memcpy(link.key, KEY, sizeof KEY);
    neap_prefix_source from = {
        .page = page_of, .state = (const uint8_t *)state, .notes = malloc(notes), .sizes = sizes};
    demand(from.notes != NULL && neap_prefix_file_write(&store, &SHAPE, &link, &from) == NEAP_OK);
    free(from.notes);
    FILE *f = fopen(path, "rb");
    demand(f != NULL);
    good_bytes = fread(good, 1, sizeof good, f);
    (void)fclose(f);
    demand(good_bytes > N_PAGES * PAGE && good_bytes < sizeof good);
}

/* Of every chunk that the head names and that lies in the file. */
static void sign_content(char *file, size_t n, const neap_store_head *h) {
    uint64_t at = sizeof *h + neap_store_padded(h->origin_bytes) + neap_store_padded(h->notes_bytes);
    uint64_t content = h->head_bytes;
    for (uint64_t i = 0; i < h->n_chunks && at <= n && n - at >= sizeof(neap_store_chunk);
         i++, at += sizeof(neap_store_chunk)) {
        neap_store_chunk c;
        memcpy(&c, file + at, sizeof c);
        if (content > n || c.bytes > n - content) return;
        c.checksum = neap_checksum(file + content, c.bytes);
        memcpy(file + at, &c, sizeof c);
        content += c.bytes;
    }
}

static size_t make_file(char *file, const uint8_t *data, size_t size) {
    size_t n = good_bytes;
    neap_store_head h;
    memcpy(file, good, good_bytes);
    if (data[0] & 1) {
        n = size - 1 < FILE_MAX ? size - 1 : FILE_MAX;
        memcpy(file, data + 1, n);
    } else {
        for (size_t i = 1; i + 2 < size; i += 3) file[(data[i] | (size_t)data[i + 1] << 8) % n] = (char)data[i + 2];
    }
    if ((data[0] & 6) && n >= sizeof h) {
        memcpy(&h, file, sizeof h);
        if ((data[0] & 4) && h.notes_bytes < n) sign_content(file, n, &h);
        h.checksum = 0;
        memcpy(file, &h, sizeof h);
        h.checksum = neap_checksum(file, h.head_bytes <= n ? (size_t)h.head_bytes : n);
        memcpy(file, &h, sizeof h);
    }
    return data[0] & 8 ? n / 2 : n;
}

/* NEAP_OK: everything was read, and is what a cache may hold. */
static neap_status read_all(void) {
    static uint8_t page[PAGE + 8];
    float state[STATE / sizeof(float)];
    neap_prefix_link l;
    neap_store_reader *r = NULL;
    neap_status status = neap_prefix_file_open(&r, &l, &store, &SHAPE, KEY);
    demand((status == NEAP_OK) == (r != NULL));
    if (r == NULL) return status;
    demand(l.n_before >= 0 && l.n_before < l.n && l.n <= SHAPE.n_max && memcmp(l.key, KEY, sizeof KEY) == 0);
    for (int64_t i = 0; i < l.n - l.n_before; i++) demand(l.tokens[i] >= 0);
    for (int32_t i = neap_prefix_first_page(&l); i < neap_prefix_n_pages(l.n) && status == NEAP_OK; i++)
        status = neap_prefix_file_page(r, &SHAPE, &l, i, page);
    for (int i = PAGE; i < PAGE + 8; i++) demand(page[i] == 0);
    if (status == NEAP_OK) status = neap_prefix_file_state(r, &SHAPE, &l, (uint8_t *)state);
    for (size_t i = 0; i < STATE / sizeof(float) && status == NEAP_OK; i++) demand(isfinite(state[i]));
    neap_store_reader_close(r);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char file[FILE_MAX];
    if (size < 1) return 0;
    if (good_bytes == 0) set_up();
    size_t n = make_file(file, data, size);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    demand(fd >= 0 && write(fd, file, n) == (ssize_t)n && close(fd) == 0);
    neap_status status = read_all();
    demand(status == NEAP_OK || status == NEAP_BAD_FILE || status == NEAP_UNSUPPORTED);
    bool is_sound = n == good_bytes && memcmp(file, good, n) == 0;
    if (!(data[0] & 6)) demand((status == NEAP_OK) == is_sound);
    if (is_sound) demand(status == NEAP_OK);
    const size_t at = offsetof(neap_store_head, key); /* model and key */
    if (status == NEAP_OK) demand(memcmp(file + at, good + at, NEAP_STORE_KEY) == 0);
    return 0;
}
