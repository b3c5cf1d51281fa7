/* Compares the list of expected tensors with the checkpoint's table: missing, misshapen, of a wrong type, unknown.
 *
 * Decided per tensor, by what is there: X.weight in BF16, F32 or F16; X.weight in F8_E4M3 with X.weight_scale_inv;
 * X.weight_packed with X.weight_scale (MXFP4); X.weight in I8 with X.weight_scale (INT8). No format is guessed from
 * shapes. All mismatches are counted, the first twenty kept as text: as many as fit stand in the error, all twenty go
 * to the log. What nobody asked for is an error inside the layers (a tensor that changes the computation would be left
 * out silently) and a warning elsewhere; the vision part is skipped with one notice.
 *
 * Called by load.c. Cost: a few hash lookups per tensor. When the config asks for far more tensors than the file
 * has, the walk stops at the twentieth mismatch: an absurd config must not cost seconds.
 * Source: tensor tables of the specifications; quantised formats 1 and 2. */
#include "models/match.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINES_MAX = 20, LINE_BYTES = 320, ERROR_BYTES = 880 };

typedef struct matcher {
    neap_model *m;
    const neap_checkpoint *c;
    neap_matches *out;
    neap_status status; /* of the bookkeeping, not of the comparison */
    bool may_stop;      /* a count of mismatches is hopeless: stop when the list is full */
    int64_t n_missing, n_shape, n_type, n_extra;
    char lines[LINES_MAX][LINE_BYTES];
    int32_t n_lines;
    const neap_stored_tensor **used; /* hash set by address */
    size_t used_mask;
    int64_t n_decay_cut, decay_stored, decay_used; /* A_log entries beyond the heads */
    int64_t n_other;                               /* unknown names outside the layers, not errors */
    const char *other;                             /* the first of them */
} matcher;

/* ---------------------------------------------------------------- bookkeeping ----------------- */

