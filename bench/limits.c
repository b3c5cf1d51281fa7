/* What this machine can do at best, to compare speeds with: memory read, and multiply-adds of float32, 8 bits and BF16,
 * for 1 thread and for all. The measuring is the library's (neap_measure_limits), as `neap bench` uses it.
 *
 *   cmake --build build --target limits && build/limits [THREADS] [SECONDS] */
#include <stdio.h>
#include <stdlib.h>

#include "neap.h"

int main(int argc, char **argv) {
    int all = argc > 1 ? atoi(argv[1]) : neap_default_threads();
    double seconds = argc > 2 ? atof(argv[2]) : 2;
    for (int n = 1;; n = all) {
        neap_limits l = {.struct_size = sizeof l};
        if (neap_measure_limits(NULL, n, seconds, &l) != NEAP_OK) {
            fprintf(stderr, "limits [THREADS] [SECONDS]: %s\n", neap_last_error());
            return 2;
        }
        printf("%d thread%s: read %.1f GB/s, float32 %.1f GFLOP/s (%.1f GMAC/s), 8 bits %.1f GMAC/s, "
               "BF16 %.1f GMAC/s\n",
               n, n == 1 ? "" : "s", l.read_bytes * 1e-9, 2e-9 * l.multiply_adds, l.multiply_adds * 1e-9,
               l.multiply_adds_int8 * 1e-9, l.multiply_adds_bf16 * 1e-9);
        if (n == all) return 0;
    }
}
