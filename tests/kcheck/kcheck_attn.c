/* Absorbed attention over paged latents: every format, dense rows and lists of every density, ranges that cut them,
 * tiles of 1 to 8 rows with lists of their own, 1 to 32 heads, NaN and infinities. A row alone and a head alone must
 * have the bits they have in the tile. The pool of pages ends at an unreadable page: reading past it is a crash.
 *
 * --bench: the published sizes, rows fetched from far and rows at hand, what sorting and prefetching save in a gather,
 * and two ratios: FP8 to BF16, a tile of rows to single rows. */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

typedef struct attend_shape {
    neap_latent_format format;
    int64_t heads, rows, n; /* n: positions of the sequence */
    int list;               /* 0: none (dense), else one of LISTS */
} attend_shape;
enum { LIST_NONE, LIST_ALL, LIST_RANDOM, LIST_PER_PAGE, LIST_FEW, LISTS };

/* Memory of the case that ends where nothing can be read. */
static void *edge_bytes(int64_t bytes) {
    enum { ROOM = 16 << 20, PAGE = 4096 };
    static char *end;
    if (!end) {
        char *p = mmap(NULL, ROOM + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + ROOM, PAGE, PROT_NONE)) exit(2);
        end = p + ROOM;
    }
    if (bytes > ROOM) exit(2);
    return end - bytes;
}

