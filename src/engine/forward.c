/* One step of the model: builds the plan once, then only fills the batch slots and replays it.
 *
 *   embed, then per layer: residual (add, mix, snapshot, norm), mixer (KDA or MLA), residual, feed-forward;
 *   last residual (add, output mix, final norm), head for the rows that want logits.
 *
 * Memory: everything is claimed in create, from one arena. The same emit code runs dry first, so that
 * neap_forward_memory announces exactly what create will claim. */
#include "engine/forward.h"

#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"

/* ---- what a plan for these options consists of ---- */

typedef struct layout {
    neap_stream stream;
    neap_selection selection;
    float *logits;
} layout;

static int32_t topk_max(const neap_network *net) {
    int32_t k = 0;
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        if (l->mixer == NEAP_MIXER_MLA && l->spec.mla.has_index && l->spec.mla.index.topk > k)
            k = l->spec.mla.index.topk;
    }
    return k;
}

static int32_t logits_max_of(const neap_forward_options *o) {
    return o->enable_taps ? o->batch_tokens_max : o->seqs_max < o->batch_tokens_max ? o->seqs_max : o->batch_tokens_max;
}

/* Buffers that live through the whole step, then all ops. */
static void emit_step(neap_builder *b, layout *l, int32_t logits_max) {
    const neap_network *net = b->net;
    int64_t rows = b->rows_max, c = net->width;
    neap_stream *s = &l->stream;
    neap_builder_begin(b);
    neap_stream_claim(b, s);
    int32_t topk = topk_max(net);
    l->selection.ld = topk;
    if (topk) {
        l->selection.lists = neap_builder_ints(b, rows * topk);
        l->selection.n_lists = neap_builder_ints(b, rows);
    }
    l->logits = neap_builder_floats(b, (int64_t)logits_max * net->vocab);

    neap_embed_emit(b, s);
    for (int32_t i = 0; i < net->n_layers; i++) {
        neap_layer *layer = &net->layers[i];
        b->layer = i;
        bool is_block_start = net->attnres_block && i % net->attnres_block == 0;
        neap_residual_emit(b, s, "residual.attn", layer->attn_res, is_block_start, layer->input_norm);
        neap_tap_emit(b, "hidden", i, s->p, c, c, false);
        if (layer->mixer == NEAP_MIXER_KDA)
            neap_kda_emit(b, &layer->spec.kda, &layer->weights.kda, s->x, s->y);
        else
            neap_mla_emit(b, &layer->spec.mla, &layer->weights.mla, &l->selection, s->x, s->y);
        neap_residual_emit(b, s, "residual.ffn", layer->mlp_res, false, layer->post_norm);
        if (layer->is_moe)
            neap_moe_emit(b, &layer->moe_spec, &layer->moe, s->x, s->y);
        else
            neap_mlp_emit(b, &layer->mlp, layer->mlp_width, s->x, s->y);
    }
    b->layer = -1;
    neap_residual_emit(b, s, "residual.final", net->output_res, false, net->norm);
    neap_tap_emit(b, "hidden", net->n_layers, s->p, c, c, false);
    neap_tap_emit(b, "pre_norm", -1, s->mix ? s->mix : s->p, c, c, false);
    neap_tap_emit(b, "final_norm", -1, s->x, c, c, false);
    neap_head_emit(b, s->x, c, &net->head, l->logits, net->vocab);
    neap_tap_logits_emit(b, l->logits, net->vocab);
}

static void fill_cache_specs(const neap_network *net, const neap_forward_options *o, neap_cache_layer_spec *specs) {
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        specs[i] = l->mixer == NEAP_MIXER_KDA ? neap_kda_cache(&l->spec.kda)
                                              : neap_mla_cache(&l->spec.mla, o->latent_kind, o->index_kind);
    }
}

static int64_t pages_for(int64_t tokens) { return (tokens + NEAP_PAGE_ROWS - 1) / NEAP_PAGE_ROWS; }

