/* Tuning from the command line: `neap tune`, and --tune before a first token. */
#ifndef NEAP_APPS_TUNE_H
#define NEAP_APPS_TUNE_H

#include "generate.h"

/* When --tune asks for it and there is no record: tunes, keeps the record, and takes it into s->settings, which are
 * filled already. A failure is told and stops nothing. */
void neap_cli_tune_first(neap_cli_session *s);

#endif
