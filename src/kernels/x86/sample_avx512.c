/* The sample family compiled for AVX-512: everything is in sample_vec.h. */
#include "kernels/x86/sample_vec.h"

void neap_sample_avx512_init(neap_kernels *k) { sample_fill(k); }
