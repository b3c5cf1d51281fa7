/* Deterministic byte automata: from nondeterministic ones, cut with each other, spelled as JSON.
 *
 * Patterns, formats, lengths, bounds of numbers and forbidden keys all become automata over the bytes of UTF-8 text;
 * what holds together is cut to one. A table costs one look-up per byte, whatever the pattern was, so there is nothing
 * to backtrack. States that lead nowhere are removed: what is begun can be ended. Sizes and time are limited.
 *
 * Called by grammar_schema.c. An automaton owns its two arrays. Source: subset construction as in any text book. */
#include <stdlib.h>

#include "format/grammar_inner.h"

enum { SETS_MAX = 4 << 20, TABLE_MAX = 4 << 20 };

void neap_dfa_free(neap_dfa *d) {
    neap_mem_free(d->next);
    neap_mem_free(d->accepts);
    *d = (neap_dfa){0};
}

void neap_dfa_wide(uint32_t *table, uint32_t body) {
    const uint32_t one = body + 1, two = body + 2, three = body + 3, e0 = body + 4, ed = body + 5, f0 = body + 6,
                   f4 = body + 7;
    for (uint32_t c = 0x80; c < 256; c++) {
        uint32_t *next = table + c, to = 0;
        bool tail = c < 0xC0;
        if (c >= 0xC2 && c < 0xE0)
            to = one;
        else if (c >= 0xE0 && c < 0xF0)
            to = c == 0xE0 ? e0 : c == 0xED ? ed : two;
        else if (c >= 0xF0 && c <= 0xF4)
            to = c == 0xF0 ? f0 : c == 0xF4 ? f4 : three;
        next[body * 256] = to;
        next[one * 256] = tail ? body : 0;
        next[two * 256] = tail ? one : 0;
        next[three * 256] = tail ? two : 0;
        next[e0 * 256] = tail && c >= 0xA0 ? one : 0;
        next[ed * 256] = tail && c < 0xA0 ? one : 0;
        next[f0 * 256] = tail && c >= 0x90 ? two : 0;
        next[f4 * 256] = tail && c < 0x90 ? two : 0;
    }
}

static neap_status too_large(neap_gbuild *b) {
    char where[256];
    return neap_fail(NEAP_LIMIT, "%s: needs more than %d states", neap_gbuild_where(b, where), b->limits->states_max);
}

static neap_status dfa_state(neap_gbuild *b, neap_dfa *d, uint32_t *max, uint32_t *out) {
    if (d->n > (uint32_t)b->limits->states_max || (uint64_t)d->n * d->n_classes > TABLE_MAX) return too_large(b);
    NEAP_TRY(neap_gbuild_tick(b));
    if (d->n == *max) {
        uint32_t grown = *max ? *max * 2 : 16;
        NEAP_TRY(neap_mem_grow((void **)&d->next, (size_t)*max * d->n_classes * 4, (size_t)grown * d->n_classes * 4));
        NEAP_TRY(neap_mem_grow((void **)&d->accepts, *max, grown));
        *max = grown;
    }
    *out = d->n++;
    return NEAP_OK;
}

/* Steps into states from which no end is reached become dead. */
static neap_status trim(neap_gbuild *b, neap_dfa *d) {
    bool *alive = NULL, changed = true;
    NEAP_TRY(neap_mem_alloc(d->n, (void **)&alive));
    neap_status status = NEAP_OK;
    memcpy(alive, d->accepts, d->n);
    while (changed && status == NEAP_OK) {
        changed = false;
        for (uint32_t s = d->n - 1; s > 0 && status == NEAP_OK; s--) {
            for (uint32_t c = 0; c < d->n_classes && !alive[s]; c++)
                if (alive[d->next[s * d->n_classes + c]]) alive[s] = changed = true;
            status = neap_gbuild_tick(b);
        }
    }
    for (size_t i = 0; i < (size_t)d->n * d->n_classes; i++)
        if (!alive[d->next[i]]) d->next[i] = 0;
    if (!alive[d->start]) d->start = 0;
    neap_mem_free(alive);
    return status;
}

