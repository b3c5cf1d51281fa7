/* Opening a tokenizer: the files of a model directory that concern text.
 *
 *   tiktoken.model          ranks (vocab.c)
 *   tokenizer_config.json   added_tokens_decoder: id -> spelling; gaps are <|reserved_token_ID|>
 *   config.json, generation_config.json   stop tokens (optional)
 *   encoding_texts.json or encoding_k3.py  fixed chat sentences (optional, chat_texts.c)
 *
 * Every id from the ranks' end on is special, named or not; there are 256 slots unless the table names more.
 * Ids come from the table, never from its order. The chat style follows from the special tokens that exist.
 * Nothing in the directory is executed. Owns the whole neap_tokenizer; const afterwards.
 * Source: tokenizer and chat notes, section 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "format/json.h"
#include "format/tokenizer_inner.h"
#include "format/utf8.h"

enum { PATH_BYTES = 4096 };
#define VOCAB_FILE_MAX (64u << 20)
#define CONFIG_FILE_MAX (16u << 20)
#define MODEL_CONFIG_MAX (1u << 20)

typedef struct named_slot {
    int32_t id;
    const char *text; /* borrowed from the document */
    size_t bytes;
} named_slot;

static neap_status file_path(char *out, const char *dir, const char *name) {
    int n = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    NEAP_CHECK(n > 0 && n < PATH_BYTES, NEAP_LIMIT, "the path of %s is longer than %d bytes", name, PATH_BYTES - 1);
    return NEAP_OK;
}

static neap_status load_vocab(neap_tokenizer *t, const char *dir) {
    char path[PATH_BYTES], *text = NULL;
    size_t n = 0;
    NEAP_TRY(file_path(path, dir, "tiktoken.model"));
    NEAP_TRY(neap_file_read(&text, &n, path, VOCAB_FILE_MAX));
    neap_status status = neap_vocab_parse(&t->vocab, text, n);
    neap_mem_free(text);
    if (status != NEAP_OK) return neap_fail_prefix(status, "%s", path);
    NEAP_CHECK(t->vocab.n <= INT32_MAX - NEAP_SPECIAL_SLOTS_MAX, NEAP_LIMIT, "%s: too many tokens", path);
    return NEAP_OK;
}

/* An id is a plain decimal number in [base, base + NEAP_SPECIAL_SLOTS_MAX). */
static neap_status parse_id(const char *key, int32_t base, int32_t *id) {
    int64_t value = 0;
    size_t n = strlen(key);
    bool plain = n > 0 && n <= 10 && !(key[0] == '0' && n > 1);
    for (size_t i = 0; plain && i < n; i++) {
        plain = key[i] >= '0' && key[i] <= '9';
        value = value * 10 + (key[i] - '0');
    }
    NEAP_CHECK(plain, NEAP_BAD_FILE, "added_tokens_decoder: \"%.40s\" is not a token id", key);
    NEAP_CHECK(value >= base, NEAP_BAD_FILE,
               "added_tokens_decoder.%s: the id collides with a rank of tiktoken.model (ids below %d)", key, base);
    NEAP_CHECK(value < (int64_t)base + NEAP_SPECIAL_SLOTS_MAX, NEAP_LIMIT,
               "added_tokens_decoder.%s: ids end at %d (%d slots after the ranks)", key,
               base + NEAP_SPECIAL_SLOTS_MAX - 1, NEAP_SPECIAL_SLOTS_MAX);
    *id = (int32_t)value;
    return NEAP_OK;
}

static neap_status read_table(const neap_json *table, int32_t base, named_slot *named, size_t *n_named) {
    const char *key;
    const neap_json *value;
    size_t n = 0;
    for (void *it = neap_json_iter(table, NULL, &key, &value); it != NULL;
         it = neap_json_iter(table, it, &key, &value)) {
        named_slot *s = &named[n++];
        NEAP_TRY(parse_id(key, base, &s->id));
        const neap_json *content = neap_json_get(value, "content");
        NEAP_CHECK(neap_json_type_of(content) == NEAP_JSON_STRING, NEAP_BAD_FILE,
                   "added_tokens_decoder.%s.content: must be a string", key);
        s->text = neap_json_string(content, &s->bytes);
        NEAP_CHECK(s->bytes > 0, NEAP_BAD_FILE, "added_tokens_decoder.%s.content: is empty", key);
        NEAP_CHECK(s->bytes <= NEAP_SPECIAL_BYTES_MAX, NEAP_LIMIT,
                   "added_tokens_decoder.%s.content: longer than %d bytes", key, NEAP_SPECIAL_BYTES_MAX);
    }
    *n_named = n;
    return NEAP_OK;
}

/* For qsort: slots by spelling. The tokenizer is passed beside the values because qsort has no context. */
typedef struct sort_entry {
    const char *text;
    size_t bytes;
    int32_t slot;
} sort_entry;

