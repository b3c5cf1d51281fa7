/* What steps did, op by op: a text file of hashes, and a Chrome trace of times; see watch.h.
 *
 * Hashes go out as they come, a line for each op of each step: step, op, phase, layer, name, hash. The order is that of
 * capture, whether plans are replayed or ops run eagerly and with any number of threads, so that two runs can be
 * compared with diff.
 *
 * Of the times only the last steps are kept: one that read a prompt and a few that decoded. The trace has a row for
 * each worker with its ops, and two rows above them: steps, and phases from the first worker's begin to the last
 * one's end, so that what workers wait for each other can be seen.
 *
 * Called through session.c by run and bench. Owns its files and the kept records. */
#include "watch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "buffer.h"
#include "json_out.h"
#include "report.h"

enum { KEPT = 5, NAME_MAX_BYTES = 40, ROW_STEPS = 1000001, ROW_PHASES = 1000002 }; /* kept: [0] prompt, others decode */

typedef struct record {
    char name[NAME_MAX_BYTES];
    neap_op_record r; /* its name is not valid any more */
    int32_t part;     /* of a step that ran two plans at the same time: 0, 1 */
} record;

typedef struct kept_step {
    record *records;
    size_t n, capacity;
    uint64_t step, rows;
} kept_step;

struct neap_cli_watch {
    const char *trace_path, *hash_path;
    FILE *hashes;
    kept_step kept[KEPT];
    kept_step *now; /* being filled; NULL: times are not wanted */
    int32_t i_decode;
    uint64_t step, rows, prompt_tokens; /* the engine's counts so far */
    int32_t last_op, part;
};

