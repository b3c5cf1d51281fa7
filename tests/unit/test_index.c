/* Index selection over pages against data that neap did not make, and the cases D1, D4, D5, D7 of CASES.md at the
 * level of kernels. Every instruction set runs all of it. */
#include "unit_data.h"

#include <sys/mman.h>

#include "tensor/codec.h"
#include "tensor/pages.h"

#define SCORE_LIMIT 2e-5 /* that of the attention units */

/* ---- a sequence's keys in a pool of pages ---- */

typedef struct pool {
    neap_index_format format;
    uint8_t *base;
    int64_t page_bytes, n_pages;
} pool;

static pool make_pool(neap_row_kind kind, int64_t d, int64_t n_pages) {
    pool p = {.format = {.kind = kind, .d = (int32_t)d}, .n_pages = n_pages};
    p.page_bytes = neap_index_page_bytes(&p.format);
    p.base = unit_zeros(n_pages * p.page_bytes, 1);
    memset(p.base, 0xff, (size_t)(n_pages * p.page_bytes)); /* NaN in every format: what is not a key must not matter */
    return p;
}

/* Puts n keys into the pages table[0], table[1], ... */
static neap_pages put_keys(const pool *p, const int32_t *table, const float *keys, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        neap_index_put(&p->format, p->base + table[i / NEAP_PAGE_ROWS] * p->page_bytes, i % NEAP_PAGE_ROWS,
                       keys + i * p->format.d);
    return (neap_pages){.base = p->base, .page_bytes = p->page_bytes, .table = table};
}

/* The keys alone in a pool, pages in falling order. */
static neap_pages lone_keys(pool *p, neap_row_kind kind, const float *keys, int64_t n, int64_t d) {
    int64_t n_pages = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS;
    int32_t *table = unit_zeros(n_pages, sizeof *table);
    *p = make_pool(kind, d, n_pages + 1);
    for (int64_t i = 0; i < n_pages; i++) table[i] = (int32_t)(n_pages - i);
    return put_keys(p, table, keys, n);
}

static neap_candidates candidates(int64_t k) {
    int64_t n = neap_candidates_capacity(k);
    return (neap_candidates){.order = unit_zeros(n, 4), .positions = unit_zeros(n, 4)};
}

/* Buffers of one row's selection. */
typedef struct chooser {
    neap_candidates list[3];
    float *scratch, *q;
} chooser;
static chooser make_chooser(int64_t k, int64_t heads, int64_t d) {
    neap_index_format f = {.kind = NEAP_ROWS_F32, .d = (int32_t)d};
    chooser c = {.scratch = unit_floats(neap_index_scratch(&f, heads)), .q = unit_floats(heads * d)};
    for (int i = 0; i < 3; i++) c.list[i] = candidates(k);
    return c;
}

/* One row over keys 0 .. n-1, n > k; cut: a border of two ranges, 0 = one range. */
static void choose(const neap_kernels *k, chooser *c, const pool *p, neap_pages keys, const float *q, const float *w,
                   int64_t heads, int64_t n, int64_t top, int64_t cut, int32_t *out) {
    int32_t visible = (int32_t)n;
    int64_t d = p->format.d, n_ranges = cut ? 2 : 1;
    memcpy(c->q, q, (size_t)(heads * d) * sizeof *q);
    for (int64_t h = 0; h < heads; h++) neap_index_round_query(&p->format, c->q + h * d);
    neap_index_scan_args a = {.format = p->format,
                              .keys = keys,
                              .q = c->q,
                              .w = w,
                              .ld_q = heads * d,
                              .ld_w = heads,
                              .n_rows = 1,
                              .n_heads = heads,
                              .k = top,
                              .n = &visible,
                              .scratch = c->scratch};
    for (int64_t r = 0; r < n_ranges; r++) {
        a.begin = r ? cut : 0, a.end = cut && !r ? cut : n, a.out = &c->list[r];
        k->index_scan(&a);
    }
    k->index_merge(out, c->list, n_ranges, top);
}

