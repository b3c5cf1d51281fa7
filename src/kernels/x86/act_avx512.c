/* The act family compiled for AVX-512: everything is in act_vec.h. */
#include "kernels/x86/act_vec.h"

void neap_act_avx512_init(neap_kernels *k) { act_fill(k); }
