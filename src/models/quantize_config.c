/* config.json of the result: the source's text with another quantization_config.
 *
 * Members keep their order and numbers their spelling (jtree.h); one line per member of the two outer levels. The
 * object goes where the source had one (at the top, in text_config, or both); without one, into text_config if that
 * exists, as the published multimodal files have it, else to the top. A result without packed matrices has none.
 *
 *   config_groups   one group per format and group size: its `format`, its weights, and as targets a regular
 *                   expression per kind of matrix ("re:.*layers\.\d+\.self_attn\.q_proj$"); a matrix whose form
 *                   differs between layers names its layers
 *   format          that of the only kind of group, or mixed-precision
 *   ignore          the kinds of matrices that are not packed
 *
 * Called by quantize_model.c. Source: quantised formats 1; published configs of compressed-tensors models. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format/jtree.h"
#include "models/quantize.h"

/* ---------------------------------------------------------------- the new object -------------- */

static bool is_packed(const neap_quant_class *c) { return c->form == NEAP_FORM_INT8 || c->form == NEAP_FORM_MXFP4; }

static const char *format_name(neap_form form) {
    return form == NEAP_FORM_MXFP4 ? "mxfp4-pack-quantized" : "int-quantized";
}

/* Does the same pattern occur with another form? Then the layers have to be told apart. */
static bool is_split(const neap_quantize_plan *p, const neap_quant_class *c) {
    for (int32_t i = 0; i < p->n_classes; i++)
        if (&p->classes[i] != c && strcmp(p->classes[i].pattern, c->pattern) == 0) return true;
    return false;
}

static neap_status put_layers(const neap_quant_class *c, neap_text *out) {
    const char *before = "(";
    for (int32_t i = 0; i < NEAP_QUANT_LAYERS_MAX; i++) {
        if ((c->layers[i / 64] >> i % 64 & 1) == 0) continue;
        char number[16];
        (void)snprintf(number, sizeof number, "%s%d", before, i);
        NEAP_TRY(neap_text_str(out, number));
        before = "|";
    }
    return neap_text_str(out, ")");
}

/* The pattern as a JSON string. */
static neap_status put_pattern(const neap_quantize_plan *p, const neap_quant_class *c, neap_text *out) {
    neap_text plain = {0};
    neap_status status = NEAP_OK;
    const char *layer = c->is_layered ? strstr(c->pattern, "%L") : NULL;
    if (layer == NULL) {
        NEAP_TRY_GOTO(neap_text_str(&plain, c->pattern));
    } else {
        NEAP_TRY_GOTO(neap_text_add(&plain, c->pattern, (size_t)(layer - c->pattern)));
        NEAP_TRY_GOTO(is_split(p, c) ? put_layers(c, &plain) : neap_text_str(&plain, "\\d+"));
        NEAP_TRY_GOTO(neap_text_str(&plain, layer + 2));
    }
    NEAP_TRY_GOTO(neap_text_str(out, "\""));
    NEAP_TRY_GOTO(neap_json_escape(plain.p, plain.n, out));
    NEAP_TRY_GOTO(neap_text_str(out, "\""));
fail:
    neap_text_free(&plain);
    return status;
}

static neap_status put_patterns(const neap_quantize_plan *p, neap_text *out, const neap_quant_class *of) {
    const char *before = "";
    NEAP_TRY(neap_text_str(out, "["));
    if (of == NULL) { /* the vision part has layers of its own */
        NEAP_TRY(neap_text_str(out, "\"re:.*vision_tower.*\", \"re:.*mm_projector.*\""));
        before = ", ";
    }
    for (int32_t i = 0; i < p->n_classes; i++) {
        const neap_quant_class *c = &p->classes[i];
        bool is_listed = of != NULL ? c->form == of->form && c->group == of->group : !is_packed(c);
        if (!is_listed) continue;
        NEAP_TRY(neap_text_str(out, before));
        NEAP_TRY(put_pattern(p, c, out));
        before = ", ";
    }
    return neap_text_str(out, "]");
}

static neap_status put_group(const neap_quantize_plan *p, const neap_quant_class *c, int32_t number, neap_text *out) {
    char text[320], weights[200];
    if (c->form == NEAP_FORM_MXFP4)
        (void)snprintf(weights, sizeof weights,
                       "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"group\", \"group_size\": 32, "
                       "\"scale_dtype\": \"torch.uint8\"");
    else if (c->group == 0)
        (void)snprintf(weights, sizeof weights,
                       "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"channel\", \"group_size\": null");
    else
        (void)snprintf(weights, sizeof weights,
                       "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"group\", \"group_size\": %" PRId64,
                       c->group);
    (void)snprintf(text, sizeof text, "%s\"group_%d\": {\"format\": \"%s\", \"targets\": ", number > 0 ? ", " : "",
                   number, format_name(c->form));
    NEAP_TRY(neap_text_str(out, text));
    NEAP_TRY(put_patterns(p, out, c));
    (void)snprintf(text, sizeof text,
                   ", \"weights\": {%s, \"symmetric\": true, \"dynamic\": false}, \"input_activations\": null, "
                   "\"output_activations\": null}",
                   weights);
    return neap_text_str(out, text);
}

