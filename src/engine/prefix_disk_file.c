/* One file of the prefix cache on disk: a link of a chain, written and read through the store.
 *
 * The store (format/store.h) sees to owners, links, temporaries, names that appear when the bytes are on disk,
 * checksums and the version of the library. Here is what such a file must say beyond that: which model and space it is
 * of, which tokens, and that its sizes are those of this engine's caches. What is asked of the content: checksums, and
 * a state without non-finite numbers.
 *
 * Called by prefix_disk.c and prefix_disk_work.c. Owns nothing. */
#include <string.h>

#include "engine/prefix_disk_inner.h"

/* ---- names and sizes ---- */

static const char HEX[] = "0123456789abcdef";

void neap_prefix_file_name(const uint8_t key[NEAP_PREFIX_KEY], char name[NEAP_PREFIX_NAME]) {
    const char *suffix = neap_store_suffix(NEAP_STORE_PREFIX);
    for (int i = 0; i < NEAP_PREFIX_KEY; i++) {
        name[2 * i] = HEX[key[i] >> 4];
        name[2 * i + 1] = HEX[key[i] & 15];
    }
    memcpy(name + 2 * NEAP_PREFIX_KEY, suffix, strlen(suffix) + 1);
}

bool neap_prefix_file_key(const char *name, uint8_t key[NEAP_PREFIX_KEY]) {
    for (int i = 0; i < 2 * NEAP_PREFIX_KEY; i++) {
        const char *digit = name[i] != 0 ? strchr(HEX, name[i]) : NULL;
        if (digit == NULL) return false;
        int value = (int)(digit - HEX);
        key[i / 2] = (uint8_t)(i % 2 == 0 ? value << 4 : key[i / 2] | value);
    }
    return strcmp(name + 2 * NEAP_PREFIX_KEY, neap_store_suffix(NEAP_STORE_PREFIX)) == 0;
}

static uint64_t pieces(uint64_t bytes) { return (bytes + NEAP_STORE_CHUNK - 1) / NEAP_STORE_CHUNK; }

static uint64_t notes_bytes(int64_t n_tokens) {
    return sizeof(neap_prefix_notes) + (uint64_t)n_tokens * sizeof(int32_t);
}

static uint64_t chunks_of(const neap_prefix_shape *s, const neap_prefix_link *l) {
    return (uint64_t)(neap_prefix_n_pages(l->n) - neap_prefix_first_page(l)) * pieces(s->page_bytes) +
           pieces(s->state_bytes);
}

bool neap_prefix_file_room(const neap_prefix_shape *s, uint64_t *room, uint64_t *notes, uint64_t *n_chunks) {
    const uint64_t most = (uint64_t)1 << 40;
    if (s->n_max < 1 || s->n_max > INT32_MAX - NEAP_PAGE_ROWS || s->page_bytes > most || s->state_bytes > most)
        return false;
    *notes = notes_bytes(s->n_max);
    *n_chunks = chunks_of(s, &(neap_prefix_link){.n = s->n_max});
    *room = neap_store_room_bytes(*notes, *n_chunks);
    return true;
}

uint64_t neap_prefix_file_bytes(const neap_prefix_shape *s, const neap_prefix_link *l) {
    uint64_t n_pages = (uint64_t)(neap_prefix_n_pages(l->n) - neap_prefix_first_page(l));
    return neap_store_room_bytes(notes_bytes(l->n - l->n_before), chunks_of(s, l)) + n_pages * s->page_bytes +
           s->state_bytes;
}

/* ---- reading ---- */

static bool is_zero(const uint8_t key[NEAP_PREFIX_KEY]) {
    static const uint8_t zeros[NEAP_PREFIX_KEY];
    return memcmp(key, zeros, NEAP_PREFIX_KEY) == 0;
}

/* Each page and the state as their sizes say, cut as the writer cuts them. */
static bool has_chunks(const neap_store_reader *r, const neap_prefix_shape *s, const neap_prefix_link *l) {
    int64_t at = 0, n = neap_store_reader_chunks(r);
    if ((uint64_t)n != chunks_of(s, l)) return false;
    int32_t n_pages = neap_prefix_n_pages(l->n) - neap_prefix_first_page(l);
    for (int32_t i = 0; i <= n_pages; i++) {
        uint64_t left = i < n_pages ? s->page_bytes : s->state_bytes;
        while (left > 0) {
            uint64_t take = left < NEAP_STORE_CHUNK ? left : NEAP_STORE_CHUNK;
            if (neap_store_reader_chunk_bytes(r, at++) != take) return false;
            left -= take;
        }
    }
    return at == n;
}

