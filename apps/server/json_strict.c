/* JSON from clients, taken strictly.
 *
 * A scan of our own goes over the bytes before the tree is built: UTF-8, grammar, escapes, depth, number of nodes and
 * length of numbers are checked without recursion and without memory, so neither a deep nor a wide document costs more
 * than one pass. jansson then builds the tree and refuses what is left: equal keys, and numbers that fit no type.
 *
 * The same walk finds values again in the text (neap_raw): what becomes part of a prompt is passed on as it was
 * written, because 0.1 must not become 0.10000000000000001 on its way to a model.
 *
 * Called on prep threads for every body. Owns nothing. Source: RFC 8259, RFC 3629. */
#include <stdlib.h>
#include <string.h>

#include "params_inner.h"

enum { DEPTH_MAX = 1024, NUMBER_MAX = 64 };

typedef struct scan {
    const char *p;
    size_t n, at;
    int64_t nodes, nodes_max;
    size_t depth, depth_max;
    size_t key, key_n; /* the latest key of the outermost object, for messages */
    const char *wrong; /* what is wrong, at byte `at` */
    int is_limit;
    char stack[DEPTH_MAX]; /* '{' or '[' */
} scan;

static int fail(scan *s, const char *wrong) {
    s->wrong = wrong;
    return -1;
}

static void skip_space(scan *s) {
    while (s->at < s->n && (s->p[s->at] == ' ' || s->p[s->at] == '\n' || s->p[s->at] == '\r' || s->p[s->at] == '\t'))
        s->at++;
}

/* Four digits after "\u"; -1: they are none. */
static int32_t hex4(const scan *s, size_t at) {
    int32_t value = 0;
    if (s->n - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->p[i];
        int32_t digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static int scan_escape(scan *s, int is_key) {
    if (s->at + 1 >= s->n) return fail(s, "the text ends inside a string");
    char c = s->p[s->at + 1];
    if (c != 'u') {
        if (memchr("\"\\/bfnrt", c, 8) == NULL) return fail(s, "unknown escape");
        s->at += 2;
        return 0;
    }
    int32_t code = hex4(s, s->at + 2);
    if (code < 0) return fail(s, "\\u needs four hex digits");
    if (code == 0 && is_key) return fail(s, "U+0000 in a name");
    if (code >= 0xDC00 && code <= 0xDFFF) return fail(s, "a lone surrogate");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (s->n - s->at < 12 || s->p[s->at + 6] != '\\' || s->p[s->at + 7] != 'u') return fail(s, "a lone surrogate");
        int32_t low = hex4(s, s->at + 8);
        if (low < 0xDC00 || low > 0xDFFF) return fail(s, "a lone surrogate");
        s->at += 6;
    }
    s->at += 6;
    return 0;
}

static int scan_string(scan *s, int is_key) {
    s->at++;
    while (s->at < s->n) {
        unsigned char c = (unsigned char)s->p[s->at];
        if (c == '"') {
            s->at++;
            return 0;
        }
        if (c < 0x20) return fail(s, "a control character in a string must be escaped");
        if (c == '\\') {
            if (scan_escape(s, is_key) != 0) return -1;
        } else if (c < 0x80) {
            s->at++;
        } else {
            size_t bad, length = neap_cli_utf8_length(s->p + s->at, s->n - s->at, &bad);
            if (length == 0) return fail(s, "invalid UTF-8");
            s->at += length;
        }
    }
    return fail(s, "the text ends inside a string");
}

static size_t digits(scan *s) {
    size_t begin = s->at;
    while (s->at < s->n && s->p[s->at] >= '0' && s->p[s->at] <= '9') s->at++;
    return s->at - begin;
}

static int scan_number(scan *s) {
    size_t begin = s->at;
    if (s->p[s->at] == '-') s->at++;
    size_t first = s->at, n = digits(s);
    if (n == 0) return s->at = begin, fail(s, "not a JSON value (NaN and Infinity are none)");
    if (n > 1 && s->p[first] == '0') return s->at = begin, fail(s, "a number with a leading zero");
    if (s->at < s->n && s->p[s->at] == '.') {
        s->at++;
        if (digits(s) == 0) return fail(s, "a digit is missing after the point");
    }
    if (s->at < s->n && (s->p[s->at] == 'e' || s->p[s->at] == 'E')) {
        s->at++;
        if (s->at < s->n && (s->p[s->at] == '+' || s->p[s->at] == '-')) s->at++;
        if (digits(s) == 0) return fail(s, "a digit is missing in the exponent");
    }
    if (s->at - begin > NUMBER_MAX) {
        s->at = begin;
        s->is_limit = 1;
        return fail(s, "a number of more than 64 characters");
    }
    return 0;
}

static int scan_word(scan *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (s->n - s->at >= n && memcmp(s->p + s->at, words[i], n) == 0) {
            s->at += n;
            return 0;
        }
    }
    return fail(s, "not a JSON value (NaN and Infinity are none)");
}

