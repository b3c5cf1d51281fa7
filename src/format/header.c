/* The header of a safetensors file: JSON that names each tensor's dtype, shape and byte range.
 *
 *   {"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
 *
 * The file comes from outside and decides how much memory is read where, so nothing is believed:
 *   - text: '{' first, UTF-8, strict JSON, only spaces after the closing brace, every key at most once;
 *   - each tensor: exactly dtype, shape, data_offsets; known dtype; rank <= 8; whole numbers;
 *     product(shape) * bits / 8 == end - begin, with overflow checked before a zero dimension hides it;
 *   - all tensors: sorted by offset they tile [0, data_bytes) without hole, overlap or rest.
 * Memory is bounded by a small multiple of the header's length. This is stricter than the format's own library in
 * a few points (leading space, repeated keys, unknown keys, rank), never laxer.
 *
 * Called by checkpoint.c and the fuzzer. Source: the safetensors format description (README of the format).
 */
#include <string.h>

#include "base/arena.h"
#include "format/checkpoint.h"
#include "format/names.h"
#include "format/scan.h"

enum { NEAP_TENSORS_MAX = 1000000 };

typedef struct raw_tensor {
    neap_text name; /* in the text or in the scanner's side buffer */
    uint64_t begin, end;
    int64_t shape[NEAP_RANK_MAX];
    int32_t rank;
    neap_dtype dtype;
} raw_tensor;

typedef struct header {
    neap_scan scan;
    neap_names names; /* scope 0: top level; scope 1: metadata */
    raw_tensor *tensors;
    size_t n, capacity;
    uint64_t data_bytes;
} header;

#define TENSOR_FAIL(t, ...) return tensor_fail((t), neap_fail(NEAP_BAD_FILE, __VA_ARGS__))

static neap_status tensor_fail(const raw_tensor *t, neap_status code) {
    return neap_fail_prefix(code, "tensor '%.*s'", neap_text_shown(t->name), t->name.p);
}

static neap_status add_key(header *h, uint32_t scope, neap_text key, size_t at) {
    const neap_names_slot *old = NULL;
    NEAP_TRY(neap_names_add(&h->names, scope, key.p, key.n, 0, &old));
    NEAP_CHECK(!old, NEAP_BAD_FILE, "header, byte %zu: '%.*s' occurs twice", at, neap_text_shown(key), key.p);
    return NEAP_OK;
}

static neap_status scan_metadata(header *h) {
    NEAP_TRY(neap_scan_expect(&h->scan, '{'));
    bool first = true, more = false;
    for (size_t n = 0;; n++) {
        NEAP_TRY(neap_scan_next(&h->scan, '}', &first, &more));
        if (!more) return NEAP_OK;
        NEAP_CHECK(n < NEAP_TENSORS_MAX, NEAP_BAD_FILE, "header: more than %d metadata entries", NEAP_TENSORS_MAX);
        neap_text key, value;
        size_t at = h->scan.at;
        NEAP_TRY(neap_scan_key(&h->scan, &key));
        NEAP_TRY(add_key(h, 1, key, at));
        NEAP_TRY(neap_scan_string(&h->scan, &value));
    }
}

static neap_status scan_dtype(header *h, raw_tensor *t) {
    neap_text name;
    NEAP_TRY(neap_scan_string(&h->scan, &name));
    int dtype = neap_dtype_from_name(name.p, name.n);
    if (dtype < 0) {
        NEAP_FAIL(NEAP_BAD_FILE,
                  "dtype '%.*s' is not known (known are BOOL, I8-I64, U8-U64, F4, F8_E4M3, F8_E5M2, "
                  "F8_E8M0, F16, BF16, F32, F64)",
                  neap_text_shown(name), name.p);
    }
    t->dtype = (neap_dtype)dtype;
    return NEAP_OK;
}

