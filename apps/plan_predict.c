/* What a step would take on more cores: a model of the plan, fed with costs measured here; see plan_predict.h.
 *
 *   measured   the time of each op in a traced step, summed over workers: median over steps, with one thread
 *   predicted  time of a phase on n cores = max(its ops' time / n, its bytes / bandwidth(n)) + barrier(n)
 *              bandwidth(n) = min(n * that of one core, that of all together); no limit for a phase whose bytes one
 *              core got faster than memory gives them, for they lie in caches
 *              time of a step = sum over phases
 *
 * It assumes that every phase can be cut into n equal parts and that phases of different streams do not overlap, so it
 * knows nothing of tasks that are too few or too large, nor of caches that grow with the cores. barrier(n) is what
 * was measured between two phases with the threads of this machine, whatever n is; for n = 1 with one. Bandwidth is
 * measured too; where the machine meant has other memory, --memory-scale says how much more all cores get than one.
 *
 * Called by plan_command.c. Owns model and engine while it measures. */
#include "plan_predict.h"

#include <stdlib.h>
#include <string.h>

#include "compute.h"
#include "report.h"
#include "terminal.h"

enum { STEPS = 24, WARM = 4 };

/* Of the steps of one engine: [step][op] seconds, and what was between phases. */
typedef struct samples {
    double *ops;          /* [STEPS][n_ops] */
    double *gaps;         /* [STEPS][n_phases] */
    int64_t *begin, *end; /* [n_phases] of the step that is being taken */
    double steps[STEPS];
    const neap_cli_plan *plan;
    int32_t i;  /* step */
    int is_bad; /* the engine ran another plan than the one described */
} samples;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int32_t n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return n > 0 ? (x[(n - 1) / 2] + x[n / 2]) / 2 : 0;
}

static void take_record(void *user, const neap_op_record *r) {
    samples *s = user;
    if (r->op < 0 || r->op >= s->plan->n_ops || r->phase < 0 || r->phase >= s->plan->n_phases ||
        strncmp(r->name, s->plan->ops[r->op].name, sizeof s->plan->ops[r->op].name - 1) != 0) {
        s->is_bad = 1;
        return;
    }
    if (r->end_ns == 0) return;
    s->ops[(int64_t)s->i * s->plan->n_ops + r->op] += (double)(r->end_ns - r->begin_ns) * 1e-9;
    if (s->begin[r->phase] == 0 || r->begin_ns < s->begin[r->phase]) s->begin[r->phase] = r->begin_ns;
    if (r->end_ns > s->end[r->phase]) s->end[r->phase] = r->end_ns;
}

static void take_step(samples *s, const neap_engine *e) {
    size_t n = (size_t)s->plan->n_phases;
    memset(s->begin, 0, n * sizeof *s->begin);
    memset(s->end, 0, n * sizeof *s->end);
    if (neap_engine_trace(e, take_record, s) != NEAP_OK) s->is_bad = 1;
    int32_t last = s->plan->n_phases - 1;
    s->steps[s->i] = (double)(s->end[last] - s->begin[0]) * 1e-9;
    for (int32_t k = 0; k < last; k++)
        s->gaps[(int64_t)s->i * s->plan->n_phases + k] = (double)(s->begin[k + 1] - s->end[k]) * 1e-9;
    s->i++;
}

/* ---- measuring ---- */

static neap_status submit(neap_engine *engine, neap_seq **seq, const neap_cli_options *o, int64_t which,
                          const neap_model_info *info) {
    size_t n = o->plan_depth > 0 ? (size_t)o->plan_depth : 1;
    int32_t *tokens = neap_cli_alloc(n, sizeof *tokens);
    neap_request q;
    neap_request_init(&q);
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)((i * 7919 + (size_t)which * 104729 + 1) % (size_t)info->vocab);
    q.tokens = tokens;
    q.n_tokens = n;
    q.max_tokens = STEPS + WARM + 1;
    q.ignore_eos = 1;
    neap_status status = neap_submit(engine, &q, seq);
    free(tokens);
    return status;
}