static void mark_used(matcher *w, const neap_stored_tensor *t) {
    if (t == NULL) return;
    size_t i = ((uintptr_t)t >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20 & w->used_mask;
    while (w->used[i] != NULL && w->used[i] != t) i = (i + 1) & w->used_mask;
    w->used[i] = t;
}

static bool is_used(const matcher *w, const neap_stored_tensor *t) {
    size_t i = ((uintptr_t)t >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20 & w->used_mask;
    while (w->used[i] != NULL && w->used[i] != t) i = (i + 1) & w->used_mask;
    return w->used[i] == t;
}

static int64_t n_bad(const matcher *w) { return w->n_missing + w->n_shape + w->n_type + w->n_extra; }

/* A line for the list; NULL when it is full. */
static char *new_line(matcher *w) { return w->n_lines < LINES_MAX ? w->lines[w->n_lines++] : NULL; }

static void shape_text(char *text, size_t capacity, int32_t rank, const int64_t *shape) {
    size_t n = 0;
    n += (size_t)snprintf(text, capacity, "[");
    for (int32_t i = 0; i < rank && n + 24 < capacity; i++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    (void)snprintf(text + n, capacity - n, "]");
}

static void want_shape_text(const neap_want *want, char *text, size_t capacity) {
    switch (want->kind) {
    case NEAP_WANT_MATRIX:
    case NEAP_WANT_KV_B:
    case NEAP_WANT_COPY: (void)snprintf(text, capacity, "[%" PRId64 ", %" PRId64 "]", want->n, want->k); break;
    case NEAP_WANT_CONV: (void)snprintf(text, capacity, "[%" PRId64 ", 1, %" PRId64 "]", want->n, want->k); break;
    case NEAP_WANT_DECAY: (void)snprintf(text, capacity, "[%" PRId64 "] or longer", want->n); break;
    case NEAP_WANT_VECTOR:
    case NEAP_WANT_MIX: (void)snprintf(text, capacity, "[%" PRId64 "]", want->n); break;
    }
}

static void report_missing(matcher *w, const neap_want *want, const char *name) {
    w->n_missing++;
    char *line = new_line(w);
    if (line == NULL) return;
    char shape[96];
    want_shape_text(want, shape, sizeof shape);
    (void)snprintf(line, LINE_BYTES, "%.200s is missing, expected %s", name, shape);
}

static void report_shape(matcher *w, const neap_stored_tensor *t, const char *expected) {
    w->n_shape++;
    char *line = new_line(w);
    if (line == NULL) return;
    char shape[128];
    shape_text(shape, sizeof shape, t->rank, t->shape);
    (void)snprintf(line, LINE_BYTES, "%.150s has shape %s, expected %s", t->name, shape, expected);
}

static void report_type(matcher *w, const neap_stored_tensor *t, const char *expected) {
    w->n_type++;
    char *line = new_line(w);
    if (line != NULL)
        (void)snprintf(line, LINE_BYTES, "%.150s has type %s, expected %s", t->name, neap_dtype_name(t->dtype),
                       expected);
}

/* ---------------------------------------------------------------- one tensor ------------------ */

static bool is_plain(neap_dtype d) { return d == NEAP_DTYPE_F32 || d == NEAP_DTYPE_BF16 || d == NEAP_DTYPE_F16; }
#define PLAIN "BF16, F32 or F16"

static bool has_shape2(const neap_stored_tensor *t, int64_t n, int64_t k) {
    return t->rank == 2 && t->shape[0] == n && t->shape[1] == k;
}

static const neap_stored_tensor *find(const matcher *w, const char *name, const char *tail) {
    char full[NEAP_NAME_BYTES + 24];
    (void)snprintf(full, sizeof full, "%s%s", name, tail);
    return neap_checkpoint_find(w->c, full);
}

static void check_shape2(matcher *w, const neap_stored_tensor *t, int64_t n, int64_t k) {
    if (has_shape2(t, n, k)) return;
    char expected[64];
    (void)snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "]", n, k);
    report_shape(w, t, expected);
}

static void missing_scale(matcher *w, const neap_want *want, const char *tail, int64_t n, int64_t k) {
    char name[NEAP_NAME_BYTES + 24];
    (void)snprintf(name, sizeof name, "%s%s", want->name, tail);
    neap_want scale = {.kind = NEAP_WANT_MATRIX, .n = n, .k = k};
    report_missing(w, &scale, name);
}

static void match_fp8(matcher *w, const neap_want *want, neap_match *out) {
    int64_t n = (want->n + 127) / 128, k = (want->k + 127) / 128;
    check_shape2(w, out->data, want->n, want->k);
    out->scale = find(w, want->name, ".weight_scale_inv");
    if (out->scale == NULL) {
        missing_scale(w, want, ".weight_scale_inv", n, k);
        return;
    }
    mark_used(w, out->scale);
    check_shape2(w, out->scale, n, k);
    if (!is_plain(out->scale->dtype) && out->scale->dtype != NEAP_DTYPE_F8_E8M0)
        report_type(w, out->scale, "F32, BF16, F16 or F8_E8M0");
}

static void match_mxfp4(matcher *w, const neap_want *want, neap_match *out) {
    mark_used(w, out->data);
    if (want->k % 32 != 0) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "a multiple of 32 inputs, not %" PRId64, want->k);
        report_shape(w, out->data, expected);
        return;
    }
    if (out->data->dtype != NEAP_DTYPE_U8) report_type(w, out->data, "U8");
    check_shape2(w, out->data, want->n, want->k / 2);
    out->scale = find(w, want->name, ".weight_scale");
    if (out->scale == NULL) {
        missing_scale(w, want, ".weight_scale", want->n, want->k / 32);
        return;
    }
    mark_used(w, out->scale);
    check_shape2(w, out->scale, want->n, want->k / 32);
    if (out->scale->dtype != NEAP_DTYPE_U8 && out->scale->dtype != NEAP_DTYPE_F8_E8M0) report_type(w, out->scale, "U8");
}

/* A scale per output, or per output and group of inputs; how many inputs make a group follows from the shape. */
static bool is_int8_scale(const neap_stored_tensor *t, int64_t n, int64_t k) {
    if (t->rank != 2 || t->shape[0] != n || t->shape[1] < 1 || t->shape[1] > k) return false;
    return t->shape[1] == 1 || (k % t->shape[1] == 0 && k / t->shape[1] % 4 == 0);
}