static neap_status scan_shape(header *h, raw_tensor *t) {
    NEAP_TRY(neap_scan_expect(&h->scan, '['));
    bool first = true, more = false;
    for (t->rank = 0;; t->rank++) {
        NEAP_TRY(neap_scan_next(&h->scan, ']', &first, &more));
        if (!more) return NEAP_OK;
        NEAP_CHECK(t->rank < NEAP_RANK_MAX, NEAP_BAD_FILE, "shape has more than %d dimensions", NEAP_RANK_MAX);
        uint64_t d = 0;
        NEAP_TRY(neap_scan_u64(&h->scan, &d));
        NEAP_CHECK(d <= INT64_MAX, NEAP_BAD_FILE, "dimension %llu is above 2^63-1", (unsigned long long)d);
        t->shape[t->rank] = (int64_t)d;
    }
}

static neap_status scan_offsets(header *h, raw_tensor *t) {
    NEAP_TRY(neap_scan_expect(&h->scan, '['));
    NEAP_TRY(neap_scan_u64(&h->scan, &t->begin));
    NEAP_TRY(neap_scan_expect(&h->scan, ','));
    NEAP_TRY(neap_scan_u64(&h->scan, &t->end));
    return neap_scan_expect(&h->scan, ']');
}

/* The three fields, in any order, each exactly once. */
static neap_status scan_fields(header *h, raw_tensor *t) {
    static const char *const field_name[3] = {"dtype", "shape", "data_offsets"};
    bool seen[3] = {false, false, false};
    NEAP_TRY(neap_scan_expect(&h->scan, '{'));
    bool first = true, more = false;
    for (;;) {
        NEAP_TRY(neap_scan_next(&h->scan, '}', &first, &more));
        if (!more) break;
        neap_text key;
        NEAP_TRY(neap_scan_key(&h->scan, &key));
        int field = 0;
        while (field < 3 && !neap_text_is(key, field_name[field])) field++;
        NEAP_CHECK(field < 3, NEAP_BAD_FILE, "unknown field '%.*s'", neap_text_shown(key), key.p);
        NEAP_CHECK(!seen[field], NEAP_BAD_FILE, "field '%s' occurs twice", field_name[field]);
        seen[field] = true;
        if (field == 0) NEAP_TRY(scan_dtype(h, t));
        if (field == 1) NEAP_TRY(scan_shape(h, t));
        if (field == 2) NEAP_TRY(scan_offsets(h, t));
    }
    for (int i = 0; i < 3; i++) NEAP_CHECK(seen[i], NEAP_BAD_FILE, "field '%s' is missing", field_name[i]);
    return NEAP_OK;
}

/* "[2, 3]" for messages. */
static const char *shape_text(const raw_tensor *t, char text[NEAP_RANK_MAX * 22 + 3]) {
    char *p = text;
    *p++ = '[';
    for (int i = 0; i < t->rank; i++) {
        char digits[20];
        int n = 0;
        for (uint64_t v = (uint64_t)t->shape[i]; v > 0 || n == 0; v /= 10) digits[n++] = (char)('0' + v % 10);
        if (i > 0) {
            *p++ = ',';
            *p++ = ' ';
        }
        while (n > 0) *p++ = digits[--n];
    }
    *p++ = ']';
    *p = 0;
    return text;
}