static int decode(samples *s, neap_cli_session *session, const neap_cli_options *o) {
    neap_seq **seqs = neap_cli_alloc((size_t)o->plan_batch, sizeof *seqs);
    neap_model_info info = {.struct_size = sizeof info};
    neap_status status = neap_model_describe(session->model, &info);
    for (int64_t i = 0; status == NEAP_OK && i < o->plan_batch; i++)
        status = submit(session->engine, &seqs[i], o, i, &info);
    uint64_t n_new = 0;
    for (int32_t n_steps = 0; status == NEAP_OK && s->i < STEPS;) {
        neap_engine_stats stats = {.struct_size = sizeof stats};
        neap_event event = {.struct_size = sizeof event};
        status = neap_step(session->engine);
        while (status == NEAP_OK && neap_poll(session->engine, &event) == NEAP_OK) continue;
        if (status == NEAP_OK) status = neap_engine_statistics(session->engine, &stats);
        if (status != NEAP_OK) break;
        int decodes = n_new > 0 && stats.new_tokens == n_new + (uint64_t)o->plan_batch;
        n_new = stats.new_tokens;
        if (decodes && ++n_steps > WARM) take_step(s, session->engine);
    }
    for (int64_t i = 0; i < o->plan_batch; i++) neap_seq_free(seqs[i]);
    free(seqs);
    if (status == NEAP_AGAIN) {
        neap_cli_error("the engine ended before enough steps were measured");
        return NEAP_EXIT_INTERNAL;
    }
    return neap_cli_failed(status, NEAP_CLI_RUNNING);
}

static int measure(samples *s, neap_cli_session *session, const neap_cli_options *o, const neap_engine_options *options,
                   int32_t n_threads) {
    neap_engine_options e = *options;
    e.n_threads = n_threads;
    e.enable_trace = 1;
    e.context_max += STEPS + WARM + 2;
    *s = (samples){.plan = s->plan};
    size_t n_ops = (size_t)s->plan->n_ops, n_phases = (size_t)s->plan->n_phases;
    s->ops = neap_cli_alloc(STEPS * n_ops, sizeof *s->ops);
    s->gaps = neap_cli_alloc(STEPS * n_phases, sizeof *s->gaps);
    s->begin = neap_cli_alloc(n_phases, sizeof *s->begin);
    s->end = neap_cli_alloc(n_phases, sizeof *s->end);
    int code = neap_cli_failed(neap_engine_create(&session->engine, session->model, &e), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) code = decode(s, session, o);
    neap_engine_destroy(session->engine);
    session->engine = NULL;
    if (code == NEAP_EXIT_OK && s->is_bad) {
        neap_cli_error("the engine runs other ops than the plan that was described");
        code = NEAP_EXIT_INTERNAL;
    }
    return code;
}

static void free_samples(samples *s) {
    free(s->ops);
    free(s->gaps);
    free(s->begin);
    free(s->end);
}

/* ---- the model ---- */

/* Between phases, where nothing else than meeting happens: the median of all of them. */
static double barrier_of(samples *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < STEPS; i++)
        for (int32_t k = 0; k + 1 < s->plan->n_phases; k++) s->gaps[n++] = s->gaps[(int64_t)i * s->plan->n_phases + k];
    double gap = median(s->gaps, n);
    return gap > 0 ? gap : 0;
}

static double op_cost(const samples *s, int32_t op) {
    double x[STEPS];
    for (int32_t i = 0; i < STEPS; i++) x[i] = s->ops[(int64_t)i * s->plan->n_ops + op];
    return median(x, STEPS);
}

static void predict(neap_cli_prediction *out, const samples *one) {
    const neap_cli_plan *p = one->plan;
    for (int32_t i = 0; i < p->n_phases; i++) {
        double cost = 0;
        for (int32_t k = 0; k < p->phases[i].n_ops; k++) cost += op_cost(one, p->phases[i].first + k);
        /* Faster than memory gives: it lies in caches, of which more cores have more. */
        int is_far = out->bandwidth_one > 0 && (double)p->phases[i].bytes < 1.2 * out->bandwidth_one * cost;
        for (int32_t n = 1; n <= out->n_cores; n++) {
            double bandwidth = n * out->bandwidth_one < out->bandwidth ? n * out->bandwidth_one : out->bandwidth;
            double memory = is_far ? (double)p->phases[i].bytes / bandwidth : 0, alone = cost / n;
            out->seconds[n] += (memory > alone ? memory : alone) + (n == 1 ? out->barrier_one : out->barrier);
            if (memory > alone) out->memory_share[n] += memory;
        }
    }
    for (int32_t n = 1; n <= out->n_cores; n++) out->memory_share[n] /= out->seconds[n];
}

