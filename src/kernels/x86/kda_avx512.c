/* The kda family compiled for AVX-512: everything is in kda_vec.h. */
#include "kernels/x86/kda_vec.h"

void neap_kda_avx512_init(neap_kernels *k) { kda_fill(k); }
