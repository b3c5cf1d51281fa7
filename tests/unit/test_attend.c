/* Attention over paged latents (attend, attend_merge) once per instruction set of this CPU: the golden vectors made
 * with float64 elsewhere, a float64 softmax over long rows, caches in BF16 and FP8 against F32 caches that hold what
 * neap_latent_get reads from them, and what a split may change (nothing but the last bits) and a tile may not.
 *
 * Everything runs as the layers do it: tiles of up to 8 rows, groups of heads, splits by position, the merge. */
#include "unit_data.h"

#include <sys/mman.h>

static const double ATTN_LIMIT = 2e-5, SPLIT_LIMIT = 1e-6;

/* Rows x [n, r + dr] as a pool in scrambled order; what is not a row holds NaN. */
static neap_pages pool_of(const neap_latent_format *f, const float *x, int64_t n) {
    int64_t n_pages = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS, bytes = neap_latent_page_bytes(f);
    uint8_t *base = unit_zeros((n_pages + 1) * bytes, 1);
    int32_t *table = unit_zeros(n_pages, sizeof *table);
    memset(base, 0xff, (size_t)((n_pages + 1) * bytes));
    for (int64_t p = 0; p < n_pages; p++) table[p] = (int32_t)(n_pages - p);
    for (int64_t i = 0; i < n; i++)
        neap_latent_put(f, base + table[i / NEAP_PAGE_ROWS] * bytes, i % NEAP_PAGE_ROWS, x + i * (f->r + f->dr));
    return (neap_pages){base, bytes, table};
}

/* Rows of one sequence. */
typedef struct problem {
    neap_latent_format format;
    neap_pages cache;
    const float *q; /* [rows][heads][r + dr] */
    int64_t rows, heads;
    const int32_t *lists; /* [rows][ld_list], NULL: dense */
    int64_t ld_list;
    const int32_t *n; /* per row: length of its list, or positions it sees */
    float scale;
} problem;
typedef struct answer {
    float *out, *lse; /* [rows][heads][r], [rows][heads] */
} answer;

static answer solve(const neap_kernels *k, const problem *p, int64_t tile, int64_t group, int64_t split) {
    int64_t r = p->format.r, width = r + p->format.dr, n_out = p->rows * p->heads * r, seen = 1;
    for (int64_t i = 0; i < p->rows; i++) {
        int64_t last = p->lists ? p->lists[i * p->ld_list + p->n[i] - 1] + 1 : p->n[i];
        seen = last > seen ? last : seen;
    }
    int64_t n_parts = (seen + split - 1) / split, n_stat = p->rows * p->heads;
    float *parts = unit_floats(n_parts * n_out), *max = unit_floats(n_parts * n_stat),
          *sum = unit_floats(n_parts * n_stat), *scratch = unit_floats(neap_attend_scratch(&p->format));
    answer y = {unit_floats(n_out), unit_floats(n_stat)};
    for (int64_t i = 0; i < p->rows; i += tile)
        for (int64_t h = 0; h < p->heads; h += group)
            for (int64_t s = 0; s < n_parts; s++) {
                int64_t at = s * n_stat + i * p->heads + h;
                neap_attend_args a = {.format = p->format,
                                      .cache = p->cache,
                                      .q = p->q + (i * p->heads + h) * width,
                                      .ld_row = p->heads * width,
                                      .ld_head = width,
                                      .n_rows = p->rows - i < tile ? p->rows - i : tile,
                                      .n_heads = p->heads - h < group ? p->heads - h : group,
                                      .lists = p->lists ? p->lists + i * p->ld_list : NULL,
                                      .ld_list = p->ld_list,
                                      .n_list = p->n + i,
                                      .begin = s * split,
                                      .end = (s + 1) * split,
                                      .scale = p->scale,
                                      .out = parts + at * r,
                                      .ld_out_row = p->heads * r,
                                      .ld_out_head = r,
                                      .max = max + at,
                                      .sum = sum + at,
                                      .ld_stat = p->heads,
                                      .scratch = scratch};
                k->attend(&a);
            }
    for (int64_t i = 0; i < n_stat; i++) {
        neap_attend_merge_args m = {parts + i * r, max + i, sum + i, n_out, n_stat, n_parts, r, y.out + i * r};
        k->attend_merge(&m);
        double most = -INFINITY, total = 0;
        for (int64_t s = 0; s < n_parts; s++) most = fmax(most, (double)max[s * n_stat + i]);
        for (int64_t s = 0; s < n_parts; s++)
            total += exp((double)max[s * n_stat + i] - most) * (double)sum[s * n_stat + i];
        y.lse[i] = (float)(most + log(total));
    }
    return y;
}

