/* The attnres family compiled for AVX-512: everything is in attnres_vec.h. */
#include "kernels/x86/attnres_vec.h"

void neap_attnres_avx512_init(neap_kernels *k) { attnres_fill(k); }
