/* The igemm family compiled for AVX2 with VNNI in 256 bits: everything is in igemm_vec.h. */
#include "kernels/x86/igemm_vec.h"

void neap_igemm_avxvnni_init(neap_kernels *k) { igemm_fill(k); }
