/* From checked tensors to packed weights.
 *
 * Two steps. (1) One walk over the wants claims memory (one block per layer, so that half a million experts do not
 * become half a million mappings), reads the small vectors at once and turns the
 * matrices into jobs of a few MiB: a range of panels, or one head of kv_b. (2) A few threads take jobs in order, read
 * the rows into their own staging buffer and pack them into place. Peak memory is the packed size plus one staging
 * buffer per thread; the file is never mapped. Every job owns its bytes, so the number of threads cannot matter;
 * of several failures the first job's is reported.
 *
 *   kv_b, per head [dn + dv, r]: k_up = transposed key rows [r, dn], v_up = value rows [dv, r] (absorbed MLA)
 *   A_log -> exp(A_log);  AttnRes norm weight * projection row -> one vector
 * Non-finite values are counted while packing, at no cost, and refused unless the caller allows them.
 *
 * Called by load.c. Formats: docs/formats.md. */
#include "models/pack.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "models/rows.h"

/* A job is large, so that there are few of them; what is read at once stays in a core's cache until it is packed. */
enum { JOB_BYTES = 4 << 20, STAGE_BYTES = 512 << 10, ERROR_TEXT = 1100 };

typedef struct job {
    const neap_stored_tensor *data, *scale;
    const neap_matrix *m; /* panels [panel_begin, panel_end); NULL: a head of kv_b */
    int64_t panel_begin, panel_end;
    const neap_mla_weights *mla;
    const neap_mla_spec *spec;
    int64_t head;
} job;

typedef struct packer {
    neap_model *m;
    const neap_checkpoint *c;
    const neap_matches *matches;
    const neap_pack_options *o;
    neap_status status; /* of the walk */
    int64_t i_match;
    int32_t group; /* of the block below */
    char *block;   /* current memory block */
    uint64_t block_used, block_bytes;
    job *jobs; /* [n_jobs] neap_mem memory */
    int64_t n_jobs, capacity;
    uint64_t stage_bytes, bytes_total;
    /* step 2 */
    atomic_llong next;
    atomic_ullong bytes_done;
    atomic_bool is_stopped;
    pthread_mutex_t lock; /* guards the four below */
    int64_t failed_job;   /* -1: none */
    neap_status failed_status;
    char failed_text[ERROR_TEXT];
    int64_t n_nonfinite;
} packer;

/* ---------------------------------------------------------------- memory ---------------------- */

/* The size was computed by the same function as the sum, so the block cannot run over. */
static neap_status claim(packer *p, int32_t group, uint64_t bytes, void **out) {
    if (group != p->group) {
        p->group = group; /* all wants of a group are neighbours in the walk */
        void *block = NULL;
        NEAP_TRY(neap_arena_alloc(p->m->arena, (size_t)p->matches->group_bytes[group], &block));
        p->block = block;
        p->block_bytes = p->matches->group_bytes[group];
        p->block_used = 0;
    }
    bytes = (bytes + 63) & ~(uint64_t)63;
    if (bytes > p->block_bytes - p->block_used) return neap_fail(NEAP_INTERNAL, "a weight block is too small");
    *out = p->block + p->block_used;
    p->block_used += bytes;
    return NEAP_OK;
}

static job *add_job(packer *p) {
    if (p->n_jobs == p->capacity) {
        int64_t capacity = p->capacity > 0 ? 2 * p->capacity : 1024;
        void *jobs = p->jobs;
        p->status = neap_mem_grow(&jobs, (size_t)p->capacity * sizeof *p->jobs, (size_t)capacity * sizeof *p->jobs);
        if (p->status != NEAP_OK) return NULL;
        p->jobs = jobs;
        p->capacity = capacity;
    }
    return &p->jobs[p->n_jobs++];
}

/* ---------------------------------------------------------------- reading values --------------- */

static int64_t dtype_bytes(neap_dtype d) { return neap_dtype_bits(d) / 8; }

/* The first n values of a stored tensor as F32. */
static neap_status read_f32(const packer *p, const neap_stored_tensor *t, int64_t n, float *dst) {
    size_t bytes = (size_t)(n * dtype_bytes(t->dtype));
    void *raw = NULL;
    NEAP_TRY(neap_mem_alloc(bytes, &raw));
    neap_status status = neap_checkpoint_read(p->c, t, 0, bytes, raw);
    if (status == NEAP_OK) neap_rows_to_f32(dst, raw, n, t->dtype);
    neap_mem_free(raw);
    return status;
}

