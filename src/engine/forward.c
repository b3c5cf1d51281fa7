/* One step of the model: life, memory, and steps.
 *
 * Plans are captured once per shape class (forward_plan.c); a step only fills the class's slots and replays its plan. A
 * step of few rows takes the plan with the fewest barriers. Where decoding sequences and prompts may go side by side
 * (NEAP_USE_MIXED), one step runs both plans at the same time, each by its own part of the team.
 *
 * How many workers run is asked again every second: an affinity mask or quota that has shrunk would make the whole
 * lock-step team wait for a worker that has no CPU.
 *
 * Memory: everything is claimed in create, from one arena. The same emit code runs dry first, so that
 * neap_forward_memory announces exactly what create will claim. */
#include "engine/forward.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "engine/forward_internal.h"
#include "engine/prefix_disk.h"
#include "runtime/cores.h"

static const int64_t USABLE_EVERY_NS = 1000000000;
enum { SPACES_MAX = 4096 };

static void fill_cache_specs(const neap_network *net, const neap_forward_options *o, neap_cache_layer_spec *specs) {
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        specs[i] = l->mixer == NEAP_MIXER_KDA ? neap_kda_cache(&l->spec.kda)
                                              : neap_mla_cache(&l->spec.mla, o->latent_kind, o->index_kind);
    }
}

/* Pages in all: every sequence may leave its last page part empty. With a prefix cache more than all sequences can fill
 * is of use, and one that a prompt branches off in is there twice. */
static int64_t pages_of(const neap_forward_options *o) {
    int64_t whole = o->seqs_max * neap_forward_pages_for(o->context_max) + (o->has_prefix ? o->seqs_max : 0);
    if (o->cache_tokens_max <= 0) return whole;
    int64_t asked = neap_forward_pages_for(o->cache_tokens_max) + o->seqs_max;
    return asked < whole || (o->has_prefix && asked <= INT32_MAX) ? asked : whole;
}

