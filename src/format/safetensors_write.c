/* Writes a safetensors file: 8-byte header length, JSON header, data.
 *
 * For results and checkpoints (`neap logits`, `neap perplexity`, tests, tools): the tensors are in memory, or follow in
 * pieces when they are too large for that. The order is the caller's, the header is padded with spaces so that the data
 * begins at a multiple of 8. What this writes, header.c reads back; names are escaped, so any UTF-8 name without NUL
 * survives. The file appears whole or not at all (file.c). Source: the safetensors format description.
 */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "format/checkpoint.h"
#include "format/file.h"
#include "format/names.h"

typedef struct text_buffer {
    char *p;
    size_t n, capacity;
} text_buffer;

static neap_status put(text_buffer *b, const char *p, size_t n) {
    if (b->capacity - b->n < n) {
        size_t capacity = 2 * (b->capacity + n) + 256;
        void *memory = b->p;
        NEAP_TRY(neap_mem_grow(&memory, b->capacity, capacity));
        b->p = memory;
        b->capacity = capacity;
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return NEAP_OK;
}

static neap_status put_text(text_buffer *b, const char *text) { return put(b, text, strlen(text)); }

static neap_status put_u64(text_buffer *b, uint64_t v) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    return put(b, digits, (size_t)n);
}

static neap_status put_string(text_buffer *b, const char *text) {
    NEAP_TRY(put_text(b, "\""));
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        char escaped[8];
        int n = 1;
        escaped[0] = *p;
        if (c < 0x20) n = snprintf(escaped, sizeof escaped, "\\u%04x", c);
        if (c == '"' || c == '\\') n = snprintf(escaped, sizeof escaped, "\\%c", c);
        NEAP_TRY(put(b, escaped, (size_t)n));
    }
    return put_text(b, "\"");
}

static neap_status bytes_of(const neap_out_tensor *t, size_t *bytes) {
    NEAP_CHECK(t->name && t->name[0] && strcmp(t->name, "__metadata__") != 0, NEAP_INVALID_ARGUMENT,
               "cannot write a tensor with the name '%s'", t->name ? t->name : "(null)");
    NEAP_CHECK(t->rank >= 0 && t->rank <= NEAP_RANK_MAX, NEAP_INVALID_ARGUMENT,
               "tensor '%.200s': rank %d, the limit is %d", t->name, t->rank, NEAP_RANK_MAX);
    size_t bits = (size_t)neap_dtype_bits(t->dtype), wide = bits;
    for (int i = 0; i < t->rank; i++) {
        int64_t d = t->shape[i];
        NEAP_CHECK(d >= 0 && neap_mul_size(wide, d > 0 ? (size_t)d : 1, &wide), NEAP_INVALID_ARGUMENT,
                   "tensor '%.200s': dimension %d is %lld", t->name, i, (long long)d);
        bits *= (size_t)d;
    }
    NEAP_CHECK(bits % 8 == 0, NEAP_INVALID_ARGUMENT, "tensor '%.200s' does not end at a whole byte", t->name);
    *bytes = bits / 8;
    return NEAP_OK;
}

static neap_status put_tensor(text_buffer *b, const neap_out_tensor *t, uint64_t begin, uint64_t end) {
    NEAP_TRY(put_string(b, t->name));
    NEAP_TRY(put_text(b, ":{\"dtype\":\""));
    NEAP_TRY(put_text(b, neap_dtype_name(t->dtype)));
    NEAP_TRY(put_text(b, "\",\"shape\":["));
    for (int i = 0; i < t->rank; i++) {
        if (i > 0) NEAP_TRY(put_text(b, ","));
        NEAP_TRY(put_u64(b, (uint64_t)t->shape[i]));
    }
    NEAP_TRY(put_text(b, "],\"data_offsets\":["));
    NEAP_TRY(put_u64(b, begin));
    NEAP_TRY(put_text(b, ","));
    NEAP_TRY(put_u64(b, end));
    return put_text(b, "]}");
}

