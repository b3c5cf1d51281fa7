/* The record of what tuning found: a few lines of text in the cache directory, one file for each combination of
 * processor, threads, topology and model shapes.
 *
 *   neap tuning 1
 *   machine Intel(R) ...; avx2 avx512 ...; threads 2, batch 0; 2 cores, 2 CPUs, 1 node
 *   model kimi_linear, width 2304, 27 layers, ...
 *   few_rows 8
 *   ...
 *   sum 1f0c6d3a5b7e9824
 *
 * Believed is only what could have been printed: the numbers are read, checked as those of any caller, printed again,
 * and every byte must be the same. So there is one description of the format, and no damage that passes. The file's
 * name and key are a SHA-256 of all that the tuning holds for, so a record of another machine is not found at all.
 *
 * Called by the program before it makes an engine, and after neap_tune. Owns nothing. */
#include "engine/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "format/store.h"
#include "kernels/cpu.h"
#include "runtime/cores.h"

enum { RECORD_VERSION = 1 };

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(member) \
    { #member, offsetof(neap_tuning, member) }
    FIELD(few_rows), FIELD(tile_rows), FIELD(prefetch_kib), FIELD(mixed_workers),   FIELD(beside),
    FIELD(streams),  FIELD(pinning),   FIELD(n_threads),    FIELD(n_threads_batch),
#undef FIELD
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* ---- key ---- */

static void add(neap_sha256 *h, int64_t x) { neap_sha256_add(h, &x, sizeof x); }

static void add_matrix(neap_sha256 *h, const neap_matrix *m) {
    add(h, m->n);
    add(h, m->k);
    add(h, m->n > 0 ? (int64_t)m->kind : -1);
}

static void add_mlp(neap_sha256 *h, const neap_mlp_weights *w) {
    add_matrix(h, &w->gate);
    add_matrix(h, &w->down);
}

static void add_mixer(neap_sha256 *h, const neap_layer *l) {
    add(h, l->mixer);
    if (l->mixer == NEAP_MIXER_KDA) {
        const neap_kda_spec *s = &l->spec.kda;
        const int64_t sizes[] = {s->n_heads, s->head_dim, s->conv_k, s->is_gate_full_rank};
        neap_sha256_add(h, sizes, sizeof sizes);
        add_matrix(h, &l->weights.kda.q);
        add_matrix(h, &l->weights.kda.o);
        return;
    }
    const neap_mla_spec *s = &l->spec.mla;
    const int64_t sizes[] = {s->n_heads,
                             s->q_lora,
                             s->kv_lora,
                             s->d_nope,
                             s->d_rope,
                             s->d_v,
                             s->has_output_gate,
                             s->has_index,
                             s->has_index ? s->index.n_heads : 0,
                             s->has_index ? s->index.head_dim : 0,
                             s->has_index ? s->index.topk : 0,
                             s->has_index ? s->index.is_shared : 0};
    neap_sha256_add(h, sizes, sizeof sizes);
    add_matrix(h, &l->weights.mla.kv_a);
    add_matrix(h, &l->weights.mla.o);
}

static void add_layer(neap_sha256 *h, const neap_layer *l) {
    add_mixer(h, l);
    add(h, l->is_moe);
    if (!l->is_moe) {
        add(h, l->mlp_width);
        add_mlp(h, &l->mlp);
        return;
    }
    const neap_moe_spec *s = &l->moe_spec;
    const int64_t sizes[] = {s->n_experts, s->top_k, s->latent, s->expert_width, s->shared_width};
    neap_sha256_add(h, sizes, sizeof sizes);
    add_matrix(h, &l->moe.router);
    if (l->moe.w1 != NULL) add_matrix(h, &l->moe.w1[0]);
    if (l->moe.w2 != NULL) add_matrix(h, &l->moe.w2[0]);
    if (s->shared_width > 0) add_mlp(h, &l->moe.shared);
}

neap_status neap_tuning_key_of(neap_tuning_key *out, const neap_model *m, const neap_engine_options *o) {
    neap_engine_options asked;
    NEAP_CHECK(m != NULL, NEAP_INVALID_ARGUMENT, "the model is NULL");
    NEAP_TRY(neap_engine_options_take(&asked, o));
    static const char system[] = "/sys/devices/system";
    char sets[128];
    neap_cpu_text(m->cpu_flags, sets, sizeof sets);
    memset(out, 0, sizeof *out);
    (void)snprintf(out->machine, sizeof out->machine, "%s; %s; threads %d, batch %d; %d cores, %d CPUs, %d nodes",
                   neap_cpu_model(), sets, asked.n_threads > 0 ? asked.n_threads : neap_default_threads(),
                   asked.n_threads_batch, neap_cores_physical(), neap_cores_usable(), neap_cores_nodes(system));
    const neap_network *net = &m->net;
    (void)snprintf(out->model, sizeof out->model, "%s; width %d, %d layers, vocabulary %d, residual blocks %d; %s",
                   m->model_type != NULL ? m->model_type : "", net->width, net->n_layers, net->vocab,
                   net->attnres_block, m->weight_formats != NULL ? m->weight_formats : "");
    neap_make_printable(out->machine);
    neap_make_printable(out->model);
    neap_sha256 h;
    neap_sha256_begin(&h);
    add(&h, RECORD_VERSION);
    neap_sha256_add(&h, NEAP_VERSION, sizeof NEAP_VERSION);
    neap_sha256_add(&h, out->machine, strlen(out->machine) + 1);
    neap_sha256_add(&h, out->model, strlen(out->model) + 1);
    for (int32_t i = 0; i < net->n_layers; i++) add_layer(&h, &net->layers[i]);
    add_matrix(&h, &net->head);
    neap_sha256_end(&h, out->digest);
    return NEAP_OK;
}

/* ---- text ---- */

size_t neap_tuning_print(char text[NEAP_TUNING_TEXT], const neap_tuning_key *key, const neap_tuning *t) {
    size_t n = (size_t)snprintf(text, NEAP_TUNING_TEXT, "neap tuning %d\nmachine %s\nmodel %s\n", RECORD_VERSION,
                                key->machine, key->model);
    for (int i = 0; i < N_FIELDS; i++) {
        int32_t x;
        memcpy(&x, (const char *)t + fields[i].offset, sizeof x);
        n += (size_t)snprintf(text + n, NEAP_TUNING_TEXT - n, "%s %d\n", fields[i].name, x);
    }
    n += (size_t)snprintf(text + n, NEAP_TUNING_TEXT - n, "sum %016llx\n", (unsigned long long)neap_checksum(text, n));
    return n; /* some 1,500 bytes at most */
}

/* The number in the line that begins with `name` and a space, at *at; moves behind the line. */
static bool read_line(const char *text, size_t n, size_t *at, const char *name, int32_t *x) {
    size_t length = strlen(name);
    const char *line = text + *at, *end = memchr(line, '\n', n - *at);
    if (end == NULL || (size_t)(end - line) <= length || memcmp(line, name, length) != 0 || line[length] != ' ')
        return false;
    char digits[16] = "", *rest;
    size_t n_digits = (size_t)(end - line) - length - 1;
    if (n_digits == 0 || n_digits >= sizeof digits) return false;
    memcpy(digits, line + length + 1, n_digits);
    long value = strtol(digits, &rest, 10);
    if (*rest != 0 || value < INT32_MIN || value > INT32_MAX) return false;
    *x = (int32_t)value;
    *at = (size_t)(end - text) + 1;
    return true;
}

neap_status neap_tuning_parse(neap_tuning *out, const char *text, size_t n, const neap_tuning_key *key) {
    char again[NEAP_TUNING_TEXT];
    neap_tuning t;
    neap_tuning_init(&t);
    size_t at = 0;
    for (int line = 0; line < 3; line++) { /* compared below, with everything else */
        const char *end = at < n ? memchr(text + at, '\n', n - at) : NULL;
        NEAP_CHECK(end != NULL, NEAP_BAD_FILE, "tuning record: it ends after %zu bytes", n);
        at = (size_t)(end - text) + 1;
    }
    for (int i = 0; i < N_FIELDS; i++) {
        int32_t x = 0;
        NEAP_CHECK(read_line(text, n, &at, fields[i].name, &x), NEAP_BAD_FILE, "tuning record: no line \"%s\"",
                   fields[i].name);
        memcpy((char *)&t + fields[i].offset, &x, sizeof x);
    }
    if (neap_tuning_take(&t, &t) != NEAP_OK) return neap_fail_prefix(NEAP_BAD_FILE, "tuning record");
    NEAP_CHECK(n == neap_tuning_print(again, key, &t) && memcmp(text, again, n) == 0, NEAP_BAD_FILE,
               "tuning record: damaged, or of another machine or model");
    *out = t;
    return NEAP_OK;
}

/* ---- files ---- */

static void file_name(char name[64], const neap_tuning_key *key) {
    size_t at = 0;
    for (int i = 0; i < 16; i++) at += (size_t)snprintf(name + at, 64 - at, "%02x", key->digest[i]);
    (void)snprintf(name + at, 64 - at, "%s", neap_store_suffix(NEAP_STORE_TUNING));
}

static neap_status check_size(const neap_tuning *t) {
    NEAP_CHECK(t != NULL, NEAP_INVALID_ARGUMENT, "the tuning is NULL");
    NEAP_CHECK(t->struct_size >= 2 * sizeof(size_t) && t->struct_size <= sizeof *t, NEAP_INVALID_ARGUMENT,
               "struct_size of the tuning is %zu, this library knows %zu; fill the struct with its _init function",
               t->struct_size, sizeof *t);
    return NEAP_OK;
}

/* One that cannot be believed is as good as none. */
static neap_status as_missing(neap_status status) {
    const bool is_none = status == NEAP_BAD_FILE || status == NEAP_UNSUPPORTED || status == NEAP_TOO_SMALL;
    return is_none ? neap_fail_prefix(NEAP_NOT_FOUND, "no tuning") : status;
}

neap_status neap_tuning_load(const char *dir, const neap_model *m, const neap_engine_options *o, neap_tuning *out) {
    NEAP_CHECK(dir != NULL, NEAP_INVALID_ARGUMENT, "the cache directory is NULL");
    NEAP_TRY(check_size(out));
    const size_t size = out->struct_size;
    neap_tuning_key key;
    neap_tuning t;
    neap_store store;
    char name[64], text[NEAP_TUNING_TEXT];
    size_t n = 0;
    NEAP_TRY(neap_tuning_key_of(&key, m, o));
    file_name(name, &key);
    NEAP_TRY(as_missing(neap_store_open(&store, dir, false)));
    neap_status status = neap_store_get(&store, name, NEAP_STORE_TUNING, key.digest, text, sizeof text, &n);
    neap_store_close(&store);
    NEAP_TRY(as_missing(status));
    NEAP_TRY(as_missing(neap_tuning_parse(&t, text, n, &key)));
    memcpy(out, &t, size);
    out->struct_size = size;
    return NEAP_OK;
}

neap_status neap_tuning_save(const char *dir, const neap_model *m, const neap_engine_options *o, const neap_tuning *t) {
    NEAP_CHECK(dir != NULL, NEAP_INVALID_ARGUMENT, "the cache directory is NULL");
    NEAP_TRY(check_size(t));
    neap_tuning checked;
    neap_tuning_key key;
    neap_store store;
    char name[64], text[NEAP_TUNING_TEXT];
    NEAP_TRY(neap_tuning_take(&checked, t));
    NEAP_TRY(neap_tuning_key_of(&key, m, o));
    file_name(name, &key);
    const size_t n = neap_tuning_print(text, &key, &checked);
    neap_store_about about = {.kind = NEAP_STORE_TUNING, .origin = m->dir != NULL ? m->dir : ""};
    memcpy(about.key, key.digest, sizeof about.key);
    NEAP_TRY(neap_store_open(&store, dir, true));
    neap_status status = neap_store_put(&store, name, &about, text, n);
    neap_store_close(&store);
    return status;
}
