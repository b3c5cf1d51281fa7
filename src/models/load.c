/* Opening a model: config, tensor table, tokenizer, then the weights; and what the caller may ask about it.
 *
 * The order puts every cheap check before the expensive one: config.json alone, then the headers of the shards, the
 * comparison of every tensor, the tokenizer, the memory that will be needed, and only then data. A model that is
 * opened with describe_only stops before the data. Everything that stays lives in one arena, which close frees.
 *
 * The state and cache sizes reported here are those of this version: recurrent state, conv window, latent and index
 * keys in F32, the state in the kernels' layout [ceil(dv/32)][dk][32].
 * Public calls: neap_model_options_init, neap_model_open, neap_model_close, neap_model_tokenizer,
 * neap_model_describe. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/cpu.h"
#include "models/config.h"
#include "models/pack.h"

void neap_model_options_init(neap_model_options *o) {
    if (o == NULL) return;
    memset(o, 0, sizeof *o);
    o->struct_size = sizeof *o;
}

static neap_status take_options(neap_model_options *to, const neap_model_options *from) {
    neap_model_options_init(to);
    if (from == NULL) return NEAP_OK;
    NEAP_CHECK(from->struct_size >= sizeof(size_t) && from->struct_size <= 4096, NEAP_INVALID_ARGUMENT,
               "model options: struct_size is %zu; call neap_model_options_init first", from->struct_size);
    size_t n = from->struct_size < sizeof *to ? from->struct_size : sizeof *to;
    memcpy(to, from, n);
    to->struct_size = sizeof *to;
    NEAP_CHECK(to->n_threads >= 0 && to->n_threads <= 4096, NEAP_INVALID_ARGUMENT,
               "model options: n_threads is %d, must be 0 .. 4096", to->n_threads);
    if (to->n_threads == 0) to->n_threads = neap_default_threads();
    return NEAP_OK;
}

/* ---------------------------------------------------------------- steps ----------------------- */

static neap_mla_spec *first_mla(neap_network *net) {
    for (int32_t i = 0; i < net->n_layers; i++)
        if (net->layers[i].mixer == NEAP_MIXER_MLA) return &net->layers[i].spec.mla;
    return NULL;
}

static neap_status rows_of(const neap_model *m, const neap_checkpoint *c, const char *name, int64_t max, int32_t *out) {
    const neap_stored_tensor *t = neap_checkpoint_find(c, name);
    NEAP_CHECK(t != NULL, NEAP_BAD_FILE, "%s: %s is missing, and config.json does not give its size either", m->dir,
               name);
    NEAP_CHECK(t->rank == 2 && t->shape[0] >= 1 && t->shape[0] <= max, NEAP_BAD_FILE, "%s: %s must have 1 .. %lld rows",
               m->dir, name, (long long)max);
    *out = (int32_t)t->shape[0];
    return NEAP_OK;
}

/* The indexer's head count and head size are not always in the config; the tensors know them. */
static neap_status settle_index(neap_model *m, const neap_checkpoint *c) {
    const neap_mla_spec *first = first_mla(&m->net);
    if (first == NULL || !first->has_index || (first->index.n_heads > 0 && first->index.head_dim > 0)) return NEAP_OK;
    neap_weight_names names;
    neap_weights_find_names(m, c, &names);
    int32_t layer = 0;
    while (m->net.layers[layer].mixer != NEAP_MIXER_MLA) layer++;
    char name[NEAP_NAME_BYTES];
    int32_t n_heads = first->index.n_heads, head_dim = first->index.head_dim;
    if (n_heads == 0) {
        (void)snprintf(name, sizeof name, "%s%d.self_attn.indexer.weights_proj.weight", names.layers, layer);
        NEAP_TRY(rows_of(m, c, name, 1024, &n_heads));
    }
    if (head_dim == 0) {
        (void)snprintf(name, sizeof name, "%s%d.self_attn.indexer.wk.weight", names.layers, layer);
        NEAP_TRY(rows_of(m, c, name, 1024, &head_dim));
    }
    for (int32_t i = 0; i < m->net.n_layers + m->net.n_mtp; i++) {
        neap_layer *l = i < m->net.n_layers ? &m->net.layers[i] : &m->net.mtp[i - m->net.n_layers].layer;
        if (l->mixer != NEAP_MIXER_MLA) continue;
        l->spec.mla.index.n_heads = n_heads;
        l->spec.mla.index.head_dim = head_dim;
    }
    return NEAP_OK;
}

