/* The sweep by itself compiled for AVX-512: sweep_vec.h. */
#include "sweep_vec.h"

void neap_kc_sweep_avx512(const kc_sweep_args *a) { sweep(a); }
