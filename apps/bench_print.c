/* Results of `neap bench` as text, Markdown, CSV and JSON; see bench.h.
 *
 * Text and Markdown share their table; Markdown has tables for the rest too, where text has lines. CSV has one line for
 * each measurement and one set of columns for all, empty where a kind of measurement has no such number. Called by
 * bench.c. Owns nothing. */
#include <stdio.h>

#include "bench.h"
#include "json_out.h"
#include "terminal.h"

static double mib(uint64_t bytes) { return (double)bytes / 1048576.0; }
static uint64_t grown(const neap_cli_bench_run *r) {
    return r->peak_bytes > r->before_bytes ? r->peak_bytes - r->before_bytes : 0;
}
static double rate(double seconds) { return seconds > 0 ? 1 / seconds : 0; }
static const char *loaded(const neap_cli_bench_run *r) {
    return r->s.is_from_cache ? "packed weights read from the cache" : "weights packed";
}

static void print_title(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e) {
    char acts[96];
    neap_cli_acts(acts, sizeof acts, e, info);
    neap_cli_outf("%s: %s, %d layers, weights %s, activations %s, caches %s, index %s, %d thread%s, %s\n",
                  r->s.options->model, info->family, info->n_layers, info->weight_formats, acts,
                  neap_cli_cache_name(e->cache_type),
                  info->n_index_layers > 0 ? neap_cli_index_name(e->index_type) : "none", r->stats.n_threads,
                  r->stats.n_threads == 1 ? "" : "s", info->kernels);
}

static void print_levels(const neap_cli_bench_run *r) {
    char tail[32];
    snprintf(tail, sizeof tail, "last %lld", (long long)r->n_prompt);
    neap_cli_outf("| %8s | %12s | %12s | %7s | %13s | %13s | %13s | %8s | %7s |\n", "depth", "prompt tok/s", tail,
                  "of peak", "decode median", "least", "least cpu", "tok/s", "of mem.");
    neap_cli_outf("| -------: | -----------: | -----------: | ------: | ------------: | ------------: | "
                  "------------: | -------: | ------: |\n");
    for (size_t i = 0; i < r->n_levels; i++) {
        const neap_cli_level *l = &r->levels[i];
        neap_cli_outf("| %8lld | %12.2f | %12.2f | %5.1f %% | %10.3f ms | %10.3f ms | %10.3f ms | %8.2f | %5.1f %% |\n",
                      (long long)l->depth, l->prompt_rate, l->tail_rate, l->share.prompt_share * 100, l->median * 1e3,
                      l->least * 1e3, l->cpu * 1e3, rate(l->median), l->share.decode_share * 100);
    }
}

static void print_memory(const neap_cli_bench_run *r) {
    neap_cli_outf("memory: %.1f MiB announced for %d tokens (weights %.1f, states %.1f, caches %.1f, work %.1f), "
                  "%.1f MiB used at the peak\n",
                  mib(r->announced.total), r->s.context, mib(r->announced.weights), mib(r->announced.state),
                  mib(r->announced.cache), mib(r->announced.work), mib(grown(r)));
}

static void print_table(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e) {
    const neap_cli_mixed *m = &r->mixed;
    print_title(r, info, e);
    print_levels(r);
    for (size_t i = 0; i < r->n_batches; i++) {
        const neap_cli_batch *b = &r->batches[i];
        neap_cli_outf("%lld sequence%s together: a step takes %.3f ms (least %.3f), %.2f tok/s in all, %.1f %% of "
                      "mem.\n",
                      (long long)b->n_seqs, b->n_seqs == 1 ? "" : "s", b->median * 1e3, b->least * 1e3,
                      (double)b->n_seqs * rate(b->median), b->share * 100);
    }
    if (m->n_prompt > 0)
        neap_cli_outf("mixed: decoding %.2f tok/s alone, %.2f while a prompt of %lld tokens is read (longest wait %.3f "
                      "ms); the prompt %.2f tok/s alone, %.2f beside it\n",
                      m->decode_alone, m->decode_during, (long long)m->n_prompt, m->longest * 1e3, m->prompt_alone,
                      m->prompt_during);
    neap_cli_limits_print(&r->limits);
    neap_cli_outf("load: %.2f s, %s\n", r->load_seconds, loaded(r));
    print_memory(r);
}

