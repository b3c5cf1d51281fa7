/* A small reader of Python string literals.
 *
 * It knows comments, prefixes (r, u, f, b and their pairs), one and three quotes, escapes, line joining, f-string
 * fields, implicit joining of neighbouring literals inside brackets, and `literal + expression + literal`.
 * Everything else is skipped. A field or an added expression becomes the byte NEAP_PY_FIELD.
 *
 * Called by chat_texts.c for one small file of a model directory. Owns a buffer for the current text.
 * Source: Python language reference, "String and Bytes literals", "Formatted string literals". */
#include "format/pystring.h"

#include <stdbool.h>
#include <string.h>

#include "base/arena.h"
#include "format/utf8.h"

typedef struct py_reader {
    const char *p, *end;
    int depth;  /* open brackets */
    char *text; /* the current text; as large as the source, so it always fits */
    size_t n;
    bool bad; /* the current text cannot be used */
    bool any; /* a literal was read into the current text */
} py_reader;

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static void put(py_reader *r, char c) {
    if (c == 0 || c == NEAP_PY_FIELD[0])
        r->bad = true;
    else
        r->text[r->n++] = c;
}

static void put_field(py_reader *r) { r->text[r->n++] = NEAP_PY_FIELD[0]; }

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static void put_code_point(py_reader *r, uint32_t c) {
    char buffer[4];
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
        r->bad = true;
        return;
    }
    size_t n = neap_utf8_encode(c, buffer);
    for (size_t i = 0; i < n; i++) put(r, buffer[i]);
}

static void read_hex_escape(py_reader *r, int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        int h = r->p < r->end ? hex_value(*r->p) : -1;
        if (h < 0) {
            r->bad = true;
            return;
        }
        value = value << 4 | (uint32_t)h;
        r->p++;
    }
    put_code_point(r, value);
}

/* r->p stands after the backslash. */
static void read_escape(py_reader *r) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    if (r->p == r->end) return;
    char c = *r->p++;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        put(r, to[known - from]);
    } else if (c == '\r' || c == '\n') { /* a joined line */
        if (c == '\r' && r->p < r->end && *r->p == '\n') r->p++;
    } else if (c == 'x') {
        read_hex_escape(r, 2);
    } else if (c == 'u') {
        read_hex_escape(r, 4);
    } else if (c == 'U') {
        read_hex_escape(r, 8);
    } else if (c >= '0' && c <= '7') {
        uint32_t value = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && r->p < r->end && *r->p >= '0' && *r->p <= '7'; i++)
            value = value * 8 + (uint32_t)(*r->p++ - '0');
        put_code_point(r, value);
    } else if (c == 'N') {
        r->bad = true; /* names of characters are not known here */
    } else {           /* Python keeps the backslash of an unknown escape */
        put(r, '\\');
        put(r, c);
    }
}

/* A quoted run inside a field, skipped whole so that its braces do not count. */
static void skip_quoted(py_reader *r) {
    char quote = *r->p++;
    while (r->p < r->end && *r->p != quote) r->p += *r->p == '\\' && r->p + 1 < r->end ? 2 : 1;
    if (r->p < r->end) r->p++;
}

/* r->p stands after '{'; ends after the matching '}'. */
static void skip_field(py_reader *r, char outer_quote) {
    int depth = 1;
    while (r->p < r->end && depth > 0) {
        char c = *r->p;
        if ((c == '"' || c == '\'') && c != outer_quote) {
            skip_quoted(r);
            continue;
        }
        if (c == '{' || c == '[' || c == '(') depth++;
        if (c == '}' || c == ']' || c == ')') depth--;
        r->p++;
    }
}

static bool at_quotes(const py_reader *r, char quote, int n) {
    for (int i = 0; i < n; i++)
        if (r->p + i >= r->end || r->p[i] != quote) return false;
    return true;
}

/* r->p stands at the opening quote. */
static void read_literal(py_reader *r, bool raw, bool formatted, bool bytes) {
    char quote = *r->p;
    int quotes = at_quotes(r, quote, 3) ? 3 : 1;
    r->p += quotes;
    r->any = true;
    if (bytes) r->bad = true;
    while (r->p < r->end && !at_quotes(r, quote, quotes)) {
        char c = *r->p++;
        if (c == '\n' && quotes == 1) { /* no literal of Python: leave it */
            r->bad = true;
            return;
        }
        if (c == '\\' && !raw) {
            read_escape(r);
        } else if (c == '\\') { /* raw: the next character is kept with it, even a quote */
            put(r, c);
            if (r->p < r->end) put(r, *r->p++);
        } else if (formatted && (c == '{' || c == '}') && r->p < r->end && *r->p == c) {
            put(r, c);
            r->p++;
        } else if (formatted && c == '{') {
            skip_field(r, quote);
            put_field(r);
        } else {
            put(r, c);
        }
    }
    r->p = r->end - r->p < quotes ? r->end : r->p + quotes;
}

