/* How layers put their ops into a plan, and the fixed slots that change from step to step.
 *
 * A layer's emit function is run twice: first dry (no plan, no memory: it only notes what it would take), then
 * for real. So the announced sizes are the claimed sizes by construction.
 *
 * Work buffers lie in one region. The dry run hands out addresses that nobody owns; whichever op's arguments hold
 * such an address (or one inside the buffer) uses that buffer, so its life is known from the arguments themselves:
 * from the phase of the first op that holds it to that of the last one. runtime/colour.h places them, and the second
 * run gets the same buffers in the same order at their places. Nobody declares a life, so nobody can forget a reader.
 * What follows for layers: arguments hold plain pointers to buffers (no differences, no offsets from a common base);
 * an op that need not see a buffer should not hold it, or the buffer lives longer than it must.
 *
 * Shape classes. The same emit functions make two plans: `few` for steps of up to few_max rows (decoding, verifying a
 * draft) with as few barriers as possible: what is cheap is computed again by every worker instead of being waited
 * for; and `many` for all other steps, where rows are dealt out. A row gets the same bits from both. */
#ifndef NEAP_LAYERS_BUILDER_H
#define NEAP_LAYERS_BUILDER_H

#include "cache/caches.h"
#include "layers/layer.h"
#include "runtime/colour.h"
#include "runtime/plan.h"

/* One sequence's rows in this step. */
typedef struct neap_batch_segment {
    int32_t slot, row_begin, n_rows;
    int64_t position; /* of the first row; 0: begins here, stored state is ignored */
    neap_tap_fn tap;
    void *tap_user;
} neap_batch_segment;

/* Up to NEAP_TILE_ROWS neighbouring rows of one sequence that kernels take together: what they read from the caches
 * is decoded once for all of them. All rows of a tile have the same attention split (neap_attend_split). */
enum { NEAP_TILE_ROWS = 8 };
_Static_assert((int)NEAP_TILE_ROWS <= (int)NEAP_ATTEND_ROWS && (int)NEAP_TILE_ROWS <= (int)NEAP_INDEX_ROWS, "tiles");
typedef struct neap_batch_tile {
    int32_t segment, row_begin, n_rows;
} neap_batch_tile;

typedef struct neap_batch {
    int32_t n_rows, n_segments, n_logits, n_tiles;
    int32_t *tokens;              /* [rows_max] */
    int32_t *row_segment;         /* [rows_max] */
    int64_t *row_position;        /* [rows_max] */
    int32_t *logit_rows;          /* [logits_max] row of each logits row, ascending */
    neap_batch_segment *segments; /* [seqs_max] */
    neap_batch_tile *tiles;       /* [rows_max] */
} neap_batch;

typedef _Atomic int32_t neap_counter;
typedef struct neap_layout neap_layout;
enum { NEAP_BUILDER_ARGS = 2048, NEAP_BUILDER_PENDING = 16, NEAP_BUILDER_LATER = 4 };
/* An op that waits: for the end of its phase, or for the beginning of one (later). */
typedef struct neap_builder_pending {
    neap_op op;
    size_t args_bytes;
    _Alignas(64) char args[NEAP_BUILDER_ARGS];
} neap_builder_pending;
typedef struct neap_builder_state { /* of builder.c */
    int32_t i_buffer, i_counter, time, n_later, n_pending, stream;
    bool in_fork;
    neap_op *last; /* that was added: what outputs and cost are said of */
    neap_builder_pending later[NEAP_BUILDER_LATER];
    neap_builder_pending pending[NEAP_BUILDER_PENDING]; /* the phase that is being emitted */
} neap_builder_state;

typedef struct neap_builder {
    neap_plan *plan;   /* NULL: dry run */
    neap_arena *arena; /* op arguments; NULL: dry run */
    const neap_kernels *k;
    const neap_network *net;
    const neap_batch *batch;
    neap_caches *caches; /* NULL: dry run */
    int32_t rows_max, seqs_max, n_workers;
    bool is_few; /* class of the plan; then rows_max <= 8 */
    int32_t tile_rows, prefetch_kib;
    uint32_t beside, streams; /* NEAP_USE_* of neap.h: what shares phases, what runs in sub-teams */
    int64_t context_max;      /* positions of the longest sequence */
    neap_row_kind latent_kind, index_kind;
    neap_x_form act, moe_act; /* how inputs enter products: all but routed experts, routed experts */
    bool has_taps;
    int32_t layer;          /* being emitted; names taps, selects the cache layer */
    char *gemm_scratch;     /* [n_workers][NEAP_GEMM_SCRATCH], for the whole plan (neap_builder_begin) */
    char *work;             /* region; NULL: dry run */
    neap_counter *counters; /* NULL: dry run */
    neap_layout *layout;    /* buffers and their lives: noted in a dry run, followed in the others */
    neap_team *eager;       /* not NULL: ops run as they are emitted, phase by phase, instead of entering a plan */
    int32_t n_eager;        /* with so many workers */
    neap_plan_trace *trace; /* of the eager run; may be NULL */
    uint64_t args_bytes;    /* counted in both runs */
    int32_t n_ops;
    neap_status status;   /* first failure; later calls do nothing */
    neap_builder_state s; /* builder.c's own */
} neap_builder;

