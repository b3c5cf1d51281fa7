#!/usr/bin/env python3
"""Peak memory while a model is loaded: at most 1.05 x its packed weights, and what every run needs.

The small Kimi Linear gets a large vocabulary, so that nearly all its bytes are weights. What the program takes anyway is
measured with half of that vocabulary: a smaller model would take less than this script, and a process counts from before
its exec. A second copy of the weights, a mapped file or a whole tensor on the way would add a multiple of what is allowed."""
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


def make(folder, vocabulary):
    tensors = load_model(small)
    row = struct.pack("<64H", *[0x3c00 + 77 * i % 512 for i in range(64)])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = ("BF16", [vocabulary, 64], row * vocabulary)
    return write_model(folder, tensors, small, vocab_size=vocabulary)


def peak_of(model, threads):
    """With a short prompt: after loading little is added, and nothing is given back."""
    return peak_bytes("logits", model, "--tokens", ids, "-q", "-b", str(BATCH), "-t", str(threads), "--out",
                      os.path.join(scratch(), "logits.safetensors"))


def announced(model):
    """(bytes of packed weights, of all)"""
    r = run("info", model, "--json", "-b", BATCH, "-c", BATCH)
    check(r.code == 0, model, r)
    memory = json.loads(r.out)["memory"]
    return memory["weights"], memory["total"]


def pair(name, flags=None):
    """Two models, one with half the vocabulary of the other."""
    models = [make(os.path.join(scratch(), f"{name}-{n}"), n) for n in (VOCAB // 2, VOCAB)]
    if flags is None:
        return models
    made = [m + "-q" for m in models]
    for model, out in zip(models, made):
        r = run("quantize", model, out, *flags)
        check(r.code == 0, r)
        shutil.rmtree(model)
    return made


for name, flags, least in (("large", None, 60e6), ("eight", ("--experts", "bf16", "--head", "int8", "--embedding", "int8"), 30e6)):
    half, whole = pair(name, flags)
    (base_weights, base_all), (weights, total) = announced(half), announced(whole)
    check(weights >= least, name, weights)
    for threads in (1, 4):
        # the logits that are written; a piece of a tensor, its scales and a stack per thread
        base, peak = peak_of(half, threads), peak_of(whole, threads)
        check(base > 24 * MIB, "more than this script takes", base)
        limit = base + (total - base_all) + 0.05 * (weights - base_weights) + 2 * TOKENS * VOCAB + (1 + threads) * MIB
        print(f"{name}, {threads} threads: peak {peak / MIB:.1f} MiB, weights {weights / MIB:.1f}, limit {limit / MIB:.1f}; "
              f"with half of it {base / MIB:.1f}, weights {base_weights / MIB:.1f}")
        check(weights < peak <= limit, name, threads, peak, limit)
    shutil.rmtree(half)
    shutil.rmtree(whole)
finish()
