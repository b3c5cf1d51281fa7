/* Shares of the machine's limits, for `neap bench`.
 *
 *   decode share = bytes that a step must read and write / bandwidth of memory / seconds of the step
 *   prompt share = multiply-adds of the prompt / float32 multiply-add peak / seconds of the prompt
 *
 * The library counts the work (neap_engine_work) and measures the limits (neap_measure_limits) with the threads of the
 * run; measured before and after it, the better counts, for a shared machine is seldom slow both times. Decoding is
 * bound by memory, a prompt by multiplying. With 8-bit products or AMX a prompt may pass the float32 peak.
 *
 * Called by bench.c. Owns nothing. */
#include "roofline.h"

#include "report.h"
#include "terminal.h"

static void keep_most(double *most, double value) {
    if (value > *most) *most = value;
}

void neap_cli_limits_measure(const neap_cli_options *o, neap_limits *best) {
    neap_limits l = {.struct_size = sizeof l};
    if (neap_measure_limits(o->cpu, (int32_t)o->threads, 0.5, &l) != NEAP_OK) return;
    best->n_threads = l.n_threads;
    keep_most(&best->read_bytes, l.read_bytes);
    keep_most(&best->multiply_adds, l.multiply_adds);
    keep_most(&best->multiply_adds_int8, l.multiply_adds_int8);
    keep_most(&best->multiply_adds_bf16, l.multiply_adds_bf16);
}

int neap_cli_share_find(const neap_model *m, const neap_engine_options *e, const neap_limits *limits, int32_t n_seqs,
                        int64_t n_prompt, int64_t depth, double prompt_seconds, double step_seconds,
                        neap_cli_share *out) {
    *out = (neap_cli_share){.decode = {.struct_size = sizeof out->decode}};
    int code = neap_cli_failed(neap_engine_work(m, e, n_seqs, 1, depth, n_seqs, &out->decode), NEAP_CLI_RUNNING);
    for (int64_t at = 0, n; code == NEAP_EXIT_OK && at < n_prompt; at += n) {
        neap_work w = {.struct_size = sizeof w};
        n = n_prompt - at < e->batch_tokens_max ? n_prompt - at : e->batch_tokens_max;
        code = neap_cli_failed(neap_engine_work(m, e, 1, (int32_t)n, at, at + n == n_prompt, &w), NEAP_CLI_RUNNING);
        out->prompt_multiply_adds += w.multiply_adds;
    }
    if (code != NEAP_EXIT_OK) return code;
    double bytes = (double)(out->decode.weight_bytes + out->decode.state_bytes + out->decode.cache_bytes);
    if (step_seconds > 0 && limits->read_bytes > 0) out->decode_share = bytes / limits->read_bytes / step_seconds;
    if (prompt_seconds > 0 && limits->multiply_adds > 0)
        out->prompt_share = out->prompt_multiply_adds / (double)n_prompt / limits->multiply_adds / prompt_seconds;
    return NEAP_EXIT_OK;
}

void neap_cli_limits_print(const neap_limits *l) {
    if (l->read_bytes <= 0) {
        neap_cli_outf("limits: not measured, %.1f MiB of memory were not free\n",
                      (double)neap_limits_memory() / 1048576.0);
        return;
    }
    neap_cli_outf(
        "limits of %d thread%s: memory %.1f GB/s (100 %% of decode), float32 %.1f GMAC/s (100 %% of a prompt)",
        l->n_threads, l->n_threads == 1 ? "" : "s", l->read_bytes * 1e-9, l->multiply_adds * 1e-9);
    if (l->multiply_adds_int8 > 0) neap_cli_outf(", 8 bits %.1f", l->multiply_adds_int8 * 1e-9);
    if (l->multiply_adds_bf16 > 0) neap_cli_outf(", BF16 %.1f", l->multiply_adds_bf16 * 1e-9);
    neap_cli_outf("\n");
}

void neap_cli_limits_json(neap_cli_text *t, const neap_limits *l) {
    neap_cli_json_open(t, "limits", '{');
    neap_cli_json_real(t, "read_gb_per_second", l->read_bytes * 1e-9, 6);
    neap_cli_json_real(t, "float32_gmac_per_second", l->multiply_adds * 1e-9, 6);
    neap_cli_json_real(t, "int8_gmac_per_second", l->multiply_adds_int8 * 1e-9, 6);
    neap_cli_json_real(t, "bf16_gmac_per_second", l->multiply_adds_bf16 * 1e-9, 6);
    neap_cli_json_close(t, '}');
}

void neap_cli_share_json(neap_cli_text *t, const neap_cli_share *share) {
    neap_cli_json_uint(t, "decode_weight_bytes", share->decode.weight_bytes);
    neap_cli_json_uint(t, "decode_state_bytes", share->decode.state_bytes);
    neap_cli_json_uint(t, "decode_cache_bytes", share->decode.cache_bytes);
    neap_cli_json_real(t, "decode_multiply_adds", share->decode.multiply_adds, 9);
    neap_cli_json_real(t, "decode_share_of_memory", share->decode_share, 4);
    neap_cli_json_real(t, "prompt_multiply_adds", share->prompt_multiply_adds, 9);
    neap_cli_json_real(t, "prompt_share_of_float32", share->prompt_share, 4);
}
