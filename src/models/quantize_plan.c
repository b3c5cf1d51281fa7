/* What becomes of every stored tensor.
 *
 * One walk over the wants gives each matrix its form: routed experts and linear projections as asked, head and
 * embedding too when INT8 is asked for, all others as they are, except that FP8, MXFP4 or INT8 in their place become
 * BF16 (the result has no other packed matrices than those its quantization_config describes). A matrix that already
 * has its form is copied byte for byte, codes and scales; the others are listed as recodes. Tensors that the network
 * does not know (vision, spare copies) are copied.
 * Then one pass over the stored tensors, in file order, lists the output with names, shapes and sizes; a shard is
 * closed when the next tensor would take it over its limit, and codes stay in one shard with their scales.
 *
 * Called by quantize_model.c. Memory: some 200 bytes per tensor. Names: quantised formats 1 (published packing). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "models/quantize.h"

typedef struct planner {
    neap_quantize_plan *p;
    neap_model *m;
    int64_t i_match;
    neap_status status;
    int64_t *recode_of; /* per stored tensor: COPY, DROP or a recode */
} planner;

enum { COPY = -1, DROP = -2 };

/* ---------------------------------------------------------------- forms ----------------------- */

static neap_form stored_form(neap_dtype d) {
    switch (d) {
    case NEAP_DTYPE_BF16: return NEAP_FORM_BF16;
    case NEAP_DTYPE_I8: return NEAP_FORM_INT8;
    case NEAP_DTYPE_U8: return NEAP_FORM_MXFP4;
    default: return NEAP_FORM_PLAIN; /* F32, F16; FP8 is no form of a result */
    }
}

/* The form in the result; a kept matrix in F32 or F16 stays what it is. */
static neap_form wanted_form(const planner *w, const neap_want *want, neap_dtype stored) {
    if (want->kind == NEAP_WANT_MATRIX && want->expert >= 0) return w->p->experts;
    if (want->kind == NEAP_WANT_MATRIX && want->is_linear) return w->p->linear;
    /* One matrix is both in a tied model, and 8 bits are asked for as soon as one of them is to have them. */
    bool is_head = want->is_head || (want->is_embedding && w->m->is_tied);
    bool is_embedding = want->is_embedding || (want->is_head && w->m->is_tied);
    if (is_head && w->p->head == NEAP_FORM_INT8) return NEAP_FORM_INT8;
    if (is_embedding && w->p->embedding == NEAP_FORM_INT8) return NEAP_FORM_INT8;
    return neap_match_kind(stored) > NEAP_MATRIX_BF16 ? NEAP_FORM_BF16 : stored_form(stored);
}

/* ---------------------------------------------------------------- classes --------------------- */

/* A regular expression for the same matrix in all layers: digits between dots become \d+, the layer number %L.
 * What stands before "layers." differs between loaders and is left open. */
static void make_pattern(const char *name, char *out, size_t capacity, bool *is_layered) {
    const char *at = strstr(name, "layers."), *last = strrchr(name, '.');
    *is_layered = at != NULL;
    if (at == NULL) at = last != NULL ? last + 1 : name;
    size_t n = (size_t)snprintf(out, capacity, "re:.*");
    bool is_first_number = true;
    for (char before = 0; *at != 0 && n + 8 < capacity; before = *at, at++) {
        if (*at >= '0' && *at <= '9' && before == '.') {
            while (at[1] >= '0' && at[1] <= '9') at++;
            n += (size_t)snprintf(out + n, capacity - n, "%s", is_first_number ? "%L" : "\\d+");
            is_first_number = false;
        } else if (*at == '.') {
            n += (size_t)snprintf(out + n, capacity - n, "\\.");
        } else {
            out[n++] = *at;
        }
    }
    (void)snprintf(out + n, capacity - n, "$");
}

