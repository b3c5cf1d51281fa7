/* Patterns of schemas as automata: a subset of ECMA-262 that needs no backtracking.
 *
 * Taken: characters and escapes, ".", classes, \d \w \s and their opposites, groups of any kind that only group,
 * alternatives, * + ? {n} {n,} {n,m} (lazy forms mean the same here), ^ and $ anywhere. Refused by name: looking
 * around, back references, \b, \p. A pattern is searched for: without ^ and $ any text may stand around it.
 *
 * Read in one pass with a stack of open groups; every part lies in consecutive states, so repeating one is copying.
 * Called by grammar_schema.c and grammar_number.c. Source: Thompson's construction. */
#include "format/grammar_inner.h"
#include "format/utf8.h"

enum { RANGES_MAX = 1024, GROUPS_MAX = 2000, TOP = 0x10FFFF };

void neap_nfa_free(neap_nfa *n) {
    neap_mem_free(n->s);
    *n = (neap_nfa){0};
}

neap_status neap_nfa_add(neap_nfa *n, neap_nstate s, uint32_t *out) {
    NEAP_CHECK(n->n < NEAP_NFA_MAX, NEAP_LIMIT, "pattern: needs more than %d steps", NEAP_NFA_MAX);
    NEAP_TRY(neap_grow(&n->s, n->n + 1, &n->max, sizeof *n->s));
    *out = n->n;
    n->s[n->n++] = s;
    return NEAP_OK;
}

/* ------------------------------------------------------------- code points ------------------- */

/* One more way to go on from *start (UINT32_MAX: none yet). */
static neap_status either(neap_nfa *n, uint32_t *start, uint32_t other) {
    if (*start == UINT32_MAX) {
        *start = other;
        return NEAP_OK;
    }
    return neap_nfa_add(n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = *start, .out1 = other}, start);
}

/* lo .. hi have the same number of bytes and differ only in whole blocks: one chain of byte ranges. */
static neap_status chain(neap_nfa *n, uint32_t lo, uint32_t hi, uint32_t to, uint32_t *start) {
    char a[4], z[4];
    size_t bytes = neap_utf8_encode(lo, a);
    (void)neap_utf8_encode(hi, z);
    uint32_t at = to;
    for (size_t i = bytes; i > 0; i--)
        NEAP_TRY(neap_nfa_add(
            n, (neap_nstate){.kind = NEAP_N_BYTES, .lo = (uint8_t)a[i - 1], .hi = (uint8_t)z[i - 1], .out = at}, &at));
    return either(n, start, at);
}

neap_status neap_nfa_range(neap_nfa *n, uint32_t lo, uint32_t hi, uint32_t to, uint32_t *start) {
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xFFFF, TOP};
    *start = UINT32_MAX;
    while (lo <= hi) {
        if (lo >= 0xD800 && lo <= 0xDFFF) {
            lo = 0xE000;
            continue;
        }
        uint32_t end = hi;
        for (size_t i = 5; i > 0; i--)
            if (lo <= ends[i - 1] && end > ends[i - 1]) end = ends[i - 1];
        for (int shift = 18; shift >= 6; shift -= 6) { /* whole blocks of 64, 4096, ... */
            uint32_t block = (UINT32_C(1) << shift) - 1;
            if (lo < 0x80 || (lo & ~block) == (end & ~block)) continue;
            if ((lo & block) != 0)
                end = lo | block;
            else if ((end & block) != block)
                end = (end & ~block) - 1;
        }
        NEAP_TRY(chain(n, lo, end, to, start));
        lo = end + 1;
    }
    return NEAP_OK;
}

typedef struct ranges {
    uint32_t lo[RANGES_MAX], hi[RANGES_MAX];
    uint32_t n;
} ranges;

static neap_status range_add(ranges *r, uint32_t lo, uint32_t hi) {
    NEAP_CHECK(r->n < RANGES_MAX, NEAP_LIMIT, "pattern: a class of more than %d ranges", RANGES_MAX);
    r->lo[r->n] = lo;
    r->hi[r->n++] = hi;
    return NEAP_OK;
}

