/* Cutting the experts' first products into ranges of equal work.
 *
 * A task is one panel of one chosen expert for all rows of that expert. Experts have very different numbers of rows, so
 * tasks are counted in units: a panel costs its expert's rows and PANEL_UNITS for reading its weights. Units of all
 * chosen experts form one line; a worker gets a piece of it and takes the panels that begin there. So every panel
 * belongs to exactly one worker, however the line is cut, and each worker finds its own panels from the sorted counts.
 *
 * Measured with a router that prefers a few of 64 experts (256 rows, top 8, MXFP4): the longest of two workers took
 * 31 ms of the phase's 61 where equal numbers of panels took 54; routing and sorting are 0.2 % of the layer.
 *
 * Called by moe_layer.c; which worker computes a panel changes no bit. */
#ifndef NEAP_LAYERS_MOE_SPLIT_H
#define NEAP_LAYERS_MOE_SPLIT_H

#include <stdint.h>

/* The time of a panel, K 3584, grows by 0.8 us a row from a fixed part of 2 (MXFP4) to 6 us (BF16); measured on a Xeon
 * with AVX-512, 2026-11-30. */
enum { NEAP_MOE_PANEL_UNITS = 5 };

typedef struct neap_moe_split {
    const int32_t *first;  /* [E + 1] first row of each expert in sorted order */
    const int32_t *active; /* [n_active] experts that have rows, ascending */
    int64_t n_active, panels;
} neap_moe_split;

/* Where active expert i begins; i = n_active: the end of the line. */
static inline int64_t neap_moe_split_begin(const neap_moe_split *s, int64_t i) {
    int64_t rows = i == 0 ? 0 : s->first[s->active[i - 1] + 1]; /* experts without rows lie between at no cost */
    return s->panels * (rows + NEAP_MOE_PANEL_UNITS * i);
}

/* The panels [*from, *to) of active expert i that begin in units [begin, end). */
static inline void neap_moe_split_panels(const neap_moe_split *s, int64_t i, int64_t begin, int64_t end, int64_t *from,
                                         int64_t *to) {
    int64_t at = neap_moe_split_begin(s, i), cost = (neap_moe_split_begin(s, i + 1) - at) / s->panels;
    int64_t a = begin > at ? (begin - at + cost - 1) / cost : 0, b = end > at ? (end - at + cost - 1) / cost : 0;
    *from = a < s->panels ? a : s->panels;
    *to = b < s->panels ? b : s->panels;
}

#endif
