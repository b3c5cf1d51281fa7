/* The chunked form of a KDA head, and maps of segments: against scalar bit by bit, all block and chunk edges, decays
 * from 0 to 1. What the results mean is tested in tests/unit/test_kda_chunk.c. */
#include "kcheck.h"

#include <stdio.h>

static float *normed(kc *c, int64_t n, int64_t ld, int64_t d, int skew, float scale) {
    float *x = kc_floats(c, n * ld, skew, KC_NORMAL);
    for (int64_t t = 0; t < n; t++) {
        float sum = 1e-6f;
        for (int64_t i = 0; i < d; i++) sum += x[t * ld + i] * x[t * ld + i];
        for (int64_t i = 0; i < d; i++) x[t * ld + i] *= scale / sqrtf(sum);
    }
    return x;
}

/* Decays: mostly near 1, all 1, all e^-5, 0 in places, anything. */
static float decay(kc *c, int kind) {
    float u = (float)(kc_below(c, 10000) + 1) / 10000;
    switch (kind) {
    case 0: return 1 - 0.1f * u;
    case 1: return 1;
    case 2: return 0.0067379470f;
    case 3: return kc_below(c, 4) ? u : 0;
    default: return u;
    }
}

static neap_kda_chunk_args make(kc *c, int64_t n, int64_t d_k, int64_t d_v, int64_t chunk, int kind) {
    int64_t ld = d_k + kc_below(c, 9), ld_v = d_v + kc_below(c, 9);
    int skew = (int)kc_below(c, 16);
    float *keep = kc_floats(c, n * ld, skew, KC_ZEROS), *beta = kc_floats(c, n * 2, 1, KC_ZEROS);
    for (int64_t i = 0; i < n * ld; i++) keep[i] = decay(c, kind);
    for (int64_t i = 0; i < n * 2; i++) beta[i] = (float)kc_below(c, 1001) / 1000;
    return (neap_kda_chunk_args){.n = n,
                                 .d_k = d_k,
                                 .d_v = d_v,
                                 .chunk = chunk,
                                 .q = normed(c, n, ld, d_k, skew, 1 / sqrtf((float)d_k)),
                                 .k = normed(c, n, ld, d_k, 3, 1),
                                 .keep = keep,
                                 .v = kc_floats(c, n * ld_v, skew, KC_NORMAL),
                                 .beta = beta,
                                 .ld_q = ld,
                                 .ld_k = ld,
                                 .ld_keep = ld,
                                 .ld_v = ld_v,
                                 .ld_beta = 2,
                                 .ld_out = ld_v,
                                 .scratch = kc_output(c, neap_kda_chunk_scratch(d_k, chunk), 0)};
}

static float *random_state(kc *c, int64_t d_k, int64_t d_v) {
    float *s = kc_floats(c, neap_kda_state_floats(d_k, d_v), 0, KC_NORMAL);
    for (int64_t i = 0; i < d_k; i++) /* unused columns are zero */
        for (int64_t j = d_v; j % 32; j++) s[(j / 32 * d_k + i) * 32 + j % 32] = 0;
    return s;
}

static void one(kc *c, int64_t n, int64_t d_k, int64_t d_v, int64_t chunk, int kind, bool has_q, bool has_v) {
    if (!kc_begin(c, "chunk %lld n %lld d_k %lld d_v %lld decay %d%s%s", (long long)chunk, (long long)n, (long long)d_k,
                  (long long)d_v, kind, has_q ? "" : " no q", has_v ? "" : " no v"))
        return;
    neap_kda_chunk_args want = make(c, n, d_k, d_v, chunk, kind), got;
    int64_t floats = neap_kda_state_floats(d_k, d_v);
    if (!has_q) want.q = NULL;
    if (!has_v) want.v = NULL;
    want.state = random_state(c, d_k, d_v), want.out = kc_output(c, n * want.ld_out, 0);
    got = want;
    got.state = kc_copy(c, want.state, floats, (int)kc_below(c, 16)), got.out = kc_output(c, n * want.ld_out, 5);
    c->ref.kda_chunk(&want);
    c->k.kda_chunk(&got);
    kc_same(c, "out", got.out, want.out, n * want.ld_out);
    kc_same(c, "state", got.state, want.state, floats);
    kc_end(c);
}

static void map(kc *c, int64_t d_k, int64_t d_v) {
    if (!kc_begin(c, "map d_k %lld d_v %lld", (long long)d_k, (long long)d_v)) return;
    int64_t floats = neap_kda_state_floats(d_k, d_v);
    neap_kda_map_args a = {.d_k = d_k, .d_v = d_v, .m = random_state(c, d_k, d_k), .x = random_state(c, d_k, d_v)};
    for (int with_b = 0; with_b < 2; with_b++) {
        a.b = with_b ? random_state(c, d_k, d_v) : NULL;
        float *want = kc_output(c, floats, 0), *got = kc_output(c, floats, 3);
        a.y = want;
        c->ref.kda_map(&a);
        a.y = got;
        c->k.kda_map(&a);
        kc_same(c, "map", got, want, floats);
        if (!with_b) continue;
        got = kc_copy(c, a.b, floats, 1);
        a.b = a.y = got;
        c->k.kda_map(&a);
        kc_same(c, "map in place of b", got, want, floats);
    }
    kc_end(c);
}

void kc_kda_chunk_check(kc *c) {
    static const int64_t dims[][2] = {{1, 1},   {3, 5},   {8, 12},  {16, 16}, {31, 33},
                                      {32, 64}, {40, 65}, {64, 96}, {97, 7},  {128, 128}};
    static const int64_t tokens[] = {0, 1, 2, 15, 16, 17, 33, 50}, chunks[] = {1, 5, 16, 17, 32, 40, 48, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++)
            for (size_t e = 0; e < 2; e++)
                one(c, tokens[j], dims[i][0], dims[i][1], chunks[(i + j + 4 * e + 2) % 8], (int)(i + j + e) % 5,
                    (j + e) % 4 != 3, (i + j) % 5 != 4);
        map(c, dims[i][0], dims[i][1]);
    }
    one(c, 7, 256, 256, 16, 0, true, true);
    one(c, 40, 128, 128, 64, 0, true, true);
}

static void timed(const kc *c, void *args) { c->k.kda_chunk(args); }
static void timed_map(const kc *c, void *args) { c->k.kda_map(args); }

void kc_kda_chunk_bench(kc *c) {
    static const int64_t chunks[] = {16, 32, 64};
    enum { D = 128, N = 64 };
    for (int i = 0; i < 3; i++) {
        char label[64];
        snprintf(label, sizeof label, "chunks of %lld, 128x128, 64 tokens", (long long)chunks[i]);
        kc_begin(c, "%s", label);
        neap_kda_chunk_args a = make(c, N, D, D, chunks[i], 0);
        a.state = random_state(c, D, D), a.out = kc_output(c, N * a.ld_out, 0);
        c->items = N, c->region = D * D * 4;
        kc_bench(c, label, timed, &a, N * D * D * 8.0, N * D * D * 4.0); /* of the sweep: comparable */
    }
    kc_begin(c, "map 128x128");
    neap_kda_map_args m = {.d_k = D, .d_v = D, .m = random_state(c, D, D), .x = random_state(c, D, D)};
    m.b = random_state(c, D, D), m.y = kc_output(c, D * D, 0);
    kc_bench(c, "map 128x128", timed_map, &m, 4.0 * D * D * 4, (double)D * D * D);
}
