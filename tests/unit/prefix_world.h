/* A small world around the prefix cache, for test_prefix.c: caches whose contents follow from the tokens, running
 * sequences, and two naive prefix caches to compare with. */
#ifndef NEAP_TEST_PREFIX_WORLD_H
#define NEAP_TEST_PREFIX_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cache/prefix_inner.h"

enum { R = 3, D = 2, MAX = 640, SEEN = 4000 };

static const neap_cache_layer_spec HYBRID[] = {
    {.state_floats = 2, .window_floats = 3},
    {.latent = {NEAP_ROWS_F32, R, 0}, .index = {NEAP_ROWS_F32, D}},
    {.state_floats = 2},
    {.latent = {NEAP_ROWS_F32, R, 0}},
};
static const neap_cache_layer_spec ATTENTION[] = {{.latent = {NEAP_ROWS_F32, R, 0}}}; /* one layer without state */
static const neap_cache_layer_spec RECURRENT[] = {{.state_floats = 2}};               /* one layer without pages */

/* ---- what caches would hold: a chain over space and tokens, 24 bits at a time (exact in F32) ---- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29, x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (x ^ x >> 32) & 0xffffffffffff;
}
static uint64_t start_of(const char *space) {
    uint64_t h = 77;
    for (; space && *space; space++) h = mix(h * 31 + (uint8_t)*space);
    return h;
}
static uint64_t next_of(uint64_t h, int32_t token) { return mix(h * 1000003 + (uint32_t)token + 1); }
static void to_floats(uint64_t h, int n, float *x) {
    for (int i = 0; i < n; i++) x[i] = (float)((i % 2 ? h >> 24 : h & 0xffffff) + (uint64_t)i / 2);
}
static uint64_t from_floats(const float *x) { return (uint64_t)x[1] << 24 | (uint64_t)x[0]; }

/* ---- a world: caches, prefix cache, running sequences, and all that was ever entered ---- */

typedef struct sequence {
    int32_t slot; /* -1: not running */
    const char *space;
    int32_t tokens[MAX];
    int64_t n, done, positions;
} sequence;

typedef struct entry { /* tokens that were entered */
    const char *space;
    int32_t tokens[MAX];
    int64_t n;
    bool with_state;
} entry;

typedef struct world {
    neap_arena *arena;
    const neap_cache_layer_spec *specs;
    int32_t n_layers;
    bool has_state;
    neap_caches c;
    neap_prefix *p;
    sequence seqs[6];
    entry *seen;
    int32_t n_seen;
    uint64_t allocations;
    struct {
        bool used;
        neap_prefix_hold h;
        entry what;
        uint64_t sum; /* over all bytes */
    } holds[NEAP_PREFIX_HOLDS];
    entry room;
    bool room_open;
    int64_t n_found, n_busy, n_copied, n_shared; /* that the test does what it means to */
} world;

static const char *const SPACES[] = {NULL, "", "a", "aa", "b"};

static world *make(const neap_cache_layer_spec *specs, int32_t n_layers, int32_t n_pages, int32_t n_states,
                   uint32_t bits) {
    static world w;
    w = (world){.specs = specs, .n_layers = n_layers};
    for (int i = 0; i < n_layers; i++) w.has_state |= specs[i].state_floats > 0;
    assert_int_equal(neap_arena_create(&w.arena, "test"), NEAP_OK);
    assert_int_equal(neap_caches_create(&w.c, w.arena, specs, n_layers, 6, n_pages, MAX / 64), NEAP_OK);
    neap_prefix_options o = {.n_states = n_states, .n_nodes = n_pages + 2, .hash_seed = 12345, .hash_bits = bits};
    assert_int_equal(neap_prefix_create(&w.p, w.arena, &w.c, &o), NEAP_OK);
    w.seen = calloc(SEEN, sizeof *w.seen);
    assert_non_null(w.seen);
    for (int i = 0; i < 6; i++) w.seqs[i].slot = -1;
    w.allocations = neap_alloc_calls();
    return &w;
}

static void unmake(world *w) {
    assert_int_equal(neap_alloc_calls(), w->allocations);
    free(w->seen);
    neap_arena_destroy(w->arena);
}

static void audit(const world *w) {
    if (neap_prefix_audit(w->p) != NEAP_OK) fail_msg("%s", neap_last_error());
}

