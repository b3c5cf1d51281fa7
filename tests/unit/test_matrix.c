/* Packed matrices: every kind, ragged sizes, slices and transposed sources, packed in ranges, against a plain
 * reading of the source. Padding must be zero whatever the memory held before (case F6), and the count of
 * non-finite values exact. Expected values come from the source bytes, not from the packed form. */
#include "unit_data.h"

#include "tensor/codec.h"

static const int64_t ns[] = {1, 15, 16, 17, 40, 129}, ks[] = {1, 2, 3, 31, 33, 64, 127, 130, 260};
enum { N_NS = sizeof ns / sizeof *ns, N_KS = sizeof ks / sizeof *ks };

/* Packs in two ranges into poisoned storage. */
static void *pack(neap_matrix *m, const neap_pack_source *src, int64_t expected_bad) {
    uint64_t bytes = neap_matrix_panel_bytes(m);
    unsigned char *storage = unit_zeros((int64_t)bytes + 64, 1);
    memset(storage, 0xff, bytes + 64);
    int64_t panels = neap_matrix_panels(m), middle = panels / 2;
    int64_t bad = neap_matrix_pack(m, storage, src, middle, panels);
    bad += neap_matrix_pack(m, storage, src, 0, middle);
    assert_int_equal(bad, expected_bad);
    for (int i = 0; i < 64; i++) assert_int_equal(storage[bytes + (uint64_t)i], 0xff);
    m->panels = storage;
    return storage;
}

static void check(const neap_matrix *m, const float *want) {
    for (int64_t i = 0; i < m->n; i++)
        for (int64_t j = 0; j < m->k; j++)
            if (neap_matrix_get(m, i, j) != want[i * m->k + j])
                fail_msg("%s %lldx%lld (%lld, %lld): %g, expected %g", neap_matrix_kind_name(m->kind), (long long)m->n,
                         (long long)m->k, (long long)i, (long long)j, neap_matrix_get(m, i, j), want[i * m->k + j]);
    assert_true(neap_matrix_get(m, m->n, 0) == 0);
    assert_true(neap_matrix_get(m, 0, m->k) == 0);
    int64_t row = m->n / 3, rows = m->n - row, ld = m->k + 3;
    float *dst = unit_floats(rows * ld);
    neap_matrix_unpack_rows(m, row, rows, dst, ld);
    for (int64_t i = 0; i < rows; i++) {
        assert_memory_equal(dst + i * ld, want + (row + i) * m->k, (size_t)m->k * sizeof(float));
        assert_true(dst[i * ld + m->k] == 0);
    }
}

/* Padded outputs and inputs of BF16, INT8, FP8 and MXFP4 are zero codes: read the raw bytes. */
static void check_padding(const neap_matrix *m) {
    const uint8_t *bytes = m->panels;
    int64_t panels = neap_matrix_panels(m);
    for (int64_t p = 0; p < panels; p++)
        for (int64_t b = 0; b < m->panel_bytes; b++) {
            int64_t lane = b % 64 / 4, row = p * 16 + lane, k;
            if (m->kind == NEAP_MATRIX_F32)
                k = b / 64;
            else if (m->kind == NEAP_MATRIX_BF16)
                k = b / 64 * 2 + b % 4 / 2;
            else if (m->kind == NEAP_MATRIX_INT8 || m->kind == NEAP_MATRIX_FP8)
                k = b / 64 * 4 + b % 4;
            else if (b / 64 % 17 == 16) { /* scales: the row is another */
                row = p * 16 + b % 16, k = b / (17 * 64) * 128 + b % 64 / 16 * 32;
            } else {
                k = b / (17 * 64) * 128 + b / 64 % 17 * 8 + b % 4;
                if (row < m->n && k + 4 >= m->k) assert_int_equal(bytes[p * m->panel_bytes + b] >> 4, 0);
            }
            if (row >= m->n || k >= m->k) assert_int_equal(bytes[p * m->panel_bytes + b], 0);
        }
}

