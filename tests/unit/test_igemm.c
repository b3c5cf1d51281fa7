/* Products in integers (neap_x_form in kernels.h) against exact products in double: weights are decoded here, from the
 * codes and scales that were drawn, and the error of every output must stay within what the definition allows,
 *   |y - sum x w| <= sum over units of a / (2 Q) * sum |w|  + rounding of the float32 chain over units,
 * a the largest |x| of the unit. Ordinary rows, zeros, tiny and huge ones, one large value beside small ones, NaN and
 * infinities; several shapes of units; every level of this CPU, tiles included, with the bits of the scalar
 * definition. */
#include "kernels/cpu.h"
#include "unit_data.h"

enum { M = 24, KINDS_OF_ROWS = 8, K_MAX = 1152, N_MAX = 70 };

typedef struct problem {
    neap_matrix w;
    int64_t n, k, group; /* of weights that share a scale */
    double *exact;       /* [n][k] decoded here */
    float *x;            /* [M][k] */
    int32_t rows[M];     /* the product reads x in this order */
} problem;

static uint64_t seed = 21;

/* Row i is of kind i % KINDS_OF_ROWS. */
static void draw_row(float *x, int64_t k, int kind) {
    for (int64_t j = 0; j < k; j++) {
        x[j] = unit_normal(&seed);
        if (kind == 1) x[j] = 0;
        if (kind == 2) x[j] *= 1e-41f; /* Q / a is infinite */
        if (kind == 3) x[j] = 1e30f;   /* the largest sums with output 0 */
        if (kind == 4) x[j] = j == k / 2 ? -3e5f : x[j];
        if (kind == 5) x[j] = j / 32 % 2 ? 0 : j / 64 % 2 ? x[j] * 1e-38f : x[j]; /* units of all sizes */
    }
    if (kind == 6) x[k - 1] = NAN;
    if (kind == 7) x[k / 3] = -INFINITY;
}

static void draw_x(problem *p) {
    p->x = unit_floats(M * p->k);
    for (int i = 0; i < M; i++) {
        draw_row(p->x + i * p->k, p->k, i % KINDS_OF_ROWS);
        p->rows[i] = (i * 7 + 3) % M;
    }
}

static void finish(problem *p, const neap_pack_source *src) {
    void *storage = unit_zeros((int64_t)neap_matrix_panel_bytes(&p->w), 1);
    assert_int_equal(neap_matrix_pack(&p->w, storage, src, 0, neap_matrix_panels(&p->w)), 0);
    p->w.panels = storage;
    draw_x(p);
}

static problem make_int8(int64_t n, int64_t k, int64_t group) {
    problem p = {.n = n, .k = k, .group = group, .exact = unit_zeros(n * k, sizeof(double))};
    int64_t per_row = (k + group - 1) / group;
    int8_t *codes = unit_zeros(n * k, 1);
    float *by_row = unit_floats(n * per_row);
    neap_matrix_shape_int8(&p.w, n, k, group);
    float *scales = unit_floats(neap_matrix_scale_count(&p.w));
    for (int64_t i = 0; i < n * per_row; i++) by_row[i] = 0.001f * (float)(1 + unit_random(&seed) % 20);
    for (int64_t i = 0; i < n * k; i++) {
        codes[i] = (int8_t)(i < k ? 127 : (int)(unit_random(&seed) % 255) - 127); /* output 0: all 127 */
        p.exact[i] = codes[i] * (double)by_row[i / k * per_row + i % k / group];
    }
    neap_matrix_pack_scales(&p.w, scales, by_row);
    p.w.scales = scales;
    neap_pack_source src = {.dtype = NEAP_DTYPE_I8, .data = codes, .row_stride = k, .col_stride = 1};
    finish(&p, &src);
    return p;
}

