#!/usr/bin/env python3
"""Random small checkpoints in shapes that the fixed goldens do not have, with expected results.

    python make_variants.py --out DIR [--seed N] [--n 20]

Every variant draws a family, sizes that are no multiples of anything, gate rank x gate form, conv taps, expert
groups, AttnRes block sizes, index sharing, weight formats (F32, BF16, MXFP4 experts, FP8 in 128 x 128 blocks) and
spelling (kimi_k3, its plain text_config form, kimi_k31 with dsa_config, other tensor prefixes). Expected results
come from reference.py in float64; file layout and tensor names are those of the golden directory.
Needs torch and safetensors (CPU)."""
import argparse
import json
import os
import random
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_golden as G  # noqa: E402
import reference as R  # noqa: E402


def pick_config(r):
    kind = r.choice(("kimi_linear", "kimi_k3", "kimi_k3", "kimi_k31", "kimi_k31", "deepseek_v32", "glm_moe_dsa"))
    layers = r.randrange(3, 8)
    heads = r.choice((1, 2, 3, 5))
    d = r.choice((40, 56, 72, 96, 136))
    top_k = r.randrange(1, 4)
    groups = r.choice((1, 1, 2, 4))
    experts = groups * r.randrange(3, 6)
    c = {
        "vocab_size": r.choice((97, 256, 300)), "hidden_size": d, "num_hidden_layers": layers, "rms_norm_eps": r.choice((1e-5, 1e-6)),
        "num_attention_heads": heads, "num_key_value_heads": heads, "kv_lora_rank": r.choice((24, 64, 130)),
        "q_lora_rank": r.choice((None, 20, 48)), "qk_nope_head_dim": r.choice((8, 24, 32)), "qk_rope_head_dim": r.choice((4, 8, 16)),
        "v_head_dim": r.choice((8, 20, 32)), "intermediate_size": r.choice((56, 130)), "moe_intermediate_size": r.choice((12, 32, 48)),
        "first_k_dense_replace": r.choice((0, 1, 2)), "routed_scaling_factor": r.choice((1.0, 2.446)), "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0, "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16",
    }
    if kind.startswith("kimi"):
        is_kda = [r.random() < 0.6 for _ in range(layers)]
        is_kda[r.randrange(layers)] = False
        is_kda[(is_kda.index(False) + 1) % layers] = True
        la = {"kda_layers": [i + 1 for i in range(layers) if is_kda[i]], "full_attn_layers": [i + 1 for i in range(layers) if not is_kda[i]],
              "num_heads": r.choice((1, 2, 3)), "head_dim": r.choice((8, 20, 32, 48)), "short_conv_kernel_size": r.choice((2, 3, 4))}
        if r.random() < 0.5:
            la["gate_lower_bound"] = r.choice((-5.0, -2.5))
        if r.random() < 0.5:
            la["use_full_rank_gate"] = True
        c.update({"linear_attn_config": la, "mla_use_nope": True, "num_experts": experts, "num_experts_per_token": top_k,
                  "num_shared_experts": r.choice((1, 2)), "moe_layer_freq": 1, "moe_renormalize": r.random() < 0.8,
                  "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "num_expert_group": groups,
                  "topk_group": r.randrange(1, groups + 1), "hidden_act": "silu", "model_type": "kimi_linear"})
        if kind != "kimi_linear":
            c.update({"hidden_act": "situ", "activation_situ_beta": r.choice((4.0, 2.0)), "activation_situ_linear_beta": r.choice((25.0, None)),
                      "attn_res_block_size": r.randrange(1, layers + 1), "routed_expert_hidden_size": r.choice((None, 32, 64)),
                      "latent_moe_use_norm": r.random() < 0.7, "mla_use_output_gate": r.random() < 0.8,
                      "architectures": ["KimiLinearForCausalLM"]})
            if c["routed_expert_hidden_size"] is None:
                c["latent_moe_use_norm"] = False
        if kind == "kimi_k31" or (kind == "kimi_k3" and r.random() < 0.3):
            c["q_lora_rank"] = c["q_lora_rank"] or 28
            c.update({"index_topk": r.choice((5, 12, 30)), "index_n_heads": r.choice((1, 3, 4)), "index_head_dim": r.choice((8, 20, 32))})
    else:
        c["first_k_dense_replace"] = r.choice((1, 2))
        c["q_lora_rank"] = c["q_lora_rank"] or 28
        # top-k of groups needs two experts per group at least
        c.update({"n_routed_experts": experts, "num_experts_per_tok": top_k, "n_shared_experts": 1, "norm_topk_prob": True, "n_group": groups,
                  "topk_group": r.randrange(1, groups + 1), "hidden_act": "silu", "attention_bias": False, "scoring_func": "sigmoid",
                  "topk_method": "noaux_tc", "rope_parameters": {"rope_type": "default", "rope_theta": r.choice((10000.0, 8000000.0))},
                  "index_topk": r.choice((5, 12, 30)), "index_n_heads": r.choice((1, 3, 8)), "index_head_dim": r.choice((16, 20, 32)), "model_type": kind})
        if kind == "glm_moe_dsa" and layers > 3:
            c["indexer_types"] = ["full"] + ["full" if r.random() < 0.5 else "shared" for _ in range(layers - 1)]
    return kind, c