static neap_status open_tokenizer(neap_model *m) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/tiktoken.model", m->dir);
    NEAP_CHECK(n > 0 && (size_t)n < sizeof path, NEAP_INVALID_ARGUMENT, "the path is longer than %zu bytes",
               sizeof path - 1);
    struct stat st;
    if (lstat(path, &st) != 0 && errno == ENOENT) return NEAP_OK;
    NEAP_TRY(neap_tokenizer_open(&m->tokenizer, m->dir));
    int32_t vocab = neap_tokenizer_vocab(m->tokenizer);
    NEAP_CHECK(vocab <= m->net.vocab, NEAP_BAD_FILE, "%s: the tokenizer has %d ids, the embedding only %d rows", path,
               vocab, m->net.vocab);
    return NEAP_OK;
}

/* "BF16", "BF16 + MXFP4 experts", "F32": dense kinds by falling precision, then what only the experts have. */
static neap_status name_formats(neap_model *m, const neap_matches *t) {
    static const char *const names[NEAP_MATRIX_KINDS] = {[NEAP_MATRIX_F32] = "F32",
                                                         [NEAP_MATRIX_BF16] = "BF16",
                                                         [NEAP_MATRIX_INT8] = "INT8",
                                                         [NEAP_MATRIX_FP8] = "FP8",
                                                         [NEAP_MATRIX_MXFP4] = "MXFP4"};
    char text[128] = "";
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < NEAP_MATRIX_KINDS; i++) { /* the enum falls in precision */
            uint32_t bit = 1u << i;
            bool is_named = pass == 0 ? (t->kinds_dense & bit) != 0
                                      : (t->kinds_experts & bit) != 0 && (t->kinds_experts != t->kinds_dense);
            if (!is_named) continue;
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%s", n > 0 ? " + " : "", names[i],
                                  pass == 1 ? " experts" : "");
        }
    }
    const uint32_t integers = 1u << NEAP_MATRIX_INT8 | 1u << NEAP_MATRIX_MXFP4;
    m->has_int_experts = (t->kinds_experts & integers) != 0;
    m->has_int_others = (t->kinds_multiplied & integers) != 0;
    return neap_arena_strdup(m->arena, text, &m->weight_formats);
}

static neap_status check_memory(const neap_model *m) {
    char need[NEAP_SIZE_TEXT], have[NEAP_SIZE_TEXT];
    uint64_t available = neap_memory_available();
    NEAP_CHECK(m->packed_bytes <= available, NEAP_NO_MEMORY, "%s: the weights need %s of memory, available: %s", m->dir,
               neap_size_text(m->packed_bytes, need), neap_size_text(available, have));
    return NEAP_OK;
}

/* Whether the cache file could be used; then the weights are complete. */
static neap_status take_packed(neap_model *m, neap_checkpoint *c, const neap_matches *t, const neap_model_options *o,
                               neap_pack_options *p) {
    int64_t none = 0;
    if (!neap_packed_read(p->keep, o)) return NEAP_OK;
    p->is_filled = true;
    p->is_reread = o->cache_verify != 0;
    if (p->is_reread) neap_checkpoint_digest_begin(c);
    NEAP_TRY(neap_pack_all(m, c, t, p, &none));
    m->is_from_cache = !p->is_reread || neap_packed_is_same(p->keep);
    p->is_filled = p->is_reread = false;
    return NEAP_OK;
}

