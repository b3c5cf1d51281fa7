/* The residual stream: plain sums, or attention residuals (AttnRes, docs/numerics.md section 8).
 *
 * State per token: a bank of snapshots B_0.. (raw running sums taken at the start of each block of layers) and
 * the running sum p. Before every sub-layer, with c = norm weight * projection row:
 *     l_s = (X_s . c) * rsqrt(mean X_s^2 + eps),  a = softmax over {bank, p},  mix = sum_s a_s X_s
 * A layer that starts a block appends p to the bank after its own mix, and its output replaces p.
 *
 * Two stages. Between two snapshots the bank stands still while 2 b mixes look at it (b layers per block; from the
 * feed-forward of the block's first layer to the attention of the next block's, or the output mix). Stage 1 runs
 * with the first of them and serves them all: scores, maximum, denominator and, for banks of KEEP_FROM and more, the
 * weighted sums. Stage 2 merges p when its turn comes, and forms a sum that was not kept. Which rows keep sums
 * changes no bit, only time: a kept sum is one row written and read, forming it reads the whole bank.
 * Measured with K3's shapes (93 layers, width 7168, eight blocks: 187 mixes), all residual ops of a step, one thread of
 * a shared two-core Xeon with AVX-512, 2026-11-30, against one pass over the bank per mix: 1 row 1.35 x faster,
 * 16 rows 1.27 x, 128 rows 1.8 x, 512 rows 1.9 x. Stage 1 and 2 of one block alone, eight snapshots: sums kept 1.8,
 * 1.7, 1.8 x (1, 16, 512 rows), weights alone 1.5, 1.1, 1.2 x; with two snapshots 1.0 x and 1.3 to 1.5 x. The border is
 * near four.
 *
 * Many rows: one op per sub-layer does everything between two sub-layers, row by row: add the pending output to p, mix,
 * snapshot, norm. Rows are independent, so one barrier is enough. The mix is written over the pending output.
 *
 * Few rows: no op at all. Every worker does all rows for itself at the beginning of the op that reads them
 * (neap_taken_rows), from p, the pending output and stage 1; whoever has the row's task among its own also writes the
 * new p to the other of two buffers, and the snapshot. Stage 1 then runs beside the phase after that: rows times groups
 * of mixes are its tasks; it writes to the other of two buffers, because ops of that phase may still look at the old
 * bank. Sums are kept from two snapshots on, so that a worker reads no more than three rows.
 * A single row is never cheaper dealt out: one worker would do it while the others wait. With R rows, R - 1 of them are
 * work done too often, against a barrier of 1.5 us (two workers). Measured on the machine above, a row of width 2304:
 * 0.6 us without a bank, 1.0 with a kept sum, 1.4 with three snapshots; of width 7168: 2.3, 3.4, 4.1 us, eight rows 17,
 * 25, 34. So eight rows of K3's width cost 20 us more per sub-layer than they would dealt out, where its weights of
 * eight rows take milliseconds on any machine. Beyond ALONE_FROM floats a row, and for taps that look at p and the mix,
 * few rows get the op too. */
#include <assert.h>
#include <string.h>

#include "layers/builder.h"

enum {
    KEEP_FROM = 4,         /* many rows: snapshots from which stage 1 keeps the weighted sums */
    KEEP_FROM_FEW = 2,     /* few rows */
    KEEP_ROWS = 256,       /* rows of a step that have room for them: bounds the memory of very large steps */
    MIXES_AT_ONCE = 64,    /* many rows */
    GROUP = 4,             /* few rows: mixes of a task of stage 1 */
    ALONE_FROM = 32 * 1024 /* floats of a row's mix: more is cheaper dealt out than done by everybody */
};

/* Mixes are numbered 2 i (attention of layer i), 2 i + 1 (its feed-forward), 2 n_layers (output). */
static int32_t mixes_of(const neap_network *net) { return 2 * net->n_layers + 1; }
static const float *mix_vector(const neap_network *net, int32_t i) {
    if (i == 2 * net->n_layers) return net->output_res;
    return i % 2 ? net->layers[i / 2].mlp_res : net->layers[i / 2].attn_res;
}

static int32_t blocks_of(const neap_network *net) {
    return net->attnres_block ? (net->n_layers - 1) / net->attnres_block + 1 : 0;
}

static bool is_fused(const neap_builder *b, int32_t blocks) {
    int64_t sources = blocks ? 3 : 2; /* p and the pending output; a sum over the bank, or one snapshot */
    return b->is_few && !b->has_taps && sources * b->net->width <= ALONE_FROM;
}