/* All positions of a sequence; page 0 comes last, so that row 63 of it ends at the edge. */
static neap_pages attend_pool(kc *c, const attend_shape *s, kc_fill fill) {
    int64_t n_pages = (s->n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS, width = s->format.r + s->format.dr;
    int32_t *table = kc_bytes(c, n_pages * (int64_t)sizeof *table);
    neap_pages pages = {.page_bytes = neap_latent_page_bytes(&s->format), .table = table};
    uint8_t *base = edge_bytes(n_pages * pages.page_bytes);
    pages.base = base;
    memset(base, 0xa5, (size_t)(n_pages * pages.page_bytes));
    for (int64_t p = 0; p < n_pages; p++) table[p] = (int32_t)(n_pages - 1 - p);
    for (int64_t i = 0; i < s->n; i += 32) { /* few random buffers: a case has a limit */
        int64_t count = s->n - i < 32 ? s->n - i : 32;
        static float x[32 * 1024];
        const float *some = i % 1024 ? NULL : kc_floats(c, count * width, 0, fill);
        if (some) memcpy(x, some, (size_t)(count * width) * sizeof *x);
        for (int64_t j = 0; j < count; j++) {
            float *row = x + j * width;
            if (!some) row[kc_below(c, width)] *= -1.5f; /* all rows differ */
            neap_latent_put(&s->format, base + table[(i + j) / NEAP_PAGE_ROWS] * pages.page_bytes,
                            (i + j) % NEAP_PAGE_ROWS, row);
        }
    }
    return pages;
}

static int32_t attend_list(kc *c, int32_t *list, int64_t n, int kind, int64_t density) {
    int32_t count = 0, page = -1;
    for (int64_t p = 0; p < n; p++) {
        bool is_in = true;
        if (kind == LIST_RANDOM) is_in = kc_below(c, 100) < density;
        if (kind == LIST_PER_PAGE) is_in = p / NEAP_PAGE_ROWS != page && kc_below(c, 20) == 0;
        if (kind == LIST_FEW) is_in = kc_below(c, n) < 12;
        if (!is_in) continue;
        list[count++] = (int32_t)p;
        page = (int32_t)(p / NEAP_PAGE_ROWS);
    }
    if (!count) list[count++] = (int32_t)kc_below(c, n);
    return count;
}

typedef struct attend_outputs {
    float *out, *max, *sum;
} attend_outputs;

static attend_outputs attend_run(kc *c, const neap_kernels *k, neap_attend_args a, int skew) {
    int64_t n_out = (a.n_rows - 1) * a.ld_out_row + (a.n_heads - 1) * a.ld_out_head + a.format.r;
    int64_t n_stat = (a.n_rows - 1) * a.ld_stat + a.n_heads;
    attend_outputs o = {kc_output(c, n_out, skew), kc_output(c, n_stat, 1), kc_output(c, n_stat, 2)};
    a.out = o.out, a.max = o.max, a.sum = o.sum;
    a.scratch = kc_output(c, neap_attend_scratch(&a.format), skew);
    k->attend(&a);
    return o;
}

static void attend_same(kc *c, const char *what, const neap_attend_args *a, attend_outputs got, attend_outputs want) {
    for (int64_t i = 0; i < a->n_rows; i++)
        for (int64_t h = 0; h < a->n_heads; h++) {
            int64_t at = i * a->ld_out_row + h * a->ld_out_head;
            kc_same(c, what, got.out + at, want.out + at, a->format.r);
        }
    for (int64_t i = 0; i < a->n_rows; i++) {
        kc_same(c, "max", got.max + i * a->ld_stat, want.max + i * a->ld_stat, a->n_heads);
        kc_same(c, "sum", got.sum + i * a->ld_stat, want.sum + i * a->ld_stat, a->n_heads);
    }
}

/* One row and one head alone, then a range of heads. */
static void attend_parts(kc *c, const neap_attend_args *a, attend_outputs want) {
    int64_t i = kc_below(c, a->n_rows), h = kc_below(c, a->n_heads), heads = 1 + kc_below(c, a->n_heads - h);
    for (int part = 0; part < 2; part++) {
        neap_attend_args b = *a;
        b.q += i * a->ld_row + h * a->ld_head;
        if (b.lists) b.lists += i * a->ld_list;
        b.n_list += i;
        b.n_rows = part ? a->n_rows - i : 1;
        b.n_heads = part ? heads : 1;
        attend_outputs from = {want.out + i * a->ld_out_row + h * a->ld_out_head, want.max + i * a->ld_stat + h,
                               want.sum + i * a->ld_stat + h};
        attend_same(c, part ? "some rows and heads" : "alone", &b, attend_run(c, &c->k, b, 3), from);
    }
}

static void attend_case(kc *c, const attend_shape *s, kc_fill fill, int range) {
    if (!kc_begin(c, "%s r %d dr %d heads %lld rows %lld n %lld list %d fill %d range %d",
                  neap_row_kind_name(s->format.kind), s->format.r, s->format.dr, (long long)s->heads,
                  (long long)s->rows, (long long)s->n, s->list, (int)fill, range))
        return;
    int64_t width = s->format.r + s->format.dr, ld_head = width + kc_below(c, 3);
    int64_t ld_row = s->heads * ld_head + kc_below(c, 5);
    int32_t *n_list = kc_bytes(c, s->rows * (int64_t)sizeof *n_list), *lists = NULL;
    if (s->list) lists = kc_bytes(c, s->rows * s->n * (int64_t)sizeof *lists);
    int64_t density = 1 + kc_below(c, 90);
    for (int64_t i = 0; i < s->rows; i++) {
        int64_t seen = s->n - s->rows + 1 + i > 0 ? s->n - s->rows + 1 + i : 1; /* causal */
        bool is_copy = i && kc_below(c, 4) == 0;
        n_list[i] = (int32_t)seen;
        if (!lists) continue;
        n_list[i] = is_copy ? n_list[i - 1] : attend_list(c, lists + i * s->n, seen, s->list, density);
        if (is_copy) memcpy(lists + i * s->n, lists + (i - 1) * s->n, (size_t)n_list[i] * sizeof *lists);
    }
    neap_attend_args a = {.format = s->format,
                          .cache = attend_pool(c, s, fill),
                          .q = kc_floats(c, s->rows * ld_row, (int)kc_below(c, 16), fill),
                          .ld_row = ld_row,
                          .ld_head = ld_head,
                          .n_rows = s->rows,
                          .n_heads = s->heads,
                          .lists = lists,
                          .ld_list = s->n,
                          .n_list = n_list,
                          .begin = 0,
                          .end = s->n,
                          .scale = 0.1f,
                          .ld_out_head = s->format.r + kc_below(c, 3),
                          .ld_stat = s->heads + kc_below(c, 3)};
    a.ld_out_row = a.ld_out_head * s->heads + kc_below(c, 4);
    if (range == 1) a.begin = kc_below(c, s->n), a.end = a.begin + kc_below(c, s->n);
    if (range == 2) a.begin = 64 * kc_below(c, s->n / 64 + 1), a.end = a.begin + 64;
    if (range == 3) a.begin = a.end = kc_below(c, s->n); /* nothing */
    attend_outputs want = attend_run(c, &c->ref, a, 0);
    attend_same(c, "out", &a, attend_run(c, &c->k, a, (int)kc_below(c, 16)), want);
    attend_parts(c, &a, want);
    kc_end(c);
}

static void merge_case(kc *c, int64_t r, int64_t n_parts, kc_fill fill, int empty) {
    if (!kc_begin(c, "merge r %lld parts %lld fill %d empty %d", (long long)r, (long long)n_parts, (int)fill, empty))
        return;
    int64_t ld_part = r + kc_below(c, 3), ld_stat = 1 + kc_below(c, 3);
    float *max = kc_floats(c, n_parts * ld_stat, 0, fill), *sum = kc_floats(c, n_parts * ld_stat, 1, KC_NORMAL);
    float *parts = kc_floats(c, n_parts * ld_part, (int)kc_below(c, 16), fill);
    for (int64_t s = 0; s < n_parts; s++) {
        bool is_empty = empty == 2 || (empty == 1 && kc_below(c, 2));
        sum[s * ld_stat] = is_empty ? 0 : fabsf(sum[s * ld_stat]) + 1;
        if (is_empty) max[s * ld_stat] = -INFINITY;
        for (int64_t d = 0; is_empty && d < r; d++) parts[s * ld_part + d] = 0;
    }
    neap_attend_merge_args a = {parts, max, sum, ld_part, ld_stat, n_parts, r, kc_output(c, r, 0)};
    const float *want = a.out;
    c->ref.attend_merge(&a);
    a.out = kc_output(c, r, (int)kc_below(c, 16));
    c->k.attend_merge(&a);
    kc_same(c, "merged", a.out, want, r);
    kc_end(c);
}

/* Every code of E4M3 that a row may hold, with scales from the smallest to the largest. */
static void codes_case(kc *c) {
    for (int e = 0; e < 250; e++) {
        if (!kc_begin(c, "codes, scale %d", e)) continue;
        neap_latent_format f = {NEAP_ROWS_FP8, 254, 0};
        int32_t table = 0, n_list = 64;
        uint8_t *page = kc_bytes(c, neap_latent_page_bytes(&f));
        float *scales = (float *)(void *)(page + 64 * 254), q[254], *x = kc_floats(c, 64, 0, KC_NORMAL);
        for (int i = 0; i < 64 * 254; i++) page[i] = (uint8_t)((i / 2 % 127) | i % 2 << 7);
        for (int i = 0; i < 128; i++) scales[i] = ldexpf(1 + fabsf(x[i % 64]) / 8, e - 140 + i % 5);
        for (int i = 0; i < 254; i++) q[i] = 0;
        q[e % 254] = 1e-30f;
        neap_attend_args a = {.format = f,
                              .cache = {page, 0, &table},
                              .q = q,
                              .n_rows = 1,
                              .n_heads = 1,
                              .n_list = &n_list,
                              .end = 64,
                              .scale = 1,
                              .ld_stat = 1};
        attend_outputs want = attend_run(c, &c->ref, a, 0);
        attend_same(c, "out", &a, attend_run(c, &c->k, a, 0), want);
        for (a.begin = 0; a.begin < 8; a.begin++) { /* a single position comes out as it was decoded */
            a.end = a.begin + 1;
            float row[254];
            neap_latent_get(&f, page, a.begin, row);
            for (int i = 0; i < 254; i++) row[i] += 0.0f; /* as 0 + 1 * value: no -0 */
            attend_outputs o = attend_run(c, &c->k, a, 0);
            if (isfinite(row[e % 254] * 1e-30f)) kc_same(c, "decoded", o.out, row, 254);
        }
        kc_end(c);
    }
}

static void check(kc *c) {
    static const int32_t shapes[][2] = {{1, 0},   {7, 3},   {8, 0},   {16, 0},   {17, 16},   {24, 8},  {32, 24},
                                        {64, 16}, {96, 33}, {129, 1}, {200, 40}, {130, 130}, {272, 0}, {512, 64}};
    static const int64_t ns[] = {1, 2, 3, 5, 15, 16, 20, 33, 63, 64, 65, 128, 131, 300, 700};
    static const int64_t heads[] = {1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 31, 32};
    int seed = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (int list = 0; list < LISTS; list++, seed++) {
                int64_t few = shapes[i][0] < 200 || ns[j] < 100; /* the scalar side takes its time */
                attend_shape s = {.format = {(neap_row_kind)(seed % 3), shapes[i][0], shapes[i][1]},
                                  .heads = few ? heads[seed * 7 % 12] : 1 + seed % 5,
                                  .rows = few ? 1 + seed % 8 : 1 + seed % 2,
                                  .n = ns[j],
                                  .list = list};
                attend_case(c, &s, seed % 4 == 3 ? (kc_fill)(1 + seed / 4 % 3) : KC_NORMAL, seed % 5 % 4);
            }
    for (int kind = 0; kind < 3; kind++) {
        attend_shape s = {{(neap_row_kind)kind, 512, 64}, 32, 3, 140, LIST_RANDOM};
        attend_case(c, &s, KC_NORMAL, 0);
        s = (attend_shape){{(neap_row_kind)kind, 24, 8}, 6, 8, 4000, LIST_RANDOM};
        attend_case(c, &s, KC_NORMAL, 1);
    }
    for (int i = 0; i < 48; i++) merge_case(c, 1 + kc_below(c, 70), 1 + i % 12, (kc_fill)(i % 4), i / 4 % 3);
    merge_case(c, 512, 32, KC_NORMAL, 1);
    codes_case(c);
}

/* ---- timing ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A sequence of n positions: pages filled with a few random ones, the table scrambled. */
static neap_pages bench_pool(kc *c, const neap_latent_format *f, int64_t n) {
    enum { MODELS = 4 };
    int64_t n_pages = n / NEAP_PAGE_ROWS, bytes = neap_latent_page_bytes(f);
    uint8_t *base = kc_bytes(c, n_pages * bytes);
    int32_t *table = kc_bytes(c, n_pages * (int64_t)sizeof *table);
    char *inner = (char *)base + (4096 - (uintptr_t)base % 4096) % 4096; /* huge pages, as the engine's memory */
    if (n_pages * bytes > 2 << 20) (void)madvise(inner, (size_t)(n_pages * bytes) - 4096, MADV_HUGEPAGE);
    float *x = kc_floats(c, NEAP_PAGE_ROWS * (f->r + f->dr), 0, KC_NORMAL);
    for (int64_t p = 0; p < n_pages; p++) {
        table[p] = (int32_t)p;
        for (int64_t i = 0; p < MODELS && i < NEAP_PAGE_ROWS; i++)
            neap_latent_put(f, base + p * bytes, i, x + (i + p) % NEAP_PAGE_ROWS * (f->r + f->dr));
        if (p >= MODELS) memcpy(base + p * bytes, base + p % MODELS * bytes, (size_t)bytes);
    }
    for (int64_t p = n_pages - 1; p > 0; p--) {
        int64_t other = kc_below(c, p + 1);
        int32_t held = table[p];
        table[p] = table[other], table[other] = held;
    }
    return (neap_pages){base, bytes, table};
}

/* `k` of n positions at random, ascending; a neighbour changes one in ten. */
static void bench_list(kc *c, int32_t *list, int64_t k, int64_t n) {
    for (int64_t p = 0, left = k; left; p++)
        if (kc_below(c, n - p) < left) list[k - left--] = (int32_t)p;
}
static void bench_neighbour(kc *c, int32_t *list, const int32_t *like, int64_t k, int64_t n) {
    for (int64_t i = 0; i < k; i++) {
        int64_t low = i ? list[i - 1] + 1 : 0, high = i + 1 < k ? like[i + 1] : n;
        list[i] = like[i];
        if (kc_below(c, 10) == 0 && high > low) list[i] = (int32_t)(low + kc_below(c, high - low));
    }
}

enum { BENCH_ROWS = 8, BENCH_HEADS = 32, BENCH_R = 512, BENCH_DR = 64, BENCH_WIDTH = 576, BENCH_K = 2048 };

/* A tile of 8 rows; k = 0: dense. */
static neap_attend_args bench_args(kc *c, neap_row_kind kind, int64_t n, int64_t k) {
    neap_attend_args a = {.format = {kind, BENCH_R, BENCH_DR},
                          .q = kc_floats(c, BENCH_ROWS * BENCH_HEADS * BENCH_WIDTH, 0, KC_NORMAL),
                          .ld_row = BENCH_HEADS * BENCH_WIDTH,
                          .ld_head = BENCH_WIDTH,
                          .n_rows = BENCH_ROWS,
                          .n_heads = strcmp(c->isa, "scalar") == 0 ? 1 : BENCH_HEADS,
                          .ld_list = k,
                          .end = n,
                          .scale = 0.05f,
                          .out = kc_output(c, BENCH_ROWS * BENCH_HEADS * BENCH_R, 0),
                          .ld_out_row = BENCH_HEADS * BENCH_R,
                          .ld_out_head = BENCH_R,
                          .max = kc_output(c, BENCH_ROWS * BENCH_HEADS, 0),
                          .sum = kc_output(c, BENCH_ROWS * BENCH_HEADS, 0),
                          .ld_stat = BENCH_HEADS};
    int32_t *n_list = kc_bytes(c, BENCH_ROWS * (int64_t)sizeof *n_list), *lists = NULL;
    if (k) lists = kc_bytes(c, BENCH_ROWS * k * (int64_t)sizeof *lists);
    for (int64_t i = 0; i < BENCH_ROWS; i++) {
        n_list[i] = (int32_t)(k ? k : n);
        if (k && i == 0) bench_list(c, lists, k, n);
        if (k && i > 0) bench_neighbour(c, lists + i * k, lists + (i - 1) * k, k, n);
    }
    a.n_list = n_list, a.lists = lists;
    a.cache = bench_pool(c, &a.format, n);
    a.scratch = kc_output(c, neap_attend_scratch(&a.format), 0);
    return a;
}

static void run_attend(const kc *c, void *args) { c->k.attend(args); }
static void run_singles(const kc *c, void *args) {
    neap_attend_args a = *(neap_attend_args *)args;
    int64_t n = a.n_rows;
    for (a.n_rows = 1; n; n--) {
        c->k.attend(&a);
        a.q += a.ld_row, a.n_list++, a.out += a.ld_out_row, a.max += a.ld_stat, a.sum += a.ld_stat;
        if (a.lists) a.lists += a.ld_list;
    }
}

/* Best seconds of several calls of each, taken in turn: what else this machine does hits both. */
static void best_of_two(const kc *c, void (*run)(const kc *c, void *args), void *one,
                        void (*run_other)(const kc *c, void *args), void *other, double best[2]) {
    best[0] = best[1] = 1e9;
    for (int i = 0; i < 40; i++) {
        double start = now();
        if (i % 2)
            run_other(c, other);
        else
            run(c, one);
        double seconds = now() - start;
        if (i > 1 && seconds < best[i % 2]) best[i % 2] = seconds;
    }
}

static void ratio(const kc *c, const char *text, double a, double b) {
    if (!c->is_csv) printf("%-8s %-7s %-52s %.3f\n", c->family, c->isa, text, a / b);
}

static double macs_of(const neap_attend_args *a) {
    return (double)a->n_rows * (double)a->n_heads * a->n_list[0] * (2 * BENCH_R + BENCH_DR);
}

static void bench_sizes(kc *c) {
    static const struct {
        const char *label;
        neap_row_kind kind;
        int64_t n, k;
    } cases[] = {
        {"bf16, dense 512", NEAP_ROWS_BF16, 512, 0},           {"bf16, dense 4096", NEAP_ROWS_BF16, 4096, 0},
        {"bf16, dense 8192", NEAP_ROWS_BF16, 8192, 0},         {"f32, dense 4096", NEAP_ROWS_F32, 4096, 0},
        {"fp8, dense 4096", NEAP_ROWS_FP8, 4096, 0},           {"bf16, 2048 of 4K", NEAP_ROWS_BF16, 4096, BENCH_K},
        {"bf16, 2048 of 32K", NEAP_ROWS_BF16, 32768, BENCH_K}, {"f32, 2048 of 32K", NEAP_ROWS_F32, 32768, BENCH_K},
        {"fp8, 2048 of 32K", NEAP_ROWS_FP8, 32768, BENCH_K},   {"bf16, 2048 of 128K", NEAP_ROWS_BF16, 131072, BENCH_K},
        {"fp8, 2048 of 128K", NEAP_ROWS_FP8, 131072, BENCH_K},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!kc_wants(c, cases[i].label)) continue;
        kc_begin(c, "%s", cases[i].label);
        neap_attend_args a = bench_args(c, cases[i].kind, cases[i].n, cases[i].k);
        a.n_rows = 1;
        c->items = a.n_list[0];
        double bytes = (double)a.n_list[0] * (double)a.cache.page_bytes / NEAP_PAGE_ROWS;
        kc_bench(c, cases[i].label, run_attend, &a, bytes, macs_of(&a));
    }
}