/* Pages in all: every sequence may leave its last page part empty. */
static int64_t pages_of(const neap_forward_options *o) {
    int64_t whole = o->seqs_max * pages_for(o->context_max);
    if (o->cache_tokens_max <= 0) return whole;
    int64_t asked = pages_for(o->cache_tokens_max) + o->seqs_max;
    return asked < whole ? asked : whole;
}

static neap_status check_options(const neap_forward_options *o) {
    NEAP_CHECK(o->n_threads >= 1 && o->n_threads <= NEAP_TEAM_MAX, NEAP_INVALID_ARGUMENT,
               "n_threads: %d is outside 1 .. %d", o->n_threads, NEAP_TEAM_MAX);
    NEAP_CHECK(o->seqs_max >= 1 && o->seqs_max <= 65536, NEAP_INVALID_ARGUMENT, "seqs_max: %d is outside 1 .. 65536",
               o->seqs_max);
    NEAP_CHECK(o->batch_tokens_max >= 1 && o->batch_tokens_max <= 65536, NEAP_INVALID_ARGUMENT,
               "batch_tokens_max: %d is outside 1 .. 65536", o->batch_tokens_max);
    NEAP_CHECK(o->context_max >= 1, NEAP_INVALID_ARGUMENT, "context_max: %d is below 1", o->context_max);
    NEAP_CHECK(pages_of(o) <= INT32_MAX, NEAP_INVALID_ARGUMENT, "context_max: %d tokens x %d sequences is too much",
               o->context_max, o->seqs_max);
    return NEAP_OK;
}

static neap_builder builder_of(const neap_model *m, const neap_forward_options *o) {
    return (neap_builder){.net = &m->net,
                          .rows_max = o->batch_tokens_max,
                          .seqs_max = o->seqs_max,
                          .n_workers = o->n_threads,
                          .context_max = pages_for(o->context_max) * NEAP_PAGE_ROWS,
                          .latent_kind = o->latent_kind,
                          .index_kind = o->index_kind,
                          .act = o->act,
                          .moe_act = o->moe_act,
                          .has_taps = o->enable_taps,
                          .keeps_all = o->keeps_all,
                          .layer = -1};
}

/* Small slots beside the work region. */
static uint64_t slot_bytes(const neap_forward_options *o) {
    return (uint64_t)o->batch_tokens_max * (24 + sizeof(neap_batch_tile)) +
           (uint64_t)o->seqs_max * sizeof(neap_batch_segment);
}

neap_status neap_forward_memory(const neap_model *m, const neap_forward_options *o, uint64_t *state, uint64_t *cache,
                                uint64_t *work) {
    NEAP_TRY(check_options(o));
    void *p;
    NEAP_TRY(neap_mem_alloc((size_t)m->net.n_layers * sizeof(neap_cache_layer_spec), &p));
    fill_cache_specs(&m->net, o, p);
    neap_caches_size size;
    bool ok = neap_caches_bytes(p, m->net.n_layers, o->seqs_max, (int32_t)pages_of(o),
                                (int32_t)pages_for(o->context_max), &size);
    neap_mem_free(p);
    NEAP_CHECK(ok, NEAP_NO_MEMORY, "cache: size overflow");
    neap_builder b = builder_of(m, o);
    layout l;
    emit_step(&b, &l, logits_max_of(o));
    *state = size.state;
    *cache = size.pages;
    *work = b.work_peak + b.args_bytes + (uint64_t)b.n_ops * sizeof(neap_op) + slot_bytes(o) + size.books;
    return NEAP_OK;
}

void neap_forward_row_bytes(const neap_model *m, const neap_forward_options *o, uint64_t *latent, uint64_t *index) {
    *latent = *index = 0;
    for (int32_t i = 0; i < m->net.n_layers; i++) {
        const neap_layer *l = &m->net.layers[i];
        if (l->mixer != NEAP_MIXER_MLA) continue;
        neap_cache_layer_spec c = neap_mla_cache(&l->spec.mla, o->latent_kind, o->index_kind);
        *latent += (uint64_t)neap_latent_page_bytes(&c.latent) / NEAP_PAGE_ROWS;
        if (c.index.d) *index += (uint64_t)neap_index_page_bytes(&c.index) / NEAP_PAGE_ROWS;
    }
}

