/* The plan of one step: read op by op, shown as a table, as JSON and as a drawing; see plan_list.h.
 *
 * A phase belongs to the layer of its first op; it ends with one barrier. So the barriers of a layer are the phases
 * that begin with an op of it. What kind a layer is follows from the names of its ops ("kda.", "mla."): the list needs
 * to know nothing about models.
 *
 * Called by info.c and plan_predict.c. Owns the lists. */
#include "plan_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* ---- reading ---- */

static void take_op(void *user, const neap_op_info *op) {
    neap_cli_plan *p = user;
    if ((p->n_ops & (p->n_ops + 1)) == 0) p->ops = neap_cli_grow(p->ops, 2 * (size_t)p->n_ops + 2, sizeof *p->ops);
    neap_cli_op *kept = &p->ops[p->n_ops++];
    *kept = (neap_cli_op){.phase = op->phase,
                          .layer = op->layer,
                          .stream = op->stream,
                          .after_op = op->after_op,
                          .bytes = op->bytes,
                          .multiply_adds = op->multiply_adds};
    snprintf(kept->name, sizeof kept->name, "%s", op->name);
}

static void make_phases(neap_cli_plan *p) {
    p->phases = neap_cli_alloc((size_t)p->n_ops + 1, sizeof *p->phases);
    for (int32_t i = 0; i < p->n_ops; i++) {
        const neap_cli_op *op = &p->ops[i];
        if (i == 0 || op->phase != op[-1].phase)
            p->phases[p->n_phases++] =
                (neap_cli_plan_phase){.first = i, .layer = op->layer, .stream = op->stream, .after_phase = -1};
        neap_cli_plan_phase *phase = &p->phases[p->n_phases - 1];
        phase->n_ops++;
        phase->bytes += op->bytes;
        phase->multiply_adds += op->multiply_adds;
        if (op->after_op < 0 || op->after_op >= i) continue;
        for (int32_t k = 0; k < p->n_phases; k++) {
            const neap_cli_plan_phase *other = &p->phases[k];
            if (op->after_op >= other->first && op->after_op < other->first + other->n_ops) phase->after_phase = k;
        }
    }
}

int neap_cli_plan_read(neap_cli_plan *p, const neap_model *m, const neap_engine_options *e, int32_t n_seqs,
                       int32_t n_tokens, int64_t depth) {
    *p = (neap_cli_plan){0};
    int code = neap_cli_failed(neap_plan_describe(m, e, n_seqs, n_tokens, depth, take_op, p), NEAP_CLI_RUNNING);
    if (code == NEAP_EXIT_OK) make_phases(p);
    return code;
}

void neap_cli_plan_free(neap_cli_plan *p) {
    free(p->ops);
    free(p->phases);
    *p = (neap_cli_plan){0};
}

/* ---- barriers per layer ---- */

static int32_t n_layers(const neap_cli_plan *p) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].layer >= n) n = p->ops[i].layer + 1;
    return n;
}

const char *neap_cli_layer_kind(const neap_cli_plan *p, int32_t layer) {
    for (int32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].layer != layer) continue;
        if (strncmp(p->ops[i].name, "kda.", 4) == 0) return "KDA";
        if (strncmp(p->ops[i].name, "mla.", 4) == 0) return "MLA";
    }
    return "";
}

/* [layer]; as many as n_layers says; the caller frees. */
static int32_t *count_barriers(const neap_cli_plan *p, int32_t n) {
    int32_t *counts = neap_cli_alloc((size_t)n + 1, sizeof *counts);
    for (int32_t i = 0; i < p->n_phases; i++)
        if (p->phases[i].layer >= 0) counts[p->phases[i].layer]++;
    return counts;
}

enum { COUNT_MAX = 64 }; /* barriers of a layer, for the histogram */
static const char *const kinds[] = {"KDA", "MLA"};

/* Layers of a kind by their number of barriers. */
static void histogram(const neap_cli_plan *p, const char *kind, int32_t layers[COUNT_MAX]) {
    int32_t n = n_layers(p), *counts = count_barriers(p, n);
    memset(layers, 0, COUNT_MAX * sizeof *layers);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(neap_cli_layer_kind(p, i), kind) != 0) continue;
        layers[counts[i] < COUNT_MAX ? counts[i] : COUNT_MAX - 1]++;
    }
    free(counts);
}

void neap_cli_barriers_text(const neap_cli_plan *p, neap_cli_text *out) {
    neap_cli_text_puts(out, "barriers per layer:");
    for (int k = 0, n = 0; k < 2; k++) {
        int32_t layers[COUNT_MAX], n_counts = 0;
        histogram(p, kinds[k], layers);
        for (int i = 0; i < COUNT_MAX; i++) n_counts += layers[i] > 0;
        if (n_counts == 0) continue;
        neap_cli_text_printf(out, "%s %s", n++ > 0 ? "," : "", kinds[k]);
        for (int i = 0, m = 0; i < COUNT_MAX; i++) {
            if (layers[i] == 0) continue;
            neap_cli_text_printf(out, "%s%d", m++ > 0 ? " or " : " ", i);
            if (n_counts > 1) neap_cli_text_printf(out, " (%d layer%s)", layers[i], layers[i] == 1 ? "" : "s");
        }
    }
    neap_cli_text_puts(out, "\n");
}

/* ---- table ---- */

static void phase_name(const neap_cli_plan *p, const neap_cli_plan_phase *phase, const char *between,
                       neap_cli_text *out) {
    for (int32_t i = 0; i < phase->n_ops; i++)
        neap_cli_text_printf(out, "%s%s", i > 0 ? between : "", p->ops[phase->first + i].name);
}

