/* A golden checkpoint in memory: tensors can be changed, added, removed, then written into a directory of its own and
 * opened. Everything is static and sized for the tiny models. */
#ifndef NEAP_TESTS_MODEL_FIXTURE_H
#define NEAP_TESTS_MODEL_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "models/config.h"
#include "models/weights.h"

enum { FX_TENSORS = 512, FX_NAME = 200, FX_CONFIG = 8192 };

typedef struct fixture {
    neap_out_tensor t[FX_TENSORS];
    char names[FX_TENSORS][FX_NAME];
    size_t bytes[FX_TENSORS];
    int n;
    char config[FX_CONFIG];
    char dir[64];
    int n_logged[4]; /* by level */
    char last_log[4][1024];
} fixture;

static inline void fx_log(void *user, neap_log_level level, const char *text) {
    fixture *fx = user;
    fx->n_logged[level]++;
    (void)snprintf(fx->last_log[level], sizeof fx->last_log[level], "%s", text);
}

static inline void *fx_zeros(size_t n) {
    void *p = calloc(n > 0 ? n : 1, 1);
    assert_non_null(p);
    return p;
}

static inline fixture *fx_load(const char *model) {
    fixture *fx = fx_zeros(sizeof *fx);
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/golden/models/%s", NEAP_TEST_DATA, model);
    neap_checkpoint *c = NULL;
    if (neap_checkpoint_open(&c, path, NULL) != NEAP_OK) fail_msg("%s", neap_last_error());
    for (int64_t i = 0; i < neap_checkpoint_count(c); i++) {
        const neap_stored_tensor *s = neap_checkpoint_at(c, i);
        neap_out_tensor *t = &fx->t[fx->n];
        (void)snprintf(fx->names[fx->n], FX_NAME, "%s", s->name);
        *t = (neap_out_tensor){.name = fx->names[fx->n], .dtype = s->dtype, .rank = s->rank};
        memcpy(t->shape, s->shape, sizeof t->shape);
        void *data = fx_zeros(s->bytes);
        assert_int_equal(neap_checkpoint_read(c, s, 0, s->bytes, data), NEAP_OK);
        t->data = data;
        fx->bytes[fx->n++] = s->bytes;
    }
    neap_checkpoint_close(c);
    (void)strncat(path, "/config.json", sizeof path - strlen(path) - 1);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(neap_file_read(&text, &n, path, FX_CONFIG - 1), NEAP_OK);
    memcpy(fx->config, text, n + 1);
    neap_mem_free(text);
    /* In memory where that exists: a checkpoint is written with fsync, some thousand times. */
    (void)snprintf(fx->dir, sizeof fx->dir, "%s/neap-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(fx->dir));
    return fx;
}

static inline void fx_free(fixture *fx) {
    for (int i = 0; i < fx->n; i++) free((void *)(uintptr_t)fx->t[i].data);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/config.json", fx->dir);
    (void)unlink(path);
    (void)rmdir(fx->dir);
    free(fx);
}

static inline int fx_find(const fixture *fx, const char *name) {
    for (int i = 0; i < fx->n; i++)
        if (strcmp(fx->t[i].name, name) == 0) return i;
    fail_msg("no tensor %s", name);
    return -1;
}

/* First tensor whose name ends so. */
static inline int fx_find_tail(const fixture *fx, const char *tail) {
    for (int i = 0; i < fx->n; i++) {
        size_t n = strlen(fx->t[i].name), k = strlen(tail);
        if (n >= k && strcmp(fx->t[i].name + n - k, tail) == 0) return i;
    }
    fail_msg("no tensor ...%s", tail);
    return -1;
}

/* Replaces the data by zeroed bytes of another type and shape; returns them. */
static inline void *fx_reshape(fixture *fx, int i, neap_dtype dtype, int32_t rank, int64_t a, int64_t b, int64_t c,
                               int64_t d) {
    int64_t shape[4] = {a, b, c, d};
    size_t n = 1;
    for (int32_t k = 0; k < rank; k++) n *= (size_t)shape[k];
    fx->bytes[i] = n * (size_t)neap_dtype_bits(dtype) / 8;
    free((void *)(uintptr_t)fx->t[i].data);
    void *data = fx_zeros(fx->bytes[i]);
    fx->t[i].dtype = dtype;
    fx->t[i].rank = rank;
    memcpy(fx->t[i].shape, shape, sizeof shape);
    fx->t[i].data = data;
    return data;
}

static inline void fx_rename(fixture *fx, int i, const char *name) {
    size_t n = strlen(name);
    assert_true(n < FX_NAME);
    memmove(fx->names[i], name, n + 1);
    fx->t[i].name = fx->names[i];
}

static inline void *fx_add(fixture *fx, const char *name, neap_dtype dtype, int32_t rank, int64_t a, int64_t b) {
    assert_true(fx->n < FX_TENSORS);
    int i = fx->n++;
    fx_rename(fx, i, name);
    return fx_reshape(fx, i, dtype, rank, a, b, 1, 1);
}

static inline void fx_drop(fixture *fx, int i) {
    free((void *)(uintptr_t)fx->t[i].data);
    fx->n--;
    if (i == fx->n) return;
    fx->t[i] = fx->t[fx->n];
    fx->bytes[i] = fx->bytes[fx->n];
    fx_rename(fx, i, fx->names[fx->n]);
}

/* Replaces `from` in the config by `to` (shorter or longer). */
static inline void fx_config(fixture *fx, const char *from, const char *to) {
    char *at = strstr(fx->config, from);
    if (at == NULL) fail_msg("config has no %s", from);
    char rest[FX_CONFIG];
    (void)snprintf(rest, sizeof rest, "%s", at + strlen(from));
    (void)snprintf(at, FX_CONFIG - (size_t)(at - fx->config), "%s%s", to, rest);
}

static inline void fx_write(const fixture *fx, int without) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", fx->dir);
    static neap_out_tensor t[FX_TENSORS];
    int64_t n = 0;
    for (int i = 0; i < fx->n; i++)
        if (i != without) t[n++] = fx->t[i];
    if (neap_safetensors_write(path, t, n) != NEAP_OK) fail_msg("%s", neap_last_error());
    (void)snprintf(path, sizeof path, "%s/config.json", fx->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(fx->config, f);
    (void)fclose(f);
}

static inline neap_model_options fx_options(fixture *fx) {
    neap_model_options o;
    neap_model_options_init(&o);
    o.log = fx_log;
    o.log_user = fx;
    o.n_threads = 1;
    memset(fx->n_logged, 0, sizeof fx->n_logged);
    return o;
}

/* Opens what is written. */
static inline neap_status fx_open(fixture *fx, neap_model **m, bool describe_only) {
    neap_model_options o = fx_options(fx);
    o.describe_only = describe_only;
    return neap_model_open(m, fx->dir, &o);
}

/* Writes and opens; the model is closed again. Returns the status. */
static inline neap_status fx_try(fixture *fx, bool describe_only) {
    fx_write(fx, -1);
    neap_model *m = NULL;
    neap_status s = fx_open(fx, &m, describe_only);
    assert_true((s == NEAP_OK) == (m != NULL));
    neap_model_close(m);
    return s;
}

static inline neap_model *fx_must_open(fixture *fx) {
    fx_write(fx, -1);
    neap_model *m = NULL;
    if (fx_open(fx, &m, false) != NEAP_OK) fail_msg("%s", neap_last_error());
    return m;
}

static inline void fx_expect(neap_status got, neap_status wanted, const char *part) {
    if (got != wanted || (got != NEAP_OK && part != NULL && strstr(neap_last_error(), part) == NULL))
        fail_msg("%s (%s), wanted %s with '%s'", neap_status_name(got), got == NEAP_OK ? "" : neap_last_error(),
                 neap_status_name(wanted), part != NULL ? part : "");
}

#endif