static void test_f32_and_bf16(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int a = 0; a < N_NS; a++)
        for (int b = 0; b < N_KS; b++)
            for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
                int64_t n = ns[a], k = ks[b], ld = (is_transposed ? n : k) + 5;
                int64_t total = (is_transposed ? k : n) * ld;
                float *f = unit_normals(&seed, total, 1), *want = unit_floats(n * k);
                uint16_t *h = unit_zeros(total, 2);
                int64_t rs = is_transposed ? 1 : ld, cs = is_transposed ? ld : 1;
                for (int64_t i = 0; i < total; i++) h[i] = neap_f32_to_bf16(f[i]);
                neap_matrix m;
                neap_pack_source src = {.dtype = NEAP_DTYPE_F32, .data = f, .row_stride = rs, .col_stride = cs};
                for (int64_t i = 0; i < n * k; i++) want[i] = f[i / k * rs + i % k * cs];
                neap_matrix_shape(&m, NEAP_MATRIX_F32, n, k);
                pack(&m, &src, 0);
                check(&m, want);
                check_padding(&m);

                for (int64_t i = 0; i < n * k; i++) want[i] = neap_bf16_to_f32(h[i / k * rs + i % k * cs]);
                src.dtype = NEAP_DTYPE_BF16, src.data = h;
                pack(&m, &src, 0);
                check(&m, want);
                neap_matrix_shape(&m, NEAP_MATRIX_BF16, n, k);
                pack(&m, &src, 0);
                check(&m, want);
                check_padding(&m);
                h[(n - 1) * rs + (k - 1) * cs] = 0x7f80, h[0] = 0xffc0;
                pack(&m, &src, n * k > 1 ? 2 : 1);
                for (int64_t i = 0; i < total; i++) h[i] = 0x3c01; /* F16: 1 + 2^-10 */
                src.dtype = NEAP_DTYPE_F16;
                neap_matrix_shape(&m, NEAP_MATRIX_F32, n, k);
                pack(&m, &src, 0);
                for (int64_t i = 0; i < n * k; i++) want[i] = 1 + 0x1p-10f;
                check(&m, want);
            }
}

/* An FP8 tensor [rows, cols] with its block scales, and slices of it. */
static void test_fp8(void **state) {
    (void)state;
    uint64_t seed = 2;
    int64_t rows = 300, cols = 410, blocks = 4;
    uint8_t *codes = unit_zeros(rows * cols, 1);
    float *scales = unit_floats(3 * blocks);
    for (int64_t i = 0; i < rows * cols; i++) {
        codes[i] = (uint8_t)unit_random(&seed);
        if ((codes[i] & 0x7f) == 0x7f) codes[i] = 8;
    }
    for (int i = 0; i < 12; i++) scales[i] = 0.01f + (float)(i * i) * 0.37f;
#define VALUE(r, c) (neap_e4m3_decode(codes[(r)*cols + (c)]) * scales[(r) / 128 * blocks + (c) / 128])
    neap_matrix m;
    float *want = unit_floats(rows * cols);
    neap_pack_source src = {
        .dtype = NEAP_DTYPE_F8_E4M3, .data = codes, .row_stride = cols, .col_stride = 1, .scale_inv = scales};
    for (int64_t i = 0; i < rows * cols; i++) want[i] = VALUE(i / cols, i % cols);
    neap_matrix_shape(&m, NEAP_MATRIX_FP8, rows, cols);
    assert_int_equal(neap_matrix_scale_count(&m), 12);
    pack(&m, &src, 0);
    m.scales = scales;
    check(&m, want);
    check_padding(&m);
    neap_matrix_shape(&m, NEAP_MATRIX_F32, rows, cols);
    pack(&m, &src, 0);
    check(&m, want);

    /* Transposed as a whole, then a transposed slice whose first row is not on a block border. */
    src.row_stride = 1, src.col_stride = cols;
    neap_matrix_shape(&m, NEAP_MATRIX_F32, cols, rows);
    for (int64_t i = 0; i < rows * cols; i++) want[i] = VALUE(i % rows, i / rows);
    pack(&m, &src, 0);
    check(&m, want);
    int64_t row0 = 192, n_rows = 77;
    src.data = codes + row0 * cols, src.scale_row = row0, src.scale_ld = blocks;
    neap_matrix_shape(&m, NEAP_MATRIX_F32, cols, n_rows);
    for (int64_t i = 0; i < n_rows * cols; i++) want[i] = VALUE(row0 + i % n_rows, i / n_rows);
    pack(&m, &src, 0);
    check(&m, want);
    /* A slice in the source's orientation. */
    src.row_stride = cols, src.col_stride = 1;
    neap_matrix_shape(&m, NEAP_MATRIX_F32, n_rows, cols);
    for (int64_t i = 0; i < n_rows * cols; i++) want[i] = VALUE(row0 + i / cols, i % cols);
    pack(&m, &src, 0);
    check(&m, want);

    codes[row0 * cols + 3] = 0x7f, codes[(row0 + 1) * cols] = 0xff;
    pack(&m, &src, 2);
    scales[blocks + 3] = INFINITY; /* rows 192..255 of the columns 384..409: 64 * 26, or 0 * inf */
    pack(&m, &src, 2 + 64 * 26);
}

