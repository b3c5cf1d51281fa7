#!/usr/bin/env python3
"""Writes checkpoints of the published shapes with random weights, for timing: the numbers mean nothing, the work is
real.

    python3 bench/make_model.py --list
    python3 bench/make_model.py sparse OUT                    # MLA and indexer of K3.1 Pro, little of the rest
    python3 bench/make_model.py dense OUT                     # the same without the indexer
    python3 bench/make_model.py kimi-linear OUT --layers 8 --vocab 32768
    python3 bench/make_model.py k31 OUT --layers 4 --experts 32 --expert-format mxfp4

Any size of a preset can be changed (--help). Only the standard library; weights are written as they are drawn, a
megabyte at a time. A tensor depends on the seed and its name alone, so the same command gives the same bytes, and
`sparse` and `dense` share every weight that both have.

Values: the high byte of a BF16 is drawn from a short table (sign and pairs of octaves, each a quarter as likely as the
one above), the low byte is uniform: standard deviation about 2.1 * 4^k with the k of KINDS. MXFP4: any codes, scales
2^-8 .. 2^-10."""
import argparse
import array
import json
import math
import os
import random
import struct
import sys
import zlib

KIMI_LINEAR = dict(family="kimi_linear", hidden=2304, inter=9216, heads=32, kda_heads=32, kda_dim=128, conv=4, q_lora=0,
                   kv_lora=512, nope=128, rope=64, vdim=128, experts=256, topk=8, moe_width=1024, shared=1, latent=0,
                   route_scale=2.446, layers=4, mla=[4], dense=1, vocab=163840, context=1048576, block=0, index_heads=0,
                   index_dim=0, index_topk=0, expert_format="bf16", seed=20261129)
K3 = dict(KIMI_LINEAR, family="kimi_k3", hidden=7168, inter=33792, heads=96, kda_heads=96, q_lora=1536, experts=32,
          topk=16, moe_width=3072, shared=2, latent=3584, route_scale=1.0, block=12, expert_format="mxfp4")
K31 = dict(K3, family="kimi_k31", index_heads=32, index_dim=128, index_topk=2048)
KL4B = dict(KIMI_LINEAR, dense=2, vocab=32768)
KL300M = dict(KL4B, hidden=1024, inter=2816, heads=8, kda_heads=8, experts=32, topk=4, moe_width=256, layers=8,
              mla=[4, 8], dense=1)
K3M = dict(K3, hidden=2304, inter=9216, heads=32, kda_heads=32, experts=192, moe_width=1024, latent=1152, block=2,
           vocab=32768)
MLA4 = dict(KL4B, experts=32, topk=4, moe_width=256, mla=[1, 2, 3, 4], dense=3, vocab=4096, inter=2304)
SPARSE = dict(K31, hidden=512, inter=1024, kda_heads=4, experts=8, topk=2, moe_width=256, latent=256, shared=1,
              layers=2, mla=[2], vocab=4096, block=2)
PRESETS = {
    "kimi-linear": (KIMI_LINEAR, "Kimi Linear 48B-A3B, 4 of 27 layers"),
    "k3": (K3, "Kimi K3, 4 of 93 layers, 32 of 896 experts"),
    "k31": (K31, "Kimi K3.1 Pro, the same with the indexer"),
    "kl4b": (KL4B, "4 billion parameters of Kimi Linear's shapes"),
    "kl300m": (KL300M, "the same kinds of layers, small"),
    "k3m": (K3M, "Kimi K3's kinds of layers at Kimi Linear's width"),
    "mla4": (MLA4, "four MLA layers of Kimi Linear, little of the rest"),
    "sparse": (SPARSE, "one MLA layer with K3.1's heads, latents and indexer, one small KDA layer"),
    "dense": (dict(SPARSE, family="kimi_k3", index_heads=0, index_dim=0, index_topk=0), "sparse without its indexer"),
}
SIZES = ("hidden", "inter", "heads", "kda_heads", "kda_dim", "q_lora", "kv_lora", "nope", "rope", "vdim", "experts",
         "topk", "moe_width", "shared", "latent", "dense", "vocab", "context", "block", "index_heads", "index_dim",
         "index_topk", "seed")

# ---- which tensors ----


