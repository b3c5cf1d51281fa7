/* The norm family compiled for AVX2: everything is in norm_vec.h. */
#include "kernels/x86/norm_vec.h"

void neap_norm_avx2_init(neap_kernels *k) { norm_fill(k); }