static neap_status check_size(const header *h, const raw_tensor *t) {
    char text[NEAP_RANK_MAX * 22 + 3];
    if (t->end < t->begin || t->end > h->data_bytes) {
        NEAP_FAIL(NEAP_BAD_FILE, "data_offsets [%llu, %llu] do not lie in the %llu bytes of data",
                  (unsigned long long)t->begin, (unsigned long long)t->end, (unsigned long long)h->data_bytes);
    }
    /* Zero dimensions count as one here, so that [0, 2^32, 2^32] overflows in every order. */
    uint64_t bits = (uint64_t)neap_dtype_bits(t->dtype), wide = bits;
    for (int i = 0; i < t->rank; i++) {
        uint64_t d = (uint64_t)t->shape[i];
        if (__builtin_mul_overflow(wide, d > 0 ? d : 1, &wide)) {
            NEAP_FAIL(NEAP_BAD_FILE, "shape %s of %s is larger than 2^64 bits", shape_text(t, text),
                      neap_dtype_name(t->dtype));
        }
        bits *= d;
    }
    NEAP_CHECK(bits % 8 == 0, NEAP_BAD_FILE, "shape %s of %s does not end at a whole byte", shape_text(t, text),
               neap_dtype_name(t->dtype));
    NEAP_CHECK(bits / 8 == t->end - t->begin, NEAP_BAD_FILE,
               "shape %s of %s needs %llu bytes, data_offsets [%llu, %llu] hold %llu", shape_text(t, text),
               neap_dtype_name(t->dtype), (unsigned long long)(bits / 8), (unsigned long long)t->begin,
               (unsigned long long)t->end, (unsigned long long)(t->end - t->begin));
    return NEAP_OK;
}

static neap_status grow(header *h) {
    size_t capacity = h->capacity ? 2 * h->capacity : 16;
    void *memory = h->tensors;
    NEAP_TRY(neap_mem_grow(&memory, h->capacity * sizeof(raw_tensor), capacity * sizeof(raw_tensor)));
    h->tensors = memory;
    h->capacity = capacity;
    return NEAP_OK;
}

static neap_status scan_tensor(header *h, neap_text name, size_t at) {
    NEAP_CHECK(name.n > 0, NEAP_BAD_FILE, "header, byte %zu: a tensor without a name", at);
    NEAP_CHECK(!memchr(name.p, 0, name.n), NEAP_BAD_FILE, "header, byte %zu: NUL in the name of a tensor", at);
    NEAP_CHECK(h->n < NEAP_TENSORS_MAX, NEAP_BAD_FILE, "header: more than %d tensors", NEAP_TENSORS_MAX);
    if (h->n == h->capacity) NEAP_TRY(grow(h));
    raw_tensor *t = &h->tensors[h->n];
    t->name = name;
    neap_status status = scan_fields(h, t);
    if (status == NEAP_OK) status = check_size(h, t);
    if (status != NEAP_OK) return tensor_fail(t, status);
    h->n++;
    return NEAP_OK;
}

static neap_status scan_header(header *h) {
    neap_scan *s = &h->scan;
    NEAP_CHECK(s->n > 0, NEAP_BAD_FILE, "header is empty");
    NEAP_CHECK(s->text[0] == '{', NEAP_BAD_FILE, "header does not begin with '{'");
    NEAP_TRY(neap_scan_expect(s, '{'));
    bool first = true, more = false;
    for (;;) {
        NEAP_TRY(neap_scan_next(s, '}', &first, &more));
        if (!more) break;
        neap_text key;
        size_t at = s->at;
        NEAP_TRY(neap_scan_key(s, &key));
        NEAP_TRY(add_key(h, 0, key, at));
        if (neap_text_is(key, "__metadata__")) {
            NEAP_TRY(scan_metadata(h));
        } else {
            NEAP_TRY(scan_tensor(h, key, at));
        }
    }
    for (size_t i = s->at; i < s->n; i++) {
        if (s->text[i] != ' ') return neap_scan_fail(s, i, "only spaces may follow the closing brace");
    }
    return NEAP_OK;
}

/* ---- order and tiling ---- */

static bool starts_before(const raw_tensor *a, const raw_tensor *b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
}

/* Merges neighbouring sorted runs of `width` from src into dst. */
static void merge_pass(const raw_tensor *t, uint32_t *dst, const uint32_t *src, size_t n, size_t width) {
    for (size_t start = 0; start < n; start += 2 * width) {
        size_t middle = start + width < n ? start + width : n, end = start + 2 * width < n ? start + 2 * width : n;
        size_t a = start, b = middle;
        for (size_t i = start; i < end; i++) {
            bool take_b = a == middle || (b < end && starts_before(&t[src[b]], &t[src[a]]));
            dst[i] = take_b ? src[b++] : src[a++];
        }
    }
}

