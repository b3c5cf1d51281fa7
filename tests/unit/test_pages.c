/* Rows in pages: bytes against the golden unit files and against the layout as pages.h states it, every code of
 * E4M3, ties, hard tiles, page sizes, awkward sizes, every byte of a page, and offsets beyond 4 GiB.
 * Cases D6, D7; engine state F10, F13. */
#include "unit_data.h"

#include <float.h>
#include <sys/mman.h>

#include "tensor/codec.h"
#include "tensor/pages.h"

static bool same_float(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

static void assert_floats(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!same_float(got[i], want[i])) fail_msg("%s[%lld]: %a, expected %a", what, (long long)i, got[i], want[i]);
}

/* ---- sizes ---- */

static void test_sizes(void **state) {
    (void)state;
    neap_latent_format l = {NEAP_ROWS_FP8, 512, 64}, lb = {NEAP_ROWS_BF16, 512, 64}, lf = {NEAP_ROWS_F32, 512, 64};
    assert_int_equal(neap_latent_page_bytes(&l), 64 * 620);
    assert_int_equal(neap_latent_page_bytes(&lb), 64 * 1152);
    assert_int_equal(neap_latent_page_bytes(&lf), 64 * 2304);
    assert_true((double)neap_latent_page_bytes(&l) <= 0.54 * (double)neap_latent_page_bytes(&lb));
    neap_index_format x = {NEAP_ROWS_MXFP8, 128}, xb = {NEAP_ROWS_BF16, 128}, xf = {NEAP_ROWS_F32, 128};
    assert_int_equal(neap_index_page_bytes(&x), 64 * 132);
    assert_int_equal(neap_index_page_bytes(&xb), 64 * 256);
    assert_int_equal(neap_index_page_bytes(&xf), 64 * 512);
    assert_true((double)neap_index_page_bytes(&x) <= 0.52 * (double)neap_index_page_bytes(&xb));
    neap_latent_format huge = {NEAP_ROWS_F32, INT32_MAX, INT32_MAX};
    assert_true(neap_latent_page_bytes(&huge) == INT64_C(512) * INT32_MAX);
    assert_string_equal(neap_row_kind_name(NEAP_ROWS_MXFP8), "mxfp8");
    assert_string_equal(neap_row_kind_name(NEAP_ROWS_F32), "f32");
}

/* ---- golden bytes ---- */

/* One row against expected codes and scales of its two parts; the row is put between other rows. */
static void check_row(const neap_latent_format *f, void *page, int64_t row, const float *x, const uint8_t *codes,
                      const float *scales, int64_t from, int64_t n) {
    int64_t width = f->r + f->dr, tiles = neap_latent_tiles(f);
    const uint8_t *bytes = page;
    neap_latent_put(f, page, row, x);
    assert_memory_equal(bytes + row * width + from, codes, (size_t)n);
    int64_t first = from ? (f->r + 127) / 128 : 0;
    assert_memory_equal(bytes + 64 * width + (row * tiles + first) * 4, scales, (size_t)(n + 127) / 128 * 4);
}

static void test_golden_tiles(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("quant_blocks");
    for (int32_t width = 192; width <= 256; width += 64) {
        unit_array in = unit_get(c, "tile.in.%d", width), codes = unit_get(c, "tile.codes.%d", width);
        unit_array scales = unit_get(c, "tile.scales.%d", width), want = unit_get(c, "tile.decoded.%d", width);
        /* Alone, and as both parts of a row. */
        for (int32_t dr = 0; dr <= width; dr += width) {
            neap_latent_format f = {NEAP_ROWS_FP8, width, dr};
            uint8_t *page = unit_zeros(neap_latent_page_bytes(&f), 1);
            for (int64_t i = 0; i < in.n / width; i++) {
                int64_t row = (i * 37 + 11) % 64, other = (i * 5) % (in.n / width);
                float x[512], back[512];
                memcpy(x, in.f + i * width, (size_t)width * 4);
                memcpy(x + width, in.f + other * width, (size_t)width * 4);
                check_row(&f, page, row, x, codes.u8 + i * width, scales.f + i * 2, 0, width);
                neap_latent_get(&f, page, row, back);
                assert_floats(back, want.f + i * width, width, "tile");
                if (!dr) continue;
                assert_memory_equal(page + 64 * 2 * width + (row * 4 + 2) * 4, scales.f + other * 2, 8);
            }
        }
    }
    neap_checkpoint_close(c);
}