void neap_stream_claim(neap_builder *b, neap_stream *s) {
    const neap_network *net = b->net;
    int64_t rows = b->rows_max, c = net->width, blocks = blocks_of(net);
    *s = (neap_stream){.p = neap_builder_floats(b, rows * c),
                       .x = neap_builder_floats(b, rows * c),
                       .y = neap_builder_floats(b, rows * c)};
    s->is_fused = is_fused(b, (int32_t)blocks);
    if (s->is_fused) s->p_other = neap_builder_floats(b, rows * c);
    if (!blocks) return;
    s->mix = s->y;
    s->keep_from = s->is_fused ? KEEP_FROM_FEW : KEEP_FROM;
    s->bank = neap_builder_floats(b, blocks * rows * c);
    s->n_mixes = 2 * (net->attnres_block < net->n_layers ? net->attnres_block : net->n_layers);
    s->ld_weights = NEAP_ATTNRES_HEAD + blocks;
    s->kept_rows = blocks >= s->keep_from ? (rows < KEEP_ROWS ? rows : KEEP_ROWS) : 0;
    for (int i = 0; i <= s->is_fused; i++) {
        s->weights[i] = neap_builder_floats(b, rows * s->n_mixes * s->ld_weights);
        if (s->kept_rows) s->kept[i] = neap_builder_floats(b, s->kept_rows * s->n_mixes * c);
    }
}

/* ---- stage 1 ---- */

/* Mixes begin .. end - 1 of those that see the bank, of row r. */
static void stage1(const neap_residual_bank *a, int64_t r, int32_t begin, int32_t end) {
    const float *bank[NEAP_STREAM_BANK_MAX], *c[MIXES_AT_ONCE];
    int64_t width = a->net->width, at = r * a->n_mixes + begin;
    for (int32_t i = 0; i < a->n_bank; i++) bank[i] = a->bank + i * a->bank_stride + r * width;
    for (int32_t i = begin; i < end; i++) c[i - begin] = mix_vector(a->net, a->first_mix + i);
    neap_attnres_args args = {.bank = bank,
                              .c = c,
                              .n_bank = a->n_bank,
                              .n_mixes = end - begin,
                              .d = width,
                              .eps = a->net->eps,
                              .weights = a->weights + at * a->ld_weights,
                              .ld_weights = a->ld_weights,
                              .acc = a->kept && r < a->kept_rows ? a->kept + at * width : NULL,
                              .ld_acc = width};
    a->k->attnres_bank(&args);
}

static int64_t groups_of(const neap_residual_bank *a) { return (a->n_mixes + GROUP - 1) / GROUP; }

static int64_t bank_count(const void *p) {
    const neap_residual_bank *a = p;
    return a->batch->n_rows * groups_of(a);
}

static void bank_run(const void *p, int64_t begin, int64_t end, int32_t worker) {
    const neap_residual_bank *a = p;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        int32_t from = (int32_t)(t % groups_of(a)) * GROUP;
        stage1(a, t / groups_of(a), from, a->n_mixes - from < GROUP ? a->n_mixes : from + GROUP);
    }
}

/* Reads the bank once per group; two products per element and mix, one more with sums that are kept. */
static void bank_cost(const void *p, neap_op_cost *out) {
    const neap_residual_bank *a = p;
    double elements = (double)a->batch->n_rows * (double)a->n_bank * (double)a->net->width;
    out->bytes += (uint64_t)elements * sizeof(float);
    out->multiply_adds += elements * (1 + (double)a->n_mixes * (a->kept ? 2 : 1));
}

/* Of the bank that the stream has now. */
static neap_residual_bank bank_of(const neap_builder *b, const neap_stream *s) {
    int half = s->is_fused ? s->n_bank % 2 : 0;
    neap_residual_bank a = {.k = b->k,
                            .batch = b->batch,
                            .net = b->net,
                            .bank = s->bank,
                            .weights = s->weights[half],
                            .bank_stride = b->rows_max * b->net->width,
                            .ld_weights = s->ld_weights,
                            .kept_rows = s->kept_rows,
                            .n_bank = s->n_bank,
                            .first_mix = (s->n_bank - 1) * 2 * b->net->attnres_block + 1};
    if (s->n_bank >= s->keep_from) a.kept = s->kept[half];
    int32_t left = mixes_of(b->net) - a.first_mix;
    a.n_mixes = left < s->n_mixes ? left : (int32_t)s->n_mixes;
    return a;
}

/* ---- one row between two sub-layers ---- */

static bool mixes(const neap_residual_unit *u) { return u->c && u->n_bank > 0; }

/* p: room for the running sum (u->p's own row, or another), mix: room for the mix. Returns the running sum; what the
 * norm reads goes to *mixed. */
