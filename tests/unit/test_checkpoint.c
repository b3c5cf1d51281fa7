/* Safetensors headers, checkpoint directories, reading and writing.
 *
 * Expected values come from the format's own library (header_cases.h, the CRCs of the golden files) or from files
 * laid out by hand here. Large things (half a million tensors) have a time limit of their own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "neap.h"
#include "unit/crc32.h"
#include "unit/directory_cases.h"
#include "unit/header_cases.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifndef SLOW_BUILD
#define SLOW_BUILD 0
#endif

static char work[] = "/tmp/neap_checkpoint_XXXXXX";

static void remove_work(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'/*", work);
    assert_int_equal(system(command), 0);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(work) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    remove_work();
    return rmdir(work);
}

static const char *in_work(const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", work, name);
    return path[turn];
}

static void put_bytes(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static int open_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Length word, header, `data` bytes 0, 1, 2, ... */
static char *lay_out(const char *header, size_t n, uint64_t length, uint64_t data, size_t *bytes) {
    *bytes = 8 + n + (size_t)data;
    char *file = malloc(*bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (char)(length >> (8 * i) & 0xff);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < data; i++) file[8 + n + i] = (char)i;
    return file;
}

static void expect(neap_status status, neap_status wanted, const char *label, const char *word) {
    if (status != wanted) {
        fail_msg("%s: %s instead of %s (%s)", label, neap_status_name(status), neap_status_name(wanted),
                 neap_last_error());
    }
    if (status != NEAP_OK && !strstr(neap_last_error(), word))
        fail_msg("%s: no '%s' in: %s", label, word, neap_last_error());
    if (status != NEAP_OK && strpbrk(neap_last_error(), "\n\r\x1b")) fail_msg("%s: control characters", label);
}

/* ---- one header ---- */

static void check_case(const header_case *k) {
    neap_stored_tensor *t = (neap_stored_tensor *)1;
    int64_t n = -1;
    char *exact = malloc(k->n ? k->n : 1); /* a sanitizer sees one byte too far */
    assert_non_null(exact);
    memcpy(exact, k->text, k->n);
    neap_status status = neap_header_scan(exact, k->n, k->data_bytes, &t, &n);
    free(exact);
    expect(status, k->neap_accepts ? NEAP_OK : NEAP_BAD_FILE, k->label, k->word);
    if (status != NEAP_OK) {
        assert_null(t);
        assert_int_equal(n, 0);
    }
    neap_header_free(t, n);
    /* the same as a file */
    size_t bytes;
    char *file = lay_out(k->text, k->n, k->n, k->data_bytes, &bytes);
    const char *path = in_work("case.safetensors");
    put_bytes(path, file, bytes);
    free(file);
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, path), status, k->label, k->word);
    if (status != NEAP_OK) assert_non_null(strstr(neap_last_error(), path));
    neap_checkpoint_close(c);
}

static void judges_handcrafted_headers(void **state) {
    (void)state;
    assert_true(N_HEADER_CASES >= 100);
    for (size_t i = 0; i < N_HEADER_CASES; i++) check_case(&header_cases[i]);
}

static void reports_what_a_header_says(void **state) {
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"dtype\":\"x\"}," T("second \\u00e9", "BF16", "2,0,3", "4,4") "," //
        T("third", "I64", "", "4,12") "," T("first", "F4", "4,2", "0,4") "}   ";
    neap_stored_tensor *t = NULL;
    int64_t n = 0;
    assert_int_equal(neap_header_scan(header, sizeof header - 1, 12, &t, &n), NEAP_OK);
    assert_int_equal(n, 3);
    /* in the order of the data, not of the header */
    assert_string_equal(t[0].name, "first");
    assert_int_equal(t[0].dtype, NEAP_DTYPE_F4);
    assert_int_equal(t[0].rank, 2);
    assert_int_equal(t[0].shape[0], 4);
    assert_int_equal(t[0].shape[1], 2);
    assert_int_equal(t[0].bytes, 4);
    assert_int_equal(t[0].offset, 0);
    assert_string_equal(t[1].name, "second \xc3\xa9");
    assert_int_equal(t[1].dtype, NEAP_DTYPE_BF16);
    assert_int_equal(t[1].rank, 3);
    assert_int_equal(t[1].shape[0], 2);
    assert_int_equal(t[1].shape[1], 0);
    assert_int_equal(t[1].shape[2], 3);
    assert_int_equal(t[1].bytes, 0);
    assert_string_equal(t[2].name, "third");
    assert_int_equal(t[2].rank, 0);
    assert_int_equal(t[2].bytes, 8);
    assert_int_equal(t[2].offset, 4);
    neap_header_free(t, n);
}

static void check_length(const char *label, uint64_t length, const char *header, uint64_t data, size_t cut,
                         const char *word) {
    size_t bytes;
    char *file = lay_out(header, strlen(header), length, data, &bytes);
    const char *path = in_work("length.safetensors");
    put_bytes(path, file, cut < bytes ? cut : bytes);
    free(file);
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, path), *word ? NEAP_BAD_FILE : NEAP_OK, label, word);
    neap_checkpoint_close(c);
}

