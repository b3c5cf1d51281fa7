/* Places buffers by their lives: see colour.h.
 *
 * Lives are intervals, places are intervals, and no two rectangles may overlap. The smallest region is hard to find
 * (the problem is dynamic storage allocation, NP-complete); what is good in practice: take the buffers in a fixed
 * order, and put each into the smallest gap that holds it between those that live at the same time and have places.
 * Two orders are tried, the better one stays:
 *
 *     by bytes, the largest first          large buffers find no gap later, small ones do
 *     by bytes x phases, the largest first   the same with regard to those that block others for long
 *
 * The lower bound is the most that lives at one time: max over t of the sum of bytes of the buffers alive at t.
 *
 * Called by layers/layout.c. Owns nothing; its working memory is freed before it returns. 5,000 buffers of short lives
 * take about 15 ms; if most of them lived long, n^2 / 2 steps of 2 ns per order. */
#include "runtime/colour.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

/* Buffers that have their place, by number of placing. Time is cut into blocks; each block lists those that live in it,
 * so that a buffer of a short life looks at its neighbours only. */
enum { BLOCKS = 64, NEAR_MAX = 128 };
typedef struct node {
    int32_t next, k;
} node;
typedef struct placed {
    uint64_t begin, end;
    int32_t first, last;
} placed;
typedef struct places {
    int32_t n, n_nodes;
    placed *placed;
    int32_t *order; /* [n] numbers by begin, ascending */
    int32_t heads[BLOCKS], counts[BLOCKS];
    node *nodes;
    int64_t begin, phases; /* the first time; how many there are */
} places;

static int32_t block_of(const places *p, int32_t time) { return (int32_t)((time - p->begin) * BLOCKS / p->phases); }

typedef struct item {
    double weight;
    uint64_t bytes; /* rounded up */
    int32_t i;
} item;

static int compare(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->i < y->i ? -1 : 1; /* the same places everywhere */
}

/* Those that live at the same time as x, by begin; -1: too many, looking at all is faster. */
static int32_t find_near(const places *p, const placed *x, int32_t near[NEAR_MAX]) {
    int32_t n = 0, listed = 0, first = block_of(p, x->first), last = block_of(p, x->last);
    for (int32_t b = first; b <= last; b++) listed += p->counts[b];
    if (listed > 2 * NEAR_MAX) return -1;
    for (int32_t b = first; b <= last; b++) {
        for (int32_t i = p->heads[b]; i >= 0; i = p->nodes[i].next) {
            const placed *q = &p->placed[p->nodes[i].k];
            if (q->last < x->first || q->first > x->last) continue;
            const int32_t shared = block_of(p, q->first);
            if (b != (shared > first ? shared : first)) continue; /* seen in a block before */
            if (n == NEAR_MAX) return -1;
            int32_t at = n++;
            for (; at > 0 && p->placed[near[at - 1]].begin > q->begin; at--) near[at] = near[at - 1];
            near[at] = p->nodes[i].k;
        }
    }
    return n;
}

/* The beginning of the smallest gap that holds `bytes` among the buffers that live at the same time; else behind them
 * all. */
static uint64_t find_gap(const places *p, const placed *x, uint64_t bytes) {
    int32_t near[NEAR_MAX];
    const int32_t n_near = find_near(p, x, near), n = n_near < 0 ? p->n : n_near;
    const int32_t *order = n_near < 0 ? p->order : near;
    uint64_t top = 0, best = 0, best_size = UINT64_MAX;
    for (int32_t i = 0; i < n; i++) {
        const placed *q = &p->placed[order[i]];
        if (q->last < x->first || q->first > x->last) continue;
        if (q->begin >= top && q->begin - top >= bytes && q->begin - top < best_size) {
            best = top;
            best_size = q->begin - top;
            if (best_size == bytes) break;
        }
        if (q->end > top) top = q->end;
    }
    return best_size < UINT64_MAX ? best : top;
}

static void insert(places *p, const placed *x) {
    int32_t low = 0, high = p->n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (p->placed[p->order[middle]].begin <= x->begin)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(p->order + low + 1, p->order + low, (size_t)(p->n - low) * sizeof *p->order);
    p->order[low] = p->n;
    for (int32_t b = block_of(p, x->first); b <= block_of(p, x->last); b++) {
        p->nodes[p->n_nodes] = (node){p->heads[b], p->n};
        p->heads[b] = p->n_nodes++;
        p->counts[b]++;
    }
    p->placed[p->n++] = *x;
}