/* Also under two names, where it exists. */
static int is_same_file(const char *a, const char *b) {
    struct stat x, y;
    if (strcmp(a, b) == 0) return 1;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int neap_cli_watch_open(neap_cli_watch **out, const neap_cli_options *o) {
    *out = NULL;
    if (o->trace == NULL && o->hashes == NULL) return NEAP_EXIT_OK;
    if (o->trace != NULL && o->plan != NULL && strcmp(o->plan, "off") == 0) {
        neap_cli_error("--trace shows replayed plans, --plan off has no times to show");
        return NEAP_EXIT_USAGE;
    }
    int code = o->trace != NULL ? neap_cli_check_overwrite(o->trace) : NEAP_EXIT_OK;
    if (code == NEAP_EXIT_OK && o->hashes != NULL) code = neap_cli_check_overwrite(o->hashes);
    if (code == NEAP_EXIT_OK && o->trace != NULL && o->hashes != NULL && is_same_file(o->trace, o->hashes)) {
        neap_cli_error("--trace and --hashes cannot both be written to %s", o->trace);
        return NEAP_EXIT_USAGE;
    }
    if (code != NEAP_EXIT_OK) return code;
    neap_cli_watch *w = neap_cli_alloc(1, sizeof *w);
    w->trace_path = o->trace;
    w->hash_path = o->hashes;
    if (o->hashes != NULL) {
        w->hashes = fopen(o->hashes, "w");
        if (w->hashes == NULL) {
            neap_cli_error("%s: %s", o->hashes, strerror(errno));
            free(w);
            return NEAP_EXIT_USAGE;
        }
    }
    *out = w;
    return NEAP_EXIT_OK;
}

void neap_cli_watch_prepare(const neap_cli_watch *w, neap_engine_options *e) {
    if (w == NULL) return;
    e->enable_trace = w->trace_path != NULL;
    e->enable_hash = w->hash_path != NULL;
}

static void take_record(void *user, const neap_op_record *r) {
    neap_cli_watch *w = user;
    if (r->worker == 0) {
        if (r->op <= w->last_op) w->part++;
        w->last_op = r->op;
        if (w->hashes != NULL)
            (void)fprintf(w->hashes, "%" PRIu64 " %d %d %d %s %016" PRIx64 "\n", w->step, r->op, r->phase, r->layer,
                          r->name, r->hash);
    }
    if (w->now == NULL || r->end_ns == 0) return;
    kept_step *k = w->now;
    if (k->n == k->capacity) {
        k->capacity = k->capacity * 2 + 256;
        k->records = neap_cli_grow(k->records, k->capacity, sizeof *k->records);
    }
    record *kept = &k->records[k->n++];
    *kept = (record){.r = *r, .part = w->part};
    snprintf(kept->name, sizeof kept->name, "%s", r->name);
}

neap_status neap_cli_watch_step(neap_cli_watch *w, const neap_engine *e) {
    if (w == NULL) return NEAP_OK;
    neap_engine_stats stats = {.struct_size = sizeof stats};
    neap_status status = neap_engine_statistics(e, &stats);
    if (status != NEAP_OK || stats.steps == w->step) return status; /* nothing ran */
    int reads_prompt = stats.prompt_tokens != w->prompt_tokens;
    w->now = NULL;
    if (w->trace_path != NULL) {
        w->now = &w->kept[reads_prompt ? 0 : 1 + w->i_decode++ % (KEPT - 1)];
        w->now->n = 0;
        w->now->step = stats.steps;
        w->now->rows = stats.rows - w->rows;
    }
    w->step = stats.steps;
    w->rows = stats.rows;
    w->prompt_tokens = stats.prompt_tokens;
    w->last_op = -1;
    w->part = 0;
    return neap_engine_trace(e, take_record, w);
}

/* ---- the trace ---- */

static void event_open(neap_cli_text *t, const char *name, const char *kind, int64_t begin, int64_t end, int64_t row) {
    neap_cli_json_open(t, NULL, '{');
    neap_cli_json_cstring(t, "name", name);
    neap_cli_json_cstring(t, "cat", kind);
    neap_cli_json_cstring(t, "ph", "X");
    neap_cli_json_real(t, "ts", (double)begin * 1e-3, 15); /* microseconds */
    neap_cli_json_real(t, "dur", (double)(end - begin) * 1e-3, 15);
    neap_cli_json_int(t, "pid", 1);
    neap_cli_json_int(t, "tid", row);
    neap_cli_json_open(t, "args", '{');
}

static void event_close(neap_cli_text *t) {
    neap_cli_json_close(t, '}');
    neap_cli_json_close(t, '}');
}

static void row_name(neap_cli_text *t, int64_t row, const char *name, int64_t place) {
    for (int i = 0; i < 2; i++) {
        neap_cli_json_open(t, NULL, '{');
        neap_cli_json_cstring(t, "name", i == 0 ? "thread_name" : "thread_sort_index");
        neap_cli_json_cstring(t, "ph", "M");
        neap_cli_json_int(t, "pid", 1);
        neap_cli_json_int(t, "tid", row);
        neap_cli_json_open(t, "args", '{');
        if (i == 0)
            neap_cli_json_cstring(t, "name", name);
        else
            neap_cli_json_int(t, "sort_index", place);
        event_close(t);
    }
}

static void one_op(neap_cli_text *t, const record *k, int64_t zero) {
    event_open(t, k->name, "op", k->r.begin_ns - zero, k->r.end_ns - zero, k->r.worker);
    neap_cli_json_int(t, "op", k->r.op);
    neap_cli_json_int(t, "phase", k->r.phase);
    neap_cli_json_int(t, "layer", k->r.layer);
    neap_cli_json_int(t, "stream", k->r.stream);
    event_close(t);
}

/* Records of a step are in order of phases. */
static void phases(neap_cli_text *t, const kept_step *s, int64_t zero) {
    for (size_t i = 0, n; i < s->n; i += n) {
        const record *first = &s->records[i];
        int64_t begin = first->r.begin_ns, end = first->r.end_ns;
        for (n = 0;
             i + n < s->n && s->records[i + n].r.phase == first->r.phase && s->records[i + n].part == first->part;
             n++) {
            const neap_op_record *r = &s->records[i + n].r;
            if (r->begin_ns < begin) begin = r->begin_ns;
            if (r->end_ns > end) end = r->end_ns;
        }
        char name[64];
        snprintf(name, sizeof name, "phase %d", first->r.phase);
        event_open(t, name, "phase", begin - zero, end - zero, ROW_PHASES + first->part);
        neap_cli_json_int(t, "layer", first->r.layer);
        event_close(t);
    }
}

static void span(const kept_step *s, int64_t *begin, int64_t *end) {
    for (size_t i = 0; i < s->n; i++) {
        if (i == 0 || s->records[i].r.begin_ns < *begin) *begin = s->records[i].r.begin_ns;
        if (i == 0 || s->records[i].r.end_ns > *end) *end = s->records[i].r.end_ns;
    }
}

static void trace_text(const neap_cli_watch *w, neap_cli_text *t) {
    int64_t zero = INT64_MAX, n_workers = 0, n_parts = 0;
    for (int i = 0; i < KEPT; i++) {
        int64_t begin = INT64_MAX, end = 0;
        span(&w->kept[i], &begin, &end);
        if (begin < zero) zero = begin;
        for (size_t k = 0; k < w->kept[i].n; k++) {
            if (w->kept[i].records[k].r.worker >= n_workers) n_workers = w->kept[i].records[k].r.worker + 1;
            if (w->kept[i].records[k].part >= n_parts) n_parts = w->kept[i].records[k].part + 1;
        }
    }
    neap_cli_json_open(t, NULL, '{');
    neap_cli_json_cstring(t, "displayTimeUnit", "ns");
    neap_cli_json_open(t, "traceEvents", '[');
    row_name(t, ROW_STEPS, "steps", 0);
    for (int64_t i = 0; i < n_parts; i++)
        row_name(t, ROW_PHASES + i, i == 0 ? "phases" : "phases of the other plan", 1 + i);
    for (int64_t i = 0; i < n_workers; i++) {
        char name[40];
        snprintf(name, sizeof name, "worker %d", (int)i);
        row_name(t, i, name, 10 + i);
    }
    for (int i = 0; i < KEPT; i++) {
        const kept_step *s = &w->kept[i];
        int64_t begin = 0, end = 0;
        if (s->n == 0) continue;
        span(s, &begin, &end);
        event_open(t, i == 0 ? "prompt step" : "decode step", "step", begin - zero, end - zero, ROW_STEPS);
        neap_cli_json_uint(t, "step", s->step);
        neap_cli_json_uint(t, "rows", s->rows);
        event_close(t);
        phases(t, s, zero);
        for (size_t k = 0; k < s->n; k++) one_op(t, &s->records[k], zero);
    }
    neap_cli_text_puts(t, "]}\n");
}

int neap_cli_watch_close(neap_cli_watch *w, int code) {
    if (w == NULL) return code;
    if (w->hashes != NULL) {
        errno = 0;
        int is_bad = fflush(w->hashes) != 0 || ferror(w->hashes), reason = errno;
        if (fclose(w->hashes) != 0 && !is_bad) is_bad = 1, reason = errno;
        if (is_bad && code == NEAP_EXIT_OK) {
            neap_cli_error("%s: could not be written: %s", w->hash_path, strerror(reason != 0 ? reason : EIO));
            code = NEAP_EXIT_RESOURCE;
        }
    }
    if (w->trace_path != NULL && (code == NEAP_EXIT_OK || code > 128)) { /* a signal keeps what was traced until then */
        neap_cli_text t = {0};
        trace_text(w, &t);
        int written = neap_cli_write_file(w->trace_path, t.data, t.n);
        if (written != NEAP_EXIT_OK) code = written;
        neap_cli_text_free(&t);
    }
    for (int i = 0; i < KEPT; i++) free(w->kept[i].records);
    free(w);
    return code;
}
