/* Attention of an MLA layer over the chosen positions: who computes which rows, heads and splits.
 *
 * The arithmetic is fixed by the kernels: a row's positions are cut into splits that depend on the row's own
 * position (neap_attend_split), each split is summed page by page, the splits are put together in order. So how
 * the work is dealt out changes no bit:
 *   whole mode  a task is a tile of rows x a group of heads; it computes all splits and puts them together
 *   split mode  few rows (decode): a task is one split of it; whoever finishes the last task of a group of heads puts
 *               the splits of all rows together
 * In the few class the last one of a group goes on with its heads' value projection and gate: no barrier between.
 * Groups are as large as possible (a cached row is decoded once per task) while every worker has work. */
#include "layers/mla_inner.h"

enum {
    PART_FLOATS = 1 << 20,       /* one task's splits in whole mode: 4 MiB */
    SPLIT_PART_FLOATS = 4 << 20, /* all splits of a step in split mode: 16 MiB */
    GROUP_MIN = 4,               /* heads; smaller groups decode more than they compute */
    STAT_FLOATS = NEAP_ATTEND_SPLITS * NEAP_ATTEND_ROWS * NEAP_ATTEND_HEADS,
    /* What a head's value projection costs, in positions of its attention (128 x 512 weights in BF16 that stream from
     * memory: about 13 us; a position of one head: 23 ns), divided by what decoding a position once more costs (1.5
     * heads) and by two: see spread(). */
    EXPAND_POSITIONS = 187,
};

static int64_t splits_of(int64_t n) {
    int64_t split = neap_attend_split(n);
    return (n + split - 1) / split;
}

/* How this step is dealt out; every worker finds the same. */
typedef struct dealing {
    bool is_split;
    int64_t n_tiles, most_splits, n_splits, group,
        n_groups; /* most_splits: of any tile; n_splits: tasks made of them */
} dealing;

static void cut_groups(dealing *d, int64_t heads, int64_t group) {
    d->group = group;
    d->n_groups = (heads + group - 1) / group;
}

/* Few class: one worker expands a group, so n_groups workers share this work, of which there is E = 560 positions per
 * head. Twice as many groups save E heads / (2 n_groups), and decode every position n_groups more times (1.5 heads'
 * worth each, shared by all). */
static bool spread(const mla_args *a, const dealing *d, int64_t positions) {
    int64_t workers = a->n_workers;
    return a->is_few && d->n_groups < workers &&
           positions * d->n_groups * d->n_groups < EXPAND_POSITIONS * a->spec.n_heads * workers;
}

static dealing deal(const mla_args *a) {
    int64_t heads = a->spec.n_heads, tiles = a->batch->n_tiles, wanted = 2 * (int64_t)a->n_workers;
    dealing d = {.n_tiles = tiles, .most_splits = 1, .n_splits = 1};
    int64_t positions = 0, group = heads < NEAP_ATTEND_HEADS ? heads : NEAP_ATTEND_HEADS;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t n = mla_tile_visible(a->batch, &a->batch->tiles[t]), s = splits_of(n);
        d.most_splits = s > d.most_splits ? s : d.most_splits;
        positions += a->spec.has_index && n > a->spec.index.topk ? a->spec.index.topk : n;
    }
    d.is_split = a->n_workers > 1 && d.most_splits > 1 && a->batch->n_rows <= a->split_rows_max && tiles < wanted;
    if (d.is_split) {
        d.n_splits = d.most_splits;
    } else {
        int64_t room = a->worker_part_floats / (NEAP_ATTEND_ROWS * d.most_splits * a->spec.kv_lora);
        if (group > room) group = room > 1 ? room : 1;
    }
    cut_groups(&d, heads, group);
    while (d.group > GROUP_MIN && (tiles * d.n_splits * d.n_groups < wanted || spread(a, &d, positions)))
        cut_groups(&d, heads, (d.group + 1) / 2);
    return d;
}

static int64_t attend_count(const void *p) {
    const mla_args *a = p;
    dealing d = deal(a);
    return d.n_tiles * d.n_groups * d.n_splits;
}

