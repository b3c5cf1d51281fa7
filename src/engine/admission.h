/* Who may run: the queue of those that wait, admission by memory, and who gives way when pages run out. */
#ifndef NEAP_ENGINE_ADMISSION_H
#define NEAP_ENGINE_ADMISSION_H

#include "engine/engine_internal.h"

void neap_queue_append(neap_seq *s);
void neap_queue_remove(neap_seq *s);
/* Takes it from the list of those that run. */
void neap_running_remove(neap_seq *s);
/* Admits, in order, who fits. watched (may be NULL): the status of the attempt to admit that one is returned; else, and
 * when it was not its turn, NEAP_OK. Nothing is allocated. */
neap_status neap_admission_run(neap_engine *e, const neap_seq *watched);
/* Inside a step: the same, and one that can never fit ends with an error. True: somebody left the queue. */
bool neap_admission_step(neap_engine *e);
/* Before a step: pages for everybody's next row; with none left the newest waits again. */
void neap_admission_grow(neap_engine *e);
/* Whether a new request may wait, NEAP_BUSY with a reason if not. It is in the queue already. */
NEAP_MUST_CHECK neap_status neap_admission_may_wait(const neap_seq *s);

#endif