static neap_status pack_and_keep(neap_model *m, neap_checkpoint *c, const neap_matches *t, neap_pack_options *p) {
    int64_t n_nonfinite = 0;
    if (p->keep != NULL) neap_packed_begin(p->keep);
    NEAP_TRY(neap_pack_all(m, c, t, p, &n_nonfinite));
    if (n_nonfinite > 0) /* and they are not kept: whether they are accepted is asked at every start */
        neap_log_write(&m->log, NEAP_LOG_WARN, "%s: %" PRId64 " non-finite values in the weights, accepted as asked",
                       m->dir, n_nonfinite);
    else if (p->keep != NULL)
        neap_packed_commit(p->keep);
    return NEAP_OK;
}

static neap_status load_weights(neap_model *m, neap_checkpoint *c, const neap_matches *t, const neap_model_options *o) {
    neap_blocks blocks;
    NEAP_TRY(check_memory(m));
    NEAP_TRY(neap_blocks_make(&blocks, m->arena, t));
    neap_pack_options p = {.n_threads = o->n_threads,
                           .allow_nonfinite = o->allow_nonfinite != 0,
                           .progress = o->progress,
                           .progress_user = o->progress_user,
                           .blocks = &blocks};
    neap_packed_open(&p.keep, m, c, t, &blocks, o);
    neap_status status = p.keep != NULL ? take_packed(m, c, t, o, &p) : NEAP_OK;
    if (status == NEAP_OK && !m->is_from_cache) status = pack_and_keep(m, c, t, &p);
    neap_packed_close(p.keep);
    m->is_loaded = status == NEAP_OK;
    return status;
}

static neap_status match_checkpoint(neap_model *m, neap_checkpoint **c, neap_matches *t, const neap_model_options *o) {
    NEAP_TRY(neap_checkpoint_open(c, m->dir, &m->log));
    NEAP_TRY(settle_index(m, *c));
    NEAP_TRY(neap_match_all(t, m, *c, o->strict != 0));
    m->file_bytes = neap_checkpoint_bytes(*c);
    m->parameters = t->tally.parameters;
    m->parameters_active = t->tally.active;
    m->work = t->work;
    for (int32_t i = 0; i < t->n_groups; i++) m->packed_bytes += t->group_bytes[i];
    return name_formats(m, t);
}

static neap_status read_headers(neap_model *m, neap_checkpoint **c, neap_matches *t, const char *path,
                                const neap_model_options *o) {
    NEAP_TRY(neap_arena_strdup(m->arena, path, &m->dir));
    NEAP_TRY(neap_cpu_parse(o->cpu, &m->cpu_flags));
    struct stat st;
    NEAP_CHECK(stat(path, &st) == 0, NEAP_NOT_FOUND, "%s: %s", path, strerror(errno));
    NEAP_CHECK(S_ISDIR(st.st_mode), NEAP_BAD_FILE, "%s: is not a directory", path);
    NEAP_TRY(neap_config_read(m, path, o->latent_norm_eps));
    NEAP_TRY(match_checkpoint(m, c, t, o));
    return open_tokenizer(m);
}

neap_status neap_model_open_headers(neap_model **out, neap_checkpoint **c, neap_matches *t, const char *path,
                                    const neap_model_options *o) {
    *out = NULL;
    *c = NULL;
    memset(t, 0, sizeof *t);
    neap_arena *arena = NULL;
    NEAP_TRY(neap_arena_create(&arena, "model"));
    void *p = NULL;
    neap_status status = neap_arena_alloc(arena, sizeof(neap_model), &p);
    if (status != NEAP_OK) {
        neap_arena_destroy(arena);
        return status;
    }
    neap_model *m = p;
    m->arena = arena;
    m->log = (neap_log){.fn = o->log, .user = o->log_user};
    status = read_headers(m, c, t, path, o);
    if (status == NEAP_OK) {
        *out = m;
        return NEAP_OK;
    }
    neap_matches_free(t);
    neap_checkpoint_close(*c);
    *c = NULL;
    neap_model_close(m);
    return status;
}

