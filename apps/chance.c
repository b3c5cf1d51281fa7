/* Seeds of answers that were given none, and ids of requests and answers. Used by any thread. Owns nothing. */
#include "chance.h"

#include <sys/random.h>

#include "terminal.h"

uint64_t neap_cli_fresh_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = (uint64_t)(neap_cli_seconds() * 1e9);
    return seed >> 11;
}

void neap_cli_fresh_id(char id[NEAP_CLI_ID_CHARACTERS + 1]) {
    unsigned char bytes[NEAP_CLI_ID_CHARACTERS / 2];
    id[0] = 0;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return;
    for (int i = 0; i < NEAP_CLI_ID_CHARACTERS; i++)
        id[i] = "0123456789abcdef"[i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15];
    id[NEAP_CLI_ID_CHARACTERS] = 0;
}
