/* From checked tensors to packed weights.
 *
 * Two steps. (1) One walk over the wants claims memory (blocks.c), reads the small vectors at once and turns the
 * matrices into jobs of a few MiB: a range of panels, or one head of kv_b. (2) A few threads take jobs in order, read
 * the rows into their own staging buffer and pack them into place. Peak memory is the packed size plus one staging
 * buffer per thread; the file is never mapped. Every job owns its bytes, so the number of threads cannot matter;
 * of several failures the first job's is reported.
 *
 *   kv_b, per head [dn + dv, r]: k_up = transposed key rows [r, dn], v_up = value rows [dv, r] (absorbed MLA)
 *   A_log -> exp(A_log);  AttnRes norm weight * projection row -> one vector
 * Non-finite values are counted while packing, at no cost, and refused unless the caller allows them.
 * When the blocks are filled from the cache already (packed_read.c), the walk only sets the pointers; with is_reread
 * everything is read as it would be for packing, so that the checkpoint can tell whether it still holds the same.
 *
 * Called by load.c. Formats: docs/formats.md. */
#include "models/pack.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "models/crew.h"
#include "models/rows.h"

/* A job is large, so that there are few of them; what is read at once stays in a core's cache until it is packed. */
enum { JOB_BYTES = 4 << 20, STAGE_BYTES = 512 << 10 };

typedef struct job {
    const neap_stored_tensor *data, *scale;
    const neap_matrix *m; /* panels [panel_begin, panel_end); NULL: a head of kv_b */
    int64_t panel_begin, panel_end;
    const neap_mla_weights *mla;
    const neap_mla_spec *spec;
    int64_t head;
    int32_t group;
} job;

typedef struct packer {
    neap_model *m;
    const neap_checkpoint *c;
    const neap_matches *matches;
    const neap_pack_options *o;
    neap_status status; /* of the walk */
    int64_t i_match;
    job *jobs; /* [n_jobs] neap_mem memory */
    int64_t n_jobs, capacity;
    uint64_t stage_bytes;
    neap_crew crew; /* step 2 */
    atomic_llong n_nonfinite;
} packer;

static neap_status claim(packer *p, const neap_want *want, uint64_t bytes, void **out) {
    return neap_blocks_claim(p->o->blocks, want->group, bytes, out);
}

