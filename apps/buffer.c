/* Memory and growing byte strings for the program; see buffer.h.
 *
 * Every other file of apps/ allocates through here, so that "out of memory" is handled once: one line on
 * standard error and exit code 4. Strings grow by doubling and always carry a final 0 that is not counted.
 *
 * Called by all commands. Owns nothing but what it hands out. */
#include "buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

static _Noreturn void out_of_memory(void) {
    neap_cli_error("out of memory");
    exit(NEAP_EXIT_RESOURCE);
}

void *neap_cli_alloc(size_t n, size_t size) {
    void *p = calloc(n > 0 ? n : 1, size > 0 ? size : 1);
    if (p == NULL) out_of_memory();
    return p;
}

void *neap_cli_grow(void *p, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) out_of_memory();
    p = realloc(p, bytes > 0 ? bytes : 1);
    if (p == NULL) out_of_memory();
    return p;
}

char *neap_cli_copy(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(neap_cli_alloc(n, 1), s, n);
}

static void reserve(neap_cli_text *t, size_t more) {
    size_t need;
    if (__builtin_add_overflow(t->n, more, &need) || __builtin_add_overflow(need, (size_t)1, &need)) out_of_memory();
    if (need <= t->capacity) return;
    size_t capacity = t->capacity < 64 ? 64 : t->capacity;
    while (capacity < need) {
        if (__builtin_mul_overflow(capacity, (size_t)2, &capacity)) out_of_memory();
    }
    t->data = neap_cli_grow(t->data, capacity, 1);
    t->capacity = capacity;
}

void neap_cli_text_add(neap_cli_text *t, const char *bytes, size_t n) {
    reserve(t, n);
    if (n > 0) memcpy(t->data + t->n, bytes, n);
    t->n += n;
    t->data[t->n] = 0;
}

void neap_cli_text_puts(neap_cli_text *t, const char *s) { neap_cli_text_add(t, s, strlen(s)); }

void neap_cli_text_printf(neap_cli_text *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0) {
        reserve(t, (size_t)n);
        vsnprintf(t->data + t->n, (size_t)n + 1, format, again);
        t->n += (size_t)n;
    }
    va_end(again);
}

void neap_cli_text_cut(neap_cli_text *t, size_t n) {
    if (n >= t->n) return;
    t->n = n;
    t->data[n] = 0;
}

void neap_cli_text_free(neap_cli_text *t) {
    free(t->data);
    *t = (neap_cli_text){0};
}

const char *neap_cli_text_string(const neap_cli_text *t) { return t->data == NULL ? "" : t->data; }

size_t neap_cli_utf8_length(const char *text, size_t n, size_t *bad) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0], low = 0x80, high = 0xbf;
    size_t more;
    *bad = 1;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    if (lead < 0xe0)
        more = 1;
    else if (lead < 0xf0)
        more = 2;
    else
        more = 3;
    /* The second byte's range excludes overlong forms, surrogates and values past U+10FFFF. */
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
    for (size_t i = 1; i <= more; i++) {
        if (i >= n || s[i] < low || s[i] > high) return 0;
        *bad = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return more + 1;
}

/* "3.0 GB": powers of 1000 for counts, of 1024 for bytes. */
static const char *scaled(double value, double step, const char *const *units, char *text, size_t capacity) {
    int i = 0;
    while (value >= step && i < 4) value /= step, i++;
    snprintf(text, capacity,
             i == 0        ? "%.0f%s"
             : value < 10  ? "%.2f%s"
             : value < 100 ? "%.1f%s"
                           : "%.0f%s",
             value, units[i]);
    return text;
}

const char *neap_cli_bytes(uint64_t n, char *text, size_t capacity) {
    static const char *const units[] = {" bytes", " KiB", " MiB", " GiB", " TiB"};
    return scaled((double)n, 1024, units, text, capacity);
}

const char *neap_cli_count(uint64_t n, char *text, size_t capacity) {
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    return scaled((double)n, 1000, units, text, capacity);
}

int neap_cli_read_file(neap_cli_text *t, const char *path, size_t limit) {
    int is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        neap_cli_error("cannot open %s: %s", name, strerror(errno));
        return NEAP_EXIT_FILE;
    }
    struct stat st;
    int code = NEAP_EXIT_OK;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        neap_cli_error("%s is a directory, a file is needed", name);
        code = NEAP_EXIT_FILE;
    }
    size_t before = t->n;
    while (code == NEAP_EXIT_OK) {
        reserve(t, 65536);
        ssize_t got = read(fd, t->data + t->n, 65536);
        if (got == 0) break;
        if (got < 0) {
            if (errno == EINTR) continue;
            neap_cli_error("cannot read %s: %s", name, strerror(errno));
            code = NEAP_EXIT_FILE;
            break;
        }
        t->n += (size_t)got;
        t->data[t->n] = 0;
        if (t->n - before > limit) {
            neap_cli_error("%s is larger than the limit of %zu MiB", name, limit >> 20);
            code = NEAP_EXIT_FILE;
        }
    }
    if (!is_stdin) close(fd);
    if (t->data == NULL) reserve(t, 0);
    t->data[t->n] = 0; /* also of an empty file */
    return code;
}

int neap_cli_check_output(const char *path) {
    struct stat st;
    if (path[0] == 0) {
        neap_cli_error("the name of an output file is empty");
        return NEAP_EXIT_USAGE;
    }
    int is_there = stat(path, &st) == 0, code = NEAP_EXIT_OK;
    if (is_there && S_ISDIR(st.st_mode)) {
        neap_cli_error("%s is a directory, a file is needed", path);
        return NEAP_EXIT_USAGE;
    }
    if (is_there && !S_ISREG(st.st_mode)) { /* a device has no room for a file */
        neap_cli_error("%s: exists and is not a regular file", path);
        return NEAP_EXIT_RESOURCE;
    }
    neap_cli_text parent = {0};
    const char *slash = strrchr(path, '/');
    neap_cli_text_add(&parent, slash != NULL ? path : ".", slash != NULL ? (size_t)(slash - path) + 1 : 1);
    if (access(parent.data, W_OK | X_OK) != 0) {
        neap_cli_error("%s: cannot write in %s: %s", path, parent.data, strerror(errno));
        code = NEAP_EXIT_USAGE;
    }
    neap_cli_text_free(&parent);
    return code;
}

int neap_cli_check_overwrite(const char *path) {
    int code = neap_cli_check_output(path);
    if (code != NEAP_EXIT_OK || access(path, W_OK) == 0 || errno == ENOENT) return code;
    neap_cli_error("%s: cannot be written: %s", path, strerror(errno));
    return NEAP_EXIT_USAGE;
}

int neap_cli_write_file(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        neap_cli_error("%s: %s", path, strerror(errno));
        return NEAP_EXIT_USAGE; /* as neap_cli_check_output */
    }
    size_t written = fwrite(bytes, 1, n, f);
    if (fclose(f) == 0 && written == n) return NEAP_EXIT_OK;
    neap_cli_error("%s: %s", path, strerror(errno));
    return NEAP_EXIT_RESOURCE;
}