static neap_status check(const neap_store_reader *r, neap_prefix_link *l, const neap_prefix_shape *s,
                         const uint8_t key[NEAP_PREFIX_KEY], const char *name) {
    const neap_store_about *about = neap_store_reader_about(r);
    neap_prefix_notes notes;
    NEAP_CHECK(about->kind == NEAP_STORE_PREFIX && about->notes_bytes >= sizeof notes, NEAP_BAD_FILE,
               "%s: not a prefix, although it is called so", name);
    NEAP_CHECK(memcmp(about->key + NEAP_PREFIX_KEY, key, NEAP_PREFIX_KEY) == 0, NEAP_BAD_FILE,
               "%s: its name is of another prefix", name);
    NEAP_CHECK(memcmp(about->key, s->model, NEAP_PREFIX_KEY) == 0, NEAP_UNSUPPORTED, "%s: of another model", name);
    memcpy(&notes, about->notes, sizeof notes);
    NEAP_CHECK(notes.format == NEAP_PREFIX_FORMAT, NEAP_UNSUPPORTED, "%s: of format %u, not %d", name, notes.format,
               NEAP_PREFIX_FORMAT);
    NEAP_CHECK(notes.page_bytes == s->page_bytes && notes.state_bytes == s->state_bytes, NEAP_UNSUPPORTED,
               "%s: of caches of another size", name);
    NEAP_CHECK(notes.n_before >= 0 && notes.n_before < notes.n && notes.n <= INT32_MAX &&
                   about->notes_bytes == notes_bytes(notes.n - notes.n_before) &&
                   is_zero(notes.before) == (notes.n_before == 0),
               NEAP_BAD_FILE, "%s: tokens %lld to %lld in %zu bytes contradict each other", name,
               (long long)notes.n_before, (long long)notes.n, about->notes_bytes);
    NEAP_CHECK(notes.n <= s->n_max, NEAP_UNSUPPORTED, "%s: %lld tokens, the context has %lld", name, (long long)notes.n,
               (long long)s->n_max);
    *l = (neap_prefix_link){.n_before = notes.n_before,
                            .n = notes.n,
                            .tokens = (const int32_t *)(const void *)((const char *)about->notes + sizeof notes)};
    memcpy(l->key, key, NEAP_PREFIX_KEY);
    memcpy(l->space, notes.space, NEAP_PREFIX_KEY);
    memcpy(l->before, notes.before, NEAP_PREFIX_KEY);
    NEAP_CHECK(has_chunks(r, s, l), NEAP_BAD_FILE, "%s: its content is not as large as its tokens say", name);
    for (int64_t i = 0; i < l->n - l->n_before; i++)
        NEAP_CHECK(l->tokens[i] >= 0, NEAP_BAD_FILE, "%s: token %d", name, l->tokens[i]);
    return NEAP_OK;
}

neap_status neap_prefix_file_open(neap_store_reader **r, neap_prefix_link *link, const neap_store *store,
                                  const neap_prefix_shape *s, const uint8_t key[NEAP_PREFIX_KEY]) {
    char name[NEAP_PREFIX_NAME];
    neap_prefix_file_name(key, name);
    neap_status status = neap_store_reader_open(r, store, name);
    if (status == NEAP_LIMIT) return neap_fail_prefix(NEAP_UNSUPPORTED, "longer than any sequence here");
    if (status != NEAP_OK) return status;
    status = check(*r, link, s, key, name);
    if (status == NEAP_OK) return NEAP_OK;
    neap_store_reader_close(*r);
    *r = NULL;
    return status;
}

static neap_status read_pieces(const neap_store_reader *r, uint64_t chunk, uint64_t bytes, uint8_t *out) {
    for (uint64_t i = 0; i < pieces(bytes); i++)
        NEAP_TRY(neap_store_reader_chunk(r, (int64_t)(chunk + i), out + i * NEAP_STORE_CHUNK));
    return NEAP_OK;
}

