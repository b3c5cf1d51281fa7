/* The engine: what is claimed once, and the step that moves every running sequence.
 *
 * One step (neap_step):
 *   1. sequences that were cancelled end, running or waiting
 *   2. running ones grow, waiting ones are admitted (admission.c)
 *   3. the scheduler deals the rows of the step (scheduler.c): readers first, prompts in chunks
 *   4. the forward computes all rows together (forward.c)
 *   5. every sequence takes its results: progress, a token, its end (sequence.c), as events (events.c)
 * Sequences that have ended leave the running list at once; their handles live until neap_seq_free.
 *
 * A step that ended, admitted or computed something is NEAP_OK, and so is one that waited some milliseconds for the
 * disk because there was nothing else. NEAP_AGAIN: nothing will happen before a submit, a cancel or a
 * resume; whoever drives the engine may sleep until then.
 *
 * Owns: the forward (work buffers, caches, worker team), sampler scratch, the event rings, and all handles.
 * Nothing is allocated in a step. The caller's thread drives everything; only neap_cancel and neap_pause may come from
 * another one. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/admission.h"
#include "engine/prefix_use.h"

#define DEFAULT_CONTEXT_MAX 8192
#define DEFAULT_PREFIX_DIR_BYTES (UINT64_C(8) << 30)
/* Recurrent states kept by default, and what of the free memory they may take. */
#define DEFAULT_CHECKPOINTS 64
#define MIN_CHECKPOINTS 4
#define CHECKPOINTS_SHARE 8
/* Events that may wait beyond what one step of all sequences makes. */
#define SPARE_EVENTS 256
#define SPARE_TEXT_BYTES 32768

/* ---- sizes ---- */

static void resolve_checkpoints(neap_engine_options *o, const neap_model *m) {
    const uint64_t bytes = neap_forward_state_bytes(m);
    if (!o->prefix_cache || bytes == 0) o->checkpoints_max = 0;
    if (!o->prefix_cache || bytes == 0 || o->checkpoints_max > 0) return;
    const uint64_t available = o->memory_max > 0 ? o->memory_max : neap_memory_available();
    const uint64_t n = available / CHECKPOINTS_SHARE / bytes;
    o->checkpoints_max = n < MIN_CHECKPOINTS       ? MIN_CHECKPOINTS
                         : n > DEFAULT_CHECKPOINTS ? DEFAULT_CHECKPOINTS
                                                   : (int32_t)n;
}

neap_status neap_engine_options_resolve(neap_engine_options *o, const neap_model *m, const neap_engine_options *in) {
    NEAP_CHECK(m != NULL, NEAP_INVALID_ARGUMENT, "the model is NULL");
    neap_tuning tuning;
    NEAP_TRY(neap_engine_options_take(o, in));
    NEAP_TRY(neap_tuning_take(&tuning, o->tuning));
    if (o->n_threads == 0) o->n_threads = tuning.n_threads;
    if (o->n_threads == 0) o->n_threads = neap_default_threads();
    if (o->n_threads_batch == 0) o->n_threads_batch = tuning.n_threads_batch;
    if (o->n_threads_batch == 0) o->n_threads_batch = o->n_threads;
    if (o->plan == NEAP_PLAN_DEFAULT) o->plan = NEAP_PLAN_REPLAY;
    if (o->context_max == 0) {
        const bool is_small = m->context_max > 0 && m->context_max < DEFAULT_CONTEXT_MAX;
        o->context_max = is_small ? m->context_max : DEFAULT_CONTEXT_MAX;
    }
    if (o->cache_type == NEAP_CACHE_DEFAULT) o->cache_type = NEAP_CACHE_BF16;
    if (o->index_type == NEAP_INDEX_DEFAULT) o->index_type = NEAP_INDEX_BF16;
    if (o->act_type == NEAP_ACT_DEFAULT) o->act_type = NEAP_ACT_INT16;
    if (o->moe_act_type == NEAP_ACT_DEFAULT) o->moe_act_type = o->act_type;
    if (o->cache_tokens_max == 0) o->cache_tokens_max = (uint64_t)o->seqs_max * (uint64_t)o->context_max;
    /* no step can have more rows than the caches have tokens */
    if ((uint64_t)o->batch_tokens_max > o->cache_tokens_max) o->batch_tokens_max = (int32_t)o->cache_tokens_max;
    if (o->queue_tokens_max == 0) o->queue_tokens_max = 64 * (uint64_t)o->context_max;
    if (o->prefix_dir_bytes_max == 0) o->prefix_dir_bytes_max = DEFAULT_PREFIX_DIR_BYTES;
    resolve_checkpoints(o, m);
    return NEAP_OK;
}