static const float *sum_and_mix(const neap_residual_unit *u, int64_t r, float *p, float *mix, const float **mixed) {
    int64_t c = u->width;
    const float *sum = u->p + r * c;
    if (u->y) {
        if (u->is_fresh || p != sum) memcpy(p, (u->is_fresh ? u->y : u->p) + r * c, (size_t)c * sizeof(float));
        if (!u->is_fresh) u->k->add(p, u->y + r * c, c);
        sum = p;
    }
    *mixed = sum;
    if (!mixes(u)) return sum;
    const float *bank[NEAP_STREAM_BANK_MAX];
    for (int32_t i = 0; u->bank && i < u->n_bank; i++) bank[i] = u->bank + i * u->bank_stride + r * c;
    neap_attnres_merge_args args = {.out = mix,
                                    .acc = r < u->kept_rows ? u->kept + r * u->kept_stride : NULL,
                                    .bank = bank,
                                    .n_bank = u->n_bank,
                                    .d = c,
                                    .weights = u->weights + r * u->weights_stride,
                                    .p = sum,
                                    .c = u->c,
                                    .eps = u->eps};
    u->k->attnres_merge(&args);
    *mixed = mix;
    return sum;
}

static neap_residual_unit unit_of(const neap_builder *b, const neap_stream *s, const float *res, const float *norm) {
    neap_residual_unit u = {.k = b->k,
                            .width = b->net->width,
                            .eps = b->net->eps,
                            .norm = norm,
                            .p = s->p,
                            .y = s->has_y ? s->y : NULL,
                            .is_fresh = s->is_fresh,
                            .p_next = s->has_y ? s->p : NULL};
    if (!res || s->n_bank == 0) return u;
    neap_residual_bank bank = bank_of(b, s);
    int64_t q = s->i_mix - bank.first_mix;
    assert(s->n_bank <= NEAP_STREAM_BANK_MAX);
    assert(q >= 0 && q < bank.n_mixes);
    assert(!b->plan || res == mix_vector(b->net, s->i_mix));
    u.c = res;
    u.n_bank = s->n_bank;
    u.bank = s->bank;
    u.bank_stride = bank.bank_stride;
    u.weights = bank.weights + q * s->ld_weights;
    u.weights_stride = bank.n_mixes * s->ld_weights;
    if (!bank.kept) return u;
    u.kept = bank.kept + q * b->net->width;
    u.kept_stride = bank.n_mixes * b->net->width;
    u.kept_rows = s->kept_rows;
    if (u.kept_rows == b->rows_max) u.bank = NULL; /* nobody looks */
    return u;
}

/* ---- many rows: an op of its own ---- */

typedef struct residual_args {
    const neap_batch *batch;
    neap_residual_unit unit; /* p_next is p */
    neap_residual_bank bank;
    bool is_first; /* this op's mix is the first that sees the bank: stage 1 runs here */
    float *p, *mix, *x;
} residual_args;

static int64_t rows_count(const void *p) { return ((const residual_args *)p)->batch->n_rows; }

static void residual_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const residual_args *a = ptr;
    const neap_residual_unit *u = &a->unit;
    (void)worker;
    int64_t c = u->width;
    for (int64_t r = begin; r < end; r++) {
        const float *mixed, *sum;
        for (int32_t q = 0; a->is_first && q < a->bank.n_mixes; q += MIXES_AT_ONCE)
            stage1(&a->bank, r, q, a->bank.n_mixes - q < MIXES_AT_ONCE ? a->bank.n_mixes : q + MIXES_AT_ONCE);
        sum = sum_and_mix(u, r, a->p + r * c, a->mix ? a->mix + r * c : NULL, &mixed);
        if (u->snapshot) memcpy(u->snapshot + r * c, sum, (size_t)c * sizeof(float));
        u->k->rmsnorm(a->x + r * c, mixed, u->norm, c, u->eps);
    }
}

static void emit_alone(neap_builder *b, neap_stream *s, const char *name, const neap_residual_unit *unit) {
    residual_args a = {.batch = b->batch, .unit = *unit, .p = s->p, .x = s->x};
    if (mixes(unit)) {
        a.mix = s->mix;
        a.bank = bank_of(b, s);
        a.is_first = s->i_mix == a.bank.first_mix;
    }
    neap_builder_op(b, name, false, rows_count, residual_run, &a, sizeof a);
    int64_t c = b->net->width;
    neap_builder_output(b, s->x, c, c, &b->batch->n_rows, 1);
    if (unit->p_next) neap_builder_output(b, s->p, c, c, &b->batch->n_rows, 1);
    if (unit->snapshot) neap_builder_output(b, unit->snapshot, c, c, &b->batch->n_rows, 1);
}

/* ---- few rows: inside the op that reads them ---- */

