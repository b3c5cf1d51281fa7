/* The route family compiled for AVX2: everything is in route_vec.h. */
#include "kernels/x86/route_vec.h"

void neap_route_avx2_init(neap_kernels *k) { route_fill(k); }