neap_status neap_prefix_file_page(const neap_store_reader *r, const neap_prefix_shape *s, const neap_prefix_link *link,
                                  int32_t page, uint8_t *out) {
    uint64_t i = (uint64_t)(page - neap_prefix_first_page(link));
    return read_pieces(r, i * pieces(s->page_bytes), s->page_bytes, out);
}

bool neap_prefix_is_finite(const uint8_t *state, uint64_t bytes) {
    uint32_t word;
    bool is_finite = true;
    for (uint64_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, state + i, sizeof word);
        is_finite &= (word & 0x7f800000u) != 0x7f800000u;
    }
    return is_finite;
}

neap_status neap_prefix_file_state(const neap_store_reader *r, const neap_prefix_shape *s, const neap_prefix_link *link,
                                   uint8_t *out) {
    char name[NEAP_PREFIX_NAME];
    NEAP_TRY(read_pieces(r, chunks_of(s, link) - pieces(s->state_bytes), s->state_bytes, out));
    neap_prefix_file_name(link->key, name);
    NEAP_CHECK(neap_prefix_is_finite(out, s->state_bytes), NEAP_BAD_FILE, "%s: its state has non-finite numbers", name);
    return NEAP_OK;
}

/* ---- writing ---- */

static void cut(uint32_t *sizes, int64_t *n, uint64_t bytes) {
    for (; bytes > NEAP_STORE_CHUNK; bytes -= NEAP_STORE_CHUNK) sizes[(*n)++] = NEAP_STORE_CHUNK;
    if (bytes > 0) sizes[(*n)++] = (uint32_t)bytes;
}

static neap_status write_pieces(neap_store_writer *w, int64_t *chunk, uint64_t bytes, const uint8_t *data) {
    for (uint64_t i = 0; i < pieces(bytes); i++)
        NEAP_TRY(neap_store_writer_chunk(w, (*chunk)++, data + i * NEAP_STORE_CHUNK));
    return NEAP_OK;
}

static neap_status write_content(neap_store_writer *w, const neap_prefix_shape *s, const neap_prefix_link *l,
                                 const neap_prefix_source *from) {
    int64_t chunk = 0;
    for (int32_t i = neap_prefix_first_page(l); i < neap_prefix_n_pages(l->n); i++) {
        const uint8_t *page = from->page(from->user, i);
        NEAP_CHECK(page != NULL, NEAP_CANCELLED, "stopped");
        NEAP_TRY(write_pieces(w, &chunk, s->page_bytes, page));
    }
    return write_pieces(w, &chunk, s->state_bytes, from->state);
}

neap_status neap_prefix_file_write(const neap_store *store, const neap_prefix_shape *s, const neap_prefix_link *link,
                                   const neap_prefix_source *from) {
    char name[NEAP_PREFIX_NAME];
    neap_store_writer *w = NULL;
    int64_t n_chunks = 0, n_tokens = link->n - link->n_before;
    neap_prefix_file_name(link->key, name);
    *from->notes = (neap_prefix_notes){.format = NEAP_PREFIX_FORMAT,
                                       .n_before = link->n_before,
                                       .n = link->n,
                                       .page_bytes = s->page_bytes,
                                       .state_bytes = s->state_bytes};
    memcpy(from->notes->space, link->space, NEAP_PREFIX_KEY);
    memcpy(from->notes->before, link->before, NEAP_PREFIX_KEY);
    memcpy(from->notes + 1, link->tokens, (size_t)n_tokens * sizeof(int32_t));
    for (int32_t i = neap_prefix_first_page(link); i < neap_prefix_n_pages(link->n); i++)
        cut(from->sizes, &n_chunks, s->page_bytes);
    cut(from->sizes, &n_chunks, s->state_bytes);
    neap_store_about about = {.kind = NEAP_STORE_PREFIX,
                              .origin = "prefix cache",
                              .notes = from->notes,
                              .notes_bytes = (size_t)notes_bytes(n_tokens)};
    memcpy(about.key, s->model, NEAP_PREFIX_KEY);
    memcpy(about.key + NEAP_PREFIX_KEY, link->key, NEAP_PREFIX_KEY);
    NEAP_TRY(neap_store_writer_open(&w, store, name, &about, from->sizes, n_chunks));
    neap_status status = write_content(w, s, link, from);
    if (status == NEAP_OK) return neap_store_writer_commit(w, from->notes, true);
    neap_store_writer_discard(w);
    return status;
}