static int scan_key(scan *s) {
    skip_space(s);
    size_t begin = s->at;
    if (s->at == s->n || s->p[s->at] != '"') return fail(s, "a member's name in quotes expected");
    if (scan_string(s, 1) != 0) return -1;
    if (s->depth == 1) {
        s->key = begin + 1;
        s->key_n = s->at - begin - 2;
    }
    skip_space(s);
    if (s->at == s->n || s->p[s->at] != ':') return fail(s, "':' expected");
    s->at++;
    return 0;
}

/* Begins an array or object. 1: it was empty and is over; 0: a value follows. */
static int scan_open(scan *s) {
    char bracket = s->p[s->at];
    if (s->depth >= s->depth_max) {
        s->is_limit = 1;
        return fail(s, "arrays and objects are nested too deep");
    }
    s->stack[s->depth++] = bracket;
    s->at++;
    skip_space(s);
    if (s->at < s->n && s->p[s->at] == (bracket == '{' ? '}' : ']')) {
        s->at++;
        s->depth--;
        return 1;
    }
    return bracket == '{' ? scan_key(s) : 0;
}

/* A value, or the beginning of one that holds values. 1: whole; 0: only begun; -1. */
static int scan_value(scan *s) {
    skip_space(s);
    if (s->at == s->n) return fail(s, "a value is missing");
    if (++s->nodes > s->nodes_max) {
        s->is_limit = 1;
        return fail(s, "too many values");
    }
    char c = s->p[s->at];
    if (c == '{' || c == '[') return scan_open(s);
    if (c == '"') return scan_string(s, 0) == 0 ? 1 : -1;
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s) == 0 ? 1 : -1;
    return scan_word(s) == 0 ? 1 : -1;
}

/* One whole value from `at` on. */
static int scan_whole(scan *s) {
    for (;;) {
        int state = scan_value(s);
        if (state < 0) return -1;
        if (state == 0) continue;
        for (;;) { /* after a value */
            if (s->depth == 0) return 0;
            int is_object = s->stack[s->depth - 1] == '{';
            skip_space(s);
            if (s->at == s->n) return fail(s, "the text ends too early");
            char c = s->p[s->at];
            if (c == ',') {
                s->at++;
                if (is_object && scan_key(s) != 0) return -1;
                break;
            }
            if (c != (is_object ? '}' : ']')) return fail(s, is_object ? "',' or '}' expected" : "',' or ']' expected");
            s->at++;
            s->depth--;
        }
    }
}

static void report(const scan *s, size_t at, const char *wrong, neap_serve_problem *problem) {
    char key[64] = "";
    if (s->key_n > 0 && s->key_n < sizeof key && memchr(s->p + s->key, '\\', s->key_n) == NULL) {
        memcpy(key, s->p + s->key, s->key_n);
        key[s->key_n] = 0;
    }
    neap_serve_problem_set(problem, NEAP_ERROR_BAD_JSON, key, "the body is not the JSON that is taken: %s, at byte %zu",
                           wrong, at);
}