static void bench_ratios(kc *c) {
    double best[2];
    for (int sparse = 0; sparse < 2; sparse++) {
        int64_t n = sparse ? 32768 : 4096, k = sparse ? BENCH_K : 0;
        const char *where = sparse ? "2048 of 32K" : "dense 4096";
        char text[80];
        kc_begin(c, "ratios %d", sparse);
        neap_attend_args bf16 = bench_args(c, NEAP_ROWS_BF16, n, k), fp8 = bench_args(c, NEAP_ROWS_FP8, n, k);
        best_of_two(c, run_attend, &bf16, run_singles, &bf16, best);
        snprintf(text, sizeof text, "%s: 8 single rows / tile of 8 rows", where);
        ratio(c, text, best[1], best[0]);
        bf16.n_rows = fp8.n_rows = 1;
        best_of_two(c, run_attend, &fp8, run_attend, &bf16, best);
        snprintf(text, sizeof text, "%s: fp8 / bf16", where);
        ratio(c, text, best[0], best[1]);
    }
}

/* A gather alone: one word of each line of the rows of a list, out of a cache that is larger than the processor's.
 * Every run has a list of its own, so that rows come from memory. Each word is needed before the next is asked for, as
 * where a row is used before the next one is looked at: with loads that depend on nothing a large core runs some rows
 * ahead by itself, and sorting and fetching ahead save a quarter. The contiguous rows are what memory gives when the
 * processor sees everything coming. */