/* A layout is made by a dry run: neap_layout_create, a dry emission, neap_layout_place; then any number of real or
 * eager emissions of the same options follow it. */
NEAP_MUST_CHECK neap_status neap_layout_create(neap_layout **out);
/* shares false (tests): nothing in the region is used twice. */
NEAP_MUST_CHECK neap_status neap_layout_place(neap_layout *l, bool shares, uint64_t *region_bytes);
void neap_layout_destroy(neap_layout *l);
int32_t neap_layout_buffers(const neap_layout *l, const neap_life **lives); /* for tests and listings */
int32_t neap_layout_counters(const neap_layout *l);
/* builder.c: what a dry run hands out, and what its ops hold. */
void *neap_layout_buffer(neap_layout *l, uint64_t bytes);
void neap_layout_use(neap_layout *l, const void *args, size_t args_bytes, int32_t time);
void neap_layout_add_counters(neap_layout *l, int64_t n);
neap_status neap_layout_status(const neap_layout *l); /* first failure of noting */

/* First call: claims what all ops share. Last call: ends the last phase (an eager run carries it out). */
void neap_builder_begin(neap_builder *b);
void neap_builder_end(neap_builder *b);
static inline void *neap_gemm_scratch_of(char *scratch, int32_t worker) {
    return scratch + (int64_t)worker * NEAP_GEMM_SCRATCH;
}
/* n floats (ints) of the work region, 64-byte aligned. In a dry run the pointer must not be read or written. */
float *neap_builder_floats(neap_builder *b, int64_t n);
int32_t *neap_builder_ints(neap_builder *b, int64_t n);
/* n counters that are 0 before the first step and that whoever counts one up to its end sets back to 0: the last of
 * several workers goes on with what all have made, without a barrier (neap_arrive). Never shared with anything. */
neap_counter *neap_builder_counters(neap_builder *b, int64_t n);
/* Counts `n` arrivals (tasks) of `all`; true for the caller who makes the count full: it sees what the others wrote. */
bool neap_arrive(neap_counter *c, int32_t n, int32_t all);

/* Adds an op with a copy of args (at most NEAP_BUILDER_ARGS bytes). In a stream (below) it joins that one. */
void neap_builder_op(neap_builder *b, const char *name, bool is_beside, int64_t (*count)(const void *),
                     void (*run)(const void *, int64_t, int64_t, int32_t), const void *args, size_t args_bytes);
/* About the op that was added last: what it writes (rows *n * factor, each `width` elements of 4 bytes, `ld` apart; n
 * NULL: factor rows), and its cost. */
void neap_builder_output(neap_builder *b, const void *data, int64_t width, int64_t ld, const int32_t *n,
                         int32_t factor);
void neap_builder_cost(neap_builder *b, void (*cost)(const void *, neap_op_cost *));
/* The op that is added next with is_beside false is followed by this one, beside it: for work that no barrier should
 * be spent on and that some later phase needs. At most four wait at a time; neap_builder_end must find none. */
void neap_builder_op_later(neap_builder *b, const char *name, int64_t (*count)(const void *),
                           void (*run)(const void *, int64_t, int64_t, int32_t), const void *args, size_t args_bytes);

/* Streams: between fork and join ops go to the stream that was chosen last (0 after the fork). Where the builder's
 * `streams` lacks the use, all three do nothing, and false comes back. */
bool neap_builder_fork(neap_builder *b, uint32_t use, int32_t n_streams);
void neap_builder_stream(neap_builder *b, int32_t stream);
void neap_builder_wait(neap_builder *b, int32_t stream, int32_t on);
void neap_builder_join(neap_builder *b);
/* Whether ops of this use share the phase of the op before: what is_beside is given. */
static inline bool neap_builder_beside(const neap_builder *b, uint32_t use) { return (b->beside & use) != 0; }

/* ---- the input of a sub-layer ---- */

/* The way from one sub-layer to the next for one row: add the pending output, mix with the bank, norm (residual.c).
 * In the few class every worker does all rows for itself, at the beginning of the op that reads them; p and p_next are
 * then different buffers, since everybody reads p while one writes p_next. */
