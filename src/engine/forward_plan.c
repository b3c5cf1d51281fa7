/* Shape classes of a step and their plans: `few` (up to few_rows rows: decoding, verifying a draft) and `many`.
 *
 *   embed, then per layer: residual (add, mix, snapshot, norm), mixer (KDA or MLA), residual, feed-forward;
 *   last residual (add, output mix, final norm), head for the rows that want logits.
 *
 * One emission serves measuring (dry: how much memory, which buffer lives when), capturing (a plan), eager runs (each
 * op carried out as it is emitted) and sketches (a plan to look at, without weights).
 *
 * Called by forward.c and describe.c. */
#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"
#include "engine/options.h"

static int32_t topk_max(const neap_network *net) {
    int32_t k = 0;
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        if (l->mixer == NEAP_MIXER_MLA && l->spec.mla.has_index && l->spec.mla.index.topk > k)
            k = l->spec.mla.index.topk;
    }
    return k;
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* Buffers that live through the whole step, then all ops. */
static void emit_step(neap_builder *b, neap_stage *stage) {
    const neap_network *net = b->net;
    int64_t rows = b->rows_max, c = net->width;
    neap_stream stream, *s = &stream;
    neap_selection selection = {.ld = topk_max(net)};
    neap_builder_begin(b);
    neap_stream_claim(b, s);
    if (selection.ld) {
        selection.lists = neap_builder_ints(b, rows * selection.ld);
        selection.n_lists = neap_builder_ints(b, rows);
    }
    stage->logits = neap_builder_floats(b, (int64_t)stage->logits_max * net->vocab);

    neap_embed_emit(b, s);
    for (int32_t i = 0; i < net->n_layers; i++) {
        neap_layer *layer = &net->layers[i];
        neap_input in;
        b->layer = i;
        bool is_block_start = net->attnres_block && i % net->attnres_block == 0;
        neap_residual_emit(b, s, "residual.attn", layer->attn_res, is_block_start, layer->input_norm, &in);
        neap_tap_emit(b, "hidden", i, s->p, c, c, false);
        if (layer->mixer == NEAP_MIXER_KDA)
            neap_kda_emit(b, &layer->spec.kda, &layer->weights.kda, &in, s->y);
        else
            neap_mla_emit(b, &layer->spec.mla, &layer->weights.mla, &selection, &in, s->y);
        neap_residual_emit(b, s, "residual.ffn", layer->mlp_res, false, layer->post_norm, &in);
        if (layer->is_moe)
            neap_moe_emit(b, &layer->moe_spec, &layer->moe, &in, s->y);
        else
            neap_mlp_emit(b, &layer->mlp, layer->mlp_width, &in, s->y);
    }
    b->layer = -1;
    neap_input in;
    neap_residual_emit(b, s, "residual.final", net->output_res, false, net->norm, &in);
    neap_tap_emit(b, "hidden", net->n_layers, s->p, c, c, false);
    neap_tap_emit(b, "pre_norm", -1, s->mix ? s->mix : s->p, c, c, false);
    neap_tap_emit(b, "final_norm", -1, s->x, c, c, false);
    neap_head_emit(b, &in, &net->head, stage->logits, net->vocab);
    neap_tap_logits_emit(b, stage->logits, net->vocab);
    neap_builder_end(b);
}