static void test_golden_latents(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("attention");
    static const struct {
        const char *name;
        int32_t r, dr;
    } cases[] = {{"a", 32, 8}, {"b", 64, 16}, {"c", 512, 64}};
    for (size_t k = 0; k < 3; k++) {
        neap_latent_format f = {NEAP_ROWS_FP8, cases[k].r, cases[k].dr};
        unit_array latent = unit_get(c, "%s.latent", cases[k].name), krope = unit_get(c, "%s.krope", cases[k].name);
        unit_array codes = unit_get(c, "%s.kv8.codes", cases[k].name);
        unit_array scales = unit_get(c, "%s.kv8.scales", cases[k].name);
        uint8_t *pages = unit_zeros(2 * neap_latent_page_bytes(&f), 1);
        int64_t n = latent.n / f.r, tiles = scales.n / n;
        assert_true(n > 32);
        for (int64_t i = 0; i < n; i++) {
            float x[576];
            memcpy(x, latent.f + i * f.r, (size_t)f.r * 4);
            memcpy(x + f.r, krope.f + i * f.dr, (size_t)f.dr * 4);
            check_row(&f, pages + i / 64 * neap_latent_page_bytes(&f), i % 64, x, codes.u8 + i * f.r,
                      scales.f + i * tiles, 0, f.r);
        }
    }
    neap_checkpoint_close(c);
}

/* n keys of width d and what they must become, through pages. */
static void check_keys(int32_t d, int64_t n, const float *x, const uint8_t *codes, const uint8_t *scales) {
    neap_index_format f = {NEAP_ROWS_MXFP8, d};
    int64_t groups = (d + 31) / 32;
    for (int64_t i = 0; i < n; i++) {
        float back[256], query[256];
        uint8_t *page = unit_zeros(neap_index_page_bytes(&f), 1);
        int64_t row = (i * 29 + 3) % 64, lane = row % 16, block = row / 16;
        neap_index_put(&f, page, row, x + i * d);
        neap_index_get(&f, page, row, back);
        memcpy(query, x + i * d, (size_t)d * 4);
        neap_index_round_query(&f, query);
        for (int64_t j = 0; j < d; j++) {
            assert_int_equal(page[(block * d + j) * 16 + lane], codes[i * d + j]);
            assert_int_equal(page[64 * d + (block * groups + j / 32) * 16 + lane], scales[i * groups + j / 32]);
            float want = neap_e4m3_decode(codes[i * d + j]) * neap_e8m0_decode(scales[i * groups + j / 32]);
            assert_true(same_float(back[j], want));
            assert_true(same_float(query[j], want));
        }
    }
}

static void test_golden_keys(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("quant_blocks");
    check_keys(256, 24, unit_get(c, "in").f, unit_get(c, "mx.e4m3.ceil.codes").u8,
               unit_get(c, "mx.e4m3.ceil.scales").u8);
    /* The decoded values are golden too. */
    unit_array in = unit_get(c, "in"), want = unit_get(c, "mx.e4m3.ceil.decoded");
    neap_index_format f = {NEAP_ROWS_MXFP8, 256};
    for (int64_t i = 0; i < 24; i++) {
        float q[256];
        memcpy(q, in.f + i * 256, sizeof q);
        neap_index_round_query(&f, q);
        assert_floats(q, want.f + i * 256, 256, "query");
    }
    neap_checkpoint_close(c);
    c = unit_open("attention");
    static const struct {
        const char *name;
        int32_t d;
    } cases[] = {{"a", 32}, {"b", 64}, {"c", 128}};
    for (size_t k = 0; k < 3; k++) {
        const char *name = cases[k].name;
        unit_array keys = unit_get(c, "%s.ik", name), queries = unit_get(c, "%s.iq", name);
        check_keys(cases[k].d, keys.n / cases[k].d, keys.f, unit_get(c, "%s.mx.ceil.k_codes", name).u8,
                   unit_get(c, "%s.mx.ceil.k_scales", name).u8);
        check_keys(cases[k].d, queries.n / cases[k].d, queries.f, unit_get(c, "%s.mx.ceil.q_codes", name).u8,
                   unit_get(c, "%s.mx.ceil.q_scales", name).u8);
    }
    neap_checkpoint_close(c);
}

