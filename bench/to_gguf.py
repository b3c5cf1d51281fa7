#!/usr/bin/env python3
"""Writes a checkpoint of random weights (make_model.py, `neap quantize`) as GGUF, for llama.cpp: the same weights.

    python3 bench/to_gguf.py CHECKPOINT OUT.gguf [--rest q8_0]

What becomes of what: BF16 stays BF16, or becomes Q8_0 with --rest q8_0 (every matrix but the router, as llama.cpp's
own quantiser does, and but kv_b). INT8 with a BF16 scale per 32 * n inputs becomes Q8_0 with that scale repeated n
times and as F16, MXFP4 is regrouped; both exactly. Norms, convolutions, biases, decay and router are F32, as llama.cpp
wants them.

Kimi Linear and Kimi K3. Needs numpy and gguf. Tensors are written one at a time; memory is that of the largest."""
import argparse
import json
import os
import struct
import sys

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
ROWS = 1 << 22  # values quantised at once

# ---- reading ----


class Checkpoint:
    """Tensors of a directory of safetensors, mapped."""

    def __init__(self, path):
        with open(os.path.join(path, "config.json")) as f:
            self.config = json.load(f)
        self.tensors = {}
        for name in sorted(os.listdir(path)):
            if name.endswith(".safetensors"):
                self.open(os.path.join(path, name))

    def open(self, path):
        with open(path, "rb") as f:
            n, = struct.unpack("<Q", f.read(8))
            head = json.loads(f.read(n))
        data = np.memmap(path, np.uint8, "r", 8 + n)
        for name, t in head.items():
            if name == "__metadata__":
                continue
            first, last = t["data_offsets"]
            self.tensors[name.removeprefix("language_model.")] = (t["dtype"], tuple(t["shape"]), data[first:last])

    def has(self, name):
        return name in self.tensors

    def get(self, name):
        dtype, shape, data = self.tensors[name]
        kind = {"BF16": np.uint16, "F32": np.float32, "I8": np.int8, "U8": np.uint8}[dtype]
        return dtype, data.view(kind).reshape(shape)

    def floats(self, name):
        dtype, x = self.get(name)
        return widen(x) if dtype == "BF16" else np.array(x, np.float32)


def widen(bf16):
    return (bf16.astype(np.uint32) << np.uint32(16)).view(np.float32)


# ---- formats ----


def q8_0(x, out):
    """F32 [n, 32] -> blocks [n, 34] of F16 scale and 32 codes."""
    d = np.abs(x).max(1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)
    out[:, :2] = d.astype(np.float16).view(np.uint8)
    out[:, 2:] = np.rint(x * inverse).astype(np.int8).view(np.uint8)