/* Sorted and joined. */
static void ranges_settle(ranges *r) {
    for (uint32_t i = 1; i < r->n; i++)
        for (uint32_t k = i; k > 0 && r->lo[k] < r->lo[k - 1]; k--) {
            uint32_t lo = r->lo[k], hi = r->hi[k];
            r->lo[k] = r->lo[k - 1], r->hi[k] = r->hi[k - 1];
            r->lo[k - 1] = lo, r->hi[k - 1] = hi;
        }
    uint32_t w = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        if (w > 0 && r->lo[i] <= r->hi[w - 1] + 1) {
            if (r->hi[i] > r->hi[w - 1]) r->hi[w - 1] = r->hi[i];
            continue;
        }
        r->lo[w] = r->lo[i];
        r->hi[w++] = r->hi[i];
    }
    r->n = w;
}

static neap_status ranges_invert(ranges *r) {
    uint32_t from = 0, n = r->n;
    ranges_settle(r);
    n = r->n;
    ranges old = *r;
    r->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (old.lo[i] > from) NEAP_TRY(range_add(r, from, old.lo[i] - 1));
        from = old.hi[i] + 1;
    }
    return from <= TOP ? range_add(r, from, TOP) : NEAP_OK;
}

/* \d \w \s and their opposites. */
static neap_status class_escape(ranges *r, char c) {
    static const uint32_t digit[] = {'0', '9'}, word[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'},
                          space[] = {9,      13,     ' ',    ' ',    0xA0,   0xA0,   0x1680, 0x1680, 0x2000, 0x200A,
                                     0x2028, 0x2029, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000, 0xFEFF, 0xFEFF};
    char kind = c | 0x20;
    const uint32_t *list = kind == 'd' ? digit : kind == 'w' ? word : space;
    size_t n = kind == 'd' ? 1 : kind == 'w' ? 4 : 10;
    ranges own;
    own.n = 0;
    for (size_t i = 0; i < n; i++) NEAP_TRY(range_add(&own, list[2 * i], list[2 * i + 1]));
    if (c < 'a') NEAP_TRY(ranges_invert(&own));
    for (uint32_t i = 0; i < own.n; i++) NEAP_TRY(range_add(r, own.lo[i], own.hi[i]));
    return NEAP_OK;
}

/* ------------------------------------------------------------- reading ----------------------- */

typedef struct part {
    uint32_t from, start, exit; /* states from .. n-1; exit is a SPLIT whose ways are still open */
} part;

typedef struct group {
    uint32_t from, alternatives, exit; /* UINT32_MAX: no alternative is complete yet */
    part seq;
} group;

typedef struct reader {
    neap_gbuild *b;
    neap_nfa *n;
    const char *p;
    size_t bytes, at;
    group *open;
    uint32_t n_open, open_max;
    ranges class;
} reader;

static neap_status bad(const reader *r, const char *what) {
    return neap_fail(NEAP_INVALID_ARGUMENT, "pattern: %s at byte %zu", what, r->at);
}

static neap_status unsupported(const reader *r, const char *what) {
    return neap_fail(NEAP_UNSUPPORTED, "pattern: %s (byte %zu)", what, r->at);
}

static neap_status jump(reader *r, uint32_t *out) {
    return neap_nfa_add(r->n, (neap_nstate){.kind = NEAP_N_SPLIT}, out);
}

static void lead(reader *r, uint32_t exit, uint32_t to) { r->n->s[exit].out = r->n->s[exit].out1 = to; }

static bool peek(const reader *r, char c) { return r->at < r->bytes && r->p[r->at] == c; }

static neap_status hex(reader *r, size_t digits, uint32_t *out) {
    *out = 0;
    if (r->bytes - r->at < digits) return bad(r, "an escape without its digits");
    for (size_t i = 0; i < digits; i++) {
        char c = r->p[r->at++];
        uint32_t d = 0;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            d = (uint32_t)((c | 0x20) - 'a') + 10;
        else
            return bad(r, "an escape without its digits");
        *out = *out << 4 | d;
    }
    return NEAP_OK;
}

static neap_status unicode_escape(reader *r, uint32_t *out) {
    if (!peek(r, '{')) {
        uint32_t low;
        NEAP_TRY(hex(r, 4, out));
        if (*out >= 0xD800 && *out < 0xDC00 && r->bytes - r->at >= 6 && memcmp(r->p + r->at, "\\u", 2) == 0) {
            r->at += 2;
            NEAP_TRY(hex(r, 4, &low));
            if (low < 0xDC00 || low > 0xDFFF) return bad(r, "half of a surrogate pair");
            *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
        }
        return *out >= 0xD800 && *out <= 0xDFFF ? bad(r, "half of a surrogate pair") : NEAP_OK;
    }
    r->at++;
    size_t n = 0;
    while (r->at + n < r->bytes && r->p[r->at + n] != '}') n++;
    if (n == 0 || n > 6 || r->at + n == r->bytes) return bad(r, "a malformed \\u{...}");
    NEAP_TRY(hex(r, n, out));
    r->at++;
    return *out > TOP || (*out >= 0xD800 && *out <= 0xDFFF) ? bad(r, "no such character") : NEAP_OK;
}

/* After a backslash: one character in *c, or a class of characters (*is_class, added to r->class). */
static neap_status escape(reader *r, bool in_class, uint32_t *c, bool *is_class) {
    static const char from[] = "tnrfv", to[] = "\t\n\r\f\v";
    *is_class = false;
    if (r->at == r->bytes) return bad(r, "a backslash at the end");
    char e = r->p[r->at++];
    if (e != 0 && strchr("dDwWsS", e)) {
        *is_class = true;
        return class_escape(&r->class, e);
    }
    const char *known = e ? strchr(from, e) : NULL;
    if (known)
        *c = (uint32_t)to[known - from];
    else if (e == 'x')
        return hex(r, 2, c);
    else if (e == 'u')
        return unicode_escape(r, c);
    else if (e == '0' && !(r->at < r->bytes && r->p[r->at] >= '0' && r->p[r->at] <= '9'))
        *c = 0;
    else if (e >= '0' && e <= '9')
        return unsupported(r, "back references are not covered");
    else if (e == 'b' && in_class)
        *c = 8;
    else if (e == 'b' || e == 'B')
        return unsupported(r, "\\b and \\B are not covered");
    else if (e == 'p' || e == 'P')
        return unsupported(r, "\\p is not covered");
    else if (e == 'k')
        return unsupported(r, "back references are not covered");
    else if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z'))
        return unsupported(r, "this escape is not covered");
    else {
        size_t n = 1;
        r->at--;
        *c = neap_utf8_decode(r->p + r->at, &n);
        r->at += n;
    }
    return NEAP_OK;
}

static neap_status class_char(reader *r, uint32_t *c, bool *is_class) {
    *is_class = false;
    if (peek(r, '\\')) {
        r->at++;
        return escape(r, true, c, is_class);
    }
    size_t n;
    *c = neap_utf8_decode(r->p + r->at, &n);
    r->at += n;
    return NEAP_OK;
}

/* After "[". */
static neap_status read_class(reader *r) {
    bool inverted = peek(r, '^'), is_class;
    uint32_t lo = 0, hi = 0;
    r->at += inverted;
    while (!peek(r, ']')) {
        if (r->at == r->bytes) return bad(r, "a class without end");
        NEAP_TRY(class_char(r, &lo, &is_class));
        if (is_class) continue;
        hi = lo;
        if (peek(r, '-') && r->at + 1 < r->bytes && r->p[r->at + 1] != ']') {
            r->at++;
            NEAP_TRY(class_char(r, &hi, &is_class));
            if (is_class || hi < lo) return bad(r, "a range that goes backwards");
        }
        NEAP_TRY(range_add(&r->class, lo, hi));
    }
    r->at++;
    return inverted ? ranges_invert(&r->class) : NEAP_OK;
}

/* The characters of r->class. A class of none matches nothing. */
static neap_status put_class(reader *r, part *out) {
    out->from = r->n->n;
    out->start = UINT32_MAX;
    NEAP_TRY(jump(r, &out->exit));
    ranges_settle(&r->class);
    for (uint32_t i = 0; i < r->class.n; i++) {
        uint32_t start;
        NEAP_TRY(neap_nfa_range(r->n, r->class.lo[i], r->class.hi[i], out->exit, &start));
        if (start != UINT32_MAX) NEAP_TRY(either(r->n, &out->start, start));
    }
    if (out->start == UINT32_MAX) { /* a step that leads nowhere */
        NEAP_TRY(neap_nfa_add(r->n, (neap_nstate){.kind = NEAP_N_BYTES}, &out->start));
        r->n->s[out->start].out = out->start;
    }
    return NEAP_OK;
}

static neap_status put_mark(reader *r, neap_nkind kind, part *out) {
    out->from = r->n->n;
    NEAP_TRY(jump(r, &out->exit));
    return neap_nfa_add(r->n, (neap_nstate){.kind = (uint8_t)kind, .out = out->exit, .out1 = out->exit}, &out->start);
}

/* ------------------------------------------------------------- repeating --------------------- */

static neap_status copy(reader *r, const part *x, uint32_t end, part *out) {
    uint32_t by = r->n->n - x->from, made;
    *out = (part){x->from + by, x->start + by, x->exit + by};
    for (uint32_t i = x->from; i < end; i++) {
        neap_nstate s = r->n->s[i];
        s.out += by;
        s.out1 += by;
        NEAP_TRY(neap_nfa_add(r->n, s, &made));
    }
    return neap_gbuild_tick(r->b);
}

static neap_status repeat(reader *r, part *x, uint32_t min, uint32_t max) {
    uint32_t end = r->n->n, n = max == UINT32_MAX ? (min > 1 ? min : 1) : max, exit, split;
    if (max == 0) {
        r->n->n = x->from;
        NEAP_TRY(jump(r, &x->exit));
        x->start = x->exit;
        return NEAP_OK;
    }
    NEAP_CHECK((uint64_t)(end - x->from + 2) * n <= NEAP_NFA_MAX, NEAP_LIMIT,
               "pattern: a repetition at byte %zu needs more than %d steps", r->at, NEAP_NFA_MAX);
    part original = *x, last = *x;
    NEAP_TRY(jump(r, &exit));
    uint32_t before = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        /* A copy is made of the original as it was: its exit is still open, which copying moves only. */
        if (i > 0) {
            neap_nstate saved = r->n->s[original.exit];
            lead(r, original.exit, original.exit);
            neap_status status = copy(r, &original, end, &last);
            r->n->s[original.exit] = saved;
            NEAP_TRY(status);
        }
        uint32_t entry = last.start;
        if (i >= min)
            NEAP_TRY(neap_nfa_add(r->n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = last.start, .out1 = exit}, &entry));
        if (before != UINT32_MAX) lead(r, before, entry);
        if (i == 0) x->start = entry;
        before = last.exit;
    }
    if (max == UINT32_MAX) {
        NEAP_TRY(neap_nfa_add(r->n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = last.start, .out1 = exit}, &split));
        lead(r, before, split);
    } else {
        lead(r, before, exit);
    }
    x->exit = exit;
    return NEAP_OK;
}

