/* Numbers between bounds as automata over their digits.
 *
 * A number is compared with its bounds digit by digit, as text: a state knows how many digits were written and
 * whether they are still those of the lower bound, of the upper bound, of both or of neither. So bounds hold exactly,
 * for integers and for fractions, without any arithmetic. Numbers with bounds are written without an exponent. Whole
 * parts and fractions have at most 15 digits, or one more than a bound has.
 *
 * Called by grammar_schema.c. */
#include <stdlib.h>

#include "format/grammar_inner.h"

enum { DIGITS = 15, NONE = -1 };

/* ------------------------------------------------------------- decimals ---------------------- */

bool neap_decimal_read(neap_decimal *d, const char *s, size_t n) {
    char digits[512];
    int32_t n_digits = 0, point = -1;
    int64_t exponent = 0;
    size_t i = 0;
    *d = (neap_decimal){0};
    if (i < n && s[i] == '-') d->negative = true, i++;
    for (; i < n && (s[i] == '.' || (s[i] >= '0' && s[i] <= '9')); i++) {
        if (s[i] == '.') {
            point = n_digits;
            continue;
        }
        if (n_digits == (int32_t)sizeof digits) return false;
        digits[n_digits++] = s[i];
    }
    if (point < 0) point = n_digits;
    if (i < n) {
        bool minus = ++i < n && s[i] == '-';
        i += i < n && (s[i] == '-' || s[i] == '+');
        for (; i < n; i++) {
            exponent = exponent * 10 + (s[i] - '0');
            if (exponent > 100000) exponent = 100000;
        }
        if (minus) exponent = -exponent;
    }
    int32_t first = 0;
    while (n_digits > 0 && digits[n_digits - 1] == '0') n_digits--;
    while (first < n_digits && digits[first] == '0') first++;
    if (first == n_digits) { /* zero has no sign */
        d->negative = false;
        return true;
    }
    int64_t at = point + exponent; /* the point stands before digits[at] */
    int64_t whole = at > first ? at - first : 0, part = n_digits > at ? n_digits - at : 0;
    if (whole > NEAP_DECIMAL_DIGITS || part > NEAP_DECIMAL_DIGITS) return false;
    d->n_whole = (int32_t)whole;
    d->n_part = (int32_t)part;
    for (int64_t k = 0; k < whole + part; k++) {
        int64_t from = at - whole + k;
        d->digits[k] = from >= first && from < n_digits ? digits[from] : '0';
    }
    return true;
}

static int digit_at(const neap_decimal *d, int32_t i) { return i < d->n_whole + d->n_part ? d->digits[i] - '0' : 0; }

static int compare_size(const neap_decimal *a, const neap_decimal *b) {
    if (a->n_whole != b->n_whole) return a->n_whole < b->n_whole ? -1 : 1;
    int32_t part = a->n_part > b->n_part ? a->n_part : b->n_part;
    for (int32_t i = 0; i < a->n_whole + part; i++) {
        int x = digit_at(a, i), y = digit_at(b, i);
        if (x != y) return x < y ? -1 : 1;
    }
    return 0;
}

int neap_decimal_compare(const neap_decimal *a, const neap_decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int c = compare_size(a, b);
    return a->negative ? -c : c;
}

bool neap_number_in(const neap_number_range *r, const neap_decimal *d) {
    if (r->is_integer && d->n_part > 0) return false;
    int lo = r->has_lo ? neap_decimal_compare(d, &r->lo) : 1, hi = r->has_hi ? neap_decimal_compare(d, &r->hi) : -1;
    return (lo > 0 || (lo == 0 && !r->lo_open)) && (hi < 0 || (hi == 0 && !r->hi_open));
}

/* ------------------------------------------------------------- digits ------------------------ */

/* Sizes (without sign) from a to b; NULL: no bound. */
typedef struct sizes {
    neap_nfa *n;
    const neap_decimal *a, *b;
    bool a_open, b_open, is_integer;
    uint32_t match, dot[2][2]; /* behind the whole part: still a's digits, still b's digits */
} sizes;

