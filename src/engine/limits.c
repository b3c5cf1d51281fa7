/* The limits of this machine under a number of threads: reading memory, and multiply-adds of three kinds.
 *
 * All workers do the same at the same time, in slices of about a millisecond; a round takes from the first beginning to
 * the last end. The best round counts, and the kinds take turns: other programs slow down some rounds, seldom
 * all. Each worker reads a part of its own that it wrote itself, so that the pages lie where it runs.
 *
 * Where one core is busy with something else, all workers may stay on the others; neighbouring processors may be one
 * core or two. So workers run free, then each on a processor of its own, counted from the first, then spread out.
 *
 * Owns its memory and its team; both are gone when it returns. */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "runtime/team.h"

enum { SLICE_BYTES = 8 << 20, KINDS = 3 };
/* Some tenths of a millisecond each. */
static const int64_t slice_multiply_adds[NEAP_PEAKS] = {
    [NEAP_PEAK_FMA] = 1 << 25,  [NEAP_PEAK_DOT16] = 1 << 26,  [NEAP_PEAK_DOT8] = 1 << 27,
    [NEAP_PEAK_BF16] = 1 << 26, [NEAP_PEAK_TILE16] = 1 << 28, [NEAP_PEAK_TILE8] = 1 << 29};

typedef struct worker {
    double begin, end, done;
    float sink;
    uint64_t sum;
    char apart[64]; /* of the next worker's numbers */
} worker;

enum { READ = -1, STOP = -2 };
typedef enum placement { FREE, NEXT, SPREAD, PLACEMENTS } placement;
typedef struct job {
    neap_team *team;
    const neap_kernels *k;
    char *memory;
    int64_t part; /* bytes of each worker, a multiple of SLICE_BYTES */
    double seconds, start;
    int kinds[1 + KINDS]; /* READ and neap_peak_kinds; of each its best */
    double best[1 + KINDS];
    int64_t round; /* every kind has its turn in one */
    int turn, kind;
    placement placement;
    worker *workers;
} job;

static void work(const job *j, worker *w, const char *mine) {
    w->begin = neap_clock_seconds();
    if (j->kind == READ) {
        int64_t at = j->round % (j->part / SLICE_BYTES) * SLICE_BYTES;
        w->sum += j->k->peaks.read(mine + at, SLICE_BYTES, (int)(j->round % NEAP_PEAK_READS));
        w->done = SLICE_BYTES;
    } else {
        w->done = (double)j->k->peaks.multiply[j->kind](slice_multiply_adds[j->kind], &w->sink);
    }
    w->end = neap_clock_seconds();
}

/* Between two barriers, by worker 0: what the last turn reached, and what comes next. */
static void turn(job *j) {
    int32_t n = neap_team_size(j->team);
    double begin = j->workers[0].begin, end = j->workers[0].end, done = 0;
    for (int32_t i = 0; i < n; i++) {
        const worker *w = &j->workers[i];
        begin = w->begin < begin ? w->begin : begin;
        end = w->end > end ? w->end : end;
        done += w->done;
    }
    if (end > begin && done / (end - begin) > j->best[j->turn]) j->best[j->turn] = done / (end - begin);
    do {
        if (++j->turn == 1 + KINDS) j->turn = 0, j->round++;
        j->kind = j->kinds[j->turn];
    } while (j->kind == STOP); /* a kind that does not exist */
    if (j->turn == 0 && j->round >= 20 && neap_clock_seconds() - j->start >= j->seconds) j->kind = STOP;
}

/* The calling thread on one of the processors that it may use. */
static void place(placement p, int32_t i, int32_t n) {
    cpu_set_t all, one;
    if (p == FREE || sched_getaffinity(0, sizeof all, &all) != 0) return;
    int count = CPU_COUNT(&all), wanted = p == NEXT ? i % count : (int)((int64_t)i * count / n) % count;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && wanted-- == 0) CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