static neap_attend_args tile_args(const mla_args *a, const neap_batch_tile *tile, int64_t head, int64_t n_heads,
                                  int32_t *n_list, int32_t worker) {
    const neap_mla_spec *s = &a->spec;
    const neap_batch_segment *seg = &a->batch->segments[tile->segment];
    int64_t width = s->kv_lora + s->d_rope;
    for (int32_t i = 0; i < tile->n_rows; i++) {
        int64_t row = tile->row_begin + i;
        n_list[i] = s->has_index ? a->selection.n_lists[row] : (int32_t)mla_visible(a->batch, row);
    }
    return (neap_attend_args){.format = a->latent,
                              .cache = neap_caches_latents(a->caches, a->layer, seg->slot),
                              .q = a->q_abs + (tile->row_begin * (int64_t)s->n_heads + head) * width,
                              .ld_row = s->n_heads * width,
                              .ld_head = width,
                              .n_rows = tile->n_rows,
                              .n_heads = n_heads,
                              .lists =
                                  s->has_index ? a->selection.lists + (int64_t)tile->row_begin * a->selection.ld : NULL,
                              .ld_list = a->selection.ld,
                              .n_list = n_list,
                              .scale = s->softmax_scale,
                              .scratch = a->attend_scratch + worker * neap_attend_scratch(&a->latent)};
}

/* Weights of the next phase (W_o) that this worker will read there if it gets the same share of tasks: attention leaves
 * the memory idle. `part` of n_parts is fetched before each call of the kernel. */
typedef struct next_weights {
    const char *at;
    int64_t bytes, part, n_parts;
} next_weights;

static next_weights next_of(const mla_args *a, int64_t begin, int64_t end, int64_t n_tasks, int64_t n_parts) {
    const neap_matrix *o = &a->w->o;
    int64_t panels = neap_matrix_panels(o), first = panels * begin / n_tasks, last = panels * end / n_tasks;
    int64_t bytes = (last - first) * o->panel_bytes;
    return (next_weights){.at = (const char *)o->panels + first * o->panel_bytes,
                          .bytes = bytes < a->prefetch_bytes ? bytes : a->prefetch_bytes,
                          .n_parts = n_parts};
}

static void fetch_part(next_weights *x) {
    if (x->bytes == 0 || x->part == x->n_parts) return;
    mla_prefetch(x->at + x->bytes * x->part / x->n_parts, x->at + x->bytes * (x->part + 1) / x->n_parts);
    x->part++;
}

static void attend_whole(const mla_args *a, const neap_batch_tile *tile, int64_t head, int64_t n_heads,
                         next_weights *next, int32_t worker) {
    int32_t n_list[NEAP_ATTEND_ROWS];
    int64_t r = a->spec.kv_lora, n = mla_tile_visible(a->batch, tile), split = neap_attend_split(n),
            n_splits = splits_of(n);
    float *parts = a->worker_parts + worker * a->worker_part_floats;
    float *max = a->worker_stats + worker * 2 * (int64_t)STAT_FLOATS, *sum = max + STAT_FLOATS;
    neap_attend_args x = tile_args(a, tile, head, n_heads, n_list, worker);
    x.ld_out_head = n_splits * r;
    x.ld_out_row = n_heads * n_splits * r;
    x.ld_stat = n_heads;
    for (int64_t s = 0; s < n_splits; s++) {
        x.begin = s * split;
        x.end = (s + 1) * split;
        x.out = parts + s * r;
        x.max = max + s * tile->n_rows * n_heads;
        x.sum = sum + s * tile->n_rows * n_heads;
        fetch_part(next);
        a->k->attend(&x);
    }
    for (int64_t i = 0; i < tile->n_rows; i++)
        for (int64_t h = 0; h < n_heads; h++) {
            neap_attend_merge_args m = {.parts = parts + i * x.ld_out_row + h * x.ld_out_head,
                                        .ld_part = r,
                                        .max = max + i * n_heads + h,
                                        .sum = sum + i * n_heads + h,
                                        .ld_stat = tile->n_rows * n_heads,
                                        .n_parts = n_splits,
                                        .r = r,
                                        .out = a->o_lat + ((tile->row_begin + i) * a->spec.n_heads + head + h) * r};
            a->k->attend_merge(&m);
        }
}

