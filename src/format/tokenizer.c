/* Text to token ids and back.
 *
 *   text -> valid UTF-8 (U+FFFD for each invalid part) -> chunks -> special tokens, if allowed (longest
 *   match) -> pieces (split pattern) -> ids (bpe.c).
 *
 * Chunks: every 400,000 characters, and within those wherever a run of white space or of anything else
 * reaches 25,000 characters. Each chunk is encoded alone, as the public tokenizer does; it bounds the work on
 * one piece, too.
 *
 * The split pattern runs on PCRE2. The published pattern uses set intersection, which PCRE2 does not have; here
 * "letters of these kinds that are not Han" is written as the complement of all other categories and of Han,
 * so every class is a plain set and no group is repeated: no deep backtracking, constant stack. White space is
 * spelled out because PCRE2's \s differs from White_Space, and Han is the script, not the script extensions.
 *
 * Everything here is const after loading; each call has its own work memory (neap_encoder).
 * Source: tokenizer and chat notes, sections 1 to 3. */
#include "format/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/arena.h"
#include "format/tokenizer_inner.h"
#include "format/unicode_new.h"
#include "format/utf8.h"

enum { CHUNK_CHARS = 400000, RUN_CHARS = 25000 };

/* ------------------------------------------------------------- the split pattern ------------- */

#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define HAN "\\p{sc:Han}"
#define UPPER "[^\\p{C}\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}" HAN "]"        /* Lu Lt Lm Lo M without Han */
#define LOWER "[^\\p{C}\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}" HAN "]" /* Ll Lm Lo M without Han */
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

static const char pattern[] =
    "[" HAN "]+"
    "|" BEFORE UPPER "*" LOWER "+" CONTRACTION "|" BEFORE UPPER "+" LOWER "*" CONTRACTION "|\\p{N}{1,3}"
    "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*"
    "|[" SPACE "]*[\\r\\n]+"
    "|[" SPACE "]+(?![^" SPACE "])"
    "|[" SPACE "]+";

static void *regex_alloc(size_t n, void *unused) {
    (void)unused;
    void *p;
    return neap_mem_alloc(n, &p) == NEAP_OK ? p : NULL;
}

static void regex_free(void *p, void *unused) {
    (void)unused;
    neap_mem_free(p);
}

neap_status neap_split_compile(neap_tokenizer *t) {
    int error = 0;
    PCRE2_SIZE where = 0;
    pcre2_general_context *general = pcre2_general_context_create(regex_alloc, regex_free, NULL);
    NEAP_CHECK(general != NULL, NEAP_NO_MEMORY, "no memory for the split pattern");
    pcre2_compile_context *context = pcre2_compile_context_create(general);
    pcre2_code *code = NULL;
    if (context != NULL)
        code = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1,
                             PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &where, context);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    NEAP_CHECK(code != NULL, error == PCRE2_ERROR_HEAP_FAILED || context == NULL ? NEAP_NO_MEMORY : NEAP_UNSUPPORTED,
               "PCRE2 does not take the split pattern (error %d at %zu); version 10.40 or newer is needed", error,
               where);
    /* Without JIT (no executable memory allowed) pcre2_match interprets: slower, the same result. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    t->split = code;
    return NEAP_OK;
}

void neap_split_free(neap_tokenizer *t) {
    pcre2_code_free((pcre2_code *)t->split);
    t->split = NULL;
}

neap_status neap_encoder_init(neap_encoder *e, const neap_tokenizer *t) {
    *e = (neap_encoder){.t = t};
    e->match = pcre2_match_data_create_from_pattern((const pcre2_code *)t->split, NULL);
    NEAP_CHECK(e->match != NULL, NEAP_NO_MEMORY, "no memory to match the split pattern");
    return NEAP_OK;
}

void neap_encoder_free(neap_encoder *e) {
    pcre2_match_data_free((pcre2_match_data *)e->match);
    neap_bpe_free(&e->bpe);
    neap_mem_free(e->repaired);
    neap_mem_free(e->shadow);
    *e = (neap_encoder){0};
}

/* Length of the piece at `from`. */
static neap_status next_piece(neap_encoder *e, const char *text, size_t n, size_t from, size_t *length) {
    const pcre2_code *code = (const pcre2_code *)e->t->split;
    pcre2_match_data *match = (pcre2_match_data *)e->match;
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, match, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, NULL);
    NEAP_CHECK(rc > 0, rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? NEAP_NO_MEMORY : NEAP_INTERNAL,
               "PCRE2 cannot split the text at byte %zu (error %d)", from, rc);
    const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(match);
    NEAP_CHECK(ovector[1] > from, NEAP_INTERNAL, "the split pattern matched nothing at byte %zu", from);
    *length = ovector[1] - from;
    return NEAP_OK;
}