enum { GATHER_LISTS = 192, ATTEND_LISTS = 24, GATHER_AHEAD = 6 };
enum { GATHER_UNSORTED, GATHER_SORTED, GATHER_CONTIGUOUS, GATHERS };
typedef struct gathers {
    neap_pages cache;
    const int32_t *lists; /* [GATHER_LISTS][BENCH_K] */
    bool is_ahead;
    int next;
} gathers;
static volatile uint64_t gather_sink;

static const uint8_t *gather_row(const neap_pages *cache, int64_t position) {
    return neap_pages_at(cache, position) + position % NEAP_PAGE_ROWS * BENCH_WIDTH * 2;
}
static void run_gather(const kc *c, void *args) {
    gathers *g = args;
    const int32_t *list = g->lists + g->next++ % GATHER_LISTS * BENCH_K;
    uint64_t sum = 0, word;
    for (int64_t i = 0; i < BENCH_K; i++) {
        const uint8_t *row = gather_row(&g->cache, list[i]);
        const uint8_t *next = gather_row(&g->cache, list[i + GATHER_AHEAD < BENCH_K ? i + GATHER_AHEAD : i]);
        if (g->is_ahead)
            for (int b = 0; b < BENCH_WIDTH * 2; b += 64) __builtin_prefetch(next + b, 0, 2);
        for (int b = 0; b < BENCH_WIDTH * 2; b += 64) {
            memcpy(&word, row + b + sum % 2 * 8, sizeof word);
            sum += word & 6;
            __asm__ volatile("" : "+r"(sum)); /* else it is known to be even, and no load depends on the one before */
        }
    }
    gather_sink = sum + (uint64_t)c->seed;
}
static void shuffle(kc *c, int32_t *x, int64_t n) {
    for (int64_t k = n - 1; k > 0; k--) {
        int64_t other = kc_below(c, k + 1);
        int32_t held = x[k];
        x[k] = x[other], x[other] = held;
    }
}
static void bench_gather(kc *c) {
    static const char *const labels[GATHERS] = {"gather, unsorted", "gather, sorted and fetched ahead",
                                                "gather, contiguous"};
    if (!kc_wants(c, labels[0]) && !kc_wants(c, labels[1]) && !kc_wants(c, labels[2])) return;
    kc_begin(c, "gather");
    int64_t bytes, page_bytes = NEAP_PAGE_ROWS * BENCH_WIDTH * 2;
    const uint8_t *base = kc_far_block(&bytes);
    int64_t n_pages = bytes / page_bytes, each = n_pages * NEAP_PAGE_ROWS / BENCH_K;
    int32_t *table = kc_bytes(c, n_pages * 4), *lists = kc_bytes(c, (int64_t)GATHER_LISTS * BENCH_K * 4);
    for (int64_t i = 0; i < n_pages; i++) table[i] = (int32_t)i;
    for (int way = GATHERS - 1; way >= 0; way--) { /* contiguous first: before pages are scattered */
        for (int64_t l = 0; l < GATHER_LISTS; l++) {
            int32_t *list = lists + l * BENCH_K;
            int64_t begin = l * (each - 1) / GATHER_LISTS * BENCH_K;
            for (int64_t k = 0; k < BENCH_K; k++)
                list[k] = (int32_t)(way == GATHER_CONTIGUOUS ? begin + k : k * each + kc_below(c, each));
            if (way == GATHER_UNSORTED) shuffle(c, list, BENCH_K);
        }
        if (way == GATHER_SORTED) shuffle(c, table, n_pages);
        gathers g = {{base, page_bytes, table}, lists, way == GATHER_SORTED, 0};
        gather_sink = c->peaks.read(base, bytes / 256 * 256, 0); /* all ways find the same in the caches */
        c->items = BENCH_K;
        c->is_far = true;
        kc_bench(c, labels[way], run_gather, &g, BENCH_K * BENCH_WIDTH * 2.0, 0);
    }
}