static bool same_space(const char *a, const char *b) { return strcmp(a ? a : "", b ? b : "") == 0; }

/* Position `at` of a slot: reads what is before it, as a layer would, and writes. */
static void compute(world *w, sequence *s, int64_t end) {
    neap_caches *c = &w->c;
    assert_int_equal(neap_caches_check_span(c, s->slot, s->done, end - s->done), NEAP_OK);
    for (; s->done < end; s->done++) {
        for (int32_t l = 0; l < w->n_layers; l++) {
            const neap_cache_layer_spec *spec = &w->specs[l];
            float x[8];
            uint64_t h = start_of(s->space);
            if (spec->state_floats) {
                float *state = c->layers[l].state + s->slot * spec->state_floats;
                if (s->done > 0) h = from_floats(state);
                to_floats(next_of(h, s->tokens[s->done]), (int)spec->state_floats, state);
                if (spec->window_floats)
                    to_floats(next_of(h, s->tokens[s->done]), (int)spec->window_floats,
                              c->layers[l].window + s->slot * spec->window_floats);
            }
            if (!spec->latent.r) continue;
            if (s->done > 0) {
                neap_caches_get_latent(c, l, s->slot, s->done - 1, x);
                h = from_floats(x);
            }
            to_floats(next_of(h, s->tokens[s->done]), R, x);
            neap_latent_put(&spec->latent, neap_caches_latent_page(c, l, s->slot, s->done), s->done % 64, x);
            if (!spec->index.d) continue;
            if (s->done > 0) {
                neap_caches_get_index(c, l, s->slot, s->done - 1, x);
                h = from_floats(x);
            }
            to_floats(next_of(h, s->tokens[s->done]), D, x);
            neap_index_put(&spec->index, neap_caches_index_page(c, l, s->slot, s->done), s->done % 64, x);
        }
    }
}

static void same_floats(const float *x, uint64_t h, int n) {
    float want[8];
    to_floats(h, n, want);
    for (int i = 0; i < n; i++) assert_true(x[i] == want[i]);
}

/* The slot holds what the first n tokens of the sequence make, from the tokens alone. */
static void verify(const world *w, const sequence *s, int64_t n) {
    uint64_t h = start_of(s->space);
    float x[8];
    for (int64_t i = 0; i < n; i++) {
        h = next_of(h, s->tokens[i]);
        for (int32_t l = 0; l < w->n_layers; l++) {
            if (!w->specs[l].latent.r) continue;
            neap_caches_get_latent(&w->c, l, s->slot, i, x);
            same_floats(x, h, R);
            if (!w->specs[l].index.d) continue;
            neap_caches_get_index(&w->c, l, s->slot, i, x);
            same_floats(x, h, D);
        }
    }
    for (int32_t l = 0; l < w->n_layers && n > 0; l++) {
        int64_t size = w->specs[l].state_floats, window = w->specs[l].window_floats;
        if (size) same_floats(w->c.layers[l].state + s->slot * size, h, (int)size);
        if (window) same_floats(w->c.layers[l].window + s->slot * window, h, (int)window);
    }
}

/* ---- the bytes of pages and states outside of slots ---- */

/* Rows [0, n) of page `page` of the tokens, as neap_caches_page_write wants it; the rest as it is. */
static void make_page(const world *w, const entry *e, int64_t page, uint8_t *out) {
    uint64_t h = start_of(e->space);
    float x[8];
    for (int64_t i = 0; i < e->n; i++) {
        h = next_of(h, e->tokens[i]);
        if (i / 64 != page) continue;
        uint8_t *at = out;
        for (int32_t l = 0; l < w->n_layers; l++) {
            const neap_cache_layer_spec *s = &w->specs[l];
            if (s->latent.r) {
                to_floats(h, R, x);
                neap_latent_put(&s->latent, at, i % 64, x);
            }
            at += w->c.layers[l].latent_page_bytes;
            if (s->index.d) {
                to_floats(h, D, x);
                neap_index_put(&s->index, at, i % 64, x);
            }
            at += w->c.layers[l].index_page_bytes;
        }
    }
}

