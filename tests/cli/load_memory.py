#!/usr/bin/env python3
"""Peak memory while a model is loaded: at most 1.05 x its packed weights, and what every run needs.

The small Kimi Linear gets a large vocabulary, so that nearly all its bytes are weights; what the program takes anyway,
with caches and work, is measured with the small model itself. A second copy of the weights, a mapped file or a whole
tensor on the way would add a multiple of what is allowed."""
import json
import os
import shutil
import struct

from cli_shared import check, finish, golden_model, load_model, peak_bytes, run, scratch, write_model

if os.environ.get("NEAP_SANITIZE"):  # keeps freed memory, and shadows the rest
    print("skipped: a sanitizer's memory is not the program's")
    finish()

VOCAB, TOKENS, BATCH, MIB = 240000, 4, 8, 1 << 20
small = golden_model("kimi-linear-f32-float32")
ids = os.path.join(scratch(), "ids.json")
with open(ids, "w") as f:
    json.dump(list(range(1, TOKENS + 1)), f)


def make(folder):
    tensors = load_model(small)
    row = struct.pack("<64H", *[0x3c00 + 77 * i % 512 for i in range(64)])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = ("BF16", [VOCAB, 64], row * VOCAB)
    return write_model(folder, tensors, small, vocab_size=VOCAB)


def peak_of(model, threads):
    """With a short prompt: after loading little is added, and nothing is given back."""
    return peak_bytes("logits", model, "--tokens", ids, "-q", "-b", str(BATCH), "-t", str(threads), "--out",
                      os.path.join(scratch(), "logits.safetensors"))


def packed_bytes(model):
    r = run("info", model, "--json")
    check(r.code == 0, model, r)
    return json.loads(r.out)["memory"]["weights"]


base_peak, base_weights = peak_of(small, 1), packed_bytes(small)
large = make(os.path.join(scratch(), "large"))
eight = os.path.join(scratch(), "eight")
r = run("quantize", large, eight, "--experts", "bf16", "--head", "int8", "--embedding", "int8")
check(r.code == 0, r)
for model, least in ((large, 60e6), (eight, 30e6)):
    weights = packed_bytes(model)
    check(weights >= least, model, weights)
    for threads in (1, 4):
        # the logits that are written; a piece of a tensor, its scales and a stack per thread
        limit = base_peak + 1.05 * (weights - base_weights) + 4 * TOKENS * VOCAB + (1 + threads) * MIB
        peak = peak_of(model, threads)
        print(f"{os.path.basename(model)}, {threads} threads: peak {peak / MIB:.1f} MiB, weights {weights / MIB:.1f}, "
              f"program {base_peak / MIB:.1f}, limit {limit / MIB:.1f}")
        check(weights < peak <= limit, os.path.basename(model), threads, peak, limit)
shutil.rmtree(large)
shutil.rmtree(eight)
finish()