neap_forward_options neap_engine_forward_options(const neap_engine_options *o) {
    static const neap_row_kind latents[] = {NEAP_ROWS_BF16, NEAP_ROWS_F32, NEAP_ROWS_BF16, NEAP_ROWS_FP8};
    static const neap_row_kind indexes[] = {NEAP_ROWS_BF16, NEAP_ROWS_F32, NEAP_ROWS_BF16, NEAP_ROWS_MXFP8};
    static const neap_x_form acts[] = {NEAP_X_INT16, NEAP_X_F32, NEAP_X_INT16, NEAP_X_INT8};
    return (neap_forward_options){.n_threads = o->n_threads,
                                  .n_threads_batch = o->n_threads_batch,
                                  .seqs_max = o->seqs_max,
                                  .context_max = o->context_max,
                                  .batch_tokens_max = o->batch_tokens_max,
                                  .cache_tokens_max = (int64_t)o->cache_tokens_max,
                                  .enable_taps = o->enable_taps != 0,
                                  .enable_trace = o->enable_trace != 0,
                                  .enable_hash = o->enable_hash != 0,
                                  .is_eager = o->plan == NEAP_PLAN_EAGER,
                                  .oversubscribe = o->oversubscribe != 0,
                                  .touches = o->touch_memory != 0,
                                  .has_prefix = o->prefix_cache != 0,
                                  .has_prefix_dir = o->prefix_cache && o->prefix_dir != NULL,
                                  .checkpoints = o->checkpoints_max,
                                  .tuning = o->tuning,
                                  .latent_kind = latents[o->cache_type],
                                  .index_kind = indexes[o->index_type],
                                  .act = acts[o->act_type],
                                  .moe_act = acts[o->moe_act_type]};
}

/* Longest ordinary token and, into unsampled unless NULL, the ids that must never be sampled. */
static neap_status scan_tokens(const neap_model *m, size_t *token_bytes_max, int32_t *unsampled, int32_t *n_unsampled) {
    *token_bytes_max = 0;
    *n_unsampled = 0;
    const neap_tokenizer *t = m->tokenizer;
    if (t == NULL) return NEAP_OK;
    const int32_t n_tokens = neap_tokenizer_vocab(t);
    for (int32_t id = 0; id < m->net.vocab; id++) {
        bool is_unsampled = id >= n_tokens || neap_token_is_unsampled(t, id);
        if (!is_unsampled) {
            const char *bytes = NULL;
            size_t n = 0;
            int is_special = 0;
            NEAP_TRY(neap_token_bytes(t, id, &bytes, &n, &is_special));
            if (!is_special && n > *token_bytes_max) *token_bytes_max = n;
        }
        if (!is_unsampled) continue;
        if (unsampled != NULL) unsampled[*n_unsampled] = id;
        (*n_unsampled)++;
    }
    return NEAP_OK;
}

typedef struct ring_sizes {
    uint64_t n_events, text_bytes;
} ring_sizes;

/* A step makes at most BEGIN, PROMPT, TOKEN and DONE per sequence, and DONE of one that was cancelled in its place; the
 * last three with text. */
enum { EVENTS_PER_SEQ = 5, TEXTS_PER_SEQ = 3 };
static ring_sizes size_rings(int32_t seqs_max, size_t text_room) {
    const uint64_t n = (uint64_t)seqs_max;
    return (ring_sizes){.n_events = EVENTS_PER_SEQ * n + SPARE_EVENTS,
                        .text_bytes = (TEXTS_PER_SEQ * n + 4) * (text_room + 1) + 2 * n + SPARE_TEXT_BYTES};
}

