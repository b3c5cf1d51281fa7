/* What the bytes of cached prefixes depend on, as a key for their copy on disk. */
#ifndef NEAP_ENGINE_PREFIX_KEY_H
#define NEAP_ENGINE_PREFIX_KEY_H

#include "models/model.h"

/* o: resolved options. Reads config.json and the headers of the weights again. */
NEAP_MUST_CHECK neap_status neap_prefix_key(const neap_model *m, const neap_engine_options *o, uint8_t key[16]);

#endif