static void judges_header_lengths(void **state) {
    (void)state;
    static const char one[] = "{" T("a", "U8", "4", "0,4") "}";
    uint64_t n = sizeof one - 1;
    check_length("whole", n, one, 4, 1000, "");
    check_length("empty file", n, one, 4, 0, "too short");
    check_length("7 bytes", n, one, 4, 7, "too short");
    check_length("8 bytes", n, one, 4, 8, "the file has only 8 bytes");
    check_length("length 0", 0, one, 4, 1000, "empty");
    check_length("length 1", 1, one, 4, 1000, "text ends");
    check_length("one byte less", n - 1, one, 4, 1000, "expected ','");
    check_length("one byte more", n + 1, one, 5, 1000, "only spaces");
    check_length("the whole file", n + 4, one, 4, 1000, "do not lie in the 0 bytes");
    check_length("past the file", n + 5, one, 4, 1000, "but the file has only");
    check_length("10^8", 100000000, one, 4, 1000, "but the file has only");
    check_length("10^8 + 1", 100000001, one, 4, 1000, "limit is 100000000");
    check_length("2^63", (uint64_t)1 << 63, one, 4, 1000, "limit is 100000000");
    check_length("2^64 - 8", UINT64_MAX - 7, one, 4, 1000, "limit is 100000000");
    check_length("2^64 - 1", UINT64_MAX, one, 4, 1000, "limit is 100000000");
    check_length("header cut", n, one, 4, 20, "but the file has only 20 bytes");
    check_length("data cut", n, one, 4, 8 + n + 3, "do not lie in the 3 bytes");
    check_length("data gone", n, one, 4, 8 + n, "do not lie in the 0 bytes");
}

/* Accepts, or refuses with the word, a header of n repetitions that is built here. */
static void check_built(const char *label, char *text, uint64_t data, const char *word) {
    neap_stored_tensor *t = NULL;
    int64_t n = 0;
    expect(neap_header_scan(text, strlen(text), data, &t, &n), *word ? NEAP_BAD_FILE : NEAP_OK, label, word);
    neap_header_free(t, n);
    free(text);
}

static char *repeat(const char *before, const char *part, size_t n, const char *after) {
    size_t n_before = strlen(before), n_part = strlen(part);
    char *text = malloc(n_before + n * n_part + strlen(after) + 1);
    assert_non_null(text);
    memcpy(text, before, n_before);
    for (size_t i = 0; i < n; i++) memcpy(text + n_before + i * n_part, part, n_part);
    strcpy(text + n_before + n * n_part, after);
    return text;
}

static void survives_long_headers(void **state) {
    (void)state;
    static const char tail[] = "1],\"data_offsets\":[0,1]}}";
    check_built("rank 100000", repeat("{\"a\":{\"dtype\":\"U8\",\"shape\":[", "1,", 100000, tail), 1, "more than 8");
    check_built("deep array", repeat("{\"a\":{\"dtype\":\"U8\",\"shape\":", "[", 1000000, tail), 1,
                "expected a number");
    check_built("deep object", repeat("{\"a\":", "{\"b\":", 1000000, ""), 1, "unknown field");
    check_built("a million braces", repeat("", "{", 1000000, ""), 0, "expected '\"'");
    check_built("name of 1 MB",
                repeat("{\"", "n", 1 << 20, "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}"), 1, "");
    check_built("name of 200 k escapes",
                repeat("{\"", "\\u00e9", 200000, "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}"), 1, "");
    check_built("spaces", repeat("{}", " ", 1000000, ""), 0, "");
    check_built("dtype of 1 MB", repeat("{\"a\":{\"dtype\":\"", "U", 1 << 20, "\"}}"), 0, "is not known");
    check_built("digits", repeat("{\"a\":{\"dtype\":\"U8\",\"shape\":[", "1", 1000000, "]}}"), 0, "whole number");
    check_built("repeated tensor", repeat("{" T("a", "U8", "0", "0,0"), "," T("a", "U8", "0", "0,0"), 1000, "}"), 0,
                "twice");
}

/* Of this process: other work on the machine does not count. */
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n empty or 1-byte tensors in one header; reversed: the data order is the opposite of the text order. */
static char *many_tensors(size_t n, bool reversed, size_t *bytes) {
    char *text = malloc(n * 100 + 3);
    assert_non_null(text);
    char *p = text;
    *p++ = '{';
    for (size_t i = 0; i < n; i++) {
        size_t at = reversed ? n - 1 - i : i;
        p += sprintf(p, "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", i ? "," : "", i, at,
                     at + 1);
    }
    *p++ = '}';
    *p = 0;
    *bytes = (size_t)(p - text);
    return text;
}

static void limits_the_number_of_tensors(void **state) {
    (void)state;
    size_t n = 1000000, bytes;
    neap_stored_tensor *t = NULL;
    int64_t count = 0;
    char *text = many_tensors(n, true, &bytes);
    double start = seconds();
    assert_int_equal(neap_header_scan(text, bytes, n, &t, &count), NEAP_OK);
    double used = seconds() - start;
    assert_int_equal(count, n);
    assert_string_equal(t[0].name, "t999999");
    assert_int_equal(t[999999].offset, 999999);
    neap_header_free(t, count);
    free(text);
    print_message("a million tensors in one header: %.2f s\n", used);
    assert_true(used < 10.0 * (SLOW_BUILD ? 10 : 1));
    text = many_tensors(n + 1, false, &bytes);
    assert_int_equal(neap_header_scan(text, bytes, n + 1, &t, &count), NEAP_BAD_FILE);
    assert_non_null(strstr(neap_last_error(), "more than 1000000 tensors"));
    free(text);
}

/* ---- directories ---- */

