/* One function per command. Each returns the exit code; what went wrong was printed. */
#ifndef NEAP_APPS_COMMANDS_H
#define NEAP_APPS_COMMANDS_H

#include "command_line.h"
#include "neap.h"

int neap_cli_run(const neap_cli_options *o);
int neap_cli_chat(neap_cli_options *o);
int neap_cli_serve(const neap_cli_options *o);
int neap_cli_tokenize(const neap_cli_options *o);
int neap_cli_info(const neap_cli_options *o);
int neap_cli_plan_show(const neap_cli_options *o, const neap_model *m); /* of info */
int neap_cli_logits(const neap_cli_options *o);
int neap_cli_quantize(const neap_cli_options *o);
int neap_cli_verify(const neap_cli_options *o);
int neap_cli_perplexity(const neap_cli_options *o);
int neap_cli_eval(const neap_cli_options *o);
int neap_cli_bench(const neap_cli_options *o);
int neap_cli_tune(const neap_cli_options *o);
int neap_cli_doctor(const neap_cli_options *o);
int neap_cli_cache(const neap_cli_options *o);

#endif
