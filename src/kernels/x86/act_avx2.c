/* The act family compiled for AVX2: everything is in act_vec.h. */
#include "kernels/x86/act_vec.h"

void neap_act_avx2_init(neap_kernels *k) { act_fill(k); }
