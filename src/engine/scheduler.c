/* Continuous batching with a row budget per step.
 *
 * Decode rows come first, because somebody is reading along and a row costs little; prompts fill the rest in
 * order of submission, because finishing one is worth more than advancing all. Both rules alone would let
 * somebody starve (more decoders than rows; a long prompt ahead of a short one; a prompt behind decoders that
 * fill every step), so whoever has waited NEAP_AGING_ROUNDS rounds goes first, longest wait first. An aged
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

static uint32_t longest_wait(const neap_turn *turns, int32_t n_turns) {
    uint32_t longest = 0;
    for (int32_t i = 0; i < n_turns; i++) {
        if (turns[i].n_waited > longest) longest = turns[i].n_waited;
    }
    return longest;
}

/* Everyone who has waited too long, longest wait first, decoders before prompts. Returns the rows left. */
static int32_t serve_aged(neap_turn *turns, int32_t n_turns, int32_t budget, uint32_t longest) {
    int32_t share = budget / 4 > 1 ? budget / 4 : 1;
    int32_t left = budget;
    for (uint32_t wait = longest; wait >= NEAP_AGING_ROUNDS && left > 0; wait--) {
        for (int32_t i = 0; i < n_turns && left > 0; i++) {
            if (turns[i].is_decode && turns[i].n_waited == wait) left -= give(&turns[i], 1);
        }
        for (int32_t i = 0; i < n_turns && left > 0; i++) {
            if (turns[i].is_decode || turns[i].n_waited != wait) continue;
            const int32_t limit = share < left ? share : left;
            const int32_t rows = give(&turns[i], limit);
            share -= rows;
            left -= rows;
        }
    }
    return left;
}

void neap_schedule(neap_turn *turns, int32_t n_turns, int32_t budget) {
    assert(budget >= 1);
    for (int32_t i = 0; i < n_turns; i++) {
        assert(turns[i].n_wanted >= 1);
        turns[i].n_rows = 0;
    }
    const uint32_t longest = longest_wait(turns, n_turns);
    int32_t left = serve_aged(turns, n_turns, budget, longest);
    const uint32_t below = longest < NEAP_AGING_ROUNDS ? longest : NEAP_AGING_ROUNDS - 1;
    for (int64_t wait = below; wait >= 0 && left > 0; wait--) {
        for (int32_t i = 0; i < n_turns && left > 0; i++) {
            if (turns[i].is_decode && turns[i].n_waited == wait) left -= give(&turns[i], 1);
        }
    }
    for (int32_t i = 0; i < n_turns && left > 0; i++) {
        if (!turns[i].is_decode) left -= give(&turns[i], left);
    }
    for (int32_t i = 0; i < n_turns; i++) {
        if (turns[i].n_rows > 0) {
            turns[i].n_waited = 0;
        } else if (turns[i].n_waited < UINT32_MAX) {
            turns[i].n_waited++;
        }
    }
}