/* The float that topk_key() maps to this. */
static float score_of(uint32_t order) {
    uint32_t u = order & 0x80000000 ? order & 0x7fffffff : ~order;
    float f;
    memcpy(&f, &u, sizeof f);
    return order ? f : NAN;
}

/* ---- against the attention units ---- */

/* want: [t, n_top], -1 = unused. gap[i] <= 1e-5 and not 0: too close to call. */
static void unit_case(const neap_kernels *k, neap_row_kind kind, const neap_checkpoint *c, const char *prefix,
                      float factor, unit_array want, const float *gap, const float *want_scores) {
    unit_array iq = unit_get(c, "%s.iq", prefix), ik = unit_get(c, "%s.ik", prefix), iw = unit_get(c, "%s.iw", prefix);
    int64_t t = iq.t->shape[0], heads = iq.t->shape[1], d = iq.t->shape[2], n_top = want.t->shape[1];
    pool p;
    neap_pages keys = lone_keys(&p, kind, ik.f, t, d);
    chooser top = make_chooser(n_top, heads, d), all = make_chooser(t, heads, d);
    float *w = unit_floats(heads), *scores = unit_floats(t);
    int32_t *out = unit_zeros(t, sizeof *out);
    for (int64_t i = 0; i < t; i++) {
        for (int64_t h = 0; h < heads; h++) w[h] = iw.f[i * heads + h] * factor;
        choose(k, &all, &p, keys, iq.f + i * heads * d, w, heads, i + 1, i + 1, 0, out); /* keeps everything */
        assert_int_equal(all.list[0].n, i + 1);
        for (int64_t j = 0; j <= i; j++) assert_int_equal(out[j], j);
        for (int64_t j = 0; j <= i; j++) scores[j] = score_of(all.list[0].order[j]);
        UNIT_CLOSE(scores, want_scores + i * t, i + 1, SCORE_LIMIT);
        if (gap && gap[i] != 0 && gap[i] <= 1e-5) continue;
        if (i + 1 <= n_top) continue;
        for (int64_t cut = 0; cut <= i && cut <= NEAP_PAGE_ROWS; cut += NEAP_PAGE_ROWS) {
            choose(k, &top, &p, keys, iq.f + i * heads * d, w, heads, i + 1, n_top, cut, out);
            if (memcmp(out, want.i32 + i * n_top, (size_t)n_top * sizeof *out) != 0)
                fail_msg("%s: %s %s: selection of token %lld", unit_table_name, prefix, neap_row_kind_name(kind),
                         (long long)i);
        }
    }
}

static void units_body(const neap_kernels *k) {
    neap_checkpoint *c = unit_open("attention");
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        const char *name = names[i];
        unit_array iq = unit_get(c, "%s.iq", name);
        float factor = (float)(1 / sqrt((double)(iq.t->shape[1] * iq.t->shape[2])));
        unit_case(k, NEAP_ROWS_F32, c, name, factor, unit_get(c, "%s.index.topk", name),
                  unit_get(c, "%s.index.gap", name).f, unit_get(c, "%s.index.scores", name).f);
        unit_case(k, NEAP_ROWS_MXFP8, c, name, factor, unit_get(c, "%s.mx.ceil.topk", name),
                  unit_get(c, "%s.mx.ceil.gap", name).f, unit_get(c, "%s.mx.ceil.scores", name).f);
    }
    /* small integers are exact in every format */
    for (neap_row_kind kind = NEAP_ROWS_F32; kind <= NEAP_ROWS_MXFP8; kind++)
        if (kind != NEAP_ROWS_FP8)
            unit_case(k, kind, c, "ties", 1, unit_get(c, "ties.topk"), NULL, unit_get(c, "ties.scores_unscaled").f);
    neap_checkpoint_close(c);
}
static void test_units(void **state) {
    (void)state;
    unit_each_table(units_body);
}

/* ---- D5: the fused, quantised selection against a plain one ---- */

typedef struct ranked {
    float score;
    int32_t position;
} ranked;
static int by_rank(const void *pa, const void *pb) {
    const ranked *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->position - b->position;
}