static int by_spelling(const void *pa, const void *pb) {
    const sort_entry *a = pa, *b = pb;
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = memcmp(a->text, b->text, n);
    if (order != 0) return order;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static neap_status sort_slots(neap_tokenizer *t) {
    sort_entry *e = NULL;
    size_t n = (size_t)t->n_slots;
    NEAP_TRY(neap_mem_alloc(n * sizeof *e, (void **)&e));
    for (size_t i = 0; i < n; i++)
        e[i] = (sort_entry){t->slot_text + t->slot_start[i], t->slot_start[i + 1] - t->slot_start[i], (int32_t)i};
    qsort(e, n, sizeof *e, by_spelling);
    neap_status status = NEAP_OK;
    for (size_t i = 0; i < n && status == NEAP_OK; i++) {
        t->slot_sorted[i] = e[i].slot;
        t->slot_first[(unsigned char)e[i].text[0]] = true;
        if (i > 0 && by_spelling(&e[i - 1], &e[i]) == 0)
            status = neap_fail(NEAP_BAD_FILE, "added_tokens_decoder: ids %d and %d have the same content",
                               t->vocab.n + e[i - 1].slot, t->vocab.n + e[i].slot);
    }
    neap_mem_free(e);
    return status;
}

static neap_status fill_slots(neap_tokenizer *t, const named_slot *named, size_t n_named) {
    int32_t base = t->vocab.n;
    size_t bytes = 0;
    t->n_slots = NEAP_SPECIAL_SLOTS;
    for (size_t i = 0; i < n_named; i++) {
        bytes += named[i].bytes;
        if (named[i].id - base >= t->n_slots) t->n_slots = named[i].id - base + 1;
    }
    size_t n = (size_t)t->n_slots;
    const named_slot **at = NULL;
    NEAP_TRY(neap_mem_alloc(bytes + n * 48, (void **)&t->slot_text));
    NEAP_TRY(neap_mem_alloc((n + 1) * sizeof *t->slot_start, (void **)&t->slot_start));
    NEAP_TRY(neap_mem_alloc(n * sizeof *t->slot_named, (void **)&t->slot_named));
    NEAP_TRY(neap_mem_alloc(n * sizeof *t->slot_sorted, (void **)&t->slot_sorted));
    NEAP_TRY(neap_mem_alloc(n * sizeof *at, (void **)&at));
    for (size_t i = 0; i < n_named; i++) at[named[i].id - base] = &named[i];
    uint32_t w = 0;
    for (size_t i = 0; i < n; i++) {
        t->slot_start[i] = w;
        t->slot_named[i] = at[i] != NULL;
        if (at[i] != NULL) {
            memcpy(t->slot_text + w, at[i]->text, at[i]->bytes);
            w += (uint32_t)at[i]->bytes;
        } else {
            w += (uint32_t)snprintf(t->slot_text + w, 48, "<|reserved_token_%d|>", base + (int32_t)i);
        }
    }
    t->slot_start[n] = w;
    neap_mem_free(at);
    return sort_slots(t);
}

static void add_stop(neap_tokenizer *t, int32_t token) {
    for (size_t i = 0; i < t->n_stop; i++)
        if (t->stop[i] == token) return;
    if (t->n_stop < NEAP_STOP_TOKENS_MAX) t->stop[t->n_stop++] = token;
}

static void add_stop_spelling(neap_tokenizer *t, const char *spelling, size_t n) {
    int32_t slot = neap_special_find(t, spelling, n);
    if (slot >= 0) add_stop(t, t->vocab.n + slot);
}

static neap_status add_stop_value(neap_tokenizer *t, const neap_json *value) {
    neap_json_type type = neap_json_type_of(value);
    if (type == NEAP_JSON_NULL) return NEAP_OK;
    NEAP_CHECK(type == NEAP_JSON_INT || type == NEAP_JSON_ARRAY, NEAP_BAD_FILE,
               "eos_token_id: must be an integer or a list of integers");
    size_t n = type == NEAP_JSON_ARRAY ? neap_json_size(value) : 1;
    NEAP_CHECK(n <= NEAP_STOP_TOKENS_MAX, NEAP_LIMIT, "eos_token_id: %zu ids, at most %d are taken", n,
               NEAP_STOP_TOKENS_MAX);
    for (size_t i = 0; i < n; i++) {
        const neap_json *item = type == NEAP_JSON_ARRAY ? neap_json_at(value, i) : value;
        NEAP_CHECK(neap_json_type_of(item) == NEAP_JSON_INT, NEAP_BAD_FILE, "eos_token_id: must hold integers only");
        int64_t id = neap_json_int(item);
        NEAP_CHECK(id >= 0 && id < neap_tokenizer_vocab(t), NEAP_BAD_FILE,
                   "eos_token_id: %lld is outside the tokenizer's ids 0 .. %d", (long long)id,
                   neap_tokenizer_vocab(t) - 1);
        add_stop(t, (int32_t)id);
    }
    return NEAP_OK;
}

/* A file that is absent changes nothing. */
static neap_status load_stop_file(neap_tokenizer *t, const char *dir, const char *name) {
    char path[PATH_BYTES];
    neap_json *doc = NULL;
    NEAP_TRY(file_path(path, dir, name));
    neap_status status = neap_json_load(&doc, path, MODEL_CONFIG_MAX);
    if (status == NEAP_NOT_FOUND) return NEAP_OK;
    NEAP_TRY(status);
    if (neap_json_type_of(doc) != NEAP_JSON_OBJECT) status = neap_fail(NEAP_BAD_FILE, "must be an object");
    if (status == NEAP_OK) status = add_stop_value(t, neap_json_get(doc, "eos_token_id"));
    if (status == NEAP_OK) status = add_stop_value(t, neap_json_get(neap_json_get(doc, "text_config"), "eos_token_id"));
    neap_json_free(doc);
    return status == NEAP_OK ? NEAP_OK : neap_fail_prefix(status, "%s", path);
}

static neap_status config_specials(neap_tokenizer *t, const neap_json *doc) {
    NEAP_CHECK(neap_json_type_of(doc) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "must be an object");
    const neap_json *table = neap_json_get(doc, "added_tokens_decoder");
    NEAP_CHECK(table == NULL || neap_json_type_of(table) == NEAP_JSON_OBJECT, NEAP_BAD_FILE,
               "added_tokens_decoder: must be an object");
    size_t n_named = neap_json_size(table);
    NEAP_CHECK(n_named <= NEAP_SPECIAL_SLOTS_MAX, NEAP_LIMIT, "added_tokens_decoder: %zu entries, at most %d are taken",
               n_named, NEAP_SPECIAL_SLOTS_MAX);
    named_slot *named = NULL;
    NEAP_TRY(neap_mem_alloc((n_named + 1) * sizeof *named, (void **)&named));
    neap_status status = table ? read_table(table, t->vocab.n, named, &n_named) : NEAP_OK;
    if (status == NEAP_OK) status = fill_slots(t, named, n_named);
    neap_mem_free(named);
    NEAP_TRY(status);
    /* eos_token is a spelling or {"content": spelling}. */
    const neap_json *eos = neap_json_get(doc, "eos_token");
    if (neap_json_type_of(eos) == NEAP_JSON_OBJECT) eos = neap_json_get(eos, "content");
    if (neap_json_type_of(eos) == NEAP_JSON_STRING) {
        size_t n;
        const char *spelling = neap_json_string(eos, &n);
        add_stop_spelling(t, spelling, n);
    }
    add_stop_spelling(t, "[EOS]", 5);
    return NEAP_OK;
}

static neap_status load_specials(neap_tokenizer *t, const char *dir) {
    char path[PATH_BYTES];
    neap_json *doc = NULL;
    NEAP_TRY(file_path(path, dir, "tokenizer_config.json"));
    NEAP_TRY(neap_json_load(&doc, path, CONFIG_FILE_MAX));
    neap_status status = config_specials(t, doc);
    neap_json_free(doc);
    return status == NEAP_OK ? NEAP_OK : neap_fail_prefix(status, "%s", path);
}

static neap_chat_style chat_style(const neap_tokenizer *t) {
    static const char *const xtml[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    static const char *const markers[] = {"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
                                          "<|im_end|>"};
    size_t n_xtml = 0, n_markers = 0;
    for (size_t i = 0; i < 4; i++) n_xtml += neap_special_find(t, xtml[i], strlen(xtml[i])) >= 0;
    for (size_t i = 0; i < 5; i++) n_markers += neap_special_find(t, markers[i], strlen(markers[i])) >= 0;
    if (n_xtml == 4) return NEAP_CHAT_XTML;
    return n_markers == 5 ? NEAP_CHAT_MARKERS : NEAP_CHAT_NONE;
}

static neap_status load_all(neap_tokenizer *t, const char *dir) {
    NEAP_TRY(load_vocab(t, dir));
    NEAP_TRY(load_specials(t, dir));
    NEAP_TRY(load_stop_file(t, dir, "config.json"));
    NEAP_TRY(load_stop_file(t, dir, "generation_config.json"));
    t->chat = chat_style(t);
    if (t->chat == NEAP_CHAT_XTML) NEAP_TRY(neap_chat_texts_load(&t->texts, dir));
    return neap_split_compile(t);
}

neap_status neap_tokenizer_open(neap_tokenizer **out, const char *dir) {
    NEAP_CHECK(out && dir, NEAP_INVALID_ARGUMENT, "neap_tokenizer_open: a required argument is NULL");
    *out = NULL;
    neap_tokenizer *t = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof *t, (void **)&t));
    neap_status status = neap_lazy_trie_create(&t->trie);
    if (status == NEAP_OK) status = load_all(t, dir);
    if (status != NEAP_OK) {
        neap_tokenizer_close(t);
        return status;
    }
    *out = t;
    return NEAP_OK;
}

void neap_tokenizer_close(neap_tokenizer *t) {
    if (t == NULL) return;
    neap_split_free(t);
    neap_vocab_free(&t->vocab);
    neap_mem_free(t->slot_text);
    neap_mem_free(t->slot_start);
    neap_mem_free(t->slot_named);
    neap_mem_free(t->slot_sorted);
    neap_chat_texts_free(&t->texts);
    neap_lazy_trie_destroy(t->trie);
    neap_mem_free(t);
}
