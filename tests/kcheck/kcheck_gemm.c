/* Matrix products of all weight kinds: ragged and real sizes, all row counts of the tiles, rows picked by an
 * index list, odd alignments; and the promise "same bits": a row alone, in a batch, with the panels split. */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>

typedef struct problem {
    neap_matrix w;
    neap_gemm_args a;
} problem;

static problem make(kc *c, neap_matrix_kind kind, int64_t n, int64_t k, int64_t m, kc_fill fill, bool has_rows) {
    int64_t ldx = k + kc_below(c, 5), pool = has_rows ? m + 3 : m;
    problem p = {.w = kc_matrix(c, kind, n, k, fill)};
    int32_t *rows = NULL;
    if (has_rows) {
        rows = kc_bytes(c, m * (int64_t)sizeof *rows);
        for (int64_t i = 0; i < m; i++) rows[i] = (int32_t)kc_below(c, pool);
    }
    p.a = (neap_gemm_args){.ldy = n + kc_below(c, 4),
                           .x = kc_floats(c, pool * ldx, (int)kc_below(c, 16), fill),
                           .ldx = ldx,
                           .rows = rows,
                           .m = m,
                           .panel_end = neap_matrix_panels(&p.w),
                           .scratch = kc_bytes(c, NEAP_GEMM_SCRATCH)};
    return p;
}

static void run(const neap_kernels *k, problem *p, float *y) {
    p->a.w = &p->w;
    p->a.y = y;
    neap_gemm(k, &p->a);
}

/* AMX adds in an order of its own and takes subnormal parts for zeros: close to the scalar chain, by what both may
 * lose, and not finite where that is not. */
static void near(kc *c, const problem *p, const float *got, const float *want) {
    int64_t k = p->w.k;
    for (int64_t i = 0; i < p->a.m; i++) {
        const float *x = p->a.x + (p->a.rows ? p->a.rows[i] : i) * p->a.ldx;
        for (int64_t j = 0; j < p->w.n; j++) {
            double size = 0, lost = 0;
            float a = got[i * p->a.ldy + j], b = want[i * p->a.ldy + j];
            for (int64_t e = 0; e < k; e++) {
                double xe = fabs((double)x[e]), we = fabs((double)neap_matrix_get(&p->w, j, e));
                size += xe * we;
                lost += xe + we + 1;
            }
            double bound = size * (double)(k + 8) * 0x1p-24 + lost * 0x1p-124;
            bool is_huge = size > 1e38; /* a partial sum may leave the range in one order only */
            if (is_huge || isnan(size) || (!isfinite(b) ? !isfinite(a) : fabs((double)a - (double)b) <= bound))
                continue;
            char text[160];
            snprintf(text, sizeof text, "y[%lld, %lld] is %a, not %a", (long long)i, (long long)j, (double)a,
                     (double)b);
            kc_fail(c, text);
            return;
        }
    }
}

static void one(kc *c, neap_matrix_kind kind, neap_x_form form, int64_t n, int64_t k, int64_t m, kc_fill fill,
                bool has_rows) {
    static const char *const forms[] = {"f32", "int16", "int8"};
    if (kind == NEAP_MATRIX_MXFP4) k = (k + 31) / 32 * 32; /* files have no others */
    if (!kc_begin(c, "%s x %s n %lld k %lld m %lld fill %d%s", neap_matrix_kind_name(kind), forms[form], (long long)n,
                  (long long)k, (long long)m, (int)fill, has_rows ? " rows" : ""))
        return;
    problem p = make(c, kind, n, k, m, fill, has_rows);
    p.a.x_form = form;
    int64_t total = (m - 1) * p.a.ldy + n;
    float *want = kc_output(c, total, 0), *got = kc_output(c, total, (int)kc_below(c, 16));
    run(&c->ref, &p, want);
    run(&c->k, &p, got);
    if (strcmp(c->isa, "amx") == 0 && form == NEAP_X_F32)
        near(c, &p, got, want);
    else
        kc_same(c, "y", got, want, total); /* the gaps between rows stay poisoned in both */

    /* The same rows one by one, and the panels in pieces. */
    float *again = kc_output(c, total, 3);
    const float *x = p.a.x;
    const int32_t *rows = p.a.rows;
    for (int64_t i = 0; i < m; i++) {
        p.a.m = 1, p.a.x = x + (rows ? rows[i] : i) * p.a.ldx, p.a.rows = NULL;
        run(&c->k, &p, again + i * p.a.ldy);
    }
    kc_same(c, "rows alone", again, got, total);
    p.a.m = m, p.a.x = x, p.a.rows = rows;
    again = kc_output(c, total, 1);
    int64_t panels = neap_matrix_panels(&p.w);
    for (int64_t b = 0; b < panels; b = p.a.panel_end) {
        p.a.panel_begin = b;
        p.a.panel_end = b + 1 + kc_below(c, 3);
        if (p.a.panel_end > panels) p.a.panel_end = panels;
        run(&c->k, &p, again);
    }
    kc_same(c, "panels in pieces", again, got, total);

    /* The same product twice in one call, with another kind of units or of x behind it. */
    float *twin = kc_output(c, total, 2), *other = kc_output(c, total, 0);
    again = kc_output(c, total, 0);
    neap_gemm_args behind = p.a, second;
    behind.y = other;
    behind.x_form = form == NEAP_X_F32 ? NEAP_X_INT16 : NEAP_X_F32;
    p.a.panel_begin = 0;
    p.a.panel_end = behind.panel_end = panels;
    behind.panel_begin = panels - 1;
    second = p.a;
    second.y = twin;
    second.also = &behind;
    p.a.also = &second;
    run(&c->k, &p, again);
    kc_same(c, "first of two", again, got, total);
    kc_same(c, "second of two", twin, got, total);
    p.a = behind;
    again = kc_output(c, total, 0);
    run(&c->k, &p, again);
    kc_same(c, "third product", other, again, total);
    kc_end(c);
}