static void print_markdown(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e) {
    const neap_cli_mixed *m = &r->mixed;
    print_title(r, info, e);
    neap_cli_outf("\n");
    print_levels(r);
    if (r->n_batches > 0)
        neap_cli_outf(
            "\n| sequences | step median | least | tok/s in all | of mem. |\n| --: | --: | --: | --: | --: |\n");
    for (size_t i = 0; i < r->n_batches; i++) {
        const neap_cli_batch *b = &r->batches[i];
        neap_cli_outf("| %lld | %.3f ms | %.3f ms | %.2f | %.1f %% |\n", (long long)b->n_seqs, b->median * 1e3,
                      b->least * 1e3, (double)b->n_seqs * rate(b->median), b->share * 100);
    }
    if (m->n_prompt > 0)
        neap_cli_outf("\n| mixed, tok/s | alone | together |\n| :-- | --: | --: |\n| decoding | %.2f | %.2f |\n"
                      "| prompt of %lld | %.2f | %.2f |\n",
                      m->decode_alone, m->decode_during, (long long)m->n_prompt, m->prompt_alone, m->prompt_during);
    neap_cli_outf("\n- ");
    neap_cli_limits_print(&r->limits);
    neap_cli_outf("- load: %.2f s, %s\n- ", r->load_seconds, loaded(r));
    print_memory(r);
}

static void print_csv(const neap_cli_bench_run *r) {
    const neap_cli_mixed *m = &r->mixed;
    neap_cli_outf("kind,depth,sequences,prompt_tokens_per_second,tail_tokens_per_second,prompt_share,decode_median_ms,"
                  "decode_least_ms,decode_cpu_ms,decode_tokens_per_second,memory_share\n");
    for (size_t i = 0; i < r->n_levels; i++) {
        const neap_cli_level *l = &r->levels[i];
        neap_cli_outf("depth,%lld,1,%.6g,%.6g,%.4g,%.6g,%.6g,%.6g,%.6g,%.4g\n", (long long)l->depth, l->prompt_rate,
                      l->tail_rate, l->share.prompt_share, l->median * 1e3, l->least * 1e3, l->cpu * 1e3,
                      rate(l->median), l->share.decode_share);
    }
    for (size_t i = 0; i < r->n_batches; i++) {
        const neap_cli_batch *b = &r->batches[i];
        neap_cli_outf("batch,0,%lld,,,,%.6g,%.6g,,%.6g,%.4g\n", (long long)b->n_seqs, b->median * 1e3, b->least * 1e3,
                      (double)b->n_seqs * rate(b->median), b->share);
    }
    if (m->n_prompt == 0) return;
    neap_cli_outf("alone,%lld,1,%.6g,,,,,,%.6g,\n", (long long)m->n_prompt, m->prompt_alone, m->decode_alone);
    neap_cli_outf("mixed,%lld,2,%.6g,,,,%.6g,,%.6g,\n", (long long)m->n_prompt, m->prompt_during, m->longest * 1e3,
                  m->decode_during);
}

static void json_memory(const neap_cli_bench_run *r, neap_cli_text *out) {
    neap_cli_json_open(out, "memory", '{');
    neap_cli_json_int(out, "context", r->s.context);
    neap_cli_json_uint(out, "announced_bytes", r->announced.total);
    neap_cli_json_uint(out, "weights_bytes", r->announced.weights);
    neap_cli_json_uint(out, "state_bytes", r->announced.state);
    neap_cli_json_uint(out, "cache_bytes", r->announced.cache);
    neap_cli_json_uint(out, "work_bytes", r->announced.work);
    neap_cli_json_uint(out, "peak_bytes", grown(r));
    neap_cli_json_uint(out, "load_peak_bytes", r->load_bytes);
    neap_cli_json_uint(out, "process_peak_bytes", r->process_bytes);
    neap_cli_json_close(out, '}');
}