enum { D5_ROWS = 1000, D5_KEYS = 300, D5_HEADS = 4, D5_D = 64, D5_TOP = 32 };
static float *d5_q, *d5_w, *d5_keys;
static bool (*d5_plain)[D5_KEYS]; /* chosen by the plain selection */
static int d5_cut[D5_ROWS];       /* keys that row i sees */

/* Quantises whole vectors, decodes them, scores, sorts: nothing that the kernels use but the codec. */
static void d5_prepare(void) {
    uint64_t seed = 51;
    d5_q = unit_normals(&seed, D5_ROWS * D5_HEADS * D5_D, 1), d5_w = unit_normals(&seed, D5_ROWS * D5_HEADS, 1);
    d5_keys = unit_normals(&seed, D5_KEYS * D5_D, 1);
    d5_plain = unit_zeros(D5_ROWS, sizeof *d5_plain);
    float *keys = unit_floats(D5_KEYS * D5_D), q[D5_HEADS * D5_D];
    uint8_t codes[D5_KEYS * D5_D], scales[D5_KEYS * D5_D / 32];
    neap_mx_encode(codes, scales, d5_keys, D5_KEYS * D5_D, NEAP_MX_E4M3, NEAP_MX_CEIL);
    neap_mx_decode(keys, codes, scales, D5_KEYS * D5_D, NEAP_MX_E4M3);
    for (int i = 0; i < D5_ROWS; i++) {
        ranked all[D5_KEYS];
        d5_cut[i] = D5_TOP + 1 + (int)(unit_random(&seed) % (D5_KEYS - D5_TOP));
        neap_mx_encode(codes, scales, d5_q + i * D5_HEADS * D5_D, D5_HEADS * D5_D, NEAP_MX_E4M3, NEAP_MX_CEIL);
        neap_mx_decode(q, codes, scales, D5_HEADS * D5_D, NEAP_MX_E4M3);
        for (int j = 0; j < d5_cut[i]; j++) {
            float sum = 0;
            for (int h = 0; h < D5_HEADS; h++) {
                float dot = 0;
                for (int e = 0; e < D5_D; e++) dot = fmaf(q[h * D5_D + e], keys[j * D5_D + e], dot);
                sum = fmaf(d5_w[i * D5_HEADS + h], dot > 0 ? dot : 0, sum);
            }
            all[j] = (ranked){sum, j};
        }
        qsort(all, (size_t)d5_cut[i], sizeof *all, by_rank);
        for (int j = 0; j < D5_TOP; j++) d5_plain[i][all[j].position] = true;
    }
}

static void overlap_body(const neap_kernels *k) {
    pool p;
    neap_pages keys = lone_keys(&p, NEAP_ROWS_MXFP8, d5_keys, D5_KEYS, D5_D);
    chooser c = make_chooser(D5_TOP, D5_HEADS, D5_D);
    int same = 0;
    for (int i = 0; i < D5_ROWS; i++) {
        int32_t out[D5_TOP];
        choose(k, &c, &p, keys, d5_q + i * D5_HEADS * D5_D, d5_w + i * D5_HEADS, D5_HEADS, d5_cut[i], D5_TOP,
               d5_cut[i] > 64 && i % 2 ? 64 : 0, out);
        for (int j = 0; j < D5_TOP; j++) same += d5_plain[i][out[j]];
    }
    assert_int_equal(same, D5_ROWS * D5_TOP); /* overlap 1.0 */
}
static void test_overlap(void **state) {
    (void)state;
    d5_prepare();
    unit_each_table(overlap_body);
}

/* ---- D1: sequences of 10, 300 and 77 share a pool ---- */