/* A variant brings some kinds; the others stand in the table as they were. */
static bool has_kind(const kc *c, int kind) {
    return strcmp(c->isa, "scalar") == 0 || c->k.gemm[kind] != c->ref.gemm[kind];
}

static void check_kind(kc *c, neap_matrix_kind kind, neap_x_form form) {
    static const int64_t ns[] = {1, 15, 16, 17, 31, 33, 64, 97}, ks[] = {1, 2, 3, 5, 31, 33, 127, 129, 131, 160, 257};
    static const int64_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 25, 32, 47, 49};
    static const int64_t real[][3] = {
        {48, 2304, 1}, {33, 7168, 7},  {80, 3584, 3},  {32, 576, 13}, {64, 1536, 12},
        {16, 512, 60}, {40, 300, 290}, {17, 257, 700}, {16, 7168, 65}}; /* several blocks of rows, and of k */
    enum { N = sizeof ns / sizeof *ns, K = sizeof ks / sizeof *ks, M = sizeof ms / sizeof *ms };
    for (int i = 0; i < K; i++)
        for (int j = 0; j < M; j++)
            one(c, kind, form, ns[(i + j) % N], ks[i], ms[j],
                (i + 2 * j) % 7 < 4 ? KC_NORMAL : (kc_fill)((i + 2 * j) % 7 - 3), (i + j) % 3 == 0);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        one(c, kind, form, real[i][0], real[i][1], real[i][2], KC_NORMAL, false);
}

static void check(kc *c) {
    for (int kind = 0; kind < NEAP_MATRIX_KINDS; kind++)
        if (has_kind(c, kind)) check_kind(c, (neap_matrix_kind)kind, NEAP_X_F32);
}

static void check_int(kc *c) {
    for (int kind = 0; kind < NEAP_MATRIX_KINDS; kind++) {
        if (!c->k.gemm_int[kind]) continue;
        check_kind(c, (neap_matrix_kind)kind, NEAP_X_INT16);
        check_kind(c, (neap_matrix_kind)kind, NEAP_X_INT8);
    }
}

static void timed(const kc *c, void *args) {
    problem *p = args;
    neap_gemm(&c->k, &p->a);
}

static void bench_kind(kc *c, neap_matrix_kind kind, neap_x_form form) {
    static const struct {
        int64_t n, k, m;
        const char *note;
    } cases[] = {{64, 2304, 1, "cache"}, {4096, 7168, 1, "memory"}, {512, 7168, 2, ""},  {512, 7168, 4, ""},
                 {512, 7168, 8, ""},     {512, 2304, 64, ""},       {512, 2304, 512, ""}};
    static const neap_peak_kind maths[] = {NEAP_PEAK_FMA, NEAP_PEAK_DOT16, NEAP_PEAK_DOT8};
    static const char *const forms[] = {"", " int16", " int8"};
    bool is_scalar = strcmp(c->isa, "scalar") == 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t n = cases[i].n, k = cases[i].k, m = cases[i].m;
        if (is_scalar && n * m > 4096) n = 4096 / m / 16 * 16 + 16; /* the ratio stays right: time per value */
        char label[80];
        snprintf(label, sizeof label, "%s%s m %lld n %lld k %lld %s", neap_matrix_kind_name(kind), forms[form],
                 (long long)m, (long long)cases[i].n, (long long)k, cases[i].note);
        if (!kc_wants(c, label)) continue;
        kc_begin(c, "%s", label);
        problem p = make(c, kind, n, k, m, KC_NORMAL, false);
        p.a.x_form = form;
        p.a.w = &p.w;
        p.a.y = kc_output(c, m * p.a.ldy, 0);
        double bytes = (double)neap_matrix_panel_bytes(&p.w) + 4 * (double)neap_matrix_scale_count(&p.w);
        c->maths = maths[form];
        if (m <= 8 && cases[i].n > 64) {
            kc_cold(c, &p.w.panels, (int64_t)neap_matrix_panel_bytes(&p.w));
            kc_cold(c, &p.w.scales, 4 * neap_matrix_scale_count(&p.w));
        }
        kc_bench(c, label, timed, &p, bytes, (double)n * (double)k * (double)m);
    }
}

static void bench(kc *c) {
    for (int kind = 0; kind < NEAP_MATRIX_KINDS; kind++)
        if (has_kind(c, kind)) bench_kind(c, (neap_matrix_kind)kind, NEAP_X_F32);
}

static void bench_int(kc *c) {
    for (int kind = 0; kind < NEAP_MATRIX_KINDS; kind++) {
        if (!c->k.gemm_int[kind]) continue;
        bench_kind(c, (neap_matrix_kind)kind, NEAP_X_INT16);
        bench_kind(c, (neap_matrix_kind)kind, NEAP_X_INT8);
    }
}

const kc_family_tests neap_kc_gemm = {check, bench}, neap_kc_igemm = {check_int, bench_int};
