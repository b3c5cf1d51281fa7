/* The number formats against golden/units: all codes, ties and their neighbours, saturation, NaN, scale codes of
 * both rules, MX groups, FP8 tiles. Everything is compared bit by bit (NaN: any NaN). Cases D6 and F5. */
#include "unit_data.h"

#include "tensor/codec.h"

static bool same_float(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

static void assert_floats(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!same_float(got[i], want[i])) fail_msg("%s[%lld]: %a, expected %a", what, (long long)i, got[i], want[i]);
}

static void test_all_codes(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("formats");
    unit_array e4m3 = unit_get(c, "e4m3.decode"), e2m1 = unit_get(c, "e2m1.decode"), e8m0 = unit_get(c, "e8m0.decode");
    for (int i = 0; i < 256; i++) {
        assert_true(same_float(neap_e4m3_decode((uint8_t)i), e4m3.f[i]));
        assert_true(same_float(neap_e8m0_decode((uint8_t)i), (float)e8m0.d[i]));
        if (!isnan(e4m3.f[i])) assert_int_equal(neap_e4m3_encode(e4m3.f[i]), i);
        if (i < 16) {
            assert_true(same_float(neap_e2m1_decode((uint8_t)i), e2m1.f[i]));
            assert_int_equal(neap_e2m1_encode(e2m1.f[i]), i);
            assert_true(same_float(neap_e2m1_decode((uint8_t)(i | 0x50)), e2m1.f[i])); /* only 4 bits count */
        }
    }
    neap_checkpoint_close(c);
}

static void test_encode(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("formats");
    unit_array in = unit_get(c, "e4m3.encode_in"), out = unit_get(c, "e4m3.encode_out");
    for (int64_t i = 0; i < in.n; i++)
        if (neap_e4m3_encode(in.f[i]) != out.u8[i])
            fail_msg("e4m3 of %a: %02x, expected %02x", in.f[i], neap_e4m3_encode(in.f[i]), out.u8[i]);
    in = unit_get(c, "e2m1.encode_in"), out = unit_get(c, "e2m1.encode_out");
    for (int64_t i = 0; i < in.n; i++)
        if (neap_e2m1_encode(in.f[i]) != out.u8[i])
            fail_msg("e2m1 of %a: %x, expected %x", in.f[i], neap_e2m1_encode(in.f[i]), out.u8[i]);
    assert_int_equal(neap_e2m1_encode(NAN), 0);
    neap_checkpoint_close(c);
}

/* E4M3 again, as a search: the nearest value of the table, the even code of two equally near ones. All exponents,
 * around every value and every midpoint, and each 4,093rd float. */
