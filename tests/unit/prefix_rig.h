/* A small model's caches, prefix cache and its directory, for tests: every row and state says which tokens led to it.
 * */
#ifndef NEAP_TESTS_PREFIX_RIG_H
#define NEAP_TESTS_PREFIX_RIG_H

#include "unit/store_fixture.h"

#include "base/arena.h"
#include "engine/prefix_disk_inner.h"

enum { RIG_ROW = 8, RIG_STATE = 300, RIG_WINDOW = 20, RIG_LAYERS = 3 };
static const neap_cache_layer_spec RIG_SPECS[RIG_LAYERS] = {
    {.state_floats = RIG_STATE, .window_floats = RIG_WINDOW},
    {.latent = {NEAP_ROWS_F32, RIG_ROW, 0}},
    {.latent = {NEAP_ROWS_F32, RIG_ROW, 0}, .index = {NEAP_ROWS_F32, 32}}};

typedef struct rig_options {
    int32_t slots, pages, slot_pages, states;
    uint8_t model;
    uint64_t bytes_max;
} rig_options;
static const rig_options RIG_USUAL = {
    .slots = 3, .pages = 48, .slot_pages = 16, .states = 12, .model = 1, .bytes_max = (uint64_t)1 << 30};

typedef struct rig {
    neap_arena *arena;
    neap_caches caches;
    neap_prefix *prefix;
    neap_prefix_disk *disk;
} rig;

static inline neap_status rig_try_open(rig *r, const char *dir, const rig_options *o) {
    neap_prefix_disk_options d = {.dir = dir, .bytes_max = o->bytes_max, .log = {store_log, NULL}};
    memset(d.model_key, o->model, sizeof d.model_key);
    return neap_prefix_disk_open(&r->disk, r->prefix, &r->caches, &d);
}

static inline void rig_make_caches(rig *r, const rig_options *o) {
    neap_prefix_options p = {.n_states = o->states, .n_nodes = o->pages, .hash_seed = 7, .hash_bits = 128};
    assert_int_equal(neap_arena_create(&r->arena, "rig"), NEAP_OK);
    assert_int_equal(neap_caches_create(&r->caches, r->arena, RIG_SPECS, RIG_LAYERS, o->slots, o->pages, o->slot_pages),
                     NEAP_OK);
    assert_int_equal(neap_prefix_create(&r->prefix, r->arena, &r->caches, &p), NEAP_OK);
}

static inline void rig_open(rig *r, const char *dir, const rig_options *o) {
    rig_make_caches(r, o);
    assert_int_equal(rig_try_open(r, dir, o), NEAP_OK);
}

static inline void rig_close(rig *r) {
    neap_prefix_disk_close(r->disk);
    assert_int_equal(neap_prefix_audit(r->prefix), NEAP_OK);
    assert_int_equal(neap_caches_audit(&r->caches), NEAP_OK);
    neap_arena_destroy(r->arena);
}

/* Until nothing is queued, read or written. */
static inline void rig_settle(rig *r) {
    for (bool is_busy = true; is_busy;) {
        (void)neap_prefix_disk_settle(r->disk);
        (void)pthread_mutex_lock(&r->disk->lock);
        is_busy = r->disk->load.state != NEAP_PREFIX_IDLE;
        for (int i = 0; i < NEAP_PREFIX_JOBS; i++) is_busy |= r->disk->jobs[i].state != NEAP_PREFIX_IDLE;
        (void)pthread_mutex_unlock(&r->disk->lock);
        if (is_busy) neap_prefix_disk_wait(r->disk, 1000);
    }
}

static inline neap_prefix_disk_stats rig_stats(const rig *r) {
    neap_prefix_disk_stats s;
    neap_prefix_disk_statistics(r->disk, &s);
    return s;
}

/* ---- content ---- */

static inline uint64_t rig_mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 31;
}

/* Tokens of a conversation; the first n_alike are those of conversation 0. */
static inline void rig_tokens(int32_t *tokens, int64_t n, uint32_t conversation, int64_t n_alike) {
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(rig_mix(i < n_alike ? 0 : conversation, (uint64_t)i) % 150000);
}

static inline uint64_t rig_hash(const int32_t *tokens, int64_t n) {
    uint64_t h = 99;
    for (int64_t i = 0; i < n; i++) h = rig_mix(h, (uint64_t)tokens[i]);
    return h;
}

static inline float rig_value(uint64_t h, uint64_t what) { return (float)(rig_mix(h, what) % 16777216); }

