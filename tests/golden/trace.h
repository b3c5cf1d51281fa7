/* What a forward shows for every position of a sequence, kept so that two runs can be compared bit by bit: all
 * logits as they are, every other tensor (hidden states, experts, selections) as one hash per row, the caches
 * as one hash each. */
#ifndef TRACE_H
#define TRACE_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/forward_internal.h"
#include "kernels/cpu.h"

#ifndef NEAP_TEST_DATA
#define NEAP_TEST_DATA "tests/data"
#endif

enum { TRACE_NAMES_MAX = 160, TRACE_CACHES_MAX = 96, TRACE_MODELS_MAX = 64 };

typedef struct trace {
    int32_t n_rows, vocab;
    float *logits;    /* [n_rows][vocab] */
    bool *has_logits; /* [n_rows] */
    int32_t n_names;
    char names[TRACE_NAMES_MAX][24];
    uint64_t *rows; /* [TRACE_NAMES_MAX][n_rows]; 0: not shown */
    int32_t n_caches;
    char caches[TRACE_CACHES_MAX][32];
    uint64_t cache_hashes[TRACE_CACHES_MAX];
} trace;

static inline void *need(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (p == NULL) abort();
    return p;
}

static inline void trace_open(trace *t, int32_t n_rows, int32_t vocab) {
    *t = (trace){.n_rows = n_rows, .vocab = vocab};
    t->logits = need((size_t)n_rows * (size_t)vocab * sizeof(float));
    t->has_logits = need((size_t)n_rows * sizeof(bool));
    t->rows = need((size_t)n_rows * TRACE_NAMES_MAX * sizeof(uint64_t));
}

static inline void trace_close(trace *t) {
    free(t->logits);
    free(t->has_logits);
    free(t->rows);
    *t = (trace){0};
}

static inline void trace_clear(trace *t) {
    const int32_t n_rows = t->n_rows;
    const int32_t vocab = t->vocab;
    trace_close(t);
    trace_open(t, n_rows, vocab);
}

static inline uint64_t hash_bytes(const void *data, size_t n) {
    const unsigned char *p = data;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h | 1; /* never 0 */
}

/* Taps run inside the step, possibly on another thread: no cmocka asserts here. */
#define DEMAND(x)                                                             \
    do {                                                                      \
        if (!(x)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                          \
        }                                                                     \
    } while (0)

static inline void trace_tap(void *user, const neap_tap *tap) {
    trace *t = user;
    if (tap->position < 0) {
        size_t n = 4;
        for (int32_t i = 0; i < tap->rank; i++) n *= (size_t)tap->shape[i];
        DEMAND(t->n_caches < TRACE_CACHES_MAX);
        snprintf(t->caches[t->n_caches], sizeof t->caches[0], "%s", tap->name);
        t->cache_hashes[t->n_caches++] = hash_bytes(tap->data, n);
        return;
    }
    const size_t width = (size_t)tap->shape[1] * 4;
    DEMAND(tap->rank == 2);
    DEMAND(tap->position + tap->shape[0] <= t->n_rows);
    int32_t name = 0;
    while (name < t->n_names && strcmp(t->names[name], tap->name) != 0) name++;
    if (name == t->n_names) {
        DEMAND(name < TRACE_NAMES_MAX);
        snprintf(t->names[t->n_names++], sizeof t->names[0], "%s", tap->name);
    }
    const bool is_logits = strcmp(tap->name, "logits") == 0;
    for (int64_t r = 0; r < tap->shape[0]; r++) {
        const int64_t position = tap->position + r;
        const char *row = (const char *)tap->data + (size_t)r * width;
        uint64_t *place = &t->rows[(int64_t)name * t->n_rows + position];
        DEMAND(*place == 0); /* every position is computed once */
        *place = hash_bytes(row, width);
        if (!is_logits) continue;
        DEMAND(tap->shape[1] == t->vocab);
        memcpy(t->logits + position * t->vocab, row, width);
        t->has_logits[position] = true;
    }
}

/* Bit by bit. `what` names the run in the message. */
static inline void trace_compare(const trace *a, const trace *b, const char *model, const char *what) {
    if (a->n_names != b->n_names || a->n_caches != b->n_caches) {
        fail_msg("%s, %s: %d and %d tensors, %d and %d caches", model, what, a->n_names, b->n_names, a->n_caches,
                 b->n_caches);
    }
    for (int32_t i = 0; i < a->n_names; i++) {
        int32_t k = 0;
        while (k < b->n_names && strcmp(a->names[i], b->names[k]) != 0) k++;
        if (k == b->n_names) fail_msg("%s, %s: no %s", model, what, a->names[i]);
        for (int32_t r = 0; r < a->n_rows; r++) {
            if (a->rows[(int64_t)i * a->n_rows + r] != b->rows[(int64_t)k * b->n_rows + r]) {
                fail_msg("%s, %s: %s differs at position %d", model, what, a->names[i], r);
            }
        }
    }
    assert_memory_equal(a->has_logits, b->has_logits, (size_t)a->n_rows * sizeof(bool));
    assert_memory_equal(a->logits, b->logits, (size_t)a->n_rows * (size_t)a->vocab * sizeof(float));
    for (int32_t i = 0; i < a->n_caches; i++) {
        assert_string_equal(a->caches[i], b->caches[i]);
        if (a->cache_hashes[i] != b->cache_hashes[i]) fail_msg("%s, %s: %s differs", model, what, a->caches[i]);
    }
}