/* *out: indices of the tensors by (begin, end), equal ones in the order of the header; neap_mem memory. Merge sort:
 * the header cannot choose an order that makes it slow. */
static neap_status sort_by_offset(const header *h, uint32_t **out) {
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(2 * h->n * sizeof(uint32_t), &memory));
    uint32_t *order = memory, *other = order + h->n;
    bool is_sorted = true;
    for (size_t i = 0; i < h->n; i++) {
        order[i] = (uint32_t)i;
        if (i > 0 && starts_before(&h->tensors[i], &h->tensors[i - 1])) is_sorted = false;
    }
    for (size_t width = 1; width < h->n && !is_sorted; width *= 2) {
        merge_pass(h->tensors, other, order, h->n, width);
        uint32_t *swap = order;
        order = other;
        other = swap;
    }
    if (order != memory) memcpy(memory, order, h->n * sizeof(uint32_t));
    *out = memory;
    return NEAP_OK;
}

static neap_status check_tiling(const header *h, const uint32_t *order) {
    uint64_t at = 0;
    for (size_t i = 0; i < h->n; i++) {
        const raw_tensor *t = &h->tensors[order[i]];
        if (t->begin != at) {
            TENSOR_FAIL(t, "begins at data byte %llu, the one before it ends at %llu (%s)",
                        (unsigned long long)t->begin, (unsigned long long)at, t->begin < at ? "overlap" : "hole");
        }
        at = t->end;
    }
    NEAP_CHECK(at == h->data_bytes, NEAP_BAD_FILE, "the tensors cover %llu bytes, the file holds %llu bytes of data",
               (unsigned long long)at, (unsigned long long)h->data_bytes);
    return NEAP_OK;
}

/* One block: the array, then the names. */
static neap_status build(const header *h, const uint32_t *order, neap_stored_tensor **out) {
    size_t bytes = h->n * sizeof(neap_stored_tensor);
    for (size_t i = 0; i < h->n; i++) bytes += h->tensors[i].name.n + 1;
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(bytes, &memory));
    neap_stored_tensor *tensors = memory;
    char *names = (char *)(tensors + h->n);
    for (size_t i = 0; i < h->n; i++) {
        const raw_tensor *t = &h->tensors[order[i]];
        memcpy(names, t->name.p, t->name.n);
        tensors[i].name = names;
        names += t->name.n + 1;
        tensors[i].dtype = t->dtype;
        tensors[i].rank = t->rank;
        for (int k = 0; k < t->rank; k++) tensors[i].shape[k] = t->shape[k];
        tensors[i].bytes = t->end - t->begin;
        tensors[i].offset = t->begin;
    }
    *out = tensors;
    return NEAP_OK;
}

neap_status neap_header_scan(const char *json, size_t n, uint64_t data_bytes, neap_stored_tensor **tensors,
                             int64_t *n_tensors) {
    *tensors = NULL;
    *n_tensors = 0;
    neap_status status = NEAP_OK;
    uint32_t *order = NULL;
    header h = {.data_bytes = data_bytes};
    neap_scan_start(&h.scan, json, n, "header");
    neap_names_init(&h.names);
    NEAP_TRY_GOTO(scan_header(&h));
    NEAP_TRY_GOTO(sort_by_offset(&h, &order));
    NEAP_TRY_GOTO(check_tiling(&h, order));
    NEAP_TRY_GOTO(build(&h, order, tensors));
    *n_tensors = (int64_t)h.n;
fail: /* also the way out of a success */
    neap_mem_free(order);
    neap_mem_free(h.tensors);
    neap_names_free(&h.names);
    neap_scan_end(&h.scan);
    return status;
}

void neap_header_free(neap_stored_tensor *tensors, int64_t n_tensors) {
    (void)n_tensors; /* one block holds them all */
    neap_mem_free(tensors);
}