bool neap_dfa_is_empty(const neap_dfa *d) { return d->start == 0; }

bool neap_dfa_takes(const neap_dfa *d, const char *s, size_t n) {
    uint32_t at = d->start;
    for (size_t i = 0; i < n && at != 0; i++) at = d->next[at * d->n_classes + d->class_of[(unsigned char)s[i]]];
    return at != 0 && d->accepts[at];
}

/* ------------------------------------------------------------- interning --------------------- */

void neap_intern_free(neap_intern *t) {
    neap_mem_free(t->pool);
    neap_mem_free(t->at);
    neap_mem_free(t->length);
    neap_mem_free(t->slots);
}

static uint32_t hash_words(const uint32_t *w, uint32_t n) {
    uint64_t h = UINT64_C(0x9E3779B97F4A7C15) ^ n;
    for (uint32_t i = 0; i < n; i++) h = (h ^ w[i]) * UINT64_C(0xBF58476D1CE4E5B9), h ^= h >> 29;
    return (uint32_t)(h ^ h >> 32);
}

static neap_status rehash(neap_intern *t) {
    uint32_t n = t->n_slots ? t->n_slots * 2 : 256;
    neap_mem_free(t->slots);
    t->slots = NULL;
    NEAP_TRY(neap_mem_alloc((size_t)n * 4, (void **)&t->slots));
    t->n_slots = n;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t s = hash_words(t->pool + t->at[i], t->length[i]) & (n - 1);
        while (t->slots[s]) s = (s + 1) & (n - 1);
        t->slots[s] = i + 1;
    }
    return NEAP_OK;
}

neap_status neap_intern_key(neap_intern *t, const uint32_t *key, uint32_t n, uint32_t *number, bool *fresh) {
    if (t->n * 2 >= t->n_slots) NEAP_TRY(rehash(t));
    uint32_t s = hash_words(key, n) & (t->n_slots - 1);
    for (; t->slots[s]; s = (s + 1) & (t->n_slots - 1)) {
        uint32_t i = t->slots[s] - 1;
        if (t->length[i] != n || memcmp(t->pool + t->at[i], key, (size_t)n * 4) != 0) continue;
        *number = i;
        *fresh = false;
        return NEAP_OK;
    }
    NEAP_TRY(neap_grow(&t->pool, (uint64_t)t->n_pool + n, &t->pool_max, 4));
    NEAP_TRY(neap_grow(&t->at, t->n + 1, &t->keys_max, 4));
    NEAP_TRY(neap_grow(&t->length, t->n + 1, &t->lengths_max, 4));
    if (n > 0) memcpy(t->pool + t->n_pool, key, (size_t)n * 4);
    t->at[t->n] = t->n_pool;
    t->length[t->n] = n;
    t->n_pool += n;
    t->slots[s] = t->n + 1;
    *number = t->n++;
    *fresh = true;
    return NEAP_OK;
}

/* ------------------------------------------------------------- subset construction ----------- */

typedef struct subset {
    neap_gbuild *b;
    const neap_nfa *nfa;
    uint32_t *mark, generation; /* [nfa->n] */
    uint32_t *todo, *set, n_set;
    neap_intern sets;
    neap_dfa *d;
    uint32_t d_max;
} subset;

static int by_number(const void *pa, const void *pb) {
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return (a > b) - (a < b);
}

static void begin_set(subset *s) {
    s->generation++;
    s->n_set = 0;
}

