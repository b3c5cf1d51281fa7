/* config.json to neap_network: which family, which text part; then fields, quantisation, rules, specs.
 *
 * The family comes from model_type (or, without one, from architectures). Multimodal files keep the text model in
 * text_config; the same object alone, with model_type kimi_linear and K3 fields, is the K3 text model too: that
 * is decided in config_rules.c, once the fields are read. Vision fields are never looked at. Code that a directory
 * may bring (auto_map) is ignored with a notice: nothing in a model directory is executed.
 *
 * Called by load.c and by tests. Owns the JSON document while it runs; all that stays is copied to the arena.
 * Source: config.json sections of the Kimi Linear, Kimi K3, sparse MLA and quantised format specifications. */
#include "models/config.h"

#include <stdio.h>
#include <string.h>

typedef struct family_row {
    const char *model_type, *architecture;
    neap_family family;
} family_row;

static const family_row families[] = {
    {"kimi_linear", "KimiLinearForCausalLM", NEAP_FAMILY_KIMI_LINEAR},
    {"kimi_k3", "KimiK3ForConditionalGeneration", NEAP_FAMILY_KIMI_K3},
    {"kimi_k31", "KimiK31ForConditionalGeneration", NEAP_FAMILY_KIMI_K31},
    {"deepseek_v32", "DeepseekV32ForCausalLM", NEAP_FAMILY_DEEPSEEK_V32},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", NEAP_FAMILY_GLM_MOE_DSA},
};
#define SUPPORTED "supported: kimi_linear, kimi_k3, kimi_k31, deepseek_v32, glm_moe_dsa"
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *neap_family_name(neap_family f) {
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (families[i].family == f) return families[i].model_type;
    return "?";
}

/* First entry of architectures, or NULL. */
static const char *architecture_of(const neap_json *object) {
    const neap_json *list = neap_json_get(object, "architectures");
    if (neap_json_type_of(list) != NEAP_JSON_ARRAY || neap_json_size(list) == 0) return NULL;
    const neap_json *first = neap_json_at(list, 0);
    return neap_json_type_of(first) == NEAP_JSON_STRING ? neap_json_string(first, NULL) : NULL;
}

static neap_status find_family(neap_config_reader *r) {
    neap_model *m = r->m;
    const neap_json *type = neap_json_get(r->root, "model_type");
    const char *architecture = architecture_of(r->root);
    NEAP_CHECK(neap_json_type_of(type) == NEAP_JSON_STRING || neap_json_type_of(type) == NEAP_JSON_NULL, NEAP_BAD_FILE,
               "%s: model_type must be a string", r->what);
    const char *name = neap_json_type_of(type) == NEAP_JSON_STRING ? neap_json_string(type, NULL) : NULL;
    const family_row *row = NULL;
    for (size_t i = 0; i < N_FAMILIES && row == NULL; i++) {
        if (name != NULL && strcmp(name, families[i].model_type) == 0) row = &families[i];
        if (name == NULL && architecture != NULL && strcmp(architecture, families[i].architecture) == 0)
            row = &families[i];
    }
    NEAP_CHECK(name != NULL || row != NULL, NEAP_BAD_FILE, "%s: model_type is missing (" SUPPORTED ")", r->what);
    NEAP_CHECK(row != NULL, NEAP_UNSUPPORTED, "%s: model_type '%.80s' is not supported (" SUPPORTED ")", r->what, name);
    m->family = row->family;
    if (m->family == NEAP_FAMILY_KIMI_K3 && architecture != NULL && strcmp(architecture, families[2].architecture) == 0)
        m->family = NEAP_FAMILY_KIMI_K31;
    return neap_arena_strdup(m->arena, name != NULL ? name : row->model_type, &m->model_type);
}

static neap_status find_text(neap_config_reader *r) {
    r->text = r->root;
    r->text_prefix = "";
    const neap_json *t = neap_json_get(r->root, "text_config");
    if (t == NULL || neap_json_type_of(t) == NEAP_JSON_NULL) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(t) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "%s: text_config must be an object", r->what);
    r->text = t;
    r->text_prefix = "text_config.";
    const neap_json *type = neap_json_get(t, "model_type");
    if (type == NULL) return NEAP_OK;
    const char *name = neap_json_type_of(type) == NEAP_JSON_STRING ? neap_json_string(type, NULL) : "";
    NEAP_CHECK(strncmp(name, "kimi_linear", 11) == 0 || strncmp(name, "kimi_k3", 7) == 0, NEAP_UNSUPPORTED,
               "%s: text_config.model_type '%.80s' is not supported (kimi_linear)", r->what, name);
    return NEAP_OK;
}

