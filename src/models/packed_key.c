/* What packed weights depend on, as a key.
 *
 *   packer   what this build makes of a small matrix of every kind, and of a few numbers that go through the C library:
 *            a change of the layout is seen without anybody having to count versions
 *   config   the bytes of config.json
 *   tensors  the walk: every tensor that the model asks for, the one that was found for it, where that lies
 *   key = SHA-256 of the three;  the shards' sizes, times and inodes are compared one by one (packed_read.c)
 * Options are no part of it. Those that change what is accepted (strict, allow_nonfinite) are applied to the headers at
 * every start, and weights with non-finite numbers are not kept at all; the rest (latent_norm_eps, cpu, threads) does
 * not change a packed byte. One file serves every instruction set, so the CPU is no part of it either.
 *
 * The name of the file comes from the model's directory, so that a model that changes replaces its file instead of
 * leaving the old one.
 *
 * Called by packed_write.c. Owns the notes, in neap_mem memory. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "format/json.h"
#include "models/config.h"
#include "models/packed.h"

/* Counts changes of the order of things in a block; what lies inside a matrix is probed. */
enum { LAYOUT = 1 };

static void add_number(neap_sha256 *h, int64_t v) { neap_sha256_add(h, &v, sizeof v); }

/* The terminator keeps neighbours apart. */
static void add_text(neap_sha256 *h, const char *s) { neap_sha256_add(h, s, strlen(s) + 1); }

/* ---------------------------------------------------------------- packer ---------------------- */

enum { PROBE_N = 20, PROBE_K = 160, PROBE_BYTES = 32 * PROBE_K * 4 };

/* A matrix of 20 x 160 in the form `dtype`, packed. */
static neap_status probe(neap_sha256 *h, neap_dtype dtype, char *memory) {
    static const float ones[4] = {1, 1, 1, 1};
    char *source = memory, *panels = memory + PROBE_BYTES;
    uint32_t seed = 1;
    for (int i = 0; i < PROBE_BYTES; i++) {
        seed = seed * 1664525u + 1013904223u;
        source[i] = (char)(seed >> 24 & 0x37); /* finite in every form */
    }
    neap_matrix m;
    memset(&m, 0, sizeof m);
    if (dtype == NEAP_DTYPE_I8)
        neap_matrix_shape_int8(&m, PROBE_N, PROBE_K, 32);
    else
        neap_matrix_shape(&m, neap_match_kind(dtype), PROBE_N, PROBE_K);
    NEAP_CHECK(neap_matrix_panel_bytes(&m) <= PROBE_BYTES, NEAP_INTERNAL, "a probe does not fit");
    neap_pack_source s = {.dtype = dtype, .data = source, .row_stride = PROBE_K, .col_stride = 1, .scale_inv = ones};
    if (dtype == NEAP_DTYPE_U8) {
        s.row_stride = PROBE_K / 2;
        s.scale_e8m0 = (const uint8_t *)source + PROBE_BYTES / 2;
    }
    memset(panels, 0, PROBE_BYTES);
    (void)neap_matrix_pack(&m, panels, &s, 0, neap_matrix_panels(&m));
    add_number(h, (int64_t)neap_matrix_panel_bytes(&m));
    neap_sha256_add(h, panels, (size_t)neap_matrix_panel_bytes(&m));
    if (m.kind != NEAP_MATRIX_INT8) return NEAP_OK;
    memset(panels, 0, PROBE_BYTES);
    neap_matrix_pack_scales(&m, (float *)(void *)panels, (const float *)(const void *)source);
    neap_sha256_add(h, panels, (size_t)neap_matrix_scale_count(&m) * sizeof(float));
    return NEAP_OK;
}

static neap_status add_packer(uint8_t out[NEAP_SHA256_BYTES]) {
    static const neap_dtype forms[] = {NEAP_DTYPE_F32, NEAP_DTYPE_BF16,    NEAP_DTYPE_F16,
                                       NEAP_DTYPE_I8,  NEAP_DTYPE_F8_E4M3, NEAP_DTYPE_U8};
    neap_sha256 h;
    void *memory = NULL;
    neap_sha256_begin(&h);
    add_text(&h, "packed weights");
    add_number(&h, LAYOUT);
    add_text(&h, neap_version());
    NEAP_TRY(neap_mem_alloc(2 * (size_t)PROBE_BYTES, &memory));
    neap_status status = NEAP_OK;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0] && status == NEAP_OK; i++)
        status = probe(&h, forms[i], memory);
    neap_mem_free(memory);
    for (int i = -64; i < 64; i++) { /* A_log goes through the C library's exp */
        float e = expf((float)i * 0.173f);
        neap_sha256_add(&h, &e, sizeof e);
    }
    neap_sha256_end(&h, out);
    return status;
}

/* ---------------------------------------------------------------- config ---------------------- */

static neap_status add_config(const char *dir, uint8_t out[NEAP_SHA256_BYTES]) {
    char path[4096];
    int n_path = snprintf(path, sizeof path, "%s/config.json", dir);
    NEAP_CHECK(n_path > 0 && (size_t)n_path < sizeof path, NEAP_INVALID_ARGUMENT, "%s: the path is too long", dir);
    char *text = NULL;
    size_t n = 0;
    NEAP_TRY(neap_file_read(&text, &n, path, NEAP_CONFIG_BYTES_MAX));
    neap_sha256 h;
    neap_sha256_begin(&h);
    neap_sha256_add(&h, text, n);
    neap_sha256_end(&h, out);
    neap_mem_free(text);
    return NEAP_OK;
}