static neap_status add_class(planner *w, const neap_want *want, neap_form form, int64_t group) {
    neap_quantize_plan *p = w->p;
    char pattern[2 * NEAP_NAME_BYTES];
    bool is_layered = false;
    make_pattern(want->name, pattern, sizeof pattern, &is_layered);
    int32_t i = 0;
    while (i < p->n_classes &&
           (p->classes[i].form != form || p->classes[i].group != group || strcmp(p->classes[i].pattern, pattern) != 0))
        i++;
    if (i == p->n_classes) {
        if (p->n_classes == p->classes_max) {
            size_t old = (size_t)p->classes_max * sizeof *p->classes, more = old + 64 * sizeof *p->classes;
            NEAP_TRY(neap_mem_grow((void **)&p->classes, old, more));
            p->classes_max += 64;
        }
        neap_quant_class *c = &p->classes[p->n_classes];
        *c = (neap_quant_class){.is_layered = is_layered, .form = form, .group = group};
        NEAP_TRY(neap_arena_strdup(p->arena, pattern, &c->pattern));
        p->n_classes++;
    }
    if (is_layered) p->classes[i].layers[want->group / 64] |= UINT64_C(1) << want->group % 64;
    return NEAP_OK;
}

/* ---------------------------------------------------------------- the walk -------------------- */

static neap_status add_recode(planner *w, const neap_want *want, const neap_match *match, neap_form form,
                              int64_t group) {
    neap_quantize_plan *p = w->p;
    if (p->n_recodes == p->recodes_max) {
        int64_t more = p->recodes_max > 0 ? 2 * p->recodes_max : 1024;
        NEAP_TRY(neap_mem_grow((void **)&p->recodes, (size_t)p->recodes_max * sizeof *p->recodes,
                               (size_t)more * sizeof *p->recodes));
        p->recodes_max = more;
    }
    if (match->scale != NULL) w->recode_of[neap_checkpoint_number(p->c, match->scale)] = DROP;
    w->recode_of[neap_checkpoint_number(p->c, match->data)] = p->n_recodes;
    p->recodes[p->n_recodes++] =
        (neap_recode){.match = *match, .n = want->n, .k = want->k, .group = group, .form = form};
    return NEAP_OK;
}

static neap_status take(planner *w, const neap_want *want, const neap_match *match) {
    if (!want->is_matrix_like || match->data == NULL) return NEAP_OK;
    neap_dtype stored = match->data->dtype;
    neap_form form = wanted_form(w, want, stored);
    bool is_same = form == stored_form(stored);
    int64_t group = 0, k = want->k;
    if (form == NEAP_FORM_INT8) group = is_same ? k / match->scale->shape[1] : neap_quantize_group(k);
    NEAP_CHECK(form != NEAP_FORM_MXFP4 || k % 32 == 0, NEAP_UNSUPPORTED,
               "%s: MXFP4 needs a multiple of 32 inputs, this matrix has %" PRId64, want->name, k);
    /* The same matrix may be wanted twice (tied heads): the first decision stands. */
    if (!is_same && w->recode_of[neap_checkpoint_number(w->p->c, match->data)] == COPY)
        NEAP_TRY(add_recode(w, want, match, form, group));
    return add_class(w, want, form, group == k ? 0 : group);
}

static bool visit(void *user, const neap_want *want) {
    planner *w = user;
    w->status = take(w, want, &w->p->matches->items[w->i_match++]);
    return w->status == NEAP_OK;
}

/* ---------------------------------------------------------------- the output ------------------ */

static bool cut_tail(char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    if (n < k || strcmp(name + n - k, tail) != 0) return false;
    name[n - k] = 0;
    return true;
}

static neap_status add_item(planner *w, const char *base, const char *tail, neap_dtype dtype, int64_t n, int64_t k,
                            int64_t recode) {
    neap_quantize_plan *p = w->p;
    char name[NEAP_NAME_BYTES + 32];
    (void)snprintf(name, sizeof name, "%s%s", base, tail);
    neap_out_item *i = &p->items[p->n_items++];
    *i = (neap_out_item){.t = {.dtype = dtype, .rank = 2, .shape = {n, k}}, .recode = recode};
    i->bytes = (uint64_t)(n * k) * (uint64_t)neap_dtype_bits(dtype) / 8;
    return neap_arena_strdup(p->arena, name, &i->t.name);
}