static uint8_t searched(float v) {
    double a = fabs((double)v);
    int sign = signbit(v) ? 0x80 : 0, low = 0, high = 0x7e;
    if (isnan(v)) return 0x7f;
    if (a >= 448) return (uint8_t)(sign | 0x7e);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((double)neap_e4m3_decode((uint8_t)middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double down = a - neap_e4m3_decode((uint8_t)low), up = neap_e4m3_decode((uint8_t)high) - a;
    return (uint8_t)(sign | (down < up || (down == up && low % 2 == 0) ? low : high));
}
static void check_encode(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    if (neap_e4m3_encode(v) != searched(v))
        fail_msg("e4m3 of %a: %02x, expected %02x", v, neap_e4m3_encode(v), searched(v));
}
static void test_encode_everywhere(void **state) {
    (void)state;
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 4093) check_encode((uint32_t)u);
    for (uint32_t i = 0; i < 256; i++) {
        if ((i & 0x7f) >= 0x7e) continue;
        float low = neap_e4m3_decode((uint8_t)i), middle = (low + neap_e4m3_decode((uint8_t)(i + 1))) * 0.5f;
        for (int d = -3; d <= 3; d++) {
            uint32_t u;
            memcpy(&u, &low, sizeof u);
            check_encode(u + (uint32_t)d);
            memcpy(&u, &middle, sizeof u);
            check_encode(u + (uint32_t)d);
        }
    }
    for (uint32_t e = 0; e < 512; e++)
        for (uint32_t d = 0; d < 5; d++) check_encode((e << 23) + d - 2);
}

static const char *const kind_names[] = {"e4m3", "e2m1"}, *const rule_names[] = {"ceil", "floor"};

static void test_scale_codes(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("formats");
    unit_array amax = unit_get(c, "mx.amax");
    for (int kind = 0; kind < 2; kind++)
        for (int rule = 0; rule < 2; rule++) {
            unit_array want = unit_get(c, "mx.%s.%s.scale_code", kind_names[kind], rule_names[rule]);
            for (int64_t i = 0; i < amax.n; i++)
                if (neap_mx_scale_code(amax.f[i], (neap_mx_kind)kind, (neap_mx_rule)rule) != want.u8[i])
                    fail_msg("%s %s of %a", kind_names[kind], rule_names[rule], amax.f[i]);
        }
    neap_checkpoint_close(c);
}

static void test_mx_blocks(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("quant_blocks");
    unit_array in = unit_get(c, "in");
    uint8_t *codes = unit_zeros(in.n, 1), *scales = unit_zeros(in.n / 32, 1);
    float *decoded = unit_floats(in.n);
    for (int kind = 0; kind < 2; kind++)
        for (int rule = 0; rule < 2; rule++) {
            const char *k = kind_names[kind], *r = rule_names[rule];
            neap_mx_encode(codes, scales, in.f, in.n, (neap_mx_kind)kind, (neap_mx_rule)rule);
            assert_memory_equal(scales, unit_get(c, "mx.%s.%s.scales", k, r).data, (size_t)in.n / 32);
            assert_memory_equal(codes, unit_get(c, "mx.%s.%s.codes", k, r).data, (size_t)in.n);
            neap_mx_decode(decoded, codes, scales, in.n, (neap_mx_kind)kind);
            assert_floats(decoded, unit_get(c, "mx.%s.%s.decoded", k, r).f, in.n, k);
        }
    neap_checkpoint_close(c);
}

static void test_fp8_tiles(void **state) {
    (void)state;
    neap_checkpoint *c = unit_open("quant_blocks");
    static const int widths[] = {256, 192};
    for (int w = 0; w < 2; w++) {
        int64_t width = widths[w];
        unit_array in = unit_get(c, "tile.in.%d", widths[w]), want_codes = unit_get(c, "tile.codes.%d", widths[w]);
        unit_array want_scales = unit_get(c, "tile.scales.%d", widths[w]);
        unit_array want = unit_get(c, "tile.decoded.%d", widths[w]);
        for (int64_t row = 0; row < in.n / width; row++) {
            uint8_t codes[256];
            float scales[2], decoded[256];
            neap_fp8_tile_encode(codes, scales, in.f + row * width, width);
            assert_memory_equal(codes, want_codes.u8 + row * width, (size_t)width);
            assert_memory_equal(scales, want_scales.f + row * 2, sizeof scales);
            neap_fp8_tile_decode(decoded, codes, scales, width);
            assert_floats(decoded, want.f + row * width, width, "tile");
        }
    }
    neap_checkpoint_close(c);
}

/* D6, F5: hard tiles keep every value within half a step, clamp nothing, and show a NaN. */
static void test_hard_tiles(void **state) {
    (void)state;
    float x[128], back[128], scale;
    uint8_t codes[128];
    static const float fills[][2] = {{0, 0},     {1e-40f, 1e-40f}, {1e30f, 1e30f}, {1, 1e30f},
                                     {448, 448}, {449, 449},       {0.05f, 1},     {-448, -448}};
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
        for (int i = 0; i < 128; i++) x[i] = i == 77 ? fills[f][1] : fills[f][0];
        neap_fp8_tile_encode(codes, &scale, x, 128);
        neap_fp8_tile_decode(back, codes, &scale, 128);
        assert_true(isfinite(scale) && scale > 0);
        for (int i = 0; i < 128; i++) {
            double relative = fabs((double)x[i]) * 0.0625, step = (double)scale * 0x1p-10; /* normal, subnormal */
            double limit = relative > step ? relative : step;
            if (fabs((double)back[i] - x[i]) > limit + 1e-45) fail_msg("tile %zu: %g became %g", f, x[i], back[i]);
        }
    }
    for (int i = 0; i < 128; i++) x[i] = 1;
    x[5] = NAN;
    neap_fp8_tile_encode(codes, &scale, x, 128);
    neap_fp8_tile_decode(back, codes, &scale, 128);
    assert_true(isnan(back[5]));
    assert_true(isfinite(back[6]));
}

static void test_half_floats(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float f = neap_bf16_to_f32((uint16_t)i);
        if (isnan(f)) {
            assert_true(isnan(neap_bf16_to_f32(neap_f32_to_bf16(f))));
        } else {
            assert_int_equal(neap_f32_to_bf16(f), i);
        }
        int e = (int)(i >> 10 & 31), m = (int)(i & 1023);
        double want = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (i & 0x8000) want = -want;
        assert_true(same_float(neap_f16_to_f32((uint16_t)i), (float)want));
    }
    assert_int_equal(neap_f32_to_bf16(0x1.01p0f), 0x3f80); /* tie to even, down */
    assert_int_equal(neap_f32_to_bf16(0x1.03p0f), 0x3f82); /* tie to even, up */
    assert_int_equal(neap_f32_to_bf16(0x1.010002p0f), 0x3f81);
    assert_int_equal(neap_f32_to_bf16(3.4e38f), 0x7f80); /* rounds up to infinity */
    assert_true(isnan(neap_bf16_to_f32(neap_f32_to_bf16(NAN))));
}

static void test_dtype_names(void **state) {
    (void)state;
    assert_int_equal(neap_dtype_from_name("F8_E4M3", 7), NEAP_DTYPE_F8_E4M3);
    assert_int_equal(neap_dtype_from_name("BF16", 4), NEAP_DTYPE_BF16);
    assert_int_equal(neap_dtype_from_name("BF1", 3), -1);
    assert_int_equal(neap_dtype_from_name("BF166", 5), -1);
    assert_int_equal(neap_dtype_bits(NEAP_DTYPE_F4), 4);
    assert_int_equal(neap_dtype_bits(NEAP_DTYPE_F64), 64);
    assert_string_equal(neap_dtype_name(NEAP_DTYPE_I32), "I32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_codes),         cmocka_unit_test(test_encode),
        cmocka_unit_test(test_scale_codes),       cmocka_unit_test(test_mx_blocks),
        cmocka_unit_test(test_fp8_tiles),         cmocka_unit_test(test_hard_tiles),
        cmocka_unit_test(test_half_floats),       cmocka_unit_test(test_dtype_names),
        cmocka_unit_test(test_encode_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