/* dsa_config: besides the fields of the table a list of layers under a name ending in "layers". */
static neap_status read_dsa(neap_config_reader *r) {
    const neap_json *dsa = neap_json_get(r->text, "dsa_config");
    if (neap_json_type_of(dsa) == NEAP_JSON_NULL) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(dsa) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "%s: %sdsa_config must be an object", r->what,
               r->text_prefix);
    r->v.has_dsa_config = true;
    void *iter = NULL;
    const char *name = NULL;
    const neap_json *value = NULL;
    while ((iter = neap_json_iter(dsa, iter, &name, &value)) != NULL) {
        size_t n = strlen(name);
        if (n < 6 || strcmp(name + n - 6, "layers") != 0 || neap_json_type_of(value) != NEAP_JSON_ARRAY) continue;
        NEAP_CHECK(r->v.dsa_layers.v == NULL, NEAP_BAD_FILE, "%s: %sdsa_config has two lists of layers", r->what,
                   r->text_prefix);
        char path[96];
        (void)snprintf(path, sizeof path, "dsa_config.%.80s", name);
        NEAP_TRY(neap_config_ints(r, value, path, 1, NEAP_LAYERS_MAX, &r->v.dsa_layers));
    }
    return NEAP_OK;
}

static void note_ignored(const neap_config_reader *r) {
    if (neap_json_get(r->root, "auto_map") != NULL || neap_json_get(r->text, "auto_map") != NULL)
        neap_log_write(&r->m->log, NEAP_LOG_INFO, "%s: auto_map is ignored: no code from a model directory is ever run",
                       r->what);
}

static neap_status read_all(neap_config_reader *r) {
    NEAP_CHECK(neap_json_type_of(r->root) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "%s: must hold a JSON object", r->what);
    NEAP_TRY(find_family(r));
    NEAP_TRY(find_text(r));
    NEAP_TRY(neap_config_read_fields(r));
    NEAP_TRY(read_dsa(r));
    NEAP_TRY(neap_config_quantization(r));
    /* A multimodal file may say tie_word_embeddings outside only. */
    const neap_json *outer = neap_json_get(r->root, "tie_word_embeddings");
    if (neap_json_type_of(outer) == NEAP_JSON_BOOL) {
        int64_t is_tied = neap_json_bool(outer) ? 1 : 0;
        NEAP_CHECK(r->v.is_tied < 0 || r->v.is_tied == is_tied, NEAP_BAD_FILE,
                   "%s: tie_word_embeddings and text_config.tie_word_embeddings disagree", r->what);
        r->v.is_tied = is_tied;
    }
    NEAP_TRY(neap_config_build(r));
    note_ignored(r);
    return NEAP_OK;
}

static neap_status read_document(neap_model *m, neap_json *doc, const char *what, float latent_norm_eps) {
    NEAP_CHECK(latent_norm_eps >= 0 && latent_norm_eps < 1, NEAP_INVALID_ARGUMENT,
               "latent_norm_eps is %g, must be 0 .. 1", (double)latent_norm_eps);
    neap_config_reader r;
    memset(&r, 0, sizeof r);
    r.m = m;
    r.what = what;
    r.root = doc;
    r.latent_eps = latent_norm_eps;
    return read_all(&r);
}

neap_status neap_config_parse(neap_model *m, const char *text, size_t n, const char *what, float latent_norm_eps) {
    NEAP_CHECK(n <= NEAP_CONFIG_BYTES_MAX, NEAP_BAD_FILE, "%s: %zu bytes, the limit is %d", what, n,
               NEAP_CONFIG_BYTES_MAX);
    neap_json *doc = NULL;
    NEAP_TRY(neap_json_parse(&doc, text, n, what));
    neap_status status = read_document(m, doc, what, latent_norm_eps);
    neap_json_free(doc);
    return status;
}

neap_status neap_config_read(neap_model *m, const char *dir, float latent_norm_eps) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    NEAP_CHECK(n > 0 && (size_t)n < sizeof path, NEAP_INVALID_ARGUMENT, "the path is longer than %zu bytes",
               sizeof path - 1);
    neap_json *doc = NULL;
    NEAP_TRY(neap_json_load(&doc, path, NEAP_CONFIG_BYTES_MAX));
    neap_status status = read_document(m, doc, path, latent_norm_eps);
    neap_json_free(doc);
    return status;
}