static void make_state(const world *w, const entry *e, uint8_t *out) {
    uint64_t h = start_of(e->space);
    for (int64_t i = 0; i < e->n; i++) h = next_of(h, e->tokens[i]);
    float x[8];
    for (int32_t l = 0; l < w->n_layers; l++) {
        size_t n = (size_t)w->specs[l].state_floats, m = (size_t)w->specs[l].window_floats;
        to_floats(h, 8, x);
        memcpy(out, x, n * sizeof *x);
        memcpy(out + n * sizeof *x, x, m * sizeof *x);
        out += (n + m) * sizeof *x;
    }
}

/* What is held has the bytes of its tokens; returns a sum over all of its bytes. */
static uint64_t verify_hold(const world *w, const neap_prefix_hold *h, const entry *e) {
    static uint8_t have[8192], want[8192];
    uint64_t bytes = neap_caches_page_bytes(&w->c), sum = 0;
    assert_true(bytes <= sizeof have && h->n == e->n && h->n_pages == (e->n + 63) / 64);
    for (int32_t i = 0; i < h->n_pages; i++) {
        neap_caches_page_read(&w->c, h->pages[i], have);
        neap_caches_page_read(&w->c, h->pages[i], want);
        make_page(w, e, i, want); /* changes only rows before n, to what they must be */
        assert_memory_equal(have, want, (size_t)bytes);
        for (uint64_t b = 0; b < bytes; b++) sum = mix(sum * 257 + have[b]);
    }
    assert_int_equal(h->state != NULL, w->has_state);
    if (!w->has_state) return sum;
    make_state(w, e, want);
    assert_memory_equal(h->state, want, (size_t)neap_caches_state_bytes(&w->c));
    return sum;
}

/* ---- the naive caches ---- */

static int64_t common_run(const int32_t *a, int64_t n, const int32_t *b, int64_t m) {
    int64_t i = 0;
    while (i < n && i < m && a[i] == b[i]) i++;
    return i;
}

/* Everything that was entered and never evicted. */
static neap_prefix_match naive_find(const world *w, const char *space, const int32_t *tokens, int64_t n_max) {
    neap_prefix_match m = {0};
    for (int32_t i = 0; i < w->n_seen; i++) {
        const entry *e = &w->seen[i];
        if (!same_space(e->space, space)) continue;
        int64_t common = common_run(e->tokens, e->n, tokens, n_max);
        if (common > m.n_common) m.n_common = common;
        if (e->with_state && common == e->n && e->n > m.n_usable) m.n_usable = e->n;
    }
    if (!w->has_state) m.n_usable = m.n_common;
    return m;
}

/* Every path of the tree, one by one. */
static neap_prefix_match slow_find(const world *w, const char *space, const int32_t *tokens, int64_t n_max) {
    neap_prefix_match m = {0};
    const neap_prefix *p = w->p;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!p->nodes[i].used || p->nodes[i].level < 0) continue;
        int32_t path[MAX], root = i;
        int64_t n = (int64_t)p->nodes[i].level * 64 + p->nodes[i].n_tokens;
        for (; p->nodes[root].level >= 0; root = p->nodes[root].parent)
            memcpy(path + p->nodes[root].level * 64, neap_prefix_tokens(p, root),
                   (size_t)p->nodes[root].n_tokens * sizeof *path);
        size_t bytes = strlen(space ? space : "");
        if (p->nodes[root].n_tokens != (int32_t)bytes ||
            memcmp(neap_prefix_tokens(p, root), space ? space : "", bytes) != 0)
            continue;
        int64_t common = common_run(path, n, tokens, n_max);
        if (common > m.n_common) m.n_common = common;
        for (int32_t s = p->nodes[i].first_state; s >= 0; s = p->states[s].next)
            if (p->states[s].position <= common && p->states[s].position > m.n_usable)
                m.n_usable = p->states[s].position;
    }
    if (!w->has_state) m.n_usable = m.n_common;
    return m;
}

static neap_prefix_match find(const world *w, const char *space, const int32_t *tokens, int64_t n_max) {
    neap_prefix_match m, slow = slow_find(w, space, tokens, n_max);
    neap_prefix_find(w->p, space, tokens, n_max, &m);
    assert_int_equal(m.n_usable, slow.n_usable);
    assert_int_equal(m.n_common, slow.n_common);
    return m;
}

#endif