static bool number(reader *r, uint32_t *out) {
    uint64_t v = 0;
    size_t from = r->at;
    while (r->at < r->bytes && r->p[r->at] >= '0' && r->p[r->at] <= '9') {
        v = v * 10 + (uint64_t)(r->p[r->at++] - '0');
        if (v > 1000000000) v = 1000000000;
    }
    *out = (uint32_t)v;
    return r->at > from;
}

/* {n} {n,} {n,m}; anything else is a brace as it stands. */
static bool braces(reader *r, uint32_t *min, uint32_t *max) {
    size_t from = r->at;
    r->at++;
    if (number(r, min)) {
        *max = *min;
        if (peek(r, ',')) {
            r->at++;
            if (!number(r, max)) *max = UINT32_MAX;
        }
        if (peek(r, '}')) {
            r->at++;
            return true;
        }
    }
    r->at = from;
    return false;
}

/* One quantifier, if one stands here. */
static neap_status quantifier(reader *r, bool *found, uint32_t *min, uint32_t *max) {
    *found = true;
    if (peek(r, '*') || peek(r, '+') || peek(r, '?')) {
        char c = r->p[r->at++];
        *min = c == '+';
        *max = c == '?' ? 1 : UINT32_MAX;
    } else if (!peek(r, '{') || !braces(r, min, max)) {
        *found = false;
        return NEAP_OK;
    }
    if (*max < *min) return bad(r, "a repetition whose most is below its least");
    if (peek(r, '?')) r->at++; /* lazy: the same texts */
    return NEAP_OK;
}