static void match_int8(matcher *w, const neap_want *want, neap_match *out) {
    check_shape2(w, out->data, want->n, want->k);
    out->scale = find(w, want->name, ".weight_scale");
    if (out->scale == NULL) {
        missing_scale(w, want, ".weight_scale", want->n, 1);
        return;
    }
    mark_used(w, out->scale);
    if (!is_int8_scale(out->scale, want->n, want->k)) {
        char expected[160];
        (void)snprintf(expected, sizeof expected,
                       "[%" PRId64 ", 1] or [%" PRId64 ", groups] with %" PRId64
                       " inputs in equal groups of a multiple of 4",
                       want->n, want->n, want->k);
        report_shape(w, out->scale, expected);
    }
    if (!is_plain(out->scale->dtype)) report_type(w, out->scale, PLAIN);
}

static void match_matrix(matcher *w, const neap_want *want, neap_match *out) {
    out->data = find(w, want->name, ".weight");
    if (out->data == NULL) {
        out->data = find(w, want->name, ".weight_packed");
        if (out->data != NULL) {
            match_mxfp4(w, want, out);
        } else if (!want->is_optional) {
            char name[NEAP_NAME_BYTES + 24];
            (void)snprintf(name, sizeof name, "%s.weight", want->name);
            report_missing(w, want, name);
        }
        return;
    }
    mark_used(w, out->data);
    if (out->data->dtype == NEAP_DTYPE_F8_E4M3) {
        match_fp8(w, want, out);
        return;
    }
    if (out->data->dtype == NEAP_DTYPE_I8) {
        match_int8(w, want, out);
        return;
    }
    check_shape2(w, out->data, want->n, want->k);
    if (!is_plain(out->data->dtype))
        report_type(w, out->data, PLAIN ", F8_E4M3 with weight_scale_inv, or I8 with weight_scale");
}

/* Checks the part of `allowed` shapes that the kind knows; false = wrong. */
static bool has_vector_shape(const neap_want *want, const neap_stored_tensor *t) {
    switch (want->kind) {
    case NEAP_WANT_CONV:
        return has_shape2(t, want->n, want->k) ||
               (t->rank == 3 && t->shape[0] == want->n && t->shape[1] == 1 && t->shape[2] == want->k);
    case NEAP_WANT_DECAY:
        if (t->rank == 1) return t->shape[0] >= want->n;
        return t->rank == 4 && t->shape[0] == 1 && t->shape[1] == 1 && t->shape[2] >= want->n && t->shape[3] == 1;
    case NEAP_WANT_VECTOR: return t->rank == 1 && t->shape[0] == want->n;
    case NEAP_WANT_MIX: return (t->rank == 1 && t->shape[0] == want->n) || has_shape2(t, 1, want->n);
    case NEAP_WANT_MATRIX:
    case NEAP_WANT_KV_B:
    case NEAP_WANT_COPY: break;
    }
    return false;
}

static void check_vector(matcher *w, const neap_want *want, const neap_stored_tensor *t) {
    mark_used(w, t);
    if (!is_plain(t->dtype)) report_type(w, t, PLAIN);
    if (!has_vector_shape(want, t)) {
        char expected[96];
        want_shape_text(want, expected, sizeof expected);
        report_shape(w, t, expected);
    } else if (want->kind == NEAP_WANT_DECAY) {
        int64_t stored = t->rank == 1 ? t->shape[0] : t->shape[2];
        if (stored > want->n) {
            w->n_decay_cut++;
            w->decay_stored = stored;
            w->decay_used = want->n;
        }
    }
}

static void match_vector(matcher *w, const neap_want *want, neap_match *out) {
    out->data = neap_checkpoint_find(w->c, want->name);
    if (out->data != NULL)
        check_vector(w, want, out->data);
    else if (!want->is_optional)
        report_missing(w, want, want->name);
}

