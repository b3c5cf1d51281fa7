/* The indexer. A problem is a sequence of keys in scrambled pages, up to 8 rows of queries that see different
 * numbers of keys, and random borders that split the keys into ranges. Scores are computed once more here, plainly;
 * scan and merge of every variant must give those scores bit by bit (as keys of the same order) and the selection
 * that sorting them as floats gives, whatever the borders. Few distinct values force ties.
 *
 * The bench compares the fused scan with separate passes over memory (unfused.h). */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/topk.h"
#include "tensor/codec.h"
#include "unfused.h"

typedef struct scored {
    float score;
    int32_t position;
} scored;

/* Better first; the order that kernels.h states. */
static int by_rank(const void *pa, const void *pb) {
    const scored *a = pa, *b = pb;
    if (isnan(a->score) != isnan(b->score)) return isnan(a->score) ? 1 : -1;
    if (a->score > b->score) return -1;
    if (a->score < b->score) return 1;
    return a->position - b->position;
}
static int by_position(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* ---- problems ---- */

typedef enum data {
    DATA_FILL,  /* values of kc_fill */
    DATA_TIES,  /* -1, 0, 1 */
    DATA_CODES, /* MXFP8: any bytes */
    DATA_RISING,
    DATA_FALLING, /* scores in order of their positions */
    DATA_STEPS,   /* neighbouring floats; the best ones are few and come after the first cut */
    DATA_FLOOD    /* NaN first, infinities among what follows */
} data;

/* Pages of n keys; what no key fills stays poisoned. */
static neap_pages pages(kc *c, const neap_index_format *f, int64_t n, kc_fill fill, data how) {
    int64_t n_pages = (n + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS, bytes = neap_index_page_bytes(f);
    int32_t *table = kc_bytes(c, n_pages * (int64_t)sizeof *table);
    uint8_t *base = kc_bytes(c, (n_pages + 1) * bytes);
    float *key = kc_output(c, f->d, 0);
    for (int64_t p = 0; p < n_pages; p++) table[p] = (int32_t)((p * 5 + 2) % n_pages); /* swapped below if not 1:1 */
    if (n_pages % 5 == 0)
        for (int64_t p = 0; p < n_pages; p++) table[p] = (int32_t)(n_pages - p);
    float *values = kc_floats(c, 4096 + f->d, 0, fill);
    static const float broken[4] = {NAN, INFINITY, 1.0f, 2.0f};
    for (int64_t i = 0; i < n; i++) {
        uint8_t *page = base + table[i / NEAP_PAGE_ROWS] * bytes;
        int64_t at = kc_below(c, 4096), step = i > 1000 && kc_below(c, 100) == 0 ? 2 : kc_below(c, 2);
        float flood = broken[i < 1000 ? 0 : kc_below(c, 4)];
        for (int64_t e = 0; e < f->d; e++)
            key[e] = how == DATA_TIES      ? (float)kc_below(c, 3) - 1
                     : how == DATA_RISING  ? (float)i
                     : how == DATA_FALLING ? (float)-i
                     : how == DATA_STEPS   ? (e ? 0.0f : 1 + (float)step * 0x1p-23f)
                     : how == DATA_FLOOD   ? (e ? 0.0f : flood)
                                           : values[at + e];
        neap_index_put(f, page, i % NEAP_PAGE_ROWS, key);
    }
    if (how == DATA_CODES)
        for (int64_t p = 0; p < n_pages; p++)
            for (int64_t i = 0; i < bytes; i++) {
                uint8_t x = (uint8_t)kc_random(c); /* mostly scales that do not overflow */
                base[table[p] * bytes + i] = i >= NEAP_PAGE_ROWS * f->d && x % 16 ? (uint8_t)(x % 30 + 110) : x;
            }
    return (neap_pages){.base = base, .page_bytes = bytes, .table = table};
}

/* Scores of one row over all its keys, in the plainest way. */
static scored *plain_scores(kc *c, const neap_index_scan_args *a, int64_t row) {
    scored *all = kc_bytes(c, (a->n[row] + 1) * (int64_t)sizeof *all);
    float *key = kc_output(c, a->format.d, 0);
    for (int64_t j = 0; j < a->n[row]; j++) {
        neap_index_get(&a->format, neap_pages_at(&a->keys, j), j % NEAP_PAGE_ROWS, key);
        float sum = 0;
        for (int64_t h = 0; h < a->n_heads; h++) {
            const float *q = a->q + row * a->ld_q + h * a->format.d;
            float dot = 0;
            for (int64_t e = 0; e < a->format.d; e++) dot = fmaf(q[e], key[e], dot);
            if (dot < 0) dot = 0;
            sum = fmaf(a->w[row * a->ld_w + h], dot, sum);
        }
        all[j] = (scored){sum, (int32_t)j};
    }
    return all;
}

static neap_candidates *lists(kc *c, int64_t n, int64_t k) {
    neap_candidates *list = kc_bytes(c, n * (int64_t)sizeof *list);
    for (int64_t i = 0; i < n; i++) {
        list[i].order = kc_bytes(c, neap_candidates_capacity(k) * 4);
        list[i].positions = kc_bytes(c, neap_candidates_capacity(k) * 4);
        list[i].n = -1;
    }
    return list;
}

static void is_true(kc *c, bool is_so, const char *what) {
    float got = is_so ? 1 : 0, want = 1;
    kc_same(c, what, &got, &want, 1);
}

/* Candidates of a range: ascending positions inside, the right scores. */
static void check_list(kc *c, const neap_candidates *list, const scored *all, int64_t begin, int64_t end, int64_t k) {
    is_true(c, list->n >= 0 && list->n <= neap_candidates_capacity(k), "number of candidates");
    int64_t before = begin - 1;
    for (int64_t i = 0; i < list->n; i++) {
        int64_t at = list->positions[i];
        is_true(c, at > before && at < end, "positions ascend inside of the range");
        if (at <= before || at >= end) return;
        if (list->order[i] != topk_key(all[at].score)) is_true(c, false, "score of a candidate");
        before = at;
    }
}

/* Scans the ranges between borders with table k, merges, compares with the sorted scores. */
static void select_and_compare(kc *c, const neap_kernels *table, neap_index_scan_args a, const int64_t *borders,
                               int64_t n_ranges, neap_candidates *const *found, scored *const *all,
                               int32_t *const *want, int32_t *got, const char *what) {
    for (int64_t r = 0; r < n_ranges; r++) {
        neap_candidates out[NEAP_INDEX_ROWS];
        for (int64_t i = 0; i < a.n_rows; i++) {
            out[i] = found[i][r];
            out[i].n = -1;
        }
        a.out = out, a.begin = borders[r], a.end = borders[r + 1];
        table->index_scan(&a);
        for (int64_t i = 0; i < a.n_rows; i++) {
            found[i][r] = out[i];
            check_list(c, &out[i], all[i], a.begin, a.end < a.n[i] ? a.end : a.n[i], a.k);
        }
    }
    for (int64_t i = 0; i < a.n_rows; i++) {
        if (a.n[i] < a.k) continue;
        memset(got, 0xa5, (size_t)a.k * 4);
        table->index_merge(got, found[i], n_ranges, a.k);
        kc_same_bytes(c, what, got, want[i], a.k * 4);
    }
}

enum { RANGES = 6 };
typedef struct shape {
    neap_row_kind kind;
    int64_t d, heads, rows, n, k;
    kc_fill fill;
    data how;
} shape;

static void one(kc *c, shape s) {
    if (!kc_begin(c, "%s d %lld heads %lld rows %lld n %lld k %lld fill %d data %d", neap_row_kind_name(s.kind),
                  (long long)s.d, (long long)s.heads, (long long)s.rows, (long long)s.n, (long long)s.k, (int)s.fill,
                  (int)s.how))
        return;
    neap_index_format f = {.kind = s.kind, .d = (int32_t)s.d};
    neap_index_scan_args a = {.format = f, .n_rows = s.rows, .n_heads = s.heads, .k = s.k};
    a.ld_q = s.heads * s.d + kc_below(c, 3), a.ld_w = s.heads + kc_below(c, 3);
    float *q = kc_floats(c, (s.rows - 1) * a.ld_q + s.heads * s.d, (int)kc_below(c, 16), s.fill);
    float *w = kc_floats(c, (s.rows - 1) * a.ld_w + s.heads, (int)kc_below(c, 16), s.fill);
    for (int64_t i = 0; s.how == DATA_TIES && i < (s.rows - 1) * a.ld_q + s.heads * s.d; i++)
        q[i] = (float)kc_below(c, 3) - 1;
    for (int64_t i = 0; s.how == DATA_TIES && i < (s.rows - 1) * a.ld_w + s.heads; i++)
        w[i] = (float)kc_below(c, 3) - 1;
    for (int64_t i = 0; s.how >= DATA_RISING && i < (s.rows - 1) * a.ld_q + s.heads * s.d; i++)
        q[i] = s.how == DATA_FALLING ? -1 : 1; /* q . k >= 0; the weights vary in sign */
    for (int64_t i = 0; s.how == DATA_STEPS && i < (s.rows - 1) * a.ld_w + s.heads; i++) w[i] = 1;
    a.q = q, a.w = w, a.keys = pages(c, &f, s.n, s.fill, s.how);
    a.scratch = kc_output(c, neap_index_scratch(&f, s.heads), (int)kc_below(c, 16));
    int32_t n[NEAP_INDEX_ROWS], *want[NEAP_INDEX_ROWS];
    scored *all[NEAP_INDEX_ROWS];
    a.n = n;
    for (int64_t i = 0; i < s.rows; i++) {
        n[i] = (int32_t)(i == 0 ? s.n : kc_below(c, 2) ? s.n - kc_below(c, s.n < 9 ? s.n : 9) : 1 + kc_below(c, s.n));
        all[i] = plain_scores(c, &a, i);
        want[i] = kc_bytes(c, s.k * 4);
        if (n[i] < s.k) continue;
        scored *sorted = kc_bytes(c, n[i] * (int64_t)sizeof *sorted);
        memcpy(sorted, all[i], (size_t)n[i] * sizeof *sorted);
        qsort(sorted, (size_t)n[i], sizeof *sorted, by_rank);
        for (int64_t j = 0; j < s.k; j++) want[i][j] = sorted[j].position;
        qsort(want[i], (size_t)s.k, 4, by_position);
    }
    /* with room for all keys every score shows */
    neap_index_scan_args whole = a;
    whole.k = s.n;
    for (int64_t t = 0; t < 2; t++) {
        const neap_kernels *table = t ? &c->k : &c->ref;
        neap_candidates *out = lists(c, s.rows, s.n);
        whole.out = out, whole.end = s.n;
        table->index_scan(&whole);
        for (int64_t i = 0; i < s.rows; i++) {
            is_true(c, out[i].n == n[i], "all keys are kept while there are few");
            check_list(c, &out[i], all[i], 0, n[i], s.n);
        }
    }
    neap_candidates *found[NEAP_INDEX_ROWS];
    for (int64_t i = 0; i < s.rows; i++) found[i] = lists(c, RANGES, s.k);
    int32_t *got = kc_bytes(c, s.k * 4);
    int64_t borders[RANGES + 1] = {0}, n_ranges = 1 + kc_below(c, RANGES), n_pages = (s.n + 63) / 64;
    for (int64_t r = 1; r < n_ranges; r++) borders[r] = kc_below(c, n_pages + 1) * 64;
    for (int64_t r = 1; r < n_ranges; r++) /* empty ranges may occur */
        for (int64_t t = r; t > 1 && borders[t] < borders[t - 1]; t--) {
            int64_t x = borders[t];
            borders[t] = borders[t - 1], borders[t - 1] = x;
        }
    borders[n_ranges] = s.n > borders[n_ranges - 1] ? s.n : borders[n_ranges - 1];
    int64_t ends[2] = {0, s.n};
    select_and_compare(c, &c->ref, a, borders, n_ranges, found, all, want, got, "definition, ranges");
    select_and_compare(c, &c->k, a, ends, 1, found, all, want, got, "one range");
    select_and_compare(c, &c->k, a, borders, n_ranges, found, all, want, got, "ranges");
    kc_end(c);
}

static const kc_unfused *unfused_of(const kc *c) {
#if defined(NEAP_SIMD) && NEAP_SIMD
    if (strcmp(c->isa, "avx2") == 0) return neap_kc_unfused_avx2();
    if (strcmp(c->isa, "avx512") == 0) return neap_kc_unfused_avx512();
#endif
    (void)c;
    return NULL;
}

/* What the bench compares with selects the same from an array of scores. */
static void one_array(kc *c, int64_t n, int64_t k, kc_fill fill) {
    const kc_unfused *other = unfused_of(c);
    if (!other) return;
    if (!kc_begin(c, "array n %lld k %lld fill %d", (long long)n, (long long)k, (int)fill)) return;
    float *scores = kc_floats(c, n, 1, fill);
    scored *all = kc_bytes(c, n * (int64_t)sizeof *all);
    int32_t *want = kc_bytes(c, k * 4), *got = kc_bytes(c, k * 4), *bad = kc_bytes(c, k * 4);
    for (int64_t i = 0; i < n; i++) all[i] = (scored){scores[i], (int32_t)i};
    qsort(all, (size_t)n, sizeof *all, by_rank);
    for (int64_t i = 0; i < k; i++) want[i] = all[i].position;
    qsort(want, (size_t)k, 4, by_position);
    for (int64_t i = 0; i < k; i++) bad[i] = (int32_t)(i * n / k);
    const int32_t *warm[] = {NULL, want, bad};
    for (int i = 0; i < 3; i++) {
        other->select(got, scores, n, k, warm[i], lists(c, 1, k));
        kc_same_bytes(c, "selection from an array", got, want, k * 4);
    }
    other->digits(got, scores, kc_bytes(c, n * 4), n, k);
    kc_same_bytes(c, "selection by digits", got, want, k * 4);
    kc_end(c);
}

static void check(kc *c) {
    static const int64_t ds[] = {1, 8, 15, 16, 24, 31, 32, 33, 40, 64, 100, 128};
    static const int64_t heads[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17};
    static const int64_t ns[] = {1, 15, 16, 17, 33, 63, 64, 65, 100, 128, 200, 333, 500};
    static const neap_row_kind kinds[] = {NEAP_ROWS_F32, NEAP_ROWS_BF16, NEAP_ROWS_MXFP8};
    int count = 0;
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++, count++) {
            shape s = {.kind = kinds[count % 3], .d = ds[i], .heads = heads[count % 13], .n = ns[j]};
            s.rows = 1 + kc_below(c, NEAP_INDEX_ROWS);
            s.k = 1 + kc_below(c, s.n);
            s.fill = count % 7 == 6 ? (kc_fill)(1 + count % 3) : KC_NORMAL;
            s.how = count % 5 == 2 ? DATA_TIES : count % 5 == 3 && s.kind == NEAP_ROWS_MXFP8 ? DATA_CODES : DATA_FILL;
            one(c, s);
        }
    for (int i = 0; i < 3; i++) { /* many cuts of full lists */
        one(c, (shape){kinds[i], 8, 2, 3, 6000, 100, KC_NORMAL, DATA_FILL});
        one(c, (shape){kinds[i], 8, 2, 3, 6000, 100, KC_NORMAL, DATA_TIES});
        one(c, (shape){kinds[i], 8, 2, 3, 6000, 100, KC_ZEROS, DATA_FILL});
        one(c, (shape){kinds[i], 8, 2, 3, 6000, 100, KC_BROKEN, DATA_FILL});
        one(c, (shape){kinds[i], 8, 2, 3, 6000, 100, KC_EXTREME, DATA_FILL});
        one(c, (shape){kinds[i], 8, 2, 8, 4000, 50, KC_NORMAL, DATA_RISING});
        one(c, (shape){kinds[i], 8, 2, 8, 4000, 50, KC_NORMAL, DATA_FALLING});
    }
    one(c, (shape){NEAP_ROWS_F32, 8, 1, 8, 6000, 100, KC_NORMAL, DATA_STEPS});
    one(c, (shape){NEAP_ROWS_F32, 8, 1, 8, 2000, 100, KC_NORMAL, DATA_FLOOD});
    one(c, (shape){NEAP_ROWS_F32, 8, 1, 8, 2000, 900, KC_NORMAL, DATA_FLOOD});
    one(c, (shape){NEAP_ROWS_MXFP8, 32, 1, 2, 3000, 20, KC_NORMAL, DATA_CODES});
    one(c, (shape){NEAP_ROWS_BF16, 128, 32, 2, 700, 256, KC_NORMAL, DATA_FILL});
    one(c, (shape){NEAP_ROWS_MXFP8, 128, 64, 1, 500, 256, KC_NORMAL, DATA_FILL});
    one(c, (shape){NEAP_ROWS_F32, 16, 2, 1, 20000, 2048, KC_NORMAL, DATA_TIES});
    one(c, (shape){NEAP_ROWS_F32, 16, 2, 1, 20000, 2048, KC_NORMAL, DATA_FILL});
    for (int i = 0; i < KC_FILLS; i++) {
        one_array(c, 333, 20, (kc_fill)i);
        one_array(c, 5000, 100, (kc_fill)i);
    }
}

/* ---- bench ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Everything that one timed call needs. */
typedef struct timed {
    neap_index_scan_args a;
    int32_t *out;
    float *dots, *scores;
    uint32_t *keys;
    const int32_t *warm;
    const kc_unfused *other;
    const kc *c;
} timed;

static void run_fused(timed *t) {
    t->c->k.index_scan(&t->a);
    for (int64_t i = 0; i < t->a.n_rows; i++) t->c->k.index_merge(t->out, &t->a.out[i], 1, t->a.k);
}
static void run_scan(timed *t) { t->c->k.index_scan(&t->a); }
static void run_unfused(timed *t) {
    t->other->dots(&t->a, t->dots);
    t->other->weigh(&t->a, t->dots, t->scores);
    for (int64_t i = 0; i < t->a.n_rows; i++)
        t->other->digits(t->out, t->scores + i * t->a.end, t->keys, t->a.end, t->a.k);
}
static void run_digits(timed *t) { t->other->digits(t->out, t->scores, t->keys, t->a.end, t->a.k); }
static void run_select(timed *t) { t->other->select(t->out, t->scores, t->a.end, t->a.k, t->warm, t->a.out); }
static void run_sum(timed *t) { t->scores[0] += 1e-30f * t->other->sum(t->scores, t->a.end); }

/* Best times of several functions that take turns, so that all of them see the same machine. */
enum { TURNS = 2 };
static void best_of(timed *t, void (*const *runs)(timed *t), int n, double *best) {
    double spent = 0;
    for (int i = 0; i < n; i++) best[i] = 1e9;
    for (int round = 0; round < 20 && (round < 3 || spent < 1.5); round++)
        for (int i = 0; i < n; i++) {
            double start = now(), time;
            int repeat = 0;
            do {
                runs[i](t);
                repeat++;
                time = now() - start;
            } while (time < 5e-4);
            spent += time;
            if (time / repeat < best[i]) best[i] = time / repeat;
        }
}

static timed problem(kc *c, neap_row_kind kind, int64_t heads, int64_t rows, int64_t n, int64_t k,
                     const kc_unfused *other) {
    static int32_t visible[NEAP_INDEX_ROWS];
    timed t = {.c = c, .other = other};
    kc_begin(c, "bench %s %lld", neap_row_kind_name(kind), (long long)n);
    for (int i = 0; i < NEAP_INDEX_ROWS; i++) visible[i] = (int32_t)n;
    t.a = (neap_index_scan_args){.format = {.kind = kind, .d = 128}, .n_rows = rows, .n_heads = heads, .k = k};
    t.a.ld_q = heads * 128, t.a.ld_w = heads, t.a.n = visible, t.a.end = n;
    t.a.q = kc_floats(c, rows * t.a.ld_q, 0, KC_NORMAL), t.a.w = kc_floats(c, rows * heads, 0, KC_NORMAL);
    t.a.keys = pages(c, &t.a.format, n, KC_NORMAL, DATA_FILL);
    t.a.scratch = kc_output(c, neap_index_scratch(&t.a.format, heads), 0);
    t.a.out = lists(c, rows, k);
    t.out = kc_bytes(c, k * 4), t.keys = kc_bytes(c, n * 4), t.scores = kc_output(c, rows * n, 0);
    if (other) t.dots = kc_output(c, rows * heads * n, 0);
    return t;
}

static void scan_once(const kc *c, void *args) {
    (void)c;
    run_scan(args);
}
static void fused_once(const kc *c, void *args) {
    (void)c;
    run_fused(args);
}
static void select_once(const kc *c, void *args) {
    (void)c;
    run_select(args);
}

/* Scan alone and scan with selection; then against separate passes, in turns. */
static void bench_scan(kc *c, neap_row_kind kind, int64_t rows, int64_t n) {
    enum { HEADS = 32, K = 2048 };
    static void (*const runs[TURNS])(timed * t) = {run_fused, run_unfused};
    const kc_unfused *other = unfused_of(c);
    char label[2][64];
    snprintf(label[0], sizeof label[0], "%s scan, %lld keys, %lld rows", neap_row_kind_name(kind), (long long)n,
             (long long)rows);
    snprintf(label[1], sizeof label[1], "%s scan and top, %lld keys, %lld rows", neap_row_kind_name(kind), (long long)n,
             (long long)rows);
    bool is_compared = other && kc_wants(c, "against separate passes");
    if (!is_compared && !kc_wants(c, label[0]) && !kc_wants(c, label[1])) return;
    timed t = problem(c, kind, HEADS, rows, n, K, is_compared ? other : NULL);
    double best[TURNS], each = (double)(n * rows), macs = each * HEADS * 128;
    double bytes = (double)(n / NEAP_PAGE_ROWS * t.a.keys.page_bytes);
    for (int i = 0; i < 2; i++) {
        c->items = each;
        kc_bench(c, label[i], i ? fused_once : scan_once, &t, bytes, macs);
    }
    if (!is_compared || c->is_csv) return;
    best_of(&t, runs, TURNS, best);
    printf("%-8s %-10s %-36s fused %.1f ns a key and row, separate passes %.1f, ratio %.2f\n", c->family, c->isa,
           label[1], best[0] / each * 1e9, best[1] / each * 1e9, best[1] / best[0]);
}

/* The selection alone, from an array of scores. */
static void bench_select(kc *c) {
    enum { N = 131072, K = 2048 };
    static void (*const runs[TURNS])(timed * t) = {run_digits, run_sum};
    if (!kc_wants(c, "top 2048 of 131072, warm") && !kc_wants(c, "top 2048 of 131072, cold")) return;
    timed t = problem(c, NEAP_ROWS_BF16, 1, 1, N, K, unfused_of(c));
    double best[TURNS];
    float *scores = kc_floats(c, N, 0, KC_NORMAL);
    int32_t *list = kc_bytes(c, K * 4);
    memcpy(t.scores, scores, N * sizeof *scores);
    c->items = N;
    kc_bench(c, "top 2048 of 131072, cold", select_once, &t, 4.0 * N, 0);
    if (kc_wants(c, "against separate passes") && !c->is_csv) {
        best_of(&t, runs, TURNS, best);
        printf("%-8s %-10s memory pass %.1f us, counted digits %.1f us\n", c->family, c->isa, best[1] * 1e6,
               best[0] * 1e6);
    }
    /* the selection of a step before: a little noise on every score */
    run_select(&t);
    memcpy(list, t.out, K * 4);
    float *other = kc_floats(c, N, 0, KC_NORMAL);
    for (int64_t i = 0; i < N; i++) t.scores[i] = scores[i] + 0.05f * other[i];
    t.warm = list;
    c->items = N;
    kc_bench(c, "top 2048 of 131072, warm", select_once, &t, 4.0 * N, 0);
}

static void bench(kc *c) {
    static const neap_row_kind kinds[] = {NEAP_ROWS_F32, NEAP_ROWS_BF16, NEAP_ROWS_MXFP8};
    static const int64_t ns[] = {4096, 32768};
    if (!unfused_of(c)) {
        bench_scan(c, NEAP_ROWS_BF16, 1, 4096);
        return;
    }
    if (!c->is_csv) printf("%-8s %-10s 32 heads x 128, top 2048\n", c->family, c->isa);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (int64_t rows = 1; rows <= 8; rows += 7) bench_scan(c, kinds[i], rows, ns[j]);
    bench_select(c);
}

const kc_family_tests neap_kc_index = {check, bench};
