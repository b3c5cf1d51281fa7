/* Which cached rows a tile of queries visits next: batches of up to 64 positions, always whole pages.
 *
 * The softmax of attend (kernels.h) runs page by page, but a page of a sparse list may hold one or two positions, and
 * then carrying the output from page to page costs more than the page. So pages are put together until 64 positions
 * are reached: decoded once, scored at once, and the output stays in registers across them. The union over the rows
 * is visited; a bit per position says which row sees it. Knows lists and page numbers only, nothing of vectors. */
#ifndef NEAP_KERNELS_ATTEND_BATCH_H
#define NEAP_KERNELS_ATTEND_BATCH_H

#include "kernels/kernels.h"

enum { ATTEND_BATCH = NEAP_PAGE_ROWS };

/* What is left of a row's positions: list[at .. end), or the positions at .. end themselves. */
typedef struct attend_cursor {
    const int32_t *list;
    int64_t at, end;
} attend_cursor;

typedef struct attend_batch {
    int32_t n, n_pages;
    int32_t positions[ATTEND_BATCH]; /* ascending */
    int32_t page_begin[ATTEND_BATCH + 1];
    uint64_t members[ATTEND_BATCH][NEAP_ATTEND_ROWS]; /* per page and row: bit position % 64 */
} attend_batch;

/* The first index of list[0 .. n) that holds `position` or more. */
static inline int64_t attend_find(const int32_t *list, int64_t n, int64_t position) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline attend_cursor attend_open(const neap_attend_args *a, int64_t row) {
    int64_t n = a->n_list[row];
    if (!a->lists) return (attend_cursor){NULL, a->begin, a->end < n ? a->end : n};
    const int32_t *list = a->lists + row * a->ld_list;
    return (attend_cursor){list, attend_find(list, n, a->begin), attend_find(list, n, a->end)};
}

static inline int64_t attend_position(const attend_cursor *c) { return c->list ? c->list[c->at] : c->at; }

/* The row's positions in `page`, which none of its remaining ones precedes; *next: the cursor behind them. */
static inline uint64_t attend_members(const attend_cursor *c, int64_t page, int64_t *next) {
    uint64_t bits = 0;
    int64_t at = c->at;
    if (c->list) {
        for (; at < c->end && c->list[at] / NEAP_PAGE_ROWS == page; at++)
            bits |= UINT64_C(1) << c->list[at] % NEAP_PAGE_ROWS;
    } else if (at < c->end && at / NEAP_PAGE_ROWS == page) {
        int64_t end = (page + 1) * NEAP_PAGE_ROWS < c->end ? (page + 1) * NEAP_PAGE_ROWS : c->end;
        bits = ~UINT64_C(0) >> (NEAP_PAGE_ROWS - (end - at)) << at % NEAP_PAGE_ROWS;
        at = end;
    }
    *next = at;
    return bits;
}

/* Takes pages as long as they fit; n = 0: nothing is left. */
static inline void attend_next_batch(attend_batch *b, attend_cursor *rows, int64_t n_rows) {
    b->n = b->n_pages = b->page_begin[0] = 0;
    for (;;) {
        int64_t page = INT64_MAX, next[NEAP_ATTEND_ROWS];
        uint64_t all = 0;
        for (int64_t i = 0; i < n_rows; i++)
            if (rows[i].at < rows[i].end && attend_position(&rows[i]) / NEAP_PAGE_ROWS < page)
                page = attend_position(&rows[i]) / NEAP_PAGE_ROWS;
        if (page == INT64_MAX || b->n == ATTEND_BATCH) return;
        for (int64_t i = 0; i < n_rows; i++)
            all |= b->members[b->n_pages][i] = attend_members(&rows[i], page, &next[i]);
        if (b->n + __builtin_popcountll(all) > ATTEND_BATCH) return;
        for (; all; all &= all - 1) b->positions[b->n++] = (int32_t)(page * NEAP_PAGE_ROWS + __builtin_ctzll(all));
        b->page_begin[++b->n_pages] = b->n;
        for (int64_t i = 0; i < n_rows; i++) rows[i].at = next[i];
    }
}

#endif
