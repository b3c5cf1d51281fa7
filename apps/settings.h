/* From options to the library's structs: engine options, tuning, cache directory. */
#ifndef NEAP_APPS_SETTINGS_H
#define NEAP_APPS_SETTINGS_H

#include "buffer.h"
#include "command_line.h"
#include "neap.h"

/* Engine options with the tuning they point to: a settings must not be copied or moved once it is filled. */
typedef struct neap_cli_settings {
    neap_engine_options engine;
    neap_tuning tuning;
    int is_tuned; /* a record of neap tune was used */
} neap_cli_settings;

/* Options that need more than their type to be right; before anything is opened. Exit code. */
int neap_cli_settings_check(const neap_cli_options *o);
/* Everything but context and number of sequences. Options given win over the record of neap tune, that one over the
 * defaults. */
void neap_cli_settings_fill(neap_cli_settings *s, const neap_cli_options *o, const neap_model *m);
/* "few-rows 8, tile 8, index beside, shared team, prefetch 256 KiB, pin start" */
void neap_cli_tuning_text(const neap_tuning *t, char *text, size_t capacity);

/* The cache directory: --cache-dir, $XDG_CACHE_HOME/neap, ~/.cache/neap. NULL: there is none. Text is owned by dir. */
const char *neap_cli_cache_dir(const neap_cli_options *o, neap_cli_text *dir);
/* Whether weights of that many packed bytes are kept there. */
int neap_cli_cache_wanted(const neap_cli_options *o, uint64_t packed_bytes);
enum { NEAP_CLI_CACHE_LEAST = 256 << 20 }; /* smaller models are packed faster than they are read */

#endif