/* ---- golden vectors ---- */

/* Absorbed: q_lat = W_K^T q_nope, then attention over the latents, then W_V; the two products in double. */
static void golden_case(const neap_kernels *k, const neap_checkpoint *c, char name, int64_t nope) {
    unit_array q = unit_get(c, "%c.q", name), latent = unit_get(c, "%c.latent", name),
               rope = unit_get(c, "%c.krope", name);
    unit_array kv_b = unit_get(c, "%c.kv_b", name), topk = unit_get(c, "%c.index.topk", name);
    int64_t t = q.t->shape[0], heads = q.t->shape[1], d = q.t->shape[2], r = latent.t->shape[1], dr = d - nope;
    int64_t dv = kv_b.t->shape[0] / heads - nope, width = r + dr, n_top = topk.t->shape[1];
    float *rows = unit_floats(t * width), *ql = unit_floats(t * heads * width), *out = unit_floats(t * heads * dv);
    int32_t *seen[2] = {unit_zeros(t, 4), unit_zeros(t, 4)};
    for (int64_t i = 0; i < t; i++) {
        memcpy(rows + i * width, latent.f + i * r, (size_t)r * sizeof(float));
        memcpy(rows + i * width + r, rope.f + i * dr, (size_t)dr * sizeof(float));
        seen[0][i] = (int32_t)i + 1;
        while (seen[1][i] < n_top && topk.i32[i * n_top + seen[1][i]] >= 0) seen[1][i]++;
        for (int64_t h = 0; h < heads; h++) {
            const float *w = kv_b.f + h * (nope + dv) * r, *qh = q.f + (i * heads + h) * d;
            float *to = ql + (i * heads + h) * width;
            for (int64_t l = 0; l < r; l++) {
                double sum = 0;
                for (int64_t e = 0; e < nope; e++) sum += (double)qh[e] * w[e * r + l];
                to[l] = (float)sum;
            }
            memcpy(to + r, qh + nope, (size_t)dr * sizeof(float));
        }
    }
    problem p = {.format = {NEAP_ROWS_F32, (int32_t)r, (int32_t)dr},
                 .q = ql,
                 .rows = t,
                 .heads = heads,
                 .ld_list = n_top,
                 .scale = (float)(1 / sqrt((double)d))};
    p.cache = pool_of(&p.format, rows, t);
    for (int is_sparse = 0; is_sparse < 2; is_sparse++)
        for (int64_t split = 16; split <= 1024; split *= 8) { /* the last one: a single part */
            const char *mode = is_sparse ? "sparse" : "dense";
            p.lists = is_sparse ? topk.i32 : NULL;
            p.n = seen[is_sparse];
            answer y = solve(k, &p, NEAP_ATTEND_ROWS, NEAP_ATTEND_HEADS, split);
            for (int64_t i = 0; i < t * heads; i++)
                for (int64_t v = 0; v < dv; v++) {
                    const float *w = kv_b.f + (i % heads * (nope + dv) + nope + v) * r;
                    double sum = 0;
                    for (int64_t l = 0; l < r; l++) sum += (double)y.out[i * r + l] * w[l];
                    out[i * dv + v] = (float)sum;
                }
            UNIT_CLOSE(out, unit_get(c, "%c.%s.out", name, mode).f, t * heads * dv, ATTN_LIMIT);
            UNIT_CLOSE(y.lse, unit_get(c, "%c.%s.lse", name, mode).f, t * heads, ATTN_LIMIT);
        }
}
static void golden_body(const neap_kernels *k) {
    neap_checkpoint *c = unit_open("attention");
    static const int nope[] = {16, 32, 128};
    for (int i = 0; i < 3; i++) golden_case(k, c, (char)('a' + i), nope[i]);
    neap_checkpoint_close(c);
}
static void test_golden(void **state) {
    (void)state;
    unit_each_table(golden_body);
}

