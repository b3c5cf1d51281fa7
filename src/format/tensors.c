/* Tensor files of the public API: a thin face of checkpoint.c for one safetensors file.
 *
 * neap_tensors is a neap_checkpoint that holds a single file; nothing else is added but the translation of
 * element types to their names, so that neap.h needs no enum of them. Callers: `neap verify` (golden files),
 * `neap logits` (its result), programs that compare tensors.
 *
 * Owns: the checkpoint behind the handle. All checks (header, ranges, duplicates) are those of checkpoint.c. */
#include <string.h>

#include "base/arena.h"
#include "format/checkpoint.h"

struct neap_tensors {
    neap_checkpoint *file;
};

_Static_assert(sizeof(((neap_tensor_info *)0)->shape) == sizeof(((neap_stored_tensor *)0)->shape),
               "rank limits differ");

neap_status neap_tensors_open(neap_tensors **out, const char *path) {
    NEAP_CHECK(out != NULL && path != NULL, NEAP_INVALID_ARGUMENT, "neap_tensors_open: NULL argument");
    *out = NULL;
    void *p = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_tensors), &p));
    neap_tensors *f = p;
    neap_status status = neap_checkpoint_open_file(&f->file, path);
    if (status != NEAP_OK) {
        neap_mem_free(f);
        return status;
    }
    *out = f;
    return NEAP_OK;
}

void neap_tensors_close(neap_tensors *f) {
    if (f == NULL) return;
    neap_checkpoint_close(f->file);
    neap_mem_free(f);
}

int64_t neap_tensors_count(const neap_tensors *f) { return f == NULL ? 0 : neap_checkpoint_count(f->file); }

static void describe(const neap_stored_tensor *t, neap_tensor_info *info) {
    info->name = t->name;
    info->dtype = neap_dtype_name(t->dtype);
    info->rank = t->rank;
    memcpy(info->shape, t->shape, sizeof info->shape);
    info->bytes = t->bytes;
}

neap_status neap_tensors_at(const neap_tensors *f, int64_t i, neap_tensor_info *info) {
    NEAP_CHECK(f != NULL && info != NULL, NEAP_INVALID_ARGUMENT, "neap_tensors_at: NULL argument");
    NEAP_CHECK(i >= 0 && i < neap_checkpoint_count(f->file), NEAP_INVALID_ARGUMENT,
               "neap_tensors_at: no tensor %lld, the file has %lld", (long long)i,
               (long long)neap_checkpoint_count(f->file));
    describe(neap_checkpoint_at(f->file, i), info);
    return NEAP_OK;
}

neap_status neap_tensors_find(const neap_tensors *f, const char *name, neap_tensor_info *info) {
    NEAP_CHECK(f != NULL && name != NULL && info != NULL, NEAP_INVALID_ARGUMENT, "neap_tensors_find: NULL argument");
    const neap_stored_tensor *t = neap_checkpoint_find(f->file, name);
    NEAP_CHECK(t != NULL, NEAP_NOT_FOUND, "%s: no tensor \"%s\"", neap_checkpoint_shard_name(f->file, 0), name);
    describe(t, info);
    return NEAP_OK;
}

neap_status neap_tensors_read(const neap_tensors *f, const char *name, uint64_t offset, uint64_t bytes, void *data) {
    NEAP_CHECK(f != NULL && name != NULL && (data != NULL || bytes == 0), NEAP_INVALID_ARGUMENT,
               "neap_tensors_read: NULL argument");
    const neap_stored_tensor *t = neap_checkpoint_find(f->file, name);
    NEAP_CHECK(t != NULL, NEAP_NOT_FOUND, "%s: no tensor \"%s\"", neap_checkpoint_shard_name(f->file, 0), name);
    NEAP_CHECK(offset <= t->bytes && bytes <= t->bytes - offset, NEAP_INVALID_ARGUMENT,
               "tensor \"%s\": bytes %llu + %llu lie outside its %llu", name, (unsigned long long)offset,
               (unsigned long long)bytes, (unsigned long long)t->bytes);
    return neap_checkpoint_read(f->file, t, offset, bytes, data);
}