/* Adds what is reached from q without a byte. */
static void reach(subset *s, uint32_t q, bool at_begin, bool at_finish) {
    uint32_t n = 0;
    s->todo[n++] = q;
    if (s->mark[q] == s->generation) return;
    s->mark[q] = s->generation;
    while (n > 0) {
        uint32_t at = s->todo[--n];
        const neap_nstate *st = &s->nfa->s[at];
        uint32_t to[2], n_to = 0;
        switch ((neap_nkind)st->kind) {
        case NEAP_N_SPLIT:
            to[n_to++] = st->out;
            to[n_to++] = st->out1;
            break;
        case NEAP_N_BEGIN:
            if (at_begin) to[n_to++] = st->out;
            break;
        case NEAP_N_FINISH:
            s->set[s->n_set++] = at;
            if (at_finish) to[n_to++] = st->out;
            break;
        case NEAP_N_BYTES:
        case NEAP_N_MATCH: s->set[s->n_set++] = at; break;
        }
        for (uint32_t i = 0; i < n_to; i++)
            if (s->mark[to[i]] != s->generation) {
                s->mark[to[i]] = s->generation;
                s->todo[n++] = to[i];
            }
    }
}

static bool set_matches(const subset *s) {
    for (uint32_t i = 0; i < s->n_set; i++)
        if (s->nfa->s[s->set[i]].kind == NEAP_N_MATCH) return true;
    return false;
}

/* The state of s->set. A set that holds ends of text is asked again with them passed. */
static neap_status set_state(subset *s, bool at_begin, uint32_t *out) {
    bool fresh, ends = false;
    uint32_t number;
    if (s->n_set == 0 && s->d->n > 0) {
        *out = 0;
        return NEAP_OK;
    }
    qsort(s->set, s->n_set, sizeof *s->set, by_number);
    /* The beginning is a state of its own: only there the marks of the beginning were passed. */
    s->set[s->n_set] = at_begin ? UINT32_MAX : UINT32_MAX - 1;
    NEAP_TRY(neap_intern_key(&s->sets, s->set, s->n_set + 1, &number, &fresh));
    *out = number;
    if (!fresh) return NEAP_OK;
    if (s->sets.n_pool > SETS_MAX) return too_large(s->b);
    uint32_t made;
    NEAP_TRY(dfa_state(s->b, s->d, &s->d_max, &made));
    bool matches = set_matches(s);
    for (uint32_t i = 0; i < s->n_set; i++) ends = ends || s->nfa->s[s->set[i]].kind == NEAP_N_FINISH;
    if (!matches && ends) {
        const uint32_t *key = s->sets.pool + s->sets.at[number];
        uint32_t n = s->n_set;
        begin_set(s);
        for (uint32_t i = 0; i < n; i++)
            if (s->nfa->s[key[i]].kind == NEAP_N_FINISH) reach(s, s->nfa->s[key[i]].out, at_begin, true);
        matches = set_matches(s);
    }
    s->d->accepts[made] = matches;
    return NEAP_OK;
}

static void byte_classes(const neap_nfa *nfa, neap_dfa *d, uint8_t sample[256]) {
    bool cut[257] = {false};
    for (uint32_t i = 0; i < nfa->n; i++) {
        if (nfa->s[i].kind != NEAP_N_BYTES) continue;
        cut[nfa->s[i].lo] = true;
        cut[nfa->s[i].hi + 1] = true;
    }
    uint32_t c = 0;
    sample[0] = 0;
    for (int i = 0; i < 256; i++) {
        if (i > 0 && cut[i]) sample[++c] = (uint8_t)i;
        d->class_of[i] = (uint8_t)c;
    }
    d->n_classes = c + 1;
}

static neap_status build_subsets(subset *s) {
    uint8_t sample[256];
    uint32_t dead;
    byte_classes(s->nfa, s->d, sample);
    begin_set(s);
    NEAP_TRY(set_state(s, false, &dead));
    begin_set(s);
    reach(s, s->nfa->start, true, false);
    NEAP_TRY(set_state(s, true, &s->d->start));
    for (uint32_t at = 1; at < s->d->n; at++) {
        for (uint32_t c = 0; c < s->d->n_classes; c++) {
            const uint32_t *key = s->sets.pool + s->sets.at[at];
            uint32_t n = s->sets.length[at] - 1, to;
            begin_set(s);
            for (uint32_t i = 0; i < n; i++) {
                const neap_nstate *st = &s->nfa->s[key[i]];
                if (st->kind == NEAP_N_BYTES && st->lo <= sample[c] && sample[c] <= st->hi)
                    reach(s, st->out, false, false);
            }
            NEAP_TRY(set_state(s, false, &to));
            s->d->next[at * s->d->n_classes + c] = to;
        }
        NEAP_TRY(neap_gbuild_tick(s->b));
    }
    return trim(s->b, s->d);
}

