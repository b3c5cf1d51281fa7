/* Where buffers of a plan lie in one region: two that live at the same time never overlap, others may.
 *
 * Times are numbers of phases. A buffer lives from the first phase that touches it to the last one, both included. */
#ifndef NEAP_RUNTIME_COLOUR_H
#define NEAP_RUNTIME_COLOUR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct neap_life {
    uint64_t bytes;
    int32_t first, last; /* first > last: never used, gets no place */
    uint64_t offset;     /* out: a multiple of 64 */
} neap_life;

/* Places n buffers; *peak is the size of the region. The same input gives the same places. shares false: nothing is
 * used twice (tests). */
NEAP_MUST_CHECK neap_status neap_colour(neap_life *lives, int32_t n, bool shares, uint64_t *peak);

#endif