static uint64_t mask_words(const neap_model *m) { return ((uint64_t)m->net.vocab + 31) / 32; }

/* What the engine claims besides the forward. */
static uint64_t own_bytes(const neap_model *m, const neap_engine_options *o, size_t token_bytes_max) {
    const ring_sizes rings = size_rings(o->seqs_max, neap_text_room(token_bytes_max, NEAP_STOP_BYTES_MAX));
    const uint64_t per_seq = sizeof(neap_turn) + sizeof(neap_segment) + 3 * sizeof(neap_seq *) + sizeof(neap_seq);
    const uint64_t tokens = o->cache_tokens_max * sizeof(int32_t);
    /* Waiting ones: prompts, and as much again for answers that they begin to write only when they run. */
    const uint64_t queue =
        o->queue_max > 0 ? (uint64_t)o->queue_max * sizeof(neap_seq) + o->queue_tokens_max * 2 * sizeof(int32_t) : 0;
    return sizeof(neap_engine) + neap_sampler_bytes(m->net.vocab) + (uint64_t)m->net.vocab * sizeof(int32_t) +
           mask_words(m) * sizeof(uint32_t) + neap_events_bytes(rings.n_events, rings.text_bytes) +
           (uint64_t)o->seqs_max * per_seq + tokens + queue;
}

static neap_status measure(const neap_model *m, const neap_engine_options *o, neap_memory *memory) {
    size_t token_bytes_max;
    int32_t n_unsampled;
    const neap_forward_options fo = neap_engine_forward_options(o);
    NEAP_TRY(scan_tokens(m, &token_bytes_max, NULL, &n_unsampled));
    NEAP_TRY(neap_forward_memory(m, &fo, &memory->state, &memory->cache, &memory->work));
    const uint64_t parts[] = {memory->work, memory->state, memory->cache};
    uint64_t total = own_bytes(m, o, token_bytes_max);
    neap_forward_row_bytes(m, &fo, &memory->latent_bytes_per_token, &memory->index_bytes_per_token);
    memory->work += total;
    for (int i = 0; i < 3; i++) {
        NEAP_CHECK(!__builtin_add_overflow(total, parts[i], &total), NEAP_LIMIT,
                   "the memory for context_max %d and seqs_max %d is beyond 64 bits", o->context_max, o->seqs_max);
    }
    memory->weights = m->packed_bytes;
    NEAP_CHECK(!__builtin_add_overflow(total, memory->weights, &memory->total), NEAP_LIMIT,
               "the memory for context_max %d and seqs_max %d is beyond 64 bits", o->context_max, o->seqs_max);
    memory->available = neap_memory_available();
    return NEAP_OK;
}

neap_status neap_engine_memory(const neap_model *m, const neap_engine_options *o, neap_memory *out) {
    NEAP_CHECK(out != NULL, NEAP_INVALID_ARGUMENT, "the place for the result is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the result is %zu, this library knows %zu", size, sizeof *out);
    neap_engine_options resolved;
    neap_memory memory = {.struct_size = size};
    NEAP_TRY(neap_engine_options_resolve(&resolved, m, o));
    NEAP_TRY(measure(m, &resolved, &memory));
    memcpy(out, &memory, size);
    return NEAP_OK;
}

/* Refuses before anything is claimed. The weights are there already. */
static neap_status check_memory(const neap_model *m, const neap_engine_options *o) {
    neap_memory memory = {.struct_size = sizeof memory};
    char text[5][NEAP_SIZE_TEXT];
    NEAP_TRY(measure(m, o, &memory));
    const uint64_t need = memory.total - memory.weights;
    const bool is_given = o->memory_max > 0;
    const uint64_t limit = is_given ? o->memory_max : memory.available;
    NEAP_CHECK(need <= limit, NEAP_NO_MEMORY,
               "context_max %d with seqs_max %d needs %s (cache %s, state %s, work %s); %s %s", o->context_max,
               o->seqs_max, neap_size_text(need, text[0]), neap_size_text(memory.cache, text[1]),
               neap_size_text(memory.state, text[2]), neap_size_text(memory.work, text[3]),
               is_given ? "memory_max is" : "the machine has", neap_size_text(limit, text[4]));
    return NEAP_OK;
}