/* ---- writing ---- */

/* *list: n descriptions without data, neap_mem memory. */
static neap_status take_infos(neap_out_tensor **out, const char *path, const neap_tensor_info *infos, size_t n) {
    *out = NULL;
    NEAP_CHECK(n <= 1000000, NEAP_LIMIT, "%s: %zu tensors, the limit is 1000000", path, n);
    void *p = NULL;
    NEAP_TRY(neap_mem_alloc((n > 0 ? n : 1) * sizeof(neap_out_tensor), &p));
    neap_out_tensor *list = p;
    for (size_t i = 0; i < n; i++) {
        int dtype = infos[i].dtype == NULL ? -1 : neap_dtype_from_name(infos[i].dtype, strlen(infos[i].dtype));
        if (dtype < 0 || infos[i].name == NULL || infos[i].rank < 0 || infos[i].rank > NEAP_RANK_MAX) {
            neap_mem_free(p);
            NEAP_FAIL(NEAP_INVALID_ARGUMENT, "%s: tensor %zu has no name, an unknown dtype or a bad rank", path, i);
        }
        list[i].name = infos[i].name;
        list[i].dtype = (neap_dtype)dtype;
        list[i].rank = infos[i].rank;
        memcpy(list[i].shape, infos[i].shape, sizeof list[i].shape);
    }
    *out = list;
    return NEAP_OK;
}

neap_status neap_tensors_write(const char *path, const neap_tensor_info *infos, const void *const *data, size_t n) {
    NEAP_CHECK(path != NULL && (n == 0 || (infos != NULL && data != NULL)), NEAP_INVALID_ARGUMENT,
               "neap_tensors_write: NULL argument");
    neap_out_tensor *list = NULL;
    NEAP_TRY(take_infos(&list, path, infos, n));
    for (size_t i = 0; i < n; i++) list[i].data = data[i];
    neap_status status = neap_safetensors_write(path, list, (int64_t)n);
    neap_mem_free(list);
    return status;
}

struct neap_tensors_writer {
    neap_safetensors_writer *file;
};

neap_status neap_tensors_writer_open(neap_tensors_writer **out, const char *path, const neap_tensor_info *infos,
                                     size_t n) {
    NEAP_CHECK(out != NULL && path != NULL && (n == 0 || infos != NULL), NEAP_INVALID_ARGUMENT,
               "neap_tensors_writer_open: NULL argument");
    *out = NULL;
    neap_out_tensor *list = NULL;
    void *p = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(take_infos(&list, path, infos, n));
    NEAP_TRY_GOTO(neap_mem_alloc(sizeof(neap_tensors_writer), &p));
    neap_tensors_writer *w = p;
    NEAP_TRY_GOTO(neap_safetensors_begin(&w->file, path, list, (int64_t)n));
    neap_mem_free(list);
    *out = w;
    return NEAP_OK;
fail:
    neap_mem_free(list);
    neap_mem_free(p);
    return status;
}

neap_status neap_tensors_writer_append(neap_tensors_writer *w, const void *data, uint64_t bytes) {
    NEAP_CHECK(w != NULL && (data != NULL || bytes == 0), NEAP_INVALID_ARGUMENT,
               "neap_tensors_writer_append: NULL argument");
    return neap_safetensors_append(w->file, data, bytes);
}

neap_status neap_tensors_writer_finish(neap_tensors_writer *w) {
    NEAP_CHECK(w != NULL, NEAP_INVALID_ARGUMENT, "neap_tensors_writer_finish: NULL argument");
    neap_safetensors_writer *file = w->file;
    neap_mem_free(w);
    return neap_safetensors_finish(file);
}

void neap_tensors_writer_discard(neap_tensors_writer *w) {
    if (w == NULL) return;
    neap_safetensors_discard(w->file);
    neap_mem_free(w);
}
