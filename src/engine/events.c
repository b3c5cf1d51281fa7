/* Event queue. Fixed size: an event is copied into a ring of slots, its text into a ring of bytes, where it
 * lies in one piece with a 0 behind it (a piece that would cross the ring's end begins at its start).
 *
 *   slots   [ shown | head ... waiting ... tail | free ]      text   [ shown | text_head ... text_tail | free ]
 *
 * head, tail and the byte numbers only grow; the place is the number modulo the ring's size. A polled event
 * keeps its text until the next poll or step (neap_events_release).
 *
 * neap_step asks for room before it computes anything, so a push cannot fail. */
#include "engine/events.h"

#include <assert.h>
#include <string.h>

uint64_t neap_events_bytes(uint64_t n_slots, uint64_t text_bytes) {
    return n_slots * sizeof(neap_event_slot) + text_bytes;
}

neap_status neap_events_init(neap_events *q, neap_arena *arena, uint64_t n_slots, uint64_t text_bytes) {
    void *p = NULL;
    *q = (neap_events){.n_slots = n_slots, .text_bytes = text_bytes};
    NEAP_TRY(neap_arena_array(arena, n_slots, sizeof(neap_event_slot), &p));
    q->slots = p;
    NEAP_TRY(neap_arena_alloc(arena, text_bytes, &p));
    q->text = p;
    return NEAP_OK;
}

/* Events that hold a slot: those that wait and the one that is shown. */
static uint64_t held(const neap_events *q) { return q->tail - q->head + (q->is_head_shown ? 1 : 0); }

bool neap_events_have_room(const neap_events *q, uint64_t n, uint64_t text_bytes, uint64_t piece_bytes) {
    if (held(q) + n > q->n_slots) return false;
    /* Every piece has its 0, and less than one piece is skipped at the ring's end. */
    return q->text_tail - q->text_head + text_bytes + n + piece_bytes <= q->text_bytes;
}

uint64_t neap_events_push(neap_events *q, const neap_event *event) {
    assert(held(q) < q->n_slots);
    neap_event_slot *slot = &q->slots[q->tail % q->n_slots];
    slot->event = *event;
    uint64_t begin = q->text_tail;
    const uint64_t n = event->text_bytes + 1;
    if (begin % q->text_bytes + n > q->text_bytes) begin += q->text_bytes - begin % q->text_bytes;
    assert(begin + n - q->text_head <= q->text_bytes);
    char *text = q->text + begin % q->text_bytes;
    if (event->text_bytes > 0) memcpy(text, event->text, event->text_bytes);
    text[event->text_bytes] = '\0';
    slot->event.text = text;
    slot->text_begin = begin;
    slot->text_end = begin + n;
    q->text_tail = slot->text_end;
    assert(event->n_top <= NEAP_LOGPROBS_MAX);
    if (event->n_top > 0) memcpy(slot->top, event->top, (size_t)event->n_top * sizeof *slot->top);
    slot->event.top = slot->top;
    return q->tail++;
}

neap_event *neap_events_find(neap_events *q, uint64_t number) {
    return number >= q->head && number < q->tail ? &q->slots[number % q->n_slots].event : NULL;
}

void neap_events_release(neap_events *q) {
    if (!q->is_head_shown) return;
    q->is_head_shown = false;
    q->text_head = q->head < q->tail ? q->slots[q->head % q->n_slots].text_begin : q->text_tail;
    if (q->head == q->tail) q->text_head = q->text_tail = 0;
}

bool neap_events_poll(neap_events *q, neap_event *out) {
    while (q->head < q->tail) {
        neap_events_release(q);
        const neap_event *event = &q->slots[q->head % q->n_slots].event;
        q->head++;
        q->is_head_shown = true;
        if (event->seq == NULL) continue;
        *out = *event;
        return true;
    }
    neap_events_release(q);
    return false;
}

void neap_events_forget(neap_events *q, const neap_seq *seq) {
    for (uint64_t i = q->head; i < q->tail; i++) {
        neap_event *event = &q->slots[i % q->n_slots].event;
        if (event->seq == seq) event->seq = NULL;
    }
}
