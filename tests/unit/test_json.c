/* JSON documents and reading of small files: limits, refusals with a place, accessors. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "format/json.h"

static char work[] = "/tmp/neap_json_XXXXXX";

static int set_up(void **state) {
    (void)state;
    return mkdtemp(work) ? 0 : -1;
}

static const char *in_work(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", work, name);
    return path;
}

static int tear_down(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command);
}

static const char *put_file(const char *name, const char *text, size_t n) {
    const char *path = in_work(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void accept_text(const char *text) {
    neap_json *j = NULL;
    if (neap_json_parse(&j, text, strlen(text), "t") != NEAP_OK) fail_msg("%s: %s", text, neap_last_error());
    neap_json_free(j);
}

static void refuse_bytes(const char *text, size_t n, const char *word) {
    neap_json *j = (neap_json *)text; /* must be overwritten */
    /* An exact copy, so that a sanitizer sees a read past the end. */
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    neap_status status = neap_json_parse(&j, copy, n, "t.json");
    free(copy);
    if (status != NEAP_BAD_FILE) fail_msg("accepted or wrong code %d: %.100s", status, text);
    assert_null(j);
    if (!strstr(neap_last_error(), word)) fail_msg("'%s' is not in: %s", word, neap_last_error());
    if (strncmp(neap_last_error(), "t.json: ", 8) != 0) fail_msg("no file name: %s", neap_last_error());
    if (strchr(neap_last_error(), '\n')) fail_msg("two lines: %s", neap_last_error());
}

static void refuse(const char *text, const char *word) { refuse_bytes(text, strlen(text), word); }

static void accepts_json(void **state) {
    (void)state;
    accept_text("{}");
    accept_text(" [ ] \n");
    accept_text("1");
    accept_text("\"x\"");
    accept_text("null");
    accept_text("{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":1}]}");
    accept_text("\"\\ud83d\\ude00 \\u00e9 \xe5\x90\x8d\"");
    accept_text("[\"{{{[[[\",\"\\\"[[\"]");
    accept_text("[-0, 1e3, -1.5E-2, 9223372036854775807, -9223372036854775808]");
}

static void refuses_what_is_not_json(void **state) {
    (void)state;
    refuse("", "empty");
    refuse(" ", "line 1");
    refuse("{", "line 1");
    refuse("{\"a\":1", "line 1");
    refuse("{\"a\":1,}", "line 1");
    refuse("[1,]", "line 1");
    refuse("[1 2]", "line 1");
    refuse("{\"a\" 1}", "line 1");
    refuse("{a:1}", "line 1");
    refuse("{'a':1}", "line 1");
    refuse("[1] x", "line 1");
    refuse("{}{}", "line 1");
    refuse("\xef\xbb\xbf{}", "line 1");
    refuse("// c\n{}", "line 1");
    refuse("[1]/* c */", "line 1");
    refuse("[NaN]", "line 1");
    refuse("[Infinity]", "line 1");
    refuse("[+1]", "line 1");
    refuse("[01]", "line 1");
    refuse("[1.]", "line 1");
    refuse("[.5]", "line 1");
    refuse("[0x10]", "line 1");
    refuse("[1e400]", "line 1");
    refuse("[9223372036854775808]", "line 1");
    refuse("[tru]", "line 1");
    refuse("]", "line 1");
    refuse("[}", "line 1");
    refuse("[\"a\nb\"]", "line 1");
    refuse("[\"\\x41\"]", "line 1");
    refuse("[\"\\ud800\"]", "line 1");
    refuse("[\"\\udc00\"]", "line 1");
    refuse("[\"\\u0000\"]", "line 1");
    refuse("[\"\x80\"]", "line 1");
    refuse("[\"\xc0\xaf\"]", "line 1");
    refuse("[\"\xed\xa0\x80\"]", "line 1");
    refuse("[\"\xf4\x90\x80\x80\"]", "line 1");
    refuse_bytes("[1]\0", 4, "NUL");
    refuse_bytes("[\"a\0b\"]", 7, "NUL");
    refuse_bytes("[\"\\\0\"]", 6, "line 1");
    refuse_bytes("\"\\", 2, "line 1");
}

static void refuses_repeated_keys(void **state) {
    (void)state;
    refuse("{\"a\":1,\"a\":1}", "duplicate");
    refuse("{\"a\":1,\"\\u0061\":2}", "duplicate");
    refuse("{\"x\":[{\"y\":{\"k\":1,\"k\":2}}]}", "duplicate");
}

static void names_line_and_column(void **state) {
    (void)state;
    refuse("{\n  \"a\": 1,\n  \"b\": nope\n}", "line 3, column");
    refuse_bytes("[1,\n\xc3\xa9\0", 7, "line 2, column 2: NUL");
    /* names from outside cannot start a second line or colour the terminal */
    refuse("{\"\\n\\u001b[31m\":1,\"\\n\\u001b[31m\":1}", "line 1");
}

