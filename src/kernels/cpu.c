/* What this machine can run: CPUID for the instructions, XGETBV for the registers that the operating system
 * saves. Both must agree: a kernel that uses registers which are not saved would compute garbage silently.
 *
 * Level        needs
 * avx2         AVX2, FMA, F16C, BMI2; YMM state
 * avxvnni      avx2 and VNNI in 256 bits (client processors without AVX-512)
 * avx512       F, BW, DQ, VL, CD and everything of avx2; ZMM and mask state
 * avx512vnni   avx512 and VNNI          avx512bf16   avx512 and BF16
 * amx          avx512vnni, tiles and their BF16 and 8-bit products; tile state, which Linux grants on request
 *
 * Asked once, on first use. On other architectures there is nothing: the scalar kernels serve. */
#include "kernels/cpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t present;
static char model[64];

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Tile registers are not saved before a process asks for it. The grant holds for all its threads. */
static bool may_use_tiles(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

static bool has(uint32_t reg, int bit) { return reg >> bit & 1; }

static uint32_t ask_flags(void) {
    uint32_t a = 0, b = 0, c = 0, d = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0, b71 = 0, c71 = 0, d71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool is_saved = has(c, 27);                            /* OSXSAVE: xgetbv exists */
    bool has_fma = has(c, 12) && has(c, 29) && has(c, 28); /* FMA, F16C, AVX */
    if (!is_saved || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    uint64_t state = xcr0();
    bool has_ymm = (state & 0x06) == 0x06, has_zmm = (state & 0xe6) == 0xe6;
    uint32_t flags = 0;
    if (has_ymm && has_fma && has(b7, 5) && has(b7, 8)) flags |= NEAP_CPU_AVX2;
    if (flags && has(a71, 4)) flags |= NEAP_CPU_AVXVNNI;
    if (flags && has_zmm && has(b7, 16) && has(b7, 17) && has(b7, 28) && has(b7, 30) && has(b7, 31)) {
        flags |= NEAP_CPU_AVX512; /* F, DQ, CD, BW, VL */
        if (has(c7, 11)) flags |= NEAP_CPU_AVX512VNNI;
        if (has(a71, 5)) flags |= NEAP_CPU_AVX512BF16;
        bool has_tiles = (state & 0x60000) == 0x60000 && has(d7, 22) && has(d7, 24) && has(d7, 25);
        if (has_tiles && has(c7, 11) && may_use_tiles()) flags |= NEAP_CPU_AMX;
    }
    return flags;
}

static void ask_model(void) {
    uint32_t text[12], top, b, c, d;
    if (!__get_cpuid(0x80000000, &top, &b, &c, &d) || top < 0x80000004) return;
    for (uint32_t i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &text[i * 4], &text[i * 4 + 1], &text[i * 4 + 2], &text[i * 4 + 3]);
    const char *from = (const char *)text, *end = from + sizeof text;
    while (from < end && *from == ' ') from++; /* some vendors pad in front */
    size_t n = 0;
    while (from + n < end && from[n]) n++;
    while (n && from[n - 1] == ' ') n--;
    memcpy(model, from, n);
    model[n] = 0;
}
#else
static uint32_t ask_flags(void) { return 0; }
static void ask_model(void) {}
#endif

static void ask(void) {
    present = ask_flags();
    ask_model();
    if (!model[0]) snprintf(model, sizeof model, "unknown CPU");
}

uint32_t neap_cpu_flags(void) {
    pthread_once(&once, ask);
    return present;
}

const char *neap_cpu_model(void) {
    pthread_once(&once, ask);
    return model;
}

static const struct level {
    const char *name;
    uint32_t flag;
} levels[] = {{"scalar", 0},
#define LEVEL(name, text, bit) {text, bit},
              NEAP_CPU_MAP(LEVEL)
#undef LEVEL
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

neap_status neap_cpu_parse(const char *text, uint32_t *flags) {
    uint32_t here = neap_cpu_flags(), wanted = 0;
    if (!text || strcmp(text, "auto") == 0) {
        *flags = here;
        return NEAP_OK;
    }
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        int i = 0;
        while (i < N_LEVELS && !(strlen(levels[i].name) == n && memcmp(levels[i].name, p, n) == 0)) i++;
        NEAP_CHECK(i < N_LEVELS, NEAP_INVALID_ARGUMENT,
                   "cpu: unknown level \"%.*s\" (auto, or a list of scalar, avx2, avxvnni, avx512, avx512vnni, "
                   "avx512bf16, amx)",
                   (int)(n < 40 ? n : 40), p);
        NEAP_CHECK((levels[i].flag & ~here) == 0, NEAP_UNSUPPORTED, "cpu: this machine has no %s", levels[i].name);
        wanted |= levels[i].flag;
        p += n;
        if (!*p) break;
    }
    *flags = wanted;
    return NEAP_OK;
}

void neap_cpu_text(uint32_t flags, char *text, size_t capacity) {
    size_t at = 0;
    if (capacity) text[0] = 0;
    for (int i = 1; i < N_LEVELS; i++)
        if (flags & levels[i].flag && at < capacity) {
            int n = snprintf(text + at, capacity - at, "%s%s", at ? " " : "", levels[i].name);
            at += n > 0 ? (size_t)n : 0;
        }
    if (!at && capacity) snprintf(text, capacity, "scalar");
}
