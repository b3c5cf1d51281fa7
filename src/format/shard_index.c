/* The shard index of a large checkpoint:
 *
 *   {"metadata": {"total_size": 1560860324864},
 *    "weight_map": {"model.norm.weight": "model-00001-of-00096.safetensors", ...}}
 *
 * Kimi K3 lists 497,220 tensors in 96 shards, so the text is pulled through the scanner and no tree is built. Checked
 * here: JSON, every key once, at least one tensor, shard names that cannot leave the directory (letters, digits,
 * '.', '_', '-'; no leading dot; ends in .safetensors), counts. Whether the shards agree is checkpoint.c's question.
 *
 * total_size is advice for download tools; it is only kept for a warning, but a value that is not a byte count is an
 * error. Other metadata and other top-level keys are skipped.
 */
#include "format/shard_index.h"

#include <string.h>

#include "base/arena.h"

enum { SCOPE_TENSOR, SCOPE_SHARD, SCOPE_TOP, SCOPE_METADATA, SCOPE_OTHER };
enum { INDEX_TENSORS_MAX = 1000000, FILE_NAME_MAX = 255 };

static neap_status add_key(neap_index *x, uint32_t scope, neap_text key, size_t at) {
    const neap_names_slot *old = NULL;
    NEAP_TRY(neap_names_add(&x->names, scope, key.p, key.n, 0, &old));
    NEAP_CHECK(!old, NEAP_BAD_FILE, "index, byte %zu: '%.*s' occurs twice", at, neap_text_shown(key), key.p);
    return NEAP_OK;
}

static bool is_plain_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

static bool is_shard_name(neap_text t) {
    static const char suffix[] = ".safetensors";
    size_t n = sizeof suffix - 1;
    if (t.n <= n || t.n > FILE_NAME_MAX || t.p[0] == '.' || memcmp(t.p + t.n - n, suffix, n) != 0) return false;
    for (size_t i = 0; i < t.n; i++) {
        if (!is_plain_byte(t.p[i])) return false;
    }
    return true;
}

static neap_status shard_number(neap_index *x, neap_text tensor, neap_text shard, uint32_t *number) {
    /* Neighbours in the map mostly share a shard. */
    if (x->n_shards > 0 && x->shards[x->last].n == shard.n && memcmp(x->shards[x->last].p, shard.p, shard.n) == 0) {
        *number = x->last;
        return NEAP_OK;
    }
    const neap_names_slot *old = neap_names_find(&x->names, SCOPE_SHARD, shard.p, shard.n);
    if (old) {
        x->last = old->value;
        *number = old->value;
        return NEAP_OK;
    }
    NEAP_CHECK(is_shard_name(shard), NEAP_BAD_FILE,
               "index: shard name '%.*s' of tensor '%.*s' is not a plain file name ([A-Za-z0-9._-]+.safetensors)",
               neap_text_shown(shard), shard.p, neap_text_shown(tensor), tensor.p);
    NEAP_CHECK(x->n_shards < NEAP_SHARDS_MAX, NEAP_BAD_FILE, "index: more than %d shards", NEAP_SHARDS_MAX);
    if (!x->shards) {
        void *memory = NULL;
        NEAP_TRY(neap_mem_alloc(NEAP_SHARDS_MAX * sizeof(neap_text), &memory));
        x->shards = memory;
    }
    *number = x->last = x->n_shards;
    x->shards[x->n_shards++] = shard;
    return neap_names_add(&x->names, SCOPE_SHARD, shard.p, shard.n, *number, &old);
}

static neap_status add_tensor(neap_index *x, neap_text name, neap_text shard, size_t at) {
    NEAP_CHECK(name.n > 0, NEAP_BAD_FILE, "index, byte %zu: a tensor without a name", at);
    NEAP_CHECK(!memchr(name.p, 0, name.n), NEAP_BAD_FILE, "index, byte %zu: NUL in the name of a tensor", at);
    NEAP_CHECK(x->n_tensors < INDEX_TENSORS_MAX, NEAP_BAD_FILE, "index: more than %d tensors", INDEX_TENSORS_MAX);
    if (x->n_tensors == x->capacity) {
        size_t capacity = x->capacity ? 2 * x->capacity : 64;
        void *memory = x->tensors;
        NEAP_TRY(neap_mem_grow(&memory, x->capacity * sizeof(neap_text), capacity * sizeof(neap_text)));
        x->tensors = memory;
        x->capacity = capacity;
    }
    uint32_t number = 0;
    NEAP_TRY(shard_number(x, name, shard, &number));
    const neap_names_slot *old = NULL;
    NEAP_TRY(neap_names_add(&x->names, SCOPE_TENSOR, name.p, name.n, number, &old));
    NEAP_CHECK(!old, NEAP_BAD_FILE, "index, byte %zu: tensor '%.*s' is listed twice", at, neap_text_shown(name),
               name.p);
    x->tensors[x->n_tensors++] = name;
    return NEAP_OK;
}

