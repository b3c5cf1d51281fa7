/* tiktoken.model: one token per line, base64(bytes) SPACE rank; rank = id.
 *
 * Strict: every line is well-formed base64 (canonical, padded) and a plain decimal rank; ranks are exactly
 * 0 .. n-1; no token is empty, longer than 4 KiB or given twice; all 256 single bytes exist. The public
 * reader accepts several of these silently and fails at use; here each is an error with its line. CR LF and
 * blank lines are accepted.
 *
 * Lookup is a hash table of byte strings with a polynomial hash over Z/2^64, h(s) = sum (s_i + 1) f^(n-1-i).
 * The factor f is random, so a file cannot be built to make the table slow.
 *
 * Called by tokenizer.c. Owns the token bytes and the table.
 * Source: tokenizer and chat notes, section 1 (vocabulary file). */
#include "format/vocab.h"

#include <string.h>
#include <sys/random.h>

#include "base/arena.h"

typedef struct line_tokens {
    char *bytes;     /* decoded, in file order */
    uint32_t *start; /* [n + 1] */
    int32_t *rank;   /* [n] */
    uint32_t *line;  /* [n], from 1 */
    uint32_t *order; /* [n]: rank -> entry + 1 */
    size_t n;
} line_tokens;

static void lines_free(line_tokens *l) {
    neap_mem_free(l->bytes);
    neap_mem_free(l->start);
    neap_mem_free(l->rank);
    neap_mem_free(l->line);
    neap_mem_free(l->order);
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    if (c == '/') return 63;
    return -1;
}

/* Decodes n base64 characters; returns NULL or what is wrong. */
static const char *base64_decode(const char *s, size_t n, char *out, size_t *out_bytes) {
    if (n == 0) return "the token is missing";
    if (n % 4 != 0) return "the base64 text is not a multiple of 4 characters";
    size_t pad = 0, w = 0;
    if (s[n - 1] == '=') pad = s[n - 2] == '=' ? 2 : 1;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        size_t take = i + 4 == n ? 4 - pad : 4;
        for (size_t k = 0; k < 4; k++) {
            int value = k < take ? base64_value(s[i + k]) : 0;
            if (value < 0) return "not base64";
            bits = bits << 6 | (uint32_t)value;
        }
        if ((take == 3 && (bits & 0xFF)) || (take == 2 && (bits & 0xFFFF))) return "not canonical base64";
        out[w++] = (char)(bits >> 16);
        if (take > 2) out[w++] = (char)(bits >> 8 & 0xFF);
        if (take > 3) out[w++] = (char)(bits & 0xFF);
    }
    *out_bytes = w;
    return NULL;
}

static const char *rank_parse(const char *s, size_t n, int32_t *rank) {
    if (n == 0) return "the rank is missing";
    if (s[0] == '0' && n > 1) return "the rank has a leading zero";
    int64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return "the rank is not a plain decimal number";
        value = value * 10 + (s[i] - '0');
        if (value > INT32_MAX - 1) return "the rank is larger than 2147483646";
    }
    *rank = (int32_t)value;
    return NULL;
}