static neap_prefix_options prefix_options(const neap_forward_options *o) {
    /* Spaces have nodes, too. */
    const int32_t n_pages = (int32_t)pages_of(o), n_spaces = n_pages < SPACES_MAX ? n_pages : SPACES_MAX;
    const int32_t n_nodes = n_pages <= INT32_MAX - n_spaces ? n_pages + n_spaces : n_pages;
    neap_prefix_options p = {.n_states = o->checkpoints, .n_nodes = n_nodes, .hash_bits = 128};
    if (getrandom(&p.hash_seed, sizeof p.hash_seed, GRND_NONBLOCK) == (ssize_t)sizeof p.hash_seed) return p;
    struct timespec t; /* early in the life of a machine */
    (void)clock_gettime(CLOCK_REALTIME, &t);
    p.hash_seed = (uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec;
    return p;
}

/* Values of the longest cached row. */
static int64_t row_floats(const neap_cache_layer_spec *specs, int32_t n_layers) {
    int64_t most = 1;
    for (int32_t i = 0; i < n_layers; i++) {
        int64_t latent = (int64_t)specs[i].latent.r + specs[i].latent.dr;
        if (latent > most) most = latent;
        if (specs[i].index.d > most) most = specs[i].index.d;
    }
    return most;
}

/* Bytes of the prefix cache, and of what copies it to a disk. */
static bool prefix_bytes(const neap_cache_layer_spec *specs, const neap_model *m, const neap_forward_options *o,
                         uint64_t *bytes) {
    *bytes = 0;
    if (!o->has_prefix) return true;
    const neap_caches sketch = {.n_layers = m->net.n_layers,
                                .n_slots = o->seqs_max,
                                .n_pages = (int32_t)pages_of(o),
                                .slot_pages_max = (int32_t)neap_forward_pages_for(o->context_max),
                                .specs = specs};
    const neap_prefix_options p = prefix_options(o);
    uint64_t disk = 0;
    if (!neap_prefix_bytes(&sketch, &p, bytes)) return false;
    if (o->has_prefix_dir && !neap_prefix_disk_bytes(&sketch, &disk)) return false;
    if (__builtin_add_overflow(*bytes, disk, bytes)) return false;
    return !__builtin_add_overflow(*bytes, (uint64_t)row_floats(specs, m->net.n_layers) * sizeof(float) + 64, bytes);
}

static void forget_layouts(neap_stage stages[NEAP_STAGES]) {
    for (int i = 0; i < NEAP_STAGES; i++) {
        neap_layout_destroy(stages[i].layout);
        stages[i].layout = NULL;
    }
}

static neap_status measure_stages(neap_stage stages[NEAP_STAGES], const neap_model *m, const neap_forward_options *o,
                                  neap_tuning *tuning) {
    NEAP_TRY(neap_stages_shape(stages, o, tuning));
    for (int i = 0; i < NEAP_STAGES; i++) {
        if (stages[i].rows_max == 0) continue;
        neap_status status = neap_stage_measure(&stages[i], m, o, tuning);
        if (status == NEAP_OK) continue;
        forget_layouts(stages);
        return status;
    }
    return NEAP_OK;
}

/* Of both classes: side by side where they may run together. */
static uint64_t region_bytes(const neap_stage stages[NEAP_STAGES], const neap_forward_options *o,
                             const neap_tuning *tuning) {
    uint64_t few = stages[NEAP_STAGE_FEW].region_bytes, many = stages[NEAP_STAGE_MANY].region_bytes;
    if (neap_stages_run_together(o, tuning)) return few + many;
    return few > many ? few : many;
}

neap_status neap_forward_memory(const neap_model *m, const neap_forward_options *o, uint64_t *state, uint64_t *cache,
                                uint64_t *work) {
    NEAP_TRY(neap_forward_check(o));
    void *p;
    NEAP_TRY(neap_mem_alloc((size_t)m->net.n_layers * sizeof(neap_cache_layer_spec), &p));
    fill_cache_specs(&m->net, o, p);
    neap_caches_size size;
    bool ok = neap_caches_bytes(p, m->net.n_layers, o->seqs_max, (int32_t)pages_of(o),
                                (int32_t)neap_forward_pages_for(o->context_max), &size);
    uint64_t prefix = 0;
    ok = ok && prefix_bytes(p, m, o, &prefix) && !__builtin_add_overflow(size.state, prefix, &size.state);
    neap_mem_free(p);
    NEAP_CHECK(ok, NEAP_NO_MEMORY, "cache: size overflow");
    neap_stage stages[NEAP_STAGES];
    neap_tuning tuning;
    NEAP_TRY(measure_stages(stages, m, o, &tuning));
    *state = size.state;
    *cache = size.pages;
    *work = region_bytes(stages, o, &tuning) + size.books + (uint64_t)o->batch_tokens_max * sizeof(float *);
    for (int i = 0; i < NEAP_STAGES; i++) *work += neap_stage_book_bytes(&stages[i], o);
    forget_layouts(stages);
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

static neap_status create_stage(neap_forward *f, neap_stage *s, char *work) {
    s->work = work;
    NEAP_TRY(neap_stage_slots(s, f->arena));
    NEAP_TRY(neap_forward_array(f->arena, neap_layout_counters(s->layout), sizeof *s->counters, &s->counters));
    if (f->options.enable_trace)
        NEAP_TRY(neap_forward_array(f->arena, (int64_t)s->n_ops * neap_team_size(f->team), sizeof *s->trace.times,
                                    &s->trace.times));
    if (f->options.enable_hash)
        NEAP_TRY(neap_forward_array(f->arena, s->n_ops, sizeof *s->trace.hashes, &s->trace.hashes));
    /* Without plans this one only lists what there is. */
    NEAP_TRY(neap_plan_create(&s->plan, f->arena, s->n_ops));
    return neap_stage_emit(s, f, false, 0);
}

static neap_status create_stages(neap_forward *f) {
    void *work;
    neap_stage *few = &f->stages[NEAP_STAGE_FEW], *many = &f->stages[NEAP_STAGE_MANY];
    NEAP_TRY(neap_arena_alloc_raw(f->arena, region_bytes(f->stages, &f->options, &f->tuning), &work));
    bool together = neap_stages_run_together(&f->options, &f->tuning);
    if (few->rows_max) NEAP_TRY(create_stage(f, few, work));
    if (many->rows_max) NEAP_TRY(create_stage(f, many, (char *)work + (together ? few->region_bytes : 0)));
    return NEAP_OK;
}

static neap_status create_prefix(neap_forward *f) {
    if (!f->options.has_prefix) return NEAP_OK;
    const neap_prefix_options p = prefix_options(&f->options);
    NEAP_TRY(neap_forward_array(f->arena, row_floats(f->cache_specs, f->model->net.n_layers), sizeof *f->row, &f->row));
    return neap_prefix_create(&f->prefix, f->arena, &f->caches, &p);
}

static neap_pin pin_of(int32_t pinning) {
    static const neap_pin pins[] = {NEAP_PIN_SPREAD, NEAP_PIN_NONE, NEAP_PIN_SPREAD, NEAP_PIN_FIXED};
    return pins[pinning];
}

neap_status neap_forward_create(neap_forward **out, const neap_model *m, const neap_forward_options *o) {
    *out = NULL;
    NEAP_TRY(neap_forward_check(o));
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
    if (f->options.n_threads_batch == 0) f->options.n_threads_batch = o->n_threads;
    f->rows_max = o->batch_tokens_max;
    f->seqs_max = o->seqs_max;
    neap_kernels_init(&f->kernels, m->cpu_flags);
    NEAP_TRY_GOTO(measure_stages(f->stages, m, o, &f->tuning));
    f->options.tuning = &f->tuning;
    NEAP_TRY_GOTO(neap_forward_array(f->arena, f->rows_max, sizeof *f->row_logits, &f->row_logits));
    NEAP_TRY_GOTO(neap_forward_array(f->arena, m->net.n_layers, sizeof *f->cache_specs, &f->cache_specs));
    fill_cache_specs(&m->net, o, f->cache_specs);
    NEAP_TRY_GOTO(neap_caches_create(&f->caches, arena, f->cache_specs, m->net.n_layers, o->seqs_max,
                                     (int32_t)pages_of(o), (int32_t)neap_forward_pages_for(o->context_max)));
    NEAP_TRY_GOTO(create_prefix(f));
    int32_t few = o->n_threads, many = f->options.n_threads_batch;
    NEAP_TRY_GOTO(neap_team_create(&f->team, few > many ? few : many, pin_of(f->tuning.pinning)));
    NEAP_TRY_GOTO(create_stages(f));
    if (o->touches) NEAP_TRY_GOTO(neap_arena_populate(arena));
    *out = f;
    return NEAP_OK;
fail:
    if (f != NULL) {
        forget_layouts(f->stages);
        neap_team_destroy(f->team);
    }
    neap_arena_destroy(arena); /* f lies in it */
    return status;
}

void neap_forward_destroy(neap_forward *f) {
    if (!f) return;
    neap_team_destroy(f->team);
    forget_layouts(f->stages);
    neap_arena_destroy(f->arena);
}

/* ---- sequences ---- */

neap_status neap_forward_open(neap_forward *f, int64_t n_tokens, int32_t *slot) {
    return neap_caches_open(&f->caches, n_tokens, slot);
}

neap_status neap_forward_extend(neap_forward *f, int32_t slot, int64_t n_tokens) {
    return neap_caches_extend(&f->caches, slot, n_tokens);
}

neap_status neap_forward_close(neap_forward *f, int32_t slot) { return neap_caches_close(&f->caches, slot); }

int64_t neap_forward_cache_used(const neap_forward *f) {
    return (int64_t)(f->caches.n_pages - f->caches.n_free) * NEAP_PAGE_ROWS;
}

int64_t neap_forward_cache_total(const neap_forward *f) { return (int64_t)f->caches.n_pages * NEAP_PAGE_ROWS; }

neap_prefix *neap_forward_prefix(neap_forward *f) { return f->prefix; }

neap_caches *neap_forward_cache_books(neap_forward *f) { return &f->caches; }

uint64_t neap_forward_state_bytes(const neap_model *m) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < m->net.n_layers; i++) {
        if (m->net.layers[i].mixer != NEAP_MIXER_KDA) continue;
        neap_cache_layer_spec c = neap_kda_cache(&m->net.layers[i].spec.kda);
        bytes += (uint64_t)(c.state_floats + c.window_floats) * sizeof(float);
    }
    return bytes;
}