/* ---- codes, ties, hard values ---- */

/* Tiles and groups with a 448 in them have the scale 1: codes come back as they are, midpoints go to the even one. */
static void test_all_codes(void **state) {
    (void)state;
    neap_latent_format f = {NEAP_ROWS_FP8, 256, 0};
    neap_index_format g = {NEAP_ROWS_MXFP8, 32};
    uint8_t *page = unit_zeros(neap_latent_page_bytes(&f), 1), *keys = unit_zeros(neap_index_page_bytes(&g), 1);
    for (int tie = 0; tie < 2; tie++) {
        float x[256], back[256], key[32];
        int want[256];
        for (int i = 0; i < 256; i++) {
            int magnitude = i & 127;
            bool last = magnitude >= 126; /* 448, and NaN's place */
            want[i] = last ? (i & 128) | 126 : tie ? (i & 128) | (magnitude + (magnitude & 1)) : i;
            float low = neap_e4m3_decode((uint8_t)(last ? (i & 128) | 126 : i));
            float high = neap_e4m3_decode((uint8_t)(last ? (i & 128) | 126 : i + 1));
            x[i] = tie && !last ? (low + high) * 0.5f : low;
        }
        neap_latent_put(&f, page, 63, x);
        neap_latent_get(&f, page, 63, back);
        for (int i = 0; i < 256; i++) {
            assert_int_equal(page[63 * 256 + i], want[i]);
            assert_true(same_float(back[i], neap_e4m3_decode((uint8_t)want[i])));
        }
        for (int from = 0; from < 256; from += 31) {
            for (int j = 0; j < 32; j++) key[j] = j == 31 ? 448 : from + j < 256 ? x[from + j] : 0;
            neap_index_put(&g, keys, 17, key);
            for (int j = 0; j < 31 && from + j < 256; j++) assert_int_equal(keys[(32 + j) * 16 + 1], want[from + j]);
            assert_int_equal(keys[64 * 32 + 16 + 1], 127);
        }
    }
}

/* E4M3 as a search in the table: nearest, the even code of two equally near ones. */
static int searched(double a) {
    static double values[127];
    if (values[126] == 0)
        for (int i = 0; i < 127; i++) values[i] = neap_e4m3_decode((uint8_t)i);
    int low = 0, high = 126;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (values[middle] <= a)
            low = middle;
        else
            high = middle;
    }
    double down = a - values[low], up = values[high] - a;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

/* F13: every BF16 number under every scale that a group can have (0 to 247: larger ones do not exist for finite
 * numbers), by exact arithmetic. */
static void test_all_numbers_and_scales(void **state) {
    (void)state;
    neap_index_format f = {NEAP_ROWS_MXFP8, 32};
    uint8_t *page = unit_zeros(neap_index_page_bytes(&f), 1);
    int64_t n_seen = 0;
    for (int scale = 0; scale <= 247; scale++) {
        double step = ldexp(1, scale - 127), most = 448 * step;
        float top = most > (double)FLT_MAX ? FLT_MAX : (float)most; /* (2^-127 * 448 is a normal float) */
        float x[32];
        for (uint32_t i = 0; i < 0x7f80;) {
            for (int j = 0; j < 31; j++, i++) {
                x[j] = neap_bf16_to_f32((uint16_t)(i < 0x7f80 ? i : 0));
                if (x[j] > top) x[j] = 0;
                if (i % 3 == 1) x[j] = -x[j];
            }
            x[31] = top;
            neap_index_put(&f, page, 33, x);
            assert_int_equal(page[64 * 32 + 33], scale);
            for (int j = 0; j < 32; j++) {
                int want = searched(fabs((double)x[j]) / step) | (signbit(x[j]) ? 0x80 : 0);
                if (page[(2 * 32 + j) * 16 + 1] != want)
                    fail_msg("%a, scale %d: %02x, expected %02x", x[j], scale, page[(2 * 32 + j) * 16 + 1], want);
            }
            n_seen += 31;
            if (neap_bf16_to_f32((uint16_t)(i < 0x7f80 ? i : 0)) > top) break; /* the rest is larger still */
        }
    }
    assert_true(n_seen > 3000000);
}

