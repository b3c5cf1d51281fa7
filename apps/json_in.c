/* Reads JSON; see json_in.h.
 *
 * A strict cursor for the few documents the program itself reads: token lists, saved conversations, tool
 * lists. It never builds a tree: callers walk, take the strings they want and pass whole values on as text
 * (the library parses requests again, with its own limits). Nesting is a bit stack, not recursion.
 *
 * Errors name file, line and column, and are printed once. */
#include "json_in.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { DEPTH_MAX = 64, IDS_BYTES_MAX = 256 << 20 };

int neap_cli_json_fail(neap_cli_json *j, const char *problem) {
    if (j->has_failed) return 0;
    j->has_failed = 1;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < j->at && i < j->n; i++) {
        column++;
        if (j->text[i] == '\n') line++, column = 1;
    }
    const char *field = j->field != NULL ? j->field : "", *quote = j->field != NULL ? "\"" : "";
    neap_cli_error("%s: line %zu, column %zu: %s%s%s%s%s", j->what, line, column, quote, field, quote,
                   j->field != NULL ? ": " : "", problem);
    return 0;
}

char neap_cli_json_peek(neap_cli_json *j) {
    while (j->at < j->n) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
        j->at++;
    }
    return 0;
}

int neap_cli_json_accept(neap_cli_json *j, char c) {
    if (j->has_failed || neap_cli_json_peek(j) != c || j->at >= j->n) return 0;
    j->at++;
    return 1;
}

int neap_cli_json_expect(neap_cli_json *j, char c) {
    if (neap_cli_json_accept(j, c)) return 1;
    char problem[64];
    snprintf(problem, sizeof problem, "'%c' expected%s", c, j->at >= j->n ? ", the text ends here" : "");
    return neap_cli_json_fail(j, problem);
}

int neap_cli_json_at_end(neap_cli_json *j) {
    if (j->has_failed) return 0;
    neap_cli_json_peek(j);
    return j->at == j->n ? 1 : neap_cli_json_fail(j, "nothing may follow the value");
}

/* ---- strings ---- */

static int hex4(neap_cli_json *j, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->at < j->n ? j->text[j->at] : 0;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return neap_cli_json_fail(j, "four hexadecimal digits expected after \\u");
        *code = *code << 4 | digit;
        j->at++;
    }
    return 1;
}

static void add_utf8(neap_cli_text *out, uint32_t c) {
    char b[4];
    size_t n;
    if (c < 0x80) {
        b[0] = (char)c, n = 1;
    } else if (c < 0x800) {
        b[0] = (char)(0xc0 | c >> 6), b[1] = (char)(0x80 | (c & 63)), n = 2;
    } else if (c < 0x10000) {
        b[0] = (char)(0xe0 | c >> 12), b[1] = (char)(0x80 | (c >> 6 & 63)), b[2] = (char)(0x80 | (c & 63)), n = 3;
    } else {
        b[0] = (char)(0xf0 | c >> 18), b[1] = (char)(0x80 | (c >> 12 & 63));
        b[2] = (char)(0x80 | (c >> 6 & 63)), b[3] = (char)(0x80 | (c & 63)), n = 4;
    }
    neap_cli_text_add(out, b, n);
}

static int escape(neap_cli_json *j, neap_cli_text *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->n ? j->text[j->at++] : 0;
    const char *simple = c == 0 ? NULL : strchr(from, c);
    if (simple != NULL) {
        neap_cli_text_add(out, &to[simple - from], 1);
        return 1;
    }
    uint32_t code, low;
    if (c != 'u') return neap_cli_json_fail(j, "unknown escape in a string");
    if (!hex4(j, &code)) return 0;
    if (code >= 0xd800 && code < 0xdc00) {
        if (j->n - j->at < 2 || j->text[j->at] != '\\' || j->text[j->at + 1] != 'u')
            return neap_cli_json_fail(j, "a lone surrogate in a string");
        j->at += 2;
        if (!hex4(j, &low)) return 0;
        if (low < 0xdc00 || low > 0xdfff) return neap_cli_json_fail(j, "a lone surrogate in a string");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return neap_cli_json_fail(j, "a lone surrogate in a string");
    }
    if (code == 0) return neap_cli_json_fail(j, "\\u0000 is not allowed in a string");
    add_utf8(out, code);
    return 1;
}

