/* The cut of the experts' panels: whatever the rows, experts and workers, every panel of every chosen expert is taken
 * exactly once; shares differ by less than one panel of the largest expert; equal experts give equal shares. */
#include "unit_data.h"

#include "layers/moe_split.h"
#include "tensor/matrix.h"

enum { EXPERTS = 64, PANELS = 40, WORKERS = 17 };

typedef struct fixture {
    int32_t first[EXPERTS + 1], active[EXPERTS + 1];
    int32_t rows[EXPERTS];
    neap_moe_split split;
} fixture;

static void count_up(fixture *f, int32_t n_experts, int64_t panels) {
    int32_t n = 0;
    f->first[0] = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        f->first[e + 1] = f->first[e] + f->rows[e];
        if (f->rows[e] > 0) f->active[n++] = e;
    }
    f->split = (neap_moe_split){.first = f->first, .active = f->active, .n_active = n, .panels = panels};
}

/* As the plan cuts an op. */
static int64_t cut(int64_t n, int64_t worker, int64_t n_workers) { return (n * worker + n_workers - 1) / n_workers; }

static void expect_cover(const fixture *f, int32_t n_workers) {
    static uint8_t taken[EXPERTS][PANELS];
    const neap_moe_split *s = &f->split;
    int64_t total = neap_moe_split_begin(s, s->n_active), sum = 0, largest = 0;
    memset(taken, 0, sizeof taken);
    for (int64_t i = 0; i < s->n_active; i++) {
        int64_t rows = f->rows[s->active[i]], cost = rows + NEAP_MOE_PANEL_UNITS;
        assert_int_equal(neap_moe_split_begin(s, i), sum);
        sum += s->panels * cost;
        largest = cost > largest ? cost : largest;
    }
    assert_int_equal(total, sum);
    for (int32_t w = 0; w < n_workers; w++) {
        int64_t begin = cut(total, w, n_workers), end = cut(total, w + 1, n_workers), work = 0;
        for (int64_t i = 0; i < s->n_active; i++) {
            int64_t from, to;
            neap_moe_split_panels(s, i, begin, end, &from, &to);
            for (int64_t p = from; p < to; p++) {
                assert_in_range(p, 0, s->panels - 1);
                assert_int_equal(taken[i][p]++, 0);
                work += f->rows[s->active[i]] + NEAP_MOE_PANEL_UNITS;
            }
        }
        assert_true(work <= end - begin + largest);
        assert_true(work >= end - begin - largest);
    }
    for (int64_t i = 0; i < s->n_active; i++)
        for (int64_t p = 0; p < s->panels; p++) assert_int_equal(taken[i][p], 1);
}

static void every_panel_once(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 4000; round++) {
        fixture f = {0};
        int32_t n_experts = 1 + (int32_t)(unit_random(&seed) % EXPERTS), style = round % 4;
        for (int32_t e = 0; e < n_experts; e++) {
            uint64_t r = unit_random(&seed);
            f.rows[e] = style == 0   ? (int32_t)(r % 3)
                        : style == 1 ? (int32_t)(r % 500)
                        : style == 2 ? (r % 8 ? 0 : 1)
                                     : (e == n_experts / 2 ? 100000 : (int32_t)(r % 2));
        }
        count_up(&f, n_experts, 1 + (int64_t)(unit_random(&seed) % PANELS));
        expect_cover(&f, 1 + (int32_t)(unit_random(&seed) % WORKERS));
    }
}

/* One token: each chosen expert has one row, and every worker reads the same number of panels. */
static void decode_is_even(void **state) {
    (void)state;
    fixture f = {0};
    for (int32_t e = 3; e < EXPERTS; e += 8) f.rows[e] = 1;
    count_up(&f, EXPERTS, 12);
    int64_t total = neap_moe_split_begin(&f.split, f.split.n_active);
    for (int32_t w = 0; w < 4; w++) {
        int64_t n = 0;
        for (int64_t i = 0; i < f.split.n_active; i++) {
            int64_t from, to;
            neap_moe_split_panels(&f.split, i, cut(total, w, 4), cut(total, w + 1, 4), &from, &to);
            n += to > from ? to - from : 0;
        }
        assert_int_equal(n, 8 * 12 / 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_panel_once), cmocka_unit_test(decode_is_even)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