/* ---- long rows ---- */

enum { R = 128, DR = 16, WIDTH = R + DR, HEADS = 5, ROWS = 11, LENGTH = 5000 };

/* A few rows at the end of a sequence; lists: about a third of what they see, or none. */
static problem long_problem(neap_row_kind kind, bool is_sparse, const float **latents) {
    uint64_t seed = 31;
    float *x = unit_normals(&seed, LENGTH * WIDTH, 1);
    for (int64_t i = 0; i < LENGTH; i++) /* the largest scores come late and rise: the maximum moves */
        for (int64_t d = 0; d < WIDTH; d++) x[i * WIDTH + d] *= 0.2f + (float)i / LENGTH;
    problem p = {.format = {kind, R, DR}, .rows = ROWS, .heads = HEADS, .ld_list = LENGTH, .scale = 0.15f};
    p.q = unit_normals(&seed, ROWS * HEADS * WIDTH, 1);
    p.cache = pool_of(&p.format, x, LENGTH);
    int32_t *n = unit_zeros(ROWS, sizeof *n), *lists = is_sparse ? unit_zeros(ROWS * LENGTH, sizeof *lists) : NULL;
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t seen = LENGTH - ROWS + 1 + i;
        if (!is_sparse) n[i] = seen;
        for (int32_t j = 0; is_sparse && j < seen; j++)
            if (unit_random(&seed) % 3 == 0 || j == seen - 1) lists[i * LENGTH + n[i]++] = j;
    }
    p.n = n, p.lists = lists;
    *latents = x;
    return p;
}

/* Attention in double over the rows as they are read from the cache. */
static answer exact(const problem *p) {
    answer y = {unit_floats(p->rows * p->heads * p->format.r), unit_floats(p->rows * p->heads)};
    double score[LENGTH], o[R];
    float *read = unit_floats(LENGTH * WIDTH);
    for (int64_t j = 0; j < LENGTH; j++)
        neap_latent_get(&p->format, neap_pages_at(&p->cache, j), j % NEAP_PAGE_ROWS, read + j * WIDTH);
    for (int64_t i = 0; i < p->rows * p->heads; i++) {
        const int32_t *list = p->lists ? p->lists + i / p->heads * p->ld_list : NULL;
        int64_t n = p->n[i / p->heads];
        double most = -INFINITY, total = 0;
        for (int64_t j = 0; j < n; j++) {
            const float *row = read + (list ? list[j] : j) * WIDTH;
            score[j] = 0;
            for (int64_t d = 0; d < WIDTH; d++) score[j] += (double)p->q[i * WIDTH + d] * row[d];
            score[j] *= (double)p->scale;
            most = fmax(most, score[j]);
        }
        memset(o, 0, sizeof o);
        for (int64_t j = 0; j < n; j++) {
            const float *row = read + (list ? list[j] : j) * WIDTH;
            double e = exp(score[j] - most);
            total += e;
            for (int64_t d = 0; d < R; d++) o[d] += e * row[d];
        }
        for (int64_t d = 0; d < R; d++) y.out[i * R + d] = (float)(o[d] / total);
        y.lse[i] = (float)(most + log(total));
    }
    return y;
}

static void same_answer(const problem *p, answer got, answer want) {
    assert_memory_equal(got.out, want.out, (size_t)(p->rows * p->heads * p->format.r) * sizeof(float));
    assert_memory_equal(got.lse, want.lse, (size_t)(p->rows * p->heads) * sizeof(float));
}