/* "a:4,b:8" -> a safetensors file of U8 tensors, laid out by hand; the bytes count up from the name's first letter. */
static void put_tensors(const char *path, const char *list) {
    char header[2048] = "{", data[512], name[32];
    size_t n = 1, n_data = 0;
    while (*list) {
        int used = 0, size = 0;
        assert_int_equal(sscanf(list, "%31[^:]:%d%n", name, &size, &used), 2);
        n += (size_t)sprintf(header + n, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%zu,%zu]}",
                             n > 1 ? "," : "", name, size, n_data, n_data + (size_t)size);
        for (int i = 0; i < size; i++) data[n_data++] = (char)(name[0] + i);
        list += used + (list[used] == ',');
    }
    header[n++] = '}';
    size_t bytes;
    char *file = lay_out(header, n, n, n_data, &bytes);
    memcpy(file + 8 + n, data, n_data);
    put_bytes(path, file, bytes);
    free(file);
}

static void put_listed(const listed_file *f) {
    const char *path = in_work(f->name);
    if (f->content[0] == '=') {
        put_tensors(path, f->content + 1);
    } else if (strcmp(f->content, "@cut") == 0) {
        put_tensors(path, "b:8");
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(truncate(path, info.st_size - 1), 0);
    } else if (strcmp(f->content, "@dir") == 0) {
        assert_int_equal(mkdir(path, 0755), 0);
    } else if (strcmp(f->content, "@fifo") == 0) {
        assert_int_equal(mkfifo(path, 0644), 0);
    } else if (strncmp(f->content, "->", 2) == 0) {
        assert_int_equal(symlink(f->content + 2, path), 0);
    } else {
        put_bytes(path, f->content, strlen(f->content));
    }
}

typedef struct warnings {
    int n;
    char text[512];
} warnings;

static void catch_warning(void *user, neap_log_level level, const char *text) {
    warnings *w = user;
    if (level < NEAP_LOG_WARN) return;
    w->n++;
    snprintf(w->text, sizeof w->text, "%s", text);
}

static void judges_directories(void **state) {
    (void)state;
    assert_true(N_DIRECTORY_CASES >= 60);
    alarm(60); /* a FIFO must not make us wait */
    int files_before = open_files();
    for (size_t i = 0; i < N_DIRECTORY_CASES; i++) {
        const directory_case *k = &directory_cases[i];
        remove_work();
        for (int f = 0; f < 6 && k->files[f].name; f++) put_listed(&k->files[f]);
        warnings w = {0};
        neap_log log = {catch_warning, &w};
        neap_checkpoint *c = (neap_checkpoint *)1;
        neap_status status = neap_checkpoint_open(&c, work, &log);
        expect(status, k->status, k->label, k->word);
        if (status == NEAP_OK) {
            assert_int_equal(neap_checkpoint_count(c), k->n_tensors);
            neap_checkpoint_close(c);
        } else {
            assert_null(c);
            if (!strstr(neap_last_error(), work)) fail_msg("%s: no directory in: %s", k->label, neap_last_error());
        }
        if (w.n != (k->warns ? 1 : 0)) fail_msg("%s: %d warnings, last: %s", k->label, w.n, w.text);
        if (k->warns && !strstr(w.text, k->warns)) fail_msg("%s: no '%s' in: %s", k->label, k->warns, w.text);
        if (open_files() != files_before) fail_msg("%s: a file stayed open", k->label);
    }
    alarm(0);
    remove_work();
}

