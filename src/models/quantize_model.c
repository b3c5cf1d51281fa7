/* neap_quantize: a model directory in, another one out, weights in other forms.
 *
 * Streaming: the plan knows every tensor of the result with its size, so the header of a shard can be written first
 * and the data follow in pieces. A piece is a range of rows: read, decoded to F32 (rows.c), judged, encoded, appended;
 * a few threads make neighbouring pieces at the same time. What is in memory at any time: the lists of tensors, one
 * piece per thread, and the scales of the matrix in work. No shard is ever held as a whole, whatever its size.
 *
 * Order on disk: the files beside the weights, config.json, the shards, the index. Each appears whole under its name
 * (format/file.c), and without the last one (the index, or the only shard) the directory is no model. On any failure
 * everything written is removed again. At the end the result is opened once, headers only.
 *
 * Public calls: neap_quantize_options_init, neap_quantize. Source: docs/quantize.md; quantised formats 1. */
#include "models/quantize.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "format/file.h"
#include "format/jtree.h"
#include "format/json.h"
#include "models/config.h"
#include "models/rows.h"

enum { PIECE_VALUES = 1 << 20, COPY_BYTES = 8 << 20, THREADS_MAX = 16, ERROR_TEXT = 1100 };

typedef struct quantizer {
    neap_quantize_options o;
    neap_log log;
    neap_arena *arena;
    neap_model *m;
    neap_checkpoint *c;
    neap_matches matches;
    neap_quantize_plan plan;
    neap_out_dir dir;
    void *buffer; /* COPY_BYTES */
    uint64_t done, total, told_ms;
} quantizer;

/* A range of rows of one matrix, made by one thread in its own memory. */
typedef struct piece {
    const quantizer *q;
    const neap_recode *r;
    int64_t row, n;
    void *memory; /* stage, then values, then codes */
    uint64_t memory_bytes;
    void *codes;
    void *scales; /* of these rows, inside the matrix's */
    neap_status status;
    char error[ERROR_TEXT];
} piece;

/* ---------------------------------------------------------------- options --------------------- */

void neap_quantize_options_init(neap_quantize_options *o) {
    if (o == NULL) return;
    memset(o, 0, sizeof *o);
    o->struct_size = sizeof *o;
    o->experts = NEAP_WEIGHTS_MXFP4;
    o->linear = NEAP_WEIGHTS_BF16;
    o->head = NEAP_WEIGHTS_BF16;
    o->embedding = NEAP_WEIGHTS_BF16;
}

static neap_status check_wide(const char *name, int32_t weights) {
    NEAP_CHECK(weights == NEAP_WEIGHTS_INT8 || weights == NEAP_WEIGHTS_BF16, NEAP_INVALID_ARGUMENT,
               "quantize options: %s is %d, must be BF16 or INT8", name, weights);
    return NEAP_OK;
}

static neap_status take_options(neap_quantize_options *to, const neap_quantize_options *from) {
    neap_quantize_options_init(to);
    if (from != NULL) {
        NEAP_CHECK(from->struct_size >= sizeof(size_t) && from->struct_size <= 4096, NEAP_INVALID_ARGUMENT,
                   "quantize options: struct_size is %zu; call neap_quantize_options_init first", from->struct_size);
        memcpy(to, from, from->struct_size < sizeof *to ? from->struct_size : sizeof *to);
        to->struct_size = sizeof *to;
    }
    NEAP_CHECK(to->experts == NEAP_WEIGHTS_MXFP4 || to->experts == NEAP_WEIGHTS_INT8 ||
                   to->experts == NEAP_WEIGHTS_BF16,
               NEAP_INVALID_ARGUMENT, "quantize options: experts is %d, must be BF16, INT8 or MXFP4", to->experts);
    NEAP_TRY(check_wide("linear", to->linear));
    NEAP_TRY(check_wide("head", to->head));
    NEAP_TRY(check_wide("embedding", to->embedding));
    NEAP_CHECK(to->n_threads >= 0 && to->n_threads <= 4096, NEAP_INVALID_ARGUMENT,
               "quantize options: n_threads is %d, must be 0 .. 4096", to->n_threads);
    if (to->n_threads == 0) to->n_threads = neap_default_threads();
    if (to->n_threads > THREADS_MAX) to->n_threads = THREADS_MAX;
    if (to->shard_bytes_max == 0) to->shard_bytes_max = UINT64_C(5000000000);
    return NEAP_OK;
}