static void long_body(const neap_kernels *k) {
    static const int64_t splits[] = {64, 320, 1024, 4096};
    for (int is_sparse = 0; is_sparse < 2; is_sparse++)
        for (int kind = NEAP_ROWS_F32; kind <= NEAP_ROWS_FP8; kind++) {
            const float *x;
            problem p = long_problem((neap_row_kind)kind, is_sparse, &x);
            answer whole = solve(k, &p, NEAP_ATTEND_ROWS, NEAP_ATTEND_HEADS, 8192), want = exact(&p);
            UNIT_CLOSE(whole.out, want.out, ROWS * HEADS * R, ATTN_LIMIT);
            UNIT_CLOSE(whole.lse, want.lse, ROWS * HEADS, ATTN_LIMIT);
            /* The unsplit chain over 5000 values is itself 1.1e-6 off; every split is closer to the truth. */
            for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
                answer split = solve(k, &p, NEAP_ATTEND_ROWS, NEAP_ATTEND_HEADS, splits[s]);
                UNIT_CLOSE(split.out, whole.out, ROWS * HEADS * R, is_sparse ? SPLIT_LIMIT : 1.5 * SPLIT_LIMIT);
                UNIT_CLOSE(split.out, want.out, ROWS * HEADS * R, 1.5 * SPLIT_LIMIT);
            }
            /* The split of a row is given; tiles and groups of heads must not show. */
            answer official = solve(k, &p, NEAP_ATTEND_ROWS, NEAP_ATTEND_HEADS, neap_attend_split(LENGTH));
            same_answer(&p, solve(k, &p, 1, 1, neap_attend_split(LENGTH)), official);
            same_answer(&p, solve(k, &p, 3, 2, neap_attend_split(LENGTH)), official);
            same_answer(&p, solve(k, &p, 8, 4, neap_attend_split(LENGTH)), official);
        }
}
static void test_long(void **state) {
    (void)state;
    unit_each_table(long_body);
}

/* ---- formats ---- */

/* A cache in BF16 or FP8 attends like an F32 cache of the values it is read as, bit by bit. */
static void formats_body(const neap_kernels *k) {
    for (int kind = NEAP_ROWS_BF16; kind <= NEAP_ROWS_FP8; kind++) {
        const float *x;
        problem small = long_problem((neap_row_kind)kind, true, &x), plain = small, original = small;
        float *read = unit_floats(LENGTH * WIDTH);
        for (int64_t j = 0; j < LENGTH; j++)
            neap_latent_get(&small.format, neap_pages_at(&small.cache, j), j % NEAP_PAGE_ROWS, read + j * WIDTH);
        plain.format.kind = original.format.kind = NEAP_ROWS_F32;
        plain.cache = pool_of(&plain.format, read, LENGTH);
        original.cache = pool_of(&plain.format, x, LENGTH);
        answer got = solve(k, &small, 8, 32, 1024), want = solve(k, &plain, 8, 32, 1024);
        same_answer(&small, got, want);
        want = solve(k, &original, 8, 32, 1024); /* and not by accident: what was rounded differs a little */
        assert_memory_not_equal(got.out, want.out, ROWS * HEADS * R * sizeof(float));
        UNIT_CLOSE(got.out, want.out, ROWS * HEADS * R, 0.5);
    }
}
static void test_formats(void **state) {
    (void)state;
    unit_each_table(formats_body);
}

/* ---- pools larger than 4 GiB; only the touched pages exist ---- */

static void far_body(const neap_kernels *k) {
    const size_t bytes = (size_t)6 << 30;
    const float *x;
    for (int kind = NEAP_ROWS_F32; kind <= NEAP_ROWS_FP8; kind++) {
        uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            print_message("SKIP: no address space for 6 GiB\n");
            return;
        }
        problem near = long_problem((neap_row_kind)kind, true, &x), far = near;
        int32_t n_pages = (LENGTH + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS, *table = unit_zeros(n_pages, sizeof *table);
        int64_t page = near.cache.page_bytes;
        far.rows = near.rows = 3;
        for (int32_t p = 0; p < n_pages; p++) {
            table[p] = (int32_t)((int64_t)(bytes - (size_t)page) / page - p * 3);
            memcpy(base + table[p] * page, near.cache.base + near.cache.table[p] * page, (size_t)page);
        }
        far.cache = (neap_pages){base, page, table};
        same_answer(&far, solve(k, &far, 8, 32, 1024), solve(k, &near, 8, 32, 1024));
        munmap(base, bytes);
    }
}
static void test_far(void **state) {
    (void)state;
    unit_each_table(far_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
