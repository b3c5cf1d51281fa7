/* The worker team: persistent threads that run one function together. Worker 0 is the calling thread.
 *
 * A wait spins, then sleeps on a futex; it spins long only where that has paid lately, so that a busy or small
 * machine does not burn the time that another worker needs. Between jobs all workers sleep and cost nothing. Signals go
 * to the program's own threads: workers block all but those that tell of their own faults. */
#ifndef NEAP_RUNTIME_TEAM_H
#define NEAP_RUNTIME_TEAM_H

#include <stdbool.h>

#include "base/status.h"

typedef struct neap_team neap_team;
typedef void (*neap_team_fn)(void *arg, int32_t worker);

enum { NEAP_TEAM_MAX = 1024 }; /* the limit of the options too */

/* Where workers run.
 *   NONE    wherever the kernel puts them
 *   SPREAD  each starts on a core of its own (physical cores first, over all memory nodes) and may move from there; one
 *           that is woken on the CPU of another worker goes to a free one and stays for 20 ms
 *   FIXED   each stays on its core; the caller's thread is fixed during a job only and gets its mask back, for 1 to
 *           1.5 us per job. For a machine of one's own: beside other programs a fixed worker cannot leave a busy core
 * SPREAD is what to use without a reason. Measured in README.md. */
typedef enum neap_pin { NEAP_PIN_NONE, NEAP_PIN_SPREAD, NEAP_PIN_FIXED } neap_pin;

/* n_threads 1 .. NEAP_TEAM_MAX, the caller included. */
NEAP_MUST_CHECK neap_status neap_team_create(neap_team **out, int32_t n_threads, neap_pin pin);
void neap_team_destroy(neap_team *t);
int32_t neap_team_size(const neap_team *t);
/* Runs fn(arg, worker) on workers 0 .. n_workers - 1 (n_workers 1 .. size) and returns when all are done. The others go
 * on sleeping. One caller at a time. */
void neap_team_run(neap_team *t, int32_t n_workers, neap_team_fn fn, void *arg);
/* Inside fn: waits until every worker of the job has arrived; what was written before is visible after. */
void neap_team_barrier(neap_team *t);

/* Inside fn: meetings of some of the job's workers. Each has an epoch, which counts how often it was full (modulo 2^32)
 * and for which others can wait. The n of a meeting may change when nobody stands in it. */
enum { NEAP_TEAM_MEETINGS = 16 };
/* Waits until n workers have arrived. */
void neap_team_meet(neap_team *t, int32_t meeting, int32_t n);
/* Arrives, and does not wait. */
void neap_team_arrive(neap_team *t, int32_t meeting, int32_t n);
/* Waits until the epoch has come to `epoch`; what was written before that is visible after. */
void neap_team_await(neap_team *t, int32_t meeting, uint32_t epoch);
/* Also between jobs. */
uint32_t neap_team_epoch(const neap_team *t, int32_t meeting);

#endif