typedef struct neap_residual_unit {
    const neap_kernels *k;
    int64_t width;
    float eps;
    int32_t n_bank;
    const float *c; /* NULL: no mix */
    const float *norm;
    const float *p;              /* [rows, C] running sum before */
    const float *y;              /* [rows, C] to be added; NULL: nothing */
    bool is_fresh;               /* y replaces p */
    float *p_next;               /* [rows, C]; NULL: nobody wants it */
    float *snapshot;             /* [rows, C] a copy of p_next; NULL: none */
    const float *bank;           /* [n_bank][bank_stride] */
    const float *weights, *kept; /* stage 1 of this mix, row r at r * stride */
    int64_t bank_stride, weights_stride, kept_stride;
    int64_t kept_rows; /* rows that have a kept sum */
    float *own;        /* [workers][own_floats] */
    int64_t own_floats;
} neap_residual_unit;
struct neap_residual_bank;

/* The normed input of a sub-layer, [rows, C]. In the many class a phase before has made it (x). In the few class every
 * worker makes it for itself (unit): a row's mix and norm cost less than a barrier. The first op that takes the input
 * also writes the new running sum. */
typedef struct neap_input {
    float *x; /* with a unit: where a copy may be put that later phases read */
    int64_t ldx;
    const neap_residual_unit *unit;        /* NULL: x holds the rows */
    const struct neap_residual_bank *bank; /* follows the phase of the first op that takes the input; NULL: nothing */
    bool is_taken;
} neap_input;
static inline neap_input neap_input_of(float *x, int64_t ldx) { return (neap_input){.x = x, .ldx = ldx}; }

/* An input as an op's arguments hold it. */
typedef struct neap_taken {
    const float *x;
    int64_t ldx;
    float *copy; /* NULL: none is wanted */
    bool has_unit, writes;
    neap_residual_unit unit;
} neap_taken;
/* wants_copy: in->x shall hold the rows for later phases. */
neap_taken neap_input_take(neap_input *in, bool wants_copy);
/* Right after the op was added: what it writes besides its own results, and what shall follow. */
void neap_input_follow(neap_builder *b, const neap_input *in, const neap_taken *t);
/* Rows 0 .. m - 1 (or the listed ones, one after another) for the worker that does tasks begin .. end - 1 of n_tasks,
 * ldx apart. Without a unit: x, and listed rows are where they are. */
const float *neap_taken_rows(const neap_taken *t, const int32_t *rows, int64_t m, int64_t begin, int64_t end,
                             int64_t n_tasks, int32_t worker);

/* ---- linear.c ---- */

/* y[i, :] = W x[i, :] for all rows of the step (or the listed ones); up to NEAP_LINEAR_MAX matrices that share
 * their input form one op whose tasks are panels. A result that decides a discrete choice (router, indexer) takes x in
 * F32 whatever the options say. */
enum { NEAP_LINEAR_MAX = 8 };
typedef struct neap_linear_target {
    const neap_matrix *w;
    float *y;
    int64_t ldy;
    neap_x_form form;
} neap_linear_target;
/* h = act(gate x, up x): gate and up of the same panel in one task. h, u [rows][ld]; u holds up x. */
typedef struct neap_linear_glu {
    const neap_matrix *gate, *up; /* of one shape; gate NULL: none */
    float *h, *u;
    int64_t ld;
    neap_x_form form;
    neap_act act;
} neap_linear_glu;
typedef struct neap_linear {
    const neap_kernels *k;
    const neap_batch *batch;
    neap_taken in;
    char *scratch;
    bool is_head; /* rows come from batch->logit_rows */
    int32_t n;
    neap_linear_target targets[NEAP_LINEAR_MAX];
    neap_linear_glu glu;
    int64_t first_panel[NEAP_LINEAR_MAX + 2]; /* task where a target begins; the glu's come last */
} neap_linear;

void neap_linear_emit(neap_builder *b, const char *name, bool is_beside, neap_input *in,
                      const neap_linear_target *targets, int32_t n);
void neap_glu_emit(neap_builder *b, const char *name, bool is_beside, neap_input *in, const neap_linear_glu *glu);
/* The head: rows batch->logit_rows of x to consecutive rows of y. */
void neap_head_emit(neap_builder *b, neap_input *in, const neap_matrix *w, float *y, int64_t ldy);

/* For ops that do more than that: arguments, number of tasks, and the two halves of a task: the input, the products of
 * a range of panels. glu may be NULL. */
neap_linear neap_linear_of(const neap_builder *b, const neap_taken *in, const neap_linear_target *targets, int32_t n,
                           const neap_linear_glu *glu);
