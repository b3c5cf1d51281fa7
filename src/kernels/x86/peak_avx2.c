/* Peaks of AVX2: everything is in peak_vec.h. */
#include "kernels/x86/peak_vec.h"

void neap_peak_avx2_init(neap_kernels *k) { peak_fill(k); }