static problem make_mxfp4(int64_t n, int64_t k) {
    static const double values[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    problem p = {.n = n, .k = k, .group = 32, .exact = unit_zeros(n * k, sizeof(double))};
    uint8_t *packed = unit_zeros(n * k / 2, 1), *scales = unit_zeros(n * k / 32, 1);
    for (int64_t i = 0; i < n * k / 32; i++) scales[i] = (uint8_t)(118 + unit_random(&seed) % 12);
    for (int64_t i = 0; i < n * k; i++) {
        int code = i < k ? 7 : (int)(unit_random(&seed) % 16);
        packed[i / 2] |= (uint8_t)(i % 2 ? code << 4 : code);
        p.exact[i] = values[code] * ldexp(1, scales[i / 32] - 127);
    }
    neap_matrix_shape(&p.w, NEAP_MATRIX_MXFP4, n, k);
    neap_pack_source src = {.dtype = NEAP_DTYPE_U8, .data = packed, .row_stride = k / 2, .scale_e8m0 = scales};
    finish(&p, &src);
    return p;
}

/* y [M][n], rows [from, to) only; in two calls that share the panels, so that slices show too. */
static void multiply(const problem *p, const neap_kernels *k, neap_x_form form, int64_t from, int64_t to, float *y) {
    static _Alignas(64) char scratch[NEAP_GEMM_SCRATCH];
    int64_t panels = neap_matrix_panels(&p->w), half = panels / 3;
    for (int part = 0; part < 2; part++) {
        neap_gemm_args a = {.y = y + from * p->n,
                            .ldy = p->n,
                            .x = p->x,
                            .ldx = p->k,
                            .rows = p->rows + from,
                            .m = to - from,
                            .w = &p->w,
                            .panel_begin = part ? half : 0,
                            .panel_end = part ? panels : half,
                            .x_form = form,
                            .scratch = scratch};
        if (a.panel_begin < a.panel_end) neap_gemm(k, &a);
    }
}

/* Largest |error| / bound over all outputs of row i. */
static double row_share(const problem *p, int i, neap_x_form form, const float *y) {
    const float *x = p->x + p->rows[i] * p->k;
    double q = form == NEAP_X_INT16 ? NEAP_X_LIMIT_INT16 : NEAP_X_LIMIT_INT8, worst = 0;
    bool is_finite = p->rows[i] % KINDS_OF_ROWS < 6;
    for (int64_t o = 0; o < p->n; o++) {
        const double *w = p->exact + o * p->k;
        double sum = 0, bound = 0, size = 0;
        for (int64_t k = 0, end; k < p->k; k = end) {
            double a = 0, weights = 0, unit = 0;
            end = (k / p->group + 1) * p->group;
            if (end > k + NEAP_X_UNIT) end = k + NEAP_X_UNIT;
            if (end > p->k) end = p->k;
            for (int64_t e = k; e < end; e++) {
                a = fmax(a, fabs((double)x[e]));
                weights += fabs(w[e]);
                unit += fabs(x[e] * w[e]);
                sum += x[e] * w[e];
            }
            /* 1.01: codes come from a float32 quotient; so small that Q / a is infinite: all is dropped */
            bound += q / a > 0x1p128 ? a * weights : 1.01 * a / (2 * q) * weights;
            size += unit;
        }
        bound += 1e-6 * (size + bound) + 1e-42;
        double y_o = (double)y[i * p->n + o];
        if (!is_finite) {
            assert_true(isnan(y_o));
            continue;
        }
        double share = fabs(y_o - sum) / bound;
        if (!(share <= 1))
            fail_msg("%s, %s, row %d output %d: %g, exact %g, bound %g", neap_matrix_kind_name(p->w.kind),
                     form == NEAP_X_INT16 ? "int16" : "int8", i, (int)o, y_o, sum, bound);
        worst = fmax(worst, share);
    }
    return worst;
}

static void test_bounds(void **state) {
    (void)state;
    neap_kernels k;
    neap_kernels_init(&k, 0);
    problem problems[] = {make_int8(33, 100, 100),      make_int8(48, 384, 128), make_int8(17, 96, 32),
                          make_int8(64, 260, 260),      make_int8(20, 400, 200), make_int8(16, 52, 4),
                          make_int8(N_MAX, K_MAX, 128), make_mxfp4(33, 32),      make_mxfp4(16, 160),
                          make_mxfp4(N_MAX, K_MAX)};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        for (neap_x_form form = NEAP_X_INT16; form <= NEAP_X_INT8; form++) {
            float *y = unit_floats(M * p->n);
            double worst = 0;
            multiply(p, &k, form, 0, M, y);
            for (int r = 0; r < M; r++) {
                double share = row_share(p, r, form, y);
                if (p->rows[r] % KINDS_OF_ROWS == 0) worst = fmax(worst, share);
            }
            /* Rounding errors are independent, so the worst one stays below the bound, but not far below. */
            print_message("%-6s %4d x %-4d group %-3d %s: error at most %.2f of the bound\n",
                          neap_matrix_kind_name(p->w.kind), (int)p->n, (int)p->k, (int)p->group,
                          form == NEAP_X_INT16 ? "int16" : "int8 ", worst);
            assert_true(worst > 0.02);
        }
    }
}

