/* The checks of `neap doctor`. */
#ifndef NEAP_APPS_DOCTOR_H
#define NEAP_APPS_DOCTOR_H

#include "json_out.h"
#include "settings.h"

typedef enum neap_cli_health { NEAP_CLI_FINE, NEAP_CLI_WARNING, NEAP_CLI_FAILED } neap_cli_health;

typedef struct neap_cli_doctor_state {
    const neap_cli_options *options;
    const char *model; /* directory; NULL: there is none */
    neap_cli_text json;
    int n_warnings, n_failed;
} neap_cli_doctor_state;

/* One line of the report. remedy: what to do; NULL where nothing is wrong. */
void neap_cli_doctor_say(neap_cli_doctor_state *d, const char *check, neap_cli_health health, const char *remedy,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

/* doctor_machine.c: what needs no model */
void neap_cli_doctor_machine(neap_cli_doctor_state *d);
void neap_cli_doctor_kernels(neap_cli_doctor_state *d);
void neap_cli_doctor_cache(neap_cli_doctor_state *d);
/* doctor_model.c: memory, plans against eager runs, tuning */
void neap_cli_doctor_model(neap_cli_doctor_state *d);

#endif
