/* The index family compiled for AVX2: everything is in index_vec.h. */
#include "kernels/x86/index_vec.h"

void neap_index_avx2_init(neap_kernels *k) { index_fill(k); }
