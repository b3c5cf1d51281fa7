/* UTF-8: which bytes form a character, and what to do with bytes that do not.
 *
 * Well-formed sequences are those of the Unicode Standard, table 3-7: no overlong forms, no surrogates,
 * nothing above U+10FFFF. An invalid part is the longest prefix of some well-formed sequence, or one byte;
 * each part becomes one U+FFFD. A prefix at the very end may still be completed: the hold-back
 * (neap_utf8_push) keeps it until more bytes or the flush come, so streamed text equals whole text.
 *
 * Called by the tokenizer (repair of input, detokenizing) and by the engine (streaming). Owns no memory.
 * Source: Unicode Standard, chapter 3.9, "U+FFFD substitution of maximal subparts". */
#include "format/utf8.h"

#include <string.h>

#include "format/tokenizer.h"

/* Length by the first byte and the allowed range of the second; length 0: never starts a character. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi) {
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2 || c > 0xF4) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *lo = 0xA0;
        if (c == 0xED) *hi = 0x9F;
        return 3;
    }
    if (c == 0xF0) *lo = 0x90;
    if (c == 0xF4) *hi = 0x8F;
    return 4;
}

/* How many bytes at p agree with a well-formed sequence; *need is the whole length (0: bad first byte). */
static size_t prefix(const char *p, size_t n, size_t *need) {
    unsigned char lo, hi;
    *need = lead((unsigned char)p[0], &lo, &hi);
    if (*need == 0) return 0;
    size_t i = 1;
    for (; i < *need && i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c < lo || c > hi) break;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t neap_utf8_char(const char *p, size_t n) {
    if (n == 0) return 0;
    size_t need, have = prefix(p, n, &need);
    return need && have == need ? need : 0;
}

size_t neap_utf8_partial(const char *p, size_t n) {
    if (n == 0) return 0;
    size_t need, have = prefix(p, n, &need);
    return need && have < need && have == n ? n : 0;
}

size_t neap_utf8_valid(const char *p, size_t n) {
    size_t i = 0;
    while (i < n) {
        if ((unsigned char)p[i] < 0x80) {
            i++;
            continue;
        }
        size_t k = neap_utf8_char(p + i, n - i);
        if (k == 0) return i;
        i += k;
    }
    return n;
}

uint32_t neap_utf8_decode(const char *p, size_t *bytes) {
    const unsigned char *s = (const unsigned char *)p;
    if (s[0] < 0x80) {
        *bytes = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *bytes = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (uint32_t)(s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *bytes = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (uint32_t)(s[2] & 0x3F);
    }
    *bytes = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 |
           (uint32_t)(s[3] & 0x3F);
}

size_t neap_utf8_encode(uint32_t c, char *out) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

/* Copies what is decided; returns the offset of an unfinished character at the end (n: none). */
static size_t repair(const char *p, size_t n, char *out, size_t *written) {
    size_t i = 0, w = 0;
    while (i < n) {
        size_t need, have = prefix(p + i, n - i, &need);
        if (need && have == need) {
            if (out) memcpy(out + w, p + i, need);
            w += need;
            i += need;
            continue;
        }
        if (need && have == n - i) break; /* may be completed later */
        if (out) memcpy(out + w, replacement, 3);
        w += 3;
        i += have ? have : 1;
    }
    *written = w;
    return i;
}

size_t neap_utf8_repair(const char *p, size_t n, char *out) {
    size_t w, end = repair(p, n, out, &w);
    if (end == n) return w;
    if (out) memcpy(out + w, replacement, 3); /* the unfinished tail is one part */
    return w + 3;
}

size_t neap_utf8_push(neap_utf8 *u, const char *bytes, size_t n, char *out) {
    size_t w = 0;
    /* Feed the waiting tail byte by byte: it is at most three bytes long, so this ends after a few steps. */
    while (u->n_tail > 0 && n > 0) {
        size_t need, have, tail = (size_t)u->n_tail;
        u->tail[tail] = (unsigned char)*bytes;
        have = prefix((const char *)u->tail, tail + 1, &need);
        if (have == tail + 1) {
            bytes++;
            n--;
            u->n_tail++;
            if (have < need) continue;
            memcpy(out + w, u->tail, need);
            w += need;
        } else {
            memcpy(out + w, replacement, 3);
            w += 3;
        }
        u->n_tail = 0;
    }
    if (n == 0) return w;
    size_t more, end = repair(bytes, n, out + w, &more);
    memcpy(u->tail, bytes + end, n - end);
    u->n_tail = (int)(n - end);
    return w + more;
}

size_t neap_utf8_flush(neap_utf8 *u, char *out) {
    if (u->n_tail == 0) return 0;
    memcpy(out, replacement, 3);
    u->n_tail = 0;
    return 3;
}

bool neap_is_space(uint32_t c) {
    if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}