static neap_status scan_weight_map(neap_index *x) {
    neap_scan *s = &x->scan;
    NEAP_CHECK(neap_scan_peek(s) == '{', NEAP_BAD_FILE, "index: weight_map is not an object");
    NEAP_TRY(neap_scan_expect(s, '{'));
    bool first = true, more = false;
    for (;;) {
        NEAP_TRY(neap_scan_next(s, '}', &first, &more));
        if (!more) return NEAP_OK;
        neap_text name, shard;
        size_t at = s->at;
        NEAP_TRY(neap_scan_key(s, &name));
        NEAP_CHECK(neap_scan_peek(s) == '"', NEAP_BAD_FILE, "index: the shard of tensor '%.*s' is not a string",
                   neap_text_shown(name), name.p);
        NEAP_TRY(neap_scan_string(s, &shard));
        NEAP_TRY(add_tensor(x, name, shard, at));
    }
}

/* Old converters wrote the size as a float; "123.0" is still a byte count. */
static neap_status scan_total(neap_index *x) {
    neap_text number, whole;
    NEAP_TRY(neap_scan_number(&x->scan, &number));
    whole = number;
    if (whole.n > 2 && memcmp(whole.p + whole.n - 2, ".0", 2) == 0) whole.n -= 2;
    NEAP_CHECK(neap_text_u64(whole, &x->total_bytes) && x->total_bytes <= INT64_MAX, NEAP_BAD_FILE,
               "index: metadata.total_size %.*s is not a byte count", neap_text_shown(number), number.p);
    x->has_total = true;
    return NEAP_OK;
}

static neap_status scan_metadata(neap_index *x, uint32_t *scope) {
    neap_scan *s = &x->scan;
    NEAP_CHECK(neap_scan_peek(s) == '{', NEAP_BAD_FILE, "index: metadata is not an object");
    NEAP_TRY(neap_scan_expect(s, '{'));
    bool first = true, more = false;
    for (;;) {
        NEAP_TRY(neap_scan_next(s, '}', &first, &more));
        if (!more) return NEAP_OK;
        neap_text key;
        size_t at = s->at;
        NEAP_TRY(neap_scan_key(s, &key));
        NEAP_TRY(add_key(x, SCOPE_METADATA, key, at));
        if (neap_text_is(key, "total_size")) {
            NEAP_TRY(scan_total(x));
        } else {
            NEAP_TRY(neap_scan_skip(s, &x->names, scope));
        }
    }
}

static neap_status scan_index(neap_index *x) {
    neap_scan *s = &x->scan;
    uint32_t scope = SCOPE_OTHER;
    bool first = true, more = false, has_map = false;
    NEAP_TRY(neap_scan_expect(s, '{'));
    for (;;) {
        NEAP_TRY(neap_scan_next(s, '}', &first, &more));
        if (!more) break;
        neap_text key;
        size_t at = s->at;
        NEAP_TRY(neap_scan_key(s, &key));
        NEAP_TRY(add_key(x, SCOPE_TOP, key, at));
        if (neap_text_is(key, "weight_map")) {
            has_map = true;
            NEAP_TRY(scan_weight_map(x));
        } else if (neap_text_is(key, "metadata")) {
            NEAP_TRY(scan_metadata(x, &scope));
        } else {
            NEAP_TRY(neap_scan_skip(s, &x->names, &scope));
        }
    }
    if (neap_scan_peek(s) >= 0) return neap_scan_fail(s, s->at, "text after the closing brace");
    NEAP_CHECK(has_map, NEAP_BAD_FILE, "index: weight_map is missing");
    NEAP_CHECK(x->n_tensors > 0, NEAP_BAD_FILE, "index: weight_map is empty");
    return NEAP_OK;
}

static bool name_before(neap_text a, neap_text b) {
    int order = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return order != 0 ? order < 0 : a.n < b.n;
}

/* Shards by name, so that the order of tensors does not hang on the order of the map. At most NEAP_SHARDS_MAX of
 * them and usually sorted already: insertion sort. */
static neap_status sort_shards(neap_index *x) {
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(2 * x->n_shards * sizeof(uint32_t), &memory));
    x->rank = memory;
    uint32_t *number = x->rank + x->n_shards; /* place -> number */
    for (uint32_t i = 0; i < x->n_shards; i++) {
        neap_text shard = x->shards[i];
        uint32_t place = i;
        for (; place > 0 && name_before(shard, x->shards[place - 1]); place--) {
            x->shards[place] = x->shards[place - 1];
            number[place] = number[place - 1];
        }
        x->shards[place] = shard;
        number[place] = i;
    }
    for (uint32_t place = 0; place < x->n_shards; place++) x->rank[number[place]] = place;
    return NEAP_OK;
}

neap_status neap_index_parse(neap_index *x, const char *text, size_t n) {
    *x = (neap_index){0};
    neap_scan_start(&x->scan, text, n, "index");
    neap_names_init(&x->names);
    neap_status status = scan_index(x);
    if (status == NEAP_OK) status = sort_shards(x);
    if (status != NEAP_OK) neap_index_free(x);
    return status;
}

void neap_index_free(neap_index *x) {
    neap_names_free(&x->names);
    neap_mem_free(x->tensors);
    neap_mem_free(x->shards);
    neap_mem_free(x->rank);
    neap_scan_end(&x->scan);
    *x = (neap_index){0};
}

int32_t neap_index_shard_of(const neap_index *x, const char *name, size_t n) {
    const neap_names_slot *slot = neap_names_find(&x->names, SCOPE_TENSOR, name, n);
    return slot ? (int32_t)x->rank[slot->value] : -1;
}

bool neap_index_has_shard(const neap_index *x, const char *name) {
    return neap_names_find(&x->names, SCOPE_SHARD, name, strlen(name)) != NULL;
}