/* Nothing when no matrix is packed. */
static neap_status make_object(const neap_quantize_plan *p, neap_text *out) {
    const char *format = NULL;
    int32_t n = 0;
    neap_text groups = {0};
    neap_status status = NEAP_OK;
    for (int32_t i = 0; i < p->n_classes; i++) {
        const neap_quant_class *c = &p->classes[i];
        bool is_first = is_packed(c);
        for (int32_t j = 0; is_first && j < i; j++)
            is_first = p->classes[j].form != c->form || p->classes[j].group != c->group;
        if (!is_first) continue;
        NEAP_TRY_GOTO(put_group(p, c, n++, &groups));
        if (format == NULL) format = format_name(c->form);
        if (strcmp(format, format_name(c->form)) != 0) format = "mixed-precision";
    }
    if (n == 0) goto fail;
    NEAP_TRY_GOTO(neap_text_str(out, "{\"quant_method\": \"compressed-tensors\", \"format\": \""));
    NEAP_TRY_GOTO(neap_text_str(out, format));
    NEAP_TRY_GOTO(neap_text_str(out, "\", \"quantization_status\": \"compressed\", \"config_groups\": {"));
    NEAP_TRY_GOTO(neap_text_add(out, groups.p, groups.n));
    NEAP_TRY_GOTO(neap_text_str(out, "}, \"ignore\": "));
    NEAP_TRY_GOTO(put_patterns(p, out, NULL));
    NEAP_TRY_GOTO(neap_text_str(out, "}"));
fail:
    neap_text_free(&groups);
    return status;
}

/* ---------------------------------------------------------------- the rest of the file --------- */

static const char KEY[] = "quantization_config";

static bool is_key(const neap_jtree *t, uint32_t node, const char *key) {
    const neap_jnode *v = &t->nodes[node];
    return v->key_bytes == strlen(key) && memcmp(t->pool + v->key, key, v->key_bytes) == 0;
}

static neap_status put_key(const char *indent, bool is_first, const char *key, size_t n, neap_text *out) {
    NEAP_TRY(neap_text_str(out, is_first ? "\n" : ",\n"));
    NEAP_TRY(neap_text_str(out, indent));
    NEAP_TRY(neap_text_str(out, "\""));
    NEAP_TRY(neap_json_escape(key, n, out));
    return neap_text_str(out, "\": ");
}

static uint32_t first_child(const neap_jtree *t, uint32_t object) {
    return t->nodes[object].n > 0 ? t->nodes[object].first : NEAP_J_NONE;
}

/* The inner of the two levels: text_config. */
static neap_status put_text_config(neap_jtree *t, uint32_t object, bool wants_object, const neap_text *object_text,
                                   neap_text *out) {
    bool is_first = true, is_done = !wants_object || object_text->n == 0;
    NEAP_TRY(neap_text_str(out, "{"));
    for (uint32_t v = first_child(t, object); v != NEAP_J_NONE; v = t->nodes[v].next) {
        bool is_ours = is_key(t, v, KEY);
        if (is_ours && is_done) continue;
        NEAP_TRY(put_key("    ", is_first, t->pool + t->nodes[v].key, t->nodes[v].key_bytes, out));
        NEAP_TRY(is_ours ? neap_text_add(out, object_text->p, object_text->n)
                         : neap_jtree_write(t, v, NEAP_J_SPACED, out));
        if (is_ours) is_done = true;
        is_first = false;
    }
    if (!is_done) {
        NEAP_TRY(put_key("    ", is_first, KEY, sizeof KEY - 1, out));
        NEAP_TRY(neap_text_add(out, object_text->p, object_text->n));
    }
    return neap_text_str(out, "\n  }");
}

static neap_status put_file(neap_jtree *t, const neap_text *object_text, neap_text *out) {
    uint32_t inner = neap_jtree_get(t, NEAP_J_ROOT, "text_config");
    bool has_inner = inner != NEAP_J_NONE && neap_jtree_kind(t, inner) == NEAP_J_OBJECT;
    bool is_outer = neap_jtree_get(t, NEAP_J_ROOT, KEY) != NEAP_J_NONE;
    bool is_inner = has_inner && neap_jtree_get(t, inner, KEY) != NEAP_J_NONE;
    if (!is_outer && !is_inner) {
        is_inner = has_inner;
        is_outer = !has_inner;
    }
    bool is_first = true, is_done = !is_outer || object_text->n == 0;
    NEAP_TRY(neap_text_str(out, "{"));
    for (uint32_t v = first_child(t, NEAP_J_ROOT); v != NEAP_J_NONE; v = t->nodes[v].next) {
        bool is_ours = is_key(t, v, KEY);
        if (is_ours && is_done) continue;
        NEAP_TRY(put_key("  ", is_first, t->pool + t->nodes[v].key, t->nodes[v].key_bytes, out));
        is_first = false;
        if (is_ours) {
            NEAP_TRY(neap_text_add(out, object_text->p, object_text->n));
            is_done = true;
        } else if (has_inner && v == inner) {
            NEAP_TRY(put_text_config(t, v, is_inner, object_text, out));
        } else {
            NEAP_TRY(neap_jtree_write(t, v, NEAP_J_SPACED, out));
        }
    }
    if (!is_done) {
        NEAP_TRY(put_key("  ", is_first, KEY, sizeof KEY - 1, out));
        NEAP_TRY(neap_text_add(out, object_text->p, object_text->n));
    }
    return neap_text_str(out, "\n}\n");
}

neap_status neap_quantize_config(const neap_quantize_plan *p, const char *text, size_t n, neap_text *out) {
    neap_text object = {0};
    neap_jtree t = {0};
    neap_status status = NEAP_OK;
    NEAP_TRY_GOTO(neap_jtree_parse(&t, text, n, NEAP_J_STRICT));
    if (neap_jtree_kind(&t, NEAP_J_ROOT) != NEAP_J_OBJECT)
        NEAP_FAIL_GOTO(NEAP_BAD_FILE, "config.json must hold a JSON object");
    NEAP_TRY_GOTO(make_object(p, &object));
    NEAP_TRY_GOTO(put_file(&t, &object, out));
fail:
    neap_jtree_free(&t);
    neap_text_free(&object);
    return status;
}