static void match_mix(matcher *w, const neap_want *want, neap_match *out) {
    static const char *const tails[2][2] = {{"_norm.weight", "_proj.weight"}, {".norm_weight", ".proj_weight"}};
    const neap_stored_tensor *found[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        found[i] = find(w, want->name, tails[0][i]);
        if (found[i] == NULL) found[i] = find(w, want->name, tails[1][i]);
    }
    bool is_absent = want->is_optional && found[0] == NULL && found[1] == NULL;
    for (int i = 0; i < 2 && !is_absent; i++) {
        if (found[i] != NULL) {
            check_vector(w, want, found[i]);
            continue;
        }
        char name[NEAP_NAME_BYTES + 24];
        (void)snprintf(name, sizeof name, "%s%s", want->name, tails[0][i]);
        report_missing(w, want, name);
    }
    out->data = found[0];
    out->scale = found[1];
}

neap_matrix_kind neap_match_kind(neap_dtype dtype) {
    switch (dtype) {
    case NEAP_DTYPE_BF16: return NEAP_MATRIX_BF16;
    case NEAP_DTYPE_I8: return NEAP_MATRIX_INT8;
    case NEAP_DTYPE_F8_E4M3: return NEAP_MATRIX_FP8;
    case NEAP_DTYPE_U8: return NEAP_MATRIX_MXFP4;
    default: return NEAP_MATRIX_F32;
    }
}

void neap_match_shape(neap_matrix *m, const neap_want *want, const neap_match *match) {
    neap_matrix_kind kind = neap_match_kind(match->data->dtype);
    if (kind == NEAP_MATRIX_INT8)
        neap_matrix_shape_int8(m, want->n, want->k, (want->k + match->scale->shape[1] - 1) / match->scale->shape[1]);
    else
        neap_matrix_shape(m, kind, want->n, want->k);
}

/* Heads of kv_b are decoded unless they are BF16. */
static void shape_heads(neap_matrix *k_up, neap_matrix *v_up, const neap_mla_spec *s, const neap_match *match) {
    neap_matrix_kind kind = match->data->dtype == NEAP_DTYPE_BF16 ? NEAP_MATRIX_BF16 : NEAP_MATRIX_F32;
    neap_matrix_shape(k_up, kind, s->kv_lora, s->d_nope);
    neap_matrix_shape(v_up, kind, s->d_v, s->kv_lora);
}

