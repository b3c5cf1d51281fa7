/* `neap bench --plot`: tokens a second against context depth, as an SVG drawing of our own.
 *
 * Two panels, decoding and prompt, each with a scale of its own that begins at 0. Depths double from mark to mark: x is
 * the logarithm, and depth 0 stands left of the smallest other one. Only shapes and text, no script, no style sheet, so
 * that every viewer shows it. Called by bench.c. Owns nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "json_out.h"
#include "terminal.h"

enum { WIDTH = 860, HEIGHT = 400, LEFT = 70, TOP = 60, PANEL_WIDTH = 330, PANEL_HEIGHT = 270, GAP = 90 };

/* XML text: characters that mean something get names; control characters and what is not UTF-8 are left out. */
static void add_text(neap_cli_text *out, const char *s) {
    for (size_t n = 0, bad; *s != 0; s += n > 0 ? n : bad) {
        n = neap_cli_utf8_length(s, strlen(s), &bad);
        const char *name = *s == '&' ? "&amp;" : *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '"' ? "&quot;" : NULL;
        if (name != NULL)
            neap_cli_text_puts(out, name);
        else if (n > 0 && (unsigned char)*s >= 0x20)
            neap_cli_text_add(out, s, n);
    }
}

static void label(neap_cli_text *out, double x, double y, const char *anchor, int size, const char *text) {
    neap_cli_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor, size);
    add_text(out, text);
    neap_cli_text_puts(out, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, so that at most six of them make `most`. */
static double mark_step(double most) {
    double step = pow(10, floor(log10(most > 0 ? most / 6 : 1)));
    while (most / step > 6) step *= most / step > 15 ? 5 : 2;
    return step;
}

/* Place of a depth on the axis: doublings. */
static double place(const neap_cli_bench_run *r, int64_t depth) {
    int64_t least = 0;
    for (size_t i = 0; i < r->n_levels; i++) {
        int64_t d = r->levels[i].depth;
        if (d > 0 && (least == 0 || d < least)) least = d;
    }
    return least == 0 ? 0 : depth == 0 ? log2((double)least) - 1 : log2((double)depth);
}

static double value(const neap_cli_level *l, int is_prompt) {
    return is_prompt ? l->prompt_rate : l->median > 0 ? 1 / l->median : 0;
}

static void axes(neap_cli_text *out, double x0, double y0, double most, double step) {
    char text[48];
    for (double y = 0; y <= most * 1.0001; y += step) {
        double at = y0 - y / most * PANEL_HEIGHT;
        neap_cli_text_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x0, at,
                             x0 + PANEL_WIDTH, at);
        snprintf(text, sizeof text, "%g", y);
        label(out, x0 - 8, at + 4, "end", 12, text);
    }
    neap_cli_text_printf(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#333\"/>\n", x0,
                         y0 - PANEL_HEIGHT, y0, x0 + PANEL_WIDTH);
}

static void depth_text(int64_t depth, char *text, size_t capacity) {
    if (depth >= 1024 && depth % 1024 == 0)
        snprintf(text, capacity, "%lldK", (long long)(depth / 1024));
    else
        snprintf(text, capacity, "%lld", (long long)depth);
}

static void panel(neap_cli_text *out, const neap_cli_bench_run *r, int is_prompt, double x0) {
    const double y0 = TOP + PANEL_HEIGHT;
    const char *colour = is_prompt ? "#b5541c" : "#1f5fa8";
    double most = 0, first = INFINITY, last = -INFINITY;
    for (size_t i = 0; i < r->n_levels; i++) {
        double at = place(r, r->levels[i].depth), y = value(&r->levels[i], is_prompt);
        if (y > most) most = y;
        if (at < first) first = at;
        if (at > last) last = at;
    }
    double step = mark_step(most), top = ceil(most / step) * step;
    if (!(top > 0)) top = step;
    axes(out, x0, y0, top, step);
    label(out, x0 + PANEL_WIDTH / 2.0, TOP - 14, "middle", 14,
          is_prompt ? "prompt, tokens per second" : "decoding, tokens per second");
    label(out, x0 + PANEL_WIDTH / 2.0, y0 + 42, "middle", 12, "depth of the context, tokens");
    neap_cli_text line = {0};
    for (size_t i = 0; i < r->n_levels; i++) {
        const neap_cli_level *l = &r->levels[i];
        double width = last > first ? last - first : 1, x = (place(r, l->depth) - first) / width;
        if (!(last > first)) x = 0.5;
        double px = x0 + 12 + x * (PANEL_WIDTH - 24), py = y0 - value(l, is_prompt) / top * PANEL_HEIGHT;
        char text[32];
        depth_text(l->depth, text, sizeof text);
        label(out, px, y0 + 20, "middle", 12, text);
        if (value(l, is_prompt) <= 0) continue;
        neap_cli_text_printf(&line, "%s%.1f,%.1f", line.n > 0 ? " " : "", px, py);
        neap_cli_text_printf(out,
                             "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s: %.2f</title></circle>\n",
                             px, py, colour, text, value(l, is_prompt));
    }
    neap_cli_text_printf(out, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                         neap_cli_text_string(&line), colour);
    neap_cli_text_free(&line);
}

int neap_cli_bench_plot(const neap_cli_bench_run *r, const neap_model_info *info, const char *path) {
    neap_cli_text out = {0}, title = {0};
    neap_cli_text_printf(&out,
                         "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
                         "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n"
                         "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
                         WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    const char *model = strrchr(r->s.options->model, '/');
    neap_cli_text_printf(&title, "%s: %s, %d thread%s, %s",
                         model != NULL && model[1] != 0 ? model + 1 : r->s.options->model, info->weight_formats,
                         r->stats.n_threads, r->stats.n_threads == 1 ? "" : "s", info->kernels);
    title.n = neap_cli_clean(title.data, title.n);
    title.data[title.n] = 0;
    label(&out, WIDTH / 2.0, 24, "middle", 15, title.data);
    panel(&out, r, 0, LEFT);
    panel(&out, r, 1, LEFT + PANEL_WIDTH + GAP);
    neap_cli_text_puts(&out, "</svg>\n");
    int code = neap_cli_write_file(path, out.data, out.n);
    neap_cli_text_free(&out);
    neap_cli_text_free(&title);
    return code;
}
