/* quantization_config: the published formats that neap loads, and one clear line for all others.
 *
 *   compressed-tensors   mxfp4-pack-quantized   weight_packed U8 + weight_scale U8     groups of 32
 *                        int-quantized, naive-quantized with 8-bit integers: weight I8 + weight_scale, a scale per
 *                        output (channel) or per output and group of inputs; symmetric. Activations that the file
 *                        would quantise while running stay F32: more exact than what it asks for.
 *   fp8                  blocks of 128 x 128: weight F8_E4M3 + weight_scale_inv
 * A compressed-tensors file has config_groups, each with its own format or that of the top, so both of its formats
 * may occur in one model; the top then says mixed-precision. `targets` and `ignore` are not evaluated: which
 * tensors are packed is decided by the tensors that exist (match.c), since published lists name more than is packed.
 *
 * Called by config.c. Source: quantised formats 1 and 2; published configs of compressed-tensors models. */
#include <stdio.h>
#include <string.h>

#include "models/config.h"

#define FORMATS "mxfp4-pack-quantized, int-quantized"

static const char *text_or(const neap_json *object, const char *key, const char *otherwise) {
    const neap_json *j = neap_json_get(object, key);
    return neap_json_type_of(j) == NEAP_JSON_STRING ? neap_json_string(j, NULL) : otherwise;
}

static bool is_absent(const neap_json *j) { return neap_json_type_of(j) == NEAP_JSON_NULL; }

/* weights.KEY, if present, must be the integer `wanted`. */
static neap_status check_int(const neap_config_reader *r, const neap_json *w, const char *format, const char *key,
                             int64_t wanted) {
    const neap_json *j = neap_json_get(w, key);
    if (is_absent(j)) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(j) == NEAP_JSON_INT && neap_json_int(j) == wanted, NEAP_UNSUPPORTED,
               "%s: quantization_config: %s with %s %lld is not supported (%lld)", r->what, format, key,
               neap_json_type_of(j) == NEAP_JSON_INT ? (long long)neap_json_int(j) : -1LL, (long long)wanted);
    return NEAP_OK;
}

static neap_status check_text(const neap_config_reader *r, const neap_json *w, const char *format, const char *key,
                              const char *wanted) {
    const neap_json *j = neap_json_get(w, key);
    if (is_absent(j)) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(j) == NEAP_JSON_STRING && strcmp(neap_json_string(j, NULL), wanted) == 0,
               NEAP_UNSUPPORTED, "%s: quantization_config: %s with %s '%.40s' is not supported (%s)", r->what, format,
               key, text_or(w, key, "?"), wanted);
    return NEAP_OK;
}

static neap_status check_mxfp4(neap_config_reader *r, const neap_json *w, const char *format) {
    r->v.quant |= NEAP_QUANT_MXFP4;
    NEAP_TRY(check_int(r, w, format, "num_bits", 4));
    NEAP_TRY(check_int(r, w, format, "group_size", 32));
    return check_text(r, w, format, "type", "float");
}

static neap_status check_int8(neap_config_reader *r, const neap_json *group, const char *format) {
    const neap_json *w = neap_json_get(group, "weights");
    r->v.quant |= NEAP_QUANT_INT8;
    NEAP_TRY(check_int(r, w, format, "num_bits", 8));
    NEAP_TRY(check_text(r, w, format, "type", "int"));
    const neap_json *symmetric = neap_json_get(w, "symmetric");
    NEAP_CHECK(is_absent(symmetric) || (neap_json_type_of(symmetric) == NEAP_JSON_BOOL && neap_json_bool(symmetric)),
               NEAP_UNSUPPORTED, "%s: quantization_config: %s that is not symmetric is not supported", r->what, format);
    const char *strategy = text_or(w, "strategy", "group");
    NEAP_CHECK(strcmp(strategy, "group") == 0 || strcmp(strategy, "channel") == 0, NEAP_UNSUPPORTED,
               "%s: quantization_config: %s with strategy '%.40s' is not supported (group, channel)", r->what, format,
               strategy);
    /* A static scale of the activations would come as a tensor that has to be applied. */
    const neap_json *input = neap_json_get(group, "input_activations"), *dynamic = neap_json_get(input, "dynamic");
    NEAP_CHECK(is_absent(input) || (neap_json_type_of(dynamic) == NEAP_JSON_BOOL && neap_json_bool(dynamic)),
               NEAP_UNSUPPORTED, "%s: quantization_config: %s with static input_activations is not supported", r->what,
               format);
    return NEAP_OK;
}