static int find_bandwidth(neap_cli_prediction *out, const neap_cli_options *o) {
    neap_limits one = {.struct_size = sizeof one}, all = {.struct_size = sizeof all};
    int code = neap_cli_failed(neap_measure_limits(o->cpu, 1, 0.5, &one), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK)
        code = neap_cli_failed(neap_measure_limits(o->cpu, out->n_threads, 0.5, &all), NEAP_CLI_RUNNING);
    if (code != NEAP_EXIT_OK) return code;
    out->bandwidth_one = one.read_bytes;
    out->bandwidth = all.read_bytes > one.read_bytes ? all.read_bytes : one.read_bytes;
    out->has_scale = o->memory_scale > 0;
    if (out->has_scale) out->bandwidth = one.read_bytes * o->memory_scale;
    return code;
}

int neap_cli_predict(neap_cli_prediction *out, const neap_cli_options *o, const neap_engine_options *e,
                     const neap_cli_plan *p) {
    *out = (neap_cli_prediction){.n_cores = (int32_t)o->cores};
    out->n_threads = e->n_threads > 0 ? e->n_threads : neap_default_threads();
    samples one = {.plan = p}, all = {.plan = p};
    neap_cli_session session = {0};
    int code = find_bandwidth(out, o);
    if (code == NEAP_EXIT_OK) code = neap_cli_session_open(&session, o);
    if (code == NEAP_EXIT_OK) code = measure(&one, &session, o, e, 1);
    if (code == NEAP_EXIT_OK) code = measure(&all, &session, o, e, out->n_threads);
    if (code == NEAP_EXIT_OK) {
        out->measured_one = median(one.steps, STEPS);
        out->measured = median(all.steps, STEPS);
        out->barrier = barrier_of(&all);
        out->barrier_one = barrier_of(&one);
        predict(out, &one);
    }
    free_samples(&one);
    free_samples(&all);
    neap_cli_session_close(&session);
    return code;
}

/* ---- results ---- */

static double measured_with(const neap_cli_prediction *p, int32_t n) {
    return n == 1 ? p->measured_one : n == p->n_threads ? p->measured : 0;
}

void neap_cli_prediction_table(const neap_cli_prediction *p, neap_cli_text *out) {
    neap_cli_text_puts(out, "\nstep time by cores (prediction, not a measurement)\n");
    neap_cli_text_printf(out, "%5s  %10s  %7s  %13s  %10s\n", "cores", "step", "speedup", "memory-bound", "measured");
    for (int32_t n = 1; n <= p->n_cores; n++) {
        /* up to 16 each one, then powers of two and the last */
        if (n > 16 && (n & (n - 1)) != 0 && n != p->n_cores) continue;
        neap_cli_text_printf(out, "%5d  %7.3f ms  %6.2fx  %11.0f %%", n, p->seconds[n] * 1e3,
                             p->seconds[1] / p->seconds[n], p->memory_share[n] * 100);
        if (measured_with(p, n) > 0) neap_cli_text_printf(out, "  %7.3f ms", measured_with(p, n) * 1e3);
        neap_cli_text_puts(out, "\n");
    }
    neap_cli_text_printf(out,
                         "from: barriers of %.2f us (%d thread%s), memory %.1f GB/s for one core and %.1f GB/s for all "
                         "(%s); phases cut into equal parts\n",
                         p->barrier * 1e6, p->n_threads, p->n_threads == 1 ? "" : "s", p->bandwidth_one * 1e-9,
                         p->bandwidth * 1e-9, p->has_scale ? "as --memory-scale says" : "as measured here");
}

void neap_cli_prediction_json(const neap_cli_prediction *p, neap_cli_text *out) {
    neap_cli_json_open(out, "prediction", '{');
    neap_cli_json_bool(out, "is_measurement", 0);
    neap_cli_json_int(out, "threads", p->n_threads);
    neap_cli_json_real(out, "barrier_us", p->barrier * 1e6, 6);
    neap_cli_json_real(out, "one_core_gb_per_second", p->bandwidth_one * 1e-9, 6);
    neap_cli_json_real(out, "all_cores_gb_per_second", p->bandwidth * 1e-9, 6);
    neap_cli_json_open(out, "steps", '[');
    for (int32_t n = 1; n <= p->n_cores; n++) {
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_int(out, "cores", n);
        neap_cli_json_real(out, "predicted_ms", p->seconds[n] * 1e3, 6);
        neap_cli_json_real(out, "memory_bound_share", p->memory_share[n], 4);
        if (measured_with(p, n) > 0) neap_cli_json_real(out, "measured_ms", measured_with(p, n) * 1e3, 6);
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
    neap_cli_json_close(out, '}');
}
