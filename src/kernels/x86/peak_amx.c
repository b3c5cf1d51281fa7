/* Peaks of AMX: products of 16 x 16 tiles, four sums, operands that stay in their registers. See kernels/peak.h. */
#include "kernels/x86/peak_vec.h"
#include "kernels/x86/tiles.h"

static void peak_tiles(void) {
    tile_shapes s;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int i = 0; i < 8; i++) s.bytes[i] = 64, s.rows[i] = 16;
    tiles_load_shapes(&s);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

static int64_t tile16(int64_t n, float *sink) {
    int64_t rounds = n / (4 * 16 * 16 * 32) + 1;
    peak_tiles();
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    *sink += 1;
    return rounds * 4 * 16 * 16 * 32;
}

static int64_t tile8(int64_t n, float *sink) {
    int64_t rounds = n / (4 * 16 * 16 * 64) + 1;
    peak_tiles();
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_release();
    *sink += 1;
    return rounds * 4 * 16 * 16 * 64;
}

void neap_peak_amx_init(neap_kernels *k) {
    peak_fill(k);
    k->peaks.multiply[NEAP_PEAK_TILE16] = tile16;
    k->peaks.multiply[NEAP_PEAK_TILE8] = tile8;
}
