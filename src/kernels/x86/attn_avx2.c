/* The attn family compiled for AVX2: everything is in attn_vec.h. */
#include "kernels/x86/attn_vec.h"

void neap_attn_avx2_init(neap_kernels *k) { attn_fill(k); }
