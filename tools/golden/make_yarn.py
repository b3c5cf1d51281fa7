#!/usr/bin/env python3
"""A deepseek_v32 checkpoint with YaRN, and what the transformers package computes for it.

    python make_yarn.py --out DIR

The other goldens have plain RoPE. A prompt is taken whose prefill and decode agree in transformers itself: then no
selection is close to a tie. Needs torch, transformers, safetensors (CPU)."""
import argparse
import json
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_golden as G  # noqa: E402
import reference as R  # noqa: E402

CONFIG = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "vocab_size": 48, "hidden_size": 24, "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6, "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 24, "q_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 8, "intermediate_size": 24, "moe_intermediate_size": 8, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "n_group": 4, "topk_group": 2, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "max_position_embeddings": 4096, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "index_n_heads": 8, "index_head_dim": 16,
    "index_topk": 16, "bos_token_id": 0, "eos_token_id": 1, "use_cache": True, "dtype": "bfloat16"}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--tokens", type=int, default=100)
    a = ap.parse_args()
    c = R.parse_config(CONFIG)
    W = G.store_dtype(R.random_weights(c, torch.Generator().manual_seed(5)), "bfloat16")
    G.write_checkpoint(a.out, json.loads(json.dumps(CONFIG)), W, 1)
    for seed in range(1, 100):
        ids = torch.randint(3, c.vocab, (a.tokens,), generator=torch.Generator().manual_seed(seed))
        logits, hidden, caches, _, _, info = G.hf_run(a.out, ids, 2)
        if info["decode_vs_prefill_max"] < 2e-5:
            break
    else:
        raise SystemExit("no prompt without a near tie found")
    T = {"tokens": ids.int(), "logits": logits, **{f"hidden.{i}": h for i, h in enumerate(hidden[:-1])}}
    T.update({k: v for k, v in caches.items() if "latent" in k or "krope" in k})
    G.save(T, os.path.join(a.out, f"golden_p{a.tokens}.safetensors"))
    print("prompt seed", seed, info)


if __name__ == "__main__":
    main()