/* ------------------------------------------------------------- groups ------------------------ */

static neap_status open_group(reader *r) {
    NEAP_CHECK(r->n_open < GROUPS_MAX, NEAP_LIMIT, "pattern: more than %d groups in each other", GROUPS_MAX);
    NEAP_TRY(neap_grow(&r->open, r->n_open + 1, &r->open_max, sizeof *r->open));
    group *g = &r->open[r->n_open++];
    *g = (group){.from = r->n->n, .alternatives = UINT32_MAX, .exit = UINT32_MAX};
    NEAP_TRY(jump(r, &g->seq.exit));
    g->seq.start = g->seq.exit;
    return NEAP_OK;
}

/* The sequence so far is one alternative. */
static neap_status end_alternative(reader *r) {
    group *g = &r->open[r->n_open - 1];
    if (g->exit == UINT32_MAX) NEAP_TRY(jump(r, &g->exit));
    lead(r, g->seq.exit, g->exit);
    return either(r->n, &g->alternatives, g->seq.start);
}

static neap_status group_kind(reader *r) {
    if (!peek(r, '?')) return NEAP_OK;
    r->at++;
    if (peek(r, ':')) {
        r->at++;
        return NEAP_OK;
    }
    if (peek(r, '=') || peek(r, '!')) return unsupported(r, "looking ahead is not covered");
    if (!peek(r, '<')) return bad(r, "an unknown kind of group");
    r->at++;
    if (peek(r, '=') || peek(r, '!')) return unsupported(r, "looking behind is not covered");
    while (r->at < r->bytes && r->p[r->at] != '>') r->at++;
    if (r->at == r->bytes) return bad(r, "a group name without end");
    r->at++;
    return NEAP_OK;
}