int neap_cli_json_read_string(neap_cli_json *j, neap_cli_text *out) {
    if (j->has_failed) return 0;
    if (neap_cli_json_peek(j) != '"') return neap_cli_json_fail(j, "a string expected");
    j->at++;
    for (;;) {
        size_t begin = j->at;
        while (j->at < j->n && (unsigned char)j->text[j->at] >= 0x20 && j->text[j->at] != '"' && j->text[j->at] != '\\')
            j->at++;
        neap_cli_text_add(out, j->text + begin, j->at - begin);
        if (j->at >= j->n) return neap_cli_json_fail(j, "the string does not end");
        char c = j->text[j->at];
        if ((unsigned char)c < 0x20) return neap_cli_json_fail(j, "a control character in a string");
        j->at++;
        if (c == '"') return 1;
        if (!escape(j, out)) return 0;
    }
}

/* ---- numbers and whole values ---- */

int neap_cli_json_read_int(neap_cli_json *j, int64_t min, int64_t max, int64_t *out) {
    if (j->has_failed) return 0;
    char c = neap_cli_json_peek(j);
    size_t begin = j->at;
    int is_negative = c == '-';
    if (is_negative) j->at++;
    uint64_t value = 0;
    size_t digits = j->at;
    while (j->at < j->n && j->text[j->at] >= '0' && j->text[j->at] <= '9') {
        if (value > (uint64_t)INT64_MAX / 10 - 1) {
            j->at = begin;
            return neap_cli_json_fail(j, "the number is too large");
        }
        value = value * 10 + (uint64_t)(j->text[j->at++] - '0');
    }
    size_t n = j->at - digits;
    char next = j->at < j->n ? j->text[j->at] : 0;
    if (n == 0 || (n > 1 && j->text[digits] == '0') || next == '.' || next == 'e' || next == 'E') {
        j->at = begin;
        return neap_cli_json_fail(j, "a whole number expected");
    }
    int64_t number = is_negative ? -(int64_t)value : (int64_t)value;
    if (number < min || number > max) {
        char problem[96];
        snprintf(problem, sizeof problem, "%lld is outside %lld .. %lld", (long long)number, (long long)min,
                 (long long)max);
        j->at = begin;
        return neap_cli_json_fail(j, problem);
    }
    *out = number;
    return 1;
}

static size_t digits_at(const neap_cli_json *j, size_t at) {
    size_t n = 0;
    while (at + n < j->n && j->text[at + n] >= '0' && j->text[at + n] <= '9') n++;
    return n;
}

/* A string, number or word; brackets are skip's business. */
static int skip_scalar(neap_cli_json *j, neap_cli_text *scratch) {
    static const char *const words[] = {"true", "false", "null"};
    char c = neap_cli_json_peek(j);
    if (c == '"') {
        scratch->n = 0;
        return neap_cli_json_read_string(j, scratch);
    }
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (j->n - j->at >= n && memcmp(j->text + j->at, words[i], n) == 0) {
            j->at += n;
            return 1;
        }
    }
    size_t at = j->at + (c == '-'), n = digits_at(j, at);
    if (n == 0 || (n > 1 && j->text[at] == '0')) return neap_cli_json_fail(j, "a value expected");
    at += n;
    if (at < j->n && j->text[at] == '.') {
        n = digits_at(j, at + 1);
        if (n == 0) return neap_cli_json_fail(j, "digits expected after '.'");
        at += 1 + n;
    }
    if (at < j->n && (j->text[at] == 'e' || j->text[at] == 'E')) {
        at++;
        if (at < j->n && (j->text[at] == '+' || j->text[at] == '-')) at++;
        n = digits_at(j, at);
        if (n == 0) return neap_cli_json_fail(j, "digits expected in the exponent");
        at += n;
    }
    j->at = at;
    return 1;
}