/* `depth` brackets of one kind, then the closing ones. */
static void nest(const char *open, const char *close, size_t depth, bool ok) {
    size_t n_open = strlen(open), n_close = strlen(close);
    char *text = malloc(depth * (n_open + n_close) + 2);
    assert_non_null(text);
    char *p = text;
    for (size_t i = 0; i < depth; i++, p += n_open) memcpy(p, open, n_open + 1);
    if (strchr(open, ':')) *p++ = '1';
    for (size_t i = 0; i < depth; i++, p += n_close) memcpy(p, close, n_close + 1);
    *p = 0;
    if (ok) {
        accept_text(text);
    } else {
        refuse(text, "nested more than 64 deep");
    }
    free(text);
}

static void limits_depth(void **state) {
    (void)state;
    nest("[", "]", 64, true);
    nest("[", "]", 65, false);
    nest("{\"a\":", "}", 64, true);
    nest("{\"a\":", "}", 65, false);
    nest("[{\"a\":", "}]", 32, true);
    nest("[{\"a\":", "}]", 33, false);
    nest("[", "", 10000, false);
    nest("[", "]", 2000000, false);
    /* brackets in strings are not depth, side by side is not depth */
    char text[700] = "[\"";
    memset(text + 2, '[', 300);
    strcpy(text + 302, "\"]");
    accept_text(text);
    strcpy(text, "[");
    for (int i = 0; i < 100; i++) strcat(text, i ? ",[[]]" : "[[]]");
    strcat(text, "]");
    accept_text(text);
}

static void limits_values(void **state) {
    (void)state;
    size_t n = (size_t)1 << 20;
    char *text = malloc(2 * n + 8);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) memcpy(text + 2 * i, i ? ",1" : "[1", 2);
    text[2 * n] = ']';
    refuse_bytes(text, 2 * n + 1, "values");
    text[2 * (n - 1)] = ']'; /* one value less, the array itself counts */
    neap_json *j = NULL;
    assert_int_equal(neap_json_parse(&j, text, 2 * (n - 1) + 1, "t"), NEAP_OK);
    assert_int_equal(neap_json_size(j), n - 1);
    neap_json_free(j);
    free(text);
}

static void accessors(void **state) {
    (void)state;
    static const char text[] = "{\"z\":null,\"b\":true,\"f\":false,\"i\":-42,\"r\":1.5,\"s\":\"a\\u00e9\",\"a\":[1,2.5,"
                               "\"x\"],\"o\":{\"k\":1}}";
    neap_json *j = NULL;
    assert_int_equal(neap_json_parse(&j, text, sizeof text - 1, "t"), NEAP_OK);
    assert_int_equal(neap_json_type_of(j), NEAP_JSON_OBJECT);
    assert_int_equal(neap_json_size(j), 8);
    assert_int_equal(neap_json_type_of(neap_json_get(j, "z")), NEAP_JSON_NULL);
    assert_non_null(neap_json_get(j, "z"));
    assert_int_equal(neap_json_type_of(neap_json_get(j, "b")), NEAP_JSON_BOOL);
    assert_true(neap_json_bool(neap_json_get(j, "b")));
    assert_int_equal(neap_json_type_of(neap_json_get(j, "f")), NEAP_JSON_BOOL);
    assert_false(neap_json_bool(neap_json_get(j, "f")));
    assert_int_equal(neap_json_type_of(neap_json_get(j, "i")), NEAP_JSON_INT);
    assert_int_equal(neap_json_int(neap_json_get(j, "i")), -42);
    assert_true(neap_json_real(neap_json_get(j, "i")) == -42.0);
    assert_int_equal(neap_json_type_of(neap_json_get(j, "r")), NEAP_JSON_REAL);
    assert_true(neap_json_real(neap_json_get(j, "r")) == 1.5);
    size_t n = 0;
    assert_string_equal(neap_json_string(neap_json_get(j, "s"), &n), "a\xc3\xa9");
    assert_int_equal(n, 3);
    const neap_json *a = neap_json_get(j, "a");
    assert_int_equal(neap_json_type_of(a), NEAP_JSON_ARRAY);
    assert_int_equal(neap_json_size(a), 3);
    assert_int_equal(neap_json_int(neap_json_at(a, 0)), 1);
    assert_string_equal(neap_json_string(neap_json_at(a, 2), NULL), "x");
    /* absent things, wrong kinds, NULL: nothing, never a crash */
    assert_null(neap_json_at(a, 3));
    assert_null(neap_json_get(a, "x"));
    assert_null(neap_json_get(j, "absent"));
    assert_null(neap_json_get(NULL, "x"));
    assert_null(neap_json_at(NULL, 0));
    assert_null(neap_json_at(j, 0));
    assert_int_equal(neap_json_type_of(NULL), NEAP_JSON_NULL);
    assert_int_equal(neap_json_size(NULL), 0);
    assert_int_equal(neap_json_size(neap_json_get(j, "s")), 0);
    assert_null(neap_json_string(neap_json_get(j, "i"), &n));
    assert_int_equal(n, 0);
    assert_int_equal(neap_json_int(neap_json_get(j, "s")), 0);
    /* members come in the order of the text */
    static const char order[] = "zbfirsao";
    const char *key = NULL;
    const neap_json *value = NULL;
    size_t count = 0;
    for (void *it = neap_json_iter(j, NULL, &key, &value); it; it = neap_json_iter(j, it, &key, &value)) {
        assert_true(key[0] == order[count] && key[1] == 0);
        assert_ptr_equal(value, neap_json_get(j, key));
        count++;
    }
    assert_int_equal(count, 8);
    assert_null(neap_json_iter(a, NULL, &key, &value));
    assert_null(neap_json_iter(NULL, NULL, NULL, NULL));
    neap_json_free(j);
    neap_json_free(NULL);
}