def attention(c, prefix):
    """(name, shape, kind) of an MLA layer."""
    h, n, qd = c["hidden"], c["heads"], c["nope"] + c["rope"]
    if c["q_lora"]:
        yield prefix + "q_a_proj.weight", (c["q_lora"], h), "linear"
        yield prefix + "q_a_layernorm.weight", (c["q_lora"],), "one"
        yield prefix + "q_b_proj.weight", (n * qd, c["q_lora"]), "linear"
    else:
        yield prefix + "q_proj.weight", (n * qd, h), "linear"
    yield prefix + "kv_a_proj_with_mqa.weight", (c["kv_lora"] + c["rope"], h), "linear"
    yield prefix + "kv_a_layernorm.weight", (c["kv_lora"],), "one"
    yield prefix + "kv_b_proj.weight", (n * (c["nope"] + c["vdim"]), c["kv_lora"]), "linear"
    if c["family"] != "kimi_linear":
        yield prefix + "g_proj.weight", (n * c["vdim"], h), "linear"
    yield prefix + "o_proj.weight", (h, n * c["vdim"]), "linear"
    if c["index_topk"]:
        yield prefix + "indexer.wq_b.weight", (c["index_heads"] * c["index_dim"], c["q_lora"]), "linear"
        yield prefix + "indexer.wk.weight", (c["index_dim"], h), "linear"
        yield prefix + "indexer.k_norm.weight", (c["index_dim"],), "one"
        yield prefix + "indexer.k_norm.bias", (c["index_dim"],), "zero"
        yield prefix + "indexer.weights_proj.weight", (c["index_heads"], h), "linear"


def recurrent(c, prefix):
    """The same of a KDA layer."""
    h, n, d = c["hidden"], c["kda_heads"], c["kda_dim"]
    for x in "qkv":
        yield prefix + f"{x}_proj.weight", (n * d, h), "linear"
        yield prefix + f"{x}_conv1d.weight", (n * d, 1, c["conv"]), "conv"
    yield prefix + "A_log", (n,) if c["family"] != "kimi_linear" else (1, 1, n, 1), "a_log"
    yield prefix + "dt_bias", (n * d,), "dt"
    yield prefix + "f_a_proj.weight", (d, h), "linear"
    yield prefix + "f_b_proj.weight", (n * d, d), "linear"
    yield prefix + "b_proj.weight", (n, h), "linear"
    if c["family"] == "kimi_linear":
        yield prefix + "g_a_proj.weight", (d, h), "linear"
        yield prefix + "g_b_proj.weight", (n * d, d), "linear"
    else:
        yield prefix + "g_proj.weight", (n * d, h), "linear"
    yield prefix + "o_norm.weight", (d,), "one"
    yield prefix + "o_proj.weight", (h, n * d), "linear"


