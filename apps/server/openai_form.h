/* What chat and completions have in common: the frame of OpenAI's objects around their choices. */
#ifndef NEAP_APPS_SERVER_OPENAI_FORM_H
#define NEAP_APPS_SERVER_OPENAI_FORM_H

#include "answer.h"

/* Up to the opened list of choices. */
void neap_openai_open(const neap_answer *a, neap_cli_text *out, const char *object);
/* Ends the list in a stream; "usage" is null until the last chunk, where it is wanted at all. */
void neap_openai_choices_end(const neap_answer *a, neap_cli_text *out);
/* Closes the object and sends it; out is empty afterwards. */
void neap_openai_send(neap_answer *a, neap_cli_text *out);
/* The last chunk of a choice: timings with the last one of all. */
void neap_openai_send_finish(neap_answer *a, neap_cli_text *out);
/* The chunk out with how far the prompt of c is. */
void neap_openai_send_progress(neap_answer_choice *c, neap_cli_text *out, int64_t done, double ms);
/* Usage and [DONE]. */
void neap_openai_send_end(neap_answer *a, const char *object);
/* Everything behind the choices of a whole answer. */
void neap_openai_close(const neap_answer *a, neap_cli_text *out);

#endif