/* At a literal, its prefix included? Then reads it. */
static bool try_literal(py_reader *r) {
    const char *q = r->p;
    bool raw = false, formatted = false, bytes = false;
    for (int i = 0; i < 2 && q < r->end; i++, q++) {
        char c = (char)(*q | 0x20);
        if (c == 'r')
            raw = true;
        else if (c == 'f')
            formatted = true;
        else if (c == 'b')
            bytes = true;
        else if (c != 'u')
            break;
    }
    if (q >= r->end || (*q != '"' && *q != '\'')) return false;
    r->p = q;
    read_literal(r, raw, formatted, bytes);
    return true;
}

/* Skips white space, comments and, inside brackets, line ends. */
static void skip_blank(py_reader *r) {
    while (r->p < r->end) {
        char c = *r->p;
        if (c == '#') {
            while (r->p < r->end && *r->p != '\n') r->p++;
        } else if (c == '\\' && r->p + 1 < r->end && (r->p[1] == '\n' || r->p[1] == '\r')) {
            r->p += 2;
        } else if (c == ' ' || c == '\t' || c == '\f' || c == '\r' || (c == '\n' && r->depth > 0)) {
            r->p++;
        } else {
            return;
        }
    }
}

/* An added expression: names, dots, calls. Ends before whatever cannot belong to it. */
static void skip_operand(py_reader *r) {
    while (r->p < r->end) {
        char c = *r->p;
        if (is_word(c) || c == '.') {
            r->p++;
        } else if (c == '(' || c == '[') {
            r->p++;
            skip_field(r, 0);
        } else {
            return;
        }
    }
}

/* One text: literals one after another, and operands joined by +. r->p stands at a literal. */
static void read_text(py_reader *r) {
    r->n = 0;
    r->bad = r->any = false;
    (void)try_literal(r);
    for (;;) {
        skip_blank(r);
        if (r->p < r->end && try_literal(r)) continue;
        if (r->p >= r->end || *r->p != '+' || (r->p + 1 < r->end && r->p[1] == '=')) return;
        r->p++;
        skip_blank(r);
        if (r->p < r->end && try_literal(r)) continue;
        put_field(r);
        skip_operand(r);
    }
}

neap_status neap_py_strings(const char *source, size_t n, neap_py_string_fn fn, void *user) {
    py_reader r = {.p = source, .end = source + n};
    NEAP_TRY(neap_mem_alloc(n * 2 + 8, (void **)&r.text)); /* an escape never grows, a + operand adds one */
    neap_status status = NEAP_OK;
    bool in_word = false;  /* a prefix letter counts only at the start of a word */
    bool statement = true; /* only blanks so far in this line: a literal here is a statement, such as a docstring */
    while (r.p < r.end && status == NEAP_OK) {
        char c = *r.p;
        if (c == '#') {
            skip_blank(&r);
            in_word = false;
            continue;
        }
        const char *before = r.p;
        if (!in_word && (c == '"' || c == '\'' || strchr("rRuUfFbB", c) != NULL)) {
            const char *q = r.p; /* is it a literal at all? */
            while (q < r.end && q - r.p < 2 && *q && strchr("rRuUfFbB", *q) != NULL) q++;
            if (q < r.end && (*q == '"' || *q == '\'')) {
                read_text(&r);
                r.text[r.n] = 0;
                if (!r.bad && r.n > 0 && !statement) status = fn(user, r.text);
                in_word = statement = false;
                if (r.p == before) r.p++;
                continue;
            }
        }
        if (c == '(' || c == '[' || c == '{') r.depth++;
        if ((c == ')' || c == ']' || c == '}') && r.depth > 0) r.depth--;
        in_word = is_word(c);
        if (c == '\n' && r.depth == 0)
            statement = true;
        else if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            statement = false;
        r.p++;
    }
    neap_mem_free(r.text);
    return status;
}
