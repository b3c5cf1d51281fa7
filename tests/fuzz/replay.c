/* Runs a fuzz target over files instead of under a fuzzer, so that every ordinary test run replays what fuzzing
 * found. For each file: the bytes as they are, every prefix of short ones (a cut file is the commonest
 * damage), and a few hundred seeded mutations: flipped bits, overwritten bytes, removed and repeated spans. The
 * input always sits at the end of its own block, so that a sanitizer sees the first byte read too far.
 *
 *   fuzz_NAME [-n MUTATIONS] FILE_OR_DIRECTORY... */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_BYTES_MAX = 1 << 20, PREFIX_BYTES_MAX = 2048 };

static size_t n_runs, n_files;
static long n_mutations = 300;

static void run_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    n_runs++;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* One to four damages in place; returns the new size (never above `size`). */
static size_t damage(uint8_t *data, size_t size, uint64_t *random) {
    static const uint8_t favourites[] = {0,   1,   0x7f, 0x80, 0xff, '"', '{',  '}',
                                         '[', ']', ',',  ':',  '-',  '9', '\\', '<'};
    for (int left = 1 + (int)(next_random(random) % 4); left > 0 && size > 0; left--) {
        size_t at = next_random(random) % size, span = 1 + next_random(random) % 16;
        if (span > size - at) span = size - at;
        switch (next_random(random) % 5) {
        case 0: data[at] ^= (uint8_t)(1u << (next_random(random) % 8)); break;
        case 1: data[at] = favourites[next_random(random) % sizeof favourites]; break;
        case 2: data[at] = (uint8_t)next_random(random); break;
        case 3:
            memmove(data + at, data + at + span, size - at - span);
            size -= span;
            break;
        default: memmove(data + at, data + next_random(random) % (size - span + 1), span); break;
        }
    }
    return size;
}

static void replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        exit(1);
    }
    uint8_t *data = malloc(FILE_BYTES_MAX), *work = malloc(FILE_BYTES_MAX);
    if (!data || !work) abort();
    size_t size = fread(data, 1, FILE_BYTES_MAX, file);
    fclose(file);
    n_files++;
    run_copy(data, size);
    if (size <= PREFIX_BYTES_MAX) {
        for (size_t n = 0; n < size; n++) run_copy(data, n);
    }
    uint64_t random = size;
    for (long i = 0; i < n_mutations; i++) {
        memcpy(work, data, size);
        run_copy(work, damage(work, size, &random));
    }
    free(data);
    free(work);
}

static void replay(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "cannot find %s\n", path);
        exit(1);
    }
    if (!S_ISDIR(info.st_mode)) {
        replay_file(path);
        return;
    }
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (stat(name, &info) == 0 && S_ISREG(info.st_mode)) replay_file(name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            n_mutations = strtol(argv[++i], NULL, 10);
        } else {
            replay(argv[i]);
        }
    }
    printf("%zu files, %zu runs\n", n_files, n_runs);
    return n_files > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
