/* Answers what neap thinks of safetensors files, for a differential test against the format's own library.
 *
 *   header_oracle           stdin: files, each as 4-byte little-endian length + bytes
 *                           stdout: one line each: "A count crc32" or "R message"
 *   header_oracle --cases   prints the handcrafted cases, fields between tabs: label, neap's verdict, the library's
 *                           verdict, the file in hex
 *
 * The CRC runs over the tensors in order of name: "name dtype d0,d1\n", then the data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/checkpoint.h"
#include "unit/crc32.h"
#include "unit/header_cases.h"

static int by_name(const void *a, const void *b) {
    const neap_stored_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static uint32_t sum(const neap_checkpoint *c) {
    size_t n = (size_t)neap_checkpoint_count(c);
    const neap_stored_tensor **t = calloc(n + 1, sizeof *t);
    if (!t) abort();
    for (size_t i = 0; i < n; i++) t[i] = neap_checkpoint_at(c, (int64_t)i);
    qsort(t, n, sizeof *t, by_name);
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        void *data = malloc((size_t)t[i]->bytes + 1);
        if (!data || neap_checkpoint_read(c, t[i], 0, t[i]->bytes, data) != NEAP_OK) abort();
        crc = crc32_tensor(crc, t[i], data);
        free(data);
    }
    free(t);
    return crc;
}

static void answer(const unsigned char *file, size_t n) {
    int fd = memfd_create("oracle", 0);
    if (fd < 0 || write(fd, file, n) != (ssize_t)n) abort();
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    neap_checkpoint *c = NULL;
    if (neap_checkpoint_open_file(&c, path) == NEAP_OK) {
        printf("A %lld %08x\n", (long long)neap_checkpoint_count(c), sum(c));
    } else {
        printf("R %s\n", neap_last_error());
    }
    neap_checkpoint_close(c);
    close(fd);
}

static void print_cases(void) {
    for (size_t i = 0; i < N_HEADER_CASES; i++) {
        const header_case *k = &header_cases[i];
        printf("%s\t%d\t%d\t", k->label, k->neap_accepts, k->library_accepts);
        for (int b = 0; b < 8; b++) printf("%02x", (unsigned)((uint64_t)k->n >> (8 * b) & 0xff));
        for (size_t b = 0; b < k->n; b++) printf("%02x", (unsigned char)k->text[b]);
        for (uint64_t b = 0; b < k->data_bytes; b++) printf("%02x", (unsigned)(b & 0xff));
        printf("\n");
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--cases") == 0) {
        print_cases();
        return 0;
    }
    unsigned char length[4];
    while (fread(length, 1, 4, stdin) == 4) {
        size_t n = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
        unsigned char *file = malloc(n + 1);
        if (!file || fread(file, 1, n, stdin) != n) abort();
        answer(file, n);
        free(file);
        fflush(stdout);
    }
    return 0;
}