/* Fills the header text, the first 8 bytes of the buffer are the length; *data_bytes: what follows it. */
static neap_status put_header(text_buffer *b, const neap_out_tensor *tensors, int64_t n, size_t *data_bytes) {
    size_t at = 0;
    neap_names names;
    neap_names_init(&names);
    neap_status status = NEAP_OK;
    NEAP_TRY_GOTO(put(b, "\0\0\0\0\0\0\0", 8));
    /* Some loaders of models refuse a file that does not name a framework; the data mean the same in all of them. */
    NEAP_TRY_GOTO(put_text(b, "{\"__metadata__\":{\"format\":\"pt\"}"));
    for (int64_t i = 0; i < n; i++) {
        const neap_names_slot *old = NULL;
        size_t bytes = 0, end = 0;
        NEAP_TRY_GOTO(bytes_of(&tensors[i], &bytes));
        NEAP_TRY_GOTO(neap_names_add(&names, 0, tensors[i].name, strlen(tensors[i].name), 0, &old));
        if (old) NEAP_FAIL_GOTO(NEAP_INVALID_ARGUMENT, "two tensors with the name '%.200s'", tensors[i].name);
        if (!neap_add_size(at, bytes, &end)) NEAP_FAIL_GOTO(NEAP_INVALID_ARGUMENT, "more than 2^64 bytes of tensors");
        NEAP_TRY_GOTO(put_text(b, ","));
        NEAP_TRY_GOTO(put_tensor(b, &tensors[i], at, end));
        at = end;
    }
    NEAP_TRY_GOTO(put_text(b, "}"));
    while (b->n % 8 != 0) NEAP_TRY_GOTO(put_text(b, " "));
    uint64_t length = b->n - 8;
    for (int i = 0; i < 8; i++) b->p[i] = (char)(length >> (8 * i) & 0xff);
    *data_bytes = at;
    /* The reader's limits are the writer's: a name that is not UTF-8 or too many tensors fail here, not later. */
    neap_stored_tensor *check = NULL;
    int64_t n_check = 0;
    status = neap_header_scan(b->p + 8, b->n - 8, at, &check, &n_check);
    if (status == NEAP_BAD_FILE) status = neap_fail_prefix(NEAP_INVALID_ARGUMENT, "cannot write these tensors");
    neap_header_free(check, n_check);
fail:
    neap_names_free(&names);
    return status;
}

/* ---- in pieces ---- */

struct neap_safetensors_writer {
    neap_file_writer *file;
    uint64_t left; /* bytes of data to come */
};

void neap_safetensors_discard(neap_safetensors_writer *w) {
    if (w == NULL) return;
    neap_file_writer_discard(w->file);
    neap_mem_free(w);
}

neap_status neap_safetensors_begin(neap_safetensors_writer **out, const char *path, const neap_out_tensor *tensors,
                                   int64_t n) {
    *out = NULL;
    text_buffer header = {0};
    size_t data_bytes = 0;
    void *memory = NULL;
    neap_safetensors_writer *w = NULL;
    neap_status status = NEAP_OK;
    NEAP_CHECK(n >= 0, NEAP_INVALID_ARGUMENT, "cannot write %lld tensors", (long long)n);
    status = put_header(&header, tensors, n, &data_bytes);
    if (status != NEAP_OK) {
        status = neap_fail_prefix(status, "%s", path);
        goto fail;
    }
    NEAP_TRY_GOTO(neap_mem_alloc(sizeof *w, &memory));
    w = memory;
    w->left = data_bytes;
    NEAP_TRY_GOTO(neap_file_writer_open(&w->file, path));
    NEAP_TRY_GOTO(neap_file_writer_append(w->file, header.p, header.n));
    neap_mem_free(header.p);
    *out = w;
    return NEAP_OK;
fail:
    neap_mem_free(header.p);
    neap_safetensors_discard(w);
    return status;
}

neap_status neap_safetensors_append(neap_safetensors_writer *w, const void *data, uint64_t bytes) {
    NEAP_CHECK(bytes <= w->left, NEAP_INVALID_ARGUMENT, "%llu bytes of tensor data, %llu are left to write",
               (unsigned long long)bytes, (unsigned long long)w->left);
    NEAP_TRY(neap_file_writer_append(w->file, data, (size_t)bytes));
    w->left -= bytes;
    return NEAP_OK;
}

neap_status neap_safetensors_finish(neap_safetensors_writer *w) {
    neap_file_writer *file = w->file;
    uint64_t left = w->left;
    neap_mem_free(w);
    if (left == 0) return neap_file_writer_commit(file);
    neap_file_writer_discard(file);
    NEAP_FAIL(NEAP_INVALID_ARGUMENT, "%llu bytes of tensor data were never written", (unsigned long long)left);
}

neap_status neap_safetensors_write(const char *path, const neap_out_tensor *tensors, int64_t n) {
    neap_safetensors_writer *w = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_safetensors_begin(&w, path, tensors, n));
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        NEAP_TRY_GOTO(bytes_of(&tensors[i], &bytes));
        if (tensors[i].data == NULL && bytes > 0)
            NEAP_FAIL_GOTO(NEAP_INVALID_ARGUMENT, "%s: tensor '%.200s' has no data", path, tensors[i].name);
        NEAP_TRY_GOTO(neap_safetensors_append(w, tensors[i].data, bytes));
    }
    return neap_safetensors_finish(w);
fail:
    neap_safetensors_discard(w);
    return status;
}
