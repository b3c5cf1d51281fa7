/* What was timed, and the floors that it must hold. */
#ifndef NEAP_TESTS_KCHECK_FLOORS_H
#define NEAP_TESTS_KCHECK_FLOORS_H

#include "kcheck.h"

typedef struct kc_result {
    char family[16], isa[16], label[64];
    double seconds; /* of a run, the least */
    double speed;   /* multiply-adds (else bytes) a second: comparable between problems of different size */
    double items, share, fma_share, cycle;
} kc_result;

/* Keeps a result; one of the same name is replaced by a better one. */
void kc_results_add(const kc_result *r);
const kc_result *kc_results_find(const char *family, const char *isa, const char *label);

/* Reads a file of floors, or from a directory <level>.txt of every level in `levels` (comma list) that is there.
 * false: an error was printed. */
bool kc_floors_read(const char *path, const char *levels);
bool kc_floors_exist(void);
/* Is this case in a floor that does not hold yet? */
bool kc_floors_want(const char *family, const char *isa, const char *label);
/* Floors of this variant that are not held yet, by what was measured so far. */
int kc_floors_open(const char *family, const char *isa);
/* The table; how many are missed. Families and variants that the command line leaves out do not count. */
int kc_floors_judge(bool (*is_chosen)(const char *family, const char *isa));

#endif
