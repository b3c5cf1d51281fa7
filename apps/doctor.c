/* `neap doctor`: is everything as it should be? In preparation. Called by main. */
#include "commands.h"
#include "report.h"

int neap_cli_doctor(const neap_cli_options *o) {
    (void)o;
    neap_cli_error("neap doctor is not ready yet");
    return NEAP_EXIT_INTERNAL;
}