static neap_form form_of(int32_t weights) {
    return weights == NEAP_WEIGHTS_INT8    ? NEAP_FORM_INT8
           : weights == NEAP_WEIGHTS_MXFP4 ? NEAP_FORM_MXFP4
                                           : NEAP_FORM_BF16;
}

/* ---------------------------------------------------------------- progress -------------------- */

static void tell(quantizer *q, uint64_t more, bool is_end) {
    struct timespec t;
    q->done += more;
    if (q->o.progress == NULL) return;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    if (!is_end && now - q->told_ms < 100) return;
    q->told_ms = now;
    q->o.progress(q->o.progress_user, "quantize", is_end || q->done > q->total ? q->total : q->done, q->total);
}

static neap_status check_cancelled(const quantizer *q) {
    NEAP_CHECK(q->o.is_cancelled == NULL || !q->o.is_cancelled(q->o.cancel_user), NEAP_CANCELLED,
               "%s: cancelled, nothing was left behind", q->dir.path);
    return NEAP_OK;
}

/* ---------------------------------------------------------------- pieces ---------------------- */

static int64_t code_bytes(const neap_recode *r) { /* of a row */
    return r->form == NEAP_FORM_MXFP4 ? r->k / 2 : r->form == NEAP_FORM_INT8 ? r->k : 2 * r->k;
}

static int64_t scale_bytes(const neap_recode *r) {
    if (r->form == NEAP_FORM_INT8) return (r->k + r->group - 1) / r->group * 2;
    return r->form == NEAP_FORM_MXFP4 ? r->k / 32 : 0;
}

static int64_t piece_rows(const neap_recode *r) {
    int64_t rows = PIECE_VALUES / r->k;
    if (rows < 1) rows = 1;
    return rows < r->n ? rows : r->n;
}

static uint64_t round64(uint64_t n) { return (n + 63) / 64 * 64; }

static void encode_rows(const neap_recode *r, const float *x, int64_t n, char *codes, char *scales) {
    for (int64_t i = 0; i < n; i++, x += r->k, codes += code_bytes(r), scales += scale_bytes(r)) switch (r->form) {
        case NEAP_FORM_INT8: neap_encode_int8((int8_t *)codes, (uint16_t *)(void *)scales, x, r->k, r->group); break;
        case NEAP_FORM_MXFP4: neap_encode_mxfp4((uint8_t *)codes, (uint8_t *)scales, x, r->k); break;
        case NEAP_FORM_BF16:
        case NEAP_FORM_PLAIN: neap_encode_bf16((uint16_t *)(void *)codes, x, r->k); break;
        }
}

/* Also what BF16 would round to infinity. */
static int64_t count_nonfinite(const float *x, int64_t n) {
    int64_t n_bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        n_bad += (bits & 0x7fffffff) >= 0x7f7f8000;
    }
    return n_bad;
}

static neap_status make_piece(piece *p) {
    const neap_recode *r = p->r;
    int64_t rows = piece_rows(r);
    char *stage = p->memory;
    float *values = (float *)(void *)(stage + round64(neap_rows_stage(&r->match, r->k, rows)));
    char *codes = (char *)(values + rows * r->k);
    p->codes = codes;
    NEAP_TRY(neap_rows_read(p->q->c, &r->match, r->k, p->row, p->n, stage, values));
    int64_t n_bad = count_nonfinite(values, p->n * r->k);
    NEAP_CHECK(n_bad == 0, NEAP_BAD_FILE, "%s: tensor %s: %" PRId64 " value%s not finite, or beyond the range of BF16",
               neap_checkpoint_shard_name(p->q->c, r->match.data->shard), r->match.data->name, n_bad,
               n_bad == 1 ? " is" : "s are");
    encode_rows(r, values, p->n, codes, p->scales);
    return NEAP_OK;
}

