/* Who gets how many rows of the next step. Pure arithmetic on turns; knows no models, buffers or events. */
#ifndef NEAP_ENGINE_SCHEDULER_H
#define NEAP_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

/* A sequence that has waited this many rounds goes before everyone who waited less. */
#define NEAP_AGING_ROUNDS 4

typedef struct neap_turn {
    int64_t n_wanted; /* >= 1: the rest of the prompt, or 1 when the sequence decodes */
    bool is_decode;
    uint32_t n_waited; /* in/out: rounds without a row */
    uint64_t served;   /* in/out: number of its last service, 0: never; smaller is longer ago */
    int32_t n_rows;    /* out: 0 .. n_wanted */
} neap_turn;

/* turns in order of submission. The sum of n_rows is min(budget, sum of n_wanted). clock numbers the services
 * and starts at 0. */
void neap_schedule(neap_turn *turns, int32_t n_turns, int32_t budget, uint64_t *clock);

#endif