neap_taken neap_input_take(neap_input *in, bool wants_copy) {
    neap_taken t = {.ldx = in->ldx, .has_unit = in->unit != NULL, .writes = !in->is_taken};
    in->is_taken = true;
    if (!t.has_unit) {
        t.x = in->x;
        return t;
    }
    t.unit = *in->unit;
    if (wants_copy) t.copy = in->x;
    if (!t.writes) t.unit.p_next = t.unit.snapshot = NULL;
    return t;
}

void neap_input_follow(neap_builder *b, const neap_input *in, const neap_taken *t) {
    const neap_residual_unit *u = &t->unit;
    if (!t->has_unit || !t->writes) return;
    if (u->p_next) neap_builder_output(b, u->p_next, u->width, u->width, &b->batch->n_rows, 1);
    if (u->snapshot) neap_builder_output(b, u->snapshot, u->width, u->width, &b->batch->n_rows, 1);
    if (t->copy) neap_builder_output(b, t->copy, u->width, u->width, &b->batch->n_rows, 1);
    if (!in->bank) return;
    const neap_residual_bank *next = in->bank;
    neap_builder_op_later(b, "residual.bank", bank_count, bank_run, next, sizeof *next);
    neap_builder_cost(b, bank_cost);
    int64_t c = next->net->width, written = NEAP_ATTNRES_HEAD + next->n_bank;
    neap_builder_output(b, next->weights, written, next->ld_weights, &b->batch->n_rows, next->n_mixes);
    if (next->kept) neap_builder_output(b, next->kept, c, c, &b->batch->n_rows, next->n_mixes);
}

const float *neap_taken_rows(const neap_taken *t, const int32_t *rows, int64_t m, int64_t begin, int64_t end,
                             int64_t n_tasks, int32_t worker) {
    if (!t->has_unit) return t->x;
    const neap_residual_unit *u = &t->unit;
    int64_t c = u->width;
    float *own = u->own + worker * u->own_floats, *room = own;
    for (int64_t i = 0; i < m; i++) {
        int64_t r = rows ? rows[i] : i, task = i * n_tasks / m;
        bool is_mine = t->writes && task >= begin && task < end;
        float *x = own + (i + 1) * c;
        const float *mixed, *sum;
        sum = sum_and_mix(u, r, is_mine && u->p_next ? u->p_next + r * c : room, x, &mixed);
        u->k->rmsnorm(x, mixed, u->norm, c, u->eps);
        if (is_mine && u->snapshot) memcpy(u->snapshot + r * c, sum, (size_t)c * sizeof(float));
        if (is_mine && t->copy) memcpy(t->copy + r * c, x, (size_t)c * sizeof(float));
    }
    return own + c;
}

static void give_unit(neap_builder *b, neap_stream *s, const neap_residual_unit *unit, neap_input *in) {
    neap_residual_unit *u = &s->unit;
    *u = *unit;
    u->own_floats = (b->rows_max + 1) * u->width;
    u->own = neap_builder_floats(b, b->n_workers * u->own_floats);
    in->unit = u;
    if (!u->p_next) return;
    u->p_next = s->p_other;
    s->p_other = s->p;
    s->p = u->p_next;
}

void neap_residual_emit(neap_builder *b, neap_stream *s, const char *name, const float *res, bool is_block_start,
                        const float *norm, neap_input *in) {
    int64_t c = b->net->width;
    *in = neap_input_of(s->x, c);
    neap_residual_unit unit = unit_of(b, s, res, norm);
    if (is_block_start) unit.snapshot = s->bank + s->n_bank * b->rows_max * c;
    if (s->is_fused)
        give_unit(b, s, &unit, in);
    else
        emit_alone(b, s, name, &unit);
    s->n_bank += is_block_start;
    s->i_mix++;
    s->has_y = true;
    s->is_fresh = is_block_start;
    if (!s->is_fused || !is_block_start) return;
    s->next = bank_of(b, s);
    in->bank = &s->next;
}

/* ---- embedding ---- */

typedef struct embed_args {
    const neap_batch *batch;
    const neap_matrix *embed;
    float *p;
    int64_t width;
} embed_args;

static int64_t embed_count(const void *p) { return ((const embed_args *)p)->batch->n_rows; }

static void embed_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const embed_args *a = ptr;
    (void)worker;
    for (int64_t r = begin; r < end; r++)
        neap_matrix_unpack_rows(a->embed, a->batch->tokens[r], 1, a->p + r * a->width, a->width);
}

void neap_embed_emit(neap_builder *b, neap_stream *s) {
    embed_args a = {.batch = b->batch, .embed = &b->net->embed, .p = s->p, .width = b->net->width};
    neap_builder_op(b, "embed", false, embed_count, embed_run, &a, sizeof a);
    neap_builder_output(b, s->p, a.width, a.width, &b->batch->n_rows, 1);
    s->has_y = false;
    s->is_fresh = false;
    s->n_bank = 0;
    s->i_mix = 0;
}
