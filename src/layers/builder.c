/* Plan building: buffers, ops that wait for the end of their phase, streams, taps.
 *
 * One builder serves three kinds of run. Dry: buffers are addresses that nobody owns, ops are only looked at
 * (layout.c). Real: ops enter a plan. Eager: a phase is carried out as soon as the next one begins, op by op.
 *
 * Called by the layers' emit functions and engine/forward_plan.c. Owns nothing; arguments are copied. */
#include "layers/builder.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void *take(neap_builder *b, int64_t n, int64_t size) {
    neap_builder_state *s = &b->s;
    uint64_t bytes = ((uint64_t)n * (uint64_t)size + 63) & ~(uint64_t)63;
    if (!b->work) return neap_layout_buffer(b->layout, bytes);
    const neap_life *lives;
    int32_t n_lives = neap_layout_buffers(b->layout, &lives), i = s->i_buffer++;
    assert(i < n_lives && lives[i].bytes == bytes);
    (void)n_lives;
    return b->work + lives[i].offset;
}

float *neap_builder_floats(neap_builder *b, int64_t n) { return take(b, n, sizeof(float)); }
int32_t *neap_builder_ints(neap_builder *b, int64_t n) { return take(b, n, sizeof(int32_t)); }

neap_counter *neap_builder_counters(neap_builder *b, int64_t n) {
    if (!b->work) {
        neap_layout_add_counters(b->layout, n);
        return NULL;
    }
    neap_counter *c = b->counters + b->s.i_counter;
    b->s.i_counter += (int32_t)n;
    assert(b->s.i_counter <= neap_layout_counters(b->layout));
    return c;
}

bool neap_arrive(neap_counter *c, int32_t n, int32_t all) {
    if (atomic_fetch_add_explicit(c, n, memory_order_acq_rel) + n < all) return false;
    atomic_store_explicit(c, 0, memory_order_relaxed); /* the next phase's barrier publishes it */
    return true;
}

void neap_builder_begin(neap_builder *b) {
    static const neap_batch none;
    if (!b->batch) b->batch = &none; /* a dry run: arguments may point into it */
    b->gemm_scratch =
        (char *)neap_builder_floats(b, (int64_t)b->n_workers * (NEAP_GEMM_SCRATCH / (int64_t)sizeof(float)));
}

/* ---- phases ---- */

static void run_eagerly(neap_builder *b, const neap_op *op, int32_t i) {
    int32_t size = neap_team_size(b->eager);
    neap_op_run(op, b->eager, b->n_eager);
    if (b->trace && b->trace->hashes) b->trace->hashes[i] = neap_op_hash(op);
    if (b->trace && b->trace->times)
        memset(b->trace->times + (int64_t)i * size, 0, (size_t)size * sizeof(neap_op_time));
}

static void flush(neap_builder *b) {
    neap_builder_state *s = &b->s;
    int32_t first = b->n_ops - s->n_pending;
    for (int32_t i = 0; i < s->n_pending && b->status == NEAP_OK; i++) {
        neap_op *op = &s->pending[i].op;
        op->args = s->pending[i].args;
        if (b->eager) {
            run_eagerly(b, op, first + i);
        } else if (b->plan) {
            void *copy;
            b->status = neap_arena_alloc(b->arena, s->pending[i].args_bytes, &copy);
            if (b->status != NEAP_OK) break;
            memcpy(copy, op->args, s->pending[i].args_bytes);
            op->args = copy;
            neap_plan_add(b->plan, op);
        }
    }
    s->n_pending = 0;
}

static void push(neap_builder *b, const neap_builder_pending *from, const void *args) {
    neap_builder_state *s = &b->s;
    assert(s->n_pending < NEAP_BUILDER_PENDING);
    neap_builder_pending *to = &s->pending[s->n_pending++];
    to->op = from->op;
    to->op.layer = b->layer;
    to->op.stream = s->stream;
    s->last = &to->op;
    to->args_bytes = from->args_bytes;
    memcpy(to->args, args, from->args_bytes);
    b->args_bytes += (from->args_bytes + 63) & ~(size_t)63;
    b->n_ops++;
    if (!b->plan && !b->eager) neap_layout_use(b->layout, to->args, to->args_bytes, s->time);
}

void neap_builder_op(neap_builder *b, const char *name, bool is_beside, int64_t (*count)(const void *),
                     void (*run)(const void *, int64_t, int64_t, int32_t), const void *args, size_t args_bytes) {
    neap_builder_state *s = &b->s;
    assert(args_bytes <= NEAP_BUILDER_ARGS);
    assert(!is_beside || s->n_pending > 0);
    if (!is_beside) {
        flush(b);
        if (!s->in_fork) s->time++;
    }
    neap_builder_pending p;
    p.op = (neap_op){.name = name, .is_beside = is_beside, .count = count, .run = run};
    p.args_bytes = args_bytes;
    push(b, &p, args);
    if (is_beside || s->in_fork) return;
    neap_op *own = s->last;
    for (int32_t i = 0; i < s->n_later; i++) push(b, &s->later[i], s->later[i].args);
    s->n_later = 0;
    s->last = own;
}