static void test_zeros(void **state) {
    (void)state;
    neap_latent_format f = {NEAP_ROWS_FP8, 130, 3};
    neap_index_format g = {NEAP_ROWS_MXFP8, 40};
    uint8_t *page = unit_zeros(neap_latent_page_bytes(&f), 1), *keys = unit_zeros(neap_index_page_bytes(&g), 1);
    float x[133], back[133];
    for (int i = 0; i < 133; i++) x[i] = i % 2 ? -0.0f : 0.0f;
    memset(page, 0xff, (size_t)neap_latent_page_bytes(&f));
    memset(keys, 0xff, (size_t)neap_index_page_bytes(&g));
    neap_latent_put(&f, page, 5, x);
    neap_latent_get(&f, page, 5, back);
    assert_memory_equal(back, x, sizeof x);
    float scale;
    for (int t = 0; t < 3; t++) {
        memcpy(&scale, page + 64 * 133 + (5 * 3 + t) * 4, 4);
        assert_true(scale == 1);
    }
    neap_index_put(&g, keys, 5, x);
    neap_index_get(&g, keys, 5, back);
    assert_memory_equal(back, x, 40 * 4);
    assert_int_equal(keys[64 * 40 + 5], 0);
}

/* A NaN or infinity shows in its whole tile or group and nowhere else. */
static void test_nonfinite(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    uint64_t seed = 5;
    neap_latent_format f = {NEAP_ROWS_FP8, 200, 24};
    neap_index_format g = {NEAP_ROWS_MXFP8, 72};
    uint8_t *page = unit_zeros(neap_latent_page_bytes(&f), 1), *keys = unit_zeros(neap_index_page_bytes(&g), 1);
    for (int b = 0; b < 4; b++)
        for (int at = 0; at < 224; at += 7) {
            float *x = unit_normals(&seed, 3 * 224, 1000), back[224];
            x[224 + at] = bad[b];
            for (int row = 0; row < 3; row++) neap_latent_put(&f, page, 20 + row, x + row * 224);
            int tile = at < 128 ? 0 : at < 200 ? 1 : 2;
            for (int row = 0; row < 3; row++) {
                neap_latent_get(&f, page, 20 + row, back);
                for (int i = 0; i < 224; i++)
                    assert_int_equal(isnan(back[i]), row == 1 && (i < 128 ? 0 : i < 200 ? 1 : 2) == tile);
            }
            if (at >= 72) continue;
            for (int row = 0; row < 3; row++) neap_index_put(&g, keys, 15 + row, x + row * 224);
            for (int row = 0; row < 3; row++) {
                neap_index_get(&g, keys, 15 + row, back);
                for (int i = 0; i < 72; i++) assert_int_equal(isnan(back[i]), row == 1 && i / 32 == at / 32);
            }
        }
}

/* D6: many 0.05 and one 1.0, in the latent, the key part, or both; a large key part does not coarsen the latent. */
static void test_uneven_tiles(void **state) {
    (void)state;
    neap_latent_format f = {NEAP_ROWS_FP8, 512, 64};
    neap_index_format g = {NEAP_ROWS_MXFP8, 128};
    uint8_t *page = unit_zeros(neap_latent_page_bytes(&f), 1), *keys = unit_zeros(neap_index_page_bytes(&g), 1);
    for (int at = 0; at < 576; at++) {
        float x[576], back[576];
        for (int i = 0; i < 576; i++) x[i] = i == at ? 1.0f : 0.05f;
        neap_latent_put(&f, page, at % 64, x);
        neap_latent_get(&f, page, at % 64, back);
        for (int i = 0; i < 576; i++)
            if (fabs((double)back[i] - x[i]) > (i < 512 ? 0.0625 : 0.0079) * x[i])
                fail_msg("%g became %g", x[i], back[i]);
        assert_true(fabsf(back[at] - 1.0f) < 1e-6f); /* nothing is clamped */
        if (at >= 128) continue;
        neap_index_put(&g, keys, at % 64, x);
        neap_index_get(&g, keys, at % 64, back);
        for (int i = 0; i < 128; i++)
            if (fabs((double)back[i] - x[i]) > 0.0625 * x[i]) fail_msg("key: %g became %g", x[i], back[i]);
        assert_true(back[at] == 1.0f);
    }
    /* The key part is not normed. 1e6 beside it leaves the latent as it was, bit by bit. */
    uint64_t seed = 3;
    float *x = unit_normals(&seed, 576, 1), plain[576], back[576];
    neap_latent_put(&f, page, 1, x);
    neap_latent_get(&f, page, 1, plain);
    for (int i = 512; i < 576; i++) x[i] *= 1e6f;
    neap_latent_put(&f, page, 1, x);
    neap_latent_get(&f, page, 1, back);
    assert_memory_equal(back, plain, 512 * 4);
    for (int i = 512; i < 576; i++) assert_true(fabsf(back[i]) > 1000 * fabsf(plain[i]) || x[i] == 0);
}

