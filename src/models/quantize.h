/* Rewriting a checkpoint with weights in other forms: inside view of neap_quantize.
 *
 *   quantize_model.c   the public call: checks, writes shards, index and the other files
 *   quantize_plan.c    decides the form of every stored tensor, lists the output tensors, cuts them into shards
 *   quantize_encode.c  rows of F32 -> BF16, INT8, MXFP4
 *   quantize_config.c  config.json with the quantization_config of the result
 *   quantize_files.c   directories: what may be written where, what is copied, what is taken back after a failure */
#ifndef NEAP_MODELS_QUANTIZE_H
#define NEAP_MODELS_QUANTIZE_H

#include "format/text_buffer.h"
#include "models/match.h"

/* ---------------------------------------------------------------- encode ---------------------- */

/* Inputs that share a scale in what is written: 128, else 32, else the whole row. */
int64_t neap_quantize_group(int64_t k);
/* One row. Non-finite values must have been refused before. */
void neap_encode_bf16(uint16_t *dst, const float *x, int64_t k);
/* scales[ceil(k/group)] BF16: amax / 127 rounded; code = x / stored scale, nearest even, -127 .. 127. */
void neap_encode_int8(int8_t *codes, uint16_t *scales, const float *x, int64_t k, int64_t group);
/* k a multiple of 32. packed[k/2]: element 2i in the low nibble; scales[k/32] E8M0. */
void neap_encode_mxfp4(uint8_t *packed, uint8_t *scales, const float *x, int64_t k);

/* ---------------------------------------------------------------- plan ------------------------ */

/* Form of a matrix in the result. PLAIN: as stored in BF16, F32 or F16. */
typedef enum neap_form { NEAP_FORM_PLAIN, NEAP_FORM_BF16, NEAP_FORM_INT8, NEAP_FORM_MXFP4 } neap_form;

/* A matrix that is written in another form than it is stored in. */
typedef struct neap_recode {
    neap_match match;
    int64_t n, k, group; /* group: INT8 */
    neap_form form;
} neap_recode;

/* One tensor of the result, in writing order. */
typedef struct neap_out_item {
    neap_out_tensor t;
    uint64_t bytes;
    int32_t shard;
    const neap_stored_tensor *copy; /* bytes of a stored tensor, else NULL */
    int64_t recode;                 /* number in recodes: the codes; -1: a copy, or the scales of the item before */
} neap_out_item;

/* Matrices of one name and form, for quantization_config: "self_attn.q_proj" of all layers. */
typedef struct neap_quant_class {
    const char *pattern; /* regular expression; "%L" stands for the layer number when is_layered */
    bool is_layered;
    neap_form form;
    int64_t group;       /* INT8: inputs per scale, 0 = the whole row */
    uint64_t layers[20]; /* bit set of layer numbers */
} neap_quant_class;

typedef struct neap_quantize_plan {
    neap_arena *arena; /* all lists */
    const neap_checkpoint *c;
    const neap_matches *matches;
    neap_form experts, linear, head, embedding;
    neap_recode *recodes;
    int64_t n_recodes, recodes_max;
    neap_out_item *items;
    int64_t n_items;
    neap_quant_class *classes;
    int32_t n_classes, classes_max;
    int32_t n_shards;
    uint64_t bytes; /* of all items */
    int64_t n_copied;
} neap_quantize_plan;

enum { NEAP_QUANT_LAYERS_MAX = 20 * 64 };

/* p->arena, c, matches and the four forms are set. */
NEAP_MUST_CHECK neap_status neap_quantize_plan_make(neap_quantize_plan *p, neap_model *m, uint64_t shard_bytes_max);
/* recodes and classes are neap_mem memory. */
void neap_quantize_plan_free(neap_quantize_plan *p);
/* "model.safetensors" or "model-00001-of-00003.safetensors". */
void neap_quantize_shard_name(const neap_quantize_plan *p, int32_t shard, char *name, size_t capacity);

/* ---------------------------------------------------------------- config ---------------------- */

/* text: config.json of the source, n bytes. out gets the whole new file. */
NEAP_MUST_CHECK neap_status neap_quantize_config(const neap_quantize_plan *p, const char *text, size_t n,
                                                 neap_text *out);

/* ---------------------------------------------------------------- files ----------------------- */

/* A directory that is filled file by file and emptied again on failure. */
typedef struct neap_out_dir {
    neap_arena *arena; /* of the paths */
    const char *path;
    bool is_created;
    const char **files; /* written so far: paths, neap_mem memory */
    int64_t n_files, files_max;
} neap_out_dir;

/* Refuses an `out` that is the model, is not a directory, or is not empty; makes it when it does not exist. */
NEAP_MUST_CHECK neap_status neap_out_dir_open(neap_out_dir *d, neap_arena *arena, const char *model, const char *out);
/* Fails when the file system has less than `bytes` left. */
NEAP_MUST_CHECK neap_status neap_out_dir_room(const neap_out_dir *d, uint64_t bytes);
/* The path of a file that is about to be written; it is removed by discard. */
NEAP_MUST_CHECK neap_status neap_out_dir_path(neap_out_dir *d, const char *name, const char **path);
/* Copies every file of the model directory that holds neither weights nor config.json. Directories stay behind. */
NEAP_MUST_CHECK neap_status neap_out_dir_copy_rest(neap_out_dir *d, const char *model, void *buffer, size_t bytes);
void neap_out_dir_discard(neap_out_dir *d); /* removes what was written */
void neap_out_dir_close(neap_out_dir *d);

#endif
