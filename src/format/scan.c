/* JSON pull scanner for large texts from outside.
 *
 * Called by header.c and shard_index.c, which know the shape of what they read and ask for exactly that: a key, a
 * string, a number. Values nobody needs are skipped iteratively with a depth limit. Grammar is RFC 8259 without
 * extensions: no byte order mark, no comments, no trailing commas, no raw control characters in strings, UTF-8
 * without overlong forms or surrogates, \u escapes with surrogates only in pairs.
 *
 * Owns the side buffer for decoded strings. It is allocated once with the length of the text: a decoded string is
 * never longer than its escaped form, so nothing handed out ever moves.
 */
#include "format/scan.h"

#include <assert.h>
#include <string.h>

#include "base/arena.h"
#include "format/utf8.h"

void neap_scan_start(neap_scan *s, const char *text, size_t n, const char *what) {
    *s = (neap_scan){.text = text, .n = n, .what = what};
}

void neap_scan_end(neap_scan *s) {
    neap_mem_free(s->side);
    s->side = NULL;
}

neap_status neap_scan_fail(const neap_scan *s, size_t at, const char *text) {
    return neap_fail(NEAP_BAD_FILE, "%s, byte %zu: %s", s->what, at, text);
}

bool neap_text_is(neap_text t, const char *word) { return t.n == strlen(word) && memcmp(t.p, word, t.n) == 0; }

int neap_text_shown(neap_text t) {
    if (t.n <= 200) return (int)t.n;
    int n = 200; /* not in the middle of a character */
    while (n > 196 && ((unsigned char)t.p[n] & 0xc0) == 0x80) n--;
    return n;
}

bool neap_text_u64(neap_text t, uint64_t *out) {
    if (t.n == 0 || (t.n > 1 && t.p[0] == '0')) return false;
    uint64_t v = 0;
    for (size_t i = 0; i < t.n; i++) {
        if (t.p[i] < '0' || t.p[i] > '9') return false;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v)) return false;
        if (__builtin_add_overflow(v, (uint64_t)(t.p[i] - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

int neap_scan_peek(neap_scan *s) {
    while (s->at < s->n) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return (unsigned char)c;
        s->at++;
    }
    return -1;
}

neap_status neap_scan_expect(neap_scan *s, char c) {
    int next = neap_scan_peek(s);
    if (next == (unsigned char)c) {
        s->at++;
        return NEAP_OK;
    }
    if (next < 0) NEAP_FAIL(NEAP_BAD_FILE, "%s, byte %zu: text ends where '%c' is expected", s->what, s->at, c);
    if (next > 0x20 && next < 0x7f)
        NEAP_FAIL(NEAP_BAD_FILE, "%s, byte %zu: expected '%c', found '%c'", s->what, s->at, c, next);
    NEAP_FAIL(NEAP_BAD_FILE, "%s, byte %zu: expected '%c', found byte 0x%02x", s->what, s->at, c, (unsigned)next);
}

neap_status neap_scan_next(neap_scan *s, char close, bool *first, bool *more) {
    int next = neap_scan_peek(s);
    if (next == (unsigned char)close) {
        s->at++;
        *more = false;
        return NEAP_OK;
    }
    if (!*first) {
        if (next != ',') NEAP_FAIL(NEAP_BAD_FILE, "%s, byte %zu: expected ',' or '%c'", s->what, s->at, close);
        s->at++;
        if (neap_scan_peek(s) == (unsigned char)close)
            return neap_scan_fail(s, s->at, "comma before a closing bracket");
    }
    if (neap_scan_peek(s) < 0) return neap_scan_fail(s, s->at, "text ends inside an object or array");
    *first = false;
    *more = true;
    return NEAP_OK;
}

static bool hex4(const char *p, size_t n, uint32_t *out) {
    if (n < 4) return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16u;
        if (d > 15) return false;
        v = v * 16 + d;
    }
    *out = v;
    return true;
}

/* At a backslash: decodes one escape (or a surrogate pair of them) into dst, at most 4 bytes from 6 or 12. */
static neap_status escape(neap_scan *s, char *dst, size_t *n_dst) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = s->at;
    if (s->n - s->at < 2) return neap_scan_fail(s, start, "string is not closed");
    char kind = s->text[s->at + 1];
    s->at += 2;
    if (kind != 'u') {
        const char *found = kind ? strchr(from, kind) : NULL;
        if (!found) return neap_scan_fail(s, start, "unknown escape in a string");
        dst[0] = to[found - from];
        *n_dst = 1;
        return NEAP_OK;
    }
    uint32_t c = 0, low = 0;
    if (!hex4(s->text + s->at, s->n - s->at, &c)) return neap_scan_fail(s, start, "\\u needs four hex digits");
    s->at += 4;
    if (c >= 0xdc00 && c <= 0xdfff) return neap_scan_fail(s, start, "lone surrogate in a string");
    if (c >= 0xd800 && c <= 0xdbff) {
        bool paired = s->n - s->at >= 6 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u' &&
                      hex4(s->text + s->at + 2, 4, &low) && low >= 0xdc00 && low <= 0xdfff;
        if (!paired) return neap_scan_fail(s, start, "lone surrogate in a string");
        s->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    *n_dst = neap_utf8_encode(c, dst);
    return NEAP_OK;
}

/* Moves over bytes that stand for themselves; stops at a quote or a backslash. */
static neap_status plain_run(neap_scan *s) {
    while (s->at < s->n) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"' || c == '\\') return NEAP_OK;
        if (c < 0x20) return neap_scan_fail(s, s->at, "raw control character in a string");
        size_t length = c < 0x80 ? 1 : neap_utf8_char(s->text + s->at, s->n - s->at);
        if (length == 0) return neap_scan_fail(s, s->at, "not UTF-8");
        s->at += length;
    }
    return neap_scan_fail(s, s->at, "string is not closed");
}