/* One character, class or mark at r->at. */
static neap_status atom(reader *r, part *out, bool *is_mark) {
    bool is_class = true;
    uint32_t c = 0;
    size_t n;
    char first = r->p[r->at];
    *is_mark = first == '^' || first == '$';
    r->class.n = 0;
    if (*is_mark) {
        r->at++;
        return put_mark(r, first == '^' ? NEAP_N_BEGIN : NEAP_N_FINISH, out);
    }
    if (strchr("*+?", first)) return bad(r, "nothing to repeat");
    if (first == '{') {
        uint32_t min, max;
        if (braces(r, &min, &max)) return bad(r, "nothing to repeat");
    }
    if (first == '[') {
        r->at++;
        NEAP_TRY(read_class(r));
    } else if (first == '.') {
        r->at++;
        static const uint32_t ends[] = {'\n', '\n', '\r', '\r', 0x2028, 0x2029};
        for (int i = 0; i < 6; i += 2) NEAP_TRY(range_add(&r->class, ends[i], ends[i + 1]));
        NEAP_TRY(ranges_invert(&r->class));
    } else if (first == '\\') {
        r->at++;
        NEAP_TRY(escape(r, false, &c, &is_class));
        if (!is_class) NEAP_TRY(range_add(&r->class, c, c));
    } else {
        c = neap_utf8_decode(r->p + r->at, &n);
        r->at += n;
        NEAP_TRY(range_add(&r->class, c, c));
    }
    return put_class(r, out);
}