/* A text and its shadow (unicode_new.h): the shadow is split, the text is encoded. Often the same. */
typedef struct view {
    const char *text, *shadow;
} view;

static neap_status encode_plain(neap_encoder *e, view v, size_t from, size_t to, neap_token_sink *out) {
    const char *text = v.text + from;
    size_t n = to - from;
    for (size_t at = 0; at < n;) {
        size_t length = 0;
        NEAP_TRY(next_piece(e, v.shadow + from, n, at, &length));
        NEAP_TRY(neap_bpe_piece(&e->bpe, &e->t->vocab, text + at, length, out));
        at += length;
    }
    return NEAP_OK;
}

/* ------------------------------------------------------------- special tokens ---------------- */

static int compare_prefix(const neap_tokenizer *t, int32_t slot, size_t depth, unsigned char c) {
    uint32_t start = t->slot_start[slot], len = t->slot_start[slot + 1] - start;
    if (depth >= len) return -1; /* a shorter spelling sorts first */
    return (int)(unsigned char)t->slot_text[start + depth] - (int)c;
}

/* The sorted spellings that share the first `depth` bytes with p are [lo, hi); each further byte narrows it. */
int32_t neap_special_match(const neap_tokenizer *t, const char *p, size_t n) {
    if (n == 0 || !t->slot_first[(unsigned char)p[0]]) return -1;
    size_t lo = 0, hi = (size_t)t->n_slots;
    int32_t best = -1;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        unsigned char c = (unsigned char)p[depth];
        size_t a = lo, b = hi;
        while (a < b) { /* first spelling whose byte is >= c */
            size_t m = a + (b - a) / 2;
            if (compare_prefix(t, t->slot_sorted[m], depth, c) < 0)
                a = m + 1;
            else
                b = m;
        }
        lo = a;
        b = hi;
        while (a < b) { /* first spelling whose byte is > c */
            size_t m = a + (b - a) / 2;
            if (compare_prefix(t, t->slot_sorted[m], depth, c) <= 0)
                a = m + 1;
            else
                b = m;
        }
        hi = a;
        if (lo == hi) break;
        int32_t slot = t->slot_sorted[lo];
        if (t->slot_start[slot + 1] - t->slot_start[slot] == depth + 1) best = slot;
    }
    return best;
}

int32_t neap_special_find(const neap_tokenizer *t, const char *spelling, size_t n) {
    int32_t slot = neap_special_match(t, spelling, n);
    return slot >= 0 && t->slot_start[slot + 1] - t->slot_start[slot] == n ? slot : -1;
}

static neap_status encode_chunk(neap_encoder *e, view v, size_t from, size_t to, uint32_t flags, neap_token_sink *out) {
    if (!(flags & NEAP_TOKENIZE_SPECIAL)) return encode_plain(e, v, from, to, out);
    const neap_tokenizer *t = e->t;
    for (size_t at = from; at < to;) {
        int32_t slot = neap_special_match(t, v.text + at, to - at);
        if (slot < 0) {
            at++;
            continue;
        }
        NEAP_TRY(encode_plain(e, v, from, at, out));
        neap_token_put(out, t->vocab.n + slot);
        at += t->slot_start[slot + 1] - t->slot_start[slot];
        from = at;
    }
    return encode_plain(e, v, from, to, out);
}

/* ------------------------------------------------------------- chunks ------------------------ */