static void *piece_main(void *arg) {
    piece *p = arg;
    p->status = make_piece(p);
    if (p->status != NEAP_OK) neap_error_copy(p->error, sizeof p->error);
    return NULL;
}

static neap_status need_memory(piece *p, uint64_t bytes) {
    if (bytes <= p->memory_bytes) return NEAP_OK;
    neap_mem_free(p->memory);
    p->memory = NULL;
    p->memory_bytes = 0;
    NEAP_TRY(neap_mem_alloc((size_t)bytes, &p->memory));
    p->memory_bytes = bytes;
    return NEAP_OK;
}

/* Makes pieces [0, n) at the same time; the first failure by row is reported. */
static neap_status make_pieces(piece *pieces, int32_t n) {
    pthread_t threads[THREADS_MAX];
    bool is_running[THREADS_MAX] = {false};
    for (int32_t i = 1; i < n; i++) is_running[i] = pthread_create(&threads[i], NULL, piece_main, &pieces[i]) == 0;
    (void)piece_main(&pieces[0]);
    for (int32_t i = 1; i < n; i++) {
        if (is_running[i])
            (void)pthread_join(threads[i], NULL);
        else
            (void)piece_main(&pieces[i]); /* fewer threads give the same bytes */
    }
    for (int32_t i = 0; i < n; i++)
        if (pieces[i].status != NEAP_OK) return neap_fail(pieces[i].status, "%s", pieces[i].error);
    return NEAP_OK;
}

/* Codes go out piece by piece, scales once they are complete. */
static neap_status write_matrix(quantizer *q, neap_safetensors_writer *w, const neap_recode *r, piece *pieces) {
    int64_t step = piece_rows(r), n_scale_bytes = r->n * scale_bytes(r);
    uint64_t bytes = round64(neap_rows_stage(&r->match, r->k, step)) + (uint64_t)(step * r->k) * sizeof(float) +
                     (uint64_t)(step * code_bytes(r));
    uint64_t stored = r->match.data->bytes + (r->match.scale != NULL ? r->match.scale->bytes : 0);
    void *scales = NULL;
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_mem_alloc((size_t)n_scale_bytes + 1, &scales));
    for (int64_t row = 0; row < r->n;) {
        int32_t n = 0;
        int64_t begin = row;
        NEAP_TRY_GOTO(check_cancelled(q));
        for (; n < q->o.n_threads && row < r->n; n++, row += step) {
            piece *p = &pieces[n];
            NEAP_TRY_GOTO(need_memory(p, bytes));
            p->q = q;
            p->r = r;
            p->row = row;
            p->n = r->n - row < step ? r->n - row : step;
            p->scales = (char *)scales + row * scale_bytes(r);
        }
        NEAP_TRY_GOTO(make_pieces(pieces, n));
        for (int32_t i = 0; i < n; i++)
            NEAP_TRY_GOTO(neap_safetensors_append(w, pieces[i].codes, (uint64_t)(pieces[i].n * code_bytes(r))));
        int64_t end = row < r->n ? row : r->n;
        tell(q, stored * (uint64_t)end / (uint64_t)r->n - stored * (uint64_t)begin / (uint64_t)r->n, false);
    }
    NEAP_TRY_GOTO(neap_safetensors_append(w, scales, (uint64_t)n_scale_bytes));
fail:
    neap_mem_free(scales);
    return status;
}

static neap_status copy_tensor(quantizer *q, neap_safetensors_writer *w, const neap_stored_tensor *t) {
    for (uint64_t at = 0; at < t->bytes;) {
        uint64_t n = t->bytes - at < COPY_BYTES ? t->bytes - at : COPY_BYTES;
        NEAP_TRY(check_cancelled(q));
        NEAP_TRY(neap_checkpoint_read(q->c, t, at, n, q->buffer));
        NEAP_TRY(neap_safetensors_append(w, q->buffer, n));
        at += n;
        tell(q, n, false);
    }
    return NEAP_OK;
}

/* ---------------------------------------------------------------- files ----------------------- */