static neap_status append(reader *r, part x, bool is_mark) {
    uint32_t min, max;
    bool found;
    for (int i = 0;; i++) {
        NEAP_TRY(quantifier(r, &found, &min, &max));
        if (!found) break;
        if (is_mark || i > 0) return bad(r, "nothing to repeat");
        NEAP_TRY(repeat(r, &x, min, max));
    }
    group *g = &r->open[r->n_open - 1];
    lead(r, g->seq.exit, x.start);
    g->seq.exit = x.exit;
    return NEAP_OK;
}

static neap_status read_all(reader *r) {
    NEAP_TRY(open_group(r));
    while (r->at < r->bytes) {
        char c = r->p[r->at];
        part x;
        bool is_mark = false;
        NEAP_TRY(neap_gbuild_tick(r->b));
        if (c == '(') {
            r->at++;
            NEAP_TRY(group_kind(r));
            NEAP_TRY(open_group(r));
            continue;
        }
        if (c == '|') {
            r->at++;
            NEAP_TRY(end_alternative(r));
            group *g = &r->open[r->n_open - 1];
            NEAP_TRY(jump(r, &g->seq.exit));
            g->seq.start = g->seq.exit;
            continue;
        }
        if (c == ')') {
            if (r->n_open == 1) return bad(r, "a group that was not opened");
            r->at++;
            NEAP_TRY(end_alternative(r));
            group g = r->open[--r->n_open];
            x = (part){g.from, g.alternatives, g.exit};
        } else {
            NEAP_TRY(atom(r, &x, &is_mark));
        }
        NEAP_TRY(append(r, x, is_mark));
    }
    if (r->n_open > 1) return bad(r, "a group without end");
    return end_alternative(r);
}

/* Any text, the pattern, any text. */
static neap_status search(reader *r) {
    uint32_t match, tail, any, head;
    NEAP_TRY(read_all(r));
    group whole = r->open[0];
    NEAP_TRY(neap_nfa_add(r->n, (neap_nstate){.kind = NEAP_N_MATCH}, &match));
    NEAP_TRY(jump(r, &tail));
    NEAP_TRY(neap_nfa_range(r->n, 0, TOP, tail, &any));
    r->n->s[tail].out = match;
    r->n->s[tail].out1 = any;
    lead(r, whole.exit, tail);
    NEAP_TRY(jump(r, &head));
    NEAP_TRY(neap_nfa_range(r->n, 0, TOP, head, &any));
    r->n->s[head].out = whole.alternatives;
    r->n->s[head].out1 = any;
    r->n->start = head;
    return NEAP_OK;
}

neap_status neap_regex_dfa(neap_gbuild *b, const char *pattern, size_t n, neap_dfa *out) {
    neap_nfa nfa = {0};
    reader *r = NULL;
    *out = (neap_dfa){0};
    NEAP_TRY(neap_mem_alloc(sizeof *r, (void **)&r));
    *r = (reader){.b = b, .n = &nfa, .p = pattern, .bytes = n};
    neap_status status = search(r);
    if (status == NEAP_OK) status = neap_nfa_to_dfa(b, &nfa, out);
    neap_mem_free(r->open);
    neap_mem_free(r);
    neap_nfa_free(&nfa);
    return status;
}