typedef uint32_t places[2][2]; /* [still a][still b] the state; UINT32_MAX: no number goes through here */

static int32_t whole_digits(const neap_decimal *d) { return d->n_whole > 0 ? d->n_whole : 1; }
/* Digit i of the whole part, which is "0" for what is below 1. */
static int whole_digit(const neap_decimal *d, int32_t i) { return d->n_whole == 0 ? 0 : d->digits[i] - '0'; }
static int part_digit(const neap_decimal *d, int32_t i) { return i < d->n_part ? d->digits[d->n_whole + i] - '0' : 0; }

/* May the number end behind `part` digits of its fraction? */
static bool may_end(const sizes *s, bool at_a, bool at_b, int32_t part) {
    if (at_a && (part < s->a->n_part || s->a_open)) return false;
    return !(at_b && s->b_open && part >= s->b->n_part);
}

static neap_status way(neap_nfa *n, uint32_t *start, int lo, int hi, uint32_t to) {
    uint32_t made;
    if (lo > hi || to == UINT32_MAX) return NEAP_OK;
    neap_nstate s = {.kind = NEAP_N_BYTES, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .out = to};
    NEAP_TRY(neap_nfa_add(n, s, &made));
    if (*start == UINT32_MAX)
        *start = made;
    else
        NEAP_TRY(neap_nfa_add(n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = *start, .out1 = made}, start));
    return NEAP_OK;
}

/* A digit, at least `least`, with the bounds' digits a and b here (NONE: not at that bound), to the next places. */
static neap_status digit(neap_nfa *n, int least, int a, int b, places next, uint32_t *start) {
    for (int d = least; d <= 9;) {
        bool at_a = a != NONE && d == a, at_b = b != NONE && d == b;
        int end = d;
        if ((a != NONE && d < a) || (b != NONE && d > b)) {
            d++;
            continue;
        }
        while (!at_a && !at_b && end < 9 && end + 1 != a && end + 1 != b) end++;
        NEAP_TRY(way(n, start, '0' + d, '0' + end, next[at_a][at_b]));
        d = end + 1;
    }
    return NEAP_OK;
}

static neap_status ends(sizes *s, uint32_t *start) {
    if (*start == UINT32_MAX) {
        *start = s->match;
        return NEAP_OK;
    }
    return neap_nfa_add(s->n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = *start, .out1 = s->match}, start);
}

/* From behind the whole part on, backwards. */
static neap_status fraction(sizes *s) {
    int32_t most = s->is_integer ? 0 : DIGITS;
    if (most && s->a && s->a->n_part >= most) most = s->a->n_part + 1;
    if (most && s->b && s->b->n_part >= most) most = s->b->n_part + 1;
    places next;
    for (int32_t part = most; part >= 0; part--) {
        places here;
        for (int at_a = 0; at_a < 2; at_a++) {
            for (int at_b = 0; at_b < 2; at_b++) {
                uint32_t start = UINT32_MAX;
                here[at_a][at_b] = UINT32_MAX;
                if ((at_a && !s->a) || (at_b && !s->b)) continue;
                if (part < most)
                    NEAP_TRY(digit(s->n, 0, at_a ? part_digit(s->a, part) : NONE, at_b ? part_digit(s->b, part) : NONE,
                                   next, &start));
                if (part == 0) { /* the point, then at least one digit */
                    uint32_t digits = start;
                    start = UINT32_MAX;
                    NEAP_TRY(way(s->n, &start, '.', '.', digits));
                }
                if (may_end(s, at_a, at_b, part)) NEAP_TRY(ends(s, &start));
                here[at_a][at_b] = start;
            }
        }
        memcpy(next, here, sizeof next);
    }
    memcpy(s->dot, next, sizeof next);
    return NEAP_OK;
}