void neap_builder_op_later(neap_builder *b, const char *name, int64_t (*count)(const void *),
                           void (*run)(const void *, int64_t, int64_t, int32_t), const void *args, size_t args_bytes) {
    neap_builder_state *s = &b->s;
    assert(s->n_later < NEAP_BUILDER_LATER && args_bytes <= NEAP_BUILDER_ARGS);
    neap_builder_pending *to = &s->later[s->n_later++];
    to->op = (neap_op){.name = name, .is_beside = true, .count = count, .run = run};
    to->args_bytes = args_bytes;
    memcpy(to->args, args, args_bytes);
    s->last = &to->op;
}

void neap_builder_output(neap_builder *b, const void *data, int64_t width, int64_t ld, const int32_t *n,
                         int32_t factor) {
    neap_op *op = b->s.last;
    assert(op->n_outputs < NEAP_OP_OUTPUTS);
    op->outputs[op->n_outputs++] =
        (neap_op_output){.data = data, .bytes = 4 * width, .stride = 4 * ld, .n = n, .factor = factor};
}

void neap_builder_cost(neap_builder *b, void (*cost)(const void *, neap_op_cost *)) { b->s.last->cost = cost; }

void neap_builder_end(neap_builder *b) {
    flush(b);
    assert(b->s.n_later == 0 && !b->s.in_fork);
    if (b->status == NEAP_OK && !b->work) b->status = neap_layout_status(b->layout);
}

/* ---- streams ---- */

bool neap_builder_fork(neap_builder *b, uint32_t use, int32_t n_streams) {
    if (!(b->streams & use)) return false;
    flush(b);
    b->s.in_fork = true;
    b->s.stream = 0;
    b->s.time++; /* all ops of a fork live at one time: streams are not ordered */
    if (b->plan) neap_plan_fork(b->plan, n_streams);
    return true;
}

void neap_builder_stream(neap_builder *b, int32_t stream) {
    if (!b->s.in_fork) return;
    flush(b);
    b->s.stream = stream;
}

void neap_builder_wait(neap_builder *b, int32_t stream, int32_t on) {
    if (!b->s.in_fork) return;
    flush(b);
    if (b->plan) neap_plan_wait(b->plan, stream, on);
}

void neap_builder_join(neap_builder *b) {
    if (!b->s.in_fork) return;
    flush(b);
    b->s.in_fork = false;
    b->s.stream = 0;
    if (b->plan) neap_plan_join(b->plan);
}

/* ---- taps ---- */

typedef struct tap_args {
    const neap_batch *batch;
    const void *data;
    int64_t ld, width;
    bool is_int, is_logits;
    char name[32];
} tap_args;

static int64_t tap_count(const void *p) {
    const tap_args *a = p;
    for (int32_t i = 0; i < a->batch->n_segments; i++)
        if (a->batch->segments[i].tap) return 1;
    return 0;
}

static const void *tap_row(const tap_args *a, int64_t row) {
    return (const char *)a->data + row * a->ld * (a->is_int ? (int64_t)sizeof(int32_t) : (int64_t)sizeof(float));
}

/* Runs of consecutive logits rows that belong to one segment. */
static void tap_logits(const tap_args *a) {
    const neap_batch *s = a->batch;
    for (int32_t i = 0; i < s->n_logits;) {
        const neap_batch_segment *g = &s->segments[s->row_segment[s->logit_rows[i]]];
        int32_t n = 1;
        while (i + n < s->n_logits && s->logit_rows[i + n] == s->logit_rows[i] + n &&
               s->row_segment[s->logit_rows[i + n]] == s->row_segment[s->logit_rows[i]])
            n++;
        if (g->tap) {
            neap_tap t = {.name = a->name,
                          .rank = 2,
                          .shape = {n, a->width},
                          .data = tap_row(a, i),
                          .position = s->row_position[s->logit_rows[i]]};
            g->tap(g->tap_user, &t);
        }
        i += n;
    }
}

static void tap_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const tap_args *a = p;
    (void)begin, (void)end, (void)worker;
    if (a->is_logits) {
        tap_logits(a);
        return;
    }
    assert(a->ld == a->width);
    for (int32_t i = 0; i < a->batch->n_segments; i++) {
        const neap_batch_segment *s = &a->batch->segments[i];
        if (!s->tap) continue;
        neap_tap t = {.name = a->name,
                      .is_int = a->is_int,
                      .rank = 2,
                      .shape = {s->n_rows, a->width},
                      .position = s->position,
                      .data = tap_row(a, s->row_begin)};
        s->tap(s->tap_user, &t);
    }
}

void neap_tap_emit(neap_builder *b, const char *name, int32_t suffix, const void *data, int64_t ld, int64_t width,
                   bool is_int) {
    if (!b->has_taps) return;
    tap_args a = {.batch = b->batch, .data = data, .ld = ld, .width = width, .is_int = is_int};
    if (suffix >= 0)
        snprintf(a.name, sizeof a.name, "%s.%d", name, suffix);
    else
        snprintf(a.name, sizeof a.name, "%s", name);
    neap_builder_op(b, "tap", false, tap_count, tap_run, &a, sizeof a);
}

void neap_tap_logits_emit(neap_builder *b, const float *logits, int64_t vocab) {
    if (!b->has_taps) return;
    tap_args a = {.batch = b->batch, .data = logits, .ld = vocab, .width = vocab, .is_logits = true, .name = "logits"};
    neap_builder_op(b, "tap", false, tap_count, tap_run, &a, sizeof a);
}
