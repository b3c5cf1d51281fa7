/* The kda family compiled for AVX-512: everything is in kda_vec.h and kda_chunk_vec.h. */
#include "kernels/x86/kda_chunk_vec.h"

void neap_kda_avx512_init(neap_kernels *k) {
    k->kda = kda_head;
    k->kda_chunk = kda_chunk_head;
    k->kda_map = kda_map;
}