static void judges_paths(void **state) {
    (void)state;
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open(&c, in_work("absent"), NULL), NEAP_NOT_FOUND, "absent directory", "absent");
    put_bytes(in_work("file"), "x", 1);
    expect(neap_checkpoint_open(&c, in_work("file"), NULL), NEAP_BAD_FILE, "file as a directory", "Not a directory");
    expect(neap_checkpoint_open(&c, "", NULL), NEAP_NOT_FOUND, "empty path", "model directory");
    expect(neap_checkpoint_open_file(&c, in_work("absent")), NEAP_NOT_FOUND, "absent file", "no such file");
    expect(neap_checkpoint_open_file(&c, work), NEAP_BAD_FILE, "directory as a file", "not a regular file");
    expect(neap_checkpoint_open_file(&c, "/dev/null"), NEAP_BAD_FILE, "device", "not a regular file");
    put_tensors(in_work("model.safetensors"), "a:4");
    char slashes[64];
    snprintf(slashes, sizeof slashes, "%s///", work);
    expect(neap_checkpoint_open(&c, slashes, NULL), NEAP_OK, "slashes at the end", "");
    assert_string_equal(neap_checkpoint_shard_name(c, 0), "model.safetensors");
    neap_checkpoint_close(c);
    neap_checkpoint_close(NULL);
    assert_int_equal(chmod(in_work("model.safetensors"), 0), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* root may read everything: become nobody */
        if (geteuid() == 0 && (chmod(work, 0755) != 0 || setuid(65534) != 0)) _exit(2);
        bool ok = neap_checkpoint_open(&c, work, NULL) == NEAP_IO && strstr(neap_last_error(), "Permission denied");
        _exit(ok ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    remove_work();
}

static void reports_too_many_open_files(void **state) {
    (void)state;
    put_listed(&(listed_file){INDEX, GOOD_MAP});
    put_listed(&(listed_file){S1, "=a:4"});
    put_listed(&(listed_file){S2, "=b:8"});
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int failed = 0, before = open_files();
    neap_status status = NEAP_IO;
    for (int room = 1; room < 8 && status != NEAP_OK; room++) {
        int probe = dup(0);
        assert_true(probe >= 0);
        close(probe);
        low = (struct rlimit){(rlim_t)(probe + room), old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        neap_checkpoint *c = NULL;
        status = neap_checkpoint_open(&c, work, NULL);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (status != NEAP_OK) {
            failed++;
            assert_int_equal(status, NEAP_NO_MEMORY);
        }
        neap_checkpoint_close(c);
        assert_int_equal(open_files(), before);
    }
    assert_true(failed >= 2);
    assert_int_equal(status, NEAP_OK);
    remove_work();
}

static void orders_and_finds_tensors(void **state) {
    (void)state;
    /* the index names the second shard first */
    put_listed(&(listed_file){INDEX, MAP("\"c\":\"" S2 "\",\"a\":\"" S1 "\",\"b\":\"" S1 "\"")});
    put_listed(&(listed_file){S1, "=b:3,a:1"});
    put_listed(&(listed_file){S2, "=c:8"});
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open(&c, work, NULL), NEAP_OK, "order", "");
    static const char *const names[3] = {"b", "a", "c"};
    for (int i = 0; i < 3; i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(c, i);
        assert_string_equal(t->name, names[i]);
        assert_int_equal(t->shard, i == 2);
        assert_ptr_equal(neap_checkpoint_find(c, names[i]), t);
    }
    assert_null(neap_checkpoint_find(c, "d"));
    assert_null(neap_checkpoint_find(c, ""));
    assert_string_equal(neap_checkpoint_shard_name(c, 0), S1);
    assert_string_equal(neap_checkpoint_shard_name(c, 1), S2);
    assert_int_equal(neap_checkpoint_bytes(c), 12);
    unsigned char bytes[8] = {0};
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "c"), 2, 3, bytes), NEAP_OK);
    assert_memory_equal(bytes, "efg\0", 4);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "c"), 8, 0, bytes), NEAP_OK);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "c"), 8, 1, bytes), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "c"), 9, 0, bytes), NEAP_INVALID_ARGUMENT);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "c"), 1, UINT64_MAX, bytes),
                     NEAP_INVALID_ARGUMENT);
    neap_checkpoint_close(c);
    remove_work();
}

/* ---- reading ---- */

typedef struct golden_fact {
    const char *path;
    int n;
    uint32_t crc;
} golden_fact;

/* Counts and CRCs computed with the format's own library (0.8.0). */
static const golden_fact golden_facts[] = {
    {"models/deepseek-v32-tiny-bfloat16/golden_p100.safetensors", 29, 0xedbb40a6},
    {"models/deepseek-v32-tiny-bfloat16/model-00001-of-00001.safetensors", 130, 0xd224f723},
    {"models/glm-dsa-tiny-bfloat16/model-00001-of-00002.safetensors", 59, 0xaafc9602},
    {"models/glm-dsa-tiny-bfloat16/model-00002-of-00002.safetensors", 85, 0x0687cabc},
    {"models/kimi-k3-mtp-tiny-bfloat16/model-00001-of-00001.safetensors", 201, 0xd5d0a37c},
    {"models/kimi-linear-f32-float32/golden_p70.safetensors", 26, 0x0f270aab},
    {"models/kimi-linear-f32-float32/model-00001-of-00001.safetensors", 151, 0xfb4a2780},
    {"units/attention.safetensors", 95, 0xc3d14c82},
    {"units/blocks.safetensors", 56, 0xa6955f51},
    {"units/formats.safetensors", 12, 0x3c7bfd18},
    {"units/kda.safetensors", 128, 0x3a8233fb},
    {"units/quant_blocks.safetensors", 22, 0x7cc8bbe1},
};

static int by_name(const void *a, const void *b) {
    const neap_stored_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static uint32_t sum(const neap_checkpoint *c) {
    size_t n = (size_t)neap_checkpoint_count(c);
    const neap_stored_tensor **t = calloc(n + 1, sizeof *t);
    assert_non_null(t);
    for (size_t i = 0; i < n; i++) t[i] = neap_checkpoint_at(c, (int64_t)i);
    qsort(t, n, sizeof *t, by_name);
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        void *data = malloc((size_t)t[i]->bytes + 1);
        assert_non_null(data);
        assert_int_equal(neap_checkpoint_read(c, t[i], 0, t[i]->bytes, data), NEAP_OK);
        crc = crc32_tensor(crc, t[i], data);
        free(data);
    }
    free(t);
    return crc;
}

static void reads_golden_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_facts / sizeof golden_facts[0]; i++) {
        const golden_fact *g = &golden_facts[i];
        char path[512];
        snprintf(path, sizeof path, NEAP_TEST_DATA "/golden/%s", g->path);
        neap_checkpoint *c = NULL;
        expect(neap_checkpoint_open_file(&c, path), NEAP_OK, g->path, "");
        assert_int_equal(neap_checkpoint_count(c), g->n);
        if (sum(c) != g->crc) fail_msg("%s: CRC %08x instead of %08x", g->path, sum(c), g->crc);
        neap_checkpoint_close(c);
    }
}

