/* The sample family compiled for AVX2: everything is in sample_vec.h. */
#include "kernels/x86/sample_vec.h"

void neap_sample_avx2_init(neap_kernels *k) { sample_fill(k); }
