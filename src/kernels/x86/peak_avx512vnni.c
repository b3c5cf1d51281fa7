/* Peaks of AVX-512 with VNNI: everything is in peak_vnni.h. */
#include "kernels/x86/peak_vnni.h"

void neap_peak_avx512vnni_init(neap_kernels *k) { peak_vnni_fill(k); }