static neap_status write_shard(quantizer *q, int32_t shard, int64_t *at, piece *pieces) {
    const neap_quantize_plan *p = &q->plan;
    int64_t begin = *at, end = begin;
    while (end < p->n_items && p->items[end].shard == shard) end++;
    *at = end;
    char name[64];
    const char *path = NULL;
    void *memory = NULL;
    neap_safetensors_writer *w = NULL;
    neap_status status = NEAP_OK;
    neap_quantize_shard_name(p, shard, name, sizeof name);
    NEAP_TRY(neap_out_dir_path(&q->dir, name, &path));
    NEAP_TRY(neap_mem_alloc((size_t)(end - begin + 1) * sizeof(neap_out_tensor), &memory));
    neap_out_tensor *list = memory;
    for (int64_t i = begin; i < end; i++) list[i - begin] = p->items[i].t;
    NEAP_TRY_GOTO(neap_safetensors_begin(&w, path, list, end - begin));
    for (int64_t i = begin; i < end; i++) {
        if (p->items[i].copy != NULL)
            NEAP_TRY_GOTO(copy_tensor(q, w, p->items[i].copy));
        else if (p->items[i].recode >= 0)
            NEAP_TRY_GOTO(write_matrix(q, w, &p->recodes[p->items[i].recode], pieces)); /* and the scales behind it */
    }
    status = neap_safetensors_finish(w);
    w = NULL;
fail:
    neap_safetensors_discard(w);
    neap_mem_free(memory);
    return status;
}

static neap_status write_shards(quantizer *q) {
    void *memory = NULL;
    NEAP_TRY(neap_mem_alloc(THREADS_MAX * sizeof(piece), &memory));
    piece *pieces = memory;
    neap_status status = NEAP_OK;
    int64_t at = 0;
    for (int32_t i = 0; i < q->plan.n_shards && status == NEAP_OK; i++) status = write_shard(q, i, &at, pieces);
    for (int32_t i = 0; i < THREADS_MAX; i++) neap_mem_free(pieces[i].memory);
    neap_mem_free(pieces);
    return status;
}

static neap_status write_text(quantizer *q, const char *name, const neap_text *text) {
    const char *path = NULL;
    NEAP_TRY(neap_out_dir_path(&q->dir, name, &path));
    neap_file_part part = {text->p, text->n};
    return neap_file_write(path, &part, 1);
}

static neap_status add_weight(neap_text *t, const neap_out_item *item, const char *shard, bool is_first) {
    NEAP_TRY(neap_text_str(t, is_first ? "\n    \"" : ",\n    \""));
    NEAP_TRY(neap_json_escape(item->t.name, strlen(item->t.name), t));
    NEAP_TRY(neap_text_str(t, "\": \""));
    NEAP_TRY(neap_text_str(t, shard));
    return neap_text_str(t, "\"");
}