/* ---- life ---- */

static neap_status read_stop_tokens(neap_engine *e) {
    void *p = NULL;
    size_t n = 0;
    const neap_tokenizer *t = e->model->tokenizer;
    if (t == NULL) return NEAP_OK;
    const neap_status status = neap_stop_tokens(t, NULL, 0, &n);
    if (status != NEAP_OK && status != NEAP_TOO_SMALL) return status;
    if (n == 0) return NEAP_OK;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(int32_t), &p));
    NEAP_TRY(neap_stop_tokens(t, p, n, &n));
    e->eos = p;
    e->n_eos = (int32_t)n;
    return NEAP_OK;
}

static neap_status claim_sampler(neap_engine *e) {
    void *p = NULL;
    int32_t n_unsampled = 0;
    NEAP_TRY(scan_tokens(e->model, &e->token_bytes_max, NULL, &n_unsampled));
    NEAP_TRY(neap_arena_array(e->arena, (size_t)n_unsampled, sizeof(int32_t), &p));
    NEAP_TRY(scan_tokens(e->model, &e->token_bytes_max, p, &n_unsampled));
    e->text_room = neap_text_room(e->token_bytes_max, NEAP_STOP_BYTES_MAX);
    neap_kernels_init(&e->kernels, e->model->cpu_flags);
    NEAP_TRY(neap_sampler_init(&e->sampler, e->arena, &e->kernels, e->model->net.vocab, p, n_unsampled));
    NEAP_TRY(neap_arena_array(e->arena, (size_t)mask_words(e->model), sizeof(uint32_t), &p));
    e->mask = p;
    return NEAP_OK;
}

static neap_status claim_lists(neap_engine *e) {
    void *p = NULL;
    const size_t n = (size_t)e->options.seqs_max;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(neap_seq *), &p));
    e->running = p;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(neap_seq *), &p));
    e->in_segment = p;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(neap_seq *), &p));
    e->in_turn = p;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(neap_turn), &p));
    e->turns = p;
    NEAP_TRY(neap_arena_array(e->arena, n, sizeof(neap_segment), &p));
    e->segments = p;
    const ring_sizes rings = size_rings(e->options.seqs_max, e->text_room);
    return neap_events_init(&e->events, e->arena, rings.n_events, rings.text_bytes);
}

static neap_status claim(neap_engine *e) {
    const neap_forward_options fo = neap_engine_forward_options(&e->options);
    NEAP_TRY(claim_sampler(e));
    NEAP_TRY(read_stop_tokens(e));
    NEAP_TRY(claim_lists(e));
    NEAP_TRY(neap_forward_create(&e->forward, e->model, &fo));
    const int64_t cache_total = neap_forward_cache_total(e->forward);
    if (cache_total < e->options.context_max) e->options.context_max = (int32_t)cache_total;
    if (e->options.touch_memory) NEAP_TRY(neap_arena_populate(e->arena));
    e->changes = 1;
    e->has_states = neap_forward_state_bytes(e->model) > 0;
    e->prefix = neap_forward_prefix(e->forward);
    if (e->options.prefix_cache && e->prefix == NULL)
        neap_log_write(&e->log, NEAP_LOG_WARN,
                       "prefix_cache: nothing of this model can be kept; every prompt is computed");
    return neap_prefix_use_open_disk(e);
}

