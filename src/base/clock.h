/* The monotonic clock, one reading for everybody. */
#ifndef NEAP_BASE_CLOCK_H
#define NEAP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t neap_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline double neap_clock_seconds(void) { return 1e-9 * (double)neap_clock_ns(); }

#endif
