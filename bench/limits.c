/* What this machine can do at best, to compare speeds with: memory read in GB/s and float32 multiply-adds in GFLOP/s,
 * for 1 thread and for all. Best of many short slices, so that other load on the machine (mostly) drops out.
 *
 *   cc -O2 -pthread bench/limits.c -o limits && ./limits [THREADS] [SLICES]
 *
 * Stands alone: nothing of neap is used. x86-64 with AVX2 or AVX-512; vector code is chosen at run time. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_BYTES = 8 << 20, FMA_ROUNDS = 200000, CHAINS = 12 };

typedef struct job {
    pthread_barrier_t *barrier;
    const char *bytes; /* SLICE_BYTES to read; NULL: multiply */
    double begin, end;
} job;

static volatile uint64_t sink_int;
static volatile float sink_float;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

__attribute__((target("avx2"))) static void read_slice(const char *p) {
    __m256i a[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t i = 0; i < SLICE_BYTES; i += 128)
        for (size_t k = 0; k < 4; k++) a[k] = _mm256_xor_si256(a[k], _mm256_load_si256((const void *)(p + i + 32 * k)));
    a[0] = _mm256_xor_si256(_mm256_xor_si256(a[0], a[1]), _mm256_xor_si256(a[2], a[3]));
    sink_int = (uint64_t)_mm256_extract_epi64(a[0], 0);
}

__attribute__((target("avx2,fma"))) static void fma_avx2(void) {
    __m256 x[CHAINS], m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-4f);
    for (int i = 0; i < CHAINS; i++) x[i] = _mm256_set1_ps(1e-3f * (float)i);
    for (int k = 0; k < FMA_ROUNDS; k++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = _mm256_fmadd_ps(x[i], m, c);
    for (int i = 1; i < CHAINS; i++) x[0] = _mm256_add_ps(x[0], x[i]);
    sink_float = _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f"))) static void fma_avx512(void) {
    __m512 x[CHAINS], m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-4f);
    for (int i = 0; i < CHAINS; i++) x[i] = _mm512_set1_ps(1e-3f * (float)i);
    for (int k = 0; k < FMA_ROUNDS; k++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = _mm512_fmadd_ps(x[i], m, c);
    for (int i = 1; i < CHAINS; i++) x[0] = _mm512_add_ps(x[0], x[i]);
    sink_float = _mm512_cvtss_f32(x[0]);
}

static void *work(void *arg) {
    job *j = arg;
    pthread_barrier_wait(j->barrier);
    j->begin = now();
    if (j->bytes)
        read_slice(j->bytes);
    else if (__builtin_cpu_supports("avx512f"))
        fma_avx512();
    else
        fma_avx2();
    j->end = now();
    return NULL;
}

/* Seconds from the first start to the last end; buffer NULL: multiply. */
static double slice(int n_threads, const char *buffer, size_t n_slices, size_t at) {
    pthread_t threads[256];
    job jobs[256];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        jobs[i] = (job){.barrier = &barrier};
        if (buffer) jobs[i].bytes = buffer + (at + (size_t)i) % n_slices * SLICE_BYTES;
        if (pthread_create(&threads[i], NULL, work, &jobs[i]) != 0) exit(1);
    }
    for (int i = 0; i < n_threads; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    double begin = jobs[0].begin, end = jobs[0].end;
    for (int i = 1; i < n_threads; i++) {
        begin = jobs[i].begin < begin ? jobs[i].begin : begin;
        end = jobs[i].end > end ? jobs[i].end : end;
    }
    return end - begin;
}

int main(int argc, char **argv) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int all = argc > 1 ? atoi(argv[1]) : (int)(cpus < 256 ? cpus : 256), rounds = argc > 2 ? atoi(argv[2]) : 200;
    size_t n_slices = 128; /* 1 GiB: larger than most caches */
    if (all < 1 || all > 256 || rounds < 1 || !__builtin_cpu_supports("avx2")) {
        fprintf(stderr, "limits [THREADS 1..256] [SLICES]; needs AVX2\n");
        return 2;
    }
    size_t huge = 2u << 20;
    char *mapped =
        mmap(NULL, n_slices * SLICE_BYTES + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 1;
    char *buffer = (char *)(((uintptr_t)mapped + huge - 1) & ~(uintptr_t)(huge - 1));
    (void)madvise(buffer, n_slices * SLICE_BYTES, MADV_HUGEPAGE);
    memset(buffer, 1, n_slices * SLICE_BYTES);
    double width = __builtin_cpu_supports("avx512f") ? 16 : 8;
    for (int n = 1;; n = all) {
        double least_read = 1e9, least_fma = 1e9;
        for (int r = 0; r < rounds; r++) {
            double t = slice(n, buffer, n_slices, (size_t)r * (size_t)n), u = slice(n, NULL, 0, 0);
            least_read = t < least_read ? t : least_read;
            least_fma = u < least_fma ? u : least_fma;
        }
        printf("%d thread%s: read %.1f GB/s, float32 %.1f GFLOP/s (%s)\n", n, n == 1 ? "" : "s",
               (double)n * SLICE_BYTES / least_read / 1e9, 2.0 * n * width * CHAINS * FMA_ROUNDS / least_fma / 1e9,
               width > 8 ? "avx512" : "avx2");
        if (n == all) break;
    }
    return 0;
}