def experts(c, prefix):
    h, width = c["hidden"], c["latent"] or c["hidden"]
    yield prefix + "gate.weight", (c["experts"], h), "linear"
    yield prefix + "gate.e_score_correction_bias", (c["experts"],), "bias"
    if c["latent"]:
        yield prefix + "routed_expert_down_proj.weight", (width, h), "linear"
        yield prefix + "routed_expert_up_proj.weight", (h, width), "linear"
        yield prefix + "routed_expert_norm.weight", (width,), "one"
    for e in range(c["experts"]):
        for w, n, k in (("w1", c["moe_width"], width), ("w3", c["moe_width"], width), ("w2", width, c["moe_width"])):
            if c["expert_format"] == "mxfp4":
                yield prefix + f"experts.{e}.{w}.weight_packed", (n, k // 2), "codes"
                yield prefix + f"experts.{e}.{w}.weight_scale", (n, k // 32), "scales"
            else:
                yield prefix + f"experts.{e}.{w}.weight", (n, k), "linear"
    if c["shared"]:
        s = c["moe_width"] * c["shared"]
        yield prefix + "shared_experts.gate_proj.weight", (s, h), "linear"
        yield prefix + "shared_experts.up_proj.weight", (s, h), "linear"
        yield prefix + "shared_experts.down_proj.weight", (h, s), "linear"


def tensors(c):
    h = c["hidden"]
    yield "model.embed_tokens.weight", (c["vocab"], h), "embedding"
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,), "one"
        yield p + "post_attention_layernorm.weight", (h,), "one"
        if c["block"]:
            for x in ("self_attention_res", "mlp_res"):
                yield p + x + "_norm.weight", (h,), "one"
                yield p + x + "_proj.weight", (1, h), "linear"
        yield from (attention if i + 1 in c["mla"] else recurrent)(c, p + "self_attn.")
        if i < c["dense"]:
            for x, shape in (("gate", (c["inter"], h)), ("up", (c["inter"], h)), ("down", (h, c["inter"]))):
                yield p + f"mlp.{x}_proj.weight", shape, "linear"
        else:
            yield from experts(c, p + "block_sparse_moe.")
    if c["block"]:
        yield "model.output_attn_res_norm.weight", (h,), "one"
        yield "model.output_attn_res_proj.weight", (1, h), "linear"
    yield "model.norm.weight", (h,), "one"
    yield "lm_head.weight", (c["vocab"], h), "linear"


# ---- their values ----

KINDS = {"linear": 60, "embedding": 63}  # high seven bits of the largest exponents: 2^(2k - 127) .. 2^(2k - 125)
FLOATS = ("conv", "a_log", "dt", "bias")
BYTES = ("codes", "scales")
CHUNK = 1 << 19


def element_bytes(kind):
    return 4 if kind in FLOATS else 1 if kind in BYTES else 2


def high_bytes(top):
    """Table from a random byte to sign and exponent: 3/4 of the values in the upper two octaves, 3/16 below, ..."""
    below = [0] * 96 + [1] * 24 + [2] * 8
    return bytes((sign << 7) | (top - b) for sign in (0, 1) for b in below)


def draw(c, name, shape, kind):
    """The tensor's bytes in pieces."""
    n = math.prod(shape)
    r = random.Random((c["seed"] << 32) | zlib.crc32(name.encode()))
    if kind in ("one", "zero"):
        yield (b"\x80\x3f" if kind == "one" else b"\0\0") * n
    elif kind in FLOATS:
        def dt():  # softplus^-1 of 1e-3 .. 1e-1
            x = math.exp(r.uniform(math.log(1e-3), math.log(1e-1)))
            return x + math.log(-math.expm1(-x))
        one = {"conv": lambda: r.gauss(0, 0.5), "a_log": lambda: math.log(r.uniform(1, 16)), "dt": dt,
               "bias": lambda: r.gauss(0, 0.01)}[kind]
        values = array.array("f", (one() for _ in range(n)))
        if sys.byteorder == "big":
            values.byteswap()
        yield values.tobytes()
    elif kind in BYTES:
        table = bytes(range(256)) if kind == "codes" else bytes(119 - (i % 3) for i in range(256))
        for at in range(0, n, CHUNK):
            yield r.randbytes(min(CHUNK, n - at)).translate(table)
    else:
        table = high_bytes(KINDS[kind])
        for at in range(0, n, CHUNK):
            m = min(CHUNK, n - at)
            piece = bytearray(2 * m)
            piece[0::2] = r.randbytes(m)
            piece[1::2] = r.randbytes(m).translate(table)
            yield piece


# ---- files ----


def config(c):
    n, full = c["vocab"], c["mla"]
    kda = [i for i in range(1, c["layers"] + 1) if i not in full]
    text = dict(
        architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", vocab_size=n, hidden_size=c["hidden"],
        intermediate_size=c["inter"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
        num_key_value_heads=c["heads"], hidden_act="silu", rms_norm_eps=1e-5, q_lora_rank=c["q_lora"] or None,
        kv_lora_rank=c["kv_lora"], qk_nope_head_dim=c["nope"], qk_rope_head_dim=c["rope"], v_head_dim=c["vdim"],
        mla_use_nope=True, max_position_embeddings=c["context"], num_experts=c["experts"],
        num_experts_per_token=c["topk"], moe_intermediate_size=c["moe_width"], num_shared_experts=c["shared"],
        moe_layer_freq=1, moe_renormalize=True, moe_router_activation_func="sigmoid", use_grouped_topk=True,
        num_expert_group=1, topk_group=1, routed_scaling_factor=c["route_scale"], first_k_dense_replace=c["dense"],
        num_nextn_predict_layers=0, tie_word_embeddings=False, bos_token_id=n - 3, eos_token_id=n - 2,
        pad_token_id=n - 1, dtype="bfloat16",
        linear_attn_config=dict(full_attn_layers=full, kda_layers=kda, num_heads=c["kda_heads"], head_dim=c["kda_dim"],
                                short_conv_kernel_size=c["conv"]))
    if c["expert_format"] == "mxfp4":
        weights = dict(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, dynamic=False,
                       scale_dtype="torch.uint8")
        text["quantization_config"] = dict(
            quant_method="compressed-tensors", format="mxfp4-pack-quantized", quantization_status="compressed",
            config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)),
            ignore=["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                    "re:.*lm_head.*", "re:.*routed_expert_(down|up)_proj.*", "re:.*block_sparse_moe.gate.*"])
    if c["family"] == "kimi_linear":
        return text
    text.update(hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0, mla_use_output_gate=True,
                attn_res_block_size=c["block"] or None, routed_expert_hidden_size=c["latent"] or None,
                latent_moe_use_norm=True)
    text["linear_attn_config"].update(use_full_rank_gate=True, gate_lower_bound=-5.0)
    if c["index_topk"]:
        text["dsa_config"] = dict(index_n_heads=c["index_heads"], index_head_dim=c["index_dim"],
                                  index_topk=c["index_topk"], dsa_layers=full)
    name = "KimiK31ForConditionalGeneration" if c["family"] == "kimi_k31" else "KimiK3ForConditionalGeneration"
    return dict(architectures=[name], model_type=c["family"], text_config=text, tie_word_embeddings=False,
                bos_token_id=n - 3, eos_token_id=n - 2, pad_token_id=n - 1, dtype="bfloat16")


def write_shard(c, path, listed, prefix):
    head, at = {}, 0
    for name, shape, kind in listed:
        n = math.prod(shape) * element_bytes(kind)
        dtype = "F32" if kind in FLOATS else "U8" if kind in BYTES else "BF16"
        head[prefix + name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + n])
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape, kind in listed:
            for piece in draw(c, name, shape, kind):
                f.write(piece)
    return at


def write(c, out, shard_bytes):
    os.makedirs(out, exist_ok=True)
    shards, size = [[]], 0
    for t in tensors(c):
        n = math.prod(t[1]) * element_bytes(t[2])
        if shards[-1] and size + n > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(t)
        size += n
    prefix = "" if c["family"] == "kimi_linear" else "language_model."
    index, total = {}, 0
    for i, listed in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(c, os.path.join(out, name), listed, prefix)
        index.update((prefix + t[0], name) for t in listed)
        print(f"{name}: {total / 1e9:.2f} GB so far", file=sys.stderr)
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump(dict(metadata=dict(total_size=total), weight_map=index), f)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config(c), f, indent=1)