/* ---- create and destroy ---- */

static neap_status array(neap_forward *f, int64_t n, size_t size, void *out) {
    void *p;
    NEAP_TRY(neap_arena_array(f->arena, (size_t)n, size, &p));
    *(void **)out = p;
    return NEAP_OK;
}

static neap_status create_slots(neap_forward *f) {
    neap_batch *b = &f->batch;
    NEAP_TRY(array(f, f->rows_max, sizeof *b->tokens, &b->tokens));
    NEAP_TRY(array(f, f->rows_max, sizeof *b->row_segment, &b->row_segment));
    NEAP_TRY(array(f, f->rows_max, sizeof *b->row_position, &b->row_position));
    NEAP_TRY(array(f, f->logits_max, sizeof *b->logit_rows, &b->logit_rows));
    NEAP_TRY(array(f, f->seqs_max, sizeof *b->segments, &b->segments));
    NEAP_TRY(array(f, f->rows_max, sizeof *b->tiles, &b->tiles));
    NEAP_TRY(array(f, f->rows_max, sizeof *f->row_logits, &f->row_logits));
    return NEAP_OK;
}

static neap_status create_plan(neap_forward *f) {
    neap_builder dry = builder_of(f->model, &f->options);
    layout l;
    emit_step(&dry, &l, f->logits_max);
    neap_builder b = builder_of(f->model, &f->options);
    b.k = &f->kernels;
    b.batch = &f->batch;
    b.caches = &f->caches;
    b.arena = f->arena;
    void *work;
    NEAP_TRY(neap_arena_alloc_raw(f->arena, dry.work_peak, &work));
    f->work = work;
    f->work_bytes = dry.work_peak;
    NEAP_TRY(neap_plan_create(&f->plan, f->arena, dry.n_ops));
    b.work = work;
    b.plan = f->plan;
    emit_step(&b, &l, f->logits_max);
    assert(b.work_peak == dry.work_peak);
    f->logits = l.logits;
    return b.status;
}

neap_status neap_forward_create(neap_forward **out, const neap_model *m, const neap_forward_options *o) {
    *out = NULL;
    NEAP_TRY(check_options(o));
    NEAP_CHECK(m->is_loaded, NEAP_INVALID_ARGUMENT, "the model was opened with describe_only: it holds no weights");
    neap_arena *arena = NULL;
    neap_forward *f = NULL;
    neap_status status;
    void *p;
    NEAP_TRY(neap_arena_create(&arena, "engine"));
    NEAP_TRY_GOTO(neap_arena_alloc(arena, sizeof *f, &p));
    f = p;
    f->arena = arena;
    f->model = m;
    f->options = *o;
    f->rows_max = o->batch_tokens_max;
    f->seqs_max = o->seqs_max;
    f->logits_max = logits_max_of(o);
    neap_kernels_init(&f->kernels, m->cpu_flags);
    NEAP_TRY_GOTO(create_slots(f));
    NEAP_TRY_GOTO(array(f, m->net.n_layers, sizeof *f->cache_specs, &f->cache_specs));
    fill_cache_specs(&m->net, o, f->cache_specs);
    NEAP_TRY_GOTO(neap_caches_create(&f->caches, arena, f->cache_specs, m->net.n_layers, o->seqs_max,
                                     (int32_t)pages_of(o), (int32_t)pages_for(o->context_max)));
    NEAP_TRY_GOTO(create_plan(f));
    NEAP_TRY_GOTO(neap_team_create(&f->team, o->n_threads));
    *out = f;
    return NEAP_OK;
fail:
    neap_arena_destroy(arena); /* f lies in it */
    return status;
}

void neap_forward_destroy(neap_forward *f) {
    if (!f) return;
    neap_team_destroy(f->team);
    neap_arena_destroy(f->arena);
}