def q8_0_of_bf16(x):
    rows = x.reshape(-1, 32)
    out = np.empty((len(rows), 34), np.uint8)
    for i in range(0, len(rows), ROWS // 32):
        q8_0(widen(rows[i:i + ROWS // 32]), out[i:i + ROWS // 32])
    return out.reshape(*x.shape[:-1], -1)


def q8_0_of_int8(codes, scales):
    """Exact: BF16 scales between 2^-14 and 2^15 are F16 numbers."""
    n, k = codes.shape
    if scales.shape[1] * 32 > k or k % (scales.shape[1] * 32):
        sys.exit(f"INT8 groups of {k} / {scales.shape[1]} inputs are no multiple of 32")
    wide = widen(scales)
    half = wide.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), wide):
        sys.exit("an INT8 scale is no F16 number")
    out = np.empty((n, k // 32, 34), np.uint8)
    out[:, :, :2] = np.repeat(half, k // 32 // scales.shape[1], 1)[:, :, None].view(np.uint8)
    out[:, :, 2:] = codes.reshape(n, -1, 32).view(np.uint8)
    return out.reshape(n, -1)


def mxfp4(codes, scales):
    """Neighbours share a byte in safetensors; in GGUF inputs i and i + 16 of a block of 32 do."""
    n = len(codes)
    pairs = np.asarray(codes).reshape(n, -1, 16)
    values = np.empty((n, pairs.shape[1], 32), np.uint8)
    values[:, :, 0::2] = pairs & 15
    values[:, :, 1::2] = pairs >> 4
    out = np.empty((n, pairs.shape[1], 17), np.uint8)
    out[:, :, 0] = scales
    out[:, :, 1:] = values[:, :, :16] | values[:, :, 16:] << 4
    return out.reshape(n, -1)


# ---- tensors ----


class Writer:
    def __init__(self, path, arch, checkpoint, rest):
        self.out, self.c, self.rest = gguf.GGUFWriter(path, arch), checkpoint, rest
        self.planned = []  # function that gives the data

    def plan(self, name, shape, q, make):
        count = int(np.prod(shape))
        block, size = gguf.GGML_QUANT_SIZES[q]
        # the package takes the shape in bytes of types that numpy does not have
        stored = shape if q == Q.F32 else (*shape[:-1], shape[-1] // block * size)
        self.out.add_tensor_info(name, stored, np.dtype(np.float32 if q == Q.F32 else np.uint8),
                                 count // block * size, raw_dtype=q)
        self.planned.append(make)

    def floats(self, name, source, shape=None, change=lambda x: x):
        shape = shape or self.c.tensors[source][1]
        self.plan(name, shape, Q.F32, lambda: np.ascontiguousarray(change(self.c.floats(source)).reshape(shape)))

    def kind(self, source, keep=False):
        """(format in the GGUF, logical shape) of a matrix; keep: BF16 stays."""
        if self.c.has(source + ".weight_packed"):
            shape = self.c.tensors[source + ".weight_packed"][1]
            return Q.MXFP4, (shape[0], shape[1] * 2)
        dtype, shape, _ = self.c.tensors[source + ".weight"]
        return Q.Q8_0 if dtype == "I8" or self.rest == "q8_0" and not keep else Q.BF16, shape

    def encoded(self, source, q, change=lambda x: x):
        if q == Q.MXFP4:
            return mxfp4(self.c.get(source + ".weight_packed")[1], self.c.get(source + ".weight_scale")[1])
        dtype, x = self.c.get(source + ".weight")
        if dtype == "I8":
            return q8_0_of_int8(x, self.c.get(source + ".weight_scale")[1])
        x = np.ascontiguousarray(change(x))
        return q8_0_of_bf16(x) if q == Q.Q8_0 else x.view(np.uint8)

    def matrix(self, name, source, shape=None, change=lambda x: x, keep=False):
        q, own = self.kind(source, keep)
        self.plan(name + ".weight", shape or own, q, lambda: self.encoded(source, q, change))

    def stack(self, name, sources):
        q, shape = self.kind(sources[0])
        self.plan(name + ".weight", (len(sources), *shape), q,
                  lambda: np.stack([self.encoded(s, q) for s in sources]))

    def write(self):
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_ti_data_to_file()
        for make in self.planned:
            self.out.write_tensor_data(make())
        self.out.close()


def recurrent(w, t, b, a, heads):
    """KDA; the checkpoints of K3 have a gate of full rank."""
    for x in "qkv":
        w.matrix(b + f"attn_{x}", a + f"{x}_proj")
        n, _, taps = w.c.tensors[a + f"{x}_conv1d.weight"][1]
        w.floats(b + f"ssm_conv1d_{x}.weight", a + f"{x}_conv1d.weight", (1, n, 1, taps))
    full_rank = w.c.has(a + "g_proj.weight")
    w.floats(b + "ssm_a", a + "A_log", (heads,) if full_rank else (1, 1, heads, 1), lambda x: -np.exp(x))
    w.floats(b + "ssm_dt.bias", a + "dt_bias")
    names = {"ssm_f_a": "f_a", "ssm_f_b": "f_b", "ssm_beta": "b", "attn_output": "o"}
    names.update({"ssm_g": "g"} if full_rank else {"ssm_g_a": "g_a", "ssm_g_b": "g_b"})
    for name, source in names.items():
        w.matrix(b + name, a + source + "_proj")
    w.floats(b + "ssm_norm.weight", a + "o_norm.weight")


def attention(w, t, b, a, heads):
    """MLA: kv_b is kept as its two halves, that of the keys transposed. BF16 always: neap keeps it so, and
    llama-cpp-python 0.3.36 aborts on machines with AMX when they are Q8_0."""
    names = {"attn_kv_a_mqa": "kv_a_proj_with_mqa", "attn_output": "o_proj"}
    if t.get("q_lora_rank"):
        names.update(attn_q_a="q_a_proj", attn_q_b="q_b_proj")
        w.floats(b + "attn_q_a_norm.weight", a + "q_a_layernorm.weight")
    else:
        names.update(attn_q="q_proj")
    if w.c.has(a + "g_proj.weight") or w.c.has(a + "g_proj.weight_packed"):
        names.update(attn_gate="g_proj")
    for name, source in names.items():
        w.matrix(b + name, a + source)
    w.floats(b + "attn_kv_a_norm.weight", a + "kv_a_layernorm.weight")
    n, v, r = t["qk_nope_head_dim"], t["v_head_dim"], t["kv_lora_rank"]
    w.matrix(b + "attn_k_b", a + "kv_b_proj", (heads, r, n),
             lambda x: x.reshape(heads, n + v, r)[:, :n].transpose(0, 2, 1), keep=True)
    w.matrix(b + "attn_v_b", a + "kv_b_proj", (heads, v, r), lambda x: x.reshape(heads, n + v, r)[:, n:], keep=True)


def feed_forward(w, t, b, p, dense):
    if dense:
        for x in ("gate", "up", "down"):
            w.matrix(b + f"ffn_{x}", p + f"mlp.{x}_proj")
        return
    m = p + "block_sparse_moe."
    w.floats(b + "ffn_gate_inp.weight", m + "gate.weight")
    w.floats(b + "exp_probs_b.bias", m + "gate.e_score_correction_bias")
    if t.get("routed_expert_hidden_size"):
        w.matrix(b + "ffn_routed_down", m + "routed_expert_down_proj")
        w.matrix(b + "ffn_routed_up", m + "routed_expert_up_proj")
        w.floats(b + "ffn_routed_norm.weight", m + "routed_expert_norm.weight")
    for x, source in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        w.stack(b + f"ffn_{x}_exps", [m + f"experts.{e}.{source}" for e in range(t["num_experts"])])
    for x in ("gate", "up", "down"):
        w.matrix(b + f"ffn_{x}_shexp", m + f"shared_experts.{x}_proj")


def scores(w, name, source):
    """Attention residuals: norm and projection are one vector here."""
    norm = w.c.floats(source + "_norm.weight")
    w.floats(name + ".weight", source + "_proj.weight", norm.shape, lambda x: x.ravel() * norm)


def all_tensors(w, t):
    k3, heads = bool(t.get("attn_res_block_size")), t["num_attention_heads"]
    w.matrix("token_embd", "model.embed_tokens")
    for i in range(t["num_hidden_layers"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        w.floats(b + "attn_norm.weight", p + "input_layernorm.weight")
        w.floats(b + "ffn_norm.weight", p + "post_attention_layernorm.weight")
        if k3:
            scores(w, b + "attn_res_score", p + "self_attention_res")
            scores(w, b + "ffn_res_score", p + "mlp_res")
        full = i + 1 in t["linear_attn_config"]["full_attn_layers"]
        (attention if full else recurrent)(w, t, b, p + "self_attn.", heads)
        feed_forward(w, t, b, p, i < t["first_k_dense_replace"])
    if k3:
        scores(w, "output_res_score", "model.output_attn_res")
    w.floats("output_norm.weight", "model.norm.weight")
    w.matrix("output", "lm_head")


# ---- keys ----


def keys(w, arch, t):
    linear, out = t["linear_attn_config"], w.out
    latent = t["kv_lora_rank"]
    numbers = {
        "block_count": t["num_hidden_layers"], "context_length": t["max_position_embeddings"],
        "embedding_length": t["hidden_size"], "feed_forward_length": t["intermediate_size"],
        "vocab_size": t["vocab_size"], "attention.head_count": t["num_attention_heads"],
        "rope.dimension_count": t["qk_rope_head_dim"], "attention.kv_lora_rank": latent,
        "attention.q_lora_rank": t.get("q_lora_rank"), "attention.key_length": latent + t["qk_rope_head_dim"],
        "attention.value_length": latent, "attention.value_length_mla": t["v_head_dim"],
        "attention.key_length_mla": t["qk_nope_head_dim"] + t["qk_rope_head_dim"],
        "ssm.conv_kernel": linear["short_conv_kernel_size"], "kda.head_dim": linear["head_dim"],
        "expert_count": t["num_experts"], "expert_used_count": t["num_experts_per_token"],
        "expert_feed_forward_length": t["moe_intermediate_size"], "expert_shared_count": t["num_shared_experts"],
        "expert_gating_func": 2, "leading_dense_block_count": t["first_k_dense_replace"],
        "expert_latent_length": t.get("routed_expert_hidden_size"), "attn_res.block_size": t.get("attn_res_block_size")}
    reals = {
        "attention.layer_norm_rms_epsilon": t["rms_norm_eps"], "expert_weights_scale": t["routed_scaling_factor"],
        "activation.situ_beta": t.get("activation_situ_beta"),
        "activation.situ_linear_beta": t.get("activation_situ_linear_beta"),
        "kda.gate_lower_bound": linear.get("gate_lower_bound")}
    for name, value in numbers.items():
        if value is not None:
            out.add_uint32(f"{arch}.{name}", value)
    for name, value in reals.items():
        if value is not None:
            out.add_float32(f"{arch}.{name}", value)
    out.add_bool(f"{arch}.expert_weights_norm", True)
    full = linear["full_attn_layers"]
    out.add_array(f"{arch}.attention.head_count_kv", [int(i + 1 in full) for i in range(t["num_hidden_layers"])])
    out.add_string("tokenizer.ggml.model", "none")  # both programs get token ids


def convert(checkpoint, path, rest="bf16"):
    c = Checkpoint(checkpoint)
    text = c.config.get("text_config", c.config)
    if text.get("dsa_config"):
        sys.exit("this version of llama.cpp has no indexer for Kimi K3.1: make the model with --index-topk 0")
    arch = "kimi-k3" if c.config["model_type"] in ("kimi_k3", "kimi_k31") else "kimi-linear"
    w = Writer(path + ".part", arch, c, rest)
    keys(w, arch, text)
    all_tensors(w, text)
    w.write()
    os.replace(path + ".part", path)


def main():
    a = argparse.ArgumentParser(description="a checkpoint of random weights as GGUF")
    a.add_argument("checkpoint")
    a.add_argument("out")
    a.add_argument("--rest", choices=("bf16", "q8_0"), default="bf16", help="what BF16 matrices become")
    o = a.parse_args()
    convert(o.checkpoint, o.out, o.rest)


if __name__ == "__main__":
    main()