static neap_status write_index(quantizer *q) {
    const neap_quantize_plan *p = &q->plan;
    if (p->n_shards == 1) return NEAP_OK;
    neap_text t = {0};
    neap_file_writer *w = NULL;
    const char *path = NULL;
    char line[128];
    neap_status status = NEAP_OK;
    NEAP_TRY(neap_out_dir_path(&q->dir, "model.safetensors.index.json", &path));
    NEAP_TRY(neap_file_writer_open(&w, path));
    (void)snprintf(line, sizeof line, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {",
                   p->bytes);
    NEAP_TRY_GOTO(neap_text_str(&t, line));
    for (int64_t i = 0; i < p->n_items; i++) {
        neap_quantize_shard_name(p, p->items[i].shard, line, sizeof line);
        NEAP_TRY_GOTO(add_weight(&t, &p->items[i], line, i == 0));
        if (t.n < (1 << 16)) continue;
        NEAP_TRY_GOTO(neap_file_writer_append(w, t.p, t.n));
        t.n = 0;
    }
    NEAP_TRY_GOTO(neap_text_str(&t, "\n  }\n}\n"));
    NEAP_TRY_GOTO(neap_file_writer_append(w, t.p, t.n));
    status = neap_file_writer_commit(w);
    w = NULL;
fail:
    neap_file_writer_discard(w);
    neap_text_free(&t);
    return status;
}

static neap_status write_config(quantizer *q) {
    char path[4096], *text = NULL;
    size_t n = 0;
    neap_text out = {0};
    int length = snprintf(path, sizeof path, "%s/config.json", q->m->dir);
    NEAP_CHECK(length > 0 && (size_t)length < sizeof path, NEAP_INVALID_ARGUMENT, "the path is longer than %zu bytes",
               sizeof path - 1);
    NEAP_TRY(neap_file_read(&text, &n, path, NEAP_CONFIG_BYTES_MAX));
    neap_status status = neap_quantize_config(&q->plan, text, n, &out);
    if (status == NEAP_OK) status = write_text(q, "config.json", &out);
    neap_text_free(&out);
    neap_mem_free(text);
    return status;
}

/* ---------------------------------------------------------------- the call -------------------- */

static neap_status check_result(quantizer *q) {
    neap_model *m = NULL;
    neap_model_options o;
    neap_model_options_init(&o);
    o.describe_only = 1;
    o.log = q->log.fn;
    o.log_user = q->log.user;
    neap_status status = neap_model_open(&m, q->dir.path, &o);
    if (status != NEAP_OK) return neap_fail_prefix(status, "the result does not open");
    neap_log_write(&q->log, NEAP_LOG_INFO,
                   "%s: %s, %.1f MB in %d file%s; %" PRId64 " tensors copied, %" PRId64 " matrices rewritten",
                   q->dir.path, m->weight_formats, (double)q->plan.bytes / 1e6, q->plan.n_shards,
                   q->plan.n_shards == 1 ? "" : "s", q->plan.n_copied, q->plan.n_recodes);
    neap_model_close(m);
    return NEAP_OK;
}

static neap_status write_all(quantizer *q, const char *model) {
    NEAP_TRY(neap_out_dir_room(&q->dir, q->plan.bytes));
    NEAP_TRY(neap_arena_alloc(q->arena, COPY_BYTES, &q->buffer));
    NEAP_TRY(neap_out_dir_copy_rest(&q->dir, model, q->buffer, COPY_BYTES));
    NEAP_TRY(write_config(q));
    NEAP_TRY(write_shards(q));
    NEAP_TRY(write_index(q));
    tell(q, 0, true);
    return check_result(q);
}

static neap_status run(quantizer *q, const char *model, const char *out) {
    neap_model_options o;
    neap_model_options_init(&o);
    o.log = q->o.log;
    o.log_user = q->o.log_user;
    NEAP_TRY(neap_model_open_headers(&q->m, &q->c, &q->matches, model, &o));
    q->total = neap_checkpoint_bytes(q->c);
    q->plan = (neap_quantize_plan){.arena = q->arena,
                                   .c = q->c,
                                   .matches = &q->matches,
                                   .experts = form_of(q->o.experts),
                                   .linear = form_of(q->o.linear),
                                   .head = form_of(q->o.head),
                                   .embedding = form_of(q->o.embedding)};
    NEAP_TRY(neap_quantize_plan_make(&q->plan, q->m, q->o.shard_bytes_max));
    NEAP_TRY(neap_out_dir_open(&q->dir, q->arena, model, out));
    neap_status status = write_all(q, model);
    if (status != NEAP_OK) neap_out_dir_discard(&q->dir);
    return status;
}

neap_status neap_quantize(const char *model, const char *out, const neap_quantize_options *options) {
    NEAP_CHECK(model != NULL && out != NULL, NEAP_INVALID_ARGUMENT, "neap_quantize: model and out must not be NULL");
    quantizer q;
    memset(&q, 0, sizeof q);
    NEAP_TRY(take_options(&q.o, options));
    q.log = (neap_log){.fn = q.o.log, .user = q.o.log_user};
    NEAP_TRY(neap_arena_create(&q.arena, "quantize"));
    neap_status status = run(&q, model, out);
    neap_out_dir_close(&q.dir);
    neap_quantize_plan_free(&q.plan);
    neap_matches_free(&q.matches);
    neap_checkpoint_close(q.c);
    neap_model_close(q.m);
    neap_arena_destroy(q.arena);
    return status;
}
