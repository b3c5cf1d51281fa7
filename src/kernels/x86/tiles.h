/* AMX tiles: their shapes, and a load of them that compilers cannot reorder. */
#ifndef NEAP_KERNELS_X86_TILES_H
#define NEAP_KERNELS_X86_TILES_H

#include <immintrin.h>
#include <stdint.h>

typedef struct __attribute__((packed)) tile_shapes {
    uint8_t palette, start_row, zero[14]; /* palette 1 */
    uint16_t bytes[16];                   /* of a row */
    uint8_t rows[16];
} tile_shapes;
_Static_assert(sizeof(tile_shapes) == 64, "layout of the instruction");

/* The intrinsic tells some compilers (GCC 12) that eight bytes are read: the others might be stored too late. */
static inline void tiles_load_shapes(const tile_shapes *s) {
    __asm__ volatile("" : : "r"(s) : "memory");
    _tile_loadconfig(s);
}

#endif