/* ---- sequences ---- */

neap_status neap_forward_open(neap_forward *f, int64_t n_tokens, int32_t *slot) {
    return neap_caches_open(&f->caches, n_tokens, slot);
}

neap_status neap_forward_close(neap_forward *f, int32_t slot) { return neap_caches_close(&f->caches, slot); }

int64_t neap_forward_cache_used(const neap_forward *f) {
    return (int64_t)(f->caches.n_pages - f->caches.n_free) * NEAP_PAGE_ROWS;
}

int64_t neap_forward_cache_total(const neap_forward *f) { return (int64_t)f->caches.n_pages * NEAP_PAGE_ROWS; }

/* ---- a step ---- */

static void fill_tiles(neap_batch *b, int32_t segment) {
    const neap_batch_segment *s = &b->segments[segment];
    for (int32_t i = 0; i < s->n_rows; i++) {
        int64_t split = neap_attend_split(s->position + i + 1);
        neap_batch_tile *t = &b->tiles[b->n_tiles - 1]; /* of this segment when i > 0 */
        if (i == 0 || t->n_rows == NEAP_TILE_ROWS || split != neap_attend_split(s->position + i)) {
            t = &b->tiles[b->n_tiles++];
            *t = (neap_batch_tile){.segment = segment, .row_begin = s->row_begin + i};
        }
        t->n_rows++;
    }
}

static void fill_segment(neap_forward *f, const neap_segment *s) {
    neap_batch *b = &f->batch;
    int32_t i = b->n_segments++;
    assert(s->slot >= 0 && s->slot < f->seqs_max);
    assert(s->n_rows >= 1 && s->n_rows <= f->rows_max - b->n_rows);
    assert(s->position + s->n_rows <= (int64_t)f->caches.slot_pages[s->slot] * NEAP_PAGE_ROWS);
    b->segments[i] = (neap_batch_segment){.slot = s->slot,
                                          .row_begin = b->n_rows,
                                          .n_rows = s->n_rows,
                                          .position = s->position,
                                          .tap = s->tap,
                                          .tap_user = s->tap_user};
    for (int32_t r = 0; r < s->n_rows; r++) {
        int32_t row = b->n_rows + r;
        assert(s->tokens[r] >= 0 && s->tokens[r] < f->model->net.vocab);
        b->tokens[row] = s->tokens[r];
        b->row_segment[row] = i;
        b->row_position[row] = s->position + r;
        bool wants = s->wants_all_logits || (s->wants_logits && r == s->n_rows - 1);
        f->row_logits[row] = wants ? b->n_logits : -1;
        if (wants) {
            assert(b->n_logits < f->logits_max);
            b->logit_rows[b->n_logits++] = row;
        }
    }
    b->n_rows += s->n_rows;
    fill_tiles(b, i);
}

neap_status neap_forward_run(neap_forward *f, const neap_segment *segments, int32_t n_segments) {
    NEAP_CHECK(n_segments >= 1 && n_segments <= f->seqs_max, NEAP_INTERNAL, "step: %d segments, at most %d", n_segments,
               f->seqs_max);
    int poison = neap_memory_poison_byte(); /* nothing in the work region outlives a step */
    if (poison >= 0) memset(f->work, poison, f->work_bytes);
    f->batch.n_rows = f->batch.n_segments = f->batch.n_logits = f->batch.n_tiles = 0;
    for (int32_t i = 0; i < n_segments; i++) {
        const neap_segment *s = &segments[i];
        NEAP_TRY(neap_caches_check_span(&f->caches, s->slot, s->position, s->n_rows));
        fill_segment(f, s);
    }
    neap_plan_run(f->plan, f->team);
    return NEAP_OK;
}

float *neap_forward_logits(neap_forward *f, int32_t r) {
    if (r < 0 || r >= f->batch.n_rows || f->row_logits[r] < 0) return NULL;
    return f->logits + (int64_t)f->row_logits[r] * f->model->net.vocab;
}
