/* Numbers that nobody can guess, from the system. */
#ifndef NEAP_APPS_CHANCE_H
#define NEAP_APPS_CHANCE_H

#include <stdint.h>

enum { NEAP_CLI_ID_CHARACTERS = 32 };

/* 53 bits: exact in JSON, and accepted by --seed. */
uint64_t neap_cli_fresh_seed(void);
/* 128 bits as lower-case hex, 0-terminated. "" when the system has none: no id rather than a known one. */
void neap_cli_fresh_id(char id[NEAP_CLI_ID_CHARACTERS + 1]);

#endif