static neap_status add_recoded(planner *w, const neap_stored_tensor *t, int64_t recode) {
    const neap_recode *r = &w->p->recodes[recode];
    char base[NEAP_NAME_BYTES + 32];
    (void)snprintf(base, sizeof base, "%s", t->name);
    if (!cut_tail(base, ".weight_packed")) (void)cut_tail(base, ".weight");
    switch (r->form) {
    case NEAP_FORM_MXFP4:
        NEAP_TRY(add_item(w, base, ".weight_packed", NEAP_DTYPE_U8, r->n, r->k / 2, recode));
        return add_item(w, base, ".weight_scale", NEAP_DTYPE_U8, r->n, r->k / 32, COPY);
    case NEAP_FORM_INT8:
        NEAP_TRY(add_item(w, base, ".weight", NEAP_DTYPE_I8, r->n, r->k, recode));
        return add_item(w, base, ".weight_scale", NEAP_DTYPE_BF16, r->n, (r->k + r->group - 1) / r->group, COPY);
    case NEAP_FORM_BF16:
    case NEAP_FORM_PLAIN: break;
    }
    return add_item(w, base, ".weight", NEAP_DTYPE_BF16, r->n, r->k, recode);
}

static neap_status list_items(planner *w) {
    neap_quantize_plan *p = w->p;
    int64_t count = neap_checkpoint_count(p->c);
    void *memory = NULL;
    NEAP_TRY(neap_arena_array(p->arena, (size_t)(count + p->n_recodes) + 1, sizeof *p->items, &memory));
    p->items = memory;
    for (int64_t i = 0; i < count; i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(p->c, i);
        if (w->recode_of[i] == DROP) continue;
        if (w->recode_of[i] >= 0) {
            NEAP_TRY(add_recoded(w, t, w->recode_of[i]));
            continue;
        }
        neap_out_item *item = &p->items[p->n_items++];
        *item = (neap_out_item){
            .t = {.name = t->name, .dtype = t->dtype, .rank = t->rank}, .bytes = t->bytes, .copy = t, .recode = COPY};
        memcpy(item->t.shape, t->shape, sizeof item->t.shape);
        p->n_copied++;
    }
    return NEAP_OK;
}

static void cut_shards(neap_quantize_plan *p, uint64_t bytes_max) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < p->n_items; i++) {
        neap_out_item *item = &p->items[i];
        bool has_scales =
            item->recode >= 0 && i + 1 < p->n_items && p->items[i + 1].recode < 0 && p->items[i + 1].copy == NULL;
        bool is_scales = item->recode < 0 && item->copy == NULL;
        uint64_t together = item->bytes + (has_scales ? p->items[i + 1].bytes : 0);
        if (!is_scales && bytes > 0 && together > bytes_max - (bytes < bytes_max ? bytes : bytes_max)) {
            p->n_shards++;
            bytes = 0;
        }
        item->shard = p->n_shards;
        bytes += item->bytes;
        p->bytes += item->bytes;
    }
    p->n_shards++;
}

void neap_quantize_shard_name(const neap_quantize_plan *p, int32_t shard, char *name, size_t capacity) {
    if (p->n_shards == 1)
        (void)snprintf(name, capacity, "model.safetensors");
    else
        (void)snprintf(name, capacity, "model-%05d-of-%05d.safetensors", shard + 1, p->n_shards);
}

neap_status neap_quantize_plan_make(neap_quantize_plan *p, neap_model *m, uint64_t shard_bytes_max) {
    planner w = {.p = p, .m = m};
    int64_t count = neap_checkpoint_count(p->c);
    void *memory = NULL;
    NEAP_TRY(neap_arena_array(p->arena, (size_t)count + 1, sizeof *w.recode_of, &memory));
    w.recode_of = memory;
    for (int64_t i = 0; i < count; i++) w.recode_of[i] = COPY;
    (void)neap_weights_visit(m, &p->matches->names, visit, &w);
    NEAP_TRY(w.status);
    NEAP_TRY(list_items(&w));
    cut_shards(p, shard_bytes_max);
    NEAP_CHECK(p->n_shards <= 4096, NEAP_INVALID_ARGUMENT, "%d shards, the limit is 4096: allow larger ones",
               p->n_shards);
    return NEAP_OK;
}

void neap_quantize_plan_free(neap_quantize_plan *p) {
    neap_mem_free(p->recodes);
    neap_mem_free(p->classes);
    p->recodes = NULL;
    p->classes = NULL;
}
