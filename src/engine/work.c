/* What a step must at least read and multiply, for a comparison with the machine's limits.
 *
 *   rows R = n_seqs * n_tokens; row i of a sequence (from 1) sees p_i = depth + i positions
 *   weights  fixed + experts * (1 - (1 - k/E)^R) + head (if any row wants logits)        bytes, each once
 *            R * (fixed + experts * k/E) + n_logits * head                               multiply-adds
 *   KDA      state and window, read and written, per sequence;  3 d_k d_v multiply-adds per head and row
 *   MLA      min(last p, K) latent rows read, n_tokens written, per sequence;  sum_i min(p_i, K) * H * (2 r + d_r)
 *   indexer  of layers with keys of their own, where p > K: last p keys read;  sum_i p_i * H_i * d_i;  n_tokens written
 *
 * (K: Top-K, infinite without an indexer.) Of R rows that choose k of E experts each, evenly and independently,
 * E (1 - (1 - k/E)^R) different experts are expected. A chunk of a prompt may read more latents than its last row: its
 * rows choose for themselves; the least is counted. Activations are not: they are small and stay in caches.
 *
 * Weights were counted when the checkpoint was matched (models/match.c): what was packed, padding included. */
#include <math.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "layers/builder.h"

typedef struct step {
    int64_t n_seqs, n_tokens, depth;
} step;

/* Sum of p for begin < p <= end. */
static double sum_of_positions(int64_t begin, int64_t end) {
    return end > begin ? (double)(end - begin) * ((double)begin + (double)end + 1) / 2 : 0;
}

static void count_kda(const neap_kda_spec *s, const step *t, neap_work *w) {
    neap_cache_layer_spec cache = neap_kda_cache(s);
    w->state_bytes += (uint64_t)(2 * t->n_seqs * (cache.state_floats + cache.window_floats)) * sizeof(float);
    w->multiply_adds += (double)(t->n_seqs * t->n_tokens) * 3 * s->n_heads * s->head_dim * s->head_dim;
}

static void count_mla(const neap_mla_spec *s, const neap_forward_options *o, const step *t, neap_work *w) {
    neap_cache_layer_spec cache = neap_mla_cache(s, o->latent_kind, o->index_kind);
    int64_t last = t->depth + t->n_tokens, k = s->has_index ? s->index.topk : INT64_MAX;
    int64_t row = neap_latent_page_bytes(&cache.latent) / NEAP_PAGE_ROWS;
    int64_t dense = last < k ? last : k > t->depth ? k : t->depth; /* rows up to here read all there is */
    double rows = sum_of_positions(t->depth, dense) + (last > dense ? (double)(last - dense) * (double)k : 0);
    w->cache_bytes += (uint64_t)(t->n_seqs * ((last < k ? last : k) + t->n_tokens) * row);
    w->multiply_adds += (double)t->n_seqs * rows * s->n_heads * (2 * s->kv_lora + s->d_rope);
    if (cache.index.d == 0) return;
    int64_t key = neap_index_page_bytes(&cache.index) / NEAP_PAGE_ROWS;
    w->cache_bytes += (uint64_t)(t->n_seqs * (t->n_tokens + (last > k ? last : 0)) * key);
    w->multiply_adds += (double)t->n_seqs * sum_of_positions(dense, last) * s->index.n_heads * s->index.head_dim;
}

/* The share of experts that one row uses; 0: there are none. */
static double share_of_row(const neap_network *net) {
    for (int32_t i = 0; i < net->n_layers; i++)
        if (net->layers[i].is_moe) return (double)net->layers[i].moe_spec.top_k / net->layers[i].moe_spec.n_experts;
    return 0;
}

neap_status neap_engine_work(const neap_model *m, const neap_engine_options *o, int32_t n_seqs, int32_t n_tokens,
                             int64_t depth, int32_t n_logits, neap_work *out) {
    NEAP_CHECK(out != NULL, NEAP_INVALID_ARGUMENT, "the place for the result is NULL");
    const size_t size = out->struct_size;
    NEAP_CHECK(size >= 2 * sizeof(size_t) && size <= sizeof *out, NEAP_INVALID_ARGUMENT,
               "struct_size of the result is %zu, this library knows %zu", size, sizeof *out);
    neap_engine_options resolved;
    NEAP_TRY(neap_engine_options_resolve(&resolved, m, o));
    NEAP_CHECK(n_seqs >= 1 && n_tokens >= 1 && depth >= 0 && n_logits >= 0 && n_seqs <= 65536 && depth <= INT32_MAX,
               NEAP_INVALID_ARGUMENT, "a step of %d sequences with %d tokens at depth %lld with %d logits", n_seqs,
               n_tokens, (long long)depth, n_logits);
    const neap_forward_options fo = neap_engine_forward_options(&resolved);
    const neap_weight_work *weights = &m->work;
    const step t = {n_seqs, n_tokens, depth};
    const double n_rows = (double)n_seqs * n_tokens, used = share_of_row(&m->net);
    neap_work w = {.struct_size = size};
    w.weight_bytes = weights->fixed.bytes + (n_logits > 0 ? weights->head.bytes : 0) +
                     (uint64_t)((double)weights->experts.bytes * (1 - pow(1 - used, n_rows)));
    w.multiply_adds = n_rows * ((double)weights->fixed.multiply_adds + (double)weights->experts.multiply_adds * used) +
                      (double)n_logits * (double)weights->head.multiply_adds;
    for (int32_t i = 0; i < m->net.n_layers; i++) {
        const neap_layer *l = &m->net.layers[i];
        if (l->mixer == NEAP_MIXER_KDA)
            count_kda(&l->spec.kda, &t, &w);
        else
            count_mla(&l->spec.mla, &fo, &t, &w);
    }
    memcpy(out, &w, size);
    return NEAP_OK;
}
