/* The key of a model's prefixes on disk: everything that decides what the bytes of a page or a state mean and what they
 * are. A prefix that was computed under another key is never used.
 *
 *   this build's version; the bytes of config.json; every tensor of the checkpoint (name, type, shape, place) and every
 *   shard's size and time of change; the eps that the caller may have set; formats of caches and activations; tiles of
 *   AMX, the only instruction set that rounds differently (docs/numerics.md section 1)
 *
 * Weights are not hashed: that would read all of them at every start. Whoever changes a byte and sets the clock back
 * gets what he wants.
 *
 * Called by prefix_use.c. Owns nothing. */
#include "engine/prefix_key.h"

#include <stdio.h>
#include <string.h>

#include "format/checkpoint.h"
#include "format/digest.h"
#include "format/json.h"
#include "kernels/cpu.h"

enum { LAYOUT = 1, CONFIG_BYTES_MAX = 16 << 20 };

static void add_number(neap_sha256 *h, int64_t v) { neap_sha256_add(h, &v, sizeof v); }

/* The terminator keeps neighbours apart. */
static void add_text(neap_sha256 *h, const char *s) { neap_sha256_add(h, s, strlen(s) + 1); }

static neap_status add_config(neap_sha256 *h, const char *dir) {
    char path[4096];
    const int n_path = snprintf(path, sizeof path, "%s/config.json", dir);
    NEAP_CHECK(n_path > 0 && (size_t)n_path < sizeof path, NEAP_INVALID_ARGUMENT, "%s: the path is too long", dir);
    char *text = NULL;
    size_t n = 0;
    NEAP_TRY(neap_file_read(&text, &n, path, CONFIG_BYTES_MAX));
    add_number(h, (int64_t)n);
    neap_sha256_add(h, text, n);
    neap_mem_free(text);
    return NEAP_OK;
}

static neap_status add_shards(neap_sha256 *h, const neap_checkpoint *c) {
    const int32_t n_shards = neap_checkpoint_shards(c);
    add_number(h, n_shards);
    for (int32_t i = 0; i < n_shards; i++) {
        neap_file_stamp stamp;
        NEAP_TRY(neap_checkpoint_stamp(c, i, &stamp));
        add_text(h, neap_checkpoint_shard_name(c, i));
        add_number(h, (int64_t)stamp.bytes);
        add_number(h, stamp.modified_ns);
    }
    for (int64_t i = 0; i < neap_checkpoint_count(c); i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(c, i);
        add_text(h, t->name);
        add_number(h, t->dtype);
        add_number(h, t->rank);
        neap_sha256_add(h, t->shape, (size_t)t->rank * sizeof *t->shape);
        add_number(h, (int64_t)t->offset);
        add_number(h, t->shard);
    }
    return NEAP_OK;
}

static void add_eps(neap_sha256 *h, const neap_network *net) {
    for (int32_t i = 0; i < net->n_layers; i++) {
        const neap_layer *l = &net->layers[i];
        if (l->mixer == NEAP_MIXER_MLA) neap_sha256_add(h, &l->spec.mla.latent_eps, sizeof(float));
    }
}

neap_status neap_prefix_key(const neap_model *m, const neap_engine_options *o, uint8_t key[16]) {
    uint8_t digest[NEAP_SHA256_BYTES];
    const neap_log quiet = m->log;
    neap_checkpoint *c = NULL;
    neap_sha256 h;
    neap_sha256_begin(&h);
    add_text(&h, "prefixes");
    add_number(&h, LAYOUT);
    add_text(&h, neap_version());
    NEAP_TRY(add_config(&h, m->dir));
    NEAP_TRY(neap_checkpoint_open(&c, m->dir, &quiet));
    const neap_status status = add_shards(&h, c);
    neap_checkpoint_close(c);
    NEAP_TRY(status);
    add_eps(&h, &m->net);
    const int32_t formats[] = {o->cache_type, o->index_type, o->act_type, o->moe_act_type};
    neap_sha256_add(&h, formats, sizeof formats);
    add_number(&h, (m->cpu_flags & NEAP_CPU_AMX) != 0);
    neap_sha256_end(&h, digest);
    memcpy(key, digest, 16);
    return NEAP_OK;
}