typedef struct attends {
    neap_attend_args a;
    int32_t *lists[ATTEND_LISTS];
    int next, step;
} attends;
static void run_next_attend(const kc *c, void *args) {
    attends *t = args;
    t->next = (t->next + t->step) % ATTEND_LISTS;
    t->a.lists = t->lists[t->next];
    c->k.attend(&t->a);
}

static void bench_far(kc *c) {
    static const char *const labels[] = {"2048 of 128K, another list each time", "2048 of 128K, one list"};
    if (!kc_wants(c, labels[0]) && !kc_wants(c, labels[1])) return;
    kc_begin(c, "far");
    attends t = {.a = bench_args(c, NEAP_ROWS_BF16, 131072, BENCH_K), .step = 1};
    t.a.n_rows = 1;
    for (int i = 0; i < ATTEND_LISTS; i++) {
        t.lists[i] = kc_bytes(c, BENCH_K * 4);
        bench_list(c, t.lists[i], BENCH_K, 131072);
    }
    for (int i = 0; i < 2; i++, t.step = 0) {
        c->items = BENCH_K;
        kc_bench(c, labels[i], run_next_attend, &t, BENCH_K * BENCH_WIDTH * 2.0, macs_of(&t.a));
    }
}

static void bench(kc *c) {
    bench_sizes(c);
    if (strcmp(c->isa, "scalar") == 0) return;
    if (kc_wants(c, "ratios")) bench_ratios(c);
    bench_gather(c);
    bench_far(c);
}

const kc_family_tests neap_kc_attn = {check, bench};
