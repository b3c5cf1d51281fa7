/* The gemm family compiled for AVX-512: everything is in gemm_vec.h. */
#include "kernels/x86/gemm_vec.h"

void neap_gemm_avx512_init(neap_kernels *k) { gemm_fill(k); }