static void json_mixed(const neap_cli_mixed *m, neap_cli_text *out) {
    neap_cli_json_open(out, "mixed", '{');
    neap_cli_json_int(out, "prompt_tokens", m->n_prompt);
    neap_cli_json_real(out, "decode_alone_tokens_per_second", m->decode_alone, 6);
    neap_cli_json_real(out, "decode_during_tokens_per_second", m->decode_during, 6);
    neap_cli_json_real(out, "prompt_alone_tokens_per_second", m->prompt_alone, 6);
    neap_cli_json_real(out, "prompt_during_tokens_per_second", m->prompt_during, 6);
    neap_cli_json_real(out, "longest_wait_ms", m->longest * 1e3, 6);
    neap_cli_json_close(out, '}');
}

static void print_json(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e) {
    neap_cli_text out = {0};
    neap_cli_json_open(&out, NULL, '{');
    neap_cli_json_cstring(&out, "model", r->s.options->model);
    neap_cli_json_cstring(&out, "family", info->family);
    neap_cli_json_cstring(&out, "kernels", info->kernels);
    neap_cli_json_int(&out, "threads", r->stats.n_threads);
    neap_cli_json_int(&out, "batch_size", r->s.options->batch_size);
    neap_cli_json_cstring(&out, "cache_type", neap_cli_cache_name(e->cache_type));
    neap_cli_json_cstring(&out, "index_type", info->n_index_layers > 0 ? neap_cli_index_name(e->index_type) : NULL);
    neap_cli_json_cstring(&out, "act_type", info->has_int_others ? neap_cli_act_name(e->act_type) : NULL);
    neap_cli_json_cstring(&out, "moe_act_type", info->has_int_experts ? neap_cli_act_name(e->moe_act_type) : NULL);
    neap_cli_json_int(&out, "n_prompt", r->n_prompt);
    neap_cli_json_int(&out, "repetitions", r->repetitions);
    neap_cli_json_real(&out, "load_seconds", r->load_seconds, 6);
    neap_cli_json_bool(&out, "is_from_cache", r->s.is_from_cache);
    neap_cli_json_open(&out, "depths", '[');
    for (size_t i = 0; i < r->n_levels; i++) {
        const neap_cli_level *l = &r->levels[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_int(&out, "depth", l->depth);
        neap_cli_json_real(&out, "prompt_tokens_per_second", l->prompt_rate, 6);
        neap_cli_json_real(&out, "tail_tokens_per_second", l->tail_rate, 6);
        neap_cli_json_real(&out, "decode_median_ms", l->median * 1e3, 6);
        neap_cli_json_real(&out, "decode_mean_ms", l->mean * 1e3, 6);
        neap_cli_json_real(&out, "decode_least_ms", l->least * 1e3, 6);
        neap_cli_json_real(&out, "decode_cpu_ms", l->cpu * 1e3, 6);
        neap_cli_json_uint(&out, "decode_samples", l->n_samples);
        neap_cli_share_json(&out, &l->share);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_json_open(&out, "batches", '[');
    for (size_t i = 0; i < r->n_batches; i++) {
        const neap_cli_batch *b = &r->batches[i];
        neap_cli_json_open(&out, NULL, '{');
        neap_cli_json_int(&out, "sequences", b->n_seqs);
        neap_cli_json_real(&out, "step_median_ms", b->median * 1e3, 6);
        neap_cli_json_real(&out, "step_least_ms", b->least * 1e3, 6);
        neap_cli_json_real(&out, "share_of_memory", b->share, 6);
        neap_cli_json_close(&out, '}');
    }
    neap_cli_json_close(&out, ']');
    neap_cli_limits_json(&out, &r->limits);
    if (r->mixed.n_prompt > 0) json_mixed(&r->mixed, &out);
    json_memory(r, &out);
    neap_cli_json_close(&out, '}');
    neap_cli_out(out.data, out.n);
    neap_cli_out("\n", 1);
    neap_cli_text_free(&out);
}

void neap_cli_bench_print(const neap_cli_bench_run *r, const neap_model_info *info, const neap_engine_options *e) {
    const neap_cli_options *o = r->s.options;
    if (o->json)
        print_json(r, info, e);
    else if (o->csv)
        print_csv(r);
    else if (o->markdown)
        print_markdown(r, info, e);
    else
        print_table(r, info, e);
}