static void test_mxfp4(void **state) {
    (void)state;
    uint64_t seed = 3;
    static const int64_t widths[] = {32, 64, 96, 128, 160, 288};
    for (int a = 0; a < N_NS; a++)
        for (int b = 0; b < 6; b++) {
            int64_t n = ns[a], k = widths[b];
            uint8_t *packed = unit_zeros(n * k / 2, 1), *scales = unit_zeros(n * k / 32, 1);
            float *want = unit_floats(n * k);
            for (int64_t i = 0; i < n * k / 2; i++) packed[i] = (uint8_t)unit_random(&seed);
            for (int64_t i = 0; i < n * k / 32; i++) scales[i] = (uint8_t)(unit_random(&seed) % 253);
            scales[0] = 0; /* 2^-127 */
            for (int64_t i = 0; i < n * k; i++)
                want[i] = neap_e2m1_decode(i % 2 ? packed[i / 2] >> 4 : packed[i / 2] & 15) *
                          neap_e8m0_decode(scales[i / 32]);
            neap_matrix m;
            neap_pack_source src = {.dtype = NEAP_DTYPE_U8, .data = packed, .row_stride = k / 2, .scale_e8m0 = scales};
            neap_matrix_shape(&m, NEAP_MATRIX_MXFP4, n, k);
            pack(&m, &src, 0);
            check(&m, want);
            check_padding(&m);
            scales[n * k / 32 - 1] = 255;
            pack(&m, &src, 32);
            scales[n * k / 32 - 1] = 254; /* 2^127: 2 and more overflow */
            int64_t bad = 0;
            for (int64_t i = n * k / 2 - 16; i < n * k / 2; i++)
                bad += ((packed[i] & 7) >= 4) + ((packed[i] >> 4 & 7) >= 4);
            pack(&m, &src, bad);
        }
}

static void test_int8(void **state) {
    (void)state;
    uint64_t seed = 4;
    static const int64_t groups[] = {4, 32, 128, 1000};
    for (int a = 0; a < N_NS; a++)
        for (int b = 0; b < N_KS; b++)
            for (int c = 0; c < 4; c++) {
                int64_t n = ns[a], k = ks[b], per_row = (k + groups[c] - 1) / groups[c];
                int8_t *codes = unit_zeros(n * k, 1);
                float *scales = unit_normals(&seed, n * per_row, 1), *want = unit_floats(n * k);
                for (int64_t i = 0; i < n * k; i++) {
                    codes[i] = (int8_t)(unit_random(&seed) & 0xff); /* -128 too: others write it */
                    want[i] = (float)codes[i] * scales[i / k * per_row + i % k / groups[c]];
                }
                neap_matrix m;
                neap_matrix_shape_int8(&m, n, k, groups[c]);
                assert_int_equal(neap_matrix_groups(&m), per_row);
                assert_int_equal(neap_matrix_scale_count(&m), (n + 15) / 16 * 16 * per_row);
                float *packed = unit_floats(neap_matrix_scale_count(&m));
                for (int64_t i = 0; i < neap_matrix_scale_count(&m); i++) packed[i] = NAN;
                neap_matrix_pack_scales(&m, packed, scales);
                for (int64_t i = 0; i < neap_matrix_scale_count(&m); i++) assert_true(isfinite(packed[i]));
                neap_pack_source src = {.dtype = NEAP_DTYPE_I8, .data = codes, .row_stride = k, .col_stride = 1};
                pack(&m, &src, 0);
                m.scales = packed;
                check(&m, want);
                check_padding(&m);
            }
}

static void test_shape(void **state) {
    (void)state;
    neap_matrix m;
    neap_matrix_shape(&m, NEAP_MATRIX_MXFP4, 3072, 3584);
    assert_true(neap_matrix_panel_bytes(&m) == 3072u * 3584 / 32 * 17);
    neap_matrix_shape(&m, NEAP_MATRIX_BF16, 163840, 7168);
    assert_true(neap_matrix_panel_bytes(&m) == UINT64_C(163840) * 7168 * 2);
    neap_matrix_shape(&m, NEAP_MATRIX_F32, 2066, 1039680); /* offsets beyond 32 bits: case D7 */
    assert_true(neap_matrix_panel_bytes(&m) == UINT64_C(130) * 1039680 * 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_and_bf16), cmocka_unit_test(test_fp8),   cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_int8),         cmocka_unit_test(test_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