static void knows_golden_shapes(void **state) {
    (void)state;
    /* name, dtype, elements: the whole of formats.safetensors, in order of the data */
    static const struct {
        const char *name;
        neap_dtype dtype;
        int64_t n;
    } facts[] = {
        {"e8m0.decode", NEAP_DTYPE_F64, 256},
        {"e2m1.decode", NEAP_DTYPE_F32, 16},
        {"e2m1.encode_in", NEAP_DTYPE_F32, 552},
        {"e4m3.decode", NEAP_DTYPE_F32, 256},
        {"e4m3.encode_in", NEAP_DTYPE_F32, 2776},
        {"mx.amax", NEAP_DTYPE_F32, 434},
        {"e2m1.encode_out", NEAP_DTYPE_U8, 552},
        {"e4m3.encode_out", NEAP_DTYPE_U8, 2776},
        {"mx.e2m1.ceil.scale_code", NEAP_DTYPE_U8, 434},
        {"mx.e2m1.floor.scale_code", NEAP_DTYPE_U8, 434},
        {"mx.e4m3.ceil.scale_code", NEAP_DTYPE_U8, 434},
        {"mx.e4m3.floor.scale_code", NEAP_DTYPE_U8, 434},
    };
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, NEAP_TEST_DATA "/golden/units/formats.safetensors"), NEAP_OK, "formats", "");
    assert_int_equal(neap_checkpoint_count(c), 12);
    for (int64_t i = 0; i < 12; i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(c, i);
        assert_string_equal(t->name, facts[i].name);
        assert_int_equal(t->dtype, facts[i].dtype);
        assert_int_equal(t->rank, 1);
        assert_int_equal(t->shape[0], facts[i].n);
    }
    /* E2M1 by its definition: code 7 is 6, code 15 is -6 */
    float e2m1[16];
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "e2m1.decode"), 0, sizeof e2m1, e2m1), NEAP_OK);
    assert_true(e2m1[7] == 6.0f && e2m1[15] == -6.0f && e2m1[1] == 0.5f);
    neap_checkpoint_close(c);
    warnings w = {0};
    neap_log log = {catch_warning, &w};
    expect(neap_checkpoint_open(&c, NEAP_TEST_DATA "/golden/models/glm-dsa-tiny-bfloat16", &log), NEAP_OK, "glm", "");
    assert_int_equal(neap_checkpoint_count(c), 144);
    assert_int_equal(neap_checkpoint_bytes(c), 1559584); /* total_size of its index */
    assert_int_equal(w.n, 0);
    neap_checkpoint_close(c);
}

/* Offsets above 32 bits: a sparse file whose second tensor begins at 5 GiB. */
static void reads_beyond_4_gib(void **state) {
    (void)state;
    static const char header[] =
        "{" T("a", "U8", "5368709120", "0,5368709120") "," T("b", "U8", "4", "5368709120,5368709124") "}";
    const uint64_t n = sizeof header - 1;
    const off_t data = 8 + (off_t)n;
    unsigned char length[8], bytes[12];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n >> 8 * i);
    const int fd = open(in_work("far.safetensors"), O_CREAT | O_TRUNC | O_RDWR, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, length, 8, 0), 8);
    assert_int_equal(pwrite(fd, header, n, 8), n);
    if (pwrite(fd, "wxyz", 4, data + INT64_C(5368709120)) != 4) {
        print_message("SKIP: no sparse files of 5 GiB here\n");
        close(fd);
        remove_work();
        return;
    }
    assert_int_equal(pwrite(fd, "edge", 4, data + INT64_C(4294967294)), 4); /* around 2^32 */
    close(fd);
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, in_work("far.safetensors")), NEAP_OK, "far", "");
    const neap_stored_tensor *a = neap_checkpoint_find(c, "a"), *b = neap_checkpoint_find(c, "b");
    assert_true(a->bytes == UINT64_C(5368709120) && b->bytes == 4);
    assert_int_equal(neap_checkpoint_read(c, a, UINT64_C(4294967292), 12, bytes), NEAP_OK);
    assert_memory_equal(bytes, "\0\0edge\0\0\0\0\0\0", 12);
    assert_int_equal(neap_checkpoint_read(c, b, 0, 4, bytes), NEAP_OK);
    assert_memory_equal(bytes, "wxyz", 4);
    neap_checkpoint_close(c);
    remove_work();
}

static void notices_a_cut_while_open(void **state) {
    (void)state;
    const char *path = in_work("model.safetensors");
    put_tensors(path, "a:16,b:16");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open(&c, work, NULL), NEAP_OK, "open", "");
    assert_int_equal(truncate(path, info.st_size - 8), 0);
    unsigned char bytes[16];
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "a"), 0, 16, bytes), NEAP_OK);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "b"), 0, 8, bytes), NEAP_OK);
    expect(neap_checkpoint_read(c, neap_checkpoint_find(c, "b"), 0, 16, bytes), NEAP_IO, "cut",
           "model.safetensors: file ends at byte");
    assert_non_null(strstr(neap_last_error(), "tensor 'b'"));
    assert_int_equal(truncate(path, 0), 0);
    expect(neap_checkpoint_read(c, neap_checkpoint_find(c, "a"), 0, 16, bytes), NEAP_IO, "emptied",
           "file ends at byte 0");
    /* replaced by another file: the one that was opened is still read */
    neap_checkpoint_close(c);
    put_tensors(path, "a:16");
    expect(neap_checkpoint_open(&c, work, NULL), NEAP_OK, "open again", "");
    assert_int_equal(unlink(path), 0);
    put_bytes(path, "x", 1);
    assert_int_equal(neap_checkpoint_read(c, neap_checkpoint_find(c, "a"), 0, 16, bytes), NEAP_OK);
    assert_int_equal(bytes[15], 'a' + 15);
    neap_checkpoint_close(c);
    remove_work();
}