static uint64_t round64(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

uint64_t neap_match_bytes(const neap_want *want, const neap_match *match) {
    if (want->kind == NEAP_WANT_COPY || (match->data == NULL && want->kind != NEAP_WANT_DECAY)) return 0;
    if (want->kind == NEAP_WANT_MIX && want->to.vector == NULL) return 0;
    neap_matrix t;
    memset(&t, 0, sizeof t);
    if (want->kind == NEAP_WANT_MATRIX) {
        neap_match_shape(&t, want, match);
        return round64(neap_matrix_panel_bytes(&t)) + round64((uint64_t)neap_matrix_scale_count(&t) * sizeof(float));
    }
    if (want->kind == NEAP_WANT_KV_B) {
        neap_matrix v = t;
        shape_heads(&t, &v, want->mla_spec, match);
        uint64_t bytes = round64(neap_matrix_panel_bytes(&t)) + round64(neap_matrix_panel_bytes(&v));
        return bytes * (uint64_t)want->mla_spec->n_heads;
    }
    return round64((uint64_t)(want->n * want->k) * sizeof(float));
}

/* ---------------------------------------------------------------- the walk -------------------- */

static bool keep(matcher *w, const neap_match *match) {
    neap_matches *t = w->out;
    if (t->n == t->capacity) {
        int64_t capacity = t->capacity > 0 ? 2 * t->capacity : 1024;
        void *p = t->items;
        w->status = neap_mem_grow(&p, (size_t)t->capacity * sizeof *t->items, (size_t)capacity * sizeof *t->items);
        if (w->status != NEAP_OK) return false;
        t->items = p;
        t->capacity = capacity;
    }
    t->items[t->n++] = *match;
    return true;
}

static bool visit(void *user, const neap_want *want) {
    matcher *w = user;
    neap_match match = {NULL, NULL};
    int64_t before = n_bad(w);
    if (want->is_matrix_like)
        match_matrix(w, want, &match);
    else if (want->kind == NEAP_WANT_MIX)
        match_mix(w, want, &match);
    else
        match_vector(w, want, &match);
    if (!keep(w, &match)) return false;
    if (n_bad(w) != before) return !(w->may_stop && w->n_lines == LINES_MAX);
    if (match.data != NULL || want->kind == NEAP_WANT_DECAY) {
        uint64_t bytes = neap_match_bytes(want, &match);
        w->out->group_bytes[want->group] += bytes;
        neap_weights_count_work(&w->out->work, want, bytes, &w->m->net, w->m->is_tied);
        if (match.data != NULL) neap_weights_tally(&w->out->tally, want, &w->m->net, w->m->is_tied);
    }
    if (want->kind == NEAP_WANT_MATRIX && match.data != NULL) {
        uint32_t bit = 1u << neap_match_kind(match.data->dtype);
        bool is_multiplied = !want->is_embedding || w->m->is_tied;
        if (want->expert < 0 && is_multiplied) w->out->kinds_multiplied |= bit;
        if (want->expert >= 0)
            w->out->kinds_experts |= bit;
        else
            w->out->kinds_dense |= bit;
    }
    return true;
}

/* ---------------------------------------------------------------- what nobody asked for ------- */

static bool begins(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static bool is_vision(const char *name) {
    static const char *const prefixes[] = {"vision_tower.",          "mm_projector.",       "vision_model.",
                                           "multi_modal_projector.", "model.vision_tower.", "model.mm_projector.",
                                           "model.visual."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (begins(name, prefixes[i])) return true;
    return false;
}

static bool is_in_layers(const char *name) {
    return begins(name, "model.layers.") || begins(name, "language_model.model.layers.") ||
           begins(name, "language_model.layers.") || begins(name, "model.language_model.layers.") ||
           begins(name, "layers.");
}

/* Left over by old exporters; the frequencies follow from the config. */
static bool is_old_buffer(const char *name) {
    size_t n = strlen(name), k = strlen(".rotary_emb.inv_freq");
    return n > k && strcmp(name + n - k, ".rotary_emb.inv_freq") == 0;
}

static void find_extra(matcher *w, const char *dir, bool is_strict) {
    int64_t n = neap_checkpoint_count(w->c), n_vision = 0;
    uint64_t vision_bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const neap_stored_tensor *t = neap_checkpoint_at(w->c, i);
        if (is_used(w, t) || is_old_buffer(t->name)) continue;
        if (is_vision(t->name)) {
            n_vision++;
            vision_bytes += t->bytes;
        } else if (is_in_layers(t->name) || is_strict) {
            w->n_extra++;
            char *line = new_line(w);
            if (line != NULL) (void)snprintf(line, LINE_BYTES, "%.200s is not known to this model", t->name);
        } else {
            w->n_other++;
            if (w->other == NULL) w->other = t->name;
        }
    }
    if (n_vision > 0)
        neap_log_write(&w->m->log, NEAP_LOG_INFO, "%s: %" PRId64 " vision tensors (%.2f GB) are skipped: text only",
                       dir, n_vision, (double)vision_bytes / 1e9);
    if (w->n_other > 0 && n_bad(w) == 0) /* else the error says it */
        neap_log_write(&w->m->log, NEAP_LOG_WARN,
                       "%s: %" PRId64 " tensor%s not known to this model and ignored, the first is %s", dir, w->n_other,
                       w->n_other == 1 ? " is" : "s are", w->other);
}

/* ---------------------------------------------------------------- result ---------------------- */

static neap_status fail_with_list(const matcher *w, const char *dir, bool is_counted) {
    char text[ERROR_BYTES];
    size_t n = 0;
    int32_t shown = 0;
    text[0] = 0;
    while (shown < w->n_lines) {
        size_t need = strlen(w->lines[shown]) + 2;
        if (n + need >= sizeof text - 180) break; /* room for the two remarks below */
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", shown > 0 ? "; " : "", w->lines[shown]);
        shown++;
    }
    int64_t total = n_bad(w);
    if (shown < total) n += (size_t)snprintf(text + n, sizeof text - n, "; %" PRId64 " more", total - shown);
    if (w->n_other > 0)
        (void)snprintf(text + n, sizeof text - n, "; %" PRId64 " tensors with other names, the first is %.80s",
                       w->n_other, w->other);
    /* Details below the error level: by default the caller shows one line, the error itself. */
    if (shown < total)
        for (int32_t i = 0; i < w->n_lines; i++) neap_log_write(&w->m->log, NEAP_LOG_INFO, "%s", w->lines[i]);
    NEAP_FAIL(NEAP_BAD_FILE,
              "%s: %s%" PRId64 " tensor%s not fit config.json (%" PRId64 " missing, %" PRId64 " misshapen, %" PRId64
              " of a wrong type, %" PRId64 " unknown): %s",
              dir, is_counted ? "" : "at least ", total, total == 1 ? " does" : "s do", w->n_missing, w->n_shape,
              w->n_type, w->n_extra, text);
}

static neap_status run(matcher *w, bool is_strict) {
    neap_model *m = w->m;
    int64_t count = neap_checkpoint_count(w->c);
    size_t slots = 1024;
    while (slots < 2 * (size_t)count) slots *= 2;
    void *p = NULL;
    NEAP_TRY(neap_mem_alloc(slots * sizeof(void *), &p));
    w->used = p;
    w->used_mask = slots - 1;
    w->out->n_groups = m->net.n_layers + m->net.n_mtp + 2;
    NEAP_TRY(neap_mem_alloc((size_t)w->out->n_groups * sizeof(uint64_t), &p));
    w->out->group_bytes = p;
    w->may_stop = neap_weights_count_min(&m->net) > count + 1000;
    neap_weights_find_names(m, w->c, &w->out->names);
    bool is_complete = neap_weights_visit(m, &w->out->names, visit, w);
    NEAP_TRY(w->status);
    if (is_complete) find_extra(w, m->dir, is_strict);
    if (n_bad(w) > 0) return fail_with_list(w, m->dir, is_complete);
    if (w->n_decay_cut > 0)
        neap_log_write(&m->log, NEAP_LOG_WARN,
                       "%s: A_log has %" PRId64 " entries in %" PRId64 " layers, the first %" PRId64
                       " (one per head) are used",
                       m->dir, w->decay_stored, w->n_decay_cut, w->decay_used);
    return NEAP_OK;
}

neap_status neap_match_all(neap_matches *out, neap_model *m, const neap_checkpoint *c, bool is_strict) {
    memset(out, 0, sizeof *out);
    void *p = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof(matcher), &p));
    matcher *w = p;
    w->m = m;
    w->c = c;
    w->out = out;
    neap_status status = run(w, is_strict);
    neap_mem_free(w->used);
    neap_mem_free(w);
    if (status != NEAP_OK) neap_matches_free(out);
    return status;
}