neap_status neap_model_open(neap_model **out, const char *path, const neap_model_options *options) {
    NEAP_CHECK(out != NULL && path != NULL, NEAP_INVALID_ARGUMENT, "neap_model_open: out and path must not be NULL");
    *out = NULL;
    neap_model_options o;
    NEAP_TRY(take_options(&o, options));
    neap_model *m = NULL;
    neap_checkpoint *c = NULL;
    neap_matches t;
    NEAP_TRY(neap_model_open_headers(&m, &c, &t, path, &o));
    neap_status status = neap_match_set_shapes(m, &t);
    if (status == NEAP_OK && !o.describe_only) status = load_weights(m, c, &t, &o);
    neap_matches_free(&t);
    neap_checkpoint_close(c);
    if (status != NEAP_OK) {
        neap_model_close(m);
        return status;
    }
    *out = m;
    return NEAP_OK;
}

void neap_model_close(neap_model *m) {
    if (m == NULL) return;
    neap_tokenizer_close(m->tokenizer);
    neap_arena_destroy(m->arena); /* holds the model itself */
}

const neap_tokenizer *neap_model_tokenizer(const neap_model *m) { return m == NULL ? NULL : m->tokenizer; }

/* ---------------------------------------------------------------- description ----------------- */

static void count_layer(const neap_layer *l, neap_model_info *info) {
    if (l->mixer == NEAP_MIXER_KDA) {
        const neap_kda_spec *s = &l->spec.kda;
        info->n_kda_layers++;
        uint64_t state = (uint64_t)neap_kda_state_floats(s->head_dim, s->head_dim) * (uint64_t)s->n_heads;
        uint64_t window = 3 * (uint64_t)s->n_heads * (uint64_t)s->head_dim * (uint64_t)(s->conv_k - 1);
        info->state_bytes += (state + window) * sizeof(float);
    } else {
        const neap_mla_spec *s = &l->spec.mla;
        info->n_mla_layers++;
        neap_latent_format latent = {.kind = NEAP_ROWS_BF16, .r = s->kv_lora, .dr = s->d_rope};
        info->cache_bytes_per_token += (uint64_t)neap_latent_page_bytes(&latent) / NEAP_PAGE_ROWS;
        if (s->has_index && !s->index.is_shared) {
            info->n_index_layers++;
            neap_index_format index = {.kind = NEAP_ROWS_BF16, .d = s->index.head_dim};
            info->cache_bytes_per_token += (uint64_t)neap_index_page_bytes(&index) / NEAP_PAGE_ROWS;
        }
        if (s->has_index) info->index_topk = s->index.topk;
    }
    if (l->is_moe) {
        info->n_moe_layers++;
        info->n_experts = l->moe_spec.n_experts;
        info->n_experts_used = l->moe_spec.top_k;
    } else {
        info->n_dense_layers++;
    }
}

neap_status neap_model_describe(const neap_model *m, neap_model_info *info) {
    NEAP_CHECK(m != NULL && info != NULL, NEAP_INVALID_ARGUMENT,
               "neap_model_describe: model and info must not be NULL");
    size_t size = info->struct_size;
    NEAP_CHECK(size >= sizeof(size_t) && size <= 65536, NEAP_INVALID_ARGUMENT,
               "neap_model_describe: struct_size is %zu", size);
    neap_model_info full;
    memset(&full, 0, sizeof full);
    full.struct_size = size;
    full.model_type = m->model_type;
    full.family = neap_family_name(m->family);
    full.vocab = m->net.vocab;
    full.width = m->net.width;
    full.n_layers = m->net.n_layers;
    full.n_mtp_layers = m->net.n_mtp;
    full.attnres_block = m->net.attnres_block;
    full.context_max = m->context_max;
    for (int32_t i = 0; i < m->net.n_layers; i++) count_layer(&m->net.layers[i], &full);
    full.parameters = m->parameters;
    full.parameters_active = m->parameters_active;
    full.file_bytes = m->file_bytes;
    full.packed_bytes = m->packed_bytes;
    full.weight_formats = m->weight_formats;
    full.kernels = neap_kernels_level(m->cpu_flags);
    full.has_int_experts = m->has_int_experts;
    full.has_int_others = m->has_int_others;
    full.is_from_cache = m->is_from_cache;
    memcpy(info, &full, size < sizeof full ? size : sizeof full);
    return NEAP_OK;
}
