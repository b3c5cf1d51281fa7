/* Floors: how fast a case must at least be. One line each, # begins a comment:
 *
 *   limit  0.90 gemm avx2 | bf16 m 1 n 4096 k 7168        its share of the limits (kc_bench) is at least 0.90
 *   fma    1.40 gemm amx | bf16 m 512 n 512 k 2304         its multiply-adds over the float32 peak: at least 1.40
 *   faster 2.0  attn avx2 | gather sorted | gather mixed   the first takes at most half the time of the second
 *   ns     0.6  index avx2 | select warm                   nanoseconds per item (key, row, token): at most 0.6
 *   cycles 2.0  index avx2 | select warm                   the same in clock cycles of this run
 *
 * Shares and cycles hold on every machine of a class, nanoseconds on those that the floor was written for. A floor
 * whose case does not exist fails like one that is missed: a renamed case must not take its floor along. */
#include "kcheck_floors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { RESULTS_MAX = 1024, FLOORS_MAX = 256, LABEL = sizeof((kc_result *)0)->label };
typedef enum floor_kind { FLOOR_LIMIT, FLOOR_FMA, FLOOR_FASTER, FLOOR_NS, FLOOR_CYCLES, FLOOR_KINDS } floor_kind;
static const char *const kind_names[FLOOR_KINDS] = {"limit", "fma", "faster", "ns", "cycles"};

typedef struct floor_line {
    floor_kind kind;
    double value;
    char family[16], isa[16], label[2][LABEL];
} floor_line;

static kc_result results[RESULTS_MAX];
static floor_line floors[FLOORS_MAX];
static int n_results, n_floors;

/* ---- results ---- */

static kc_result *find(const char *family, const char *isa, const char *label) {
    for (int i = 0; i < n_results; i++)
        if (strcmp(results[i].family, family) == 0 && strcmp(results[i].isa, isa) == 0 &&
            strcmp(results[i].label, label) == 0)
            return &results[i];
    return NULL;
}

const kc_result *kc_results_find(const char *family, const char *isa, const char *label) {
    return find(family, isa, label);
}

void kc_results_add(const kc_result *r) {
    kc_result *old = find(r->family, r->isa, r->label);
    if (!old && n_results < RESULTS_MAX) {
        results[n_results++] = *r;
    } else if (old) {
        /* shares are of one run with its own limits, not of the least time over another run's limits */
        double share = old->share > r->share ? old->share : r->share;
        double fma_share = old->fma_share > r->fma_share ? old->fma_share : r->fma_share;
        if (r->seconds < old->seconds) *old = *r;
        old->share = share;
        old->fma_share = fma_share;
    }
}

/* ---- reading ---- */

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

/* NULL: fine; else what is wrong. */
static const char *parse(char *line, floor_line *f) {
    char *parts[3] = {line, strchr(line, '|'), NULL}, kind[16];
    if (!parts[1]) return "there is no | before the label";
    *parts[1]++ = 0;
    parts[2] = strchr(parts[1], '|');
    if (parts[2]) *parts[2]++ = 0;
    int n = 0;
    if (sscanf(line, "%15s %lf %15s %15s%n", kind, &f->value, f->family, f->isa, &n) != 4 || *trim(line + n))
        return "it does not begin with kind, value, family and instruction set";
    int k = 0;
    while (k < FLOOR_KINDS && strcmp(kind, kind_names[k]) != 0) k++;
    if (k == FLOOR_KINDS) return "the kind is none of limit, fma, faster, ns, cycles";
    f->kind = (floor_kind)k;
    if (!(f->value > 0)) return "the value is not above 0";
    if ((parts[2] != NULL) != (k == FLOOR_FASTER)) return "one label, or two for faster";
    for (int i = 0; i < 2 && parts[i + 1]; i++) {
        char *label = trim(parts[i + 1]);
        if (!*label || strlen(label) >= LABEL) return "the label is empty or too long";
        memcpy(f->label[i], label, strlen(label) + 1);
    }
    return NULL;
}