int64_t neap_serve_nodes_max(const neap_server *s) {
    neap_engine_options options = {.context_max = 0};
    if (s->config.limits.json_nodes > 0) return s->config.limits.json_nodes;
    if (s->backend != NULL) neap_backend_options_now(s->backend, &options);
    return 4 * (int64_t)options.context_max + 65536;
}

json_t *neap_serve_json(const neap_server *s, const char *body, size_t n, neap_serve_problem *problem) {
    const neap_serve_limits *l = &s->config.limits;
    scan walk = {.p = body, .n = n, .nodes_max = neap_serve_nodes_max(s), .depth_max = (size_t)l->json_depth};
    if (walk.depth_max > DEPTH_MAX) walk.depth_max = DEPTH_MAX;
    int failed = scan_whole(&walk);
    if (failed == 0) {
        skip_space(&walk);
        if (walk.at < n) failed = fail(&walk, "something follows the value");
    }
    if (failed != 0) {
        report(&walk, walk.at, n == 0 ? "it is empty" : walk.wrong, problem);
        return NULL;
    }
    json_error_t error;
    json_t *root = json_loadb(body, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root != NULL) return root;
    const char *wrong = "it cannot be read";
    walk.key_n = 0;
    switch (json_error_code(&error)) {
    case json_error_duplicate_key: wrong = "two members of an object have the same name"; break;
    case json_error_numeric_overflow: wrong = "a number that is too large"; break;
    case json_error_invalid_syntax: /* a body that is one string or number */ wrong = "an object is expected"; break;
    default: break;
    }
    report(&walk, error.position > 0 ? (size_t)error.position : 0, wrong, problem);
    return NULL;
}

/* ---- values in text that has been checked ---- */

static int value_at(neap_raw text, size_t at, neap_raw *out) {
    scan walk = {.p = text.p, .n = text.n, .at = at, .nodes_max = INT64_MAX, .depth_max = DEPTH_MAX};
    skip_space(&walk);
    size_t begin = walk.at;
    if (scan_whole(&walk) != 0) return 0;
    *out = (neap_raw){text.p + begin, walk.at - begin};
    return 1;
}

static int is_key(neap_raw quoted, const char *key) {
    size_t n = strlen(key);
    if (memchr(quoted.p, '\\', quoted.n) == NULL) return quoted.n == n + 2 && memcmp(quoted.p + 1, key, n) == 0;
    json_t *value = json_loadb(quoted.p, quoted.n, JSON_DECODE_ANY, NULL);
    int is_same = value != NULL && json_string_length(value) == n && memcmp(json_string_value(value), key, n) == 0;
    json_decref(value);
    return is_same;
}

static size_t after_space(neap_raw text, size_t at) {
    scan walk = {.p = text.p, .n = text.n, .at = at};
    skip_space(&walk);
    return walk.at;
}

int neap_raw_member(neap_raw object, const char *key, neap_raw *out) {
    size_t at = after_space(object, 0) + 1;
    neap_raw name;
    if (object.n == 0 || object.p[at - 1] != '{') return 0;
    while ((at = after_space(object, at)) < object.n && object.p[at] == '"') {
        if (!value_at(object, at, &name)) return 0;
        at = after_space(object, (size_t)(name.p - object.p) + name.n) + 1; /* behind ':' */
        if (!value_at(object, at, out)) return 0;
        if (is_key(name, key)) return 1;
        at = after_space(object, (size_t)(out->p - object.p) + out->n) + 1; /* behind ',' */
    }
    return 0;
}

int neap_raw_next(neap_raw array, size_t *at, neap_raw *out) {
    if (*at == 0) *at = after_space(array, 0) + 1;
    size_t here = after_space(array, *at);
    if (here >= array.n || array.p[here] == ']') return 0;
    if (!value_at(array, here, out)) return 0;
    *at = after_space(array, (size_t)(out->p - array.p) + out->n) + 1;
    return 1;
}
