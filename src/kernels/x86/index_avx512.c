/* The index family compiled for AVX-512: everything is in index_vec.h. */
#include "kernels/x86/index_vec.h"

void neap_index_avx512_init(neap_kernels *k) { index_fill(k); }