static void *read_all(void *user) {
    uint32_t *result = malloc(sizeof *result);
    if (result) *result = sum(user);
    return result;
}

static void reads_from_threads(void **state) {
    (void)state;
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, NEAP_TEST_DATA "/golden/units/kda.safetensors"), NEAP_OK, "kda", "");
    (void)sum(c); /* fills the CRC table before the threads share it */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_all, c), 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
        assert_int_equal(*(uint32_t *)result, 0x3a8233fb);
        free(result);
    }
    neap_checkpoint_close(c);
}

/* ---- writing ---- */

static void writes_and_reads_back(void **state) {
    (void)state;
    static const float f[6] = {1, -2.5f, 0, 3e38f, -0.0f, 1e-40f};
    static const uint8_t u[5] = {0, 255, 7, 1, 2};
    static const double d = -1.5;
    const neap_out_tensor t[] = {
        {"plain.weight", NEAP_DTYPE_F32, 2, {2, 3}, f},
        {"odd \"\\/ \t\x01\x7f \xe5\x90\x8d \xf0\x9f\x98\x80", NEAP_DTYPE_U8, 1, {5}, u},
        {"scalar", NEAP_DTYPE_F64, 0, {0}, &d},
        {"empty", NEAP_DTYPE_BF16, 3, {4, 0, 2}, NULL},
        {"nibbles", NEAP_DTYPE_F4, 8, {1, 1, 1, 1, 1, 1, 2, 2}, u},
    };
    const char *path = in_work("out.safetensors");
    expect(neap_safetensors_write(path, t, 5), NEAP_OK, "write", "");
    expect(neap_safetensors_write(path, t, 5), NEAP_OK, "write over it", "");
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, path), NEAP_OK, "read back", "");
    assert_int_equal(neap_checkpoint_count(c), 5);
    for (int i = 0; i < 5; i++) {
        const neap_stored_tensor *s = neap_checkpoint_find(c, t[i].name);
        assert_non_null(s);
        assert_int_equal(s->dtype, t[i].dtype);
        assert_int_equal(s->rank, t[i].rank);
        assert_memory_equal(s->shape, t[i].shape, sizeof(int64_t) * (size_t)t[i].rank);
        unsigned char data[64];
        assert_int_equal(neap_checkpoint_read(c, s, 0, s->bytes, data), NEAP_OK);
        if (s->bytes) assert_memory_equal(data, t[i].data, s->bytes);
    }
    assert_int_equal(neap_checkpoint_bytes(c), 24 + 5 + 8 + 0 + 2);
    assert_int_equal(neap_checkpoint_find(c, "plain.weight")->offset % 8, 0);
    neap_checkpoint_close(c);
    /* nothing else is left in the directory */
    DIR *dir = opendir(work);
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    assert_int_equal(n, 3);
    expect(neap_safetensors_write(path, NULL, 0), NEAP_OK, "no tensor", "");
    expect(neap_checkpoint_open_file(&c, path), NEAP_OK, "no tensor", "");
    assert_int_equal(neap_checkpoint_count(c), 0);
    assert_null(neap_checkpoint_find(c, "a"));
    neap_checkpoint_close(c);
    remove_work();
}

/* A golden file written again is the same to the byte-for-byte CRC of names, shapes and data. */
static void copies_a_golden_file(void **state) {
    (void)state;
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open_file(&c, NEAP_TEST_DATA "/golden/units/blocks.safetensors"), NEAP_OK, "blocks", "");
    neap_out_tensor t[56] = {{0}};
    for (int i = 0; i < 56; i++) {
        const neap_stored_tensor *s = neap_checkpoint_at(c, 55 - i);
        void *data = malloc((size_t)s->bytes + 1);
        assert_int_equal(neap_checkpoint_read(c, s, 0, s->bytes, data), NEAP_OK);
        t[i] = (neap_out_tensor){.name = s->name, .dtype = s->dtype, .rank = s->rank, .data = data};
        memcpy(t[i].shape, s->shape, sizeof t[i].shape);
    }
    expect(neap_safetensors_write(in_work("copy.safetensors"), t, 56), NEAP_OK, "copy", "");
    neap_checkpoint *copy = NULL;
    expect(neap_checkpoint_open_file(&copy, in_work("copy.safetensors")), NEAP_OK, "copy", "");
    assert_int_equal(sum(copy), 0xa6955f51);
    neap_checkpoint_close(copy);
    neap_checkpoint_close(c);
    for (int i = 0; i < 56; i++) free((void *)(uintptr_t)t[i].data);
    remove_work();
}

