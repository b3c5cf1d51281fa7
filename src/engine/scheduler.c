/* Continuous batching with a row budget per step.
 *
 * Decode rows come first, because somebody is reading along and a row costs little; prompts fill the rest in
 * order of submission, because finishing one is worth more than advancing all. Both rules alone would let
 * somebody starve (more decoders than rows; a long prompt ahead of a short one; a prompt behind decoders that
 * fill every step), so whoever has waited NEAP_AGING_ROUNDS rounds goes first, least recently served first. An aged
 * prompt takes at most a quarter of the step that way: enough to move, too little to stall the readers.
 *
 * Given n turns nobody waits longer than about NEAP_AGING_ROUNDS + n rounds. Results never depend on any of
 * this: a row computes the same whatever else is in its step.
 *
 * Called by neap_step. Owns nothing. */
#include "engine/scheduler.h"

#include <assert.h>

static int32_t give(neap_turn *t, int32_t limit) {
    const int64_t open = t->n_wanted - t->n_rows;
    const int32_t rows = open < limit ? (int32_t)open : limit;
    t->n_rows += rows;
    return rows;
}

typedef enum turn_kind { TURN_DECODE = 1, TURN_PROMPT = 2 } turn_kind;

/* Among the turns of these kinds that wait for their first row and have waited long enough: the one that was
 * served longest ago, the earlier submission among equals. -1: none. */
static int32_t find_oldest(const neap_turn *turns, int32_t n_turns, int kinds, uint32_t wait_min) {
    int32_t oldest = -1;
    for (int32_t i = 0; i < n_turns; i++) {
        const int kind = turns[i].is_decode ? TURN_DECODE : TURN_PROMPT;
        if (!(kind & kinds) || turns[i].n_rows > 0 || turns[i].n_waited < wait_min) continue;
        if (oldest < 0 || turns[i].served < turns[oldest].served) oldest = i;
    }
    return oldest;
}

/* Everyone who has waited too long. Returns the rows left. */
static int32_t serve_aged(neap_turn *turns, int32_t n_turns, int32_t budget, uint64_t *clock) {
    int32_t share = budget / 4 > 1 ? budget / 4 : 1; /* of all prompts together */
    int32_t left = budget;
    while (left > 0) {
        const int kinds = share > 0 ? TURN_DECODE | TURN_PROMPT : TURN_DECODE;
        const int32_t i = find_oldest(turns, n_turns, kinds, NEAP_AGING_ROUNDS);
        if (i < 0) break;
        const int32_t rows = give(&turns[i], turns[i].is_decode ? 1 : share < left ? share : left);
        if (!turns[i].is_decode) share -= rows;
        left -= rows;
        turns[i].served = ++*clock;
    }
    return left;
}

static int32_t serve_readers(neap_turn *turns, int32_t n_turns, int32_t left, uint64_t *clock) {
    while (left > 0) {
        const int32_t i = find_oldest(turns, n_turns, TURN_DECODE, 0);
        if (i < 0) break;
        left -= give(&turns[i], 1);
        turns[i].served = ++*clock;
    }
    return left;
}

void neap_schedule(neap_turn *turns, int32_t n_turns, int32_t budget, uint64_t *clock) {
    assert(budget >= 1);
    for (int32_t i = 0; i < n_turns; i++) {
        assert(turns[i].n_wanted >= 1);
        turns[i].n_rows = 0;
    }
    int32_t left = serve_aged(turns, n_turns, budget, clock);
    left = serve_readers(turns, n_turns, left, clock);
    for (int32_t i = 0; i < n_turns && left > 0; i++) {
        if (turns[i].is_decode) continue;
        left -= give(&turns[i], left);
        turns[i].served = ++*clock;
    }
    for (int32_t i = 0; i < n_turns; i++) {
        if (turns[i].n_rows > 0) {
            turns[i].n_waited = 0;
        } else if (turns[i].n_waited < UINT32_MAX) {
            turns[i].n_waited++;
        }
    }
}