int64_t neap_forward_pages_for(int64_t tokens) { return (tokens + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS; }

neap_status neap_forward_check(const neap_forward_options *o) {
    NEAP_CHECK(o->n_threads >= 1 && o->n_threads <= NEAP_TEAM_MAX, NEAP_INVALID_ARGUMENT,
               "n_threads: %d is outside 1 .. %d", o->n_threads, NEAP_TEAM_MAX);
    NEAP_CHECK(o->seqs_max >= 1 && o->seqs_max <= 65536, NEAP_INVALID_ARGUMENT, "seqs_max: %d is outside 1 .. 65536",
               o->seqs_max);
    NEAP_CHECK(o->batch_tokens_max >= 1 && o->batch_tokens_max <= 65536, NEAP_INVALID_ARGUMENT,
               "batch_tokens_max: %d is outside 1 .. 65536", o->batch_tokens_max);
    NEAP_CHECK(o->context_max >= 1, NEAP_INVALID_ARGUMENT, "context_max: %d is below 1", o->context_max);
    NEAP_CHECK(neap_forward_pages_for(o->context_max) * o->seqs_max <= INT32_MAX, NEAP_INVALID_ARGUMENT,
               "context_max: %d tokens x %d sequences is too much", o->context_max, o->seqs_max);
    return NEAP_OK;
}

neap_status neap_stages_shape(neap_stage stages[NEAP_STAGES], const neap_forward_options *o, neap_tuning *tuning) {
    NEAP_TRY(neap_tuning_take(tuning, o->tuning));
    memset(stages, 0, NEAP_STAGES * sizeof *stages);
    neap_stage *few = &stages[NEAP_STAGE_FEW], *many = &stages[NEAP_STAGE_MANY];
    few->is_few = true;
    few->rows_max = smaller(tuning->few_rows, o->batch_tokens_max);
    if (o->batch_tokens_max > few->rows_max) many->rows_max = o->batch_tokens_max;
    for (int i = 0; i < NEAP_STAGES; i++) {
        neap_stage *s = &stages[i];
        s->seqs_max = smaller(o->seqs_max, s->rows_max);
        s->logits_max = o->enable_taps ? s->rows_max : s->seqs_max;
    }
    return NEAP_OK;
}

static int32_t workers_of(const neap_forward_options *o) {
    return o->n_threads_batch > o->n_threads ? o->n_threads_batch : o->n_threads;
}

bool neap_stages_run_together(const neap_forward_options *o, const neap_tuning *tuning) {
    return (tuning->streams & NEAP_USE_MIXED) != 0 && !o->is_eager && !o->enable_taps && workers_of(o) > 1 &&
           tuning->few_rows > 0 && o->batch_tokens_max > tuning->few_rows;
}

static neap_builder builder_of(const neap_stage *s, const neap_model *m, const neap_forward_options *o,
                               const neap_tuning *tuning) {
    return (neap_builder){.net = &m->net,
                          .rows_max = s->rows_max,
                          .seqs_max = s->seqs_max,
                          .n_workers = workers_of(o),
                          .is_few = s->is_few,
                          .tile_rows = tuning->tile_rows,
                          .prefetch_kib = tuning->prefetch_kib,
                          .beside = tuning->beside,
                          .streams = tuning->streams,
                          .context_max = neap_forward_pages_for(o->context_max) * NEAP_PAGE_ROWS,
                          .latent_kind = o->latent_kind,
                          .index_kind = o->index_kind,
                          .act = o->act,
                          .moe_act = o->moe_act,
                          .has_taps = o->enable_taps,
                          .layout = s->layout,
                          .layer = -1};
}

neap_status neap_stage_measure(neap_stage *s, const neap_model *m, const neap_forward_options *o,
                               const neap_tuning *tuning) {
    NEAP_TRY(neap_layout_create(&s->layout));
    neap_builder b = builder_of(s, m, o, tuning);
    emit_step(&b, s);
    NEAP_TRY(b.status);
    s->n_ops = b.n_ops;
    s->args_bytes = b.args_bytes;
    return neap_layout_place(s->layout, !o->keeps_all, &s->region_bytes);
}

neap_status neap_stage_emit(neap_stage *s, neap_forward *f, bool is_eager, int32_t n_workers) {
    neap_builder b = builder_of(s, f->model, &f->options, &f->tuning);
    b.k = &f->kernels;
    b.batch = &s->batch;
    b.caches = &f->caches;
    b.work = s->work;
    b.counters = s->counters;
    if (is_eager) {
        b.eager = f->team;
        b.n_eager = n_workers;
        b.trace = neap_stage_trace(s);
    } else {
        b.arena = f->arena;
        b.plan = s->plan;
    }
    emit_step(&b, s);
    f->n_emissions++;
    return b.status;
}

neap_status neap_stage_sketch(neap_stage *s, const neap_model *m, const neap_forward_options *o,
                              const neap_tuning *tuning, neap_arena *arena) {
    neap_builder b = builder_of(s, m, o, tuning);
    NEAP_TRY(neap_plan_create(&s->plan, arena, s->n_ops));
    b.batch = &s->batch;
    b.arena = arena;
    b.plan = s->plan;
    emit_step(&b, s);
    return b.status;
}

/* ---- slots ---- */

neap_status neap_forward_array(neap_arena *arena, int64_t n, size_t size, void *out) {
    void *p;
    NEAP_TRY(neap_arena_array(arena, (size_t)n, size, &p));
    *(void **)out = p;
    return NEAP_OK;
}

neap_status neap_stage_slots(neap_stage *s, neap_arena *arena) {
    neap_batch *b = &s->batch;
    NEAP_TRY(neap_forward_array(arena, s->rows_max, sizeof *b->tokens, &b->tokens));
    NEAP_TRY(neap_forward_array(arena, s->rows_max, sizeof *b->row_segment, &b->row_segment));
    NEAP_TRY(neap_forward_array(arena, s->rows_max, sizeof *b->row_position, &b->row_position));
    NEAP_TRY(neap_forward_array(arena, s->rows_max, sizeof *b->logit_rows, &b->logit_rows));
    NEAP_TRY(neap_forward_array(arena, s->seqs_max, sizeof *b->segments, &b->segments));
    return neap_forward_array(arena, s->rows_max, sizeof *b->tiles, &b->tiles);
}

uint64_t neap_stage_book_bytes(const neap_stage *s, const neap_forward_options *o) {
    if (s->rows_max == 0) return 0;
    uint64_t slots =
        (uint64_t)s->rows_max * (20 + sizeof(neap_batch_tile)) + (uint64_t)s->seqs_max * sizeof(neap_batch_segment);
    uint64_t traces = (uint64_t)s->n_ops * ((o->enable_trace ? sizeof(neap_op_time) * (uint64_t)workers_of(o) : 0) +
                                            (o->enable_hash ? sizeof(uint64_t) : 0));
    uint64_t plan = s->args_bytes + neap_plan_bytes(s->n_ops);
    return slots + traces + plan + sizeof(neap_counter) * (uint64_t)neap_layout_counters(s->layout);
}

void neap_stage_clear(neap_stage *s) {
    s->batch.n_rows = s->batch.n_segments = s->batch.n_logits = s->batch.n_tiles = 0;
    s->has_run = false;
}

static void add_tiles(neap_batch *b, int32_t segment, int32_t tile_rows) {
    const neap_batch_segment *s = &b->segments[segment];
    for (int32_t i = 0; i < s->n_rows; i++) {
        int64_t split = neap_attend_split(s->position + i + 1);
        neap_batch_tile *t = i > 0 ? &b->tiles[b->n_tiles - 1] : NULL;
        if (t == NULL || t->n_rows == tile_rows || split != neap_attend_split(s->position + i)) {
            t = &b->tiles[b->n_tiles++];
            *t = (neap_batch_tile){.segment = segment, .row_begin = s->row_begin + i};
        }
        t->n_rows++;
    }
}

void neap_stage_add(neap_stage *stage, const neap_segment *s, int32_t tile_rows) {
    neap_batch *b = &stage->batch;
    int32_t i = b->n_segments++;
    assert(i < stage->seqs_max);
    assert(s->n_rows >= 1 && s->n_rows <= stage->rows_max - b->n_rows);
    b->segments[i] = (neap_batch_segment){.slot = s->slot,
                                          .row_begin = b->n_rows,
                                          .n_rows = s->n_rows,
                                          .position = s->position,
                                          .tap = s->tap,
                                          .tap_user = s->tap_user};
    for (int32_t r = 0; r < s->n_rows; r++) {
        int32_t row = b->n_rows + r;
        b->tokens[row] = s->tokens ? s->tokens[r] : 0;
        b->row_segment[row] = i;
        b->row_position[row] = s->position + r;
        if (!s->wants_all_logits && !(s->wants_logits && r == s->n_rows - 1)) continue;
        assert(b->n_logits < stage->logits_max);
        b->logit_rows[b->n_logits++] = row;
    }
    b->n_rows += s->n_rows;
    add_tiles(b, i, tile_rows);
}