/* An array of a want is complete, with the gap behind it. */
static void fill_small(packer *p, const neap_want *want, const void *data, uint64_t bytes) {
    neap_packed_filled(p->o->keep, want->group, data, (bytes + 63) & ~(uint64_t)63);
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

static bool is_reading(const packer *p) { return !p->o->is_filled || p->o->is_reread; }

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

/* Only for the checkpoint's digest. */
static neap_status reread_f32(const packer *p, const neap_stored_tensor *t, int64_t n) {
    void *values = NULL;
    if (t == NULL || !is_reading(p)) return NEAP_OK;
    NEAP_TRY(neap_mem_alloc((size_t)n * sizeof(float), &values));
    neap_status status = read_f32(p, t, n, values);
    neap_mem_free(values);
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
    atomic_fetch_add(&p->n_nonfinite, bad);
    return NEAP_OK;
}

/* ---------------------------------------------------------------- step 1: the walk ------------ */

static neap_status read_vector(packer *p, const neap_want *want, const neap_match *match, float *x) {
    int64_t n = want->n * want->k;
    if (match->data == NULL) {
        for (int64_t i = 0; i < n; i++) x[i] = 1; /* bounded gate without A_log */
    } else {
        NEAP_TRY(read_f32(p, match->data, n, x));
        if (want->kind == NEAP_WANT_DECAY)
            for (int64_t i = 0; i < n; i++) x[i] = expf(x[i]);
        NEAP_TRY(judge_vector(p, match->data, x, n));
    }
    if (want->kind != NEAP_WANT_MIX) return NEAP_OK;
    void *row = NULL;
    NEAP_TRY(neap_mem_alloc((size_t)n * sizeof(float), &row));
    const float *proj = row;
    neap_status status = read_f32(p, match->scale, n, row);
    for (int64_t i = 0; i < n; i++) x[i] *= proj[i];
    neap_mem_free(row);
    NEAP_TRY(status);
    return judge_vector(p, match->scale, x, n);
}

static neap_status take_vector(packer *p, const neap_want *want, const neap_match *match) {
    int64_t n = want->n * want->k;
    if (match->data == NULL && want->kind != NEAP_WANT_DECAY) return NEAP_OK; /* optional: stays NULL */
    if (want->to.vector == NULL) return NEAP_OK;                              /* checked only */
    void *to = NULL;
    NEAP_TRY(claim(p, want, (uint64_t)n * sizeof(float), &to));
    *want->to.vector = to;
    if (p->o->is_filled) {
        NEAP_TRY(reread_f32(p, match->data, n));
        return reread_f32(p, match->scale, n);
    }
    NEAP_TRY(read_vector(p, want, match, to));
    fill_small(p, want, to, (uint64_t)n * sizeof(float));
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

static neap_status read_scales(packer *p, const neap_match *match, const neap_matrix *m, float *to) {
    void *rows = NULL;
    int64_t n = neap_matrix_scale_count(m);
    if (m->kind == NEAP_MATRIX_INT8) {
        n = m->n * neap_matrix_groups(m);
        NEAP_TRY(neap_mem_alloc((size_t)n * sizeof(float), &rows));
    }
    float *stored = rows != NULL ? rows : to;
    neap_status status = read_f32(p, match->scale, n, stored);
    if (status == NEAP_OK) status = judge_scales(p, match->scale, stored, n, rows != NULL);
    if (status == NEAP_OK && rows != NULL) neap_matrix_pack_scales(m, to, rows);
    neap_mem_free(rows);
    return status;
}

static neap_status take_scales(packer *p, const neap_want *want, const neap_match *match, neap_matrix *m) {
    void *to = NULL;
    uint64_t bytes = (uint64_t)neap_matrix_scale_count(m) * sizeof(float);
    NEAP_TRY(claim(p, want, bytes, &to));
    m->scales = to;
    if (p->o->is_filled)
        return reread_f32(p, match->scale,
                          m->kind == NEAP_MATRIX_INT8 ? m->n * neap_matrix_groups(m) : neap_matrix_scale_count(m));
    NEAP_TRY(read_scales(p, match, m, to));
    fill_small(p, want, to, bytes);
    return NEAP_OK;
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
    NEAP_TRY(claim(p, want, neap_matrix_panel_bytes(m), &to));
    m->panels = to;
    if (neap_matrix_scale_count(m) > 0) NEAP_TRY(take_scales(p, want, match, m));
    if (!is_reading(p)) return NEAP_OK;
    int64_t n_panels = neap_matrix_panels(m);
    job shape = {.data = match->data, .scale = match->scale, .m = m, .group = want->group};
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
    p->crew.bytes_total += match->data->bytes;
    return NEAP_OK;
}

static neap_status take_kv_b(packer *p, const neap_want *want, const neap_match *match) {
    const neap_mla_spec *s = want->mla_spec;
    neap_matrix *k_up = (neap_matrix *)want->mla->k_up, *v_up = (neap_matrix *)want->mla->v_up;
    for (int64_t h = 0; h < s->n_heads; h++) {
        void *to = NULL;
        NEAP_TRY(claim(p, want, neap_matrix_panel_bytes(&k_up[h]), &to));
        k_up[h].panels = to;
        NEAP_TRY(claim(p, want, neap_matrix_panel_bytes(&v_up[h]), &to));
        v_up[h].panels = to;
        if (!is_reading(p)) continue;
        job *j = add_job(p);
        if (j == NULL) return p->status;
        *j = (job){
            .data = match->data, .scale = match->scale, .mla = want->mla, .spec = s, .head = h, .group = want->group};
    }
    int64_t rows = (int64_t)s->d_nope + s->d_v;
    uint64_t stage = (neap_rows_stage(match, s->kv_lora, rows) + 63) / 64 * 64;
    if (is_decoded(match->data->dtype)) stage += (uint64_t)(rows * s->kv_lora) * sizeof(float);
    need_stage(p, stage);
    p->crew.bytes_total += match->data->bytes;
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
    if (p->o->is_filled) return NEAP_OK;
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
    if (p->o->is_filled) return NEAP_OK;
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

static void tell_filled(const packer *p, const job *j) {
    if (p->o->keep == NULL || p->o->is_filled) return;
    if (j->m != NULL) {
        uint64_t panel = (uint64_t)j->m->panel_bytes;
        neap_packed_filled(p->o->keep, j->group, (const char *)j->m->panels + (uint64_t)j->panel_begin * panel,
                           (uint64_t)(j->panel_end - j->panel_begin) * panel);
        return;
    }
    const neap_matrix *k_up = &j->mla->k_up[j->head], *v_up = &j->mla->v_up[j->head];
    neap_packed_filled(p->o->keep, j->group, k_up->panels, neap_matrix_panel_bytes(k_up));
    neap_packed_filled(p->o->keep, j->group, v_up->panels, neap_matrix_panel_bytes(v_up));
}

static neap_status run_job(void *user, int64_t i, void *stage) {
    packer *p = user;
    const job *j = &p->jobs[i];
    int64_t n_bad = 0;
    neap_status status = j->m != NULL ? pack_panels(p, j, stage, &n_bad) : pack_head(p, j, stage, &n_bad);
    if (status == NEAP_OK && n_bad > 0) {
        if (!p->o->allow_nonfinite) return refuse_nonfinite(p->c, j->data, n_bad);
        atomic_fetch_add(&p->n_nonfinite, n_bad);
    }
    if (status == NEAP_OK) tell_filled(p, j);
    int64_t rows =
        j->m != NULL ? (j->panel_end - j->panel_begin) * NEAP_PANEL : (int64_t)j->spec->d_nope + j->spec->d_v;
    neap_crew_count(&p->crew, (uint64_t)(rows * row_bytes(j)));
    return status;
}

static void share_head(neap_network *net, bool is_tied) {
    if (is_tied) net->head = net->embed;
}

static neap_status pack(packer *p) {
    (void)neap_weights_visit(p->m, &p->matches->names, visit, p);
    NEAP_TRY(p->status);
    p->crew.n_tasks = p->n_jobs;
    p->crew.scratch_bytes = p->stage_bytes;
    if (is_reading(p)) NEAP_TRY(neap_crew_run(&p->crew));
    share_head(&p->m->net, p->m->is_tied);
    return NEAP_OK;
}

neap_status neap_pack_all(neap_model *m, const neap_checkpoint *c, const neap_matches *matches,
                          const neap_pack_options *o, int64_t *n_nonfinite) {
    void *mem = NULL;
    *n_nonfinite = 0;
    NEAP_TRY(neap_mem_alloc(sizeof(packer), &mem));
    packer *p = mem;
    p->m = m;
    p->c = c;
    p->matches = matches;
    p->o = o;
    p->crew = (neap_crew){.n_threads = o->n_threads,
                          .what = "load",
                          .progress = o->progress,
                          .progress_user = o->progress_user,
                          .task = run_job,
                          .user = p};
    atomic_init(&p->n_nonfinite, 0);
    neap_blocks_rewind(o->blocks);
    neap_status status = pack(p);
    *n_nonfinite = atomic_load(&p->n_nonfinite);
    neap_mem_free(p->jobs);
    neap_mem_free(p);
    return status;
}