neap_status neap_nfa_to_dfa(neap_gbuild *b, const neap_nfa *n, neap_dfa *out) {
    subset s = {.b = b, .nfa = n, .d = out};
    neap_status status = NEAP_OK;
    *out = (neap_dfa){0};
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)n->n * 4, (void **)&s.mark));
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)(n->n + 2) * 4, (void **)&s.todo));
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)(n->n + 2) * 4, (void **)&s.set));
    status = build_subsets(&s);
fail:
    neap_mem_free(s.mark);
    neap_mem_free(s.todo);
    neap_mem_free(s.set);
    neap_intern_free(&s.sets);
    if (status != NEAP_OK) neap_dfa_free(out);
    return status;
}

/* ------------------------------------------------------------- both of two ------------------- */

static void pair_classes(const neap_dfa *x, const neap_dfa *y, neap_dfa *d, uint8_t sample[256]) {
    d->n_classes = 0;
    for (int i = 0; i < 256; i++) {
        uint32_t c = 0;
        while (c < d->n_classes &&
               (x->class_of[sample[c]] != x->class_of[i] || y->class_of[sample[c]] != y->class_of[i]))
            c++;
        if (c == d->n_classes) sample[d->n_classes++] = (uint8_t)i;
        d->class_of[i] = (uint8_t)c;
    }
}

static neap_status build_pairs(neap_gbuild *b, const neap_dfa *x, const neap_dfa *y, neap_dfa *d, neap_intern *pairs) {
    uint8_t sample[256];
    uint32_t max = 0, made, number, key[2] = {0, 0};
    bool fresh;
    pair_classes(x, y, d, sample);
    NEAP_TRY(dfa_state(b, d, &max, &made));
    NEAP_TRY(neap_intern_key(pairs, key, 2, &number, &fresh));
    if (x->start != 0 && y->start != 0) {
        key[0] = x->start;
        key[1] = y->start;
        NEAP_TRY(neap_intern_key(pairs, key, 2, &d->start, &fresh));
        NEAP_TRY(dfa_state(b, d, &max, &made));
    }
    for (uint32_t at = 1; at < d->n; at++) {
        const uint32_t *k = pairs->pool + pairs->at[at];
        uint32_t sx = k[0], sy = k[1];
        d->accepts[at] = x->accepts[sx] && y->accepts[sy];
        for (uint32_t c = 0; c < d->n_classes; c++) {
            key[0] = x->next[sx * x->n_classes + x->class_of[sample[c]]];
            key[1] = y->next[sy * y->n_classes + y->class_of[sample[c]]];
            number = 0;
            if (key[0] != 0 && key[1] != 0) {
                NEAP_TRY(neap_intern_key(pairs, key, 2, &number, &fresh));
                if (fresh) NEAP_TRY(dfa_state(b, d, &max, &made));
            }
            d->next[at * d->n_classes + c] = number;
        }
    }
    return trim(b, d);
}

neap_status neap_dfa_both(neap_gbuild *b, const neap_dfa *x, const neap_dfa *y, neap_dfa *out) {
    neap_intern pairs = {0};
    *out = (neap_dfa){0};
    neap_status status = build_pairs(b, x, y, out, &pairs);
    neap_intern_free(&pairs);
    if (status != NEAP_OK) neap_dfa_free(out);
    return status;
}

/* ------------------------------------------------------------- lengths, exceptions ----------- */