static void reads_files(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    const char *path = put_file("plain", "{\"a\":1}\n", 8);
    assert_int_equal(neap_file_read(&text, &n, path, 8), NEAP_OK);
    assert_int_equal(n, 8);
    assert_string_equal(text, "{\"a\":1}\n"); /* terminated */
    neap_mem_free(text);
    assert_int_equal(neap_file_read(&text, &n, path, 7), NEAP_BAD_FILE);
    assert_null(text);
    assert_non_null(strstr(neap_last_error(), "8 bytes, the limit is 7"));
    assert_non_null(strstr(neap_last_error(), path));
    path = put_file("empty", "", 0);
    assert_int_equal(neap_file_read(&text, &n, path, 7), NEAP_OK);
    assert_int_equal(n, 0);
    assert_int_equal(text[0], 0);
    neap_mem_free(text);
    neap_json *j = NULL;
    assert_int_equal(neap_json_load(&j, path, 100), NEAP_BAD_FILE);
    path = put_file("good.json", "{\"a\":[1]}", 9);
    assert_int_equal(neap_json_load(&j, path, 100), NEAP_OK);
    assert_int_equal(neap_json_size(neap_json_get(j, "a")), 1);
    neap_json_free(j);
    assert_int_equal(neap_json_load(&j, path, 8), NEAP_BAD_FILE);
    path = put_file("bad.json", "{\n\"a\":[1}", 9);
    assert_int_equal(neap_json_load(&j, path, 100), NEAP_BAD_FILE);
    assert_non_null(strstr(neap_last_error(), "bad.json: line 2"));
}

static void refuses_other_kinds_of_files(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    alarm(20); /* a FIFO must not make us wait */
    assert_int_equal(neap_file_read(&text, &n, in_work("absent"), 10), NEAP_NOT_FOUND);
    assert_non_null(strstr(neap_last_error(), "absent: no such file"));
    assert_int_equal(mkfifo(in_work("fifo"), 0600), 0);
    assert_int_equal(neap_file_read(&text, &n, in_work("fifo"), 10), NEAP_BAD_FILE);
    assert_non_null(strstr(neap_last_error(), "not a regular file"));
    assert_int_equal(neap_file_read(&text, &n, work, 10), NEAP_BAD_FILE);
    assert_non_null(strstr(neap_last_error(), "directory"));
    assert_int_equal(neap_file_read(&text, &n, "/dev/zero", 10), NEAP_BAD_FILE);
    assert_int_equal(symlink("loop", in_work("loop")), 0);
    assert_int_equal(neap_file_read(&text, &n, in_work("loop"), 10), NEAP_IO);
    assert_int_equal(symlink("plain", in_work("link")), 0);
    put_file("plain", "{}", 2);
    assert_int_equal(neap_file_read(&text, &n, in_work("link"), 10), NEAP_OK);
    neap_mem_free(text);
    put_file("secret", "{}", 2);
    assert_int_equal(chmod(in_work("secret"), 0), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* root may read everything: become nobody */
        if (geteuid() == 0 && (chmod(work, 0755) != 0 || setuid(65534) != 0)) _exit(2);
        bool ok = neap_file_read(&text, &n, in_work("secret"), 10) == NEAP_IO &&
                  strstr(neap_last_error(), "Permission denied");
        _exit(ok ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    alarm(0);
}

/* The k-th allocation fails, for every k: a status, nothing lost (a leak checker sees the rest). */
static void survives_failing_allocations(void **state) {
    (void)state;
    const char *path = put_file("good.json", "{\"a\":[1]}", 9);
    neap_status status = NEAP_NO_MEMORY;
    uint64_t k = 1;
    for (; status != NEAP_OK && k < 100; k++) {
        neap_json *j = NULL;
        neap_alloc_fail_at(k);
        status = neap_json_load(&j, path, 100);
        neap_alloc_fail_at(0);
        if (status != NEAP_OK) {
            assert_int_equal(status, NEAP_NO_MEMORY);
            assert_null(j);
        }
        neap_json_free(j);
    }
    assert_true(k > 2);
    assert_int_equal(status, NEAP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_json),
        cmocka_unit_test(refuses_what_is_not_json),
        cmocka_unit_test(refuses_repeated_keys),
        cmocka_unit_test(names_line_and_column),
        cmocka_unit_test(limits_depth),
        cmocka_unit_test(limits_values),
        cmocka_unit_test(accessors),
        cmocka_unit_test(reads_files),
        cmocka_unit_test(refuses_other_kinds_of_files),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