/* ---- any size ---- */

/* Puts 64 random rows into two pages of different dirt: equal pages mean that every byte is written. Bytes behind
 * the page stay. */
typedef void (*put_row)(const void *format, void *page, int64_t row, const float *x);
static uint8_t *fill_pages(put_row put, const void *format, int64_t bytes, const float *x, int64_t width) {
    uint8_t *a = unit_zeros(bytes + 64, 1), *b = unit_zeros(bytes + 64, 1);
    memset(a, 0xff, (size_t)bytes + 64);
    memset(b, 0x3e, (size_t)bytes + 64);
    for (int64_t i = 0; i < 64; i++) put(format, a, i * 27 % 64, x + i * 27 % 64 * width);
    for (int64_t i = 63; i >= 0; i--) put(format, b, i, x + i * width);
    assert_int_equal(bytes % 64, 0);
    assert_memory_equal(a, b, (size_t)bytes);
    for (int i = 0; i < 64; i++) assert_true(a[bytes + i] == 0xff && b[bytes + i] == 0x3e);
    return a;
}
static void put_latent(const void *f, void *page, int64_t row, const float *x) { neap_latent_put(f, page, row, x); }
static void put_index(const void *f, void *page, int64_t row, const float *x) { neap_index_put(f, page, row, x); }

/* x / scale rounded to 4 bits of exponent and 6 of mantissa, by search; times scale. */
static float nearest_fine(float x, float scale) {
    float y = x / scale, best = 0;
    double distance = INFINITY;
    bool is_even = false;
    for (int code = 0; code <= 1016; code++) {
        int exponent = code >> 6, mantissa = code & 63;
        double v = exponent ? ldexp(64 + mantissa, exponent - 13) : ldexp(mantissa, -12);
        double d = fabs(fabs((double)y) - v);
        if (d > distance || (d == distance && is_even)) continue;
        distance = d;
        is_even = code % 2 == 0;
        best = (float)v;
    }
    return copysignf(best, y) * scale;
}

/* What a row must read as: parts of r and dr values, quantised apart from each other. */
static void expect(neap_row_kind kind, bool is_key, const float *x, int64_t n, float *want) {
    uint8_t codes[640], small[32];
    float padded[640] = {0}, scales[8];
    memcpy(padded, x, (size_t)n * 4);
    if (kind == NEAP_ROWS_F32) memcpy(want, x, (size_t)n * 4);
    if (kind == NEAP_ROWS_BF16)
        for (int64_t i = 0; i < n; i++) want[i] = neap_bf16_to_f32(neap_f32_to_bf16(x[i]));
    if (kind == NEAP_ROWS_FP8) {
        neap_fp8_tile_encode(codes, scales, padded, n);
        neap_fp8_tile_decode(want, codes, scales, n);
    }
    if (is_key) { /* the nearest of all values with 6 mantissa bits */
        for (int64_t i = 0; i < n; i++) want[i] = nearest_fine(x[i], scales[i / 128]);
    }
    if (kind == NEAP_ROWS_MXFP8) {
        neap_mx_encode(codes, small, padded, (n + 31) / 32 * 32, NEAP_MX_E4M3, NEAP_MX_CEIL);
        neap_mx_decode(padded, codes, small, (n + 31) / 32 * 32, NEAP_MX_E4M3);
        memcpy(want, padded, (size_t)n * 4);
    }
    for (int64_t i = 0; i < n && kind > NEAP_ROWS_BF16; i++) { /* whole tile at most 2^9 steps below its largest */
        double top = 0;
        for (int64_t j = 0; j < n; j++) top = fabs((double)x[j]) > top ? fabs((double)x[j]) : top;
        assert_true(fabs((double)want[i] - x[i]) <= fmax(0.0625 * fabs((double)x[i]), top * 0x1p-17));
    }
}

