/* Separate passes of the indexer compiled for AVX2: unfused_vec.h. */
#include "unfused_vec.h"

const kc_unfused *neap_kc_unfused_avx2(void) { return &unfused; }
