/* kcheck: every kernel variant of this CPU against the scalar definition, bit by bit, and its speed.
 *
 * A family file provides check() and bench(). check() makes inputs with kc_floats and friends, runs the same
 * call through c->ref (scalar) and c->k (the variant under test), and compares with kc_same. Every buffer lies
 * between guard bands that are checked at kc_end; outputs start poisoned, so a value that was not written
 * shows as well. What --bench times is what check() compared: the same table, the same calls. */
#ifndef NEAP_TESTS_KCHECK_H
#define NEAP_TESTS_KCHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/families.h"

enum { KC_COLD_MAX = 4 };
typedef struct kc {
    const char *family, *isa;
    neap_kernels ref, k; /* all scalar; scalar with this family's variant on top */
    uint64_t seed, random;
    char label[160];
    int64_t cases, failures;
    int64_t begun;   /* cases, the skipped ones too */
    char first[400]; /* what differed first */
    bool is_csv, is_roofline;
    bool is_quiet;    /* prints nothing */
    bool is_quick;    /* every sixth case */
    neap_peaks peaks; /* of the instruction set under test, whatever this family has of it */
    /* About the next kc_bench, which sets them back: */
    neap_peak_kind maths; /* the multiply-adds it does; NEAP_PEAK_FMA unless set */
    double items;         /* what a run does of the thing that its time is given for: keys, rows, tokens; 0: nothing */
    double region;        /* its bytes are these again and again (a state), 0: they are different ones */
    bool is_far;          /* its bytes come from memory without kc_cold */
    struct {
        void *pointer;
        const void *original;
        int64_t bytes;
    } cold[KC_COLD_MAX];
    int n_cold;
} kc;

/* How inputs are filled. */
typedef enum kc_fill {
    KC_NORMAL,  /* about a standard normal distribution */
    KC_ZEROS,   /* zeros of both signs */
    KC_EXTREME, /* huge, tiny, subnormal, zero, one */
    KC_BROKEN,  /* normal with NaN and infinities in it */
    KC_FILLS
} kc_fill;

/* Starts a case: forgets all buffers, seeds the random numbers from seed and label. false: leave it out. */
bool kc_begin(kc *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Checks all guard bands of the case. */
void kc_end(kc *c);
/* Buffers of the case. `skew` elements past a 64-byte border (0 = aligned); filled / poisoned. */
float *kc_floats(kc *c, int64_t n, int skew, kc_fill fill);
float *kc_output(kc *c, int64_t n, int skew);
void *kc_bytes(kc *c, int64_t n); /* aligned, poisoned */
float *kc_copy(kc *c, const float *x, int64_t n, int skew);
uint64_t kc_random(kc *c);
int64_t kc_below(kc *c, int64_t n); /* 0 .. n-1 */
/* Bit by bit; NaN equals NaN. */
void kc_same(kc *c, const char *what, const float *got, const float *want, int64_t n);
void kc_fail(kc *c, const char *text); /* the case failed */
void kc_same_bytes(kc *c, const char *what, const void *got, const void *want, int64_t bytes);
/* A packed matrix of random values; storage is poisoned before packing. */
neap_matrix kc_matrix(kc *c, neap_matrix_kind kind, int64_t n, int64_t k, kc_fill fill);

/* Times run(args): best and median; bytes and multiply-adds per call, 0 = not shown. With --roofline also what share of
 * this core's limits that is: the longer of what reading the bytes and doing the multiply-adds takes, over its time.
 * Labels are the names that floor files use; they do not change with what is measured. */
void kc_bench(kc *c, const char *label, void (*run)(const kc *c, void *args), void *args, double bytes, double macs);
/* Does anybody want this case? false: its preparation may be left out, kc_bench would do nothing. */
bool kc_wants(const kc *c, const char *label);
/* For the next kc_bench: before every run the pointer at *pointer moves to another copy of the `bytes` bytes behind it,
 * all copies together larger than the caches: they come from memory, as weights do that are used once a token. */
void kc_cold(kc *c, void *pointer, int64_t bytes);

/* Memory larger than the caches, in huge pages; nothing is promised about what is in it. */
const void *kc_far_block(int64_t *bytes);

/* The second kernel of the kda family (kcheck_kda_chunk.c), called from the first. */
void kc_kda_chunk_check(kc *c);
void kc_kda_chunk_bench(kc *c);

typedef struct kc_family_tests {
    void (*check)(kc *c);
    void (*bench)(kc *c);
} kc_family_tests;
typedef struct kc_variant {
    const char *family, *isa;
    uint32_t needs; /* of the CPU */
    void (*init)(neap_kernels *k);
    const kc_family_tests *tests;
} kc_variant;
int kc_variants(void);
const kc_variant *kc_variant_at(int i);
/* Fills in names and kernels. */
void kc_start(kc *c, const kc_variant *v);
/* Memory for the buffers. */
bool kc_claim(bool is_for_bench);
void kc_release(void);

extern const kc_family_tests neap_kc_gemm, neap_kc_igemm, neap_kc_norm, neap_kc_act, neap_kc_kda, neap_kc_attn,
    neap_kc_index, neap_kc_attnres, neap_kc_route, neap_kc_rope, neap_kc_sample, neap_kc_peak;

#endif
