/* Admission: who runs, who waits, and who gives way.
 *
 * Requests wait in order of submission and nobody overtakes, with two exceptions: one whose reader has paused it, and
 * one that is held back because somebody who runs is computing its prefix (prefix_use.c) lets those behind it go
 * first. The order never depends on what is cached for whom: it would tell a stranger.
 *
 *   conservative  a sequence gets all pages that it may ever need; it can never be stopped by the lack of one
 *   optimistic    it gets pages for what is known and one more, and grows by a page; when there is none, prefixes that
 *                 nobody uses go first, then the newest sequence: its slot is closed, it waits at the head of the
 *                 queue and later computes all its known tokens again (or finds them in the prefix cache), to the same
 *                 bits. The oldest that can move never gives way to others; alone it gives way to itself when it has
 *                 copies of what the tree holds: somebody always advances.
 *
 * A sequence is admitted beside others only while a page is left for every fourth of them to grow into: else the same
 * one would come and go at every step.
 *
 * Called by engine.c and sequence.c. Owns nothing; allocates nothing. */
#include "engine/admission.h"

#include <assert.h>

#include "engine/prefix_use.h"

enum { GROWING = 4 };

/* ---- lists ---- */

static void enter_queue(neap_seq *s) {
    s->place = NEAP_SEQ_WAITING;
    s->engine->n_waiting++;
    s->engine->waiting_tokens += (uint64_t)s->n_prompt;
}

void neap_queue_append(neap_seq *s) {
    neap_engine *e = s->engine;
    s->ahead = e->queue_last;
    s->behind = NULL;
    if (e->queue_last != NULL) {
        e->queue_last->behind = s;
    } else {
        e->queue_first = s;
    }
    e->queue_last = s;
    enter_queue(s);
}

static void push_front(neap_seq *s) {
    neap_engine *e = s->engine;
    s->ahead = NULL;
    s->behind = e->queue_first;
    if (e->queue_first != NULL) {
        e->queue_first->ahead = s;
    } else {
        e->queue_last = s;
    }
    e->queue_first = s;
    enter_queue(s);
}

void neap_queue_remove(neap_seq *s) {
    neap_engine *e = s->engine;
    assert(s->place == NEAP_SEQ_WAITING);
    if (s->ahead != NULL) {
        s->ahead->behind = s->behind;
    } else {
        e->queue_first = s->behind;
    }
    if (s->behind != NULL) {
        s->behind->ahead = s->ahead;
    } else {
        e->queue_last = s->ahead;
    }
    s->ahead = s->behind = NULL;
    s->place = NEAP_SEQ_NOWHERE;
    e->n_waiting--;
    e->waiting_tokens -= (uint64_t)s->n_prompt;
}

/* In order of submission. */
static void enter_running(neap_seq *s) {
    neap_engine *e = s->engine;
    int32_t i = e->n_running++;
    for (; i > 0 && e->running[i - 1]->number > s->number; i--) e->running[i] = e->running[i - 1];
    e->running[i] = s;
    s->place = NEAP_SEQ_RUNNING;
}

void neap_running_remove(neap_seq *s) {
    neap_engine *e = s->engine;
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        if (e->running[i] != s) e->running[n++] = e->running[i];
    }
    e->n_running = n;
    s->place = NEAP_SEQ_NOWHERE;
    e->changes++;
}

/* ---- admission ---- */