static bool read_file(const char *path) {
    FILE *f = fopen(path, "r");
    char line[256];
    if (!f) {
        fprintf(stderr, "kcheck: cannot read %s\n", path);
        return false;
    }
    bool is_good = true;
    for (int number = 1; is_good && fgets(line, sizeof line, f); number++) {
        char *comment = strchr(line, '#');
        if (comment) *comment = 0;
        if (!*trim(line)) continue;
        const char *error = n_floors == FLOORS_MAX ? "too many floors" : parse(line, &floors[n_floors]);
        if (error) fprintf(stderr, "kcheck: %s:%d: %s\n", path, number, error);
        is_good = error == NULL;
        n_floors += is_good;
    }
    fclose(f);
    return is_good;
}

bool kc_floors_read(const char *path, const char *levels) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return read_file(path);
    for (const char *p = levels; *p; p += *p == ',') {
        char file[1024];
        size_t n = strcspn(p, ",");
        snprintf(file, sizeof file, "%s/%.*s.txt", path, (int)n, p);
        p += n;
        if (stat(file, &st) == 0 && !read_file(file)) return false;
    }
    if (n_floors == 0) fprintf(stderr, "kcheck: %s holds no floors for %s\n", path, levels);
    return n_floors > 0;
}

bool kc_floors_exist(void) { return n_floors > 0; }

/* ---- judging ---- */

/* What was reached; 0: not measured. */
static double reached(const floor_line *f) {
    const kc_result *a = find(f->family, f->isa, f->label[0]), *b = find(f->family, f->isa, f->label[1]);
    if (!a) return 0;
    switch (f->kind) {
    case FLOOR_LIMIT: return a->share;
    case FLOOR_FMA: return a->fma_share;
    case FLOOR_FASTER: return b ? b->seconds / a->seconds : 0;
    case FLOOR_NS: return a->items > 0 ? a->seconds / a->items * 1e9 : 0;
    default: return a->items > 0 && a->cycle > 0 ? a->seconds / a->items / a->cycle : 0;
    }
}

static bool is_held(const floor_line *f) {
    double value = reached(f);
    return value > 0 && (f->kind <= FLOOR_FASTER ? value >= f->value : value <= f->value);
}

bool kc_floors_want(const char *family, const char *isa, const char *label) {
    for (int i = 0; i < n_floors; i++) {
        const floor_line *f = &floors[i];
        if (strcmp(f->family, family) == 0 && strcmp(f->isa, isa) == 0 &&
            (strcmp(f->label[0], label) == 0 || strcmp(f->label[1], label) == 0) && !is_held(f))
            return true;
    }
    return false;
}

int kc_floors_open(const char *family, const char *isa) {
    int n = 0;
    for (int i = 0; i < n_floors; i++)
        n += strcmp(floors[i].family, family) == 0 && strcmp(floors[i].isa, isa) == 0 && !is_held(&floors[i]);
    return n;
}

int kc_floors_judge(bool (*is_chosen)(const char *family, const char *isa)) {
    int missed = 0;
    printf("%-8s %-10s %-48s %-7s %8s %8s\n", "family", "isa", "case", "kind", "floor", "reached");
    for (int i = 0; i < n_floors; i++) {
        const floor_line *f = &floors[i];
        if (!is_chosen(f->family, f->isa)) continue;
        bool is_good = is_held(f);
        double value = reached(f);
        char label[2 * LABEL + 8];
        snprintf(label, sizeof label, "%s%s%s", f->label[0], f->label[1][0] ? " | " : "", f->label[1]);
        printf("%-8s %-10s %-48s %-7s %8.2f %8.2f  %s\n", f->family, f->isa, label, kind_names[f->kind], f->value,
               value,
               is_good     ? "ok"
               : value > 0 ? "MISSED"
                           : "NO SUCH CASE");
        missed += !is_good;
    }
    return missed;
}
