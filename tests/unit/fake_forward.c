/* See fake_forward.h. Checks the forward's contract on the way: slots distinct and open, rows consecutive, all
 * tokens known, never more rows or positions than reserved. */
#include "fake_forward.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A broken contract is a bug of the engine: stop at once, also with NDEBUG. */
#define DEMAND(x)                                                           \
    do {                                                                    \
        if (!(x)) {                                                         \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                        \
        }                                                                   \
    } while (0)

typedef struct fake_slot {
    bool is_open;
    int64_t reserved, n;
    int32_t first;
    uint64_t hash; /* garbage until position 0 is computed */
} fake_slot;

struct neap_forward {
    const neap_model *model;
    neap_forward_options options;
    fake_slot *slots;
    int64_t total, used;
    float *logits;    /* [batch_tokens_max][vocab] */
    bool *has_logits; /* [batch_tokens_max] */
};

fake_control fake = {.nan_position = -1};

void fake_reset(void) {
    memset(&fake, 0, sizeof fake);
    fake.nan_position = -1;
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint64_t extend(uint64_t hash, int32_t token) { return mix(hash * 31 + (uint64_t)token + 1); }

static float logit_of(uint64_t hash, int32_t token) {
    return (float)(mix(hash ^ (uint64_t)(token + 1) * 0x9E3779B97F4A7C15u) >> 40) * (8.0f / 16777216.0f) - 4.0f;
}

float fake_logit(const int32_t *prefix, int64_t n, int32_t token) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++) hash = extend(hash, prefix[i]);
    return logit_of(hash, token);
}

neap_status neap_forward_memory(const neap_model *m, const neap_forward_options *o, uint64_t *state, uint64_t *cache,
                                uint64_t *work) {
    *state = (uint64_t)o->seqs_max * 1000;
    *cache = (uint64_t)o->cache_tokens_max * 256;
    *work = (uint64_t)o->batch_tokens_max * (uint64_t)m->net.vocab * sizeof(float);
    return NEAP_OK;
}

uint64_t neap_forward_emissions(const neap_forward *f) {
    (void)f;
    return 0;
}

void neap_forward_trace(const neap_forward *f, neap_trace_fn fn, void *user) { (void)f, (void)fn, (void)user; }

void neap_forward_row_bytes(const neap_model *m, const neap_forward_options *o, uint64_t *latent, uint64_t *index) {
    (void)m;
    *latent = 2 * (o->latent_kind == NEAP_ROWS_F32 ? 4 : 2);
    *index = 2 * (o->index_kind == NEAP_ROWS_F32 ? 4 : 2);
}

neap_status neap_forward_create(neap_forward **out, const neap_model *m, const neap_forward_options *o) {
    void *p = NULL;
    *out = NULL;
    fake.act = o->act;
    fake.moe_act = o->moe_act;
    NEAP_TRY(neap_mem_alloc(sizeof(neap_forward), &p));
    neap_forward *f = p;
    neap_status status = NEAP_OK;
    f->model = m;
    f->options = *o;
    f->total = (o->cache_tokens_max + 63) / 64 * 64;
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)o->seqs_max * sizeof(fake_slot), &p));
    f->slots = p;
    for (int32_t i = 0; i < o->seqs_max; i++) f->slots[i].hash = 0xDEADBEEFu; /* stale from the start */
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)o->batch_tokens_max * (size_t)m->net.vocab * sizeof(float), &p));
    f->logits = p;
    NEAP_TRY_GOTO(neap_mem_alloc((size_t)o->batch_tokens_max * sizeof(bool), &p));
    f->has_logits = p;
    *out = f;
    return NEAP_OK;
fail:
    neap_forward_destroy(f);
    return status;
}

void neap_forward_destroy(neap_forward *f) {
    if (f == NULL) return;
    neap_mem_free(f->slots);
    neap_mem_free(f->logits);
    neap_mem_free(f->has_logits);
    neap_mem_free(f);
}

neap_status neap_forward_open(neap_forward *f, int64_t n_tokens, int32_t *slot) {
    const int64_t need = (n_tokens + 63) / 64 * 64;
    DEMAND(n_tokens >= 1 && n_tokens <= f->options.context_max);
    NEAP_CHECK(need <= f->total - f->used, NEAP_BUSY, "no cache space for %lld tokens", (long long)n_tokens);
    for (int32_t i = 0; i < f->options.seqs_max; i++) {
        if (f->slots[i].is_open) continue;
        f->slots[i].is_open = true;
        f->slots[i].reserved = need;
        f->slots[i].n = 0;
        f->used += need;
        *slot = i;
        return NEAP_OK;
    }
    NEAP_FAIL(NEAP_BUSY, "no free slot");
}

neap_status neap_forward_extend(neap_forward *f, int32_t slot, int64_t n_tokens) {
    const int64_t need = (n_tokens + 63) / 64 * 64;
    DEMAND(slot >= 0 && slot < f->options.seqs_max && f->slots[slot].is_open);
    DEMAND(need > f->slots[slot].reserved && n_tokens <= f->options.context_max);
    NEAP_CHECK(need - f->slots[slot].reserved <= f->total - f->used, NEAP_BUSY, "no cache space for %lld tokens",
               (long long)n_tokens);
    f->used += need - f->slots[slot].reserved;
    f->slots[slot].reserved = need;
    return NEAP_OK;
}

