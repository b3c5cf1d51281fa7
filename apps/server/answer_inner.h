/* What answer.c (life of an answer) and stream.c (tokens become pieces) share. */
#ifndef NEAP_APPS_SERVER_ANSWER_INNER_H
#define NEAP_APPS_SERVER_ANSWER_INNER_H

#include "answer.h"

/* stream.c: what a job says. The choice is its user. */
void neap_answer_event(neap_answer_choice *c, const neap_job_event *e);
void neap_answer_tokens_free(neap_answer_tokens *t);
void neap_answer_choice_free(neap_answer_choice *c);
void neap_answer_flush(neap_answer_choice *c); /* sends the text that waits */

/* answer.c */
void neap_answer_choice_done(neap_answer_choice *c); /* c->finish is set; its job goes */
int neap_answer_keeps(const neap_answer *a);         /* text is kept in the choices */

#endif