neap_status neap_dfa_length(neap_gbuild *b, uint32_t min, uint32_t max, neap_dfa *out) {
    uint32_t cap = max == UINT32_MAX ? min : max, d_max = 0, made;
    *out = (neap_dfa){.n_classes = 2, .start = 1};
    if (cap >= (uint32_t)b->limits->states_max) return too_large(b);
    for (int i = 0; i < 256; i++) out->class_of[i] = (i & 0xC0) == 0x80;
    neap_status status = dfa_state(b, out, &d_max, &made);
    for (uint32_t i = 0; i <= cap && status == NEAP_OK; i++) {
        status = dfa_state(b, out, &d_max, &made);
        if (status != NEAP_OK) break;
        out->accepts[made] = i >= min;
        out->next[made * 2] = i < cap ? made + 1 : max == UINT32_MAX ? made : 0;
        out->next[made * 2 + 1] = made;
    }
    if (status != NEAP_OK) neap_dfa_free(out);
    return status;
}

/* Well-formed text; in attributes without quotes, ampersands and control characters. */
static neap_status text_dfa(neap_gbuild *b, bool attribute, neap_dfa *d) {
    enum { BODY = 1, N = BODY + NEAP_DFA_WIDE + 1 };
    uint32_t max = 0, made;
    *d = (neap_dfa){.n_classes = 256, .start = BODY};
    for (int i = 0; i < 256; i++) d->class_of[i] = (uint8_t)i;
    for (int i = 0; i < N; i++) NEAP_TRY(dfa_state(b, d, &max, &made));
    d->accepts[BODY] = true;
    for (uint32_t c = 0; c < 0x80; c++) {
        bool barred = attribute && (c < 0x20 || c == 0x7F || c == '"' || c == '&');
        d->next[BODY * 256 + c] = barred ? 0 : BODY;
    }
    neap_dfa_wide(d->next, BODY);
    return NEAP_OK;
}

/* Everything but the names, of bytes: a trie whose other steps lead to state 1. */
static neap_status names_dfa(neap_gbuild *b, const neap_gname *names, size_t n, bool attribute, neap_dfa *d) {
    enum { OTHER = 1, ROOT };
    uint32_t max = 0, made;
    *d = (neap_dfa){.n_classes = 1, .start = ROOT};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < names[i].n; k++) {
            uint8_t *c = &d->class_of[(unsigned char)names[i].p[k]];
            if (*c == 0 && d->n_classes < 256) *c = (uint8_t)d->n_classes++;
        }
    for (int i = 0; i < 3; i++) {
        NEAP_TRY(dfa_state(b, d, &max, &made));
        d->accepts[made] = i == OTHER || (i == ROOT && !attribute);
        for (uint32_t c = 0; i > 0 && c < d->n_classes; c++) d->next[made * d->n_classes + c] = OTHER;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t at = ROOT;
        for (size_t k = 0; k < names[i].n; k++) {
            size_t edge = at * d->n_classes + d->class_of[(unsigned char)names[i].p[k]];
            if (d->next[edge] == OTHER) {
                NEAP_TRY(dfa_state(b, d, &max, &made));
                d->accepts[made] = true;
                for (uint32_t c = 0; c < d->n_classes; c++) d->next[made * d->n_classes + c] = OTHER;
                d->next[edge] = made;
            }
            at = d->next[edge];
        }
        d->accepts[at] = false;
    }
    return NEAP_OK;
}

neap_status neap_dfa_except(neap_gbuild *b, const neap_gname *names, size_t n, bool attribute, neap_dfa *out) {
    neap_dfa text = {0}, others = {0};
    *out = (neap_dfa){0};
    neap_status status = text_dfa(b, attribute, &text);
    if (status == NEAP_OK) status = names_dfa(b, names, n, attribute, &others);
    if (status == NEAP_OK) status = neap_dfa_both(b, &text, &others, out);
    neap_dfa_free(&text);
    neap_dfa_free(&others);
    return status;
}

/* ------------------------------------------------------------- spelled as JSON --------------- */

static const char letters[] = "\"\\bfnrt", meant[] = "\"\\\b\f\n\r\t";

static uint32_t follow(const neap_dfa *x, uint32_t s, int byte) {
    return x->next[s * x->n_classes + x->class_of[byte]];
}