int neap_cli_json_skip(neap_cli_json *j, size_t *begin) {
    char open[DEPTH_MAX]; /* '{' or '[' of every level */
    int depth = 0, ok = 1;
    neap_cli_text scratch = {0};
    neap_cli_json_peek(j);
    *begin = j->at;
    while (ok) {
        char c = neap_cli_json_peek(j);
        if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX) {
                ok = neap_cli_json_fail(j, "nested deeper than 64 levels");
                break;
            }
            open[depth++] = c;
            j->at++;
            if (neap_cli_json_peek(j) != (c == '{' ? '}' : ']')) {
                scratch.n = 0;
                if (c == '{') ok = neap_cli_json_read_string(j, &scratch) && neap_cli_json_expect(j, ':');
                continue;
            }
        } else {
            ok = skip_scalar(j, &scratch);
        }
        /* A value has ended: close brackets or go on after a comma. */
        while (ok && depth > 0 && neap_cli_json_accept(j, open[depth - 1] == '{' ? '}' : ']')) depth--;
        if (!ok || depth == 0) break;
        ok = neap_cli_json_expect(j, ',');
        scratch.n = 0;
        if (ok && open[depth - 1] == '{') ok = neap_cli_json_read_string(j, &scratch) && neap_cli_json_expect(j, ':');
    }
    neap_cli_text_free(&scratch);
    return ok && !j->has_failed;
}

/* ---- token ids ---- */

static void push_id(int32_t **ids, size_t *n, size_t *capacity, int64_t id) {
    if (*n == *capacity) {
        *capacity = *capacity < 64 ? 64 : *capacity * 2;
        *ids = neap_cli_grow(*ids, *capacity, sizeof **ids);
    }
    (*ids)[(*n)++] = (int32_t)id;
}

static int read_array(neap_cli_json *j, int32_t **ids, size_t *n) {
    size_t capacity = 0;
    int64_t id;
    if (!neap_cli_json_expect(j, '[')) return 0;
    if (!neap_cli_json_accept(j, ']')) {
        do {
            if (!neap_cli_json_read_int(j, 0, INT32_MAX, &id)) return 0;
            push_id(ids, n, &capacity, id);
        } while (neap_cli_json_accept(j, ','));
        if (!neap_cli_json_expect(j, ']')) return 0;
    }
    return neap_cli_json_at_end(j);
}

int neap_cli_read_ids(const char *path, int32_t **ids, size_t *n) {
    neap_cli_text text = {0};
    *ids = NULL;
    *n = 0;
    int code = neap_cli_read_file(&text, path, IDS_BYTES_MAX);
    if (code == NEAP_EXIT_OK) {
        neap_cli_json j = {.what = strcmp(path, "-") == 0 ? "standard input" : path, .text = text.data, .n = text.n};
        if (!read_array(&j, ids, n)) code = NEAP_EXIT_FILE;
    }
    neap_cli_text_free(&text);
    return code;
}

int neap_cli_parse_ids(const char *what, const char *text, int32_t **ids, size_t *n) {
    neap_cli_json j = {.what = what, .text = text, .n = strlen(text)};
    size_t capacity = 0;
    int64_t id;
    *ids = NULL;
    *n = 0;
    if (neap_cli_json_peek(&j) == '[') return read_array(&j, ids, n) ? NEAP_EXIT_OK : NEAP_EXIT_USAGE;
    while (neap_cli_json_peek(&j) != 0) {
        if (!neap_cli_json_read_int(&j, 0, INT32_MAX, &id)) return NEAP_EXIT_USAGE;
        push_id(ids, n, &capacity, id);
        neap_cli_json_accept(&j, ',');
    }
    return NEAP_EXIT_OK;
}