/* x - x is 0, or NaN where x is not finite; four sums, so that the loop is not one chain of additions. */
static bool are_finite(const float *x, int64_t n) {
    float sum[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += x[i + k] - x[i + k];
    for (int64_t i = n & ~(int64_t)3; i < n; i++) sum[0] += x[i] - x[i];
    return sum[0] + sum[1] + (sum[2] + sum[3]) == 0;
}

static bool rows_finite(neap_forward *f, int32_t layer, int32_t slot, int64_t first, int64_t end) {
    const neap_cache_layer_spec *spec = &f->cache_specs[layer];
    for (int64_t i = first; i < end; i++) {
        if (spec->latent.r > 0) {
            neap_caches_get_latent(&f->caches, layer, slot, i, f->row);
            if (!are_finite(f->row, (int64_t)spec->latent.r + spec->latent.dr)) return false;
        }
        if (spec->index.d > 0) {
            neap_caches_get_index(&f->caches, layer, slot, i, f->row);
            if (!are_finite(f->row, spec->index.d)) return false;
        }
    }
    return true;
}

bool neap_forward_is_finite(neap_forward *f, int32_t slot, int64_t first, int64_t end) {
    for (int32_t i = 0; i < f->model->net.n_layers; i++) {
        const neap_cache_layer_spec *spec = &f->cache_specs[i];
        const neap_cache_layer *l = &f->caches.layers[i];
        if (l->state && !are_finite(l->state + slot * spec->state_floats, spec->state_floats)) return false;
        if (l->window && !are_finite(l->window + slot * spec->window_floats, spec->window_floats)) return false;
        if (!rows_finite(f, i, slot, first, end)) return false;
    }
    return true;
}

/* ---- a step ---- */

/* Workers of a step in this class. */
static int32_t workers_for(neap_forward *f, const neap_stage *s) {
    int32_t n = s->is_few ? f->options.n_threads : f->options.n_threads_batch;
    if (f->options.oversubscribe || n == 1) return n;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    if (f->n_usable == 0 || now - f->usable_ns >= USABLE_EVERY_NS) {
        f->n_usable = neap_cores_usable();
        f->usable_ns = now;
    }
    return n < f->n_usable ? n : f->n_usable;
}

static neap_status check_segment(neap_forward *f, const neap_segment *s) {
    NEAP_TRY(neap_caches_check_span(&f->caches, s->slot, s->position, s->n_rows));
    assert(s->slot >= 0 && s->slot < f->seqs_max);
    assert(s->position + s->n_rows <= (int64_t)f->caches.slot_pages[s->slot] * NEAP_PAGE_ROWS);
    for (int32_t r = 0; r < s->n_rows; r++) assert(s->tokens[r] >= 0 && s->tokens[r] < f->model->net.vocab);
    return NEAP_OK;
}

static bool decodes(const neap_segment *s) { return s->n_rows == 1 && s->position > 0; }

/* Rows that decode, when they and the rest may go side by side; else 0. */
static int32_t rows_apart(const neap_forward *f, const neap_segment *segments, int32_t n_segments) {
    if (!neap_stages_run_together(&f->options, &f->tuning)) return 0;
    int32_t n = 0, rest = 0;
    for (int32_t i = 0; i < n_segments; i++) {
        n += decodes(&segments[i]);
        rest += decodes(&segments[i]) ? 0 : segments[i].n_rows;
    }
    return rest > 0 && n <= f->stages[NEAP_STAGE_FEW].rows_max ? n : 0;
}

/* Where the logits of the segment's rows will be. */
static void note_logits(neap_forward *f, const neap_stage *s, int32_t n_rows) {
    const neap_batch *b = &s->batch;
    for (int32_t r = 0; r < n_rows; r++) f->row_logits[f->n_rows + r] = NULL;
    for (int32_t i = b->n_logits; i-- > 0 && b->logit_rows[i] >= b->n_rows - n_rows;)
        f->row_logits[f->n_rows + b->logit_rows[i] - (b->n_rows - n_rows)] =
            s->logits + (int64_t)i * f->model->net.vocab;
    f->n_rows += n_rows;
}

static neap_status run_stage(neap_forward *f, neap_stage *s) {
    int32_t n = workers_for(f, s);
    s->has_run = true;
    if (f->options.is_eager) return neap_stage_emit(s, f, true, n);
    neap_plan_run(s->plan, f->team, n, neap_stage_trace(s));
    return NEAP_OK;
}

static void run_together(neap_forward *f, int32_t n) {
    neap_stage *few = &f->stages[NEAP_STAGE_FEW], *many = &f->stages[NEAP_STAGE_MANY];
    int32_t first = f->tuning.mixed_workers < n ? f->tuning.mixed_workers : n - 1;
    few->has_run = many->has_run = true;
    neap_plan_run_both(few->plan, many->plan, f->team, n, first, neap_stage_trace(few), neap_stage_trace(many));
}

neap_status neap_forward_run(neap_forward *f, const neap_segment *segments, int32_t n_segments) {
    NEAP_CHECK(n_segments >= 1 && n_segments <= f->seqs_max, NEAP_INTERNAL, "step: %d segments, at most %d", n_segments,
               f->seqs_max);
    neap_stage *few = &f->stages[NEAP_STAGE_FEW], *many = &f->stages[NEAP_STAGE_MANY];
    int poison = neap_memory_poison_byte(); /* nothing in the work region outlives a step */
    int32_t n_rows = 0;
    for (int i = 0; i < NEAP_STAGES; i++) {
        neap_stage_clear(&f->stages[i]);
        if (poison >= 0 && f->stages[i].rows_max) memset(f->stages[i].work, poison, f->stages[i].region_bytes);
    }
    for (int32_t i = 0; i < n_segments; i++) {
        NEAP_TRY(check_segment(f, &segments[i]));
        n_rows += segments[i].n_rows;
    }
    int32_t n_workers = workers_for(f, many);
    bool apart = n_workers > 1 && rows_apart(f, segments, n_segments) > 0;
    neap_stage *all = n_rows <= few->rows_max ? few : many;
    f->n_rows = 0;
    for (int32_t i = 0; i < n_segments; i++) {
        neap_stage *s = !apart ? all : decodes(&segments[i]) ? few : many;
        neap_stage_add(s, &segments[i], f->tuning.tile_rows);
        note_logits(f, s, segments[i].n_rows);
    }
    f->n_steps++;
    if (!apart) return run_stage(f, all);
    run_together(f, n_workers);
    return NEAP_OK;
}

float *neap_forward_logits(neap_forward *f, int32_t r) { return r < 0 || r >= f->n_rows ? NULL : f->row_logits[r]; }

uint64_t neap_forward_emissions(const neap_forward *f) { return f->n_emissions; }

static void show_stage(const neap_forward *f, const neap_stage *s, neap_trace_fn fn, void *user) {
    const neap_op_time none = {0, 0};
    int32_t n_workers = neap_team_size(f->team);
    for (int32_t i = 0; i < s->n_ops; i++) {
        for (int32_t w = 0; w < n_workers; w++) {
            neap_op_record r = {.struct_size = sizeof r, .op = i, .worker = w, .n_workers = n_workers, .layer = -1};
            const neap_op_time *t = s->trace.times ? &s->trace.times[(int64_t)i * n_workers + w] : &none;
            const neap_op *op = neap_plan_at(s->plan, i);
            r.name = op->name;
            r.layer = op->layer;
            r.stream = op->stream;
            r.phase = neap_plan_phase_of(s->plan, i);
            r.begin_ns = t->begin_ns;
            r.end_ns = t->end_ns;
            r.hash = s->trace.hashes ? s->trace.hashes[i] : 0;
            fn(user, &r);
        }
    }
}

void neap_forward_trace(const neap_forward *f, neap_trace_fn fn, void *user) {
    for (int i = 0; i < NEAP_STAGES; i++)
        if (f->stages[i].has_run) show_stage(f, &f->stages[i], fn, user);
}
