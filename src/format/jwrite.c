/* JSON written the way Python's json.dumps(ensure_ascii=False) writes it.
 *
 * Integers keep their digits. Reals are read and written in the shortest form that reads back the same (Python's
 * repr): fixed from 1e-4 up to 1e16, always with a fraction or an exponent. A number too large for a double keeps
 * its spelling. Strings escape the quote, the backslash and control characters only. The writer walks the tree
 * with its own stack of 64 levels.
 *
 * Called by the chat renderers and the chat parser. Owns nothing.
 * Source: Python documentation, json and float repr. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "format/jtree.h"
#include "format/jtree_inner.h"

neap_status neap_json_escape(const char *s, size_t n, neap_text *out) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t start = 0;
    if (n == 0) return NEAP_OK; /* s may be NULL */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        NEAP_TRY(neap_text_add(out, s + start, i - start));
        start = i + 1;
        char escape[8] = {'\\'};
        const char *known = c ? strchr(from, c) : NULL;
        if (known)
            escape[1] = to[known - from];
        else
            snprintf(escape, sizeof escape, "\\u%04x", c);
        NEAP_TRY(neap_text_str(out, escape));
    }
    return neap_text_add(out, s + start, n - start);
}

/* digits: "d.ddde-xx" of the shortest precision that reads back; out as Python's repr lays it out. */
static void lay_out(const char *scientific, char *out, size_t capacity) {
    char mantissa[32];
    int n = 0, exponent = (int)strtol(strchr(scientific, 'e') + 1, NULL, 10);
    const char *sign = scientific[0] == '-' ? "-" : "";
    for (const char *p = scientific; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') mantissa[n++] = *p;
    while (n > 1 && mantissa[n - 1] == '0') n--;
    mantissa[n] = 0;
    if (exponent < -4 || exponent >= 16) {
        const char *point = n > 1 ? "." : "";
        snprintf(out, capacity, "%s%c%s%se%c%02d", sign, mantissa[0], point, mantissa + 1, exponent < 0 ? '-' : '+',
                 abs(exponent));
    } else if (exponent < 0) {
        snprintf(out, capacity, "%s0.%.*s%s", sign, -exponent - 1, "000", mantissa);
    } else if (n <= exponent + 1) {
        snprintf(out, capacity, "%s%s%.*s.0", sign, mantissa, exponent + 1 - n, "0000000000000000");
    } else {
        snprintf(out, capacity, "%s%.*s.%s", sign, exponent + 1, mantissa, mantissa + exponent + 1);
    }
}

/* The program's locale may write decimals with a comma; numbers here are in the C locale. */
static bool shortest(const char *spelling, char *out, size_t capacity) {
    char scientific[40];
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0) return false;
    locale_t before = uselocale(c);
    double value = strtod(spelling, NULL);
    bool finite = isfinite(value);
    for (int precision = 0; finite && precision < 17; precision++) {
        snprintf(scientific, sizeof scientific, "%.*e", precision, value);
        if (strtod(scientific, NULL) == value) break;
    }
    if (finite) lay_out(scientific, out, capacity);
    uselocale(before);
    freelocale(c);
    return finite;
}

static neap_status write_number(const neap_jtree *t, const neap_jnode *v, neap_text *out) {
    const char *s = t->text + v->at;
    size_t n = v->bytes;
    bool real = false;
    for (size_t i = 0; i < n; i++) real = real || s[i] == '.' || s[i] == 'e' || s[i] == 'E';
    if (real && s[n - 1] >= '0' && s[n - 1] <= '9') { /* not Infinity */
        neap_text spelling = {0};
        char shown[64];
        neap_status status = neap_text_add(&spelling, s, n);
        if (status == NEAP_OK) status = neap_text_add(&spelling, "", 1);
        bool done = status == NEAP_OK && shortest(spelling.p, shown, sizeof shown);
        neap_text_free(&spelling);
        NEAP_TRY(status);
        if (done) return neap_text_str(out, shown);
    }
    if (n == 2 && s[0] == '-' && s[1] == '0') return neap_text_str(out, "0");
    return neap_text_add(out, s, n);
}

static neap_status write_scalar(const neap_jtree *t, const neap_jnode *v, neap_text *out) {
    switch (v->kind) {
    case NEAP_J_NULL: return neap_text_str(out, "null");
    case NEAP_J_FALSE: return neap_text_str(out, "false");
    case NEAP_J_TRUE: return neap_text_str(out, "true");
    case NEAP_J_NUMBER: return write_number(t, v, out);
    default: break;
    }
    NEAP_TRY(neap_text_str(out, "\""));
    NEAP_TRY(neap_json_escape(t->pool + v->at, v->bytes, out));
    return neap_text_str(out, "\"");
}

neap_status neap_jtree_write(neap_jtree *t, uint32_t node, neap_jstyle style, neap_text *out) {
    const char *comma = style == NEAP_J_SPACED ? ", " : ",", *colon = style == NEAP_J_SPACED ? ": " : ":";
    uint32_t open[NEAP_J_DEPTH]; /* containers being written */
    int depth = 0;
    for (uint32_t at = node;;) {
        neap_jnode *v = &t->nodes[at];
        bool container = v->kind == NEAP_J_ARRAY || v->kind == NEAP_J_OBJECT;
        if (depth > 0 && t->nodes[open[depth - 1]].kind == NEAP_J_OBJECT) {
            NEAP_TRY(neap_text_str(out, "\""));
            NEAP_TRY(neap_json_escape(t->pool + v->key, v->key_bytes, out));
            NEAP_TRY(neap_text_str(out, "\""));
            NEAP_TRY(neap_text_str(out, colon));
        }
        if (!container) {
            NEAP_TRY(write_scalar(t, v, out));
        } else if (v->n == 0) {
            NEAP_TRY(neap_text_str(out, v->kind == NEAP_J_OBJECT ? "{}" : "[]"));
        } else {
            if (v->kind == NEAP_J_OBJECT && style == NEAP_J_COMPACT_SORTED) NEAP_TRY(neap_jtree_sort(t, at));
            NEAP_TRY(neap_text_str(out, v->kind == NEAP_J_OBJECT ? "{" : "["));
            open[depth++] = at; /* the reader allows no more than NEAP_J_DEPTH */
            at = v->first;
            continue;
        }
        while (depth > 0 && t->nodes[at].next == NEAP_J_NONE) { /* last child: close */
            at = open[--depth];
            NEAP_TRY(neap_text_str(out, t->nodes[at].kind == NEAP_J_OBJECT ? "}" : "]"));
        }
        if (depth == 0) return NEAP_OK;
        at = t->nodes[at].next;
        NEAP_TRY(neap_text_str(out, comma));
    }
}