/* The toy keeps no prefixes. */
neap_prefix *neap_forward_prefix(neap_forward *f) { return (void)f, NULL; }
neap_caches *neap_forward_cache_books(neap_forward *f) { return (void)f, NULL; }
uint64_t neap_forward_state_bytes(const neap_model *m) { return (void)m, 0; }
bool neap_forward_is_finite(neap_forward *f, int32_t slot, int64_t first, int64_t end) {
    return (void)f, (void)slot, (void)first, (void)end, true;
}

neap_status neap_forward_close(neap_forward *f, int32_t slot) {
    DEMAND(slot >= 0 && slot < f->options.seqs_max);
    DEMAND(f->slots[slot].is_open);
    f->slots[slot].is_open = false;
    f->used -= f->slots[slot].reserved;
    NEAP_CHECK(!fake.is_close_bad, NEAP_INTERNAL, "this slot was told to be wrong");
    return NEAP_OK;
}

int64_t neap_forward_cache_used(const neap_forward *f) { return f->used; }
int64_t neap_forward_cache_total(const neap_forward *f) { return f->total; }

static void fill_logits(const neap_forward *f, const fake_slot *s, float *row) {
    for (int32_t i = 0; i < f->model->net.vocab; i++) row[i] = logit_of(s->hash, i);
    for (int32_t k = 0; k < fake.n_scripts; k++) {
        const fake_script *script = &fake.scripts[k];
        const int64_t at = s->n - script->n_prompt;
        if (script->first == s->first && at >= 0 && at < script->n_tokens) row[script->tokens[at]] = 50.0f;
    }
    if (s->first == fake.nan_first && s->n - 1 == fake.nan_position) row[f->model->net.vocab / 2] = NAN;
}

static void run_segment(neap_forward *f, const neap_segment *g, int32_t row) {
    fake_slot *s = &f->slots[g->slot];
    if (g->position == 0) {
        s->hash = 0;
        s->first = g->tokens[0];
    }
    for (int32_t i = 0; i < g->n_rows; i++) {
        DEMAND(g->tokens[i] >= 0 && g->tokens[i] < f->model->net.vocab);
        s->hash = extend(s->hash, g->tokens[i]);
        s->n++;
        const bool wants = g->wants_all_logits || (g->wants_logits && i == g->n_rows - 1);
        f->has_logits[row + i] = wants;
        if (!wants) continue;
        float *logits = f->logits + (int64_t)(row + i) * f->model->net.vocab;
        fill_logits(f, s, logits);
        if (g->tap != NULL) {
            const neap_tap tap = {
                .name = "logits", .rank = 2, .shape = {1, f->model->net.vocab}, .position = s->n - 1, .data = logits};
            g->tap(g->tap_user, &tap);
        }
    }
}

neap_status neap_forward_run(neap_forward *f, const neap_segment *segments, int32_t n_segments) {
    int32_t row = 0;
    fake.n_runs++;
    DEMAND(n_segments >= 1 && n_segments <= f->options.seqs_max);
    if (fake.before_run != NULL) fake.before_run();
    for (int32_t i = 0; i < n_segments; i++) {
        const neap_segment *g = &segments[i];
        DEMAND(g->slot >= 0 && g->slot < f->options.seqs_max);
        for (int32_t k = 0; k < i; k++) DEMAND(segments[k].slot != g->slot);
        const fake_slot *s = &f->slots[g->slot];
        DEMAND(s->is_open);
        DEMAND(g->n_rows >= 1 && g->n_rows <= f->options.batch_tokens_max - row);
        DEMAND(g->position == s->n);
        DEMAND(g->position + g->n_rows <= s->reserved);
        if (fake.n_log < FAKE_LOG_MAX) {
            fake.log[fake.n_log++] = (fake_row){fake.n_runs, g->slot, g->n_rows, g->position};
        }
        run_segment(f, g, row);
        row += g->n_rows;
    }
    if (row > fake.rows_max_seen) fake.rows_max_seen = row;
    NEAP_CHECK(fake.n_runs != fake.fail_run, NEAP_INTERNAL, "this run was told to fail");
    return NEAP_OK;
}

float *neap_forward_logits(neap_forward *f, int32_t r) {
    return f->has_logits[r] ? f->logits + (int64_t)r * f->model->net.vocab : NULL;
}

neap_status neap_forward_caches(neap_forward *f, int32_t slot, int64_t n_tokens, neap_tap_fn tap, void *user) {
    const fake_slot *s = &f->slots[slot];
    const float value = (float)(s->hash >> 40);
    DEMAND(s->is_open);
    DEMAND(s->n == n_tokens);
    const neap_tap t = {.name = "cache.state.0", .rank = 1, .shape = {1}, .position = -1, .data = &value};
    tap(user, &t);
    return NEAP_OK;
}
