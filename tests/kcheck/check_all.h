/* All kernel variants of this CPU against their scalar definitions, for a program that wants to know whether this
 * machine computes what it should (`neap doctor`). Prints nothing. One call at a time in a process. */
#ifndef NEAP_TESTS_KCHECK_CHECK_ALL_H
#define NEAP_TESTS_KCHECK_CHECK_ALL_H

#include <stdbool.h>
#include <stdint.h>

/* failures of cases; first_failure: what differed in the first of them, "" when there is none. Borrowed. */
typedef void (*kc_check_fn)(void *user, const char *family, const char *isa, int64_t cases, int64_t failures,
                            const char *first_failure);

/* fn is told each variant that ran: those that this CPU has and cpu (as in neap_model_options; NULL = all) allows.
 * quick: a part of the cases of every variant, two seconds instead of ten. Returns how many variants differ; -1: they
 * could not be compared (memory, or a cpu that does not exist). */
int32_t kc_check_all(const char *cpu, bool quick, kc_check_fn fn, void *user);

#endif