static neap_status lines_parse(line_tokens *l, const char *text, size_t n, uint32_t *line_count) {
    size_t pos = 0, w = 0;
    uint32_t line = 0;
    while (pos < n) {
        line++;
        const char *s = text + pos, *nl = memchr(s, '\n', n - pos);
        size_t len = nl ? (size_t)(nl - s) : n - pos;
        pos += len + (nl ? 1 : 0);
        if (len > 0 && s[len - 1] == '\r') len--;
        if (len == 0) continue;
        const char *space = memchr(s, ' ', len), *wrong = NULL;
        NEAP_CHECK(space != NULL, NEAP_BAD_FILE, "line %u: no space between token and rank", line);
        size_t b64 = (size_t)(space - s), bytes = 0;
        NEAP_CHECK(b64 <= (NEAP_TOKEN_BYTES_MAX + 2) / 3 * 4, NEAP_LIMIT, "line %u: the token is longer than %d bytes",
                   line, NEAP_TOKEN_BYTES_MAX);
        wrong = base64_decode(s, b64, l->bytes + w, &bytes);
        NEAP_CHECK(wrong == NULL, NEAP_BAD_FILE, "line %u: %s", line, wrong);
        NEAP_CHECK(bytes <= NEAP_TOKEN_BYTES_MAX, NEAP_LIMIT, "line %u: the token is longer than %d bytes", line,
                   NEAP_TOKEN_BYTES_MAX);
        wrong = rank_parse(space + 1, len - b64 - 1, &l->rank[l->n]);
        NEAP_CHECK(wrong == NULL, NEAP_BAD_FILE, "line %u: %s", line, wrong);
        l->line[l->n] = line;
        l->start[l->n] = (uint32_t)w;
        w += bytes;
        l->n++;
        l->start[l->n] = (uint32_t)w;
    }
    *line_count = line;
    return NEAP_OK;
}

/* Ranks must be a permutation of 0 .. n-1. */
static neap_status lines_order(line_tokens *l) {
    for (size_t i = 0; i < l->n; i++) {
        size_t r = (size_t)l->rank[i];
        if (r >= l->n) continue;
        NEAP_CHECK(l->order[r] == 0, NEAP_BAD_FILE, "line %u: rank %zu was given in line %u already", l->line[i], r,
                   l->line[l->order[r] - 1]);
        l->order[r] = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < l->n; i++) {
        size_t r = (size_t)l->rank[i], gap = 0;
        if (r < l->n) continue;
        while (l->order[gap] != 0) gap++; /* exists: at least one rank lies outside */
        NEAP_FAIL(NEAP_BAD_FILE, "line %u: rank %zu of %zu tokens leaves a gap: rank %zu is missing", l->line[i], r,
                  l->n, gap);
    }
    return NEAP_OK;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h;
}

uint64_t neap_vocab_hash(const neap_vocab *v, const char *bytes, size_t n) {
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) h = h * v->factor + (unsigned char)bytes[i] + 1;
    return h;
}

int32_t neap_vocab_find(const neap_vocab *v, const char *bytes, size_t n, uint64_t hash) {
    if (n == 0 || n > v->token_bytes_max) return -1;
    uint64_t h = mix(hash);
    uint32_t tag = (uint32_t)(h >> 32), i = (uint32_t)h & v->slot_mask;
    for (; v->slots[i].id1 != 0; i = (i + 1) & v->slot_mask) {
        if (v->slots[i].tag != tag) continue;
        int32_t id = v->slots[i].id1 - 1;
        uint32_t start = v->start[id];
        if (v->start[id + 1] - start == n && memcmp(v->bytes + start, bytes, n) == 0) return id;
    }
    return -1;
}

static void table_insert(neap_vocab *v, int32_t id, uint64_t hash) {
    uint64_t h = mix(hash);
    uint32_t i = (uint32_t)h & v->slot_mask;
    while (v->slots[i].id1 != 0) i = (i + 1) & v->slot_mask;
    v->slots[i].tag = (uint32_t)(h >> 32);
    v->slots[i].id1 = id + 1;
}

