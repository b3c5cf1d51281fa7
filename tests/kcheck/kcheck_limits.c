/* The limits that kernels are compared with (kernels/peak.h has the loops), and weights that lie in no cache.
 *
 *   memory    reading a block larger than the caches, in huge pages, in all ways of peak.h
 *   cache     reading as many bytes as the kernel does again and again: whichever cache holds them
 *   multiply  the multiply-adds of the kind that the kernel uses, of its instruction set
 *   cycle     a third of a chain of 64-bit multiplications, whose latency is 3 on every x86 of the last fifteen years
 *
 * Kernel and limits are timed in turns and each keeps its minimum. The memory limit reads as much at a time as the
 * kernel does: a long read meets more disturbances than a short one. Copies of weights and what the memory limit reads
 * are the two halves of one block: the same pages, and neither brings the other's bytes into a cache.
 *
 * The family `peak` prints the limits: kcheck --bench --only=peak. */
#include "kcheck_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "neap.h"

enum { HUGE_PAGE = 2 << 20 };

static struct {
    char *memory; /* NULL: not yet asked for */
    int64_t bytes, at;
    uint64_t sink;
    float sink_float;
} block;

double kc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* So large that between two uses of a byte lies everything else. */
static void make_block(void) {
    if (block.memory) return;
    block.bytes = (int64_t)neap_limits_memory();
    void *p = mmap(NULL, (size_t)block.bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "kcheck: no %lld bytes of memory\n", (long long)block.bytes);
        exit(2);
    }
    block.memory = (char *)p + (-(uintptr_t)p & (HUGE_PAGE - 1));
    (void)madvise(block.memory, (size_t)block.bytes, MADV_HUGEPAGE);
    memset(block.memory, 1, (size_t)block.bytes);
}

const void *kc_far_block(int64_t *bytes) {
    make_block();
    *bytes = block.bytes;
    return block.memory;
}

static void keep_least(double *least, double value) {
    if (value < *least) *least = value;
}

static void read_memory(kc_limits *l, const kc *c, double wanted) {
    make_block();
    int64_t bytes = wanted < 1 << 20 ? 1 << 20 : wanted > 64 << 20 ? 64 << 20 : (int64_t)wanted / 256 * 256;
    for (int way = 0; way < NEAP_PEAK_READS; way++) {
        if (block.at < block.bytes / 2 || block.at + bytes > block.bytes) block.at = block.bytes / 2;
        double start = kc_now();
        block.sink += c->peaks.read(block.memory + block.at, bytes, way);
        keep_least(&l->memory, (kc_now() - start) / (double)bytes);
        block.at += bytes;
    }
}

static void read_near(kc_limits *l, const kc *c, double wanted) {
    make_block();
    int64_t bytes = wanted < 4096 ? 4096 : wanted > 64 << 20 ? 64 << 20 : (int64_t)wanted / 256 * 256, n = 1;
    if (l->turns == 0) block.sink += c->peaks.read(block.memory, bytes, 0); /* into the cache */
    if (bytes < 1 << 22) n = (1 << 22) / bytes;
    double start = kc_now();
    for (int64_t i = 0; i < n; i++) block.sink += c->peaks.read(block.memory, bytes, l->turns % 2);
    keep_least(&l->near, (kc_now() - start) / (double)(bytes * n));
}

static void multiply(double *least, const kc *c, neap_peak_kind kind) {
    for (int i = 0; i < 2; i++) {
        double start = kc_now(), seconds, done = 0;
        do {
            done += (double)c->peaks.multiply[kind](1 << 23, &block.sink_float);
            seconds = kc_now() - start;
        } while (seconds < 2e-4);
        keep_least(least, seconds / done);
    }
}

static void count_cycles(kc_limits *l) {
    enum { CHAIN = 100000, LATENCY = 3 };
    uint64_t x = block.sink | 1;
    double start = kc_now();
    for (int i = 0; i < CHAIN; i++) {
        x *= UINT64_C(0x9e3779b97f4a7c15);
        __asm__ volatile("" : "+r"(x));
    }
    keep_least(&l->cycle, (kc_now() - start) / (CHAIN * LATENCY));
    block.sink += x;
}

void kc_limits_begin(kc_limits *l) { *l = (kc_limits){.memory = 1, .near = 1, .multiply = 1, .fma = 1, .cycle = 1}; }