static void test_any_size(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 8, 24, 48, 130, 31, 32, 33, 64, 127, 128, 129, 200, 512},
                         keys[] = {0, 1, 8, 64, 130};
    uint64_t seed = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < 4; kind++) {
            float back[648], want[648];
            for (size_t k = 0; k < sizeof keys / sizeof *keys && kind != NEAP_ROWS_MXFP8; k++) {
                neap_latent_format f = {(neap_row_kind)kind, sizes[s], keys[k]};
                int64_t n = f.r + f.dr;
                float *x = unit_normals(&seed, 64 * n, 3);
                uint8_t *page = fill_pages(put_latent, &f, neap_latent_page_bytes(&f), x, n);
                for (int64_t row = 0; row < 64; row++) {
                    neap_latent_get(&f, page, row, back);
                    expect(f.kind, false, x + row * n, f.r, want);
                    expect(f.kind, f.kind == NEAP_ROWS_FP8, x + row * n + f.r, f.dr, want + f.r);
                    assert_floats(back, want, n, "latent");
                }
            }
            if (kind == NEAP_ROWS_FP8) continue;
            neap_index_format g = {(neap_row_kind)kind, sizes[s]};
            float *x = unit_normals(&seed, 64 * g.d, 3);
            uint8_t *page = fill_pages(put_index, &g, neap_index_page_bytes(&g), x, g.d);
            for (int64_t row = 0; row < 64; row++) {
                neap_index_get(&g, page, row, back);
                expect(g.kind, false, x + row * g.d, g.d, want);
                assert_floats(back, want, g.d, "key");
                memcpy(back, x + row * g.d, (size_t)g.d * 4);
                neap_index_round_query(&g, back);
                assert_floats(back, g.kind == NEAP_ROWS_MXFP8 ? want : x + row * g.d, g.d, "query");
            }
        }
}

/* D7: page 2066 of 1,039,680 bytes begins beyond 2^31, page 6,000 beyond 2^32; also with negative-looking products. */
static void test_far_pages(void **state) {
    (void)state;
    const neap_latent_format f = {NEAP_ROWS_FP8, 15749, 0};
    assert_int_equal(neap_latent_page_bytes(&f), 1039680);
    const int32_t table[] = {2066, 4131, 6000, 0};
    const size_t bytes = (size_t)1039680 * 6001;
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) skip(); /* an address space limit */
    const neap_pages p = {.base = base, .page_bytes = neap_latent_page_bytes(&f), .table = table};
    assert_true(neap_pages_at(&p, 0) - base == INT64_C(2147978880));
    assert_true(neap_pages_at(&p, 64) - base == INT64_C(4294918080));
    assert_true(neap_pages_at(&p, 191) - base == INT64_C(6238080000));
    assert_ptr_equal(neap_pages_at(&p, 192), base);
    uint64_t seed = 9;
    float *x = unit_normals(&seed, 4 * 15749, 1), *back = unit_floats(15749), *want = unit_floats(15749);
    uint8_t *near = unit_zeros(1039680, 1);
    for (int i = 0; i < 4; i++) neap_latent_put(&f, base + (neap_pages_at(&p, i * 64) - base), 63, x + i * 15749);
    for (int i = 0; i < 4; i++) {
        neap_latent_put(&f, near, 63, x + i * 15749);
        neap_latent_get(&f, near, 63, want);
        neap_latent_get(&f, neap_pages_at(&p, i * 64 + 63), 63, back);
        assert_memory_equal(back, want, 15749 * 4);
    }
    munmap(base, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_numbers_and_scales),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_golden_tiles),
        cmocka_unit_test(test_golden_latents),
        cmocka_unit_test(test_golden_keys),
        cmocka_unit_test(test_all_codes),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_uneven_tiles),
        cmocka_unit_test(test_any_size),
        cmocka_unit_test(test_far_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