static neap_status table_build(neap_vocab *v, const line_tokens *l) {
    size_t n_slots = 512;
    while (n_slots < (size_t)v->n * 2) n_slots *= 2;
    NEAP_TRY(neap_mem_alloc(n_slots * sizeof *v->slots, (void **)&v->slots));
    v->slot_mask = (uint32_t)(n_slots - 1);
    if (getrandom(&v->factor, sizeof v->factor, GRND_NONBLOCK) != (ssize_t)sizeof v->factor)
        v->factor = 0x9e3779b97f4a7c15u; /* no entropy yet (early boot): still correct, only predictable */
    v->factor |= 1;
    NEAP_TRY(neap_mem_alloc((v->token_bytes_max + (size_t)1) * sizeof *v->power, (void **)&v->power));
    v->power[0] = 1;
    for (uint32_t i = 1; i <= v->token_bytes_max; i++) v->power[i] = v->power[i - 1] * v->factor;
    for (int i = 0; i < 256; i++) v->byte_id[i] = -1;
    for (int32_t id = 0; id < v->n; id++) {
        const char *bytes = v->bytes + v->start[id];
        size_t len = v->start[id + 1] - v->start[id];
        uint64_t hash = neap_vocab_hash(v, bytes, len);
        int32_t other = neap_vocab_find(v, bytes, len, hash);
        if (other >= 0) {
            uint32_t a = l->line[l->order[other] - 1], b = l->line[l->order[id] - 1];
            NEAP_FAIL(NEAP_BAD_FILE, "line %u: the token was given in line %u already", a > b ? a : b, a > b ? b : a);
        }
        table_insert(v, id, hash);
        if (len == 1) v->byte_id[(unsigned char)bytes[0]] = id;
    }
    return NEAP_OK;
}

static neap_status vocab_fill(neap_vocab *v, line_tokens *l, const char *text, size_t n) {
    size_t lines_max = 1;
    uint32_t line_count = 0;
    for (size_t i = 0; i < n; i++) lines_max += text[i] == '\n';
    NEAP_TRY(neap_mem_alloc(n / 4 * 3 + 4, (void **)&l->bytes));
    NEAP_TRY(neap_mem_alloc((lines_max + 1) * sizeof *l->start, (void **)&l->start));
    NEAP_TRY(neap_mem_alloc(lines_max * sizeof *l->rank, (void **)&l->rank));
    NEAP_TRY(neap_mem_alloc(lines_max * sizeof *l->line, (void **)&l->line));
    NEAP_TRY(lines_parse(l, text, n, &line_count));
    NEAP_CHECK(l->n > 0, NEAP_BAD_FILE, "line 1: the file holds no tokens");
    NEAP_TRY(neap_mem_alloc(l->n * sizeof *l->order, (void **)&l->order));
    NEAP_TRY(lines_order(l));

    v->n = (int32_t)l->n;
    NEAP_TRY(neap_mem_alloc((size_t)l->start[l->n] + 1, (void **)&v->bytes));
    NEAP_TRY(neap_mem_alloc((l->n + 1) * sizeof *v->start, (void **)&v->start));
    uint32_t w = 0;
    for (size_t r = 0; r < l->n; r++) {
        uint32_t e = l->order[r] - 1, len = l->start[e + 1] - l->start[e];
        memcpy(v->bytes + w, l->bytes + l->start[e], len);
        v->start[r] = w;
        w += len;
        v->start[r + 1] = w;
        if (len > v->token_bytes_max) v->token_bytes_max = len;
    }
    NEAP_TRY(table_build(v, l));
    for (int i = 0; i < 256; i++)
        NEAP_CHECK(v->byte_id[i] >= 0, NEAP_BAD_FILE, "line %u: end of file, but no token is the single byte 0x%02X",
                   line_count, (unsigned)i);
    return NEAP_OK;
}

neap_status neap_vocab_parse(neap_vocab *v, const char *text, size_t n) {
    line_tokens l = {0};
    NEAP_CHECK(n <= UINT32_MAX / 2, NEAP_LIMIT, "line 1: the file is too large");
    neap_status status = vocab_fill(v, &l, text, n);
    lines_free(&l);
    if (status != NEAP_OK) neap_vocab_free(v);
    return status;
}

void neap_vocab_free(neap_vocab *v) {
    neap_mem_free(v->bytes);
    neap_mem_free(v->start);
    neap_mem_free(v->slots);
    neap_mem_free(v->power);
    *v = (neap_vocab){0};
}