int64_t neap_linear_tasks(const neap_linear *l);
const float *neap_linear_rows(const neap_linear *l, int64_t begin, int64_t end, int32_t worker);
void neap_linear_products(const neap_linear *l, const float *x, int64_t begin, int64_t end, int32_t worker);
void neap_linear_outputs(neap_builder *b, const neap_linear *l);
void neap_linear_cost(const void *linear, neap_op_cost *out);
/* Adds one matrix, read once and applied to m rows. */
void neap_matrix_cost(neap_op_cost *out, const neap_matrix *w, double m);
/* h = act(h, u) over columns of panels begin .. end - 1; h and u [m][ld]. */
void neap_glu_panels(const neap_kernels *k, const neap_act *act, const neap_matrix *gate, float *h, const float *u,
                     int64_t ld, int64_t m, int64_t begin, int64_t end);

/* ---- taps ---- */

/* Rows [rows, width] shown to the segments that asked (no-op without taps). suffix -1: no ".N". */
void neap_tap_emit(neap_builder *b, const char *name, int32_t suffix, const void *data, int64_t ld, int64_t width,
                   bool is_int);
/* Logits rows, for the segments that asked. */
void neap_tap_logits_emit(neap_builder *b, const float *logits, int64_t vocab);

/* ---- sub-layers: x [rows, C] normed input -> y [rows, C] ---- */
void neap_kda_emit(neap_builder *b, const neap_kda_spec *s, const neap_kda_weights *w, neap_input *in, float *y);
/* lists: the selection of the nearest earlier full indexer, shared across layers. */
typedef struct neap_selection {
    int32_t *lists;   /* [rows_max][topk_max], ascending positions, -1 unused */
    int32_t *n_lists; /* [rows_max] */
    int32_t ld;       /* topk_max */
} neap_selection;
void neap_mla_emit(neap_builder *b, const neap_mla_spec *s, const neap_mla_weights *w, neap_selection *selection,
                   neap_input *in, float *y);
void neap_mlp_emit(neap_builder *b, const neap_mlp_weights *w, int64_t width, neap_input *in, float *y);
void neap_moe_emit(neap_builder *b, const neap_moe_spec *s, const neap_moe_weights *w, neap_input *in, float *y);

/* What one layer keeps between steps. */
neap_cache_layer_spec neap_kda_cache(const neap_kda_spec *s);
neap_cache_layer_spec neap_mla_cache(const neap_mla_spec *s, neap_row_kind latent, neap_row_kind index);

/* ---- the residual stream (plain or AttnRes) ---- */
enum { NEAP_STREAM_BANK_MAX = 1024 }; /* blocks of layers */
/* Stage 1 of the mixes that see the same bank: made once a snapshot was taken. */
typedef struct neap_residual_bank {
    const neap_kernels *k;
    const neap_batch *batch;
    const neap_network *net;
    const float *bank; /* [n_bank][bank_stride] */
    float *weights;    /* [rows][n_mixes][ld_weights] */
    float *kept;       /* [kept_rows][n_mixes][C]; NULL: no sums are kept */
    int64_t bank_stride, ld_weights, kept_rows;
    int32_t n_bank, first_mix, n_mixes;
} neap_residual_bank;

typedef struct neap_stream {
    float *p;       /* [rows, C] running sum */
    float *p_other; /* few: the buffer that the next running sum is written to */
    float *bank;    /* [blocks][rows, C] snapshots, NULL without AttnRes */
    float *mix;     /* [rows, C] the last mix of bank and p (what the norm reads): y; NULL without AttnRes */
    float *x;       /* [rows, C] normed input of the next sub-layer */
    float *y;       /* [rows, C] output of the last sub-layer, not yet added */
    /* Stage 1 of a bank's mixes; few: of two banks, since the next one's is made while the last mixes look at the
     * old one's: */
    float *weights[2]; /* [rows][n_mixes][ld_weights] */
    float *kept[2];    /* [kept_rows][n_mixes][C] weighted sums over the bank */
    int64_t n_mixes;   /* that see the same bank: two per layer of a block */
    int64_t ld_weights, kept_rows;
    int32_t keep_from;       /* snapshots from which sums are kept */
    int32_t n_bank;          /* snapshots so far, while emitting */
    int32_t i_mix;           /* number of the next mix, while emitting */
    bool is_fused;           /* every worker for itself, in the op that reads the input */
    bool has_y;              /* y is pending */
    bool is_fresh;           /* the pending y replaces p instead of being added */
    neap_residual_unit unit; /* of the input that was given out last */
    neap_residual_bank next; /* the bank with that unit's snapshot */
} neap_stream;
/* Takes the stream's buffers. */
void neap_stream_claim(neap_builder *b, neap_stream *s);
/* p = embedding rows of the step's tokens. */
void neap_embed_emit(neap_builder *b, neap_stream *s);
/* Adds the pending y, mixes with `res` (NULL: no mix), takes a snapshot if is_block_start, norms. *in is what the
 * sub-layer reads. */
void neap_residual_emit(neap_builder *b, neap_stream *s, const char *name, const float *res, bool is_block_start,
                        const float *norm, neap_input *in);

#endif
