/* The vocabulary as a trie of bytes, made once per tokenizer.
 *
 * Which tokens may follow is asked in every step of a constrained answer, so a vocabulary of 160,000 tokens is walked
 * by its prefixes: a prefix that cannot go on rules out all tokens below it. Most steps are inside of strings, where
 * almost every token may follow; those that consist of whole ordinary characters are a mask of their own, and only the
 * odd rest (quotes, backslashes, pieces of characters) has to be walked.
 *
 * Tokens that end answers are no text here. Called by grammar_chat.c. The tokenizer owns it; const once it is made. */
#include <pthread.h>
#include <stdlib.h>

#include "format/grammar_inner.h"
#include "format/utf8.h"

struct neap_lazy_trie {
    pthread_mutex_t lock;
    neap_vocab_trie *trie;
};

neap_status neap_lazy_trie_create(neap_lazy_trie **out) {
    NEAP_TRY(neap_mem_alloc(sizeof **out, (void **)out));
    pthread_mutex_init(&(*out)->lock, NULL);
    return NEAP_OK;
}

static void trie_free(neap_trie *t) {
    neap_mem_free(t->byte);
    neap_mem_free(t->skip);
    neap_mem_free(t->token);
    neap_mem_free(t->depth);
}

static void vocab_trie_free(neap_vocab_trie *v) {
    if (v == NULL) return;
    trie_free(&v->all);
    trie_free(&v->odd);
    neap_mem_free(v->ordinary);
    neap_mem_free(v->text);
    neap_mem_free(v->unnamed);
    neap_mem_free(v->by_length);
    neap_mem_free(v->length_end);
    neap_mem_free(v);
}

void neap_lazy_trie_destroy(neap_lazy_trie *l) {
    if (l == NULL) return;
    vocab_trie_free(l->trie);
    pthread_mutex_destroy(&l->lock);
    neap_mem_free(l);
}

/* ------------------------------------------------------------- sorting ----------------------- */

typedef struct entry {
    uint64_t head; /* the first eight bytes, the first one on top */
    const char *p;
    uint32_t n;
    int32_t token;
} entry;

static int by_bytes(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    uint32_t n = a->n < b->n ? a->n : b->n;
    int order = memcmp(a->p, b->p, n);
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static uint64_t head_of(const char *p, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < 8; i++) h = h << 8 | (i < n ? (unsigned char)p[i] : 0);
    return h;
}

/* By the heads, two bytes at a time, then what they leave open. Entries and work have n elements. */
static neap_status sort_entries(entry *e, entry *work, size_t n) {
    enum { DIGITS = 1 << 16 };
    uint32_t *count = NULL;
    NEAP_TRY(neap_mem_alloc((DIGITS + 1) * sizeof *count, (void **)&count));
    for (int shift = 0; shift < 64; shift += 16) { /* an even number of passes: the result is in e */
        memset(count, 0, (DIGITS + 1) * sizeof *count);
        for (size_t i = 0; i < n; i++) count[(e[i].head >> shift & 0xFFFF) + 1]++;
        for (size_t d = 0; d < DIGITS; d++) count[d + 1] += count[d];
        for (size_t i = 0; i < n; i++) work[count[e[i].head >> shift & 0xFFFF]++] = e[i];
        entry *other = e;
        e = work;
        work = other;
    }
    neap_mem_free(count);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && e[to].head == e[from].head;) to++;
        if (to - from > 1) qsort(e + from, to - from, sizeof *e, by_bytes);
    }
    return NEAP_OK;
}

/* ------------------------------------------------------------- the trie ---------------------- */

static uint32_t shared(const entry *a, const entry *b) {
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->p[i] == b->p[i]) i++;
    return i;
}

