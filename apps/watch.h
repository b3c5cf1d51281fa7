/* Looking at an engine's steps from outside: --trace and --hashes. */
#ifndef NEAP_APPS_WATCH_H
#define NEAP_APPS_WATCH_H

#include "command_line.h"
#include "neap.h"

typedef struct neap_cli_watch neap_cli_watch;

/* NULL when neither --trace nor --hashes is given. Exit code: a file cannot be made. */
int neap_cli_watch_open(neap_cli_watch **out, const neap_cli_options *o);
/* Before the engine is created: sets enable_trace and enable_hash. w may be NULL, here and below. */
void neap_cli_watch_prepare(const neap_cli_watch *w, neap_engine_options *e);
/* After each neap_step that returned NEAP_OK. */
neap_status neap_cli_watch_step(neap_cli_watch *w, const neap_engine *e);
/* Writes the trace; closes and frees. code: how the run went so far; returns it, or why a file could not be written. */
int neap_cli_watch_close(neap_cli_watch *w, int code);

#endif