static neap_status encode_valid(neap_encoder *e, view v, size_t n, uint32_t flags, neap_token_sink *out) {
    size_t from = 0, chars = 0, run = 0;
    bool run_is_space = false;
    for (size_t at = 0; at < n;) {
        size_t bytes;
        bool space = neap_is_space(neap_utf8_decode(v.text + at, &bytes));
        bool cut = false;
        if (chars == CHUNK_CHARS) {
            cut = true;
            chars = 0;
            run = 0;
        }
        if (run == 0 || space != run_is_space) {
            run = 1;
            run_is_space = space;
        } else if (++run > RUN_CHARS) {
            cut = true;
            run = 1;
        }
        if (cut) {
            NEAP_TRY(encode_chunk(e, v, from, at, flags, out));
            from = at;
        }
        chars++;
        at += bytes;
    }
    return encode_chunk(e, v, from, n, flags, out);
}

static neap_status reserve(char **buffer, size_t *capacity, size_t bytes) {
    if (bytes <= *capacity) return NEAP_OK;
    neap_mem_free(*buffer);
    *buffer = NULL;
    *capacity = 0;
    NEAP_TRY(neap_mem_alloc(bytes, (void **)buffer));
    *capacity = bytes;
    return NEAP_OK;
}

neap_status neap_encode_text(neap_encoder *e, const char *text, size_t n, uint32_t flags, neap_token_sink *out) {
    NEAP_CHECK(n <= INT32_MAX / 4, NEAP_LIMIT, "a text of %zu bytes is longer than %d", n, INT32_MAX / 4);
    if (n == 0) return NEAP_OK;
    if (neap_utf8_valid(text, n) < n) {
        size_t bytes = neap_utf8_repair(text, n, NULL);
        NEAP_TRY(reserve(&e->repaired, &e->repaired_bytes, bytes));
        (void)neap_utf8_repair(text, n, e->repaired);
        text = e->repaired;
        n = bytes;
    }
    view v = {text, text};
    if (neap_unicode_has_new(text, n)) {
        NEAP_TRY(reserve(&e->shadow, &e->shadow_bytes, n));
        neap_unicode_shadow(text, n, e->shadow);
        v.shadow = e->shadow;
    }
    return encode_valid(e, v, n, flags, out);
}

/* ------------------------------------------------------------- public calls ------------------ */

int32_t neap_tokenizer_vocab(const neap_tokenizer *t) { return t == NULL ? 0 : t->vocab.n + t->n_slots; }

int32_t neap_tokenizer_base(const neap_tokenizer *t) { return t->vocab.n; }

neap_status neap_tokenize(const neap_tokenizer *t, const char *text, size_t text_bytes, uint32_t flags, int32_t *tokens,
                          size_t capacity, size_t *n_tokens) {
    NEAP_CHECK(t && n_tokens && (text || text_bytes == 0) && (tokens || capacity == 0), NEAP_INVALID_ARGUMENT,
               "neap_tokenize: a required argument is NULL");
    NEAP_CHECK((flags & ~NEAP_TOKENIZE_SPECIAL) == 0, NEAP_INVALID_ARGUMENT, "neap_tokenize: unknown flags 0x%x",
               flags);
    neap_encoder e;
    neap_token_sink out = {.tokens = tokens, .capacity = capacity};
    *n_tokens = 0;
    NEAP_TRY(neap_encoder_init(&e, t));
    neap_status status = neap_encode_text(&e, text, text_bytes, flags, &out);
    neap_encoder_free(&e);
    NEAP_TRY(status);
    *n_tokens = out.n;
    NEAP_CHECK(out.n <= capacity, NEAP_TOO_SMALL, "neap_tokenize: %zu tokens do not fit %zu", out.n, capacity);
    return NEAP_OK;
}

neap_status neap_token_bytes(const neap_tokenizer *t, int32_t token, const char **bytes, size_t *n_bytes,
                             int *is_special) {
    NEAP_CHECK(t && bytes && n_bytes, NEAP_INVALID_ARGUMENT, "neap_token_bytes: a required argument is NULL");
    NEAP_CHECK(token >= 0 && token < neap_tokenizer_vocab(t), NEAP_INVALID_ARGUMENT, "token %d is outside 0 .. %d",
               token, neap_tokenizer_vocab(t) - 1);
    bool special = token >= t->vocab.n;
    const uint32_t *start = special ? t->slot_start + (token - t->vocab.n) : t->vocab.start + token;
    *bytes = (special ? t->slot_text : t->vocab.bytes) + start[0];
    *n_bytes = start[1] - start[0];
    if (is_special) *is_special = special;
    return NEAP_OK;
}