static int64_t pages_of(int64_t positions) { return (positions + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS; }

/* Positions to reserve now. */
static int64_t positions_for(const neap_seq *s) {
    const int64_t all = neap_seq_positions(s);
    if (!s->engine->options.optimistic) return all;
    const int64_t some = (int64_t)s->n_known + NEAP_PAGE_ROWS;
    return some < all ? some : all;
}

/* Slots and pages of ended sequences go before anything of the prefix cache does. */
static void reclaim_for(neap_engine *e, int64_t pages) {
    while (e->n_slots_open == e->options.seqs_max && neap_seq_reclaim_slot(e)) continue;
    if (e->prefix == NULL) return;
    while (neap_prefix_use_pages_free(e) < pages && neap_seq_reclaim_slot(e)) continue;
}

static bool leaves_room_to_grow(const neap_seq *s, int64_t pages) {
    neap_engine *e = s->engine;
    if (!e->options.optimistic || e->n_running == 0) return true;
    const int64_t wanted = pages - neap_prefix_use_pages_found(s) + (e->n_running + GROWING - 1) / GROWING;
    while (neap_prefix_use_pages_left(e) < wanted) {
        if (!neap_seq_reclaim_slot(e)) return false;
    }
    return true;
}

/* What is being written to disk is held; it comes free without anybody giving way. */
static bool is_writing(const neap_engine *e) { return e->disk != NULL && neap_prefix_disk_is_busy(e->disk); }

static neap_status admit(neap_seq *s) {
    neap_engine *e = s->engine;
    const int64_t n = positions_for(s);
    const int64_t pages = pages_of(n);
    NEAP_CHECK(e->n_running < e->options.seqs_max, NEAP_BUSY, "all %d sequences are running", e->options.seqs_max);
    NEAP_CHECK(leaves_room_to_grow(s, pages), NEAP_BUSY,
               "cache: %lld pages needed beside those that the running sequences grow into", (long long)pages);
    reclaim_for(e, pages);
    neap_status status = neap_prefix_use_open(s, n);
    while (status == NEAP_BUSY && neap_seq_reclaim_slot(e)) status = neap_prefix_use_open(s, n);
    if (status == NEAP_BUSY && e->n_running == 0 && e->prefix != NULL && !is_writing(e)) {
        neap_prefix_clear(e->prefix); /* alone, and still no room: what is kept is worth less than an answer */
        status = neap_prefix_use_open(s, n);
    }
    if (status != NEAP_OK) return status;
    neap_queue_remove(s);
    enter_running(s);
    s->was_admitted = true;
    s->is_blocked = false;
    return NEAP_OK;
}

/* In_step: events may be pushed. */
static neap_status run(neap_engine *e, const neap_seq *watched, bool in_step, bool *changed) {
    neap_status result = NEAP_OK;
    neap_seq *next = NULL;
    for (neap_seq *s = e->queue_first; s != NULL && e->n_running < e->options.seqs_max; s = next) {
        next = s->behind;
        if (neap_seq_is_cancelled(s) || neap_seq_is_paused(s)) continue;
        if (s->tried == e->changes) break; /* nothing has become free since */
        if (neap_prefix_use_waits(s)) continue;
        const neap_status status = admit(s);
        if (s == watched) result = status;
        if (status == NEAP_OK) {
            *changed = true;
            continue;
        }
        const bool can_come_later = status == NEAP_BUSY && (e->n_running > 0 || is_writing(e));
        if (in_step && !can_come_later) {
            neap_seq_finish(s, NEAP_FINISH_ERROR, status);
            *changed = true;
            continue;
        }
        if (can_come_later) s->tried = e->changes;
        break;
    }
    return result;
}

neap_status neap_admission_run(neap_engine *e, const neap_seq *watched) {
    bool changed = false;
    return run(e, watched, false, &changed);
}

bool neap_admission_step(neap_engine *e) {
    bool changed = false;
    (void)run(e, NULL, true, &changed);
    return changed;
}

neap_status neap_admission_may_wait(const neap_seq *s) {
    const neap_engine *e = s->engine;
    const neap_engine_options *o = &e->options;
    /* There is a place for it, it only waits for its prefix, or for pages that are being written. */
    const bool waits_shortly = s->leader != 0 || s->is_loading || (e->n_running == 0 && is_writing(e));
    if (waits_shortly && e->n_running + e->n_waiting <= o->seqs_max) return NEAP_OK;
    if (o->queue_max == 0) {
        NEAP_CHECK(e->n_running < o->seqs_max, NEAP_BUSY, "all %d sequences are running", o->seqs_max);
        NEAP_FAIL(NEAP_BUSY, "no cache space for %d prompt tokens and max_tokens %d beside what is running",
                  s->n_prompt, s->max_tokens);
    }
    NEAP_CHECK(e->n_waiting <= o->queue_max, NEAP_BUSY, "the queue is full: %d requests wait, queue_max is %d",
               e->n_waiting - 1, o->queue_max);
    NEAP_CHECK(e->waiting_tokens <= o->queue_tokens_max, NEAP_BUSY,
               "the queue is full: %d more prompt tokens would make %llu, queue_tokens_max is %llu", s->n_prompt,
               (unsigned long long)e->waiting_tokens, (unsigned long long)o->queue_tokens_max);
    return NEAP_OK;
}

/* ---- giving way ---- */

static bool can_move(const neap_seq *s) { return !s->is_done && !neap_seq_is_paused(s) && !neap_seq_is_cancelled(s); }

static const neap_seq *oldest_that_moves(const neap_engine *e) {
    for (int32_t i = 0; i < e->n_running; i++) {
        if (can_move(e->running[i])) return e->running[i];
    }
    return NULL;
}

/* The newest one that is paused, else the newest of all; never the oldest that moves. NULL: nobody is left. */
static neap_seq *find_victim(const neap_engine *e) {
    const neap_seq *oldest = oldest_that_moves(e);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = e->n_running - 1; i >= 0; i--) {
            neap_seq *s = e->running[i];
            if (s != oldest && !s->is_done && (pass == 1 || neap_seq_is_paused(s))) return s;
        }
    }
    return NULL;
}

static void preempt(neap_seq *s) {
    neap_engine *e = s->engine;
    if (!neap_prefix_use_end(s, false)) { /* not to disk: that would hold the pages that are needed */
        e->n_nonfinite++;
        neap_seq_finish(s, NEAP_FINISH_ERROR, NEAP_NUMERIC);
        neap_running_remove(s);
        return;
    }
    neap_seq_close_slot(s);
    neap_running_remove(s);
    s->n_computed = 0;
    push_front(s);
    e->n_preemptions++;
}

/* Pages for the next row of s. False: somebody gave way, and the list has changed. */
static bool grow(neap_seq *s) {
    neap_engine *e = s->engine;
    const int64_t all = neap_seq_positions(s);
    const int64_t wanted = (int64_t)s->n_known + NEAP_PAGE_ROWS - 1;
    s->is_blocked = false;
    if (s->n_known <= s->n_reserved) return true;
    const int64_t n = wanted < all ? wanted : all;
    for (;;) {
        if (e->prefix != NULL && neap_prefix_use_pages_free(e) < pages_of(n) - pages_of(s->n_reserved))
            (void)neap_seq_reclaim_slot(e);
        if (neap_prefix_use_extend(s, n) == NEAP_OK) return true;
        if (neap_seq_reclaim_slot(e)) continue;
        neap_seq *victim = find_victim(e);
        /* Alone: its copies of pages that the tree has, too, are let go by beginning again from the tree. */
        if (victim == NULL && !is_writing(e)) victim = s;
        if (victim == NULL) break;
        preempt(victim);
        return false;
    }
    s->is_blocked = true; /* alone, but what is being written to disk is held: later */
    return true;
}

void neap_admission_grow(neap_engine *e) {
    if (!e->options.optimistic) return;
    for (int32_t i = 0; i < e->n_running; i++) {
        if (!can_move(e->running[i])) continue;
        if (!grow(e->running[i])) i = -1;
    }
}