neap_status neap_engine_create(neap_engine **out, const neap_model *m, const neap_engine_options *o) {
    NEAP_CHECK(out != NULL, NEAP_INVALID_ARGUMENT, "the place for the engine is NULL");
    *out = NULL;
    neap_engine_options options;
    NEAP_TRY(neap_engine_options_resolve(&options, m, o));
    NEAP_CHECK(m->is_loaded, NEAP_INVALID_ARGUMENT, "the model was opened with describe_only; it has no weights");
    NEAP_TRY(check_memory(m, &options));
    const neap_log log = {.fn = options.log, .user = options.log_user};
    if (m->context_max > 0 && options.context_max > m->context_max) {
        neap_log_write(&log, NEAP_LOG_WARN, "context_max %d is more than the %d tokens that the model was made for",
                       options.context_max, m->context_max);
    }

    neap_status status = NEAP_OK;
    neap_arena *arena = NULL;
    void *p = NULL;
    neap_engine *e = NULL;
    NEAP_TRY(neap_arena_create(&arena, "engine"));
    NEAP_TRY_GOTO(neap_arena_alloc(arena, sizeof(neap_engine), &p));
    e = p;
    e->arena = arena;
    e->model = m;
    e->options = options;
    e->log = log;
    NEAP_TRY_GOTO(claim(e));
    e->options.tuning = NULL; /* the caller's; the forward has a copy */
    e->options.prefix_dir = NULL;
    *out = e;
    return NEAP_OK;
fail:
    if (e != NULL) {
        neap_prefix_disk_close(e->disk);
        neap_forward_destroy(e->forward);
    }
    neap_arena_destroy(arena);
    return status;
}

void neap_engine_destroy(neap_engine *e) {
    if (e == NULL) return;
    assert(!e->is_stepping);
    neap_prefix_disk_close(e->disk); /* it reads pages */
    e->disk = NULL;
    while (e->first != NULL) neap_seq_destroy(e->first);
    neap_forward_destroy(e->forward);
    neap_arena_destroy(e->arena);
}

/* ---- a step ---- */

static void drop_finished(neap_engine *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        neap_seq *s = e->running[i];
        if (s->is_done) {
            s->place = NEAP_SEQ_NOWHERE;
            e->changes++;
        } else {
            e->running[n++] = s;
        }
    }
    e->n_running = n;
}

static bool have_room(const neap_engine *e, uint64_t n) {
    return neap_events_have_room(&e->events, EVENTS_PER_SEQ * n, TEXTS_PER_SEQ * n * e->text_room, e->text_room);
}

/* The queue may hold more than there is room for events: the rest follows in the next step. True: somebody ended. */
static bool finish_cancelled(neap_engine *e) {
    bool changed = false;
    for (int32_t i = 0; i < e->n_running; i++) {
        if (!neap_seq_is_cancelled(e->running[i])) continue;
        neap_seq_finish(e->running[i], NEAP_FINISH_CANCELLED, NEAP_CANCELLED);
        changed = true;
    }
    drop_finished(e);
    neap_seq *next = NULL;
    for (neap_seq *s = e->queue_first; s != NULL; s = next) {
        next = s->behind;
        if (!neap_seq_is_cancelled(s)) continue;
        if (!have_room(e, (uint64_t)e->options.seqs_max + 1)) break;
        neap_seq_finish(s, NEAP_FINISH_CANCELLED, NEAP_CANCELLED);
        changed = true;
    }
    return changed;
}

/* Tells those who have left the queue. */
static bool begin_admitted(neap_engine *e) {
    bool changed = false;
    for (int32_t i = 0; i < e->n_running; i++) {
        if (e->running[i]->has_begun) continue;
        neap_seq_begin(e->running[i]);
        changed = true;
    }
    return changed;
}

