#!/usr/bin/env python3
"""What a checkpoint costs a token, and the speed that a machine's limits allow.

    python3 bench/roofline.py MODEL... --bandwidth 20 --gflops 150     (numbers of bench/limits.c)

Decode reads every weight that a token uses, the latents and index keys of its context, and the recurrent states twice;
a prompt is bound by multiply-adds. Counted from the headers of the safetensors files: experts by the share that a token
uses, the embedding not at all."""
import argparse
import glob
import json
import math
import os
import re
import struct


def headers(path):
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with open(name, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for tensor, t in head.items():
            if tensor != "__metadata__" and isinstance(t, dict) and "data_offsets" in t:
                yield tensor, t


def account(path):
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    c = c.get("text_config", c)
    dsa = c.get("dsa_config", {})
    linear = c.get("linear_attn_config")
    n_mla = len(linear["full_attn_layers"]) if linear else c["num_hidden_layers"]
    n_kda = len(linear["kda_layers"]) if linear else 0
    n_experts = c.get("num_experts") or c.get("n_routed_experts") or 1
    used = (c.get("num_experts_per_token") or c.get("num_experts_per_tok") or 0) / n_experts
    read = macs = 0
    for name, t in headers(path):
        if "embed_tokens" in name:
            continue
        share = used if re.search(r"\.experts\.\d+\.", name) else 1
        read += (t["data_offsets"][1] - t["data_offsets"][0]) * share
        if len(t["shape"]) == 2 and not name.endswith("scale") and "lm_head" not in name:
            macs += math.prod(t["shape"]) * (2 if name.endswith("packed") else 1) * share
    heads, latent, rope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    topk = c.get("index_topk") or dsa.get("index_topk") or 0
    index = (c.get("index_n_heads") or dsa.get("index_n_heads") or 0), (
        c.get("index_head_dim") or dsa.get("index_head_dim") or 0)
    state = n_kda * linear["num_heads"] * linear["head_dim"] ** 2 * 4 if linear else 0
    return dict(read=read, macs=macs, n_mla=n_mla, heads=heads, latent=latent, rope=rope, topk=topk, index=index,
                state=state)


def attention(a, depth):
    """(bytes, multiply-adds) of a token at this depth, BF16 caches."""
    rows = min(depth, a["topk"]) if a["topk"] else depth
    read = rows * (a["latent"] + a["rope"]) * 2
    macs = rows * a["heads"] * (2 * a["latent"] + a["rope"])
    if a["topk"] and depth > a["topk"]:
        read += depth * a["index"][1] * 2
        macs += depth * a["index"][0] * a["index"][1]
    return a["n_mla"] * read, a["n_mla"] * macs


def main():
    p = argparse.ArgumentParser(description="bytes and multiply-adds of a token")
    p.add_argument("model", nargs="+")
    p.add_argument("--bandwidth", type=float, required=True, help="GB/s")
    p.add_argument("--gflops", type=float, required=True, help="float32, two for a multiply-add")
    p.add_argument("--depth", default="0,4096,32768")
    o = p.parse_args()
    for path in o.model:
        a = account(path)
        print(f"{path}: {a['read'] / 1e6:.1f} MB of weights a token, {a['macs'] / 1e6:.1f} M multiply-adds without the "
              f"head, states {2 * a['state'] / 1e6:.1f} MB read and written")
        for depth in (int(x) for x in o.depth.split(",")):
            read, macs = attention(a, depth)
            seconds = max((a["read"] + 2 * a["state"] + read) / (o.bandwidth * 1e9), 2 * macs / (o.gflops * 1e9))
            prompt = o.gflops * 1e9 / (2 * (a["macs"] + macs))
            print(f"  depth {depth:8}: attention {read / 1e6:8.1f} MB, {macs / 1e6:8.1f} M; decode at least "
                  f"{seconds * 1e3:8.3f} ms a token, prompt at most {prompt:8.1f} tokens/s")


if __name__ == "__main__":
    main()
