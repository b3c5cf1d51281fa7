/* Shows what a sequence remembers, in the layout of the golden files: states [H, Dk, Dv], windows [3P, taps-1],
 * latents, key parts and index keys [T, .]. For tests and `neap verify`; not a save format. */
#include <stdio.h>
#include <string.h>

#include "cache/caches.h"
#include "engine/forward_internal.h"

static void show(const char *name, int32_t layer, int32_t rank, const int64_t shape[4], const float *data,
                 neap_tap_fn tap, void *user) {
    char full[48];
    snprintf(full, sizeof full, "cache.%s.%d", name, layer);
    neap_tap t = {.name = full, .rank = rank, .position = -1, .data = data};
    memcpy(t.shape, shape, sizeof t.shape);
    tap(user, &t);
}

/* State slices [ceil(D/32)][D][32] -> [D][D]. */
static void show_kda(const neap_forward *f, int32_t layer, int32_t slot, float *buffer, neap_tap_fn tap, void *user) {
    const neap_kda_spec *s = &f->model->net.layers[layer].spec.kda;
    const neap_cache_layer_spec *size = &f->cache_specs[layer];
    int64_t d = s->head_dim, h = s->n_heads, head = neap_kda_state_floats(d, d);
    const float *state = f->caches.layers[layer].state + slot * size->state_floats;
    for (int64_t i = 0; i < h; i++)
        for (int64_t k = 0; k < d; k++)
            for (int64_t v = 0; v < d; v++)
                buffer[(i * d + k) * d + v] = state[i * head + v / 32 * d * 32 + k * 32 + v % 32];
    show("state", layer, 3, (int64_t[4]){h, d, d}, buffer, tap, user);
    if (s->conv_k > 1)
        show("conv", layer, 2, (int64_t[4]){3 * h * d, s->conv_k - 1},
             f->caches.layers[layer].window + slot * size->window_floats, tap, user);
}

/* Values [from, from + count) of n rows of `width` values. */
static void cut(const float *rows, int64_t n, int64_t width, int64_t from, int64_t count, float *out) {
    for (int64_t t = 0; t < n; t++) memcpy(out + t * count, rows + t * width + from, (size_t)count * sizeof(float));
}

/* Rotated pairs lie side by side in the cache where RoPE is interleaved; golden files hold the first members of
 * all pairs, then the second. (Scores do not care: queries and keys are permuted alike.) */
static void split_pairs(float *rows, int64_t n, int64_t width, int64_t d_rope, float *spare) {
    for (int64_t t = 0; t < n; t++) {
        float *row = rows + t * width;
        for (int64_t i = 0; i < d_rope / 2; i++) {
            spare[i] = row[2 * i];
            spare[d_rope / 2 + i] = row[2 * i + 1];
        }
        memcpy(row, spare, (size_t)d_rope * sizeof(float));
    }
}

static void show_mla(const neap_forward *f, int32_t layer, int32_t slot, int64_t n, float *buffer, neap_tap_fn tap,
                     void *user) {
    const neap_mla_spec *s = &f->model->net.layers[layer].spec.mla;
    int64_t width = s->kv_lora + s->d_rope, di = f->cache_specs[layer].index.d;
    float *rows = buffer + n * width, *spare = rows + n * (width > di ? width : di);
    for (int64_t t = 0; t < n; t++) neap_caches_get_latent(&f->caches, layer, slot, t, rows + t * width);
    cut(rows, n, width, 0, s->kv_lora, buffer);
    show("latent", layer, 2, (int64_t[4]){n, s->kv_lora}, buffer, tap, user);
    if (s->d_rope) {
        cut(rows, n, width, s->kv_lora, s->d_rope, buffer);
        if (s->rope == NEAP_ROPE_INTERLEAVED) split_pairs(buffer, n, s->d_rope, s->d_rope, spare);
        show("krope", layer, 2, (int64_t[4]){n, s->d_rope}, buffer, tap, user);
    }
    if (di) {
        for (int64_t t = 0; t < n; t++) neap_caches_get_index(&f->caches, layer, slot, t, rows + t * di);
        if (s->index.rope == NEAP_ROPE_INTERLEAVED) split_pairs(rows, n, di, s->d_rope, spare);
        show("ikey", layer, 2, (int64_t[4]){n, di}, rows, tap, user);
    }
}

static int64_t floats_needed(const neap_forward *f, int32_t layer, int64_t n) {
    const neap_layer *l = &f->model->net.layers[layer];
    if (l->mixer == NEAP_MIXER_KDA) return (int64_t)l->spec.kda.n_heads * l->spec.kda.head_dim * l->spec.kda.head_dim;
    const neap_cache_layer_spec *c = &f->cache_specs[layer];
    int64_t width = (int64_t)c->latent.r + c->latent.dr;
    return (2 * n + 1) * (width > c->index.d ? width : c->index.d);
}

neap_status neap_forward_caches(neap_forward *f, int32_t slot, int64_t n_tokens, neap_tap_fn tap, void *user) {
    const neap_network *net = &f->model->net;
    int64_t most = 1;
    for (int32_t i = 0; i < net->n_layers; i++) {
        int64_t need = floats_needed(f, i, n_tokens);
        if (need > most) most = need;
    }
    void *p;
    NEAP_TRY(neap_mem_alloc((size_t)most * sizeof(float), &p));
    for (int32_t i = 0; i < net->n_layers; i++) {
        if (net->layers[i].mixer == NEAP_MIXER_KDA)
            show_kda(f, i, slot, p, tap, user);
        else
            show_mla(f, i, slot, n_tokens, p, tap, user);
    }
    neap_mem_free(p);
    return NEAP_OK;
}