/* Deals the rows and fills the segments, in order of submission. Returns how many segments. */
static int32_t plan_step(neap_engine *e) {
    int32_t n_turns = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        neap_seq *s = e->running[i];
        /* Pause and cancel may have changed since neap_admission_grow looked: no row without its page. */
        if (s->is_blocked || s->n_known > s->n_reserved || neap_seq_is_paused(s)) continue;
        e->turns[n_turns] = (neap_turn){.n_wanted = neap_prefix_use_rows(s, neap_seq_rows_left(s)),
                                        .is_decode = neap_seq_is_decoding(s),
                                        .n_waited = s->n_waited,
                                        .served = s->served};
        e->in_turn[n_turns++] = s;
    }
    neap_schedule(e->turns, n_turns, e->options.batch_tokens_max, &e->clock);
    int32_t n = 0;
    for (int32_t i = 0; i < n_turns; i++) {
        neap_seq *s = e->in_turn[i];
        s->n_waited = e->turns[i].n_waited;
        s->served = e->turns[i].served;
        if (e->turns[i].n_rows == 0) continue;
        neap_seq_fill_segment(s, e->turns[i].n_rows, &e->segments[n]);
        e->in_segment[n++] = s;
    }
    return n;
}

static void settle_step(neap_engine *e, int32_t n_segments, neap_status status) {
    int32_t row = 0;
    for (int32_t i = 0; i < n_segments; i++) {
        const int32_t n_rows = e->segments[i].n_rows;
        row += n_rows;
        if (status != NEAP_OK) {
            neap_seq_finish(e->in_segment[i], NEAP_FINISH_ERROR, status);
        } else {
            float *logits = e->segments[i].wants_logits ? neap_forward_logits(e->forward, row - 1) : NULL;
            neap_seq_advance(e->in_segment[i], n_rows, logits);
        }
    }
    e->n_rows += (uint64_t)row;
    drop_finished(e);
}

/* neap_seq_free from inside a tap could not free at once. */
static void free_deferred(neap_engine *e) {
    neap_seq *next = NULL;
    for (neap_seq *s = e->first; s != NULL; s = next) {
        next = s->next;
        if (s->is_freed) neap_seq_destroy(s);
    }
}

/* Everything between two runs of the model. True: something happened. */
static bool rearrange(neap_engine *e) {
    bool changed = finish_cancelled(e);
    neap_prefix_use_settle(e);
    neap_admission_grow(e);
    drop_finished(e);
    changed |= neap_admission_step(e);
    changed |= begin_admitted(e);
    return changed;
}

/* Somebody could move if it were not for a prefix that is loaded, or pages that are held while they are written. */
static bool waits_for_disk(const neap_engine *e) {
    if (e->disk == NULL || !neap_prefix_disk_is_busy(e->disk)) return false;
    if (e->is_disk_loading) return true;
    for (int32_t i = 0; i < e->n_running; i++) {
        if (e->running[i]->is_blocked && !neap_seq_is_paused(e->running[i])) return true;
    }
    for (const neap_seq *s = e->queue_first; s != NULL && e->n_running < e->options.seqs_max; s = s->behind) {
        if (!neap_seq_is_paused(s)) return true;
    }
    return false;
}

/* Cancelled ones whose DONE has found no room yet. */
static bool waits_for_events(const neap_engine *e) {
    for (const neap_seq *s = e->queue_first; s != NULL; s = s->behind) {
        if (neap_seq_is_cancelled(s)) return true;
    }
    return false;
}

neap_status neap_step(neap_engine *e) {
    NEAP_CHECK(e != NULL, NEAP_INVALID_ARGUMENT, "the engine is NULL");
    NEAP_CHECK(!e->is_stepping, NEAP_INVALID_ARGUMENT, "neap_step was called from inside neap_step");
    neap_events_release(&e->events);
    if (e->n_running == 0 && e->n_waiting == 0) {
        neap_prefix_use_settle(e);
        return NEAP_AGAIN;
    }
    const int64_t n = (int64_t)e->n_running + e->n_waiting;
    NEAP_CHECK(have_room(e, (uint64_t)(n < e->options.seqs_max ? n : e->options.seqs_max)), NEAP_BUSY,
               "%llu events wait; take them with neap_poll first",
               (unsigned long long)(e->events.tail - e->events.head));
    const bool changed = rearrange(e);
    const int32_t n_segments = plan_step(e);
    if (n_segments == 0) {
        NEAP_CHECK(changed || !waits_for_events(e), NEAP_BUSY, "%llu events wait; take them with neap_poll first",
                   (unsigned long long)(e->events.tail - e->events.head));
        if (!changed && !waits_for_disk(e)) return NEAP_AGAIN;
        if (!changed) neap_prefix_use_wait(e);
        return NEAP_OK;
    }
    e->is_stepping = true;
    const int64_t begin = neap_clock_ns();
    const neap_status status = neap_forward_run(e->forward, e->segments, n_segments);
    e->forward_ns += (uint64_t)(neap_clock_ns() - begin);
    e->n_steps++;
    settle_step(e, n_segments, status);
    e->is_stepping = false;
    free_deferred(e);
    return status;
}