def main():
    a = argparse.ArgumentParser(description="checkpoints of published shapes with random weights")
    a.add_argument("preset", nargs="?", choices=sorted(PRESETS))
    a.add_argument("out", nargs="?", help="directory to write")
    a.add_argument("--list", action="store_true", help="describe the presets")
    a.add_argument("--layers", type=int, help="every fourth layer is MLA, and the last one")
    a.add_argument("--mla", help="which layers are MLA, counted from 1: 2,4")
    a.add_argument("--expert-format", choices=("bf16", "mxfp4"))
    a.add_argument("--shard-bytes", type=int, default=2 << 30)
    for name in SIZES:
        a.add_argument("--" + name.replace("_", "-"), type=int)
    o = a.parse_args()
    if o.list:
        for name, (c, text) in PRESETS.items():
            n = sum(math.prod(t[1]) * element_bytes(t[2]) for t in tensors(c))
            print(f"{name:12} {n / 1e9:6.2f} GB  {text}")
        return
    if o.preset is None or o.out is None:
        a.error("PRESET and OUT are needed")
    c = dict(PRESETS[o.preset][0])
    c.update((k, getattr(o, k)) for k in SIZES if getattr(o, k) is not None)
    if o.layers:
        c["layers"] = o.layers
        c["mla"] = sorted({i for i in range(4, o.layers + 1, 4)} | {o.layers})
    if o.mla:
        c["mla"] = [int(x) for x in o.mla.split(",")]
    if o.expert_format:
        c["expert_format"] = o.expert_format
    write(c, o.out, o.shard_bytes)


if __name__ == "__main__":
    main()