static void totals(const neap_cli_plan *p, uint64_t *bytes, double *multiply_adds) {
    *bytes = 0;
    *multiply_adds = 0;
    for (int32_t i = 0; i < p->n_phases; i++) {
        *bytes += p->phases[i].bytes;
        *multiply_adds += p->phases[i].multiply_adds;
    }
}

void neap_cli_plan_table(const neap_cli_plan *p, neap_cli_text *out) {
    uint64_t bytes;
    double macs;
    char layer[16], event[16];
    neap_cli_text_printf(out, "%5s  %5s  %4s  %6s  %6s  %10s  %10s  %s\n", "phase", "layer", "kind", "stream", "after",
                         "KiB", "kMAC", "ops");
    for (int32_t i = 0; i < p->n_phases; i++) {
        const neap_cli_plan_phase *phase = &p->phases[i];
        snprintf(layer, sizeof layer, "%d", phase->layer);
        snprintf(event, sizeof event, "%d", phase->after_phase);
        neap_cli_text_printf(out, "%5d  %5s  %4s  %6d  %6s  %10.1f  %10.1f  ", i, phase->layer >= 0 ? layer : "-",
                             phase->layer >= 0 ? neap_cli_layer_kind(p, phase->layer) : "", phase->stream,
                             phase->after_phase >= 0 ? event : "-", (double)phase->bytes / 1024,
                             phase->multiply_adds * 1e-3);
        phase_name(p, phase, " + ", out);
        neap_cli_text_puts(out, "\n");
    }
    totals(p, &bytes, &macs);
    neap_cli_text_printf(out, "%d ops in %d phases, so %d barriers; %.3f MiB and %.3f million multiply-adds\n",
                         p->n_ops, p->n_phases, p->n_phases, (double)bytes / 1048576, macs * 1e-6);
    neap_cli_barriers_text(p, out);
}

/* ---- JSON ---- */

static void json_barriers(const neap_cli_plan *p, neap_cli_text *out) {
    neap_cli_json_open(out, "barriers_per_layer", '{');
    for (int k = 0; k < 2; k++) {
        int32_t layers[COUNT_MAX];
        histogram(p, kinds[k], layers);
        neap_cli_json_open(out, kinds[k], '{'); /* barriers: layers */
        for (int i = 0; i < COUNT_MAX; i++) {
            char name[16];
            snprintf(name, sizeof name, "%d", i);
            if (layers[i] > 0) neap_cli_json_int(out, name, layers[i]);
        }
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, '}');
}

void neap_cli_plan_json(const neap_cli_plan *p, neap_cli_text *out) {
    uint64_t bytes;
    double macs;
    totals(p, &bytes, &macs);
    neap_cli_json_int(out, "ops", p->n_ops);
    neap_cli_json_int(out, "barriers", p->n_phases);
    neap_cli_json_uint(out, "bytes", bytes);
    neap_cli_json_real(out, "multiply_adds", macs, 15);
    json_barriers(p, out);
    neap_cli_json_open(out, "phases", '[');
    for (int32_t i = 0; i < p->n_phases; i++) {
        const neap_cli_plan_phase *phase = &p->phases[i];
        neap_cli_json_open(out, NULL, '{');
        neap_cli_json_int(out, "phase", i);
        neap_cli_json_int(out, "layer", phase->layer);
        neap_cli_json_int(out, "stream", phase->stream);
        neap_cli_json_int(out, "after", phase->after_phase);
        neap_cli_json_uint(out, "bytes", phase->bytes);
        neap_cli_json_real(out, "multiply_adds", phase->multiply_adds, 15);
        neap_cli_json_open(out, "ops", '[');
        for (int32_t k = 0; k < phase->n_ops; k++) neap_cli_json_cstring(out, NULL, p->ops[phase->first + k].name);
        neap_cli_json_close(out, ']');
        neap_cli_json_close(out, '}');
    }
    neap_cli_json_close(out, ']');
}

/* ---- drawing ---- */

/* Boxes are phases, solid arrows barriers, dashed ones events. Layers stand in frames. */
void neap_cli_plan_dot(const neap_cli_plan *p, neap_cli_text *out) {
    neap_cli_text_puts(out, "digraph plan {\n    rankdir=TB;\n    node [shape=box, fontname=\"monospace\"];\n");
    int32_t open = -1;
    for (int32_t i = 0; i < p->n_phases; i++) {
        const neap_cli_plan_phase *phase = &p->phases[i];
        if (open >= 0 && phase->layer != open) neap_cli_text_puts(out, "    }\n"), open = -1;
        if (open < 0 && phase->layer >= 0) {
            open = phase->layer;
            neap_cli_text_printf(out, "    subgraph cluster_%d {\n        label=\"layer %d %s\";\n", i, open,
                                 neap_cli_layer_kind(p, open));
        }
        neap_cli_text_printf(out, "%s    p%d [label=\"%d: ", open >= 0 ? "    " : "", i, i);
        phase_name(p, phase, "\\n", out);
        neap_cli_text_printf(out, "\\n%.1f KiB, %.1f kMAC\"];\n", (double)phase->bytes / 1024,
                             phase->multiply_adds * 1e-3);
    }
    if (open >= 0) neap_cli_text_puts(out, "    }\n");
    for (int32_t i = 1; i < p->n_phases; i++) {
        const neap_cli_plan_phase *phase = &p->phases[i];
        int32_t before = i - 1; /* the phase before in its stream */
        while (before >= 0 && p->phases[before].stream != phase->stream) before--;
        if (before >= 0) neap_cli_text_printf(out, "    p%d -> p%d;\n", before, i);
        if (phase->after_phase >= 0 && phase->after_phase != before)
            neap_cli_text_printf(out, "    p%d -> p%d [style=dashed, label=\"event\"];\n", phase->after_phase, i);
    }
    neap_cli_text_puts(out, "}\n");
}