static inline void rig_state(uint64_t h, float *state) {
    for (int i = 0; i < RIG_STATE + RIG_WINDOW; i++) state[i] = rig_value(h, 1000 + (uint64_t)i);
}

static inline void rig_row(uint64_t h, uint64_t layer, float row[32]) {
    for (uint64_t i = 0; i < 32; i++) row[i] = rig_value(h, 100 * layer + i);
}

/* As a model would: rows from .. to - 1 and the state after `to` tokens. */
static inline void rig_compute(rig *r, int32_t slot, const int32_t *tokens, int64_t from, int64_t to) {
    float row[32], state[RIG_STATE + RIG_WINDOW];
    uint64_t h = rig_hash(tokens, from);
    for (int64_t i = from; i < to; i++) {
        h = rig_mix(h, (uint64_t)tokens[i]);
        for (int32_t layer = 1; layer < RIG_LAYERS; layer++) {
            rig_row(h, (uint64_t)layer, row);
            neap_latent_put(&RIG_SPECS[layer].latent, neap_caches_latent_page(&r->caches, layer, slot, i), i % 64, row);
        }
        rig_row(h, 9, row);
        neap_index_put(&RIG_SPECS[2].index, neap_caches_index_page(&r->caches, 2, slot, i), i % 64, row);
    }
    rig_state(h, state);
    neap_caches_state_load(&r->caches, slot, (const uint8_t *)state);
}

/* Whether the first n rows and the state are what computing would have made. */
static inline bool rig_is_right(const rig *r, int32_t slot, const int32_t *tokens, int64_t n) {
    float row[32], got[32], state[RIG_STATE + RIG_WINDOW], kept[RIG_STATE + RIG_WINDOW];
    uint64_t h = rig_hash(tokens, 0);
    bool is_right = true;
    for (int64_t i = 0; i < n; i++) {
        h = rig_mix(h, (uint64_t)tokens[i]);
        for (int32_t layer = 1; layer < RIG_LAYERS; layer++) {
            rig_row(h, (uint64_t)layer, row);
            neap_caches_get_latent(&r->caches, layer, slot, i, got);
            is_right &= memcmp(row, got, RIG_ROW * sizeof(float)) == 0;
        }
        rig_row(h, 9, row);
        neap_caches_get_index(&r->caches, 2, slot, i, got);
        is_right &= memcmp(row, got, sizeof row) == 0;
    }
    rig_state(h, state);
    neap_caches_state_save(&r->caches, slot, (uint8_t *)kept);
    return is_right && (n == 0 || memcmp(state, kept, sizeof state) == 0);
}

/* Computes what is not there, with checkpoints at points[], the last of them being the end; saves each. Returns how
 * many tokens were there. */
static inline int64_t rig_run(rig *r, const char *space, const int32_t *tokens, const int64_t *points, int n_points,
                              bool is_saved) {
    int32_t slot;
    int64_t n = points[n_points - 1], at, found;
    assert_int_equal(neap_prefix_open(r->prefix, space, tokens, n, n, &slot, &found), NEAP_OK);
    assert_true(rig_is_right(r, slot, tokens, found));
    at = found;
    for (int i = 0; i < n_points; i++) {
        bool kept = false;
        if (points[i] <= at) continue;
        rig_compute(r, slot, tokens, at, points[i]);
        at = points[i];
        assert_int_equal(neap_prefix_put(r->prefix, slot, space, tokens, at, true, &kept), NEAP_OK);
        if (is_saved && kept) neap_prefix_disk_save(r->disk, space, tokens, at);
    }
    assert_int_equal(neap_prefix_close(r->prefix, slot), NEAP_OK);
    return found;
}

/* Loads the longest point and returns its length; 0: nothing came. What came must be right. */
static inline int64_t rig_load(rig *r, const char *space, const int32_t *tokens, int64_t n_max) {
    neap_status status = neap_prefix_disk_load(r->disk, space, tokens, n_max);
    if (status == NEAP_NOT_FOUND) return 0;
    assert_int_equal(status, NEAP_OK);
    rig_settle(r);
    int32_t slot;
    int64_t found;
    assert_int_equal(neap_prefix_open(r->prefix, space, tokens, n_max, n_max, &slot, &found), NEAP_OK);
    assert_true(rig_is_right(r, slot, tokens, found));
    assert_int_equal(neap_prefix_close(r->prefix, slot), NEAP_OK);
    return found;
}

#endif