typedef struct shaper {
    const neap_matches *matches;
    int64_t i;
} shaper;

static bool set_shape(void *user, const neap_want *want) {
    shaper *s = user;
    const neap_match *match = &s->matches->items[s->i++];
    if (match->data == NULL) return true; /* optional */
    if (want->kind == NEAP_WANT_MATRIX) neap_match_shape(want->to.matrix, want, match);
    if (want->kind == NEAP_WANT_KV_B) {
        neap_matrix *k_up = (neap_matrix *)want->mla->k_up, *v_up = (neap_matrix *)want->mla->v_up;
        for (int32_t h = 0; h < want->mla_spec->n_heads; h++) shape_heads(&k_up[h], &v_up[h], want->mla_spec, match);
    }
    return true;
}

neap_status neap_match_set_shapes(neap_model *m, const neap_matches *t) {
    shaper s = {.matches = t};
    NEAP_TRY(neap_weights_make_arrays(m));
    (void)neap_weights_visit(m, &t->names, set_shape, &s);
    if (m->is_tied) m->net.head = m->net.embed;
    return NEAP_OK;
}

void neap_matches_free(neap_matches *t) {
    neap_mem_free(t->items);
    neap_mem_free(t->group_bytes);
    t->items = NULL;
    t->group_bytes = NULL;
}