static void attend_part(const mla_args *a, const neap_batch_tile *tile, int64_t head, int64_t n_heads, int64_t s,
                        int32_t worker) {
    int32_t n_list[NEAP_ATTEND_ROWS];
    int64_t r = a->spec.kv_lora, n = mla_tile_visible(a->batch, tile), split = neap_attend_split(n),
            heads = a->spec.n_heads;
    if (s >= splits_of(n)) return;
    int64_t first = tile->row_begin * heads + head; /* row and head */
    int64_t stats = s * a->split_rows_max * heads + first;
    neap_attend_args x = tile_args(a, tile, head, n_heads, n_list, worker);
    x.begin = s * split;
    x.end = (s + 1) * split;
    x.ld_out_head = a->splits_max * r;
    x.ld_out_row = heads * x.ld_out_head;
    x.out = a->parts + first * x.ld_out_head + s * r;
    x.ld_stat = heads;
    x.max = a->part_max + stats;
    x.sum = a->part_sum + stats;
    a->k->attend(&x);
}

/* Puts the splits of one head together, all rows. */
static void merge_splits(const mla_args *a, int64_t head) {
    int64_t r = a->spec.kv_lora, heads = a->spec.n_heads;
    for (int64_t row = 0; row < a->batch->n_rows; row++) {
        int64_t at = row * heads + head;
        neap_attend_merge_args m = {.parts = a->parts + at * a->splits_max * r,
                                    .ld_part = r,
                                    .max = a->part_max + at,
                                    .sum = a->part_sum + at,
                                    .ld_stat = a->split_rows_max * heads,
                                    .n_parts = splits_of(mla_visible(a->batch, row)),
                                    .r = r,
                                    .out = a->o_lat + at * r};
        a->k->attend_merge(&m);
    }
}

/* After each task of a group of heads: the last one goes on with what all have made. */
static void finish_group(const mla_args *a, const dealing *d, int64_t group, int64_t n_heads, int32_t worker) {
    if (!d->is_split && !a->is_few) return;
    if (!neap_arrive(&a->attend_counts[group], 1, (int32_t)(d->n_tiles * d->n_splits))) return;
    int64_t head = group * d->group;
    for (int64_t h = head; d->is_split && h < head + n_heads; h++) merge_splits(a, h);
    if (a->is_few) neap_mla_expand(a, head, head + n_heads, worker);
}

/* Tasks are counted group by group in the few class, so that a group's tasks end together and the value projections
 * are shared out like the attention; else tile by tile: neighbouring tasks read the same cached rows. */
static void attend_run(const void *ptr, int64_t begin, int64_t end, int32_t worker) {
    const mla_args *a = ptr;
    dealing d = deal(a);
    int64_t n_tasks = d.n_tiles * d.n_groups * d.n_splits, n_parts = (end - begin) * d.most_splits / d.n_splits;
    next_weights next = next_of(a, begin, end, n_tasks, n_parts);
    for (int64_t t = begin; t < end; t++) {
        int64_t split = t % d.n_splits, rest = t / d.n_splits;
        int64_t group = a->is_few ? rest / d.n_tiles : rest % d.n_groups, head = group * d.group;
        int64_t n_heads = a->spec.n_heads - head < d.group ? a->spec.n_heads - head : d.group;
        const neap_batch_tile *tile = &a->batch->tiles[a->is_few ? rest % d.n_tiles : rest / d.n_groups];
        if (d.is_split) {
            fetch_part(&next);
            attend_part(a, tile, head, n_heads, split, worker);
        } else {
            attend_whole(a, tile, head, n_heads, &next, worker);
        }
        finish_group(a, &d, group, n_heads, worker);
    }
}

