/* Computing a prompt without an answer, for the commands that look at tensors. */
#ifndef NEAP_APPS_COMPUTE_H
#define NEAP_APPS_COMPUTE_H

#include "generate.h"

/* Ids must lie in the model's vocabulary and there must be at least one; what: the file's name. Exit code. */
int neap_cli_check_tokens(const neap_cli_session *s, const char *what, const int32_t *tokens, size_t n);
/* Runs the whole prompt; every tensor of every row goes to tap, logits of all rows included when all_logits is
 * set, then the caches when wants_caches is set. The session's engine must have taps. Exit code. */
int neap_cli_compute(neap_cli_session *s, const int32_t *tokens, size_t n, int all_logits, int wants_caches,
                     neap_tap_fn tap, void *user);
/* Waits for the next event of one kind or the end; *event is only valid when 0 is returned. Exit code. */
int neap_cli_next_event(neap_cli_session *s, neap_event *event);

#endif
