/* What this core can do at best, measured in turns with a kernel, because a shared machine's speed drifts. */
#ifndef NEAP_TESTS_KCHECK_LIMITS_H
#define NEAP_TESTS_KCHECK_LIMITS_H

#include "kcheck.h"

/* Least seconds so far of one byte, multiply-add or cycle. */
typedef struct kc_limits {
    double memory, near, multiply, fma, cycle;
    int turns;
} kc_limits;

double kc_now(void); /* CPU time of this thread: what others do hardly counts */
/* One turn of everything that a bench needs; each keeps its minimum. bytes: what one run of the kernel reads. */
void kc_limits_begin(kc_limits *l);
void kc_limits_turn(kc_limits *l, const kc *c, double bytes, bool is_cold);

/* Copies of c->cold in memory larger than the caches; how many fit. */
int64_t kc_cold_fill(kc *c);
void kc_cold_use(kc *c, int64_t copy); /* -1: the originals */

#endif
