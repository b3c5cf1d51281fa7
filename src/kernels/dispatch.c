/* Fills the kernel table: scalar first, then every variant whose needs are met, in the order of families.h
 * (narrow to wide), so the last one that fits stays.
 *
 * The table is filled once per engine and then const; a call costs one indirect jump. */
#include "kernels/families.h"

#include <string.h>

void neap_kernels_init(neap_kernels *k, uint32_t flags) {
    memset(k, 0, sizeof *k);
    k->flags = flags;
#define OVERLAY(family, isa, needs) \
    if ((flags & (needs)) == (needs)) neap_##family##_##isa##_init(k);
    NEAP_ALL_VARIANTS(OVERLAY)
    NEAP_PEAK_VARIANTS(OVERLAY)
#undef OVERLAY
}

static void widen(const char **name, uint32_t *widest, uint32_t flags, uint32_t needs, const char *isa) {
    if ((flags & needs) != needs || needs <= *widest) return;
    *name = isa;
    *widest = needs;
}

const char *neap_kernels_level(uint32_t flags) {
    const char *name = "scalar";
    uint32_t widest = 0;
#define WIDEST(family, isa, needs) widen(&name, &widest, flags, needs, #isa);
    NEAP_ALL_VARIANTS(WIDEST)
#undef WIDEST
    return name;
}
