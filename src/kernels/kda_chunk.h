/* The chunked form in scalar code, for the table entry that kda_scalar.c fills. */
#ifndef NEAP_KERNELS_KDA_CHUNK_H
#define NEAP_KERNELS_KDA_CHUNK_H

#include "kernels/kernels.h"

void neap_kda_chunk_scalar(const neap_kda_chunk_args *a);
void neap_kda_map_scalar(const neap_kda_map_args *a);

#endif
