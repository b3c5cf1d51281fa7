/* `neap tune`: the fastest settings for a model on this machine. In preparation. Called by main. */
#include "commands.h"
#include "report.h"

int neap_cli_tune(const neap_cli_options *o) {
    (void)o;
    neap_cli_error("neap tune is not ready yet");
    return NEAP_EXIT_INTERNAL;
}