neap_status neap_poll(neap_engine *e, neap_event *out) {
    NEAP_CHECK(e != NULL && out != NULL, NEAP_INVALID_ARGUMENT, "the engine or the place for the event is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the event is %zu, this library knows %zu", size, sizeof *out);
    neap_event event;
    if (!neap_events_poll(&e->events, &event)) return NEAP_AGAIN;
    event.struct_size = size;
    memcpy(out, &event, size);
    return NEAP_OK;
}

neap_status neap_engine_statistics(const neap_engine *e, neap_engine_stats *out) {
    NEAP_CHECK(e != NULL && out != NULL, NEAP_INVALID_ARGUMENT, "the engine or the place for the result is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the result is %zu, this library knows %zu", size, sizeof *out);
    int64_t used = 0; /* slots that finished sequences still hold are free for the asking */
    for (int32_t i = 0; i < e->n_running; i++) used += e->running[i]->cache_tokens;
    neap_prefix_stats prefix = {0};
    neap_prefix_disk_stats disk = {0};
    if (e->prefix != NULL) neap_prefix_statistics(e->prefix, &prefix);
    if (e->disk != NULL) neap_prefix_disk_statistics(e->disk, &disk);
    const neap_engine_stats stats = {.struct_size = size,
                                     .steps = e->n_steps,
                                     .rows = e->n_rows,
                                     .prompt_tokens = e->n_prompt_tokens,
                                     .new_tokens = e->n_new_tokens,
                                     .nonfinite_rows = e->n_nonfinite,
                                     .seqs_running = e->n_running,
                                     .n_threads = e->options.n_threads,
                                     .cache_tokens_used = (uint64_t)used,
                                     .cache_tokens_total = (uint64_t)neap_forward_cache_total(e->forward),
                                     .forward_ns = e->forward_ns,
                                     .plan_emissions = neap_forward_emissions(e->forward),
                                     .seqs_waiting = e->n_waiting,
                                     .waiting_tokens = e->waiting_tokens,
                                     .prefix_queries = e->n_prefix_tokens_asked,
                                     .prefix_hits = e->n_prefix_tokens_found,
                                     .prefix_requests = e->n_prefix_asked,
                                     .prefix_found = e->n_prefix_found,
                                     .prefix_tokens = (uint64_t)prefix.n_pages_only * NEAP_PAGE_ROWS,
                                     .prefix_evicted = prefix.n_evicted_states + prefix.n_evicted_pages,
                                     .checkpoints_used = prefix.n_states_used,
                                     .checkpoints_total = prefix.n_states,
                                     .preemptions = e->n_preemptions,
                                     .disk_saves = disk.n_saved,
                                     .disk_loads = disk.n_loaded,
                                     .disk_rejects = disk.n_rejected,
                                     .disk_bytes = disk.bytes};
    memcpy(out, &stats, size);
    return NEAP_OK;
}

neap_status neap_engine_trace(const neap_engine *e, neap_trace_fn fn, void *user) {
    NEAP_CHECK(e != NULL && fn != NULL, NEAP_INVALID_ARGUMENT, "neap_engine_trace: the engine or fn is NULL");
    NEAP_CHECK(e->options.enable_trace || e->options.enable_hash, NEAP_INVALID_ARGUMENT,
               "neap_engine_trace needs an engine made with enable_trace or enable_hash");
    neap_forward_trace(e->forward, fn, user);
    return NEAP_OK;
}