/* One job for all rounds: a worker that sleeps in between may be woken on the core of another one. */
static void run(void *arg, int32_t i) {
    job *j = arg;
    char *mine = j->memory + i * j->part;
    cpu_set_t before;
    bool is_known = sched_getaffinity(0, sizeof before, &before) == 0;
    if (is_known) place(j->placement, i, neap_team_size(j->team));
    if (j->placement == FREE) memset(mine, 1, (size_t)j->part);
    for (;;) {
        neap_team_barrier(j->team);
        if (j->kind == STOP) break;
        work(j, &j->workers[i], mine);
        neap_team_barrier(j->team);
        if (i == 0) turn(j);
    }
    if (is_known) (void)sched_setaffinity(0, sizeof before, &before);
}

static void measure(job *j, neap_limits *out) {
    static const neap_peak_kind wide[KINDS] = {NEAP_PEAK_FMA, NEAP_PEAK_TILE8, NEAP_PEAK_TILE16};
    static const neap_peak_kind narrow[KINDS] = {NEAP_PEAK_FMA, NEAP_PEAK_DOT8, NEAP_PEAK_BF16};
    j->kinds[0] = READ;
    for (int i = 0; i < KINDS; i++)
        j->kinds[1 + i] = j->k->peaks.multiply[wide[i]]     ? (int)wide[i]
                          : j->k->peaks.multiply[narrow[i]] ? (int)narrow[i]
                                                            : STOP;
    for (int p = FREE; p < PLACEMENTS; p++) {
        j->placement = (placement)p;
        j->kind = READ;
        j->turn = 0;
        j->round = 0;
        j->start = neap_clock_seconds();
        neap_team_run(j->team, neap_team_size(j->team), run, j);
    }
    out->read_bytes = j->best[0];
    out->multiply_adds = j->best[1];
    out->multiply_adds_int8 = j->best[2];
    out->multiply_adds_bf16 = j->best[3];
}

uint64_t neap_limits_memory(void) {
    int64_t cache = (int64_t)sysconf(_SC_LEVEL3_CACHE_SIZE), least = (int64_t)512 << 20, most = (int64_t)1 << 30;
    return (uint64_t)(2 * cache < least ? least : 2 * cache > most ? most : 2 * cache / SLICE_BYTES * SLICE_BYTES);
}

neap_status neap_measure_limits(const char *cpu, int32_t n_threads, double seconds, neap_limits *out) {
    NEAP_CHECK(out != NULL, NEAP_INVALID_ARGUMENT, "the place for the result is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the result is %zu, this library knows %zu", size, sizeof *out);
    NEAP_CHECK(n_threads >= 0 && n_threads <= NEAP_TEAM_MAX, NEAP_INVALID_ARGUMENT,
               "n_threads is %d; allowed is 0 .. %d", n_threads, NEAP_TEAM_MAX);
    NEAP_CHECK(seconds > 0 && seconds <= 60, NEAP_INVALID_ARGUMENT, "seconds is %g; allowed is above 0 .. 60", seconds);
    uint32_t flags;
    NEAP_TRY(neap_cpu_parse(cpu, &flags));
    int32_t n = n_threads > 0 ? n_threads : neap_default_threads();
    int64_t part = (int64_t)neap_limits_memory() / n / SLICE_BYTES * SLICE_BYTES;
    if (part == 0) part = SLICE_BYTES;
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    uint64_t available = neap_memory_available(), bytes = (uint64_t)(part * n);
    NEAP_CHECK(bytes <= available, NEAP_NO_MEMORY, "measuring the limits needs %s of memory, available: %s",
               neap_size_text(bytes, need), neap_size_text(available, have));

    neap_kernels k;
    neap_kernels_init(&k, flags);
    neap_limits l = {.struct_size = size, .n_threads = n};
    job j = {.k = &k, .part = part, .seconds = seconds / PLACEMENTS};
    neap_arena *arena = NULL;
    void *p = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_arena_create(&arena, "limits"));
    NEAP_TRY_GOTO(neap_arena_array(arena, (size_t)n, sizeof(worker), &p));
    j.workers = p;
    NEAP_TRY_GOTO(neap_arena_alloc_raw(arena, bytes, &p));
    j.memory = p;
    NEAP_TRY_GOTO(neap_team_create(&j.team, n, NEAP_PIN_NONE));
    measure(&j, &l);
    neap_team_destroy(j.team);
    memcpy(out, &l, size);
fail:
    neap_arena_destroy(arena);
    return status;
}
