/* Separate passes of the indexer compiled for AVX-512: unfused_vec.h. */
#include "unfused_vec.h"

const kc_unfused *neap_kc_unfused_avx512(void) { return &unfused; }