static int64_t count_nonfinite(const float *x, int64_t n) {
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad += isfinite(x[i]) ? 0 : 1;
    return bad;
}

static neap_status refuse_nonfinite(const neap_checkpoint *c, const neap_stored_tensor *t, int64_t n) {
    return neap_fail(NEAP_BAD_FILE, "%s: tensor %s: %" PRId64 " non-finite value%s in what was read of it",
                     neap_checkpoint_shard_name(c, t->shard), t->name, n, n == 1 ? "" : "s");
}

static neap_status judge_vector(packer *p, const neap_stored_tensor *t, const float *x, int64_t n) {
    int64_t bad = count_nonfinite(x, n);
    if (bad == 0) return NEAP_OK;
    if (!p->o->allow_nonfinite) return refuse_nonfinite(p->c, t, bad);
    p->n_nonfinite += bad;
    return NEAP_OK;
}

/* ---------------------------------------------------------------- step 1: the walk ------------ */

static neap_status take_vector(packer *p, const neap_want *want, const neap_match *match) {
    int64_t n = want->n * want->k;
    if (match->data == NULL && want->kind != NEAP_WANT_DECAY) return NEAP_OK; /* optional: stays NULL */
    if (want->to.vector == NULL) return NEAP_OK;                              /* checked only */
    void *to = NULL;
    NEAP_TRY(claim(p, want->group, (uint64_t)n * sizeof(float), &to));
    float *x = to;
    if (match->data == NULL) {
        for (int64_t i = 0; i < n; i++) x[i] = 1; /* bounded gate without A_log */
    } else {
        NEAP_TRY(read_f32(p, match->data, n, x));
        if (want->kind == NEAP_WANT_DECAY)
            for (int64_t i = 0; i < n; i++) x[i] = expf(x[i]);
        NEAP_TRY(judge_vector(p, match->data, x, n));
    }
    if (want->kind == NEAP_WANT_MIX) {
        void *row = NULL;
        NEAP_TRY(neap_mem_alloc((size_t)n * sizeof(float), &row));
        const float *proj = row;
        neap_status status = read_f32(p, match->scale, n, row);
        for (int64_t i = 0; i < n; i++) x[i] *= proj[i];
        neap_mem_free(row);
        NEAP_TRY(status);
        NEAP_TRY(judge_vector(p, match->scale, x, n));
    }
    *want->to.vector = x;
    return NEAP_OK;
}

/* The vector kernels fold a factor of 256 into the scale of FP8; beyond this bound that would overflow, and so would
 * 128 times the scale of INT8. A code times a scale that is zero or negative is no symmetric quantisation. */
static neap_status judge_scales(packer *p, const neap_stored_tensor *t, const float *x, int64_t n, bool is_int8) {
    for (int64_t i = 0; i < n; i++) {
        NEAP_CHECK(!(fabsf(x[i]) >= 0x1p120f) || !isfinite(x[i]), NEAP_BAD_FILE,
                   "%s: tensor %s: scale %" PRId64 " is %g, the limit is 2^120",
                   neap_checkpoint_shard_name(p->c, t->shard), t->name, i, (double)x[i]);
        NEAP_CHECK(!is_int8 || !(x[i] <= 0), NEAP_BAD_FILE,
                   "%s: tensor %s: scale %" PRId64 " is %g, it must be above 0",
                   neap_checkpoint_shard_name(p->c, t->shard), t->name, i, (double)x[i]);
    }
    return judge_vector(p, t, x, n);
}

static neap_status take_scales(packer *p, const neap_want *want, const neap_match *match, neap_matrix *m) {
    int64_t n = neap_matrix_scale_count(m), n_stored = n;
    void *to = NULL, *rows = NULL;
    NEAP_TRY(claim(p, want->group, (uint64_t)n * sizeof(float), &to));
    m->scales = to;
    if (m->kind == NEAP_MATRIX_INT8) {
        n_stored = m->n * neap_matrix_groups(m);
        NEAP_TRY(neap_mem_alloc((size_t)n_stored * sizeof(float), &rows));
    }
    float *stored = rows != NULL ? rows : to;
    neap_status status = read_f32(p, match->scale, n_stored, stored);
    if (status == NEAP_OK) status = judge_scales(p, match->scale, stored, n_stored, rows != NULL);
    if (status == NEAP_OK && rows != NULL) neap_matrix_pack_scales(m, to, rows);
    neap_mem_free(rows);
    return status;
}