void kc_limits_turn(kc_limits *l, const kc *c, double bytes, bool is_cold) {
    if (bytes > 0 && is_cold) read_memory(l, c, bytes);
    if (bytes > 0 && !is_cold) read_near(l, c, c->region > 0 ? c->region : bytes);
    multiply(&l->multiply, c, c->maths);
    if (c->maths == NEAP_PEAK_FMA)
        l->fma = l->multiply;
    else
        multiply(&l->fma, c, NEAP_PEAK_FMA);
    count_cycles(l);
    l->turns++;
}

/* ---- weights that come from memory ---- */

void kc_cold(kc *c, void *pointer, int64_t bytes) {
    if (c->n_cold == KC_COLD_MAX || bytes == 0) return;
    c->cold[c->n_cold].pointer = pointer;
    memcpy(&c->cold[c->n_cold].original, pointer, sizeof(void *));
    c->cold[c->n_cold++].bytes = bytes;
}

static int64_t cold_stride(const kc *c) {
    int64_t stride = 0;
    for (int i = 0; i < c->n_cold; i++) stride += (c->cold[i].bytes + 255) / 256 * 256;
    return stride;
}

int64_t kc_cold_fill(kc *c) {
    if (c->n_cold == 0) return 0;
    make_block();
    int64_t n = block.bytes / 2 / cold_stride(c);
    char *to = block.memory;
    for (int64_t copy = 0; copy < n; copy++)
        for (int i = 0; i < c->n_cold; i++) {
            memcpy(to, c->cold[i].original, (size_t)c->cold[i].bytes);
            to += (c->cold[i].bytes + 255) / 256 * 256;
        }
    return n;
}

void kc_cold_use(kc *c, int64_t copy) {
    const char *from = block.memory + (copy < 0 ? 0 : copy * cold_stride(c));
    for (int i = 0; i < c->n_cold; i++) {
        const void *p = copy < 0 ? c->cold[i].original : from;
        memcpy(c->cold[i].pointer, &p, sizeof p);
        from += (c->cold[i].bytes + 255) / 256 * 256;
    }
}

/* ---- the family `peak` ---- */

static void check_peak(kc *c) {
    for (int i = 0; i < NEAP_PEAKS; i++) {
        if (!c->k.peaks.multiply[i]) continue;
        if (!kc_begin(c, "multiply %d", i)) continue;
        float sink = 0;
        for (int64_t n = 1; n < 100000; n *= 10)
            if (c->k.peaks.multiply[i](n, &sink) < n) kc_fail(c, "fewer multiply-adds than asked for");
        kc_end(c);
    }
    kc_begin(c, "read");
    enum { READ = 600 << 10 };
    const char *p = kc_bytes(c, READ);
    for (int way = 1; way < NEAP_PEAK_READS; way++)
        if (c->k.peaks.read(p, READ, way) != c->k.peaks.read(p, READ, 0)) kc_fail(c, "read is not the same");
    kc_end(c);
}

typedef struct peak_run {
    int kind;
    int64_t bytes;
} peak_run;

static void time_multiply(const kc *c, void *args) {
    block.sink_float += (float)c->k.peaks.multiply[((peak_run *)args)->kind](1 << 24, &block.sink_float);
}
static void time_read(const kc *c, void *args) {
    int64_t bytes = ((peak_run *)args)->bytes;
    if (block.at + bytes > block.bytes) block.at = 0;
    block.sink += c->k.peaks.read(block.memory + block.at, bytes, bytes > 1 << 22 ? 2 : 0);
    if (bytes > 1 << 22) block.at += bytes;
}

static void bench_peak(kc *c) {
#define TEXT(name, text) text,
    static const char *const names[] = {NEAP_PEAK_MAP(TEXT)};
#undef TEXT
    static const struct {
        const char *label;
        int64_t bytes;
    } reads[] = {{"read 16 KiB", 16 << 10}, {"read 512 KiB", 512 << 10}, {"read memory", 32 << 20}};
    bool is_roofline = c->is_roofline;
    kc_begin(c, "bench");
    make_block();
    c->is_roofline = false; /* these are the limits */
    for (int i = 0; i < 3; i++) {
        peak_run run = {0, reads[i].bytes};
        block.at = 0;
        kc_bench(c, reads[i].label, time_read, &run, (double)run.bytes, 0);
    }
    for (int i = 0; i < NEAP_PEAKS; i++) {
        peak_run run = {i, 0};
        if (c->k.peaks.multiply[i]) kc_bench(c, names[i], time_multiply, &run, 0, 1 << 24);
    }
    c->is_roofline = is_roofline;
}

const kc_family_tests neap_kc_peak = {check_peak, bench_peak};