neap_status neap_scan_string(neap_scan *s, neap_text *out) {
    NEAP_TRY(neap_scan_expect(s, '"'));
    size_t start = s->at;
    NEAP_TRY(plain_run(s));
    if (s->text[s->at] == '"') {
        *out = (neap_text){s->text + start, s->at - start};
        s->at++;
        return NEAP_OK;
    }
    if (!s->side) {
        void *memory = NULL;
        NEAP_TRY(neap_mem_alloc(s->n, &memory));
        s->side = memory;
    }
    size_t side_start = s->n_side;
    while (s->text[s->at] != '"') {
        /* The run before this backslash, then the escape. */
        memcpy(s->side + s->n_side, s->text + start, s->at - start);
        s->n_side += s->at - start;
        char decoded[4];
        size_t n_decoded = 0;
        NEAP_TRY(escape(s, decoded, &n_decoded));
        memcpy(s->side + s->n_side, decoded, n_decoded);
        s->n_side += n_decoded;
        start = s->at;
        NEAP_TRY(plain_run(s));
    }
    memcpy(s->side + s->n_side, s->text + start, s->at - start);
    s->n_side += s->at - start;
    assert(s->n_side <= s->n);
    s->at++;
    *out = (neap_text){s->side + side_start, s->n_side - side_start};
    return NEAP_OK;
}

neap_status neap_scan_key(neap_scan *s, neap_text *out) {
    NEAP_TRY(neap_scan_string(s, out));
    return neap_scan_expect(s, ':');
}

static size_t digits(const neap_scan *s, size_t at) {
    while (at < s->n && s->text[at] >= '0' && s->text[at] <= '9') at++;
    return at;
}

neap_status neap_scan_number(neap_scan *s, neap_text *out) {
    (void)neap_scan_peek(s);
    size_t start = s->at, at = s->at;
    if (at < s->n && s->text[at] == '-') at++;
    size_t whole = at;
    at = digits(s, at);
    if (at == whole) return neap_scan_fail(s, start, "expected a number");
    if (at - whole > 1 && s->text[whole] == '0') return neap_scan_fail(s, start, "number with a leading zero");
    if (at < s->n && s->text[at] == '.') {
        size_t fraction = ++at;
        at = digits(s, at);
        if (at == fraction) return neap_scan_fail(s, start, "number without digits after the point");
    }
    if (at < s->n && (s->text[at] == 'e' || s->text[at] == 'E')) {
        at++;
        if (at < s->n && (s->text[at] == '+' || s->text[at] == '-')) at++;
        size_t exponent = at;
        at = digits(s, at);
        if (at == exponent) return neap_scan_fail(s, start, "number without digits in the exponent");
    }
    s->at = at;
    *out = (neap_text){s->text + start, at - start};
    return NEAP_OK;
}

neap_status neap_scan_u64(neap_scan *s, uint64_t *out) {
    neap_text number;
    NEAP_TRY(neap_scan_number(s, &number));
    NEAP_CHECK(neap_text_u64(number, out), NEAP_BAD_FILE, "%s, byte %zu: '%.*s' is not a whole number from 0 to 2^64-1",
               s->what, s->at - number.n, neap_text_shown(number), number.p);
    return NEAP_OK;
}

static neap_status skip_word(neap_scan *s, const char *word) {
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0) return neap_scan_fail(s, s->at, "expected a value");
    s->at += n;
    return NEAP_OK;
}

static neap_status skip_scalar(neap_scan *s, int c) {
    neap_text unused;
    if (c == '"') return neap_scan_string(s, &unused);
    if (c == 't') return skip_word(s, "true");
    if (c == 'f') return skip_word(s, "false");
    if (c == 'n') return skip_word(s, "null");
    if (c == '-' || (c >= '0' && c <= '9')) return neap_scan_number(s, &unused);
    return neap_scan_fail(s, s->at, "expected a value");
}

neap_status neap_scan_skip(neap_scan *s, neap_names *keys, uint32_t *scope) {
    struct {
        char close;
        bool first;
        uint32_t scope;
    } open[NEAP_SCAN_DEPTH];
    int depth = 0;
    do {
        int c = neap_scan_peek(s);
        if (c == '{' || c == '[') {
            if (depth == NEAP_SCAN_DEPTH) return neap_scan_fail(s, s->at, "nested more than 64 deep");
            open[depth].close = c == '{' ? '}' : ']';
            open[depth].first = true;
            open[depth].scope = ++*scope;
            depth++;
            s->at++;
        } else {
            NEAP_TRY(skip_scalar(s, c));
        }
        /* After a value: close what ends here, or step to the next member. */
        while (depth > 0) {
            bool more = false;
            NEAP_TRY(neap_scan_next(s, open[depth - 1].close, &open[depth - 1].first, &more));
            if (!more) {
                depth--;
                continue;
            }
            if (open[depth - 1].close == '}') {
                neap_text key;
                const neap_names_slot *old = NULL;
                size_t at = s->at;
                NEAP_TRY(neap_scan_key(s, &key));
                NEAP_TRY(neap_names_add(keys, open[depth - 1].scope, key.p, key.n, 0, &old));
                NEAP_CHECK(!old, NEAP_BAD_FILE, "%s, byte %zu: key '%.*s' occurs twice", s->what, at,
                           neap_text_shown(key), key.p);
            }
            break;
        }
    } while (depth > 0);
    return NEAP_OK;
}