/* Rows read min(p, K) positions each; all rows of a sequence at least those of its last one (formulas as in
 * engine/work.c). */
static void attend_cost(const void *ptr, neap_op_cost *out) {
    const mla_args *a = ptr;
    const neap_mla_spec *s = &a->spec;
    const neap_batch *b = a->batch;
    int64_t k = s->has_index ? s->index.topk : INT64_MAX;
    uint64_t row_bytes = (uint64_t)neap_latent_page_bytes(&a->latent) / NEAP_PAGE_ROWS;
    double read = 0;
    for (int32_t i = 0; i < b->n_segments; i++) {
        int64_t last = b->segments[i].position + b->segments[i].n_rows;
        out->bytes += (uint64_t)(last < k ? last : k) * row_bytes;
    }
    for (int32_t row = 0; row < b->n_rows; row++) {
        int64_t n = mla_visible(b, row);
        read += (double)(n < k ? n : k);
    }
    out->multiply_adds = read * s->n_heads * (2 * s->kv_lora + s->d_rope);
    if (a->is_few) neap_mla_expand_cost(a, out);
}

void neap_attend_claim(neap_builder *b, mla_args *a) {
    int64_t heads = a->spec.n_heads, r = a->spec.kv_lora;
    /* Not monotone in the length: 32 splits of 1024, then 17 of 2048. */
    a->splits_max = b->context_max >= NEAP_ATTEND_SPLITS * neap_attend_split(1) ? NEAP_ATTEND_SPLITS
                                                                                : (int32_t)splits_of(b->context_max);
    int64_t group = heads < NEAP_ATTEND_HEADS ? heads : NEAP_ATTEND_HEADS;
    int64_t one = NEAP_ATTEND_ROWS * a->splits_max * r;
    a->worker_part_floats = one * group < PART_FLOATS ? one * group : one > PART_FLOATS ? one : PART_FLOATS;
    int64_t split_rows = SPLIT_PART_FLOATS / (heads * a->splits_max * r);
    split_rows = split_rows > NEAP_ATTEND_ROWS ? NEAP_ATTEND_ROWS : split_rows > 1 ? split_rows : 1;
    a->split_rows_max = (int32_t)(split_rows < b->rows_max ? split_rows : b->rows_max);
    a->worker_parts = neap_builder_floats(b, b->n_workers * a->worker_part_floats);
    a->worker_stats = neap_builder_floats(b, b->n_workers * 2 * (int64_t)STAT_FLOATS);
    a->attend_scratch = neap_builder_floats(b, b->n_workers * neap_attend_scratch(&a->latent));
    a->attend_counts = neap_builder_counters(b, heads);
    a->parts = a->part_max = a->part_sum = NULL;
    if (b->n_workers == 1 || a->splits_max == 1) return;
    a->parts = neap_builder_floats(b, a->split_rows_max * heads * a->splits_max * r);
    a->part_max = neap_builder_floats(b, a->splits_max * a->split_rows_max * heads);
    a->part_sum = neap_builder_floats(b, a->splits_max * a->split_rows_max * heads);
}

void neap_attend_emit(neap_builder *b, const mla_args *a) {
    mla_args x = neap_mla_without_buffers(a);
    x.q_abs = a->q_abs;
    x.o_lat = a->o_lat;
    if (a->spec.has_index) x.selection = a->selection;
    x.parts = a->parts;
    x.part_max = a->part_max;
    x.part_sum = a->part_sum;
    x.worker_parts = a->worker_parts;
    x.worker_stats = a->worker_stats;
    x.attend_scratch = a->attend_scratch;
    x.attend_counts = a->attend_counts;
    if (a->is_few) {
        x.gate = a->gate;
        x.v = a->v;
    }
    neap_builder_op(b, "mla.attend", false, attend_count, attend_run, &x, sizeof x);
    mla_output(b, x.o_lat, (int64_t)a->spec.n_heads * a->spec.kv_lora);
    if (a->is_few) mla_output(b, x.v, (int64_t)a->spec.n_heads * a->spec.d_v);
    neap_builder_cost(b, attend_cost);
}