/* Zero rows give zeros, with the sign that float32 sums have. */
static void test_zeros(void **state) {
    (void)state;
    neap_kernels k;
    neap_kernels_init(&k, neap_cpu_flags());
    problem p = make_mxfp4(40, 96);
    float *y = unit_floats(M * p.n);
    multiply(&p, &k, NEAP_X_INT16, 0, M, y);
    for (int i = 0; i < M; i++)
        for (int64_t o = 0; o < p.n && p.rows[i] % KINDS_OF_ROWS == 1; o++) assert_true(y[i * p.n + o] == 0);
}

/* Every level has the bits of the scalar definition, for any number of rows. */
static void test_levels(void **state) {
    (void)state;
    static const uint32_t levels[] = {NEAP_CPU_AVX2, NEAP_CPU_AVX2 | NEAP_CPU_AVXVNNI, NEAP_CPU_AVX2 | NEAP_CPU_AVX512,
                                      NEAP_CPU_AVX2 | NEAP_CPU_AVX512 | NEAP_CPU_AVX512VNNI, UINT32_MAX};
    problem problems[] = {make_int8(33, 100, 100), make_int8(20, 400, 200), make_int8(N_MAX, K_MAX, 128),
                          make_mxfp4(33, 32), make_mxfp4(N_MAX, K_MAX)};
    neap_kernels scalar;
    neap_kernels_init(&scalar, 0);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        for (neap_x_form form = NEAP_X_INT16; form <= NEAP_X_INT8; form++) {
            float *want = unit_floats(M * p->n), *y = unit_floats(M * p->n);
            multiply(p, &scalar, form, 0, M, want);
            for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
                neap_kernels k;
                neap_kernels_init(&k, levels[l] & neap_cpu_flags());
                for (int64_t m = 1; m <= M; m += m < 9 ? 1 : 5) {
                    memset(y, 0xff, (size_t)(M * p->n) * sizeof *y);
                    for (int64_t at = 0; at < M; at += m) multiply(p, &k, form, at, at + m < M ? at + m : M, y);
                    for (int64_t o = 0; o < M * p->n; o++)
                        if (!(y[o] == want[o] || (isnan(y[o]) && isnan(want[o]))))
                            fail_msg("level %d, %d rows: %g, scalar %g", (int)l, (int)m, (double)y[o], (double)want[o]);
                }
            }
        }
    }
}

/* Weights without an integer form take x as it is, whatever is asked for; F32 is F32 for those that have one. */
static void test_other_forms(void **state) {
    (void)state;
    neap_kernels k;
    neap_kernels_init(&k, neap_cpu_flags());
    problem p = make_int8(32, 64, 32);
    float *y = unit_floats(M * p.n), *again = unit_floats(M * p.n);
    multiply(&p, &k, NEAP_X_F32, 0, M, y);
    for (int i = 0; i < M; i++) {
        const float *x = p.x + p.rows[i] * p.k;
        for (int64_t o = 0; o < p.n && p.rows[i] % KINDS_OF_ROWS == 0; o++) {
            double sum = 0, size = 0;
            for (int64_t e = 0; e < p.k; e++) {
                sum += x[e] * p.exact[o * p.k + e];
                size += fabs(x[e] * p.exact[o * p.k + e]);
            }
            assert_true(fabs(sum - (double)y[i * p.n + o]) <= 2e-6 * size);
        }
    }
    float *plain = unit_floats(p.n * p.k);
    for (int64_t i = 0; i < p.n * p.k; i++) plain[i] = (float)p.exact[i];
    neap_matrix_shape(&p.w, NEAP_MATRIX_F32, p.n, p.k);
    p.w.scales = NULL;
    void *storage = unit_zeros((int64_t)neap_matrix_panel_bytes(&p.w), 1);
    neap_pack_source src = {.dtype = NEAP_DTYPE_F32, .data = plain, .row_stride = p.k, .col_stride = 1};
    assert_int_equal(neap_matrix_pack(&p.w, storage, &src, 0, neap_matrix_panels(&p.w)), 0);
    p.w.panels = storage;
    multiply(&p, &k, NEAP_X_F32, 0, M, y);
    multiply(&p, &k, NEAP_X_INT8, 0, M, again);
    assert_memory_equal(y, again, (size_t)(M * p.n) * sizeof *y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_other_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