/* Classes of the result: those of x, with every byte that spelling gives a meaning in one of its own. */
static void escape_classes(const neap_dfa *x, neap_dfa *d) {
    static const char own[] = "\"\\bfnrtu0123456789acde";
    bool is_own[256] = {false};
    int16_t known[256];
    for (size_t i = 0; i + 1 < sizeof own; i++) is_own[(unsigned char)own[i]] = true;
    for (int i = 0; i < 256; i++) known[i] = -1;
    d->n_classes = 1; /* 0: control characters */
    for (int i = 0x20; i < 256; i++) {
        if (is_own[i]) {
            d->class_of[i] = (uint8_t)d->n_classes++;
            continue;
        }
        int16_t *k = &known[x->class_of[i]];
        if (*k < 0) *k = (int16_t)d->n_classes++;
        d->class_of[i] = (uint8_t)*k;
    }
}

/* The state behind a backslash that follows state s of x: *out, 0 when nothing may be escaped. */
static neap_status escapes_of(neap_gbuild *b, const neap_dfa *x, uint32_t s, neap_dfa *d, uint32_t *max,
                              uint32_t *out) {
    uint32_t esc, u[4];
    bool any = false, coded = false;
    *out = 0;
    for (int i = 0; i < 7; i++) any = any || follow(x, s, meant[i]) != 0;
    for (int c = 1; c < 0x20; c++) coded = coded || (!strchr(meant, c) && follow(x, s, c) != 0);
    if (!any && !coded) return NEAP_OK;
    NEAP_TRY(dfa_state(b, d, max, &esc));
    for (int i = 0; i < 7; i++)
        d->next[esc * d->n_classes + d->class_of[(unsigned char)letters[i]]] = follow(x, s, meant[i]);
    *out = esc;
    if (!coded) return NEAP_OK;
    for (int i = 0; i < 3; i++) NEAP_TRY(dfa_state(b, d, max, &u[i]));
    d->next[esc * d->n_classes + d->class_of['u']] = u[0];
    d->next[u[0] * d->n_classes + d->class_of['0']] = u[1];
    d->next[u[1] * d->n_classes + d->class_of['0']] = u[2];
    for (int high = 0; high < 2; high++) {
        NEAP_TRY(dfa_state(b, d, max, &u[3]));
        d->next[u[2] * d->n_classes + d->class_of['0' + high]] = u[3];
        for (int low = 0; low < 16; low++) {
            int c = high * 16 + low;
            if (c == 0 || strchr(meant, c)) continue;
            d->next[u[3] * d->n_classes + d->class_of[(unsigned char)"0123456789abcdef"[low]]] = follow(x, s, c);
        }
    }
    return NEAP_OK;
}

static neap_status build_escaped(neap_gbuild *b, const neap_dfa *x, neap_dfa *d) {
    uint32_t max = 0, made, closed, sample[256];
    escape_classes(x, d);
    for (int i = 255; i >= 0x20; i--) sample[d->class_of[i]] = (uint32_t)i;
    for (uint32_t i = 0; i < x->n; i++) NEAP_TRY(dfa_state(b, d, &max, &made));
    NEAP_TRY(dfa_state(b, d, &max, &closed));
    d->start = x->start;
    d->accepts[closed] = true;
    for (uint32_t s = 1; s < x->n; s++) {
        uint32_t escaped;
        NEAP_TRY(escapes_of(b, x, s, d, &max, &escaped));
        for (uint32_t c = 1; c < d->n_classes; c++) {
            int byte = (int)sample[c];
            uint32_t to = byte == '"' ? (x->accepts[s] ? closed : 0) : byte == '\\' ? escaped : follow(x, s, byte);
            d->next[s * d->n_classes + c] = to;
        }
    }
    return trim(b, d);
}

neap_status neap_dfa_escape(neap_gbuild *b, const neap_dfa *x, neap_dfa *out) {
    *out = (neap_dfa){0};
    neap_status status = build_escaped(b, x, out);
    if (status != NEAP_OK) neap_dfa_free(out);
    return status;
}