static void refuses_to_write_nonsense(void **state) {
    (void)state;
    static const char data[64] = {0};
    const char *path = in_work("out.safetensors");
    static const struct {
        const char *word;
        neap_out_tensor t;
    } bad[] = {
        {"name ''", {"", NEAP_DTYPE_U8, 1, {1}, data}},
        {"(null)", {NULL, NEAP_DTYPE_U8, 1, {1}, data}},
        {"__metadata__", {"__metadata__", NEAP_DTYPE_U8, 1, {1}, data}},
        {"UTF-8", {"\xff", NEAP_DTYPE_U8, 1, {1}, data}},
        {"rank 9", {"a", NEAP_DTYPE_U8, 9, {1, 1, 1, 1, 1, 1, 1, 1}, data}},
        {"rank -1", {"a", NEAP_DTYPE_U8, -1, {1}, data}},
        {"is -1", {"a", NEAP_DTYPE_U8, 1, {-1}, data}},
        {"dimension 1 is", {"a", NEAP_DTYPE_U8, 2, {INT64_MAX / 8, INT64_MAX}, data}},
        {"whole byte", {"a", NEAP_DTYPE_F4, 1, {3}, data}},
        {"no data", {"a", NEAP_DTYPE_U8, 1, {3}, NULL}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect(neap_safetensors_write(path, &bad[i].t, 1), NEAP_INVALID_ARGUMENT, bad[i].word, bad[i].word);
        assert_int_equal(access(path, F_OK), -1);
    }
    neap_out_tensor twice[2] = {{"a", NEAP_DTYPE_U8, 1, {1}, data}, {"a", NEAP_DTYPE_U8, 1, {1}, data}};
    expect(neap_safetensors_write(path, twice, 2), NEAP_INVALID_ARGUMENT, "twice", "two tensors with the name 'a'");
    expect(neap_safetensors_write(path, twice, -1), NEAP_INVALID_ARGUMENT, "-1", "-1 tensors");
    expect(neap_safetensors_write(in_work("absent/out"), twice, 1), NEAP_NOT_FOUND, "no directory",
           "cannot open its directory");
    expect(neap_safetensors_write(in_work("dir/"), twice, 1), NEAP_INVALID_ARGUMENT, "slash", "names a directory");
    expect(neap_safetensors_write("", twice, 1), NEAP_INVALID_ARGUMENT, "empty path", "empty path");
    assert_int_equal(mkdir(in_work("dir"), 0755), 0);
    expect(neap_safetensors_write(in_work("dir"), twice, 1), NEAP_INVALID_ARGUMENT, "directory", "not a regular file");
    expect(neap_safetensors_write("/dev/null", twice, 1), NEAP_INVALID_ARGUMENT, "device", "not a regular file");
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    remove_work();
}

/* The data in pieces of any size makes the same bytes; a file that is not complete never appears. */
static void writes_in_pieces(void **state) {
    (void)state;
    static const char data[] = "0123456789abcdefghijABCD";
    const char *path = in_work("pieces"), *whole = in_work("whole");
    neap_tensor_info infos[2] = {{.name = "a", .dtype = "U8", .rank = 1, .shape = {20}},
                                 {.name = "b", .dtype = "F32", .rank = 1, .shape = {1}}};
    const void *parts[2] = {data, data + 20};
    expect(neap_tensors_write(whole, infos, parts, 2), NEAP_OK, "whole", "");
    neap_tensors_writer *w = NULL;
    expect(neap_tensors_writer_open(&w, path, infos, 2), NEAP_OK, "open", "");
    for (size_t at = 0, n = 1; at < 24; at += n, n = 2 * n < 24 - at ? 2 * n : 24 - at) {
        assert_int_equal(access(path, F_OK), -1);
        expect(neap_tensors_writer_append(w, data + at, n), NEAP_OK, "append", "");
    }
    expect(neap_tensors_writer_append(w, data, 1), NEAP_INVALID_ARGUMENT, "too much", "0 are left");
    expect(neap_tensors_writer_finish(w), NEAP_OK, "finish", "");
    char *x = NULL, *y = NULL;
    size_t n_x = 0, n_y = 0;
    expect(neap_file_read(&x, &n_x, path, 1 << 20), NEAP_OK, "read", "");
    expect(neap_file_read(&y, &n_y, whole, 1 << 20), NEAP_OK, "read", "");
    assert_int_equal(n_x, n_y);
    assert_memory_equal(x, y, n_x);
    neap_mem_free(x);
    neap_mem_free(y);

    expect(neap_tensors_writer_open(&w, in_work("short"), infos, 2), NEAP_OK, "open", "");
    expect(neap_tensors_writer_append(w, data, 23), NEAP_OK, "append", "");
    expect(neap_tensors_writer_finish(w), NEAP_INVALID_ARGUMENT, "too little", "1 bytes");
    expect(neap_tensors_writer_open(&w, in_work("short"), infos, 2), NEAP_OK, "open", "");
    neap_tensors_writer_discard(w);
    neap_tensors_writer_discard(NULL);
    expect(neap_tensors_writer_open(&w, in_work("absent/out"), infos, 2), NEAP_NOT_FOUND, "no directory",
           "cannot open its directory");
    expect(neap_tensors_writer_open(&w, "/dev/null", infos, 2), NEAP_INVALID_ARGUMENT, "device", "not a regular file");
    infos[1].name = "a";
    expect(neap_tensors_writer_open(&w, in_work("short"), infos, 2), NEAP_INVALID_ARGUMENT, "twice", "two tensors");
    assert_null(w);
    DIR *dir = opendir(work);
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    assert_int_equal(n, 4); /* pieces, whole, . and .. */
    remove_work();
}

/* A disk that fills up: the old file stays, nothing else is left. */
static void keeps_the_old_file(void **state) {
    (void)state;
    const char *path = in_work("out.safetensors");
    put_tensors(path, "a:4");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static char big[100000];
        neap_out_tensor t = {"big", NEAP_DTYPE_U8, 1, {sizeof big}, big};
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit limit = {50000, 50000};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
        _exit(neap_safetensors_write(path, &t, 1) == NEAP_IO && strstr(neap_last_error(), "cannot write") ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    neap_checkpoint *c = NULL;
    expect(neap_checkpoint_open(&c, work, NULL), NEAP_NOT_FOUND, "no temporary", "found only out.safetensors");
    expect(neap_checkpoint_open_file(&c, path), NEAP_OK, "the old file", "");
    assert_non_null(neap_checkpoint_find(c, "a"));
    neap_checkpoint_close(c);
    DIR *dir = opendir(work);
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    assert_int_equal(n, 3);
    remove_work();
}

/* The k-th allocation fails, for every k: a status, no open file, nothing lost (a leak checker sees the rest). */
static void survives_failing_allocations(void **state) {
    (void)state;
    put_listed(&(listed_file){INDEX, MAP("\"\\u0061\":\"" S1 "\",\"b\":\"" S2 "\"")});
    put_listed(&(listed_file){S1, "=a:4"});
    put_listed(&(listed_file){S2, "=b:8"});
    int before = open_files();
    neap_status status = NEAP_NO_MEMORY;
    uint64_t k = 1;
    for (; status != NEAP_OK && k < 1000; k++) {
        neap_checkpoint *c = NULL;
        neap_alloc_fail_at(k);
        status = neap_checkpoint_open(&c, work, NULL);
        neap_alloc_fail_at(0);
        if (status != NEAP_OK) assert_int_equal(status, NEAP_NO_MEMORY);
        neap_checkpoint_close(c);
        assert_int_equal(open_files(), before);
    }
    assert_int_equal(status, NEAP_OK);
    assert_true(k > 15);
    neap_out_tensor t = {"a", NEAP_DTYPE_U8, 1, {4}, "abcd"};
    status = NEAP_NO_MEMORY;
    for (k = 1; status != NEAP_OK && k < 1000; k++) {
        neap_alloc_fail_at(k);
        status = neap_safetensors_write(in_work("out"), &t, 1);
        neap_alloc_fail_at(0);
        if (status != NEAP_OK) {
            assert_int_equal(status, NEAP_NO_MEMORY);
            assert_int_equal(access(in_work("out"), F_OK), -1);
        }
        assert_int_equal(open_files(), before);
    }
    assert_int_equal(status, NEAP_OK);
    remove_work();
}

/* ---- size of the largest published checkpoint ---- */

enum { N_SHARDS = 96, N_PER_SHARD = 5209 }; /* 500,064 tensors; Kimi K3 has 497,220 */

static void opens_half_a_million_tensors(void **state) {
    (void)state;
    FILE *index = fopen(in_work(INDEX), "wb");
    assert_non_null(index);
    fputs("{\"metadata\":{\"total_size\":0},\"weight_map\":{", index);
    for (int s = 0; s < N_SHARDS; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%06d.safetensors", s + 1, N_SHARDS);
        char *text = malloc((size_t)N_PER_SHARD * 220);
        assert_non_null(text);
        char *p = text + 8;
        *p++ = '{';
        for (int i = 0; i < N_PER_SHARD; i++) {
            char tensor[128];
            snprintf(tensor, sizeof tensor,
                     "language_model.model.layers.%d.block_sparse_moe.experts.%d.w1.weight_packed", s, i);
            p += sprintf(p, "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[0,3584],\"data_offsets\":[0,0]}", i ? "," : "",
                         tensor);
            fprintf(index, "%s\n\"%s\": \"%s\"", s + i ? "," : "", tensor, name);
        }
        *p++ = '}';
        uint64_t n = (uint64_t)(p - text) - 8;
        for (int i = 0; i < 8; i++) text[i] = (char)(n >> (8 * i) & 0xff);
        put_bytes(in_work(name), text, (size_t)n + 8);
        free(text);
    }
    fputs("}}\n", index);
    assert_int_equal(fclose(index), 0);
    neap_checkpoint *c = NULL;
    double start = seconds();
    expect(neap_checkpoint_open(&c, work, NULL), NEAP_OK, "half a million", "");
    double used = seconds() - start;
    assert_int_equal(neap_checkpoint_count(c), (int64_t)N_SHARDS * N_PER_SHARD);
    const neap_stored_tensor *t =
        neap_checkpoint_find(c, "language_model.model.layers.95.block_sparse_moe.experts.5208.w1.weight_packed");
    assert_non_null(t);
    assert_int_equal(t->shard, 95);
    neap_checkpoint_close(c);
    print_message("500,064 tensors in 96 shards: %.2f s\n", used);
    assert_true(used < 10.0 * (SLOW_BUILD ? 10 : 1));
    remove_work();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judges_handcrafted_headers),
        cmocka_unit_test(reports_what_a_header_says),
        cmocka_unit_test(judges_header_lengths),
        cmocka_unit_test(survives_long_headers),
        cmocka_unit_test(limits_the_number_of_tensors),
        cmocka_unit_test(judges_directories),
        cmocka_unit_test(judges_paths),
        cmocka_unit_test(reports_too_many_open_files),
        cmocka_unit_test(orders_and_finds_tensors),
        cmocka_unit_test(reads_golden_files),
        cmocka_unit_test(knows_golden_shapes),
        cmocka_unit_test(notices_a_cut_while_open),
        cmocka_unit_test(reads_beyond_4_gib),
        cmocka_unit_test(reads_from_threads),
        cmocka_unit_test(writes_and_reads_back),
        cmocka_unit_test(copies_a_golden_file),
        cmocka_unit_test(refuses_to_write_nonsense),
        cmocka_unit_test(writes_in_pieces),
        cmocka_unit_test(keeps_the_old_file),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(opens_half_a_million_tensors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
