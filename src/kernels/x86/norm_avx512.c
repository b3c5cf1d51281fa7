/* The norm family compiled for AVX-512: everything is in norm_vec.h. */
#include "kernels/x86/norm_vec.h"

void neap_norm_avx512_init(neap_kernels *k) { norm_fill(k); }
