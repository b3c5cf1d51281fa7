/* The queue between neap_step and neap_poll: a ring of events and a ring of their text, both claimed once. */
#ifndef NEAP_ENGINE_EVENTS_H
#define NEAP_ENGINE_EVENTS_H

#include <stdbool.h>

#include "base/arena.h"
#include "engine/sampler.h"

typedef struct neap_event_slot {
    neap_event event;    /* text and top point into this ring; seq NULL: taken back, never shown */
    uint64_t text_begin; /* running byte number in the text ring */
    uint64_t text_end;
    neap_logprob top[NEAP_LOGPROBS_MAX];
} neap_event_slot;

typedef struct neap_events {
    neap_event_slot *slots;
    uint64_t n_slots;
    uint64_t head, tail; /* running numbers: events head .. tail-1 wait */
    bool is_head_shown;  /* the event before head was polled; its text is still borrowed */
    char *text;
    uint64_t text_bytes;
    uint64_t text_head, text_tail; /* running byte numbers, the wasted ends of the ring included */
} neap_events;

uint64_t neap_events_bytes(uint64_t n_slots, uint64_t text_bytes);
NEAP_MUST_CHECK neap_status neap_events_init(neap_events *q, neap_arena *arena, uint64_t n_slots, uint64_t text_bytes);
/* Room for n more events with text_bytes of text in all, no piece longer than piece_bytes? */
bool neap_events_have_room(const neap_events *q, uint64_t n, uint64_t text_bytes, uint64_t piece_bytes);
/* Copies the event, its text and its alternatives. There must be room. Returns the event's running number. */
uint64_t neap_events_push(neap_events *q, const neap_event *event);
/* An event that still waits, or NULL when it was polled. */
neap_event *neap_events_find(neap_events *q, uint64_t number);
/* The caller is done with the event that was shown last. */
void neap_events_release(neap_events *q);
/* Shows the oldest event; false: none. */
bool neap_events_poll(neap_events *q, neap_event *out);
/* Takes back all events of a sequence. */
void neap_events_forget(neap_events *q, const neap_seq *seq);

#endif