/* Bytes of one stored row, scales of MXFP4 included. */
static int64_t row_bytes(const job *j) {
    int64_t k = j->m != NULL ? j->m->k : j->spec->kv_lora;
    if (j->data->dtype == NEAP_DTYPE_U8) return k / 2 + k / 32;
    return k * dtype_bytes(j->data->dtype);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Panels whose rows take `bytes` in the file; at least one. */
static int64_t panels_in(const job *j, int64_t bytes) {
    int64_t n = bytes / (NEAP_PANEL * row_bytes(j));
    return n > 1 ? n : 1;
}

/* Codes with scales: kv_b is cut and transposed, so it is decoded to F32 while loading. */
static bool is_decoded(neap_dtype d) { return neap_match_kind(d) > NEAP_MATRIX_BF16; }

static void need_stage(packer *p, uint64_t bytes) {
    if (bytes > p->stage_bytes) p->stage_bytes = bytes;
}

static neap_status take_matrix(packer *p, const neap_want *want, const neap_match *match) {
    if (match->data == NULL) return NEAP_OK; /* optional */
    neap_matrix *m = want->to.matrix;
    void *to = NULL;
    NEAP_TRY(claim(p, want->group, neap_matrix_panel_bytes(m), &to));
    m->panels = to;
    if (neap_matrix_scale_count(m) > 0) NEAP_TRY(take_scales(p, want, match, m));
    int64_t n_panels = neap_matrix_panels(m);
    job shape = {.data = match->data, .scale = match->scale, .m = m};
    int64_t step = panels_in(&shape, JOB_BYTES);
    if (step > n_panels) step = n_panels;
    need_stage(p, (uint64_t)(smaller(step, panels_in(&shape, STAGE_BYTES)) * NEAP_PANEL * row_bytes(&shape)));
    for (int64_t begin = 0; begin < n_panels; begin += step) {
        job *j = add_job(p);
        if (j == NULL) return p->status;
        *j = shape;
        j->panel_begin = begin;
        j->panel_end = begin + step < n_panels ? begin + step : n_panels;
    }
    p->bytes_total += match->data->bytes;
    return NEAP_OK;
}

static neap_status take_kv_b(packer *p, const neap_want *want, const neap_match *match) {
    const neap_mla_spec *s = want->mla_spec;
    neap_matrix *k_up = (neap_matrix *)want->mla->k_up, *v_up = (neap_matrix *)want->mla->v_up;
    for (int64_t h = 0; h < s->n_heads; h++) {
        void *to = NULL;
        NEAP_TRY(claim(p, want->group, neap_matrix_panel_bytes(&k_up[h]), &to));
        k_up[h].panels = to;
        NEAP_TRY(claim(p, want->group, neap_matrix_panel_bytes(&v_up[h]), &to));
        v_up[h].panels = to;
        job *j = add_job(p);
        if (j == NULL) return p->status;
        *j = (job){.data = match->data, .scale = match->scale, .mla = want->mla, .spec = s, .head = h};
    }
    int64_t rows = (int64_t)s->d_nope + s->d_v;
    uint64_t stage = (neap_rows_stage(match, s->kv_lora, rows) + 63) / 64 * 64;
    if (is_decoded(match->data->dtype)) stage += (uint64_t)(rows * s->kv_lora) * sizeof(float);
    need_stage(p, stage);
    p->bytes_total += match->data->bytes;
    return NEAP_OK;
}

static bool visit(void *user, const neap_want *want) {
    packer *p = user;
    const neap_match *match = &p->matches->items[p->i_match++];
    switch (want->kind) {
    case NEAP_WANT_MATRIX: p->status = take_matrix(p, want, match); break;
    case NEAP_WANT_KV_B: p->status = take_kv_b(p, want, match); break;
    case NEAP_WANT_COPY: break;
    case NEAP_WANT_VECTOR:
    case NEAP_WANT_CONV:
    case NEAP_WANT_DECAY:
    case NEAP_WANT_MIX: p->status = take_vector(p, want, match); break;
    }
    return p->status == NEAP_OK;
}

/* ---------------------------------------------------------------- step 2: the jobs ------------ */

static neap_status read_rows(const packer *p, const neap_stored_tensor *t, int64_t row, int64_t n, int64_t bytes,
                             void *dst) {
    return neap_checkpoint_read(p->c, t, (uint64_t)(row * bytes), (uint64_t)(n * bytes), dst);
}

/* Panels are independent, so a range of them is packed as a smaller matrix of its own. */
static neap_status pack_range(const packer *p, const job *j, int64_t begin, int64_t end, char *stage, int64_t *n_bad) {
    neap_matrix part = *j->m;
    int64_t row = begin * NEAP_PANEL, n = smaller(end * NEAP_PANEL, part.n) - row;
    char *to = (char *)(uintptr_t)j->m->panels + begin * j->m->panel_bytes;
    part.n = n;
    /* An FP8 matrix keeps its scales beside the codes; the packer looks at them to judge the decoded values. */
    neap_pack_source src = {.dtype = j->data->dtype,
                            .data = stage,
                            .row_stride = part.k,
                            .col_stride = 1,
                            .scale_inv = j->m->scales,
                            .scale_row = row};
    if (part.kind == NEAP_MATRIX_MXFP4) {
        char *scales = stage + n * (part.k / 2);
        src.row_stride = part.k / 2;
        src.scale_e8m0 = (const uint8_t *)scales;
        NEAP_TRY(read_rows(p, j->data, row, n, part.k / 2, stage));
        NEAP_TRY(read_rows(p, j->scale, row, n, part.k / 32, scales));
    } else {
        NEAP_TRY(read_rows(p, j->data, row, n, part.k * dtype_bytes(j->data->dtype), stage));
    }
    *n_bad += neap_matrix_pack(&part, to, &src, 0, end - begin);
    return NEAP_OK;
}

static neap_status pack_panels(const packer *p, const job *j, char *stage, int64_t *n_bad) {
    int64_t step = panels_in(j, STAGE_BYTES);
    for (int64_t begin = j->panel_begin; begin < j->panel_end; begin += step)
        NEAP_TRY(pack_range(p, j, begin, smaller(begin + step, j->panel_end), stage, n_bad));
    return NEAP_OK;
}

static neap_status pack_head(const packer *p, const job *j, char *stage, int64_t *n_bad) {
    const neap_mla_spec *s = j->spec;
    int64_t r = s->kv_lora, dn = s->d_nope, n = dn + s->d_v, row = j->head * n;
    neap_pack_source src = {.dtype = j->data->dtype, .data = stage};
    if (is_decoded(src.dtype)) {
        neap_match match = {.data = j->data, .scale = j->scale};
        float *values = (float *)(void *)(stage + (neap_rows_stage(&match, r, n) + 63) / 64 * 64);
        NEAP_TRY(neap_rows_read(p->c, &match, r, row, n, stage, values));
        src.data = values;
        src.dtype = NEAP_DTYPE_F32;
    } else {
        NEAP_TRY(read_rows(p, j->data, row, n, r * dtype_bytes(src.dtype), stage));
    }
    const neap_matrix *k_up = &j->mla->k_up[j->head], *v_up = &j->mla->v_up[j->head];
    neap_pack_source keys = src, values = src;
    keys.row_stride = 1; /* transposed: output i is latent i, input is the key row */
    keys.col_stride = r;
    values.data = (const char *)src.data + dn * r * dtype_bytes(src.dtype);
    values.row_stride = r;
    values.col_stride = 1;
    *n_bad = neap_matrix_pack(k_up, (void *)(uintptr_t)k_up->panels, &keys, 0, neap_matrix_panels(k_up));
    *n_bad += neap_matrix_pack(v_up, (void *)(uintptr_t)v_up->panels, &values, 0, neap_matrix_panels(v_up));
    return NEAP_OK;
}

static void record_failure(packer *p, int64_t i, neap_status status) {
    atomic_store(&p->is_stopped, true);
    (void)pthread_mutex_lock(&p->lock);
    if (p->failed_job < 0 || i < p->failed_job) {
        p->failed_job = i;
        p->failed_status = status;
        neap_error_copy(p->failed_text, sizeof p->failed_text);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static void run_job(packer *p, int64_t i, char *stage) {
    const job *j = &p->jobs[i];
    int64_t n_bad = 0;
    neap_status status = j->m != NULL ? pack_panels(p, j, stage, &n_bad) : pack_head(p, j, stage, &n_bad);
    if (status == NEAP_OK && n_bad > 0) {
        if (!p->o->allow_nonfinite) {
            status = refuse_nonfinite(p->c, j->data, n_bad);
        } else {
            (void)pthread_mutex_lock(&p->lock);
            p->n_nonfinite += n_bad;
            (void)pthread_mutex_unlock(&p->lock);
        }
    }
    if (status != NEAP_OK) record_failure(p, i, status);
    int64_t rows =
        j->m != NULL ? (j->panel_end - j->panel_begin) * NEAP_PANEL : (int64_t)j->spec->d_nope + j->spec->d_v;
    atomic_fetch_add(&p->bytes_done, (unsigned long long)(rows * row_bytes(j)));
}

static uint64_t now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Only the opening thread talks to the caller, at most ten times a second. */
static void tell(const packer *p, uint64_t *last_ms, bool is_end) {
    if (p->o->progress == NULL) return;
    uint64_t now = now_ms(), done = atomic_load(&p->bytes_done);
    if (!is_end && now - *last_ms < 100) return;
    *last_ms = now;
    p->o->progress(p->o->progress_user, "load", is_end || done > p->bytes_total ? p->bytes_total : done,
                   p->bytes_total);
}

static void work(packer *p, bool is_main) {
    void *stage = NULL;
    uint64_t last_ms = 0;
    neap_status status = neap_mem_alloc((size_t)p->stage_bytes + 64, &stage);
    if (status != NEAP_OK) {
        record_failure(p, 0, status);
        return;
    }
    while (!atomic_load(&p->is_stopped)) {
        int64_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->n_jobs) break;
        run_job(p, i, stage);
        if (is_main) tell(p, &last_ms, false);
    }
    neap_mem_free(stage);
}

static void *thread_main(void *arg) {
    work(arg, false);
    return NULL;
}

enum { PACK_THREADS_MAX = 64 };

static neap_status run_jobs(packer *p) {
    pthread_t threads[PACK_THREADS_MAX];
    int32_t n = 0, n_wanted = p->o->n_threads < PACK_THREADS_MAX ? p->o->n_threads : PACK_THREADS_MAX;
    for (; n < n_wanted - 1 && n + 1 < p->n_jobs; n++)
        if (pthread_create(&threads[n], NULL, thread_main, p) != 0) break; /* fewer threads give the same result */
    work(p, true);
    for (int32_t i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
    uint64_t last_ms = 0;
    if (p->failed_job >= 0) return neap_fail(p->failed_status, "%s", p->failed_text);
    tell(p, &last_ms, true);
    return NEAP_OK;
}

static void share_head(neap_network *net, bool is_tied) {
    if (is_tied) net->head = net->embed;
}

neap_status neap_pack_all(neap_model *m, const neap_checkpoint *c, const neap_matches *matches,
                          const neap_pack_options *o) {
    void *mem = NULL;
    NEAP_TRY(neap_mem_alloc(sizeof(packer), &mem));
    packer *p = mem;
    p->m = m;
    p->c = c;
    p->matches = matches;
    p->o = o;
    p->group = -1;
    p->failed_job = -1;
    atomic_init(&p->next, 0);
    atomic_init(&p->bytes_done, 0);
    atomic_init(&p->is_stopped, false);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)neap_weights_visit(m, &matches->names, visit, p);
    neap_status status = p->status;
    if (status == NEAP_OK) status = run_jobs(p);
    if (status == NEAP_OK) {
        share_head(&m->net, m->is_tied);
        if (p->n_nonfinite > 0)
            neap_log_write(&m->log, NEAP_LOG_WARN,
                           "%s: %" PRId64 " non-finite values in the weights, accepted as asked", m->dir,
                           p->n_nonfinite);
    }
    (void)pthread_mutex_destroy(&p->lock);
    neap_mem_free(p->jobs);
    neap_mem_free(p);
    return status;
}