/* Sorted entries, only those with keep[token] in the mask. */
static neap_status trie_make(neap_trie *t, const entry *e, size_t n, const uint32_t *keep) {
    uint64_t nodes = 0;
    const entry *last = NULL;
    uint32_t *open = NULL, depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (!neap_mask_has(keep, e[i].token)) continue;
        nodes += e[i].n - (last ? shared(last, &e[i]) : 0);
        if (e[i].n > t->depth_max) t->depth_max = e[i].n;
        last = &e[i];
    }
    NEAP_CHECK(nodes < UINT32_MAX, NEAP_LIMIT, "the vocabulary is too large for a grammar");
    NEAP_TRY(neap_mem_alloc(nodes + 1, (void **)&t->byte));
    NEAP_TRY(neap_mem_alloc((nodes + 1) * sizeof *t->skip, (void **)&t->skip));
    NEAP_TRY(neap_mem_alloc((nodes + 1) * sizeof *t->token, (void **)&t->token));
    NEAP_TRY(neap_mem_alloc((nodes + 1) * sizeof *t->depth, (void **)&t->depth));
    NEAP_TRY(neap_mem_alloc((t->depth_max + 1) * sizeof *open, (void **)&open));
    last = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!neap_mask_has(keep, e[i].token)) continue;
        uint32_t from = last ? shared(last, &e[i]) : 0;
        while (depth > from) t->skip[open[--depth]] = t->n;
        for (uint32_t k = from; k < e[i].n; k++) {
            t->depth[t->n] = (uint16_t)depth;
            open[depth++] = t->n;
            t->byte[t->n] = (uint8_t)e[i].p[k];
            t->token[t->n++] = -1;
        }
        t->token[t->n - 1] = e[i].token;
        last = &e[i];
    }
    while (depth > 0) t->skip[open[--depth]] = t->n;
    neap_mem_free(open);
    return NEAP_OK;
}

/* ------------------------------------------------------------- kinds of tokens --------------- */

static bool is_stop(const neap_tokenizer *t, int32_t token) {
    for (size_t i = 0; i < t->n_stop; i++)
        if (t->stop[i] == token) return true;
    return false;
}

/* States: 0 between characters, 1 .. 3 so many bytes are missing, then what the first byte (or two) leave open. */
int neap_ordinary_step(int state, uint8_t byte) {
    enum { E0 = 4, E2, E2_80, ED, F0, F4 };
    bool tail = byte >= 0x80 && byte < 0xC0;
    switch (state) {
    case 0: break;
    case 1: return tail ? 0 : -1;
    case 2: return tail ? 1 : -1;
    case 3: return tail ? 2 : -1;
    case E0: return tail && byte >= 0xA0 ? 1 : -1;
    case E2: return byte == 0x80 ? E2_80 : tail ? 1 : -1;
    case E2_80: return tail && byte != 0xA8 && byte != 0xA9 ? 0 : -1; /* U+2028, U+2029 */
    case ED: return tail && byte < 0xA0 ? 1 : -1;
    case F0: return tail && byte >= 0x90 ? 2 : -1;
    default: return tail && byte < 0x90 ? 2 : -1;
    }
    if (byte < 0x80) return byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7F ? -1 : 0;
    if (byte < 0xC2 || byte > 0xF4) return -1;
    if (byte < 0xE0) return 1;
    if (byte < 0xF0) return byte == 0xE0 ? E0 : byte == 0xE2 ? E2 : byte == 0xED ? ED : 2;
    return byte == 0xF0 ? F0 : byte == 0xF4 ? F4 : 3;
}

/* Characters of an ordinary token, or 0. */
static uint32_t ordinary_length(const char *p, size_t n) {
    uint32_t chars = 0;
    int state = 0;
    for (size_t i = 0; i < n; i++) {
        state = neap_ordinary_step(state, (uint8_t)p[i]);
        if (state < 0) return 0;
        chars += state == 0;
    }
    return state == 0 ? chars : 0;
}

/* Special tokens that the chat formats give no meaning, and that may be sampled. */
static void mark_unnamed(neap_vocab_trie *v, const neap_tokenizer *t) {
    for (int32_t id = t->vocab.n; id < t->vocab.n + t->n_slots; id++) {
        const char *s;
        size_t n;
        if (neap_token_is_unsampled(t, id) || is_stop(t, id)) continue;
        if (neap_token_bytes(t, id, &s, &n, NULL) != NEAP_OK) continue;
        static const char *const known[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>",
                                            "<think>",  "</think>",  "[EOS]",   "[EOT]"};
        bool structure = n > 5 && (memcmp(s, "<|im_", 5) == 0 || (n > 7 && memcmp(s, "<|tool_", 7) == 0));
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            structure = structure || (strlen(known[i]) == n && memcmp(known[i], s, n) == 0);
        if (!structure) neap_mask_set(v->unnamed, id);
    }
}