/* Numbers of `length` digits before the point. */
static neap_status whole(sizes *s, int32_t length, uint32_t *out) {
    bool from_a = s->a && whole_digits(s->a) == length, from_b = s->b && whole_digits(s->b) == length;
    places next;
    memcpy(next, s->dot, sizeof next);
    for (int32_t i = length - 1; i >= 0; i--) {
        places here;
        for (int at_a = 0; at_a < 2; at_a++)
            for (int at_b = 0; at_b < 2; at_b++) {
                here[at_a][at_b] = UINT32_MAX;
                if ((at_a && !from_a) || (at_b && !from_b)) continue;
                NEAP_TRY(digit(s->n, i == 0 && length > 1 ? 1 : 0, at_a ? whole_digit(s->a, i) : NONE,
                               at_b ? whole_digit(s->b, i) : NONE, next, &here[at_a][at_b]));
            }
        memcpy(next, here, sizeof next);
    }
    *out = next[from_a][from_b];
    return NEAP_OK;
}

/* All sizes from a to b, with `sign` before them, as one more way from *start. */
static neap_status put_sizes(sizes *s, bool minus, uint32_t *start) {
    if (s->a && s->b && compare_size(s->a, s->b) > 0) return NEAP_OK;
    int32_t shortest = s->a ? whole_digits(s->a) : 1, longest = DIGITS;
    if (s->b)
        longest = whole_digits(s->b);
    else if (s->a && shortest >= DIGITS)
        longest = shortest + 1;
    NEAP_TRY(fraction(s));
    for (int32_t length = shortest; length <= longest; length++) {
        uint32_t at;
        NEAP_TRY(whole(s, length, &at));
        if (at == UINT32_MAX) continue;
        if (minus)
            NEAP_TRY(way(s->n, start, '-', '-', at));
        else if (*start == UINT32_MAX)
            *start = at;
        else
            NEAP_TRY(neap_nfa_add(s->n, (neap_nstate){.kind = NEAP_N_SPLIT, .out = *start, .out1 = at}, start));
    }
    return NEAP_OK;
}

static neap_status put_range(neap_nfa *n, const neap_number_range *r) {
    sizes s = {.n = n, .is_integer = r->is_integer};
    neap_decimal zero = {0};
    bool lo_below = !r->has_lo || r->lo.negative, hi_below = r->has_hi && r->hi.negative;
    bool hi_zero = r->has_hi && neap_decimal_compare(&r->hi, &zero) == 0;
    n->start = UINT32_MAX;
    NEAP_TRY(neap_nfa_add(n, (neap_nstate){.kind = NEAP_N_MATCH}, &s.match));
    if (lo_below) {
        s.a = hi_below || hi_zero ? &r->hi : NULL;
        s.a_open = r->hi_open;
        s.b = r->has_lo ? &r->lo : NULL;
        s.b_open = r->lo_open;
        NEAP_TRY(put_sizes(&s, true, &n->start));
    }
    if (!hi_below) {
        s.a = lo_below ? NULL : &r->lo;
        s.a_open = r->lo_open;
        s.b = r->has_hi ? &r->hi : NULL;
        s.b_open = r->hi_open;
        NEAP_TRY(put_sizes(&s, false, &n->start));
    }
    if (n->start == UINT32_MAX) { /* no number: a step that leads nowhere */
        NEAP_TRY(neap_nfa_add(n, (neap_nstate){.kind = NEAP_N_BYTES}, &n->start));
        n->s[n->start].out = n->start;
    }
    return NEAP_OK;
}

neap_status neap_number_dfa(neap_gbuild *b, const neap_number_range *r, neap_dfa *out) {
    static const char any[] = "^-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?$",
                      integer[] = "^-?(0|[1-9][0-9]{0,14})$";
    if (!r->has_lo && !r->has_hi)
        return r->is_integer ? neap_regex_dfa(b, integer, sizeof integer - 1, out)
                             : neap_regex_dfa(b, any, sizeof any - 1, out);
    neap_nfa n = {0};
    *out = (neap_dfa){0};
    neap_status status = put_range(&n, r);
    if (status == NEAP_OK) status = neap_nfa_to_dfa(b, &n, out);
    neap_nfa_free(&n);
    return status;
}