neap_status neap_detokenize(const neap_tokenizer *t, const int32_t *tokens, size_t n_tokens, uint32_t flags, char *text,
                            size_t capacity, size_t *needed) {
    NEAP_CHECK(t && needed && (tokens || n_tokens == 0) && (text || capacity == 0), NEAP_INVALID_ARGUMENT,
               "neap_detokenize: a required argument is NULL");
    NEAP_CHECK((flags & ~NEAP_DETOKENIZE_SPECIAL) == 0, NEAP_INVALID_ARGUMENT, "neap_detokenize: unknown flags 0x%x",
               flags);
    /* The bytes go through the hold-back in small blocks; what fits is copied, all is counted. */
    neap_utf8 hold = {0};
    char block[3 * (256 + 4)];
    size_t total = 0;
    *needed = 0;
    for (size_t i = 0; i <= n_tokens; i++) {
        const char *bytes = NULL;
        size_t n = 0;
        int special = 0;
        if (i < n_tokens) NEAP_TRY(neap_token_bytes(t, tokens[i], &bytes, &n, &special));
        if (special && !(flags & NEAP_DETOKENIZE_SPECIAL)) continue;
        do {
            size_t take = n < 256 ? n : 256;
            size_t w = i < n_tokens ? neap_utf8_push(&hold, bytes, take, block) : neap_utf8_flush(&hold, block);
            if (total < capacity) memcpy(text + total, block, w < capacity - total ? w : capacity - total);
            total += w;
            n -= take;
            if (bytes) bytes += take;
        } while (n > 0);
    }
    *needed = total;
    NEAP_CHECK(total <= capacity, NEAP_TOO_SMALL, "neap_detokenize: %zu bytes do not fit %zu", total, capacity);
    return NEAP_OK;
}

neap_status neap_special_token(const neap_tokenizer *t, const char *spelling, int32_t *token) {
    NEAP_CHECK(t && spelling && token, NEAP_INVALID_ARGUMENT, "neap_special_token: a required argument is NULL");
    int32_t slot = neap_special_find(t, spelling, strlen(spelling));
    NEAP_CHECK(slot >= 0, NEAP_NOT_FOUND, "no special token is spelled %s", spelling);
    *token = t->vocab.n + slot;
    return NEAP_OK;
}

neap_status neap_stop_tokens(const neap_tokenizer *t, int32_t *tokens, size_t capacity, size_t *n_tokens) {
    NEAP_CHECK(t && n_tokens && (tokens || capacity == 0), NEAP_INVALID_ARGUMENT,
               "neap_stop_tokens: a required argument is NULL");
    for (size_t i = 0; i < t->n_stop && i < capacity; i++) tokens[i] = t->stop[i];
    *n_tokens = t->n_stop;
    NEAP_CHECK(t->n_stop <= capacity, NEAP_TOO_SMALL, "neap_stop_tokens: %zu tokens do not fit %zu", t->n_stop,
               capacity);
    return NEAP_OK;
}

bool neap_token_is_unsampled(const neap_tokenizer *t, int32_t token) {
    if (token < 0 || token >= neap_tokenizer_vocab(t)) return true;
    if (token < t->vocab.n) return false;
    int32_t slot = token - t->vocab.n;
    if (!t->slot_named[slot]) return true;
    const char *text = t->slot_text + t->slot_start[slot];
    size_t n = t->slot_start[slot + 1] - t->slot_start[slot];
    static const char *const never[] = {"[PAD]", "[UNK]", "[BOS]"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        if (strlen(never[i]) == n && memcmp(never[i], text, n) == 0) return true;
    return false;
}

const char *neap_chat_format(const neap_tokenizer *t) {
    if (t == NULL || t->chat == NEAP_CHAT_NONE) return "none";
    return t->chat == NEAP_CHAT_XTML ? "xtml" : "markers";
}