static neap_status check_group(neap_config_reader *r, const neap_json *group, const char *top, const char *name) {
    const char *format = text_or(group, "format", top);
    if (format == NULL) format = "none";
    const neap_json *weights = neap_json_get(group, "weights");
    if (strcmp(format, "mxfp4-pack-quantized") == 0) return check_mxfp4(r, weights, format);
    if (strcmp(format, "int-quantized") == 0 || strcmp(format, "naive-quantized") == 0)
        return check_int8(r, group, format);
    NEAP_FAIL(NEAP_UNSUPPORTED,
              "%s: quantization_config: compressed-tensors format '%.60s'%s%.40s%s is not supported "
              "(" FORMATS ")",
              r->what, format, name != NULL ? " (group '" : "", name != NULL ? name : "", name != NULL ? "')" : "");
}

static neap_status read_compressed_tensors(neap_config_reader *r, const neap_json *q) {
    const char *top = text_or(q, "format", NULL);
    const neap_json *groups = neap_json_get(q, "config_groups");
    size_t n_groups = neap_json_type_of(groups) == NEAP_JSON_OBJECT ? neap_json_size(groups) : 0;
    if (n_groups == 0) return check_group(r, NULL, top, NULL);
    void *iter = NULL;
    const char *name = NULL;
    const neap_json *group = NULL;
    while ((iter = neap_json_iter(groups, iter, &name, &group)) != NULL) NEAP_TRY(check_group(r, group, top, name));
    return NEAP_OK;
}

static neap_status read_fp8(neap_config_reader *r, const neap_json *q) {
    const char *fmt = text_or(q, "fmt", "e4m3");
    NEAP_CHECK(strcmp(fmt, "e4m3") == 0, NEAP_UNSUPPORTED,
               "%s: quantization_config: fp8 fmt '%.40s' is not supported (e4m3)", r->what, fmt);
    const neap_json *block = neap_json_get(q, "weight_block_size");
    bool is_128 = neap_json_type_of(block) == NEAP_JSON_ARRAY && neap_json_size(block) == 2;
    for (size_t i = 0; is_128 && i < 2; i++)
        is_128 =
            neap_json_type_of(neap_json_at(block, i)) == NEAP_JSON_INT && neap_json_int(neap_json_at(block, i)) == 128;
    NEAP_CHECK(is_128, NEAP_UNSUPPORTED, "%s: quantization_config: fp8 needs weight_block_size [128, 128]", r->what);
    const char *scheme = text_or(q, "activation_scheme", "dynamic");
    NEAP_CHECK(strcmp(scheme, "dynamic") == 0, NEAP_UNSUPPORTED,
               "%s: quantization_config: activation_scheme '%.40s' is not supported (dynamic)", r->what, scheme);
    r->v.quant |= NEAP_QUANT_FP8;
    return NEAP_OK;
}

/* The object lies in text_config or at the top; loaders copy it from one to the other, so either counts. */
neap_status neap_config_quantization(neap_config_reader *r) {
    const neap_json *q = neap_json_get(r->text, "quantization_config");
    if (neap_json_type_of(q) == NEAP_JSON_NULL) q = neap_json_get(r->root, "quantization_config");
    if (neap_json_type_of(q) == NEAP_JSON_NULL) return NEAP_OK;
    NEAP_CHECK(neap_json_type_of(q) == NEAP_JSON_OBJECT, NEAP_BAD_FILE, "%s: quantization_config must be an object",
               r->what);
    const char *method = text_or(q, "quant_method", "");
    if (strcmp(method, "compressed-tensors") == 0) return read_compressed_tensors(r, q);
    if (strcmp(method, "fp8") == 0) return read_fp8(r, q);
    NEAP_FAIL(NEAP_UNSUPPORTED,
              "%s: quantization_config.quant_method '%.60s' is not supported (compressed-tensors, fp8)", r->what,
              method);
}