static neap_status add_bytes(uint64_t a, uint64_t b, uint64_t *out) {
    NEAP_CHECK(!__builtin_add_overflow(a, b, out), NEAP_NO_MEMORY, "work memory: size overflow");
    return NEAP_OK;
}

/* Ends early when the region grows to `enough`, which is no gain. */
static neap_status place(const neap_life *lives, const item *items, int32_t n_items, places *p, uint64_t enough,
                         uint64_t *peak) {
    *peak = 0;
    p->n = p->n_nodes = 0;
    for (int32_t b = 0; b < BLOCKS; b++) p->heads[b] = -1, p->counts[b] = 0;
    for (int32_t k = 0; k < n_items && *peak < enough; k++) {
        placed x = {.first = lives[items[k].i].first, .last = lives[items[k].i].last};
        x.begin = find_gap(p, &x, items[k].bytes);
        NEAP_TRY(add_bytes(x.begin, items[k].bytes, &x.end));
        if (x.end > *peak) *peak = x.end;
        insert(p, &x);
    }
    return NEAP_OK;
}

static neap_status place_apart(neap_life *lives, const item *items, int32_t n_items, uint64_t *peak) {
    *peak = 0;
    for (int32_t k = 0; k < n_items; k++) {
        lives[items[k].i].offset = *peak;
        NEAP_TRY(add_bytes(*peak, items[k].bytes, peak));
    }
    return NEAP_OK;
}

static neap_status list_items(const neap_life *lives, int32_t n, item *items, int32_t *n_items) {
    *n_items = 0;
    for (int32_t i = 0; i < n; i++) {
        if (lives[i].first > lives[i].last || lives[i].bytes == 0) continue;
        item *x = &items[(*n_items)++];
        NEAP_TRY(add_bytes(lives[i].bytes, 63, &x->bytes));
        x->bytes &= ~(uint64_t)63;
        x->i = i;
    }
    return NEAP_OK;
}

static neap_status place_shared(neap_life *lives, item *items, int32_t n_items, places *p, uint64_t *peak) {
    *peak = n_items == 0 ? 0 : UINT64_MAX;
    for (int order = 0; order < 2; order++) {
        uint64_t this_peak;
        for (int32_t k = 0; k < n_items; k++) {
            const neap_life *life = &lives[items[k].i];
            items[k].weight = (double)items[k].bytes;
            if (order == 1) items[k].weight *= (double)life->last - (double)life->first + 1;
        }
        qsort(items, (size_t)n_items, sizeof *items, compare);
        NEAP_TRY(place(lives, items, n_items, p, *peak, &this_peak));
        if (this_peak >= *peak) continue;
        *peak = this_peak;
        for (int32_t k = 0; k < n_items; k++) lives[items[k].i].offset = p->placed[k].begin;
    }
    return NEAP_OK;
}

/* The span of time, and how many nodes the lists of blocks will have. */
static size_t count_nodes(const neap_life *lives, const item *items, int32_t n_items, places *p) {
    int64_t last = 0;
    size_t n = 0;
    p->begin = 0;
    for (int32_t k = 0; k < n_items; k++) {
        const neap_life *life = &lives[items[k].i];
        if (k == 0 || life->first < p->begin) p->begin = life->first;
        if (k == 0 || life->last > last) last = life->last;
    }
    p->phases = last - p->begin + 1;
    for (int32_t k = 0; k < n_items; k++)
        n += (size_t)(block_of(p, lives[items[k].i].last) - block_of(p, lives[items[k].i].first) + 1);
    return n;
}

neap_status neap_colour(neap_life *lives, int32_t n, bool shares, uint64_t *peak) {
    void *items = NULL, *order = NULL, *extents = NULL, *nodes = NULL;
    int32_t n_items;
    neap_status status;
    places p;
    *peak = 0;
    if (n <= 0) return NEAP_OK;
    for (int32_t i = 0; i < n; i++) lives[i].offset = 0;
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)n * sizeof(item), &items));
    NEAP_TRY_GOTO(list_items(lives, n, items, &n_items));
    if (!shares) {
        status = place_apart(lives, items, n_items, peak);
        goto fail;
    }
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)n * sizeof(int32_t), &order));
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)n * sizeof(placed), &extents));
    NEAP_TRY_GOTO(neap_mem_alloc(count_nodes(lives, items, n_items, &p) * sizeof(node), &nodes));
    p.order = order;
    p.placed = extents;
    p.nodes = nodes;
    status = place_shared(lives, items, n_items, &p, peak);
fail:
    neap_mem_free(items);
    neap_mem_free(order);
    neap_mem_free(extents);
    neap_mem_free(nodes);
    return status;
}
