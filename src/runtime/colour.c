/* Places buffers by their lives: see colour.h. */
#include "runtime/colour.h"

neap_status neap_colour(neap_life *lives, int32_t n, bool shares, uint64_t *peak) {
    (void)shares;
    uint64_t end = 0;
    for (int32_t i = 0; i < n; i++) {
        if (lives[i].first > lives[i].last) continue;
        lives[i].offset = end;
        if (__builtin_add_overflow(end, (lives[i].bytes + 63) & ~(uint64_t)63, &end))
            NEAP_FAIL(NEAP_NO_MEMORY, "work region: size overflow");
    }
    *peak = end;
    return NEAP_OK;
}
