/* Absorbed attention: dense and listed positions, any r and dr (none too), one and many heads, small and large
 * scratch. A head alone must have the bits of a head among others. */
#include "kcheck.h"

#include <stdio.h>

static void one(kc *c, int64_t heads, int64_t r, int64_t dr, int64_t n, kc_fill fill, bool has_list) {
    kc_begin(c, "heads %lld r %lld dr %lld n %lld fill %d%s", (long long)heads, (long long)r, (long long)dr,
             (long long)n, (int)fill, has_list ? " list" : "");
    int64_t cached = has_list ? 3 * n : n, ld_q = r + dr + kc_below(c, 3), ld_out = r + kc_below(c, 3);
    int32_t *list = kc_bytes(c, n * (int64_t)sizeof *list);
    for (int64_t i = 0, p = kc_below(c, 3); i < n; i++, p += 1 + kc_below(c, 2)) list[i] = (int32_t)p;
    neap_attn_args a = {.q = kc_floats(c, heads * ld_q, (int)kc_below(c, 16), fill),
                        .ld_q = ld_q,
                        .n_heads = heads,
                        .r = r,
                        .dr = dr,
                        .cache = kc_paged(c, cached, r + dr + kc_below(c, 3), 1 << kc_below(c, 7), fill),
                        .list = has_list ? list : NULL,
                        .n_list = n,
                        .scale = 0.1f,
                        .ld_out = ld_out};
    int64_t total = (heads - 1) * ld_out + r;
    float *want = kc_output(c, total, 0), *got = kc_output(c, total, (int)kc_below(c, 16));
    float *want_lse = kc_output(c, heads, 0), *got_lse = kc_output(c, heads, 1);
    a.out = want, a.lse = want_lse, a.scratch = kc_output(c, n, 0);
    c->ref.attn(&a);
    a.out = got, a.lse = got_lse, a.scratch_floats = neap_attn_scratch(n),
    a.scratch = kc_output(c, a.scratch_floats, 1);
    c->k.attn(&a);
    kc_same(c, "out", got, want, total);
    kc_same(c, "lse", got_lse, want_lse, heads);
    got = kc_output(c, total, 2);
    a.out = got, a.lse = NULL, a.scratch_floats = kc_below(c, 2) * (n + n / 2), a.scratch = kc_output(c, n + n / 2, 3);
    c->k.attn(&a);
    kc_same(c, "out with little scratch", got, want, total);
    int64_t h = kc_below(c, heads);
    a.q += h * ld_q, a.out += h * ld_out, a.n_heads = 1;
    got = kc_output(c, r, 5);
    a.out = got;
    c->k.attn(&a);
    kc_same(c, "a head alone", got, want + h * ld_out, r);
    kc_end(c);
}

static void check(kc *c) {
    static const int64_t shapes[][2] = {{1, 0},   {7, 3},   {16, 0},  {17, 16},  {32, 8},
                                        {64, 16}, {96, 33}, {129, 1}, {512, 64}, {512, 0}};
    static const int64_t ns[] = {1, 2, 7, 15, 16, 17, 33, 64, 131}, heads[] = {1, 2, 3, 4, 5, 7, 8, 9, 13};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            one(c, heads[(i + j) % 9], shapes[i][0], shapes[i][1], ns[j], j % 5 == 4 ? (kc_fill)(1 + i % 3) : KC_NORMAL,
                (i + j) % 2);
    one(c, 16, 512, 64, 700, KC_NORMAL, true);
    one(c, 128, 512, 64, 9, KC_NORMAL, false);
}

static void timed(const kc *c, void *args) { c->k.attn(args); }

static void bench(kc *c) {
    for (int i = 0; i < 2; i++) {
        int64_t heads = i ? 8 : 32, n = 2048;
        char label[64];
        snprintf(label, sizeof label, "%lld heads, 512 + 64, %lld rows", (long long)heads, (long long)n);
        kc_begin(c, "%s", label);
        neap_attn_args a = {.q = kc_floats(c, heads * 576, 0, KC_NORMAL),
                            .ld_q = 576,
                            .n_heads = heads,
                            .r = 512,
                            .dr = 64,
                            .cache = kc_paged(c, n, 576, 64, KC_NORMAL),
                            .n_list = n,
                            .scale = 0.05f,
                            .out = kc_output(c, heads * 512, 0),
                            .ld_out = 512,
                            .scratch_floats = neap_attn_scratch(n),
                            .scratch = kc_output(c, neap_attn_scratch(n), 0)};
        kc_bench(c, label, timed, &a, (double)n * 576 * 4, (double)heads * (double)n * 1088);
    }
}

const kc_family_tests neap_kc_attn = {check, bench};
