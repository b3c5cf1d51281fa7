/* Peaks of AVX2 with VNNI: everything is in peak_vnni.h. */
#include "kernels/x86/peak_vnni.h"

void neap_peak_avxvnni_init(neap_kernels *k) { peak_vnni_fill(k); }