static void batch_body(const neap_kernels *k) {
    enum { HEADS = 3, D = 24, TOP = 16, PAGES = 8, SEQUENCES = 3 };
    static const int lengths[SEQUENCES] = {10, 300, 77};
    static const int32_t tables[SEQUENCES][5] = {{4}, {6, 0, 3, 7, 1}, {2, 5}};
    uint64_t seed = 31;
    for (neap_row_kind kind = NEAP_ROWS_F32; kind <= NEAP_ROWS_MXFP8; kind++) {
        if (kind == NEAP_ROWS_FP8) continue;
        pool shared = make_pool(kind, D, PAGES), lone;
        chooser c = make_chooser(TOP, HEADS, D);
        float *q[SEQUENCES], *w[SEQUENCES], *x[SEQUENCES];
        neap_pages keys[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++) {
            q[s] = unit_normals(&seed, HEADS * D, 1), w[s] = unit_normals(&seed, HEADS, 1);
            x[s] = unit_normals(&seed, lengths[s] * D, 1);
            keys[s] = put_keys(&shared, tables[s], x[s], lengths[s]);
        }
        for (int s = 0; s < SEQUENCES; s++) {
            int32_t together[TOP], alone[TOP];
            if (lengths[s] <= TOP) continue; /* all of it, without a scan */
            choose(k, &c, &shared, keys[s], q[s], w[s], HEADS, lengths[s], TOP, 0, together);
            choose(k, &c, &lone, lone_keys(&lone, kind, x[s], lengths[s], D), q[s], w[s], HEADS, lengths[s], TOP, 0,
                   alone);
            assert_memory_equal(together, alone, sizeof alone);
            for (int i = 0; i < TOP; i++)
                assert_true(together[i] >= 0 && together[i] < lengths[s] && (i == 0 || together[i] > together[i - 1]));
        }
    }
}
static void test_batch(void **state) {
    (void)state;
    unit_each_table(batch_body);
}

/* ---- D4: fewer keys than are chosen, and just as many ---- */

static void few_body(const neap_kernels *k) {
    enum { HEADS = 2, D = 16, TOP = 70 };
    uint64_t seed = 41;
    float *q = unit_normals(&seed, HEADS * D, 1), *w = unit_normals(&seed, HEADS, 1),
          *x = unit_normals(&seed, (TOP + 2) * D, 1);
    pool p;
    neap_pages keys = lone_keys(&p, NEAP_ROWS_BF16, x, TOP + 2, D);
    chooser c = make_chooser(TOP, HEADS, D);
    int32_t out[TOP];
    for (int64_t n = 1; n <= TOP + 2; n++) {
        int64_t top = n < TOP ? n : TOP;
        choose(k, &c, &p, keys, q, w, HEADS, n, top, n > 64 ? 64 : 0, out);
        for (int64_t i = 0; i < top; i++) assert_true(n <= TOP ? out[i] == i : i == 0 || out[i] > out[i - 1]);
    }
}
static void test_few(void **state) {
    (void)state;
    unit_each_table(few_body);
}

/* ---- D7: pages beyond 4 GiB; only the touched ones exist ---- */

static void far_body(const neap_kernels *k) {
    enum { D = 128, HEADS = 2, KEYS = 150, TOP = 20 };
    size_t bytes = (size_t)6 << 30;
    pool far = {.format = {.kind = NEAP_ROWS_BF16, .d = D}};
    far.page_bytes = neap_index_page_bytes(&far.format);
    far.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far.base == MAP_FAILED) {
        print_message("SKIP: no address space for 6 GiB\n");
        return;
    }
    uint64_t seed = 71;
    int32_t table[3] = {1, (int32_t)(bytes / (size_t)far.page_bytes) - 1, (int32_t)(((size_t)1 << 32) / 16384) + 3};
    float *q = unit_normals(&seed, HEADS * D, 1), *w = unit_normals(&seed, HEADS, 1),
          *x = unit_normals(&seed, KEYS * D, 1);
    pool near;
    chooser c = make_chooser(TOP, HEADS, D);
    int32_t out[2][TOP];
    choose(k, &c, &near, lone_keys(&near, NEAP_ROWS_BF16, x, KEYS, D), q, w, HEADS, KEYS, TOP, 64, out[0]);
    choose(k, &c, &far, put_keys(&far, table, x, KEYS), q, w, HEADS, KEYS, TOP, 64, out[1]);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    munmap(far.base, bytes);
}
static void test_far(void **state) {
    (void)state;
    unit_each_table(far_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units), cmocka_unit_test(test_overlap), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_few),   cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