/* ---------------------------------------------------------------- tensors --------------------- */

typedef struct table {
    neap_sha256 h;
    const neap_matches *matches;
    int64_t i;
} table;

static void add_tensor(neap_sha256 *h, const neap_stored_tensor *t) {
    if (t == NULL) {
        add_number(h, -1);
        return;
    }
    add_text(h, t->name);
    add_number(h, t->dtype);
    add_number(h, t->rank);
    neap_sha256_add(h, t->shape, (size_t)t->rank * sizeof *t->shape);
    const int64_t place[3] = {(int64_t)t->bytes, (int64_t)t->offset, t->shard};
    neap_sha256_add(h, place, sizeof place);
}

static bool add_want(void *user, const neap_want *want) {
    table *t = user;
    const neap_match *match = &t->matches->items[t->i++];
    add_text(&t->h, want->name);
    const int64_t shape[4] = {want->kind, want->n, want->k, want->group};
    neap_sha256_add(&t->h, shape, sizeof shape);
    add_tensor(&t->h, match->data);
    add_tensor(&t->h, match->scale);
    return true;
}

static void add_tensors(const neap_packed *k, const neap_matches *matches, uint8_t out[NEAP_SHA256_BYTES]) {
    table t = {.matches = matches};
    neap_sha256_begin(&t.h);
    for (int32_t i = 0; i < neap_checkpoint_shards(k->c); i++) add_text(&t.h, neap_checkpoint_shard_name(k->c, i));
    neap_sha256_add(&t.h, matches->group_bytes, (size_t)matches->n_groups * sizeof *matches->group_bytes);
    (void)neap_weights_visit((neap_model *)k->m, &matches->names, add_want, &t); /* this visitor changes nothing */
    neap_sha256_end(&t.h, out);
}

/* ---------------------------------------------------------------- shards ---------------------- */

/* Two changes within one tick of the file system's clock have the same time. */
enum { TICK_MS = 20 };

neap_status neap_packed_stamp(const neap_checkpoint *c, neap_packed_notes *notes) {
    struct timespec now, tick = {.tv_nsec = TICK_MS * 1000000L};
    bool is_young = false;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t old_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - TICK_MS * 1000000LL;
    for (int32_t i = 0; i < (int32_t)notes->n_shards; i++) {
        NEAP_TRY(neap_checkpoint_stamp(c, i, &notes->shards[i].stamp));
        if (notes->shards[i].stamp.changed_ns > old_ns) is_young = true;
    }
    if (!is_young) return NEAP_OK;
    (void)nanosleep(&tick, NULL);
    for (int32_t i = 0; i < (int32_t)notes->n_shards; i++)
        NEAP_TRY(neap_checkpoint_stamp(c, i, &notes->shards[i].stamp));
    return NEAP_OK;
}

/* ---------------------------------------------------------------- name ------------------------ */

static void make_name(neap_packed *k) {
    uint8_t digest[NEAP_SHA256_BYTES];
    char base[48], hex[17];
    neap_sha256 h;
    neap_sha256_begin(&h);
    add_text(&h, k->origin);
    neap_sha256_end(&h, digest);
    for (int i = 0; i < 8; i++) (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    const char *slash = strrchr(k->origin, '/');
    (void)snprintf(base, sizeof base, "%s", slash != NULL && slash[1] != 0 ? slash + 1 : "model");
    for (char *p = base; *p != 0; p++) {
        bool is_plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' ||
                        *p == '_' || (*p == '.' && p > base);
        if (!is_plain) *p = '_';
    }
    (void)snprintf(k->name, sizeof k->name, "%s-%s%s", base, hex, neap_store_suffix(NEAP_STORE_WEIGHTS));
}

neap_status neap_packed_make_key(neap_packed *k, const neap_matches *t) {
    _Static_assert(NEAP_STORE_ORIGIN >= PATH_MAX, "realpath writes up to PATH_MAX bytes");
    NEAP_CHECK(realpath(k->m->dir, k->origin) != NULL, NEAP_IO, "%s: %s", k->m->dir, strerror(errno));
    make_name(k);
    int32_t n_shards = neap_checkpoint_shards(k->c);
    k->notes_bytes = sizeof *k->notes + (size_t)n_shards * sizeof k->notes->shards[0];
    void *p = NULL;
    NEAP_TRY(neap_mem_alloc(k->notes_bytes, &p));
    k->notes = p;
    k->notes->n_shards = (uint64_t)n_shards;
    NEAP_TRY(add_packer(k->notes->parts[NEAP_PART_PACKER]));
    NEAP_TRY(add_config(k->m->dir, k->notes->parts[NEAP_PART_CONFIG]));
    add_tensors(k, t, k->notes->parts[NEAP_PART_TENSORS]);
    neap_sha256 h;
    neap_sha256_begin(&h);
    neap_sha256_add(&h, k->notes->parts, sizeof k->notes->parts);
    neap_sha256_end(&h, k->key);
    return neap_packed_stamp(k->c, k->notes);
}