def wrap(kind, text):
    """What reference.py reads: kimi_k31 is its kimi_k3 with index fields."""
    if kind in ("kimi_k3", "kimi_k31"):
        return {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": text}
    return text


def publish(kind, raw, W, r):
    """Another legal spelling of the same checkpoint."""
    raw = json.loads(json.dumps(raw))
    if kind == "kimi_k31":
        t = raw["text_config"]
        raw["model_type"], raw["architectures"] = "kimi_k31", ["KimiK31ForConditionalGeneration"]
        a, b, c = r.choice((("index_topk", "index_n_heads", "index_head_dim"), ("topk", "n_heads", "head_dim"), ("top_k", "num_heads", "head_dim")))
        t["dsa_config"] = {a: t.pop("index_topk"), b: t.pop("index_n_heads"), c: t.pop("index_head_dim"),
                           r.choice(("layers", "full_attn_layers", "indexer_layers")): t["linear_attn_config"]["full_attn_layers"]}
    style = r.randrange(4) if kind in ("kimi_k3", "kimi_k31") else 0
    if style == 1:                                             # names without the outer prefix
        W = {n.removeprefix("language_model."): t for n, t in W.items()}
    if style == 2:
        W = {n.replace("language_model.model.layers.", "language_model.layers."): t for n, t in W.items()}
    if style == 3 and kind == "kimi_k3":                       # the plain text form: only the inner config
        raw = raw["text_config"]
        W = {n.removeprefix("language_model."): t for n, t in W.items()}
    return raw, W, style


def fp8_blocks(w):
    """[out, in] -> E4M3 codes and F32 multipliers per 128 x 128 block, and the weight they stand for."""
    n, k = w.shape
    sc = torch.ones((n + 127) // 128, (k + 127) // 128)
    codes, back = torch.zeros(n, k, dtype=torch.uint8), torch.zeros(n, k)
    for i in range(sc.shape[0]):
        for j in range(sc.shape[1]):
            b = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            s = (w[b].abs().max() / 448).float()
            sc[i, j] = s
            codes[b] = R.e4m3_encode(w[b] / s)
            back[b] = R.e4m3_decode(codes[b]).float() * s
    return codes.view(torch.float8_e4m3fn), sc, back


def store(W, fmt, text):
    """-> stored tensors, float weights that the reference computes with, changed config fields"""
    stored, real, extra = {}, {}, {}
    for n, t in W.items():
        linear = t.dim() == 2 and not any(s in n for s in ("norm", "conv1d", "res_proj", "embed", "lm_head", "gate.weight", "weights_proj", "b_proj.weight"))
        if fmt == "mxfp4" and ".experts." in n:
            codes, sc = R.mx_encode(t.float(), "e2m1", "floor")
            stored[n + "_packed"], stored[n + "_scale"] = R.pack_nibbles(codes), sc
            real[n] = R.mx_decode(codes, sc, "e2m1").float()
        elif fmt == "fp8" and (linear or "q_b_proj" in n or "kv_b_proj" in n):
            stored[n], stored[n + "_scale_inv"], real[n] = fp8_blocks(t.float())
        elif fmt == "float32" or G.keep_fp32(n):
            stored[n] = real[n] = t
        else:
            stored[n] = t.to(torch.bfloat16)
            real[n] = stored[n].float()
    if fmt == "mxfp4":
        extra = {"quantization_config": {"quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "mxfp4-pack-quantized",
                 "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                 "symmetric": True, "dynamic": False, "scale_dtype": "torch.uint8"}}}, "ignore": []}}
    if fmt == "fp8":
        extra = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}}
    return stored, real, extra


def one(seed, out):
    r = random.Random(seed)
    kind, text = pick_config(r)
    fmt = r.choice(("bfloat16", "bfloat16", "float32", "mxfp4", "fp8"))
    if fmt == "mxfp4":
        if kind in ("deepseek_v32", "glm_moe_dsa", "kimi_linear"):
            fmt = "fp8"
        else:
            text["moe_intermediate_size"], text["routed_expert_hidden_size"] = r.choice((32, 64, 96)), r.choice((32, 64, 160))
    if fmt == "fp8":
        text["hidden_size"] = r.choice((136, 200, 264))
    raw = wrap(kind, text)
    c = R.parse_config(raw)
    W = R.random_weights(c, torch.Generator().manual_seed(seed))
    stored, real, extra = store(W, fmt, text)
    model = R.Model(raw, real, dtype=torch.float64)
    (raw["text_config"] if "text_config" in raw else raw).update(extra)
    n_new = 12
    ids, greedy, margin, info = G.pick_prompt(model, {"seed": seed * 1000, "len": r.choice((7, 40, 75, 110))}, c.vocab, n_new)
    rec, cache = {}, model.new_cache()
    logits = model.forward(ids, cache, rec)
    T = {"tokens": ids.int(), "logits": logits.float(), "greedy": greedy, "greedy_margin": margin, "final_norm": rec["final_norm"].float(),
         "pre_norm": rec["pre_norm"].float()}
    T.update({f"hidden.{i}": rec[f"hidden.{i}"].float() for i in range(c.n_layers + 1)})
    if kind in ("deepseek_v32", "glm_moe_dsa"):                # rotated keys are half-split in the reference, pairwise here
        T.update({k: v for k, v in G.cache_tensors(cache, c).items() if "krope" not in k and "ikey" not in k})
    else:
        T.update(G.cache_tensors(cache, c))
    T.update(G.rec_tensors(rec, c))
    pub_raw, pub_w, style = publish(kind, raw, stored, r)
    name = f"v{seed}-{kind}-{fmt}-{style}"
    G.write_checkpoint(os.path.join(out, name), pub_raw, pub_w, r.choice((1, 2, 3)))
    G.save(T, os.path.join(out, name, f"golden_p{len(ids)}.safetensors"))
    return name, info


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--n", type=int, default=20)
    a = ap.parse_args()
    for s in range(a.seed, a.seed + a.n):
        try:
            print(*one(s, a.out), flush=True)
        except SystemExit as e:
            print("seed", s, e, flush=True)