/* ---- models ---- */

/* Directories of the golden models in the tree, and of a larger set if NEAP_GOLDEN_DIR names one; sorted. */
static inline int list_models(char paths[TRACE_MODELS_MAX][512]) {
    const char *roots[2] = {NEAP_TEST_DATA "/golden", getenv("NEAP_GOLDEN_DIR")};
    int n = 0;
    for (int i = 0; i < 2; i++) {
        char root[400];
        if (roots[i] == NULL) continue;
        snprintf(root, sizeof root, "%s/models", roots[i]);
        DIR *d = opendir(root);
        if (d == NULL) continue;
        for (struct dirent *entry = readdir(d); entry != NULL && n < TRACE_MODELS_MAX; entry = readdir(d)) {
            if (entry->d_name[0] == '.') continue;
            snprintf(paths[n++], 512, "%.390s/%.100s", root, entry->d_name);
        }
        closedir(d);
    }
    qsort(paths, (size_t)n, 512, (int (*)(const void *, const void *))strcmp);
    return n;
}

/* Built so that everything takes many times longer: under a sanitizer, or without vector kernels. */
static inline bool is_slow_build(void) {
    const char *sanitizer = getenv("NEAP_SANITIZE");
    return (sanitizer && *sanitizer) || !NEAP_SIMD;
}

/* Two golden models once more with INT8 weights, below a new folder (quantised_remove): one whose other weights are
 * F32, and one with MXFP4 experts. The new number of paths. */
static char quantised_root[64];
static inline int quantised_models(char paths[TRACE_MODELS_MAX][512], int n) {
    static const struct {
        const char *from, *to;
        int32_t experts;
    } models[] = {{"kimi-linear-f32-float32", "linear-int8", NEAP_WEIGHTS_INT8},
                  {"kimi-k3-mini-mxfp4", "mini-mxfp4-int8", NEAP_WEIGHTS_MXFP4}};
    snprintf(quantised_root, sizeof quantised_root, "/tmp/neap-int8-XXXXXX");
    if (mkdtemp(quantised_root) == NULL) abort();
    for (size_t i = 0; i < sizeof models / sizeof *models && n < TRACE_MODELS_MAX; i++) {
        char from[512];
        neap_quantize_options o;
        neap_quantize_options_init(&o);
        o.experts = models[i].experts;
        o.linear = NEAP_WEIGHTS_INT8;
        o.n_threads = 1;
        snprintf(from, sizeof from, "%s/golden/models/%s", NEAP_TEST_DATA, models[i].from);
        snprintf(paths[n], 512, "%s/%s", quantised_root, models[i].to);
        if (neap_quantize(from, paths[n], &o) != NEAP_OK) {
            fprintf(stderr, "%s\n", neap_last_error());
            abort();
        }
        n++;
    }
    return n;
}
static inline int quantised_remove(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", quantised_root);
    return quantised_root[0] ? system(command) : 0;
}

static inline const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static inline neap_model *open_model(const char *path, const char *cpu) {
    neap_model *m = NULL;
    neap_model_options o;
    neap_model_options_init(&o);
    o.cpu = cpu;
    o.n_threads = 1;
    if (neap_model_open(&m, path, &o) != NEAP_OK) fail_msg("%s: %s", path, neap_last_error());
    return m;
}

/* All levels of this CPU that keep the order of the scalar sums: everything but tiles (docs/numerics.md section 1). */
static inline const char *exact_levels(void) {
    static char text[128] = "scalar,";
    neap_cpu_text(neap_cpu_flags() & ~(uint32_t)NEAP_CPU_AMX, text + 7, sizeof text - 7);
    for (char *c = text; *c; c++) *c = *c == ' ' ? ',' : *c;
    return text;
}

static inline uint32_t random_below(uint32_t *state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(*state >> 4) * n) >> 28);
}

static inline void random_tokens(int32_t *tokens, int32_t n, int32_t vocab, uint32_t seed) {
    for (int32_t i = 0; i < n; i++) tokens[i] = (int32_t)random_below(&seed, (uint32_t)vocab);
}

#endif