/* Ordinary tokens in the order of their lengths (counting sort). */
static neap_status sort_lengths(neap_vocab_trie *v, const entry *e, size_t n) {
    uint32_t *chars = NULL, n_ordinary = 0;
    NEAP_TRY(neap_mem_alloc((n + 1) * sizeof *chars, (void **)&chars));
    for (size_t i = 0; i < n; i++) {
        chars[i] = ordinary_length(e[i].p, e[i].n);
        if (chars[i] > v->length_max) v->length_max = chars[i];
        n_ordinary += chars[i] > 0;
    }
    neap_status status = neap_mem_alloc((v->length_max + 2) * sizeof *v->length_end, (void **)&v->length_end);
    if (status == NEAP_OK) status = neap_mem_alloc((n_ordinary + 1) * sizeof *v->by_length, (void **)&v->by_length);
    if (status == NEAP_OK) {
        for (size_t i = 0; i < n; i++)
            if (chars[i] > 0) v->length_end[chars[i]]++;
        for (uint32_t i = 1; i <= v->length_max; i++) v->length_end[i] += v->length_end[i - 1];
        for (size_t i = n; i > 0; i--)
            if (chars[i - 1] > 0) v->by_length[--v->length_end[chars[i - 1]]] = e[i - 1].token;
        /* Now each is where its length begins: shift to where it ends. */
        for (uint32_t i = 0; i < v->length_max; i++) v->length_end[i] = v->length_end[i + 1];
        v->length_end[v->length_max] = n_ordinary;
        for (uint32_t i = 0; i < n_ordinary; i++) neap_mask_set(v->ordinary, v->by_length[i]);
    }
    neap_mem_free(chars);
    return status;
}

static neap_status fill(neap_vocab_trie *v, const neap_tokenizer *t, entry *e, entry *work, uint32_t *odd) {
    size_t n = 0;
    uint32_t missing = 0;
    for (int32_t id = 0; id < t->vocab.n; id++) {
        if (is_stop(t, id)) continue;
        const uint32_t *start = t->vocab.start + id;
        entry one = {.p = t->vocab.bytes + start[0], .n = start[1] - start[0], .token = id};
        one.head = head_of(one.p, one.n);
        if (one.n == 0) continue;
        e[n++] = one;
        neap_mask_set(v->text, id);
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        missing += t->vocab.byte_id[byte] < 0 || !neap_mask_has(v->text, t->vocab.byte_id[byte]);
    NEAP_CHECK(missing == 0, NEAP_UNSUPPORTED,
               "a grammar needs every single byte as a token, this vocabulary lacks %u of them", missing);
    NEAP_TRY(sort_entries(e, work, n));
    NEAP_TRY(sort_lengths(v, e, n));
    for (size_t i = 0; i < v->n_words; i++) odd[i] = v->text[i] & ~v->ordinary[i];
    NEAP_TRY(trie_make(&v->all, e, n, v->text));
    NEAP_TRY(trie_make(&v->odd, e, n, odd));
    mark_unnamed(v, t);
    return NEAP_OK;
}

static neap_status make(neap_vocab_trie *v, const neap_tokenizer *t) {
    entry *e = NULL, *work = NULL;
    uint32_t *odd = NULL;
    size_t n = (size_t)t->vocab.n;
    neap_status status = NEAP_OK;
    v->n_words = ((size_t)neap_tokenizer_vocab(t) + 31) / 32;
    NEAP_TRY_GOTO(neap_mem_alloc(v->n_words * 4, (void **)&v->ordinary));
    NEAP_TRY_GOTO(neap_mem_alloc(v->n_words * 4, (void **)&v->text));
    NEAP_TRY_GOTO(neap_mem_alloc(v->n_words * 4, (void **)&v->unnamed));
    NEAP_TRY_GOTO(neap_mem_alloc(v->n_words * 4, (void **)&odd));
    NEAP_TRY_GOTO(neap_mem_alloc((n + 1) * sizeof *e, (void **)&e));
    NEAP_TRY_GOTO(neap_mem_alloc((n + 1) * sizeof *e, (void **)&work));
    status = fill(v, t, e, work, odd);
fail:
    neap_mem_free(e);
    neap_mem_free(work);
    neap_mem_free(odd);
    return status;
}

neap_status neap_vocab_trie_get(const neap_vocab_trie **out, const neap_tokenizer *t) {
    neap_lazy_trie *l = t->trie;
    neap_status status = NEAP_OK;
    pthread_mutex_lock(&l->lock);
    if (l->trie == NULL) {
        neap_vocab_trie *v = NULL;
        status = neap_mem_alloc(sizeof *v, (void **)&v);
        if (status == NEAP_OK) status = make(v, t);
        if (status == NEAP_OK)
            l->trie = v;
        else
            vocab_trie_free(v);
    }
    *out = l->trie;
    pthread_mutex_unlock(&l->lock);
    return status;
}
