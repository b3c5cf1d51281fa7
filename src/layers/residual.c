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
 * One op per sub-layer does everything between two sub-layers, row by row: add the pending output to p, mix,
 * snapshot, norm. Rows are independent, so one barrier is enough. The mix is written over the pending output. */
#include <assert.h>
#include <string.h>

#include "layers/builder.h"

enum {
    KEEP_FROM = 4,   /* snapshots from which stage 1 keeps the weighted sums */
    KEEP_ROWS = 256, /* rows of a step that have room for them: bounds the memory of very large steps */
    MIXES_AT_ONCE = 64
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

void neap_stream_claim(neap_builder *b, neap_stream *s) {
    const neap_network *net = b->net;
    int64_t rows = b->rows_max, c = net->width, blocks = blocks_of(net);
    *s = (neap_stream){.p = neap_builder_floats(b, rows * c),
                       .x = neap_builder_floats(b, rows * c),
                       .y = neap_builder_floats(b, rows * c)};
    if (!blocks) return;
    s->mix = s->y;
    s->bank = neap_builder_floats(b, blocks * rows * c);
    s->n_mixes = 2 * (net->attnres_block < net->n_layers ? net->attnres_block : net->n_layers);
    s->ld_weights = NEAP_ATTNRES_HEAD + blocks;
    s->weights = neap_builder_floats(b, rows * s->n_mixes * s->ld_weights);
    s->kept_rows = blocks >= KEEP_FROM ? (rows < KEEP_ROWS ? rows : KEEP_ROWS) : 0;
    if (s->kept_rows) s->kept = neap_builder_floats(b, s->kept_rows * s->n_mixes * c);
}

typedef struct residual_args {
    const neap_kernels *k;
    const neap_batch *batch;
    const neap_network *net;
    neap_stream s;
    int64_t bank_stride;
    int32_t first_mix;   /* of those that see this bank */
    bool is_first;       /* this op's mix is that one: stage 1 runs here */
    bool takes_snapshot; /* then p goes to snapshot n_bank */
    const float *res;    /* c, or NULL: no mix */
    const float *norm;
} residual_args;

static int64_t rows_count(const void *p) { return ((const residual_args *)p)->batch->n_rows; }

static void stage1(const residual_args *a, const float *const *bank, int64_t r) {
    const neap_stream *s = &a->s;
    int64_t width = a->net->width;
    int32_t n = mixes_of(a->net) - a->first_mix < s->n_mixes ? mixes_of(a->net) - a->first_mix : s->n_mixes;
    bool keeps = s->n_bank >= KEEP_FROM && r < s->kept_rows;
    const float *c[MIXES_AT_ONCE];
    for (int32_t q = 0; q < n; q += MIXES_AT_ONCE) {
        int32_t some = n - q < MIXES_AT_ONCE ? n - q : MIXES_AT_ONCE;
        for (int32_t i = 0; i < some; i++) c[i] = mix_vector(a->net, a->first_mix + q + i);
        neap_attnres_args args = {.bank = bank,
                                  .c = c,
                                  .n_bank = s->n_bank,
                                  .n_mixes = some,
                                  .d = width,
                                  .eps = a->net->eps,
                                  .weights = s->weights + (r * s->n_mixes + q) * s->ld_weights,
                                  .ld_weights = s->ld_weights,
                                  .acc = keeps ? s->kept + (r * s->n_mixes + q) * width : NULL,
                                  .ld_acc = width};
        a->k->attnres_bank(&args);
    }
}

/* Writes the mix of row r to s.mix. */
static void mix_row(const residual_args *a, int64_t r) {
    const neap_stream *s = &a->s;
    int64_t width = a->net->width, q = s->i_mix - a->first_mix;
    const float *bank[NEAP_STREAM_BANK_MAX];
    for (int32_t i = 0; i < s->n_bank; i++) bank[i] = s->bank + i * a->bank_stride + r * width;
    if (a->is_first) stage1(a, bank, r);
    neap_attnres_merge_args args = {
        .out = s->mix + r * width,
        .acc = s->n_bank >= KEEP_FROM && r < s->kept_rows ? s->kept + (r * s->n_mixes + q) * width : NULL,
        .bank = bank,
        .n_bank = s->n_bank,
        .d = width,
        .weights = s->weights + (r * s->n_mixes + q) * s->ld_weights,
        .p = s->p + r * width,
        .c = a->res,
        .eps = a->net->eps};
    a->k->attnres_merge(&args);
}

static void residual_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const residual_args *a = ptr;
    const neap_stream *s = &a->s;
    (void)worker;
    int64_t c = a->net->width;
    size_t row_bytes = (size_t)c * sizeof(float);
    for (int64_t r = begin; r < end; r++) {
        float *p = s->p + r * c;
        const float *mixed = p;
        if (s->has_y && s->is_fresh)
            memcpy(p, s->y + r * c, row_bytes);
        else if (s->has_y)
            a->k->add(p, s->y + r * c, c);
        if (a->res && s->n_bank > 0) {
            mix_row(a, r);
            mixed = s->mix + r * c;
        }
        if (a->takes_snapshot) memcpy(s->bank + s->n_bank * a->bank_stride + r * c, p, row_bytes);
        a->k->rmsnorm(s->x + r * c, mixed, a->norm, c, a->net->eps);
    }
}

void neap_residual_emit(neap_builder *b, neap_stream *s, const char *name, const float *res, bool is_block_start,
                        const float *norm, neap_input *in) {
    *in = neap_input_of(s->x, b->net->width);
    residual_args a = {.k = b->k,
                       .batch = b->batch,
                       .net = b->net,
                       .s = *s,
                       .bank_stride = b->rows_max * b->net->width,
                       .takes_snapshot = is_block_start,
                       .res = res,
                       .norm = norm};
    if (s->n_bank) {
        a.first_mix = (s->n_bank - 1) * 2 * b->net->attnres_block + 1;
        a.is_first = s->i_mix == a.first_mix;
        assert(s->n_bank <= NEAP_STREAM_BANK_MAX);
        assert(s->i_mix >= a.first_mix && s->i_mix < a.first_mix + s->n_mixes);
        assert(!b->plan || res == mix_vector(b->net, s->i_mix));
    }
    neap_builder_op(b, name, false, rows_count, residual_run, &a, sizeof a);
    s->n_bank += is_block_start;
    s->i_mix++;
    s->has_y = true;
    s->is_fresh = is_block_start;
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
    s->has_y = false;
    s->is_fresh = false;
    s->n_bank = 0;
    s->i_mix = 0;
}
